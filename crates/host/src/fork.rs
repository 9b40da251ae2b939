//! A word that a forked child finds zeroed, so that a check for "am I still the process that attached" costs one load.
//!
//! Invariant: the page is private to this value and wiped by the kernel at fork (`MADV_WIPEONFORK`); where the kernel lacks that, the word simply keeps
//! its value and forks go unnoticed.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::atomic::AtomicU64;

use crate::region::PAGE_BYTES;

/// A word on a page of its own that is zero in every child of this process.
#[derive(Debug)]
pub struct ForkWord {
    page: *mut u8,
}

// SAFETY: the page is owned by the value, lives as long as it, and is only reached as an atomic.
unsafe impl Send for ForkWord {}
// SAFETY: as for Send.
unsafe impl Sync for ForkWord {}

impl ForkWord {
    /// Makes the word, with value 0.
    pub fn new() -> Result<ForkWord, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address that the kernel chooses; it aliases nothing.
        let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::PRIVATE)? };
        // SAFETY: the advice concerns only the page just mapped, which holds nothing yet.
        let _ = unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) };
        Ok(ForkWord { page: page.cast() })
    }

    /// The word.
    #[inline]
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped and page-aligned as long as `self` lives, and all access to it is atomic.
        unsafe { AtomicU64::from_ptr(self.page.cast()) }
    }
}

impl Drop for ForkWord {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `new` for this value alone, and no reference outlives it.
        let _ = unsafe { rustix::mm::munmap(self.page.cast(), PAGE_BYTES) };
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn the_word_keeps_its_value_in_the_process_that_made_it() {
        let word = ForkWord::new().unwrap();
        assert_eq!(word.word().load(Ordering::Relaxed), 0);
        word.word().store(7, Ordering::Relaxed);
        assert_eq!(word.word().load(Ordering::Relaxed), 7);
    }
}
