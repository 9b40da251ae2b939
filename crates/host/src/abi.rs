//! Meaning of the words in rings, gates and lanes.
//!
//! Invariant: decoding accepts any bytes; what makes no sense becomes [`Op::Unknown`] or a value
//! that the node's own tables refuse. The library writes these words, but so can a hostile process:
//! everything here is a claim.

use crate::limits::{COMMAND_SLOTS, COMPLETION_SLOTS, INLINE_BYTES_MAX, NOTIFICATION_SLOTS, PAIR_SLOTS};
use crate::ring::{Consumer, Filling, Full, Producer, Shape, Words};

/// Shape of the command ring.
pub const COMMANDS: Shape = Shape { slots: COMMAND_SLOTS, slot_words: 32 };
/// Shape of the completion ring.
pub const COMPLETIONS: Shape = Shape { slots: COMPLETION_SLOTS, slot_words: 8 };
/// Shape of the ring of notifications from the engine.
pub const NOTIFICATIONS: Shape = Shape { slots: NOTIFICATION_SLOTS, slot_words: 8 };
/// Shape of the notification ring between two processes.
pub const PAIRS: Shape = Shape { slots: PAIR_SLOTS, slot_words: 8 };

/// Operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Deliberate update; data inline or from a region.
    Send,
    /// Deliberate update of many ranges of the export: their table, and behind it the data.
    GatherSend,
    /// A record for an append ring.
    Append,
    /// A payload, or a part of one, for the buffer of a token: `count` is the entry, `word` the
    /// key, `counter` the tag; see [`RawCommand::part`].
    TokenSend,
    /// Remote fetch into a region.
    Fetch,
    /// `operands[0]` is added; the old value is returned.
    FetchAdd,
    /// `operands[1]` is stored if the value is `operands[0]`; the old value is returned.
    CompareSwap,
    /// `operands[0]` is stored; the old value is returned.
    Swap,
    /// Completes when everything sent before through this import's node is in memory there.
    Flush,
    /// Posts a redirection: what comes to `len` bytes at `offset` of the export whose id stands in
    /// `import` goes to the region, and not to the export. See [`COOKIE_REDIRECT`].
    Redirect,
    /// Withdraws the redirection of the export whose id stands in `import` that begins at `offset`
    /// and was posted with the cookie in `counter`. What comes later goes to the export again.
    CancelRedirect,
    /// Not an operation.
    Unknown,
}

impl Op {
    /// Whether it carries data to the other side.
    #[inline]
    pub fn sends(self) -> bool {
        matches!(self, Op::Send | Op::GatherSend | Op::Append | Op::TokenSend)
    }

    /// Whether it asks the other side for something and carries no data itself.
    #[inline]
    pub fn is_request(self) -> bool {
        matches!(self, Op::Fetch | Op::FetchAdd | Op::CompareSwap | Op::Swap)
    }

    /// Whether it concerns an export of the process itself.
    #[inline]
    pub fn is_redirection(self) -> bool {
        matches!(self, Op::Redirect | Op::CancelRedirect)
    }
}

/// Flag bits of a command.
pub mod flags {
    /// Data is in the slot.
    pub const INLINE: u8 = 1;
    /// Notify the receiver.
    pub const NOTIFY: u8 = 2;
    /// Add one to the counter word at `counter` after the data.
    pub const COUNTER: u8 = 4;
    /// The sender wants a completion with `cookie`.
    pub const COMPLETE: u8 = 8;
    /// A word for the receiver is in the command, as with [`NOTIFY`], be it notified or not.
    pub const WORD: u8 = 16;
}

/// In [`RawCommand::region`]: the local memory is named by addresses of the process, in
/// [`RawCommand::region_offset`], which the node translates.
pub const ADDRESSES: u64 = 1 << 32;

