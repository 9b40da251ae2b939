//! Sizes that are promised, in one go: nothing may grow with the square of them.

mod common;

use common::World;
use std::time::Duration;
use vmmc_nic::*;

const EXPORTS: usize = 1_000;
const IMPORTS: usize = 10_000;

#[test]
fn a_thousand_exports_and_ten_thousand_imports_come_and_go() {
    let mut world = World::pair(1, true);
    let (ours, owner) = (world.process(0), world.process(1));
    let memory = world.region(1, owner, 1, 8 * EXPORTS);
    let now = world.now;
    for index in 0..EXPORTS {
        let mut spec = common::export_spec(memory.region, 8, &format!("word{index}"));
        spec.offset = 8 * index as u64;
        world.nodes[1].engine.export(now, owner, spec).expect("exported");
    }
    for index in 0..IMPORTS {
        world.start_import(0, ours, 1, &format!("word{}", index % EXPORTS), false);
    }
    let mut imports = Vec::new();
    while imports.len() < IMPORTS {
        imports.push(world.import_answer(0).expect("granted").import);
    }
    for (index, import) in imports.iter().enumerate().take(EXPORTS) {
        world.send(0, ours, *import, 0, &(index as u64).to_le_bytes(), index as u64);
        if index % 500 == 499 {
            world.run_to_quiescence();
        }
    }
    for index in 0..EXPORTS as u64 {
        assert_eq!(world.completion(0, index), Ok(8));
        assert_eq!(world.bytes(1, memory)[8 * index as usize..][..8], index.to_le_bytes());
    }
    let now = world.now;
    world.nodes[1].engine.detach(now, owner);
    world.run_for(Duration::from_secs(2));
    let broken = |event: &&Event| matches!(event, Event::ImportBroken { why: OpError::OwnerDied, .. });
    assert_eq!(world.nodes[0].events.iter().filter(broken).count(), IMPORTS);
    for import in imports {
        world.nodes[0].engine.unimport(world.now, ours, import).expect("held");
    }
    world.run_to_quiescence();
    assert_eq!(world.nodes[0].engine.imports().count(), 0);
    assert_eq!(world.nodes[0].engine.peers().next().expect("one peer").in_flight_bytes, 0);
}

#[test]
fn sixty_four_nodes_talk_to_one() {
    let mut world = World::new(2);
    for _ in 0..65 {
        world.add(|_| {});
    }
    let owner = world.process(0);
    let memory = world.region(0, owner, 1, 64);
    world.export(0, memory, "counter");
    for node in 1..65 {
        let process = world.process(node);
        let import = world.import(node, process, 0, "counter").import;
        let command = Command::Atomic { import, offset: 0, op: AtomicOp::FetchAdd(1), cookie: Cookie(1) };
        world.post(node, process, command).expect("room");
    }
    for node in 1..65 {
        assert!(world.completion(node, 1).is_ok());
    }
    assert_eq!(world.bytes(0, memory)[0], 64);
}
