//! Payloads by token: sends to the buffer that a token names, wherever the token comes from.
//!
//! Invariant: a payload that its token does not let in is dropped and is no error of the import,
//! for the owner may cancel a token at any time. Source: [GMS §2] incoming payload table.

use crate::buffer::BufferRange;
use crate::core::{Limit, count};
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::import::{Import, SendOptions, Shared};
use crate::slots::Hold;
use crate::source::{self, Piece, Source, joined};
use crate::tokens::PayloadToken;
use std::sync::Arc;
use vmmc_host::abi::{Op, RawCommand, flags, inline_bytes_max};
use vmmc_host::control::ExportKind;
use vmmc_nic::{OpError, Rights, TOKEN_ENTRY_BYTES, TokenPart};

/// A payload by token under way; made by [`Import::post_token`] and
/// [`Connection::post_by_token_within`](crate::Connection::post_by_token_within). Dropping it
/// abandons the answer, not the payload: registered memory that it is of stays alive until it is
/// done.
#[derive(Default)]
#[must_use = "a payload that nobody waits for is abandoned"]
pub struct Posted {
    /// None: it was done when it was posted.
    shared: Option<Arc<Shared>>,
    tickets: Vec<Ticket>,
}

impl Posted {
    /// Has the other node answer at once, whatever has been posted behind it.
    pub(crate) fn ask(&mut self) -> Result<(), TransferError> {
        if let Some(shared) = &self.shared {
            self.tickets.push(shared.post_flush(&shared.limit(SendOptions::default()))?);
        }
        Ok(())
    }

    /// Whether there is anything to wait for.
    pub(crate) fn is_under_way(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether its source may be changed, as far as has been heard from the node. Waits for
    /// nothing, and takes no answers: waits and polls of the session do.
    pub fn is_done(&self) -> bool {
        self.tickets.iter().all(Ticket::is_done)
    }

    /// Waits the session's timeout until its source may be changed. One that its token does not
    /// let in is done too.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn wait(self) -> Result<(), TransferError> {
        match self.shared {
            Some(shared) => shared.end_token(self.tickets),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Posted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Posted").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

/// In the command of a payload: key and tag.
const WORDS: u8 = flags::WORD | flags::COUNTER;

impl Import {
    /// Sends a payload to the buffer of a token; the import is one of the
    /// [table](crate::PayloadToken::table) that the token is of. A token that is used, cancelled or
    /// wrong lets nothing in, nor does one whose buffer is too short: the payload is dropped, and
    /// that is no error here. The owner finds `tag`, which the sender chooses, beside the payload:
    /// a number that no other sender chooses tells whose payload it was.
    ///
    /// On return the source may be changed.
    ///
    /// # Errors
    /// [`TransferError`]. [`TransferError::Engine`] with [`OpError::NotByToken`]: the import is of
    /// another export.
    pub fn send_token<'a>(&self, token: PayloadToken, tag: u64, source: impl Source<'a>) -> Result<(), TransferError> {
        let mut posted = Posted::default();
        let sent = self.begin_token(token, tag, source, &mut posted);
        posted.wait()?;
        sent
    }

    /// Sends a payload by token, or posts it: the source is not to change before `posted` has been
    /// [waited](Posted::wait) for, even after an error.
    pub(crate) fn begin_token<'a>(
        &self,
        token: PayloadToken,
        tag: u64,
        source: impl Source<'a>,
        posted: &mut Posted,
    ) -> Result<(), TransferError> {
        let shared = &*self.shared;
        let (part, entries) = shared.check_token(token, tag, &source)?;
        if let Some(mapped) = &self.mapped_table {
            let sent = mapped.send_token(&part, entries, |each| source.pieces(each));
            return sent.map_err(|fault| shared.fault(fault));
        }
        let sent = shared.post_token_engine(&part, &source, &mut posted.tickets);
        posted.shared = (!posted.tickets.is_empty()).then(|| self.shared.clone());
        sent
    }

    /// Has what stands in the table for a token that something is sent by soon come to this core:
    /// its owner has just written it.
    #[inline]
    pub(crate) fn expect_token(&self, token: PayloadToken) {
        if let Some(mapped) = &self.mapped_table {
            mapped.prefetch(u64::from(token.index) * TOKEN_ENTRY_BYTES);
        }
    }

    /// As [`send_token`](Self::send_token), but does not wait until the other node has the payload:
    /// until it is done, or after an error, what is registered of the source may still be read.
    ///
    /// # Errors
    /// As for [`send_token`](Self::send_token).
    pub fn post_token(
        &self,
        token: PayloadToken,
        tag: u64,
        source: impl Source<'static>,
    ) -> Result<Posted, TransferError> {
        let mut posted = Posted::default();
        self.begin_token(token, tag, source, &mut posted)?;
        Ok(posted)
    }
}

impl Shared {
    fn check_token<'a>(
        &self,
        token: PayloadToken,
        tag: u64,
        source: &impl source::Sealed<'a>,
    ) -> Result<(TokenPart, u32), TransferError> {
        self.check_source(source)?;
        self.check_right(Rights::WRITE)?;
        let ours = token.table.to_u64() == self.export;
        let ExportKind::Tokens { entries } = self.kind else { return Err(self.op_error(OpError::NotByToken)) };
        let error = if !ours {
            OpError::NotByToken
        } else if source.len_bytes() > u64::from(u32::MAX) {
            OpError::OutOfBounds { offset: 0, len: source.len_bytes(), size: u32::MAX.into() }
        } else {
            let total = source.len_bytes();
            return Ok((TokenPart { index: token.index, key: token.key, tag, total }, entries));
        };
        Err(self.op_error(error))
    }

