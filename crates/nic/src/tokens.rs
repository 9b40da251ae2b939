//! Token tables: exports of buffers, each of which takes one payload, from whoever has its token.
//!
//! ```text
//!   0                64               128
//!   +----------------+----------------+----------+-----------------------------------------+
//!   | entry 0        | entry 1        | ..       | buffers, where the entries say          |
//!   +----------------+----------------+----------+-----------------------------------------+
//!     words: state, tag, bytes of the payload, offset of the buffer, bytes of the buffer
//! ```
//!
//! An entry has a cache line. The state is the key of the token, a multiple of 4, and what has
//! become of it in the two lowest bits. The owner arms an entry with a new random key; tag and
//! bytes of the payload are the sender's. By the tag the owner tells whose payload came.
//!
//! ```text
//!   free ── arm (owner) ──▶ armed ── first byte (node, or a sender that maps it) ──▶ filling ──▶ done
//!     ▲                       └── cancel (owner) ──▶ cancelled                           │
//!     └────────────────────────────── the owner, with the next key ◀────────────────────┘
//! ```
//!
//! Invariants: an entry leaves `armed` by one compare-and-swap, so one of an arrival and a cancel
//! wins, once; it leaves `filling` by a store of who won; a payload goes into no buffer but that of
//! its entry; no payload is taken for an entry. The owner can write all of it, and what it writes
//! there is held against the export.
//! Source: [GMS §2] incoming payload table.

use crate::command::{AtomicOp, Dma};
use crate::error::{ExportError, OpError};
use crate::ids::RegionRef;
use crate::limits::TOKENS_MAX;
use crate::local::in_bounds;
use crate::rights::{ExportSpec, Rights};
use crate::tables::{Arrivals, Incoming, Tables, Target};
use std::sync::atomic::Ordering;

/// Bytes from an entry to the next.
pub const TOKEN_ENTRY_BYTES: u64 = 64;
/// Bytes of its words.
const WORDS_BYTES: usize = 40;
/// Where in an entry the tag of the sender stands.
pub const TOKEN_TAG_AT: u64 = 8;
/// Where in an entry the bytes of the payload stand.
pub const TOKEN_TOTAL_AT: u64 = 16;
/// Bits of the state that say what has become of the key.
const STATE_BITS: u64 = 3;

/// What has become of the key that stands in an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenState {
    /// Withdrawn: nothing comes in by it.
    Cancelled,
    /// One payload may come.
    Armed,
    /// A payload is coming.
    Filling,
    /// A payload has come, whole.
    Done,
}

impl TokenState {
    /// As the first word of an entry.
    pub const fn word(self, key: u64) -> u64 {
        key & !STATE_BITS | self as u64
    }

    /// The inverse of [`word`](Self::word): the key, and what has become of it.
    pub const fn of_word(word: u64) -> (u64, TokenState) {
        let state = match word & STATE_BITS {
            0 => TokenState::Cancelled,
            1 => TokenState::Armed,
            2 => TokenState::Filling,
            _ => TokenState::Done,
        };
        (word & !STATE_BITS, state)
    }
}

/// An entry as it stands in memory: five words, little endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenEntry {
    /// Key and state, as of [`TokenState::word`].
    pub state: u64,
    /// Of the send that took the key.
    pub tag: u64,
    /// Bytes of its payload.
    pub total: u64,
    /// Where in the export the buffer begins.
    pub offset: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
}

impl TokenEntry {
    /// As it stands in memory.
    pub fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; WORDS_BYTES];
        let words = [self.state, self.tag, self.total, self.offset, self.bytes];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// The inverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; 40]) -> TokenEntry {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
        TokenEntry { state: word(0), tag: word(1), total: word(2), offset: word(3), bytes: word(4) }
    }

    /// Checks a part of a payload against it, before anything is written; says where in an export
    /// of `size` bytes the part goes.
    ///
    /// # Errors
    /// [`OpError::TokenRefused`]: the key is another, or used, or cancelled, or this is no part of
    /// the payload that took it, or the payload is longer than the buffer.
    /// [`OpError::OutOfBounds`]: the part reaches past the payload, or the buffer past the export.
    pub fn place(&self, token: &TokenPart, at: u64, len: u64, size: u64) -> Result<u64, OpError> {
        let (wanted, taken) = match at {
            0 => (TokenState::Armed, true),
            _ => (TokenState::Filling, self.tag == token.tag),
        };
        if self.state != wanted.word(token.key) || !taken || token.total > self.bytes {
            return Err(OpError::TokenRefused { index: token.index.into() });
        }
        in_bounds(at, len, token.total)?;
        in_bounds(self.offset, self.bytes, size)?;
        Ok(self.offset + at)
    }
}

