//! What both sides of the doorbell share.
//!
//! A process and its node meet in shared memory: rings that carry commands and completions, gates
//! that say whether an export still exists, lanes that say which transfer is under way, regions
//! that hold the data. This crate owns all of it, and all `unsafe` code of the libraries.
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
//! **Promises.** Memory that another process can write is never a `&[u8]`; every index, length and
//! offset that a process wrote is a claim that is checked before use; no memory has a name, none
//! can shrink, all of it is reserved when it is made.
//!
//! **Does not.** It knows no protocol between nodes (that is `vmmc-nic`) and takes no decision
//! about rights (the node does).

#[cfg(not(loom))]
pub mod abi;
#[cfg(not(loom))]
pub mod adopt;
#[cfg(not(loom))]
pub mod area;
mod atomics;
#[cfg(not(loom))]
pub mod attachment;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
mod copy;
pub mod counters;
pub mod credit;
#[cfg(not(loom))]
pub mod fault;
#[cfg(not(loom))]
pub mod fork;
pub mod handshake;
pub mod limits;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod meters;
#[cfg(not(loom))]
pub mod netlink;
#[cfg(not(loom))]
pub mod os;
pub mod overlay;
#[cfg(not(loom))]
pub mod page_view;
#[cfg(not(loom))]
pub mod pages;
#[cfg(not(loom))]
pub mod pin;
#[cfg(not(loom))]
pub mod pmix;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod published;
#[cfg(not(loom))]
pub mod queues;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod reservation;
pub mod ring;
#[cfg(not(loom))]
pub mod section;
#[cfg(not(loom))]
pub mod stores;
pub mod text;
#[cfg(not(loom))]
pub mod tun;
#[cfg(not(loom))]
pub mod udp;
#[cfg(not(loom))]
pub mod wait;

#[cfg(not(loom))]
pub use area::{AttachArea, GateTable, NotifyBell, PairRing};
#[cfg(not(loom))]
pub use attachment::Attachment;
#[cfg(not(loom))]
pub use channel::Channel;
#[cfg(not(loom))]
pub use clock::{Nanos, Ticks};
#[cfg(not(loom))]
pub use region::{Protection, Region, RegionError, Span};
#[cfg(not(loom))]
pub use reservation::{Access, Reservation, ReservationError};
#[cfg(not(loom))]
pub use wait::{Deadline, Stepper, WakeReceiver, WakeSender};
