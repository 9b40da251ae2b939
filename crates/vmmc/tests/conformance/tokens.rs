//! Payloads by token: one buffer, one payload, whoever sends it.

use crate::nodes::{Nodes, Place, SHORT, pattern};
use vmmc::{
    AccessError, AnySource, Arrival, Gather, Import, PayloadToken, Pinned, Rights, SendOptions, Session, TokenError,
    TokenTable, TransferError,
};
use vmmc_nic::OpError;

const BYTES: u64 = 300_000;

struct Tables {
    owner: Session,
    user: Session,
    table: TokenTable,
    import: Import,
}

fn tables(nodes: &dyn Nodes, place: Place, count: u64) -> Tables {
    let owner = nodes.attach(0);
    let table = owner.token_table(count, BYTES).mappable(place == Place::Mapped).create().unwrap();
    let user = nodes.attach(if place == Place::Network { 1 } else { 0 });
    let import = import(nodes, &user, &table, place);
    assert_eq!(import.explain().path.to_string(), format!("{place:?}").to_lowercase());
    Tables { owner, user, table, import }
}

fn import(nodes: &dyn Nodes, user: &Session, table: &TokenTable, place: Place) -> Import {
    let builder = user.import_id(table.id()).rights(Rights::WRITE);
    let builder = if place == Place::Network { builder.node(&nodes.name(0)) } else { builder };
    builder.open().unwrap()
}

pub(crate) fn payloads_of_every_length_and_source_come_whole_in_their_buffer(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let s = tables(nodes, place, 4);
        let registered = s.user.buffer(BYTES).unwrap();
        for (len, seed) in [0, 1, 8, 200, 201, 4_096, 70_001, BYTES as usize].into_iter().zip(1u8..) {
            let data = pattern(len, seed);
            registered.write(0, &data).unwrap();
            let parts: Vec<&[u8]> = data.chunks(50_000).collect();
            let all: [&dyn Fn(PayloadToken) -> Result<(), TransferError>; 4] = [
                &|token| s.import.send_token(token, 1, &data),
                &|token| s.import.send_token(token, 1, registered.range(0..len as u64)),
                &|token| s.import.send_token(token, 1, Pinned(&data[..])),
                &|token| s.import.send_token(token, 1, Gather(&parts)),
            ];
            for (send, which) in all.iter().zip(0..) {
                let buffer = s.table.arm().unwrap().expect("one is free");
                assert_eq!((buffer.poll().unwrap(), buffer.capacity()), (None, BYTES));
                send(buffer.token()).unwrap();
                assert_eq!(buffer.wait().unwrap(), Arrival { tag: 1, len: len as u64 }, "{place:?} {which}");
                assert!(buffer.to_vec().unwrap() == data, "{place:?} {which}, {len} bytes");
                assert!(!buffer.cancel().unwrap());
            }
        }
        s.import.flush().unwrap();
        assert_eq!(s.table.filling(), 0);
    }
}

pub(crate) fn a_token_lets_one_payload_in_and_none_when_it_is_wrong_or_cancelled(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let s = tables(nodes, place, 2);
        let buffer = s.table.arm().unwrap().unwrap();
        let token = buffer.token();
        for wrong in [PayloadToken { key: token.key ^ 4, ..token }, PayloadToken { index: 1, ..token }] {
            s.import.send_token(wrong, 9, &[0xee; 5_000]).unwrap();
        }
        s.import.send_token(PayloadToken { index: 900_000, ..token }, 9, b"far").unwrap();
        s.import.flush().unwrap();
        assert_eq!(buffer.poll().unwrap(), None, "{place:?}");
        // Of several at once one comes, whole.
        let imports: Vec<Import> = (0..3).map(|_| import(nodes, &s.user, &s.table, place)).collect();
        std::thread::scope(|scope| {
            for (import, number) in imports.iter().zip(0u8..) {
                scope.spawn(move || import.send_token(token, number.into(), &pattern(60_000, number)).unwrap());
            }
        });
        let Arrival { tag, len } = buffer.wait().unwrap();
        assert_eq!(len, 60_000);
        assert!(tag < 3 && buffer.to_vec().unwrap() == pattern(60_000, tag as u8), "{place:?}");
        drop(buffer);

        let buffer = s.table.arm().unwrap().unwrap();
        assert_eq!((buffer.cancel().unwrap(), buffer.cancel().unwrap()), (true, true));
        s.import.send_token(buffer.token(), 1, b"too late").unwrap();
        s.import.flush().unwrap();
        assert_eq!((buffer.poll().unwrap(), buffer.to_vec().unwrap()), (None, vec![]));
        assert!(buffer.wait_by(s.owner.deadline(SHORT)).is_err());
        // Refused payloads are no error of the import, which goes on.
        drop(buffer);
        let buffer = s.table.arm().unwrap().unwrap();
        s.import.send_token(buffer.token(), 3, b"in time").unwrap();
        assert_eq!(buffer.wait().unwrap(), Arrival { tag: 3, len: 7 });
    }
}

