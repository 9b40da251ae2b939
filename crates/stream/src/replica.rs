//! A node's side of a connection between nodes: its slot is one of two replicas, and what its end
//! does goes to the other node in updates.
//!
//! ```text
//!   end 0 ──▶ words, ring │ replica on node A ══ updates ═════════▶ replica on node B │ words, ring ──▶ end 1
//! ```
//!
//! Invariant: the concatenation of the bytes of all updates is what the end put into its ring;
//! both replicas have the same rings, so what fitted here has room there. A process or node that
//! claims otherwise ends this connection and nothing else. Neither side waits. Source:
//! docs/sockets.md, between two nodes.

use super::slab::Slot;
use super::words::{EndWords, Flags, SideWords};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;
use vmmc_host::stores::Store;

/// Pieces of the stream are not made smaller than this to fit what room is left.
const PIECE_BYTES_MIN: u64 = 512;

/// One replica.
#[derive(Debug)]
pub struct Replica {
    slot: Slot,
    /// The end that is here.
    end: usize,
    /// What the other node has been sent.
    sent: SideWords,
    /// Tail of the other end's direction.
    received: u64,
}

/// What [`Replica::encode_update`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// Nothing has changed.
    Nothing,
    /// An update; there is nothing more.
    All,
    /// An update, and there is more.
    Part,
    /// There is too little room for the update.
    NoRoom,
}

/// Whom an update concerns here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Wakes {
    /// Threads that wait for bytes, an end, or a change.
    pub receiver: bool,
    /// Threads that wait for room.
    pub sender: bool,
    /// The other node waits to learn how far this end has received, or that its request to give
    /// back has arrived.
    pub answer: bool,
}

/// Words or a message that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a claim about a connection between nodes that cannot be true")]
pub struct Nonsense;

impl Replica {
    /// The replica in a fresh slot, whose end `end` is on this node.
    pub fn new(slot: Slot, end: usize) -> Replica {
        Replica { slot, end, sent: SideWords::default(), received: 0 }
    }

