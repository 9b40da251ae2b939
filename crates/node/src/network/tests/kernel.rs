//! A kernel that answers by a script, and an engine that has just this to send.
//!
//! Invariant: what a script does not answer is done, as by a kernel with room for everything. One
//! kernel belongs to each thread, so to each test.

use super::super::port::{Port, Traffic};
use crate::station::ConnectionId;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use vmmc_host::Region;
use vmmc_host::pages::{Ahead, PagePipe};
use vmmc_host::udp::{HEAD_BYTES, Head, Way};
use vmmc_host::wait::Direct;
use vmmc_nic::{Codepoint, Fit, Lent, Placement, ProcessId, RegionId, RegionRef, Time, Transfer, Transmit};

/// What a socket was asked to do with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// With others of the same send, or alone.
    Sent,
    InPieces,
    Around,
    ByReference,
}

/// A datagram that has gone out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Out {
    pub(super) socket: usize,
    pub(super) to: SocketAddr,
    pub(super) how: How,
    pub(super) codepoint: Codepoint,
    pub(super) bytes: Vec<u8>,
}

/// Datagrams that come together, each from somewhere.
pub(super) type Burst = Vec<(SocketAddr, Vec<u8>)>;

/// What the kernel of this thread does, and has done.
pub(super) struct Kernel {
    /// Answers to the next sends of whatever kind.
    pub(super) script: VecDeque<Result<(), Errno>>,
    /// Datagrams that went out, in order.
    pub(super) out: Vec<Out>,
    /// Sends that were asked for, refused ones too: datagrams of each.
    pub(super) sends: Vec<usize>,
    /// What comes to each socket: one entry for each receive.
    pub(super) coming: Vec<VecDeque<Result<Burst, Errno>>>,
    pub(super) payload_bytes: usize,
    pub(super) queue: Result<(usize, usize), Errno>,
    pub(super) segments: bool,
    pub(super) binds: Result<(), Errno>,
    /// Addresses of all sockets, those included that are closed.
    pub(super) sockets: Vec<SocketAddr>,
    pub(super) ways_asked: usize,
    /// Looks at what comes.
    pub(super) looks: usize,
}

thread_local! {
    static KERNEL: RefCell<Kernel> = const { RefCell::new(Kernel {
        script: VecDeque::new(),
        out: Vec::new(),
        sends: Vec::new(),
        coming: Vec::new(),
        payload_bytes: 1_472,
        queue: Ok((0, 100)),
        segments: true,
        binds: Ok(()),
        sockets: Vec::new(),
        ways_asked: 0,
        looks: 0,
    }) };
}

impl Kernel {
    /// Forgets its sockets and what they did; what it refuses stays as it is.
    pub(super) fn restart(&mut self) {
        self.script.clear();
        self.out.clear();
        self.sends.clear();
        self.coming.clear();
        self.sockets.clear();
    }
}

/// The kernel of this thread.
pub(super) fn kernel<R>(with: impl FnOnce(&mut Kernel) -> R) -> R {
    KERNEL.with_borrow_mut(with)
}

/// The answers to the next sends.
pub(super) fn answer(answers: impl IntoIterator<Item = Result<(), Errno>>) {
    kernel(|kernel| kernel.script.extend(answers));
}

/// The datagrams that have gone out since the last call, each by its number.
pub(super) fn numbers_out() -> Vec<u32> {
    let out = kernel(|kernel| std::mem::take(&mut kernel.out));
    out.iter().map(|out| number(&out.bytes)).collect()
}

/// A datagram that bears a number.
pub(super) fn datagram(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(len, number as u8);
    bytes
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

/// A socket of that kernel.
pub(super) struct FakePort {
    number: usize,
    local: SocketAddr,
    fd: OwnedFd,
    codepoint: Cell<Codepoint>,
}

impl FakePort {
    fn open(local: SocketAddr) -> FakePort {
        let number = kernel(|kernel| {
            kernel.sockets.push(local);
            kernel.coming.push(VecDeque::new());
            kernel.sockets.len() - 1
        });
        FakePort { number, local, fd: eventfd(0, EventfdFlags::CLOEXEC).unwrap(), codepoint: Cell::default() }
    }

    fn take(&self, to: SocketAddr, how: How, datagrams: Vec<Vec<u8>>) -> io::Result<()> {
        assert_eq!(self.local.is_ipv4(), to.is_ipv4(), "a socket of another family");
        kernel(|kernel| {
            kernel.sends.push(datagrams.len());
            kernel.script.pop_front().unwrap_or(Ok(()))?;
            let (socket, codepoint) = (self.number, self.codepoint.get());
            kernel.out.extend(datagrams.into_iter().map(|bytes| Out { socket, to, how, codepoint, bytes }));
            Ok(())
        })
    }
}

impl AsFd for FakePort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn content((region, offset, len): (&Region, u64, usize)) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(offset, &mut bytes).unwrap();
    bytes
}

