//! Objects that descriptors refer to: memory that never goes away, counted references, a free list
//! without locks.
//!
//! Invariant: an object is in use exactly while its word (descriptors in the upper half, calls in
//! progress in the lower half) is not 0; [`Resource::end`] runs once, by the thread that brings it
//! to 0, and then the object may serve again. Since the memory stays, a thread that looked an
//! object up just before another closed it touches at worst a later object's counter, notices, and
//! puts it back. Nothing here takes a lock, so fork and signal handlers find it usable.

use crate::limits::{ARENA_CHUNK, ARENA_CHUNKS_MAX};
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// One descriptor, in an object's word.
const DESCRIPTOR: u64 = 1 << 32;

/// What an arena holds.
pub(crate) trait Resource: Sync + 'static {
    /// A new object, not in use.
    fn fresh() -> Self;
    /// Nobody refers to it any more: let go of what it holds, and be as fresh.
    fn end(&self);
    /// The same in the child of a fork, for an object that only calls of other threads held. False:
    /// one of them was in the middle of it, so it stays as it is for ever.
    fn end_in_child(&self) -> bool {
        self.end();
        true
    }
}

/// Where an object lies in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index(pub(crate) u32);

struct Counted<T> {
    word: AtomicU64,
    /// Next in the free list, plus 1.
    next: AtomicU32,
    value: T,
}

type Chunk<T> = [Counted<T>; ARENA_CHUNK];

/// All objects of a kind.
pub(crate) struct Arena<T: 'static> {
    chunks: [AtomicPtr<Chunk<T>>; ARENA_CHUNKS_MAX],
    made: AtomicU32,
    /// Lower half: first in the free list, plus 1. Upper half: changes at every pop, so that a slow
    /// thread's exchange fails.
    free: AtomicU64,
}

impl<T: Resource> Arena<T> {
    /// An empty arena.
    pub(crate) const fn new() -> Arena<T> {
        Arena {
            chunks: [const { AtomicPtr::new(null_mut()) }; ARENA_CHUNKS_MAX],
            made: AtomicU32::new(0),
            free: AtomicU64::new(0),
        }
    }

    /// An object with one descriptor. `None`: there are as many as can be.
    pub(crate) fn insert(&'static self) -> Option<Index> {
        let index = self.pop().or_else(|| self.make())?;
        self.counted(index)?.word.store(DESCRIPTOR, Release);
        Some(index)
    }

    /// Another hold of an object that is held, with descriptors or without.
    pub(crate) fn keep(&'static self, held: &Pin<T>) -> Option<Pin<T>> {
        self.counted(held.index)?.word.fetch_add(1, AcqRel);
        Some(Pin { arena: self, index: held.index, value: held.value })
    }

    /// One more descriptor refers to it.
    pub(crate) fn add_descriptor(&'static self, index: Index) {
        if let Some(counted) = self.counted(index) {
            counted.word.fetch_add(DESCRIPTOR, AcqRel);
        }
    }

    /// One descriptor less.
    pub(crate) fn drop_descriptor(&'static self, index: Index) {
        self.subtract(index, DESCRIPTOR);
    }

    /// How many descriptors of this process refer to it.
    pub(crate) fn descriptors(&'static self, index: Index) -> u32 {
        self.counted(index).map_or(0, |counted| (counted.word.load(Acquire) >> 32) as u32)
    }

    /// Whether no other call holds it.
    pub(crate) fn is_alone(&'static self, held: &Pin<T>) -> bool {
        self.counted(held.index).is_some_and(|counted| counted.word.load(Acquire) & (DESCRIPTOR - 1) == 1)
    }

    /// Holds the object for a call, unless it is not in use.
    pub(crate) fn pin(&'static self, index: Index) -> Option<Pin<T>> {
        let counted = self.counted(index)?;
        let mut word = counted.word.load(Relaxed);
        while word >= DESCRIPTOR {
            match counted.word.compare_exchange_weak(word, word + 1, Acquire, Relaxed) {
                Ok(_) => return Some(Pin { arena: self, index, value: &counted.value }),
                Err(now) => word = now,
            }
        }
        None
    }

    /// In the child of a fork: the calls that other threads had in progress do not go on here.
    pub(crate) fn forget_calls(&'static self) {
        for index in (0..self.made.load(Acquire)).map(Index) {
            if let Some(counted) = self.counted(index) {
                let calls = counted.word.fetch_and(!(DESCRIPTOR - 1), AcqRel) & (DESCRIPTOR - 1);
                if calls > 0 && counted.word.load(Acquire) == 0 && counted.value.end_in_child() {
                    self.push(index, counted);
                }
            }
        }
    }

    /// All objects in use.
    pub(crate) fn each(&'static self) -> impl Iterator<Item = Pin<T>> {
        (0..self.made.load(Acquire)).filter_map(|index| self.pin(Index(index)))
    }

