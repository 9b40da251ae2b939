//! Looking in from outside; nothing here changes anything.

use super::Engine;
use crate::ids::{ExportId, ImportId};
use crate::peer::Peer;
use crate::stats::{ExportInfo, ImportInfo, PathInfo, PeerInfo, PeerState, ProcessInfo};
use crate::tables::Lead;

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
            mtu_bytes: path.mtu_bytes,
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
            in_flight_bytes: session.map_or(0, |session| session.tx.in_flight),
            queued_ops: session.map_or(0, |session| session.queued_ops),
            held_chunks,
            held_bytes,
            sealed: self.config.key.is_some(),
            incarnation: session.map_or(0, |session| session.incarnation),
            stats: session.map(|session| session.stats).unwrap_or_default(),
        }
    }

    /// All exports of this node.
    pub fn exports(&self) -> impl Iterator<Item = ExportInfo> + '_ {
        self.tables.exports.iter().map(|(key, export)| ExportInfo {
            export: ExportId::from_u64(key),
            process: export.owner,
            name: export.name.clone(),
            region: export.memory.region,
            offset: export.offset,
            len: export.len,
            rights: export.rights,
            notify: export.notify,
            redirectable: export.redirector.is_some(),
            local_importers: export.local_importers.len(),
            remote_importers: export.grants.len(),
        })
    }

    /// All imports of the processes of this node, as far as answered.
    pub fn imports(&self) -> impl Iterator<Item = ImportInfo> + '_ {
        self.tables.processes.iter().flatten().flat_map(move |process| {
            process.imports.iter().filter_map(move |(key, import)| {
                let node = match import.lead {
                    Lead::Pending(_) => return None,
                    Lead::Local { .. } => None,
                    Lead::Remote { via, .. } => self.peer(via.peer).and_then(|peer| peer.name.clone()),
                };
                Some(ImportInfo {
                    process: process.id,
                    import: ImportId::from_u64(key),
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
