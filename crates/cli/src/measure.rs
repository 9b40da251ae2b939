//! The measuring core: pairs of real processes that play ping-pong, stream, sleep and wake.
//!
//! ```text
//!   coordinator (vmmc bench, vmmc demo)
//!      │ orders, descriptors           │
//!      ▼                               ▼
//!   worker on core 0 ── what is  ── worker on core 1
//!      (leader)         measured      (follower)
//!      └───────── side channel ──────────┘
//! ```
//!
//! Every series is measured several times, in turns with all others, so that a ratio of two series
//! comes from the same minutes of the same machine.
//!
//! Invariant: a worker dies when its coordinator does; no wait is endless.

pub(crate) mod kernel;
pub(crate) mod limit;
pub(crate) mod network;
pub(crate) mod nodes;
pub(crate) mod pair;
pub(crate) mod ping;
pub(crate) mod plan;
pub(crate) mod side;
pub(crate) mod stats;
pub(crate) mod task;
pub(crate) mod techniques;
pub(crate) mod utlb;
pub(crate) mod vmmc;
pub(crate) mod worker;

use crate::limits::PARTNER_WAIT;
use vmmc_host::channel::ChannelError;

/// Why a measurement did not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskError {
    /// The other worker closed, or died.
    #[error("the other process of the measurement has ended")]
    PartnerGone,
    /// The other worker gave no sign.
    #[error("nothing came from the other process of the measurement for {} s", PARTNER_WAIT.as_secs())]
    PartnerSilent,
    /// The kernel refused.
    #[error("a system call failed: {0}")]
    System(#[from] rustix::io::Errno),
    /// The same, as std says it.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Coordinator and workers misunderstand each other, or a resource is missing.
    #[error("{0}")]
    Protocol(String),
}

impl From<ChannelError> for TaskError {
    fn from(error: ChannelError) -> TaskError {
        match error {
            ChannelError::Closed => TaskError::PartnerGone,
            ChannelError::TimedOut => TaskError::PartnerSilent,
            other => TaskError::Protocol(other.to_string()),
        }
    }
}
