//! UDP sockets for the engine's datagrams: large buffers, segmentation offload, batched receives,
//! path size.
//!
//! Invariant: no call waits; what the kernel lacks (offload, large buffers) is found out once and
//! done without. Source: DESIGN §3 "Between nodes".
//!
//! Calls with a control message go to libc because rustix wraps neither `UDP_SEGMENT` / `UDP_GRO`
//! nor `recvmmsg`. Single datagrams go through rustix, whose calls are not points where a thread
//! can be cancelled: marking those costs time with each.

use crate::Region;
use crate::limits::{UDP_BATCH, UDP_DATAGRAM_BYTES_MAX, UDP_SEGMENTS_MAX};
use crate::pages::PagePipe;
use crate::region::PAGE_BYTES;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes for the control messages of one datagram: one `cmsghdr` with a 4-byte value, and room to
/// spare.
const CONTROL_BYTES: usize = 64;
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
const RECEIVE: RecvFlags = RecvFlags::DONTWAIT;
const LOOK: RecvFlags = RECEIVE.union(RecvFlags::PEEK);
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
    /// The one address that it sends to and hears, if it is connected.
    peer: Option<SocketAddr>,
    last: LastLook,
}

/// What the last look at a socket brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastLook {
    Nothing,
    /// Datagrams that are out of the kernel's queue.
    Taken,
    /// A datagram that has been given and is still at the head of the kernel's queue.
    Left,
}

impl UdpPort {
    /// Binds an address and asks for buffers of `buffer_bytes`.
    pub fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<UdpPort> {
        UdpPort::set_up(UdpSocket::bind(address)?, buffer_bytes)
    }

    /// A second socket on the same address, connected to `peer`: the kernel spares looking up the
    /// route of each datagram, and hands it what comes from there.
    pub fn connected(&self, peer: SocketAddr, buffer_bytes: usize) -> io::Result<UdpPort> {
        // Two sockets share an address if both agree at the time of binding. Afterwards the first
        // one alone decides again who may join it.
        set_option(&self.socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        let bound = bind_shared(self.local);
        set_option(&self.socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 0)?;
        let socket = bound?;
        // What strangers send between these two calls comes out of this socket as if the peer had
        // sent it: no more than any stranger could do by forging.
        socket.connect(peer)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 0)?;
        Ok(UdpPort { peer: Some(peer), ..UdpPort::set_up(socket, buffer_bytes)? })
    }

    fn set_up(socket: UdpSocket, buffer_bytes: usize) -> io::Result<UdpPort> {
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
        // must learn of paths that are smaller than they look.
        let (level, option) = path_size_option(&address);
        let _ = set_option(&socket, level, option, libc::IP_PMTUDISC_DO);
        Ok(UdpPort { socket: socket.into(), local: address, segments, joins, peer: None, last: LastLook::Taken })
    }

