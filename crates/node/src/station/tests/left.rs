//! What clients leave behind costs those who are served no more than a turn's work, and its user's
//! share until it is gone.

use super::super::Table;
use crate::limits::{CLOSED_AT_ONCE_BYTES, DESCRIPTORS_PER_PROCESS, REVOCATION_WAIT, REVOCATIONS_PER_TURN};
use crate::testing::{Raw, World, wait};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags, memfd_create};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use vmmc_host::control::{Answer, Call, RefusalCode};
use vmmc_nic::Rights;

fn total(world: &Rc<RefCell<World>>, table: Table) -> u64 {
    world.borrow().stations[0].shares.total(table)
}

fn processes(world: &Rc<RefCell<World>>) -> usize {
    world.borrow().stations[0].processes()
}

/// Sealed memory of a name of its own, all of it there.
fn memory(name: &str, len: u64) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o444)).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

/// Descriptors that this process has of memory with this name.
fn copies(name: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains(name)).count()
}

/// Registers memory of which nobody else has a copy then.
fn register(process: &mut Raw, fd: OwnedFd, len: u64) -> u32 {
    match process.call_with(Call::RegisterRegion { len }, &[&fd]).0 {
        Ok(Answer::Region { region }) => region,
        other => panic!("no region: {other:?}"),
    }
}

#[test]
fn a_table_of_imports_that_were_given_back_is_small_or_counts() {
    const IMPORTS: u64 = 2_000;
    let world = World::new(1, None);
    let (mut exporter, mut importer) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    exporter.export("x");
    let slots = || {
        let mut world = world.borrow_mut();
        let station = &mut world.stations[0];
        let processes = station.connections.iter().flatten().filter_map(|c| c.process.as_ref());
        let (of_node, id) = processes.map(|p| (p.imports.capacity(), p.id)).max().unwrap();
        (of_node as u64).max(station.engine.import_slots(id) as u64)
    };
    let held = || total(&world, Table::Imports);
    let mut imports: Vec<u64> = (0..IMPORTS).map(|_| importer.import(None, "x", Rights::READ).0.import).collect();
    assert_eq!(held(), IMPORTS);
    // The last of them keeps the table as long as it is, and so it counts; others find room in it.
    let last = imports.pop().unwrap();
    for import in imports {
        importer.call(Call::Unimport { import }).unwrap();
    }
    assert!(slots() >= IMPORTS && held() == IMPORTS, "{} slots, {} counted", slots(), held());
    let again = importer.import(None, "x", Rights::READ).0.import;
    assert_eq!(held(), IMPORTS, "it has a slot that counts already");
    importer.call(Call::Unimport { import: last }).unwrap();
    importer.call(Call::Unimport { import: again }).unwrap();
    assert!(slots() <= 128 && held() == 0, "{} slots, {} counted", slots(), held());
    // An old id finds nothing in a slot that came again.
    let new = importer.import(None, "x", Rights::READ).0.import;
    assert_eq!(importer.call(Call::Unimport { import: again }).unwrap_err().code, RefusalCode::Stale);
    assert_eq!(importer.call(Call::Unimport { import: last }).unwrap_err().code, RefusalCode::Stale);
    importer.call(Call::Unimport { import: new }).unwrap();
    // Refused ones leave nothing either.
    importer.call(Raw::import_call(None, "not there", Rights::READ)).unwrap_err();
    assert_eq!(held(), 0);
}

#[test]
fn the_memory_of_a_process_that_ends_is_given_up_elsewhere_and_counts_until_then() {
    const REGIONS: u64 = 300;
    let world = World::new(1, None);
    let (mut stays, mut leaves) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let own = total(&world, Table::Descriptors);
    for _ in 0..REGIONS {
        register(&mut leaves, memory("left-by-a-process", 4096), 4096);
    }
    let paused = world.borrow().stations[0].close_nothing();
    drop(leaves);
    wait(&|| stays.pump(), || (processes(&world) == 1).then_some(()));
    assert_eq!(copies("left-by-a-process") as u64, REGIONS, "the thread that serves everybody has closed some");
    // They count, and what the process itself had as well; its name is free.
    assert_eq!(total(&world, Table::Regions), REGIONS);
    assert_eq!(total(&world, Table::Descriptors), own + 2 * REGIONS);
    stays.export("next");
    drop(paused);
    wait(&|| stays.pump(), || (total(&world, Table::Regions) == 1).then_some(()));
    let left = own + 2 - u64::from(1 + DESCRIPTORS_PER_PROCESS);
    wait(&|| stays.pump(), || (total(&world, Table::Descriptors) == left).then_some(()));
    assert_eq!(copies("left-by-a-process"), 0);
}

