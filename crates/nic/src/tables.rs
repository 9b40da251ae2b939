//! The driver's tables: processes, exports (the incoming page table), imports (the outgoing one),
//! grants to other nodes, waiting imports. All that sessions share.
//!
//! Invariant: a grant or local import is in its export's list at its own `position`, so that both
//! ends find each other without a search.

use std::collections::{BTreeMap, VecDeque};

use crate::command::Dma;
use crate::error::{ImportError, OpError};
use crate::event::{Event, Sender};
use crate::fetching::Fetching;
use crate::ids::{Cookie, ExportId, ImportId, ProcessId, RegionId, RegionRef};
use crate::limits::{
    BREAKS_PER_TURN, INLINE_BUFFERS_MAX, INLINE_BYTES_MAX, LOCAL_PIECE_BYTES, PROCESSES_MAX, REDIRECTS_PER_PIECE,
    share_allows,
};
use crate::local::{LocalOp, tail_of};
use crate::redirect::Redirector;
use crate::rights::{Access, ExportKind, ImportSpec, ImportTarget, Owner, ROOT, Rights};
use crate::ring::{RecordHead, Ring};
use crate::slab::{Key, Slab};
use crate::stats::Stats;
use crate::time::Time;
use crate::waiters::Waiters;
use crate::wire::chunk::Handle;

/// Names a session with a peer. The serial number distinguishes it from earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SessionId {
    pub(crate) peer: u16,
    pub(crate) serial: u64,
}

impl SessionId {
    /// The number by which drivers know the session. Never 0, which means this node.
    pub(crate) fn number(self) -> u32 {
        (self.serial as u32).max(1)
    }
}

pub(crate) struct Process {
    pub(crate) id: ProcessId,
    pub(crate) uid: u32,
    pub(crate) imports: Slab<Import>,
    pub(crate) exports: usize,
    /// Redirections posted on them.
    pub(crate) redirects: usize,
    /// Operations posted and not complete.
    pub(crate) outstanding: usize,
    /// Operations within the node that wait for a long copy before them.
    pub(crate) local: VecDeque<LocalOp>,
    /// Ranges of its gather-sends that have not ended.
    pub(crate) ranges: usize,
}

pub(crate) struct Export {
    pub(crate) owner: ProcessId,
    pub(crate) owner_uid: u32,
    pub(crate) name: Option<String>,
    pub(crate) memory: RegionRef,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    pub(crate) access: Access,
    pub(crate) notify: bool,
    pub(crate) redirector: Option<Box<Redirector>>,
    pub(crate) ring: Option<Box<Ring>>,
    pub(crate) kind: ExportKind,
    pub(crate) grants: Vec<Key<Grant>>,
    pub(crate) local_importers: Vec<(ProcessId, Key<Import>)>,
}

impl From<ExportId> for Key<Export> {
    fn from(id: ExportId) -> Key<Export> {
        Key::from_u64(id.to_u64())
    }
}

impl From<Key<Export>> for ExportId {
    fn from(key: Key<Export>) -> ExportId {
        ExportId::from_u64(key.to_u64())
    }
}

/// Permission of a remote importer. Everything a deposit needs is here.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) via: SessionId,
    pub(crate) handle: Handle,
    pub(crate) export: Key<Export>,
    pub(crate) target: Target,
    pub(crate) rights: Rights,
    pub(crate) position: usize,
    /// User of the importer, by the word of its node.
    pub(crate) uid: u32,
    /// A chunk of a send was void or refused: so is the rest of it, or its last byte would appear
    /// before the others.
    pub(crate) skip: bool,
    /// Appends that found no room, but for those that came before their sender knew of one.
    pub(crate) refusals: u32,
}

/// Checked destination of deposits.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) export: Key<Export>,
    pub(crate) memory: RegionRef,
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) notify: bool,
    pub(crate) arrivals: Arrivals,
}

/// What becomes of data that arrives at an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrivals {
    /// It goes where its sender says.
    Placed,
    /// The owner may have named another place.
    Redirected,
    /// It goes behind what is there.
    Appended,
    /// It goes into the buffer of a token, of a table with so many entries.
    ByToken { entries: u32 },
}

