//! One connection to the node, and the process that attached through it.
//!
//! Invariant: nothing here waits for the other side; what does not fit a socket or ring now waits
//! in a bounded queue of that process alone.

use super::closers::Foreign;
use super::gates::Gates;
use super::link::Link;
use super::shares::{Holdings, ShareTaken, Shares, Table};
use super::waits::{AREA, Mark};
use crate::limits::{
    IMPORTS_SLOTS_KEPT, OUTBOX_BYTES_MAX, OUTBOX_ENTRY_BYTES, OUTBOX_FDS_MAX, RING_QUIET_POLLS, SEND_FAILURES_MAX,
    UNDER_WAY_PER_SOCKET_MAX,
};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc_host::abi::{COOKIE_SEND_FAILED, Completion, RawNotification};
use vmmc_host::area::must_wake;
use vmmc_host::channel::{ChannelError, PeerCredentials};
use vmmc_host::control::{Moved, NodeEvent, Refusal, encode};
use vmmc_host::process::ProcessWatch;
use vmmc_host::region::Unmapped;
use vmmc_host::ring::{Consumer, Producer, RegionWords};
use vmmc_host::wait::WakeSender;
use vmmc_host::{AttachArea, Channel, NotifyBell};
use vmmc_nic::{ExportId, ImportId, OpError, ProcessId, RegionRef, Time};
use vmmc_utlb::Pages;

/// A connection.
pub(super) struct Connection {
    /// Never used twice, unlike the index in the table.
    pub(super) number: u64,
    pub(super) control: Outbox,
    pub(super) who: PeerCredentials,
    /// Last sign of life while not attached.
    pub(super) last_received: Time,
    pub(super) process: Option<Process>,
    /// It is a client of that service instead.
    pub(super) service: Option<usize>,
    /// Why its user is not served: the answer to whatever it asks first, and then it ends.
    pub(super) refused: Option<Refusal>,
    /// Replies wait for room in its socket: no request is read, and the socket is watched for room
    /// instead.
    pub(super) held_back: bool,
    /// It is to be closed, and nothing is read from it any more.
    pub(super) is_closing: bool,
    /// What it has of the tables that users share.
    pub(super) held: Holdings,
    /// Its calls that wait for an answer.
    pub(super) calls_waiting: usize,
}

impl Connection {
    pub(super) fn new(number: u64, control: Outbox, who: PeerCredentials, now: Time) -> Connection {
        Connection {
            number,
            control,
            who,
            last_received: now,
            process: None,
            service: None,
            refused: None,
            held_back: false,
            is_closing: false,
            held: Holdings::default(),
            calls_waiting: 0,
        }
    }

    /// Whether it has not said yet what it is.
    pub(super) fn is_silent(&self) -> bool {
        self.process.is_none() && self.service.is_none()
    }
}

/// A socket, and what waits for room in it.
pub(super) struct Outbox {
    pub(super) channel: Foreign<Channel>,
    waiting: VecDeque<Waiting>,
    /// Bytes of what waits, bookkeeping included, and its descriptors.
    bytes: usize,
    fds: usize,
    /// Descriptors that went out, as far as it is not known that the client has taken them.
    under_way: u32,
    /// Why the first of what waits did not go out, if it is for its descriptors.
    pub(super) stopped: Option<Stopped>,
}

/// Why a message does not go out for its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stopped {
    #[error("{UNDER_WAY_PER_SOCKET_MAX} descriptors wait on this connection to be read; read the answers")]
    Unread,
    #[error(transparent)]
    Share(#[from] ShareTaken),
    #[error(
        "the kernel lets no descriptor of the node's user pass (ETOOMANYREFS): as many as a process may have open wait in messages that are not read; end what does not read, or raise the node's limit (LimitNOFILE, ulimit -n)"
    )]
    Kernel,
}

/// The account in which descriptors that are under way count.
pub(super) struct DescriptorAccount<'a> {
    pub(super) shares: &'a mut Shares,
    pub(super) uid: u32,
    pub(super) held: &'a mut Holdings,
}

struct Waiting {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// The process that it introduces, which may have gone before it goes out.
    about: Option<u32>,
}

/// The other side is gone, or collects nothing.
#[derive(Debug)]
pub(super) struct Gone;

