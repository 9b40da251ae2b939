//! Append rings: what their owners do with them, and what a node put into one.
//!
//! Invariant: the word of a record names the append it belongs to, so that a record is known by
//! itself; where it lies, whose it says it is and what it holds are then compared.

use vmmc_nic::limits::APPEND_BYTES_MAX;
use vmmc_nic::{Command, OpError, RECORD_HEAD_BYTES, RING_HEAD_BYTES, RING_READ_AT, RecordHead, Source};

use crate::cluster::Cluster;
use crate::events::op_cookie;
use crate::memory::Memory;
use crate::model::{
    ExportKey, ImportKey, Key, Mistake, Model, OpKey, OpKind, Outcome, ProcKey, RegionKey, RegionUse, Seen,
};
use crate::pattern;

/// Marks the word of a record, which carries the number of its append.
const APPEND_MARK: u64 = 0xad << 56;

/// The word of an append.
pub(crate) fn word_of(key: OpKey) -> u64 {
    APPEND_MARK | u64::from(key.0)
}

/// The append to this ring that a word belongs to.
pub(crate) fn op_of_word(model: &Model, export: ExportKey, word: u64) -> Option<OpKey> {
    let key: OpKey = (word >> 32 == APPEND_MARK >> 32).then(|| OpKey::from_index((word & 0xffff_ffff) as usize))?;
    model.ops.try_at(key).filter(|op| op.is_append() && op.export == Some(export))?;
    Some(key)
}

/// Bytes of a record with so many bytes of data.
pub(crate) fn record_bytes(len: u64) -> u64 {
    RECORD_HEAD_BYTES + len.next_multiple_of(8)
}

/// What the node put into a ring, of which it says now that `count` bytes were written.
pub(crate) fn appended(model: &Model, memory: &Memory, export: ExportKey, count: u64) -> Seen {
    let Some(ring) = &model.exports[export].ring else { return Seen::Unknown(format!("{export} is no ring")) };
    let bytes = count.wrapping_sub(ring.written);
    let (op, from, wrong) = match head_at(model, memory, export, ring.written) {
        None => (None, None, Some("its head makes no sense".to_owned())),
        Some(head) => {
            let op = op_of_word(model, export, head.word);
            let wrong = op.and_then(|op| wrong_with(model, memory, export, ring.written, op, head));
            (op, Some(head.from), wrong)
        }
    };
    Seen::Appended { export, op, bytes, from, wrong }
}

/// What differs between an append and its record at `at`.
fn wrong_with(
    model: &Model,
    memory: &Memory,
    export: ExportKey,
    at: u64,
    op: OpKey,
    head: RecordHead,
) -> Option<String> {
    let len = model.ops[op].len;
    if u64::from(head.len) != len {
        return Some(format!("it has {} bytes and not {len}", head.len));
    }
    let data = bytes_at(model, memory, export, at + RECORD_HEAD_BYTES, len);
    pattern::mismatch(u64::from(op.0), 0, &data).map(|at| format!("byte {at} is wrong"))
}

fn head_at(model: &Model, memory: &Memory, export: ExportKey, at: u64) -> Option<RecordHead> {
    let bytes = bytes_at(model, memory, export, at, RECORD_HEAD_BYTES);
    RecordHead::from_bytes(&bytes.try_into().ok()?)
}

/// Bytes of a ring from the byte on that was written after `at` others.
fn bytes_at(model: &Model, memory: &Memory, export: ExportKey, at: u64, len: u64) -> Vec<u8> {
    let facts = &model.exports[export];
    let (size, start) = (facts.len - RING_HEAD_BYTES, facts.offset + RING_HEAD_BYTES);
    let all = memory.bytes(facts.region);
    (at..at + len).filter_map(|byte| all.get((start + byte % size) as usize).copied()).collect()
}

impl Cluster {
    pub(crate) fn ring_region(&mut self, proc: ProcKey) -> RegionKey {
        let size = self.rng.pick(&[8 << 10, 8 << 10, 16 << 10]);
        self.new_region(proc, RegionUse::Ring, vec![0; (64 + RING_HEAD_BYTES + size) as usize])
    }

