//! The service with clients of this process, and what hostile ones try.
//!
//! Invariant: a client that holds nothing changes nothing, and what one user takes another one
//! still finds.

use super::*;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vmmc_stream::messages::SocketList;
use vmmc_stream::{EndWords, claim};

/// A service with one client of this process's user, for each process that is wanted.
fn service(clients: usize) -> Option<(Sockets, Vec<Bells>)> {
    let mut sockets = Sockets::default();
    if let Err(why) = sockets.prepare() {
        println!("SKIP {why}");
        return None;
    }
    let uid = rustix::process::geteuid().as_raw();
    let bells: Vec<Bells> = (0..clients).map(|_| Bells::create().unwrap()).collect();
    for (index, bells) in bells.iter().enumerate() {
        sockets.attach(index, std::process::id(), uid, bells.share().unwrap()).unwrap();
    }
    Some((sockets, bells))
}

/// The list, on a node without others.
fn list_of(sockets: &Sockets) -> SocketList {
    let mut engine = testing::engine("n", 1, Time::ZERO);
    sockets.list(&testing::OnEngine { engine: &mut engine, now: Time::ZERO })
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn offer(sockets: &mut Sockets, index: usize, connection: u64, socket: &TcpStream) -> Option<SocketEvent> {
    let call = SocketCall::Offer { connection, socket: claim(socket.as_fd()).unwrap() };
    sockets.handle(Time::ZERO, index, call, Vec::new()).unwrap();
    sockets.take_outbox().pop().map(|(_, event, _)| event)
}

#[test]
fn a_bell_that_comes_after_somebody_wanted_to_ring_it_rings() {
    let Some((mut sockets, bells)) = service(1) else { return };
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    assert!(!bells[0].arm(3), "nothing has happened when the loop goes to sleep");
    // What a peer does that has no bell yet; its message to the node overtakes the bell.
    assert!(bells[0].mark(3, 7));
    let given = fd.try_clone().unwrap();
    sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 3 }, vec![given]).unwrap();
    assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Ok(8), "the loop would sleep on");
    sockets.take_outbox();
    let again = sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 3 }, vec![fd.try_clone().unwrap()]);
    assert_eq!((again, sockets.take_outbox().len()), (Ok(()), 0), "each bell has one eventfd");
    assert!(rustix::io::read(&fd, &mut [0; 8]).is_err());
}

#[test]
fn bells_whose_write_waits_hold_nobody_up_and_nothing_else_is_written_to() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let Some((mut sockets, bells)) = service(1) else { return done.send(()) };
        let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let theirs = full.try_clone().unwrap();
        sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 0 }, vec![full]).unwrap();
        // The counter is filled again, for the flag and the counter are everybody's.
        rustix::io::read(&theirs, &mut [0; 8]).unwrap();
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let process = sockets.clients[&0].process;
        let uid = sockets.clients[&0].uid;
        for token in 0..1000 {
            bells[0].arm(0);
            sockets.ring(Watch { process, bell: 0, token }, uid);
        }
        let (_read, write) = rustix::pipe::pipe().unwrap();
        while rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK).is_ok()
            && rustix::io::write(&write, &[0; 4096]).is_ok()
        {}
        rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::empty()).unwrap();
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for fd in [write, file.try_clone().unwrap()] {
            let said = sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 1 }, vec![fd]);
            assert_eq!(said, Err(Misbehaved));
        }
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 0);
        done.send(())
    });
    wait.recv_timeout(std::time::Duration::from_secs(20)).expect("the service waits for a client");
}

#[test]
fn a_client_is_not_rung_for_the_words_of_another_user() {
    let Some((mut sockets, bells)) = service(1) else { return };
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    sockets.handle(Time::ZERO, 0, SocketCall::Bell { bell: 0 }, vec![fd.try_clone().unwrap()]).unwrap();
    assert!(rustix::io::read(&fd, &mut [0; 8]).is_err(), "nobody wanted to ring it");
    let (process, uid) = (sockets.clients[&0].process, sockets.clients[&0].uid);
    sockets.ring(Watch { process, bell: 0, token: 1 }, uid + 1);
    assert!(!bells[0].any(0) && rustix::io::read(&fd, &mut [0; 8]).is_err());
    sockets.ring(Watch { process, bell: 0, token: 1 }, uid);
    assert!(bells[0].any(0) && rustix::io::read(&fd, &mut [0; 8]).is_ok());
}

