//! Growing tables with an index type each, so that an operation's number is never taken for an
//! import's.
//!
//! Invariant: nothing is ever removed, so an index stays good for the whole run and late events
//! find their subject.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// An index into one kind of table.
pub(crate) trait Key: Copy {
    fn from_index(index: usize) -> Self;
    fn index(self) -> usize;
}

/// A table of `T` indexed by `K`.
#[derive(Debug)]
pub(crate) struct Table<K, T> {
    rows: Vec<T>,
    key: PhantomData<K>,
}

impl<K: Key, T> Table<K, T> {
    pub(crate) fn new() -> Table<K, T> {
        Table { rows: Vec::new(), key: PhantomData }
    }

    /// Adds a row and says its index.
    pub(crate) fn push(&mut self, row: T) -> K {
        self.rows.push(row);
        K::from_index(self.rows.len() - 1)
    }

    /// The index that the next row will have.
    pub(crate) fn next_key(&self) -> K {
        K::from_index(self.rows.len())
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn try_at(&self, key: K) -> Option<&T> {
        self.rows.get(key.index())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.rows.iter().enumerate().map(|(i, row)| (K::from_index(i), row))
    }
}

impl<K: Key, T> Index<K> for Table<K, T> {
    type Output = T;
    fn index(&self, key: K) -> &T {
        &self.rows[key.index()]
    }
}

impl<K: Key, T> IndexMut<K> for Table<K, T> {
    fn index_mut(&mut self, key: K) -> &mut T {
        &mut self.rows[key.index()]
    }
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident, $letter:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) u32);

        impl Key for $name {
            fn from_index(index: usize) -> Self {
                $name(u32::try_from(index).expect("a run has fewer than 2^32 of anything"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    )*};
}

keys! {
    /// A process during its whole life.
    ProcKey, "p";
    /// A memory region of a process.
    RegionKey, "m";
    /// An export during its whole life.
    ExportKey, "e";
    /// An import, from the request on.
    ImportKey, "i";
    /// An operation: send, fetch, atomic or flush.
    OpKey, "o";
    /// A redirection.
    RedirectKey, "r";
    /// A ping.
    PingKey, "g";
}
