//! Gather-sends, appends and payloads by token: what arrives, in which order, and what does not.
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

fn fixture(here: bool, len: u64, kind: ExportKind, senders: usize) -> Fixture {
    let mut world = World::pair(77, true);
    world.nodes[0].engine.add_peer(world.now, &[addr(1, 0)]).expect("room for a peer");
    let owner = world.process(1);
    let target = world.region(1, owner, 1, len as usize);
    let plain = kind == ExportKind::Memory;
    let rights = if plain { Rights::ALL } else { Rights::WRITE };
    let notify = kind != TABLE;
    let spec = ExportSpec { kind, rights, notify, ..export_spec(target.region, len, "it") };
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
            own_order: false,
        };
        let now = world.now;
        world.nodes[node].engine.import(now, process, spec, Cookie(0));
        let grant = world.import_answer(node).expect("granted");
        assert_eq!(grant.kind, kind);
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
        let mut s = fixture(here, 1 << 20, ExportKind::Memory, 1);
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
        let mut s = fixture(here, 4_096, ExportKind::Memory, 1);
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
    let mut s = fixture(false, 4_096, ExportKind::Memory, 1);
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
        let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, ExportKind::Ring, 3);
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
        let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, ExportKind::Ring, 2);
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
        let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, ExportKind::Ring, 1);
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
        let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, ExportKind::Ring, 1);
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

        let mut s = fixture(here, 4_096, ExportKind::Memory, 1);
        assert_eq!(s.append(0, b"no ring", 0, 0), Err(OpError::NotAppendable));
        let (now, owner) = (s.world.now, s.target.process);
        let good =
            ExportSpec { kind: ExportKind::Ring, rights: Rights::WRITE, ..export_spec(s.target.region, 8_320, "ring") };
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

const TABLE: ExportKind = ExportKind::Tokens { entries: 3 };
const BUFFER_BYTES: u64 = 300_000;
/// Where the first of the buffers begins, behind the entries.
const FIRST_BUFFER: u64 = 256;

/// A table of three buffers, the first two armed with the keys 4 and 8.
fn table(here: bool, senders: usize) -> Fixture {
    let mut s = fixture(here, FIRST_BUFFER + 3 * BUFFER_BYTES, TABLE, senders);
    for (index, key) in [(0, 4), (1, 8)] {
        s.set_entry(index, TokenState::Armed.word(key));
    }
    s
}

fn entry_at(index: u32) -> usize {
    (u64::from(index) * TOKEN_ENTRY_BYTES) as usize
}

fn buffer(index: u32) -> u64 {
    FIRST_BUFFER + u64::from(index) * BUFFER_BYTES
}

impl Fixture {
    fn table_memory(&mut self) -> &mut Vec<u8> {
        self.world.nodes[1].memory.regions.get_mut(&self.target).expect("it is there")
    }

    fn set_entry(&mut self, index: u32, state: u64) {
        let entry = TokenEntry { state, tag: 0, total: 0, offset: buffer(index), bytes: BUFFER_BYTES };
        self.table_memory()[entry_at(index)..][..40].copy_from_slice(&entry.to_bytes());
    }

    fn entry(&mut self, index: u32) -> TokenEntry {
        TokenEntry::from_bytes(&std::array::from_fn(|i| self.table_memory()[entry_at(index) + i]))
    }

    fn state(&mut self, index: u32) -> (u64, TokenState) {
        TokenState::of_word(self.entry(index).state)
    }

    fn holds(&mut self, index: u32, data: &[u8]) -> bool {
        self.table_memory()[buffer(index) as usize..].starts_with(data)
    }

    /// Posts a part of a payload; gives the cookie of its completion.
    fn post_part(&mut self, sender: usize, token: TokenPart, offset: u64, data: &[u8]) -> u64 {
        let (process, import) = self.senders[sender];
        self.cookie += 1;
        let completion = Some(Cookie(self.cookie));
        let source = if data.len() <= INLINE_BYTES_MAX {
            Source::Inline(data)
        } else {
            let memory = self.world.region(self.node, process, 9 + self.cookie as u32, data.len());
            self.world.fill(self.node, memory, |at| data[at]);
            Source::Region { region: memory.region, offset: 0, len: data.len() as u64 }
        };
        let command = Command::TokenSend { import, token, offset, source, completion };
        self.world.post(self.node, process, command).expect("room");
        self.cookie
    }

    fn send_part(&mut self, sender: usize, token: TokenPart, offset: u64, data: &[u8]) -> Result<u64, OpError> {
        let cookie = self.post_part(sender, token, offset, data);
        self.world.completion(self.node, cookie)
    }

    fn send_payload(&mut self, sender: usize, token: TokenPart, data: &[u8]) -> Result<u64, OpError> {
        self.send_part(sender, TokenPart { total: data.len() as u64, ..token }, 0, data)
    }
}

