//! A whole VMMC cluster in one process: the real engines of every node on a virtual clock, from one
//! seed.
//!
//! [`run`] takes [`Options`] and gives a [`Report`], or the [`Failure`] of the first property that
//! did not hold, with the command that replays it. [`run_many`] does a range of seeds on several
//! threads. [`run_links`] has streams in the place of the workload, and links with a rate, a queue
//! and competitors in the place of the faulty network.
//!
//! ```text
//!   workload ──post, export, import──▶ Engine 0 ──datagrams──▶ ┌─────────┐
//!      ▲                                  │ ▲                  │ network │ loss, duplication, reordering, damage,
//!      │                            copies│ │timeouts          │         │ delay, partitions, dead interfaces
//!      │                                  ▼ │                  └─────────┘
//!    model ◀──── judge ◀── attributed observations                  │
//!      │           │                                                ▼
//!      └──────▶ checkers: one per property                     Engine 1 ... 63
//! ```
//!
//! What it promises: equal options give the same run, packet for packet, on every machine; every
//! engine is a real [`vmmc_nic::Engine`], called as its documentation says; after every observation
//! every checker has judged. What it does not do: rings, daemons, system calls and threads are no
//! part of it, those are tested with real processes.
//!
//! The properties, each in a file of `checkers`: exactly once, order per channel, confinement to
//! exported ranges with the right (and the right bytes, the last one last), nothing after
//! revocation, one notification per request, records of rings in their order and none ahead of one
//! that was refused, redirection as reported, errors only for a reason, progress once faults end,
//! bounded memory.
//!
//! ```
//! let report = vmmc_sim::run(vmmc_sim::Options { steps: 20, ..vmmc_sim::Options::new(2, 1) })?;
//! assert_eq!(report.steps, 20);
//! # Ok::<(), Box<vmmc_sim::Failure>>(())
//! ```

#![forbid(unsafe_code)]

mod agenda;
mod chaos;
mod checkers;
mod cluster;
mod events;
mod gauges;
mod hosted;
mod judge;
pub mod limits;
mod links;
mod many;
mod memory;
mod model;
mod network;
mod operations;
mod options;
mod pattern;
mod redirecting;
mod report;
mod rings;
mod rng;
mod run;
mod spans;
mod tamper;
mod tokens;
mod trace;
mod workload;

#[cfg(test)]
mod tests;

pub use hosted::{Hosted, HostedError, HostedOptions};
pub use links::{
    Goal, GoalSummary, LinkFailure, LinkOptions, LinkReport, LinkSweep, Moment, Shape, TcpKind, jain, run_links,
    run_links_many,
};
pub use many::{Sweep, run_many};
pub use options::{Faults, Mode, Options};
pub use report::{EngineCounts, Failure, FaultCounts, Report};
pub use run::run;
