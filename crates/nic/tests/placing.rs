//! Direct placement: what has a place before the engine has the datagram, and what has none.
//!
//! Invariant: nothing has a place but what would be deposited there; what does not belong in its
//! place is taken for what it is.

mod common;

use common::{World, export_spec};
use std::net::SocketAddr;
use std::time::Duration;
use vmmc_nic::*;

const LEN: usize = 100_000;
/// Bytes of a datagram that are known when its place is asked for.
const HEAD: usize = 256;
/// Bytes in front of what is sealed.
const HEADER: usize = 20;

struct Setup {
    world: World,
    source: RegionRef,
    target: RegionRef,
    export: ExportId,
    import: ImportId,
}

fn setup_of(sealed: bool, change: impl FnOnce(&mut ExportSpec)) -> Setup {
    let mut world = World::pair(1, sealed);
    for (index, other) in [(0, 1), (1, 0)] {
        let to = world.nodes[other].addrs[0];
        world.nodes[index].engine.set_path_mtu(to, 65_507);
    }
    let (ours, owner) = (world.process(0), world.process(1));
    let (source, target) = (world.region(0, ours, 2, LEN), world.region(1, owner, 1, LEN));
    world.fill(0, source, |at| (at / 100) as u8 | 1);
    let mut spec = export_spec(target.region, LEN as u64, "buffer");
    change(&mut spec);
    let now = world.now;
    let export = world.nodes[1].engine.export(now, owner, spec.clone()).expect("it is a good one");
    let spec = ImportSpec {
        node: Some(NodeSpec::Addr(world.nodes[1].addrs[0])),
        what: ImportTarget::Name("buffer".into()),
        owner: Owner::Any,
        rights: spec.rights,
        wait: false,
        deadline: now + Duration::from_secs(1),
        own_order: false,
    };
    world.nodes[0].engine.import(now, ours, spec, Cookie(9));
    let import = world.import_answer(0).expect("granted").import;
    world.run_to_quiescence();
    Setup { world, source, target, export, import }
}

fn setup() -> Setup {
    setup_of(false, |_| {})
}

impl Setup {
    fn post(&mut self, offset: u64, len: u64, (notify, counter): (Option<u64>, Option<u64>)) {
        let source = Source::Region { region: self.source.region, offset: 0, len };
        let completion = Some(Cookie(1));
        let command = Command::Send { import: self.import, offset, source, notify, counter, completion };
        self.world.post(0, self.source.process, command).expect("room");
    }

    /// The next datagram of node 0.
    fn datagram(&mut self) -> (SocketAddr, Vec<u8>) {
        self.datagram_of(0)
    }

    fn datagram_of(&mut self, node: usize) -> (SocketAddr, Vec<u8>) {
        let (now, node) = (self.world.now, &mut self.world.nodes[node]);
        let mut buf = vec![0; 65_536];
        let (sent, lent) = node.engine.poll_transmit_lending(now, &mut buf, &mut node.memory, true).expect("one");
        let len = lent.map_or(sent.len, |lent| lent.put_in(&mut buf, sent.len, &mut node.memory));
        buf.truncate(len);
        (node.addrs[0], buf)
    }

    fn placement(&mut self, from: SocketAddr, datagram: &[u8]) -> Option<Placement> {
        self.placement_of(from, &datagram[..HEAD], datagram.len())
    }

    fn placement_of(&mut self, from: SocketAddr, head: &[u8], len: usize) -> Option<Placement> {
        let node = &mut self.world.nodes[1];
        node.engine.placement(from, head, len, &mut node.memory)
    }

    /// Has node 1 take a datagram of which a piece is in its place.
    fn take(&mut self, from: SocketAddr, datagram: &mut [u8], placement: &Placement) {
        let (now, node) = (self.world.now, &mut self.world.nodes[1]);
        let piece = &mut datagram[placement.at..][..placement.len];
        node.memory.deposit(placement.memory, placement.offset, piece);
        piece.fill(0xaa);
        node.engine.handle_placed_datagram(now, from, Codepoint::NotEct, datagram, placement, &mut node.memory);
    }

