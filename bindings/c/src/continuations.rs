//! Continuations: functions of the caller that follow the ends of transfers.
//!
//! Invariant: a function runs once, in a call of [`vmmc_continuations_run`] or
//! [`vmmc_continuations_wait`], in the thread that makes it, and while no lock of the list is held
//! but that of its one runner. Those of a list that is freed do not run.
//! Source: `Continuations` of `crates/vmmc`.

use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::notification::User;
use crate::pinned::TableUser;
use crate::running::Inside;
use crate::session::vmmc_session;
use crate::status::vmmc_status::{self, VMMC_BUSY, VMMC_FOREIGN, VMMC_OK};
use crate::transfer::{Moving, UnderWay, vmmc_transfer};
use crate::wait::within;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use vmmc::{Continuations, TransferError, WaitFor};

/// Called when a transfer is over, by vmmc_continuations_run() or vmmc_continuations_wait(): with
/// VMMC_OK and the bytes moved, or with its error and 0. vmmc_error_message() tells the error in
/// words until the function makes a call that fails. It should not wait, and must not unwind or
/// jump out.
pub type vmmc_continuation = Option<unsafe extern "C" fn(status: vmmc_status, moved: u64, user: *mut c_void)>;

/// Transfers under way, each with a function for its end.
pub struct vmmc_continuations(());

pub(crate) struct Object {
    all: Mutex<Waiting>,
    /// What is over, until its function runs. Not empty only while one thread runs them.
    over: Ends,
    /// Held by the thread that runs functions.
    runner: Mutex<()>,
}
handle!(vmmc_continuations, Continuations, Object, "continuations");

type Function = unsafe extern "C" fn(vmmc_status, u64, *mut c_void);

/// What is over and what follows, in the order in which it was found.
type Ends = Arc<Mutex<Vec<End>>>;

/// A transfer that is over.
struct End {
    result: Result<u64, TransferError>,
    function: Function,
    user: User,
}

/// Transfers that are not over.
pub(crate) struct Waiting(Continuations<'static>);
// SAFETY: beside transfers and functions the list holds the inside of a session, which threads
// share. Transfers come out of the table of handles, which asks that they may go to another thread,
// and functions from `then`, whose result may.
unsafe impl Send for Waiting {}

fn inside() -> Failure {
    let why = "one of these continuations runs in this thread; let it return first";
    Failure::new(VMMC_BUSY, why)
}

impl Waiting {
    /// For a wait for several things.
    pub(crate) fn wait_for(&mut self) -> WaitFor<'_> {
        WaitFor::Transfer(&mut self.0)
    }
}

/// What follows the end of a transfer, with the tables that it uses: the list drops a transfer
/// before its function.
fn then<M>(
    users: Vec<TableUser>,
    over: Ends,
    function: Function,
    user: User,
) -> impl FnOnce(&mut Continuations<'static>, Result<u64, TransferError>, M) + Send {
    move |_, result, memory| {
        // What is done uses no memory and no table any more.
        drop((memory, users));
        lock(&over).push(End { result, function, user });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<'a, T>(mutex: &'a Mutex<T>, busy: &str) -> Result<MutexGuard<'a, T>, Failure> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure::new(VMMC_BUSY, busy)),
    }
}

impl Object {
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Waiting>, Failure> {
        try_lock(&self.all, "another thread runs these continuations or waits for them; let it come back first")
    }

    /// Runs functions of what `find` finds; says how many.
    fn run(
        &self,
        handle: *const vmmc_continuations,
        find: impl FnOnce(&mut Continuations<'static>) -> Result<usize, Failure>,
    ) -> Result<usize, Failure> {
        if Inside::is_in(handle as usize) {
            return Err(inside());
        }
        let _only = try_lock(&self.runner, "another thread runs these continuations; let it come back first")?;
        find(&mut self.lock()?.0)?;
        let ends = std::mem::take(&mut *lock(&self.over));
        let count = ends.len();
        for End { result, function, user } in ends {
            let (status, moved) = match result {
                Ok(moved) => (VMMC_OK, moved),
                Err(error) => (Failure::from(error).keep(), 0),
            };
            let _inside = Inside::enter(handle as usize);
            // SAFETY: the caller vouches for function and user pointer until the function has run
            // or the list is freed.
            unsafe { function(status, moved, user.0) }
        }
        Ok(count)
    }
}

/// A list of continuations for transfers of this session; empty.
///
/// One thread at a time runs or waits. While it waits others get VMMC_BUSY, and while functions run
/// others may add.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_continuations_create(
    session: *const vmmc_session,
    continuations: *mut *mut vmmc_continuations,
) -> vmmc_status {
    let make = || {
        let all = Mutex::new(Waiting(Continuations::new(&*get(session)?)));
        put(handle::Object::Continuations(Object { all, over: Ends::default(), runner: Mutex::new(()) }))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(continuations, "continuations", make) }
}

