//! Memory for the connections of a pair of processes: slots of words and two rings, and behind all
//! slots two large rings for each.
//!
//! Invariant: made by the node, sealed; what is not a large ring is reserved, and a large ring
//! before its slot's words grant it; an offset into a ring is masked before it is used, so no claim
//! leads outside of the slot's rings.

use super::bells::Watch;
use super::lock::{NODE, SharedLock};
use super::words::SlotWords;
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use vmmc_host::limits::REGION_BYTES_MAX;
use vmmc_host::region::{PAGE_BYTES, Protection, Region, RegionError};
use vmmc_host::stores::Store;

/// A slab; clones share the mapping.
#[derive(Clone, Debug)]
pub struct Slab {
    region: Region,
    shape: Shape,
}

/// Number of slots, and bytes of each of their rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Slots.
    pub slots: u32,
    /// Bytes of each small ring: a power of two, at least a page.
    pub small_bytes: u64,
    /// Bytes of each large ring: a power of two, at least as many.
    pub large_bytes: u64,
}

impl Shape {
    fn slot_bytes(self) -> u64 {
        PAGE_BYTES as u64 + 2 * self.small_bytes
    }

    /// Bytes of a slab, and how many of them are reserved from the start. None for an invalid
    /// shape: it is a claim of the sender of the slab.
    fn bytes(self) -> Option<(u64, u64)> {
        let fine = self.small_bytes.is_power_of_two()
            && self.large_bytes.is_power_of_two()
            && self.small_bytes >= PAGE_BYTES as u64
            && self.large_bytes >= self.small_bytes
            && self.large_bytes <= REGION_BYTES_MAX
            && self.slots > 0;
        let slots = u64::from(self.slots);
        let reserved = fine.then(|| self.slot_bytes().checked_mul(slots)).flatten()?;
        Some((self.large_bytes.checked_mul(2 * slots)?.checked_add(reserved)?, reserved))
    }
}

const _: () = assert!(size_of::<SlotWords>() <= PAGE_BYTES);

/// One slot of a slab, kept mapped by this value.
#[derive(Clone, Debug)]
pub struct Slot {
    slab: Slab,
    base: u64,
    /// Where its large rings begin.
    large: u64,
}

impl Slab {
    /// Makes a slab; its large rings have no memory yet.
    ///
    /// # Errors
    /// When memory is short.
    pub fn create(shape: Shape) -> Result<Slab, RegionError> {
        let (bytes, reserved) = shape.bytes().ok_or(RegionError::Size { len: shape.small_bytes })?;
        Ok(Slab { region: Region::create_in_part(bytes, reserved)?, shape })
    }

    /// Maps a slab that came from the node; the descriptor is closed.
    ///
    /// # Errors
    /// When the descriptor is not a sealed memfd of that shape.
    pub fn map(fd: OwnedFd, shape: Shape) -> Result<Slab, RegionError> {
        let (bytes, reserved) = shape.bytes().ok_or(RegionError::Size { len: shape.small_bytes })?;
        let region = Region::map_in_part(fd, bytes, reserved, Protection::ReadWrite)?;
        region.let_descriptor_go();
        Ok(Slab { region, shape })
    }

    /// A descriptor for another process.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn share(&self) -> Result<OwnedFd, RegionError> {
        self.region.share()
    }

    /// Slots and rings.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// A slot; none if there is no such one.
    pub fn slot(&self, index: u32) -> Option<Slot> {
        let (at, slots) = (u64::from(index), u64::from(self.shape.slots));
        (index < self.shape.slots).then(|| Slot {
            slab: self.clone(),
            base: at * self.shape.slot_bytes(),
            large: slots * self.shape.slot_bytes() + at * 2 * self.shape.large_bytes,
        })
    }
}

impl Slot {
    /// Its words.
    #[inline]
    pub fn words(&self) -> &SlotWords {
        self.slab.region.overlay(self.base).expect("a slot lies in its slab")
    }

    /// Bytes of a small or of a large ring.
    #[inline]
    pub fn ring_bytes(&self, large: bool) -> u64 {
        if large { self.slab.shape.large_bytes } else { self.slab.shape.small_bytes }
    }

    /// Bytes that can lie between the two ends of a direction at most.
    #[inline]
    pub fn most_bytes(&self) -> u64 {
        self.slab.shape.large_bytes
    }

    /// The node: gives a direction the memory of its large ring, and says so to the sending end.
    ///
    /// # Errors
    /// When memory is short.
    pub fn grant_large(&self, direction: usize) -> Result<(), RegionError> {
        let bytes = self.slab.shape.large_bytes;
        self.slab.region.reserve(self.large + direction as u64 * bytes, bytes)?;
        self.words().directions[direction].large_granted.store(1, Ordering::SeqCst);
        Ok(())
    }

