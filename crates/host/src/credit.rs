//! The words by which the two ends of an endpoint's channel agree, without a lock: which messages
//! are there, which slots and frames are free again, and whether the owner polls the channel.
//!
//! ```text
//!   sender                                    owner
//!   ──────                                    ─────
//!   Credit::room: a slot, a frame?            is_there(number)?
//!   frame, slot, number  ───────────────────▶ reads them
//!   must_mark(quiet)? marks the board         gives back slot, frame
//!   Credit::hear  ◀────────────────────────── taken, given back
//!                                             sleep: set_quiet, look once more
//! ```
//!
//! They are plain atomics in one file so that loom explores them (run the tests with `--cfg loom`).
//!
//! Invariants: a slot or frame is written only when its last reader is done; an owner that has
//! found nothing after it became quiet is told of the next message. What the owner says of credit
//! is a claim: it can harm its own messages only. Source: [GMS §2] send ring, receive ring.

use crate::atomics::{AtomicU64, Ordering, fence};

crate::words! {
    /// The head of a channel: what its owner writes, and its sender reads.
    pub struct ChannelWords {
        /// Messages taken so far.
        taken: AtomicU64,
        /// A bit for each frame, which changes when it is given back.
        given_back: AtomicU64,
        _pad: [AtomicU64; 6],
        /// 1: the owner does not poll this channel, so its sender marks the board.
        quiet: AtomicU64,
    }
}

/// Where in a channel the count of taken messages is, bytes; the frames given back follow.
pub const TAKEN_AT: u64 = 0;
/// Where in a channel the word is that says whether its owner is quiet, bytes.
pub const QUIET_AT: u64 = 64;

impl ChannelWords {
    /// The owner has read so many messages, each to its end.
    #[inline]
    pub fn take(&self, messages: u64) {
        self.taken.store(messages, Ordering::Release);
    }

    /// The owner has read a frame to its end.
    #[inline]
    pub fn give_back(&self, frame: u64) {
        self.given_back.fetch_xor(1 << frame, Ordering::Release);
    }

    /// The owner polls the channel, or will not. After that it looks once more: the sender stores a
    /// message, then loads this; here this is stored, then messages are loaded. So one of the two
    /// sees the other.
    pub fn set_quiet(&self, quiet: bool) {
        self.quiet.store(u64::from(quiet), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// What a sender reads for [`Credit::hear`], as a copy of memory does.
    #[cfg(test)]
    fn credit(&self) -> [u64; 2] {
        [self.taken.load(Ordering::Relaxed), self.given_back.load(Ordering::Relaxed)]
    }

    /// The word that says whether the owner is quiet, for [`load_after_store`].
    pub fn quiet(&self) -> &AtomicU64 {
        &self.quiet
    }
}

/// Whether a message is there, by the last word of its slot, when so many were taken before.
#[inline]
pub fn is_there(number: &AtomicU64, taken: u64) -> bool {
    number.load(Ordering::Acquire) == taken + 1
}

/// A word of the other side, which may have changed before that side could see what was stored
/// here.
#[inline]
pub fn load_after_store(word: &AtomicU64) -> u64 {
    fence(Ordering::SeqCst);
    word.load(Ordering::Acquire)
}

/// What a sender may write.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    slots: u64,
    frames: u64,
    /// Messages sent.
    sent: u64,
    /// Messages that the owner had taken when it was last heard. `taken <= sent <= taken + slots`.
    taken: u64,
    /// A bit for each frame, which changes when it is used; the owner's changes when it is given
    /// back.
    used: u64,
    given_back: u64,
}

impl Credit {
    /// For a channel of so many slots, and frames, up to 64.
    pub fn new(slots: u64, frames: u64) -> Credit {
        Credit { slots, frames, sent: 0, taken: 0, used: 0, given_back: 0 }
    }

    /// Messages sent.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Room for a message, as far as was heard: the frame for its payload, if it is to have one.
    #[inline]
    pub fn room(&self, payload: bool) -> Option<Option<u64>> {
        if self.outstanding() >= self.slots {
            return None;
        }
        if !payload {
            return Some(None);
        }
        let frame = u64::from((!(self.used ^ self.given_back)).trailing_zeros());
        (frame < self.frames).then_some(Some(frame))
    }

    /// Messages that the owner had not taken when it was last heard.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.sent - self.taken
    }

    /// A message was sent, with its payload in that frame.
    #[inline]
    pub fn spend(&mut self, frame: Option<u64>) {
        self.sent += 1;
        self.used ^= frame.map_or(0, |frame| 1 << frame);
    }

    /// What the owner says of messages taken, and of frames given back: two words that were just
    /// read.
    pub fn hear(&mut self, [taken, given_back]: [u64; 2]) {
        // What it has read, it has read before these words said so.
        fence(Ordering::Acquire);
        // It takes no more than was sent, nor less than before.
        self.taken = taken.clamp(self.taken, self.sent);
        self.given_back = given_back;
    }
}

#[cfg(all(test, loom))]
mod tests;

#[cfg(all(test, not(loom)))]
mod plain {
    use super::*;

    #[test]
    fn a_lying_owner_gives_no_more_room_than_there_is() {
        let mut rng = vmmc_utlb::Rng::new(9);
        for _ in 0..20_000 {
            let (slots, frames) = (1 + rng.below(4), rng.below(65));
            let mut credit = Credit::new(slots, frames);
            for _ in 0..20 {
                let most = if rng.below(2) == 0 { 8 } else { u64::MAX };
                credit.hear([rng.below(most), rng.below(most)]);
                assert!(credit.taken <= credit.sent && credit.sent - credit.taken <= slots);
                let payload = rng.below(2) == 0;
                let Some(frame) = credit.room(payload) else { continue };
                assert!(frame.is_some() == payload && frame.is_none_or(|frame| frame < frames));
                credit.spend(frame);
            }
        }
    }

    #[test]
    fn all_slots_and_frames_are_used_and_come_back() {
        let words = ChannelWords::default();
        let mut credit = Credit::new(100, 64);
        for round in 0..3 {
            for frame in 0..64 {
                assert_eq!(credit.room(true), Some(Some(frame)));
                credit.spend(Some(frame));
            }
            assert_eq!(credit.room(true), None);
            assert_eq!(credit.room(false), Some(None));
            credit.hear(words.credit());
            assert_eq!((credit.room(true), credit.outstanding()), (None, 64), "nothing was taken");
            (0..64).for_each(|frame| words.give_back(frame));
            words.take(64 * (round + 1));
            credit.hear(words.credit());
        }
    }
}
