//! Copies into and out of memory that other processes use at the same time.
//!
//! Invariant: [`deposit`] makes the last byte of a transfer visible after all others
//! (docs/memory-model.md), also when it used non-temporal stores. Source: [NT §5.1] for
//! large transfers that bypass the cache.
//!
//! Bulk bytes are copied with `ptr::copy_nonoverlapping`, as every shared-memory system does:
//! another process may store to them meanwhile, and then the copy contains some mixture of old and
//! new bytes, which the protocol above allows. Nothing here ever forms a reference to them.

use crate::atomics::Ordering;
use crate::limits::NON_TEMPORAL_BYTES_MIN;
use crate::stores::Store;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Copies `len` bytes so that the last ones become visible last, by stores that the caller has
/// found to pay.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes for the whole call, and they do not
/// overlap.
#[inline]
pub(crate) unsafe fn deposit(how: Store, from: *const u8, to: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    let tail = tail_bytes(to as usize + len, len);
    let body = len - tail;
    // SAFETY: body + tail = len, and the caller vouches for len bytes on both sides.
    unsafe {
        if body > 0 {
            bulk_by(how, from, to, body);
        }
        store_last(from.add(body), to.add(body), tail);
    }
}

/// Copies `len` bytes in no particular order.
///
/// # Safety
/// As for [`deposit`].
#[inline]
pub(crate) unsafe fn bulk(from: *const u8, to: *mut u8, len: usize) {
    if len >= NON_TEMPORAL_BYTES_MIN {
        // SAFETY: the caller's promise is the same.
        unsafe { non_temporal(from, to, len) }
    } else if chases_itself(from, to, len) {
        // SAFETY: the caller's promise is the same.
        unsafe { backwards(from, to, len) }
    } else if len <= FEW_BYTES_MAX {
        // SAFETY: the caller's promise is the same.
        unsafe { few(from, to, len) }
    } else {
        // SAFETY: the caller vouches for both ranges and that they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
    }
}

/// Most bytes that [`few`] copies.
const FEW_BYTES_MAX: usize = 16;

/// Copies up to [`FEW_BYTES_MAX`] bytes without a call: its two ends, which overlap unless it is as
/// long as both.
///
/// # Safety
/// As for [`deposit`].
#[inline(always)]
unsafe fn few(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each access is of at most `len` bytes, at the beginning or the end of the range.
    unsafe {
        match len {
            8.. => {
                let (first, last) = (from.cast::<u64>().read_unaligned(), from.add(len - 8).cast::<u64>());
                to.add(len - 8).cast::<u64>().write_unaligned(last.read_unaligned());
                to.cast::<u64>().write_unaligned(first);
            }
            4.. => {
                let (first, last) = (from.cast::<u32>().read_unaligned(), from.add(len - 4).cast::<u32>());
                to.add(len - 4).cast::<u32>().write_unaligned(last.read_unaligned());
                to.cast::<u32>().write_unaligned(first);
            }
            _ => (0..len).for_each(|at| to.add(at).write(from.add(at).read())),
        }
    }
}

/// Copies `len` bytes in no particular order, in the way that the caller has found to pay.
///
/// # Safety
/// As for [`deposit`].
#[inline]
pub(crate) unsafe fn bulk_by(how: Store, from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise is the same; what goes past the cache has 64 bytes at least.
    unsafe {
        match how {
            Store::PastCache if len >= LINE_BYTES => non_temporal(from, to, len),
            _ => bulk(from, to, len),
        }
    }
}