impl Arrivals {
    pub(crate) fn kind(self) -> ExportKind {
        match self {
            Arrivals::Placed | Arrivals::Redirected => ExportKind::Memory,
            Arrivals::Appended => ExportKind::Ring,
            Arrivals::ByToken { entries } => ExportKind::Tokens { entries },
        }
    }
}

/// The way to the export of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// Not answered yet; the key of the wait.
    Pending(Key<Wait>),
    Local {
        position: usize,
    },
    Remote {
        via: SessionId,
        grant: u64,
    },
}

pub(crate) struct Import {
    pub(crate) export: ExportId,
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    pub(crate) route: Route,
    pub(crate) broken: Option<OpError>,
    pub(crate) kind: ExportKind,
    /// See [`ImportSpec::own_order`].
    pub(crate) own_order: bool,
    /// As of a grant, for an export of this node.
    pub(crate) refusals: u32,
}

impl From<ImportId> for Key<Import> {
    fn from(id: ImportId) -> Key<Import> {
        Key::from_u64(id.to_u64())
    }
}

impl From<Key<Import>> for ImportId {
    fn from(key: Key<Import>) -> ImportId {
        ImportId::from_u64(key.to_u64())
    }
}

/// Something that waits for a node or an export.
pub(crate) struct Wait {
    pub(crate) what: WaitFor,
    pub(crate) cookie: Cookie,
    pub(crate) started: Time,
    pub(crate) deadline: Time,
    pub(crate) at: WaitAt,
}

pub(crate) enum WaitFor {
    Import { process: ProcessId, import: Key<Import>, spec: ImportSpec },
    Ping { by: crate::event::PingBy, node: crate::rights::NodeSpec, sent: Time },
}

/// How far a wait has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitAt {
    /// For a name of this node.
    LocalName,
    /// For any handshake that reveals the name of the node.
    NodeName,
    /// For a session with this peer.
    Peer(u16),
    /// For its turn to be asked for through this session, among those of this user.
    Turn { via: SessionId, uid: u32 },
    /// For its answer.
    Answer(SessionId),
}

impl WaitAt {
    /// Whether it is a session that it waits for.
    pub(crate) fn is_through(self, session: SessionId) -> bool {
        matches!(self, WaitAt::Turn { via, .. } | WaitAt::Answer(via) if via == session)
    }
}

/// Imports of this node that are to be broken.
pub(crate) struct Breaking {
    pub(crate) why: OpError,
    pub(crate) importers: Vec<(ProcessId, Key<Import>)>,
}

#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) processes: Vec<Option<Process>>,
    pub(crate) exports: Slab<Export>,
    /// The exports of each name, one of a user, by user.
    pub(crate) names: BTreeMap<String, Vec<(u32, Key<Export>)>>,
    pub(crate) grants: Slab<Grant>,
    /// How many of them the users of each peer have.
    pub(crate) granted: BTreeMap<(u16, u32), usize>,
    pub(crate) waits: Slab<Wait>,
    pub(crate) waiters: Waiters,
    /// How the names of on-demand exports begin.
    pub(crate) on_demand: Option<String>,
    /// On-demand exports that somebody waits for and the driver has not been told of: name, user,
    /// peer that asks.
    pub(crate) activations: VecDeque<(String, u32, Option<u16>)>,
    pub(crate) inline: InlinePool,
    pub(crate) events: VecDeque<Event>,
    /// Imports of exports that have ended and that are still to be reported, behind `events`.
    pub(crate) breaking: VecDeque<Breaking>,
    pub(crate) takes_messages: bool,
    /// Peers are believed whose process asks.
    pub(crate) trusts_users: bool,
    /// Messages that came. The driver takes them after each datagram, and no datagram makes more
    /// than the receive window of them due.
    pub(crate) messages: VecDeque<(SessionId, Box<[u8]>)>,
    /// Bytes that all sessions keep beyond gaps.
    pub(crate) held_bytes: usize,
    pub(crate) held_bytes_max: usize,
    pub(crate) fetching: Fetching,
    pub(crate) stats: Stats,
}