impl Outbox {
    pub(super) fn new(channel: Foreign<Channel>) -> Outbox {
        Outbox { channel, waiting: VecDeque::new(), bytes: 0, fds: 0, under_way: 0, stopped: None }
    }

    /// Sends a message, or queues it. Returns the number of messages that went out.
    pub(super) fn send(
        &mut self,
        bytes: Vec<u8>,
        fds: Vec<OwnedFd>,
        account: &mut DescriptorAccount<'_>,
    ) -> Result<u64, Gone> {
        self.send_about(None, bytes, fds, account)
    }

    /// The same for a message that introduces a process.
    fn send_about(
        &mut self,
        about: Option<u32>,
        bytes: Vec<u8>,
        fds: Vec<OwnedFd>,
        account: &mut DescriptorAccount<'_>,
    ) -> Result<u64, Gone> {
        if self.waiting.is_empty() && self.try_send(&bytes, &fds, account)? {
            return Ok(1);
        }
        let more = bytes.len() + OUTBOX_ENTRY_BYTES;
        if self.bytes + more > OUTBOX_BYTES_MAX || self.fds + fds.len() > OUTBOX_FDS_MAX {
            return Err(Gone);
        }
        self.bytes += more;
        self.fds += fds.len();
        self.waiting.push_back(Waiting { bytes, fds, about });
        Ok(0)
    }

    /// Takes back what introduces a process, if it still waits.
    fn withdraw(&mut self, about: u32) -> bool {
        let Some(at) = self.waiting.iter().position(|message| message.about == Some(about)) else { return false };
        self.waiting.remove(at).into_iter().for_each(|message| self.uncount(&message));
        true
    }

    fn uncount(&mut self, message: &Waiting) {
        self.bytes -= message.bytes.len() + OUTBOX_ENTRY_BYTES;
        self.fds -= message.fds.len();
    }

    /// Whether a message with so many descriptors can wait.
    pub(super) fn has_room_for(&self, fds: usize) -> bool {
        self.fds + fds <= OUTBOX_FDS_MAX
    }

    /// Bytes that wait, bookkeeping included.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Descriptors that wait.
    pub(super) fn waiting_fds(&self) -> usize {
        self.fds
    }

    /// Sends what waits, as far as there is room. Returns the number of messages that went out.
    pub(super) fn retry(&mut self, account: &mut DescriptorAccount<'_>) -> Result<u64, Gone> {
        let mut sent = 0;
        while let Some(message) = self.waiting.pop_front() {
            let outcome = self.try_send(&message.bytes, &message.fds, account);
            if !matches!(outcome, Ok(true)) {
                self.waiting.push_front(message);
                outcome?;
                break;
            }
            self.uncount(&message);
            sent += 1;
        }
        Ok(sent)
    }

    /// Sends a message, unless the socket is full or its descriptors would be too many under way.
    fn try_send(&mut self, bytes: &[u8], fds: &[OwnedFd], account: &mut DescriptorAccount<'_>) -> Result<bool, Gone> {
        self.stopped = None;
        let count = fds.len() as u32;
        if count > 0 {
            self.release_taken(account);
            if self.under_way + count > UNDER_WAY_PER_SOCKET_MAX {
                self.stopped = Some(Stopped::Unread);
                return Ok(false);
            }
            if let Err(full) = account.shares.take(account.uid, account.held, Table::UnderWay, count) {
                self.stopped = Some(full.into());
                return Ok(false);
            }
        }
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let outcome = match self.channel.try_send(bytes, &borrowed) {
            Ok(()) => {
                self.under_way += count;
                return Ok(true);
            }
            Err(ChannelError::System { errno: Errno::TOOMANYREFS, .. }) => {
                self.stopped = Some(Stopped::Kernel);
                Ok(false)
            }
            // Whatever passes by itself: the socket is full, or the kernel is out of memory.
            Err(ChannelError::WouldBlock | ChannelError::System { errno: Errno::NOBUFS | Errno::NOMEM, .. }) => {
                Ok(false)
            }
            Err(_) => Err(Gone),
        };
        account.shares.give(account.uid, account.held, Table::UnderWay, count);
        outcome
    }

    /// Takes descriptors off the account that the client has taken.
    pub(super) fn release_taken(&mut self, account: &mut DescriptorAccount<'_>) {
        if self.under_way > 0 && self.channel.is_all_taken() {
            account.shares.give(account.uid, account.held, Table::UnderWay, std::mem::take(&mut self.under_way));
        }
    }

