//! Sends from and fetches into any memory of the caller's, without a copy on the way. [UTLB §3,
//! §4.1]
//!
//! Invariant: only whole pages inside the caller's slice are named by a command, because only those
//! have no other writer; the ends go by copies of their own. The bytes of a send become visible in
//! the order that any send promises: its last piece is posted when the others have arrived. A fetch
//! that is given up leaves nobody who writes to the caller's memory: its pages become private
//! again.

use crate::core::{Limit, count};
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::import::{Import, SendOptions, Shared};
use crate::limits::{PINNED_EDGED_BYTES_MIN, PINNED_PIECE_PAGES};
use crate::pins::{Body, whole_pages};
use crate::slots::Hold;
use std::ops::Range;
use vmmc_host::abi::{ADDRESSES, Op, RawCommand};
use vmmc_host::region::PAGE_BYTES;
use vmmc_nic::{OpError, Rights};
use vmmc_utlb::Pages;

/// Longest piece, bytes.
const PIECE_BYTES: usize = PINNED_PIECE_PAGES * PAGE_BYTES;

impl Import {
    /// Sends from any memory without a copy on the way; returns when the memory may be reused. Its
    /// whole pages are pinned at first use and stay pinned, so that later sends cost a look at a
    /// table. Memory that cannot be pinned (a stack, a file, a few bytes) is copied, and so are [a
    /// few pages](crate::PinOptions::copied_up_to) that nobody has [lent](crate::Session::lend):
    /// that is faster than to make sure that they still are where they were pinned.
    ///
    /// # Errors
    /// [`TransferError`]; after [`TransferError::TimedOut`] the memory may still be read.
    pub fn send_pinned(&self, offset: u64, data: &[u8]) -> Result<(), TransferError> {
        self.send_pinned_with(offset, data, SendOptions::default())
    }

    /// [`send_pinned`](Self::send_pinned) with choices.
    ///
    /// # Errors
    /// As for [`send_pinned`](Self::send_pinned).
    pub fn send_pinned_with(&self, offset: u64, data: &[u8], options: SendOptions) -> Result<(), TransferError> {
        if self.shared.core.pins.copies(data.len()) {
            return self.send_with(offset, data, options);
        }
        self.send_pinned_as(offset, data, options, Body::Send)
    }

    /// The same from memory of either kind.
    #[inline]
    pub(crate) fn send_pinned_as<'a>(
        &self,
        offset: u64,
        data: &'a [u8],
        options: SendOptions,
        kind: impl Fn(&'a [u8]) -> Body<'a>,
    ) -> Result<(), TransferError> {
        let shared = &*self.shared;
        shared.check_send(offset, data.len() as u64, options.counter)?;
        let (head, len) = whole_pages(data);
        let body = head..head + len;
        let has_edges = len < data.len();
        if self.mapped.is_some() || len == 0 || has_edges && (options.notify.is_some() || len < PINNED_EDGED_BYTES_MIN)
        {
            return self.send_with(offset, data, options);
        }
        shared.check_trouble()?;
        if head > 0 {
            shared.send_engine(offset, &data[..head], SendOptions::default())?;
        }
        let limit = &shared.limit(options);
        if !has_edges && len <= PIECE_BYTES {
            let posted = shared.send_body(offset, data, body, options, limit, &kind)?;
            return posted.map_or(Ok(()), |piece| shared.arrived(offset, data, options, piece, limit));
        }
        let mut under_way = Vec::new();
        for piece in pieces(body.clone()) {
            let last = piece.end == data.len();
            if piece.end == body.end {
                shared.arrive(offset, data, SendOptions::default(), &mut under_way, limit)?;
            }
            let choices = if last { options } else { SendOptions::default() };
            under_way.extend(shared.send_body(offset, data, piece, choices, limit, &kind)?);
        }
        if body.end == data.len() {
            return shared.arrive(offset, data, options, &mut under_way, limit);
        }
        shared.arrive(offset, data, SendOptions::default(), &mut under_way, limit)?;
        shared.send_engine(offset + body.end as u64, &data[body.end..], options)
    }

    /// Remote fetch into any memory without a copy on the way; pins as
    /// [`send_pinned`](Self::send_pinned) does.
    ///
    /// # Errors
    /// [`TransferError`]; the memory may have been written in part, and is not written any more.
    pub fn fetch_pinned(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        let shared = &*self.shared;
        let (head, len) = whole_pages(into);
        let has_edges = len < into.len();
        if self.mapped.is_some() || len == 0 || has_edges && len < PINNED_EDGED_BYTES_MIN {
            return self.fetch(offset, into);
        }
        shared.check(Rights::READ, offset, into.len() as u64)?;
        shared.check_trouble()?;
        let limit = &shared.limit(SendOptions::default());
        let mut under_way = Vec::new();
        let posted = shared.fetch_pieces(offset, into, head..head + len, &mut under_way, limit);
        let edges = posted.and_then(|()| {
            shared.fetch_edge(offset, into, 0..head)?;
            shared.fetch_edge(offset, into, head + len..into.len())
        });
        let mut result = edges;
        for (ticket, piece, pages) in under_way {
            let one = shared.fetched(offset, into, ticket, piece, pages, limit);
            result = result.and(one);
        }
        result
    }
}

