//! The protocol of one upgraded connection, on shared words and a kernel socket: who may put bytes
//! where, and when a direction changes its medium.
//!
//! Neither waits nor wakes: results say what to do next, and whom to wake. So the same code runs
//! over a real socket and in tests that script every interleaving.
//!
//! Invariant: the concatenation of what the sending end gave to [`Upgraded::send`] and to kernel
//! calls that [`Upgraded::begin_kernel_send`] allowed is what the receiving end gets from
//! [`Upgraded::receive`] and kernel calls. A change of medium happens under the lock of the sending
//! end, with no kernel call of it under way, and only when the receiving end has followed the last
//! one. Source: [NT §4]; docs/sockets.md.

use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vmmc_host::stores::Stores;
use vmmc_stream::{Denied, DirectionWords, End, EndWords, Flags, Locked, Phase, SharedLock, Slot};

/// What the protocol asks of a kernel socket.
pub(crate) trait Kernel {
    /// Sends what fits now.
    fn send_now(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno>;
    /// The same when the caller's own send follows at once.
    fn send_more(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.send_now(from)
    }
    /// Receives what is there now, or peeks at it.
    fn receive_now(&self, into: &mut [IoSliceMut<'_>], take: bool) -> Result<usize, Errno>;
    /// Bytes given to it so far.
    fn sent(&self) -> Option<u64>;
    /// Bytes that have come, and how many of them nobody has read yet. A byte may be counted for
    /// the end of the stream.
    fn received(&self) -> Option<(u64, u64)>;
    /// What it knows about the other end; nothing is received.
    fn peek(&self) -> End;
    /// Whether the other end sends no more, also if bytes of it are still unread.
    fn peer_ended(&self) -> bool;
    /// Bytes that have come in all; none: more may come.
    fn received_in_all(&self) -> Option<u64> {
        None
    }
    /// Whether it takes bytes now.
    fn takes_more(&self) -> bool {
        true
    }
    /// Stops collecting small sends.
    fn no_delay(&self);
    /// The time, nanoseconds.
    fn now_ns(&self) -> u64 {
        vmmc_host::Nanos::monotonic().0
    }
    /// The time as of some milliseconds ago, nanoseconds. A clock that stands still asks for
    /// nothing.
    fn coarse_ns(&self) -> u64 {
        0
    }
    /// Segments that it has sent again so far, and after how long it does so where nothing else
    /// tells of a loss, nanoseconds.
    fn retransmissions(&self) -> Option<(u32, u64)> {
        None
    }
    /// Processor time of this process so far, nanoseconds.
    fn cpu_ns(&self) -> u64 {
        vmmc_host::Nanos::of_processors().0
    }
}

/// Kernel calls of one process that are counted before there is shared memory to count them in.
#[derive(Debug, Default)]
pub(crate) struct Early {
    pub(crate) sends: AtomicU32,
    pub(crate) receives: AtomicU32,
}

/// One end of a connection as a process has it.
#[derive(Debug)]
pub(crate) struct Upgraded {
    pub(crate) slot: Slot,
    /// 0 or 1.
    pub(crate) end: usize,
    /// Kernel calls of this process that began before the upgrade.
    early: Arc<Early>,
    /// This side keeps to the kernel.
    pub(crate) pinned: AtomicU32,
    /// Hints of the node that were followed.
    hints_seen: AtomicU32,
    /// The kernel's socket should be asked about the other end.
    pub(crate) ask_kernel: AtomicU32,
    /// When it is to be asked unasked, and how long after that again, nanoseconds, or
    /// [`BYTES_CAME`].
    ask_at: AtomicU64,
    ask_pause: AtomicU64,
    /// What it said: 0 open, 1 ended, 2 reset.
    kernel_end: AtomicU32,
    /// The other end has died.
    gone: AtomicU32,
    /// When that was noticed, bytes were in the ring that it had not read.
    unread_at_death: AtomicU32,
    /// All holders of the other end that the node knows of have died, and the kernel has it open:
    /// somebody unknown holds it, whose death the node will not see.
    pub(crate) holder_unknown: AtomicU32,
    /// The reset has been reported.
    reset_reported: AtomicU32,
    /// Bytes after which the node may be asked for a larger ring, again.
    grow_at: AtomicU64,
    /// It should be asked now.
    wants_to_grow: AtomicU32,
    /// The ring to the peer is full and nobody takes bytes out.
    full: Full,
    /// Memory of the ring to the peer that a thread of this process fills in.
    pub(crate) room: Loan,
    /// Memory of the ring from the peer that a thread of this process reads.
    pub(crate) view: Loan,
    /// How the ring to the peer is filled best.
    stores: Stores,
    /// Sends to come that rest: see [`Upgraded::rest_sending`].
    resting: AtomicU32,
    /// The other end is on another node.
    between: Option<Box<Between>>,
}

/// Result of [`Upgraded::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Done(usize),
    Full,
    /// The caller may make a kernel call, which is counted.
    Kernel,
    /// The lock of this end was not to be had.
    Locked(Denied),
    Failed(Errno),
}

/// Result of [`Upgraded::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    Done(usize),
    /// So many bytes came from the kernel; if they were its last, there may be others in the ring.
    OfKernel(usize),
    Empty,
    /// It is the kernel's socket that is to be read; [`Upgraded::receive`] does so.
    Kernel,
    /// The lock of this end was not to be had.
    Locked(Denied),
    Failed(Errno),
}

/// Who at the other end is to be woken after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Wakeup {
    /// Threads that wait for bytes, an end, or a change.
    pub(crate) receiver: bool,
    /// Threads that wait for room.
    pub(crate) sender: bool,
}

