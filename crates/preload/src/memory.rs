//! The library's own memory: its allocations neither use nor wait for the program's allocator.
//!
//! A signal handler may call close, accept, send, recv and shutdown, also while its thread is in
//! the middle of `malloc`. What those calls allocate and free here must not go there.
//!
//! Invariant: nothing here takes a lock. A free block is in one list, that of its size; memory of
//! blocks is never given back, so a thread that reads a block which another one has just taken
//! reads a stale word, and its exchange fails by the tag. A block that a thread of the parent was
//! about to take at a fork is lost in the child. Source: signal-safety(7).

use crate::limits::{MEMORY_BLOCK_MAX, MEMORY_CHUNK};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// Bytes of the smallest block, as a power of two: room for what a free block holds.
const SMALLEST: u32 = 4;
const CLASSES: usize = (MEMORY_BLOCK_MAX.trailing_zeros() - SMALLEST) as usize + 1;
/// Bits of an address in a list's word, without those that are 0 in a multiple of the smallest
/// block; the others count its changes.
const ADDRESS_BITS: u32 = 48 - SMALLEST;
/// Alignment up to which a mapping serves.
const PAGE: usize = 4096;

/// The allocator.
struct Memory {
    /// The free blocks of each size: address and tag.
    free: [AtomicU64; CLASSES],
    /// Where the chunk in use goes on; 0: there is none.
    next: AtomicUsize,
}

#[global_allocator]
static MEMORY: Memory = Memory { free: [const { AtomicU64::new(0) }; CLASSES], next: AtomicUsize::new(0) };

/// Which list serves it; none: a mapping of its own does.
fn class(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(1 << SMALLEST);
    (bytes <= MEMORY_BLOCK_MAX).then(|| (bytes.next_power_of_two().trailing_zeros() - SMALLEST) as usize)
}

// SAFETY: a block is as large and as aligned as its class, which is at least what was asked for,
// and belongs to nobody else until it is given back. Nothing unwinds.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else {
            return if layout.align() > PAGE { null_mut() } else { map(layout.size()) };
        };
        let block = self.pop(class);
        if block.is_null() { self.carve(1 << (class as u32 + SMALLEST)) } else { block }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(layout) {
            Some(class) => self.push(class, block),
            None => {
                // SAFETY: the caller's promise: `alloc` gave it for this layout, so it is a whole
                // mapping of ours.
                unsafe { libc::munmap(block.cast(), layout.size()) };
            }
        }
    }
}

impl Memory {
    fn pop(&self, class: usize) -> *mut u8 {
        let mut head = self.free[class].load(Acquire);
        loop {
            let block = address(head);
            if block.is_null() {
                return block;
            }
            // SAFETY: it was a free block, whose memory stays; if it is somebody's by now the word
            // is not used, for the exchange fails.
            let next = unsafe { block.cast::<u64>().read_volatile() } & ((1 << ADDRESS_BITS) - 1);
            match self.free[class].compare_exchange_weak(head, changed(head) | next, AcqRel, Acquire) {
                Ok(_) => return block,
                Err(now) => head = now,
            }
        }
    }

    fn push(&self, class: usize, block: *mut u8) {
        let mut head = self.free[class].load(Relaxed);
        let own = block as u64 >> SMALLEST;
        loop {
            // SAFETY: the block is ours until the exchange, and as large as a word.
            unsafe { block.cast::<u64>().write_volatile(head & ((1 << ADDRESS_BITS) - 1)) };
            match self.free[class].compare_exchange_weak(head, changed(head) | own, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// A block that was never used.
    fn carve(&self, bytes: usize) -> *mut u8 {
        let mut next = self.next.load(Acquire);
        loop {
            // Chunks are multiples of themselves, so the end of the one in use is known.
            let (at, end) = (next.next_multiple_of(bytes), next.next_multiple_of(MEMORY_CHUNK));
            if next != 0 && at + bytes <= end {
                match self.next.compare_exchange_weak(next, at + bytes, AcqRel, Acquire) {
                    Ok(_) => return at as *mut u8,
                    Err(now) => next = now,
                }
                continue;
            }
            let chunk = map_chunk();
            if chunk == 0 {
                return null_mut();
            }
            match self.next.compare_exchange(next, chunk + bytes, AcqRel, Acquire) {
                Ok(_) => return chunk as *mut u8,
                Err(now) => {
                    // SAFETY: nobody knows this chunk.
                    unsafe { libc::munmap(chunk as *mut _, MEMORY_CHUNK) };
                    next = now;
                }
            }
        }
    }
}

fn address(head: u64) -> *mut u8 {
    ((head & ((1 << ADDRESS_BITS) - 1)) << SMALLEST) as *mut u8
}

/// The tag of the next change.
fn changed(head: u64) -> u64 {
    ((head >> ADDRESS_BITS).wrapping_add(1)) << ADDRESS_BITS
}

fn map(bytes: usize) -> *mut u8 {
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, wherever the kernel likes.
    let at = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, how, -1, 0) };
    if at == libc::MAP_FAILED { null_mut() } else { at.cast() }
}

/// A chunk whose address is a multiple of its size; 0: there is no memory.
fn map_chunk() -> usize {
    let at = map(2 * MEMORY_CHUNK) as usize;
    if at == 0 {
        return 0;
    }
    let chunk = at.next_multiple_of(MEMORY_CHUNK);
    for (from, to) in [(at, chunk), (chunk + MEMORY_CHUNK, at + 2 * MEMORY_CHUNK)] {
        if from < to {
            // SAFETY: the ends of the mapping that was just made.
            unsafe { libc::munmap(from as *mut _, to - from) };
        }
    }
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_large_and_aligned_as_asked_and_nobody_elses() {
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let mut held: Vec<(*mut u8, Layout)> = Vec::new();
                    for round in 0..4_000usize {
                        let layout = Layout::from_size_align(1 + round * 37 % 70_000, 1 << (round % 7)).expect("valid");
                        // SAFETY: a layout of at least one byte; each block is filled, checked and
                        // given back once.
                        unsafe {
                            let block = MEMORY.alloc(layout);
                            assert!(!block.is_null() && block as usize % layout.align() == 0);
                            std::ptr::write_bytes(block, thread, layout.size());
                            held.push((block, layout));
                            if round % 3 != 0 {
                                let (block, layout) = held.swap_remove(round % held.len());
                                let bytes = std::slice::from_raw_parts(block, layout.size());
                                assert!(bytes.iter().all(|byte| *byte == thread));
                                MEMORY.dealloc(block, layout);
                            }
                        }
                    }
                });
            }
        });
    }
}
