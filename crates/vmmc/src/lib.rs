//! Virtual memory-mapped communication: a process exports part of its memory, another one imports
//! it and then writes to it or reads from it, without a system call (on one node) and without the
//! receiver doing anything.
//!
//! ```text
//!    owner                                         user (same node, or another one)
//!    ─────                                         ────────────────────────────────
//!    export "frames" ◀───────── import ─────────── proxy receive buffer
//!    its memory      ◀───────── send ───────────── any memory               deliberate update
//!    its memory      ◀───────── store ──────────── binding                  automatic update
//!    its memory      ─────────▶ fetch ───────────▶ any memory               remote fetch
//!    notification    ◀───────── send_with ──────── "look at frame 7"
//! ```
//!
//! ```
//! # use vmmc_node::{Embedded, KeySource, NodeConfig};
//! # let node = Embedded::start(NodeConfig::new("doc-lib").key(KeySource::Plain))?;
//! # let session = vmmc::Session::over(node.attach()?)?;
//! // let session = vmmc::Session::attach()?;       // starts the user's node if none runs
//! let export = session.export(4096).name("frames").create()?;
//! let import = session.import("frames").open()?; // usually in another process
//! import.send(64, b"seven")?;
//! import.send(0, &7u64.to_le_bytes())?;           // sends of one process appear in order
//! assert_eq!(export.wait_word(0, |word| word != 0)?, 7);
//! let mut text = [0; 5];
//! export.read(64, &mut text)?;
//! assert_eq!(&text, b"seven");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Promises.** Every wait has a deadline (5 s unless set otherwise), and every failure an error
//! that names the thing, the numbers and the next step. Once [`Export::unexport`] has returned no
//! further byte arrives. A dead process, daemon or node is an error within a second (unreachable
//! nodes: five), never a hang. Memory is reserved when it is exported, so a shortage is an error
//! then and never a signal later. What order data becomes visible in is written down in
//! [`memory_model`], with the test that holds each promise. All handles can be used from any
//! thread.
//!
//! **Does not.** It copies no memory behind your back after a call has returned, other than what
//! the call says. It takes no signals, and needs no async runtime. A child of a fork cannot use its
//! parent's session (it gets an error); it attaches anew. Data that is still on its way when the
//! process ends does not arrive: [`Import::flush`].
//!
//! # The node
//!
//! [`Session::attach`] talks to a daemon of the same user. A program can also bring its own node,
//! which runs while callers wait:
//!
//! ```
//! use vmmc_node::{Embedded, KeySource, NodeConfig};
//! let node = Embedded::start(NodeConfig::new("mine").key(KeySource::Plain))?;
//! let session = vmmc::Session::over(node.attach()?)?;
//! assert_eq!(session.node().name, "mine");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look
//!
//! | to do | see |
//! | --- | --- |
//! | give memory to others | [`Session::export`], [`Session::export_memory`], [`ExportBuilder`] |
//! | reach it | [`Session::import`], [`Import`]; which path is used and why: [`Import::explain`] |
//! | send, with or without a notification | [`Import::send`], [`Import::send_with`]; from what: [`Source`] |
//! | fetch | [`Import::fetch`]; into what: [`Target`] |
//! | move data without a copy on the way | [`Session::buffer`], [`Buffer::range`] |
//! | move data from and to any memory without a copy on the way | [`Pinned`], [`Session::lend`], [`Session::pinned_table`], [`Session::forget`] |
//! | not wait | [`Import::post_send`], [`Import::post_fetch`], [`Transfer`] |
//! | go on when a transfer is over, without a thread or a wait for each | [`Continuations`] |
//! | sleep until something comes | [`Export::wait_notification`], [`Export::wait_word`], [`Session::on_notification`], [`Session::event_fd`] |
//! | wait for several things at once, descriptors among them | [`Session::wait_any`] |
//! | write many places at once | [`Import::gather_send`] |
//! | take records from many senders | [`Session::ring`], [`Import::append`] |
//! | take one payload in a buffer, from whoever has its token | [`Session::token_table`], [`Session::token_region`], [`Import::send_token`] |
//! | take messages from many senders, with payloads and credit | [`Session::endpoint`], [`Session::connect`] |
//! | decide late where data goes | [`Export::redirect`] |
//! | post thousands of receive buffers ahead | [`Export::post_redirect`] |
//! | store without calls | [`Import::bind`] |
//! | run as one of many | the crate `vmmc-job` |
//! | see what happens | [`Session::stats`], [`Import::moved`], [`Session::node_info`], [`counters`] |
//! | take memory back | [`Export::unexport`], [`Revocation`] |

