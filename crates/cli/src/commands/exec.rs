//! `vmmc exec`: a program as it is, with its TCP connections going through VMMC where both ends
//! were started so.
//!
//! Invariant: the program runs, whatever is missing on our side; what keeps it on plain TCP is said
//! on standard error before it starts. Source: [NT §4].

use super::program::{self, Kind};
use super::try_attach;
use crate::args::Exec;
use crate::failure::Failure;
use crate::limits::EXEC_NODE_LINGER;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use vmmc::AttachError;
use vmmc_host::channel::listening_nodes;
use vmmc_node::NodeConfig;

/// File name of the shared object.
const LIBRARY: &str = "libvmmc_preload.so";
/// Names the shared object, for layouts that we do not know.
const LIBRARY_VARIABLE: &str = "VMMC_PRELOAD";
/// What the shared object reads; kept beside `crates/preload/src/config.rs`.
const EXEC_VARIABLE: &str = "VMMC_EXEC";
const EXCLUDE_VARIABLE: &str = "VMMC_EXCLUDE";
const OFFER_VARIABLE: &str = "VMMC_OFFER";
/// What the sockets service's clients read.
const NODE_VARIABLE: &str = "VMMC_SOCKETS_NODE";
/// What our own programs read.
const OWN_NODE_VARIABLE: &str = "VMMC_NODE";
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Runs the command: on success it does not return.
pub(crate) fn run(exec: &Exec) -> Result<(), Failure> {
    let name = exec.command.first().ok_or_else(|| Failure::Usage("name a program to run".into()))?;
    let path = program::find(name)?;
    let kind = program::kind(&path);
    if let Some(why) = kind.obstacle() {
        eprintln!("vmmc: {} {why}; it runs, over plain TCP", path.display());
    }
    let mut command = Command::new(&path);
    command.arg0(name).args(&exec.command[1..]);
    if kind != Kind::Musl {
        prepare(&mut command, exec)?;
    }
    Err(Failure::not_started(&path, &command.exec()))
}

/// Sets what the program and its children need to be reached.
fn prepare(command: &mut Command, exec: &Exec) -> Result<(), Failure> {
    let library = library()?;
    let exclusions = exclusions(exec)?;
    if let Err(why) = provide_node(&exec.which.name) {
        eprintln!("vmmc: {why}; until then connections stay on plain TCP");
    }
    command.env(PRELOAD_VARIABLE, preload(&library, std::env::var_os(PRELOAD_VARIABLE)));
    command.env(EXEC_VARIABLE, if exec.verbose { "verbose" } else { "1" });
    command.env(NODE_VARIABLE, format!("{}/{}", rustix::process::geteuid().as_raw(), exec.which.name));
    command.env(OWN_NODE_VARIABLE, &exec.which.name);
    if !exclusions.is_empty() {
        command.env(EXCLUDE_VARIABLE, exclusions.join(","));
    }
    if let Some(when) = &exec.offer {
        command.env(OFFER_VARIABLE, when);
        if exec.verbose {
            eprintln!("vmmc: connections are offered {when}");
        }
    }
    if exec.verbose {
        eprintln!(
            "vmmc: {} with {}, node {:?}",
            command.get_program().to_string_lossy(),
            library.display(),
            exec.which.name
        );
    }
    Ok(())
}

/// Ours first, then whatever was to be loaded before; ours once.
fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    let mut all = library.as_os_str().to_owned();
    let text = before.to_string_lossy();
    for other in text.split([':', ' ']).filter(|other| !other.is_empty() && !other.ends_with(LIBRARY)) {
        all.push(":");
        all.push(other);
    }
    all
}

/// Beside this binary (a build folder), in `../lib/vmmc` or `../lib` (an installation), or where
/// the variable says.
fn library() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        return Ok(PathBuf::from(named));
    }
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = ["", "../lib/vmmc", "../lib"].map(|place| folder.join(place).join(LIBRARY));
    places.iter().find(|place| place.exists()).cloned().ok_or_else(|| Failure::new(missing(folder)))
}

