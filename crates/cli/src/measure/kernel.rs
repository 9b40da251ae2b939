//! Transports of the kernel: pipe, Unix socket, TCP, UDP; blocking, or spinning on non-blocking
//! calls.
//!
//! Invariant: descriptors come in the order that [`descriptors`] makes them, first those of the
//! leader.

use super::TaskError;
use super::ping::{Flow, Ping};
use super::task::Kernel;
use crate::limits::{
    DATAGRAM_BYTES_MAX, DATAGRAM_OVERHEAD_BYTES, DATAGRAM_PARTS, DATAGRAM_WINDOW, DATAGRAM_WINDOW_BYTES, PARTNER_WAIT,
    PIPE_BYTES, SOCKET_BUFFER_BYTES,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Descriptors for leader and follower: those to read from and to write to.
pub(crate) fn descriptors(kernel: Kernel) -> Result<(Vec<OwnedFd>, Vec<OwnedFd>), TaskError> {
    match kernel {
        Kernel::Pipe => {
            let ((there_out, there_in), (back_out, back_in)) = (pipe()?, pipe()?);
            Ok((vec![back_out, there_in], vec![there_out, back_in]))
        }
        Kernel::Unix => {
            let (a, b) = UnixStream::pair()?;
            enlarge(&a);
            enlarge(&b);
            Ok((both(a.into())?, both(b.into())?))
        }
        Kernel::Tcp { spin } => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let a = TcpStream::connect(listener.local_addr()?)?;
            let (b, _) = listener.accept()?;
            for socket in [&a, &b] {
                socket.set_nodelay(true)?;
                socket.set_nonblocking(spin)?;
            }
            Ok((both(a.into())?, both(b.into())?))
        }
        Kernel::Udp { spin } => {
            let (a, b) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
            a.connect(b.local_addr()?)?;
            b.connect(a.local_addr()?)?;
            for socket in [&a, &b] {
                enlarge(socket);
                socket.set_read_timeout(Some(PARTNER_WAIT))?;
                socket.set_nonblocking(spin)?;
            }
            Ok((both(a.into())?, both(b.into())?))
        }
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), TaskError> {
    let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // A user at its limit of pipe memory keeps the default capacity.
    let _ = rustix::pipe::fcntl_setpipe_size(&into, PIPE_BYTES);
    Ok((out, into))
}

/// Larger socket buffers as far as we may: above the machine's limit if privileged, else up to it.
fn enlarge(socket: &impl AsFd) {
    let fd = socket.as_fd();
    if sockopt::set_socket_recv_buffer_size_force(fd, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(fd, SOCKET_BUFFER_BYTES);
    }
    let _ = sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER_BYTES);
}

fn both(socket: OwnedFd) -> Result<Vec<OwnedFd>, TaskError> {
    Ok(vec![socket.try_clone()?, socket])
}

/// One end of a transport, with a buffer of one message.
pub(crate) struct End {
    from: OwnedFd,
    to: OwnedFd,
    datagrams: bool,
    buffer: Vec<u8>,
}

impl End {
    /// The end that these descriptors make, for messages of `size` bytes; datagrams are cut to what
    /// they can hold.
    pub(crate) fn new(kernel: Kernel, mut fds: Vec<OwnedFd>, size: u64) -> Result<End, TaskError> {
        let (Some(to), Some(from), None) = (fds.pop(), fds.pop(), fds.pop()) else {
            return Err(TaskError::Protocol("two descriptors belong to a kernel transport".into()));
        };
        let datagrams = matches!(kernel, Kernel::Udp { .. });
        let spin = matches!(kernel, Kernel::Udp { spin: true } | Kernel::Tcp { spin: true });
        let flags = if spin { OFlags::NONBLOCK } else { OFlags::empty() };
        rustix::fs::fcntl_setfl(&from, flags)?;
        let size = message_bytes(kernel, size);
        Ok(End { from, to, datagrams, buffer: vec![1; size as usize] })
    }

    fn write_message(&mut self) -> Result<(), TaskError> {
        write_all(&self.to, &self.buffer)
    }

    fn read_message(&mut self) -> Result<(), TaskError> {
        if self.datagrams {
            read_some(&self.from, &mut self.buffer).map(drop)
        } else {
            let mut done = 0;
            while done < self.buffer.len() {
                done += read_some(&self.from, &mut self.buffer[done..])?;
            }
            Ok(())
        }
    }

    /// See [`window`], for the socket of this end, which has as much room as that of the other.
    fn window(&self) -> Result<(u64, u64), TaskError> {
        let room = sockopt::socket_recv_buffer_size(&self.from)? as u64 / 2;
        Ok(window(room, self.buffer.len() as u64))
    }
}

/// Datagrams that the receiver answers together, and how many such parts may be under way: there is
/// no other flow control, and what the receive buffer has no `room` for is lost.
fn window(room: u64, bytes: u64) -> (u64, u64) {
    let window = (room.min(DATAGRAM_WINDOW_BYTES) / (bytes + DATAGRAM_OVERHEAD_BYTES)).clamp(1, DATAGRAM_WINDOW);
    let part = window.div_ceil(DATAGRAM_PARTS);
    (part, window / part)
}

