//! Commands: checked against the import, then queued for its node or done at once on this one.
//!
//! A command is a claim of a process; nothing in it is used before it is checked.

use super::{Engine, Fit, Transmit};
use crate::command::{Command, Dma, Source};
use crate::ecn::Codepoint;
use crate::error::{Busy, OpError};
use crate::ids::ProcessId;
use crate::limits::{
    APPEND_BYTES_MAX, INLINE_BUFFERS_MAX, INLINE_BYTES_MAX, PACKET_BYTES_MIN, PASSED_OPS_MAX, PROCESS_OPS_MAX,
    PROCESS_RANGES_MAX, QUEUE_OPS_MAX, SHORT_BYTES,
};
use crate::local::{LocalKind, LocalOp, Progress, has_right, in_bounds};
use crate::ranges::{self, Ranges};
use crate::rights::{ExportKind, Rights};
use crate::session::{Op, OpKind, Order};
use crate::slab::Key;
use crate::tables::{Import, OpData, Route, SessionId, Tables};
use crate::time::Time;
use crate::tokens::TokenPart;
use crate::wire::chunk::{ATOMIC_REQUEST_BYTES, FETCH_REQUEST_BYTES, WRITE_BYTES};
use std::net::SocketAddr;

impl Engine {
    /// Takes a command of `process`. Mistakes come back as completions (or `SendFailed`).
    ///
    /// # Errors
    /// [`Busy`]: a bound is reached; nothing happened, offer it again later.
    #[inline]
    pub fn post(&mut self, now: Time, process: ProcessId, command: Command<'_>, dma: &mut dyn Dma) -> Result<(), Busy> {
        self.now = now;
        let Some(entry) = self.tables.process(process) else { return Ok(()) };
        if entry.outstanding >= PROCESS_OPS_MAX {
            self.tables.stats.busy += 1;
            return Err(Busy { queued: PROCESS_OPS_MAX as u64 });
        }
        let import = command.import();
        let route = match entry.imports.get(import.into()) {
            Some(entry) => check(entry, &command).map(|()| (entry.route, entry.own_order)),
            None => Err(OpError::StaleImport),
        };
        match route {
            Ok((Route::Remote { via, grant }, own_order)) => {
                self.post_remote(process, (via, grant), own_order, command)
            }
            Ok((Route::Local { .. }, own_order)) => self.post_local(process, own_order, command, dma),
            Ok((Route::Pending(_), _)) => {
                self.tables.fail(process, import, command.cookie(), OpError::StaleImport);
                Ok(())
            }
            Err(why) => {
                self.tables.fail(process, import, command.cookie(), why);
                Ok(())
            }
        }
    }