pub(crate) fn token_tables_say_what_is_wrong_with_what_they_are_given(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let s = tables(nodes, place, 2);
        let [first, second] = [(); 2].map(|()| s.table.arm().unwrap().unwrap());
        assert!(s.table.arm().unwrap().is_none(), "two are all");
        assert_ne!(first.token(), second.token());
        s.import.send_token(first.token(), 1, &vec![0xee; BYTES as usize + 1]).unwrap();
        s.import.flush().unwrap();
        assert_eq!(first.poll().unwrap(), None);
        assert!(matches!(first.read(BYTES, &mut [0]), Err(AccessError::OutOfBounds { .. })));
        assert!(matches!(first.read(u64::MAX, &mut [0]), Err(AccessError::OutOfBounds { .. })));

        let engine = |error: OpError| {
            move |told: TransferError| {
                assert!(matches!(&told, TransferError::Engine { error: e, .. } if *e == error), "{told:?}");
            }
        };
        engine(OpError::TokenOnly)(s.import.send(0, b"x").unwrap_err());
        engine(OpError::TokenOnly)(s.import.post_send(0, b"x", SendOptions::default()).map(drop).unwrap_err());
        assert!(matches!(s.import.fetch(0, &mut [0; 8]), Err(TransferError::NoRight { .. })));
        let plain = s.owner.export(4096).create().unwrap();
        let plain = s.owner.import_id(plain.id()).open().unwrap();
        engine(OpError::NotByToken)(plain.send_token(first.token(), 1, b"x").unwrap_err());
        let other = s.owner.token_table(1, 64).create().unwrap();
        let buffer = other.arm().unwrap().unwrap();
        engine(OpError::NotByToken)(s.import.send_token(buffer.token(), 1, b"x").unwrap_err());
        // What is given back comes out again, with another key.
        let token = first.token();
        drop(first);
        let again = s.table.arm().unwrap().unwrap();
        assert_eq!(again.token().index, token.index);
        assert_ne!(again.token().key, token.key);
        drop((again, second, s.table));
        let gone = s.import.send_token(token, 1, b"x").and_then(|()| s.import.flush());
        assert!(matches!(gone, Err(TransferError::Revoked { .. })), "{place:?}: {gone:?}");
    }
    let owner = nodes.attach(0);
    for (count, bytes) in [(0, 8), (1, 0), (4_097, 8), (1, (1 << 30) + 1), (u64::MAX, u64::MAX)] {
        let refused = owner.token_table(count, bytes).create();
        assert!(matches!(refused, Err(vmmc::ExportError::Tokens { .. })), "{refused:?}");
    }
    let (small, bytes) = (owner.token_table(3, 7).create().unwrap(), PayloadToken::BYTES);
    let buffer = small.arm().unwrap().unwrap();
    assert_eq!(PayloadToken::from_bytes(&buffer.token().to_bytes()), buffer.token());
    assert_eq!((bytes, small.count(), small.buffer_bytes()), (20, 3, 7));
}

/// A payload that stops in the middle: its buffer is not given out again.
pub(crate) fn a_buffer_whose_payload_never_ends_is_kept_back(nodes: &dyn Nodes) {
    let s = tables(nodes, Place::Mapped, 2);
    let buffer = s.table.arm().unwrap().unwrap();
    let token = buffer.token();
    // What a mapped sender does that is killed in mid-payload.
    let entry = s.import.as_ptr().unwrap().wrapping_add(token.index as usize * 64).cast::<u64>().cast_mut();
    // SAFETY: the import is mapped for writing and lives; others see the word as an atomic too.
    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(entry) };
    let filling = vmmc_nic::TokenState::Filling.word(token.key);
    word.store(filling, std::sync::atomic::Ordering::SeqCst);
    assert!(!buffer.cancel().unwrap(), "it is coming");
    drop(buffer);
    let other = s.table.arm().unwrap().expect("the other one");
    assert_ne!(other.token().index, token.index);
    assert!(s.table.arm().unwrap().is_none());
    assert_eq!(s.table.filling(), 1);
    // It has ended after all.
    word.store(filling | 3, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(s.table.arm().unwrap().expect("free again").token().index, token.index);
}

