//! The direct interface for Rust programs: a TCP stream that moves into shared memory by itself.
//!
//! Invariant: a stream may be used wherever a [`TcpStream`] is read and written; its peer may be
//! any TCP program. Source: [NT §4].

use crate::connection::Connection;
use crate::context::Context;
use crate::types::{After, Bypass, Close, Description, Lent, Received, Sent, Shutdown, Take, Waited};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use vmmc_stream::RingSlice;

/// A connected TCP stream of this process. Clone the [`Arc`] around it to use it from several
/// threads.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
    context: Arc<Context>,
    connection: Arc<Connection>,
}

impl Stream {
    /// Takes a stream that was just connected or accepted.
    pub fn new(context: &Arc<Context>, socket: TcpStream) -> Stream {
        let connection = context.track(socket.as_fd());
        Stream { socket, context: context.clone(), connection }
    }

    /// The kernel's side of it: names and options. Do not read or write through it.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The connection, for event loops.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// How it travels.
    pub fn describe(&self) -> Description {
        self.connection.describe()
    }

    /// Keeps it in the kernel from here on.
    pub fn pin_to_kernel(&self) {
        self.connection.pin_to_kernel(&self.context, self.socket.as_fd(), Bypass::Excluded);
    }

    /// Receives into several buffers, waiting for at least one byte; 0: the end of the stream.
    ///
    /// # Errors
    /// As a TCP socket's.
    pub fn receive(&self, into: &mut [IoSliceMut<'_>]) -> std::io::Result<usize> {
        let fd = self.socket.as_fd();
        loop {
            match self.connection.recv(&self.context, fd, into, Take::Take) {
                Received::Done(bytes) | Received::OfKernel(bytes) => return Ok(bytes),
                Received::Failed(errno) => return Err(errno.into()),
                Received::Empty => self.wait_readable()?,
                Received::Busy => {}
                Received::Kernel(call) => {
                    call.poll(fd);
                    let result = receive_by_kernel(fd, into);
                    if call.finish(result) == After::Return {
                        return Ok(result?);
                    }
                }
            }
        }
    }

    /// Sends from several buffers, waiting until some bytes are on their way; returns how many.
    ///
    /// # Errors
    /// As a TCP socket's.
    pub fn send(&self, from: &[IoSlice<'_>]) -> std::io::Result<usize> {
        let fd = self.socket.as_fd();
        loop {
            match self.connection.send(&self.context, fd, from) {
                Sent::Done(bytes) => return Ok(bytes),
                Sent::Failed(errno) => return Err(errno.into()),
                Sent::Busy => {}
                Sent::Full => match self.connection.wait_writable(&self.context, fd, None) {
                    Waited::Interrupted => return Err(Errno::INTR.into()),
                    _ => continue,
                },
                Sent::Kernel(call) => {
                    let result = send_by_kernel(fd, from);
                    call.finish(result);
                    return Ok(result?);
                }
            }
        }
    }

    /// Room for at most `most` bytes in the ring to the peer, to be filled in where the peer will
    /// read it; waits until there is some. None: the bytes go through the kernel now, so send them
    /// as ever.
    ///
    /// # Errors
    /// As a TCP socket's; `EDEADLK` if this thread has a [`Room`] of this stream already.
    pub fn reserve(&self, most: usize) -> std::io::Result<Option<Room<'_>>> {
        loop {
            match self.connection.lend_room(&self.context, self.socket.as_fd(), most) {
                Lent::Memory(memory) => return Ok(Some(Room { stream: self, memory, sent: 0 })),
                Lent::Nothing | Lent::End => {
                    if self.connection.wait_writable(&self.context, self.socket.as_fd(), None) == Waited::Interrupted {
                        return Err(Errno::INTR.into());
                    }
                }
                Lent::Kernel => return Ok(None),
                Lent::Failed(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next received bytes where the peer has put them, as many as lie side by side; waits
    /// until there are some. An empty view is the end of the stream. None: the bytes come through
    /// the kernel now, so receive them as ever.
    ///
    /// # Errors
    /// As a TCP socket's; `EDEADLK` if this thread has a [`View`] of this stream already.
    pub fn peek(&self) -> std::io::Result<Option<View<'_>>> {
        loop {
            match self.connection.lend_bytes(&self.context, self.socket.as_fd()) {
                Lent::Memory(memory) => return Ok(Some(View { stream: self, memory: Some(memory), taken: 0 })),
                Lent::End => return Ok(Some(View { stream: self, memory: None, taken: 0 })),
                Lent::Nothing => self.wait_readable()?,
                Lent::Kernel => return Ok(None),
                Lent::Failed(errno) => return Err(errno.into()),
            }
        }
    }

    /// Ends one or both directions.
    ///
    /// # Errors
    /// As a TCP socket's.
    pub fn shutdown(&self, how: std::net::Shutdown) -> std::io::Result<()> {
        let ours = match how {
            std::net::Shutdown::Read => Shutdown::Read,
            std::net::Shutdown::Write => Shutdown::Write,
            std::net::Shutdown::Both => Shutdown::Both,
        };
        self.connection.shutdown(&self.context, self.socket.as_fd(), ours);
        self.socket.shutdown(how)
    }

    fn wait_readable(&self) -> std::io::Result<()> {
        match self.connection.wait_readable(&self.context, self.socket.as_fd(), None) {
            Waited::Interrupted => Err(Errno::INTR.into()),
            _ => Ok(()),
        }
    }
}

/// For one buffer the call that knows of no others: the kernel has less to copy and to check.
fn receive_by_kernel(fd: BorrowedFd<'_>, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    match into {
        [one] => rustix::net::recv(fd, &mut **one, RecvFlags::empty()).map(|(bytes, _)| bytes),
        _ => rustix::net::recvmsg(fd, into, &mut Default::default(), RecvFlags::empty()).map(|message| message.bytes),
    }
}

/// As for [`receive_by_kernel`].
fn send_by_kernel(fd: BorrowedFd<'_>, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
    match from {
        [one] => rustix::net::send(fd, one, SendFlags::NOSIGNAL),
        _ => rustix::net::sendmsg(fd, from, &mut Default::default(), SendFlags::NOSIGNAL),
    }
}

/// Room in the ring to the peer. What is dropped without [`send`](Room::send) is not sent.
/// Meanwhile nobody else sends on the stream, and this thread must not.
#[derive(Debug)]
pub struct Room<'a> {
    stream: &'a Stream,
    memory: RingSlice,
    sent: usize,
}

impl Room<'_> {
    /// Bytes, at least one.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len_bytes()
    }

