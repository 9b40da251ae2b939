//! Gather and scatter: one call for several pieces.
//!
//! Invariant: a list is checked as a whole before its first piece moves.

use crate::buffer::vmmc_buffer;
use crate::failure::{Failure, call};
use crate::handle::get;
use crate::import::vmmc_import;
use crate::memory::{bytes, bytes_mut, list};
use crate::status::vmmc_status;
use std::ffi::c_void;
use std::ops::Range;

/// A piece of local memory to send.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_piece {
    /// First byte.
    pub data: *const c_void,
    /// Bytes.
    pub len: usize,
}

/// A piece of local memory to fetch into.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_place {
    /// First byte.
    pub into: *mut c_void,
    /// Bytes.
    pub len: usize,
}

/// A range of an export or buffer.
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

/// Gathers: sends several pieces to consecutive places from `offset` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_gather(
    import: *const vmmc_import,
    offset: u64,
    pieces: *const vmmc_piece,
    count: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: a list of the caller, and memory of the caller behind each of its entries.
        let pieces: Result<Vec<&[u8]>, Failure> =
            unsafe { list(pieces, count, "pieces")?.iter().map(|p| bytes(p.data, p.len, "pieces")).collect() };
        Ok(get(import)?.gather(&pieces?, offset)?)
    })
}

/// Gathers from registered memory: sends several ranges of a buffer to consecutive places from
/// `offset` on, all under way at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_gather_from(
    import: *const vmmc_import,
    offset: u64,
    buffer: *const vmmc_buffer,
    ranges_: *const vmmc_range,
    count: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: a list of the caller.
        let ranges = unsafe { ranges(ranges_, count) }?;
        Ok(get(import)?.gather_from(&*get(buffer)?, &ranges, offset)?)
    })
}

/// Scatters: sends consecutive parts of the data to several ranges of the export, as far as both
/// reach.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_scatter(
    import: *const vmmc_import,
    data: *const c_void,
    len: usize,
    ranges_: *const vmmc_range,
    count: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory and a list of the caller.
        let (data, ranges) = unsafe { (bytes(data, len, "data")?, ranges(ranges_, count)?) };
        Ok(get(import)?.scatter(data, &ranges)?)
    })
}

/// Fetches consecutive bytes from `offset` on into several places, which must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_fetch_scatter(
    import: *const vmmc_import,
    offset: u64,
    places: *const vmmc_place,
    count: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: a list of the caller.
        let list = unsafe { list(places, count, "places") }?;
        disjoint(list)?;
        // SAFETY: memory of the caller behind each entry; none overlaps another.
        let places: Result<Vec<&mut [u8]>, Failure> =
            list.iter().map(|p| unsafe { bytes_mut(p.into, p.len, "places") }).collect();
        Ok(get(import)?.fetch_scatter(offset, &mut places?)?)
    })
}

fn disjoint(places: &[vmmc_place]) -> Result<(), Failure> {
    let mut sorted: Vec<(usize, usize)> = places.iter().map(|p| (p.into as usize, p.len)).collect();
    sorted.sort_unstable();
    let overlap = sorted.windows(2).any(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0 && pair[1].1 > 0);
    if overlap { Err(Failure::invalid("two of the places overlap")) } else { Ok(()) }
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
