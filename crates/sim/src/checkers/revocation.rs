//! Revocation: once `unexport` has returned, or the owner is gone, nothing of the export is
//! written, read, changed or notified any more; the same for a redirection that was cancelled [NT
//! §2].

use super::{Checker, require};
use crate::model::{AtomicRole, ExportKey, Model, OpKey, Outcome, ReadRole, RedirectKey, Seen, WriteRole};

pub(crate) struct Revocation;

impl Checker for Revocation {
    fn name(&self) -> &'static str {
        "revocation"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Write { role, .. } => match role {
                WriteRole::Send { op, redirect, .. } => {
                    target_is_live(model, *op, "written")?;
                    redirect.map_or(Ok(()), |r| redirect_is_live(model, r))
                }
                WriteRole::Fetched { op, .. } => {
                    let outcome = &model.ops[*op].outcome;
                    require(*outcome == Outcome::Open, || {
                        format!("fetch {op} brought bytes after it ended: {outcome:?}")
                    })
                }
                WriteRole::RedirectCopy { redirect, .. } => redirect_is_live(model, *redirect),
                WriteRole::Record { export, .. } | WriteRole::Payload { export, .. } => {
                    export_is_live(model, *export, "written")
                }
                WriteRole::Stray(_) => Ok(()),
            },
            Seen::Atomic { role: AtomicRole::Op(op) | AtomicRole::Counter(op), .. } => {
                target_is_live(model, *op, "changed")
            }
            Seen::Read {
                role: ReadRole::Serve { export, .. } | ReadRole::Ring(export) | ReadRole::Token(export),
                ..
            } => export_is_live(model, *export, "read"),
            Seen::Atomic { role: AtomicRole::Written { export, .. } | AtomicRole::Token { export, .. }, .. } => {
                export_is_live(model, *export, "changed")
            }
            Seen::Notified { export, .. } => export_is_live(model, *export, "notified of"),
            _ => Ok(()),
        }
    }
}

fn target_is_live(model: &Model, op: OpKey, what: &str) -> Result<(), String> {
    model.ops[op]
        .export
        .map_or(Ok(()), |export| export_is_live(model, export, what).map_err(|message| format!("{message}, by {op}")))
}

fn export_is_live(model: &Model, key: ExportKey, what: &str) -> Result<(), String> {
    let ended = model.exports[key].ended;
    require(ended.is_none(), || {
        let (at_ns, how) = ended.expect("just tested");
        format!("{key} was {what} {} us after its end ({how:?})", (model.now_ns - at_ns) / 1000)
    })
}

fn redirect_is_live(model: &Model, key: RedirectKey) -> Result<(), String> {
    require(!model.redirects[key].ended, || format!("bytes went through redirection {key} after its end"))
}
