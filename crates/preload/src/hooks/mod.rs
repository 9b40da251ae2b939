//! The C functions that the dynamic linker finds here first, one module for each kind.
//!
//! Invariant: a hook that has nothing to do with a descriptor is the next definition's call, with
//! the same arguments and `errno`. No hook panics: a panic would cross a C frame. In the unit tests
//! of this crate the hooks carry no C names, so that the tests' own input and output stay unhooked.

pub(crate) mod aliases;
pub(crate) mod descriptors;
pub(crate) mod epoll;
pub(crate) mod jumps;
pub(crate) mod pointers;
pub(crate) mod programs;
pub(crate) mod raw;
pub(crate) mod sockets;
pub(crate) mod streams;
pub(crate) mod transfer;
pub(crate) mod variadic;
pub(crate) mod waiting;

/// Defines a hook: the C function of that name. Its body is one `unsafe` block, whose proof is the
/// promise that the program made to the C function.
///
/// It may unwind: a thread that is cancelled ends so. `sleeps` marks a call that may sleep in a
/// ring, where the C library knows nothing of the sleep.
macro_rules! hook {
    (sleeps fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        $crate::hooks::hook! { fn $name($($arg: $ty),*) -> $ret {
            $crate::cancel::cancellable(|| -> $ret { $body })
        } }
    };
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case, reason = "the C library has an _Exit")]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
            #[allow(unused_unsafe, reason = "some bodies are safe")]
            // SAFETY: the program promises of its arguments what the C function of this name asks;
            // we do no more with them than it would.
            unsafe { $body }
        }
    };
}
pub(crate) use hook;
