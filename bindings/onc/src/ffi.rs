//! What the C sources of this folder call. They know libtirpc; this knows VMMC.
//!
//! Invariants: no panic crosses over, and outputs are written on success only. Handles are boxes:
//! the C sources free each once, and use each by one thread at a time.

use crate::client::{ClientOptions, OncClient};
use crate::error::OncError;
use crate::limits::RECORD_BYTES_MAX;
use crate::server::{OncCall, OncServer};
use crate::sessions::session;
use crate::status::{ClntStat, of_call, of_create};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use vmmc::Access;

thread_local! {
    /// What went wrong last in this thread.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// For `access` of [`vmmc_onc_serve`]: every user.
const ANYONE: u32 = 1;
/// The same: those in a list.
const USERS: u32 = 2;

/// A reply, for C.
#[repr(C)]
pub struct vmmc_onc_reply {
    bytes: *mut u8,
    len: usize,
    capacity: usize,
}

/// A call, for C: its record lives as long as the call.
#[repr(C)]
pub struct vmmc_onc_incoming {
    call: *mut OncCall,
    record: *const u8,
    len: usize,
    uid: u32,
}

/// Counts, for C.
#[repr(C)]
pub struct vmmc_onc_counts {
    calls: u64,
    bad_credentials: u64,
    misbehaved: u64,
    no_room: u64,
}

fn remember(message: &str) {
    let text: Vec<u8> = message.bytes().filter(|byte| *byte != 0).collect();
    MESSAGE.with(|place| *place.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// Runs a call, whose error becomes a status, and an errno.
fn run(
    error: *mut c_int,
    status: impl Fn(&OncError) -> (ClntStat, i32),
    call: impl FnOnce() -> Result<(), OncError>,
) -> c_int {
    let (stat, errno) = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => (ClntStat::Success, 0),
        Ok(Err(error)) => {
            remember(&error.to_string());
            status(&error)
        }
        Err(_) => {
            remember("a bug of this library, which says on stderr what happened; please report it");
            (ClntStat::SystemError, 0)
        }
    };
    // SAFETY: the C sources give a place.
    unsafe { error.write(errno) };
    stat as c_int
}

/// # Safety
/// A string that ends with a zero, or NULL.
unsafe fn text(pointer: *const c_char, name: &str) -> Result<Option<String>, OncError> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as this function's.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    let text = text.map_err(|_| OncError::Argument(format!("`{name}` is no UTF-8; give it as such")))?;
    Ok((!text.is_empty()).then(|| text.to_string()))
}

/// # Safety
/// `len` bytes that nobody writes meanwhile.
unsafe fn bytes<'a>(pointer: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: as this function's.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pointer, len) } }
}

/// Notes what went wrong in the C part.
///
/// # Safety
/// A string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_note(message: *const c_char) {
    // SAFETY: as this function's.
    remember(&unsafe { CStr::from_ptr(message) }.to_string_lossy());
}

/// What went wrong last in this thread; valid until something else does.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_onc_last_message() -> *const c_char {
    MESSAGE.with(|place| place.borrow().as_ptr())
}

/// A client; gives an `enum clnt_stat`.
///
/// # Safety
/// Strings are NULL or end with a zero; `error`, `record_max` and `client` are places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_open(
    node: *const c_char,
    host: *const c_char,
    prog: u32,
    vers: u32,
    owner: *const u32,
    timeout_us: i64,
    error: *mut c_int,
    record_max: *mut usize,
    client: *mut *mut OncClient,
) -> c_int {
    run(error, of_create, || {
        // SAFETY: as this function's.
        let (node, host, owner) = unsafe { (text(node, "node")?, text(host, "host")?, owner.as_ref().copied()) };
        let session = session(node.as_deref())?;
        let here = |host: &String| host == "localhost" || *host == session.node().name || *host == host_name();
        let timeout = u64::try_from(timeout_us).ok().filter(|us| *us > 0).map(Duration::from_micros);
        let options = ClientOptions { node: host.filter(|host| !here(host)), owner, timeout };
        let opened = OncClient::open(&session, prog, vers, &options)?;
        // SAFETY: as this function's.
        unsafe {
            record_max.write(opened.record_max());
            client.write(Box::into_raw(Box::new(opened)));
        }
        Ok(())
    })
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim_end().to_string()
}

/// Sends a record and waits for the reply, which is freed by [`vmmc_onc_reply_free`].
///
/// # Safety
/// A client that was not freed, `len` bytes, and places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_call(
    client: *const OncClient,
    record: *const u8,
    len: usize,
    timeout_us: u64,
    error: *mut c_int,
    reply: *mut vmmc_onc_reply,
) -> c_int {
    run(error, of_call, || {
        // SAFETY: as this function's.
        let (client, record) = unsafe { (&*client, bytes(record, len)) };
        let mut came = std::mem::ManuallyDrop::new(client.call(record, Duration::from_micros(timeout_us))?);
        let given = vmmc_onc_reply { bytes: came.as_mut_ptr(), len: came.len(), capacity: came.capacity() };
        // SAFETY: as this function's.
        unsafe { reply.write(given) };
        Ok(())
    })
}

