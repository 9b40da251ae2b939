//! Every bound of the engine, with its reason. A queue, table or retry that is not here does not
//! exist.

use std::time::Duration;

/// Whether somebody who holds `own` of a table, of which `total` of `max` are taken, may take
/// another entry: only while it then holds no more than is still free. So one that takes all it
/// gets leaves half for the others, `k` of them leave one part in `k + 1`, and nothing is set aside
/// for those who do not come.
pub(crate) fn share_allows(own: usize, total: usize, max: usize) -> bool {
    own + 2 <= max.saturating_sub(total)
}

/// Bytes in a node name: fits a DNS label, so host names can serve.
pub const NODE_NAME_BYTES_MAX: usize = 63;
/// Bytes in the name of an export: one length byte on the wire.
pub const EXPORT_NAME_BYTES_MAX: usize = 255;
/// User ids in one access list: longer lists want a group concept, not a longer scan.
pub const ACCESS_USERS_MAX: usize = 64;
/// Data inside a send descriptor: 256-byte descriptors with 40 bytes of fields.
pub const INLINE_BYTES_MAX: usize = 216;

/// Processes attached at once: 4 times the promised 64, and the round robin stays short.
pub const PROCESSES_MAX: usize = 256;
/// Exports of a node: 1,000s are promised.
pub const EXPORTS_MAX: usize = 16_384;
/// Imports of one process: 10,000s per node are promised.
pub const IMPORTS_PER_PROCESS_MAX: usize = 32_768;
/// Grants to remote importers, all nodes together: some MiB at most. One user of one node has half
/// of them; see `share_allows`.
pub const GRANTS_MAX: usize = 131_072;
/// Peers known: 4 times the promised 64 nodes.
pub const PEERS_MAX: usize = 256;
/// Peers for which there is room whatever addresses processes ask: the promised 64 nodes, named by
/// the driver.
pub const PEERS_CONFIGURED_KEPT: usize = 64;
/// Addresses of one peer: two networks with two interfaces each.
pub const PATHS_MAX: usize = 4;
/// Addresses of which it is known how large their packets may be: those of all peers, and as many
/// that strangers sent from.
pub const PATH_MTUS_MAX: usize = 2 * PEERS_MAX * PATHS_MAX;
/// Imports of this node that wait for an answer.
pub const IMPORTS_WAITING_MAX: usize = 16_384;
/// Waits whose deadline has passed that are ended before rings and network have their turn: each is
/// an answer, some microseconds.
pub const EXPIRED_PER_TURN: usize = 128;
/// Imports that an export which ends breaks at once; of more, as many each time that all events
/// have been taken. Each is an event.
pub const BREAKS_PER_TURN: usize = 1_024;
/// Imports of one peer that wait here for a name to be exported, half of them for one of its users.
pub const REMOTE_WAITS_PER_PEER_MAX: usize = 8_192;
/// Imports and pings that a peer was asked for and has not answered, half of them for one user of
/// this node: twice as many as may wait there for names, so that waits never take all. A withdrawn
/// one counts until its answer has come; those beyond it are asked for later.
pub const ASKED_PER_PEER_MAX: usize = 2 * REMOTE_WAITS_PER_PEER_MAX;
/// Requests for on-demand exports that have not been reported to the driver; further ones are not
/// reported and end with their deadline.
pub const ACTIVATIONS_WANTED_MAX: usize = 1_024;
/// Pings waiting for an answer.
pub const PINGS_MAX: usize = 256;

