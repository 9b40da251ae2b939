//! Endpoints: messages of many senders, with payloads in frames.
//!
//! Invariant: one thread uses an endpoint or a connection at a time. A message is taken only when
//! there is a handle for its payload, so none is lost for want of one.

use crate::export::{VMMC_EXPORT_NOT_MAPPABLE, VMMC_EXPORT_NOTIFY, access_of, vmmc_export_options};
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::import::{VMMC_IMPORT_OWNER, vmmc_import_options};
use crate::memory::{bytes, bytes_mut, optional_string, string};
use crate::options::{self, known_flags};
use crate::session::vmmc_session;
use crate::source::{sources, vmmc_source};
use crate::status::vmmc_status::{self, VMMC_AGAIN, VMMC_BUSY};
use crate::token::{of_message, vmmc_token};
use crate::wait::{duration, optional, within};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use vmmc::{Connection, Endpoint, Frame, Gather, Message, Source, TokenPool};

/// Bytes of the longest control message.
pub const VMMC_CONTROL_MESSAGE_BYTES_MAX: usize = 128;
const _: () = assert!(VMMC_CONTROL_MESSAGE_BYTES_MAX == vmmc::limits::CONTROL_MESSAGE_BYTES_MAX);

/// Where messages of many senders come in.
pub struct vmmc_endpoint(());

pub(crate) struct Object {
    inbox: Mutex<Inbox>,
    /// Not under the lock: a thread may wait for messages meanwhile.
    pub(crate) tokens: Option<TokenPool>,
}
handle!(vmmc_endpoint, Endpoint, Object, "endpoint");

pub(crate) struct Inbox {
    pub(crate) endpoint: Endpoint,
    /// A handle for the next payload, which the caller does not know yet.
    spare: *mut vmmc_frame,
}

// SAFETY: the handle is a number, which any thread may use.
unsafe impl Send for Inbox {}

/// A way to an endpoint.
pub struct vmmc_connection(());

pub(crate) struct ConnectionObject(Mutex<Connection>);
handle!(vmmc_connection, Connection, ConnectionObject, "connection");

/// A payload that has come, in one piece: a frame of its sender, or several side by side. Its
/// memory is the program's until it is freed; only then its sender may use it again. A hostile
/// sender can write it all the same.
pub struct vmmc_frame(());

/// Empty as long as it is a spare one.
#[derive(Default)]
pub(crate) struct FrameObject(OnceLock<Frame>);
handle!(vmmc_frame, Frame, FrameObject, "frame");

/// A message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_message {
    /// Who sent it: the session with the sender's node, 0 for this node. vmmc_session_node_of()
    /// names the node.
    pub sender_session: u32,
    /// The process, in the numbers of its node: vmmc_session_process() there.
    pub sender_process: u32,
    /// Bytes of the control message.
    pub control_len: u64,
    /// The control message.
    pub control: [u8; VMMC_CONTROL_MESSAGE_BYTES_MAX],
    /// Bytes of the payload.
    pub payload_len: u64,
    /// The payload, which the caller frees by vmmc_frame_free(); NULL: the message has none in a
    /// frame.
    pub payload: *mut vmmc_frame,
    /// Whether a payload was sent by token: VMMC_BY_TOKEN_NONE, VMMC_BY_TOKEN_ARRIVED, or why it
    /// was dropped: VMMC_BY_TOKEN_WRONG, VMMC_BY_TOKEN_TOO_LONG, VMMC_BY_TOKEN_USED,
    /// VMMC_BY_TOKEN_CANCELLED.
    pub by_token: u32,
    /// By which token.
    pub token: vmmc_token,
}

/// What became of messages and senders of an endpoint.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_endpoint_counts {
    /// Messages taken.
    pub messages: u64,
    /// Senders that were let in.
    pub accepted: u64,
    /// Senders that found no room, or are of another release.
    pub refused: u64,
    /// Senders that were cut off, for what they wrote was no message.
    pub misbehaved: u64,
    /// Senders that are connected now.
    pub senders: u64,
}

