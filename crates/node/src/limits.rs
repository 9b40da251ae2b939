//! Named bounds of the node.
//!
//! Invariant: every queue, table and retry of this crate takes its bound from here, with the reason
//! for the number.

use std::time::Duration;

/// Commands taken from one ring before the next ring has its turn: long enough to fill a packet
/// with short sends, short enough that 64 busy rings turn in a millisecond.
pub const RING_BATCH: usize = 32;
/// Pages of its own that a command may name for the price of one command: the node checks whether
/// each is pinned.
pub const RING_WORK_PAGES: u64 = 512;
/// Ranges of a gather-send for the price of one command: the node copies each by itself.
pub const RING_WORK_RANGES: u64 = 32;
/// Bytes that had arrived in a redirected range and that are copied for the price of one command,
/// and pieces of them.
pub const RING_WORK_COPIED_BYTES: u64 = 32 << 10;
/// See [`RING_WORK_COPIED_BYTES`].
pub const RING_WORK_COPIES: u64 = 16;
/// Redirections of one process that wait for what had arrived to be copied, more than a local copy
/// step each: with so many no further command of the process is taken. Those that were withdrawn
/// are among them until their turn.
pub const REDIRECTING_PER_PROCESS_MAX: usize = 16;
/// Polls of a ring in vain before it is polled only now and then.
pub const RING_QUIET_POLLS: u32 = 256;
/// Steps between two polls of quiet rings: adds some microseconds to the first command after a
/// pause, and spares the others the poll.
pub const RING_QUIET_EVERY: u32 = 16;
/// Up to this many rings are all polled each time: it costs less than deciding.
pub const RINGS_FEW: usize = 4;
/// Connections, attached or not: all processes that the engine takes, and the programs whose stream
/// sockets are served. One user has half of them, unless it is the node's own.
pub const CONNECTIONS_MAX: usize = 640;
/// Connections beside them that are only told why they are not served.
pub const REFUSED_CONNECTIONS_MAX: usize = 64;
/// Connections taken before rings and network have their turn.
pub const ACCEPT_BATCH: usize = 64;
/// Descriptors that came with messages of one user and wait to be closed, for a socket's peer or a
/// file system of the user's, at which nothing more is taken from it. One message more may have
/// come.
pub const UNCLOSED_MAX: usize = 64;
/// Descriptors of all users that wait to be closed, control sockets included, at which no
/// connection is taken: those of a full table of connections, and as many of some that were turned
/// away.
pub const UNCLOSED_ALL_MAX: usize = 4_096;
/// Threads that close: as many users as have file systems that never answer, and some.
pub const CLOSERS_MAX: usize = 16;
/// Those of them that a daemon makes when it starts, for later it may get none.
pub const CLOSERS_KEPT: usize = 2;
/// Threads that close sockets of one user; of files it has one.
pub const SOCKET_CLOSERS_MAX: usize = 4;
/// Time after which a thread that has taken a descriptor is in the system call that closes it, so
/// that nobody can copy it any more.
pub const CLOSE_BEGUN: Duration = Duration::from_millis(1);
/// Time after which a close is interrupted, and then again after twice as long: a thousand times
/// what one takes that waits for nothing, so that a user that makes it wait holds up some hundred
/// others of its own in a second, and no fewer.
pub const CLOSE_TIME_LIMIT: Duration = Duration::from_millis(2);
/// Memory of one region, bytes, that the thread that serves everybody gives back to the kernel
/// itself: some 30 us. More is given back by the threads that close.
pub const CLOSED_AT_ONCE_BYTES: u64 = 1 << 20;
/// Time without work after which another thread that closes ends.
pub const CLOSER_IDLE: Duration = Duration::from_secs(1);
/// Time that a node gives its own end for closing.
pub const CLOSE_TIME: Duration = Duration::from_secs(1);
/// Time for which no connection is taken after the node had no descriptor left for one.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Descriptors that a daemon keeps to give up when there is none: connections that it turns away in
/// such a time.
pub const SPARES: usize = 8;
/// Descriptors that shares leave to the node itself: sockets, files, supervisors.
pub const DESCRIPTORS_KEPT: u64 = 128;
/// Mappings that shares leave to the node itself: its libraries, heaps, threads, and the areas of
/// its processes, three each.
pub const MAPPINGS_KEPT: u64 = 4_096;
/// Descriptors of the node for an attached process: attach area, gate tables, notify bell, wake
/// pipe, doorbell, events socket, watch.
pub const DESCRIPTORS_PER_PROCESS: u32 = 10;
/// Descriptors of the node for a region: as it came, and for importers that only read.
pub const DESCRIPTORS_PER_REGION: u32 = 2;
/// Descriptors of the node for a pair of processes of which one maps memory of the other: wake-ups
/// and notification ring.
pub const DESCRIPTORS_PER_LINK: u32 = 2;
/// Slots of the tables of imports of the processes of users other than the node's own, free ones
/// too: each costs some 150 bytes, and three times as much for a while after most have been
/// released.
pub const IMPORTS_MAX: usize = 262_144;
/// Slots of such a table that has memory for them without use.
pub const IMPORTS_SLOTS_KEPT: usize = 64;
/// Pages that the node made for processes which have ended, while clients of users other than the
/// node's own keep them: 64 MiB.
pub const OUTLIVED_PAGES_MAX: u64 = 16_384;
/// Rings of notifiers which have gone that a process may not have read to the end: 16 KiB each. Of
/// more, the oldest are emptied.
pub const FORMER_RINGS_MAX: usize = 32;
/// Slots of a table of a process's regions that has memory for them without use.
pub const REGION_SLOTS_KEPT: usize = 64;
/// Time between two checks whether the node is stuck in memory of a client. While it is, it serves
/// nobody, so the check finds it there.
pub const HELD_UP_CHECK: Duration = Duration::from_millis(50);
/// The same at most while the node touches nobody's memory: each check doubles it.
pub const HELD_UP_CHECK_IDLE: Duration = Duration::from_millis(400);
/// The same after it was found so, and [how often](HELD_UP_SOON).
pub const HELD_UP_CHECK_SOON: Duration = Duration::from_millis(2);
/// See [`HELD_UP_CHECK_SOON`].
pub const HELD_UP_SOON: u32 = 100;
/// Time for which memory of one user may keep the node in [`HELD_UP_WINDOW`]: a thousand times what
/// a page takes that is there.
pub const HELD_UP_MAX: Duration = Duration::from_millis(100);
/// See [`HELD_UP_MAX`].
pub const HELD_UP_WINDOW: Duration = Duration::from_secs(10);
/// Time for which a user is not served whose memory kept the node longer: six hundred times as
/// long.
pub const BARRED_TIME: Duration = Duration::from_secs(60);
/// Redirections posted on a node by users other than its own: each costs some 200 bytes. One
/// process has at most a quarter of them, as the engine bounds it.
pub const REDIRECTIONS_MAX: usize = 4 * vmmc_nic::limits::REDIRECTS_PER_PROCESS_MAX;
/// Calls that wait for an answer, all processes together: as many as the engine takes.
pub const CALLS_MAX: usize = vmmc_nic::limits::IMPORTS_WAITING_MAX;
/// Addresses from which users other than the node's own wait for imports and pings: each may become
/// a peer, and the promised 64 others have room beside them.
pub const PEERS_CALLED_MAX: usize = 128;
/// Time that a connection may take to attach.
pub const ATTACH_TIME: Duration = Duration::from_secs(5);
/// Connections that are closed in a turn: each costs some system calls.
pub const CLOSES_PER_TURN: usize = 16;
/// Of these, connections of processes, or clients of the sockets service: each takes its exports,
/// imports and waits along, of which it may have tens of thousands, some milliseconds.
pub const CLOSES_PER_TURN_OF_PROCESSES: usize = 1;
/// Revocations that are polled in a turn, and of these the share of one process before the next has
/// its turn: each is a read of the lanes of the processes that are inside a transfer.
pub const REVOCATIONS_PER_TURN: usize = 128;
/// See [`REVOCATIONS_PER_TURN`].
pub const REVOCATIONS_PIECE: usize = 8;
/// Control messages taken from one connection before the next has its turn.
pub const CONTROL_BATCH: usize = 16;
/// Work for one user's control messages before rings, network and other users have their turn, in
/// messages of the cheap kind (some microseconds). A millisecond.
pub const CONTROL_USER_TURN: usize = 128;
/// What a message is worth that makes the node describe itself: it walks all its tables.
pub const CONTROL_WORK_INFO: usize = 64;
/// And one that makes it reserve the areas of a process.
pub const CONTROL_WORK_ATTACH: usize = 16;
/// And one that maps memory, or unmaps it.
pub const CONTROL_WORK_MAP: usize = 4;
/// Bytes of a message that are read, and perhaps repeated in an answer, for the price of one.
pub const CONTROL_WORK_BYTES: usize = 1 << 10;
/// Pages that are pinned or given up for the price of one.
pub const CONTROL_WORK_PAGES: u64 = 256;
/// Events of the engine that are handed out before the rest has its turn: one export that ends
/// breaks tens of thousands of imports.
pub const EVENTS_PER_TURN: usize = 1_024;
/// Calls of one process that wait for an answer (imports that wait, pings): one for each import
/// that it may have, roughly.
pub const CALLS_WAITING_MAX: usize = 4_096;
/// Bytes of replies or events of one connection that wait for room in its socket, bookkeeping
/// included: all imports of a process may break at once. While replies wait, no request of the
/// connection is read. A process that leaves more uncollected is let go.
pub const OUTBOX_BYTES_MAX: usize = 8 << 20;
/// Bookkeeping of a message that waits.
pub const OUTBOX_ENTRY_BYTES: usize = 128;
/// Descriptors that wait so: those of a process that is told of all others, and some. A call whose
/// answer would bring more is refused.
pub const OUTBOX_FDS_MAX: usize = 512;
/// Descriptors that the node has sent on one socket and its client has not taken: 25 replies of
/// imports that are mapped. What comes after them waits in the outbox.
pub const UNDER_WAY_PER_SOCKET_MAX: u32 = 128;
/// Part of the descriptors that this process may have that may be so in all queues together, half
/// of it for one user alone: the kernel lets none of the node's user through beyond all of them,
/// and other programs of that user send some, too.
pub const UNDER_WAY_PART: u64 = 2;
/// Time between two polls whether such descriptors were taken, each of which asks the kernel about
/// all sockets that have some: some 200 us for a full table.
pub const UNREAD_POLL: Duration = Duration::from_millis(10);
/// Longest such time for connections that are over, after polls that found nothing.
pub const UNREAD_POLL_MAX: Duration = Duration::from_millis(500);
/// Bytes that wait so for all connections of one user.
pub const OUTBOX_USER_BYTES_MAX: usize = 64 << 20;
/// Time between two tries to send what waits in an outbox.
pub const OUTBOX_RETRY: Duration = Duration::from_millis(2);
/// Time for which a revocation waits for mapped transfers under way: the copy of 1 GiB, and some.
/// Then the exporter is told to move its pages.
pub const REVOCATION_WAIT: Duration = Duration::from_millis(200);
/// Time between two polls of the lanes of a revocation that waits while the node has nothing else
/// to do.
pub const REVOCATION_POLL: Duration = Duration::from_micros(100);
/// Revocations of one process that wait at once.
pub const REVOCATIONS_PER_PROCESS_MAX: usize = 1_024;
/// Failures of posted sends remembered for a process until its completion ring has room; further
/// ones of the same import say nothing new.
pub const SEND_FAILURES_MAX: usize = 256;
/// Longest wait of a call that names none we believe: a day.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Entries of each list in a description, so that it fits a control message.
pub const INFO_LIST_MAX: usize = 256;
/// Figures of processes in a description, each of which takes some 200 ns: a user has no more of
/// them than are then free.
pub const PUBLISHED_FIGURES_MAX: usize = 1024;
/// Bytes of a description's lists, for the same reason.
pub const INFO_BYTES_MAX: usize = 48 << 10;

