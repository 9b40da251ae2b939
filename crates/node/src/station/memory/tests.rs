//! Regions, pinned pages and atomics, as the engine sees them.

use super::*;

fn table() -> (Memory, ProcessId) {
    let (mut memory, process) = (Memory::new(UtlbConfig::default(), true, Mark::default()), ProcessId(3));
    memory.add_process(process, 0);
    (memory, process)
}

#[test]
fn a_released_region_is_the_garbage_page() {
    let (mut memory, process) = table();
    let region = Region::create(4096).unwrap();
    let id = memory.register(process, region.share().unwrap(), 4096).unwrap();
    let at = RegionRef { process, region: id };
    memory.deposit(at, 10, b"here");
    let mut got = [0; 4];
    region.read(10, &mut got).unwrap();
    assert_eq!(&got, b"here");
    memory.release(process, id).unwrap();
    let next = memory.register(process, Region::create(4096).unwrap().share().unwrap(), 4096).unwrap();
    assert_ne!(id, next, "a slot used again has another id");
    memory.deposit(at, 10, b"gone");
    memory.gather(at, 10, &mut got);
    assert_eq!(got, [0; 4]);
    assert_eq!(memory.atomic(at, 0, AtomicOp::Swap(1)), 0);
    assert!(memory.check(at, 0, 1).is_err() && memory.check(RegionRef { process, region: next }, 0, 4096).is_ok());
    let elsewhere = RegionRef { process: ProcessId(3 | 1 << 12), region: next };
    assert!(memory.region(elsewhere).is_none(), "the slot's next process sees nothing of it");
}

#[test]
fn a_region_in_use_is_not_released() {
    let (mut memory, process) = table();
    let id = memory.register(process, Region::create(100).unwrap().share().unwrap(), 100).unwrap();
    memory.hold(process, id);
    assert_eq!(memory.release(process, id).map(drop), Err(MemoryError::InUse { region: id.0, exports: 1 }));
    memory.unhold(process, id);
    assert_eq!(memory.bytes(process), 100);
    memory.release(process, id).unwrap();
    assert_eq!(memory.bytes(process), 0);
    assert_eq!(memory.release(process, id).map(drop), Err(MemoryError::NoSuchRegion { region: id.0 }));
}

#[test]
fn pages_in_use_are_not_revoked() {
    let (mut memory, process) = table();
    let id = memory.register(process, Region::create(8 * 4096).unwrap().share().unwrap(), 8 * 4096).unwrap();
    let run = |page, count| PageRun { page, count };
    memory.pin(process, &[PinRun { pages: run(100, 8), region: id.0, at: 0 }]);
    let in_use = |page: Page| (102..107).contains(&page.number());
    assert_eq!(memory.revoke(process, 4, in_use), 3);
    assert!((102..107).all(|page| memory.check_pinned(process, page * 4096, 4096).is_ok()));
    assert!([100, 101, 107].into_iter().all(|page| memory.check_pinned(process, page * 4096, 1).is_err()));
    assert_eq!((memory.revoke(process, 9, |_| false), memory.table(process).unwrap().pages()), (5, 0));
    assert_eq!(memory.unpin(process, &[run(100, 8)]), 0);
}

