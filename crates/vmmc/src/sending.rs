//! Sends that go by several commands: from the caller's own memory, by the program's own table, or
//! from several pieces. [UTLB §3, §4.1]
//!
//! Invariant: only whole pages inside the caller's slice are named by a command, because only those
//! have no other writer; the ends go by copies. The bytes of a send become visible in the order
//! that any send promises: its last command is posted when the others have arrived, unless none of
//! them can come back to be sent again. The pages of a command under way are held, so no policy
//! gives them up.

use crate::buffer::{Buffer, BufferRange};
use crate::core::{Limit, count};
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::import::{SendOptions, Shared};
use crate::limits::{PINNED_EDGED_BYTES_MIN, PINNED_PIECE_PAGES};
use crate::pinned_table::Indexed;
use crate::pins::{Body, whole_pages};
use crate::slots::Hold;
use crate::source::joined;
use std::collections::VecDeque;
use std::ops::Range;
use vmmc_host::abi::{ADDRESSES, RawCommand};
use vmmc_host::region::PAGE_BYTES;
use vmmc_nic::OpError;
use vmmc_utlb::Pages;

/// Longest piece of the caller's own memory in one command, bytes.
const PIECE_BYTES: usize = PINNED_PIECE_PAGES * PAGE_BYTES;

/// A send of several commands.
pub(crate) struct Sending<'a> {
    bytes: u64,
    /// Whether its end is told when all has arrived; else when the source may be changed.
    answered: bool,
    /// Not posted yet.
    rest: VecDeque<Part<'a>>,
    under_way: Vec<Posted<'a>>,
    result: Option<Result<u64, TransferError>>,
}

/// What goes by one command, unless it must be copied.
#[derive(Clone)]
struct Part<'a> {
    offset: u64,
    options: SendOptions,
    memory: Memory<'a>,
}

