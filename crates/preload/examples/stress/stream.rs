//! A connection as the program uses it: with blocking calls, with poll, or with an event loop; and
//! the bytes that belong at each place of it.
//!
//! Invariant: a wait that nobody ends is an error that says so, in whatever way it was waited.

use crate::{PATIENCE, Random, Result, mix};
use std::io::{Error, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// How a program waits for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Blocking calls with a timeout.
    Timed,
    /// Blocking calls without one: only the watch sees a hang.
    Blocking,
    /// poll, then a call that does not wait.
    Poll,
    /// The same with a level-triggered event loop.
    Loop,
    /// And an edge-triggered one.
    Edges,
}

impl Way {
    pub(crate) fn any(random: &mut Random) -> Way {
        [Way::Timed, Way::Blocking, Way::Poll, Way::Loop, Way::Edges][random.below(5) as usize]
    }
}

/// A connection, used in one way.
pub(crate) struct Stream {
    pub(crate) tcp: TcpStream,
    way: Way,
    set: Option<OwnedFd>,
}

impl Stream {
    pub(crate) fn new(tcp: TcpStream, way: Way) -> std::io::Result<Stream> {
        // Messages go in pieces: without this the kernel waits for acknowledgements between them.
        tcp.set_nodelay(true)?;
        tcp.set_nonblocking(!matches!(way, Way::Timed | Way::Blocking))?;
        let patience = Some(PATIENCE).filter(|_| way == Way::Timed);
        tcp.set_read_timeout(patience)?;
        tcp.set_write_timeout(patience)?;
        let mut stream = Stream { tcp, way, set: None };
        if matches!(way, Way::Loop | Way::Edges) {
            stream.set = Some(stream.loop_of_its_own()?);
        }
        Ok(stream)
    }

    /// The same connection by another descriptor, for another thread. Whether calls block is common
    /// to both.
    pub(crate) fn sharing(other: &Stream, way: Way) -> std::io::Result<Stream> {
        let blocks = |way: Way| matches!(way, Way::Timed | Way::Blocking);
        let way = if blocks(way) == blocks(other.way) { way } else { other.way };
        Stream::new(other.tcp.try_clone()?, way)
    }

    fn loop_of_its_own(&self) -> std::io::Result<OwnedFd> {
        // SAFETY: numbers only.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: just made, ours alone.
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        let edges = if self.way == Way::Edges { libc::EPOLLET } else { 0 };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | edges) as u32, u64: 1 };
        let fd = self.tcp.as_raw_fd();
        // SAFETY: an event of ours, which the call reads.
        match unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(set),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Makes a call again and again until it has not to wait any more.
    fn until<T>(
        &mut self,
        out: bool,
        mut call: impl FnMut(&mut TcpStream) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        loop {
            match call(&mut self.tcp) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && self.way == Way::Timed => return Err(hung()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(out)?,
                other => return other,
            }
        }
    }

    fn wait(&self, out: bool) -> std::io::Result<()> {
        let patience = PATIENCE.as_millis() as i32;
        let ready = match &self.set {
            Some(set) if !out => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: room for one event.
                unsafe { libc::epoll_wait(set.as_raw_fd(), &raw mut event, 1, patience) }
            }
            _ => {
                let events = if out { libc::POLLOUT } else { libc::POLLIN };
                let mut entry = libc::pollfd { fd: self.tcp.as_raw_fd(), events, revents: 0 };
                // SAFETY: one entry of ours.
                unsafe { libc::poll(&raw mut entry, 1, patience) }
            }
        };
        match ready {
            0 => Err(hung()),
            1.. => Ok(()),
            _ => match Error::last_os_error() {
                e if e.kind() == ErrorKind::Interrupted => Ok(()),
                e => Err(e),
            },
        }
    }

    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let n = self.until(true, |tcp| tcp.write(bytes))?;
            bytes = &bytes[n..];
        }
        Ok(())
    }
}

fn hung() -> Error {
    Error::new(ErrorKind::TimedOut, "HUNG")
}

/// One direction of a connection: the bytes that belong at each place.
pub(crate) struct Bytes {
    pub(crate) seed: u64,
    pub(crate) at: u64,
}

impl Bytes {
    fn byte(&self, at: u64) -> u8 {
        (mix(self.seed.wrapping_add(at / 8)) >> (at % 8 * 8)) as u8
    }

    /// Sends the next `n`, in pieces of random sizes, with different calls.
    pub(crate) fn send(&mut self, to: &mut Stream, n: u64, random: &mut Random) -> std::io::Result<()> {
        let end = self.at + n;
        while self.at < end {
            let size = random.size((end - self.at).min(100_000));
            let piece: Vec<u8> = (self.at..self.at + size).map(|at| self.byte(at)).collect();
            if size > 8 && random.below(3) == 0 {
                let (a, b) = piece.split_at(size as usize / 3);
                let done = to.until(true, |tcp| tcp.write_vectored(&[IoSlice::new(a), IoSlice::new(b)]))?;
                to.write_all(&piece[done..])?;
            } else {
                to.write_all(&piece)?;
            }
            self.at += size;
        }
        Ok(())
    }

    /// Receives and checks the next `n`, or fewer at the end of the stream; says how many.
    pub(crate) fn receive(&mut self, from: &mut Stream, n: u64, random: &mut Random) -> Result<u64> {
        let end = self.at + n;
        let begin = self.at;
        let mut buffer = vec![0u8; 70_000.min(n as usize)];
        while self.at < end {
            let room = random.size((end - self.at).min(buffer.len() as u64)) as usize;
            if random.below(8) == 0 {
                let seen = from.until(false, |tcp| tcp.peek(&mut buffer[..room]));
                let seen = seen.map_err(|e| format!("peek at {}: {e}", self.at))?;
                self.check(&buffer[..seen])?;
            }
            match from.until(false, |tcp| tcp.read(&mut buffer[..room])) {
                Ok(0) => break,
                Ok(got) => {
                    self.check(&buffer[..got])?;
                    self.at += got as u64;
                }
                Err(e) => return Err(format!("receive at {}: {e}", self.at)),
            }
        }
        Ok(self.at - begin)
    }

    fn check(&self, bytes: &[u8]) -> Result<()> {
        match (self.at..).zip(bytes).find(|(at, byte)| self.byte(*at) != **byte) {
            None => Ok(()),
            Some((at, byte)) => Err(format!("WRONG BYTE {byte:#x} at {at}, expected {:#x}", self.byte(at))),
        }
    }
}
