//! Command rings: from words of a process to commands of the engine [UTLB §4.1].
//!
//! Invariant: every field is a claim. Ranges in the process's own memory are checked here,
//! everything about the import by the engine; what makes no sense fails for that process alone.

use super::connection::Process;
use super::memory::Memory;
use super::redirection::Desk;
use super::translation::{ADDRESS_SPACE, Table};
use super::waits::Mark;
use super::{ConnectionId, Station};
use crate::limits::{RING_BATCH, RING_QUIET_EVERY, RING_WORK_PAGES, RING_WORK_RANGES, RINGS_FEW};
use std::net::SocketAddr;
use vmmc_host::abi::{ADDRESSES, Completion, Op, RANGE_BYTES, RawCommand, flags};
use vmmc_host::limits::INLINE_BYTES_MAX;
use vmmc_host::region::PAGE_BYTES;
use vmmc_host::wait::Direct;
use vmmc_nic::TokenPart;
use vmmc_nic::limits::GATHER_RANGES_MAX;
use vmmc_nic::{
    AtomicOp, ByteRange, Codepoint, Command, Cookie, Dma, Engine, ImportId, OpError, ProcessId, RegionId, RegionRef,
    Source, Time, Transmit,
};
use vmmc_utlb::Pages;

impl Station {
    /// Serves each ring that may have something.
    pub(super) fn serve_rings(&mut self, now: Time) -> bool {
        self.steps = self.steps.wrapping_add(1);
        let all = self.attached.len() <= RINGS_FEW || self.steps % RING_QUIET_EVERY == 0;
        let mut taken = 0;
        for &index in &self.attached {
            let Some(connection) = self.connections[index].as_deref_mut() else { continue };
            let (Some(process), held) = (connection.process.as_mut(), &mut connection.held) else { continue };
            if (all || !process.is_quiet()) && !process.is_barred && !self.mark.any_found() {
                self.mark.set(process.uid, process.area_at());
                let (shares, exports) = (&mut self.shares, &mut self.exports[..]);
                let desk = Desk { shares, held, exports, redirecting: &mut self.redirecting };
                taken += serve_ring(process, desk, &mut self.engine, &mut self.memory, self.progress, now, &self.mark);
            }
        }
        self.mark.clear();
        self.counters.commands += taken as u64;
        taken > 0
    }

    /// Does this for an attached process at once, as if it were the next command of its ring:
    /// `send` is given the datagram, written to the start of `buf`. None: nothing happened, since
    /// something of the process or of the engine stands before it, or it is refused; then it is to
    /// be posted.
    #[inline]
    pub(crate) fn try_send_inline(
        &mut self,
        now: Time,
        from: ConnectionId,
        what: &Direct<'_>,
        buf: &mut [u8],
        send: impl FnOnce(SocketAddr, Codepoint, &[u8]),
    ) -> Option<Transmit> {
        let connection = self.connections.get_mut(from.index)?.as_mut().filter(|c| c.number == from.number)?;
        let process = connection.process.as_mut().filter(|process| process.may_pass_ring())?;
        // Requests have none.
        let mut ranges = Vec::new();
        let command = match *what {
            Direct::Send { import, offset, data } => Command::Send {
                import: ImportId::from_u64(import),
                offset,
                source: Source::Inline(data),
                notify: None,
                counter: None,
                completion: None,
            },
            Direct::Request(raw) if raw.op.is_request() => {
                command(raw, &[0; INLINE_BYTES_MAX], &mut ranges, process.id, &mut self.memory).ok()?
            }
            Direct::Request(_) => return None,
        };
        let transmit = self.engine.try_send_inline(now, process.id, command, buf, send)?;
        match *what {
            Direct::Send { import, data, .. } => process.count(import, Some(data.len() as u64), None),
            Direct::Request(raw) => hold(process, raw),
        }
        self.counters.commands += 1;
        Some(transmit)
    }
}