impl Tables {
    #[inline]
    pub(crate) fn process(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(id.slot())?.as_ref().filter(|process| process.id == id)
    }

    #[inline]
    pub(crate) fn process_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.processes.get_mut(id.slot())?.as_mut().filter(|process| process.id == id)
    }

    pub(crate) fn import_mut(&mut self, process: ProcessId, import: Key<Import>) -> Option<&mut Import> {
        self.process_mut(process)?.imports.get_mut(import)
    }

    /// One operation of `process` is over; it may have left meanwhile.
    pub(crate) fn op_ended(&mut self, process: ProcessId) {
        if let Some(process) = self.process_mut(process) {
            debug_assert!(process.outstanding > 0, "each operation is counted once");
            process.outstanding = process.outstanding.saturating_sub(1);
        }
    }

    /// Ranges of a gather-send are forgotten.
    pub(crate) fn ranges_ended(&mut self, process: ProcessId, count: usize) {
        if let Some(process) = self.process_mut(process) {
            debug_assert!(process.ranges >= count, "each range is counted once");
            process.ranges = process.ranges.saturating_sub(count);
        }
    }

    pub(crate) fn complete(&mut self, process: ProcessId, cookie: Cookie, result: Result<u64, OpError>) {
        if self.process(process).is_some() {
            self.events.push_back(Event::Completion { process, cookie, result });
        }
    }

    /// A send ended badly: through its completion, or as an event when it was posted.
    pub(crate) fn fail(&mut self, process: ProcessId, import: ImportId, cookie: Option<Cookie>, why: OpError) {
        match cookie {
            Some(cookie) => self.complete(process, cookie, Err(why)),
            // Whose message comes without its payload learns from its owner why.
            None if matches!(why, OpError::TokenRefused { .. }) => {}
            None if self.process(process).is_some() => {
                self.events.push_back(Event::SendFailed { process, import, why });
            }
            None => {}
        }
    }

    /// Ends an import with an event, once.
    pub(crate) fn break_import(&mut self, process: ProcessId, import: Key<Import>, why: OpError) {
        let Some(entry) = self.import_mut(process, import) else { return };
        if entry.broken.is_none() {
            entry.broken = Some(why);
            let import = ImportId::from(import);
            self.events.push_back(Event::ImportBroken { process, import, why });
        }
    }

    /// Ends the imports of an export that has ended: some now, and the others when all events are
    /// taken. A process that uses one of those meanwhile finds no export.
    pub(crate) fn break_imports(&mut self, mut importers: Vec<(ProcessId, Key<Import>)>, why: OpError) {
        let now = importers.split_off(importers.len().saturating_sub(BREAKS_PER_TURN));
        for (process, import) in now {
            self.break_import(process, import, why);
        }
        if !importers.is_empty() {
            self.breaking.push_back(Breaking { why, importers });
        }
    }

    /// Goes on with imports that are to be broken.
    #[cold]
    pub(crate) fn go_on_breaking(&mut self) {
        for _ in 0..BREAKS_PER_TURN {
            let Some(first) = self.breaking.front_mut() else { return };
            let why = first.why;
            match first.importers.pop() {
                Some((process, import)) => self.break_import(process, import, why),
                None => _ = self.breaking.pop_front(),
            }
        }
    }

    pub(crate) fn target(&self, key: Key<Export>) -> Option<Target> {
        let export = self.exports.get(key)?;
        Some(Target {
            export: key,
            memory: export.memory,
            base: export.offset,
            len: export.len,
            notify: export.notify,
            arrivals: match export.kind {
                ExportKind::Memory if export.redirector.is_some() => Arrivals::Redirected,
                ExportKind::Memory => Arrivals::Placed,
                ExportKind::Ring => Arrivals::Appended,
                ExportKind::Tokens { entries } => Arrivals::ByToken { entries },
            },
        })
    }

    pub(crate) fn add_grant(&mut self, mut grant: Grant) -> Key<Grant> {
        let export = grant.export;
        grant.position = self.exports.get(export).map_or(0, |export| export.grants.len());
        *self.granted.entry((grant.via.peer, grant.uid)).or_default() += 1;
        let key = self.grants.insert(grant);
        if let Some(export) = self.exports.get_mut(export) {
            export.grants.push(key);
        }
        key
    }

    /// The grant that the peer of a session names, if that session was given it.
    #[inline]
    pub(crate) fn grant(&self, via: SessionId, claimed: u64) -> Option<&Grant> {
        self.grants.get(Key::from_u64(claimed)).filter(|grant| grant.via == via)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn grant_mut(&mut self, via: SessionId, claimed: u64) -> Option<&mut Grant> {
        self.grants.get_mut(Key::from_u64(claimed)).filter(|grant| grant.via == via)
    }

    pub(crate) fn remove_grant(&mut self, key: Key<Grant>) -> Option<Grant> {
        let grant = self.take_grant(key)?;
        if let Some(export) = self.exports.get_mut(grant.export) {
            export.grants.swap_remove(grant.position);
            if let Some(&moved) = export.grants.get(grant.position) {
                if let Some(moved) = self.grants.get_mut(moved) {
                    moved.position = grant.position;
                }
            }
        }
        Some(grant)
    }

    /// Takes a grant from the table; its export's list goes as a whole.
    pub(crate) fn take_grant(&mut self, key: Key<Grant>) -> Option<Grant> {
        let grant = self.grants.remove(key)?;
        let holder = (grant.via.peer, grant.uid);
        if let Some(count) = self.granted.get_mut(&holder) {
            *count -= 1;
            if *count == 0 {
                self.granted.remove(&holder);
            }
        }
        Some(grant)
    }

    /// Takes a local import off its export's list.
    pub(crate) fn unlink_local(&mut self, export: Key<Export>, position: usize) {
        let Some(export) = self.exports.get_mut(export) else { return };
        export.local_importers.swap_remove(position);
        if let Some(&(process, import)) = export.local_importers.get(position) {
            if let Some(import) = self.import_mut(process, import) {
                import.route = Route::Local { position };
            }
        }
    }

    /// Which export a request of `uid` names.
    pub(crate) fn find_export(&self, what: &ImportTarget, uid: u32, owner: Owner) -> Option<Key<Export>> {
        let name = match what {
            ImportTarget::Name(name) => name,
            ImportTarget::Id(id) => {
                let owned = self.exports.get(Key::from(*id))?.owner_uid;
                let taken = owner == Owner::OwnOrRoot || owner.takes(uid, owned);
                return taken.then_some(Key::from(*id));
            }
        };
        let all = self.names.get(name)?;
        let of = |user: u32| all.iter().find(|(owner, _)| *owner == user).map(|(_, key)| *key);
        match owner {
            Owner::User(user) => of(user),
            Owner::OwnOrRoot => of(uid).or_else(|| of(ROOT)),
            Owner::Any => of(uid).or_else(|| of(ROOT)).or_else(|| self.admitting(name, uid)).or(Some(all[0].1)),
        }
    }

    /// Why a request of `uid` found nothing. Exports of other users exist only for those whom they
    /// admit.
    pub(crate) fn why_missing(&self, what: &ImportTarget, uid: u32) -> ImportError {
        let found = match what {
            ImportTarget::Name(name) => self.admitting(name, uid),
            ImportTarget::Id(id) => Some(Key::from(*id)).filter(|key| self.admits(*key, uid)),
        };
        match (found.and_then(|key| self.exports.get(key)), what) {
            (Some(export), _) => ImportError::OtherOwner { owner: export.owner_uid },
            (None, ImportTarget::Name(_)) => ImportError::NoSuchExport,
            (None, ImportTarget::Id(id)) => ImportError::StaleExport { slot: id.slot, generation: id.generation },
        }
    }

    /// An export of this name that this user may import.
    fn admitting(&self, name: &str, uid: u32) -> Option<Key<Export>> {
        self.names.get(name)?.iter().map(|(_, key)| *key).find(|key| self.admits(*key, uid))
    }

    fn admits(&self, key: Key<Export>, uid: u32) -> bool {
        self.exports.get(key).is_some_and(|export| export.access.admits(uid, export.owner_uid))
    }

    /// Whether this user has an export of this name.
    pub(crate) fn has_name(&self, name: &str, uid: u32) -> bool {
        self.names.get(name).is_some_and(|all| all.iter().any(|(owner, _)| *owner == uid))
    }

    /// Gives a name, which its user does not have yet, to an export.
    pub(crate) fn add_name(&mut self, name: &str, uid: u32, key: Key<Export>) {
        let all = self.names.entry(name.to_string()).or_default();
        let at = all.partition_point(|(owner, _)| *owner < uid);
        all.insert(at, (uid, key));
    }

    pub(crate) fn remove_name(&mut self, name: &str, uid: u32) {
        let Some(all) = self.names.get_mut(name) else { return };
        all.retain(|(owner, _)| *owner != uid);
        if all.is_empty() {
            self.names.remove(name);
        }
    }

    /// Copies bytes into an export, through its redirections, after every check.
    pub(crate) fn land(
        &mut self,
        target: &Target,
        offset: u64,
        data: Incoming<'_>,
        dma: &mut dyn Dma,
    ) -> Result<(), OpError> {
        let len = data.len();
        match target.arrivals {
            Arrivals::Placed => {
                self.stats.bytes_deposited += len;
                data.put(0, len, target.memory, target.base + offset, dma);
                return Ok(());
            }
            Arrivals::Redirected => self.stats.bytes_deposited += len,
            Arrivals::Appended => return Err(OpError::AppendOnly),
            Arrivals::ByToken { .. } => return Err(OpError::TokenOnly),
        }
        let Some(export) = self.exports.get_mut(target.export) else { return Err(OpError::Revoked) };
        let owner = export.owner;
        let Some(redirector) = export.redirector.as_deref_mut() else { return Err(OpError::Revoked) };
        let pieces = redirector.arrive(offset, len, target.memory, target.base)?;
        for piece in &pieces.places {
            data.put(piece.start - offset, piece.len, piece.to, piece.to_offset, dma);
        }
        self.stats.bytes_redirected += pieces.redirected_bytes;
        if !pieces.done.is_empty() {
            self.redirects_ended(owner, pieces.done.len());
            let export = ExportId::from(target.export);
            for (cookie, report) in pieces.done {
                self.events.push_back(Event::RedirectDone { process: owner, export, cookie, report });
            }
        }
        Ok(())
    }

    /// So many redirections of a process are complete or withdrawn.
    pub(crate) fn redirects_ended(&mut self, owner: ProcessId, count: usize) {
        if let Some(owner) = self.process_mut(owner) {
            debug_assert!(owner.redirects >= count, "each redirection is counted once");
            owner.redirects = owner.redirects.saturating_sub(count);
        }
    }

    /// Bytes of a copy within the node that are made at once.
    pub(crate) fn piece(&self, target: &Target, offset: u64, len: u64) -> u64 {
        let len = len.min(LOCAL_PIECE_BYTES);
        if target.arrivals != Arrivals::Redirected {
            return len;
        }
        let redirector = self.exports.get(target.export).and_then(|export| export.redirector.as_deref());
        redirector.map_or(len, |redirector| redirector.cut(offset, len, REDIRECTS_PER_PIECE))
    }
}

