//! Named bounds of messages.
//!
//! Invariant: every queue, table and retry of this crate takes its bound from here, with the reason
//! for the number.

use std::time::Duration;
use vmmc::limits::CONTROL_MESSAGE_BYTES_MAX;

/// Members of one set: ranks travel in 16 bits, and jobs have no more.
pub const MEMBERS_MAX: usize = vmmc_job::limits::JOB_RANKS_MAX;
/// Longest message that goes at once, bytes; a longer one asks for its place first. A copy of so
/// many takes about as long as the question.
pub const EAGER_BYTES_MAX: u64 = 16 << 10;
/// The same between nodes, where the question takes longer: a quarter of the [`FRAMES`] of a
/// sender, so that four such messages are under way.
pub const EAGER_BETWEEN_NODES_BYTES_MAX: u64 = 64 << 10;
/// Longest message that goes in the control message itself, bytes.
pub const INLINE_BYTES_MAX: usize = CONTROL_MESSAGE_BYTES_MAX - crate::wire::HEAD_BYTES;
/// Bytes of messages of one sender that may wait for a receive, 256 KiB; each counts
/// [`MESSAGE_COST`] more than its length. A sender that has so many there asks first.
pub const UNEXPECTED_BYTES_MAX: u64 = 256 << 10;
/// What a message costs that waits for a receive, beside its bytes: its entry in the tables.
pub const MESSAGE_COST: u64 = 128;
/// A sender is told what was received when it is so much, bytes: a quarter, so that it learns it
/// long before it has to ask.
pub const TOLD_EACH: u64 = UNEXPECTED_BYTES_MAX / 4;
/// Messages of one sender to one receiver that may ask for their place at a time: each has an entry
/// at the receiver. More wait at the sender, where their buffers are.
pub const ASKS_MAX: usize = 64;
/// What waits to be said to one member: an answer to each of its questions, the places of their
/// parts, and as much again. More is not waited for by a member of ours.
pub const ASKS_SAID_MAX: usize = 2 * ASKS_MAX * (1 + PARTS_AT_ONCE);
/// Frames for the payloads of one sender; a message of [`EAGER_BYTES_MAX`] takes four side by side.
pub const FRAMES: (u64, u64) = (64, 4 << 10);
/// Buffers for the parts of long messages that land in memory which is not of
/// [`Messages::memory`](crate::Messages::memory): of all senders together, 4 MiB.
pub const PART_BUFFERS: u64 = 16;
/// Bytes of such a part: a copy of so many overlaps with the arrival of the next one, and both stay
/// in a cache.
pub const PART_BYTES: u64 = 64 << 10;
/// Bytes that a part between nodes has, or some times that: as many as go in one datagram by
/// reference to their pages, and none is left over for a datagram that copies it.
pub const PART_STEP_BYTES: u64 = (vmmc_host::limits::SPLICED_PAGES_MAX * vmmc_host::region::PAGE_BYTES) as u64;
/// Least and most bytes of a part between nodes, where each costs two messages of a node: an eighth
/// of its message. Those under way at a time stay in a cache of 1 MiB.
pub const PARTS_BETWEEN_NODES_BYTES: (u64, u64) = (2 * PART_STEP_BYTES, 4 * PART_STEP_BYTES);
/// Longest part that needs a buffer, bytes.
pub const PART_BYTES_MAX: u64 = PARTS_BETWEEN_NODES_BYTES.1;
const _: () = assert!(PART_BYTES <= PART_BYTES_MAX);
/// Parts of one message under way at a time: two that arrive, two that are copied or asked for.
pub const PARTS_AT_ONCE: usize = 4;
/// Longest part that lands in a range of [`Messages::memory`](crate::Messages::memory): what a
/// token can be for.
pub const RANGE_BYTES_MAX: u64 = vmmc::limits::TOKEN_BYTES_MAX;
/// Receives that one memory of [`Messages::memory`](crate::Messages::memory) takes at a time.
pub const RANGES_AT_ONCE: u64 = 256;
/// Sends, and receives, that a member may have begun and not ended: more is a program that forgets
/// them.
pub const REQUESTS_MAX: usize = 1 << 16;
/// Messages taken in one look before the caller's own is looked at again.
pub const TAKEN_AT_ONCE: usize = 32;
/// Sends between two looks at what has come, so that a member that only sends lets others in.
pub const SENDS_A_LOOK: u32 = 32;
/// Messages taken in a call that waits between two looks at the clock, for the members.
pub const TURNS_A_LOOK: u32 = 64;
/// Looks of a wait for what another core sends in a moment, before it yields: some 2 us.
pub const LOOKS: u32 = 8;
/// Of these, looks at one word of memory for each look at everything.
pub const QUICK_LOOKS: u32 = 16;
/// Receives without a send between them after which they are of a stream: then a look in vain is
/// followed by [`STREAK_PAUSES`], so that the sender writes several messages before each of their
/// lines is taken from it.
pub const STREAK: u32 = 8;
/// Pauses between two looks of a stream: 1 to 3 us, by processor, in which a dozen messages come or
/// more. After the last of them the receiver has fetched a few lines that the sender then has to
/// take back: once in a pause, so not too often.
pub const STREAK_PAUSES: u32 = 64;
/// Waits that look so in vain, after which the next ones yield at once: there are more members than
/// processors, or they are slow.
pub const VAIN_LOOKS: u32 = 2;
/// Waits whose look finds something that make up for one in vain: that takes 2 us, and a yield half
/// a microsecond more than a look that finds.
pub const VAIN_WEIGHT: u32 = 4;
/// How many yield at once, before one looks again.
pub const RESTING_WAITS: u32 = 64;
/// Yields of a wait before it sleeps: some 50 us where nobody else wants the core, as long as it
/// takes to be woken.
pub const YIELDS: u32 = 128;
/// Waits that do not yield at most, where each yield gives the core to somebody who keeps it: so
/// many pay for one such yield, which takes some milliseconds.
pub const MEMBERS_NO_YIELD_MAX: u32 = 1 << 12;
/// Short yields after which that number is a third of what it was.
pub const FORGIVING_YIELDS: u32 = 64;
/// Times that a waiting call yields for other threads that want to make one.
pub const OTHERS_TURNS: u32 = 100;
/// Longest broadcast that goes by a tree, bytes: a longer one takes each member's time once, not
/// that of each step.
pub const BROADCAST_TREE_MAX: usize = 64 << 10;
/// Longest block of a member that is gathered or scattered by a tree, bytes: each is passed on in
/// each step.
pub const TREE_BLOCK_MAX: usize = 4 << 10;
/// Bytes of all members that are gathered in steps that double; more go round.
pub const BRUCK_TOTAL_MAX: usize = 32 << 10;
/// Longest block from each to each that travels by way of others, bytes.
pub const BRUCK_BLOCK_MAX: usize = 256;
/// Members from which on it does: fewer reach each other in as many steps.
pub const BRUCK_MEMBERS_MIN: usize = 8;
/// Longest values that members exchange whole to combine them, bytes; longer ones go round in
/// parts, so that each member combines a part alone.
pub const ALLREDUCE_DOUBLING_MAX: usize = 64 << 10;
/// Numbers that a member has for groups which are made of those whose first one it is: with the
/// rank of a member, of [`MEMBERS_MAX`], and one bit for the two contexts of a group, 32 bits.
pub const GROUPS_MAX: u32 = 1 << 21;
const _: () = assert!((MEMBERS_MAX as u64) * (GROUPS_MAX as u64) * 2 <= 1 << 32);
/// How long a call waits unless told otherwise, for a member may compute for long before it sends;
/// one that has died is an error within a second.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(3600);
/// How long one try to connect to a member takes before it is made again: a member lets others in
/// when it sends or receives.
pub const CONNECT_TRY: Duration = Duration::from_secs(5);
/// Stack of the thread that connects to a member, bytes: there may be one for each member.
pub const CONNECT_STACK_BYTES: usize = 256 << 10;
/// Time between two looks at who of the members is still there, in a call that waits.
pub const MEMBERS_LOOK: Duration = Duration::from_millis(50);
/// How long after the news of a member's end what it sent before may still come.
pub const LAST_MESSAGES: Duration = Duration::from_millis(150);
/// Times that a call which waits for room yields before it sleeps: a receiver that is at it makes
/// some within them.
pub const ROOM_YIELDS: u32 = 256;
/// First sleep of a call that waits for room, or for a connection; it doubles up to
/// [`ROOM_SLEEP_MAX`].
pub const ROOM_SLEEP_MIN: Duration = Duration::from_micros(20);
/// Longest such sleep.
pub const ROOM_SLEEP_MAX: Duration = Duration::from_millis(1);
/// Longest sleep where several threads make calls: one that sleeps has the state that the others
/// wait for.
pub const SHARED_SLEEP_MAX: Duration = Duration::from_micros(200);
/// Bytes of the text of an abort: what fits a control message.
pub const ABORT_TEXT_BYTES_MAX: usize = INLINE_BYTES_MAX;
/// How long an abort tries to tell the others before it ends its own process.
pub const ABORT_TIME: Duration = Duration::from_millis(500);
