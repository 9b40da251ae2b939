//! Inspection from outside; nothing here changes anything.

use super::Engine;
use crate::congestion::{Congestion, Estimates};
use crate::ids::{ExportId, ProcessId};
use crate::peer::Peer;
use crate::stats::{CongestionInfo, ExportInfo, ImportInfo, PathInfo, PeerInfo, PeerState, ProcessInfo};
use crate::tables::Route;

fn congestion_info(congestion: &Congestion) -> CongestionInfo {
    let Estimates { state, bandwidth, shortest } = congestion.estimates();
    let (window_bytes, pace) = (congestion.window(), congestion.pacing_rate());
    CongestionInfo { control: congestion.control(), state, window_bytes, pace, bandwidth, shortest }
}

impl Engine {
    /// All peers known.
    pub fn peers(&self) -> impl Iterator<Item = PeerInfo> + '_ {
        self.peers.iter().flatten().map(|peer| self.peer_info(peer))
    }

    fn peer_info(&self, peer: &Peer) -> PeerInfo {
        let session = peer.session.as_deref();
        let state = match (session.is_some(), peer.attempt.is_some()) {
            (true, _) => PeerState::Up,
            (false, true) => PeerState::Connecting,
            (false, false) => PeerState::Idle,
        };
        let paths = peer.paths.iter().zip(0..).map(|(path, index)| PathInfo {
            addr: path.addr,
            mtu_bytes: path.search.size(),
            mtu_limit_bytes: path.search.limit(),
            mtu_state: path.search.state(),
            black_holes: path.search.black_holes(),
            active: index == peer.current,
            failed: path.failed,
            failures: path.failures,
        });
        let (held_chunks, held_bytes) = session.map_or((0, 0), |session| session.held());
        PeerInfo {
            name: peer.name.clone(),
            state,
            paths: paths.collect(),
            rtt: session.and_then(|session| session.rtt.smoothed()),
            window_bytes: session.map_or(0, |session| session.congestion.window()),
            congestion: session.map(|session| congestion_info(&session.congestion)),
            ecn: session.map(|session| session.notification.state()),
            in_flight_bytes: session.map_or(0, |session| session.tx.in_flight),
            queued_ops: session.map_or(0, |session| session.queued_ops),
            held_chunks,
            held_bytes,
            sealed: self.config.key.is_some(),
            hint: peer.hint,
            cipher: session.and_then(|session| session.seals.cipher),
            incarnation: session.map_or(0, |session| session.incarnation),
            stats: session.map(|session| session.stats).unwrap_or_default(),
        }
    }

    /// For tests: see [`fuzzing::state`](crate::fuzzing::state).
    pub(crate) fn state(&self) -> String {
        use std::fmt::Write;
        let mut out = format!("pending {:?} slots", self.pending);
        for slot in &self.slots {
            let used = match &slot.used {
                super::handshake::Use::Free => "free".to_string(),
                super::handshake::Use::Attempt(index) => format!("attempt {index}"),
                super::handshake::Use::Pending(pending) => {
                    format!("pending {:?} {:?}", pending.remote, pending.created)
                }
                super::handshake::Use::Live(index) => format!("live {index}"),
            };
            let _ = write!(out, " {:x}:{used}", slot.id);
        }
        for (index, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            let paths: Vec<_> =
                peer.paths.iter().map(|p| (p.addr, p.search.size(), p.failed, p.failures, p.probe)).collect();
            let _ = write!(
                out,
                "\npeer {index} {:?} {} {paths:?} {} {:?}",
                peer.name, peer.configured, peer.current, peer.waiting
            );
            let _ = write!(out, " {:?} {} {}", peer.hint_not_before, peer.contest.is_some(), peer.newcomer.is_some());
            if let Some(attempt) = &peer.attempt {
                let times = (attempt.started, attempt.next, attempt.retry, attempt.cookie_at);
                let _ = write!(
                    out,
                    " attempt {:?} {times:?} {} {} {:?}",
                    attempt.local, attempt.path, attempt.sent, attempt.hello
                );
            }
            if let Some(session) = peer.session.as_deref() {
                let _ = write!(out, " session {}", session.state());
            }
        }
        let tables = &self.tables;
        let counts =
            (tables.exports.len(), tables.grants.len(), tables.waits.len(), tables.waiters.names(), tables.names.len());
        let _ = write!(out, "\ntables {counts:?} events {} messages {}", tables.events.len(), tables.messages.len());
        let _ = write!(out, " hellos {}", self.hello_limit.left());
        let _ = write!(out, " {:?} {:?}", self.imports().collect::<Vec<_>>(), self.processes().collect::<Vec<_>>());
        out
    }

    /// Slots of a process's table of imports, whether an import is in them or not: a table grows
    /// when it has no free one, and shrinks when its last ones are free.
    pub fn import_slots(&self, process: ProcessId) -> usize {
        self.tables.process(process).map_or(0, |process| process.imports.slots())
    }

    /// Whether a further import of a process has a slot.
    pub fn has_import_slot(&self, process: ProcessId) -> bool {
        self.tables.process(process).is_some_and(|process| process.imports.slots() > process.imports.len())
    }

    /// The process whose export has this name among those of a user.
    pub fn holder_of_name(&self, name: &str, uid: u32) -> Option<ProcessId> {
        let (_, key) = self.tables.names.get(name)?.iter().find(|(owner, _)| *owner == uid)?;
        self.tables.exports.get(*key).map(|export| export.owner)
    }

    /// Name of an export of this node.
    pub fn name_of(&self, export: ExportId) -> Option<&str> {
        self.tables.exports.get(export.into())?.name.as_deref()
    }

    /// How many imports of an export there are, of processes of this node and of others; none: the
    /// process has no such export.
    pub fn importers(&self, process: ProcessId, export: ExportId) -> Option<usize> {
        let export = self.tables.exports.get(export.into()).filter(|export| export.owner == process)?;
        Some(export.local_importers.len() + export.grants.len())
    }

    /// All exports of this node.
    pub fn exports(&self) -> impl Iterator<Item = ExportInfo> + '_ {
        self.tables.exports.iter().map(|(key, export)| ExportInfo {
            export: key.into(),
            process: export.owner,
            uid: export.owner_uid,
            name: export.name.clone(),
            region: export.memory.region,
            offset: export.offset,
            len: export.len,
            rights: export.rights,
            notify: export.notify,
            redirectable: export.redirector.is_some(),
            kind: export.kind,
            local_importers: export.local_importers.len(),
            remote_importers: export.grants.len(),
        })
    }

    /// All imports of the processes of this node, as far as answered.
    pub fn imports(&self) -> impl Iterator<Item = ImportInfo> + '_ {
        self.imports_of(|_| true)
    }

    /// Those of some of the processes.
    pub fn imports_of(&self, which: impl Fn(ProcessId) -> bool) -> impl Iterator<Item = ImportInfo> {
        let processes = self.tables.processes.iter().flatten().filter(move |process| which(process.id));
        processes.flat_map(move |process| {
            process.imports.iter().filter_map(move |(key, import)| {
                let node = match import.route {
                    Route::Pending(_) => return None,
                    Route::Local { .. } => None,
                    Route::Remote { via, .. } => self.peer(via.peer).and_then(|peer| peer.name.clone()),
                };
                Some(ImportInfo {
                    process: process.id,
                    import: key.into(),
                    export: import.export,
                    node,
                    len: import.len,
                    rights: import.rights,
                    broken: import.broken,
                })
            })
        })
    }

    /// All attached processes.
    pub fn processes(&self) -> impl Iterator<Item = ProcessInfo> + '_ {
        self.tables.processes.iter().flatten().map(|process| ProcessInfo {
            process: process.id,
            uid: process.uid,
            exports: process.exports,
            imports: process.imports.len(),
            outstanding_ops: process.outstanding,
        })
    }
}
