//! Exports: memory that others may import.
//!
//! Invariant: an export ends by [`vmmc_export_unexport`], which says how, or with its handle.

use crate::buffer::vmmc_buffer;
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::memory::{bytes, bytes_mut, give_string, list, optional_string};
use crate::options::{self, Options, known_flags};
use crate::session::vmmc_session;
use crate::status::vmmc_status::{self, VMMC_BAD_HANDLE, VMMC_BUSY};
use crate::wait::within;
use std::ffi::{c_char, c_void};
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{RwLock, RwLockReadGuard, TryLockError};
use vmmc::{Access, CallerMemory, Export, ExportBuilder, Region, Revocation, Rights};

/// Memory that others may import.
pub struct vmmc_export(());

pub(crate) struct Object {
    /// None once it has ended.
    export: RwLock<Option<Export>>,
    /// Keeps the memory where it is until the handle is freed.
    _memory: Region,
}
handle!(vmmc_export, Export, Object, "export");

/// A right: fetch.
pub const VMMC_READ: u32 = 1;
/// A right: send.
pub const VMMC_WRITE: u32 = 2;
/// A right: atomic operations.
pub const VMMC_ATOMIC: u32 = 4;

/// For `access` of vmmc_export_options: processes of the same user (the default).
pub const VMMC_ACCESS_SAME_USER: u32 = 0;
/// For `access`: every user of every node of the cluster.
pub const VMMC_ACCESS_ANYONE: u32 = 1;
/// For `access`: the users listed.
pub const VMMC_ACCESS_USERS: u32 = 2;

/// For `flags` of vmmc_export_options: senders may notify.
pub const VMMC_EXPORT_NOTIFY: u32 = 1;
/// For `flags`: incoming data may be redirected; importers of this node then go through the engine.
pub const VMMC_EXPORT_REDIRECTABLE: u32 = 2;
/// For `flags`: importers of this node may not map the memory.
pub const VMMC_EXPORT_NOT_MAPPABLE: u32 = 4;

/// Choices for an export.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_export_options {
    /// sizeof (vmmc_export_options).
    pub size: usize,
    /// Name for importers, 1 to 255 bytes, unique among those of this user on the node; NULL: it is
    /// imported by id.
    pub name: *const c_char,
    /// What importers may be granted: VMMC_READ, VMMC_WRITE, VMMC_ATOMIC; 0: all.
    pub rights: u32,
    /// VMMC_EXPORT_NOTIFY, VMMC_EXPORT_REDIRECTABLE, VMMC_EXPORT_NOT_MAPPABLE.
    pub flags: u32,
    /// Who may import: VMMC_ACCESS_SAME_USER, VMMC_ACCESS_ANYONE, VMMC_ACCESS_USERS.
    pub access: u32,
    /// With VMMC_ACCESS_USERS: how many.
    pub user_count: u32,
    /// With VMMC_ACCESS_USERS: their user ids.
    pub users: *const u32,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_export_options {
    const NAME: &'static str = "export options";
}

/// How an ended export was made unreachable.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmmc_revocation {
    /// The engine refuses, and mapped transfers of the library have stopped at the gate.
    VMMC_REVOKED_BY_GATE = 0,
    /// The content was moved onto other pages; whoever still maps the old ones reaches nothing.
    VMMC_REVOKED_BY_MOVE = 1,
}

/// What vmmc_export_wait_word() and VMMC_WAIT_WORD wait for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmmc_condition {
    /// The word is the operand.
    VMMC_EQUAL = 0,
    /// It is not the operand.
    VMMC_NOT_EQUAL = 1,
    /// It is the operand or above.
    VMMC_AT_LEAST = 2,
    /// It is the operand or below.
    VMMC_AT_MOST = 3,
    /// It has at least one of the operand's bits.
    VMMC_ANY_BIT = 4,
    /// It has all of the operand's bits.
    VMMC_ALL_BITS = 5,
}

/// An export in use by a call.
pub(crate) struct InUse<'a>(RwLockReadGuard<'a, Option<Export>>);

impl Deref for InUse<'_> {
    type Target = Export;
    fn deref(&self) -> &Export {
        self.0.as_ref().expect("checked when it was locked")
    }
}

impl Object {
    pub(crate) fn open(&self) -> Result<InUse<'_>, Failure> {
        // Nothing panics while the lock is held for writing, except what has been reported as
        // VMMC_INTERNAL.
        let guard = self.export.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if guard.is_some() { Ok(InUse(guard)) } else { Err(Failure::new(VMMC_BAD_HANDLE, "the export has ended")) }
    }

    fn take(&self) -> Result<Export, Failure> {
        let taken = match self.export.try_write() {
            Ok(mut guard) => guard.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => {
                let why = "the export is in use by a call of another thread; let that end first";
                return Err(Failure::new(VMMC_BUSY, why));
            }
        };
        taken.ok_or_else(|| Failure::new(VMMC_BAD_HANDLE, "the export has ended"))
    }
}

