//! Exactly once: no effect happens twice, and none that was reported done is missing [NT §2, SHRIMP
//! §2].
//!
//! Effects are the bytes of a send, the raising of a counter, a remote atomic, the bytes a fetch
//! brings, and the completion itself.

use super::{Checker, require};
use crate::model::{AtomicRole, Model, OpKey, OpKind, Outcome, Seen, WriteRole};

pub(crate) struct ExactlyOnce;

impl Checker for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly-once"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Write { len, role: WriteRole::Send { op, at, .. } | WriteRole::Fetched { op, at, .. }, .. } => {
                let twice = model.ops[*op].landed.touches(*at, at + len);
                require(!twice, || format!("bytes {at}..{} of {op} were written a second time", at + len))
            }
            Seen::Appended { op: Some(op), .. } => {
                require(!model.ops[*op].appended, || format!("the record of {op} came a second time"))
            }
            Seen::Atomic { role: AtomicRole::Op(op), .. } => {
                require(model.ops[*op].found.is_none(), || format!("atomic {op} was done a second time"))
            }
            Seen::Atomic { role: AtomicRole::Counter(op), .. } => {
                require(!model.ops[*op].counted, || format!("the counter of {op} was raised a second time"))
            }
            Seen::Completed { op, result } => {
                let outcome = &model.ops[*op].outcome;
                require(*outcome == Outcome::Open, || format!("{op} completed a second time, after {outcome:?}"))?;
                result.map_or(Ok(()), |value| completed(model, *op, value))
            }
            Seen::End => nothing_posted_is_lost(model),
            _ => Ok(()),
        }
    }
}

/// What was reported done has happened.
fn completed(model: &Model, key: OpKey, value: u64) -> Result<(), String> {
    let op = &model.ops[key];
    match &op.kind {
        OpKind::Send { .. } => {
            require(op.is_applied(), || {
                format!(
                    "send {key} was reported done with {} of {} bytes in memory, counter raised: {}",
                    op.landed.len_bytes(),
                    op.len,
                    op.counted
                )
            })?;
            require(value == op.len, || format!("send {key} of {} bytes was reported done with {value}", op.len))
        }
        OpKind::Append { .. } => require(op.appended && value == op.len, || {
            format!("append {key} of {} bytes was reported done with {value}; in the ring: {}", op.len, op.appended)
        }),
        // The checker of tokens judges it.
        OpKind::Payload { .. } => Ok(()),
        OpKind::Fetch { .. } => {
            require(op.is_landed(), || {
                format!("fetch {key} was reported done with {} of {} bytes fetched", op.landed.len_bytes(), op.len)
            })?;
            require(value == op.len, || format!("fetch {key} of {} bytes was reported done with {value}", op.len))
        }
        OpKind::Atomic(_) => require(op.found == Some(value), || {
            format!("atomic {key} was reported to have found {value}, it found {:?}", op.found)
        }),
        OpKind::Flush => Ok(()),
    }
}

/// Posted sends are not reported: at the end, those that nobody was told to be broken must be in
/// memory.
fn nothing_posted_is_lost(model: &Model) -> Result<(), String> {
    for &key in model.unapplied.values().flatten() {
        let op = &model.ops[key];
        require(model.is_excused(key), || {
            format!(
                "posted send {key} was lost: {} of {} bytes are in memory and nobody was told",
                op.landed.len_bytes(),
                op.len
            )
        })?;
    }
    Ok(())
}
