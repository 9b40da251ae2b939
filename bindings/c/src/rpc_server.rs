//! Servers of remote calls, and calls in the hands of their handlers.
//!
//! Invariant: a call is answered once: what answers it takes its handle away. A handler that
//! returns without an answer, and has not said that it will answer later, has let go of the call,
//! so its caller does not wait for nothing. A server is ended in the thread that frees it, and
//! never by one of its own handlers. Source: `Server` and `Call` of `crates/rpc`.

use crate::export::access;
use crate::failure::{Failure, call, give};
use crate::handle::{self, Held, get, handle, put};
use crate::memory::{bytes, bytes_mut, string};
use crate::notification::User;
use crate::options::{self, Options};
use crate::owned::Owned;
use crate::rpc_client::{method, or, vmmc_rpc_client};
use crate::running::{Inside, new_key};
use crate::session::vmmc_session;
use crate::source::{sources, vmmc_source};
use crate::status::vmmc_status::{self, VMMC_BAD_ARGUMENTS, VMMC_BAD_HANDLE, VMMC_BUSY, VMMC_NO_METHOD, VMMC_STALE};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmmc::{Gather, Source};
use vmmc_rpc::{Call, Server, limits};

/// A server of a service.
pub struct vmmc_rpc_server(());

pub(crate) struct Object {
    /// None once it has ended.
    server: Owned<Mutex<Option<Server>>>,
    /// What its handlers are inside of.
    key: usize,
}
handle!(vmmc_rpc_server, RpcServer, Object, "server");

/// A call, until it is answered.
pub struct vmmc_rpc_call(());

pub(crate) struct CallObject {
    /// None once it was answered.
    call: Owned<Mutex<Option<Call>>>,
    /// Its handler has said that it is answered later.
    deferred: AtomicBool,
}
handle!(vmmc_rpc_call, RpcCall, CallObject, "call");

/// Choices for a server.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_rpc_server_options {
    /// sizeof (vmmc_rpc_server_options).
    pub size: usize,
    /// Who may call: VMMC_ACCESS_SAME_USER, VMMC_ACCESS_ANYONE, VMMC_ACCESS_USERS.
    pub access: u32,
    /// With VMMC_ACCESS_USERS: how many.
    pub user_count: u32,
    /// With VMMC_ACCESS_USERS: their ids.
    pub users: *const u32,
    /// Threads that the handler runs on, up to 1,024; 0: it runs on the thread that takes the
    /// calls, one call after the other, which is fastest where none of them waits.
    pub threads: u32,
    /// Calls that wait for a thread; further ones get VMMC_SERVER_BUSY. 0: 256.
    pub queue: u32,
    /// Frames for long arguments and bulk, for each client; 0: 4.
    pub frames: u64,
    /// Bytes of a frame; longer arguments come in pieces. 0: 16 KiB.
    pub frame_bytes: u64,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_rpc_server_options {
    const NAME: &'static str = "server options";
}

/// What a handler is told of a call. Later releases may add fields at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_rpc_incoming {
    /// Number of the method.
    pub method: u32,
    /// Whether the caller has a buffer for a bulk result.
    pub wants_bulk: bool,
    /// The arguments; valid until the call is answered, passed on or freed. Never NULL.
    pub arguments: *const c_void,
    /// Their bytes.
    pub arguments_len: usize,
    /// Bytes of bulk that came with them, which vmmc_rpc_call_read_bulk() copies out.
    pub bulk_len: u64,
    /// Who sent it here, the caller or the server that has passed it on: the session with that
    /// one's node, 0 for this node. vmmc_session_node_of() names the node.
    pub sender_session: u32,
    /// The process, in the numbers of its node: vmmc_session_process() there.
    pub sender_process: u32,
    /// When the caller stops waiting, microseconds from now.
    pub left_us: u64,
}

/// Called for each call, on threads of the library. It answers by vmmc_rpc_call_answer() or one of
/// its kin, or says by vmmc_rpc_call_defer() that it will be answered later; if it returns without
/// either, the caller gets VMMC_NO_ANSWER and the handle is gone. `incoming` is valid until it
/// returns. It must not unwind or jump out.
pub type vmmc_rpc_handler =
    Option<unsafe extern "C" fn(call: *mut vmmc_rpc_call, incoming: *const vmmc_rpc_incoming, user: *mut c_void)>;

