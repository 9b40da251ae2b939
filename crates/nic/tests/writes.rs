//! Gather-sends and appends: what arrives, in which order, and what does not.
//!
//! Invariant: each test does the same within a node and between nodes, where the network loses,
//! doubles and reorders.

mod common;

use common::{Faults, World, addr, export_spec};
use vmmc_nic::limits::{APPEND_BYTES_MAX, GATHER_RANGES_MAX, PROCESS_RANGES_MAX};
use vmmc_nic::*;

const FAULTS: Faults = Faults { loss: 60, duplicate: 30, reorder: 60, corrupt: 10 };
const RING_BYTES: u64 = 16 << 10;

/// An owner on node 1, its exported memory, and importers on node 1 or 0.
struct Fixture {
    world: World,
    target: RegionRef,
    export: ExportId,
    node: usize,
    senders: Vec<(ProcessId, ImportId)>,
    cookie: u64,
}

fn fixture(here: bool, len: u64, ring: bool, senders: usize) -> Fixture {
    let mut world = World::pair(77, true);
    world.nodes[0].engine.add_peer(world.now, &[addr(1, 0)]).expect("room for a peer");
    let owner = world.process(1);
    let target = world.region(1, owner, 1, len as usize);
    let rights = if ring { Rights::WRITE } else { Rights::ALL };
    let spec = ExportSpec { ring, rights, ..export_spec(target.region, len, "it") };
    let now = world.now;
    let export = world.nodes[1].engine.export(now, owner, spec).expect("a good export");
    let node = usize::from(here);
    let import = |world: &mut World| {
        let process = world.process(node);
        let spec = ImportSpec {
            node: (!here).then(|| NodeSpec::Addr(addr(1, 0))),
            what: ImportTarget::Name("it".into()),
            owner: Owner::default(),
            rights: Rights::WRITE,
            wait: false,
            deadline: world.now + std::time::Duration::from_secs(30),
        };
        let now = world.now;
        world.nodes[node].engine.import(now, process, spec, Cookie(0));
        let grant = world.import_answer(node).expect("granted");
        assert_eq!(grant.ring, ring);
        (process, grant.import)
    };
    let senders = (0..senders).map(|_| import(&mut world)).collect();
    world.faults = FAULTS;
    Fixture { world, target, export, node, senders, cookie: 100 }
}

impl Fixture {
    /// Sends to ranges; gives the outcome.
    fn gather(&mut self, ranges: &[(u64, u64)], data: &[u8], notify: Option<u64>) -> Result<u64, OpError> {
        let (process, import) = self.senders[0];
        let memory = self.world.region(self.node, process, 9, data.len());
        self.world.fill(self.node, memory, |at| data[at]);
        let ranges: Vec<ByteRange> = ranges.iter().map(|&(start, len)| ByteRange { start, end: start + len }).collect();
        self.cookie += 1;
        let source = match data.len() {
            0..=INLINE_BYTES_MAX => Source::Inline(data),
            len => Source::Region { region: memory.region, offset: 0, len: len as u64 },
        };
        let completion = Some(Cookie(self.cookie));
        let command = Command::GatherSend { import, ranges: &ranges, source, notify, counter: None, completion };
        self.world.post(self.node, process, command).expect("room");
        self.world.completion(self.node, self.cookie)
    }

    fn post_append(&mut self, sender: usize, data: &[u8], word: u64, refusals: u32) -> u64 {
        let (process, import) = self.senders[sender];
        self.cookie += 1;
        let source = Source::Inline(data);
        let completion = Some(Cookie(self.cookie));
        let command = Command::Append { import, source, word, notify: false, refusals, completion };
        self.world.post(self.node, process, command).expect("room");
        self.cookie
    }

    fn append(&mut self, sender: usize, data: &[u8], word: u64, refusals: u32) -> Result<u64, OpError> {
        let cookie = self.post_append(sender, data, word, refusals);
        self.world.completion(self.node, cookie)
    }

    fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.world.bytes(1, self.target)[at as usize..][..8].try_into().expect("8 bytes"))
    }

    /// Takes all records from the ring, as its owner.
    fn take(&mut self) -> Vec<(RecordHead, Vec<u8>)> {
        let (mut read, written) = (self.word(RING_READ_AT), self.word(RING_WRITTEN_AT));
        let mut records = Vec::new();
        while read < written {
            let bytes = self.world.bytes(1, self.target);
            let ring = &bytes[RING_HEAD_BYTES as usize..];
            let at = |i: u64| ring[((read + i) % ring.len() as u64) as usize];
            let head = RecordHead::from_bytes(&std::array::from_fn(|i| at(i as u64))).expect("a record");
            let data = (0..u64::from(head.len)).map(|i| at(RECORD_HEAD_BYTES + i)).collect();
            read += head.record_bytes();
            records.push((head, data));
        }
        assert_eq!(read, written);
        self.claim_read(read);
        records
    }

    fn claim_read(&mut self, read: u64) {
        let memory = self.world.nodes[1].memory.regions.get_mut(&self.target).expect("it is there");
        memory[RING_READ_AT as usize..][..8].copy_from_slice(&read.to_le_bytes());
    }
}

fn both(test: impl Fn(bool)) {
    [true, false].into_iter().for_each(test);
}

#[test]
fn a_gather_send_fills_its_ranges_and_nothing_else_and_notifies_once_for_all() {
    both(|here| {
        let mut s = fixture(here, 1 << 20, false, 1);
        // One inline, one of many short ranges, one of ranges longer than packets and local pieces.
        let short: Vec<(u64, u64)> = (0..GATHER_RANGES_MAX as u64).map(|i| (i * 24, 1 + i % 17)).collect();
        let long = vec![(700_000, 100_001), (30_000, 8), (30_008, 7), (300_000, 200_000)];
        for (round, ranges) in [vec![(64, 3), (8, 16), (200, 1)], short, long].into_iter().enumerate() {
            let len: u64 = ranges.iter().map(|range| range.1).sum();
            let data: Vec<u8> = (0..len).map(|at| (at * 7 + 1) as u8).collect();
            let mut wanted = s.world.bytes(1, s.target).to_vec();
            let mut rest = &data[..];
            for &(at, len) in &ranges {
                let (now, later) = rest.split_at(len as usize);
                wanted[at as usize..][..len as usize].copy_from_slice(now);
                rest = later;
            }
            assert_eq!(s.gather(&ranges, &data, Some(round as u64)), Ok(len), "{here} {round}");
            let event = s.world.wait_for(1, |event| matches!(event, Event::Notification { .. }));
            let Event::Notification { export, offset, len: told, last_word, word, .. } = event else { unreachable!() };
            let first = ranges.iter().map(|range| range.0).min().expect("some");
            let end = ranges.iter().map(|range| range.0 + range.1).max().expect("some");
            assert_eq!((export, offset, offset + told, word), (s.export, first, end, round as u64));
            let tail = &data[data.len() - (ranges.last().expect("some").1).min(8) as usize..];
            let mut bytes = [0; 8];
            bytes[..tail.len()].copy_from_slice(tail);
            assert_eq!(last_word, u64::from_le_bytes(bytes));
            assert!(s.world.bytes(1, s.target) == wanted, "{here} {round}");
            s.world.run_to_quiescence();
            assert!(!s.world.nodes[1].events.iter().any(|event| matches!(event, Event::Notification { .. })));
        }
    });
}

#[test]
fn a_gather_send_with_a_wrong_range_moves_nothing() {
    both(|here| {
        let mut s = fixture(here, 4_096, false, 1);
        let wrong =
            [vec![(0, 8), (4_090, 8)], vec![(0, 8)], vec![(0, 8), (8, 8), (16, 1)], vec![(0, 8), (8, 0), (8, 8)]];
        for ranges in wrong {
            assert!(s.gather(&ranges, &[9; 16], Some(1)).is_err(), "{ranges:?}");
        }
        let max = GATHER_RANGES_MAX as u64;
        assert_eq!(s.gather(&[], &[], Some(1)), Err(OpError::BadRanges { ranges: 0, max }));
        let many = vec![(0, 1); GATHER_RANGES_MAX + 1];
        let refused = s.gather(&many, &vec![1; GATHER_RANGES_MAX + 1], None);
        assert_eq!(refused, Err(OpError::BadRanges { ranges: max + 1, max }));
        s.world.run_to_quiescence();
        assert!(s.world.bytes(1, s.target).iter().all(|byte| *byte == 0));
        assert!(!s.world.nodes[1].events.iter().any(|event| matches!(event, Event::Notification { .. })));
    });
}

