//! The NIC engine: the firmware of a node's network interface and the tables of its driver.

#![forbid(unsafe_code)]

pub mod limits;

mod command;
mod config;
mod congestion;
mod crypto;
mod engine;
mod error;
mod event;
mod ids;
mod intervals;
mod local;
mod peer;
mod redirect;
mod replay;
mod rights;
mod rng;
mod session;
mod slab;
mod stats;
mod tables;
mod time;
mod wire;

pub use command::{AtomicOp, Command, Dma, Source};
pub use config::{ClusterKey, Config};
pub use engine::{Engine, Transmit};
pub use error::{
    AttachError, Busy, ErrorArgs, ExportError, ImportError, OpError, PeerDownReason, PeerTableFull,
    RedirectError, RejectReason, UnexportError, UnimportError,
};
pub use event::{ByteRange, Event, PingBy, RedirectReport};
pub use ids::{
    BadNodeName, Cookie, ExportId, ImportId, NodeName, ProcessId, RedirectId, RegionId, RegionRef,
};
pub use limits::INLINE_BYTES_MAX;
pub use rights::{
    Access, ExportSpec, Exporter, ImportGrant, ImportSpec, ImportTarget, NodeSpec, Rights,
};
pub use stats::{ExportInfo, ImportInfo, PathInfo, PeerInfo, PeerState, PeerStats, ProcessInfo, Stats};
pub use time::Time;
