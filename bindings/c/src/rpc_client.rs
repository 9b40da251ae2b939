//! Clients of remote calls: calls that are waited for, polled for, or continued.
//!
//! Invariant: an answer is taken only when there is a handle for it, so none is lost for want of
//! one. Functions of a client that is freed do not run. Source: `Client` of `crates/rpc`.

use crate::buffer::vmmc_buffer;
use crate::export::access;
use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::lists::range;
use crate::memory::{bytes, bytes_mut, optional_string, string};
use crate::notification::User;
use crate::options::{self, Options, known_flags};
use crate::owned::Owned;
use crate::running::Gate;
use crate::session::vmmc_session;
use crate::status::vmmc_status::{self, VMMC_AGAIN, VMMC_BUSY, VMMC_OK, VMMC_STALE};
use crate::wait::{duration, optional};
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::time::Duration;
use vmmc_rpc::{Answer, Client, Pending, Request, RpcError, Then, TokenRegion, limits};

/// A way to a service, for any number of threads.
pub struct vmmc_rpc_client(());

pub(crate) struct Object {
    client: Owned<Client>,
    /// Its continuations run behind it.
    gate: Gate,
}
handle!(vmmc_rpc_client, RpcClient, Object, "client");

/// A call under way.
pub struct vmmc_rpc_pending(());

/// None: its outcome was given.
pub(crate) struct PendingObject(Owned<Mutex<Option<Pending>>>);
handle!(vmmc_rpc_pending, RpcPending, PendingObject, "pending call");

/// What a call gave.
pub struct vmmc_rpc_answer(());

/// Empty as long as there is no answer.
#[derive(Default)]
pub(crate) struct AnswerObject(OnceLock<Answer>);
handle!(vmmc_rpc_answer, RpcAnswer, AnswerObject, "answer");

/// Memory of a client for bulk results.
pub struct vmmc_rpc_region(());

pub(crate) type RegionObject = TokenRegion;
handle!(vmmc_rpc_region, RpcRegion, RegionObject, "region");

/// For `flags` of vmmc_rpc_client_options: the service of the user `owner` only.
pub const VMMC_RPC_OWNER: u32 = 1;

/// Choices for a client.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_rpc_client_options {
    /// sizeof (vmmc_rpc_client_options).
    pub size: usize,
    /// Name or `address:port` of the node of the service; NULL: this node.
    pub node: *const c_char,
    /// How long a call waits for its answer, unless it says otherwise, and the connecting for the
    /// service, which need not exist yet; microseconds, 0: the session's timeout.
    pub timeout_us: i64,
    /// VMMC_RPC_OWNER; without it, the service of this process's own user, or else of root.
    pub flags: u32,
    /// With VMMC_RPC_OWNER: user id of the server.
    pub owner: u32,
    /// Who may answer, the server and those that it passes calls on to: VMMC_ACCESS_SAME_USER,
    /// VMMC_ACCESS_ANYONE, VMMC_ACCESS_USERS.
    pub access: u32,
    /// With VMMC_ACCESS_USERS: how many.
    pub user_count: u32,
    /// With VMMC_ACCESS_USERS: their ids.
    pub users: *const u32,
    /// Frames for results, for each process that answers; 0: 4.
    pub frames: u64,
    /// Bytes of a frame; longer results come in pieces. 0: 16 KiB.
    pub frame_bytes: u64,
    /// Buffers for bulk results. Each is in use from the call until its answer is freed; 0: 8.
    pub bulk_buffers: u64,
    /// Bytes of such a buffer; 0: 64 KiB.
    pub bulk_bytes: u64,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_rpc_client_options {
    const NAME: &'static str = "client options";
}

/// For `flags` of vmmc_rpc_request: a bulk result is wanted; it lands in a buffer of the client.
pub const VMMC_RPC_WANTS_BULK: u32 = 1;