pub(crate) fn rights(bits: u32) -> Result<Option<Rights>, Failure> {
    if bits == 0 {
        return Ok(None);
    }
    let known = u8::try_from(bits).ok().and_then(Rights::from_bits);
    known.map(Some).ok_or_else(|| Failure::invalid(format!("`rights` {bits:#x} has bits that mean nothing")))
}

pub(crate) unsafe fn access_of(options: &vmmc_export_options) -> Result<Access, Failure> {
    // SAFETY: the caller's word, passed on.
    unsafe { access(options.access, options.users, options.user_count) }
}

/// # Safety
/// `users` is a list of the caller of that length, or not looked at.
pub(crate) unsafe fn access(kind: u32, users: *const u32, count: u32) -> Result<Access, Failure> {
    Ok(match kind {
        VMMC_ACCESS_SAME_USER => Access::SameUser,
        VMMC_ACCESS_ANYONE => Access::Anyone,
        VMMC_ACCESS_USERS => {
            // SAFETY: a list of the caller's options.
            Access::Users(unsafe { list(users, count as usize, "users") }?.to_vec())
        }
        other => return Err(Failure::invalid(format!("`access` {other} means nothing"))),
    })
}

pub(crate) unsafe fn create(
    builder: ExportBuilder,
    options: *const vmmc_export_options,
) -> Result<*mut vmmc_export, Failure> {
    // SAFETY: the caller's word, passed on.
    let options = unsafe { options::read(options) }?;
    let known = VMMC_EXPORT_NOTIFY | VMMC_EXPORT_REDIRECTABLE | VMMC_EXPORT_NOT_MAPPABLE;
    known_flags(options.flags, known, "export options")?;
    let mut builder = builder
        .notify(options.flags & VMMC_EXPORT_NOTIFY != 0)
        .redirectable(options.flags & VMMC_EXPORT_REDIRECTABLE != 0)
        .mappable(options.flags & VMMC_EXPORT_NOT_MAPPABLE == 0);
    // SAFETY: a string of the caller's options.
    if let Some(name) = unsafe { optional_string(options.name, "name") }? {
        builder = builder.name(name);
    }
    if let Some(rights) = rights(options.rights)? {
        builder = builder.rights(rights);
    }
    // SAFETY: a list of the caller's options.
    builder = builder.access(unsafe { access_of(&options) }?);
    let export = builder.create()?;
    let memory = export.region();
    put(handle::Object::Export(Object { export: RwLock::new(Some(export)), _memory: memory }))
}

/// Exports new memory of `len` bytes, zeroed and reserved. It starts on a page, so importers of
/// this node can map it. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_create(
    session: *const vmmc_session,
    len: u64,
    options: *const vmmc_export_options,
    export_: *mut *mut vmmc_export,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(export_, "export", || create(get(session)?.export(len), options)) }
}

/// Exports memory that the caller has, in place: private, writable, anonymous memory (heap or
/// private mmap), `len` bytes from `base`.
///
/// It costs one copy of the range's pages now and one at the end. Unless the range covers whole
/// pages, importers of this node go through the engine, and other threads must not write to its
/// first and last page while this call and the end of the export run, because other objects on them
/// move along. The memory stays allocated until the export and all buffers of it are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_memory(
    session: *const vmmc_session,
    base: *mut c_void,
    len: usize,
    options: *const vmmc_export_options,
    export_: *mut *mut vmmc_export,
) -> vmmc_status {
    let make = || {
        // SAFETY: the caller vouches for the range, as the documentation asks.
        let memory = unsafe { caller_memory(base, len) }?;
        // SAFETY: the caller's options.
        unsafe { create(get(session)?.export_memory(memory), options) }
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(export_, "export", make) }
}

/// Exports the memory of a buffer; they share it. Importers of this node map that of a buffer made
/// by vmmc_buffer_create(); others, which may share pages, they reach through the engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_buffer(
    session: *const vmmc_session,
    buffer: *const vmmc_buffer,
    options: *const vmmc_export_options,
    export_: *mut *mut vmmc_export,
) -> vmmc_status {
    let make = || {
        let buffer = get(buffer)?;
        // SAFETY: the caller's options.
        unsafe { create(get(session)?.export_buffer(&buffer), options) }
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(export_, "export", make) }
}

