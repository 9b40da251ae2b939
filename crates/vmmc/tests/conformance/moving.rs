//! Bytes move, all of them, and no others.

use crate::nodes::{Nodes, Place, content, join, pattern};
use vmmc::{Gather, Rights, Scatter, SendOptions, TransferError};

pub(crate) fn every_length_and_alignment_arrives_and_nothing_else(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 8192);
        for len in (0..40).chain([63, 64, 65, 207, 208, 209, 215, 216, 217, 255, 256, 1000, 4095, 4096, 4097]) {
            for offset in [0usize, 1, 7, 8, 61, 4090] {
                let zeros = vec![0u8; 8192];
                j.export.write(0, &zeros).unwrap();
                if offset + len > 8192 {
                    continue;
                }
                let data = pattern(len, len as u8);
                j.import.send(offset as u64, &data).unwrap();
                j.import.flush().unwrap();
                let got = content(&j.export);
                assert_eq!(&got[offset..offset + len], &data[..], "{place:?} {len} at {offset}");
                assert!(got[..offset].iter().chain(&got[offset + len..]).all(|b| *b == 0), "{place:?} {len}@{offset}");
            }
        }
    }
}

pub(crate) fn fetches_of_every_length_see_what_is_there(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 20_000);
        let all = pattern(20_000, 3);
        j.export.write(0, &all).unwrap();
        for len in (0..20).chain([64, 216, 217, 4096, 4097, 15_000]) {
            for offset in [0usize, 1, 8, 4095] {
                let mut got = vec![0u8; len];
                j.import.fetch(offset as u64, &mut got).unwrap();
                assert_eq!(got, &all[offset..offset + len], "{place:?} {len} at {offset}");
            }
        }
    }
}

pub(crate) fn long_transfers_arrive_whole(nodes: &dyn Nodes) {
    const LEN: usize = (3 << 20) + 123;
    for place in Place::ALL {
        let j = join(nodes, place, LEN as u64 + 1);
        let data = pattern(LEN, 9);
        j.import.send(1, &data).unwrap();
        j.import.flush().unwrap();
        assert!(content(&j.export)[1..] == data, "{place:?}: sent bytes differ");
        let mut back = vec![0; LEN];
        j.import.fetch(1, &mut back).unwrap();
        assert!(back == data, "{place:?}: fetched bytes differ");
    }
}

pub(crate) fn sends_that_follow_at_once_keep_their_data(nodes: &dyn Nodes) {
    // More than fits under way, from one piece of memory that is used again at once.
    const LEN: usize = 3000;
    const COUNT: usize = 700;
    for place in Place::ALL {
        let j = join(nodes, place, (LEN * COUNT) as u64);
        let mut data = [0; LEN];
        for i in 0..COUNT {
            data.fill((i % 251) as u8 + 1);
            j.import.send((LEN * i) as u64, &data).unwrap();
        }
        j.import.flush().unwrap();
        for (i, got) in content(&j.export).chunks(LEN).enumerate() {
            assert!(got.iter().all(|b| *b == (i % 251) as u8 + 1), "{place:?}: send {i} arrived damaged");
        }
    }
}

pub(crate) fn memory_may_change_when_a_long_send_from_it_is_done(nodes: &dyn Nodes) {
    const LEN: usize = 1 << 20;
    for place in Place::ALL {
        let j = join(nodes, place, LEN as u64);
        let buffer = j.user.buffer(LEN as u64).unwrap();
        for version in 1..=20u8 {
            // Pieces that begin and end in the middle of a page, and pages that are whole.
            let range = u64::from(version) * 100 % 4096..(LEN - usize::from(version) % 3 * 5) as u64;
            let data: Vec<u8> = (0..LEN).map(|i| (i / 100) as u8 ^ version).collect();
            buffer.write(0, &data).unwrap();
            j.import.send(range.start, buffer.range(range.clone())).unwrap();
            buffer.write(0, &vec![0xee; LEN]).unwrap();
            let range = range.start as usize..range.end as usize;
            assert!(content(&j.export)[range.clone()] == data[range], "{place:?}: version {version}");
        }
    }
}

