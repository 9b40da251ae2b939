//! Doors for the fuzz targets and for hostile tests: every decoder without an engine, and frames of
//! every kind with wild contents.
//!
//! Invariant: [`wild_frame`] knows every kind that the decoder knows. It starts from what the
//! decoder makes of some bytes, and its `match` has no wildcard.

use crate::crypto::Seal;
use crate::limits::LENGTH_BYTES_MAX;
use crate::wire::chunk::AppendHead;
use crate::wire::chunk::{Brings, Chunk, Handle, WriteHead};
use crate::wire::frame::{self, Frame};
use crate::wire::hello::{Introduction, Welcome};
use crate::wire::packet::{HEADER_BYTES, Header, Kind};
use crate::wire::{Reader, Writer};
use crate::{AtomicOp, Engine, ExportId, ImportError, ImportTarget, OpError, Owner, Rights};
use crate::{ExportKind, TokenPart};

/// All that an engine has, but for its counters, what it is about to send, its budgets for answers
/// to strangers, and hints for texts: what a datagram without proof must leave as it is.
pub fn state(engine: &Engine) -> String {
    engine.state()
}

/// Decodes a packet header, which must survive being written and read again; whether there is one.
pub fn header(data: &[u8]) -> bool {
    let Ok(header) = Header::parse(data) else { return false };
    let mut buf = [0; HEADER_BYTES];
    header.write(&mut buf);
    assert_eq!(Header::parse(&buf), Ok(header));
    true
}

/// Decodes the body of a packet, frame by frame; what decodes as a chunk must survive being
/// written and read again. Gives the number of frames.
pub fn body(data: &[u8]) -> usize {
    single(data);
    first(data);
    let (mut reader, mut frames) = (Reader::new(data), 0);
    while let Some(frame) = frame::read(&mut reader) {
        frames += 1;
        match frame {
            // Each range takes a byte or more.
            Frame::Ack(ack) => assert!(ack.ranges().count() <= data.len()),
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
    frames
}

/// What decodes at once as a send by itself is the same frame by frame.
fn single(data: &[u8]) {
    let Some(single) = frame::single_write(data) else { return };
    let mut reader = Reader::new(data);
    assert!(matches!(frame::read(&mut reader), Some(Frame::Seq(seq)) if seq == single.seq));
    let write = Chunk::Write { head: single.head, data: single.data };
    assert!(matches!(frame::read(&mut reader), Some(Frame::Chunk(chunk, _)) if chunk == write));
    match (frame::read(&mut reader), single.ack) {
        (None, None) => {}
        (Some(Frame::Ack(ack)), Some(single)) => assert_eq!(ack, single),
        (frame, ack) => panic!("{frame:?} is not {ack:?}"),
    }
    assert!(reader.is_empty());
}

/// The chunk that a body begins with, as it is known before its data is here, is the same as
/// afterwards.
fn first(data: &[u8]) {
    let Some(first) = frame::first_chunk(data) else { return };
    let mut reader = Reader::new(data);
    let seq = frame::read(&mut reader);
    // Numbers that could not be counted on are refused with the whole packet.
    assert!(matches!(seq, Some(Frame::Seq(seq)) if seq == first.seq));
    let Some(bytes) = first.at.checked_add(first.len).and_then(|end| data.get(first.at..end)) else { return };
    match (frame::read(&mut reader), first.what) {
        (Some(Frame::Chunk(Chunk::Write { head, data }, _)), Brings::Write(known)) => {
            assert_eq!((head, data), (known, bytes));
        }
        (Some(Frame::Chunk(Chunk::FetchData { ticket, offset, data, .. }, _)), known) => {
            assert_eq!((Brings::Fetch { ticket, offset }, data), (known, bytes));
        }
        (frame, known) => panic!("{frame:?} is not {known:?}"),
    }
}

/// Decodes the payloads of a handshake, which must survive being written and read again; whether
/// there is one.
pub fn handshake(data: &[u8]) -> bool {
    let mut buf = vec![0; data.len() + 64];
    let introduction = Introduction::read(&mut Reader::new(data));
    if let Some(introduction) = &introduction {
        let mut out = Writer::new(&mut buf);
        introduction.write(&mut out);
        let len = out.len();
        assert_eq!(Introduction::read(&mut Reader::new(&buf[..len])).as_ref(), Some(introduction));
    }
    let welcome = Welcome::read(&mut Reader::new(data));
    if let Some(welcome) = &welcome {
        let mut out = Writer::new(&mut buf);
        welcome.write(&mut out);
        let len = out.len();
        assert_eq!(Welcome::read(&mut Reader::new(&buf[..len])).as_ref(), Some(welcome));
    }
    introduction.is_some() || welcome.is_some()
}

/// What wild contents are made of.
pub struct Wild<'a> {
    /// Random numbers.
    pub random: &'a mut dyn FnMut() -> u64,
    /// Numbers that the target knows: tickets, grants, handles, users.
    pub known: &'a [u64],
    /// Names that it may have exports of.
    pub names: &'a [&'a str],
}

