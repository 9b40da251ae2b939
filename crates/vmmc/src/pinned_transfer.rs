//! Transfers of any memory under way: handles to sends and fetches that pin, and memory that is
//! lent for a while.
//!
//! Invariant: the pages of a transfer under way are held, so no policy gives them up. A send
//! borrows its memory until it has arrived. A fetch owns its memory, because a handle may be
//! forgotten: then the memory is never used for anything else. What is given up before its end is
//! cut off from the memory first.

use crate::core::Limit;
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::import::{Import, SendOptions, Shared};
use crate::limits::PINNED_EDGED_BYTES_MIN;
use crate::pinned::{Piece, pieces};
use crate::pins::{Body, whole_pages};
use crate::slots::Hold;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use vmmc_host::Deadline;
use vmmc_nic::{OpError, Rights};

/// Memory that its owner leaves in place for as long as this value lives, which the borrow proves:
/// nobody can unmap or move it meanwhile, so a send from it needs no look at what other threads do
/// to mappings. Made by [`Session::lend`](crate::Session::lend).
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a>(pub(crate) &'a [u8]);

impl<'a> Lent<'a> {
    /// The memory.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A send from the caller's own memory under way; made by [`Import::send_pinned_async`]. Dropping
/// it waits the session's timeout for its end.
#[must_use = "dropped at once it waits at once"]
pub struct PinnedSend<'a> {
    shared: Arc<Shared>,
    data: &'a [u8],
    offset: u64,
    options: SendOptions,
    /// What is posted when all that is under way has arrived; the last one carries the options.
    rest: VecDeque<Part>,
    under_way: Vec<Piece>,
    result: Option<Result<u64, TransferError>>,
}

enum Part {
    Pages(Range<usize>),
    Copied(Range<usize>),
}

impl PinnedSend<'_> {
    /// Its result if it is done: bytes moved. Steps an embedded node.
    pub fn poll(&mut self) -> Option<Result<u64, TransferError>> {
        if self.result.is_none() {
            let shared = self.shared.clone();
            shared.core.step();
            shared.core.collect_if_free();
            self.advance(&Limit::within(&shared.core, shared.core.timeout()));
            if let (None, Some(end)) = (&self.result, shared.core.usable().err()) {
                self.result = Some(Err(shared.end(end, Default::default())));
            }
        }
        self.result.clone()
    }

    /// Waits the session's timeout for the result: bytes moved.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn wait(mut self) -> Result<u64, TransferError> {
        self.wait_on()
    }

    /// As [`wait`](Self::wait); may be called again after [`TransferError::TimedOut`].
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn wait_on(&mut self) -> Result<u64, TransferError> {
        let deadline = self.shared.core.default_deadline();
        self.wait_by(deadline)
    }

    /// As [`wait`](Self::wait), until a deadline; may be called again after
    /// [`TransferError::TimedOut`].
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn wait_by(&mut self, deadline: Deadline) -> Result<u64, TransferError> {
        let shared = self.shared.clone();
        let limit = &Limit::until(&shared.core, deadline);
        loop {
            self.advance(limit);
            if let Some(result) = &self.result {
                return result.clone();
            }
            let (ticket, ..) = self.under_way.first_mut().expect("what is not done waits for something");
            let answer = ticket.wait(limit).map_err(|end| shared.end(end, limit.waited()));
            let (result, hold) = match answer {
                Ok(answer) => answer,
                Err(error @ TransferError::TimedOut { .. }) => return Err(error),
                Err(error) => {
                    self.result = Some(Err(error.clone()));
                    return Err(error);
                }
            };
            self.arrived(0, result, hold);
        }
    }

    /// Takes what has come, and posts what waited for it.
    fn advance(&mut self, limit: &Limit<'_>) {
        let mut at = 0;
        while self.result.is_none() {
            if let Some((ticket, ..)) = self.under_way.get_mut(at) {
                match ticket.poll() {
                    Some((result, hold)) => self.arrived(at, result, hold),
                    None => at += 1,
                }
            } else if !self.under_way.is_empty() {
                return;
            } else if let Some(part) = self.rest.pop_front() {
                let options = if self.rest.is_empty() { self.options } else { SendOptions::default() };
                self.post(part, options, limit);
                at = 0;
            } else {
                self.result = Some(Ok(self.data.len() as u64));
            }
        }
    }

    fn post(&mut self, part: Part, options: SendOptions, limit: &Limit<'_>) {
        let posted = match part {
            Part::Pages(piece) => self.shared.send_piece(self.offset, self.data, piece, options, limit),
            Part::Copied(range) => {
                let at = self.offset + range.start as u64;
                self.shared.send_engine(at, &self.data[range], options).map(|()| None)
            }
        };
        match posted {
            Ok(piece) => self.under_way.extend(piece),
            Err(error) => self.result = Some(Err(error)),
        }
    }

    fn arrived(&mut self, at: usize, result: Result<u64, OpError>, hold: Hold) {
        let (_, piece, pages) = self.under_way.swap_remove(at);
        self.shared.core.release(hold);
        match result {
            Ok(_) => {}
            Err(OpError::NotPinned { .. }) => {
                self.shared.core.pins.distrust(pages);
                self.rest.push_front(Part::Copied(piece));
            }
            Err(error) => self.result = Some(Err(self.shared.op_error(error))),
        }
    }
}

