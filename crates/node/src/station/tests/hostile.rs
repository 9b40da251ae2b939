//! Processes that break every rule harm only themselves.

use crate::limits::{CONNECTIONS_MAX, REFUSED_CONNECTIONS_MAX};
use crate::testing::{HOSTILE, LONG, Noise, Raw, World, as_user, can_be_others, wait};
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use vmmc_host::Channel;
use vmmc_host::abi::{Op, RawCommand, flags};
use vmmc_host::control::ExportKind;
use vmmc_host::control::{Access, Answer, Call, RefusalCode, Reply, Request, decode, encode};
use vmmc_host::limits::{COMPLETION_SLOTS, EXPORTS_PER_PROCESS_MAX};
use vmmc_host::published;
use vmmc_host::wait::Deadline;
use vmmc_nic::OpError;
use vmmc_nic::Rights;
use vmmc_stream::messages::{SocketCall, SocketEvent};

/// An honest pair that must go on working.
fn honest(world: &Rc<RefCell<World>>, name: &str) -> impl FnMut() + use<> {
    let (mut a, mut b) = (Raw::attach(world, 0), Raw::attach(world, 0));
    let (_, memory) = a.export(name);
    let (grant, _) = b.import(None, name, Rights::WRITE);
    let mut count = 0u64;
    move || {
        count += 1;
        assert!(a.no_completion(), "the receiver does nothing");
        b.send(grant.import, 0, &count.to_le_bytes(), count);
        let done = b.completion();
        assert_eq!((done.cookie, done.status), (count, 0));
        assert_eq!(memory.region.word(0).unwrap().load(Ordering::SeqCst), count);
        assert_eq!(memory.region.word(8).unwrap().load(Ordering::SeqCst), 0);
    }
}

#[test]
fn random_words_in_the_command_ring_harm_only_their_writer() {
    let world = World::new(2, None);
    let mut check = honest(&world, "honest");
    let mut noise = Noise::new(5);
    let mut evil = Raw::attach(&world, 0);
    let (_, own) = evil.export("own");
    let (grant, _) = evil.import(None, "own", Rights::WRITE);
    let ring = evil.register(16_384);
    let call = Call::Export {
        name: Some("ring".into()),
        region: ring.id,
        offset: 0,
        len: 16_384,
        rights: Rights::WRITE.bits(),
        access: Access::SameUser,
        notify: true,
        redirectable: false,
        kind: ExportKind::Ring,
        mappable: false,
    };
    assert!(matches!(evil.call(call), Ok(Answer::Exported { .. })));
    let (ring, _) = evil.import(None, "ring", Rights::WRITE);
    let mut call = Raw::export_call(&own, "redirected");
    let Call::Export { redirectable, .. } = &mut call else { unreachable!() };
    *redirectable = true;
    let Ok(Answer::Exported { export: redirected }) = evil.call(call) else { panic!("no export") };
    let (into, _) = evil.import(None, "redirected", Rights::WRITE);
    let mut most = 0;
    for round in 0..40 {
        for _ in 0..100 {
            let Some(mut slot) = evil.commands.claim() else { break };
            for word in 1..32 {
                slot.set(word, noise.next() >> (noise.next() % 64));
            }
            // Half of them look more like commands.
            if noise.next() % 2 == 0 {
                let op = [noise.next() % 9, 16 + noise.next() % 2][noise.next() as usize % 2];
                let (flags, count) = (noise.next() % 32, noise.next() % 40);
                slot.set(1, op | flags << 8 | (noise.next() % 400) << 16 | count << 32);
                slot.set(3, [grant.import, ring.import, into.import, noise.next() % 4][noise.next() as usize % 4]);
                slot.set(6, u64::from(own.id));
                if op >= 16 {
                    slot.set(3, [redirected, redirected + 1, noise.next() % 4][noise.next() as usize % 3]);
                }
                if noise.next() % 4 != 0 {
                    // Places where redirections are, and what tells them apart.
                    let (at, cookie) = (16 * (noise.next() % 64), noise.next() % 4);
                    slot.set(2, cookie);
                    slot.set(4, at);
                    slot.set(5, 1 + noise.next() % 32);
                    slot.set(7, noise.next() % 4096);
                    slot.set(8, noise.next() % 4);
                }
            }
            slot.publish();
        }
        evil.pump();
        most = most.max(world.borrow().stations[0].redirections());
        check();
        // Now and then it collects its completions, so that it is served again.
        while round % 4 == 0 && !evil.no_completion() {}
    }
    assert!(most > 10, "only {most} redirections were posted at once");
    drop(evil);
    let gone = || (world.borrow().stations[0].redirections() == 0).then_some(());
    wait(&|| world.borrow_mut().step(), gone);
}

