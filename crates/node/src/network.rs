//! Datagrams on UDP sockets.
//!
//! Invariant: nothing here waits, and nothing that a stranger sends makes it remember more than a
//! bounded table. What cannot be sent is lost, as on any wire; the engine sends it again. A socket
//! has the codepoint of what it sent last: nearly all that it sends has the same. Source:
//! `UDP_SEGMENT` and `UDP_GRO` of udp(7), `IP_TOS` and `IP_RECVTOS` of ip(7).

mod port;

use crate::limits::{
    BUDGET_BYTES_LOOPBACK, BUDGET_BYTES_MAX, BUDGET_BYTES_MIN, HELD_RUNS_MAX, LOOKS, PROBES_PER_SECOND, ROUTES_MAX,
    SOCKET_BUFFER_BYTES, SPLICE_BYTES_MIN, TRANSMIT_BATCH,
};
use crate::station::ConnectionId;
use port::{Port, Traffic};
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use vmmc_host::limits::{SPLICED_PAGES_MAX, UDP_DATAGRAM_BYTES_MAX, UDP_SEGMENTS_MAX};
use vmmc_host::pages::{Ahead, PagePipe};
use vmmc_host::udp::{HEAD_BYTES, PayloadBuffer, UdpPort};
use vmmc_host::wait::Direct;
use vmmc_nic::limits::{LENT_PAGES_BYTES_MIN, LENT_PAGES_MAX, PLACED_BYTES_MIN};
use vmmc_nic::{Codepoint, Fit, Lent, Time, Transfer, Transmit};

/// Room for one datagram in the send buffer.
const ROOM: usize = 1 << 16;

/// The pieces that the engine cuts can go by reference, and those that can are cut so.
const _: () = assert!(LENT_PAGES_MAX as usize <= SPLICED_PAGES_MAX && LENT_PAGES_BYTES_MIN <= SPLICE_BYTES_MIN);

/// The sockets of a node.
pub(crate) struct Network<P: Port = UdpPort> {
    ports: Vec<P>,
    received: P::Received,
    /// Two rooms: the datagrams of one send stand side by side at its start.
    buffer: PayloadBuffer,
    /// The way of pages that go out by reference.
    pages: PagePipe,
    /// What the kernel had no room for, oldest first, and what was gathered behind it.
    held: VecDeque<Held>,
    routes: Vec<Route>,
    /// Route used last.
    last: usize,
    probes: Probes,
    /// So many more datagrams are looked at before they are taken.
    looks: u32,
    /// Whether the kernel cuts sends into datagrams, on every path tried so far.
    segments: bool,
    /// Where readable sockets show.
    epoll: Arc<OwnedFd>,
    /// Whether they show there now.
    armed: bool,
    counters: Counters,
}

/// What is known of an address.
struct Route {
    address: SocketAddr,
    /// Socket on which its last datagram came, or that fits its family.
    port: usize,
    /// Path size has been asked for.
    probed: bool,
}

/// Bounds the rate of path size questions.
#[derive(Default)]
struct Probes {
    second: u64,
    used: u32,
}

#[derive(Default)]
struct Counters {
    receives: u64,
    datagrams_in: u64,
    bytes_in: u64,
    placed_in: u64,
    sends: u64,
    datagrams_out: u64,
    spliced_out: u64,
    bytes_out: u64,
    send_errors: u64,
    unanswered: u64,
    held: u64,
    probes: u64,
}

/// A run that waits for room.
struct Held {
    to: SocketAddr,
    codepoint: Codepoint,
    bytes: Vec<u8>,
    segment: usize,
    fit: Fit,
}

/// Datagrams that stand side by side and go out with one call.
struct Run {
    to: SocketAddr,
    codepoint: Codepoint,
    start: usize,
    end: usize,
    segment: usize,
    count: usize,
    /// A shorter datagram was the last.
    closed: bool,
    /// They answer somebody who has proven nothing.
    to_stranger: bool,
    /// Several fit their path, as far as is known.
    fit: Fit,
}