    /// Descriptors that went out and may not have been taken.
    pub(super) fn under_way(&self) -> u32 {
        self.under_way
    }

    /// What waits is sent to nobody any more.
    pub(super) fn forget_waiting(&mut self) {
        (self.bytes, self.fds, self.stopped) = (0, 0, None);
        self.waiting.clear();
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// An attached process.
pub(super) struct Process {
    pub(super) id: ProcessId,
    pub(super) uid: u32,
    /// Its user held the node up: nothing of it is touched any more.
    pub(super) is_barred: bool,
    mark: Mark,
    area: AttachArea,
    pub(super) commands: Consumer<RegionWords>,
    completions: Producer<RegionWords>,
    notifications: Producer<RegionWords>,
    /// Completions that found their ring full. While there are any, no command of the process is
    /// taken, so the engine's bounds on its operations and redirections bound them.
    overflow: VecDeque<Completion>,
    /// Imports whose failed sends are reported among them.
    failures: Vec<u64>,
    pub(super) gates: Gates,
    pub(super) wake: WakeSender,
    /// The process writes it when the node sleeps. Never read: the process could steal a wake-up by
    /// reading, or make a read of ours wait.
    pub(super) doorbell: OwnedFd,
    /// None: it was taken out at the end.
    pub(super) events: Option<Outbox>,
    /// Absent for a process that is this one, or that cannot be seen.
    pub(super) watch: Option<ProcessWatch>,
    /// What its notifiers read before they wake it; and the descriptor that they get.
    pub(super) notify_bell: NotifyBell,
    pub(super) bell_readers: OwnedFd,
    /// Its wake-ups, for a process that steps the node that it waits for.
    pub(super) bell: Option<OwnedFd>,
    pub(super) exports: Vec<ExportId>,
    /// By slot of the import id.
    pub(super) imports: Vec<Option<ImportRecord>>,
    /// How many there are.
    pub(super) imports_held: u32,
    /// Importers of its exports.
    pub(super) links: Vec<Link>,
    /// Rings of importers which have gone, which this process may not have read to the end.
    pub(super) former_rings: VecDeque<Unmapped>,
    /// Polls of its ring in a row that found nothing.
    pub(super) empty_polls: u32,
    /// Progress of the engine at which it answered `Busy`; it is offered the command again when
    /// there is more.
    pub(super) stalled_at: Option<u64>,
    pub(super) wake_due: bool,
    pub(super) commands_taken: u64,
    /// Name of its program when it attached.
    pub(super) program: String,
    pub(super) revocations: usize,
    /// Pages of its own that transfers under way use, by cookie. Bounded by the engine's bound on
    /// operations; a process that uses a cookie twice harms its own data.
    pub(super) in_use: Vec<(u64, Pages)>,
    /// Pages that the node must still take from it, once no transfer uses them.
    pub(super) pins_to_reclaim: u64,
}

/// What the station knows of an import.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImportRecord {
    pub(super) id: ImportId,
    pub(super) export: ExportId,
    pub(super) path: Path,
    /// The importer stores through its mapping whenever it likes.
    pub(super) bound: bool,
    /// What the engine took for it.
    pub(super) moved: Moved,
}

/// Way of an import's transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Mapped,
    Engine,
    Network,
}

/// What [`Process::new`] needs from outside.
pub(super) struct Parts {
    pub(super) uid: u32,
    pub(super) mark: Mark,
    pub(super) program: String,
    pub(super) area: AttachArea,
    pub(super) gates: Gates,
    pub(super) wake: WakeSender,
    pub(super) doorbell: OwnedFd,
    pub(super) events: Foreign<Channel>,
    pub(super) watch: Option<ProcessWatch>,
    pub(super) notify_bell: NotifyBell,
    pub(super) bell_readers: OwnedFd,
    pub(super) bell: Option<OwnedFd>,
}

