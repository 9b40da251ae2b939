//! What users of one node take of another node's tables, and processes of what they share in one:
//! others always find something.
//!
//! Nobody lies here: each of these is what an ordinary user can do. And none of it is done in one
//! turn.

mod common;

use common::{Fate, World, export_spec};
use std::time::Duration;
use vmmc_nic::limits::{
    GRANTS_MAX, HELD_BYTES_OWN, IMPORTS_PER_PROCESS_MAX, INLINE_BUFFERS_MAX, PEERS_CONFIGURED_KEPT, PEERS_MAX,
    QUEUE_OPS_MAX, REMOTE_WAITS_PER_PEER_MAX,
};
use vmmc_nic::*;

const HOSTILE: u32 = 1_001;
const HONEST: u32 = 1_002;

/// A world of two nodes with memory on the second one that anyone may import.
fn world(seed: u64) -> World {
    let mut world = World::pair(seed, true);
    let owner = world.process(1);
    let memory = world.region(1, owner, 1, 1 << 20);
    let spec = ExportSpec { access: Access::Anyone, ..export_spec(memory.region, 1 << 20, "open") };
    let now = world.now;
    world.nodes[1].engine.export(now, owner, spec).expect("exported");
    world
}

fn attach(world: &mut World, uid: u32) -> ProcessId {
    world.nodes[0].engine.attach(uid).expect("room")
}

/// How many imports that had been asked for were granted, and the last refusal.
fn answers(world: &mut World) -> (usize, Option<ImportError>) {
    world.run_to_quiescence();
    let (mut granted, mut refused) = (0, None);
    for event in world.nodes[0].events.drain(..) {
        match event {
            Event::ImportDone { result: Ok(_), .. } => granted += 1,
            Event::ImportDone { result: Err(why), .. } => refused = Some(why),
            _ => {}
        }
    }
    (granted, refused)
}

#[test]
fn a_user_that_imports_all_it_can_leaves_imports_of_that_node_to_others() {
    let mut world = world(1);
    let mut taken = 0;
    for _ in 0..GRANTS_MAX.div_ceil(IMPORTS_PER_PROCESS_MAX) {
        let process = attach(&mut world, HOSTILE);
        for _ in 0..IMPORTS_PER_PROCESS_MAX / 8_192 {
            (0..8_192).for_each(|_| world.start_import(0, process, 1, "open", false));
            taken += answers(&mut world).0;
        }
    }
    assert!((GRANTS_MAX / 2 - 1..=GRANTS_MAX / 2).contains(&taken), "{taken}");
    let honest = attach(&mut world, HONEST);
    world.import(0, honest, 1, "open");
}

#[test]
fn a_user_that_waits_for_all_it_can_lets_others_wait_too() {
    let mut world = world(2);
    let process = attach(&mut world, HOSTILE);
    (0..REMOTE_WAITS_PER_PEER_MAX).for_each(|_| world.start_import(0, process, 1, "never", true));
    let (granted, refused) = answers(&mut world);
    assert!(granted == 0 && matches!(refused, Some(ImportError::TableFull { .. })), "{refused:?}");
    let honest = attach(&mut world, HONEST);
    world.start_import(0, honest, 1, "soon", true);
    world.run_to_quiescence();
    let owner = world.process(1);
    let memory = world.region(1, owner, 2, 64);
    let spec = ExportSpec { access: Access::Anyone, ..export_spec(memory.region, 64, "soon") };
    let now = world.now;
    world.nodes[1].engine.export(now, owner, spec).expect("exported");
    assert!(world.import_answer(0).is_ok());
    // What they hold comes back when they go.
    world.nodes[0].engine.detach(world.now, process);
    world.run_to_quiescence();
    let next = attach(&mut world, HOSTILE);
    world.start_import(0, next, 1, "never", true);
    assert_eq!(answers(&mut world), (0, None), "it waits");
}

/// A hostile and an honest process, each with a region of that length and an import to fetch from.
fn two_fetchers(world: &mut World, len: u64) -> ([ProcessId; 2], [ImportId; 2]) {
    let processes = [HOSTILE, HONEST].map(|uid| attach(world, uid));
    let imports = processes.map(|process| {
        world.region(0, process, 7, len as usize);
        world.import(0, process, 1, "open").import
    });
    (processes, imports)
}

fn fetch(import: ImportId, len: u64, cookie: u64) -> Command<'static> {
    Command::Fetch { import, offset: 0, len, region: RegionId(7), region_offset: 0, cookie: Cookie(cookie) }
}

