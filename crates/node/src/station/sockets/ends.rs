//! Ends of connections change hands: fork, exec, passing, release, death.
//!
//! Invariant: the node's word about a death is a hint. The other end asks its kernel socket, which is closed only when the last descriptor anywhere is, so a process
//! that the node does not know of can hold an end without harm.

use super::{Client, Sockets};

use crate::limits::{SOCKET_HINTS, SOCKET_ORPHAN_TIME};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use vmmc_host::process::ProcessWatch;
use vmmc_host::stream::Watch;
use vmmc_host::stream::messages::{Place, SocketNews};
use vmmc_nic::Time;

/// An end that a holder has left without a word: killed, or in the middle of an exec.
#[derive(Debug)]
pub(super) struct Orphan {
    /// Of the link: the slot may serve another connection by now.
    secret: u64,
    since: Time,
    /// Hints given.
    hints: usize,
    pid: u32,
    watch: Option<std::sync::Arc<ProcessWatch>>,
}

/// All of them, by place and process: one that lets an end go again and again is one.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    all: HashMap<(Place, u32), Orphan>,
    /// When the first of them needs something, or earlier.
    due: Option<Time>,
}

impl Orphan {
    fn due(&self) -> Time {
        self.since + SOCKET_HINTS.get(self.hints).copied().unwrap_or(SOCKET_ORPHAN_TIME)
    }
}

