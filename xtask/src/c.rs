//! The C library: installing it, and the step that builds and runs the tutorial against what was
//! installed.
//!
//! Invariant: the step uses only the installed tree, as a user's program would: what it does not
//! install is missing there too.

use crate::Outcome::{self, Failed, Passed, Skipped};
use crate::install::{Tree, built_folder, tool};
use crate::steps::{PROFILE, build, built, is_root, log_text, run, succeeds, without_logs};
use crate::{man, root, target_folder};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name for the dynamic linker, under which programs find the library at run time; its number is
/// the version of the binary interface.
const SONAME: &str = "libvmmc.so.0";
/// What a program needs beside the static library (`cargo rustc -p vmmc-c -- --print
/// native-static-libs`).
const STATIC_LIBS: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";
/// Strict, so that header and examples do not warn in strict programs.
const FLAGS: &[&str] = &["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Copies what a build made to where programs look for it; gives the number of man pages.
pub(crate) fn install(tree: &mut Tree, profile: &str) -> Result<usize, String> {
    let version = env!("CARGO_PKG_VERSION");
    let source = root().join("bindings/c");
    let map = source.join("vmmc.map");
    let built = built_folder(profile).join("libvmmc_c.a");
    tree.copy(&source.join("include/vmmc.h"), "include/vmmc.h")?;
    tree.copy(&root().join("crates/preload/include/vmmc_sockets.h"), "include/vmmc_sockets.h")?;
    static_library(tree, &built, &map)?;
    let real = format!("libvmmc.so.{version}");
    link_shared(&built, &map, &tree.place(&format!("lib/{real}"))?)?;
    tree.lighten(&format!("lib/{real}"), &["--strip-unneeded"])?;
    tree.link(&real, &format!("lib/{SONAME}"))?;
    tree.link(SONAME, "lib/libvmmc.so")?;
    tree.write("lib/pkgconfig/vmmc.pc", &pkg_config(&tree.prefix.clone(), version))?;
    tree.write("lib/cmake/vmmc/vmmc-config.cmake", CMAKE)?;
    tree.write("lib/cmake/vmmc/vmmc-config-version.cmake", &cmake_version(version))?;
    for entry in fs::read_dir(source.join("examples")).map_err(|e| e.to_string())?.flatten() {
        tree.copy(&entry.path(), &format!("share/vmmc/examples/{}", entry.file_name().to_string_lossy()))?;
    }
    let header = fs::read_to_string(source.join("include/vmmc.h")).map_err(|e| e.to_string())?;
    let pages = man::pages(&header, version);
    for page in &pages {
        tree.write(&format!("share/man/man{0}/{1}.{0}", page.section, page.name), &page.text)?;
    }
    Ok(pages.len())
}

/// The static library: one object with all that the calls need, in which only the calls have names.
/// So it carries none of the standard library that nobody calls, and a program may link it beside
/// other libraries that are written in Rust.
fn static_library(tree: &mut Tree, built: &Path, map: &Path) -> Result<(), String> {
    let text = fs::read_to_string(map).map_err(|e| format!("{}: {e}", map.display()))?;
    let calls = calls(&text);
    let folder = target_folder().join("xtask/static");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let (lean, object, names) = (folder.join("lean.a"), folder.join("vmmc.o"), folder.join("names"));
    fs::write(&names, calls.join("\n") + "\n").map_err(|e| format!("{}: {e}", names.display()))?;
    // The standard library's objects carry the compiler's own code of them beside the machine's; it
    // is half of them, and binutils with LLVM's plugin trip over it.
    let mut command = Command::new("objcopy");
    command.args(["--remove-section=.llvmbc", "--remove-section=.llvmcmd"]);
    command.args(tree.strips().then_some("--strip-debug"));
    tool("objcopy", command.arg(built).arg(&lean))?;
    let mut command = Command::new("ld");
    command.args(["-r", "--gc-sections", "--force-group-allocation"]);
    for name in &calls {
        command.args(["-u", name]);
    }
    tool("ld", command.arg("-o").arg(&object).arg(&lean))?;
    let mut command = Command::new("objcopy");
    let sections = folder.join("sections");
    fs::write(&sections, short_sections(&object)?).map_err(|e| format!("{}: {e}", sections.display()))?;
    command.arg(format!("--keep-global-symbols={}", names.display())).arg(format!("@{}", sections.display()));
    tool("objcopy", command.arg(&object))?;
    let library = tree.place("lib/libvmmc.a")?;
    tool("ar", Command::new("ar").arg("rcs").arg(library).arg(&object))?;
    tree.lighten("lib/libvmmc.a", &["--strip-unneeded"])
}

/// Options for objcopy by which the sections of functions and constants are called by number:
/// their names, which nobody needs, are a tenth of the library. What they are of stays in front, so
/// that a linker can still leave out those that a program does not need.
fn short_sections(object: &Path) -> Result<String, String> {
    let read = Command::new("readelf").arg("-SW").arg(object).output();
    let read = read.map_err(|e| format!("readelf: {e}; install a C compiler with its binutils"))?;
    let listed = String::from_utf8_lossy(&read.stdout);
    let names = listed.lines().filter_map(|line| line.split_once("] ")?.1.split_ascii_whitespace().next());
    let options = names.zip(0..).filter_map(|(name, number)| {
        let kind =
            SECTIONS_OF_ONE.iter().find(|kind| name.strip_prefix(**kind).is_some_and(|rest| !rest.is_empty()))?;
        Some(format!("--rename-section {name}={kind}{number}\n"))
    });
    Ok(options.collect())
}

/// How the sections of single functions and constants begin.
const SECTIONS_OF_ONE: &[&str] = &[".text.", ".rodata.", ".data.rel.ro.", ".data.", ".bss.", ".gcc_except_table."];

/// Names of the calls in a map of versions.
fn calls(map: &str) -> Vec<&str> {
    map.lines().filter_map(|line| line.trim().strip_suffix(';')).filter(|name| name.starts_with("vmmc_")).collect()
}

/// The shared library: all of the static one that the calls need, with the versions that the map
/// gives them.
fn link_shared(library: &Path, map: &Path, to: &Path) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-shared", "-O1", "-Wl,--gc-sections,--as-needed,-z,relro,-z,now", &format!("-Wl,-soname,{SONAME}")]);
    command.arg(format!("-Wl,--version-script={}", map.display())).arg("-o").arg(to);
    command.arg("-Wl,--whole-archive").arg(library).arg("-Wl,--no-whole-archive").args(STATIC_LIBS.split(' '));
    tool("cc", &mut command)
}