#[test]
fn a_process_that_fetches_all_it_can_holds_no_fetch_of_another_back() {
    const LEN: u64 = 256 << 10;
    let mut world = world(3);
    let ([hostile, honest], imports) = two_fetchers(&mut world, LEN);
    for round in 0..4 {
        let refused = (0..QUEUE_OPS_MAX).any(|_| world.post(0, hostile, fetch(imports[0], LEN, 1)).is_err());
        assert_eq!(refused, round >= 2, "its queue is full from the third round on: {round}");
        // The first of them are under way.
        (0..50).for_each(|_| {
            world.step();
        });
        if round == 3 {
            world.post(0, honest, fetch(imports[1], 8, 2)).expect("room");
        }
    }
    let long = |event: &&Event| matches!(event, Event::Completion { cookie: Cookie(1), .. });
    let (start, done) = (world.now, world.nodes[0].events.iter().filter(long).count());
    assert_eq!(world.completion(0, 2), Ok(8));
    let waited = world.now.since(start);
    let before = world.nodes[0].events.iter().filter(long).count() - done;
    assert!(before < 10, "{before} long fetches came first, {waited:?}");
}

#[test]
fn long_fetches_of_processes_take_turns_however_many_one_of_them_has() {
    const LEN: u64 = 1 << 20;
    let mut world = world(3);
    let ([hostile, honest], imports) = two_fetchers(&mut world, LEN);
    (0..500).for_each(|_| world.post(0, hostile, fetch(imports[0], LEN, 1)).expect("room"));
    world.run_for(Duration::from_millis(2));
    (0..4).for_each(|_| world.post(0, honest, fetch(imports[1], LEN, 2)).expect("room"));
    let long = |event: &&Event| matches!(event, Event::Completion { cookie: Cookie(1), .. });
    let done = world.nodes[0].events.iter().filter(long).count();
    (0..4).for_each(|_| assert_eq!(world.completion(0, 2), Ok(LEN)));
    let before = world.nodes[0].events.iter().filter(long).count() - done;
    assert!(before <= 12, "{before} of the other one came first: what it had asked for, and one for one");
}

#[test]
fn processes_that_send_all_they_can_leave_buffers_to_another() {
    let mut world = world(4);
    let hostile: Vec<ProcessId> =
        (0..INLINE_BUFFERS_MAX / QUEUE_OPS_MAX).map(|_| attach(&mut world, HOSTILE)).collect();
    let honest = attach(&mut world, HONEST);
    let imports: Vec<ImportId> = hostile.iter().map(|process| world.import(0, *process, 1, "open").import).collect();
    let own = world.import(0, honest, 1, "open").import;
    // The other node does not answer any more.
    let far = world.nodes[1].addrs[0];
    world.cut.insert(far);
    let mut posted = 0;
    for (process, import) in hostile.iter().zip(imports) {
        let sends = (0..QUEUE_OPS_MAX).map(|_| world.post(0, *process, common::plain_send(import, 0, &[1; 8])));
        posted += sends.filter(Result::is_ok).count();
    }
    assert!(posted < INLINE_BUFFERS_MAX, "{posted} buffers are taken");
    for number in 0..100 {
        let posted = world.post(0, honest, common::plain_send(own, 0, &[2; 8]));
        assert!(posted.is_ok(), "{number}: {posted:?}");
    }
}

#[test]
fn very_many_waits_that_expire_at_once_end_in_turns() {
    const WAITS: usize = 8_000;
    let mut world = World::pair(5, true);
    let process = attach(&mut world, HOSTILE);
    (0..WAITS).for_each(|_| world.start_import(0, process, 0, "never", true));
    let late = world.now + std::time::Duration::from_secs(31);
    let engine = &mut world.nodes[0].engine;
    let (mut ended, mut turns) = (0, 0);
    while ended < WAITS {
        assert!(engine.is_due(late), "the rest is due");
        engine.handle_timeout(late);
        let now = std::iter::from_fn(|| engine.poll_event()).count();
        assert!((1..=limits::EXPIRED_PER_TURN).contains(&now), "{now} in one turn");
        ended += now;
        turns += 1;
    }
    assert_eq!((ended, turns), (WAITS, WAITS.div_ceil(limits::EXPIRED_PER_TURN)));
}

/// A world whose second node is silent from now on, with an import of an honest process of the
/// first.
fn world_of_a_silent_node(seed: u64) -> (World, ProcessId, ImportId) {
    let mut world = world(seed);
    let honest = attach(&mut world, HONEST);
    let import = world.import(0, honest, 1, "open").import;
    world.run_to_quiescence();
    let far = world.nodes[1].addrs[0];
    world.cut.insert(far);
    (world, honest, import)
}

