//! Named bounds of jobs.
//!
//! Invariant: every queue, table and retry of this crate takes its bound from here, with the reason
//! for the number.

use std::time::Duration;

/// Ranks of a job: four nodes full of processes.
pub const JOB_RANKS_MAX: usize = 1024;
/// Nodes of a job: as many as are promised to talk to one.
pub const JOB_NODES_MAX: usize = 64;
/// Longest value of an allgather, bytes: a name, an address, an id and some numbers.
pub const ALLGATHER_BYTES_MAX: usize = 256;
/// How long a rank waits for the table of its job, or for a change of it to be written: the
/// supervisor exports it before it starts anybody, and writes it in microseconds, so this is the
/// time of a busy machine.
pub const JOB_TABLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two polls of the members while a collective call waits: a dead one is an error
/// within a second.
pub const JOB_POLL: Duration = Duration::from_millis(50);
/// Time between two polls, while a member waits for changes, whether the wait was interrupted: a
/// change wakes it at once.
pub const JOB_INTERRUPT_POLL: Duration = Duration::from_millis(20);
/// How long nodes may take to come up with a supervisor.
pub const LAUNCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two polls whether nodes and supervisors are still there.
pub const LAUNCH_POLL: Duration = Duration::from_millis(50);
/// Output of ranks that waits for somebody to take it, bytes; then ranks wait in their writes.
pub const JOB_EVENT_BYTES_MAX: usize = 1 << 20;
/// Standard input under way to one rank, bytes: what it has not read does not hold up what is for
/// others.
pub const JOB_INPUT_BYTES_MAX: u64 = 128 << 10;
/// Bytes of the ring on either side of a link: a round trip between nodes at several hundred MB/s,
/// and little to reserve.
pub const LINK_RING_BYTES: u64 = 256 << 10;
/// Bytes of one send through a link: what fits one staging chunk of middle size.
pub const LINK_PIECE_BYTES: u64 = 32 << 10;
/// Longest message of a link, bytes: arguments and environment may have a few MiB.
pub const LINK_MESSAGE_BYTES_MAX: usize = 16 << 20;
/// How long a change of a member may take from one node of a job to another, on a busy machine:
/// errors wait so long for their cause.
pub const JOB_CHANGE_TIME: Duration = Duration::from_millis(500);
