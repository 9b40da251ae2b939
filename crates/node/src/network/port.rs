//! What a network needs from its two sides: a socket below, a station above.
//!
//! Invariant: the node itself has one kind of each, [`UdpPort`] and [`Station`], and calls them
//! directly. The traits exist so that a test can be the kernel that refuses, and the engine that
//! has just this to send.

use crate::station::{ConnectionId, Station};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use vmmc_host::Region;
use vmmc_host::pages::{Ahead, PagePipe};
use vmmc_host::udp::{Head, ReceiveBuffer, UdpPort, Way, way_to};
use vmmc_host::wait::Direct;
use vmmc_nic::{Codepoint, Lent, Placement, Time, Transmit};

/// A UDP socket; see [`UdpPort`] for what each call promises.
pub(crate) trait Port: AsFd + Sized {
    /// Buffers for receives.
    type Received: Default;

    fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<Self>;
    fn local_addr(&self) -> SocketAddr;
    fn sends_segments(&self) -> bool;
    fn receive_buffer_bytes(&self) -> usize;
    fn send_queue_bytes(&self) -> io::Result<(usize, usize)>;
    fn has_codepoints(&self) -> bool;
    fn set_codepoint(&self, codepoint: Codepoint);
    fn release(&mut self);
    fn receive(
        &mut self,
        buffer: &mut Self::Received,
        polls: u32,
        each: impl FnMut(SocketAddr, Codepoint, &mut [u8]),
    ) -> io::Result<bool>;
    fn gives_single(&self) -> bool;
    fn peek(&mut self, buffer: &mut Self::Received, polls: u32) -> io::Result<Option<Head>>;
    fn head<'b>(buffer: &'b mut Self::Received, head: &Head) -> &'b mut [u8];
    fn take<'b>(
        &mut self,
        buffer: &'b mut Self::Received,
        head: &Head,
        place: Option<(usize, (&Region, u64, usize))>,
    ) -> io::Result<&'b mut [u8]>;
    fn send(&self, to: SocketAddr, bytes: &[u8], segment_bytes: usize) -> io::Result<()>;
    fn send_in_pieces(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<()>;
    fn send_around(&self, to: SocketAddr, head: &[u8], memory: (&Region, u64, usize), tail: &[u8]) -> io::Result<()>;
    fn send_pages(
        &self,
        pipe: &mut PagePipe,
        to: SocketAddr,
        head: &[u8],
        memory: (&Region, u64, usize),
        ahead: Ahead,
        tail: &[u8],
    ) -> io::Result<()>;
    /// What the kernel knows of the way to an address.
    fn way_to(to: SocketAddr) -> io::Result<Way>;
}

impl Port for UdpPort {
    type Received = ReceiveBuffer;

    fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<UdpPort> {
        UdpPort::bind(address, buffer_bytes)
    }

    fn local_addr(&self) -> SocketAddr {
        UdpPort::local_addr(self)
    }

    fn sends_segments(&self) -> bool {
        UdpPort::sends_segments(self)
    }

    fn receive_buffer_bytes(&self) -> usize {
        UdpPort::receive_buffer_bytes(self)
    }

    fn send_queue_bytes(&self) -> io::Result<(usize, usize)> {
        UdpPort::send_queue_bytes(self)
    }

    fn has_codepoints(&self) -> bool {
        UdpPort::has_classes(self)
    }

    #[inline]
    fn set_codepoint(&self, codepoint: Codepoint) {
        UdpPort::set_class(self, codepoint.bits());
    }

    #[inline]
    fn release(&mut self) {
        UdpPort::release(self);
    }

    #[inline]
    fn receive(
        &mut self,
        buffer: &mut ReceiveBuffer,
        polls: u32,
        mut each: impl FnMut(SocketAddr, Codepoint, &mut [u8]),
    ) -> io::Result<bool> {
        buffer.receive(self, polls, |from, class, datagram| each(from, Codepoint::of_class(class), datagram))
    }

    #[inline]
    fn gives_single(&self) -> bool {
        UdpPort::gives_single(self)
    }

    #[inline]
    fn peek(&mut self, buffer: &mut ReceiveBuffer, polls: u32) -> io::Result<Option<Head>> {
        buffer.peek(self, polls)
    }

