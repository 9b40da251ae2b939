//! Imports: which way their transfers go, and what the importer needs for it.
//!
//! Invariant: an importer gets a descriptor of memory only if the rights it was granted are exactly
//! what the mapping allows, and the memory behind the descriptor is the export and nothing else.
//! Source: ARCHITECTURE.md, "Paths".

use super::Station;
use super::calls::CallKind;
use super::connection::{ImportRecord, Path};
use super::export::control_kind;
use super::link::{Link, wake_for_importer};
use super::memory::duplicate;
use super::refusal::{self, invalid, refusal as refuse, shortage};
use super::shares::Table;
use crate::limits::{CALL_TIME_MAX, DESCRIPTORS_PER_LINK};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
use vmmc_host::control::Owner as HostOwner;
use vmmc_host::control::{Answer, Call, Grant, Moved, NodeEvent, NotMapped, Refusal, RefusalCode, What};
use vmmc_host::{GateTable, PairRing};
use vmmc_nic::ExportKind;
use vmmc_nic::{
    ExportId, Exporter, ImportGrant, ImportId, ImportSpec, ImportTarget, NodeName, NodeSpec, Owner, ProcessId, Rights,
    Time,
};

impl Station {
    /// Asks the engine; the answer comes as an event, at once for exports of this node that exist.
    pub(super) fn import(&mut self, now: Time, index: usize, serial: u64, call: Call) -> Result<(), Refusal> {
        let Call::Import { node, what, owner, rights, wait, timeout_ms, own_order } = call else {
            unreachable!("called for imports only");
        };
        let id = self.attached_process(index)?.id;
        let node = node.as_deref().map(|text| self.node_spec(text)).transpose()?.flatten();
        let rights = Rights::from_bits(rights).ok_or_else(|| invalid(format!("rights {rights:#x} mean nothing")))?;
        let what = match what {
            What::Name(name) => ImportTarget::Name(name),
            What::Id(id) => ImportTarget::Id(ExportId::from_u64(id)),
        };
        let kind = CallKind::Import {
            what: format!("import of {what}"),
            node: node.as_ref().map_or_else(String::new, ToString::to_string),
        };
        // A slot that is free in the process's table counts already.
        if !self.engine.has_import_slot(id) {
            self.take_share(index, Table::Imports, 1)?;
        }
        let cookie = match self.wait_call(index, serial, kind, &node) {
            Ok(cookie) => cookie,
            Err(full) => {
                self.count_imports(index);
                return Err(full);
            }
        };
        let owner = match owner {
            HostOwner::OwnOrRoot => Owner::OwnOrRoot,
            HostOwner::User(user) => Owner::User(user),
            HostOwner::Any => Owner::Any,
        };
        let spec = ImportSpec { node, what, owner, rights, wait, deadline: deadline(now, timeout_ms), own_order };
        self.engine.import(now, id, spec, cookie);
        Ok(())
    }