/// The file for pkg-config. A program that is linked with what it says starts without further ado:
/// the dynamic linker looks into `/usr/lib` by itself, and into every other folder when the program
/// names it.
fn pkg_config(prefix: &Path, version: &str) -> String {
    let run = if prefix == Path::new("/usr") { "" } else { " -Wl,-rpath,${libdir}" };
    let prefix = prefix.display();
    format!(
        "prefix={prefix}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\nName: vmmc\nDescription: Virtual memory-mapped communication\nVersion: {version}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}}{run} -lvmmc\nLibs.private: {STATIC_LIBS}\n"
    )
}

const CMAKE: &str = r#"# vmmc::vmmc is the shared library, vmmc::static the static one.
get_filename_component(_vmmc_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET vmmc::vmmc)
    add_library(vmmc::vmmc SHARED IMPORTED)
    set_target_properties(vmmc::vmmc PROPERTIES
        IMPORTED_LOCATION "${_vmmc_prefix}/lib/libvmmc.so"
        IMPORTED_SONAME "libvmmc.so.0"
        INTERFACE_INCLUDE_DIRECTORIES "${_vmmc_prefix}/include")
    add_library(vmmc::static STATIC IMPORTED)
    set_target_properties(vmmc::static PROPERTIES
        IMPORTED_LOCATION "${_vmmc_prefix}/lib/libvmmc.a"
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

/// The step.
pub(crate) fn check() -> Outcome {
    for (program, package) in [("gcc", "gcc"), ("pkg-config", "pkg-config"), ("nm", "binutils")] {
        if let Err(why) = need(program, package) {
            return Skipped(why);
        }
    }
    match try_check() {
        Ok(note) => Passed(note),
        Err(why) => Failed(why),
    }
}

fn try_check() -> Result<String, String> {
    // The program `vmmc` too: its node must be of the same state of the tree.
    build()?;
    let prefix = target_folder().join("xtask/c-prefix");
    let _ = fs::remove_dir_all(&prefix);
    let mut tree = Tree::new(&prefix, None, true)?;
    let pages = install(&mut tree, PROFILE)?;
    let rpc = onc(&mut tree)?;
    tree.within_bounds()?;
    let symbols = symbols(&prefix, "libvmmc.so", "vmmc.h")?;
    let bad = man_pages(&prefix)?;
    let names = example_names()?;
    let shared = compile(&prefix, &names, false)?;
    let linked = compile(&prefix, &names[..1], true)?;
    cplusplus(&prefix)?;
    let node = format!("xtask-c-{}", std::process::id());
    let ran = run_all(&node, shared.iter().chain(&linked));
    let ran = ran.and_then(|()| cmake(&prefix, &node));
    let ran = ran.and_then(|said| if rpc { crate::onc::check(&prefix, &node).map(|()| said) } else { Ok(said) });
    let _ = Command::new(built("vmmc")).args(["node", "stop", "--name", &node]).output();
    let cmake = ran?;
    Ok(format!("{symbols} calls, {pages} man pages ({bad}), {} examples run; {cmake}", names.len()))
}

/// Installs the library for ONC RPC, if it can be made here.
fn onc(tree: &mut Tree) -> Result<bool, String> {
    let _ = need_part("pkg-config --exists libtirpc", "libtirpc-dev");
    let _ = need("rpcgen", "rpcsvc-proto");
    match crate::onc::install(tree, PROFILE)? {
        Ok(_) => symbols(&tree.prefix.clone(), "libvmmc_onc.so", "vmmc_onc.h").map(|_| true),
        Err(why) => {
            crate::skipped(&why);
            Ok(false)
        }
    }
}

/// Runs a command as a part of the step.
fn done(name: &str, command: Command) -> Result<(), String> {
    match run(name, command) {
        Failed(why) => Err(format!("{name}: {why}")),
        _ => Ok(()),
    }
}

/// What the shared library exports is what the header declares, and each call has a version.
fn symbols(prefix: &Path, library: &str, header: &str) -> Result<usize, String> {
    let mut command = Command::new("nm");
    command.args(["-D", "--defined-only", "--format=posix"]).arg(prefix.join("lib").join(library));
    done("c-symbols", command)?;
    let listed = log_text("c-symbols");
    let exported: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    // The versions themselves are listed too, as symbols of their own.
    let exported = exported.into_iter().filter(|name| !name.starts_with("VMMC_"));
    let (exported, bare): (Vec<&str>, Vec<&str>) = exported.partition(|name| name.contains("@@VMMC_"));
    if !bare.is_empty() {
        return Err(format!("{library} exports {bare:?} without a version; name them in its map"));
    }
    let exported: BTreeSet<&str> = exported.iter().filter_map(|name| name.split('@').next()).collect();
    let text = fs::read_to_string(prefix.join("include").join(header)).map_err(|e| e.to_string())?;
    let declared = man::functions(&text);
    let declared: BTreeSet<&str> = declared.iter().map(|f| f.name.as_str()).collect();
    let missing: Vec<_> = declared.difference(&exported).collect();
    let surplus: Vec<_> = exported.difference(&declared).collect();
    if missing.is_empty() && surplus.is_empty() {
        return Ok(declared.len());
    }
    Err(format!("{library} lacks {missing:?} of what {header} declares, and exports {surplus:?} beside it"))
}

/// The formatter takes every page without a warning.
fn man_pages(prefix: &Path) -> Result<&'static str, String> {
    if need("man", "man-db").is_err() {
        return Ok("not formatted: no `man` here");
    }
    let folder = prefix.join("share/man/man3");
    let mut command = Command::new("man");
    command.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]);
    let pages = fs::read_dir(&folder).map_err(|e| e.to_string())?.flatten().map(|entry| entry.path());
    command.args(pages).env("MANROFFSEQ", "").env("MANWIDTH", "120");
    done("c-man", command)?;
    let log = log_text("c-man");
    match log.lines().find(|line| line.contains("warning") || line.contains("error")) {
        Some(line) if line.contains("troff") || line.contains("man:") => Err(format!("a man page: {line}")),
        _ => Ok("formatted without warnings"),
    }
}

