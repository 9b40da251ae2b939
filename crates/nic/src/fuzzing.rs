//! Doors for the fuzz targets and the bounded test of random bytes: every decoder, without an engine.

use crate::Engine;
use crate::wire::chunk::Chunk;
use crate::wire::frame::{self, Frame};
use crate::wire::hello::{Introduction, Welcome};
use crate::wire::packet::Header;
use crate::wire::{Reader, Writer};

/// All that an engine has, but for its counters, what it is about to send, its budgets for answers to strangers, and hints for texts: what a datagram without proof must
/// leave as it is.
pub fn state(engine: &Engine) -> String {
    engine.state()
}

/// Decodes a packet header.
pub fn header(data: &[u8]) {
    let _ = Header::parse(data);
}

/// Decodes the body of a packet, frame by frame; what decodes as a chunk must survive being
/// written and read again.
pub fn body(data: &[u8]) {
    lone(data);
    let mut reader = Reader::new(data);
    while let Some(frame) = frame::read(&mut reader) {
        match frame {
            Frame::Ack(ack) => {
                let _ = ack.ranges().count();
            }
            Frame::Chunk(chunk, bytes) => {
                let mut buf = vec![0; bytes.len() + 64];
                let mut out = Writer::new(&mut buf);
                chunk.write(&mut out);
                let len = out.len();
                let again = Chunk::read(&mut Reader::new(&buf[..len]));
                assert_eq!(again.as_ref(), Some(&chunk));
            }
            _ => {}
        }
    }
}

/// What decodes at once as a send by itself is the same frame by frame.
fn lone(data: &[u8]) {
    let Some(lone) = frame::lone_write(data) else { return };
    let mut reader = Reader::new(data);
    assert!(matches!(frame::read(&mut reader), Some(Frame::Seq(seq)) if seq == lone.seq));
    let write = Chunk::Write { head: lone.head, data: lone.data };
    assert!(matches!(frame::read(&mut reader), Some(Frame::Chunk(chunk, _)) if chunk == write));
    match (frame::read(&mut reader), lone.ack) {
        (None, None) => {}
        (Some(Frame::Ack(ack)), Some(lone)) => assert_eq!(ack.without_ranges(), Some(lone)),
        (frame, ack) => panic!("{frame:?} is not {ack:?}"),
    }
    assert!(reader.is_empty());
}

/// Decodes the payloads of a handshake.
pub fn handshake(data: &[u8]) {
    let _ = Introduction::read(&mut Reader::new(data));
    let _ = Welcome::read(&mut Reader::new(data));
}
