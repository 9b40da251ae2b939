//! Tests of whole runs: a small sweep, determinism, the planted bugs, and seeds that once failed.

mod planted;
mod regressions;
mod runs;
