//! What libraries for C have in common: the static library, and what pkg-config and CMake are told.
//!
//! Invariant: a static library has the names of its calls alone, so a program may link several that
//! are written in Rust.

use crate::install::{Tree, tool};
use crate::target_folder;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What a program needs beside a static library (`cargo rustc -p vmmc-c -- --print
/// native-static-libs`).
pub(crate) const LIBS: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// A static library.
pub(crate) struct Static<'a> {
    /// Its name, without `lib`.
    pub(crate) name: &'a str,
    /// What cargo made.
    pub(crate) built: &'a Path,
    /// An object that is made of C.
    pub(crate) beside: Option<&'a Path>,
    /// All that programs see.
    pub(crate) calls: &'a [&'a str],
}

/// Names in a map of versions that others see.
pub(crate) fn names(map: &str) -> Vec<&str> {
    let global = map.split_once("global:").map_or("", |(_, rest)| rest.split("local:").next().unwrap_or(rest));
    global.split(';').map(str::trim).filter(|name| !name.is_empty() && !name.contains('}')).collect()
}

/// Installs it: one object with all that the calls need, in which only the calls have names. So it
/// carries none of the standard library that nobody calls.
pub(crate) fn install(tree: &mut Tree, library: &Static<'_>) -> Result<(), String> {
    let folder = target_folder().join("xtask/static").join(library.name);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let (lean, object, names) = (folder.join("lean.a"), folder.join("all.o"), folder.join("names"));
    fs::write(&names, library.calls.join("\n") + "\n").map_err(|e| format!("{}: {e}", names.display()))?;
    // The standard library's objects carry the compiler's own code of them beside the machine's; it
    // is half of them, and binutils with LLVM's plugin trip over it.
    let mut command = Command::new("objcopy");
    command.args(["--remove-section=.llvmbc", "--remove-section=.llvmcmd"]);
    command.args(tree.strips().then_some("--strip-debug"));
    tool("objcopy", command.arg(library.built).arg(&lean))?;
    let mut command = Command::new("ld");
    command.args(["-r", "--gc-sections", "--force-group-allocation"]);
    for name in library.calls {
        command.args(["-u", name]);
    }
    tool("ld", command.arg("-o").arg(&object).args(library.beside).arg(&lean))?;
    let mut command = Command::new("objcopy");
    let sections = folder.join("sections");
    fs::write(&sections, short_sections(&object)?).map_err(|e| format!("{}: {e}", sections.display()))?;
    command.arg(format!("--keep-global-symbols={}", names.display())).arg(format!("@{}", sections.display()));
    tool("objcopy", command.arg(&object))?;
    let to = format!("lib/lib{}.a", library.name);
    let place = tree.place(&to)?;
    tool("ar", Command::new("ar").arg("rcs").arg(place).arg(&object))?;
    tree.lighten(&to, &["--strip-unneeded"])
}

/// Options for objcopy by which the sections of functions and constants are all called by what they
/// are of: their names, which nobody needs, are a good part of the library. They stay sections of
/// their own, so that a linker can still leave out those that a program does not need.
fn short_sections(object: &Path) -> Result<String, String> {
    let read = Command::new("readelf").arg("-SW").arg(object).output();
    let read = read.map_err(|e| format!("readelf: {e}; install a C compiler with its binutils"))?;
    let listed = String::from_utf8_lossy(&read.stdout);
    let names = listed.lines().filter_map(|line| line.split_once("] ")?.1.split_ascii_whitespace().next());
    let options = names.filter_map(|name| {
        let kind =
            SECTIONS_OF_ONE.iter().find(|kind| name.strip_prefix(**kind).is_some_and(|rest| !rest.is_empty()))?;
        Some(format!("--rename-section {name}={kind}_\n"))
    });
    Ok(options.collect())
}

/// How the sections of single functions and constants begin.
const SECTIONS_OF_ONE: &[&str] = &[".text.", ".rodata.", ".data.rel.ro.", ".data.", ".bss.", ".gcc_except_table."];

/// Tells pkg-config and CMake of a library, whose targets for CMake are these: the shared one, the
/// static one.
pub(crate) fn describe(tree: &mut Tree, name: &str, what: &str, targets: (&str, &str)) -> Result<(), String> {
    let version = env!("CARGO_PKG_VERSION");
    tree.write(&format!("lib/pkgconfig/{name}.pc"), &pkg_config(&tree.prefix.clone(), name, what, version))?;
    let cmake = CMAKE.replace("@SHARED@", targets.0).replace("@STATIC@", targets.1).replace("@NAME@", name);
    tree.write(&format!("lib/cmake/{name}/{name}-config.cmake"), &cmake)?;
    tree.write(&format!("lib/cmake/{name}/{name}-config-version.cmake"), &cmake_version(version))
}

/// The file for pkg-config. A program that is linked with what it says starts without further ado:
/// the dynamic linker looks into `/usr/lib` by itself, and into every other folder when the program
/// names it.
fn pkg_config(prefix: &Path, name: &str, what: &str, version: &str) -> String {
    let run = if prefix == Path::new("/usr") { "" } else { " -Wl,-rpath,${libdir}" };
    let prefix = prefix.display();
    format!(
        "prefix={prefix}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\nName: {name}\nDescription: {what}\nVersion: {version}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}}{run} -l{name}\nLibs.private: {LIBS}\n"
    )
}

const CMAKE: &str = r#"# @SHARED@ is the shared library, @STATIC@ the static one.
get_filename_component(_vmmc_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET @SHARED@)
    add_library(@SHARED@ SHARED IMPORTED)
    set_target_properties(@SHARED@ PROPERTIES
        IMPORTED_LOCATION "${_vmmc_prefix}/lib/lib@NAME@.so"
        IMPORTED_SONAME "lib@NAME@.so.0"
        INTERFACE_INCLUDE_DIRECTORIES "${_vmmc_prefix}/include")
    add_library(@STATIC@ STATIC IMPORTED)
    set_target_properties(@STATIC@ PROPERTIES
        IMPORTED_LOCATION "${_vmmc_prefix}/lib/lib@NAME@.a"
        INTERFACE_INCLUDE_DIRECTORIES "${_vmmc_prefix}/include"
        INTERFACE_LINK_LIBRARIES "gcc_s;util;rt;pthread;m;dl;c")
endif()
unset(_vmmc_prefix)
"#;

/// Before 1.0 a new minor version may break programs.
fn cmake_version(version: &str) -> String {
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    format!(
        "set(PACKAGE_VERSION \"{version}\")\nif(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION AND PACKAGE_FIND_VERSION MATCHES \"^{}\")\n    set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\nif(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)\n    set(PACKAGE_VERSION_EXACT TRUE)\nendif()\n",
        minor.replace('.', "\\\\.")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_names_what_others_see() {
        let map = "V_1 {\n    global:\n        one;\n        two;\n    local:\n        *;\n};\n";
        assert_eq!(names(map), ["one", "two"]);
        assert_eq!(names("V {\n  global: one;\n};\n"), ["one"]);
    }
}
