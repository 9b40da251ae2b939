//! What waits beyond a gap, and how a receiver goes on when the gap has closed: some of it at once,
//! the rest in turns with all else that there is to do.

mod common;

use common::{Fate, Recorded, World, addr, checksum_of};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use vmmc_nic::limits::HELD_RELEASED_MAX;
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

    // Another node asks for a few bytes.
    let source = setup.sources[1];
    let fetch = Command::Fetch {
        import: setup.imports[1],
        offset: 0,
        len: 8,
        region: source.region,
        region_offset: 0,
        cookie: Cookie(101),
    };
    setup.world.post(SENDERS[1], source.process, fetch).expect("room");
    assert_eq!(setup.world.completion(SENDERS[1], 101), Ok(8));

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
        let end = data.len() - 8;
        let sum = checksum_of(&[]).rotate_left(1) ^ checksum_of(&data[..end]);
        data[end..].copy_from_slice(&sum.to_le_bytes());
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
