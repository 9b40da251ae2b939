//! The C library: installing it, and the step that builds and runs the tutorial against what was
//! installed.
//!
//! Invariant: the step uses only the installed tree, as a user's program would: what it does not
//! install is missing there too.

use crate::Outcome::{self, Failed, Passed, Skipped};
use crate::install::{Tree, built_folder, tool};
use crate::library::{self, Static};
use crate::steps::{PROFILE, build, built, is_root, log_text, run, succeeds, without_logs};
use crate::{man, root, target_folder};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name for the dynamic linker, under which programs find the library at run time; its number is
/// the version of the binary interface.
const SONAME: &str = "libvmmc.so.0";
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
    let text = fs::read_to_string(&map).map_err(|e| format!("{}: {e}", map.display()))?;
    library::install(tree, &Static { name: "vmmc", built: &built, beside: None, calls: &library::names(&text) })?;
    let real = format!("libvmmc.so.{version}");
    link_shared(&built, &map, &tree.place(&format!("lib/{real}"))?)?;
    tree.lighten(&format!("lib/{real}"), &["--strip-unneeded"])?;
    tree.link(&real, &format!("lib/{SONAME}"))?;
    tree.link(SONAME, "lib/libvmmc.so")?;
    library::describe(tree, "vmmc", "Virtual memory-mapped communication", ("vmmc::vmmc", "vmmc::static"))?;
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

/// The shared library: all of the static one that the calls need, with the versions that the map
/// gives them.
fn link_shared(library: &Path, map: &Path, to: &Path) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-shared", "-O1", "-Wl,--gc-sections,--as-needed,-z,relro,-z,now", &format!("-Wl,-soname,{SONAME}")]);
    command.arg(format!("-Wl,--version-script={}", map.display())).arg("-o").arg(to);
    command.arg("-Wl,--whole-archive").arg(library).arg("-Wl,--no-whole-archive").args(library::LIBS.split(' '));
    tool("cc", &mut command)
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
    let models = models(&mut tree)?;
    tree.within_bounds()?;
    let symbols = symbols(&prefix, "libvmmc.so", "vmmc.h", &[])?;
    let bad = man_pages(&prefix)?;
    let names = example_names()?;
    let shared = compile(&prefix, "vmmc", &names, false)?;
    let linked = compile(&prefix, "vmmc", &names[..1], true)?;
    cplusplus(&prefix)?;
    let node = format!("xtask-c-{}", std::process::id());
    let ran = run_all(&node, shared.iter().chain(&linked));
    let ran = ran.and_then(|()| cmake(&prefix, &node));
    let ran = ran.and_then(|said| models.iter().try_for_each(|model| model.check(&prefix, &node)).map(|()| said));
    let ran = ran.and_then(|said| if rpc { crate::onc::check(&prefix, &node).map(|()| said) } else { Ok(said) });
    let _ = Command::new(built("vmmc")).args(["node", "stop", "--name", &node]).output();
    let cmake = ran?;
    Ok(format!("{symbols} calls, {pages} man pages ({bad}), {} examples run; {cmake}", names.len()))
}

/// A library for programs of another model, whose examples are jobs.
struct Model {
    /// Its library, and its package for pkg-config and CMake.
    library: &'static str,
    /// Where its examples are, and the first of them, with arguments that have it end soon.
    folder: &'static str,
    examples: &'static [&'static [&'static str]],
}

const MODELS: [Model; 2] = [
    Model { library: "vmmc_nx", folder: "nx", examples: crate::nx::EXAMPLES },
    Model { library: "vmmc_bsp", folder: "bsp", examples: crate::bsp::EXAMPLES },
];

/// Installs the libraries of the models.
fn models(tree: &mut Tree) -> Result<[Model; 2], String> {
    crate::nx::install(tree, PROFILE)??;
    crate::bsp::install(tree, PROFILE)??;
    // Beside its calls it has a variable.
    symbols(&tree.prefix.clone(), "libvmmc_nx.so", "nx.h", &["msginfo"])?;
    symbols(&tree.prefix.clone(), "libvmmc_bsp.so", "bsp.h", &[])?;
    Ok(MODELS)
}

impl Model {
    /// Its examples are built by pkg-config, with the shared library and with the static one, and
    /// by CMake, and run as jobs.
    fn check(&self, prefix: &Path, node: &str) -> Result<(), String> {
        let names: Vec<String> = self.examples.iter().map(|words| format!("{}/{}", self.folder, words[0])).collect();
        let mut programs = compile(prefix, self.library, &names, false)?;
        programs.extend(compile(prefix, self.library, &names, true)?);
        if need("cmake", "cmake").is_ok() {
            programs.extend(self.cmake(prefix)?);
        }
        for (program, words) in programs.iter().zip(self.examples.iter().cycle()) {
            let mut command = Command::new(built("vmmc"));
            command.args(["run", "-n", "2", "--node", node, "--"]).arg(program).args(&words[1..]);
            without_logs(&mut command).env_remove("LD_LIBRARY_PATH");
            done(&format!("c-run-{}-{}", self.folder, words[0]), command)?;
        }
        Ok(())
    }

