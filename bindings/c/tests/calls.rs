//! The calls as C makes them, over an embedded node: misuse is an error and nothing worse, and what
//! the examples do not show works.

mod common;

use common::*;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc_c::vmmc_status::{self, *};
use vmmc_c::*;

/// A part of what a handle stands for.
fn part<H>(kind: u32, memory: *mut H, from: u64, len: u64) -> vmmc_source {
    vmmc_source { kind, index: 0, memory: memory.cast_const().cast(), from, len }
}

fn send_from(import: *mut vmmc_import, offset: u64, sources: &[vmmc_source]) -> vmmc_status {
    // SAFETY: what the sources name is the caller's.
    unsafe { vmmc_import_send_with(import, offset, sources.as_ptr(), sources.len(), null()) }
}

fn fetch_into(import: *mut vmmc_import, offset: u64, targets: &[vmmc_target]) -> vmmc_status {
    // SAFETY: what the targets name is the caller's.
    unsafe { vmmc_import_fetch_into(import, offset, targets.as_ptr(), targets.len()) }
}

fn ready_word(export: *mut vmmc_export, value: u64) -> vmmc_status {
    let mut word = 0;
    // SAFETY: the place is ours.
    unsafe { vmmc_export_wait_word(export, 0, vmmc_condition::VMMC_EQUAL as u32, value, 10 * SECOND_US, &mut word) }
}

#[test]
fn null_freed_and_foreign_handles_are_errors() {
    let session = attach("c-handles");
    let export = export(session, 64, c"x", 0);
    let mut len = 7u64;
    // SAFETY: handles are never dereferenced, and the place is ours.
    unsafe {
        assert_eq!(vmmc_export_len(null(), &mut len), VMMC_BAD_HANDLE);
        assert!(message().contains("export handle is NULL"), "{}", message());
        assert_eq!(vmmc_import_len(export.cast(), &mut len), VMMC_BAD_HANDLE);
        assert_eq!(vmmc_export_len(0xdead_beef_usize as *const _, &mut len), VMMC_BAD_HANDLE);
        assert_eq!(vmmc_export_len(export, null_mut()), VMMC_INVALID);
        assert_eq!(len, 7, "nothing was written");
        must(vmmc_export_len(export, &mut len));
        assert_eq!(len, 64);
        must(vmmc_export_free(export));
        assert_eq!(vmmc_export_free(export), VMMC_BAD_HANDLE);
        assert_eq!(vmmc_export_len(export, &mut len), VMMC_BAD_HANDLE);
        must(vmmc_export_free(null_mut()));
    }
    // A new object in the same place of the table does not answer to the old handle.
    let another = self::export(session, 64, c"x", 0);
    assert_ne!(another, export);
    assert_eq!(vmmc_export_free(export), VMMC_BAD_HANDLE);
    must(vmmc_export_free(another));
    must(vmmc_session_free(session));
}

#[test]
fn arguments_without_sense_are_errors() {
    let session = attach("c-arguments");
    let (mut made, mut value) = (null_mut(), 0);
    let size = size_of::<vmmc_export_options>();
    let good = vmmc_export_options { size, name: null(), rights: 0, flags: 0, access: 0, user_count: 0, users: null() };
    // SAFETY: options, strings and places are ours, or NULL.
    unsafe {
        let with = |options: vmmc_export_options, made| vmmc_export_create(session, 64, &options, made);
        assert_eq!(with(vmmc_export_options { flags: 64, ..good }, &mut made), VMMC_INVALID);
        assert_eq!(with(vmmc_export_options { rights: 9, ..good }, &mut made), VMMC_INVALID);
        assert_eq!(with(vmmc_export_options { access: 9, ..good }, &mut made), VMMC_INVALID);
        assert_eq!(with(vmmc_export_options { size: 0, ..good }, &mut made), VMMC_INVALID);
        assert_eq!(with(vmmc_export_options { access: 2, user_count: 3, ..good }, &mut made), VMMC_INVALID);
        let not_utf8 = c"\xff\xfe".as_ptr();
        assert_eq!(with(vmmc_export_options { name: not_utf8, ..good }, &mut made), VMMC_INVALID);
        assert!(message().contains("`name` is not UTF-8"), "{}", message());
        // A program of an older release knows fewer fields: the others are the defaults.
        must(with(vmmc_export_options { size: 24, access: 99, ..good }, &mut made));
        assert_eq!(vmmc_export_wait_word(made, 0, 77, 0, 0, &mut value), VMMC_INVALID);
        assert_eq!(vmmc_export_wait_word(made, 4, 0, 0, 0, &mut value), VMMC_MISALIGNED);
        assert_eq!(vmmc_export_read(made, 60, (&raw mut value).cast(), 8), VMMC_OUT_OF_BOUNDS);
        assert_eq!(vmmc_export_read(made, 0, null_mut(), 8), VMMC_INVALID);
        must(vmmc_export_read(made, 0, null_mut(), 0));
        assert_eq!(vmmc_import_open(session, null(), null(), &mut null_mut()), VMMC_INVALID);
        assert_eq!(vmmc_import_open(session, c"nobody".as_ptr(), null(), &mut null_mut()), VMMC_UNKNOWN_NAME);
    }
    must(vmmc_export_free(made));
    must(vmmc_session_free(session));
}

