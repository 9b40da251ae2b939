//! First level of every two-level table here: from a leaf number to a leaf, two memory references
//! for a lookup. [UTLB §3, §3.1]
//!
//! The paper's directory is an array, because its addresses have 32 bits. With 48 bits it is an
//! open hash table with a memory of the last leaf found, which is the array's speed for programs
//! with any locality. Invariant: at most half of the places are taken; a leaf that is empty is
//! given back, so memory follows what is in the table, not what once was.

/// From leaf numbers to leaves.
#[derive(Clone, Debug)]
pub(crate) struct Directory<L> {
    // (leaf number + 1, index into leaves); 0 means free.
    places: Vec<(u64, u32)>,
    leaves: Vec<L>,
    // Leaves that no number uses.
    free: Vec<u32>,
    used: usize,
    // The last one found: (leaf number + 1, index).
    last: (u64, u32),
}

const PLACES_MIN: usize = 16;

impl<L: Default> Directory<L> {
    pub(crate) fn new() -> Directory<L> {
        Directory { places: vec![(0, 0); PLACES_MIN], leaves: Vec::new(), free: Vec::new(), used: 0, last: (0, 0) }
    }

    /// All leaves in use and their numbers, in no order.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (u64, &L)> {
        let used = self.places.iter().filter(|(key, _)| *key != 0);
        used.map(|(key, index)| (key - 1, &self.leaves[*index as usize]))
    }

    /// Leaves in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.places.len() - 1)
    }

    #[inline]
    fn find(&self, number: u64) -> Option<u32> {
        let key = number + 1;
        if self.last.0 == key {
            return Some(self.last.1);
        }
        let mut at = self.home(key);
        loop {
            match self.places[at] {
                (k, index) if k == key => return Some(index),
                (0, _) => return None,
                _ => at = (at + 1) & (self.places.len() - 1),
            }
        }
    }

    /// The leaf, if there is one.
    #[inline]
    pub(crate) fn leaf(&self, number: u64) -> Option<&L> {
        self.find(number).map(|index| &self.leaves[index as usize])
    }

    /// The leaf, if there is one; the next search for it is one comparison.
    #[inline]
    pub(crate) fn leaf_mut(&mut self, number: u64) -> Option<&mut L> {
        let index = self.find(number)?;
        self.last = (number + 1, index);
        Some(&mut self.leaves[index as usize])
    }

    /// The leaf, made if there was none. A reused leaf is as it was left: its owner left it empty.
    pub(crate) fn leaf_or_new(&mut self, number: u64) -> &mut L {
        let index = match self.find(number) {
            Some(index) => index,
            None => self.insert(number),
        };
        self.last = (number + 1, index);
        &mut self.leaves[index as usize]
    }

    fn insert(&mut self, number: u64) -> u32 {
        if (self.used + 1) * 2 > self.places.len() {
            self.grow();
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.leaves.push(L::default());
            u32::try_from(self.leaves.len() - 1).expect("2^32 leaves are 16 TiB of tables")
        });
        self.place(number + 1, index);
        self.used += 1;
        index
    }

    fn place(&mut self, key: u64, index: u32) {
        let mut at = self.home(key);
        while self.places[at].0 != 0 {
            at = (at + 1) & (self.places.len() - 1);
        }
        self.places[at] = (key, index);
    }

    fn grow(&mut self) {
        let double = vec![(0, 0); self.places.len() * 2];
        for (key, index) in std::mem::replace(&mut self.places, double) {
            if key != 0 {
                self.place(key, index);
            }
        }
    }

    /// Gives an empty leaf back.
    pub(crate) fn remove(&mut self, number: u64) {
        let key = number + 1;
        let mask = self.places.len() - 1;
        let mut hole = self.home(key);
        while self.places[hole].0 != key {
            if self.places[hole].0 == 0 {
                return;
            }
            hole = (hole + 1) & mask;
        }
        self.free.push(self.places[hole].1);
        self.used -= 1;
        self.last = (0, 0);
        // Close the gap: whatever would not be found any more moves into it.
        let mut at = (hole + 1) & mask;
        while self.places[at].0 != 0 {
            let home = self.home(self.places[at].0);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[at];
                hole = at;
            }
            at = (at + 1) & mask;
        }
        self.places[hole] = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_directory_behaves_as_a_map(ops in proptest::collection::vec((0..3u8, 0..60u64), 0..400)) {
            let mut directory = Directory::<u64>::new();
            let mut model = BTreeMap::new();
            for (step, (op, number)) in ops.into_iter().enumerate() {
                match op {
                    0 => {
                        *directory.leaf_or_new(number) = step as u64;
                        model.insert(number, step as u64);
                    }
                    1 => {
                        directory.remove(number);
                        model.remove(&number);
                    }
                    _ => prop_assert_eq!(directory.leaf_mut(number).map(|l| *l), model.get(&number).copied()),
                }
                prop_assert_eq!(directory.len(), model.len());
            }
            for number in 0..60 {
                prop_assert_eq!(directory.leaf(number), model.get(&number));
            }
        }
    }
}
