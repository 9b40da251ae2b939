//! A map whose newest entry stands beside it: what comes and leaves before the next one comes is
//! never hashed.
//!
//! Invariant: a key is in one of the two places. Source: the calls of a server, of which most are
//! answered before the next one is taken.

use foldhash::{HashMap, HashMapExt};
use std::hash::Hash;

/// See the module page.
pub(crate) struct Recent<K, V> {
    newest: Option<(K, V)>,
    others: HashMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent { newest: None, others: HashMap::new() }
    }
}

impl<K: Eq + Hash, V> Recent<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_none() && self.others.is_empty()
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        match &self.newest {
            Some((newest, value)) if newest == key => Some(value),
            _ => self.others.get(key),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match &mut self.newest {
            Some((newest, value)) if newest == key => Some(value),
            _ => self.others.get_mut(key),
        }
    }

    /// Puts in one that is not there.
    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: V) {
        debug_assert!(!self.contains(&key), "a key is there once");
        if let Some((key, value)) = self.newest.replace((key, value)) {
            self.others.insert(key, value);
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        match self.newest.take_if(|(newest, _)| newest == key) {
            Some((_, value)) => Some(value),
            None if self.others.is_empty() => None,
            None => self.others.remove(key),
        }
    }

    /// All of them, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.newest.iter_mut().map(|(key, value)| (&*key, value)).chain(self.others.iter_mut())
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.newest.is_some()) + self.others.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_a_map_whatever_order_entries_come_and_leave_in() {
        let mut rng = vmmc_utlb::Rng::new(17);
        let (mut recent, mut model) = (Recent::default(), BTreeMap::new());
        for round in 0..100_000 {
            let key = rng.below(8);
            match rng.below(4) {
                0 if !recent.contains(&key) => {
                    recent.insert(key, round);
                    model.insert(key, round);
                }
                1 => assert_eq!(recent.remove(&key), model.remove(&key)),
                2 => recent.get_mut(&key).into_iter().chain(model.get_mut(&key)).for_each(|value| *value += 1),
                _ => assert_eq!(recent.get(&key), model.get(&key)),
            }
            let all: BTreeMap<u64, u64> = recent.iter_mut().map(|(key, value)| (*key, *value)).collect();
            assert_eq!((all, recent.len(), recent.is_empty()), (model.clone(), model.len(), model.is_empty()));
        }
    }
}
