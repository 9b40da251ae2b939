//! Membership in a job: who this process is, who the others are, their memory by rank and name.
//!
//! Invariant: a change of the members is given to the caller once, also when the caller's list was
//! too short for it.

use crate::export::{create, vmmc_export, vmmc_export_options};
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::import::{open, vmmc_import, vmmc_import_options};
use crate::memory::{bytes, give_string, string};
use crate::session::vmmc_session;
use crate::status::vmmc_status::{self, VMMC_OUT_OF_BOUNDS};
use crate::wait::{duration, within};
use ::vmmc_job::{Change, Job, MemberState};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Duration;
use vmmc::Deadline;

/// This process's membership in a job that `vmmc run` or vmmc_job_launch() started.
pub struct vmmc_job(());

pub(crate) struct Object {
    job: Job,
    /// Changes that the caller has not been told yet.
    untold: Mutex<VecDeque<Change>>,
}
handle!(vmmc_job, Job, Object, "job");

/// How a member of a job is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmmc_member_state {
    /// It runs.
    VMMC_MEMBER_RUNNING = 0,
    /// It has said goodbye.
    VMMC_MEMBER_LEFT = 1,
    /// Its process has ended well.
    VMMC_MEMBER_ENDED = 2,
    /// Its process has failed, or its node is lost.
    VMMC_MEMBER_FAILED = 3,
}
use vmmc_member_state::*;

/// A change of the set of members.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmmc_change {
    /// Who.
    pub rank: u32,
    /// Its new state; VMMC_MEMBER_RUNNING for one that has joined.
    pub state: vmmc_member_state,
}

impl From<MemberState> for vmmc_member_state {
    fn from(state: MemberState) -> vmmc_member_state {
        match state {
            MemberState::Running => VMMC_MEMBER_RUNNING,
            MemberState::Left => VMMC_MEMBER_LEFT,
            MemberState::Ended => VMMC_MEMBER_ENDED,
            MemberState::Failed => VMMC_MEMBER_FAILED,
        }
    }
}

impl From<Change> for vmmc_change {
    fn from(change: Change) -> vmmc_change {
        match change {
            Change::Joined(rank) => vmmc_change { rank, state: VMMC_MEMBER_RUNNING },
            Change::Left(rank) => vmmc_change { rank, state: VMMC_MEMBER_LEFT },
            Change::Ended(rank) => vmmc_change { rank, state: VMMC_MEMBER_ENDED },
            Change::Failed(rank) => vmmc_change { rank, state: VMMC_MEMBER_FAILED },
        }
    }
}

impl Object {
    fn deadline(&self, timeout_us: i64) -> Deadline {
        let session = self.job.session();
        session.deadline(duration(timeout_us).or(vmmc::patience().timeout).unwrap_or(session.timeout()))
    }
}

/// Copies values to a list of the caller's; gives their number.
///
/// # Safety
/// `list` is NULL or has room for `capacity` values.
unsafe fn copy_out<T: Copy>(values: &[T], list: *mut T, capacity: usize, name: &str) -> Result<usize, Failure> {
    let fit = capacity.min(values.len());
    if fit > 0 && (list.is_null() || !list.is_aligned()) {
        return Err(Failure::invalid(format!("`{name}` is NULL or misaligned and `capacity` is not 0")));
    }
    if fit > 0 {
        // SAFETY: the caller has room for `capacity` values, of which these are no more.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), list, fit) };
    }
    Ok(values.len())
}

/// Joins the job that this process was started for. VMMC_NO_JOB when it was not started as part of
/// one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_attach(job: *mut *mut vmmc_job) -> vmmc_status {
    let attach = || put(handle::Object::Job(Object { job: Job::attach()?, untold: Mutex::default() }));
    // SAFETY: pointers are as the header asks.
    unsafe { give(job, "job", attach) }
}

/// Frees the job. Its session stays as long as handles made with it.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_job_free(job: *mut vmmc_job) -> vmmc_status {
    call(|| handle::free(job))
}

/// Number of this process in the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_rank(job: *const vmmc_job, rank: *mut u32) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(rank, "rank", || Ok(get(job)?.job.rank())) }
}

/// Ranks of the job as of the last vmmc_job_changes(), those that have gone included: ranks are
/// never used twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_size(job: *const vmmc_job, size: *mut u32) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(size, "size", || Ok(get(job)?.job.size())) }
}

/// Id of the job; free it with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_id(job: *const vmmc_job, id: *mut *mut c_char) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(id, "id", || Ok(give_string(get(job)?.job.id()))) }
}

/// The session that the job uses, as a handle of its own, to be freed with vmmc_session_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_session(job: *const vmmc_job, session: *mut *mut vmmc_session) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(session, "session", || put(handle::Object::Session(get(job)?.job.session().clone()))) }
}

/// Name of the node of a rank; free it with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_node_of(job: *const vmmc_job, rank: u32, node: *mut *mut c_char) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(node, "node", || Ok(give_string(&get(job)?.job.node_of(rank)?))) }
}

/// State of a rank, as of the last vmmc_job_changes().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_state_of(
    job: *const vmmc_job,
    rank: u32,
    state: *mut vmmc_member_state,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(state, "state", || Ok(get(job)?.job.state_of(rank)?.into())) }
}

