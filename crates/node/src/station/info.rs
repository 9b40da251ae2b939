//! Description of the node for `vmmc stats`, `node status` and `explain`.
//!
//! Invariant: it fits a control message; lists are cut where they would not, and a counter says by
//! how much.

use super::Station;
use super::connection::{ImportRecord, Path, Process};
use super::translation::Table;
use crate::limits::{INFO_BYTES_MAX, INFO_LIST_MAX, PUBLISHED_FIGURES_MAX};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use vmmc_host::area::PIN_COUNTER_NAMES;
use vmmc_host::control::{
    Answer, ExportInfo, ImportInfo, Moved, NodeInfo, PeerInfo as HostPeerInfo, ProcessInfo, PublishedInfo, encode,
};
use vmmc_host::published;
use vmmc_nic::{ExportKind, ImportId, PathInfo, PeerInfo, PeerState, ProcessId, RegionRef, Time};

// The list of processes is never cut before it is summed.
const _: () = assert!(vmmc_nic::limits::PROCESSES_MAX <= INFO_LIST_MAX);

impl Station {
    pub(super) fn info(&mut self, now: Time, index: usize, details: bool) -> Answer {
        // All that each process says of itself is read.
        self.charge(index, self.attached.len());
        let owner = self.is_owner(index);
        let mut info = self.describe(now, owner, false);
        if details {
            self.add_details(&mut info, self.process_id_at(index), owner);
            self.charge(index, info.published.iter().map(|of| of.figures.len()).sum());
        }
        Answer::Info(Box::new(info))
    }

    /// Description of the node, as its owner or somebody else may see it.
    pub fn describe(&self, now: Time, owner: bool, details: bool) -> NodeInfo {
        let processes = self.process_infos();
        let mut info = NodeInfo {
            name: self.config.name.as_str().to_string(),
            local_name: self.config.local_name.clone(),
            pid: std::process::id(),
            uid: self.uid,
            version: env!("CARGO_PKG_VERSION").to_string(),
            uptime_ms: now.since(self.started).as_millis() as u64,
            listen: self.config.listen.iter().map(ToString::to_string).collect(),
            sealed: self.config.key.is_some(),
            embedded: self.config.embedded,
            counters: self.all_counters(&processes),
            figures: self.services.figures(),
            peers: self.engine.peers().take(INFO_LIST_MAX).map(|p| peer(&p)).collect(),
            notes: if owner { self.notes.iter().map(|note| note.text.clone()).collect() } else { Vec::new() },
            log: self.log.place.clone(),
            processes,
            exports: Vec::new(),
            imports: Vec::new(),
            published: Vec::new(),
        };
        if details && owner {
            self.add_details(&mut info, None, true);
        }
        while encode(&info).len() > INFO_BYTES_MAX && (shorten(&mut info)) {}
        info
    }

