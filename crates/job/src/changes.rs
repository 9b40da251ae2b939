//! Changes of members: a descriptor that is readable when the set of members may have changed.
//!
//! A member that asks for it exports a word; the supervisor writes the number of each new view
//! there, and notifies. A handler of that export alone passes this on to the descriptor, so neither
//! the session's own descriptor nor its notifications show any of it.
//!
//! Invariant: after a change the descriptor is readable until [`Job::changes`](super::Job::changes)
//! is called. It is also readable once the node has gone.

use crate::error::JobError;
use crate::member::{ASK_CHANGES, Job};
use crate::protocol::CHANGES_NAME;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use vmmc::{Export, HandlerGuard, WaitError};

/// Makes a descriptor readable when the set of members may have changed.
pub(crate) struct ChangeNotifier {
    event: OwnedFd,
    /// In this order: the handler ends before its export. None for jobs that never change.
    _handler: Option<HandlerGuard>,
    _export: Option<Export>,
}

impl ChangeNotifier {
    pub(crate) fn new(job: &Job) -> Result<ChangeNotifier, JobError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| system(e.into()))?;
        if job.is_fixed() {
            return Ok(ChangeNotifier { event, _handler: None, _export: None });
        }
        let export = job.export(CHANGES_NAME, size_of::<u64>() as u64).notify(true).create()?;
        let bell = Bell(event.try_clone().map_err(system)?);
        let handler = export.on_notification(move |_| bell.ring());
        job.ask(ASK_CHANGES)?;
        Ok(ChangeNotifier { event, _handler: Some(handler?), _export: Some(export) })
    }

    /// The caller is about to read the changes.
    pub(crate) fn clear(&self) {
        // Nothing in it is as good.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    /// Sleeps until the descriptor is readable, or for this long.
    pub(crate) fn sleep(&self, time: Duration) {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        // An interrupted poll is a short one.
        let _ = poll(&mut [PollFd::new(&self.event, PollFlags::IN)], Some(&time));
    }
}

impl AsFd for ChangeNotifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Rings a last time when its handler ends, which it does when the node has gone.
struct Bell(OwnedFd);

impl Bell {
    fn ring(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}

fn system(error: std::io::Error) -> JobError {
    WaitError::System { what: "descriptor for changes of members".into(), why: error.to_string() }.into()
}