    /// The slot.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    fn ring_bytes(&self) -> u64 {
        self.slot.ring_bytes(false)
    }

    /// Encodes the next update, of at most `most` bytes, behind what is in `out`.
    ///
    /// # Errors
    /// [`Nonsense`]: by the words more was sent than fits the ring.
    pub fn encode_update(&mut self, most: usize, out: &mut Vec<u8>) -> Result<Encoded, Nonsense> {
        let side = self.slot.words().side(self.end);
        if side == self.sent {
            return Ok(Encoded::Nothing);
        }
        let new = side.tail.wrapping_sub(self.sent.tail);
        if new > self.ring_bytes() {
            return Err(Nonsense);
        }
        let room = (most as u64).saturating_sub(SideWords::BYTES as u64);
        let piece = new.min(room);
        if most < SideWords::BYTES || piece < new.min(PIECE_BYTES_MIN) {
            return Ok(Encoded::NoRoom);
        }
        let at = self.sent.tail;
        let tail = at.wrapping_add(piece);
        let all = piece == new;
        // Of the sending side no more than holds at that tail.
        let SideWords { epoch, boundary, sender_flags, soon, back, .. } = if all { side } else { self.sent };
        let now = SideWords { tail, epoch, boundary, sender_flags, soon, back, ..side };
        out.extend_from_slice(&now.to_bytes());
        let start = out.len();
        out.resize(start + piece as usize, 0);
        self.slot.copy_out(self.end, false, at, &mut [IoSliceMut::new(&mut out[start..])], 0, piece);
        self.sent = now;
        Ok(if all { Encoded::All } else { Encoded::Part })
    }

    /// Applies an update of the other node.
    ///
    /// # Errors
    /// [`Nonsense`]; nothing has changed then.
    pub fn apply_update(&mut self, message: &[u8]) -> Result<Wakes, Nonsense> {
        let (head, bytes) = message.split_first_chunk::<{ SideWords::BYTES }>().ok_or(Nonsense)?;
        let side = SideWords::from_bytes(head);
        let (other, words) = (1 - self.end, self.slot.words());
        let (into, out) = (&words.directions[other], &words.directions[self.end]);
        let len = bytes.len() as u64;
        let taken = into.head.load(Ordering::Acquire);
        let used = self.received.wrapping_sub(taken);
        // The head is a claim of the process here: what it loses by a wrong one is its own.
        let fits = used <= self.ring_bytes() && len <= self.ring_bytes() - used;
        if side.tail != self.received.wrapping_add(len) || !fits {
            return Err(Nonsense);
        }
        let before = words.side(other);
        self.slot.copy_in((other, false), self.received, &[IoSlice::new(bytes)], 0, len, Store::Cached);
        words.set_side(other, &side);
        self.received = side.tail;
        // Closed, or asks for the kernel: a sending thread is woken wherever it waits.
        let turned = side.receiver_flags != before.receiver_flags;
        let announced = (side.epoch, side.sender_flags) != (before.epoch, before.sender_flags);
        let mut wakes = Wakes { receiver: len > 0 || announced || turned, sender: turned, answer: false };
        // Room for a thread that waits for it, as if the receiver had given it.
        if side.head != before.head && out.sender_wants_room.load(Ordering::Relaxed) != 0 {
            let used = out.tail.load(Ordering::Relaxed).wrapping_sub(side.head);
            wakes.sender |= used <= self.ring_bytes() / 2 && out.sender_wants_room.swap(0, Ordering::SeqCst) != 0;
        }
        // The other node gets heads with what this end sends. If it sends nothing, the
        // receiver here has to ring for it before the ring is full.
        if self.received.wrapping_sub(self.sent.head) >= self.ring_bytes() / 2 {
            into.want_room();
            let taken = into.head.load(Ordering::Acquire);
            wakes.answer = self.received.wrapping_sub(taken) <= self.ring_bytes() / 2 && taken != self.sent.head;
        }
        if side.receiver_flags & !before.receiver_flags & Flags::FLUSH_TO_KERNEL != 0 {
            // `set_side` has passed the fence: the updates from here on show what the
            // sending end did before it saw the request, or what it did after it saw it.
            words.ends[self.end].back.fetch_or(EndWords::ACKED, Ordering::SeqCst);
            words.ends[self.end].hint.fetch_add(1, Ordering::SeqCst);
            wakes.answer = true;
        }
        Ok(wakes)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::{Flags, Shape, Slab};

    fn replicas() -> [Replica; 2] {
        [0, 1].map(|end| {
            let slab = Slab::create(Shape { slots: 1, small_bytes: 4096, large_bytes: 4096 }).unwrap();
            Replica::new(slab.slot(0).unwrap(), end)
        })
    }

    fn send(replica: &Replica, bytes: &[u8]) {
        let out = &replica.slot.words().directions[replica.end];
        let at = out.tail.load(Ordering::Relaxed);
        replica.slot.copy_in((replica.end, false), at, &[IoSlice::new(bytes)], 0, bytes.len() as u64, Store::Cached);
        out.publish(bytes.len() as u64);
    }

    fn receive(replica: &Replica, most: usize) -> (Vec<u8>, bool) {
        let into = &replica.slot.words().directions[1 - replica.end];
        let len = into.available(4096).min(most as u64);
        let mut bytes = vec![0; len as usize];
        let at = into.head.load(Ordering::Relaxed);
        replica.slot.copy_out(1 - replica.end, false, at, &mut [IoSliceMut::new(&mut bytes)], 0, len);
        let room = into.consume(len, 4096);
        (bytes, room)
    }

    #[test]
    fn bytes_in_pieces_arrive_before_what_was_sent_behind_them() {
        let [mut a, mut b] = replicas();
        let data: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
        send(&a, &data);
        a.slot.words().directions[0].sender_flags.store(Flags::END, Ordering::SeqCst);
        let mut got = Vec::new();
        for encoded in [Encoded::Part, Encoded::Part, Encoded::All] {
            assert_eq!(b.slot.words().directions[0].sender_flags.load(Ordering::Relaxed), 0, "the end comes last");
            let mut message = Vec::new();
            assert_eq!(a.encode_update(SideWords::BYTES + 1200, &mut message), Ok(encoded));
            let wakes = b.apply_update(&message).unwrap();
            assert!(wakes.receiver && !wakes.sender);
            got.extend(receive(&b, 4096).0);
        }
        assert_eq!(got, data);
        assert_eq!(b.slot.words().directions[0].sender_flags.load(Ordering::Relaxed), Flags::END);
        assert_eq!(a.encode_update(4096, &mut Vec::new()), Ok(Encoded::Nothing));
        send(&a, &data[..1000]);
        assert_eq!(a.encode_update(SideWords::BYTES + 100, &mut Vec::new()), Ok(Encoded::NoRoom));
    }

    #[test]
    fn a_sender_that_waits_for_room_learns_of_it_from_the_other_node() {
        let [mut a, mut b] = replicas();
        send(&a, &[7; 4096]);
        a.slot.words().directions[0].want_room();
        let mut message = Vec::new();
        a.encode_update(8192, &mut message).unwrap();
        assert!(!b.apply_update(&message).unwrap().answer, "nothing was received");
        assert!(!receive(&b, 1000).1, "less than half");
        let (_, rings) = receive(&b, 1500);
        assert!(rings, "the receiver rings for the other node");
        let mut answer = Vec::new();
        assert_eq!(b.encode_update(8192, &mut answer), Ok(Encoded::All));
        let wakes = a.apply_update(&answer).unwrap();
        assert!(wakes.sender && !wakes.receiver);
        assert_eq!(a.slot.words().directions[0].free(4096, 4096), 2500);
    }

    #[test]
    fn claims_that_cannot_be_end_nothing_but_the_connection() {
        let [mut a, mut b] = replicas();
        a.slot.words().directions[0].tail.store(5000, Ordering::Relaxed);
        assert_eq!(a.encode_update(8192, &mut Vec::new()), Err(Nonsense));
        a.slot.words().directions[0].tail.store(10, Ordering::Relaxed);
        let mut message = Vec::new();
        a.encode_update(8192, &mut message).unwrap();
        assert_eq!(b.apply_update(&message[..40]), Err(Nonsense), "cut off");
        assert_eq!(b.apply_update(&message[..60]), Err(Nonsense), "fewer bytes than the tail says");
        b.apply_update(&message).unwrap();
        assert_eq!(b.apply_update(&message), Err(Nonsense), "twice");
        let mut long = message.clone();
        long[..8].copy_from_slice(&5000u64.to_le_bytes());
        long.resize(SideWords::BYTES + 4990, 0);
        assert_eq!(b.apply_update(&long), Err(Nonsense), "more than fits");
    }
}
