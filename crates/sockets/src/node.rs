//! This process as a client of its node's sockets service.
//!
//! Invariant: nothing here waits but [`Node::adopt`], and that until a deadline. The lock is only
//! tried: a thread that finds it taken leaves messages, and calls to send, to the thread that has
//! it.
//!
//! A node that was started anew counts processes, slabs and places from the beginning, and knows
//! nothing of the connections of the one before, which go on. So what a node named belongs to a
//! [`Session`]: it is said to no other node, and peers ring this process by the name that it had
//! when they met.

mod bells;
mod link;
mod pending_calls;
mod places;

pub(crate) use pending_calls::Held;

use crate::connection::Connection;
use crate::context::Settings;
use crate::limits::{ANSWER_TIME, LOCK_TRIES, NODE_RETRY};
use crate::types::Bypass;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockWriteGuard, Weak};
use vmmc_host::channel::{ChannelError, node_socket_name};
use vmmc_host::control::{Call, Request, encode};
use vmmc_host::{Channel, Deadline, Nanos};
use vmmc_stream::messages::{EndRef, OfferRefusal, SocketCall};
use vmmc_stream::{BELLS, Bells, SectionLock, Slab, Slot, Watch};

/// The client of one process (a forked child gets one of its own).
#[derive(Debug)]
pub(crate) struct Node {
    bells: OnceLock<Bells>,
    bell_fds: [OnceLock<OwnedFd>; BELLS as usize],
    /// Which bells an event loop has: two loops would take each other's bits and arming.
    bells_taken: [AtomicBool; BELLS as usize],
    /// From which session on all peers have the eventfd of a bell: its number, [`AWAITED`] or
    /// [`UNCONFIRMED`].
    bells_confirmed: [AtomicU32; BELLS as usize],
    /// The first session of which a connection is watched by a bell since its loop took it.
    bells_watch: [AtomicU32; BELLS as usize],
    /// As in the settings.
    keep_fd: OnceLock<fn(OwnedFd) -> OwnedFd>,
    /// The memory of the bells, for the node.
    bells_fd: OnceLock<OwnedFd>,
    /// Sessions so far.
    sessions: AtomicU32,
    /// The session in which the node was sent what this process inherited by a fork.
    held: OnceLock<Arc<Session>>,
    /// Id of this process on its node; 0: not known yet.
    process: AtomicU32,
    messages_seen: AtomicU64,
    /// Clock time before which no connection to the node is tried.
    retry_at: AtomicU64,
    /// Clock time at which a node was lost last.
    lost_at: AtomicU64,
    /// Clock time until which it is not asked again whether it answers: it did not.
    silent_until: AtomicU64,
    /// Polls for the answer to the attach so far, plus one; 0: none is awaited. A node that refuses
    /// it does not count that as a message.
    answer_polls: AtomicU32,
    /// The node that answered last refused this library for its version.
    other_version: AtomicBool,
    /// Connections to other nodes are among ours.
    has_between: AtomicBool,
    /// This process is the child of a fork, and the client its parent.
    is_parents: AtomicBool,
    link: SectionLock<Link>,
    pending_calls: pending_calls::PendingCalls,
}

/// The node was sent a bell, and has not confirmed yet that the peers have it.
const AWAITED: u32 = u32::MAX - 1;
/// No node that is there was sent it.
const UNCONFIRMED: u32 = u32::MAX;

/// What was agreed with one node, from the attach until it is lost; and longer for connections that
/// were made meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Of which [`Node`] it is: its address. A fork makes another one.
    client: usize,
    /// The first one is 1.
    number: u32,
    /// Id of this process there; 0: not known yet.
    process: AtomicU32,
    peers: RwLock<HashMap<u32, Arc<Peer>>>,
}

/// An end of a connection, as the node of that session knows it.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) end: EndRef,
    pub(crate) session: Arc<Session>,
}

/// Another process (or this one), as far as it can be rung.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) process: u32,
    bells: Bells,
    fds: [OnceLock<OwnedFd>; BELLS as usize],
}

