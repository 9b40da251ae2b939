//! Exports: memory that others may import, and its end.
//!
//! Invariant: when [`Export::unexport`] has returned successfully, no importer's byte arrives in
//! this memory any more. Source: [NT §3.1]; revocation by moving pages is our departure, since a
//! mapping held by another process cannot be taken back.

use crate::buffer::{Buffer, BufferRange};
use crate::core::Core;
use crate::error::{AccessError, CallError, ExportError, UnexportError, WaitError};
use crate::hub::{Allows, Taker};
use crate::memory::Origin;
use crate::notification::{HandlerGuard, Notification};
use crate::session::Session;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc_host::area::region_bit;
use vmmc_host::control::{Access, Answer, Call, ExportKind};
use vmmc_host::stores::Stores;
use vmmc_host::{Deadline, Region};
use vmmc_nic::{ExportId, Rights};

/// Memory that others may import. Dropping it ends the export.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-export").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// let export = session.export(4096).name("board").notify(true).create()?;
/// let import = session.import("board").open()?;
/// import.send_with(8, b"hello", vmmc::SendOptions::notify())?;
/// let news = export.wait_notification()?;
/// assert_eq!((news.offset, news.len), (8, 5));
/// let mut text = [0; 5];
/// export.read(8, &mut text)?;
/// assert_eq!(&text, b"hello");
/// export.unexport()?; // from here on no byte arrives
/// assert!(import.send(8, b"late").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: [NT §3.1] exported receive buffers; notifications [NT §2].
pub struct Export {
    core: Arc<Core>,
    id: ExportId,
    name: Option<String>,
    notify: bool,
    /// None once the export has ended.
    memory: Option<Buffer>,
}

/// Choices for an export; made by [`Session::export`] and its siblings.
#[must_use = "nothing is exported before `create`"]
pub struct ExportBuilder {
    session: Session,
    source: Origin,
    name: Option<String>,
    rights: Rights,
    access: Access,
    notify: bool,
    redirectable: bool,
    mappable: bool,
    kind: ExportKind,
}

/// How an ended export was made unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// The engine refuses, and mapped transfers have stopped at the gate. A hostile importer that
    /// stores through its mapping without the library could still reach the old pages: use
    /// [`Export::unexport_moving`] against such.
    Gate,
    /// The content was moved onto other pages; a mapping of the old ones reaches nothing.
    Moved,
}

impl ExportBuilder {
    pub(crate) fn new(session: Session, source: Origin) -> ExportBuilder {
        ExportBuilder {
            session,
            source,
            name: None,
            rights: Rights::ALL,
            access: Access::default(),
            notify: false,
            redirectable: false,
            mappable: true,
            kind: ExportKind::Memory,
        }
    }

    /// Name for importers, 1 to 255 bytes, unique among those of this user on the node; without one
    /// it is imported by id.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_string());
        self
    }

    /// What importers may be granted; default read, write and atomic.
    pub fn rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }

    /// Who may import; default processes of the same user.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Whether senders may notify; default false.
    pub fn notify(mut self, allowed: bool) -> Self {
        self.notify = allowed;
        self
    }

    /// Whether incoming data may be redirected; default false. Such an export is served by the
    /// engine also on its own node, since the node must see every byte.
    pub fn redirectable(mut self, redirectable: bool) -> Self {
        self.redirectable = redirectable;
        self
    }

    /// Whether importers on this node may map the memory; default true. Without, they go through
    /// the engine, and nobody can touch the pages after the end.
    pub fn mappable(mut self, mappable: bool) -> Self {
        self.mappable = mappable;
        self
    }

    /// An append ring.
    pub(crate) fn ring(mut self) -> Self {
        (self.kind, self.rights, self.mappable) = (ExportKind::Ring, Rights::WRITE, false);
        self
    }

    /// A token table.
    pub(crate) fn tokens(mut self, entries: u32) -> Self {
        (self.kind, self.rights) = (ExportKind::Tokens { entries }, Rights::WRITE);
        self
    }

    /// Makes the export. Its memory is reserved now: a shortage is an error here and never a signal
    /// later.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn create(self) -> Result<Export, ExportError> {
        let core = self.session.core().clone();
        let deadline = core.default_deadline();
        let label = self.name.as_ref().map_or_else(|| "without a name".to_string(), |name| format!("{name:?}"));
        let piece = match self.source.register(&core, deadline) {
            Ok(piece) => piece,
            Err(error) => return Err(ExportError::Memory { name: label, error }),
        };
        let call = Call::Export {
            name: self.name.clone(),
            region: piece.registered.id,
            offset: piece.offset,
            len: piece.len,
            rights: self.rights.bits(),
            access: self.access.clone(),
            notify: self.notify,
            redirectable: self.redirectable,
            kind: self.kind,
            mappable: self.mappable,
        };
        let export = match core.call(call, &[], deadline) {
            Ok((Answer::Exported { export }, _)) => export,
            Ok(_) => return Err(ExportError::Call { name: label, error: core.wrong_answer("to an export") }),
            Err(error) => return Err(ExportError::Call { name: label, error }),
        };
        let notify = self.notify && self.rights.contains(Rights::WRITE) && self.mappable && !self.redirectable;
        core.hub.open(export, Allows { len: piece.len, notify, access: self.access });
        let (id, memory) = (ExportId::from_u64(export), Some(Buffer::new(core.clone(), piece)));
        Ok(Export { core, id, name: self.name, notify: self.notify, memory })
    }
}

