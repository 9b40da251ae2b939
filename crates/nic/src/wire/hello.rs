//! What two engines tell each other in the handshake.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::packet::SessionRef;
use super::{Reader, Writer};
use crate::cipher::{Cipher, Offer};
use crate::error::RejectReason;
use crate::ids::NodeName;
use crate::limits::{LISTEN_ADDRESSES_MAX, PACKET_BYTES_MAX, PACKET_BYTES_MIN};

/// Room for the largest introduction or welcome.
pub(crate) const HELLO_BYTES_MAX: usize = 256;

/// One side's introduction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Introduction {
    pub(crate) name: NodeName,
    /// Differs between two lives of one node.
    pub(crate) incarnation: u64,
    /// Bytes that may be under way to this side.
    pub(crate) budget_bytes: u32,
    /// Largest datagram this side takes.
    pub(crate) packet_bytes_max: u32,
    /// Further addresses of this side.
    pub(crate) listen: Vec<SocketAddr>,
    /// Its driver takes messages.
    pub(crate) messages: bool,
    /// What it can seal packets with; nothing in plain mode.
    pub(crate) ciphers: Offer,
}

/// Bit of an introduction's last byte.
const TAKES_MESSAGES: u8 = 1;
/// The bits above it: ciphers.
const CIPHERS_AT: u32 = 1;

impl Introduction {
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.short_text(self.name.as_str());
        out.u64(self.incarnation);
        out.u32(self.budget_bytes);
        out.u32(self.packet_bytes_max);
        out.u8(self.listen.len().min(LISTEN_ADDRESSES_MAX) as u8);
        for addr in self.listen.iter().take(LISTEN_ADDRESSES_MAX) {
            write_addr(addr, out);
        }
        out.u8((u8::from(self.messages) * TAKES_MESSAGES) | (self.ciphers.0 << CIPHERS_AT));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Introduction> {
        let name = NodeName::parse(reader.short_text()?).ok()?;
        let incarnation = reader.u64()?;
        let budget_bytes = reader.u32()?;
        let packet_bytes_max = reader.u32()?;
        if packet_bytes_max < PACKET_BYTES_MIN as u32 || budget_bytes < PACKET_BYTES_MIN as u32 {
            return None;
        }
        let count = usize::from(reader.u8()?);
        if count > LISTEN_ADDRESSES_MAX {
            return None;
        }
        let listen = (0..count).map(|_| read_addr(reader)).collect::<Option<Vec<_>>>()?;
        let packet_bytes_max = packet_bytes_max.min(PACKET_BYTES_MAX as u32);
        let flags = reader.u8()?;
        let (messages, ciphers) = (flags & TAKES_MESSAGES != 0, Offer(flags >> CIPHERS_AT));
        Some(Introduction { name, incarnation, budget_bytes, packet_bytes_max, listen, messages, ciphers })
    }
}

/// Answer to a hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Welcome {
    Accept {
        /// The new session at the responder.
        session: SessionRef,
        /// The session the responder has with the initiator already; id 0: none.
        current: SessionRef,
        /// What both sides seal packets with; none in plain mode.
        cipher: Option<Cipher>,
        introduction: Introduction,
    },
    Refuse(RejectReason),
}

impl Welcome {
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        match self {
            Welcome::Accept { session, current, cipher, introduction } => {
                out.u8(0);
                for reference in [session, current] {
                    out.u16(reference.slot);
                    out.u64(reference.id);
                }
                out.u8(cipher.map_or(0, Cipher::code));
                introduction.write(out);
            }
            Welcome::Refuse(reason) => {
                out.u8(1);
                out.u16(reason.code());
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Welcome> {
        Some(match reader.u8()? {
            0 => Welcome::Accept {
                session: SessionRef { slot: reader.u16()?, id: reader.u64()? },
                current: SessionRef { slot: reader.u16()?, id: reader.u64()? },
                cipher: match reader.u8()? {
                    0 => None,
                    code => Some(Cipher::from_code(code)?),
                },
                introduction: Introduction::read(reader)?,
            },
            1 => Welcome::Refuse(RejectReason::from_code(reader.u16()?)?),
            _ => return None,
        })
    }
}

fn write_addr(addr: &SocketAddr, out: &mut Writer<'_>) {
    match addr.ip() {
        IpAddr::V4(ip) => {
            out.u8(4);
            out.bytes(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.u8(6);
            out.bytes(&ip.octets());
        }
    }
    out.u16(addr.port());
}

fn read_addr(reader: &mut Reader<'_>) -> Option<SocketAddr> {
    let ip = match reader.u8()? {
        4 => IpAddr::V4(Ipv4Addr::from(u32::from_be_bytes(reader.bytes(4)?.try_into().ok()?))),
        6 => IpAddr::V6(Ipv6Addr::from(u128::from_be_bytes(reader.bytes(16)?.try_into().ok()?))),
        _ => return None,
    };
    Some(SocketAddr::new(ip, reader.u16()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduction() -> Introduction {
        Introduction {
            name: NodeName::parse(&"n".repeat(63)).expect("63 letters are a name"),
            incarnation: 5,
            budget_bytes: 1 << 20,
            packet_bytes_max: 1_472,
            listen: vec!["[2001:db8::1]:9".parse().expect("an address"); LISTEN_ADDRESSES_MAX],
            messages: true,
            ciphers: Offer(3),
        }
    }

    #[test]
    fn the_largest_welcome_fits_and_survives() {
        let welcome = Welcome::Accept {
            session: SessionRef { slot: 1, id: 2 },
            current: SessionRef::default(),
            cipher: Some(Cipher::Aes256Gcm),
            introduction: introduction(),
        };
        let mut buf = [0; HELLO_BYTES_MAX];
        let mut writer = Writer::new(&mut buf);
        welcome.write(&mut writer);
        let len = writer.len();
        assert_eq!(Welcome::read(&mut Reader::new(&buf[..len])), Some(welcome));
        for cut in 0..len {
            assert_eq!(Welcome::read(&mut Reader::new(&buf[..cut])), None);
        }
    }
}
