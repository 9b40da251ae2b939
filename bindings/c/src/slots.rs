//! A table of objects that are looked up by number without a lock.
//!
//! ```text
//!   key:   generation (32) │ index + 1 (32)             state of a slot:  generation (32) │ open (1) │ uses (31)
//!   pages: 64 slots, 64, 128, 256, ...                  made when the ones before are full, and never moved or freed
//! ```
//!
//! Invariant: an object is in its slot from the store that opens the slot until the use after which
//! the slot is closed and unused; whoever sees the slot open in its generation and counts its use
//! in the same atomic step keeps it there. A generation is never used twice in one slot, so an old
//! key finds nothing.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Slots of the first page; each further page doubles the table.
const FIRST_PAGE: u32 = 64;
/// Pages: 2 million slots, each of which costs some hundred bytes once it was needed.
const PAGES: usize = 16;
/// The bit of a state that says that new uses may begin.
const OPEN: u64 = 1 << 31;
/// The bits that count uses.
const USES: u64 = OPEN - 1;

/// The table.
pub(crate) struct Slots<T> {
    pages: [OnceLock<Box<[Slot<T>]>>; PAGES],
    free: Mutex<Free>,
}

/// Slots that may be opened.
struct Free {
    /// Those that were used before.
    indices: Vec<u32>,
    /// Slots beyond were never used.
    fresh: u32,
}

struct Slot<T> {
    state: AtomicU64,
    object: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: an object is put in by one thread, which nobody else reaches before the state is stored
// with Release; shared by many as `&T`; and taken out by the one thread that makes the count of a
// closed slot zero. So what is shared must be `Sync`, and what is taken out elsewhere `Send`.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// An object in use: it stays until this is dropped.
pub(crate) struct Use<'a, T> {
    slots: &'a Slots<T>,
    slot: &'a Slot<T>,
    index: u32,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Slots<T> {
        Slots { pages: [const { OnceLock::new() }; PAGES], free: Mutex::new(Free { indices: Vec::new(), fresh: 0 }) }
    }

    /// Puts an object in; gives its key, which is not 0. None when the table is full.
    pub(crate) fn put(&self, object: T) -> Option<u64> {
        let index = {
            let mut free = self.lock();
            let fresh = free.fresh;
            free.indices.pop().or_else(|| {
                free.fresh += u32::from(fresh < FIRST_PAGE << (PAGES - 1));
                (free.fresh > fresh).then_some(fresh)
            })?
        };
        let (page, at) = place(index);
        let slot = &self.pages[page].get_or_init(|| new_page(page))[at];
        // SAFETY: the index was free and is ours now, and the slot is closed and unused, so nobody
        // else touches the object.
        unsafe { (*slot.object.get()).write(object) };
        let generation = slot.state.load(Ordering::Relaxed) >> 32;
        slot.state.store(generation << 32 | OPEN, Ordering::Release);
        Some(generation << 32 | u64::from(index + 1))
    }

    /// The object behind a key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<Use<'_, T>> {
        let index = (key as u32).checked_sub(1)?;
        let (page, at) = place(index);
        let slot = self.pages.get(page)?.get()?.get(at)?;
        let mut state = slot.state.load(Ordering::Relaxed);
        while state >> 32 == key >> 32 && state & OPEN != 0 && state & USES < USES {
            match slot.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Use { slots: self, slot, index }),
                Err(now) => state = now,
            }
        }
        None
    }

    /// Takes the object away from new uses; it is dropped after those that there are. False if
    /// there is none, or another thread was faster.
    pub(crate) fn remove(&self, key: u64) -> bool {
        let Some(used) = self.get(key) else { return false };
        // While it is in use its generation does not change.
        used.slot.state.fetch_and(!OPEN, Ordering::Relaxed) & OPEN != 0
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().expect("no panic while the lock is held")
    }
}

/// Page and place of an index: page 0 has indices below [`FIRST_PAGE`], page n those from there
/// times 2^(n-1) to 2^n.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let page = (index / FIRST_PAGE + 1).ilog2();
    // The first slot of the page.
    let first = FIRST_PAGE * ((1 << page) - 1);
    (page as usize, (index - first) as usize)
}

