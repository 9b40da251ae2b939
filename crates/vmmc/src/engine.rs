//! Transfers through the engine: to other nodes, and to exports of this node that cannot be mapped.
//!
//! Invariant: memory that a command names is held by its slot until the completion; the caller's
//! own memory is never named, only copied, so it is free on return. Commands of one thread are
//! posted in the order of its calls. Source: [UTLB §4.1] command post buffer; [NT §3.1] short data
//! inline.

use crate::buffer::BufferRange;
use crate::core::{Core, End, Limit, count};
use crate::error::{BufferError, TransferError};
use crate::import::{SendOptions, Shared};
use crate::limits::{INLINE_BYTES_MAX, LONG_SEND_KEPT_MAX, STAGING_CHUNK_MAX};
use crate::memory::Origin;
use crate::regions::Registered;
use crate::slots::Hold;
use crate::staging::{Chunk, Staging};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmmc_host::Region;
use vmmc_host::abi::{Op, RawCommand, flags, inline_bytes_max};
use vmmc_host::wait::Direct;
use vmmc_nic::OpError;
use vmmc_utlb::Op as Trace;

/// A posted command whose answer somebody wants. Dropping it abandons the answer.
pub(crate) struct Ticket {
    core: Arc<Core>,
    cookie: u64,
    taken: bool,
}

impl Ticket {
    /// The result, if it has come.
    pub(crate) fn poll(&mut self) -> Option<(Result<u64, OpError>, Hold)> {
        let answer = self.core.slots.take(self.cookie)?;
        self.taken = true;
        Some(answer)
    }

    /// Whether it has.
    pub(crate) fn is_done(&self) -> bool {
        self.core.slots.is_done(self.cookie)
    }

    /// Waits for the result.
    pub(crate) fn wait(&mut self, limit: &Limit<'_>) -> Result<(Result<u64, OpError>, Hold), End> {
        if let Some(answer) = self.poll() {
            return Ok(answer);
        }
        let core = self.core.clone();
        core.wait(limit.deadline(), || self.poll())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.taken {
            let hold = self.core.slots.abandon(self.cookie);
            self.core.release(hold);
        }
    }
}