#[test]
fn data_moves_in_all_ways() {
    let session = attach("c-moving");
    let memory = export(session, 8192, c"m", 0);
    let there = import(session, c"m", VMMC_READ | VMMC_WRITE | VMMC_ATOMIC);
    must(send(there, 8, b"abcdefgh"));
    let mut got = [0u8; 16];
    let mut old = 0u64;
    // SAFETY: memory, lists and places are ours.
    unsafe {
        must(vmmc_import_fetch(there, 8, got.as_mut_ptr().cast(), 8));
        assert_eq!(&got[..8], b"abcdefgh");
        must(vmmc_import_fetch_add(there, 0, 5, &mut old));
        must(vmmc_import_compare_swap(there, 0, 5, 9, &mut old));
        assert_eq!(old, 5);
        must(vmmc_import_swap(there, 0, 1, &mut old));
        assert_eq!(old, 9);
        must(send_from(there, 100, &[b"one".as_slice(), b"three"].map(|piece| source_of(VMMC_BYTES, piece))));
        let ranges = [vmmc_range { offset: 100, len: 3 }, vmmc_range { offset: 103, len: 5 }];
        must(vmmc_import_fetch_gather(there, ranges.as_ptr(), 2, got.as_mut_ptr().cast(), 8));
        assert_eq!(&got[..8], b"onethree");
        let (low, high) = got.split_at_mut(8);
        let places = [low, high].map(|place| target_of(VMMC_BYTES, &mut place[..4]));
        must(fetch_into(there, 100, &places));
        assert_eq!((&got[..4], &got[8..12]), (b"onet".as_slice(), b"hree".as_slice()));
        assert_eq!(fetch_into(there, 100, &[places[0], places[0]]), VMMC_INVALID);
        assert_eq!(send_from(there, 0, &[vmmc_source { kind: 9, ..source_of(0, b"x") }]), VMMC_INVALID);
        assert_eq!(fetch_into(there, 0, &[vmmc_target { kind: VMMC_LENT, ..places[0] }]), VMMC_INVALID);
        let piece = |offset, data: &[u8]| vmmc_piece { offset, data: data.as_ptr().cast(), len: data.len() };
        let pieces = [piece(300, b"x"), piece(200, b"yz")];
        must(vmmc_import_gather_send(there, pieces.as_ptr(), 2, null()));
        must(vmmc_import_fetch(there, 200, got.as_mut_ptr().cast(), 2));
        assert_eq!(&got[..2], b"yz");
        assert_eq!(vmmc_import_gather_send(there, [piece(8_192, b"x")].as_ptr(), 1, null()), VMMC_OUT_OF_BOUNDS);

        let long = vec![5u8; 1 << 20];
        let far = export(session, 1 << 20, c"far", VMMC_EXPORT_NOT_MAPPABLE);
        let way = import(session, c"far", 0);
        must(vmmc_session_set_pinned_max(session, 4096));
        must(send_from(way, 0, &[source_of(VMMC_PINNED, &long)]));
        let mut back = vec![0u8; 1 << 20];
        must(fetch_into(way, 0, &[target_of(VMMC_PINNED, &mut back)]));
        assert!(back == long);
        let (mut lent, mut table, mut sent, mut moved) = (null_mut(), null_mut(), null_mut(), 0);
        must(vmmc_import_post_send(way, 0, &source_of(VMMC_PINNED, &back), 1, null(), &mut sent));
        must(vmmc_transfer_wait(sent, 10 * SECOND_US, &mut moved));
        assert_eq!(moved, 1 << 20);
        must(vmmc_transfer_poll(sent, &mut moved));
        must(vmmc_transfer_free(sent));
        let page = long.as_ptr().align_offset(4096);
        must(vmmc_session_lend(session, long[page..].as_ptr().cast(), 8 * 4096, &mut lent));
        must(send_from(way, 5, &[part(VMMC_LENT, lent, 4096, 100)]));
        assert_ne!(send_from(way, 5, &[part(VMMC_LENT, lent, 8 * 4096, 1)]), VMMC_OK, "behind its end");
        must(vmmc_table_create(session, 16, &mut table));
        assert_eq!(vmmc_table_place(table, 9, lent), VMMC_INVALID, "it would end behind the table");
        let entries = |index, from, len| [vmmc_source { index, ..part(VMMC_INDEXED, table, from, len) }];
        match vmmc_table_place(table, 4, lent) {
            VMMC_OK => {
                must(send_from(way, 1000, &entries(5, 100, 2 * 4096)));
                assert_ne!(send_from(way, 0, &entries(11, 1, 4096)), VMMC_OK, "into an empty entry");
                must(vmmc_table_remove(table, 5, 1));
                assert_ne!(send_from(way, 0, &entries(5, 0, 1)), VMMC_OK, "taken out");
            }
            status => println!("SKIP a table: memory cannot be pinned here ({status:?})"),
        }
        must(vmmc_lent_free(lent));
        must(vmmc_table_free(table));
        assert_eq!(vmmc_table_remove(table, 0, 1), VMMC_BAD_HANDLE);
        must(fetch_into(way, 0, &[target_of(VMMC_PINNED, &mut back)]));
        assert!(back == long, "the same bytes as before, by every way");
        let mut stats = vmmc_stats::default();
        must(vmmc_session_stats(session, &mut stats, size_of::<vmmc_stats>()));
        assert!(
            stats.pin_transfers + stats.pin_copied >= 2,
            "pinned, or counted as copied where the kernel forbids it"
        );
        must(vmmc_session_forget(session, back.as_mut_ptr().cast(), back.len()));
        must(vmmc_import_free(way));
        must(vmmc_export_free(far));

        let (mut buffer, mut transfer, mut moved) = (null_mut(), null_mut(), 0);
        must(vmmc_buffer_create(session, 4096, &mut buffer));
        must(vmmc_buffer_write(buffer, 0, b"from a buffer".as_ptr().cast(), 13));
        must(send_from(there, 200, &[part(VMMC_BUFFER, buffer, 0, 13)]));
        let place = vmmc_target { kind: VMMC_BUFFER, memory: buffer.cast(), from: 1000, len: 13 };
        must(vmmc_import_post_fetch(there, 200, &place, 1, &mut transfer));
        must(vmmc_transfer_wait(transfer, 10 * SECOND_US, &mut moved));
        assert_eq!(moved, 13);
        must(vmmc_transfer_poll(transfer, &mut moved));
        must(vmmc_transfer_free(transfer));
        must(vmmc_buffer_read(buffer, 1000, got.as_mut_ptr().cast(), 13));
        assert_eq!(&got[..13], b"from a buffer");
        must(vmmc_buffer_free(buffer));

        let (mut binding, mut base, mut plain) = (null_mut(), null_mut::<c_void>(), null());
        must(vmmc_binding_create(there, false, &mut binding));
        must(vmmc_binding_pointer(binding, &mut base));
        must(vmmc_import_pointer(there, &mut plain));
        // The handles go, the binding keeps the memory.
        must(vmmc_import_free(there));
        AtomicU64::from_ptr(base.cast()).store(77, Ordering::Release);
        assert_eq!(AtomicU64::from_ptr(plain.cast_mut().cast()).load(Ordering::Acquire), 77);
        must(ready_word(memory, 77));
        let mut how = vmmc_revocation::VMMC_REVOKED_BY_GATE;
        must(vmmc_export_unexport(memory, false, &mut how));
        assert_eq!(how, vmmc_revocation::VMMC_REVOKED_BY_MOVE);
        assert_eq!(vmmc_export_store(memory, 0, 1), VMMC_BAD_HANDLE);
        AtomicU64::from_ptr(base.cast()).store(78, Ordering::Release);
        assert_eq!(vmmc_binding_flush(binding, VMMC_DEFAULT_TIMEOUT), VMMC_REVOKED);
        must(vmmc_binding_free(binding));
    }
    must(vmmc_export_free(memory));
    must(vmmc_session_free(session));
}