fn example_names() -> Result<Vec<String>, String> {
    let entries = fs::read_dir(root().join("bindings/c/examples")).map_err(|e| e.to_string())?.flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".c")?.to_string()))
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    names.sort();
    if names.is_empty() { Err("no C examples found".into()) } else { Ok(names) }
}

/// Builds examples with what pkg-config says.
fn compile(prefix: &Path, names: &[String], statically: bool) -> Result<Vec<PathBuf>, String> {
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs"]).args(statically.then_some("--static")).arg("vmmc");
    let said = ask.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).output().map_err(|e| e.to_string())?;
    let flags = String::from_utf8_lossy(&said.stdout).trim().to_string();
    if !said.status.success() || flags.is_empty() {
        return Err(format!("pkg-config: {}", String::from_utf8_lossy(&said.stderr)));
    }
    let flags = if statically { flags.replace("-lvmmc", "-l:libvmmc.a") } else { flags };
    let folder = prefix.join(if statically { "bin-static" } else { "bin" });
    fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let compile = |name: &String| {
        let program = folder.join(name);
        let source = prefix.join("share/vmmc/examples").join(format!("{name}.c"));
        let text = fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        let mut command = Command::new("gcc");
        // The oldest standard that an example can have; the language has atomics since C11.
        command.arg(if text.contains("<stdatomic.h>") { "-std=c11" } else { "-std=c99" }).args(FLAGS).arg(source);
        command.arg("-o").arg(&program).args(flags.split_whitespace());
        done(&format!("c-gcc-{name}"), command).map(|()| program)
    };
    names.iter().map(compile).collect()
}

