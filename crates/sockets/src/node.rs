//! This process as a client of its node's sockets service.
//!
//! Invariant: nothing here waits but [`Node::adopt`], and that at most [`ADOPT_TIME`]. The lock is only tried: whoever finds it taken leaves the news to whoever has it.

use crate::connection::Connection;
use crate::context::Settings;
use crate::known::{Held, Known};
use crate::limits::{ADOPT_PAUSE, ADOPT_TIME, BETWEEN_LIST_MAX, HOLD_BATCH, LOCK_TRIES, NEWS_BATCH, NODE_RETRY};
use crate::types::Bypass;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockWriteGuard, Weak};
use vmmc_host::channel::{ChannelError, node_socket_name};
use vmmc_host::control::{Answer, CONTROL_VERSION, Call, RefusalCode, Reply, Request, decode, encode};
use vmmc_host::stream::messages::{OfferRefusal, Place, SocketCall, SocketClaim, SocketNews};
use vmmc_host::stream::{BELLS, Bells, Slab, Slot, Watch};
use vmmc_host::{Channel, Deadline, Nanos};

/// The client of one process (a forked child gets one of its own).
#[derive(Debug, Default)]
pub(crate) struct Node {
    bells: OnceLock<Bells>,
    bell_fds: [OnceLock<OwnedFd>; BELLS as usize],
    /// Which bells an event loop has: two loops would take each other's bits and arming.
    bells_taken: [AtomicBool; BELLS as usize],
    /// Which of them the node that is connected has.
    bells_told: [AtomicBool; BELLS as usize],
    /// Id of this process on its node; 0: not known yet.
    process: AtomicU32,
    peers: RwLock<HashMap<u32, Arc<Peer>>>,
    news_seen: AtomicU64,
    /// Clock time before which no connection to the node is tried.
    retry_at: AtomicU64,
    /// Clock time at which a node was lost last.
    lost_at: AtomicU64,
    /// Looks for the answer to the attach so far, plus one; 0: none is awaited. A node that refuses it does not count that as news.
    answer_looks: AtomicU32,
    /// The node that answered last refused this library for its version.
    other_version: AtomicBool,
    /// Connections to other nodes are among ours.
    has_between: AtomicBool,
    link: Known<Link>,
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
    serial: u64,
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
    pub(crate) place: Place,
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
        let Some(fd) = self.fds[watch.bell as usize].get() else { return false };
        ring_fd(fd);
        true
    }
}