/// A call that is made. Arguments and bulk are used until the call of the library returns; together
/// they have up to 32 MiB.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_rpc_request {
    /// sizeof (vmmc_rpc_request).
    pub size: usize,
    /// Number of the method, 1 to 65,535.
    pub method: u32,
    /// VMMC_RPC_WANTS_BULK.
    pub flags: u32,
    /// The arguments, in whatever form client and server agree on.
    pub arguments: *const c_void,
    /// Their bytes.
    pub arguments_len: usize,
    /// Bulk that goes with them.
    pub bulk: *const c_void,
    /// Its bytes.
    pub bulk_len: usize,
    /// How long to wait for the answer, microseconds; 0: as the client's options say.
    pub timeout_us: i64,
    /// A region of the client by vmmc_rpc_client_region(): a bulk result is wanted, and lands there
    /// and stays there. NULL: VMMC_RPC_WANTS_BULK says whether one is wanted.
    pub region: *const vmmc_rpc_region,
    /// First byte of the region for it.
    pub region_from: u64,
    /// Bytes that it can have. From the call until its answer is freed no other call can have any
    /// of them.
    pub region_len: u64,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_rpc_request {
    const NAME: &'static str = "request";
}

/// Called once when a call has its answer, with VMMC_OK and the answer, which the function frees by
/// vmmc_rpc_answer_free(), or with its error and NULL; then vmmc_error_message() and
/// vmmc_error_may_have_happened() tell more until the function makes a call that fails. It runs in
/// a call of the client from whatever thread, or on the thread of vmmc_rpc_client_background(); it
/// may call in turn, should not wait, and must not unwind or jump out.
///
/// It returns true. If it cannot run now, and has changed nothing, and not freed the answer, it
/// returns false: then it is called again later, with the same.
pub type vmmc_rpc_continuation =
    Option<unsafe extern "C" fn(status: vmmc_status, answer: *mut vmmc_rpc_answer, user: *mut c_void) -> bool>;

/// A handle for an answer that is not there yet.
struct Spare(*mut vmmc_rpc_answer);
// SAFETY: the handle is a number, which any thread may use.
unsafe impl Send for Spare {}

impl Spare {
    fn new() -> Result<Spare, Failure> {
        put(handle::Object::RpcAnswer(AnswerObject::default())).map(Spare)
    }

    /// Puts the answer in; gives the handle, which stays this one's.
    fn fill(&self, answer: Answer) -> Result<*mut vmmc_rpc_answer, Failure> {
        get(self.0.cast_const())?.0.get_or_init(|| answer);
        Ok(self.0)
    }

    /// Leaves the handle to the caller.
    fn leave(&mut self) {
        self.0 = std::ptr::null_mut();
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // A program that guessed the handle may have freed it.
        let _ = handle::free(self.0);
    }
}

/// Gives the answer to the caller.
fn give_answer(mut spare: Spare, answer: Answer) -> Result<*mut vmmc_rpc_answer, Failure> {
    let handle = spare.fill(answer)?;
    spare.leave();
    Ok(handle)
}

impl From<AnswerLost> for Failure {
    fn from(lost: AnswerLost) -> Failure {
        Failure::of_call(lost.0)
    }
}

/// An error of a call, with what it says of the handler.
struct AnswerLost(RpcError);

impl Object {
    pub(crate) fn client(&self) -> Result<&Client, Failure> {
        self.client.get()
    }
}

/// # Safety
/// `request` is NULL or a request of the caller, whose memory is valid during `'a`; its region goes
/// to `region`.
unsafe fn request<'a>(
    client: &'a Client,
    request: *const vmmc_rpc_request,
    region: &'a mut Option<TokenRegion>,
) -> Result<Request<'a>, Failure> {
    if request.is_null() {
        return Err(Failure::invalid("`request` is NULL; give the method and its arguments"));
    }
    // SAFETY: the caller's word.
    let of = unsafe { options::read(request) }?;
    known_flags(of.flags, VMMC_RPC_WANTS_BULK, "request")?;
    let method = method(of.method)?;
    // SAFETY: the caller's word.
    let (arguments, bulk) =
        unsafe { (bytes(of.arguments, of.arguments_len, "arguments")?, bytes(of.bulk, of.bulk_len, "bulk")?) };
    let mut request = client.request(method).arguments(arguments).bulk(bulk);
    if of.flags & VMMC_RPC_WANTS_BULK != 0 {
        request = request.wants_bulk();
    }
    if !of.region.is_null() {
        let part = range(of.region_from, of.region_len)?;
        request = request.into_region(region.insert(get(of.region)?.clone()), part);
    }
    if let Some(timeout) = optional(of.timeout_us)? {
        request = request.timeout(timeout);
    }
    Ok(request)
}

/// The number of a method as the caller gives it.
pub(crate) fn method(number: u32) -> Result<u16, Failure> {
    let wrong = || Failure::invalid(format!("`method` is {number}; methods have the numbers 1 to 65535"));
    u16::try_from(number).ok().filter(|number| *number != vmmc_rpc::PING_METHOD).ok_or_else(wrong)
}

