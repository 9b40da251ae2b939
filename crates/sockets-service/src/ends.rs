//! Ends of connections change hands: fork, exec, passing, release, death.
//!
//! Invariant: the node's word about a death is a hint. The other end asks its kernel socket, which
//! is closed only when the last descriptor anywhere is, so a process that the node does not know of
//! can hold an end without harm.

use super::{Client, Sockets};

use crate::limits::{
    SOCKET_ENDS_PER_TURN, SOCKET_ENDS_PIECE, SOCKET_HINTS, SOCKET_ORPHAN_TIME, SOCKET_ORPHANS_PER_TURN,
    SOCKET_SLABS_PER_TURN,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmmc_host::process::ProcessWatch;
use vmmc_nic::Time;
use vmmc_stream::messages::{EndRef, Place, SocketEvent};
use vmmc_stream::{EndWords, Watch};

/// An end whose last known holder has left it without a word: killed, or in the middle of an exec.
#[derive(Debug)]
struct Orphan {
    /// Of the link: the slot may serve another connection by now.
    secret: u64,
    since: Time,
    /// Hints given.
    hints: usize,
    /// Who held it last.
    process: u32,
    watch: Option<Arc<ProcessWatch>>,
}

/// A process that has ended, and the ends that it held and that were not checked since.
#[derive(Debug)]
struct Leaver {
    process: u32,
    since: Time,
    watch: Option<Arc<ProcessWatch>>,
    ends: Vec<Place>,
}

/// All of them: an end is in here once, no matter which process held it.
///
/// Invariant: `due` has one entry for each orphan, with its time.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    all: HashMap<Place, Orphan>,
    due: BTreeSet<(Time, Place)>,
    /// Served in turns, a piece of each at a time.
    leavers: VecDeque<Leaver>,
}

impl Orphan {
    fn due(&self) -> Time {
        self.since + SOCKET_HINTS.get(self.hints).copied().unwrap_or(SOCKET_ORPHAN_TIME)
    }
}

impl Orphans {
    /// The last holder of an end has left; what was known of it before is over.
    fn add(&mut self, place: Place, orphan: Orphan) {
        self.remove(place);
        self.due.insert((orphan.due(), place));
        self.all.insert(place, orphan);
    }

    /// The end has a holder again, or is not used any more.
    fn remove(&mut self, place: Place) {
        if let Some(orphan) = self.all.remove(&place) {
            self.due.remove(&(orphan.due(), place));
        }
    }

