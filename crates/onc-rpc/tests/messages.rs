//! Messages go in and out unchanged, and wild bytes do no harm.
//!
//! Invariant: of what decodes the encoding is the same bytes. Source: RFC 5531, RFC 4506, RFC 1833.

use onc_rpc::limits::{AUTH_BYTES_MAX, FRAGMENTS_MAX};
use onc_rpc::rpcbind::Mapping;
use onc_rpc::{
    Accepted, AuthStat, AuthSys, Body, CallHeader, Decoder, Denied, Encoder, Malformed, Message, OpaqueAuth, Records,
    ReplyHeader, fuzzing, write_record,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn auth() -> impl Strategy<Value = OpaqueAuth> {
    (any::<u32>(), vec(any::<u8>(), 0..=AUTH_BYTES_MAX)).prop_map(|(flavor, body)| OpaqueAuth { flavor, body })
}

fn auth_stat() -> impl Strategy<Value = AuthStat> {
    prop_oneof![
        Just(AuthStat::BadCred),
        Just(AuthStat::RejectedCred),
        Just(AuthStat::TooWeak),
        Just(AuthStat::GssCtxProblem)
    ]
}

fn accepted() -> impl Strategy<Value = Accepted> {
    prop_oneof![
        Just(Accepted::Success),
        Just(Accepted::ProgUnavail),
        any::<(u32, u32)>().prop_map(|(low, high)| Accepted::ProgMismatch { low, high }),
        Just(Accepted::ProcUnavail),
        Just(Accepted::GarbageArgs),
        Just(Accepted::SystemErr),
    ]
}

fn body() -> impl Strategy<Value = Body> {
    let call = (any::<(u32, u32, u32)>(), auth(), auth())
        .prop_map(|((prog, vers, proc), cred, verf)| Body::Call(CallHeader { prog, vers, proc, cred, verf }));
    let accepted = (auth(), accepted()).prop_map(|(verf, status)| Body::Reply(ReplyHeader::Accepted { verf, status }));
    let denied = prop_oneof![
        any::<(u32, u32)>().prop_map(|(low, high)| Denied::RpcMismatch { low, high }),
        auth_stat().prop_map(Denied::AuthError)
    ];
    prop_oneof![call, accepted, denied.prop_map(|denied| Body::Reply(ReplyHeader::Denied(denied)))]
}

proptest! {
    #[test]
    fn messages_come_out_as_they_went_in_and_not_when_cut_off(
        xid: u32, body in body(), rest in vec(any::<u8>(), 0..20)
    ) {
        let message = Message { xid, body };
        let head = message.encode();
        let record = [&head[..], &rest].concat();
        prop_assert_eq!(Message::decode(&record), Ok((message, &rest[..])));
        prop_assert!((0..head.len()).all(|len| Message::decode(&head[..len]).is_err()));
        prop_assert!(fuzzing::everything(&record));
    }

    #[test]
    fn users_come_out_as_they_went_in(
        stamp: u32, machine in "[a-zé]{0,100}", uid: u32, gid: u32, gids in vec(any::<u32>(), 0..=16)
    ) {
        let who = AuthSys { stamp, machine, uid, gid, gids };
        let auth = who.to_auth();
        prop_assert_eq!(AuthSys::from_auth(&auth), Ok(who));
        let more = OpaqueAuth { body: [&auth.body[..], &[0; 4]].concat(), ..auth };
        prop_assert!(AuthSys::from_auth(&more).is_err());
    }

    #[test]
    fn records_come_out_whole_however_the_stream_is_cut(
        all in vec(vec(any::<u8>(), 0..300), 0..5), fragment in 1usize..100, chunk in 1usize..50
    ) {
        let mut stream = Vec::new();
        all.iter().for_each(|record| write_record(record, fragment, &mut stream));
        let (mut records, mut again) = (Records::new(300), Vec::new());
        for bytes in stream.chunks(chunk) {
            records.push(bytes, |record| again.push(record)).unwrap();
        }
        prop_assert_eq!(again, all);
        prop_assert!(!records.is_amid());
    }

    #[test]
    fn mappings_come_out_as_they_went_in(prog: u32, vers: u32, netid in "[a-z6]{0,9}", address in "[0-9.:]{0,40}") {
        let mapping = Mapping { prog, vers, netid, address, owner: "superuser".into() };
        prop_assert_eq!(Mapping::decode(&mapping.encode()), Ok(mapping));
    }

    #[test]
    fn wild_bytes_are_refused_or_encode_to_themselves(data in vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..200)) {
        fuzzing::everything(&data);
    }

    #[test]
    fn wild_calls_and_replies_are_refused_or_encode_to_themselves(
        kind in 0u32..2, words in vec(prop_oneof![0u32..8, any::<u32>()], 0..30)
    ) {
        let mut out = Encoder::new();
        out.u32(7).u32(kind).u32(if kind == 0 { 2 } else { words.len() as u32 % 3 });
        words.iter().for_each(|word| _ = out.u32(*word));
        fuzzing::everything(&out.into_bytes());
    }
}

#[test]
fn a_call_of_another_version_of_rpc_says_so() {
    let mut out = Encoder::new();
    out.u32(9).u32(0).u32(3);
    assert_eq!(Message::decode(&out.into_bytes()), Err(Malformed::RpcVersion { xid: 9, version: 3 }));
}

#[test]
fn a_stream_keeps_no_more_than_a_record_may_have() {
    let mut records = Records::new(100);
    // The length is a claim: nothing is reserved for it, and it ends the stream at once.
    let long = records.push(&u32::to_be_bytes(1 << 31 | 101), |_| panic!("no record"));
    assert_eq!(long, Err(Malformed::TooLong { what: "record", len: 101, max: 100 }));
    let mut records = Records::new(100);
    let empty = vec![0; 4 * (FRAGMENTS_MAX + 1)];
    assert!(matches!(records.push(&empty, |_| ()), Err(Malformed::TooLong { .. })));
}

#[test]
fn credentials_that_are_too_long_are_refused() {
    let mut out = Encoder::new();
    out.u32(9).u32(0).u32(2).u32(1).u32(1).u32(1).u32(0).counted(&[0; AUTH_BYTES_MAX + 1]);
    let refused = Message::decode(&out.into_bytes()).map(drop);
    assert_eq!(refused, Err(Malformed::TooLong { what: "credential", len: 401, max: 400 }));
    let mut from = Decoder::new(&[0, 0, 0, 1, b'x', 0, 1, 0]);
    assert!(matches!(from.counted("text", 8), Err(Malformed::Value { .. })), "fill bytes are zeros");
}
