//! What users of one node take of another node's tables, and processes of what they share in one: others always find something.
//!
//! Nobody lies here: each of these is what an ordinary user can do. And none of it is done in one turn.

mod common;

use common::{World, export_spec};
use vmmc_nic::limits::{
    GRANTS_MAX, IMPORTS_PER_PROCESS_MAX, INLINE_BUFFERS_MAX, QUEUE_OPS_MAX, REMOTE_WAITS_PER_PEER_MAX,
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
    world.settle();
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
    world.settle();
    let owner = world.process(1);
    let memory = world.region(1, owner, 2, 64);
    let spec = ExportSpec { access: Access::Anyone, ..export_spec(memory.region, 64, "soon") };
    let now = world.now;
    world.nodes[1].engine.export(now, owner, spec).expect("exported");
    assert!(world.import_answer(0).is_ok());
    // What they hold comes back when they go.
    world.nodes[0].engine.detach(world.now, process);
    world.settle();
    let next = attach(&mut world, HOSTILE);
    world.start_import(0, next, 1, "never", true);
    assert_eq!(answers(&mut world), (0, None), "it waits");
}

#[test]
fn a_process_that_fetches_all_it_can_holds_no_fetch_of_another_back() {
    const LEN: u64 = 256 << 10;
    let mut world = world(3);
    let processes = [HOSTILE, HONEST].map(|uid| attach(&mut world, uid));
    let [hostile, honest] = processes;
    let imports = processes.map(|process| {
        world.region(0, process, 7, LEN as usize);
        world.import(0, process, 1, "open").import
    });
    let fetch = |import, len, cookie| Command::Fetch {
        import,
        offset: 0,
        len,
        region: RegionId(7),
        region_offset: 0,
        cookie: Cookie(cookie),
    };
    for round in 0..4 {
        for _ in 0..QUEUE_OPS_MAX {
            let _ = world.post(0, hostile, fetch(imports[0], LEN, 1));
        }
        // The first of them are under way.
        (0..50).for_each(|_| {
            world.step();
        });
        if round == 3 {
            world.post(0, honest, fetch(imports[1], 8, 2)).expect("room");
        }
    }
    let start = world.now;
    assert_eq!(world.completion(0, 2), Ok(8));
    let waited = world.now.since(start);
    let done = |event: &&Event| matches!(event, Event::Completion { cookie: Cookie(1), .. });
    let before = world.nodes[0].events.iter().filter(done).count();
    assert!(before < 10, "{before} long fetches came first, {waited:?}");
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
    for (process, import) in hostile.iter().zip(imports) {
        for _ in 0..QUEUE_OPS_MAX {
            let _ = world.post(0, *process, common::plain_send(import, 0, &[1; 8]));
        }
    }
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
