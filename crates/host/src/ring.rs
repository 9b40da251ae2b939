//! Single-producer, single-consumer rings of fixed slots in shared memory: the papers' command post
//! buffer [UTLB §4.1] and its answers.
//!
//! The first word of a slot is its sequence number: slot `i` (counted from 0 without end) is full
//! when that word is `i + 1`. So the consumer polls the very cache line that brings the message,
//! and a short message costs one line transfer. The consumer publishes how many slots it has given
//! back; the producer reads that only when the ring seems full.
//!
//! Invariant: `given back <= consumed <= produced <= given back + slots`. Both indices are private
//! to their side; what the other side wrote is a claim: a wrong sequence number only makes the
//! consumer wait, a wrong give-back count only makes the producer see a full ring.

use crate::atomics::{AtomicU64, Ordering};
#[cfg(not(loom))]
use crate::region::Region;

/// Where the words of a ring live.
pub trait Words {
    /// All words: `slots * slot_words` of slots, then one for the give-back count.
    fn words(&self) -> &[AtomicU64];
}

/// Words of a region.
#[cfg(not(loom))]
#[derive(Clone, Debug)]
pub struct RegionWords {
    region: Region,
    offset: u64,
    count: usize,
}

#[cfg(not(loom))]
impl RegionWords {
    /// The words of a ring of the given shape at a byte offset.
    ///
    /// # Panics
    /// If the region is too small: areas are laid out by this crate and opened at their full size.
    pub fn new(region: Region, offset: u64, shape: Shape) -> RegionWords {
        let count = shape.words();
        assert!(region.words(offset, count).is_ok(), "ring outside of its area");
        RegionWords { region, offset, count }
    }
}

#[cfg(not(loom))]
impl Words for RegionWords {
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        self.region.words(self.offset, self.count).expect("checked in new, and regions cannot shrink")
    }
}

/// Number and size of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots, a power of two.
    pub slots: usize,
    /// Words of a slot, a multiple of 8 (one cache line); the first is the sequence number.
    pub slot_words: usize,
}

impl Shape {
    /// Words of the whole ring, with a line for the give-back count.
    pub const fn words(self) -> usize {
        self.slots * self.slot_words + 8
    }

    /// Bytes of the whole ring.
    pub const fn bytes(self) -> usize {
        self.words() * 8
    }

    fn given_back(self) -> usize {
        self.slots * self.slot_words
    }

    #[inline]
    fn slot(self, index: u64) -> usize {
        (index as usize & (self.slots - 1)) * self.slot_words
    }
}

/// The side that fills slots.
#[derive(Debug)]
pub struct Producer<W> {
    words: W,
    shape: Shape,
    produced: u64,
    /// `given_back <= produced`, a past value of the consumer's count.
    given_back: u64,
}

/// A free slot about to be filled.
pub struct Filling<'a> {
    slot: &'a [AtomicU64],
    produced: &'a mut u64,
}

impl<W: Words> Producer<W> {
    /// A producer on a fresh ring (all words zero).
    pub fn new(words: W, shape: Shape) -> Self {
        debug_assert!(shape.slots.is_power_of_two() && words.words().len() == shape.words());
        Producer { words, shape, produced: 0, given_back: 0 }
    }

    /// The next free slot, or none when the ring is full.
    #[inline]
    pub fn claim(&mut self) -> Option<Filling<'_>> {
        if self.produced - self.given_back >= self.shape.slots as u64 && !self.reload_credit() {
            return None;
        }
        let start = self.shape.slot(self.produced);
        let slot = &self.words.words()[start..start + self.shape.slot_words];
        Some(Filling { slot, produced: &mut self.produced })
    }

    /// Slots that are free as far as this side knows after it has read the count.
    pub fn free(&mut self) -> usize {
        self.reload_credit();
        self.shape.slots - (self.produced - self.given_back) as usize
    }

    #[cold]
    fn reload_credit(&mut self) -> bool {
        let claim = self.words.words()[self.shape.given_back()].load(Ordering::Acquire);
        if claim >= self.given_back && claim <= self.produced {
            self.given_back = claim;
        }
        self.produced - self.given_back < self.shape.slots as u64
    }
}

