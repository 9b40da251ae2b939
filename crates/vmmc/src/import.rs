//! Imports: proxy receive buffers, and the deliberate updates and fetches through them.
//!
//! Invariant: every transfer is checked here against length and rights of the import before it
//! reaches mapped memory or the command ring. Source: [NT §3.1], [SHRIMP §2] deliberate update;
//! gather, scatter and remote atomics as every peer library has them.

mod builder;

pub use builder::ImportBuilder;

use crate::core::{Core, End, Limit, count};
use crate::error::{AccessError, CallError, TransferError, millis};
use crate::explain::{Explanation, Path};
use crate::fetching::Fetching;
use crate::imports::DeferredErrors;
use crate::limits::DROP_FLUSH;
use crate::mapped::{Fault, Mapped};
use crate::source::{self, Source, last_word};
use crate::staging::Share;
use crate::target::{self, PostTarget, Target};
use crate::transfer::{Moving, Transfer};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use vmmc_host::abi::{GateState, RawNotification};
use vmmc_host::control::{Call, ExportKind, Grant, Moved, NotMapped};
use vmmc_host::handshake::fence;
use vmmc_host::{Deadline, Protection, Region, RegionError};
use vmmc_nic::{ExportId, ImportId, OpError, Rights};

/// A proxy receive buffer: access to another process's export. Dropping it gives the import back,
/// after its posted sends have arrived (or one second).
///
/// All calls can be made from any thread. Errors of sends that had already returned are reported by
/// the next call on the import, at the latest by [`flush`](Import::flush).
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-import").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::{Rights, SendOptions};
/// let export = session.export(4096).name("queue").create()?;
/// let import = session.import("queue").rights(Rights::ALL).open()?;
/// import.send(64, b"first")?;                                 // deliberate update
/// import.send_with(128, b"next", SendOptions::counter(0))?;   // and a word counts it
/// let mut back = [0; 5];
/// import.fetch(64, &mut back)?;                               // remote fetch
/// assert_eq!((&back, import.fetch_add(0, 1)?), (b"first", 1));
/// import.flush()?; // errors of sends that had returned are told now
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: [NT §3.1] import; [SHRIMP §2] deliberate update.
pub struct Import {
    /// Present if the transfers are copies by the caller.
    pub(crate) mapped: Option<Mapped>,
    /// The same, of a token table, where nothing goes but payloads by token.
    pub(crate) mapped_table: Option<Box<Mapped>>,
    pub(crate) shared: Arc<Shared>,
}

/// What transfers under way need of their import.
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    pub(crate) id: u64,
    pub(crate) export: u64,
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    pub(crate) notify: bool,
    redirectable: bool,
    pub(crate) kind: ExportKind,
    /// Appends that were refused, as far as their callers know.
    pub(crate) refusals: Arc<AtomicU32>,
    sealed: bool,
    owner: u32,
    node: String,
    /// As in `"frames" (export 12.3 of process 77 on node a)`.
    pub(crate) label: String,
    pub(crate) not_mapped: Option<NotMapped>,
    pub(crate) deferred: Arc<DeferredErrors>,
    pub(crate) share: Arc<Share>,
    /// Something was posted since the last flush.
    pub(crate) posted: AtomicBool,
}

/// Choices for one send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Notify the receiver, and give it this word of the sender's choice
    /// ([`Notification::word`](crate::Notification::word)); it is notified if the export allows it,
    /// after the data.
    pub notify: Option<u64>,
    /// Offset of a 64-bit word of the export that grows by one after the data is there.
    pub counter: Option<u64>,
    /// Instead of the session's timeout.
    pub timeout: Option<Duration>,
}

impl SendOptions {
    /// Whether nothing comes with the data.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.notify.is_none() && self.counter.is_none()
    }

    /// Asks for a notification, whose word is 0.
    pub fn notify() -> SendOptions {
        SendOptions::notify_with(0)
    }

    /// Asks for a notification that carries this word: a tag, a number of a request, a length,
    /// whatever the receiver should know of the data without reading it.
    pub fn notify_with(word: u64) -> SendOptions {
        SendOptions { notify: Some(word), ..SendOptions::default() }
    }

    /// Asks for a counter.
    pub fn counter(offset: u64) -> SendOptions {
        SendOptions { counter: Some(offset), ..SendOptions::default() }
    }
}

