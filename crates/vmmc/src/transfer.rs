//! Transfers between registered memory and imports, lists of pieces, and handles to transfers under
//! way.
//!
//! Invariant: a handle that is dropped abandons the answer only; memory stays registered until the
//! engine is done with it.

use crate::buffer::Buffer;
use crate::core::Limit;
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::import::{Import, SendOptions, Shared};
use std::ops::Range;
use std::sync::Arc;
use vmmc_host::Deadline;
use vmmc_nic::Rights;

/// A transfer under way. Dropping it abandons the answer, not the transfer; registered memory that
/// it uses stays alive until it is done.
#[must_use = "a transfer that nobody waits for is abandoned"]
pub struct Transfer {
    shared: Arc<Shared>,
    state: State,
}

enum State {
    Pending(Ticket),
    Done(Result<u64, TransferError>),
}

impl Transfer {
    /// Its result if it is done: bytes moved. Steps an embedded node.
    pub fn poll(&mut self) -> Option<Result<u64, TransferError>> {
        if let State::Pending(ticket) = &mut self.state {
            let core = &self.shared.core;
            core.step();
            core.collect_if_free();
            let result = match ticket.poll() {
                Some((result, hold)) => {
                    core.release(hold);
                    result.map_err(|error| self.shared.op_error(error))
                }
                None => Err(self.shared.end(core.usable().err()?, Default::default())),
            };
            self.state = State::Done(result);
        }
        let State::Done(result) = &self.state else { return None };
        Some(result.clone())
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
        if let State::Pending(ticket) = &mut self.state {
            let result = self.shared.finish(ticket, &Limit::until(&self.shared.core, deadline));
            if let Err(TransferError::TimedOut { .. }) = result {
                return result;
            }
            self.state = State::Done(result);
        }
        let State::Done(result) = &self.state else { unreachable!("set above") };
        result.clone()
    }
}

fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

impl Import {
    /// Sends from registered memory without a copy; returns when the memory may be reused.
    ///
    /// # Errors
    /// [`TransferError`]; after [`TransferError::TimedOut`] the memory may still be read.
    pub fn send_from(&self, source: &Buffer, range: Range<u64>, offset: u64) -> Result<(), TransferError> {
        self.send_from_with(source, range, offset, SendOptions::default())
    }

    /// [`send_from`](Self::send_from) with choices.
    ///
    /// # Errors
    /// As for [`send_from`](Self::send_from).
    pub fn send_from_with(
        &self,
        source: &Buffer,
        range: Range<u64>,
        offset: u64,
        options: SendOptions,
    ) -> Result<(), TransferError> {
        if self.mapped.is_some() {
            // Done when the call returns: what a handle and a deadline would cost shows at 64 KiB.
            return self.start_send_from(source, range, offset, options).map(drop);
        }
        let timeout = options.timeout.unwrap_or_else(|| self.shared.core.timeout());
        let deadline = self.shared.core.deadline(timeout);
        self.send_from_async(source, range, offset, options)?.wait_by(deadline).map(drop)
    }

    /// Sends without waiting. The data is copied before return, so it may be reused.
    ///
    /// # Errors
    /// [`TransferError`]; later errors come with the transfer.
    pub fn send_async(&self, offset: u64, data: &[u8], options: SendOptions) -> Result<Transfer, TransferError> {
        if self.mapped.is_some() {
            self.send_with(offset, data, options)?;
            return Ok(self.done(data.len() as u64));
        }
        self.shared.check_send(offset, data.len() as u64, options.counter)?;
        Ok(self.pending(self.shared.send_copied(offset, data, options)?))
    }

    /// Sends from registered memory without waiting; leave the range alone until the transfer is
    /// done.
    ///
    /// # Errors
    /// [`TransferError`]; later errors come with the transfer.
    pub fn send_from_async(
        &self,
        source: &Buffer,
        range: Range<u64>,
        offset: u64,
        options: SendOptions,
    ) -> Result<Transfer, TransferError> {
        let len = len(&range);
        let ticket = self.start_send_from(source, range, offset, options)?;
        Ok(ticket.map_or_else(|| self.done(len), |ticket| self.pending(ticket)))
    }

    /// None: the transfer is done.
    fn start_send_from(
        &self,
        source: &Buffer,
        range: Range<u64>,
        offset: u64,
        options: SendOptions,
    ) -> Result<Option<Ticket>, TransferError> {
        let shared = &*self.shared;
        let len = len(&range);
        shared.check_send(offset, len, options.counter)?;
        self.check_buffer(source, range.start, len)?;
        let Some(mapped) = &self.mapped else {
            return shared.send_registered(source, range.start, len, offset, options).map(Some);
        };
        let from = source.region_offset(range.start);
        mapped.send_region(offset, source.region(), from, len).map_err(|fault| shared.fault(fault))?;
        let word = if options.notify.is_some() { last_word(source, &range) } else { 0 };
        self.after_mapped(mapped, offset, len, word, options).map(|()| None)
    }

    /// Remote fetch into registered memory without a copy.
    ///
    /// # Errors
    /// [`TransferError`]; after [`TransferError::TimedOut`] the memory may still be written.
    pub fn fetch_into(&self, offset: u64, to: &Buffer, range: Range<u64>) -> Result<(), TransferError> {
        match self.start_fetch_into(offset, to, range)? {
            Some(ticket) => self.pending(ticket).wait().map(drop),
            None => Ok(()),
        }
    }