/// The second node answers again: the session has lived on, and this many packets carry all that
/// waited.
fn reconnect(world: &mut World, honest: ProcessId, import: ImportId) -> u64 {
    world.cut.clear();
    let before = world.sent;
    world.run_to_quiescence();
    let sent = world.sent - before;
    let ended = |event: &Event| matches!(event, Event::ImportBroken { .. } | Event::PeerDown { .. });
    assert!(!world.nodes[0].events.iter().any(ended), "the session has ended");
    world.send(0, honest, import, 0, &[7; 8], 77);
    assert_eq!(world.completion(0, 77), Ok(8));
    sent
}

#[test]
fn imports_withdrawn_while_a_node_is_silent_leave_nothing_to_say_to_it() {
    let (mut world, honest, import) = world_of_a_silent_node(6);
    let process = attach(&mut world, HOSTILE);
    let what = || (ImportTarget::Name("never".into()), Owner::Any);
    for round in 0..200_000 {
        let asked = world.start_import_of(0, process, 1, what(), true).expect("it waits");
        if round % 16 == 0 {
            world.flush();
        }
        world.nodes[0].engine.cancel_import(world.now, process, asked);
    }
    // Some of the first went out before they were withdrawn, as many as fit the window.
    let sent = reconnect(&mut world, honest, import);
    assert!(sent < 4_000, "{sent} packets");
}

#[test]
fn pings_that_end_while_a_node_is_silent_leave_nothing_to_say_to_it() {
    let (mut world, honest, import) = world_of_a_silent_node(7);
    let to = world.nodes[1].addrs[0];
    for _ in 0..1_000 {
        for _ in 0..limits::EXPIRED_PER_TURN {
            let now = world.now;
            world.nodes[0].engine.ping(now, NodeSpec::Addr(to), PingBy::Driver(HOSTILE), Cookie(5), now);
        }
        world.nodes[0].engine.handle_timeout(world.now);
        world.flush();
    }
    let sent = reconnect(&mut world, honest, import);
    assert!(sent < 4_000, "{sent} packets");
}

#[test]
fn withdrawn_waits_are_answered_and_count_until_then() {
    let mut world = world(8);
    let process = attach(&mut world, HOSTILE);
    let what = || (ImportTarget::Name("never".into()), Owner::Any);
    // Three times as many as a user may have without an answer.
    for _ in 0..3 * limits::ASKED_PER_PEER_MAX / 2 / 2_048 {
        let asked: Vec<ImportId> =
            (0..2_048).map(|_| world.start_import_of(0, process, 1, what(), true).expect("it waits")).collect();
        world.run_to_quiescence();
        asked.iter().for_each(|import| world.nodes[0].engine.cancel_import(world.now, process, *import));
        world.run_to_quiescence();
        world.nodes[0].events.clear();
    }
    world.import(0, process, 1, "open");
}

#[test]
fn a_user_that_asks_all_it_may_leaves_others_their_turn() {
    let mut world = world(9);
    let hostile = attach(&mut world, HOSTILE);
    let honest = attach(&mut world, HONEST);
    world.import(0, honest, 1, "open");
    (0..8_000).for_each(|_| world.start_import(0, hostile, 1, "open", false));
    world.start_import(0, honest, 1, "open", false);
    let of_honest =
        |event: &Event| matches!(event, Event::ImportDone { process, result: Ok(_), .. } if *process == honest);
    world.wait_for(0, of_honest);
    let before = world.nodes[0].events.iter().filter(|event| matches!(event, Event::ImportDone { .. })).count();
    assert!(before < 200, "{before} others had their answer first, of a packet or two");
}

#[test]
fn requests_that_are_held_back_end_no_session() {
    const LEN: u64 = 1 << 20;
    let mut world = world(10);
    let ([hostile, honest], imports) = two_fetchers(&mut world, LEN);
    // What one process may have asked for takes far longer than a node may be silent.
    world.delay = std::time::Duration::from_millis(20);
    for _ in 0..2 {
        let posted = (0..QUEUE_OPS_MAX).filter(|_| world.post(0, hostile, fetch(imports[0], LEN, 1)).is_ok()).count();
        assert!(posted > 0, "its queue is full");
        world.run_for(std::time::Duration::from_millis(200));
    }
    world.run_for(std::time::Duration::from_secs(8));
    let ended = |event: &Event| matches!(event, Event::ImportBroken { .. } | Event::PeerDown { .. });
    assert!(!world.nodes[0].events.iter().any(ended), "the session has ended");
    world.post(0, honest, fetch(imports[1], 8, 2)).expect("room");
    assert_eq!(world.completion(0, 2), Ok(8));
}

