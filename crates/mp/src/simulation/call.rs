//! A call of a simulated member that waits: a send, a receive, or both; and what it owns.
//!
//! Invariant: its memory is its caller's, who is here only when it looks.

use super::model::{MessageId, ReceiveId, Turn};
use super::network::{Own, Place};
use super::port::Granted;
use crate::error::MpError;
use crate::state::{Direct, Received};
use crate::transport::Bytes;

/// A call that waits.
#[derive(Default)]
pub(super) struct Call {
    /// Its message and the number of the send, until that is over.
    pub(super) send: Option<(MessageId, u32)>,
    /// What its caller sends.
    pub(super) bytes: Own,
    pub(super) begun: Option<(MessageId, u32)>,
    pub(super) receive: Option<(ReceiveId, u32)>,
    pub(super) memory: Own,
    pub(super) got: Option<Received>,
    pub(super) until: u64,
    /// Why it has failed.
    pub(super) error: Option<MpError>,
    /// The thread that makes it for a collective call, and which of the list that is.
    pub(super) lane: Option<usize>,
    pub(super) turn: Option<Turn>,
}

impl Call {
    /// Whether nothing of it waits.
    pub(super) fn is_settled(&self) -> bool {
        let has_received = self.receive.is_none() || self.got.is_some();
        self.error.is_some() || self.send.is_none() && has_received
    }

    /// What a collective call gets of it.
    pub(super) fn granted(self) -> Granted {
        match (self.error, self.got) {
            (Some(error), _) | (None, Some(Err(error))) => Err(error),
            (None, Some(Ok((envelope, len)))) => Ok(Some((envelope, len, memory_of(&self.memory)))),
            (None, None) => Ok(None),
        }
    }
}

pub(super) fn bytes_of(own: &Own) -> Bytes<'_, Place> {
    match own {
        Own::Bytes(bytes) => Bytes::Slice(bytes),
        Own::Place(place) => Bytes::Place(place),
    }
}

pub(super) fn place_of(own: &Own) -> Option<Place> {
    match own {
        Own::Bytes(_) => None,
        Own::Place(place) => Some(place.clone()),
    }
}

pub(super) fn memory_of(own: &Own) -> Vec<u8> {
    match own {
        Own::Bytes(bytes) => bytes.clone(),
        Own::Place(place) => place.memory.borrow()[place.range.clone()].to_vec(),
    }
}

pub(super) fn direct(own: &mut Own, receive: Option<u32>) -> Direct<'_> {
    match own {
        Own::Bytes(bytes) => Direct { receive, memory: Some(bytes) },
        Own::Place(_) => Direct { receive, memory: None },
    }
}