/// Bytes that one message of a transport really has, if it is to have `size`.
pub(crate) fn message_bytes(kernel: Kernel, size: u64) -> u64 {
    if matches!(kernel, Kernel::Udp { .. }) { size.min(DATAGRAM_BYTES_MAX) } else { size }
}

impl Ping for End {
    #[inline]
    fn send(&mut self, _number: u64) -> Result<(), TaskError> {
        self.write_message()
    }

    #[inline]
    fn receive(&mut self, _number: u64) -> Result<(), TaskError> {
        self.read_message()
    }
}

impl Flow for End {
    fn push(&mut self, count: u64) -> Result<(), TaskError> {
        let mut byte = [0];
        if !self.datagrams {
            (0..count).try_for_each(|_| self.write_message())?;
            return read_some(&self.from, &mut byte).map(drop);
        }
        let (part, parts) = self.window()?;
        let mut under_way = 0;
        let mut left = count;
        while left > 0 {
            let now = part.min(left);
            (0..now).try_for_each(|_| self.write_message())?;
            left -= now;
            under_way += 1;
            if under_way == parts {
                read_some(&self.from, &mut byte)?;
                under_way -= 1;
            }
        }
        (0..under_way).try_for_each(|_| read_some(&self.from, &mut byte).map(drop))
    }

    fn pull(&mut self, count: u64) -> Result<(), TaskError> {
        if !self.datagrams {
            (0..count).try_for_each(|_| self.read_message())?;
            return write_all(&self.to, &[1]);
        }
        let (part, _) = self.window()?;
        let mut left = count;
        while left > 0 {
            let now = part.min(left);
            (0..now).try_for_each(|_| self.read_message())?;
            write_all(&self.to, &[1])?;
            left -= now;
        }
        Ok(())
    }
}

fn write_all(to: &OwnedFd, bytes: &[u8]) -> Result<(), TaskError> {
    let mut left = bytes;
    while !left.is_empty() {
        match rustix::io::write(to, left) {
            Ok(n) => left = &left[n..],
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Reads once, however often it takes; the clock is read rarely.
fn read_some(from: &OwnedFd, into: &mut [u8]) -> Result<usize, TaskError> {
    let mut start: Option<Instant> = None;
    for spins in 1u32.. {
        match rustix::io::read(from, &mut *into) {
            Ok(0) => return Err(TaskError::PartnerGone),
            Ok(n) => return Ok(n),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if spins % 1024 == 0 && start.get_or_insert_with(Instant::now).elapsed() > PARTNER_WAIT {
            break;
        }
    }
    Err(TaskError::PartnerSilent)
}

#[cfg(test)]
mod tests {
    use super::super::side::Side;
    use super::super::stats::Sample;
    use super::super::{ping, task::Measure};
    use super::*;
    use std::time::Duration;
    use vmmc_host::channel::Channel;

    fn run(kernel: Kernel, measure: Measure, size: u64) -> Sample {
        let (leader, follower) = descriptors(kernel).unwrap();
        let (a, b) = Channel::pair().unwrap();
        let budget = Duration::from_millis(5);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut end, side) = (End::new(kernel, follower, size).unwrap(), Side::over(b));
                match measure {
                    Measure::Latency => ping::follow_pings(&mut end, &side).unwrap(),
                    Measure::Bandwidth => ping::follow_flow(&mut end, &side).unwrap(),
                }
            });
            let (mut end, side) = (End::new(kernel, leader, size).unwrap(), Side::over(a));
            match measure {
                Measure::Latency => ping::lead_pings(&mut end, &side, budget).unwrap(),
                Measure::Bandwidth => ping::lead_flow(&mut end, &side, size, budget).unwrap(),
            }
        })
    }

    #[test]
    fn datagrams_under_way_fit_the_receive_buffer() {
        // Linux gives 208 KiB to those who may not have more, and counts twice as much.
        for room in [104 << 10, 208 << 10, 4 << 20] {
            for bytes in [1, 8, 1400, 16 << 10, DATAGRAM_BYTES_MAX] {
                let (part, parts) = window(room, bytes);
                let under_way = part * parts;
                assert!((1..=DATAGRAM_WINDOW).contains(&under_way), "{under_way} of {bytes} bytes");
                assert!(under_way * (bytes + DATAGRAM_OVERHEAD_BYTES) <= room, "{under_way} of {bytes} in {room}");
            }
        }
        assert_eq!(window(104 << 10, DATAGRAM_BYTES_MAX), (1, 1));
        assert_eq!(window(4 << 20, DATAGRAM_BYTES_MAX), (2, 7), "a sender that never waits for one answer alone");
    }

    #[test]
    fn every_transport_passes_messages_of_every_size() {
        for kernel in [
            Kernel::Pipe,
            Kernel::Unix,
            Kernel::Tcp { spin: false },
            Kernel::Tcp { spin: true },
            Kernel::Udp { spin: false },
            Kernel::Udp { spin: true },
        ] {
            for size in [1, 8, 4096, 200_000] {
                assert!(matches!(run(kernel, Measure::Latency, size), Sample::Latency { .. }), "{kernel:?} {size}");
                assert!(matches!(run(kernel, Measure::Bandwidth, size), Sample::Bandwidth { .. }), "{kernel:?} {size}");
            }
        }
    }
}
