//! Tokens: buffers of an endpoint that each take one payload, from whoever has the token.
//!
//! Invariant: buffers are given out by any thread, also while another one waits for a message.
//! Source: `TokenPool` and `TokenBuffer` of `crates/vmmc`.

use crate::endpoint::{vmmc_connection, vmmc_endpoint};
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::memory::{bytes, bytes_mut};
use crate::source::{sources, vmmc_source};
use crate::status::vmmc_status::{self, VMMC_AGAIN};
use crate::wait::{duration, within};
use std::ffi::c_void;
use vmmc::{ByToken, Gather, PayloadToken, Source, TokenBuffer, TokenRefused};

/// Bytes of a token.
pub const VMMC_TOKEN_BYTES: usize = 20;
const _: () = assert!(VMMC_TOKEN_BYTES == PayloadToken::BYTES);

/// For `by_token` of vmmc_message: no payload was sent by token.
pub const VMMC_BY_TOKEN_NONE: u32 = 0;
/// For `by_token`: the payload is in the buffer of `token`, and has `payload_len` bytes.
pub const VMMC_BY_TOKEN_ARRIVED: u32 = 1;
/// For `by_token`: the payload was dropped; `token` is none that is awaited here.
pub const VMMC_BY_TOKEN_WRONG: u32 = 2;
/// For `by_token`: the payload was dropped; it has `payload_len` bytes, and the buffer is shorter.
pub const VMMC_BY_TOKEN_TOO_LONG: u32 = 3;
/// For `by_token`: the payload was dropped; `token` has let another one in.
pub const VMMC_BY_TOKEN_USED: u32 = 4;
/// For `by_token`: the payload was dropped; `token` was cancelled.
pub const VMMC_BY_TOKEN_CANCELLED: u32 = 5;

/// Names a buffer, for one payload. It travels in messages as it is, to whatever machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmmc_token {
    /// What they mean is the library's.
    pub bytes: [u8; VMMC_TOKEN_BYTES],
}

/// A buffer that waits for a payload by its token, or has it.
pub struct vmmc_token_buffer(());

pub(crate) type Object = TokenBuffer;
handle!(vmmc_token_buffer, TokenBuffer, Object, "token buffer");

/// What a message says of a payload by token: kind, token, bytes.
pub(crate) fn of_message(by_token: Option<ByToken>) -> (u32, vmmc_token, u64) {
    let Some(ByToken { token, len }) = by_token else {
        return (VMMC_BY_TOKEN_NONE, vmmc_token { bytes: [0; VMMC_TOKEN_BYTES] }, 0);
    };
    let (kind, len) = match len {
        Ok(len) => (VMMC_BY_TOKEN_ARRIVED, len),
        Err(TokenRefused::Wrong) => (VMMC_BY_TOKEN_WRONG, 0),
        Err(TokenRefused::TooLong { len, .. }) => (VMMC_BY_TOKEN_TOO_LONG, len),
        Err(TokenRefused::Used) => (VMMC_BY_TOKEN_USED, 0),
        Err(TokenRefused::Cancelled) => (VMMC_BY_TOKEN_CANCELLED, 0),
    };
    (kind, vmmc_token { bytes: token.to_bytes() }, len)
}

/// A free buffer of an endpoint made by vmmc_endpoint_create_with_tokens(). Its token, from
/// vmmc_token_buffer_token(), goes to whoever is to send the payload, be it through others; the
/// message of that one says so, `by_token` of vmmc_message. Any thread may take buffers, also while
/// another one waits for messages. VMMC_FULL: all are in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_endpoint_token_buffer(
    endpoint: *const vmmc_endpoint,
    buffer: *mut *mut vmmc_token_buffer,
) -> vmmc_status {
    let arm = || {
        let object = get(endpoint)?;
        let none = || Failure::invalid("the endpoint has no buffers; make it by vmmc_endpoint_create_with_tokens()");
        let pool = object.tokens.as_ref().ok_or_else(none)?;
        put(handle::Object::TokenBuffer(pool.arm()?))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(buffer, "buffer", arm) }
}

/// What names the buffer, for one payload.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_token_buffer_token(
    buffer: *const vmmc_token_buffer,
    token: *mut vmmc_token,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(token, "token", || Ok(vmmc_token { bytes: get(buffer)?.token().to_bytes() })) }
}