/// Supervisors of jobs that one node has at once: each is a process, and takes a place among those
/// that the engine serves.
pub const SUPERVISORS_MAX: usize = 64;
/// Supervisors started in a row for one user, neither the node's own nor root: all that it may
/// have. Each is a fork of the daemon, a millisecond and more.
pub const STARTS_BURST: u32 = SUPERVISORS_MAX as u32 / 2;
/// Time after which one more may be started for it: an eightieth of the node's time at most.
pub const STARTS_EVERY: Duration = Duration::from_millis(250);
/// Time that a supervisor may take until it serves; then it is ended. An idle machine takes some
/// milliseconds, and the client that waits for it gives up about then.
pub const ACTIVATION_TIME: Duration = Duration::from_secs(20);
/// Users whose starts are remembered; of more, those who have waited longest are forgotten.
pub const STARTERS_MAX: usize = 1_024;
/// Pause before the second search for what a killed supervisor left behind; doubles up to
/// [`ORPHANS_PAUSE_MAX`].
pub const ORPHANS_PAUSE: Duration = Duration::from_millis(5);
/// Longest such pause: what runs away from the search, by forking again and again, costs a thread
/// one scan of all processes in that time.
pub const ORPHANS_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Bytes at the end of the standard error of a daemon or a supervisor that are worth repeating.
pub const STDERR_TAIL_BYTES: usize = 4096;
/// Notes kept for `vmmc node status`: the last refusals, not a log file.
pub const NOTES_MAX: usize = 64;
/// Of these, notes about one user: its next one takes the place of its oldest.
pub const NOTES_PER_USER_MAX: usize = 8;
/// Bytes of one note.
pub const NOTE_BYTES_MAX: usize = 400;