/// Operations of one process queued towards one peer before `Busy`: a full command ring.
pub const QUEUE_OPS_MAX: usize = 1_024;
/// Operations of one process not yet complete, all peers together, before `Busy`.
pub const PROCESS_OPS_MAX: usize = 8_192;
/// Inline buffers of the engine: with 216 bytes each, 14 MiB at most. One process has half of them,
/// if its bound on operations lets it.
pub const INLINE_BUFFERS_MAX: usize = 65_536;
/// Fetches and atomics a peer may have outstanding here; the requester holds further ones back. One
/// process has half of them, a full command ring.
pub const INBOUND_REQUESTS_MAX: usize = 2_048;
/// Longer fetches than [`SHORT_BYTES`] are asked for in parts of at least so many bytes: three
/// packets for one request.
pub const FETCH_PART_MIN: u64 = 4_096;
/// Bytes of a part at most.
pub const FETCH_PART_MAX: u64 = 4 << 20;
/// Parts that what may be asked for is divided in, so that requests are ahead of answers.
pub const FETCH_PARTS: u64 = 4;
/// Times what the way of answers holds that may be asked for of all peers together: so the rate
/// doubles with each round trip until the way is full, and its queue holds as much as it.
pub const FETCH_TIMES: u64 = 2;
/// Times more that the only peer may be asked for: its own congestion control is what bounds it.
pub const FETCH_ALONE_TIMES: u64 = 2;
/// Part of what its own way holds, in percent, that a peer may be asked for though the others had
/// the same: so it takes what they leave.
pub const FETCH_OWN_PERCENT: u64 = 125;
/// Shortest time in which the rate of answers is measured: packets come in batches.
pub const FETCH_RATE_SPAN_MIN: Duration = Duration::from_millis(1);
/// Round trips, of at least that time, for which the highest rate of one peer counts, up to twice
/// as many.
pub const FETCH_OWN_SPANS: u32 = 2;
/// Time for which the highest rate of all answers counts, up to twice as long.
pub const FETCH_RATE_MEMORY: Duration = Duration::from_millis(250);
/// Round trips of late after which a peer of which nothing came does not count among those that
/// share, up to twice as long.
pub const FETCH_SILENT_TIMES: u32 = 2;
/// And never less: a process of the peer that waits for its processor is not silent.
pub const FETCH_SILENT_MIN: Duration = Duration::from_millis(25);
/// And never more, however late a peer acknowledges.
pub const FETCH_SILENT_MAX: Duration = Duration::from_secs(1);
/// Bytes of one local copy step: 100 us of memory bandwidth, so nobody stalls the node.
pub const LOCAL_PIECE_BYTES: u64 = 1 << 20;
/// Ranges of one gather-send: the differences of a page have at most 512 words, and so no more than
/// 256 ranges, and an operation may carry those of some pages.
pub const GATHER_RANGES_MAX: usize = 1_024;
/// Ranges of one process's gather-sends that have not ended, before `Busy`: 1 MiB of the engine's
/// memory.
pub const PROCESS_RANGES_MAX: usize = 65_536;
/// Local copies that one step of a gather-send makes at most: as [`LOCAL_PIECE_BYTES`], for short
/// ranges.
pub const LOCAL_PIECES: usize = 256;
/// Bytes of an appended record: it goes in one chunk, which fits the smallest packet beside
/// everything else that may be there.
pub const APPEND_BYTES_MAX: usize = 512;
/// Entries of a token table that count: what a token names is below.
pub const TOKENS_MAX: u64 = 4_096;
/// Bytes of the shortest append ring without its head: some records of every size.
pub const RING_BYTES_MIN: u64 = 8 * 1_024;
/// Bytes of the longest: 2,000 of the longest records and more.
pub const RING_BYTES_MAX: u64 = 4 << 20;
/// Processes that have unread records in one ring: as many as have an entry there.
pub const RING_WRITERS_MAX: usize = 4_096;
/// Records that have been read, of which an append checks whose they were: more than one, so that
/// the count catches up, and so few that nobody stalls the node.
pub const RING_READS_PER_APPEND: usize = 64;
/// Length of a transfer or export: 1 TiB keeps all offset arithmetic far from overflow.
pub const LENGTH_BYTES_MAX: u64 = 1 << 40;

