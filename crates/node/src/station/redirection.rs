//! Transfer redirection [NT §3.1]: from the words of a process to the engine's, and its answers
//! back.
//!
//! Redirections are posted and withdrawn through the command ring, so that receivers can post
//! thousands of buffers ahead; reports are set-up calls. Invariant: the destination lies in memory
//! of the same process before the engine learns of it. A redirection is answered twice: when it is
//! posted, and what had arrived is copied (a piece at a time, processes in turns), and when all of
//! it has come.

use super::Station;
use super::connection::Process;
use super::export::ExportRecord;
use super::memory::Memory;
use super::refusal;
use super::shares::{Holdings, Shares, Table};
use crate::limits::{REDIRECTING_PER_PROCESS_MAX, RING_WORK_COPIED_BYTES, RING_WORK_COPIES};
use std::collections::VecDeque;
use vmmc_host::abi::{Completion, Op, RawCommand, RedirectDone};
use vmmc_host::control::{Answer, Redirection, Refusal};
use vmmc_nic::limits::LOCAL_PIECE_BYTES;
use vmmc_nic::{
    ByteRange, Cookie, Engine, ExportId, OpError, ProcessId, Redirect, RedirectAt, RedirectError, RedirectReport,
    RegionId, RegionRef, Time,
};

/// Redirections that do not cover their range yet, by process, each of which has at most
/// [`REDIRECTING_PER_PROCESS_MAX`].
#[derive(Default)]
pub(super) struct Redirecting(VecDeque<(ProcessId, VecDeque<RedirectAt>)>);

impl Redirecting {
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether no further command of the process is to be taken before one of its own is done.
    #[inline]
    pub(super) fn is_full(&self, process: ProcessId) -> bool {
        self.0.iter().any(|(id, all)| *id == process && all.len() >= REDIRECTING_PER_PROCESS_MAX)
    }

    fn add(&mut self, process: ProcessId, waiting: RedirectAt) {
        match self.0.iter_mut().find(|(id, _)| *id == process) {
            Some((_, all)) => all.push_back(waiting),
            None => self.0.push_back((process, VecDeque::from([waiting]))),
        }
    }
}

/// What commands about redirections need of the station, beside engine and memory.
pub(super) struct Desk<'a> {
    pub(super) shares: &'a mut Shares,
    /// What the connection of the process has of them.
    pub(super) held: &'a mut Holdings,
    pub(super) exports: &'a mut [Option<ExportRecord>],
    pub(super) redirecting: &'a mut Redirecting,
}

impl Desk<'_> {
    /// Does what a command says about a redirection, and answers it. Gives its work beyond that of
    /// a short command, in such commands.
    pub(super) fn serve(
        &mut self,
        process: &mut Process,
        engine: &mut Engine,
        memory: &mut Memory,
        now: Time,
        raw: &RawCommand,
    ) -> u64 {
        let export = ExportId::from_u64(raw.import);
        if raw.op == Op::CancelRedirect {
            let at = RedirectAt { export, offset: raw.offset, cookie: Cookie(raw.counter) };
            let done = engine.cancel_redirect(now, process.id, at).map(|report| came(&report));
            if done.is_ok() {
                self.ended(process, export);
            }
            process.complete(answer(raw.cookie, done));
            return 0;
        }
        match self.post(process, engine, memory, now, raw) {
            Ok(Some(report)) => {
                let copied = copied(&report);
                process.complete(answer(raw.cookie, Ok(copied)));
                copied / RING_WORK_COPIED_BYTES + report.copied.len() as u64 / RING_WORK_COPIES
            }
            // The answer comes when what had arrived is copied.
            Ok(None) => LOCAL_PIECE_BYTES / RING_WORK_COPIED_BYTES,
            Err(why) => {
                process.complete(answer(raw.cookie, Err(why)));
                0
            }
        }
    }

    fn post(
        &mut self,
        process: &mut Process,
        engine: &mut Engine,
        memory: &mut Memory,
        now: Time,
        raw: &RawCommand,
    ) -> Result<Option<RedirectReport>, RedirectError> {
        let RawCommand { offset, len, region_offset, .. } = *raw;
        let (export, cookie) = (ExportId::from_u64(raw.import), Cookie(raw.cookie));
        // Memory that is named by addresses could be taken from the process before the data comes.
        let nowhere = RedirectError::NoSuchPlace { offset: region_offset, len, size: 0 };
        let to = RegionId(u32::try_from(raw.region).map_err(|_| nowhere)?);
        memory.check(RegionRef { process: process.id, region: to }, region_offset, len).map_err(|why| match why {
            OpError::OutOfBounds { offset, len, size } => RedirectError::NoSuchPlace { offset, len, size },
            _ => nowhere,
        })?;
        self.shares.take(process.uid, self.held, Table::Redirections, 1).map_err(|full| full.redirections())?;
        let wanted = Redirect { export, offset, len, to, to_offset: region_offset, cookie };
        let posted = engine.redirect(now, process.id, wanted, memory);
        match &posted {
            Ok(report) => {
                if let Some(record) = record(self.exports, export) {
                    record.redirects += 1;
                }
                if report.is_none() {
                    self.redirecting.add(process.id, wanted.at());
                }
            }
            Err(_) => self.shares.give(process.uid, self.held, Table::Redirections, 1),
        }
        posted
    }

    /// A redirection of the process has been withdrawn.
    fn ended(&mut self, process: &Process, export: ExportId) {
        if let Some(record) = record(self.exports, export).filter(|record| record.redirects > 0) {
            record.redirects -= 1;
            self.shares.give(process.uid, self.held, Table::Redirections, 1);
        }
    }
}

