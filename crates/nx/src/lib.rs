//! The message passing of NX, as on the Intel Paragon, among the processes of a job.
//!
//! ```text
//!  csend(type, bytes, node, ptype) ──▶ tag = type, own ptype, other's ptype ──▶ vmmc-mp ──▶ crecv(typesel, …)
//!  hsend, hrecv ──▶ handler, on a thread of the library, unless masktrap says no
//!  isend, irecv ──▶ id ──▶ msgwait, msgdone, msgignore, msgcancel, msgmerge
//! ```
//!
//! ```no_run
//! use vmmc_nx::{ANY, Nx};
//! let nx = Nx::attach()?; // in a process that `vmmc run` has started
//! let next = (nx.mynode() + 1) % nx.numnodes();
//! nx.csend(1, &nx.mynode().to_le_bytes(), next, nx.myptype())?;
//! let mut number = [0; 8];
//! nx.crecvx(1, &mut number, ANY, ANY)?;
//! println!("node {} before node {}", i64::from_le_bytes(number), nx.mynode());
//! # Ok::<(), vmmc_nx::NxError>(())
//! ```
//!
//! **Promises.** Messages of one node to another with the same type come in the order in which they
//! were sent. A message that does not fit its buffer is an error and never written beyond it. A
//! wrong node, type, process type, length or id is an error before anything happens. Who waits for
//! a process that has died gets an error within a second.
//!
//! **Does not.** NX drops messages of "force" types (from 2^30 on) that nobody waits for; here they
//! are kept as others. How it maps to jobs, and what else differs: docs/nx.md.

#![forbid(unsafe_code)]

mod application;
mod asynchronous;
mod clock;
mod copies;
mod error;
mod global;
mod handlers;
pub mod limits;
mod nx;
mod pending;
mod select;

pub use application::{Application, Partition};
pub use clock::{dclock, mclock};
pub use error::NxError;
pub use nx::Nx;
pub use pending::{Buffer, Done, Payload};
pub use select::{ANY, Info};

/// The programs in documents compile.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/nx.md")]
    struct Documented;
}

/// All handles go between threads.
const _: () = {
    const fn check<T: Send + Sync>() {}
    check::<Nx>();
};