#[test]
fn tables_on_disk_translate_as_tables_in_memory_do() {
    let limits = [None, Some(1), Some(3)];
    let mut all = limits.map(|tables_max| {
        let mut memory = Memory::new(UtlbConfig { tables_max, ..UtlbConfig::default() }, true, Mark::default());
        memory.add_process(ProcessId(3), 0);
        let id = memory.register(ProcessId(3), Region::create(64 * 4096).unwrap().share().unwrap(), 64 * 4096);
        (memory, id.unwrap())
    });
    let process = ProcessId(3);
    let mut rng = vmmc_utlb::Rng::new(9);
    let mut below = |n: u64| rng.below(n);
    for _ in 0..4000 {
        // Eight tables, a few pages of each, some runs across their borders.
        let (what, page) = (below(8), below(8) * 512 + below(4) * 170);
        let (count, at) = (1 + below(5) as u32, below(59) as u32);
        let pages = PageRun { page, count };
        let answers = all.each_mut().map(|(memory, id)| match what {
            0..3 => {
                let new = memory.check_pins(process, &[PinRun { pages, region: id.0, at }], &[]).unwrap();
                memory.pin(process, &[PinRun { pages, region: id.0, at }]);
                (new, Ok(()), Vec::new())
            }
            3 => (memory.unpin(process, &[pages]), Ok(()), Vec::new()),
            4 => (0, memory.check_pinned(process, page * 4096, u64::from(count) * 4096).map(drop), Vec::new()),
            _ => {
                let pinned = memory.table(process).unwrap().pages();
                let places = (page..page + u64::from(count)).map(|page| memory.translate(process, page * 4096, 4096));
                (pinned, Ok(()), places.collect())
            }
        });
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{what} of {pages:?}: {answers:?}");
    }
    let pages = all[0].0.table(process).unwrap().pages();
    for (memory, _) in &mut all {
        // Which ones go is nobody's promise; how many is.
        assert_eq!(memory.revoke(process, pages / 2, |_| false), pages / 2);
        assert_eq!(memory.revoke(process, pages, |_| false), pages - pages / 2);
        assert_eq!(memory.table(process).unwrap().pages(), 0);
    }
    let swapped = all.each_ref().map(|(memory, _)| memory.tables_swapped());
    assert!(swapped[0] == (0, 0) && swapped[1].1 > swapped[2].1 && swapped[2].1 > 100, "{swapped:?}");
}

#[test]
fn a_table_of_regions_that_were_released_is_small_and_old_ids_stay_stale() {
    const REGIONS: usize = 2_000;
    let (mut memory, process) = table();
    let region = Region::create(4096).unwrap();
    let register = |memory: &mut Memory| memory.register(process, region.share().unwrap(), 4096).unwrap();
    let mut seen = std::collections::HashSet::new();
    for round in 0..3 {
        let mut ids: Vec<RegionId> = (0..REGIONS).map(|_| register(&mut memory)).collect();
        assert!(ids.iter().all(|id| seen.insert(*id)), "an id came twice in round {round}");
        // The last of them keeps the table as long as it is; others find room in it.
        let last = ids.pop().unwrap();
        ids.iter().for_each(|id| drop(memory.release(process, *id).unwrap()));
        let again = register(&mut memory);
        assert!(memory.slots(process) >= REGIONS && memory.regions(process) == 2 && seen.insert(again));
        drop(memory.release(process, last).unwrap());
        drop(memory.release(process, again).unwrap());
        assert!(memory.slots(process) <= 128 && memory.regions(process) == 0, "{}", memory.slots(process));
        // An old id finds nothing in a slot that came again.
        let new = register(&mut memory);
        assert!(seen.insert(new));
        for old in ids.iter().chain([&last, &again]) {
            assert!(memory.release(process, *old).is_err());
            assert!(memory.region(RegionRef { process, region: *old }).is_none());
        }
        drop(memory.release(process, new).unwrap());
    }
}

#[test]
fn an_id_comes_again_only_after_all_generations_of_its_slot() {
    let (mut memory, process) = table();
    let region = Region::create(4096).unwrap();
    memory.processes[process.slot()].fresh = GENERATION_MASK - 1;
    let ids = [(); 4].map(|()| {
        let id = memory.register(process, region.share().unwrap(), 4096).unwrap();
        drop(memory.release(process, id).unwrap());
        id.0 >> SLOT_BITS
    });
    assert_eq!(ids, [GENERATION_MASK - 1, GENERATION_MASK, 0, 1]);
}

#[test]
fn atomics_change_the_shared_word() {
    let (mut memory, process) = table();
    let region = Region::create(4096).unwrap();
    let at = RegionRef { process, region: memory.register(process, region.share().unwrap(), 4096).unwrap() };
    assert_eq!(memory.atomic(at, 8, AtomicOp::FetchAdd(5)), 0);
    assert_eq!(memory.atomic(at, 8, AtomicOp::CompareSwap { expected: 4, desired: 1 }), 5);
    assert_eq!(memory.atomic(at, 8, AtomicOp::CompareSwap { expected: 5, desired: 9 }), 5);
    assert_eq!(memory.atomic(at, 8, AtomicOp::Swap(2)), 9);
    assert_eq!(region.word(8).unwrap().load(Ordering::SeqCst), 2);
}
