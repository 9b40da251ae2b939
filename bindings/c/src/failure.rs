//! The boundary: every call runs inside [`call`] or [`give`], which turn errors and panics into a
//! status and a message.
//!
//! Invariant: no panic leaves this library; a message belongs to the thread that got its status.

use crate::status::vmmc_status::{self, VMMC_BAD_HANDLE, VMMC_INTERNAL, VMMC_INVALID, VMMC_OK};
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use vmmc::Kind;
use vmmc_rpc::RpcError;

/// Why a call failed.
pub(crate) struct Failure {
    status: vmmc_status,
    message: String,
    /// Of a remote call, which may have been carried out.
    may_have_happened: bool,
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
    static MAY_HAVE_HAPPENED: Cell<bool> = const { Cell::new(false) };
}

impl Failure {
    pub(crate) fn new(status: vmmc_status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into(), may_have_happened: false }
    }

    /// Of a remote call.
    pub(crate) fn of_call(error: RpcError) -> Failure {
        let may_have_happened = error.may_have_happened();
        Failure { may_have_happened, ..Failure::from(error) }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(VMMC_INVALID, message)
    }

    pub(crate) fn bad_handle(message: impl Into<String>) -> Failure {
        Failure::new(VMMC_BAD_HANDLE, message)
    }

    pub(crate) fn is(&self, status: vmmc_status) -> bool {
        self.status == status
    }

    /// Keeps the message for the thread; gives the status.
    #[cold]
    pub(crate) fn keep(self) -> vmmc_status {
        let text = CString::new(self.message.replace('\0', "?")).unwrap_or_default();
        // A thread that is being taken down has nobody left to read the message.
        let _ = MESSAGE.try_with(|message| message.replace(text));
        MAY_HAVE_HAPPENED.set(self.may_have_happened);
        self.status
    }
}

impl<E: Kind + std::fmt::Display> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error.kind().into(), error.to_string())
    }
}

/// What went wrong last in this thread, in words: the thing, the numbers and the next step. Never
/// NULL; empty if nothing did. The string is valid until the next call of this library fails in
/// this thread.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Whether the remote call that failed last in this thread may have been carried out all the same,
/// so that to call again might do it twice. False if what failed last was no remote call.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_error_may_have_happened() -> bool {
    MAY_HAVE_HAPPENED.get()
}

/// Runs a call.
pub(crate) fn call(run: impl FnOnce() -> Result<(), Failure>) -> vmmc_status {
    // What a panic leaves half done stays behind the library's own locks, which it poisons; the
    // caller gets nothing of it.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => VMMC_OK,
        Ok(Err(failure)) => failure.keep(),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            // A payload whose own drop panics must not get out either.
            std::mem::forget(panic);
            Failure::new(VMMC_INTERNAL, format!("error inside of the library: {text}; please report it")).keep()
        }
    }
}

/// Runs a call that gives something, which is written on success only.
///
/// # Safety
/// `out` is NULL or may be written.
pub(crate) unsafe fn give<T>(out: *mut T, name: &str, make: impl FnOnce() -> Result<T, Failure>) -> vmmc_status {
    call(|| {
        if out.is_null() || !out.is_aligned() {
            return Err(Failure::invalid(format!("`{name}` is NULL or misaligned; give a place for the result")));
        }
        let value = make()?;
        // SAFETY: not NULL, aligned, and the caller vouches for the rest.
        unsafe { out.write(value) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn message() -> String {
        // SAFETY: the string lives until the next failure in this thread.
        unsafe { CStr::from_ptr(vmmc_error_message()) }.to_str().unwrap().to_string()
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(call(|| panic!("planted {}", 7)), VMMC_INTERNAL);
        assert!(message().contains("planted 7"), "{}", message());
    }

    #[test]
    fn outputs_are_written_on_success_only() {
        let mut value = 1u64;
        // SAFETY: the place is ours.
        let status = unsafe { give(&mut value, "value", || Err(Failure::invalid("no"))) };
        assert_eq!((status, value), (VMMC_INVALID, 1));
        // SAFETY: as above.
        let status = unsafe { give(&mut value, "value", || Ok(2)) };
        assert_eq!((status, value), (VMMC_OK, 2));
        // SAFETY: NULL is allowed.
        let status = unsafe { give(std::ptr::null_mut(), "value", || Ok(2u64)) };
        assert_eq!(status, VMMC_INVALID);
        assert!(message().contains("`value`"));
    }

    #[test]
    fn messages_belong_to_their_thread() {
        assert_eq!(call(|| Err(Failure::invalid("mine"))), VMMC_INVALID);
        std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
        assert_eq!(message(), "mine");
    }
}
