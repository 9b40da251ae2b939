//! Named bounds of the socket layer.
//!
//! Invariant: every queue, table, wait and retry of this crate takes its bound from here, with the
//! reason for the number.

use std::time::Duration;
#[cfg(feature = "tokio")]
use vmmc_host::{
    limits::RING_WAITS,
    wait::{BackoffLimits, RestLimits, SkipLimits},
};

/// Receives with data after which a connection is offered: connections that carry one request or
/// two cost what TCP costs.
pub const OFFER_AFTER_EXCHANGES: u32 = 16;
/// Bytes, either way, after which a connection is offered however few calls moved them.
pub const OFFER_AFTER_BYTES: u64 = 64 << 10;
/// Offers in vain in a row that double what a connection must carry before it is offered: a few
/// short connections are no habit.
pub const OFFERS_IN_VAIN: u32 = 4;
/// Offers in vain that one connection makes up for which went on after it: it saved far more than
/// they cost.
pub const OFFERS_PAID: u32 = 3;
/// Largest factor: 2 MiB or 512 receives, some 10 ms of a busy connection, which a long one hardly
/// notices.
pub const OFFER_FACTOR_MAX: u32 = 32;
/// Calls of which one offers a connection, or joins it, when that is left to chance: most
/// connections get there within a few exchanges, and some never do.
pub const OFFER_ODDS: u64 = 6;
/// Event loops that can watch one end of a connection: more go back to the kernel.
pub const WATCHERS_MAX: usize = 4;
/// Tokens of one event loop.
pub const TOKENS_MAX: u32 = vmmc_stream::TOKENS;
/// Time to ask the node about sockets that came from another program.
pub const ADOPT_TIME: Duration = Duration::from_secs(5);
/// Time for the node to answer before a program is started that would have to ask it: without an
/// answer connections go back to the kernel, and a program that gets one is not counted among its
/// holders. A node that is off its core for some hundred milliseconds is waited for.
pub const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Pause between two polls for the answer about such a socket.
pub const ADOPT_PAUSE: Duration = Duration::from_micros(50);
/// Tries for the lock of the node's client, each after a yield: its holder sends or takes some
/// messages.
pub const LOCK_TRIES: u32 = 1_000;
/// Messages that wait for a node whose socket is full, or for the thread that has the lock: as
/// many as it has connections at most. Further ones get lost: a slot that is not released stays
/// until this process ends.
pub const PENDING_CALLS_MAX: usize = 16_384;
/// Time after which a node that did not answer is tried again.
pub const NODE_RETRY: Duration = Duration::from_secs(2);
/// Messages taken from the node in one go.
pub const MESSAGES_PER_POLL: usize = 256;
/// Places sent in one message after a fork.
pub const HOLD_BATCH: usize = 512;
/// Time that a fork waits for another thread that is just moving a connection, or has one of its
/// short locks: far more than either takes on a busy machine.
pub const FORK_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two polls of such a wait, after some yields.
pub const FORK_PAUSE: Duration = Duration::from_micros(50);
/// Clients of the node that are made at a time: each fork of a fork needs one.
pub const GENERATIONS_CHUNK: usize = 64;
/// Such chunks: a chain of more forks than that has no client of its own at its end.
pub const GENERATION_CHUNKS: usize = 1024;
/// Connections whose forks are counted on one page.
pub const LEDGER_ENTRIES: usize = 512;

/// Bytes after which a send makes what it has copied visible: the receiver copies them out while
/// the next are copied in.
pub const PUBLISH_BYTES: u64 = 16 << 10;
/// Bytes after which a receive gives room back.
pub const TAKE_BYTES: u64 = 32 << 10;
/// Most bytes of one send before a sleeping receiver is notified; a sender with more sends again.
pub const SEND_BYTES_MAX: u64 = 64 << 10;
/// Bytes between two requests for a larger ring, should the node not have granted the first.
pub const GROW_AGAIN_BYTES: u64 = 16 << 20;

/// Time after which a full ring from which nobody takes a byte is left for the kernel: a reader
/// that merely waits for its turn on a busy machine gets it, and this is what a program loses that
/// writes more than a ring before it reads.
pub const FULL_TIME_NS: u64 = 10_000_000;