impl Import {
    fn granted(core: Arc<Core>, label: String, grant: Grant, fds: Vec<OwnedFd>) -> Result<Import, RegionError> {
        let rights = Rights::from_bits(grant.rights).unwrap_or(Rights::NONE);
        let mapped = match grant.mapped {
            Ok(()) => Some(map(&core, &grant, rights, fds)?),
            Err(_) => None,
        };
        let label = full_label(&label, &grant);
        let deferred = Arc::new(DeferredErrors::default());
        core.imports.add(grant.import, &deferred);
        let shared = Shared {
            id: grant.import,
            export: grant.export,
            len: grant.len,
            rights,
            notify: grant.notify,
            redirectable: grant.redirectable,
            kind: grant.kind,
            refusals: Arc::default(),
            sealed: grant.sealed,
            owner: grant.owner,
            node: grant.node,
            label,
            not_mapped: grant.mapped.err(),
            deferred,
            share: Arc::default(),
            posted: AtomicBool::new(false),
            core,
        };
        let (mapped, mapped_table) = match shared.kind {
            ExportKind::Tokens { .. } => (None, mapped.map(Box::new)),
            _ => (mapped, None),
        };
        Ok(Import { mapped, mapped_table, shared: Arc::new(shared) })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.shared.len
    }

    /// Rights.
    pub fn rights(&self) -> Rights {
        self.shared.rights
    }

    /// Its id in this process: what a receiver finds in [`Sender::import`](crate::Sender::import)
    /// of a notification, beside [`Session::process_id`](crate::Session::process_id).
    pub fn id(&self) -> ImportId {
        ImportId::from_u64(self.shared.id)
    }

    /// Id of the export behind it.
    pub fn export_id(&self) -> ExportId {
        ExportId::from_u64(self.shared.export)
    }

    /// User id of the exporting process, as its node says.
    pub fn owner(&self) -> u32 {
        self.shared.owner
    }

    /// Name of the exporting node.
    pub fn node(&self) -> &str {
        &self.shared.node
    }

    /// The mapped memory, if transfers are copies by the caller: valid as long as the import lives.
    /// Loads through it see what the exporter's memory holds, or held at the end of the export.
    /// Stores through it need a [`Binding`](crate::Binding), which tells the exporter that they
    /// happen.
    pub fn as_ptr(&self) -> Option<*const u8> {
        self.mapping().map(|mapped| mapped.region().as_ptr().cast_const())
    }

    /// Which path it uses, and why not a better one.
    pub fn explain(&self) -> Explanation {
        let shared = &*self.shared;
        let path = match shared.not_mapped {
            None => Path::Mapped,
            Some(NotMapped::OtherNode) => Path::Network,
            Some(_) => Path::Engine,
        };
        Explanation {
            import: shared.label.clone(),
            node: shared.node.clone(),
            path,
            not_mapped: shared.not_mapped,
            len: shared.len,
            rights: shared.rights.to_string(),
            sealed: shared.sealed,
            notify: shared.notify,
            redirectable: shared.redirectable,
            broken: self.broken().map(|e| e.to_string()),
        }
    }

    /// What this process moved through it by copies of its own; nothing if it is not mapped. What
    /// stores through a [`Binding`](crate::Binding) moved is not counted, nor what threads moved
    /// that came when all 1,024 counters of the session were taken;
    /// [`Session::stats`](crate::Session::stats) has those too.
    pub fn moved(&self) -> Moved {
        self.mapping().map(Mapped::moved).unwrap_or_default()
    }

    /// What is mapped of the export, whatever its kind.
    fn mapping(&self) -> Option<&Mapped> {
        self.mapped.as_ref().or(self.mapped_table.as_deref())
    }