#[derive(Clone)]
enum Memory<'a> {
    Copied(&'a [u8]),
    Owned(Vec<u8>),
    Registered(Buffer, Range<u64>),
    /// Whole pages; whether they are lent.
    Pages(&'a [u8], bool),
    /// Whether the node was asked for them once more.
    Entries(Indexed<'a>, bool),
}

/// A command under way, and what to send again if the node does not know its memory any more.
struct Posted<'a> {
    ticket: Ticket,
    again: Option<Part<'a>>,
    pages: Option<Pages>,
}

impl<'a> Sending<'a> {
    /// Of so many bytes in all.
    pub(crate) fn new(bytes: u64, answered: bool) -> Sending<'a> {
        Sending { bytes, answered, rest: VecDeque::new(), under_way: Vec::new(), result: None }
    }

    /// Whether it is posted, and the source may be changed before it is done if it is copied.
    pub(crate) fn answered(&self) -> bool {
        self.answered
    }

    /// Waits for this command too.
    pub(crate) fn wait_for(&mut self, ticket: Ticket) {
        self.under_way.push(Posted { ticket, again: None, pages: None });
    }

    /// Copies now. Posts the copy too, unless it must wait for its turn.
    pub(crate) fn queue_copy(
        &mut self,
        shared: &Shared,
        offset: u64,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<(), TransferError> {
        if self.rest.is_empty() {
            return self.post_copy(shared, offset, bytes, options);
        }
        self.rest.push_back(Part { offset, options, memory: Memory::Owned(bytes.to_vec()) });
        Ok(())
    }

    fn post_copy(
        &mut self,
        shared: &Shared,
        offset: u64,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<(), TransferError> {
        if !self.answered {
            return shared.send_engine(offset, bytes, options);
        }
        self.wait_for(shared.send_copied(offset, bytes, options)?);
        Ok(())
    }

    /// Copies when it is its turn.
    pub(crate) fn push_copy(&mut self, offset: u64, bytes: &'a [u8], options: SendOptions) {
        self.rest.push_back(Part { offset, options, memory: Memory::Copied(bytes) });
    }

    pub(crate) fn push_registered(&mut self, offset: u64, from: &BufferRange<'_>, options: SendOptions) {
        let memory = Memory::Registered(from.buffer.clone(), from.range.clone());
        self.rest.push_back(Part { offset, options, memory });
    }

    /// The caller's own memory: whole pages by address, the rest by copies; the last part carries
    /// the options.
    pub(crate) fn push_pages(&mut self, offset: u64, bytes: &'a [u8], lent: bool, options: SendOptions) {
        let Some(body) = pinnable(bytes, options) else { return self.push_copy(offset, bytes, options) };
        let plain = SendOptions { timeout: options.timeout, ..SendOptions::default() };
        if body.start > 0 {
            self.push_copy(offset, &bytes[..body.start], plain);
        }
        for piece in pieces(body.clone()) {
            let memory = Memory::Pages(&bytes[piece.clone()], lent);
            self.rest.push_back(Part { offset: offset + piece.start as u64, options: plain, memory });
        }
        if body.end < bytes.len() {
            self.push_copy(offset + body.end as u64, &bytes[body.end..], plain);
        }
        self.rest.back_mut().expect("the body is not empty").options = options;
    }

    /// Memory that stands in a table, in pieces of as many pages as one command may name.
    pub(crate) fn push_entries(&mut self, offset: u64, bytes: &Indexed<'a>, options: SendOptions) {
        let plain = SendOptions { timeout: options.timeout, ..SendOptions::default() };
        for (at, piece) in bytes.commands() {
            let memory = Memory::Entries(piece, false);
            self.rest.push_back(Part { offset: offset + at, options: plain, memory });
        }
        if let Some(last) = self.rest.back_mut() {
            last.options = options;
        }
    }

    /// Whether it names the caller's own memory, so that its end is waited for.
    pub(crate) fn borrows(&self) -> bool {
        self.result.is_none() && (!self.rest.is_empty() || self.under_way.iter().any(|posted| posted.again.is_some()))
    }

    /// Posts all but the last part, and that too if nothing stands before it.
    pub(crate) fn start(&mut self, shared: &Shared, limit: &Limit<'_>) -> Result<(), TransferError> {
        shared.check_deferred()?;
        while self.rest.len() > 1 {
            let Some(part) = self.rest.pop_front() else { break };
            self.post(shared, part, limit);
        }
        self.advance(shared, limit);
        match &self.result {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Its result if it is done.
    pub(crate) fn poll(&mut self, shared: &Shared, limit: &Limit<'_>) -> Option<Result<u64, TransferError>> {
        self.advance(shared, limit);
        self.result.clone()
    }

    /// It cannot end any more.
    pub(crate) fn fail(&mut self, error: TransferError) {
        self.result.get_or_insert(Err(error));
    }

    /// Waits for the result; may be called again after [`TransferError::TimedOut`].
    pub(crate) fn wait(&mut self, shared: &Shared, limit: &Limit<'_>) -> Result<u64, TransferError> {
        loop {
            self.advance(shared, limit);
            if let Some(result) = &self.result {
                return result.clone();
            }
            let first = self.under_way.first_mut().expect("what is not done waits for something");
            match first.ticket.wait(limit).map_err(|end| shared.end(end, limit.waited())) {
                Ok((result, hold)) => self.arrived(shared, 0, result, hold),
                Err(error @ TransferError::TimedOut { .. }) => return Err(error),
                Err(error) => self.fail(error),
            }
        }
    }

    /// Takes what has come, and posts what waited for it.
    fn advance(&mut self, shared: &Shared, limit: &Limit<'_>) {
        let mut at = 0;
        while self.result.is_none() {
            if let Some(posted) = self.under_way.get_mut(at) {
                match posted.ticket.poll() {
                    Some((result, hold)) => self.arrived(shared, at, result, hold),
                    None => at += 1,
                }
            } else if !self.under_way.is_empty() {
                return;
            } else if let Some(part) = self.rest.pop_front() {
                self.post(shared, part, limit);
                at = 0;
            } else {
                self.result = Some(Ok(self.bytes));
            }
        }
    }

    /// Whether a [`poll`](Self::poll) would find something to do.
    pub(crate) fn may_advance(&self) -> bool {
        self.result.is_some() || self.under_way.is_empty() || self.under_way.iter().any(|p| p.ticket.is_done())
    }

    fn post(&mut self, shared: &Shared, part: Part<'a>, limit: &Limit<'_>) {
        if self.result.is_none() {
            if let Err(error) = self.try_post(shared, part, limit) {
                self.fail(error);
            }
        }
    }

    fn try_post(&mut self, shared: &Shared, part: Part<'a>, limit: &Limit<'_>) -> Result<(), TransferError> {
        let Part { offset, options, .. } = part;
        let (ticket, pages) = match &part.memory {
            Memory::Copied(bytes) => return self.post_copy(shared, offset, bytes, options),
            Memory::Owned(bytes) => return self.post_copy(shared, offset, bytes, options),
            Memory::Registered(buffer, range) => {
                self.wait_for(shared.send_registered(&buffer.range(range.clone()), offset, options)?);
                return Ok(());
            }
            Memory::Pages(bytes, lent) => match shared.post_pages(offset, bytes, *lent, options, limit)? {
                Some((ticket, pages)) => (ticket, Some(pages)),
                None => return self.post_copy(shared, offset, bytes, options),
            },
            Memory::Entries(bytes, _) => (shared.post_entries(offset, bytes, options, limit)?, None),
        };
        self.under_way.push(Posted { ticket, again: Some(part), pages });
        Ok(())
    }

    fn arrived(&mut self, shared: &Shared, at: usize, result: Result<u64, OpError>, hold: Hold) {
        let Posted { again, pages, .. } = self.under_way.swap_remove(at);
        shared.core.release(hold);
        match (result, again) {
            (Ok(_), _) => {}
            (Err(OpError::NotPinned { .. }), Some(part)) => {
                if let Some(pages) = pages {
                    shared.core.pins.distrust(pages);
                }
                self.send_again(shared, part);
            }
            (Err(error), _) => self.fail(shared.op_error(error)),
        }
    }

    /// The node did not know the memory of this part any more.
    fn send_again(&mut self, shared: &Shared, part: Part<'a>) {
        let Part { offset, options, memory } = part;
        match memory {
            Memory::Pages(bytes, _) => {
                self.rest.push_front(Part { offset, options, memory: Memory::Copied(bytes) });
            }
            Memory::Entries(bytes, false) if bytes.place_again() => {
                self.rest.push_front(Part { offset, options, memory: Memory::Entries(bytes, true) });
            }
            Memory::Entries(bytes, _) => {
                if let Err(error) = self.post_copy(shared, offset, &joined(&bytes), options) {
                    self.fail(error);
                }
            }
            Memory::Copied(_) | Memory::Owned(_) | Memory::Registered(..) => unreachable!("these are not sent again"),
        }
    }
}

/// The whole pages of a slice, if they are worth being named: a notification names one command, so
/// what it comes with goes by one.
fn pinnable(bytes: &[u8], options: SendOptions) -> Option<Range<usize>> {
    let (head, len) = whole_pages(bytes);
    let has_edges = len < bytes.len();
    let several = has_edges || len > PIECE_BYTES;
    let copied = len == 0 || has_edges && len < PINNED_EDGED_BYTES_MIN || several && options.notify.is_some();
    (!copied).then_some(head..head + len)
}

pub(crate) fn pieces(body: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = body.end;
    body.step_by(PIECE_BYTES).map(move |start| start..(start + PIECE_BYTES).min(end))
}

/// Names the caller's memory by its address.
pub(crate) fn name(command: &mut RawCommand, bytes: &[u8]) {
    command.region = ADDRESSES;
    command.region_offset = bytes.as_ptr() as u64;
    command.len = bytes.len() as u64;
}

impl Shared {
    /// Sends the caller's own memory, by address where that is possible; returns when it may be
    /// changed.
    pub(crate) fn send_pages(
        &self,
        offset: u64,
        bytes: &[u8],
        lent: bool,
        options: SendOptions,
    ) -> Result<(), TransferError> {
        let Some(body) = pinnable(bytes, options) else { return self.send_engine(offset, bytes, options) };
        let limit = &self.limit(options);
        if body.len() < bytes.len() || body.len() > PIECE_BYTES {
            let mut sending = Sending::new(bytes.len() as u64, false);
            sending.push_pages(offset, bytes, lent, options);
            sending.start(self, limit)?;
            return sending.wait(self, limit).map(drop);
        }
        // One command is the usual case.
        self.check_deferred()?;
        let Some((mut ticket, pages)) = self.post_pages(offset, bytes, lent, options, limit)? else {
            return self.send_engine(offset, bytes, options);
        };
        let (result, hold) = ticket.wait(limit).map_err(|end| self.end(end, limit.waited()))?;
        self.core.release(hold);
        match result {
            Ok(_) => Ok(()),
            Err(OpError::NotPinned { .. }) => {
                self.core.pins.distrust(pages);
                self.send_engine(offset, bytes, options)
            }
            Err(error) => Err(self.op_error(error)),
        }
    }

    /// Posts whole pages of the caller's by address; none if they must be copied.
    fn post_pages(
        &self,
        offset: u64,
        bytes: &[u8],
        lent: bool,
        options: SendOptions,
        limit: &Limit<'_>,
    ) -> Result<Option<(Ticket, Pages)>, TransferError> {
        let body = if lent { Body::Lent(bytes) } else { Body::Send(bytes) };
        let Some(pages) = self.core.pins.hold(&self.core, body, || limit.deadline()) else { return Ok(None) };
        count(&self.core.counters.send_bytes, bytes.len() as u64);
        let mut command = self.send_command(offset, options);
        name(&mut command, bytes);
        let ticket = self.post_answered(&mut command, Hold::Pages(pages), limit)?;
        Ok(Some((ticket, pages)))
    }
}