/// A record on its way into a ring.
pub(crate) struct Appended<'a> {
    pub(crate) from: Sender,
    pub(crate) word: u64,
    pub(crate) notify: bool,
    /// How many refusals its sender knows of.
    pub(crate) refusals: u32,
    pub(crate) data: &'a [u8],
}

/// Through what a record comes, which counts its refusals.
#[derive(Clone, Copy)]
pub(crate) enum Appender {
    Import(ProcessId, Key<Import>),
    Grant(Key<Grant>),
}

impl Tables {
    fn refusals(&mut self, of: Appender) -> Option<&mut u32> {
        match of {
            Appender::Import(process, import) => Some(&mut self.import_mut(process, import)?.refusals),
            Appender::Grant(grant) => Some(&mut self.grants.get_mut(grant)?.refusals),
        }
    }

    /// Puts a record into a ring, unless one of its sender was refused that the sender does not
    /// know of: then it would overtake that one. A record that is not such a one and finds no room
    /// counts as a refusal.
    pub(crate) fn append(
        &mut self,
        target: &Target,
        by: Appender,
        record: &Appended<'_>,
        dma: &mut dyn Dma,
    ) -> Result<(), OpError> {
        let were = self.refusals(by).map_or(0, |count| *count);
        let ring = self.exports.get_mut(target.export).and_then(|export| export.ring.as_deref_mut());
        let Some(ring) = ring else { return Err(OpError::NotAppendable) };
        let head = RecordHead { len: record.data.len() as u32, from: record.from, word: record.word };
        if record.refusals != were {
            return Err(ring.refuse(target, head.record_bytes(), dma));
        }
        let offset = match ring.append(target, head, record.data, dma) {
            Ok(offset) => offset,
            Err(why) => {
                if let (OpError::RingFull { .. }, Some(count)) = (why, self.refusals(by)) {
                    *count = count.wrapping_add(1);
                }
                return Err(why);
            }
        };
        self.stats.bytes_deposited += record.data.len() as u64;
        if record.notify {
            let (tail, len) = (tail_of(record.data), record.data.len() as u64);
            self.notify(target, record.from, (offset, len), tail, record.word);
        }
        Ok(())
    }
}

