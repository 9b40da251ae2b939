//! Exports, and their revocation.
//!
//! Invariant: when an unexport is answered without `must_move`, neither the engine nor a mapped transfer of a process that keeps the rules can change a byte of it;
//! with `must_move`, moving the pages makes it so for the others too. The node never waits for anybody meanwhile: a revocation is a small state machine.
//! Source: DESIGN §3 ("a mapping held by a hostile importer cannot be taken back").

use super::Station;
use super::gates::Gate;
use super::refusal::{self, invalid, refusal as refuse};
use super::shares::Table;
use crate::limits::{REVOCATION_WAIT, REVOCATIONS_PER_PROCESS_MAX};
use vmmc_host::abi::GateState;
use vmmc_host::control::{Access as HostAccess, Answer, Call, Refusal, RefusalCode};
use vmmc_host::limits::EXPORTS_PER_PROCESS_MAX;
use vmmc_nic::{Access, ExportId, ExportSpec, ImportId, ProcessId, RegionId, RegionRef, Rights, Time};

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
    pub(super) importers: Vec<MappedImporter>,
    /// A process left this export while it could still store into it.
    pub(super) stuck: bool,
    /// Redirections posted on it and not yet done.
    pub(super) redirects: u32,
}

/// A process that maps an export.
#[derive(Clone, Copy)]
pub(super) struct MappedImporter {
    pub(super) process: ProcessId,
    /// Index of its connection.
    pub(super) index: usize,
    pub(super) import: ImportId,
}

/// An unexport that waits for mapped transfers under way.
pub(super) struct Revocation {
    /// Connection that waits for the answer, and its number.
    index: usize,
    pub(super) number: u64,
    serial: u64,
    gate: Gate,
    importers: Vec<MappedImporter>,
    deadline: Time,
}

impl Station {
    pub(super) fn export(&mut self, now: Time, index: usize, call: Call) -> Result<Answer, Refusal> {
        let Call::Export { name, region, offset, len, rights, access, notify, redirectable, mappable } = call else {
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
        let access = access_of(access);
        let spec = ExportSpec { name, region: at.region, offset, len, rights, access, notify, redirectable };
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
            importers: Vec::new(),
            stuck: false,
            redirects: 0,
        });
        Ok(Answer::Exported { export: export.to_u64() })
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
        if moving || record.stuck || record.importers.iter().any(|i| self.is_bound(i)) {
            self.counters.revocations_moved += 1;
            self.free_gate(index, record.gate);
            return Ok(Some(Answer::Unexported { must_move: true }));
        }
        if !self.any_inside(&record.importers) {
            self.free_gate(index, record.gate);
            return Ok(Some(Answer::Unexported { must_move: false }));
        }
        let connection = self.connections[index].as_mut().expect("the caller serves this connection");
        connection.process.as_mut().expect("seen above").revocations += 1;
        self.revocations.push(Revocation {
            index,
            number: connection.number,
            serial,
            gate: record.gate,
            importers: record.importers,
            deadline: now + REVOCATION_WAIT,
        });
        Ok(None)
    }

    /// Looks at the revocations that wait; says whether one was answered.
    pub(super) fn serve_revocations(&mut self, now: Time) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.revocations.len() {
            let inside = self.any_inside(&self.revocations[at].importers);
            if inside && now < self.revocations[at].deadline {
                at += 1;
                continue;
            }
            let done = self.revocations.swap_remove(at);
            any = true;
            self.counters.revocations_moved += u64::from(inside);
            if let Ok(process) = self.attached_process(done.index) {
                process.revocations -= 1;
            }
            self.free_gate(done.index, done.gate);
            self.reply(done.index, done.serial, Ok(Answer::Unexported { must_move: inside }), Vec::new());
        }
        any
    }

    /// Whether a thread of a process that still maps the export is inside a transfer.
    fn any_inside(&self, importers: &[MappedImporter]) -> bool {
        importers.iter().any(|i| {
            let process = self.connections[i.index].as_ref().and_then(|c| c.process.as_ref());
            process.filter(|p| p.id == i.process).is_some_and(|p| p.area.any_lane(|lane| lane == i.import.to_u64()))
        })
    }

    fn is_bound(&self, importer: &MappedImporter) -> bool {
        let process = self.connections[importer.index].as_ref().and_then(|c| c.process.as_ref());
        let record = process.filter(|p| p.id == importer.process);
        let record = record.and_then(|p| p.imports.get(importer.import.slot as usize).copied().flatten());
        record.is_some_and(|r| r.id == importer.import && r.bound)
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
