//! What members say to each other: control messages of endpoints.
//!
//! ```text
//!   0 kind   2 rank   4 context or id   8 tag, length or count   16 ..
//! ```
//!
//! Invariant: decoding never panics, whatever a member writes, and gives nothing but what encodes
//! to the same bytes; all that it gives is a claim. Source: [GMS §2] control messages.

use crate::limits::{ABORT_TEXT_BYTES_MAX, INLINE_BYTES_MAX};
use vmmc::PayloadToken;
use vmmc::limits::CONTROL_MESSAGE_BYTES_MAX;

/// Of what is written here. Members of one job have one release; those that were started apart may
/// not. Since 2 the first member of a group gives the number of a new one.
pub const VERSION: u32 = 2;
/// Bytes before the data of a short message.
pub const HEAD_BYTES: usize = 16;

/// Kind of [`Said::Eager`].
const EAGER: u64 = 2;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// First message of a connection: who it is from.
    Hello {
        /// See [`VERSION`].
        version: u32,
    },
    /// A message that goes at once: short ones here, longer ones in the payload.
    Eager {
        /// Of its envelope.
        context: u32,
        /// Of its envelope.
        tag: u64,
        /// The message, if it is short.
        inline: &'a [u8],
    },
    /// A message that asks for its place.
    Ask {
        /// Of its envelope.
        context: u32,
        /// Of its envelope.
        tag: u64,
        /// Number of the send, at its sender.
        send: u32,
        /// Bytes.
        len: u64,
    },
    /// Where a part of such a message goes.
    Go {
        /// Number of the send, at its sender.
        send: u32,
        /// Number of the receive.
        receive: u32,
        /// First byte of the part.
        offset: u64,
        /// Bytes of the part.
        len: u64,
        /// Where it goes.
        token: PayloadToken,
    },
    /// A part, which went by token.
    Part {
        /// Number of the receive.
        receive: u32,
        /// First byte of the part.
        offset: u64,
    },
    /// Nothing more is wanted of a message that has asked.
    Over {
        /// Number of the send, at its sender.
        send: u32,
    },
    /// The sender does not want to send any more what it has asked for.
    Withdraw {
        /// Number of the send.
        send: u32,
        /// Its buffer is gone: a receive that has taken it has no use.
        forced: bool,
    },
    /// Whether that came before a receive.
    Withdrawn {
        /// Number of the send, at its sender.
        send: u32,
        /// It did.
        was: bool,
    },
    /// What was received so far of what went at once.
    Taken {
        /// Bytes, and what messages cost beside them.
        total: u64,
    },
    /// The member says goodbye.
    Bye,
    /// A member ends all.
    Abort {
        /// Who: this one, or one that it has heard it of.
        of: u16,
        /// For the shell.
        code: i32,
        /// Why.
        text: &'a [u8],
    },
}

/// Bytes of a control message.
pub struct Encoded {
    bytes: [u8; CONTROL_MESSAGE_BYTES_MAX],
    len: usize,
}

impl Encoded {
    /// As they are sent.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline]
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&bytes);
    }

    /// What stands behind the head; at most [`INLINE_BYTES_MAX`] bytes.
    #[inline]
    fn tail(&mut self, bytes: &[u8]) {
        self.bytes[HEAD_BYTES..HEAD_BYTES + bytes.len()].copy_from_slice(bytes);
        self.len = HEAD_BYTES + bytes.len();
    }
}

/// Head of [`Said::Eager`], behind which the message stands if it is short.
#[inline]
pub fn eager(rank: u32, context: u32, tag: u64) -> [u8; HEAD_BYTES] {
    let first = EAGER | u64::from(rank as u16) << 16 | u64::from(context) << 32;
    (u128::from(first) | u128::from(tag) << 64).to_le_bytes()
}

/// Who says so, the context and the tag of a message whose bytes stand behind this head, so many.
/// None: it is no [`Said::Eager`].
#[inline]
pub fn eager_of(head: &[u8; HEAD_BYTES], len: usize) -> Option<(u32, u32, u64)> {
    let both = u128::from_le_bytes(*head);
    let (first, tag) = (both as u64, (both >> 64) as u64);
    let is_one = first as u16 == EAGER as u16 && len <= INLINE_BYTES_MAX;
    is_one.then_some(((first >> 16) as u16 as u32, (first >> 32) as u32, tag))
}