/// Takes commands of one process; returns how many.
#[inline]
fn serve_ring(
    process: &mut Process,
    mut desk: Desk<'_>,
    engine: &mut Engine,
    memory: &mut Memory,
    progress: u64,
    now: Time,
    mark: &Mark,
) -> usize {
    let drained = !process.overflows() || process.drain_overflow();
    if !drained || process.stalled_at == Some(progress) || desk.redirecting.is_full(process.id) {
        process.wake_if_due();
        return 0;
    }
    let (mut taken, mut work) = (0, 0);
    let mut ranges = Vec::new();
    while work < RING_BATCH as u64 && !mark.any_found() {
        let Some(full) = process.commands.peek() else { break };
        let mut inline = [0; INLINE_BYTES_MAX];
        let raw = RawCommand::read(&full, &mut inline);
        if raw.op.is_redirection() {
            full.done();
            taken += 1;
            work += 1 + desk.serve(process, engine, memory, now, &raw);
            if process.overflows() || desk.redirecting.is_full(process.id) {
                break;
            }
            continue;
        }
        work += 1 + walked_pages(&raw, process.id, memory) / RING_WORK_PAGES + walked_ranges(&raw) / RING_WORK_RANGES;
        let outcome = match command(&raw, &inline, &mut ranges, process.id, &mut *memory) {
            Ok(command) => match engine.post(now, process.id, command, memory) {
                Ok(()) => Ok(()),
                Err(_busy) => {
                    process.stalled_at = Some(progress);
                    break;
                }
            },
            Err(why) => Err(why),
        };
        full.done();
        taken += 1;
        match outcome {
            Ok(()) => hold(process, &raw),
            Err(why) => fail(process, &raw, why),
        }
    }
    process.empty_polls = if taken > 0 { 0 } else { process.empty_polls.saturating_add(1) };
    process.commands_taken += taken as u64;
    process.wake_if_due();
    taken
}

/// Pages of its own that a command has the node check, one by one. More than the process has pinned
/// are refused unseen.
#[inline]
fn walked_pages(raw: &RawCommand, process: ProcessId, memory: &Memory) -> u64 {
    if raw.region != ADDRESSES || raw.flags & flags::INLINE != 0 {
        return 0;
    }
    let pages = raw.len / PAGE_BYTES as u64;
    let pinned = memory.table(process).map_or(0, Table::pages);
    if pages <= pinned { pages } else { 0 }
}

/// Ranges that a command has the node walk. Too many are refused unseen.
#[inline]
fn walked_ranges(raw: &RawCommand) -> u64 {
    let walked = raw.op == Op::GatherSend && raw.count as usize <= GATHER_RANGES_MAX;
    if walked { raw.count.into() } else { 0 }
}

#[cfg(test)]
impl Station {
    /// Ranges of pages that transfers under way hold.
    pub(crate) fn ranges_in_use(&self) -> usize {
        let processes = self.connections.iter().flatten().filter_map(|c| c.process.as_ref());
        processes.map(|process| process.in_use.len()).sum()
    }
}

/// The meaning of a command, its local range checked.
#[inline]
fn command<'a>(
    raw: &RawCommand,
    inline: &'a [u8; INLINE_BYTES_MAX],
    ranges: &'a mut Vec<ByteRange>,
    process: ProcessId,
    memory: &mut Memory,
) -> Result<Command<'a>, OpError> {
    let import = ImportId::from_u64(raw.import);
    let cookie = Cookie(raw.cookie);
    let atomic = |op| Ok(Command::Atomic { import, offset: raw.offset, op, cookie });
    match raw.op {
        Op::Send | Op::GatherSend | Op::Append | Op::TokenSend => {
            let source = if raw.flags & flags::INLINE != 0 {
                Source::Inline(&inline[..raw.len as usize])
            } else {
                Source::Region { region: own_range(raw, process, memory)?, offset: raw.region_offset, len: raw.len }
            };
            let notify = (raw.flags & flags::NOTIFY != 0).then_some(raw.word);
            let counter = (raw.flags & flags::COUNTER != 0).then_some(raw.counter);
            let completion = (raw.flags & flags::COMPLETE != 0).then_some(cookie);
            Ok(match raw.op {
                Op::GatherSend => {
                    let source = split_table(raw.count as usize, source, ranges, process, memory)?;
                    Command::GatherSend { import, ranges, source, notify, counter, completion }
                }
                Op::Append => {
                    let (word, notify, refusals) = (raw.word, notify.is_some(), raw.count);
                    Command::Append { import, source, word, notify, refusals, completion }
                }
                Op::TokenSend => {
                    let (offset, total) = raw.part();
                    let token = TokenPart { index: raw.count, key: raw.word, tag: raw.counter, total };
                    Command::TokenSend { import, token, offset, source, completion }
                }
                _ => Command::Send { import, offset: raw.offset, source, notify, counter, completion },
            })
        }
        Op::Fetch => {
            let region = own_range(raw, process, memory)?;
            Ok(Command::Fetch {
                import,
                offset: raw.offset,
                len: raw.len,
                region,
                region_offset: raw.region_offset,
                cookie,
            })
        }
        Op::FetchAdd => atomic(AtomicOp::FetchAdd(raw.counter)),
        Op::CompareSwap => atomic(AtomicOp::CompareSwap { expected: raw.counter, desired: raw.region }),
        Op::Swap => atomic(AtomicOp::Swap(raw.counter)),
        Op::Flush => Ok(Command::Flush { import, cookie }),
        // Those about redirections are served before.
        Op::Redirect | Op::CancelRedirect | Op::Unknown => Err(OpError::Protocol),
    }
}