    /// Why it cannot be used any more, if so.
    pub fn broken(&self) -> Option<TransferError> {
        let shared = &*self.shared;
        shared.core.step();
        shared.core.collect_if_free();
        if let Some(error) = shared.deferred.ended() {
            return Some(shared.op_error(error));
        }
        match self.mapping() {
            Some(mapped) => mapped.probe().err().map(|fault| shared.fault(fault)),
            None => shared.core.usable().err().map(|end| shared.end(end, Duration::ZERO)),
        }
    }

    /// Deliberate update: sends all of the source to the export, any alignment, any length; returns
    /// when the source may be changed. A slice is copied; [`Source`] lists what else there is.
    ///
    /// On a mapped import the data is in the receiver's memory on return. Otherwise it may be on
    /// its way; [`flush`](Self::flush) waits for it, and should come before the process ends.
    ///
    /// # Errors
    /// [`TransferError`]; nothing has moved, except after [`TransferError::TimedOut`], when the
    /// data may still arrive, and after an error in the middle of a source of several pieces or
    /// pages.
    #[inline]
    pub fn send<'a>(&self, offset: u64, source: impl Source<'a>) -> Result<(), TransferError> {
        source.send_plain(self, offset)
    }

    /// [`send`](Self::send) with choices.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    #[inline]
    pub fn send_with<'a>(
        &self,
        offset: u64,
        source: impl Source<'a>,
        options: SendOptions,
    ) -> Result<(), TransferError> {
        self.send_source(offset, &source, options)
    }

    /// Posts a send: does not wait, other than for room to post it in. The transfer is done when
    /// the data has arrived, and until then has what it borrows of the source. Several may be under
    /// way; their pages are given up for no other transfer.
    ///
    /// A session has [`Limits::transfers`](crate::Limits::transfers) places for transfers through
    /// the engine that are under way, or done and not yet polled. When all are taken a post waits
    /// for one, and ends with [`TransferError::TimedOut`] if nobody polls: poll the oldest ones
    /// before more are posted.
    ///
    /// # Errors
    /// [`TransferError`]; later errors come with the transfer.
    pub fn post_send<'a>(
        &self,
        offset: u64,
        source: impl Source<'a>,
        options: SendOptions,
    ) -> Result<Transfer<'a>, TransferError> {
        self.check_source(offset, &source, options)?;
        let moving = match &self.mapped {
            Some(mapped) => {
                Moving::Done(self.copy_mapped(mapped, offset, &source, options).map(|()| source.len_bytes()))
            }
            None => source.post_engine(&self.shared, offset, options)?,
        };
        match moving {
            Moving::Done(Err(error)) => Err(error),
            moving => Ok(Transfer::new(self.shared.clone(), moving, ())),
        }
    }

    /// The fast path of [`send`](Self::send).
    #[inline]
    pub(crate) fn send_bytes(&self, offset: u64, data: &[u8]) -> Result<(), TransferError> {
        let shared = &*self.shared;
        match &self.mapped {
            Some(mapped) if shared.rights.contains(Rights::WRITE) => {
                mapped.send(offset, data).map_err(|fault| shared.fault(fault))
            }
            Some(_) => Err(shared.no_right(Rights::WRITE)),
            None => {
                shared.check(Rights::WRITE, offset, data.len() as u64)?;
                shared.send_engine(offset, data, SendOptions::default())
            }
        }
    }

    /// What is mapped of the export, if this process may store and load there.
    #[inline]
    pub(crate) fn mapped_both_ways(&self) -> Option<&Mapped> {
        self.mapped.as_ref().filter(|_| self.shared.rights.contains(Rights::READ | Rights::WRITE))
    }

    /// A fault of [what is mapped](Self::mapped_both_ways), in words.
    #[cold]
    pub(crate) fn fault(&self, fault: Fault) -> TransferError {
        self.shared.fault(fault)
    }

    pub(crate) fn send_source<'a>(
        &self,
        offset: u64,
        source: &impl source::Sealed<'a>,
        options: SendOptions,
    ) -> Result<(), TransferError> {
        self.check_source(offset, source, options)?;
        match &self.mapped {
            Some(mapped) => self.copy_mapped(mapped, offset, source, options),
            None => source.send_engine(&self.shared, offset, options),
        }
    }

    fn check_source<'a>(
        &self,
        offset: u64,
        source: &impl source::Sealed<'a>,
        options: SendOptions,
    ) -> Result<(), TransferError> {
        self.shared.check_source(source)?;
        self.shared.check_send(offset, source.len_bytes(), options.counter)
    }

    #[inline]
    fn copy_mapped<'a>(
        &self,
        mapped: &Mapped,
        offset: u64,
        source: &impl source::Sealed<'a>,
        options: SendOptions,
    ) -> Result<(), TransferError> {
        source.send_mapped(mapped, offset).map_err(|fault| self.shared.fault(fault))?;
        if options.is_plain() {
            return Ok(());
        }
        let word = if options.notify.is_some() { last_word(source) } else { 0 };
        self.after_mapped(mapped, offset, source.len_bytes(), word, options)
    }

    /// By which it finds those who wait for words of the exporter's region.
    #[cfg(test)]
    pub(crate) fn region_bit(&self) -> Option<u64> {
        self.mapping().map(|mapped| mapped.region_bit)
    }

    /// The counter and the notification that follow mapped data.
    pub(crate) fn after_mapped(
        &self,
        mapped: &Mapped,
        offset: u64,
        len: u64,
        last_word: u64,
        options: SendOptions,
    ) -> Result<(), TransferError> {
        let shared = &*self.shared;
        if let Some(counter) = options.counter {
            let add = mapped.atomic(counter, |word| word.fetch_add(1, Ordering::AcqRel));
            add.map_err(|fault| shared.fault(fault))?;
        }
        if let Some(word) = options.notify.filter(|_| shared.notify) {
            let core = &shared.core;
            count(&core.counters.notified, 1);
            // The holder of the other end of the ring knows the process.
            let (export, import) = (shared.export, shared.id);
            let note = RawNotification { export, offset, len, last_word, word, import, session: 0, process: 0 };
            if !mapped.notify(note) {
                count(&core.counters.notify_lost, 1);
            }
            if core.waiting.waiter.steps() {
                // A receiver in this process may be parked in the node.
                core.ring_doorbell();
            }
        }
        Ok(())
    }

    /// Remote fetch: fills all of the target, any alignment, any length. Sees what this process
    /// sent to the same node before. [`Target`] lists what can be fetched into.
    ///
    /// # Errors
    /// [`TransferError`]; the target may have been written in part. After
    /// [`TransferError::TimedOut`] registered memory may still be written, and no other.
    #[inline]
    pub fn fetch(&self, offset: u64, mut target: impl Target) -> Result<(), TransferError> {
        target.fetch_by(self, offset)
    }

    /// Posts a remote fetch: does not wait, other than for room to post it in. The target belongs
    /// to the transfer until it is done, and comes back by [`Transfer::into_inner`]. Several may be
    /// under way, as many as [posted sends](Self::post_send).
    ///
    /// # Errors
    /// [`TransferError`]; later errors come with the transfer.
    pub fn post_fetch<T: PostTarget>(
        &self,
        offset: u64,
        mut target: T,
    ) -> Result<Transfer<'static, T::Given>, TransferError> {
        let shared = &*self.shared;
        let len = target.len_bytes();
        target.check(shared)?;
        shared.check(Rights::READ, offset, len)?;
        let moving = match &self.mapped {
            Some(mapped) => {
                target.fetch_mapped(mapped, offset).map_err(|fault| shared.fault(fault))?;
                Moving::Done(Ok(len))
            }
            None => {
                let mut fetching = Fetching::new(len);
                target.queue(shared, offset, 0, &mut fetching)?;
                fetching.start(shared, &mut target, &shared.limit(SendOptions::default()))?;
                Moving::Fetch(Box::new(fetching))
            }
        };
        Ok(Transfer::new(self.shared.clone(), moving, target.give()))
    }

    /// The fast path of [`fetch`](Self::fetch).
    #[inline]
    pub(crate) fn fetch_bytes(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        if let Some(mapped) = &self.mapped {
            // A mapping exists only with the read right.
            return mapped.fetch(offset, into).map_err(|fault| self.shared.fault(fault));
        }
        self.shared.check(Rights::READ, offset, into.len() as u64)?;
        self.shared.fetch_engine(offset, into)
    }

    pub(crate) fn fetch_target(&self, offset: u64, target: &mut impl target::Sealed) -> Result<(), TransferError> {
        let shared = &*self.shared;
        target.check(shared)?;
        shared.check(Rights::READ, offset, target.len_bytes())?;
        match &self.mapped {
            Some(mapped) => target.fetch_mapped(mapped, offset).map_err(|fault| shared.fault(fault)),
            None => target.fetch_engine(shared, offset),
        }
    }

    /// Fetches several ranges of the export into consecutive bytes, as far as both reach.
    ///
    /// # Errors
    /// [`TransferError`]; parts may have been written.
    pub fn fetch_gather(&self, ranges: &[Range<u64>], into: &mut [u8]) -> Result<(), TransferError> {
        ranges.iter().try_for_each(|range| self.shared.check(Rights::READ, range.start, len(range)))?;
        let mut rest = into;
        for range in ranges {
            let (part, after) = rest.split_at_mut(rest.len().min(len(range) as usize));
            self.fetch_bytes(range.start, part)?;
            rest = after;
        }
        Ok(())
    }

    /// Adds to an aligned word; gives the old value.
    ///
    /// Needs [`Rights::ATOMIC`] ([`TransferError::NoRight`] else), which an import has only if it
    /// asks for it: `.rights(Rights::ALL)`.
    ///
    /// # Errors
    /// [`TransferError`].
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-fetch-add").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use vmmc::{Rights, TransferError};
    /// let export = session.export(4096).name("tickets").create()?;
    /// let import = session.import("tickets").rights(Rights::ALL).open()?;
    /// assert_eq!((import.fetch_add(0, 2)?, import.fetch_add(0, 1)?), (0, 2));
    /// let narrow = session.import("tickets").open()?; // read and write, as always
    /// assert!(matches!(narrow.fetch_add(0, 1), Err(TransferError::NoRight { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, TransferError> {
        self.shared.check_word(offset)?;
        match &self.mapped {
            Some(mapped) => {
                mapped.atomic(offset, |w| w.fetch_add(value, Ordering::AcqRel)).map_err(|f| self.shared.fault(f))
            }
            None => self.shared.atomic_engine(vmmc_host::abi::Op::FetchAdd, offset, [value, 0]),
        }
    }

    /// Stores `new` in an aligned word if it is `expected`; gives the old value.
    ///
    /// Needs [`Rights::ATOMIC`] ([`TransferError::NoRight`] else), which an import has only if it
    /// asks for it: `.rights(Rights::ALL)`.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, TransferError> {
        self.shared.check_word(offset)?;
        let swap = |word: &std::sync::atomic::AtomicU64| {
            let result = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
            result.unwrap_or_else(|old| old)
        };
        match &self.mapped {
            Some(mapped) => mapped.atomic(offset, swap).map_err(|fault| self.shared.fault(fault)),
            None => self.shared.atomic_engine(vmmc_host::abi::Op::CompareSwap, offset, [expected, new]),
        }
    }

    /// Stores `new` in an aligned word; gives the old value.
    ///
    /// Needs [`Rights::ATOMIC`] ([`TransferError::NoRight`] else), which an import has only if it
    /// asks for it: `.rights(Rights::ALL)`.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn swap(&self, offset: u64, new: u64) -> Result<u64, TransferError> {
        self.shared.check_word(offset)?;
        match &self.mapped {
            Some(mapped) => mapped.atomic(offset, |w| w.swap(new, Ordering::AcqRel)).map_err(|f| self.shared.fault(f)),
            None => self.shared.atomic_engine(vmmc_host::abi::Op::Swap, offset, [new, 0]),
        }
    }

    /// Returns when all that this process sent before to the export's node is in memory there, or
    /// the error of a posted send that failed.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn flush(&self) -> Result<(), TransferError> {
        self.flush_within(&Limit::within(&self.shared.core, self.shared.core.timeout()))
    }

    /// As [`flush`](Self::flush), until a deadline.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn flush_by(&self, deadline: Deadline) -> Result<(), TransferError> {
        self.flush_within(&Limit::until(&self.shared.core, deadline))
    }

    fn flush_within(&self, limit: &Limit<'_>) -> Result<(), TransferError> {
        let Some(mapped) = self.mapping() else { return self.shared.flush_engine(limit) };
        fence();
        mapped.probe().map_err(|fault| self.shared.fault(fault))
    }
}

fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// What was asked for, and what it is.
fn full_label(asked: &str, grant: &Grant) -> String {
    let (id, node) = (ExportId::from_u64(grant.export), &grant.node);
    let process = if grant.exporter_pid == 0 { String::new() } else { format!(" of process {}", grant.exporter_pid) };
    format!("{asked} (export {id}{process} on node {node})")
}

/// Maps what the grant gives.
fn map(core: &Arc<Core>, grant: &Grant, rights: Rights, fds: Vec<OwnedFd>) -> Result<Mapped, RegionError> {
    let missing = RegionError::Unsealed { len: grant.len, why: "the node sent no descriptor of it" };
    let mut fds = fds.into_iter();
    let (Some(region), Some(gates), Some(bell), Some(wake)) = (fds.next(), fds.next(), fds.next(), fds.next()) else {
        return Err(missing);
    };
    let protection = if rights.contains(Rights::WRITE) || rights.contains(Rights::ATOMIC) {
        Protection::ReadWrite
    } else {
        Protection::ReadOnly
    };
    let region = Region::map(region, grant.len, protection)?;
    let peer = core.peers.find_or_open(gates, bell, wake, fds.next().filter(|_| grant.pair))?;
    Mapped::new(core.hot.clone(), region, peer, grant).ok_or(missing)
}