/// Bytes of a file of a daemon's log before the next one begins: some ten thousand lines.
pub const LOG_FILE_BYTES_MAX: u64 = 1 << 20;
/// Old files of a log that are kept beside the one that is written.
pub const LOG_FILES_KEPT: usize = 3;
/// Nodes whose logs stay in a folder; of more, the oldest go. So a user's logs take at most 256
/// MiB, and as a rule far less.
pub const LOG_NODES_KEPT: usize = 64;
/// Bytes of a line of the log: a note, and some. Less than a pipe takes at once.
pub const LOG_LINE_BYTES_MAX: usize = 1024;
/// Lines that one source (a user's processes, a peer) may cause in a row.
pub const LOG_BURST: u32 = 20;
/// Time after which it may cause another one.
pub const LOG_EVERY: Duration = Duration::from_secs(5);
/// Lines that all sources together may cause in a row.
pub const LOG_ALL_BURST: u32 = 500;
/// Time after which they may cause another one: a file lasts a quarter of an hour at the worst.
pub const LOG_ALL_EVERY: Duration = Duration::from_millis(100);
/// Sources whose shares are remembered.
pub const LOG_SOURCES_MAX: usize = 256;
/// Lines of the station that wait until the daemon writes them, which it does after each step.
pub const LOG_WAITING_MAX: usize = 256;
/// Time between two reads of the counters of packets and calls that reveal attacks and mistakes.
pub const LOG_COUNTERS_EVERY: Duration = Duration::from_secs(10);

