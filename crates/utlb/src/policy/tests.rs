//! Every policy against a naive one that keeps everything in a vector, under random uses, removals
//! and holds.

use super::*;
use crate::rng::Rng;
use proptest::prelude::*;

/// What a naive policy knows about a slot.
#[derive(Clone, Debug)]
struct Row {
    slot: Slot,
    page: Page,
    uses: u64,
    last: u64,
    marked: bool,
    in_main: bool,
    count: u8,
}

/// Everything in one vector, oldest insertion first; nothing clever.
struct Naive {
    kind: PolicyKind,
    rows: Vec<Row>,
    now: u64,
    // SIEVE: the slot under the hand.
    hand: Option<Slot>,
    // S3-FIFO: pages in the order in which they left the small queue.
    ghosts: Vec<Option<Page>>,
    limit: usize,
    // RANDOM: the slots as swap-removal leaves them, and the same numbers.
    bag: Vec<Slot>,
    rng: Rng,
}

impl Naive {
    fn new(kind: PolicyKind, limit: usize) -> Naive {
        let (rows, bag) = (Vec::new(), Vec::new());
        Naive { kind, rows, now: 0, hand: None, ghosts: Vec::new(), limit, bag, rng: Rng::new(1) }
    }

    fn inserted(&mut self, slot: Slot, page: Page) {
        self.now += 1;
        let known = self.ghosts.contains(&Some(page));
        self.ghosts.iter_mut().filter(|g| **g == Some(page)).for_each(|g| *g = None);
        let row = Row { slot, page, uses: 1, last: self.now, marked: false, in_main: known, count: 0 };
        self.rows.push(row);
        self.bag.push(slot);
    }

    fn touched(&mut self, slot: Slot) {
        self.now += 1;
        let row = self.rows.iter_mut().find(|r| r.slot == slot).expect("in");
        row.uses += 1;
        row.last = self.now;
        row.marked = true;
        row.count = (row.count + 1).min(3);
    }

    fn removed(&mut self, slot: Slot, evicted: bool) {
        let at = self.rows.iter().position(|r| r.slot == slot).expect("in");
        if self.hand == Some(slot) {
            self.hand = self.rows.get(at + 1).map(|r| r.slot);
        }
        let row = self.rows.remove(at);
        if evicted && !row.in_main {
            self.ghosts.push(Some(row.page));
            let most = self.limit - self.limit / 10;
            while self.ghosts.len() > most {
                self.ghosts.remove(0);
            }
        }
        let at = self.bag.iter().position(|s| *s == slot).expect("in");
        self.bag.swap_remove(at);
    }

    fn victim(&mut self, held: &Held) -> Option<Slot> {
        let free = |r: &&Row| !held.contains(r.slot);
        let row = match self.kind {
            PolicyKind::Lru => self.rows.iter().filter(free).min_by_key(|r| r.last),
            PolicyKind::Mru => self.rows.iter().filter(free).max_by_key(|r| r.last),
            PolicyKind::Lfu => self.rows.iter().filter(free).min_by_key(|r| (r.uses, r.last)),
            PolicyKind::Mfu => self.rows.iter().filter(free).min_by_key(|r| (u64::MAX - r.uses, r.last)),
            PolicyKind::Fifo => self.rows.iter().find(free),
            PolicyKind::Random(_) => return self.any(held),
            PolicyKind::Clock => return self.clock(held),
            PolicyKind::Sieve => return self.sieve(held),
            PolicyKind::S3Fifo => return self.s3fifo(held),
        };
        row.map(|r| r.slot)
    }

    fn any(&mut self, held: &Held) -> Option<Slot> {
        if self.bag.is_empty() {
            return None;
        }
        let start = self.rng.below(self.bag.len() as u64) as usize;
        (0..self.bag.len()).map(|i| self.bag[(start + i) % self.bag.len()]).find(|s| !held.contains(*s))
    }

    fn clock(&mut self, held: &Held) -> Option<Slot> {
        for _ in 0..2 * self.rows.len() {
            let mut row = self.rows.remove(0);
            if !row.marked && !held.contains(row.slot) {
                let slot = row.slot;
                self.rows.insert(0, row);
                return Some(slot);
            }
            row.marked = false;
            self.rows.push(row);
        }
        None
    }

