//! The library for programs of NX in C, libvmmc_nx: installing it.
//!
//! Invariant: where there is no compiler all the rest is installed, and a line says what is left
//! out.

#[path = "../../bindings/nx/link.rs"]
mod link;

use crate::install::{Tree, built_folder};
use crate::library::{self, Static};
use crate::{man, root};
use std::fs;
use std::path::PathBuf;

/// The programs that are installed to read and build, each with arguments that have it end soon.
pub(crate) const EXAMPLES: &[&[&str]] = &[&["barnes", "500", "3"], &["ocean", "34", "2"]];

/// Installs it; gives the number of man pages, or says why it is left out.
pub(crate) fn install(tree: &mut Tree, profile: &str) -> Result<Result<usize, String>, String> {
    if link::compiler().arg("--version").output().is_err() {
        return Ok(Err("libvmmc_nx is left out: no compiler for C here; the package gcc brings one".into()));
    }
    let (folder, version) = (folder(), env!("CARGO_PKG_VERSION"));
    let real = format!("libvmmc_nx.so.{version}");
    let rust = built_folder(profile).join("libvmmc_nx_c.a");
    link::library(&folder, &rust, &tree.place(&format!("lib/{real}"))?)?;
    tree.lighten(&format!("lib/{real}"), &["--strip-unneeded"])?;
    tree.link(&real, &format!("lib/{}", link::SONAME))?;
    tree.link(link::SONAME, "lib/libvmmc_nx.so")?;
    tree.copy(&folder.join("include/nx.h"), "include/nx.h")?;
    let map = fs::read_to_string(folder.join("nx.map")).map_err(|e| e.to_string())?;
    let calls = library::names(&map);
    library::install(tree, &Static { name: "vmmc_nx", built: &rust, beside: None, calls: &calls })?;
    let what = "The message passing of NX over virtual memory-mapped communication";
    library::describe(tree, "vmmc_nx", what, ("vmmc::nx", "vmmc::nx_static"))?;
    for file in EXAMPLES.iter().map(|words| format!("{}.c", words[0])).chain(["CMakeLists.txt".into()]) {
        tree.copy(&folder.join("examples").join(&file), &format!("share/vmmc/examples/nx/{file}"))?;
    }
    let header = header()?;
    let pages = man::pages_of_nx(&header, version);
    for page in &pages {
        tree.write(&format!("share/man/man{0}/{1}.{0}", page.section, page.name), &page.text)?;
    }
    for (quiet, plain) in man::pairs(&header) {
        tree.link(&format!("{plain}.3"), &format!("share/man/man3/{quiet}.3"))?;
    }
    Ok(Ok(pages.len()))
}

fn folder() -> PathBuf {
    root().join("bindings/nx")
}

/// The header.
pub(crate) fn header() -> Result<String, String> {
    fs::read_to_string(folder().join("include/nx.h")).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_library_for_nx_exports_what_its_header_declares() {
        let header = header().expect("it is in the tree");
        let mut declared: BTreeSet<String> = man::functions(&header).into_iter().map(|call| call.name).collect();
        assert!(header.contains("\nextern long msginfo[8];\n"));
        declared.insert("msginfo".into());
        let map = fs::read_to_string(folder().join("nx.map")).expect("it is in the tree");
        let exported: BTreeSet<String> = library::names(&map).into_iter().map(str::to_string).collect();
        assert_eq!(exported, declared);
    }
}