/// Data on its way into an export.
#[derive(Clone, Copy)]
pub(crate) enum Incoming<'a> {
    Bytes(&'a [u8]),
    Memory { from: RegionRef, offset: u64, len: u64 },
}

impl Incoming<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Incoming::Bytes(data) => data.len() as u64,
            Incoming::Memory { len, .. } => *len,
        }
    }

    /// The last 8 bytes as a number.
    pub(crate) fn tail(&self, dma: &mut dyn Dma) -> u64 {
        match *self {
            Incoming::Bytes(data) => tail_of(data),
            Incoming::Memory { from, offset, len } => {
                let (mut tail, bytes) = ([0; 8], len.min(8));
                dma.gather(from, offset + len - bytes, &mut tail[..bytes as usize]);
                u64::from_le_bytes(tail)
            }
        }
    }

    pub(crate) fn put(&self, start: u64, len: u64, to: RegionRef, to_offset: u64, dma: &mut dyn Dma) {
        if len == 0 {
            return;
        }
        match self {
            Incoming::Bytes(data) => {
                dma.deposit(to, to_offset, &data[start as usize..(start + len) as usize]);
            }
            Incoming::Memory { from, offset, .. } => {
                dma.copy(*from, offset + start, to, to_offset, len);
            }
        }
    }
}

