//! Replacement: which pinned page to give up. Five policies of the paper, three newer ones, and a
//! trait for an application's own. [UTLB §3.4]
//!
//! A policy sees slots, not pages: small dense numbers, so that its bookkeeping is arrays.
//! Invariant: a victim is a slot that was inserted, was not removed since, and is not held; the
//! owner removes it before it inserts another. Departure from the paper: it names the policies
//! only; how ties are broken (least recently used first) is ours.

mod clock;
mod frequency;
mod list;
mod random;
mod recency;
mod s3fifo;
mod sieve;
#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use frequency::{Lfu, Mfu};
pub use random::Random;
pub use recency::{Fifo, Lru, Mru};
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;

use crate::ids::{Page, Slot};

/// Slots whose pages take part in outstanding transfers: never victims. [UTLB §3.1]
#[derive(Clone, Debug, Default)]
pub struct Held {
    counts: Vec<u32>,
    held: usize,
}

impl Held {
    /// Whether the page of `slot` is in use by a transfer.
    #[inline]
    pub fn contains(&self, slot: Slot) -> bool {
        self.held > 0 && self.counts.get(slot.at()).is_some_and(|count| *count > 0)
    }

    /// Slots that are held.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether no slot is held.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// One more transfer uses the slot.
    #[inline]
    pub fn hold(&mut self, slot: Slot) {
        if self.counts.len() <= slot.at() {
            self.counts.resize(slot.at() + 1, 0);
        }
        self.counts[slot.at()] += 1;
        self.held += usize::from(self.counts[slot.at()] == 1);
    }

    /// One transfer less uses the slot.
    ///
    /// # Panics
    ///
    /// If no transfer used it: then some transfer was released twice, and pages of another could be
    /// unpinned under it.
    #[inline]
    pub fn release(&mut self, slot: Slot) {
        let count = self.counts.get_mut(slot.at()).filter(|count| **count > 0);
        let count = count.expect("a slot is released as often as it was held");
        *count -= 1;
        self.held -= usize::from(*count == 0);
    }

    /// [`hold`](Held::hold) for each of these slots. Pages that were pinned together have slots in
    /// a row, which are counted together.
    #[inline]
    pub(crate) fn hold_all(&mut self, slots: &[u32]) {
        match row(slots) {
            Some(row) => {
                if self.counts.len() < row.end {
                    self.counts.resize(row.end, 0);
                }
                let counts = &mut self.counts[row];
                self.held += counts.iter().map(|count| usize::from(*count == 0)).sum::<usize>();
                counts.iter_mut().for_each(|count| *count += 1);
            }
            None => slots.iter().for_each(|slot| self.hold(Slot(*slot))),
        }
    }

    /// [`release`](Held::release) for each of these slots.
    ///
    /// # Panics
    ///
    /// As [`release`](Held::release).
    #[inline]
    pub(crate) fn release_all(&mut self, slots: &[u32]) {
        match row(slots).and_then(|row| self.counts.get_mut(row)) {
            Some(counts) => {
                assert!(counts.iter().all(|count| *count > 0), "a slot is released as often as it was held");
                counts.iter_mut().for_each(|count| *count -= 1);
                self.held -= counts.iter().map(|count| usize::from(*count == 0)).sum::<usize>();
            }
            None => slots.iter().for_each(|slot| self.release(Slot(*slot))),
        }
    }
}

/// The slots as a range, if each follows the one before and there are some.
#[inline]
fn row(slots: &[u32]) -> Option<std::ops::Range<usize>> {
    let first = slots.first().filter(|_| slots.len() > 2)?;
    let differs = slots.iter().zip(*first..).map(|(slot, expected)| slot ^ expected).fold(0, |all, one| all | one);
    (differs == 0).then(|| *first as usize..*first as usize + slots.len())
}

/// An application's choice of what to unpin.
///
/// Called in this order for each page: [`inserted`](Policy::inserted) once,
/// [`touched`](Policy::touched) at each later use, [`removed`](Policy::removed) once.
/// [`victim`](Policy::victim) only proposes; the owner then calls `removed`.
pub trait Policy: std::fmt::Debug + Send {
    /// A page was pinned and has this slot from now on. It counts as its first use.
    fn inserted(&mut self, slot: Slot, page: Page);

    /// A pinned page is used again.
    fn touched(&mut self, slot: Slot);

