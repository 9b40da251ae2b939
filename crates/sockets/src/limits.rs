//! Named bounds of the socket layer.
//!
//! Invariant: every queue, table, wait and retry of this crate takes its bound from here, with the reason for the number.

use std::time::Duration;

/// Receives with data after which a connection is offered: connections that carry one request or two cost what TCP costs.
pub const OFFER_AFTER_EXCHANGES: u32 = 16;
/// Bytes, either way, after which a connection is offered however few calls moved them.
pub const OFFER_AFTER_BYTES: u64 = 64 << 10;
/// Event loops that can watch one end of a connection: more go back to the kernel.
pub const WATCHERS_MAX: usize = 4;
/// Tokens of one event loop.
pub const TOKENS_MAX: u32 = vmmc_host::stream::TOKENS;
/// Time to ask the node about a socket that came from another program.
pub const ADOPT_TIME: Duration = Duration::from_secs(5);
/// Longest single wait for that answer, which another thread may have read.
pub const ADOPT_SLICE: Duration = Duration::from_millis(5);
/// Tries for the lock of the node's client, each after a yield: its holder sends or takes some messages.
pub const LOCK_TRIES: u32 = 1_000;
/// Time after which a node that did not answer is tried again.
pub const NODE_RETRY: Duration = Duration::from_secs(2);
/// Messages taken from the node in one go.
pub const NEWS_BATCH: usize = 256;
/// Places told in one message after a fork.
pub const HOLD_BATCH: usize = 512;
/// Generations of forked processes; later ones use plain TCP for new connections.
pub const GENERATIONS: usize = 64;
/// Connections whose forks are counted on one page.
pub const LEDGER_ENTRIES: usize = 512;

/// Longest wait without sleep. Between cores nothing was gained beyond 5 us, and a wake-up of a sleeper costs more than 20 us here.
pub const LOOK_TIME: Duration = Duration::from_micros(20);
/// Waits without sleep that fail in a row before some are skipped.
pub const VAIN_WAITS: u32 = 4;
/// Waits that then sleep at once.
pub const SKIPPED_WAITS: u32 = 48;
/// A yield that took longer gave the core to somebody busy.
pub const YIELD_LONG: Duration = Duration::from_micros(100);
/// Waits that then do not yield; four times as many each further time.
pub const NO_YIELD_WAITS: u32 = 64;
/// But not more than this.
pub const NO_YIELD_WAITS_MAX: u32 = 1 << 16;
/// Slice of waits that must not rely on being told: a direction about to change, an end whose holders nobody knows.
pub const CAREFUL_SLICE: Duration = Duration::from_millis(100);
