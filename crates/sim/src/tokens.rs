//! Token tables: what their owners do with them, and payloads that come by token.
//!
//! Invariant: the key of a token is never used again, and the tag of a payload names the operation
//! it belongs to. What is in an entry is the owner's and the node's; the model keeps beside it what
//! the owner has armed, and whose payload is coming.

use vmmc_nic::{AtomicOp, Command, ExportKind, Source, TOKEN_ENTRY_BYTES, TOKEN_TAG_AT, TokenPart, TokenState};

use crate::cluster::Cluster;
use crate::events::op_cookie;
use crate::model::{ExportKey, ImportKey, Key, Mistake, Model, OpKey, OpKind, ProcKey, RegionKey, RegionUse, Token};
use crate::pattern;

/// Marks the tag of a payload, which carries the number of its operation.
const PAYLOAD_MARK: u64 = 0x70 << 56;
/// Entries of a table: few, so that payloads meet.
const TOKENS: u64 = 3;
/// What kind of export a table is.
pub(crate) const TABLE: ExportKind = ExportKind::Tokens { entries: TOKENS as u32 };
/// Bytes of a buffer: several packets, and several of them.
const BUFFER_BYTES: u64 = 6_000;

/// Where the buffer of an entry begins, in the export.
pub(crate) fn buffer(index: usize) -> u64 {
    TOKENS * TOKEN_ENTRY_BYTES + index as u64 * BUFFER_BYTES
}

/// Which entry a word of a table belongs to, and which word of it that is.
pub(crate) fn entry_of(offset: u64) -> Option<(usize, u64)> {
    let index = offset / TOKEN_ENTRY_BYTES;
    (index < TOKENS).then_some((index as usize, offset % TOKEN_ENTRY_BYTES))
}

/// Which buffer a byte of a table lies in, and where there.
pub(crate) fn buffer_of(offset: u64) -> Option<(usize, u64)> {
    let at = offset.checked_sub(buffer(0))?;
    (at < TOKENS * BUFFER_BYTES).then_some(((at / BUFFER_BYTES) as usize, at % BUFFER_BYTES))
}

/// The payload that a tag names.
pub(crate) fn op_of_tag(tag: u64) -> Option<OpKey> {
    (tag >> 32 == PAYLOAD_MARK >> 32).then(|| OpKey::from_index((tag & 0xffff_ffff) as usize))
}

fn tag_of(key: OpKey) -> u64 {
    PAYLOAD_MARK | u64::from(key.0)
}

/// What a change of a word of an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenChange {
    /// A payload takes the key, if it is armed.
    Take { key: u64 },
    /// The tag of the payload that has taken it.
    Tag { tag: u64 },
    /// Its length.
    Total,
    /// All of it is there.
    Done { key: u64 },
}

impl TokenChange {
    /// None: no such change is one of a payload.
    pub(crate) fn of(word: u64, change: AtomicOp) -> Option<TokenChange> {
        match (word, change) {
            (0, AtomicOp::CompareSwap { expected, desired }) => {
                match (TokenState::of_word(expected), TokenState::of_word(desired)) {
                    ((key, TokenState::Armed), (same, TokenState::Filling)) if key == same => {
                        Some(TokenChange::Take { key })
                    }
                    _ => None,
                }
            }
            (0, AtomicOp::Swap(state)) => match TokenState::of_word(state) {
                (key, TokenState::Done) => Some(TokenChange::Done { key }),
                _ => None,
            },
            (TOKEN_TAG_AT, AtomicOp::Swap(tag)) => Some(TokenChange::Tag { tag }),
            (vmmc_nic::TOKEN_TOTAL_AT, AtomicOp::Swap(_)) => Some(TokenChange::Total),
            _ => None,
        }
    }

    /// Whether it found what it looked for, and so happened.
    pub(crate) fn happened(self, old: u64) -> bool {
        match self {
            TokenChange::Take { key } => old == TokenState::Armed.word(key),
            TokenChange::Tag { .. } | TokenChange::Total | TokenChange::Done { .. } => true,
        }
    }
}

impl Cluster {
    pub(crate) fn table_region(&mut self, proc: ProcKey) -> RegionKey {
        let size = 64 + buffer(TOKENS as usize);
        self.new_region(proc, RegionUse::Tokens, vec![0; size as usize])
    }

    /// Arms all tokens of a new table.
    pub(crate) fn arm_all(&mut self, export: ExportKey) {
        (0..TOKENS as usize).for_each(|index| self.arm(export, index));
    }

    fn arm(&mut self, export: ExportKey, index: usize) {
        let key = self.rng.below(1 << 60) << 2;
        let words = [TokenState::Armed.word(key), 0, 0, buffer(index), BUFFER_BYTES];
        let facts = &mut self.model.exports[export];
        facts.tokens.resize_with(TOKENS as usize, Token::default);
        facts.tokens[index] = Token { key, armed: true, ..Token::default() };
        let (region, at) = (facts.region, facts.offset + index as u64 * TOKEN_ENTRY_BYTES);
        (at..).step_by(8).zip(words).for_each(|(at, word)| self.memory.set_word(region, at, word));
        self.judge.note(&self.model, format_args!("{export} arms token {index} with {key:#x}"));
    }