#[test]
fn a_peer_of_another_user_is_refused_and_the_list_says_so_until_the_connection_ends() {
    let Some((mut sockets, _bells)) = service(2) else { return };
    let (one, two) = pair();
    if rustix::fs::fchown(&two, Some(rustix::fs::Uid::from_raw(54_321)), None).is_err() {
        return println!("SKIP a socket of another user takes root");
    }
    sockets.client(1).uid = 54_321;
    for (index, socket) in [(0, &one), (1, &two)] {
        let call = SocketCall::Offer { connection: 5, socket: claim(socket.as_fd()).unwrap() };
        sockets.handle(Time::ZERO, index, call, Vec::new()).unwrap();
    }
    let refused = |(_, event, _): &(usize, SocketEvent, Vec<OwnedFd>)| {
        matches!(event, SocketEvent::Refused { connection: 5, why: OfferRefusal::OtherUser })
    };
    assert_eq!(sockets.take_outbox().iter().filter(|n| refused(n)).count(), 2);
    let SocketList { sockets: list, total } = list_of(&sockets);
    assert!(total == 2 && list.iter().all(|s| s.reason == "the peer belongs to another user"), "{list:?}");
    for index in 0..2 {
        sockets.handle(Time::ZERO, index, SocketCall::Withdraw { connection: 5, cookie: 0 }, Vec::new()).unwrap();
    }
    assert_eq!(list_of(&sockets).total, 0);
}

#[test]
fn a_socket_is_claimed_by_its_user_by_root_or_by_whoever_is_seen_to_hold_it() {
    let Some((mut sockets, _bells)) = service(1) else { return };
    let (one, _two) = pair();
    let me = rustix::process::geteuid();
    sockets.take_outbox();
    let refused = |event: Option<SocketEvent>| match event {
        Some(SocketEvent::Refused { why, .. }) => Some(why),
        None => None,
        other => panic!("{other:?}"),
    };
    // This process is seen to hold what it claims, no matter which user it says it is.
    sockets.client(0).uid = 54_321;
    assert_eq!(refused(offer(&mut sockets, 0, 1, &one)), None);
    sockets.handle(Time::ZERO, 0, SocketCall::Withdraw { connection: 1, cookie: 0 }, Vec::new()).unwrap();
    // Under another number it is not there: then the user decides.
    let mut wrong = claim(one.as_fd()).unwrap();
    wrong.descriptor = 1_000_000;
    let say = |sockets: &mut Sockets, uid: u32, connection| {
        sockets.client(0).uid = uid;
        let call = SocketCall::Offer { connection, socket: wrong.clone() };
        sockets.handle(Time::ZERO, 0, call, Vec::new()).unwrap();
        let said = refused(sockets.take_outbox().pop().map(|(_, event, _)| event));
        sockets.handle(Time::ZERO, 0, SocketCall::Withdraw { connection, cookie: 0 }, Vec::new()).unwrap();
        said
    };
    assert_eq!(say(&mut sockets, 54_321, 2), Some(OfferRefusal::NotYours));
    assert_eq!(say(&mut sockets, me.as_raw(), 3), None);
    assert_eq!(say(&mut sockets, 0, 4), None);
    wrong.cookie += 1;
    let call = SocketCall::Offer { connection: 5, socket: wrong };
    sockets.handle(Time::ZERO, 0, call, Vec::new()).unwrap();
    assert_eq!(refused(sockets.take_outbox().pop().map(|(_, n, _)| n)), Some(OfferRefusal::NotConnected));
    assert!(sockets.offers.is_empty() && sockets.client(0).offers.is_empty());
}

/// A client closes what it claims while the node checks whether it has it. The process that drops
/// the last copy of a socket that lingers waits, and that must never be the node.
#[test]
fn a_descriptor_that_is_closed_while_the_node_looks_at_it_holds_it_up_no_longer() {
    const LINGER: Duration = Duration::from_secs(3);
    const ROUNDS: u32 = 4_000;
    let Some((mut sockets, _bells)) = service(1) else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP a descriptor of another user's process takes root");
    }
    sockets.client(0).uid = 54_321;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut longest = Duration::ZERO;
    let mut looks = 0;
    for round in 0..ROUNDS {
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
        socket.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut socket, &[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
        let claim = claim(socket.as_fd()).unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino as u32;
        let found = vmmc_stream::KernelSocket { inode, uid: 54_322, established: true, cookie: claim.cookie };
        let (begin, begun) = std::sync::mpsc::channel();
        // Not joined: its close may linger until the round is over.
        std::thread::spawn(move || {
            begun.recv().unwrap();
            (0..round % 100).for_each(|_| std::hint::spin_loop());
            drop(socket);
        });
        begin.send(()).unwrap();
        let mut held = true;
        while held {
            let mut copies = verifier::Copies::new();
            let start = Instant::now();
            held = verifier::is_held(sockets.client(0), claim.descriptor, &found, &mut copies);
            longest = longest.max(start.elapsed());
            looks += 1;
            std::thread::spawn(move || drop(copies));
        }
        // A reset, which ends all lingering.
        drop(peer);
    }
    println!("the longest of {looks} looks: {longest:?}");
    assert!(longest < LINGER / 2, "a look took {longest:?}");
}

