//! Pinned memory: what a process says about addresses is a claim, and what it keeps from others is
//! taken from it in time.

use crate::testing::{Noise, Raw, World};
use std::cell::RefCell;
use std::rc::Rc;
use vmmc_host::abi::{ADDRESSES, Completion, INDEX_PAGES, Op, RawCommand, flags};
use vmmc_host::control::{Answer, Call, NodeEvent, PageRun, PinRun, RefusalCode};
use vmmc_nic::OpError;
use vmmc_nic::Rights;

const PAGE: u64 = 4096;
/// A process's own addresses are whatever it says.
const ADDRESS_PAGE: u64 = 0x0007_f000_0001;

fn run(page: u64, count: u32) -> PageRun {
    PageRun { page: ADDRESS_PAGE + page, count }
}

fn pin(process: &mut Raw, page: u64, count: u32, region: u32, at: u32) -> Result<Answer, RefusalCode> {
    let call = Call::Pin { unpin: Vec::new(), pin: vec![PinRun { pages: run(page, count), region, at }] };
    process.call(call).map_err(|refusal| refusal.code)
}

/// A send or fetch between an export and addresses of the process.
fn transfer(process: &mut Raw, op: Op, import: u64, address: u64, len: u64) -> Completion {
    let mut command = RawCommand::new(op, import);
    command.flags = flags::COMPLETE;
    (command.region, command.region_offset, command.len, command.cookie) = (ADDRESSES, address, len, 77);
    process.post(&command, &[]);
    process.ring();
    process.completion()
}

fn limited(pages: usize) -> Rc<RefCell<World>> {
    World::with(1, None, |config| config.pinned_pages_max = pages)
}

fn status(page: u64) -> (u16, u64) {
    let error = OpError::NotPinned { page };
    (error.code(), error.args()[0])
}

#[test]
fn addresses_are_translated_page_by_page() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (_, memory) = a.export("x");
    let (grant, _) = b.import(None, "x", Rights::WRITE);
    let (one, two) = (b.register(3 * PAGE), b.register(3 * PAGE));
    // Three pages, neither in order nor in one region.
    for (page, region, at) in [(0, &two, 2), (1, &one, 0), (2, &one, 1)] {
        assert_eq!(pin(&mut b, page, 1, region.id, at), Ok(Answer::Done));
    }
    two.region.write(2 * PAGE + 100, &[1; 3996]).unwrap();
    one.region.write(0, &[2; 4096]).unwrap();
    one.region.write(PAGE, &[3; 4096]).unwrap();
    let done = transfer(&mut b, Op::Send, grant.import, ADDRESS_PAGE * PAGE + 100, 3 * PAGE - 200);
    assert_eq!((done.cookie, done.status), (77, 0));
    let mut got = vec![0u8; 3 * PAGE as usize - 200];
    memory.region.read(0, &mut got).unwrap();
    assert!(got[..3996].iter().all(|b| *b == 1) && got[3996..8092].iter().all(|b| *b == 2));
    assert!(got[8092..].iter().all(|b| *b == 3));
}

#[test]
fn a_miss_reads_as_many_entries_as_the_node_was_told() {
    for (prefetch, misses) in [(1, [1, 8, 8]), (4, [1, 2, 2]), (32, [1, 1, 1])] {
        let cache = vmmc_utlb::CacheShape::new(64, 2, true).unwrap();
        let world =
            World::with(1, None, |config| config.utlb = crate::UtlbConfig { cache, prefetch, tables_max: None });
        let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
        let _export = a.export("x");
        let (grant, _) = b.import(None, "x", Rights::WRITE);
        let region = b.register(8 * PAGE);
        // Backwards, so that no two pages are one copy.
        (0..8).for_each(|page| assert_eq!(pin(&mut b, page, 1, region.id, 7 - page as u32), Ok(Answer::Done)));
        let mut lookups = 0;
        for (pages, misses) in [1, 8, 8].into_iter().zip(misses) {
            transfer(&mut b, Op::Send, grant.import, ADDRESS_PAGE * PAGE, pages * PAGE);
            lookups += pages;
            let Answer::Info(info) = a.call(Call::Info { details: false }).unwrap() else { panic!("no info") };
            let counter = |name: &str| info.counters.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            assert_eq!((counter("translation_lookups"), counter("translation_misses")), (Some(lookups), Some(misses)));
        }
    }
}

