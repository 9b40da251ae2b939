//! How libvmmc_onc is made: the C sources of this folder, the Rust part as a static library, and
//! libtirpc. Shared by `cargo xtask install` and the tests of this folder, which include this file.
//!
//! Invariant: where libtirpc or a compiler is missing this says so and what brings it; nothing else
//! of the workspace needs them.

use std::path::Path;
use std::process::Command;

/// Name for the dynamic linker; its number is the version of the binary interface.
pub(crate) const SONAME: &str = "libvmmc_onc.so.0";
/// The C sources.
const SOURCES: [&str; 3] = ["clnt_vmmc.c", "outgoing.c", "svc_vmmc.c"];
/// libtirpc's own headers cast functions.
const FLAGS: [&str; 9] = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Werror",
    "-Wno-cast-function-type",
];
/// What the Rust part needs.
const LIBS: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// Words that pkg-config says of libtirpc, after `--cflags` or `--libs`.
///
/// # Errors
/// What is missing, and the package that brings it.
pub(crate) fn libtirpc(what: &str) -> Result<Vec<String>, String> {
    let said = Command::new("pkg-config").args([what, "libtirpc"]).output();
    match said {
        Ok(said) if said.status.success() => {
            Ok(String::from_utf8_lossy(&said.stdout).split_whitespace().map(str::to_string).collect())
        }
        Ok(_) => Err("no headers of libtirpc here; the package libtirpc-dev brings them".into()),
        Err(_) => Err("no pkg-config here; the package pkg-config brings it".into()),
    }
}

/// Makes the library, of the sources in `folder` and the static library that cargo made.
///
/// # Errors
/// What is missing, or what the compiler says.
pub(crate) fn library(folder: &Path, rust: &Path, to: &Path) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(FLAGS).args(libtirpc("--cflags")?).arg("-shared").arg("-o").arg(to);
    command.args(SOURCES.map(|source| folder.join("c").join(source)));
    command.arg("-Wl,--gc-sections,--as-needed,-z,relro,-z,now,-z,defs").arg(format!("-Wl,-soname,{SONAME}"));
    command.arg(format!("-Wl,--version-script={}", folder.join("vmmc_onc.map").display()));
    command.arg(rust).args(libtirpc("--libs")?).args(LIBS);
    let done = command.output().map_err(|e| format!("no compiler for C here ({e}); the package gcc brings one"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("libvmmc_onc: {}", String::from_utf8_lossy(&done.stderr)))
}
