//! The node: driver and NIC engine on real transports.
//!
//! ```text
//!   processes ── rings, gates, lanes ──▶ ┌─────────┐                 ┌──────────┐
//!             ── control sockets ──────▶ │ Station │ ── datagrams ──▶ │ network  │ ── UDP ── other nodes
//!             ◀─ completions, events ─── │ engine  │ ◀─────────────── │ sockets  │
//!                                        └─────────┘                 └──────────┘
//!                 stepped by:   daemon loop │ waiting callers (embedded) │ a simulator
//! ```
//!
//! **Promises.** What a process writes in rings or says on its control socket is a claim, checked
//! against its own tables before the engine sees it, and harms only itself. When an unexport is
//! answered, no further byte arrives. A killed node leaves nothing behind. An idle node uses no
//! processor time to speak of.
//!
//! **Does not.** It holds no protocol (that is `vmmc-nic`) and no `unsafe` (that is `vmmc-host`).
//!
//! Two embedded nodes in one process:
//!
//! ```
//! use vmmc_node::{Embedded, KeySource, NodeConfig};
//! let loopback = "127.0.0.1:0".parse()?;
//! let a = Embedded::start(NodeConfig::new("a").listen(loopback).key(KeySource::Plain))?;
//! let b = NodeConfig::new("b").listen(loopback).peer(&a.addresses());
//! let b = Embedded::start(b.key(KeySource::Plain))?;
//! let _attachment = b.attach()?; // give it to `vmmc::Session::over`
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod config;
mod daemon;
mod embedded;
mod host_name;
mod key;
pub mod limits;
mod log;
mod network;
mod polling;
mod runner;
mod services;
pub mod station;
#[cfg(test)]
mod testing;

pub use config::{BadOption, DEFAULT_NODE, KeySource, NodeConfig, Serve, UtlbConfig};
pub use daemon::{
    CANNOT_RUN_AS, Daemon, EXPORT_VARIABLE, RUN_AS, RunError, Running, StartError, Stopper, run, run_with,
    start_detached,
};
pub use embedded::{AttachError, Embedded};
pub use key::{KeyError, default_key_file};
pub use log::{LOG_IN_JOURNAL, LOG_ON_STDERR, LogLevel, default_log_file};
pub use station::{ConnectionId, Station, StationConfig};
pub use vmmc_nic::{Cipher, Ciphers, CongestionControl, Ecn};