#[test]
fn a_process_that_lies_about_addresses_reaches_nothing_of_others() {
    let world = World::new(1, None);
    let (mut victim, mut evil) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (_, target) = victim.export("x");
    let secret = victim.register(4 * PAGE);
    secret.region.write(0, &[0x5e; 4 * PAGE as usize]).unwrap();
    assert_eq!(pin(&mut victim, 0, 4, secret.id, 0), Ok(Answer::Done));
    let own = evil.register(2 * PAGE);
    let (grant, _) = evil.import(None, "x", Rights::READ | Rights::WRITE);
    // Regions of others, pages outside of its own, ranges that wrap or are endless.
    if own.id != secret.id {
        assert_eq!(pin(&mut evil, 0, 1, secret.id, 0), Err(RefusalCode::OutOfBounds));
    }
    assert_eq!(pin(&mut evil, 0, 4, own.id, 0), Err(RefusalCode::OutOfBounds));
    assert_eq!(pin(&mut evil, 0, 2, own.id, u32::MAX), Err(RefusalCode::OutOfBounds));
    assert_eq!(pin(&mut evil, 0, u32::MAX, own.id, 0), Err(RefusalCode::Invalid));
    let far = Call::Pin { unpin: vec![PageRun { page: u64::MAX, count: 2 }], pin: Vec::new() };
    assert_eq!(evil.call(far).unwrap_err().code, RefusalCode::Invalid);
    // The addresses that the victim has pinned are not its own.
    for op in [Op::Send, Op::Fetch] {
        let done = transfer(&mut evil, op, grant.import, ADDRESS_PAGE * PAGE, PAGE);
        assert_eq!((done.status, done.args[0]), status(ADDRESS_PAGE));
        let done = transfer(&mut evil, op, grant.import, u64::MAX - 5, 100);
        assert_eq!(done.status, status(0).0);
        let done = transfer(&mut evil, op, grant.import, 0, u64::MAX);
        assert_eq!(done.status, status(0).0);
    }
    assert_eq!(target.region.word(0).unwrap().load(std::sync::atomic::Ordering::SeqCst), 0);
    let Answer::Info(info) = victim.call(Call::Info { details: true }).unwrap() else { panic!("no description") };
    assert!(info.processes.iter().any(|p| p.pinned == 4) && info.processes.iter().any(|p| p.pinned == 0));
}

#[test]
fn a_released_region_leaves_the_garbage_page_behind_its_addresses() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (_, memory) = a.export("x");
    let (grant, _) = b.import(None, "x", Rights::READ | Rights::WRITE);
    let own = b.register(PAGE);
    assert_eq!(pin(&mut b, 0, 1, own.id, 0), Ok(Answer::Done));
    b.call(Call::ReleaseRegion { region: own.id }).unwrap();
    // The slot is used again, by memory that those addresses must not reach.
    let other = b.register(PAGE);
    other.region.write(0, &[9; PAGE as usize]).unwrap();
    memory.region.write(0, &[1; PAGE as usize]).unwrap();
    assert_eq!(transfer(&mut b, Op::Send, grant.import, ADDRESS_PAGE * PAGE, PAGE).status, 0);
    let mut got = [1u8; PAGE as usize];
    memory.region.read(0, &mut got).unwrap();
    assert!(got.iter().all(|b| *b == 0), "zeros, and nothing of the region that came after");
}

