//! This process as a client of its node's sockets service.
//!
//! Invariant: nothing here waits but [`Node::adopt`], and that until a deadline. The lock is only
//! tried: whoever finds it taken leaves the news to whoever has it.
//!
//! A node that was started anew counts processes, slabs and places from the beginning, and knows
//! nothing of the connections of the one before, which go on. So what a node named belongs to a
//! [`Session`]: it is said to no other node, and peers ring this process by the name that it had
//! when they met.

use crate::connection::Connection;
use crate::context::Settings;
use crate::limits::{ADOPT_PAUSE, ANSWER_TIME, BETWEEN_LIST_MAX, HOLD_BATCH, LOCK_TRIES, NEWS_BATCH, NODE_RETRY};
use crate::types::Bypass;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockWriteGuard, Weak};
use vmmc_host::channel::{ChannelError, node_socket_name};
use vmmc_host::control::{Answer, CONTROL_VERSION, Call, RefusalCode, Reply, Request, decode, encode};
use vmmc_host::stream::messages::{OfferRefusal, Place, SocketCall, SocketClaim, SocketNews};
use vmmc_host::stream::{BELLS, Bells, Slab, Slot, Watch};
use vmmc_host::stream::{Section, SectionLock};
use vmmc_host::{Channel, Deadline, Nanos};

/// The client of one process (a forked child gets one of its own).
#[derive(Debug)]
pub(crate) struct Node {
    bells: OnceLock<Bells>,
    bell_fds: [OnceLock<OwnedFd>; BELLS as usize],
    /// Which bells an event loop has: two loops would take each other's bits and arming.
    bells_taken: [AtomicBool; BELLS as usize],
    /// From which session on all peers have the eventfd of a bell: its number, [`AWAITED`] or
    /// [`UNHEARD`].
    bells_heard: [AtomicU32; BELLS as usize],
    /// The first session of which a connection is watched by a bell since its loop took it.
    bells_watch: [AtomicU32; BELLS as usize],
    /// As in the settings.
    keep_fd: OnceLock<fn(OwnedFd) -> OwnedFd>,
    /// The memory of the bells, for the node.
    bells_fd: OnceLock<OwnedFd>,
    /// Sessions so far.
    sessions: AtomicU32,
    /// The session in which the node was told of what this process inherited by a fork.
    held: OnceLock<Arc<Session>>,
    /// Id of this process on its node; 0: not known yet.
    process: AtomicU32,
    news_seen: AtomicU64,
    /// Clock time before which no connection to the node is tried.
    retry_at: AtomicU64,
    /// Clock time at which a node was lost last.
    lost_at: AtomicU64,
    /// Clock time until which it is not asked again whether it answers: it did not.
    silent_until: AtomicU64,
    /// Looks for the answer to the attach so far, plus one; 0: none is awaited. A node that refuses it does not count that as news.
    answer_looks: AtomicU32,
    /// The node that answered last refused this library for its version.
    other_version: AtomicBool,
    /// Connections to other nodes are among ours.
    has_between: AtomicBool,
    link: SectionLock<Link>,
}

/// The node was told of a bell, and has not said yet that it told the peers.
const AWAITED: u32 = u32::MAX - 1;
/// No node that is there was told of it.
const UNHEARD: u32 = u32::MAX;

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
    pub(crate) place: Place,
    pub(crate) session: Arc<Session>,
}

/// Another process (or this one), as far as it can be rung.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) process: u32,
    bells: Bells,
    fds: [OnceLock<OwnedFd>; BELLS as usize],
}

#[derive(Debug, Default)]
struct Link {
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
    /// Marks a token, and wakes the event loop if it sleeps. False: it sleeps, and its bell has not come yet.
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

/// False: the descriptor is not there, since somebody closed it who does not know of it.
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
            bells_heard: [const { AtomicU32::new(UNHEARD) }; BELLS as usize],
            bells_watch: [const { AtomicU32::new(UNHEARD) }; BELLS as usize],
            keep_fd: OnceLock::new(),
            bells_fd: OnceLock::new(),
            sessions: AtomicU32::new(0),
            silent_until: AtomicU64::new(0),
            held: OnceLock::new(),
            process: AtomicU32::new(0),
            news_seen: AtomicU64::new(0),
            retry_at: AtomicU64::new(0),
            lost_at: AtomicU64::new(0),
            answer_looks: AtomicU32::new(0),
            other_version: AtomicBool::new(false),
            has_between: AtomicBool::new(false),
            link: SectionLock::default(),
        }
    }
}

