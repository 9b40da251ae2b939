//! Embedded nodes over real sockets, stepped by the threads of the test.

use super::*;
use crate::config::KeySource;
use crate::testing::{LONG, Raw, wait};
use vmmc_host::abi::{ADDRESSES, Op, RawCommand, flags};
use vmmc_host::control::{Answer, Call, PageRun, PinRun, RefusalCode};
use vmmc_host::wait::{Deadline, Waiter};
use vmmc_nic::Rights;

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn pair(keys: [KeySource; 2], poller: bool) -> (Embedded, Embedded) {
    let [first, second] = keys;
    let mut a = NodeConfig::new("a").listen(loopback()).key(first).plain_trust_users();
    a.poller = poller;
    let a = Embedded::start(a).unwrap();
    let mut b = NodeConfig::new("b").listen(loopback()).peer(&a.addresses()).key(second).plain_trust_users();
    b.poller = poller;
    (a, Embedded::start(b).unwrap())
}

fn plain() -> [KeySource; 2] {
    [KeySource::Plain, KeySource::Plain]
}

/// A process of `b` that imports from a process of `a`, both stepped.
fn joined(a: &Embedded, b: &Embedded) -> (Raw, crate::testing::Registered, Raw, u64) {
    joined_by(a, b.attach().unwrap())
}

/// As [`joined`], the importer attached already.
fn joined_by(a: &Embedded, importer: Attachment) -> (Raw, crate::testing::Registered, Raw, u64) {
    let (mut owner, mut importer) = (Raw::stepped(a.attach().unwrap()), Raw::stepped(importer));
    let (_, memory) = owner.export("x");
    // The other node is stepped by its poller, or by the owner's pump.
    let serial = importer.ask(Raw::import_call(Some("a"), "x", Rights::ALL));
    let answer = wait(&|| owner.pump(), || {
        importer.pump();
        importer.channel.try_receive().ok()
    });
    let reply: vmmc_host::control::Reply = vmmc_host::control::decode(&answer.0).unwrap();
    assert_eq!(reply.serial, serial);
    let Ok(vmmc_host::control::Answer::Imported(grant)) = reply.result else { panic!("{reply:?}") };
    (owner, memory, importer, grant.import)
}

#[test]
fn processes_of_one_embedded_node_share_memory() {
    let node = Embedded::start(NodeConfig::new("alone").key(KeySource::Plain)).unwrap();
    let (mut a, mut b) = (Raw::stepped(node.attach().unwrap()), Raw::stepped(node.attach().unwrap()));
    let (_, memory) = a.export("x");
    assert_eq!(b.import(None, "x", Rights::READ | Rights::WRITE).0.mapped, Ok(()));
    let (grant, _) = b.import(None, "x", Rights::WRITE);
    b.send(grant.import, 8, b"by engine", 1);
    assert_eq!(b.completion().status, 0);
    let mut got = [0; 9];
    memory.region.read(8, &mut got).unwrap();
    assert_eq!(&got, b"by engine");
    assert_eq!(node.name(), "alone");
}

#[test]
fn nodes_that_are_stepped_by_their_callers_talk() {
    for keys in [plain(), [KeySource::Given([3; 32]), KeySource::Given([3; 32])]] {
        let (a, b) = pair(keys, false);
        let (owner, memory, mut importer, import) = joined(&a, &b);
        for i in 1..=100u64 {
            importer.send(import, 0, &i.to_le_bytes(), i);
            wait(&|| owner.pump(), || {
                importer.pump();
                memory.region.word(0).unwrap().load(Ordering::SeqCst).eq(&i).then_some(())
            });
        }
    }
}