    /// Remote fetch into registered memory without waiting; leave the range alone until the
    /// transfer is done.
    ///
    /// # Errors
    /// [`TransferError`]; later errors come with the transfer.
    pub fn fetch_async(&self, offset: u64, to: &Buffer, range: Range<u64>) -> Result<Transfer, TransferError> {
        let len = len(&range);
        let ticket = self.start_fetch_into(offset, to, range)?;
        Ok(ticket.map_or_else(|| self.done(len), |ticket| self.pending(ticket)))
    }

    /// None: the transfer is done.
    fn start_fetch_into(&self, offset: u64, to: &Buffer, range: Range<u64>) -> Result<Option<Ticket>, TransferError> {
        let shared = &*self.shared;
        let len = len(&range);
        shared.check(Rights::READ, offset, len)?;
        self.check_buffer(to, range.start, len)?;
        let Some(mapped) = &self.mapped else {
            return shared.fetch_registered(offset, to, range.start, len).map(Some);
        };
        let at = to.region_offset(range.start);
        mapped.fetch_region(offset, to.region(), at, len).map_err(|fault| shared.fault(fault))?;
        Ok(None)
    }

    /// Gathers: sends several pieces to consecutive places.
    ///
    /// # Errors
    /// [`TransferError`]; pieces before the failing one may have been sent.
    pub fn gather(&self, pieces: &[&[u8]], offset: u64) -> Result<(), TransferError> {
        self.shared.check_send(offset, pieces.iter().map(|p| p.len() as u64).sum(), None)?;
        let mut at = offset;
        for piece in pieces {
            self.send(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Gathers from registered memory: sends several ranges to consecutive places, all under way at
    /// once.
    ///
    /// # Errors
    /// [`TransferError`]; others of the ranges may have been sent.
    pub fn gather_from(&self, source: &Buffer, ranges: &[Range<u64>], offset: u64) -> Result<(), TransferError> {
        self.shared.check_send(offset, ranges.iter().map(len).sum(), None)?;
        let mut at = offset;
        let mut transfers = Vec::with_capacity(ranges.len());
        for range in ranges {
            transfers.push(self.send_from_async(source, range.clone(), at, SendOptions::default())?);
            at += len(range);
        }
        transfers.into_iter().try_for_each(|transfer| transfer.wait().map(drop))
    }

    /// Scatters: sends consecutive parts of `data` to several ranges of the export, as far as both
    /// reach.
    ///
    /// # Errors
    /// [`TransferError`]; parts before the failing one may have been sent.
    pub fn scatter(&self, data: &[u8], ranges: &[Range<u64>]) -> Result<(), TransferError> {
        ranges.iter().try_for_each(|range| self.shared.check_send(range.start, len(range), None))?;
        let mut rest = data;
        for range in ranges {
            let (part, after) = rest.split_at(rest.len().min(len(range) as usize));
            self.send(range.start, part)?;
            rest = after;
        }
        Ok(())
    }

    /// Fetches consecutive bytes into several pieces of memory.
    ///
    /// # Errors
    /// [`TransferError`]; pieces before the failing one may have been written.
    pub fn fetch_scatter(&self, offset: u64, pieces: &mut [&mut [u8]]) -> Result<(), TransferError> {
        self.shared.check(Rights::READ, offset, pieces.iter().map(|p| p.len() as u64).sum())?;
        let mut at = offset;
        for piece in pieces {
            self.fetch(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Fetches several ranges of the export into consecutive bytes, as far as both reach.
    ///
    /// # Errors
    /// [`TransferError`]; parts may have been written.
    pub fn fetch_gather(&self, ranges: &[Range<u64>], into: &mut [u8]) -> Result<(), TransferError> {
        ranges.iter().try_for_each(|range| self.shared.check(Rights::READ, range.start, len(range)))?;
        let mut rest = into;
        for range in ranges {
            let (part, after) = rest.split_at_mut(rest.len().min(len(range) as usize));
            self.fetch(range.start, part)?;
            rest = after;
        }
        Ok(())
    }

    fn check_buffer(&self, buffer: &Buffer, offset: u64, len: u64) -> Result<(), TransferError> {
        let import = || self.shared.label.clone();
        if !buffer.is_of(&self.shared.core) {
            return Err(TransferError::ForeignBuffer { import: import() });
        }
        buffer.check(offset, len).map_err(|_| TransferError::BufferOutOfBounds {
            import: import(),
            offset,
            len,
            size: buffer.len(),
        })
    }

    pub(crate) fn done(&self, bytes: u64) -> Transfer {
        Transfer { shared: self.shared.clone(), state: State::Done(Ok(bytes)) }
    }

    pub(crate) fn pending(&self, ticket: Ticket) -> Transfer {
        Transfer { shared: self.shared.clone(), state: State::Pending(ticket) }
    }
}

/// The last bytes of a range that has been checked.
fn last_word(buffer: &Buffer, range: &Range<u64>) -> u64 {
    let take = len(range).min(8) as usize;
    let mut word = [0u8; 8];
    buffer.read(range.end - take as u64, &mut word[..take]).expect("the caller checked the range");
    u64::from_le_bytes(word)
}