/// The page from which on "addresses" are indices of the process's own table, of its own choice: no
/// memory has such addresses. Bytes of an entry follow each other as those of a page do.
pub const INDEX_PAGES: u64 = 1 << 47;

/// A command as it stands in the ring, without the inline bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCommand {
    /// Operation.
    pub op: Op,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Returned in the completion.
    pub cookie: u64,
    /// Import that names the other side.
    pub import: u64,
    /// Byte offset in the export.
    pub offset: u64,
    /// Offset of the counter word, or the first operand of an atomic.
    pub counter: u64,
    /// Local region, or the second operand of an atomic.
    pub region: u64,
    /// Offset in the local region.
    pub region_offset: u64,
    /// Bytes to move; of a gather-send with its table.
    pub len: u64,
    /// With [`flags::NOTIFY`] or [`flags::WORD`], the word that the receiver gets.
    pub word: u64,
    /// Ranges of a gather-send; refusals that the sender of an append has seen; entry of a token.
    pub count: u32,
}

/// Bytes of a range in the table of a gather-send: its offset in the export, its length.
pub const RANGE_BYTES: usize = 16;

/// With any of these a word is in the command.
const WITH_WORD: u8 = flags::NOTIFY | flags::WORD;

/// Bytes that fit inline in a command with these [`flags`]: a word less than [`INLINE_BYTES_MAX`]
/// for a counter, and one for the word that the receiver gets.
#[inline]
pub const fn inline_bytes_max(with: u8) -> usize {
    let counter = if with & flags::COUNTER != 0 { 8 } else { 0 };
    let word = if with & WITH_WORD != 0 { 8 } else { 0 };
    INLINE_BYTES_MAX - counter - word
}

impl RawCommand {
    /// A command that only names its import; fill in the rest.
    pub fn new(op: Op, import: u64) -> RawCommand {
        let (offset, counter, word, len, count) = (0, 0, 0, 0, 0);
        RawCommand { op, flags: 0, cookie: 0, import, offset, counter, region: 0, region_offset: 0, len, word, count }
    }

    /// Where a part of a payload by token goes in the payload, and how long that is: both in
    /// `offset`.
    pub fn part(&self) -> (u64, u64) {
        (self.offset & u64::from(u32::MAX), self.offset >> 32)
    }

    /// The inverse of [`part`](Self::part), of a payload of less than 4 GiB.
    pub fn set_part(&mut self, at: u32, total: u32) {
        self.offset = u64::from(total) << 32 | u64::from(at);
    }

    /// Writes the command, with `inline` data if [`flags::INLINE`] is set, and makes it visible.
    ///
    /// # Panics
    /// If the inline data does not fit: the caller compares with [`inline_bytes_max`] first.
    #[inline]
    pub fn publish(&self, mut slot: Filling<'_>, inline: &[u8]) {
        let len16 = if self.flags & flags::INLINE != 0 { inline.len() as u64 } else { 0 };
        slot.set(1, op_code(self.op) | u64::from(self.flags) << 8 | len16 << 16 | u64::from(self.count) << 32);
        slot.set(2, self.cookie);
        slot.set(3, self.import);
        slot.set(4, self.offset);
        if self.flags & flags::INLINE != 0 {
            let mut at = 5;
            for (flag, word) in [(flags::COUNTER, self.counter), (WITH_WORD, self.word)] {
                if self.flags & flag != 0 {
                    slot.set(at, word);
                    at += 1;
                }
            }
            slot.set_bytes(at, inline);
        } else {
            slot.set(5, self.counter);
            slot.set(6, self.region);
            slot.set(7, self.region_offset);
            slot.set(8, self.len);
            if self.flags & WITH_WORD != 0 {
                slot.set(9, self.word);
            }
        }
        slot.publish();
    }

