//! What the simulated processes do beside moving memory: attach, export, import, ping, leave, in
//! random order.
//!
//! Invariant: an export is in the model before any event is taken that may come of it, because an
//! import that waits for its name is granted by the very call that makes it.

use vmmc_nic::ExportKind;
use vmmc_nic::{
    Access, ExportSpec, ImportSpec, ImportTarget, NodeSpec, Owner, PingBy, RegionId, RegionRef, Rights, Time,
};

use crate::cluster::{Cluster, Happening, node_name};
use crate::events::{import_cookie, ping_cookie};
use crate::limits::{
    EXPORTS_PER_PROCESS_MAX, IMPORTS_PER_PROCESS_MAX, NODES_KNOWN_MAX, NODES_PER_ACTION, PROCESSES_PER_NODE_MAX,
};
use crate::model::{
    Export, ExportEnd, ExportKey, Import, ImportKey, ImportState, Model, Ping, ProcKey, Region, RegionKey, RegionUse,
    Ring, Seen, Wanted,
};
use crate::network::address;
use crate::spans::Spans;
use crate::tokens::TABLE;

impl Cluster {
    /// One workload action, and perhaps a fault; plans the next.
    pub(crate) fn act(&mut self) {
        if !self.stormy {
            return;
        }
        self.model.begin_step();
        self.stir();
        let actions = self.rng.pick(&[1, 1, 2, 4]) * (1 + self.options.nodes / NODES_PER_ACTION);
        for _ in 0..actions {
            self.act_once();
        }
        self.gauge_one();
        self.judge.see(&mut self.model, &Seen::Step);
        if self.model.step < self.options.steps {
            // Slow and hectic times take turns.
            let mean_ns = [20_000, 200_000, 1_000_000, 30_000_000][(self.model.step / 25 % 4) as usize];
            let wait_ns = self.rng.around(mean_ns);
            self.after(wait_ns, Happening::Act);
        }
    }

    fn act_once(&mut self) {
        if self.rng.chance(15) {
            return self.stranger_knocks();
        }
        let Some(proc) = self.some_proc() else { return };
        match self.rng.below(100) {
            0..5 => self.do_export(proc),
            5..8 => self.do_unexport(proc),
            8..19 => self.do_import(proc),
            19..21 => self.do_unimport(proc),
            21..23 => self.do_ping(proc),
            23..24 => self.do_exit(proc),
            24..31 => self.do_redirection(proc),
            31..36 => self.do_reading(proc),
            36..41 => self.do_arming(proc),
            _ => self.do_operations(proc),
        }
    }

    /// A random process on a random running node; new ones appear as long as there is room.
    fn some_proc(&mut self) -> Option<ProcKey> {
        let node = self.rng.below(self.options.nodes as u64) as usize;
        self.hosts[node].engine.as_ref()?;
        let living: Vec<ProcKey> = self.model.living(node);
        let room = living.len() < PROCESSES_PER_NODE_MAX;
        if living.is_empty() || room && self.rng.chance(100) {
            return self.do_attach(node);
        }
        self.rng.index(living.len()).map(|i| living[i])
    }

    /// A random node of those that a node knows.
    pub(crate) fn some_known(&mut self, node: usize) -> usize {
        let at = self.rng.below(self.options.nodes.min(NODES_KNOWN_MAX) as u64);
        self.options.known_to(node).nth(at as usize).expect("that many are known")
    }

    /// The stranger asks for what it must not get.
    fn stranger_knocks(&mut self) {
        let Some(stranger) = self.setup.stranger else { return };
        let known = self.model.living(stranger).first().copied();
        let Some(proc) = known.or_else(|| self.do_attach(stranger)) else { return };
        if self.rng.chance(500) { self.do_import(proc) } else { self.do_ping(proc) }
    }

    pub(crate) fn do_attach(&mut self, node: usize) -> Option<ProcKey> {
        let uid = self.rng.pick(&[1000, 1000, 1000, 1001]);
        let pid = self.call(node, |engine, _, _| engine.attach(uid))?.expect("fewer processes than the table holds");
        let key = self.model.add_proc(node, pid, uid);
        self.judge.note(&self.model, format_args!("{key} attaches to node {node} as {pid:?}, user {uid}"));
        self.do_export(key);
        Some(key)
    }