/// What became of the calls of a server. Later releases may add fields at the end: pass sizeof
/// (vmmc_rpc_counts) to vmmc_rpc_server_get_counts().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_rpc_counts {
    /// Calls that a handler has begun.
    pub handled: u64,
    /// Answered with a result.
    pub done: u64,
    /// Answered with a failure, or not at all, or with arguments that made no sense.
    pub failed: u64,
    /// Turned away because the queue was full.
    pub busy: u64,
    /// Whose time was over before a handler began.
    pub late: u64,
    /// Withdrawn before a handler began.
    pub cancelled: u64,
    /// Passed on to another server.
    pub passed_on: u64,
    /// Messages that made no sense.
    pub misbehaved: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What Rust runs for the handler of the caller.
fn serve(
    key: usize,
    function: unsafe extern "C" fn(*mut vmmc_rpc_call, *const vmmc_rpc_incoming, *mut c_void),
    user: User,
) -> impl Fn(Call) + Send + Sync + 'static {
    move |call| {
        let user = &user;
        let _inside = Inside::enter(key);
        let incoming = vmmc_rpc_incoming {
            method: call.method().into(),
            wants_bulk: call.wants_bulk(),
            arguments: call.arguments().as_ptr().cast(),
            arguments_len: call.arguments().len(),
            bulk_len: call.bulk_len(),
            sender_session: call.from().session,
            sender_process: call.from().process.0,
            left_us: call.left().as_micros() as u64,
        };
        let object = CallObject { call: Owned::new(Mutex::new(Some(call))), deferred: AtomicBool::new(false) };
        // Without a handle the call is let go of.
        let Ok(handle) = put::<vmmc_rpc_call>(handle::Object::RpcCall(object)) else { return };
        let Ok(held) = get(handle.cast_const()) else { return };
        // SAFETY: the caller vouches for function and user pointer until the server is freed.
        unsafe { function(handle, &incoming, user.0) };
        if !held.deferred.load(Ordering::Acquire) {
            // What was answered is gone already.
            let _ = handle::free(handle);
        }
    }
}

/// Serves a service of this name, 1 to 64 bytes, on threads of the library: `handler` is called
/// with `user` and a vmmc_rpc_incoming for each call, perhaps before this returns. With several
/// threads it is called on several at once. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_server_create(
    session: *const vmmc_session,
    service: *const c_char,
    options: *const vmmc_rpc_server_options,
    handler: vmmc_rpc_handler,
    user: *mut c_void,
    server: *mut *mut vmmc_rpc_server,
) -> vmmc_status {
    let make = || {
        // SAFETY: the caller's options and string.
        let (of, service) = unsafe { (options::read(options)?, string(service, "service")?) };
        let function = handler.ok_or_else(|| Failure::invalid("`handler` is NULL; give what is called for a call"))?;
        // SAFETY: a list of the caller's options.
        let access = unsafe { access(of.access, of.users, of.user_count) }?;
        let queue = or(of.queue.into(), limits::QUEUE_DEFAULT as u64) as usize;
        let (frames, bytes) = (or(of.frames, limits::FRAMES_DEFAULT.0), or(of.frame_bytes, limits::FRAMES_DEFAULT.1));
        let builder = Server::new(&*get(session)?, service).access(access).frames(frames, bytes);
        let key = new_key();
        let server = builder.threads(of.threads as usize).queue(queue).serve(serve(key, function, User(user)))?;
        put(handle::Object::RpcServer(Object { server: Owned::new(Mutex::new(Some(server))), key }))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(server, "server", make) }
}

fn ended() -> Failure {
    Failure::new(VMMC_BAD_HANDLE, "the server was freed by another thread")
}

/// What became of calls so far. `size` is sizeof (vmmc_rpc_counts); fields that this library does
/// not know are left as they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_server_get_counts(
    server: *const vmmc_rpc_server,
    counts: *mut vmmc_rpc_counts,
    size: usize,
) -> vmmc_status {
    call(|| {
        if counts.is_null() || !counts.is_aligned() {
            return Err(Failure::invalid("`counts` is NULL or misaligned"));
        }
        let object = get(server)?;
        let of = lock(object.server.get()?).as_ref().ok_or_else(ended)?.counts();
        let value = vmmc_rpc_counts {
            handled: of.handled,
            done: of.done,
            failed: of.failed,
            busy: of.busy,
            late: of.late,
            cancelled: of.cancelled,
            passed_on: of.passed_on,
            misbehaved: of.misbehaved,
        };
        let known = size.min(size_of::<vmmc_rpc_counts>());
        // SAFETY: the caller has `size` bytes there, and we have as many as we know.
        unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), counts.cast::<u8>(), known) };
        Ok(())
    })
}