/// Poll for bytes in the kernel, for an end that spends less than this between two waits, ns, and
/// twice that time longer: 64 KiB there and back take less between two processes of one machine.
pub const KERNEL_POLL_NS: u64 = 40_000;
/// Receives in a row that find bytes at once before some do not poll: a poll costs a fiftieth of a
/// long receive.
pub const EARLY_POLLS: u32 = 16;
/// Slice of waits in the kernel that a change of medium should end.
pub const CAREFUL_SLICE: Duration = Duration::from_millis(100);
/// Such a slice while the change is just being announced, which takes a few microseconds unless its
/// sender died over it.
pub const PENDING_SLICE: Duration = Duration::from_millis(1);
/// First slice of a sleep on a ring, after which the sleeper asks the kernel about the other end,
/// and its node whether it lives. A process that closes an end wakes the sleeper, and the node does
/// so for one that dies. But a node can be stopped or dead, and nobody knows, so the sleeper asks
/// in any case. Each slice is twice as long as the last one: a death is noticed after as long as
/// the sleep has lasted, at most.
pub const SLEEP_SLICE: Duration = Duration::from_millis(10);
/// Longest slice: a thread that sleeps for hours takes some microseconds of a processor in a
/// second.
pub const SLEEP_SLICE_MAX: Duration = Duration::from_secs(1);
/// Pause after which a call that finds nothing asks the kernel about the other end without a hint:
/// as the first sleep, and doubling as sleeps do.
pub const ASK_PAUSE_NS: u64 = SLEEP_SLICE.as_nanos() as u64;
/// Longest such pause.
pub const ASK_PAUSE_NS_MAX: u64 = SLEEP_SLICE_MAX.as_nanos() as u64;
/// Slice of a sleep in the kernel while only the kernel can end it.
pub const KERNEL_SLICE_MAX: Duration = Duration::from_secs(30);
/// Longest slice when nobody knows who holds the other end, or several processes do: then the node
/// does not see the last of them go.
pub const SHARED_SLEEP_SLICE_MAX: Duration = Duration::from_millis(100);

/// Time that a program which becomes another one, or passes a connection on, waits for the peer to
/// put unread bytes back into the kernel. A peer that computes for longer does so at its next call.
pub const BACK_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for the other node to acknowledge the request, or for the peer to follow into the ring,
/// before such a connection between nodes is reset: far above what busy machines need.
pub const BETWEEN_BACK_TIMEOUT: Duration = Duration::from_secs(2);
/// Polls of how far a holder that was killed had read: bytes that come in between make one of no
/// use.
pub const COPIES_POLLS: u32 = 16;
/// Pause between two polls of that wait.
pub const BACK_PAUSE: Duration = Duration::from_micros(50);
/// Time that a close waits for the kernel to take bytes that were asked back, before the connection
/// is reset.
pub const BACK_AT_CLOSE: Duration = Duration::from_secs(1);

