//! Doors for the fuzz target and for tests: every decoder at once.
//!
//! Invariant: what decodes must encode to the bytes it came from.

use crate::limits::RECORD_BYTES_MAX;
use crate::{AuthSys, Body, Message, Records, rpcbind, write_record};

/// Throws bytes at every decoder; whether a message header was among them.
pub fn everything(data: &[u8]) -> bool {
    let _ = (rpcbind::truth(data), rpcbind::address(data));
    if let Ok(mapping) = rpcbind::Mapping::decode(data) {
        assert_eq!(mapping.encode(), data);
    }
    if let Some(address) = std::str::from_utf8(data).ok().and_then(rpcbind::socket_address) {
        assert_eq!(rpcbind::socket_address(&rpcbind::universal_address(address)), Some(address));
    }
    stream(data);
    let Ok((message, rest)) = Message::decode(data) else { return false };
    let mut again = message.encode();
    again.extend(rest);
    assert_eq!(again, data);
    if let Body::Call(head) = &message.body {
        if let Ok(who) = AuthSys::from_auth(&head.cred) {
            assert_eq!(who.to_auth(), head.cred);
        }
    }
    true
}

/// A stream gives the same records however it is cut, and they give such a stream.
fn stream(data: &[u8]) {
    let records = |chunk: usize| {
        let (mut records, mut all) = (Records::new(RECORD_BYTES_MAX), Vec::new());
        let ended = data.chunks(chunk).try_for_each(|bytes| records.push(bytes, |record| all.push(record)));
        (all, ended.is_ok())
    };
    let (all, ended) = records(data.len().max(1));
    assert_eq!((&all, ended), (&records(3).0, records(3).1));
    let mut written = Vec::new();
    all.iter().for_each(|record| write_record(record, 5, &mut written));
    let (mut records, mut again) = (Records::new(RECORD_BYTES_MAX), Vec::new());
    // A record of very many bytes has too many fragments of five.
    if records.push(&written, |record| again.push(record)).is_ok() {
        assert_eq!(again, all);
        assert!(!records.is_amid());
    }
}
