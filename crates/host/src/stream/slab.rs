//! Memory for the connections of a pair of processes: slots of words and two rings.
//!
//! Invariant: made by the node, sealed and reserved; an offset into a ring is masked before it is used, so no claim leads outside of the slot.

use super::bells::Watch;
use super::words::SlotWords;
use crate::copy;
use crate::region::{PAGE_BYTES, Protection, Region, RegionError};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

/// A slab; clones share the mapping.
#[derive(Clone, Debug)]
pub struct Slab {
    region: Region,
    shape: Shape,
}

/// Number of slots, and bytes of each of their rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    slots: u32,
    ring_bytes: u64,
}

impl Shape {
    fn slot_bytes(self) -> u64 {
        PAGE_BYTES as u64 + 2 * self.ring_bytes
    }

    /// None for a shape that is none: a claim of whoever sent the slab.
    fn bytes(self) -> Option<u64> {
        let fine = self.ring_bytes.is_power_of_two() && self.ring_bytes >= PAGE_BYTES as u64 && self.slots > 0;
        fine.then(|| self.slot_bytes().checked_mul(u64::from(self.slots))).flatten()
    }
}

const _: () = assert!(size_of::<SlotWords>() <= PAGE_BYTES);

/// One slot of a slab, kept mapped by this value.
#[derive(Clone, Debug)]
pub struct Slot {
    slab: Slab,
    base: u64,
}

impl Slab {
    /// Makes a slab of `slots` slots with two rings of `ring_bytes` (a power of two, at least a page) each.
    ///
    /// # Errors
    /// When memory is short.
    pub fn create(slots: u32, ring_bytes: u64) -> Result<Slab, RegionError> {
        let shape = Shape { slots, ring_bytes };
        let bytes = shape.bytes().ok_or(RegionError::Size { len: ring_bytes })?;
        Ok(Slab { region: Region::create(bytes)?, shape })
    }

    /// Maps a slab that came from the node.
    ///
    /// # Errors
    /// When the descriptor is not a sealed memfd of that shape.
    pub fn map(fd: OwnedFd, slots: u32, ring_bytes: u64) -> Result<Slab, RegionError> {
        let shape = Shape { slots, ring_bytes };
        let bytes = shape.bytes().ok_or(RegionError::Size { len: ring_bytes })?;
        Ok(Slab { region: Region::map(fd, bytes, Protection::ReadWrite)?, shape })
    }

    /// A descriptor for another process.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn share(&self) -> Result<OwnedFd, RegionError> {
        self.region.share()
    }

    /// Slots.
    pub fn slots(&self) -> u32 {
        self.shape.slots
    }

    /// Bytes of each ring.
    pub fn ring_bytes(&self) -> u64 {
        self.shape.ring_bytes
    }

    /// A slot; none if there is no such one.
    pub fn slot(&self, index: u32) -> Option<Slot> {
        (index < self.shape.slots)
            .then(|| Slot { slab: self.clone(), base: u64::from(index) * self.shape.slot_bytes() })
    }
}

impl Slot {
    /// Its words.
    #[inline]
    pub fn words(&self) -> &SlotWords {
        // SAFETY: the slot lies in the region by construction (`base` is a multiple of the slot size below the region's end), starts on a page, which satisfies the
        // alignment of 64, and holds the size (asserted above). SlotWords consists of atomics and padding that is never read, for which every bit pattern is
        // valid and concurrent change is allowed. The mapping lives as long as `self`.
        unsafe { &*self.slab.region.as_ptr().add(self.base as usize).cast::<SlotWords>() }
    }

    /// Bytes of each ring.
    #[inline]
    pub fn ring_bytes(&self) -> u64 {
        self.slab.shape.ring_bytes
    }

    /// Wakes everybody who waits at an end: threads in blocking calls at once, and event loops through `ring`, which gets each of them.
    pub fn wake_end(&self, end: usize, mut ring: impl FnMut(Watch)) {
        let words = self.words();
        let (to, from) = (&words.directions[1 - end], &words.directions[end]);
        fence(Ordering::SeqCst);
        to.receiver_sleep.wake_all();
        from.sender_sleep.wake_all();
        let watches = to.receiver_watch.iter().chain(&from.sender_watch);
        watches.filter_map(|word| Watch::from_word(word.load(Ordering::SeqCst))).for_each(&mut ring);
    }

