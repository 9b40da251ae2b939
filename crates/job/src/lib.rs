//! Jobs: a parallel program as one thing, started, watched and ended together [NT §3.1, third set
//! of primitives; NT §3.2].
//!
//! ```text
//!   vmmc run, or Launch ──link──▶ supervisor of node A ──▶ ranks 0, 1      each rank: Job::attach
//!                       ──link──▶ supervisor of node B ──▶ ranks 2, 3      table of the job: mapped from the supervisor
//! ```
//!
//! A process that was started as a rank calls [`Job::attach`] and knows its number, the others, and
//! their memory:
//!
//! ```no_run
//! let job = vmmc_job::Job::attach()?;
//! let mine = job.export("halo", 4096).create()?;
//! let next = job.import((job.rank() + 1) % job.size(), "halo")?.open()?;
//! next.send(0, &job.rank().to_le_bytes())?;
//! let names = job.allgather(b"a few bytes of every rank")?;
//! job.barrier()?;
//! # Ok::<(), vmmc_job::JobError>(())
//! ```
//!
//! **Promises.** The members' view of the job is memory: looking at it asks nobody. A member that
//! ends is an error of collective calls that need it, within a second. Values and barriers pass
//! through the members' own exports.
//!
//! **Does not.** It is no message passing library: [`Job::allgather`] is there to exchange a few
//! bytes at the start.

#![forbid(unsafe_code)]

mod changes;
mod collective;
mod error;
mod kind;
mod launch;
mod launched;
pub mod limits;
pub mod link;
mod member;
mod pmix;
pub mod protocol;
pub mod table;

pub use error::{JobError, LaunchError, LinkError};
pub use launch::{Launch, Place};
pub use launched::{JobEvent, Launched};
pub use member::{ASK_CHANGES, ASK_GROW, ASK_LEAVE, Change, Job};
pub use protocol::{Exit, MemberState, Stream};

/// All handles go between threads.
const _: () = {
    const fn check<T: Send + Sync>() {}
    check::<Job>();
};

/// The programs in documents compile.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/running.md")]
    struct Running;
}
