//! Memory that the kernel copies payloads of datagrams from and to.
//!
//! Invariant: where it starts in its page does not depend on the allocator.

use crate::region::PAGE_BYTES;
use std::ops::{Deref, DerefMut};

/// Bytes that start at a fixed place in their page.
///
/// The kernel's payloads start near the beginning of a page, and string instructions of some
/// processors copy slowly between places that are 1 to 63 bytes apart in their pages (see
/// `copy.rs`). The allocator puts a large vector 16 bytes behind the beginning of a page; the
/// middle is far from there.
pub struct PayloadBuffer {
    bytes: Box<[u8]>,
    start: usize,
}

/// The middle of a page.
const IN_PAGE_BYTES: usize = PAGE_BYTES / 2;

impl PayloadBuffer {
    /// So many bytes, all zero.
    pub fn new(len: usize) -> PayloadBuffer {
        let bytes = vec![0; len + PAGE_BYTES].into_boxed_slice();
        let start = (PAGE_BYTES + IN_PAGE_BYTES - bytes.as_ptr().addr() % PAGE_BYTES) % PAGE_BYTES;
        PayloadBuffer { bytes, start }
    }
}

impl Deref for PayloadBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for PayloadBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_in_the_middle_of_a_page_wherever_it_lies() {
        let (buffers, lengths) = if cfg!(miri) { (16, 8) } else { (40, 12) };
        let kept: Vec<PayloadBuffer> = (0..buffers).map(|i| PayloadBuffer::new(100 << (i % lengths))).collect();
        for (i, mut buffer) in kept.into_iter().enumerate() {
            assert_eq!(buffer.as_ptr().addr() % PAGE_BYTES, IN_PAGE_BYTES);
            assert!(buffer.len() >= 100 << (i % lengths) && buffer.iter().all(|byte| *byte == 0));
            *buffer.last_mut().unwrap() = 1;
        }
    }
}
