//! Starting the user's node when none runs, as agents do.
//!
//! Invariant: whichever process started it, a session ends up on the one node of that name: a start
//! that loses the race against another one is no error.

use crate::error::AttachError;
use crate::limits::{START_LINGER_S, START_RETRY, START_TIMEOUT};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use vmmc_host::Channel;
use vmmc_host::channel::{ChannelError, listening_nodes, node_socket_name};
use vmmc_host::wait::is_interrupted;

/// Name of the environment variable that names the program.
const PROGRAM_VARIABLE: &str = "VMMC_BIN";
/// Name of the program.
const PROGRAM: &str = "vmmc";

/// Starts the node and connects to it.
pub(crate) fn start(uid: u32, node: &str) -> Result<Channel, AttachError> {
    let program = find_program(node)?;
    let failed =
        |why: String| AttachError::StartFailed { node: node.into(), program: program.display().to_string(), why };
    let linger = START_LINGER_S.to_string();
    let mut child = Command::new(&program)
        .args(["node", "start", "--name", node, "--linger-s", &linger])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let give_up = Instant::now() + START_TIMEOUT;
    loop {
        match Channel::connect(&node_socket_name(uid, node)) {
            Ok(channel) => {
                reap(child);
                return Ok(channel);
            }
            Err(ChannelError::NoListener { .. }) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
        let ended = child.try_wait().map_err(|e| failed(e.to_string()))?;
        // Another one that was started at the same moment has the name, and serves soon.
        let is_taken = || listening_nodes().contains(&(uid, node.to_string()));
        if let Some(status) = ended.filter(|status| !status.success() && !is_taken()) {
            return Err(failed(format!("it ended with {status}: {}", said(&mut child))));
        }
        if is_interrupted() {
            return Err(failed("the caller was interrupted while waiting for it".into()));
        }
        if Instant::now() >= give_up {
            return Err(failed(format!("nobody listens after {} s", START_TIMEOUT.as_secs())));
        }
        std::thread::sleep(START_RETRY);
    }
}

/// Collects the starter's end without waiting for it.
fn reap(mut child: Child) {
    // If no thread can be had the starter stays a zombie until we end, which harms nobody.
    let _ = std::thread::Builder::new().name("vmmc-start".into()).spawn(move || child.wait());
}

fn said(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.as_mut() {
        let _ = stderr.read_to_string(&mut text);
    }
    text.trim().to_string()
}

fn find_program(node: &str) -> Result<PathBuf, AttachError> {
    if let Some(program) = std::env::var_os(PROGRAM_VARIABLE) {
        return Ok(program.into());
    }
    let own = std::env::current_exe().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = beside(&own).into_iter().chain(std::env::split_paths(&path).map(|dir| dir.join(PROGRAM)));
    found.into_iter().find(|candidate| is_program(candidate)).ok_or_else(|| AttachError::NoProgram {
        node: node.into(),
        looked: format!("the folder of {} and PATH", own.display()),
    })
}

/// The program's places: beside the running one, and above a folder of Cargo's, so that examples
/// and tests find the one of their own build. In no other folder above: others may write into that
/// one.
fn beside(own: &Path) -> Vec<PathBuf> {
    let Some(folder) = own.parent() else { return Vec::new() };
    let is_of_cargo = ["examples", "deps"].into_iter().any(|name| folder.ends_with(name));
    let above = folder.parent().filter(|_| is_of_cargo);
    [Some(folder), above].into_iter().flatten().map(|folder| folder.join(PROGRAM)).collect()
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_looks_in_the_folder_of_its_build() {
        let places = beside(Path::new("/home/u/p/target/release/examples/01_hello"));
        assert!(places.contains(&PathBuf::from("/home/u/p/target/release/vmmc")));
    }

    #[test]
    fn a_program_looks_in_no_folder_above_its_own() {
        assert_eq!(beside(Path::new("/tmp/x/program")), [Path::new("/tmp/x/vmmc")]);
        assert!(beside(Path::new("")).is_empty());
    }
}