    /// `processes`: all of them.
    fn all_counters(&self, processes: &[ProcessInfo]) -> Vec<(String, u64)> {
        let mut mapped = self.counters.mapped_ended;
        processes.iter().for_each(|process| mapped.add(process.mapped));
        let own = [
            ("process_cpu_us", process_cpu_us()),
            ("commands", self.counters.commands),
            ("control_calls", self.counters.control_calls),
            ("refusals", self.counters.refusals),
            ("connections", self.counters.connections),
            ("processes_ended", self.counters.processes_died),
            ("revocations", self.counters.revocations),
            ("revocations_moved", self.counters.revocations_moved),
            ("sleeps", self.counters.sleeps),
            ("peers_up", self.counters.peers_up),
            ("peers_down", self.counters.peers_down),
            ("pins", self.sum(|table| table.pins)),
            ("unpins", self.sum(|table| table.unpins)),
            ("pinned_pages", self.sum(Table::pages)),
            ("pinned_pages_free", self.pins.free() as u64),
            ("pins_asked_back", self.pins.asked),
            ("pins_taken_back", self.pins.revoked),
            ("translation_lookups", self.sum(|table| table.counters.lookups)),
            ("translation_misses", self.sum(|table| table.counters.misses)),
            ("translation_misses_compulsory", self.sum(|table| table.counters.compulsory)),
            ("translation_misses_capacity", self.sum(|table| table.counters.capacity)),
            ("translation_misses_conflict", self.sum(|table| table.counters.conflict)),
            ("translation_garbage", self.memory.garbage()),
            ("translation_tables_out", self.memory.tables_swapped().0),
            ("translation_tables_in", self.memory.tables_swapped().1),
            ("exports", self.attached_processes().map(|process| process.exports.len() as u64).sum()),
            ("mapped_sends", mapped.sends),
            ("mapped_send_bytes", mapped.send_bytes),
            ("mapped_fetches", mapped.fetches),
            ("mapped_fetch_bytes", mapped.fetch_bytes),
            ("mapped_atomics", mapped.atomics),
        ];
        let named = |(name, n): (&str, u64)| (name.to_string(), n);
        let own = own.into_iter().map(named);
        let engine = self.engine.stats().iter().map(|(name, n)| (format!("engine_{name}"), n));
        own.chain(engine).chain(self.transport_counters.iter().copied().map(named)).collect()
    }

    /// All attached processes.
    fn attached_processes(&self) -> impl Iterator<Item = &Process> {
        self.attached.iter().filter_map(|&i| self.connections[i].as_ref()?.process.as_ref())
    }

    /// Over the tables of all attached processes.
    fn sum(&self, which: impl Fn(&Table) -> u64) -> u64 {
        self.attached_processes().filter_map(|process| self.memory.table(process.id)).map(which).sum()
    }

    fn process_infos(&self) -> Vec<ProcessInfo> {
        let connections = self.attached.iter().filter_map(|&i| self.connections[i].as_ref());
        let infos = connections.filter_map(|c| {
            let process = c.process.as_ref()?;
            Some(ProcessInfo {
                process: process.id.0,
                pid: c.who.pid,
                uid: c.who.uid,
                exports: process.exports.len() as u32,
                imports: process.imports_held,
                region_bytes: self.memory.bytes(process.id),
                commands: process.commands_taken,
                mapped: process.touch(|area| area.moved(|_, _| ())).unwrap_or_default(),
                program: process.program.clone(),
                pinned: self.memory.table(process.id).map_or(0, Table::pages),
                counters: self.memory.table(process.id).map_or_else(Vec::new, |table| pin_counters(process, table)),
            })
        });
        infos.take(INFO_LIST_MAX).collect()
    }

