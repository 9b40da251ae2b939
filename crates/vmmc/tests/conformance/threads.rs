//! Many threads on one session.

use crate::nodes::{Nodes, Place, SHORT, join, join_with};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use vmmc::SendOptions;

pub(crate) fn threads_share_a_session(nodes: &dyn Nodes) {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 200;
    for place in Place::ALL {
        let j = join(nodes, place, 1 << 20);
        std::thread::scope(|scope| {
            for t in 0..THREADS {
                let j = &j;
                scope.spawn(move || {
                    let base = 4096 * (t + 1);
                    for i in 0..ROUNDS {
                        let data = [(t * 31 + i) as u8; 700];
                        j.import.send(base, &data).unwrap();
                        let mut back = [0; 700];
                        j.import.fetch(base, &mut back).unwrap();
                        assert!(back == data, "{place:?} thread {t} round {i}");
                        j.import.fetch_add(0, 1).unwrap();
                        if i % 50 == 0 {
                            let export = j.user.export(4096).create().unwrap();
                            j.user.import_id(export.id()).open().unwrap().send(0, b"x").unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(j.export.word(0).unwrap().load(Ordering::Acquire), THREADS * ROUNDS, "{place:?}");
    }
}

pub(crate) fn more_threads_than_lanes_still_move_data(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 4096);
    let threads = j.user.limits().lanes + 30;
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                j.import.send(8, &[1; 8]).unwrap();
                barrier.wait();
                (0..20).for_each(|_| assert!(j.import.fetch_add(0, 1).is_ok()));
            });
        }
    });
    assert_eq!(j.export.word(0).unwrap().load(Ordering::Acquire), 20 * threads as u64);
    assert_eq!(j.user.stats().sends_mapped, threads as u64);
    j.export.unexport().unwrap();
}

pub(crate) fn waiting_threads_do_not_starve_each_other(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e.notify(true));
        let second = j.owner.export(4096).notify(true).create().unwrap();
        let home = nodes.name(0);
        let to_second = j.user.import_id(second.id()).node(&home).open().unwrap();
        // Both ends wait in one session: the thread that sleeps must hand over what is not its own.
        std::thread::scope(|scope| {
            let one = scope.spawn(|| (0..30).for_each(|i| assert_eq!(j.export.wait_notification().unwrap().offset, i)));
            let two = scope.spawn(|| (0..30).for_each(|i| assert_eq!(second.wait_notification().unwrap().offset, i)));
            let fetching = scope.spawn(|| (0..100).for_each(|_| j.import.fetch(0, &mut [0; 300]).unwrap()));
            std::thread::sleep(SHORT);
            for i in 0..30 {
                to_second.send_with(i, b"2", SendOptions::notify()).unwrap();
                j.import.send_with(i, b"1", SendOptions::notify()).unwrap();
                if i % 10 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            }
            fetching.join().unwrap();
            one.join().unwrap();
            two.join().unwrap();
        });
    }
}