/// Whether it serves: not when its node has gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_server_is_serving(server: *const vmmc_rpc_server, serving: *mut bool) -> vmmc_status {
    let look = || {
        let object = get(server)?;
        Ok(lock(object.server.get()?).as_ref().ok_or_else(ended)?.is_serving())
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(serving, "serving", look) }
}

/// Ends a server, after the handlers that run; calls that no handler has begun are not answered.
/// When it returns the handler is not called any more. Calls that were deferred can still be
/// answered. VMMC_BUSY from a handler of the server itself.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_server_free(server: *mut vmmc_rpc_server) -> vmmc_status {
    call(|| {
        if server.is_null() {
            return Ok(());
        }
        let object = get(server.cast_const())?;
        if Inside::is_in(object.key) {
            let why = "a handler of this server runs in this thread; free the server in another thread";
            return Err(Failure::new(VMMC_BUSY, why));
        }
        handle::free(server)?;
        if let Ok(server) = object.server.get() {
            // Not under the lock, which handlers that are waited for may want.
            let server = lock(server).take();
            drop(server);
        }
        Ok(())
    })
}

impl CallObject {
    /// Runs something with the call, which stays unanswered.
    fn with<R>(&self, run: impl FnOnce(&Call) -> Result<R, Failure>) -> Result<R, Failure> {
        run(lock(self.call.get()?).as_ref().ok_or_else(answered)?)
    }

    /// Takes the call out of its handle, to be answered.
    fn take(&self) -> Result<Call, Failure> {
        lock(self.call.get()?).take().ok_or_else(answered)
    }
}

fn answered() -> Failure {
    Failure::new(VMMC_STALE, "another thread answers this call; a call is answered once")
}

fn find(call: *const vmmc_rpc_call) -> Result<Held<vmmc_rpc_call>, Failure> {
    get(call).map_err(|failure| match call.is_null() {
        true => failure,
        false => {
            let why = "the call handle is none that is open: it goes when the call is answered, passed on or freed, \
                       and when the handler returns without vmmc_rpc_call_defer()";
            Failure::bad_handle(why)
        }
    })
}

/// Ends a call by `end`.
fn end(call: *mut vmmc_rpc_call, end: impl FnOnce(Call)) -> Result<(), Failure> {
    let taken = find(call.cast_const())?.take()?;
    handle::free(call)?;
    end(taken);
    Ok(())
}

/// Copies `len` bytes at `offset` of the bulk that came with a call out. It is memory that its
/// sender can write: copy what must not change before you check it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_call_read_bulk(
    call_: *const vmmc_rpc_call,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        find(call_)?.with(|call| Ok(call.read_bulk(offset, into)?))
    })
}

/// Time until the caller stops waiting, microseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_call_left(call_: *const vmmc_rpc_call, left_us: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(left_us, "left_us", || find(call_)?.with(|call| Ok(call.left().as_micros() as u64))) }
}

/// Whether the caller has withdrawn a call: a handler that works for long looks now and then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_call_cancelled(call_: *const vmmc_rpc_call, cancelled: *mut bool) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(cancelled, "cancelled", || find(call_)?.with(|call| Ok(call.is_cancelled()))) }
}

/// Keeps a call beyond the return of its handler: it is answered later, from any thread, or freed
/// by vmmc_rpc_call_free(). Say so before another thread gets the handle.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_call_defer(call_: *const vmmc_rpc_call) -> vmmc_status {
    call(|| {
        let object = find(call_)?;
        object.with(|_| Ok(()))?;
        object.deferred.store(true, Ordering::Release);
        Ok(())
    })
}

/// Answers a call with a result; its handle is gone on VMMC_OK, so a second answer is
/// VMMC_BAD_HANDLE. Nobody waits for the caller. A result of more than 32 MiB is
/// VMMC_RESULT_TOO_LONG there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_call_answer(
    call_: *mut vmmc_rpc_call,
    result: *const c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller; what the call itself holds is there until it has ended.
        let result = unsafe { bytes(result, len, "result") }?;
        end(call_, |call| call.answer(result))
    })
}

