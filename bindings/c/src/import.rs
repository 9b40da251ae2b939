//! Imports: proxy receive buffers, and deliberate updates, fetches and atomics through them.
//!
//! Invariant: transfers are checked by the library; here only the caller's own memory is taken at
//! its word.

use crate::export::rights;
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::memory::{bytes, bytes_mut, give_string, optional_string, string};
use crate::options::{self, Options, known_flags};
use crate::session::vmmc_session;
use crate::source::{self, vmmc_source, vmmc_target};
use crate::status::vmmc_status;
use crate::wait::{optional, within};
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use vmmc::{ExportId, Gather, Import, ImportBuilder, Path, Scatter, SendOptions};

/// Access to another process's export: the proxy receive buffer.
pub struct vmmc_import(());

/// Shared with the bindings of it.
pub(crate) type Object = Arc<Import>;
handle!(vmmc_import, Import, Object, "import");

/// Choices for an import.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_import_options {
    /// sizeof (vmmc_import_options).
    pub size: usize,
    /// Name or `address:port` of the exporting node; NULL: this node.
    pub node: *const c_char,
    /// VMMC_READ, VMMC_WRITE, VMMC_ATOMIC; 0: read and write.
    pub rights: u32,
    /// VMMC_IMPORT_OWNER or VMMC_IMPORT_ANY_OWNER; neither: a name means an export of this
    /// process's own user, or else one of root. And VMMC_IMPORT_OWN_ORDER, or not.
    pub flags: u32,
    /// Wait this long for an export that does not exist yet, microseconds; 0: a missing export is
    /// an error at once.
    pub wait_us: i64,
    /// With VMMC_IMPORT_OWNER: user id of the exporting process.
    pub owner: u32,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_import_options {
    const NAME: &'static str = "import options";
}

/// For `flags` of vmmc_import_options: take the export of the user `owner` only. Names belong to
/// users.
pub const VMMC_IMPORT_OWNER: u32 = 1;
/// For `flags`: take an export of whoever has one of that name and lets this process import it;
/// vmmc_import_owner() tells whose it is.
pub const VMMC_IMPORT_ANY_OWNER: u32 = 2;
/// For `flags`: what goes through the import has an order of its own. A send of up to 4 KiB, an
/// append, a fetch or an atomic operation follows all that went through it before, and need not
/// wait for what this process has sent through other imports.
pub const VMMC_IMPORT_OWN_ORDER: u32 = 4;

/// For `flags` of vmmc_send_options: notify the receiver after the data, if the export allows it.
pub const VMMC_SEND_NOTIFY: u32 = 1;
/// For `flags`: the word at `counter` grows by one after the data is there.
pub const VMMC_SEND_COUNTER: u32 = 2;

/// Choices for one send.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_send_options {
    /// sizeof (vmmc_send_options).
    pub size: usize,
    /// VMMC_SEND_NOTIFY, VMMC_SEND_COUNTER.
    pub flags: u32,
    /// With VMMC_SEND_COUNTER: offset of an aligned 64-bit word of the export.
    pub counter: u64,
    /// Instead of the default timeout, microseconds; 0: the default.
    pub timeout_us: i64,
    /// With VMMC_SEND_NOTIFY: what the notification carries.
    pub word: u64,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_send_options {
    const NAME: &'static str = "send options";
}

/// How an import's transfers go.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmmc_path {
    /// Copies into the mapped memory of the exporter.
    VMMC_PATH_MAPPED = 0,
    /// Descriptors to the engine of this node, which copies.
    VMMC_PATH_ENGINE = 1,
    /// Descriptors to the engine of this node, packets to that of another.
    VMMC_PATH_NETWORK = 2,
}

pub(crate) unsafe fn open(
    builder: ImportBuilder,
    options: *const vmmc_import_options,
) -> Result<*mut vmmc_import, Failure> {
    // SAFETY: the caller's word, passed on.
    let options = unsafe { options::read(options) }?;
    let known = VMMC_IMPORT_OWNER | VMMC_IMPORT_ANY_OWNER | VMMC_IMPORT_OWN_ORDER;
    known_flags(options.flags, known, "import options")?;
    let builder = if options.flags & VMMC_IMPORT_OWN_ORDER == 0 { builder } else { builder.own_order() };
    let mut builder = match options.flags & !VMMC_IMPORT_OWN_ORDER {
        0 => builder,
        VMMC_IMPORT_OWNER => builder.owner(options.owner),
        VMMC_IMPORT_ANY_OWNER => builder.any_owner(),
        _ => return Err(Failure::invalid("import options: VMMC_IMPORT_OWNER or VMMC_IMPORT_ANY_OWNER, not both")),
    };
    // SAFETY: a string of the caller's options.
    if let Some(node) = unsafe { optional_string(options.node, "node") }? {
        builder = builder.node(node);
    }
    if let Some(rights) = rights(options.rights)? {
        builder = builder.rights(rights);
    }
    if let Some(wait) = optional(options.wait_us)? {
        builder = builder.wait(wait);
    }
    put(handle::Object::Import(Arc::new(builder.open()?)))
}

