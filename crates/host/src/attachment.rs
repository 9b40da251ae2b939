//! What the library needs to reach a node, whatever kind of node it is.
//!
//! Invariant: the library cannot tell daemon, embedded node and simulator apart, except that the
//! latter two bring a stepper.

use crate::channel::Channel;
use crate::wait::{Stepper, Waiter};
use std::sync::Arc;

/// A way to a node: a control channel, and a stepper if the node runs in this process.
pub struct Attachment {
    /// Set-up calls and their answers. The first call is [`Attach`](crate::control::Call::Attach).
    pub channel: Channel,
    /// Present if the node only runs while callers wait.
    pub stepper: Option<Arc<dyn Stepper>>,
}

impl Attachment {
    /// A node in another process.
    pub fn to_daemon(channel: Channel) -> Attachment {
        Attachment { channel, stepper: None }
    }

    /// A node in this process.
    pub fn stepped(channel: Channel, stepper: Arc<dyn Stepper>) -> Attachment {
        Attachment { channel, stepper: Some(stepper) }
    }

    /// How calls over this attachment wait.
    pub fn waiter(&self) -> Waiter {
        self.stepper.clone().map_or_else(Waiter::new, Waiter::stepping)
    }
}
