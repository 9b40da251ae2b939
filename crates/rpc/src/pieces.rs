//! Bodies that are longer than a message carries: cut into pieces, and put together.
//!
//! Invariant: what comes in pieces is bounded, for each caller and for all; of a call that finds no
//! room nothing is kept. A piece is of one frame: a payload of several would wait for frames side
//! by side, which handlers and callers that keep others may not leave. Source: [GMS §2], whose
//! payloads are of one frame.

use crate::call::BulkArgument;
use crate::limits::{BODY_BYTES_MAX, COLLECTED_BYTES_MAX};
use crate::wire::{CallId, Origin, Request};
use foldhash::HashMap;
use vmmc::Frame;

/// What is left to send of a body.
pub(crate) struct Rest<'a>(pub(crate) Vec<&'a [u8]>);

impl<'a> Rest<'a> {
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    /// Takes so many bytes off its beginning, of which there are more.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<&'a [u8]> {
        let (mut left, mut taken) = (bytes, Vec::new());
        for part in &mut self.0 {
            let (first, rest) = part.split_at(left.min(part.len()));
            left -= first.len();
            taken.push(first);
            *part = rest;
        }
        taken
    }
}

/// Senders of messages: session, process, and import.
pub(crate) type Channel = (u32, u32, u64);

/// The calls whose pieces come, one for each sender, which sends them one after the other.
pub(crate) struct Collected {
    calls: HashMap<Channel, (CallId, Vec<u8>)>,
    /// Senders of whom there was more than there is room for, and the call.
    refused: HashMap<Channel, CallId>,
    bytes: usize,
    bounds: Bounds,
}

/// Bytes that are kept at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Of one call.
    pub(crate) one: usize,
    /// Of all.
    pub(crate) all: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { one: BODY_BYTES_MAX as usize, all: COLLECTED_BYTES_MAX }
    }
}

/// What has come of a call before its last message.
enum Pieces {
    None,
    All(Vec<u8>),
    /// There was no room for them.
    TooMany,
}

/// What has come of a call with its last message.
pub(crate) enum Whole<T> {
    Came(T),
    /// There was no room for its pieces.
    TooMany,
    /// It is none that a caller of ours sends.
    Nonsense,
}

impl<T> Whole<T> {
    #[inline]
    fn of(came: Option<T>) -> Whole<T> {
        came.map_or(Whole::Nonsense, Whole::Came)
    }
}

/// Arguments and bulk.
pub(crate) type Body = (Vec<u8>, BulkArgument);

