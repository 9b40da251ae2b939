//! Functions that follow transfers, as C has them: each runs once and where it should, what it is
//! given is true, and misuse is an error.

mod common;

use common::*;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};
use vmmc_c::vmmc_status::{self, *};
use vmmc_c::*;

type Function = Box<dyn FnOnce(vmmc_status, u64)>;

/// Calls the Rust function that `user` points to.
unsafe extern "C" fn follow(status: vmmc_status, moved: u64, user: *mut c_void) {
    // SAFETY: `add` made it of such a box, and it is called once.
    unsafe { Box::from_raw(user.cast::<Function>())(status, moved) }
}

unsafe extern "C" fn never(_: vmmc_status, _: u64, _: *mut c_void) {
    std::process::abort();
}

fn create(session: *mut vmmc_session) -> *mut vmmc_continuations {
    let mut list = null_mut();
    // SAFETY: the place is ours.
    must(unsafe { vmmc_continuations_create(session, &mut list) });
    list
}

fn add(
    list: *const vmmc_continuations,
    transfer: *mut vmmc_transfer,
    then: impl FnOnce(vmmc_status, u64) + 'static,
) -> vmmc_status {
    let user = Box::into_raw(Box::new(Box::new(then) as Function));
    let status = vmmc_continuations_add(list, transfer, Some(follow), user.cast());
    if status != VMMC_OK {
        // SAFETY: nobody else has it.
        drop(unsafe { Box::from_raw(user) });
    }
    status
}

fn run(list: *const vmmc_continuations) -> Result<usize, vmmc_status> {
    let mut ran = 77;
    // SAFETY: the place is ours.
    match unsafe { vmmc_continuations_run(list, &mut ran) } {
        VMMC_OK => Ok(ran),
        status => Err(status),
    }
}

fn wait(list: *const vmmc_continuations, timeout_us: i64) -> Result<usize, vmmc_status> {
    let mut ran = 77;
    // SAFETY: the place is ours.
    match unsafe { vmmc_continuations_wait(list, timeout_us, &mut ran) } {
        VMMC_OK => Ok(ran),
        status => Err(status),
    }
}

fn len(list: *const vmmc_continuations) -> usize {
    let mut len = 77;
    // SAFETY: the place is ours.
    must(unsafe { vmmc_continuations_len(list, &mut len) });
    len
}

fn post_send(import: *mut vmmc_import, offset: u64, data: &[u8]) -> *mut vmmc_transfer {
    let mut sent = null_mut();
    // SAFETY: source and place are ours, and the source is copied.
    must(unsafe { vmmc_import_post_send(import, offset, &source_of(VMMC_BYTES, data), 1, null(), &mut sent) });
    sent
}

/// The memory is leaked: whoever frees the transfer too late finds it there.
fn post_fetch(import: *mut vmmc_import, len: usize) -> (*mut vmmc_transfer, *const u8) {
    let (into, mut fetch) = (Vec::leak(vec![0; len]), null_mut());
    // SAFETY: target and place are ours.
    must(unsafe { vmmc_import_post_fetch(import, 0, &target_of(VMMC_BYTES, into), 1, &mut fetch) });
    (fetch, into.as_ptr())
}

/// A node, an export that is not mapped, and an import of it.
fn join(name: &str, len: u64) -> (*mut vmmc_session, *mut vmmc_export, *mut vmmc_import) {
    let session = attach(name);
    let memory = export(session, len, c"c", VMMC_EXPORT_NOT_MAPPABLE);
    (session, memory, import(session, c"c", 0))
}

fn leave((session, memory, there): (*mut vmmc_session, *mut vmmc_export, *mut vmmc_import)) {
    must(vmmc_import_free(there));
    must(vmmc_export_free(memory));
    must(vmmc_session_free(session));
}

