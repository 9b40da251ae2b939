//! Time: retransmission, acknowledgements, keepalives, dead peers, deadlines.
//!
//! Invariant: the heap holds for each peer, but for the one that is yet to be armed, an entry no
//! later than its next deadline. An entry may be early; then nothing is due and a new one goes in.

use std::cmp::Reverse;
use std::time::Duration;

use super::Engine;
use super::handshake::Use;
use crate::error::{ImportError, PeerDownReason};
use crate::limits::{EXPIRED_PER_TURN, PATH_PROBE_INTERVAL, PATH_TIMEOUTS_MAX, PENDING_LIFETIME, PING_RETRY};
use crate::peer::Peer;
use crate::tables::WaitAt;
use crate::time::Time;
use crate::wire::packet::SessionRef;

/// The heap entry of the sessions on probation.
const PENDING_TIMER: u16 = u16::MAX;

impl Engine {
    /// Does what is due at `now`. Call it when [`poll_timeout`](Engine::poll_timeout) has passed;
    /// more often does no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        while let Some(&Reverse((at, index))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            if index == PENDING_TIMER {
                self.expire_pending(now);
                continue;
            }
            // A later entry of a peer that has been armed for an earlier time meanwhile.
            if self.peer(index).is_none_or(|peer| peer.armed != at) {
                continue;
            }
            if let Some(peer) = self.peer_mut(index) {
                peer.armed = Time::MAX;
            }
            self.peer_due(now, index);
            self.wake(index);
            self.arm(index);
        }
        self.expire_waits(now);
        self.trim_deadlines();
    }

    /// Sees to it that the peer's next deadline is in the heap.
    #[inline]
    pub(super) fn arm(&mut self, index: u16) {
        let (peer_timeout, keepalive) = (self.config.peer_timeout, self.config.keepalive);
        let Some(peer) = self.peer_mut(index) else { return };
        let Some(at) = next_due(peer, peer_timeout, keepalive) else { return };
        if at < peer.armed {
            peer.armed = at;
            self.timers.push(Reverse((at, index)));
        }
    }

    pub(super) fn arm_pending(&mut self, now: Time) {
        self.timers.push(Reverse((now + PENDING_LIFETIME, PENDING_TIMER)));
    }

    fn expire_pending(&mut self, now: Time) {
        while let Some(&(slot, id)) = self.pending.front() {
            let created = match &self.slots[usize::from(slot)] {
                entry if entry.id != id => None,
                entry => match &entry.used {
                    Use::Pending(pending) => Some(pending.created),
                    _ => None,
                },
            };
            if created.is_some_and(|created| created + PENDING_LIFETIME > now) {
                return;
            }
            self.pending.pop_front();
            self.drop_pending(SessionRef { slot, id });
        }
    }

    fn expire_waits(&mut self, now: Time) {
        // What is left is due still, so this is called again.
        for _ in 0..EXPIRED_PER_TURN {
            let Some(&Reverse((at, key))) = self.deadlines.peek() else { break };
            if at > now {
                break;
            }
            self.deadlines.pop();
            if let Some(wait) = self.tables.waits.get(key) {
                let waited_ms = now.since(wait.started).as_millis() as u64;
                let why = ImportError::TimedOut { waited_ms };
                let why = match wait.at {
                    WaitAt::Peer(index) => self.with_hint(index, why),
                    _ => why,
                };
                self.withdraw(key, why);
            }
        }
    }

    /// Answered waits leave their deadlines behind; an idle engine shall not wake for them.
    #[inline]
    pub(super) fn trim_deadlines(&mut self) {
        while let Some(&Reverse((_, key))) = self.deadlines.peek() {
            if self.tables.waits.get(key).is_some() {
                break;
            }
            self.deadlines.pop();
        }
    }

    fn peer_due(&mut self, now: Time, index: u16) {
        self.attempt_due(now, index);
        self.session_due(now, index);
        self.keepalive_due(now, index);
        self.probes_due(now, index);
        self.sizes_due(now, index);
    }

    fn attempt_due(&mut self, now: Time, index: u16) {
        let Some(attempt) = self.peer(index).and_then(|peer| peer.attempt.as_ref()) else { return };
        let waited = now.since(attempt.started);
        if waited >= self.config.peer_timeout {
            let after_ms = waited.as_millis() as u64;
            self.attempt_failed(index, ImportError::NodeUnreachable { after_ms });
        } else if now >= attempt.next {
            self.send_hello(now, index);
        }
    }

    fn session_due(&mut self, now: Time, index: u16) {
        let peer_timeout = self.config.peer_timeout;
        let Some(peer) = self.peers[usize::from(index)].as_mut() else { return };
        let Some(session) = peer.session.as_deref_mut() else { return };
        if session.ack_deadline().is_some_and(|at| at <= now) {
            session.ack_waited_enough();
        }
        // What it held back goes with the next poll.
        session.tx.pacer.wait_is_over(now);
        if session.tx.loss_time.is_some_and(|at| at <= now) {
            session.detect_losses(now, &mut self.tables);
        }
        if let Some(since) = session.chunk_wait {
            if now >= since + peer_timeout {
                if session.nothing_outstanding() {
                    session.chunk_wait = None;
                } else {
                    let after_ms = now.since(since).as_millis() as u64;
                    self.lose_peer(now, index, PeerDownReason::Unreachable { after_ms });
                    return;
                }
            }
        }
        if session.waited(now, &mut self.tables) {
            if std::mem::take(&mut session.tx.size_is_doubtful) {
                peer.paths[peer.current].search.doubt(session.packet_bytes_max);
            }
            let often = session.tx.backoff % PATH_TIMEOUTS_MAX == 0;
            if often || peer.received_elsewhere().is_some() {
                self.switch_path(index);
            }
        }
    }

    fn switch_path(&mut self, index: u16) {
        let Some(peer) = self.peers[usize::from(index)].as_mut() else { return };
        if peer.switch_path() {
            self.tables.stats.path_switches += 1;
            if let Some(session) = peer.session.as_deref_mut() {
                session.path_changed();
            }
        }
    }

    fn keepalive_due(&mut self, now: Time, index: u16) {
        let (peer_timeout, keepalive) = (self.config.peer_timeout, self.config.keepalive);
        let token = self.rng.u64();
        let Some(peer) = self.peer_mut(index) else { return };
        let Some(session) = peer.session.as_deref_mut() else { return };
        if !session.matters() {
            session.ping_wait = None;
            return;
        }
        if now < session.last_proof + keepalive {
            return;
        }
        let Some(since) = session.ping_wait else {
            session.ping_wait = Some(now);
            session.ping_next = now + PING_RETRY;
            session.queue_ping(None, token);
            return;
        };
        if now >= since + peer_timeout.saturating_sub(keepalive) {
            let after_ms = now.since(since).as_millis() as u64 + keepalive.as_millis() as u64;
            self.lose_peer(now, index, PeerDownReason::Unreachable { after_ms });
        } else if now >= session.ping_next {
            session.ping_next = now + PING_RETRY;
            session.queue_ping(None, token);
            peer.ping_tries += 1;
            if peer.ping_tries % PATH_TIMEOUTS_MAX == 0 {
                self.switch_path(index);
            }
        }
    }

    fn probes_due(&mut self, now: Time, index: u16) {
        let token = self.rng.u64();
        let Some(peer) = self.peer_mut(index) else { return };
        if now < peer.probe_next {
            return;
        }
        let Some(session) = peer.session.as_deref_mut().filter(|session| session.matters()) else { return };
        peer.probe_next = now + PATH_PROBE_INTERVAL;
        for (path, step) in peer.paths.iter_mut().zip(0u64..) {
            if path.failed {
                path.probe_again(token.wrapping_add(step));
                session.queue_ping(Some(path.addr), token.wrapping_add(step));
            }
        }
    }
}

