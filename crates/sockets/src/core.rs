//! The protocol of one upgraded connection, on shared words and a kernel socket: who may put bytes where, and when a direction changes its medium.
//!
//! Neither waits nor wakes: results say what to do next, and whom to tell. So the same code runs over a real socket and in tests that script every interleaving.
//!
//! Invariant: the concatenation of what the sending end gave to [`send`] and to kernel calls that [`begin_kernel_send`] allowed is what the receiving end gets from
//! [`receive`] and kernel calls. A change of medium happens under the lock of the sending end, with no kernel call of it under way, and only when the receiving end has
//! followed the last one. Source: [NT §4]; docs/sockets.md.

use crate::limits::{ASK_PAUSE_NS, ASK_PAUSE_NS_MAX, GROW_AGAIN_BYTES, PUBLISH_BYTES, SEND_BYTES_MAX, TAKE_BYTES};
use crate::types::Close;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use vmmc_host::stores::Stores;
use vmmc_host::stream::{DirectionWords, End, EndWords, Flags, Layout, Locked, Phase, SharedLock, Slot};

/// What the protocol asks of a kernel socket.
pub(crate) trait Kernel {
    /// Sends what fits now.
    fn send_now(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno>;
    /// The same when the caller's own send follows at once.
    fn send_more(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.send_now(from)
    }
    /// Receives what is there now, or looks at it.
    fn receive_now(&self, into: &mut [IoSliceMut<'_>], take: bool) -> Result<usize, Errno>;
    /// Bytes given to it so far.
    fn sent(&self) -> Option<u64>;
    /// Bytes that have come, and how many of them nobody has read yet. A byte may be counted for the end of the stream.
    fn received(&self) -> Option<(u64, u64)>;
    /// What it says about the other end.
    fn look(&self) -> End;
    /// Whether the other end sends no more, also if bytes of it are still unread.
    fn peer_ended(&self) -> bool;
    /// Stops collecting small sends.
    fn no_delay(&self);
    /// The time, nanoseconds.
    fn now_ns(&self) -> u64 {
        vmmc_host::Nanos::monotonic().0
    }
    /// The time as of some milliseconds ago, nanoseconds. A clock that stands still asks for nothing.
    fn coarse_ns(&self) -> u64 {
        0
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
    /// When it is to be asked unasked, and how long after that again, nanoseconds, or [`HEARD`].
    ask_at: AtomicU64,
    ask_pause: AtomicU64,
    /// What it said: 0 open, 1 ended, 2 reset.
    kernel_end: AtomicU32,
    /// The other end has died.
    gone: AtomicU32,
    /// When that was noticed, bytes were in the ring that it had not read.
    unread_at_death: AtomicU32,
    /// The node says that all holders of the other end have died, and the kernel says "open": somebody unknown holds it, whose death the node will not see.
    pub(crate) careful: AtomicU32,
    /// The reset has been reported.
    reset_told: AtomicU32,
    /// Bytes after which the node may be asked for a larger ring, again.
    grow_at: AtomicU64,
    /// It should be asked now.
    wants_to_grow: AtomicU32,
    /// The ring to the peer is full and nobody takes bytes out.
    full: Full,
    /// Memory of the ring to the peer that a thread of this process fills in.
    pub(crate) room: Loan,
    /// Memory of the ring from the peer that a thread of this process looks at.
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
    Failed(Errno),
}

/// Whom a step concerns at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Tell {
    /// Whoever waits for bytes, an end, or a change.
    pub(crate) receiver: bool,
    /// Whoever waits for room.
    pub(crate) sender: bool,
}

const ENDED: u32 = 1;
const RESET: u32 = 2;
/// No pause: bytes came since the kernel was to be asked last.
const HEARD: u64 = 0;
/// Looks at an announcement that is about to be made: as long as a kernel send may take.
const PENDING_LOOKS: u32 = 2_000;

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
            careful: AtomicU32::new(0),
            reset_told: AtomicU32::new(0),
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

    fn lock_out(&self, me: u32) -> Option<Locked<'_>> {
        SharedLock::new(&self.outgoing().sender_lock).lock(me).ok()
    }

    fn lock_in(&self, me: u32) -> Option<Locked<'_>> {
        SharedLock::new(&self.incoming().receiver_lock).lock(me).ok()
    }

