//! Fetches under way through the engine, into any number of pieces of memory.
//!
//! Invariant: what is given up before its end is cut off from the memory first: its pinned pages
//! become private again, and staging memory is read by nobody. Less than a page, and memory that
//! cannot be pinned, comes by way of staging memory, as much at a time as the import may have of
//! it.

use crate::core::Limit;
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::import::Shared;
use crate::limits::{PINNED_EDGED_BYTES_MIN, STAGING_CHUNK_MAX};
use crate::pins::{Body, whole_pages};
use crate::sending::{name, pieces};
use crate::slots::Hold;
use crate::target::Memory;
use std::collections::VecDeque;
use std::ops::Range;
use vmmc_host::abi::{Op, RawCommand};
use vmmc_nic::OpError;
use vmmc_utlb::{Op as Trace, Pages};

/// A fetch by any number of commands.
pub(crate) struct Fetching {
    bytes: u64,
    /// Not posted yet.
    rest: VecDeque<Part>,
    under_way: Vec<Posted>,
    failed: Option<TransferError>,
}

/// What comes by one command.
#[derive(Clone)]
struct Part {
    offset: u64,
    /// Which piece of the memory, and where in it.
    at: usize,
    range: Range<usize>,
    pinned: bool,
}

struct Posted {
    ticket: Ticket,
    /// None if the engine writes to registered memory.
    part: Option<Part>,
    pages: Option<Pages>,
}

impl Fetching {
    /// Of so many bytes in all.
    pub(crate) fn new(bytes: u64) -> Fetching {
        Fetching { bytes, rest: VecDeque::new(), under_way: Vec::new(), failed: None }
    }

    /// Waits for this command too.
    pub(crate) fn wait_for(&mut self, ticket: Ticket) {
        self.under_way.push(Posted { ticket, part: None, pages: None });
    }

    /// Fetches all of a piece by copies.
    pub(crate) fn push_copy(&mut self, shared: &Shared, offset: u64, at: usize, bytes: &[u8]) {
        shared.core.hot.trace(Trace::Fetch, bytes.as_ptr() as usize, bytes.len() as u64);
        self.push_copies(offset, at, 0..bytes.len());
    }

    fn push_copies(&mut self, offset: u64, at: usize, range: Range<usize>) {
        let end = range.end;
        for start in range.clone().step_by(STAGING_CHUNK_MAX as usize) {
            let offset = offset + (start - range.start) as u64;
            let range = start..end.min(start + STAGING_CHUNK_MAX as usize);
            self.rest.push_back(Part { offset, at, range, pinned: false });
        }
    }

    /// Fetches whole pages of a piece to their addresses, and the rest by copies.
    pub(crate) fn push_pages(&mut self, shared: &Shared, offset: u64, at: usize, bytes: &[u8]) {
        let (head, len) = whole_pages(bytes);
        if len == 0 || len < bytes.len() && len < PINNED_EDGED_BYTES_MIN {
            return self.push_copy(shared, offset, at, bytes);
        }
        for range in pieces(head..head + len) {
            self.rest.push_back(Part { offset: offset + range.start as u64, at, range, pinned: true });
        }
        for edge in [0..head, head + len..bytes.len()] {
            self.push_copies(offset + edge.start as u64, at, edge);
        }
    }

    /// Posts what can be posted without waiting for others.
    pub(crate) fn start(
        &mut self,
        shared: &Shared,
        memory: &mut dyn Memory,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        shared.check_deferred()?;
        let posted = self.advance(shared, memory, limit, false);
        let started = posted.and_then(|()| self.failed.clone().map_or(Ok(()), Err));
        if started.is_err() {
            self.give_up(shared, memory);
        }
        started
    }

    /// Its result if it is done.
    pub(crate) fn poll(
        &mut self,
        shared: &Shared,
        memory: &mut dyn Memory,
        limit: &Limit<'_>,
    ) -> Option<Result<u64, TransferError>> {
        // What did not find a place in the ring in time does later.
        let _ = self.advance(shared, memory, limit, false);
        self.is_done().then(|| self.failed.clone().map_or(Ok(self.bytes), Err))
    }

    /// It cannot end any more.
    pub(crate) fn fail(&mut self, shared: &Shared, memory: &mut dyn Memory, error: TransferError) {
        self.failed.get_or_insert(error);
        self.give_up(shared, memory);
    }