/// Pages that one call may pin and unpin: 64 MiB, so that a call never keeps the node for long.
pub const PINS_PER_CALL_MAX: u64 = 16_384;
/// Second-level tables of translations (4 KiB each, of 512 pages) that a process may have beyond
/// one for each page that it has registered. A page has one address, so an honest process needs
/// none of them, but for what it has just released; and what the node keeps for a process stays in
/// proportion to the process's own memory.
pub const TABLES_BEYOND_PAGES_MAX: u64 = 64;
/// Pins of one process that wait for memory: its threads', and those whose callers have stopped
/// waiting.
pub const PINS_WAITING_MAX: usize = 8;
/// Runs of pages that the waiting pins of one user name together: 6 MiB.
pub const PIN_RUNS_WAITING_MAX: usize = 262_144;
/// Time within which a process gives pinned memory back that others need: a hundred times what a
/// sleeping process takes. Then the node takes it.
pub const RECLAIM_TIME: Duration = Duration::from_millis(250);
/// Part of the machine's memory that may be pinned at a node, unless configured: one in so many.
pub const PINNED_PART: u64 = 4;
/// Most pages that a configuration may let be pinned: 4 PiB.
pub const PINNED_PAGES_MAX: u64 = 1 << 40;

/// Memory of at least that size goes to a node of this machine by reference to its pages, with two
/// to three system calls instead of one: in a C program that moves datagrams with four, 16 KiB were
/// a tenth slower than copied, 32 KiB a tenth faster, 60 KiB two fifths.
pub const SPLICE_BYTES_MIN: usize = 32 << 10;
/// So many datagrams behind a long one are looked at before they are taken, for the next long one
/// may go to its place at once; between the parts of a message come some short ones. A look at a
/// short one is no call more: it is the receive.
pub const LOOKS: u32 = 16;
/// Sends to the network before rings have their turn.
pub const TRANSMIT_BATCH: usize = 64;
/// Bytes asked for as socket buffers; the kernel may grant less.
pub const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// Least bytes that a peer may have under way to this node, on loopback: two datagrams of the
/// largest size.
pub const BUDGET_BYTES_MIN: usize = 128 << 10;
/// Most bytes, on loopback: what fits the cache beside its source and destination. With 4 MiB half
/// of the bandwidth was lost.
pub const BUDGET_BYTES_LOOPBACK: usize = 1 << 20;
/// Bytes, elsewhere: a link of 100 Gbit/s and 1.3 ms, or of 1 Gbit/s and 130 ms.
pub const BUDGET_BYTES_MAX: usize = 16 << 20;
/// Runs of datagrams that wait for room in a socket: the one that found none, and the one that was
/// gathered behind it.
pub const HELD_RUNS_MAX: usize = 2;
/// Steps with work between two sleeps after which sockets no longer report to the epoll set.
pub const DISARM_STEPS: u32 = 64;
/// Addresses whose path size and socket are remembered: four for each of the engine's peers.
pub const ROUTES_MAX: usize = 1_024;
/// Addresses probed for their path size in a second: spoofed senders must not make us busy.
pub const PROBES_PER_SECOND: u32 = 100;