#[test]
fn who_keeps_what_others_need_loses_it_when_the_time_is_over() {
    let world = limited(8);
    let (mut owner, mut keeper, mut other) = (Raw::attach(&world, 0), Raw::attach(&world, 0), Raw::attach(&world, 0));
    owner.export("x");
    let (grant, _) = keeper.import(None, "x", Rights::WRITE);
    let (kept, wanted) = (keeper.register(8 * PAGE), other.register(2 * PAGE));
    for page in 0..4 {
        assert_eq!(pin(&mut keeper, 2 * page, 2, kept.id, 2 * page as u32), Ok(Answer::Done));
    }
    assert_eq!(pin(&mut keeper, 8, 1, kept.id, 0), Ok(Answer::EvictFirst { pages: 1 }), "it has all there is");
    let asked =
        other.ask(Call::Pin { unpin: Vec::new(), pin: vec![PinRun { pages: run(0, 2), region: wanted.id, at: 0 }] });
    let (event, _) = keeper.event();
    assert_eq!(event, NodeEvent::Reclaim { pages: 2, within_ms: 250 });
    assert!(other.has_no_answer());
    // The keeper does nothing. After the time that it was given the other one has its pages.
    assert_eq!(other.answer(asked), Ok(Answer::Done));
    keeper.pump();
    let results: Vec<u16> = (0..8)
        .map(|page| transfer(&mut keeper, Op::Send, grant.import, (ADDRESS_PAGE + page) * PAGE, PAGE).status)
        .collect();
    assert_eq!(results.iter().filter(|status| **status != 0).count(), 2, "{results:?}");
    assert!(results.iter().all(|s| *s == 0 || *s == status(0).0), "an error, no silent garbage");
    // What it gives back now in its own time counts once only.
    let all = Call::Pin { unpin: vec![run(0, 8)], pin: Vec::new() };
    assert_eq!(keeper.call(all), Ok(Answer::Done));
    let Answer::Info(info) = owner.call(Call::Info { details: false }).unwrap() else { panic!("no description") };
    let counter = |name: &str| info.counters.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
    assert_eq!((counter("pinned_pages"), counter("pinned_pages_free")), (Some(2), Some(6)));
    assert_eq!((counter("pins_asked_back"), counter("pins_taken_back")), (Some(2), Some(2)));
}

#[test]
fn a_process_that_gives_back_keeps_what_it_chose() {
    let world = limited(8);
    let (mut keeper, mut other) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (kept, wanted) = (keeper.register(8 * PAGE), other.register(2 * PAGE));
    for page in 0..4 {
        assert_eq!(pin(&mut keeper, 2 * page, 2, kept.id, 2 * page as u32), Ok(Answer::Done));
    }
    let asked =
        other.ask(Call::Pin { unpin: Vec::new(), pin: vec![PinRun { pages: run(0, 2), region: wanted.id, at: 0 }] });
    keeper.event();
    assert_eq!(keeper.call(Call::Pin { unpin: vec![run(3, 2)], pin: Vec::new() }), Ok(Answer::Done));
    assert_eq!(other.answer(asked), Ok(Answer::Done));
    // A process that dies leaves room at once.
    drop(keeper);
    other.pump();
    let Answer::Info(info) = other.call(Call::Info { details: false }).unwrap() else { panic!("no description") };
    assert!(info.counters.contains(&("pinned_pages_free".into(), 6)), "{:?}", info.counters);
}

