//! Observations, and what the model learns from each.
//!
//! Invariant: the model takes an observation in only after every checker has compared it with what
//! was true before.

use vmmc_nic::limits::ARRIVED_RANGES_MAX;
use vmmc_nic::{ImportError, ImportGrant, OpError, RedirectReport, Sender};

use super::Model;
use super::attribute::{AtomicRole, ReadRole, WriteRole};
use super::facts::{ImportState, OpKind, Outcome};
use super::table::{ExportKey, ImportKey, OpKey, PingKey, RedirectKey};

/// What a notification says.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) last_word: u64,
    pub(crate) word: u64,
    pub(crate) from: Sender,
}

/// Something an engine did, attributed.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// It wrote memory.
    Write { node: usize, len: u64, role: WriteRole },
    /// It read memory.
    Read { node: usize, len: u64, role: ReadRole },
    /// It changed a word.
    Atomic { node: usize, old: u64, role: AtomicRole },
    /// It put a record into a ring: of which append, if of any, in how many bytes, and what is
    /// wrong with it.
    Appended { export: ExportKey, op: Option<OpKey>, bytes: u64, from: Option<Sender>, wrong: Option<String> },
    /// It ended an operation.
    Completed { op: OpKey, result: Result<u64, OpError> },
    /// It told of a posted send that failed.
    SendFailed { op: OpKey, why: OpError },
    /// It notified; of which send, if of any.
    Notified { export: ExportKey, op: Option<OpKey>, told: Told },
    /// It answered an import; which export was granted, if the model knows it.
    Imported { import: ImportKey, result: Result<(ImportGrant, Option<ExportKey>), ImportError> },
    /// It broke an import.
    ImportBroken { import: ImportKey, why: OpError },
    /// It says that a redirection is complete, or reports on it.
    Redirected { redirect: RedirectKey, report: RedirectReport, done: bool },
    /// It took a redirection on.
    RedirectPosted { redirect: RedirectKey },
    /// It answered a ping.
    Pong { ping: PingKey, result: Result<u64, ImportError> },
    /// An event that fits nothing: an unknown process, cookie, import or export.
    Unknown(String),
    /// A level inside an engine, and what it may rise to.
    Level { node: usize, what: &'static str, value: u64, bound: u64 },
    /// One call into an engine is over, all its events taken.
    Quiescent,
    /// A workload action is over.
    Step,
    /// The run is over.
    End,
}

impl Model {
    /// Learns from an observation.
    pub(crate) fn take(&mut self, seen: &Seen) {
        match seen {
            Seen::Write { len, role, .. } => self.take_write(role, *len),
            Seen::Read { role: ReadRole::Serve { op, end, .. }, .. } => {
                let op = &mut self.ops[*op];
                op.served = op.served.max(*end);
            }
            Seen::Atomic { old, role, .. } => self.take_atomic(role, *old),
            Seen::Appended { export, op: Some(op), bytes, .. } => self.take_appended(*export, *op, *bytes),
            Seen::Completed { op, result: Ok(value) } => self.end_op(*op, Outcome::Done(*value)),
            Seen::Completed { op, result: Err(why) } | Seen::SendFailed { op, why } => {
                self.end_op(*op, Outcome::Failed(*why));
                self.forget_unapplied(*op);
            }
            Seen::Notified { op: Some(op), .. } => {
                self.ops[*op].notified += 1;
                self.end_posted(*op);
            }
            Seen::Imported { import, result } => self.take_import(*import, result),
            Seen::ImportBroken { import, why } => self.take_broken(*import, *why),
            Seen::Redirected { redirect, done: true, .. } => {
                self.redirects[*redirect].done = true;
                self.redirects[*redirect].ended = true;
            }
            Seen::Quiescent => self.just_landed = None,
            Seen::Pong { ping, .. } => self.pings[*ping].answered = true,
            _ => {}
        }
    }

    fn take_write(&mut self, role: &WriteRole, len: u64) {
        match *role {
            WriteRole::Send { op, at, redirect, .. } => {
                self.ops[op].landed.insert(at, at + len);
                self.just_landed = self.ops[op].is_landed().then_some(op);
                let start = self.ops[op].place(at);
                match redirect {
                    Some(redirect) => self.take_redirected(redirect, start, len),
                    None => self.arrive(op, start, len),
                }
                self.advance(op);
            }
            WriteRole::Fetched { op, at, .. } => self.ops[op].landed.insert(at, at + len),
            WriteRole::RedirectCopy { redirect, at } => {
                let facts = &mut self.redirects[redirect];
                let start = facts.offset + at;
                facts.copied.insert(at, at + len);
                facts.ended |= facts.is_whole();
                self.exports[facts.export].arrived.remove(start, start + len);
            }
            WriteRole::Payload { export, index, at, .. } => {
                let token = &mut self.exports[export].tokens[index];
                token.landed += len;
                if let Some(op) = token.filler {
                    self.ops[op].landed.insert(at, at + len);
                }
            }
            WriteRole::Record { .. } | WriteRole::Stray(_) => {}
        }
    }

