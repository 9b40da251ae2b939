//! What shows others of this node that threads of a session sleep, and for words of which memory.
//!
//! Invariant: while a thread waits for words, the bits of their regions are among those that the
//! bell shows; one thread at a time changes these. Source: [NT §2] receives that wait, with a
//! wake-up in the place of an interrupt.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use vmmc_host::NotifyBell;
use vmmc_host::area::REGION_BITS;
use vmmc_host::wait::TimedSleeps;

/// Words of exported memory that a wait is for.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    /// Sleeps no longer than these, for the words may change without a wake-up.
    pub(crate) sleeps: TimedSleeps,
    /// In these regions, as bits of `area::region_bit`.
    pub(crate) regions: u64,
}

/// The bell of a session, which its importers read.
pub(crate) struct Bell {
    shown: NotifyBell,
    /// Waits for words of the regions of each bit.
    waits: Mutex<[u32; REGION_BITS]>,
}

impl Bell {
    pub(crate) fn new(shown: NotifyBell) -> Bell {
        Bell { shown, waits: Mutex::new([0; REGION_BITS]) }
    }

    /// Not 0: the process sleeps, or an event loop of it does; see [`NotifyBell::word`].
    pub(crate) fn word(&self) -> &AtomicU64 {
        self.shown.word()
    }

    /// A thread waits for words of these regions, until this is dropped, and may sleep.
    pub(crate) fn await_words(&self, regions: u64) -> WordsAwaited<'_> {
        self.change(regions, |waits| *waits += 1, |all| self.shown.await_words(all));
        WordsAwaited { bell: self, regions }
    }

    /// Counts waits, and shows all regions of which there are some then.
    fn change(&self, regions: u64, count: impl Fn(&mut u32), show: impl FnOnce(u64)) {
        let mut waits = self.waits.lock().expect("no panic while the lock is held");
        let bit_of = |at: usize| 1u64 << at;
        (0..REGION_BITS).filter(|at| regions & bit_of(*at) != 0).for_each(|at| count(&mut waits[at]));
        show((0..REGION_BITS).filter(|at| waits[*at] > 0).map(bit_of).sum());
    }

    /// Whether a store there would wake somebody.
    #[cfg(test)]
    pub(crate) fn awaits(&self, regions: u64) -> bool {
        self.shown.words_awaited(regions).is_some()
    }
}

/// A thread waits for words; see [`Bell::await_words`].
pub(crate) struct WordsAwaited<'a> {
    bell: &'a Bell,
    regions: u64,
}

impl Drop for WordsAwaited<'_> {
    fn drop(&mut self) {
        self.bell.change(self.regions, |waits| *waits -= 1, |all| self.bell.shown.words_found(all));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmmc_host::area::region_bit;

    #[test]
    fn a_region_is_shown_until_the_last_of_its_waits_has_ended() {
        let bell = Bell::new(NotifyBell::create().unwrap().0);
        let (one, other, same) = (region_bit(3), region_bit(4), region_bit(3 + REGION_BITS as u32));
        assert_eq!(one, same);
        let first = bell.await_words(one | other);
        let second = bell.await_words(one);
        assert!(bell.awaits(one) && bell.awaits(other) && !bell.awaits(region_bit(5)));
        drop(first);
        assert!(bell.awaits(one) && !bell.awaits(other));
        drop(second);
        assert!(!bell.awaits(one) && !bell.awaits(u64::MAX));
    }
}