    #[inline]
    fn head<'b>(buffer: &'b mut ReceiveBuffer, head: &Head) -> &'b mut [u8] {
        buffer.head(head)
    }

    fn take<'b>(
        &mut self,
        buffer: &'b mut ReceiveBuffer,
        head: &Head,
        place: Option<(usize, (&Region, u64, usize))>,
    ) -> io::Result<&'b mut [u8]> {
        buffer.take(self, head, place)
    }

    #[inline]
    fn send(&self, to: SocketAddr, bytes: &[u8], segment_bytes: usize) -> io::Result<()> {
        UdpPort::send(self, to, bytes, segment_bytes)
    }

    fn send_in_pieces(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        UdpPort::send_in_pieces(self, to, bytes)
    }

    #[inline]
    fn send_around(&self, to: SocketAddr, head: &[u8], memory: (&Region, u64, usize), tail: &[u8]) -> io::Result<()> {
        UdpPort::send_around(self, to, head, memory, tail)
    }

    #[inline]
    fn send_pages(
        &self,
        pipe: &mut PagePipe,
        to: SocketAddr,
        head: &[u8],
        memory: (&Region, u64, usize),
        ahead: Ahead,
        tail: &[u8],
    ) -> io::Result<()> {
        UdpPort::send_pages(self, pipe, to, head, memory, ahead, tail)
    }

    fn way_to(to: SocketAddr) -> io::Result<Way> {
        way_to(to)
    }
}

/// The side that has datagrams to send and takes those that come; see [`Station`] for what each
/// call promises.
pub(crate) trait Traffic {
    fn handle_datagram(&mut self, now: Time, from: SocketAddr, codepoint: Codepoint, datagram: &mut [u8]);
    fn may_place(&self) -> bool;
    fn placement(&mut self, from: SocketAddr, head: &[u8], len: usize) -> Option<Placement>;
    fn placement_region(&self, placement: &Placement) -> Option<&Region>;
    fn handle_placed_datagram(&mut self, now: Time, from: SocketAddr, datagram: &mut [u8], placement: &Placement);
    fn poll_transmit_lending(&mut self, now: Time, buf: &mut [u8]) -> Option<(Transmit, Option<Lent>)>;
    fn try_send_inline(
        &mut self,
        now: Time,
        from: ConnectionId,
        what: &Direct<'_>,
        buf: &mut [u8],
        send: impl FnOnce(SocketAddr, Codepoint, &[u8]),
    ) -> Option<Transmit>;
    fn lent_region(&self, lent: &Lent) -> Option<&Region>;
    fn end_of_loan(&self);
    fn put_in(&mut self, lent: &Lent, buf: &mut [u8], len: usize) -> usize;
    fn set_path_mtu(&mut self, address: SocketAddr, bytes: usize);
}

impl Traffic for Station {
    #[inline]
    fn handle_datagram(&mut self, now: Time, from: SocketAddr, codepoint: Codepoint, datagram: &mut [u8]) {
        Station::handle_datagram(self, now, from, codepoint, datagram);
    }

    #[inline]
    fn may_place(&self) -> bool {
        Station::may_place(self)
    }

    fn placement(&mut self, from: SocketAddr, head: &[u8], len: usize) -> Option<Placement> {
        Station::placement(self, from, head, len)
    }

    fn placement_region(&self, placement: &Placement) -> Option<&Region> {
        Station::placement_region(self, placement)
    }

    fn handle_placed_datagram(&mut self, now: Time, from: SocketAddr, datagram: &mut [u8], placement: &Placement) {
        Station::handle_placed_datagram(self, now, from, datagram, placement);
    }

    #[inline]
    fn poll_transmit_lending(&mut self, now: Time, buf: &mut [u8]) -> Option<(Transmit, Option<Lent>)> {
        Station::poll_transmit_lending(self, now, buf)
    }

    #[inline]
    fn try_send_inline(
        &mut self,
        now: Time,
        from: ConnectionId,
        what: &Direct<'_>,
        buf: &mut [u8],
        send: impl FnOnce(SocketAddr, Codepoint, &[u8]),
    ) -> Option<Transmit> {
        Station::try_send_inline(self, now, from, what, buf, send)
    }

    fn lent_region(&self, lent: &Lent) -> Option<&Region> {
        Station::lent_region(self, lent)
    }

    fn end_of_loan(&self) {
        Station::end_of_loan(self);
    }

    fn put_in(&mut self, lent: &Lent, buf: &mut [u8], len: usize) -> usize {
        Station::put_in(self, lent, buf, len)
    }

    fn set_path_mtu(&mut self, address: SocketAddr, bytes: usize) {
        Station::set_path_mtu(self, address, bytes);
    }
}
