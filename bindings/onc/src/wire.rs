//! How records of ONC RPC go as remote calls.
//!
//! ```text
//!   HELLO   version            → version, longest record, key     the key goes to the caller's own endpoint
//!   CONFIRM key                →                                  so this is the user whose endpoint that is
//!   RECORD  record             → result
//!   PART    offset, bytes      →                                  of a long record, in order
//!   LAST    offset, bytes      → result
//!   MORE    offset             → bytes                            of a long result
//!   result: 0, record   or   1, bytes of all of it, first bytes
//! ```
//!
//! Numbers are little endian, of 4 bytes. Invariant: decoding takes any bytes, panics never, and
//! gives only what makes sense. Source: [GMS §3], RFC 5531.

/// Version of all this; both sides are of one.
pub(crate) const VERSION: u32 = 1;

pub(crate) const HELLO: u16 = 1;
pub(crate) const CONFIRM: u16 = 2;
pub(crate) const RECORD: u16 = 3;
pub(crate) const PART: u16 = 4;
pub(crate) const LAST: u16 = 5;
pub(crate) const MORE: u16 = 6;

/// What proves that a caller reads the endpoint that answers go to.
pub(crate) type Key = [u8; 16];

/// Name of the service of a program.
pub fn service_name(prog: u32, vers: u32) -> String {
    format!("onc.{prog:#010x}.{vers}")
}

/// The server's answer to a caller that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) version: u32,
    pub(crate) record_max: u32,
    pub(crate) key: Key,
}

impl Welcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.version.to_le_bytes()[..], &self.record_max.to_le_bytes(), &self.key].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Welcome> {
        let (version, rest) = number(bytes)?;
        let (record_max, rest) = number(rest)?;
        Some(Welcome { version, record_max, key: rest.try_into().ok()? })
    }
}

/// A number, and what is behind it.
pub(crate) fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (first, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*first), rest))
}

/// A piece of a record, by its offset.
pub(crate) fn piece(offset: usize, bytes: &[u8]) -> Vec<u8> {
    [&(offset as u32).to_le_bytes()[..], bytes].concat()
}

/// What came of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came<'a> {
    /// The reply.
    Whole(&'a [u8]),
    /// The first bytes of a reply of so many.
    Begins(usize, &'a [u8]),
}

impl<'a> Came<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Came::Whole(record) => [&[0], *record].concat(),
            Came::Begins(total, first) => [&[1][..], &(*total as u32).to_le_bytes(), first].concat(),
        }
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Came<'a>> {
        match bytes.split_first()? {
            (0, record) => Some(Came::Whole(record)),
            (1, rest) => {
                let (total, first) = number(rest)?;
                let total = total as usize;
                (total > first.len()).then_some(Came::Begins(total, first))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_nothing_that_is_cut_off() {
        let welcome = Welcome { version: 1, record_max: 2, key: [3; 16] };
        let bytes = welcome.encode();
        assert_eq!(Welcome::decode(&bytes), Some(welcome));
        assert!((0..bytes.len()).all(|len| Welcome::decode(&bytes[..len]).is_none()));
        for came in [Came::Whole(b""), Came::Whole(b"record"), Came::Begins(7, b"begin")] {
            assert_eq!(Came::decode(&came.encode()), Some(came));
        }
        for bad in [&b""[..], &[2, 1], &[1, 0, 0], &[1, 1, 0, 0, 0, 9]] {
            assert_eq!(Came::decode(bad), None, "{bad:?}");
        }
        assert_eq!(number(&piece(258, b"x")), Some((258, &b"x"[..])));
        assert_eq!(service_name(0x2000_0099, 1), "onc.0x20000099.1");
    }
}
