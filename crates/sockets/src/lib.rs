//! Stream sockets over VMMC: a TCP connection between two processes is upgraded in place, at a byte
//! boundary, to rings in shared memory; between nodes to rings of which each node has a replica,
//! where that pays.
//!
//! ```text
//!   process                                                        peer process
//!   ───────                                                        ────────────
//!   send ──▶ bytes 0..N ────────▶ kernel socket ─────────────────▶ reader drains it up to N,
//!        └─▶ bytes N.. ─────────▶ ring in the connection area ───▶ then reads the ring
//!   offer (the connected socket) ─────▶ node ◀───── offer           the node compares the two address pairs, makes the area
//! ```
//!
//! The application keeps its kernel socket: for its name, its options, the end of the stream and
//! the death of the peer. [`Context`] is what a process has once, [`Connection`] what it has for
//! each open connection, [`ReadySet`] what it has for each event loop.
//!
//! **Promises.** Bytes arrive once, in order, or the connection ends as a dropped TCP connection
//! would. A peer that was not started so is served by the kernel and never disturbed. Nothing here
//! blocks connect or accept, starts a thread, or panics on what a peer writes into shared memory.
//!
//! **Does not.** It hooks no calls (that is `vmmc-preload`).
//!
//! **Cargo features.** `tokio`, off by default: `AsyncStream` and `AsyncListener`, the same streams
//! for tasks of tokio, which wait in its reactor. They begin a task in each runtime that uses them.
//!
//! Source: [NT §4] stream sockets over VMMC, [SHRIMP §3].

#![forbid(unsafe_code)]

mod connection;
mod context;
mod core;
mod ledger;
pub mod limits;
mod node;
mod offer_policy;
mod offers;
mod polling;
mod ready;
mod stream;
#[cfg(feature = "tokio")]
mod tasks;
mod types;

pub use connection::{Connection, Forking, KernelCall};
pub use context::{Context, Settings};
pub use core::simulation;
pub use offers::Offers;
pub use ready::{ReadySet, TooMany};
pub use stream::{Room, Stream, View};
#[cfg(feature = "tokio")]
pub use tasks::{AsyncListener, AsyncStream, OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use types::{
    After, Bypass, Close, Description, Direction, Interest, Lent, Medium, Received, Sent, Shutdown, State, Take, Waited,
};
