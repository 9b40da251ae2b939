//! Ends of connections change hands: fork, exec, passing, release, death.
//!
//! Invariant: the node's word about a death is a hint. The other end asks its kernel socket, which is closed only when the last descriptor anywhere is, so a process
//! that the node does not know of can hold an end without harm.

use super::{Client, Sockets};
use crate::limits::{SOCKET_HINTS, SOCKET_ORPHAN_TIME};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use vmmc_host::process::ProcessWatch;
use vmmc_host::stream::messages::{Place, SocketNews};
use vmmc_host::stream::{Watch, endpoints};
use vmmc_nic::Time;

/// An end that a holder has left without a word: killed, or in the middle of an exec.
pub(super) struct Orphan {
    place: Place,
    /// Of the link: the slot may serve another connection by now.
    secret: u64,
    since: Time,
    /// Hints given.
    hints: usize,
    process: u32,
    pid: u32,
    watch: Option<std::sync::Arc<ProcessWatch>>,
}

impl Sockets {
    /// A process inherited ends by fork: it knows their secrets because it inherited the mapping.
    pub(super) fn hold(&mut self, index: usize, places: &[(Place, u64)]) {
        let process = self.client(index).process;
        for &(place, secret) in places {
            if let Some(link) = self.slabs.link(place).filter(|link| link.secret == secret) {
                link.holders[place.end as usize].push(process);
                let peers = link.holders[1 - place.end as usize].clone();
                self.not_dead(place);
                self.client(index).ends.insert(place);
                for peer in peers {
                    self.introduce_both(index, peer);
                }
            }
        }
    }

    /// A socket that came from elsewhere, in the hand of its new holder: that is proof enough.
    pub(super) fn adopt(&mut self, index: usize, connection: u64, socket: &OwnedFd) {
        let place = endpoints_cookie(socket).and_then(|cookie| self.by_cookie.get(&cookie).copied());
        let process = self.client(index).process;
        let link = place.and_then(|p| self.slabs.link(p).map(|link| (p, link)));
        let Some((place, link)) = link else {
            return self.tell(index, SocketNews::Adopted { connection, place: None, peer: 0 }, Vec::new());
        };
        link.holders[place.end as usize].push(process);
        let peers = link.holders[1 - place.end as usize].clone();
        self.not_dead(place);
        let pid = self.client(index).pid;
        // The same process under another program: it is still counted once, and its exec is over.
        self.orphans.retain(|o| o.place != place || o.pid != pid);
        self.client(index).ends.insert(place);
        self.introduce(index, process, place.slab);
        peers.iter().for_each(|&peer| self.introduce_both(index, peer));
        let peer = peers.first().copied().unwrap_or(0);
        self.tell(index, SocketNews::Adopted { connection, place: Some(place), peer }, Vec::new());
    }

    /// Two processes get each other's bells.
    fn introduce_both(&mut self, index: usize, peer: u32) {
        let process = self.client(index).process;
        self.introduce_bells(index, peer);
        if let Some(other) = self.by_process.get(&peer).copied() {
            self.introduce_bells(other, process);
        }
    }

    /// A process holds an end no more. The others may have died before: then the peer learns from its kernel, and needs a hint to ask it.
    pub(super) fn let_go(&mut self, now: Time, index: usize, place: Place) {
        let process = self.client(index).process;
        let Some(link) = self.slabs.link(place) else { return };
        let holders = &mut link.holders[place.end as usize];
        remove_one(holders, process);
        // It may hold the end a second time, when it passed the descriptor to itself.
        if holders.contains(&process) {
            return;
        }
        let (last, secret) = (holders.is_empty(), link.secret);
        let pid = self.client(index).pid;
        if self.client(index).ends.remove(&place) && last {
            // Not at once: the child of a fork says that it holds the end about when its parent lets go of it.
            self.orphans.push(Orphan { place, secret, since: now, hints: 1, process, pid, watch: None });
        }
    }

    /// An end is not used any more.
    pub(super) fn release(&mut self, index: usize, place: Place) {
        self.client(index).ends.remove(&place);
        let process = self.client(index).process;
        let Some(link) = self.slabs.link(place) else { return };
        let end = place.end as usize;
        if !link.holders[end].contains(&process) {
            return;
        }
        link.holders[end].clear();
        link.released[end] = true;
        let (cookie, both) = (link.cookies[end], link.released == [true; 2]);
        self.by_cookie.remove(&cookie);
        if !self.release_between(place, false) && both {
            self.slabs.free(place);
        }
    }

    /// A client has no bell for whoever watches the other end.
    pub(super) fn ring_other_end(&mut self, index: usize, place: Place) {
        if self.client(index).ends.contains(&place) && !self.ring_link(place) {
            self.wake(Place { end: 1 - place.end, ..place });
        }
    }

