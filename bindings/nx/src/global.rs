//! Operations of all processes.
//!
//! Invariant: results are in `x` at all processes; `work` is not read, and only `gopf` writes it.

use crate::calls::calls;
use crate::memory::{length, read, write};
use crate::process::nx;
use std::ffi::{c_double, c_float, c_long, c_void};
use vmmc_nx::NxError;

macro_rules! operations {
    ($([$kind:ty] $($name:ident, $quiet:ident;)*)*) => {
        calls! {
            $($(
                /// Combines the values of all processes one by one.
                fn $name, $quiet(x: *mut $kind, n: c_long, _work: *mut $kind) {
                    // SAFETY: the caller's promise.
                    let values = unsafe { write(x, n, "x") }?;
                    nx()?.$name(values)
                }
            )*)*
        }
    };
}

operations! {
    [c_double]
        gdsum, _gdsum;
        gdprod, _gdprod;
        gdhigh, _gdhigh;
        gdlow, _gdlow;
    [c_float]
        gssum, _gssum;
        gsprod, _gsprod;
        gshigh, _gshigh;
        gslow, _gslow;
    [c_long]
        gisum, _gisum;
        giprod, _giprod;
        gihigh, _gihigh;
        gilow, _gilow;
        giand, _giand;
        gior, _gior;
        gixor, _gixor;
        gland, _gland;
        glor, _glor;
        glxor, _glxor;
}

/// Makes of `x` and `work` one, in `x`.
type Function = Option<extern "C" fn(*mut c_void, *mut c_void) -> c_long>;

calls! {
    /// Waits for all processes.
    fn gsync, _gsync() {
        nx()?.gsync()
    }

    /// Puts the bytes of all behind each other.
    fn gcol, _gcol(x: *const c_void, xlen: c_long, y: *mut c_void, ylen: c_long, ncnt: *mut c_long) {
        // SAFETY: the caller's promise; the two do not overlap.
        let own = unsafe { read(x.cast::<u8>(), xlen, "x") }?;
        // SAFETY: the same.
        let all = unsafe { write(y.cast::<u8>(), ylen, "y") }?;
        let count = nx()?.gcol(own, all)? as c_long;
        if !ncnt.is_null() {
            // SAFETY: the caller's promise: a long that may be written.
            unsafe { *ncnt = count };
        }
        Ok(())
    }

    /// The same, with the lengths of all known.
    fn gcolx, _gcolx(x: *const c_void, xlens: *const c_long, y: *mut c_void) {
        let nx = nx()?;
        // SAFETY: the caller's promise: one for each node.
        let lens = unsafe { read(xlens, nx.messages().size().into(), "xlens") }?;
        if lens.is_empty() {
            return Err(NxError::Null { what: "xlens" });
        }
        let lens = lens.iter().map(|len| length(*len)).collect::<Result<Vec<_>, _>>()?;
        let own = lens.get(nx.messages().rank() as usize).copied().unwrap_or_default();
        let total = lens.iter().fold(0usize, |sum, len| sum.saturating_add(*len));
        let total = c_long::try_from(total).map_err(|_| NxError::Length { len: c_long::MAX })?;
        // SAFETY: the caller's promise; the two do not overlap.
        let own = unsafe { read(x.cast::<u8>(), own as c_long, "x") }?;
        // SAFETY: the same.
        let all = unsafe { write(y.cast::<u8>(), total, "y") }?;
        nx.gcolx(own, &lens, all)
    }

    /// Combines what all have by a function.
    fn gopf, _gopf(x: *mut c_void, xlen: c_long, work: *mut c_void, function: Function) {
        let function = function.ok_or(NxError::Null { what: "the function" })?;
        // SAFETY: the caller's promise; the two do not overlap.
        let bytes = unsafe { write(x.cast::<u8>(), xlen, "x") }?;
        // SAFETY: the same.
        let work = unsafe { write(work.cast::<u8>(), xlen, "work") }?;
        // In memory as aligned as the program's own: both parts of the result pass through it.
        let mut own = vec![0u128; bytes.len().div_ceil(16)];
        nx()?.gopf(bytes, &mut |one: &mut [u8], other: &[u8]| {
            work[..other.len()].copy_from_slice(other);
            let place = own.as_mut_ptr().cast::<u8>();
            // SAFETY: `own` has at least `one.len() = xlen` bytes, and is nobody else's.
            unsafe { std::ptr::copy_nonoverlapping(one.as_ptr(), place, one.len()) };
            function(place.cast(), work.as_mut_ptr().cast());
            // SAFETY: the same, the other way; `one` is not known to the function.
            unsafe { std::ptr::copy_nonoverlapping(place.cast_const(), one.as_mut_ptr(), one.len()) };
        })
    }

    /// Sends a message to a list of nodes.
    fn gsendx, _gsendx(ty: c_long, x: *const c_void, xlen: c_long, nodes: *const c_long, n: c_long) {
        // SAFETY: the caller's promise.
        let bytes = unsafe { read(x.cast::<u8>(), xlen, "x") }?;
        // SAFETY: the same.
        let nodes = unsafe { read(nodes, n, "the nodes") }?;
        nx()?.gsendx(ty, bytes, nodes)
    }
}