    /// Sends bytes. `me` is the thread's id.
    pub(crate) fn send(&self, me: u32, kernel: &impl Kernel, from: &[IoSlice<'_>]) -> (Sending, Tell) {
        let Some(_locked) = self.lock_out(me) else {
            let lent = self.room.held_by(me);
            // Below a signal handler that interrupted a send here, which must end first.
            return (Sending::Failed(if lent { Errno::DEADLK } else { Errno::INTR }), Tell::default());
        };
        let out = self.outgoing();
        if out.announced().pending {
            self.finish_change_of_the_dead(kernel);
        }
        if self.between.is_some() {
            if let Some(failed) = self.pace(kernel, from) {
                return (failed, Tell::default());
            }
        }
        if !out.announced().in_ring() {
            return self.send_by_kernel(kernel, from);
        }
        if self.must_leave_ring() {
            let left = self.leave_ring(kernel, !is_empty(from)) || out.goes_back() && self.give_back_locked(kernel);
            if left {
                out.kernel_sends.fetch_add(1, Ordering::SeqCst);
                return (Sending::Kernel, Tell { receiver: true, sender: false });
            }
            if out.goes_back() {
                return (Sending::Full, Tell::default());
            }
        }
        let sending = match self.send_by_ring(kernel, from) {
            (Sending::Full, _) if self.hinted() => {
                self.follow_hints(kernel);
                self.send_by_ring(kernel, from)
            }
            (Sending::Full, tell) => {
                self.notice_full(kernel.coarse_ns());
                if (self.is_crowded() || self.is_stuck()) && self.leave_ring(kernel, true) {
                    out.kernel_sends.fetch_add(1, Ordering::SeqCst);
                    (Sending::Kernel, Tell { receiver: true, sender: false })
                } else {
                    (Sending::Full, tell)
                }
            }
            other => other,
        };
        if out.goes_back() {
            // Asked for while these were published.
            self.give_back_locked(kernel);
        }
        sending
    }

    #[inline]
    fn send_by_ring(&self, kernel: &impl Kernel, from: &[IoSlice<'_>]) -> (Sending, Tell) {
        let out = self.outgoing();
        if self.hinted() || self.is_time_to_ask(kernel) {
            self.follow_hints(kernel);
        }
        if let Some(errno) = self.send_error() {
            return (Sending::Failed(errno), Tell::default());
        }
        let wanted: u64 = from.iter().map(|s| s.len() as u64).sum();
        if wanted == 0 {
            return (Sending::Done(0), Tell::default());
        }
        let wanted = wanted.min(SEND_BYTES_MAX);
        let mut large = out.layout().large;
        let mut done = 0;
        while done < wanted {
            let ring_bytes = self.slot.ring_bytes(large);
            let piece = (wanted - done).min(PUBLISH_BYTES);
            let mut free = out.free(ring_bytes, piece.min(ring_bytes));
            if free == 0 {
                if out.may_grow() && out.change_ring() {
                    large = true;
                    continue;
                }
                self.ask_for_more(large);
                // Whoever gets less than it gave may wait for room next, in whatever way.
                out.want_room();
                free = out.free(ring_bytes, 1);
                if free == 0 {
                    break;
                }
            }
            let at = out.tail.load(Ordering::Relaxed);
            let room = free.min(piece);
            let copied = self.stores.copy(
                room,
                || kernel.now_ns(),
                |how| self.slot.copy_in((self.end, large), at, from, done, room, how),
            );
            out.publish(copied);
            done += copied;
        }
        match done {
            0 => (Sending::Full, Tell::default()),
            done => (Sending::Done(done as usize), Tell { receiver: true, sender: false }),
        }
    }

    /// The ring is full: a larger one would help.
    fn ask_for_more(&self, large: bool) {
        let tail = self.outgoing().tail.load(Ordering::Relaxed);
        if !large && tail >= self.grow_at.load(Ordering::Relaxed) {
            self.grow_at.store(tail + GROW_AGAIN_BYTES, Ordering::Relaxed);
            self.wants_to_grow.store(1, Ordering::Relaxed);
        }
    }

    /// Whether the node should be asked for a larger ring; says so once.
    #[inline]
    pub(crate) fn takes_wish_to_grow(&self) -> bool {
        self.wants_to_grow.load(Ordering::Relaxed) != 0 && self.wants_to_grow.swap(0, Ordering::Relaxed) != 0
    }

    /// Why no more bytes can be sent through the ring.
    #[inline]
    fn send_error(&self) -> Option<Errno> {
        let ended = self.has_ended();
        let open = !ended
            && self.outgoing().receiver_flags.load(Ordering::Relaxed) & (Flags::CLOSED | Flags::SHUT) == 0
            && !self.kernel_reset()
            && !self.is_gone();
        if open {
            return None;
        }
        let over = || ended || self.takes_no_more() || self.reset().is_some();
        self.takes_reset().or_else(|| over().then_some(Errno::PIPE))
    }

    /// A kernel send; and, if both sides are ready for it, the last one.
    fn send_by_kernel(&self, kernel: &impl Kernel, from: &[IoSlice<'_>]) -> (Sending, Tell) {
        let out = self.outgoing();
        if out.available(self.slot.most_bytes()) > 0 && (self.hinted() || self.is_time_to_ask(kernel)) {
            // Left behind in the ring, and perhaps for ever.
            self.follow_hints(kernel);
        }
        if self.reset().is_some() {
            // The kernel has told a look of it, or knows nothing of it.
            return (Sending::Failed(self.takes_reset().unwrap_or(Errno::PIPE)), Tell::default());
        }
        let bytes: usize = from.iter().map(|s| s.len()).sum();
        if bytes == 0 || !self.may_enter_ring() {
            out.kernel_sends.fetch_add(1, Ordering::SeqCst);
            return (Sending::Kernel, Tell::default());
        }
        out.begin_change();
        if self.is_deaf() {
            out.cancel_change();
            out.kernel_sends.fetch_add(1, Ordering::SeqCst);
            return (Sending::Kernel, Tell::default());
        }
        let tell = Tell { receiver: true, sender: false };
        match kernel.send_now(from) {
            Ok(done) if done > 0 => {
                match kernel.sent() {
                    Some(boundary) => {
                        out.enter_ring(boundary);
                        kernel.no_delay();
                    }
                    None => out.cancel_change(),
                }
                (Sending::Done(done), tell)
            }
            Ok(_) | Err(Errno::AGAIN) => {
                out.cancel_change();
                (Sending::Full, tell)
            }
            Err(errno) => {
                out.cancel_change();
                (Sending::Failed(errno), tell)
            }
        }
    }

    fn may_enter_ring(&self) -> bool {
        let out = self.outgoing();
        let attached = |e: &EndWords| e.attached.load(Ordering::Acquire) == EndWords::YES;
        attached(self.other())
            && attached(self.own())
            && self.is_awaited()
            && !self.is_deaf()
            && !self.must_leave_ring()
            && out.reached() == out.announced().number
            && out.kernel_sends.load(Ordering::SeqCst) == 0
            && self.early.sends.load(Ordering::SeqCst) == 0
            && out.sender_flags.load(Ordering::Relaxed) & Flags::END == 0
            && !self.takes_no_more()
    }

    /// Whether this direction belongs into the kernel.
    #[inline]
    fn must_leave_ring(&self) -> bool {
        self.pinned.load(Ordering::Relaxed) != 0
            || self.own().pinned.load(Ordering::Relaxed) != 0
            || self.prefers_kernel()
            || self.outgoing().receiver_flags.load(Ordering::Relaxed) & Flags::WANTS_KERNEL != 0
    }

    /// A holder of this end died between the two halves of an announcement: the kernel knows how far it came.
    fn finish_change_of_the_dead(&self, kernel: &impl Kernel) {
        let out = self.outgoing();
        match kernel.sent() {
            Some(boundary) if out.announced().in_ring() => out.enter_ring(boundary),
            Some(sent) => match sent.wrapping_sub(out.ring_began.load(Ordering::Relaxed)) {
                // Nobody sends behind copies now.
                0 => out.cancel_change(),
                moved => self.finish_leaving(kernel, moved, false),
            },
            None => out.cancel_change(),
        }
    }

    /// Brings the direction to the peer back to the kernel, if it is in the ring and the peer has followed so far; says whether it is in the kernel now, and whom to
    /// tell.
    pub(crate) fn return_to_kernel(&self, me: u32, kernel: &impl Kernel) -> (bool, Tell) {
        let Some(_locked) = self.lock_out(me) else { return (false, Tell::default()) };
        let tell = Tell { receiver: true, sender: false };
        if self.outgoing().announced().pending {
            self.finish_change_of_the_dead(kernel);
        } else if !self.outgoing().announced().in_ring() {
            return (true, Tell::default());
        }
        (!self.outgoing().announced().in_ring() || self.leave_ring(kernel, false), tell)
    }

    /// Holds the sending direction in the kernel for a call of another kind. False: it is in the ring.
    pub(crate) fn begin_kernel_send(&self, me: u32) -> bool {
        let Some(_locked) = self.lock_out(me) else { return false };
        let now = self.outgoing().announced();
        if now.in_ring() || now.pending || self.reset().is_some() {
            return false;
        }
        self.outgoing().kernel_sends.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Ends a counted kernel send.
    pub(crate) fn end_kernel_send(&self) {
        self.outgoing().kernel_sends.fetch_sub(1, Ordering::SeqCst);
    }

    /// Receives bytes.
    pub(crate) fn receive(
        &self,
        me: u32,
        kernel: &impl Kernel,
        buffers: &mut [IoSliceMut<'_>],
        take: bool,
    ) -> (Receiving, Tell) {
        let Some(_locked) = self.lock_in(me) else { return (self.while_lent(me, &self.view), Tell::default()) };
        loop {
            let other = match self.bytes_in_ring(kernel) {
                Ok(available) => {
                    let received = self.take_from_ring(kernel, buffers, available, take);
                    if self.hinted() && self.owes() {
                        // It may be the last call for long.
                        self.give_back(me, kernel);
                    }
                    return received;
                }
                Err(Receiving::Kernel) if self.awaits_way_back() => Some(self.no_way_back_yet(kernel)),
                Err(Receiving::Kernel) if self.begin_kernel_receive() => Some(Receiving::Kernel),
                Err(Receiving::Kernel) => self.receive_from_kernel(kernel, buffers, take),
                Err(other) => Some(other),
            };
            if let Some(other) = other {
                if self.owes() {
                    // Whoever waits for an answer may have to send the question another way.
                    self.give_back(me, kernel);
                }
                return (other, Tell::default());
            }
        }
    }

    /// Bytes in the ring, if it is the ring that is to be read and there are any; what is to be done otherwise. The caller has the lock.
    #[inline]
    fn bytes_in_ring(&self, kernel: &impl Kernel) -> Result<u64, Receiving> {
        loop {
            if !self.incoming().reads_ring() && !self.follow_into_ring(kernel) {
                return Err(Receiving::Kernel);
            }
            let available = self.incoming().available(self.slot.most_bytes());
            if available > 0 {
                return Ok(available);
            }
            match self.empty_ring(kernel) {
                Some(Receiving::Done(1)) => continue,
                Some(other) => return Err(other),
                None => return Err(Receiving::Empty),
            }
        }
    }

    #[inline]
    fn take_from_ring(
        &self,
        kernel: &impl Kernel,
        buffers: &mut [IoSliceMut<'_>],
        available: u64,
        take: bool,
    ) -> (Receiving, Tell) {
        let into = self.incoming();
        let layout = into.layout();
        let head = into.head.load(Ordering::Relaxed);
        self.heard(|| kernel.now_ns());
        if self.ask_pause.load(Ordering::Relaxed) != HEARD {
            self.ask_pause.store(HEARD, Ordering::Relaxed);
        }
        let (mut done, mut room) = (0, false);
        while done < available {
            let at = head.wrapping_add(done);
            let (large, piece) = self.lie_in(layout, at, (available - done).min(TAKE_BYTES));
            let copied = self.slot.copy_out(1 - self.end, large, at, buffers, done, piece);
            done += copied;
            room |= take && copied > 0 && into.consume(copied, self.slot.ring_bytes(layout.large));
            if copied < piece {
                break;
            }
        }
        (Receiving::Done(done as usize), Tell { receiver: false, sender: room })
    }

    /// In which ring the bytes from `at` on lie, and how many of `most` of them do.
    #[inline]
    fn lie_in(&self, layout: Layout, at: u64, most: u64) -> (bool, u64) {
        let (large, bytes) = match layout.bytes_before(at) {
            0 => (layout.large, most),
            before => (!layout.large, before.min(most)),
        };
        (large, bytes.min(self.slot.ring_bytes(large)))
    }

    /// In the kernel; none: look again, it has changed. Never waits, and the caller has the lock: so nobody is in the kernel for bytes of this epoch when the next one
    /// begins, and a receiver that is killed leaves nothing behind.
    fn receive_from_kernel(&self, kernel: &impl Kernel, into: &mut [IoSliceMut<'_>], take: bool) -> Option<Receiving> {
        let before = self.incoming().phase();
        match self.read_copies(kernel) {
            Copies::Gone => {}
            Copies::Coming => return Some(self.nothing_came().unwrap_or(Receiving::Empty)),
            Copies::Amiss if self.reset_told.swap(1, Ordering::Relaxed) == 0 => {
                return Some(Receiving::Failed(Errno::CONNRESET));
            }
            Copies::Amiss => return Some(Receiving::Done(0)),
        }
        Some(match kernel.receive_now(into, take) {
            Ok(bytes @ 1..) => {
                self.heard(|| kernel.now_ns());
                Receiving::OfKernel(bytes)
            }
            // The last bytes came between the two looks; or these were the last, and others have them.
            Err(Errno::AGAIN) if self.incoming().phase() != before => return None,
            Err(Errno::AGAIN) => self.nothing_came().unwrap_or(Receiving::Empty),
            // Nobody asked for bytes.
            Ok(_) if into.iter().all(|s| s.is_empty()) => Receiving::Done(0),
            // The kernel says so once, and has said it to a look.
            Ok(_) if self.owes_reset() && self.reset_told.swap(1, Ordering::Relaxed) == 0 => {
                Receiving::Failed(Errno::CONNRESET)
            }
            // The ring may be next, and what says so under way.
            Ok(_) if !self.is_all_here(kernel) => self.nothing_came().unwrap_or(Receiving::Empty),
            // Or it came just now, before the word that all is here.
            Ok(_) if self.incoming().phase() != before => return None,
            // Also while a change is pending: whoever announced it has died over it.
            Ok(_) => self.end_in_kernel(kernel),
            Err(errno) => Receiving::Failed(errno),
        })
    }

    /// The kernel's stream has ended. That is a reset of which the kernel knows nothing, if the other
    /// end has died with bytes unread in the ring.
    #[cold]
    fn end_in_kernel(&self, kernel: &impl Kernel) -> Receiving {
        self.ask_kernel.store(1, Ordering::Relaxed);
        self.follow_hints(kernel);
        match self.reset() {
            Some(Errno::CONNRESET) => self.takes_reset().map_or(Receiving::Done(0), Receiving::Failed),
            _ => Receiving::Done(0),
        }
    }

    /// In the kernel: whether its bytes are drained and the ring is next.
    fn follow_into_ring(&self, kernel: &impl Kernel) -> bool {
        let into = self.incoming();
        if into.goes_back() {
            return false;
        }
        let mut looks = 0;
        loop {
            match into.phase() {
                Phase::Steady => return false,
                // Not for ever: whoever announces it may have been stopped or killed over it.
                Phase::Pending if looks >= PENDING_LOOKS => return false,
                Phase::Pending => {
                    looks += 1;
                    std::hint::spin_loop();
                    if looks % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
                Phase::EndsAt(boundary) => {
                    let drained =
                        kernel.received().is_some_and(|(received, unread)| unread == 0 && received >= boundary);
                    if drained {
                        into.kernel_read.store(boundary, Ordering::Relaxed);
                        into.copies.store(0, Ordering::Relaxed);
                        into.reach_next();
                        self.followed();
                    }
                    return drained;
                }
            }
        }
    }

    /// Whether everything of the kernel phase was read and the ring has taken over: what [`receive`](Self::receive) would find out. None of it waits.
    pub(crate) fn follow(&self, me: u32, kernel: &impl Kernel) {
        if self.incoming().phase() != Phase::Steady || self.expects_copies() {
            if let Some(_locked) = self.lock_in(me) {
                if self.incoming().reads_ring() {
                    self.leave_drained_ring();
                } else {
                    self.follow_into_ring(kernel);
                }
                if !self.incoming().reads_ring() {
                    self.read_copies(kernel);
                }
            }
        }
    }

    /// The ring is empty: `Done(1)` to look again, anything else is the result, none: nothing is there.
    fn empty_ring(&self, kernel: &impl Kernel) -> Option<Receiving> {
        let into = self.incoming();
        if self.leave_drained_ring() {
            return Some(Receiving::Done(1));
        }
        if into.phase() == Phase::Pending {
            // It is just being left, by somebody who may have died over it.
            self.ask_kernel.store(1, Ordering::Relaxed);
        }
        let flags = into.sender_flags.load(Ordering::Acquire);
        let shut = into.receiver_flags.load(Ordering::Relaxed) & Flags::SHUT != 0;
        if shut {
            // What comes after the own end is answered by a reset, of which only the kernel tells.
            self.ask_kernel.store(1, Ordering::Relaxed);
        }
        if flags == 0 || shut {
            self.is_time_to_ask(kernel);
            self.follow_hints(kernel);
        }
        if flags == 0 && !shut && self.kernel_end.load(Ordering::Relaxed) == 0 {
            return self.nothing_came();
        }
        // What was published before the end was announced counts.
        fence(Ordering::SeqCst);
        if into.available(self.slot.most_bytes()) > 0 {
            return Some(Receiving::Done(1));
        }
        // A reset that came after the end is told to who sends.
        match self.reset() {
            Some(Errno::CONNRESET) => Some(self.takes_reset().map_or(Receiving::Done(0), Receiving::Failed)),
            _ => Some(Receiving::Done(0)),
        }
    }

    /// Has the kernel asked now and then without a hint, for a node that is stopped or gone gives none.
    /// Says whether it is time. Bytes that came since the last time tell as much, if that was just now:
    /// who sent them was alive, so a connection that is busy both ways costs no system call.
    pub(crate) fn is_time_to_ask(&self, kernel: &impl Kernel) -> bool {
        let (now, at) = (kernel.coarse_ns(), self.ask_at.load(Ordering::Relaxed));
        if now < at {
            return false;
        }
        let pause = self.ask_pause.load(Ordering::Relaxed);
        let silent = pause != HEARD || now - at >= ASK_PAUSE_NS;
        let pause = pause.clamp(ASK_PAUSE_NS, ASK_PAUSE_NS_MAX);
        self.ask_at.store(now + pause, Ordering::Relaxed);
        self.ask_pause.store(if silent { pause * 2 } else { pause }, Ordering::Relaxed);
        if silent {
            self.ask_kernel.store(1, Ordering::Relaxed);
        }
        silent
    }

    /// Asks the kernel about the other end if somebody said that it is worth it.
    pub(crate) fn follow_hints(&self, kernel: &impl Kernel) {
        let hint = self.own().hint.load(Ordering::Acquire);
        let hinted = self.hints_seen.swap(hint, Ordering::Relaxed) != hint;
        let asked = self.ask_kernel.load(Ordering::Relaxed) != 0 && self.ask_kernel.swap(0, Ordering::Relaxed) != 0;
        if !hinted && !asked {
            return;
        }
        let in_ring = self.incoming().reads_ring();
        let shut = self.incoming().receiver_flags.load(Ordering::Relaxed) & Flags::SHUT != 0;
        let look = match kernel.look() {
            // It may be the own end that the kernel speaks of.
            End::Ended if shut && !kernel.peer_ended() => End::Open,
            look => look,
        };
        let over = match look {
            End::Open => false,
            End::Ended | End::Reset(_) => true,
            End::Bytes => kernel.peer_ended(),
        };
        if over && !matches!(look, End::Reset(_)) && !self.is_all_here(kernel) {
            // Asked again when the other node has answered.
            return;
        }
        let dead = self.other().dead.load(Ordering::Acquire) != 0;
        self.careful.store(u32::from(dead && !over), Ordering::Relaxed);
        match look {
            End::Reset(_) => self.kernel_says(RESET),
            End::Ended if in_ring => self.kernel_says(ENDED),
            // Copies of a sending end that died over leaving the ring, which has them all.
            End::Bytes if in_ring && over && self.incoming().phase() == Phase::Pending => {
                self.kernel_says(ENDED);
            }
            // Bytes behind the announced end of the kernel's part were sent by somebody who does not know of the ring: the stream cannot be told any more.
            End::Bytes if in_ring && self.between.is_none() && self.incoming().phase() == Phase::Steady => {
                self.kernel_says(RESET);
            }
            _ => {}
        }
        if over && (dead || self.is_unannounced(in_ring)) {
            let out = self.outgoing();
            // What was asked back is in the kernel once the direction has left the ring.
            let unread = (out.announced().in_ring() || !out.goes_back()) && out.available(self.slot.most_bytes()) > 0;
            if unread && self.kernel_end.load(Ordering::Relaxed) != RESET {
                // Its kernel knew of nothing unread, and ended in order.
                self.unread_at_death.store(1, Ordering::Relaxed);
            }
            self.gone.store(1, Ordering::Release);
        }
        if over && self.kernel_end.load(Ordering::Relaxed) == 0 {
            // Not to be told yet: bytes come first, or a change of medium.
            self.ask_kernel.store(1, Ordering::Relaxed);
        }
    }

    /// [`ENDED`], or [`RESET`]: which stays, whatever a later look is told.
    fn kernel_says(&self, what: u32) {
        self.kernel_end.fetch_max(what, Ordering::Relaxed);
    }

    /// Whether an end of which the kernel speaks was announced by nobody: the other end did not close,
    /// it died. Whatever announces an end does so before its kernel's socket ends.
    fn is_unannounced(&self, in_ring: bool) -> bool {
        let flags = self.incoming().sender_flags.load(Ordering::Acquire);
        let reader = self.outgoing().receiver_flags.load(Ordering::Acquire);
        if self.is_between() {
            // Libraries of an earlier release may run on the other node, and say nothing of an end in
            // the kernel.
            let stays = !matches!(self.incoming().phase(), Phase::EndsAt(_));
            return in_ring && stays && flags == 0;
        }
        // Whoever has asked for the kernel may have handed the end to a program that announces nothing.
        flags == 0 && reader & (Flags::CLOSED | Flags::ENDED | Flags::GIVE_BACK) == 0
    }

    /// Whether a hint waits to be followed.
    #[inline]
    pub(crate) fn hinted(&self) -> bool {
        self.own().hint.load(Ordering::Relaxed) != self.hints_seen.load(Ordering::Relaxed)
            || self.ask_kernel.load(Ordering::Relaxed) != 0
    }

    /// Whether a receive is worth trying, as far as the shared words tell.
    #[inline]
    pub(crate) fn looks_readable(&self) -> bool {
        let into = self.incoming();
        into.tail.load(Ordering::Acquire) != into.head.load(Ordering::Relaxed)
            || into.sender_flags.load(Ordering::Relaxed) != 0
            || into.phase() != Phase::Steady
            || into.receiver_flags.load(Ordering::Relaxed) & (Flags::SHUT | Flags::GIVE_BACK) != 0
            || self.kernel_end.load(Ordering::Relaxed) != 0
            || self.hinted()
            || self.is_broken()
    }

    /// Whether a thread that sleeps until the ring has something should go on: also when another thread has followed the direction into the kernel, or has heard first that all
    /// is here.
    pub(crate) fn ends_sleep(&self) -> bool {
        self.looks_readable() || !self.incoming().reads_ring() && !self.waits_for_the_rest()
    }

    /// Whether a send is worth trying, as far as the shared words tell.
    #[inline]
    pub(crate) fn looks_writable(&self) -> bool {
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

    /// No bytes come from this end any more.
    pub(crate) fn end_sending(&self, me: u32, kernel: &impl Kernel) -> Tell {
        self.incoming().receiver_flags.fetch_or(Flags::ENDED, Ordering::SeqCst);
        let Some(_locked) = self.lock_out(me) else { return Tell::default() };
        let pending = self.outgoing().announced().pending;
        if pending {
            // Whoever sends next would finish it, and nobody does: the peer would take this for a death.
            self.finish_change_of_the_dead(kernel);
        }
        let in_ring = self.outgoing().announced().in_ring();
        if in_ring {
            self.outgoing().sender_flags.fetch_or(Flags::END, Ordering::SeqCst);
        } else {
            // Nor by a holder that begins to enter the ring now and dies over it: the end is the kernel's.
            self.own().pinned.store(1, Ordering::SeqCst);
        }
        Tell { receiver: in_ring || pending, sender: false }
    }

    /// This process had ended its direction before the words were there: the end is the kernel's.
    pub(crate) fn has_ended_before(&self) {
        self.incoming().receiver_flags.fetch_or(Flags::ENDED, Ordering::SeqCst);
        self.own().pinned.store(1, Ordering::SeqCst);
    }

    /// Whether the kernel is about to reset the connection at the close, for bytes of it are unread,
    /// and the other end looks at the ring.
    pub(crate) fn leaves_unread_in_kernel(&self, kernel: &impl Kernel) -> bool {
        self.outgoing().announced().in_ring()
            && !self.incoming().reads_ring()
            && !self.expects_copies()
            && kernel.look() == End::Bytes
    }

    /// One holder less; the last one closes this end, and is told how.
    pub(crate) fn let_go(&self, how: Close) -> (Option<Close>, Tell) {
        if self.own().holders.fetch_sub(1, Ordering::SeqCst) != 1 {
            return (None, Tell::default());
        }
        let into = self.incoming();
        let in_ring = into.reads_ring() || into.announced().in_ring() && !into.goes_back();
        let unread = in_ring && into.available(self.slot.most_bytes()) > 0;
        let how = if unread { Close::Reset } else { how };
        let out = self.outgoing();
        if out.announced().in_ring() {
            let ended = out.sender_flags.load(Ordering::Relaxed) & Flags::END != 0;
            let flags = match how {
                Close::Orderly => Flags::END,
                Close::Reset if ended => Flags::RESET | Flags::RESET_AFTER_END,
                Close::Reset => Flags::END | Flags::RESET,
            };
            out.sender_flags.fetch_or(flags, Ordering::SeqCst);
        }
        self.incoming().receiver_flags.fetch_or(Flags::CLOSED, Ordering::SeqCst);
        (Some(how), Tell { receiver: true, sender: true })
    }

    /// Whether this process is not the last holder.
    pub(crate) fn others_hold(&self) -> bool {
        self.own().holders.load(Ordering::SeqCst) > 1
    }

    /// One holder less, unless it is the last.
    pub(crate) fn leave_to_others(&self) -> bool {
        let less = |n: u32| (n > 1).then(|| n - 1);
        self.own().holders.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    /// Whether this end has ended its own direction.
    pub(crate) fn has_ended(&self) -> bool {
        self.outgoing().sender_flags.load(Ordering::Relaxed) & Flags::END != 0
    }

    /// Whether the kernel reported an end or a reset: 0, [`ENDED`] or [`RESET`].
    pub(crate) fn kernel_reset(&self) -> bool {
        self.kernel_end.load(Ordering::Relaxed) == RESET
    }

    /// Whether the other end reads no more, and a kernel would answer what comes by a reset.
    pub(crate) fn takes_no_more(&self) -> bool {
        let reader = self.outgoing().receiver_flags.load(Ordering::Acquire);
        let ended =
            || reader & Flags::ENDED != 0 || self.incoming().sender_flags.load(Ordering::Acquire) & Flags::END != 0;
        reader & Flags::CLOSED != 0 || self.is_gone() || reader & Flags::SHUT != 0 && ended()
    }

    /// Whether that is all: the other end has closed or died in order, so its kernel's socket says
    /// what follows.
    pub(crate) fn has_closed_in_order(&self) -> bool {
        self.takes_no_more() && self.reset().is_none()
    }

    /// The reset that a kernel would have received, if any: `EPIPE` after the end, `ECONNRESET`
    /// without one. Who dies with bytes unread resets the connection, as who closes so.
    pub(crate) fn reset(&self) -> Option<Errno> {
        let flags = self.incoming().sender_flags.load(Ordering::Acquire);
        let died = self.unread_at_death.load(Ordering::Relaxed) != 0;
        let ended = || self.outgoing().receiver_flags.load(Ordering::Acquire) & Flags::ENDED != 0;
        let after_end = flags & Flags::RESET_AFTER_END != 0 || died && (flags & Flags::END != 0 || ended());
        let reset = flags & Flags::RESET != 0 || self.kernel_reset() || died;
        reset.then_some(if after_end { Errno::PIPE } else { Errno::CONNRESET })
    }

    /// A reset that was not reported yet; it is from now on.
    pub(crate) fn takes_reset(&self) -> Option<Errno> {
        self.reset().filter(|_| self.reset_told.swap(1, Ordering::Relaxed) == 0)
    }

    /// The same, and no call has reported it.
    pub(crate) fn owes_reset(&self) -> bool {
        self.kernel_reset() && !self.reset_was_told()
    }

    /// Whether the kernel says that the other end sends no more.
    pub(crate) fn kernel_ended(&self) -> bool {
        self.kernel_end.load(Ordering::Relaxed) != 0
    }
    /// Whether the other end has died.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) != 0
    }

    /// A system call has reported the reset.
    pub(crate) fn kernel_told_reset(&self) {
        self.reset_told.store(1, Ordering::Relaxed);
    }

    /// Whether a call has reported the reset.
    pub(crate) fn reset_was_told(&self) -> bool {
        self.reset_told.load(Ordering::Relaxed) != 0
    }
}

fn is_empty(slices: &[IoSlice<'_>]) -> bool {
    slices.iter().all(|s| s.is_empty())
}

mod back;
mod between;
mod leave;
mod loans;
mod pace;
pub mod simulation;
pub(crate) use back::WayBack;
use between::Between;
use leave::{Copies, Full};
pub(crate) use loans::Loan;

#[cfg(test)]
mod tests;
