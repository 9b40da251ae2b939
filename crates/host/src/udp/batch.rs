//! Batched receives.
//!
//! Invariant: no call waits, and none gives more bytes than the kernel said have come.

use super::name::SocketName;
use super::{CONTROL_BYTES, Control, PEEK, PayloadBuffer, PeekState, RECEIVE, UdpPort};
use crate::limits::UDP_BATCH;
use rustix::io::Errno;
use rustix::net;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;

/// Buffers for a batch of received datagrams, used again and again.
pub struct ReceiveBatch {
    bytes: PayloadBuffer,
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
        ReceiveBatch {
            bytes: PayloadBuffer::new(UDP_BATCH * BUFFER_BYTES),
            controls: vec![Control([0; CONTROL_BYTES]); UDP_BATCH],
            names: vec![SocketName::none(); UDP_BATCH],
            came: Vec::with_capacity(UDP_BATCH),
        }
    }

    /// Receives what is there, at most `max` (or [`UDP_BATCH`]) receives, and gives each datagram
    /// to `each`. When nothing is there it polls again, `polls` times in all. Returns the number of
    /// receives; 0 when nothing came. A single datagram that comes after an empty poll may be left
    /// in the kernel's queue until the next call or [`UdpPort::release`]: whoever waits for it need
    /// not wait until the kernel has freed its memory too.
    #[inline]
    pub fn receive(
        &mut self,
        port: &mut UdpPort,
        max: usize,
        polls: u32,
        mut each: impl FnMut(SocketAddr, &mut [u8]),
    ) -> io::Result<usize> {
        port.release();
        if max == 1 && !port.joins {
            return self.receive_one(port, polls, each);
        }
        let mut count = 0;
        for _ in 0..polls {
            count = self.fill(port, max.min(UDP_BATCH))?;
            if count > 0 {
                break;
            }
        }
        port.peek = if count > 0 { PeekState::Taken } else { PeekState::Empty };
        for i in 0..count {
            let came = self.came[i];
            let bytes = &mut self.bytes[i * BUFFER_BYTES..][..came.len];
            for datagram in bytes.chunks_mut(came.segment_bytes) {
                each(came.from, datagram);
            }
        }
        Ok(count)
    }

    /// The quickest call for a single datagram, with nothing around the system call of empty polls:
    /// they decide how soon after its arrival it is found.
    #[inline]
    fn receive_one(
        &mut self,
        port: &mut UdpPort,
        polls: u32,
        mut each: impl FnMut(SocketAddr, &mut [u8]),
    ) -> io::Result<usize> {
        let buffer = &mut self.bytes[..BUFFER_BYTES];
        let mut left = polls;
        // Of datagrams that come one after the other, each is taken with one call.
        let mut flags = if port.peek == PeekState::Empty { PEEK } else { RECEIVE };
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
            flags = PEEK;
        };
        port.peek = match came {
            Ok(_) if flags == PEEK => PeekState::Left,
            Err(Errno::AGAIN) => PeekState::Empty,
            _ => PeekState::Taken,
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
            let buffer = &mut self.bytes[i * BUFFER_BYTES..][..BUFFER_BYTES];
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
