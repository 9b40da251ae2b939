//! Stream sockets: which processes hold the two ends of a connection, and where they meet.
//!
//! A process says which connected socket it has; the node asks the kernel whether that is so. When the mirror image is offered too, both ends get a
//! slot of a slab that the pair of processes shares. From then on the node is only asked for deaths, inheritance and missing bells.
//!
//! Invariant: a slot is used again only after both ends were released, so bytes of one connection never reach another; the node never has a descriptor of a socket, so the
//! kernel's end of a connection stays the truth about its life. Source: [NT §4]; docs/sockets.md.

mod between;
mod ends;
mod glue;
mod holders;
mod list;
mod quota;
mod slabs;
mod users;
mod witness;

use crate::limits::{
    SOCKET_OFFERS_ALL_MAX, SOCKET_OFFERS_MAX, SOCKET_PLACES_MAX, SOCKET_REFUSED_MAX, SOCKET_STRANGERS_MAX,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use vmmc_host::Nanos;
use vmmc_host::process::ProcessWatch;
use vmmc_host::stream::messages::{EndRef, OfferRefusal, Place, SocketCall, SocketClaim, SocketNews};
use vmmc_host::stream::{BELLS, Bells, Endpoints, Ringer, Watch};
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
    orphans: ends::Orphans,
    last_process: u32,
    /// What the service needs of the kernel; made for the first client.
    means: Option<Means>,
    /// Open offers.
    offered: quota::Quota,
    /// Refused ones that are remembered.
    refused: quota::Quota,
    between: between::Between,
    /// Matches made since the start.
    pub(super) matches: u64,
    /// Processes whose library is of another version than this node, the last few.
    strangers: VecDeque<Stranger>,
    /// To be sent by whoever called.
    outbox: Vec<(usize, SocketNews, Vec<OwnedFd>)>,
}

/// What the service needs of the kernel.
#[derive(Debug)]
struct Means {
    witness: witness::Witness,
    ringer: Ringer,
}

/// Why no connection is upgraded here.
#[derive(Debug)]
enum Unable {
    Blind(witness::NoWitness),
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