#[test]
fn much_memory_that_is_released_is_given_up_elsewhere_and_counts_until_then() {
    let world = World::new(1, None);
    let mut process = Raw::attach(&world, 0);
    let much = 2 * CLOSED_AT_ONCE_BYTES;
    let large = register(&mut process, memory("released-large", much), much);
    let small = register(&mut process, memory("released-small", 4096), 4096);
    let paused = world.borrow().stations[0].close_nothing();
    process.call(Call::ReleaseRegion { region: small }).unwrap();
    process.call(Call::ReleaseRegion { region: large }).unwrap();
    assert_eq!((copies("released-small"), copies("released-large")), (0, 1));
    assert_eq!(total(&world, Table::Regions), 1);
    assert_eq!(process.call(Call::ReleaseRegion { region: large }).unwrap_err().code, RefusalCode::Stale);
    drop(paused);
    wait(&|| process.pump(), || (total(&world, Table::Regions) == 0).then_some(()));
    wait(&|| process.pump(), || (copies("released-large") == 0).then_some(()));
}

#[test]
fn much_memory_that_is_refused_is_closed_elsewhere() {
    let world = World::new(1, None);
    let mut process = Raw::attach(&world, 0);
    let much = 2 * CLOSED_AT_ONCE_BYTES;
    let paused = world.borrow().stations[0].close_nothing();
    // Of another length than it says; where none belongs; and in a message that is none.
    let fds = [memory("refused-large", much), memory("refused-large", much), memory("refused-large", much)];
    assert!(process.call_with(Call::RegisterRegion { len: 4096 }, &[&fds[0]]).0.is_err());
    assert!(process.call_with(Call::Unexport { export: 9, moving: false }, &[&fds[1]]).0.is_err());
    process.channel.try_send(&[0xff; 40], &[std::os::fd::AsFd::as_fd(&fds[2])]).unwrap();
    wait(&|| world.borrow_mut().step(), || (processes(&world) == 0).then_some(()));
    drop(fds);
    assert_eq!(copies("refused-large"), 3, "the thread that serves everybody has closed some");
    drop(paused);
    wait(&|| world.borrow_mut().step(), || (copies("refused-large") == 0).then_some(()));
}

#[test]
fn processes_that_end_together_are_closed_in_turns_and_their_names_are_free() {
    let world = World::new(1, None);
    let mut stays = Raw::attach(&world, 0);
    let mut leave: Vec<Raw> = (0..8).map(|_| Raw::attach(&world, 0)).collect();
    leave.iter_mut().enumerate().for_each(|(at, process)| _ = process.export(&format!("left{at}")));
    let memory = stays.register(4096);
    drop(leave);
    world.borrow_mut().step();
    let left = processes(&world);
    assert!((3..8).contains(&left), "{left} of 9 processes are left after one step");
    // All of them are seen to have ended. What is theirs is free for their user at once.
    for at in (0..8).rev() {
        stays.call(Raw::export_call(&memory, &format!("left{at}"))).unwrap();
    }
    wait(&|| stays.pump(), || (processes(&world) == 1).then_some(()));
}

#[test]
fn revocations_that_wait_are_looked_at_in_turns() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let count = REVOCATIONS_PER_TURN + 100;
    let memory = a.register(4096);
    let exports: Vec<u64> = (0..count)
        .map(|at| {
            let Ok(Answer::Exported { export }) = a.call(Raw::export_call(&memory, &format!("e{at}"))) else {
                panic!("no export")
            };
            let (grant, _) = b.import(None, &format!("e{at}"), Rights::READ);
            // It never leaves.
            b.area.lane(at).store(grant.import, Ordering::SeqCst);
            export
        })
        .collect();
    for export in exports {
        a.ask(Call::Unexport { export, moving: false });
        a.pump();
    }
    assert!(a.has_no_answer(), "threads are inside");
    let answered = || std::iter::from_fn(|| a.channel.try_receive().ok()).count();
    {
        let mut world = world.borrow_mut();
        world.now = world.now + REVOCATION_WAIT;
        world.step();
    }
    let first = answered();
    assert!(first > 0 && first <= REVOCATIONS_PER_TURN, "{first} answers in one turn");
    world.borrow_mut().step();
    assert_eq!(first + answered(), count);
}
