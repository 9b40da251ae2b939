//! One connection of this process: where its bytes go, and whether there are any.
//!
//! Invariant: a direction is in one medium at a time, and leaves it at a byte that both sides agree
//! on (`core.rs`). What is here waits, wakes, offers and follows the node's verdict. Source: [NT
//! §4]; docs/sockets.md.

mod between;
mod forks;
mod lends;
mod life;
mod state;
mod waits;
mod watches;

use crate::context::Context;
use crate::core::{Early, Kernel, Receiving, Sending, Upgraded, Wakeup};
use crate::ledger::Entry;
use crate::node::{Meeting, Peer, Seat};
use crate::polling::{KernelPolls, SpinBudget};
use crate::types::{After, Bypass, Direction, Medium, Received, Sent, Take};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use vmmc_host::Nanos;
use vmmc_stream::SectionLock;
use vmmc_stream::{End, Phase, Watch, core, thread_id};

pub use forks::Forking;
pub(crate) use watches::Registration;

/// A connected TCP socket of this process: one for each open file description, however many
/// descriptors lead to it.
#[derive(Debug)]
pub struct Connection {
    own: Weak<Connection>,
    stage: AtomicU8,
    reason: AtomicU8,
    exchanges: AtomicU32,
    bytes: AtomicU64,
    /// Number of the offer, while there is one.
    offer: AtomicU64,
    /// Bytes that it had carried when it was offered; 0 before.
    offered_after: AtomicU64,
    cookie: AtomicU64,
    /// Kernel calls under way, until the upgrade counts them in shared memory.
    early: Arc<Early>,
    matched: SectionLock<Option<Meeting>>,
    upgraded: OnceLock<Joined>,
    entry: OnceLock<Entry>,
    watches: SectionLock<Vec<Registration>>,
    /// The end was closed, and its slot is to be given back once no call uses it any more.
    unreleased: AtomicBool,
    /// Directions that this process has ended: [`SHUT_READ`], [`SHUT_WRITE`].
    shut: AtomicU8,
    /// Upgraded elsewhere, and nobody could say where: no byte of it can be had in order.
    broken: AtomicBool,
    /// Generation, plus one, of the process whose client knows that it goes to another node.
    followed: AtomicUsize,
    /// Generation of the process that counts as a holder through this value.
    generation: AtomicUsize,
}

/// Bits of [`Connection::shut`].
const SHUT_READ: u8 = 1;
const SHUT_WRITE: u8 = 2;

/// The upgraded connection, and what this process needs beside the shared words.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) core: Upgraded,
    pub(crate) seat: Seat,
    peer: Option<Arc<Peer>>,
    reads: SpinBudget,
    writes: SpinBudget,
    /// Of receives in the kernel, where the other end is on another node.
    kernel_polls: KernelPolls,
    /// When it joined.
    at: Nanos,
}

/// How far a connection is on its way into shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    Young,
    Offered,
    Matched,
    Joined,
    /// Stays with the kernel.
    Settled,
    Closed,
}

impl Stage {
    fn of(value: u8) -> Stage {
        match value {
            0 => Stage::Young,
            1 => Stage::Offered,
            2 => Stage::Matched,
            3 => Stage::Joined,
            4 => Stage::Settled,
            _ => Stage::Closed,
        }
    }
}

/// The kernel's socket behind a descriptor.
pub(crate) struct Socket<'a>(pub(crate) BorrowedFd<'a>);

impl Kernel for Socket<'_> {
    fn send_now(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        vmmc_stream::send_now(self.0, from)
    }

    fn send_more(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        vmmc_stream::send_more(self.0, from)
    }

    fn sent(&self) -> Option<u64> {
        vmmc_stream::tcp_progress(self.0).ok().map(|p| p.sent)
    }

    fn received(&self) -> Option<(u64, u64)> {
        // In this order: a byte that comes between the two questions is unread, but not counted as
        // received. The other way round it would be taken for read.
        let received = vmmc_stream::tcp_progress(self.0).ok()?.received;
        Some((received, vmmc_stream::unread_bytes(self.0)))
    }

    fn peek(&self) -> End {
        vmmc_stream::end_of_kernel(self.0)
    }

    fn peer_ended(&self) -> bool {
        vmmc_stream::tcp_progress(self.0).is_ok_and(|p| p.peer_ended)
    }

    fn received_in_all(&self) -> Option<u64> {
        let progress = vmmc_stream::tcp_progress(self.0).ok()?;
        // The end of the stream is counted for a byte.
        progress.peer_ended.then(|| progress.received.saturating_sub(1))
    }

    fn takes_more(&self) -> bool {
        vmmc_stream::takes_more(self.0)
    }

    fn receive_now(&self, into: &mut [IoSliceMut<'_>], take: bool) -> Result<usize, Errno> {
        vmmc_stream::receive_now(self.0, into, take)
    }

    fn no_delay(&self) {
        vmmc_stream::set_no_delay(self.0);
    }

    fn coarse_ns(&self) -> u64 {
        Nanos::coarse().0
    }

    fn retransmissions(&self) -> Option<(u32, u64)> {
        let progress = vmmc_stream::tcp_progress(self.0).ok()?;
        Some((progress.retransmissions, progress.retransmit_after.as_nanos() as u64))
    }
}