    /// Looks whether the kernel has what the service needs, unless it was seen to.
    fn prepare(&mut self) -> Result<(), Unable> {
        if self.means.is_none() {
            let witness = witness::Witness::new().map_err(Unable::Blind)?;
            let ringer = Ringer::new().map_err(Unable::Mute)?;
            self.means = Some(Means { witness, ringer });
        }
        Ok(())
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
        self.tell(index, SocketNews::Attached { process }, Vec::new());
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
        match self.clients[&index].bell_fds.get(bell as usize) {
            None => return Err(Misbehaved),
            // Two threads of the process may both tell of it; the first word counts, and peers hear of it once.
            Some(Some(_)) => return Ok(()),
            Some(None) => {}
        }
        // Somebody may have wanted to ring it before it came: messages of two processes are read in any order. Only an eventfd can be rung.
        self.ring_fd(fd.as_fd()).map_err(|_| Misbehaved)?;
        let process = self.clients[&index].process;
        let friends: Vec<usize> =
            self.clients.iter().filter(|(_, c)| c.peers.contains(&process)).map(|(&i, _)| i).collect();
        for friend in friends.into_iter().filter(|&friend| friend != index) {
            if let Ok(copy) = fd.try_clone() {
                self.tell(friend, SocketNews::PeerBell { process, bell }, vec![copy]);
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
        // Whoever attached was told if there are none.
        let seen = self.means.as_mut().map_or(Err(OfferRefusal::MemoryShort), |m| m.witness.connection(client, socket));
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
            // The same addresses under another cookie: that socket is gone, and its process has not said so yet.
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

    /// The client that a watch names, if it is one of that user: what stands in shared words is a claim.
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
                        self.tell(
                            clients[end],
                            SocketNews::Matched { connection: connections[end], end: EndRef { place, secret }, peer },
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
            && self.slabs.grow(place, Nanos::monotonic())
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
        let client = self.clients.get_mut(&index).expect("the caller serves this client");
        if client.refused.contains_key(&connection) || self.refused.take(client.uid, 1, SOCKET_REFUSED_MAX as u64) {
            client.refused.insert(connection, (own, why));
        }
        self.refuse(index, connection, why);
    }

    /// Open offers of a user, and all.
    pub(super) fn open_offers(&self, uid: u32) -> (u64, u64) {
        let own = self.clients.values().filter(|client| client.uid == uid).map(|client| client.offers.len());
        (own.sum::<usize>() as u64, self.offers.len() as u64)
    }

    /// An offer of a user that has its share: it may come later.
    pub(super) fn refuse_offer(&mut self, index: usize, connection: u64) {
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
    let bytes = crate::key::random_bytes().ok()?;
    Some(u64::from_le_bytes(bytes[..8].try_into().expect("eight of thirty-two")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::Ordering;
    use vmmc_host::stream::{EndWords, claim};

    /// A service with one client of this process's user, for each process that is wanted.
    fn service(clients: usize) -> Option<(Sockets, Vec<Bells>)> {
        let mut sockets = Sockets::default();
        if let Err(why) = sockets.prepare() {
            println!("SKIP {why}");
            return None;
        }
        let uid = rustix::process::geteuid().as_raw();
        let bells: Vec<Bells> = (0..clients).map(|_| Bells::create().unwrap()).collect();
        for (index, bells) in bells.iter().enumerate() {
            sockets.attach(index, std::process::id(), uid, bells.share().unwrap()).unwrap();
        }
        Some((sockets, bells))
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn offer(sockets: &mut Sockets, index: usize, connection: u64, socket: &TcpStream) -> Option<SocketNews> {
        let call = SocketCall::Offer { connection, socket: claim(socket.as_fd()).unwrap() };
        sockets.handle(Time::ZERO, index, call, Vec::new()).unwrap();
        sockets.take_outbox().pop().map(|(_, news, _)| news)
    }

    #[test]
    fn a_bell_that_comes_after_somebody_wanted_to_ring_it_rings() {
        let Some((mut sockets, bells)) = service(1) else { return };
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        assert!(!bells[0].arm(3), "nothing has happened when the loop goes to sleep");
        // What a peer does that has no bell yet; its message to the node overtakes the bell.
        assert!(bells[0].mark(3, 7));
        let given = fd.try_clone().unwrap();
        sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 3 }, vec![given]).unwrap();
        assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Ok(8), "the loop would sleep on");
        sockets.take_outbox();
        let again = sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 3 }, vec![fd.try_clone().unwrap()]);
        assert_eq!((again, sockets.take_outbox().len()), (Ok(()), 0), "each bell has one eventfd");
        assert!(rustix::io::read(&fd, &mut [0; 8]).is_err());
    }

    #[test]
    fn bells_whose_write_waits_hold_nobody_up_and_nothing_else_is_written_to() {
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let Some((mut sockets, bells)) = service(1) else { return done.send(()) };
            let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
            rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            let theirs = full.try_clone().unwrap();
            sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 0 }, vec![full]).unwrap();
            // The counter is filled again, for the flag and the counter are everybody's.
            rustix::io::read(&theirs, &mut [0; 8]).unwrap();
            rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            let process = sockets.clients[&0].process;
            let uid = sockets.clients[&0].uid;
            for token in 0..1000 {
                bells[0].arm(0);
                sockets.ring(Watch { process, bell: 0, token }, uid);
            }
            let (_read, write) = rustix::pipe::pipe().unwrap();
            while rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK).is_ok()
                && rustix::io::write(&write, &[0; 4096]).is_ok()
            {}
            rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::empty()).unwrap();
            let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            for fd in [write, file.try_clone().unwrap()] {
                let said = sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 1 }, vec![fd]);
                assert_eq!(said, Err(Misbehaved));
            }
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 0);
            done.send(())
        });
        wait.recv_timeout(std::time::Duration::from_secs(20)).expect("the service waits for a client");
    }

    #[test]
    fn a_client_is_not_rung_for_the_words_of_another_user() {
        let Some((mut sockets, bells)) = service(1) else { return };
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 0 }, vec![fd.try_clone().unwrap()]).unwrap();
        rustix::io::read(&fd, &mut [0; 8]).unwrap();
        let (process, uid) = (sockets.clients[&0].process, sockets.clients[&0].uid);
        sockets.ring(Watch { process, bell: 0, token: 1 }, uid + 1);
        assert!(!bells[0].any(0) && rustix::io::read(&fd, &mut [0; 8]).is_err());
        sockets.ring(Watch { process, bell: 0, token: 1 }, uid);
        assert!(bells[0].any(0) && rustix::io::read(&fd, &mut [0; 8]).is_ok());
    }

    #[test]
    fn a_peer_of_another_user_is_refused_and_the_list_says_so_until_the_connection_ends() {
        let Some((mut sockets, _bells)) = service(2) else { return };
        let (one, two) = pair();
        if rustix::fs::fchown(&two, Some(rustix::fs::Uid::from_raw(54_321)), None).is_err() {
            return println!("SKIP a socket of another user takes root");
        }
        sockets.client(1).uid = 54_321;
        for (index, socket) in [(0, &one), (1, &two)] {
            let call = SocketCall::Offer { connection: 5, socket: claim(socket.as_fd()).unwrap() };
            sockets.handle(Time::ZERO, index, call, Vec::new()).unwrap();
        }
        let refused = |(_, news, _): &(usize, SocketNews, Vec<OwnedFd>)| {
            matches!(news, SocketNews::Refused { connection: 5, why: OfferRefusal::OtherUser })
        };
        assert_eq!(sockets.take_outbox().iter().filter(|n| refused(n)).count(), 2);
        let (list, total) = sockets.list(None);
        assert!(total == 2 && list.iter().all(|s| s.reason == "the peer belongs to another user"), "{list:?}");
        for index in 0..2 {
            sockets.handle(Time::ZERO, index, SocketCall::Withdraw { connection: 5, cookie: 0 }, Vec::new()).unwrap();
        }
        assert_eq!(sockets.list(None).1, 0);
    }

    #[test]
    fn a_socket_is_claimed_by_its_user_by_root_or_by_whoever_is_seen_to_hold_it() {
        let Some((mut sockets, _bells)) = service(1) else { return };
        let (one, _two) = pair();
        let me = rustix::process::geteuid();
        sockets.take_outbox();
        let refused = |news: Option<SocketNews>| match news {
            Some(SocketNews::Refused { why, .. }) => Some(why),
            None => None,
            other => panic!("{other:?}"),
        };
        // This process is seen to hold what it claims, whoever it says it is.
        sockets.client(0).uid = 54_321;
        assert_eq!(refused(offer(&mut sockets, 0, 1, &one)), None);
        sockets.handle(Time::ZERO, 0, SocketCall::Withdraw { connection: 1, cookie: 0 }, Vec::new()).unwrap();
        // Under another number it is not there: then the user decides.
        let mut wrong = claim(one.as_fd()).unwrap();
        wrong.descriptor = 1_000_000;
        let say = |sockets: &mut Sockets, uid: u32, connection| {
            sockets.client(0).uid = uid;
            let call = SocketCall::Offer { connection, socket: wrong.clone() };
            sockets.handle(Time::ZERO, 0, call, Vec::new()).unwrap();
            let said = refused(sockets.take_outbox().pop().map(|(_, news, _)| news));
            sockets.handle(Time::ZERO, 0, SocketCall::Withdraw { connection, cookie: 0 }, Vec::new()).unwrap();
            said
        };
        assert_eq!(say(&mut sockets, 54_321, 2), Some(OfferRefusal::NotYours));
        assert_eq!(say(&mut sockets, me.as_raw(), 3), None);
        assert_eq!(say(&mut sockets, 0, 4), None);
        wrong.cookie += 1;
        let call = SocketCall::Offer { connection: 5, socket: wrong };
        sockets.handle(Time::ZERO, 0, call, Vec::new()).unwrap();
        assert_eq!(refused(sockets.take_outbox().pop().map(|(_, n, _)| n)), Some(OfferRefusal::NotConnected));
        assert!(sockets.offers.is_empty() && sockets.client(0).offers.is_empty());
    }

    #[test]
    fn only_the_user_of_a_connection_adopts_it_or_holds_it() {
        let Some((mut sockets, _bells)) = service(3) else { return };
        let (one, two) = pair();
        offer(&mut sockets, 0, 1, &one);
        let call = SocketCall::Offer { connection: 1, socket: claim(two.as_fd()).unwrap() };
        sockets.handle(Time::ZERO, 1, call, Vec::new()).unwrap();
        let place = sockets.take_outbox().iter().find_map(|(index, news, _)| match news {
            SocketNews::Matched { end, .. } if *index == 0 => Some(end.place),
            _ => None,
        });
        let place = place.expect("both ends were offered");
        let secret = sockets.slabs.link(place).unwrap().secret;
        let cookie = vmmc_host::stream::cookie(one.as_fd()).unwrap();
        let uid = sockets.clients[&2].uid;
        for (stranger, allowed) in [(uid + 1, false), (uid, true)] {
            sockets.client(2).uid = stranger;
            let adopt = SocketCall::Adopt { connection: 9, cookie };
            sockets.handle(Time::ZERO, 2, adopt, Vec::new()).unwrap();
            sockets
                .handle(Time::ZERO, 2, SocketCall::Hold { ends: vec![EndRef { place, secret }] }, Vec::new())
                .unwrap();
            let news = sockets.take_outbox();
            let adopted = news.iter().any(|(_, news, _)| matches!(news, SocketNews::Adopted { end: Some(_), .. }));
            let slab = news.iter().any(|(_, news, _)| matches!(news, SocketNews::Slab { .. }));
            assert_eq!([adopted, slab, sockets.clients[&2].ends.contains(&place)], [allowed; 3]);
        }
        // Wild claims of somebody who holds nothing change nothing.
        let Some(link) = sockets.slabs.link(place) else { panic!("it stands") };
        let before = link.holders[0].processes().collect::<Vec<_>>();
        let stranger = Bells::create().unwrap();
        sockets.attach(7, std::process::id(), uid + 1, stranger.share().unwrap()).unwrap();
        let end = EndRef { place, secret };
        for call in [
            SocketCall::Release { end },
            SocketCall::LetGo { end },
            SocketCall::Grow { end },
            SocketCall::Ring { end },
            SocketCall::Ended { end },
        ] {
            sockets.handle(Time::ZERO, 7, call, Vec::new()).unwrap();
        }
        let after = sockets.slabs.link(place).unwrap();
        assert_eq!(after.holders[0].processes().collect::<Vec<_>>(), before);
        assert!(after.released == [false; 2] && sockets.orphans.is_empty());
    }

    #[test]
    fn an_offer_that_is_taken_back_after_the_match_releases_the_end_unless_its_process_joined() {
        for joined in [false, true] {
            let Some((mut sockets, _bells)) = service(3) else { return };
            let (one, two) = pair();
            offer(&mut sockets, 0, 1, &one);
            offer(&mut sockets, 1, 1, &two);
            let place = *sockets.clients[&0].ends.iter().next().unwrap();
            let slot = sockets.slabs.slot(place).unwrap();
            let attached = &slot.words().ends[place.end as usize].attached;
            if joined {
                attached.store(EndWords::YES, Ordering::Relaxed);
            }
            let cookie = vmmc_host::stream::cookie(one.as_fd()).unwrap();
            let withdraw = || SocketCall::Withdraw { connection: 1, cookie };
            // Somebody else's word is none.
            sockets.handle(Time::ZERO, 2, withdraw(), Vec::new()).unwrap();
            assert!(sockets.by_cookie.contains_key(&cookie));
            sockets.handle(Time::ZERO, 0, withdraw(), Vec::new()).unwrap();
            let link = sockets.slabs.link(place).unwrap();
            assert_eq!(link.released[place.end as usize], !joined);
            let expected = if joined { EndWords::YES } else { EndWords::NO };
            assert_eq!(attached.load(Ordering::Relaxed), expected);
            assert_eq!(sockets.by_cookie.contains_key(&cookie), joined);
        }
    }

    #[test]
    fn a_word_about_a_connection_that_has_ended_does_nothing_to_the_next_one_in_its_slot() {
        let Some((mut sockets, _bells)) = service(2) else { return };
        let meet = |sockets: &mut Sockets| {
            let (one, two) = pair();
            offer(sockets, 0, 1, &one);
            offer(sockets, 1, 2, &two);
            let ends = [0, 1].map(|index| {
                let place = *sockets.clients[&index].ends.iter().next().unwrap();
                sockets.end_ref(place)
            });
            (ends, one, two)
        };
        let (first, ..) = meet(&mut sockets);
        for (index, end) in first.iter().enumerate() {
            sockets.handle(Time::ZERO, index, SocketCall::Release { end: *end }, Vec::new()).unwrap();
        }
        let (second, ..) = meet(&mut sockets);
        let places = |ends: &[EndRef]| ends.iter().map(|end| end.place).collect::<Vec<_>>();
        assert_eq!(places(&first), places(&second), "the slot is used again");
        for (index, end) in first.iter().enumerate() {
            for call in [SocketCall::LetGo { end: *end }, SocketCall::Release { end: *end }] {
                sockets.handle(Time::ZERO, index, call, Vec::new()).unwrap();
            }
        }
        let link = sockets.slabs.link(second[0].place).unwrap();
        assert!(link.released == [false; 2] && link.holders.iter().all(|holders| !holders.is_empty()));
        assert!(sockets.orphans.is_empty());
    }

    #[test]
    fn a_process_that_holds_an_end_ten_thousand_times_is_one_holder() {
        let Some((mut sockets, _bells)) = service(2) else { return };
        let (one, two) = pair();
        offer(&mut sockets, 0, 1, &one);
        offer(&mut sockets, 1, 1, &two);
        let place = *sockets.clients[&0].ends.iter().next().unwrap();
        let secret = sockets.slabs.link(place).unwrap().secret;
        for _ in 0..20 {
            let ends = vec![EndRef { place, secret }; SOCKET_PLACES_MAX];
            sockets.handle(Time::ZERO, 0, SocketCall::Hold { ends }, Vec::new()).unwrap();
        }
        assert_eq!(sockets.slabs.link(place).unwrap().holders[place.end as usize].processes().count(), 1);
        assert!(sockets.take_outbox().len() < 10, "and nobody is told twice");
        let ends = vec![EndRef { place, secret }; SOCKET_PLACES_MAX + 1];
        let too_many = sockets.handle(Time::ZERO, 0, SocketCall::Hold { ends }, Vec::new());
        assert_eq!(too_many, Err(Misbehaved));
        for _ in 0..20 * SOCKET_PLACES_MAX + 1 {
            sockets.handle(Time::ZERO, 0, SocketCall::LetGo { end: EndRef { place, secret } }, Vec::new()).unwrap();
        }
        assert_eq!(sockets.orphans.len(), 1);
        for _ in 0..100 {
            sockets
                .handle(Time::ZERO, 0, SocketCall::Hold { ends: vec![EndRef { place, secret }] }, Vec::new())
                .unwrap();
            sockets.handle(Time::ZERO, 0, SocketCall::LetGo { end: EndRef { place, secret } }, Vec::new()).unwrap();
        }
        assert_eq!(sockets.orphans.len(), 1, "an end that is let go again and again is remembered once");
    }

    #[test]
    fn a_process_that_ends_takes_its_slabs_and_bells_along() {
        let Some((mut sockets, _bells)) = service(2) else { return };
        let (one, two) = pair();
        offer(&mut sockets, 0, 1, &one);
        offer(&mut sockets, 1, 1, &two);
        let process = sockets.clients[&1].process;
        let place = *sockets.clients[&1].ends.iter().next().unwrap();
        for index in 0..2 {
            let place = *sockets.clients[&index].ends.iter().next().unwrap();
            let end = sockets.end_ref(place);
            sockets.handle(Time::ZERO, index, SocketCall::Release { end }, Vec::new()).unwrap();
        }
        sockets.take_outbox();
        sockets.gone(1, Time::ZERO);
        let told: Vec<SocketNews> = sockets.take_outbox().into_iter().map(|(_, news, _)| news).collect();
        assert!(told.contains(&SocketNews::PeerGone { process }), "{told:?}");
        assert!(told.contains(&SocketNews::SlabGone { slab: place.slab }), "{told:?}");
        assert!(sockets.clients[&0].slabs.is_empty() && sockets.slabs.links().count() == 0);
    }

    /// Connections between two clients that no socket stands behind; gives their ends.
    fn connections(sockets: &mut Sockets, clients: [usize; 2], count: u64) -> Vec<EndRef> {
        let processes = clients.map(|i| sockets.clients[&i].process);
        let uid = sockets.clients[&clients[0]].uid;
        let mut all = Vec::new();
        for number in 1..=count {
            let (slab, slot) = sockets.slabs.take_slot(processes, uid).unwrap();
            let at = |port: u64| std::net::SocketAddr::from(([127, 0, 0, 1], port as u16));
            let own = Endpoints { network: 0, local: at(number), remote: at(60_000) };
            let cookies = [2 * number, 2 * number + 1];
            let link = slabs::Link::new(uid, processes, [own.clone(), own.mirrored()], cookies, number);
            sockets.slabs.set_link(slab, slot, link);
            for end in 0..2 {
                let place = Place { slab, slot, end };
                sockets.clients.get_mut(&clients[usize::from(end)]).unwrap().ends.insert(place);
                sockets.by_cookie.insert(cookies[usize::from(end)], place);
                all.push(EndRef { place, secret: number });
            }
        }
        all
    }

    #[test]
    fn ends_that_many_held_and_all_have_left_are_looked_at_once_and_in_turns() {
        const HOLDERS: usize = 40;
        let Some((mut sockets, _bells)) = service(2 + HOLDERS) else { return };
        let all = connections(&mut sockets, [0, 1], 600);
        for index in 2..2 + HOLDERS {
            for ends in all.chunks(SOCKET_PLACES_MAX) {
                sockets.handle(Time::ZERO, index, SocketCall::Hold { ends: ends.to_vec() }, Vec::new()).unwrap();
            }
            sockets.take_outbox();
        }
        let start = Time::ZERO;
        for index in 0..2 + HOLDERS {
            sockets.gone(index, start);
            assert!(sockets.orphans.len() <= all.len(), "an end is one orphan, however many held it");
        }
        // Each turn does its part; what it leaves makes the next one due at once.
        let mut now = start;
        let mut turns = 0;
        while let Some(due) = sockets.next_orphan() {
            let before = sockets.slabs.links().count();
            now = now.max(due);
            sockets.serve_orphans(now);
            assert!(before - sockets.slabs.links().count() <= crate::limits::SOCKET_ORPHANS_PER_TURN);
            turns += 1;
            assert!(turns < 10_000, "it ends");
        }
        assert!(sockets.slabs.links().count() == 0 && sockets.by_cookie.is_empty());
        assert!(now.since(start) >= crate::limits::SOCKET_ORPHAN_TIME, "this process, which held all, lives");
        assert!(sockets.slabs.take_slot([1, 2], 7).is_some_and(|(_, slot)| slot == 0));
    }

    #[test]
    fn the_ends_of_a_process_with_few_do_not_wait_behind_those_of_one_with_many() {
        let Some((mut sockets, _bells)) = service(4) else { return };
        connections(&mut sockets, [0, 1], 1_000);
        let few = connections(&mut sockets, [2, 3], 1);
        sockets.gone(0, Time::ZERO);
        sockets.gone(2, Time::ZERO);
        sockets.serve_orphans(Time::ZERO);
        let link = sockets.slabs.link(few[0].place).unwrap();
        assert!(link.holders[0].is_empty() && !link.holders[1].is_empty());
    }

    #[test]
    fn refusals_are_remembered_within_the_share_of_a_user_and_lists_are_no_longer_than_they_are_shown() {
        let Some((mut sockets, _bells)) = service(3) else { return };
        sockets.client(2).uid = 54_321;
        let end = |number: u64| {
            let at = |port: u64| std::net::SocketAddr::from(([127, 0, 0, 1], port as u16));
            Endpoints { network: 0, local: at(number), remote: at(9) }
        };
        for number in 0..10_000 {
            for index in 0..2 {
                sockets.refuse_for_good(index, number, end(number), OfferRefusal::TooMany);
            }
        }
        sockets.refuse_for_good(2, 1, end(1), OfferRefusal::OtherUser);
        let known = |sockets: &Sockets| sockets.clients.values().map(|client| client.refused.len()).sum::<usize>();
        assert_eq!(known(&sockets), SOCKET_REFUSED_MAX / 2 + 1, "one user has half, and another finds room");
        let (list, total) = sockets.list(None);
        assert_eq!((list.len(), total), (crate::limits::SOCKET_LIST_MAX, SOCKET_REFUSED_MAX as u64 / 2 + 1));
        // All of it comes back.
        for number in 0..5_000 {
            sockets.handle(Time::ZERO, 0, SocketCall::Withdraw { connection: number, cookie: 0 }, Vec::new()).unwrap();
        }
        (0..3).for_each(|index| sockets.gone(index, Time::ZERO));
        assert!(sockets.refused.take(7, SOCKET_REFUSED_MAX as u64, SOCKET_REFUSED_MAX as u64));
    }
}
