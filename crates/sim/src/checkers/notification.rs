//! One notification per request: as many as senders asked for and the export allows, each after its
//! data, each with its place, last word, sender and the word of that; none else [NT §2, N05].

use super::{Checker, require};
use crate::model::{ExportKey, Model, OpKey, Seen, Told, WriteRole};
use crate::pattern;
use crate::rings;
use vmmc_nic::Sender;

/// Remembers which sends became whole during the call under way.
#[derive(Default)]
pub(crate) struct Notification {
    due: Vec<OpKey>,
}

impl Checker for Notification {
    fn name(&self) -> &'static str {
        "notification"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Write { len, role: WriteRole::Send { op, at, .. }, .. } => {
                if at + len == model.ops[*op].len && is_due(model, *op) {
                    self.due.push(*op);
                }
                Ok(())
            }
            Seen::Appended { op: Some(op), .. } => {
                if is_due(model, *op) {
                    self.due.push(*op);
                }
                Ok(())
            }
            Seen::Completed { op, result: Ok(_) } if model.ops[*op].len == 0 && is_due(model, *op) => {
                require(model.ops[*op].notified == 1, || {
                    format!("empty send {op} was reported done without its notification")
                })
            }
            Seen::Notified { export, op, told } => notified(model, *export, *op, told),
            Seen::Quiescent => self.due.drain(..).try_for_each(|op| {
                let live = model.ops[op].export.is_some_and(|e| model.exports[e].is_live());
                require(model.ops[op].notified == 1 || !live, || {
                    format!("{op} is in memory and its notification is missing")
                })
            }),
            _ => Ok(()),
        }
    }
}

/// Whether the send asks for a notification and gets it.
fn is_due(model: &Model, op: OpKey) -> bool {
    let op = &model.ops[op];
    op.asks_notification() && op.export.is_some_and(|e| model.exports[e].notify && model.exports[e].is_live())
}

fn notified(model: &Model, export: ExportKey, op: Option<OpKey>, told: &Told) -> Result<(), String> {
    let Some(key) = op else {
        return Err(format!(
            "a notification of {} bytes at {} of {export} that belongs to no send",
            told.len, told.offset
        ));
    };
    let op = &model.ops[key];
    require(op.asks_notification(), || format!("a notification of {key}, whose sender asked for none"))?;
    require(model.exports[export].notify, || format!("a notification of {key} on {export}, which allows none"))?;
    require(op.notified == 0, || format!("a second notification of {key}"))?;
    require(op.is_landed(), || format!("the notification of {key} came before its data"))?;
    let mut word = [0; 8];
    let (last, _) = *op.pieces().last().expect("there is a piece");
    let tail = (op.len - last).min(8);
    pattern::fill(u64::from(key.0), op.len - tail, &mut word[..tail as usize]);
    let expected = u64::from_le_bytes(word);
    require(told.last_word == expected, || {
        format!("the notification of {key} has last word {:#x}, not {expected:#x}", told.last_word)
    })?;
    let expected = if op.is_append() { rings::word_of(key) } else { pattern::word_of(u64::from(key.0)) };
    require(told.word == expected, || {
        format!("the notification of {key} carries the word {:#x}, not {expected:#x}", told.word)
    })?;
    let (sender, receiver) = (&model.procs[op.sender], &model.procs[model.exports[export].owner]);
    let expected = (sender.pid, op.import_id, sender.node == receiver.node);
    let Sender { process, import, .. } = told.from;
    require((process, import, told.from.is_local()) == expected, || {
        format!("the notification of {key} comes from {:?}, not from {expected:?}", told.from)
    })
}
