//! Loom explores the agreements on shared words.

use super::*;
use loom::sync::Arc;

#[test]
fn loom_a_sleeping_receiver_is_woken() {
    loom::model(|| {
        let words = Arc::new(DirectionWords::default());
        let theirs = words.clone();
        let sender = loom::thread::spawn(move || {
            theirs.publish(1);
            theirs.receiver_sleep.take()
        });
        words.receiver_sleep.announce();
        let saw = words.available(64) == 1;
        let woken = sender.join().unwrap();
        assert!(saw || woken, "slept although there was data and nobody wakes");
    });
}

#[test]
fn loom_a_sender_that_wants_room_is_told() {
    loom::model(|| {
        let words = Arc::new(DirectionWords::default());
        words.tail.store(64, Ordering::Relaxed);
        let theirs = words.clone();
        let receiver = loom::thread::spawn(move || theirs.consume(40, 64));
        words.want_room();
        let saw = words.free(64, 1) > 0;
        let told = receiver.join().unwrap();
        assert!(saw || told, "the sender sleeps although there is room and nobody tells");
    });
}

#[test]
fn loom_bytes_behind_a_change_of_ring_are_looked_for_there() {
    loom::model(|| {
        let words = Arc::new(DirectionWords::default());
        let theirs = words.clone();
        let sender = loom::thread::spawn(move || {
            theirs.publish(3);
            assert!(theirs.change_ring());
            theirs.publish(4);
        });
        let there = words.available(64);
        let layout = words.layout();
        assert!(there <= 3 || layout == Layout { from: 3, large: true }, "{there} bytes, {layout:?}");
        assert!(layout.bytes_before(0) == if layout.large { 3 } else { 0 } && layout.bytes_before(3) == 0);
        sender.join().unwrap();
    });
}

#[test]
fn loom_a_change_is_seen_with_its_boundary_and_after_the_last_kernel_bytes() {
    loom::model(|| {
        let words = Arc::new(DirectionWords::default());
        // Stands for the kernel's stream: bytes sent, through a lock as in the kernel.
        let kernel = Arc::new(loom::sync::Mutex::new(0u64));
        let (theirs, socket) = (words.clone(), kernel.clone());
        let sender = loom::thread::spawn(move || {
            theirs.begin_change();
            *socket.lock().unwrap() += 5;
            theirs.change(5);
            theirs.publish(3);
        });
        let came = *kernel.lock().unwrap();
        match words.phase() {
            Phase::Steady => {
                assert_eq!(came, 0, "kernel bytes came and the receiver would sleep in the kernel for more")
            }
            Phase::Pending => {}
            Phase::EndsAt(boundary) => assert_eq!(boundary, 5),
        }
        sender.join().unwrap();
        assert_eq!(words.phase(), Phase::EndsAt(5));
        words.reach_next();
        assert!(words.reads_ring() && words.available(64) == 3);
    });
}

#[test]
fn loom_a_spill_and_a_receiver_that_follows_exclude_each_other() {
    loom::model(|| {
        let words = Arc::new(DirectionWords::default());
        words.begin_change();
        words.enter_ring(5);
        words.publish(3);
        // Stands for the kernel's stream, of which the receiving end has read all that came.
        let kernel = Arc::new(loom::sync::Mutex::new(5u64));
        let (theirs, socket) = (words.clone(), kernel.clone());
        let sender = loom::thread::spawn(move || {
            if theirs.begin_spill() {
                *socket.lock().unwrap() += 2;
                theirs.end_spill(2);
            }
        });
        let follow = || match words.phase() {
            Phase::EndsAt(boundary) => {
                let read = *kernel.lock().unwrap();
                (read >= boundary && words.may_follow(boundary)).then_some(read)
            }
            _ => None,
        };
        let early = follow().map(|read| (read, words.head.load(Ordering::Relaxed)));
        sender.join().unwrap();
        let (read, head) = early.or_else(|| Some((follow()?, words.head.load(Ordering::Relaxed)))).unwrap();
        let now = words.head.load(Ordering::Relaxed);
        assert_eq!(head, now, "bytes left the ring behind a receiver that reads it");
        assert_eq!(read, 5 + now, "a byte is lost, or comes twice");
        words.reach_next();
        assert!(words.reads_ring() && words.available(64) == 3 - now);
        assert!(!words.is_spilling() && !words.announced().pending);
    });
}

#[test]
fn loom_a_ring_that_is_withdrawn_and_a_receiver_that_follows_exclude_each_other() {
    for bytes in [0, 3] {
        loom::model(move || {
            let words = Arc::new(DirectionWords::default());
            words.begin_change();
            words.enter_ring(5);
            words.publish(bytes);
            let kernel = Arc::new(loom::sync::Mutex::new(5u64));
            let (theirs, socket) = (words.clone(), kernel.clone());
            let sender = loom::thread::spawn(move || {
                let begun = theirs.begin_spill();
                if begun {
                    *socket.lock().unwrap() += bytes;
                    theirs.withdraw_ring(bytes);
                }
                begun
            });
            let follow = || match words.phase() {
                Phase::EndsAt(boundary) => *kernel.lock().unwrap() >= boundary && words.may_follow(boundary),
                _ => false,
            };
            let early = follow();
            let withdrawn = sender.join().unwrap();
            assert!(!withdrawn || !early, "a receiver has followed into a ring that is withdrawn");
            assert!(withdrawn || early || follow(), "a receiver cannot follow, and the ring stays");
            assert!(!words.is_spilling() && !words.announced().pending);
            if withdrawn {
                assert_eq!((words.phase(), words.announced().number), (Phase::Steady, 0));
                assert_eq!((*kernel.lock().unwrap(), words.available(64)), (5 + bytes, 0), "a byte is lost");
            } else {
                words.reach_next();
                assert!(words.reads_ring() && words.available(64) == bytes);
            }
        });
    }
}
