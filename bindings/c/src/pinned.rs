//! Memory that is lent, and tables of translations by index.
//!
//! Invariant: lent memory is the caller's; it is only read, and only while a call that names it, or
//! the table that it was placed in, goes on.

use crate::failure::{call, give};
use crate::handle::{self, get, handle, put};
use crate::import::vmmc_import;
use crate::lists::range;
use crate::memory::bytes;
use crate::session::vmmc_session;
use crate::status::vmmc_status;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};
use vmmc::{Lent, PinnedTable};

/// Memory that stays where it is until the handle is freed, and longer where it stands in a table.
pub struct vmmc_lent(());

pub(crate) type LentObject = Lent<'static>;
handle!(vmmc_lent, Lent, LentObject, "lent memory");

/// Translations of lent memory, under indices that the program chooses.
pub struct vmmc_table(());

pub(crate) type TableObject = RwLock<PinnedTable<'static>>;
handle!(vmmc_table, Table, TableObject, "table");

fn part(from: u64, len: u64) -> Result<Range<usize>, crate::failure::Failure> {
    range(from, len).map(|range| range.start as usize..range.end as usize)
}

/// Lends memory: it stays mapped, and where it is, until vmmc_lent_free(). Sends from it ask nobody
/// whether it has been unmapped. Nothing is pinned before it is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_lend(
    session: *const vmmc_session,
    memory: *const c_void,
    len: usize,
    lent: *mut *mut vmmc_lent,
) -> vmmc_status {
    let lend = || {
        // SAFETY: memory that the caller leaves in place until it frees the handle, as the
        // documentation asks.
        let memory = unsafe { bytes(memory, len, "memory") }?;
        put(handle::Object::Lent(get(session)?.lend(memory)))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(lent, "lent", lend) }
}

/// Ends the lending. Memory that stands in a table must stay until it is taken out of it, or the
/// table is freed.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_lent_free(lent: *mut vmmc_lent) -> vmmc_status {
    call(|| handle::free(lent))
}

/// Sends `len` bytes of lent memory without a copy on the way and, but for the first time, without
/// a system call; returns when the range may be reused. After VMMC_TIMED_OUT it may still be read.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_import_send_lent(
    import: *const vmmc_import,
    offset: u64,
    lent: *const vmmc_lent,
    from: u64,
    len: u64,
) -> vmmc_status {
    call(|| Ok(get(import)?.send_lent(offset, *get(lent)?, part(from, len)?)?))
}

/// A table of so many translations, a page each, that the program places itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_table_create(
    session: *const vmmc_session,
    entries: u32,
    table: *mut *mut vmmc_table,
) -> vmmc_status {
    let make = || put(handle::Object::Table(RwLock::new(get(session)?.pinned_table(entries)?)));
    // SAFETY: pointers are as the header asks.
    unsafe { give(table, "table", make) }
}

/// Pins lent memory, which must be whole pages, and writes its translations into the entries from
/// `index` on. What stood there goes. The memory stays in place until it is taken out again or the
/// table is freed.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_table_place(table: *const vmmc_table, index: u32, lent: *const vmmc_lent) -> vmmc_status {
    call(|| Ok(get(table)?.write().unwrap_or_else(PoisonError::into_inner).place(index, *get(lent)?)?))
}

/// Empties `count` entries from `index` on.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_table_remove(table: *const vmmc_table, index: u32, count: usize) -> vmmc_status {
    call(|| Ok(get(table)?.write().unwrap_or_else(PoisonError::into_inner).remove(index, count)?))
}

/// Sends `len` bytes of what stands in a table, from byte `from` of the entry at `index` on,
/// without a copy on the way and without a look at any other table; returns when the memory may be
/// reused.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_import_send_index(
    import: *const vmmc_import,
    offset: u64,
    table: *const vmmc_table,
    index: u32,
    from: u64,
    len: u64,
) -> vmmc_status {
    call(|| {
        let table = get(table)?;
        let table = table.read().unwrap_or_else(PoisonError::into_inner);
        Ok(get(import)?.send_index(offset, &table, index, part(from, len)?)?)
    })
}

/// Frees a table: nothing stands in it any more.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_table_free(table: *mut vmmc_table) -> vmmc_status {
    call(|| handle::free(table))
}