#![forbid(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../../../docs/counters.md")]
pub mod counters {}
#[cfg(doc)]
#[doc = include_str!("../../../docs/memory-model.md")]
pub mod memory_model {}

mod append;
mod attach;
mod bell;
mod binding;
mod buffer;
mod collector;
mod continuations;
mod control;
mod core;
mod endpoint;
mod engine;
mod error;
mod explain;
mod export;
mod fetching;
mod gather_send;
mod hub;
mod import;
mod imports;
mod kind;
mod lanes;
mod lent;
pub mod limits;
mod mapped;
mod memory;
mod notification;
mod peers;
mod pinned_table;
mod pins;
mod published;
mod redirection;
mod redirects;
mod regions;
mod ring;
mod sending;
mod session;
mod slots;
mod source;
mod staging;
mod start;
mod stats;
mod target;
mod token_region;
mod token_send;
mod tokens;
mod trace;
mod transfer;
mod wait_any;
mod waiting;

pub use append::AppendOptions;
pub use binding::{BindOptions, Binding};
pub use buffer::{Buffer, BufferRange};
pub use continuations::Continuations;
#[doc(hidden)]
pub use endpoint::fuzzing;
pub use endpoint::{
    Came, Connection, ConnectionBuilder, Endpoint, EndpointBuilder, EndpointCounts, Frame, Message, MessageHandler,
};
pub use error::{
    AccessError, AttachError, BindError, BufferError, CallError, ConnectError, ExportError, ImportError, MessageError,
    PlaceError, RedirectError, TokenError, TransferError, UnexportError, WaitError,
};
pub use explain::{Explanation, Path};
pub use export::{Export, ExportBuilder, Revocation};
pub use import::{Import, ImportBuilder, SendOptions};
pub use kind::{ErrorKind, Kind};
pub use lent::{Lent, LentRange};
pub use notification::{HandlerGuard, Notification};
pub use pinned_table::{Indexed, PinnedTable};
pub use pins::PinOptions;
pub use published::Published;
pub use redirection::{Redirection, RedirectionReport};
pub use ring::{Record, Ring, RingBuilder};
pub use session::{Limits, NodeIdentity, Session, SessionBuilder};
#[doc(hidden)]
pub use source::Copied;
pub use source::{AnySource, Gather, Pinned, Source};
pub use stats::SessionStats;
pub use target::{AnyTarget, PostTarget, Scatter, Target};
pub use token_region::{TokenRegion, TokenRegionBuilder};
pub use token_send::Posted;
pub use tokens::{Arrival, ByToken, PayloadToken, TokenBuffer, TokenPool, TokenRefused, TokenTable, TokenTableBuilder};
#[doc(hidden)]
pub use trace::{LeftBehind, left_behind};
pub use transfer::Transfer;
pub use vmmc_host::adopt::CallerMemory;
pub use vmmc_host::control::{Access, Moved, NodeInfo, NotMapped, Refusal, RefusalCode};
pub use vmmc_host::published::{FigureKind, FigureOf, Figures};
pub use vmmc_host::wait::{Patience, patience, set_patience, with_patience};
pub use vmmc_host::{Attachment, Deadline, Nanos, Region};
pub use vmmc_nic::{ExportId, ImportId, ProcessId, Rights, Sender};
/// For policies of one's own.
pub use vmmc_utlb::{Held, Page, Policy, PolicyKind, Prepin, Slot};
pub use wait_any::{AnyTransfer, WaitFor};

/// All handles go between threads.
const _: () = {
    const fn check<T: Send + Sync>() {}
    check::<Session>();
    check::<Export>();
    check::<Import>();
    check::<Buffer>();
    check::<Transfer<'static>>();
    check::<Transfer<'static, Vec<u8>>>();
    check::<Binding<'static>>();
    check::<Ring>();
    check::<Redirection>();
    check::<HandlerGuard>();
};

/// The programs in documents compile.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/installing.md")]
    struct Installing;
}