#[test]
fn ranges_outside_of_own_regions_fail() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    a.export("x");
    let (grant, _) = b.import(None, "x", Rights::READ | Rights::WRITE);
    let own = b.register(4096);
    for (region, offset, len) in [
        (own.id.into(), 4090, 8),
        (own.id.into(), u64::MAX, 8),
        (u64::from(own.id) + 1, 0, 8),
        (1 << 40, 0, 1),
        (own.id.into(), 0, u64::MAX),
    ] {
        for op in [Op::Send, Op::Fetch] {
            let mut command = RawCommand::new(op, grant.import);
            command.flags = flags::COMPLETE;
            (command.region, command.region_offset, command.len, command.cookie) = (region, offset, len, 3);
            b.post(&command, &[]);
            let done = b.completion();
            assert_eq!(done.cookie, 3);
            assert!(matches!(OpError::from_code(done.status, done.args), Some(OpError::OutOfBounds { .. })));
        }
    }
}

#[test]
fn random_control_messages_end_the_connection_of_their_sender() {
    let world = World::new(1, None);
    let mut check = honest(&world, "honest");
    let mut noise = Noise::new(11);
    for round in 0..200 {
        let (theirs, ours) = Channel::pair().unwrap();
        {
            let mut world = world.borrow_mut();
            let now = world.now;
            world.stations[0].accept(now, theirs).unwrap();
        }
        let mut bytes: Vec<u8> = (0..1 + noise.next() % 60).map(|_| noise.next() as u8).collect();
        if round % 2 == 0 {
            // A message that was one before it was damaged.
            let call = Call::Export {
                name: Some("evil".into()),
                region: 1,
                offset: 2,
                len: 3,
                rights: 7,
                access: Access::Users(vec![1, 2]),
                notify: true,
                redirectable: true,
                kind: ExportKind::Memory,
                mappable: true,
            };
            bytes = encode(&Request { serial: 9, call });
            let at = noise.next() as usize % bytes.len();
            bytes[at] = noise.next() as u8;
        }
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let _ = ours.try_send(&bytes, &[fd.as_fd(), fd.as_fd()]);
        world.borrow_mut().step();
        if round % 20 == 0 {
            check();
        }
    }
    world.borrow_mut().step();
    assert_eq!(world.borrow().stations[0].connections(), 2, "connections of the hostile are left");
}

#[test]
fn descriptors_that_could_hurt_are_refused() {
    use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags, ftruncate, memfd_create};
    let world = World::new(1, None);
    let mut a = Raw::attach(&world, 0);
    let mut code =
        |fd: &std::os::fd::OwnedFd, len| a.call_with(Call::RegisterRegion { len }, &[fd]).0.unwrap_err().code;
    let unsealed = memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, 8192).unwrap();
    assert_eq!(code(&unsealed, 8192), RefusalCode::BadRegion);
    let socket = Channel::pair().unwrap().0.into_fd();
    assert_eq!(code(&socket, 4096), RefusalCode::BadRegion);
    let region = vmmc_host::Region::create(4096).unwrap();
    assert_eq!(code(&region.share().unwrap(), 8192), RefusalCode::BadRegion);
    assert_eq!(code(&region.share().unwrap(), 0), RefusalCode::BadRegion);
    assert_eq!(code(&region.share_read_only().unwrap(), 4096), RefusalCode::BadRegion);
    // Sealed, but others could write it through a descriptor for reading; or of pages that run out;
    // or with a hole.
    for (flags, mode, there) in
        [(MemfdFlags::empty(), 0o777, 8192), (MemfdFlags::HUGETLB, 0o444, 0), (MemfdFlags::empty(), 0o444, 4096)]
    {
        let len = if there == 0 { 2 << 20 } else { 8192 };
        let fd = memfd_create("t", MemfdFlags::ALLOW_SEALING | flags).unwrap();
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)).unwrap();
        ftruncate(&fd, len).unwrap();
        if there > 0 {
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, there).unwrap();
        }
        if there == 4096 && rustix::fs::fstat(&fd).unwrap().st_blocks > 8 {
            println!("SKIP a hole: this kernel gives shared memory more pages than were asked for");
            continue;
        }
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert_eq!(code(&fd, len), RefusalCode::BadRegion, "{flags:?}, mode {mode:o}, {there} bytes there");
    }
}

