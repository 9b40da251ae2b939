//! What engines report, matched with what was asked of them.
//!
//! Invariant: an event that fits nothing that was asked is an observation too ([`Seen::Unknown`]),
//! never ignored.

use vmmc_nic::{Cookie, Event, ImportError, ImportGrant, ImportId, OpError, ProcessId};

use crate::cluster::{Cluster, node_name};
use crate::model::{ExportKey, ImportKey, ImportState, Key, Model, OpKey, PingKey, ProcKey, RedirectKey, Seen, Told};
use crate::rings;

/// Which table a cookie points into.
const KIND_SHIFT: u32 = 40;

/// The cookie of an operation.
pub(crate) fn op_cookie(key: OpKey) -> Cookie {
    Cookie(u64::from(key.0))
}

/// The cookie of an import.
pub(crate) fn import_cookie(key: ImportKey) -> Cookie {
    Cookie(1 << KIND_SHIFT | u64::from(key.0))
}

/// The cookie of a ping.
pub(crate) fn ping_cookie(key: PingKey) -> Cookie {
    Cookie(2 << KIND_SHIFT | u64::from(key.0))
}

/// The cookie of a redirection.
pub(crate) fn redirect_cookie(key: RedirectKey) -> Cookie {
    Cookie(3 << KIND_SHIFT | u64::from(key.0))
}

/// The index in a cookie of that kind.
fn index<K: Key>(cookie: Cookie, kind: u64) -> Option<K> {
    (cookie.0 >> KIND_SHIFT == kind).then(|| K::from_index((cookie.0 & 0xffff_ffff) as usize))
}

impl Cluster {
    pub(crate) fn on_event(&mut self, node: usize, event: Event) {
        let seen = self.attribute(node, &event);
        if let Some(seen) = seen {
            self.judge.see(&mut self.model, &seen);
            self.follow_up(node, &seen);
        } else {
            self.judge.note(&self.model, format_args!("node {node}: {event:?}"));
        }
    }

    /// What the event means; `None` for one that is only told to the driver.
    fn attribute(&self, node: usize, event: &Event) -> Option<Seen> {
        let model = &self.model;
        let found = match event {
            Event::Completion { process, cookie, result } => completion(model, node, *process, *cookie, *result),
            // What becomes of posted sends was told with the end of their import, or nobody wants
            // to know.
            Event::SendFailed { process, import, .. } if is_over(model, node, *process, *import) => return None,
            Event::SendFailed { process, import, why } => send_failed(model, node, *process, *import, *why),
            Event::Notification { process, export, offset, len, last_word, word, from } => model
                .export_of(node, *export)
                .filter(|&e| owner(model, node, *process) == Some(model.exports[e].owner))
                .map(|export| {
                    let op = match model.exports[export].ring {
                        Some(_) => rings::op_of_word(model, export, *word),
                        None => model.notified_op(export, *offset, *len),
                    };
                    let told = Told { offset: *offset, len: *len, last_word: *last_word, word: *word, from: *from };
                    Seen::Notified { export, op, told }
                }),
            Event::ImportDone { process, cookie, result } => self.import_done(node, *process, *cookie, result),
            // Leaving breaks a process's imports of its own exports; nobody is there to be told.
            Event::ImportBroken { process, .. } if owner(model, node, *process).is_none() => return None,
            Event::ImportBroken { process, import, why } => owner(model, node, *process)
                .and_then(|p| model.import_of(p, *import))
                .map(|import| Seen::ImportBroken { import, why: *why }),
            Event::RedirectDone { process, export, cookie, report } => index(*cookie, 3)
                .filter(|&r: &RedirectKey| {
                    let of = model.redirects.try_at(r).map(|facts| &model.exports[facts.export]);
                    of.is_some_and(|of| of.id == *export && owner(model, node, *process) == Some(of.owner))
                })
                .map(|redirect| Seen::Redirected { redirect, report: report.clone(), done: true }),
            Event::Pong { cookie, result, .. } => index(*cookie, 2)
                .filter(|&p: &PingKey| {
                    model.pings.try_at(p).is_some_and(|facts| facts.asker_node == node && !facts.answered)
                })
                .map(|ping| Seen::Pong { ping, result: result.map(|rtt| rtt.as_nanos() as u64) }),
            Event::PeerUp { .. } | Event::PeerDown { .. } => return None,
        };
        Some(
            found
                .unwrap_or_else(|| Seen::Unknown(format!("node {node} told of something nobody asked for: {event:?}"))),
        )
    }

