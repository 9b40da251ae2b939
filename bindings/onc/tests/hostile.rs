//! Callers that send what they like.
//!
//! Invariant: whatever one sends costs it its own calls; an honest caller is served meanwhile.

mod common;

use common::{LONG, Nodes};
use onc_rpc::{AuthSys, Body, CallHeader, Denied, Message, OpaqueAuth, ReplyHeader};
use std::sync::atomic::{AtomicBool, Ordering};
use vmmc::{Access, Session};
use vmmc_onc::limits::RECORD_BYTES_MAX;
use vmmc_onc::{ClientOptions, OncClient, OncCounts, OncError, OncServer, service_name};
use vmmc_rpc::{Client, RpcError};

const PROG: u32 = 0x2000_0100;
const HELLO: u16 = 1;
const CONFIRM: u16 = 2;
const RECORD: u16 = 3;

/// Serves echoes while `with` runs; gives what was counted.
fn served(with: impl FnOnce(&Session)) -> OncCounts {
    let nodes = Nodes::start(1);
    let (session, over) = (nodes.attach(0), AtomicBool::new(false));
    let mut server = OncServer::create(&session, PROG, 1, Access::SameUser).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                use rustix::event::{PollFd, PollFlags, Timespec, poll};
                let short = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                poll(&mut [PollFd::new(&server.event_fd(), PollFlags::IN)], Some(&short)).unwrap();
                while let Some(call) = server.poll().unwrap() {
                    let reply = call.record.clone();
                    server.reply(call, &reply);
                }
            }
            server.counts()
        });
        let with = std::panic::AssertUnwindSafe(|| with(&nodes.attach(0)));
        let ended = std::panic::catch_unwind(with);
        over.store(true, Ordering::Relaxed);
        let counts = serving.join().unwrap();
        ended.unwrap_or_else(|why| std::panic::resume_unwind(why));
        counts
    })
}

fn caller(session: &Session) -> Client {
    let builder = Client::new(session, &service_name(PROG, 1)).frames(2, 64 << 10).timeout(LONG);
    builder.connect().unwrap()
}

/// One that has shown who it is.
fn proved(session: &Session) -> Client {
    let client = caller(session);
    let welcome = client.call(HELLO, &1u32.to_le_bytes()).unwrap();
    client.call(CONFIRM, &welcome[8..]).unwrap();
    client
}

fn record(cred: OpaqueAuth, len: usize) -> Vec<u8> {
    let head = CallHeader { prog: PROG, vers: 1, proc: 1, cred, verf: OpaqueAuth::none() };
    let mut record = Message { xid: 9, body: Body::Call(head) }.encode();
    record.resize(record.len().max(len), 7);
    record
}

fn own_user(uid: u32) -> OpaqueAuth {
    AuthSys { stamp: 0, machine: "m".into(), uid, gid: 0, gids: vec![] }.to_auth()
}

#[test]
fn a_caller_that_has_not_shown_who_it_is_calls_nothing() {
    let counts = served(|session| {
        let client = caller(session);
        let whole = record(OpaqueAuth::none(), 0);
        let refused = |method, bytes: &[u8]| {
            let error = client.call(method, bytes).unwrap_err();
            assert!(matches!(error, RpcError::BadArguments { .. }), "{error}");
        };
        refused(RECORD, &whole);
        refused(CONFIRM, &[0; 16]);
        client.call(HELLO, &1u32.to_le_bytes()).unwrap();
        refused(CONFIRM, &[0; 16]);
        refused(RECORD, &whole);
        // Another one's key is none of its.
        let other = caller(session).call(HELLO, &1u32.to_le_bytes()).unwrap();
        refused(CONFIRM, &other[8..]);
        refused(RECORD, &whole);
    });
    assert_eq!((counts.calls, counts.misbehaved), (0, 6));
}

#[test]
fn an_honest_caller_is_served_while_others_send_random_records() {
    let counts = served(|session| {
        let honest = OncClient::open(session, PROG, 1, &ClientOptions::default()).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 1..=3u64 {
                let over = &over;
                scope.spawn(move || {
                    let client = proved(session);
                    let mut random = seed;
                    let mut next = || {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (random >> 33) as usize
                    };
                    while !over.load(Ordering::Relaxed) {
                        let mut bytes: Vec<u8> = (0..next() % 300).map(|_| next() as u8).collect();
                        // Some begin as calls do.
                        let len = bytes.len().min(24);
                        if next() % 2 == 0 {
                            bytes[..len].copy_from_slice(&record(own_user(next() as u32 % 3), 0)[..len]);
                        }
                        let method = next() as u16 % 8;
                        let _ = client.request(method).arguments(&bytes).timeout(LONG).call();
                    }
                });
            }
            let whole = record(OpaqueAuth::none(), 0);
            let long = record(OpaqueAuth::none(), 200_000);
            for _ in 0..100 {
                assert_eq!(honest.call(&whole, LONG).unwrap(), whole);
                assert_eq!(honest.call(&long, LONG).unwrap(), long);
            }
            over.store(true, Ordering::Relaxed);
        });
    });
    assert!(counts.calls >= 200 && counts.misbehaved > 10, "{counts:?}");
}

#[test]
fn the_longest_record_is_a_call_and_a_longer_one_is_not_sent() {
    let counts = served(|session| {
        let honest = OncClient::open(session, PROG, 1, &ClientOptions::default()).unwrap();
        let long = record(own_user(current_uid()), RECORD_BYTES_MAX);
        assert!(honest.call(&long, LONG).unwrap() == long);
        let error = honest.call(&[long, vec![7]].concat(), LONG).unwrap_err();
        assert!(matches!(error, OncError::TooLong { .. }), "{error}");
    });
    assert_eq!((counts.calls, counts.misbehaved), (1, 0));
}

#[test]
fn a_claim_to_be_another_user_is_denied() {
    let counts = served(|session| {
        let honest = OncClient::open(session, PROG, 1, &ClientOptions::default()).unwrap();
        let claim = record(own_user(current_uid() + 1), 0);
        let (reply, _) = Message::decode(&honest.call(&claim, LONG).unwrap()).map(|(m, rest)| (m, rest.len())).unwrap();
        let why = ReplyHeader::Denied(Denied::AuthError(onc_rpc::AuthStat::BadCred));
        assert_eq!(reply, Message { xid: 9, body: Body::Reply(why) });
    });
    assert_eq!((counts.calls, counts.bad_credentials), (0, 1));
}

fn current_uid() -> u32 {
    rustix::process::getuid().as_raw()
}
