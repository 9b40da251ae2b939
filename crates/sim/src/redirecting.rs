//! The receiver's side of transfer redirection: posting, cancelling, asking for reports, consuming
//! [NT §3.1].
//!
//! Invariant: redirections cover data only, never the counters and atomics at the start of a
//! region.

use vmmc_nic::RedirectError;

use crate::cluster::Cluster;
use crate::events::redirect_cookie;
use crate::limits::{ROW_MAX, WORDS_BYTES};
use crate::model::{ExportKey, ProcKey, Redirect, RedirectKey, RegionKey, RegionUse, Seen};
use crate::spans::Spans;

impl Cluster {
    /// One action on a random redirectable export of the process.
    pub(crate) fn do_redirection(&mut self, proc: ProcKey) {
        let mut exports = self.model.live_exports(proc);
        exports.retain(|&e| self.model.exports[e].redirectable);
        let Some(export) = self.rng.index(exports.len()).map(|i| exports[i]) else { return };
        let active = |r: &RedirectKey| !self.model.redirects[*r].ended;
        let redirects: Vec<RedirectKey> = self.model.exports[export].redirects.iter().copied().filter(active).collect();
        let chosen = self.rng.index(redirects.len()).map(|i| redirects[i]);
        match (self.rng.below(10), chosen) {
            (0..2, Some(redirect)) => self.cancel_redirect(proc, redirect),
            (2..4, Some(redirect)) => self.report_redirect(proc, redirect),
            (4..5, _) => self.consume(proc, export),
            (5..7, _) => self.redirect_row(proc, export),
            _ => self.redirect_some(proc, export),
        }
    }

    /// One redirection of a random range.
    fn redirect_some(&mut self, proc: ProcKey, export: ExportKey) {
        let Some((offset, len)) = self.redirectable_range(export, 6_000) else { return };
        let (target, target_offset) = self.target(proc, len);
        self.redirect(proc, export, (offset, len), (target, target_offset));
    }

    /// Receive buffers for several messages, one behind the other, so that a deposit covers many.
    fn redirect_row(&mut self, proc: ProcKey, export: ExportKey) {
        let len = self.rng.between(1, 100);
        let Some((offset, room)) = self.redirectable_range(export, ROW_MAX * len) else { return };
        let (target, target_offset) = self.target(proc, room);
        for at in (0..room / len).map(|number| number * len) {
            self.redirect(proc, export, (offset + at, len), (target, target_offset + at));
        }
    }

    /// A range of the export's data of at most that length.
    fn redirectable_range(&mut self, export: ExportKey, len_max: u64) -> Option<(u64, u64)> {
        let facts = &self.model.exports[export];
        let first = WORDS_BYTES.saturating_sub(facts.offset);
        let room = facts.len.checked_sub(first + 1)?;
        let offset = first + self.rng.below(room);
        Some((offset, self.rng.between(1, len_max).min(self.model.exports[export].len - offset)))
    }

    fn redirect(&mut self, proc: ProcKey, export: ExportKey, range: (u64, u64), target: (RegionKey, u64)) {
        let ((offset, len), (target, target_offset)) = (range, target);
        let key = self.model.add_redirect(Redirect {
            export,
            at: None,
            offset,
            len,
            target,
            target_offset,
            ended: false,
            done: false,
            orphaned: false,
            copied: Spans::default(),
            direct: Spans::default(),
        });
        let (node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        let (id, to) = (self.model.exports[export].id, self.model.regions[target].at.region);
        self.judge.note(&self.model, format_args!("{proc} posts redirection {key}: {:?}", self.model.redirects[key]));
        let cookie = redirect_cookie(key);
        let wanted = vmmc_nic::Redirect { export: id, offset, len, to, to_offset: target_offset, cookie };
        match self.call_raw(node, |engine, now, port| engine.redirect(now, pid, wanted, port)) {
            // Its ranges are shorter than what is copied at once.
            Some(Ok(report)) => {
                assert!(report.is_some(), "{key} covers its range");
                self.redirects_made += 1;
                self.model.redirects[key].at = Some(wanted.at());
                self.judge.see(&mut self.model, &Seen::RedirectPosted { redirect: key });
            }
            Some(Err(why)) => {
                // No export ever has as many as the engine takes.
                let overlaps = matches!(why, RedirectError::Overlap { .. });
                if !(overlaps && self.model.is_redirected(export, offset, len, key)) {
                    self.fail("honest-errors", format!("redirection {key} was refused without a reason: {why:?}"));
                }
                self.model.redirects[key].ended = true;
            }
            None => {}
        }
        self.run_to_quiescence(node);
    }

    /// Memory to redirect to, in a new region.
    fn target(&mut self, proc: ProcKey, len: u64) -> (RegionKey, u64) {
        let pad = self.rng.below(32);
        let bytes = vec![0xcc; (pad + len + 16) as usize];
        (self.new_region(proc, RegionUse::Target, bytes), pad)
    }

    fn cancel_redirect(&mut self, proc: ProcKey, key: RedirectKey) {
        let Some(at) = self.model.redirects[key].at else { return };
        let (node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        self.judge.note(&self.model, format_args!("{proc} cancels redirection {key}"));
        match self.call_raw(node, |engine, now, _| engine.cancel_redirect(now, pid, at)) {
            Some(Ok(report)) => {
                self.judge.see(&mut self.model, &Seen::Redirected { redirect: key, report, done: false })
            }
            result => self.fail("honest-errors", format!("cancelling redirection {key} gave {result:?}")),
        }
        self.model.redirects[key].ended = true;
        self.model.redirects[key].orphaned = true;
        self.run_to_quiescence(node);
    }

    fn report_redirect(&mut self, proc: ProcKey, key: RedirectKey) {
        let Some(at) = self.model.redirects[key].at else { return };
        let (node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        match self.call_raw(node, |engine, _, _| engine.redirect_report(pid, at)) {
            Some(Ok(report)) => {
                self.judge.see(&mut self.model, &Seen::Redirected { redirect: key, report, done: false })
            }
            result => self.fail("honest-errors", format!("a report on redirection {key} gave {result:?}")),
        }
        self.run_to_quiescence(node);
    }

    fn consume(&mut self, proc: ProcKey, export: ExportKey) {
        let size = self.model.exports[export].len;
        let offset = self.rng.below(size);
        let len = self.rng.between(1, size - offset);
        let (node, pid) = (self.model.procs[proc].node, self.model.procs[proc].pid);
        let id = self.model.exports[export].id;
        match self.call_raw(node, |engine, _, _| engine.consume(pid, id, offset, len)) {
            Some(Ok(())) => self.model.exports[export].arrived.remove(offset, offset + len),
            result => {
                self.fail("honest-errors", format!("consuming {len} bytes at {offset} of {export} gave {result:?}"))
            }
        }
        self.run_to_quiescence(node);
    }
}
