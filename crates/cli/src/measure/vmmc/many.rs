//! Many senders' records in one ring, and many places in one operation, each beside the way without
//! it.
//!
//! Invariant: the clock stops when the data is known to be in the receiver's memory.

use super::{Attached, TaskError, flush_last, name};
use crate::limits::{PARTNER_WAIT, RING_BENCH_BYTES};
use crate::measure::ping::time_calls;
use crate::measure::stats::Sample;
use crate::measure::task::{AppendBy, GatherBy, Role, Task};
use std::sync::atomic::Ordering;
use std::time::Instant;
use vmmc::{AppendOptions, Import, Rights, SendOptions};

/// Word that the leader sets when it is done.
const DONE: u64 = 0;
/// Where the next record goes, without a ring.
const NEXT: u64 = 64;
/// Bytes before the data.
const HEAD_BYTES: u64 = 4096;
/// Records that there is room for without a ring.
const RECORDS: u64 = 1024;
/// Places of a gather-send.
const PLACES: u64 = 16;
/// How far they lie from each other, beyond their size.
const APART_BYTES: u64 = 256;

/// From the call until a record is in the receiver's memory.
pub(super) fn append(attached: &Attached, task: &Task, by: AppendBy) -> Result<Option<Sample>, TaskError> {
    let record = 32 + task.size.next_multiple_of(8);
    let export_bytes = HEAD_BYTES + RECORDS * record;
    let ring_name = format!("{}-ring", name(task.number, Role::Follow));
    match task.role {
        Role::Follow => {
            let export = attached.export(task.number, Role::Follow, export_bytes)?;
            let ring = attached.session.ring(RING_BENCH_BYTES).name(&ring_name);
            let mut ring = ring.create().map_err(TaskError::vmmc)?;
            let end = Instant::now() + task.budget * 4 + PARTNER_WAIT;
            let is_over = || export.word(DONE).map(|word| word.load(Ordering::Acquire) != 0);
            let mut data = Vec::new();
            while !is_over().map_err(TaskError::vmmc)? && Instant::now() < end {
                if ring.take_into(&mut data).map_err(TaskError::vmmc)?.is_none() {
                    std::thread::yield_now();
                }
            }
            Ok(None)
        }
        Role::Lead => {
            let import = attached.import(task.number, Role::Follow)?;
            let mut builder = attached.session.import(&ring_name).rights(Rights::WRITE).wait(PARTNER_WAIT);
            if let Some(node) = &attached.other {
                builder = builder.node(node);
            }
            let ring = builder.open().map_err(TaskError::vmmc)?;
            let data = vec![1; record as usize];
            let sample = time_calls(task.budget, || match by {
                AppendBy::Ring => {
                    ring.append(&data[..task.size as usize], AppendOptions::word(7)).map_err(TaskError::vmmc)
                }
                AppendBy::Place => {
                    let at = import.fetch_add(NEXT, 1).map_err(TaskError::vmmc)?;
                    import.send(HEAD_BYTES + at % RECORDS * record, &data).map_err(TaskError::vmmc)?;
                    import.flush().map_err(TaskError::vmmc)
                }
            });
            import.send(DONE, &1u64.to_le_bytes()).map_err(TaskError::vmmc)?;
            flush_last(&import);
            sample.map(Some)
        }
    }
}

/// From the call until all pieces are in the receiver's memory.
pub(super) fn gather(attached: &Attached, task: &Task, by: GatherBy) -> Result<Option<Sample>, TaskError> {
    let apart = task.size + APART_BYTES;
    if task.role == Role::Follow {
        let export = attached.export(task.number, Role::Follow, HEAD_BYTES + PLACES * apart)?;
        let deadline = attached.session.deadline(task.budget * 4 + PARTNER_WAIT);
        export.wait_word_by(DONE, |word| word != 0, deadline).map_err(TaskError::vmmc)?;
        return Ok(None);
    }
    let import = attached.import(task.number, Role::Follow)?;
    let data = vec![1; task.size as usize];
    let places: Vec<(u64, &[u8])> = (0..PLACES).map(|place| (HEAD_BYTES + place * apart, &data[..])).collect();
    let sample = time_calls(task.budget, || send(&import, &places, by).map_err(TaskError::vmmc));
    import.send(DONE, &1u64.to_le_bytes()).map_err(TaskError::vmmc)?;
    flush_last(&import);
    sample.map(Some)
}

fn send(import: &Import, places: &[(u64, &[u8])], by: GatherBy) -> Result<(), vmmc::TransferError> {
    match by {
        GatherBy::One => import.gather_send(places, SendOptions::default())?,
        GatherBy::Sends => places.iter().try_for_each(|(at, data)| import.send(*at, *data))?,
    }
    import.flush()
}
