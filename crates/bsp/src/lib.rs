//! Bulk synchronous parallel programs: processes compute, put, get and send in a superstep, and
//! `sync` ends it for all. The calls are those of BSPlib; C programs use `bsp.h`.
//!
//! ```text
//!  superstep n: compute, put, get, send ──▶ sync ──▶ superstep n + 1: what was put, got and sent is there
//! ```
//!
//! ```no_run
//! use vmmc_bsp::Bsp;
//! let mut bsp = Bsp::attach()?; // in a process that `vmmc run -n 4` has started
//! let all = bsp.area(vec![0.0f64; bsp.nprocs() as usize]);
//! bsp.push_reg(all)?;
//! bsp.sync()?;
//! for to in 0..bsp.nprocs() {
//!     bsp.put(to, &[f64::from(bsp.pid())], all, bsp.pid() as usize)?;
//! }
//! bsp.sync()?;
//! let sum: f64 = bsp.read(all)?.iter().sum();
//! println!("process {} knows that the sum is {sum}", bsp.pid());
//! bsp.end()?;
//! # Ok::<(), vmmc_bsp::BspError>(())
//! ```
//!
//! **Promises.** All gets of a superstep read before anything is written; what is put is copied at
//! once. A superstep without data costs one barrier; short data goes with it, longer data is read
//! by its receiver. Memory is bounded for each process. A member that dies is an error of `sync`
//! within a second. How it works: docs/bsp.md.
//!
//! **Does not.** There are no subsets of processes, and no threads: one thread of a process makes
//! the calls.

#![forbid(unsafe_code)]

mod board;
mod bsp;
mod error;
pub mod limits;
mod members;
mod outbox;
mod process;
mod queue;
mod registry;
mod superstep;
mod transport;
mod wire;

pub use bsp::{Area, Bsp, Message, Value};
pub use error::{BspError, Gone};
pub use process::{Builder, Process};
pub use registry::{Place, Places};

/// The programs in documents compile.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/bsp.md")]
    struct Documented;
}

/// Handles go between threads.
const _: () = {
    const fn check<T: Send>() {}
    check::<Bsp>();
};
