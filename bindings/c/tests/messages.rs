//! Endpoints, their messages and payloads as C makes them, over an embedded node: misuse is an
//! error and nothing worse, and what the examples do not show works.

mod common;

use common::*;
use std::ffi::CStr;
use std::ptr::{null, null_mut};
use vmmc_c::vmmc_status::*;
use vmmc_c::*;

/// The owner polls while a sender connects.
fn connect(session: *mut vmmc_session, endpoint: *mut vmmc_endpoint, name: &CStr) -> *mut vmmc_connection {
    let number = session as usize;
    let name = name.to_owned();
    let opening = std::thread::spawn(move || {
        let mut connection = null_mut();
        // SAFETY: the string and the place are ours.
        must(unsafe { vmmc_connection_open(number as *const _, name.as_ptr(), null(), &mut connection) });
        connection as usize
    });
    // SAFETY: numbers only.
    let mut message: vmmc_message = unsafe { std::mem::zeroed() };
    while !opening.is_finished() {
        // SAFETY: the place is ours.
        assert_eq!(unsafe { vmmc_endpoint_poll(endpoint, &mut message) }, VMMC_AGAIN, "{}", crate::common::message());
    }
    opening.join().unwrap() as *mut vmmc_connection
}

#[test]
fn messages_with_payloads_go_to_one_endpoint() {
    let session = attach("c-endpoint");
    let size = size_of::<vmmc_export_options>();
    let (name, flags) = (c"orders".as_ptr(), VMMC_EXPORT_NOTIFY);
    let options = vmmc_export_options { size, name, rights: 0, flags, access: 0, user_count: 0, users: null() };
    // SAFETY: numbers only.
    let (mut message, mut counts): (vmmc_message, vmmc_endpoint_counts) = unsafe { std::mem::zeroed() };
    let (mut endpoint, mut other, mut fd, mut max) = (null_mut(), null_mut(), -1, 0);
    // SAFETY: options, memory and places are ours.
    unsafe {
        must(vmmc_endpoint_create(session, 2, 4096, &options, &mut endpoint));
        must(vmmc_endpoint_event_fd(endpoint, &mut fd));
        assert!(fd >= 0);
        assert_eq!(vmmc_endpoint_wait(endpoint, 1000, &mut message), VMMC_TIMED_OUT);
        let orders = connect(session, endpoint, c"orders");
        must(vmmc_connection_payload_max(orders, &mut max));
        assert_eq!(max, 8192);
        let send = |control: &[u8], payload: &[u8], timeout_us| {
            let (control_len, payload_len) = (control.len(), payload.len());
            vmmc_connection_send(
                orders,
                control.as_ptr().cast(),
                control_len,
                payload.as_ptr().cast(),
                payload_len,
                timeout_us,
            )
        };
        must(send(b"two, please", b"a long letter", SECOND_US));
        must(vmmc_connection_flush(orders, SECOND_US));
        let mut outstanding = 0;
        must(vmmc_connection_outstanding(orders, SECOND_US, &mut outstanding));
        assert_eq!(outstanding, 1);
        let what = [vmmc_wait_for { endpoint, ..wait_for(VMMC_WAIT_MESSAGE) }];
        assert_eq!(wait_any(session, &what, SECOND_US), Ok(0));
        must(vmmc_endpoint_poll(endpoint, &mut message));
        assert_eq!(&message.control[..message.control_len as usize], b"two, please");
        let mut process = 0;
        must(vmmc_session_process(session, &mut process));
        assert_eq!((message.sender_session, message.sender_process, message.payload_len), (0, process, 13));
        let first = message.payload;
        let mut letter = [0u8; 13];
        must(vmmc_frame_read(first, 0, letter.as_mut_ptr().cast(), 13));
        assert_eq!(&letter, b"a long letter");
        assert_eq!(vmmc_frame_read(first, 1, letter.as_mut_ptr().cast(), 13), VMMC_OUT_OF_BOUNDS);
        // Frames are ours until they are freed; messages without payload go on.
        must(send(b"again", b"more", 0));
        must(vmmc_endpoint_wait(endpoint, SECOND_US, &mut message));
        let second = message.payload;
        assert_eq!(send(b"again", b"more", 0), VMMC_FULL);
        must(send(b"", b"", VMMC_DEFAULT_TIMEOUT));
        must(vmmc_endpoint_wait(endpoint, SECOND_US, &mut message));
        assert_eq!((message.control_len, message.payload.is_null()), (0, true));
        must(vmmc_frame_free(first));
        must(send(b"again", b"more", 0));
        assert_eq!(send(&[0; VMMC_CONTROL_MESSAGE_BYTES_MAX + 1], b"", 0), VMMC_INVALID);
        assert_eq!(send(b"", &[0; 8193], 0), VMMC_INVALID);
        // One that is longer than a frame takes both, in one piece.
        let (long, mut came) = ([7u8; 4097], [0u8; 4097]);
        assert_eq!(send(b"", &long, 0), VMMC_FULL, "one of them is ours");
        must(vmmc_endpoint_wait(endpoint, SECOND_US, &mut message));
        must(vmmc_frame_free(message.payload));
        must(vmmc_frame_free(second));
        must(send(b"", &long, SECOND_US));
        must(vmmc_endpoint_wait(endpoint, SECOND_US, &mut message));
        assert_eq!(message.payload_len, 4097);
        must(vmmc_frame_read(message.payload, 0, came.as_mut_ptr().cast(), 4097));
        assert_eq!(came, long);
        assert_eq!(send(b"again", b"more", 0), VMMC_FULL);
        must(vmmc_frame_free(message.payload));
        must(send(b"again", b"more", 0));
        must(vmmc_endpoint_wait(endpoint, SECOND_US, &mut message));
        let second = message.payload;
        must(vmmc_endpoint_get_counts(endpoint, &mut counts));
        assert_eq!((counts.messages, counts.accepted, counts.senders, counts.misbehaved), (6, 1, 1, 0));

        let wrong = vmmc_export_options { flags: VMMC_EXPORT_REDIRECTABLE, ..options };
        assert_eq!(vmmc_endpoint_create(session, 2, 4096, &wrong, &mut other), VMMC_INVALID);
        assert_eq!(vmmc_endpoint_create(session, 2, 4096, null(), &mut other), VMMC_INVALID, "it has no name");
        assert_eq!(vmmc_endpoint_create(session, 65, 4096, &options, &mut other), VMMC_INVALID);
        assert_eq!(vmmc_endpoint_create(session, 2, 4096, &options, &mut other), VMMC_NAME_TAKEN);
        let mut nobody = null_mut();
        assert_eq!(vmmc_connection_open(session, c"nobody".as_ptr(), null(), &mut nobody), VMMC_UNKNOWN_NAME);
        must(vmmc_endpoint_free(endpoint));
        assert_eq!(send(b"late", b"", 0), VMMC_REVOKED, "{}", crate::common::message());
        must(vmmc_connection_free(orders));
        // Through the node.
        let unmapped = vmmc_export_options { flags: VMMC_EXPORT_NOT_MAPPABLE, ..options };
        must(vmmc_endpoint_create(session, 2, 4096, &unmapped, &mut endpoint));
        let orders = connect(session, endpoint, c"orders");
        let parts = [&long[..96], &long[96..]];
        let parts = parts.map(|part| vmmc_source {
            kind: VMMC_BYTES,
            index: 0,
            memory: part.as_ptr().cast(),
            from: 0,
            len: part.len() as u64,
        });
        must(vmmc_connection_send_from(orders, null(), 0, parts.as_ptr(), 2, SECOND_US));
        must(vmmc_endpoint_wait(endpoint, SECOND_US, &mut message));
        must(vmmc_frame_read(message.payload, 0, came.as_mut_ptr().cast(), came.len()));
        assert_eq!(came, long);
        must(vmmc_frame_free(message.payload));
        must(vmmc_connection_free(orders));
        must(vmmc_endpoint_free(endpoint));
        // A payload outlives its endpoint.
        must(vmmc_frame_read(second, 0, letter.as_mut_ptr().cast(), 4));
        assert_eq!(&letter[..4], b"more");
        must(vmmc_frame_free(second));
    }
    must(vmmc_session_free(session));
}

