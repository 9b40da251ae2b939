//! The clear header every datagram starts with.
//!
//! ```text
//! 0      'V'
//! 1      version << 4 | kind
//! 2..4   slot of the session at the receiver (of a hello: at the sender)
//! 4..12  its 64-bit id
//! 12..20 packet number (of a hello: flags; of a reject: the reason)
//! ```

use super::u64_at;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 20;
/// Version of everything behind the first two bytes.
pub(crate) const VERSION: u8 = 13;
/// In the number of a hello: the sender encrypts.
pub(crate) const HELLO_SEALED: u64 = 1;

const MAGIC: u8 = b'V';

/// What a datagram is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Hello,
    Welcome,
    Reject,
    Data,
    UnknownSession,
    Retry,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Hello => 1,
            Kind::Welcome => 2,
            Kind::Reject => 3,
            Kind::Data => 4,
            Kind::UnknownSession => 5,
            Kind::Retry => 6,
        }
    }
}

/// Where a session lives in its node's table, and the id that must be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SessionRef {
    pub(crate) slot: u16,
    pub(crate) id: u64,
}

/// A checked header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) session: SessionRef,
    pub(crate) number: u64,
}

/// Why a datagram has no header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadHeader {
    /// Not ours at all.
    Malformed,
    /// A hello of another version, from this session of its sender.
    HelloVersion(SessionRef),
    /// Any other packet of another version.
    Version,
}

impl Header {
    #[inline]
    pub(crate) fn parse(datagram: &[u8]) -> Result<Header, BadHeader> {
        let (magic, code, session, number) = fields(datagram).ok_or(BadHeader::Malformed)?;
        if magic != MAGIC {
            return Err(BadHeader::Malformed);
        }
        let kind = match code & 0x0f {
            1 => Kind::Hello,
            2 => Kind::Welcome,
            3 => Kind::Reject,
            4 => Kind::Data,
            5 => Kind::UnknownSession,
            6 => Kind::Retry,
            _ => return Err(BadHeader::Malformed),
        };
        match (code >> 4, kind) {
            (VERSION, _) => Ok(Header { kind, session, number }),
            (_, Kind::Hello) => Err(BadHeader::HelloVersion(session)),
            // A rejection must be understood by every version: it says that versions differ.
            (_, Kind::Reject) => Ok(Header { kind, session, number }),
            _ => Err(BadHeader::Version),
        }
    }

    #[inline]
    pub(crate) fn write(&self, out: &mut [u8]) {
        let out: &mut [u8; HEADER_BYTES] = out.first_chunk_mut().expect("a datagram has room for its header");
        [out[0], out[1]] = [MAGIC, VERSION << 4 | self.kind.code()];
        out[2..4].copy_from_slice(&self.session.slot.to_le_bytes());
        out[4..12].copy_from_slice(&self.session.id.to_le_bytes());
        out[12..].copy_from_slice(&self.number.to_le_bytes());
    }
}

#[inline]
fn fields(datagram: &[u8]) -> Option<(u8, u8, SessionRef, u64)> {
    let header: &[u8; HEADER_BYTES] = datagram.first_chunk()?;
    let session = SessionRef { slot: u16::from_le_bytes([header[2], header[3]]), id: u64_at(header, 4) };
    Some((header[0], header[1], session, u64_at(header, 12)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let header = Header { kind: Kind::Data, session: SessionRef { slot: 3, id: 77 }, number: 1 << 40 };
        let mut bytes = [0; HEADER_BYTES];
        header.write(&mut bytes);
        assert_eq!(Header::parse(&bytes), Ok(header));
        assert_eq!(Header::parse(&bytes[..19]), Err(BadHeader::Malformed));
    }

    #[test]
    fn a_hello_of_another_version_can_be_answered() {
        let session = SessionRef { slot: 1, id: 2 };
        let mut bytes = [0; HEADER_BYTES];
        Header { kind: Kind::Hello, session, number: 0 }.write(&mut bytes);
        bytes[1] = (VERSION + 1) << 4 | 1;
        assert_eq!(Header::parse(&bytes), Err(BadHeader::HelloVersion(session)));
        bytes[1] = (VERSION + 1) << 4 | 4;
        assert_eq!(Header::parse(&bytes), Err(BadHeader::Version));
    }
}
