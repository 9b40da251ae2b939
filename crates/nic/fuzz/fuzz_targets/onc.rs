//! Any bytes at the decoders of ONC RPC: headers, credentials, record marking, rpcbind.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    onc_rpc::fuzzing::everything(data);
});