    /// Takes the one that needs something first, if its time has come.
    fn take_due(&mut self, now: Time) -> Option<(Place, Orphan)> {
        let first = self.due.first().copied().filter(|(due, _)| *due <= now)?;
        self.due.remove(&first);
        let (_, place) = first;
        Some((place, self.all.remove(&place).expect("each entry has its orphan")))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl Sockets {
    /// A process inherited ends by fork: it knows their secrets because it inherited the mapping.
    pub(crate) fn hold(&mut self, index: usize, ends: &[EndRef]) {
        for &end in ends {
            self.of_now(end, |all, place| _ = all.add_holder(index, place));
        }
    }

    /// A socket that came from elsewhere, in the hand of its new holder, of whom only its user is
    /// asked: a process of the same user could have it anyway.
    pub(crate) fn adopt(&mut self, index: usize, connection: u64, cookie: u64) {
        let known = self.by_cookie.get(&cookie).copied();
        let uid = self.clients[&index].uid;
        let other_user = known.is_some_and(|place| self.slabs.user(place.slab).is_some_and(|user| user != uid));
        let Some(place) = known.filter(|&place| self.add_holder(index, place)) else {
            let event = SocketEvent::Adopted { connection, end: None, other_user, peer: 0 };
            return self.queue_event(index, event, Vec::new());
        };
        let process = self.clients[&index].process;
        self.introduce(index, process, place.slab);
        let peer = self.slabs.link(place).and_then(|l| l.holders[1 - place.end as usize].processes().next());
        let peer = peer.unwrap_or(0);
        let event = SocketEvent::Adopted { connection, end: Some(self.end_ref(place)), other_user: false, peer };
        self.queue_event(index, event, Vec::new());
    }

    /// Counts a process among the holders of an end. False: it is of another user, or there are too
    /// many.
    fn add_holder(&mut self, index: usize, place: Place) -> bool {
        let (process, uid) = (self.clients[&index].process, self.clients[&index].uid);
        let Some(link) = self.slabs.link(place).filter(|link| link.user == uid) else { return false };
        let Some(new) = link.holders[place.end as usize].add(process) else { return false };
        if new {
            let peers: Vec<u32> = link.holders[1 - place.end as usize].processes().collect();
            self.not_dead(place);
            // The process that left it before may be this one, under another program.
            self.orphans.remove(place);
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

    /// A process holds an end no more. The others may have died before: then the peer learns from
    /// its kernel, and needs a hint to ask it.
    pub(crate) fn let_go(&mut self, now: Time, index: usize, place: Place) {
        let process = self.client(index).process;
        let Some(link) = self.slabs.link(place) else { return };
        let holders = &mut link.holders[place.end as usize];
        // It may hold the end a second time, when it passed the descriptor to itself.
        if !holders.remove_one(process) {
            if !holders.contains(process) {
                // Another holder, the last one, has released it meanwhile.
                self.client(index).ends.remove(&place);
            }
            return;
        }
        let (last, secret) = (holders.is_empty(), link.secret);
        if self.client(index).ends.remove(&place) && last {
            // Not at once: the child of a fork says that it holds the end about when its parent
            // lets go of it.
            self.orphans.add(place, Orphan { secret, since: now, hints: 1, process, watch: None });
        }
    }

    /// An end is not used any more.
    pub(crate) fn release(&mut self, index: usize, place: Place) {
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
        self.orphans.remove(place);
        if !self.release_between(place, false) && both {
            self.slabs.free(place);
        }
    }

    /// A client took an offer back before it knew of the match; unless it has joined all the same.
    pub(crate) fn release_unjoined(&mut self, index: usize, place: Place) {
        let Some(slot) = self.slabs.slot(place).filter(|_| self.clients[&index].ends.contains(&place)) else { return };
        let attached = &slot.words().ends[place.end as usize].attached;
        if attached.load(Ordering::Relaxed) != EndWords::YES {
            attached.store(EndWords::NO, Ordering::Release);
            self.release(index, place);
        }
    }

    /// A client has no bell for the process that watches the other end.
    pub(crate) fn ring_other_end(&mut self, index: usize, place: Place) {
        if self.client(index).ends.contains(&place) && !self.ring_link(place) {
            self.wake(Place { end: 1 - place.end, ..place });
        }
    }

    /// Wakes the waiters at an end.
    pub(crate) fn wake(&self, place: Place) {
        if let Some((slot, uid)) = self.slabs.slot(place).zip(self.slabs.user(place.slab)) {
            slot.wake_end(place.end as usize, |watch| self.ring(watch, uid));
        }
    }

    pub(crate) fn ring(&self, watch: Watch, uid: u32) {
        let Some(client) = self.watcher(watch, uid) else { return };
        client.bells.mark_always(watch.bell, watch.token);
        // Whether the loop sleeps or not: the process that asked may have taken its announcement
        // already.
        if let Some(fd) = &client.bell_fds[watch.bell as usize] {
            // It was seen to be an eventfd when it came.
            let _ = self.ring_fd(fd.as_fd());
        }
    }

    /// A process has ended, or has closed its connection to the node.
    pub(crate) fn gone(&mut self, index: usize, now: Time) {
        let Some(client) = self.clients.remove(&index) else { return };
        self.by_process.remove(&client.process);
        let Client { process, uid, offers, refused, ends, watch, .. } = client;
        self.refused.give(uid, refused.len() as u64);
        for own in offers.values() {
            self.offers.remove(own);
            self.between.wants_no_more(own);
            self.offered.give(uid, 1);
        }
        let peers = self.clients.iter_mut().filter_map(|(&i, other)| other.peers.remove(&process).then_some(i));
        for peer in peers.collect::<Vec<usize>>() {
            self.queue_event(peer, SocketEvent::PeerGone { process }, Vec::new());
        }
        let (watch, ends) = (watch.map(Arc::new), ends.into_iter().collect());
        self.orphans.leavers.push_back(Leaver { process, since: now, watch, ends });
        self.slabs.retire(process);
        self.serve_orphans(now);
    }

    /// Takes processes that have ended from the lists of holders: some ends of each, as many as a
    /// turn allows.
    fn process_leavers(&mut self) {
        let mut left = SOCKET_ENDS_PER_TURN;
        while left > 0 {
            let Some(mut leaver) = self.orphans.leavers.pop_front() else { return };
            let rest = leaver.ends.len().saturating_sub(SOCKET_ENDS_PIECE);
            left = left.saturating_sub(leaver.ends.len() - rest);
            for place in leaver.ends.split_off(rest) {
                self.leave(place, &leaver);
            }
            if !leaver.ends.is_empty() {
                self.orphans.leavers.push_back(leaver);
            }
        }
    }

    /// A process that held an end has ended.
    fn leave(&mut self, place: Place, leaver: &Leaver) {
        let Some(link) = self.slabs.link(place) else { return };
        let holders = &mut link.holders[place.end as usize];
        // It may have been let go meanwhile, or serve another connection.
        if !holders.contains(leaver.process) {
            return;
        }
        holders.remove(leaver.process);
        let (last, secret) = (holders.is_empty(), link.secret);
        // Its bell has gone with it, and may have rung.
        self.ring_link(place);
        if last {
            let Leaver { process, since, ref watch, .. } = *leaver;
            self.orphans.add(place, Orphan { secret, since, hints: 0, process, watch: watch.clone() });
        }
    }

    /// Lets slabs go that a process which has ended shared with another, and that no connection is
    /// in any more; the other unmaps them. Some in a turn.
    fn forget_idle(&mut self) {
        for idle in self.slabs.take_idle(SOCKET_SLABS_PER_TURN) {
            for process in idle.pair {
                let Some(index) = self.by_process.get(&process).copied() else { continue };
                if self.client(index).slabs.remove(&idle.id) {
                    self.queue_event(index, SocketEvent::SlabGone { slab: idle.id }, Vec::new());
                }
            }
            self.let_go.push((idle.slab, idle.held));
        }
    }

    /// Tells the peers of orphaned ends to ask their kernel; forgets ends that nobody claims. As
    /// much as a turn allows.
    pub(crate) fn serve_orphans(&mut self, now: Time) {
        self.process_leavers();
        // Each process is asked once.
        let mut ended: HashMap<u32, bool> = HashMap::new();
        for _ in 0..SOCKET_ORPHANS_PER_TURN {
            let Some((place, mut orphan)) = self.orphans.take_due(now) else { break };
            let alone = |link: &mut super::slabs::Link| {
                link.secret == orphan.secret && link.holders[place.end as usize].is_empty()
            };
            if !self.slabs.link(place).is_some_and(alone) {
                continue;
            }
            let has_ended = || orphan.watch.as_ref().is_none_or(|watch| watch.has_ended());
            let ended = *ended.entry(orphan.process).or_insert_with(has_ended);
            if orphan.hints < SOCKET_HINTS.len() {
                orphan.hints += 1;
                self.hint(place, ended);
            }
            let over = now.since(orphan.since) >= SOCKET_ORPHAN_TIME;
            if orphan.hints == SOCKET_HINTS.len() && (ended || over) {
                self.reap_orphan(place);
            } else {
                self.orphans.add(place, orphan);
            }
        }
        self.forget_idle();
    }

    /// When [`serve_orphans`](Self::serve_orphans) has something to do.
    pub(crate) fn next_orphan(&self) -> Option<Time> {
        if self.slabs.has_idle() {
            return Some(Time::ZERO);
        }
        let leaver = self.orphans.leavers.front().map(|leaver| leaver.since);
        leaver.or_else(|| self.orphans.due.first().map(|(due, _)| *due))
    }

    /// Somebody holds an end after all.
    fn not_dead(&mut self, place: Place) {
        self.not_dead_on_other_node(place);
        if let Some(slot) = self.slabs.slot(place) {
            slot.words().ends[place.end as usize].dead.store(0, Ordering::SeqCst);
        }
    }

    pub(crate) fn hint(&mut self, place: Place, ended: bool) {
        if self.hint_other_node(place, ended) {
            return;
        }
        let Some(slot) = self.slabs.slot(place) else { return };
        let ends = &slot.words().ends;
        ends[place.end as usize].dead.store(u32::from(ended), Ordering::SeqCst);
        ends[1 - place.end as usize].hint.fetch_add(1, Ordering::SeqCst);
        self.wake(Place { end: 1 - place.end, ..place });
    }

    /// Releases an end that nobody claims.
    fn reap_orphan(&mut self, place: Place) {
        let Some(link) = self.slabs.link(place) else { return };
        link.released[place.end as usize] = true;
        let (cookie, both) = (link.cookies[place.end as usize], link.released == [true; 2]);
        self.by_cookie.remove(&cookie);
        if !self.release_between(place, true) && both {
            // Somebody unknown may still have it mapped and believe in it.
            self.slabs.abandon(place);
        }
    }
}