impl Port for FakePort {
    type Received = Vec<u8>;

    fn bind(address: SocketAddr, _: usize) -> io::Result<FakePort> {
        kernel(|kernel| kernel.binds)?;
        Ok(FakePort::open(address))
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn sends_segments(&self) -> bool {
        kernel(|kernel| kernel.segments)
    }

    fn receive_buffer_bytes(&self) -> usize {
        1 << 20
    }

    fn send_queue_bytes(&self) -> io::Result<(usize, usize)> {
        Ok(kernel(|kernel| kernel.queue)?)
    }

    fn has_codepoints(&self) -> bool {
        !self.local.ip().is_loopback()
    }

    fn set_codepoint(&self, codepoint: Codepoint) {
        self.codepoint.set(codepoint);
    }

    fn release(&mut self) {}

    fn receive(
        &mut self,
        _: &mut Vec<u8>,
        _: u32,
        mut each: impl FnMut(SocketAddr, Codepoint, &mut [u8]),
    ) -> io::Result<bool> {
        let Some(came) = kernel(|kernel| kernel.coming[self.number].pop_front()) else { return Ok(false) };
        came?.into_iter().for_each(|(from, mut bytes)| each(from, Codepoint::NotEct, &mut bytes));
        Ok(true)
    }

    fn gives_single(&self) -> bool {
        self.local.ip().is_loopback()
    }

    fn peek(&mut self, buffer: &mut Vec<u8>, _: u32) -> io::Result<Option<Head>> {
        kernel(|kernel| kernel.looks += 1);
        let next = kernel(|kernel| kernel.coming[self.number].front().cloned());
        let Some(came) = next else { return Ok(None) };
        let (from, bytes) = came?.pop().unwrap();
        buffer.clone_from(&bytes);
        if bytes.len() <= HEAD_BYTES {
            kernel(|kernel| kernel.coming[self.number].pop_front());
        }
        Ok(Some(Head { from: Some(from), len: bytes.len() }))
    }

    fn head<'b>(buffer: &'b mut Vec<u8>, head: &Head) -> &'b mut [u8] {
        &mut buffer[..head.len.min(HEAD_BYTES)]
    }

    fn take<'b>(
        &mut self,
        buffer: &'b mut Vec<u8>,
        head: &Head,
        place: Option<(usize, (&Region, u64, usize))>,
    ) -> io::Result<&'b mut [u8]> {
        assert_eq!(buffer.len(), head.len);
        let came = kernel(|kernel| kernel.coming[self.number].pop_front());
        assert_eq!(came, Some(Ok(vec![(head.from.unwrap(), buffer.clone())])));
        if let Some((at, (region, offset, len))) = place {
            kernel(|kernel| kernel.script.pop_front()).unwrap_or(Ok(()))?;
            let piece = &mut buffer[at..at + len];
            region.write(offset, piece).unwrap();
            piece.fill(0xaa);
        }
        Ok(buffer)
    }

    fn send(&self, to: SocketAddr, bytes: &[u8], segment_bytes: usize) -> io::Result<()> {
        let datagrams: Vec<_> = bytes.chunks(segment_bytes).map(<[u8]>::to_vec).collect();
        assert!(datagrams.len() == 1 || self.sends_segments(), "this kernel has no segmentation");
        self.take(to, How::Sent, datagrams)
    }

    fn send_in_pieces(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        self.take(to, How::InPieces, vec![bytes.to_vec()])
    }

    fn send_around(&self, to: SocketAddr, head: &[u8], memory: (&Region, u64, usize), tail: &[u8]) -> io::Result<()> {
        self.take(to, How::Around, vec![[head, &content(memory), tail].concat()])
    }

    fn send_pages(
        &self,
        _: &mut PagePipe,
        to: SocketAddr,
        head: &[u8],
        memory: (&Region, u64, usize),
        _: Ahead,
        tail: &[u8],
    ) -> io::Result<()> {
        self.take(to, How::ByReference, vec![[head, &content(memory), tail].concat()])
    }

    fn way_to(to: SocketAddr) -> io::Result<Way> {
        let payload_bytes = kernel(|kernel| {
            kernel.ways_asked += 1;
            kernel.payload_bytes
        });
        let source = match to.ip() {
            near if near.is_loopback() => near,
            IpAddr::V4(_) => Ipv4Addr::new(10, 0, 0, 1).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2).into(),
        };
        Ok(Way { payload_bytes, source })
    }
}

/// What the engine has to send next.
pub(super) struct Next {
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
    pub(super) to_stranger: bool,
    pub(super) fit: Fit,
    /// The part of it that stays in the region: where it stands and its bytes.
    pub(super) lent: Option<(usize, usize)>,
}

impl Next {
    pub(super) fn new(to: SocketAddr, bytes: Vec<u8>) -> Next {
        Next { to, bytes, to_stranger: false, fit: Fit::Path, lent: None }
    }
}

