//! Named bounds of calls of ONC RPC.
//!
//! Invariant: every queue, table and wait of this crate takes its bound from here.

use std::time::Duration;

/// Bytes of a record.
pub use onc_rpc::limits::RECORD_BYTES_MAX;
/// Frames of each side for each other one, and their bytes: the longest there are, so that a record
/// of 64 KiB is one message, and two, so that one is filled while the other is read.
pub const FRAMES: (u64, u64) = (2, 64 << 10);
/// Callers that a server knows: as many as an endpoint has senders.
pub const CALLERS_MAX: usize = 2048;
/// Time that `clnt_vmmc_create` has, unless it is told.
pub const CREATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that rpcbind has to answer; it is on the same machine, or only a hint is lost.
pub const RPCBIND_TIMEOUT: Duration = Duration::from_secs(1);