/// Answers a call with a short result, and with bulk for the buffer of the caller, from wherever it
/// is. If the caller has no buffer (`wants_bulk`) the bulk is dropped. Its handle is gone on
/// VMMC_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_call_answer_bulk(
    call_: *mut vmmc_rpc_call,
    result: *const c_void,
    len: usize,
    bulk: *const c_void,
    bulk_len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller; what the call itself holds is there until it has ended.
        let (result, bulk) = unsafe { (bytes(result, len, "result")?, bytes(bulk, bulk_len, "bulk")?) };
        end(call_, |call| call.answer_with_bulk(result, bulk))
    })
}

/// As vmmc_rpc_call_answer_bulk(), with bulk from memory of every kind, `count` sources one after
/// the other: registered memory, and that of an export by vmmc_buffer_export(), goes from where it
/// is straight into the buffer of the caller. To a caller of another node this returns when that
/// node has what is registered, within the session's timeout, or the node is given up; other memory
/// is copied. On return the memory may be changed. VMMC_OUT_OF_BOUNDS: a source reaches past its
/// memory; the call is still to be answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_call_answer_from(
    call_: *mut vmmc_rpc_call,
    result: *const c_void,
    len: usize,
    sources_: *const vmmc_source,
    count: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller; what the call itself holds is there until it has ended.
        let (result, from) = unsafe { (bytes(result, len, "result")?, sources(sources_, count)?) };
        let bulk = Gather(&from.list);
        bulk.check()?;
        end(call_, |call| call.answer_with_bulk(result, bulk))
    })
}

/// Says that a call failed, and how, in up to 512 bytes; its caller gets VMMC_FAILED. Its handle is
/// gone on VMMC_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_call_fail(call_: *mut vmmc_rpc_call, message: *const c_char) -> vmmc_status {
    call(|| {
        // SAFETY: a string of the caller.
        let message = unsafe { string(message, "message") }?;
        end(call_, |call| call.fail(message))
    })
}

/// Says that there is no such method, with VMMC_NO_METHOD, or that the arguments are none of this
/// method, with VMMC_BAD_ARGUMENTS; the caller gets that status. Its handle is gone on VMMC_OK.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_call_refuse(call_: *mut vmmc_rpc_call, reason: i32) -> vmmc_status {
    call(|| end(call_, refusal(reason)?))
}

/// How a call is refused.
fn refusal(reason: i32) -> Result<fn(Call), Failure> {
    const NO_METHOD: i32 = VMMC_NO_METHOD as i32;
    const BAD_ARGUMENTS: i32 = VMMC_BAD_ARGUMENTS as i32;
    match reason {
        NO_METHOD => Ok(Call::no_method),
        BAD_ARGUMENTS => Ok(Call::bad_arguments),
        _ => Err(Failure::invalid(format!("`reason` is {reason}; give VMMC_NO_METHOD or VMMC_BAD_ARGUMENTS"))),
    }
}

/// Leaves a call to another server, with these arguments and the bulk that came with it: that one
/// answers the caller, whose bulk result lands in the caller's buffer. On VMMC_OK the handle is
/// gone; after an error the call is still to be answered. The client stays connected until those
/// that it has passed on are answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_call_pass_on(
    call_: *mut vmmc_rpc_call,
    client: *const vmmc_rpc_client,
    method_: u32,
    arguments: *const c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller; what the call itself holds is there until it has ended.
        let arguments = unsafe { bytes(arguments, len, "arguments") }?;
        let (method, to, held) = (method(method_)?, get(client)?, find(call_.cast_const())?);
        let to = to.client()?;
        match held.take()?.pass_on(to, method, arguments) {
            Ok(()) => handle::free(call_),
            Err((call, error)) => {
                *lock(held.call.get()?) = Some(call);
                Err(Failure::of_call(error))
            }
        }
    })
}

/// Lets go of a call that was not answered: its caller gets VMMC_NO_ANSWER.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_call_free(call_: *mut vmmc_rpc_call) -> vmmc_status {
    call(|| if call_.is_null() { Ok(()) } else { end(call_, drop) })
}