    fn cmake(&self, prefix: &Path) -> Result<Vec<PathBuf>, String> {
        let folder = prefix.join("build").join(self.folder);
        let source = prefix.join("share/vmmc/examples").join(self.folder);
        build_with_cmake(&format!("c-cmake-{}", self.folder), prefix, &source, &folder)?;
        Ok(self.examples.iter().map(|words| folder.join(words[0])).collect())
    }
}

/// Installs the library for ONC RPC, if it can be made here.
fn onc(tree: &mut Tree) -> Result<bool, String> {
    let _ = need_part("pkg-config --exists libtirpc", "libtirpc-dev");
    let _ = need("rpcgen", "rpcsvc-proto");
    match crate::onc::install(tree, PROFILE)? {
        Ok(_) => symbols(&tree.prefix.clone(), "libvmmc_onc.so", "vmmc_onc.h", &[]).map(|_| true),
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
fn symbols(prefix: &Path, library: &str, header: &str, variables: &[&str]) -> Result<usize, String> {
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
    let exported: BTreeSet<&str> = exported.into_iter().filter(|name| !variables.contains(name)).collect();
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
fn compile(prefix: &Path, package: &str, names: &[String], statically: bool) -> Result<Vec<PathBuf>, String> {
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs"]).args(statically.then_some("--static")).arg(package);
    let said = ask.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).output().map_err(|e| e.to_string())?;
    let flags = String::from_utf8_lossy(&said.stdout).trim().to_string();
    if !said.status.success() || flags.is_empty() {
        return Err(format!("pkg-config: {}", String::from_utf8_lossy(&said.stderr)));
    }
    let flags = if statically { flags.replace(&format!("-l{package}"), &format!("-l:lib{package}.a")) } else { flags };
    let folder = prefix.join(if statically { "bin-static" } else { "bin" });
    let compile = |name: &String| {
        let program = folder.join(name);
        fs::create_dir_all(program.parent().expect("it is in the folder")).map_err(|e| e.to_string())?;
        let source = prefix.join("share/vmmc/examples").join(format!("{name}.c"));
        let text = fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        let mut command = Command::new("gcc");
        // The oldest standard that an example can have; the language has atomics since C11.
        command.arg(if text.contains("<stdatomic.h>") { "-std=c11" } else { "-std=c99" }).args(FLAGS).arg(source);
        command.arg("-o").arg(&program).args(flags.split_whitespace()).arg("-lm");
        done(&format!("c-gcc-{}", name.replace('/', "-")), command).map(|()| program)
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
    build_with_cmake("c-cmake", prefix, &prefix.join("share/vmmc/examples"), &folder)?;
    run_all(node, std::iter::once(&folder.join("01_hello")))?;
    Ok("CMake builds them too".into())
}

fn build_with_cmake(name: &str, prefix: &Path, source: &Path, folder: &Path) -> Result<(), String> {
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(source).arg("-B").arg(folder);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    done(name, configure)?;
    let mut build = Command::new("cmake");
    build.arg("--build").arg(folder).args(["--parallel", "2"]);
    done(&format!("{name}-build"), build)
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
