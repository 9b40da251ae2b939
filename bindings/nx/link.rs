//! How libvmmc_nx is made: of the Rust part as a static library. Shared by `cargo xtask install`
//! and the tests of `vmmc-cli`, which include this file.
//!
//! Invariant: where a compiler is missing this says so and what brings it.

use std::path::Path;
use std::process::Command;

/// Name for the dynamic linker; its number is the version of the binary interface.
pub(crate) const SONAME: &str = "libvmmc_nx.so.0";
/// What the Rust part needs.
const LIBS: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// The compiler.
pub(crate) fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Makes the shared library, of the map in `folder` and the static library that cargo made.
///
/// # Errors
/// What is missing, or what the linker says.
pub(crate) fn library(folder: &Path, rust: &Path, to: &Path) -> Result<(), String> {
    let mut command = compiler();
    command
        .args(["-shared", "-Wl,--gc-sections,--as-needed,-z,relro,-z,now,-z,defs"])
        .arg(format!("-Wl,-soname,{SONAME}"));
    command.arg(format!("-Wl,--version-script={}", folder.join("nx.map").display())).arg("-o").arg(to);
    command.arg("-Wl,--whole-archive").arg(rust).arg("-Wl,--no-whole-archive").args(LIBS);
    let done = command.output().map_err(|e| format!("no compiler for C here ({e}); the package gcc brings one"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("libvmmc_nx: {}", String::from_utf8_lossy(&done.stderr)))
}
