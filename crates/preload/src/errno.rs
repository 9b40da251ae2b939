//! The calling thread's `errno`.
//!
//! Invariant: a hook that succeeds leaves `errno` as it was; a hook that fails has set it.

use libc::c_int;

/// Sets it.
pub(crate) fn set(code: c_int) {
    // SAFETY: the C library promises a valid pointer to the calling thread's own variable.
    unsafe { *libc::__errno_location() = code }
}

/// Its value.
pub(crate) fn current() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Sets it and returns -1, as system calls do.
pub(crate) fn fail(code: c_int) -> isize {
    set(code);
    -1
}

/// Puts `errno` back when dropped, for what a hook does beside the program's own call.
pub(crate) struct Kept(c_int);

impl Kept {
    /// Remembers it.
    pub(crate) fn now() -> Kept {
        Kept(current())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        set(self.0);
    }
}
