//! The one process of NX that a program is, and what becomes of errors.
//!
//! Invariant: it is attached by the first call that needs it, and leaves when the program ends by
//! `exit` or a return of `main`. A message belongs to the thread whose call has failed.

use std::cell::{Cell, RefCell};
use std::ffi::{c_long, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use vmmc::{ErrorKind, Kind};
use vmmc_nx::{Application, Info, Nx, NxError};

/// What is known of the last message that was received or found: `msginfo` of NX.
#[unsafe(no_mangle)]
pub static msginfo: [AtomicI64; 8] = [const { AtomicI64::new(0) }; 8];

/// What this program is.
#[derive(Default)]
pub(crate) struct Process {
    nx: Option<Arc<Nx>>,
    /// Nodes for the application that it controls.
    pub(crate) partition: Option<vmmc_nx::Partition>,
    pub(crate) application: Option<Application>,
    /// It has started an application, which may have ended.
    pub(crate) controls: bool,
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);
/// The program ends: nothing is waited for any more.
static ENDS: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
    /// This thread is in a handler of the program. It has no destructor, so it is there at the end.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Calls a handler of the program.
pub(crate) fn handling(handler: impl FnOnce()) {
    IN_HANDLER.set(true);
    handler();
    IN_HANDLER.set(false);
}

/// The text of the last error of a call of this thread.
pub fn last_error() -> String {
    MESSAGE.with(|message| message.borrow().clone())
}

fn process() -> MutexGuard<'static, Option<Process>> {
    PROCESS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Does something with what this program is.
pub(crate) fn with<T>(act: impl FnOnce(&mut Process) -> T) -> T {
    act(process().get_or_insert_default())
}

/// This process as a node of an application.
pub(crate) fn nx() -> Result<Arc<Nx>, NxError> {
    with(|process| {
        if let Some(nx) = &process.nx {
            return Ok(nx.clone());
        }
        if process.controls {
            return Err(NxError::Controls);
        }
        let nx = Arc::new(Nx::attach()?);
        process.nx = Some(nx.clone());
        // SAFETY: the function may be called at any time, and lives as long as the program.
        // If there is no room for it, the others learn of the end from the job.
        let _ = unsafe { libc::atexit(leave) };
        Ok(nx)
    })
}

/// The program ends: what it has sent goes, and it leaves the others. On a thread of its own,
/// because the thread that ends the program has lost its thread-local variables.
extern "C" fn leave() {
    if ENDS.swap(true, Ordering::SeqCst) {
        return;
    }
    let Some(nx) = process().as_ref().and_then(|process| process.nx.clone()) else { return };
    if IN_HANDLER.get() {
        // It has called `exit`, and will not return.
        nx.handler_time(Duration::ZERO);
    }
    let leave = move || {
        nx.leave();
        // A call of another thread may still use it; then the end of the process ends it.
        drop((nx, process().as_mut().and_then(|process| process.nx.take())));
    };
    if let Ok(thread) = std::thread::Builder::new().name("nx-leave".into()).spawn(leave) {
        let _ = thread.join();
    }
}

/// A result of a call, and what stands for a failure.
pub(crate) trait Answer {
    fn failed() -> Self;
}

impl Answer for c_long {
    fn failed() -> c_long {
        -1
    }
}

impl Answer for f64 {
    fn failed() -> f64 {
        -1.0
    }
}

/// The form with an underscore: -1 and errno.
pub(crate) fn quietly<T: Answer>(call: impl FnOnce() -> Result<T, NxError>) -> T {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            set_errno(errno_of(&error));
            keep(error.to_string());
            T::failed()
        }
        Err(_) => {
            set_errno(libc::EIO);
            keep("an error inside the library; it has been printed".into());
            T::failed()
        }
    }
}

/// The plain form: an error ends all processes of the application.
pub(crate) fn plainly<T>(name: &str, call: impl FnOnce() -> Result<T, NxError>) -> T {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => end(name, &error.to_string()),
        Err(_) => end(name, "an error inside the library"),
    }
}

/// Says what is wrong, and ends all processes of the application.
pub(crate) fn end(name: &str, why: &str) -> ! {
    let first = !ENDS.swap(true, Ordering::SeqCst);
    let nx = process().as_ref().and_then(|process| process.nx.clone());
    match nx.filter(|_| first) {
        Some(nx) => nx.messages().abort(1, &format!("node {}, {name}: {why}", nx.mynode())),
        None => {
            eprintln!("{name}: {why}");
            if !first {
                // Another thread ends the program already, and tells the others.
                std::thread::sleep(vmmc_nx::limits::ABORT_TIME);
            }
            // SAFETY: no argument; the process ends without handlers of ours, which would wait.
            unsafe { libc::_exit(1) }
        }
    }
}

fn keep(text: String) {
    // A thread that is being taken down has nobody left to read it.
    let _ = MESSAGE.try_with(|message| message.replace(text));
}

fn set_errno(value: i32) {
    // SAFETY: the address is that of this thread's own variable, which lives as long as it.
    unsafe { *libc::__errno_location() = value }
}

fn errno_of(error: &NxError) -> i32 {
    match error {
        NxError::TooLong { .. } => libc::EMSGSIZE,
        NxError::Id { .. } => libc::EBADF,
        NxError::IdsUsedUp => libc::EAGAIN,
        NxError::Null { .. } => libc::EFAULT,
        NxError::NoProcess { .. } => libc::ESRCH,
        NxError::NoApplication | NxError::Controls => libc::ENOTCONN,
        NxError::Started => libc::EBUSY,
        NxError::NotStarted => libc::ECHILD,
        error => match error.kind() {
            ErrorKind::Invalid | ErrorKind::OutOfBounds => libc::EINVAL,
            ErrorKind::MembersChanged => libc::ECONNRESET,
            ErrorKind::TimedOut => libc::ETIMEDOUT,
            ErrorKind::Failed | ErrorKind::Cancelled => libc::ECANCELED,
            _ => libc::EIO,
        },
    }
}

/// Keeps what is known of a message in `msginfo`.
pub(crate) fn note(info: Info) {
    msginfo.iter().zip(info.to_array()).for_each(|(place, value)| place.store(value, Ordering::Relaxed));
}

/// Writes what is known of a message where the program wants it.
///
/// # Safety
/// `into` is null, or eight longs that may be written.
pub(crate) unsafe fn tell(info: Info, into: *mut c_long) {
    if into.cast_const().cast::<c_void>() == (&raw const msginfo).cast() {
        note(info);
    } else if !into.is_null() {
        // SAFETY: the caller says so; the array lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(info.to_array().as_ptr(), into, 8) };
    }
}
