//! Why a channel did not do what it was asked.
//!
//! Invariant: after [`Error::Garbled`], and after the other side is gone, a channel does nothing
//! more; after every other error it can go on.

use crate::Technique;
use crate::limits::{CHANNEL_BYTES_MAX, MESSAGE_BYTES_MAX, POSTED_MAX};
use crate::protocol::Garbled;
use thiserror::Error;
use vmmc::{AccessError, BufferError, CallError, ExportError, ImportError, TransferError, WaitError};
use vmmc_host::reservation::ReservationError;

/// Why a channel did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The parts of a channel are too large.
    #[error("a channel has at most {CHANNEL_BYTES_MAX} bytes of memory, not {bytes}; ask for smaller parts")]
    TooLarge {
        /// Bytes asked for, of all parts.
        bytes: u64,
    },
    /// What is imported is no channel, or one of another version.
    #[error("export {name:?} is no channel of this version ({why}); use the same release on both sides")]
    NoChannel {
        /// Name of the channel.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A channel has one sender.
    #[error("channel {name:?} has had a sender already; open another one, each has one sender in its life")]
    Taken {
        /// Name of the channel.
        name: String,
    },
    /// The technique of the channel has no such call.
    #[error("channel {name:?} moves messages by {technique}, which has no {call}; docs/techniques.md lists the calls")]
    WrongTechnique {
        /// Name of the channel.
        name: String,
        /// Its technique.
        technique: Technique,
        /// The call.
        call: &'static str,
    },
    /// A message without an end.
    #[error("a message of {len} bytes is longer than any may be ({MESSAGE_BYTES_MAX}); send it in parts")]
    MessageTooLong {
        /// Its length, bytes.
        len: u64,
    },
    /// The message does not fit the memory that is to take it. Nothing has moved.
    #[error("a message of {len} bytes does not fit the {room} bytes that are to take it; give a larger buffer")]
    TooLong {
        /// Length of the message, bytes.
        len: u64,
        /// Bytes that there is room for.
        room: u64,
    },
    /// A range that is not in its memory.
    #[error("bytes {offset}..{end} do not lie in memory of {size} bytes", end = offset.saturating_add(*len))]
    Outside {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the memory.
        size: u64,
    },
    /// All places for posted buffers are taken.
    #[error("{POSTED_MAX} receive buffers are posted, and no more can be; take what has arrived first")]
    PostedFull,
    /// The pages that a receiver has for buffers are used up.
    #[error("a buffer of {pages} pages was asked for, and the channel has {free} left; drop one, or open it with more")]
    NoPages {
        /// Pages asked for.
        pages: u64,
        /// Pages left.
        free: u64,
    },
    /// The deadline passed.
    #[error("channel {name:?}: {what} within {after_ms} ms; give it longer, or look at the other side")]
    TimedOut {
        /// Name of the channel.
        name: String,
        /// What did not happen.
        what: &'static str,
        /// How long, milliseconds.
        after_ms: u64,
    },
    /// The sender has ended or died, and nothing more will come.
    #[error("the sender of channel {name:?} is gone; open the channel anew")]
    SenderGone {
        /// Name of the channel.
        name: String,
    },
    /// What the other side wrote into shared memory cannot be.
    #[error("channel {name:?}: the other side wrote what cannot be ({garbled}); the channel is not used any more")]
    Garbled {
        /// Name of the channel.
        name: String,
        /// What.
        garbled: Garbled,
    },
    /// The channel has been given up after what the other side wrote.
    #[error("channel {name:?} has been given up after an earlier error; open it anew")]
    GivenUp {
        /// Name of the channel.
        name: String,
    },
    /// The channel cannot be made.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The channel cannot be reached.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A transfer failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// A wait failed.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// Memory cannot be had.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// Memory is out of reach.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The node refused a call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Pages cannot be mapped.
    #[error(transparent)]
    Pages(#[from] ReservationError),
}
