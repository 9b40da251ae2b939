//! Calls, on both kinds of nodes, within a node and between two: what arrives, and what becomes of
//! calls that go wrong.

mod common;

use common::{LONG, Nodes, eventually, everywhere, pattern};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use vmmc_rpc::limits::BODY_BYTES_MAX;
use vmmc_rpc::{Call, Client, RpcError, Server, Then};

/// Within this time a death is reported, and others are served. It is promised to be one second;
/// the rest is for busy machines.
const TOLD: Duration = Duration::from_secs(10);
/// Gives arguments, and then bulk, back: both as the result.
const ECHO: u16 = 1;
/// Gives so much bulk as the arguments say.
const READ: u16 = 2;
/// Waits so many milliseconds as the arguments say.
const SLEEP: u16 = 3;
const FAIL: u16 = 4;
const PANIC: u16 = 5;
const DROP: u16 = 6;
const COUNT: u16 = 7;
/// Gives a result that is too long.
const LONG_RESULT: u16 = 8;

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn handler(ran: Arc<AtomicU64>) -> impl Fn(Call) + Send + Sync {
    move |call: Call| {
        ran.fetch_add(1, Ordering::SeqCst);
        match call.method() {
            ECHO => {
                let all = [call.arguments(), &call.bulk_to_vec()].concat();
                call.answer(&all);
            }
            READ => {
                let len = number(call.arguments());
                assert!(call.wants_bulk());
                call.answer_with_bulk(&len.to_le_bytes(), &pattern(len as usize, len as u8));
            }
            SLEEP => {
                std::thread::sleep(Duration::from_millis(number(call.arguments())));
                call.answer(b"");
            }
            FAIL => call.fail("there is none left"),
            PANIC => panic!("a handler that is to panic"),
            DROP => drop(call),
            LONG_RESULT => call.answer(&vec![1; BODY_BYTES_MAX as usize + 1]),
            COUNT => call.answer(&ran.load(Ordering::SeqCst).to_le_bytes()),
            _ => call.no_method(),
        }
    }
}

fn connect(nodes: &Nodes, caller: usize, service: &str) -> Client {
    Client::new(&nodes.attach(caller), service).node(&nodes.name(0)).connect().unwrap()
}

#[test]
fn arguments_results_and_bulk_of_every_length_arrive() {
    everywhere(|nodes, caller| {
        let server = Server::new(&nodes.attach(0), "echo").serve(handler(Arc::default())).unwrap();
        let client = connect(nodes, caller, "echo");
        // From 16,385 on they go in pieces, there and back.
        let long = [1_000, 16_384, 16_385, 32_768, 100_000, 1 << 20];
        for len in [0, 1, 60, 84, 85, 104, 105, 113, 114, 115].into_iter().chain(long) {
            let arguments = pattern(len, 1);
            assert!(client.call(ECHO, &arguments).unwrap() == arguments, "{caller} {len}");
            let bulk = pattern(len, 2);
            let answer = client.request(ECHO).arguments(b"arguments").bulk(&bulk).call().unwrap();
            assert!(answer.result == [b"arguments", &bulk[..]].concat() && answer.bulk.is_none(), "{caller} {len}");
            // A long result may stay in its frame, as long as somebody has it; there are four.
            let kept: Vec<_> =
                (0..4).map(|_| client.request(ECHO).arguments(&arguments).in_frame().call().unwrap()).collect();
            for answer in kept {
                assert_eq!(answer.frame.is_some(), (115..=16_384).contains(&len), "{caller} {len}");
                assert!(answer.frame.map_or(answer.result, |frame| frame.to_vec()) == arguments, "{caller} {len}");
            }
        }
        for len in [0u64, 1, 4_096, 65_536] {
            let answer = client.request(READ).arguments(&len.to_le_bytes()).wants_bulk().call().unwrap();
            let bulk = answer.bulk.expect("it was asked for");
            assert_eq!((number(&answer.result), bulk.len()), (len, len));
            assert!(bulk.to_vec().unwrap() == pattern(len as usize, len as u8), "{caller} {len}");
        }
        assert_eq!((server.counts().done, server.counts().failed, client.outstanding()), (100, 0, 0));
        assert_eq!(server.stop(), None);
    });
}

