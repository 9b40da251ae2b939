//! Tokens: a payload goes into the buffer of its token, whole and as it was sent; a token lets one
//! in, while it is armed, and none after it was cancelled [GMS §2].

use super::{Checker, require};
use crate::model::{AtomicRole, ExportKey, Model, OpKind, Seen, WriteRole};
use crate::tokens::{TokenChange, op_of_tag};

pub(crate) struct Tokens;

impl Checker for Tokens {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Atomic { old, role: AtomicRole::Token { export, index, change }, .. } if change.happened(*old) => {
                changes(model, *export, *index, *change)
            }
            Seen::Write { len, role: WriteRole::Payload { export, index, at, wrong_at }, .. } => {
                let token = &model.exports[*export].tokens[*index];
                let Some(op) = token.filler else {
                    return Err(format!(
                        "{len} bytes went into buffer {index} of {export}, which no payload has taken"
                    ));
                };
                require(wrong_at.is_none(), || format!("byte {wrong_at:?} of the payload of {op} is wrong"))?;
                require(*at == token.landed && at + len <= model.ops[op].len, || {
                    format!("bytes {at}..{} of the payload of {op} came behind {} bytes", at + len, token.landed)
                })
            }
            Seen::Completed { op, result: Ok(value) } if model.ops[*op].is_payload() => {
                let facts = &model.ops[*op];
                // The owner may have cancelled it when all was there but the last word.
                let whole = facts.landed.covers(0, facts.len);
                require(whole && *value == facts.len, || {
                    format!("payload {op} of {} bytes was reported done with {value}", facts.len)
                })
            }
            _ => Ok(()),
        }
    }
}

fn changes(model: &Model, export: ExportKey, index: usize, change: TokenChange) -> Result<(), String> {
    let token = &model.exports[export].tokens[index];
    match change {
        TokenChange::Take { key } => require(token.armed && token.key == key, || {
            format!("token {index} of {export} was taken with {key:#x}, and it is {token:?}")
        }),
        TokenChange::Tag { tag } => {
            let op = op_of_tag(tag).and_then(|op| Some((op, model.ops.try_at(op)?)));
            let Some((key, op)) = op else { return Err(format!("token {index} of {export} was tagged {tag:#x}")) };
            let fits = op.kind == OpKind::Payload { index: index as u32, key: token.key } && op.export == Some(export);
            require(fits && token.taken && token.filler.is_none(), || {
                format!("{key} ({:?}) has tagged token {index} of {export}, which is {token:?}", op.kind)
            })?;
            require(op.mistake.is_none(), || format!("{key} has {:?} and took a token", op.mistake))
        }
        TokenChange::Total => Ok(()),
        TokenChange::Done { key } => {
            let whole = token.filler.is_some_and(|op| token.landed == model.ops[op].len);
            require(whole && token.key == key && !token.cancelled, || {
                format!("token {index} of {export} was done in the middle: {token:?}")
            })
        }
    }
}
