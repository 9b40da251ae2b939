//! What waits beyond a gap, and how a receiver goes on when the gap has closed: some of it at once,
//! the rest in turns with all else that there is to do.

mod common;

use common::{Fate, PLAIN_BODY_AT, Recorded, World, addr, seal_plainly};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use vmmc_nic::limits::{CHUNK_WINDOW, HELD_RELEASED_MAX};
use vmmc_nic::*;

/// One way: long enough for much to be under way before a loss is known.
const DELAY: Duration = Duration::from_millis(5);
const LEN: usize = 1 << 20;
const SENDERS: [usize; 2] = [0, 2];
const RECEIVER: usize = 1;

struct Setup {
    world: World,
    sources: [RegionRef; 2],
    targets: [RegionRef; 2],
    imports: [ImportId; 2],
    /// The next long datagram to the receiver is lost.
    loses_next: Rc<Cell<bool>>,
    /// The senders hear nothing.
    deaf: Rc<Cell<bool>>,
}

/// Two nodes that have sent much to a third one, and of which nothing is under way.
fn setup(seed: u64) -> Setup {
    let mut world = World::new(seed);
    for _ in 0..3 {
        world.add(|config| config.recv_buffer_bytes = 4 << 20);
    }
    world.delay = DELAY;
    let (loses_next, deaf) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let said = (Rc::clone(&loses_next), Rc::clone(&deaf));
    world.script = Some(Box::new(move |node, len| {
        let lost = if node == RECEIVER { len > 1_000 && said.0.take() } else { said.1.get() };
        if lost { Fate::Lost } else { Fate::Arrives }
    }));
    let to = world.nodes[RECEIVER].addrs.clone();
    let owner = world.process(RECEIVER);
    let [first, second] = [0, 1].map(|index| {
        let node = SENDERS[index];
        world.nodes[node].engine.add_peer(world.now, &to).expect("room");
        let sender = world.process(node);
        let source = world.region(node, sender, 2, LEN);
        let target = world.region(RECEIVER, owner, 1 + index as u32, LEN);
        let name = format!("buffer {index}");
        world.export(RECEIVER, target, &name);
        let import = world.import(node, sender, RECEIVER, &name).import;
        (1..=32).for_each(|cookie| world.send_region(node, source, import, LEN as u64, cookie));
        world.completion(node, 32).expect("arrived");
        world.fill(node, source, move |at| (at * 7 + 3 + index) as u8);
        (source, target, import)
    });
    world.run_to_quiescence();
    let (sources, targets, imports) = ([first.0, second.0], [first.1, second.1], [first.2, second.2]);
    Setup { world, sources, targets, imports, loses_next, deaf }
}

impl Setup {
    /// The senders of these indices send, with cookie 100. The first packet of each is lost,
    /// nothing is said of it yet, and much beyond it has arrived. Returns the lost ones. From now
    /// on the receiver does what may wait only if the test asks for it.
    fn gaps<const N: usize>(&mut self, senders: [usize; N]) -> [Recorded; N] {
        self.world.work_waits = true;
        self.world.tape = Some(Vec::new());
        let lost = senders.map(|index| {
            self.loses_next.set(true);
            let node = SENDERS[index];
            self.world.send_region(node, self.sources[index], self.imports[index], LEN as u64, 100);
            self.world.flush();
            self.long_ones_of(index).next().expect("sent")
        });
        self.world.run_for(2 * DELAY - Duration::from_micros(100));
        for index in senders {
            assert!(self.held(index) > 4 * HELD_RELEASED_MAX, "{}", self.held(index));
        }
        lost
    }

    /// What it has sent to the receiver since, but for short datagrams.
    fn long_ones_of(&self, index: usize) -> impl Iterator<Item = Recorded> + use<> {
        let (from, to) = (addr(SENDERS[index], 0), addr(RECEIVER, 0));
        let sent = self.world.tape.clone().expect("recorded").into_iter();
        sent.filter(move |sent| sent.0 == from && sent.1 == to && sent.2.len() > 1_000)
    }

    fn peer(&self, index: usize) -> PeerInfo {
        let of = addr(SENDERS[index], 0);
        let mut peers = self.world.nodes[RECEIVER].engine.peers();
        peers.find(|peer| peer.paths.iter().any(|path| path.addr == of)).expect("known")
    }

