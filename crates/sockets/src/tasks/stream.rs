//! The stream of a task: what [`Stream`](crate::Stream) is to a thread.
//!
//! Invariant: a stream may be used wherever a [`TcpStream`] of tokio's is read and written; its
//! peer may be any TCP program. Source: [NT §4].

use super::halves::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::shared::Shared;
use crate::connection::Connection;
use crate::context::Context;
use crate::limits::SEND_BYTES_MAX;
use crate::types::{Bypass, Description};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};

/// A connected TCP stream for tasks of tokio, which moves into shared memory by itself.
///
/// It belongs to the runtime in which it was made, as a [`TcpStream`] of tokio's does: that
/// runtime's reactor wakes whoever waits for it, in whatever runtime that is. When it has shut down
/// waits fail, with the error that they have there.
///
/// One task may read while another one writes, see [`split`](Self::split) and
/// [`into_split`](Self::into_split). Cargo feature: `tokio`.
///
/// ```no_run
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use vmmc_sockets::{AsyncStream, Context, Settings};
/// # async fn example() -> std::io::Result<()> {
/// let context = std::sync::Arc::new(Context::new(Settings::from_env()));
/// let mut stream = AsyncStream::connect(&context, "127.0.0.1:7000").await?;
/// stream.write_all(b"ping").await?;
/// let mut answer = [0; 4];
/// stream.read_exact(&mut answer).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncStream(Arc<Shared>);

impl AsyncStream {
    /// Takes a stream that was just connected or accepted, and never read or written.
    ///
    /// Where no bell is left for this runtime ([`BELLS`](vmmc_stream::BELLS) in a process), or it
    /// has [`TOKENS_MAX`](crate::limits::TOKENS_MAX) streams already, the stream stays with the
    /// kernel, for good: [`describe`](Self::describe) says [`Bypass::Watchers`].
    ///
    /// # Panics
    /// Outside of a runtime of tokio, and in one without `enable_io`.
    pub fn new(context: &Arc<Context>, socket: TcpStream) -> AsyncStream {
        AsyncStream(Shared::new(context, socket))
    }

    /// The same of a stream of the standard library, which becomes non-blocking.
    ///
    /// # Errors
    /// When the reactor cannot follow it.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn from_std(context: &Arc<Context>, socket: std::net::TcpStream) -> io::Result<AsyncStream> {
        socket.set_nonblocking(true)?;
        Ok(AsyncStream::new(context, TcpStream::from_std(socket)?))
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub async fn connect(context: &Arc<Context>, address: impl ToSocketAddrs) -> io::Result<AsyncStream> {
        Ok(AsyncStream::new(context, TcpStream::connect(address).await?))
    }

    /// The kernel's side of it: names and options. Do not read or write through it, nor wait for
    /// it.
    pub fn socket(&self) -> &TcpStream {
        &self.0.socket
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// How it travels.
    pub fn describe(&self) -> Description {
        self.0.connection.describe()
    }

    /// Keeps it in the kernel from here on.
    pub fn pin_to_kernel(&self) {
        self.0.connection.pin_to_kernel(&self.0.context, self.0.socket.as_fd(), Bypass::Excluded);
    }

    /// The address of this end.
    ///
    /// # Errors
    /// As [`TcpStream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// As [`TcpStream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.peer_addr()
    }

    /// `TCP_NODELAY`, as the program set it.
    ///
    /// # Errors
    /// As [`TcpStream::nodelay`].
    pub fn nodelay(&self) -> io::Result<bool> {
        self.0.connection.no_delay().map_or_else(|| self.0.socket.nodelay(), Ok)
    }

    /// Sets `TCP_NODELAY`.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        match self.0.connection.no_delay() {
            // The socket of an upgraded connection has it on.
            Some(_) => self.0.connection.set_no_delay(on),
            None => self.0.socket.set_nodelay(on)?,
        }
        Ok(())
    }

    /// A half to read and one to write, for two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        halves::split(self)
    }

    /// The same for two tasks. Dropping the half to write ends that direction.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        halves::into_split(self)
    }

    pub(super) fn is_same(&self, other: &AsyncStream) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Another owner, of whom one only reads and one only writes.
    pub(super) fn second(&self) -> AsyncStream {
        AsyncStream(self.0.clone())
    }

    pub(super) fn poll_fill(&self, cx: &mut std::task::Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // What is not initialised is zeroed, so no more than there may be: of a ring that is known.
        let there = self.0.connection.available_bytes();
        let most = if there == 0 { SEND_BYTES_MAX as usize } else { there };
        let buffer = into.initialize_unfilled_to(into.remaining().min(most));
        if buffer.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let bytes = ready!(self.0.poll_receive(cx, &mut [IoSliceMut::new(buffer)]))?;
        into.advance(bytes);
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_send(&self, cx: &mut std::task::Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.0.poll_send(cx, from)
    }

    pub(super) fn end(&self, how: std::net::Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_fill(cx, into)
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, &[IoSlice::new(from)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.end(std::net::Shutdown::Write))
    }
}

impl AsFd for AsyncStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}