    fn subtract(&'static self, index: Index, what: u64) {
        let Some(counted) = self.counted(index) else { return };
        if counted.word.fetch_sub(what, AcqRel) == what {
            counted.value.end();
            self.push(index, counted);
        }
    }

    fn counted(&'static self, index: Index) -> Option<&'static Counted<T>> {
        let chunk = self.chunks.get(index.0 as usize / ARENA_CHUNK)?.load(Acquire);
        // SAFETY: a chunk is published once, whole, and never freed; the rest is the index within
        // it.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[index.0 as usize % ARENA_CHUNK])
    }

    fn pop(&'static self) -> Option<Index> {
        let mut head = self.free.load(Acquire);
        loop {
            let index = Index((head as u32).checked_sub(1)?);
            let next = self.counted(index)?.next.load(Relaxed);
            let tag = (head >> 32).wrapping_add(1) << 32;
            match self.free.compare_exchange_weak(head, tag | u64::from(next), AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    fn push(&'static self, index: Index, counted: &Counted<T>) {
        let mut head = self.free.load(Acquire);
        loop {
            counted.next.store(head as u32, Relaxed);
            let with = (head & !u64::from(u32::MAX)) | u64::from(index.0 + 1);
            match self.free.compare_exchange_weak(head, with, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Makes a chunk; its first object is the caller's, the others go to the free list.
    fn make(&'static self) -> Option<Index> {
        let fresh = || Counted { word: AtomicU64::new(0), next: AtomicU32::new(0), value: T::fresh() };
        let chunk: Box<Chunk<T>> = Box::new(std::array::from_fn(|_| fresh()));
        let chunk = Box::into_raw(chunk);
        for (at, place) in self.chunks.iter().enumerate() {
            if place.load(Relaxed).is_null() && place.compare_exchange(null_mut(), chunk, AcqRel, Relaxed).is_ok() {
                let first = (at * ARENA_CHUNK) as u32;
                self.made.fetch_max(first + ARENA_CHUNK as u32, AcqRel);
                for index in (first + 1..first + ARENA_CHUNK as u32).map(Index) {
                    self.push(index, self.counted(index)?);
                }
                return Some(Index(first));
            }
        }
        // SAFETY: the chunk was never published, so the box is still ours alone.
        drop(unsafe { Box::from_raw(chunk) });
        None
    }
}

/// An object held for the length of a call.
pub(crate) struct Pin<T: Resource> {
    arena: &'static Arena<T>,
    index: Index,
    value: &'static T,
}

impl<T: Resource> Pin<T> {
    /// Where it lies.
    pub(crate) fn index(&self) -> Index {
        self.index
    }
}

impl<T: Resource> Deref for Pin<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T: Resource> Drop for Pin<T> {
    fn drop(&mut self) {
        self.arena.subtract(self.index, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(AtomicU32);

    impl Resource for Thing {
        fn fresh() -> Thing {
            Thing(AtomicU32::new(0))
        }
        fn end(&self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn an_object_ends_once_with_its_last_reference() {
        static ARENA: Arena<Thing> = Arena::new();
        let index = ARENA.insert().expect("there is room");
        ARENA.add_descriptor(index);
        let pin = ARENA.pin(index).expect("in use");
        ARENA.drop_descriptor(index);
        ARENA.drop_descriptor(index);
        assert_eq!(pin.0.load(Relaxed), 0, "a call still uses it");
        assert!(ARENA.is_alone(&pin));
        let second = ARENA.keep(&pin);
        assert!(second.is_some() && !ARENA.is_alone(&pin));
        drop(second);
        assert!(ARENA.pin(index).is_none(), "without descriptors no new call begins");
        let value = pin.value;
        drop(pin);
        assert_eq!(value.0.load(Relaxed), 1);
        assert_eq!(ARENA.insert(), Some(index), "it serves again");
    }

    #[test]
    fn threads_that_make_and_drop_objects_never_share_one() {
        static ARENA: Arena<Thing> = Arena::new();
        static OWNERS: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let index = ARENA.insert().expect("there is room");
                        assert_eq!(OWNERS[index.0 as usize].fetch_add(1, AcqRel), 0);
                        OWNERS[index.0 as usize].fetch_sub(1, AcqRel);
                        ARENA.drop_descriptor(index);
                    }
                });
            }
        });
        assert!(ARENA.made.load(Relaxed) <= 1024, "objects serve again");
    }

    #[test]
    fn the_child_of_a_fork_forgets_calls_of_other_threads() {
        static ARENA: Arena<Thing> = Arena::new();
        let index = ARENA.insert().expect("there is room");
        std::mem::forget(ARENA.pin(index).expect("in use"));
        ARENA.forget_calls();
        let value = ARENA.pin(index).expect("still in use").value;
        ARENA.drop_descriptor(index);
        assert_eq!(value.0.load(Relaxed), 1);
    }
}