fn new_page<T>(page: usize) -> Box<[Slot<T>]> {
    // The first generation is 1, so that no key is a small number.
    let slot = |_| Slot { state: AtomicU64::new(1 << 32), object: UnsafeCell::new(MaybeUninit::uninit()) };
    (0..FIRST_PAGE << page).map(slot).collect()
}

impl<T> Deref for Use<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: our use is counted since the slot was open, so the object was put in before
        // (Acquire) and is not taken out before our drop.
        unsafe { (*self.slot.object.get()).assume_init_ref() }
    }
}

impl<T> Drop for Use<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: what we did with the object comes before its drop in another thread.
        let before = self.slot.state.fetch_sub(1, Ordering::Release);
        if before & (OPEN | USES) == 1 {
            self.end();
        }
    }
}

impl<T> Use<'_, T> {
    /// The last use of a closed slot is over.
    #[cold]
    fn end(&self) {
        // Acquire: after what all others did with the object.
        let state = self.slot.state.load(Ordering::Acquire);
        // SAFETY: the slot is closed, so no use begins, and ours was the last one: the object is in
        // it, and ours alone.
        let object = unsafe { (*self.slot.object.get()).assume_init_read() };
        let generation = (state >> 32) + 1;
        // A slot that has seen all generations is not used again.
        if generation <= u64::from(u32::MAX) {
            self.slot.state.store(generation << 32, Ordering::Relaxed);
            self.slots.lock().indices.push(self.index);
        }
        // Last: it may take long, and may use the table.
        drop(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Counts its drops.
    struct Counted(Arc<AtomicUsize>, u64);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn places_follow_each_other_through_the_pages() {
        let mut next = (0, 0);
        for index in 0..FIRST_PAGE * 15 {
            assert_eq!(place(index), next, "{index}");
            next.1 += 1;
            if next.1 == (FIRST_PAGE as usize) << next.0 {
                next = (next.0 + 1, 0);
            }
        }
    }

    #[test]
    fn an_old_key_finds_nothing_also_when_its_slot_is_used_again() {
        let slots = Slots::new();
        let old = slots.put(1).unwrap();
        assert_eq!(slots.get(old).as_deref(), Some(&1));
        assert!(slots.remove(old) && !slots.remove(old));
        let new = slots.put(2).unwrap();
        assert_eq!(new as u32, old as u32, "the slot is used again");
        assert!(slots.get(old).is_none() && slots.get(0).is_none() && slots.get(u64::MAX).is_none());
        assert_eq!(slots.get(new).as_deref(), Some(&2));
    }

    #[test]
    fn an_object_in_use_is_dropped_after_its_last_use() {
        let (slots, drops) = (Slots::new(), Arc::new(AtomicUsize::new(0)));
        let key = slots.put(Counted(drops.clone(), 7)).unwrap();
        let (one, two) = (slots.get(key).unwrap(), slots.get(key).unwrap());
        assert!(slots.remove(key) && slots.get(key).is_none());
        drop(one);
        assert_eq!((drops.load(Ordering::Relaxed), two.1), (0, 7));
        drop(two);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn threads_that_use_and_remove_at_once_drop_each_object_once() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5_000 };
        let (slots, drops) = (Slots::new(), Arc::new(AtomicUsize::new(0)));
        let shared: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        let removed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (slots, drops, shared, removed) = (&slots, &drops, &shared, &removed);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let value = thread * ROUNDS + round;
                        let key = slots.put(Counted(drops.clone(), value)).unwrap();
                        let place = &shared[(value % 8) as usize];
                        let other = place.swap(key, Ordering::AcqRel);
                        if let Some(used) = slots.get(other) {
                            assert!(used.1 < THREADS * ROUNDS);
                        }
                        // Several threads try to remove the same one.
                        let tried = [other, shared[(round % 8) as usize].load(Ordering::Acquire)];
                        let done = tried.into_iter().filter(|key| slots.remove(*key)).count();
                        removed.fetch_add(done as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(drops.load(Ordering::Relaxed) as u64, removed.load(Ordering::Relaxed));
        let left = shared.iter().filter(|key| slots.remove(key.load(Ordering::Relaxed))).count() as u64;
        assert_eq!(removed.load(Ordering::Relaxed) + left, THREADS * ROUNDS);
    }
}
