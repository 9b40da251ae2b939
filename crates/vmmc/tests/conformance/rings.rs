//! Append rings: many senders, one ring, no place to ask for.

use crate::nodes::{LONG, Nodes, SHORT, pattern};
use std::time::Duration;
use vmmc::{Access, AccessError, AppendOptions, Import, Rights, Ring, Session, TransferError, WaitError};

const BYTES: u64 = 16 << 10;

struct Senders {
    owner: Session,
    ring: Ring,
    /// One on the node of the ring, one on the other.
    imports: Vec<Import>,
    _sessions: Vec<Session>,
}

fn ring(nodes: &dyn Nodes) -> Senders {
    let owner = nodes.attach(0);
    let ring = owner.ring(BYTES).name("ring").notify(true).create().unwrap();
    let sessions = [nodes.attach(0), nodes.attach(1)];
    let open = |session: &Session| {
        session.import("ring").node(&nodes.name(0)).rights(Rights::WRITE).wait(LONG).open().unwrap()
    };
    let imports = sessions.iter().map(open).collect();
    Senders { owner, ring, imports, _sessions: sessions.into() }
}

pub(crate) fn records_come_whole_in_the_order_of_each_sender_and_name_it(nodes: &dyn Nodes) {
    let mut s = ring(nodes);
    let ids: Vec<_> = s.imports.iter().map(Import::id).collect();
    let (mut next, mut sent) = (vec![0u64; 2], 0);
    std::thread::scope(|scope| {
        for (import, number) in s.imports.iter().zip(0u64..) {
            scope.spawn(move || {
                for index in 0..300u64 {
                    let data = pattern((index * 13 % 513) as usize, number as u8);
                    import.append(&data, AppendOptions::word(number << 32 | index)).unwrap();
                }
            });
        }
        // All together far more than the ring holds.
        while sent < 600 {
            let record = s.ring.wait().unwrap();
            let (number, index) = ((record.word >> 32) as usize, record.word & 0xffff_ffff);
            assert_eq!(record.from.import, ids[number]);
            assert_eq!(record.from.is_local(), number == 0);
            assert_eq!(index, next[number]);
            assert!(record.data == pattern((index * 13 % 513) as usize, number as u8), "{number} {index}");
            next[number] += 1;
            sent += 1;
        }
    });
    assert_eq!(next, [300, 300]);
    assert_eq!(s.ring.take().unwrap(), None);
    for number in [0, 1] {
        s.imports[number].append(b"", AppendOptions { notify: true, ..AppendOptions::word(5) }).unwrap();
        let note = s.ring.export().wait_notification().unwrap();
        let from = {
            let record = s.ring.wait().unwrap();
            assert_eq!((record.word, record.data.len()), (5, 0));
            record.from
        };
        assert_eq!((note.word, note.from), (5, from));
        assert_eq!(s.owner.node_of(from).unwrap(), Some(nodes.name(number)));
    }
}

pub(crate) fn a_full_ring_says_so_and_leaves_room_for_others(nodes: &dyn Nodes) {
    let mut s = ring(nodes);
    let data = pattern(100, 1);
    for flooding in [1, 0] {
        let mut words = Vec::new();
        let full = loop {
            let word = words.len() as u64;
            match s.imports[flooding].try_append(&data, AppendOptions::word(word)) {
                Ok(()) => words.push(word),
                Err(full) => break full,
            }
        };
        let TransferError::Full { needed: 136, free, size: BYTES, .. } = full else { panic!("{full}") };
        assert!(free >= BYTES / 2 - 136, "{free}");
        assert!(full.to_string().contains("append again when its owner has taken some"), "{full}");
        let options = AppendOptions { timeout: Some(SHORT), ..AppendOptions::word(99) };
        let late = s.imports[flooding].append(&data, options).unwrap_err();
        // On a machine that is busy the last try may be under way at the deadline.
        assert!(matches!(late, TransferError::Full { .. } | TransferError::TimedOut { .. }), "{late}");
        s.imports[flooding].flush().unwrap();
        s.imports[1 - flooding].try_append(b"me too", AppendOptions::word(1_000)).unwrap();
        words.push(1_000);
        let got: Vec<u64> = words.iter().map(|_| s.ring.wait().unwrap().word).collect();
        assert_eq!(got, words);
        assert_eq!(s.ring.take().unwrap(), None);
    }
}