    /// The owner of a table arms, cancels, or lets be.
    pub(crate) fn do_arming(&mut self, proc: ProcKey) {
        let mut tables = self.model.live_exports(proc);
        tables.retain(|&e| !self.model.exports[e].tokens.is_empty());
        let Some(export) = self.rng.index(tables.len()).map(|i| tables[i]) else { return };
        let index = self.rng.below(TOKENS) as usize;
        let facts = &self.model.exports[export];
        let (region, at) = (facts.region, facts.offset + index as u64 * TOKEN_ENTRY_BYTES);
        let (key, state) = TokenState::of_word(self.memory.word(region, at));
        let cancels = match state {
            TokenState::Armed => self.rng.chance(200),
            TokenState::Filling => self.rng.chance(100),
            TokenState::Done | TokenState::Cancelled => return self.arm(export, index),
        };
        if cancels {
            self.memory.set_word(region, at, TokenState::Cancelled.word(key));
            let token = &mut self.model.exports[export].tokens[index];
            (token.armed, token.cancelled) = (false, true);
            self.judge.note(&self.model, format_args!("{export} cancels token {index}"));
        }
    }

    pub(crate) fn do_payload(&mut self, proc: ProcKey, import: ImportKey, mistake: Option<Mistake>) {
        let Some(export) = self.model.imports[import].export else { return };
        let tokens = &self.model.exports[export].tokens;
        let mut index = self.rng.below(TOKENS) as u32;
        let mut key = tokens.get(index as usize).map_or(4, |token| token.key);
        match self.rng.below(20) {
            0 => key ^= 1 << (2 + self.rng.below(60)),
            1 => index = self.rng.pick(&[TOKENS as u32, 700, u32::MAX]),
            _ => {}
        }
        let len = match self.rng.below(12) {
            0 => BUFFER_BYTES + self.rng.pick(&[0, 1, 500]),
            _ => self.rng.pick(&[0, 8, 200, 1_000, 5_000]) + self.rng.below(13),
        };
        let mut op = self.op(proc, import, OpKind::Payload { index, key }, 0, len);
        op.mistake = mistake;
        let number = self.model.ops.next_key();
        let mut data = vec![0; len as usize];
        pattern::fill(u64::from(number.0), 0, &mut data);
        let token = TokenPart { index, key, tag: tag_of(number), total: len };
        let completion = Some(op_cookie(number));
        let send = |import, source| Command::TokenSend { import, token, offset: 0, source, completion };
        if len <= vmmc_nic::INLINE_BYTES_MAX as u64 && self.rng.chance(600) {
            return self.post(op, |_, import, _| send(import, Source::Inline(&data)));
        }
        op.memory = Some(self.new_region(proc, RegionUse::Source(number), data));
        self.post(op, |_, import, region| send(import, Source::Region { region, offset: 0, len }));
    }
}

impl Model {
    /// The table in a region that is for one.
    pub(crate) fn table_at(&self, region: RegionKey) -> Option<ExportKey> {
        self.regions[region].exports.last().copied()
    }

    /// A change of an entry that has happened.
    pub(crate) fn take_token(&mut self, export: ExportKey, index: usize, change: TokenChange) {
        let token = &mut self.exports[export].tokens[index];
        match change {
            TokenChange::Take { .. } => *token = Token { key: token.key, taken: true, ..Token::default() },
            // A tag that names none is found, and there is nothing to count for it.
            TokenChange::Tag { tag } => token.filler = op_of_tag(tag).filter(|op| self.ops.try_at(*op).is_some()),
            TokenChange::Total => {}
            TokenChange::Done { .. } => {
                if let Some(op) = token.filler {
                    self.ops[op].appended = true;
                }
            }
        }
    }

    /// Whether a payload is in the middle of its way into a buffer.
    pub(crate) fn is_coming(&self, key: OpKey) -> bool {
        let op = &self.ops[key];
        let OpKind::Payload { index, .. } = op.kind else { return false };
        let token = op.export.and_then(|export| self.exports[export].tokens.get(index as usize));
        token.is_some_and(|token| token.filler == Some(key) && token.landed < op.len && !token.cancelled)
    }

    /// Whether a payload may have been refused: its token is not armed, or never was one of these,
    /// or it is too long for the buffer.
    pub(crate) fn may_be_refused(&self, key: OpKey) -> bool {
        let op = &self.ops[key];
        let OpKind::Payload { index, key } = op.kind else { return false };
        let token = op.export.and_then(|export| self.exports[export].tokens.get(index as usize));
        op.len > BUFFER_BYTES || token.is_none_or(|token| token.key != key || !token.armed)
    }
}
