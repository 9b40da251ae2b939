//! Stream sockets: which processes hold the two ends of a connection, and where they meet.
//!
//! A process says which connected socket it has; the node asks the kernel whether that is so. When
//! the mirror image is offered too, both ends get a slot of a slab that the pair of processes
//! shares. From then on the node is only asked for deaths, inheritance and missing bells.
//!
//! Invariant: a slot is used again only after both ends were released, so bytes of one connection
//! never reach another; the node never has a descriptor of a socket, so the kernel's end of a
//! connection stays the truth about its life. Source: [NT §4]; docs/sockets.md.

#![forbid(unsafe_code)]

mod between;
mod ends;
mod holders;
pub mod limits;
mod list;
mod quota;
mod service;
mod slabs;
mod users;
mod verifier;

use crate::limits::{
    SOCKET_OFFERS_ALL_MAX, SOCKET_OFFERS_MAX, SOCKET_PLACES_MAX, SOCKET_REFUSED_MAX, SOCKET_STRANGERS_MAX,
};
use slabs::LetGo;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use vmmc_host::Nanos;
use vmmc_host::process::ProcessWatch;
use vmmc_nic::Time;
use vmmc_service::Misbehaved;
use vmmc_stream::messages::{EndRef, OfferRefusal, Place, SocketCall, SocketClaim, SocketEvent};
use vmmc_stream::{BELLS, Bells, Endpoints, Ringer, Slab, Watch};

/// The service.
#[derive(Default)]
pub struct Sockets {
    /// By index of the connection to the node.
    clients: HashMap<usize, Client>,
    by_process: HashMap<u32, usize>,
    offers: HashMap<Endpoints, Offer>,
    /// Upgraded ends, by cookie of their socket.
    by_cookie: HashMap<u64, Place>,
    slabs: slabs::Slabs,
    /// Ends whose last known holder has gone.
    orphans: ends::Orphans,
    /// Slabs that were let go just now, and what each counts while anybody has its memory.
    let_go: Vec<(Slab, LetGo)>,
    /// The same by the numbers under which the node was told of them.
    kept: HashMap<u64, LetGo>,
    last_kept: u64,
    last_process: u32,
    /// What the service needs of the kernel; made for the first client.
    means: Option<Means>,
    /// Open offers.
    offered: quota::Quota,
    /// Refused ones that are remembered.
    refused: quota::Quota,
    between: between::Between,
    /// Matches made since the start.
    pub(crate) matches: u64,
    /// Processes whose library is of another version than this node, the last few.
    strangers: VecDeque<Stranger>,
    /// To be sent by the caller.
    outbox: Vec<(usize, SocketEvent, Vec<OwnedFd>)>,
    /// To be closed by the caller, where nobody waits for it.
    copies: verifier::Copies,
}

/// What the service needs of the kernel.
#[derive(Debug)]
struct Means {
    verifier: verifier::SocketVerifier,
    ringer: Ringer,
}

/// Why no connection is upgraded here.
#[derive(Debug)]
enum Unable {
    Blind(verifier::NoSocketVerifier),
    Mute(rustix::io::Errno),
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unable::Blind(why) => write!(f, "TCP connections stay with the kernel: {why}"),
            Unable::Mute(errno) => {
                let why = "the kernel has no asynchronous reads for the node to ring event loops by";
                write!(
                    f,
                    "TCP connections stay with the kernel: {why} ({errno}); it needs CONFIG_AIO, and a seccomp filter that allows io_setup"
                )
            }
        }
    }
}

/// A process that was refused for the version of its library.
struct Stranger {
    pid: u32,
    version: u16,
    watch: ProcessWatch,
}

