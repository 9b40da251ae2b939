//! The library for bulk synchronous parallel programs in C, libvmmc_bsp: installing it.
//!
//! Invariant: where there is no compiler all the rest is installed, and a line says what is left
//! out.

#[path = "../../bindings/bsp/link.rs"]
mod link;

use crate::install::{Tree, built_folder};
use crate::library::{self, Static};
use crate::{man, root, target_folder};
use std::fs;
use std::path::PathBuf;

/// The programs that are installed to read and build.
pub(crate) const EXAMPLES: &[&[&str]] =
    &[&["inner_product"], &["sieve"], &["matrix_vector"], &["fft"], &["lu"], &["radix_sort"]];

/// Installs it; gives the number of man pages, or says why it is left out.
pub(crate) fn install(tree: &mut Tree, profile: &str) -> Result<Result<usize, String>, String> {
    if link::compiler().arg("--version").output().is_err() {
        return Ok(Err("libvmmc_bsp is left out: no compiler for C here; the package gcc brings one".into()));
    }
    let (folder, version) = (folder(), env!("CARGO_PKG_VERSION"));
    let real = format!("libvmmc_bsp.so.{version}");
    let rust = built_folder(profile).join("libvmmc_bsp_c.a");
    link::library(&folder, &rust, &tree.place(&format!("lib/{real}"))?)?;
    tree.lighten(&format!("lib/{real}"), &["--strip-unneeded"])?;
    tree.link(&real, &format!("lib/{}", link::SONAME))?;
    tree.link(link::SONAME, "lib/libvmmc_bsp.so")?;
    tree.copy(&folder.join("include/bsp.h"), "include/bsp.h")?;
    let map = fs::read_to_string(folder.join("vmmc_bsp.map")).map_err(|e| e.to_string())?;
    let calls = library::names(&map);
    let made = target_folder().join("xtask/bsp_abort.o");
    link::object(&folder, &made)?;
    library::install(tree, &Static { name: "vmmc_bsp", built: &rust, beside: Some(&made), calls: &calls })?;
    let what = "BSPlib over virtual memory-mapped communication";
    library::describe(tree, "vmmc_bsp", what, ("vmmc::bsp", "vmmc::bsp_static"))?;
    for file in EXAMPLES.iter().map(|words| format!("{}.c", words[0])).chain(["CMakeLists.txt".into()]) {
        tree.copy(&folder.join("examples").join(&file), &format!("share/vmmc/examples/bsp/{file}"))?;
    }
    let pages = man::pages_of_bsp(&header()?, version);
    for page in &pages {
        tree.write(&format!("share/man/man{0}/{1}.{0}", page.section, page.name), &page.text)?;
    }
    Ok(Ok(pages.len()))
}

fn folder() -> PathBuf {
    root().join("bindings/bsp")
}

/// The header.
pub(crate) fn header() -> Result<String, String> {
    fs::read_to_string(folder().join("include/bsp.h")).map_err(|e| e.to_string())
}
