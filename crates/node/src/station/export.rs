//! Exports, and their revocation.
//!
//! Invariant: when an unexport is answered without `must_move`, neither the engine nor a mapped
//! transfer of a process that keeps the rules can change a byte of it; with `must_move`, moving the
//! pages makes it so for the others too. The node never waits for anybody meanwhile: a revocation
//! is a small state machine. Source: ARCHITECTURE.md, "Revocation".

use super::Station;
use super::gates::Gate;
use super::refusal::{self, invalid, refusal as refuse};
use super::shares::Table;
use crate::limits::{
    CONTROL_USER_TURN, REVOCATION_WAIT, REVOCATIONS_PER_PROCESS_MAX, REVOCATIONS_PER_TURN, REVOCATIONS_PIECE,
};
use std::collections::{HashMap, HashSet, VecDeque};
use vmmc_host::abi::GateState;
use vmmc_host::control;
use vmmc_host::control::{Access as HostAccess, Answer, Call, Refusal, RefusalCode};
use vmmc_host::limits::EXPORTS_PER_PROCESS_MAX;
use vmmc_nic::ExportKind;
use vmmc_nic::{Access, ExportId, ExportSpec, ImportId, ProcessId, RegionId, RegionRef, Rights, Time, UnexportError};

/// What the station knows of an export beyond the engine's tables.
pub(super) struct ExportRecord {
    pub(super) id: ExportId,
    /// Index of the owner's connection.
    pub(super) owner: usize,
    pub(super) at: RegionRef,
    pub(super) gate: Gate,
    /// The exporter allows mapping.
    pub(super) mappable: bool,
    /// It has all pages of its region for itself.
    pub(super) covers_region: bool,
    /// Processes of this node that map it.
    pub(super) importers: Importers,
    /// A process left this export while it could still store into it.
    pub(super) stuck: bool,
    /// Redirections posted on it and not yet done.
    pub(super) redirects: u32,
}

/// Processes that map an export. Each once, however many imports of it one has.
pub(super) type Importers = HashMap<ProcessId, MappedBy>;

/// How a process maps an export.
pub(super) struct MappedBy {
    /// Index of its connection.
    index: usize,
    imports: HashSet<ImportId>,
    /// Those of them through which it stores whenever it likes.
    bound: usize,
}

impl ExportRecord {
    pub(super) fn map(&mut self, process: ProcessId, index: usize, import: ImportId) {
        let new = || MappedBy { index, imports: HashSet::new(), bound: 0 };
        self.importers.entry(process).or_insert_with(new).imports.insert(import);
    }

    pub(super) fn unmap(&mut self, process: ProcessId, import: ImportId, was_bound: bool) {
        let Some(by) = self.importers.get_mut(&process) else { return };
        by.imports.remove(&import);
        by.bound -= usize::from(was_bound);
        if by.imports.is_empty() {
            self.importers.remove(&process);
        }
    }

    /// A process stores through its mapping from now on.
    pub(super) fn bind(&mut self, process: ProcessId) {
        if let Some(by) = self.importers.get_mut(&process) {
            by.bound += 1;
        }
    }
}

/// An unexport that waits for mapped transfers under way.
struct Revocation {
    serial: u64,
    gate: Gate,
    /// Those that were inside a transfer at the last check. One that was seen outside since the
    /// gate closed stays there.
    importers: Importers,
    deadline: Time,
}

/// All of one process.
struct RevocationsOf {
    /// Connection that waits for the answers, and its number.
    index: usize,
    number: u64,
    waiting: VecDeque<Revocation>,
}

/// All of them, by process: they are polled in turns.
#[derive(Default)]
pub(super) struct Revocations {
    all: VecDeque<RevocationsOf>,
    count: usize,
}

impl Revocations {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn add(&mut self, index: usize, number: u64, revocation: Revocation) {
        self.count += 1;
        match self.all.iter_mut().find(|of| of.number == number) {
            Some(of) => of.waiting.push_back(revocation),
            None => self.all.push_back(RevocationsOf { index, number, waiting: VecDeque::from([revocation]) }),
        }
    }

    /// A connection is gone: nobody waits for the answers.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(at) = self.all.iter().position(|of| of.number == number) {
            self.count -= self.all.remove(at).map_or(0, |of| of.waiting.len());
        }
    }
}

