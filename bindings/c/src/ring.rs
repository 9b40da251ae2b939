//! Append rings: many processes put short records into one export, and its owner takes them.
//!
//! Invariant: a record is copied out before its place is free for others; one thread takes at a
//! time.

use crate::export::{VMMC_EXPORT_NOTIFY, access_of, vmmc_export_options};
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::import::vmmc_import;
use crate::memory::{bytes, optional_string};
use crate::options::{self, Options, known_flags};
use crate::session::vmmc_session;
use crate::status::vmmc_status::{self, VMMC_AGAIN, VMMC_BUSY};
use crate::transfer::{Moving, under_way, vmmc_transfer};
use crate::wait::{optional, within};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, TryLockError};
use vmmc::{AppendOptions, Record, Ring};

/// Bytes of the longest record.
pub const VMMC_RECORD_BYTES_MAX: usize = 512;
const _: () = assert!(VMMC_RECORD_BYTES_MAX == vmmc::limits::APPEND_BYTES_MAX);

/// An export that many processes append records to.
pub struct vmmc_ring(());

pub(crate) struct Object {
    ring: Mutex<Ring>,
    id: u64,
}
handle!(vmmc_ring, Ring, Object, "ring");

/// A record.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_record {
    /// The word that its sender gave it.
    pub word: u64,
    /// Who appended it: the session with the sender's node, 0 for this node. vmmc_session_node_of()
    /// names the node.
    pub sender_session: u32,
    /// The process, in the numbers of its node: vmmc_session_process() there.
    pub sender_process: u32,
    /// Its import: vmmc_import_id() there.
    pub sender_import: u64,
    /// Bytes of data.
    pub len: u64,
    /// The data.
    pub data: [u8; VMMC_RECORD_BYTES_MAX],
}

impl From<Record> for vmmc_record {
    fn from(record: Record) -> vmmc_record {
        let mut data = [0; VMMC_RECORD_BYTES_MAX];
        data[..record.data.len()].copy_from_slice(&record.data);
        vmmc_record {
            word: record.word,
            sender_session: record.from.session,
            sender_process: record.from.process.0,
            sender_import: record.from.import.to_u64(),
            len: record.data.len() as u64,
            data,
        }
    }
}

/// For `flags` of vmmc_append_options: notify the owner too, if its ring allows it. The
/// notification carries the word.
pub const VMMC_APPEND_NOTIFY: u32 = 1;
/// For `flags` of vmmc_append_options: a full ring is VMMC_FULL at once.
pub const VMMC_APPEND_AT_ONCE: u32 = 2;

/// Choices for one append.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_append_options {
    /// sizeof (vmmc_append_options).
    pub size: usize,
    /// VMMC_APPEND_NOTIFY, VMMC_APPEND_AT_ONCE.
    pub flags: u32,
    /// Stands in the record: a tag, the number of a request.
    pub word: u64,
    /// Instead of the default timeout, microseconds; 0: the default.
    pub timeout_us: i64,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_append_options {
    const NAME: &'static str = "append options";
}

impl Object {
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Ring>, Failure> {
        match self.ring.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::new(VMMC_BUSY, "another thread takes records from this ring; let it come back first"))
            }
        }
    }
}

unsafe fn append_options(options: *const vmmc_append_options) -> Result<(AppendOptions, bool), Failure> {
    // SAFETY: the caller's word, passed on.
    let options = unsafe { options::read(options) }?;
    known_flags(options.flags, VMMC_APPEND_NOTIFY | VMMC_APPEND_AT_ONCE, "append options")?;
    let notify = options.flags & VMMC_APPEND_NOTIFY != 0;
    let append = AppendOptions { word: options.word, notify, timeout: optional(options.timeout_us)? };
    Ok((append, options.flags & VMMC_APPEND_AT_ONCE != 0))
}

/// A ring for `bytes` of records, each with 32 bytes beside its data: 8 KiB to 4 MiB, a multiple of
/// 8. Importers need VMMC_WRITE alone, and append. Of `options`, which may be NULL, `name`,
/// `access` with its users, and VMMC_EXPORT_NOTIFY count; the rest must be 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_ring_create(
    session: *const vmmc_session,
    bytes: u64,
    options: *const vmmc_export_options,
    ring: *mut *mut vmmc_ring,
) -> vmmc_status {
    let make = || {
        // SAFETY: the caller's options.
        let options = unsafe { options::read(options) }?;
        known_flags(options.flags, VMMC_EXPORT_NOTIFY, "options of a ring")?;
        if options.rights != 0 {
            return Err(Failure::invalid("options of a ring: its right is VMMC_WRITE; leave `rights` 0"));
        }
        // SAFETY: lists and strings of the caller's options.
        let (access, name) = unsafe { (access_of(&options)?, optional_string(options.name, "name")?) };
        let builder = get(session)?.ring(bytes).access(access).notify(options.flags & VMMC_EXPORT_NOTIFY != 0);
        let ring = name.into_iter().fold(builder, |builder, name| builder.name(name)).create()?;
        let id = ring.id().to_u64();
        put(handle::Object::Ring(Object { ring: Mutex::new(ring), id }))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(ring, "ring", make) }
}

/// Its id as an export, for importers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_ring_id(ring: *const vmmc_ring, id: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(id, "id", || Ok(get(ring)?.id)) }
}

/// The oldest record, which makes room for others; VMMC_AGAIN if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_ring_take(ring: *const vmmc_ring, record: *mut vmmc_record) -> vmmc_status {
    let take = || {
        let taken = get(ring)?.lock()?.take()?;
        taken.map(Into::into).ok_or_else(|| Failure::new(VMMC_AGAIN, "no record is there"))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(record, "record", take) }
}

/// The oldest record; waits for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_ring_wait(
    ring: *const vmmc_ring,
    timeout_us: i64,
    record: *mut vmmc_record,
) -> vmmc_status {
    let wait = || {
        let object = get(ring)?;
        let mut ring = object.lock()?;
        Ok(within(timeout_us, || ring.wait())?.into())
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(record, "record", wait) }
}

/// Ends the ring: importers are told, and what was not taken is gone.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_ring_free(ring: *mut vmmc_ring) -> vmmc_status {
    call(|| handle::free(ring))
}

/// Appends a record of up to VMMC_RECORD_BYTES_MAX bytes to a ring, and waits until it is there; as
/// long as the ring has no room, tries again. VMMC_FULL: there was none in time. Records of one
/// import come in the order of its appends. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_append(
    import: *const vmmc_import,
    data: *const c_void,
    len: usize,
    options: *const vmmc_append_options,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory and options of the caller.
        let (data, (options, at_once)) = unsafe { (bytes(data, len, "data")?, append_options(options)?) };
        let import = get(import)?;
        let appended = if at_once { import.try_append(data, options) } else { import.append(data, options) };
        Ok(appended?)
    })
}

/// Posts an append: does not wait, and tries once. The data may be reused on return. When one finds
/// no room, those posted behind it find none either, until vmmc_transfer_wait() or
/// vmmc_transfer_poll() has said so, or the transfer is freed. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_post_append(
    import: *const vmmc_import,
    data: *const c_void,
    len: usize,
    options: *const vmmc_append_options,
    transfer: *mut *mut vmmc_transfer,
) -> vmmc_status {
    let post = || {
        // SAFETY: memory and options of the caller.
        let (data, (options, _)) = unsafe { (bytes(data, len, "data")?, append_options(options)?) };
        under_way(Moving::Send(get(import)?.post_append(data, options)?), Vec::new())
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(transfer, "transfer", post) }
}
