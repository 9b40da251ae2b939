//! What carries a connection: TCP, or TCP that moves into shared memory by itself. All that a gRPC
//! program needs to use VMMC is here.
//!
//! Invariant: server and client are the same code over both. Source: `docs/sockets.md`.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::{Connected, TcpConnectInfo};
use vmmc_sockets::AsyncStream;

/// Which one.
#[derive(Clone)]
pub enum Transport {
    /// The kernel's TCP.
    Tcp,
    /// The same connections, upgraded by the node that this context uses.
    Vmmc(Arc<vmmc_sockets::Context>),
}

/// A connection over it.
pub enum Io {
    /// See [`Transport::Tcp`].
    Tcp(TcpStream),
    /// See [`Transport::Vmmc`].
    Vmmc(AsyncStream),
}

impl Transport {
    /// Connects to an address.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<Io> {
        self.carry(TcpStream::connect(address).await?)
    }

    /// The connections that come to a listener, as tonic's server takes them.
    pub fn incoming(self, listener: TcpListener) -> impl tokio_stream::Stream<Item = io::Result<Io>> {
        tokio_stream::StreamExt::map(tokio_stream::wrappers::TcpListenerStream::new(listener), move |accepted| {
            self.carry(accepted?)
        })
    }

    fn carry(&self, socket: TcpStream) -> io::Result<Io> {
        socket.set_nodelay(true)?;
        Ok(match self {
            Transport::Tcp => Io::Tcp(socket),
            Transport::Vmmc(context) => Io::Vmmc(AsyncStream::new(context, socket)),
        })
    }
}

impl Connected for Io {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match self {
            Io::Tcp(stream) => stream.connect_info(),
            Io::Vmmc(stream) => stream.socket().connect_info(),
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Io::Vmmc(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Io::Tcp(stream) => Pin::new(stream).poll_write(cx, from),
            Io::Vmmc(stream) => Pin::new(stream).poll_write(cx, from),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Io::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, from),
            Io::Vmmc(stream) => Pin::new(stream).poll_write_vectored(cx, from),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Io::Vmmc(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Vmmc(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