impl Shared {
    /// Checks a transfer against the import.
    #[inline]
    pub(crate) fn check(&self, needed: Rights, offset: u64, len: u64) -> Result<(), TransferError> {
        self.check_right(needed)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.reach() => Ok(()),
            _ => Err(self.out_of_bounds(offset, len)),
        }
    }

    /// Bytes that have an offset for transfers.
    #[inline]
    fn reach(&self) -> u64 {
        if self.kind == ExportKind::Memory { self.len } else { 0 }
    }

    #[cold]
    fn out_of_bounds(&self, offset: u64, len: u64) -> TransferError {
        let import = self.label.clone();
        match self.kind {
            ExportKind::Memory => TransferError::OutOfBounds { import, offset, len, size: self.len },
            ExportKind::Ring => TransferError::Engine { import, error: OpError::AppendOnly },
            ExportKind::Tokens { .. } => TransferError::Engine { import, error: OpError::TokenOnly },
        }
    }

    pub(crate) fn check_send(&self, offset: u64, len: u64, counter: Option<u64>) -> Result<(), TransferError> {
        self.check(Rights::WRITE, offset, len)?;
        let Some(counter) = counter else { return Ok(()) };
        self.check(Rights::WRITE, counter, 8)?;
        self.check_aligned(counter)
    }

    /// Checks a range of a buffer against it.
    /// Checks a source, or the memory of a target, against what it is of.
    #[inline]
    pub(crate) fn check_source<'a>(&self, source: &impl source::Sealed<'a>) -> Result<(), TransferError> {
        if !source.is_of(&self.core) {
            return Err(TransferError::ForeignBuffer { import: self.label.clone() });
        }
        source.check_range().map_err(|error| self.outside_source(error))
    }

    /// A source or target reaches past its own memory.
    #[cold]
    fn outside_source(&self, error: AccessError) -> TransferError {
        match error {
            AccessError::OutOfBounds { offset, len, size } => {
                TransferError::BufferOutOfBounds { import: self.label.clone(), offset, len, size }
            }
            _ => unreachable!("a range is inside of its memory or not"),
        }
    }

    fn check_word(&self, offset: u64) -> Result<(), TransferError> {
        self.check(Rights::ATOMIC, offset, 8)?;
        self.check_aligned(offset)
    }

    #[inline]
    pub(crate) fn check_right(&self, needed: Rights) -> Result<(), TransferError> {
        if self.rights.contains(needed) { Ok(()) } else { Err(self.no_right(needed)) }
    }

    #[cold]
    fn no_right(&self, needed: Rights) -> TransferError {
        TransferError::NoRight { import: self.label.clone(), needed, granted: self.rights }
    }

    fn check_aligned(&self, offset: u64) -> Result<(), TransferError> {
        if offset % 8 == 0 { Ok(()) } else { Err(TransferError::Misaligned { import: self.label.clone(), offset }) }
    }

    /// A mapped transfer's fault, in words.
    #[cold]
    pub(crate) fn fault(&self, fault: Fault) -> TransferError {
        let import = self.label.clone();
        match fault {
            Fault::Gate(GateState::OwnerDied) => TransferError::OwnerDied { import },
            Fault::Gate(GateState::NodeStopped) | Fault::Gone => self.end(End::Gone, Duration::ZERO),
            Fault::Gate(_) => TransferError::Revoked { import },
            Fault::Bounds(e) => TransferError::OutOfBounds { import, offset: e.offset, len: e.len, size: e.size },
            Fault::Forked => self.end(End::Forked, Duration::ZERO),
        }
    }

    /// How a wait ended, in words.
    #[cold]
    pub(crate) fn end(&self, end: End, waited: Duration) -> TransferError {
        let import = self.label.clone();
        match end {
            End::TimedOut => TransferError::TimedOut { import, after_ms: millis(waited) },
            End::Gone => TransferError::NodeGone { import, node: self.core.identity.name.clone() },
            End::Forked => TransferError::Forked { import, parent: self.core.pid },
        }
    }

    /// An engine's error, in words.
    #[cold]
    pub(crate) fn op_error(&self, error: OpError) -> TransferError {
        let import = self.label.clone();
        match error {
            OpError::Revoked | OpError::StaleImport => TransferError::Revoked { import },
            OpError::OwnerDied => TransferError::OwnerDied { import },
            OpError::NodeUnreachable { after_ms } => TransferError::NodeUnreachable { import, after_ms },
            OpError::NodeRestarted => TransferError::NodeRestarted { import },
            OpError::OutOfBounds { offset, len, size } => TransferError::OutOfBounds { import, offset, len, size },
            OpError::NoRight { needed } => TransferError::NoRight { import, needed, granted: self.rights },
            OpError::Misaligned { offset, .. } => TransferError::Misaligned { import, offset },
            OpError::TooFragmented { max } => TransferError::TooFragmented { import, max },
            OpError::RingFull { needed, free, size } => TransferError::Full { import, needed, free, size },
            error => TransferError::Engine { import, error },
        }
    }

    /// An error that is to be reported before anything else happens.
    pub(crate) fn check_deferred(&self) -> Result<(), TransferError> {
        self.core.collect_if_free();
        self.deferred.check().map_err(|error| self.op_error(error))
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let shared = &*self.shared;
        if let Some(OpError::OwnerDied) = shared.deferred.ended() {
            if let Some(mapped) = self.mapping() {
                mapped.peer.mark_dead();
            }
        }
        if shared.posted.load(Ordering::Relaxed) && self.broken().is_none() {
            // Posted sends are promised to arrive; giving the import back at once would cut them
            // off. Nobody is left to learn of their errors.
            let _ = shared.flush_engine(&Limit::within(&shared.core, DROP_FLUSH));
        }
        shared.core.imports.remove(shared.id);
        shared.core.post_call(Call::Unimport { import: shared.id });
    }
}

impl std::fmt::Debug for Import {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Import({}, {} bytes, {})", self.shared.label, self.shared.len, self.shared.rights)
    }
}

/// For callers that made a set-up call on behalf of an import.
impl From<(&Shared, CallError)> for TransferError {
    fn from((shared, error): (&Shared, CallError)) -> TransferError {
        let end = match error {
            CallError::TimedOut { .. } => End::TimedOut,
            CallError::Forked { .. } => End::Forked,
            _ => End::Gone,
        };
        shared.end(end, Duration::ZERO)
    }
}