#[test]
fn each_function_runs_once_with_the_end_of_its_transfer_and_may_add_others() {
    thread_local! {
        static SEEN: RefCell<Vec<(usize, u64)>> = const { RefCell::new(Vec::new()) };
    }
    const LEN: usize = 200_000;
    let all = join("c-continue", LEN as u64);
    let there = all.2;
    let list = create(all.0);
    assert_eq!((run(list), wait(list, 0), len(list)), (Ok(0), Ok(0), 0));
    for place in 0..4 {
        let sent = post_send(there, place as u64, &vec![place as u8 + 1; LEN - place]);
        let followed = move |status, moved| {
            assert_eq!(status, VMMC_OK);
            SEEN.with_borrow_mut(|seen| seen.push((place, moved)));
            let (fetch, into) = post_fetch(there, LEN);
            let fetched = move |status, moved| {
                assert_eq!(status, VMMC_OK);
                // SAFETY: it was leaked, and the transfer is over.
                let first = unsafe { into.read() };
                SEEN.with_borrow_mut(|seen| seen.push((10 + usize::from(first), moved)));
            };
            must(add(list, fetch, fetched));
            assert!(len(list) > 0);
        };
        must(add(list, sent, followed));
        assert_eq!(vmmc_transfer_free(sent), VMMC_BAD_HANDLE, "its handle has gone");
    }
    let mut count = 0;
    while len(list) > 0 {
        count += wait(list, 10 * SECOND_US).unwrap();
    }
    assert_eq!((count, run(list)), (8, Ok(0)));
    let mut seen = SEEN.take();
    seen.sort_unstable();
    let sends = (0..4).map(|place| (place, (LEN - place) as u64));
    let fetches = [(11, LEN as u64); 4];
    assert_eq!(seen, sends.chain(fetches).collect::<Vec<_>>());
    must(vmmc_continuations_free(list));
    assert_eq!(vmmc_continuations_free(list), VMMC_BAD_HANDLE);
    must(vmmc_continuations_free(null_mut()));
    leave(all);
}

#[test]
fn the_error_of_a_transfer_is_told_in_words() {
    thread_local! {
        static SAID: RefCell<Vec<(vmmc_status, u64, String)>> = const { RefCell::new(Vec::new()) };
    }
    const LEN: usize = 8 << 20;
    let (session, memory, there) = join("c-continue-error", LEN as u64);
    let list = create(session);
    for _ in 0..20 {
        let say = |status, moved| SAID.with_borrow_mut(|said| said.push((status, moved, message())));
        must(add(list, post_fetch(there, LEN).0, say));
    }
    must(vmmc_session_leave(session));
    while len(list) > 0 {
        assert!(wait(list, 10 * SECOND_US).unwrap() > 0);
    }
    let said = SAID.take();
    assert_eq!(said.len(), 20);
    let failed: Vec<_> = said.iter().filter(|(status, ..)| *status == VMMC_NODE_GONE).collect();
    assert!(!failed.is_empty(), "{said:?}");
    assert!(failed.iter().all(|(_, moved, text)| *moved == 0 && text.contains("node")), "{failed:?}");
    must(vmmc_continuations_free(list));
    leave((session, memory, there));
}

