//! Whose access to memory was that? The engine names a region and an offset; the model finds the
//! operation.
//!
//! Invariant: an access is attributed by its place alone. Whether its content fits is said beside
//! it, so that a stale deposit on memory in use again shows up as wrong content and never as
//! nothing.

use vmmc_nic::{AtomicOp, RING_WRITTEN_AT, RegionRef};

use super::facts::{Landing, OpKind, Outcome, RegionUse};
use super::table::{OpKey, RedirectKey, RegionKey};
use super::{ExportKey, ImportKey, Model, ProcKey};
use crate::pattern;
use crate::tokens::{TokenChange, buffer_of, entry_of};

/// What a write to memory was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteRole {
    /// Bytes `at..` of a send, at home or where a redirection leads.
    Send { op: OpKey, at: u64, redirect: Option<RedirectKey>, wrong_at: Option<u64> },
    /// Bytes `at..` of a fetch, in the fetching process.
    Fetched { op: OpKey, at: u64, wrong_at: Option<u64> },
    /// Bytes `at..` of a redirected range that had arrived before.
    RedirectCopy { redirect: RedirectKey, at: u64 },
    /// Part of a record, from there on in the export, which is a ring.
    Record { export: ExportKey, at: u64 },
    /// Bytes `at..` of a payload, in the buffer of this token.
    Payload { export: ExportKey, index: usize, at: u64, wrong_at: Option<u64> },
    /// Nobody's.
    Stray(String),
}

/// What a read of memory was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadRole {
    /// The data of a send.
    Source(OpKey),
    /// Bytes `..end` of an answer to a fetch.
    Serve { op: OpKey, export: ExportKey, end: u64 },
    /// Moving bytes to where they are redirected.
    RedirectCopy,
    /// Looking how far the owner of a ring has read.
    Ring(ExportKey),
    /// Looking at an entry of a token table.
    Token(ExportKey),
    /// Memory that is gone: the garbage page.
    Garbage,
    /// Nobody's.
    Stray(String),
}

/// What a change of a word was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AtomicRole {
    /// A remote atomic.
    Op(OpKey),
    /// The counter of a send.
    Counter(OpKey),
    /// The count of bytes that were written to a ring, which is this now.
    Written { export: ExportKey, count: u64 },
    /// A word of an entry of a token table.
    Token { export: ExportKey, index: usize, change: TokenChange },
    /// Nobody's.
    Stray(String),
}

impl Model {
    /// What a deposit of `bytes` is for.
    pub(crate) fn write_role(&self, node: usize, to: RegionRef, offset: u64, bytes: &[u8]) -> WriteRole {
        let Some(key) = self.region_of(node, to) else {
            return WriteRole::Stray(format!("{} bytes to a region that never was, {to:?}", bytes.len()));
        };
        let region = &self.regions[key];
        let end = offset + bytes.len() as u64;
        let role = match region.usage {
            RegionUse::Shared => self.landing_role(key, offset, bytes, None),
            RegionUse::Target => self.redirected_role(key, offset, bytes),
            RegionUse::Ring => self.ring_at(key).and_then(|export| {
                let at = offset.checked_sub(self.exports[export].offset)?;
                Some(WriteRole::Record { export, at })
            }),
            RegionUse::Tokens => self.payload_role(key, offset, bytes),
            RegionUse::Fetched { op, offset: first } => {
                let inside = first <= offset && end <= first + self.ops[op].len;
                let at = offset.wrapping_sub(first);
                inside.then(|| WriteRole::Fetched { op, at, wrong_at: self.fetched_wrong(op, at, bytes) })
            }
            RegionUse::Source(_) => None,
        };
        role.unwrap_or_else(|| {
            let (usage, len) = (&region.usage, bytes.len());
            WriteRole::Stray(format!(
                "{len} bytes at {offset} of {key} ({usage:?}) of {} where nothing is under way",
                region.owner
            ))
        })
    }

