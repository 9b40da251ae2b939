//! Named bounds of the command.
//!
//! Invariant: every wait, table and repetition of this crate takes its bound from here, with the
//! reason for the number.

use std::time::Duration;

/// Runs of every series unless `--runs` says otherwise: enough for a median that one disturbed run
/// cannot move.
pub(crate) const RUNS: u32 = 5;
/// The same of series that are compared with others that keep both cores busy too. Where a
/// hypervisor moves virtual cores about, they are near each other in one moment and far apart in
/// the next, and a ratio is one of a moment: many short turns.
pub(crate) const TURNS: u32 = 25;
/// Runs of every series in the demo, which has 30 s for everything.
pub(crate) const DEMO_RUNS: u32 = 9;
/// Runs, of however many, in which series take part that need much longer than a turn:
/// [`SLOW_BYTES`] and the programs of others.
pub(crate) const SLOW_RUNS: u32 = 5;
/// Messages from here on take longer than a turn.
pub(crate) const SLOW_BYTES: u64 = 16 << 20;
/// Most runs that can be asked for: above this nobody waits for the end.
pub(crate) const RUNS_MAX: u32 = 1000;
/// Time that all runs of a series together aim at, unless `--time-ms` says what one is to take.
pub(crate) const SERIES_TIME: Duration = Duration::from_millis(500);
/// The same of the demo.
pub(crate) const DEMO_SERIES_TIME: Duration = Duration::from_millis(150);
/// Least and most that one measurement aims at then: a shorter one is mostly preparation.
pub(crate) const MEASURE_TIME: (Duration, Duration) = (Duration::from_millis(15), Duration::from_millis(100));
/// Part of a measurement that is spent on warming up caches, branch predictors and the clock of the
/// core, in percent.
pub(crate) const WARM_UP_PERCENT: u64 = 20;
/// Round trips that show how long one takes, before the measurement proper.
pub(crate) const CALIBRATION_TRIPS: u64 = 64;
/// What a member computes between two polls of its messages.
pub(crate) const COMPUTED_BETWEEN_POLLS: Duration = Duration::from_micros(20);
/// Round trips in one sample when a single one is shorter than [`BATCH_BELOW`]: reading the clock
/// costs about as much as such a round trip.
pub(crate) const BATCH_TRIPS: u64 = 32;
/// Round trips shorter than this are timed in batches.
pub(crate) const BATCH_BELOW: Duration = Duration::from_micros(2);
/// Fewest samples of a measurement, however long one takes.
pub(crate) const SAMPLES_MIN: u64 = 16;
/// Most samples of a measurement: 3.2 MB of them.
pub(crate) const SAMPLES_MAX: u64 = 400_000;
/// Fewest messages of a bandwidth measurement, however long one takes.
pub(crate) const MESSAGES_MIN: u64 = 2;
/// Most messages of a bandwidth measurement.
pub(crate) const MESSAGES_MAX: u64 = 4_000_000;
/// Polls of a shared word between two reads of the clock while spinning.
pub(crate) const SPINS_A_POLL: u32 = 1 << 14;
/// Polls of a shared word between two yields, when others need the processor: less than a
/// microsecond.
pub(crate) const SPINS_A_YIELD: u32 = 64;
/// Bytes of the ring of a measurement: thousands of records, so that it is never full.
pub(crate) const RING_BENCH_BYTES: u64 = 1 << 20;
/// Longest wait for the other process within a measurement; a measurement takes a fraction of a
/// second, the rest is a busy machine.
pub(crate) const PARTNER_WAIT: Duration = Duration::from_secs(20);
/// Longest wait of the coordinator for one measurement.
pub(crate) const MEASUREMENT_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for temporary nodes to come up.
pub(crate) const NODE_WAIT: Duration = Duration::from_secs(15);
/// Bytes of UDP payload that are never exceeded: what fits an IPv4 datagram.
pub(crate) const DATAGRAM_BYTES_MAX: u64 = 65_507;
/// Bytes of UDP that are under way at one time in the bandwidth measurement, which has no flow
/// control, if half of the receive buffer holds them.
pub(crate) const DATAGRAM_WINDOW_BYTES: u64 = 1 << 20;
/// Datagrams that are under way at one time, at most.
pub(crate) const DATAGRAM_WINDOW: u64 = 64;
/// What the kernel counts for a datagram beside its bytes, at most.
pub(crate) const DATAGRAM_OVERHEAD_BYTES: u64 = 4 << 10;
/// Answers that a window of datagrams gets.
pub(crate) const DATAGRAM_PARTS: u64 = 8;
/// Capacity of the pipe that is measured: the largest that every user may have.
pub(crate) const PIPE_BYTES: usize = 1 << 20;
/// Socket buffers of the Unix and UDP sockets that are measured, granted as far as the machine
/// allows.
pub(crate) const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Largest size that can be measured: four buffers of it must fit a common machine.
pub(crate) const SIZE_BYTES_MAX: u64 = 1 << 30;
/// p99 over p50 of the cache-line limit above which the machine is called noisy.
pub(crate) const NOISY_RATIO: f64 = 4.0;
/// Share of stolen time above which the machine is called noisy.
pub(crate) const NOISY_STEAL: f64 = 0.02;
/// Bytes of one piece of a file that the demo moves: small enough to overlap reading, moving and
/// checking, large enough to hide their hand-overs.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
/// Pieces of a file that the demo has under way.
pub(crate) const PIECES: u64 = 8;
/// Messages of a bandwidth measurement that are under way at once between nodes: two fill a pipe,
/// more hide the hand-overs.
pub(crate) const TRANSFERS: usize = 8;
/// Pauses between two reports of progress: often enough for the eye.
pub(crate) const PROGRESS_PAUSE: Duration = Duration::from_millis(50);
/// Least time of one run of a real program in `vmmc bench sockets`: processor time is counted in
/// hundredths of a second, and its start counts.
pub(crate) const PROGRAM_TIME: Duration = Duration::from_secs(2);
/// Longest run of such a program.
pub(crate) const PROGRAM_WAIT: Duration = Duration::from_secs(120);
/// How long a node that `vmmc exec` started stays after its last process: long enough for the next
/// command typed by hand.
pub(crate) const EXEC_NODE_LINGER: Duration = Duration::from_secs(60);

