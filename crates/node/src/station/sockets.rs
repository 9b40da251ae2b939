//! Stream sockets: which processes hold the two ends of a connection, and where they meet.
//!
//! A process offers its connected socket; the node asks the kernel which connection that is and lets it go. When the mirror image is offered too, both ends get a
//! slot of a slab that the pair of processes shares. From then on the node is only asked for deaths, inheritance and missing bells.
//!
//! Invariant: a slot is used again only after both ends were released, so bytes of one connection never reach another; the node never holds a socket open, so the
//! kernel's end of a connection stays the truth about its life. Source: [NT §4]; docs/sockets.md.

mod between;
mod ends;
mod glue;
mod list;
mod slabs;
mod users;

use crate::limits::{SOCKET_LARGE_BYTES_MAX, SOCKET_OFFERS_MAX, SOCKET_STRANGERS_MAX};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use vmmc_host::Nanos;
use vmmc_host::process::ProcessWatch;
use vmmc_host::stream::messages::{OfferRefusal, Place, SocketCall, SocketNews};
use vmmc_host::stream::{BELLS, Bells, Endpoints, Vigil, endpoints};
use vmmc_nic::Time;

/// The service.
#[derive(Default)]
pub(super) struct Sockets {
    /// By index of the connection to the node.
    clients: HashMap<usize, Client>,
    by_process: HashMap<u32, usize>,
    offers: HashMap<Endpoints, Offer>,
    /// Upgraded ends, by cookie of their socket.
    by_cookie: HashMap<u64, Place>,
    slabs: slabs::Slabs,
    /// Ends whose last known holder has gone.
    orphans: Vec<ends::Orphan>,
    last_process: u32,
    /// The sign that this node lives, for processes that sleep; made for the first.
    vigil: Option<Vigil>,
    between: between::Between,
    /// Matches made since the start.
    pub(super) matches: u64,
    /// Processes whose library is of another version than this node, the last few.
    strangers: VecDeque<Stranger>,
    /// To be sent by whoever called.
    outbox: Vec<(usize, SocketNews, Vec<OwnedFd>)>,
}

/// A process that was refused for the version of its library.
struct Stranger {
    pid: u32,
    version: u32,
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

/// Whoever sent this is no client, or breaks the rules: let it go.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misbehaved;

impl Sockets {
    /// For a node that upgrades connections to other nodes, or one that does not.
    pub(super) fn new(between: bool) -> Sockets {
        let between = if between { between::Between::switched_on() } else { between::Between::default() };
        Sockets { between, ..Sockets::default() }
    }