fn token(index: u32, key: u64, tag: u64) -> TokenPart {
    TokenPart { index, key, tag, total: 0 }
}

fn data(len: u64, seed: u64) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

#[test]
fn a_payload_by_token_fills_its_buffer_once_and_leaves_its_tag() {
    both(|here| {
        for len in [0, 1, 200, 5_000, BUFFER_BYTES] {
            let mut s = table(here, 2);
            let (first, second) = (data(len, 1), data(len, 2));
            assert_eq!(s.send_payload(0, token(0, 4, 77), &first), Ok(len), "{here} {len}");
            assert_eq!((s.state(0), s.entry(0).tag, s.entry(0).total), ((4, TokenState::Done), 77, len));
            assert!(s.holds(0, &first), "{here} {len}");
            let again = s.send_payload(1, token(0, 4, 78), &second);
            assert_eq!(again, Err(OpError::TokenRefused { index: 0 }));
            assert_eq!((s.entry(0).tag, s.holds(0, &first)), (77, true));
            assert_eq!(s.state(1), (8, TokenState::Armed));
            assert_eq!(s.world.nodes[1].engine.stats().tokens_refused, 1, "{here} {len}");
        }
    });
}

#[test]
fn a_payload_in_parts_is_done_with_the_last_and_parts_of_others_stay_out() {
    both(|here| {
        let mut s = table(here, 2);
        let all = data(150_000, 3);
        let ours = TokenPart { total: 150_000, ..token(1, 8, 5) };
        let theirs = TokenPart { tag: 6, ..ours };
        assert_eq!(s.send_part(0, ours, 0, &all[..50_000]), Ok(50_000));
        assert_eq!(s.state(1), (8, TokenState::Filling));
        let refused = Err(OpError::TokenRefused { index: 1 });
        assert_eq!(s.send_part(1, theirs, 0, &[0xee; 150_000]), refused);
        assert_eq!(s.send_part(1, theirs, 60_000, &[0xee; 90_000]), refused);
        assert_eq!(s.send_part(0, ours, 50_000, &all[50_000..]), Ok(100_000));
        assert_eq!((s.state(1), s.entry(1).tag), ((8, TokenState::Done), 5));
        assert!(s.holds(1, &all));
        assert_eq!(s.send_part(0, ours, 50_000, &[0xee; 10]), refused, "nothing comes after the end");
        assert!(s.holds(1, &all));
    });
}

#[test]
fn nothing_goes_by_a_token_that_is_wrong_cancelled_or_not_there() {
    both(|here| {
        let mut s = table(here, 1);
        s.set_entry(1, TokenState::Cancelled.word(8));
        for (index, key) in [(0, 8), (0, 0), (1, 8), (2, 0), (2, 4), (8, 4), (TOKENS_OUT, 4), (u32::MAX, 4)] {
            let refused = s.send_payload(0, token(index, key, 1), &[0xee; 1_000]);
            assert_eq!(refused, Err(OpError::TokenRefused { index: index.into() }), "{here} {key}");
        }
        let long = s.send_payload(0, token(0, 4, 1), &vec![0xee; BUFFER_BYTES as usize + 1]);
        assert_eq!(long, Err(OpError::TokenRefused { index: 0 }));
        let past = s.send_part(0, TokenPart { total: 7, ..token(0, 4, 1) }, 0, &[0xee; 8]);
        assert_eq!(past, Err(OpError::OutOfBounds { offset: 0, len: 8, size: 7 }));
        assert_eq!(s.state(0), (4, TokenState::Armed));
        assert!(!s.table_memory().contains(&0xee), "{here}");
        // What a payload brings is no entry, though it looks like one: that of index 4, which is
        // where the first buffer begins.
        assert_eq!(FIRST_BUFFER, 4 * TOKEN_ENTRY_BYTES);
        let forged = TokenEntry { state: TokenState::Armed.word(16), tag: 0, total: 0, offset: 0, bytes: 5_000 };
        assert_eq!(s.send_payload(0, token(0, 4, 1), &forged.to_bytes()), Ok(40));
        assert_eq!(s.send_payload(0, token(4, 16, 1), &[0xee; 100]), Err(OpError::TokenRefused { index: 4 }));
        assert!(!s.table_memory().contains(&0xee), "{here}");
        s.set_entry(0, TokenState::Armed.word(4));
        // An owner that writes nonsense into its table harms nobody but itself.
        let state = TokenState::Armed.word(4);
        let wild = TokenEntry { state, tag: 0, total: 0, offset: u64::MAX - 3, bytes: BUFFER_BYTES };
        s.table_memory()[..40].copy_from_slice(&wild.to_bytes());
        assert!(matches!(s.send_payload(0, token(0, 4, 1), &[0xee; 1_000]), Err(OpError::OutOfBounds { .. })));
        assert!(!s.table_memory().contains(&0xee), "{here}");
    });
}