fn lock<'a, T>(object: &'a Mutex<T>, what: &str) -> Result<MutexGuard<'a, T>, Failure> {
    match object.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::new(VMMC_BUSY, format!("another thread uses this {what}; let it come back first")))
        }
    }
}

impl Object {
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Inbox>, Failure> {
        lock(&self.inbox, "endpoint")
    }
}

impl ConnectionObject {
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Connection>, Failure> {
        lock(&self.0, "connection")
    }
}

impl Inbox {
    /// Gives what `next` takes, to be called when there is a handle for its payload.
    fn take(&mut self, next: impl FnOnce(&mut Endpoint) -> Result<Message, Failure>) -> Result<vmmc_message, Failure> {
        if self.spare.is_null() {
            self.spare = put(handle::Object::Frame(FrameObject::default()))?;
        }
        let mut message = next(&mut self.endpoint)?;
        let (by_token, token, payload_len) = of_message(message.by_token());
        let mut given = vmmc_message {
            sender_session: message.from().session,
            sender_process: message.from().process.0,
            control_len: message.control().len() as u64,
            control: [0; VMMC_CONTROL_MESSAGE_BYTES_MAX],
            payload_len,
            payload: std::ptr::null_mut(),
            by_token,
            token,
        };
        given.control[..message.control().len()].copy_from_slice(message.control());
        if let Some(frame) = message.take_payload() {
            given.payload_len = frame.len();
            get(self.spare.cast_const())?.0.get_or_init(|| frame);
            given.payload = std::mem::replace(&mut self.spare, std::ptr::null_mut());
        }
        Ok(given)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // A program that guessed the handle may have freed it.
        let _ = handle::free(self.spare);
    }
}

/// An endpoint. Each sender has `frames` (0 to 64) frames of `frame_bytes` for payloads, a multiple
/// of 8, up to 64 KiB; a longer payload takes several side by side. `name` of `options` must be
/// there, and `access` with its users counts, VMMC_EXPORT_NOTIFY and VMMC_EXPORT_NOT_MAPPABLE. With
/// the first it has a descriptor, vmmc_endpoint_event_fd(). With the second senders of this node go
/// through the node, which then lets none of them write more than it may. The rest must be 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_endpoint_create(
    session: *const vmmc_session,
    frames: u64,
    frame_bytes: u64,
    options: *const vmmc_export_options,
    endpoint: *mut *mut vmmc_endpoint,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(endpoint, "endpoint", || create(session, (frames, frame_bytes), None, options)) }
}

/// An endpoint as of vmmc_endpoint_create(), with `tokens` buffers, 1 to 4,096, of `token_bytes`
/// for payloads by token; see vmmc_endpoint_token_buffer().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_endpoint_create_with_tokens(
    session: *const vmmc_session,
    frames: u64,
    frame_bytes: u64,
    tokens: u64,
    token_bytes: u64,
    options: *const vmmc_export_options,
    endpoint: *mut *mut vmmc_endpoint,
) -> vmmc_status {
    let make = || {
        // SAFETY: the caller's word, passed on.
        unsafe { create(session, (frames, frame_bytes), Some((tokens, token_bytes)), options) }
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(endpoint, "endpoint", make) }
}

/// # Safety
/// `options` is NULL or options of the caller.
unsafe fn create(
    session: *const vmmc_session,
    frames: (u64, u64),
    tokens: Option<(u64, u64)>,
    options: *const vmmc_export_options,
) -> Result<*mut vmmc_endpoint, Failure> {
    // SAFETY: the caller's options.
    let options = unsafe { options::read(options) }?;
    known_flags(options.flags, VMMC_EXPORT_NOTIFY | VMMC_EXPORT_NOT_MAPPABLE, "options of an endpoint")?;
    if options.rights != 0 {
        return Err(Failure::invalid("options of an endpoint: it gives no rights; leave `rights` 0"));
    }
    // SAFETY: lists and strings of the caller's options.
    let (access, name) = unsafe { (access_of(&options)?, string(options.name, "name")?) };
    let mut builder = get(session)?.endpoint(name).frames(frames.0, frames.1).access(access);
    builder = builder.mappable(options.flags & VMMC_EXPORT_NOT_MAPPABLE == 0);
    if let Some((count, bytes)) = tokens {
        builder = builder.tokens(count, bytes);
    }
    let endpoint = builder.notify(options.flags & VMMC_EXPORT_NOTIFY != 0).create()?;
    let tokens = endpoint.token_pool().cloned();
    let inbox = Mutex::new(Inbox { endpoint, spare: std::ptr::null_mut() });
    put(handle::Object::Endpoint(Object { inbox, tokens }))
}