impl Process {
    pub(super) fn new(id: ProcessId, parts: Parts) -> Process {
        parts.mark.know(RegionRef { process: id, region: AREA }, parts.area.memory());
        Process {
            id,
            uid: parts.uid,
            is_barred: false,
            mark: parts.mark,
            commands: parts.area.command_consumer(),
            completions: parts.area.completion_producer(),
            notifications: parts.area.notification_producer(),
            area: parts.area,
            overflow: VecDeque::new(),
            failures: Vec::new(),
            gates: parts.gates,
            wake: parts.wake,
            doorbell: parts.doorbell,
            events: Some(Outbox::new(parts.events)),
            watch: parts.watch,
            notify_bell: parts.notify_bell,
            bell_readers: parts.bell_readers,
            bell: parts.bell,
            exports: Vec::new(),
            imports: Vec::new(),
            imports_held: 0,
            links: Vec::new(),
            former_rings: VecDeque::new(),
            empty_polls: 0,
            stalled_at: None,
            wake_due: false,
            commands_taken: 0,
            program: parts.program,
            revocations: 0,
            in_use: Vec::new(),
            pins_to_reclaim: 0,
        }
    }

    /// Does something with the area, which says whose it is meanwhile; nothing if its user is
    /// barred.
    #[inline]
    pub(super) fn touch<T>(&self, act: impl FnOnce(&AttachArea) -> T) -> Option<T> {
        if self.is_barred {
            return None;
        }
        let before = self.mark.set(self.uid, self.area_at());
        let done = act(&self.area);
        self.mark.back(before);
        Some(done)
    }

    /// Its area, as what is touched.
    #[inline]
    pub(super) fn area_at(&self) -> RegionRef {
        RegionRef { process: self.id, region: AREA }
    }

    /// The process has gone: a client that keeps its memory keeps nothing.
    pub(super) fn empty(&self) {
        self.area.empty();
        self.notify_bell.empty();
    }

    /// Its area is not touched any more.
    pub(super) fn forget_area(&self) {
        self.mark.forget(self.area_at());
    }

    /// The engine took an operation on an import: bytes sent, bytes fetched, or neither for an
    /// atomic one.
    #[inline]
    pub(super) fn count(&mut self, import: u64, sent: Option<u64>, fetched: Option<u64>) {
        let import = ImportId::from_u64(import);
        let record = self.imports.get_mut(import.slot as usize).and_then(Option::as_mut);
        let Some(moved) = record.filter(|record| record.id == import).map(|record| &mut record.moved) else { return };
        match (sent, fetched) {
            (Some(bytes), _) => {
                moved.sends += 1;
                moved.send_bytes = moved.send_bytes.saturating_add(bytes);
            }
            (None, Some(bytes)) => {
                moved.fetches += 1;
                moved.fetch_bytes = moved.fetch_bytes.saturating_add(bytes);
            }
            (None, None) => moved.atomics += 1,
        }
    }

    /// Gives a completion to the process.
    #[inline]
    pub(super) fn complete(&mut self, completion: Completion) {
        if self.is_barred {
            return;
        }
        self.wake_due = true;
        if !self.in_use.is_empty() {
            if let Some(at) = self.in_use.iter().position(|(cookie, _)| *cookie == completion.cookie) {
                self.in_use.swap_remove(at);
            }
        }
        let before = self.mark.set(self.uid, self.area_at());
        if !self.overflow.is_empty() || !completion.push(&mut self.completions) {
            self.overflow.push_back(completion);
        }
        self.mark.back(before);
    }

    /// Gives a notification to the process.
    #[inline]
    pub(super) fn notify(&mut self, note: RawNotification) {
        if self.is_barred {
            return;
        }
        self.wake_due = true;
        let before = self.mark.set(self.uid, self.area_at());
        if !note.push(&mut self.notifications) {
            self.area.notifications_lost().fetch_add(1, Ordering::Relaxed);
        }
        self.mark.back(before);
    }

    /// Tells the process that a posted send failed. While it collects nothing, further failures of
    /// the same import say nothing new.
    pub(super) fn send_failed(&mut self, import: u64, why: OpError) {
        if self.failures.len() >= SEND_FAILURES_MAX || self.failures.contains(&import) {
            return;
        }
        let (status, args, waiting) = (why.code(), why.args(), self.overflow.len());
        self.complete(Completion { cookie: COOKIE_SEND_FAILED, status, value: import, args });
        if self.overflow.len() > waiting {
            self.failures.push(import);
        }
    }

