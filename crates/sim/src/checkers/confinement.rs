//! Confinement: bytes move only inside exported ranges, only with the right, and are the right
//! bytes; the last byte of a send is never there before the rest; an import is granted only to who
//! may have it [NT §2.1, SHRIMP §2].

use vmmc_nic::ExportKind;
use vmmc_nic::{ImportGrant, Rights};

use super::{Checker, require};
use crate::model::{AtomicRole, ExportKey, ImportKey, Model, OpKey, OpKind, ReadRole, Seen, Wanted, WriteRole};

pub(crate) struct Confinement;

impl Checker for Confinement {
    fn name(&self) -> &'static str {
        "confinement"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Write { len, role, .. } => write(model, *len, role),
            Seen::Read { role, .. } => read(model, role),
            Seen::Atomic { role, .. } => atomic(model, role),
            Seen::Appended { op: Some(op), .. } => may(model, *op, Rights::WRITE),
            Seen::Completed { op, result: Ok(_) } => {
                let op_facts = &model.ops[*op];
                require(op_facts.mistake.is_none(), || format!("{op} has {:?} and was reported done", op_facts.mistake))
            }
            Seen::Imported { import, result: Ok((grant, export)) } => granted(model, *import, grant, *export),
            Seen::Unknown(what) => Err(what.clone()),
            _ => Ok(()),
        }
    }
}

fn write(model: &Model, len: u64, role: &WriteRole) -> Result<(), String> {
    match role {
        WriteRole::Send { op, at, wrong_at, .. } => {
            may(model, *op, Rights::WRITE)?;
            require(wrong_at.is_none(), || {
                format!("byte {wrong_at:?} of what landed as bytes {at}..{} of {op} is wrong", at + len)
            })?;
            let facts = &model.ops[*op];
            let mut landed = facts.landed.clone();
            landed.insert(*at, at + len);
            require(at + len < facts.len || landed.covers(0, facts.len), || {
                format!(
                    "the last byte of {op} ({} bytes) was there with only {} bytes before it",
                    facts.len,
                    facts.landed.len_bytes()
                )
            })
        }
        WriteRole::Fetched { op, wrong_at, .. } => {
            may(model, *op, Rights::READ)?;
            require(wrong_at.is_none(), || format!("byte {wrong_at:?} of what fetch {op} brought is wrong"))
        }
        WriteRole::RedirectCopy { .. } | WriteRole::Record { .. } | WriteRole::Payload { .. } => Ok(()),
        WriteRole::Stray(what) => Err(format!("a stray write: {what}")),
    }
}

fn read(model: &Model, role: &ReadRole) -> Result<(), String> {
    match role {
        ReadRole::Serve { op, .. } => may(model, *op, Rights::READ),
        ReadRole::Stray(what) => Err(format!("a stray read: {what}")),
        ReadRole::Source(_) | ReadRole::Ring(_) | ReadRole::Token(_) | ReadRole::RedirectCopy | ReadRole::Garbage => {
            Ok(())
        }
    }
}

fn atomic(model: &Model, role: &AtomicRole) -> Result<(), String> {
    match role {
        AtomicRole::Op(op) => may(model, *op, Rights::ATOMIC),
        AtomicRole::Counter(op) => may(model, *op, Rights::WRITE),
        AtomicRole::Written { .. } | AtomicRole::Token { .. } => Ok(()),
        AtomicRole::Stray(what) => Err(format!("a stray atomic: {what}")),
    }
}

/// Whether the operation was allowed to have any effect.
fn may(model: &Model, key: OpKey, needed: Rights) -> Result<(), String> {
    let op = &model.ops[key];
    require(op.mistake.is_none(), || format!("{key} has {:?} and had an effect all the same", op.mistake))?;
    let export = op.export.map(|e| &model.exports[e]);
    require(export.is_some_and(|e| e.rights.contains(needed)), || {
        format!("{key} had an effect without the {needed} right on {:?}", op.export)
    })?;
    let len = if matches!(op.kind, OpKind::Atomic(_)) { 8 } else { 0 };
    let inside = |end: u64| export.is_some_and(|e| end + len <= e.len);
    require(op.pieces().iter().all(|(_, range)| inside(range.end)), || {
        format!("{key} had an effect outside {:?}", op.export)
    })
}

fn granted(model: &Model, key: ImportKey, grant: &ImportGrant, export: Option<ExportKey>) -> Result<(), String> {
    let import = &model.imports[key];
    let importer = model.procs[import.importer].node;
    require(importer < model.members, || format!("{key} was granted to a stranger"))?;
    let Some(export_key) = export else {
        return Err(format!("{key} was granted export {}, which node {} never had", grant.export, import.node));
    };
    let export = &model.exports[export_key];
    let uid = model.procs[import.importer].uid;
    let admitted = export.users.as_ref().is_none_or(|users| users.contains(&uid));
    require(admitted, || {
        format!("{key} was granted {export_key} to user {uid}, who is not on its list {:?}", export.users)
    })?;
    require(grant.rights == import.rights && export.rights.contains(grant.rights), || {
        format!("{key} asked for {}, got {}, of an export that offers {}", import.rights, grant.rights, export.rights)
    })?;
    let meant = match &import.wanted {
        Wanted::Name(name) => export.name.as_ref() == Some(name),
        Wanted::Id(id) => export.id == *id,
    };
    require(meant && model.procs[export.owner].node == import.node, || {
        format!("{key} asked node {} for {:?} and got {export_key} {:?}", import.node, import.wanted, export.name)
    })?;
    let kind = match (&export.ring, &export.tokens[..]) {
        (Some(_), _) => ExportKind::Ring,
        (None, []) => ExportKind::Memory,
        (None, tokens) => ExportKind::Tokens { entries: tokens.len() as u32 },
    };
    let told = (grant.len, grant.notify, grant.redirectable, grant.kind);
    let same = told == (export.len, export.notify, export.redirectable, kind);
    require(same, || format!("{key} was told of another length or other flags than {export_key} has: {grant:?}"))?;
    require(export.lived_within(import.asked_at_ns, model.now_ns), || {
        format!("{key} was granted {export_key}, which was gone before it was asked for")
    })
}