    fn dropped(&self) -> u64 {
        self.world.nodes[1].engine.stats().bad_seals
    }
}

#[test]
fn a_long_write_has_its_place_when_it_is_next() {
    let mut s = setup();
    s.post(500, 90_000, (Some(7), None));
    let (from, mut first) = s.datagram();
    let (_, mut second) = s.datagram();
    let placement = s.placement(from, &first).expect("it is next");
    assert_eq!((placement.memory, placement.offset), (s.target, 500));
    assert!(placement.len > 50_000 && placement.at < HEAD && placement.at + placement.len == first.len());
    assert_eq!(s.placement(from, &second), None, "it is not next");
    s.take(from, &mut first, &placement);
    let then = s.placement(from, &second).expect("now it is");
    assert_eq!((then.memory, then.offset), (s.target, 500 + placement.len as u64));
    assert_eq!(s.placement(from, &first), None, "it has come");
    s.take(from, &mut second, &then);
    s.world.run_to_quiescence();
    assert_eq!(s.world.completion(0, 1), Ok(90_000));
    assert_eq!(s.world.bytes(1, s.target)[500..90_500], s.world.bytes(0, s.source)[..90_000]);
    let notified = s.world.wait_for(1, |event| matches!(event, Event::Notification { .. }));
    let tail = u64::from_le_bytes(s.world.bytes(0, s.source)[89_992..90_000].try_into().unwrap());
    let Event::Notification { offset, len, last_word, word, .. } = notified else { unreachable!() };
    assert_eq!((offset, len, last_word, word), (500, 90_000, tail, 7), "its last word was read in its place");
    assert_eq!(s.dropped(), 0);
}

#[test]
fn what_would_not_be_deposited_there_has_no_place() {
    let whole = |s: &mut Setup| s.datagram();
    // Sealed, without the right, ended, counted, redirected, short.
    let mut sealed = setup_of(true, |_| {});
    sealed.post(0, 90_000, (None, None));
    assert!(!sealed.world.nodes[1].engine.may_place());
    let (from, datagram) = whole(&mut sealed);
    assert_eq!(sealed.placement(from, &datagram), None);
    // Nor does one of somebody who knows all but the key.
    let mut plain = setup();
    plain.post(0, 90_000, (None, None));
    let (_, known) = whole(&mut plain);
    assert!(plain.placement(from, &known).is_some());
    assert_eq!(sealed.placement(from, &[&datagram[..HEADER], &known[HEADER..]].concat()), None);

    let mut ended = setup();
    ended.post(0, 90_000, (None, None));
    let (from, datagram) = whole(&mut ended);
    assert!(ended.placement(from, &datagram).is_some() && ended.world.nodes[1].engine.may_place());
    let (now, owner, export) = (ended.world.now, ended.target.process, ended.export);
    ended.world.nodes[1].engine.unexport(now, owner, export).expect("it is there");
    assert_eq!(ended.placement(from, &datagram), None);

    let mut counted = setup();
    counted.post(0, 9_000, (None, Some(96_000)));
    let (from, datagram) = whole(&mut counted);
    assert_eq!(counted.placement(from, &datagram), None);

    let mut redirected = setup_of(false, |spec| spec.redirectable = true);
    redirected.post(0, 90_000, (None, None));
    let (from, datagram) = whole(&mut redirected);
    assert_eq!(redirected.placement(from, &datagram), None);

    let mut short = setup();
    short.post(0, limits::PLACED_BYTES_MIN as u64 - 1, (None, None));
    let (from, datagram) = whole(&mut short);
    assert_eq!(short.placement(from, &datagram), None);
}