#[test]
fn the_poller_serves_peers_while_the_owner_computes() {
    let (a, b) = pair(plain(), true);
    let (_owner, memory, mut importer, import) = joined(&a, &b);
    memory.region.write(0, b"kept").unwrap();
    let into = importer.register(4096);
    for cookie in 1..=5 {
        let mut fetch = RawCommand::new(Op::Fetch, import);
        (fetch.region, fetch.len, fetch.cookie) = (into.id.into(), 4, cookie);
        importer.post(&fetch, &[]);
        importer.ring();
        // Nobody steps `a` but its poller.
        assert_eq!(importer.completion().cookie, cookie);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut got = [0; 4];
    into.region.read(0, &mut got).unwrap();
    assert_eq!(&got, b"kept");
}

#[test]
fn a_parked_thread_is_woken_by_what_another_thread_steps() {
    for poller in [false, true] {
        let (a, b) = pair(plain(), poller);
        let (_owner, memory, mut importer, import) = joined(&a, &b);
        let waiter = a.attach().unwrap().waiter();
        let region = memory.region.clone();
        let rounds = 30u64;
        let thread = std::thread::spawn(move || {
            for i in 1..=rounds {
                let there = || (region.word(0).unwrap().load(Ordering::SeqCst) >= i).then_some(());
                waiter.wait(Deadline::after(LONG), there, |_| unreachable!("stepped")).expect("the data comes");
            }
        });
        // Another thread that steps the same node all the while, and takes the datagrams away from
        // under the sleeper.
        let other = a.attach().unwrap().waiter();
        for i in 1..=rounds {
            std::thread::sleep(Duration::from_millis(3));
            importer.send(import, 0, &i.to_le_bytes(), i);
            wait(&|| _ = other.step(), || {
                importer.pump();
                (memory.region.word(0).unwrap().load(Ordering::SeqCst) >= i).then_some(())
            });
        }
        thread.join().unwrap();
    }
}

#[test]
fn a_parked_thread_is_woken_by_a_notifier_of_the_same_node() {
    let node = Embedded::start(NodeConfig { poller: false, ..NodeConfig::new("n").key(KeySource::Plain) }).unwrap();
    let attachment = node.attach().unwrap();
    let waiter = attachment.waiter();
    let (mut a, mut b) = (Raw::stepped(attachment), Raw::stepped(node.attach().unwrap()));
    let (_, memory) = a.export("x");
    let (_, fds) = b.import(None, "x", Rights::READ | Rights::WRITE);
    let bell = vmmc_host::NotifyBell::open_read_only(fds[2].try_clone().unwrap()).unwrap();
    let wake = vmmc_host::wait::WakeSender::from_fd(fds[3].try_clone().unwrap());
    let region = memory.region.clone();
    let start = std::time::Instant::now();
    let thread = std::thread::spawn(move || {
        for i in 1..=20u64 {
            std::thread::sleep(Duration::from_millis(2));
            region.word(0).unwrap().store(i, Ordering::SeqCst);
            wake.wake_if(bell.word());
        }
    });
    for i in 1..=20u64 {
        let there = || (memory.region.word(0).unwrap().load(Ordering::SeqCst) >= i).then_some(());
        waiter.wait(Deadline::after(LONG), there, |_| unreachable!("stepped")).expect("the notifier rings");
    }
    thread.join().unwrap();
    assert!(start.elapsed() < LONG, "it slept until its deadline");
}

#[test]
fn a_parked_thread_is_woken_when_another_thread_serves_a_ring() {
    let node = Embedded::start(NodeConfig { poller: false, ..NodeConfig::new("n").key(KeySource::Plain) }).unwrap();
    let attachment = node.attach().unwrap();
    let waiter = attachment.waiter();
    let (mut a, mut b) = (Raw::stepped(attachment), Raw::stepped(node.attach().unwrap()));
    let (_, memory) = a.export("x");
    let (grant, _) = b.import(None, "x", Rights::WRITE);
    let region = memory.region.clone();
    let start = std::time::Instant::now();
    let thread = std::thread::spawn(move || {
        let there = || (region.word(0).unwrap().load(Ordering::SeqCst) == 1).then_some(());
        waiter.wait(Deadline::after(LONG), there, |_| unreachable!("stepped")).expect("the data comes");
    });
    while node.0.shared.parked.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(5));
    // Nothing but this thread's step notifies the sleeper: no doorbell, no datagram, no timer.
    let mut command = RawCommand::new(Op::Send, grant.import);
    command.flags = flags::INLINE;
    b.post(&command, &1u64.to_le_bytes());
    b.pump();
    thread.join().unwrap();
    assert!(start.elapsed() < LONG, "it slept until its deadline");
}

