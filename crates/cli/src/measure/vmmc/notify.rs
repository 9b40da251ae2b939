//! A send that wakes a blocked thread, which waits for a notification, until a word changes, or for
//! the first of several things: from before the send to the thread running.
//!
//! Invariant: the receiver has blocked in the kernel when the clock starts: the library polls for a
//! while before it blocks, and that time is waited out on top of the time asleep.

use super::{Attached, TaskError, flush_last};
use crate::limits::PARTNER_WAIT;
use crate::measure::limit;
use crate::measure::stats::Sample;
use crate::measure::task::{Role, Task, WokenBy};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vmmc::{SendOptions, WaitFor};
use vmmc_host::limits::POLL_MAX_NS;

/// Plays one half.
pub(super) fn measure(
    attached: &Attached,
    task: &Task,
    (by, asleep_us): (WokenBy, u64),
    mut fds: Vec<OwnedFd>,
) -> Result<Option<Sample>, TaskError> {
    let fd = fds.pop().ok_or_else(|| TaskError::Protocol("a region belongs to this task".into()))?;
    let clock = limit::shared(fd)?;
    let size = task.size.max(8);
    match task.role {
        Role::Lead => {
            let import = attached.import(task.number, Role::Follow)?;
            let mut data = vec![1; size as usize];
            let options = match by {
                WokenBy::Notification | WokenBy::Any => SendOptions::notify(),
                WokenBy::Word => SendOptions::default(),
            };
            let asleep = Duration::from_micros(asleep_us) + Duration::from_nanos(POLL_MAX_NS);
            let wake = |number: u64| {
                data[..size_of::<u64>()].copy_from_slice(&number.to_le_bytes());
                import.send_with(0, &data, options).map_err(TaskError::vmmc)
            };
            let sample = limit::lead_sleeps(&clock, asleep, task.budget, wake);
            flush_last(&import);
            sample.map(Some)
        }
        Role::Follow => {
            let export = attached.export(task.number, Role::Follow, size)?;
            // Nothing comes by it.
            let (line, _other_end) = UnixStream::pair()?;
            limit::follow_sleeps(&clock, |number| {
                let deadline = attached.session.deadline(PARTNER_WAIT);
                let is_new = |word| word == number;
                match by {
                    WokenBy::Notification => export.wait_notification_by(deadline).map(drop),
                    WokenBy::Any => {
                        let word = WaitFor::Word { export: &export, offset: 0, ready: &|_| false };
                        let what = &mut [word, WaitFor::NotificationOf(&export), WaitFor::Readable(line.as_fd())];
                        attached.session.wait_any_by(what, deadline).map(|_| _ = export.take_notification())
                    }
                    WokenBy::Word => export.wait_word_by(0, is_new, deadline).map(drop),
                }
                .map_err(TaskError::vmmc)
            })?;
            Ok(None)
        }
    }
}
