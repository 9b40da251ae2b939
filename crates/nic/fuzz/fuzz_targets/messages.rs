//! Any bytes at the decoder of messages, and as what is done to matching.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmmc_mp::fuzzing::everything(data);
});