const ENDED: u32 = 1;
const RESET: u32 = 2;
/// No pause: bytes came since the kernel was to be asked last.
const BYTES_CAME: u64 = 0;
/// Polls of an announcement that is about to be made: as long as a kernel send may take.
const PENDING_POLLS: u32 = 2_000;

impl Upgraded {
    pub(crate) fn new(slot: Slot, end: usize, early: Arc<Early>) -> Upgraded {
        let between = (slot.words().between.load(Ordering::Relaxed) != 0).then(Box::<Between>::default);
        Upgraded {
            between,
            slot,
            end,
            early,
            pinned: AtomicU32::new(0),
            hints_seen: AtomicU32::new(0),
            ask_kernel: AtomicU32::new(0),
            ask_at: AtomicU64::new(0),
            ask_pause: AtomicU64::new(0),
            kernel_end: AtomicU32::new(0),
            gone: AtomicU32::new(0),
            unread_at_death: AtomicU32::new(0),
            holder_unknown: AtomicU32::new(0),
            reset_reported: AtomicU32::new(0),
            grow_at: AtomicU64::new(0),
            wants_to_grow: AtomicU32::new(0),
            full: Full::default(),
            room: Loan::default(),
            view: Loan::default(),
            stores: Stores::default(),
            resting: AtomicU32::new(0),
        }
    }

    /// Words of the direction to the peer.
    #[inline]
    pub(crate) fn outgoing(&self) -> &DirectionWords {
        &self.slot.words().directions[self.end]
    }

    /// Words of the direction from the peer.
    #[inline]
    pub(crate) fn incoming(&self) -> &DirectionWords {
        &self.slot.words().directions[1 - self.end]
    }

    /// Words of this end.
    #[inline]
    pub(crate) fn own(&self) -> &EndWords {
        &self.slot.words().ends[self.end]
    }

    /// Words of the other end.
    #[inline]
    pub(crate) fn other(&self) -> &EndWords {
        &self.slot.words().ends[1 - self.end]
    }

    /// For bytes that can be sent later.
    fn lock_out_soon(&self, me: u32) -> Result<Locked<'_>, Denied> {
        SharedLock::new(&self.outgoing().sender_lock).lock_soon(me)
    }

    /// For bytes that can be received later.
    fn lock_in_soon(&self, me: u32) -> Result<Locked<'_>, Denied> {
        SharedLock::new(&self.incoming().receiver_lock).lock_soon(me)
    }

    /// Lets locks go that this thread took in a call which ended without coming back: a signal
    /// handler jumped out of it.
    pub(crate) fn free_abandoned(&self, me: u32) {
        drop(SharedLock::new(&self.outgoing().sender_lock).held_by(me));
        drop(SharedLock::new(&self.incoming().receiver_lock).held_by(me));
    }

    fn lock_out(&self, me: u32) -> Option<Locked<'_>> {
        SharedLock::new(&self.outgoing().sender_lock).lock(me).ok()
    }

    fn lock_in(&self, me: u32) -> Option<Locked<'_>> {
        SharedLock::new(&self.incoming().receiver_lock).lock(me).ok()
    }

    /// Whether a receive is worth trying, as far as the shared words show.
    #[inline]
    pub(crate) fn may_be_readable(&self) -> bool {
        let into = self.incoming();
        into.tail.load(Ordering::Acquire) != into.head.load(Ordering::Relaxed)
            || into.sender_flags.load(Ordering::Relaxed) != 0
            || into.phase() != Phase::Steady
            || into.receiver_flags.load(Ordering::Relaxed) & (Flags::SHUT | Flags::FLUSH_TO_KERNEL) != 0
            || self.kernel_end.load(Ordering::Relaxed) != 0
            || self.hinted()
            || self.is_broken()
    }

    /// Whether a thread that sleeps until the ring has something should go on: also when another
    /// thread has followed the direction into the kernel, or has learned first that all is here.
    pub(crate) fn ends_sleep(&self) -> bool {
        self.may_be_readable() || !self.incoming().reads_ring() && !self.waits_for_the_rest()
    }

    /// Whether a send is worth trying, as far as the shared words show.
    #[inline]
    pub(crate) fn may_be_writable(&self) -> bool {
        let ring_bytes = self.slot.ring_bytes(self.outgoing().layout().large);
        self.outgoing().free(ring_bytes, ring_bytes / 2) >= ring_bytes / 2
            || self.outgoing().may_grow()
            || self.is_stuck()
            || self.outgoing().receiver_flags.load(Ordering::Relaxed) & Flags::CLOSED != 0
            || self.outgoing().sender_flags.load(Ordering::Relaxed) & Flags::END != 0
            || self.kernel_end.load(Ordering::Relaxed) == RESET
            || self.gone.load(Ordering::Relaxed) != 0
            || self.hinted()
            || self.is_broken()
    }
}

mod back;
mod between;
mod choice;
mod ends;
mod leave;
mod loans;
mod pace;
mod receive;
mod send;
pub mod simulation;
pub(crate) use back::WayBack;
use between::Between;
pub(crate) use choice::Choices;
use leave::Full;
pub(crate) use loans::Loan;

#[cfg(test)]
mod tests;
