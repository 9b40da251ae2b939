//! A node inside a process.

use crate::config::NodeConfig;
use crate::daemon::RunError;
use std::net::SocketAddr;
use vmmc_host::Attachment;

/// A node that lives in this process. Clones are handles to the same node, which ends with the last of them and of its attachments.
#[derive(Clone)]
pub struct Embedded;

/// Why a process could not be attached to its embedded node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The node takes no more connections.
    #[error("{max} processes are attached to this node already; drop some")]
    TableFull {
        /// The bound.
        max: usize,
    },
    /// The kernel refused.
    #[error(transparent)]
    Channel(#[from] vmmc_host::channel::ChannelError),
}

impl Embedded {
    /// Starts a node.
    pub fn start(_config: NodeConfig) -> Result<Embedded, RunError> {
        unimplemented!("comes with the station")
    }

    /// Attaches this process once more.
    pub fn attach(&self) -> Result<Attachment, AttachError> {
        unimplemented!("comes with the station")
    }

    /// UDP addresses that the node listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        unimplemented!("comes with the station")
    }
}
