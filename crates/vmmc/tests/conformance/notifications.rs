//! Notifications, taken in all ways.

use crate::nodes::{LONG, Nodes, Place, SHORT, eventually, join_with, pattern, readable};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vmmc::{Pinned, Rights, SendOptions, WaitError};

/// More than goes through staging memory in one piece.
const LONG_BYTES: usize = 500_000;

pub(crate) fn one_comes_for_each_that_was_asked_for(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e.notify(true));
        for i in 0..50u64 {
            let options = if i % 2 == 0 { SendOptions::notify_with(!i) } else { SendOptions::default() };
            j.import.send_with(8 * i, &i.to_le_bytes(), options).unwrap();
        }
        for i in (0..50u64).filter(|i| i % 2 == 0) {
            let n = j.owner.wait_notification().unwrap();
            assert_eq!((n.export, n.offset, n.len, n.last_word), (j.export.id(), 8 * i, 8, i), "{place:?}");
            assert_eq!(n.word, !i, "{place:?}");
        }
        j.import.flush().unwrap();
        assert_eq!(j.owner.take_notification(), None, "{place:?}");
        assert_eq!(j.owner.stats().notifications_taken, 25);
    }
}

pub(crate) fn they_say_who_sent_and_carry_a_word_by_every_way(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 1 << 20, |e| e.notify(true));
        let other = j.user.import_id(j.export.id()).rights(Rights::ALL);
        let other = if place == Place::Network { other.node(&nodes.name(0)) } else { other };
        let other = other.open().unwrap();
        let bytes = pattern(LONG_BYTES, 4);
        let mut word = 1 << 63;
        let mut senders = Vec::new();
        for import in [&j.import, &other] {
            let mut expect = |what: &str, send: &dyn Fn(SendOptions)| {
                word += 1;
                send(SendOptions { counter: (word % 2 == 0).then_some(0), ..SendOptions::notify_with(word) });
                let n = j.export.wait_notification().unwrap();
                let from = (n.from.process.0, n.from.import);
                assert_eq!((n.word, from), (word, (j.user.process_id(), import.id())), "{place:?} {what}");
                assert_eq!(n.from.is_local(), j.owner.node().name == j.user.node().name, "{place:?}");
                assert_eq!(j.owner.node_of(n.from).unwrap().as_ref(), Some(&j.user.node().name), "{place:?}");
                n.from
            };
            for len in [0, 1, 8, 200, 201, 208, 216, 217, 5000, LONG_BYTES] {
                let from = expect(&format!("{len} bytes"), &|o| import.send_with(8, &bytes[..len], o).unwrap());
                senders.push(from);
                expect("of a handle", &|o| _ = import.post_send(8, &bytes[..len], o).unwrap().wait().unwrap());
                expect("pinned", &|o| import.send_with(8, Pinned(&bytes[..len]), o).unwrap());
            }
        }
        senders.sort();
        senders.dedup();
        assert_eq!(senders.len(), 2, "{place:?}: one for each import");
    }
}

pub(crate) fn they_come_only_if_the_export_allows_them(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e);
        j.import.send_with(0, b"psst", SendOptions::notify()).unwrap();
        j.import.flush().unwrap();
        assert_eq!(j.owner.take_notification(), None, "{place:?}");
        let error = j.export.wait_notification().unwrap_err();
        assert!(matches!(error, WaitError::NotAllowed { .. }), "{error}");
        let mut got = [0; 4];
        j.export.read(0, &mut got).unwrap();
        assert_eq!(&got, b"psst", "the data comes all the same");
    }
}

pub(crate) fn they_can_be_blocked_and_unblocked(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e.notify(true));
        let notify = |offset| j.import.send_with(offset, b"x", SendOptions::notify()).unwrap();
        let soon = || j.owner.deadline(SHORT);
        j.owner.block_notifications();
        notify(1);
        assert!(j.owner.wait_notification_by(soon()).is_err() && j.export.wait_notification_by(soon()).is_err());
        j.owner.unblock_notifications();
        assert_eq!(j.owner.wait_notification().unwrap().offset, 1);
        j.export.block_notifications();
        notify(2);
        assert!(j.owner.wait_notification_by(soon()).is_err());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| j.export.wait_notification());
            std::thread::sleep(SHORT);
            j.export.unblock_notifications();
            assert_eq!(waiting.join().unwrap().unwrap().offset, 2);
        });
    }
}

pub(crate) fn a_handler_gets_them_on_its_own_thread(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e.notify(true));
        let (tell, told) = mpsc::channel();
        let guard =
            j.owner.on_notification(move |n| tell.send((n.offset, std::thread::current().id())).unwrap()).unwrap();
        for i in 0..100 {
            j.import.send_with(i, b"!", SendOptions::notify()).unwrap();
            let (offset, thread) = told.recv_timeout(LONG).unwrap_or_else(|e| panic!("{place:?} {i}: {e}"));
            assert_eq!(offset, i);
            assert_ne!(thread, std::thread::current().id());
        }
        drop(guard);
        j.import.send_with(7, b"!", SendOptions::notify()).unwrap();
        assert!(told.recv_timeout(SHORT).is_err(), "a dropped guard ends the handler");
        assert_eq!(j.owner.wait_notification().unwrap().offset, 7);
    }
}

