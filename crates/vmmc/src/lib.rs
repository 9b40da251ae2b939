//! Virtual memory-mapped communication: a process exports part of its memory, another one imports it and then writes to it or reads from it, without a
//! system call (on one node) and without the receiver doing anything.
//!
//! ```text
//!    process A                                     process B (same node, or another one)
//!    ─────────                                     ─────────────────────────────────────
//!    export "frames" ◀───────── import ─────────── proxy receive buffer
//!    memory of A     ◀───────── send ───────────── any memory of B      deliberate update
//!    memory of A     ◀───────── store ──────────── binding              automatic update
//!    memory of A     ─────────▶ fetch ───────────▶ any memory of B      remote fetch
//!    notification    ◀───────── send_with ──────── "look at frame 7"
//! ```
#![forbid(unsafe_code)]

mod attach;
mod binding;
mod buffer;
mod collector;
mod control;
mod core;
mod engine;
mod error;
mod explain;
mod export;
mod hub;
mod import;
mod imports;
mod lanes;
pub mod limits;
mod mapped;
mod memory;
mod notification;
mod peers;
mod redirection;
mod regions;
mod session;
mod slots;
mod staging;
mod start;
mod stats;
mod transfer;
mod waiting;

pub use binding::{BindOptions, Binding};
pub use buffer::Buffer;
pub use error::{
    AccessError, AttachError, BindError, BufferError, CallError, ExportError, ImportError, RedirectError,
    TransferError, UnexportError, WaitError,
};
pub use explain::{Explanation, Path};
pub use export::{Export, ExportBuilder, Revocation};
pub use import::{Import, ImportBuilder, SendOptions};
pub use notification::{HandlerGuard, Notification};
pub use redirection::{Redirection, RedirectionReport};
pub use session::{Limits, NodeIdentity, Session, SessionBuilder};
pub use stats::SessionStats;
pub use transfer::Transfer;
pub use vmmc_host::adopt::CallerMemory;
pub use vmmc_host::control::{Access, NodeInfo, NotMapped, Refusal, RefusalCode};
pub use vmmc_host::{Attachment, Deadline, Nanos, Region};
pub use vmmc_nic::{ExportId, Rights};

/// All handles go between threads.
const _: () = {
    const fn check<T: Send + Sync>() {}
    check::<Session>();
    check::<Export>();
    check::<Import>();
    check::<Buffer>();
    check::<Transfer>();
    check::<Binding<'static>>();
    check::<Redirection>();
    check::<HandlerGuard>();
};
