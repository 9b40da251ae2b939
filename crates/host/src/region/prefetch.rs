//! Lines that are wanted soon.
//!
//! Invariant: a prefetch is a hint. It changes nothing, and what lies outside of the region is left
//! alone.

use super::Region;

/// What a line is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// To be stored to: no other core keeps it.
    Store,
    /// To be read.
    Load,
}

impl Region {
    /// Has the line of a byte come into the cache of this core, while the caller goes on. Does
    /// nothing where that byte is not in the region, or on processors that have no such hint.
    ///
    /// ```
    /// use vmmc_host::Region;
    /// use vmmc_host::region::Prefetch;
    /// let region = Region::create(4096)?;
    /// region.prefetch(128, Prefetch::Store);
    /// region.prefetch(1 << 40, Prefetch::Load);
    /// # Ok::<(), vmmc_host::RegionError>(())
    /// ```
    #[inline]
    pub fn prefetch(&self, offset: u64, how: Prefetch) {
        if self.check(offset, 1).is_err() {
            return;
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the address is in the mapping, and a prefetch changes no memory and no register.
        // `prefetchw` does nothing on a processor that does not know it.
        unsafe {
            use std::arch::asm;
            let at = self.0.base.add(offset as usize);
            match how {
                Prefetch::Store => asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)),
                Prefetch::Load => asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly)),
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = how;
    }
}
