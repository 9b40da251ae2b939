//! The connection to the node: made, lost, and what comes by it.
//!
//! Invariant: the thread that has the lock receives the messages, and settles every connection that
//! waits for them.

use super::{Adoption, Link, Meeting, Node, Peer, Seat, Session, UNCONFIRMED, Verdict, refuse};
use crate::context::Settings;
use crate::limits::{MESSAGES_PER_POLL, NODE_RETRY};
use crate::types::Bypass;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmmc_host::channel::{ChannelError, node_socket_name};
use vmmc_host::control::{RefusalCode, Reply, Request, decode, encode};
use vmmc_host::{Channel, Nanos};
use vmmc_stream::messages::{EndRef, OfferRefusal, SocketCall, SocketEvent};
use vmmc_stream::{BELLS, Bells, Slab};

impl Node {
    /// Whether the node has sent a message, or may have refused us. Two loads.
    #[inline]
    pub(crate) fn has_messages(&self) -> bool {
        let counted =
            |b: &Bells| b.message_count().load(Ordering::Relaxed) != self.messages_seen.load(Ordering::Relaxed);
        self.bells.get().is_some_and(counted) || self.answer_is_due()
    }

    /// Whether to poll for the answer to the attach: with the first call, the second, the fourth
    /// and so on, for a node that hangs must not cost each call a poll.
    #[inline]
    fn answer_is_due(&self) -> bool {
        let polls = self.answer_polls.load(Ordering::Relaxed);
        polls != 0 && {
            self.answer_polls.store(polls.saturating_add(1), Ordering::Relaxed);
            polls.is_power_of_two()
        }
    }

    /// Why there is no node to offer a connection to.
    pub(crate) fn why_none(&self) -> Bypass {
        if self.other_version.load(Ordering::Relaxed) { Bypass::OtherVersion } else { Bypass::NoNode }
    }

    /// Receives what the node has sent.
    pub(crate) fn poll_messages(&self) {
        if self.has_messages() {
            if let Some(mut link) = self.lock() {
                self.receive_messages(&mut link);
            }
        }
    }

    pub(super) fn connect(&self, link: &mut Link, settings: &Settings) -> Option<()> {
        if link.channel.is_some() {
            return Some(());
        }
        let now = Nanos::monotonic();
        if now.0 < self.retry_at.load(Ordering::Relaxed) {
            return None;
        }
        self.retry_at.store((now + NODE_RETRY).0, Ordering::Relaxed);
        self.make_bells(settings)?;
        let bells = self.bells_fd.get()?;
        self.other_version.store(false, Ordering::Relaxed);
        let channel = Channel::try_connect(&node_socket_name(settings.node_uid, &settings.node_name)).ok()?;
        let node_uid = channel.peer().ok()?.uid;
        if node_uid != settings.node_uid && node_uid != 0 {
            return None;
        }
        link.channel = Some(Channel::from_fd((settings.keep_fd)(channel.into_fd())));
        let number = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        link.session = Arc::new(Session { client: self.address(), number, ..Session::default() });
        let attach = SocketCall::Attach;
        if !self.send(link, attach, &[bells.as_fd()]) {
            return None;
        }
        // Read once: another thread may make one just now, which it sends by itself.
        let made: Vec<u32> = (0..BELLS).filter(|&bell| self.bell_fds[bell as usize].get().is_some()).collect();
        if !made.iter().all(|&bell| self.send_bell(link, bell)) {
            self.lose(link, Bypass::NoNode);
            return None;
        }
        // Nobody can have met this process before the node knew of these.
        for bell in made {
            let confirmed = &self.bells_confirmed[bell as usize];
            let _ = confirmed.compare_exchange(UNCONFIRMED, number, Ordering::SeqCst, Ordering::Relaxed);
        }
        self.answer_polls.store(1, Ordering::Relaxed);
        Some(())
    }

