//! Transfer redirection: incoming data goes where the receiver wants it.
//!
//! Invariant: a report tells each byte of the range exactly once.

use crate::buffer::vmmc_buffer;
use crate::export::vmmc_export;
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::lists::range;
use crate::status::vmmc_status::{self, VMMC_BAD_HANDLE, VMMC_BUSY};
use crate::wait::within;
use std::sync::{RwLock, RwLockReadGuard, TryLockError};
use vmmc::{Redirection, RedirectionReport};

/// A posted redirection.
pub struct vmmc_redirection(());

/// None once it was cancelled.
pub(crate) struct Object(RwLock<Option<Redirection>>);
handle!(vmmc_redirection, Redirection, Object, "redirection");

/// What happened to a part of a redirected range.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmmc_part_state {
    /// It had come before, and was copied.
    VMMC_PART_COPIED = 0,
    /// It went straight to the new place.
    VMMC_PART_REDIRECTED = 1,
    /// It has not come.
    VMMC_PART_PENDING = 2,
}

/// A part of a redirected range.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmmc_part {
    /// First byte, in the export.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What happened to it.
    pub state: vmmc_part_state,
}

impl Object {
    pub(crate) fn open(&self) -> Result<RwLockReadGuard<'_, Option<Redirection>>, Failure> {
        Ok(self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn with<R>(&self, run: impl FnOnce(&Redirection) -> Result<R, Failure>) -> Result<R, Failure> {
        let guard = self.open()?;
        run(guard.as_ref().ok_or_else(cancelled)?)
    }

    fn take(&self) -> Result<Redirection, Failure> {
        match self.0.try_write() {
            Ok(mut guard) => guard.take().ok_or_else(cancelled),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take().ok_or_else(cancelled),
            Err(TryLockError::WouldBlock) => Err(Failure::new(VMMC_BUSY, "another thread waits for this redirection")),
        }
    }
}

pub(crate) fn cancelled() -> Failure {
    Failure::new(VMMC_BAD_HANDLE, "the redirection was cancelled")
}

/// Copies a report into the caller's list; gives the number of parts there are.
unsafe fn tell(report: &RedirectionReport, parts: *mut vmmc_part, capacity: usize) -> Result<usize, Failure> {
    let state = |list: &[(u64, u64)], state| -> Vec<vmmc_part> {
        list.iter().map(|(offset, len)| vmmc_part { offset: *offset, len: *len, state }).collect()
    };
    let mut all = state(&report.copied, vmmc_part_state::VMMC_PART_COPIED);
    all.extend(state(&report.redirected, vmmc_part_state::VMMC_PART_REDIRECTED));
    all.extend(state(&report.pending, vmmc_part_state::VMMC_PART_PENDING));
    all.sort_by_key(|part| part.offset);
    let fit = capacity.min(all.len());
    if fit > 0 && (parts.is_null() || !parts.is_aligned()) {
        return Err(Failure::invalid("`parts` is NULL or misaligned and `capacity` is not 0"));
    }
    if fit > 0 {
        // SAFETY: the caller has room for `capacity` parts, of which these are no more.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), parts, fit) };
    }
    Ok(all.len())
}

fn made(redirection: Redirection) -> Result<*mut vmmc_redirection, Failure> {
    put(handle::Object::Redirection(Object(RwLock::new(Some(redirection)))))
}

/// Posts another destination for data that comes to a range of this export, which must be
/// redirectable (VMMC_EXPORT_REDIRECTABLE). What has come already is copied now; the rest goes
/// straight to the buffer. Until it is complete or cancelled the buffer's range belongs to the
/// redirection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_redirect(
    export_: *const vmmc_export,
    offset: u64,
    len: u64,
    buffer: *const vmmc_buffer,
    buffer_offset: u64,
    redirection: *mut *mut vmmc_redirection,
) -> vmmc_status {
    let post = || {
        let object = get(export_)?;
        made(object.open()?.redirect(range(offset, len)?, &*get(buffer)?, buffer_offset)?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(redirection, "redirection", post) }
}

/// As vmmc_export_redirect(), but does not wait for the node: to post thousands of receive buffers
/// ahead, one call behind the other. What only the node can find wrong is told by
/// vmmc_redirection_wait() and vmmc_redirection_report().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_post_redirect(
    export_: *const vmmc_export,
    offset: u64,
    len: u64,
    buffer: *const vmmc_buffer,
    buffer_offset: u64,
    redirection: *mut *mut vmmc_redirection,
) -> vmmc_status {
    let post = || {
        let object = get(export_)?;
        made(object.open()?.post_redirect(range(offset, len)?, &*get(buffer)?, buffer_offset)?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(redirection, "redirection", post) }
}

/// The data in this range of a redirectable export has been used; the next arrival counts as new.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_export_consume(export_: *const vmmc_export, offset: u64, len: u64) -> vmmc_status {
    call(|| Ok(get(export_)?.open()?.consume(range(offset, len)?)?))
}

/// What has happened so far: up to `capacity` parts in order of their offsets; `count` is how many
/// there are, which may be more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_redirection_report(
    redirection: *const vmmc_redirection,
    parts: *mut vmmc_part,
    capacity: usize,
    count: *mut usize,
) -> vmmc_status {
    // SAFETY: the list is as the header asks.
    let report = || get(redirection)?.with(|r| unsafe { tell(&r.report()?, parts, capacity) });
    // SAFETY: pointers are as the header asks.
    unsafe { give(count, "count", report) }
}

/// Waits until all bytes have come; tells the parts as vmmc_redirection_report() does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_redirection_wait(
    redirection: *const vmmc_redirection,
    timeout_us: i64,
    parts: *mut vmmc_part,
    capacity: usize,
    count: *mut usize,
) -> vmmc_status {
    // SAFETY: the list is as the header asks.
    let wait = || get(redirection)?.with(|r| unsafe { tell(&within(timeout_us, || r.wait())?, parts, capacity) });
    // SAFETY: pointers are as the header asks.
    unsafe { give(count, "count", wait) }
}

/// Ends it: data that has not come goes to the export again. Tells what has happened until then as
/// vmmc_redirection_report() does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_redirection_cancel(
    redirection: *const vmmc_redirection,
    parts: *mut vmmc_part,
    capacity: usize,
    count: *mut usize,
) -> vmmc_status {
    // SAFETY: the list is as the header asks.
    let cancel = || unsafe { tell(&get(redirection)?.take()?.cancel()?, parts, capacity) };
    // SAFETY: pointers are as the header asks.
    unsafe { give(count, "count", cancel) }
}

/// Frees the redirection, which cancels it if it is not complete.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_redirection_free(redirection: *mut vmmc_redirection) -> vmmc_status {
    call(|| handle::free(redirection))
}
