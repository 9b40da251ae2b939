//! What ought to be true: the simulator's own account of processes, memory, exports, imports and
//! operations.
//!
//! The model is written by the driver (what it asked of the engines) and by observation (what the
//! engines did). It never asks an engine what is true. Checkers compare an observation with the
//! model *before* the model takes it in.
//!
//! Invariant: no two operations whose fate is open share a byte of exported memory, so a deposit
//! says by its place which operation it belongs to, and by its content whether that is so.

mod attribute;
mod facts;
mod table;
mod take;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use attribute::{AtomicRole, ReadRole, WriteRole};
pub(crate) use facts::*;
pub(crate) use table::{ExportKey, ImportKey, Key, OpKey, PingKey, ProcKey, RedirectKey, RegionKey, Table};
pub(crate) use take::{Seen, Told};
use vmmc_nic::{ExportId, ImportId, ProcessId, RegionRef};

/// The account of the whole cluster.
#[derive(Debug)]
pub(crate) struct Model {
    /// Simulated time, ns.
    pub(crate) now_ns: u64,
    /// Workload actions so far.
    pub(crate) step: u64,
    /// When the faults ended for good.
    pub(crate) healed_at_ns: Option<u64>,
    /// How long an engine waits before it gives a peer up, ns.
    pub(crate) peer_timeout_ns: u64,
    /// Nodes of the cluster; those beyond are strangers.
    pub(crate) members: usize,
    pub(crate) nodes: Vec<Node>,
    pub(crate) procs: Table<ProcKey, Proc>,
    pub(crate) regions: Table<RegionKey, Region>,
    pub(crate) exports: Table<ExportKey, Export>,
    pub(crate) imports: Table<ImportKey, Import>,
    pub(crate) ops: Table<OpKey, Op>,
    pub(crate) redirects: Table<RedirectKey, Redirect>,
    pub(crate) pings: Table<PingKey, Ping>,
    /// Operations that have not ended, by their sender: of a large cluster all are too many to go
    /// through for one of them.
    pub(crate) open_ops: BTreeSet<(ProcKey, OpKey)>,
    /// Appends among them, by their ring.
    open_appends: BTreeSet<(ExportKey, OpKey)>,
    /// Imports that are not answered, and answered ones not yet swept out.
    pub(crate) asked_imports: Vec<ImportKey>,
    /// Pings that are not answered, and answered ones not yet swept out.
    pub(crate) open_pings: Vec<PingKey>,
    /// Of each process and exporting node: sends not in memory yet, oldest first.
    pub(crate) unapplied: BTreeMap<(ProcKey, usize), Vec<OpKey>>,
    /// Sends with a counter that has not been raised yet.
    pub(crate) counting: Vec<OpKey>,
    /// The send of which the last byte was the last to be written, within the call under way.
    pub(crate) just_landed: Option<OpKey>,
    /// Of each channel (process, export, and import if that has an order of its own): the latest
    /// send of which the last byte is in memory.
    pub(crate) latest_applied: BTreeMap<(ProcKey, ExportKey, Option<ImportKey>), OpKey>,
    pids: BTreeMap<(usize, ProcessId), ProcKey>,
    region_refs: BTreeMap<(usize, RegionRef), RegionKey>,
    /// Of all lives of the node, oldest first.
    export_ids: BTreeMap<(usize, ExportId), Vec<ExportKey>>,
    import_ids: BTreeMap<(ProcKey, ImportId), ImportKey>,
}

impl Model {
    pub(crate) fn new(members: usize, places: usize, peer_timeout_ns: u64) -> Model {
        Model {
            now_ns: 0,
            step: 0,
            healed_at_ns: None,
            peer_timeout_ns,
            members,
            nodes: (0..places).map(|_| Node::default()).collect(),
            procs: Table::new(),
            regions: Table::new(),
            exports: Table::new(),
            imports: Table::new(),
            ops: Table::new(),
            redirects: Table::new(),
            pings: Table::new(),
            open_ops: BTreeSet::new(),
            open_appends: BTreeSet::new(),
            asked_imports: Vec::new(),
            open_pings: Vec::new(),
            unapplied: BTreeMap::new(),
            counting: Vec::new(),
            just_landed: None,
            latest_applied: BTreeMap::new(),
            pids: BTreeMap::new(),
            region_refs: BTreeMap::new(),
            export_ids: BTreeMap::new(),
            import_ids: BTreeMap::new(),
        }
    }

    // --- finding things by the names engines use

    /// The process with this id in the node's present life; also one that has just died.
    pub(crate) fn proc_of(&self, node: usize, pid: ProcessId) -> Option<ProcKey> {
        self.pids.get(&(node, pid)).copied()
    }

