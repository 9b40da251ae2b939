//! Registered memory: sends and fetches through the engine need no copy on the way.
//!
//! Invariant: the memory stays as long as the handle, and as long as any transfer or redirection
//! uses it.

use crate::export::{caller_memory, vmmc_export};
use crate::failure::{call, give};
use crate::handle::{self, get, handle, put};
use crate::memory::{bytes, bytes_mut};
use crate::session::vmmc_session;
use crate::status::vmmc_status;
use std::ffi::c_void;
use vmmc::Buffer;

/// Memory registered with the node, for sends and fetches without copies.
pub struct vmmc_buffer(());

pub(crate) type Object = Buffer;
handle!(vmmc_buffer, Buffer, Object, "buffer");

/// New registered memory of `len` bytes, zeroed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_buffer_create(
    session: *const vmmc_session,
    len: u64,
    buffer: *mut *mut vmmc_buffer,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(buffer, "buffer", || put(handle::Object::Buffer(get(session)?.buffer(len)?))) }
}

/// Registers memory that the caller has, in place; what vmmc_export_memory() says about such memory
/// holds here too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_buffer_memory(
    session: *const vmmc_session,
    base: *mut c_void,
    len: usize,
    buffer: *mut *mut vmmc_buffer,
) -> vmmc_status {
    let make = || {
        // SAFETY: the caller vouches for the range, as the documentation asks.
        let memory = unsafe { caller_memory(base, len) }?;
        put(handle::Object::Buffer(get(session)?.adopt(memory)?))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(buffer, "buffer", make) }
}

/// Registers the memory of an export, for sends and fetches from and to it without copies. While it
/// exists the export's memory cannot be moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_buffer_export(
    session: *const vmmc_session,
    export_: *const vmmc_export,
    buffer: *mut *mut vmmc_buffer,
) -> vmmc_status {
    let make = || {
        let region = get(export_)?.open()?.region();
        put(handle::Object::Buffer(get(session)?.buffer_region(region)?))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(buffer, "buffer", make) }
}

/// Frees the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_buffer_free(buffer: *mut vmmc_buffer) -> vmmc_status {
    call(|| handle::free(buffer))
}

/// Bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_buffer_len(buffer: *const vmmc_buffer, len: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(len, "len", || Ok(get(buffer)?.len())) }
}

/// Its memory, valid until vmmc_buffer_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_buffer_pointer(buffer: *const vmmc_buffer, base: *mut *mut c_void) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(base, "base", || Ok(get(buffer)?.as_ptr().cast())) }
}

/// Copies bytes out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_buffer_read(
    buffer: *const vmmc_buffer,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        Ok(get(buffer)?.read(offset, into)?)
    })
}

/// Copies bytes in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_buffer_write(
    buffer: *const vmmc_buffer,
    offset: u64,
    data: *const c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let data = unsafe { bytes(data, len, "data") }?;
        Ok(get(buffer)?.write(offset, data)?)
    })
}