#[test]
fn what_goes_wrong_with_a_call_is_an_error_of_its_own_and_others_are_served() {
    everywhere(|nodes, caller| {
        let server = Server::new(&nodes.attach(0), "wrong").threads(2).serve(handler(Arc::default())).unwrap();
        let client = connect(nodes, caller, "wrong");
        let service = || "wrong".to_string();
        let served = || assert_eq!(client.call(ECHO, b"still").unwrap(), b"still");

        assert_eq!(client.call(99, b""), Err(RpcError::NoMethod { service: service(), method: 99 }));
        let message = "there is none left".to_string();
        assert_eq!(client.call(FAIL, b""), Err(RpcError::Failed { service: service(), message }));
        served();
        assert_eq!(client.call(PANIC, b""), Err(RpcError::Panicked { service: service(), method: PANIC }));
        served();
        assert_eq!(client.call(DROP, b""), Err(RpcError::NoAnswer { service: service(), method: DROP }));
        let (len, max) = (BODY_BYTES_MAX + 1, BODY_BYTES_MAX);
        let long = client.call(ECHO, &vec![0; len as usize]).unwrap_err();
        assert_eq!(long, RpcError::ArgumentsTooLong { service: service(), len, max });
        assert!(!long.may_have_happened());
        assert_eq!(
            client.call(LONG_RESULT, b""),
            Err(RpcError::ResultTooLong { service: service(), method: LONG_RESULT })
        );
        let short = Client::new(&nodes.attach(caller), "wrong").node(&nodes.name(0)).frames(1, 1_024);
        let short = short.bulk(1, 1_000).connect().unwrap();
        // One frame that is short suffices for everything.
        assert!(short.call(ECHO, &pattern(50_000, 5)).unwrap() == pattern(50_000, 5));
        let refused = short.request(READ).arguments(&1_001u64.to_le_bytes()).wants_bulk().call();
        assert!(matches!(refused, Err(RpcError::BulkDropped { .. })), "{refused:?}");
        let answer = short.request(READ).arguments(&1_000u64.to_le_bytes()).wants_bulk().call().unwrap();
        let all_in_use = short.request(READ).arguments(&1u64.to_le_bytes()).wants_bulk().call();
        assert!(matches!(all_in_use, Err(RpcError::Token { .. })), "{all_in_use:?}");
        drop(answer);
        short.request(READ).arguments(&1u64.to_le_bytes()).wants_bulk().call().unwrap();

        let begun = Instant::now();
        let late = client.request(SLEEP).arguments(&1_000u64.to_le_bytes()).timeout(Duration::from_millis(50)).call();
        let late = late.unwrap_err();
        assert!(matches!(late, RpcError::TimedOut { after_ms: 50, may_have_happened: true, .. }), "{late:?}");
        assert!(late.may_have_happened() && begun.elapsed() < Duration::from_millis(990), "{:?}", begun.elapsed());
        served();
        assert_eq!(client.outstanding(), 0);
        assert_eq!(server.counts().panicked, 1);
        assert_eq!(server.counts().misbehaved, 0);
    });
    let nodes = Nodes::embedded();
    let session = nodes.attach(0);
    let none = Client::new(&session, "nobody").timeout(Duration::from_millis(30)).connect();
    assert!(matches!(none, Err(RpcError::Connect { .. })), "{none:?}");
    let long = "n".repeat(65);
    assert!(matches!(Client::new(&session, &long).connect(), Err(RpcError::BadName { .. })));
    assert!(matches!(Server::new(&session, "").serve(drop), Err(vmmc_rpc::ServeError::BadName { .. })));
    assert!(matches!(Server::new(&session, "x").queue(0).serve(drop), Err(vmmc_rpc::ServeError::BadShape { .. })));
}

#[test]
fn a_full_queue_is_busy_and_calls_that_are_late_or_withdrawn_are_not_begun() {
    everywhere(|nodes, caller| {
        let ran = Arc::new(AtomicU64::new(0));
        let server = Server::new(&nodes.attach(0), "busy").threads(1).queue(3).serve(handler(ran.clone())).unwrap();
        let client = connect(nodes, caller, "busy");
        let busy_for = |ms: u64| client.request(SLEEP).arguments(&ms.to_le_bytes()).timeout(LONG).start().unwrap();
        let working = busy_for(800);
        eventually("the handler runs", || ran.load(Ordering::SeqCst) == 1);
        // Three wait: one is withdrawn, the time of one is over, one is done.
        let [withdrawn, waits] = [(); 2].map(|()| client.request(COUNT).timeout(LONG).start().unwrap());
        let late = client.request(COUNT).timeout(Duration::from_millis(30)).start().unwrap();
        eventually("one more is refused", || {
            let refused = client.request(COUNT).timeout(Duration::from_millis(200)).call();
            matches!(refused, Err(RpcError::Busy { .. }))
        });
        withdrawn.cancel();
        let late = late.wait().unwrap_err();
        assert!(matches!(late, RpcError::TimedOut { .. }), "{late:?}");
        working.wait().unwrap();
        assert_eq!(number(&waits.wait().unwrap().result), 2, "only the first and this one have run");
        // Withdrawn too, by its time: whichever the server sees first.
        eventually("both are let go of", || server.counts().cancelled + server.counts().late == 2);
        assert_eq!((server.counts().handled, client.outstanding()), (2, 0));
        assert!(server.counts().busy >= 1);
    });
}

