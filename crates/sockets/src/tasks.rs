//! Streams for tasks of tokio, which move into shared memory by themselves.
//!
//! ```text
//!   task ── poll_read ──▶ ring: bytes ────────────────────────────────▶ Ready
//!                     └─▶ nothing: waker into its slot, a second look ─▶ Pending
//!                                                                          ▲ wakes
//!   peer ── sends: sets a bit ──▶ driver, a task of the runtime: takes the bits, looks, wakes
//!       └── rings the bell if the driver sleeps ──▶ reactor (epoll) ──▶ driver
//!   kernel ── bytes, room, the end, for the socket ──▶ reactor ──▶ task
//! ```
//!
//! Each pair of context and runtime has a [`driver`]. A task that waits is in the slots of its
//! stream, one for the reader and one for the writer, and with the reactor, for a direction may be
//! in the kernel, or come back to it.
//!
//! Invariant: a task that gets `Pending` has registered its waker and then looked once more. Bytes
//! leave the stream only in a poll that says `Ready`, so nothing is lost with a future that is
//! dropped. Source: [NT §4]; the contract of `AsyncRead` and `AsyncWrite`.

mod driver;
mod halves;
mod listener;
mod polling;
mod shared;
mod signal;
mod stream;

pub(crate) use driver::Drivers;
pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use listener::AsyncListener;
pub use stream::AsyncStream;