fn ring_fd(fd: &OwnedFd) {
    // A full counter is a bell that rings already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

impl Node {
    fn lock(&self) -> Option<Held<'_, Link>> {
        self.link.try_lock()
    }

    /// Like [`lock`](Self::lock), for what should not get lost: waits for others a little, and not for this very thread below a signal handler.
    fn lock_patiently(&self) -> Option<Held<'_, Link>> {
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

    /// The bells of this process.
    pub(crate) fn bells(&self) -> Option<&Bells> {
        if let Some(bells) = self.bells.get() {
            return Some(bells);
        }
        let bells = Bells::create().ok()?;
        Some(self.bells.get_or_init(|| bells))
    }

    /// A bell for an event loop: its number. `EMFILE` when each has a loop, `EAGAIN` when the node cannot be told of it now.
    pub(crate) fn take_bell(&self, settings: &Settings) -> Result<u32, Errno> {
        self.bells().ok_or(Errno::NOMEM)?;
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
        if self.bells_told[bell as usize].load(Ordering::Acquire) {
            return Ok(());
        }
        // A bell of which nobody hears is not rung, so its loop would sleep for ever.
        let mut link = self.lock_patiently().ok_or(Errno::AGAIN)?;
        // Whoever connected meanwhile has told it.
        let told = link.channel.is_none()
            || self.bells_told[bell as usize].load(Ordering::Acquire)
            || self.send_bell(&mut link, bell);
        told.then_some(()).ok_or(Errno::AGAIN)
    }

    /// Gives a bell back.
    pub(crate) fn return_bell(&self, bell: u32) {
        if let Some(bells) = self.bells.get() {
            bells.disarm(bell);
        }
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

    /// Wakes an event loop of whatever process watches the other end. `place` is our end.
    #[cold]
    pub(crate) fn ring_other(&self, settings: &Settings, watch: Watch, place: Place) {
        if Some(watch.process) == self.process() {
            return self.ring_own(watch);
        }
        self.take_news(settings);
        let peer = self.peers.try_read().ok().and_then(|peers| peers.get(&watch.process).cloned());
        if peer.is_some_and(|peer| {
            peer.bells.mark_surely(watch.bell, watch.token);
            peer.fds[watch.bell as usize].get().is_some_and(|fd| {
                ring_fd(fd);
                true
            })
        }) {
            return;
        }
        if let Some(mut link) = self.lock_patiently() {
            self.say(&mut link, SocketCall::Ring { place }, &[]);
        }
    }

    /// Descriptors of this client.
    pub(crate) fn own_fds(&self, each: &mut dyn FnMut(RawFd)) {
        self.bell_fds.iter().filter_map(OnceLock::get).for_each(|fd| each(fd.as_raw_fd()));
        if let Some(link) = self.lock() {
            link.channel.iter().for_each(|c| each(c.as_fd().as_raw_fd()));
        }
        if let Ok(peers) = self.peers.try_read() {
            let fds = peers.values().flat_map(|p| p.fds.iter().filter_map(OnceLock::get));
            fds.for_each(|fd| each(fd.as_raw_fd()));
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

    /// An end is not used any more.
    pub(crate) fn release(&self, place: Place) {
        // Without the lock the node keeps the slot until this process ends.
        if let Some(mut link) = self.lock_patiently() {
            self.say(&mut link, SocketCall::Release { place }, &[]);
        }
    }

    /// The ring from this end was full.
    #[cold]
    pub(crate) fn grow(&self, place: Place) {
        // Without the lock, or a node, the ring stays as it is until the next wish.
        if let Some(mut link) = self.lock_patiently() {
            self.say(&mut link, SocketCall::Grow { place }, &[]);
        }
    }

    /// This process holds an end no more; others do.
    pub(crate) fn let_go(&self, place: Place) {
        // Without the lock the node believes that this process holds it, and the peer finds out by itself.
        if let Some(mut link) = self.lock_patiently() {
            self.say(&mut link, SocketCall::LetGo { place }, &[]);
        }
    }

    /// The kernel says that the other end, on another node, has ended: is all here that it sent by the ring?
    #[cold]
    pub(crate) fn ask_for_the_rest(&self, place: Place) {
        // Without the lock the question is asked again with the next look at the kernel's socket; without a node the connection is broken.
        if let Some(mut link) = self.lock_patiently() {
            self.say(&mut link, SocketCall::Ended { place }, &[]);
        }
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
            for places in places.chunks(HOLD_BATCH) {
                self.say(&mut link, SocketCall::Hold { places: places.to_vec() }, &[]);
            }
        }
    }

    /// Asks where a socket from elsewhere that is upgraded goes on; waits for the answer.
    pub(crate) fn adopt(&self, settings: &Settings, fd: BorrowedFd<'_>) -> Option<Adoption> {
        let cookie = vmmc_host::stream::cookie(fd).ok()?;
        let deadline = Deadline::after(ADOPT_TIME);
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
    pub(crate) fn take_news(&self, _settings: &Settings) {
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
        let bells = self.bells()?.share().ok()?;
        self.other_version.store(false, Ordering::Relaxed);
        let channel = Channel::try_connect(&node_socket_name(settings.node_uid, &settings.node_name)).ok()?;
        let node_uid = channel.peer().ok()?.uid;
        if node_uid != settings.node_uid && node_uid != 0 {
            return None;
        }
        link.channel = Some(Channel::from_fd((settings.keep_fd)(channel.into_fd())));
        let attach = SocketCall::Attach { version: CONTROL_VERSION };
        if !self.say(link, attach, &[bells.as_fd()]) {
            return None;
        }
        self.bells_told.iter().for_each(|told| told.store(false, Ordering::Relaxed));
        if !(0..BELLS).all(|bell| self.send_bell(link, bell)) {
            self.lose(link, Bypass::NoNode);
            return None;
        }
        self.answer_looks.store(1, Ordering::Relaxed);
        Some(())
    }

    /// Tells the node of a bell, if it has been made. False: it could not be told.
    fn send_bell(&self, link: &mut Link, bell: u32) -> bool {
        let Some(fd) = self.bell_fds[bell as usize].get() else { return true };
        let told = self.say(link, SocketCall::Bell { bell }, &[fd.as_fd()]);
        self.bells_told[bell as usize].store(told, Ordering::Release);
        told
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
                self.lose(link, Bypass::NoNode);
                false
            }
        }
    }

    /// The node is gone, or of no use: upgraded connections go on by themselves, the others stay with the kernel.
    fn lose(&self, link: &mut Link, why: Bypass) {
        link.channel = None;
        self.answer_looks.store(0, Ordering::Relaxed);
        self.other_version.store(why == Bypass::OtherVersion, Ordering::Relaxed);
        self.lost_at.store(Nanos::monotonic().0, Ordering::Release);
        link.between.drain(..).filter_map(|c| c.upgrade()).for_each(|c| c.ring_own_watches(self));
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
            (SocketNews::Attached { process }, _) => self.attached(process),
            (SocketNews::Peer { process }, Some(fd)) => {
                if let Ok(bells) = Bells::map(fd) {
                    bells.let_descriptor_go();
                    self.add_peer(Peer { process, bells, fds: Default::default() });
                }
            }
            (SocketNews::PeerBell { process, bell }, Some(fd)) if bell < BELLS => {
                let peer = self.peer(process);
                let fd = vmmc_host::stream::move_high(fd);
                if let Some(Err(_)) = peer.map(|p| p.fds[bell as usize].set(fd)) {
                    // A second eventfd for a bell is one that we need not have.
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
            (SocketNews::Adopted { connection, place, other_user, peer }, _) => {
                let adoption = match place.and_then(|place| self.meeting(link, place, peer)) {
                    Some(meeting) => Adoption::Met(meeting),
                    None if other_user => Adoption::Kernel,
                    None => Adoption::Unknown,
                };
                link.adopted.insert(connection, adoption);
            }
            (SocketNews::PeerGone { process }, _) => {
                if let Some(mut peers) = self.peers_to_change() {
                    peers.remove(&process);
                }
            }
            (SocketNews::SlabGone { slab }, _) => drop(link.slabs.remove(&slab)),
            _ => {}
        }
    }

    fn attached(&self, process: u32) {
        self.answer_looks.store(0, Ordering::Relaxed);
        self.process.store(process, Ordering::Release);
        if let Some(bells) = self.bells.get() {
            // Both ends may be in this process: then the peer is us.
            let own = Peer { process, bells: bells.clone(), fds: Default::default() };
            self.add_peer(own);
        }
    }

    fn add_peer(&self, peer: Peer) {
        if let Some(mut peers) = self.peers_to_change() {
            peers.entry(peer.process).or_insert_with(|| Arc::new(peer));
        }
    }

    /// Others read them for a moment; this very thread may, below a signal handler. A peer that is not known is rung by the node.
    fn peers_to_change(&self) -> Option<RwLockWriteGuard<'_, HashMap<u32, Arc<Peer>>>> {
        for _ in 0..LOCK_TRIES {
            if let Ok(peers) = self.peers.try_write() {
                return Some(peers);
            }
            std::thread::yield_now();
        }
        None
    }

    fn peer(&self, process: u32) -> Option<Arc<Peer>> {
        // With the lock of the link, under which alone they change.
        self.peers.try_read().ok()?.get(&process).cloned()
    }

    fn meeting(&self, link: &Link, place: Place, peer: u32) -> Option<Meeting> {
        let slot = link.slabs.get(&place.slab)?.slot(place.slot)?;
        (place.end < 2).then(|| Meeting { place, slot, peer: self.peer(peer) })
    }

    fn matched(&self, link: &mut Link, number: u64, place: Place, peer: u32) {
        let meeting = self.meeting(link, place, peer);
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
    meeting.slot.words().ends[meeting.place.end as usize].attached.store(EndWords::NO, Ordering::Release);
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
            assert!(theirs.try_receive().is_err(), "once");
        }
    }
}
