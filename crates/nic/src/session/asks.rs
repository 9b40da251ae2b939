//! What this node asks the peer's driver for: imports, and echoes for pings. Users take turns.
//!
//! Invariants: an ask becomes a chunk only when its turn has come, so one that was withdrawn before
//! leaves nothing to send; one that was sent counts as its user's until its answer has come,
//! withdrawn or not, so what the peer has to answer is bounded however slow the way back is. The
//! peer answers each once: a withdrawn wait for a name too.

use std::collections::{BTreeMap, VecDeque};

use super::transmit::{Packet, Taken};
use super::tx::Body;
use super::{ASKS_TURN, Session};
use crate::limits::{ASKED_PER_PEER_MAX, share_allows};
use crate::slab::Key;
use crate::tables::{Tables, Wait, WaitAt, WaitFor};
use crate::wire::Writer;
use crate::wire::chunk::{CONTROL_BYTES_MAX, Chunk, Handle};

/// What an answer names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Asked {
    Import { process: u32, import: u64 },
    Echo { token: u64 },
}

impl Asked {
    pub(crate) fn import(handle: Handle) -> Asked {
        Asked::Import { process: handle.process, import: handle.import }
    }
}

/// See the module page.
#[derive(Default)]
pub(crate) struct Asks {
    /// Waits whose turn is to come, by user.
    queue: VecDeque<(u32, VecDeque<Key<Wait>>)>,
    /// In the round robin.
    pub(super) active: bool,
    /// Sent and not answered, and whose they are.
    sent: BTreeMap<Asked, u32>,
    users: BTreeMap<u32, usize>,
}

impl Asks {
    fn push(&mut self, uid: u32, wait: Key<Wait>) {
        match self.queue.iter_mut().find(|(of, _)| *of == uid) {
            Some((_, waits)) => waits.push_back(wait),
            None => self.queue.push_back((uid, VecDeque::from([wait]))),
        }
    }

    /// A wait has ended before its turn came.
    pub(crate) fn withdraw(&mut self, uid: u32, wait: Key<Wait>) {
        let Some(index) = self.queue.iter().position(|(of, _)| *of == uid) else { return };
        let waits = &mut self.queue[index].1;
        if let Some(at) = waits.iter().position(|key| *key == wait) {
            waits.remove(at);
        }
        if waits.is_empty() {
            self.queue.remove(index);
        }
    }

    /// Whether one more of a user may be sent.
    fn may_send(&self, uid: u32) -> bool {
        share_allows(self.users.get(&uid).copied().unwrap_or(0), self.sent.len(), ASKED_PER_PEER_MAX)
    }

    fn note_sent(&mut self, asked: Asked, uid: u32) {
        if self.sent.insert(asked, uid).is_none() {
            *self.users.entry(uid).or_default() += 1;
        }
    }

    fn note_answer(&mut self, asked: Asked) {
        let Some(uid) = self.sent.remove(&asked) else { return };
        if let Some(own) = self.users.get_mut(&uid) {
            *own -= 1;
            if *own == 0 {
                self.users.remove(&uid);
            }
        }
    }

    /// Whether the next user in turn may send its first one. If none may, what is here waits for an
    /// answer.
    fn next(&mut self) -> Option<(u32, Key<Wait>)> {
        for _ in 0..self.queue.len() {
            let (uid, waits) = self.queue.front()?;
            if let Some(wait) = waits.front().filter(|_| self.may_send(*uid)) {
                return Some((*uid, *wait));
            }
            self.queue.rotate_left(1);
        }
        None
    }

    /// Takes the one that [`next`](Self::next) gave; the next user has its turn.
    fn pop(&mut self) {
        let Some((uid, mut waits)) = self.queue.pop_front() else { return };
        waits.pop_front();
        if !waits.is_empty() {
            self.queue.push_back((uid, waits));
        }
    }

    /// For tests: waits whose turn is to come, and asks without an answer.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.queue.iter().map(|(_, waits)| waits.len()).sum(), self.sent.len())
    }
}

impl Session {
    /// Asks for what a wait of this user waits for, when its turn comes.
    pub(crate) fn ask(&mut self, uid: u32, wait: Key<Wait>) {
        self.asks.push(uid, wait);
        self.activate_asks();
    }

    fn activate_asks(&mut self) {
        if !self.asks.active && !self.asks.queue.is_empty() {
            self.asks.active = true;
            self.turns.push(ASKS_TURN, true);
        }
    }

    /// The peer has answered.
    pub(super) fn answered(&mut self, asked: Asked) {
        self.asks.note_answer(asked);
        self.activate_asks();
    }

    /// Puts the next ask into the packet.
    pub(super) fn take_ask(&mut self, packet: &mut Packet<'_>, tables: &mut Tables) -> Taken {
        let Some((uid, key)) = self.asks.next() else { return Taken::Empty };
        let mut buf = [0; CONTROL_BYTES_MAX];
        let mut encoded = Writer::new(&mut buf);
        let Some(wait) = tables.waits.get_mut(key) else {
            self.asks.pop();
            return Taken::Chunk;
        };
        let asked = match &wait.what {
            WaitFor::Ping { .. } => {
                Chunk::Echo { token: key.to_u64() }.write(&mut encoded);
                Asked::Echo { token: key.to_u64() }
            }
            WaitFor::Import { process, import, spec } => {
                let handle = Handle { process: process.0, import: import.to_u64() };
                let (rights, owner, wait, what) = (spec.rights, spec.owner, spec.wait, spec.what.clone());
                // The driver vouches for the user id of its process.
                Chunk::ImportRequest { handle, uid, rights, owner, wait, what }.write(&mut encoded);
                Asked::import(handle)
            }
        };
        let len = encoded.len();
        if self.start_whole(len, None, packet).is_none() {
            return Taken::Full;
        }
        wait.at = WaitAt::Answer(self.via);
        packet.out.bytes(&buf[..len]);
        self.tx.push_in_flight(Body::Control(buf[..len].into()), len, packet.number, None);
        self.asks.pop();
        self.asks.note_sent(asked, uid);
        Taken::Chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_half_of_what_a_peer_may_be_asked_for_until_it_answers() {
        let (mut asks, mut sent) = (Asks::default(), 0u64);
        (0..ASKED_PER_PEER_MAX as u64).for_each(|wait| asks.push(1, Key::from_u64(wait)));
        let send = |asks: &mut Asks| {
            let (uid, wait) = asks.next()?;
            asks.pop();
            asks.note_sent(Asked::Echo { token: wait.to_u64() }, uid);
            Some(uid)
        };
        while let Some(uid) = send(&mut asks) {
            assert_eq!(uid, 1);
            sent += 1;
        }
        assert!((ASKED_PER_PEER_MAX / 2 - 1..=ASKED_PER_PEER_MAX / 2).contains(&(sent as usize)), "{sent}");
        asks.push(2, Key::from_u64(1 << 40));
        assert_eq!(send(&mut asks), Some(2), "another one does not wait behind it");
        // A wait that ends before its turn leaves nothing; an answer makes room for the next.
        asks.withdraw(1, Key::from_u64(sent));
        asks.note_answer(Asked::Echo { token: 0 });
        asks.note_answer(Asked::Echo { token: 0 });
        asks.note_answer(Asked::Echo { token: 1 });
        assert_eq!(asks.next(), Some((1, Key::from_u64(sent + 1))));
        for wait in 0..ASKED_PER_PEER_MAX as u64 {
            asks.withdraw(1, Key::from_u64(wait));
        }
        assert!(asks.queue.is_empty() && asks.next().is_none());
    }
}
