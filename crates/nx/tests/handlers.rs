//! Handlers: once, one at a time, not while they are masked; and one that does not return.
//!
//! Invariant: what a handler has done before `masktrap(true)` returns is seen afterwards.

mod common;

use common::{LONG, Nodes, pattern, run, unique};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use vmmc_nx::limits::IDS_MAX;
use vmmc_nx::{ANY, NxError};

#[test]
fn a_handler_gets_its_message_once_while_the_program_computes() {
    for nodes in [1, 2] {
        run(nodes, 2, |nx| {
            let other = 1 - nx.mynode();
            let (say, said) = mpsc::channel();
            for (ty, len) in [(1, 10), (2, 100_000)] {
                let say = say.clone();
                let told = move |nx: &vmmc_nx::Nx, done: Result<vmmc_nx::Done, NxError>| {
                    let done = done.expect("it comes");
                    let right = nx.in_handler() && done.bytes() == pattern(len, ty as u64);
                    say.send((done.info().expect("it is a receive"), right)).expect("it is heard");
                };
                nx.hrecvx(ty, vec![0; len], other, 0, told).expect("it begins");
            }
            nx.gsync().expect("all are there");
            let sends = Arc::new(AtomicU32::new(0));
            for (ty, len) in [(2, 100_000), (1, 10), (1, 10)] {
                let sends = sends.clone();
                let count = move |_: &vmmc_nx::Nx, done: Result<vmmc_nx::Done, NxError>| {
                    assert!(done.expect("it has gone").info().is_none());
                    sends.fetch_add(1, Ordering::SeqCst);
                };
                nx.hsend(ty, pattern(len, ty as u64), other, 0, count).expect("it begins");
            }
            // No call of NX meanwhile.
            let mut types = [0, 0].map(|_| {
                let (info, right) = said.recv_timeout(LONG).expect("both handlers run");
                assert!(right && info.node == other);
                info.ty
            });
            types.sort_unstable();
            assert_eq!(types, [1, 2]);
            // The second message of type 1 is for no handler any more.
            assert_eq!(nx.crecv(1, &mut [0; 10]).expect("it comes").count, 10);
            assert!(said.try_recv().is_err() && !nx.in_handler());
            let until = Instant::now() + LONG;
            while sends.load(Ordering::SeqCst) < 3 {
                assert!(Instant::now() < until, "handlers of sends run");
            }
        });
    }
}

#[test]
fn handlers_wait_while_they_are_masked_and_may_call_nx() {
    run(1, 2, |nx| {
        let other = 1 - nx.mynode();
        let (say, said) = mpsc::channel();
        let answers = say.clone();
        nx.hrecv(1, vec![0; 8], move |nx, done| {
            let done = done.expect("it comes");
            assert_eq!(nx.masktrap(false), Ok(false));
            nx.csend(2, done.bytes(), done.info().expect("it is a receive").node, 0).expect("it is sent");
            answers.send(()).expect("it is heard");
        })
        .expect("it begins");
        assert_eq!(nx.masktrap(true), Ok(false));
        assert_eq!(nx.masktrap(true), Ok(true));
        nx.gsync().expect("all are there");
        nx.csend(1, b"question", other, 0).expect("it is sent");
        nx.gsync().expect("all are there");
        // The message is there for sure, and would be handled.
        assert!(said.recv_timeout(Duration::from_millis(100)).is_err());
        assert_eq!(nx.iprobe(2), Ok(None));
        nx.gsync().expect("all are there");
        assert_eq!(nx.masktrap(false), Ok(true));
        let mut answer = [0; 8];
        nx.crecv(2, &mut answer).expect("the handler answers");
        assert_eq!(&answer, b"question");
        said.recv_timeout(LONG).expect("it has run");
    });
}

