//! Receives.
//!
//! Invariant: no call waits, and none gives more bytes than the kernel said have come.

use super::name::SocketName;
use super::{CONTROL_BYTES, Control, PEEK, PayloadBuffer, PeekState, RECEIVE, UdpPort};
use crate::Region;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;

/// A buffer for received datagrams, used again and again.
pub struct ReceiveBuffer {
    bytes: PayloadBuffer,
    control: Control,
    name: SocketName,
}

/// What is known of a datagram that is still in the kernel's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its sender; none: it has no address that could be answered.
    pub from: Option<SocketAddr>,
    /// All of its bytes.
    pub len: usize,
}

/// One receive: several datagrams of the same sender if the kernel joined them.
struct Came {
    len: usize,
    from: SocketAddr,
    told: Told,
}

/// What control messages tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    /// Bytes of each datagram, if the kernel joined several.
    segment_bytes: Option<usize>,
    /// Traffic class of all of them: the kernel joins only those that have the same.
    class: u8,
}

impl ReceiveBuffer {
    /// Room for 64 KiB: the largest datagram, and the largest join of several.
    pub fn new() -> ReceiveBuffer {
        ReceiveBuffer {
            bytes: PayloadBuffer::new(BUFFER_BYTES),
            control: Control([0; CONTROL_BYTES]),
            name: SocketName::none(),
        }
    }

    /// Receives once and gives each datagram of that to `each`, with its sender and its traffic
    /// class: 0 where the socket has [none](UdpPort::has_classes). When nothing is there it polls
    /// again, `polls` times in all; false: nothing came. A single datagram that comes after an
    /// empty poll may be left in the kernel's queue until the next call or [`UdpPort::release`]:
    /// the caller that waits for it need not wait until the kernel has freed its memory too.
    #[inline]
    pub fn receive(
        &mut self,
        port: &mut UdpPort,
        polls: u32,
        mut each: impl FnMut(SocketAddr, u8, &mut [u8]),
    ) -> io::Result<bool> {
        port.release();
        if !port.joins {
            return self.receive_one(port, polls, each);
        }
        let mut came = None;
        for _ in 0..polls {
            came = self.receive_joined(port)?;
            if came.is_some() {
                break;
            }
        }
        port.peek = if came.is_some() { PeekState::Taken } else { PeekState::Empty };
        let Some(came) = came else { return Ok(false) };
        let segment_bytes = came.told.segment_bytes.unwrap_or(came.len).max(1);
        for datagram in self.bytes[..came.len].chunks_mut(segment_bytes) {
            each(came.from, came.told.class, datagram);
        }
        Ok(true)
    }

    /// Looks at the datagram at the head of the kernel's queue, whose first [`HEAD_BYTES`] are in
    /// [`head`](Self::head) then; [`take`](Self::take) takes it. When nothing is there it polls
    /// again, `polls` times in all. None: nothing came.
    ///
    /// # Panics
    /// If the kernel joins datagrams for this socket: see [`UdpPort::gives_single`].
    #[inline]
    pub fn peek(&mut self, port: &mut UdpPort, polls: u32) -> io::Result<Option<Head>> {
        assert!(port.gives_single(), "a join of several has no head");
        port.release();
        let head = &mut self.bytes[..HEAD_BYTES];
        let mut left = polls;
        let came = loop {
            let came = net::recvfrom(&port.socket, &mut *head, PEEK | RecvFlags::TRUNC);
            left = left.saturating_sub(1);
            if left == 0 || !matches!(came, Err(Errno::AGAIN)) {
                break came;
            }
        };
        let (_, len, from) = match came {
            Ok(came) => came,
            Err(errno) => {
                port.peek = if errno == Errno::AGAIN { PeekState::Empty } else { PeekState::Taken };
                return nothing_there(errno).map(|()| None);
            }
        };
        port.peek = PeekState::Left;
        let from = from.and_then(|from| SocketAddr::try_from(from).ok());
        Ok(Some(Head { from, len: len.min(BUFFER_BYTES) }))
    }

    /// The first bytes of the datagram that was [looked at](Self::peek), as far as it has so many.
    #[inline]
    pub fn head(&mut self, head: &Head) -> &mut [u8] {
        &mut self.bytes[..head.len.min(HEAD_BYTES)]
    }

