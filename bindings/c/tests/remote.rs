//! Remote calls as C makes and answers them, over an embedded node: results, errors, what handlers
//! do wrong, and what ends in the middle.

mod common;

use common::*;
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use vmmc_c::vmmc_status::{self, *};
use vmmc_c::*;

type Handler = Box<dyn Fn(*mut vmmc_rpc_call, &vmmc_rpc_incoming) + Send + Sync>;

/// Calls the Rust function that `user` points to.
unsafe extern "C" fn handle(call: *mut vmmc_rpc_call, incoming: *const vmmc_rpc_incoming, user: *mut c_void) {
    // SAFETY: `serve` made it of such a box, which is leaked.
    unsafe { (*user.cast::<Handler>())(call, &*incoming) }
}

/// A server; its handler is leaked.
fn serve(
    session: *mut vmmc_session,
    name: &str,
    threads: u32,
    queue: u32,
    handler: impl Fn(*mut vmmc_rpc_call, &vmmc_rpc_incoming) + Send + Sync + 'static,
) -> *mut vmmc_rpc_server {
    let user = Box::into_raw(Box::new(Box::new(handler) as Handler));
    let size = size_of::<vmmc_rpc_server_options>();
    let (access, user_count, users, frames, frame_bytes) = (0, 0, null(), 0, 0);
    let options = vmmc_rpc_server_options { size, access, user_count, users, threads, queue, frames, frame_bytes };
    let (name, mut server) = (CString::new(name).unwrap(), null_mut());
    // SAFETY: options, string and place are ours.
    must(unsafe {
        vmmc_rpc_server_create(session, name.as_ptr(), &options, Some(self::handle), user.cast(), &mut server)
    });
    server
}

fn connect(session: *mut vmmc_session, name: &str) -> *mut vmmc_rpc_client {
    let (name, mut client) = (CString::new(name).unwrap(), null_mut());
    let mut options = client_options();
    options.timeout_us = 10 * SECOND_US;
    // SAFETY: options, string and place are ours.
    must(unsafe { vmmc_rpc_client_connect(session, name.as_ptr(), &options, &mut client) });
    client
}

fn client_options() -> vmmc_rpc_client_options {
    vmmc_rpc_client_options {
        size: size_of::<vmmc_rpc_client_options>(),
        node: null(),
        timeout_us: 0,
        flags: 0,
        owner: 0,
        access: 0,
        user_count: 0,
        users: null(),
        frames: 0,
        frame_bytes: 0,
        bulk_buffers: 2,
        bulk_bytes: 4096,
    }
}

fn request(method: u32, arguments: &[u8]) -> vmmc_rpc_request {
    vmmc_rpc_request {
        size: size_of::<vmmc_rpc_request>(),
        method,
        flags: 0,
        arguments: arguments.as_ptr().cast(),
        arguments_len: arguments.len(),
        bulk: null(),
        bulk_len: 0,
        timeout_us: 0,
        region: null(),
        region_from: 0,
        region_len: 0,
    }
}

/// Result and bulk of an answer, which is freed.
fn taken(answer: *mut vmmc_rpc_answer) -> (Vec<u8>, Option<Vec<u8>>) {
    let (mut data, mut len) = (null(), 0);
    // SAFETY: places and memory are ours, or valid until the answer is freed.
    unsafe {
        must(vmmc_rpc_answer_result(answer, &mut data, &mut len));
        let result = std::slice::from_raw_parts(data.cast::<u8>(), len).to_vec();
        must(vmmc_rpc_answer_bulk(answer, &mut data, &mut len));
        let bulk = (!data.is_null()).then(|| {
            let mut bulk = vec![0; len];
            must(vmmc_rpc_answer_read_bulk(answer, 0, bulk.as_mut_ptr().cast(), len));
            assert_eq!(vmmc_rpc_answer_read_bulk(answer, 1, bulk.as_mut_ptr().cast(), len), VMMC_OUT_OF_BOUNDS);
            bulk
        });
        must(vmmc_rpc_answer_free(answer));
        (result, bulk)
    }
}