    /// Wakes whoever waits at an end.
    pub(super) fn wake(&self, place: Place) {
        if let Some(slot) = self.slabs.slot(place) {
            slot.wake_end(place.end as usize, |watch| self.ring(watch));
        }
    }

    fn ring(&self, watch: Watch) {
        let Some(client) = self.by_process.get(&watch.process).and_then(|i| self.clients.get(i)) else { return };
        client.bells.mark_surely(watch.bell, watch.token);
        // Whether the loop sleeps or not: whoever asked may have taken its announcement already.
        if let Some(fd) = &client.bell_fds[watch.bell as usize] {
            // A full counter is a bell that rings already.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// A process has ended, or has closed its connection to the node.
    pub(in crate::station) fn gone(&mut self, index: usize, now: Time) {
        let Some(client) = self.clients.remove(&index) else { return };
        self.by_process.remove(&client.process);
        let Client { process, pid, offers, ends, watch, .. } = client;
        for own in offers.values() {
            self.offers.remove(own);
        }
        for other in self.clients.values_mut() {
            other.peers.remove(&process);
        }
        let watch = watch.map(std::sync::Arc::new);
        for place in ends {
            let Some(link) = self.slabs.link(place) else { continue };
            link.holders[place.end as usize].retain(|&h| h != process);
            let secret = link.secret;
            // Its bell has gone with it, and may have rung.
            self.ring_link(place);
            self.orphans.push(Orphan { place, secret, since: now, hints: 0, process, pid, watch: watch.clone() });
        }
        self.slabs.forget_unused(process);
        self.serve_orphans(now);
    }

    /// Tells the peers of orphaned ends to ask their kernel; forgets ends that nobody claims.
    pub(in crate::station) fn serve_orphans(&mut self, now: Time) {
        let mut orphans = std::mem::take(&mut self.orphans);
        orphans.retain_mut(|orphan| {
            if self.slabs.link(orphan.place).is_none_or(|link| link.secret != orphan.secret) {
                return false;
            }
            let ended = orphan.watch.as_ref().is_none_or(|w| w.has_ended());
            if orphan.hints < SOCKET_HINTS.len() && now.since(orphan.since) >= SOCKET_HINTS[orphan.hints] {
                orphan.hints += 1;
                let place = orphan.place;
                let last = self.slabs.link(place).is_some_and(|l| l.holders[place.end as usize].is_empty());
                if last {
                    self.hint(place, ended);
                }
            }
            let over = now.since(orphan.since) >= SOCKET_ORPHAN_TIME;
            let keep = orphan.hints < SOCKET_HINTS.len() || !(ended || over);
            if !keep {
                self.bury_orphan(orphan.place, orphan.process);
            }
            keep
        });
        self.orphans.append(&mut orphans);
    }

    /// When [`serve_orphans`](Self::serve_orphans) has something to do.
    pub(in crate::station) fn next_orphan(&self) -> Option<Time> {
        let next = |o: &Orphan| o.since + SOCKET_HINTS.get(o.hints).copied().unwrap_or(SOCKET_ORPHAN_TIME);
        self.orphans.iter().map(next).min()
    }

    /// Somebody holds an end after all.
    fn not_dead(&self, place: Place) {
        if let Some(slot) = self.slabs.slot(place) {
            slot.words().ends[place.end as usize].dead.store(0, Ordering::SeqCst);
        }
    }

    pub(super) fn hint(&mut self, place: Place, ended: bool) {
        if self.hint_other_node(place, ended) {
            return;
        }
        let Some(slot) = self.slabs.slot(place) else { return };
        let ends = &slot.words().ends;
        if ended {
            ends[place.end as usize].dead.store(1, Ordering::SeqCst);
        }
        ends[1 - place.end as usize].hint.fetch_add(1, Ordering::SeqCst);
        self.wake(Place { end: 1 - place.end, ..place });
    }

    fn bury_orphan(&mut self, place: Place, process: u32) {
        let Some(link) = self.slabs.link(place) else { return };
        if !link.holders[place.end as usize].is_empty() {
            return;
        }
        link.released[place.end as usize] = true;
        let (cookie, both) = (link.cookies[place.end as usize], link.released == [true; 2]);
        self.by_cookie.remove(&cookie);
        if !self.release_between(place, true) && both {
            // Somebody unknown may still have it mapped and believe in it.
            self.slabs.abandon(place);
        }
        self.slabs.forget_unused(process);
    }
}

fn endpoints_cookie(socket: &OwnedFd) -> Option<u64> {
    // A connection half of which has ended is upgraded all the same.
    endpoints(socket.as_fd()).map(|(_, cookie)| cookie).ok().or_else(|| vmmc_host::stream::cookie(socket.as_fd()).ok())
}

fn remove_one(holders: &mut Vec<u32>, process: u32) {
    if let Some(at) = holders.iter().position(|&h| h == process) {
        holders.swap_remove(at);
    }
}