#[test]
fn only_the_user_of_a_connection_adopts_it_or_holds_it() {
    let Some((mut sockets, _bells)) = service(3) else { return };
    let (one, two) = pair();
    offer(&mut sockets, 0, 1, &one);
    let call = SocketCall::Offer { connection: 1, socket: claim(two.as_fd()).unwrap() };
    sockets.handle(Time::ZERO, 1, call, Vec::new()).unwrap();
    let place = sockets.take_outbox().iter().find_map(|(index, event, _)| match event {
        SocketEvent::Matched { end, .. } if *index == 0 => Some(end.place),
        _ => None,
    });
    let place = place.expect("both ends were offered");
    let secret = sockets.slabs.link(place).unwrap().secret;
    let cookie = vmmc_stream::cookie(one.as_fd()).unwrap();
    let uid = sockets.clients[&2].uid;
    for (stranger, allowed) in [(uid + 1, false), (uid, true)] {
        sockets.client(2).uid = stranger;
        let adopt = SocketCall::Adopt { connection: 9, cookie };
        sockets.handle(Time::ZERO, 2, adopt, Vec::new()).unwrap();
        sockets.handle(Time::ZERO, 2, SocketCall::Hold { ends: vec![EndRef { place, secret }] }, Vec::new()).unwrap();
        let events = sockets.take_outbox();
        let adopted = events.iter().any(|(_, event, _)| matches!(event, SocketEvent::Adopted { end: Some(_), .. }));
        let slab = events.iter().any(|(_, event, _)| matches!(event, SocketEvent::Slab { .. }));
        assert_eq!([adopted, slab, sockets.clients[&2].ends.contains(&place)], [allowed; 3]);
    }
    // Wild claims of somebody who holds nothing change nothing.
    let Some(link) = sockets.slabs.link(place) else { panic!("it stands") };
    let before = link.holders[0].processes().collect::<Vec<_>>();
    let stranger = Bells::create().unwrap();
    sockets.attach(7, std::process::id(), uid + 1, stranger.share().unwrap()).unwrap();
    let end = EndRef { place, secret };
    for call in [
        SocketCall::Release { end },
        SocketCall::LetGo { end },
        SocketCall::Grow { end },
        SocketCall::Ring { end },
        SocketCall::Ended { end },
    ] {
        sockets.handle(Time::ZERO, 7, call, Vec::new()).unwrap();
    }
    let after = sockets.slabs.link(place).unwrap();
    assert_eq!(after.holders[0].processes().collect::<Vec<_>>(), before);
    assert!(after.released == [false; 2] && sockets.orphans.is_empty());
}

#[test]
fn an_offer_that_is_taken_back_after_the_match_releases_the_end_unless_its_process_joined() {
    for joined in [false, true] {
        let Some((mut sockets, _bells)) = service(3) else { return };
        let (one, two) = pair();
        offer(&mut sockets, 0, 1, &one);
        offer(&mut sockets, 1, 1, &two);
        let place = *sockets.clients[&0].ends.iter().next().unwrap();
        let slot = sockets.slabs.slot(place).unwrap();
        let attached = &slot.words().ends[place.end as usize].attached;
        if joined {
            attached.store(EndWords::YES, Ordering::Relaxed);
        }
        let cookie = vmmc_stream::cookie(one.as_fd()).unwrap();
        let withdraw = || SocketCall::Withdraw { connection: 1, cookie };
        // Somebody else's word is none.
        sockets.handle(Time::ZERO, 2, withdraw(), Vec::new()).unwrap();
        assert!(sockets.by_cookie.contains_key(&cookie));
        sockets.handle(Time::ZERO, 0, withdraw(), Vec::new()).unwrap();
        let link = sockets.slabs.link(place).unwrap();
        assert_eq!(link.released[place.end as usize], !joined);
        let expected = if joined { EndWords::YES } else { EndWords::NO };
        assert_eq!(attached.load(Ordering::Relaxed), expected);
        assert_eq!(sockets.by_cookie.contains_key(&cookie), joined);
    }
}

