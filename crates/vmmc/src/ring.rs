//! Rings: exports into which many processes append records, and which their owner reads in order.
//!
//! Invariant: a record is taken once, whole, and in its turn; its place is free for others from
//! then on. Source: [GMS §2] receive ring.

use crate::error::{AccessError, ExportError, WaitError};
use crate::export::{Export, ExportBuilder};
use std::sync::atomic::Ordering;
use vmmc_host::Deadline;
use vmmc_host::control::Access;
use vmmc_nic::{ExportId, RECORD_HEAD_BYTES, RING_HEAD_BYTES, RING_READ_AT, RING_WRITTEN_AT, RecordHead, Sender};

/// A ring of records that others append. Dropping it ends the export.
///
/// The node writes it, for senders on this node and on others: none can hold others up, write over
/// what was not read, or say that it is another one. A process has no more in it unread than is
/// free, so one that sends without end leaves room for the others.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-ring").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::{AppendOptions, Rights};
/// let mut ring = session.ring(64 << 10).name("inbox").create()?;
/// for name in ["ann", "bob"] {
///     let inbox = session.import("inbox").rights(Rights::WRITE).open()?;
///     inbox.append(name.as_bytes(), AppendOptions::default())?;
/// }
/// let names = [ring.wait()?, ring.wait()?].map(|record| record.data);
/// assert_eq!(names, [b"ann", b"bob"]);
/// assert!(ring.take()?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: [GMS §2].
pub struct Ring {
    export: Export,
    /// Bytes of records.
    size: u64,
    /// Bytes taken in all.
    read: u64,
}

/// Choices for a ring; made by [`Session::ring`](crate::Session::ring).
#[must_use = "there is no ring before `create`"]
pub struct RingBuilder {
    export: ExportBuilder,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who appended it. The node vouches for all of it.
    pub from: Sender,
    /// The word that its sender gave it.
    pub word: u64,
    /// Its data.
    pub data: Vec<u8>,
}

impl RingBuilder {
    pub(crate) fn new(export: ExportBuilder) -> RingBuilder {
        RingBuilder { export: export.ring() }
    }

    /// Name for importers, as of [`ExportBuilder::name`].
    pub fn name(self, name: &str) -> Self {
        RingBuilder { export: self.export.name(name) }
    }

    /// Who may append; default processes of the same user.
    pub fn access(self, access: Access) -> Self {
        RingBuilder { export: self.export.access(access) }
    }

    /// Whether senders may notify besides; default false. A wait for a record needs none.
    pub fn notify(self, allowed: bool) -> Self {
        RingBuilder { export: self.export.notify(allowed) }
    }

    /// Makes the ring.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn create(self) -> Result<Ring, ExportError> {
        let export = self.export.create()?;
        let size = export.len() - RING_HEAD_BYTES;
        Ok(Ring { export, size, read: 0 })
    }
}

impl Ring {
    /// Bytes of an export that holds `bytes` of records.
    pub(crate) fn export_bytes(bytes: u64) -> u64 {
        bytes.saturating_add(RING_HEAD_BYTES)
    }

    /// Id for importers.
    pub fn id(&self) -> ExportId {
        self.export.id()
    }

    /// Name for importers, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.export.name()
    }

    /// Bytes of records that it holds at most, each with 32 bytes beside its data.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The export, for its notifications.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// The oldest record, if there is one. Steps an embedded node.
    ///
    /// # Errors
    /// [`AccessError::NoRecord`]: this process has written into the ring. [`AccessError::Forked`].
    pub fn take(&mut self) -> Result<Option<Record>, AccessError> {
        let mut data = Vec::new();
        let taken = self.take_into(&mut data)?;
        Ok(taken.map(|(from, word)| Record { from, word, data }))
    }

    /// As [`take`](Self::take), without an allocation for each record: the data goes into `data`,
    /// in place of what is there.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn take_into(&mut self, data: &mut Vec<u8>) -> Result<Option<(Sender, u64)>, AccessError> {
        if self.written()? == self.read {
            self.export.core().step();
            if self.written()? == self.read {
                return Ok(None);
            }
        }
        let mut head = [0; RECORD_HEAD_BYTES as usize];
        self.read_at(0, &mut head)?;
        let unread = self.written()?.wrapping_sub(self.read);
        let head = RecordHead::from_bytes(&head).filter(|head| head.record_bytes() <= unread);
        let Some(head) = head.filter(|_| unread <= self.size) else {
            return Err(AccessError::NoRecord { at: self.read });
        };
        data.resize(head.len as usize, 0);
        self.read_at(RECORD_HEAD_BYTES, data)?;
        self.read += head.record_bytes();
        self.export.word(RING_READ_AT)?.store(self.read, Ordering::Release);
        Ok(Some((head.from, head.word)))
    }

    /// The oldest record; waits the session's timeout for it.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&mut self) -> Result<Record, WaitError> {
        self.wait_by(self.export.core().default_deadline())
    }

    /// The oldest record; waits until the deadline for it.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_by(&mut self, deadline: Deadline) -> Result<Record, WaitError> {
        loop {
            if let Some(record) = self.take()? {
                return Ok(record);
            }
            self.export.wait_word_by(RING_WRITTEN_AT, |written| written != self.read, deadline)?;
        }
    }

    /// Ends the export: senders are told, and what is unread is gone.
    ///
    /// # Errors
    /// [`UnexportError`](crate::UnexportError).
    pub fn unexport(self) -> Result<crate::Revocation, crate::UnexportError> {
        self.export.unexport()
    }

    /// Whether one has come, as far as memory shows.
    pub(crate) fn has_record(&self) -> bool {
        self.written().is_ok_and(|written| written != self.read)
    }

    fn written(&self) -> Result<u64, AccessError> {
        Ok(self.export.word(RING_WRITTEN_AT)?.load(Ordering::Acquire))
    }

    /// Copies bytes from `skip` bytes behind what was taken on.
    fn read_at(&self, skip: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let at = (self.read + skip) % self.size;
        let first = into.len().min((self.size - at) as usize);
        let (now, rest) = into.split_at_mut(first);
        self.export.read(RING_HEAD_BYTES + at, now)?;
        self.export.read(RING_HEAD_BYTES, rest)
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("size", &self.size).field("export", &self.export).finish()
    }
}
