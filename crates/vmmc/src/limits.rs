//! Named bounds of the library.
//!
//! Invariant: every queue, table and retry of this crate takes its bound from here, with the reason
//! for the number.

use std::time::Duration;
use vmmc_host::limits::{COMPLETION_SLOTS, INLINE_BYTES_MAX as SLOT_INLINE, LANES, RING_WAITS};
use vmmc_host::wait::{BackoffLimits, RestLimits, SkipLimits, TimedSleeps};

/// Default of all waits: the time within which a dead node is an error.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// How much longer than the node we wait for its answer, so that its own "timed out", which says
/// more, comes first.
pub const ANSWER_GRACE: Duration = Duration::from_millis(500);
/// How long an attach waits for a node that it started itself.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two tries to connect to a node that is starting.
pub const START_RETRY: Duration = Duration::from_millis(5);
/// A node that the library starts ends after this many seconds without processes.
pub const START_LINGER_S: u64 = 60;

/// Bytes of a send that travel in the descriptor.
pub const INLINE_BYTES_MAX: usize = SLOT_INLINE;
pub use vmmc_nic::limits::{APPEND_BYTES_MAX, GATHER_RANGES_MAX, TOKENS_MAX};
/// Bytes of a payload by token: what a command can say, and less.
pub const TOKEN_BYTES_MAX: u64 = 1 << 30;
/// Redirections of one process at once: as many as its node takes.
pub const REDIRECTIONS_MAX: usize = vmmc_nic::limits::REDIRECTS_PER_PROCESS_MAX;
/// Places in the completion ring kept for reports of failed sends.
pub const FAILURE_PLACES: usize = 64;
/// Places in it kept for redirections, so that those of some messages do not make the node wait.
pub const REDIRECTION_PLACES: usize = 128;
/// Transfers that can be outstanding: the rest of the completion ring, which overflows only by
/// redirections. Then the node keeps what has no room, and takes no command, until we have looked.
pub const TRANSFERS_MAX: usize = COMPLETION_SLOTS - REDIRECTION_PLACES - FAILURE_PLACES;
/// Completions after which the node is woken if it sleeps: if it keeps any, the ring was full, so
/// that this happens while we empty it.
pub const COMPLETIONS_BEFORE_BELL: usize = COMPLETION_SLOTS / 2;

/// Staging chunks, (bytes, how many), smallest first: short messages must not wait for long ones;
/// the largest are big enough to keep the engine's packets full and small enough that copying one
/// overlaps with sending the one before. 2.75 MiB together, made at first use.
pub const STAGING: [(u64, u32); 3] = [(4 << 10, 64), (32 << 10, 16), (256 << 10, 8)];
/// Largest staging chunk, bytes.
pub const STAGING_CHUNK_MAX: u64 = STAGING[2].0;
/// Part of the chunks of a size that one import may hold, so that a node that does not answer
/// cannot stop sends to others: one in this many.
pub const STAGING_SHARE: u32 = 2;
/// Largest memory kept for the next long notified send, bytes; longer ones allocate each time.
pub const LONG_SEND_KEPT_MAX: u64 = 16 << 20;

/// Polls of a wait for descriptors between two that ask the kernel about them: a system call takes
/// as long as some ten polls of memory.
pub const DESCRIPTOR_POLLS: u32 = 16;

/// First pause of an append that finds no room in its ring: about the time in which an owner that
/// is at it takes some records.
pub const FULL_RETRY_MIN: Duration = Duration::from_micros(20);
/// Longest such pause: it doubles each time, so that an owner which does not read costs little.
pub const FULL_RETRY_MAX: Duration = Duration::from_millis(2);

