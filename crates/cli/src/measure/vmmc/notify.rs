//! A send that wakes a blocked thread, which waits for a notification or until a word changes: from
//! before the send to the thread running.
//!
//! Invariant: the receiver has blocked in the kernel when the clock starts: the library polls for a
//! while before it blocks, and that time is waited out on top of the time asleep.

use super::{Attached, TaskError, settle};
use crate::limits::PARTNER_WAIT;
use crate::measure::limit;
use crate::measure::stats::Sample;
use crate::measure::task::{Role, Task, WokenBy};
use std::os::fd::OwnedFd;
use std::time::Duration;
use vmmc::SendOptions;
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
                WokenBy::Notification => SendOptions::notify(),
                WokenBy::Word => SendOptions::default(),
            };
            let asleep = Duration::from_micros(asleep_us) + Duration::from_nanos(POLL_MAX_NS);
            let wake = |number: u64| {
                data[..size_of::<u64>()].copy_from_slice(&number.to_le_bytes());
                import.send_with(0, &data, options).map_err(TaskError::vmmc)
            };
            let sample = limit::lead_sleeps(&clock, asleep, task.budget, wake);
            settle(&import);
            sample.map(Some)
        }
        Role::Follow => {
            let export = attached.export(task.number, Role::Follow, size)?;
            limit::follow_sleeps(&clock, |number| {
                let deadline = attached.session.deadline(PARTNER_WAIT);
                match by {
                    WokenBy::Notification => export.wait_notification_by(deadline).map(drop),
                    WokenBy::Word => export.wait_word_by(0, |word| word == number, deadline).map(drop),
                }
                .map_err(TaskError::vmmc)
            })?;
            Ok(None)
        }
    }
}
