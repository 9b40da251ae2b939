//! Continuations: functions for the ends of transfers, run by the thread that polls.

use crate::nodes::{LONG, Nodes, Place, join, pattern};
use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vmmc::{Continuations, SendOptions, TransferError, WaitError, WaitFor};

const SLOT: usize = 5000;
const SLOTS: usize = 24;

pub(crate) fn each_runs_once_when_its_transfer_is_over_and_may_add_others(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, (SLOT * SLOTS) as u64);
        let (import, ran) = (&j.import, &RefCell::new(vec![0; SLOTS]));
        let data: Vec<_> = (0..SLOTS).map(|slot| pattern(SLOT, slot as u8)).collect();
        let mut all = Continuations::new(&j.user);
        assert_eq!((all.run(), all.wait().unwrap(), all.len()), (0, 0, 0));
        for (slot, data) in data.iter().enumerate() {
            let at = (slot * SLOT) as u64;
            let sent = import.post_send(at, data.as_slice(), SendOptions::default()).unwrap();
            let fetched = move |all: &mut Continuations<'_>, result: Result<u64, TransferError>, got: Vec<u8>| {
                assert_eq!(result.unwrap(), SLOT as u64);
                assert!(got == *data, "{slot}");
                ran.borrow_mut()[slot] += 1;
                assert!(all.len() < SLOTS, "it is out of the list");
            };
            all.add(sent, move |all, result, ()| {
                assert_eq!(result.unwrap(), SLOT as u64);
                ran.borrow_mut()[slot] += 1;
                all.add(import.post_fetch(at, vec![0; SLOT]).unwrap(), fetched).unwrap();
            })
            .unwrap();
        }
        assert_eq!(all.len(), SLOTS);
        let mut count = 0;
        while !all.is_empty() {
            count += all.wait().unwrap();
        }
        assert_eq!(count, 2 * SLOTS, "{place:?}");
        assert_eq!(*ran.borrow(), [2; SLOTS], "{place:?}");
    }
}

pub(crate) fn a_chain_of_them_holds_no_poller_up(nodes: &dyn Nodes) {
    // Transfers of mapped memory are over when they are posted.
    let j = join(nodes, Place::Mapped, 64);
    let (import, count) = (&j.import, &Cell::new(0u64));
    fn next<'a>(import: &'a vmmc::Import, count: &'a Cell<u64>, all: &mut Continuations<'a>) {
        count.set(count.get() + 1);
        let send = import.post_send(0, &[1; 8], SendOptions::default()).unwrap();
        all.add(send, move |all, result, ()| {
            result.unwrap();
            next(import, count, all);
        })
        .unwrap();
    }
    let mut all = Continuations::new(&j.user);
    next(import, count, &mut all);
    next(import, count, &mut all);
    for turn in 1..=10 {
        assert_eq!(all.run(), 2);
        assert_eq!(count.get(), 2 * (turn + 1));
    }
    // What does not run is dropped.
    drop(all);
    assert_eq!(count.get(), 22);
}

pub(crate) fn one_that_runs_the_others_itself_leaves_none_of_them_out(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 64);
    let ran = &Cell::new(0);
    let mut all = Continuations::new(&j.user);
    let import = &j.import;
    let post = move || import.post_send(0, &[1; 8], SendOptions::default()).unwrap();
    let runs = move |all: &mut Continuations<'_>, _: Result<u64, TransferError>, ()| {
        all.add(post(), |_, _, ()| ()).unwrap();
        ran.set(all.run());
    };
    all.add(post(), runs).unwrap();
    for _ in 0..3 {
        all.add(post(), |_, _, ()| ()).unwrap();
    }
    assert_eq!((all.run(), ran.get(), all.len()), (1, 4, 0));
}

pub(crate) fn they_are_waited_for_beside_other_things(nodes: &dyn Nodes) {
    const LEN: usize = 2 << 20;
    for place in Place::ALL {
        let j = join(nodes, place, LEN as u64);
        let (line, other_end) = UnixStream::pair().unwrap();
        let over = &Cell::new(0);
        let mut all = Continuations::new(&j.user);
        let look = |all: &mut Continuations<'_>, patience: Duration| {
            let what = &mut [WaitFor::Notification, WaitFor::Readable(line.as_fd()), WaitFor::Transfer(all)];
            j.user.wait_any_by(what, j.user.deadline(patience))
        };
        assert!(matches!(look(&mut all, Duration::ZERO), Err(WaitError::TimedOut { .. })), "{place:?}");
        for _ in 0..3 {
            let fetch = j.import.post_fetch(0, vec![0; LEN]).unwrap();
            all.add(fetch, |_, result, _| over.set(over.get() + result.unwrap())).unwrap();
        }
        while !all.is_empty() {
            assert_eq!(look(&mut all, LONG), Ok(2), "{place:?}");
            assert!(all.run() > 0, "{place:?}");
        }
        assert_eq!(over.get(), 3 * LEN as u64, "{place:?}");
        drop(other_end);
        assert_eq!(look(&mut all, LONG), Ok(1), "{place:?}");
        // Of another session.
        let mut foreign = Continuations::new(&j.owner);
        let send = j.import.post_send(0, &[1; 8], SendOptions::default()).unwrap();
        let refused = foreign.add(send, |_, _, ()| unreachable!("it was refused"));
        assert_eq!(refused, Err(WaitError::OtherSession { place: 0 }));
    }
}

pub(crate) fn when_the_session_leaves_all_of_them_run(nodes: &dyn Nodes) {
    const COUNT: usize = 40;
    let j = join(nodes, Place::Network, 1 << 20);
    let (ran, failed) = (&Cell::new(0), &Cell::new(0));
    let mut all = Continuations::new(&j.user);
    for _ in 0..COUNT {
        let fetch = j.import.post_fetch(0, vec![0; 1 << 20]).unwrap();
        all.add(fetch, |_, result, memory| {
            assert_eq!(memory.len(), 1 << 20);
            ran.set(ran.get() + 1);
            failed.set(failed.get() + usize::from(matches!(result, Err(TransferError::NodeGone { .. }))));
        })
        .unwrap();
    }
    j.user.leave();
    while !all.is_empty() {
        all.wait().unwrap();
    }
    assert_eq!(ran.get(), COUNT);
    assert!(failed.get() > 0);
}
