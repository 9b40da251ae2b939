//! Transfer redirection [NT §3.1]: from the words of a process to the engine's, and its report back.
//!
//! Invariant: the destination lies in memory of the same process before the engine hears of it.

use super::Station;
use super::refusal::{self, refusal as refuse};
use super::shares::Table;
use vmmc_host::control::{Answer, Call, Redirection, Refusal, RefusalCode};
use vmmc_nic::{ByteRange, Cookie, ExportId, ProcessId, RedirectId, RedirectReport, RegionId, RegionRef, Time};

impl Station {
    pub(super) fn redirect(&mut self, now: Time, index: usize, call: Call) -> Result<Answer, Refusal> {
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
        let redirect = match redirect {
            Ok(redirect) => redirect,
            Err(refusal) => {
                self.give_share(index, Table::Redirections, 1);
                return Err(refusal);
            }
        };
        if let Some(record) = self.export_record(export) {
            record.redirects += 1;
        }
        // A redirection whose bytes had all come is complete, and the engine may have forgotten it: then all of it was copied.
        let all = RedirectReport {
            range: Some(ByteRange { start: offset, end: offset + len }),
            copied: vec![ByteRange { start: offset, end: offset + len }],
            redirected: Vec::new(),
            complete: true,
        };
        let report = self.engine.redirect_report(id, redirect).unwrap_or(all);
        Ok(Answer::Redirected { redirect: redirect.to_u64(), report: description(&report) })
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
