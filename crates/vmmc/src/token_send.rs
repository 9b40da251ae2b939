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
use vmmc_host::abi::{Op, RawCommand, flags, inline_bytes_max};
use vmmc_host::control::ExportKind;
use vmmc_nic::{OpError, Rights, TokenPart};

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
        let shared = &*self.shared;
        let (part, entries) = shared.check_token(token, tag, &source)?;
        let Some(mapped) = &self.mapped_table else { return shared.send_token_engine(&part, &source) };
        let sent =
            mapped.send_token(&part, entries, |each| source.pieces(each)).map_err(|fault| shared.fault(fault))?;
        shared.unless_refused(sent)
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

    /// Sends by the engine: what is short in the descriptor, else as the source goes. Returns when
    /// that may be changed.
    fn send_token_engine<'a>(&self, token: &TokenPart, source: &impl source::Sealed<'a>) -> Result<(), TransferError> {
        self.check_deferred()?;
        let limit = &self.limit(SendOptions::default());
        count(&self.core.counters.send_bytes, token.total);
        if token.total <= inline_bytes_max(WORDS) as u64 {
            count(&self.core.counters.sends_inline, 1);
            let mut command = self.token_command(token, 0);
            command.flags |= flags::INLINE;
            return self.post(&command, &joined(source), limit);
        }
        let mut tickets = Vec::new();
        let posted = source.post_token(self, token, 0, &mut tickets);
        for mut ticket in tickets {
            let (result, hold) = ticket.wait(limit).map_err(|end| self.end(end, limit.waited()))?;
            self.core.release(hold);
            self.unless_refused(result.map(drop))?;
        }
        posted
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
