//! How the peers of a process tell its event loops which connections to poll.
//!
//! A process has one area of bells. A bell is what one event loop has: an armed flag, a bit for
//! each token, and a summary of the words of bits. A peer sets the bit, then rings the eventfd of
//! the bell if the flag says that the loop sleeps.
//!
//! Invariant: a peer that publishes, passes a full fence and then marks, either finds the bit clear
//! and sets it, or is seen by the take that clears it; a loop that armed its bell and found the
//! summary empty is rung. All peers of the process can write here: the worst is a spurious wake-up
//! or a missing one, never wrong data.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use vmmc_host::region::{Protection, Region, RegionError};

/// Bells of a process, each for one event loop; further loops do without.
pub const BELLS: u32 = 16;
/// Tokens of a bell.
pub const TOKENS: u32 = 1 << 16;

const WORDS: u64 = TOKENS as u64 / 64;
const SUMMARY: u64 = WORDS / 64;
/// Armed flag on a line of its own, summary, bits.
const BELL_WORDS: u64 = 8 + SUMMARY + WORDS;
/// Behind the bells: how many messages the node has sent.
const MESSAGE_COUNT_AT: u64 = BELLS as u64 * BELL_WORDS * 8;
const BYTES: u64 = MESSAGE_COUNT_AT + 64;

/// The bells of a process, its own or a peer's.
#[derive(Clone, Debug)]
pub struct Bells(Region);

/// Which bell and token of which process an end of a connection reports to; what stands in the
/// words of a connection is a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Id of the process on its node.
    pub process: u32,
    /// Bell, below [`BELLS`].
    pub bell: u32,
    /// Token, below [`TOKENS`].
    pub token: u32,
}

const PRESENT: u64 = 1 << 63;

impl Watch {
    /// As it stands in a connection's words.
    pub fn to_word(self) -> u64 {
        PRESENT | u64::from(self.process) << 24 | u64::from(self.bell % BELLS) << 16 | u64::from(self.token % TOKENS)
    }

    /// What a word says; none if nobody watches.
    #[inline]
    pub fn from_word(word: u64) -> Option<Watch> {
        (word & PRESENT != 0).then_some(Watch {
            process: (word >> 24) as u32,
            bell: (word >> 16) as u32 & (BELLS - 1),
            token: word as u32 & (TOKENS - 1),
        })
    }
}

impl Bells {
    /// Bells of this process.
    ///
    /// # Errors
    /// When memory is short.
    pub fn create() -> Result<Bells, RegionError> {
        Region::create(BYTES).map(Bells)
    }

    /// Bells of another process.
    ///
    /// # Errors
    /// When the descriptor is not a sealed memfd of the right size.
    pub fn map(fd: OwnedFd) -> Result<Bells, RegionError> {
        Region::map(fd, BYTES, Protection::ReadWrite).map(Bells)
    }

    /// Closes the descriptor: these bells are rung, and shared no further.
    pub fn let_descriptor_go(&self) {
        self.0.let_descriptor_go();
    }

    /// A descriptor for the node.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn share(&self) -> Result<OwnedFd, RegionError> {
        self.0.share()
    }

    /// Grows with each message that the node sends to the process.
    #[inline]
    pub fn message_count(&self) -> &AtomicU64 {
        self.0.word(MESSAGE_COUNT_AT).expect("behind the bells, in the same region")
    }

    #[inline]
    fn words(&self, bell: u32) -> (&AtomicU64, &[AtomicU64], &[AtomicU64]) {
        let at = u64::from(bell % BELLS) * BELL_WORDS * 8;
        let all = self.0.words(at, BELL_WORDS as usize).expect("bells lie in their region, which was mapped whole");
        let (head, bits) = all.split_at((8 + SUMMARY) as usize);
        (&head[0], &head[8..], bits)
    }

    /// Sets the bit of a token. True: the loop sleeps, so ring its eventfd. The caller has
    /// published and passed a full fence.
    #[inline]
    pub fn mark(&self, bell: u32, token: u32) -> bool {
        let (_, _, bits) = self.words(bell);
        let bit = 1 << (token % 64);
        let word = &bits[(token % TOKENS) as usize / 64];
        if word.load(Ordering::Relaxed) & bit != 0 {
            return false;
        }
        self.mark_always(bell, token)
    }

    /// Like [`mark`](Self::mark), also if the bit is set: the process that set it may have died
    /// before it went on.
    pub fn mark_always(&self, bell: u32, token: u32) -> bool {
        let (armed, summary, bits) = self.words(bell);
        let index = (token % TOKENS) as usize / 64;
        bits[index].fetch_or(1 << (token % 64), Ordering::SeqCst);
        summary[index / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
        armed.load(Ordering::SeqCst) != 0 && armed.swap(0, Ordering::SeqCst) != 0
    }

    /// Takes all marked tokens of a bell.
    pub fn take(&self, bell: u32, each: &mut dyn FnMut(u32)) {
        let (_, summary, bits) = self.words(bell);
        for (high, word) in summary.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for_bits(word.swap(0, Ordering::SeqCst), |low| {
                let index = high * 64 + low as usize;
                let taken = bits[index].swap(0, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                for_bits(taken, |bit| each(index as u32 * 64 + bit));
            });
        }
    }

    /// Whether a token is marked.
    #[inline]
    pub fn any(&self, bell: u32) -> bool {
        self.words(bell).1.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// The loop is about to sleep. True: something is marked, do not sleep.
    pub fn arm(&self, bell: u32) -> bool {
        self.words(bell).0.swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.any(bell)
    }

    /// The loop is awake.
    pub fn disarm(&self, bell: u32) {
        self.words(bell).0.store(0, Ordering::Relaxed);
    }
}

fn for_bits(mut word: u64, mut each: impl FnMut(u32)) {
    while word != 0 {
        each(word.trailing_zeros());
        word &= word - 1;
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn taken(bells: &Bells, bell: u32) -> Vec<u32> {
        let mut all = Vec::new();
        bells.take(bell, &mut |token| all.push(token));
        all
    }

    #[test]
    fn marks_come_out_once_and_in_their_bell() {
        let own = Bells::create().unwrap();
        let peers = Bells::map(own.share().unwrap()).unwrap();
        for token in [0, 63, 64, 4097, TOKENS - 1] {
            assert!(!peers.mark(3, token), "nobody sleeps");
        }
        peers.mark(4, 9);
        assert_eq!(taken(&own, 3), [0, 63, 64, 4097, TOKENS - 1]);
        assert_eq!(taken(&own, 3), []);
        assert_eq!(taken(&own, 4), [9]);
    }

    #[test]
    fn a_sleeping_loop_is_rung_once() {
        let bells = Bells::create().unwrap();
        assert!(!bells.arm(0));
        assert!(bells.mark(0, 5));
        assert!(!bells.mark(0, 6));
        assert!(bells.arm(0), "something is marked");
    }

    #[test]
    fn watches_survive_their_word_and_claims_stay_in_bounds() {
        let watch = Watch { process: 77, bell: 15, token: 65_535 };
        assert_eq!(Watch::from_word(watch.to_word()), Some(watch));
        assert_eq!(Watch::from_word(0), None);
        let wild = Watch::from_word(u64::MAX).unwrap();
        assert!(wild.bell < BELLS && wild.token < TOKENS);
    }
}
