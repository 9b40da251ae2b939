//! Transfers under way.
//!
//! Invariant: freeing a transfer abandons its answer, not the transfer; a send from the caller's
//! own memory is waited for, and a fetch into it is given up, because that memory may then be
//! reused.

use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::import::{send_options, vmmc_import, vmmc_send_options};
use crate::pinned::TableUser;
use crate::source::{sources, targets, vmmc_source, vmmc_target};
use crate::status::vmmc_status::{self, VMMC_AGAIN, VMMC_BUSY};
use crate::wait::within;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};
use vmmc::{Gather, Transfer, TransferError};

/// A transfer under way.
pub struct vmmc_transfer(());

/// A transfer is waited for by one thread at a time; none once it was given to continuations.
pub(crate) struct Object(Mutex<Option<UnderWay>>);
handle!(vmmc_transfer, Transfer, Object, "transfer");

/// A transfer in use by a call.
pub(crate) struct InUse<'a>(MutexGuard<'a, Option<UnderWay>>);

pub(crate) struct UnderWay {
    // Goes before what it reads.
    pub(crate) moving: Moving,
    pub(crate) users: Vec<TableUser>,
}

pub(crate) enum Moving {
    Send(Transfer<'static>),
    Fetch(Transfer<'static, Vec<&'static mut [u8]>>),
}

impl Object {
    pub(crate) fn lock(&self) -> Result<InUse<'_>, Failure> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(VMMC_BUSY, "another thread waits for this transfer"));
            }
        };
        let given = || Failure::bad_handle("the transfer was given to continuations");
        if guard.is_some() { Ok(InUse(guard)) } else { Err(given()) }
    }
}

impl InUse<'_> {
    /// Takes the transfer out of its handle, which must be freed.
    pub(crate) fn take(mut self) -> UnderWay {
        self.0.take().expect("checked when it was locked")
    }
}

impl Deref for InUse<'_> {
    type Target = UnderWay;
    fn deref(&self) -> &UnderWay {
        self.0.as_ref().expect("checked when it was locked")
    }
}

impl DerefMut for InUse<'_> {
    fn deref_mut(&mut self) -> &mut UnderWay {
        self.0.as_mut().expect("checked when it was locked")
    }
}

impl UnderWay {
    /// What is done uses no table any more.
    fn ended(&mut self, result: Result<u64, TransferError>) -> Result<u64, TransferError> {
        if !matches!(result, Err(TransferError::TimedOut { .. })) {
            self.users.clear();
        }
        result
    }
}

pub(crate) fn under_way(moving: Moving, users: Vec<TableUser>) -> Result<*mut vmmc_transfer, Failure> {
    put(handle::Object::Transfer(Object(Mutex::new(Some(UnderWay { moving, users })))))
}

/// Posts a send of `count` sources, one after the other to consecutive places from `offset` on:
/// does not wait. The transfer is done when the data has arrived. `options` may be NULL.
/// When all places for transfers are taken (vmmc_session_limits()) it waits for one, and ends with
/// VMMC_TIMED_OUT if nobody looks at those that are done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_post_send(
    import: *const vmmc_import,
    offset: u64,
    sources: *const vmmc_source,
    count: usize,
    options: *const vmmc_send_options,
    transfer: *mut *mut vmmc_transfer,
) -> vmmc_status {
    let post = || {
        // SAFETY: options of the caller, and memory that the caller leaves alone until the transfer
        // has ended.
        let (sources, options) = unsafe { (self::sources(sources, count)?, send_options(options)?) };
        let import = get(import)?;
        let send = match &sources.list[..] {
            [] => import.post_send(offset, &[], options)?,
            [one] => import.post_send(offset, one.clone(), options)?,
            several => import.post_send(offset, Gather(several), options)?,
        };
        under_way(Moving::Send(send), sources.users)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(transfer, "transfer", post) }
}

/// Posts a fetch of consecutive bytes from `offset` on into `count` targets, which must not
/// overlap: does not wait. The targets belong to the transfer until it is done or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_post_fetch(
    import: *const vmmc_import,
    offset: u64,
    targets: *const vmmc_target,
    count: usize,
    transfer: *mut *mut vmmc_transfer,
) -> vmmc_status {
    let post = || {
        // SAFETY: memory that the caller leaves alone until the transfer has ended.
        let targets = unsafe { self::targets(targets, count) }?;
        under_way(Moving::Fetch(get(import)?.post_fetch(offset, targets)?), Vec::new())
    };
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
        let mut transfer = object.lock()?;
        let polled = match &mut transfer.moving {
            Moving::Send(send) => send.poll(),
            Moving::Fetch(fetch) => fetch.poll(),
        };
        Ok(transfer.ended(polled.ok_or_else(again)?)?)
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
        let mut transfer = object.lock()?;
        let result = within(timeout_us, || match &mut transfer.moving {
            Moving::Send(send) => send.wait(),
            Moving::Fetch(fetch) => fetch.wait(),
        });
        Ok(transfer.ended(result)?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(moved, "moved", wait) }
}

/// Frees the transfer, which abandons its answer. A buffer that it uses stays alive until it is
/// done. A send from memory of your own that is not copied is waited for, and a fetch into memory
/// of your own is given up, so that the memory may be reused.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_transfer_free(transfer: *mut vmmc_transfer) -> vmmc_status {
    call(|| handle::free(transfer))
}