#[test]
fn what_a_transfer_used_is_free_when_its_function_runs() {
    const PAGE: usize = 4096;
    let all = join("c-continue-table", 16 * PAGE as u64);
    let list = create(all.0);
    let memory = Vec::leak(vec![7u8; 9 * PAGE]);
    let page = memory.as_ptr().align_offset(PAGE);
    let (mut lent, mut table, mut sent) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the memory is leaked, and the places are ours.
    unsafe {
        must(vmmc_session_lend(all.0, memory[page..].as_ptr().cast(), 8 * PAGE, &mut lent));
        must(vmmc_table_create(all.0, 16, &mut table));
        match vmmc_table_place(table, 0, lent) {
            VMMC_OK => {
                let memory = table.cast_const().cast();
                let source = vmmc_source { kind: VMMC_INDEXED, index: 0, memory, from: 0, len: 8 * PAGE as u64 };
                must(vmmc_import_post_send(all.2, 0, &source, 1, null(), &mut sent));
                assert_eq!(vmmc_table_remove(table, 0, 8), VMMC_BUSY);
                must(add(list, sent, move |_, _| must(vmmc_table_remove(table, 0, 8))));
                assert_eq!(vmmc_table_remove(table, 0, 8), VMMC_BUSY);
                assert_eq!(wait(list, 10 * SECOND_US), Ok(1));
                // A list that is freed lets go of it too.
                must(vmmc_table_place(table, 0, lent));
                must(vmmc_import_post_send(all.2, 0, &source, 1, null(), &mut sent));
                must(vmmc_continuations_add(list, sent, Some(never), null_mut()));
                must(vmmc_continuations_free(list));
                must(vmmc_table_remove(table, 0, 8));
            }
            status => {
                println!("SKIP a table: memory cannot be pinned here ({status:?})");
                must(vmmc_continuations_free(list));
            }
        }
    }
    must(vmmc_table_free(table));
    must(vmmc_lent_free(lent));
    leave(all);
}

#[test]
fn they_are_waited_for_beside_other_things() {
    thread_local! {
        static MOVED: Cell<u64> = const { Cell::new(0) };
    }
    const LEN: usize = 1 << 20;
    let all = join("c-continue-any", LEN as u64);
    let list = create(all.0);
    let (mine, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&mine);
    let continuations = vmmc_wait_for { continuations: list, ..wait_for(VMMC_WAIT_CONTINUATIONS) };
    let what = [wait_for(VMMC_WAIT_NOTIFICATION), vmmc_wait_for { fd, ..wait_for(VMMC_WAIT_READABLE) }, continuations];
    assert_eq!(wait_any(all.0, &what, 1000), Err(VMMC_TIMED_OUT));
    for _ in 0..3 {
        must(add(list, post_fetch(all.2, LEN).0, |_, moved| MOVED.set(MOVED.get() + moved)));
    }
    while len(list) > 0 {
        assert_eq!(wait_any(all.0, &what, 10 * SECOND_US), Ok(2));
        assert!(run(list).unwrap() > 0);
    }
    assert_eq!(MOVED.get(), 3 * LEN as u64);
    drop(other);
    assert_eq!(wait_any(all.0, &what, 10 * SECOND_US), Ok(1));
    assert_eq!(wait_any(all.0, &[continuations, what[0], continuations], 0), Err(VMMC_INVALID));
    assert!(message().contains("place 2 stands in the list twice"), "{}", message());
    assert_eq!(wait_any(all.0, &[wait_for(VMMC_WAIT_CONTINUATIONS)], 0), Err(VMMC_BAD_HANDLE));
    assert!(message().contains("continuations handle is NULL"), "{}", message());
    // From a function of the list itself.
    let (session, sent) = (all.0, post_send(all.2, 0, b"x"));
    must(add(list, sent, move |_, _| assert_eq!(wait_any(session, &[continuations], 0), Err(VMMC_TIMED_OUT))));
    assert_eq!(wait(list, SECOND_US), Ok(1));
    must(vmmc_continuations_free(list));
    assert_eq!(wait_any(all.0, &[continuations], 0), Err(VMMC_BAD_HANDLE));
    leave(all);
}

#[test]
fn a_list_that_is_freed_runs_nothing_any_more() {
    const LEN: usize = 4 << 20;
    let all = join("c-continue-free", LEN as u64);
    let list = create(all.0);
    let mut user = 0u64;
    for _ in 0..6 {
        let (fetch, _) = post_fetch(all.2, LEN);
        must(vmmc_continuations_add(list, fetch, Some(never), (&raw mut user).cast()));
    }
    // One that is over already does not run either.
    must(vmmc_continuations_add(list, post_send(all.2, 0, b"x"), Some(never), null_mut()));
    must(vmmc_continuations_free(list));
    // The session goes on without them.
    let list = create(all.0);
    thread_local! {
        static DONE: Cell<bool> = const { Cell::new(false) };
    }
    must(add(list, post_fetch(all.2, LEN).0, |_, _| DONE.set(true)));
    assert_eq!(wait(list, 10 * SECOND_US), Ok(1));
    assert!(DONE.get());
    // Neither does the order of freeing matter.
    must(vmmc_continuations_add(list, post_fetch(all.2, LEN).0, Some(never), null_mut()));
    leave(all);
    must(vmmc_continuations_free(list));
}