fn call_with(
    client: *mut vmmc_rpc_client,
    request: &vmmc_rpc_request,
) -> Result<(Vec<u8>, Option<Vec<u8>>), vmmc_status> {
    let mut answer = null_mut();
    // SAFETY: request and place are ours.
    match unsafe { vmmc_rpc_client_call(client, request, &mut answer) } {
        VMMC_OK => Ok(taken(answer)),
        status => {
            assert!(answer.is_null(), "nothing was written");
            Err(status)
        }
    }
}

fn call(client: *mut vmmc_rpc_client, method: u32, arguments: &[u8]) -> Result<Vec<u8>, vmmc_status> {
    call_with(client, &request(method, arguments)).map(|(result, _)| result)
}

fn start(client: *mut vmmc_rpc_client, request: &vmmc_rpc_request) -> *mut vmmc_rpc_pending {
    let mut pending = null_mut();
    // SAFETY: request and place are ours.
    must(unsafe { vmmc_rpc_client_start(client, request, &mut pending) });
    pending
}

fn wait(pending: *mut vmmc_rpc_pending, timeout_us: i64) -> Result<Vec<u8>, vmmc_status> {
    let mut answer = null_mut();
    // SAFETY: the place is ours.
    match unsafe { vmmc_rpc_pending_wait(pending, timeout_us, &mut answer) } {
        VMMC_OK => Ok(taken(answer).0),
        status => Err(status),
    }
}

fn answer(call: *mut vmmc_rpc_call, result: &[u8]) -> vmmc_status {
    // SAFETY: the result is ours.
    unsafe { vmmc_rpc_call_answer(call, result.as_ptr().cast(), result.len()) }
}

fn arguments(incoming: &vmmc_rpc_incoming) -> &[u8] {
    // SAFETY: valid until the call is answered.
    unsafe { std::slice::from_raw_parts(incoming.arguments.cast(), incoming.arguments_len) }
}

fn counts(server: *mut vmmc_rpc_server) -> vmmc_rpc_counts {
    // SAFETY: all zero is valid, and the place is ours.
    unsafe {
        let mut counts: vmmc_rpc_counts = std::mem::zeroed();
        must(vmmc_rpc_server_get_counts(server, &mut counts, size_of::<vmmc_rpc_counts>()));
        counts
    }
}

