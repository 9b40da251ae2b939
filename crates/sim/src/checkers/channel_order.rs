//! Order per channel: sends of one process to one export appear in order; a counter is raised after
//! its data; fetches, atomics and flushes see the earlier sends of the same process to the same
//! node [NT §2]. What goes through an import with an order of its own follows what went through it
//! before, and is followed by all.

use super::{Checker, require};
use crate::model::{AtomicRole, Model, OpKey, OpKind, ReadRole, Seen, WriteRole};

pub(crate) struct ChannelOrder;

impl Checker for ChannelOrder {
    fn name(&self) -> &'static str {
        "channel-order"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Write { len, role: WriteRole::Send { op, at, .. }, .. } => send_lands(model, *op, at + len),
            Seen::Atomic { role: AtomicRole::Counter(op), .. } => require(model.ops[*op].is_landed(), || {
                format!("the counter of {op} was raised before its data was there")
            }),
            Seen::Atomic { role: AtomicRole::Op(op), .. } => sees_earlier(model, *op, "atomic"),
            Seen::Read { role: ReadRole::Serve { op, .. }, .. } => sees_earlier(model, *op, "fetch"),
            Seen::Completed { op, result: Ok(_) } if model.ops[*op].kind == OpKind::Flush => {
                sees_earlier(model, *op, "flush")?;
                let missing = earlier_append(model, *op);
                require(missing.is_none(), || format!("flush {op} ended before the earlier {missing:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// Bytes up to `end` of a send land: no later send of the channel was there before, and the last
/// byte comes after all earlier sends.
fn send_lands(model: &Model, key: OpKey, end: u64) -> Result<(), String> {
    let op = &model.ops[key];
    let Some(export) = op.export else { return Ok(()) };
    let channels = [Some((op.sender, export, None)), model.channel(key)];
    for latest in channels.iter().flatten().filter_map(|channel| model.latest_applied.get(channel)) {
        require(*latest < key || op.is_applied(), || {
            format!("bytes of {key} from {} to {export} landed after the later send {latest} was there", op.sender)
        })?;
    }
    if end < op.len {
        return Ok(());
    }
    let earlier = |o: &&OpKey| model.follows(key, **o) && model.ops[**o].export == op.export && !model.is_excused(**o);
    let overtaken = model.unapplied_of(key).iter().find(earlier);
    require(overtaken.is_none(), || {
        format!(
            "send {key} from {} to {export} was complete before the earlier send {}",
            op.sender,
            overtaken.expect("just tested")
        )
    })
}

fn sees_earlier(model: &Model, key: OpKey, what: &str) -> Result<(), String> {
    model.misses_earlier(key).map_or(Ok(()), |missing| {
        Err(format!(
            "{what} {key} of {} happened before its earlier send {missing} was in memory",
            model.ops[key].sender
        ))
    })
}

/// An append of the same process to the same node that was posted before, is not in its ring and
/// has not been refused, or a payload that is still coming.
fn earlier_append(model: &Model, key: OpKey) -> Option<OpKey> {
    let (flush, node) = (&model.ops[key], model.target_node(key));
    model.open_ops_of(flush.sender).take_while(|&o| o < key).find(|&o| {
        let op = &model.ops[o];
        (op.is_append() && !op.appended || model.is_coming(o)) && model.target_node(o) == node && !model.is_excused(o)
    })
}