    fn sieve(&mut self, held: &Held) -> Option<Slot> {
        for _ in 0..2 * self.rows.len() {
            let at = self.hand.and_then(|hand| self.rows.iter().position(|r| r.slot == hand)).unwrap_or(0);
            if !self.rows[at].marked && !held.contains(self.rows[at].slot) {
                self.hand = Some(self.rows[at].slot);
                return self.hand;
            }
            self.rows[at].marked = false;
            self.hand = self.rows.get(at + 1).map(|r| r.slot);
        }
        None
    }

    /// The rows in main are kept in main's order, those in small in small's; only the relative
    /// order matters.
    fn s3fifo(&mut self, held: &Held) -> Option<Slot> {
        for _ in 0..self.rows.len() * 8 + 1 {
            let small = self.rows.iter().filter(|r| !r.in_main).count();
            let from_small = small * 10 >= self.limit || small == self.rows.len();
            let at = self.rows.iter().position(|r| r.in_main != from_small)?;
            let busy = held.contains(self.rows[at].slot);
            if from_small && (self.rows[at].count > 1 || busy) {
                let row = self.rows.remove(at);
                self.rows.push(Row { in_main: true, count: 0, ..row });
            } else if !from_small && (self.rows[at].count > 0 || busy) {
                let row = self.rows.remove(at);
                self.rows.push(Row { count: row.count.saturating_sub(1), ..row });
            } else {
                return Some(self.rows[at].slot);
            }
        }
        self.rows.iter().filter(|r| !r.in_main).map(|r| r.slot).find(|s| !held.contains(*s))
    }
}

/// Uses pages, evicting at the limit, in both; compares every victim.
fn compare(kind: PolicyKind, limit: usize, ops: &[(u8, u64)]) {
    let (mut policy, mut naive, mut held) = (kind.build(), Naive::new(kind, limit), Held::default());
    policy.limited(Some(limit));
    let mut pages: Vec<Option<u64>> = vec![None; limit];
    let mut holds = vec![0u32; limit];
    for (op, number) in ops {
        let page = Page::new(*number).expect("small");
        let at = pages.iter().position(|p| *p == Some(*number));
        match (op, at) {
            // Hold and release.
            (0, Some(at)) => {
                held.hold(Slot(at as u32));
                holds[at] += 1;
            }
            (1, _) => {
                if let Some(at) = holds.iter().position(|h| *h > 0) {
                    held.release(Slot(at as u32));
                    holds[at] -= 1;
                }
            }
            // Forget.
            (2, Some(at)) if holds[at] == 0 => {
                policy.removed(Slot(at as u32), page, false);
                naive.removed(Slot(at as u32), false);
                pages[at] = None;
            }
            (_, Some(at)) => {
                policy.touched(Slot(at as u32));
                naive.touched(Slot(at as u32));
            }
            (_, None) => {
                let free = pages.iter().position(Option::is_none).or_else(|| {
                    let victim = policy.victim(&held);
                    assert_eq!(victim, naive.victim(&held), "{kind:?}");
                    let victim = victim?;
                    assert_eq!(holds[victim.at()], 0, "{kind:?} gave up a held page");
                    let old = Page::new(pages[victim.at()]?).expect("small");
                    policy.removed(victim, old, true);
                    naive.removed(victim, true);
                    Some(victim.at())
                });
                let Some(free) = free else { continue };
                pages[free] = Some(*number);
                policy.inserted(Slot(free as u32), page);
                naive.inserted(Slot(free as u32), page);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_policy_chooses_as_its_naive_reference(
        limit in 1..24usize, ops in proptest::collection::vec((0..24u8, 0..40u64), 0..500),
    ) {
        PolicyKind::ALL.into_iter().for_each(|kind| compare(kind, limit, &ops));
    }

    #[test]
    fn skewed_uses_agree_too(limit in 2..24usize, ops in proptest::collection::vec((0..24u8, 0..7u32), 0..500)) {
        // Few pages often, many seldom: counts and marks differ between pages.
        let ops: Vec<(u8, u64)> = ops.iter().enumerate().map(|(i, (op, s))| (*op, (i as u64 * 7919) % (1 << s))).collect();
        PolicyKind::ALL.into_iter().for_each(|kind| compare(kind, limit, &ops));
    }
}

#[test]
fn names_lead_back_to_their_policies() {
    for kind in PolicyKind::ALL {
        assert_eq!(PolicyKind::from_name(kind.name()), Some(kind));
    }
    assert_eq!(PolicyKind::from_name("best"), None);
}
