//! The areas that a process shares with its node and with other processes of the node.
//!
//! | area | made by | written by | read by |
//! | --- | --- | --- | --- |
//! | [`AttachArea`] | node, one a process | process and node | process and node |
//! | [`GateTable`] | node, one a process | node | its importers |
//! | [`NotifyBell`] | node, one a process | owner | its importers |
//! | [`PairRing`] | node, one for each notifying pair of processes | notifier (slots), receiver (give-back count) | both |
//!
//! Invariant: no process can write a word that another process of another user trusts; what a
//! process writes in its own area harms only itself.

use crate::abi::{COMMANDS, COMPLETIONS, NOTIFICATIONS, PAIRS};
pub use crate::handshake::{enter_lane, fence, leave_lane, must_wake, set_gate};
use crate::limits::{EXPORTS_PER_PROCESS_MAX, LANES, METERS};
use crate::meters::Meter;
use crate::region::{PAGE_BYTES, Protection, Region, RegionError, Unmapped};
use crate::ring::{Consumer, Producer, RegionWords, Shape};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

const LINE: u64 = 64;
const PROCESS_SLEEPING: u64 = 0;
const WORDS_AWAITED: u64 = 8;
const NODE_SLEEPING: u64 = LINE;
const NOTIFICATIONS_LOST: u64 = 2 * LINE;
const EVENTS_SENT: u64 = 3 * LINE;
const PIN_COUNTERS: u64 = 4 * LINE;
const METERS_USED: u64 = 5 * LINE;
const METERS_EPOCH: u64 = 5 * LINE + 8;
const LANES_AT: u64 = 4096;
const COMMANDS_AT: u64 = LANES_AT + LANES as u64 * LINE;
const COMPLETIONS_AT: u64 = COMMANDS_AT + ring_bytes(COMMANDS);
const NOTIFICATIONS_AT: u64 = COMPLETIONS_AT + ring_bytes(COMPLETIONS);
const METERS_AT: u64 = NOTIFICATIONS_AT + ring_bytes(NOTIFICATIONS);
const ATTACH_BYTES: u64 = METERS_AT + (METERS as u64 + 1) * LINE;
const GATE_BYTES: u64 = EXPORTS_PER_PROCESS_MAX as u64 * 8;
const BELL_BYTES: u64 = PAGE_BYTES as u64;
/// In the line of the bell's word: a sender that notifies has it anyway.
const BELL_WORDS: u64 = 8;
/// Its lower half: how many waits there are; the upper one counts them all.
const WORD_WAITS: u64 = u32::MAX as u64;
const WORD_WAIT_BEGINS: u64 = (1 << 32) + 1;
/// Behind it: of which regions words are waited for.
const BELL_REGIONS: u64 = 16;
const PAIR_AT: u64 = LINE;
const PAIR_BYTES: u64 = PAIR_AT + ring_bytes(PAIRS);

/// Bytes of a ring, rounded to a page so that the next ring starts on its own.
const fn ring_bytes(shape: Shape) -> u64 {
    (shape.bytes() as u64).next_multiple_of(4096)
}

/// Names of a process's own counters of pinning.
pub const PIN_COUNTER_NAMES: [&str; 7] =
    ["pin_transfers", "pin_lookups", "pin_check_misses", "pin_pins", "pin_unpins", "pin_evictions", "pin_copied"];

/// What a process and its node share: rings, lanes, flags.
#[derive(Clone, Debug)]
pub struct AttachArea(Region);

impl AttachArea {
    /// The node makes the area for a new process.
    pub fn create() -> Result<AttachArea, RegionError> {
        Region::create(ATTACH_BYTES).map(AttachArea)
    }

    /// The process maps the area that it was given.
    pub fn open(fd: OwnedFd) -> Result<AttachArea, RegionError> {
        Region::map(fd, ATTACH_BYTES, Protection::ReadWrite).map(AttachArea)
    }

    /// A descriptor for the other side.
    pub fn share(&self) -> Result<OwnedFd, RegionError> {
        self.0.share()
    }

    /// Its memory.
    pub fn memory(&self) -> &Region {
        &self.0
    }

    /// The process has gone: a holder of the area keeps no memory of it.
    pub fn empty(&self) {
        self.0.empty();
    }

    /// The process's end of the command ring. One only.
    pub fn command_producer(&self) -> Producer<RegionWords> {
        Producer::new(RegionWords::new(self.0.clone(), COMMANDS_AT, COMMANDS), COMMANDS)
    }

    /// The node's end of the command ring. One only.
    pub fn command_consumer(&self) -> Consumer<RegionWords> {
        Consumer::new(RegionWords::new(self.0.clone(), COMMANDS_AT, COMMANDS), COMMANDS)
    }