    /// Sends short data, or asks for a fetch or an atomic operation, in a datagram of its own,
    /// written to the start of `buf`: what [`post`](Self::post) and
    /// [`poll_transmit`](Self::poll_transmit) come to when nothing else is to be sent to that node.
    /// `None`: nothing happened, for something is, or a bound is reached, or the command is wrong,
    /// or not one of these (of sends, only those of inline data that want nothing else; of fetches,
    /// those that need not be asked for in parts); post it.
    /// `send` is given the datagram and its codepoint as soon as it is written: what the engine
    /// must remember of it, it enters while the datagram is under way.
    #[inline]
    pub fn try_send_inline(
        &mut self,
        now: Time,
        process: ProcessId,
        command: Command<'_>,
        buf: &mut [u8],
        send: impl FnOnce(SocketAddr, Codepoint, &[u8]),
    ) -> Option<Transmit> {
        let bytes = match command {
            Command::Send { source: Source::Inline(data), notify: None, counter: None, completion: None, .. } => {
                WRITE_BYTES + data.len()
            }
            Command::Fetch { .. } => FETCH_REQUEST_BYTES,
            Command::Atomic { .. } => ATOMIC_REQUEST_BYTES,
            Command::Send { .. }
            | Command::GatherSend { .. }
            | Command::Append { .. }
            | Command::TokenSend { .. }
            | Command::Flush { .. } => return None,
        };
        let entry = self.tables.process(process)?;
        let import = command.import();
        let record = entry.imports.get(import.into()).filter(|record| check(record, &command).is_ok())?;
        let Route::Remote { via, grant } = record.route else { return None };
        let peer = self.peers[usize::from(via.peer)].as_mut()?;
        let to = peer.paths[peer.current].addr;
        let session = peer.session.as_deref_mut().filter(|session| session.via == via)?;
        let fits = buf.len() >= PACKET_BYTES_MIN && entry.outstanding < PROCESS_OPS_MAX;
        if !fits || !session.is_clear_for(now, bytes) {
            return None;
        }
        let codepoint = session.notification.codepoint();
        let (origin, own_order) = ((process, import, grant), record.own_order);
        let order = Order { process, own: own_order.then_some(import) };
        let len = if let Command::Send { offset, source: Source::Inline(data), .. } = command {
            if !self.tables.inline.has_room(process) {
                return None;
            }
            let len = session.write_send(now, (order, grant), offset, data, buf);
            send(to, codepoint, &buf[..len]);
            let slot = self.tables.inline.put(process, data).expect("there was room");
            let kind = OpKind::Send { data: OpData::Inline { slot }, notify: None, counter: None };
            let op = Op::new(origin, None, (offset, data.len() as u64), kind);
            session.note_send(now, Op { own_order, ..op });
            len
        } else {
            let (offset, len, kind) =
                op_kind(process, &command, &mut self.tables).filter(|_| session.may_ask(process))?;
            if matches!(kind, OpKind::Fetch { .. }) && !session.may_fetch(len, &self.tables) {
                return None;
            }
            let op = Op::new(origin, command.cookie(), (offset, len), kind);
            let (len, key) = session.write_request(now, Op { own_order, ..op }, buf);
            send(to, codepoint, &buf[..len]);
            session.note_request(now, key, &mut self.tables);
            len
        };
        if let Some(process) = self.tables.process_mut(process) {
            process.outstanding += 1;
        }
        self.now = now;
        self.tables.stats.packets_out += 1;
        self.tables.stats.bytes_out += len as u64;
        self.arm(via.peer);
        Some(Transmit { to, len, codepoint, to_stranger: false, fit: Fit::Path })
    }

    #[inline]
    fn post_remote(
        &mut self,
        process: ProcessId,
        (via, grant): (SessionId, u64),
        own_order: bool,
        command: Command<'_>,
    ) -> Result<(), Busy> {
        let peer = self.peers[usize::from(via.peer)].as_mut();
        let session = peer.and_then(|peer| peer.session.as_deref_mut()).filter(|session| session.via == via);
        // An import whose session is gone was broken with it, and checked before.
        let session = session.expect("an unbroken import has its session");
        let queued = session.queue_len(process.slot());
        if queued >= QUEUE_OPS_MAX {
            self.tables.stats.busy += 1;
            return Err(Busy { queued: queued as u64 });
        }
        let ranges = take_ranges(process, &command, &mut self.tables)?;
        let Some((offset, len, kind)) = op_kind(process, &command, &mut self.tables) else {
            self.tables.ranges_ended(process, ranges.as_ref().map_or(0, |ranges| ranges.count()));
            self.tables.stats.busy += 1;
            return Err(Busy { queued: INLINE_BUFFERS_MAX as u64 });
        };
        let op = Op::new((process, command.import(), grant), command.cookie(), (offset, len), kind);
        let own_order = own_order && !matches!(kind, OpKind::Flush);
        session.enqueue(Op { ranges, token: token_of(&command), own_order, ..op });
        if let Some(process) = self.tables.process_mut(process) {
            process.outstanding += 1;
        }
        self.wake(via.peer);
        Ok(())
    }