fn record(exports: &mut [Option<ExportRecord>], export: ExportId) -> Option<&mut ExportRecord> {
    exports.get_mut(export.slot as usize)?.as_mut().filter(|record| record.id == export)
}

/// The first answer to a command.
fn answer(cookie: u64, result: Result<u64, RedirectError>) -> Completion {
    match result {
        Ok(value) => Completion { cookie, status: 0, value, args: [0; 3] },
        Err(why) => Completion { cookie, status: why.code(), value: 0, args: why.args() },
    }
}

fn copied(report: &RedirectReport) -> u64 {
    report.copied.iter().map(|range| range.len()).sum()
}

fn came(report: &RedirectReport) -> u64 {
    copied(report) + report.redirected.iter().map(|range| range.len()).sum::<u64>()
}

impl Station {
    /// Copies a piece for the process whose turn it is.
    pub(super) fn serve_redirections(&mut self, now: Time) -> bool {
        let Some((id, mut all)) = self.redirecting.0.pop_front() else { return false };
        if let Some(first) = all.front() {
            let copied = match self.engine.advance_redirect(now, id, *first, &mut self.memory) {
                Ok(None) => None,
                Ok(Some(report)) => Some(Ok(copied(&report))),
                // Withdrawn meanwhile, or its export has gone.
                Err(why) => Some(Err(why)),
            };
            if let Some(copied) = copied {
                let told = answer(first.cookie.0, copied);
                all.pop_front();
                if let Some(process) = self.process(id) {
                    process.complete(told);
                    process.wake_if_due();
                }
            }
        }
        if !all.is_empty() {
            self.redirecting.0.push_back((id, all));
        }
        true
    }

    /// All bytes of a redirection have come.
    pub(super) fn redirect_done(&mut self, id: ProcessId, export: ExportId, cookie: Cookie, report: &RedirectReport) {
        self.redirect_ended(export);
        let Some(process) = self.process(id) else { return };
        for part in &report.copied {
            process.complete(RedirectDone::Copied { offset: part.start, len: part.len() }.completion(cookie.0));
        }
        let len = report.range.map_or(0, |range| range.len());
        process.complete(RedirectDone::Whole { len }.completion(cookie.0));
    }

    pub(super) fn redirect_report(&mut self, index: usize, at: RedirectAt) -> Result<Answer, Refusal> {
        let id = self.attached_process(index)?.id;
        let report = self.engine.redirect_report(id, at);
        report.map(|r| Answer::Redirection(description(&r))).map_err(|e| refusal::redirect(&e))
    }

    pub(super) fn cancel_redirect(&mut self, now: Time, index: usize, at: RedirectAt) -> Result<Answer, Refusal> {
        let id = self.attached_process(index)?.id;
        let report = self.engine.cancel_redirect(now, id, at);
        let report = report.map_err(|e| refusal::redirect(&e))?;
        self.redirect_ended(at.export);
        Ok(Answer::Redirection(description(&report)))
    }

    /// A redirection is done, or withdrawn.
    fn redirect_ended(&mut self, export: ExportId) {
        let Some(record) = record(&mut self.exports, export).filter(|record| record.redirects > 0) else { return };
        record.redirects -= 1;
        let owner = record.owner;
        self.give_share(owner, Table::Redirections, 1);
    }

    pub(super) fn consume(&mut self, index: usize, export: u64, offset: u64, len: u64) -> Result<Answer, Refusal> {
        let id = self.attached_process(index)?.id;
        let done = self.engine.consume(id, ExportId::from_u64(export), offset, len);
        done.map(|()| Answer::Done).map_err(|e| refusal::redirect(&e))
    }
}

/// The engine's report with what has not come spelled out.
fn description(report: &RedirectReport) -> Redirection {
    let pairs = |ranges: &[ByteRange]| ranges.iter().map(|r| (r.start, r.len())).collect();
    let mut came: Vec<ByteRange> = report.copied.iter().chain(&report.redirected).copied().collect();
    came.sort();
    let mut pending = Vec::new();
    if let Some(range) = report.range {
        let mut at = range.start;
        for part in came {
            if part.start > at {
                pending.push((at, part.start - at));
            }
            at = at.max(part.end);
        }
        if at < range.end {
            pending.push((at, range.end - at));
        }
    }
    Redirection { copied: pairs(&report.copied), redirected: pairs(&report.redirected), pending }
}

#[cfg(test)]
impl Station {
    /// How many are posted, as the shares know.
    pub(crate) fn redirections(&self) -> u64 {
        self.shares.total(Table::Redirections)
    }

    /// Redirections that wait for copies, of the process that has most.
    pub(crate) fn redirecting_most(&self) -> usize {
        self.redirecting.0.iter().map(|(_, all)| all.len()).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_come_is_spelled_out() {
        let range = |start, end| ByteRange { start, end };
        let report = RedirectReport {
            range: Some(range(10, 100)),
            copied: vec![range(20, 30)],
            redirected: vec![range(10, 12), range(30, 40)],
            complete: false,
        };
        let described = description(&report);
        assert_eq!(described.pending, [(12, 8), (40, 60)]);
        assert_eq!((described.copied, described.redirected), (vec![(20, 10)], vec![(10, 2), (30, 10)]));
    }
}