pub(crate) fn a_handler_of_one_export_gets_only_its_own(nodes: &dyn Nodes) {
    let j = join_with(nodes, Place::Mapped, 4096, |e| e.notify(true));
    let other = j.owner.export(4096).notify(true).create().unwrap();
    let to_other = j.user.import_id(other.id()).open().unwrap();
    let (tell, told) = mpsc::channel();
    let _guard = j.export.on_notification(move |n| tell.send(n.export).unwrap()).unwrap();
    to_other.send_with(0, b"!", SendOptions::notify()).unwrap();
    j.import.send_with(0, b"!", SendOptions::notify()).unwrap();
    assert_eq!(told.recv_timeout(LONG).unwrap(), j.export.id());
    assert_eq!(j.owner.wait_notification().unwrap().export, other.id());
    assert!(told.try_recv().is_err());
}

pub(crate) fn a_sleeping_waiter_is_woken(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e.notify(true));
        for i in 0..5 {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| j.export.wait_notification());
                std::thread::sleep(Duration::from_millis(20));
                j.import.send_with(i, b"wake", SendOptions::notify()).unwrap();
                assert_eq!(waiting.join().unwrap().unwrap().offset, i, "{place:?}");
            });
        }
    }
}

pub(crate) fn an_event_loop_sees_them(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e.notify(true));
        let fd = j.owner.event_fd().unwrap();
        while j.owner.take_notification().is_some() {}
        for i in 0..20 {
            j.import.send_with(i, b"!", SendOptions::notify()).unwrap();
            // Another wait of the session may collect it first; the descriptor must report it all
            // the same.
            if i % 3 == 0 {
                let _ = j.owner.node_info(false).unwrap();
            }
            let mut taken = None;
            let end = Instant::now() + LONG;
            while taken.is_none() && Instant::now() < end {
                assert!(readable(fd, LONG), "{place:?}: the descriptor never became readable");
                taken = j.owner.take_notification();
            }
            assert_eq!(taken.map(|n| n.offset), Some(i), "{place:?}");
            assert_eq!(j.owner.take_notification(), None);
        }
        assert!(!readable(fd, SHORT), "{place:?}: readable with nothing to take");
    }
}

pub(crate) fn overflow_is_counted(nodes: &dyn Nodes) {
    const SENT: u64 = 8000;
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e.notify(true));
        for _ in 0..SENT {
            j.import.send_with(0, b"!", SendOptions::notify()).unwrap();
        }
        j.import.flush().unwrap();
        let mut taken = 0;
        while j.owner.take_notification().is_some() {
            taken += 1;
        }
        let lost = || {
            let stats = j.owner.stats();
            stats.notifications_lost_in_rings + stats.notifications_lost_in_queue
        };
        eventually("every notification being accounted for", || {
            while j.owner.take_notification().is_some() {
                taken += 1;
            }
            taken + lost() == SENT
        });
        assert!(taken > 0 && lost() > 0, "{place:?}: {taken} taken, {} lost", lost());
    }
}

pub(crate) fn a_long_send_notifies_once_for_all(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 2 << 20, |e| e.notify(true));
        for _ in 0..3 {
            let data = pattern(1_500_000, 8);
            j.import.send_with(100, &data, SendOptions::notify()).unwrap();
            let n = j.export.wait_notification().unwrap();
            assert_eq!((n.offset, n.len), (100, 1_500_000), "{place:?}");
            assert_eq!(n.last_word.to_le_bytes(), data[1_499_992..]);
            let mut got = vec![0; 1_500_000];
            j.export.read(100, &mut got).unwrap();
            assert!(got == data);
            assert_eq!(j.export.take_notification(), None);
        }
        let buffer = j.user.buffer(12).unwrap();
        buffer.write(0, b"registered!!").unwrap();
        j.import.send_with(0, buffer.range(0..12), SendOptions::notify()).unwrap();
        assert_eq!(j.export.wait_notification().unwrap().last_word.to_le_bytes(), *b"stered!!");
    }
}

pub(crate) fn a_wait_ends_at_its_deadline(nodes: &dyn Nodes) {
    let j = join_with(nodes, Place::Mapped, 4096, |e| e.notify(true));
    let start = j.owner.deadline(Duration::ZERO);
    let error = j.export.wait_notification_by(j.owner.deadline(SHORT)).unwrap_err();
    assert!(matches!(error, WaitError::TimedOut { .. }), "{error}");
    let error = j.export.wait_word_by(0, |w| w == 1, j.owner.deadline(SHORT)).unwrap_err();
    assert!(matches!(error, WaitError::TimedOut { .. }), "{error}");
    let waited = j.owner.deadline(Duration::ZERO).0 - start.0;
    assert!(waited >= 2 * SHORT && waited < LONG, "{waited:?}");
}