/// Ranges remembered per redirectable export; a deposit that needs one more is refused.
pub const ARRIVED_RANGES_MAX: usize = 1_024;
/// Redirections posted per export at once: receivers post buffers for thousands of messages ahead,
/// and a packet that fills them all takes less than a millisecond.
pub const REDIRECTS_PER_EXPORT_MAX: usize = 4_096;
/// Redirections of one process at once: four full exports, with some 200 bytes each.
pub const REDIRECTS_PER_PROCESS_MAX: usize = 16_384;
/// Ranges remembered for all redirections of an export, in 128 KiB: each may be in two pieces. A
/// deposit that needs one more is refused. What has arrived, and is still to be copied, may be
/// [`ARRIVED_RANGES_MAX`] more. One redirection alone has that many redirected ranges at most.
pub const REDIRECTED_RANGES_MAX: usize = 2 * REDIRECTS_PER_EXPORT_MAX;
/// Redirections that may begin in one local copy step: a quarter of the time that
/// [`LOCAL_PIECE_BYTES`] take.
pub const REDIRECTS_PER_PIECE: usize = 256;

/// Memory shorter than this is copied into its packet even if the caller could send it from its
/// place: a further piece of a message costs the kernel about as much as copying some KiB, and
/// packets that lend go out one by one.
pub const LENT_BYTES_MIN: usize = 8 << 10;
/// A piece of a datagram that is shorter is not [placed](crate::Engine::placement): to look at the
/// datagram first costs a system call, about as much as copying that.
pub const PLACED_BYTES_MIN: usize = 8 << 10;
/// A lent piece of at least that size, which further ones follow, ends where a page of memory ends:
/// so the next ones are whole pages, for drivers that hand pages on.
pub const LENT_PAGES_BYTES_MIN: usize = 32 << 10;
/// Pages that a lent piece of a longer transfer touches at most: what Linux takes into one datagram
/// by reference, beside what stands before and behind it.
pub const LENT_PAGES_MAX: u64 = 15;
/// Sends of up to so many bytes go out by reference whenever they can: what was written shortly
/// before is in a cache, from where the receiver has it quickly.
pub const REFERENCE_BYTES_MAX: u64 = 4 << 20;
/// Longer ones do so while at most this part (numerator, denominator) of what may be under way is.
/// Beyond it the receiver is the slower side, for it has to get them from memory, and that is
/// better left to the sender's copy: with references only, sends of 16 MiB on loopback had 0.7 to
/// 0.8 of the rate of copies.
pub const REFERENCE_SPAN: (usize, usize) = (3, 4);
/// A page of memory.
pub const PAGE_BYTES: u64 = 4096;

