//! Ways to move a message from one process to another, each with its own semantics, by choice for
//! each channel. [SEMANTICS §2]
//!
//! ```text
//!             sender                                      receiver
//!  PIO        message ──stores──────────▶ window ──loads──────────▶ buffer
//!  CopyDMA    message ──copy──▶ frame ▶ frame ▶ frame ──copy──────▶ buffer
//!  DirectDMA  agreed memory ─────────────────────────────────────▶ agreed memory
//!  V2PDMA     any memory, pinned ────────────────────────────────▶ posted memory
//!  PEXDMA     pages, lent ─────▶ frame ▶ frame ▶ frame ◀─exchange─▶ pages of the buffer
//! ```
//!
//! ```
//! # use vmmc_node::{Embedded, KeySource, NodeConfig};
//! # let node = Embedded::start(NodeConfig::new("doc-techniques").key(KeySource::Plain))?;
//! # let session = vmmc::Session::over(node.attach()?)?;
//! use vmmc_techniques::{Receiver, Sender, Technique};
//! let mut receiver = Receiver::builder(&session, "results").technique(Technique::CopyDma).open()?;
//! let mut sender = Sender::builder(&session, "results").connect()?; // usually in another process
//! let mut message = vec![7; 100_000];
//! sender.send(&message)?; // nobody waits for it yet
//! message.fill(0);        // and its memory is free
//! let mut buffer = vec![0; 100_000];
//! assert_eq!(receiver.receive(&mut buffer)?, 100_000);
//! assert!(buffer.iter().all(|byte| *byte == 7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Promises.** Messages arrive whole, in the order of their sends, or not at all. Each wait has a
//! deadline; the death of the other side is an error. What the other side writes into shared memory
//! is checked, and costs at most the channel. Which semantics a technique has is a table in
//! docs/techniques.md, whose every cell names a test.
//!
//! **Does not.** It matches no tags and has no groups. A channel has one sender and one direction.
//! The memory of a channel can be written by its sender at any time, so a sender that does not keep
//! to the protocol can change a message until it has been copied out.

#![forbid(unsafe_code)]

mod error;
#[doc(hidden)]
pub mod fuzzing;
mod in_flight;
pub mod limits;
mod pages;
mod posted;
mod protocol;
mod receiver;
mod sender;
mod technique;
mod waiting;

pub use error::Error;
pub use in_flight::InFlight;
pub use pages::PageBuffer;
pub use posted::{Arrived, PostedMemory, Posting};
pub use protocol::Garbled;
pub use receiver::{Received, Receiver, ReceiverBuilder};
pub use sender::{Sender, SenderBuilder};
pub use technique::{Technique, UnknownTechnique};
