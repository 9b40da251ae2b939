//! Doors for the fuzz target and for tests: everything that a server and a client read of each
//! other.
//!
//! Invariant: what decodes encodes to the bytes it came from; a body comes whole, as its pieces
//! were sent, or not at all; what is kept of pieces is within its bounds.

use crate::call::BulkArgument;
use crate::calls::Calls;
use crate::pieces::{Body, Bounds, Channel, Collected, Said, Whole, add_to_result};
use crate::wire::{CallId, Message, Origin, Request, Status};
use std::collections::HashMap;
use std::time::Duration;
use vmmc::fuzzing::{Inbox, Taken};
use vmmc::{Frame, PayloadToken};
use vmmc_host::Nanos;

/// Bytes of a frame.
const FRAME_BYTES: u64 = 64;
/// Small ones, so that they are reached.
const BOUNDS: Bounds = Bounds { one: 150, all: 400 };

/// Throws bytes at every decoder, and has them say what peers send; how many bodies came whole.
pub fn everything(data: &[u8]) -> usize {
    if let Some(message) = Message::decode(data).filter(|_| data.len() <= 128) {
        assert_eq!(message.encode().bytes(), data);
    }
    if let Some((origin, rest)) = Origin::decode(data) {
        assert_eq!([&origin.encode(), rest].concat(), data);
    }
    let _ = crate::decode::<(u64, &str, Option<Vec<u32>>, (bool, &[u8]))>(data);
    peers(data)
}

/// The bytes say what peers send: each piece begins with what it is.
fn peers(mut data: &[u8]) -> usize {
    let mut peers = Peers::new();
    while let Some(([kind, who, arguments, len], rest)) = data.split_first_chunk() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*len) % (FRAME_BYTES as usize + 1)));
        data = rest;
        peers.step(*kind, *who, (*arguments).into(), piece);
    }
    peers.whole
}

/// A server and a client, and all that was sent to them.
struct Peers {
    inbox: Inbox,
    collected: Collected,
    calls: Calls<Vec<u8>, Vec<u8>>,
    ids: [CallId; 2],
    /// Pieces of the call that each sender is at, and of each result.
    to_server: HashMap<Channel, (CallId, Vec<u8>)>,
    to_client: HashMap<CallId, Vec<u8>>,
    whole: usize,
}

impl Peers {
    fn new() -> Peers {
        let mut calls = Calls::default();
        let ids = [5, 6].map(|key| calls.begin(key, Nanos::MAX, Vec::new()).expect("two are few"));
        Peers {
            inbox: Inbox::new(1, FRAME_BYTES).expect("memory for a small channel"),
            collected: Collected::new(BOUNDS),
            calls,
            ids,
            to_server: HashMap::new(),
            to_client: HashMap::new(),
            whole: 0,
        }
    }

    fn step(&mut self, kind: u8, who: u8, arguments: u32, piece: &[u8]) {
        let (from, id) = ((0, 0, u64::from(who & 3)), self.ids[usize::from(who >> 2 & 1)]);
        let token = (who & 8 > 0).then(|| PayloadToken::from_bytes(&[who; PayloadToken::BYTES]));
        let head = Request { id, method: 1, left: Duration::ZERO, token, arguments };
        let inline = &piece[..piece.len().min(head.inline_bytes_max())];
        let status = if who & 8 > 0 { Status::Done } else { Status::Failed };
        let with_origin;
        let (message, mut payload, mut server) = match kind % 7 {
            0 => (Message::Part { id }, Some(piece), true),
            1 => (Message::Request { head, body: b"" }, Some(piece), true),
            2 => (Message::Request { head, body: inline }, None, true),
            3 => (Message::Forward { head }, Some(piece), true),
            4 => {
                let origin = Origin { node: "a".into(), endpoint: "rpc".into(), uid: 7 };
                with_origin = [&origin.encode(), piece].concat();
                let message = if who & 16 > 0 { Message::Part { id } } else { Message::Forward { head } };
                (message, Some(&with_origin[..with_origin.len().min(FRAME_BYTES as usize)]), true)
            }
            5 => (Message::Part { id }, Some(piece), false),
            _ => (Message::Answer { id, status, body: inline }, (who & 16 > 0).then_some(piece), false),
        };
        let mut control = message.encode().bytes().to_vec();
        if kind & 0x80 > 0 {
            // Anything at all, or the beginning of that, with whatever payload.
            let from = usize::from(kind & 0x1f).min(control.len());
            control.splice(from.., piece.iter().copied().take(128 - from));
            payload = payload.filter(|_| kind & 0x40 > 0);
            server = kind & 0x20 > 0;
        }
        self.inbox.send(&control, payload);
        let Taken::Message(mut message) = self.inbox.take() else { panic!("it was just sent") };
        let frame = message.take_payload();
        match Message::decode(message.control()) {
            Some(message) if server => self.at_server(from, &message, frame),
            Some(message) => self.at_client(&message, frame),
            None => {}
        }
        assert!(self.collected.bytes() <= BOUNDS.all);
    }

