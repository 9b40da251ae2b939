//! Messages between callers and servers, as the control messages of an endpoint.
//!
//! Arguments and results that fit stand behind the head; longer ones are the payload. Numbers are
//! little endian.
//!
//! Invariant: decoding takes any bytes, panics never, and gives only what makes sense.
//! Source: [GMS §3] reply tokens, operation codes.

use std::time::Duration;
use vmmc::PayloadToken;

/// Version of all this; both sides are of one.
pub(crate) const VERSION: u16 = 2;
/// Bytes of a control message.
const CONTROL_BYTES: usize = 128;

/// Names a call among those of its caller, who alone can guess none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CallId {
    pub(crate) index: u32,
    pub(crate) key: u64,
}

/// Where the answer goes: an endpoint of the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    /// Name of its node.
    pub(crate) node: String,
    pub(crate) endpoint: String,
    /// User of the caller, as it says.
    pub(crate) uid: u32,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// With a result.
    Done = 0,
    /// The handler says that it failed, and how.
    Failed = 1,
    /// The server has no such method.
    NoMethod = 2,
    /// Its queue is full.
    Busy = 3,
    /// The time was over before a handler began.
    Late = 4,
    /// The caller withdrew it before a handler began.
    Cancelled = 5,
    /// The arguments are none of that method.
    BadArguments = 6,
    /// The handler panicked.
    Panicked = 7,
    /// The server it was passed on to has died, perhaps after it was done.
    DelegateLost = 8,
    /// The handler let go of it without an answer.
    Unanswered = 9,
    /// The result does not fit.
    ResultTooLong = 10,
}

impl Status {
    const ALL: [Status; 11] = [
        Status::Done,
        Status::Failed,
        Status::NoMethod,
        Status::Busy,
        Status::Late,
        Status::Cancelled,
        Status::BadArguments,
        Status::Panicked,
        Status::DelegateLost,
        Status::Unanswered,
        Status::ResultTooLong,
    ];

    fn of_code(code: u8) -> Option<Status> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// The head of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) id: CallId,
    pub(crate) method: u16,
    /// Time that is left.
    pub(crate) left: Duration,
    /// For a bulk result.
    pub(crate) token: Option<PayloadToken>,
    /// Of the body, how many bytes are arguments; the rest is bulk.
    pub(crate) arguments: u32,
}