    /// Lists exports and imports: those of the process that asks, which are no secret to it, before
    /// those of others.
    fn add_details(&self, info: &mut NodeInfo, asks: Option<ProcessId>, others: bool) {
        let own = move |process: ProcessId| Some(process) == asks;
        let exports = self.engine.exports().filter(|e| own(e.process));
        let rest = others.then(|| self.engine.exports().filter(|e| !own(e.process)));
        let exports = exports.chain(rest.into_iter().flatten());
        let exports = exports.map(|e| ExportInfo {
            export: e.export.to_u64(),
            name: e.name,
            process: e.process.0,
            uid: e.uid,
            len: e.len,
            rights: e.rights.bits(),
            importers: (e.local_importers + e.remote_importers) as u32,
        });
        // Of others only where they are shown: a process has ten thousands.
        let imports = self.engine.imports_of(own);
        let imports = imports.chain(self.engine.imports_of(move |process| others && !own(process)));
        let mut claimed: HashMap<(ProcessId, u64), Moved> = HashMap::new();
        for process in self.attached_processes().filter(|process| others || own(process.id)) {
            process.touch(|area| {
                area.moved(|import, moved| claimed.entry((process.id, import)).or_default().add(moved));
            });
        }
        let imports = imports.map(|i| ImportInfo {
            name: i.node.is_none().then(|| self.engine.name_of(i.export).map(str::to_string)).flatten(),
            moved: match self.record_of(i.process, i.import) {
                Some(record) if record.path == Path::Mapped => {
                    claimed.get(&(i.process, i.import.to_u64())).copied().unwrap_or_default()
                }
                Some(record) => record.moved,
                None => Moved::default(),
            },
            import: i.import.to_u64(),
            process: i.process.0,
            export: i.export.to_u64(),
            path: self.path_of(i.process, i.import).to_string(),
            node: i.node.map_or_else(|| self.config.name.as_str().to_string(), |n| n.as_str().to_string()),
            len: i.len,
            rights: i.rights.bits(),
        });
        info.exports = exports.take(INFO_LIST_MAX).collect();
        info.imports = imports.take(INFO_LIST_MAX).collect();
        info.published = self.published(own, others);
        // A part at a time: each check costs as much as the whole description.
        let is_empty =
            |info: &NodeInfo| info.imports.is_empty() && info.exports.is_empty() && info.published.is_empty();
        while encode(info).len() > INFO_BYTES_MAX && !is_empty(info) {
            info.imports.truncate(info.imports.len() * 3 / 4);
            info.exports.truncate(info.exports.len() * 3 / 4);
            info.published.truncate(info.published.len() * 3 / 4);
        }
    }

    /// Figures in exports that are for that.
    fn published(&self, own: impl Fn(ProcessId) -> bool, others: bool) -> Vec<PublishedInfo> {
        let exports = self.engine.exports().filter(|e| e.kind == ExportKind::Memory && (others || own(e.process)));
        let published = exports.filter(|e| e.name.as_deref().is_some_and(|name| published::source_of(name).is_some()));
        let (mut free, mut users) = (PUBLISHED_FIGURES_MAX, HashMap::<u32, usize>::new());
        let shown = published.filter_map(|e| {
            // Before it is read: one without figures takes a place too.
            let (own, places) = (users.entry(e.uid).or_default(), 1 + published::room(e.len));
            if *own + places > free {
                return None;
            }
            *own += places;
            free -= places;
            let at = RegionRef { process: e.process, region: e.region };
            let load = |from: u64, into: &mut [u8]| self.memory.read(at, e.offset + from, into);
            let source = published::source_of(e.name.as_deref()?)?.to_string();
            Some(PublishedInfo { process: e.process.0, source, figures: published::read(e.len, load) })
        });
        shown.collect()
    }

    /// Process id in the system; 0 if it has gone or cannot be seen.
    pub(super) fn pid_of(&self, process: ProcessId) -> u32 {
        let index = self.by_slot.get(process.slot()).copied().flatten();
        index.and_then(|index| self.connections[index].as_ref()).map_or(0, |connection| connection.who.pid)
    }

    fn record_of(&self, process: ProcessId, import: ImportId) -> Option<ImportRecord> {
        let index = self.by_slot.get(process.slot()).copied().flatten()?;
        let process = self.connections[index].as_ref()?.process.as_ref()?;
        process.imports.get(import.slot as usize).copied().flatten().filter(|record| record.id == import)
    }

    fn path_of(&self, process: ProcessId, import: ImportId) -> &'static str {
        match self.record_of(process, import).map(|record| record.path) {
            Some(Path::Mapped) => "mapped",
            Some(Path::Engine) => "engine",
            Some(Path::Network) => "network",
            None => "unknown",
        }
    }
}

/// What is known the least about goes first, a part at a time: each check costs as much as the
/// whole description.
fn shorten(info: &mut NodeInfo) -> bool {
    fn cut<T>(list: &mut Vec<T>) -> bool {
        let before = list.len();
        list.truncate(before * 7 / 8);
        list.len() < before
    }
    cut(&mut info.notes) || cut(&mut info.peers) || cut(&mut info.processes)
}

