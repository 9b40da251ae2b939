//! A word that a forked child finds zeroed, so that a check for "am I still the process that
//! attached" costs one load.
//!
//! Invariant: the page is private to this value and wiped by the kernel at fork
//! (`MADV_WIPEONFORK`); where the kernel lacks that, the word simply keeps its value. [`Owner`]
//! then compares process ids instead.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::region::PAGE_BYTES;

/// A word on a page of its own that is zero in every child of this process.
#[derive(Debug)]
pub struct ForkWord {
    page: *mut u8,
    /// The kernel wipes the page at fork.
    wiped: bool,
}

// SAFETY: the page is owned by the value, lives as long as it, and is only reached as an atomic.
unsafe impl Send for ForkWord {}
// SAFETY: as for Send.
unsafe impl Sync for ForkWord {}

impl ForkWord {
    /// Makes the word, with value 0.
    pub fn new() -> Result<ForkWord, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address that the kernel chooses; it aliases
        // nothing.
        let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::PRIVATE)? };
        // SAFETY: the advice concerns only the page just mapped, which holds nothing yet.
        let wiped = unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }.is_ok();
        Ok(ForkWord { page: page.cast(), wiped })
    }

    /// The word.
    #[inline]
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped and page-aligned as long as `self` lives, and all access to it
        // is atomic.
        unsafe { AtomicU64::from_ptr(self.page.cast()) }
    }
}

/// Distinguishes the process that made it from its children: what holds keys, packet numbers or
/// other processes' trust is used by its maker alone.
#[derive(Debug)]
pub struct Owner {
    word: ForkWord,
    pid: u32,
}

impl Owner {
    /// The calling process is the owner.
    pub fn here() -> Result<Owner, Errno> {
        let word = ForkWord::new()?;
        word.word().store(1, Ordering::Release);
        Ok(Owner { word, pid: std::process::id() })
    }

    /// Whether the calling process is the owner and no child of it. One load where the kernel wipes
    /// the word.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.word.word().load(Ordering::Relaxed) != 0 && (self.word.wiped || self.is_same_pid())
    }

    /// Id of the owner.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    #[cold]
    fn is_same_pid(&self) -> bool {
        std::process::id() == self.pid
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

    #[test]
    fn the_word_keeps_its_value_in_the_process_that_made_it() {
        let word = ForkWord::new().unwrap();
        assert_eq!(word.word().load(Ordering::Relaxed), 0);
        word.word().store(7, Ordering::Relaxed);
        assert_eq!(word.word().load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_child_is_not_the_owner_with_or_without_the_kernels_help() {
        for wiped in [true, false] {
            let mut owner = Owner::here().unwrap();
            owner.word.wiped &= wiped;
            assert!(owner.is_here());
            assert_eq!(owner.pid(), std::process::id());
            // SAFETY: the child only loads a word, asks for its id and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let code = i32::from(owner.is_here());
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(code) };
            }
            let mut status = -1;
            // SAFETY: `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child took itself for the owner (wiped: {wiped})");
        }
    }
}