    /// Reads a command; the inline data, at most what a slot holds, goes to `inline`, and its
    /// length is `len`.
    #[inline]
    pub fn read(full: &Full<'_>, inline: &mut [u8; INLINE_BYTES_MAX]) -> RawCommand {
        let head = full.word(1);
        let flags = (head >> 8) as u8;
        let mut command = RawCommand::new(op_from_code(head & 0xFF), full.word(3));
        command.flags = flags;
        command.count = (head >> 32) as u32;
        command.cookie = full.word(2);
        command.offset = full.word(4);
        if flags & flags::INLINE == 0 {
            command.counter = full.word(5);
            command.region = full.word(6);
            command.region_offset = full.word(7);
            command.len = full.word(8);
            if flags & WITH_WORD != 0 {
                command.word = full.word(9);
            }
            return command;
        }
        let claimed = (head >> 16 & 0xFFFF) as usize;
        let mut at = 5;
        for (flag, word) in [(flags::COUNTER, &mut command.counter), (WITH_WORD, &mut command.word)] {
            if flags & flag != 0 {
                *word = full.word(at);
                at += 1;
            }
        }
        let len = claimed.min(inline_bytes_max(flags));
        full.bytes(at, &mut inline[..len]);
        command.len = len as u64;
        command
    }
}

fn op_code(op: Op) -> u64 {
    match op {
        Op::Send => 1,
        Op::Fetch => 2,
        Op::FetchAdd => 3,
        Op::CompareSwap => 4,
        Op::Swap => 5,
        Op::Flush => 6,
        Op::GatherSend => 7,
        Op::Append => 8,
        Op::TokenSend => 9,
        Op::Redirect => 16,
        Op::CancelRedirect => 17,
        Op::Unknown => 0,
    }
}

fn op_from_code(code: u64) -> Op {
    match code {
        1 => Op::Send,
        2 => Op::Fetch,
        3 => Op::FetchAdd,
        4 => Op::CompareSwap,
        5 => Op::Swap,
        6 => Op::Flush,
        7 => Op::GatherSend,
        8 => Op::Append,
        9 => Op::TokenSend,
        16 => Op::Redirect,
        17 => Op::CancelRedirect,
        _ => Op::Unknown,
    }
}

/// How a command ended. `status` 0 is success; others are codes of the engine's `OpError` with its
/// arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Completion {
    /// From the command.
    pub cookie: u64,
    /// 0, or an error code.
    pub status: u16,
    /// Bytes moved, or the old value of an atomic.
    pub value: u64,
    /// Arguments of the error.
    pub args: [u64; 3],
}

/// A redirection is answered twice. First, with the cookie of its command: it is posted, `value`
/// bytes that had arrived before have been copied; or `status` and `args` say why it is not (codes
/// of the engine's `RedirectError`). Then, with this bit beside the cookie, [`RedirectDone`].
pub const COOKIE_REDIRECT: u64 = 1 << 63;
/// Cookie of a completion that reports the failure of a posted send (one without
/// [`flags::COMPLETE`]): `value` is the id of the import it went through, `status` and `args` say
/// why. At most one is reported for each import between two polls of the process; cookies of
/// commands must not have this bit.
pub const COOKIE_SEND_FAILED: u64 = 1 << 62;

impl Completion {
    /// Puts the completion in the ring; false when it is full.
    #[inline]
    pub fn push<W: Words>(&self, ring: &mut Producer<W>) -> bool {
        let Some(mut slot) = ring.claim() else { return false };
        slot.set(1, self.cookie);
        slot.set(2, u64::from(self.status));
        slot.set(3, self.value);
        (0..3).for_each(|i| slot.set(4 + i, self.args[i]));
        slot.publish();
        true
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn pop<W: Words>(ring: &mut Consumer<W>) -> Option<Completion> {
        let full = ring.peek()?;
        let args = [full.word(4), full.word(5), full.word(6)];
        let completion = Completion { cookie: full.word(1), status: full.word(2) as u16, value: full.word(3), args };
        full.done();
        Some(completion)
    }
}

/// What is reported of a redirection once all of its bytes have come: the parts that were copied
/// because they had come before, one completion for each, and then the end. The rest came straight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectDone {
    /// These bytes were copied.
    Copied {
        /// First byte, in the export.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// That is all.
    Whole {
        /// Bytes of the redirection.
        len: u64,
    },
}

impl RedirectDone {
    /// As a completion; `cookie` is that of the command.
    pub fn completion(self, cookie: u64) -> Completion {
        let cookie = cookie | COOKIE_REDIRECT;
        match self {
            RedirectDone::Copied { offset, len } => Completion { cookie, value: len, args: [1, offset, 0], status: 0 },
            RedirectDone::Whole { len } => Completion { cookie, value: len, args: [0; 3], status: 0 },
        }
    }