/// Pages of the caller's memory that a session keeps pinned unless told otherwise: 64 MiB, less
/// where RLIMIT_MEMLOCK is lower.
pub const PINNED_PAGES_DEFAULT: usize = 16_384;
/// Pages that one command names: longer transfers are several.
pub const PINNED_PIECE_PAGES: usize = 1024;
/// Sends of plain slices of up to so many pages are copied: that is faster than to ask the kernel
/// whether the slice still lies on its pinned pages (`vmmc bench utlb`).
pub const PINNED_COPIED_PAGES: usize = 8;
/// Least bytes of whole pages worth pinning when the ends of a transfer lie on other pages and need
/// commands of their own.
pub const PINNED_EDGED_BYTES_MIN: usize = 16 << 10;
/// Bytes of a trace that are kept before they go to its file: some thousands of records.
pub const TRACE_BUFFER_BYTES: usize = 64 << 10;
/// Records of a thread that wait to be written: what fits beside the program's own data into a
/// small cache.
pub const TRACE_RING_RECORDS: usize = 1024;
/// Threads that record at a time without waiting for each other: twice the lanes of a process.
/// Further ones write each record to the file at once.
pub const TRACE_RINGS_MAX: usize = 2 * LANES;
/// Programs that a recorded process runs one after the other, each in the place of the one before;
/// a further one takes the place of the first in the trace.
pub const TRACE_PROGRAMS_MAX: u32 = 1000;
/// Times that a transfer tries again when mappings change under it, before it copies.
pub const PIN_TRIES: u32 = 3;
/// Starts of memory that was found unfit for pinning and need not be looked at again.
pub const UNFIT_KEPT_MAX: usize = 256;

/// Notifications that queue for one export.
pub const NOTIFICATIONS_PER_EXPORT_MAX: usize = 4096;
/// Notifications that queue in the whole process (3 MiB).
pub const NOTIFICATIONS_MAX: usize = 65_536;
/// Notifications kept for exports whose own creation has not come back to us yet.
pub const NOTIFICATIONS_EARLY_MAX: usize = 256;
/// Notifications taken from one ring before the next ring gets its turn.
pub const NOTIFICATIONS_A_TURN: usize = 128;
/// Broken imports remembered whose own creation has not come back to us yet.
pub const BROKEN_EARLY_MAX: usize = 1024;
/// Dead exporters whose notification rings are kept before they are swept out.
pub const PEERS_BEFORE_SWEEP: usize = 64;

/// Calls sent without waiting for the reply, before replies are collected: they fit the socket
/// buffer many times.
pub const UNREAD_REPLIES_MAX: usize = 16;
/// Calls kept for later when the control socket is full; further ones are dropped, and the node
/// forgets their objects when the process leaves.
pub const POSTED_CALLS_KEPT_MAX: usize = 4096;

/// Lane that threads share when all others are taken.
pub const SHARED_LANE: u32 = LANES as u32 - 1;

/// Longest sleep of a thread that waits on a node in this process. What it brings wakes the thread;
/// this bounds what a kind of node that forgets to would cost.
pub const STEPPED_SLICE: Duration = Duration::from_millis(100);
/// How long a dropped import may wait for its posted sends to arrive.
pub const DROP_FLUSH: Duration = Duration::from_secs(1);