    /// Takes the datagram that was [looked at](Self::peek). `place`: `len` bytes of it, from byte
    /// `at` on, go to a range of a region, and their room in what is returned means nothing.
    ///
    /// # Errors
    /// The datagram is lost if the region has no memory there any more, or if it was another one.
    ///
    /// # Panics
    /// If the range is not in the region, or the piece not in the datagram.
    pub fn take(
        &mut self,
        port: &mut UdpPort,
        head: &Head,
        place: Option<(usize, (&Region, u64, usize))>,
    ) -> io::Result<&mut [u8]> {
        port.peek = PeekState::Taken;
        let datagram = &mut self.bytes[..head.len];
        let Some((at, (region, offset, len))) = place else {
            let (_, len) = net::recv(&port.socket, &mut *datagram, RECEIVE)?;
            return Ok(&mut self.bytes[..len.min(head.len)]);
        };
        region.check(offset, len as u64).expect("the caller looked the range up");
        let (before, rest) = datagram.split_at_mut(at);
        let after = &mut rest[len..];
        let piece = |base: *mut u8, len: usize| libc::iovec { iov_base: base.cast(), iov_len: len };
        let memory = region.as_ptr().wrapping_add(offset as usize);
        let mut pieces = [piece(before.as_mut_ptr(), at), piece(memory, len), piece(after.as_mut_ptr(), after.len())];
        // SAFETY: an all-zero msghdr is a valid value (null pointers, zero lengths).
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = pieces.as_mut_ptr();
        header.msg_iovlen = pieces.len() as _;
        // SAFETY: the pieces are two parts of the buffer, borrowed through the call, and a range of
        // a region, which was checked above: shared memory, which nothing borrows, and others may
        // write at any time anyway.
        let got =
            unsafe { libc::recvmsg(port.socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        if got != head.len {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(&mut self.bytes[..got])
    }

    /// The quickest call for a single datagram, with nothing around the system call of empty polls:
    /// they decide how soon after its arrival it is found.
    #[inline]
    fn receive_one(
        &mut self,
        port: &mut UdpPort,
        polls: u32,
        mut each: impl FnMut(SocketAddr, u8, &mut [u8]),
    ) -> io::Result<bool> {
        let buffer = &mut self.bytes[..];
        let mut left = polls;
        // Of datagrams that come one after the other, each is taken with one call.
        let mut flags = if port.peek == PeekState::Empty { PEEK } else { RECEIVE };
        let came = loop {
            let came = net::recvfrom(&port.socket, &mut *buffer, flags);
            left = left.saturating_sub(1);
            if left == 0 || !matches!(came, Err(Errno::AGAIN)) {
                break came;
            }
            flags = PEEK;
        };
        port.peek = match came {
            Ok(_) if flags == PEEK => PeekState::Left,
            Err(Errno::AGAIN) => PeekState::Empty,
            _ => PeekState::Taken,
        };
        match came {
            Ok((len, _, from)) => {
                // A sender without an address is nobody to answer to.
                if let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) {
                    each(from, 0, &mut buffer[..len]);
                }
                Ok(true)
            }
            Err(errno) => nothing_there(errno).map(|()| false),
        }
    }

    /// One system call, which may give several datagrams of one sender.
    fn receive_joined(&mut self, port: &UdpPort) -> io::Result<Option<Came>> {
        let mut iov = libc::iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: self.bytes.len() };
        // SAFETY: an all-zero msghdr is a valid value (null pointers, zero lengths).
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_name = (&raw mut self.name.storage).cast();
        header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as u32;
        header.msg_iov = &raw mut iov;
        header.msg_iovlen = 1;
        header.msg_control = self.control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: the pointers of the header are to buffers of this value and to a local, disjoint,
        // and live through the call.
        let got = unsafe { libc::recvmsg(port.socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
        let Ok(got) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            return nothing_there(Errno::from_io_error(&error).unwrap_or(Errno::IO)).map(|()| None);
        };
        let len = got.min(BUFFER_BYTES);
        let told = told(&header);
        // A sender whose address is of neither family cannot be answered: its datagram counts as
        // empty.
        let from = self.name.address();
        let none = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Ok(Some(Came { len: if from.is_some() { len } else { 0 }, from: from.unwrap_or(none), told }))
    }
}

impl Default for ReceiveBuffer {
    fn default() -> Self {
        ReceiveBuffer::new()
    }
}

/// Bytes of a datagram that a [look](ReceiveBuffer::peek) at it gives.
pub const HEAD_BYTES: usize = 256;
/// Bytes of a receive buffer: the largest datagram, and the largest join of several.
const BUFFER_BYTES: usize = 1 << 16;

/// Errors that earlier sends left on the socket (a peer that is not there) and empty queues are not
/// errors of a receive.
#[inline]
fn nothing_there(error: Errno) -> io::Result<()> {
    match error {
        Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH => Ok(()),
        _ => Err(error.into()),
    }
}

/// What the control messages of a receive say.
#[inline]
fn told(message: &libc::msghdr) -> Told {
    let mut told = Told::default();
    // SAFETY: the kernel has filled the control buffer and set its length; the walk stays inside.
    // The value of UDP_GRO and that of IPV6_TCLASS is an int, that of IP_TOS a byte, so each read
    // is of bytes that the kernel has written.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let value = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = value.cast::<libc::c_int>().read_unaligned();
                    told.segment_bytes = usize::try_from(size).ok().filter(|&n| n > 0);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => told.class = value.read(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    told.class = value.cast::<libc::c_int>().read_unaligned() as u8;
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    told
}