/// Most bytes of a send by a ring between nodes. Up to here the engine was at least twice as fast
/// as TCP (`vmmc bench latency --path two-nodes`), with 64 KiB it was as fast.
pub const BETWEEN_SEND_BYTES_MAX: u64 = 16 << 10;
/// Time between two sends that is a rest: nodes have gone to sleep, so that the next message costs
/// two wake-ups more than TCP's.
pub const BETWEEN_REST_NS: u64 = 1_000_000;
/// Most time between a send and its answer that counts, while what is usual is not known.
pub const BETWEEN_WAY_NS_MAX: u64 = 200_000_000;
/// Rests in a row that bring a direction back to the kernel: one is not a habit.
pub const BETWEEN_RESTS: u32 = 4;
/// Turns whose mean time is compared between ring and kernel.
pub const BETWEEN_WINDOW: u32 = 32;
/// Other nodes of which a process remembers what suits its connections to them: with each further
/// one every connection finds out for itself.
pub const BETWEEN_CHOICES_MAX: usize = 64;
/// Turns after a change of medium that are not measured: the other end needs about three of them to
/// follow.
pub const BETWEEN_SETTLING: u32 = 8;
/// Turns of a trial after which it ends if most of them went badly: what is clearly slower need not
/// be measured.
pub const BETWEEN_GLANCE: u32 = 8;
/// How many of them that is; and turns with a long pause that show the same.
pub const BETWEEN_GLANCE_BAD: u32 = 6;
/// Turns in the kernel after a window, from the second one on, for which nobody reads a clock:
/// reading it twice at either end costs a hundredth of a short turn.
pub const BETWEEN_UNMEASURED: u32 = 224;
/// The same of a slow responder: it makes few turns a second, and each is cold.
pub const BETWEEN_UNMEASURED_SLOW: u32 = 992;
/// Long sends in a row after which a direction carries nothing else, as it seems.
pub const BETWEEN_LONG_SENDS: u32 = 8;
/// Sends of it to come that nobody examines: so late at most it is noticed that there are short
/// ones again.
pub const BETWEEN_LONG_RESTS: u32 = 64;
/// Turns in the kernel, after the first window, that bring a direction into the ring.
pub const BETWEEN_TURNS_MIN: u32 = 32;
/// Turns for which a direction requests the ring and gets no answer: ten times as many as it takes.
pub const BETWEEN_REQUEST_TURNS: u32 = 32;
/// Turns after which it requests the ring again: meanwhile its calls cost nothing beside TCP's own.
pub const BETWEEN_REQUEST_AGAIN: u32 = 512;
/// A failed trial multiplies that number: the second one comes before a connection is a tenth of a
/// second old, and the fourth costs one turn in four hundred.
pub const BETWEEN_TRIAL_FACTOR: u32 = 8;
/// But not beyond this.
pub const BETWEEN_TURNS_MAX: u32 = 1 << 14;
/// Turns in the kernel of which losses are remembered: both counts are halved beyond it.
pub const BETWEEN_LOSS_TURNS: u32 = 1 << 14;
/// So many turns in the ring count as one in the kernel without a loss: losses may have ended.
pub const BETWEEN_LOSS_FADES: u32 = 8;
/// Windows in the ring that were worth it before an earlier return is forgiven.
pub const BETWEEN_GOOD_WINDOWS: u32 = 128;
/// Longest sleep of a thread that waits for bytes from another node before it checks whether its
/// own node is alive.
pub const BETWEEN_SLICE_MAX: Duration = Duration::from_secs(1);
/// Connections between nodes of one process that learn of the death of the node at once; others at
/// their next call.
pub const BETWEEN_LIST_MAX: usize = 65_536;
/// Time after which the other node is asked again whether all is here.
pub const BETWEEN_ASK_AGAIN_NS: u64 = 20_000_000;

/// Waits of a runtime's tasks for rings, by a thread that has nothing else to do.
#[cfg(feature = "tokio")]
pub(crate) const TASK_WAITS: BackoffLimits =
    BackoffLimits { poll_min_ns: TASK_POLL_NS, poll_max_ns: TASK_POLL_NS, skips: Some(TASK_SKIPS), ..RING_WAITS };
/// When they sleep at once. A task of a remote call looks for bytes some four times in a call, and
/// a third program that takes the peer's core for a moment makes one wait in vain: with the numbers
/// of blocking calls one such moment would cost a dozen calls.
#[cfg(feature = "tokio")]
const TASK_SKIPS: SkipLimits = SkipLimits { vain_waits: 8, rest: RestLimits::fixed(16) };
/// The same where a poll is a turn of the runtime, which takes longer than reading the clock.
#[cfg(feature = "tokio")]
pub(crate) const TASK_TURNS: BackoffLimits = BackoffLimits { polls_a_clock: 0, ..TASK_WAITS };
/// Longest such polling, ns: what an end of a remote call takes to answer, that is, two wake-ups of
/// a thread and the work between them. As long as a task may take between two awaits.
pub const TASK_POLL_NS: u64 = 100_000;
/// Sleep of a runtime whose bell some peers cannot ring yet.
pub const TASK_DEAF_SLICE: Duration = Duration::from_millis(1);
/// Doublings of the time after which a task that waits where nobody may wake it polls again: from
/// [`FULL_TIME_NS`] to some 600 ms.
pub const TASK_RECHECK_DOUBLINGS: u32 = 6;
/// Times that the kernel's answer sends a receive to ask again before the other tasks get their
/// turn.
pub const TASK_RETRIES: u32 = 64;