/// Connects to the service of this name, whose server has to run meanwhile. `options` may be NULL.
/// VMMC_TIMED_OUT: the server did not answer. VMMC_VERSION: it is of another release.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_client_connect(
    session: *const vmmc_session,
    service: *const c_char,
    options: *const vmmc_rpc_client_options,
    client: *mut *mut vmmc_rpc_client,
) -> vmmc_status {
    let connect = || {
        // SAFETY: the caller's options and string.
        let (of, service) = unsafe { (options::read(options)?, string(service, "service")?) };
        known_flags(of.flags, VMMC_RPC_OWNER, "client options")?;
        // SAFETY: a list and a string of the caller's options.
        let (access, node) =
            unsafe { (access(of.access, of.users, of.user_count)?, optional_string(of.node, "node")?) };
        let mut builder = Client::new(&*get(session)?, service).answered_by(access);
        builder = builder.frames(or(of.frames, limits::FRAMES_DEFAULT.0), or(of.frame_bytes, limits::FRAMES_DEFAULT.1));
        builder = builder.bulk(or(of.bulk_buffers, limits::BULK_DEFAULT.0), or(of.bulk_bytes, limits::BULK_DEFAULT.1));
        builder = node.into_iter().fold(builder, |builder, node| builder.node(node));
        if of.flags & VMMC_RPC_OWNER != 0 {
            builder = builder.owner(of.owner);
        }
        if let Some(timeout) = optional(of.timeout_us)? {
            builder = builder.timeout(timeout);
        }
        let client = Owned::new(builder.connect().map_err(AnswerLost)?);
        put(handle::Object::RpcClient(Object { client, gate: Gate::new() }))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(client, "client", connect) }
}

/// A number of options, where 0 is the default.
pub(crate) fn or(given: u64, default: u64) -> u64 {
    if given == 0 { default } else { given }
}

/// A region of `bytes` bytes for bulk results of up to `calls` calls at a time (`region` of
/// vmmc_rpc_request), which stay there: nothing is copied, and no buffer of the client is used. Its
/// memory is vmmc_rpc_region_buffer(). Whoever may answer and is of this node can write all of it.
/// A client has up to 64 regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_client_region(
    client: *const vmmc_rpc_client,
    calls: u64,
    bytes: u64,
    region: *mut *mut vmmc_rpc_region,
) -> vmmc_status {
    let make = || {
        let region = get(client)?.client()?.region(calls, bytes).map_err(AnswerLost)?;
        put(handle::Object::RpcRegion(region))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(region, "region", make) }
}

/// The memory of a region: to read, to send from, to answer from, to export. The buffer stays when
/// the region is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_region_buffer(
    region: *const vmmc_rpc_region,
    buffer: *mut *mut vmmc_buffer,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(buffer, "buffer", || put(handle::Object::Buffer(get(region)?.memory().clone()))) }
}

/// Frees a region; it ends when the answers in it are freed too.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_region_free(region: *mut vmmc_rpc_region) -> vmmc_status {
    call(|| handle::free(region))
}

/// Calls a method, and waits for the answer, which the caller frees by vmmc_rpc_answer_free().
/// After an error vmmc_error_may_have_happened() tells whether the call may have been carried out
/// all the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_client_call(
    client: *const vmmc_rpc_client,
    request_: *const vmmc_rpc_request,
    answer: *mut *mut vmmc_rpc_answer,
) -> vmmc_status {
    let make = || {
        let (object, spare, mut region) = (get(client)?, Spare::new()?, None);
        // SAFETY: the caller's request.
        let request = unsafe { request(object.client()?, request_, &mut region) }?;
        give_answer(spare, request.call().map_err(AnswerLost)?)
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(answer, "answer", make) }
}

/// Calls a method, and does not wait: vmmc_rpc_pending_poll() and vmmc_rpc_pending_wait() give the
/// answer. After an error the call was not made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_client_start(
    client: *const vmmc_rpc_client,
    request_: *const vmmc_rpc_request,
    pending: *mut *mut vmmc_rpc_pending,
) -> vmmc_status {
    let make = || {
        let (object, mut region) = (get(client)?, None);
        // SAFETY: the caller's request.
        let request = unsafe { request(object.client()?, request_, &mut region) }?;
        let pending = Owned::new(Mutex::new(Some(request.start().map_err(AnswerLost)?)));
        put(handle::Object::RpcPending(PendingObject(pending)))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(pending, "pending", make) }
}