    /// Whether completions wait for room.
    #[inline]
    pub(super) fn overflows(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Moves waiting completions to the ring; true if none is left.
    pub(super) fn drain_overflow(&mut self) -> bool {
        while let Some(completion) = self.overflow.front() {
            if !completion.push(&mut self.completions) {
                return false;
            }
            let import = (completion.cookie == COOKIE_SEND_FAILED).then_some(completion.value);
            self.overflow.pop_front();
            self.wake_due = true;
            if let Some(import) = import {
                self.failures.retain(|told| *told != import);
            }
        }
        true
    }

    /// Whether a command waits that the engine would take now, or a completion that has room.
    pub(super) fn is_ready(&mut self, progress: u64) -> bool {
        if self.is_barred {
            return false;
        }
        let before = self.mark.set(self.uid, self.area_at());
        let ready = if self.overflows() {
            self.completions.claim().is_some()
        } else {
            self.stalled_at != Some(progress) && self.commands.is_ready()
        };
        self.mark.back(before);
        ready
    }

    /// Whether what it sends now may go past its ring: nothing waits there that was posted before.
    #[inline]
    pub(super) fn may_pass_ring(&self) -> bool {
        !self.overflows() && !self.commands.is_ready()
    }

    /// Whether its ring need not be polled each time.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.empty_polls >= RING_QUIET_POLLS
    }

    /// Wakes the process if it sleeps and there is something for it.
    #[inline]
    pub(super) fn wake_if_due(&mut self) {
        if std::mem::take(&mut self.wake_due) {
            self.wake_by(AttachArea::process_sleeping);
        }
    }

    /// Wakes the process if this flag says so. Its pipe is not its memory.
    #[inline]
    fn wake_by(&self, flag: impl FnOnce(&AttachArea) -> &AtomicU64) {
        if self.touch(|area| must_wake(flag(area))) == Some(true) {
            self.wake.wake();
        }
    }

    /// Wakes threads of the process that sleep until a word changes.
    #[inline]
    pub(super) fn wake_for_words(&self) {
        self.wake_by(AttachArea::words_awaited);
    }

    /// Sends the process an event, or queues it. `events_sent` grows with what has really gone out,
    /// so a process that sees it grow finds the message.
    pub(super) fn queue_event(
        &mut self,
        event: &NodeEvent,
        fds: Vec<OwnedFd>,
        account: &mut DescriptorAccount<'_>,
    ) -> Result<(), Gone> {
        let about = if let NodeEvent::Pair { process, .. } = event { Some(*process) } else { None };
        let Some(events) = &mut self.events else { return Err(Gone) };
        let sent = events.send_about(about, encode(event), fds, account)?;
        self.count_events(sent);
        Ok(())
    }

    /// Withdraws the event that a process may notify, if it has not gone out yet. So processes that
    /// come and go do not fill the queue of one that collects nothing.
    pub(super) fn withdraw_pair(&mut self, gone: ProcessId) -> bool {
        self.events.as_mut().is_some_and(|events| events.withdraw(gone.0))
    }

    /// Counts events that have gone out and wakes the process for them.
    pub(super) fn count_events(&mut self, sent: u64) {
        if sent > 0 {
            self.touch(|area| area.events_sent().fetch_add(sent, Ordering::SeqCst));
            self.wake_by(AttachArea::process_sleeping);
        }
    }

    /// The record of an import of this process, if the id is of now.
    pub(super) fn import(&mut self, id: ImportId) -> Option<&mut ImportRecord> {
        self.imports.get_mut(id.slot as usize)?.as_mut().filter(|r| r.id == id)
    }

    pub(super) fn remember_import(&mut self, record: ImportRecord) {
        let slot = record.id.slot as usize;
        if self.imports.len() <= slot {
            self.imports.resize(slot + 1, None);
        }
        self.imports_held += u32::from(self.imports[slot].replace(record).is_none());
    }

    pub(super) fn forget_import(&mut self, id: ImportId) -> Option<ImportRecord> {
        let slot = self.imports.get_mut(id.slot as usize)?;
        let record = slot.take_if(|r| r.id == id);
        self.imports_held -= u32::from(record.is_some());
        // As the engine's table: what it has memory for counts in the share of its user.
        while self.imports.last().is_some_and(Option::is_none) {
            self.imports.pop();
        }
        if self.imports.capacity() > 3 * self.imports.len() + IMPORTS_SLOTS_KEPT {
            self.imports.shrink_to(self.imports.len() + self.imports.len() / 2);
        }
        record
    }
}