/// `function` is to be called, once and with `user`, when the transfer is over. A function of the
/// list may call this, and what it adds runs in a later call. VMMC_FOREIGN: the transfer is of
/// another session. VMMC_BUSY: another thread waits for the transfer, or for the list.
///
/// On VMMC_OK the transfer belongs to the list, and its handle is freed; otherwise it is still the
/// caller's. What it reads and writes stays with it until its function is called.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_continuations_add(
    continuations: *const vmmc_continuations,
    transfer: *mut vmmc_transfer,
    function: vmmc_continuation,
    user: *mut c_void,
) -> vmmc_status {
    call(|| {
        let list = get(continuations)?;
        let object = get(transfer.cast_const())?;
        let why = "`function` is NULL; give what is to be called when the transfer is over";
        let function = function.ok_or_else(|| Failure::invalid(why))?;
        let mut all = list.lock()?;
        let place = object.lock()?;
        let is_taken = match &place.moving {
            Moving::Send(send) => all.0.takes(send),
            Moving::Fetch(fetch) => all.0.takes(fetch),
        };
        if !is_taken {
            let why = "the transfer belongs to another session than the continuations; add it to some of its own";
            return Err(Failure::new(VMMC_FOREIGN, why));
        }
        // A thread that frees it at the same time gets the error, or this one does.
        handle::free(transfer)?;
        let UnderWay { moving, users } = place.take();
        let (over, user) = (list.over.clone(), User(user));
        match moving {
            Moving::Send(send) => all.0.add(send, then(users, over, function, user))?,
            Moving::Fetch(fetch) => all.0.add(fetch, then(users, over, function, user))?,
        }
        Ok(())
    })
}

/// Calls the functions of all transfers that are over, in the order in which they were added, and
/// not of what these add; `ran` is how many. Steps an embedded node; never waits. A look when
/// nothing has come costs some loads, however many transfers there are.
///
/// Not from a function of the same list, which is VMMC_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_continuations_run(
    continuations: *const vmmc_continuations,
    ran: *mut usize,
) -> vmmc_status {
    let run = || get(continuations)?.run(continuations, |all| Ok(all.run()));
    // SAFETY: pointers are as the header asks.
    unsafe { give(ran, "ran", run) }
}

/// Waits until a transfer is over, and calls functions as vmmc_continuations_run() does; `ran` is 0
/// only if there are no transfers. The death of the node is no error here: all transfers are over
/// then, with one each.
///
/// To wait for other things too, use VMMC_WAIT_CONTINUATIONS with vmmc_wait_any(), and then call
/// vmmc_continuations_run().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_continuations_wait(
    continuations: *const vmmc_continuations,
    timeout_us: i64,
    ran: *mut usize,
) -> vmmc_status {
    let wait = || get(continuations)?.run(continuations, |all| Ok(within(timeout_us, || all.wait())?));
    // SAFETY: pointers are as the header asks.
    unsafe { give(ran, "ran", wait) }
}

/// How many transfers are not over, or have not been found so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_continuations_len(
    continuations: *const vmmc_continuations,
    len: *mut usize,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(len, "len", || Ok(get(continuations)?.lock()?.0.len())) }
}

/// Frees the list. Functions that have not run do not run any more, so that what their `user`
/// pointers name is the caller's to free; their transfers end as with vmmc_transfer_free().
/// VMMC_BUSY from a function of the list itself.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_continuations_free(continuations: *mut vmmc_continuations) -> vmmc_status {
    call(|| if Inside::is_in(continuations as usize) { Err(inside()) } else { handle::free(continuations) })
}