/// Calls a method, and has `function` called, once and with `user`, when the answer is there, or an
/// error, at the latest after the call's time. After an error of this call the method was not
/// called, and the function does not run. Functions of a client that is freed do not run any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_client_then(
    client: *const vmmc_rpc_client,
    request_: *const vmmc_rpc_request,
    function: vmmc_rpc_continuation,
    user: *mut c_void,
) -> vmmc_status {
    call(|| {
        let (object, mut region) = (get(client)?, None);
        let why = "`function` is NULL; give what is to be called when the answer is there";
        let function = function.ok_or_else(|| Failure::invalid(why))?;
        // SAFETY: the caller's request.
        let request = unsafe { request(object.client()?, request_, &mut region) }?;
        let then = then(Spare::new()?, object.gate.clone(), function, User(user));
        request.then(then).map_err(AnswerLost)?;
        Ok(())
    })
}

type Function = unsafe extern "C" fn(vmmc_status, *mut vmmc_rpc_answer, *mut c_void) -> bool;

/// What Rust runs for a function of the caller.
fn then(
    mut spare: Spare,
    gate: Gate,
    function: Function,
    user: User,
) -> impl FnMut(&mut Result<Answer, RpcError>) -> Then + Send + 'static {
    // Also when the function could not run the first time.
    let mut filled = false;
    move |outcome| {
        let user = &user;
        let Some(_running) = gate.enter() else { return Then::Done };
        if outcome.is_ok() {
            let taken = RpcError::Cancelled { service: String::new() };
            filled = std::mem::replace(outcome, Err(taken)).is_ok_and(|answer| spare.fill(answer).is_ok());
        }
        let (status, answer) = match outcome {
            Err(error) if !filled => (Failure::of_call(error.clone()).keep(), std::ptr::null_mut()),
            _ => (VMMC_OK, spare.0),
        };
        // SAFETY: the caller vouches for function and user pointer until the function has run or
        // the client is freed.
        if !unsafe { function(status, answer, user.0) } {
            return Then::NotNow;
        }
        if status == VMMC_OK {
            spare.leave();
        }
        Then::Done
    }
}

/// Takes answers that have come, and runs their functions; does not wait. Functions that could not
/// run before run again.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_client_poll(client: *const vmmc_rpc_client) -> vmmc_status {
    call(|| {
        get(client)?.client()?.poll();
        Ok(())
    })
}

/// Starts a thread that takes answers and runs functions of vmmc_rpc_client_then(), so that nobody
/// need poll or wait: for programs with an event loop of their own, which such a function tells,
/// for example by an eventfd. It ends with the client; a second one is not started.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_client_background(client: *const vmmc_rpc_client) -> vmmc_status {
    call(|| Ok(get(client)?.client()?.background().map_err(AnswerLost)?))
}

/// Calls that have no outcome yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_client_outstanding(client: *const vmmc_rpc_client, count: *mut usize) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(count, "count", || Ok(get(client)?.client()?.outstanding())) }
}

/// Frees the client, after functions of vmmc_rpc_client_then() that run now. Those that have not
/// run do not run any more, so that what their `user` pointers name is the caller's to free.
/// Pending calls stay until they are freed. VMMC_BUSY from such a function itself.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_client_free(client: *mut vmmc_rpc_client) -> vmmc_status {
    call(|| {
        if client.is_null() {
            return Ok(());
        }
        let object = get(client.cast_const())?;
        if object.gate.is_inside() {
            let why = "a function of this client runs in this thread; let it return first";
            return Err(Failure::new(VMMC_BUSY, why));
        }
        handle::free(client)?;
        // In the child of a fork nobody would leave.
        if object.client.is_here() {
            object.gate.close();
        }
        Ok(())
    })
}

impl PendingObject {
    /// Gives the answer that `find` finds, if it does.
    fn take(
        &self,
        find: impl FnOnce(&mut Pending) -> Option<Result<Answer, RpcError>>,
    ) -> Result<*mut vmmc_rpc_answer, Failure> {
        let mut pending = match self.0.get()?.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(VMMC_BUSY, "another thread waits for this call; let it come back first"));
            }
        };
        let spare = Spare::new()?;
        let gone = || Failure::new(VMMC_STALE, "the answer of this call was given already; free the pending call");
        let outcome = find(pending.as_mut().ok_or_else(gone)?);
        let outcome = outcome.ok_or_else(|| Failure::new(VMMC_AGAIN, "the answer is not there yet"))?;
        *pending = None;
        give_answer(spare, outcome.map_err(AnswerLost)?)
    }
}

