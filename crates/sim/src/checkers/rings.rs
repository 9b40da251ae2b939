//! Rings: every record is whole, from the sender that it names, in the order of its import and
//! never ahead of one that found no room; none is written over what is not read, and no sender
//! takes the half that is the others' [GMS §2].

use vmmc_nic::RING_HEAD_BYTES;

use super::{Checker, require};
use crate::model::{ExportKey, Model, OpKey, Seen, WriteRole};
use crate::rings::record_bytes;

pub(crate) struct Rings;

impl Checker for Rings {
    fn name(&self) -> &'static str {
        "rings"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Write { len, role: WriteRole::Record { export, at }, .. } => is_free(model, *export, *at, *len),
            Seen::Appended { export, op: None, from, wrong, .. } => {
                Err(format!("a record in {export} that belongs to no append, from {from:?}: {wrong:?}"))
            }
            Seen::Appended { wrong: Some(wrong), op: Some(op), .. } => {
                Err(format!("the record of {op} is not what was appended: {wrong}"))
            }
            Seen::Appended { export, op: Some(op), bytes, from: Some(from), .. } => {
                let expected = record_bytes(model.ops[*op].len);
                require(*bytes == expected, || format!("the record of {op} takes {bytes} bytes and not {expected}"))?;
                let sender = &model.procs[model.ops[*op].sender];
                let local = sender.node == model.procs[model.exports[*export].owner].node;
                let expected = (sender.pid, model.ops[*op].import_id, local);
                require((from.process, from.import, from.is_local()) == expected, || {
                    format!("the record of {op} says it is from {from:?}, not from {expected:?}")
                })?;
                in_order(model, *op)?;
                half_is_left(model, *export, *op)
            }
            _ => Ok(()),
        }
    }
}

/// Nothing unread lies where a record is written.
fn is_free(model: &Model, export: ExportKey, at: u64, len: u64) -> Result<(), String> {
    let size = model.exports[export].len - RING_HEAD_BYTES;
    let Some(ring) = &model.exports[export].ring else { return Ok(()) };
    let free = size - (ring.written - ring.read);
    let ahead = |at: u64| (at + size - ring.written % size) % size;
    require(at >= RING_HEAD_BYTES && at + len <= size + RING_HEAD_BYTES, || {
        format!("{len} bytes at {at} of the ring {export}, which are not for records")
    })?;
    let first = ahead(at - RING_HEAD_BYTES);
    require(first + len <= free, || format!("{len} bytes at {at} of {export} went over records that nobody has read"))
}

fn in_order(model: &Model, key: OpKey) -> Result<(), String> {
    let later = model.ops[key].import.and_then(|import| {
        model.imports[import].appends.iter().rev().copied().take_while(|o| *o > key).find(|o| model.ops[*o].appended)
    });
    require(later.is_none(), || format!("the record of {key} came after that of the later append {later:?}"))?;
    let overtaken = model.overtaken(key);
    require(overtaken.is_none(), || format!("the record of {key} overtook the earlier append {overtaken:?}"))
}

/// A sender that appends all it can leaves half of the ring to the others.
fn half_is_left(model: &Model, export: ExportKey, key: OpKey) -> Result<(), String> {
    let Some(ring) = &model.exports[export].ring else { return Ok(()) };
    let size = model.exports[export].len - RING_HEAD_BYTES;
    let (unread, sender) = (ring.written - ring.read, model.ops[key].sender);
    let of_sender = ring.unread.iter().filter(|(op, _)| model.ops[*op].sender == sender);
    let held: u64 = of_sender.map(|(_, bytes)| bytes).sum();
    let needed = record_bytes(model.ops[key].len);
    require(held + 2 * needed + unread <= size, || {
        format!("{sender} holds {held} bytes of {export}, of {size} with {unread} unread, and got {needed} more")
    })
}