#[test]
fn records_of_many_go_to_one_ring() {
    let session = attach("c-ring");
    let size = size_of::<vmmc_export_options>();
    let name = c"inbox".as_ptr();
    let options = vmmc_export_options { size, name, rights: 0, flags: 0, access: 0, user_count: 0, users: null() };
    // SAFETY: numbers only.
    let mut record: vmmc_record = unsafe { std::mem::zeroed() };
    let (mut ring, mut id, mut imported, mut sent, mut moved) = (null_mut(), 0, 0, null_mut(), 0);
    // SAFETY: options and places are ours.
    unsafe {
        must(vmmc_ring_create(session, 8_192, &options, &mut ring));
        must(vmmc_ring_id(ring, &mut id));
        let there = import(session, c"inbox", VMMC_WRITE);
        must(vmmc_import_export_id(there, &mut imported));
        assert_eq!(imported, id);
        assert_eq!(vmmc_ring_take(ring, &mut record), VMMC_AGAIN);
        assert_eq!(vmmc_ring_wait(ring, 1000, &mut record), VMMC_TIMED_OUT);
        let flags = VMMC_APPEND_AT_ONCE;
        let append = vmmc_append_options { size: size_of::<vmmc_append_options>(), flags, word: 7, timeout_us: 0 };
        must(vmmc_import_append(there, b"please".as_ptr().cast(), 6, &append));
        must(vmmc_import_post_append(there, null(), 0, null(), &mut sent));
        must(vmmc_transfer_wait(sent, SECOND_US, &mut moved));
        must(vmmc_transfer_free(sent));
        must(vmmc_ring_wait(ring, SECOND_US, &mut record));
        assert_eq!((record.word, &record.data[..record.len as usize]), (7, &b"please"[..]));
        let (mut own, mut process) = (0, 0);
        must(vmmc_import_id(there, &mut own));
        must(vmmc_session_process(session, &mut process));
        assert_eq!((record.sender_session, record.sender_process, record.sender_import), (0, process, own));
        must(vmmc_ring_take(ring, &mut record));
        assert_eq!((record.word, record.len), (0, 0));
        let long = [1u8; VMMC_RECORD_BYTES_MAX + 1];
        assert_ne!(vmmc_import_append(there, long.as_ptr().cast(), long.len(), null()), VMMC_OK);
        let full = (0..100).map(|_| vmmc_import_append(there, long.as_ptr().cast(), 500, &append));
        assert_eq!(full.into_iter().find(|status| *status != VMMC_OK), Some(VMMC_FULL), "{}", message());
        assert_eq!(send(there, 0, b"x"), VMMC_NOT_ALLOWED, "{}", message());
        must(vmmc_import_free(there));
        let wrong = vmmc_export_options { flags: VMMC_EXPORT_REDIRECTABLE, ..options };
        let mut other = null_mut();
        assert_eq!(vmmc_ring_create(session, 8_192, &wrong, &mut other), VMMC_INVALID);
        assert_ne!(vmmc_ring_create(session, 5, null(), &mut other), VMMC_OK);
    }
    must(vmmc_ring_free(ring));
    must(vmmc_session_free(session));
}