    /// The node: takes the large ring of a direction back. Only while nobody uses the slot.
    pub fn release_large(&self, direction: usize) {
        let bytes = self.slab.shape.large_bytes;
        self.slab.region.release(self.large + direction as u64 * bytes, bytes);
    }

    /// The node: takes the large ring of a direction back although the slot is in use, if it is
    /// empty and nobody is about to fill it.
    pub fn take_large_back(&self, direction: usize) -> bool {
        let words = &self.words().directions[direction];
        let Some(_locked) = SharedLock::new(&words.sender_lock).try_lock(NODE) else { return false };
        let (tail, head) = (words.tail.load(Ordering::Relaxed), words.head.load(Ordering::Acquire));
        if tail != head {
            return false;
        }
        words.large_granted.store(0, Ordering::SeqCst);
        // The ring is empty, so nobody reads in it; and from here on the next byte goes to the
        // small one.
        let small = !words.layout().large || words.change_ring();
        if small {
            self.release_large(direction);
        }
        small
    }

    /// Wakes everything that waits at an end: threads in blocking calls at once, and event loops
    /// through `ring`, which gets each of them.
    pub fn wake_end(&self, end: usize, mut ring: impl FnMut(Watch)) {
        let words = self.words();
        let (to, from) = (&words.directions[1 - end], &words.directions[end]);
        fence(Ordering::SeqCst);
        to.receiver_sleep.wake_all();
        from.sender_sleep.wake_all();
        let watches = to.receiver_watch.iter().chain(&from.sender_watch);
        watches.filter_map(|word| Watch::from_word(word.load(Ordering::SeqCst))).for_each(&mut ring);
    }

    /// The bytes from position `at` of a direction on that lie side by side, at most `most`.
    pub fn ring_slice(&self, direction: usize, large: bool, at: u64, most: u64) -> RingSlice {
        let [(from, bytes), _] = self.pieces(direction, large, at, most.min(self.ring_bytes(large)));
        RingSlice { region: self.slab.region.clone(), from, bytes }
    }