#[test]
fn a_server_that_ends_lets_its_handlers_see_who_withdraws() {
    everywhere(|nodes, caller| {
        let (begun, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (begins, sees) = (begun.clone(), seen.clone());
        let patient = move |call: Call| {
            begins.fetch_add(1, Ordering::SeqCst);
            let until = Instant::now() + LONG;
            while !call.is_cancelled() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            sees.fetch_add(u64::from(call.is_cancelled()), Ordering::SeqCst);
        };
        let server = Server::new(&nodes.attach(0), "patient").threads(1).serve(patient).unwrap();
        let client = connect(nodes, caller, "patient");
        let waits = client.request(ECHO).timeout(LONG).start().unwrap();
        eventually("the handler runs", || begun.load(Ordering::SeqCst) == 1);
        let ending = std::thread::spawn(move || server.stop());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!ending.is_finished(), "the handler is waited for");
        waits.cancel();
        assert_eq!(ending.join().unwrap(), None);
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn threads_share_a_client_and_each_gets_its_own_answers() {
    everywhere(|nodes, caller| {
        let server =
            Server::new(&nodes.attach(0), "shared").threads(2).queue(1_000).serve(handler(Arc::default())).unwrap();
        let client = connect(nodes, caller, "shared");
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let client = &client;
                scope.spawn(move || {
                    for round in 0..200u64 {
                        let mine = (thread << 32 | round).to_le_bytes();
                        assert_eq!(client.call(ECHO, &mine).unwrap(), mine);
                    }
                    // Many under way at once.
                    let all: Vec<_> = (0..100u64)
                        .map(|round| {
                            let mine = (thread << 32 | round).to_le_bytes();
                            (client.request(ECHO).arguments(&mine).start().unwrap(), mine)
                        })
                        .collect();
                    for (pending, mine) in all {
                        assert_eq!(pending.wait().unwrap().result, mine);
                    }
                });
            }
        });
        assert_eq!((server.counts().done, client.outstanding()), (1_200, 0));
    });
}

#[test]
fn continuations_run_once_each_and_again_when_they_say_not_now() {
    everywhere(|nodes, caller| {
        let _server = Server::new(&nodes.attach(0), "continued").serve(handler(Arc::default())).unwrap();
        let client = connect(nodes, caller, "continued");
        let (said, heard) = mpsc::channel();
        for round in 0..50u8 {
            let (said, mut refusals) = (said.clone(), round % 3);
            let next = client.clone();
            let continuation = move |outcome: &mut Result<vmmc_rpc::Answer, RpcError>| {
                if refusals > 0 {
                    refusals -= 1;
                    return Then::NotNow;
                }
                let answer = outcome.as_ref().unwrap().result.clone();
                // It calls in turn.
                let said = said.clone();
                next.request(ECHO)
                    .arguments(&answer)
                    .then(move |outcome| {
                        said.send(outcome.as_ref().unwrap().result[0]).unwrap();
                        Then::Done
                    })
                    .unwrap();
                Then::Done
            };
            client.request(ECHO).arguments(&[round]).then(continuation).unwrap();
        }
        let mut all = Vec::new();
        eventually("all have run", || {
            client.poll();
            all.extend(heard.try_iter());
            all.len() == 50
        });
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<u8>>());
        assert_eq!((client.outstanding(), client.deferred()), (0, 0));
        // One that gets no answer runs too, with the error.
        let (said, heard) = mpsc::channel();
        let long = 300u64.to_le_bytes();
        let late = client.request(SLEEP).arguments(&long).timeout(Duration::from_millis(20));
        late.then(move |outcome| {
            said.send(matches!(outcome, Err(RpcError::TimedOut { .. }))).unwrap();
            Then::Done
        })
        .unwrap();
        eventually("it ends", || {
            client.poll();
            heard.try_recv() == Ok(true)
        });
    });
}

