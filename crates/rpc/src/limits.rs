//! Named bounds of remote calls.
//!
//! Invariant: every queue, table and retry of this crate takes its bound from here, with the reason
//! for the number.

use std::time::Duration;
use vmmc_host::limits::{LIBRARY_WAITS, POLL_MAX_NS, RING_WAITS};
use vmmc_host::wait::BackoffLimits;

/// Calls of one client that have no outcome yet: more than a server takes at once.
pub const CALLS_MAX: usize = 1024;
/// Calls that wait in a server for a thread, if it does not say otherwise.
pub const QUEUE_DEFAULT: usize = 256;
/// Threads of a server: what a machine with very many cores has.
pub const THREADS_MAX: usize = 1024;
/// Calls that a server has passed on and not heard the end of: it remembers them so that it can
/// tell the callers when a delegate dies. A caller has no more of them than are then free, which is
/// more than it has calls under way ([`CALLS_MAX`]) unless dozens have as many.
pub const PASSED_MAX: usize = 1 << 16;
/// Processes that a server is connected to for answers: as many as an endpoint has senders. Those
/// that one process has it connect to are no more than are then free.
pub const LINKS_MAX: usize = 2048;
/// Answers to one client whose bulk goes out of its place and has not all arrived: enough to keep a
/// client busy. Each has one of the places for transfers of the server's session, so a client whose
/// node is silent holds no more of them; what is given beyond that is copied.
pub const ANSWERS_IN_PLACE_MAX: usize = 32;
/// Answers to one client that it has no room for: as many as it can ask for. One that lets more
/// come together does not take them, and is forgotten.
pub const ANSWERS_WAITING_MAX: usize = CALLS_MAX;
/// Bytes of them, to one client that is connected: all that it may have asked for, in large pieces.
pub const ANSWERS_WAITING_BYTES_MAX: usize = 64 << 20;
/// The same, while the server connects to it: whoever names a client that does not exist has this
/// much kept, for [`CONNECT_TIMEOUT`].
pub const ANSWERS_UNCONNECTED_BYTES_MAX: usize = 1 << 20;
/// Threads that connect a server to its clients: a client that does not answer holds up one of them
/// for [`CONNECT_TIMEOUT`].
pub const CONNECTING_THREADS: usize = 4;
/// Clients that wait to be connected; further ones are turned away, and ask again. One process has
/// no more of them than are then free.
pub const CONNECTING_MAX: usize = 256;
/// How long a server waits for the endpoint of a client, which polls it meanwhile.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two looks whether the other side lives, while nothing comes from it: its death is
/// an error within a second.
pub const LIVENESS_EVERY: Duration = Duration::from_millis(200);
/// The same for the thread that takes answers for futures, while calls are under way: one that
/// begins meanwhile may have less time than the others.
pub const BACKGROUND_LOOK_EVERY: Duration = Duration::from_millis(10);
/// Pause of that thread before it runs a continuation again that could not run.
pub const NOT_NOW_PAUSE: Duration = Duration::from_millis(1);
/// Methods of a server that are counted by name; further ones are counted together.
pub const METHODS_COUNTED_MAX: usize = 60;
/// Calls, of those that come without a pause, to one of which a server finds how long it takes:
/// reading the clock twice costs it a tenth of a null call.
pub const CALLS_A_TIMED: u32 = 16;
/// A call that comes so long after the one before is timed too.
pub const TIMED_AFTER: Duration = Duration::from_millis(1);
/// Messages between two looks at the clock, while they come without a pause.
pub const MESSAGES_PER_LOOK: u32 = 256;
/// How long a wait for calls lasts while answers wait for room and callers make some: less than
/// they take for the frames that they have.
pub const PUSH_AFTER_MIN: Duration = Duration::from_micros(50);
/// The same while no caller makes room.
pub const PUSH_AFTER_MAX: Duration = Duration::from_millis(1);
/// Looks of a server that an event loop polls for the next call, before the loop sleeps: for what a
/// wake-up costs on a virtual machine, so looking at most doubles a wait. They yield, for the
/// caller may have this core; after some in vain the next ones are left out.
pub const POLLED_WAITS: BackoffLimits =
    BackoffLimits { poll_min_ns: POLL_MAX_NS, wake_ns: 0, long_poll: None, skips: RING_WAITS.skips, ..LIBRARY_WAITS };
/// Frames of each sender of an endpoint of calls, and their bytes, if nothing else is said: long
/// arguments and results of four calls at once.
pub const FRAMES_DEFAULT: (u64, u64) = (4, 16 << 10);
/// Buffers of a client for bulk results, and their bytes, if nothing else is said.
pub const BULK_DEFAULT: (u64, u64) = (8, 64 << 10);
/// Bytes of bulk that a typed handler fills: its server makes memory for them because a caller says
/// so.
pub const BULK_FILLED_BYTES_MAX: u64 = 64 << 20;
/// Bytes of arguments and bulk of a call, and of a result: what is longer than a frame goes in
/// pieces, and is put together in memory that the other side has for it.
pub const BODY_BYTES_MAX: u64 = 32 << 20;
/// Bytes of calls whose pieces come, in a server: two of the longest. A caller has no more of them
/// than are then free.
pub const COLLECTED_BYTES_MAX: usize = 64 << 20;
/// Bytes of the name of a service.
pub const SERVICE_NAME_BYTES_MAX: usize = 64;
/// Bytes of what a failed call says of itself: it fits a frame beside its head.
pub const FAILURE_BYTES_MAX: usize = 512;

/// Whether a process that has `own` of `total` entries may have one more of `max`: it has no more
/// than are then free, so one alone cannot take all.
pub(crate) fn share_allows(own: usize, total: usize, max: usize) -> bool {
    own + 2 <= max.saturating_sub(total)
}