    pub(crate) fn region_of(&self, node: usize, at: RegionRef) -> Option<RegionKey> {
        self.region_refs.get(&(node, at)).copied()
    }

    pub(crate) fn export_of(&self, node: usize, id: ExportId) -> Option<ExportKey> {
        self.exports_named(node, id).last().copied()
    }

    /// All exports that ever had this id on this node, oldest first: ids come again in a later life
    /// of a node.
    pub(crate) fn exports_named(&self, node: usize, id: ExportId) -> &[ExportKey] {
        self.export_ids.get(&(node, id)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn import_of(&self, proc: ProcKey, id: ImportId) -> Option<ImportKey> {
        self.import_ids.get(&(proc, id)).copied()
    }

    // --- what the driver does

    pub(crate) fn add_proc(&mut self, node: usize, pid: ProcessId, uid: u32) -> ProcKey {
        let (regions, exports, imports) = (Vec::new(), Vec::new(), Vec::new());
        let key = self.procs.push(Proc { node, pid, uid, alive: true, regions, exports, imports, outstanding: 0 });
        self.pids.insert((node, pid), key);
        self.nodes[node].procs.push(key);
        key
    }

    pub(crate) fn add_region(&mut self, region: Region) -> RegionKey {
        let (owner, at) = (region.owner, region.at);
        let node = self.procs[owner].node;
        let key = self.regions.push(region);
        self.procs[owner].regions.push(key);
        self.region_refs.insert((node, at), key);
        key
    }

    pub(crate) fn add_export(&mut self, export: Export) -> ExportKey {
        let (node, id, owner) = (self.procs[export.owner].node, export.id, export.owner);
        let region = export.region;
        let key = self.exports.push(export);
        self.regions[region].exports.push(key);
        self.export_ids.entry((node, id)).or_default().push(key);
        self.procs[owner].exports.push(key);
        key
    }

    pub(crate) fn add_import(&mut self, import: Import) -> ImportKey {
        let owner = import.importer;
        let key = self.imports.push(import);
        self.procs[owner].imports.push(key);
        self.asked_imports.push(key);
        key
    }

    pub(crate) fn add_ping(&mut self, ping: Ping) -> PingKey {
        let key = self.pings.push(ping);
        self.open_pings.push(key);
        key
    }

    /// Begins a workload action; sweeps lists of what was answered meanwhile.
    pub(crate) fn begin_step(&mut self) {
        self.step += 1;
        self.asked_imports.retain(|&i| self.imports[i].state == ImportState::Asked);
        self.open_pings.retain(|&p| !self.pings[p].answered);
    }

    pub(crate) fn add_redirect(&mut self, redirect: Redirect) -> RedirectKey {
        let (export, target) = (redirect.export, redirect.target);
        let key = self.redirects.push(redirect);
        self.exports[export].redirects.push(key);
        self.regions[target].redirects.push(key);
        key
    }

    pub(crate) fn name_import(&mut self, key: ImportKey, id: ImportId) {
        self.import_ids.insert((self.imports[key].importer, id), key);
        self.imports[key].id = Some(id);
    }

    /// An operation about to be posted. It counts as outstanding from now on, since a local engine
    /// acts at once.
    pub(crate) fn add_op(&mut self, op: Op) -> OpKey {
        let (sender, target) = (op.sender, op.export);
        let lands = op.is_send() && op.mistake.is_none();
        let (len, counts) = (op.len, op.counter().is_some());
        let key = self.ops.push(op);
        self.open_ops.insert((sender, key));
        if let (true, Some(ring)) = (self.ops[key].is_append(), target) {
            self.open_appends.insert((ring, key));
        }
        if let (true, Some(import)) = (self.ops[key].is_append(), self.ops[key].import) {
            self.imports[import].appends.push(key);
        }
        self.procs[sender].outstanding += 1;
        if let (Some(export), true) = (target, lands) {
            let node = self.procs[self.exports[export].owner].node;
            if len > 0 || counts {
                self.unapplied.entry((sender, node)).or_default().push(key);
            }
            if counts {
                self.counting.push(key);
            }
            if len > 0 {
                let (region, base) = (self.exports[export].region, self.exports[export].offset);
                for (at, range) in self.ops[key].pieces() {
                    let (start, end) = (base + range.start, base + range.end);
                    self.clear_landing(region, start, end);
                    self.regions[region].landing.insert(start, Landing { start, end, op: key, at });
                }
            } else {
                self.exports[export].empty_sends.push(key);
            }
        }
        key
    }

    /// The engine was busy: the operation never was.
    pub(crate) fn withdraw_op(&mut self, key: OpKey) {
        if let Some(export) = self.ops[key].export {
            let region = &mut self.regions[self.exports[export].region];
            region.landing.retain(|_, piece| piece.op != key);
            self.exports[export].empty_sends.retain(|&o| o != key);
        }
        if let Some(import) = self.ops[key].import {
            self.imports[import].appends.retain(|o| *o != key);
        }
        self.end_op(key, Outcome::Gone);
        self.forget_unapplied(key);
        self.counting.retain(|&o| o != key);
    }

    /// The send needs no more waiting for: it is in memory, or it never was.
    fn forget_unapplied(&mut self, key: OpKey) {
        let Some(node) = self.target_node(key) else { return };
        if let Some(list) = self.unapplied.get_mut(&(self.ops[key].sender, node)) {
            list.retain(|&o| o != key);
        }
    }

    /// The process gives the import up. Its operations go on, but nobody is told what becomes of
    /// posted sends.
    pub(crate) fn release_import(&mut self, key: ImportKey) {
        self.imports[key].state = ImportState::Dropped;
        let posted = |o: &OpKey| self.ops[*o].import == Some(key) && !self.ops[*o].completion;
        let forgotten: Vec<OpKey> = self.open_ops_of(self.imports[key].importer).filter(posted).collect();
        for op in forgotten {
            self.end_op(op, Outcome::Gone);
        }
    }

    /// The export is withdrawn from this moment on.
    pub(crate) fn end_export(&mut self, key: ExportKey, how: ExportEnd) {
        let now_ns = self.now_ns;
        let export = &mut self.exports[key];
        if export.ended.is_none() {
            export.ended = Some((now_ns, how));
            for redirect in export.redirects.clone() {
                self.redirects[redirect].ended = true;
                self.redirects[redirect].orphaned = true;
            }
        }
    }

    /// The process is gone, by itself or with its node.
    pub(crate) fn end_proc(&mut self, key: ProcKey, with_node: bool) {
        let how = if with_node { ExportEnd::NodeCrashed } else { ExportEnd::OwnerDied };
        self.procs[key].alive = false;
        for export in self.procs[key].exports.clone() {
            self.end_export(export, how);
        }
        for import in self.procs[key].imports.clone() {
            self.imports[import].state = ImportState::Dropped;
        }
        let ours: Vec<OpKey> = self.open_ops_of(key).collect();
        for op in ours {
            self.end_op(op, Outcome::Gone);
        }
        for region in self.procs[key].regions.clone() {
            self.regions[region].alive = false;
        }
        for &ping in &self.open_pings {
            self.pings[ping].answered |= self.pings[ping].asker == key;
        }
    }

    /// The node runs, as this incarnation.
    pub(crate) fn start_node(&mut self, node: usize, incarnation: u64) {
        self.nodes[node].up = true;
        self.nodes[node].incarnations.push(incarnation);
    }

    /// The node crashed: nothing of it is left, and its ids may come again with another meaning.
    /// Says which regions to free.
    pub(crate) fn end_node(&mut self, node: usize) -> Vec<RegionKey> {
        let of_node = self.procs.iter().filter(|(_, p)| p.node == node && p.alive);
        let procs: Vec<ProcKey> = of_node.map(|(key, _)| key).collect();
        let regions = procs.iter().flat_map(|&p| self.procs[p].regions.clone()).collect();
        for proc in procs {
            self.end_proc(proc, true);
        }
        self.nodes[node].up = false;
        self.nodes[node].procs.clear();
        self.pids.retain(|k, _| k.0 != node);
        self.region_refs.retain(|k, _| k.0 != node);
        regions
    }

    /// The operation has ended, one way or another.
    pub(crate) fn end_op(&mut self, key: OpKey, outcome: Outcome) {
        let op = &mut self.ops[key];
        if op.outcome != Outcome::Open {
            return;
        }
        op.outcome = outcome;
        op.ended_at_ns = self.now_ns;
        let sender = op.sender;
        self.procs[sender].outstanding -= 1;
        let ring = op.export;
        self.open_ops.remove(&(sender, key));
        if let Some(ring) = ring {
            self.open_appends.remove(&(ring, key));
        }
    }

    /// Operations of a process that have not ended, in the order of their posting.
    pub(crate) fn open_ops_of(&self, sender: ProcKey) -> impl DoubleEndedIterator<Item = OpKey> + '_ {
        let all = (sender, OpKey::from_index(0))..=(sender, OpKey(u32::MAX));
        self.open_ops.range(all).map(|&(_, key)| key)
    }

    /// Appends to a ring that have not ended.
    pub(crate) fn open_appends_to(&self, ring: ExportKey) -> impl Iterator<Item = OpKey> + '_ {
        let all = (ring, OpKey::from_index(0))..=(ring, OpKey(u32::MAX));
        self.open_appends.range(all).map(|&(_, key)| key)
    }