/// What a sender says of a payload that goes by token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenPart {
    /// The entry.
    pub index: u32,
    /// Its key; the two lowest bits count for nothing.
    pub key: u64,
    /// Stands in the entry afterwards: the same in all parts of a payload, and in no other.
    pub tag: u64,
    /// Bytes of the whole payload.
    pub total: u64,
}

impl TokenPart {
    /// Where the entry begins.
    ///
    /// # Errors
    /// [`OpError::TokenRefused`]: a table of so many entries has no such one.
    pub fn entry_at(&self, entries: u32) -> Result<u64, OpError> {
        let index = u64::from(self.index);
        let at = index * TOKEN_ENTRY_BYTES;
        if self.index < entries { Ok(at) } else { Err(OpError::TokenRefused { index }) }
    }
}

/// Checks a table to be exported.
pub(crate) fn check(spec: &ExportSpec, entries: u32) -> Result<(), ExportError> {
    let (offset, len) = (spec.offset, spec.len);
    let all = u64::from(entries);
    let fits = (1..=TOKENS_MAX).contains(&all) && all * TOKEN_ENTRY_BYTES <= len;
    let only_tokens = spec.rights == Rights::WRITE && !spec.redirectable && !spec.notify;
    if !only_tokens || offset % 8 != 0 || len % 8 != 0 || !fits {
        return Err(ExportError::BadTokenTable { offset, len, entries: entries.into(), max: TOKENS_MAX });
    }
    Ok(())
}

/// The words of an entry, where they lie: in memory, or behind a [`Dma`]. All who change an entry
/// do so by the methods that are provided here, which loom explores (`tests/loom.rs`).
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use vmmc_nic::{TokenPart, TokenState, TokenWords};
///
/// struct Entry([AtomicU64; 5]);
/// impl TokenWords for Entry {
///     fn load(&mut self, word: usize, order: Ordering) -> u64 {
///         self.0[word].load(order)
///     }
///     fn store(&mut self, word: usize, value: u64, order: Ordering) {
///         self.0[word].store(value, order);
///     }
///     fn compare_swap(&mut self, old: u64, new: u64, orders: [Ordering; 2]) -> Result<u64, u64> {
///         self.0[0].compare_exchange(old, new, orders[0], orders[1])
///     }
/// }
///
/// let mut entry = Entry(Default::default());
/// entry.arm(4, 64, 100); // the owner: a buffer of 100 bytes, at byte 64 of the export
/// let part = TokenPart { index: 0, key: 4, tag: 7, total: 10 };
/// assert_eq!(entry.take(&part, 0, 10, 4096), Ok(64)); // a sender: the payload goes there
/// assert!(!entry.cancel(4));
/// entry.finish(4);
/// assert_eq!((entry.state(), entry.payload()), ((4, TokenState::Done), (7, 10)));
/// ```
pub trait TokenWords {
    /// Reads a word.
    fn load(&mut self, word: usize, order: Ordering) -> u64;
    /// Writes a word.
    fn store(&mut self, word: usize, value: u64, order: Ordering);
    /// Changes the state if it is the expected one; gives what it was. `orders`: of the change, and
    /// where there is none.
    ///
    /// # Errors
    /// What it was instead.
    fn compare_swap(&mut self, expected: u64, desired: u64, orders: [Ordering; 2]) -> Result<u64, u64>;

    /// All of them, the state first.
    fn entry(&mut self) -> TokenEntry {
        let state = self.load(0, Ordering::Acquire);
        let [tag, total, offset, bytes] = [1, 2, 3, 4].map(|word| self.load(word, Ordering::Relaxed));
        TokenEntry { state, tag, total, offset, bytes }
    }

    /// Key and state. Of a payload that is done all that was written is visible.
    fn state(&mut self) -> (u64, TokenState) {
        TokenState::of_word(self.load(0, Ordering::Acquire))
    }

    /// Tag and bytes of the payload that is done.
    fn payload(&mut self) -> (u64, u64) {
        (self.load(1, Ordering::Relaxed), self.load(2, Ordering::Relaxed))
    }

    /// The owner arms an entry on which no payload is under way, with a key that it never had.
    fn arm(&mut self, key: u64, offset: u64, bytes: u64) {
        (1..).zip([0, 0, offset, bytes]).for_each(|(word, value)| self.store(word, value, Ordering::Relaxed));
        self.store(0, TokenState::Armed.word(key), Ordering::Release);
    }

