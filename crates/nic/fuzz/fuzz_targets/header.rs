//! Any bytes at the `header` decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmmc_nic::fuzzing::header(data);
});