    /// Chunks of that sender that wait at the receiver.
    fn held(&self, index: usize) -> usize {
        self.peer(index).held_chunks
    }

    fn deliver(&mut self, (from, _, data): &Recorded) {
        self.world.deliver(RECEIVER, *from, &mut data.clone());
    }

    fn poll_work(&mut self) -> bool {
        let now = self.world.now;
        let node = &mut self.world.nodes[RECEIVER];
        node.engine.poll_work(now, &mut node.memory)
    }

    /// Another node asks for a few bytes, and has them.
    fn another_node_is_served(&mut self) {
        let (import, source) = (self.imports[1], self.sources[1]);
        let (region, cookie) = (source.region, Cookie(101));
        let fetch = Command::Fetch { import, offset: 0, len: 8, region, region_offset: 0, cookie };
        self.world.post(SENDERS[1], source.process, fetch).expect("room");
        assert_eq!(self.world.completion(SENDERS[1], 101), Ok(8));
    }

    /// All of it arrives, and the sender hears of it within that time.
    fn ends_within(&mut self, index: usize, time: Duration) {
        self.world.work_waits = false;
        let begun = self.world.now;
        assert_eq!(self.world.completion(SENDERS[index], 100), Ok(LEN as u64));
        assert!(self.world.now.since(begun) < time, "{:?}", self.world.now.since(begun));
        let (sent, arrived) = (self.sources[index], self.targets[index]);
        assert!(self.world.bytes(SENDERS[index], sent) == self.world.bytes(RECEIVER, arrived));
        assert_eq!((self.held(index), self.peer(index).held_bytes), (0, 0));
    }
}

#[test]
fn a_closed_gap_lets_so_many_chunks_go_on_at_once_and_another_node_is_served_before_the_rest() {
    let mut setup = setup(1);
    let [lost] = setup.gaps([0]);
    let held = setup.held(0);
    setup.deliver(&lost);
    assert_eq!(setup.held(0), held - HELD_RELEASED_MAX);

    setup.another_node_is_served();

    let mut left = setup.held(0);
    assert!(left >= held - HELD_RELEASED_MAX, "nothing more was processed meanwhile");
    while left > 0 {
        let more = setup.poll_work();
        let processed = left - setup.held(0);
        assert!(processed == HELD_RELEASED_MAX || !more && processed == left, "{processed} of {left}");
        left -= processed;
    }
    setup.ends_within(0, 10 * DELAY);
}

#[test]
fn peers_whose_gaps_have_closed_take_turns() {
    let mut setup = setup(2);
    let lost = setup.gaps([0, 1]);
    let held = [setup.held(0), setup.held(1)];
    lost.iter().for_each(|lost| setup.deliver(lost));
    for turn in 1..4 {
        assert_eq!([0, 1].map(|index| held[index] - setup.held(index)), [turn * HELD_RELEASED_MAX; 2]);
        assert!(setup.poll_work() && setup.poll_work());
    }
    (0..2).for_each(|index| setup.ends_within(index, 10 * DELAY));
}

#[test]
fn what_is_said_of_the_last_chunks_behind_a_gap_may_be_lost() {
    let mut setup = setup(3);
    let [lost] = setup.gaps([0]);
    // All has come when the gap closes, and the sender hears that all is held: nothing is under way
    // when the last of it is processed.
    setup.world.run_for(2 * DELAY);
    setup.deliver(&lost);
    setup.world.run_for(2 * DELAY);
    assert_eq!(setup.world.nodes[SENDERS[0]].engine.peers().next().expect("known").in_flight_bytes, 0);
    setup.deaf.set(true);
    while setup.poll_work() {}
    setup.world.flush();
    setup.deaf.set(false);
    setup.ends_within(0, 20 * DELAY);
}

