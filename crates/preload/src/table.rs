//! What each descriptor of this process is to us: nothing (nearly all), a TCP connection, an epoll
//! set, or one of our own.
//!
//! Invariant: an entry is set after the kernel gave the descriptor and removed before the kernel
//! may give it anew, so that an entry never outlives its descriptor. A lookup of a descriptor that
//! is nothing to us costs two loads.

use crate::arena::{Arena, Index, Pin};
use crate::limits::{TABLE_CHUNK, TABLE_CHUNKS_MAX};
use crate::set::Set;
use crate::tcp::Tcp;
use libc::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// All connections.
pub(crate) static CONNECTIONS: Arena<Tcp> = Arena::new();
/// All epoll sets.
pub(crate) static SETS: Arena<Set> = Arena::new();

static CHUNKS: [AtomicPtr<Chunk>; TABLE_CHUNKS_MAX] = [const { AtomicPtr::new(null_mut()) }; TABLE_CHUNKS_MAX];
type Chunk = [AtomicU32; TABLE_CHUNK];

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing to us.
    Nothing,
    /// A connected TCP socket.
    Connection(Index),
    /// An epoll set.
    Set(Index),
    /// One of our own, which the program does not know.
    Own,
}

const KIND: u32 = 0b11;

impl Entry {
    fn word(self) -> u32 {
        match self {
            Entry::Nothing => 0,
            Entry::Connection(index) => index.0 << 2 | 1,
            Entry::Set(index) => index.0 << 2 | 2,
            Entry::Own => 3,
        }
    }

    fn of(word: u32) -> Entry {
        match word & KIND {
            0 => Entry::Nothing,
            1 => Entry::Connection(Index(word >> 2)),
            2 => Entry::Set(Index(word >> 2)),
            _ => Entry::Own,
        }
    }

    /// One more descriptor is this.
    pub(crate) fn add(self) {
        match self {
            Entry::Connection(index) => CONNECTIONS.add_descriptor(index),
            Entry::Set(index) => SETS.add_descriptor(index),
            Entry::Nothing | Entry::Own => {}
        }
    }

    /// One descriptor less is this.
    pub(crate) fn release(self) {
        match self {
            Entry::Connection(index) => CONNECTIONS.drop_descriptor(index),
            Entry::Set(index) => SETS.drop_descriptor(index),
            Entry::Nothing | Entry::Own => {}
        }
    }
}

/// What the descriptor is.
pub(crate) fn entry(fd: c_int) -> Entry {
    cell(fd).map_or(Entry::Nothing, |cell| Entry::of(cell.load(Acquire)))
}

/// The connection behind a descriptor, held for a call.
pub(crate) fn connection(fd: c_int) -> Option<Pin<Tcp>> {
    let cell = cell(fd)?;
    let word = cell.load(Acquire);
    let Entry::Connection(index) = Entry::of(word) else { return None };
    let pin = CONNECTIONS.pin(index)?;
    // Closed and used anew between the two: then it is not what this descriptor means.
    (cell.load(Acquire) == word).then_some(pin)
}

/// The epoll set behind a descriptor, held for a call.
pub(crate) fn set(fd: c_int) -> Option<Pin<Set>> {
    let cell = cell(fd)?;
    let word = cell.load(Acquire);
    let Entry::Set(index) = Entry::of(word) else { return None };
    let pin = SETS.pin(index)?;
    (cell.load(Acquire) == word).then_some(pin)
}

/// The descriptor is this from now on; what it was is released. The entry's reference becomes the
/// table's. `false`: the number is beyond the table.
pub(crate) fn put(fd: c_int, entry: Entry) -> bool {
    match cell_made(fd) {
        Some(cell) => {
            Entry::of(cell.swap(entry.word(), AcqRel)).release();
            true
        }
        None => {
            entry.release();
            false
        }
    }
}

/// The descriptor is nothing to us any more; the caller gets the table's reference.
pub(crate) fn take(fd: c_int) -> Entry {
    match cell(fd) {
        Some(cell) if cell.load(Relaxed) != 0 => Entry::of(cell.swap(0, AcqRel)),
        _ => Entry::Nothing,
    }
}

/// All descriptors from `first` to `last` that are something to us.
pub(crate) fn known(first: c_int, last: c_int) -> impl Iterator<Item = (c_int, Entry)> {
    let first = first.max(0) as usize;
    let last = (i64::from(last.max(-1)) + 1) as usize;
    let chunks = first / TABLE_CHUNK..TABLE_CHUNKS_MAX.min(last.div_ceil(TABLE_CHUNK));
    let made = chunks.filter(|&at| !CHUNKS[at].load(Acquire).is_null());
    made.flat_map(|at| at * TABLE_CHUNK..(at + 1) * TABLE_CHUNK)
        .filter(move |fd| (first..last).contains(fd))
        .map(|fd| (fd as c_int, entry(fd as c_int)))
        .filter(|(_, entry)| *entry != Entry::Nothing)
}

fn cell(fd: c_int) -> Option<&'static AtomicU32> {
    let chunk = CHUNKS.get((fd as u32) as usize / TABLE_CHUNK)?.load(Acquire);
    // SAFETY: a chunk is published once and never freed.
    Some(&unsafe { chunk.as_ref() }?[fd as usize % TABLE_CHUNK])
}

fn cell_made(fd: c_int) -> Option<&'static AtomicU32> {
    let place = CHUNKS.get((fd as u32) as usize / TABLE_CHUNK)?;
    if place.load(Acquire).is_null() {
        let chunk: Box<Chunk> = Box::new([const { AtomicU32::new(0) }; TABLE_CHUNK]);
        let chunk = Box::into_raw(chunk);
        if place.compare_exchange(null_mut(), chunk, AcqRel, Acquire).is_err() {
            // SAFETY: another thread was first; this box was never published.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
    cell(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_out_of_range_are_nothing() {
        assert_eq!(entry(-1), Entry::Nothing);
        assert_eq!(entry(c_int::MAX), Entry::Nothing);
        assert!(!put(c_int::MAX, Entry::Own));
        assert!(connection(-1).is_none());
    }

    #[test]
    fn known_lists_what_lies_within_the_range() {
        for fd in [900_100, 900_104, 910_000] {
            assert!(put(fd, Entry::Own));
        }
        let found: Vec<_> = known(900_101, 910_000).map(|(fd, _)| fd).collect();
        assert_eq!(found, [900_104, 910_000]);
        assert_eq!(take(900_104), Entry::Own);
        assert_eq!(take(900_104), Entry::Nothing);
        assert_eq!(known(900_101, c_int::MAX).count(), 1);
    }
}