    /// The process leaves or is killed: to an engine that is the same.
    fn do_exit(&mut self, proc: ProcKey) {
        if !self.options.faults.process_crashes {
            return;
        }
        let (node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        self.faults.process_crashes += 1;
        self.detach(node, proc, pid);
    }

    pub(crate) fn detach(&mut self, node: usize, proc: ProcKey, pid: vmmc_nic::ProcessId) {
        self.judge.note(&self.model, format_args!("{proc} is gone"));
        self.call_raw(node, |engine, now, _| engine.detach(now, pid));
        for region in self.model.procs[proc].regions.clone() {
            self.memory.free(region);
        }
        self.model.end_proc(proc, false);
        self.run_to_quiescence(node);
    }

    fn do_export(&mut self, proc: ProcKey) {
        let live = |e: &&ExportKey| self.model.exports[**e].is_live();
        if self.model.procs[proc].exports.iter().filter(live).count() >= EXPORTS_PER_PROCESS_MAX {
            return;
        }
        let kind = match self.rng.below(1_000) {
            0..200 => ExportKind::Ring,
            200..320 => TABLE,
            _ => ExportKind::Memory,
        };
        let plain = kind == ExportKind::Memory;
        let region = match kind {
            ExportKind::Ring => self.ring_region(proc),
            ExportKind::Tokens { .. } => self.table_region(proc),
            ExportKind::Memory => self.export_region(proc),
        };
        let len_bytes = self.model.regions[region].len;
        let offset = if !plain { 64 } else { self.rng.pick(&[0, 0, 0, 64, 128, 256, 333]) };
        let len =
            if !plain || self.rng.chance(700) { len_bytes - offset } else { self.rng.between(512, len_bytes - offset) };
        let rights = self.rng.pick(&[
            Rights::ALL,
            Rights::ALL,
            Rights::READ | Rights::WRITE,
            Rights::WRITE,
            Rights::READ,
            Rights::WRITE | Rights::ATOMIC,
        ]);
        let rights = if plain { rights } else { Rights::WRITE };
        let name = self.rng.chance(900).then(|| format!("buffer{}", self.rng.below(6)));
        let uid = self.model.procs[proc].uid;
        let (access, users) = match self.rng.below(4) {
            0 => (Access::SameUser, Some(vec![uid])),
            1 => (Access::Users(vec![7, 1001]), Some(vec![7, 1001])),
            _ => (Access::Anyone, None),
        };
        let (notify, redirectable) = (self.rng.chance(600), self.rng.chance(300));
        let spec = ExportSpec {
            name,
            region: self.model.regions[region].at.region,
            offset,
            len,
            rights,
            access,
            notify: notify && kind != TABLE,
            redirectable: redirectable && plain,
            kind,
        };
        self.export(proc, region, spec, users);
    }

    /// Exports, and checks a refusal against the names in use. True when it exists now.
    pub(crate) fn export(
        &mut self,
        proc: ProcKey,
        region: RegionKey,
        spec: ExportSpec,
        users: Option<Vec<u32>>,
    ) -> bool {
        let (node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        let uid = self.model.procs[proc].uid;
        let taken = spec.name.as_ref().is_some_and(|name| self.model.is_name_taken(node, uid, name));
        let asked = spec.clone();
        let Some(result) = self.call_raw(node, |engine, now, _| engine.export(now, pid, asked)) else { return false };
        if result.is_err() != taken {
            self.fail(
                "honest-errors",
                format!("export of {:?} on node {node} gave {result:?}, name taken: {taken}", spec.name),
            );
        }
        if let Ok(id) = result {
            let ExportSpec { name, offset, len, rights, notify, redirectable, kind, .. } = spec;
            let life = self.model.nodes[node].incarnations.len() - 1;
            let (born_ns, ended) = (self.model.now_ns, None);
            let (redirects, empty_sends, arrived) = (Vec::new(), Vec::new(), Spans::default());
            let key = self.model.add_export(Export {
                owner: proc,
                life,
                id,
                name,
                region,
                offset,
                len,
                rights,
                users,
                notify,
                redirectable,
                ring: (kind == ExportKind::Ring).then(Ring::default),
                tokens: Vec::new(),
                born_ns,
                ended,
                redirects,
                empty_sends,
                arrived,
                fragmented: false,
            });
            let text = &self.model.exports[key];
            self.judge.note(&self.model, format_args!("{proc} on node {node} exports {key}: {text:?}"));
            if kind == TABLE {
                self.arm_all(key);
            }
        }
        // Only now: an import that waits for the name is granted by this very call.
        self.run_to_quiescence(node);
        result.is_ok()
    }

    /// A region to export: often one that is or was exported, so that generations matter.
    fn export_region(&mut self, proc: ProcKey) -> RegionKey {
        let shared = |r: &RegionKey| self.model.regions[*r].usage == RegionUse::Shared;
        let known: Vec<RegionKey> = self.model.procs[proc].regions.iter().copied().filter(shared).collect();
        let known_again = self.rng.chance(500).then(|| self.rng.index(known.len())).flatten();
        if let Some(i) = known_again {
            return known[i];
        }
        let len = self.rng.pick(&[4 << 10, 8 << 10, 32 << 10, 128 << 10]);
        let len = if self.rng.chance(15) { 3 << 20 } else { len };
        self.new_region(proc, RegionUse::Shared, vec![0; len])
    }

    pub(crate) fn new_region(&mut self, owner: ProcKey, usage: RegionUse, bytes: Vec<u8>) -> RegionKey {
        let number = self.model.procs[owner].regions.len() as u32 + 1;
        let at = RegionRef { process: self.model.procs[owner].pid, region: RegionId(number) };
        let key = self.model.add_region(Region::new(owner, at, bytes.len() as u64, usage));
        self.memory.add(key, bytes);
        key
    }

    fn do_unexport(&mut self, proc: ProcKey) {
        let live: Vec<ExportKey> = self.model.live_exports(proc);
        let Some(i) = self.rng.index(live.len()) else { return };
        let (node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        let id = self.model.exports[live[i]].id;
        self.judge.note(&self.model, format_args!("{proc} unexports {}", live[i]));
        let result = self.call_raw(node, |engine, now, _| engine.unexport(now, pid, id));
        if result != Some(Ok(())) {
            self.fail("honest-errors", format!("unexport of {} gave {result:?}", live[i]));
        }
        self.model.end_export(live[i], ExportEnd::Withdrawn);
        self.run_to_quiescence(node);
    }

    pub(crate) fn do_import(&mut self, proc: ProcKey) {
        let held = |i: &&ImportKey| matches!(self.model.imports[**i].state, ImportState::Asked | ImportState::Granted);
        if self.model.procs[proc].imports.iter().filter(held).count() >= IMPORTS_PER_PROCESS_MAX {
            return;
        }
        let node = self.some_known(self.model.procs[proc].node);
        let exports = self.model.exports_of_node(node);
        let chosen = self.rng.index(exports.len()).map(|i| exports[i]);
        let facts = chosen.map(|e| &self.model.exports[e]);
        let wanted = match (self.rng.below(10), facts) {
            (0, _) => Wanted::Name(format!("unknown{}", self.rng.below(3))),
            (1..3, Some(export)) => Wanted::Id(export.id),
            (3..5, _) | (_, None) => Wanted::Name(format!("buffer{}", self.rng.below(6))),
            (_, Some(export)) => export.name.clone().map_or(Wanted::Id(export.id), Wanted::Name),
        };
        let offered = facts.map_or(Rights::ALL, |export| export.rights);
        let rights = match self.rng.below(10) {
            0 => Rights::ALL,
            1 => Rights::READ,
            _ => offered,
        };
        let wait = self.rng.chance(400);
        let wait_limit_ns = self.rng.pick(&[100_000, 10_000_000, 1_000_000_000, 8_000_000_000]);
        self.import(proc, node, wanted, rights, wait, wait_limit_ns);
    }

    pub(crate) fn import(
        &mut self,
        proc: ProcKey,
        node: usize,
        wanted: Wanted,
        rights: Rights,
        wait: bool,
        wait_limit_ns: u64,
    ) -> ImportKey {
        let (importer_node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        let asked_at_ns = self.model.now_ns;
        let deadline_ns = asked_at_ns + wait_limit_ns;
        let what = match &wanted {
            Wanted::Name(name) => ImportTarget::Name(name.clone()),
            Wanted::Id(id) => ImportTarget::Id(*id),
        };
        let own_order = self.model.imports.next_key().0 % 2 == 1;
        let key = self.model.add_import(Import {
            importer: proc,
            node,
            wanted,
            rights,
            wait,
            own_order,
            asked_at_ns,
            deadline_ns,
            state: ImportState::Asked,
            answered: false,
            asked: None,
            id: None,
            export: None,
            granted: Rights::NONE,
            refusals: 0,
            appends: Vec::new(),
        });
        // Its own node a process may name or not.
        let named = node != importer_node || self.rng.chance(150);
        let spec_node = named.then(|| self.node_spec(importer_node, node));
        self.judge.note(
            &self.model,
            format_args!("{proc} on node {importer_node} asks for {key}: {:?}", self.model.imports[key]),
        );
        let spec = ImportSpec {
            node: spec_node,
            what,
            owner: Owner::Any,
            rights,
            wait,
            deadline: Time::from_nanos(deadline_ns),
            own_order,
        };
        let asked = self.call(importer_node, |engine, now, _| engine.import(now, pid, spec, import_cookie(key)));
        self.model.imports[key].asked = asked.flatten();
        key
    }

    /// The other node by its address, or by its name once the engine has learnt it.
    fn node_spec(&mut self, asker: usize, node: usize) -> NodeSpec {
        let name = node_name(node);
        let by_name = self.rng.chance(400);
        if node == asker {
            return NodeSpec::Name(name);
        }
        let engine = self.hosts[asker].engine.as_ref();
        if by_name && engine.is_some_and(|e| e.peers().any(|p| p.name.as_ref() == Some(&name))) {
            return NodeSpec::Name(name);
        }
        NodeSpec::Addr(address(node, 0))
    }

    fn do_unimport(&mut self, proc: ProcKey) {
        let held: Vec<ImportKey> = self.model.procs[proc].imports.clone();
        let Some(key) = self.rng.index(held.len()).map(|i| held[i]) else { return };
        let (node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        let import = &self.model.imports[key];
        match (import.state.clone(), import.id) {
            (ImportState::Asked, _) => {
                let asked = import.asked;
                self.judge.note(&self.model, format_args!("{proc} withdraws {key}"));
                self.model.imports[key].state = ImportState::Dropped;
                self.call(node, |engine, now, _| {
                    asked.into_iter().for_each(|id| engine.cancel_import(now, pid, id));
                });
            }
            (ImportState::Granted, Some(id)) => {
                self.judge.note(&self.model, format_args!("{proc} releases {key}"));
                self.model.release_import(key);
                let result = self.call_raw(node, |engine, now, _| engine.unimport(now, pid, id));
                if result != Some(Ok(())) {
                    self.fail("honest-errors", format!("unimport of {key} gave {result:?}"));
                }
                self.run_to_quiescence(node);
            }
            _ => {}
        }
    }

    fn do_ping(&mut self, proc: ProcKey) {
        let asker_node = self.model.procs[proc].node;
        let node = self.some_known(asker_node);
        if node == asker_node {
            return;
        }
        let asked_at_ns = self.model.now_ns;
        let deadline_ns = asked_at_ns + self.rng.pick(&[1_000_000, 100_000_000, 6_000_000_000]);
        let key =
            self.model.add_ping(Ping { asker: proc, asker_node, node, asked_at_ns, deadline_ns, answered: false });
        let spec = self.node_spec(asker_node, node);
        let by = PingBy::Process(self.model.procs[proc].pid);
        let deadline = Time::from_nanos(deadline_ns);
        self.call(asker_node, |engine, now, _| engine.ping(now, spec, by, ping_cookie(key), deadline));
    }
}

impl Model {
    /// Living processes of a node.
    pub(crate) fn living(&self, node: usize) -> Vec<ProcKey> {
        self.present(node).filter(|&p| self.procs[p].alive).collect()
    }

    /// Live exports of a process.
    pub(crate) fn live_exports(&self, proc: ProcKey) -> Vec<ExportKey> {
        self.procs[proc].exports.iter().copied().filter(|&e| self.exports[e].is_live()).collect()
    }

    /// Exports of a node in its present life, dead ones too.
    fn exports_of_node(&self, node: usize) -> Vec<ExportKey> {
        self.present(node).flat_map(|p| self.procs[p].exports.iter().copied()).collect()
    }

    /// Whether this user has an export of this name there.
    fn is_name_taken(&self, node: usize, uid: u32, name: &str) -> bool {
        let same = |e: &ExportKey| {
            let export = &self.exports[*e];
            export.is_live() && export.name.as_deref() == Some(name) && self.procs[export.owner].uid == uid
        };
        self.exports_of_node(node).iter().any(same)
    }
}
