//! A wait for the first of several things.
//!
//! Invariant: nothing is taken, and all that is waited for is in use by the call until it returns.
//! Source: `Session::wait_any` of `crates/vmmc`.

use crate::continuations::{Waiting, vmmc_continuations};
use crate::endpoint::{Inbox, vmmc_endpoint};
use crate::export::{InUse, condition, vmmc_export};
use crate::failure::{Failure, give};
use crate::handle::{Held, get};
use crate::memory::list;
use crate::redirection::{self, vmmc_redirection};
use crate::ring::vmmc_ring;
use crate::session::vmmc_session;
use crate::status::vmmc_status::{self, VMMC_BUSY};
use crate::transfer::{self, Moving, vmmc_transfer};
use crate::wait::within;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{MutexGuard, RwLockReadGuard};
use vmmc::{Redirection, Ring, WaitFor};

/// For `kind` of vmmc_wait_for: a notification of `export_`, or with NULL of any export that has no
/// handler of its own.
pub const VMMC_WAIT_NOTIFICATION: u32 = 1;
/// For `kind`: the word of `export_` at `offset` satisfies `condition` against `operand`.
pub const VMMC_WAIT_WORD: u32 = 2;
/// For `kind`: `ring` has a record.
pub const VMMC_WAIT_RECORD: u32 = 3;
/// For `kind`: `transfer` is over, in whatever way.
pub const VMMC_WAIT_TRANSFER: u32 = 4;
/// For `kind`: `redirection` is over, in whatever way.
pub const VMMC_WAIT_REDIRECTION: u32 = 5;
/// For `kind`: `fd` is readable, has hung up, or is in error, as poll has it.
pub const VMMC_WAIT_READABLE: u32 = 6;
/// For `kind`: `fd` is writable, has hung up, or is in error.
pub const VMMC_WAIT_WRITABLE: u32 = 7;
/// For `kind`: a transfer of `continuations` is over: then vmmc_continuations_run() calls what
/// follows.
pub const VMMC_WAIT_CONTINUATIONS: u32 = 8;

/// For `kind`: `endpoint` has a message, or a sender to let in: then vmmc_endpoint_poll() takes it,
/// or lets it in.
pub const VMMC_WAIT_MESSAGE: u32 = 9;

/// The most things that one vmmc_wait_any() waits for.
pub const VMMC_WAIT_MAX: usize = 1024;

/// One of the things that vmmc_wait_any() waits for. `{.kind = VMMC_WAIT_RECORD, .ring = inbox}` is
/// a record; what a kind does not name is not looked at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_wait_for {
    /// VMMC_WAIT_NOTIFICATION, VMMC_WAIT_WORD, VMMC_WAIT_RECORD, VMMC_WAIT_TRANSFER,
    /// VMMC_WAIT_REDIRECTION, VMMC_WAIT_READABLE, VMMC_WAIT_WRITABLE, VMMC_WAIT_CONTINUATIONS,
    /// VMMC_WAIT_MESSAGE.
    pub kind: u32,
    /// VMMC_WAIT_READABLE, VMMC_WAIT_WRITABLE: the descriptor.
    pub fd: c_int,
    /// VMMC_WAIT_NOTIFICATION: the export, or NULL for any. VMMC_WAIT_WORD: the export.
    pub export_: *const vmmc_export,
    /// VMMC_WAIT_RECORD: the ring.
    pub ring: *const vmmc_ring,
    /// VMMC_WAIT_TRANSFER: the transfer.
    pub transfer: *const vmmc_transfer,
    /// VMMC_WAIT_REDIRECTION: the redirection.
    pub redirection: *const vmmc_redirection,
    /// VMMC_WAIT_CONTINUATIONS: the list.
    pub continuations: *const vmmc_continuations,
    /// VMMC_WAIT_MESSAGE: the endpoint.
    pub endpoint: *const vmmc_endpoint,
    /// VMMC_WAIT_WORD: place of the word, bytes.
    pub offset: u64,
    /// VMMC_WAIT_WORD: what the word is compared with.
    pub operand: u64,
    /// VMMC_WAIT_WORD: a vmmc_condition.
    pub condition: u32,
}

