//! Transfer redirection [NT §3.1]: from the words of a process to the engine's, and its report
//! back.
//!
//! Invariant: the destination lies in memory of the same process before the engine hears of it.
//! What had arrived is copied a piece at a time, processes in turns; the answer comes when all of
//! it is copied.

use super::Station;
use super::refusal::{self, refusal as refuse};
use super::shares::Table;
use crate::limits::CONTROL_WORK_COPIED_BYTES;
use std::collections::VecDeque;
use vmmc_host::control::{Answer, Call, Redirection, Refusal, RefusalCode};
use vmmc_nic::limits::LOCAL_PIECE_BYTES;
use vmmc_nic::{ByteRange, Cookie, ExportId, ProcessId, RedirectId, RedirectReport, RegionId, RegionRef, Time};

/// A redirection that does not cover its range yet, and the call that waits for it.
struct Waiting {
    index: usize,
    /// Of the connection: the index may belong to another one by now.
    number: u64,
    serial: u64,
    redirect: RedirectId,
}

/// All of them, by process: bounded by the shares of redirections.
#[derive(Default)]
pub(super) struct Redirecting(VecDeque<(ProcessId, VecDeque<Waiting>)>);

impl Redirecting {
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, process: ProcessId, waiting: Waiting) {
        match self.0.iter_mut().find(|(id, _)| *id == process) {
            Some((_, all)) => all.push_back(waiting),
            None => self.0.push_back((process, VecDeque::from([waiting]))),
        }
    }
}

impl Station {
    /// None: the answer comes when what had arrived is copied.
    pub(super) fn redirect(
        &mut self,
        now: Time,
        index: usize,
        serial: u64,
        call: Call,
    ) -> Result<Option<Answer>, Refusal> {
        let Call::Redirect { export, offset, len, region, region_offset, cookie } = call else {
            unreachable!("called for redirections only");
        };
        let id = self.attached_process(index)?.id;
        let to = RegionId(region);
        self.memory
            .check(RegionRef { process: id, region: to }, region_offset, len)
            .map_err(|e| refuse(RefusalCode::OutOfBounds, format!("destination region {region}: {e}")))?;
        let (export, cookie) = (ExportId::from_u64(export), Cookie(cookie));
        self.take_share(index, Table::Redirections, 1)?;
        let redirect = self
            .engine
            .redirect(now, id, export, offset, len, to, region_offset, cookie, &mut self.memory)
            .map_err(|e| refusal::redirect(&e));
        let (redirect, report) = match redirect {
            Ok(redirect) => redirect,
            Err(refusal) => {
                self.give_share(index, Table::Redirections, 1);
                return Err(refusal);
            }
        };
        if let Some(record) = self.export_record(export) {
            record.redirects += 1;
        }
        let copied = report.as_ref().map_or(LOCAL_PIECE_BYTES, |r| r.copied.iter().map(|range| range.len()).sum());
        self.charge(index, (copied / CONTROL_WORK_COPIED_BYTES) as usize);
        match report {
            Some(report) => Ok(Some(redirected(redirect, &report))),
            None => {
                let number = self.connections[index].as_ref().map_or(0, |connection| connection.number);
                self.redirecting.add(id, Waiting { index, number, serial, redirect });
                Ok(None)
            }
        }
    }

    /// Counts work for the user of a connection beyond what its message said.
    pub(super) fn charge(&mut self, index: usize, work: usize) {
        if let Some(connection) = &self.connections[index] {
            *self.turn.entry(connection.who.uid).or_default() += work;
        }
    }

    /// Copies a piece for the process whose turn it is.
    pub(super) fn serve_redirections(&mut self, now: Time) -> bool {
        let Some((process, mut all)) = self.redirecting.0.pop_front() else { return false };
        if let Some(first) = all.front() {
            let answer = match self.engine.advance_redirect(now, process, first.redirect, &mut self.memory) {
                Ok(None) => None,
                Ok(Some(report)) => Some(Ok(redirected(first.redirect, &report))),
                // Withdrawn meanwhile, or its export has gone.
                Err(why) => Some(Err(refusal::redirect(&why))),
            };
            if let Some(answer) = answer {
                let is_there = self.connections[first.index].as_ref().is_some_and(|c| c.number == first.number);
                if is_there {
                    self.reply(first.index, first.serial, answer, Vec::new());
                }
                all.pop_front();
            }
        }
        if !all.is_empty() {
            self.redirecting.0.push_back((process, all));
        }
        true
    }

    pub(super) fn redirect_report(&mut self, index: usize, redirect: u64) -> Result<Answer, Refusal> {
        let id = self.attached_process(index)?.id;
        let report = self.engine.redirect_report(id, RedirectId::from_u64(redirect));
        report.map(|r| Answer::Redirection(description(&r))).map_err(|e| refusal::redirect(&e))
    }

    pub(super) fn cancel_redirect(&mut self, now: Time, index: usize, redirect: u64) -> Result<Answer, Refusal> {
        let id = self.attached_process(index)?.id;
        let report = self.engine.cancel_redirect(now, id, RedirectId::from_u64(redirect));
        let report = report.map_err(|e| refusal::redirect(&e))?;
        self.redirect_ended(id, RedirectId::from_u64(redirect));
        Ok(Answer::Redirection(description(&report)))
    }

    /// A redirection is done, or withdrawn.
    pub(super) fn redirect_ended(&mut self, process: ProcessId, redirect: RedirectId) {
        let Some(record) = self.exports.get_mut(redirect.slot as usize).and_then(Option::as_mut) else { return };
        if record.at.process != process || record.redirects == 0 {
            return;
        }
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

fn redirected(redirect: RedirectId, report: &RedirectReport) -> Answer {
    Answer::Redirected { redirect: redirect.to_u64(), report: description(report) }
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
