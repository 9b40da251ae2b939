//! Appends: records for a [`Ring`](crate::Ring) of another process, which many processes append to
//! without asking where.
//!
//! Invariant: records of one import are in the ring in the order of its appends; when one finds no
//! room, so do all that were posted behind it, until the caller has learned of it. Source: [GMS §2]
//! send ring and receive ring.

use crate::core::Limit;
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::import::{Import, Shared};
use crate::limits::{FULL_RETRY_MAX, FULL_RETRY_MIN};
use crate::slots::{Appending, Hold};
use crate::transfer::{Moving, Transfer};
use std::sync::atomic::Ordering;
use std::time::Duration;
use vmmc_host::abi::{Op, RawCommand, flags, inline_bytes_max};
use vmmc_host::control::ExportKind;
use vmmc_nic::limits::APPEND_BYTES_MAX;
use vmmc_nic::{OpError, Rights};
use vmmc_utlb::Op as Trace;

/// Choices for one append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendOptions {
    /// A word of the sender's choice in the record ([`Record::word`](crate::Record::word)): a tag,
    /// the number of a request.
    pub word: u64,
    /// Notify the owner too, if its ring allows it; the notification carries the word.
    pub notify: bool,
    /// Instead of the session's timeout.
    pub timeout: Option<Duration>,
}

impl AppendOptions {
    /// A record with this word.
    pub fn word(word: u64) -> AppendOptions {
        AppendOptions { word, ..AppendOptions::default() }
    }
}

impl Import {
    /// Appends a record of up to 512 bytes to a ring, and waits until it is there; while the ring
    /// is full, it tries again. It is there with its sender, who cannot be forged, and in one
    /// piece.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-append").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use vmmc::{AppendOptions, Rights};
    /// let mut ring = session.ring(64 << 10).name("requests").create()?;
    /// let requests = session.import("requests").rights(Rights::WRITE).open()?;
    /// requests.append(b"please", AppendOptions::word(7))?;
    /// let record = ring.take()?.expect("it is there");
    /// assert_eq!((record.word, &record.data[..]), (7, &b"please"[..]));
    /// assert_eq!(record.from.import, requests.id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TransferError::Full`]: there was no room in time. [`TransferError`]: nothing was appended,
    /// except after [`TransferError::TimedOut`], when the record may still come.
    pub fn append(&self, data: &[u8], options: AppendOptions) -> Result<(), TransferError> {
        let limit = self.append_limit(options);
        let mut pause = FULL_RETRY_MIN;
        loop {
            let full = match self.append_once(data, options, &limit) {
                Err(full @ TransferError::Full { .. }) => full,
                other => return other,
            };
            let core = &self.shared.core;
            let again = core.deadline(pause).min(limit.deadline());
            // Nobody says when there is room: the owner may be on another node.
            let _ = core.wait_unannounced(again, || None::<()>);
            if core.deadline(Duration::ZERO) >= limit.deadline() {
                return Err(full);
            }
            pause = (pause * 2).min(FULL_RETRY_MAX);
        }
    }

    /// As [`append`](Self::append), but a full ring is an error at once.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn try_append(&self, data: &[u8], options: AppendOptions) -> Result<(), TransferError> {
        self.append_once(data, options, &self.append_limit(options))
    }

    /// As [`try_append`](Self::try_append), without waiting: the transfer says how it ended. Until
    /// it has said so, or is dropped, appends posted behind one that found no room find none
    /// either: none overtakes it.
    ///
    /// # Errors
    /// [`TransferError`]; nothing was posted.
    pub fn post_append(&self, data: &[u8], options: AppendOptions) -> Result<Transfer<'static>, TransferError> {
        let ticket = self.shared.post_append(data, options, &self.append_limit(options))?;
        Ok(Transfer::new(self.shared.clone(), Moving::One(ticket), ()))
    }

    fn append_limit(&self, options: AppendOptions) -> Limit<'_> {
        let core = &self.shared.core;
        Limit::within(core, options.timeout.unwrap_or_else(|| core.timeout()))
    }

    fn append_once(&self, data: &[u8], options: AppendOptions, limit: &Limit<'_>) -> Result<(), TransferError> {
        let mut ticket = self.shared.post_append(data, options, limit)?;
        self.shared.finish(&mut ticket, limit).map(drop)
    }
}

impl Shared {
    fn post_append(&self, data: &[u8], options: AppendOptions, limit: &Limit<'_>) -> Result<Ticket, TransferError> {
        self.check_append(data.len())?;
        self.check_deferred()?;
        self.core.hot.trace(Trace::Send, data.as_ptr() as usize, data.len() as u64);
        let known = self.refusals.load(Ordering::Acquire);
        let mut command = RawCommand::new(Op::Append, self.id);
        command.flags = flags::WORD | if options.notify { flags::NOTIFY } else { 0 };
        (command.word, command.count, command.len) = (options.word, known, data.len() as u64);
        let mut append = Appending { chunk: None, refusals: self.refusals.clone(), known };
        if data.len() <= inline_bytes_max(command.flags) {
            command.flags |= flags::INLINE;
            return self.post_answered_with(&mut command, data, Hold::Append(append), limit);
        }
        let (staging, chunk) = self.chunk(data.len() as u64, limit)?;
        staging.region.write(chunk.offset, data).expect("chunks lie in the staging region");
        (command.region, command.region_offset) = (u64::from(staging.id), chunk.offset);
        append.chunk = Some(chunk);
        self.post_answered(&mut command, Hold::Append(append), limit)
    }

    fn check_append(&self, len: usize) -> Result<(), TransferError> {
        self.check_right(Rights::WRITE)?;
        let error = if self.kind != ExportKind::Ring {
            OpError::NotAppendable
        } else if len > APPEND_BYTES_MAX {
            OpError::RecordTooLong { len: len as u64, max: APPEND_BYTES_MAX as u64 }
        } else {
            return Ok(());
        };
        Err(TransferError::Engine { import: self.label.clone(), error })
    }
}
