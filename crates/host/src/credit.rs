//! The words by which the two ends of an endpoint's channel agree, without a lock: which messages
//! are there, which slots and frames are free again, and whether the owner polls the channel.
//!
//! ```text
//!   sender                                    owner
//!   ──────                                    ─────
//!   Credit::room: a slot, frames?             is_there(number)?
//!   frames, slot, number ───────────────────▶ reads them
//!   must_mark(quiet)? marks the board         gives back slot, frame
//!   Credit::hear  ◀────────────────────────── taken, given back
//!                                             sleep: set_quiet, look once more
//! ```
//!
//! They are plain atomics in one file so that loom explores them (run the tests with `--cfg loom`).
//!
//! Invariants: a slot or frame is written only when its last reader is done; an owner that has
//! found nothing after it became quiet is told of the next message. A payload of several frames
//! that found no room is kept a run, which no shorter one uses. What the owner says of credit is a
//! claim: it can harm its own messages only. Source: [GMS §2] send ring, receive ring.

mod runs;

use crate::atomics::{AtomicU64, Ordering, fence};
pub use runs::Run;

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

    /// The owner has read a payload to its end, so its frames are free, all at once.
    #[inline]
    pub fn give_back(&self, run: Run) {
        self.given_back.fetch_xor(run.mask(), Ordering::Release);
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
    /// Kept for a payload of as many frames that found no room: shorter ones use others.
    kept: Option<Run>,
}

impl Credit {
    /// For a channel of so many slots, and frames, up to 64.
    pub fn new(slots: u64, frames: u64) -> Credit {
        Credit { slots, frames, sent: 0, taken: 0, used: 0, given_back: 0, kept: None }
    }

    /// Messages sent.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Room for a message, as far as was heard: where its payload goes, which takes so many frames
    /// side by side, up to all of them.
    #[inline]
    pub fn room(&self, frames: u64) -> Option<Option<Run>> {
        if self.outstanding() >= self.slots {
            return None;
        }
        match frames {
            0 => Some(None),
            1 => {
                // From the lowest on, so that long ones find room above.
                let frame = u64::from(self.free_for(1).trailing_zeros());
                (frame < self.frames).then_some(Some(Run { first: frame, count: 1 }))
            }
            _ => Run::highest_in(self.free_for(frames) & self.all(), frames).map(Some),
        }
    }

    /// Frames that a payload of so many may use; bits of frames that do not exist are set too.
    #[inline]
    fn free_for(&self, frames: u64) -> u64 {
        let kept = self.kept.filter(|run| run.count > frames).map_or(0, Run::mask);
        !(self.used ^ self.given_back | kept)
    }

    fn all(&self) -> u64 {
        if self.frames == 0 { 0 } else { Run { first: 0, count: self.frames }.mask() }
    }

    /// Keeps a run for a payload of so many frames, 2 or more, which found no room: the one that
    /// needs fewest frames back. False: one is kept already for a longer one, which comes first.
    pub fn keep(&mut self, frames: u64) -> bool {
        let longest = self.kept.map_or(0, |run| run.count);
        if frames > longest {
            self.kept = Run::fullest_in(!(self.used ^ self.given_back), self.frames, frames);
        }
        frames >= longest
    }

    /// Whether a run is kept.
    pub fn keeps(&self) -> bool {
        self.kept.is_some()
    }

    /// Keeps none any more: nobody has asked for it for long.
    pub fn keep_none(&mut self) {
        self.kept = None;
    }