    /// Takes out of the kernel's queue what a [receive](ReceiveBatch::receive) has given and left
    /// there, as the next one would do. Until then the socket looks readable.
    #[inline]
    pub fn release(&mut self) {
        if self.last == LastLook::Left {
            self.last = LastLook::Taken;
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

    /// Whether it sends to one address only. Then the network's errors come back from the next
    /// call, whatever that sends.
    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
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
            let sent = match self.peer {
                Some(_) => net::send(&self.socket, bytes, SEND),
                None => net::sendto(&self.socket, bytes, SEND, &to),
            };
            return Ok(sent.map(drop)?);
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
        set_option(&self.socket, level, option, libc::IP_PMTUDISC_DO)?;
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
    /// If the range is not in the region.
    pub fn send_pages(
        &self,
        pipe: &mut PagePipe,
        to: SocketAddr,
        head: &[u8],
        (region, offset, len): (&Region, u64, usize),
        tail: &[u8],
    ) -> io::Result<()> {
        let sent = self.try_send_pages(pipe, to, head, (region, offset, len), tail);
        pipe.settle(&sent);
        sent
    }

    fn try_send_pages(
        &self,
        pipe: &mut PagePipe,
        to: SocketAddr,
        head: &[u8],
        (region, offset, len): (&Region, u64, usize),
        tail: &[u8],
    ) -> io::Result<()> {
        pipe.fill(region, offset, len)?;
        let piece = libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() };
        // Of a datagram that comes in parts the kernel computes the checksum at once, by reading
        // all of it, unless it may have to be cut up later.
        let uncut = self.segments.then_some(UDP_DATAGRAM_BYTES_MAX as u16);
        // SAFETY: the piece is `head`.
        unsafe { self.send_message(to, &mut [piece], uncut, SEND | SendFlags::MORE) }?;
        self.end_pages(pipe, to, len, tail)
    }

    /// Adds what is in the pipe, `len` bytes, and `tail` to the datagram that was begun, and lets
    /// it go.
    fn end_pages(&self, pipe: &PagePipe, to: SocketAddr, len: usize, tail: &[u8]) -> io::Result<()> {
        let ended = pipe.empty_into(&self.socket, len).and_then(|()| self.send(to, tail, tail.len().max(1)));
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
        let mut name = match self.peer {
            Some(peer) => {
                assert_eq!(peer, to, "a connected socket sends to its peer only");
                SocketName::none()
            }
            None => SocketName::new(to),
        };
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

/// Binds a socket that shares its address with others that agree to that.
fn bind_shared(address: SocketAddr) -> io::Result<UdpSocket> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    Ok(UdpSocket::from(socket))
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Buffers for a batch of received datagrams, used again and again.
pub struct ReceiveBatch {
    bytes: Vec<u8>,
    /// First byte used of `bytes`: see [`IN_PAGE_BYTES`].
    start: usize,
    controls: Vec<Control>,
    names: Vec<SocketName>,
    /// Length, sender and segment size of what came last.
    came: Vec<Came>,
}

/// One receive: several datagrams of the same sender if the kernel joined them.
#[derive(Clone, Copy)]
struct Came {
    len: usize,
    from: SocketAddr,
    segment_bytes: usize,
}

impl ReceiveBatch {
    /// Room for [`UDP_BATCH`] receives of up to 64 KiB.
    pub fn new() -> ReceiveBatch {
        let bytes = vec![0; UDP_BATCH * BUFFER_BYTES + PAGE_BYTES];
        let start = (PAGE_BYTES + IN_PAGE_BYTES - bytes.as_ptr().addr() % PAGE_BYTES) % PAGE_BYTES;
        ReceiveBatch {
            bytes,
            start,
            controls: vec![Control([0; CONTROL_BYTES]); UDP_BATCH],
            names: vec![SocketName::none(); UDP_BATCH],
            came: Vec::with_capacity(UDP_BATCH),
        }
    }

    /// Receives what is there, at most `max` (or [`UDP_BATCH`]) receives, and gives each datagram
    /// to `each`. When nothing is there it looks again, `looks` times in all. Returns the number of
    /// receives; 0 when nothing came. A single datagram that comes after a look in vain may be left
    /// in the kernel's queue until the next call or [`UdpPort::release`]: whoever waits for it need
    /// not wait until the kernel has freed its memory too.
    #[inline]
    pub fn receive(
        &mut self,
        port: &mut UdpPort,
        max: usize,
        looks: u32,
        mut each: impl FnMut(SocketAddr, &mut [u8]),
    ) -> io::Result<usize> {
        port.release();
        if max == 1 && !port.joins {
            return self.receive_one(port, looks, each);
        }
        let mut count = 0;
        for _ in 0..looks {
            count = self.fill(port, max.min(UDP_BATCH))?;
            if count > 0 {
                break;
            }
        }
        port.last = if count > 0 { LastLook::Taken } else { LastLook::Nothing };
        for i in 0..count {
            let came = self.came[i];
            let bytes = &mut self.bytes[self.start + i * BUFFER_BYTES..][..came.len];
            for datagram in bytes.chunks_mut(came.segment_bytes) {
                each(came.from, datagram);
            }
        }
        Ok(count)
    }

    /// The quickest call for a single datagram, with nothing around the system call of looks in
    /// vain: they decide how soon after its arrival it is found.
    #[inline]
    fn receive_one(
        &mut self,
        port: &mut UdpPort,
        looks: u32,
        mut each: impl FnMut(SocketAddr, &mut [u8]),
    ) -> io::Result<usize> {
        let buffer = &mut self.bytes[self.start..][..BUFFER_BYTES];
        let mut left = looks;
        // Of datagrams that come one after the other, each is taken with one call.
        let mut flags = if port.last == LastLook::Nothing { LOOK } else { RECEIVE };
        let mut from = port.peer;
        let came = loop {
            let came = match port.peer {
                Some(_) => net::recv(&port.socket, &mut *buffer, flags).map(|(len, _)| len),
                None => net::recvfrom(&port.socket, &mut *buffer, flags).map(|(len, _, sender)| {
                    from = sender.and_then(|sender| SocketAddr::try_from(sender).ok());
                    len
                }),
            };
            left = left.saturating_sub(1);
            if left == 0 || !matches!(came, Err(Errno::AGAIN)) {
                break came;
            }
            flags = LOOK;
        };
        port.last = match came {
            Ok(_) if flags == LOOK => LastLook::Left,
            Err(Errno::AGAIN) => LastLook::Nothing,
            _ => LastLook::Taken,
        };
        match (came, from) {
            (Ok(len), Some(from)) => each(from, &mut buffer[..len]),
            // Nobody to answer to.
            (Ok(_), None) => {}
            (Err(errno), _) => return nothing_there(errno),
        }
        Ok(1)
    }

    /// One system call.
    fn fill(&mut self, port: &UdpPort, max: usize) -> io::Result<usize> {
        self.came.clear();
        let max = max.clamp(1, UDP_BATCH);
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; UDP_BATCH];
        let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; UDP_BATCH];
        for i in 0..max {
            let buffer = &mut self.bytes[self.start + i * BUFFER_BYTES..][..BUFFER_BYTES];
            let iov = iovs[i].write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            // SAFETY: an all-zero mmsghdr is a valid value (null pointers, zero lengths).
            let header = &mut messages[i].write(unsafe { mem::zeroed() }).msg_hdr;
            header.msg_name = (&raw mut self.names[i].storage).cast();
            header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as u32;
            header.msg_iov = iov;
            header.msg_iovlen = 1;
            header.msg_control = self.controls[i].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: `max <= UDP_BATCH` headers are filled in; their pointers are to buffers of this
        // value and to locals, disjoint, and live through the call.
        let got = unsafe {
            libc::recvmmsg(
                port.socket.as_raw_fd(),
                messages.as_mut_ptr().cast(),
                max as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if got < 0 {
            let error = io::Error::last_os_error();
            return nothing_there(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        for (i, message) in messages.iter().enumerate().take(got as usize) {
            // SAFETY: the kernel filled at most `max` headers, all of which were written above.
            let message = unsafe { message.assume_init_ref() };
            let len = (message.msg_len as usize).min(BUFFER_BYTES);
            let segment_bytes = joined_segment(&message.msg_hdr).unwrap_or(len).max(1);
            // A sender whose address is of neither family cannot be answered: its datagram counts
            // as empty.
            let from = self.names[i].address();
            let none = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            self.came.push(Came {
                len: if from.is_some() { len } else { 0 },
                from: from.unwrap_or(none),
                segment_bytes,
            });
        }
        Ok(got as usize)
    }
}

impl Default for ReceiveBatch {
    fn default() -> Self {
        ReceiveBatch::new()
    }
}

/// Bytes of one receive buffer: the largest datagram, and the largest join of several.
const BUFFER_BYTES: usize = 1 << 16;

/// Where receive buffers start within their page. The kernel's payloads start near the beginning of
/// a page, and string instructions of some processors copy at a tenth of their speed between places
/// that are 1 to 63 bytes apart in their pages (see `copy.rs`): the middle is far from there.
const IN_PAGE_BYTES: usize = 2048;

/// Errors that earlier sends left on the socket (a peer that is not there) and empty queues are not
/// errors of a receive.
#[inline]
fn nothing_there(error: Errno) -> io::Result<usize> {
    match error {
        Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH => Ok(0),
        _ => Err(error.into()),
    }
}

/// Segment size, if the kernel joined several datagrams.
fn joined_segment(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled the control buffer and set its length; the walk stays inside,
    // and the value of UDP_GRO is an int.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_UDP && (*header).cmsg_type == libc::UDP_GRO {
                let size = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(size).ok().filter(|&n| n > 0);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
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

/// A socket address as the kernel writes and reads it.
#[derive(Clone, Copy)]
struct SocketName {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl SocketName {
    fn none() -> SocketName {
        // SAFETY: all-zero is a valid sockaddr_storage (family AF_UNSPEC).
        SocketName { storage: unsafe { mem::zeroed() }, len: 0 }
    }

    fn new(address: SocketAddr) -> SocketName {
        let mut name = SocketName::none();
        let at = &raw mut name.storage;
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: all-zero is a valid sockaddr_in.
                let mut sin: libc::sockaddr_in = unsafe { mem::zeroed() };
                sin.sin_family = libc::AF_INET as libc::sa_family_t;
                sin.sin_port = v4.port().to_be();
                sin.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                // SAFETY: sockaddr_storage is made to hold every address type: large enough and
                // aligned.
                unsafe { at.cast::<libc::sockaddr_in>().write(sin) };
                name.len = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                // SAFETY: all-zero is a valid sockaddr_in6.
                let mut sin6: libc::sockaddr_in6 = unsafe { mem::zeroed() };
                sin6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                sin6.sin6_port = v6.port().to_be();
                sin6.sin6_addr.s6_addr = v6.ip().octets();
                sin6.sin6_flowinfo = v6.flowinfo();
                sin6.sin6_scope_id = v6.scope_id();
                // SAFETY: as above.
                unsafe { at.cast::<libc::sockaddr_in6>().write(sin6) };
                name.len = mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        name
    }

    fn address(&self) -> Option<SocketAddr> {
        let at = &raw const self.storage;
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the storage is large enough and aligned for it, any bytes are a valid
                // sockaddr_in.
                let sin = unsafe { at.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(sin.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: as above for sockaddr_in6.
                let sin6 = unsafe { at.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
                let (port, flow, scope) = (u16::from_be(sin6.sin6_port), sin6.sin6_flowinfo, sin6.sin6_scope_id);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, flow, scope)))
            }
            _ => None,
        }
    }
}

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
mod tests {
    use super::*;
    use crate::limits::{SPLICE_FAILURES_MAX, SPLICED_PAGES_MAX};
    use std::time::{Duration, Instant};

    fn loopback() -> UdpPort {
        UdpPort::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1 << 20).unwrap()
    }

    fn receive_all(port: &mut UdpPort, count: usize) -> Vec<Vec<u8>> {
        let (mut batch, mut all) = (ReceiveBatch::new(), Vec::new());
        let end = Instant::now() + Duration::from_secs(20);
        while all.len() < count && Instant::now() < end {
            batch.receive(port, UDP_BATCH, 1, |_, bytes| all.push(bytes.to_vec())).unwrap();
        }
        all
    }

    #[test]
    fn datagrams_keep_their_borders_and_their_sender() {
        let (mut a, mut b) = (loopback(), loopback());
        a.send(b.local_addr(), b"one", 3).unwrap();
        a.send(b.local_addr(), b"three", 1400).unwrap();
        assert_eq!(receive_all(&mut b, 2), [b"one".to_vec(), b"three".to_vec()]);
        b.send(a.local_addr(), b"back", 4).unwrap();
        let mut from = None;
        while from.is_none() {
            ReceiveBatch::new().receive(&mut a, 1, 1, |sender, _| from = Some(sender)).unwrap();
        }
        assert_eq!(from, Some(b.local_addr()));
    }

    #[test]
    fn a_receive_looks_as_often_as_asked_and_finds_what_comes_meanwhile() {
        let (a, mut b, mut batch) = (loopback(), loopback(), ReceiveBatch::new());
        let mut connected = b.connected(a.local_addr(), 1 << 20).unwrap();
        let (stranger, to) = (loopback(), b.local_addr());
        for (hot, sender, max) in [(false, &stranger, 1), (false, &stranger, UDP_BATCH), (true, &a, 1)] {
            let port = if hot { &mut connected } else { &mut b };
            assert_eq!(batch.receive(port, max, 1_000, |_, _| panic!("nothing was sent")).unwrap(), 0);
            let mut came = Vec::new();
            let count = std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(5));
                    sender.send(to, b"late", 4).unwrap();
                });
                // So many looks take seconds: one call finds it.
                batch.receive(port, max, 10_000_000, |_, bytes| came.extend_from_slice(bytes)).unwrap()
            });
            assert_eq!((count, &came[..]), (1, &b"late"[..]));
        }
    }