#[test]
fn callers_memory_is_exported_in_place_and_usable_after() {
    let session = attach("c-own-memory");
    // Leaked, so that nothing else comes to lie on its pages; and so large that the allocator maps
    // it anew: what it hands out again may have pages that another test pinned.
    let bytes: &'static mut [u8] = vec![0u8; 64 << 20].leak();
    let base = bytes.as_mut_ptr();
    let (mut made, mut id) = (null_mut(), 0);
    // SAFETY: the range is leaked memory of this test alone.
    unsafe {
        must(vmmc_export_memory(session, base.cast(), 1 << 20, null(), &mut made));
        must(vmmc_export_id(made, &mut id));
        let mut there = null_mut();
        let own_order = vmmc_import_options {
            size: size_of::<vmmc_import_options>(),
            flags: VMMC_IMPORT_OWN_ORDER,
            ..std::mem::zeroed()
        };
        must(vmmc_import_open_id(session, id, &own_order, &mut there));
        let both = vmmc_import_options { flags: VMMC_IMPORT_OWNER | VMMC_IMPORT_ANY_OWNER, ..own_order };
        assert_eq!(vmmc_import_open_id(session, id, &both, &mut null_mut()), VMMC_INVALID);
        must(send(there, 5000, b"in place"));
        must(vmmc_import_flush(there, VMMC_DEFAULT_TIMEOUT));
        assert_eq!(std::slice::from_raw_parts(base.add(5000), 8), b"in place");
        must(vmmc_export_free(made));
        assert_eq!(send(there, 0, b"late"), VMMC_REVOKED);
        must(vmmc_import_free(there));
        base.write(9);
        assert_eq!(std::slice::from_raw_parts(base.add(5000), 8), b"in place");
    }
    must(vmmc_session_free(session));
}