/// A process.
struct Client {
    process: u32,
    pid: u32,
    uid: u32,
    bells: Bells,
    bell_fds: [Option<OwnedFd>; BELLS as usize],
    /// Absent when it cannot be seen from here.
    watch: Option<ProcessWatch>,
    /// Own numbers of open offers.
    offers: HashMap<u64, Endpoints>,
    /// Ends that it holds.
    ends: HashSet<Place>,
    /// Processes whose bells it has.
    peers: HashSet<u32>,
    /// Slabs that it has mapped.
    slabs: HashSet<u64>,
    /// Bells by which it rings the node itself.
    node_bells: Option<between::NodeBells>,
    /// Offers that were refused for good, for `vmmc sockets`; until the connection ends.
    refused: HashMap<u64, (Endpoints, OfferRefusal)>,
}

/// An offer whose counterpart has not come.
struct Offer {
    client: usize,
    connection: u64,
    cookie: u64,
}

impl Sockets {
    /// For a node that upgrades connections to other nodes, or one that does not.
    pub fn new(between: bool) -> Sockets {
        let between = if between { between::Between::switched_on() } else { between::Between::default() };
        Sockets { between, ..Sockets::default() }
    }

    /// Checks whether the kernel has what the service needs, unless that was done before.
    fn prepare(&mut self) -> Result<(), Unable> {
        if self.means.is_none() {
            let verifier = verifier::SocketVerifier::new().map_err(Unable::Blind)?;
            let ringer = Ringer::new().map_err(Unable::Mute)?;
            self.means = Some(Means { verifier, ringer });
        }
        Ok(())
    }

    /// A process joins.
    pub(crate) fn attach(&mut self, index: usize, pid: u32, uid: u32, bells: OwnedFd) -> Result<(), Misbehaved> {
        let bells = Bells::map(bells).map_err(|_| Misbehaved)?;
        if self.last_process == 0 {
            // Ids of an earlier node of this name may still stand in shared words: begin somewhere
            // else.
            self.last_process = (vmmc_host::Nanos::monotonic().0 >> 10) as u32 & 0x3fff_ffff;
        }
        self.last_process += 1;
        let process = self.last_process;
        let client = Client {
            process,
            pid,
            uid,
            bells,
            bell_fds: Default::default(),
            watch: ProcessWatch::open(pid),
            offers: HashMap::new(),
            ends: HashSet::new(),
            peers: HashSet::from([process]),
            slabs: HashSet::new(),
            node_bells: None,
            refused: HashMap::new(),
        };
        self.clients.insert(index, client);
        self.by_process.insert(process, index);
        self.queue_event(index, SocketEvent::Attached { process }, Vec::new());
        Ok(())
    }

    /// Remembers a process that cannot join, for `vmmc sockets`.
    pub(crate) fn remember_stranger(&mut self, pid: u32, version: u16) {
        self.strangers.retain(|known| known.pid != pid && !known.watch.has_ended());
        if self.strangers.len() >= SOCKET_STRANGERS_MAX {
            self.strangers.pop_front();
        }
        self.strangers.extend(ProcessWatch::open(pid).map(|watch| Stranger { pid, version, watch }));
    }