pub(crate) fn registered_memory_moves_both_ways(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 1 << 20);
        let buffer = j.user.buffer(1 << 20).unwrap();
        let data = pattern(1 << 20, 5);
        buffer.write(0, &data).unwrap();
        j.import.send(3, buffer.range(11..1_000_011)).unwrap();
        assert!(content(&j.export)[3..1_000_003] == data[11..1_000_011], "{place:?}");
        let to = j.user.buffer(5000).unwrap();
        j.import.fetch(3, to.range(1..4001)).unwrap();
        let mut got = vec![0; 5000];
        to.read(0, &mut got).unwrap();
        assert_eq!(&got[1..4001], &data[11..4011], "{place:?}");
        assert!(got[0] == 0 && got[4001..].iter().all(|b| *b == 0), "{place:?}: bytes outside of the range");
    }
}

pub(crate) fn callers_memory_is_exported_and_adopted(nodes: &dyn Nodes) {
    let owner = nodes.attach(0);
    let bytes = pattern(100_000, 1);
    let export = owner.export_memory(bytes.clone()).create().unwrap();
    assert_eq!(content(&export), bytes, "the content stays");
    for node in [0, 1] {
        let user = nodes.attach(node);
        let import = user.import_id(export.id()).node(&nodes.name(0)).rights(Rights::ALL).open().unwrap();
        let buffer = user.adopt(pattern(50_000, 2)).unwrap();
        import.send(7, buffer.range(0..50_000)).unwrap();
        assert!(content(&export)[7..50_007] == pattern(50_000, 2));
        let back = user.adopt(vec![0u8; 60_000]).unwrap();
        import.fetch(0, back.range(100..200)).unwrap();
        let mut got = vec![0; 100];
        back.read(100, &mut got).unwrap();
        assert_eq!(got[..], content(&export)[..100]);
    }
    assert_eq!(&content(&export)[50_007..], &bytes[50_007..], "neighbours stay");
}

pub(crate) fn transfers_can_be_polled_awaited_and_dropped(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 1 << 20);
        let data = pattern(300_000, 4);
        let mut polled = j.import.post_send(0, &data, SendOptions::default()).unwrap();
        crate::nodes::eventually("the transfer", || polled.poll().is_some());
        assert_eq!(polled.poll(), Some(Ok(300_000)), "a finished transfer keeps its result");
        let buffer = j.user.buffer(300_000).unwrap();
        buffer.write(0, &data).unwrap();
        let mut awaited = j.import.post_send(400_000, buffer.range(0..300_000), SendOptions::default()).unwrap();
        assert_eq!(awaited.wait(), Ok(300_000));
        // Dropped with its buffer: it happens all the same.
        drop(j.import.post_send(800_000, buffer.range(0..100), SendOptions::default()).unwrap());
        drop(buffer);
        drop(j.import.post_fetch(0, j.user.buffer(4096).unwrap().range(0..4096)).unwrap());
        j.import.flush().unwrap();
        let got = content(&j.export);
        assert!(got[..300_000] == data && got[400_000..700_000] == data && got[800_000..800_100] == data[..100]);
    }
}

pub(crate) fn many_transfers_can_be_under_way(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 8 * 3000);
        let buffer = j.user.buffer(8 * 3000).unwrap();
        (0..3000).for_each(|i| buffer.write(8 * i, &i.to_le_bytes()).unwrap());
        let send = |i: u64| j.import.post_send(8 * i, buffer.range(8 * i..8 * i + 8), SendOptions::default());
        let limit = j.user.limits().transfers as u64;
        let mut transfers = std::collections::VecDeque::new();
        for i in 0..3000 {
            if transfers.len() as u64 == limit {
                let mut oldest: vmmc::Transfer = transfers.pop_front().unwrap();
                assert_eq!(oldest.wait(), Ok(8));
            }
            transfers.push_back(send(i).unwrap());
        }
        transfers.iter_mut().for_each(|t| assert_eq!(t.wait(), Ok(8)));
        (0..3000u64)
            .for_each(|i| assert_eq!(j.export.word(8 * i).unwrap().load(std::sync::atomic::Ordering::Acquire), i));
    }
}