    /// Sends a message if it fits the socket now.
    pub(super) fn send(&self, link: &mut Link, call: SocketCall, fds: &[BorrowedFd<'_>]) -> bool {
        let Some(channel) = &link.channel else { return false };
        link.serial += 1;
        let request = Request { serial: link.serial, call: call.to_call() };
        match channel.try_send(&encode(&request), fds) {
            Ok(()) => true,
            Err(ChannelError::WouldBlock | ChannelError::TooLarge { .. }) => false,
            Err(_) => {
                // What it sent before counts: it may have sent bells.
                if !std::mem::replace(&mut link.is_ending, true) {
                    self.receive_messages(link);
                    self.lose(link, Bypass::NoNode);
                }
                false
            }
        }
    }

    /// The node is gone, or of no use: upgraded connections go on by themselves, the others stay
    /// with the kernel.
    pub(super) fn lose(&self, link: &mut Link, why: Bypass) {
        link.channel = None;
        link.is_ending = false;
        for (_, bell) in link.bells_asked.drain() {
            self.bells_confirmed[bell as usize].store(UNCONFIRMED, Ordering::Release);
        }
        self.answer_polls.store(0, Ordering::Relaxed);
        self.other_version.store(why == Bypass::OtherVersion, Ordering::Relaxed);
        self.lost_at.store(Nanos::monotonic().0, Ordering::Release);
        link.between.drain(..).filter_map(|c| c.upgrade()).for_each(|c| c.ring_own_watches(self));
        link.slabs.clear();
        self.process.store(0, Ordering::Release);
        for (_, connection) in link.waiting.drain() {
            if let Some(connection) = connection.upgrade() {
                connection.settle(Verdict::NoNode(why));
            }
        }
    }

    pub(super) fn receive_messages(&self, link: &mut Link) {
        for _ in 0..MESSAGES_PER_POLL {
            // Seen before it is read: what comes later counts anew.
            if let Some(bells) = self.bells.get() {
                self.messages_seen.store(bells.message_count().load(Ordering::SeqCst), Ordering::Relaxed);
            }
            let Some(channel) = &link.channel else { return };
            match channel.try_receive() {
                Ok((bytes, fds)) => match decode::<Reply>(&bytes) {
                    Ok(Reply { result: Ok(answer), .. }) => {
                        if let Some(event) = SocketEvent::of(&answer) {
                            self.handle_event(link, event, fds);
                        }
                    }
                    Ok(Reply { result: Err(refusal), .. }) => {
                        self.retry_at.store((Nanos::monotonic() + NODE_RETRY).0, Ordering::Relaxed);
                        let of_version = refusal.code == RefusalCode::Version;
                        return self.lose(link, if of_version { Bypass::OtherVersion } else { Bypass::Refused });
                    }
                    _ => {}
                },
                Err(ChannelError::WouldBlock) => return,
                Err(_) => return self.lose(link, Bypass::NoNode),
            }
        }
        // More may be there: poll again soon.
        self.messages_seen.fetch_sub(1, Ordering::Relaxed);
    }

    fn handle_event(&self, link: &mut Link, event: SocketEvent, mut fds: Vec<OwnedFd>) {
        let fd = fds.pop();
        match (event, fd) {
            (SocketEvent::Attached { process }, _) => self.attached(link, process),
            (SocketEvent::Peer { process }, Some(fd)) => {
                if let Ok(bells) = Bells::map(fd) {
                    bells.let_descriptor_go();
                    link.session.add_peer(Peer { process, bells, fds: Default::default() });
                }
            }
            (SocketEvent::PeerBell { process, bell }, Some(fd)) if bell < BELLS => {
                // A second eventfd for a bell is one that we need not have.
                let peer = link.session.peer(process).filter(|p| p.fds[bell as usize].get().is_none());
                if let (Some(peer), Some(keep)) = (peer, self.keep_fd.get()) {
                    // Where the program cannot close it, nor get its number for a file of its own.
                    let _ = peer.fds[bell as usize].set(keep(fd));
                }
            }
            (SocketEvent::Slab { slab, shape }, Some(fd)) => {
                if let Ok(mapped) = Slab::map(fd, shape) {
                    link.slabs.insert(slab, mapped);
                }
            }
            (SocketEvent::Matched { connection, end, peer }, _) => self.matched(link, connection, end, peer),
            (SocketEvent::Refused { connection, why }, _) => {
                if let Some(connection) = link.waiting.remove(&connection).and_then(|c| c.upgrade()) {
                    connection.settle(Verdict::Refused(why));
                }
            }
            (SocketEvent::Adopted { connection, .. }, _) if link.bells_asked.contains_key(&connection) => {
                let bell = link.bells_asked.remove(&connection).expect("just seen");
                self.bells_confirmed[bell as usize].store(link.session.number, Ordering::Release);
            }
            (SocketEvent::Adopted { connection, end, other_user, peer }, _) => {
                let adoption = match end.and_then(|end| Self::meeting(link, end, peer)) {
                    Some(meeting) => Adoption::Met(meeting),
                    None if other_user => Adoption::Kernel,
                    None => Adoption::Unknown,
                };
                link.adopted.insert(connection, adoption);
            }
            (SocketEvent::PeerGone { process }, _) => {
                if let Some(mut peers) = link.session.peers_to_change() {
                    peers.remove(&process);
                }
            }
            (SocketEvent::SlabGone { slab }, _) => drop(link.slabs.remove(&slab)),
            _ => {}
        }
    }

    pub(super) fn attached(&self, link: &Link, process: u32) {
        self.answer_polls.store(0, Ordering::Relaxed);
        link.session.process.store(process, Ordering::Release);
        self.process.store(process, Ordering::Release);
        if let Some(bells) = self.bells.get() {
            // Both ends may be in this process: then the peer is us.
            link.session.add_peer(Peer { process, bells: bells.clone(), fds: Default::default() });
        }
    }

    fn meeting(link: &Link, end: EndRef, peer: u32) -> Option<Meeting> {
        let slot = link.slabs.get(&end.place.slab)?.slot(end.place.slot)?;
        let session = link.session.clone();
        let peer = session.peer(peer);
        (end.place.end < 2).then(|| Meeting { seat: Seat { end, session }, slot, peer })
    }

    fn matched(&self, link: &mut Link, number: u64, end: EndRef, peer: u32) {
        // An offer that was taken back is undone by the node, and the slot may be another
        // connection's by now.
        let Some(connection) = link.waiting.remove(&number) else { return };
        let meeting = Self::meeting(link, end, peer);
        match (meeting, connection.upgrade()) {
            (Some(meeting), Some(connection)) if connection.settle(Verdict::Matched(meeting.clone())) => {}
            (meeting, connection) => {
                if let Some(meeting) = meeting {
                    refuse(&meeting);
                }
                if let Some(connection) = connection {
                    connection.settle(Verdict::Refused(OfferRefusal::MemoryShort));
                }
                self.send_or_queue(Some(link.session.clone()), SocketCall::Release { end });
            }
        }
    }
}
