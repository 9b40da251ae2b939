//! Payloads by token of endpoints: where they land, what their messages say, and what they were
//! sent from.
//!
//! Invariant: as of the other files here, each runs on all kinds of nodes. Source: [GMS §2]
//! incoming payload table.

use crate::endpoints::{Ends, connect, inbox};
use crate::nodes::{Nodes, pattern};
use vmmc::{ByToken, ErrorKind, ExportId, Kind, PayloadToken, Rights, TokenError, TokenRefused};

/// An endpoint with two buffers for payloads by token, and a sender on each node.
pub(super) fn with_tokens(nodes: &dyn Nodes) -> Ends {
    let owner = nodes.attach(0);
    let mut endpoint = inbox(nodes, &owner).tokens(2, 100_000).create().unwrap();
    let sessions = vec![nodes.attach(0), nodes.attach(1)];
    let senders = sessions.iter().map(|session| connect(nodes, &mut endpoint, session)).collect();
    Ends { owner, endpoint, senders, sessions }
}

pub(crate) fn what_a_payload_by_token_was_sent_from_may_change_at_once(nodes: &dyn Nodes) {
    const LEN: u64 = 100_000;
    let Ends { endpoint, senders, sessions, .. } = with_tokens(nodes);
    let mut endpoint = endpoint;
    for (mut sender, session) in senders.into_iter().zip(&sessions) {
        let registered = session.buffer(LEN).unwrap();
        let mut slice = vec![0; LEN as usize];
        for round in 1..60u8 {
            let (buffer, len) = (endpoint.token_buffer().unwrap(), if round % 3 == 0 { 200 } else { LEN });
            if round % 2 == 0 {
                slice.fill(round);
                sender.send_by_token(b"as it was", buffer.token(), &slice[..len as usize]).unwrap();
                slice.fill(0xee);
            } else {
                registered.write(0, &vec![round; LEN as usize]).unwrap();
                sender.send_by_token(b"as it was", buffer.token(), registered.range(0..len)).unwrap();
                registered.write(0, &vec![0xee; LEN as usize]).unwrap();
            }
            let message = endpoint.wait().unwrap();
            assert_eq!(message.by_token(), Some(ByToken { token: buffer.token(), len: Ok(len) }));
            assert!(buffer.to_vec().unwrap()[..len as usize] == vec![round; len as usize], "{round}");
        }
    }
}

pub(crate) fn payloads_by_token_land_in_their_buffer_and_messages_say_so(nodes: &dyn Nodes) {
    let mut s = with_tokens(nodes);
    for round in 0..30u8 {
        for which in [0, 1] {
            let len = [0, 10, 5_000, 100_000][usize::from(round) % 4];
            let (buffer, data) = (s.endpoint.token_buffer().unwrap(), pattern(len, round));
            let control = pattern(usize::from(round) * 4, which);
            let sender = &mut s.senders[usize::from(which)];
            sender.send_by_token(&control, buffer.token(), &data).unwrap();
            let message = s.endpoint.wait().unwrap();
            assert!(message.control() == control && message.payload().is_none());
            assert_eq!(message.by_token(), Some(ByToken { token: buffer.token(), len: Ok(len as u64) }));
            assert!(buffer.to_vec().unwrap() == data, "{which} {round}");
        }
    }
    let full = [s.endpoint.token_buffer().unwrap(), s.endpoint.token_buffer().unwrap()];
    let none = s.endpoint.token_buffer().map(drop);
    assert!(matches!(none, Err(TokenError::InUse { count: 2, .. })), "{none:?}");
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Full);
    let token = full[0].token();
    full[1].cancel().unwrap();
    let wrong = PayloadToken { key: token.key ^ 8, ..token };
    let of_none = PayloadToken { table: ExportId { slot: token.table.slot, generation: 77 }, ..token };
    for sender in &mut s.senders {
        let long = vec![1; 100_001];
        for (token, payload, len) in [
            (wrong, &b"x"[..], Err(TokenRefused::Wrong)),
            (of_none, b"x", Err(TokenRefused::Wrong)),
            (full[1].token(), b"x", Err(TokenRefused::Cancelled)),
            (token, &long, Err(TokenRefused::TooLong { len: 100_001, max: 100_000 })),
        ] {
            sender.send_by_token(b"all the same", token, payload).unwrap();
            let message = s.endpoint.wait().unwrap();
            assert_eq!((message.control(), message.by_token()), (&b"all the same"[..], Some(ByToken { token, len })));
        }
        sender.send(b"without", b"").unwrap();
        assert_eq!(s.endpoint.wait().unwrap().by_token(), None);
    }
    // A token that two have: one of them sends its payload.
    let mut came = Vec::new();
    for (sender, number) in s.senders.iter_mut().zip(0u8..) {
        sender.send_by_token(&[number], token, &pattern(3_000, number)).unwrap();
        let message = s.endpoint.wait().unwrap();
        came.push(message.by_token().unwrap().len);
    }
    assert_eq!(came, [Ok(3_000), Err(TokenRefused::Used)]);
    assert!(full[0].to_vec().unwrap() == pattern(3_000, 0));
    let without = s.owner.endpoint("without").create().unwrap();
    assert!(matches!(without.token_buffer(), Err(TokenError::None { .. })));
}

pub(crate) fn senders_that_die_in_mid_payload_do_not_use_the_buffers_up(nodes: &dyn Nodes) {
    let mut s = with_tokens(nodes);
    for round in 0..20u8 {
        let buffer = s.endpoint.token_buffer().unwrap();
        let token = buffer.token();
        if round % 2 == 0 {
            s.senders[usize::from(round % 4 / 2)].send_by_token(b"", token, &[round; 100]).unwrap();
            assert_eq!(s.endpoint.wait().unwrap().by_token(), Some(ByToken { token, len: Ok(100) }));
            assert_eq!(buffer.to_vec().unwrap(), [round; 100]);
            continue;
        }
        // The end of one that maps the table.
        let table = s.sessions[0].import_id(token.table).rights(Rights::WRITE).open().unwrap();
        let Some(table) = table.as_ptr().filter(|_| nodes.map_endpoints()) else {
            assert!(table.as_ptr().is_none(), "one that maps it can do what it likes");
            continue;
        };
        let entry = table.wrapping_add(token.index as usize * 64).cast::<u64>().cast_mut();
        // SAFETY: the table is mapped for writing and lives; others see the word as an atomic too.
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(entry) };
        word.store(vmmc_nic::TokenState::Filling.word(token.key), std::sync::atomic::Ordering::SeqCst);
    }
}