pub(crate) unsafe fn send_options(options: *const vmmc_send_options) -> Result<SendOptions, Failure> {
    // SAFETY: the caller's word, passed on.
    let options = unsafe { options::read(options) }?;
    known_flags(options.flags, VMMC_SEND_NOTIFY | VMMC_SEND_COUNTER, "send options")?;
    Ok(SendOptions {
        notify: (options.flags & VMMC_SEND_NOTIFY != 0).then_some(options.word),
        counter: (options.flags & VMMC_SEND_COUNTER != 0).then_some(options.counter),
        timeout: optional(options.timeout_us)?,
    })
}

/// Imports an export by its name. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_open(
    session: *const vmmc_session,
    name: *const c_char,
    options: *const vmmc_import_options,
    import: *mut *mut vmmc_import,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(import, "import", || open(get(session)?.import(string(name, "name")?), options)) }
}

/// Imports an export by its id. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_open_id(
    session: *const vmmc_session,
    id: u64,
    options: *const vmmc_import_options,
    import: *mut *mut vmmc_import,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(import, "import", || open(get(session)?.import_id(ExportId::from_u64(id)), options)) }
}

/// Frees the import, after its posted sends have arrived (or one second). A mapping of it stays
/// until its bindings are freed too.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_import_free(import: *mut vmmc_import) -> vmmc_status {
    call(|| handle::free(import))
}

/// What a process moved through an import by copies of its own.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct vmmc_moved {
    /// Sends.
    pub sends: u64,
    /// Their bytes.
    pub send_bytes: u64,
    /// Fetches.
    pub fetches: u64,
    /// Their bytes.
    pub fetch_bytes: u64,
    /// Atomic operations, counters of sends included.
    pub atomics: u64,
}

/// What this process moved through it by copies of its own; nothing if it is not mapped.
/// docs/counters.md says what is not counted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_moved(import: *const vmmc_import, moved: *mut vmmc_moved) -> vmmc_status {
    let read = || {
        let vmmc::Moved { sends, send_bytes, fetches, fetch_bytes, atomics } = get(import)?.moved();
        Ok(vmmc_moved { sends, send_bytes, fetches, fetch_bytes, atomics })
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(moved, "moved", read) }
}

/// Bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_len(import: *const vmmc_import, len: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(len, "len", || Ok(get(import)?.len())) }
}

/// Rights granted: VMMC_READ, VMMC_WRITE, VMMC_ATOMIC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_rights(import: *const vmmc_import, rights: *mut u32) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(rights, "rights", || Ok(u32::from(get(import)?.rights().bits()))) }
}

/// Id of the import in this process: what a receiver finds in `sender_import` of a notification.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_id(import: *const vmmc_import, id: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(id, "id", || Ok(get(import)?.id().to_u64())) }
}

/// Id of the export behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_export_id(import: *const vmmc_import, id: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(id, "id", || Ok(get(import)?.export_id().to_u64())) }
}

/// User id of the exporting process, as its node says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_owner(import: *const vmmc_import, uid: *mut u32) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(uid, "uid", || Ok(get(import)?.owner())) }
}

/// Name of the exporting node; free it with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_node(import: *const vmmc_import, node: *mut *mut c_char) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(node, "node", || Ok(give_string(get(import)?.node()))) }
}

/// Which path its transfers take.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_path(import: *const vmmc_import, path: *mut vmmc_path) -> vmmc_status {
    let find = || {
        Ok(match get(import)?.explain().path {
            Path::Mapped => vmmc_path::VMMC_PATH_MAPPED,
            Path::Engine => vmmc_path::VMMC_PATH_ENGINE,
            Path::Network => vmmc_path::VMMC_PATH_NETWORK,
        })
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(path, "path", find) }
}

/// Which path its transfers take, and why not a better one: a paragraph for people, or JSON. Free
/// it with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_explain(
    import: *const vmmc_import,
    json: bool,
    text: *mut *mut c_char,
) -> vmmc_status {
    let explain = || {
        let explanation = get(import)?.explain();
        let as_json = || serde_json::to_string(&explanation).expect("an explanation has no maps with odd keys");
        Ok(give_string(&if json { as_json() } else { explanation.to_string() }))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(text, "text", explain) }
}

