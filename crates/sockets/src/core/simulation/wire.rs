//! The kernel's stream between two ends, as far as the protocol asks for it.
//!
//! Invariant: bytes come in order and when [`Wire::deliver`] says so, and the end behind them.
//! Source: [NT §4]; docs/sockets.md.

use super::super::{End, Kernel};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

/// Bytes that a direction of the kernel's stream holds at least, and that it holds more if it takes
/// all that may be unread in a ring.
const WIRE_BYTES: usize = 700;
pub(in crate::core) const WIRE_BYTES_MORE: usize = 10_000;

/// One direction of the kernel's connection.
#[derive(Default)]
pub(in crate::core) struct Wire {
    pub(super) sent: Cell<u64>,
    /// Bytes that it holds beyond [`WIRE_BYTES`].
    pub(in crate::core) more: Cell<usize>,
    /// Sent, not delivered.
    pub(super) flying: RefCell<VecDeque<u8>>,
    /// Delivered, not read.
    pub(super) there: RefCell<VecDeque<u8>>,
    pub(super) received: Cell<u64>,
    /// The sending end has ended it; the end arrives behind the bytes.
    pub(in crate::core) ended: Cell<bool>,
    /// Nobody is left to read.
    pub(super) unread: Cell<bool>,
}

impl Wire {
    pub(in crate::core) fn deliver(&self, most: usize) {
        let mut flying = self.flying.borrow_mut();
        let n = most.min(flying.len());
        self.there.borrow_mut().extend(flying.drain(..n));
        self.received.set(self.received.get() + n as u64);
    }

    pub(in crate::core) fn holds_bytes(&self) -> bool {
        !self.flying.borrow().is_empty() || !self.there.borrow().is_empty()
    }

    fn room(&self) -> usize {
        let held = self.flying.borrow().len() + self.there.borrow().len();
        (WIRE_BYTES + self.more.get()).saturating_sub(held)
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.get() && self.flying.borrow().is_empty() && self.there.borrow().is_empty()
    }
}

/// The kernel's socket of one end.
pub(in crate::core) struct Socket<'a> {
    pub(in crate::core) out: &'a Wire,
    pub(in crate::core) into: &'a Wire,
}

impl Kernel for Socket<'_> {
    fn send_now(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if self.out.ended.get() || self.out.unread.get() {
            return Err(Errno::PIPE);
        }
        let room = self.out.room();
        let mut flying = self.out.flying.borrow_mut();
        let before = flying.len();
        flying.extend(from.iter().flat_map(|s| s.iter().copied()).take(room));
        let sent = flying.len() - before;
        self.out.sent.set(self.out.sent.get() + sent as u64);
        if sent > 0 { Ok(sent) } else { Err(Errno::AGAIN) }
    }

    fn receive_now(&self, into: &mut [IoSliceMut<'_>], take: bool) -> Result<usize, Errno> {
        let over = self.into.is_over();
        let mut there = self.into.there.borrow_mut();
        let mut done = 0;
        for (place, byte) in into.iter_mut().flat_map(|s| s.iter_mut()).zip(there.iter()) {
            *place = *byte;
            done += 1;
        }
        there.drain(..if take { done } else { 0 });
        if done > 0 || over { Ok(done) } else { Err(Errno::AGAIN) }
    }

    fn sent(&self) -> Option<u64> {
        Some(self.out.sent.get())
    }

    fn received(&self) -> Option<(u64, u64)> {
        Some((self.into.received.get(), self.into.there.borrow().len() as u64))
    }

    fn peek(&self) -> End {
        match (self.into.there.borrow().is_empty(), self.into.is_over()) {
            (false, _) => End::Bytes,
            (true, true) => End::Ended,
            (true, false) => End::Open,
        }
    }

    fn peer_ended(&self) -> bool {
        self.into.ended.get()
    }

    fn received_in_all(&self) -> Option<u64> {
        self.into.is_over().then(|| self.into.received.get())
    }

    fn takes_more(&self) -> bool {
        self.out.room() > 0
    }

    fn no_delay(&self) {}
}

impl Socket<'_> {
    pub(super) fn established(&self) -> bool {
        !self.into.ended.get() && !self.out.ended.get()
    }
}
