//! Notifications: by waiting, by taking, by handlers.
//!
//! Invariant: a notification is seen only after the data it speaks of, and goes to exactly one
//! taker.

use crate::export::vmmc_export;
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::session::vmmc_session;
use crate::status::vmmc_status::{self, VMMC_AGAIN};
use crate::wait::within;
use std::ffi::c_void;
use vmmc::{HandlerGuard, Notification};

/// A sender says: data has come.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmmc_notification {
    /// Id of the export that received data.
    pub export_id: u64,
    /// First byte of the transfer, in the export.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
    /// Its last (up to) eight bytes, little endian, padded with zeros.
    pub last_word: u64,
    /// The word that its sender put in (`word` of vmmc_send_options); else 0.
    pub word: u64,
    /// Who sent it: the session with the sender's node, 0 for this node. vmmc_session_node_of()
    /// names the node.
    pub sender_session: u32,
    /// The process, in the numbers of its node: vmmc_session_process() there.
    pub sender_process: u32,
    /// Its import: vmmc_import_id() there.
    pub sender_import: u64,
}

/// Called for each notification on a thread of the library. It must not unwind or jump out.
pub type vmmc_notification_handler =
    Option<unsafe extern "C" fn(notification: *const vmmc_notification, user: *mut c_void)>;

/// A notification handler.
pub struct vmmc_handler(());

pub(crate) type Object = HandlerGuard;
handle!(vmmc_handler, Handler, Object, "handler");

impl From<Notification> for vmmc_notification {
    fn from(n: Notification) -> vmmc_notification {
        vmmc_notification {
            export_id: n.export.to_u64(),
            offset: n.offset,
            len: n.len,
            last_word: n.last_word,
            word: n.word,
            sender_session: n.from.session,
            sender_process: n.from.process.0,
            sender_import: n.from.import.to_u64(),
        }
    }
}

/// The caller's word for what its function gets.
pub(crate) struct User(pub(crate) *mut c_void);
// SAFETY: the caller gives it to a handler that runs on a thread of the library, and says so by
// calling `on_notification`; or to a continuation, which runs in the thread that runs them.
unsafe impl Send for User {}
// SAFETY: the caller gives it to a handler of calls, and says by the number of its threads that
// several may have it at once.
unsafe impl Sync for User {}

/// The handler as Rust has it.
fn handler(function: vmmc_notification_handler, user: *mut c_void) -> Result<impl FnMut(Notification) + Send, Failure> {
    let function = function.ok_or_else(|| Failure::invalid("`handler` is NULL"))?;
    let user = User(user);
    Ok(move |notification: Notification| {
        let user = &user;
        let notification = vmmc_notification::from(notification);
        // SAFETY: the caller vouches for function and user pointer until the handler is freed.
        unsafe { function(&notification, user.0) }
    })
}

fn again(taken: Option<Notification>) -> Result<vmmc_notification, Failure> {
    taken.map(Into::into).ok_or_else(|| Failure::new(VMMC_AGAIN, "no notification is there"))
}

/// The next notification of any export that has no handler of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_wait_notification(
    session: *const vmmc_session,
    timeout_us: i64,
    notification: *mut vmmc_notification,
) -> vmmc_status {
    let wait = || {
        let session = get(session)?;
        Ok(within(timeout_us, || session.wait_notification())?.into())
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(notification, "notification", wait) }
}

/// A notification if one is there, else VMMC_AGAIN. With vmmc_session_event_fd(): call it until
/// VMMC_AGAIN, then sleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_take_notification(
    session: *const vmmc_session,
    notification: *mut vmmc_notification,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(notification, "notification", || again(get(session)?.take_notification())) }
}

/// Runs a handler on a thread of its own for every notification of exports without their own
/// handler, until vmmc_handler_free(). `user` is passed to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_on_notification(
    session: *const vmmc_session,
    function: vmmc_notification_handler,
    user: *mut c_void,
    handler_: *mut *mut vmmc_handler,
) -> vmmc_status {
    let make = || put(handle::Object::Handler(get(session)?.on_notification(handler(function, user)?)?));
    // SAFETY: pointers are as the header asks.
    unsafe { give(handler_, "handler", make) }
}

/// Blocks or unblocks the notifications of all exports: blocked ones queue up.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_session_block_notifications(session: *const vmmc_session, blocked: bool) -> vmmc_status {
    call(|| {
        let session = get(session)?;
        if blocked {
            session.block_notifications()
        } else {
            session.unblock_notifications()
        }
        Ok(())
    })
}

/// The next notification of this export, which must allow them (VMMC_EXPORT_NOTIFY).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_wait_notification(
    export_: *const vmmc_export,
    timeout_us: i64,
    notification: *mut vmmc_notification,
) -> vmmc_status {
    let wait = || {
        let object = get(export_)?;
        let export = object.open()?;
        Ok(within(timeout_us, || export.wait_notification())?.into())
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(notification, "notification", wait) }
}

/// A notification of this export if one is there, else VMMC_AGAIN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_take_notification(
    export_: *const vmmc_export,
    notification: *mut vmmc_notification,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(notification, "notification", || again(get(export_)?.open()?.take_notification())) }
}

/// Runs a handler on a thread of its own for every notification of this export, which other takers
/// then no longer see, until vmmc_handler_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_on_notification(
    export_: *const vmmc_export,
    function: vmmc_notification_handler,
    user: *mut c_void,
    handler_: *mut *mut vmmc_handler,
) -> vmmc_status {
    let make = || put(handle::Object::Handler(get(export_)?.open()?.on_notification(handler(function, user)?)?));
    // SAFETY: pointers are as the header asks.
    unsafe { give(handler_, "handler", make) }
}

/// Blocks or unblocks the notifications of this export: blocked ones queue up.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_export_block_notifications(export_: *const vmmc_export, blocked: bool) -> vmmc_status {
    call(|| {
        let object = get(export_)?;
        let export = object.open()?;
        if blocked {
            export.block_notifications()
        } else {
            export.unblock_notifications()
        }
        Ok(())
    })
}

/// Ends a handler, after the call it is in. From inside of the handler itself it returns at once,
/// and the handler is not called again.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_handler_free(handler_: *mut vmmc_handler) -> vmmc_status {
    call(|| handle::free(handler_))
}