/// The connection to the node, and what is awaited from it.
#[derive(Debug, Default)]
pub(crate) struct Link {
    channel: Option<Channel>,
    /// Of the channel, or of the last one.
    session: Arc<Session>,
    /// The node has gone, and what it said last is being read.
    is_ending: bool,
    serial: u64,
    /// Bells of which the node is to say that it told the peers, by the number of the question.
    bells_asked: HashMap<u64, u32>,
    slabs: HashMap<u64, Slab>,
    waiting: HashMap<u64, Weak<Connection>>,
    adopted: HashMap<u64, Adoption>,
    last_number: u64,
    /// Upgraded connections to other nodes, which do not survive the loss of ours.
    between: Vec<Weak<Connection>>,
}

/// Where a connection goes on.
#[derive(Clone, Debug)]
pub(crate) struct Meeting {
    pub(crate) seat: Seat,
    pub(crate) slot: Slot,
    pub(crate) peer: Option<Arc<Peer>>,
}

/// What the node said about a socket from elsewhere.
#[derive(Debug)]
pub(crate) enum Adoption {
    Met(Meeting),
    /// It is another user's connection, and was brought back to the kernel before it was passed on.
    Kernel,
    /// It does not know it.
    Unknown,
}

/// What the node said about an offer.
#[derive(Debug)]
pub(crate) enum Verdict {
    Matched(Meeting),
    Refused(OfferRefusal),
    /// No node is of use, and why.
    NoNode(Bypass),
}

impl Peer {
    /// Marks a token, and wakes the event loop if it sleeps. False: it sleeps, and its bell has not
    /// come yet.
    #[inline]
    pub(crate) fn ring(&self, watch: Watch) -> bool {
        if !self.bells.mark(watch.bell, watch.token) {
            return true;
        }
        self.ring_bell(watch)
    }

    /// Wakes the event loop, whether it sleeps or not. False: its bell has not come yet.
    fn ring_bell(&self, watch: Watch) -> bool {
        self.fds[watch.bell as usize].get().is_some_and(ring_fd)
    }
}

/// False: the descriptor is not there, since code that does not know of it has closed it.
pub(crate) fn ring_fd(fd: &OwnedFd) -> bool {
    // A full counter is a bell that rings already.
    !matches!(rustix::io::write(fd, &1u64.to_ne_bytes()), Err(Errno::BADF))
}

impl Session {
    /// Id of this process; 0: not known yet.
    pub(crate) fn process(&self) -> u32 {
        self.process.load(Ordering::Acquire)
    }

    fn peer(&self, process: u32) -> Option<Arc<Peer>> {
        self.peers.try_read().ok()?.get(&process).cloned()
    }

    fn add_peer(&self, peer: Peer) {
        if let Some(mut peers) = self.peers_to_change() {
            peers.entry(peer.process).or_insert_with(|| Arc::new(peer));
        }
    }

    /// Others read them for a moment; this very thread may, below a signal handler. A peer that is
    /// not known is rung by the node.
    fn peers_to_change(&self) -> Option<RwLockWriteGuard<'_, HashMap<u32, Arc<Peer>>>> {
        for _ in 0..LOCK_TRIES {
            if let Ok(peers) = self.peers.try_write() {
                return Some(peers);
            }
            std::thread::yield_now();
        }
        None
    }
}

impl Default for Node {
    fn default() -> Node {
        Node {
            bells: OnceLock::new(),
            bell_fds: [const { OnceLock::new() }; BELLS as usize],
            bells_taken: Default::default(),
            bells_confirmed: [const { AtomicU32::new(UNCONFIRMED) }; BELLS as usize],
            bells_watch: [const { AtomicU32::new(UNCONFIRMED) }; BELLS as usize],
            keep_fd: OnceLock::new(),
            bells_fd: OnceLock::new(),
            sessions: AtomicU32::new(0),
            silent_until: AtomicU64::new(0),
            held: OnceLock::new(),
            process: AtomicU32::new(0),
            messages_seen: AtomicU64::new(0),
            retry_at: AtomicU64::new(0),
            lost_at: AtomicU64::new(0),
            answer_polls: AtomicU32::new(0),
            other_version: AtomicBool::new(false),
            has_between: AtomicBool::new(false),
            is_parents: AtomicBool::new(false),
            link: SectionLock::default(),
            pending_calls: pending_calls::PendingCalls::default(),
        }
    }
}

impl Node {
    /// Id of this process on the node, once it is known.
    pub(crate) fn process(&self) -> Option<u32> {
        Some(self.process.load(Ordering::Acquire)).filter(|&p| p != 0)
    }

