//! Operations of one side: fetch, atomics, import. The other side only owns the memory.
//!
//! Invariant: the follower keeps its export, and its node running, until the leader says that it is
//! done.

use super::{Attached, TaskError, flush_last, name};
use crate::limits::{PARTNER_WAIT, SAMPLES_MAX, SAMPLES_MIN};
use crate::measure::ping::{time_calls, timed};
use crate::measure::stats::Sample;
use crate::measure::task::{AtomicOp, EndsBy, Role, Task};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};
use vmmc::{Continuations, Import, Rights, Session, Transfer};

/// Bytes before the data, for the word that ends a measurement and the word of atomics.
const HEAD_BYTES: u64 = 4096;
/// Word that the leader sets when it is done.
const DONE: u64 = 0;
/// Word of atomics, on a line of its own.
const COUNTER: u64 = 256;
/// Fetches that are under way at once.
const AT_ONCE: usize = 16;

/// From the call to the data.
pub(super) fn fetch(attached: &Attached, task: &Task) -> Result<Option<Sample>, TaskError> {
    one_sided(attached, task, |import| {
        let mut into = vec![0; task.size as usize];
        time_calls(task.budget, || import.fetch(HEAD_BYTES, &mut into).map_err(TaskError::vmmc))
    })
}

/// From the first of several calls to the data of all.
pub(super) fn fetches(attached: &Attached, task: &Task, by: EndsBy) -> Result<Option<Sample>, TaskError> {
    one_sided(attached, task, |import| {
        let memory = vec![vec![0; task.size as usize]; AT_ONCE];
        match by {
            EndsBy::Handles => by_handles(import, task.budget, memory),
            EndsBy::Continuations => by_continuations(import, &attached.session, task.budget, memory),
        }
    })
}

fn by_handles(import: &Import, budget: Duration, mut memory: Vec<Vec<u8>>) -> Result<Sample, TaskError> {
    let mut under_way: Vec<Transfer<'static, Vec<u8>>> = Vec::with_capacity(AT_ONCE);
    time_calls(budget, || {
        for into in memory.drain(..) {
            under_way.push(import.post_fetch(HEAD_BYTES, into).map_err(TaskError::vmmc)?);
        }
        for mut fetch in under_way.drain(..) {
            fetch.wait().map_err(TaskError::vmmc)?;
            memory.push(fetch.into_inner());
        }
        Ok(())
    })
}

fn by_continuations(
    import: &Import,
    session: &Session,
    budget: Duration,
    memory: Vec<Vec<u8>>,
) -> Result<Sample, TaskError> {
    let (memory, failed) = (RefCell::new(memory), Cell::new(None));
    let mut all = Continuations::new(session);
    time_calls(budget, || {
        for _ in 0..AT_ONCE {
            let into = memory.borrow_mut().pop().expect("each that was under way gave its own back");
            let fetch = import.post_fetch(HEAD_BYTES, into).map_err(TaskError::vmmc)?;
            let fetched = |_: &mut Continuations<'_>, result: Result<u64, _>, into| {
                memory.borrow_mut().push(into);
                failed.set(result.err().or(failed.take()));
            };
            all.add(fetch, fetched).map_err(TaskError::vmmc)?;
        }
        while !all.is_empty() {
            all.wait().map_err(TaskError::vmmc)?;
        }
        failed.take().map_or(Ok(()), |error| Err(TaskError::vmmc(error)))
    })
}

/// From the call to the old value.
pub(super) fn atomic(attached: &Attached, task: &Task, op: AtomicOp) -> Result<Option<Sample>, TaskError> {
    one_sided(attached, task, |import| {
        let mut value = 0;
        time_calls(task.budget, || {
            value += 1;
            let old = match op {
                AtomicOp::FetchAdd => import.fetch_add(COUNTER, 1),
                AtomicOp::CompareSwap => import.compare_swap(COUNTER, value - 1, value),
                AtomicOp::Swap => import.swap(COUNTER, value),
            };
            match old.map_err(TaskError::vmmc)? {
                old if old == value - 1 => Ok(()),
                old => Err(TaskError::Protocol(format!("an atomic operation returned {old}, not {}", value - 1))),
            }
        })
    })
}

pub(super) fn one_sided(
    attached: &Attached,
    task: &Task,
    measure: impl FnOnce(&Import) -> Result<Sample, TaskError>,
) -> Result<Option<Sample>, TaskError> {
    match task.role {
        Role::Follow => {
            let export = attached.export(task.number, Role::Follow, HEAD_BYTES + task.size)?;
            let deadline = attached.session.deadline(task.budget * 4 + PARTNER_WAIT);
            export.wait_word_by(DONE, |w| w != 0, deadline).map_err(TaskError::vmmc)?;
            Ok(None)
        }
        Role::Lead => {
            let import = attached.import(task.number, Role::Follow)?;
            let sample = measure(&import);
            import.send(DONE, &1u64.to_le_bytes()).map_err(TaskError::vmmc)?;
            flush_last(&import);
            sample.map(Some)
        }
    }
}

/// From the call to the import; giving it back is not timed.
pub(super) fn import(attached: &Attached, task: &Task) -> Result<Option<Sample>, TaskError> {
    one_sided(attached, task, |_| {
        let end = Instant::now() + task.budget;
        let mut times = Vec::new();
        while (Instant::now() < end || (times.len() as u64) < SAMPLES_MIN) && (times.len() as u64) < SAMPLES_MAX {
            times.push(one_import(attached, task.number)?.as_nanos() as f64);
        }
        Ok(Sample::latency(&mut times, 1.0).expect("at least SAMPLES_MIN samples were taken"))
    })
}

fn one_import(attached: &Attached, number: u64) -> Result<Duration, TaskError> {
    let mut builder = attached.session.import(&name(number, Role::Follow)).rights(Rights::ALL);
    if let Some(node) = &attached.other {
        builder = builder.node(node);
    }
    let mut import = None;
    let taken = timed(|| {
        import = Some(builder.open().map_err(TaskError::vmmc)?);
        Ok(())
    });
    drop(import);
    taken
}