impl Drop for PinnedSend<'_> {
    fn drop(&mut self) {
        if self.result.is_none() {
            let deadline = self.shared.core.default_deadline();
            // Whoever drops it does not want to know.
            let _ = self.wait_by(deadline);
        }
    }
}

/// A fetch into memory of the caller's under way; made by [`Import::fetch_pinned_async`]. Dropping
/// it gives it up: its memory is cut off from the node, then freed.
#[must_use = "a fetch that nobody waits for is given up"]
pub struct PinnedFetch {
    shared: Arc<Shared>,
    into: Vec<u8>,
    offset: u64,
    under_way: Vec<Piece>,
    /// Less than a page, by way of staging memory.
    edges: Vec<(Ticket, Range<usize>)>,
    failed: Option<TransferError>,
}

impl PinnedFetch {
    /// Whether it is done, well or not: [`wait`](Self::wait) then returns at once. Steps an
    /// embedded node.
    pub fn poll(&mut self) -> bool {
        let shared = self.shared.clone();
        if !self.is_done() {
            shared.core.step();
            shared.core.collect_if_free();
            self.take_answers();
        }
        if let (false, Some(end)) = (self.is_done(), shared.core.usable().err()) {
            self.failed.get_or_insert_with(|| shared.end(end, Default::default()));
            self.give_up();
        }
        self.is_done()
    }

    /// Waits the session's timeout. The memory comes back in any case; after an error it may have
    /// been written in part, and is not written any more.
    pub fn wait(self) -> (Vec<u8>, Result<(), TransferError>) {
        let deadline = self.shared.core.default_deadline();
        self.wait_by(deadline)
    }

    /// As [`wait`](Self::wait), until a deadline, at which the fetch is given up.
    pub fn wait_by(mut self, deadline: Deadline) -> (Vec<u8>, Result<(), TransferError>) {
        let shared = self.shared.clone();
        let limit = &Limit::until(&shared.core, deadline);
        self.take_answers();
        while !self.is_done() {
            let ended = if let Some((ticket, ..)) = self.under_way.first_mut() {
                ticket.wait(limit).map(|(result, hold)| self.page_answer(0, result, hold))
            } else {
                let (ticket, _) = self.edges.first_mut().expect("not done means something is under way");
                ticket.wait(limit).map(|(result, hold)| self.edge_answer(0, result, hold))
            };
            if let Err(end) = ended {
                self.failed.get_or_insert_with(|| shared.end(end, limit.waited()));
                self.give_up();
            }
        }
        let result = self.failed.take().map_or(Ok(()), Err);
        (std::mem::take(&mut self.into), result)
    }

    fn is_done(&self) -> bool {
        self.under_way.is_empty() && self.edges.is_empty()
    }

    fn take_answers(&mut self) {
        let mut at = 0;
        while let Some((ticket, ..)) = self.under_way.get_mut(at) {
            match ticket.poll() {
                Some((result, hold)) => self.page_answer(at, result, hold),
                None => at += 1,
            }
        }
        let mut at = 0;
        while let Some((ticket, _)) = self.edges.get_mut(at) {
            match ticket.poll() {
                Some((result, hold)) => self.edge_answer(at, result, hold),
                None => at += 1,
            }
        }
    }

    fn page_answer(&mut self, at: usize, result: Result<u64, OpError>, hold: Hold) {
        let (_, piece, pages) = self.under_way.swap_remove(at);
        self.shared.core.release(hold);
        match result {
            Ok(_) => {}
            Err(OpError::NotPinned { .. }) => {
                self.shared.core.pins.distrust(pages);
                let again = self.shared.fetch_engine(self.offset + piece.start as u64, &mut self.into[piece]);
                self.keep(again);
            }
            Err(error) => self.keep(Err(self.shared.op_error(error))),
        }
    }

    fn edge_answer(&mut self, at: usize, result: Result<u64, OpError>, hold: Hold) {
        let (_, range) = self.edges.swap_remove(at);
        match result {
            Ok(_) => self.shared.take_chunk(&hold, &mut self.into[range]),
            Err(error) => self.keep(Err(self.shared.op_error(error))),
        }
        self.shared.core.release(hold);
    }