    /// The page of the slot is not pinned any more. `evicted` if it was this policy's victim, not
    /// forgotten for another reason.
    fn removed(&mut self, slot: Slot, page: Page, evicted: bool);

    /// The slot to give up; `None` if every one is held.
    fn victim(&mut self, held: &Held) -> Option<Slot>;

    /// How many pages may be pinned from now on; `None` for no limit. Policies that divide their
    /// space need it.
    fn limited(&mut self, pages: Option<usize>) {
        let _ = pages;
    }
}

/// The policies that come with the crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Least recently used: the only one that the paper measures.
    Lru,
    /// Most recently used.
    Mru,
    /// Least frequently used; of several, the least recently used.
    Lfu,
    /// Most frequently used; of several, the least recently used.
    Mfu,
    /// Any, from this seed.
    Random(u64),
    /// In the order of pinning.
    Fifo,
    /// FIFO with a second chance.
    Clock,
    /// SIEVE (Zhang et al., NSDI 2024).
    Sieve,
    /// S3-FIFO (Yang et al., SOSP 2023).
    S3Fifo,
}

impl PolicyKind {
    /// All of them; RANDOM with seed 1.
    pub const ALL: [PolicyKind; 9] = [
        PolicyKind::Lru,
        PolicyKind::Mru,
        PolicyKind::Lfu,
        PolicyKind::Mfu,
        PolicyKind::Random(1),
        PolicyKind::Fifo,
        PolicyKind::Clock,
        PolicyKind::Sieve,
        PolicyKind::S3Fifo,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::Mru => "mru",
            PolicyKind::Lfu => "lfu",
            PolicyKind::Mfu => "mfu",
            PolicyKind::Random(_) => "random",
            PolicyKind::Fifo => "fifo",
            PolicyKind::Clock => "clock",
            PolicyKind::Sieve => "sieve",
            PolicyKind::S3Fifo => "s3fifo",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// A policy of this kind.
    pub fn build(self) -> AnyPolicy {
        match self {
            PolicyKind::Lru => AnyPolicy::Lru(Lru::new()),
            PolicyKind::Mru => AnyPolicy::Custom(Box::new(Mru::new())),
            PolicyKind::Lfu => AnyPolicy::Custom(Box::new(Lfu::new())),
            PolicyKind::Mfu => AnyPolicy::Custom(Box::new(Mfu::new())),
            PolicyKind::Random(seed) => AnyPolicy::Custom(Box::new(Random::new(seed))),
            PolicyKind::Fifo => AnyPolicy::Custom(Box::new(Fifo::new())),
            PolicyKind::Clock => AnyPolicy::Custom(Box::new(Clock::new())),
            PolicyKind::Sieve => AnyPolicy::Custom(Box::new(Sieve::new())),
            PolicyKind::S3Fifo => AnyPolicy::Custom(Box::new(S3Fifo::new())),
        }
    }
}

/// A policy in use: LRU without indirection, because it is on the path of every transfer, and any
/// other behind the trait.
#[derive(Debug)]
pub enum AnyPolicy {
    /// LRU.
    Lru(Lru),
    /// Another one, or an application's own.
    Custom(Box<dyn Policy>),
}

impl AnyPolicy {
    /// Whether using the same slots again, in the same order and without another use between,
    /// changes no later choice.
    #[inline]
    pub(crate) fn repeats_change_nothing(&self) -> bool {
        matches!(self, AnyPolicy::Lru(_))
    }
}

macro_rules! each {
    ($self:expr, $policy:ident => $call:expr) => {
        match $self {
            AnyPolicy::Lru($policy) => $call,
            AnyPolicy::Custom($policy) => $call,
        }
    };
}

impl Policy for AnyPolicy {
    fn inserted(&mut self, slot: Slot, page: Page) {
        each!(self, p => p.inserted(slot, page));
    }

    #[inline]
    fn touched(&mut self, slot: Slot) {
        each!(self, p => p.touched(slot));
    }

    fn removed(&mut self, slot: Slot, page: Page, evicted: bool) {
        each!(self, p => p.removed(slot, page, evicted));
    }

    fn victim(&mut self, held: &Held) -> Option<Slot> {
        each!(self, p => p.victim(held))
    }

    fn limited(&mut self, pages: Option<usize>) {
        each!(self, p => p.limited(pages));
    }
}