/// Where the data of an operation of this node is.
#[derive(Clone, Copy)]
pub(crate) enum OpData {
    /// In the inline pool.
    Inline {
        /// Its buffer.
        slot: u32,
    },
    /// In memory of the process.
    Memory {
        /// Its region.
        region: RegionId,
        /// First byte.
        from: u64,
    },
}

/// Inline data of sends, from the command until the acknowledgement.
pub(crate) struct InlinePool {
    buffers: Vec<[u8; INLINE_BYTES_MAX]>,
    /// Slot of the process that each was given to last.
    owners: Vec<u16>,
    free: Vec<u32>,
    /// Buffers in use, by slot of the process.
    held: [u32; PROCESSES_MAX],
}

impl Default for InlinePool {
    fn default() -> InlinePool {
        InlinePool { buffers: Vec::new(), owners: Vec::new(), free: Vec::new(), held: [0; PROCESSES_MAX] }
    }
}

impl InlinePool {
    /// Whether there is a buffer for a process.
    #[inline]
    pub(crate) fn has_room(&self, process: ProcessId) -> bool {
        let used = self.buffers.len() - self.free.len();
        share_allows(self.held[process.slot()] as usize, used, INLINE_BUFFERS_MAX)
    }

    /// `None`: the process has its share. `data` fits, the caller has checked.
    #[inline]
    pub(crate) fn put(&mut self, process: ProcessId, data: &[u8]) -> Option<u32> {
        if !self.has_room(process) {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.buffers.push([0; INLINE_BYTES_MAX]);
            self.owners.push(0);
            (self.buffers.len() - 1) as u32
        });
        self.owners[slot as usize] = process.slot() as u16;
        self.held[process.slot()] += 1;
        self.buffers[slot as usize][..data.len()].copy_from_slice(data);
        Some(slot)
    }

    #[inline]
    pub(crate) fn data(&self, slot: u32, start: u64, len: usize) -> &[u8] {
        &self.buffers[slot as usize][start as usize..start as usize + len]
    }

    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        self.held[usize::from(self.owners[slot as usize])] -= 1;
        self.free.push(slot);
    }
}