impl Collected {
    pub(crate) fn new(bounds: Bounds) -> Collected {
        Collected { calls: HashMap::default(), refused: HashMap::default(), bytes: 0, bounds }
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A piece has come.
    pub(crate) fn add(&mut self, from: Channel, id: CallId, frame: &Frame) {
        if self.refused.get(&from) == Some(&id) {
            return;
        }
        self.refused.remove(&from);
        if self.calls.get(&from).is_some_and(|(of, _)| *of != id) {
            // Its caller has given it up.
            self.drop_of(from);
        }
        let own = self.calls.get(&from).map_or(0, |(_, bytes)| bytes.len());
        let more = frame.len() as usize;
        if own + more > self.bounds.all - self.bytes || own + more > self.bounds.one {
            self.drop_of(from);
            self.refused.insert(from, id);
            return;
        }
        self.bytes += more;
        self.calls.entry(from).or_insert_with(|| (id, Vec::new())).1.extend(frame.to_vec());
    }

    fn drop_of(&mut self, from: Channel) -> Option<(CallId, Vec<u8>)> {
        let (id, bytes) = self.calls.remove(&from)?;
        self.bytes -= bytes.len();
        Some((id, bytes))
    }

    /// The last message of a call has come.
    #[inline]
    pub(crate) fn request(&mut self, from: Channel, head: &Request, body: &[u8], frame: Option<Frame>) -> Whole<Body> {
        match self.take(from, head.id) {
            Pieces::None => Whole::of(split(head.arguments, body, frame, 0)),
            Pieces::All(bytes) => Whole::of(split_pieces(head.arguments, bytes, frame, 0)),
            Pieces::TooMany => Whole::TooMany,
        }
    }

    /// The last message of a call has come that was passed on, and whose it is.
    pub(crate) fn forward(&mut self, from: Channel, head: &Request, frame: Frame) -> Whole<(Origin, Body)> {
        let (begun, in_pieces) = match self.take(from, head.id) {
            Pieces::None => (frame.to_vec(), false),
            Pieces::All(bytes) => (bytes, true),
            Pieces::TooMany => return Whole::TooMany,
        };
        let Some((origin, rest)) = Origin::decode(&begun) else { return Whole::Nonsense };
        let at = begun.len() - rest.len();
        let body = if in_pieces {
            split_pieces(head.arguments, begun, Some(frame), at)
        } else {
            split(head.arguments, b"", Some(frame), at as u64)
        };
        Whole::of(body.map(|body| (origin, body)))
    }

    #[inline]
    fn take(&mut self, from: Channel, id: CallId) -> Pieces {
        if self.calls.is_empty() && self.refused.is_empty() { Pieces::None } else { self.take_of(from, id) }
    }

    fn take_of(&mut self, from: Channel, id: CallId) -> Pieces {
        if self.refused.remove(&from) == Some(id) {
            return Pieces::TooMany;
        }
        match self.drop_of(from) {
            Some((of, bytes)) if of == id => Pieces::All(bytes),
            _ => Pieces::None,
        }
    }

    /// Keeps what comes of senders that are still there.
    pub(crate) fn keep(&mut self, is_there: impl Fn(&Channel) -> bool) {
        self.refused.retain(|from, _| is_there(from));
        self.calls.retain(|from, _| is_there(from));
        self.bytes = self.calls.values().map(|(_, bytes)| bytes.len()).sum();
    }
}

/// The result, or the message, of an answer: in a frame if there is one.
pub(crate) struct Said<'a> {
    /// What has come in pieces.
    pub(crate) begun: Vec<u8>,
    pub(crate) body: &'a [u8],
    pub(crate) frame: Option<Frame>,
}

impl Said<'_> {
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let last = self.frame.as_ref().map_or_else(|| self.body.to_vec(), Frame::to_vec);
        if self.begun.is_empty() {
            return last;
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend(last);
        all
    }
}

/// A piece of a result, behind those that have come of it. One of a server that sends more than can
/// be is dropped, as is what follows it: the result makes no sense then.
pub(crate) fn add_to_result(begun: &mut Vec<u8>, frame: &Frame) {
    if begun.len() as u64 + frame.len() <= BODY_BYTES_MAX {
        begun.extend(frame.to_vec());
    }
}

/// Arguments and bulk of a call that came in pieces, from byte `at` on; the last one is in a frame.
fn split_pieces(arguments: u32, mut bytes: Vec<u8>, frame: Option<Frame>, at: usize) -> Option<Body> {
    bytes.extend(frame?.to_vec());
    let bulk = bytes.split_off((at + arguments as usize).min(bytes.len()));
    let arguments = (bytes.len() - at == arguments as usize).then(|| bytes.split_off(at))?;
    Some((arguments, BulkArgument::Copied(bulk)))
}

/// Arguments and bulk of a call: in the control message, or in a frame from byte `at` on. None: the
/// arguments are longer than what came.
#[inline]
fn split(arguments: u32, body: &[u8], frame: Option<Frame>, at: u64) -> Option<Body> {
    let len = u64::from(arguments);
    match frame {
        None => {
            let (arguments, bulk) = body.split_at_checked(arguments as usize)?;
            Some((arguments.to_vec(), BulkArgument::Copied(bulk.to_vec())))
        }
        Some(frame) => {
            if at + len > frame.len() {
                return None;
            }
            let mut copy = vec![0; len as usize];
            frame.read(at, &mut copy).ok()?;
            Some((copy, BulkArgument::InFrame(frame, at + len)))
        }
    }
}