/// An engine that has just this to send, and what it was told.
#[derive(Default)]
pub(super) struct Engine {
    pub(super) queue: VecDeque<Next>,
    /// Memory that it lends from, which holds what the datagrams hold there.
    pub(super) region: Option<Region>,
    /// Loans under way.
    pub(super) loans: Cell<u32>,
    pub(super) path_sizes: Vec<(SocketAddr, usize)>,
    pub(super) came: Vec<Vec<u8>>,
    pub(super) came_with: Vec<Codepoint>,
    /// What it wants its datagrams to go out with.
    pub(super) codepoint: Codepoint,
    /// What came in part, without that part.
    pub(super) came_placed: Vec<Vec<u8>>,
    /// The piece of each long datagram that goes to the same place of its region.
    pub(super) piece: Option<(usize, usize)>,
    /// It has a key.
    pub(super) is_sealed: bool,
}

impl Engine {
    /// Datagrams of `len` bytes each, numbered from `first` on.
    pub(super) fn queue(&mut self, to: SocketAddr, numbers: std::ops::Range<u32>, len: usize) {
        let next = |number| Next::new(to, datagram(number, len));
        self.queue.extend(numbers.map(next));
    }
}

impl Traffic for Engine {
    fn handle_datagram(&mut self, _: Time, _: SocketAddr, codepoint: Codepoint, datagram: &mut [u8]) {
        self.came_with.push(codepoint);
        self.came.push(datagram.to_vec());
    }

    fn may_place(&self) -> bool {
        !self.is_sealed
    }

    fn placement(&mut self, _: SocketAddr, head: &[u8], len: usize) -> Option<Placement> {
        assert!(head.len() == HEAD_BYTES && len > HEAD_BYTES);
        let (at, piece) = self.piece.filter(|(at, piece)| at + piece <= len)?;
        let memory = RegionRef { process: ProcessId(0), region: RegionId(0) };
        Some(Placement { at, len: piece, memory, offset: 64 })
    }

    fn placement_region(&self, _: &Placement) -> Option<&Region> {
        self.region.as_ref().inspect(|_| self.loans.set(self.loans.get() + 1))
    }

    fn handle_placed_datagram(&mut self, _: Time, _: SocketAddr, datagram: &mut [u8], placement: &Placement) {
        let rest = &datagram[placement.at + placement.len..];
        self.came_placed.push([&datagram[..placement.at], rest].concat());
    }

    fn poll_transmit_lending(&mut self, _: Time, buf: &mut [u8]) -> Option<(Transmit, Option<Lent>)> {
        let (codepoint, Next { to, bytes, to_stranger, fit, lent }) = (self.codepoint, self.queue.pop_front()?);
        let Some((at, len)) = lent else {
            buf[..bytes.len()].copy_from_slice(&bytes);
            return Some((Transmit { to, len: bytes.len(), codepoint, to_stranger, fit }, None));
        };
        if let Some(region) = &self.region {
            region.write(0, &bytes[at..at + len]).unwrap();
        }
        let rest = [&bytes[..at], &bytes[at + len..]].concat();
        buf[..rest.len()].copy_from_slice(&rest);
        let memory = RegionRef { process: ProcessId(0), region: RegionId(0) };
        let transfer = Transfer { session: 1, operation: 1, rest: 0 };
        let lent = Lent { at, memory, offset: 0, len, by_reference: Some(transfer) };
        Some((Transmit { to, len: rest.len(), codepoint, to_stranger, fit }, Some(lent)))
    }

    fn try_send_inline(
        &mut self,
        _: Time,
        _: ConnectionId,
        _: &Direct<'_>,
        buf: &mut [u8],
        send: impl FnOnce(SocketAddr, Codepoint, &[u8]),
    ) -> Option<Transmit> {
        let (codepoint, Next { to, bytes, to_stranger, fit, .. }) = (self.codepoint, self.queue.pop_front()?);
        buf[..bytes.len()].copy_from_slice(&bytes);
        send(to, codepoint, &buf[..bytes.len()]);
        Some(Transmit { to, len: bytes.len(), codepoint, to_stranger, fit })
    }

    fn lent_region(&self, _: &Lent) -> Option<&Region> {
        self.region.as_ref().inspect(|_| self.loans.set(self.loans.get() + 1))
    }

    fn end_of_loan(&self) {
        self.loans.set(self.loans.get() - 1);
    }

    fn put_in(&mut self, lent: &Lent, buf: &mut [u8], len: usize) -> usize {
        buf.copy_within(lent.at..len, lent.at + lent.len);
        let into = &mut buf[lent.at..lent.at + lent.len];
        match &self.region {
            Some(region) => region.read(lent.offset, into).unwrap(),
            None => into.fill(0),
        }
        len + lent.len
    }

    fn set_path_mtu(&mut self, address: SocketAddr, bytes: usize) {
        self.path_sizes.push((address, bytes));
    }
}
