//! The library for programs of NX in C, libvmmc_nx: installing it.
//!
//! Invariant: where there is no compiler all the rest is installed, and a line says what is left
//! out.

#[path = "../../bindings/nx/link.rs"]
mod link;

use crate::install::{Tree, built_folder};
use crate::{man, root};
use std::fs;
use std::path::{Path, PathBuf};

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
    tree.write("lib/pkgconfig/vmmc_nx.pc", &pkg_config(&tree.prefix.clone(), version))?;
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

fn pkg_config(prefix: &Path, version: &str) -> String {
    let run = if prefix == Path::new("/usr") { "" } else { " -Wl,-rpath,${libdir}" };
    let prefix = prefix.display();
    format!(
        "prefix={prefix}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\nName: vmmc_nx\nDescription: The message passing of NX over virtual memory-mapped communication\nVersion: {version}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}}{run} -lvmmc_nx\n"
    )
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
        let (global, _) = map.split_once("global:").and_then(|(_, rest)| rest.split_once("local:")).expect("a map");
        let exported: BTreeSet<String> =
            global.split(';').map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect();
        assert_eq!(exported, declared);
    }
}
