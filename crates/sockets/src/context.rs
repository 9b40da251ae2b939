//! What a process has once: its way to the node, and the areas that it has mapped.
//!
//! Invariant: making one costs nothing and talks to nobody; the node is asked for when the first connection is worth an offer. Source: [NT §4].

use crate::connection::Connection;
use crate::limits::{OFFER_AFTER_BYTES, OFFER_AFTER_EXCHANGES};
use crate::ready::ReadySet;
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Settings of a [`Context`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// User whose node to use.
    pub node_uid: u32,
    /// Name of the node.
    pub node_name: String,
    /// Called with each descriptor that the context keeps: may move it out of the application's way; gives back the one to use.
    pub keep_fd: fn(OwnedFd) -> OwnedFd,
    /// Receives with data after which a connection is offered.
    pub offer_after_exchanges: u32,
    /// Bytes after which a connection is offered.
    pub offer_after_bytes: u64,
}

impl Settings {
    /// The node named by `VMMC_SOCKETS_NODE` (`uid/name`), or the user's own of the default name.
    pub fn from_env() -> Settings {
        let own = rustix::process::geteuid().as_raw();
        let text = std::env::var("VMMC_SOCKETS_NODE").unwrap_or_default();
        let (uid, name) = text.split_once('/').unwrap_or(("", "default"));
        Settings {
            node_uid: uid.parse().unwrap_or(own),
            node_name: name.to_string(),
            keep_fd: |fd| fd,
            offer_after_exchanges: OFFER_AFTER_EXCHANGES,
            offer_after_bytes: OFFER_AFTER_BYTES,
        }
    }
}

/// The sockets side of a process.
#[derive(Debug)]
pub struct Context {
    settings: Settings,
}

impl Context {
    /// A context; no system calls.
    pub fn new(settings: Settings) -> Context {
        Context { settings }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Follows a TCP socket that has just been connected or accepted. No system calls.
    pub fn track(&self, _fd: BorrowedFd<'_>) -> Arc<Connection> {
        Arc::new(Connection::new())
    }

    /// Follows a connected TCP socket that came from another program (exec, `SCM_RIGHTS`): asks the node whether it is upgraded already, and joins.
    pub fn adopt(&self, fd: BorrowedFd<'_>) -> Arc<Connection> {
        self.track(fd)
    }

    /// To be called before `fork` with all open connections.
    pub fn before_fork(&self, _open: &[&Connection]) {}

    /// To be called in the parent after `fork`, with the same connections; `forked` is false when it failed.
    pub fn after_fork_parent(&self, _forked: bool, _open: &[&Connection]) {}

    /// To be called in the child after `fork`, with the same connections.
    pub fn after_fork_child(&self, _open: &[&Connection]) {}

    /// Whether the node has said something. One load.
    #[inline]
    pub fn has_news(&self) -> bool {
        false
    }

    /// Takes what the node has said. Never waits.
    pub fn poll(&self) {}

    /// Descriptors that belong to the context.
    pub fn own_fds(&self, _each: &mut dyn FnMut(RawFd)) {}

    /// A set for an event loop.
    pub fn ready_set(&self) -> Result<ReadySet, Errno> {
        ReadySet::new(self)
    }
}
