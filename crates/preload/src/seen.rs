//! What the kernel last reported about a connection's own socket, so that an event loop need not
//! ask again what it has just been told.
//!
//! An upgraded connection whose bytes go by the kernel is registered there edge-triggered, and a
//! program that wants levels is to be told as long as there is something. Each such question was a
//! system call. But an edge says that there are bytes, and a receive that got less than it asked
//! for says that there are none until the next edge.
//!
//! Invariant: "nothing to read" is only said when a receive that began after the last edge found
//! the end of what was there; "something" is said once for an edge, and then the kernel is asked,
//! for somebody else may have read it, or a receive all of it. Nothing is said of a socket that
//! other processes have, or that the kernel reported more about than bytes and room.

use crate::limits::{SEEN_ROOM_BYTES, SEEN_SEND_BYTES};
use crate::readiness::OUTPUT;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Bytes that can be read. The bits of poll and epoll have the same values.
const BYTES: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// What was reported about one connection.
pub(crate) struct Seen {
    /// Edges that reported bytes, plus one: the first state is not known.
    edges: AtomicU32,
    /// The edge after which a receive found all there was.
    drained: AtomicU32,
    /// The edge for which "something" was reported.
    reported: AtomicU32,
    /// Bytes that may be sent before the kernel is asked for room again.
    room: AtomicU32,
    /// It reported something else: the end, an error, urgent data.
    odd: AtomicBool,
}

impl Seen {
    pub(crate) const fn new() -> Seen {
        Seen {
            edges: AtomicU32::new(1),
            drained: AtomicU32::new(0),
            reported: AtomicU32::new(1),
            room: AtomicU32::new(0),
            odd: AtomicBool::new(false),
        }
    }

    /// For the next connection.
    pub(crate) fn reset(&self) {
        self.edges.store(1, Relaxed);
        self.drained.store(0, Relaxed);
        self.reported.store(1, Relaxed);
        self.room.store(0, Relaxed);
        self.odd.store(false, Relaxed);
    }

    /// The kernel's set reported these bits. `certain`: bytes are for the program, and not copies
    /// of what it had, which are read away without it. Says whether the bits are of bytes and room
    /// only.
    pub(crate) fn edge(&self, bits: u32, certain: bool) -> bool {
        if bits & BYTES != 0 {
            let edge = self.edges.fetch_add(1, Relaxed).wrapping_add(1);
            if !certain {
                self.reported.store(edge, Relaxed);
            }
        }
        self.answer(bits);
        let plain = bits & !(BYTES | OUTPUT) == 0;
        if !plain {
            self.odd.store(true, Relaxed);
        }
        plain
    }

    /// The kernel answered a question with these bits.
    pub(crate) fn answer(&self, bits: u32) {
        if bits & OUTPUT != 0 {
            self.room.store(SEEN_ROOM_BYTES, Relaxed);
        }
    }

    /// Before a receive in the kernel: the edge that it comes after.
    pub(crate) fn before_receive(&self) -> u32 {
        self.edges.load(Relaxed)
    }

    /// A receive that began after that edge got so many bytes of those asked for. If it got all,
    /// there may be more, or not.
    pub(crate) fn received(&self, edge: u32, bytes: usize, asked: usize) {
        if bytes < asked { &self.drained } else { &self.reported }.store(edge, Relaxed);
    }

    /// A send in the kernel: so many bytes of those asked for, none if it failed.
    pub(crate) fn sent(&self, bytes: usize, asked: usize) {
        let room = self.room.load(Relaxed);
        let used = u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(SEEN_SEND_BYTES);
        self.room.store(if bytes < asked { 0 } else { room.saturating_sub(used) }, Relaxed);
    }

    /// The bits that hold of those asked for; none: the kernel must be asked.
    pub(crate) fn known(&self, asked: u32) -> Option<u32> {
        if self.odd.load(Relaxed) {
            return None;
        }
        let mut bits = 0;
        if asked & OUTPUT != 0 {
            if self.room.load(Relaxed) == 0 {
                return None;
            }
            bits |= asked & OUTPUT;
        }
        let edges = self.edges.load(Relaxed);
        if asked & BYTES != 0 && self.drained.load(Relaxed) != edges {
            if self.reported.swap(edges, Relaxed) == edges {
                return None;
            }
            bits |= asked & BYTES;
        }
        Some(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: u32 = libc::EPOLLIN as u32;
    const OUT: u32 = libc::EPOLLOUT as u32;

    #[test]
    fn an_edge_is_told_once_and_a_receive_that_found_the_end_settles_it() {
        let seen = Seen::new();
        assert_eq!(seen.known(IN), None, "at first the kernel must be asked");
        assert!(seen.edge(IN, true));
        assert_eq!((seen.known(IN), seen.known(IN)), (Some(IN), None));
        let before = seen.before_receive();
        seen.received(before, 9, 10);
        assert_eq!(seen.known(IN | libc::EPOLLRDHUP as u32), Some(0));
        // An edge that comes while a receive is under way is not settled by it.
        let before = seen.before_receive();
        seen.edge(IN, true);
        seen.received(before, 0, 10);
        assert_eq!(seen.known(IN), Some(IN));
        // One of bytes that may not be the program's.
        seen.edge(IN, false);
        assert_eq!(seen.known(IN), None);
        // One whose bytes may have been all: nobody knows.
        seen.edge(IN, true);
        let before = seen.before_receive();
        seen.received(before, 10, 10);
        assert_eq!(seen.known(IN), None);
    }

    #[test]
    fn room_is_believed_for_a_few_short_sends() {
        let seen = Seen::new();
        assert_eq!(seen.known(OUT), None);
        seen.answer(OUT);
        let mut sends = 0;
        while seen.known(OUT) == Some(OUT) {
            seen.sent(100, 100);
            sends += 1;
        }
        assert!((2..=SEEN_ROOM_BYTES / 100).contains(&sends), "{sends}");
        seen.answer(OUT);
        seen.sent(10, 100);
        assert_eq!(seen.known(OUT), None, "a part was taken");
    }

    #[test]
    fn nothing_is_believed_after_an_end() {
        let seen = Seen::new();
        assert!(!seen.edge(IN | libc::EPOLLRDHUP as u32, true));
        assert_eq!((seen.known(IN), seen.known(OUT)), (None, None));
        seen.reset();
        assert!(seen.edge(IN, true));
        assert_eq!(seen.known(IN), Some(IN));
    }
}
