//! Both forms of a call of NX from one description.
//!
//! Invariant: `name` ends the program on an error, `_name` gives -1 and sets errno.

/// Calls without a result in their plain form; the form with an underscore gives 0.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident, $quiet:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Addresses are null or of as much memory as the header says, for values of their
            /// type, which nobody else writes until the call has returned, or its message is over;
            /// what the call writes nobody else reads meanwhile, and no other argument overlaps.
            /// Strings end with a zero byte. Handlers and functions are such as the header says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) {
                $crate::process::plainly(stringify!($name), || $body)
            }

            $(#[$doc])*
            ///
            /// # Safety
            /// As for the form without an underscore.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $quiet($($argument: $kind),*) -> std::ffi::c_long {
                $crate::process::quietly(|| $body.map(|()| 0))
            }
        )*
    };
}

/// Calls with a result.
macro_rules! questions {
    ($($(#[$doc:meta])* fn $name:ident, $quiet:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Addresses are null or of as much memory as the header says, for values of their
            /// type, which nobody else writes until the call has returned, or its message is over;
            /// what the call writes nobody else reads meanwhile, and no other argument overlaps.
            /// Strings end with a zero byte. Handlers and functions are such as the header says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                $crate::process::plainly(stringify!($name), || $body)
            }

            $(#[$doc])*
            ///
            /// # Safety
            /// As for the form without an underscore.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $quiet($($argument: $kind),*) -> $result {
                $crate::process::quietly(|| $body)
            }
        )*
    };
}

pub(crate) use {calls, questions};
