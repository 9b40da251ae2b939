//! Named bounds of calls of ONC RPC.
//!
//! Invariant: every queue, table and wait of this crate takes its bound from here.

use std::time::Duration;

/// Bytes of a record.
pub use onc_rpc::limits::RECORD_BYTES_MAX;
/// Frames of each side for each other one, and their bytes: the longest there are, so that a record
/// of 64 KiB is one message, and two, so that one is filled while the other is read.
pub const FRAMES: (u64, u64) = (2, 64 << 10);
/// Bytes of a long record that one message carries: a frame with the head of a piece.
pub const PIECE_BYTES: usize = (64 << 10) - 16;
/// Bytes of records that a server keeps for callers that have sent, or taken, a part of them: eight
/// of the longest. A caller whose record finds no room is told that the server is busy.
pub const KEPT_BYTES_MAX: usize = 8 * RECORD_BYTES_MAX;
/// Callers that a server knows: as many as an endpoint has senders.
pub const CALLERS_MAX: usize = 2048;
/// Time that `clnt_vmmc_create` has, unless it is told.
pub const CREATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that rpcbind has to answer; it is on the same machine, or only a hint is lost.
pub const RPCBIND_TIMEOUT: Duration = Duration::from_secs(1);