#[test]
fn a_word_about_a_connection_that_has_ended_does_nothing_to_the_next_one_in_its_slot() {
    let Some((mut sockets, _bells)) = service(2) else { return };
    let meet = |sockets: &mut Sockets| {
        let (one, two) = pair();
        offer(sockets, 0, 1, &one);
        offer(sockets, 1, 2, &two);
        let ends = [0, 1].map(|index| {
            let place = *sockets.clients[&index].ends.iter().next().unwrap();
            sockets.end_ref(place)
        });
        (ends, one, two)
    };
    let (first, ..) = meet(&mut sockets);
    for (index, end) in first.iter().enumerate() {
        sockets.handle(Time::ZERO, index, SocketCall::Release { end: *end }, Vec::new()).unwrap();
    }
    let (second, ..) = meet(&mut sockets);
    let places = |ends: &[EndRef]| ends.iter().map(|end| end.place).collect::<Vec<_>>();
    assert_eq!(places(&first), places(&second), "the slot is used again");
    for (index, end) in first.iter().enumerate() {
        for call in [SocketCall::LetGo { end: *end }, SocketCall::Release { end: *end }] {
            sockets.handle(Time::ZERO, index, call, Vec::new()).unwrap();
        }
    }
    let link = sockets.slabs.link(second[0].place).unwrap();
    assert!(link.released == [false; 2] && link.holders.iter().all(|holders| !holders.is_empty()));
    assert!(sockets.orphans.is_empty());
}

#[test]
fn a_process_that_holds_an_end_ten_thousand_times_is_one_holder() {
    let Some((mut sockets, _bells)) = service(2) else { return };
    let (one, two) = pair();
    offer(&mut sockets, 0, 1, &one);
    offer(&mut sockets, 1, 1, &two);
    let place = *sockets.clients[&0].ends.iter().next().unwrap();
    let secret = sockets.slabs.link(place).unwrap().secret;
    for _ in 0..20 {
        let ends = vec![EndRef { place, secret }; SOCKET_PLACES_MAX];
        sockets.handle(Time::ZERO, 0, SocketCall::Hold { ends }, Vec::new()).unwrap();
    }
    assert_eq!(sockets.slabs.link(place).unwrap().holders[place.end as usize].processes().count(), 1);
    assert!(sockets.take_outbox().len() < 10, "and nobody is told twice");
    let ends = vec![EndRef { place, secret }; SOCKET_PLACES_MAX + 1];
    let too_many = sockets.handle(Time::ZERO, 0, SocketCall::Hold { ends }, Vec::new());
    assert_eq!(too_many, Err(Misbehaved));
    for _ in 0..20 * SOCKET_PLACES_MAX + 1 {
        sockets.handle(Time::ZERO, 0, SocketCall::LetGo { end: EndRef { place, secret } }, Vec::new()).unwrap();
    }
    assert_eq!(sockets.orphans.len(), 1);
    for _ in 0..100 {
        sockets.handle(Time::ZERO, 0, SocketCall::Hold { ends: vec![EndRef { place, secret }] }, Vec::new()).unwrap();
        sockets.handle(Time::ZERO, 0, SocketCall::LetGo { end: EndRef { place, secret } }, Vec::new()).unwrap();
    }
    assert_eq!(sockets.orphans.len(), 1, "an end that is let go again and again is remembered once");
}

#[test]
fn a_process_that_ends_takes_its_slabs_and_bells_along() {
    let Some((mut sockets, _bells)) = service(2) else { return };
    let (one, two) = pair();
    offer(&mut sockets, 0, 1, &one);
    offer(&mut sockets, 1, 1, &two);
    let process = sockets.clients[&1].process;
    let place = *sockets.clients[&1].ends.iter().next().unwrap();
    for index in 0..2 {
        let place = *sockets.clients[&index].ends.iter().next().unwrap();
        let end = sockets.end_ref(place);
        sockets.handle(Time::ZERO, index, SocketCall::Release { end }, Vec::new()).unwrap();
    }
    sockets.take_outbox();
    sockets.gone(1, Time::ZERO);
    let events: Vec<SocketEvent> = sockets.take_outbox().into_iter().map(|(_, event, _)| event).collect();
    assert!(events.contains(&SocketEvent::PeerGone { process }), "{events:?}");
    assert!(events.contains(&SocketEvent::SlabGone { slab: place.slab }), "{events:?}");
    assert!(sockets.clients[&0].slabs.is_empty() && sockets.slabs.links().count() == 0);
}

