//! A table whose slots are reused with a new generation.
//!
//! Invariant: a key of a removed entry never finds its successor (until 2^32 reuses of one slot).
//! Freed slots are reused oldest first when asked to, so that ids stay fresh.

use std::collections::VecDeque;

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// Slot in the low half, generation in the high half.
pub(crate) type Key = u64;

pub(crate) fn slot_of(key: Key) -> u32 {
    key as u32
}

fn key_of(slot: u32, generation: u32) -> Key {
    u64::from(generation) << 32 | u64::from(slot)
}

/// See the module page.
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: VecDeque<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { entries: Vec::new(), free: VecDeque::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        // Last freed first: its memory is in the cache. Generations keep stale keys out.
        if let Some(slot) = self.free.pop_back() {
            let entry = &mut self.entries[slot as usize];
            entry.value = Some(value);
            return key_of(slot, entry.generation);
        }
        let slot = u32::try_from(self.entries.len()).expect("tables are bounded far below 2^32");
        self.entries.push(Entry { generation: 1, value: Some(value) });
        key_of(slot, 1)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(slot_of(key) as usize)?;
        if entry.generation != (key >> 32) as u32 {
            return None;
        }
        entry.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(slot_of(key) as usize)?;
        if entry.generation != (key >> 32) as u32 {
            return None;
        }
        entry.value.as_mut()
    }

    /// Whatever is in `slot` now, with its key.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<(Key, &T)> {
        let entry = self.entries.get(slot as usize)?;
        Some((key_of(slot, entry.generation), entry.value.as_ref()?))
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(slot_of(key) as usize)?;
        if entry.generation != (key >> 32) as u32 {
            return None;
        }
        let value = entry.value.take()?;
        // Zero is left out so that no key is 0.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        self.free.push_back(slot_of(key));
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> + '_ {
        self.entries
            .iter()
            .zip(0u32..)
            .filter_map(|(entry, slot)| entry.value.as_ref().map(|value| (key_of(slot, entry.generation), value)))
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
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
        assert_eq!(slot_of(old), slot_of(new));
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&2));
        assert_eq!(slab.len(), 1);
    }
}
