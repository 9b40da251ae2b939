//! Transfer redirection [NT §3.2]: from the send until the receiver has the data where it wants it
//! and has said so.
//!
//! Invariant: in every round the data ends up in the receiver's own buffer, by whichever way is
//! measured.

use super::{Attached, TaskError, flush_last};
use crate::limits::{SAMPLES_MAX, SAMPLES_MIN};
use crate::measure::ping::timed;
use crate::measure::stats::Sample;
use crate::measure::task::{RedirectWhen, Role, Task};
use std::time::Instant;
use vmmc::{Buffer, Export, Import, Redirection, Rights};

/// Words of the leader's export: the follower has the data of this round; the follower is ready for
/// this round.
const HAS: u64 = 0;
const READY: u64 = 64;
/// Round number that ends the measurement.
const OVER: u64 = u64::MAX;
/// Redirections of a row.
const ROW: u64 = 1024;

/// Plays one half.
pub(super) fn measure(attached: &Attached, task: &Task, when: RedirectWhen) -> Result<Option<Sample>, TaskError> {
    let len = task.size.next_multiple_of(8);
    match task.role {
        Role::Lead => {
            let export = attached.export(task.number, Role::Lead, 4096)?;
            let import = attached.import(task.number, Role::Follow)?;
            lead(attached, task, len, &export, &import).map(Some)
        }
        Role::Follow => {
            let builder = attached.session.export(len).name(&super::name(task.number, Role::Follow));
            let redirectable = when != RedirectWhen::Never;
            let export = builder.rights(Rights::ALL).redirectable(redirectable).create().map_err(TaskError::vmmc)?;
            let import = attached.import(task.number, Role::Lead)?;
            let to = attached.session.buffer(len).map_err(TaskError::vmmc)?;
            Follower { export, import, to, len, when }.follow()?;
            Ok(None)
        }
    }
}

/// From the first call until the node has the last one of a row; or until it has given them all up.
/// Nothing is sent.
pub(super) fn post(attached: &Attached, task: &Task, withdraw: bool) -> Result<Option<Sample>, TaskError> {
    // The receiver posts; the other one only says when it is over.
    if task.role == Role::Follow {
        return super::once::one_sided(attached, task, |_| unreachable!("it is the lead's")).map(|_| None);
    }
    let len = task.size.max(ROW);
    let builder = attached.session.export(len).name(&format!("{}-row", super::name(task.number, Role::Lead)));
    let export = builder.redirectable(true).create().map_err(TaskError::vmmc)?;
    let to = attached.session.buffer(len).map_err(TaskError::vmmc)?;
    super::once::one_sided(attached, task, |_| {
        let end = Instant::now() + task.budget;
        let mut times = Vec::new();
        while (Instant::now() < end || (times.len() as u64) < SAMPLES_MIN) && (times.len() as u64) < SAMPLES_MAX {
            let mut posted = Vec::new();
            let posting = timed(|| {
                posted = post_row(&export, &to, len)?;
                Ok(())
            })?;
            let withdrawing = timed(|| {
                posted.clear();
                Ok(())
            })?;
            times.push(if withdraw { withdrawing } else { posting }.as_nanos() as f64);
        }
        Ok(Sample::latency(&mut times, ROW as f64).expect("at least SAMPLES_MIN samples were taken"))
    })
}

/// Cuts a range into a row of redirections, of at least a byte each; the node has them when this
/// returns.
fn post_row(export: &Export, to: &Buffer, len: u64) -> Result<Vec<Redirection>, TaskError> {
    let count = ROW.min(len);
    let each = len / count;
    let mut posted = Vec::with_capacity(count as usize);
    for at in (0..count - 1).map(|number| number * each) {
        posted.push(export.post_redirect(at..at + each, to, at).map_err(TaskError::vmmc)?);
    }
    let at = (count - 1) * each;
    posted.push(export.redirect(at..len, to, at).map_err(TaskError::vmmc)?);
    Ok(posted)
}

fn lead(attached: &Attached, task: &Task, len: u64, export: &Export, import: &Import) -> Result<Sample, TaskError> {
    let mut data = vec![1u8; len as usize];
    let last = data.len() - 8;
    let mut times = Vec::new();
    let end = Instant::now() + task.budget;
    for round in 1.. {
        let enough = Instant::now() >= end && times.len() as u64 >= SAMPLES_MIN || times.len() as u64 >= SAMPLES_MAX;
        let number = if enough { OVER } else { round };
        data[last..].copy_from_slice(&number.to_le_bytes());
        attached.await_word(export, READY, round)?;
        let taken = timed(|| {
            import.send(0, &data).map_err(TaskError::vmmc)?;
            attached.await_word(export, HAS, round)
        })?;
        if enough {
            break;
        }
        times.push(taken.as_nanos() as f64);
    }
    Ok(Sample::latency(&mut times, 1.0).expect("at least SAMPLES_MIN samples were taken"))
}

struct Follower {
    export: Export,
    import: Import,
    to: Buffer,
    len: u64,
    when: RedirectWhen,
}

impl Follower {
    fn follow(&self) -> Result<(), TaskError> {
        let mut copy = vec![0; self.len as usize];
        for round in 1u64.. {
            let posted = match self.when {
                RedirectWhen::Before => vec![self.redirect()?],
                RedirectWhen::Row => post_row(&self.export, &self.to, self.len)?,
                _ => Vec::new(),
            };
            self.post_word(READY, round)?;
            self.take(posted, round, &mut copy)?;
            let number = self.last_word(&copy)?;
            self.post_word(HAS, round)?;
            if number == OVER {
                flush_last(&self.import);
                break;
            }
            if self.when != RedirectWhen::Never {
                self.export.consume(0..self.len).map_err(TaskError::vmmc)?;
            }
        }
        Ok(())
    }

    /// Waits until the data of a round is in `self.to`, or in `copy` if nothing is redirected.
    fn take(&self, posted: Vec<Redirection>, round: u64, copy: &mut [u8]) -> Result<(), TaskError> {
        if !posted.is_empty() {
            return posted.iter().try_for_each(|one| one.wait().map(drop).map_err(TaskError::vmmc));
        }
        let arrived = |w| w == round || w == OVER;
        self.export.wait_word(self.len - 8, arrived).map_err(TaskError::vmmc)?;
        if self.when == RedirectWhen::After {
            self.redirect()?.wait().map(drop).map_err(TaskError::vmmc)
        } else {
            self.export.read(0, copy).map_err(TaskError::vmmc)
        }
    }

    fn redirect(&self) -> Result<Redirection, TaskError> {
        self.export.redirect(0..self.len, &self.to, 0).map_err(TaskError::vmmc)
    }

    fn last_word(&self, copy: &[u8]) -> Result<u64, TaskError> {
        let mut word = [0; 8];
        if self.when == RedirectWhen::Never {
            word.copy_from_slice(&copy[copy.len() - 8..]);
        } else {
            self.to.read(self.len - 8, &mut word).map_err(TaskError::vmmc)?;
        }
        Ok(u64::from_le_bytes(word))
    }

    fn post_word(&self, word: u64, round: u64) -> Result<(), TaskError> {
        self.import.send(word, &round.to_le_bytes()).map_err(TaskError::vmmc)
    }
}