/// C++ programs take the header too.
fn cplusplus(prefix: &Path) -> Result<(), String> {
    if !succeeds(Command::new("g++").arg("--version")) {
        return Ok(());
    }
    let mut command = Command::new("g++");
    command.args(["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c++"]);
    command.args([prefix.join("include/vmmc.h"), prefix.join("include/vmmc_sockets.h")]);
    done("c-header-in-c++", command)
}

/// Runs examples on a node of their own. They find the library by what pkg-config or CMake wrote
/// into them.
fn run_all<'a>(node: &str, programs: impl Iterator<Item = &'a PathBuf>) -> Result<(), String> {
    for program in programs {
        let mut command = Command::new(program);
        without_logs(&mut command).env_remove("LD_LIBRARY_PATH").env("VMMC_BIN", built("vmmc")).env("VMMC_NODE", node);
        let name = program.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        done(&format!("c-run-{name}"), command)?;
    }
    Ok(())
}

/// The same by way of CMake.
fn cmake(prefix: &Path, node: &str) -> Result<String, String> {
    if let Err(why) = need("cmake", "cmake") {
        return Ok(format!("CMake not tried: {why}"));
    }
    let folder = prefix.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(prefix.join("share/vmmc/examples")).arg("-B").arg(&folder);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    done("c-cmake", configure)?;
    let mut build = Command::new("cmake");
    build.arg("--build").arg(&folder).args(["--parallel", "2"]);
    done("c-cmake-build", build)?;
    run_all(node, std::iter::once(&folder.join("01_hello")))?;
    Ok("CMake builds them too".into())
}

/// Makes sure that a program is there: as root it is installed from the distribution.
pub(crate) fn need(program: &str, package: &str) -> Result<(), String> {
    need_part(&format!("command -v {program}"), package)
        .map_err(|_| format!("no `{program}` here; install the package {package}"))
}

/// The same for what a command of the shell shows.
pub(crate) fn need_part(shows: &str, package: &str) -> Result<(), String> {
    let there = || succeeds(Command::new("sh").args(["-c", shows]));
    if there() {
        return Ok(());
    }
    if is_root() && succeeds(Command::new("sh").args(["-c", "command -v apt-get"])) {
        let install = || succeeds(Command::new("apt-get").args(["install", "-y", "-q", package]));
        // A fresh container knows no packages before an update.
        if !install() && succeeds(Command::new("apt-get").args(["update", "-q"])) {
            install();
        }
    }
    if there() { Ok(()) } else { Err(format!("the package {package} is missing")) }
}