    /// Copies bytes into ring `direction` from position `at` on, without the first `skip`, at most `room` of them; returns how many. The caller knows that so many
    /// are free.
    #[inline]
    pub fn copy_in(&self, direction: usize, at: u64, from: &[IoSlice<'_>], mut skip: u64, room: u64) -> u64 {
        let mut done = 0u64;
        for slice in from {
            let skipped = skip.min(slice.len() as u64);
            skip -= skipped;
            let slice = &slice[skipped as usize..];
            let take = (slice.len() as u64).min(room - done);
            self.pieces(direction, at.wrapping_add(done), take, |ring, offset, len| {
                // SAFETY: `pieces` gives ranges inside the ring, and offsets inside `take <= slice.len()`; a private buffer does not overlap a shared mapping.
                unsafe { copy::bulk(slice.as_ptr().add(offset), ring, len) };
            });
            done += take;
            if done == room {
                break;
            }
        }
        done
    }

    /// Copies bytes out of ring `direction` from position `at` on, at most `room` of them; returns how many.
    #[inline]
    pub fn copy_out(&self, direction: usize, at: u64, into: &mut [IoSliceMut<'_>], room: u64) -> u64 {
        let mut done = 0u64;
        for slice in into {
            let take = (slice.len() as u64).min(room - done);
            let base = slice.as_mut_ptr();
            self.pieces(direction, at.wrapping_add(done), take, |ring, offset, len| {
                // SAFETY: as for `copy_in`, with the private buffer as the destination.
                unsafe { copy::bulk(ring, base.add(offset), len) };
            });
            done += take;
            if done == room {
                break;
            }
        }
        done
    }

    /// Calls `each` with the one or two stretches of ring memory behind positions `at .. at + len` and the offset of each in the range.
    #[inline]
    fn pieces(&self, direction: usize, at: u64, len: u64, mut each: impl FnMut(*mut u8, usize, usize)) {
        let ring_bytes = self.slab.shape.ring_bytes;
        assert!(len <= ring_bytes && direction < 2, "our own arithmetic");
        if len == 0 {
            return;
        }
        let ring = self.base + PAGE_BYTES as u64 + direction as u64 * ring_bytes;
        let start = at & (ring_bytes - 1);
        let first = len.min(ring_bytes - start);
        let base = self.slab.region.as_ptr();
        each(base.wrapping_add((ring + start) as usize), 0, first as usize);
        if first < len {
            each(base.wrapping_add(ring as usize), first as usize, (len - first) as usize);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_goes_in_comes_out_across_the_seam() {
        let slab = Slab::create(3, 4096).unwrap();
        let other = Slab::map(slab.share().unwrap(), 3, 4096).unwrap();
        let (a, b) = (slab.slot(2).unwrap(), other.slot(2).unwrap());
        let data: Vec<u8> = (0..4000u32).map(|i| (i % 251) as u8).collect();
        for direction in 0..2 {
            let parts = [IoSlice::new(&data[..1000]), IoSlice::new(&[]), IoSlice::new(&data[1000..])];
            assert_eq!(a.copy_in(direction, u64::MAX - 700, &parts, 0, 4000), 4000);
            let (mut one, mut two) = (vec![0; 3000], vec![0; 3000]);
            let mut into = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
            assert_eq!(b.copy_out(direction, u64::MAX - 700, &mut into, 4000), 4000);
            assert!(one == data[..3000] && two[..1000] == data[3000..]);
        }
        a.words().directions[0].tail.store(5, Ordering::Relaxed);
        assert_eq!(b.words().directions[0].tail.load(Ordering::Relaxed), 5);
        a.words().reset();
        assert_eq!(b.words().directions[0].tail.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn shapes_that_are_none_are_refused() {
        assert!(Slab::create(1, 5000).is_err());
        assert!(Slab::create(0, 4096).is_err());
        let slab = Slab::create(1, 4096).unwrap();
        assert!(slab.slot(1).is_none());
        assert!(Slab::map(slab.share().unwrap(), 2, 4096).is_err());
        assert!(Slab::map(slab.share().unwrap(), u32::MAX, 1 << 62).is_err());
    }
}