impl Said<'_> {
    /// As it is sent by this rank. What stands inline must fit.
    #[inline]
    pub fn encode(&self, rank: u32) -> Encoded {
        let mut out = Encoded { bytes: [0; CONTROL_MESSAGE_BYTES_MAX], len: HEAD_BYTES };
        out.put(2, (rank as u16).to_le_bytes());
        let mut head = |kind: u8, word: u32, long: u64| {
            out.bytes[0] = kind;
            out.put(4, word.to_le_bytes());
            out.put(8, long.to_le_bytes());
        };
        match *self {
            Said::Hello { version } => head(1, version, 0),
            Said::Eager { context, tag, inline } => {
                head(EAGER as u8, context, tag);
                out.tail(inline);
            }
            Said::Ask { context, tag, send, len } => {
                head(3, context, tag);
                out.put(16, len.to_le_bytes());
                out.put(24, send.to_le_bytes());
                out.len = 28;
            }
            Said::Go { send, receive, offset, len, token } => {
                head(4, send, offset);
                out.put(16, len.to_le_bytes());
                out.put(24, receive.to_le_bytes());
                out.put(28, token.to_bytes());
                out.len = 28 + PayloadToken::BYTES;
            }
            Said::Part { receive, offset } => head(5, receive, offset),
            Said::Over { send } => head(6, send, 0),
            Said::Withdraw { send, forced } => head(7, send, forced.into()),
            Said::Withdrawn { send, was } => head(8, send, was.into()),
            Said::Taken { total } => head(9, 0, total),
            Said::Bye => head(10, 0, 0),
            Said::Abort { of, code, text } => {
                head(11, code as u32, of.into());
                out.tail(text);
            }
        }
        out
    }

    /// Who says so, and what. None: it makes no sense.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<(u32, Said<'_>)> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        if head[1] != 0 {
            return None;
        }
        let rank = u16::from_le_bytes([head[2], head[3]]).into();
        let word = u32::from_le_bytes(std::array::from_fn(|i| head[4 + i]));
        let long = u64::from_le_bytes(std::array::from_fn(|i| head[8 + i]));
        let said = match (head[0], long, rest.len()) {
            (1, 0, 0) => Said::Hello { version: word },
            (2, tag, len) if len <= INLINE_BYTES_MAX => Said::Eager { context: word, tag, inline: rest },
            (3, tag, 12) => Said::Ask { context: word, tag, len: u64_at(rest, 0), send: u32_at(rest, 8) },
            (4, offset, len) if len == 12 + PayloadToken::BYTES => {
                let token = PayloadToken::from_bytes(&std::array::from_fn(|i| rest[12 + i]));
                Said::Go { send: word, receive: u32_at(rest, 8), offset, len: u64_at(rest, 0), token }
            }
            (5, offset, 0) => Said::Part { receive: word, offset },
            (6, 0, 0) => Said::Over { send: word },
            (7, 0 | 1, 0) => Said::Withdraw { send: word, forced: long == 1 },
            (8, 0 | 1, 0) => Said::Withdrawn { send: word, was: long == 1 },
            (9, total, 0) if word == 0 => Said::Taken { total },
            (10, 0, 0) if word == 0 => Said::Bye,
            (11, of, len) if len <= ABORT_TEXT_BYTES_MAX && of <= u16::MAX.into() => {
                Said::Abort { of: of as u16, code: word as i32, text: rest }
            }
            _ => return None,
        };
        Some((rank, said))
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vmmc::ExportId;

    fn all(inline: &[u8]) -> Vec<Said<'_>> {
        let token = PayloadToken { table: ExportId::from_u64(7), index: 8, key: 9 };
        vec![
            Said::Hello { version: VERSION },
            Said::Eager { context: 3, tag: u64::MAX, inline },
            Said::Ask { context: 3, tag: 4, send: 5, len: 1 << 40 },
            Said::Go { send: 1, receive: 2, offset: 3, len: 4, token },
            Said::Part { receive: 9, offset: 1 << 33 },
            Said::Over { send: 1 },
            Said::Withdraw { send: 2, forced: true },
            Said::Withdrawn { send: 3, was: true },
            Said::Taken { total: 1 << 50 },
            Said::Bye,
            Said::Abort { of: 1000, code: -3, text: inline },
        ]
    }

    #[test]
    fn what_is_said_is_understood() {
        for inline in [&b""[..], b"12345678", &[7; INLINE_BYTES_MAX]] {
            for said in all(inline) {
                assert_eq!(Said::decode(said.encode(1023).bytes()), Some((1023, said)));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_nothing_or_just_what_encodes_to_them(
            kind in 0..13u8,
            mut bytes in proptest::collection::vec(any::<u8>(), 0..=CONTROL_MESSAGE_BYTES_MAX),
            plain in any::<bool>(),
        ) {
            if plain && bytes.len() >= HEAD_BYTES {
                (bytes[0], bytes[1]) = (kind, 0);
                bytes[8..16].fill(0);
            }
            if let Some((head, inline)) = bytes.split_first_chunk() {
                let eager = match Said::decode(&bytes) {
                    Some((rank, Said::Eager { context, tag, .. })) => Some((rank, context, tag)),
                    _ => None,
                };
                prop_assert_eq!(eager_of(head, inline.len()), eager);
                if let Some((rank, context, tag)) = eager {
                    prop_assert_eq!(&super::eager(rank, context, tag), head);
                }
            }
            if let Some((rank, said)) = Said::decode(&bytes) {
                let encoded = said.encode(rank);
                prop_assert_eq!(encoded.bytes(), &bytes[..]);
            }
        }
    }
}
