//! What the simulated processes do with their imports: sends, fetches, atomics and flushes, right
//! and wrong.
//!
//! Invariant: an operation is entered in the model before the engine receives it, because an engine
//! acts at once when both ends are on its node; and its bytes overlap with no other operation whose
//! fate is open.

use vmmc_nic::{AtomicOp, ByteRange, Command, INLINE_BYTES_MAX, ImportId, RegionId, Rights, Source};

use crate::cluster::Cluster;
use crate::events::op_cookie;
use crate::limits::{OPERATIONS_PER_BURST_PART, PLACE_TRIES, WORDS_BYTES};
use crate::model::{
    Expected, ExportKey, ImportKey, ImportState, Key, Mistake, Op, OpKey, OpKind, Outcome, ProcKey, RegionUse,
};
use crate::pattern;
use crate::spans::Spans;

/// Marks the operand of a remote atomic, which carries the number of its operation.
const ATOMIC_MARK: u64 = 0xa7 << 56;

/// The operation that a remote atomic belongs to.
pub(crate) fn op_of_atomic(change: AtomicOp) -> Option<OpKey> {
    let (AtomicOp::FetchAdd(operand) | AtomicOp::CompareSwap { desired: operand, .. } | AtomicOp::Swap(operand)) =
        change;
    (operand >> 32 == ATOMIC_MARK >> 32).then(|| OpKey::from_index((operand & 0xffff_ffff) as usize))
}

impl Cluster {
    /// A burst of operations, through one import or through all that the process has, by turns.
    pub(crate) fn do_operations(&mut self, proc: ProcKey) {
        let usable = |i: &ImportKey| self.model.imports[*i].state == ImportState::Granted;
        let imports: Vec<ImportKey> = self.model.procs[proc].imports.iter().copied().filter(usable).collect();
        let Some(import) = self.rng.index(imports.len()).map(|i| imports[i]) else { return self.do_import(proc) };
        let by_turns = self.model.step % 3 == 0;
        let burst = (self.setup.operations_max / OPERATIONS_PER_BURST_PART) as u64;
        for turn in 0..self.rng.between(1, burst.max(6)) {
            let facts = &self.model.procs[proc];
            if !facts.alive || facts.outstanding >= self.setup.operations_max {
                return;
            }
            let import = if by_turns { imports[turn as usize % imports.len()] } else { import };
            self.do_operation(proc, import);
        }
    }

    fn do_operation(&mut self, proc: ProcKey, import: ImportKey) {
        if self.rng.chance(40) {
            return self.do_mistake(proc, import);
        }
        let Some(export) = self.model.imports[import].export else { return };
        let rights = self.model.imports[import].granted;
        let ring = self.model.exports[export].ring.is_some();
        let table = !self.model.exports[export].tokens.is_empty();
        match self.rng.below(20) {
            0..19 if ring => self.do_append(proc, import, None),
            0..19 if table => self.do_payload(proc, import, None),
            0..3 if rights.contains(Rights::WRITE) => self.do_gather_send(proc, import, export),
            0..13 if rights.contains(Rights::WRITE) => self.do_send(proc, import, export),
            13..17 if rights.contains(Rights::READ) => self.do_fetch(proc, import, export),
            17..19 if rights.contains(Rights::ATOMIC) => self.do_atomic(proc, import, export),
            19 => {
                let op = self.op(proc, import, OpKind::Flush, 0, 0);
                self.post(op, |key, id, _| Command::Flush { import: id, cookie: op_cookie(key) });
            }
            _ => {}
        }
    }

    fn do_send(&mut self, proc: ProcKey, import: ImportKey, export: ExportKey) {
        let Some((offset, len)) = self.place(export) else { return };
        let mut counter = self.rng.chance(200).then(|| self.word(export, 0)).flatten();
        if len == 0 && self.model.has_empty_counting(export) {
            counter = None;
        }
        let notify = self.rng.chance(300) && !(len == 0 && self.model.has_empty_notifying(export, offset));
        let completion = len == 0 || self.rng.chance(600);
        self.send(proc, import, (offset, len), notify, counter, completion);
    }

