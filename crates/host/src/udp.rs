//! UDP sockets for the engine's datagrams: large buffers, segmentation offload, path size.
//!
//! Invariant: no call waits; what the kernel lacks (offload, large buffers) is found out once and
//! done without. Source: udp(7).
//!
//! Calls with a control message go to libc because rustix does not wrap `UDP_SEGMENT` and
//! `UDP_GRO`. Single datagrams go through rustix, whose calls are not points where a thread
//! can be cancelled: marking those costs time with each.

mod name;
mod payload;
mod receive;

pub use payload::PayloadBuffer;
pub use receive::{HEAD_BYTES, Head, ReceiveBuffer};

use crate::Region;
use crate::limits::{UDP_DATAGRAM_BYTES_MAX, UDP_SEGMENTS_MAX};
use crate::pages::{Ahead, PagePipe};
use name::SocketName;
use rustix::net::{self, RecvFlags, SendFlags};
use std::cell::Cell;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes for the control messages of one datagram: two `cmsghdr` with a value of 4 bytes at most,
/// and room to spare.
const CONTROL_BYTES: usize = 64;
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
const RECEIVE: RecvFlags = RecvFlags::DONTWAIT;
const PEEK: RecvFlags = RECEIVE.union(RecvFlags::PEEK);
/// IPv4 and UDP headers.
const HEADERS_V4: usize = 28;
/// IPv6 and UDP headers.
const HEADERS_V6: usize = 48;

/// A UDP socket.
#[derive(Debug)]
pub struct UdpPort {
    socket: OwnedFd,
    local: SocketAddr,
    /// Whether the kernel cuts one send into several datagrams.
    segments: bool,
    /// Whether the kernel joins several datagrams into one receive.
    joins: bool,
    /// Whether datagrams that come have their traffic class with them, and what those that go have;
    /// none: this socket has nothing to do with classes.
    class: Option<Cell<u8>>,
    peek: PeekState,
}

/// What the last poll of a socket brought, and whether it is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeekState {
    Empty,
    /// Datagrams that are out of the kernel's queue.
    Taken,
    /// A datagram that has been given and is still at the head of the kernel's queue.
    Left,
}

