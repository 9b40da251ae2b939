//! A stream in two halves, for one future that reads and one that writes.
//!
//! Invariant: there is one half of each kind, so each direction has one waiter. Source: the halves
//! of tokio's `TcpStream`, whose behaviour these have.

use super::stream::AsyncStream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads from a stream, see [`AsyncStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a AsyncStream);

/// Writes to a stream, see [`AsyncStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a AsyncStream);

/// Reads from a stream, see [`AsyncStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf(AsyncStream);

/// Writes to a stream, see [`AsyncStream::into_split`]. Dropping it ends that direction, as
/// `shutdown` does; [`forget`](Self::forget) does not.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: AsyncStream,
    ends: bool,
}

/// The two halves are not of one stream.
#[derive(Debug, thiserror::Error)]
#[error("the two halves are of different streams; reunite those that one into_split gave")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

pub(super) fn split(stream: &AsyncStream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf(stream), WriteHalf(stream))
}

pub(super) fn into_split(stream: AsyncStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    (OwnedReadHalf(stream.second()), OwnedWriteHalf { stream, ends: true })
}

impl ReadHalf<'_> {
    /// The stream: names, options, how it travels.
    pub fn stream(&self) -> &AsyncStream {
        self.0
    }
}

impl WriteHalf<'_> {
    /// The stream: names, options, how it travels.
    pub fn stream(&self) -> &AsyncStream {
        self.0
    }
}

impl OwnedReadHalf {
    /// The stream: names, options, how it travels.
    pub fn stream(&self) -> &AsyncStream {
        &self.0
    }

    /// The stream again.
    ///
    /// # Errors
    /// When the halves are of different streams; gives them back.
    pub fn reunite(self, writer: OwnedWriteHalf) -> Result<AsyncStream, ReuniteError> {
        if !self.0.is_same(&writer.stream) {
            return Err(ReuniteError(self, writer));
        }
        writer.forget();
        Ok(self.0)
    }
}

impl OwnedWriteHalf {
    /// The stream: names, options, how it travels.
    pub fn stream(&self) -> &AsyncStream {
        &self.stream
    }

    /// Drops the half, and leaves its direction open.
    pub fn forget(mut self) {
        self.ends = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.ends {
            // Whoever wants to know calls `shutdown`.
            let _ = self.stream.end(std::net::Shutdown::Write);
        }
    }
}

impl AsyncRead for ReadHalf<'_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_fill(cx, into)
    }
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_fill(cx, into)
    }
}

macro_rules! writes {
    ($half:ty, $stream:ident) => {
        impl AsyncWrite for $half {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
                self.$stream().poll_send(cx, &[IoSlice::new(from)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                from: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.$stream().poll_send(cx, from)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                let ended = self.stream().end(std::net::Shutdown::Write);
                self.has_ended(ended.is_ok());
                Poll::Ready(ended)
            }
        }
    };
}

writes!(WriteHalf<'_>, stream);
writes!(OwnedWriteHalf, stream);

impl WriteHalf<'_> {
    fn has_ended(&mut self, _: bool) {}
}

impl OwnedWriteHalf {
    fn has_ended(&mut self, ended: bool) {
        self.ends &= !ended;
    }
}
