//! The library for programs of ONC RPC, libvmmc_onc: installing it, and the part of the C step that
//! builds programs of rpcgen's against what was installed.
//!
//! Invariant: where libtirpc is missing all the rest is installed, and a line says what is left
//! out.

#[path = "../../bindings/onc/link.rs"]
mod link;

use crate::install::{Tree, built_folder};
use crate::steps::{built, run, without_logs};
use crate::{Outcome, man, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Installs it; gives the number of man pages, or says why it is left out.
pub(crate) fn install(tree: &mut Tree, profile: &str) -> Result<Result<usize, String>, String> {
    let cflags = match link::libtirpc("--cflags") {
        Ok(cflags) => cflags.join(" "),
        Err(why) => return Ok(Err(format!("libvmmc_onc is left out: {why}"))),
    };
    let (folder, version) = (folder(), env!("CARGO_PKG_VERSION"));
    let real = format!("libvmmc_onc.so.{version}");
    let rust = built_folder(profile).join("libvmmc_onc.a");
    link::library(&folder, &rust, &tree.place(&format!("lib/{real}"))?)?;
    tree.lighten(&format!("lib/{real}"), &["--strip-unneeded"])?;
    tree.link(&real, &format!("lib/{}", link::SONAME))?;
    tree.link(link::SONAME, "lib/libvmmc_onc.so")?;
    tree.copy(&folder.join("include/vmmc_onc.h"), "include/vmmc_onc.h")?;
    tree.write("lib/pkgconfig/vmmc_onc.pc", &pkg_config(&tree.prefix.clone(), version))?;
    tree.write("lib/cmake/vmmc_onc/vmmc_onc-config.cmake", &CMAKE.replace("@CFLAGS@", &cflags))?;
    tree.copy(&folder.join("examples/call_cost.c"), "share/vmmc/examples/onc/call_cost.c")?;
    let pages = man::pages_of_onc(&header()?, version);
    for page in &pages {
        tree.write(&format!("share/man/man{0}/{1}.{0}", page.section, page.name), &page.text)?;
    }
    Ok(Ok(pages.len()))
}

fn folder() -> PathBuf {
    root().join("bindings/onc")
}

/// The header.
pub(crate) fn header() -> Result<String, String> {
    fs::read_to_string(folder().join("include/vmmc_onc.h")).map_err(|e| e.to_string())
}

fn pkg_config(prefix: &Path, version: &str) -> String {
    let run = if prefix == Path::new("/usr") { "" } else { " -Wl,-rpath,${libdir}" };
    let prefix = prefix.display();
    format!(
        "prefix={prefix}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\nName: vmmc_onc\nDescription: ONC RPC over virtual memory-mapped communication\nVersion: {version}\nRequires: libtirpc\nCflags: -I${{includedir}}\nLibs: -L${{libdir}}{run} -lvmmc_onc\n"
    )
}

const CMAKE: &str = r#"# vmmc::onc is the library for programs of ONC RPC, with libtirpc.
get_filename_component(_vmmc_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET vmmc::onc)
    add_library(vmmc::onc SHARED IMPORTED)
    set_target_properties(vmmc::onc PROPERTIES
        IMPORTED_LOCATION "${_vmmc_prefix}/lib/libvmmc_onc.so"
        IMPORTED_SONAME "libvmmc_onc.so.0"
        INTERFACE_INCLUDE_DIRECTORIES "${_vmmc_prefix}/include"
        INTERFACE_COMPILE_OPTIONS "@CFLAGS@"
        INTERFACE_LINK_LIBRARIES "tirpc")
endif()
unset(_vmmc_prefix)
"#;

/// Makes a program of rpcgen's with what pkg-config says of the installed library, and has its
/// client call its server.
pub(crate) fn check(prefix: &Path, node: &str) -> Result<(), String> {
    let folder = prefix.join("onc");
    fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let programs = self::folder().join("tests/programs");
    for name in ["letters.x", "client.c", "server.c"] {
        fs::copy(programs.join(name), folder.join(name)).map_err(|e| format!("{name}: {e}"))?;
    }
    let path = format!("export PKG_CONFIG_PATH={}:$PKG_CONFIG_PATH; ", prefix.join("lib/pkgconfig").display());
    let stubs = "for w in h:letters.h c:xdr.c l:clnt.c m:svc.c; do rpcgen -C -${w%%:*} -o ${w#*:} letters.x; done; ";
    let gcc = "gcc -D_GNU_SOURCE -w -I.";
    let flags = "$(pkg-config --cflags --libs vmmc_onc) -lpthread";
    let build =
        format!("{gcc} -o client client.c clnt.c xdr.c {flags} && {gcc} -o server server.c svc.c xdr.c {flags}");
    shell("onc-build", &folder, node, &format!("{path}set -e; {stubs}{build}"))?;
    let serve = "./server vmmc > ready & server=$!; until grep -q ready ready; do sleep 0.05; done; ";
    shell("onc-run", &folder, node, &format!("{serve}timeout 60 ./client vmmc all; done=$?; kill $server; exit $done"))
}

fn shell(step: &str, folder: &Path, node: &str, script: &str) -> Result<(), String> {
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(folder).env("VMMC_BIN", built("vmmc")).env("VMMC_NODE", node);
    without_logs(&mut command);
    match run(step, command) {
        Outcome::Failed(why) => Err(format!("{step}: {why}")),
        _ => Ok(()),
    }
}