    /// Messages that the owner had not taken when it was last heard.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.sent - self.taken
    }

    /// Whether three quarters of the slots or frames are in use, as far as was heard: time to ask,
    /// where the answer takes a while.
    pub fn is_low(&self) -> bool {
        let used = ((self.used ^ self.given_back) & self.all()).count_ones();
        let most = |of: u64| of - of / 4;
        self.outstanding() >= most(self.slots) || self.frames > 0 && u64::from(used) >= most(self.frames)
    }

    /// A message was sent, with its payload in those frames.
    #[inline]
    pub fn spend(&mut self, run: Option<Run>) {
        self.sent += 1;
        let Some(run) = run else { return };
        self.used ^= run.mask();
        if self.kept.is_some_and(|kept| run.count >= kept.count) {
            self.kept = None;
        }
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
    use std::collections::VecDeque;

    #[test]
    fn credit_is_low_when_three_quarters_of_slots_or_frames_are_in_use() {
        let mut credit = Credit::new(8, 4);
        (0..5).for_each(|_| credit.spend(None));
        assert!(!credit.is_low());
        credit.spend(None);
        assert!(credit.is_low());
        credit.hear([6, 0]);
        assert!(!credit.is_low());
        credit.spend(Some(Run { first: 0, count: 2 }));
        assert!(!credit.is_low());
        credit.spend(Some(Run { first: 3, count: 1 }));
        assert!(credit.is_low());
        credit.hear([8, 0b11]);
        assert!(!credit.is_low());
        // Without frames nothing is low for lack of them.
        assert!(!Credit::new(8, 0).is_low());
    }

    #[test]
    fn a_lying_owner_gives_no_more_room_than_there_is() {
        let mut rng = vmmc_utlb::Rng::new(9);
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        for _ in 0..rounds {
            let (slots, frames) = (1 + rng.below(4), rng.below(65));
            let mut credit = Credit::new(slots, frames);
            for _ in 0..20 {
                let most = if rng.below(2) == 0 { 8 } else { u64::MAX };
                credit.hear([rng.below(most), rng.below(most)]);
                assert!(credit.taken <= credit.sent && credit.sent - credit.taken <= slots);
                let wanted = rng.below(4.min(frames + 1));
                let Some(run) = credit.room(wanted) else {
                    _ = wanted > 1 && credit.keep(wanted);
                    continue;
                };
                assert!(run.map_or(0, |run| run.count) == wanted);
                assert!(run.is_none_or(|run| run.first + run.count <= frames));
                credit.spend(run);
            }
        }
    }

    #[test]
    fn all_slots_and_frames_are_used_and_come_back() {
        let words = ChannelWords::default();
        let mut credit = Credit::new(100, 64);
        for round in 0..3 {
            for frame in 0..64 {
                assert_eq!(credit.room(1), Some(Some(Run { first: frame, count: 1 })));
                credit.spend(credit.room(1).unwrap());
            }
            assert_eq!(credit.room(1), None);
            assert_eq!(credit.room(0), Some(None));
            credit.hear(words.credit());
            assert_eq!((credit.room(1), credit.outstanding()), (None, 64), "nothing was taken");
            (0..64).for_each(|first| words.give_back(Run { first, count: 1 }));
            words.take(64 * (round + 1));
            credit.hear(words.credit());
        }
    }

    #[test]
    fn a_long_payload_does_not_starve_behind_short_ones() {
        for keeps in [true, false] {
            let words = ChannelWords::default();
            let mut credit = Credit::new(u64::MAX, 4);
            let (mut held, mut short, mut tries) = (VecDeque::new(), 0, 0);
            let sent = loop {
                // A short one as often as there is room, and one payload comes back.
                while let Some(Some(run)) = credit.room(1).filter(|_| held.len() < 3) {
                    credit.spend(Some(run));
                    held.push_back(run);
                    short += 1;
                }
                words.give_back(held.pop_front().expect("it has sent some"));
                credit.hear(words.credit());
                tries += 1;
                match credit.room(3) {
                    Some(run) => break run,
                    None if tries > 100 => break None,
                    // One that is shorter, but long, does not take its place.
                    None if keeps => assert!(credit.keep(3) && !credit.keep(2)),
                    None => {}
                }
            };
            assert_eq!((sent.is_some(), short > 3), (keeps, true), "after {tries} tries and {short} short ones");
            credit.spend(sent);
            assert!(!credit.keeps());
        }
    }

    #[test]
    fn a_run_that_nobody_asks_for_any_more_is_free_for_all() {
        let words = ChannelWords::default();
        let mut credit = Credit::new(100, 2);
        let run = credit.room(1).unwrap().unwrap();
        credit.spend(Some(run));
        assert!(credit.room(2).is_none() && credit.keep(2));
        assert_eq!(credit.room(1), None, "the other frame is kept");
        words.give_back(run);
        credit.hear(words.credit());
        assert_eq!(credit.room(1), None, "both are");
        assert_eq!(credit.room(2), Some(Some(Run { first: 0, count: 2 })));
        credit.keep_none();
        assert_eq!(credit.room(1), Some(Some(Run { first: 0, count: 1 })));
    }
}