#[test]
fn an_index_that_lies_is_nobodys_memory() {
    let world = World::new(1, None);
    let (mut a, mut b, mut c) = (Raw::attach(&world, 0), Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (_, memory) = a.export("x");
    let (grant, _) = b.import(None, "x", Rights::WRITE);
    let entries = u64::from(vmmc_host::limits::INDICES_MAX);
    let place = |index: u64, count: u32, region: u32| Call::Pin {
        unpin: Vec::new(),
        pin: vec![PinRun { pages: PageRun { page: INDEX_PAGES + index, count }, region, at: 0 }],
    };
    // The others' tables are full of what nobody else may see.
    let secret = c.register(8 * PAGE);
    secret.region.write(0, &[0x55; 8 * PAGE as usize]).unwrap();
    assert_eq!(c.call(place(0, 8, secret.id)).unwrap(), Answer::Done);
    let own = b.register(2 * PAGE);
    own.region.write(0, &[7; 2 * PAGE as usize]).unwrap();
    assert_eq!(b.call(place(3, 2, own.id)).unwrap(), Answer::Done);
    assert_eq!(b.call(place(entries - 1, 1, own.id)).unwrap(), Answer::Done);
    let send = |b: &mut Raw, index: u64, len: u64| {
        let done = transfer(b, Op::Send, grant.import, (INDEX_PAGES + index) * PAGE, len);
        let mut got = vec![0u8; 4 * PAGE as usize];
        memory.region.read(0, &mut got).unwrap();
        assert!(!got.contains(&0x55), "index {index}");
        done.status
    };
    assert_eq!((send(&mut b, 3, 2 * PAGE), send(&mut b, entries - 1, PAGE)), (0, 0));
    for index in [0, 2, 5, entries - 2, entries, 1 << 32, (1 << 32) + 3] {
        assert_eq!(send(&mut b, index, PAGE), status(INDEX_PAGES + index).0, "{index}");
    }
    assert_ne!((send(&mut b, 2, 2 * PAGE), send(&mut b, 4, 2 * PAGE)), (0, 0), "a part of it");
    // Neither can be placed: an index that no table has, and addresses that run into indices.
    for page in [INDEX_PAGES + entries, INDEX_PAGES - 1] {
        let pin = vec![PinRun { pages: PageRun { page, count: 2 }, region: own.id, at: 0 }];
        assert!(b.call(Call::Pin { unpin: Vec::new(), pin }).is_err(), "{page:#x}");
    }
    // What goes counts, and is gone.
    let unpin = vec![PageRun { page: INDEX_PAGES + 3, count: 1 }];
    assert_eq!(b.call(Call::Pin { unpin, pin: Vec::new() }).unwrap(), Answer::Done);
    assert_eq!((send(&mut b, 3, PAGE), send(&mut b, 4, PAGE)), (status(INDEX_PAGES + 3).0, 0));
    // The memory behind an entry was released: garbage, not what lies there next.
    assert_eq!(b.call(Call::ReleaseRegion { region: own.id }).unwrap(), Answer::Done);
    assert_eq!(send(&mut b, 4, PAGE), 0);
    let mut got = vec![1u8; PAGE as usize];
    memory.region.read(0, &mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 0), "zeros");
}

#[test]
fn one_page_at_many_addresses_takes_no_table_for_each() {
    let world = World::new(1, None);
    let mut evil = Raw::attach(&world, 0);
    let page = evil.register(PAGE);
    // Each address in a table of its own.
    let spread = |from: u64, count: u64| -> Vec<PinRun> {
        (from..from + count).map(|i| PinRun { pages: run(i * 512, 1), region: page.id, at: 0 }).collect()
    };
    let allowed = crate::limits::TABLES_BEYOND_PAGES_MAX + 1;
    let call = |pin| Call::Pin { unpin: Vec::new(), pin };
    assert_eq!(evil.call(call(spread(0, allowed))), Ok(Answer::Done));
    for count in [1, 2_000] {
        let refusal = evil.call(call(spread(allowed, count))).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::TableFull, "{refusal}");
    }
    // What lies in tables that are there needs none.
    let beside = PinRun { pages: run(7, 1), region: page.id, at: 0 };
    assert_eq!(evil.call(call(vec![beside])), Ok(Answer::Done));
    // A process that has the pages may have the tables.
    let more = evil.register(3_000 * PAGE);
    let pin = (0..2_000).map(|i| PinRun { pages: run((allowed + i) * 512, 1), region: more.id, at: i as u32 });
    assert_eq!(evil.call(call(pin.collect())), Ok(Answer::Done));
}

#[test]
fn a_pin_installs_no_more_than_was_granted() {
    let world = limited(200);
    let (mut rest, mut two) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (filling, memory) = (rest.register(100 * PAGE), two.register(101 * PAGE));
    let known = PinRun { pages: run(0, 99), region: memory.id, at: 0 };
    let both = vec![known, PinRun { pages: run(99, 1), region: memory.id, at: 99 }];
    let unpin = |count| Call::Pin { unpin: vec![run(0, count)], pin: Vec::new() };
    assert_eq!(two.call(Call::Pin { unpin: Vec::new(), pin: vec![known] }), Ok(Answer::Done));
    for page in 0..100 {
        assert_eq!(pin(&mut rest, page, 1, filling.id, page as u32), Ok(Answer::Done));
    }
    assert_eq!(pin(&mut rest, 100, 1, filling.id, 0), Ok(Answer::Done));
    // One page is new, and waits. While it does, the others go, and all are new.
    let asked = two.ask(Call::Pin { unpin: Vec::new(), pin: both });
    let gone = two.ask(unpin(99));
    two.pump();
    let mut answers = Vec::new();
    while answers.len() < 2 {
        two.pump();
        world.borrow().stations[0].check_pins_counted();
        if let Ok((bytes, _)) = two.channel.try_receive() {
            answers.push(vmmc_host::control::decode::<vmmc_host::control::Reply>(&bytes).unwrap());
        }
    }
    assert!(answers.iter().all(|reply| reply.result == Ok(Answer::Done)), "{answers:?}");
    assert_eq!(answers.iter().map(|reply| reply.serial).collect::<Vec<_>>(), [gone, asked]);
    assert_eq!(two.call(unpin(101)), Ok(Answer::Done));
    world.borrow().stations[0].check_pins_counted();
}