#[test]
fn what_comes_again_while_it_waits_to_be_processed_is_a_duplicate() {
    let mut setup = setup(4);
    let [lost] = setup.gaps([0]);
    setup.deliver(&lost);
    let (held, duplicates) = (setup.held(0), setup.peer(0).stats.duplicates);
    let again: Vec<_> = setup.long_ones_of(0).take(2 * HELD_RELEASED_MAX).collect();
    for (packet, (from, to, mut data)) in again.into_iter().enumerate() {
        // Under a later packet number, as a sender sends again what was not acknowledged.
        data[12..20].copy_from_slice(&(1_000_000 + packet as u64).to_le_bytes());
        seal_plainly(&mut data);
        setup.deliver(&(from, to, data));
    }
    assert_eq!(setup.held(0), held);
    assert_eq!(setup.peer(0).stats.duplicates, duplicates + 2 * HELD_RELEASED_MAX as u64);
    while setup.poll_work() {}
    assert_eq!((setup.held(0), setup.peer(0).held_bytes), (0, 0));
}

#[test]
fn a_peer_that_begins_anew_leaves_nothing_to_be_processed() {
    let mut setup = setup(5);
    let [lost] = setup.gaps([0]);
    setup.deliver(&lost);
    assert!(setup.held(0) > 0);
    setup.world.restart(SENDERS[0], |_| {});
    let (to, now) = (setup.world.nodes[RECEIVER].addrs.clone(), setup.world.now);
    setup.world.nodes[SENDERS[0]].engine.add_peer(now, &to).expect("room");
    let process = setup.world.process(SENDERS[0]);
    setup.world.import(SENDERS[0], process, RECEIVER, "buffer 0");
    assert_eq!(setup.held(0), 0);
    let before = setup.world.bytes(RECEIVER, setup.targets[0]).to_vec();
    assert!(!setup.poll_work());
    assert!(setup.world.bytes(RECEIVER, setup.targets[0]) == before);
}

#[test]
fn a_peer_that_opens_and_closes_gaps_and_acknowledges_nothing_is_no_burden_to_another() {
    let mut setup = setup(6);
    setup.world.tape = Some(Vec::new());
    setup.world.send_region(SENDERS[0], setup.sources[0], setup.imports[0], LEN as u64, 100);
    setup.world.completion(SENDERS[0], 100).expect("arrived");
    let (from, to) = (addr(SENDERS[0], 0), addr(RECEIVER, 0));
    let sent = setup.world.tape.take().expect("recorded").into_iter().filter(|sent| sent.0 == from && sent.1 == to);
    let mut last =
        sent.map(|sent| sent.2).filter(|data| fuzzing::seen(data).is_some_and(|seen| seen.next_seq.is_some()));
    let last = last.next_back().expect("sent");
    let seen = fuzzing::seen(&last).expect("a packet");
    let (mut number, mut next) = (seen.number + 1_000, seen.next_seq.expect("with chunks"));
    // From now on all that the receiver gets of this peer is made by hand, and nothing reaches it.
    setup.world.nodes[SENDERS[0]].down = true;
    setup.world.work_waits = true;
    let mut nops = |setup: &mut Setup, first: u64, count: u64| {
        let mut packet = last[..PLAIN_BODY_AT].to_vec();
        packet[12..20].copy_from_slice(&number.to_le_bytes());
        packet.push(2);
        packet.extend(first.to_le_bytes());
        (0..count).for_each(|_| packet.extend([0x11, 0]));
        seal_plainly(&mut packet);
        number += 1;
        setup.world.deliver(RECEIVER, from, &mut packet);
    };
    // As many as may be held, and then one more.
    for at in (1..=CHUNK_WINDOW).step_by(512) {
        nops(&mut setup, next + at, 512.min(CHUNK_WINDOW + 1 - at));
    }
    assert_eq!(setup.held(0) as u64, CHUNK_WINDOW);
    nops(&mut setup, next, 1);
    let mut left = CHUNK_WINDOW as usize - HELD_RELEASED_MAX;
    while left > 0 {
        assert_eq!(setup.held(0), left);
        if left % (64 * HELD_RELEASED_MAX) == 0 {
            setup.another_node_is_served();
        }
        setup.poll_work();
        left -= left.min(HELD_RELEASED_MAX);
    }
    next += CHUNK_WINDOW + 1;
    for _ in 0..2_000 {
        nops(&mut setup, next + 1, 200);
        nops(&mut setup, next, 1);
        next += 201;
        while setup.poll_work() {}
    }
    assert_eq!((setup.held(0), setup.peer(0).held_bytes), (0, 0));
    setup.another_node_is_served();
}