/// Bytes that a payload can have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_token_buffer_len(buffer: *const vmmc_token_buffer, len: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(len, "len", || Ok(get(buffer)?.capacity())) }
}

/// First byte, valid until the buffer is freed. A hostile sender of the same node can write it at
/// any time: copy what must not change before you check it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_token_buffer_pointer(
    buffer: *const vmmc_token_buffer,
    pointer: *mut *const c_void,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(pointer, "pointer", || Ok(get(buffer)?.as_ptr().cast())) }
}

/// Copies `len` bytes at `offset` out. Before the payload has come they mean nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_token_buffer_read(
    buffer: *const vmmc_token_buffer,
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

/// Bytes of the payload if it has come, else VMMC_AGAIN; also before its message is taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_token_buffer_poll(buffer: *const vmmc_token_buffer, len: *mut u64) -> vmmc_status {
    let poll = || {
        let arrival = get(buffer)?.poll()?;
        Ok(arrival.ok_or_else(|| Failure::new(VMMC_AGAIN, "no payload has come by the token"))?.len)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(len, "len", poll) }
}

/// Waits for the payload; `len` are its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_token_buffer_wait(
    buffer: *const vmmc_token_buffer,
    timeout_us: i64,
    len: *mut u64,
) -> vmmc_status {
    let wait = || {
        let buffer = get(buffer)?;
        Ok(within(timeout_us, || buffer.wait())?.len)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(len, "len", wait) }
}

/// Cancels the token. True: nothing has come, and nothing will; false: a payload has come, or is
/// coming.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_token_buffer_cancel(
    buffer: *const vmmc_token_buffer,
    cancelled: *mut bool,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(cancelled, "cancelled", || Ok(get(buffer)?.cancel()?)) }
}

/// Gives the buffer back; its token lets nothing in any more.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_token_buffer_free(buffer: *mut vmmc_token_buffer) -> vmmc_status {
    call(|| handle::free(buffer))
}

/// Sends a control message as vmmc_connection_send() does, and a payload to the buffer of a token,
/// which comes from the owner of the endpoint by whatever way. A token that lets nothing in does
/// not hold up the control message, whose receiver is told why the payload was dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_connection_send_by_token(
    connection: *const vmmc_connection,
    control: *const c_void,
    control_len: usize,
    token: *const vmmc_token,
    payload: *const c_void,
    payload_len: usize,
    timeout_us: i64,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let (control, payload) =
            unsafe { (bytes(control, control_len, "control")?, bytes(payload, payload_len, "payload")?) };
        // SAFETY: a token of the caller.
        unsafe { send(connection, control, token, payload, timeout_us) }
    })
}

/// vmmc_connection_send_by_token() of a payload from any kind of memory: `count` sources, one after
/// the other. Registered memory goes from where it is straight into the buffer. On return it may be
/// changed. VMMC_OUT_OF_BOUNDS: a source reaches past its memory, and nothing was sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_connection_send_by_token_from(
    connection: *const vmmc_connection,
    control: *const c_void,
    control_len: usize,
    token: *const vmmc_token,
    sources_: *const vmmc_source,
    count: usize,
    timeout_us: i64,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let (control, from) = unsafe { (bytes(control, control_len, "control")?, sources(sources_, count)?) };
        // SAFETY: a token of the caller.
        unsafe { send(connection, control, token, Gather(&from.list), timeout_us) }
    })
}

/// # Safety
/// `token` is NULL or may be read.
unsafe fn send<'a>(
    connection: *const vmmc_connection,
    control: &[u8],
    token: *const vmmc_token,
    payload: impl Source<'a>,
    timeout_us: i64,
) -> Result<(), Failure> {
    if token.is_null() {
        return Err(Failure::invalid("`token` is NULL; give the token of a buffer of the receiver"));
    }
    // SAFETY: not NULL, made of bytes, and the caller vouches for the rest.
    let token = PayloadToken::from_bytes(unsafe { &(*token).bytes });
    let object = get(connection)?;
    let mut connection = object.lock()?;
    let sent = match duration(timeout_us) {
        None => connection.send_by_token(control, token, payload),
        Some(timeout) => connection.send_by_token_within(control, token, payload, timeout),
    };
    Ok(sent?)
}