impl Orphans {
    fn add(&mut self, place: Place, process: u32, orphan: Orphan) {
        let due = orphan.due();
        self.due = Some(self.due.map_or(due, |first| first.min(due)));
        self.all.insert((place, process), orphan);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl Sockets {
    /// A process inherited ends by fork: it knows their secrets because it inherited the mapping.
    pub(super) fn hold(&mut self, index: usize, places: &[(Place, u64)]) {
        for &(place, secret) in places {
            let known = self.slabs.link(place).is_some_and(|link| link.secret == secret);
            if known {
                self.add_holder(index, place);
            }
        }
    }

    /// A socket that came from elsewhere, in the hand of its new holder, of whom only its user is asked: who is of the same user could have it anyway.
    pub(super) fn adopt(&mut self, index: usize, connection: u64, cookie: u64) {
        let known = self.by_cookie.get(&cookie).copied();
        let uid = self.clients[&index].uid;
        let other_user = known.is_some_and(|place| self.slabs.user(place.slab).is_some_and(|user| user != uid));
        let Some(place) = known.filter(|&place| self.add_holder(index, place)) else {
            let news = SocketNews::Adopted { connection, place: None, other_user, peer: 0 };
            return self.tell(index, news, Vec::new());
        };
        let (process, pid) = (self.clients[&index].process, self.clients[&index].pid);
        // The same process under another program: it is still counted once, and its exec is over.
        self.orphans.all.retain(|(of, _), orphan| *of != place || orphan.pid != pid);
        self.introduce(index, process, place.slab);
        let peer = self.slabs.link(place).and_then(|l| l.holders[1 - place.end as usize].processes().next());
        let peer = peer.unwrap_or(0);
        let news = SocketNews::Adopted { connection, place: Some(place), other_user: false, peer };
        self.tell(index, news, Vec::new());
    }

    /// Counts a process among the holders of an end. False: it is of another user, or there are too many.
    fn add_holder(&mut self, index: usize, place: Place) -> bool {
        let (process, uid) = (self.clients[&index].process, self.clients[&index].uid);
        let Some(link) = self.slabs.link(place).filter(|link| link.user == uid) else { return false };
        let Some(new) = link.holders[place.end as usize].add(process) else { return false };
        if new {
            let peers: Vec<u32> = link.holders[1 - place.end as usize].processes().collect();
            self.not_dead(place);
            self.client(index).ends.insert(place);
            peers.into_iter().for_each(|peer| self.introduce_both(index, peer));
        }
        true
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
        // It may hold the end a second time, when it passed the descriptor to itself.
        if !holders.remove_one(process) {
            return;
        }
        let (last, secret) = (holders.is_empty(), link.secret);
        let pid = self.client(index).pid;
        if self.client(index).ends.remove(&place) && last {
            // Not at once: the child of a fork says that it holds the end about when its parent lets go of it.
            self.orphans.add(place, process, Orphan { secret, since: now, hints: 1, pid, watch: None });
        }
    }

    /// An end is not used any more.
    pub(super) fn release(&mut self, index: usize, place: Place) {
        self.client(index).ends.remove(&place);
        let process = self.client(index).process;
        let Some(link) = self.slabs.link(place) else { return };
        let end = place.end as usize;
        if !link.holders[end].contains(process) {
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
        if let Some((slot, uid)) = self.slabs.slot(place).zip(self.slabs.user(place.slab)) {
            slot.wake_end(place.end as usize, |watch| self.ring(watch, uid));
        }
    }

    pub(super) fn ring(&self, watch: Watch, uid: u32) {
        let Some(client) = self.watcher(watch, uid) else { return };
        client.bells.mark_surely(watch.bell, watch.token);
        // Whether the loop sleeps or not: whoever asked may have taken its announcement already.
        if let Some(fd) = &client.bell_fds[watch.bell as usize] {
            // It was seen to be an eventfd when it came.
            let _ = self.ring_fd(fd.as_fd());
        }
    }

    /// A process has ended, or has closed its connection to the node.
    pub(in crate::station) fn gone(&mut self, index: usize, now: Time) {
        let Some(client) = self.clients.remove(&index) else { return };
        self.by_process.remove(&client.process);
        let Client { process, pid, uid, offers, ends, watch, .. } = client;
        for own in offers.values() {
            self.offers.remove(own);
            self.offered.give(uid, 1);
        }
        let peers = self.clients.iter_mut().filter_map(|(&i, other)| other.peers.remove(&process).then_some(i));
        for peer in peers.collect::<Vec<usize>>() {
            self.tell(peer, SocketNews::PeerGone { process }, Vec::new());
        }
        let watch = watch.map(std::sync::Arc::new);
        for place in ends {
            let Some(link) = self.slabs.link(place) else { continue };
            link.holders[place.end as usize].remove(process);
            let secret = link.secret;
            // Its bell has gone with it, and may have rung.
            self.ring_link(place);
            self.orphans.add(place, process, Orphan { secret, since: now, hints: 0, pid, watch: watch.clone() });
        }
        self.forget_unused(process);
        self.serve_orphans(now);
    }

    /// Lets slabs go that a process which has ended shared with others, once no connection is in them; the others unmap them.
    fn forget_unused(&mut self, process: u32) {
        for (slab, other) in self.slabs.forget_unused(process) {
            let Some(index) = self.by_process.get(&other).copied() else { continue };
            if self.client(index).slabs.remove(&slab) {
                self.tell(index, SocketNews::SlabGone { slab }, Vec::new());
            }
        }
    }

    /// Tells the peers of orphaned ends to ask their kernel; forgets ends that nobody claims.
    pub(in crate::station) fn serve_orphans(&mut self, now: Time) {
        let mut orphans = std::mem::take(&mut self.orphans);
        orphans.all.retain(|&(place, process), orphan| {
            if self.slabs.link(place).is_none_or(|link| link.secret != orphan.secret) {
                return false;
            }
            let ended = orphan.watch.as_ref().is_none_or(|w| w.has_ended());
            if orphan.hints < SOCKET_HINTS.len() && now.since(orphan.since) >= SOCKET_HINTS[orphan.hints] {
                orphan.hints += 1;
                let last = self.slabs.link(place).is_some_and(|l| l.holders[place.end as usize].is_empty());
                if last {
                    self.hint(place, ended);
                }
            }
            let over = now.since(orphan.since) >= SOCKET_ORPHAN_TIME;
            let keep = orphan.hints < SOCKET_HINTS.len() || !(ended || over);
            if !keep {
                self.bury_orphan(place, process);
            }
            keep
        });
        orphans.due = orphans.all.values().map(Orphan::due).min();
        self.orphans = orphans;
    }

    /// When [`serve_orphans`](Self::serve_orphans) has something to do.
    pub(in crate::station) fn next_orphan(&self) -> Option<Time> {
        self.orphans.due
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
        self.forget_unused(process);
    }
}