#[test]
fn a_function_neither_runs_nor_frees_its_own_list() {
    let all = join("c-continue-inside", 64);
    let (list, other) = (create(all.0), create(all.0));
    let there = all.2;
    must(add(list, post_send(there, 0, b"x"), move |_, _| {
        assert_eq!(vmmc_continuations_free(list), VMMC_BUSY);
        assert!(message().contains("let it return first"), "{}", message());
        assert_eq!(run(list), Err(VMMC_BUSY));
        assert!(message().contains("runs in this thread"), "{}", message());
        assert_eq!(wait(list, 0), Err(VMMC_BUSY));
        // Another list it may, whose functions may not run this one.
        must(add(other, post_send(there, 0, b"y"), move |_, _| {
            assert_eq!((run(list), vmmc_continuations_free(list)), (Err(VMMC_BUSY), VMMC_BUSY));
            must(add(list, post_send(there, 0, b"z"), |_, _| ()));
        }));
        assert_eq!(wait(other, SECOND_US), Ok(1));
        must(vmmc_continuations_free(other));
    }));
    assert_eq!((wait(list, SECOND_US), len(list)), (Ok(1), 1));
    assert_eq!(wait(list, SECOND_US), Ok(1));
    must(vmmc_continuations_free(list));
    leave(all);
}

#[test]
fn what_cannot_be_added_stays_with_the_caller() {
    let (all, foreign) = (join("c-continue-wrong", 64), join("c-continue-stranger", 64));
    let list = create(all.0);
    let wild = 0xdead_beef_usize as *mut vmmc_continuations;
    let (own, strange) = (post_send(all.2, 0, b"x"), post_send(foreign.2, 0, b"y"));
    let add = |list: *mut vmmc_continuations, transfer, function: vmmc_continuation| {
        vmmc_continuations_add(list, transfer, function, null_mut())
    };
    for (list, said) in [
        (null_mut(), "continuations handle is NULL"),
        (wild, "freed already, or of another kind"),
        (own.cast(), "freed already, or of another kind"),
    ] {
        assert_eq!(add(list, own, Some(never)), VMMC_BAD_HANDLE);
        assert!(message().contains(said), "{}", message());
    }
    assert_eq!(add(list, own, None), VMMC_INVALID);
    assert!(message().contains("`function` is NULL"), "{}", message());
    assert_eq!(add(list, null_mut(), Some(never)), VMMC_BAD_HANDLE);
    assert!(message().contains("transfer handle is NULL"), "{}", message());
    assert_eq!(add(list, wild.cast(), Some(never)), VMMC_BAD_HANDLE);
    assert_eq!(add(list, strange, Some(never)), VMMC_FOREIGN);
    assert!(message().contains("add it to some of its own"), "{}", message());
    let mut moved = 0;
    // SAFETY: places are ours, or NULL.
    unsafe {
        must(vmmc_transfer_wait(own, SECOND_US, &mut moved));
        must(vmmc_transfer_wait(strange, SECOND_US, &mut moved));
        assert_eq!(vmmc_continuations_run(list, null_mut()), VMMC_INVALID);
        assert_eq!(vmmc_continuations_wait(list, 0, null_mut()), VMMC_INVALID);
        assert_eq!(vmmc_continuations_len(list, null_mut()), VMMC_INVALID);
        assert_eq!(vmmc_continuations_create(all.0, null_mut()), VMMC_INVALID);
        assert_eq!(vmmc_continuations_create(wild.cast(), &mut null_mut()), VMMC_BAD_HANDLE);
        assert_eq!(vmmc_continuations_len(wild, &mut 0), VMMC_BAD_HANDLE);
    }
    assert_eq!((run(wild), wait(null(), 0)), (Err(VMMC_BAD_HANDLE), Err(VMMC_BAD_HANDLE)));
    assert_eq!(vmmc_continuations_free(wild), VMMC_BAD_HANDLE);
    // One that is over may be added too; the second time it is not there.
    assert_eq!(add(list, own, Some(ignore)), VMMC_OK);
    assert_eq!(add(list, own, Some(ignore)), VMMC_BAD_HANDLE);
    assert_eq!((run(list), len(list)), (Ok(1), 0));
    must(vmmc_transfer_free(strange));
    must(vmmc_continuations_free(list));
    assert_eq!(add(list, null_mut(), Some(never)), VMMC_BAD_HANDLE);
    leave(foreign);
    leave(all);
}