impl Filling<'_> {
    /// Sets a word of the message; word 0 is the sequence number and not for messages.
    #[inline]
    pub fn set(&mut self, word: usize, value: u64) {
        debug_assert!(word > 0);
        self.slot[word].store(value, Ordering::Relaxed);
    }

    /// Copies bytes into the message from word `from` on. Bytes that do not fit are our mistake.
    #[inline]
    pub fn set_bytes(&mut self, from: usize, data: &[u8]) {
        debug_assert!(from > 0);
        let room = &self.slot[from..];
        assert!(data.len() <= room.len() * 8, "message larger than its slot");
        let chunks = data.chunks_exact(8);
        let rest = chunks.remainder();
        let full = data.len() / 8;
        for (word, chunk) in room.iter().zip(chunks) {
            word.store(u64::from_le_bytes(chunk.try_into().expect("chunks of eight")), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0u8; 8];
            last[..rest.len()].copy_from_slice(rest);
            room[full].store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
    }

    /// Makes the message visible.
    #[inline]
    pub fn publish(self) {
        *self.produced += 1;
        self.slot[0].store(*self.produced, Ordering::Release);
    }
}

/// The side that empties slots.
#[derive(Debug)]
pub struct Consumer<W> {
    words: W,
    shape: Shape,
    consumed: u64,
    /// What the producer has been told, `told <= consumed`.
    told: u64,
}

/// A full slot. Dropping it leaves it in the ring; [`done`](Full::done) takes it out.
pub struct Full<'a> {
    slot: &'a [AtomicU64],
    given_back: &'a AtomicU64,
    shape: Shape,
    consumed: &'a mut u64,
    told: &'a mut u64,
}

impl<W: Words> Consumer<W> {
    /// A consumer on a fresh ring.
    pub fn new(words: W, shape: Shape) -> Self {
        debug_assert!(shape.slots.is_power_of_two() && words.words().len() == shape.words());
        Consumer { words, shape, consumed: 0, told: 0 }
    }

    /// The oldest message, if there is one.
    #[inline]
    pub fn peek(&mut self) -> Option<Full<'_>> {
        let words = self.words.words();
        let start = self.shape.slot(self.consumed);
        if words[start].load(Ordering::Acquire) != self.consumed + 1 {
            return None;
        }
        Some(Full {
            slot: &words[start..start + self.shape.slot_words],
            given_back: &words[self.shape.given_back()],
            shape: self.shape,
            consumed: &mut self.consumed,
            told: &mut self.told,
        })
    }

    /// Whether a message waits.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.words.words()[self.shape.slot(self.consumed)].load(Ordering::Acquire) == self.consumed + 1
    }
}

impl Full<'_> {
    /// A word of the message.
    #[inline]
    pub fn word(&self, word: usize) -> u64 {
        self.slot[word].load(Ordering::Relaxed)
    }

    /// Copies bytes of the message out, from word `from` on; at most what the slot has.
    #[inline]
    pub fn bytes(&self, from: usize, into: &mut [u8]) {
        let words = &self.slot[from..];
        debug_assert!(into.len() <= words.len() * 8);
        for (chunk, word) in into.chunks_mut(8).zip(words) {
            let bytes = word.load(Ordering::Relaxed).to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// Takes the message out of the ring. The producer is told in steps of a quarter ring, which
    /// spares it cache-line traffic.
    #[inline]
    pub fn done(self) {
        *self.consumed += 1;
        if *self.consumed - *self.told >= (self.shape.slots as u64 / 4).max(1) {
            *self.told = *self.consumed;
            self.given_back.store(*self.told, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