/// Ends once something holds.
#[track_caller]
fn until(holds: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(std::time::Instant::now() < end, "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn end(session: *mut vmmc_session, clients: &[*mut vmmc_rpc_client], servers: &[*mut vmmc_rpc_server]) {
    clients.iter().for_each(|client| must(vmmc_rpc_client_free(*client)));
    servers.iter().for_each(|server| must(vmmc_rpc_server_free(*server)));
    must(vmmc_session_free(session));
}

const ECHO: u32 = 1;
const FAIL: u32 = 2;
const SILENT: u32 = 3;
const BAD: u32 = 4;
const TWICE: u32 = 5;
const LONG: u32 = 6;
const PAGE: u32 = 7;

/// What a handler does right and wrong.
fn various(call: *mut vmmc_rpc_call, incoming: &vmmc_rpc_incoming) {
    // SAFETY: strings and places are ours.
    unsafe {
        match incoming.method {
            ECHO => {
                let mut bulk = vec![0u8; incoming.bulk_len as usize];
                must(vmmc_rpc_call_read_bulk(call, 0, bulk.as_mut_ptr().cast(), bulk.len()));
                must(answer(call, &[arguments(incoming), &bulk].concat()));
            }
            FAIL => must(vmmc_rpc_call_fail(call, c"no more paper".as_ptr())),
            SILENT => {}
            BAD => {
                assert_eq!(vmmc_rpc_call_refuse(call, VMMC_FAILED as i32), VMMC_INVALID);
                must(vmmc_rpc_call_refuse(call, VMMC_BAD_ARGUMENTS as i32));
            }
            TWICE => {
                must(answer(call, b"once"));
                assert_eq!(answer(call, b"twice"), VMMC_BAD_HANDLE);
                assert!(message().contains("goes when the call is answered"), "{}", message());
                assert_eq!(vmmc_rpc_call_defer(call), VMMC_BAD_HANDLE);
            }
            LONG => must(answer(call, &vec![7; (32 << 20) + 1])),
            PAGE => {
                let page = vec![9u8; u16::from_le_bytes(arguments(incoming).try_into().unwrap()).into()];
                assert!(incoming.wants_bulk && incoming.left_us > 0);
                must(vmmc_rpc_call_answer_bulk(call, b"page".as_ptr().cast(), 4, page.as_ptr().cast(), page.len()));
            }
            _ => must(vmmc_rpc_call_refuse(call, VMMC_NO_METHOD as i32)),
        }
    }
}

#[test]
fn calls_have_results_and_errors_have_statuses_of_their_own() {
    let session = attach("c-rpc");
    let server = serve(session, "various", 0, 0, various);
    let client = connect(session, "various");
    assert_eq!(call(client, ECHO, b"hello"), Ok(b"hello".to_vec()));
    assert_eq!(call(client, ECHO, b""), Ok(Vec::new()));
    let long = [3u8; 200_000];
    let with_bulk = vmmc_rpc_request { bulk: long.as_ptr().cast(), bulk_len: long.len(), ..request(ECHO, b"and ") };
    assert_eq!(call_with(client, &with_bulk), Ok(([b"and ".as_slice(), &long].concat(), None)));
    for (method, status, may_have_happened, says) in [
        (FAIL, VMMC_FAILED, true, "no more paper"),
        (SILENT, VMMC_NO_ANSWER, true, "gave no answer"),
        (BAD, VMMC_BAD_ARGUMENTS, false, "could not read the arguments"),
        (LONG, VMMC_RESULT_TOO_LONG, true, "return it as bulk"),
        (99, VMMC_NO_METHOD, false, "has no method 99"),
    ] {
        assert_eq!(call(client, method, b""), Err(status));
        assert!(message().contains(says), "{}", message());
        assert_eq!(vmmc_error_may_have_happened(), may_have_happened, "{status:?}");
    }
    assert_eq!(call(client, ECHO, &vec![0; (32 << 20) + 1]), Err(VMMC_ARGUMENTS_TOO_LONG));
    assert!(!vmmc_error_may_have_happened());
    assert_eq!(call(client, TWICE, b""), Ok(b"once".to_vec()));

    let page = |bytes: u16| {
        let arguments = bytes.to_le_bytes();
        call_with(client, &vmmc_rpc_request { flags: VMMC_RPC_WANTS_BULK, ..request(PAGE, &arguments) })
    };
    assert_eq!(page(4096), Ok((b"page".to_vec(), Some(vec![9; 4096]))));
    assert_eq!(page(0), Ok((b"page".to_vec(), Some(Vec::new()))));
    assert_eq!(page(4097), Err(VMMC_BULK_DROPPED));
    assert!(message().contains("it has 4097 bytes, and the buffer 4096"), "{}", message());
    let counts = counts(server);
    assert_eq!((counts.failed, counts.misbehaved), (4, 0));
    end(session, &[client], &[server]);
}

/// A buffer of the memory of an export.
fn memory_of(session: *mut vmmc_session, export: *mut vmmc_export) -> *mut vmmc_buffer {
    let mut buffer = null_mut();
    // SAFETY: the place is ours.
    must(unsafe { vmmc_buffer_export(session, export, &mut buffer) });
    buffer
}

#[test]
fn bulk_goes_from_an_export_and_lands_in_a_region() {
    let session = attach("c-bulk");
    let pages = export(session, 8192, c"pages", 0);
    let memory = memory_of(session, pages);
    // SAFETY: memory of ours.
    must(unsafe { vmmc_buffer_write(memory, 0, [5u8; 8192].as_ptr().cast(), 8192) });
    let from = memory as usize;
    let server = serve(session, "pages", 0, 0, move |call, incoming| {
        let head = *b"page";
        let page = |from_: u64| vmmc_source {
            kind: VMMC_BUFFER,
            index: 0,
            memory: from as *const c_void,
            from: from_,
            len: 4092,
        };
        let head = vmmc_source { kind: VMMC_BYTES, index: 0, memory: head.as_ptr().cast(), from: 0, len: 4 };
        let (past, both) = (page(4101), [head, page(4100)]);
        // SAFETY: memory of ours.
        unsafe {
            if incoming.method == 2 {
                return must(vmmc_rpc_call_answer_from(call, null(), 0, null(), 0));
            }
            // It can still be answered.
            assert_eq!(vmmc_rpc_call_answer_from(call, null(), 0, &past, 1), VMMC_OUT_OF_BOUNDS);
            assert_eq!(vmmc_rpc_call_answer_from(call, null(), 0, null(), 1), VMMC_INVALID);
            must(vmmc_rpc_call_answer_from(call, b"here".as_ptr().cast(), 4, both.as_ptr(), 2));
        }
    });
    let client = connect(session, "pages");
    let expected = [b"page".as_slice(), &[5; 4092]].concat();
    let into_buffer = vmmc_rpc_request { flags: VMMC_RPC_WANTS_BULK, ..request(1, b"") };
    assert_eq!(call_with(client, &into_buffer), Ok((b"here".to_vec(), Some(expected.clone()))));

    let (mut region, mut there, mut answer) = (null_mut(), null_mut(), null_mut());
    // SAFETY: places and memory are ours.
    unsafe {
        assert_eq!(vmmc_rpc_client_region(client, 0, 10_000, &mut region), VMMC_INVALID);
        must(vmmc_rpc_client_region(client, 2, 10_000, &mut region));
        must(vmmc_rpc_region_buffer(region, &mut there));
        let into = |from, len| vmmc_rpc_request { region, region_from: from, region_len: len, ..request(1, b"") };
        must(vmmc_rpc_client_call(client, &into(33, 4096), &mut answer));
        assert_eq!(call_with(client, &into(4128, 4096)), Err(VMMC_BUSY), "{}", message());
        assert_eq!(call_with(client, &into(6000, 4001)), Err(VMMC_OUT_OF_BOUNDS), "{}", message());
        assert_eq!(call_with(client, &into(u64::MAX, 2)), Err(VMMC_OUT_OF_BOUNDS));
        assert_eq!(call_with(client, &into(5000, 4095)), Err(VMMC_BULK_DROPPED));
        assert_eq!(taken(answer), (b"here".to_vec(), Some(expected.clone())));
        let mut bytes = vec![1; 4098];
        must(vmmc_buffer_read(there, 32, bytes.as_mut_ptr().cast(), bytes.len()));
        assert!(bytes[1..4097] == expected && bytes[0] == 0 && bytes[4097] == 0);
        let empty = vmmc_rpc_request { method: 2, ..into(4128, 4096) };
        assert_eq!(call_with(client, &empty), Ok((Vec::new(), Some(Vec::new()))));

        // What came is exported where it is, and stays when the region is freed.
        let (mut exported, mut import) = (null_mut(), null_mut());
        let (size, name) = (size_of::<vmmc_export_options>(), c"come".as_ptr());
        let options = vmmc_export_options { size, name, rights: 0, flags: 0, access: 0, user_count: 0, users: null() };
        must(vmmc_export_buffer(session, there, &options, &mut exported));
        must(vmmc_rpc_region_free(region));
        assert_eq!(call_with(client, &into(0, 4096)), Err(VMMC_BAD_HANDLE));
        must(vmmc_import_open(session, c"come".as_ptr(), null(), &mut import));
        must(vmmc_import_fetch(import, 33, bytes.as_mut_ptr().cast(), 4096));
        assert!(bytes[..4096] == expected);
        must(vmmc_import_free(import));
        must(vmmc_export_free(exported));
        must(vmmc_buffer_free(there));
        must(vmmc_buffer_free(memory));
        must(vmmc_export_free(pages));
    }
    end(session, &[client], &[server]);
}

#[test]
fn calls_go_on_while_nobody_waits_for_them() {
    let session = attach("c-rpc-start");
    let go = std::sync::Arc::new(AtomicBool::new(false));
    let may = go.clone();
    let server = serve(session, "slow", 2, 0, move |call, incoming| {
        while incoming.method == 2 && !may.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
            let mut cancelled = false;
            // SAFETY: the place is ours.
            must(unsafe { vmmc_rpc_call_cancelled(call, &mut cancelled) });
            if cancelled {
                break;
            }
        }
        must(answer(call, arguments(incoming)));
    });
    let client = connect(session, "slow");
    let pending = start(client, &request(2, b"later"));
    let mut count = 0;
    // SAFETY: places are ours.
    unsafe {
        assert_eq!(vmmc_rpc_pending_poll(pending, &mut null_mut()), VMMC_AGAIN);
        must(vmmc_rpc_client_outstanding(client, &mut count));
    }
    assert_eq!((count, wait(pending, 1_000)), (1, Err(VMMC_AGAIN)));
    assert_eq!(call(client, 1, b"meanwhile"), Ok(b"meanwhile".to_vec()));
    go.store(true, Ordering::Release);
    assert_eq!(wait(pending, VMMC_DEFAULT_TIMEOUT), Ok(b"later".to_vec()));
    assert_eq!(wait(pending, VMMC_DEFAULT_TIMEOUT), Err(VMMC_STALE));
    must(vmmc_rpc_pending_free(pending));
    go.store(false, Ordering::Release);

    // One that is freed is withdrawn; its handler sees that.
    let pending = start(client, &request(2, b"never"));
    until(|| counts(server).handled == 3);
    must(vmmc_rpc_pending_free(pending));
    until(|| counts(server).done == 3);
    // One whose time is over ends by itself, also when its client is freed meanwhile.
    let pending = start(client, &vmmc_rpc_request { timeout_us: 20_000, ..request(2, b"") });
    must(vmmc_rpc_client_free(client));
    assert_eq!(wait(pending, VMMC_DEFAULT_TIMEOUT), Err(VMMC_TIMED_OUT));
    assert!(vmmc_error_may_have_happened());
    must(vmmc_rpc_pending_free(pending));
    end(session, &[], &[server]);
}