/// Ranks that run, as of the last vmmc_job_changes(): up to `capacity` of them; `count` is how many
/// there are, which may be more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_members(
    job: *const vmmc_job,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(count, "count", || copy_out(&get(job)?.job.members(), ranks, capacity, "ranks")) }
}

/// The full name of an export of a rank, for exports that are made in other ways than
/// vmmc_job_export(); free it with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_name_of(
    job: *const vmmc_job,
    rank: u32,
    name: *const c_char,
    full: *mut *mut c_char,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(full, "full", || Ok(give_string(&get(job)?.job.name_of(rank, string(name, "name")?)))) }
}

/// Exports new memory under a name of this rank; others reach it with vmmc_job_import(). `name` in
/// `options` must be NULL; `options` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_export(
    job: *const vmmc_job,
    name: *const c_char,
    len: u64,
    options: *const vmmc_export_options,
    export_: *mut *mut vmmc_export,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(export_, "export", || create(get(job)?.job.export(string(name, "name")?, len), options)) }
}

/// Imports what a rank has exported under a name. It waits for the export to appear, by default as
/// long as the session's timeout. `node` in `options` must be NULL; `options` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_import(
    job: *const vmmc_job,
    rank: u32,
    name: *const c_char,
    options: *const vmmc_import_options,
    import: *mut *mut vmmc_import,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(import, "import", || open(get(job)?.job.import(rank, string(name, "name")?)?, options)) }
}

/// Waits until all members are here. VMMC_MEMBERS_CHANGED when one that is needed has gone.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_job_barrier(job: *const vmmc_job, timeout_us: i64) -> vmmc_status {
    call(|| {
        let object = get(job)?;
        Ok(within(timeout_us, || object.job.barrier_by(object.deadline(timeout_us)))?)
    })
}

/// Gives every member the (short) values of all, in order of vmmc_job_members(): the i-th goes to
/// `values` + i * `stride`, its length to the i-th of `lens`. VMMC_OUT_OF_BOUNDS when `capacity`
/// values of `stride` bytes have no room for them.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // lists of C are two arguments each
pub unsafe extern "C" fn vmmc_job_allgather(
    job: *const vmmc_job,
    value: *const c_void,
    len: usize,
    values: *mut c_void,
    stride: usize,
    lens: *mut usize,
    capacity: usize,
    timeout_us: i64,
    count: *mut usize,
) -> vmmc_status {
    let gather = || {
        let object = get(job)?;
        // SAFETY: memory of the caller.
        let value = unsafe { bytes(value, len, "value") }?;
        let all = within(timeout_us, || object.job.allgather_by(value, object.deadline(timeout_us)))?;
        let longest = all.iter().map(Vec::len).max().unwrap_or(0);
        if all.len() > capacity || longest > stride {
            let why = format!(
                "{} values of up to {longest} bytes came, and there is room for {capacity} of {stride}",
                all.len()
            );
            return Err(Failure::new(VMMC_OUT_OF_BOUNDS, why));
        }
        let found: Vec<usize> = all.iter().map(Vec::len).collect();
        // SAFETY: the caller has room for `capacity` lengths.
        unsafe { copy_out(&found, lens, capacity, "lens") }?;
        for (index, value) in all.iter().enumerate() {
            // SAFETY: the caller has `capacity` places of `stride` bytes, and this one is inside.
            unsafe { copy_out(value, values.cast::<u8>().wrapping_add(index * stride), stride, "values") }?;
        }
        Ok(all.len())
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(count, "count", gather) }
}

/// What has changed among the members since the last call; waits for a change up to the timeout,
/// and gives none when it has passed. From then on collective calls run over the members as they
/// are. Up to `capacity` changes are given; call again when `count` is `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_changes(
    job: *const vmmc_job,
    timeout_us: i64,
    changes: *mut vmmc_change,
    capacity: usize,
    count: *mut usize,
) -> vmmc_status {
    let look = || {
        let object = get(job)?;
        let mut untold = object.untold.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if untold.is_empty() {
            let timeout = duration(timeout_us).unwrap_or(object.job.session().timeout());
            let found = if timeout == Duration::ZERO { object.job.changes() } else { object.job.wait_changes(timeout) };
            untold.extend(found?);
        }
        let fit = capacity.min(untold.len());
        let told: Vec<vmmc_change> = untold.iter().take(fit).map(|change| (*change).into()).collect();
        // SAFETY: the caller has room for `capacity` changes.
        unsafe { copy_out(&told, changes, capacity, "changes") }?;
        untold.drain(..fit);
        Ok(fit)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(count, "count", look) }
}

/// A descriptor for event loops (poll, epoll): readable when vmmc_job_changes() may have something,
/// until that is called. Only wait for it to be readable; do not read or close it. It is valid as
/// long as the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_changes_fd(job: *const vmmc_job, fd: *mut c_int) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(fd, "fd", || Ok(get(job)?.job.changes_fd()?.as_raw_fd())) }
}

/// Says goodbye: the others are told, and however this process ends from now on is no failure of
/// the job. Collective calls are over for it.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_job_leave(job: *const vmmc_job) -> vmmc_status {
    call(|| Ok(get(job)?.job.leave()?))
}

/// Asks for more ranks of the same program; they join as soon as the launcher has started them,
/// which vmmc_job_changes() tells.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_job_grow(job: *const vmmc_job, ranks: u32) -> vmmc_status {
    call(|| Ok(get(job)?.job.grow(ranks)?))
}
