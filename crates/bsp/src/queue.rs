//! Messages that have come with the last sync.
//!
//! Invariant: what a message has begins at a multiple of 8 bytes; nothing moves until the next
//! sync.

use crate::error::BspError;
use crate::limits::QUEUE_BYTES_MAX;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Messages in the order in which they are taken.
#[derive(Default)]
pub(crate) struct Queue {
    words: Vec<u64>,
    messages: Vec<(Range<usize>, Range<usize>)>,
    taken: usize,
    /// Of those that were not taken.
    bytes: u64,
}

impl Queue {
    /// Forgets all, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.messages.clear();
        (self.taken, self.bytes) = (0, 0);
    }

    /// Room for a message: its tag, and its bytes.
    pub(crate) fn add(&mut self, pid: u32, tag: u64, len: u64) -> Result<(&mut [u8], &mut [u8]), BspError> {
        let held = 8 * self.words.len() as u64;
        let more = tag.checked_add(len).filter(|more| held.saturating_add(*more) <= QUEUE_BYTES_MAX);
        let more = more.ok_or(BspError::QueueFull { pid })?;
        let tag_words = (tag as usize).div_ceil(8);
        let words = tag_words + (len as usize).div_ceil(8);
        self.words.try_reserve(words).map_err(|_| BspError::NoMemory { bytes: more })?;
        let start = 8 * self.words.len();
        self.words.resize(self.words.len() + words, 0);
        let body = start + 8 * tag_words;
        self.messages.push((start..start + tag as usize, body..body + len as usize));
        self.bytes += len;
        let (tags, bodies) = self.words.as_mut_bytes()[start..].split_at_mut(8 * tag_words);
        Ok((&mut tags[..tag as usize], &mut bodies[..len as usize]))
    }

    /// Tag and bytes of the next message.
    pub(crate) fn first(&self) -> Option<(&[u8], &[u8])> {
        let (tag, body) = self.messages.get(self.taken)?.clone();
        let bytes = self.words.as_bytes();
        Some((&bytes[tag], &bytes[body]))
    }

    /// Takes the next message; its bytes stay where they are.
    pub(crate) fn take(&mut self) -> Option<(&[u8], &[u8])> {
        let (_, body) = self.messages.get(self.taken)?;
        self.bytes -= body.len() as u64;
        self.taken += 1;
        let (tag, body) = self.messages[self.taken - 1].clone();
        let bytes = self.words.as_bytes();
        Some((&bytes[tag], &bytes[body]))
    }

    /// Messages that were not taken, and their bytes without tags.
    pub(crate) fn left(&self) -> (u64, u64) {
        ((self.messages.len() - self.taken) as u64, self.bytes)
    }
}