    /// A fault that may cost a node its peers begins.
    pub(crate) fn disturb(&mut self, node: usize) {
        self.nodes[node].disturbed += 1;
    }

    /// One such fault ends.
    pub(crate) fn calm(&mut self, node: usize) {
        let facts = &mut self.nodes[node];
        facts.disturbed = facts.disturbed.saturating_sub(1);
        facts.disturbed_until_ns = self.now_ns;
    }

    /// All of them end.
    pub(crate) fn calm_down(&mut self, node: usize) {
        if self.nodes[node].disturbed > 0 {
            self.nodes[node].disturbed = 1;
            self.calm(node);
        }
    }

    // --- questions

    /// Processes of the node's present life, dead ones too.
    pub(crate) fn present(&self, node: usize) -> impl Iterator<Item = ProcKey> + '_ {
        self.nodes[node].procs.iter().copied()
    }

    /// Whether another redirection waits for part of that range.
    pub(crate) fn is_redirected(&self, export: ExportKey, offset: u64, len: u64, but: RedirectKey) -> bool {
        let others = self.exports[export].redirects.iter().filter(|&&r| r != but).map(|&r| &self.redirects[r]);
        others.into_iter().any(|r| !r.ended && r.offset < offset + len && offset < r.offset + r.len)
    }

    /// Whether a partition, a dead interface or a crash touched one of the nodes between `since_ns`
    /// and now, or shortly enough before that an engine may only now have given up.
    pub(crate) fn was_disturbed(&self, nodes: &[usize], since_ns: u64) -> bool {
        let since_ns = since_ns.saturating_sub(3 * self.peer_timeout_ns);
        nodes
            .iter()
            .map(|&n| &self.nodes[n])
            .any(|n| n.disturbed > 0 || n.disturbed_until_ns > 0 && n.disturbed_until_ns >= since_ns)
    }

    /// The node where the operation's memory is.
    pub(crate) fn target_node(&self, key: OpKey) -> Option<usize> {
        self.ops[key].export.map(|e| self.procs[self.exports[e].owner].node)
    }

    /// Whether a send need not arrive: its export is gone or had once no room for more ranges of
    /// data that arrived, its sender has been told that it may not have arrived, or nobody is left
    /// to be told.
    pub(crate) fn is_excused(&self, key: OpKey) -> bool {
        let op = &self.ops[key];
        let import = op.import.map(|i| &self.imports[i].state);
        let gone = op.export.is_none_or(|e| !self.exports[e].is_live() || self.exports[e].fragmented);
        gone || matches!(op.outcome, Outcome::Failed(_) | Outcome::Gone)
            || matches!(import, Some(ImportState::Broken(_) | ImportState::Dropped))
    }

    /// Whether nothing more can come of the operation at the receiver, so that its place may be
    /// used again.
    pub(crate) fn is_final(&self, key: OpKey) -> bool {
        let op = &self.ops[key];
        let gone = op.export.is_some_and(|e| !self.exports[e].is_live());
        let notified = op.notified > 0 || !op.asks_notification() || op.export.is_none_or(|e| !self.exports[e].notify);
        op.mistake.is_some() || gone || op.is_applied() && notified
    }

    /// Whether a send without bytes is to raise a counter in the export's region. A second one
    /// could not be told from it.
    pub(crate) fn has_empty_counting(&self, export: ExportKey) -> bool {
        let region = self.exports[export].region;
        let there = |op: &Op| op.len == 0 && op.export.is_some_and(|e| self.exports[e].region == region);
        self.counting.iter().any(|&op| there(&self.ops[op]))
    }

    /// Whether a send without bytes at that place may still notify. A second one could not be told
    /// from it.
    pub(crate) fn has_empty_notifying(&self, export: ExportKey, offset: u64) -> bool {
        let open = |op: &Op| op.offset == offset && op.asks_notification() && op.notified == 0;
        self.exports[export].empty_sends.iter().any(|&op| open(&self.ops[op]))
    }

    /// Whether `start..end` of a region is free of operations in the open, so that a new one may
    /// land there.
    pub(crate) fn is_free(&self, region: RegionKey, start: u64, end: u64) -> bool {
        let region = &self.regions[region];
        region.landing_on(start, end).all(|piece| self.is_final(piece.op))
            && !region.readers.iter().any(|r| r.0 < end && start < r.1 && self.ops[r.2].outcome == Outcome::Open)
    }

    /// Forgets final operations that landed on `start..end`, to make room for a new one.
    fn clear_landing(&mut self, region: RegionKey, start: u64, end: u64) {
        let region = &mut self.regions[region];
        let stale: Vec<u64> = region.landing_on(start, end).map(|piece| piece.start).collect();
        for at in stale {
            region.landing.remove(&at);
        }
    }
}
