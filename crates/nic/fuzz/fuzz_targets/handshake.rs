//! Any bytes at the `handshake` decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmmc_nic::fuzzing::handshake(data);
});