#[test]
fn a_wait_on_an_embedded_node_ends_at_its_deadline() {
    let node = Embedded::start(NodeConfig::new("n").key(KeySource::Plain)).unwrap();
    let waiter: Waiter = node.attach().unwrap().waiter();
    assert!(waiter.wait(Deadline::after(Duration::from_millis(30)), || None::<()>, |_| {}).is_err());
}

#[test]
fn plain_and_sealed_nodes_refuse_each_other_and_say_so() {
    let (a, b) = pair([KeySource::Given([1; 32]), KeySource::Plain], true);
    let _owner = Raw::stepped(a.attach().unwrap());
    let mut importer = Raw::stepped(b.attach().unwrap());
    let call = Call::Import {
        node: Some(a.addresses()[0].to_string()),
        what: vmmc_host::control::What::Name("x".into()),
        owner: Default::default(),
        rights: 1,
        wait: false,
        timeout_ms: 3_000,
        own_order: false,
    };
    let refusal = importer.call(call).unwrap_err();
    assert!(refusal.message.contains("plain") || refusal.message.contains("encrypt"), "{}", refusal.message);
    assert_eq!(refusal.code, RefusalCode::Unreachable);
}

#[test]
fn a_plain_node_believes_nobodys_user_unless_it_is_told_to() {
    let start = |name: &str| NodeConfig::new(name).listen(loopback()).key(KeySource::Plain);
    let a = Embedded::start(start("a")).unwrap();
    let b = Embedded::start(start("b").peer(&a.addresses())).unwrap();
    let mut owner = Raw::stepped(a.attach().unwrap());
    owner.export("x");
    let mut importer = Raw::stepped(b.attach().unwrap());
    let serial = importer.ask(Raw::import_call(Some("a"), "x", Rights::READ));
    let (answer, _) = wait(&|| owner.pump(), || {
        importer.pump();
        importer.channel.try_receive().ok()
    });
    let reply: vmmc_host::control::Reply = vmmc_host::control::decode(&answer).unwrap();
    assert_eq!(reply.serial, serial);
    let refusal = reply.result.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::NotPermitted);
    assert!(refusal.message.contains("--plain-trust-users"), "{}", refusal.message);
}

#[test]
fn nodes_with_different_keys_do_not_talk() {
    let (a, b) = pair([KeySource::Given([1; 32]), KeySource::Given([2; 32])], true);
    let mut owner = Raw::stepped(a.attach().unwrap());
    owner.export("x");
    let mut importer = Raw::stepped(b.attach().unwrap());
    let refusal = importer.call(Call::Import {
        node: Some(a.addresses()[0].to_string()),
        what: vmmc_host::control::What::Name("x".into()),
        owner: Default::default(),
        rights: 1,
        wait: false,
        timeout_ms: 500,
        own_order: false,
    });
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Unreachable);
    let says = |text: &str| refusal.message.contains(text);
    assert!(says("do not open with this node's cluster key") && says(&a.addresses()[0].to_string()), "{refusal:?}");
    // And so does the node, of each peer.
    let Ok(Answer::Info(info)) = importer.call(Call::Info { details: false }) else { panic!("no description") };
    assert!(info.peers.iter().any(|peer| peer.hint.contains("cluster key")), "{:?}", info.peers);
}

#[test]
fn a_posted_send_leaves_although_its_sender_goes_on() {
    let (a, b) = pair(plain(), true);
    let (_owner, memory, mut importer, import) = joined(&a, &b);
    let mut command = RawCommand::new(Op::Send, import);
    command.flags = flags::INLINE;
    importer.post(&command, &77u64.to_le_bytes());
    importer.ring();
    // Nobody steps either node but their pollers.
    wait(&|| std::thread::sleep(Duration::from_millis(1)), || {
        (memory.region.word(0).unwrap().load(Ordering::SeqCst) == 77).then_some(())
    });
}