impl Node {
    fn lock(&self) -> Option<Section<'_, Link>> {
        self.link.try_lock()
    }

    /// Like [`lock`](Self::lock), for what should not get lost: waits for others a little, and not for this very thread below a signal handler.
    fn lock_patiently(&self) -> Option<Section<'_, Link>> {
        for _ in 0..LOCK_TRIES {
            if let Some(link) = self.lock() {
                return Some(link);
            }
            if self.link.is_mine() {
                return None;
            }
            std::thread::yield_now();
        }
        None
    }

    /// Id of this process on the node, once it is known.
    pub(crate) fn process(&self) -> Option<u32> {
        Some(self.process.load(Ordering::Acquire)).filter(|&p| p != 0)
    }

    /// The bells of this process, once an event loop or the node needed them.
    pub(crate) fn bells(&self) -> Option<&Bells> {
        self.bells.get()
    }

    fn make_bells(&self, settings: &Settings) -> Option<&Bells> {
        if let Some(bells) = self.bells.get() {
            return Some(bells);
        }
        let bells = Bells::create().ok()?;
        // Where the program cannot close it: each node needs it anew.
        let fd = bells.share().ok()?;
        bells.let_descriptor_go();
        let made = self.bells.get_or_init(|| {
            let _ = self.keep_fd.set(settings.keep_fd);
            let _ = self.bells_fd.set((settings.keep_fd)(fd));
            bells
        });
        Some(made)
    }

    /// A bell for an event loop: its number. `EMFILE` when each has a loop, `EAGAIN` when the node cannot be told of it now.
    pub(crate) fn take_bell(&self, settings: &Settings) -> Result<u32, Errno> {
        self.make_bells(settings).ok_or(Errno::NOMEM)?;
        let free = |i: &u32| !self.bells_taken[*i as usize].swap(true, Ordering::AcqRel);
        let bell = (0..BELLS).find(free).ok_or(Errno::MFILE)?;
        self.make_bell(settings, bell).inspect_err(|_| self.return_bell(bell))?;
        Ok(bell)
    }

    fn make_bell(&self, settings: &Settings, bell: u32) -> Result<(), Errno> {
        if self.bell_fds[bell as usize].get().is_none() {
            let fd = (settings.keep_fd)(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            // Nobody else makes it, for the caller has taken it.
            let _ = self.bell_fds[bell as usize].set(fd);
        }
        if self.bells_heard[bell as usize].load(Ordering::Acquire) != UNHEARD {
            return Ok(());
        }
        // A bell of which nobody hears is not rung, so its loop would sleep for ever.
        let mut link = self.lock_patiently().ok_or(Errno::AGAIN)?;
        // Whoever connected meanwhile has told it.
        let told = link.channel.is_none()
            || self.bells_heard[bell as usize].load(Ordering::Acquire) != UNHEARD
            || self.send_bell(&mut link, bell) && self.ask_for_bell(&mut link, bell);
        told.then_some(()).ok_or(Errno::AGAIN)
    }

    /// Peers may have met this process already. What the node answers to a question that follows
    /// the bell comes after it has told them: here, whether it knows a socket that cannot be.
    fn ask_for_bell(&self, link: &mut Link, bell: u32) -> bool {
        link.last_number += 1;
        let number = link.last_number;
        if !self.say(link, SocketCall::Adopt { connection: number, cookie: 0 }, &[]) {
            return false;
        }
        link.bells_asked.insert(number, bell);
        self.bells_heard[bell as usize].store(AWAITED, Ordering::Release);
        true
    }

    /// Whether peers may not ring the bell yet, so that its loop has to look by itself.
    #[inline]
    pub(crate) fn is_deaf(&self, bell: u32) -> bool {
        self.bells_watch[bell as usize].load(Ordering::Relaxed)
            < self.bells_heard[bell as usize].load(Ordering::Acquire)
    }

    /// A bell is about to watch a connection of that session. False: its peers will never have it.
    pub(crate) fn may_watch(&self, bell: u32, session: &Session) -> bool {
        let heard = self.bells_heard[bell as usize].load(Ordering::Acquire);
        let may = heard == AWAITED || heard <= session.number;
        if may {
            self.bells_watch[bell as usize].fetch_min(session.number, Ordering::SeqCst);
        }
        may
    }

    /// Whether it is this node, as far as we know, that can tell others about an end.
    pub(crate) fn knows(&self, seat: &Seat) -> bool {
        let session = self.session(seat);
        let link = self.lock_patiently();
        link.zip(session).is_some_and(|(link, session)| link.channel.is_some() && Arc::ptr_eq(&link.session, &session))
    }

    /// Whether the node is there and answers. It is asked anew: in the child of a vfork what it
    /// says to us is the parent's.
    pub(crate) fn answers(&self, settings: &Settings) -> bool {
        let open = |channel: &Channel| {
            let mut ends = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::empty())];
            poll(&mut ends, Some(&Timespec::default())) == Ok(0)
        };
        let ours = self.lock_patiently().is_some_and(|link| link.channel.as_ref().is_some_and(open));
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

    /// Says something about an end to the node that knows it; another one has given its place to
    /// somebody else.
    fn say_of(&self, seat: &Seat, call: impl FnOnce(Place) -> SocketCall) {
        let Some(session) = self.session(seat) else { return };
        let Some(mut link) = self.lock_patiently() else { return };
        if Arc::ptr_eq(&link.session, &session) {
            self.say(&mut link, call(seat.place), &[]);
        }
    }

    /// Gives a bell back.
    pub(crate) fn return_bell(&self, bell: u32) {
        if let Some(bells) = self.bells.get() {
            bells.disarm(bell);
        }
        self.bells_watch[bell as usize].store(UNHEARD, Ordering::Relaxed);
        self.bells_taken[bell as usize].store(false, Ordering::Release);
    }

    /// Whether bells are running short, so that none should be kept for later.
    pub(crate) fn bells_are_scarce(&self) -> bool {
        let taken = self.bells_taken.iter().filter(|taken| taken.load(Ordering::Relaxed)).count();
        taken > BELLS as usize / 2
    }

    /// The eventfd of a bell that was taken.
    pub(crate) fn bell_fd(&self, bell: u32) -> BorrowedFd<'_> {
        self.bell_fds[bell as usize].get().expect("made when the bell was taken").as_fd()
    }

    /// Has an event loop of this process look at a token, and wakes it if it sleeps. The caller has passed a full fence.
    pub(crate) fn mark_own(&self, watch: Watch) {
        if let (Some(bells), Some(fd)) = (self.bells.get(), self.bell_fds[watch.bell as usize].get()) {
            if bells.mark_surely(watch.bell, watch.token) {
                ring_fd(fd);
            }
        }
    }

    /// Wakes an event loop of this process, whether it sleeps or not.
    pub(crate) fn ring_own(&self, watch: Watch) {
        if let (Some(bells), Some(fd)) = (self.bells.get(), self.bell_fds[watch.bell as usize].get()) {
            bells.mark_surely(watch.bell, watch.token);
            ring_fd(fd);
        }
    }

    /// Wakes an event loop of whatever process watches the other end.
    #[cold]
    pub(crate) fn ring_other(&self, watch: Watch, peer: Option<&Arc<Peer>>, seat: &Seat) {
        let Some(session) = self.session(seat) else { return };
        if watch.process == session.process() {
            return self.ring_own(watch);
        }
        self.take_news();
        let met = peer.filter(|peer| peer.process == watch.process).cloned();
        let rings = |peer: Arc<Peer>| {
            peer.bells.mark_surely(watch.bell, watch.token);
            peer.ring_bell(watch)
        };
        if !met.is_some_and(rings) && !session.peer(watch.process).is_some_and(rings) {
            self.say_of(seat, |place| SocketCall::Ring { place });
        }
    }

    /// Offers a socket. None: not now.
    pub(crate) fn offer(&self, settings: &Settings, connection: &Arc<Connection>, socket: SocketClaim) -> Option<u64> {
        let mut link = self.lock()?;
        self.connect(&mut link, settings)?;
        link.last_number += 1;
        let number = link.last_number;
        link.waiting.insert(number, Arc::downgrade(connection));
        if !self.say(&mut link, SocketCall::Offer { connection: number, socket }, &[]) {
            link.waiting.remove(&number);
            return None;
        }
        Some(number)
    }

    /// Takes an offer back.
    pub(crate) fn withdraw(&self, number: u64) {
        if let Some(mut link) = self.lock_patiently() {
            // Without the lock the entry stays, and the match finds that nobody is there.
            link.waiting.remove(&number);
            self.say(&mut link, SocketCall::Withdraw { connection: number }, &[]);
        }
    }

    /// An end is not used any more. If that is not said the node keeps the slot until this process
    /// ends.
    pub(crate) fn release(&self, seat: &Seat) {
        self.say_of(seat, |place| SocketCall::Release { place });
    }

    /// The ring from this end was full. If that is not said the ring stays as it is until the next
    /// wish.
    #[cold]
    pub(crate) fn grow(&self, seat: &Seat) {
        self.say_of(seat, |place| SocketCall::Grow { place });
    }

    /// This process holds an end no more; others do. If that is not said the peer finds out by
    /// itself.
    pub(crate) fn let_go(&self, seat: &Seat) {
        self.say_of(seat, |place| SocketCall::LetGo { place });
    }

    /// The kernel says that the other end, on another node, has ended: is all here that it sent by
    /// the ring? The question is asked again with the next look at the kernel's socket; without a
    /// node the connection is broken.
    #[cold]
    pub(crate) fn ask_for_the_rest(&self, seat: &Seat) {
        self.say_of(seat, |place| SocketCall::Ended { place });
    }

    /// Remembers a connection to another node. False: not now.
    #[cold]
    pub(crate) fn follow_between(&self, connection: &Connection) -> bool {
        self.has_between.store(true, Ordering::Relaxed);
        let Some(mut link) = self.lock() else { return false };
        if link.between.len() >= BETWEEN_LIST_MAX {
            link.between.retain(|c| c.strong_count() > 0);
        }
        if link.between.len() < BETWEEN_LIST_MAX {
            link.between.push(connection.weak());
        }
        true
    }

    /// Whether a connection to another node is among ours.
    #[inline]
    pub(crate) fn has_between(&self) -> bool {
        self.has_between.load(Ordering::Relaxed)
    }

    /// Whether the node was lost after this time.
    #[inline]
    pub(crate) fn was_lost_after(&self, at: Nanos) -> bool {
        self.lost_at.load(Ordering::Acquire) > at.0
    }

    /// Looks whether the node is alive.
    #[cold]
    pub(crate) fn look_after(&self) {
        let Some(mut link) = self.lock() else { return };
        if link.channel.is_none() {
            // A child of a fork that could not reach it.
            return self.lose(&mut link, Bypass::NoNode);
        }
        self.read_news(&mut link);
    }

    /// Ends inherited by fork.
    pub(crate) fn hold(&self, settings: &Settings, places: &[(Place, u64)]) {
        let Some(mut link) = self.lock_patiently() else { return };
        if self.connect(&mut link, settings).is_some() {
            let mut batches = places.chunks(HOLD_BATCH);
            if batches.all(|places| self.say(&mut link, SocketCall::Hold { places: places.to_vec() }, &[])) {
                let _ = self.held.set(link.session.clone());
            }
        }
    }

    /// Asks where a socket from elsewhere that is upgraded goes on; waits for the answer.
    pub(crate) fn adopt(&self, settings: &Settings, fd: BorrowedFd<'_>, deadline: Deadline) -> Option<Adoption> {
        let cookie = vmmc_host::stream::cookie(fd).ok()?;
        // Others hold the lock for a message or two; not to know is no answer here.
        let number = {
            let mut link = self.link.lock()?;
            self.connect(&mut link, settings)?;
            link.last_number += 1;
            let number = link.last_number;
            self.say(&mut link, SocketCall::Adopt { connection: number, cookie }, &[]).then_some(number)?
        };
        loop {
            let mut link = self.link.lock()?;
            self.read_news(&mut link);
            if let Some(answer) = link.adopted.remove(&number) {
                return Some(answer);
            }
            link.channel.as_ref()?;
            deadline.left(Nanos::monotonic())?;
            // Not with the lock: what others have to say meanwhile, a release or a ring, would get lost.
            drop(link);
            std::thread::sleep(ADOPT_PAUSE);
        }
    }

    /// Whether the node has said something, or may have refused us. Two loads.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        let counted = |b: &Bells| b.news().load(Ordering::Relaxed) != self.news_seen.load(Ordering::Relaxed);
        self.bells.get().is_some_and(counted) || self.answer_is_due()
    }

    /// Whether to look for the answer to the attach: with the first call, the second, the fourth and so on, for a node that hangs must not cost each call a look.
    #[inline]
    fn answer_is_due(&self) -> bool {
        let looks = self.answer_looks.load(Ordering::Relaxed);
        looks != 0 && {
            self.answer_looks.store(looks.saturating_add(1), Ordering::Relaxed);
            looks.is_power_of_two()
        }
    }

    /// Why there is no node to offer a connection to.
    pub(crate) fn why_none(&self) -> Bypass {
        if self.other_version.load(Ordering::Relaxed) { Bypass::OtherVersion } else { Bypass::NoNode }
    }

    /// Takes what the node has said.
    pub(crate) fn take_news(&self) {
        if self.has_news() {
            if let Some(mut link) = self.lock() {
                self.read_news(&mut link);
            }
        }
    }

    fn connect(&self, link: &mut Link, settings: &Settings) -> Option<()> {
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
        let attach = SocketCall::Attach { version: CONTROL_VERSION };
        if !self.say(link, attach, &[bells.as_fd()]) {
            return None;
        }
        if !(0..BELLS).all(|bell| self.send_bell(link, bell)) {
            self.lose(link, Bypass::NoNode);
            return None;
        }
        // Nobody can have met this process before the node knew of these.
        for (heard, _) in self.bells_heard.iter().zip(&self.bell_fds).filter(|(_, fd)| fd.get().is_some()) {
            let _ = heard.compare_exchange(UNHEARD, number, Ordering::SeqCst, Ordering::Relaxed);
        }
        self.answer_looks.store(1, Ordering::Relaxed);
        Some(())
    }

    /// Tells the node of a bell, if it has been made. False: it could not be told.
    fn send_bell(&self, link: &mut Link, bell: u32) -> bool {
        let Some(fd) = self.bell_fds[bell as usize].get() else { return true };
        self.say(link, SocketCall::Bell { bell }, &[fd.as_fd()])
    }

    /// Sends a message if it fits the socket now.
    fn say(&self, link: &mut Link, call: SocketCall, fds: &[BorrowedFd<'_>]) -> bool {
        let Some(channel) = &link.channel else { return false };
        link.serial += 1;
        let request = Request { serial: link.serial, call: Call::Sockets(call) };
        match channel.try_send(&encode(&request), fds) {
            Ok(()) => true,
            Err(ChannelError::WouldBlock | ChannelError::TooLarge { .. }) => false,
            Err(_) => {
                // What it said before counts: it may have told of bells.
                if !std::mem::replace(&mut link.is_ending, true) {
                    self.read_news(link);
                    self.lose(link, Bypass::NoNode);
                }
                false
            }
        }
    }

    /// The node is gone, or of no use: upgraded connections go on by themselves, the others stay with the kernel.
    fn lose(&self, link: &mut Link, why: Bypass) {
        link.channel = None;
        link.is_ending = false;
        for (_, bell) in link.bells_asked.drain() {
            self.bells_heard[bell as usize].store(UNHEARD, Ordering::Release);
        }
        self.answer_looks.store(0, Ordering::Relaxed);
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

    fn read_news(&self, link: &mut Link) {
        for _ in 0..NEWS_BATCH {
            // Seen before it is read: what comes later counts anew.
            if let Some(bells) = self.bells.get() {
                self.news_seen.store(bells.news().load(Ordering::SeqCst), Ordering::Relaxed);
            }
            let Some(channel) = &link.channel else { return };
            match channel.try_receive() {
                Ok((bytes, fds)) => match decode::<Reply>(&bytes) {
                    Ok(Reply { result: Ok(Answer::Sockets(news)), .. }) => self.take(link, news, fds),
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
        // More may be there: look again soon.
        self.news_seen.fetch_sub(1, Ordering::Relaxed);
    }

    fn take(&self, link: &mut Link, news: SocketNews, mut fds: Vec<OwnedFd>) {
        let fd = fds.pop();
        match (news, fd) {
            (SocketNews::Attached { process }, _) => self.attached(link, process),
            (SocketNews::Peer { process }, Some(fd)) => {
                if let Ok(bells) = Bells::map(fd) {
                    bells.let_descriptor_go();
                    link.session.add_peer(Peer { process, bells, fds: Default::default() });
                }
            }
            (SocketNews::PeerBell { process, bell }, Some(fd)) if bell < BELLS => {
                // A second eventfd for a bell is one that we need not have.
                let peer = link.session.peer(process).filter(|p| p.fds[bell as usize].get().is_none());
                if let (Some(peer), Some(keep)) = (peer, self.keep_fd.get()) {
                    // Where the program cannot close it, nor get its number for a file of its own.
                    let _ = peer.fds[bell as usize].set(keep(fd));
                }
            }
            (SocketNews::Slab { slab, shape }, Some(fd)) => {
                if let Ok(mapped) = Slab::map(fd, shape) {
                    link.slabs.insert(slab, mapped);
                }
            }
            (SocketNews::Matched { connection, place, peer }, _) => self.matched(link, connection, place, peer),
            (SocketNews::Refused { connection, why }, _) => {
                if let Some(connection) = link.waiting.remove(&connection).and_then(|c| c.upgrade()) {
                    connection.settle(Verdict::Refused(why));
                }
            }
            (SocketNews::Adopted { connection, .. }, _) if link.bells_asked.contains_key(&connection) => {
                let bell = link.bells_asked.remove(&connection).expect("just seen");
                self.bells_heard[bell as usize].store(link.session.number, Ordering::Release);
            }
            (SocketNews::Adopted { connection, place, other_user, peer }, _) => {
                let adoption = match place.and_then(|place| Self::meeting(link, place, peer)) {
                    Some(meeting) => Adoption::Met(meeting),
                    None if other_user => Adoption::Kernel,
                    None => Adoption::Unknown,
                };
                link.adopted.insert(connection, adoption);
            }
            (SocketNews::PeerGone { process }, _) => {
                if let Some(mut peers) = link.session.peers_to_change() {
                    peers.remove(&process);
                }
            }
            (SocketNews::SlabGone { slab }, _) => drop(link.slabs.remove(&slab)),
            _ => {}
        }
    }

    fn attached(&self, link: &Link, process: u32) {
        self.answer_looks.store(0, Ordering::Relaxed);
        link.session.process.store(process, Ordering::Release);
        self.process.store(process, Ordering::Release);
        if let Some(bells) = self.bells.get() {
            // Both ends may be in this process: then the peer is us.
            link.session.add_peer(Peer { process, bells: bells.clone(), fds: Default::default() });
        }
    }

    fn meeting(link: &Link, place: Place, peer: u32) -> Option<Meeting> {
        let slot = link.slabs.get(&place.slab)?.slot(place.slot)?;
        let session = link.session.clone();
        let peer = session.peer(peer);
        (place.end < 2).then(|| Meeting { seat: Seat { place, session }, slot, peer })
    }

    fn matched(&self, link: &mut Link, number: u64, place: Place, peer: u32) {
        let meeting = Self::meeting(link, place, peer);
        let connection = link.waiting.remove(&number).and_then(|c| c.upgrade());
        match (meeting, connection) {
            (Some(meeting), Some(connection)) if connection.settle(Verdict::Matched(meeting.clone())) => {}
            (meeting, connection) => {
                if let Some(meeting) = meeting {
                    refuse(&meeting);
                }
                if let Some(connection) = connection {
                    connection.settle(Verdict::Refused(OfferRefusal::MemoryShort));
                }
                self.say(link, SocketCall::Release { place }, &[]);
            }
        }
    }
}

/// Tells the other end not to wait for this one.
pub(crate) fn refuse(meeting: &Meeting) {
    use vmmc_host::stream::EndWords;
    meeting.slot.words().ends[meeting.seat.place.end as usize].attached.store(EndWords::NO, Ordering::Release);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::time::Duration;

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
                // A loop that gets none leaves its connections to the kernel; one that does is rung.
                (0..1_000).find_map(|_| node.take_bell(&settings).ok()).expect("the other thread is soon done")
            });
            let (message, fds) = theirs.try_receive().expect("the node was told");
            let call = decode::<Request>(&message).unwrap().call;
            assert!(matches!(call, Call::Sockets(SocketCall::Bell { bell: told }) if told == bell), "{call:?}");
            assert_eq!(fds.len(), 1);
            let call = decode::<Request>(&theirs.try_receive().expect("a question follows").0).unwrap().call;
            assert!(matches!(call, Call::Sockets(SocketCall::Adopt { cookie: 0, .. })), "{call:?}");
            assert!(theirs.try_receive().is_err(), "once");
        }
    }
}