    /// A message of a client.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        index: usize,
        call: SocketCall,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), Misbehaved> {
        let fd = if fds.len() == 1 { fds.pop() } else { None };
        match call {
            SocketCall::Attach => return Err(Misbehaved),
            SocketCall::Bell { bell } => self.bell(index, bell, fd.ok_or(Misbehaved)?)?,
            SocketCall::Offer { connection, socket } => self.offer(index, connection, &socket)?,
            SocketCall::Withdraw { connection, cookie } => self.withdraw(index, connection, cookie),
            SocketCall::Adopt { connection, cookie } => self.adopt(index, connection, cookie),
            SocketCall::Hold { ends } if ends.len() > SOCKET_PLACES_MAX => return Err(Misbehaved),
            SocketCall::Hold { ends } => self.hold(index, &ends),
            SocketCall::LetGo { end } => self.of_now(end, |all, place| all.let_go(now, index, place)),
            SocketCall::Release { end } => self.of_now(end, |all, place| all.release(index, place)),
            SocketCall::Grow { end } => self.of_now(end, |all, place| all.grow(index, place)),
            SocketCall::Ring { end } => self.of_now(end, |all, place| all.ring_other_end(index, place)),
            SocketCall::Ended { end } => self.of_now(end, |all, place| all.kernel_ended(index, place)),
        }
        Ok(())
    }

    /// Does something with an end, unless its connection has ended and the slot serves another one.
    fn of_now(&mut self, end: EndRef, act: impl FnOnce(&mut Sockets, Place)) {
        if self.slabs.link(end.place).is_some_and(|link| link.secret == end.secret) {
            act(self, end.place);
        }
    }

    /// An end as its holders name it; the link is there.
    fn end_ref(&mut self, place: Place) -> EndRef {
        let secret = self.slabs.link(place).expect("the caller has just seen it").secret;
        EndRef { place, secret }
    }

    /// Slabs, each of which is a descriptor and a mapping of the node.
    pub(crate) fn slabs(&self) -> u64 {
        self.slabs.count()
    }

    /// Says for how many more slabs there is room.
    pub(crate) fn set_room(&mut self, room: u64) {
        self.slabs.set_room(room);
    }

    /// Nobody has the memory of such a slab any more.
    pub(crate) fn slab_is_gone(&mut self, held: LetGo) {
        self.slabs.is_gone(held);
    }

    /// Messages to send: connection, event, descriptors.
    pub(crate) fn take_outbox(&mut self) -> Vec<(usize, SocketEvent, Vec<OwnedFd>)> {
        std::mem::take(&mut self.outbox)
    }

    /// Counts a message to a client that has gone out.
    pub(crate) fn count_message(&self, index: usize) {
        if let Some(client) = self.clients.get(&index) {
            client.bells.message_count().fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn queue_event(&mut self, index: usize, event: SocketEvent, fds: Vec<OwnedFd>) {
        self.outbox.push((index, event, fds));
    }

    fn bell(&mut self, index: usize, bell: u32, fd: OwnedFd) -> Result<(), Misbehaved> {
        match self.clients[&index].bell_fds.get(bell as usize) {
            None => return Err(Misbehaved),
            // Two threads of the process may both send it; the first one counts, and peers are told
            // of it once.
            Some(Some(_)) => return Ok(()),
            Some(None) => {}
        }
        // Somebody may have wanted to ring it before it came, and has left a mark: messages of two
        // processes are read in any order. Only an eventfd can be rung. Without a mark it is left
        // as it is, for a set of which the program waits in another set must not look ready.
        if self.clients[&index].bells.any(bell) || !is_eventfd(fd.as_fd()) {
            self.ring_fd(fd.as_fd()).map_err(|_| Misbehaved)?;
        }
        let process = self.clients[&index].process;
        let friends: Vec<usize> =
            self.clients.iter().filter(|(_, c)| c.peers.contains(&process)).map(|(&i, _)| i).collect();
        for friend in friends.into_iter().filter(|&friend| friend != index) {
            if let Ok(copy) = fd.try_clone() {
                self.queue_event(friend, SocketEvent::PeerBell { process, bell }, vec![copy]);
            }
        }
        self.client(index).bell_fds[bell as usize] = Some(fd);
        Ok(())
    }

    fn offer(&mut self, index: usize, connection: u64, socket: &SocketClaim) -> Result<(), Misbehaved> {
        let client = &self.clients[&index];
        if client.offers.contains_key(&connection) {
            return Err(Misbehaved);
        }
        // A client that attached was told if there are none.
        let copies = &mut self.copies;
        let seen = self.means.as_mut().map(|means| means.verifier.connection(client, socket, copies));
        let seen = seen.unwrap_or(Err(OfferRefusal::MemoryShort));
        let (own, cookie) = match seen {
            Ok(own) => (own, socket.cookie),
            Err(why) => {
                self.refuse(index, connection, why);
                return Ok(());
            }
        };
        if client.offers.len() >= SOCKET_OFFERS_MAX {
            self.refuse_for_good(index, connection, own, OfferRefusal::TooMany);
            return Ok(());
        }
        if self.by_cookie.contains_key(&cookie) || self.offers.get(&own).is_some_and(|o| o.cookie == cookie) {
            self.refuse(index, connection, OfferRefusal::Shared);
            return Ok(());
        }
        let mirror = own.mirrored();
        let fits = |o: &Offer| o.cookie != cookie;
        if mirror != own && self.offers.get(&mirror).is_some_and(fits) {
            let theirs = self.take_offer(&mirror).expect("just seen");
            self.bring_together(theirs, (index, connection, cookie), mirror);
            return Ok(());
        }
        if let Some(stale) = self.take_offer(&own) {
            // The same addresses under another cookie: that socket is gone, and its process has not
            // said so yet.
            self.refuse(stale.client, stale.connection, OfferRefusal::NotConnected);
        }
        let uid = self.clients[&index].uid;
        if !self.offered.take(uid, 1, SOCKET_OFFERS_ALL_MAX as u64) {
            self.refuse_for_good(index, connection, own, OfferRefusal::TooMany);
            return Ok(());
        }
        self.client(index).offers.insert(connection, own.clone());
        self.between.wants(&own);
        self.offers.insert(own, Offer { client: index, connection, cookie });
        Ok(())
    }

    /// An offer stands no more.
    fn take_offer(&mut self, own: &Endpoints) -> Option<Offer> {
        let offer = self.offers.remove(own)?;
        self.between.wants_no_more(own);
        if let Some(client) = self.clients.get_mut(&offer.client) {
            client.offers.remove(&offer.connection);
            let uid = client.uid;
            self.offered.give(uid, 1);
        }
        Some(offer)
    }

    /// Rings an eventfd that others hold too: never waits.
    fn ring_fd(&self, bell: BorrowedFd<'_>) -> Result<(), rustix::io::Errno> {
        self.means.as_ref().map_or(Ok(()), |means| means.ringer.ring(bell))
    }

    /// The client that a watch names, if it is one of that user: what stands in shared words is a
    /// claim.
    fn watcher(&self, watch: Watch, uid: u32) -> Option<&Client> {
        self.by_process.get(&watch.process).and_then(|i| self.clients.get(i)).filter(|client| client.uid == uid)
    }

    /// Both ends are there: a slot for them.
    fn bring_together(&mut self, first: Offer, second: (usize, u64, u64), of_first: Endpoints) {
        let clients = [first.client, second.0];
        let connections = [first.connection, second.1];
        let users = clients.map(|i| self.clients[&i].uid);
        let refusal = if users[0] != users[1] {
            Some(OfferRefusal::OtherUser)
        } else {
            let processes = clients.map(|i| self.clients[&i].process);
            match self.slabs.take_slot(processes, users[0]).zip(secret()) {
                Some(((slab, slot), secret)) => {
                    self.matches += 1;
                    let ends = [of_first.clone(), of_first.mirrored()];
                    let link = slabs::Link::new(users[0], processes, ends, [first.cookie, second.2], secret);
                    self.slabs.set_link(slab, slot, link);
                    for end in 0..2usize {
                        let place = Place { slab, slot, end: end as u8 };
                        self.introduce(clients[end], processes[1 - end], slab);
                        self.client(clients[end]).ends.insert(place);
                        self.by_cookie.insert([first.cookie, second.2][end], place);
                        let peer = processes[1 - end];
                        self.queue_event(
                            clients[end],
                            SocketEvent::Matched { connection: connections[end], end: EndRef { place, secret }, peer },
                            Vec::new(),
                        );
                    }
                    None
                }
                None => Some(OfferRefusal::MemoryShort),
            }
        };
        if let Some(why) = refusal {
            let ends = [of_first.clone(), of_first.mirrored()];
            for (end, own) in ends.into_iter().enumerate() {
                self.refuse_for_good(clients[end], connections[end], own, why);
            }
        }
    }

    /// Makes sure that a client has a slab, and the bells of a peer.
    fn introduce(&mut self, index: usize, peer: u32, slab: u64) {
        if self.client(index).slabs.insert(slab) {
            if let Some((fd, shape)) = self.slabs.share(slab) {
                self.queue_event(index, SocketEvent::Slab { slab, shape }, vec![fd]);
            }
        }
        self.introduce_bells(index, peer);
    }

    /// Makes sure that a client has the bells of a peer.
    fn introduce_bells(&mut self, index: usize, peer: u32) {
        if peer == between::NODE {
            return self.introduce_node(index);
        }
        let Some(other) = self.by_process.get(&peer).copied() else { return };
        if !self.client(index).peers.insert(peer) {
            return;
        }
        let them = &self.clients[&other];
        let mut events = Vec::new();
        if let Ok(fd) = them.bells.share() {
            events.push((SocketEvent::Peer { process: peer }, vec![fd]));
        }
        for (bell, fd) in them.bell_fds.iter().enumerate() {
            if let Some(Ok(copy)) = fd.as_ref().map(OwnedFd::try_clone) {
                events.push((SocketEvent::PeerBell { process: peer, bell: bell as u32 }, vec![copy]));
            }
        }
        events.into_iter().for_each(|(event, fds)| self.queue_event(index, event, fds));
    }

    /// The ring from an end was full.
    fn grow(&mut self, index: usize, place: Place) {
        // Between nodes a stream that fills the small ring is the kernel's.
        if self.client(index).ends.contains(&place)
            && !self.between.has(place)
            && self.slabs.grow(place, Nanos::monotonic())
        {
            // A sender that waits for room there finds it in the other ring.
            self.wake(place);
        }
    }

    fn refuse(&mut self, index: usize, connection: u64, why: OfferRefusal) {
        self.queue_event(index, SocketEvent::Refused { connection, why }, Vec::new());
    }

    /// The same, remembered until the connection ends.
    fn refuse_for_good(&mut self, index: usize, connection: u64, own: Endpoints, why: OfferRefusal) {
        let client = self.clients.get_mut(&index).expect("the caller serves this client");
        if client.refused.contains_key(&connection) || self.refused.take(client.uid, 1, SOCKET_REFUSED_MAX as u64) {
            client.refused.insert(connection, (own, why));
        }
        self.refuse(index, connection, why);
    }

    /// Open offers of a user, and all.
    pub(crate) fn open_offers(&self, uid: u32) -> (u64, u64) {
        let own = self.clients.values().filter(|client| client.uid == uid).map(|client| client.offers.len());
        (own.sum::<usize>() as u64, self.offers.len() as u64)
    }

    /// An offer of a user that has its share: it may come later.
    pub(crate) fn refuse_offer(&mut self, index: usize, connection: u64) {
        self.refuse(index, connection, OfferRefusal::TooMany);
    }

    fn withdraw(&mut self, index: usize, connection: u64, cookie: u64) {
        let client = self.client(index);
        let (uid, known) = (client.uid, client.refused.remove(&connection).is_some());
        self.refused.give(uid, u64::from(known));
        if let Some(own) = self.client(index).offers.get(&connection).cloned() {
            self.take_offer(&own);
        } else if let Some(place) = self.by_cookie.get(&cookie).copied() {
            self.release_unjoined(index, place);
        }
    }

    fn client(&mut self, index: usize) -> &mut Client {
        self.clients.get_mut(&index).expect("the caller serves this client")
    }
}

/// A number that nobody guesses.
fn secret() -> Option<u64> {
    let bytes = vmmc_host::os::random_bytes().ok()?;
    Some(u64::from_le_bytes(bytes[..8].try_into().expect("eight of thirty-two")))
}

/// Whether it is one for certain, without a ring. Where there is no `/proc` nobody knows.
fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