impl Wild<'_> {
    fn below(&mut self, n: u64) -> u64 {
        (self.random)() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let at = self.below(all.len().max(1) as u64);
        all.get(at as usize).copied()
    }

    /// Something known half of the time, else small, at an edge, or anything.
    fn number(&mut self) -> u64 {
        let known = self.pick(self.known);
        match self.below(8) {
            0..=3 => known.unwrap_or(0),
            4 => self.below(100),
            5 => self.below(16) * 4096,
            6 => (1 << self.below(64)) - self.below(2),
            _ => (self.random)(),
        }
    }

    /// Now and then one that no decoder takes.
    fn length(&mut self) -> u64 {
        let any = self.number();
        if self.one_in(40) { any } else { any % (LENGTH_BYTES_MAX + 1) }
    }

    fn handle(&mut self) -> Handle {
        Handle { process: self.number() as u32, import: self.number() }
    }

    fn rights(&mut self) -> Rights {
        Rights::from_bits(self.below(8) as u8).unwrap_or(Rights::ALL)
    }

    fn op_error(&mut self) -> OpError {
        let args = [self.number(), self.number(), self.number()];
        OpError::from_code(self.below(40) as u16, args).unwrap_or(OpError::Revoked)
    }

    fn import_error(&mut self) -> ImportError {
        let args = [self.number(), self.number(), self.number()];
        ImportError::from_code(self.below(40) as u16, args).unwrap_or(ImportError::NoSuchExport)
    }

    fn target(&mut self) -> ImportTarget {
        match self.pick(self.names).filter(|_| self.one_in(2)) {
            Some(name) => ImportTarget::Name(name.into()),
            None => ImportTarget::Id(ExportId::from_u64(self.number())),
        }
    }

    fn owner(&mut self) -> Owner {
        match self.below(3) {
            0 => Owner::OwnOrRoot,
            1 => Owner::User(self.number() as u32),
            _ => Owner::Any,
        }
    }

    fn atomic(&mut self) -> AtomicOp {
        match self.below(3) {
            0 => AtomicOp::FetchAdd(self.number()),
            1 => AtomicOp::CompareSwap { expected: self.number(), desired: self.number() },
            _ => AtomicOp::Swap(self.number()),
        }
    }

    /// What is said of a payload: often one that these bytes are the whole of.
    fn token(&mut self, len: u64) -> TokenPart {
        let total = if self.one_in(2) { len } else { self.length() };
        TokenPart { index: self.below(4) as u32, key: self.number(), tag: self.number(), total }
    }

    /// A chunk of the same kind, with other contents.
    fn chunk<'d>(&mut self, like: &Chunk<'_>, data: &'d [u8]) -> Chunk<'d> {
        match like {
            Chunk::Write { .. } => {
                let notify = if self.one_in(3) { Some((self.number(), self.length(), self.number())) } else { None };
                let counter = if self.one_in(4) { Some(self.number()) } else { None };
                let (ack_now, first) = (self.one_in(2), !self.one_in(4));
                let (grant, offset) = (self.number(), self.number());
                let token = self.one_in(4).then(|| self.token(data.len() as u64));
                Chunk::Write { head: WriteHead { ack_now, first, grant, offset, notify, counter, token }, data }
            }
            Chunk::Append { .. } => {
                let (ack_now, notify, grant) = (self.one_in(2), self.one_in(2), self.number());
                // As many as there were, most often.
                let refusals = if self.one_in(4) { self.number() as u32 } else { self.below(3) as u32 };
                let word = self.number();
                Chunk::Append { head: AppendHead { ack_now, notify, grant, refusals, word }, data }
            }
            Chunk::Nop { .. } => Chunk::Nop { ack_now: self.one_in(2) },
            Chunk::Abort { .. } => Chunk::Abort { grant: self.number() },
            Chunk::FetchRequest { .. } => {
                let (ticket, grant) = (self.number(), self.number());
                let (offset, start, len) = (self.number(), self.length(), self.length());
                Chunk::FetchRequest { ticket, grant, offset, start, len }
            }
            Chunk::FetchData { .. } => {
                let (ticket, offset) = (self.number(), self.number());
                Chunk::FetchData { ticket, offset, last: self.one_in(2), data }
            }
            Chunk::FetchFail { .. } => Chunk::FetchFail { ticket: self.number(), why: self.op_error() },
            Chunk::AtomicRequest { .. } => {
                let (ticket, grant) = (self.number(), self.number());
                Chunk::AtomicRequest { ticket, grant, offset: self.number(), op: self.atomic() }
            }
            Chunk::AtomicReply { .. } => Chunk::AtomicReply { ticket: self.number(), old: self.number() },
            Chunk::AtomicFail { .. } => Chunk::AtomicFail { ticket: self.number(), why: self.op_error() },
            Chunk::Error { .. } => Chunk::Error { seq: self.number(), why: self.op_error() },
            Chunk::ImportRequest { .. } => {
                let (handle, uid, rights) = (self.handle(), self.number() as u32, self.rights());
                let (owner, wait) = (self.owner(), self.one_in(2));
                Chunk::ImportRequest { handle, uid, rights, owner, wait, what: self.target() }
            }
            Chunk::ImportGrant { .. } => {
                let (handle, grant, owner) = (self.handle(), self.number(), self.number() as u32);
                let (export, len, rights) = (ExportId::from_u64(self.number()), self.length(), self.rights());
                let [notify, redirectable] = [2, 2].map(|n| self.one_in(n));
                let kind = [ExportKind::Memory, ExportKind::Ring, ExportKind::Tokens { entries: 4 }]
                    [self.number() as usize % 3];
                Chunk::ImportGrant { handle, grant, export, owner, len, rights, notify, redirectable, kind }
            }
            Chunk::ImportFail { .. } => Chunk::ImportFail { handle: self.handle(), why: self.import_error() },
            Chunk::ImportCancel { .. } => Chunk::ImportCancel { handle: self.handle(), what: self.target() },
            Chunk::Unimport { .. } => Chunk::Unimport { grant: self.number() },
            Chunk::Revoked { .. } => Chunk::Revoked { handle: self.handle(), why: self.op_error() },
            Chunk::Echo { .. } => Chunk::Echo { token: self.number() },
            Chunk::EchoReply { .. } => Chunk::EchoReply { token: self.number() },
            Chunk::Message { .. } => Chunk::Message { data },
        }
    }

    /// A frame of the same kind, with other contents.
    fn frame(&mut self, like: &Frame<'_>, out: &mut Writer<'_>) {
        match like {
            Frame::Ack(_) => {
                let (cumulative, largest) = (self.number(), self.number());
                let (delay_us, barrier) = (self.number() as u32, self.number());
                let count = self.below(4);
                let range = |wild: &mut Self| {
                    let start = cumulative.saturating_add(wild.below(100));
                    (start, start.saturating_add(wild.below(100)))
                };
                let ranges: Vec<_> = (0..count).map(|_| range(self)).collect();
                frame::write_ack(cumulative, largest, delay_us, barrier, ranges.into_iter(), out);
            }
            Frame::Seq(_) => frame::write_seq(self.number(), out),
            Frame::Ping(_) => frame::write_ping(self.number(), out),
            Frame::Pong(_) => frame::write_pong(self.number(), out),
            Frame::Close => frame::write_close(out),
            Frame::Early(_) => frame::write_early(self.number() as u16, out),
            Frame::Marks(_) => {
                let marks = frame::Marks { ect0: self.number(), ect1: self.below(2), ce: self.number() };
                frame::write_marks(&marks, out);
            }
            Frame::Piece(_) => {
                let (number, total) = (self.number() >> 2, 1 + self.below(600) as usize);
                let start = self.below(total as u64) as usize;
                let data = vec![0xee; self.below((total - start) as u64 + 1) as usize];
                frame::write_piece(&frame::Piece { number, total, start, data: &data }, out);
            }
            Frame::Padding => frame::write_padding(1 + self.below(600) as usize, out),
            Frame::Chunk(chunk, _) => {
                let data = vec![0xee; self.below(600) as usize];
                self.chunk(chunk, &data).write(out);
            }
        }
    }
}