/// What a control message says; what it does not hold of a body is in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// A caller begins: where its answers go. The node is known by who sent it.
    Hello { version: u16, uid: u32, endpoint: &'a str },
    /// The answer to it.
    Welcome { version: u16 },
    /// A piece of a body that is too long for one message: the next message of this call goes on
    /// with it.
    Part { id: CallId },
    /// A call of who sends it.
    Request { head: Request, body: &'a [u8] },
    /// A call that is passed on; the payload begins with an [`Origin`].
    Forward { head: Request },
    /// The caller does not want the answer any more; the payload may be an [`Origin`].
    Cancel { id: CallId },
    /// How a call ended.
    Answer { id: CallId, status: Status, body: &'a [u8] },
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REQUEST: u8 = 3;
const FORWARD: u8 = 4;
const CANCEL: u8 = 5;
const ANSWER: u8 = 6;
const PART: u8 = 7;

const REQUEST_BYTES: usize = 1 + 1 + 2 + 4 + 4 + 12;
const ANSWER_BYTES: usize = 1 + 1 + 12;

impl Request {
    /// Bytes of arguments and bulk that go without a payload.
    pub(crate) fn inline_bytes_max(&self) -> usize {
        CONTROL_BYTES - REQUEST_BYTES - self.token.map_or(0, |_| PayloadToken::BYTES)
    }
}

/// Bytes of a result that go without a payload.
pub(crate) const ANSWER_INLINE_BYTES_MAX: usize = CONTROL_BYTES - ANSWER_BYTES;

/// A control message as it goes out.
pub(crate) struct Encoded {
    bytes: [u8; CONTROL_BYTES],
    len: usize,
}

impl Default for Encoded {
    #[inline(always)]
    fn default() -> Self {
        Encoded { bytes: [0; CONTROL_BYTES], len: 0 }
    }
}

impl Encoded {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl Message<'_> {
    /// # Panics
    /// If a body does not fit: the caller compares with the bytes that do.
    #[inline(always)]
    pub(crate) fn encode(&self) -> Encoded {
        let mut out = Encoded::default();
        self.encode_into(&mut out);
        out
    }

    /// The same, into one that is empty, which then is not moved.
    ///
    /// # Panics
    /// As for [`encode`](Self::encode).
    #[inline(always)] // callers know which message it is
    pub(crate) fn encode_into(&self, out: &mut Encoded) {
        match self {
            Message::Hello { version, uid, endpoint } => {
                out.put(&[HELLO]);
                out.put(&version.to_le_bytes());
                out.put(&uid.to_le_bytes());
                out.put(endpoint.as_bytes());
            }
            Message::Welcome { version } => {
                out.put(&[WELCOME]);
                out.put(&version.to_le_bytes());
            }
            Message::Request { head, body } => {
                put_request(REQUEST, head, out);
                out.put(body);
            }
            Message::Forward { head } => put_request(FORWARD, head, out),
            Message::Cancel { id } => {
                out.put(&[CANCEL]);
                put_id(*id, out);
            }
            Message::Part { id } => {
                out.put(&[PART]);
                put_id(*id, out);
            }
            Message::Answer { id, status, body } => {
                out.put(&[ANSWER, *status as u8]);
                put_id(*id, out);
                out.put(body);
            }
        }
    }

    /// None: it makes no sense.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message<'_>> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            HELLO => {
                let (version, uid) = (reader.u16()?, reader.u32()?);
                let endpoint = std::str::from_utf8(reader.rest()).ok().filter(|name| !name.is_empty())?;
                return Some(Message::Hello { version, uid, endpoint });
            }
            WELCOME => Message::Welcome { version: reader.u16()? },
            REQUEST => {
                let head = reader.request()?;
                return Some(Message::Request { head, body: reader.rest() });
            }
            FORWARD => Message::Forward { head: reader.request()? },
            CANCEL => Message::Cancel { id: reader.id()? },
            PART => Message::Part { id: reader.id()? },
            ANSWER => {
                let (status, id) = (Status::of_code(reader.u8()?)?, reader.id()?);
                return Some(Message::Answer { id, status, body: reader.rest() });
            }
            _ => return None,
        };
        reader.0.is_empty().then_some(message)
    }
}

#[inline(always)]
fn put_id(id: CallId, out: &mut Encoded) {
    out.put(&id.index.to_le_bytes());
    out.put(&id.key.to_le_bytes());
}

#[inline(always)]
fn put_request(kind: u8, head: &Request, out: &mut Encoded) {
    let left_us = u32::try_from(head.left.as_micros()).unwrap_or(u32::MAX);
    out.put(&[kind, head.token.is_some().into()]);
    out.put(&head.method.to_le_bytes());
    out.put(&left_us.to_le_bytes());
    out.put(&head.arguments.to_le_bytes());
    put_id(head.id, out);
    if let Some(token) = head.token {
        out.put(&token.to_bytes());
    }
}

