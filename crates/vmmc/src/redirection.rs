//! Transfer redirection: incoming data of a default buffer goes where the receiver wants it [NT
//! §3.1].
//!
//! Invariant: what was posted is reported exactly: bytes copied because they had come before, bytes
//! that went straight to the new place, bytes still to come. The sender knows nothing of it.
//! Commands go through the ring in the order of the calls, so that a redirection can be withdrawn
//! whose answer has not come yet.

use crate::buffer::Buffer;
use crate::core::{Core, End, Limit};
use crate::error::{AccessError, CallError, RedirectError, millis};
use crate::export::Export;
use crate::limits::REDIRECTIONS_MAX;
use crate::redirects::{Outcome, State};
use crate::slots::Hold;
use std::ops::Range;
use std::sync::Arc;
use vmmc_host::Deadline;
use vmmc_host::abi::{Op, RawCommand, flags};
use vmmc_host::control::{Answer, Call, RefusalCode};
use vmmc_nic::ExportId;

/// What happened to the bytes of a redirected range; ranges are (offset in the export, bytes).
pub type RedirectionReport = vmmc_host::control::Redirection;

/// A posted redirection. Dropping it cancels it: data that has not come goes to the export again.
pub struct Redirection {
    core: Arc<Core>,
    export: u64,
    cookie: u64,
    range: Range<u64>,
    /// Keeps the destination registered.
    to: Buffer,
    ended: bool,
}

impl Export {
    /// Posts another destination for data that comes to a range of this export, which must be
    /// redirectable, and waits until it is posted.
    ///
    /// What has come already (since it was last consumed) is copied now; the rest goes straight to
    /// the buffer when it comes. Until the redirection is complete or cancelled the buffer's range
    /// belongs to it.
    ///
    /// # Errors
    /// [`RedirectError`]; at most [`Limits::redirections`](crate::Limits::redirections) at once,
    /// 4,096 of them on one export.
    pub fn redirect(&self, range: Range<u64>, to: &Buffer, to_offset: u64) -> Result<Redirection, RedirectError> {
        let redirection = self.post_redirect(range, to, to_offset)?;
        redirection.wait_posted(redirection.core.default_deadline())?;
        Ok(redirection)
    }

    /// As [`redirect`](Self::redirect), but does not wait: to post many, one call behind the other,
    /// at some hundred nanoseconds each. Errors that only the node can find are reported by
    /// [`Redirection::wait`] and [`Redirection::report`]. What is posted keeps its order; a call
    /// that asks the node something, as [`consume`](Self::consume) does, may come before it.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let session = vmmc::Session::attach()?;
    /// let export = session.export(1 << 20).redirectable(true).create()?;
    /// let buffer = session.buffer(1 << 20)?;
    /// // Receive buffers for 1,024 messages of 1 KiB, posted ahead.
    /// let places = (0..1024).map(|at| at * 1024);
    /// let posted: Result<Vec<_>, _> =
    ///     places.map(|at| export.post_redirect(at..at + 1024, &buffer, at)).collect();
    /// for redirection in posted? {
    ///     redirection.wait()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RedirectError`], if the ranges are wrong, or too many are posted, or the command ring
    /// stays full for the session's timeout.
    pub fn post_redirect(&self, range: Range<u64>, to: &Buffer, to_offset: u64) -> Result<Redirection, RedirectError> {
        let len = range.end.saturating_sub(range.start);
        self.check(range.start, len)?;
        to.check(to_offset, len)?;
        let core = self.core();
        if !to.is_of(core) {
            return Err(RedirectError::ForeignBuffer);
        }
        core.must_be_here()?;
        let export = self.id().to_u64();
        let cookie = core.redirects.add(export).ok_or(RedirectError::TooMany { max: REDIRECTIONS_MAX })?;
        let mut command = RawCommand::new(Op::Redirect, export);
        (command.cookie, command.offset, command.len) = (cookie, range.start, len);
        command.region = u64::from(to.region_id());
        command.region_offset = to.region_offset(to_offset);
        let mut redirection = Redirection { core: core.clone(), export, cookie, range, to: to.clone(), ended: false };
        let limit = Limit::within(core, core.timeout());
        if let Err(end) = core.post(&command, &[], &limit) {
            redirection.ended = true;
            return Err(redirection.error(core.call_error(end, limit.waited())));
        }
        Ok(redirection)
    }

