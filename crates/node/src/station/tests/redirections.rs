//! Redirections that are posted through the command ring.

use crate::limits::REDIRECTING_PER_PROCESS_MAX;
use crate::testing::{Raw, Registered, World};
use std::sync::atomic::Ordering;
use vmmc_host::abi::{COOKIE_REDIRECT, Completion, Op, RawCommand, RedirectDone, flags};
use vmmc_host::control::{Answer, Call, RefusalCode};
use vmmc_nic::RedirectError;
use vmmc_nic::Rights;

/// A redirectable export of all of a region.
fn export(a: &mut Raw, memory: &Registered, name: &str) -> u64 {
    let mut call = Raw::export_call(memory, name);
    let Call::Export { redirectable, .. } = &mut call else { unreachable!() };
    *redirectable = true;
    let Ok(Answer::Exported { export }) = a.call(call) else { panic!("no export") };
    export
}

/// Why the command before was not taken.
fn refused(a: &mut Raw) -> RedirectError {
    let told = a.completion();
    RedirectError::from_code(told.status, told.args).expect("refused")
}

#[test]
fn redirection_reports_what_went_where() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (memory, other) = (a.register(4096), a.register(4096));
    let export = export(&mut a, &memory, "r");
    let (grant, _) = b.import(None, "r", Rights::ALL);
    b.send(grant.import, 0, b"early", 1);
    b.completion();
    a.redirect(export, (0, 10), (other.id, 64), 33);
    assert_eq!(a.completion(), Completion { cookie: 33, value: 5, ..Completion::default() });
    let call = Call::RedirectReport { export, offset: 0, cookie: 33 };
    let Ok(Answer::Redirection(report)) = a.call(call.clone()) else { panic!("no report") };
    assert_eq!((report.copied, report.pending), (vec![(0, 5)], vec![(5, 5)]));
    b.send(grant.import, 5, b"later", 2);
    b.completion();
    let told = [a.completion(), a.completion()];
    assert!(told.iter().all(|done| done.cookie == 33 | COOKIE_REDIRECT));
    let told = told.map(|done| RedirectDone::of(&done));
    assert_eq!(told, [RedirectDone::Copied { offset: 0, len: 5 }, RedirectDone::Whole { len: 10 }]);
    let mut got = [0; 10];
    other.region.read(64, &mut got).unwrap();
    assert_eq!(&got, b"earlylater");
    assert_eq!(a.call(call).unwrap_err().code, RefusalCode::Stale);
    a.redirect(export, (0, 10), (other.id, 4090), 1);
    assert_eq!(refused(&mut a), RedirectError::NoSuchPlace { offset: 4090, len: 10, size: 4096 });
    a.redirect(export, (0, 10), (77, 0), 1);
    assert_eq!(refused(&mut a), RedirectError::NoSuchPlace { offset: 0, len: 10, size: 0 });
    a.redirect(export + 1, (0, 10), (other.id, 0), 1);
    assert!(matches!(refused(&mut a), RedirectError::NoSuchExport { .. }));
    // Withdrawn through the ring: by its place, and the cookie that it was posted with.
    a.redirect(export, (20, 10), (other.id, 0), 5);
    assert_eq!(a.completion().status, 0);
    a.redirect(export, (29, 1), (other.id, 0), 6);
    assert_eq!(refused(&mut a), RedirectError::Overlap { start: 20, end: 30 });
    b.send(grant.import, 20, b"four", 2);
    b.completion();
    a.cancel_redirect(export, 20, 4, 7);
    assert_eq!(refused(&mut a), RedirectError::NoSuchRedirect { offset: 20 });
    a.cancel_redirect(export, 20, 5, 8);
    assert_eq!(a.completion(), Completion { cookie: 8, value: 4, ..Completion::default() });
    a.cancel_redirect(export, 20, 5, 9);
    assert_eq!(refused(&mut a), RedirectError::NoSuchRedirect { offset: 20 });
}