/// Bytes of a table of ranges that are read at a time: most tables at once.
const TABLE_PIECE_BYTES: usize = 64 * RANGE_BYTES;

/// Reads the table of a gather-send, which stands before its data; what is left is the data. The
/// process can write to the table meanwhile: what was read here is what counts.
fn split_table<'a>(
    count: usize,
    source: Source<'a>,
    ranges: &mut Vec<ByteRange>,
    process: ProcessId,
    memory: &mut Memory,
) -> Result<Source<'a>, OpError> {
    let (too_many, table) = (count > GATHER_RANGES_MAX, count * RANGE_BYTES);
    if too_many {
        return Err(OpError::BadRanges { ranges: count as u64, max: GATHER_RANGES_MAX as u64 });
    }
    ranges.clear();
    match source {
        Source::Inline(all) => {
            let (table, data) = all.split_at_checked(table).ok_or(OpError::Protocol)?;
            ranges.extend(entries(table));
            Ok(Source::Inline(data))
        }
        Source::Region { region, offset, len } => {
            let len = len.checked_sub(table as u64).ok_or(OpError::Protocol)?;
            let mut some = [0; TABLE_PIECE_BYTES];
            for at in (0..table).step_by(TABLE_PIECE_BYTES) {
                let some = &mut some[..TABLE_PIECE_BYTES.min(table - at)];
                memory.gather(RegionRef { process, region }, offset + at as u64, some);
                ranges.extend(entries(some));
            }
            Ok(Source::Region { region, offset: offset + table as u64, len })
        }
    }
}

fn entries(table: &[u8]) -> impl Iterator<Item = ByteRange> + '_ {
    table.chunks_exact(RANGE_BYTES).map(|entry| {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let (start, len) = (word(0), word(8));
        ByteRange { start, end: start.saturating_add(len) }
    })
}

/// The region that a command names, if the range lies in it.
#[inline]
fn own_range(raw: &RawCommand, process: ProcessId, memory: &mut Memory) -> Result<RegionId, OpError> {
    if raw.region == ADDRESSES {
        let sends = raw.op == Op::Send && raw.flags & flags::COMPLETE != 0;
        if !sends && raw.op != Op::Fetch {
            // Nobody could tell when the pages are free again.
            return Err(OpError::Protocol);
        }
        return memory.check_pinned(process, raw.region_offset, raw.len).map(|_| ADDRESS_SPACE);
    }
    let nowhere = OpError::OutOfBounds { offset: raw.region_offset, len: raw.len, size: 0 };
    let region = RegionId(u32::try_from(raw.region).map_err(|_| nowhere)?);
    memory.check(RegionRef { process, region }, raw.region_offset, raw.len)?;
    Ok(region)
}

/// The engine took a command: it is counted, and pages of a transfer under way are not taken from
/// the process.
#[inline]
fn hold(process: &mut Process, raw: &RawCommand) {
    match raw.op {
        Op::Send | Op::GatherSend | Op::Append | Op::TokenSend => process.count(raw.import, Some(raw.len), None),
        Op::Fetch => process.count(raw.import, None, Some(raw.len)),
        Op::FetchAdd | Op::CompareSwap | Op::Swap => process.count(raw.import, None, None),
        Op::Flush | Op::Redirect | Op::CancelRedirect | Op::Unknown => {}
    }
    if raw.region == ADDRESSES && raw.flags & flags::INLINE == 0 && matches!(raw.op, Op::Send | Op::Fetch) {
        if let Some(pages) = Pages::of_bytes(raw.region_offset, raw.len) {
            process.in_use.push((raw.cookie, pages));
        }
    }
}

#[cold]
fn fail(process: &mut Process, raw: &RawCommand, why: OpError) {
    if raw.op.sends() && raw.flags & flags::COMPLETE == 0 {
        process.send_failed(raw.import, why);
    } else {
        process.complete(Completion { cookie: raw.cookie, status: why.code(), value: 0, args: why.args() });
    }
}
