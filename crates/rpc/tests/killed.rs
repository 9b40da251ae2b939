//! Servers, delegates and clients that are killed, again and again, in the middle of calls. The
//! test program starts itself once for each role.
//!
//! Invariant: each call has one outcome, in time; a result is that of its call; others are served.

mod common;
#[path = "../../vmmc/tests/common/role.rs"]
mod role;

use common::{LONG, Nodes, eventually, pattern};
use role::Role;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmmc::{Export, Session};
use vmmc_rpc::{Call, Client, RpcError, Server, TokenRegion};

/// Within this time a death is reported. It is promised to be one second; the rest is for busy
/// machines.
const TOLD: Duration = Duration::from_secs(10);
const ECHO: u16 = 1;
const READ: u16 = 2;
/// Takes a millisecond.
const SLOW: u16 = 3;
const BULK_BYTES: usize = 60_000;
/// Calls under way at once.
const CALLS: u64 = 20;
/// Bulk results that are told apart.
const PATTERNS: u64 = 4;

#[test]
#[ignore = "a role of the other tests"]
fn child_process() {
    let Ok(role) = std::env::var("VMMC_TEST_ROLE") else { return };
    let node = std::env::var("VMMC_TEST_NODE").unwrap();
    let session = Session::builder().node(&node).start_node(false).timeout(LONG).attach().unwrap();
    match role.as_str() {
        "server" => {
            let server = Server::new(&session, "victim").threads(1).serve(handler(&session)).unwrap();
            println!("ready");
            eventually("it is killed", || !server.is_serving());
        }
        "client" => {
            let caller = Caller::new(Client::new(&session, "steady").connect().unwrap());
            println!("ready");
            loop {
                let mut all: Vec<_> = (0..CALLS).map(|number| (number, caller.start(number).unwrap())).collect();
                all.drain(..).for_each(|(number, pending)| caller.check(number, pending.wait()).unwrap());
            }
        }
        role => panic!("no role {role}"),
    }
}

/// Bulk results come from an export.
fn handler(session: &Session) -> impl Fn(Call) + Send + Sync + 'static {
    let export = session.export(PATTERNS * BULK_BYTES as u64).create().unwrap();
    for number in 0..PATTERNS {
        export.write(number * BULK_BYTES as u64, &pattern(BULK_BYTES, number as u8)).unwrap();
    }
    move |call| handle(call, &export)
}

fn handle(call: Call, export: &Export) {
    let number = u64::from_le_bytes(call.arguments().try_into().expect("eight bytes"));
    match call.method() {
        ECHO => call.answer(&number.to_le_bytes()),
        READ => {
            let start = number % PATTERNS * BULK_BYTES as u64;
            let (result, bulk) = (&number.to_le_bytes(), export.range(start..start + BULK_BYTES as u64));
            // The export does not change: whichever way.
            if number & 1 == 0 { call.answer_with_bulk(result, bulk) } else { call.answer_in_place(result, bulk) }
        }
        SLOW => {
            std::thread::sleep(Duration::from_millis(1));
            call.answer(&number.to_le_bytes());
        }
        _ => call.no_method(),
    }
}

/// Makes calls of several kinds.
struct Caller {
    client: Client,
    /// Where half of the bulk results land.
    region: TokenRegion,
}

impl Caller {
    fn new(client: Client) -> Caller {
        let region = client.region(CALLS, CALLS * BULK_BYTES as u64).unwrap();
        Caller { client, region }
    }

    /// Starts a call of one kind or another.
    fn start(&self, number: u64) -> Result<vmmc_rpc::Pending, RpcError> {
        let arguments = number.to_le_bytes();
        let request = |method| self.client.request(method).arguments(&arguments);
        match number % 6 {
            0 | 3 => request(ECHO).start(),
            1 | 4 => request(SLOW).start(),
            2 => request(READ).wants_bulk().start(),
            _ => {
                let place = Self::place(number);
                request(READ).into_region(&self.region, place..place + BULK_BYTES as u64).start()
            }
        }
    }

    fn place(number: u64) -> u64 {
        number % CALLS * BULK_BYTES as u64
    }

    /// Whether a result is that of its call.
    fn check(&self, number: u64, outcome: Result<vmmc_rpc::Answer, RpcError>) -> Result<(), RpcError> {
        let answer = outcome?;
        assert_eq!(answer.result, number.to_le_bytes());
        if let Some(bulk) = answer.bulk {
            let expected = pattern(BULK_BYTES, (number % PATTERNS) as u8);
            assert!(number % 3 == 2 && bulk.to_vec().unwrap() == expected);
            if number % 6 == 5 {
                let mut there = vec![0; BULK_BYTES];
                self.region.memory().read(Self::place(number), &mut there).unwrap();
                assert!(there == expected);
            }
        }
        Ok(())
    }
}

