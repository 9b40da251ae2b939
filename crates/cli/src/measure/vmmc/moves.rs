//! Moving a file, of any size, in pieces through a ring of slots: by deliberate update into the
//! receiver's memory, or by remote fetch from the sender's.
//!
//! ```text
//!   leader                                             follower
//!   file ─▶ piece ══ send ════════════════════════════▶ slot ─▶ checksum      by send
//!   file ─▶ slot  ◀═══════════════════════════ fetch ══ piece ─▶ checksum     by fetch
//!           "piece n has len bytes" ── send ──────────▶ head
//!           head ◀────────────────────────────── send ── "I have n pieces"
//! ```
//!
//! Invariant: `taken <= announced <= taken + PIECES` on both sides, so no slot is overwritten
//! before it was taken.

use super::{Attached, TaskError, flush_last};
use crate::limits::{PIECE_BYTES, PIECES, PROGRESS_PAUSE};
use crate::measure::task::{Move, MoveBy, Moved, Role};
use std::fs::File;
use std::io::Read;
use std::time::Instant;
use vmmc::{Buffer, Export, Import};

/// Bytes of the head of an export.
const HEAD_BYTES: u64 = 4096;
/// In the leader's head: pieces that the follower has.
const TAKEN: u64 = 0;
/// Length that says that no piece follows.
const END: u64 = u64::MAX;

/// Where slot `piece` is announced in the follower's head: its length, then its number plus one.
fn announcement(piece: u64) -> u64 {
    piece % PIECES * 64
}

/// Where the bytes of slot `piece` are.
fn slot(piece: u64) -> u64 {
    HEAD_BYTES + piece % PIECES * PIECE_BYTES
}

/// Plays one half; `progress` receives the bytes so far now and then.
pub(super) fn play(attached: &Attached, order: &Move, progress: impl FnMut(u64)) -> Result<Moved, TaskError> {
    let ring = HEAD_BYTES + PIECES * PIECE_BYTES;
    let owns_ring = (order.role == Role::Follow) == (order.by == MoveBy::Send);
    let len = if owns_ring { ring } else { HEAD_BYTES };
    let (export, import) = attached.exchange(order.number, order.role, len)?;
    let mover = Mover { attached, export, import, by: order.by };
    match order.role {
        Role::Lead => mover.lead(&order.file, progress),
        Role::Follow => mover.follow(),
    }
}

struct Mover<'a> {
    attached: &'a Attached,
    export: Export,
    import: Import,
    by: MoveBy,
}

impl Mover<'_> {
    fn lead(&self, path: &str, mut progress: impl FnMut(u64)) -> Result<Moved, TaskError> {
        let mut file = File::open(path).map_err(|e| TaskError::Protocol(format!("{path}: {e}")))?;
        let buffer = self.attached.session.buffer(PIECES * PIECE_BYTES).map_err(TaskError::vmmc)?;
        let mut bytes = vec![0; PIECE_BYTES as usize];
        let (mut checksum, mut moved, mut piece) = (crc32fast::Hasher::new(), 0, 0u64);
        let start = Instant::now();
        let mut told = start;
        loop {
            let len = fill(&mut file, &mut bytes)?;
            if len == 0 {
                break;
            }
            checksum.update(&bytes[..len]);
            self.await_taken(piece)?;
            self.offer(&buffer, piece, &bytes[..len])?;
            piece += 1;
            moved += len as u64;
            if told.elapsed() > PROGRESS_PAUSE {
                told = Instant::now();
                progress(moved);
            }
        }
        self.await_taken(piece)?;
        self.announce(piece, END)?;
        self.await_all(piece)?;
        Ok(Moved { bytes: moved, taken: start.elapsed(), crc32: checksum.finalize() })
    }

    /// Waits until slot `piece` is free.
    fn await_taken(&self, piece: u64) -> Result<(), TaskError> {
        let free = |taken: u64| taken + PIECES > piece;
        self.export.wait_word(TAKEN, free).map(drop).map_err(TaskError::vmmc)
    }

    fn await_all(&self, pieces: u64) -> Result<(), TaskError> {
        self.export.wait_word(TAKEN, |taken| taken > pieces).map(drop).map_err(TaskError::vmmc)
    }

    /// Makes a piece available to the follower.
    fn offer(&self, buffer: &Buffer, piece: u64, bytes: &[u8]) -> Result<(), TaskError> {
        match self.by {
            MoveBy::Send => {
                let from = piece % PIECES * PIECE_BYTES;
                buffer.write(from, bytes).map_err(TaskError::vmmc)?;
                let range = from..from + bytes.len() as u64;
                // The transfer's end need not be awaited: the announcement comes after it, and the
                // slot of the buffer is free once that was taken.
                let options = vmmc::SendOptions::default();
                drop(self.import.post_send(slot(piece), buffer.range(range), options).map_err(TaskError::vmmc)?);
            }
            MoveBy::Fetch => self.export.write(slot(piece), bytes).map_err(TaskError::vmmc)?,
        }
        self.announce(piece, bytes.len() as u64)
    }

    fn announce(&self, piece: u64, len: u64) -> Result<(), TaskError> {
        let words = [len.to_le_bytes(), (piece + 1).to_le_bytes()].concat();
        self.import.send(announcement(piece), &words).map_err(TaskError::vmmc)
    }

    fn follow(&self) -> Result<Moved, TaskError> {
        let mut bytes = vec![0; PIECE_BYTES as usize];
        let (mut checksum, mut moved) = (crc32fast::Hasher::new(), 0);
        let start = Instant::now();
        for piece in 0u64.. {
            let at = announcement(piece);
            self.export.wait_word(at + 8, |number| number == piece + 1).map_err(TaskError::vmmc)?;
            let mut len = [0; 8];
            self.export.read(at, &mut len).map_err(TaskError::vmmc)?;
            let len = u64::from_le_bytes(len);
            if len == END {
                self.report_taken(piece + 1)?;
                break;
            }
            let into = bytes.get_mut(..len as usize);
            let into = into.ok_or_else(|| TaskError::Protocol(format!("a piece of {len} bytes was announced")))?;
            match self.by {
                MoveBy::Send => self.export.read(slot(piece), into).map_err(TaskError::vmmc)?,
                MoveBy::Fetch => self.import.fetch(slot(piece), &mut *into).map_err(TaskError::vmmc)?,
            }
            self.report_taken(piece + 1)?;
            checksum.update(into);
            moved += len;
        }
        flush_last(&self.import);
        Ok(Moved { bytes: moved, taken: start.elapsed(), crc32: checksum.finalize() })
    }

    fn report_taken(&self, pieces: u64) -> Result<(), TaskError> {
        self.import.send(TAKEN, &pieces.to_le_bytes()).map_err(TaskError::vmmc)
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, into: &mut [u8]) -> Result<usize, TaskError> {
    let mut done = 0;
    while done < into.len() {
        match file.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}