#[test]
fn a_short_send_goes_past_the_ring_only_if_nothing_stands_before_it() {
    let (a, b) = pair(plain(), false);
    let attachment = b.attach().unwrap();
    let (waiter, shared) = (attachment.waiter(), &b.0.shared);
    let (owner, memory, mut importer, import) = joined_by(&a, attachment);
    let try_send_inline =
        |value: u64| waiter.try_send_inline(&Direct::Send { import, offset: 0, data: &value.to_le_bytes() });
    // Both nodes are stepped until this one has acknowledged what the import took.
    let sends = |value: u64| wait(&|| (owner.pump(), _ = waiter.step()).0, || try_send_inline(value).then_some(()));
    let arrives = |value: u64| {
        wait(&|| (owner.pump(), _ = waiter.step()).0, || {
            (memory.region.word(0).unwrap().load(Ordering::SeqCst) == value).then_some(())
        });
    };
    sends(1);
    assert!(!try_send_inline(2), "not twice without a step, which serves the node");
    arrives(1);
    sends(2);
    arrives(2);
    let mut command = RawCommand::new(Op::Send, import);
    command.flags = flags::INLINE;
    importer.post(&command, &3u64.to_le_bytes());
    assert!(!try_send_inline(4), "the ring holds what was sent before");
    arrives(3);
    waiter.step();
    let other = b.attach().unwrap();
    assert!(
        !other.waiter().try_send_inline(&Direct::Send { import, offset: 0, data: &[4; 8] }),
        "no process is attached there"
    );
    for asleep in [true, false] {
        waiter.step();
        shared.parked.store(usize::from(asleep), Ordering::SeqCst);
        assert_eq!(try_send_inline(5), !asleep, "whoever sleeps is woken by a step");
    }
    arrives(5);
    for asleep in [true, false] {
        waiter.step();
        shared.poller_asleep.store(asleep, Ordering::SeqCst);
        assert_eq!(try_send_inline(6), !asleep, "the poller sleeps without this send's timer");
    }
    arrives(6);
    // So does a request, with the checks of the ring.
    let mut command = RawCommand::new(Op::FetchAdd, import);
    (command.counter, command.cookie, command.flags) = (4, 9, flags::COMPLETE);
    waiter.step();
    assert!(waiter.try_send_inline(&Direct::Request(&command)));
    arrives(10);
    let completes = |importer: &mut Raw, cookie: u64, value: u64| {
        let completion = wait(&|| (owner.pump(), _ = waiter.step()).0, || importer.try_completion());
        assert_eq!((completion.cookie, completion.status, completion.value), (cookie, 0, value));
    };
    completes(&mut importer, 9, 6);
    waiter.step();
    let mut nowhere = RawCommand::new(Op::Fetch, import);
    (nowhere.len, nowhere.region, nowhere.flags) = (8, 77, flags::COMPLETE);
    assert!(!waiter.try_send_inline(&Direct::Request(&nowhere)), "there is no such region");
    command.op = Op::Send;
    assert!(!waiter.try_send_inline(&Direct::Request(&command)), "its data is not here");
    // Pinned pages that it fetches into stay until it is answered.
    let own = importer.register(4096);
    let pages = PageRun { page: 0x7_f000, count: 1 };
    let serial = importer.ask(Call::Pin { unpin: Vec::new(), pin: vec![PinRun { pages, region: own.id, at: 0 }] });
    assert_eq!(importer.answer(serial), Ok(Answer::Done));
    let mut fetch = RawCommand::new(Op::Fetch, import);
    (fetch.region, fetch.region_offset, fetch.len) = (ADDRESSES, 0x7_f000 << 12, 8);
    (fetch.cookie, fetch.flags) = (10, flags::COMPLETE);
    waiter.step();
    assert!(waiter.try_send_inline(&Direct::Request(&fetch)));
    assert_eq!(shared.lock().station.ranges_in_use(), 1);
    completes(&mut importer, 10, 8);
    assert_eq!(own.region.word(0).unwrap().load(Ordering::SeqCst), 10);
    assert_eq!(shared.lock().station.ranges_in_use(), 0);
}

#[test]
fn the_poller_sleeps_while_somebody_else_holds_the_node() {
    let (a, _b) = pair(plain(), false);
    let shared = &a.0.shared;
    let busy = shared.lock();
    let start = Nanos::monotonic();
    let kept = std::thread::scope(|scope| scope.spawn(|| shared.poll_until_idle()).join().unwrap());
    drop(busy);
    assert_eq!(kept, None, "who holds it may step");
    assert!(Nanos::monotonic().since(start) >= POLLER_SLEEP, "it would ask again and again");
}