#[test]
fn exports_of_a_process_are_bounded() {
    let world = World::new(1, None);
    let mut a = Raw::attach(&world, 0);
    let memory = a.register(4096);
    let call = || {
        let mut call = Raw::export_call(&memory, "");
        let Call::Export { name, .. } = &mut call else { unreachable!() };
        *name = None;
        call
    };
    for _ in 0..EXPORTS_PER_PROCESS_MAX {
        a.call(call()).unwrap();
    }
    assert_eq!(a.call(call()).unwrap_err().code, RefusalCode::TableFull);
    honest(&world, "honest")();
}

#[test]
fn a_process_that_collects_no_completions_is_no_longer_served_and_loses_none() {
    let world = World::new(1, None);
    let mut check = honest(&world, "honest");
    let (mut a, mut lazy) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    a.export("x");
    let (grant, _) = lazy.import(None, "x", Rights::WRITE);
    let mut posted = 0;
    let end = Deadline::after(LONG);
    loop {
        let mut command = RawCommand::new(Op::Send, grant.import);
        command.flags = flags::INLINE | flags::COMPLETE;
        command.cookie = posted;
        match lazy.commands.claim() {
            Some(slot) => command.publish(slot, b"x"),
            None => {
                let before = posted;
                (0..50).for_each(|_| lazy.pump());
                if before == posted && lazy.commands.free() == 0 {
                    break;
                }
                continue;
            }
        }
        posted += 1;
        assert!(end.left(vmmc_host::Nanos::monotonic()).is_some());
    }
    assert!(posted as usize > COMPLETION_SLOTS && (posted as usize) < 3 * COMPLETION_SLOTS, "{posted} were taken");
    check();
    for cookie in 0..posted {
        assert_eq!(lazy.completion().cookie, cookie);
    }
}

#[test]
fn a_call_that_waits_since_before_the_attach_is_counted_once() {
    let world = World::new(1, None);
    let (theirs, ours) = Channel::pair().unwrap();
    {
        let mut world = world.borrow_mut();
        let now = world.now;
        world.stations[0].accept(now, theirs).unwrap();
    }
    // Nobody answers from there.
    let ping = Call::Ping { node: "10.9.9.9:9".into(), timeout_ms: 20 };
    ours.try_send(&encode(&Request { serial: 77, call: ping.clone() }), &[]).unwrap();
    let pump = world.clone();
    let over = Rc::new(move || pump.borrow_mut().step());
    over();
    let mut raw = Raw::over(ours, over);
    assert_eq!(raw.answer(77).unwrap_err().code, RefusalCode::TimedOut);
    // Its count is where it was: the next calls wait too.
    for _ in 0..3 {
        assert_eq!(raw.call(ping.clone()).unwrap_err().code, RefusalCode::TimedOut);
    }
    assert!(world.borrow().stations[0].called_by_address() == 0);
}

#[test]
fn importers_that_come_and_go_do_not_fill_the_queue_of_one_that_collects_nothing() {
    let world = World::new(1, None);
    let mut check = honest(&world, "honest");
    let mut exporter = Raw::attach(&world, 0);
    exporter.export("x");
    for _ in 0..2 * crate::limits::OUTBOX_FDS_MAX {
        let mut importer = Raw::attach(&world, 0);
        let (grant, _) = importer.import(None, "x", Rights::READ | Rights::WRITE);
        assert!(grant.pair);
    }
    check();
    // It is still there, and what it is told is of two kinds in turn.
    exporter.call(Call::Info { details: false }).unwrap();
    assert!(matches!(exporter.event().0, vmmc_host::control::NodeEvent::Pair { .. }));
    assert!(matches!(exporter.event().0, vmmc_host::control::NodeEvent::PairGone { .. }));
}

#[test]
fn an_export_with_very_many_imports_ends_in_turns() {
    let world = World::new(1, None);
    let (mut owner, mut many) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, _memory) = owner.export("x");
    let count = 3 * crate::limits::EVENTS_PER_TURN;
    (0..count).for_each(|_| _ = many.import(None, "x", Rights::WRITE));
    owner.ask(Call::Unexport { export, moving: false });
    world.borrow_mut().step();
    assert!(world.borrow().stations[0].engine().has_events(), "all were handed out at once");
    (0..count).for_each(|_| {
        let event = many.event().0;
        assert!(matches!(event, vmmc_host::control::NodeEvent::ImportBroken { .. }), "{event:?}");
    });
}