/// What the caller names.
enum Named<'a> {
    Notification,
    NotificationOf(Held<vmmc_export>),
    Word(Held<vmmc_export>, u64, Box<dyn Fn(u64) -> bool>),
    Record(Held<vmmc_ring>),
    Message(Held<vmmc_endpoint>),
    Transfer(Held<vmmc_transfer>),
    Redirection(Held<vmmc_redirection>),
    Continuations(Held<vmmc_continuations>),
    Readable(BorrowedFd<'a>),
    Writable(BorrowedFd<'a>),
}

/// The same, in use by the call.
enum Open<'a> {
    Notification,
    NotificationOf(InUse<'a>),
    Word(InUse<'a>, u64, &'a dyn Fn(u64) -> bool),
    Record(MutexGuard<'a, Ring>),
    Message(MutexGuard<'a, Inbox>),
    Transfer(transfer::InUse<'a>),
    Continuations(MutexGuard<'a, Waiting>),
    Redirection(RwLockReadGuard<'a, Option<Redirection>>),
    Readable(BorrowedFd<'a>),
    Writable(BorrowedFd<'a>),
}

/// # Safety
/// The descriptor, if there is one, stays open during `'a`.
unsafe fn named<'a>(of: &vmmc_wait_for) -> Result<Named<'a>, Failure> {
    Ok(match of.kind {
        VMMC_WAIT_NOTIFICATION if of.export_.is_null() => Named::Notification,
        VMMC_WAIT_NOTIFICATION => Named::NotificationOf(get(of.export_)?),
        VMMC_WAIT_WORD => {
            let (ready, operand) = (condition(of.condition)?, of.operand);
            Named::Word(get(of.export_)?, of.offset, Box::new(move |word| ready(word, operand)))
        }
        VMMC_WAIT_RECORD => Named::Record(get(of.ring)?),
        VMMC_WAIT_MESSAGE => Named::Message(get(of.endpoint)?),
        VMMC_WAIT_TRANSFER => Named::Transfer(get(of.transfer)?),
        VMMC_WAIT_REDIRECTION => Named::Redirection(get(of.redirection)?),
        VMMC_WAIT_CONTINUATIONS => Named::Continuations(get(of.continuations)?),
        // SAFETY: the caller's word.
        VMMC_WAIT_READABLE => Named::Readable(unsafe { descriptor(of.fd) }?),
        // SAFETY: the caller's word.
        VMMC_WAIT_WRITABLE => Named::Writable(unsafe { descriptor(of.fd) }?),
        kind => {
            let why = format!("`kind` of a thing to wait for is {kind}, which means nothing; use a VMMC_WAIT constant");
            return Err(Failure::invalid(why));
        }
    })
}

/// # Safety
/// It stays open during `'a`.
unsafe fn descriptor<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Failure> {
    if fd < 0 {
        return Err(Failure::invalid(format!("`fd` is {fd}, which is no descriptor; give one that is open")));
    }
    // SAFETY: not -1, and open by the caller's word.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

impl Named<'_> {
    fn open(&self) -> Result<Open<'_>, Failure> {
        Ok(match self {
            Named::Notification => Open::Notification,
            Named::NotificationOf(export) => Open::NotificationOf(export.open()?),
            Named::Word(export, offset, ready) => Open::Word(export.open()?, *offset, ready),
            Named::Record(ring) => Open::Record(ring.lock()?),
            Named::Message(endpoint) => Open::Message(endpoint.lock()?),
            Named::Transfer(transfer) => Open::Transfer(transfer.lock()?),
            Named::Redirection(redirection) => Open::Redirection(redirection.open()?),
            Named::Continuations(continuations) => Open::Continuations(continuations.lock()?),
            Named::Readable(fd) => Open::Readable(*fd),
            Named::Writable(fd) => Open::Writable(*fd),
        })
    }
}

impl Open<'_> {
    fn wait_for(&mut self) -> Result<WaitFor<'_>, Failure> {
        Ok(match self {
            Open::Notification => WaitFor::Notification,
            Open::NotificationOf(export) => WaitFor::NotificationOf(export),
            Open::Word(export, offset, ready) => WaitFor::Word { export, offset: *offset, ready },
            Open::Record(ring) => WaitFor::Record(ring),
            Open::Message(inbox) => WaitFor::Message(&inbox.endpoint),
            Open::Transfer(transfer) => WaitFor::Transfer(match &mut transfer.moving {
                Moving::Send(send) => send,
                Moving::Fetch(fetch) => fetch,
            }),
            Open::Redirection(guard) => WaitFor::Redirection(guard.as_ref().ok_or_else(redirection::cancelled)?),
            Open::Continuations(all) => all.wait_for(),
            Open::Readable(fd) => WaitFor::Readable(*fd),
            Open::Writable(fd) => WaitFor::Writable(*fd),
        })
    }
}

/// Whether something that only one may use at a time stood in the list before.
fn is_repeated(before: &[vmmc_wait_for], one: &vmmc_wait_for) -> bool {
    before.iter().any(|other| {
        other.kind == one.kind
            && match one.kind {
                VMMC_WAIT_RECORD => other.ring == one.ring,
                VMMC_WAIT_MESSAGE => other.endpoint == one.endpoint,
                VMMC_WAIT_TRANSFER => other.transfer == one.transfer,
                VMMC_WAIT_CONTINUATIONS => other.continuations == one.continuations,
                _ => false,
            }
    })
}

/// Waits until one of `count` things of a session is there; gives its place in `what`, from 0, the
/// first if there are several. Takes nothing: vmmc_session_take_notification(), vmmc_ring_take(),
/// vmmc_transfer_poll() and so on do, and find nothing if another thread was faster.
///
/// Up to VMMC_WAIT_MAX things stand in the list, and rings, endpoints, transfers and continuations
/// only once. Leave descriptors open until the call returns. VMMC_BUSY: a call of another thread
/// uses a ring, an endpoint, a transfer or continuations of the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_wait_any(
    session: *const vmmc_session,
    what: *const vmmc_wait_for,
    count: usize,
    timeout_us: i64,
    which: *mut usize,
) -> vmmc_status {
    let wait = || {
        let session = get(session)?;
        if count > VMMC_WAIT_MAX {
            let why = format!("`count` is {count}; wait for at most {VMMC_WAIT_MAX} things at a time");
            return Err(Failure::invalid(why));
        }
        // SAFETY: a list of the caller.
        let given = unsafe { list(what, count, "what") }?;
        // SAFETY: the caller keeps descriptors open.
        let named = given.iter().map(|one| unsafe { named(one) }).collect::<Result<Vec<_>, _>>()?;
        let mut open = Vec::with_capacity(count);
        for (place, one) in named.iter().enumerate() {
            let busy = |failure: Failure| {
                // What stands in the list twice is in use by this call itself.
                if !failure.is(VMMC_BUSY) || !is_repeated(&given[..place], &given[place]) {
                    return failure;
                }
                let why = format!("the thing at place {place} stands in the list twice; name it once");
                Failure::invalid(why)
            };
            open.push(one.open().map_err(busy)?);
        }
        let mut what = open.iter_mut().map(Open::wait_for).collect::<Result<Vec<_>, _>>()?;
        Ok(within(timeout_us, || session.wait_any(&mut what))?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(which, "which", wait) }
}
