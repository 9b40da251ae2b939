//! Matched messages among the members of a job: sent to a rank with a tag, and received by whom and
//! with what they were sent.
//!
//! ```text
//!  send(to, tag, bytes) ──▶ endpoint of the member ──▶ a receive that is for it
//!                                                └──▶ kept until there is one: up to 256 KiB of each sender
//! ```
//!
//! ```no_run
//! use vmmc_mp::{Messages, Select};
//! let messages = Messages::attach()?; // in a process that `vmmc run` has started
//! let world = messages.world();
//! let next = (world.rank() + 1) % world.size();
//! let mut number = [0; 4];
//! world.exchange(next, 1, &world.rank().to_le_bytes(), Select::any().tag(1), &mut number)?;
//! # Ok::<(), vmmc_mp::MpError>(())
//! ```
//!
//! **Promises.** Messages of one member to another are received in the order in which they were
//! sent, as far as a receive is for both; each once, whole. A receive takes the oldest message that
//! it is for, a message the oldest receive that is for it. What waits at a member is bounded for
//! each sender, and nothing is lost: a sender waits. Who waits for a member that has died gets an
//! error within a second. How it works: docs/messages.md.
//!
//! **Does not.** It makes no progress outside of calls. Members that join a job later are not among
//! those that were there.

#![forbid(unsafe_code)]

mod collective;
mod connecting;
mod engine;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub mod limits;
#[doc(hidden)]
pub mod matching;
mod members;
mod memory;
mod messages;
mod request;
mod select;
#[doc(hidden)]
pub mod simulation;
mod slab;
mod state;
mod transport;
#[doc(hidden)]
pub mod wire;

pub use collective::{Number, Op};
pub use error::{Gone, MpError};
pub use group::Group;
pub use memory::{Memory, Payload, Place, ReceiveBuffer, Room, SendBuffer};
pub use messages::{Messages, MessagesBuilder};
pub use request::{Persistent, Request, UnderWay, wait_all, wait_any};
pub use select::{Select, Status};
pub use state::Counts;

/// The programs in documents compile.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/messages.md")]
    struct Documented;
}

/// All handles go between threads.
const _: () = {
    const fn check<T: Send + Sync>() {}
    check::<Messages>();
    check::<Group>();
    check::<Memory>();
};