/// Whether frames that begin with this byte are chunks; none: no frame begins with it.
pub fn is_chunk(kind: u8) -> Option<bool> {
    sampled(kind, |frame| matches!(frame, Frame::Chunk(..)))
}

/// A well-formed frame that begins with this byte, with wild contents, of which some have no
/// meaning. None: no frame does.
pub fn wild_frame(kind: u8, wild: &mut Wild<'_>) -> Option<Vec<u8>> {
    sampled(kind, |like| {
        let mut buf = vec![0; 2_000];
        let mut out = Writer::new(&mut buf);
        wild.frame(like, &mut out);
        let len = out.len();
        buf.truncate(len);
        buf
    })
}

/// Hands over some frame that begins with this byte, as the decoder reads it: all else is 0, but
/// for at most one byte, so that codes without a zero are found too.
fn sampled<T>(kind: u8, use_it: impl FnOnce(&Frame<'_>) -> T) -> Option<T> {
    const LONGEST: usize = 64;
    let mut bytes = [0; LONGEST];
    for at in 1..LONGEST {
        bytes.fill(0);
        (bytes[0], bytes[at]) = (kind, 1);
        if let Some(frame) = frame::read(&mut Reader::new(&bytes)) {
            return Some(use_it(&frame));
        }
    }
    None
}

/// What a datagram of a plain session reveals to an observer.
#[derive(Debug)]
pub struct Seen {
    /// The number of the packet.
    pub number: u64,
    /// The number that a chunk behind the last one of it would have.
    pub next_seq: Option<u64>,
    /// Tickets, grants and handles that stand in it.
    pub names: Vec<u64>,
}

/// Reads a datagram of a plain session. None: it is something else.
pub fn seen(datagram: &[u8]) -> Option<Seen> {
    let header = Header::parse(datagram).ok().filter(|header| header.kind == Kind::Data)?;
    let mut datagram = datagram.to_vec();
    let mut reader = Reader::new(Seal::Plain.open(header.number, &mut datagram)?);
    let mut seen = Seen { number: header.number, next_seq: None, names: Vec::new() };
    while let Some(frame) = frame::read(&mut reader) {
        let chunk = match frame {
            Frame::Seq(seq) => {
                seen.next_seq = Some(seq);
                continue;
            }
            Frame::Chunk(chunk, _) => chunk,
            _ => continue,
        };
        seen.next_seq = seen.next_seq.map(|seq| seq.wrapping_add(1));
        let mut handle = |handle: Handle| seen.names.extend([handle.process.into(), handle.import]);
        match chunk {
            Chunk::ImportRequest { handle: by, .. } | Chunk::ImportCancel { handle: by, .. } => handle(by),
            Chunk::ImportGrant { handle: by, grant, export, .. } => {
                handle(by);
                seen.names.extend([grant, export.to_u64()]);
            }
            Chunk::FetchRequest { ticket, grant, .. } | Chunk::AtomicRequest { ticket, grant, .. } => {
                seen.names.extend([ticket, grant]);
            }
            Chunk::Write { head: WriteHead { grant, .. }, .. } => seen.names.push(grant),
            _ => {}
        }
    }
    Some(seen)
}

/// A datagram of the plain session that `of` belongs to, with this number and these frames.
pub fn plain_datagram(of: &[u8], number: u64, frames: &[u8]) -> Vec<u8> {
    let header = Header::parse(of).expect("a datagram of the session");
    let mut datagram = vec![0; Seal::Plain.beside_body() + frames.len()];
    Header { number, ..header }.write(&mut datagram);
    datagram[Seal::Plain.body_at()..].copy_from_slice(frames);
    let end = datagram.len();
    Seal::Plain.seal(number, &mut datagram, end, (0, 0));
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wild_frames_are_of_every_kind_that_the_decoder_knows() {
        let mut rng = vmmc_utlb::Rng::new(1);
        let mut random = || rng.next_u64();
        let mut wild = Wild { random: &mut random, known: &[7, 8], names: &["name"] };
        let mut seen = [None; 256];
        for kind in 0..=255u8 {
            for _ in 0..100 {
                let Some(bytes) = wild_frame(kind, &mut wild) else { continue };
                assert_eq!(bytes[0], kind);
                seen[usize::from(kind)] = is_chunk(kind);
                body(&bytes);
            }
        }
        // Random bytes find no kind that it does not know.
        for _ in 0..200_000 {
            let mut bytes: [u8; 48] = std::array::from_fn(|_| if wild.one_in(3) { wild.below(20) as u8 } else { 0 });
            bytes[0] = wild.below(256) as u8;
            let Some(frame) = frame::read(&mut Reader::new(&bytes)) else { continue };
            assert_eq!(seen[usize::from(bytes[0])], Some(matches!(frame, Frame::Chunk(..))), "{frame:?}");
        }
        assert!(seen.iter().flatten().count() >= 24);
    }

    #[test]
    fn a_datagram_that_is_made_is_seen() {
        let mut of = [0; HEADER_BYTES];
        let session = crate::wire::packet::SessionRef { slot: 1, id: 2 };
        Header { kind: Kind::Data, session, number: 0 }.write(&mut of);
        let mut buf = [0; 100];
        let mut out = Writer::new(&mut buf);
        frame::write_seq(9, &mut out);
        Chunk::Abort { grant: 1 }.write(&mut out);
        Chunk::FetchRequest { ticket: 4, grant: 5, offset: 0, start: 0, len: 8 }.write(&mut out);
        let len = out.len();
        let datagram = plain_datagram(&of, 3, &buf[..len]);
        let seen = seen(&datagram).expect("it is one");
        assert_eq!((seen.number, seen.next_seq, seen.names), (3, Some(11), vec![4, 5]));
    }
}