    /// The data in this range of a redirectable export has been used; the next arrival counts as
    /// new.
    ///
    /// # Errors
    /// [`RedirectError`].
    pub fn consume(&self, range: Range<u64>) -> Result<(), RedirectError> {
        let len = range.end.saturating_sub(range.start);
        self.check(range.start, len)?;
        let core = self.core();
        let call = Call::Consume { export: self.id().to_u64(), offset: range.start, len };
        core.call(call, &[], core.default_deadline()).map(drop).map_err(|error| RedirectError::Call {
            export: self.id().to_string(),
            offset: range.start,
            len,
            error,
        })
    }
}

impl Redirection {
    /// Whether all bytes have come, or it is known that they never will: then
    /// [`wait`](Self::wait) returns at once. Polls what has come from the node; never waits.
    pub fn is_over(&self) -> bool {
        self.core.collect_if_free();
        self.core.is_forked() || self.outcome().is_some()
    }

    /// What has happened so far.
    ///
    /// # Errors
    /// [`RedirectError`].
    pub fn report(&self) -> Result<RedirectionReport, RedirectError> {
        let (export, offset, cookie) = (self.export, self.range.start, self.cookie);
        self.ask(Call::RedirectReport { export, offset, cookie })
    }

    /// Waits the session's timeout until all bytes have come.
    ///
    /// # Errors
    /// [`RedirectError::TimedOut`] with the number of bytes that have not come.
    pub fn wait(&self) -> Result<RedirectionReport, RedirectError> {
        self.wait_by(self.core.default_deadline())
    }