#[allow(clippy::len_without_is_empty)] // never empty
impl Export {
    /// Id for importers.
    pub fn id(&self) -> ExportId {
        self.id
    }

    /// Name for importers, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.memory().len()
    }

    /// The region that the memory lies in; it outlives the export.
    pub fn region(&self) -> Region {
        self.memory().memory()
    }

    /// Its memory as registered memory, to send from or to fetch into, which stays when the export
    /// ends. While it exists the memory cannot be [moved](Self::unexport_moving).
    pub fn buffer(&self) -> Buffer {
        self.memory().clone()
    }

    /// A part of its memory, from the first byte to before the last, to send from or to fetch into:
    /// as of [`Buffer::range`].
    pub fn range(&self, range: Range<u64>) -> BufferRange<'_> {
        self.memory().range(range)
    }

    /// First byte in this process, for callers that take the responsibility of shared memory
    /// themselves: valid as long as the export or its [`region`](Self::region) lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory().as_ptr()
    }

    /// Copies bytes out. If importers store meanwhile, old and new bytes may be mixed.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]; [`AccessError::Forked`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.memory().read(offset, into)
    }

    /// Copies bytes in; the last one becomes visible last.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]; [`AccessError::Forked`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.memory().write(offset, data)
    }

    /// As [`write`](Self::write), by the stores that were found to pay between the writer and those
    /// who read the memory next, and the bytes become visible in any order: for those who are told
    /// of them afterwards.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_for(&self, stores: &Stores, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.memory().write_unordered(stores, offset, data)
    }

    /// An aligned word, which importers may change at any time.
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        self.memory().word(offset)
    }

    /// Aligned words that follow each other.
    pub(crate) fn words(&self, offset: u64, count: usize) -> Result<&[AtomicU64], AccessError> {
        self.memory().words(offset, count)
    }

    /// Waits the session's timeout until a word satisfies a condition; gives its value. Everything
    /// sent before that word by the same process is then visible.
    ///
    /// It polls, yields the processor, then sleeps. It is woken by sends and atomic operations of
    /// other processes of this node, and by its node for short data (up to 4 KiB) that comes from
    /// other nodes. A store through a [`Binding`](crate::Binding) or by this process itself, or a
    /// word at the end of long data, wakes nobody and is found after a sleep of up to 1 ms; where
    /// that is too long, ask the sender for a notification.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_word(&self, offset: u64, ready: impl Fn(u64) -> bool) -> Result<u64, WaitError> {
        self.wait_word_by(offset, ready, self.core.default_deadline())
    }

    /// As [`wait_word`](Self::wait_word), until a deadline.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_word_by(&self, offset: u64, ready: impl Fn(u64) -> bool, deadline: Deadline) -> Result<u64, WaitError> {
        let word = self.word(offset)?;
        let look = || Some(word.load(Ordering::Acquire)).filter(|value| ready(*value));
        if let Some(value) = look() {
            return Ok(value);
        }
        let start = self.core.waiting.waiter.now();
        self.core.wait_word(self.region_bit(), deadline, look).map_err(|end| {
            let waited = self.core.waiting.waiter.now().since(start);
            self.core.wait_error(end, &format!("wait for the word at {offset} of export {}", self.label()), waited)
        })
    }

    /// Of its region, by which whoever stores there finds those who wait for words; 0: it has
    /// ended.
    pub(crate) fn region_bit(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| region_bit(memory.region_id()))
    }

    /// How many imports of it there are now, of processes of this node and of others: each import
    /// that a process has made and not dropped counts. One whose process or node has died is gone
    /// as soon as this node has noticed.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn importers(&self) -> Result<u64, CallError> {
        let call = Call::Importers { export: self.id.to_u64() };
        match self.core.call(call, &[], self.core.default_deadline())? {
            (Answer::Importers { count }, _) => Ok(count),
            _ => Err(self.core.wrong_answer("to a question for importers")),
        }
    }

    /// Ends the export. When this returns no further byte arrives from anybody who uses the
    /// library, and, if an importer had bound itself or was stopped in the middle of a transfer,
    /// the content has been moved onto other pages.
    ///
    /// # Errors
    /// [`UnexportError`].
    pub fn unexport(mut self) -> Result<Revocation, UnexportError> {
        self.end(false)
    }

    /// Ends the export and moves its content onto other pages (one copy), without relying on
    /// importers. Other threads must not store to the memory meanwhile.
    ///
    /// # Errors
    /// [`UnexportError`].
    pub fn unexport_moving(mut self) -> Result<Revocation, UnexportError> {
        self.end(true)
    }

    /// The next notification of this export; waits the session's timeout.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_notification(&self) -> Result<Notification, WaitError> {
        self.wait_notification_by(self.core.default_deadline())
    }

    /// The next notification of this export.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_notification_by(&self, deadline: Deadline) -> Result<Notification, WaitError> {
        self.must_allow_notifications()?;
        self.core.wait_notification(self.taker(), deadline)
    }

    /// A notification of this export if one is there.
    pub fn take_notification(&self) -> Option<Notification> {
        self.core.take_notification(self.taker())
    }

    /// Runs a handler on a thread of its own for every notification of this export, which other
    /// takers then no longer see.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn on_notification(
        &self,
        handler: impl FnMut(Notification) + Send + 'static,
    ) -> Result<HandlerGuard, WaitError> {
        self.must_allow_notifications()?;
        self.core.handle_notifications(self.taker(), handler)
    }

    /// Notifications of this export queue up and are not delivered.
    pub fn block_notifications(&self) {
        self.core.hub.block(self.taker(), true);
    }

    /// Ends [`block_notifications`](Self::block_notifications).
    pub fn unblock_notifications(&self) {
        self.core.hub.block(self.taker(), false);
        self.core.kick();
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<(), AccessError> {
        self.memory().check(offset, len)
    }

    pub(crate) fn taker(&self) -> Taker {
        Taker::Export(self.id.to_u64())
    }

    pub(crate) fn must_allow_notifications(&self) -> Result<(), WaitError> {
        if self.notify {
            return Ok(());
        }
        Err(WaitError::NotAllowed { what: format!("wait for a notification of export {}", self.label()) })
    }

    #[inline]
    fn memory(&self) -> &Buffer {
        self.memory.as_ref().expect("only `end` takes it, and the export is not used after")
    }

    fn label(&self) -> String {
        match &self.name {
            Some(name) => format!("{name:?} ({} on node {})", self.id, self.core.identity.name),
            None => format!("{} on node {}", self.id, self.core.identity.name),
        }
    }

    fn end(&mut self, moving: bool) -> Result<Revocation, UnexportError> {
        let Some(memory) = self.memory.take() else { return Ok(Revocation::Gate) };
        let error = |error: CallError| UnexportError::Call { export: self.label(), error };
        let call = Call::Unexport { export: self.id.to_u64(), moving };
        let answer = self.core.call(call, &[], self.core.default_deadline());
        self.core.hub.close(self.id.to_u64());
        // In a child of the process another thread may have held the lock when it forked.
        if !self.core.is_forked() && self.core.redirects.end_of(self.id.to_u64()) {
            self.core.kick();
        }
        match answer {
            Ok((Answer::Unexported { must_move: false }, _)) => Ok(Revocation::Gate),
            Ok((Answer::Unexported { must_move: true }, _)) => self.move_pages(&memory),
            // With the node everything it granted through the engine is gone too; only mappings
            // remain, and moving frees us of them.
            Err(CallError::NodeGone { .. }) if moving => self.move_pages(&memory),
            Ok(_) => Err(error(self.core.wrong_answer("to an unexport"))),
            Err(e) => Err(error(e)),
        }
    }

    fn move_pages(&self, memory: &Buffer) -> Result<Revocation, UnexportError> {
        let users = memory.other_users();
        if users > 0 {
            return Err(UnexportError::Shared { export: self.label(), users });
        }
        match memory.region().move_pages() {
            Ok(_new_memfd) => Ok(Revocation::Moved),
            Err(error) => Err(UnexportError::Move { export: self.label(), error }),
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // A caller that wants to know how it went calls `unexport`.
        let _ = self.end(false);
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({}, {} bytes)", self.label(), self.len())
    }
}