/// What a process says of its pinning, and what the node knows.
fn pin_counters(process: &Process, table: &Table) -> Vec<(String, u64)> {
    let theirs = PIN_COUNTER_NAMES.iter().enumerate();
    let theirs = theirs.map(|(i, name)| {
        let count = process.touch(|area| area.pin_counter(i).load(Ordering::Relaxed));
        (name.to_string(), count.unwrap_or_default())
    });
    let ours = [
        ("pinned_pages", table.pages()),
        ("translation_lookups", table.counters.lookups),
        ("translation_misses", table.counters.misses),
        ("translation_misses_compulsory", table.counters.compulsory),
        ("translation_misses_capacity", table.counters.capacity),
        ("translation_misses_conflict", table.counters.conflict),
    ];
    let all = theirs.chain(ours.into_iter().map(|(name, n)| (name.to_string(), n)));
    if table.pins == 0 { Vec::new() } else { all.collect() }
}

/// Time that this process has spent on processors: for a daemon, what the engine costs.
fn process_cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    (time.tv_sec as u64) * 1_000_000 + (time.tv_nsec as u64) / 1_000
}

/// The size of a path's packets, in words.
fn packets(path: &PathInfo) -> String {
    let (bytes, limit) = (path.mtu_bytes, path.mtu_limit_bytes);
    let holes = match path.black_holes {
        0 => String::new(),
        1 => ", 1 black hole".to_string(),
        many => format!(", {many} black holes"),
    };
    if bytes == limit {
        format!("{bytes} B{holes}")
    } else {
        format!("{bytes} of {limit} B, {}{holes}", path.mtu_state.as_str())
    }
}

fn peer(peer: &PeerInfo) -> HostPeerInfo {
    let active = peer.paths.iter().find(|p| p.active).or(peer.paths.first());
    let state = match peer.state {
        PeerState::Up => "up",
        PeerState::Connecting => "connecting",
        PeerState::Idle => "down",
    };
    let own = [
        ("held_bytes".to_string(), peer.held_bytes as u64),
        ("queued_ops".to_string(), peer.queued_ops as u64),
        ("path_failures".to_string(), peer.paths.iter().map(|p| p.failures).sum()),
        ("mtu_bytes".to_string(), active.map_or(0, |p| p.mtu_bytes as u64)),
        ("mtu_limit_bytes".to_string(), active.map_or(0, |p| p.mtu_limit_bytes as u64)),
        ("black_holes".to_string(), peer.paths.iter().map(|p| p.black_holes).sum()),
    ];
    let congestion = peer.congestion;
    HostPeerInfo {
        name: peer.name.as_ref().map_or_else(String::new, |n| n.as_str().to_string()),
        address: active.map_or_else(String::new, |p| p.addr.to_string()),
        paths: peer.paths.iter().map(|p| p.addr.to_string()).collect(),
        state: state.to_string(),
        cipher: peer.cipher.map_or_else(String::new, |cipher| cipher.to_string()),
        hint: peer.hint.map_or_else(String::new, |hint| super::refusal::rejection(hint).to_string()),
        rtt_ns: peer.rtt.map_or(0, |rtt| rtt.as_nanos() as u64),
        congestion: congestion.map_or_else(String::new, |c| format!("{}, {}", c.control, c.state)),
        marks: peer.ecn.map_or_else(String::new, |ecn| ecn.to_string()),
        packets: active.map_or_else(String::new, packets),
        window_bytes: peer.window_bytes as u64,
        pace_bytes_per_s: congestion.and_then(|c| c.pace).unwrap_or(0),
        bandwidth_bytes_per_s: congestion.and_then(|c| c.bandwidth).unwrap_or(0),
        shortest_ns: congestion.and_then(|c| c.shortest).map_or(0, |shortest| shortest.as_nanos() as u64),
        in_flight_bytes: peer.in_flight_bytes as u64,
        counters: peer.stats.iter().map(|(name, n)| (name.to_string(), n)).chain(own).collect(),
    }
}
