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
pub const TOKENS_MAX: u32 = 1 << 16;
/// Time to ask the node about a socket that came from another program.
pub const ADOPT_TIME: Duration = Duration::from_millis(200);
