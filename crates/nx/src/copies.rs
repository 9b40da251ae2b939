//! Copies of messages that `csend` has returned from, on their way.
//!
//! Invariant: they have at most [`COPIED_BYTES_MAX`] bytes together.

use crate::limits::{COPIED_BYTES_MAX, COPIED_MESSAGE_MAX, IDS_MAX};
use vmmc_mp::Request;

/// Copies on their way, each with its bytes.
#[derive(Default)]
pub(crate) struct Copies {
    under_way: Vec<(Request<Vec<u8>>, usize)>,
    bytes: usize,
}

impl Copies {
    /// Lets those go that are over. One whose receiver has gone is over too.
    pub(crate) fn sweep(&mut self) {
        self.under_way.retain_mut(|(request, len)| {
            let stays = matches!(request.test(), Ok(None));
            if !stays {
                self.bytes -= *len;
            }
            stays
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether one more of so many bytes is kept.
    pub(crate) fn has_room(&mut self, len: usize) -> bool {
        self.sweep();
        len <= COPIED_MESSAGE_MAX && self.bytes + len <= COPIED_BYTES_MAX && self.under_way.len() < IDS_MAX
    }

    pub(crate) fn keep(&mut self, request: Request<Vec<u8>>, len: usize) {
        self.under_way.push((request, len));
        self.bytes += len;
    }
}
