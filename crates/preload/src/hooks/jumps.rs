//! longjmp: a signal handler that does not come back to the call of ours which it interrupted.
//!
//! Invariant: the jump is the C library's. Whether it leaves our calls is shown by the stack
//! pointer in the program's buffer, as the C library of x86-64 keeps it: rotated, and mixed with a
//! secret of the thread. Source: signal-safety(7), siglongjmp(3).

use super::hook;
use crate::own::Inside;
use crate::real;
use libc::{c_int, c_void};

/// Place of the stack pointer among the registers of a buffer.
const STACK_POINTER: usize = 6;
/// By how many bits it is rotated.
const ROTATED: u32 = 17;

/// Where the stack is after a jump.
///
/// # Safety
/// The buffer is one of setjmp.
unsafe fn target(buffer: *const c_void) -> usize {
    let secret: usize;
    // SAFETY: a read of the thread's control block, which the C library made with the thread.
    unsafe { std::arch::asm!("mov {}, fs:[0x30]", out(reg) secret, options(nostack, preserves_flags, readonly)) };
    // SAFETY: the caller's promise: eight registers come first.
    let kept = unsafe { buffer.cast::<usize>().add(STACK_POINTER).read() };
    kept.rotate_right(ROTATED) ^ secret
}

macro_rules! jumps {
    ($($name:ident)*) => {
        $(hook! { fn $name(buffer: *mut c_void, value: c_int) -> c_int {
            Inside::jumps(target(buffer));
            real::$name(buffer, value)
        } })*
    };
}

jumps! { longjmp _longjmp siglongjmp __longjmp_chk }

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn _setjmp(buffer: *mut c_void) -> c_int;
    }

    #[test]
    fn the_stack_pointer_of_a_buffer_is_where_this_frame_is() {
        let mut buffer = [0u64; 64];
        // SAFETY: room for a buffer, to which nobody jumps.
        let target = unsafe {
            _setjmp(buffer.as_mut_ptr().cast());
            target(buffer.as_ptr().cast())
        };
        assert!(target.abs_diff(buffer.as_ptr().addr()) < 64 << 10, "{target:x} {:p}", buffer.as_ptr());
    }
}
