//! What an event loop has: a bitmap of connections worth a look, and a bell.
//!
//! Invariant: a bit that is set after [`ReadySet::arm`] said "nothing" rings the bell. Source: DESIGN, "do not scan all connections".

use crate::connection::Connection;
use crate::context::Context;
use crate::limits::TOKENS_MAX;
use crate::node::Node;
use crate::patience::{KernelLooks, Patience};
use crate::types::Interest;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vmmc_host::Nanos;
use vmmc_host::stream::{Bells, Watch};

/// More event loops watch the connection than its area has room for, or the token is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection is watched by as many event loops as it can be; this one must use the kernel")]
pub struct TooMany;

/// Connections of one event loop.
#[derive(Debug)]
pub struct ReadySet {
    node: Arc<Node>,
    bell: u32,
    patience: Patience,
    /// Of waits in the kernel, for connections to other nodes.
    looks: KernelLooks,
}

impl ReadySet {
    pub(crate) fn new(context: &Context) -> Result<ReadySet, Errno> {
        let node = context.node().clone();
        let bell = node.take_bell(context.settings())?;
        Ok(ReadySet { node, bell, patience: Patience::default(), looks: KernelLooks::default() })
    }

    fn bells(&self) -> &Bells {
        self.node.bells().expect("made with the set")
    }

    /// Becomes readable when the set is armed and something happens. Register it edge-triggered and do not read it.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.node.bell_fd(self.bell)
    }

    /// Whether it is this process's own; after a fork it is the parent's, who would be rung.
    pub fn is_of(&self, context: &Context) -> bool {
        Arc::ptr_eq(&self.node, context.node())
    }

    /// Whether sets are running short, so that this one should not be kept without need.
    pub fn is_scarce(&self) -> bool {
        self.node.bells_are_scarce()
    }

    /// Follows a connection under a token of the caller's choice, below [`TOKENS_MAX`]. Look at its state once afterwards.
    ///
    /// # Errors
    /// When the connection or the token cannot be followed.
    pub fn add(&self, connection: &Connection, token: u32, interest: Interest) -> Result<(), TooMany> {
        if token >= TOKENS_MAX {
            return Err(TooMany);
        }
        connection.watch(&self.node, self.bell, token, interest)
    }

    /// Changes what is of interest.
    pub fn change(&self, connection: &Connection, interest: Interest) {
        connection.change_watch(&self.node, self.bell, interest);
    }

    /// Follows it no longer.
    pub fn remove(&self, connection: &Connection) {
        connection.unwatch(&self.node, self.bell);
    }

    /// Takes the tokens of all connections to which something happened; some may be stale.
    pub fn take(&self, each: &mut dyn FnMut(u32)) {
        self.bells().take(self.bell, each);
    }

    /// Has the loop look at a token of its own, and wakes it if it sleeps. Takes no lock.
    pub fn mark(&self, token: u32) {
        self.node.mark_own(Watch { process: 0, bell: self.bell, token });
    }

    /// Whether something happened. A few loads.
    #[inline]
    pub fn any(&self) -> bool {
        self.bells().any(self.bell)
    }

    /// Waits without sleeping until something happens, for as long as that tends to pay and at most `max`; says whether something did.
    pub fn spin(&self, context: &Context, max: Duration) -> bool {
        let bells = self.bells();
        self.patience.look(context.peer_core.load(Ordering::Relaxed), max, || bells.any(self.bell))
    }

    /// Before a sleep for connections of which some go to other nodes, whose bytes mostly come by the kernel: asks the kernel, by `ready`, for as long as that tends to pay.
    pub fn look_in_kernel(&self, ready: impl FnMut() -> bool) {
        self.looks.look(Nanos::monotonic, ready);
    }

    /// A wait that may have looked there gave something.
    pub fn returned(&self) {
        self.looks.received(Nanos::monotonic);
    }

    /// Whether a sleep should end soon: somebody who cannot ring the bell may have marked a token. For a new bell that is so until the node has told the peers of it; whoever finds it so takes
    /// the [news](Context::poll).
    #[inline]
    pub fn is_deaf(&self) -> bool {
        self.node.is_deaf(self.bell)
    }

    /// Announces a sleep. True: something is there, do not sleep.
    pub fn arm(&self) -> bool {
        self.bells().arm(self.bell)
    }

    /// Ends what [`arm`](Self::arm) began.
    pub fn disarm(&self) {
        self.bells().disarm(self.bell);
    }
}

impl Drop for ReadySet {
    fn drop(&mut self) {
        self.node.return_bell(self.bell);
    }
}