#[test]
fn a_process_has_a_bounded_number_of_ranges_under_way_and_gets_them_back() {
    let mut s = fixture(false, 4_096, false, 1);
    s.world.faults = Faults::default();
    let (process, import) = s.senders[0];
    let memory = s.world.region(0, process, 9, GATHER_RANGES_MAX);
    let ranges = [ByteRange { start: 0, end: 1 }; GATHER_RANGES_MAX];
    let source = Source::Region { region: memory.region, offset: 0, len: GATHER_RANGES_MAX as u64 };
    let command =
        Command::GatherSend { import, ranges: &ranges, source, notify: None, counter: None, completion: None };
    for _ in 0..2 {
        let taken = (0..).take_while(|_| s.world.post(0, process, command).is_ok()).count();
        assert_eq!(taken, PROCESS_RANGES_MAX / GATHER_RANGES_MAX);
        s.world.post(0, process, Command::Flush { import, cookie: Cookie(1) }).expect("room");
        s.world.completion(0, 1).expect("all have arrived");
    }
}

#[test]
fn appended_records_come_whole_in_the_order_of_each_sender_and_say_who_sent_them() {
    both(|here| {
        let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, true, 3);
        let (mut sent, mut got) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
        // Far more than the ring holds, so that records go on at its beginning.
        for round in 0..40u64 {
            let mut cookies = Vec::new();
            for index in 0..9u64 {
                let sender = (index % 3) as usize;
                let word = round << 8 | index;
                let len = (word * 37 % 200) as usize;
                let data: Vec<u8> = (0..len).map(|at| (word as usize + at) as u8).collect();
                cookies.push((s.post_append(sender, &data, word, 0), len as u64));
                sent[sender].push((word, data));
            }
            for (cookie, len) in cookies {
                assert_eq!(s.world.completion(s.node, cookie), Ok(len));
            }
            for (head, data) in s.take() {
                let from = head.from;
                let sender = s.senders.iter().position(|sender| *sender == (from.process, from.import));
                assert_eq!(from.is_local(), here);
                got[sender.expect("one of them")].push((head.word, data));
            }
        }
        assert!(sent == got, "{here}");
    });
}

#[test]
fn a_full_ring_refuses_and_no_later_record_overtakes_one_that_was_refused() {
    both(|here| {
        let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, true, 2);
        let data = [5; INLINE_BYTES_MAX];
        let fits = RING_BYTES / (RECORD_HEAD_BYTES + INLINE_BYTES_MAX as u64);
        // Posted together, far more than there is room for: a first part comes, and nothing else.
        let cookies: Vec<u64> = (0..2 * fits).map(|word| s.post_append(0, &data, word, 0)).collect();
        let outcomes: Vec<_> = cookies.iter().map(|cookie| s.world.completion(s.node, *cookie)).collect();
        let accepted = outcomes.iter().take_while(|outcome| outcome.is_ok()).count() as u64;
        assert!(
            outcomes[accepted as usize..].iter().all(|o| matches!(o, Err(OpError::RingFull { .. }))),
            "{outcomes:?}"
        );
        // One sender has about half, and the other still finds room.
        assert!((fits / 2 - 1..=fits / 2 + 1).contains(&accepted), "{accepted} of {fits}");
        assert_eq!(s.append(1, &data, 1_000, 0), Ok(data.len() as u64));
        let words: Vec<u64> = s.take().iter().map(|(head, _)| head.word).collect();
        assert_eq!(words, (0..accepted).chain([1_000]).collect::<Vec<_>>());
        // There is room, but not for a sender that does not know that it was refused.
        assert!(matches!(s.append(0, &data, 2_000, 0), Err(OpError::RingFull { free: RING_BYTES, .. })));
        assert!(matches!(s.append(0, &data, 2_000, 2), Err(OpError::RingFull { .. })));
        assert_eq!(s.append(0, &data, 2_001, 1), Ok(data.len() as u64));
        assert_eq!(s.append(1, &data, 2_002, 0), Ok(data.len() as u64));
        let words: Vec<u64> = s.take().iter().map(|(head, _)| head.word).collect();
        assert_eq!(words, [2_001, 2_002]);
    });
}

