//! A two-way stream of messages between two processes, made of one export on either side: how a
//! launcher and its supervisors talk, within a node and between nodes.
//!
//! ```text
//!   launcher                                    supervisor
//!   inbox:  tail │ acked │ ring   ◀── send ───   (imports it)
//!   (imports it)                  ─── send ──▶   inbox:  tail │ acked │ ring
//! ```
//!
//! The writer puts bytes into the other side's ring, then the count of all bytes so far into
//! `tail`, and notifies. The reader writes how many it has taken into the writer's `acked`, for
//! each quarter of the ring.
//!
//! Invariant: `taken <= tail <= taken + RING`, else the other side is not one of ours and the link
//! is broken; nothing here waits for the other side.

use crate::error::LinkError;
use crate::limits::{LINK_MESSAGE_BYTES_MAX, LINK_PIECE_BYTES, LINK_RING_BYTES};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use vmmc::{Export, Import, SendOptions, Session, TransferError};
use vmmc_host::control::{decode, encode};

/// Offset of the count of bytes written here.
const TAIL: u64 = 0;
/// Offset of the count of bytes that the other side has taken of ours.
const ACKED: u64 = 64;
/// Offset of the ring.
const RING: u64 = 128;

/// One side of a link, before and after the other side is known.
pub struct Link {
    session: Session,
    inbox: Export,
    peer: Option<Import>,
    /// Bytes written to the other side.
    sent: u64,
    /// Bytes taken from our ring.
    taken: u64,
    /// What the other side has been sent of that.
    acked: u64,
    out: VecDeque<u8>,
    /// Bytes that have come and are no whole message yet.
    partial: VecDeque<u8>,
}

impl Link {
    /// Our side, for the other one to import.
    ///
    /// # Errors
    /// [`LinkError::Export`].
    pub fn listen(session: &Session, name: &str) -> Result<Link, LinkError> {
        let inbox = session.export(RING + LINK_RING_BYTES).name(name).notify(true).create()?;
        let (out, partial) = (VecDeque::new(), VecDeque::new());
        Ok(Link { session: session.clone(), inbox, peer: None, sent: 0, taken: 0, acked: 0, out, partial })
    }

    /// The other side is known: queued messages wait no longer.
    pub fn connect(&mut self, peer: Import) {
        self.peer = Some(peer);
    }

    /// Why no more messages can pass, if so.
    pub fn broken(&self) -> Option<TransferError> {
        self.peer.as_ref().and_then(Import::broken)
    }

    /// Whether the other side has imported ours. It asks the node, so it is for the time before
    /// anything was sent.
    ///
    /// # Errors
    /// [`LinkError::Call`].
    pub fn is_imported(&self) -> Result<bool, LinkError> {
        let id = self.inbox.id().to_u64();
        let info = self.session.node_info(true)?;
        Ok(info.exports.iter().any(|export| export.export == id && export.importers > 0))
    }

    /// Queues a message; [`pump`](Self::pump) moves it.
    pub fn send<M: Serialize>(&mut self, message: &M) {
        let bytes = encode(message);
        self.out.extend((bytes.len() as u32).to_le_bytes());
        self.out.extend(bytes);
    }

    /// Bytes that wait for room at the other side.
    pub fn waiting_bytes(&self) -> usize {
        self.out.len()
    }

    /// Moves what can be moved without waiting, both ways.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn pump(&mut self) -> Result<(), LinkError> {
        self.take_in()?;
        self.put_out()
    }

    /// Takes in what has come; returns whether that was anything. [`pump`](Self::pump) does it too;
    /// a caller that cannot use more messages now leaves both, and the other side waits.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn take_in(&mut self) -> Result<bool, LinkError> {
        while self.inbox.take_notification().is_some() {}
        let tail = self.word(TAIL);
        let came = tail.wrapping_sub(self.taken);
        if came > LINK_RING_BYTES {
            return Err(LinkError::Protocol { what: format!("{came} bytes in a ring of {LINK_RING_BYTES}") });
        }
        let mut piece = vec![0; came as usize];
        let at = self.taken % LINK_RING_BYTES;
        let first = came.min(LINK_RING_BYTES - at) as usize;
        let inside = "the ring lies in the export";
        self.inbox.read(RING + at, &mut piece[..first]).expect(inside);
        self.inbox.read(RING, &mut piece[first..]).expect(inside);
        self.partial.extend(piece);
        self.taken = tail;
        if self.taken - self.acked >= LINK_RING_BYTES / 4 {
            if let Some(peer) = &self.peer {
                peer.send_with(ACKED, &self.taken.to_le_bytes(), SendOptions::notify())?;
                self.acked = self.taken;
            }
        }
        Ok(came > 0)
    }

    /// The next whole message.
    ///
    /// # Errors
    /// [`LinkError::Protocol`].
    pub fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, LinkError> {
        if self.partial.len() < 4 {
            return Ok(None);
        }
        let head: Vec<u8> = self.partial.iter().take(4).copied().collect();
        let len = u32::from_le_bytes(head.try_into().expect("four bytes were taken")) as usize;
        if len > LINK_MESSAGE_BYTES_MAX {
            return Err(LinkError::Protocol { what: format!("a message of {len} bytes") });
        }
        if self.partial.len() < 4 + len {
            return Ok(None);
        }
        self.partial.drain(..4);
        let bytes: Vec<u8> = self.partial.drain(..len).collect();
        decode(&bytes).map(Some).map_err(|e| LinkError::Protocol { what: e.to_string() })
    }

    /// Sends what is queued, as far as there is room.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn put_out(&mut self) -> Result<(), LinkError> {
        let Some(peer) = &self.peer else { return Ok(()) };
        while !self.out.is_empty() {
            let under_way = self.sent.wrapping_sub(self.word(ACKED));
            if under_way > LINK_RING_BYTES {
                return Err(LinkError::Protocol { what: format!("{under_way} bytes under way") });
            }
            let at = self.sent % LINK_RING_BYTES;
            let room = (LINK_RING_BYTES - under_way).min(LINK_RING_BYTES - at).min(LINK_PIECE_BYTES);
            let len = (self.out.len() as u64).min(room) as usize;
            if len == 0 {
                return Ok(());
            }
            let piece: Vec<u8> = self.out.iter().take(len).copied().collect();
            peer.send(RING + at, &piece)?;
            self.sent += len as u64;
            peer.send_with(TAIL, &self.sent.to_le_bytes(), SendOptions::notify())?;
            self.out.drain(..len);
        }
        Ok(())
    }

    fn word(&self, offset: u64) -> u64 {
        self.inbox.word(offset).expect("the head of the inbox has aligned words").load(Ordering::Acquire)
    }
}