    fn post_local(
        &mut self,
        process: ProcessId,
        own_order: bool,
        command: Command<'_>,
        dma: &mut dyn Dma,
    ) -> Result<(), Busy> {
        let waiting = self.tables.process(process).map_or(0, |process| process.local.len());
        if waiting >= QUEUE_OPS_MAX {
            self.tables.stats.busy += 1;
            return Err(Busy { queued: waiting as u64 });
        }
        let (import, cookie) = (command.import(), command.cookie());
        let export = self.tables.import_mut(process, import.into()).map_or(Key::NONE, |import| import.export.into());
        let ranges = take_ranges(process, &command, &mut self.tables)?;
        let Some((offset, len, kind)) = op_kind(process, &command, &mut self.tables) else {
            self.tables.ranges_ended(process, ranges.as_ref().map_or(0, |ranges| ranges.count()));
            return Err(Busy { queued: INLINE_BUFFERS_MAX as u64 });
        };
        let is_short = len <= SHORT_BYTES && !matches!(kind, OpKind::Flush);
        let kind = match kind {
            OpKind::Send { data, notify, counter } => {
                LocalKind::Send { data, len, notify, counter, ranges, token: token_of(&command) }
            }
            OpKind::Append { data, word, notify, refusals } => LocalKind::Append { data, len, word, notify, refusals },
            OpKind::Fetch { region, to } => LocalKind::Fetch { region, to, len },
            OpKind::Atomic(op) => LocalKind::Atomic(op),
            OpKind::Flush | OpKind::Unimport => LocalKind::Flush,
        };
        let mut op = LocalOp { import, export, offset, cookie, kind, done: 0 };
        self.tables.stats.local_ops += 1;
        let Some(entry) = self.tables.process_mut(process) else { return Ok(()) };
        entry.outstanding += 1;
        let first = entry.local.is_empty();
        let passes = own_order && is_short && entry.local.len() <= PASSED_OPS_MAX;
        let passes = passes && entry.local.iter().all(|queued| queued.import != import);
        if (first || passes) && self.local_step(process, &mut op, dma) {
            return Ok(());
        }
        if let Some(entry) = self.tables.process_mut(process) {
            match passes {
                // It has begun, and goes on before the others do.
                true => entry.local.push_front(op),
                false => entry.local.push_back(op),
            }
        }
        if first {
            self.work.push_back(process);
        }
        Ok(())
    }

    /// One piece of an operation; true when it has ended and its process been notified.
    fn local_step(&mut self, process: ProcessId, op: &mut LocalOp, dma: &mut dyn Dma) -> bool {
        let result = match op.step(process, &mut self.tables, dma) {
            Ok(Progress::More) => return false,
            Ok(Progress::Done(value)) => Ok(value),
            Err(why) => Err(why),
        };
        if let Some(slot) = op.kind.inline_slot() {
            self.tables.inline.release(slot);
        }
        if let LocalKind::Send { ranges: Some(ranges), .. } = &op.kind {
            self.tables.ranges_ended(process, ranges.count());
        }
        self.tables.op_ended(process);
        match (result, op.cookie) {
            (Ok(value), Some(cookie)) => self.tables.complete(process, cookie, Ok(value)),
            (Ok(_), None) => {}
            (Err(why), cookie) => self.tables.fail(process, op.import, cookie, why),
        }
        true
    }

    /// Does one piece of a long operation within the node, and some of what a closed gap has held
    /// up; true while there is more to do. Processes take turns, and so do peers.
    pub fn poll_work(&mut self, now: Time, dma: &mut dyn Dma) -> bool {
        self.now = now;
        self.release_more(now, dma);
        self.work_locally(dma);
        !self.work.is_empty() || !self.releases.is_empty()
    }

    fn work_locally(&mut self, dma: &mut dyn Dma) {
        let Some(process) = self.work.pop_front() else { return };
        let Some(entry) = self.tables.process_mut(process) else { return };
        let Some(mut op) = entry.local.pop_front() else { return };
        if !self.local_step(process, &mut op, dma) {
            if let Some(entry) = self.tables.process_mut(process) {
                entry.local.push_front(op);
            }
        }
        if self.tables.process(process).is_some_and(|entry| !entry.local.is_empty()) {
            self.work.push_back(process);
        }
    }
}