    /// Waits for the result; may be called again after [`TransferError::TimedOut`].
    pub(crate) fn wait(
        &mut self,
        shared: &Shared,
        memory: &mut dyn Memory,
        limit: &Limit<'_>,
    ) -> Result<u64, TransferError> {
        loop {
            self.advance(shared, memory, limit, true)?;
            if self.is_done() {
                return self.failed.clone().map_or(Ok(self.bytes), Err);
            }
            let first = self.under_way.first_mut().expect("what is not done waits for something");
            match first.ticket.wait(limit).map_err(|end| shared.end(end, limit.waited())) {
                Ok((result, hold)) => self.arrived(shared, memory, 0, result, hold),
                Err(error @ TransferError::TimedOut { .. }) => return Err(error),
                Err(error) => self.fail(shared, memory, error),
            }
        }
    }

    /// Starts and waits; afterwards nobody writes to the memory.
    pub(crate) fn run(
        mut self,
        shared: &Shared,
        memory: &mut dyn Memory,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        let result = self.start(shared, memory, limit).and_then(|()| self.wait(shared, memory, limit));
        self.give_up(shared, memory);
        result.map(drop)
    }

    /// Cuts what is under way off from the memory.
    pub(crate) fn give_up(&mut self, shared: &Shared, memory: &mut dyn Memory) {
        self.rest.clear();
        for posted in std::mem::take(&mut self.under_way) {
            if let (Some(part), Some(_)) = (posted.part, posted.pages) {
                shared.core.pins.withdraw(&mut memory.place(part.at)[part.range]);
            }
        }
    }

    /// Whether a [`poll`](Self::poll) would find something to do.
    pub(crate) fn may_advance(&self) -> bool {
        self.is_done() || self.under_way.iter().any(|posted| posted.ticket.is_done())
    }

    /// Whether nothing is under way whose end would make room for the rest.
    pub(crate) fn is_starved(&self) -> bool {
        self.under_way.is_empty() && !self.is_done()
    }

    fn is_done(&self) -> bool {
        self.under_way.is_empty() && (self.rest.is_empty() || self.failed.is_some())
    }

    /// Takes what has come, and posts what there is room for; waits for room only if `must`, and if
    /// nothing is under way that would make some. An error: there was none in time.
    fn advance(
        &mut self,
        shared: &Shared,
        memory: &mut dyn Memory,
        limit: &Limit<'_>,
        must: bool,
    ) -> Result<(), TransferError> {
        let mut at = 0;
        while let Some(posted) = self.under_way.get_mut(at) {
            match posted.ticket.poll() {
                Some((result, hold)) => self.arrived(shared, memory, at, result, hold),
                None => at += 1,
            }
        }
        while self.failed.is_none() {
            let Some(part) = self.rest.pop_front() else { break };
            let wait = must && self.under_way.is_empty();
            let posted = self.post(shared, memory, part.clone(), limit, wait);
            match posted {
                Ok(true) => {}
                Ok(false) => {
                    self.rest.push_front(part);
                    break;
                }
                Err(error @ TransferError::TimedOut { .. }) => {
                    self.rest.push_front(part);
                    return Err(error);
                }
                Err(error) => self.failed = Some(error),
            }
        }
        Ok(())
    }

    /// Whether there was room for it.
    fn post(
        &mut self,
        shared: &Shared,
        memory: &mut dyn Memory,
        part: Part,
        limit: &Limit<'_>,
        wait: bool,
    ) -> Result<bool, TransferError> {
        let Part { offset, at, range, pinned } = part.clone();
        if pinned {
            let bytes = &mut memory.place(at)[range.clone()];
            let held = shared.core.pins.hold(&shared.core, Body::Fetch(bytes), || limit.deadline());
            let Some(pages) = held else {
                self.push_copies(offset, at, range);
                return Ok(true);
            };
            let mut command = RawCommand::new(Op::Fetch, shared.id);
            command.offset = offset;
            name(&mut command, &memory.place(at)[range]);
            let ticket = shared.post_answered(&mut command, Hold::Pages(pages), limit)?;
            self.under_way.push(Posted { ticket, part: Some(part), pages: Some(pages) });
            return Ok(true);
        }
        match shared.fetch_chunk(offset, range.len() as u64, wait, limit)? {
            Some(ticket) => self.under_way.push(Posted { ticket, part: Some(part), pages: None }),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn arrived(
        &mut self,
        shared: &Shared,
        memory: &mut dyn Memory,
        at: usize,
        result: Result<u64, OpError>,
        hold: Hold,
    ) {
        let Posted { part, pages, .. } = self.under_way.swap_remove(at);
        match (result, part, pages) {
            (Ok(_), Some(part), None) => shared.take_chunk(&hold, &mut memory.place(part.at)[part.range]),
            (Err(OpError::NotPinned { .. }), Some(part), Some(pages)) => {
                shared.core.pins.distrust(pages);
                self.push_copies(part.offset, part.at, part.range);
            }
            (Ok(_), ..) => {}
            (Err(error), ..) => self.failed = self.failed.take().or(Some(shared.op_error(error))),
        }
        shared.core.release(hold);
    }
}