#[test]
fn waits_end_at_their_deadlines() {
    let session = attach("c-deadlines");
    let memory = export(session, 64, c"d", VMMC_EXPORT_NOTIFY);
    // SAFETY: numbers only.
    let mut notification: vmmc_notification = unsafe { std::mem::zeroed() };
    let mut word = 0;
    // SAFETY: the places are ours.
    unsafe {
        assert_eq!(vmmc_export_wait_notification(memory, 1000, &mut notification), VMMC_TIMED_OUT);
        assert_eq!(vmmc_session_wait_notification(session, 0, &mut notification), VMMC_TIMED_OUT);
        assert_eq!(vmmc_session_take_notification(session, &mut notification), VMMC_AGAIN);
        assert_eq!(vmmc_export_wait_word(memory, 0, 0, 1, 1000, &mut word), VMMC_TIMED_OUT);
        must(vmmc_thread_timeout(1000));
        assert_eq!(vmmc_export_wait_word(memory, 0, 0, 1, VMMC_DEFAULT_TIMEOUT, &mut word), VMMC_TIMED_OUT);
        must(vmmc_thread_timeout(VMMC_DEFAULT_TIMEOUT));
    }
    must(vmmc_export_free(memory));
    must(vmmc_session_free(session));
}

#[test]
fn an_object_freed_during_a_wait_goes_when_the_wait_ends() {
    let session = attach("c-free-in-use") as usize;
    let memory = export(session as *mut _, 64, c"f", 0) as usize;
    let there = import(session as *mut _, c"f", 0);
    let waiter = std::thread::spawn(move || ready_word(memory as *mut _, 1));
    // While the other thread waits the export cannot be ended; whether it waits already, only this
    // tells.
    let mut how = vmmc_revocation::VMMC_REVOKED_BY_GATE;
    must(send(there, 8, b"x"));
    // SAFETY: the place is ours.
    let ended = unsafe { vmmc_export_unexport(memory as *mut _, false, &mut how) };
    if ended == VMMC_BUSY {
        must(vmmc_export_free(memory as *mut _));
        must(send(there, 0, &1u64.to_le_bytes()));
        must(waiter.join().unwrap());
    } else {
        must(ended);
        assert_eq!(waiter.join().unwrap(), VMMC_BAD_HANDLE);
    }
    must(vmmc_import_free(there));
    must(vmmc_session_free(session as *mut _));
}

unsafe extern "C" fn count(notification: *const vmmc_notification, user: *mut c_void) {
    // SAFETY: the library gives a notification, and `user` is the counter of the test.
    unsafe { AtomicU64::from_ptr(user.cast()).fetch_add((*notification).last_word, Ordering::SeqCst) };
}

#[test]
fn handlers_explanations_and_counters_tell() {
    let session = attach("c-telling");
    let memory = export(session, 4096, c"t", VMMC_EXPORT_NOTIFY);
    let there = import(session, c"t", 0);
    let counter = AtomicU64::new(0);
    let (mut handler, mut text): (_, *mut c_char) = (null_mut(), null_mut());
    let size = size_of::<vmmc_send_options>();
    let flags = VMMC_SEND_NOTIFY | VMMC_SEND_COUNTER;
    let options = vmmc_send_options { size, flags, counter: 8, timeout_us: 0, word: 77 };
    // SAFETY: the counter outlives the handler; all else is ours.
    unsafe {
        must(vmmc_export_on_notification(memory, Some(count), counter.as_ptr().cast(), &mut handler));
        assert_eq!(vmmc_export_on_notification(memory, None, null_mut(), &mut null_mut()), VMMC_INVALID);
        for _ in 0..3 {
            let word = 2u64.to_le_bytes();
            must(vmmc_import_send_with(there, 16, &source_of(VMMC_BYTES, &word), 1, &options));
        }
        let mut word = 0;
        must(vmmc_export_wait_word(memory, 8, 2, 3, 10 * SECOND_US, &mut word));
        let start = std::time::Instant::now();
        while counter.load(Ordering::SeqCst) != 6 {
            assert!(start.elapsed().as_secs() < 20, "notifications are missing");
            std::thread::yield_now();
        }
        must(vmmc_handler_free(handler));
        must(vmmc_import_send_with(there, 16, null_mut(), 0, &options));
        let mut told: vmmc_notification = std::mem::zeroed();
        must(vmmc_export_wait_notification(memory, 10 * SECOND_US, &mut told));
        let (mut process, mut import) = (0, 0);
        must(vmmc_session_process(session, &mut process));
        must(vmmc_import_id(there, &mut import));
        assert_eq!((told.word, told.sender_process, told.sender_import), (77, process, import));
        must(vmmc_session_node_of(session, told.sender_session, VMMC_DEFAULT_TIMEOUT, &mut text));
        assert_eq!(CStr::from_ptr(text).to_str(), Ok("c-telling"));
        must(vmmc_string_free(text));
        must(vmmc_session_node_of(session, 12_345, VMMC_DEFAULT_TIMEOUT, &mut text));
        assert!(text.is_null(), "there is no such session");
        must(vmmc_import_explain(there, true, &mut text));
        assert!(CStr::from_ptr(text).to_str().unwrap().contains("\"path\":\"mapped\""));
        must(vmmc_string_free(text));
        must(vmmc_session_node_info(session, true, VMMC_DEFAULT_TIMEOUT, &mut text));
        let info = CStr::from_ptr(text).to_str().unwrap();
        assert!(info.contains("c-telling"), "{info}");
        must(vmmc_string_free(text));
        let mut stats = vmmc_stats { calls: 7, ..vmmc_stats::default() };
        // A program that knows one field gets one field.
        must(vmmc_session_stats(session, &mut stats, 8));
        assert_eq!((stats.sends_mapped, stats.send_bytes_mapped, stats.calls), (4, 0, 7));
    }
    must(vmmc_import_check(there));
    must(vmmc_session_leave(session));
    assert_eq!(vmmc_import_check(there), VMMC_NODE_GONE);
    must(vmmc_import_free(there));
    must(vmmc_export_free(memory));
    must(vmmc_session_free(session));
}

