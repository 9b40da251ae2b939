//! Starting a daemon in the background.
//!
//! Invariant: on success processes can attach; on failure the caller knows what the daemon had to
//! say.

use crate::config::NodeConfig;
use crate::limits::{START_POLL, START_TIME, STDERR_TAIL_BYTES};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use vmmc_host::channel::{holder_of_node, listening_nodes};
use vmmc_host::process::{Apart, plain_environment, start_apart};

/// Why a daemon did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The program cannot be executed.
    #[error("{binary} cannot be executed: {why}")]
    Execute {
        /// Which program.
        binary: String,
        /// What the system says.
        why: String,
    },
    /// It ended.
    #[error("node {name:?} ended at once: {stderr}")]
    Ended {
        /// Name of the node.
        name: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// It runs but does not answer.
    #[error("node {name:?} (process {pid}) has not answered within {after_s} s; look at what it does, then end it")]
    Silent {
        /// Name of the node.
        name: String,
        /// Its process id.
        pid: u32,
        /// How long it had.
        after_s: u64,
    },
}

/// Starts `binary node run OPTIONS` in the background and waits until processes can attach. Two
/// that start the same node at the same moment both succeed: one of the daemons serves, the other
/// one ends. The daemon keeps nothing of its starter but where and how its user works: no
/// descriptor, no terminal, no other variable.
pub fn start_detached(binary: &Path, config: &NodeConfig) -> Result<(), StartError> {
    let config = NodeConfig { detach: true, ..config.clone() };
    let mut command = Command::new(binary);
    command.args(["node", "run"]).args(config.to_args()).env_clear().envs(plain_environment());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).current_dir("/");
    start_apart(&mut command, Apart::default());
    let mut child = command
        .spawn()
        .map_err(|e| StartError::Execute { binary: binary.display().to_string(), why: e.to_string() })?;
    let uid = rustix::process::geteuid().as_raw();
    let start = Instant::now();
    loop {
        let holder = holder_of_node(uid, &config.name);
        if holder.is_some_and(|who| who.uid == uid) {
            return Ok(());
        }
        // A failure to ask counts as "still running": the deadline ends that.
        let ended = matches!(child.try_wait(), Ok(Some(_)));
        // Ended because another one has the name? That one serves, or will soon, unless it is a
        // stranger.
        if ended && (holder.is_some() || !listening_nodes().contains(&(uid, config.name.clone()))) {
            return Err(StartError::Ended { name: config.name, stderr: stderr_tail(&mut child) });
        }
        if start.elapsed() >= START_TIME {
            return Err(StartError::Silent { name: config.name, pid: child.id(), after_s: START_TIME.as_secs() });
        }
        std::thread::sleep(START_POLL);
    }
}

fn stderr_tail(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        // What cannot be read counts as not written.
        let _ = stderr.take(STDERR_TAIL_BYTES as u64).read_to_string(&mut text);
    }
    let text = text.trim();
    if text.is_empty() { "it said nothing".into() } else { text.into() }
}