pub(crate) fn pieces_are_gathered_and_scattered(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 1000);
        j.import.send(10, Gather(&[&b"one"[..], b"", b"two", b"three"])).unwrap();
        j.import.flush().unwrap();
        assert_eq!(&content(&j.export)[10..21], b"onetwothree", "{place:?}");
        let pieces: [(u64, &[u8]); 3] = [(100, b"ab"), (200, b"c"), (300, b"def")];
        j.import.gather_send(&pieces, SendOptions::default()).unwrap();
        j.import.flush().unwrap();
        let got = content(&j.export);
        assert_eq!((&got[100..102], &got[200..201], &got[300..303]), (&b"ab"[..], &b"c"[..], &b"def"[..]));
        let (mut a, mut b) = ([0; 3], [0; 8]);
        j.import.fetch(10, Scatter(&mut [&mut a[..], &mut b])).unwrap();
        assert_eq!((&a, &b), (b"one", b"twothree"));
        let mut both = [0; 5];
        j.import.fetch_gather(&[100..102, 300..303], &mut both).unwrap();
        assert_eq!(&both, b"abdef");
        let buffer = j.user.buffer(100).unwrap();
        buffer.write(0, b"0123456789").unwrap();
        j.import.send(500, Gather(&[7..10, 0..2].map(|range| buffer.range(range)))).unwrap();
        j.import.flush().unwrap();
        assert_eq!(&content(&j.export)[500..505], b"78901");
        assert!(matches!(j.import.send(999, Gather(&[b"xx"])), Err(TransferError::OutOfBounds { .. })));
    }
}

pub(crate) fn atomics_return_the_old_value(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 64);
        assert_eq!(j.import.fetch_add(8, 5), Ok(0));
        assert_eq!(j.import.fetch_add(8, u64::MAX), Ok(5));
        assert_eq!(j.import.swap(8, 100), Ok(4));
        assert_eq!(j.import.compare_swap(8, 99, 1), Ok(100));
        assert_eq!(j.import.compare_swap(8, 100, 1), Ok(100));
        assert_eq!(j.export.word(8).unwrap().load(std::sync::atomic::Ordering::Acquire), 1, "{place:?}");
        assert_eq!(j.export.word(16).unwrap().load(std::sync::atomic::Ordering::Acquire), 0, "{place:?}");
    }
}

pub(crate) fn counters_grow_after_the_data(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 1 << 20);
        for (n, len) in [1usize, 8, 208, 209, 5000, 600_000].into_iter().enumerate() {
            let data = pattern(len, n as u8);
            // From another thread, so that this one can be too early.
            std::thread::scope(|scope| {
                scope.spawn(|| j.import.send_with(64, &data, SendOptions::counter(8)).unwrap());
                j.export.wait_word(8, |count| count > n as u64).unwrap();
                assert!(content(&j.export)[64..64 + len] == data, "{place:?} {len}");
            });
        }
        j.import.flush().unwrap();
        assert_eq!(j.export.word(8).unwrap().load(std::sync::atomic::Ordering::Acquire), 6);
        let misaligned = j.import.send_with(64, b"x", SendOptions::counter(4));
        assert!(matches!(misaligned, Err(TransferError::Misaligned { offset: 4, .. })), "{misaligned:?}");
    }
}

pub(crate) fn empty_transfers_are_legal(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 64);
        j.import.send(64, b"").unwrap();
        j.import.fetch(64, &mut []).unwrap();
        let buffer = j.user.buffer(10).unwrap();
        j.import.send(0, buffer.range(10..10)).unwrap();
        j.import.flush().unwrap();
        assert!(matches!(j.import.send(65, b""), Err(TransferError::OutOfBounds { .. })));
    }
}