#[test]
fn a_page_that_a_call_names_twice_is_counted_once() {
    let world = limited(8);
    let mut one = Raw::attach(&world, 0);
    let memory = one.register(PAGE);
    let again = PinRun { pages: run(0, 1), region: memory.id, at: 0 };
    assert_eq!(one.call(Call::Pin { unpin: Vec::new(), pin: vec![again; 8] }), Ok(Answer::Done));
    let Answer::Info(info) = one.call(Call::Info { details: false }).unwrap() else { panic!("no description") };
    assert!(info.counters.contains(&("pinned_pages_free".into(), 7)), "{:?}", info.counters);
}

#[test]
fn a_pin_whose_memory_goes_while_it_waits_is_refused_and_takes_nothing() {
    let world = limited(8);
    let (mut keeper, mut other) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (kept, wanted) = (keeper.register(8 * PAGE), other.register(2 * PAGE));
    for page in 0..8 {
        assert_eq!(pin(&mut keeper, page, 1, kept.id, page as u32), Ok(Answer::Done));
    }
    let place = PinRun { pages: run(0, 2), region: wanted.id, at: 0 };
    let asked = other.ask(Call::Pin { unpin: Vec::new(), pin: vec![place] });
    keeper.event();
    let released = other.ask(Call::ReleaseRegion { region: wanted.id });
    assert_eq!(other.answer(released), Ok(Answer::Done));
    assert_eq!(keeper.call(Call::Pin { unpin: vec![run(0, 2)], pin: Vec::new() }), Ok(Answer::Done));
    let refusal = other.answer(asked).unwrap_err();
    assert!(refusal.message.contains("do not lie in region"), "{refusal}");
    world.borrow().stations[0].check_pins_counted();
    let Answer::Info(info) = other.call(Call::Info { details: false }).unwrap() else { panic!("no description") };
    assert!(info.counters.contains(&("pinned_pages_free".into(), 2)), "{:?}", info.counters);
}

#[test]
fn pins_that_wait_are_bounded_and_leave_another_its_part() {
    let world = limited(100);
    let (mut keeper, mut greedy) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (kept, wanted) = (keeper.register(100 * PAGE), greedy.register(100 * PAGE));
    for page in 0..100 {
        assert!(matches!(pin(&mut keeper, page, 1, kept.id, page as u32), Ok(Answer::Done)));
    }
    let one = |page| PinRun { pages: run(page, 1), region: wanted.id, at: 0 };
    let most = crate::limits::PINS_WAITING_MAX as u64;
    let asked: Vec<u64> =
        (0..most).map(|page| greedy.ask(Call::Pin { unpin: Vec::new(), pin: vec![one(page)] })).collect();
    let more = greedy.ask(Call::Pin { unpin: Vec::new(), pin: vec![one(most)] });
    let refusal = greedy.answer(more).unwrap_err();
    assert!(refusal.code == RefusalCode::Busy && refusal.message.contains("8 pins"), "{refusal}");
    // What asks for nothing is not in anybody's way.
    assert_eq!(keeper.call(Call::Pin { unpin: vec![run(0, 50)], pin: Vec::new() }), Ok(Answer::Done));
    asked.into_iter().for_each(|serial| assert_eq!(greedy.answer(serial), Ok(Answer::Done)));
    world.borrow().stations[0].check_pins_counted();
}