/// VMMC_OK while it can be used; else the error that every transfer through it would get.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_import_check(import: *const vmmc_import) -> vmmc_status {
    call(|| match get(import)?.broken() {
        None => Ok(()),
        Some(error) => Err(error.into()),
    })
}

/// The mapped memory for plain loads, if the path is VMMC_PATH_MAPPED and the import may read;
/// valid until the import and its bindings are freed, also after the end of the export. For stores
/// use vmmc_binding_pointer().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_pointer(import: *const vmmc_import, base: *mut *const c_void) -> vmmc_status {
    let find = || {
        let pointer = get(import)?.as_ptr();
        let why = "the import is not mapped (vmmc_import_explain says why); use vmmc_import_fetch";
        pointer.map(<*const u8>::cast).ok_or_else(|| Failure::new(vmmc_status::VMMC_NOT_MAPPED, why))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(base, "base", find) }
}

/// Deliberate update: copies `len` bytes to the export, any alignment, any length. The data may be
/// reused on return.
///
/// On a mapped import the data is in the receiver's memory on return. Otherwise it is on its way:
/// vmmc_import_flush() waits for it, and should come before the process ends. Sends of one process
/// to one export appear in order, the last bytes of each last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_send(
    import: *const vmmc_import,
    offset: u64,
    data: *const c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let data = unsafe { bytes(data, len, "data") }?;
        Ok(get(import)?.send(offset, data)?)
    })
}

/// vmmc_import_send() from any kind of memory and with choices: sends `count` sources, one after
/// the other to consecutive places from `offset` on; returns when they may be changed. A
/// notification tells of the whole, and comes after it, as a counter does. After an error in the
/// middle of several sources some of them may have been sent. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_send_with(
    import: *const vmmc_import,
    offset: u64,
    sources: *const vmmc_source,
    count: usize,
    options: *const vmmc_send_options,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory and options of the caller.
        let (sources, options) = unsafe { (source::sources(sources, count)?, send_options(options)?) };
        let import = get(import)?;
        let sent = match &sources.list[..] {
            [] => import.send_with(offset, &[], options),
            [one] => import.send_with(offset, one.clone(), options),
            several => import.send_with(offset, Gather(several), options),
        };
        Ok(sent?)
    })
}

/// Remote fetch into any memory. Sees what this process sent to the same node before. On failure
/// the memory may have been written in part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_fetch(
    import: *const vmmc_import,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        Ok(get(import)?.fetch(offset, into)?)
    })
}

/// vmmc_import_fetch() into any kind of memory: fetches consecutive bytes from `offset` on into
/// `count` targets, which must not overlap. On failure they may have been written in part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_fetch_into(
    import: *const vmmc_import,
    offset: u64,
    targets: *const vmmc_target,
    count: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let mut targets = unsafe { source::targets(targets, count) }?;
        Ok(get(import)?.fetch(offset, Scatter(&mut targets))?)
    })
}

/// Adds to an aligned 64-bit word of the export; gives the old value. Needs the right VMMC_ATOMIC,
/// which an import has only if its options ask for it: `rights = VMMC_READ | VMMC_WRITE |
/// VMMC_ATOMIC`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_fetch_add(
    import: *const vmmc_import,
    offset: u64,
    value: u64,
    old: *mut u64,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(old, "old", || Ok(get(import)?.fetch_add(offset, value)?)) }
}

/// Stores `desired` in an aligned 64-bit word of the export if it is `expected`; gives the old
/// value. Needs the right VMMC_ATOMIC, which an import has only if its options ask for it:
/// `rights = VMMC_READ | VMMC_WRITE | VMMC_ATOMIC`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_compare_swap(
    import: *const vmmc_import,
    offset: u64,
    expected: u64,
    desired: u64,
    old: *mut u64,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(old, "old", || Ok(get(import)?.compare_swap(offset, expected, desired)?)) }
}

/// Stores a value in an aligned 64-bit word of the export; gives the old value. Needs the right
/// VMMC_ATOMIC, which an import has only if its options ask for it: `rights = VMMC_READ |
/// VMMC_WRITE | VMMC_ATOMIC`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_import_swap(
    import: *const vmmc_import,
    offset: u64,
    value: u64,
    old: *mut u64,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(old, "old", || Ok(get(import)?.swap(offset, value)?)) }
}

/// Returns when all that this process sent before to the export's node is in memory there, or with
/// the error of an earlier send that failed after it had returned.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_import_flush(import: *const vmmc_import, timeout_us: i64) -> vmmc_status {
    call(|| {
        let import = get(import)?;
        Ok(within(timeout_us, || import.flush())?)
    })
}
