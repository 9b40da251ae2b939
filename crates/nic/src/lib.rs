//! The NIC engine: the firmware of a node's network interface and the tables of its driver, as one
//! state machine [NT §3.1, SHRIMP §2]. No I/O, no clock, no threads, no unsafe: a scripted test, a
//! simulator and a daemon drive the same code.
//!
//! **Promises.** Bytes of one send appear in any order, except that its last byte never appears
//! before the rest; sends of one process to one export appear in order; a notification follows its
//! data; fetches and atomics see earlier sends of the same process to that node, and happen exactly
//! once. Nothing lands outside an export, without the right, or after
//! [`unexport`](Engine::unexport) has returned. Every operation ends: a node that does not answer
//! is an error within [`Config::peer_timeout`].
//!
//! Drivers can send each other messages, in order and exactly once while a session lasts.
//!
//! **Not here.** Sockets, rings, memory, translation of addresses, waiting: the driver's part. The
//! engine asks for copies through [`Dma`] and never sees memory.
//!
//! ```text
//!   post, export, import ..        handle_datagram            handle_timeout
//!            |                            |                         |
//!   +--------v----------------------------v-------------------------v--------+
//!   |  engine     checks commands, keeps the tables, finds the session       |
//!   |  session    chunks in order, exactly once; loss, windows, fairness     |
//!   |  crypto     handshake, seal      wire   every byte, docs/protocol.md   |
//!   +--------+----------------------------+-------------------------+--------+
//!            v                            v                         v
//!       poll_event                  poll_transmit              poll_timeout
//! ```
//!
//! ```
//! use vmmc_nic::*;
//! # struct Ram(Vec<u8>);
//! # impl Dma for Ram {
//! #     fn deposit(&mut self, _: RegionRef, at: u64, data: &[u8]) {
//! #         self.0[at as usize..][..data.len()].copy_from_slice(data)
//! #     }
//! #     fn gather(&mut self, _: RegionRef, at: u64, out: &mut [u8]) {
//! #         out.copy_from_slice(&self.0[at as usize..][..out.len()])
//! #     }
//! #     fn copy(&mut self, _: RegionRef, _: u64, _: RegionRef, _: u64, _: u64) {}
//! #     fn atomic(&mut self, _: RegionRef, _: u64, _: AtomicOp) -> u64 { 0 }
//! # }
//! # let mut memory = Ram(vec![0; 64]);
//! let now = Time::ZERO;
//! let mut node = Engine::new(Config::new(NodeName::parse("here")?), [1; 32], now);
//! let (owner, user) = (node.attach(1000)?, node.attach(1000)?);
//! node.export(now, owner, ExportSpec {
//!     name: Some("mailbox".into()), region: RegionId(0), offset: 0, len: 64, rights: Rights::ALL,
//!     access: Access::SameUser, notify: true, redirectable: false, kind: ExportKind::Memory,
//! })?;
//! node.import(now, user, ImportSpec {
//!     node: None, what: ImportTarget::Name("mailbox".into()), owner: Owner::default(),
//!     rights: Rights::WRITE, wait: false, deadline: now, own_order: false,
//! }, Cookie(1));
//! let Some(Event::ImportDone { result: Ok(grant), .. }) = node.poll_event() else { panic!() };
//! let hello = Command::Send {
//!     import: grant.import, offset: 8, source: Source::Inline(b"hello"),
//!     notify: None, counter: None, completion: None,
//! };
//! node.post(now, user, hello, &mut memory)?;
//! assert_eq!(&memory.0[8..13], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod fuzzing;
pub mod limits;

mod activation;
mod cipher;
mod command;
mod config;
mod congestion;
mod crypto;
mod ecn;
mod engine;
mod error;
mod event;
mod fetching;
mod ids;
mod intervals;
mod local;
mod mtu;
mod peer;
mod proof;
mod ranges;
mod redirect;
mod replay;
mod rights;
mod ring;
mod rng;
mod session;
mod slab;
mod stats;
mod tables;
mod time;
mod tokens;
mod waiters;
mod wire;

pub use activation::{ActivationRefusal, ActivationWanted};
pub use cipher::{BadCipher, Cipher, Ciphers};
pub use command::{AtomicOp, Command, Dma, Source};
pub use config::{ClusterKey, Config};
pub use congestion::{BadCongestionControl, CongestionControl};
pub use ecn::{BadEcn, Codepoint, Ecn, EcnOff, EcnState};
pub use engine::{Engine, Fit, Lent, PeerRef, Placement, Transfer, Transmit};
pub use error::{
    AttachError, Busy, ErrorArgs, ExportError, ImportError, OpError, PeerDownReason, PeerTableFull, RedirectError,
    RejectReason, UnexportError, UnimportError,
};
pub use event::{ByteRange, Event, PingBy, RedirectReport, Sender};
pub use ids::{BadNodeName, Cookie, ExportId, ImportId, NodeName, ProcessId, RegionId, RegionRef};
pub use limits::INLINE_BYTES_MAX;
pub use mtu::MtuState;
pub use redirect::{Redirect, RedirectAt};
pub use rights::{
    Access, ExportKind, ExportSpec, Exporter, ImportGrant, ImportSpec, ImportTarget, NodeSpec, Owner, Rights,
};
pub use ring::{RECORD_HEAD_BYTES, RING_HEAD_BYTES, RING_READ_AT, RING_WRITTEN_AT, RecordHead};
pub use stats::{ExportInfo, ImportInfo, PathInfo, PeerInfo, PeerState, PeerStats, ProcessInfo, Stats};
pub use time::Time;
pub use tokens::{TOKEN_ENTRY_BYTES, TOKEN_TAG_AT, TOKEN_TOTAL_AT, TokenEntry, TokenPart, TokenState, TokenWords};