/// Chunks between the oldest unacknowledged one and the newest one sent: of packets of 1,500 bytes,
/// a link of 100 Gb/s and 1.8 ms.
pub const CHUNK_WINDOW: u64 = 16_384;
/// Bytes beyond gaps that a node keeps of all peers together, unless it is told otherwise.
pub const HELD_BYTES_MAX: usize = 64 << 20;
/// Bytes beyond a gap that are kept of a peer whatever others have.
pub const HELD_BYTES_OWN: usize = 128 << 10;
/// Control chunks may pass the receiver's byte budget by this much: errors must get out when data
/// cannot.
pub const CONTROL_SLACK_BYTES: usize = 256 * 1024;
/// Sends and answers of at most so many bytes go before longer ones.
pub const SHORT_BYTES: u64 = 4_096;
/// Bytes that short ones may send before long ones that wait, or although the window or the pace is
/// used up, until long ones have sent as much: so long ones have half of what goes out.
pub const SHORT_CREDIT_BYTES: usize = 32 << 10;
/// Queued operations of its process that one with the order of its import goes before, at most: as
/// many are looked at when it comes, and behind more of them it waits in their order.
pub const PASSED_OPS_MAX: usize = 256;
/// Imports of a process with an order of their own that the engine knows the last chunk of while it
/// is not acknowledged; where there are more, what goes through those waits for all before it.
pub const OWN_ORDERS_FOLLOWED_MAX: usize = 16;
/// Chunks beyond a gap that wait for the one they follow: further ones wait for the gap to close.
pub const EARLY_WAITING_MAX: usize = 256;
/// Ranges in one acknowledgement: 32 holes of one window are plenty, the rest follows with the
/// next.
pub const ACK_RANGES_MAX: usize = 32;
/// Runs of consecutive chunks in one packet, so that its record needs no allocation.
pub const RUNS_PER_PACKET_MAX: usize = 4;
/// Chunks held beyond a gap that are processed at once when it has closed: a receiver of a stream
/// can have kept all of a long path, and what else there is to do, as a short request of another
/// process, waits for so many at most (0.1 to 0.2 ms of full packets).
pub const HELD_RELEASED_MAX: usize = 64;
/// Packets by which a later one must have been seen before one counts as lost (as TCP and QUIC),
/// as long as no packet has been seen to be late.
pub const REORDER_PACKETS: u64 = 3;
/// Steps of a quarter of the shortest round trip that a late packet is waited for, at most, and
/// never more than a smoothed round trip [RFC 8985].
pub const REORDER_STEPS_MAX: u32 = 16;
/// Losses in a row, round trips apart, of which none was a mistake, after which the wait is one
/// step again [RFC 8985].
pub const REORDER_STEPS_KEPT: u32 = 16;
/// Time for which the shortest round trip counts.
pub const ROUND_TRIP_MEMORY: Duration = Duration::from_secs(10);
/// Shortest time from its sending after which a packet counts as lost for its lateness, and
/// shortest wait before a probe asks for news: a process of the peer that waits for its processor
/// is no loss.
pub const LATE_MIN: Duration = Duration::from_millis(1);
/// Probes in a row before the retransmission timeout.
pub const PROBES_MAX: u32 = 2;
/// Packets received before an acknowledgement goes out, whatever their size.
pub const ACK_EVERY_PACKETS: u32 = 8;
/// Bytes received before an acknowledgement goes out: every fourth packet of 64 KiB. Chosen
/// together with [`RTO_MIN`], on two runs each on a noisy machine: spurious retransmissions went
/// away; the gain in bandwidth is not settled.
pub const ACK_EVERY_BYTES: usize = 256 << 10;
/// Longest wait of an acknowledgement for company.
pub const ACK_DELAY: Duration = Duration::from_millis(1);
/// Packets received before a send or request that goes out at once takes their acknowledgement
/// along: writing and reading one takes both sides a good part of what a short message takes.
pub const ACK_ALONG_PACKETS: u32 = 4;
/// It takes along that of fewer when the first of them has waited this long: then messages do not
/// follow each other so closely that another is due at once.
pub const ACK_ALONG_AFTER: Duration = Duration::from_micros(20);
/// Shortest retransmission timeout: above the acknowledgement delay and a scheduler tick on a busy
/// core.
pub const RTO_MIN: Duration = Duration::from_millis(10);
/// Retransmission timeout before the first measurement.
pub const RTO_INITIAL: Duration = Duration::from_millis(50);
/// Longest retransmission timeout: 25 tries within the default peer timeout, so that a link that
/// loses three in ten is slow and not dead.
pub const RTO_MAX: Duration = Duration::from_millis(200);
/// Timeouts in a row before the next path is tried.
pub const PATH_TIMEOUTS_MAX: u32 = 3;
/// Time between probes of a path that is out of use.
pub const PATH_PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Answered probes in a row that bring a preferred path back.
pub const PATH_PROBES_GOOD: u32 = 2;
/// Congestion window at the start, in packets, and at least in bytes.
pub const WINDOW_INITIAL_PACKETS: usize = 16;
/// See [`WINDOW_INITIAL_PACKETS`].
pub const WINDOW_INITIAL_BYTES: usize = 128 * 1024;
/// Smallest congestion window, in packets: 2 keeps fast retransmission alive.
pub const WINDOW_MIN_PACKETS: usize = 2;
/// Largest congestion window: a 10 Gbit/s link of 50 ms.
pub const WINDOW_MAX_BYTES: usize = 64 << 20;
/// Tenths of the window that are left of it after a loss [RFC 9438].
pub const CUBIC_BETA_TENTHS: usize = 7;
/// How fast CUBIC's window grows away from the last loss, packets per second cubed [RFC 9438].
pub const CUBIC_C: f64 = 0.4;
/// Round trips that are longer by at least so much end slow start's doubling [RFC 9406]: the
/// shortest of the last round trip by this part of it, within these bounds.
pub const HYSTART_DIVISOR: u32 = 8;
/// See [`HYSTART_DIVISOR`].
pub const HYSTART_RTT_MIN: Duration = Duration::from_millis(4);
/// See [`HYSTART_DIVISOR`].
pub const HYSTART_RTT_MAX: Duration = Duration::from_millis(16);
/// Samples of a round before it says something about round trips [RFC 9406].
pub const HYSTART_SAMPLES: u32 = 8;
/// Rounds of conservative slow start before slow start ends [RFC 9406].
pub const CSS_ROUNDS: u32 = 5;
/// Window of BBR at least, in packets: acknowledgements keep coming [draft-ietf-ccwg-bbr].
pub const BBR_WINDOW_MIN_PACKETS: usize = 4;
/// Batches that have room in the window beside what the path holds: one that is being made, one on
/// its way, one of which the acknowledgement is [draft-ietf-ccwg-bbr].
pub const BBR_AGGREGATES: usize = 3;
/// Part of what was under way that a probe may lose, in percent [draft-ietf-ccwg-bbr].
pub const BBR_LOSS_PERCENT: u64 = 2;
/// And so many packets beside: of few packets that part is none.
pub const BBR_LOSS_PACKETS: usize = 2;
/// Runs of losses in a round that end the startup, with that part lost [draft-ietf-ccwg-bbr].
pub const BBR_LOSS_EVENTS: u32 = 6;
/// Rounds without growth after which the path is full [draft-ietf-ccwg-bbr].
pub const BBR_FULL_ROUNDS: u32 = 3;
/// Packets of a round that took longer than the shortest round trip and a quarter, and at least so
/// much longer, for all of it to have met a queue: a receiver that is late is none.
pub const BBR_QUEUE_MIN: Duration = Duration::from_millis(1);
/// Part of the shortest round trip, and at least [`BBR_QUEUE_MIN`], by which a round trip is longer
/// that has met a queue: one of the startup is not added to, one of the cruise is drained again.
pub const BBR_STANDING_DIVISOR: u32 = 8;
/// Round trips measured in a round, at least, for it to say something about queues.
pub const BBR_QUEUE_SAMPLES: u32 = 4;
/// Rounds in a row with longer round trips than the window explains after which the queue counts as
/// one of others.
pub const BBR_OTHERS_ROUNDS: u32 = 3;
/// Time of the path's rate that has room in the window beside what the path holds, for
/// acknowledgements that come together, where the queue is the sender's own.
pub const BBR_LATE_MAX: Duration = Duration::from_millis(2);
/// Time between probes for more bandwidth, and what chance adds to it at most
/// [draft-ietf-ccwg-bbr].
pub const BBR_PROBE_WAIT: Duration = Duration::from_secs(2);
/// See [`BBR_PROBE_WAIT`].
pub const BBR_PROBE_WAIT_MORE: Duration = Duration::from_secs(1);
/// Rounds between them at most, so that flows that add a packet a round find room
/// [draft-ietf-ccwg-bbr].
pub const BBR_COEXISTENCE_ROUNDS: u32 = 63;
/// Time without a round trip as short as the shortest after which the queue is emptied to see
/// whether the path has become longer, and how long that takes [draft-ietf-ccwg-bbr].
pub const BBR_PROBE_ROUND_TRIP_EVERY: Duration = Duration::from_secs(5);
/// See [`BBR_PROBE_ROUND_TRIP_EVERY`].
pub const BBR_PROBE_ROUND_TRIP_FOR: Duration = Duration::from_millis(200);
/// Packets go out together that take the path's rate so long: 4,000 timers a second at most, of
/// which each costs some microseconds.
pub const PACING_QUANTUM: Duration = Duration::from_micros(250);
/// And no more bytes than these: one segmentation batch.
pub const PACING_QUANTUM_BYTES_MAX: u64 = 64 << 10;
/// Rates at which a batch takes less than that (5 Gbit/s) are not paced: a timer is late by about
/// as much.
pub const PACING_GRAIN: Duration = Duration::from_micros(100);
/// How many such batches go at once when something else than the pace held packets back, as a
/// window that was full: acknowledgements come together, and a short queue is not to overflow by
/// that.
pub const PACING_HELD_QUANTA: u32 = 2;
/// What a late timer may catch up with: as late as a timer is on a busy processor.
pub const PACING_CATCH_UP: Duration = Duration::from_millis(1);