impl Tables {
    /// Whether a process of `uid` may import `key` with `rights`.
    pub(crate) fn permit(&self, key: Key<Export>, uid: u32, rights: Rights) -> Result<(), ImportError> {
        let export = self.exports.get(key).ok_or(ImportError::NoSuchExport)?;
        if !export.access.admits(uid, export.owner_uid) {
            return Err(ImportError::NotPermitted { uid });
        }
        if rights.is_empty() {
            return Err(ImportError::BadRequest);
        }
        if !export.rights.contains(rights) {
            return Err(ImportError::NoRight { wanted: rights, allowed: export.rights });
        }
        Ok(())
    }

    /// As [`permit`](Self::permit), for a process of another node, whose user is that node's word.
    pub(crate) fn permit_remote(&self, key: Key<Export>, uid: u32, rights: Rights) -> Result<(), ImportError> {
        let for_anyone = self.exports.get(key).is_some_and(|export| export.access == crate::rights::Access::Anyone);
        if !self.trusts_users && !for_anyone {
            return Err(ImportError::NobodyVouches);
        }
        self.permit(key, uid, rights)
    }

    /// Answers a waiting import with an error; the import never existed for its process.
    pub(crate) fn end_import_wait(&mut self, wait: Key<Wait>, why: ImportError) {
        let Some(Wait { what: WaitFor::Import { process, import, .. }, cookie, .. }) = self.waits.remove(wait) else {
            return;
        };
        if let Some(entry) = self.process_mut(process) {
            entry.imports.remove_and_shrink(import);
            self.events.push_back(Event::ImportDone { process, cookie, result: Err(why) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_session_has_the_number_of_this_node() {
        let number = |serial| SessionId { peer: 0, serial }.number();
        assert_eq!([1, 7, 1 << 32, (1 << 32) + 7].map(number), [1, 7, 1, 7]);
    }

    #[test]
    fn very_many_imports_of_an_export_break_in_turns_each_once() {
        let mut tables = Tables::default();
        let id = ProcessId::new(0, 1);
        let (imports, local) = (Slab::default(), VecDeque::new());
        let process = Process { id, uid: 1, imports, exports: 0, redirects: 0, outstanding: 0, local, ranges: 0 };
        tables.processes.push(Some(process));
        let count = 3 * BREAKS_PER_TURN;
        let new = || Import {
            export: ExportId { slot: 0, generation: 1 },
            len: 1,
            rights: Rights::READ,
            route: Route::Local { position: 0 },
            broken: None,
            kind: ExportKind::Memory,
            own_order: false,
            refusals: 0,
        };
        let keys: Vec<Key<Import>> =
            (0..count).map(|_| tables.process_mut(id).expect("there").imports.insert(new())).collect();
        tables.break_imports(keys.iter().map(|key| (id, *key)).collect(), OpError::Revoked);
        assert_eq!(tables.events.len(), BREAKS_PER_TURN);
        // One of the others was given back meanwhile.
        tables.process_mut(id).expect("there").imports.remove(keys[0]);
        let mut broken = Vec::new();
        while !(tables.events.is_empty() && tables.breaking.is_empty()) {
            while let Some(Event::ImportBroken { import, .. }) = tables.events.pop_front() {
                broken.push(Key::from(import));
            }
            tables.go_on_breaking();
            assert!(tables.events.len() <= BREAKS_PER_TURN);
        }
        broken.sort_unstable();
        let mut wanted = keys[1..].to_vec();
        wanted.sort_unstable();
        assert_eq!(broken, wanted);
    }
}
