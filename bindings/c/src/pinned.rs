//! Memory that is lent, and tables of translations by index.
//!
//! Invariant: lent memory is the caller's; it is only read, and only while a transfer that names
//! it, or the table that it was placed in, goes on.

use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::memory::bytes;
use crate::session::vmmc_session;
use crate::status::vmmc_status::{self, VMMC_BUSY};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use vmmc::{Lent, PinnedTable};

/// Memory that stays where it is until the handle is freed, and longer where it stands in a table.
pub struct vmmc_lent(());

pub(crate) type LentObject = Lent<'static>;
handle!(vmmc_lent, Lent, LentObject, "lent memory");

/// Translations of lent memory, under indices that the program chooses.
pub struct vmmc_table(());

pub(crate) type TableObject = Arc<Table>;
handle!(vmmc_table, Table, TableObject, "table");

/// A table, and how many sends use it.
pub(crate) struct Table {
    table: RwLock<PinnedTable<'static>>,
    /// Grows under the lock.
    users: AtomicUsize,
}

/// A send that uses a table; nobody changes the table meanwhile.
pub(crate) struct TableUser(Arc<Table>);

impl Table {
    /// Counts as a user from now on.
    pub(crate) fn user(self: &Arc<Table>) -> TableUser {
        let _unchanged = self.table.read().unwrap_or_else(PoisonError::into_inner);
        self.users.fetch_add(1, Ordering::AcqRel);
        TableUser(self.clone())
    }

    /// Changes the table, if nobody uses it.
    fn change<T>(&self, change: impl FnOnce(&mut PinnedTable<'static>) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if self.users.load(Ordering::Acquire) > 0 {
            return Err(Failure::new(VMMC_BUSY, "a send from this table is under way; wait for it first"));
        }
        change(&mut table)
    }
}

impl TableUser {
    /// The table.
    ///
    /// # Safety
    /// It is not used after the user has gone.
    pub(crate) unsafe fn table(&self) -> &'static PinnedTable<'static> {
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the user keeps the table alive, and while it has users `change` gives nobody a
        // mutable reference; that it is not used longer is the caller's word.
        unsafe { &*std::ptr::from_ref(&*table) }
    }
}

impl Drop for TableUser {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
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

/// A table of so many translations, a page each, that the program places itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_table_create(
    session: *const vmmc_session,
    entries: u32,
    table: *mut *mut vmmc_table,
) -> vmmc_status {
    let make = || {
        let table = RwLock::new(get(session)?.pinned_table(entries)?);
        put(handle::Object::Table(Arc::new(Table { table, users: AtomicUsize::new(0) })))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(table, "table", make) }
}

/// Pins lent memory, which must be whole pages, and writes its translations into the entries from
/// `index` on. What stood there goes. The memory stays in place until it is taken out again or the
/// table is freed. VMMC_BUSY while a send from the table is under way.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_table_place(table: *const vmmc_table, index: u32, lent: *const vmmc_lent) -> vmmc_status {
    call(|| {
        let memory = *get(lent)?;
        get(table)?.change(|table| Ok(table.place(index, memory)?))
    })
}

/// Empties `count` entries from `index` on. VMMC_BUSY while a send from the table is under way.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_table_remove(table: *const vmmc_table, index: u32, count: usize) -> vmmc_status {
    call(|| get(table)?.change(|table| Ok(table.remove(index, count)?)))
}

/// Frees a table: nothing stands in it any more.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_table_free(table: *mut vmmc_table) -> vmmc_status {
    call(|| handle::free(table))
}