    /// In the child of a fork: what is shared with peers in this client's name is the parent's.
    pub(crate) fn leave_to_parent(&self) {
        self.is_parents.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    #[inline]
    pub(crate) fn is_parents(&self) -> bool {
        self.is_parents.load(Ordering::Relaxed)
    }

    /// Whether it is this node, as far as we know, that can tell others about an end.
    pub(crate) fn knows(&self, seat: &Seat) -> bool {
        let session = self.session(seat);
        let link = self.lock_bounded();
        link.zip(session).is_some_and(|(link, session)| link.channel.is_some() && Arc::ptr_eq(&link.session, &session))
    }

    /// Whether the node is there and answers. It is asked anew: in the child of a vfork what it
    /// says to us is the parent's.
    pub(crate) fn answers(&self, settings: &Settings) -> bool {
        let open = |channel: &Channel| {
            let mut ends = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::empty())];
            poll(&mut ends, Some(&Timespec::default())) == Ok(0)
        };
        let ours = self.lock_bounded().is_some_and(|link| link.channel.as_ref().is_some_and(open));
        let question = encode(&Request { serial: 1, call: Call::Info { details: false } });
        let asked = || -> Result<(), ChannelError> {
            let channel = Channel::try_connect(&node_socket_name(settings.node_uid, &settings.node_name))?;
            channel.try_send(&question, &[])?;
            channel.receive(Deadline::after(ANSWER_TIME)).map(|_| ())
        };
        if !ours || Nanos::monotonic().0 < self.silent_until.load(Ordering::Relaxed) {
            return false;
        }
        let answers = asked().is_ok();
        if !answers {
            // One wait for all connections that a program is started with.
            let until = Nanos::monotonic().0 + NODE_RETRY.as_nanos() as u64;
            self.silent_until.store(until, Ordering::Relaxed);
        }
        answers
    }

    /// Whether the node that named this end is there.
    pub(crate) fn is_of_now(&self, seat: &Seat) -> bool {
        self.process().is_some() && seat.session.number == self.sessions.load(Ordering::Acquire)
    }

    /// How this process is known to the peers of a connection.
    pub(crate) fn session(&self, seat: &Seat) -> Option<Arc<Session>> {
        let own = seat.session.client == self.address();
        if own { Some(seat.session.clone()) } else { self.held.get().cloned() }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Sends a call about an end to the node that knows it; another one has given its place to
    /// somebody else.
    fn send_for(&self, seat: &Seat, call: impl FnOnce(EndRef) -> SocketCall) {
        if let Some(session) = self.session(seat) {
            self.send_or_queue(Some(session), call(seat.end));
        }
    }
}

/// Tells the other end not to wait for this one.
pub(crate) fn refuse(meeting: &Meeting) {
    use vmmc_stream::EndWords;
    meeting.slot.words().ends[meeting.seat.end.place.end as usize].attached.store(EndWords::NO, Ordering::Release);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::time::Duration;
    use vmmc_host::control::decode;

    #[test]
    fn the_node_hears_of_a_bell_that_was_made_while_another_thread_talked_to_it() {
        let settings = Settings::from_env();
        for talks in [false, true] {
            let (ours, theirs) = Channel::pair().unwrap();
            let node = Node::default();
            node.link.lock().unwrap().channel = Some(ours);
            let bell = std::thread::scope(|scope| {
                let (begun, wait) = std::sync::mpsc::channel();
                let node = &node;
                scope.spawn(move || {
                    let link = talks.then(|| node.link.lock().unwrap());
                    begun.send(()).unwrap();
                    std::thread::sleep(Duration::from_micros(50));
                    drop(link);
                });
                wait.recv().unwrap();
                // A loop that gets none leaves its connections to the kernel; one that does is
                // rung.
                (0..1_000).find_map(|_| node.take_bell(&settings).ok()).expect("the other thread is soon done")
            });
            let (message, fds) = theirs.try_receive().expect("the node was told");
            let call = SocketCall::of(&decode::<Request>(&message).unwrap().call);
            assert!(matches!(call, Some(SocketCall::Bell { bell: told }) if told == bell), "{call:?}");
            assert_eq!(fds.len(), 1);
            let (message, _) = theirs.try_receive().expect("a question follows");
            let call = SocketCall::of(&decode::<Request>(&message).unwrap().call);
            assert!(matches!(call, Some(SocketCall::Adopt { cookie: 0, .. })), "{call:?}");
            assert!(theirs.try_receive().is_err(), "once");
        }
    }
}