/// Bytes of a control message: with its head and number it takes three cache lines.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 128;
/// Messages of one sender that wait in an endpoint. A sender whose node is another one asks how
/// many were taken when three quarters of them are in use, and goes on meanwhile.
pub const ENDPOINT_SLOTS: u64 = 64;
/// How many messages ahead a sender has the line of a slot come to its core: a store to a line that
/// another core has takes 100 to 200 ns, in which it writes as many.
pub const SLOTS_STORED_SOON: u64 = 12;
/// How many messages ahead the owner has one come: less, so that it does not take from a sender
/// that is far ahead what that has just fetched.
pub const SLOTS_READ_SOON: u64 = 3;
/// Frames of one sender: a word has a bit for each.
pub const ENDPOINT_FRAMES_MAX: u64 = 64;
/// How long frames are kept for a payload of several that found no room, after it was tried last:
/// longer than a waiting sender pauses, or a server that pushes its answers.
pub const RUN_KEPT: Duration = Duration::from_millis(50);
/// Bytes of a frame.
pub const FRAME_BYTES_MAX: u64 = 64 << 10;
/// Token tables of an endpoint: those that senders who died in mid-payload have filled are
/// replaced.
pub const TOKEN_TABLES_MAX: usize = 4;
/// Token regions of an endpoint: each is an export, and each payload looks for its own.
pub const TOKEN_REGIONS_MAX: usize = 64;
/// Token tables that a connection has imported: of the endpoint's, the last ones used;
/// those of regions are among them.
pub const CONNECTION_TABLES_MAX: usize = 8;
/// Senders of an endpoint: each takes an export of its process, which may have twice as many.
pub const ENDPOINT_SENDERS_MAX: usize = vmmc_host::limits::EXPORTS_PER_PROCESS_MAX / 2;
/// Senders that an endpoint polls one by one: a line each. The others mark a byte when they send.
pub const ENDPOINT_POLLED_MAX: usize = 64;
/// Polls that find nothing of a sender, after which it is not polled any more: some 200 us.
pub const QUIET_AFTER_POLLS: u32 = 1 << 13;
/// Sleeps of a wait for messages, ns. All that sends one wakes the sleeper, so this is for what
/// goes wrong: before each the waiter looks at all senders, of which a thousand take 0.2 to 2 ms,
/// for each has a page of its own.
pub(crate) const ANNOUNCED_SLEEPS: TimedSleeps = TimedSleeps::new(500_000_000, 500_000_000);
/// Polls of senders between two of the board, and of the ring of those that connect.
pub const BOARD_POLL_EVERY: u32 = 8;
/// Time for which a sender of another node takes it that its channel is polled after a message:
/// less than [`QUIET_AFTER_POLLS`] take. Marks of each message halve the rate of short ones.
pub const POLLED_AFTER_MESSAGE: Duration = Duration::from_micros(50);
/// The same after a mark, whatever was sent since: another sender may have taken its place among
/// the [`ENDPOINT_POLLED_MAX`].
pub const POLLED_AFTER_MARK: Duration = Duration::from_micros(200);
/// Payload of a message to another node behind which it comes about as much later: then it marks
/// the board whenever another one went.
pub const MARKED_BEHIND_BYTES: u64 = 128 << 10;
/// Time after which all senders are polled, whatever the board says: a hostile one can write it.
pub const BOARD_TRUSTED: Duration = Duration::from_millis(1);
/// Looks of a wait for a message between two readings of the clock, which takes as long as some
/// looks.
pub const LOOKS_A_CLOCK: u32 = 8;
/// How such a wait begins, before it is set up: with some 2 us of looks, as long as a short answer
/// from another core takes. After four waits in a row that look so in vain, 32 do without: what
/// they wait for comes through a node, or from a thread that needs this core.
pub const QUICK_WAITS: BackoffLimits = BackoffLimits {
    polls_a_yield: 0,
    polls_a_clock: 64,
    poll_min_ns: 0,
    poll_max_ns: 0,
    skips: Some(SkipLimits { vain_waits: 4, rest: RestLimits::fixed(32) }),
    ..RING_WAITS
};
/// Bytes of records of those that connect or leave, some thousand of them.
pub const ENDPOINT_CALLS_BYTES: u64 = 64 << 10;
/// Senders that were refused and have not read so yet: each is an export. Older ones learn it when
/// their time is over.
pub const ENDPOINT_REFUSALS_MAX: usize = 16;
/// Time between two rounds in which an endpoint asks its node which senders have died.
pub const REAP_EVERY: Duration = Duration::from_secs(1);
/// Senders that it asks for in a round: some 10 us each.
pub const REAPED_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use vmmc_host::wait::{Backoff, Manner, Polled, poll};
    use vmmc_host::{Deadline, Nanos};

    /// Looks of each of so many waits, in vain or until they find.
    fn looks(backoff: &Backoff, waits: usize, find: bool) -> Vec<u32> {
        let look = |_| {
            let mut looks = 0;
            let mut wait = backoff.begin(Manner::Spin, Deadline(Nanos::MAX));
            let looked = poll(
                &mut wait,
                || Nanos(0),
                || {
                    looks += 1;
                    (find && looks == 3).then_some(())
                },
            );
            assert_eq!(looked == Polled::Found(()), looks == 3 && find, "or it sleeps, and does not time out");
            looks
        };
        (0..waits).map(look).collect()
    }

    #[test]
    fn waits_give_up_quick_looks_that_find_nothing_and_try_again_now_and_then() {
        let backoff = Backoff::new(&QUICK_WAITS);
        assert_eq!(looks(&backoff, 4, false), [64; 4]);
        assert_eq!(looks(&backoff, 32, false), [0; 32]);
        assert_eq!(looks(&backoff, 33, false)[..2], [64, 0], "one in vain is enough after the rest");
        assert_eq!(looks(&backoff, 100, true), [3; 100], "and one that finds to go on");
        assert_eq!(looks(&backoff, 4, false), [64; 4]);
    }
}
