//! Transfer redirection: incoming data of a default buffer goes where the receiver wants it [NT
//! §3.1].
//!
//! Invariant: what was posted is told exactly: bytes copied because they had come before, bytes
//! that went straight to the new place, bytes still to come. The sender knows nothing of it.

use crate::buffer::Buffer;
use crate::core::{Core, End};
use crate::error::{AccessError, CallError, RedirectError, millis};
use crate::export::Export;
use crate::limits::REDIRECTIONS_MAX;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use vmmc_host::Deadline;
use vmmc_host::abi::COOKIE_REDIRECT;
use vmmc_host::control::{Answer, Call, RefusalCode};
use vmmc_nic::ExportId;

/// What happened to the bytes of a redirected range; ranges are (offset in the export, bytes).
pub type RedirectionReport = vmmc_host::control::Redirection;

/// A posted redirection. Dropping it cancels it: data that has not come goes to the export again.
pub struct Redirection {
    core: Arc<Core>,
    export: u64,
    redirect: u64,
    cookie: u64,
    range: Range<u64>,
    /// As it was when posted.
    first: RedirectionReport,
    /// Keeps the destination registered.
    _to: Buffer,
    ended: bool,
}

/// Redirections of the session that are not complete, by cookie.
#[derive(Default)]
pub(crate) struct Redirects {
    /// True: all bytes have come.
    posted: Mutex<HashMap<u64, bool>>,
    serial: AtomicU64,
}

impl Redirects {
    fn add(&self) -> Option<u64> {
        let mut posted = self.lock();
        if posted.len() >= REDIRECTIONS_MAX {
            return None;
        }
        let cookie = COOKIE_REDIRECT | self.serial.fetch_add(1, Ordering::Relaxed) & (COOKIE_REDIRECT - 1);
        posted.insert(cookie, false);
        Some(cookie)
    }

    pub(crate) fn complete(&self, cookie: u64) {
        if let Some(done) = self.lock().get_mut(&cookie) {
            *done = true;
        }
    }

    fn is_complete(&self, cookie: u64) -> bool {
        self.lock().get(&cookie).copied().unwrap_or(false)
    }

    fn remove(&self, cookie: u64) {
        self.lock().remove(&cookie);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, bool>> {
        self.posted.lock().expect("no panic while the lock is held")
    }
}

impl Export {
    /// Posts another destination for data that comes to a range of this export, which must be
    /// redirectable.
    ///
    /// What has come already (since it was last consumed) is copied now; the rest goes straight to
    /// the buffer when it comes. Until the redirection is complete or cancelled the buffer's range
    /// belongs to it.
    ///
    /// # Errors
    /// [`RedirectError`]; at most [`Limits::redirections`](crate::Limits::redirections) at once.
    pub fn redirect(&self, range: Range<u64>, to: &Buffer, to_offset: u64) -> Result<Redirection, RedirectError> {
        let len = range.end.saturating_sub(range.start);
        self.check(range.start, len)?;
        to.check(to_offset, len)?;
        let core = self.core();
        if !to.is_of(core) {
            return Err(RedirectError::ForeignBuffer);
        }
        let cookie = core.redirects.add().ok_or(RedirectError::TooMany { max: REDIRECTIONS_MAX })?;
        let call = Call::Redirect {
            export: self.id().to_u64(),
            offset: range.start,
            len,
            region: to.region_id(),
            region_offset: to.region_offset(to_offset),
            cookie,
        };
        let error = |error| RedirectError::Call { export: self.id().to_string(), offset: range.start, len, error };
        let answer = core.call(call, &[], core.default_deadline());
        match answer {
            Ok((Answer::Redirected { redirect, report }, _)) => Ok(Redirection {
                core: core.clone(),
                export: self.id().to_u64(),
                redirect,
                cookie,
                range,
                first: report,
                _to: to.clone(),
                ended: false,
            }),
            other => {
                core.redirects.remove(cookie);
                Err(error(other.err().unwrap_or_else(|| core.wrong_answer("to a redirection"))))
            }
        }
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
    /// What has happened so far.
    ///
    /// # Errors
    /// [`RedirectError`].
    pub fn report(&self) -> Result<RedirectionReport, RedirectError> {
        if self.is_complete() {
            return Ok(self.complete_report());
        }
        self.ask(Call::RedirectReport { redirect: self.redirect })
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
        let start = self.core.waiting.waiter.now();
        match self.core.wait(deadline, || self.is_complete().then_some(())) {
            Ok(()) => Ok(self.complete_report()),
            Err(End::TimedOut) => {
                let pending = self.report()?.pending.iter().map(|(_, len)| len).sum();
                let after_ms = millis(self.core.waiting.waiter.now().since(start));
                Err(RedirectError::TimedOut { export: self.name(), pending, after_ms })
            }
            Err(end) => Err(self.error(self.core.call_error(end, Default::default()))),
        }
    }

    /// Ends it: data that has not come goes to the export again. Tells what has happened until
    /// then.
    ///
    /// # Errors
    /// [`RedirectError`].
    pub fn cancel(mut self) -> Result<RedirectionReport, RedirectError> {
        self.ended = true;
        if self.is_complete() {
            return Ok(self.complete_report());
        }
        self.ask(Call::CancelRedirect { redirect: self.redirect })
    }

    fn is_complete(&self) -> bool {
        self.first.pending.is_empty() || self.core.redirects.is_complete(self.cookie)
    }

    /// Once all has come, what was not copied at the start was redirected.
    fn complete_report(&self) -> RedirectionReport {
        let redirected = without(&self.range, &self.first.copied);
        RedirectionReport { copied: self.first.copied.clone(), redirected, pending: Vec::new() }
    }

    fn ask(&self, call: Call) -> Result<RedirectionReport, RedirectError> {
        match self.core.call(call, &[], self.core.default_deadline()) {
            Ok((Answer::Redirection(report), _)) => Ok(report),
            Ok(_) => Err(self.error(self.core.wrong_answer("about a redirection"))),
            // The last bytes came meanwhile, and the node has forgotten it.
            Err(CallError::Refused(r)) if matches!(r.code, RefusalCode::UnknownName | RefusalCode::Stale) => {
                Ok(self.complete_report())
            }
            Err(error) => Err(self.error(error)),
        }
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
        if !self.ended && !self.is_complete() {
            // Waits for the node, so that data of sends that begin after this goes to the export. A
            // node that is gone redirects nothing.
            let _ = self.ask(Call::CancelRedirect { redirect: self.redirect });
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
