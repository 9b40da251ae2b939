//! The child of a fork uses nothing of its parent's calls, and waits for nothing.

mod common;

use common::{LONG, Nodes};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use vmmc::AccessError;
use vmmc_rpc::{Call, Client, Pending, RpcError, Server};

const ECHO: u16 = 1;
/// Its calls are kept by the handler.
const KEEP: u16 = 2;
/// Forks: so many that some come while another thread holds each of the locks.
const CHILDREN: usize = 40;

fn is_refused<T>(result: Result<T, RpcError>) -> bool {
    matches!(result, Err(RpcError::Access { error: AccessError::Forked { .. }, .. }))
}

/// What a child does; the number of what went wrong, or 0.
fn misuse(client: Client, mut pending: Pending, waited: Pending, server: Server, kept: Option<Call>) -> i32 {
    // The call comes back, and dropping it tells nobody anything.
    let is_passed_on = kept.is_some_and(|call| call.pass_on(&client, ECHO, b"").is_ok());
    let right = [
        is_refused(client.call(ECHO, b"")),
        is_refused(client.request(ECHO).start()),
        is_refused(client.request(ECHO).then(|_| vmmc_rpc::Then::Done)),
        is_refused(client.background()),
        is_refused(pending.poll().expect("that it cannot is known")),
        is_refused(waited.wait()),
        (client.outstanding(), client.deferred(), server.is_serving()) == (0, 0, false),
        !is_passed_on,
    ];
    client.poll();
    drop(pending);
    drop(client);
    drop(server);
    right.iter().zip(1..).find(|(right, _)| !**right).map_or(0, |(_, number)| number)
}

#[test]
fn the_child_of_a_fork_is_refused_and_never_waits() {
    let nodes = Nodes::daemons();
    let kept: Arc<Mutex<Vec<Call>>> = Arc::default();
    let keeps = kept.clone();
    let handler = move |call: Call| match call.method() {
        ECHO => {
            let arguments = call.arguments().to_vec();
            call.answer(&arguments);
        }
        _ => keeps.lock().unwrap().push(call),
    };
    let mut server = Some(Server::new(&nodes.attach(0), "forked").threads(2).serve(handler).unwrap());
    let client = Client::new(&nodes.attach(0), "forked").connect().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(client.call(ECHO, b"on and on").unwrap(), b"on and on");
                }
            });
        }
        let mut failed = Vec::new();
        for _ in 0..CHILDREN {
            let [one, other] = [(), ()].map(|()| client.request(KEEP).start().unwrap());
            let until = Instant::now() + LONG;
            while kept.lock().unwrap().len() < 2 {
                assert!(Instant::now() < until, "the handler has them");
            }
            let mut held = kept.lock().unwrap();
            // SAFETY: the child uses what it has of its parent and ends; another thread's lock that
            // it would wait for is what this test is about.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // A child that hangs is a failure too, not a test without end.
                // SAFETY: plain system calls without pointers.
                unsafe { libc::alarm(10) };
                let (server, call) = (server.take().expect("it serves"), held.pop());
                let run = std::panic::AssertUnwindSafe(|| misuse(client.clone(), one, other, server, call));
                let code = std::panic::catch_unwind(run).unwrap_or(99);
                // SAFETY: as above; nothing of the parent's runs at exit.
                unsafe { libc::_exit(code) };
            }
            held.drain(..).for_each(|call| call.answer(b""));
            drop(held);
            let mut status = -1;
            // SAFETY: the place for the status is this thread's.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            failed.extend((status != 0).then_some(status));
            // The parent's calls are its own still.
            assert!(one.wait().is_ok() && other.wait().is_ok());
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, [], "statuses of children: a signal, or 256 times the number of what went wrong");
    });
    assert_eq!(client.outstanding(), 0);
}