    #[test]
    fn a_datagram_that_was_awaited_leaves_the_queue_later_and_comes_once() {
        let (a, mut b, mut batch) = (loopback(), loopback(), ReceiveBatch::new());
        let mut connected = b.connected(a.local_addr(), 1 << 20).unwrap();
        let (stranger, to) = (loopback(), b.local_addr());
        let queued = |port: &UdpPort| rustix::io::ioctl_fionread(port).unwrap();
        for (hot, sender, max) in [(false, &stranger, 1), (false, &stranger, UDP_BATCH), (true, &a, 1)] {
            let port = if hot { &mut connected } else { &mut b };
            let mut receive = |port: &mut UdpPort, max| {
                let mut came = Vec::new();
                batch.receive(port, max, 1, |_, bytes| came.push(bytes.to_vec())).unwrap();
                came
            };
            assert!(receive(port, 1).is_empty(), "nothing was sent");
            sender.send(to, b"awaited", 7).unwrap();
            sender.send(to, b"next", 4).unwrap();
            assert_eq!(receive(port, 1), [b"awaited"]);
            assert_eq!(queued(port), 7, "still at the head of the queue");
            assert_eq!(receive(port, max), [b"next"], "at most {max} at once");
            assert_eq!(queued(port), 0, "one that comes right behind another is taken with one call");
            assert!(receive(port, max).is_empty());
            sender.send(to, b"", 1).unwrap();
            sender.send(to, b"more", 4).unwrap();
            assert_eq!(receive(port, 1), [b""]);
            port.release();
            port.release();
            assert_eq!(queued(port), 4, "a release takes what was given, and nothing else");
            assert_eq!(receive(port, 1), [b"more"]);
        }
    }