#[test]
fn a_head_that_lies_has_no_place_beyond_what_its_sender_may_write() {
    let mut s = setup();
    s.post(0, 90_000, (None, None));
    let (from, datagram) = s.datagram();
    let placement = s.placement(from, &datagram).expect("it is next");
    assert_eq!(s.placement("10.0.0.9:7000".parse().unwrap(), &datagram), None, "of somebody else");
    assert_eq!(s.placement_of(from, &datagram[..HEAD], datagram.len() - 1), None, "cut short");
    for len in 0..placement.at {
        assert_eq!(s.placement_of(from, &datagram[..len], datagram.len()), None, "{len} bytes of it");
    }
    // Whatever a byte of the head says, the place is in the export.
    for at in 0..placement.at {
        for byte in 0..=255 {
            let mut head = datagram[..HEAD].to_vec();
            head[at] = byte;
            if let Some(place) = s.placement_of(from, &head, datagram.len()) {
                assert_eq!(place.memory, s.target);
                assert!(place.offset + place.len as u64 <= LEN as u64 && place.at + place.len <= datagram.len());
            }
        }
    }
}

#[test]
fn a_datagram_that_does_not_belong_in_its_place_is_taken_for_what_it_is() {
    let mut s = setup();
    s.post(0, 90_000, (None, None));
    let (from, datagram) = s.datagram();
    let placement = s.placement(from, &datagram).expect("it is next");
    // Its checksum leaves out another piece than its head says, or it is damaged, or another one.
    let end = datagram.len();
    for (at, dropped) in [(24, 1), (20, 2), (35, 3), (41, 4)] {
        let mut other = datagram.clone();
        other[at] ^= 1;
        s.take(from, &mut other, &placement);
        assert_eq!(s.dropped(), dropped, "byte {at}");
    }
    s.take(from, &mut vec![0; end], &placement);
    assert_eq!(s.world.nodes[1].engine.stats().malformed, 1);
    // None of them counts as come, nor has one that did not open left its place to another one.
    assert_eq!(s.placement(from, &datagram), Some(placement));
    // Nor is one that waits for others kept without its piece.
    let (_, mut second) = s.datagram();
    let rest = 90_000 - placement.len;
    let at = second.len() - rest;
    s.take(from, &mut second, &Placement { at, len: rest, offset: 0, ..placement });
    let elsewhere = Placement { offset: LEN as u64 - placement.len as u64, ..placement };
    s.take(from, &mut datagram.clone(), &elsewhere);
    assert_eq!(s.placement(from, &datagram), None);
    assert_eq!(s.dropped(), 4);
    let whole = |s: &Setup, len: usize| s.world.bytes(1, s.target)[..len] == s.world.bytes(0, s.source)[..len];
    assert!(whole(&s, 90_000), "the second one was kept");
    s.world.run_to_quiescence();
    assert_eq!(s.world.completion(0, 1), Ok(90_000));
    assert!(whole(&s, 90_000));
}

#[test]
fn what_no_checksum_leaves_out_is_read_before_it_counts() {
    let mut s = setup();
    s.post(0, 60_000, (None, None));
    let (now, node) = (s.world.now, &mut s.world.nodes[0]);
    let (mut datagram, from) = (vec![0; 65_536], node.addrs[0]);
    let sent = node.engine.poll_transmit(now, &mut datagram, &mut node.memory).expect("there is one");
    datagram.truncate(sent.len);
    let placement = s.placement(from, &datagram).expect("it is next");
    let mut damaged = datagram.clone();
    damaged[placement.at + 1_000] ^= 1;
    s.take(from, &mut damaged, &placement);
    assert_eq!((s.dropped(), s.placement(from, &datagram)), (1, Some(placement)));
    s.take(from, &mut datagram, &placement);
    s.world.run_to_quiescence();
    assert_eq!((s.dropped(), s.world.completion(0, 1)), (1, Ok(60_000)));
    assert_eq!(s.world.bytes(1, s.target)[..60_000], s.world.bytes(0, s.source)[..60_000]);
}