    fn unless_refused(&self, sent: Result<(), OpError>) -> Result<(), TransferError> {
        match sent {
            Ok(()) | Err(OpError::TokenRefused { .. }) => Ok(()),
            Err(error) => Err(self.op_error(error)),
        }
    }

    fn token_command(&self, token: &TokenPart, at: u64) -> RawCommand {
        let mut command = RawCommand::new(Op::TokenSend, self.id);
        command.flags = WORDS;
        (command.count, command.word, command.counter) = (token.index, token.key, token.tag);
        command.set_part(at as u32, token.total as u32);
        command
    }

    /// Posts to the engine: what is short in the descriptor, else as the source goes. What is to be
    /// waited for before that may be changed goes to `tickets`.
    fn post_token_engine<'a>(
        &self,
        token: &TokenPart,
        source: &impl source::Sealed<'a>,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), TransferError> {
        self.check_deferred()?;
        let limit = &self.limit(SendOptions::default());
        count(&self.core.counters.send_bytes, token.total);
        if token.total <= inline_bytes_max(WORDS) as u64 {
            count(&self.core.counters.sends_inline, 1);
            let mut command = self.token_command(token, 0);
            command.flags |= flags::INLINE;
            return self.post(&command, &joined(source), limit);
        }
        source.post_token(self, token, 0, tickets)
    }

    /// Waits until the source of a posted payload may be changed.
    fn end_token(&self, tickets: Vec<Ticket>) -> Result<(), TransferError> {
        let limit = &self.limit(SendOptions::default());
        for mut ticket in tickets {
            let (result, hold) = ticket.wait(limit).map_err(|end| self.end(end, limit.waited()))?;
            self.core.release(hold);
            self.unless_refused(result.map(drop))?;
        }
        Ok(())
    }

    /// Posts a copy by way of staging memory, in parts.
    pub(crate) fn post_token_copied<'a>(
        &self,
        token: &TokenPart,
        mut at: u64,
        source: &impl source::Sealed<'a>,
    ) -> Result<(), TransferError> {
        let limit = &self.limit(SendOptions::default());
        count(&self.core.counters.sends_staged, 1);
        let mut result = Ok(());
        source.pieces(&mut |piece| {
            if result.is_ok() {
                result = self.send_token_piece(token, at, &piece, limit);
                at += piece.len();
            }
        });
        result
    }

    fn send_token_piece(
        &self,
        token: &TokenPart,
        start: u64,
        piece: &Piece<'_>,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        let mut done = 0;
        while done < piece.len() {
            let (staging, chunk) = self.chunk(piece.len() - done, limit)?;
            let len = chunk.len().min(piece.len() - done);
            let copied = match *piece {
                Piece::Bytes(bytes) => staging.region.write(chunk.offset, &bytes[done as usize..][..len as usize]),
                Piece::Shared(from, first, _) => from.copy_to(first + done, &staging.region, chunk.offset, len),
            };
            copied.expect("chunks lie in the staging region, and ranges were checked");
            let mut command = self.token_command(token, start + done);
            command.flags |= flags::COMPLETE;
            (command.region, command.region_offset, command.len) = (u64::from(staging.id), chunk.offset, len);
            self.post_unattended(&mut command, Hold::Chunk(chunk), limit)?;
            done += len;
        }
        Ok(())
    }

    /// Posts registered memory, which is free when the ticket says so. None: there are no bytes,
    /// which would take the token before the part that is to.
    pub(crate) fn post_token_registered(
        &self,
        token: &TokenPart,
        at: u64,
        from: &BufferRange<'_>,
    ) -> Result<Option<Ticket>, TransferError> {
        if from.is_empty() {
            return Ok(None);
        }
        count(&self.core.counters.sends_registered, 1);
        let mut command = self.token_command(token, at);
        let (buffer, first) = (from.buffer, from.buffer.region_offset(from.range.start));
        (command.region, command.region_offset, command.len) = (u64::from(buffer.region_id()), first, from.len());
        let limit = &self.limit(SendOptions::default());
        self.post_answered(&mut command, Hold::Memory(buffer.registered()), limit).map(Some)
    }
}