/// Whether stores would run shortly ahead of loads, as the processor sees it, which compares the
/// low twelve bits of addresses: the destination starts 1 to 63 bytes further into its page than
/// the source. `rep movsb`, which the C library uses from about this size on, is then some twenty
/// times slower on AMD processors (`cargo run --release -p vmmc-host --example copy_sizes` shows it
/// in its first column).
#[inline]
fn chases_itself(from: *const u8, to: *mut u8, len: usize) -> bool {
    (CHASE_BYTES_MIN..CHASE_BYTES_MAX).contains(&len)
        && (to as usize).wrapping_sub(from as usize).wrapping_sub(1) % 4096 < 63
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Size from which the C library may use string instructions.
const CHASE_BYTES_MIN: usize = 1024;
/// Size from which it was seen to do well all the same.
const CHASE_BYTES_MAX: usize = 512 << 10;

/// Copies from the end to the start, so that loads stay ahead of stores whose addresses look alike.
///
/// # Safety
/// As for [`deposit`].
#[cfg(target_arch = "x86_64")]
unsafe fn backwards(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
    const LINE: usize = 64;
    let mut left = len;
    // SAFETY: left <= len and each round touches left - 64 .. left on both sides; what remains at
    // the start is copied last. Loads and stores are unaligned ones.
    unsafe {
        while left >= LINE {
            left -= LINE;
            let (s, d) = (from.add(left).cast::<__m128i>(), to.add(left).cast::<__m128i>());
            let (a, b) = (_mm_loadu_si128(s), _mm_loadu_si128(s.add(1)));
            let (c, e) = (_mm_loadu_si128(s.add(2)), _mm_loadu_si128(s.add(3)));
            _mm_storeu_si128(d.add(3), e);
            _mm_storeu_si128(d.add(2), c);
            _mm_storeu_si128(d.add(1), b);
            _mm_storeu_si128(d, a);
        }
        std::ptr::copy_nonoverlapping(from, to, left);
    }
}

/// Other processors have no such trouble that we know of.
///
/// # Safety
/// As for [`deposit`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn backwards(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Size of the final store: the largest power of two up to 8 that divides the end address and fits.
#[inline]
fn tail_bytes(end: usize, len: usize) -> usize {
    let aligned = 1usize << (end.trailing_zeros().min(3));
    let fits = if len >= 8 { 8 } else { 1 << len.ilog2() };
    aligned.min(fits)
}

/// The final store, a single one with release ordering.
///
/// # Safety
/// As for [`deposit`]; `to` is aligned to `tail`, which is 1, 2, 4 or 8.
#[inline]
unsafe fn store_last(from: *const u8, to: *mut u8, tail: usize) {
    // SAFETY: the caller vouches for the ranges; the alignment of `to` makes the atomic view valid,
    // `from` is read unaligned.
    unsafe {
        match tail {
            8 => AtomicU64::from_ptr(to.cast()).store(from.cast::<u64>().read_unaligned(), Ordering::Release),
            4 => AtomicU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), Ordering::Release),
            2 => AtomicU16::from_ptr(to.cast()).store(from.cast::<u16>().read_unaligned(), Ordering::Release),
            _ => AtomicU8::from_ptr(to).store(from.read(), Ordering::Release),
        }
    }
}

/// Copies past the cache. Ends with a store fence, so later stores cannot overtake.
///
/// # Safety
/// As for [`deposit`], with `len` at least [`LINE_BYTES`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn non_temporal(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = LINE_BYTES;
    let head = (to as usize).wrapping_neg() % LINE;
    let lines = (len - head) / LINE;
    // SAFETY: head < 64 <= len (callers pass at least LINE_BYTES), and head + lines * 64 <= len;
    // `to + head` is 64-byte aligned as the streaming store needs, loads are unaligned. The ranges
    // are the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (mut source, mut dest) = (from.add(head), to.add(head));
        for _ in 0..lines {
            let s = source.cast::<__m128i>();
            let d = dest.cast::<__m128i>();
            let (a, b, c, e) =
                (_mm_loadu_si128(s), _mm_loadu_si128(s.add(1)), _mm_loadu_si128(s.add(2)), _mm_loadu_si128(s.add(3)));
            _mm_stream_si128(d, a);
            _mm_stream_si128(d.add(1), b);
            _mm_stream_si128(d.add(2), c);
            _mm_stream_si128(d.add(3), e);
            source = source.add(LINE);
            dest = dest.add(LINE);
        }
        let done = head + lines * LINE;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
        _mm_sfence();
    }
}