pub(crate) fn no_record_overtakes_one_that_found_no_room(nodes: &dyn Nodes) {
    let mut s = ring(nodes);
    let data = pattern(200, 1);
    for (import, at_once) in s.imports.iter().flat_map(|import| [(import, false), (import, true)]) {
        let posted: Vec<_> =
            (0..100).map(|word| import.post_append(&data, AppendOptions::word(word)).unwrap()).collect();
        if at_once {
            import.flush().unwrap();
        }
        // Else the ring empties while they are under way, and all may find room.
        let mut got = Vec::new();
        while let Ok(record) = s.ring.wait_by(s.owner.deadline(Duration::from_millis(100))) {
            got.push(record.word);
        }
        let outcomes: Vec<_> = posted.into_iter().map(|mut transfer| transfer.wait()).collect();
        let accepted = outcomes.iter().take_while(|outcome| outcome.is_ok()).count() as u64;
        let refused = &outcomes[accepted as usize..];
        assert!(refused.iter().all(|o| matches!(o, Err(TransferError::Full { .. }))), "{refused:?}");
        assert!(accepted > 0 && !(at_once && refused.is_empty()), "{accepted}");
        assert_eq!(got, (0..accepted).collect::<Vec<_>>());
        // A sender that has learned of it may go on; so may one that let go of the answer.
        import.append(&data, AppendOptions::word(500)).unwrap();
        assert_eq!(s.ring.wait().unwrap().word, 500);
        for word in 0..100 {
            drop(import.post_append(&data, AppendOptions::word(word)).unwrap());
        }
        import.flush().unwrap();
        while s.ring.take().unwrap().is_some() {}
        import.append(&data, AppendOptions::word(501)).unwrap();
        while s.ring.wait().unwrap().word != 501 {}
    }
}

pub(crate) fn only_appends_go_to_rings_and_only_to_rings(nodes: &dyn Nodes) {
    let s = ring(nodes);
    for import in &s.imports {
        let refused = import.send(0, b"no").unwrap_err().to_string();
        assert!(refused.contains("the export is an append ring; append to it"), "{refused}");
        assert!(import.fetch(0, &mut [0; 8]).is_err() && import.fetch_add(0, 1).is_err());
        let refused = import.append(&[0; 513], AppendOptions::default()).unwrap_err().to_string();
        assert!(refused.contains("a record has at most 512 bytes and not 513"), "{refused}");
        import.append(&[7; 512], AppendOptions::default()).unwrap();
    }
    let plain = s.owner.export(4_096).name("plain").create().unwrap();
    let import = s.owner.import_id(plain.id()).open().unwrap();
    let refused = import.append(b"no", AppendOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("the export is no append ring; send to it"), "{refused}");
    let all = s.owner.import("ring").open().unwrap_err();
    assert!(all.to_string().contains("the export offers"), "{all}");
    for bytes in [0, 100, 8_188, 8 << 20, u64::MAX] {
        assert!(s.owner.ring(bytes).access(Access::Anyone).create().is_err(), "{bytes}");
    }
}

pub(crate) fn a_ring_that_its_owner_damaged_says_so(nodes: &dyn Nodes) {
    let mut s = ring(nodes);
    s.imports[0].append(b"whole", AppendOptions::default()).unwrap();
    s.ring.export().write(128, &[0xff; 8]).unwrap();
    assert_eq!(s.ring.take(), Err(AccessError::NoRecord { at: 0 }));
    assert!(matches!(s.ring.wait(), Err(WaitError::Access(AccessError::NoRecord { at: 0 }))));
    s.ring.unexport().unwrap();
    let ended = s.imports[0].append(b"late", AppendOptions::default()).unwrap_err();
    assert!(matches!(ended, TransferError::Revoked { .. }), "{ended}");
}