/// A system call on the kernel's socket that is about to be made. While it lives the direction
/// stays in the kernel.
#[derive(Debug)]
#[must_use = "make the system call, then finish"]
pub struct KernelCall<'a> {
    connection: &'a Connection,
    direction: Direction,
    counted: Counted,
}

/// Where a kernel call is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// In this process: the connection is not upgraded.
    Early,
    /// In shared memory.
    Joined,
    /// There, and nobody measures it.
    Resting,
}

impl KernelCall<'_> {
    /// Before a receive that waits for bytes: polls whether they come within the time in which
    /// polling is better than a sleep. For connections between nodes; within one, the kernel is
    /// left soon.
    pub fn poll(&self, fd: BorrowedFd<'_>) {
        if let Some(joined) = self.polling() {
            joined.kernel_polls.poll(Nanos::monotonic, || vmmc_stream::would_receive(fd));
        }
    }

    /// The connection, if it is one whose receives poll.
    #[inline]
    fn polling(&self) -> Option<&Joined> {
        let joined = self.connection.upgraded.get().filter(|joined| joined.core.is_between())?;
        (self.direction == Direction::Receive && self.counted != Counted::Early).then_some(joined)
    }

    /// Ends it with the result of the system call.
    pub fn finish(self, result: Result<usize, Errno>) -> After {
        if let Ok(bytes) = result {
            self.connection.count(bytes, self.direction);
        }
        if let (Err(errno @ (Errno::CONNRESET | Errno::PIPE)), Some(joined)) = (result, self.connection.upgraded.get())
        {
            if errno == Errno::CONNRESET || joined.core.reset() == Some(errno) {
                joined.core.kernel_reported_reset();
            }
        }
        let nothing = matches!(result, Ok(0) | Err(Errno::AGAIN));
        let receives = self.direction != Direction::Send;
        match self
            .connection
            .upgraded
            .get()
            .filter(|_| nothing && receives)
            .map(|joined| (joined.core.incoming().phase(), joined.core.has_unreported_reset()))
        {
            // Another thread was told.
            Some((_, true)) if result == Ok(0) => After::Retry,
            Some((Phase::EndsAt(_), _)) => After::Retry,
            // An end in the kernel while a change is pending: the sender that announced it has died
            // over it.
            Some((Phase::Pending, _)) if result != Ok(0) => After::Retry,
            _ => After::Return,
        }
    }
}