/// When the peer is to be checked next.
#[inline]
fn next_due(peer: &Peer, peer_timeout: Duration, keepalive: Duration) -> Option<Time> {
    let attempt = peer.attempt.as_ref().map(|attempt| attempt.next.min(attempt.started + peer_timeout));
    let Some(session) = peer.session.as_deref() else { return attempt };
    let mut due = attempt.unwrap_or(Time::MAX);
    let mut sooner = |at: Option<Time>| due = due.min(at.unwrap_or(Time::MAX));
    sooner(session.ack_deadline());
    sooner(session.timeout_at());
    sooner(session.tx.loss_time);
    sooner(session.paced_until());
    sooner(session.chunk_wait.map(|since| since + peer_timeout));
    if session.matters() {
        sooner(Some(match session.ping_wait {
            Some(since) => session.ping_next.min(since + peer_timeout.saturating_sub(keepalive)),
            None => session.last_proof + keepalive,
        }));
        if peer.paths.iter().any(|path| path.failed) {
            sooner(Some(peer.probe_next));
        }
    }
    // What is owed to the peer it acknowledges within its time, or it is given up.
    let owed_until = session.chunk_wait.map(|since| since + peer_timeout);
    let is_wanted = |at: &Time| session.matters() || owed_until.is_some_and(|until| *at <= until);
    sooner(peer.sizes_due().filter(is_wanted));
    (due < Time::MAX).then_some(due)
}
