//! The library for bulk synchronous parallel programs in C, libvmmc_bsp: installing it.
//!
//! Invariant: where there is no compiler all the rest is installed, and a line says what is left
//! out.

#[path = "../../bindings/bsp/link.rs"]
mod link;

use crate::install::{Tree, built_folder};
use crate::{man, root};
use std::fs;
use std::path::{Path, PathBuf};

/// The programs that are installed to read and build.
const EXAMPLES: [&str; 6] = ["inner_product.c", "sieve.c", "matrix_vector.c", "fft.c", "lu.c", "radix_sort.c"];

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
    tree.write("lib/pkgconfig/vmmc_bsp.pc", &pkg_config(&tree.prefix.clone(), version))?;
    for name in EXAMPLES {
        tree.copy(&folder.join("examples").join(name), &format!("share/vmmc/examples/bsp/{name}"))?;
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

fn pkg_config(prefix: &Path, version: &str) -> String {
    let run = if prefix == Path::new("/usr") { "" } else { " -Wl,-rpath,${libdir}" };
    let prefix = prefix.display();
    format!(
        "prefix={prefix}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\nName: vmmc_bsp\nDescription: BSPlib over virtual memory-mapped communication\nVersion: {version}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}}{run} -lvmmc_bsp\n"
    )
}