impl Shared {
    /// When a send with these options gives up.
    pub(crate) fn limit(&self, options: SendOptions) -> Limit<'_> {
        Limit::within(&self.core, options.timeout.unwrap_or_else(|| self.core.timeout()))
    }

    /// Sends the caller's data: at once, in the descriptor, or by way of staging memory.
    #[inline]
    pub(crate) fn send_engine(&self, offset: u64, data: &[u8], options: SendOptions) -> Result<(), TransferError> {
        if data.len() <= INLINE_BYTES_MAX && options.is_plain() && self.try_send_inline(offset, data)? {
            return Ok(());
        }
        self.send_posted(offset, data, options)
    }

    #[inline(never)]
    fn send_posted(&self, offset: u64, data: &[u8], options: SendOptions) -> Result<(), TransferError> {
        self.check_deferred()?;
        let limit = &self.limit(options);
        self.core.hot.trace(Trace::Send, data.as_ptr() as usize, data.len() as u64);
        let mut command = self.send_command(offset, options);
        if data.len() <= inline_bytes_max(command.flags) {
            command.flags |= flags::INLINE;
            let posted = self.post(&command, data, limit);
            // After the post, which somebody waits for.
            count(&self.core.counters.send_bytes, data.len() as u64);
            count(&self.core.counters.sends_inline, 1);
            return posted;
        }
        count(&self.core.counters.send_bytes, data.len() as u64);
        count(&self.core.counters.sends_staged, 1);
        if data.len() as u64 > STAGING_CHUNK_MAX && options.notify.is_some() {
            // One command for all, since the notification names its range.
            return self.send_long(offset, data, options, limit);
        }
        self.send_staged(offset, data, options, limit)
    }

    /// Sends short data past the command ring, if the node is in this process and nothing stands
    /// before it; says whether it did. What has come from the node is looked at afterwards:
    /// somebody waits for the data.
    #[inline]
    fn try_send_inline(&self, offset: u64, data: &[u8]) -> Result<bool, TransferError> {
        let core = &*self.core;
        if core.usable().is_err() || !core.waiting.waiter.steps() || core.is_corked() {
            return Ok(false);
        }
        self.deferred.check().map_err(|error| self.op_error(error))?;
        if !core.waiting.waiter.try_send_inline(&Direct::Send { import: self.id, offset, data }) {
            return Ok(false);
        }
        self.posted.store(true, Ordering::Relaxed);
        core.hot.trace(Trace::Send, data.as_ptr() as usize, data.len() as u64);
        count(&core.counters.send_bytes, data.len() as u64);
        count(&core.counters.sends_inline, 1);
        count(&core.counters.sends_direct, 1);
        core.collect_if_free();
        Ok(true)
    }

    /// Sends in pieces that stay in staging memory until they have arrived; only the last one
    /// carries counter and notification.
    fn send_staged(
        &self,
        offset: u64,
        data: &[u8],
        options: SendOptions,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let (staging, chunk) = self.chunk(rest.len() as u64, limit)?;
            let piece = &rest[..rest.len().min(chunk.len() as usize)];
            staging.region.write(chunk.offset, piece).expect("chunks lie in the staging region");
            let last = piece.len() == rest.len();
            let mut command = self.send_command(offset + done as u64, if last { options } else { Default::default() });
            command.flags |= flags::COMPLETE;
            command.region = u64::from(staging.id);
            command.region_offset = chunk.offset;
            command.len = piece.len() as u64;
            self.post_unattended(&mut command, Hold::Chunk(chunk), limit)?;
            done += piece.len();
        }
        Ok(())
    }

    /// Sends long data by one command from memory made for it, and waits for it.
    fn send_long(
        &self,
        offset: u64,
        data: &[u8],
        options: SendOptions,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        let memory = self.long_memory(data, limit)?;
        let mut command = self.send_command(offset, options);
        command.len = data.len() as u64;
        command.region = u64::from(memory.id);
        let mut ticket = self.post_answered(&mut command, Hold::Memory(memory.clone()), limit)?;
        self.finish(&mut ticket, limit)?;
        if memory.region.len_bytes() <= LONG_SEND_KEPT_MAX {
            *self.core.staging.long.lock().expect("no panic while the lock is held") = Some(memory);
        }
        Ok(())
    }

    /// Registered memory with a copy of the data.
    pub(crate) fn long_memory(&self, data: &[u8], limit: &Limit<'_>) -> Result<Arc<Registered>, TransferError> {
        let len = data.len() as u64;
        let kept = self.core.staging.long.lock().expect("no panic while the lock is held").take();
        let memory = match kept.filter(|memory| memory.region.len_bytes() >= len) {
            Some(memory) => memory,
            None => self.new_memory(len, limit)?,
        };
        memory.region.write(0, data).expect("it was made or chosen large enough");
        Ok(memory)
    }

    /// Registered memory of so many bytes.
    pub(crate) fn new_memory(&self, len: u64, limit: &Limit<'_>) -> Result<Arc<Registered>, TransferError> {
        let piece = Origin::New(len).register(&self.core, limit.deadline()).map_err(|e| self.no_staging(e))?;
        Ok(piece.registered)
    }

    /// Sends from registered memory; the answer says that the memory is free.
    pub(crate) fn send_registered(
        &self,
        source: &BufferRange<'_>,
        offset: u64,
        options: SendOptions,
    ) -> Result<Ticket, TransferError> {
        self.check_deferred()?;
        let (buffer, from, len) = (source.buffer, source.buffer.region_offset(source.range.start), source.len());
        count(&self.core.counters.sends_registered, 1);
        count(&self.core.counters.send_bytes, len);
        self.core.hot.trace(Trace::Send, buffer.region().address() + from as usize, len);
        let mut command = self.send_command(offset, options);
        command.len = len;
        command.region = u64::from(buffer.region_id());
        command.region_offset = from;
        self.post_answered(&mut command, Hold::Memory(buffer.registered()), &self.limit(options))
    }

    /// Sends data that is copied first; the answer says that it has arrived.
    pub(crate) fn send_copied(&self, offset: u64, data: &[u8], options: SendOptions) -> Result<Ticket, TransferError> {
        self.check_deferred()?;
        let limit = &self.limit(options);
        count(&self.core.counters.send_bytes, data.len() as u64);
        self.core.hot.trace(Trace::Send, data.as_ptr() as usize, data.len() as u64);
        let mut command = self.send_command(offset, options);
        command.len = data.len() as u64;
        if data.len() as u64 > STAGING_CHUNK_MAX {
            count(&self.core.counters.sends_staged, 1);
            let memory = self.long_memory(data, limit)?;
            command.region = u64::from(memory.id);
            return self.post_answered(&mut command, Hold::Memory(memory), limit);
        }
        if data.len() <= inline_bytes_max(command.flags) {
            count(&self.core.counters.sends_inline, 1);
            command.flags |= flags::INLINE;
            return self.post_answered_with(&mut command, data, Hold::Nothing, limit);
        }
        count(&self.core.counters.sends_staged, 1);
        let (staging, chunk) = self.chunk(data.len() as u64, limit)?;
        staging.region.write(chunk.offset, data).expect("chunks lie in the staging region");
        command.region = u64::from(staging.id);
        command.region_offset = chunk.offset;
        self.post_answered(&mut command, Hold::Chunk(chunk), limit)
    }

    /// Fetches into the caller's memory by way of staging memory, several pieces under way.
    pub(crate) fn fetch_engine(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        self.check_deferred()?;
        let limit = &self.limit(SendOptions::default());
        self.count_fetch(into.len() as u64);
        self.core.hot.trace(Trace::Fetch, into.as_ptr() as usize, into.len() as u64);
        let mut asked = 0;
        let mut filled = 0;
        let mut under_way: VecDeque<(Ticket, usize)> = VecDeque::new();
        while filled < into.len() {
            if let Some((staging, chunk)) = self.next_chunk(into.len() - asked, under_way.is_empty(), limit)? {
                let len = (into.len() - asked).min(chunk.len() as usize);
                let at = (u64::from(staging.id), chunk.offset);
                let hold = Hold::Fetched(chunk, len);
                let ticket = self.post_fetch(offset + asked as u64, len as u64, at, hold, limit)?;
                under_way.push_back((ticket, len));
                asked += len;
                continue;
            }
            let (mut ticket, len) = under_way.pop_front().expect("nothing left to ask for means something under way");
            let hold = self.finish_holding(&mut ticket, limit)?;
            self.take_chunk(&hold, &mut into[filled..filled + len]);
            self.core.release(hold);
            filled += len;
        }
        Ok(())
    }

    /// A chunk for the next piece of a fetch: waits for one only if nothing is under way, which
    /// would give one back.
    fn next_chunk(
        &self,
        left: usize,
        must: bool,
        limit: &Limit<'_>,
    ) -> Result<Option<(Arc<Registered>, Chunk)>, TransferError> {
        match (left, must) {
            (0, _) => Ok(None),
            (_, true) => self.chunk(left as u64, limit).map(Some),
            _ => Ok(self
                .core
                .staging
                .take(left as u64, &self.share)
                .map(|chunk| (self.core.staging.memory.get().expect("the first chunk has made it").clone(), chunk))),
        }
    }

    /// Fetches a few bytes into staging memory; [`take_chunk`](Self::take_chunk) gets them. None if
    /// it does not wait for such memory, and there is none now.
    pub(crate) fn fetch_chunk(
        &self,
        offset: u64,
        len: u64,
        wait: bool,
        limit: &Limit<'_>,
    ) -> Result<Option<Ticket>, TransferError> {
        let (staging, chunk) = if wait {
            self.chunk(len, limit)?
        } else {
            let staging = self.staging(limit)?;
            let Some(chunk) = self.core.staging.take(len, &self.share) else { return Ok(None) };
            (staging, chunk)
        };
        let at = (u64::from(staging.id), chunk.offset);
        self.post_fetch(offset, len, at, Hold::Fetched(chunk, len as usize), limit).map(Some)
    }

    /// What a finished fetch left in staging memory.
    pub(crate) fn take_chunk(&self, hold: &Hold, into: &mut [u8]) {
        match hold {
            Hold::Fetched(chunk, _) => self.read_chunk(chunk, into),
            Hold::Moved(bytes) => into.copy_from_slice(bytes),
            _ => {}
        }
    }

    fn read_chunk(&self, chunk: &Chunk, into: &mut [u8]) {
        let staging = self.core.staging.memory.get().expect("a chunk was taken from it");
        staging.region.read(chunk.offset, into).expect("chunks lie in the region");
    }

    /// Fetches into registered memory.
    pub(crate) fn fetch_registered(&self, offset: u64, to: &BufferRange<'_>) -> Result<Ticket, TransferError> {
        self.check_deferred()?;
        let (buffer, at, len) = (to.buffer, to.buffer.region_offset(to.range.start), to.len());
        self.count_fetch(len);
        self.core.hot.trace(Trace::Fetch, buffer.region().address() + at as usize, len);
        let place = (u64::from(buffer.region_id()), at);
        self.post_fetch(offset, len, place, Hold::Memory(buffer.registered()), &self.limit(SendOptions::default()))
    }

    pub(crate) fn count_fetch(&self, len: u64) {
        count(&self.core.counters.fetches, 1);
        count(&self.core.counters.fetch_bytes, len);
    }

    fn post_fetch(
        &self,
        offset: u64,
        len: u64,
        (region, region_offset): (u64, u64),
        hold: Hold,
        limit: &Limit<'_>,
    ) -> Result<Ticket, TransferError> {
        let mut command = RawCommand::new(Op::Fetch, self.id);
        command.offset = offset;
        command.len = len;
        command.region = region;
        command.region_offset = region_offset;
        self.post_answered(&mut command, hold, limit)
    }

    pub(crate) fn atomic_engine(&self, op: Op, offset: u64, operands: [u64; 2]) -> Result<u64, TransferError> {
        self.check_deferred()?;
        count(&self.core.counters.atomics, 1);
        let mut command = RawCommand::new(op, self.id);
        command.offset = offset;
        [command.counter, command.region] = operands;
        let limit = &self.limit(SendOptions::default());
        let mut ticket = self.post_answered(&mut command, Hold::Nothing, limit)?;
        self.finish(&mut ticket, limit)
    }

    pub(crate) fn flush_engine(&self, limit: &Limit<'_>) -> Result<(), TransferError> {
        self.check_deferred()?;
        self.posted.store(false, Ordering::Relaxed);
        let mut ticket = self.post_flush(limit)?;
        self.finish(&mut ticket, limit)?;
        self.core.collect();
        self.check_deferred()
    }

    /// Has the other node answer at once to all that was posted before.
    pub(crate) fn post_flush(&self, limit: &Limit<'_>) -> Result<Ticket, TransferError> {
        self.post_answered(&mut RawCommand::new(Op::Flush, self.id), Hold::Nothing, limit)
    }

    /// Waits for an answer; gives its value.
    pub(crate) fn finish(&self, ticket: &mut Ticket, limit: &Limit<'_>) -> Result<u64, TransferError> {
        let (result, hold) = ticket.wait(limit).map_err(|end| self.end(end, limit.waited()))?;
        self.core.release(hold);
        result.map_err(|error| self.op_error(error))
    }

    /// Waits for an answer; gives what the command held.
    fn finish_holding(&self, ticket: &mut Ticket, limit: &Limit<'_>) -> Result<Hold, TransferError> {
        let (result, hold) = ticket.wait(limit).map_err(|end| self.end(end, limit.waited()))?;
        match result {
            Ok(_) => Ok(hold),
            Err(error) => {
                self.core.release(hold);
                Err(self.op_error(error))
            }
        }
    }

    pub(crate) fn send_command(&self, offset: u64, options: SendOptions) -> RawCommand {
        let mut command = RawCommand::new(Op::Send, self.id);
        command.offset = offset;
        if let Some(word) = options.notify {
            command.flags |= flags::NOTIFY;
            command.word = word;
        }
        if let Some(counter) = options.counter {
            command.flags |= flags::COUNTER;
            command.counter = counter;
        }
        command
    }

    pub(crate) fn post(&self, command: &RawCommand, inline: &[u8], limit: &Limit<'_>) -> Result<(), TransferError> {
        self.posted.store(true, Ordering::Relaxed);
        let asked =
            || self.core.usable().is_ok() && self.core.waiting.waiter.try_send_inline(&Direct::Request(command));
        if command.op.is_request() && asked() {
            count(&self.core.counters.requests_direct, 1);
            return Ok(());
        }
        self.core.post(command, inline, limit).map_err(|end| self.end(end, limit.waited()))
    }

    pub(crate) fn post_unattended(
        &self,
        command: &mut RawCommand,
        hold: Hold,
        limit: &Limit<'_>,
    ) -> Result<(), TransferError> {
        let cookie = self.reserve(hold, limit)?;
        self.core.slots.leave(cookie, self.id);
        command.cookie = cookie;
        self.post(command, &[], limit).inspect_err(|_| self.core.release(self.core.slots.cancel(cookie)))
    }

    pub(crate) fn post_answered(
        &self,
        command: &mut RawCommand,
        hold: Hold,
        limit: &Limit<'_>,
    ) -> Result<Ticket, TransferError> {
        self.post_answered_with(command, &[], hold, limit)
    }

    pub(crate) fn post_answered_with(
        &self,
        command: &mut RawCommand,
        inline: &[u8],
        hold: Hold,
        limit: &Limit<'_>,
    ) -> Result<Ticket, TransferError> {
        let cookie = self.reserve(hold, limit)?;
        command.flags |= flags::COMPLETE;
        command.cookie = cookie;
        match self.post(command, inline, limit) {
            Ok(()) => Ok(Ticket { core: self.core.clone(), cookie, taken: false }),
            Err(error) => {
                self.core.release(self.core.slots.cancel(cookie));
                Err(error)
            }
        }
    }

    fn reserve(&self, hold: Hold, limit: &Limit<'_>) -> Result<u64, TransferError> {
        match self.core.reserve(limit) {
            Ok(cookie) => {
                self.core.slots.hold(cookie, hold);
                Ok(cookie)
            }
            Err(end) => {
                self.core.release(hold);
                Err(self.end(end, limit.waited()))
            }
        }
    }

    /// A chunk of staging memory; waits for one.
    pub(crate) fn chunk(&self, len: u64, limit: &Limit<'_>) -> Result<(Arc<Registered>, Chunk), TransferError> {
        let memory = self.staging(limit)?;
        let take = || self.core.staging.take(len, &self.share).or_else(|| self.make_room(len));
        let chunk = self.core.wait_resource(limit, take).map_err(|end| self.end(end, limit.waited()))?;
        Ok((memory, chunk))
    }

    /// A chunk with data that a finished fetch has not read yet: the thread whose fetch it is may
    /// be the one that waits. The data moves to other memory, as much as fetches were posted for
    /// at most.
    fn make_room(&self, len: u64) -> Option<Chunk> {
        let staging = &self.core.staging;
        let copy = |chunk: &Chunk, len: usize| {
            let mut bytes = vec![0; len];
            self.read_chunk(chunk, &mut bytes);
            bytes
        };
        let chunk = self.core.slots.move_out(|chunk| staging.would_help(chunk, len, &self.share), copy)?;
        staging.give_back(chunk);
        staging.take(len, &self.share)
    }

    /// The staging memory, made at first use.
    fn staging(&self, limit: &Limit<'_>) -> Result<Arc<Registered>, TransferError> {
        let staging = &self.core.staging;
        if let Some(memory) = staging.memory.get() {
            return Ok(memory.clone());
        }
        let made = Region::create(Staging::bytes())
            .map_err(BufferError::from)
            .and_then(|region| Registered::new(&self.core, region, limit.deadline()))
            .map_err(|error| self.no_staging(error))?;
        Ok(staging.memory.get_or_init(|| made).clone())
    }

    pub(crate) fn no_staging(&self, error: BufferError) -> TransferError {
        TransferError::Staging { import: self.label.clone(), error: Box::new(error) }
    }
}