    fn take_appended(&mut self, export: ExportKey, op: OpKey, bytes: u64) {
        self.ops[op].appended = true;
        if let Some(ring) = self.exports[export].ring.as_mut() {
            ring.written += bytes;
            ring.unread.push_back((op, bytes));
        }
        let waiting: Vec<OpKey> = self.open_appends_to(export).collect();
        for op in waiting {
            self.ops[op].crowd = self.ops[op].crowd.max(self.crowd(export));
        }
    }

    /// The most bytes that a ring may hold unread, as far as its node can know.
    pub(crate) fn crowd(&self, export: ExportKey) -> u64 {
        self.exports[export].ring.as_ref().map_or(0, |ring| ring.written - ring.drained)
    }

    /// Bytes that arrived in a redirectable export wait there to be consumed or redirected.
    fn arrive(&mut self, op: OpKey, start: u64, len: u64) {
        if let Some(export) = self.ops[op].export {
            let export = &mut self.exports[export];
            if export.redirectable {
                export.arrived.insert(start, start + len);
                export.fragmented |= export.arrived.count() + 1 >= ARRIVED_RANGES_MAX;
            }
        }
    }

    /// Bytes went straight to where they are redirected; what was copied there before is
    /// overwritten. A redirection ends with its last byte, before anybody is told.
    fn take_redirected(&mut self, redirect: RedirectKey, start: u64, len: u64) {
        let facts = &mut self.redirects[redirect];
        let at = start - facts.offset;
        facts.copied.remove(at, at + len);
        facts.direct.insert(at, at + len);
        facts.ended |= facts.is_whole();
    }

    /// The send had a further effect; perhaps it is whole now.
    fn advance(&mut self, op: OpKey) {
        if !self.ops[op].is_applied() {
            return;
        }
        self.forget_unapplied(op);
        self.counting.retain(|&o| o != op);
        if let Some(channel) = self.channel(op) {
            let latest = self.latest_applied.entry(channel).or_insert(op);
            *latest = (*latest).max(op);
        }
        self.end_posted(op);
    }

    /// A posted send ends when it has had its whole effect: nobody says so.
    fn end_posted(&mut self, op: OpKey) {
        if !self.ops[op].completion && self.ops[op].is_applied() {
            self.end_op(op, Outcome::Done(self.ops[op].len));
        }
    }

    fn take_atomic(&mut self, role: &AtomicRole, old: u64) {
        match *role {
            AtomicRole::Op(op) => self.ops[op].found = Some(old),
            AtomicRole::Counter(op) => {
                self.ops[op].counted = true;
                self.advance(op);
            }
            AtomicRole::Token { export, index, change } if change.happened(old) => {
                self.take_token(export, index, change);
            }
            AtomicRole::Written { .. } | AtomicRole::Token { .. } | AtomicRole::Stray(_) => {}
        }
    }

    fn take_import(&mut self, key: ImportKey, result: &Result<(ImportGrant, Option<ExportKey>), ImportError>) {
        self.imports[key].answered = true;
        match result {
            Ok((grant, export)) => {
                let import = &mut self.imports[key];
                import.export = *export;
                import.granted = grant.rights;
                // Given up meanwhile: the driver releases it at once.
                if import.state == ImportState::Asked {
                    import.state = ImportState::Granted;
                }
                self.name_import(key, grant.import);
            }
            Err(why) => {
                if self.imports[key].state == ImportState::Asked {
                    self.imports[key].state = ImportState::Refused(*why);
                }
            }
        }
    }

    fn take_broken(&mut self, key: ImportKey, why: OpError) {
        if self.imports[key].state == ImportState::Granted {
            self.imports[key].state = ImportState::Broken(why);
        }
        // Posted sends learn of their fate by this alone.
        let posted = |o: &OpKey| self.ops[*o].import == Some(key) && !self.ops[*o].completion;
        let lost: Vec<OpKey> = self.open_ops_of(self.imports[key].importer).filter(posted).collect();
        for op in lost {
            debug_assert!(matches!(self.ops[op].kind, OpKind::Send { .. }));
            self.end_op(op, Outcome::Failed(why));
            self.forget_unapplied(op);
        }
    }
}
