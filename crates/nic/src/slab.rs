//! A table whose slots are reused with a new generation.
//!
//! Invariant: a key of a removed entry never finds its successor (until 2^32 reuses of one slot),
//! be its slot gone and made again meanwhile. The key of one table is of no use in another: the
//! compiler refuses it.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// An entry of a table of `T`: a slot, and which of its users. Keys of different tables are of
/// different types.
///
/// As a number, which peers are given as a name for the entry, it has the slot in the low half and
/// the generation in the high half.
pub(crate) struct Key<T> {
    number: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// Finds nothing in any table, and comes before all others.
    pub(crate) const NONE: Key<T> = Key::from_u64(0);

    fn new(slot: u32, generation: u32) -> Key<T> {
        Key::from_u64(u64::from(generation) << 32 | u64::from(slot))
    }

    /// A claim that there is such an entry, which the table checks.
    pub(crate) const fn from_u64(number: u64) -> Key<T> {
        Key { number, of: PhantomData }
    }

    pub(crate) const fn to_u64(self) -> u64 {
        self.number
    }

    fn slot(self) -> u32 {
        self.number as u32
    }

    fn generation(self) -> u32 {
        (self.number >> 32) as u32
    }
}

// Derived, these would ask the same of `T`.
impl<T> Clone for Key<T> {
    fn clone(&self) -> Key<T> {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Key<T>) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Key<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Key<T>) -> std::cmp::Ordering {
        self.number.cmp(&other.number)
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot(), self.generation())
    }
}

/// Slots that a table which shrinks may have memory for without use.
const SLOTS_KEPT: usize = 64;

/// See the module page.
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    /// Free slots; of a table that shrinks also some that are gone, and no slot is made before
    /// those are taken out.
    free: VecDeque<u32>,
    len: usize,
    /// Generation of the next slot that is made, above all that slots which are gone have had.
    fresh: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { entries: Vec::new(), free: VecDeque::new(), len: 0, fresh: 1 }
    }
}

impl<T> Slab<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Slots, free ones too.
    pub(crate) fn slots(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> Key<T> {
        self.len += 1;
        // Last freed first: its memory is in the cache. Generations keep stale keys out.
        while let Some(slot) = self.free.pop_back() {
            let Some(entry) = self.entries.get_mut(slot as usize) else { continue };
            entry.value = Some(value);
            return Key::new(slot, entry.generation);
        }
        let slot = u32::try_from(self.entries.len()).expect("tables are bounded far below 2^32");
        self.entries.push(Entry { generation: self.fresh, value: Some(value) });
        Key::new(slot, self.fresh)
    }

    pub(crate) fn get(&self, key: Key<T>) -> Option<&T> {
        let entry = self.entries.get(key.slot() as usize)?;
        if entry.generation != key.generation() {
            return None;
        }
        entry.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.slot() as usize)?;
        if entry.generation != key.generation() {
            return None;
        }
        entry.value.as_mut()
    }

    pub(crate) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let entry = self.entries.get_mut(key.slot() as usize)?;
        if entry.generation != key.generation() {
            return None;
        }
        let value = entry.value.take()?;
        // Zero is left out so that no key is 0.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        self.free.push_back(key.slot());
        self.len -= 1;
        Some(value)
    }

    /// The same, for tables of which each user has its own: gives memory back that has no use any
    /// more, when the last slots are free.
    pub(crate) fn remove_and_shrink(&mut self, key: Key<T>) -> Option<T> {
        let value = self.remove(key)?;
        while let Some(last) = self.entries.last().filter(|last| last.value.is_none()) {
            self.fresh = self.fresh.max(last.generation);
            self.entries.pop();
        }
        let (slots, free) = (self.entries.len(), self.entries.len() - self.len);
        // At least half of them are gone, each of which was taken out of the table once.
        if self.free.len() > 2 * free + SLOTS_KEPT {
            self.free.retain(|slot| (*slot as usize) < slots);
        }
        if self.entries.capacity() > 3 * slots + SLOTS_KEPT {
            self.entries.shrink_to(slots + slots / 2);
        }
        if self.free.capacity() > 3 * self.free.len() + SLOTS_KEPT {
            self.free.shrink_to(self.free.len() + self.free.len() / 2);
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> + '_ {
        self.entries
            .iter()
            .zip(0u32..)
            .filter_map(|(entry, slot)| entry.value.as_ref().map(|value| (Key::new(slot, entry.generation), value)))
    }

    pub(crate) fn keys(&self) -> Vec<Key<T>> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_never_finds_the_successor() {
        let mut slab = Slab::default();
        let old = slab.insert(1);
        assert_eq!(slab.remove(old), Some(1));
        let new = slab.insert(2);
        assert_eq!(old.slot(), new.slot());
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&2));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_table_shrinks_when_its_last_slots_are_free_and_old_keys_stay_stale() {
        let mut slab = Slab::default();
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..5 {
            let keys: Vec<Key<i32>> = (0..10_000).map(|i| slab.insert(i)).collect();
            assert!(keys.iter().all(|key| seen.insert(*key)), "no key comes twice, round {round}");
            // In an order in which the last slot stays until the end.
            let (last, others) = keys.split_last().unwrap();
            others.iter().for_each(|key| assert!(slab.remove_and_shrink(*key).is_some()));
            assert_eq!((slab.slots(), slab.len()), (10_000, 1));
            let within = slab.insert(7);
            assert!(slots_of(&slab) >= 10_000 && seen.insert(within));
            slab.remove_and_shrink(*last);
            slab.remove_and_shrink(within);
            assert!(slots_of(&slab) <= 128 && slab.slots() == 0 && slab.len() == 0);
            assert!(keys.iter().all(|key| slab.get(*key).is_none() && slab.remove_and_shrink(*key).is_none()));
        }
    }

    /// Those that it has memory for, in either of its lists.
    fn slots_of(slab: &Slab<i32>) -> usize {
        slab.entries.capacity().max(slab.free.capacity())
    }

    #[test]
    fn a_table_that_shrinks_and_grows_holds_what_a_map_would() {
        let (mut slab, mut model) = (Slab::default(), std::collections::BTreeMap::new());
        let mut rng = vmmc_utlb::Rng::new(1);
        for step in 0..200_000u64 {
            // It grows for a while, and shrinks for a while.
            let grows = if step / 5_000 % 2 == 0 { 70 } else { 30 };
            if rng.below(100) < grows {
                assert_eq!(model.insert(slab.insert(step), step), None);
            } else if let Some(&key) = model.keys().nth(rng.index(16) % model.len().max(1)) {
                assert_eq!(slab.remove_and_shrink(key), model.remove(&key));
            }
            assert_eq!(slab.len(), model.len());
            assert!(slab.free.len() <= 2 * (slab.slots() - slab.len()) + 64);
        }
        assert!(model.iter().all(|(key, value)| slab.get(*key) == Some(value)));
        assert_eq!(slab.iter().count(), model.len());
    }
}