/// Connections between two clients that no socket stands behind; gives their ends.
fn connections(sockets: &mut Sockets, clients: [usize; 2], count: u64) -> Vec<EndRef> {
    let processes = clients.map(|i| sockets.clients[&i].process);
    let uid = sockets.clients[&clients[0]].uid;
    let mut all = Vec::new();
    for number in 1..=count {
        let (slab, slot) = sockets.slabs.take_slot(processes, uid).unwrap();
        let at = |port: u64| std::net::SocketAddr::from(([127, 0, 0, 1], port as u16));
        let own = Endpoints { network: 0, local: at(number), remote: at(60_000) };
        let cookies = [2 * number, 2 * number + 1];
        let link = slabs::Link::new(uid, processes, [own.clone(), own.mirrored()], cookies, number);
        sockets.slabs.set_link(slab, slot, link);
        for end in 0..2 {
            let place = Place { slab, slot, end };
            sockets.clients.get_mut(&clients[usize::from(end)]).unwrap().ends.insert(place);
            sockets.by_cookie.insert(cookies[usize::from(end)], place);
            all.push(EndRef { place, secret: number });
        }
    }
    all
}

#[test]
fn ends_that_many_held_and_all_have_left_are_looked_at_once_and_in_turns() {
    const HOLDERS: usize = 40;
    let Some((mut sockets, _bells)) = service(2 + HOLDERS) else { return };
    let all = connections(&mut sockets, [0, 1], 600);
    for index in 2..2 + HOLDERS {
        for ends in all.chunks(SOCKET_PLACES_MAX) {
            sockets.handle(Time::ZERO, index, SocketCall::Hold { ends: ends.to_vec() }, Vec::new()).unwrap();
        }
        sockets.take_outbox();
    }
    let start = Time::ZERO;
    for index in 0..2 + HOLDERS {
        sockets.gone(index, start);
        assert!(sockets.orphans.len() <= all.len(), "an end is one orphan, however many held it");
    }
    // Each turn does its part; what it leaves makes the next one due at once.
    let mut now = start;
    let mut turns = 0;
    while let Some(due) = sockets.next_orphan() {
        let before = sockets.slabs.links().count();
        now = now.max(due);
        sockets.serve_orphans(now);
        assert!(before - sockets.slabs.links().count() <= crate::limits::SOCKET_ORPHANS_PER_TURN);
        turns += 1;
        assert!(turns < 10_000, "it ends");
    }
    assert!(sockets.slabs.links().count() == 0 && sockets.by_cookie.is_empty());
    assert!(now.since(start) >= crate::limits::SOCKET_ORPHAN_TIME, "this process, which held all, lives");
    assert!(sockets.slabs.take_slot([1, 2], 7).is_some_and(|(_, slot)| slot == 0));
}

#[test]
fn the_ends_of_a_process_with_few_do_not_wait_behind_those_of_one_with_many() {
    let Some((mut sockets, _bells)) = service(4) else { return };
    connections(&mut sockets, [0, 1], 1_000);
    let few = connections(&mut sockets, [2, 3], 1);
    sockets.gone(0, Time::ZERO);
    sockets.gone(2, Time::ZERO);
    sockets.serve_orphans(Time::ZERO);
    let link = sockets.slabs.link(few[0].place).unwrap();
    assert!(link.holders[0].is_empty() && !link.holders[1].is_empty());
}

#[test]
fn refusals_are_remembered_within_the_share_of_a_user_and_lists_are_no_longer_than_they_are_shown() {
    let Some((mut sockets, _bells)) = service(3) else { return };
    sockets.client(2).uid = 54_321;
    let end = |number: u64| {
        let at = |port: u64| std::net::SocketAddr::from(([127, 0, 0, 1], port as u16));
        Endpoints { network: 0, local: at(number), remote: at(9) }
    };
    for number in 0..10_000 {
        for index in 0..2 {
            sockets.refuse_for_good(index, number, end(number), OfferRefusal::TooMany);
        }
    }
    sockets.refuse_for_good(2, 1, end(1), OfferRefusal::OtherUser);
    let known = |sockets: &Sockets| sockets.clients.values().map(|client| client.refused.len()).sum::<usize>();
    assert_eq!(known(&sockets), SOCKET_REFUSED_MAX / 2 + 1, "one user has half, and another finds room");
    let SocketList { sockets: list, total } = list_of(&sockets);
    assert_eq!((list.len(), total), (crate::limits::SOCKET_LIST_MAX, SOCKET_REFUSED_MAX as u64 / 2 + 1));
    // All of it comes back.
    for number in 0..5_000 {
        sockets.handle(Time::ZERO, 0, SocketCall::Withdraw { connection: number, cookie: 0 }, Vec::new()).unwrap();
    }
    (0..3).for_each(|index| sockets.gone(index, Time::ZERO));
    assert!(sockets.refused.take(7, SOCKET_REFUSED_MAX as u64, SOCKET_REFUSED_MAX as u64));
}
