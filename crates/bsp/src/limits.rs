//! Named bounds of supersteps.
//!
//! Invariant: every queue, table and retry of this crate takes its bound from here, with the reason
//! for the number.

use std::time::Duration;

/// Members: jobs have no more.
pub const MEMBERS_MAX: usize = vmmc_job::limits::JOB_RANKS_MAX;
/// What one member puts, gets and sends in a superstep, bytes with the heads of 24 bytes each,
/// 1 GiB; and what it answers to gets of others. More is an error that says to call `sync` more
/// often: memory of a member grows by doubling up to this, twice for two supersteps at a time.
pub const OUTGOING_BYTES_MAX: u64 = 1 << 30;
/// Messages that wait for a member at a time, bytes with their tags: as much as one can send.
pub const QUEUE_BYTES_MAX: u64 = 1 << 30;
/// Areas that are registered at a time: each costs 8 bytes for each member.
pub const REGISTRATIONS_MAX: usize = 4096;
/// Registrations, their ends and changes of the tag size in one superstep.
pub const OPERATIONS_MAX: usize = 2 * REGISTRATIONS_MAX;
/// Longest tag, bytes: a tag is a word or a few.
pub const TAG_BYTES_MAX: usize = 4096;
/// First block of what goes to one member and is too long for its slot, bytes: one page. Each
/// further block has as many as all before, so there are few.
pub const BLOCK_BYTES_MIN: u64 = 4096;
/// First piece of shared memory for blocks, bytes; each further one has as many as all before.
pub const SEGMENT_BYTES_MIN: u64 = 256 << 10;
/// Pieces of shared memory for one superstep: doubled so often they hold twice what may go out.
pub const SEGMENTS_MAX: u64 = 16;
/// The slots of all senders at one member, bytes, if each then has between [`SLOT_BYTES_MIN`] and
/// [`SLOT_BYTES_MAX`]: what a superstep of short data goes through.
pub const SLOTS_BYTES: u64 = 1 << 20;
/// Least bytes of a slot: it has room for the places of [`BLOCKS_MAX`] blocks.
pub const SLOT_BYTES_MIN: u64 = 1024;
/// Most bytes of a slot: what is longer is read by its receiver, which then costs no more than
/// writing it there.
pub const SLOT_BYTES_MAX: u64 = 16 << 10;
/// Blocks of what goes to one member: two streams, each doubled from [`BLOCK_BYTES_MIN`] up to
/// [`OUTGOING_BYTES_MAX`].
pub const BLOCKS_MAX: usize = 40;
/// Bytes that are read at a time from another member's memory, where they are not for one place.
pub const WINDOW_BYTES: usize = 64 << 10;
/// From so many bytes on they are read straight to their place.
pub const DIRECT_BYTES_MIN: usize = 8 << 10;
/// Longest text of an abort that others are told, bytes.
pub const ABORT_TEXT_BYTES_MAX: usize = 232;
/// Steps of the barrier of the largest set.
pub const STEPS_MAX: u64 = MEMBERS_MAX.ilog2() as u64 + 1;
/// How long a call waits for the others unless told otherwise, for a member may compute for long
/// between two supersteps; one that has died is an error within a second.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(3600);
/// Time between two looks at who of the members is still there, in a call that waits.
pub const MEMBERS_LOOK: Duration = Duration::from_millis(50);
/// How long after the news of a member's end what it wrote before may still come.
pub const LAST_WORDS: Duration = Duration::from_millis(200);
/// How long the end of a set waits for the others when one of them has ended: it was past the last
/// barrier, so they are close to it, on a busy machine too.
pub const END_TIME: Duration = Duration::from_secs(10);
/// How long one try to import what a member exports takes, until it is looked whether the member is
/// still there.
pub const IMPORT_TRY: Duration = Duration::from_millis(200);
/// How long an abort tries to tell the others before it ends its own process.
pub const ABORT_TIME: Duration = Duration::from_millis(500);