/// A command with addresses under way: who waits for it, which bytes of the slice, their pages.
pub(crate) type Piece = (Ticket, Range<usize>, Pages);

pub(crate) fn pieces(body: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = body.end;
    body.step_by(PIECE_BYTES).map(move |start| start..(start + PIECE_BYTES).min(end))
}

impl Shared {
    /// Posts a piece of a send, or sends it by copy.
    pub(crate) fn send_piece(
        &self,
        offset: u64,
        data: &[u8],
        piece: Range<usize>,
        options: SendOptions,
        limit: &Limit<'_>,
    ) -> Result<Option<Piece>, TransferError> {
        self.send_body(offset, data, piece, options, limit, &Body::Send)
    }

    #[inline]
    fn send_body<'a>(
        &self,
        offset: u64,
        data: &'a [u8],
        piece: Range<usize>,
        options: SendOptions,
        limit: &Limit<'_>,
        kind: &impl Fn(&'a [u8]) -> Body<'a>,
    ) -> Result<Option<Piece>, TransferError> {
        let bytes = &data[piece.clone()];
        let Some(pages) = self.core.pins.hold(&self.core, kind(bytes), || limit.deadline()) else {
            self.send_engine(offset + piece.start as u64, bytes, options)?;
            return Ok(None);
        };
        count(&self.core.counters.send_bytes, bytes.len() as u64);
        let mut command = self.send_command(offset + piece.start as u64, options);
        name(&mut command, bytes);
        let ticket = self.post_answered(&mut command, Hold::Pages(pages), limit)?;
        Ok(Some((ticket, piece, pages)))
    }

    /// Waits until all pieces have arrived.
    fn arrive(
        &self,
        offset: u64,
        data: &[u8],
        options: SendOptions,
        under_way: &mut Vec<Piece>,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        under_way.drain(..).try_for_each(|piece| self.arrived(offset, data, options, piece, limit))
    }

    /// Waits until a piece has arrived; if the node no longer knew its pages it is sent by copy.
    fn arrived(
        &self,
        offset: u64,
        data: &[u8],
        options: SendOptions,
        (mut ticket, piece, pages): Piece,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        let (result, hold) = ticket.wait(limit).map_err(|end| self.end(end, limit.waited()))?;
        self.core.release(hold);
        match result {
            Ok(_) => Ok(()),
            Err(OpError::NotPinned { .. }) => {
                self.core.pins.distrust(pages);
                self.send_engine(offset + piece.start as u64, &data[piece], options)
            }
            Err(error) => Err(self.op_error(error)),
        }
    }

    pub(crate) fn fetch_pieces(
        &self,
        offset: u64,
        into: &mut [u8],
        body: Range<usize>,
        under_way: &mut Vec<Piece>,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        for piece in pieces(body) {
            let bytes = &mut into[piece.clone()];
            match self.core.pins.hold(&self.core, Body::Fetch(bytes), || limit.deadline()) {
                Some(pages) => {
                    self.count_fetch(piece.len() as u64);
                    let mut command = RawCommand::new(Op::Fetch, self.id);
                    command.offset = offset + piece.start as u64;
                    name(&mut command, &into[piece.clone()]);
                    let ticket = self.post_answered(&mut command, Hold::Pages(pages), limit)?;
                    under_way.push((ticket, piece, pages));
                }
                None => self.fetch_engine(offset + piece.start as u64, bytes)?,
            }
        }
        Ok(())
    }

    fn fetch_edge(&self, offset: u64, into: &mut [u8], edge: Range<usize>) -> Result<(), TransferError> {
        if edge.is_empty() { Ok(()) } else { self.fetch_engine(offset + edge.start as u64, &mut into[edge]) }
    }

    /// Waits for a piece of a fetch. One that does not come is cut off from the memory.
    fn fetched(
        &self,
        offset: u64,
        into: &mut [u8],
        mut ticket: Ticket,
        piece: Range<usize>,
        pages: Pages,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        let bytes = &mut into[piece.clone()];
        let (result, hold) = match ticket.wait(limit) {
            Ok(answer) => answer,
            Err(end) => {
                self.core.pins.withdraw(bytes);
                return Err(self.end(end, limit.waited()));
            }
        };
        self.core.release(hold);
        match result {
            Ok(_) => Ok(()),
            Err(OpError::NotPinned { .. }) => {
                self.core.pins.distrust(pages);
                self.fetch_engine(offset + piece.start as u64, bytes)
            }
            Err(error) => Err(self.op_error(error)),
        }
    }
}

/// Names the caller's memory by its address.
fn name(command: &mut RawCommand, bytes: &[u8]) {
    command.region = ADDRESSES;
    command.region_offset = bytes.as_ptr() as u64;
    command.len = bytes.len() as u64;
}