    /// Copies bytes into a ring of `direction` from position `at` on, without the first `skip`, at
    /// most `room` of them; returns how many. The caller knows that so many are free.
    #[inline]
    pub fn copy_in(
        &self,
        (direction, large): (usize, bool),
        at: u64,
        from: &[IoSlice<'_>],
        mut skip: u64,
        room: u64,
        how: Store,
    ) -> u64 {
        let mut done = 0u64;
        for slice in from {
            let skipped = skip.min(slice.len() as u64);
            skip -= skipped;
            let slice = &slice[skipped as usize..];
            let take = (slice.len() as u64).min(room - done);
            let [(first, len), (second, _)] = self.pieces(direction, large, at.wrapping_add(done), take);
            let (one, two) = slice[..take as usize].split_at(len as usize);
            let region = &self.slab.region;
            region.write_unordered(how, first, one).expect("a ring lies in its slab");
            if !two.is_empty() {
                region.write_unordered(how, second, two).expect("as above");
            }
            done += take;
            if done == room {
                break;
            }
        }
        done
    }

    /// Copies bytes out of a ring of `direction` from position `at` on behind the first `skip`
    /// bytes of the buffers, at most `room` of them; returns how many.
    #[inline]
    pub fn copy_out(
        &self,
        direction: usize,
        large: bool,
        at: u64,
        into: &mut [IoSliceMut<'_>],
        mut skip: u64,
        room: u64,
    ) -> u64 {
        let mut done = 0u64;
        for slice in into {
            let skipped = skip.min(slice.len() as u64);
            skip -= skipped;
            let slice = &mut slice[skipped as usize..];
            let take = (slice.len() as u64).min(room - done);
            let [(first, len), (second, _)] = self.pieces(direction, large, at.wrapping_add(done), take);
            let (one, two) = slice[..take as usize].split_at_mut(len as usize);
            self.slab.region.read(first, one).expect("a ring lies in its slab");
            if !two.is_empty() {
                self.slab.region.read(second, two).expect("as above");
            }
            done += take;
            if done == room {
                break;
            }
        }
        done
    }

    /// Where in the slab the bytes of positions `at .. at + len` lie: offset and length of the
    /// piece up to the end of the ring, and of the rest at its beginning.
    #[inline]
    fn pieces(&self, direction: usize, large: bool, at: u64, len: u64) -> [(u64, u64); 2] {
        let ring_bytes = self.ring_bytes(large);
        assert!(len <= ring_bytes && direction < 2, "our own arithmetic");
        let first_ring = if large { self.large } else { self.base + PAGE_BYTES as u64 };
        let ring = first_ring + direction as u64 * ring_bytes;
        let start = at & (ring_bytes - 1);
        let first = len.min(ring_bytes - start);
        [(ring + start, first), (ring, len - first)]
    }
}

/// Bytes of a ring that lie side by side, kept mapped by this value. The other end can store to
/// them at any time.
#[derive(Clone, Debug)]
pub struct RingSlice {
    region: Region,
    /// `bytes` bytes from here on lie in one ring of a slot.
    from: u64,
    bytes: u64,
}

impl RingSlice {
    /// The first of them, for callers that take the responsibility of shared memory themselves.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.from as usize)
    }

    /// How many.
    pub fn len_bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Stores bytes from the `at`th on; as many as fit, which it says.
    pub fn write(&self, at: usize, from: &[u8]) -> usize {
        let len = from.len().min(self.len_bytes().saturating_sub(at));
        if len > 0 {
            let stored = self.region.write_unordered(Store::Cached, self.from + at as u64, &from[..len]);
            stored.expect("a ring lies in its slab");
        }
        len
    }

    /// Loads bytes from the `at`th on; as many as there are, which it says.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len_bytes().saturating_sub(at));
        if len > 0 {
            self.region.read(self.from + at as u64, &mut into[..len]).expect("a ring lies in its slab");
        }
        len
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    const SHAPE: Shape = Shape { slots: 3, small_bytes: 4096, large_bytes: 16_384 };

    #[test]
    fn what_goes_in_comes_out_across_the_seam() {
        let slab = Slab::create(SHAPE).unwrap();
        let other = Slab::map(slab.share().unwrap(), SHAPE).unwrap();
        let (a, b) = (slab.slot(2).unwrap(), other.slot(2).unwrap());
        let data: Vec<u8> = (0..4000u32).map(|i| (i % 251) as u8).collect();
        let cases = [
            (0, false, Store::Cached),
            (1, false, Store::PastCache),
            (0, true, Store::PastCache),
            (1, true, Store::Cached),
        ];
        for (direction, large, how) in cases {
            let parts = [IoSlice::new(&data[..1000]), IoSlice::new(&[]), IoSlice::new(&data[1000..])];
            assert_eq!(a.copy_in((direction, large), u64::MAX - 700, &parts, 0, 4000, how), 4000);
            let (mut one, mut two) = (vec![0; 3000], vec![0; 3000]);
            let mut into = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
            assert_eq!(b.copy_out(direction, large, u64::MAX - 700, &mut into, 0, 4000), 4000);
            assert!(one == data[..3000] && two[..1000] == data[3000..]);
            let ring_slice = b.ring_slice(direction, large, u64::MAX - 700, 4000);
            let mut three = [0; 9];
            assert_eq!(
                (ring_slice.len_bytes(), ring_slice.read(695, &mut three)),
                (701, 6),
                "the seam is at position 0"
            );
            assert_eq!(three[..6], data[695..701]);
            assert_eq!((ring_slice.write(700, b"xyz"), ring_slice.write(701, b"xyz")), (1, 0));
            assert_eq!(a.copy_out(direction, large, u64::MAX, &mut [IoSliceMut::new(&mut three)], 0, 2), 2);
            assert_eq!(three[..2], [b'x', data[701]]);
        }
        a.words().directions[0].tail.store(5, Ordering::Relaxed);
        assert_eq!(b.words().directions[0].tail.load(Ordering::Relaxed), 5);
        a.words().reset();
        assert_eq!(b.words().directions[0].tail.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn shapes_that_are_none_are_refused() {
        let none = [
            Shape { small_bytes: 5000, ..SHAPE },
            Shape { slots: 0, ..SHAPE },
            Shape { large_bytes: 20_000, ..SHAPE },
            Shape { large_bytes: 2048, ..SHAPE },
            Shape { slots: u32::MAX, small_bytes: 1 << 62, large_bytes: 1 << 62 },
            Shape { slots: u32::MAX, large_bytes: 1 << 46, ..SHAPE },
        ];
        let slab = Slab::create(SHAPE).unwrap();
        for shape in none {
            assert!(Slab::create(shape).is_err() && Slab::map(slab.share().unwrap(), shape).is_err());
        }
        assert!(slab.slot(3).is_none());
        assert!(Slab::map(slab.share().unwrap(), Shape { slots: 4, ..SHAPE }).is_err());
    }

    #[test]
    fn a_large_ring_is_taken_back_only_when_it_is_empty_and_nobody_fills_it() {
        let slab = Slab::create(SHAPE).unwrap();
        let (slot, me) = (slab.slot(1).unwrap(), 77);
        let words = &slot.words().directions[1];
        assert!(!words.may_grow());
        slot.grant_large(1).unwrap();
        assert!(words.may_grow() && words.change_ring() && !words.may_grow());
        words.tail.store(10, Ordering::Relaxed);
        assert!(!slot.take_large_back(1), "ten bytes are in it");
        words.head.store(10, Ordering::Relaxed);
        let filling = SharedLock::new(&words.sender_lock).lock(me + 1).unwrap();
        assert!(!slot.take_large_back(1), "the sending end is at work");
        drop(filling);
        assert!(slot.take_large_back(1) && !words.may_grow());
        assert_eq!(words.layout(), crate::Layout { from: 10, large: false });
    }
}