/// Time without work after which a node sleeps.
pub const AWAKE_TIME: Duration = Duration::from_nanos(vmmc_host::limits::NODE_POLL_NS);
/// Longest data that a sleeping thread may be waiting for a word of.
pub const AWAITED_BYTES_MAX: u64 = 4096;
/// Processes that are woken after one step because of such data; more find it at their next check,
/// at most a millisecond later.
pub const TOUCHED_MAX: usize = 64;
/// Time between two polls of the control sockets while rings and network are busy.
pub const CONTROL_POLL_EVERY: Duration = Duration::from_micros(50);
/// Steps without work between two polls of the control sockets.
pub const CONTROL_POLL_STEPS: u32 = 16;
/// Steps without work before the first of them.
pub const CONTROL_POLL_FIRST: u32 = 4;
/// The same while processes are saying something: one call follows another.
pub const CONTROL_FREQUENT_STEPS: u32 = 2;
/// Empty polls after which they are not.
pub const CONTROL_FREQUENT_POLLS: u32 = 32;
/// Time for which the background poller of an embedded node leaves it to callers that step it.
pub const POLLER_SLEEP: Duration = Duration::from_millis(1);
/// Longest such time, while callers step it again and again: shorter than the shortest
/// retransmission timer of a peer, which would fire needlessly when they stop.
pub const POLLER_SLEEP_MAX: Duration = Duration::from_millis(4);
/// Longest sleep of anything, so that a lost timer is late and not forgotten.
pub const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Users that a node may be told to serve by their ids: more than that is a group, and `any` serves
/// it.
pub const SERVED_USERS_MAX: usize = 256;

/// A peer that owes an answer for this long is dead, unless configured.
pub const PEER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Shortest such time: some retransmissions must fit.
pub const PEER_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Longest linger: a year.
pub const LINGER_SECONDS_MAX: u64 = 366 * 24 * 3600;
/// Time for which a daemon that starts in the background may take until it answers.
pub const START_TIME: Duration = Duration::from_secs(10);
/// Time between two polls whether it does.
pub const START_POLL: Duration = Duration::from_millis(2);
/// Time for saying goodbye to peers and processes at the end.
pub const GOODBYE_TIME: Duration = Duration::from_millis(50);

/// Clients of the metrics that are served at once; one more ends the oldest.
pub const METRICS_CLIENTS_MAX: usize = 16;
/// Age of a description at which the daemon's loop makes another one, however many ask.
pub const METRICS_FRESH: Duration = Duration::from_millis(100);
/// How long a client of the metrics may take for its request and for each part of its answer, and
/// the daemon's loop for the answer.
pub const METRICS_TIME: Duration = Duration::from_secs(2);
/// Time between two tries to take a client of the metrics when the first one failed.
pub const METRICS_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a request for metrics: its head, of which the first line matters.
pub const METRICS_REQUEST_BYTES_MAX: usize = 8 << 10;
/// Time between two draws of fresh randomness for the keys of later sessions: a few microseconds
/// each, once a second.
pub const STIR_EVERY: Duration = Duration::from_secs(1);

/// Messages read from a client of a service that has gone: more than its socket holds.
pub const SERVICE_DRAIN_MESSAGES_MAX: usize = 4_096;

/// Parts of a message between nodes that a service can give at once, and the head before them.
pub const SERVICE_MESSAGE_PARTS_MAX: usize = 8;