/// What may become of a call whose server is killed. It has been told in time.
fn is_death(error: &RpcError) -> bool {
    // Full: the buffers of calls that were not looked at yet.
    matches!(error, RpcError::Lost { .. } | RpcError::Message { .. } | RpcError::Token { .. })
}

#[test]
fn servers_that_are_killed_in_mid_call_are_an_error_in_time_and_their_successors_serve() {
    for caller in [0, 1] {
        let nodes = Nodes::daemons();
        let session = nodes.attach(caller);
        let mut done = 0;
        for round in 0..12u64 {
            let server = Role::start("server", &nodes.name(0));
            let client = Client::new(&session, "victim").node(&nodes.name(0)).connect().unwrap();
            let caller = Caller::new(client.clone());
            let killed = Mutex::new(None);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_micros(300 + round * 1_700));
                    drop(server);
                    *killed.lock().unwrap() = Some(Instant::now());
                });
                let mut number = round << 32;
                'calls: loop {
                    let mut all = Vec::new();
                    for _ in 0..5 {
                        number += 1;
                        match caller.start(number) {
                            Ok(pending) => all.push((number, pending)),
                            Err(error) if is_death(&error) => break,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    let none = all.is_empty();
                    for (number, pending) in all {
                        match caller.check(number, pending.wait()) {
                            Ok(()) => done += 1,
                            Err(error) if is_death(&error) => break 'calls,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    if none {
                        break;
                    }
                }
                eventually("it is killed", || killed.lock().unwrap().is_some());
            });
            let told = killed.lock().unwrap().expect("it was").elapsed();
            assert!(told < TOLD, "{told:?}");
            assert_eq!(client.outstanding(), 0);
        }
        assert!(done > 5, "{done} calls were answered before");
    }
}

#[test]
fn clients_that_are_killed_in_mid_call_cost_others_nothing() {
    for caller in [0, 1] {
        let nodes = Nodes::daemons();
        let session = nodes.attach(0);
        let server = Server::new(&session, "steady").threads(1).serve(handler(&session)).unwrap();
        let honest = Client::new(&nodes.attach(caller), "steady").node(&nodes.name(0)).connect().unwrap();
        let honest = Caller::new(honest);
        let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let number = calls.fetch_add(1, Ordering::Relaxed);
                    honest.check(number, honest.start(number).unwrap().wait()).unwrap();
                }
            });
            for round in 0..12 {
                let victim = Role::start("client", &nodes.name(0));
                std::thread::sleep(Duration::from_millis(2 + round * 3));
                drop(victim);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(calls.load(Ordering::Relaxed) > 20);
        let counts = server.counts();
        assert_eq!((counts.misbehaved, counts.panicked), (0, 0), "{counts:?}");
    }
}

#[test]
fn delegates_that_are_killed_in_mid_call_are_an_error_in_time() {
    let nodes = Nodes::daemons();
    let to: Arc<Mutex<Option<Client>>> = Arc::default();
    let delegate = to.clone();
    let pass = move |call: Call| {
        let to = delegate.lock().unwrap().clone().expect("there is one");
        let (method, arguments) = (call.method(), call.arguments().to_vec());
        if let Err((call, error)) = call.pass_on(&to, method, &arguments) {
            call.fail(&error.to_string());
        }
    };
    let _front = Server::new(&nodes.attach(1), "front").serve(pass).unwrap();
    let client = Client::new(&nodes.attach(0), "front").node(&nodes.name(1)).connect().unwrap();
    let (mut done, mut lost) = (0, 0);
    for round in 0..12u64 {
        let server = Role::start("server", &nodes.name(0));
        let session = nodes.attach(1);
        let next = Client::new(&session, "victim").node(&nodes.name(0)).connect().unwrap();
        *to.lock().unwrap() = Some(next);
        // Whoever dies in the middle of a payload keeps its range.
        let caller = Caller::new(client.clone());
        std::thread::scope(|scope| {
            let kill = scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(2_000 + round * 2_300));
                drop(server);
            });
            for number in (round << 32..).take(1_000) {
                let begun = Instant::now();
                match caller.check(number, caller.start(number).unwrap().wait()) {
                    Ok(()) => done += 1,
                    Err(error) => {
                        assert!(begun.elapsed() < TOLD, "{error:?} after {:?}", begun.elapsed());
                        // Passed on before it died, or not any more.
                        assert!(matches!(error, RpcError::Lost { .. } | RpcError::Failed { .. }), "{error:?}");
                        lost += 1;
                        break;
                    }
                }
            }
            kill.join().unwrap();
        });
    }
    assert!(done > 5 && lost == 12, "{done} were answered, {lost} were lost");
    assert_eq!(client.outstanding(), 0);
}
