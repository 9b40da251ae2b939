//! A listener whose connections move into shared memory by themselves.
//!
//! Invariant: listening and accepting are the kernel's. Source: [NT §4].

use super::stream::AsyncStream;
use crate::context::Context;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Poll, ready};
use tokio::net::{TcpListener, ToSocketAddrs};

/// A TCP listener for tasks of tokio, which gives [`AsyncStream`]s. Cargo feature: `tokio`.
///
/// ```no_run
/// use vmmc_sockets::{AsyncListener, Context, Settings};
/// # async fn example() -> std::io::Result<()> {
/// let context = std::sync::Arc::new(Context::new(Settings::from_env()));
/// let listener = AsyncListener::bind(&context, "127.0.0.1:7000").await?;
/// loop {
///     let (mut stream, _) = listener.accept().await?;
///     tokio::spawn(async move {
///         let (mut reader, mut writer) = stream.split();
///         tokio::io::copy(&mut reader, &mut writer).await
///     });
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncListener {
    context: Arc<Context>,
    listener: TcpListener,
}

impl AsyncListener {
    /// Takes a listener.
    pub fn new(context: &Arc<Context>, listener: TcpListener) -> AsyncListener {
        AsyncListener { context: context.clone(), listener }
    }

    /// Listens on an address.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    ///
    /// # Panics
    /// As [`AsyncStream::new`].
    pub async fn bind(context: &Arc<Context>, address: impl ToSocketAddrs) -> io::Result<AsyncListener> {
        Ok(AsyncListener::new(context, TcpListener::bind(address).await?))
    }

    /// Waits for a connection; gives it and the address of its other end. A future that is dropped
    /// loses none.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    ///
    /// # Panics
    /// As [`AsyncStream::new`].
    pub async fn accept(&self) -> io::Result<(AsyncStream, SocketAddr)> {
        let (socket, from) = self.listener.accept().await?;
        Ok((AsyncStream::new(&self.context, socket), from))
    }

    /// The same as a poll.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut std::task::Context<'_>) -> Poll<io::Result<(AsyncStream, SocketAddr)>> {
        let (socket, from) = ready!(self.listener.poll_accept(cx))?;
        Poll::Ready(Ok((AsyncStream::new(&self.context, socket), from)))
    }

    /// The kernel's side of it: options.
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// The address.
    ///
    /// # Errors
    /// As [`TcpListener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsFd for AsyncListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