/// What to do where the library is not. `cargo install` brings programs alone, so this is what its
/// users see.
fn missing(folder: &Path) -> String {
    let place = folder.parent().unwrap_or(folder).join("lib/vmmc").join(LIBRARY);
    format!(
        "{LIBRARY}, which `vmmc exec` loads into programs, was not found beside {}, nor in ../lib/vmmc or ../lib from there.\n\
         `cargo install` does not bring it. In a source tree of this release:\n  \
         cargo build --release --package vmmc-preload\n  \
         install -D -m 755 target/release/{LIBRARY} {}\n\
         or install everything: cargo xtask install --prefix {}\n\
         {LIBRARY_VARIABLE}=FILE names it where it is somewhere else",
        folder.join("vmmc").display(),
        place.display(),
        folder.parent().unwrap_or(folder).display(),
    )
}

/// The node must run before the first connection looks for it; that it runs already is the usual
/// case, then it must be of this release. The error says what to do.
fn provide_node(name: &str) -> Result<(), String> {
    let uid = rustix::process::geteuid().as_raw();
    if !listening_nodes().contains(&(uid, name.to_string())) {
        let launcher = Some("/proc/self/exe".into());
        let config = NodeConfig { linger: Some(EXEC_NODE_LINGER), launcher, ..NodeConfig::new(name) };
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        return vmmc_node::start_detached(&own, &config).map_err(|why| format!("{why}; node {name:?} must run"));
    }
    match try_attach(name) {
        Err(why @ AttachError::Version { .. }) => Err(why.to_string()),
        // The library tries by itself, and says in `vmmc sockets` or with --verbose how it went.
        _ => Ok(()),
    }
}

/// The words of the exclusion file and of the command line, as the shared object reads them.
fn exclusions(exec: &Exec) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    let file = exec.exclude_file.clone().or_else(default_file);
    if let Some(file) = file {
        match std::fs::read_to_string(&file) {
            Ok(text) => words = parse(&text, &file.display().to_string())?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && exec.exclude_file.is_none() => {}
            Err(e) => return Err(Failure::Usage(format!("{}: {e}", file.display()))),
        }
    }
    Ok(words)
}

fn default_file() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(folder.join("vmmc/exec.conf"))
}

/// Lines `program NAME` and `port NUMBER[-NUMBER]`; `#` begins a comment.
fn parse(text: &str, file: &str) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let complaint =
            || Failure::Usage(format!("{file}:{}: {line:?}; write `program NAME` or `port NUMBER[-NUMBER]`", at + 1));
        let (key, value) = line.split_once(char::is_whitespace).ok_or_else(complaint)?;
        let value = value.trim();
        let port = |text: &str| text.parse::<u16>().is_ok();
        let fits = match key {
            "program" => !value.contains([',', '/']),
            "port" => value.split_once('-').map_or_else(|| port(value), |(first, last)| port(first) && port(last)),
            _ => false,
        };
        if !fits {
            return Err(complaint());
        }
        words.push(format!("{key}:{value}"));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exclusion_file_names_programs_and_ports() {
        let words = parse("# comment\nprogram sshd\n\nport 22 # ssh\nport 8000-8100\n", "f").expect("well formed");
        assert_eq!(words, ["program:sshd", "port:22", "port:8000-8100"]);
        let Err(Failure::Usage(text)) = parse("port 22\nport many\n", "f") else { panic!("refused") };
        assert!(text.starts_with("f:2: \"port many\""), "{text}");
    }

    #[test]
    fn a_missing_library_is_reported_with_the_commands_that_bring_it() {
        let text = missing(Path::new("/home/u/.cargo/bin"));
        let install = "install -D -m 755 target/release/libvmmc_preload.so /home/u/.cargo/lib/vmmc/libvmmc_preload.so";
        assert!(text.lines().any(|line| line.trim() == install), "{text}");
        assert!(text.contains("cargo xtask install --prefix /home/u/.cargo\n"), "{text}");
    }

    #[test]
    fn other_preloaded_libraries_stay() {
        let before = Some(OsString::from("/usr/lib/libjemalloc.so.2:/old/libvmmc_preload.so"));
        let all = preload(Path::new("/new/libvmmc_preload.so"), before);
        assert_eq!(all, "/new/libvmmc_preload.so:/usr/lib/libjemalloc.so.2");
    }
}