#[test]
fn a_continuation_that_panics_takes_no_other_with_it() {
    everywhere(|nodes, caller| {
        let _server = Server::new(&nodes.attach(0), "panicking").serve(handler(Arc::default())).unwrap();
        let client = connect(nodes, caller, "panicking");
        let ran = Arc::new(Mutex::new(Vec::new()));
        for round in 0..8 {
            let ran = ran.clone();
            let continuation = move |_: &mut Result<vmmc_rpc::Answer, RpcError>| {
                ran.lock().unwrap_or_else(|e| e.into_inner()).push(round);
                assert!(round % 3 > 0, "a continuation that is to panic");
                Then::Done
            };
            client.request(ECHO).then(continuation).unwrap();
        }
        let mut panics = 0;
        eventually("all have run", || {
            let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.poll()));
            panics += usize::from(polled.is_err());
            ran.lock().unwrap_or_else(|e| e.into_inner()).len() == 8
        });
        assert_eq!((panics, client.outstanding(), client.deferred()), (3, 0, 0));
        assert_eq!(*ran.lock().unwrap_or_else(|e| e.into_inner()), (0..8).collect::<Vec<_>>());
    });
}

#[test]
fn a_call_that_is_passed_on_is_answered_by_who_has_it() {
    everywhere(|nodes, caller| {
        // The last one is on the other node, or on the same one.
        let last = Server::new(&nodes.attach(1 - caller), "last").serve(handler(Arc::default())).unwrap();
        let pass = |to: Client| {
            move |call: Call| {
                let arguments = call.arguments().to_vec();
                let method = call.method();
                if let Err((call, error)) = call.pass_on(&to, method, &arguments) {
                    call.fail(&error.to_string());
                }
            }
        };
        let to_last = Client::new(&nodes.attach(0), "last").node(&nodes.name(1 - caller)).connect().unwrap();
        let second = Server::new(&nodes.attach(0), "second").serve(pass(to_last)).unwrap();
        let to_second = Client::new(&nodes.attach(0), "second").connect().unwrap();
        let first = Server::new(&nodes.attach(0), "first").threads(1).serve(pass(to_second)).unwrap();
        let client = connect(nodes, caller, "first");
        for len in [0, 10, 500, 10_000, 100_000] {
            let arguments = pattern(len, 5);
            assert!(client.call(ECHO, &arguments).unwrap() == arguments, "{caller} {len}");
            let bulk = pattern(len / 2, 6);
            let answer = client.request(ECHO).arguments(b"bulk").bulk(&bulk).call().unwrap();
            assert!(answer.result == [b"bulk", &bulk[..]].concat());
        }
        let answer = client.request(READ).arguments(&50_000u64.to_le_bytes()).wants_bulk().call().unwrap();
        assert!(answer.bulk.unwrap().to_vec().unwrap() == pattern(50_000, (50_000u64) as u8));
        assert_eq!(client.call(99, b""), Err(RpcError::NoMethod { service: "first".into(), method: 99 }));
        let counts = [first.counts(), second.counts(), last.counts()];
        assert_eq!(counts.map(|counts| counts.passed_on), [12, 12, 0]);
        assert_eq!(counts.map(|counts| counts.misbehaved), [0; 3]);
        // A withdrawal follows the call.
        let slow = client.request(SLEEP).arguments(&100u64.to_le_bytes()).timeout(LONG).start().unwrap();
        let queued = client.request(COUNT).timeout(LONG).start().unwrap();
        eventually("the last one works", || last.counts().handled == 13);
        queued.cancel();
        slow.wait().unwrap();
        // By whichever of them had it then.
        let cancelled = || [&first, &second, &last].map(|server| server.counts().cancelled).iter().sum::<u64>();
        eventually("it is let go of", || cancelled() == 1 || last.counts().handled == 14);
    });
}

