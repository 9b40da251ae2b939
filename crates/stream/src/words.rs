//! The shared words of one connection, and the agreements on them that need no lock.
//!
//! A direction is a sequence of **epochs**: kernel, ring, kernel … The sending end announces the
//! next epoch with the byte at which the present one ends, and may not announce another before the
//! receiving end has reached it. While it makes the last kernel send the announcement is
//! **pending**: the bytes of that send wake a receiver that sleeps in the kernel, and by then it
//! sees that more is to be known.
//!
//! Until the receiving end has followed into the ring, the sending end may **spill**: move the
//! first bytes of the ring into the kernel's part in front of it, which ends later then; or all of
//! them, and **withdraw** the ring: then the kernel's part does not end.
//!
//! The ring of a direction is one of two, a small and a large one. The sending end says from which
//! byte on which of them holds the stream ([`Layout`]), and does not say so again before the
//! receiving end is past that byte: so positions in front of it lie in the other one.
//!
//! Invariant: `head <= tail <= head + ring bytes` as far as both sides are honest; `epoch of the
//! receiver <= epoch announced <= epoch of the receiver + 1`. Sleeper and waker, and setter and
//! taker of bits, are Dekker's pattern (see [`handshake`](vmmc_host::handshake)); loom explores
//! them.

use crate::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// An epoch of a direction: odd ones are in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Counted from 0, which is the kernel.
    pub number: u64,
    /// Whether it is only about to begin.
    pub pending: bool,
}

impl Epoch {
    /// Whether the ring carries it.
    pub fn in_ring(self) -> bool {
        self.number % 2 == 1
    }

    fn to_word(self) -> u64 {
        self.number << 1 | u64::from(self.pending)
    }

    fn from_word(word: u64) -> Epoch {
        Epoch { number: word >> 1, pending: word & 1 != 0 }
    }
}

/// What the receiving end must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Read the present medium; no change is announced.
    Steady,
    /// A change is about to be announced: read again.
    Pending,
    /// The kernel's part ends at this byte, counted since connect. The ring's part ends at its
    /// tail, and what is here is a [`Left`].
    EndsAt(u64),
}

/// Which of the two rings of a direction holds the bytes from a position on; those in front of it
/// lie in the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The position; 63 bits of it.
    pub from: u64,
    /// The large one.
    pub large: bool,
}

impl Layout {
    fn to_word(self) -> u64 {
        self.from << 1 | u64::from(self.large)
    }

    fn from_word(word: u64) -> Layout {
        Layout { from: word >> 1, large: word & 1 != 0 }
    }

    /// How many bytes from `position` on lie in the ring that is not the present one; 0: it is in
    /// the present one.
    #[inline]
    pub fn bytes_before(self, position: u64) -> u64 {
        let ahead = self.from.wrapping_sub(position) << 1;
        if (ahead as i64) > 0 { ahead >> 1 } else { 0 }
    }
}

/// How a direction left the ring: what of it is in the kernel as well, in front of what was sent
/// there next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// So many bytes in front of the tail this is, and that many bytes in the kernel are copies; 63
    /// bits of it.
    pub from: u64,
    /// They are the ring's bytes from here on. Otherwise the kernel took the first of the unread
    /// bytes and not the last.
    pub whole: bool,
}

impl Left {
    fn to_word(self) -> u64 {
        self.from << 1 | u64::from(self.whole)
    }

    fn from_word(word: u64) -> Left {
        Left { from: word >> 1, whole: word & 1 != 0 }
    }

    /// How many of the copies are of bytes in front of `position`; more than any ring has if that
    /// is in front of all of them.
    pub fn copies_before(self, position: u64) -> u64 {
        position.wrapping_sub(self.from) << 1 >> 1
    }
}

/// Bits of [`DirectionWords::sender_flags`] and [`DirectionWords::receiver_flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags;