/// An entry past those that count, in a table that is not so long either.
const TOKENS_OUT: u32 = vmmc_nic::limits::TOKENS_MAX as u32;

#[test]
fn a_cancel_in_mid_payload_keeps_the_rest_out() {
    both(|here| {
        let mut s = table(here, 1);
        let part = TokenPart { total: 2_000, ..token(0, 4, 9) };
        assert_eq!(s.send_part(0, part, 0, &[1; 1_000]), Ok(1_000));
        s.set_entry(0, TokenState::Cancelled.word(4));
        let refused = s.send_part(0, part, 1_000, &[0xee; 1_000]);
        assert_eq!(refused, Err(OpError::TokenRefused { index: 0 }));
        assert!(!s.table_memory().contains(&0xee) && s.state(0) == (4, TokenState::Cancelled), "{here}");
    });
}

#[test]
fn of_many_payloads_by_one_token_one_comes_whole() {
    both(|here| {
        let mut s = table(here, 4);
        let all: Vec<Vec<u8>> = (0..4).map(|sender| data(40_000, sender + 100)).collect();
        let cookies: Vec<u64> = (0..4)
            .map(|sender| {
                let part = TokenPart { total: 40_000, ..token(0, 4, sender as u64) };
                s.post_part(sender, part, 0, &all[sender])
            })
            .collect();
        let results: Vec<_> = cookies.into_iter().map(|cookie| s.world.completion(s.node, cookie)).collect();
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{here} {results:?}");
        let winner = s.entry(0).tag as usize;
        assert!(results[winner].is_ok() && s.holds(0, &all[winner]), "{here}");
    });
}

#[test]
fn a_refused_payload_is_dropped_quietly_when_nobody_waits_for_it() {
    both(|here| {
        let mut s = table(here, 1);
        let (process, import) = s.senders[0];
        let part = TokenPart { total: 5, ..token(0, 12, 1) };
        let source = Source::Inline(b"hello");
        let posted = Command::TokenSend { import, token: part, offset: 0, source, completion: None };
        s.world.post(s.node, process, posted).expect("room");
        s.world.run_to_quiescence();
        let told = |event: &Event| matches!(event, Event::SendFailed { .. } | Event::ImportBroken { .. });
        let node = s.node;
        assert!(!s.world.nodes[node].events.iter().any(told), "{here}");
        assert_eq!(s.send_payload(0, token(0, 4, 2), b"right"), Ok(5));
    });
}

#[test]
fn tables_take_payloads_only_and_other_exports_take_none() {
    both(|here| {
        let mut s = table(here, 1);
        let (process, import) = s.senders[0];
        let (source, completion) = (Source::Inline(b"x"), Some(Cookie(7)));
        let send = Command::Send { import, offset: 0, source, notify: None, counter: None, completion };
        s.world.post(s.node, process, send).expect("room");
        assert_eq!(s.world.completion(s.node, 7), Err(OpError::TokenOnly));
        let ranges = [ByteRange { start: 0, end: 1 }];
        let gather = Command::GatherSend { import, ranges: &ranges, source, notify: None, counter: None, completion };
        s.world.post(s.node, process, gather).expect("room");
        assert_eq!(s.world.completion(s.node, 7), Err(OpError::TokenOnly));
        for kind in [ExportKind::Memory, ExportKind::Ring] {
            let mut s = fixture(here, RING_HEAD_BYTES + RING_BYTES, kind, 1);
            assert_eq!(s.send_payload(0, token(0, 4, 1), b"x"), Err(OpError::NotByToken));
        }
        let now = s.world.now;
        let owner = s.target.process;
        let (kind, rights) = (TABLE, Rights::WRITE);
        let good = ExportSpec { kind, rights, notify: false, ..export_spec(s.target.region, 4_096, "more") };
        let bad = [
            ExportSpec { len: 184, ..good.clone() },
            ExportSpec { kind: ExportKind::Tokens { entries: 0 }, ..good.clone() },
            ExportSpec { kind: ExportKind::Tokens { entries: TOKENS_OUT + 1 }, len: 1 << 20, ..good.clone() },
            ExportSpec { len: 4_092, ..good.clone() },
            ExportSpec { offset: 4, ..good.clone() },
            ExportSpec { rights: Rights::ALL, ..good.clone() },
            ExportSpec { redirectable: true, ..good.clone() },
            ExportSpec { notify: true, ..good.clone() },
        ];
        for spec in bad {
            let refused = s.world.nodes[1].engine.export(now, owner, spec);
            assert!(matches!(refused, Err(ExportError::BadTokenTable { .. })), "{refused:?}");
        }
        assert!(s.world.nodes[1].engine.export(now, owner, good).is_ok());
    });
}
