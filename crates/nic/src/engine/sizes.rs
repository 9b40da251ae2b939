//! How large packets may be: what the search of each path asks, and what its answers change.
//!
//! Invariant: a probe is sent only while the session matters, or something is owed to the peer, and
//! to a path that is in use or could be; it counts nowhere as something under way.

use super::Engine;
use crate::time::Time;

impl Engine {
    /// Asks what is due of the paths of a peer, and takes what has had no answer for lost.
    pub(super) fn sizes_due(&mut self, now: Time, index: u16) {
        let rng = &mut self.rng;
        let Some(peer) = self.peers.get_mut(usize::from(index)).and_then(Option::as_mut) else { return };
        let Some(session) = peer.session.as_deref_mut().filter(|session| session.needs_sizes()) else { return };
        let cap = session.packet_bytes_max;
        let wait = session.rtt.timeout(0).saturating_mul(2);
        let mut shrunk = false;
        for path in peer.paths.iter_mut().filter(|path| !path.failed) {
            if path.search.due().is_none_or(|at| at > now) {
                continue;
            }
            let before = path.search.size();
            if let Some(ask) = path.search.poll(now, cap, wait, || rng.u64()) {
                if ask.size <= before {
                    session.tx.size_asked.get_or_insert(session.tx.next_packet);
                }
                session.queue_probe(path.addr, ask.token, ask.size);
                session.queue_ping(Some(path.addr), ask.small);
            }
            shrunk |= path.search.size() < before;
        }
        if shrunk {
            peer.fit_packets();
            if let Some(session) = peer.session.as_deref_mut() {
                session.packets_were_too_large(&mut self.tables);
            }
        }
    }
}