    fn keep(&mut self, result: Result<(), TransferError>) {
        self.failed = self.failed.take().or(result.err());
    }

    /// Cuts what is under way off from the memory.
    fn give_up(&mut self) {
        for (_, piece, _) in std::mem::take(&mut self.under_way) {
            self.shared.core.pins.withdraw(&mut self.into[piece]);
        }
        self.edges.clear();
    }
}

impl Drop for PinnedFetch {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Import {
    /// Sends from any memory without a copy on the way, and without waiting: the memory stays
    /// borrowed until the handle is done. Several may be under way; their pages are given up for no
    /// other transfer. Bytes become visible in the order that any send promises. Memory that cannot
    /// be pinned is copied before the call returns.
    ///
    /// # Errors
    /// [`TransferError`]; later errors come with the handle.
    pub fn send_pinned_async<'a>(
        &self,
        offset: u64,
        data: &'a [u8],
        options: SendOptions,
    ) -> Result<PinnedSend<'a>, TransferError> {
        let shared = &*self.shared;
        shared.check_send(offset, data.len() as u64, options.counter)?;
        let mut send = PinnedSend {
            shared: self.shared.clone(),
            data,
            offset,
            options,
            rest: VecDeque::new(),
            under_way: Vec::new(),
            result: None,
        };
        let (head, len) = whole_pages(data);
        let has_edges = len < data.len();
        let short = has_edges && (options.notify.is_some() || len < PINNED_EDGED_BYTES_MIN)
            || shared.core.pins.copies(data.len());
        if self.mapped.is_some() || len == 0 || short {
            self.send_with(offset, data, options)?;
            send.result = Some(Ok(data.len() as u64));
            return Ok(send);
        }
        shared.check_trouble()?;
        let limit = &shared.limit(options);
        if head > 0 {
            shared.send_engine(offset, &data[..head], SendOptions::default())?;
        }
        send.rest = pieces(head..head + len).map(Part::Pages).collect();
        // All but the last go at once.
        while send.rest.len() > 1 {
            let Some(part) = send.rest.pop_front() else { break };
            send.post(part, SendOptions::default(), limit);
        }
        if head + len < data.len() {
            send.rest.push_back(Part::Copied(head + len..data.len()));
        }
        send.advance(limit);
        match &send.result {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(send),
        }
    }

    /// Remote fetch into memory that is given away for the time, without a copy on the way and
    /// without waiting. Several may be under way. Pages that cannot be pinned are fetched before
    /// the call returns.
    ///
    /// # Errors
    /// [`TransferError`]; later errors come with the handle.
    pub fn fetch_pinned_async(&self, offset: u64, into: Vec<u8>) -> Result<PinnedFetch, TransferError> {
        let shared = &*self.shared;
        shared.check(Rights::READ, offset, into.len() as u64)?;
        let mut fetch = PinnedFetch {
            shared: self.shared.clone(),
            into,
            offset,
            under_way: Vec::new(),
            edges: Vec::new(),
            failed: None,
        };
        let (head, len) = whole_pages(&fetch.into);
        if self.mapped.is_some() || len == 0 || len < fetch.into.len() && len < PINNED_EDGED_BYTES_MIN {
            self.fetch(offset, &mut fetch.into)?;
            return Ok(fetch);
        }
        shared.check_trouble()?;
        let limit = &shared.limit(SendOptions::default());
        let end = fetch.into.len();
        shared.fetch_pieces(offset, &mut fetch.into, head..head + len, &mut fetch.under_way, limit)?;
        for edge in [0..head, head + len..end] {
            if !edge.is_empty() {
                let ticket = shared.fetch_chunk(offset + edge.start as u64, edge.len() as u64, limit)?;
                fetch.edges.push((ticket, edge));
            }
        }
        Ok(fetch)
    }

    /// As [`send_pinned`](Self::send_pinned), from memory that is [lent](crate::Session::lend): a
    /// later use makes no system call at all.
    ///
    /// # Errors
    /// As for [`send_pinned`](Self::send_pinned).
    pub fn send_lent(&self, offset: u64, data: Lent<'_>, range: Range<usize>) -> Result<(), TransferError> {
        let bytes = data.0.get(range.clone()).ok_or_else(|| TransferError::BufferOutOfBounds {
            import: self.shared.label.clone(),
            offset: range.start as u64,
            len: range.len() as u64,
            size: data.0.len() as u64,
        })?;
        self.send_pinned_as(offset, bytes, SendOptions::default(), Body::Lent)
    }
}