/// Pings (and answers to them) of one session that wait to be sent: two rounds of probes of all
/// paths.
pub const PINGS_QUEUED_MAX: usize = 8;
/// Answers that one peer may make this node keep by asking and never acknowledging, before its
/// session ends: more than a peer can have a right to. That is as many as its processes can have
/// asked for and left behind when they ended, and its imports, refused sends and grants that come
/// too late beside. What this node has to say by itself does not count.
pub const ANSWERS_MAX: usize = PROCESSES_MAX * QUEUE_OPS_MAX + 65_536;
/// Time between keepalives without an answer: enough of them within the peer timeout that a link
/// that loses three in ten is not taken for dead.
pub const PING_RETRY: Duration = Duration::from_millis(200);

/// Bytes of a message between drivers: longer contents are cut up, so that others have their turn.
pub const MESSAGE_BYTES_MAX: usize = 32 << 10;
/// Bytes of messages to one peer that wait or are under way, beside its budget: what else is to be
/// sent is not held up for long.
pub const MESSAGES_QUEUED_BYTES_MAX: usize = 512 << 10;
/// Bytes of messages that one peer may make this node keep by asking and never acknowledging,
/// before its session ends: far more than this node has to say by itself (see
/// [`MESSAGES_QUEUED_BYTES_MAX`]) and than it answers about as many connections as there may be.
pub const MESSAGES_KEPT_BYTES_MAX: usize = 8 * MESSAGES_QUEUED_BYTES_MAX;

