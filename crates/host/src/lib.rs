//! What both sides of the doorbell share.
//!
//! A process and its node meet in shared memory: rings that carry commands and completions, gates that say whether an export still
//! exists, lanes that say which transfer is under way, regions that hold the data. This crate owns all of it, and all `unsafe` code of
//! the libraries.
//!
//! ```text
//!   process                          shared memory (unnamed, sealed memfds)                node
//!   ───────                          ──────────────────────────────────────                ────
//!   send ───────────────────────────▶ command ring ───────────────────────────────────────▶ engine
//!   wait ◀─────────────────────────── completion ring, notification ring ◀───────────────── engine
//!   mapped transfer ─ lane, gate ───▶ region of the other process            gate ◀──────── driver
//!   set-up call ────────────────────▶ Unix seqpacket socket, descriptors ─────────────────▶ driver
//! ```
//!
//! **Promises.** Memory that another process can write is never a `&[u8]`; every index, length and offset that a process wrote is a
//! claim that is checked before use; no memory has a name, none can shrink, all of it is reserved when it is made.
//!
//! **Does not.** It knows no protocol between nodes (that is `vmmc-nic`) and takes no decision about rights (the node does).

pub mod abi;
pub mod adopt;
pub mod area;
mod atomics;
pub mod attachment;
pub mod channel;
pub mod clock;
pub mod control;
mod copy;
pub mod limits;
pub mod memory;
pub mod region;
pub mod ring;
pub mod wait;

pub use area::{AttachArea, GateTable, PairRing};
pub use attachment::Attachment;
pub use channel::Channel;
pub use clock::Nanos;
pub use region::{Protection, Region, RegionError, Span};
pub use wait::{Deadline, Stepper, WakeReceiver, WakeSender};