    fn import_done(
        &self,
        node: usize,
        process: ProcessId,
        cookie: Cookie,
        result: &Result<ImportGrant, ImportError>,
    ) -> Option<Seen> {
        let import: ImportKey = index(cookie, 1)?;
        let facts = self.model.imports.try_at(import)?;
        if owner(&self.model, node, process) != Some(facts.importer) || facts.answered {
            return None;
        }
        let result = match result {
            Ok(grant) => Ok((grant.clone(), self.granted_export(node, facts.node, grant))),
            Err(why) => Err(*why),
        };
        Some(Seen::Imported { import, result })
    }

    /// Which export a grant means. Ids come again in a later life of a node, so the life counts
    /// that the importer's session is with.
    fn granted_export(&self, importer: usize, exporter: usize, grant: &ImportGrant) -> Option<ExportKey> {
        let candidates = self.model.exports_named(exporter, grant.export);
        if candidates.len() < 2 {
            return candidates.first().copied();
        }
        let name = node_name(exporter);
        let mut peers = self.hosts[importer].engine.as_ref()?.peers();
        let life = match peers.find(|p| p.name.as_ref() == Some(&name)) {
            Some(peer) => self.model.nodes[exporter].incarnations.iter().position(|&i| i == peer.incarnation)?,
            None => self.model.nodes[exporter].incarnations.len() - 1,
        };
        candidates.iter().copied().find(|&e| self.model.exports[e].life == life)
    }

    /// What a process does on hearing it: memory of ended operations is used again at once.
    fn follow_up(&mut self, node: usize, seen: &Seen) {
        match seen {
            Seen::Completed { op, result } => {
                if let Err(OpError::RingFull { .. }) = result {
                    self.model.note_refusal(*op);
                }
                self.free_memory_of(*op);
            }
            Seen::SendFailed { op, .. } => self.free_memory_of(*op),
            Seen::Imported { import, result: Ok((grant, _)) } => {
                let facts = &self.model.imports[*import];
                // It was given up before the answer came.
                if facts.state == ImportState::Dropped {
                    let pid = self.model.procs[facts.importer].pid;
                    let id = grant.import;
                    // Broken in the same breath is fine too: then it is released already or not, as
                    // the engine likes.
                    let _ = self.call_raw(node, |engine, now, _| engine.unimport(now, pid, id));
                }
            }
            _ => {}
        }
    }
}

impl Cluster {
    /// Memory of ended operations is used again.
    fn free_memory_of(&mut self, op: OpKey) {
        if let Some(region) = self.model.ops[op].memory {
            self.model.regions[region].alive = false;
            self.memory.free(region);
        }
    }
}

/// The process, if it lives on that node now.
fn owner(model: &Model, node: usize, process: ProcessId) -> Option<ProcKey> {
    model.proc_of(node, process).filter(|&p| model.procs[p].alive)
}

fn completion(
    model: &Model,
    node: usize,
    process: ProcessId,
    cookie: Cookie,
    result: Result<u64, OpError>,
) -> Option<Seen> {
    let op: OpKey = index(cookie, 0)?;
    let facts = model.ops.try_at(op)?;
    let asked = facts.completion && owner(model, node, process) == Some(facts.sender);
    asked.then_some(Seen::Completed { op, result })
}

fn is_over(model: &Model, node: usize, process: ProcessId, import: ImportId) -> bool {
    let import = owner(model, node, process).and_then(|p| model.import_of(p, import));
    import.is_some_and(|i| matches!(model.imports[i].state, ImportState::Broken(_) | ImportState::Dropped))
}

/// A posted send has no cookie: the one that could have failed so, mistaken ones first.
fn send_failed(model: &Model, node: usize, process: ProcessId, import: ImportId, why: OpError) -> Option<Seen> {
    let proc = owner(model, node, process)?;
    let through = |o: &OpKey| {
        let op = &model.ops[*o];
        op.import_id == import && !op.completion && op.is_send()
    };
    let open = model.open_ops_of(proc).filter(through);
    let op = open.min_by_key(|&o| (!model.ops[o].mistake.is_some_and(|m| m.explains(&why)), o))?;
    Some(Seen::SendFailed { op, why })
}