#[test]
fn what_went_through_an_import_is_told_and_a_missing_right_is_advised_in_words() {
    let session = attach("c-moved");
    let export = export(session, 4096, c"moved", 0);
    let narrow = import(session, c"moved", 0);
    must(send(narrow, 0, b"12345678"));
    let mut moved = vmmc_moved::default();
    let mut old = 0;
    // SAFETY: the places are ours.
    unsafe {
        must(vmmc_import_moved(narrow, &mut moved));
        assert_eq!((moved.sends, moved.send_bytes, moved.fetches, moved.atomics), (1, 8, 0, 0));
        assert_eq!(vmmc_import_moved(narrow, null_mut()), VMMC_INVALID);
        assert_eq!(vmmc_import_fetch_add(narrow, 0, 1, &mut old), VMMC_NO_RIGHT);
    }
    let said = message();
    assert!(said.contains("import it with the rights read, write and atomic"), "{said}");
    must(vmmc_import_free(narrow));
    must(vmmc_export_free(export));
    must(vmmc_session_free(session));
}

#[test]
fn many_receive_buffers_are_posted_ahead() {
    let session = attach("c-row");
    let inbox = export(session, 4096, c"row", VMMC_EXPORT_REDIRECTABLE);
    let (mut place, mut there) = (null_mut(), null_mut());
    let mut posted = [null_mut(); 64];
    // SAFETY: handles, lists and places are ours.
    unsafe {
        must(vmmc_buffer_create(session, 4096, &mut place));
        for (number, redirection) in posted.iter_mut().enumerate() {
            let at = 64 * number as u64;
            must(vmmc_export_post_redirect(inbox, at, 64, place, at, redirection));
        }
        let (mut twice, mut count) = (null_mut(), 0);
        must(vmmc_export_post_redirect(inbox, 10, 10, place, 0, &mut twice));
        assert_eq!(vmmc_redirection_wait(twice, SECOND_US, null_mut(), 0, &mut count), VMMC_BUSY, "{}", message());
        must(vmmc_redirection_free(twice));
        must(vmmc_import_open(session, c"row".as_ptr(), null(), &mut there));
        must(vmmc_import_send(there, 0, [7u8; 4096].as_ptr().cast(), 4096));
        for (number, redirection) in posted.into_iter().enumerate() {
            let mut part = vmmc_part { offset: 0, len: 0, state: vmmc_part_state::VMMC_PART_PENDING };
            must(vmmc_redirection_wait(redirection, SECOND_US, &mut part, 1, &mut count));
            let state = vmmc_part_state::VMMC_PART_REDIRECTED;
            assert_eq!((count, part), (1, vmmc_part { offset: 64 * number as u64, len: 64, state }));
            must(vmmc_redirection_free(redirection));
        }
        must(vmmc_import_free(there));
        must(vmmc_export_free(inbox));
        must(vmmc_buffer_free(place));
        must(vmmc_session_free(session));
    }
}