/// Packets in the replay window: reordering beyond this is loss.
pub const REPLAY_WINDOW_PACKETS: u64 = 4_096;
/// Packets under one key before both sides go to the next, so that a key that leaks does not open
/// what was sent long before; the cipher itself allows far more.
pub const KEY_PACKETS: u64 = 1 << 21;
/// Smallest packet a path must carry: every control chunk fits (IPv6 minimum less headers). The
/// base of the search for larger ones [RFC 8899].
pub const PACKET_BYTES_MIN: usize = 1_200;
/// Largest UDP payload.
pub const PACKET_BYTES_MAX: usize = 65_507;
/// Probes of one size without an answer after which packets of that size count as lost [RFC 8899].
pub const MTU_PROBES_MAX: u32 = 3;
/// A search ends when it knows the size of a path to so many bytes.
pub const MTU_STEP_BYTES: usize = 8;
/// Time after which a search that ended below what the interface takes begins again [RFC 8899].
pub const MTU_RAISE_AFTER: Duration = Duration::from_secs(600);
/// The same of a path that does not even carry the base.
pub const MTU_ERROR_RETRY: Duration = Duration::from_secs(5);
/// Shortest wait for the answer to a probe: twice that of a retransmission.
pub const MTU_PROBE_WAIT_MIN: Duration = Duration::from_millis(20);
/// Longest one: a path on which nothing gets through is asked no more often.
pub const MTU_PROBE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Packets above the base lost in a row, as far as acknowledgements say, after which the size of
/// the path is doubted.
pub const MTU_LOSSES_MAX: u32 = 6;
/// A packet of a session proves a size by its arrival if it is no more than so much smaller: it may
/// have left room for an acknowledgement.
pub const MTU_PROOF_SLACK_BYTES: usize = 64;
/// Pieces of one chunk that are apart: the largest chunk has 60 of the smallest packets.
pub const PIECE_RANGES_MAX: usize = 128;
/// Bytes that the record of a chunk in pieces takes of the receiver's budget, beside the chunk.
pub const PIECED_BYTES: usize = 128;

