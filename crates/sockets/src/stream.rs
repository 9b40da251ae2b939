//! The direct interface for Rust programs: a TCP stream that moves into shared memory by itself.
//!
//! Invariant: a stream may be used wherever a [`TcpStream`] is read and written; its peer may be any TCP program. Source: [NT §4].

use crate::connection::Connection;
use crate::context::Context;
use crate::types::{After, Bypass, Close, Description, Received, Sent, Shutdown, Take, Waited};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

/// A connected TCP stream of this process. Clone the [`Arc`] around it to use it from several threads.
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
                Received::Done(bytes) => return Ok(bytes),
                Received::Failed(errno) => return Err(errno.into()),
                Received::Empty => self.wait_readable()?,
                Received::Kernel(call) => {
                    let now_only = call.must_not_wait();
                    let flags = if now_only { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
                    let result = rustix::net::recvmsg(fd, into, &mut Default::default(), flags).map(|m| m.bytes);
                    match (call.finish(result), result) {
                        (After::Retry, _) => {}
                        (After::Return, Err(Errno::AGAIN)) if now_only => self.wait_readable()?,
                        (After::Return, result) => return Ok(result?),
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
                Sent::Full => match self.connection.wait_writable(&self.context, fd, None) {
                    Waited::Interrupted => return Err(Errno::INTR.into()),
                    _ => continue,
                },
                Sent::Kernel(call) => {
                    let result = rustix::net::sendmsg(fd, from, &mut Default::default(), SendFlags::NOSIGNAL);
                    call.finish(result);
                    return Ok(result?);
                }
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
    }
}
