//! Doors for the fuzz targets and the bounded test of random bytes: every decoder, without an engine.

use crate::wire::chunk::Chunk;
use crate::wire::frame::{self, Frame};
use crate::wire::hello::{Introduction, Welcome};
use crate::wire::packet::Header;
use crate::wire::{Reader, Writer};

/// Decodes a packet header.
pub fn header(data: &[u8]) {
    let _ = Header::parse(data);
}

/// Decodes the body of a packet, frame by frame; what decodes as a chunk must survive being
/// written and read again.
pub fn body(data: &[u8]) {
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

/// Decodes the payloads of a handshake.
pub fn handshake(data: &[u8]) {
    let _ = Introduction::read(&mut Reader::new(data));
    let _ = Welcome::read(&mut Reader::new(data));
}