    #[test]
    fn memory_of_a_region_goes_out_from_its_place() {
        let (a, mut b) = (loopback(), loopback());
        let region = Region::create(70_000).unwrap();
        let bytes: Vec<u8> = (0..50_000u32).map(|i| (i / 7) as u8).collect();
        region.write(4000, &bytes).unwrap();
        a.send_around(b.local_addr(), b"head", (&region, 4000, 50_000), b"tail").unwrap();
        assert_eq!(receive_all(&mut b, 1), [[b"head", &bytes[..], b"tail"].concat()]);
    }

    #[test]
    fn pages_of_a_region_go_out_by_reference() {
        let (a, mut b) = (loopback(), loopback());
        let (hot, mut pipe) = (a.connected(b.local_addr(), 1 << 20).unwrap(), PagePipe::new());
        let region = Region::create(200_000).unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
        region.write(0, &bytes).unwrap();
        let full = SPLICED_PAGES_MAX * PAGE_BYTES;
        // Whole pages, parts of pages at either end, a single byte, all that fits with a head and a
        // tail.
        let ranges = [(0, 61_440), (4_000, 57_000), (8_191, 1), (4_096, 61_000), (1, 8_192), (3, full - 100)];
        for port in [&a, &hot] {
            for (offset, len) in ranges {
                assert!(pipe.takes(offset as u64, len), "{len} bytes at {offset}");
                port.send_pages(&mut pipe, b.local_addr(), b"head", (&region, offset as u64, len), b"tail").unwrap();
                port.send(b.local_addr(), b"next", 4).unwrap();
                let expected = [b"head", &bytes[offset..offset + len], b"tail"].concat();
                let came = receive_all(&mut b, 2);
                assert!(came == [expected, b"next".to_vec()], "{len} bytes at {offset}");
            }
        }
        assert!(!pipe.takes(1, full), "one page more");
        // What the memory holds when it is received, which shows that nothing copied it before.
        a.send_pages(&mut pipe, b.local_addr(), b"", (&region, 0, 8_192), b"t").unwrap();
        region.write(0, b"late").unwrap();
        let came = receive_all(&mut b, 1);
        assert_eq!((&came[0][..4], came[0].len()), (&b"late"[..], 8_193));
    }

