//! Any bytes at the decoders of remote calls, and as what callers and servers send each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmmc_rpc::fuzzing::everything(data);
});
