//! Generates the service's code as for any gRPC program. `protox` reads the `.proto`, so no
//! `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["proto/greeter.proto"], ["proto"])?;
    tonic_prost_build::compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