/// # Safety
/// The range is the caller's, as [`vmmc_export_memory`] asks.
pub(crate) unsafe fn caller_memory(base: *mut c_void, len: usize) -> Result<CallerMemory, Failure> {
    if base.is_null() {
        return Err(Failure::invalid("`base` is NULL"));
    }
    // SAFETY: the caller's word.
    Ok(unsafe { CallerMemory::from_raw_parts(base.cast(), len) })
}

/// Frees the export, which ends it, as vmmc_export_unexport() would. Its memory goes too, unless
/// the caller gave it: do not use its pointer any more.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_export_free(export_: *mut vmmc_export) -> vmmc_status {
    call(|| handle::free(export_))
}

/// Ends the export. After VMMC_OK no further byte arrives from anybody who uses the library; with
/// `moving` the content is moved onto other pages at the same address, so that nobody at all can
/// reach it. The memory remains until vmmc_export_free(); all other calls on the handle then fail.
/// VMMC_BUSY: a call of another thread still uses the export.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_unexport(
    export_: *const vmmc_export,
    moving: bool,
    revocation: *mut vmmc_revocation,
) -> vmmc_status {
    let end = || {
        let export = get(export_)?.take()?;
        let ended = if moving { export.unexport_moving() } else { export.unexport() };
        Ok(match ended? {
            Revocation::Gate => vmmc_revocation::VMMC_REVOKED_BY_GATE,
            Revocation::Moved => vmmc_revocation::VMMC_REVOKED_BY_MOVE,
        })
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(revocation, "revocation", end) }
}

/// Id for importers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_id(export_: *const vmmc_export, id: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(id, "id", || Ok(get(export_)?.open()?.id().to_u64())) }
}

/// Name for importers, NULL if it has none; free it with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_name(export_: *const vmmc_export, name: *mut *mut c_char) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(name, "name", || Ok(get(export_)?.open()?.name().map_or(std::ptr::null_mut(), give_string))) }
}

/// Bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_len(export_: *const vmmc_export, len: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(len, "len", || Ok(get(export_)?.open()?.len())) }
}

/// Its memory, valid until vmmc_export_free(). Importers write it at any time: use volatile or
/// atomic accesses for what they may be writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_pointer(export_: *const vmmc_export, base: *mut *mut c_void) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(base, "base", || Ok(get(export_)?.open()?.as_ptr().cast())) }
}

/// Copies bytes out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_read(
    export_: *const vmmc_export,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        Ok(get(export_)?.open()?.read(offset, into)?)
    })
}

/// Copies bytes in; the last one becomes visible last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_write(
    export_: *const vmmc_export,
    offset: u64,
    data: *const c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let data = unsafe { bytes(data, len, "data") }?;
        Ok(get(export_)?.open()?.write(offset, data)?)
    })
}

/// Loads an aligned 64-bit word. What was sent before that word by the same process is then
/// visible.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_load(export_: *const vmmc_export, offset: u64, value: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(value, "value", || Ok(get(export_)?.open()?.word(offset)?.load(Ordering::Acquire))) }
}

/// Stores an aligned 64-bit word, after all that this thread stored before.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_export_store(export_: *const vmmc_export, offset: u64, value: u64) -> vmmc_status {
    call(|| {
        get(export_)?.open()?.word(offset)?.store(value, Ordering::Release);
        Ok(())
    })
}

/// Whether a word satisfies a vmmc_condition against an operand.
pub(crate) fn condition(condition: u32) -> Result<fn(u64, u64) -> bool, Failure> {
    Ok(match condition {
        0 => |word, operand| word == operand,
        1 => |word, operand| word != operand,
        2 => |word, operand| word >= operand,
        3 => |word, operand| word <= operand,
        4 => |word, operand| word & operand != 0,
        5 => |word, operand| word & operand == operand,
        other => return Err(Failure::invalid(format!("`condition` {other} is no vmmc_condition"))),
    })
}

/// Waits until an aligned 64-bit word satisfies a condition against `operand`; gives its value.
/// `condition` is a vmmc_condition. Everything sent before that word by the same process is then
/// visible. It sleeps in the kernel, and is woken by sends and atomic operations of processes of
/// this node, and by the node for up to 4 KiB that comes from another one; other stores it finds
/// within 1 ms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_export_wait_word(
    export_: *const vmmc_export,
    offset: u64,
    condition: u32,
    operand: u64,
    timeout_us: i64,
    value: *mut u64,
) -> vmmc_status {
    let wait = || {
        let ready = self::condition(condition)?;
        let object = get(export_)?;
        let export = object.open()?;
        Ok(within(timeout_us, || export.wait_word(offset, |word| ready(word, operand)))?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(value, "value", wait) }
}
