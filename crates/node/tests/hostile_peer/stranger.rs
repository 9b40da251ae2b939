//! A stranger on the wire: sees all, sends anything from any address, and has no key.
//!
//! Invariant: it never takes its own packets for those of the honest pair.

use super::*;

/// A UDP datagram as it crossed the hub.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
    pub(crate) data: Vec<u8>,
}

impl Datagram {
    /// From an IP packet; those of several datagrams at once and pieces of one are left out.
    pub(crate) fn parse(packet: &[u8]) -> Option<Datagram> {
        let whole = |head: &[u8; 28]| head[6] & 0x3f == 0 && head[7] == 0;
        let honest = |head: &&[u8; 28]| head[0] == 0x45 && head[8] != TTL && head[9] == 17 && whole(head);
        let head = packet.first_chunk::<28>().filter(honest)?;
        let ip = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
        let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let data = packet.get(28..20 + usize::from(number(24)))?;
        let (from, to) = (SocketAddrV4::new(ip(12), number(20)), SocketAddrV4::new(ip(16), number(22)));
        (20..=1_472).contains(&data.len()).then(|| Datagram { from, to, data: data.to_vec() })
    }

    /// The IP packet; the kernel fills in what is 0 in its first part, and no checksum of UDP's is
    /// a good one.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut packet = ip_head(17, *self.from.ip(), *self.to.ip());
        packet.extend(self.from.port().to_be_bytes());
        packet.extend(self.to.port().to_be_bytes());
        packet.extend((8 + self.data.len() as u16).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(&self.data);
        packet
    }

    pub(crate) fn kind(&self) -> u8 {
        self.data.get(1).map_or(0, |byte| byte & 15)
    }
}

/// By this the stranger knows its own packets again.
pub(crate) const TTL: u8 = 77;

pub(crate) fn ip_head(protocol: u8, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    [&[0x45, 0, 0, 0, 0, 0, 0, 0, TTL, protocol, 0, 0], &from.octets()[..], &to.octets()].concat()
}

/// Kinds of datagrams, as docs/protocol.md numbers them.
pub(crate) const HELLO: u8 = 1;
pub(crate) const DATA: u8 = 4;
pub(crate) const UNKNOWN_SESSION: u8 = 5;
pub(crate) const KINDS: std::ops::RangeInclusive<u8> = 0..=7;

/// What a stranger in the hub sees and can send.
pub(crate) struct Stranger {
    pub(crate) noise: Noise,
    pub(crate) tap: OwnedFd,
    pub(crate) raw: OwnedFd,
    /// What the honest pair has said: hellos and what belongs to them for ever, the rest for a
    /// while.
    pub(crate) opening: Vec<Datagram>,
    pub(crate) seen: VecDeque<Datagram>,
    pub(crate) sent: u64,
}

