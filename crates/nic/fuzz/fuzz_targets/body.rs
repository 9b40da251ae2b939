//! Any bytes at the `body` decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmmc_nic::fuzzing::body(data);
});