impl Flags {
    /// Sender: no bytes come after the tail.
    pub const END: u32 = 1;
    /// Sender: the connection was reset.
    pub const RESET: u32 = 2;
    /// Sender: the reset came after the end, which the other end had seen by then.
    pub const RESET_AFTER_END: u32 = 16;
    /// Receiver: takes no more bytes.
    pub const CLOSED: u32 = 1;
    /// Receiver: has ended its direction itself (`SHUT_RD`).
    pub const SHUT: u32 = 4;
    /// Receiver: asks the sender to use the kernel.
    pub const WANTS_KERNEL: u32 = 2;
    /// Receiver: reads the kernel only, from here on and for good; the sender is to put what is
    /// unread in the ring into the kernel.
    pub const FLUSH_TO_KERNEL: u32 = 8;
    /// Receiver: has ended the direction in which it sends, in whatever medium that is. So its
    /// kernel's end there is no death.
    pub const ENDED: u32 = 16;
}

vmmc_host::words! {
    /// A word on which blocking calls sleep. An announcement is only taken by a thread that wakes
    /// all sleepers: a stale one costs a wake-up in vain, a lost one would cost a hang.
    pub transparent struct SleepWord(pub(crate) AtomicU32);
}

impl SleepWord {
    /// Announces a sleep; poll once more afterwards.
    #[inline]
    pub fn announce(&self) {
        self.0.swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether somebody sleeps; takes the announcement. The caller has published and passed a full
    /// fence.
    #[inline]
    pub fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::SeqCst) != 0
    }
}

vmmc_host::words! {
    /// One direction of a connection. Lines are grouped by who writes them.
    pub struct DirectionWords {
        /// Line of the sending end. Bytes put into the ring, counted from its first use.
        pub tail: AtomicU64,
        epoch: AtomicU64,
        boundary: AtomicU64,
        layout: AtomicU64,
        /// [`Flags::END`], [`Flags::RESET`].
        pub sender_flags: AtomicU32,
        _pad0: [AtomicU32; 7],
        /// Line of the receiving end. Bytes taken out of the ring.
        pub head: AtomicU64,
        reached: AtomicU64,
        _pad1: [AtomicU64; 6],
        /// Line that the receiving end writes when it goes to sleep or changes its mind, and the
        /// sending end reads after each send.
        pub receiver_sleep: SleepWord,
        /// [`Flags::CLOSED`], [`Flags::WANTS_KERNEL`].
        pub receiver_flags: AtomicU32,
        /// Event loops of the receiving end ([`Watch`](crate::Watch) words, 0: none).
        pub receiver_watch: [AtomicU64; 4],
        _pad2: [AtomicU64; 3],
        /// The same for the sending end, which waits for room. Set when it found none: the
        /// receiving end says so once half of the ring is free.
        pub sender_sleep: SleepWord,
        /// Whether anybody at the sending end, sleeping or not, wants to be notified of room.
        pub sender_wants_room: AtomicU32,
        /// Event loops of the sending end.
        pub sender_watch: [AtomicU64; 4],
        _pad3: [AtomicU64; 3],
        /// Line private to the holders of the sending end: its lock, the head as last seen, kernel
        /// calls under way, how it entered and leaves the ring.
        pub sender_lock: AtomicU32,
        /// Kernel sends under way by holders of the sending end.
        pub kernel_sends: AtomicU32,
        /// A past value of `head`.
        pub head_seen: AtomicU64,
        /// Written by the node: the large ring has memory.
        pub large_granted: AtomicU32,
        _pad4: AtomicU32,
        /// Byte of the kernel's stream at which the ring took over, while the ring has the
        /// direction.
        pub ring_began: AtomicU64,
        /// The head as it was seen when the direction began to leave the ring, or to
        /// [spill](Self::begin_spill).
        pub leaves_from: AtomicU64,
        /// Byte of the kernel's stream behind which bytes are spilled.
        pub spills_behind: AtomicU64,
        /// Who may change what is in front of the ring: [`SPILLS`](Self::SPILLS),
        /// [`FOLLOWS`](Self::FOLLOWS), or nobody.
        front: AtomicU32,
        _pad5: [AtomicU32; 3],
        /// Line private to the holders of the receiving end. Its lock, also for receives from the
        /// kernel: one that comes late would take bytes of a later epoch.
        pub receiver_lock: AtomicU32,
        /// Between nodes: receives from the kernel under way that nothing but bytes ends.
        pub kernel_receives: AtomicU32,
        /// Byte of the kernel's stream up to which it was read when the ring took over.
        pub kernel_read: AtomicU64,
        /// Byte of the kernel's stream up to which it holds copies of what was read from the ring.
        pub copies_until: AtomicU64,
        /// How many of them are to be read away; with [`READS_COPIES`](Self::READS_COPIES) while
        /// somebody is at it.
        pub copies: AtomicU64,
        _pad6: [AtomicU32; 8],
    }
}