/// The next message, if there is one, else VMMC_AGAIN; lets in senders that have asked. Senders
/// take turns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_endpoint_poll(endpoint: *const vmmc_endpoint, message: *mut vmmc_message) -> vmmc_status {
    let poll = || {
        let next =
            |endpoint: &mut Endpoint| endpoint.poll()?.ok_or_else(|| Failure::new(VMMC_AGAIN, "no message is there"));
        get(endpoint)?.lock()?.take(next)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(message, "message", poll) }
}

/// The next message; waits for one, and lets in senders meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_endpoint_wait(
    endpoint: *const vmmc_endpoint,
    timeout_us: i64,
    message: *mut vmmc_message,
) -> vmmc_status {
    let wait = || get(endpoint)?.lock()?.take(|endpoint| Ok(within(timeout_us, || endpoint.wait())?));
    // SAFETY: pointers are as the header asks.
    unsafe { give(message, "message", wait) }
}

/// A descriptor for event loops of an endpoint made with VMMC_EXPORT_NOTIFY: readable when
/// vmmc_endpoint_poll() may have something, and for ever when the node has gone. Poll until there
/// is nothing more. It is valid until the endpoint is freed; do not read or close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_endpoint_event_fd(endpoint: *const vmmc_endpoint, fd: *mut c_int) -> vmmc_status {
    let make = || Ok(get(endpoint)?.lock()?.endpoint.event_fd()?.as_raw_fd());
    // SAFETY: pointers are as the header asks.
    unsafe { give(fd, "fd", make) }
}

/// What became of messages and senders so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_endpoint_get_counts(
    endpoint: *const vmmc_endpoint,
    counts: *mut vmmc_endpoint_counts,
) -> vmmc_status {
    let make = || {
        let object = get(endpoint)?;
        let inbox = object.lock()?;
        let (counts, senders) = (inbox.endpoint.counts(), inbox.endpoint.senders() as u64);
        Ok(vmmc_endpoint_counts {
            messages: counts.messages,
            accepted: counts.accepted,
            refused: counts.refused,
            misbehaved: counts.misbehaved,
            senders,
        })
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(counts, "counts", make) }
}

/// Ends the endpoint and its connections; what was not taken is gone. Frames stay until they are
/// freed.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_endpoint_free(endpoint: *mut vmmc_endpoint) -> vmmc_status {
    call(|| handle::free(endpoint))
}

/// Copies `len` bytes at `offset` of a payload out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_frame_read(
    frame: *const vmmc_frame,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        let object = get(frame)?;
        let frame = object.0.get().ok_or_else(|| Failure::bad_handle("no payload has come to this frame yet"))?;
        Ok(frame.read(offset, into)?)
    })
}

/// Gives a payload's memory back to its sender.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_frame_free(frame: *mut vmmc_frame) -> vmmc_status {
    call(|| handle::free(frame))
}

