//! How records of ONC RPC go as remote calls.
//!
//! ```text
//!   HELLO   version   → version, longest record, key
//!   CONFIRM key       →
//!   RECORD  record    → record
//! ```
//!
//! The key goes to the endpoint that answers go to. So who confirms it is the user of that one.
//! Numbers are little endian, of 4 bytes. Invariant: decoding takes any bytes, panics never, and
//! gives only what makes sense. Source: [GMS §3], RFC 5531.

/// Version of all this; both sides are of one.
pub(crate) const VERSION: u32 = 1;

pub(crate) const HELLO: u16 = 1;
pub(crate) const CONFIRM: u16 = 2;
pub(crate) const RECORD: u16 = 3;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_nothing_that_is_cut_off() {
        let welcome = Welcome { version: 1, record_max: 2, key: [3; 16] };
        let bytes = welcome.encode();
        assert_eq!(Welcome::decode(&bytes), Some(welcome));
        assert!((0..bytes.len()).all(|len| Welcome::decode(&bytes[..len]).is_none()));
        assert_eq!(service_name(0x2000_0099, 1), "onc.0x20000099.1");
    }
}
