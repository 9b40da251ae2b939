//! A modern registration cache, for comparison: whole buffers are registered, found again by
//! containment, and given up least recently used first.
//!
//! This is what message-passing libraries over RDMA do (UCX `rcache`, Open MPI `grdma`). Invariant:
//! regions do not overlap: a buffer that overlaps some registers their union anew, after
//! deregistering them. Source: no paper; the behaviour of those libraries.

use crate::ids::{Page, Pages, Slot};
use crate::policy::{AnyPolicy, Held, Policy, PolicyKind};
use std::collections::BTreeMap;

/// What one buffer needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// Pages registered by this buffer's call; 0 for a hit.
    pub registered: u64,
    /// Regions given up or merged.
    pub deregistered_regions: u64,
    /// Their pages.
    pub deregistered: u64,
}

/// Registered regions of one process.
#[derive(Debug)]
pub struct RegionCache {
    // First page to (last page, slot).
    regions: BTreeMap<Page, (Page, Slot)>,
    // By slot: first page.
    firsts: Vec<Page>,
    free: Vec<Slot>,
    policy: AnyPolicy,
    pages: u64,
    limit: Option<usize>,
}

impl RegionCache {
    /// Nothing registered; at most `limit` pages, unless one buffer alone is larger.
    pub fn new(limit: Option<usize>) -> RegionCache {
        let policy = PolicyKind::Lru.build();
        RegionCache { regions: BTreeMap::new(), firsts: Vec::new(), free: Vec::new(), policy, pages: 0, limit }
    }

    /// Regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Pages registered now.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// A transfer uses these pages.
    pub fn use_buffer(&mut self, pages: Pages) -> Registration {
        let Some(last) = pages.first().checked_add(pages.count().max(1) - 1) else { return Registration::default() };
        let mut first = pages.first();
        let mut end = last;
        let before = self.regions.range(..=first).next_back().map(|(f, (l, slot))| (*f, *l, *slot));
        if let Some((_, _, slot)) = before.filter(|(_, l, _)| *l >= end) {
            self.policy.touched(slot);
            return Registration::default();
        }
        let mut done = Registration::default();
        let from = before.filter(|(_, l, _)| *l >= first).map_or(first, |(f, ..)| f);
        let merged: Vec<(Page, Page)> = self.regions.range(from..=end).map(|(f, (l, _))| (*f, *l)).collect();
        for (f, l) in merged {
            first = first.min(f);
            end = end.max(l);
            self.drop_region(f, false, &mut done);
        }
        let count = end.number() - first.number() + 1;
        while self.limit.is_some_and(|limit| self.pages + count > limit as u64) {
            let Some(victim) = self.policy.victim(&Held::default()) else { break };
            self.drop_region(self.firsts[victim.at()], true, &mut done);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.firsts.push(first);
            Slot(u32::try_from(self.firsts.len() - 1).expect("fewer regions than pages"))
        });
        self.firsts[slot.at()] = first;
        self.regions.insert(first, (end, slot));
        self.policy.inserted(slot, first);
        self.pages += count;
        done.registered = count;
        done
    }

    fn drop_region(&mut self, first: Page, evicted: bool, done: &mut Registration) {
        let (last, slot) = self.regions.remove(&first).expect("a region that is listed");
        self.policy.removed(slot, first, evicted);
        self.free.push(slot);
        let count = last.number() - first.number() + 1;
        self.pages -= count;
        done.deregistered += count;
        done.deregistered_regions += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, count: u64) -> Pages {
        Pages::new(Page::new(first).expect("small"), count).expect("small")
    }

    #[test]
    fn a_part_of_a_registered_buffer_is_a_hit() {
        let mut cache = RegionCache::new(None);
        assert_eq!(cache.use_buffer(pages(10, 5)).registered, 5);
        assert_eq!(cache.use_buffer(pages(12, 3)), Registration::default());
        assert_eq!(cache.use_buffer(pages(10, 1)), Registration::default());
    }

    #[test]
    fn overlapping_buffers_become_one_region() {
        let mut cache = RegionCache::new(None);
        cache.use_buffer(pages(10, 5));
        cache.use_buffer(pages(20, 5));
        let done = cache.use_buffer(pages(14, 8));
        assert_eq!(done, Registration { registered: 15, deregistered_regions: 2, deregistered: 10 });
        assert_eq!((cache.len(), cache.pages()), (1, 15));
    }

    #[test]
    fn the_region_used_longest_ago_goes_first() {
        let mut cache = RegionCache::new(Some(10));
        cache.use_buffer(pages(0, 4));
        cache.use_buffer(pages(100, 4));
        cache.use_buffer(pages(0, 1));
        assert_eq!(cache.use_buffer(pages(200, 4)).deregistered, 4);
        assert_eq!(cache.use_buffer(pages(0, 4)), Registration::default());
        assert_eq!(cache.use_buffer(pages(100, 4)).registered, 4);
    }
}