impl UdpPort {
    /// Binds an address and asks for buffers of `buffer_bytes`.
    pub fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<UdpPort> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let bytes = i32::try_from(buffer_bytes).unwrap_or(i32::MAX);
        // What was not granted shows in `buffer_bytes`. The forced variants need a privilege, and
        // then ignore the system-wide maximum.
        for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
            if set_option(&socket, libc::SOL_SOCKET, forced, bytes).is_err() {
                let _ = set_option(&socket, libc::SOL_SOCKET, plain, bytes);
            }
        }
        // Without offload for receives, several datagrams simply come one by one. On loopback
        // datagrams can be as large as a receive anyway, and the plain call is the quicker one.
        let joins = !address.ip().is_loopback() && set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let segments = get_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        // Datagrams are never cut up by IP: a lost fragment would lose them all, and the engine
        // must learn of paths that are smaller than they look. It finds out by probes, so what the
        // kernel believes of a path, maybe by a lie, keeps none back; only the interface does.
        let (level, option) = path_size_option(&address);
        let _ = set_option(&socket, level, option, libc::IP_PMTUDISC_PROBE);
        // No queue of loopback marks anything, and the plain call tells no class.
        let class = (joins && tell_classes(&socket, &address)).then(|| Cell::new(0));
        Ok(UdpPort { socket: socket.into(), local: address, segments, joins, class, peek: PeekState::Taken })
    }

    /// Takes out of the kernel's queue what a [receive](ReceiveBuffer::receive) has given and left
    /// there, as the next one would do. Until then the socket looks readable.
    #[inline]
    pub fn release(&mut self) {
        if self.peek == PeekState::Left {
            self.peek = PeekState::Taken;
            // It is there, and this socket has no other reader. Should it stay all the same, it is
            // given once more, as datagrams may be.
            let _ = net::recv(&self.socket, &mut [0u8; 0], RECEIVE);
        }
    }

    /// The address bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Bytes of the receive buffer, as the kernel counts them (its own bookkeeping included, about
    /// half).
    pub fn receive_buffer_bytes(&self) -> usize {
        get_option(&self.socket, libc::SOL_SOCKET, libc::SO_RCVBUF).map_or(0, |n| n as usize)
    }

    /// Bytes that wait to be sent, and how many may, both as the kernel counts them. What goes to
    /// an address of this wire that nobody has waits for seconds.
    pub fn send_queue_bytes(&self) -> io::Result<(usize, usize)> {
        // As `linux/sock_diag.h` has them.
        const WAITING: usize = 2;
        const MOST: usize = 3;
        const NUMBERS: usize = 9;
        let mut numbers = [0u32; NUMBERS];
        let mut len = mem::size_of_val(&numbers) as libc::socklen_t;
        let (fd, into) = (self.socket.as_raw_fd(), numbers.as_mut_ptr().cast());
        // SAFETY: the pointers are to locals; the kernel writes at most `len` bytes.
        let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, into, &raw mut len) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok((numbers[WAITING] as usize, numbers[MOST] as usize)) }
    }

    /// Whether one send can carry several datagrams.
    pub fn sends_segments(&self) -> bool {
        self.segments
    }

    /// Whether each receive gives one datagram, so that one can be [looked at](ReceiveBuffer::peek)
    /// before it is taken.
    #[inline]
    pub fn gives_single(&self) -> bool {
        !self.joins
    }

    /// Whether receives tell the traffic class of datagrams, and sends can have one.
    pub fn has_classes(&self) -> bool {
        self.class.is_some()
    }

    /// What is sent from now on has this traffic class, or none if the kernel does not let it. A
    /// call costs a system call if that is a change.
    ///
    /// ```
    /// let port = vmmc_host::udp::UdpPort::bind("0.0.0.0:0".parse().unwrap(), 1 << 16)?;
    /// port.set_class(0b10);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn set_class(&self, class: u8) {
        if let Some(before) = self.class.as_ref().filter(|before| before.get() != class) {
            before.set(class);
            self.change_class(class);
        }
    }

    #[cold]
    fn change_class(&self, class: u8) {
        let value = i32::from(class);
        // Who may not say it sends without: the other side sees that it does not come.
        let _ = set_option(&self.socket, libc::IPPROTO_IP, libc::IP_TOS, value);
        if self.local.is_ipv6() {
            let _ = set_option(&self.socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, value);
        }
    }

    /// Sends `bytes` as datagrams of `segment_bytes` each (the last may be shorter).
    ///
    /// # Panics
    /// If `segment_bytes` is 0, or several segments are asked for where
    /// [`sends_segments`](Self::sends_segments) is false or that exceed the bounds of
    /// [`crate::limits`].
    pub fn send(&self, to: SocketAddr, bytes: &[u8], segment_bytes: usize) -> io::Result<()> {
        assert!(segment_bytes > 0 && bytes.len() <= UDP_DATAGRAM_BYTES_MAX, "send of {} bytes", bytes.len());
        let several = bytes.len() > segment_bytes;
        assert!(!several || self.segments && bytes.len().div_ceil(segment_bytes) <= UDP_SEGMENTS_MAX);
        if !several {
            return Ok(net::sendto(&self.socket, bytes, SEND, &to).map(drop)?);
        }
        let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the piece is `bytes`.
        unsafe { self.send_message(to, &mut [piece], Some(segment_bytes as u16), SEND) }
    }

    /// Sends a datagram that is larger than the path to there is taken to be: in pieces, which the
    /// kernel there puts together.
    pub fn send_in_pieces(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        let (level, option) = path_size_option(&self.local);
        set_option(&self.socket, level, option, libc::IP_PMTUDISC_DONT)?;
        let sent = self.send(to, bytes, bytes.len().max(1));
        set_option(&self.socket, level, option, libc::IP_PMTUDISC_PROBE)?;
        sent
    }

    /// Sends one datagram: `head`, then memory of a region straight from its place, then `tail`.
    /// What goes out is what the memory holds while the kernel copies it.
    ///
    /// # Panics
    /// If the range is not in the region.
    pub fn send_around(
        &self,
        to: SocketAddr,
        head: &[u8],
        (region, offset, len): (&Region, u64, usize),
        tail: &[u8],
    ) -> io::Result<()> {
        region.check(offset, len as u64).expect("the caller looked the range up");
        let piece = |base: *const u8, len: usize| libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len };
        let memory = region.as_ptr().wrapping_add(offset as usize);
        let mut iovs = [piece(head.as_ptr(), head.len()), piece(memory, len), piece(tail.as_ptr(), tail.len())];
        // SAFETY: the pieces are `head`, `tail`, and a range of a region that was checked above.
        unsafe { self.send_message(to, &mut iovs, None, SEND) }
    }

    /// As [`send_around`](Self::send_around), but the kernel takes references to the pages of the
    /// region instead of a copy, through `pipe`: what arrives is what the memory holds when the
    /// receiver takes the datagram. The caller asks the pipe first whether it
    /// [takes](PagePipe::takes) the range. After an error the datagram may have gone out cut short.
    ///
    /// # Panics
    /// If the range, with what may be taken ahead, is not in the region.
    pub fn send_pages(
        &self,
        pipe: &mut PagePipe,
        to: SocketAddr,
        head: &[u8],
        memory: (&Region, u64, usize),
        ahead: Ahead,
        tail: &[u8],
    ) -> io::Result<()> {
        let sent = self.try_send_pages(pipe, to, head, memory, ahead, tail);
        pipe.record_outcome(&sent);
        sent
    }

    fn try_send_pages(
        &self,
        pipe: &mut PagePipe,
        to: SocketAddr,
        head: &[u8],
        (region, offset, len): (&Region, u64, usize),
        ahead: Ahead,
        tail: &[u8],
    ) -> io::Result<()> {
        pipe.fill(region, offset, len, ahead)?;
        let piece = libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() };
        // Of a datagram that comes in parts the kernel computes the checksum at once, by reading
        // all of it, unless it may have to be cut up later.
        let uncut = self.segments.then_some(UDP_DATAGRAM_BYTES_MAX as u16);
        // SAFETY: the piece is `head`.
        unsafe { self.send_message(to, &mut [piece], uncut, SEND | SendFlags::MORE) }?;
        self.end_pages(pipe, to, len, tail)
    }

    /// Adds what comes next out of the pipe, `len` bytes, and `tail` to the datagram that was
    /// begun, and lets it go.
    fn end_pages(&self, pipe: &mut PagePipe, to: SocketAddr, len: usize, tail: &[u8]) -> io::Result<()> {
        let moved = pipe.empty_into(&self.socket, len, !tail.is_empty());
        let ended = moved.and_then(|()| if tail.is_empty() { Ok(()) } else { self.send(to, tail, tail.len()) });
        if ended.is_err() {
            // Whatever the socket still holds back must not become part of the next datagram. If it
            // holds nothing, this is an empty one.
            let _ = self.send(to, &[], 1);
        }
        ended
    }

    /// Sends pieces of memory as one datagram, or as several of `segment_bytes` each.
    ///
    /// # Safety
    /// The pieces can be read for the whole call; others may write them meanwhile.
    unsafe fn send_message(
        &self,
        to: SocketAddr,
        pieces: &mut [libc::iovec],
        segment_bytes: Option<u16>,
        flags: SendFlags,
    ) -> io::Result<()> {
        let mut name = SocketName::new(to);
        let mut control = Control([0; CONTROL_BYTES]);
        // SAFETY: an all-zero msghdr is a valid value (null pointers, zero lengths).
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = (&raw mut name.storage).cast();
        message.msg_namelen = name.len;
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        if let Some(segment_bytes) = segment_bytes {
            message.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: CMSG_SPACE only computes.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(2) } as _;
            // SAFETY: the control buffer is aligned (see `Control`) and larger than CMSG_SPACE(2),
            // so the first header and its two bytes of data lie in it.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_UDP;
                (*header).cmsg_type = libc::UDP_SEGMENT;
                (*header).cmsg_len = libc::CMSG_LEN(2) as _;
                libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment_bytes);
            }
        }
        // SAFETY: all pointers in `message` are to locals and to the pieces, which the caller
        // vouches for; the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, flags.bits() as i32) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What the kernel knows now of the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// UDP payload bytes that fit without being cut up.
    pub payload_bytes: usize,
    /// The address of this machine that datagrams to there come from, unless a socket says
    /// otherwise.
    pub source: IpAddr,
}