    /// The node's end of the completion ring. One only.
    pub fn completion_producer(&self) -> Producer<RegionWords> {
        Producer::new(RegionWords::new(self.0.clone(), COMPLETIONS_AT, COMPLETIONS), COMPLETIONS)
    }

    /// The process's end of the completion ring. One only.
    pub fn completion_consumer(&self) -> Consumer<RegionWords> {
        Consumer::new(RegionWords::new(self.0.clone(), COMPLETIONS_AT, COMPLETIONS), COMPLETIONS)
    }

    /// The node's end of the notification ring. One only.
    pub fn notification_producer(&self) -> Producer<RegionWords> {
        Producer::new(RegionWords::new(self.0.clone(), NOTIFICATIONS_AT, NOTIFICATIONS), NOTIFICATIONS)
    }

    /// The process's end of the notification ring. One only.
    pub fn notification_consumer(&self) -> Consumer<RegionWords> {
        Consumer::new(RegionWords::new(self.0.clone(), NOTIFICATIONS_AT, NOTIFICATIONS), NOTIFICATIONS)
    }

    /// Not 0: the process sleeps, or an event loop of it does; a thread that puts something in a
    /// ring for it wakes it.
    pub fn process_sleeping(&self) -> &AtomicU64 {
        self.at(PROCESS_SLEEPING)
    }

    /// Not 0: a thread of the process sleeps until a word of its memory changes; the node wakes it
    /// when it has put short data there.
    pub fn words_awaited(&self) -> &AtomicU64 {
        self.at(WORDS_AWAITED)
    }

    /// Not 0: the node sleeps; a thread that puts a command in the ring writes the node's doorbell.
    pub fn node_sleeping(&self) -> &AtomicU64 {
        self.at(NODE_SLEEPING)
    }

    /// Notifications from the engine that found the ring full.
    pub fn notifications_lost(&self) -> &AtomicU64 {
        self.at(NOTIFICATIONS_LOST)
    }

    /// Events that the node has sent on the events socket.
    pub fn events_sent(&self) -> &AtomicU64 {
        self.at(EVENTS_SENT)
    }

    /// The process's own counters of pinning, in the order of [`PIN_COUNTER_NAMES`]; for `vmmc
    /// stats`.
    ///
    /// # Panics
    /// If there is no such counter.
    #[inline]
    pub fn pin_counter(&self, index: usize) -> &AtomicU64 {
        assert!(index < PIN_COUNTER_NAMES.len());
        self.at(PIN_COUNTERS + index as u64 * 8)
    }

    /// Lane `index`: 0, or the id of the import whose mapping a thread of the process is writing or
    /// reading right now.
    ///
    /// # Panics
    /// If `index` is not below [`LANES`].
    #[inline]
    pub fn lane(&self, index: usize) -> &AtomicU64 {
        assert!(index < LANES);
        self.at(LANES_AT + index as u64 * LINE)
    }

    /// Meter `index`; see [`crate::meters`].
    ///
    /// # Panics
    /// If `index` is above [`METERS`].
    #[inline]
    pub fn meter(&self, index: u16) -> Meter<'_> {
        assert!(usize::from(index) <= METERS);
        Meter::new(self.0.words(METERS_AT + u64::from(index) * LINE, 6).expect("the layout lies in the area"))
    }

    /// Meters of imports that were ever used.
    pub(crate) fn meters_used(&self) -> &AtomicU64 {
        self.at(METERS_USED)
    }

    /// Odd while meters are emptied.
    pub(crate) fn meters_epoch(&self) -> &AtomicU64 {
        self.at(METERS_EPOCH)
    }

    /// Whether any thread of the process is inside a mapped transfer of an import for which
    /// `is_one` holds.
    pub fn any_lane(&self, mut is_one: impl FnMut(u64) -> bool) -> bool {
        (0..LANES).any(|i| {
            let import = self.lane(i).load(Ordering::Acquire);
            import != 0 && is_one(import)
        })
    }

    #[inline]
    fn at(&self, offset: u64) -> &AtomicU64 {
        self.0.word(offset).expect("the layout lies in the area")
    }
}

/// The gates of a process's exports. Only the node writes them.
#[derive(Clone, Debug)]
pub struct GateTable(Region);

impl GateTable {
    /// Pages of its memory.
    pub const PAGES: u32 = (GATE_BYTES / PAGE_BYTES as u64) as u32;

    /// The node makes the table for a new process. Gives a descriptor for importers beside it, the
    /// only one that there is.
    pub fn create() -> Result<(GateTable, OwnedFd), RegionError> {
        let region = Region::create_for_readers(GATE_BYTES)?;
        let readers = region.share_read_only()?;
        region.let_descriptor_go();
        Ok((GateTable(region), readers))
    }

    /// An importer maps the table of the exporter.
    pub fn open(fd: OwnedFd) -> Result<GateTable, RegionError> {
        Region::map(fd, GATE_BYTES, Protection::ReadOnly).map(GateTable)
    }

