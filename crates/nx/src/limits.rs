//! Named bounds of NX.
//!
//! Invariant: every table and wait of this crate takes its bound from here, with the reason for the
//! number.

use std::time::Duration;

/// First of the "force" types, 2^30: NX has no flow control for them. Here they are as others.
pub const TYPE_FORCE: i64 = 1 << 30;
/// Last type of a program's messages. NX has those from 2·10^9 on for itself; here they are errors.
pub const TYPE_MAX: i64 = 1_999_999_999;
/// Last process type: two of them travel beside the type, with 16 bits each.
pub const PTYPE_MAX: i64 = 0xffff;
/// Ids of messages, and of messages with handlers, that a process may have at a time. A program
/// that has more forgets them; memory for as many is small.
pub const IDS_MAX: usize = 4096;
/// Longest message that `csend` copies, so that it returns before it is received, bytes: programs
/// of NX send to each other first and receive then. A longer one waits for its receive.
pub const COPIED_MESSAGE_MAX: usize = 1 << 20;
/// Bytes of such copies that a process has at a time; beyond it a `csend` waits for its receive.
pub const COPIED_BYTES_MAX: usize = 4 << 20;
/// Messages that one `flushmsg` drops: more came while it ran.
pub const FLUSHED_MAX: usize = 1 << 20;
/// How long a process that ends waits until copies of its messages have gone.
pub const LEAVE_TIME: Duration = Duration::from_secs(60);
/// First pause of a process that ends between two looks whether they have gone; it doubles up to
/// [`PAUSE_MAX`].
pub const PAUSE_MIN: Duration = Duration::from_micros(20);
/// Longest such pause.
pub const PAUSE_MAX: Duration = Duration::from_micros(500);
/// How long `masktrap`, and a process that ends, wait for a handler that runs, unless
/// [`Nx::handler_time`](crate::Nx::handler_time) says otherwise.
pub const HANDLER_TIME: Duration = Duration::from_secs(60);
/// First pause between two looks at messages that have handlers; it doubles up to [`PAUSE_MAX`].
pub const HANDLER_PAUSE_MIN: Duration = Duration::from_micros(20);
/// How long the thread that runs handlers sleeps while there are none; it is woken for the next
/// one.
pub const HANDLER_IDLE: Duration = Duration::from_secs(10);
/// How long the processes of an application may take until they run.
pub const START_TIME: Duration = Duration::from_secs(60);
/// How long a thread leaves the end of the program to another one that has begun it.
pub const ABORT_TIME: Duration = Duration::from_secs(5);