/// First wait for an answer to a hello; doubles up to [`HELLO_RETRY_MAX`].
pub const HELLO_RETRY_FIRST: Duration = Duration::from_millis(25);
/// See [`HELLO_RETRY_FIRST`].
pub const HELLO_RETRY_MAX: Duration = Duration::from_millis(200);
/// Answered hellos whose session no packet has used yet, all sources together.
pub const PENDING_SESSIONS_MAX: usize = 64;
/// How long such a session waits for its first packet.
pub const PENDING_LIFETIME: Duration = Duration::from_secs(3);
/// Hellos answered per second, after a burst of [`HELLO_BURST`]: a key exchange costs some 100 us.
/// Only those count that have proof of the cluster key and a cookie.
pub const HELLOS_PER_SECOND: u64 = 200;
/// See [`HELLOS_PER_SECOND`].
pub const HELLO_BURST: u64 = 128;
/// "I do not know this session" answers per second, and their burst: to addresses of known peers,
/// and as many to all others together.
pub const HINTS_PER_SECOND: u64 = 100;
/// Rejections per second, and their burst: they are hints for the text of an error, and a stranger
/// can ask for them.
pub const REJECTS_PER_SECOND: u64 = 100;
/// A cookie is good in the span in which it was given and in the next: longer than all tries of a
/// hello on a link that loses three in ten, and shorter than it takes for the memory of a pending
/// session to matter.
pub const COOKIE_SPAN: Duration = Duration::from_secs(2);
/// An attempt takes no other cookie for so long: one that comes sooner is an old one, or forged by
/// somebody who has the key.
pub const COOKIE_HOLD: Duration = Duration::from_secs(1);
/// Least time between questions to an address that a peer sent from and that is not proven.
pub const NEWCOMER_RETRY: Duration = Duration::from_millis(100);
/// How long a node that claims the name of a live one waits until the other is taken for gone.
pub const NAME_CONTEST: Duration = Duration::from_millis(100);
/// Packets that come with a codepoint between two reports of such to the peer, if no queue marks
/// them: a report makes a packet longer, and the peer only has to see that they come so.
pub const ECN_ECHO_EVERY: u64 = 32;
/// Packets that arrive without any report of codepoints until these are taken for removed: what
/// several reports in a row are about, of which one gets lost now and then.
pub const ECN_UNSEEN_MAX: u64 = 256;
/// And acknowledgements without one, once there were some: where packets are late each has its own,
/// and one that closes a gap tells of hundreds of packets.
pub const ECN_UNTOLD_MAX: u32 = 256;
/// Packets that arrive and are not in a report, which may be: what counts as arrived when it was
/// sent again just had arrived already is not known exactly.
pub const ECN_MISSING_MIN: u64 = 32;
/// See [`ECN_MISSING_MIN`]: so many parts of what has arrived, one of them.
pub const ECN_MISSING_PART: u64 = 8;
/// Timeouts in a row until a path that is being tried is taken for one that drops what asks for
/// marks: fewer than [`PATH_TIMEOUTS_MAX`], which give the path up.
pub const ECN_TIMEOUTS_MAX: u32 = 2;
/// Packets in a row with chunks that had come before until a path that is being tried is taken for
/// one that drops what asks for marks: what goes back to the peer does not arrive. A peer sends
/// that many within a second.
pub const ECN_REPEATED_MAX: u32 = 4;
/// Weight of the last round trip in the part of packets that is marked, of 1,024 [RFC 8257, section
/// 4.2: g = 1/16].
pub const ECN_WEIGHT: u64 = 64;
/// Part of the mean of marks by which BBR lowers what may be under way after a round trip with
/// marks, of 1,024 [as BBR's third version: a third].
pub const BBR_MARKS_WEIGHT: u64 = 341;
/// Marked packets of a round trip that end BBR's startup, of 1,024 [as its third version: half].
pub const BBR_MARKS_FULL: u64 = 512;
/// Datagrams outside sessions (hellos, answers) waiting to be sent.
pub const LOOSE_DATAGRAMS_MAX: usize = 256;
/// How long a handshake of the node with the smaller name goes before the other side's.
pub const OURS_WINS: Duration = Duration::from_millis(500);
/// Own addresses told to a peer.
pub const LISTEN_ADDRESSES_MAX: usize = PATHS_MAX;