    #[test]
    fn a_datagram_of_pages_that_fails_leaves_nothing_behind() {
        let (a, mut b) = (loopback(), loopback());
        let (to, mut pipe, region) = (b.local_addr(), PagePipe::new(), Region::create(1 << 20).unwrap());
        // Larger than a datagram can be.
        for round in 0..SPLICE_FAILURES_MAX {
            assert!(pipe.takes(0, 60_000), "round {round}");
            a.send_pages(&mut pipe, to, &[1; 10_000], (&region, 0, 60_000), b"tail").unwrap_err();
        }
        assert!(!pipe.takes(0, 60_000), "a kernel that always refuses is not asked for ever");
        // Pages that went missing: what was begun ends there.
        let mut piece = libc::iovec { iov_base: b"begun".as_ptr().cast_mut().cast(), iov_len: 5 };
        // SAFETY: the piece is a literal.
        unsafe { a.send_message(to, std::slice::from_mut(&mut piece), None, SEND | SendFlags::MORE) }.unwrap();
        a.end_pages(&PagePipe::new(), to, 100, b"tail").unwrap_err();
        a.send(to, b"sound", 5).unwrap();
        // What was cut short need not arrive.
        let mut came = Vec::new();
        while came.last().is_none_or(|last: &Vec<u8>| last != b"sound") {
            let next = receive_all(&mut b, 1);
            assert!(!next.is_empty() && came.len() < 20, "{came:?}");
            came.extend(next);
        }
        assert!(came.iter().all(|datagram| datagram.len() <= 10_000), "cut short: {came:?}");
        assert!(came.iter().any(|datagram| datagram == b"begun"), "{came:?}");
    }