    /// Gate word of an export slot; see [`crate::abi::gate_word`]. None if there is no such slot.
    #[inline]
    pub fn gate(&self, slot: u32) -> Option<&AtomicU64> {
        if slot as usize >= EXPORTS_PER_PROCESS_MAX {
            return None;
        }
        Some(self.0.word(u64::from(slot) * 8).expect("checked above"))
    }
}

/// Bits for the regions of which words are waited for.
pub const REGION_BITS: usize = 64;

/// The bit of a region, by its id, among those of which words are waited for. Some regions share
/// one: a thread that waits for words of another one of these may be woken too. All exports of a
/// region have its bit.
#[inline(always)]
pub const fn region_bit(region: u32) -> u64 {
    1 << (region % REGION_BITS as u32)
}

/// The flag that a process's notifiers check before they wake it. It has a memory of its own
/// because the process writes it, and its importers may not.
#[derive(Clone, Debug)]
pub struct NotifyBell(Region);

impl NotifyBell {
    /// The node makes it for a new process. Gives a descriptor for the process and one for its
    /// importers beside it.
    pub fn create() -> Result<(NotifyBell, OwnedFd, OwnedFd), RegionError> {
        let region = Region::create(BELL_BYTES)?;
        let (owner, readers) = (region.share()?, region.share_read_only()?);
        region.let_descriptor_go();
        Ok((NotifyBell(region), owner, readers))
    }

    /// The owner maps its own.
    pub fn open(fd: OwnedFd) -> Result<NotifyBell, RegionError> {
        Region::map(fd, BELL_BYTES, Protection::ReadWrite).map(NotifyBell)
    }

    /// An importer maps that of the exporter.
    pub fn open_read_only(fd: OwnedFd) -> Result<NotifyBell, RegionError> {
        Region::map(fd, BELL_BYTES, Protection::ReadOnly).map(NotifyBell)
    }

    /// The owner has gone: a holder of the bell keeps no memory of it, and finds nobody asleep.
    pub fn empty(&self) {
        self.0.empty();
    }

    /// Not 0: the owner sleeps, or an event loop of it does; a notifier wakes it.
    #[inline]
    pub fn word(&self) -> &AtomicU64 {
        self.0.word(0).expect("the layout lies in the page")
    }

    /// A thread of the owner begins to wait for a word of its memory, and may sleep: a thread that
    /// stores there wakes it. It polls once more before it sleeps. `regions` are all regions of
    /// which words are waited for now, also by other threads of the owner: see [`region_bit`]. The
    /// owner announces and ends waits one at a time.
    ///
    /// ```
    /// use vmmc_host::area::region_bit;
    /// let (bell, ..) = vmmc_host::NotifyBell::create()?;
    /// bell.await_words(region_bit(5));
    /// let waits = bell.words_awaited(region_bit(5)).expect("one thread waits");
    /// assert_eq!(bell.words_awaited(region_bit(6)), None, "for no word of that region");
    /// bell.await_words(region_bit(5));
    /// assert_ne!(bell.words_awaited(region_bit(5)), Some(waits), "each wait has a number");
    /// (0..2).for_each(|_| bell.words_found(0));
    /// assert_eq!(bell.words_awaited(region_bit(5)), None);
    /// # Ok::<(), vmmc_host::RegionError>(())
    /// ```
    pub fn await_words(&self, regions: u64) {
        self.regions().store(regions, Ordering::SeqCst);
        self.words().fetch_add(WORD_WAIT_BEGINS, Ordering::SeqCst);
        fence();
    }

    /// Ends what [`await_words`](Self::await_words) began; `regions` are those of which
    /// words are still waited for.
    pub fn words_found(&self, regions: u64) {
        self.regions().store(regions, Ordering::SeqCst);
        self.words().fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a thread of the owner waits for a word of one of these regions: the number of the
    /// latest wait. One wake-up for each number is enough, for it is one for all threads of the
    /// owner, which poll after there is a new one. Not ordered after the caller's stores: one that
    /// is still on its way may be missed, so that the waits end their sleeps by themselves too.
    #[inline(always)]
    pub fn words_awaited(&self, regions: u64) -> Option<u32> {
        let word = self.words().load(Ordering::Acquire);
        let awaited = word & WORD_WAITS != 0 && self.regions().load(Ordering::Relaxed) & regions != 0;
        awaited.then_some((word >> 32) as u32)
    }

    #[inline(always)]
    fn regions(&self) -> &AtomicU64 {
        self.0.word(BELL_REGIONS).expect("the layout lies in the page")
    }

    #[inline(always)]
    fn words(&self) -> &AtomicU64 {
        self.0.word(BELL_WORDS).expect("the layout lies in the page")
    }
}

/// The notification ring from one process to another of the same node.
#[derive(Clone, Debug)]
pub struct PairRing(Region);

impl PairRing {
    /// The node makes the ring, for two processes that map it. It never touches it itself, but to
    /// empty it.
    pub fn create() -> Result<Unmapped, RegionError> {
        Unmapped::create(PAIR_BYTES)
    }