/// The result, or the status and whether there was no answer.
type Outcome = Result<Vec<u8>, (vmmc_status, bool)>;

/// What a continuation is to do, and has seen.
struct Followed {
    client: AtomicPtr<vmmc_rpc_client>,
    refusals: AtomicU32,
    results: std::sync::Mutex<Vec<Outcome>>,
}

unsafe extern "C" fn follow(status: vmmc_status, answer: *mut vmmc_rpc_answer, user: *mut c_void) -> bool {
    // SAFETY: the test keeps it.
    let followed = unsafe { &*user.cast::<Followed>() };
    assert_eq!(vmmc_rpc_client_free(followed.client.load(Ordering::Relaxed)), VMMC_BUSY);
    if followed.refusals.load(Ordering::Relaxed) > 0 {
        followed.refusals.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    let result = match status {
        VMMC_OK => Ok(taken(answer).0),
        status => Err((status, answer.is_null())),
    };
    followed.results.lock().unwrap().push(result);
    true
}

#[test]
fn functions_follow_answers_and_those_of_a_freed_client_do_not_run() {
    let session = attach("c-rpc-then");
    let server = serve(session, "various", 0, 0, various);
    let client = connect(session, "various");
    let followed =
        Followed { client: AtomicPtr::new(client), refusals: AtomicU32::new(2), results: Default::default() };
    let then = |method, arguments: &[u8]| {
        let user = (&raw const followed).cast_mut().cast();
        // SAFETY: the request is ours, and what `user` names lives until the client is freed.
        unsafe { vmmc_rpc_client_then(client, &request(method, arguments), Some(follow), user) }
    };
    let poll = || must(vmmc_rpc_client_poll(client));
    must(then(ECHO, b"one"));
    until(|| {
        poll();
        followed.results.lock().unwrap().len() == 1
    });
    assert_eq!(followed.refusals.load(Ordering::Relaxed), 0, "it was called again until it could run");
    must(vmmc_rpc_client_background(client));
    must(then(FAIL, b""));
    until(|| followed.results.lock().unwrap().len() == 2);
    let results = followed.results.lock().unwrap().clone();
    assert_eq!(results, [Ok(b"one".to_vec()), Err((VMMC_FAILED, true))]);
    // SAFETY: the request is ours.
    assert_eq!(unsafe { vmmc_rpc_client_then(client, &request(1, b""), None, null_mut()) }, VMMC_INVALID);
    for _ in 0..50 {
        must(then(ECHO, b"more"));
    }
    must(vmmc_rpc_client_free(client));
    let ran = followed.results.lock().unwrap().len();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(followed.results.lock().unwrap().len(), ran, "a function ran after its client was freed");
    end(session, &[], &[server]);
}

#[test]
fn calls_are_answered_later_and_left_to_others() {
    let session = attach("c-rpc-defer");
    let last = serve(session, "last", 0, 0, |call, incoming| {
        let mut bulk = vec![0u8; incoming.bulk_len as usize];
        // SAFETY: memory and places are ours.
        unsafe {
            must(vmmc_rpc_call_read_bulk(call, 0, bulk.as_mut_ptr().cast(), bulk.len()));
            bulk.reverse();
            let result = arguments(incoming);
            must(vmmc_rpc_call_answer_bulk(
                call,
                result.as_ptr().cast(),
                result.len(),
                bulk.as_ptr().cast(),
                bulk.len(),
            ));
        }
    });
    let to = connect(session, "last") as usize;
    let (calls, kept) = std::sync::mpsc::channel::<(usize, u32)>();
    let calls = std::sync::Mutex::new(calls);
    let first = serve(session, "first", 0, 0, move |call, incoming| {
        must(vmmc_rpc_call_defer(call));
        calls.lock().unwrap().send((call as usize, incoming.method)).unwrap();
    });
    let client = connect(session, "first");
    let answering = std::thread::spawn(move || {
        for (call, method) in kept {
            let call = call as *mut vmmc_rpc_call;
            let mut left = 0;
            // SAFETY: places and arguments are ours.
            unsafe {
                must(vmmc_rpc_call_left(call, &mut left));
                assert!(left > 0 && left <= 10_000_000);
                match method {
                    1 => must(answer(call, b"later")),
                    2 => must(vmmc_rpc_call_free(call)),
                    _ => {
                        // What was not passed on is still there.
                        let no_client = call.cast::<vmmc_rpc_client>();
                        assert_eq!(vmmc_rpc_call_pass_on(call, no_client, 3, null(), 0), VMMC_BAD_HANDLE);
                        let (to, new) = (to as *mut vmmc_rpc_client, b"passed on");
                        let too_long = vec![0u8; (32 << 20) + 1];
                        let status = vmmc_rpc_call_pass_on(call, to, 3, too_long.as_ptr().cast(), too_long.len());
                        assert_eq!(status, VMMC_ARGUMENTS_TOO_LONG);
                        must(vmmc_rpc_call_pass_on(call, to, 3, new.as_ptr().cast(), new.len()));
                    }
                }
            }
            assert_eq!(answer(call, b"again"), VMMC_BAD_HANDLE);
            if method == 2 {
                return;
            }
        }
    });
    assert_eq!(call(client, 1, b""), Ok(b"later".to_vec()));
    let bulk = b"abc";
    let of =
        vmmc_rpc_request { flags: VMMC_RPC_WANTS_BULK, bulk: bulk.as_ptr().cast(), bulk_len: 3, ..request(3, b"") };
    assert_eq!(call_with(client, &of), Ok((b"passed on".to_vec(), Some(b"cba".to_vec()))));
    assert_eq!(counts(first).passed_on, 1);
    assert_eq!(call(client, 2, b""), Err(VMMC_NO_ANSWER));
    answering.join().unwrap();
    end(session, &[client, to as *mut vmmc_rpc_client], &[first, last]);
}

#[test]
fn a_server_ends_after_its_handlers_and_not_inside_of_one() {
    let session = attach("c-rpc-end");
    let (own, inside) = (std::sync::Arc::new(AtomicUsize::new(0)), std::sync::Arc::new(AtomicBool::new(false)));
    let (server_of, begun) = (own.clone(), inside.clone());
    let server = serve(session, "ending", 1, 1, move |call, _| {
        let server = server_of.load(Ordering::Acquire) as *mut vmmc_rpc_server;
        assert_eq!(vmmc_rpc_server_free(server), VMMC_BUSY);
        assert!(message().contains("in another thread"), "{}", message());
        begun.store(true, Ordering::Release);
        std::thread::sleep(Duration::from_millis(50));
        // The counts are there also while another thread ends the server.
        // SAFETY: all zero is valid, and the place is ours.
        let status = unsafe { vmmc_rpc_server_get_counts(server, &mut std::mem::zeroed(), 0) };
        assert!([VMMC_OK, VMMC_BAD_HANDLE].contains(&status), "{status:?}");
        must(answer(call, b"done"));
        begun.store(false, Ordering::Release);
    });
    own.store(server as usize, Ordering::Release);
    let client = connect(session, "ending");
    let pending = start(client, &request(1, b""));
    until(|| inside.load(Ordering::Acquire));
    // One that waits, and one for which there is no room.
    let second = start(client, &vmmc_rpc_request { timeout_us: SECOND_US, ..request(1, b"") });
    assert_eq!(call(client, 1, b""), Err(VMMC_SERVER_BUSY));
    assert!(!vmmc_error_may_have_happened());
    must(vmmc_rpc_server_free(server));
    assert!(!inside.load(Ordering::Acquire), "the server ended before its handler");
    assert_eq!(vmmc_rpc_server_free(server), VMMC_BAD_HANDLE);
    assert_eq!(wait(pending, VMMC_DEFAULT_TIMEOUT), Ok(b"done".to_vec()));
    assert_eq!(wait(second, VMMC_DEFAULT_TIMEOUT), Err(VMMC_LOST));
    [pending, second].iter().for_each(|pending| must(vmmc_rpc_pending_free(*pending)));
    end(session, &[client], &[]);
}

#[test]
fn arguments_without_sense_are_errors() {
    let session = attach("c-rpc-arguments");
    let server = serve(session, "various", 0, 0, various);
    let client = connect(session, "various");
    assert_eq!(call(client, 0, b""), Err(VMMC_INVALID));
    assert_eq!(call(client, 65_536, b""), Err(VMMC_INVALID));
    assert!(message().contains("1 to 65535"), "{}", message());
    assert_eq!(call_with(client, &vmmc_rpc_request { flags: 2, ..request(ECHO, b"") }), Err(VMMC_INVALID));
    assert_eq!(call_with(client, &vmmc_rpc_request { arguments: null(), ..request(ECHO, b"x") }), Err(VMMC_INVALID));
    assert_eq!(call_with(client, &vmmc_rpc_request { timeout_us: -1, ..request(ECHO, b"x") }), Err(VMMC_INVALID));
    let (name, mut made, mut no_server) = (c"nobody".as_ptr(), null_mut(), null_mut());
    let other = |change: fn(&mut vmmc_rpc_client_options)| {
        let mut options = client_options();
        change(&mut options);
        options
    };
    // SAFETY: strings, options and places are ours, or NULL.
    unsafe {
        assert_eq!(vmmc_rpc_client_call(client, null(), &mut null_mut()), VMMC_INVALID);
        assert_eq!(vmmc_rpc_client_call(client, &request(ECHO, b""), null_mut()), VMMC_INVALID);
        assert_eq!(vmmc_rpc_client_call(server.cast(), &request(ECHO, b""), &mut null_mut()), VMMC_BAD_HANDLE);
        let connect = |options, made| vmmc_rpc_client_connect(session, name, &options, made);
        assert_eq!(connect(other(|options| options.timeout_us = 1_000), &mut made), VMMC_TIMED_OUT);
        assert_eq!(connect(other(|options| options.access = 9), &mut made), VMMC_INVALID);
        assert_eq!(connect(other(|options| options.flags = 8), &mut made), VMMC_INVALID);
        assert_eq!(connect(other(|options| options.frame_bytes = 1 << 20), &mut made), VMMC_INVALID);
        assert_eq!(vmmc_rpc_client_connect(session, c"".as_ptr(), null(), &mut made), VMMC_INVALID);
        let handler = Some(handle as unsafe extern "C" fn(_, _, _));
        assert_eq!(vmmc_rpc_server_create(session, name, null(), None, null_mut(), &mut no_server), VMMC_INVALID);
        assert_eq!(vmmc_rpc_server_create(session, null(), null(), handler, null_mut(), &mut no_server), VMMC_INVALID);
    }
    assert!(made.is_null() && no_server.is_null(), "nothing was written");
    for status in [
        vmmc_rpc_client_free(null_mut()),
        vmmc_rpc_server_free(null_mut()),
        vmmc_rpc_pending_free(null_mut()),
        vmmc_rpc_answer_free(null_mut()),
        vmmc_rpc_call_free(null_mut()),
    ] {
        must(status);
    }
    end(session, &[client], &[server]);
}

#[test]
fn the_child_of_a_fork_is_told_so_and_can_leave() {
    let session = attach("c-rpc-fork");
    let server = serve(session, "various", 1, 0, various);
    let client = connect(session, "various");
    must(vmmc_rpc_client_background(client));
    let pending = start(client, &vmmc_rpc_request { flags: VMMC_RPC_WANTS_BULK, ..request(PAGE, &[1, 0]) });
    // SAFETY: the child makes calls that take no lock, and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = [
            call(client, ECHO, b"child") == Err(VMMC_FORKED),
            vmmc_rpc_client_poll(client) == VMMC_FORKED,
            wait(pending, 0) == Err(VMMC_FORKED),
            vmmc_rpc_pending_free(pending) == VMMC_OK,
            vmmc_rpc_client_free(client) == VMMC_OK,
            vmmc_rpc_server_free(server) == VMMC_OK,
        ];
        // SAFETY: it ends the child.
        unsafe { libc::_exit(forked.iter().position(|holds| !holds).map_or(0, |at| at as i32 + 1)) }
    }
    let mut status = 0;
    // SAFETY: the place is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "what did not hold in the child: {}", status >> 8);
    assert_eq!(wait(pending, VMMC_DEFAULT_TIMEOUT), Ok(b"page".to_vec()));
    must(vmmc_rpc_pending_free(pending));
    assert_eq!(call(client, ECHO, b"parent"), Ok(b"parent".to_vec()));
    end(session, &[client], &[server]);
}

#[test]
fn a_session_that_leaves_takes_its_servers_and_clients_along() {
    let session = attach("c-rpc-leave");
    let server = serve(session, "various", 2, 0, various);
    let client = connect(session, "various");
    let pending = start(client, &request(ECHO, b"before"));
    must(vmmc_session_leave(session));
    until(|| {
        let mut serving = true;
        // SAFETY: the place is ours.
        must(unsafe { vmmc_rpc_server_is_serving(server, &mut serving) });
        !serving
    });
    // It may have its answer already.
    let before = wait(pending, VMMC_DEFAULT_TIMEOUT);
    assert!([Ok(b"before".to_vec()), Err(VMMC_NODE_GONE), Err(VMMC_LOST)].contains(&before), "{before:?}");
    assert_eq!(call(client, ECHO, b"after"), Err(VMMC_NODE_GONE), "{}", message());
    // In whatever order.
    must(vmmc_session_free(session));
    must(vmmc_rpc_server_free(server));
    must(vmmc_rpc_client_free(client));
    must(vmmc_rpc_pending_free(pending));
}
