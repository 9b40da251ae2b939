//! What an event loop has: a bitmap of connections worth a poll, and a bell.
//!
//! Invariant: a bit that is set after [`ReadySet::arm`] said "nothing" rings the bell. The child of
//! a fork touches no bell of its parent's, whose memory both have: the parent sleeps by it, or has
//! given it to another loop. Source: the ready list of epoll(7).

use crate::connection::Connection;
use crate::context::Context;
use crate::limits::TOKENS_MAX;
use crate::node::{Node, ring_fd};
use crate::polling::{KernelPolls, NEVER, SpinBudget};
use crate::types::Interest;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vmmc_host::{Deadline, Nanos};
use vmmc_stream::{Bells, Watch};

/// More event loops watch the connection than its area has room for, or the token is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection is watched by as many event loops as it can be; this one must use the kernel")]
pub struct TooMany;

/// Connections of one event loop.
#[derive(Debug)]
pub struct ReadySet {
    node: Arc<Node>,
    bell: Bell,
    budget: SpinBudget,
    /// Of waits in the kernel, for connections to other nodes.
    kernel_polls: KernelPolls,
}

/// What wakes the loop.
#[derive(Debug)]
enum Bell {
    /// Peers do, by one of the process's bells.
    Of(u32),
    /// Only this process does: the loop polls by itself.
    Silent { fd: OwnedFd, marks: Marks },
}

/// Marked tokens of a loop that nobody else rings.
#[derive(Debug)]
struct Marks {
    any: AtomicBool,
    bits: Box<[AtomicU64]>,
}

