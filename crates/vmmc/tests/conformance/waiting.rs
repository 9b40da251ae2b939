//! Waits for the first of several things.

use crate::nodes::{LONG, Nodes, Place, SHORT, join, join_with, pattern};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vmmc::{AppendOptions, Rights, Ring, SendOptions, Session, WaitError, WaitFor};

/// Waits while another thread has `event` happen, after a while.
fn comes(session: &Session, what: &mut [WaitFor<'_>], after: Duration, event: impl FnOnce() + Send) -> usize {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(after);
            event();
        });
        session.wait_any(what).unwrap()
    })
}

pub(crate) fn whatever_comes_first_ends_the_wait_and_is_still_there(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 8192, |e| e.notify(true).redirectable(place != Place::Mapped));
        let mut ring = j.owner.ring(16 << 10).name("any").create().unwrap();
        let records = j.user.import("any").node(&nodes.name(0)).rights(Rights::WRITE).wait(LONG).open().unwrap();
        let (mut line, other_end) = UnixStream::pair().unwrap();
        let buffer = j.owner.buffer(4096).unwrap();
        // At once, and when the thread sleeps.
        for (round, after) in [(1u64, Duration::ZERO), (2, SHORT)] {
            // Mapped memory is not redirected.
            let redirection = (place != Place::Mapped).then(|| j.export.redirect(4096..4104, &buffer, 0).unwrap());
            let found = |ring: &Ring, line: &UnixStream, event: &(dyn Fn() + Sync)| {
                let ready = |word| word == round;
                let mut what = vec![
                    WaitFor::NotificationOf(&j.export),
                    WaitFor::Record(ring),
                    WaitFor::Readable(line.as_fd()),
                    WaitFor::Word { export: &j.export, offset: 8, ready: &ready },
                ];
                what.extend(redirection.as_ref().map(WaitFor::Redirection));
                comes(&j.owner, &mut what, after, event)
            };
            let notify = || j.import.send_with(64, b"note", SendOptions::notify_with(round)).unwrap();
            assert_eq!(found(&ring, &line, &notify), 0, "{place:?}");
            assert_eq!(found(&ring, &line, &|| ()), 0, "{place:?}: nothing was taken");
            assert_eq!(j.export.take_notification().unwrap().word, round, "{place:?}");
            let append = || records.append(b"record", AppendOptions::word(round)).unwrap();
            assert_eq!(found(&ring, &line, &append), 1, "{place:?}");
            assert_eq!(ring.take().unwrap().unwrap().word, round, "{place:?}");
            assert_eq!(found(&ring, &line, &|| (&other_end).write_all(b"!").unwrap()), 2, "{place:?}");
            line.read_exact(&mut [0]).unwrap();
            assert_eq!(found(&ring, &line, &|| j.import.send(8, &round.to_le_bytes()).unwrap()), 3, "{place:?}");
            if let Some(redirection) = &redirection {
                j.import.send(8, &[0; 8]).unwrap();
                j.import.flush().unwrap();
                let send = || j.import.send(4096, b"redirect").unwrap();
                assert_eq!(found(&ring, &line, &send), 4, "{place:?}");
                assert_eq!(redirection.wait().unwrap().redirected, [(4096, 8)], "{place:?}");
            }
        }
    }
}

pub(crate) fn a_transfer_of_any_kind_ends_the_wait_when_it_is_over(nodes: &dyn Nodes) {
    const LEN: usize = 3 << 20;
    for place in Place::ALL {
        let j = join(nodes, place, LEN as u64);
        let data = pattern(LEN, 7);
        j.export.write(0, &data).unwrap();
        let (line, _other_end) = UnixStream::pair().unwrap();
        let mut fetch = j.import.post_fetch(0, vec![0; LEN]).unwrap();
        let what = &mut [WaitFor::Readable(line.as_fd()), WaitFor::Notification, WaitFor::Transfer(&mut fetch)];
        assert_eq!(j.user.wait_any(what).unwrap(), 2, "{place:?}");
        assert_eq!(fetch.poll().unwrap().unwrap(), LEN as u64, "{place:?}");
        assert!(fetch.into_inner() == data, "{place:?}");
        // Several at once: each in turn, and none is waited for twice.
        let buffer = j.user.buffer(4096).unwrap();
        let mut sends: Vec<_> = (0..4)
            .map(|at| j.import.post_send(at * 4096, buffer.range(0..4096), SendOptions::default()).unwrap())
            .collect();
        while !sends.is_empty() {
            let mut what: Vec<_> = sends.iter_mut().map(|send| WaitFor::Transfer(send)).collect();
            let over = j.user.wait_any(&mut what).unwrap();
            drop(what);
            assert_eq!(sends.remove(over).wait().unwrap(), 4096, "{place:?}");
        }
    }
}

