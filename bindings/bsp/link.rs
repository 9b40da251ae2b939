//! How libvmmc_bsp is made: the C source of this folder, and the Rust part as a static library.
//! Shared by `cargo xtask install` and tests, which include this file.
//!
//! Invariant: where a compiler is missing this says so and what brings it; nothing else of the
//! workspace needs one.

use std::path::Path;
use std::process::Command;

/// Name for the dynamic linker; its number is the version of the binary interface.
pub(crate) const SONAME: &str = "libvmmc_bsp.so.0";
const FLAGS: [&str; 7] = ["-std=c11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
/// What the Rust part needs.
const LIBS: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// The compiler.
pub(crate) fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Makes the library, of the source in `folder` and the static library that cargo made.
///
/// # Errors
/// What is missing, or what the compiler says.
pub(crate) fn library(folder: &Path, rust: &Path, to: &Path) -> Result<(), String> {
    let mut command = compiler();
    command.args(FLAGS).arg("-shared").arg("-o").arg(to).arg(folder.join("c/abort.c"));
    command.arg("-Wl,--gc-sections,--as-needed,-z,relro,-z,now,-z,defs").arg(format!("-Wl,-soname,{SONAME}"));
    command.arg(format!("-Wl,--version-script={}", folder.join("vmmc_bsp.map").display()));
    // The calls are found by nobody but programs: without this the linker would leave them out.
    command.arg("-Wl,--whole-archive").arg(rust).arg("-Wl,--no-whole-archive").args(LIBS);
    let done = command.output().map_err(|e| format!("no compiler for C here ({e}); the package gcc brings one"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("libvmmc_bsp: {}", String::from_utf8_lossy(&done.stderr)))
}

/// Makes the object of the source in `folder`, for the static library.
///
/// # Errors
/// As for [`library`].
#[allow(dead_code, reason = "tests have the shared library alone")]
pub(crate) fn object(folder: &Path, to: &Path) -> Result<(), String> {
    let mut command = compiler();
    command.args(FLAGS).arg("-c").arg("-o").arg(to).arg(folder.join("c/abort.c"));
    let done = command.output().map_err(|e| format!("no compiler for C here ({e}); the package gcc brings one"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("libvmmc_bsp: {}", String::from_utf8_lossy(&done.stderr)))
}