    #[test]
    fn one_send_carries_several_datagrams() {
        let (a, mut b) = (loopback(), loopback());
        if !a.sends_segments() {
            eprintln!("skipped: this kernel has no UDP segmentation offload");
            return;
        }
        let bytes: Vec<u8> = (0..10_500u32).map(|i| i as u8).collect();
        // A port that loopback alone reaches gets them one by one, another one joined.
        let mut joining = UdpPort::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), 1 << 20).unwrap();
        for port in [&mut b, &mut joining] {
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port.local_addr().port()));
            a.send(to, &bytes, 1000).unwrap();
            let all = receive_all(port, 11);
            assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [vec![1000; 10], vec![500]].concat());
            assert_eq!(all.concat(), bytes);
        }
    }

    #[test]
    fn the_largest_datagram_passes_on_loopback() {
        let (a, mut b) = (loopback(), loopback());
        let payload = way_to(b.local_addr()).unwrap().payload_bytes;
        assert!(payload > 1400, "loopback carries {payload} bytes");
        a.send(b.local_addr(), &vec![7; payload], payload).unwrap();
        assert_eq!(receive_all(&mut b, 1), [vec![7; payload]]);
        assert!(b.receive_buffer_bytes() > 0);
    }

    #[test]
    fn a_connected_socket_takes_over_what_its_peer_sends() {
        let (mut a, mut b, other) = (loopback(), loopback(), loopback());
        let mut hot = a.connected(b.local_addr(), 1 << 20).unwrap();
        assert_eq!(hot.local_addr(), a.local_addr());
        b.send(a.local_addr(), b"from the peer", 20).unwrap();
        other.send(a.local_addr(), b"from another", 20).unwrap();
        assert_eq!(receive_all(&mut hot, 1), [b"from the peer".to_vec()]);
        assert_eq!(receive_all(&mut a, 1), [b"from another".to_vec()]);
        hot.send(b.local_addr(), b"back", 20).unwrap();
        let region = Region::create(4096).unwrap();
        hot.send_around(b.local_addr(), b"h", (&region, 0, 2), b"t").unwrap();
        assert_eq!(receive_all(&mut b, 2), [b"back".to_vec(), b"h\0\0t".to_vec()]);
        drop(hot);
        b.send(a.local_addr(), b"again", 20).unwrap();
        assert_eq!(receive_all(&mut a, 1), [b"again".to_vec()]);
        // Nobody else can join the address in this way.
        assert!(bind_shared(a.local_addr()).is_err());
    }

    #[test]
    fn addresses_of_both_families_survive() {
        for text in ["1.2.3.4:5", "[2001:db8::1%7]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketName::new(address).address(), Some(address));
        }
        assert_eq!(SocketName::none().address(), None);
    }

    #[test]
    fn a_peer_that_is_not_there_is_no_error_of_a_receive() {
        let mut a = loopback();
        let gone = loopback().local_addr();
        let mut batch = ReceiveBatch::new();
        for _ in 0..20 {
            let _ = a.send(gone, b"x", 1);
            assert_eq!(batch.receive(&mut a, 4, 1, |_, _| {}).unwrap(), 0);
        }
    }
}