    /// As [`wait`](Self::wait), until a deadline.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_by(&self, deadline: Deadline) -> Result<RedirectionReport, RedirectError> {
        self.core.must_be_here()?;
        let start = self.core.waiting.waiter.now();
        match self.core.wait(deadline, || self.outcome()) {
            Ok(outcome) => self.finish(outcome),
            Err(End::TimedOut) => {
                let pending = self.report()?.pending.iter().map(|(_, len)| len).sum();
                let after_ms = millis(self.core.waiting.waiter.now().since(start));
                Err(RedirectError::TimedOut { export: self.name(), pending, after_ms })
            }
            Err(end) => Err(self.error(self.core.call_error(end, Default::default()))),
        }
    }

    /// Ends it: data that has not come goes to the export again. Returns what has happened so far.
    ///
    /// # Errors
    /// [`RedirectError`].
    pub fn cancel(mut self) -> Result<RedirectionReport, RedirectError> {
        let (export, offset, cookie) = (self.export, self.range.start, self.cookie);
        let report = self.ask(Call::CancelRedirect { export, offset, cookie });
        self.ended = report.is_ok();
        report
    }

    /// Waits until the node has said that it is posted, or that it is not.
    fn wait_posted(&self, deadline: Deadline) -> Result<(), RedirectError> {
        let start = self.core.waiting.waiter.now();
        let answered = || Some(self.core.redirects.state(self.cookie)).filter(|state| *state != State::Asked);
        match self.core.wait(deadline, answered) {
            Ok(State::Over(outcome @ (Outcome::Refused(_) | Outcome::ExportEnded | Outcome::Unknown))) => {
                self.finish(outcome).map(drop)
            }
            Ok(_) => Ok(()),
            Err(end) => {
                let waited = self.core.waiting.waiter.now().since(start);
                Err(self.error(self.core.call_error(end, waited)))
            }
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn has_outcome(&self) -> bool {
        self.outcome().is_some()
    }

    fn outcome(&self) -> Option<Outcome> {
        match self.core.redirects.state(self.cookie) {
            State::Over(outcome) => Some(outcome),
            State::Asked | State::Posted => None,
        }
    }

    fn finish(&self, outcome: Outcome) -> Result<RedirectionReport, RedirectError> {
        let (offset, len) = (self.range.start, self.range.end - self.range.start);
        match outcome {
            // What was not copied came straight.
            Outcome::Whole { copied } => {
                let redirected = without(&self.range, &copied);
                Ok(RedirectionReport { copied, redirected, pending: Vec::new() })
            }
            Outcome::Refused(error) => Err(RedirectError::Refused { export: self.name(), offset, len, error }),
            Outcome::ExportEnded => Err(RedirectError::ExportEnded { export: self.name() }),
            Outcome::Unknown => Err(self.error(self.core.wrong_answer("to a redirection"))),
        }
    }

    /// Asks the node about it, unless everything is known.
    fn ask(&self, call: Call) -> Result<RedirectionReport, RedirectError> {
        self.core.must_be_here()?;
        let deadline = self.core.default_deadline();
        self.wait_posted(deadline)?;
        if let Some(outcome) = self.outcome() {
            return self.finish(outcome);
        }
        match self.core.call(call, &[], deadline) {
            Ok((Answer::Redirection(report), _)) => Ok(report),
            Ok(_) => Err(self.error(self.core.wrong_answer("about a redirection"))),
            // The last bytes came meanwhile, of which we learn in a moment; or another thread ends
            // the export.
            Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::Stale => {
                match self.core.wait(deadline, || self.outcome()) {
                    Ok(outcome) => self.finish(outcome),
                    Err(_) => Err(self.error(CallError::Refused(refusal))),
                }
            }
            Err(error) => Err(self.error(error)),
        }
    }

    /// Withdraws it, and waits until the node has: so that data of sends that begin after this goes
    /// to the export, and the buffer is its owner's again.
    fn withdraw(&self) -> Result<(), End> {
        let core = &*self.core;
        let limit = Limit::within(core, core.timeout());
        core.usable()?;
        let answer = core.reserve(&limit)?;
        core.slots.hold(answer, Hold::Memory(self.to.registered()));
        let mut command = RawCommand::new(Op::CancelRedirect, self.export);
        command.flags = flags::COMPLETE;
        (command.cookie, command.offset, command.counter) = (answer, self.range.start, self.cookie);
        if let Err(end) = core.post(&command, &[], &limit) {
            core.release(core.slots.cancel(answer));
            return Err(end);
        }
        match core.wait(limit.deadline(), || core.slots.take(answer)) {
            Ok((_, hold)) => core.release(hold),
            Err(_) => core.release(core.slots.abandon(answer)),
        }
        Ok(())
    }

    fn error(&self, error: CallError) -> RedirectError {
        let (offset, len) = (self.range.start, self.range.end - self.range.start);
        RedirectError::Call { export: self.name(), offset, len, error }
    }

    fn name(&self) -> String {
        ExportId::from_u64(self.export).to_string()
    }
}

impl Drop for Redirection {
    fn drop(&mut self) {
        // In a child of the process another thread may have held the lock when it forked.
        if self.core.is_forked() {
            return;
        }
        if !self.ended && self.outcome().is_none() {
            // A node that is gone redirects nothing.
            let _ = self.withdraw();
        }
        self.core.redirects.remove(self.cookie);
    }
}

/// The parts of a range that are in none of `parts`, which are sorted and disjoint.
fn without(range: &Range<u64>, parts: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    let mut from = range.start;
    for (offset, len) in parts {
        if *offset > from {
            left.push((from, offset - from));
        }
        from = from.max(offset + len);
    }
    if from < range.end {
        left.push((from, range.end - from));
    }
    left
}

impl From<vmmc_host::region::OutOfBounds> for AccessError {
    fn from(e: vmmc_host::region::OutOfBounds) -> AccessError {
        AccessError::OutOfBounds { offset: e.offset, len: e.len, size: e.size }
    }
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn what_was_not_copied_was_redirected() {
        assert_eq!(without(&(0..100), &[]), [(0, 100)]);
        assert_eq!(without(&(10..100), &[(10, 20), (50, 10)]), [(30, 20), (60, 40)]);
        assert_eq!(without(&(0..10), &[(0, 10)]), []);
    }
}