/// Connects to the endpoint of this name, whose owner has to poll or wait meanwhile. Of `options`,
/// which may be NULL, `node`, `wait_us` and VMMC_IMPORT_OWNER with `owner` count; the rest must be
/// 0. `wait_us` is the time for all, also for an endpoint that does not exist yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_connection_open(
    session: *const vmmc_session,
    endpoint: *const c_char,
    options: *const vmmc_import_options,
    connection: *mut *mut vmmc_connection,
) -> vmmc_status {
    let open = || {
        // SAFETY: the caller's options and string.
        let (options, endpoint) = unsafe { (options::read(options)?, string(endpoint, "endpoint")?) };
        known_flags(options.flags, VMMC_IMPORT_OWNER, "options of a connection")?;
        if options.rights != 0 {
            return Err(Failure::invalid("options of a connection: it has no rights; leave `rights` 0"));
        }
        let mut builder = get(session)?.connect(endpoint);
        // SAFETY: a string of the caller's options.
        if let Some(node) = unsafe { optional_string(options.node, "node") }? {
            builder = builder.node(node);
        }
        if options.flags & VMMC_IMPORT_OWNER != 0 {
            builder = builder.owner(options.owner);
        }
        if let Some(wait) = optional(options.wait_us)? {
            builder = builder.wait(wait);
        }
        put(handle::Object::Connection(ConnectionObject(Mutex::new(builder.open()?))))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(connection, "connection", open) }
}

/// Sends a control message of up to VMMC_CONTROL_MESSAGE_BYTES_MAX bytes, and a payload of up to
/// vmmc_connection_payload_max() (0: none). Waits for room; VMMC_FULL: there was none in time, and
/// nothing was sent. A payload that is longer than a frame waits for several side by side, which
/// shorter ones then leave alone. Messages of a connection come in the order of these calls, each
/// behind its payload. On return both may be reused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_connection_send(
    connection: *const vmmc_connection,
    control: *const c_void,
    control_len: usize,
    payload: *const c_void,
    payload_len: usize,
    timeout_us: i64,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let (control, payload) =
            unsafe { (bytes(control, control_len, "control")?, bytes(payload, payload_len, "payload")?) };
        send(connection, control, payload, timeout_us)
    })
}

/// vmmc_connection_send() of a payload from any kind of memory: `count` sources, one after the
/// other. On return they may be changed. VMMC_OUT_OF_BOUNDS: a source reaches past its memory, and
/// nothing was sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_connection_send_from(
    connection: *const vmmc_connection,
    control: *const c_void,
    control_len: usize,
    sources_: *const vmmc_source,
    count: usize,
    timeout_us: i64,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let (control, from) = unsafe { (bytes(control, control_len, "control")?, sources(sources_, count)?) };
        send(connection, control, Gather(&from.list), timeout_us)
    })
}

fn send<'a>(
    connection: *const vmmc_connection,
    control: &[u8],
    payload: impl Source<'a>,
    timeout_us: i64,
) -> Result<(), Failure> {
    let object = get(connection)?;
    let mut connection = object.lock()?;
    let sent = match duration(timeout_us) {
        None => connection.send(control, payload),
        Some(timeout) => connection.send_within(control, payload, timeout),
    };
    Ok(sent?)
}

/// Bytes of payload that one message can have: of all frames together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_connection_payload_max(
    connection: *const vmmc_connection,
    bytes: *mut u64,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(bytes, "bytes", || Ok(get(connection)?.lock()?.payload_bytes_max())) }
}

/// Messages sent that the owner has not taken yet, by what it says now; between nodes it is asked,
/// which takes a round trip.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_connection_outstanding(
    connection: *const vmmc_connection,
    timeout_us: i64,
    messages: *mut u64,
) -> vmmc_status {
    let ask = || {
        let object = get(connection)?;
        let mut connection = object.lock()?;
        Ok(within(timeout_us, || connection.outstanding())?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(messages, "messages", ask) }
}

/// VMMC_OK, or what every send would end with because the connection is broken: the owner has ended
/// the endpoint (VMMC_REVOKED), or died, or its node has.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_connection_check(connection: *const vmmc_connection) -> vmmc_status {
    call(|| match get(connection)?.lock()?.broken() {
        None => Ok(()),
        Some(error) => Err(error.into()),
    })
}

/// Waits until all that was sent is visible to the owner, who may not have taken it yet.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_connection_flush(connection: *const vmmc_connection, timeout_us: i64) -> vmmc_status {
    call(|| {
        let object = get(connection)?;
        let connection = object.lock()?;
        Ok(within(timeout_us, || connection.flush())?)
    })
}

/// Ends a connection. What it has sent is taken.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_connection_free(connection: *mut vmmc_connection) -> vmmc_status {
    call(|| handle::free(connection))
}