/// Level and name of the option that says what path sizes are good for; its values are the same for
/// both families.
fn path_size_option(address: &SocketAddr) -> (i32, i32) {
    match address {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    }
}

/// Asks for the traffic class of each datagram that comes. A socket of IPv6 may have some of IPv4
/// as well, if it can.
fn tell_classes(socket: &impl AsRawFd, address: &SocketAddr) -> bool {
    let old = set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1).is_ok();
    match address {
        SocketAddr::V4(_) => old,
        SocketAddr::V6(_) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1).is_ok(),
    }
}

/// Asks the kernel for the way to an address.
pub fn way_to(to: SocketAddr) -> io::Result<Way> {
    let (any, level, option, headers) = match to {
        SocketAddr::V4(_) => (SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), libc::IPPROTO_IP, libc::IP_MTU, HEADERS_V4),
        SocketAddr::V6(_) => {
            (SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), libc::IPPROTO_IPV6, libc::IPV6_MTU, HEADERS_V6)
        }
    };
    let probe = UdpSocket::bind(any)?;
    probe.connect(to)?;
    let mtu = get_option(&probe, level, option)?;
    let payload_bytes = (mtu.max(0) as usize).saturating_sub(headers).min(UDP_DATAGRAM_BYTES_MAX);
    Ok(Way { payload_bytes, source: probe.local_addr()?.ip() })
}

/// Aligned for `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

fn set_option(socket: &impl AsRawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to a local int of the stated length, which the kernel only reads.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get_option(socket: &impl AsRawFd, level: i32, option: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointers are to locals; the kernel writes at most `len` bytes.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