pub(crate) fn ranges_of_a_region_take_payloads_where_no_other_token_is(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let owner = nodes.attach(0);
        let region = owner.token_region(3, BYTES).mappable(place == Place::Mapped).create().unwrap();
        let user = nodes.attach(if place == Place::Network { 1 } else { 0 });
        let builder = user.import_id(region.id()).rights(Rights::WRITE);
        let builder = if place == Place::Network { builder.node(&nodes.name(0)) } else { builder };
        let import = builder.open().unwrap();
        let from = user.export(BYTES).create().unwrap();
        from.write(0, &pattern(BYTES as usize, 1)).unwrap();
        for (start, len) in [(0, BYTES), (7, 0), (1, 100), (299_000, 1_000), (4_095, 50_002)] {
            region.memory().write(0, &vec![0xaa; BYTES as usize]).unwrap();
            let armed = region.arm(start..start + len).unwrap();
            import.send_token(armed.token(), 1, from.range(5..5 + (len + 1).min(BYTES - 5))).unwrap();
            import.flush().unwrap();
            let came = armed.poll().unwrap().is_some();
            assert_eq!(came, len == BYTES, "{place:?}: it is longer than the range, but where that is all");
            let parts = [AnySource::Buffer(from.buffer(), 0..len / 2), AnySource::Bytes(&[9; 3])];
            let whole = len / 2 + 3;
            if !came && whole <= len {
                import.send_token(armed.token(), 2, Gather(&parts[..])).unwrap();
                assert_eq!(armed.wait().unwrap(), Arrival { tag: 2, len: whole });
                let mut expected = vec![0xaa; BYTES as usize];
                expected[start as usize..][..len as usize / 2]
                    .copy_from_slice(&pattern(BYTES as usize, 1)[..len as usize / 2]);
                expected[(start + len / 2) as usize..][..3].fill(9);
                let mut there = vec![0; BYTES as usize];
                region.memory().read(0, &mut there).unwrap();
                assert!(there == expected, "{place:?} {start} {len}");
            }
        }
        let armed = [region.arm(0..10).unwrap(), region.arm(10..20).unwrap(), region.arm(30..30).unwrap()];
        assert_eq!(region.arm(9..11).map(drop), Err(TokenError::Ranges { most: 3 }));
        let [first, second, _empty] = armed;
        drop(second);
        assert_eq!(region.arm(9..11).map(drop), Err(TokenError::Taken { start: 9, end: 11 }));
        assert_eq!(
            region.arm(u64::MAX..u64::MAX).map(drop),
            Err(TokenError::OutOfBounds { start: u64::MAX, end: u64::MAX, size: BYTES })
        );
        drop(first);
        region.arm(0..BYTES).unwrap();
        // A payload that never ends keeps its range, and no other one.
        if let Some(entries) = import.as_ptr() {
            let armed = region.arm(100..200).unwrap();
            let entry = entries.wrapping_add(armed.token().index as usize * 64).cast::<u64>().cast_mut();
            // SAFETY: as above.
            let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(entry) };
            let filling = vmmc_nic::TokenState::Filling.word(armed.token().key);
            word.store(filling, std::sync::atomic::Ordering::SeqCst);
            drop(armed);
            assert_eq!(region.arm(199..300).map(drop), Err(TokenError::Taken { start: 199, end: 300 }));
            region.arm(200..300).unwrap();
            // It has ended after all.
            word.store(filling | 3, std::sync::atomic::Ordering::SeqCst);
            region.arm(0..BYTES).unwrap();
        }
    }
    for (ranges, bytes) in [(0, 8), (1, 0), (4_097, 8), (1, (1 << 30) + 1), (u64::MAX, u64::MAX)] {
        let refused = nodes.attach(0).token_region(ranges, bytes).create().map(drop);
        assert!(matches!(refused, Err(vmmc::ExportError::Tokens { .. })), "{refused:?}");
    }
}
