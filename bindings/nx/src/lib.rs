//! The calls of NX (Intel Paragon OSF/1) for C programs, under their own names: `libvmmc_nx`.
//!
//! ```text
//!  csend(…)  ──▶ on an error a line on standard error, and the end of all processes ┐
//!  _csend(…) ──▶ on an error -1 and errno                                           ┴▶ vmmc_nx::Nx of this process
//! ```
//!
//! `include/nx.h` declares and explains them; `docs/nx.md` tells the rest.
//!
//! **Promises.** No panic leaves this library. A number that makes no sense is an error before
//! anything happens. Memory is used as the header says, and no longer.

// Names and arguments are those of NX.
#![allow(non_upper_case_globals, clippy::missing_safety_doc)]

pub mod applications;
mod calls;
pub mod global;
pub mod handlers;
mod memory;
pub mod messages;
mod process;

pub use process::{last_error, msginfo};