#[test]
fn the_end_of_a_server_or_of_a_delegate_is_an_error_within_a_second() {
    everywhere(|nodes, caller| {
        let (held, holds) = (Arc::new(Mutex::new(Vec::new())), AtomicU32::new(0));
        let keep = held.clone();
        let hold = move |call: Call| {
            holds.fetch_add(1, Ordering::SeqCst);
            keep.lock().unwrap().push(call);
        };
        let last = Server::new(&nodes.attach(0), "last").serve(hold).unwrap();
        let to_last = Client::new(&nodes.attach(0), "last").connect().unwrap();
        let first = Server::new(&nodes.attach(0), "first");
        let first = first.serve(move |call: Call| {
            let (method, arguments) = (call.method(), call.arguments().to_vec());
            call.pass_on(&to_last, method, &arguments).map_err(|(_, error)| error).expect("it takes the call");
        });
        let first = first.unwrap();
        let client = connect(nodes, caller, "first");
        let lost = |end: &mut dyn FnMut()| {
            let pending = client.request(ECHO).timeout(LONG).start().unwrap();
            eventually("it is held", || !held.lock().unwrap().is_empty());
            let begun = Instant::now();
            end();
            let error = pending.wait().unwrap_err();
            assert!(matches!(error, RpcError::Lost { .. }) && error.may_have_happened(), "{error:?}");
            assert!(begun.elapsed() < TOLD, "{:?}", begun.elapsed());
        };
        let mut last = Some(last);
        lost(&mut || {
            // Its calls go with it, unanswered, as those of a process that is killed.
            held.lock().unwrap().drain(..).for_each(std::mem::forget);
            drop(last.take());
        });
        drop(first);
        let error = client.call(ECHO, b"").unwrap_err();
        assert!(!matches!(error, RpcError::TimedOut { .. }), "{error:?}");
    });
}

/// Whoever may call writes what it likes to the endpoint: messages of no sense, calls in the name
/// of callers that do not answer, answers to a client that nobody gave.
#[test]
fn hostile_callers_and_servers_harm_no_other() {
    everywhere(|nodes, caller| {
        let server = Server::new(&nodes.attach(0), "target").threads(1).serve(handler(Arc::default())).unwrap();
        let client = connect(nodes, caller, "target");
        let hostile = nodes.attach(1);
        let mut wild = hostile.connect("rpc.target").node(&nodes.name(0)).open().unwrap();
        let mut rng = vmmc_utlb::Rng::new(17);
        let mut text = |most: u64| -> Vec<u8> { (0..rng.below(most)).map(|_| rng.below(256) as u8).collect() };
        let served = |what: &str| {
            let begun = Instant::now();
            assert_eq!(client.call(ECHO, what.as_bytes()).unwrap(), what.as_bytes());
            assert!(begun.elapsed() < TOLD, "{what}: {:?}", begun.elapsed());
        };
        for round in 0..2_000u64 {
            let mut control = text(129);
            if let Some(first) = control.first_mut() {
                *first = (round % 8) as u8;
            }
            let payload = text(300);
            wild.send(&control, &payload).unwrap();
            if round % 100 == 0 {
                served("between them");
            }
        }
        // Hellos and calls that are passed on, in the name of callers that do not answer.
        for round in 0..200u64 {
            let name = format!("rpc-answers.{round:016x}");
            let mut hello = vec![1, 2, 0];
            hello.extend(0u32.to_le_bytes());
            hello.extend(name.as_bytes());
            wild.send(&hello, b"").unwrap();
        }
        served("after hellos");
        // Pieces of calls that never end, more than a server keeps.
        let piece = vec![5; 16 << 10];
        for round in 0..3_000u64 {
            let mut part = vec![7];
            part.extend((round as u32 / 2_500).to_le_bytes());
            part.extend(0u64.to_le_bytes());
            wild.send(&part, &piece).unwrap();
            if round % 500 == 0 {
                served("between pieces");
            }
        }
        served("after pieces");
        let newcomer = connect(nodes, caller, "target");
        assert_eq!(newcomer.call(ECHO, b"new").unwrap(), b"new");
        assert!(server.counts().misbehaved > 500, "{:?}", server.counts());

        // A server that answers what it was not asked.
        let (said, heard) = mpsc::channel();
        let mut listening = nodes.attach(0).endpoint("rpc.liar").frames(4, 4_096).create().unwrap();
        let node = nodes.name(0);
        let session = nodes.attach(caller);
        let victim = std::thread::spawn(move || {
            let client = Client::new(&session, "liar").node(&node).connect().unwrap();
            said.send(()).unwrap();
            client.request(ECHO).wants_bulk().timeout(Duration::from_millis(300)).call()
        });
        let hello = loop {
            let message = listening.wait().unwrap();
            if message.control()[0] == 1 {
                break message;
            }
        };
        let name = String::from_utf8(hello.control()[7..].to_vec()).unwrap();
        let mut liar = nodes.attach(0).connect(&name).node(&nodes.name(caller)).open().unwrap();
        liar.send(&[2, 2, 0], b"").unwrap();
        heard.recv_timeout(LONG).unwrap();
        for round in (0..200u8).cycle().take(2_000) {
            let mut control = text(129);
            if let Some(first) = control.first_mut() {
                *first = 6 + round % 2;
            }
            let _ = liar.send_within(&control, &text(300), Duration::from_millis(1));
        }
        let outcome = victim.join().unwrap();
        assert!(matches!(outcome, Err(RpcError::TimedOut { .. })), "{outcome:?}");
    });
}