#[test]
fn an_owner_that_writes_nonsense_into_its_ring_gets_records_or_refusals_and_nothing_worse() {
    both(|here| {
        let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, true, 1);
        let mut chance = 5u64;
        let mut refusals = 0;
        for word in 0..600 {
            chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let result = s.append(0, &[1; 100], word, refusals);
            match result {
                Ok(100) => {}
                Err(OpError::RingFull { free, size: RING_BYTES, .. }) if free <= RING_BYTES => refusals += 1,
                other => panic!("{other:?}"),
            }
            let written = s.word(RING_WRITTEN_AT);
            let claims = [0, written, written / 2, written + 8, u64::MAX, 1 << 63, chance % (written + 1)];
            s.claim_read(claims[(chance >> 33) as usize % claims.len()]);
            if chance >> 60 == 0 {
                let at = RING_HEAD_BYTES + (chance >> 20) % RING_BYTES;
                s.world.nodes[1].memory.regions.get_mut(&s.target).expect("there")[at as usize] = chance as u8;
            }
        }
        // Once it behaves, all is well again.
        s.claim_read(s.word(RING_WRITTEN_AT));
        let result = s.append(0, &[1; 100], 1_000, refusals);
        assert_eq!(result, Ok(100));
    });
}

#[test]
fn rings_take_appends_and_nothing_else_takes_them() {
    both(|here| {
        let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, true, 1);
        let (process, import) = s.senders[0];
        s.world.send(s.node, process, import, 0, &[0xff; 8], 1);
        assert_eq!(s.world.completion(s.node, 1), Err(OpError::AppendOnly));
        assert_eq!(s.gather(&[(0, 8), (64, 8)], &[0xff; 16], None), Err(OpError::AppendOnly));
        let atomic = Command::Atomic { import, offset: 0, op: AtomicOp::Swap(9), cookie: Cookie(2) };
        s.world.post(s.node, process, atomic).expect("room");
        assert_eq!(s.world.completion(s.node, 2), Err(OpError::NoRight { needed: Rights::ATOMIC }));
        assert!(s.world.bytes(1, s.target).iter().all(|byte| *byte == 0));
        let memory = s.world.region(s.node, process, 9, 4_096);
        let long = Source::Region { region: memory.region, offset: 0, len: APPEND_BYTES_MAX as u64 + 1 };
        let longest = Source::Region { region: memory.region, offset: 0, len: APPEND_BYTES_MAX as u64 };
        for (source, cookie) in [(long, 3), (longest, 4)] {
            let completion = Some(Cookie(cookie));
            let command = Command::Append { import, source, word: 0, notify: true, refusals: 0, completion };
            s.world.post(s.node, process, command).expect("room");
        }
        let (len, max) = (APPEND_BYTES_MAX as u64 + 1, APPEND_BYTES_MAX as u64);
        assert_eq!(s.world.completion(s.node, 3), Err(OpError::RecordTooLong { len, max }));
        assert_eq!(s.world.completion(s.node, 4), Ok(max));
        let told = s.world.wait_for(1, |event| matches!(event, Event::Notification { .. }));
        assert!(matches!(told, Event::Notification { offset: RING_HEAD_BYTES, len, .. } if len == max));

        let mut s = fixture(here, 4_096, false, 1);
        assert_eq!(s.append(0, b"no ring", 0, 0), Err(OpError::NotAppendable));
        let (now, owner) = (s.world.now, s.target.process);
        let good = ExportSpec { ring: true, rights: Rights::WRITE, ..export_spec(s.target.region, 8_320, "ring") };
        let wrong = [
            ExportSpec { rights: Rights::ALL, ..good.clone() },
            ExportSpec { redirectable: true, ..good.clone() },
            ExportSpec { offset: 4, ..good.clone() },
            ExportSpec { len: 8_319, ..good.clone() },
            ExportSpec { len: 64, ..good.clone() },
            ExportSpec { len: 1 << 30, ..good.clone() },
        ];
        for spec in wrong {
            let refused = s.world.nodes[1].engine.export(now, owner, spec);
            assert!(matches!(refused, Err(ExportError::BadRing { .. })), "{refused:?}");
        }
        assert!(s.world.nodes[1].engine.export(now, owner, good).is_ok());
    });
}