/// Checks a command against its import.
#[inline]
fn check(import: &Import, command: &Command<'_>) -> Result<(), OpError> {
    if let Some(why) = import.broken {
        return Err(why);
    }
    if let Route::Pending(_) = import.route {
        return Err(OpError::StaleImport);
    }
    match *command {
        Command::Send { offset, source, counter, .. } => {
            has_right(import.rights, Rights::WRITE)?;
            in_bounds(offset, source.len(), import.len)?;
            check_source(&source)?;
            counter.map_or(Ok(()), |counter| in_bounds(counter, 8, import.len))
        }
        Command::GatherSend { ranges, source, counter, .. } => {
            has_right(import.rights, Rights::WRITE)?;
            ranges::check(ranges, source.len(), import.len)?;
            check_source(&source)?;
            counter.map_or(Ok(()), |counter| in_bounds(counter, 8, import.len))
        }
        Command::Append { source, .. } => {
            has_right(import.rights, Rights::WRITE)?;
            if import.kind != ExportKind::Ring {
                return Err(OpError::NotAppendable);
            }
            let (len, max) = (source.len(), APPEND_BYTES_MAX as u64);
            if len > max {
                return Err(OpError::RecordTooLong { len, max });
            }
            check_source(&source)
        }
        Command::TokenSend { token, offset, source, .. } => {
            has_right(import.rights, Rights::WRITE)?;
            if !matches!(import.kind, ExportKind::Tokens { .. }) {
                return Err(OpError::NotByToken);
            }
            in_bounds(offset, source.len(), token.total)?;
            check_source(&source)
        }
        Command::Fetch { offset, len, region_offset, .. } => {
            has_right(import.rights, Rights::READ)?;
            in_bounds(offset, len, import.len)?;
            in_bounds(region_offset, len, u64::MAX)
        }
        Command::Atomic { offset, .. } => {
            has_right(import.rights, Rights::ATOMIC)?;
            in_bounds(offset, 8, import.len)
        }
        Command::Flush { .. } => Ok(()),
    }
}

/// Checks what does not depend on the import.
#[inline]
fn check_source(source: &Source<'_>) -> Result<(), OpError> {
    match *source {
        Source::Inline(data) if data.len() > INLINE_BYTES_MAX => {
            Err(OpError::InlineTooLong { len: data.len() as u64, max: INLINE_BYTES_MAX as u64 })
        }
        Source::Region { offset, len, .. } => in_bounds(offset, len, u64::MAX),
        Source::Inline(_) => Ok(()),
    }
}

/// Takes over the ranges of a gather-send, if the process may have so many more.
#[inline]
fn take_ranges(process: ProcessId, command: &Command<'_>, tables: &mut Tables) -> Result<Option<Box<Ranges>>, Busy> {
    let Command::GatherSend { ranges, .. } = command else { return Ok(None) };
    let Some(entry) = tables.process_mut(process) else { return Ok(None) };
    if entry.ranges + ranges.len() > PROCESS_RANGES_MAX {
        tables.stats.busy += 1;
        return Err(Busy { queued: PROCESS_RANGES_MAX as u64 });
    }
    entry.ranges += ranges.len();
    Ok(Some(Box::new(Ranges::new(ranges))))
}

/// What is said of a payload that goes by token.
#[inline]
fn token_of(command: &Command<'_>) -> Option<Box<TokenPart>> {
    let Command::TokenSend { token, .. } = command else { return None };
    Some(Box::new(*token))
}

/// Where data is until the operation ends; `None`: no buffer for it.
#[inline]
fn op_data(process: ProcessId, source: &Source<'_>, tables: &mut Tables) -> Option<OpData> {
    Some(match *source {
        Source::Inline(data) => OpData::Inline { slot: tables.inline.put(process, data)? },
        Source::Region { region, offset: from, .. } => OpData::Memory { region, from },
    })
}

/// Offset, length and kind of what a command becomes; `None`: no buffer for its inline data.
#[inline]
fn op_kind(process: ProcessId, command: &Command<'_>, tables: &mut Tables) -> Option<(u64, u64, OpKind)> {
    Some(match *command {
        Command::Send { offset, source, notify, counter, .. } => {
            (offset, source.len(), OpKind::Send { data: op_data(process, &source, tables)?, notify, counter })
        }
        Command::GatherSend { source, notify, counter, .. } => {
            (0, source.len(), OpKind::Send { data: op_data(process, &source, tables)?, notify, counter })
        }
        Command::TokenSend { offset, source, .. } => {
            let data = op_data(process, &source, tables)?;
            (offset, source.len(), OpKind::Send { data, notify: None, counter: None })
        }
        Command::Append { source, word, notify, refusals, .. } => {
            let data = op_data(process, &source, tables)?;
            (0, source.len(), OpKind::Append { data, word, notify, refusals })
        }
        Command::Fetch { offset, len, region, region_offset, .. } => {
            (offset, len, OpKind::Fetch { region, to: region_offset })
        }
        Command::Atomic { offset, op, .. } => (offset, 8, OpKind::Atomic(op)),
        Command::Flush { .. } => (0, 0, OpKind::Flush),
    })
}