#[test]
fn the_first_of_several_things_ends_a_wait() {
    let session = attach("c-any");
    let memory = export(session, 4096, c"a", VMMC_EXPORT_NOTIFY | VMMC_EXPORT_REDIRECTABLE);
    let there = import(session, c"a", 0);
    let size = size_of::<vmmc_export_options>();
    let name = c"inbox".as_ptr();
    let options = vmmc_export_options { size, name, rights: 0, flags: 0, access: 0, user_count: 0, users: null() };
    let (mut ring, mut buffer, mut redirection) = (null_mut(), null_mut(), null_mut());
    let (mine, other) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: options and places are ours.
    unsafe {
        must(vmmc_ring_create(session, 8_192, &options, &mut ring));
        must(vmmc_buffer_create(session, 64, &mut buffer));
        must(vmmc_export_redirect(memory, 1024, 64, buffer, 0, &mut redirection));
    }
    let inbox = import(session, c"inbox", VMMC_WRITE);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&mine);
    let condition = vmmc_condition::VMMC_AT_LEAST as u32;
    let what = [
        vmmc_wait_for { fd, ..wait_for(VMMC_WAIT_READABLE) },
        vmmc_wait_for { redirection, ..wait_for(VMMC_WAIT_REDIRECTION) },
        vmmc_wait_for { ring, ..wait_for(VMMC_WAIT_RECORD) },
        vmmc_wait_for { export_: memory, offset: 8, operand: 5, condition, ..wait_for(VMMC_WAIT_WORD) },
        vmmc_wait_for { export_: memory, ..wait_for(VMMC_WAIT_NOTIFICATION) },
        wait_for(VMMC_WAIT_NOTIFICATION),
    ];
    assert_eq!(wait_any(session, &what, 1000), Err(VMMC_TIMED_OUT));
    assert!(message().contains("wait for any of 6 things"), "{}", message());
    assert_eq!(wait_any(session, &[], 0), Err(VMMC_TIMED_OUT));
    let size = size_of::<vmmc_send_options>();
    let options = vmmc_send_options { size, flags: VMMC_SEND_NOTIFY, counter: 0, timeout_us: 0, word: 0 };
    let mut sent = null_mut();
    // SAFETY: sources, options and places are ours.
    unsafe {
        must(vmmc_import_send_with(there, 0, &source_of(VMMC_BYTES, b"x"), 1, &options));
        assert_eq!(wait_any(session, &what, SECOND_US), Ok(4));
        assert_eq!(wait_any(session, &what[5..], 0), Ok(0), "nothing was taken");
        must(vmmc_export_store(memory, 8, 6));
        assert_eq!(wait_any(session, &what, SECOND_US), Ok(3));
        must(vmmc_import_append(inbox, b"please".as_ptr().cast(), 6, null()));
        assert_eq!(wait_any(session, &what, SECOND_US), Ok(2));
        assert_eq!(send(there, 1024, &[1; 64]), VMMC_OK);
        assert_eq!(wait_any(session, &what, SECOND_US), Ok(1));
        std::io::Write::write_all(&mut &other, b"hello").unwrap();
        assert_eq!(wait_any(session, &what, SECOND_US), Ok(0));
        assert_eq!(wait_any(session, &[vmmc_wait_for { fd, ..wait_for(VMMC_WAIT_WRITABLE) }], SECOND_US), Ok(0));
        must(vmmc_import_post_send(there, 16, &source_of(VMMC_BYTES, b"y"), 1, null(), &mut sent));
        let transfer = vmmc_wait_for { transfer: sent, ..wait_for(VMMC_WAIT_TRANSFER) };
        assert_eq!(wait_any(session, &[transfer], SECOND_US), Ok(0));
        let mut moved = 0;
        must(vmmc_transfer_poll(sent, &mut moved));
        assert_eq!(moved, 1);
        assert_eq!(wait_any(session, &[what[2], transfer, transfer], 0), Err(VMMC_INVALID));
        assert!(message().contains("place 2 stands in the list twice"), "{}", message());
        must(vmmc_transfer_free(sent));
        assert_eq!(wait_any(session, &[transfer], 0), Err(VMMC_BAD_HANDLE));
    }
    must(vmmc_redirection_free(redirection));
    must(vmmc_buffer_free(buffer));
    must(vmmc_ring_free(ring));
    must(vmmc_export_free(memory));
    must(vmmc_session_free(session));
}

