//! Honest errors: an operation or import ends in an error only for a reason that exists. Loss,
//! reordering and damage alone are no reason: they are what the protocol is there to hide.

use vmmc_nic::{ImportError, OpError};

use super::{Checker, require};
use crate::model::{Export, ExportEnd, Import, ImportKey, ImportState, Model, OpKey, Seen, Wanted};

pub(crate) struct HonestErrors;

impl Checker for HonestErrors {
    fn name(&self) -> &'static str {
        "honest-errors"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Completed { op, result: Err(why) } | Seen::SendFailed { op, why } => {
                let honest = mistaken(model, *op, why) || broken(model, model.ops[*op].import, why);
                require(honest, || format!("{op} {:?} failed without a reason: {why:?}", model.ops[*op].kind))
            }
            Seen::ImportBroken { import, why } => {
                let held = matches!(model.imports[*import].state, ImportState::Granted);
                require(held, || format!("{import} was broken in state {:?}: {why:?}", model.imports[*import].state))?;
                require(broken(model, Some(*import), why), || format!("{import} was broken without a reason: {why:?}"))
            }
            Seen::Imported { import, result: Err(why) } => require(refused(model, *import, why), || {
                let facts = &model.imports[*import];
                format!("{import} ({:?} at node {}) was refused without a reason: {why:?}", facts.wanted, facts.node)
            }),
            Seen::Pong { ping, result: Err(why) } => {
                let ping_facts = &model.pings[*ping];
                let nodes = [ping_facts.asker_node, ping_facts.node];
                let disturbed = model.was_disturbed(&nodes, ping_facts.asked_at_ns);
                let late = model.now_ns >= ping_facts.deadline_ns;
                let stranger = ping_facts.asker_node >= model.members;
                require(disturbed || late || stranger, || format!("{ping} failed without a reason: {why:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// The operation was wrong on purpose and the error says so.
fn mistaken(model: &Model, key: OpKey, why: &OpError) -> bool {
    let op = &model.ops[key];
    match op.mistake {
        Some(mistake) => mistake.explains(why),
        None if op.is_append() && matches!(why, OpError::RingFull { .. }) => model.may_be_full(key),
        None if matches!(why, OpError::TokenRefused { .. }) => model.may_be_refused(key),
        None => matches!(why, OpError::TooFragmented { .. }) && op.export.is_some_and(|e| model.exports[e].fragmented),
    }
}

/// The import has ended, or its path was disturbed.
fn broken(model: &Model, import: Option<ImportKey>, why: &OpError) -> bool {
    let Some(import) = import.map(|i| &model.imports[i]) else { return false };
    let ended = import.export.and_then(|e| model.exports[e].ended).map(|(_, how)| how);
    let nodes = ends(model, import);
    let local = nodes[0] == nodes[1];
    let dropped = import.state == ImportState::Dropped;
    match why {
        // A refused chunk only knows that its grant is gone; the importer may have given it back
        // itself.
        OpError::Revoked => dropped || matches!(ended, Some(ExportEnd::Withdrawn | ExportEnd::OwnerDied)),
        OpError::OwnerDied => ended == Some(ExportEnd::OwnerDied),
        OpError::NodeRestarted => {
            import.export.is_some_and(|e| model.exports[e].life + 1 < model.nodes[import.node].incarnations.len())
        }
        // Somebody stopped the node in good order.
        OpError::NodeClosed => ended == Some(ExportEnd::NodeCrashed) || model.was_disturbed(&nodes, import.asked_at_ns),
        OpError::NodeUnreachable { .. } => !local && model.was_disturbed(&nodes, import.asked_at_ns),
        OpError::StaleImport | OpError::Cancelled => dropped || ended.is_some(),
        _ => false,
    }
}

fn refused(model: &Model, key: ImportKey, why: &ImportError) -> bool {
    let import = &model.imports[key];
    let nodes = ends(model, import);
    let disturbed = nodes[0] != nodes[1] && model.was_disturbed(&nodes, import.asked_at_ns);
    let late = model.now_ns >= import.deadline_ns;
    let uid = model.procs[import.importer].uid;
    let asked_for = |e: &Export| {
        model.procs[e.owner].node == import.node
            && match &import.wanted {
                Wanted::Name(name) => e.name.as_ref() == Some(name),
                Wanted::Id(id) => e.id == *id,
            }
            && e.lived_within(import.asked_at_ns, model.now_ns)
    };
    let mut candidates = model.exports.iter().map(|(_, e)| e).filter(|e| asked_for(e));
    match why {
        ImportError::NoSuchExport | ImportError::StaleExport { .. } => {
            !import.wait && !candidates.any(|e| e.lived_through(import.asked_at_ns, model.now_ns))
                || matches!(import.wanted, Wanted::Id(_))
                    && !candidates.any(|e| e.lived_through(import.asked_at_ns, model.now_ns))
        }
        ImportError::NotPermitted { .. } => candidates.any(|e| e.users.as_ref().is_some_and(|u| !u.contains(&uid))),
        ImportError::NoRight { .. } => candidates.any(|e| !e.rights.contains(import.rights)),
        ImportError::TimedOut { .. } => late,
        ImportError::NodeUnreachable { .. } | ImportError::NoSession { .. } => {
            disturbed || nodes[0] >= model.members || late && nodes[0] != nodes[1]
        }
        ImportError::Rejected(_) => nodes[0] >= model.members,
        ImportError::UnknownNode => false,
        ImportError::Cancelled => import.state == ImportState::Dropped,
        ImportError::BadRequest => import.rights.is_empty(),
        _ => false,
    }
}

/// The importing and the exporting node.
fn ends(model: &Model, import: &Import) -> [usize; 2] {
    let importer = &model.procs[import.importer];
    [importer.node, import.node]
}
