//! Any bytes as what the two ends of a channel write into memory that both have.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmmc_techniques::fuzzing::everything(data);
});