/// Copies with ordinary stores: this processor has no streaming store that we know.
///
/// # Safety
/// As for [`deposit`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn non_temporal(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tail_is_aligned_and_fits() {
        for end in 0..64usize {
            for len in 1..20usize {
                let tail = tail_bytes(0x1000 + end, len);
                assert!(tail <= len && tail <= 8 && (0x1000 + end) % tail == 0 && tail.is_power_of_two());
            }
        }
    }

    #[test]
    fn deposit_copies_every_length_and_alignment() {
        let source: Vec<u8> = (0..200u8).collect();
        // Miri copies a few thousand bytes a second.
        let step = if cfg!(miri) { 7 } else { 1 };
        for offset in (0..16).step_by(step) {
            for len in (0..100).step_by(step) {
                let mut dest = vec![0xEEu8; 200];
                for how in [Store::Cached, Store::PastCache] {
                    dest.fill(0xEE);
                    // SAFETY: both ranges lie inside the vectors (offset + len < 200).
                    unsafe { deposit(how, source.as_ptr().add(3), dest.as_mut_ptr().add(offset), len) };
                    assert_eq!(&dest[offset..offset + len], &source[3..3 + len]);
                    assert!(dest[..offset].iter().chain(&dest[offset + len..]).all(|b| *b == 0xEE));
                }
            }
        }
    }

    #[test]
    fn few_bytes_are_copied_whole_and_no_others() {
        let source: Vec<u8> = (1..200u8).collect();
        for len in 0..=FEW_BYTES_MAX {
            for offset in 0..8 {
                let mut dest = [0xEEu8; 64];
                // SAFETY: both ranges lie inside (offset + len < 64).
                unsafe { bulk(source.as_ptr().add(offset), dest.as_mut_ptr().add(3), len) };
                assert_eq!(dest[3..3 + len], source[offset..offset + len]);
                assert!(dest[..3].iter().chain(&dest[3 + len..]).all(|byte| *byte == 0xEE));
            }
        }
    }

    #[test]
    fn copies_that_chase_themselves_are_complete() {
        // Miri copies a few thousand bytes a second.
        let longest = if cfg!(miri) { CHASE_BYTES_MIN + 100 } else { 20_000 };
        let source: Vec<u8> = (0..longest).map(|i| (i * 31 % 251) as u8).collect();
        let mut dest = vec![0u8; longest + 4096];
        for distance in [1usize, 8, 16, 63] {
            let base = (source.as_ptr() as usize + distance).wrapping_sub(dest.as_ptr() as usize) % 4096;
            for len in [CHASE_BYTES_MIN, CHASE_BYTES_MIN + 77, longest] {
                dest.fill(0xEE);
                assert!(chases_itself(source.as_ptr(), dest[base..].as_mut_ptr(), len));
                // SAFETY: base < 4096 and len <= longest, so both ranges lie inside the vectors.
                unsafe { deposit(Store::Cached, source.as_ptr(), dest.as_mut_ptr().add(base), len) };
                assert_eq!(dest[base..base + len], source[..len]);
                assert!(dest[..base].iter().chain(&dest[base + len..]).all(|b| *b == 0xEE));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "eight MiB under Miri takes minutes")]
    fn non_temporal_copies_are_complete() {
        let len = NON_TEMPORAL_BYTES_MIN + 4097;
        let source: Vec<u8> = (0..len + 64).map(|i| (i * 31 % 251) as u8).collect();
        for shift in [0usize, 1, 33] {
            let mut dest = vec![0u8; len + 64];
            // SAFETY: shift + len <= len + 64 on both sides.
            unsafe { deposit(Store::Cached, source.as_ptr().add(shift), dest.as_mut_ptr().add(64 - shift), len) };
            assert!(dest[64 - shift..64 - shift + len] == source[shift..shift + len]);
        }
    }
}