    /// One send to many places, which lie in any order and do not overlap.
    fn do_gather_send(&mut self, proc: ProcKey, import: ImportKey, export: ExportKey) {
        let mut ranges: Vec<ByteRange> = Vec::new();
        for _ in 0..self.rng.pick(&[1, 2, 3, 7, 40]) {
            let Some((start, len)) = self.place(export) else { continue };
            let end = start + len.min(2_000);
            if start < end && ranges.iter().all(|range| end <= range.start || range.end <= start) {
                ranges.push(ByteRange { start, end });
            }
        }
        let Some(offset) = ranges.iter().map(|range| range.start).min() else { return };
        let len = ranges.iter().map(|range| range.len()).sum();
        let counter = self.rng.chance(200).then(|| self.word(export, 0)).flatten();
        let (notify, completion) = (self.rng.chance(300), self.rng.chance(600));
        let mut op = self.op(proc, import, OpKind::Send { notify, counter }, offset, len);
        let key = self.model.ops.next_key();
        (op.completion, op.ranges) = (completion, ranges.clone());
        let mut data = vec![0; len as usize];
        pattern::fill(u64::from(key.0), 0, &mut data);
        let (completion, notify) =
            (completion.then(|| op_cookie(key)), notify.then(|| pattern::word_of(u64::from(key.0))));
        let ranges = &ranges;
        let gather = |import, source| Command::GatherSend { import, ranges, source, notify, counter, completion };
        if len <= INLINE_BYTES_MAX as u64 && self.rng.chance(600) {
            return self.post(op, |_, import, _| gather(import, Source::Inline(&data)));
        }
        op.memory = Some(self.new_region(proc, RegionUse::Source(key), data));
        self.post(op, |_, import, region| gather(import, Source::Region { region, offset: 0, len }));
    }

    pub(crate) fn send(
        &mut self,
        proc: ProcKey,
        import: ImportKey,
        (offset, len): (u64, u64),
        notify: bool,
        counter: Option<u64>,
        completion: bool,
    ) {
        let mut op = self.op(proc, import, OpKind::Send { notify, counter }, offset, len);
        op.completion = completion;
        let key = self.model.ops.next_key();
        let mut data = vec![0; len as usize];
        pattern::fill(u64::from(key.0), 0, &mut data);
        let cookie = completion.then(|| op_cookie(key));
        let notify = notify.then(|| pattern::word_of(u64::from(key.0)));
        if len <= INLINE_BYTES_MAX as u64 && self.rng.chance(600) {
            let source = Source::Inline(&data);
            self.post(op, |_, import, _| Command::Send { import, offset, source, notify, counter, completion: cookie });
            return;
        }
        let pad = self.rng.below(16);
        let mut bytes = vec![0xee; pad as usize];
        bytes.append(&mut data);
        let memory = self.new_region(proc, RegionUse::Source(key), bytes);
        op.memory = Some(memory);
        self.post(op, |_, import, region| {
            let source = Source::Region { region, offset: pad, len };
            Command::Send { import, offset, source, notify, counter, completion: cookie }
        });
    }

    fn do_fetch(&mut self, proc: ProcKey, import: ImportKey, export: ExportKey) {
        let Some((offset, len)) = self.range(export) else { return };
        let region = self.model.exports[export].region;
        let start = self.model.exports[export].offset + offset;
        let expected = self.expected(import, export, start, start + len);
        let op = Op { completion: true, ..self.op(proc, import, OpKind::Fetch { expected }, offset, len) };
        let key = self.model.ops.next_key();
        let pad = self.rng.below(16);
        let bytes = vec![0xdd; (pad + len + 16) as usize];
        let memory = self.new_region(proc, RegionUse::Fetched { op: key, offset: pad }, bytes);
        self.model.regions[region].readers.push((start, start + len, key));
        self.post(Op { memory: Some(memory), ..op }, |key, import, region| Command::Fetch {
            import,
            offset,
            len,
            region,
            region_offset: pad,
            cookie: op_cookie(key),
        });
    }