/// How long a supervisor waits for the first word of a launcher that has its link: within the
/// launcher it is the next line, so this is the time of a busy machine.
pub(crate) const SUPERVISOR_HELLO: Duration = Duration::from_secs(15);
/// Time between two checks of a keeper whether the supervisor is still there, of which a signal
/// notifies it anyway.
pub(crate) const KEEPER_LOOK: Duration = Duration::from_secs(10);
/// Time between two checks of a supervisor whether launcher and node are still there.
pub(crate) const SUPERVISOR_LOOK: Duration = Duration::from_millis(50);
/// Time between SIGTERM and SIGKILL when the supervisor itself is told to end.
pub(crate) const SUPERVISOR_LOST_GRACE: Duration = Duration::from_millis(500);
/// How long the last reports may take to reach the launcher.
pub(crate) const SUPERVISOR_LAST_WORDS: Duration = Duration::from_secs(5);
/// Output on its way to the launcher, bytes; beyond it ranks wait in their writes.
pub(crate) const SUPERVISOR_OUT_BYTES: usize = 512 << 10;
/// Bytes read from a rank's stream at once: what a pipe holds.
pub(crate) const SUPERVISOR_READ_BYTES: usize = 64 << 10;
/// Reads from the stream of a rank that has ended: what its pipe can hold, and some, in case
/// something that it started goes on writing.
pub(crate) const SUPERVISOR_DRAIN_READS: usize = 32;
/// How long a supervisor tries to kill what is left.
pub(crate) const SUPERVISOR_KILL_TIME: Duration = Duration::from_secs(10);
/// Time between two tries.
pub(crate) const SUPERVISOR_KILL_PAUSE: Duration = Duration::from_millis(1);
/// Longest line that is kept whole.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
/// Most nodes of `vmmc run --nodes`: they share one machine.
pub(crate) const LOCAL_NODES_MAX: u32 = 64;
/// A node that `vmmc run --nodes` started ends by itself so many seconds after its last process.
pub(crate) const LOCAL_NODE_LINGER: Duration = Duration::from_secs(2);
/// How long `vmmc run` waits for the reader of its output once it was told to end.
pub(crate) const READER_PATIENCE: Duration = Duration::from_millis(200);
/// How long a server, and then its caller, has slept before it is woken, us, where what is measured
/// is a call that wakes both: the kernel's way of sleep does not change any more by then.
pub(crate) const CALL_ASLEEP_US: u64 = 100;
/// Bytes of answers whose rate `vmmc bench rpc` holds against that of plain sends.
pub(crate) const RPC_STREAM_BYTES: u64 = 64 << 10;
/// Null calls under way at once there: fewer than an endpoint has slots for a sender.
pub(crate) const NULL_CALLS: u64 = 32;
/// Silent clients of a server in `vmmc bench rpc`: one process may have half of the 2,048 that an
/// endpoint takes.
pub(crate) const SILENT_CLIENTS: u64 = 1000;
/// Descriptors that each of them takes, at most, in its process and in that of the server.
pub(crate) const SILENT_DESCRIPTORS: u64 = 8;
/// How long such a server is watched.
pub(crate) const SILENT_WATCH: Duration = Duration::from_secs(1);
/// Silent connections beside the busy one in `vmmc bench sockets`.
pub(crate) const IDLE_SOCKETS: usize = 4000;
/// Silent connections whose memory and processor time it reports.
pub(crate) const MANY_IDLE_SOCKETS: usize = 10_000;
/// Of those, connections that have a thread at the other side; the others have an event loop there.
pub(crate) const IDLE_SLEEPERS: usize = 1000;
/// Time after which a process that has just opened a connection has gone to sleep.
pub(crate) const IDLE_SETTLE: Duration = Duration::from_millis(500);
/// How long they are watched.
pub(crate) const IDLE_WATCH: Duration = Duration::from_secs(2);