unsafe extern "C" fn ignore(_: vmmc_status, _: u64, _: *mut c_void) {}

#[test]
fn one_thread_at_a_time_waits_and_others_add_while_functions_run() {
    let all = join("c-continue-threads", 64);
    let list = create(all.0);
    let (numbers, there) = ((all.0 as usize, list as usize), all.2 as usize);
    // The fetch is not over before its node is stepped, which the waiting thread does.
    let ring_name = c"c-ring";
    let size = size_of::<vmmc_export_options>();
    let name = ring_name.as_ptr();
    let options = vmmc_export_options { size, name, rights: 0, flags: 0, access: 0, user_count: 0, users: null() };
    let mut ring = null_mut();
    // SAFETY: options and place are ours.
    must(unsafe { vmmc_ring_create(all.0, 8_192, &options, &mut ring) });
    let inbox = import(all.0, ring_name, VMMC_WRITE);
    let ring_number = ring as usize;
    let waits = std::thread::spawn(move || {
        let (session, list) = (numbers.0 as *mut vmmc_session, numbers.1 as *const vmmc_continuations);
        let what = [
            vmmc_wait_for { continuations: list, ..wait_for(VMMC_WAIT_CONTINUATIONS) },
            vmmc_wait_for { ring: ring_number as *const _, ..wait_for(VMMC_WAIT_RECORD) },
        ];
        loop {
            match wait_any(session, &what, 10 * SECOND_US) {
                Err(VMMC_BUSY) => std::thread::yield_now(),
                ended => return ended,
            }
        }
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut count = 0;
    // SAFETY: the place is ours.
    while unsafe { vmmc_continuations_len(list, &mut count) } != VMMC_BUSY {
        assert!(Instant::now() < deadline, "the wait never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = post_send(all.2, 0, b"x");
    assert_eq!((run(list), wait(list, 0)), (Err(VMMC_BUSY), Err(VMMC_BUSY)));
    assert_eq!(add(list, sent, |_, _| unreachable!("it was refused")), VMMC_BUSY);
    assert!(message().contains("let it come back first"), "{}", message());
    // SAFETY: no data.
    must(unsafe { vmmc_import_append(inbox, null(), 0, null()) });
    assert_eq!(waits.join().unwrap(), Ok(1));
    // While a function runs.
    must(add(list, sent, move |_, _| {
        let other = std::thread::spawn(move || {
            let list = numbers.1 as *const vmmc_continuations;
            must(add(list, post_send(there as *mut _, 0, b"y"), |_, _| ()));
            (run(list), len(list))
        });
        assert_eq!(other.join().unwrap(), (Err(VMMC_BUSY), 1));
        // Who frees it in another thread frees it when the call that runs functions returns.
        std::thread::spawn(move || must(vmmc_continuations_free(numbers.1 as *mut _))).join().unwrap();
    }));
    assert_eq!(wait(list, SECOND_US), Ok(1));
    assert_eq!(run(list), Err(VMMC_BAD_HANDLE));
    must(vmmc_import_free(inbox));
    must(vmmc_ring_free(ring));
    leave(all);
}
