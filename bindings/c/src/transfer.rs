//! Transfers between registered memory and imports, and transfers under way.
//!
//! Invariant: freeing a transfer abandons its answer, not the transfer; one from the caller's own
//! memory is waited for, because that memory may then be reused.

use crate::buffer::vmmc_buffer;
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::import::{send_options, vmmc_import, vmmc_send_options};
use crate::lists::range;
use crate::memory::{bytes, bytes_mut};
use crate::status::vmmc_status::{self, VMMC_AGAIN, VMMC_BUSY};
use crate::wait::within;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, TryLockError};
use vmmc::{PinnedSend, Transfer};

/// A transfer under way.
pub struct vmmc_transfer(());

/// A transfer is waited for by one thread at a time.
pub(crate) struct Object(Mutex<Moving>);

/// What moves.
pub(crate) enum Moving {
    /// Memory that the library has, or that is registered.
    Registered(Transfer),
    /// The caller's own, which the caller promised to leave alone.
    Pinned(PinnedSend<'static>),
}
handle!(vmmc_transfer, Transfer, Object, "transfer");

impl Object {
    fn lock(&self) -> Result<MutexGuard<'_, Moving>, Failure> {
        match self.0.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(VMMC_BUSY, "another thread waits for this transfer")),
        }
    }
}

fn under_way(transfer: Transfer) -> Result<*mut vmmc_transfer, Failure> {
    put(handle::Object::Transfer(Object(Mutex::new(Moving::Registered(transfer)))))
}

/// Sends without waiting. The data is copied before return and may be reused. `options` may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_send_async(
    import: *const vmmc_import,
    offset: u64,
    data: *const c_void,
    len: usize,
    options: *const vmmc_send_options,
    transfer: *mut *mut vmmc_transfer,
) -> vmmc_status {
    let post = || {
        // SAFETY: memory and options of the caller.
        let (data, options) = unsafe { (bytes(data, len, "data")?, send_options(options)?) };
        under_way(get(import)?.send_async(offset, data, options)?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(transfer, "transfer", post) }
}

/// Sends from any memory without a copy on the way; returns when the memory may be reused. Its
/// whole pages are pinned at first use and stay pinned, so that later sends cost a look at a table.
/// Memory that cannot be pinned (a stack, a file, a few bytes) is copied. After VMMC_TIMED_OUT it
/// may still be read. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_send_pinned(
    import: *const vmmc_import,
    offset: u64,
    data: *const c_void,
    len: usize,
    options: *const vmmc_send_options,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory and options of the caller.
        let (data, options) = unsafe { (bytes(data, len, "data")?, send_options(options)?) };
        Ok(get(import)?.send_pinned_with(offset, data, options)?)
    })
}

/// Sends from any memory without a copy on the way and without waiting; leave the memory alone
/// until the transfer is done or freed. Pins as vmmc_import_send_pinned() does; what is copied is
/// copied before return. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_send_pinned_async(
    import: *const vmmc_import,
    offset: u64,
    data: *const c_void,
    len: usize,
    options: *const vmmc_send_options,
    transfer: *mut *mut vmmc_transfer,
) -> vmmc_status {
    let post = || {
        // SAFETY: options of the caller, and memory that the caller leaves alone until the transfer
        // has ended.
        let (data, options) = unsafe { (bytes(data, len, "data")?, send_options(options)?) };
        let send = get(import)?.send_pinned_async(offset, data, options)?;
        put(handle::Object::Transfer(Object(Mutex::new(Moving::Pinned(send)))))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(transfer, "transfer", post) }
}

/// Remote fetch into any memory without a copy on the way; pins as vmmc_import_send_pinned() does.
/// On failure the memory may have been written in part, and is not written any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_fetch_pinned(
    import: *const vmmc_import,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        Ok(get(import)?.fetch_pinned(offset, into)?)
    })
}

/// Sends `len` bytes of a buffer without a copy on the way; returns when the range may be reused.
/// After VMMC_TIMED_OUT it may still be read. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_send_from(
    import: *const vmmc_import,
    offset: u64,
    buffer: *const vmmc_buffer,
    buffer_offset: u64,
    len: u64,
    options: *const vmmc_send_options,
) -> vmmc_status {
    call(|| {
        // SAFETY: options of the caller.
        let options = unsafe { send_options(options) }?;
        Ok(get(import)?.send_from_with(&*get(buffer)?, range(buffer_offset, len)?, offset, options)?)
    })
}

/// Sends `len` bytes of a buffer without a copy on the way and without waiting; leave the range
/// alone until the transfer is done. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_send_from_async(
    import: *const vmmc_import,
    offset: u64,
    buffer: *const vmmc_buffer,
    buffer_offset: u64,
    len: u64,
    options: *const vmmc_send_options,
    transfer: *mut *mut vmmc_transfer,
) -> vmmc_status {
    let post = || {
        // SAFETY: options of the caller.
        let options = unsafe { send_options(options) }?;
        under_way(get(import)?.send_from_async(&*get(buffer)?, range(buffer_offset, len)?, offset, options)?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(transfer, "transfer", post) }
}

/// Fetches `len` bytes into a buffer without a copy on the way. After VMMC_TIMED_OUT the range may
/// still be written.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_import_fetch_into(
    import: *const vmmc_import,
    offset: u64,
    buffer: *const vmmc_buffer,
    buffer_offset: u64,
    len: u64,
) -> vmmc_status {
    call(|| Ok(get(import)?.fetch_into(offset, &*get(buffer)?, range(buffer_offset, len)?)?))
}

/// Fetches `len` bytes into a buffer without a copy on the way and without waiting; leave the range
/// alone until the transfer is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_fetch_async(
    import: *const vmmc_import,
    offset: u64,
    buffer: *const vmmc_buffer,
    buffer_offset: u64,
    len: u64,
    transfer: *mut *mut vmmc_transfer,
) -> vmmc_status {
    let post = || under_way(get(import)?.fetch_async(offset, &*get(buffer)?, range(buffer_offset, len)?)?);
    // SAFETY: pointers are as the header asks.
    unsafe { give(transfer, "transfer", post) }
}

/// VMMC_AGAIN while the transfer is under way; VMMC_OK and the bytes moved when it is done; else
/// its error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_transfer_poll(transfer: *const vmmc_transfer, moved: *mut u64) -> vmmc_status {
    let poll = || {
        let again = || Failure::new(VMMC_AGAIN, "the transfer is under way");
        let object = get(transfer)?;
        let polled = match &mut *object.lock()? {
            Moving::Registered(transfer) => transfer.poll(),
            Moving::Pinned(send) => send.poll(),
        };
        Ok(polled.ok_or_else(again)??)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(moved, "moved", poll) }
}

/// Waits for the transfer; gives the bytes moved. May be called again after VMMC_TIMED_OUT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_transfer_wait(
    transfer: *const vmmc_transfer,
    timeout_us: i64,
    moved: *mut u64,
) -> vmmc_status {
    let wait = || {
        let object = get(transfer)?;
        let mut moving = object.lock()?;
        Ok(within(timeout_us, || match &mut *moving {
            Moving::Registered(transfer) => transfer.wait_on(),
            Moving::Pinned(send) => send.wait_on(),
        })?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(moved, "moved", wait) }
}

/// Frees the transfer, which abandons its answer. What it moves stays alive until it is done; one
/// of vmmc_import_send_pinned_async() is waited for, so that its memory may be reused.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_transfer_free(transfer: *mut vmmc_transfer) -> vmmc_status {
    call(|| handle::free(transfer))
}