    /// A process joins.
    pub(super) fn attach(&mut self, index: usize, pid: u32, uid: u32, bells: OwnedFd) -> Result<(), Misbehaved> {
        let bells = Bells::map(bells).map_err(|_| Misbehaved)?;
        if self.last_process == 0 {
            // Ids of an earlier node of this name may still stand in shared words: begin somewhere else.
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
        if self.vigil.is_none() {
            self.vigil = Vigil::begin();
        }
        let sign = self.vigil.as_ref().and_then(|vigil| vigil.share().ok());
        self.tell(index, SocketNews::Attached { process }, sign.into_iter().collect());
        Ok(())
    }

    /// Remembers a process that cannot join, for `vmmc sockets`.
    pub(super) fn remember_stranger(&mut self, pid: u32, version: u32) {
        self.strangers.retain(|known| known.pid != pid && !known.watch.has_ended());
        if self.strangers.len() >= SOCKET_STRANGERS_MAX {
            self.strangers.pop_front();
        }
        self.strangers.extend(ProcessWatch::open(pid).map(|watch| Stranger { pid, version, watch }));
    }

    /// A message of a client.
    pub(super) fn handle(
        &mut self,
        now: Time,
        index: usize,
        call: SocketCall,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), Misbehaved> {
        let fd = if fds.len() == 1 { fds.pop() } else { None };
        match call {
            SocketCall::Attach { .. } => return Err(Misbehaved),
            SocketCall::Bell { bell } => self.bell(index, bell, fd.ok_or(Misbehaved)?)?,
            SocketCall::Offer { connection } => self.offer(index, connection, &fd.ok_or(Misbehaved)?)?,
            SocketCall::Withdraw { connection } => self.withdraw(index, connection),
            SocketCall::Adopt { connection } => self.adopt(index, connection, &fd.ok_or(Misbehaved)?),
            SocketCall::Hold { places } => self.hold(index, &places),
            SocketCall::LetGo { place } => self.let_go(now, index, place),
            SocketCall::Release { place } => self.release(index, place),
            SocketCall::Grow { place } => self.grow(index, place),
            SocketCall::Ring { place } => self.ring_other_end(index, place),
            SocketCall::Ended { place } => self.kernel_ended(index, place),
        }
        Ok(())
    }

    /// Messages to send: connection, news, descriptors.
    pub(super) fn take_outbox(&mut self) -> Vec<(usize, SocketNews, Vec<OwnedFd>)> {
        std::mem::take(&mut self.outbox)
    }

    /// Clients.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Says that a message to a client has gone out.
    pub(super) fn count_news(&self, index: usize) {
        if let Some(client) = self.clients.get(&index) {
            client.bells.news().fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn tell(&mut self, index: usize, news: SocketNews, fds: Vec<OwnedFd>) {
        self.outbox.push((index, news, fds));
    }

    fn bell(&mut self, index: usize, bell: u32, fd: OwnedFd) -> Result<(), Misbehaved> {
        if bell >= BELLS {
            return Err(Misbehaved);
        }
        let process = self.clients[&index].process;
        let friends: Vec<usize> =
            self.clients.iter().filter(|(_, c)| c.peers.contains(&process)).map(|(&i, _)| i).collect();
        for friend in friends.into_iter().filter(|&friend| friend != index) {
            if let Ok(copy) = fd.try_clone() {
                self.tell(friend, SocketNews::PeerBell { process, bell }, vec![copy]);
            }
        }
        // Somebody may have wanted to ring it before it came: messages of two processes are read in any order.
        let _ = rustix::io::write(&fd, &1u64.to_ne_bytes());
        self.client(index).bell_fds[bell as usize] = Some(fd);
        Ok(())
    }

    fn offer(&mut self, index: usize, connection: u64, socket: &OwnedFd) -> Result<(), Misbehaved> {
        let Ok((own, cookie)) = endpoints(socket.as_fd()) else {
            self.refuse(index, connection, OfferRefusal::NotConnected);
            return Ok(());
        };
        let client = self.client(index);
        if client.offers.contains_key(&connection) {
            return Err(Misbehaved);
        }
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
            let theirs = self.offers.remove(&mirror).expect("just seen");
            self.client(theirs.client).offers.remove(&theirs.connection);
            self.bring_together(theirs, (index, connection, cookie), mirror);
            return Ok(());
        }
        self.client(index).offers.insert(connection, own.clone());
        let offer = Offer { client: index, connection, cookie };
        self.between.wants(&own);
        if let Some(stale) = self.offers.insert(own, offer) {
            // The same addresses under another cookie: that socket is gone, and its process has not said so yet.
            self.client(stale.client).offers.remove(&stale.connection);
            self.refuse(stale.client, stale.connection, OfferRefusal::NotConnected);
        }
        Ok(())
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
            match self.slabs.take_slot(processes).zip(secret()) {
                Some(((slab, slot), secret)) => {
                    self.matches += 1;
                    let ends = [of_first.clone(), of_first.mirrored()];
                    let link = slabs::Link::new(processes, ends, [first.cookie, second.2], secret);
                    self.slabs.set_link(slab, slot, link);
                    for end in 0..2usize {
                        let place = Place { slab, slot, end: end as u8 };
                        self.introduce(clients[end], processes[1 - end], slab);
                        self.client(clients[end]).ends.insert(place);
                        self.by_cookie.insert([first.cookie, second.2][end], place);
                        let peer = processes[1 - end];
                        self.tell(
                            clients[end],
                            SocketNews::Matched { connection: connections[end], place, peer },
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
                self.tell(index, SocketNews::Slab { slab, shape }, vec![fd]);
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
        let mut news = Vec::new();
        if let Ok(fd) = them.bells.share() {
            news.push((SocketNews::Peer { process: peer }, vec![fd]));
        }
        for (bell, fd) in them.bell_fds.iter().enumerate() {
            if let Some(Ok(copy)) = fd.as_ref().map(OwnedFd::try_clone) {
                news.push((SocketNews::PeerBell { process: peer, bell: bell as u32 }, vec![copy]));
            }
        }
        news.into_iter().for_each(|(news, fds)| self.tell(index, news, fds));
    }

    /// The ring from an end was full.
    fn grow(&mut self, index: usize, place: Place) {
        // Between nodes a stream that fills the small ring is the kernel's.
        if self.client(index).ends.contains(&place)
            && !self.between.has(place)
            && self.slabs.grow(place, Nanos::monotonic(), SOCKET_LARGE_BYTES_MAX)
        {
            // Whoever waits for room there finds it in the other ring.
            self.wake(place);
        }
    }

    fn refuse(&mut self, index: usize, connection: u64, why: OfferRefusal) {
        self.tell(index, SocketNews::Refused { connection, why }, Vec::new());
    }

    /// The same, remembered until the connection ends.
    fn refuse_for_good(&mut self, index: usize, connection: u64, own: Endpoints, why: OfferRefusal) {
        let client = self.client(index);
        if client.refused.len() < SOCKET_OFFERS_MAX {
            client.refused.insert(connection, (own, why));
        }
        self.refuse(index, connection, why);
    }

    fn withdraw(&mut self, index: usize, connection: u64) {
        self.client(index).refused.remove(&connection);
        if let Some(own) = self.client(index).offers.remove(&connection) {
            self.offers.remove(&own);
        }
    }

    fn client(&mut self, index: usize) -> &mut Client {
        self.clients.get_mut(&index).expect("the caller serves this client")
    }
}

/// A number that nobody guesses.
fn secret() -> Option<u64> {
    let bytes = crate::key::random_bytes().ok()?;
    Some(u64::from_le_bytes(bytes[..8].try_into().expect("eight of thirty-two")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_bell_that_comes_after_somebody_wanted_to_ring_it_rings() {
        let mut sockets = Sockets::default();
        let bells = Bells::create().unwrap();
        sockets.attach(0, std::process::id(), 1000, bells.share().unwrap()).unwrap();
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        assert!(!bells.arm(3), "nothing has happened when the loop goes to sleep");
        // What a peer does that has no bell yet; its message to the node overtakes the bell.
        assert!(bells.mark(3, 7));
        let given = fd.try_clone().unwrap();
        sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 3 }, vec![given]).unwrap();
        assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Ok(8), "the loop would sleep on");
    }

    #[test]
    fn a_peer_of_another_user_is_refused_and_the_list_says_so_until_the_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let two = listener.accept().unwrap().0;
        let mut sockets = Sockets::default();
        for (index, uid) in [(0, 1000), (1, 1001)] {
            let bells = Bells::create().unwrap().share().unwrap();
            sockets.attach(index, std::process::id(), uid, bells).unwrap();
        }
        for (index, socket) in [(0, one.try_clone().unwrap()), (1, two.try_clone().unwrap())] {
            let call = SocketCall::Offer { connection: 5 };
            sockets.handle(Time::ZERO, index, call, vec![socket.into()]).unwrap();
        }
        let refused = |(_, news, _): &(usize, SocketNews, Vec<OwnedFd>)| {
            matches!(news, SocketNews::Refused { connection: 5, why: OfferRefusal::OtherUser })
        };
        assert_eq!(sockets.take_outbox().iter().filter(|n| refused(n)).count(), 2);
        let (list, total) = sockets.list(None);
        assert!(total == 2 && list.iter().all(|s| s.reason == "the peer belongs to another user"), "{list:?}");
        for index in 0..2 {
            sockets.handle(Time::ZERO, index, SocketCall::Withdraw { connection: 5 }, Vec::new()).unwrap();
        }
        assert_eq!(sockets.list(None).1, 0);
    }
}