impl Station {
    pub(super) fn export(&mut self, now: Time, index: usize, call: Call) -> Result<Answer, Refusal> {
        let Call::Export { name, region, offset, len, rights, access, notify, redirectable, kind, mappable } = call
        else {
            unreachable!("called for exports only");
        };
        let process = self.attached_process(index)?;
        if !process.gates.has_room() {
            let message = format!("this process has {EXPORTS_PER_PROCESS_MAX} exports already; unexport some");
            return Err(refuse(RefusalCode::TableFull, message));
        }
        let id = process.id;
        let at = RegionRef { process: id, region: RegionId(region) };
        let size = match self.memory.region(at) {
            Some(region) => region.len_bytes(),
            None => return Err(refuse(RefusalCode::Stale, format!("region {region} of this process does not exist"))),
        };
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let message = format!("{len} bytes at offset {offset} do not lie in region {region} of {size} bytes");
            return Err(refuse(RefusalCode::OutOfBounds, message));
        }
        let rights = Rights::from_bits(rights).ok_or_else(|| invalid(format!("rights {rights:#x} mean nothing")))?;
        let uid = self.connections[index].as_ref().map_or(u32::MAX, |c| c.who.uid);
        self.shares.check(uid, Table::Exports, 1).map_err(|full| full.refusal())?;
        self.free_name(index, uid, name.as_deref(), now);
        let access = access_of(access);
        let spec = ExportSpec {
            name,
            region: at.region,
            offset,
            len,
            rights,
            access,
            notify,
            redirectable,
            kind: engine_kind(kind),
        };
        let export = self.engine.export(now, id, spec).map_err(|e| refusal::export(&e))?;
        self.memory.hold(id, at.region);
        self.take_share(index, Table::Exports, 1)?;
        let process = self.attached_process(index)?;
        let gate = process.gates.open().expect("room was seen above");
        process.exports.push(export);
        let slot = export.slot as usize;
        if self.exports.len() <= slot {
            self.exports.resize_with(slot + 1, || None);
        }
        let covers_region = offset == 0 && len == size;
        self.exports[slot] = Some(ExportRecord {
            id: export,
            owner: index,
            at,
            gate,
            mappable,
            covers_region,
            importers: HashMap::new(),
            stuck: false,
            redirects: 0,
        });
        Ok(Answer::Exported { export: export.to_u64() })
    }

    /// A name whose holder is to be closed is free already for its user, who pays for closing it
    /// now.
    fn free_name(&mut self, index: usize, uid: u32, name: Option<&str>, now: Time) {
        let Some(name) = name.filter(|_| !self.reap_queue.is_empty()) else { return };
        let holder = self.engine.holder_of_name(name, uid);
        if holder.is_some_and(|holder| self.reap_first(holder, now)) {
            self.charge(index, CONTROL_USER_TURN);
        }
    }

    /// Ends an export. None: the answer comes when mapped transfers under way have ended.
    pub(super) fn unexport(
        &mut self,
        now: Time,
        index: usize,
        serial: u64,
        export: u64,
        moving: bool,
    ) -> Result<Option<Answer>, Refusal> {
        let export = ExportId::from_u64(export);
        let process = self.attached_process(index)?;
        if process.revocations >= REVOCATIONS_PER_PROCESS_MAX {
            let message =
                format!("{REVOCATIONS_PER_PROCESS_MAX} unexports of this process wait already; let some finish");
            return Err(refuse(RefusalCode::Busy, message));
        }
        let id = process.id;
        self.engine.unexport(now, id, export).map_err(|e| refusal::unexport(&e))?;
        let record = self.exports[export.slot as usize].take().expect("the engine knew the export");
        self.memory.unhold(id, record.at.region);
        self.give_share(index, Table::Exports, 1);
        self.give_share(index, Table::Redirections, record.redirects);
        self.counters.revocations += 1;
        let process = self.attached_process(index)?;
        process.exports.retain(|e| *e != export);
        process.gates.set(record.gate, GateState::Revoked);
        if moving || record.stuck || record.importers.values().any(|by| by.bound > 0) {
            self.counters.revocations_moved += 1;
            self.free_gate(index, record.gate);
            return Ok(Some(Answer::Unexported { must_move: true }));
        }
        let mut importers = record.importers;
        self.keep_those_inside(&mut importers);
        if importers.is_empty() {
            self.free_gate(index, record.gate);
            return Ok(Some(Answer::Unexported { must_move: false }));
        }
        let connection = self.connections[index].as_mut().expect("the caller serves this connection");
        connection.process.as_mut().expect("seen above").revocations += 1;
        let number = connection.number;
        let deadline = now + REVOCATION_WAIT;
        self.revocations.add(index, number, Revocation { serial, gate: record.gate, importers, deadline });
        Ok(None)
    }

    pub(super) fn importers(&mut self, index: usize, export: u64) -> Result<Answer, Refusal> {
        let (id, export) = (self.attached_process(index)?.id, ExportId::from_u64(export));
        let count = self.engine.importers(id, export);
        let count = count.ok_or_else(|| refusal::unexport(&UnexportError::NoSuchExport { export }))?;
        Ok(Answer::Importers { count: count as u64 })
    }

    /// Polls revocations that wait, as many as a turn allows; returns whether one was answered.
    pub(super) fn serve_revocations(&mut self, now: Time) -> bool {
        let mut any = false;
        let mut left = self.revocations.count.min(REVOCATIONS_PER_TURN);
        while left > 0 {
            let Some(mut of) = self.revocations.all.pop_front() else { break };
            for _ in 0..of.waiting.len().min(REVOCATIONS_PIECE).min(left) {
                left -= 1;
                let Some(mut first) = of.waiting.pop_front() else { break };
                self.keep_those_inside(&mut first.importers);
                let inside = !first.importers.is_empty();
                if inside && now < first.deadline {
                    of.waiting.push_back(first);
                    continue;
                }
                any = true;
                self.revocations.count -= 1;
                self.counters.revocations_moved += u64::from(inside);
                if let Ok(process) = self.attached_process(of.index) {
                    process.revocations -= 1;
                }
                self.free_gate(of.index, first.gate);
                self.reply(of.index, first.serial, Ok(Answer::Unexported { must_move: inside }), Vec::new());
            }
            if !of.waiting.is_empty() {
                self.revocations.all.push_back(of);
            }
        }
        any
    }

    /// Forgets processes of which no thread is inside a transfer of the export: one read of the
    /// lanes of each.
    fn keep_those_inside(&self, importers: &mut Importers) {
        importers.retain(|id, by| {
            let process = self.connections[by.index].as_ref().and_then(|c| c.process.as_ref());
            process.filter(|process| process.id == *id).is_some_and(|process| {
                let is_inside =
                    process.touch(|area| area.any_lane(|lane| by.imports.contains(&ImportId::from_u64(lane))));
                // Of one that is barred nobody knows, until its connection is closed.
                is_inside.unwrap_or(true)
            })
        });
    }

    fn free_gate(&mut self, index: usize, gate: Gate) {
        if let Ok(process) = self.attached_process(index) {
            process.gates.free(gate);
        }
    }

    /// The record of an export, if the id is of now.
    pub(super) fn export_record(&mut self, export: ExportId) -> Option<&mut ExportRecord> {
        self.exports.get_mut(export.slot as usize)?.as_mut().filter(|r| r.id == export)
    }
}

fn access_of(access: HostAccess) -> Access {
    match access {
        HostAccess::SameUser => Access::SameUser,
        HostAccess::Anyone => Access::Anyone,
        HostAccess::Users(users) => Access::Users(users),
    }
}

/// What the engine calls a kind of export.
fn engine_kind(kind: control::ExportKind) -> ExportKind {
    match kind {
        control::ExportKind::Memory => ExportKind::Memory,
        control::ExportKind::Ring => ExportKind::Ring,
        control::ExportKind::Tokens { entries } => ExportKind::Tokens { entries },
    }
}

/// The inverse of [`engine_kind`].
pub(super) fn control_kind(kind: ExportKind) -> control::ExportKind {
    match kind {
        ExportKind::Memory => control::ExportKind::Memory,
        ExportKind::Ring => control::ExportKind::Ring,
        ExportKind::Tokens { entries } => control::ExportKind::Tokens { entries },
    }
}