pub(crate) fn threads_that_wait_for_descriptors_and_threads_that_do_not_wake_each_other(nodes: &dyn Nodes) {
    const ROUNDS: u64 = 30;
    let (owner, user) = (nodes.attach(0), nodes.attach(1));
    let inboxes: Vec<_> = ["one", "two", "three"]
        .iter()
        .map(|name| {
            let export = owner.export(4096).name(name).notify(true).create().unwrap();
            let import = user.import(name).node(&nodes.name(0)).rights(Rights::WRITE).wait(LONG).open().unwrap();
            (export, import)
        })
        .collect();
    let lines: Vec<_> = inboxes.iter().map(|_| UnixStream::pair().unwrap()).collect();
    let byte = |mut line: &UnixStream| line.read_exact(&mut [0]).unwrap();
    std::thread::scope(|scope| {
        for ((export, _), (line, _)) in inboxes.iter().zip(&lines) {
            let owner = &owner;
            // Each waits for notifications of its own and for its line, which come in turns.
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let what = &mut [WaitFor::NotificationOf(export), WaitFor::Readable(line.as_fd())];
                    assert_eq!(owner.wait_any(what).unwrap(), (round % 2) as usize);
                    match round % 2 {
                        1 => byte(line),
                        _ => assert_eq!(export.take_notification().unwrap().word, round),
                    }
                    { line }.write_all(b"a").unwrap();
                }
            });
        }
        for round in 1..=ROUNDS {
            // All of them sleep, one for the others.
            std::thread::sleep(Duration::from_millis(round % 3));
            for ((_, import), (_, other_end)) in inboxes.iter().zip(&lines) {
                match round % 2 {
                    1 => { other_end }.write_all(b"!").unwrap(),
                    _ => import.send_with(0, b"n", SendOptions::notify_with(round)).unwrap(),
                }
            }
            lines.iter().for_each(|(_, other_end)| byte(other_end));
        }
    });
}

pub(crate) fn a_wait_for_several_things_refuses_what_can_never_come_and_ends_at_its_deadline(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 64);
    let (line, other_end) = UnixStream::pair().unwrap();
    let never = |_| false;
    let word = |offset| WaitFor::Word { export: &j.export, offset, ready: &never };
    let quiet = || [WaitFor::Notification, word(8), WaitFor::Readable(line.as_fd())];
    for patience in [Duration::ZERO, SHORT] {
        let begin = Instant::now();
        let error = j.owner.wait_any_by(&mut quiet(), j.owner.deadline(patience)).unwrap_err();
        assert!(matches!(error, WaitError::TimedOut { .. }), "{error}");
        assert!(error.to_string().contains("any of 3 things"), "{error}");
        assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
    }
    // A poll finds what is there.
    let look = |what: &mut [WaitFor<'_>]| j.owner.wait_any_by(what, j.owner.deadline(Duration::ZERO));
    assert_eq!(look(&mut [word(8), WaitFor::Writable(line.as_fd())]), Ok(1));
    drop(other_end);
    assert_eq!(look(&mut quiet()), Ok(2), "a line that hung up");
    let error = look(&mut [WaitFor::NotificationOf(&j.export)]).unwrap_err();
    assert!(matches!(error, WaitError::NotAllowed { .. }), "{error}");
    let error = look(&mut [word(64)]).unwrap_err();
    assert!(matches!(error, WaitError::Access(_)), "{error}");
    let error = j.user.wait_any(&mut [WaitFor::Notification, word(8)]).unwrap_err();
    assert_eq!(error, WaitError::OtherSession { place: 1 });
    let mut send = j.import.post_send(0, &[1; 8], SendOptions::default()).unwrap();
    assert_eq!(look(&mut [WaitFor::Transfer(&mut send)]), Err(WaitError::OtherSession { place: 0 }));
    assert!(look(&mut []).is_err());
    send.wait().unwrap();
}

pub(crate) fn when_the_node_ends_a_wait_for_several_things_ends(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 64);
    let (line, _other_end) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let what = &mut [WaitFor::Notification, WaitFor::Readable(line.as_fd())];
            j.owner.wait_any_by(what, j.owner.deadline(2 * LONG))
        });
        std::thread::sleep(SHORT);
        if !nodes.stop(0) {
            j.owner.leave();
        }
        let ended = waiting.join().unwrap();
        assert!(matches!(ended, Err(WaitError::NodeGone { .. })), "{ended:?}");
    });
}
