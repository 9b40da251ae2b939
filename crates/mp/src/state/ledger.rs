//! What a member keeps count of, for the simulation, which holds it against the truth.
//!
//! Invariant: it changes nothing.

use super::State;
use crate::transport::Transport;

/// What a member keeps count of for another one; the fields are those of `Peer`.
pub(crate) struct Ledger {
    pub(crate) spent: u64,
    pub(crate) taken: u64,
    pub(crate) asks: usize,
    pub(crate) received: u64,
    pub(crate) told: u64,
    pub(crate) held: u64,
    pub(crate) asked: usize,
    /// What waits to be said to it.
    pub(crate) says: usize,
    /// Sends to it that have not begun to go.
    pub(crate) out: usize,
}

impl<T: Transport> State<T> {
    pub(crate) fn ledger(&self, rank: u32) -> Ledger {
        let peer = &self.peers[rank as usize];
        let &super::Peer { spent, taken, asks, received, told, held, asked, .. } = peer;
        let (says, out) = (peer.says.len(), peer.out.len());
        Ledger { spent, taken, asks, received, told, held, asked, says, out }
    }
}
