//! Staging memory: registered memory that data of the caller passes through on its way to and from
//! the engine.
//!
//! Invariant: a chunk has one user; an import holds at most its share of the chunks of a size, so
//! one node that does not answer leaves chunks for the others.

use crate::limits::{STAGING, STAGING_CHUNK_MAX, STAGING_SHARE};
use crate::regions::Registered;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Chunks that one import holds, by size.
#[derive(Default)]
pub(crate) struct Share([AtomicU32; STAGING.len()]);

/// A piece of staging memory. Given back with [`Staging::give_back`].
pub(crate) struct Chunk {
    class: usize,
    index: u32,
    /// First byte in the staging region.
    pub(crate) offset: u64,
    share: Arc<Share>,
}

/// The staging memory of a session.
pub(crate) struct Staging {
    pub(crate) memory: OnceLock<Arc<Registered>>,
    /// Memory of a long notified send, kept for the next one.
    pub(crate) long: Mutex<Option<Arc<Registered>>>,
    free: Mutex<[Vec<u32>; STAGING.len()]>,
}

impl Staging {
    pub(crate) fn new() -> Staging {
        let free = STAGING.map(|(_, count)| (0..count).rev().collect());
        Staging { memory: OnceLock::new(), long: Mutex::new(None), free: Mutex::new(free) }
    }

    /// Bytes of the staging region.
    pub(crate) fn bytes() -> u64 {
        STAGING.iter().map(|(bytes, count)| bytes * u64::from(*count)).sum()
    }

    /// A chunk of at least `len` bytes, or of the largest size; none now if all are in use or the
    /// import has its share.
    pub(crate) fn take(&self, len: u64, share: &Arc<Share>) -> Option<Chunk> {
        let class = class_of(len);
        if share.is_full(class) {
            return None;
        }
        let index = self.lock()[class].pop()?;
        share.0[class].fetch_add(1, Ordering::Relaxed);
        let before: u64 = STAGING[..class].iter().map(|(bytes, count)| bytes * u64::from(*count)).sum();
        Some(Chunk { class, index, offset: before + u64::from(index) * STAGING[class].0, share: share.clone() })
    }

    /// Whether giving this chunk back makes room for `len` bytes of that share.
    pub(crate) fn would_help(&self, chunk: &Chunk, len: u64, share: &Arc<Share>) -> bool {
        let class = class_of(len);
        chunk.class == class && (Arc::ptr_eq(&chunk.share, share) || !share.is_full(class))
    }

    pub(crate) fn give_back(&self, chunk: Chunk) {
        chunk.share.0[chunk.class].fetch_sub(1, Ordering::Relaxed);
        self.lock()[chunk.class].push(chunk.index);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, [Vec<u32>; STAGING.len()]> {
        self.free.lock().expect("no panic while the lock is held")
    }
}

impl Share {
    fn is_full(&self, class: usize) -> bool {
        self.0[class].load(Ordering::Relaxed) >= STAGING[class].1 / STAGING_SHARE
    }
}

/// Which chunks are for `len` bytes, or the first of them.
fn class_of(len: u64) -> usize {
    let wanted = len.min(STAGING_CHUNK_MAX);
    STAGING.iter().position(|(bytes, _)| *bytes >= wanted).expect("the largest size is as large")
}

impl Chunk {
    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        STAGING[self.class].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_do_not_overlap_and_fit_the_memory() {
        let staging = Staging::new();
        let mut taken = Vec::new();
        for len in [1, 5000, 200_000, u64::MAX] {
            for _ in 0..1000 {
                taken.extend(staging.take(len, &Arc::default()));
            }
        }
        taken.sort_by_key(|c| c.offset);
        assert_eq!(taken.len() as u32, STAGING.iter().map(|(_, count)| count).sum::<u32>());
        assert!(taken.windows(2).all(|w| w[0].offset + w[0].len() <= w[1].offset));
        assert_eq!(taken.last().map(|c| c.offset + c.len()), Some(Staging::bytes()));
    }

    #[test]
    fn one_import_cannot_take_all() {
        let staging = Staging::new();
        let greedy = Arc::new(Share::default());
        let taken: Vec<Chunk> = std::iter::from_fn(|| staging.take(100, &greedy)).collect();
        assert_eq!(taken.len() as u32, STAGING[0].1 / STAGING_SHARE);
        assert!(staging.take(100, &Arc::default()).is_some());
        let chunk = &taken[0];
        assert!(staging.would_help(chunk, 100, &greedy) && staging.would_help(chunk, 100, &Arc::default()));
        assert!(!staging.would_help(chunk, 5000, &greedy), "a chunk of another size");
        let other = staging.take(100, &Arc::default()).unwrap();
        assert!(!staging.would_help(&other, 100, &greedy), "the share stays full");
        staging.give_back(other);
        taken.into_iter().for_each(|c| staging.give_back(c));
        assert!(staging.take(100, &greedy).is_some());
    }
}