#[test]
fn a_caller_that_the_delegate_cannot_reach_is_told_by_who_passed_the_call_on() {
    // Node 2 knows node 1, and not node 0.
    let nodes = Nodes::embedded();
    let apart = common::apart(&nodes, 1);
    let session = vmmc::Session::builder().timeout(LONG).over(apart.attach().unwrap()).unwrap();
    let _last = Server::new(&session, "last").serve(handler(Arc::default())).unwrap();
    let to_last = Client::new(&nodes.attach(1), "last").node(&apart.addresses()[0].to_string()).connect().unwrap();
    let front = Server::new(&nodes.attach(1), "front").serve(move |call: Call| {
        let (method, arguments) = (call.method(), call.arguments().to_vec());
        call.pass_on(&to_last, method, &arguments).map_err(|(_, error)| error).expect("it takes the call");
    });
    let _front = front.unwrap();
    let client = Client::new(&nodes.attach(0), "front").node(&nodes.name(1)).connect().unwrap();
    for round in 0..3 {
        let begun = Instant::now();
        let error = client.call(ECHO, b"where am I?").unwrap_err();
        let took = begun.elapsed();
        let expected = |why: &str| why.contains("cannot reach");
        assert!(matches!(&error, RpcError::Lost { why, .. } if expected(why)), "{error:?}");
        assert!(took < TOLD, "round {round}: {took:?}");
    }
}

/// A small executor: polls until the future is ready, and sleeps until it is woken in between.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let end = Instant::now() + LONG;
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        assert!(Instant::now() < end, "nobody woke it");
        std::thread::park_timeout(LONG);
    }
}

#[test]
fn calls_are_futures_that_a_thread_of_the_client_wakes() {
    everywhere(|nodes, caller| {
        let server = Server::new(&nodes.attach(0), "awaited").threads(2).serve(handler(Arc::default())).unwrap();
        let client = connect(nodes, caller, "awaited");
        let results = block_on(async {
            let mut results = Vec::new();
            for round in 0..20u8 {
                let [slow, quick] = [(SLEEP, 3u64), (ECHO, u64::from(round))];
                let arguments = [slow.1.to_le_bytes(), quick.1.to_le_bytes()];
                let slow = client.request(slow.0).arguments(&arguments[0]).start().unwrap();
                // Under way beside it.
                let quick = client.request(quick.0).arguments(&arguments[1]).start().unwrap();
                results.push(number(&quick.await.unwrap().result));
                slow.await.unwrap();
            }
            results
        });
        assert_eq!(results, (0..20).collect::<Vec<u64>>());
        // Threads that wait go on beside it, and errors come too.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    (0..100).for_each(|_| assert_eq!(client.call(ECHO, b"waited for").unwrap(), b"waited for"));
                });
            }
            block_on(async {
                for _ in 0..100 {
                    let pending = client.request(ECHO).arguments(b"awaited").start().unwrap();
                    assert_eq!(pending.await.unwrap().result, b"awaited");
                }
                let long = 300u64.to_le_bytes();
                let late = client.request(SLEEP).arguments(&long).timeout(Duration::from_millis(20)).start().unwrap();
                assert!(matches!(late.await, Err(RpcError::TimedOut { .. })));
            });
        });
        // Continuations run by themselves.
        let (said, heard) = mpsc::channel();
        let then = client.request(ECHO).then(move |outcome| {
            said.send(outcome.is_ok()).unwrap();
            Then::Done
        });
        then.unwrap();
        assert_eq!(heard.recv_timeout(LONG), Ok(true));
        drop(server);
        let lost = block_on(async { client.request(ECHO).start()?.await });
        assert!(!matches!(lost, Ok(_) | Err(RpcError::TimedOut { .. })), "{lost:?}");
    });
}