/// Sends a record whose reply nobody waits for.
///
/// # Safety
/// A client that was not freed, `len` bytes, and a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_send(
    client: *const OncClient,
    record: *const u8,
    len: usize,
    timeout_us: u64,
    error: *mut c_int,
) -> c_int {
    run(error, of_call, || {
        // SAFETY: as this function's.
        let (client, record) = unsafe { (&*client, bytes(record, len)) };
        client.send(record, Duration::from_micros(timeout_us))
    })
}

/// Frees a reply.
///
/// # Safety
/// One of [`vmmc_onc_call`], once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_reply_free(reply: vmmc_onc_reply) {
    // SAFETY: as this function's: the parts of a vector.
    drop(unsafe { Vec::from_raw_parts(reply.bytes, reply.len, reply.capacity) });
}

/// Frees a client.
///
/// # Safety
/// One of [`vmmc_onc_open`], once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_close(client: *mut OncClient) {
    // SAFETY: as this function's.
    let client = unsafe { Box::from_raw(client) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(client)));
}

/// A server and its descriptor; gives an `enum clnt_stat`.
///
/// # Safety
/// A string, a list of `user_count` users, and places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_serve(
    node: *const c_char,
    prog: u32,
    vers: u32,
    access: u32,
    users: *const u32,
    user_count: usize,
    error: *mut c_int,
    fd: *mut c_int,
    reply_max: *mut usize,
    server: *mut *mut OncServer,
) -> c_int {
    run(error, of_create, || {
        // SAFETY: as this function's.
        let node = unsafe { text(node, "node") }?;
        let access = match access {
            0 => Access::SameUser,
            ANYONE => Access::Anyone,
            USERS if user_count > 0 && !users.is_null() => {
                // SAFETY: as this function's.
                Access::Users(unsafe { std::slice::from_raw_parts(users, user_count) }.to_vec())
            }
            other => return Err(OncError::Argument(format!("access {other} with {user_count} users; see vmmc_onc.h"))),
        };
        let created = OncServer::create(&session(node.as_deref())?, prog, vers, access)?;
        // SAFETY: as this function's.
        unsafe {
            fd.write(created.event_fd().as_raw_fd());
            reply_max.write(RECORD_BYTES_MAX);
            server.write(Box::into_raw(Box::new(created)));
        }
        Ok(())
    })
}

/// The next call: 1 it is there, 0 there is none, -1 the server has ended.
///
/// # Safety
/// A server that was not freed, and a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_next(server: *mut OncServer, incoming: *mut vmmc_onc_incoming) -> c_int {
    // SAFETY: as this function's.
    let server = unsafe { &mut *server };
    match catch_unwind(AssertUnwindSafe(|| server.poll())) {
        Ok(Ok(None)) => 0,
        Ok(Ok(Some(call))) => {
            let (record, len, uid) = (call.record.as_ptr(), call.record.len(), call.uid);
            let given = vmmc_onc_incoming { call: Box::into_raw(Box::new(call)), record, len, uid };
            // SAFETY: as this function's.
            unsafe { incoming.write(given) };
            1
        }
        Ok(Err(error)) => {
            remember(&error.to_string());
            -1
        }
        Err(_) => -1,
    }
}

/// Has the descriptor of a server be readable.
///
/// # Safety
/// A server that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_again(server: *mut OncServer) {
    // SAFETY: as this function's.
    let server = unsafe { &mut *server };
    let _ = catch_unwind(AssertUnwindSafe(|| server.again()));
}

/// Replies to a call, which is freed.
///
/// # Safety
/// The server of the call, the call once, and `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_answer(server: *mut OncServer, call: *mut OncCall, record: *const u8, len: usize) {
    // SAFETY: as this function's.
    let (server, call, record) = unsafe { (&mut *server, Box::from_raw(call), bytes(record, len)) };
    let _ = catch_unwind(AssertUnwindSafe(|| server.reply(*call, record)));
}

/// Frees a call that has no reply.
///
/// # Safety
/// A call, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_drop(call: *mut OncCall) {
    // SAFETY: as this function's.
    let call = unsafe { Box::from_raw(call) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(call)));
}

/// What became of callers and their records.
///
/// # Safety
/// A server that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_server_counts(server: *const OncServer) -> vmmc_onc_counts {
    // SAFETY: as this function's.
    let counts = unsafe { &*server }.counts();
    let crate::server::OncCounts { calls, bad_credentials, misbehaved, no_room } = counts;
    vmmc_onc_counts { calls, bad_credentials, misbehaved, no_room }
}

/// Frees a server.
///
/// # Safety
/// One of [`vmmc_onc_serve`], once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_onc_end(server: *mut OncServer) {
    // SAFETY: as this function's.
    let server = unsafe { Box::from_raw(server) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(server)));
}