impl Stranger {
    /// To be made on the hub, before the honest pair's first word.
    pub(crate) fn new(wire: &Wire) -> Stranger {
        let noise = Noise::new(wild::seed());
        let (tap, raw) = wire.on(HUB, || {
            let open = |family, kind, protocol| {
                rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(protocol))
            };
            let tap = open(AddressFamily::PACKET, SocketType::DGRAM, eth::ALL).unwrap();
            (tap, open(AddressFamily::INET, SocketType::RAW, ipproto::RAW).unwrap())
        });
        Stranger { noise, tap, raw, opening: Vec::new(), seen: VecDeque::new(), sent: 0 }
    }

    /// Takes down what has passed since; each packet is seen at several places.
    pub(crate) fn look(&mut self) {
        const KEPT: usize = 500;
        let mut buf = vec![0; 1 << 16];
        for _ in 0..1_000 {
            let Ok((len, _)) = rustix::net::recv(&self.tap, &mut buf[..], RecvFlags::empty()) else { break };
            let Some(datagram) = Datagram::parse(&buf[..len]) else { continue };
            // What is on its way to addresses that were made up is of no use.
            if [datagram.from, datagram.to].iter().any(|at| at.ip().octets()[..3] != [10, 96, 0]) {
                continue;
            }
            if datagram.kind() != DATA {
                if self.opening.len() < KEPT && !self.opening.contains(&datagram) {
                    self.opening.push(datagram);
                }
            } else if !self.seen.iter().rev().take(8).any(|seen| *seen == datagram) {
                self.seen.push_back(datagram);
                if self.seen.len() > KEPT {
                    self.seen.pop_front();
                }
            }
        }
    }

    /// One of those seen.
    pub(crate) fn some(&mut self) -> Datagram {
        let (first, count) = (self.opening.len(), self.opening.len() + self.seen.len());
        // By turns, though what opens sessions is little.
        let at = if self.noise.one_in(2) { self.noise.below(first) } else { self.noise.below(count) };
        if at < first { self.opening[at].clone() } else { self.seen[at - first].clone() }
    }

    pub(crate) fn send(&mut self, datagram: &Datagram) {
        self.send_packet(&datagram.packet(), datagram.to);
    }

    pub(crate) fn send_packet(&mut self, packet: &[u8], to: SocketAddrV4) {
        // What the hub's own kernel refuses is not sent.
        let _ = rustix::net::sendto(&self.raw, packet, SendFlags::empty(), &to);
        self.sent += 1;
    }

    /// Does this over and over, in bursts, having read what passed.
    pub(crate) fn at_rate(&mut self, time: Duration, mut act: impl FnMut(&mut Stranger)) -> u64 {
        self.look();
        assert!(self.opening.iter().any(|d| d.kind() == HELLO) && !self.seen.is_empty(), "nothing was seen");
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.look();
            (0..BURST).for_each(|_| act(self));
            std::thread::sleep(Duration::from_millis(1));
        }
        self.sent
    }

    /// An address that nobody has, on the wire or elsewhere; some cannot be answered at all.
    pub(crate) fn nobody(&mut self) -> SocketAddrV4 {
        let [a, b, ..] = self.noise.next().to_le_bytes();
        let ip = match self.noise.below(8) {
            0..=3 => Ipv4Addr::new(10, 96, 1, b),
            4..=5 => Ipv4Addr::new(192, 0, 2, b),
            6 => Ipv4Addr::new(a, b, 3, 4),
            _ => Ipv4Addr::new(10, 96, 255, 255),
        };
        SocketAddrV4::new(ip, if self.noise.one_in(16) { 0 } else { self.noise.next() as u16 })
    }

    /// One of the honest pair.
    pub(crate) fn target(&mut self) -> SocketAddrV4 {
        address(self.noise.pick(&[NEAR, FAR]))
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.noise.next() as u8).collect()
    }

    /// From somebody to whom this may seem to come from.
    pub(crate) fn source(&mut self, to: SocketAddrV4) -> SocketAddrV4 {
        let other = address(if to == address(NEAR) { FAR } else { NEAR });
        match self.noise.below(4) {
            0 => self.nobody(),
            1 => address(HUB),
            _ => other,
        }
    }
}

impl Stranger {
    /// Reports to the sender of this that it did not arrive, for some reason.
    pub(crate) fn send_icmp(&mut self, about: &Datagram) {
        const PROTOCOL: u8 = 1;
        let from = *if self.noise.one_in(2) { address(HUB) } else { about.to }.ip();
        let packet_bytes_max = self.noise.pick(&[0, 68, 552, 576, 1_000, 1_280, 1_400]);
        // Unreachable in one way or another, too long, or too long under way.
        let (kind, code) =
            self.noise.pick(&[(3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (3, 4), (3, 10), (3, 13), (11, 0)]);
        let mut message = vec![kind, code, 0, 0, 0, 0];
        message.extend(u16::to_be_bytes(if (kind, code) == (3, 4) { packet_bytes_max } else { 0 }));
        let mut inner = about.packet();
        let len = inner.len() as u16;
        inner[2..4].copy_from_slice(&len.to_be_bytes());
        inner[6] = 0x40;
        let sum = internet_checksum(&inner[..20]);
        inner[10..12].copy_from_slice(&sum);
        message.extend(&inner[..(20 + 8 + 64).min(inner.len())]);
        let sum = internet_checksum(&message);
        message[2..4].copy_from_slice(&sum);
        let mut packet = ip_head(PROTOCOL, from, *about.from.ip());
        packet.extend(message);
        self.send_packet(&packet, about.from);
    }
}

pub(crate) fn internet_checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!((sum + (sum >> 16)) as u16)).to_be_bytes()
}
