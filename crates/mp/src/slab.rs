//! A table of entries that are known by number, to this process and to others.
//!
//! Invariant: the number of an entry that has gone names none, until its place was used 65,536
//! times more; so what another member says late of an ended send or receive finds nothing.

use crate::limits::REQUESTS_MAX;

pub(crate) struct Slab<T> {
    entries: Vec<(u16, Option<T>)>,
    free: Vec<u16>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// The number of a new entry. None: there are [`REQUESTS_MAX`].
    #[inline]
    pub(crate) fn insert(&mut self, entry: T) -> Option<u32> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.entries.len() < REQUESTS_MAX => {
                self.entries.push((0, None));
                (self.entries.len() - 1) as u16
            }
            None => return None,
        };
        let place = &mut self.entries[at as usize];
        place.1 = Some(entry);
        Some(u32::from(place.0) << 16 | u32::from(at))
    }

    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> Option<&mut T> {
        let (generation, entry) = self.entries.get_mut(number as u16 as usize)?;
        entry.as_mut().filter(|_| u32::from(*generation) == number >> 16)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.get(number)?;
        let place = &mut self.entries[number as u16 as usize];
        place.0 = place.0.wrapping_add(1);
        self.free.push(number as u16);
        place.1.take()
    }

    /// Numbers of all entries.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let number = |(at, (generation, entry)): (usize, &(u16, Option<T>))| {
            entry.as_ref().map(|_| u32::from(*generation) << 16 | at as u32)
        };
        self.entries.iter().enumerate().filter_map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_entry_that_has_gone_names_none() {
        let mut slab = Slab::default();
        let first = slab.insert("a").expect("there is room");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b").expect("there is room");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.get(second), Some(&mut "b"));
        assert_eq!((slab.remove(first), slab.numbers()), (None, vec![second]));
    }
}
