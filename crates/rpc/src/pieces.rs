//! Bodies that are longer than a message carries: cut into pieces, and put together.
//!
//! Invariant: what comes in pieces is bounded, for each caller and for all; of a call that finds no
//! room nothing is kept. Source: [GMS §2], whose payloads are of one frame.

use crate::call::BulkArgument;
use crate::limits::{BODY_BYTES_MAX, COLLECTED_BYTES_MAX};
use crate::wire::CallId;
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
#[derive(Default)]
pub(crate) struct Collected {
    calls: HashMap<Channel, (CallId, Vec<u8>)>,
    /// Senders of whom there was more than there is room for, and the call.
    refused: HashMap<Channel, CallId>,
    bytes: usize,
}

/// What has come of a call before its last message.
pub(crate) enum Pieces {
    None,
    All(Vec<u8>),
    /// There was no room for them.
    TooMany,
}

impl Collected {
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
        if own + more > COLLECTED_BYTES_MAX - self.bytes || (own + more) as u64 > BODY_BYTES_MAX {
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

    pub(crate) fn take(&mut self, from: Channel, id: CallId) -> Pieces {
        if self.calls.is_empty() && self.refused.is_empty() {
            return Pieces::None;
        }
        if self.refused.remove(&from) == Some(id) {
            return Pieces::TooMany;
        }
        match self.drop_of(from) {
            Some((of, bytes)) if of == id => Pieces::All(bytes),
            _ => Pieces::None,
        }
    }

    pub(crate) fn keep(&mut self, is_there: impl Fn(&Channel) -> bool) {
        self.refused.retain(|from, _| is_there(from));
        self.calls.retain(|from, _| is_there(from));
        self.bytes = self.calls.values().map(|(_, bytes)| bytes.len()).sum();
    }
}

/// Arguments and bulk of a call that came in pieces, from byte `at` on; the last one is in a frame.
pub(crate) fn split_pieces(
    arguments: u32,
    mut bytes: Vec<u8>,
    frame: Option<Frame>,
    at: usize,
) -> Option<(Vec<u8>, BulkArgument)> {
    bytes.extend(frame?.to_vec());
    let bulk = bytes.split_off((at + arguments as usize).min(bytes.len()));
    let arguments = (bytes.len() - at == arguments as usize).then(|| bytes.split_off(at))?;
    Some((arguments, BulkArgument::Copied(bulk)))
}

/// Arguments and bulk of a call: in the control message, or in a frame from byte `at` on. None: the
/// arguments are longer than what came.
pub(crate) fn split(arguments: u32, body: &[u8], frame: Option<Frame>, at: u64) -> Option<(Vec<u8>, BulkArgument)> {
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