/// Processes that pin, unpin, come and go at random, under a budget that is too small for them.
#[test]
fn whatever_processes_pin_the_budget_and_the_tables_agree() {
    const PAGES: u64 = 12;
    for seed in 0..40 {
        let world = limited(16);
        let mut noise = Noise::new(seed);
        let process = || {
            let mut raw = Raw::attach(&world, 0);
            let memory = raw.register(PAGES * PAGE);
            (raw, memory.id)
        };
        let mut all: Vec<(Raw, u32)> = (0..3).map(|_| process()).collect();
        for _ in 0..200 {
            let at = noise.below(all.len());
            match noise.below(40) {
                0 if all.len() > 1 => _ = all.swap_remove(at),
                1 if all.len() < 5 => all.push(process()),
                2 => {
                    let mut world = world.borrow_mut();
                    world.now = world.now + crate::limits::RECLAIM_TIME;
                }
                3 => {
                    let (raw, region) = &mut all[at];
                    raw.ask(Call::ReleaseRegion { region: *region });
                    let memory = vmmc_host::Region::create(PAGES * PAGE).unwrap();
                    let call = Call::RegisterRegion { len: PAGES * PAGE };
                    let bytes = vmmc_host::control::encode(&vmmc_host::control::Request { serial: 0, call });
                    let fd = memory.share().unwrap();
                    raw.channel.try_send(&bytes, &[std::os::fd::AsFd::as_fd(&fd)]).unwrap();
                }
                _ => {
                    let any = |noise: &mut Noise| {
                        let page = noise.next() % PAGES;
                        (page, 1 + (noise.next() % (PAGES - page).min(6)) as u32)
                    };
                    let runs = noise.below(4);
                    let pin = (0..runs).map(|_| any(&mut noise)).collect::<Vec<_>>();
                    let unpin = (0..noise.below(3)).map(|_| any(&mut noise)).map(|(page, count)| run(page, count));
                    let unpin = unpin.collect();
                    let (raw, region) = &mut all[at];
                    let place = |(page, count): (u64, u32)| PinRun {
                        pages: run(page, count),
                        region: *region,
                        at: page as u32,
                    };
                    raw.ask(Call::Pin { unpin, pin: pin.into_iter().map(place).collect() });
                }
            }
            if noise.one_in(2) {
                world.borrow_mut().step();
            }
            for (raw, region) in &mut all {
                while let Ok((bytes, _)) = raw.channel.try_receive() {
                    let reply: vmmc_host::control::Reply = vmmc_host::control::decode(&bytes).unwrap();
                    if let Ok(Answer::Region { region: id }) = reply.result {
                        *region = id;
                    }
                }
            }
            world.borrow().stations[0].check_pins_counted();
        }
        all.clear();
        (0..3).for_each(|_| world.borrow_mut().step());
        let mut last = Raw::attach(&world, 0);
        let Answer::Info(info) = last.call(Call::Info { details: false }).unwrap() else { panic!("no description") };
        assert!(info.counters.contains(&("pinned_pages_free".into(), 16)), "seed {seed}: {:?}", info.counters);
    }
}

#[test]
fn commands_that_name_very_many_pages_take_the_turn_of_as_many_others() {
    const PAGES: u32 = 4096;
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    a.export("x");
    let (grant, _) = b.import(None, "x", Rights::WRITE);
    let memory = b.register(u64::from(PAGES) * PAGE);
    assert_eq!(pin(&mut b, 0, PAGES, memory.id, 0), Ok(Answer::Done));
    // More than the export has, which is seen after the pages.
    let mut command = RawCommand::new(Op::Send, grant.import);
    command.flags = flags::COMPLETE;
    (command.region, command.region_offset) = (ADDRESSES, ADDRESS_PAGE * PAGE);
    command.len = u64::from(PAGES) * PAGE;
    let mut most = 0;
    for _ in 0..20 {
        b.post(&command, &[]);
    }
    let mut all = 0;
    while all < 20 {
        world.borrow_mut().step();
        let done = std::iter::from_fn(|| b.try_completion()).count();
        (most, all) = (most.max(done), all + done);
    }
    let each = 1 + u64::from(PAGES) / crate::limits::RING_WORK_PAGES;
    assert!(most as u64 <= crate::limits::RING_BATCH as u64 / each + 1, "{most} were taken in one turn");
}