impl<P: Port> Network<P> {
    /// Binds the addresses.
    pub(crate) fn bind(listen: &[SocketAddr], epoll: Arc<OwnedFd>) -> Result<Network<P>, (SocketAddr, io::Error)> {
        let mut network = Network {
            ports: Vec::new(),
            received: P::Received::default(),
            buffer: PayloadBuffer::new(2 * ROOM),
            pages: PagePipe::new(),
            held: VecDeque::new(),
            routes: Vec::new(),
            last: 0,
            probes: Probes::default(),
            looks: 0,
            segments: true,
            epoll,
            armed: true,
            counters: Counters::default(),
        };
        for &address in listen {
            network.open(address).map_err(|e| (address, e))?;
        }
        Ok(network)
    }

    fn open(&mut self, address: SocketAddr) -> io::Result<usize> {
        let port = P::bind(address, SOCKET_BUFFER_BYTES)?;
        self.show(&port)?;
        self.segments &= port.sends_segments();
        self.ports.push(port);
        Ok(self.ports.len() - 1)
    }

    fn show(&self, port: &P) -> io::Result<()> {
        if self.armed {
            epoll::add(&*self.epoll, port, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// Puts the sockets into the epoll set or takes them out: between two sleeps nothing reads it,
    /// and membership costs time with each datagram. Returns whether they are where they should be.
    pub(crate) fn arm(&mut self, armed: bool) -> bool {
        // What is left in a socket would end a sleep at once, and pages are held for nothing.
        self.ports.iter_mut().for_each(P::release);
        self.pages.clear();
        if self.armed == armed {
            return true;
        }
        self.armed = armed;
        let mut all = true;
        for port in &self.ports {
            // Taking out fails only for a socket that is not there.
            if !armed {
                let _ = epoll::delete(&*self.epoll, port);
            } else if let Err(e) = self.show(port) {
                // One that is there already is one that an earlier call put there before the kernel
                // ran out of memory.
                all &= Errno::from_io_error(&e) == Some(Errno::EXIST);
            }
        }
        self.armed &= all;
        all
    }

    /// Addresses bound.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(P::local_addr).collect()
    }

    /// Bytes that may be under way to this node from a peer. On a network that is what it keeps
    /// beyond a gap: most of it is on the way, not in a socket. A node that only loopback reaches
    /// has all of it in its sockets, so it takes a quarter of the smallest receive buffer, for the
    /// kernel's bookkeeping counts too, most for small datagrams; and more under way would only
    /// push the datagrams out of the cache before they are read.
    pub(crate) fn receive_budget_bytes(&self) -> usize {
        let near = !self.ports.is_empty() && self.ports.iter().all(|p| p.local_addr().ip().is_loopback());
        if !near {
            return BUDGET_BYTES_MAX;
        }
        let smallest = self.ports.iter().map(P::receive_buffer_bytes).min();
        (smallest.unwrap_or(SOCKET_BUFFER_BYTES) / 4).clamp(BUDGET_BYTES_MIN, BUDGET_BYTES_LOOPBACK)
    }

    /// Whether a socket can ask queues for marks, and sees those that others ask for.
    pub(crate) fn has_codepoints(&self) -> bool {
        self.ports.iter().any(P::has_codepoints)
    }

    /// Polls the sockets up to so many times, until something comes; says whether there was
    /// anything.
    #[inline]
    pub(crate) fn receive(&mut self, station: &mut impl Traffic, now: Time, polls: u32) -> bool {
        if self.ports.len() == 1 {
            return self.receive_from(0, station, now, polls);
        }
        (0..polls).any(|_| {
            let mut any = false;
            for index in 0..self.ports.len() {
                any |= self.receive_from(index, station, now, 1);
            }
            any
        })
    }

    /// Takes what has come to one socket.
    #[inline]
    fn receive_from(&mut self, index: usize, station: &mut impl Traffic, now: Time, polls: u32) -> bool {
        if self.looks > 0 && self.ports[index].gives_single() {
            return self.look_and_receive(index, station, now, polls);
        }
        let (mut stranger, mut long) = (None, false);
        let (counters, routes, last) = (&mut self.counters, &self.routes, self.last);
        let came = self.ports[index].receive(&mut self.received, polls, |from, codepoint, datagram| {
            counters.datagrams_in += 1;
            counters.bytes_in += datagram.len() as u64;
            long |= datagram.len() >= PLACED_BYTES_MIN;
            station.handle_datagram(now, from, codepoint, datagram);
            if routes.get(last).is_none_or(|r| r.address != from) {
                stranger = Some(from);
            }
        });
        // An error other than "nothing there" is one of this socket for this moment; the engine
        // sees it as silence.
        let came = came.unwrap_or(false);
        self.counters.receives += u64::from(came);
        if long && station.may_place() {
            self.looks = LOOKS;
        }
        if let Some(from) = stranger {
            self.learn(from, Some(index), station, now);
        }
        came
    }

    /// As [`receive_from`](Self::receive_from), but looks at a datagram before it takes it: what is
    /// long may go to its place at once.
    fn look_and_receive(&mut self, index: usize, station: &mut impl Traffic, now: Time, polls: u32) -> bool {
        let (port, received, counters) = (&mut self.ports[index], &mut self.received, &mut self.counters);
        let Ok(Some(head)) = port.peek(received, polls) else { return false };
        self.looks -= 1;
        counters.receives += 1;
        counters.datagrams_in += 1;
        counters.bytes_in += head.len as u64;
        // A sender without an address is nobody to answer to.
        let Some(from) = head.from else { return true };
        if head.len <= HEAD_BYTES {
            station.handle_datagram(now, from, Codepoint::NotEct, P::head(received, &head));
        } else {
            if head.len >= PLACED_BYTES_MIN {
                self.looks = LOOKS;
            }
            let placement = station.placement(from, P::head(received, &head), head.len);
            match placement.and_then(|placement| Some((placement, station.placement_region(&placement)?))) {
                Some((placement, region)) => {
                    let place = (placement.at, (region, placement.offset, placement.len));
                    let taken = port.take(received, &head, Some(place));
                    station.end_of_loan();
                    match taken {
                        Ok(datagram) => {
                            counters.placed_in += 1;
                            station.handle_placed_datagram(now, from, datagram, &placement);
                        }
                        // It is lost, as on any wire, and does not go that way again.
                        Err(_) => self.looks = 0,
                    }
                }
                None => {
                    if let Ok(datagram) = port.take(received, &head, None) {
                        station.handle_datagram(now, from, Codepoint::NotEct, datagram);
                    }
                }
            }
        }
        if self.routes.get(self.last).is_none_or(|route| route.address != from) {
            self.learn(from, Some(index), station, now);
        }
        true
    }

    /// Sends what the engine has to send; says whether there was anything.
    pub(crate) fn transmit(&mut self, station: &mut impl Traffic, now: Time) -> bool {
        if !self.held.is_empty() && !self.send_held(station, now) {
            return false;
        }
        let mut run: Option<Run> = None;
        let mut at = 0;
        let mut any = false;
        for _ in 0..TRANSMIT_BATCH {
            if self.buffer.len() - at < ROOM {
                run.take().into_iter().for_each(|run| self.flush(&run, station, now));
                at = 0;
            }
            if !self.held.is_empty() {
                break;
            }
            let room = &mut self.buffer[at..at + ROOM];
            let Some((transmit, lent)) = station.poll_transmit_lending(now, room) else { break };
            any = true;
            if let Some(lent) = lent {
                run.take().into_iter().for_each(|run| self.flush(&run, station, now));
                self.send_lent(transmit, &lent, at, station, now);
                at = 0;
                continue;
            }
            let end = at + transmit.len;
            match &mut run {
                Some(run) if self.segments && run.takes(&transmit) => run.add(transmit.len),
                _ => {
                    let next = Run { to_stranger: transmit.to_stranger, ..Run::one(&transmit, at, transmit.len) };
                    run.replace(next).into_iter().for_each(|run| self.flush(&run, station, now));
                }
            }
            at = end;
        }
        run.into_iter().for_each(|run| self.flush(&run, station, now));
        any
    }

    /// Does this for an attached process at once, as the station allows; says whether it did.
    /// Nothing happens while others wait for room.
    #[inline]
    pub(crate) fn try_send_inline(
        &mut self,
        station: &mut impl Traffic,
        now: Time,
        from: ConnectionId,
        what: &Direct<'_>,
    ) -> bool {
        if !self.held.is_empty() {
            return false;
        }
        let (routes, ports, last) = (&self.routes, &self.ports, self.last);
        let mut sent = None;
        let quickly = |to, codepoint, datagram: &[u8]| {
            let known = routes.get(last).filter(|route| route.address == to && route.probed);
            sent = known.map(|route| {
                let port = &ports[route.port];
                port.set_codepoint(codepoint);
                port.send(to, datagram, datagram.len())
            });
        };
        let transmit = station.try_send_inline(now, from, what, &mut self.buffer[..ROOM], quickly);
        let Some(transmit) = transmit else { return false };
        let (run, len) = (Run::one(&transmit, 0, transmit.len), transmit.len);
        let Some(sent) = sent else {
            self.flush(&run, station, now);
            return true;
        };
        self.count(1, len);
        if let Err(e) = sent {
            self.failed(&e, &run, self.last, station);
        }
        true
    }

    /// Whether something waits for room in a socket.
    pub(crate) fn is_congested(&self) -> bool {
        !self.held.is_empty()
    }

    pub(crate) fn counters(&self) -> [(&'static str, u64); 12] {
        let c = &self.counters;
        [
            ("udp_receives", c.receives),
            ("udp_datagrams_in", c.datagrams_in),
            ("udp_bytes_in", c.bytes_in),
            ("udp_datagrams_placed", c.placed_in),
            ("udp_sends", c.sends),
            ("udp_datagrams_out", c.datagrams_out),
            ("udp_datagrams_spliced", c.spliced_out),
            ("udp_bytes_out", c.bytes_out),
            ("udp_send_errors", c.send_errors),
            ("udp_unanswered", c.unanswered),
            ("udp_held", c.held),
            ("udp_probes", c.probes),
        ]
    }

    /// Sends a datagram whose long piece is still in its memory; `at` is where the rest of it is in
    /// the buffer.
    fn send_lent(&mut self, transmit: Transmit, lent: &Lent, at: usize, station: &mut impl Traffic, now: Time) {
        let Transmit { to, len, fit, .. } = transmit;
        let known = self.routes.get(self.last).filter(|route| route.address == to && route.probed);
        let known = known.filter(|_| self.held.is_empty() && fit == Fit::Path);
        // The borrower of the memory ends the loan.
        if let Some((route, region)) = known.and_then(|route| Some((route, station.lent_region(lent)?))) {
            let (head, tail) = self.buffer[at..at + len].split_at(lent.at);
            let (memory, port) = ((region, lent.offset, lent.len), &self.ports[route.port]);
            port.set_codepoint(transmit.codepoint);
            // Only to a node of this machine: nobody else could see what the memory holds later
            // (docs/security.md).
            let splice =
                lent.len >= SPLICE_BYTES_MIN && to.ip().is_loopback() && self.pages.takes(lent.offset, lent.len);
            let spliced = lent.by_reference.filter(|_| splice).is_some_and(|Transfer { session, operation, rest }| {
                let ahead = Ahead { transfer: (session, operation), bytes: rest };
                port.send_pages(&mut self.pages, to, head, memory, ahead, tail).is_ok()
            });
            let sent = spliced || port.send_around(to, head, memory, tail).is_ok();
            station.end_of_loan();
            if sent {
                self.counters.spliced_out += u64::from(spliced);
                self.count(1, len + lent.len);
                return;
            }
        }
        // The first datagram on a route, and whatever goes wrong, takes the way of all others.
        let segment = station.put_in(lent, &mut self.buffer[at..at + ROOM], len);
        self.flush(&Run::one(&transmit, at, segment), station, now);
    }

    fn flush(&mut self, run: &Run, station: &mut impl Traffic, now: Time) {
        let Some(route) = self.route(run.to, station, now) else {
            self.counters.send_errors += 1;
            return;
        };
        self.count(run.count, run.end - run.start);
        if run.fit == Fit::Probe {
            self.ask_way(route, station, now);
        }
        let port = &self.ports[self.routes[route].port];
        if run.to_stranger && (!self.held.is_empty() || !has_room_for_strangers(port)) {
            self.counters.unanswered += run.count as u64;
            return;
        }
        if !self.held.is_empty() {
            // It was taken from the engine already, and has its turn when the kernel has room.
            debug_assert!(self.held.len() < HELD_RUNS_MAX);
            let bytes = self.buffer[run.start..run.end].to_vec();
            let Run { to, codepoint, segment, fit, .. } = *run;
            return self.held.push_back(Held { to, codepoint, bytes, segment, fit });
        }
        port.set_codepoint(run.codepoint);
        if let Err(e) = send(port, run, &self.buffer[run.start..run.end]) {
            self.failed(&e, run, route, station);
        }
    }

    #[inline]
    fn count(&mut self, datagrams: usize, bytes: usize) {
        self.counters.sends += 1;
        self.counters.datagrams_out += datagrams as u64;
        self.counters.bytes_out += bytes as u64;
    }

    #[cold]
    fn failed(&mut self, error: &io::Error, run: &Run, route: usize, station: &mut impl Traffic) {
        match Errno::from_io_error(error) {
            Some(Errno::AGAIN) => {
                self.counters.held += 1;
                self.hold(run, run.start);
            }
            // Silence is the answer.
            Some(Errno::MSGSIZE | Errno::INVAL) if run.fit == Fit::Probe => {}
            Some(Errno::MSGSIZE | Errno::INVAL) if self.has_shrunk(run, route, station) => {}
            // The device cannot cut sends into datagrams: do it here from now on.
            Some(Errno::INVAL | Errno::IO | Errno::MSGSIZE) if run.count > 1 => {
                self.segments = false;
                if let Some(at) = self.send_singly(run, route) {
                    self.counters.held += 1;
                    self.hold(run, at);
                }
            }
            _ => self.counters.send_errors += 1,
        }
    }

    /// Keeps a run, from `at` on, until the kernel has room. Nothing that is held is older.
    fn hold(&mut self, run: &Run, at: usize) {
        let bytes = self.buffer[at..run.end].to_vec();
        let Run { to, codepoint, segment, fit, .. } = *run;
        self.held.push_front(Held { to, codepoint, bytes, segment, fit });
    }

    /// Sends the datagrams of a run one by one; gives where the first is that found no room.
    fn send_singly(&mut self, run: &Run, route: usize) -> Option<usize> {
        let port = &self.ports[self.routes[route].port];
        for at in (run.start..run.end).step_by(run.segment) {
            let datagram = &self.buffer[at..run.end.min(at + run.segment)];
            match port.send(run.to, datagram, datagram.len()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Some(at),
                Err(_) => self.counters.send_errors += 1,
                Ok(()) => {}
            }
        }
        None
    }

    /// Whether the kernel takes the path for smaller than these datagrams. Then the engine is told;
    /// and since it sends again what is under way as it was, and no packets smaller than each path
    /// must carry, these go in pieces. So a path that has become smaller ends no session, nor
    /// does a false claim that it has.
    fn has_shrunk(&mut self, run: &Run, route: usize, station: &mut impl Traffic) -> bool {
        let Some(way) = P::way_to(run.to).ok().filter(|way| way.payload_bytes < run.segment) else { return false };
        self.counters.send_errors += 1;
        self.routes[route].probed = false;
        station.set_path_mtu(run.to, way.payload_bytes);
        let port = &self.ports[self.routes[route].port];
        for datagram in self.buffer[run.start..run.end].chunks(run.segment) {
            // What is not sent is lost, as on any wire.
            let _ = port.send_in_pieces(run.to, datagram);
        }
        true
    }

    /// Sends what is held; says whether it is out of the way.
    #[cold]
    fn send_held(&mut self, station: &mut impl Traffic, now: Time) -> bool {
        while let Some(Held { to, codepoint, bytes, segment, fit }) = self.held.pop_front() {
            let Some(route) = self.route(to, station, now) else {
                self.counters.send_errors += 1;
                continue;
            };
            let (count, closed, to_stranger) = (bytes.len().div_ceil(segment), false, false);
            let run = Run { to, codepoint, start: 0, end: bytes.len(), segment, count, closed, to_stranger, fit };
            self.ports[self.routes[route].port].set_codepoint(codepoint);
            self.buffer[..run.end].copy_from_slice(&bytes);
            if run.count > 1 && !self.segments {
                if let Some(at) = self.send_singly(&run, route) {
                    self.hold(&run, at);
                    return false;
                }
                continue;
            }
            let port = &self.ports[self.routes[route].port];
            match send(port, &run, &bytes) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.hold(&run, run.start);
                    return false;
                }
                Err(e) => {
                    let others = self.held.len();
                    self.failed(&e, &run, route, station);
                    if self.held.len() > others {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// The route to an address, which is the one used last as a rule.
    #[inline]
    fn route(&mut self, to: SocketAddr, station: &mut impl Traffic, now: Time) -> Option<usize> {
        match self.routes.get(self.last) {
            Some(route) if route.address == to && route.probed => Some(self.last),
            _ => self.learn(to, None, station, now),
        }
    }

    /// The route to an address: made, and its path size asked for, if it is new. `received_on` is
    /// the socket on which a datagram of it has just come.
    fn learn(
        &mut self,
        address: SocketAddr,
        received_on: Option<usize>,
        station: &mut impl Traffic,
        now: Time,
    ) -> Option<usize> {
        let known = self.routes.iter().position(|r| r.address == address);
        let index = match known {
            Some(index) => index,
            None => {
                let port = match received_on {
                    Some(port) => port,
                    None => self.port_for(address)?,
                };
                if self.routes.len() >= ROUTES_MAX {
                    // Strangers could have filled it; those that matter are learned again at their
                    // next datagram.
                    self.routes.clear();
                }
                self.routes.push(Route { address, port, probed: false });
                self.routes.len() - 1
            }
        };
        if let Some(port) = received_on {
            self.routes[index].port = port;
        }
        if !self.routes[index].probed {
            self.ask_way(index, station, now);
        }
        self.last = index;
        Some(index)
    }

    /// Asks the kernel how large packets to an address may be, unless it was asked too often.
    fn ask_way(&mut self, index: usize, station: &mut impl Traffic, now: Time) {
        if !self.probes.may(now) {
            return;
        }
        self.counters.probes += 1;
        let Route { address, probed, .. } = &mut self.routes[index];
        *probed = true;
        if let Ok(way) = P::way_to(*address) {
            station.set_path_mtu(*address, way.payload_bytes);
        }
    }

    /// A socket for an address; opened if none is of its family. With several paths, an answer
    /// comes back over the wire that the question took only if the question came from the address
    /// that belongs to that wire.
    fn port_for(&mut self, address: SocketAddr) -> Option<usize> {
        let source = P::way_to(address).ok().map(|way| way.source);
        let fits = |p: &P| p.local_addr().is_ipv4() == address.is_ipv4();
        let near = |p: &P| p.local_addr().ip().is_loopback() == address.ip().is_loopback();
        let at = |f: &dyn Fn(&P) -> bool| self.ports.iter().position(f);
        let found = at(&|p| source == Some(p.local_addr().ip()))
            .or_else(|| at(&|p| fits(p) && p.local_addr().ip().is_unspecified()))
            .or_else(|| at(&|p| fits(p) && near(p)))
            .or_else(|| at(&|p| fits(p) && !p.local_addr().ip().is_loopback()));
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        found.or_else(|| self.open(any).ok())
    }
}

/// Hands a run to the kernel.
#[inline]
fn send(port: &impl Port, run: &Run, bytes: &[u8]) -> io::Result<()> {
    match run.fit {
        Fit::Path | Fit::Probe => port.send(run.to, bytes, run.segment),
        Fit::CutUp => port.send_in_pieces(run.to, bytes),
    }
}

/// Whether answers to strangers may be added to what waits in a socket. They can be made to wait
/// for seconds, by questions that seem to come from addresses of this wire that nobody has; half of
/// the room is for others.
fn has_room_for_strangers(port: &impl Port) -> bool {
    port.send_queue_bytes().is_ok_and(|(waiting, most)| waiting <= most / 2)
}

impl Run {
    fn one(transmit: &Transmit, start: usize, len: usize) -> Run {
        let Transmit { to, codepoint, fit, .. } = *transmit;
        Run { to, codepoint, start, end: start + len, segment: len, count: 1, closed: false, to_stranger: false, fit }
    }

    fn takes(&self, next: &Transmit) -> bool {
        let len = next.len;
        !self.closed
            && (self.to, self.codepoint, self.to_stranger) == (next.to, next.codepoint, next.to_stranger)
            && (self.fit, next.fit) == (Fit::Path, Fit::Path)
            && len <= self.segment
            && self.count < UDP_SEGMENTS_MAX
            && self.end - self.start + len <= UDP_DATAGRAM_BYTES_MAX
    }

    fn add(&mut self, len: usize) {
        self.end += len;
        self.count += 1;
        self.closed = len < self.segment;
    }
}

impl Probes {
    fn may(&mut self, now: Time) -> bool {
        let second = now.as_nanos() / Duration::from_secs(1).as_nanos() as u64;
        if second != self.second {
            *self = Probes { second, used: 0 };
        }
        self.used += 1;
        self.used <= PROBES_PER_SECOND
    }
}

#[cfg(test)]
mod tests;