impl Drop for KernelCall<'_> {
    fn drop(&mut self) {
        if let Some(joined) = self.polling() {
            joined.kernel_polls.received(Nanos::monotonic);
        }
        let (sends, receives) = (self.direction != Direction::Receive, self.direction != Direction::Send);
        let connection = self.connection;
        match connection.upgraded.get().filter(|_| self.counted != Counted::Early) {
            Some(joined) => {
                if sends {
                    joined.core.end_kernel_send();
                } else if self.counted == Counted::Resting {
                    joined.core.end_resting_receive();
                } else {
                    joined.core.end_kernel_receive(|| Nanos::monotonic().0);
                }
            }
            None => {
                if sends {
                    connection.early.sends.fetch_sub(1, Ordering::SeqCst);
                }
                if receives {
                    connection.early.receives.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
    }
}

impl Connection {
    pub(crate) fn new(generation: usize) -> Arc<Connection> {
        Arc::new_cyclic(|own| Connection {
            own: own.clone(),
            stage: AtomicU8::new(Stage::Young as u8),
            reason: AtomicU8::new(0),
            exchanges: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            offer: AtomicU64::new(0),
            offered_after: AtomicU64::new(0),
            cookie: AtomicU64::new(0),
            early: Arc::default(),
            matched: SectionLock::new(None),
            upgraded: OnceLock::new(),
            entry: OnceLock::new(),
            watches: SectionLock::new(Vec::new()),
            unreleased: AtomicBool::new(false),
            shut: AtomicU8::new(0),
            broken: AtomicBool::new(false),
            followed: AtomicUsize::new(0),
            generation: AtomicUsize::new(generation),
        })
    }

    /// Whether it is not upgraded. One load.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.upgraded.get().is_none()
    }

    /// Whether a socket with this `SO_COOKIE` may be its own. That of a connection which was never
    /// offered is not known.
    pub fn may_be(&self, cookie: u64) -> bool {
        let own = self.cookie.load(Ordering::Relaxed);
        own == 0 || own == cookie
    }

    /// Sends bytes; never waits.
    #[inline]
    pub fn send(&self, context: &Context, fd: BorrowedFd<'_>, from: &[IoSlice<'_>]) -> Sent<'_> {
        let joined = match self.upgraded.get() {
            Some(joined) => joined,
            None if self.broken.load(Ordering::Relaxed) => return Sent::Failed(Errno::PIPE),
            None => match self.plain_call(context, fd, Direction::Send) {
                Ok(call) => return Sent::Kernel(call),
                Err(joined) => joined,
            },
        };
        if joined.core.rest_sending() {
            return Sent::Kernel(self.resting_call(Direction::Send));
        }
        joined.publish_core();
        joined.maintain(context, self, fd);
        let (sending, wakeup) = joined.core.send(thread_id(), &Socket(fd), from);
        self.wake_other_end(context, joined, wakeup);
        self.pass_on(context, joined);
        if joined.core.takes_grow_request() {
            context.node().grow(&joined.seat);
        }
        match sending {
            Sending::Done(bytes) => Sent::Done(bytes),
            Sending::Full => Sent::Full,
            Sending::Locked(denied) => match joined.is_locked(context, denied) {
                Some(Errno::AGAIN) => Sent::Busy,
                Some(errno) => Sent::Failed(errno),
                None => self.send(context, fd, from),
            },
            // TCP takes what is sent to an end that closed in order, and says so later: so does its
            // socket, whose peer has gone.
            Sending::Failed(Errno::PIPE) if joined.core.has_closed_in_order() && !joined.core.has_ended() => {
                joined.core.outgoing().kernel_sends.fetch_add(1, Ordering::SeqCst);
                Sent::Kernel(KernelCall { connection: self, direction: Direction::Send, counted: Counted::Joined })
            }
            Sending::Failed(errno) => Sent::Failed(joined.failed(fd, errno)),
            Sending::Kernel => {
                Sent::Kernel(KernelCall { connection: self, direction: Direction::Send, counted: Counted::Joined })
            }
        }
    }

    /// Receives bytes; never waits.
    #[inline]
    pub fn recv(&self, context: &Context, fd: BorrowedFd<'_>, into: &mut [IoSliceMut<'_>], take: Take) -> Received<'_> {
        let joined = match self.upgraded.get() {
            Some(joined) => joined,
            None if self.broken.load(Ordering::Relaxed) => return Received::Failed(Errno::CONNRESET),
            None => match self.plain_call(context, fd, Direction::Receive) {
                Ok(call) => return Received::Kernel(call),
                Err(joined) => joined,
            },
        };
        if joined.core.rest_receiving() {
            return Received::Kernel(self.resting_call(Direction::Receive));
        }
        joined.maintain(context, self, fd);
        let (receiving, wakeup) = joined.core.receive(thread_id(), &Socket(fd), into, take == Take::Take);
        if wakeup.sender {
            self.wake_other_end(context, joined, wakeup);
        }
        self.pass_on(context, joined);
        match receiving {
            Receiving::Done(0) if joined.core.is_gone() && into.iter().any(|s| !s.is_empty()) => {
                // It may have died with bytes unread, of which its kernel knew nothing.
                match joined.core.reset() {
                    Some(Errno::CONNRESET) => joined.core.takes_reset().map_or(Received::Done(0), Received::Failed),
                    _ => Received::Done(0),
                }
            }
            Receiving::Done(bytes) => {
                let core = joined.peer_core();
                if context.peer_core.load(Ordering::Relaxed) != core {
                    context.peer_core.store(core, Ordering::Relaxed);
                }
                Received::Done(bytes)
            }
            Receiving::OfKernel(bytes) => Received::OfKernel(bytes),
            Receiving::Empty => Received::Empty,
            Receiving::Locked(denied) => match joined.is_locked(context, denied) {
                Some(Errno::AGAIN) => Received::Busy,
                Some(errno) => Received::Failed(errno),
                None => self.recv(context, fd, into, take),
            },
            // Between nodes only; otherwise a receive reads the kernel itself.
            Receiving::Kernel => Received::Kernel(KernelCall {
                connection: self,
                direction: Direction::Receive,
                counted: Counted::Joined,
            }),
            Receiving::Failed(errno) => Received::Failed(joined.failed(fd, errno)),
        }
    }

    fn resting_call(&self, direction: Direction) -> KernelCall<'_> {
        KernelCall { connection: self, direction, counted: Counted::Resting }
    }

    /// A call of a connection that is not upgraded; an error means that now it is.
    fn plain_call(
        &self,
        context: &Context,
        fd: BorrowedFd<'_>,
        direction: Direction,
    ) -> Result<KernelCall<'_>, &Joined> {
        self.step_towards_upgrade(context, fd);
        if let Some(joined) = self.upgraded.get() {
            return Err(joined);
        }
        let call = self.count_plain(direction);
        // The upgrade reads the counts after it has been stored: either it sees the call, or the
        // call sees it.
        fence(Ordering::SeqCst);
        match self.upgraded.get() {
            Some(joined) => {
                drop(call);
                Err(joined)
            }
            None => Ok(call),
        }
    }

    fn count_plain(&self, direction: Direction) -> KernelCall<'_> {
        if direction != Direction::Receive {
            self.early.sends.fetch_add(1, Ordering::SeqCst);
        }
        if direction != Direction::Send {
            self.early.receives.fetch_add(1, Ordering::SeqCst);
        }
        KernelCall { connection: self, direction, counted: Counted::Early }
    }

    /// Holds a direction in the kernel for a system call of another kind (sendfile, splice); none:
    /// it is in the ring.
    pub fn kernel_call(&self, direction: Direction) -> Option<KernelCall<'_>> {
        let Some(joined) = self.upgraded.get() else {
            let call = self.count_plain(direction);
            fence(Ordering::SeqCst);
            if self.upgraded.get().is_none() {
                return Some(call);
            }
            drop(call);
            return self.kernel_call(direction);
        };
        // A receive that somebody else makes may come late, and take bytes that are not next.
        let held = direction == Direction::Send && joined.core.begin_kernel_send(thread_id());
        held.then_some(())?;
        Some(KernelCall { connection: self, direction, counted: Counted::Joined })
    }

    /// What carries a direction; [`Direction::Both`] gives the ring if either is there.
    pub fn medium(&self, direction: Direction) -> Medium {
        let Some(joined) = self.upgraded.get() else { return Medium::Kernel };
        let (tx, rx) = (joined.core.outgoing().announced().in_ring(), joined.core.incoming().reads_ring());
        let ring = match direction {
            Direction::Send => tx,
            Direction::Receive => rx,
            Direction::Both => tx || rx,
        };
        if ring { Medium::Ring } else { Medium::Kernel }
    }

    fn count(&self, bytes: usize, direction: Direction) {
        if !self.is_plain() {
            return;
        }
        // Counts of several threads may be lost; they only say when an offer is due.
        self.bytes.store(self.bytes.load(Ordering::Relaxed).wrapping_add(bytes as u64), Ordering::Relaxed);
        if direction != Direction::Send && bytes > 0 {
            self.exchanges.store(self.exchanges.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Wakes the waiters of the other end that a step concerns.
    #[inline]
    fn wake_other_end(&self, context: &Context, joined: &Joined, wakeup: Wakeup) {
        if wakeup.receiver {
            let out = joined.core.outgoing();
            out.receiver_sleep.wake();
            for watch in &out.receiver_watch {
                joined.ring(context, watch.load(Ordering::Relaxed));
            }
        }
        if wakeup.sender {
            let into = joined.core.incoming();
            into.sender_sleep.wake();
            for watch in &into.sender_watch {
                joined.ring(context, watch.load(Ordering::Relaxed));
            }
        }
    }

    fn stage(&self) -> Stage {
        Stage::of(self.stage.load(Ordering::Acquire))
    }

    fn settle_with(&self, why: Bypass) {
        self.reason.store(why.to_byte(), Ordering::Relaxed);
        self.stage.store(Stage::Settled as u8, Ordering::Release);
    }
}

impl Joined {
    #[inline]
    fn ring(&self, context: &Context, word: u64) {
        let Some(watch) = Watch::from_word(word) else { return };
        match &self.peer {
            Some(peer) if peer.process == watch.process && peer.ring(watch) => {}
            _ => context.node().ring_other(watch, self.peer.as_ref(), &self.seat),
        }
    }

    /// Says on which core this end runs, if that has changed. An end on another node does not ask.
    #[inline]
    fn publish_core(&self) {
        if self.core.is_between() {
            return;
        }
        let here = core() + 1;
        let word = &self.core.own().core;
        if word.load(Ordering::Relaxed) != here {
            word.store(here, Ordering::Relaxed);
        }
    }
}