    /// The node that a user names; none: this one.
    pub(super) fn node_spec(&self, text: &str) -> Result<Option<NodeSpec>, Refusal> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok((!self.config.listen.contains(&address)).then_some(NodeSpec::Addr(address)));
        }
        match NodeName::parse(text) {
            Ok(name) if name == self.config.name => Ok(None),
            Ok(name) => Ok(Some(NodeSpec::Name(name))),
            Err(e) => Err(refuse(RefusalCode::UnknownNode, format!("{e}, or an address such as 192.168.0.7:4000"))),
        }
    }

    /// Turns the engine's grant into what the library needs.
    pub(super) fn grant(
        &mut self,
        index: usize,
        granted: ImportGrant,
        now: Time,
    ) -> Result<(Grant, Vec<OwnedFd>), Refusal> {
        let mut grant = Grant {
            import: granted.import.to_u64(),
            export: granted.export.to_u64(),
            owner: granted.owner,
            len: granted.len,
            rights: granted.rights.bits(),
            notify: granted.notify,
            redirectable: granted.redirectable,
            kind: control_kind(granted.kind),
            node: self.config.name.as_str().to_string(),
            mapped: Err(NotMapped::OtherNode),
            pair: false,
            exporter: 0,
            exporter_pid: 0,
            gate: 0,
            gate_generation: 0,
            region: 0,
            sealed: true,
        };
        let (path, fds) = match &granted.exporter {
            Exporter::Remote { node } => {
                grant.node = node.as_str().to_string();
                grant.sealed = self.config.key.is_some();
                (Path::Network, Vec::new())
            }
            Exporter::Local { process, .. } => {
                grant.exporter = process.0;
                grant.exporter_pid = self.pid_of(*process);
                grant.mapped = self.may_map(&granted);
                match grant.mapped {
                    Err(_) => (Path::Engine, Vec::new()),
                    Ok(()) => (Path::Mapped, self.map(index, &granted, &mut grant, now)?),
                }
            }
        };
        let process = self.attached_process(index)?;
        process.remember_import(ImportRecord {
            id: granted.import,
            export: granted.export,
            path,
            bound: false,
            moved: Moved::default(),
        });
        Ok((grant, fds))
    }

    fn may_map(&mut self, granted: &ImportGrant) -> Result<(), NotMapped> {
        let Some(record) = self.export_record(granted.export) else { return Err(NotMapped::NotAllowed) };
        if granted.redirectable {
            return Err(NotMapped::Redirectable);
        }
        if granted.kind == ExportKind::Ring {
            return Err(NotMapped::Ring);
        }
        if !record.mappable {
            return Err(NotMapped::NotAllowed);
        }
        if !record.covers_region {
            return Err(NotMapped::SharesPages);
        }
        // Who sends by token looks at the entries of the table: there is nothing else to see.
        if !granted.rights.contains(Rights::READ) && !matches!(granted.kind, ExportKind::Tokens { .. }) {
            return Err(NotMapped::NoReadRight);
        }
        if granted.rights == Rights::READ | Rights::ATOMIC {
            return Err(NotMapped::RightsNotExpressible);
        }
        Ok(())
    }

    /// The descriptors of a mapped import. On failure the import is given back.
    fn map(
        &mut self,
        index: usize,
        granted: &ImportGrant,
        grant: &mut Grant,
        now: Time,
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let importer = self.attached_process(index)?.id;
        let made = self.mapping(importer, granted, grant);
        match made {
            Ok(fds) => {
                let record = self.export_record(granted.export).expect("seen when the mapping was allowed");
                record.map(importer, index, granted.import);
                Ok(fds)
            }
            Err(refusal) => {
                let _ = self.engine.unimport(now, importer, granted.import);
                Err(refusal)
            }
        }
    }

    fn mapping(
        &mut self,
        importer: ProcessId,
        granted: &ImportGrant,
        grant: &mut Grant,
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let short = |e: &dyn std::fmt::Display| shortage("descriptors for a mapping", e);
        let record = self.export_record(granted.export).expect("seen when the mapping was allowed");
        let (owner, at, gate) = (record.owner, record.at, record.gate);
        let writable = granted.rights.contains(Rights::WRITE);
        let uid = self.user_of(importer);
        let region =
            self.memory.share(at, writable, uid).expect("an export holds its region").map_err(|e| short(&e))?;
        self.shares.check(uid, Table::Outlived, u64::from(GateTable::PAGES)).map_err(|full| full.refusal())?;
        let exporter = self.attached_process(owner)?;
        let gates = exporter.gates.share(uid).map_err(|e| short(&e))?;
        let bell = duplicate(&exporter.bell_readers).map_err(|e| short(&e))?;
        let link = match exporter.links.iter().position(|l| l.importer == importer) {
            Some(at) => at,
            None => {
                let wake = wake_for_importer(&exporter.wake).map_err(|e| short(&e))?;
                // The importer's, for the exporter cannot help it.
                self.take_link_share(importer)?;
                let exporter = self.attached_process(owner)?;
                exporter.links.push(Link { importer, wake, ring: None });
                exporter.links.len() - 1
            }
        };
        let exporter = self.attached_process(owner)?;
        let wake = exporter.links[link].wake.try_clone().map_err(|e| short(&e))?;
        let mut fds = vec![region, gates, bell, wake];
        grant.gate = gate.slot;
        grant.gate_generation = gate.generation;
        grant.region = at.region.0;
        if granted.notify && writable {
            fds.push(self.pair_ring(owner, link, importer)?);
            grant.pair = true;
        }
        Ok(fds)
    }

    /// The notification ring of a pair of processes; the exporter learns of it before the importer
    /// does.
    fn pair_ring(&mut self, owner: usize, link: usize, importer: ProcessId) -> Result<OwnedFd, Refusal> {
        let short = |e: vmmc_host::RegionError| shortage("a notification ring", e);
        let exporter = self.attached_process(owner)?;
        if let Some(ring) = &exporter.links[link].ring {
            return ring.share().map_err(short);
        }
        let ring = PairRing::create().map_err(short)?;
        let (theirs, ours) = (ring.share().map_err(short)?, ring.share().map_err(short)?);
        exporter.links[link].ring = Some(ring);
        let uid = self.user_of(importer);
        let same_user = self.connections[owner].as_ref().is_some_and(|connection| connection.who.uid == uid);
        self.send_event(owner, &NodeEvent::Pair { process: importer.0, uid, same_user }, vec![theirs]);
        Ok(ours)
    }

    /// Whose process it is.
    fn user_of(&self, process: ProcessId) -> u32 {
        let index = self.by_slot.get(process.slot()).copied().flatten();
        let connection = index.and_then(|index| self.connections[index].as_ref());
        connection.map_or(u32::MAX, |connection| connection.who.uid)
    }

    /// Gives back what a process has of the table of imports beyond the slots of its own tables.
    pub(super) fn count_imports(&mut self, index: usize) {
        let Ok(process) = self.attached_process(index) else { return };
        let (id, records) = (process.id, process.imports.len());
        let slots = records.max(self.engine.import_slots(id)) as u32;
        self.keep_share(index, Table::Imports, slots);
    }

    pub(super) fn unimport(&mut self, now: Time, index: usize, import: u64) -> Result<Answer, Refusal> {
        let import = ImportId::from_u64(import);
        let process = self.attached_process(index)?;
        let id = process.id;
        let record = process.forget_import(import);
        let outcome = self.engine.unimport(now, id, import).map_err(|e| refusal::unimport(&e));
        let Some(record) = record else { return outcome.map(|()| Answer::Done) };
        self.count_imports(index);
        if record.path == Path::Mapped {
            if let Some(export) = self.export_record(record.export) {
                export.unmap(id, import, record.bound);
            }
        }
        // An import that broke is forgotten by the engine already; giving it back is no mistake.
        Ok(Answer::Done)
    }

    /// The importer stores through its mapping from now on.
    pub(super) fn bind(&mut self, index: usize, import: u64) -> Result<Answer, Refusal> {
        let id = ImportId::from_u64(import);
        let attached = self.attached_process(index)?;
        let process = attached.id;
        let gone = || refuse(RefusalCode::Stale, format!("import {id} of this process does not exist; import again"));
        let record = attached.import(id).ok_or_else(gone)?;
        if record.path != Path::Mapped {
            return Err(invalid(format!("import {id} is not mapped, so stores to it cannot propagate by themselves")));
        }
        let (export, was_bound) = (record.export, std::mem::replace(&mut record.bound, true));
        if let Some(export) = self.export_record(export).filter(|_| !was_bound) {
            export.bind(process);
        }
        Ok(Answer::Done)
    }

    pub(super) fn ping(&mut self, now: Time, index: usize, serial: u64, call: Call) -> Result<Option<Answer>, Refusal> {
        let Call::Ping { node, timeout_ms } = call else { unreachable!("called for pings only") };
        let Some(spec) = self.node_spec(&node)? else {
            return Ok(Some(Answer::Pong { rtt_ns: 0, node: self.config.name.as_str().to_string() }));
        };
        let to = Some(spec.clone());
        let cookie = self.wait_call(index, serial, CallKind::Ping { node }, &to)?;
        let uid = self.connections[index].as_ref().map_or(u32::MAX, |connection| connection.who.uid);
        self.engine.ping(now, spec, vmmc_nic::PingBy::Driver(uid), cookie, deadline(now, timeout_ms));
        Ok(None)
    }

    /// Takes the descriptors of a link for an importer.
    fn take_link_share(&mut self, importer: ProcessId) -> Result<(), Refusal> {
        let index = self.by_slot.get(importer.slot()).copied().flatten();
        index.map_or(Ok(()), |index| self.take_share(index, Table::Descriptors, DESCRIPTORS_PER_LINK))
    }

    /// A link of an importer is gone.
    pub(super) fn give_link_share(&mut self, importer: ProcessId) {
        if let Some(index) = self.by_slot.get(importer.slot()).copied().flatten() {
            self.give_share(index, Table::Descriptors, DESCRIPTORS_PER_LINK);
        }
    }

    /// Name of a peer that was named by name or address.
    pub(super) fn name_of_peer(&self, text: &str) -> String {
        let Ok(address) = text.parse::<SocketAddr>() else { return text.to_string() };
        let peer = self.engine.peers().find(|p| p.paths.iter().any(|path| path.addr == address));
        peer.and_then(|p| p.name).map_or_else(|| text.to_string(), |name| name.as_str().to_string())
    }
}

/// A stated duration, at most a day: no deadline lies so far in the future that arithmetic with it
/// could fail.
pub(super) fn deadline(now: Time, timeout_ms: u64) -> Time {
    now + Duration::from_millis(timeout_ms).min(CALL_TIME_MAX)
}