    /// The owner of a ring takes records: all, or some.
    pub(crate) fn do_reading(&mut self, proc: ProcKey) {
        let mut rings = self.model.live_exports(proc);
        rings.retain(|&e| self.model.exports[e].ring.is_some());
        let Some(export) = self.rng.index(rings.len()).map(|i| rings[i]) else { return };
        let there = self.model.exports[export].ring.as_ref().expect("others were sorted out").unread.len() as u64;
        let taken = if self.rng.chance(500) { there } else { self.rng.below(there + 1) };
        self.judge.note(&self.model, format_args!("{proc} reads {taken} of {there} records of {export}"));
        for _ in 0..taken {
            let ring = self.model.exports[export].ring.as_mut().expect("it is one");
            let (op, bytes) = ring.unread.pop_front().expect("no more are taken than there are");
            let at = ring.read;
            ring.read += bytes;
            if ring.read == ring.written {
                ring.drained = ring.read;
            }
            let head = head_at(&self.model, &self.memory, export, at);
            let wrong = match head {
                Some(head) if head.word == word_of(op) => wrong_with(&self.model, &self.memory, export, at, op, head),
                other => Some(format!("{other:?} lies there")),
            };
            if let Some(wrong) = wrong {
                self.fail("rings", format!("the record of {op} changed before {export} was read: {wrong}"));
            }
        }
        let facts = &self.model.exports[export];
        let (region, at) = (facts.region, facts.offset + RING_READ_AT);
        let read = facts.ring.as_ref().expect("it is one").read;
        self.memory.set_word(region, at, read);
    }

    pub(crate) fn do_append(&mut self, proc: ProcKey, import: ImportKey, mistake: Option<Mistake>) {
        let len = match mistake {
            Some(Mistake::RecordTooLong) => self.rng.between(APPEND_BYTES_MAX as u64 + 1, 4_096),
            _ => self.rng.pick(&[0, 8, 24, 100, 500]) + self.rng.below(13),
        };
        let kind = OpKind::Append { notify: self.rng.chance(300), refusals: self.model.imports[import].refusals };
        let mut op = self.op(proc, import, kind.clone(), 0, len);
        op.mistake = mistake;
        let key = self.model.ops.next_key();
        let mut data = vec![0; len as usize];
        pattern::fill(u64::from(key.0), 0, &mut data);
        let OpKind::Append { notify, refusals } = kind else { unreachable!("it was just made") };
        let append = |import, source| Command::Append {
            import,
            source,
            word: word_of(key),
            notify,
            refusals,
            completion: Some(op_cookie(key)),
        };
        if len <= vmmc_nic::INLINE_BYTES_MAX as u64 && self.rng.chance(600) {
            return self.post(op, |_, import, _| append(import, Source::Inline(&data)));
        }
        op.memory = Some(self.new_region(proc, RegionUse::Source(key), data));
        self.post(op, |_, import, region| append(import, Source::Region { region, offset: 0, len }));
    }
}

impl Model {
    /// The process learns that an append found no room: what it appends from now on knows of it.
    pub(crate) fn note_refusal(&mut self, key: OpKey) {
        if let (OpKind::Append { refusals, .. }, Some(import)) = (&self.ops[key].kind, self.ops[key].import) {
            let import = &mut self.imports[import];
            import.refusals += u32::from(import.refusals == *refusals);
        }
    }

    /// Whether an append may have found its ring full: for want of room, or behind one that did.
    pub(crate) fn may_be_full(&self, key: OpKey) -> bool {
        let op = &self.ops[key];
        let size = op.export.map_or(0, |export| self.exports[export].len - RING_HEAD_BYTES);
        2 * (op.crowd + record_bytes(op.len)) > size || self.overtaken(key).is_some()
    }

    /// An earlier append of the same import that is not in the ring, though its sender did not
    /// know so when it posted this one.
    pub(crate) fn overtaken(&self, key: OpKey) -> Option<OpKey> {
        let op = &self.ops[key];
        let earlier = self.imports[op.import?].appends.iter().rev().copied().skip_while(|o| *o >= key);
        let same = earlier.take_while(|o| self.ops[*o].kind.refusals() == op.kind.refusals());
        same.into_iter().find(|o| {
            let earlier = &self.ops[*o];
            let excused = matches!(&earlier.outcome, Outcome::Failed(why) if !matches!(why, OpError::RingFull { .. }));
            earlier.mistake.is_none() && !earlier.appended && !excused && earlier.outcome != Outcome::Gone
        })
    }
}