impl DirectionWords {
    /// Set in [`copies`](Self::copies) for the length of a read.
    pub const READS_COPIES: u64 = 1 << 63;

    /// A byte at which no kernel's part ends.
    const NEVER: u64 = u64::MAX;

    /// The sending end puts bytes of the ring into the kernel's part.
    const SPILLS: u32 = 1;
    /// The receiving end has read all of the kernel's part, and goes on in the ring.
    const FOLLOWS: u32 = 2;

    /// What the sending end has announced.
    #[inline]
    pub fn announced(&self) -> Epoch {
        Epoch::from_word(self.epoch.load(Ordering::Acquire))
    }

    /// What the receiving end has reached.
    #[inline]
    pub fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Sending end: says that a change comes, before its last send in the present medium. Only when
    /// the receiving end has reached the present epoch.
    pub fn begin_change(&self) {
        let now = self.announced();
        let next = Epoch { number: now.number + 1, pending: true };
        self.epoch.store(next.to_word(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Sending end: the change does not happen after all.
    pub fn cancel_change(&self) {
        let now = self.announced();
        let back = Epoch { number: now.number.saturating_sub(1), pending: false };
        self.epoch.store(back.to_word(), Ordering::SeqCst);
    }

    /// Sending end: the present medium has ended at `boundary`; the next send uses the next one.
    pub fn change(&self, boundary: u64) {
        let now = self.announced();
        let number = if now.pending { now.number } else { now.number + 1 };
        self.boundary.store(boundary, Ordering::Relaxed);
        self.epoch.store(Epoch { number, pending: false }.to_word(), Ordering::SeqCst);
    }

    /// Sending end: the ring takes over at this byte of the kernel's stream.
    pub fn enter_ring(&self, kernel_byte: u64) {
        self.ring_began.store(kernel_byte, Ordering::Relaxed);
        self.front.store(0, Ordering::Relaxed);
        self.change(kernel_byte);
    }

    /// Sending end, whose receiving end has not followed into the ring yet: the first bytes of the
    /// ring are about to go into the kernel, behind its part, which ends later then. False: the
    /// receiving end follows just now.
    pub fn begin_spill(&self) -> bool {
        self.leaves_from.store(self.head.load(Ordering::Acquire), Ordering::Relaxed);
        self.spills_behind.store(self.ring_began.load(Ordering::Relaxed), Ordering::Relaxed);
        let now = self.announced();
        self.epoch.store(Epoch { pending: true, ..now }.to_word(), Ordering::SeqCst);
        let begun = self.front.compare_exchange(0, Self::SPILLS, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !begun {
            self.epoch.store(now.to_word(), Ordering::SeqCst);
        }
        begun
    }

    /// Whether somebody is at it, or died over it.
    pub fn is_spilling(&self) -> bool {
        self.front.load(Ordering::Acquire) == Self::SPILLS
    }

    /// Sending end: so many bytes are in the kernel now. Also called for a maker that has died.
    pub fn end_spill(&self, moved: u64) {
        let boundary = self.spills_behind.load(Ordering::Relaxed).wrapping_add(moved);
        self.skip_spilled(moved);
        self.ring_began.store(boundary, Ordering::Relaxed);
        self.change(boundary);
        self.end_front();
    }

    /// Sending end, instead of [`end_spill`](Self::end_spill): the kernel has all that was in the
    /// ring, so many bytes, and goes on as if the ring had never been announced. The last word of
    /// this end about a ring.
    pub fn withdraw_ring(&self, moved: u64) {
        self.skip_spilled(moved);
        // Not where it was if nothing was moved: a receiving end that saw the announcement would
        // follow once nobody spills.
        self.boundary.store(Self::NEVER, Ordering::Relaxed);
        self.cancel_change();
        self.end_front();
    }

    /// Sending end: the receiving end may follow again, or need not. Also called for a maker that
    /// died when it had announced how the spill ended.
    pub fn end_front(&self) {
        let _ = self.front.compare_exchange(Self::SPILLS, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Unless it was done: by the other end of one that died over it, which may be past them.
    fn skip_spilled(&self, moved: u64) {
        let from = self.leaves_from.load(Ordering::Relaxed);
        let to = from.wrapping_add(moved);
        let _ = self.head.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Receiving end that has read the kernel's part up to this boundary: whether it may follow
    /// into the ring. False: that part ends later.
    pub fn may_follow(&self, boundary: u64) -> bool {
        match self.front.compare_exchange(0, Self::FOLLOWS, Ordering::SeqCst, Ordering::SeqCst) {
            // Or it was one of its holders that died.
            Ok(_) | Err(Self::FOLLOWS) => {}
            Err(_) => return false,
        }
        let may = self.boundary.load(Ordering::Relaxed) == boundary;
        if !may {
            self.front.store(0, Ordering::SeqCst);
        }
        may
    }

    /// Receiving end that has read all that the kernel will ever have, up to this byte: the
    /// spilling ended there.
    pub fn follow_spilled(&self, until: u64) {
        self.front.store(Self::FOLLOWS, Ordering::SeqCst);
        self.skip_spilled(until.wrapping_sub(self.spills_behind.load(Ordering::Relaxed)));
    }

    /// Sending end: the ring has ended.
    pub fn leave_ring(&self, left: Left) {
        self.change(left.to_word());
    }

    /// Receiving end: how the ring was left, when [`phase`](Self::phase) or
    /// [`announced`](Self::announced) says that it was.
    #[inline]
    pub fn left(&self) -> Left {
        Left::from_word(self.boundary.load(Ordering::Relaxed))
    }

    /// Receiving end: what is announced beyond what it has reached.
    #[inline]
    pub fn phase(&self) -> Phase {
        let announced = self.announced();
        if announced.number == self.reached.load(Ordering::Relaxed) || self.goes_back() {
            return Phase::Steady;
        }
        if announced.pending {
            return Phase::Pending;
        }
        Phase::EndsAt(self.boundary.load(Ordering::Relaxed))
    }

    /// Receiving end: the present medium is drained.
    pub fn reach_next(&self) {
        let next = self.reached.load(Ordering::Relaxed) + 1;
        self.reached.store(next, Ordering::Release);
    }

    /// Receiving end: whether it reads the ring.
    #[inline]
    pub fn reads_ring(&self) -> bool {
        self.reached.load(Ordering::Relaxed) % 2 == 1 && !self.goes_back()
    }

    /// Whether the receiving end has asked for what is in the ring by the kernel. The head that is
    /// read after this said so is the last one.
    #[inline]
    pub fn goes_back(&self) -> bool {
        self.receiver_flags.load(Ordering::Acquire) & Flags::FLUSH_TO_KERNEL != 0
    }

    /// Bytes in the ring of `ring_bytes` that wait for the receiving end; a wrong claim of the
    /// other side becomes a full ring.
    #[inline]
    pub fn available(&self, ring_bytes: u64) -> u64 {
        let tail = self.tail.load(Ordering::Acquire);
        tail.wrapping_sub(self.head.load(Ordering::Relaxed)).min(ring_bytes)
    }

    /// Where the bytes of the direction lie. What the receiving end finds after it saw the tail
    /// holds for all bytes up to that tail.
    #[inline]
    pub fn layout(&self) -> Layout {
        Layout::from_word(self.layout.load(Ordering::Acquire))
    }

    /// Sending end, or who holds its lock: from the tail on the bytes lie in the other ring. False:
    /// the receiving end is not past the last such change.
    pub fn change_ring(&self) -> bool {
        let now = self.layout();
        if now.bytes_before(self.head.load(Ordering::Acquire)) > 0 {
            return false;
        }
        let next = Layout { from: self.tail.load(Ordering::Relaxed), large: !now.large };
        self.layout.store(next.to_word(), Ordering::Release);
        true
    }

    /// Whether the sending end could go on in a larger ring.
    #[inline]
    pub fn may_grow(&self) -> bool {
        self.large_granted.load(Ordering::Relaxed) != 0 && !self.layout().large
    }

    /// Free bytes of the ring as the sending end sees them; reads the other side's line only if it
    /// knows of less than `wanted`.
    #[inline]
    pub fn free(&self, ring_bytes: u64, wanted: u64) -> u64 {
        let tail = self.tail.load(Ordering::Relaxed);
        let free = |head: u64| ring_bytes - tail.wrapping_sub(head).min(ring_bytes);
        let known = free(self.head_seen.load(Ordering::Relaxed));
        if known >= wanted {
            return known;
        }
        let head = self.head.load(Ordering::Acquire);
        self.head_seen.store(head, Ordering::Relaxed);
        free(head)
    }

    /// Sending end: makes `len` more bytes visible, and passes the fence that the check for
    /// sleepers needs.
    #[inline]
    pub fn publish(&self, len: u64) {
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(len), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Receiving end: gives `len` bytes back. True: the sending end waits for room and there is
    /// enough to notify it.
    #[inline]
    pub fn consume(&self, len: u64, ring_bytes: u64) -> bool {
        let head = self.head.load(Ordering::Relaxed).wrapping_add(len);
        self.head.store(head, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sender_wants_room.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let used = self.tail.load(Ordering::Relaxed).wrapping_sub(head);
        used <= ring_bytes / 2 && self.sender_wants_room.swap(0, Ordering::SeqCst) != 0
    }

    /// Sending end: asks to be notified of room. Poll once more afterwards.
    #[inline]
    pub fn want_room(&self) {
        self.sender_wants_room.swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    #[cfg(not(loom))]
    fn reset(&self) {
        let shared = [&self.tail, &self.epoch, &self.boundary, &self.layout, &self.head, &self.reached];
        let private = [&self.head_seen, &self.ring_began, &self.leaves_from, &self.spills_behind];
        let more = [&self.kernel_read, &self.copies_until, &self.copies];
        for word in shared.into_iter().chain(private).chain(more) {
            word.store(0, Ordering::Relaxed);
        }
        let halves = [&self.sender_flags, &self.receiver_flags, &self.sender_wants_room, &self.sender_lock];
        let rest = [&self.kernel_sends, &self.large_granted, &self.receiver_lock, &self.kernel_receives];
        for word in halves.into_iter().chain(rest).chain([&self.front]) {
            word.store(0, Ordering::Relaxed);
        }
        self.receiver_sleep.0.store(0, Ordering::Relaxed);
        self.sender_sleep.0.store(0, Ordering::Relaxed);
        for watch in self.receiver_watch.iter().chain(&self.sender_watch) {
            watch.store(0, Ordering::Relaxed);
        }
    }
}

vmmc_host::words! {
    /// One end of a connection.
    pub struct EndWords {
        /// [`EndWords::YES`]: this end reads announcements before each kernel receive.
        /// [`EndWords::NO`]: it has given up.
        pub attached: AtomicU32,
        /// Processes that hold this end, as far as they were forked with our knowledge.
        pub holders: AtomicU32,
        /// Grows when this end should ask its kernel socket whether the other end is alive.
        pub hint: AtomicU32,
        /// Every process of this end that the node knew of has ended.
        pub dead: AtomicU32,
        /// Core that this end ran on last, plus one.
        pub core: AtomicU32,
        /// Holders of this end send by the kernel from here on: one of them is not ours.
        pub pinned: AtomicU32,
        /// Between nodes: number of this end's request to send by the ring; 0: it has none.
        pub soon: AtomicU32,
        /// Between nodes: the request of the other end for which this one reads announcements
        /// before each kernel receive.
        pub ready: AtomicU32,
        /// Private to the holders: number of the last request for the ring.
        pub ring_requests: AtomicU32,
        /// Between nodes: what became of the other end's [`Flags::FLUSH_TO_KERNEL`]:
        /// [`EndWords::ACKED`], written by the node, and [`EndWords::FLUSHED`]; and of this end's
        /// own: [`EndWords::GAVE_UP`].
        pub back: AtomicU32,
        /// Private to the holders: `TCP_NODELAY` as the program has it; underneath it is set.
        pub no_delay: AtomicU32,
        /// Private to the holders: `TCP_NOTSENT_LOWAT` as the program has it; underneath the mark
        /// is there.
        pub not_sent: AtomicU32,
        _pad: [AtomicU32; 4],
    }
}

impl EndWords {
    /// Attached.
    pub const YES: u32 = 1;
    /// Will not attach.
    pub const NO: u32 = 2;
    /// The request is in the words of this end's node. A holder that leaves the ring afterwards
    /// does what it asks for.
    pub const ACKED: u32 = 1;
    /// Everything is in the kernel.
    pub const FLUSHED: u32 = 2;
    /// This end itself asked, and has ended the connection because it could not be told what became
    /// of that.
    pub const GAVE_UP: u32 = 4;

    #[cfg(not(loom))]
    fn reset(&self) {
        let requests = [&self.pinned, &self.soon, &self.ready, &self.ring_requests, &self.back];
        let options = [&self.no_delay, &self.not_sent];
        let others = requests.into_iter().chain(options);
        for word in [&self.attached, &self.holders, &self.hint, &self.dead, &self.core].into_iter().chain(others) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

vmmc_host::words! {
    /// All words of a connection. End `e` sends in direction `e` and receives in direction `1 - e`.
    pub struct SlotWords {
        /// The directions.
        pub directions: [DirectionWords; 2],
        /// The ends.
        pub ends: [EndWords; 2],
        /// Written by the node at the start: a process that knows this secret has the slot mapped.
        pub secret: AtomicU64,
        /// Written by the node at the start: the other end is on another node, and this slot is one
        /// of two replicas that the nodes keep alike.
        pub between: AtomicU32,
        /// Written by the node: the other replica is out of reach for good.
        pub broken: AtomicU32,
        /// Written by the node: everything that the other end sent through its ring before its
        /// kernel socket ended is here.
        pub complete: AtomicU32,
        _pad: [AtomicU32; 11],
    }
}

impl SlotWords {
    /// Makes a used slot a fresh one. Only while nobody uses it.
    #[cfg(not(loom))]
    pub fn reset(&self) {
        self.directions.iter().for_each(DirectionWords::reset);
        self.ends.iter().for_each(EndWords::reset);
        [&self.between, &self.broken, &self.complete].into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(not(loom))]
mod replica;
#[cfg(not(loom))]
pub use replica::SideWords;

#[cfg(all(test, loom))]
mod tests;