    fn do_atomic(&mut self, proc: ProcKey, import: ImportKey, export: ExportKey) {
        let Some(offset) = self.word(export, WORDS_BYTES / 2) else { return };
        let facts = &self.model.exports[export];
        let now = self.memory.word(facts.region, facts.offset + offset);
        let operand = ATOMIC_MARK | u64::from(self.model.ops.next_key().0);
        let change = match self.rng.below(3) {
            0 => AtomicOp::FetchAdd(operand),
            1 => AtomicOp::CompareSwap { expected: now, desired: operand },
            _ => AtomicOp::Swap(operand),
        };
        let op = self.op(proc, import, OpKind::Atomic(change), offset, 0);
        self.post(op, |key, import, _| Command::Atomic { import, offset, op: change, cookie: op_cookie(key) });
    }

    /// An operation that is wrong, and must fail by saying how.
    fn do_mistake(&mut self, proc: ProcKey, import: ImportKey) {
        let Some(export) = self.model.imports[import].export else { return };
        let (size, rights) = (self.model.exports[export].len, self.model.imports[import].granted);
        let ring = self.model.exports[export].ring.is_some();
        let table = !self.model.exports[export].tokens.is_empty();
        match self.rng.below(12) {
            0 if table => return self.do_append(proc, import, Some(Mistake::NotAppendable)),
            0 if ring => return self.do_append(proc, import, Some(Mistake::RecordTooLong)),
            0 if !ring && rights.contains(Rights::WRITE) => {
                return self.do_append(proc, import, Some(Mistake::NotAppendable));
            }
            1 if !table && rights.contains(Rights::WRITE) => {
                return self.do_payload(proc, import, Some(Mistake::NotByToken));
            }
            _ => {}
        }
        let send = OpKind::Send { notify: self.rng.chance(500), counter: None };
        let (mistake, kind, offset, len) = match self.rng.below(4) {
            0..3 if ring => (Mistake::AppendOnly, send, 0, 8),
            0..3 if table => (Mistake::TokenOnly, send, 0, 8),
            0 if rights.contains(Rights::WRITE) => {
                let offset = self.rng.pick(&[size - 4, size, size + 1, u64::MAX - 3, 1 << 40]);
                (Mistake::OutOfBounds, send, offset, self.rng.between(8, 64))
            }
            1 if !rights.contains(Rights::WRITE) => (Mistake::NoRight, send, 0, 8),
            2 if rights.contains(Rights::ATOMIC) => (Mistake::Misaligned, OpKind::Atomic(AtomicOp::Swap(1)), 0, 0),
            3 => (Mistake::StaleImport, send, 0, 8),
            _ => return,
        };
        let offset = if mistake == Mistake::Misaligned { self.misaligned(export) } else { offset };
        let completion = matches!(kind, OpKind::Atomic(_)) || self.rng.chance(700);
        let mut op = self.op(proc, import, kind.clone(), offset, len);
        (op.mistake, op.completion) = (Some(mistake), completion);
        if mistake == Mistake::StaleImport {
            op.import_id = ImportId { slot: self.rng.below(8) as u32, generation: 0xdead_0000 };
        }
        let data = vec![0xbb; len as usize];
        self.post(op, |key, import, _| match kind {
            OpKind::Send { notify, counter } => {
                let completion = completion.then(|| op_cookie(key));
                let notify = notify.then_some(0);
                Command::Send { import, offset, source: Source::Inline(&data), notify, counter, completion }
            }
            _ => Command::Atomic { import, offset, op: AtomicOp::Swap(1), cookie: op_cookie(key) },
        });
    }