impl Marks {
    fn new() -> Marks {
        let words = TOKENS_MAX as usize / 64;
        Marks { any: AtomicBool::new(false), bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn mark(&self, token: u32) {
        let token = token % TOKENS_MAX;
        self.bits[token as usize / 64].fetch_or(1 << (token % 64), Ordering::SeqCst);
        self.any.store(true, Ordering::SeqCst);
    }

    fn take(&self, each: &mut dyn FnMut(u32)) {
        if !self.any.swap(false, Ordering::SeqCst) {
            return;
        }
        for (at, word) in (0u32..).zip(&self.bits) {
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                each(at * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

impl ReadySet {
    pub(crate) fn new(context: &Context) -> Result<ReadySet, Errno> {
        let bell = context.node().take_bell(context.settings())?;
        Ok(ReadySet::with(context, Bell::Of(bell)))
    }

    pub(crate) fn silent(context: &Context) -> Result<ReadySet, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let fd = (context.settings().keep_fd)(fd);
        Ok(ReadySet::with(context, Bell::Silent { fd, marks: Marks::new() }))
    }

    fn with(context: &Context, bell: Bell) -> ReadySet {
        let node = context.node().clone();
        ReadySet { node, bell, budget: SpinBudget::default(), kernel_polls: KernelPolls::default() }
    }

    /// The bell, if peers ring it for this process: one of the parent's rings for the parent.
    #[inline]
    fn own_bell(&self) -> Option<u32> {
        match self.bell {
            Bell::Of(bell) if !self.node.is_parents() => Some(bell),
            _ => None,
        }
    }

    /// The same, with the memory that it is in.
    #[inline]
    fn own_bells(&self) -> Option<(&Bells, u32)> {
        let bell = self.own_bell()?;
        Some((self.node.bells().expect("made with the set"), bell))
    }

    /// Whether no peer rings it.
    pub fn is_silent(&self) -> bool {
        matches!(self.bell, Bell::Silent { .. })
    }

    /// Becomes readable when the set is armed and something happens. Register it edge-triggered and
    /// do not read it.
    pub fn bell(&self) -> BorrowedFd<'_> {
        match &self.bell {
            Bell::Of(bell) => self.node.bell_fd(*bell),
            Bell::Silent { fd, .. } => fd.as_fd(),
        }
    }

    /// Whether it is this process's own; after a fork it is the parent's, who would be rung.
    pub fn is_of(&self, context: &Context) -> bool {
        Arc::ptr_eq(&self.node, context.node())
    }

    /// Whether sets are running short, so that this one should not be kept without need.
    pub fn is_scarce(&self) -> bool {
        self.is_silent() || self.node.bells_are_scarce()
    }

    /// Follows a connection under a token of the caller's choice, below [`TOKENS_MAX`]. Poll its
    /// state once afterwards.
    ///
    /// # Errors
    /// When the connection or the token cannot be followed.
    pub fn add(&self, connection: &Connection, token: u32, interest: Interest) -> Result<(), TooMany> {
        let bell = self.own_bell().filter(|_| token < TOKENS_MAX).ok_or(TooMany)?;
        connection.watch(&self.node, bell, token, interest)
    }

    /// Changes what is of interest.
    pub fn change(&self, connection: &Connection, interest: Interest) {
        if let Some(bell) = self.own_bell() {
            connection.change_watch(&self.node, bell, interest);
        }
    }

    /// Follows it no longer.
    pub fn remove(&self, connection: &Connection) {
        if let Some(bell) = self.own_bell() {
            connection.unwatch(&self.node, bell);
        }
    }

    /// Takes the tokens of all connections to which something happened; some may be stale.
    pub fn take(&self, each: &mut dyn FnMut(u32)) {
        match &self.bell {
            Bell::Of(_) => _ = self.own_bells().inspect(|(bells, bell)| bells.take(*bell, each)),
            Bell::Silent { marks, .. } => marks.take(each),
        }
    }

    /// Makes the loop poll a token of its own, and wakes it if it sleeps. Takes no lock.
    pub fn mark(&self, token: u32) {
        match &self.bell {
            Bell::Of(_) => {
                self.own_bell().inspect(|&bell| self.node.mark_own(Watch { process: 0, bell, token }));
            }
            Bell::Silent { fd, marks } => {
                marks.mark(token);
                ring_fd(fd);
            }
        }
    }

    /// Whether something happened. A few loads.
    #[inline]
    pub fn any(&self) -> bool {
        match &self.bell {
            Bell::Of(_) => self.own_bells().is_some_and(|(bells, bell)| bells.any(bell)),
            Bell::Silent { marks, .. } => marks.any.load(Ordering::SeqCst),
        }
    }

    /// Polls until something happens, for as long as that tends to pay and not beyond the deadline;
    /// says whether something did.
    pub fn poll(&self, context: &Context, deadline: Option<Deadline>) -> bool {
        let peer_core = context.peer_core.load(Ordering::Relaxed);
        self.budget.poll(peer_core, deadline.unwrap_or(NEVER), || self.any())
    }

    /// Before a sleep for connections of which some go to other nodes, whose bytes mostly come by
    /// the kernel: asks the kernel, by `ready`, for as long as that tends to pay.
    pub fn poll_kernel(&self, ready: impl FnMut() -> bool) {
        self.kernel_polls.poll(Nanos::monotonic, ready);
    }

    /// A wait that may have polled there gave something.
    pub fn returned(&self) {
        self.kernel_polls.received(Nanos::monotonic);
    }

    /// Whether a sleep should end soon: somebody who cannot ring the bell may have marked a token.
    /// For a new bell that is so until the node has sent it to the peers; a caller that finds it so
    /// takes the [node's messages](Context::poll).
    #[inline]
    pub fn is_deaf(&self) -> bool {
        self.own_bell().is_some_and(|bell| self.node.is_deaf(bell))
    }

    /// Announces a sleep. True: something is there, do not sleep.
    pub fn arm(&self) -> bool {
        match &self.bell {
            Bell::Of(_) => self.own_bells().is_some_and(|(bells, bell)| bells.arm(bell)),
            Bell::Silent { .. } => self.any(),
        }
    }

    /// Ends what [`arm`](Self::arm) began.
    pub fn disarm(&self) {
        if let Some((bells, bell)) = self.own_bells() {
            bells.disarm(bell);
        }
    }
}

impl Drop for ReadySet {
    fn drop(&mut self) {
        if let Some(bell) = self.own_bell() {
            self.node.return_bell(bell);
        }
    }
}