#[test]
fn a_wait_for_what_cannot_come_is_an_error() {
    let (session, stranger) = (attach("c-any-wrong"), attach("c-any-stranger"));
    let (quiet, foreign) = (export(session, 64, c"q", 0), export(stranger, 64, c"f", VMMC_EXPORT_NOTIFY));
    let of = |export_: *mut vmmc_export, kind| vmmc_wait_for { export_, ..wait_for(kind) };
    for (what, status, said) in [
        (wait_for(0), VMMC_INVALID, "use a VMMC_WAIT constant"),
        (wait_for(99), VMMC_INVALID, "is 99"),
        (wait_for(VMMC_WAIT_READABLE), VMMC_INVALID, "`fd` is -1"),
        (wait_for(VMMC_WAIT_WRITABLE), VMMC_INVALID, "give one that is open"),
        (wait_for(VMMC_WAIT_WORD), VMMC_BAD_HANDLE, "export handle is NULL"),
        (wait_for(VMMC_WAIT_RECORD), VMMC_BAD_HANDLE, "ring handle is NULL"),
        (wait_for(VMMC_WAIT_TRANSFER), VMMC_BAD_HANDLE, "transfer handle is NULL"),
        (wait_for(VMMC_WAIT_REDIRECTION), VMMC_BAD_HANDLE, "redirection handle is NULL"),
        (of(quiet, VMMC_WAIT_NOTIFICATION), VMMC_NOT_ALLOWED, "notifications"),
        (of(foreign, VMMC_WAIT_NOTIFICATION), VMMC_FOREIGN, "place 0"),
        (vmmc_wait_for { condition: 9, ..of(quiet, VMMC_WAIT_WORD) }, VMMC_INVALID, "no vmmc_condition"),
        (vmmc_wait_for { offset: 4, ..of(quiet, VMMC_WAIT_WORD) }, VMMC_MISALIGNED, ""),
        (vmmc_wait_for { offset: 64, ..of(quiet, VMMC_WAIT_WORD) }, VMMC_OUT_OF_BOUNDS, ""),
    ] {
        assert_eq!(wait_any(session, &[what], 0), Err(status), "{}", message());
        assert!(message().contains(said), "{}", message());
    }
    let many = vec![wait_for(VMMC_WAIT_NOTIFICATION); VMMC_WAIT_MAX + 1];
    assert_eq!(wait_any(session, &many[1..], 0), Err(VMMC_TIMED_OUT));
    assert_eq!(wait_any(session, &many, 0), Err(VMMC_INVALID));
    assert!(message().contains("at most 1024"), "{}", message());
    assert_eq!(wait_any(null_mut(), &many[1..], 0), Err(VMMC_BAD_HANDLE));
    // What a wait uses stays in use until it ends.
    let size = size_of::<vmmc_export_options>();
    let name = c"r".as_ptr();
    let options = vmmc_export_options { size, name, rights: 0, flags: 0, access: 0, user_count: 0, users: null() };
    let mut ring = null_mut();
    // SAFETY: options and place are ours.
    must(unsafe { vmmc_ring_create(session, 8_192, &options, &mut ring) });
    let there = import(session, c"r", VMMC_WRITE);
    let (session_number, ring_number, quiet_number) = (session as usize, ring as usize, quiet as usize);
    let waits = std::thread::spawn(move || {
        let word = vmmc_wait_for { operand: 1, ..wait_for(VMMC_WAIT_WORD) };
        let word = vmmc_wait_for { export_: quiet_number as *const _, ..word };
        let record = vmmc_wait_for { ring: ring_number as *const _, ..wait_for(VMMC_WAIT_RECORD) };
        // The looks of the other thread may be in its way.
        loop {
            match wait_any(session_number as *mut _, &[word, record], 10 * SECOND_US) {
                Err(VMMC_BUSY) => std::thread::yield_now(),
                ended => return ended,
            }
        }
    });
    // SAFETY: numbers only.
    let mut record: vmmc_record = unsafe { std::mem::zeroed() };
    // SAFETY: the places are ours.
    unsafe {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while vmmc_ring_take(ring, &mut record) != VMMC_BUSY {
            assert!(std::time::Instant::now() < deadline, "the wait never began");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let busy = [vmmc_wait_for { ring, ..wait_for(VMMC_WAIT_RECORD) }];
        assert_eq!(wait_any(session, &busy, 0), Err(VMMC_BUSY));
        let mut revocation = vmmc_revocation::VMMC_REVOKED_BY_GATE;
        assert_eq!(vmmc_export_unexport(quiet, false, &mut revocation), VMMC_BUSY);
        must(vmmc_import_append(there, null(), 0, null()));
    }
    assert_eq!(waits.join().unwrap(), Ok(1));
    for memory in [quiet, foreign] {
        must(vmmc_export_free(memory));
    }
    must(vmmc_ring_free(ring));
    must(vmmc_session_free(stranger));
    must(vmmc_session_free(session));
}