    /// Enters an operation in the model and posts it, past the queues if the engine lets it now and
    /// then; `command` is given its key, import and memory.
    pub(crate) fn post<'a>(&mut self, op: Op, command: impl FnOnce(OpKey, ImportId, RegionId) -> Command<'a>) {
        let (node, pid) = (self.model.procs[op.sender].node, self.model.procs[op.sender].pid);
        let memory = op.memory.map_or(RegionId(0), |m| self.model.regions[m].at.region);
        let import = op.import_id;
        let key = self.model.add_op(op);
        let command = command(key, import, memory);
        let mut buffer = [0; 1500];
        let hurries = self.rng.chance(500);
        let sent = hurries.then(|| {
            self.call_raw(node, |engine, now, _| engine.try_send_inline(now, pid, command, &mut buffer, |_, _, _| {}))
                .flatten()
        });
        let sent = sent.flatten();
        let how = if sent.is_some() { "does at once" } else { "posts" };
        self.judge.note(&self.model, format_args!("node {node} {how} {key}: {:?}", self.model.ops[key]));
        if let Some(out) = sent {
            self.transmit(node, &out, &buffer[..out.len]);
        } else {
            let posted = self.call_raw(node, |engine, now, port| engine.post(now, pid, command, port));
            if posted != Some(Ok(())) {
                self.model.withdraw_op(key);
            }
        }
        self.run_to_quiescence(node);
    }

    pub(crate) fn op(&self, sender: ProcKey, import: ImportKey, kind: OpKind, offset: u64, len: u64) -> Op {
        let facts = &self.model.imports[import];
        Op {
            kind,
            sender,
            import: Some(import),
            export: facts.export,
            offset,
            len,
            import_id: facts.id.expect("operations are posted on granted imports"),
            completion: true,
            memory: None,
            mistake: None,
            outcome: Outcome::Open,
            posted_at_ns: self.model.now_ns,
            ended_at_ns: 0,
            ranges: Vec::new(),
            appended: false,
            crowd: facts.export.map_or(0, |export| self.model.crowd(export)),
            landed: Spans::default(),
            served: 0,
            counted: false,
            found: None,
            notified: 0,
        }
    }

    /// A length, mostly small.
    fn length(&mut self) -> u64 {
        let (low, high) = self.rng.pick(&[
            (0, 1),
            (1, 16),
            (1, 16),
            (8, 216),
            (8, 216),
            (200, 1_500),
            (1_000, 8_000),
            (5_000, 120_000),
        ]);
        if self.rng.chance(3) { self.rng.between(1 << 20, 3 << 20) } else { self.rng.between(low, high) }
    }

    /// A range of an export's data, in offsets of the export.
    fn range(&mut self, export: ExportKey) -> Option<(u64, u64)> {
        let facts = &self.model.exports[export];
        let first = WORDS_BYTES.saturating_sub(facts.offset);
        let room = facts.len.checked_sub(first)?;
        let len = self.length().min(room);
        Some((first + self.rng.below(room - len + 1), len))
    }

    /// A range of an export's data that no operation in the open uses.
    fn place(&mut self, export: ExportKey) -> Option<(u64, u64)> {
        (0..PLACE_TRIES).find_map(|_| {
            let (offset, len) = self.range(export)?;
            let facts = &self.model.exports[export];
            let start = facts.offset + offset;
            self.model.is_free(facts.region, start, start + len).then_some((offset, len))
        })
    }

    /// A word of the region's counters (`zone` 0) or atomics (`zone` 64), as an offset of the
    /// export.
    fn word(&mut self, export: ExportKey, zone: u64) -> Option<u64> {
        let at = zone + 8 * self.rng.below(WORDS_BYTES / 16);
        let facts = &self.model.exports[export];
        let offset = at.checked_sub(facts.offset)?;
        (offset + 8 <= facts.len).then_some(offset)
    }

    /// An offset inside the export whose place in the region is not a multiple of 8.
    fn misaligned(&mut self, export: ExportKey) -> u64 {
        let start = self.model.exports[export].offset;
        let odd = 1 + self.rng.below(7);
        (8 - start % 8) % 8 + 8 * self.rng.below(8) + odd
    }

    /// What a fetch through `import` must find in `start..end` of the exported region: what is
    /// there, and the sends of the same import that are under way. `None` where that is not
    /// certain.
    fn expected(&self, import: ImportKey, export: ExportKey, start: u64, end: u64) -> Option<Expected> {
        let facts = &self.model.exports[export];
        let region = &self.model.regions[facts.region];
        let mut bytes = self.memory.bytes(facts.region).get(start as usize..end as usize)?.to_vec();
        for piece in region.landing_on(start, end) {
            let key = piece.op;
            if self.model.is_final(key) {
                continue;
            }
            let op = &self.model.ops[key];
            let redirectable = op.export.is_none_or(|e| self.model.exports[e].redirectable);
            if op.import != Some(import) || op.outcome != Outcome::Open || redirectable {
                return None;
            }
            let (low, high) = (piece.start.max(start), piece.end.min(end));
            let place = &mut bytes[(low - start) as usize..(high - start) as usize];
            pattern::fill(u64::from(key.0), piece.at + (low - piece.start), place);
        }
        Some(Expected(bytes))
    }
}
