//! Every bound of the simulator, with its reason.

use std::time::Duration;

/// A cluster needs two ends.
pub const NODES_MIN: usize = 2;
/// Larger than any cluster the project makes promises about (64): what grows too fast shows here.
pub const NODES_MAX: usize = 1_000;
/// Nodes that one node knows and talks to, itself among them: all of a promised cluster, of a
/// larger one those next to it. An engine's peer table has four times as many.
pub(crate) const NODES_KNOWN_MAX: usize = 64;
/// Actions of a run unless told otherwise: enough for every fault to meet every kind of operation
/// over a sweep, few enough that a seed takes tens of milliseconds.
pub const STEPS_DEFAULT: u64 = 300;
/// A step does one more round of actions for so many nodes, so that a large cluster is as busy as a
/// small one.
pub(crate) const NODES_PER_ACTION: usize = 12;
/// Events told on failure: one screen.
pub const TRACE_LINES_DEFAULT: usize = 40;

/// Packets that wait longer than this for their link are dropped, as a switch with a full buffer
/// does. 4 ms at the simulated 10 Gbit/s is 5 MB, a common switch buffer.
pub(crate) const LINK_QUEUE_NS_MAX: u64 = 4_000_000;
/// Old packets kept to be replayed: a few from different sessions.
pub(crate) const REPLAY_STORE_PACKETS: usize = 32;
/// Network interfaces per node: one, or two or three so that one can die.
pub(crate) const PATHS_MAX: usize = 3;
/// Processes on one node at a time: enough for local traffic beside remote traffic.
pub(crate) const PROCESSES_PER_NODE_MAX: usize = 3;
/// Exports alive in one process: small, so that operations meet on the same memory.
pub(crate) const EXPORTS_PER_PROCESS_MAX: usize = 4;
/// Imports a process asks for before it drops some.
pub(crate) const IMPORTS_PER_PROCESS_MAX: usize = 6;
/// Bytes beyond gaps that a node keeps of all peers, where that is to be met: as much as two peers
/// may have in any case.
pub(crate) const HELD_FEW_BYTES: usize = 2 * vmmc_nic::limits::HELD_BYTES_OWN;
/// Operations one process has outstanding before the workload waits.
pub(crate) const OPERATIONS_PER_PROCESS_MAX: usize = 24;

/// The same in a run that floods the queues: more than an engine takes, so that `Busy` is met.
pub(crate) const OPERATIONS_FLOOD: usize = 1_200;
/// A burst of operations is at most this part of what may be outstanding.
pub(crate) const OPERATIONS_PER_BURST_PART: usize = 16;
/// How long after a node has died an operation towards it may be outstanding, beyond the peer
/// timeout: a handshake or keepalive may have to find out first.
pub(crate) const DEAD_PEER_SLACK_NS: u64 = 2_000_000_000;

/// Bytes at the start of exported memory kept for counters (first half) and atomics (second half).
pub(crate) const WORDS_BYTES: u64 = 128;
/// Redirections posted one behind the other: one packet fills many of them, and an export has room
/// for several such rows.
pub(crate) const ROW_MAX: u64 = 60;
/// Tries to find a place for a send that no other outstanding operation uses.
pub(crate) const PLACE_TRIES: usize = 6;

/// Once the network is healed, everything outstanding must be decided within the engine's peer
/// timeout (a session that is beyond rescue is found out) twice (the new one may have to find out
/// about the old), and this for retransmission timers that had backed off.
pub(crate) const PROGRESS_GRACE: Duration = Duration::from_secs(10);
/// How much later than a deadline its answer may come: the engine is stepped exactly at its
/// timeouts, so only rounding of its timers is forgiven.
pub(crate) const DEADLINE_SLACK_NS: u64 = 20_000_000;
/// Events one engine may give in answer to one call before it is called a livelock.
pub(crate) const EVENTS_PER_CALL_MAX: usize = 100_000;
/// Rounds of work one engine may find without time passing before it is called a livelock; a round
/// is a copy of 1 MiB or a burst of datagrams.
pub(crate) const WORK_PIECES_PER_CALL_MAX: usize = 10_000;
/// Datagrams one engine may give in answer to one call before it is called a livelock.
pub(crate) const DATAGRAMS_PER_CALL_MAX: usize = 100_000;
/// Simulator events in one run before it is called a livelock: two hundred times a typical run.
pub(crate) const RUN_EVENTS_MAX: u64 = 20_000_000;
/// How long a probe after the storm waits: as long as everything must be decided in.
pub(crate) const PROBE_PATIENCE_NS: u64 = 15_000_000_000;
/// Simulated time a process table, a session and its acknowledgements may take to come to rest
/// after the last process has left, ns.
pub(crate) const REST_NS: u64 = 2_000_000_000;
/// Simulated time for which the cluster at rest is watched, ns.
pub(crate) const IDLE_NS: u64 = 5_000_000_000;
/// A cluster with nothing outstanding may send this many packets per node while it is watched.
pub(crate) const IDLE_PACKETS_PER_NODE_MAX: u64 = 4;

/// Bytes of IP and UDP headers of a datagram on a link.
pub(crate) const LINK_HEADERS_BYTES: u64 = 28;
/// Time between two looks at a run over links: ten in the shortest time that a stream may stand.
pub(crate) const LINK_SAMPLE_NS: u64 = 10_000_000;
/// How long a stream may take to be let in: a lost hello is sent again within 200 ms.
pub(crate) const LINK_SETUP_NS: u64 = 5_000_000_000;
/// Events of a run over links before it is called a livelock: ten times those of the longest.
pub(crate) const LINK_EVENTS_MAX: u64 = 5_000_000;
/// What may be under way to a node from each peer: more than a stream has, so that nothing but the
/// window holds it back. Daemons have 2 to 8 MiB.
pub(crate) const LINK_BUDGET_BYTES: usize = 4 << 20;
/// How much later than at its pace a node may send: timers are exact, so it is the quantum of the
/// pace and the time until the next look.
pub(crate) const LINK_PACE_SLACK_NS: u64 = 2_000_000;
/// Time between the answer to a ping and the next.
pub(crate) const LINK_PING_NS: u64 = 500_000;
/// Time between two looks while there is nothing to send.
pub(crate) const LINK_REST_NS: u64 = 1_000_000_000;
/// Bytes of a datagram that holds a ping or an acknowledgement, and no data, at most.
pub(crate) const LINK_PING_BYTES_MAX: usize = 100;
/// Longest time in which a stream may get nothing.
pub(crate) const LINK_STILL_NS_MAX: u64 = 1_000_000_000;