/// A buffer of an endpoint, and its token.
fn arm(endpoint: *mut vmmc_endpoint) -> (*mut vmmc_token_buffer, vmmc_token) {
    let (mut buffer, mut token) = (null_mut(), vmmc_token { bytes: [0; VMMC_TOKEN_BYTES] });
    // SAFETY: the places are ours.
    unsafe {
        must(vmmc_endpoint_token_buffer(endpoint, &mut buffer));
        must(vmmc_token_buffer_token(buffer, &mut token));
    }
    (buffer, token)
}

#[test]
fn payloads_by_token_land_in_their_buffers_or_say_why_not() {
    let session = attach("c-tokens");
    let (size, name) = (size_of::<vmmc_export_options>(), c"answers".as_ptr());
    let options = vmmc_export_options { size, name, rights: 0, flags: 0, access: 0, user_count: 0, users: null() };
    // SAFETY: numbers only.
    let mut message: vmmc_message = unsafe { std::mem::zeroed() };
    let (mut endpoint, mut len, mut is_cancelled, mut pointer, mut spare) = (null_mut(), 7, false, null(), null_mut());
    // SAFETY: options, memory and places are ours.
    unsafe {
        assert_eq!(vmmc_endpoint_create_with_tokens(session, 0, 0, 0, 64, &options, &mut endpoint), VMMC_INVALID);
        must(vmmc_endpoint_create_with_tokens(session, 0, 0, 2, 4096, &options, &mut endpoint));
        let answers = connect(session, endpoint, c"answers");
        must(vmmc_connection_check(answers));
        let send = |token: &vmmc_token, payload: &[u8]| {
            let (data, len) = (payload.as_ptr().cast(), payload.len());
            vmmc_connection_send_by_token(answers, c"here".as_ptr().cast(), 4, token, data, len, SECOND_US)
        };
        let mut sent = |token: &vmmc_token, payload: &[u8]| {
            must(send(token, payload));
            must(vmmc_endpoint_wait(endpoint, SECOND_US, &mut message));
            assert_eq!((&message.control[..message.control_len as usize], message.payload), (&b"here"[..], null_mut()));
            (message.by_token, message.token == *token, message.payload_len)
        };
        let (first, token) = arm(endpoint);
        must(vmmc_token_buffer_len(first, &mut len));
        assert_eq!((len, vmmc_token_buffer_poll(first, &mut len)), (4096, VMMC_AGAIN));
        assert_eq!(vmmc_token_buffer_wait(first, 1_000, &mut len), VMMC_TIMED_OUT);
        assert_eq!(sent(&token, &[1; 4097]), (VMMC_BY_TOKEN_TOO_LONG, true, 4097));
        assert_eq!(sent(&token, b"a long answer"), (VMMC_BY_TOKEN_ARRIVED, true, 13));
        must(vmmc_token_buffer_poll(first, &mut len));
        let mut letter = [0u8; 13];
        must(vmmc_token_buffer_read(first, 0, letter.as_mut_ptr().cast(), 13));
        must(vmmc_token_buffer_pointer(first, &mut pointer));
        assert_eq!((len, &letter, *pointer.cast::<u8>()), (13, b"a long answer", b'a'));
        assert_eq!(vmmc_token_buffer_read(first, 4090, letter.as_mut_ptr().cast(), 13), VMMC_OUT_OF_BOUNDS);
        assert_eq!(sent(&token, b"another one"), (VMMC_BY_TOKEN_USED, true, 0));
        must(vmmc_token_buffer_cancel(first, &mut is_cancelled));
        assert!(!is_cancelled, "something has come");
        let (second, token) = arm(endpoint);
        assert_eq!(vmmc_endpoint_token_buffer(endpoint, &mut spare), VMMC_FULL);
        must(vmmc_token_buffer_cancel(second, &mut is_cancelled));
        assert!(is_cancelled);
        assert_eq!(sent(&token, b"late"), (VMMC_BY_TOKEN_CANCELLED, true, 0));
        assert_eq!(sent(&vmmc_token { bytes: [9; VMMC_TOKEN_BYTES] }, b"x"), (VMMC_BY_TOKEN_WRONG, true, 0));
        assert_eq!(vmmc_connection_send_by_token(answers, null(), 0, null(), null(), 0, 0), VMMC_INVALID);
        must(vmmc_token_buffer_free(first));
        // From registered memory and other bytes.
        let (first, token) = arm(endpoint);
        let mut memory = null_mut();
        must(vmmc_buffer_create(session, 4096, &mut memory));
        must(vmmc_buffer_write(memory, 4000, b"page".as_ptr().cast(), 4));
        let registered = |from, len| vmmc_source { kind: VMMC_BUFFER, index: 0, memory: memory.cast(), from, len };
        let plain = vmmc_source { kind: VMMC_BYTES, index: 0, memory: b" here".as_ptr().cast(), from: 0, len: 5 };
        let from = |sources: &[vmmc_source]| {
            vmmc_connection_send_by_token_from(answers, null(), 0, &token, sources.as_ptr(), sources.len(), SECOND_US)
        };
        assert_eq!(from(&[plain, registered(4000, 97)]), VMMC_OUT_OF_BOUNDS, "{}", crate::common::message());
        must(from(&[registered(4000, 4), plain]));
        must(vmmc_buffer_write(memory, 4000, b"gone".as_ptr().cast(), 4));
        must(vmmc_token_buffer_wait(first, SECOND_US, &mut len));
        let mut page = [0u8; 9];
        must(vmmc_token_buffer_read(first, 0, page.as_mut_ptr().cast(), 9));
        assert_eq!((len, &page), (9, b"page here"));
        must(vmmc_endpoint_wait(endpoint, SECOND_US, &mut message));
        assert_eq!((message.by_token, message.payload_len), (VMMC_BY_TOKEN_ARRIVED, 9));
        must(vmmc_buffer_free(memory));
        must(vmmc_token_buffer_free(first));
        must(vmmc_token_buffer_free(second));
        assert_eq!(vmmc_token_buffer_free(second), VMMC_BAD_HANDLE);
        // A buffer can be had also while another thread waits for messages.
        let waiting = endpoint as usize;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: numbers only, and the place is ours.
                let mut message: vmmc_message = std::mem::zeroed();
                must(vmmc_endpoint_wait(waiting as *mut _, 10 * SECOND_US, &mut message));
                assert_eq!(message.by_token, VMMC_BY_TOKEN_ARRIVED);
            });
            let (third, token) = arm(endpoint);
            must(send(&token, b"meanwhile"));
            must(vmmc_token_buffer_wait(third, 10 * SECOND_US, &mut len));
            assert_eq!(len, 9);
            must(vmmc_token_buffer_free(third));
        });
        must(vmmc_endpoint_free(endpoint));
        assert_eq!(vmmc_connection_check(answers), VMMC_REVOKED);
        must(vmmc_connection_free(answers));
        let mut without = null_mut();
        must(vmmc_endpoint_create(session, 0, 0, &options, &mut without));
        assert_eq!(vmmc_endpoint_token_buffer(without, &mut spare), VMMC_INVALID);
        must(vmmc_endpoint_free(without));
    }
    must(vmmc_session_free(session));
}