    /// Fills bytes in from the `at`th on, as many as there is room for; says how many.
    pub fn write(&mut self, at: usize, from: &[u8]) -> usize {
        self.memory.write(at, from)
    }

    /// The memory, for callers that take the responsibility themselves: the peer's process can read
    /// and write it at any time.
    pub fn as_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Sends the first `bytes` of it, at most all.
    pub fn send(mut self, bytes: usize) {
        self.sent = bytes.min(self.len());
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        // The thread that made it holds it: a raw pointer keeps it from going elsewhere.
        let ended = self.stream.connection.send_lent(&self.stream.context, self.sent);
        debug_assert_eq!(ended, Ok(()));
    }
}

/// Received bytes where they lie. What is dropped without [`take`](View::take) comes again.
/// Meanwhile nobody else receives on the stream, and this thread must not.
#[derive(Debug)]
pub struct View<'a> {
    stream: &'a Stream,
    /// None: the end of the stream.
    memory: Option<RingSlice>,
    taken: usize,
}

impl View<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, RingSlice::len_bytes)
    }

    /// Whether this is the end of the stream.
    pub fn is_empty(&self) -> bool {
        self.memory.is_none()
    }

    /// Copies bytes from the `at`th on out, as many as there are; says how many.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.read(at, into))
    }

    /// The memory, for callers that take the responsibility themselves: the peer's process can
    /// write it at any time, so it is never a `&[u8]`. Null at the end.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.as_ref().map_or(std::ptr::null(), |memory| memory.as_ptr().cast_const())
    }

    /// Receives the first `bytes` of it, at most all.
    pub fn take(mut self, bytes: usize) {
        self.taken = bytes.min(self.len());
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if self.memory.is_some() {
            let ended = self.stream.connection.take_lent(&self.stream.context, self.taken);
            debug_assert_eq!(ended, Ok(()));
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.receive(&mut [IoSliceMut::new(into)])
    }
}

impl Write for &Stream {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        Stream::send(self, &[IoSlice::new(from)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        (&*self).write(from)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.close(&self.context, self.socket.as_fd(), Close::Orderly);
        self.connection.release(&self.context);
    }
}
