//! Several places of an export in one call.
//!
//! Invariant: a list is checked as a whole before its first piece moves.

use crate::failure::{Failure, call, give};
use crate::handle::get;
use crate::import::{send_options, vmmc_import, vmmc_send_options};
use crate::memory::{bytes, bytes_mut, list};
use crate::status::vmmc_status;
use crate::transfer::{Moving, under_way, vmmc_transfer};
use std::ffi::c_void;
use std::ops::Range;

/// A range of an export.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmmc_range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

pub(crate) fn range(offset: u64, len: u64) -> Result<Range<u64>, Failure> {
    let end = offset.checked_add(len);
    let end = end.ok_or_else(|| Failure::new(vmmc_status::VMMC_OUT_OF_BOUNDS, "offset and length exceed 64 bits"))?;
    Ok(offset..end)
}

unsafe fn ranges(first: *const vmmc_range, count: usize) -> Result<Vec<Range<u64>>, Failure> {
    // SAFETY: the caller's word, passed on.
    unsafe { list(first, count, "ranges") }?.iter().map(|r| range(r.offset, r.len)).collect()
}

/// Data, and where in the export it goes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_piece {
    /// First byte, in the export.
    pub offset: u64,
    /// The data.
    pub data: *const c_void,
    /// Bytes.
    pub len: usize,
}

unsafe fn pieces<'a>(first: *const vmmc_piece, count: usize) -> Result<Vec<(u64, &'a [u8])>, Failure> {
    // SAFETY: the caller's word, passed on.
    let given = unsafe { list(first, count, "pieces") }?;
    // SAFETY: memory of the caller.
    given.iter().map(|piece| Ok((piece.offset, unsafe { bytes(piece.data, piece.len, "data") }?))).collect()
}

/// Sends `count` pieces, up to 1,024, each to its own place in the export, in one operation. The
/// data may be reused on return. A notification tells of all, from the first byte of any to the end
/// of the last, and comes after them, as a counter does. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_gather_send(
    import: *const vmmc_import,
    pieces_: *const vmmc_piece,
    count: usize,
    options: *const vmmc_send_options,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory and options of the caller.
        let (pieces, options) = unsafe { (pieces(pieces_, count)?, send_options(options)?) };
        Ok(get(import)?.gather_send(&pieces, options)?)
    })
}

/// Posts a gather-send: does not wait. The data may be reused on return. The transfer is done when
/// all has arrived. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_post_gather_send(
    import: *const vmmc_import,
    pieces_: *const vmmc_piece,
    count: usize,
    options: *const vmmc_send_options,
    transfer: *mut *mut vmmc_transfer,
) -> vmmc_status {
    let post = || {
        // SAFETY: memory and options of the caller.
        let (pieces, options) = unsafe { (pieces(pieces_, count)?, send_options(options)?) };
        under_way(Moving::Send(get(import)?.post_gather_send(&pieces, options)?), Vec::new())
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(transfer, "transfer", post) }
}

/// Fetches several ranges of the export into consecutive bytes, as far as both reach.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_fetch_gather(
    import: *const vmmc_import,
    ranges_: *const vmmc_range,
    count: usize,
    into: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory and a list of the caller.
        let (ranges, into) = unsafe { (ranges(ranges_, count)?, bytes_mut(into, len, "into")?) };
        Ok(get(import)?.fetch_gather(&ranges, into)?)
    })
}