    fn at_server(&mut self, from: Channel, message: &Message<'_>, frame: Option<Frame>) {
        match (message, frame) {
            (Message::Part { id }, Some(frame)) => {
                let sent = self.to_server.entry(from).or_insert((*id, Vec::new()));
                if sent.0 != *id {
                    *sent = (*id, Vec::new());
                }
                sent.1.extend(frame.to_vec());
                self.collected.add(from, *id, &frame);
            }
            (Message::Request { head, body }, frame) => {
                let begun = self.sent(from, head.id);
                let misses_last = begun.is_some() && frame.is_none();
                let mut sent = begun.unwrap_or_default();
                sent.extend(frame.as_ref().map_or_else(|| body.to_vec(), Frame::to_vec));
                let whole = self.collected.request(from, head, body, frame);
                self.check(whole, head, &sent, misses_last, b"");
            }
            (Message::Forward { head }, Some(frame)) => {
                let (begun, last) = (self.sent(from, head.id), frame.to_vec());
                // It stands in the pieces before the last one, if there are any.
                let misses = Origin::decode(begun.as_ref().unwrap_or(&last)).is_none();
                let sent = [begun.unwrap_or_default(), last].concat();
                match self.collected.forward(from, head, frame) {
                    Whole::Came((origin, body)) => {
                        self.check(Whole::Came(body), head, &sent, misses, &origin.encode());
                    }
                    Whole::TooMany => self.check(Whole::TooMany, head, &sent, misses, b""),
                    Whole::Nonsense => {
                        let at = Origin::decode(&sent).map_or(0, |(origin, _)| origin.encode().len());
                        self.check(Whole::Nonsense, head, &sent[at..], misses, b"");
                    }
                }
            }
            _ => {}
        }
        if self.to_server.is_empty() {
            self.collected.keep(|_| false);
            assert_eq!(self.collected.bytes(), 0);
        }
    }

    /// The pieces of a call whose last message has come.
    fn sent(&mut self, from: Channel, id: CallId) -> Option<Vec<u8>> {
        self.to_server.remove(&from).filter(|(of, _)| *of == id).map(|(_, sent)| sent)
    }

    fn check(&mut self, whole: Whole<Body>, head: &Request, sent: &[u8], misses: bool, origin: &[u8]) {
        match whole {
            Whole::Came((arguments, bulk)) => {
                assert_eq!(arguments.len(), head.arguments as usize);
                let bulk = match bulk {
                    BulkArgument::Copied(bulk) => bulk,
                    BulkArgument::InFrame(frame, at) => frame.to_vec().split_off(at as usize),
                };
                assert_eq!([origin, &arguments, &bulk].concat(), sent);
                assert!(!misses);
                self.whole += 1;
            }
            Whole::TooMany => assert!(!sent.is_empty()),
            Whole::Nonsense => assert!(misses || head.arguments as usize > sent.len(), "{head:?}"),
        }
    }

    fn at_client(&mut self, message: &Message<'_>, frame: Option<Frame>) {
        match (message, frame) {
            (Message::Part { id }, Some(frame)) => {
                if let Some(begun) = self.calls.get_mut(*id) {
                    add_to_result(begun, &frame);
                    self.to_client.entry(*id).or_default().extend(frame.to_vec());
                }
            }
            (Message::Answer { id, body, .. }, frame) => {
                let last = frame.as_ref().map_or_else(|| body.to_vec(), Frame::to_vec);
                let found =
                    self.calls.settle(*id, |begun| Some(Said { begun: std::mem::take(begun), body, frame }.take()));
                assert_eq!(found, self.ids.contains(id));
                let Some(result) = self.calls.collect(*id) else { return };
                let sent = [self.to_client.remove(id).unwrap_or_default(), last].concat();
                assert_eq!(result, sent);
                self.whole += 1;
                // The record has its next call.
                let next = self.calls.begin(id.key + 2, Nanos::MAX, Vec::new()).expect("one is free");
                self.ids.iter_mut().filter(|of| **of == *id).for_each(|of| *of = next);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wild_peers_have_their_bodies_taken_whole_or_not_at_all() {
        let (mut rng, mut whole) = (vmmc_utlb::Rng::new(31), 0);
        for _ in 0..3_000 {
            let data: Vec<u8> = std::iter::repeat_with(|| {
                let wild = if rng.below(8) == 0 { 0x80 | rng.below(128) } else { rng.below(7) };
                // Sometimes one call of one sender, in many pieces.
                let who = rng.below(256) & if rng.below(2) == 0 { 0xfc } else { 0xff };
                let (arguments, len) = (rng.below(100), rng.below(FRAME_BYTES + 1));
                let head = [wild, who, arguments, len].map(|byte| byte as u8);
                head.into_iter().chain((0..len).map(|_| rng.below(256) as u8)).collect::<Vec<u8>>()
            })
            .take(30)
            .flatten()
            .collect();
            whole += everything(&data);
        }
        assert!(whole > 10_000, "{whole}");
    }
}