#[test]
fn a_connection_that_does_not_attach_is_closed() {
    let world = World::new(1, None);
    let (theirs, ours) = Channel::pair().unwrap();
    {
        let mut world = world.borrow_mut();
        let now = world.now;
        world.stations[0].accept(now, theirs).unwrap();
        assert!(world.stations[0].next_timeout(now).is_some());
        world.now = now + crate::limits::ATTACH_TIME;
        world.step();
        assert_eq!(world.stations[0].connections(), 0);
    }
    assert!(ours.try_receive().is_err());
}

#[test]
fn a_process_may_write_its_own_bell_and_lanes_as_it_likes() {
    let world = World::new(1, None);
    let mut check = honest(&world, "honest");
    let evil = Raw::attach(&world, 0);
    for i in 0..3000u64 {
        rustix::io::write(&evil.doorbell, &(1u64 << 40).to_ne_bytes()).unwrap();
        evil.bell.word().store(i, Ordering::SeqCst);
        evil.area.process_sleeping().store(i, Ordering::SeqCst);
        evil.area.lane(i as usize % 256).store(i, Ordering::SeqCst);
        evil.pump();
    }
    check();
}

#[test]
fn what_the_node_opens_for_a_client_counts_in_its_share() {
    use crate::limits::{DESCRIPTORS_PER_PROCESS, DESCRIPTORS_PER_REGION};
    let world = World::new(1, None);
    let total = || world.borrow().stations[0].shares.total(super::super::Table::Descriptors);
    let mut one = Raw::attach(&world, 0);
    let attached = total();
    assert_eq!(attached, u64::from(1 + DESCRIPTORS_PER_PROCESS));
    let region = one.register(4096);
    // One more when the first importer reads it.
    assert_eq!(total(), attached + u64::from(DESCRIPTORS_PER_REGION));
    one.call(Call::ReleaseRegion { region: region.id }).unwrap();
    assert_eq!(total(), attached);
    let (theirs, ours) = Channel::pair().unwrap();
    {
        let mut world = world.borrow_mut();
        let now = world.now;
        world.stations[0].accept(now, theirs).unwrap();
    }
    let bells = vmmc_stream::Bells::create().unwrap().share().unwrap();
    let call = vmmc_stream::messages::SocketCall::Attach;
    let request = Request { serial: 1, call: call.to_call() };
    ours.try_send(&encode(&request), &[bells.as_fd()]).unwrap();
    one.pump();
    assert_eq!(total(), attached + u64::from(1 + vmmc_sockets_service::limits::DESCRIPTORS_PER_SOCKETS_CLIENT));
    drop(ours);
    crate::testing::wait(&|| one.pump(), || (total() == attached).then_some(()));
}