#[test]
fn whatever_addresses_are_asked_there_is_room_for_the_peers_of_the_configuration() {
    let mut world = World::new(4);
    (0..2).for_each(|_| {
        world.add(|config| config.key = common::key());
    });
    let owner = world.process(1);
    let memory = world.region(1, owner, 1, 64);
    let spec = ExportSpec { access: Access::Anyone, ..export_spec(memory.region, 64, "open") };
    let now = world.now;
    world.nodes[1].engine.export(now, owner, spec).expect("exported");
    let process = attach(&mut world, HOSTILE);
    let nobody = |at: usize| format!("10.9.{}.1:7000", at).parse().expect("an address");
    let asked = PEERS_MAX - PEERS_CONFIGURED_KEPT;
    let refusal = |world: &mut World| {
        let event = world.nodes[0].engine.poll_event()?;
        let Event::ImportDone { result, .. } = event else { panic!("{event:?}") };
        Some(result.expect_err("nobody is there"))
    };
    for at in 0..=asked {
        let spec = ImportSpec {
            node: Some(NodeSpec::Addr(nobody(at))),
            what: ImportTarget::Name("open".into()),
            owner: Owner::Any,
            rights: Rights::READ,
            wait: true,
            deadline: now + std::time::Duration::from_secs(30),
            own_order: false,
        };
        world.nodes[0].engine.import(now, process, spec, Cookie(1));
        let full = (at == asked).then_some(ImportError::TableFull { max: asked as u64 });
        assert_eq!(refusal(&mut world), full, "{at}");
    }
    // The driver names as many as have room, of which one answers.
    let to = world.nodes[1].addrs.clone();
    let mut told = 1;
    world.nodes[0].engine.add_peer(now, &to).expect("room for peers of the configuration");
    let full = loop {
        let other = format!("10.8.{told}.1:7000").parse().expect("an address");
        match world.nodes[0].engine.add_peer(now, &[other]) {
            Ok(()) => told += 1,
            Err(full) => break full,
        }
    };
    assert_eq!((told, full), (PEERS_CONFIGURED_KEPT, PeerTableFull { max: PEERS_MAX as u64 }));
    let honest = attach(&mut world, HONEST);
    world.import(0, honest, 1, "open");
}

/// What node 0 keeps of node `of` beyond gaps.
fn held_bytes(world: &World, of: usize) -> usize {
    let name = format!("node{of}");
    let mut peers = world.nodes[0].engine.peers();
    peers.find(|peer| peer.name.as_ref().is_some_and(|n| n.as_str() == name)).map_or(0, |peer| peer.held_bytes)
}

#[test]
fn nodes_that_share_the_memory_for_what_came_out_of_order_all_get_through() {
    const SENDERS: usize = 6;
    const SENT: usize = 1 << 20;
    const MAX: usize = 3 * HELD_BYTES_OWN;
    let mut world = World::new(11);
    for _ in 0..=SENDERS {
        world.add(|config| {
            config.key = common::key();
            config.congestion = CongestionControl::Cubic;
            config.held_bytes_max = MAX;
        });
    }
    let to = world.nodes[0].addrs.clone();
    let owner = world.process(0);
    let senders: Vec<_> = (1..=SENDERS)
        .map(|node| {
            world.nodes[node].engine.add_peer(world.now, &to).expect("room");
            let target = world.region(0, owner, node as u32, SENT);
            world.export(0, target, &format!("of-{node}"));
            let sender = world.process(node);
            let source = world.region(node, sender, 1, SENT);
            world.fill(node, source, |index| (index * 7 + node) as u8);
            let import = world.import(node, sender, 0, &format!("of-{node}")).import;
            (node, source, target, import)
        })
        .collect();
    // The first full packet of each is lost, and none that went again arrives in the first second.
    let cut_until = world.now + Duration::from_secs(1);
    let mut full = 0;
    world.link = Some(Box::new(move |now, to, len| {
        let lost = to == 0 && len > 1_400 && now < cut_until && {
            full += 1;
            full % 3 == 0
        };
        if lost { Fate::Lost } else { Fate::Arrives }
    }));
    for (node, source, _, import) in &senders {
        world.send_region(*node, *source, *import, SENT as u64, 1);
    }
    let mut most = 0;
    let completed = |event: &Event| matches!(event, Event::Completion { .. });
    while !senders.iter().all(|(node, ..)| world.nodes[*node].events.iter().any(completed)) {
        assert!(world.step(), "nothing is due, and not all has arrived");
        let held: Vec<_> = senders.iter().map(|(node, ..)| held_bytes(&world, *node)).collect();
        most = most.max(held.iter().sum());
        assert!(most <= MAX + SENDERS * HELD_BYTES_OWN, "{held:?}");
    }
    assert!(most > MAX / 2 && world.nodes[0].engine.stats().out_of_window > 0, "{most}");
    for (node, source, target, _) in senders {
        assert_eq!(world.completion(node, 1), Ok(SENT as u64));
        assert!(world.bytes(0, target) == world.bytes(node, source));
        assert_eq!(held_bytes(&world, node), 0);
    }
}