    /// What a gather is for.
    pub(crate) fn read_role(&self, node: usize, from: RegionRef, offset: u64, len: u64) -> ReadRole {
        let Some(key) = self.region_of(node, from) else {
            return ReadRole::Stray(format!("{len} bytes from a region that never was, {from:?}"));
        };
        let region = &self.regions[key];
        if !region.alive {
            return ReadRole::Garbage;
        }
        let end = offset + len;
        let stray =
            || ReadRole::Stray(format!("{len} bytes at {offset} of {key} ({:?}) that nobody asked for", region.usage));
        match region.usage {
            RegionUse::Source(op) if end <= region.len => ReadRole::Source(op),
            RegionUse::Shared => {
                let inside = region.readers.iter().filter(|r| r.0 <= offset && end <= r.1);
                // Fetches may overlap: one that may be answered now is meant, best one that goes on
                // just here.
                let reader = inside.min_by_key(|r| {
                    let op = &self.ops[r.2];
                    let next = r.0 + op.served;
                    let dead = op.export.is_none_or(|e| !self.exports[e].is_live());
                    let early = self.misses_earlier(r.2).is_some();
                    (dead, early, offset > next, offset != next, op.outcome != Outcome::Open, r.2)
                });
                reader.map_or_else(stray, |&(start, _, op)| match self.ops[op].export {
                    Some(export) => ReadRole::Serve { op, export, end: end - start },
                    None => stray(),
                })
            }
            RegionUse::Ring if end <= region.len => self.ring_at(key).map_or_else(stray, ReadRole::Ring),
            RegionUse::Tokens => {
                let table = self.table_at(key);
                let entry = |e: &ExportKey| entry_of(offset.wrapping_sub(self.exports[*e].offset)).is_some();
                table.filter(entry).map_or_else(stray, ReadRole::Token)
            }
            _ => stray(),
        }
    }

    /// The ring in a region that is for one.
    fn ring_at(&self, region: RegionKey) -> Option<ExportKey> {
        self.regions[region].exports.last().copied()
    }

    /// Whether sends that the same process posted before to the same node are not in memory, though
    /// they ought to be.
    pub(crate) fn misses_earlier(&self, key: OpKey) -> Option<OpKey> {
        let earlier = |o: &&OpKey| self.follows(key, **o) && !self.is_excused(**o);
        self.unapplied_of(key).iter().find(earlier).copied()
    }

    /// Whether an operation is to come after another one of its process and to its node: that was
    /// posted before, and the operation has the order of the process, or the import of that one.
    pub(crate) fn follows(&self, key: OpKey, earlier: OpKey) -> bool {
        let op = &self.ops[key];
        let own_order = op.kind != OpKind::Flush && op.import.is_some_and(|import| self.imports[import].own_order);
        earlier < key && (!own_order || op.import == self.ops[earlier].import)
    }

    /// The channel in which a send is ordered: that of its process and export, or of its import.
    pub(crate) fn channel(&self, key: OpKey) -> Option<(ProcKey, ExportKey, Option<ImportKey>)> {
        let op = &self.ops[key];
        Some((op.sender, op.export?, op.import.filter(|import| self.imports[*import].own_order)))
    }

    /// Sends of the same process to the same node that are not in memory.
    pub(crate) fn unapplied_of(&self, key: OpKey) -> &[OpKey] {
        let node = self.target_node(key);
        let list = node.and_then(|n| self.unapplied.get(&(self.ops[key].sender, n)));
        list.map_or(&[], Vec::as_slice)
    }

    /// What a copy from memory to memory is for, when it is not a send or fetch within the node.
    pub(crate) fn redirect_copy(
        &self,
        node: usize,
        (from, from_offset): (RegionRef, u64),
        (to, to_offset): (RegionRef, u64),
        len: u64,
    ) -> Option<(RedirectKey, u64)> {
        let (from, to) = (self.region_of(node, from)?, self.region_of(node, to)?);
        let target = &self.regions[to];
        target.redirects.iter().find_map(|&key| {
            let redirect = &self.redirects[key];
            let at = to_offset.checked_sub(redirect.target_offset)?;
            let export = &self.exports[redirect.export];
            let fits = export.region == from
                && at + len <= redirect.len
                && from_offset == export.offset + redirect.offset + at
                && !redirect.ended;
            fits.then_some((key, at))
        })
    }