/// Two clients of the service with a connection between them; none: this kernel lacks what
/// connections are upgraded by. With each client what it has received from the node.
fn connected(world: &Rc<RefCell<World>>, pump: &dyn Fn()) -> Option<[(Channel, Vec<Received>); 2]> {
    let clients = [(); 2].map(|()| {
        let (theirs, ours) = Channel::pair().unwrap();
        let mut world = world.borrow_mut();
        let now = world.now;
        world.stations[0].accept(now, theirs).unwrap();
        ours
    });
    for client in &clients {
        let bells = vmmc_stream::Bells::create().unwrap().share().unwrap();
        send(client, SocketCall::Attach, &[bells.as_fd()]);
        pump();
    }
    if world.borrow().stations[0].services.clients() < 2 {
        println!("SKIP slabs: this kernel lacks what connections are upgraded by");
        return None;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    for (client, socket) in clients.iter().zip([&near, &far]) {
        let socket = vmmc_stream::claim(socket.as_fd()).unwrap();
        send(client, SocketCall::Offer { connection: 1, socket }, &[]);
        pump();
    }
    Some(clients.map(|client| {
        let received = std::iter::from_fn(|| client.try_receive().ok()).filter_map(|(bytes, fds)| {
            match decode::<Reply>(&bytes).unwrap().result {
                Ok(answer) => Some((SocketEvent::of(&answer)?, fds)),
                Err(_) => None,
            }
        });
        let received = received.collect();
        (client, received)
    }))
}

/// A figure of a service of the first station.
fn figure(world: &Rc<RefCell<World>>, name: &str) -> u64 {
    let figures = world.borrow().stations[0].services.figures();
    figures.iter().find(|figure| figure.name == name).expect("there is such a figure").value
}

type Received = (SocketEvent, Vec<std::os::fd::OwnedFd>);

fn send(client: &Channel, call: SocketCall, fds: &[std::os::fd::BorrowedFd<'_>]) {
    client.try_send(&encode(&Request { serial: 1, call: call.to_call() }), fds).unwrap();
}

#[test]
fn slabs_of_connections_count_where_descriptors_and_mappings_are_shared() {
    use super::super::Table;
    let world = World::new(1, None);
    let one = Raw::attach(&world, 0);
    let free = || [Table::Descriptors, Table::Regions].map(|table| world.borrow().stations[0].shares.free(table));
    let before = free();
    let Some(_clients) = connected(&world, &|| one.pump()) else { return };
    // The slab of the pair; and what each client has otherwise.
    let of_clients = 2 * u64::from(1 + vmmc_sockets_service::limits::DESCRIPTORS_PER_SOCKETS_CLIENT);
    assert_eq!(free(), [before[0] - 1 - of_clients, before[1] - 1], "the first slab of the pair");
}

#[test]
fn a_slab_that_a_client_keeps_counts_until_it_is_gone() {
    let world = World::new(1, None);
    let one = Raw::attach(&world, 0);
    let Some([(near, received), (far, of_far)]) = connected(&world, &|| one.pump()) else { return };
    let slots = || figure(&world, "sockets_slots");
    let (before, slabs) = (slots(), || figure(&world, "sockets_slabs"));
    assert_eq!((before, slabs()), (u64::from(vmmc_sockets_service::limits::SOCKET_SLAB_SLOTS_MIN), 1));
    for (client, received) in [(&near, &received), (&far, &of_far)] {
        let end = received.iter().find_map(|(event, _)| match event {
            SocketEvent::Matched { end, .. } => Some(*end),
            _ => None,
        });
        send(client, SocketCall::Release { end: end.unwrap() }, &[]);
        one.pump();
    }
    let kept = received.into_iter().find(|(event, _)| matches!(event, SocketEvent::Slab { .. })).unwrap().1;
    drop((far, of_far));
    wait(&|| one.pump(), || (slabs() == 0).then_some(()));
    (0..100).for_each(|_| one.pump());
    assert_eq!(slots(), before, "somebody has its memory");
    drop(kept);
    wait(&|| one.pump(), || (slots() == 0).then_some(()));
}

#[test]
fn who_is_turned_away_because_its_user_has_its_share_is_said_to_be() {
    if !can_be_others() {
        return;
    }
    let world = World::new(1, None);
    let mut world = world.borrow_mut();
    let now = world.now;
    let mut kept = Vec::new();
    let why = loop {
        let (theirs, ours) = as_user(HOSTILE, || Channel::pair().unwrap());
        kept.push(ours);
        if let Err(why) = world.stations[0].accept(now, theirs) {
            break why.to_string();
        }
    };
    assert_eq!(kept.len(), CONNECTIONS_MAX / 2 + REFUSED_CONNECTIONS_MAX / 2 + 1);
    let share = format!("user {HOSTILE} holds {} of the {CONNECTIONS_MAX} connections", CONNECTIONS_MAX / 2);
    assert!(why.contains(&share), "{why}");
}

#[test]
fn figures_that_a_user_publishes_hide_none_of_others_and_wild_ones_are_left_out() {
    if !can_be_others() {
        return;
    }
    let world = World::new(1, None);
    let mut many = Raw::attach_as(&world, 0, HOSTILE);
    let mut noise = Noise::new(7);
    // More than a description has, and there is room for figures in each; few of them make sense.
    for number in 0..20 {
        let (_, memory) = many.export(&published::export_name("wild", number));
        let bytes: Vec<u8> = (0..4096).map(|_| noise.next() as u8).collect();
        (0..16).for_each(|page| memory.region.write(page * 4096, &bytes).unwrap());
        memory.region.write(0, b"vmmcfig1").unwrap();
    }
    let mut one = Raw::attach(&world, 0);
    let counter = published::FigureOf { kind: published::FigureKind::Counter, family: "calls", item: "read" };
    let figures = published::Figures::create(&[counter]).unwrap();
    figures.add(0, 3);
    let (_, memory) = one.export(&published::export_name("honest", 1));
    let mut bytes = vec![0; figures.region().len_bytes() as usize];
    figures.region().read(0, &mut bytes).unwrap();
    memory.region.write(0, &bytes).unwrap();
    let Answer::Info(info) = one.call(Call::Info { details: true }).unwrap() else { panic!("no description") };
    let shown = |source: &str| info.published.iter().filter(|of| of.source == source).count();
    assert_eq!((shown("wild"), shown("honest")), (3, 1));
    let honest = info.published.iter().find(|of| of.source == "honest").expect("it was counted");
    assert_eq!((honest.figures[0].item.as_str(), honest.figures[0].value), ("read", 3));
    assert!(info.published.iter().all(|of| of.figures.len() <= published::FIGURES_MAX));
}
