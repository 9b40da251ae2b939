//! The node daemon.

use crate::config::NodeConfig;
use std::net::SocketAddr;
use std::path::Path;

/// What a running daemon says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Name of the node.
    pub name: String,
    /// UDP addresses that it listens on.
    pub addresses: Vec<SocketAddr>,
}

/// Why a node cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A bad name.
    #[error(transparent)]
    Name(#[from] vmmc_nic::BadNodeName),
    /// No key.
    #[error(transparent)]
    Key(#[from] crate::key::KeyError),
}

/// Why a daemon did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// It ended.
    #[error("node {name:?} ended at once: {said}")]
    Ended {
        /// Name of the node.
        name: String,
        /// What it said.
        said: String,
    },
}

/// A daemon that is ready to run: its name is taken, its sockets are bound.
pub struct Daemon;

/// Ends a running daemon from another thread.
#[derive(Clone)]
pub struct Stopper;

impl Stopper {
    /// Ends the daemon cleanly; returns at once.
    pub fn stop(&self) {}
}

impl Daemon {
    /// Takes the name and binds the sockets.
    pub fn start(_config: NodeConfig) -> Result<Daemon, RunError> {
        unimplemented!("comes with the station")
    }

    /// Name and addresses.
    pub fn running(&self) -> Running {
        unimplemented!("comes with the station")
    }

    /// A handle that ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper
    }

    /// Serves until stopped.
    pub fn run(self) -> Result<(), RunError> {
        unimplemented!("comes with the station")
    }
}

/// Runs a node daemon until it is stopped.
pub fn run(config: NodeConfig) -> Result<(), RunError> {
    Daemon::start(config)?.run()
}

/// Like [`run`]; `ready` is called once processes can attach.
pub fn run_with(config: NodeConfig, ready: impl FnOnce(Running)) -> Result<(), RunError> {
    let daemon = Daemon::start(config)?;
    ready(daemon.running());
    daemon.run()
}

/// Starts `binary node run OPTIONS` in the background and waits until processes can attach.
pub fn start_detached(_binary: &Path, _config: &NodeConfig) -> Result<(), StartError> {
    unimplemented!("comes with the station")
}