impl Origin {
    /// As it stands before the arguments of a call that is passed on.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.uid.to_le_bytes().to_vec();
        for text in [&self.node, &self.endpoint] {
            out.push(text.len() as u8);
            out.extend(text.as_bytes());
        }
        out
    }

    /// Takes one, and gives what is behind it. None: it makes no sense.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Origin, &[u8])> {
        let mut reader = Reader(bytes);
        let uid = reader.u32()?;
        let (node, endpoint) = (reader.text()?, reader.text()?);
        Some((Origin { node, endpoint, uid }, reader.0))
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::from(self.u8()?);
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(std::str::from_utf8(text).ok().filter(|text| !text.is_empty())?.to_owned())
    }

    fn id(&mut self) -> Option<CallId> {
        Some(CallId { index: self.u32()?, key: self.take().map(u64::from_le_bytes)? })
    }

    fn request(&mut self) -> Option<Request> {
        let with_token = match self.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (method, left_us, arguments, id) = (self.u16()?, self.u32()?, self.u32()?, self.id()?);
        let token = if with_token { Some(PayloadToken::from_bytes(&self.take()?)) } else { None };
        Some(Request { id, method, left: Duration::from_micros(left_us.into()), token, arguments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmmc::ExportId;

    fn messages(token: Option<PayloadToken>) -> [Message<'static>; 7] {
        let id = CallId { index: 7, key: 8 << 60 };
        let head = Request { id, method: 9, left: Duration::from_micros(10), token, arguments: 3 };
        [
            Message::Hello { version: 2, uid: 1000, endpoint: "rpc-0123" },
            Message::Welcome { version: 3 },
            Message::Request { head, body: b"body" },
            Message::Forward { head },
            Message::Cancel { id },
            Message::Part { id },
            Message::Answer { id, status: Status::Late, body: b"no" },
        ]
    }

    #[test]
    fn messages_come_out_as_they_went_in_and_not_when_cut_off() {
        let token = PayloadToken { table: ExportId { slot: 1, generation: 2 }, index: 3, key: 4 };
        for message in [messages(None), messages(Some(token))].iter().flatten() {
            let encoded = message.encode();
            assert_eq!(Message::decode(encoded.bytes()).as_ref(), Some(message));
            let head = match message {
                Message::Request { body, .. } | Message::Answer { body, .. } => encoded.bytes().len() - body.len(),
                Message::Hello { .. } => 8,
                _ => encoded.bytes().len(),
            };
            for len in 0..head {
                assert_eq!(Message::decode(&encoded.bytes()[..len]), None, "{message:?} cut to {len}");
            }
        }
        let [.., Message::Request { head, .. }, _, _, _, _] = messages(Some(token)) else { unreachable!() };
        let body = vec![1; head.inline_bytes_max()];
        assert_eq!(Message::Request { head, body: &body }.encode().bytes().len(), CONTROL_BYTES);
        let body = [1; ANSWER_INLINE_BYTES_MAX];
        let answer = Message::Answer { id: head.id, status: Status::Done, body: &body };
        assert_eq!(answer.encode().bytes().len(), CONTROL_BYTES);
        for (status, code) in Status::ALL.into_iter().zip(0..) {
            assert_eq!((status as u8, Status::of_code(code)), (code, Some(status)));
        }
    }

    #[test]
    fn origins_come_out_as_they_went_in_before_what_is_behind_them() {
        let origin = Origin { node: "alpha".into(), endpoint: "rpc-1".into(), uid: 5 };
        let mut bytes = origin.encode();
        let len = bytes.len();
        bytes.extend(b"arguments");
        assert_eq!(Origin::decode(&bytes), Some((origin, &b"arguments"[..])));
        assert!((0..len).all(|len| Origin::decode(&bytes[..len]).is_none()));
    }

    #[test]
    fn wild_bytes_are_refused_or_encode_to_themselves() {
        let mut rng = vmmc_utlb::Rng::new(3);
        let mut taken = 0;
        for _ in 0..200_000 {
            let len = rng.below(CONTROL_BYTES as u64 + 1) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first = rng.below(8) as u8;
            }
            if let Some(second) = bytes.get_mut(1) {
                *second = rng.below(12) as u8;
            }
            if let Some(message) = Message::decode(&bytes) {
                taken += 1;
                assert_eq!(message.encode().bytes(), bytes, "{message:?}");
            }
            let _ = Origin::decode(&bytes);
        }
        assert!(taken > 10_000, "{taken}");
    }
}