#[test]
fn one_runs_at_a_time_and_none_behind_masktrap() {
    run(1, 1, |nx| {
        let (inside, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        for ty in 0..200 {
            let (inside, runs) = (inside.clone(), runs.clone());
            nx.hrecv(ty, vec![0; 1], move |_, done| {
                done.expect("it comes");
                assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                std::thread::yield_now();
                inside.store(false, Ordering::SeqCst);
                runs.fetch_add(1, Ordering::SeqCst);
            })
            .expect("it begins");
        }
        for ty in 0..200 {
            nx.csend(ty, b"x", 0, 0).expect("it is sent");
            nx.masktrap(true).expect("they return");
            let before = runs.load(Ordering::SeqCst);
            assert!(!inside.load(Ordering::SeqCst), "one runs behind masktrap");
            std::thread::yield_now();
            assert_eq!(before, runs.load(Ordering::SeqCst));
            nx.masktrap(false).expect("they are let go");
        }
        let until = Instant::now() + LONG;
        while runs.load(Ordering::SeqCst) < 200 {
            assert!(Instant::now() < until, "all run");
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_message_too_long_for_a_handlers_buffer_is_the_handlers_error_and_the_next_one_runs() {
    run(1, 1, |nx| {
        let (say, said) = mpsc::channel();
        let next = say.clone();
        nx.hrecv(1, vec![0; 2], move |_, done| {
            say.send(done.map(|_| ())).expect("it is heard");
            panic!("a handler that panics, as the test wants");
        })
        .expect("it begins");
        nx.hrecv(2, vec![0; 3], move |_, done| next.send(done.map(|_| ())).expect("it is heard")).expect("it begins");
        nx.csend(1, b"three", 0, 0).expect("it is sent");
        let wrong = NxError::TooLong { ty: 1, node: 0, len: 5, room: 2 };
        assert_eq!(said.recv_timeout(LONG).expect("it is told"), Err(wrong));
        nx.csend(2, b"two", 0, 0).expect("it is sent");
        assert_eq!(said.recv_timeout(LONG).expect("it is told"), Ok(()));
    });
}

#[test]
fn a_handler_that_does_not_return_is_an_error_of_masktrap_and_the_process_ends() {
    let nodes = Nodes::start(1);
    let nx = nodes.process(&unique("stuck"), 0, 1);
    nx.handler_time(Duration::from_millis(50));
    let (begun, has_begun) = mpsc::channel();
    let (let_go, waits) = mpsc::channel::<()>();
    nx.hrecv(ANY, vec![0; 1], move |_, _| {
        begun.send(()).expect("it is heard");
        let _ = waits.recv();
    })
    .expect("it begins");
    nx.csend(1, b"x", 0, 0).expect("it is sent");
    has_begun.recv_timeout(LONG).expect("it runs");
    assert_eq!(nx.masktrap(true), Err(NxError::HandlerRuns { seconds: 0 }));
    // Calls go on, and so does the end.
    nx.csend(2, b"y", 0, 0).expect("it is sent");
    assert_eq!(nx.crecv(2, &mut [0; 1]).expect("it comes").ty, 2);
    drop(nx);
    let_go.send(()).expect("it was there all the time");
}

#[test]
fn handlers_and_ids_have_one_bound_and_those_left_go_with_their_process() {
    run(1, 1, |nx| {
        let id = nx.irecv(1, [0u8; 1]).expect("there is one");
        let ran = Arc::new(AtomicU32::new(0));
        let begin = |ty| {
            let ran = ran.clone();
            nx.hrecv(ty, [0u8; 1], move |_, _| {
                ran.fetch_add(1, Ordering::SeqCst);
            })
        };
        (1..IDS_MAX).for_each(|_| begin(2).expect("there is room"));
        assert_eq!(begin(2), Err(NxError::IdsUsedUp));
        nx.msgcancel(id).expect("it is known");
        begin(3).expect("there is room again");
        nx.csend(3, b"x", 0, 0).expect("it is sent");
        let until = Instant::now() + LONG;
        while ran.load(Ordering::SeqCst) < 1 {
            assert!(Instant::now() < until, "it runs");
        }
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_handlers_mask_is_its_own() {
    run(1, 1, |nx| {
        let (begun, has_begun) = mpsc::channel();
        let (let_go, waits) = mpsc::channel::<()>();
        nx.hrecv(1, vec![0; 1], move |nx, _| {
            let before = nx.masktrap(true).expect("it returns");
            begun.send(before).expect("it is heard");
            waits.recv_timeout(LONG).expect("it is let go");
            nx.masktrap(before).expect("it returns");
        })
        .expect("it begins");
        nx.csend(1, b"x", 0, 0).expect("it is sent");
        assert_eq!(has_begun.recv_timeout(LONG), Ok(false));
        nx.handler_time(Duration::from_millis(10));
        // It runs on, and says nothing of what the program has said.
        assert_eq!(nx.masktrap(true), Err(NxError::HandlerRuns { seconds: 0 }));
        let_go.send(()).expect("it is heard");
        nx.handler_time(LONG);
        assert_eq!(nx.masktrap(true), Ok(true));
    });
}