/// The answer if it is there, else VMMC_AGAIN. Takes answers that have come. The answer, or the
/// error of the call, is given once; after that it is VMMC_STALE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_pending_poll(
    pending: *const vmmc_rpc_pending,
    answer: *mut *mut vmmc_rpc_answer,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(answer, "answer", || get(pending)?.take(Pending::poll)) }
}

/// Waits for the answer: until the call's time is over with VMMC_DEFAULT_TIMEOUT, else no longer
/// than that. VMMC_AGAIN: it is not there yet, and the call goes on. VMMC_TIMED_OUT: the call's
/// time is over. The answer, or the error of the call, is given once; after that it is VMMC_STALE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_pending_wait(
    pending: *const vmmc_rpc_pending,
    timeout_us: i64,
    answer: *mut *mut vmmc_rpc_answer,
) -> vmmc_status {
    let time = duration(timeout_us).unwrap_or(Duration::MAX);
    // SAFETY: pointers are as the header asks.
    unsafe { give(answer, "answer", || get(pending)?.take(|pending| pending.wait_within(time))) }
}

/// Frees a pending call. If it has no answer yet it is withdrawn: no handler begins that has not
/// begun, and its bulk result reaches nobody.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_pending_free(pending: *mut vmmc_rpc_pending) -> vmmc_status {
    call(|| handle::free(pending))
}

impl AnswerObject {
    fn answer(&self) -> Result<&Answer, Failure> {
        self.0.get().ok_or_else(|| Failure::bad_handle("no answer has come to this handle yet"))
    }
}

/// The result, and its bytes; valid until the answer is freed. Never NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_answer_result(
    answer: *const vmmc_rpc_answer,
    result: *mut *const c_void,
    len: *mut usize,
) -> vmmc_status {
    let get = || {
        let object = get(answer)?;
        let found = &object.answer()?.result;
        // SAFETY: pointers are as the header asks.
        unsafe { both(result, found.as_ptr().cast(), "result", len, found.len()) }
    };
    call(get)
}

/// The bulk result, where it has landed, and its bytes; NULL and 0: the server gave none. Valid
/// until the answer is freed, and its buffer is in use until then. A hostile server of the same
/// node can write it all the same: copy what must not change before you check it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_answer_bulk(
    answer: *const vmmc_rpc_answer,
    bulk: *mut *const c_void,
    len: *mut usize,
) -> vmmc_status {
    let get = || {
        let object = get(answer)?;
        let found = object.answer()?.bulk.as_ref();
        let (first, bytes) = found.map_or((std::ptr::null(), 0), |bulk| (bulk.as_ptr(), bulk.len() as usize));
        // SAFETY: pointers are as the header asks.
        unsafe { both(bulk, first.cast(), "bulk", len, bytes) }
    };
    call(get)
}

/// # Safety
/// Both places are NULL or may be written.
unsafe fn both(
    first: *mut *const c_void,
    pointer: *const c_void,
    name: &str,
    len: *mut usize,
    bytes: usize,
) -> Result<(), Failure> {
    for (is_null, name) in [(first.is_null() || !first.is_aligned(), name), (len.is_null() || !len.is_aligned(), "len")]
    {
        if is_null {
            return Err(Failure::invalid(format!("`{name}` is NULL or misaligned; give a place for the result")));
        }
    }
    // SAFETY: not NULL, aligned, and the caller vouches for the rest.
    unsafe {
        first.write(pointer);
        len.write(bytes);
    }
    Ok(())
}

/// Copies `len` bytes at `offset` of the bulk result out. VMMC_OUT_OF_BOUNDS: it is not that long,
/// or there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_rpc_answer_read_bulk(
    answer: *const vmmc_rpc_answer,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        let object = get(answer)?;
        let none = || vmmc::AccessError::OutOfBounds { offset, len: len as u64, size: 0 };
        let bulk = object.answer()?.bulk.as_ref().ok_or_else(none)?;
        Ok(bulk.read(offset, into)?)
    })
}

/// Frees an answer; the buffer of its bulk result is free for another call.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_rpc_answer_free(answer: *mut vmmc_rpc_answer) -> vmmc_status {
    call(|| handle::free(answer))
}