    /// Either process maps it.
    pub fn open(fd: OwnedFd) -> Result<PairRing, RegionError> {
        Region::map(fd, PAIR_BYTES, Protection::ReadWrite).map(PairRing)
    }

    /// The notifier's end. One only.
    pub fn producer(&self) -> Producer<RegionWords> {
        Producer::new(RegionWords::new(self.0.clone(), PAIR_AT, PAIRS), PAIRS)
    }

    /// The receiver's end. One only.
    pub fn consumer(&self) -> Consumer<RegionWords> {
        Consumer::new(RegionWords::new(self.0.clone(), PAIR_AT, PAIRS), PAIRS)
    }

    /// Notifications that found the ring full; written by the notifier.
    pub fn lost(&self) -> &AtomicU64 {
        self.0.word(0).expect("the layout lies in the area")
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::abi::{Completion, GateState, Op, RawCommand, RawNotification, flags, gate_state, gate_word};
    use crate::limits::INLINE_BYTES_MAX;

    #[test]
    fn both_sides_of_an_area_meet() {
        let node = AttachArea::create().unwrap();
        let process = AttachArea::open(node.share().unwrap()).unwrap();
        let (mut post, mut serve) = (process.command_producer(), node.command_consumer());
        let mut command = RawCommand::new(Op::Send, 77);
        command.flags = flags::INLINE | flags::COUNTER | flags::NOTIFY;
        command.counter = 4096;
        command.publish(post.claim().unwrap(), b"hello");
        let mut inline = [0; INLINE_BYTES_MAX];
        let full = serve.peek().unwrap();
        let got = RawCommand::read(&full, &mut inline);
        full.done();
        assert_eq!((got.import, got.counter, got.len, &inline[..5]), (77, 4096, 5, &b"hello"[..]));

        let done = Completion { cookie: 5, status: 0, value: 9, args: [1, 2, 3] };
        assert!(done.push(&mut node.completion_producer()));
        assert_eq!(Completion::pop(&mut process.completion_consumer()), Some(done));
        let note =
            RawNotification { export: 1, offset: 2, len: 3, last_word: 4, word: 5, session: 6, process: 7, import: 8 };
        assert!(note.push(&mut node.notification_producer()));
        assert_eq!(RawNotification::pop(&mut process.notification_consumer()), Some(note));
    }

    #[test]
    fn a_full_pair_ring_says_so() {
        let ring = PairRing::open(PairRing::create().unwrap().share().unwrap()).unwrap();
        let mut producer = ring.producer();
        let note = RawNotification::default();
        let accepted = (0..1000).take_while(|_| note.push(&mut producer)).count();
        assert_eq!(accepted, crate::limits::PAIR_SLOTS);
    }

    #[test]
    fn lanes_show_who_is_inside() {
        let area = AttachArea::create().unwrap();
        let (gates, importers) = GateTable::create().unwrap();
        let gate = gates.gate(3).unwrap();
        assert!(Region::map(importers.try_clone().unwrap(), GATE_BYTES, Protection::ReadWrite).is_err());
        gate.store(gate_word(2, GateState::Open), Ordering::SeqCst);
        let theirs = GateTable::open(importers).unwrap();
        assert_eq!(enter_lane(area.lane(9), 42, theirs.gate(3).unwrap()), gate_word(2, GateState::Open));
        assert!(area.any_lane(|i| i == 42) && !area.any_lane(|i| i == 43));
        leave_lane(area.lane(9));
        assert!(!area.any_lane(|_| true));
        assert!(gates.gate(EXPORTS_PER_PROCESS_MAX as u32).is_none());
        assert_eq!(gate_state(gate_word(2, GateState::OwnerDied), 2), GateState::OwnerDied);
        assert_eq!(gate_state(gate_word(3, GateState::Open), 2), GateState::Revoked);
    }

    #[test]
    fn any_command_words_decode_without_panic() {
        let area = AttachArea::create().unwrap();
        let (mut post, mut serve) = (area.command_producer(), area.command_consumer());
        let mut rng = vmmc_utlb::Rng::new(99);
        for _ in 0..5000 {
            let mut slot = post.claim().unwrap();
            for word in 1..32 {
                slot.set(word, rng.next_u64());
            }
            slot.publish();
            let mut inline = [0; INLINE_BYTES_MAX];
            let full = serve.peek().unwrap();
            let command = RawCommand::read(&full, &mut inline);
            assert!(command.flags & flags::INLINE == 0 || command.len <= INLINE_BYTES_MAX as u64);
            full.done();
        }
    }
}