    /// The owner withdraws a key. True: no payload has come in by it, and none will.
    fn cancel(&mut self, key: u64) -> bool {
        let [armed, cancelled] = [TokenState::Armed, TokenState::Cancelled].map(|state| state.word(key));
        let left = self.compare_swap(armed, cancelled, [Ordering::AcqRel, Ordering::Acquire]);
        left.is_ok() || left == Err(cancelled)
    }

    /// Where in an export of `size` bytes a part of a payload goes. The first one takes the key;
    /// its sender alone writes to the buffer from then on.
    ///
    /// # Errors
    /// As of [`TokenEntry::place`].
    fn take(&mut self, part: &TokenPart, at: u64, len: u64, size: u64) -> Result<u64, OpError> {
        let to = self.entry().place(part, at, len, size)?;
        if at == 0 {
            let [armed, filling] = [TokenState::Armed, TokenState::Filling].map(|state| state.word(part.key));
            self.compare_swap(armed, filling, [Ordering::AcqRel, Ordering::Relaxed])
                .map_err(|_| OpError::TokenRefused { index: part.index.into() })?;
            self.store(1, part.tag, Ordering::Relaxed);
            self.store(2, part.total, Ordering::Relaxed);
        }
        Ok(to)
    }

    /// All of the payload that took the key is there, and whoever sees that sees the payload too.
    /// Only for who took the key, who alone changes the state until then: so this is a store, and
    /// what follows does not wait until all of the payload has left the processor's store buffer,
    /// as after a compare-and-swap.
    fn finish(&mut self, key: u64) {
        self.store(0, TokenState::Done.word(key), Ordering::Release);
    }
}

/// An entry as the engine reaches it.
struct Entry<'a> {
    dma: &'a mut dyn Dma,
    memory: RegionRef,
    at: u64,
}

impl TokenWords for Entry<'_> {
    fn load(&mut self, word: usize, _: Ordering) -> u64 {
        let mut bytes = [0; 8];
        self.dma.gather(self.memory, self.at + 8 * word as u64, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store(&mut self, word: usize, value: u64, _: Ordering) {
        self.dma.atomic(self.memory, self.at + 8 * word as u64, AtomicOp::Swap(value));
    }

    fn compare_swap(&mut self, expected: u64, desired: u64, _: [Ordering; 2]) -> Result<u64, u64> {
        let old = self.dma.atomic(self.memory, self.at, AtomicOp::CompareSwap { expected, desired });
        if old == expected { Ok(old) } else { Err(old) }
    }

    /// In one access.
    fn entry(&mut self) -> TokenEntry {
        let mut bytes = [0; WORDS_BYTES];
        self.dma.gather(self.memory, self.at, &mut bytes);
        TokenEntry::from_bytes(&bytes)
    }
}

impl Tables {
    /// Where in the export a part of a payload goes that is not the first one, if the payload still
    /// has the key.
    pub(crate) fn place_of_part(
        &self,
        target: &Target,
        token: &TokenPart,
        (at, len): (u64, u64),
        dma: &mut dyn Dma,
    ) -> Option<u64> {
        let Arrivals::ByToken { entries } = target.arrivals else { return None };
        let entry_at = token.entry_at(entries).ok()?;
        let entry = Entry { dma, memory: target.memory, at: target.base + entry_at }.entry();
        entry.place(token, at, len, target.len).ok().filter(|_| at > 0)
    }

    /// Lands a part of a payload in the buffer of its token, after every check; the first part
    /// takes the key, the last one says that all is there.
    pub(crate) fn fill(
        &mut self,
        target: &Target,
        token: &TokenPart,
        at: u64,
        data: Incoming<'_>,
        dma: &mut dyn Dma,
    ) -> Result<(), OpError> {
        let Arrivals::ByToken { entries } = target.arrivals else { return Err(OpError::NotByToken) };
        let memory = target.memory;
        let placed = token.entry_at(entries).and_then(|entry_at| {
            let mut entry = Entry { dma: &mut *dma, memory, at: target.base + entry_at };
            entry.take(token, at, data.len(), target.len).map(|to| (entry.at, to))
        });
        let (entry_at, to) = placed.inspect_err(|_| self.stats.tokens_refused += 1)?;
        self.stats.bytes_deposited += data.len();
        data.put(0, data.len(), memory, target.base + to, dma);
        if at + data.len() == token.total {
            Entry { dma, memory, at: entry_at }.finish(token.key);
        }
        Ok(())
    }
}