#[test]
fn more_redirections_end_than_there_is_room_for_and_each_is_told() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let count = vmmc_nic::limits::REDIRECTS_PER_EXPORT_MAX as u64;
    let (memory, other) = (a.register(16 * count), a.register(16 * count));
    let export = export(&mut a, &memory, "r");
    let (grant, _) = b.import(None, "r", Rights::ALL);
    for at in 0..count {
        a.redirect(export, (16 * at, 16), (other.id, 16 * at), at);
        assert_eq!(a.completion(), Completion { cookie: at, ..Completion::default() });
    }
    a.redirect(export, (0, 16), (other.id, 0), count);
    assert!(matches!(refused(&mut a), RedirectError::TableFull { .. }));
    let source = b.register(16 * count);
    source.region.write(0, &vec![7; 16 * count as usize]).unwrap();
    let mut send = RawCommand::new(Op::Send, grant.import);
    (send.flags, send.cookie, send.region, send.len) = (flags::COMPLETE, 1, u64::from(source.id), 16 * count);
    b.post(&send, &[]);
    assert_eq!(b.completion().status, 0);
    (0..50).for_each(|_| a.pump());
    let asleep = || world.borrow_mut().stations[0].prepare_sleep();
    assert!(!asleep(), "nothing can be done for a process that does not look");
    for at in 0..count {
        let told = a.try_completion().unwrap_or_else(|| {
            assert!(asleep(), "there is room again");
            a.area.process_sleeping().store(1, Ordering::SeqCst);
            a.pump();
            assert!(rustix::io::read(&a.wake, &mut [0u8; 64]).is_ok(), "what had no room wakes its process");
            a.area.process_sleeping().store(0, Ordering::SeqCst);
            a.completion()
        });
        assert_eq!(told, RedirectDone::Whole { len: 16 }.completion(at));
    }
    let mut got = vec![0; 16 * count as usize];
    other.region.read(0, &mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 7));
}

#[test]
fn an_export_that_ends_takes_its_redirections_along() {
    let world = World::new(1, None);
    let mut a = Raw::attach(&world, 0);
    let (memory, other) = (a.register(4096), a.register(4096));
    let posted = |world: &std::rc::Rc<std::cell::RefCell<World>>| world.borrow().stations[0].redirections();
    for round in 0..3 {
        let export = export(&mut a, &memory, "r");
        for at in 0..100 {
            a.redirect(export, (at, 1), (other.id, at), at);
            assert_eq!(a.completion().status, 0);
        }
        assert_eq!(posted(&world), 100);
        // One more is on its way when the export ends.
        a.redirect(export, (200, 1), (other.id, 0), 7);
        if round < 2 {
            a.call(Call::Unexport { export, moving: false }).unwrap();
        } else {
            drop(a);
            for _ in 0..50 {
                world.borrow_mut().step();
            }
            assert_eq!(posted(&world), 0);
            return;
        }
        _ = a.completion();
        assert_eq!(posted(&world), 0);
    }
}

#[test]
fn few_that_wait_for_their_copies_keep_further_commands_of_their_process_waiting() {
    const MIB: u64 = 1 << 20;
    let world = World::new(1, None);
    let (mut other, mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0), Raw::attach(&world, 0));
    let source = b.register(64 * MIB);
    let mut arrive = |name: &str, len: u64| {
        let (grant, _) = b.import(None, name, Rights::ALL);
        let mut send = RawCommand::new(Op::Send, grant.import);
        (send.flags, send.cookie, send.region, send.len) = (flags::COMPLETE, 1, u64::from(source.id), len);
        b.post(&send, &[]);
        assert_eq!(b.completion().status, 0);
    };
    // What is copied for another process takes every second turn.
    let (memory_of_other, to_of_other) = (other.register(64 * MIB), other.register(64 * MIB));
    let export_of_other = export(&mut other, &memory_of_other, "other");
    arrive("other", 64 * MIB);
    let (memory, to) = (a.register(2 * MIB), a.register(2 * MIB));
    let count = 3 * REDIRECTING_PER_PROCESS_MAX;
    let mut commands = Vec::new();
    for at in 0..count {
        let name = at.to_string();
        let export = export(&mut a, &memory, &name);
        arrive(&name, 2 * MIB);
        // Withdrawn at once, so that no bound on those that are posted bounds them.
        for op in [Op::Redirect, Op::CancelRedirect] {
            let mut command = RawCommand::new(op, export);
            (command.cookie, command.counter, command.len, command.region) = (1, 1, 2 * MIB, u64::from(to.id));
            commands.push(command);
        }
    }
    other.redirect(export_of_other, (0, 64 * MIB), (to_of_other.id, 0), 1);
    other.pump();
    for command in &commands {
        command.publish(a.commands.claim().expect("the ring has room"), &[]);
    }
    let (mut most, mut told) = (0, Vec::new());
    while told.len() < commands.len() {
        a.pump();
        most = most.max(world.borrow().stations[0].redirecting_most());
        told.extend(a.try_completion());
        assert!(world.borrow_mut().stations[0].prepare_sleep() || told.len() == commands.len(), "it sleeps over work");
        world.borrow_mut().stations[0].wake_up();
    }
    assert_eq!(most, REDIRECTING_PER_PROCESS_MAX);
    let withdrawn = told.iter().filter(|told| told.status == 0).count();
    assert!(withdrawn >= count, "{withdrawn} were withdrawn");
}