/// Rounds before stream sockets between nodes are measured: several times those after which a
/// connection has found its medium.
pub(crate) const BETWEEN_WARM_ROUNDS: u32 = 500;

/// Turn of one of two connections that are compared: short beside what else happens on a machine,
/// long beside a rest in which nodes go to sleep.
pub(crate) const BETWEEN_TURN: Duration = Duration::from_millis(10);

/// Two workers and two daemons poll in a measurement between two nodes.
pub(crate) const CORES_FOR_TWO_NODES: usize = 4;

/// Time between two polls of a log that is followed.
pub(crate) const LOG_LOOK: Duration = Duration::from_millis(200);

/// Runs of every series of `vmmc bench network` unless `--runs` says otherwise, and the time of
/// one: a stream on the longest of its links needs a second to find its rate.
pub(crate) const NETWORK_RUNS: u32 = 3;
/// See [`NETWORK_RUNS`].
pub(crate) const NETWORK_TIME: Duration = Duration::from_secs(3);
/// Packet size of an emulated link: Ethernet's.
pub(crate) const WIRE_MTU: u16 = 1_500;
/// Packets between a namespace and the emulator: two milliseconds of short ones.
pub(crate) const WIRE_QUEUE: u16 = 2_000;
/// Bytes of the longest packet that a device can give.
pub(crate) const WIRE_PACKET_BYTES_MAX: usize = 64 << 10;
/// Packets of one direction that the emulator takes before the other has its turn.
pub(crate) const WIRE_BURST: usize = 64;
/// The emulator has stood still when it is later than this.
pub(crate) const WIRE_STOP: Duration = Duration::from_millis(1);
/// Stops that are remembered: as many as there can be in a measurement of some seconds.
pub(crate) const WIRE_STOPS_MAX: usize = 1 << 14;
/// Time between two checks of the emulator for changes.
pub(crate) const WIRE_LOOK: Duration = Duration::from_millis(2);
/// Bytes of one message of a stream over a link.
pub(crate) const STREAM_BYTES: usize = 256 << 10;
/// Bytes of the export that such a stream goes to.
pub(crate) const STREAM_EXPORT_BYTES: u64 = 64 << 20;
/// Messages of a stream that are under way at once: several times what any emulated link holds.
pub(crate) const STREAM_TRANSFERS: usize = 32;
/// Streams that share a link with their like.
pub(crate) const PAIRS: [usize; 3] = [2, 4, 16];
/// Time between their beginnings, where they begin one after the other.
pub(crate) const PAIRS_APART: Duration = Duration::from_millis(150);
/// Time after which their shares are to be even.
pub(crate) const PAIRS_AFTER: Duration = Duration::from_secs(3);
/// Nodes that send to one at once.
pub(crate) const INCAST_SENDERS: usize = 16;
/// Bytes that each of them sends.
pub(crate) const INCAST_BYTES: u64 = 1 << 20;
/// Time from the begin of the streams of `vmmc ping --load` until pings beside them are counted:
/// enough for the stream to fill what there is to fill.
pub(crate) const LOAD_BEGINS: Duration = Duration::from_millis(500);
/// Longest wait for a message of a stream after the pings beside it: as long as a node waits for a
/// silent one.
pub(crate) const LOAD_MOVES: Duration = Duration::from_secs(5);
/// Rest after each ping beside a stream, so that pings are no load.
pub(crate) const PING_PAUSE: Duration = Duration::from_millis(2);
/// Pings alone, at most: enough for their 99th percentile.
pub(crate) const PINGS_ALONE_MAX: u64 = 2_000;
/// Least bytes of an h-relation that `vmmc bench mp` measures: with fewer it is a superstep without
/// data.
pub(crate) const RELATION_BYTES_MIN: u64 = 1 << 10;