    /// The inverse, of a completion whose cookie has [`COOKIE_REDIRECT`].
    pub fn of(completion: &Completion) -> RedirectDone {
        match completion.args {
            [1, offset, _] => RedirectDone::Copied { offset, len: completion.value },
            _ => RedirectDone::Whole { len: completion.value },
        }
    }
}

/// A notification as it travels in rings [NT §3.1: virtual address and value of the last word].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RawNotification {
    /// The export that received data.
    pub export: u64,
    /// First byte of the transfer in the export.
    pub offset: u64,
    /// Bytes of the transfer.
    pub len: u64,
    /// Its last (up to) eight bytes, little endian.
    pub last_word: u64,
    /// The word that the sender asked to be told.
    pub word: u64,
    /// The session with the sender's node, in the count of the node; 0: the node itself.
    pub session: u32,
    /// The sending process, in the numbers of its node.
    pub process: u32,
    /// Its import.
    pub import: u64,
}

impl RawNotification {
    /// Puts the notification in a ring; false when it is full.
    #[inline]
    pub fn push<W: Words>(&self, ring: &mut Producer<W>) -> bool {
        let Some(mut slot) = ring.claim() else { return false };
        slot.set(1, self.export);
        slot.set(2, self.offset);
        slot.set(3, self.len);
        slot.set(4, self.last_word);
        slot.set(5, self.word);
        slot.set(6, u64::from(self.session) << 32 | u64::from(self.process));
        slot.set(7, self.import);
        slot.publish();
        true
    }

    /// Takes the oldest notification.
    #[inline]
    pub fn pop<W: Words>(ring: &mut Consumer<W>) -> Option<RawNotification> {
        let full = ring.peek()?;
        let sender = full.word(6);
        let notification = RawNotification {
            export: full.word(1),
            offset: full.word(2),
            len: full.word(3),
            last_word: full.word(4),
            word: full.word(5),
            session: (sender >> 32) as u32,
            process: sender as u32,
            import: full.word(7),
        };
        full.done();
        Some(notification)
    }
}

/// State of an export, in its gate word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// No export here, or not of this generation.
    Closed,
    /// Transfers may go on.
    Open,
    /// Unexported.
    Revoked,
    /// The exporting process has died.
    OwnerDied,
    /// The node has ended on request.
    NodeStopped,
}

/// Gate word of an export with this generation in this state. An importer compares one load with
/// `gate_word(generation, Open)`.
pub const fn gate_word(generation: u32, state: GateState) -> u64 {
    let code = match state {
        GateState::Closed => 0,
        GateState::Open => 1,
        GateState::Revoked => 2,
        GateState::OwnerDied => 3,
        GateState::NodeStopped => 4,
    };
    (generation as u64) << 8 | code
}

/// What a gate word says about an export of this generation.
pub fn gate_state(word: u64, generation: u32) -> GateState {
    if word >> 8 != u64::from(generation) {
        return GateState::Revoked;
    }
    match word & 0xFF {
        1 => GateState::Open,
        2 => GateState::Revoked,
        3 => GateState::OwnerDied,
        4 => GateState::NodeStopped,
        _ => GateState::Closed,
    }
}