#[test]
fn of_a_payload_by_token_all_parts_have_a_place_but_the_first() {
    let (at, buffer, bytes) = (0, 4_096u64, 90_000u64);
    let mut s = setup_of(false, |spec| {
        *spec = ExportSpec {
            rights: Rights::WRITE,
            notify: false,
            kind: ExportKind::Tokens { entries: 1 },
            ..spec.clone()
        };
    });
    let armed = TokenEntry { state: TokenState::Armed.word(4), tag: 0, total: 0, offset: buffer, bytes };
    s.world.nodes[1].memory.deposit(s.target, at, &armed.to_bytes());
    let token = TokenPart { index: 0, key: 4, tag: 5, total: bytes };
    let source = Source::Region { region: s.source.region, offset: 0, len: bytes };
    let command = Command::TokenSend { import: s.import, token, offset: 0, source, completion: Some(Cookie(1)) };
    s.world.post(0, s.source.process, command).expect("room");
    let (from, mut first) = s.datagram();
    let (_, mut second) = s.datagram();
    assert_eq!(s.placement(from, &first), None, "its key is not taken yet");
    s.world.deliver(1, from, &mut first);
    let placement = s.placement(from, &second).expect("the payload has the key");
    assert_eq!((placement.memory, placement.offset + placement.len as u64), (s.target, buffer + bytes));
    // The owner withdraws it, which it may not: nothing more comes.
    let entry: Vec<u8> = s.world.bytes(1, s.target)[..40].to_vec();
    s.world.nodes[1].memory.deposit(s.target, at, &[0; 8]);
    assert_eq!(s.placement(from, &second), None);
    s.world.nodes[1].memory.deposit(s.target, at, &entry);
    s.take(from, &mut second, &placement);
    s.world.run_to_quiescence();
    assert_eq!(s.world.completion(0, 1), Ok(bytes));
    let there = s.world.bytes(1, s.target);
    assert_eq!(there[buffer as usize..][..bytes as usize], s.world.bytes(0, s.source)[..bytes as usize]);
    assert_eq!(TokenState::of_word(u64::from_le_bytes(there[..8].try_into().unwrap())), (4, TokenState::Done));
}

#[test]
fn the_answer_to_a_fetch_has_its_place_where_it_was_asked_for() {
    let mut s = setup();
    s.world.fill(1, s.target, |at| (at / 50) as u8 | 1);
    let (import, region) = (s.import, s.source.region);
    let fetch = Command::Fetch { import, offset: 100, len: 60_000, region, region_offset: 7_000, cookie: Cookie(2) };
    s.world.post(0, s.source.process, fetch).expect("room");
    let (from, mut request) = s.datagram();
    s.world.deliver(1, from, &mut request);
    let now = s.world.now;
    let (from, mut answer) = s.datagram_of(1);
    let asker = &mut s.world.nodes[0];
    let placement = asker.engine.placement(from, &answer[..HEAD], answer.len(), &mut asker.memory);
    let placement = placement.expect("it was asked for");
    assert_eq!((placement.memory, placement.offset), (s.source, 7_000));
    let piece = &mut answer[placement.at..][..placement.len];
    asker.memory.deposit(placement.memory, placement.offset, piece);
    piece.fill(0xaa);
    let none = Codepoint::NotEct;
    asker.engine.handle_placed_datagram(now, from, none, &mut answer, &placement, &mut asker.memory);
    assert_eq!(asker.engine.placement(from, &answer[..HEAD], answer.len(), &mut asker.memory), None, "it has come");
    s.world.run_to_quiescence();
    assert_eq!(s.world.completion(0, 2), Ok(60_000));
    assert_eq!(s.world.bytes(0, s.source)[7_000..67_000], s.world.bytes(1, s.target)[100..60_100]);
}