    /// What a change of a word is for.
    pub(crate) fn atomic_role(&self, node: usize, to: RegionRef, offset: u64, change: AtomicOp) -> AtomicRole {
        let Some(key) = self.region_of(node, to) else {
            return AtomicRole::Stray(format!("a word in a region that never was, {to:?}"));
        };
        let word_of = |op: OpKey, offset_in_export: u64| {
            self.ops[op].export.is_some_and(|e| {
                let export = &self.exports[e];
                export.region == key && export.offset + offset_in_export == offset
            })
        };
        if let (RegionUse::Ring, AtomicOp::Swap(count)) = (&self.regions[key].usage, change) {
            let ring = self.ring_at(key).filter(|e| offset == self.exports[*e].offset + RING_WRITTEN_AT);
            if let Some(export) = ring {
                return AtomicRole::Written { export, count };
            }
        }
        if let (RegionUse::Tokens, Some(export)) = (&self.regions[key].usage, self.table_at(key)) {
            let entry = offset.checked_sub(self.exports[export].offset).and_then(entry_of);
            if let Some((index, change)) = entry.and_then(|(at, word)| Some((at, TokenChange::of(word, change)?))) {
                return AtomicRole::Token { export, index, change };
            }
        }
        // Every remote atomic of a run carries a number of its own; a counter is raised by one.
        if let Some(op) = crate::operations::op_of_atomic(change) {
            let known = self.ops.try_at(op).is_some_and(|o| o.kind == OpKind::Atomic(change) && word_of(op, o.offset));
            if known {
                return AtomicRole::Op(op);
            }
        } else if change == AtomicOp::FetchAdd(1) {
            // The counter follows its data in the same breath. Sends without bytes have nothing to
            // go by, so there is never more than one of them for a word.
            let counts = |op: &OpKey| self.ops[*op].counter().is_some_and(|c| word_of(*op, c));
            let landed = self.just_landed.filter(counts);
            let fresh = landed.filter(|&op| !self.ops[op].counted);
            let empty = || self.counting.iter().copied().find(|op| counts(op) && self.ops[*op].len == 0);
            let early = || self.counting.iter().copied().find(|op| counts(op) && !self.ops[*op].is_landed());
            if let Some(op) = fresh.or_else(empty).or(landed).or_else(early) {
                return AtomicRole::Counter(op);
            }
        }
        AtomicRole::Stray(format!("{change:?} on the word at {offset} of {key}, which nobody asked for"))
    }

    /// The send that a notification is about.
    pub(crate) fn notified_op(&self, export: ExportKey, offset: u64, len: u64) -> Option<OpKey> {
        let facts = &self.exports[export];
        if len == 0 {
            let about = |o: &OpKey| self.ops[*o].offset == offset && self.ops[*o].asks_notification();
            let mut candidates = facts.empty_sends.iter().copied().filter(about);
            let first = candidates.clone().next();
            return candidates.find(|&o| self.ops[o].notified == 0).or(first);
        }
        let op = self.regions[facts.region].landing.get(&(facts.offset + offset))?.op;
        (self.ops[op].span() == (offset, len) && self.ops[op].export == Some(export)).then_some(op)
    }

    fn payload_role(&self, key: RegionKey, offset: u64, bytes: &[u8]) -> Option<WriteRole> {
        let export = self.table_at(key)?;
        let facts = &self.exports[export];
        let (index, at) = buffer_of(offset.checked_sub(facts.offset)?)?;
        let filler = facts.tokens.get(index)?.filler;
        let wrong = filler.and_then(|op| pattern::mismatch(u64::from(op.0), at, bytes));
        Some(WriteRole::Payload { export, index, at, wrong_at: wrong.map(|i| at + i as u64) })
    }

    fn landing_role(
        &self,
        key: RegionKey,
        offset: u64,
        bytes: &[u8],
        redirect: Option<RedirectKey>,
    ) -> Option<WriteRole> {
        let end = offset + bytes.len() as u64;
        let Landing { start, end: stop, op, at } = self.regions[key].landing_on(offset, end).next()?;
        if offset < start || stop < end {
            return None;
        }
        let at = at + (offset - start);
        let wrong_at = pattern::mismatch(u64::from(op.0), at, bytes).map(|i| at + i as u64);
        Some(WriteRole::Send { op, at, redirect, wrong_at })
    }

    /// A deposit in a redirection's target: translated back to the default buffer.
    fn redirected_role(&self, key: RegionKey, offset: u64, bytes: &[u8]) -> Option<WriteRole> {
        let end = offset + bytes.len() as u64;
        // The latest redirection that fits: an ended one is still found, for the revocation checker
        // to name.
        let inside = |r: &&RedirectKey| {
            let redirect = &self.redirects[**r];
            redirect.target_offset <= offset && end <= redirect.target_offset + redirect.len
        };
        let redirect = *self.regions[key].redirects.iter().rev().find(inside)?;
        let facts = &self.redirects[redirect];
        let export = &self.exports[facts.export];
        let home = export.offset + facts.offset + (offset - facts.target_offset);
        self.landing_role(export.region, home, bytes, Some(redirect))
    }

    fn fetched_wrong(&self, op: OpKey, at: u64, bytes: &[u8]) -> Option<u64> {
        let OpKind::Fetch { expected: Some(expected) } = &self.ops[op].kind else { return None };
        let expected = &expected.0[at as usize..][..bytes.len()];
        let differs = bytes.iter().zip(expected).position(|(a, b)| a != b);
        differs.map(|i| at + i as u64)
    }
}
