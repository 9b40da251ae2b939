//! What members write for each other, by one-sided sends: a board at each of them, with the words
//! of the barrier, and for each sender two slots that supersteps use in turn, one for answers to
//! gets, and its last words.
//!
//! ```text
//!  board:  step 0, step 1, ... │ who has ended all │ of sender 0: slot, slot, answers, last words │ of sender 1: ...
//! ```
//!
//! A barrier is that of dissemination: in step k a member writes the number of the superstep to the
//! member 2^k behind it, and waits for that of the member 2^k before it. Who has ended barrier n
//! knows that all have begun it, so have ended superstep n - 1: its slot may be written again.
//!
//! Invariant: a word of the barrier is written after all that its writer, and those that it waited
//! for, have written into slots of this superstep. What is found on a board is a claim.

use crate::error::{BspError, Gone};
use crate::limits::{
    ABORT_TEXT_BYTES_MAX, ABORT_TIME, END_TIME, IMPORT_TRY, LAST_WORDS, MEMBERS_LOOK, SLOT_BYTES_MAX, SLOT_BYTES_MIN,
    SLOTS_BYTES, STEPS_MAX,
};
use crate::members::Members;
use crate::outbox::{Maker, Segment};
use crate::wire::{SLOT_HEAD_BYTES, SlotHead};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vmmc::{Access, Deadline, ErrorKind, Export, Import, Kind, Rights, Session, WaitError};
use vmmc_host::Nanos;
use vmmc_host::wait::is_interrupted;

/// Bytes from one word of the barrier to the next: each has a line.
const STEP_BYTES: u64 = 64;
/// Where it stands who has ended all: its number and 1.
const ABORTED: u64 = STEP_BYTES * STEPS_MAX;
const SENDERS: u64 = ABORTED + STEP_BYTES;
/// The last words of a sender: their length, and a text.
const NOTICE_BYTES: u64 = 256;

/// Which outbox of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Which {
    /// That of supersteps with an even number, or an odd one.
    Out(u64),
    /// Its answers to gets.
    Answers,
}

impl Which {
    fn name(self, segment: u64) -> String {
        match self {
            Which::Out(half) => format!("vmmc.bsp.out{half}.{segment}"),
            Which::Answers => format!("vmmc.bsp.answers.{segment}"),
        }
    }
}

/// The boards of all, as one member has them.
pub(crate) struct Board {
    session: Session,
    members: Arc<std::sync::Mutex<Members>>,
    pid: u32,
    nprocs: u32,
    slot_bytes: u64,
    access: Access,
    timeout: Duration,
    own: Export,
    boards: Vec<Option<Import>>,
    segments: HashMap<(u32, Which, u64), Import>,
    /// The first member that has gone, when that was seen, and how.
    gone: Option<(Nanos, u32, Gone)>,
    /// All have ended: who is gone may have gone after the last barrier.
    ending: bool,
}

/// Bytes of a slot where there are so many members.
pub(crate) fn slot_bytes(nprocs: u32) -> u64 {
    let share = SLOTS_BYTES / (3 * u64::from(nprocs));
    share.clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX) / 64 * 64
}

impl Board {
    pub(crate) fn new(
        session: Session,
        members: Members,
        (pid, nprocs): (u32, u32),
        access: Access,
        timeout: Duration,
    ) -> Result<Board, BspError> {
        let slot_bytes = slot_bytes(nprocs);
        let len = SENDERS + u64::from(nprocs) * sender_bytes(slot_bytes);
        let own = members.export(&session, pid, "vmmc.bsp.board", len).access(access.clone());
        let own = own.create().map_err(Box::new)?;
        Ok(Board {
            session,
            members: Arc::new(std::sync::Mutex::new(members)),
            pid,
            nprocs,
            slot_bytes,
            access,
            timeout,
            own,
            boards: (0..nprocs).map(|_| None).collect(),
            segments: HashMap::new(),
            gone: None,
            ending: false,
        })
    }

    /// Makes the pieces of memory of an outbox.
    pub(crate) fn maker(&self, which: Which) -> Maker {
        let (session, members, pid, access) =
            (self.session.clone(), self.members.clone(), self.pid, self.access.clone());
        Box::new(move |segment, bytes| {
            let members = members.lock().expect("no panic while the lock is held");
            let export = members.export(&session, pid, &which.name(segment), bytes);
            let export = export.rights(Rights::READ).access(access.clone()).create().map_err(Box::new)?;
            Ok(Segment::Shared(export))
        })
    }

    fn sender(&self, pid: u32) -> u64 {
        SENDERS + u64::from(pid) * sender_bytes(self.slot_bytes)
    }

    fn slot(&self, sender: u32, which: Which) -> u64 {
        let at = match which {
            Which::Out(half) => half,
            Which::Answers => 2,
        };
        self.sender(sender) + at * self.slot_bytes
    }

    /// Writes what is for a member into the slot of this one.
    pub(crate) fn write_slot(&mut self, to: u32, which: Which, bytes: &[u8]) -> Result<(), BspError> {
        let at = self.slot(self.pid, which);
        let board = self.board(to)?;
        // The number comes last: who waits for it finds the rest.
        let write = board.send(at + 8, &bytes[8..]).and_then(|()| board.send(at, &bytes[..8]));
        write.or_else(|error| self.blame(to, error.into()))
    }

    /// Waits until what was written to others is there, where that takes time.
    pub(crate) fn flush(&mut self, to: &[u32]) -> Result<(), BspError> {
        // With two members the next word goes the same way.
        if self.nprocs == 2 {
            return Ok(());
        }
        for pid in to {
            let Some(board) = &self.boards[*pid as usize] else { continue };
            if board.as_ptr().is_none() {
                board.flush().or_else(|error| self.blame(*pid, error.into()))?;
            }
        }
        Ok(())
    }

    /// Waits until all have begun this superstep's sync.
    pub(crate) fn barrier(&mut self, number: u64) -> Result<(), BspError> {
        let (mut step, count) = (0u32, self.nprocs);
        while 1u32 << step < count {
            let far = 1u32 << step;
            let (to, from) = ((self.pid + far) % count, (self.pid + count - far) % count);
            let at = STEP_BYTES * u64::from(step);
            let sent = self.board(to)?.send(at, &number.to_le_bytes());
            sent.or_else(|error| self.blame(to, error.into()))?;
            self.wait(at, number, from)?;
            step += 1;
        }
        Ok(())
    }

    pub(crate) fn nprocs(&self) -> u32 {
        self.nprocs
    }

    /// From now on members may go when they are past the barrier.
    pub(crate) fn begin_end(&mut self) {
        self.ending = true;
    }

    /// What a sender has written into its slot for this superstep: the head, and the slot's bytes.
    pub(crate) fn read_slot(
        &self,
        from: u32,
        which: Which,
        number: u64,
    ) -> Result<Option<(SlotHead, Vec<u8>)>, BspError> {
        let at = self.slot(from, which);
        if self.own.word(at)?.load(Ordering::Acquire) != number {
            return Ok(None);
        }
        let nonsense = BspError::Misbehaved { pid: from, what: "the head of a slot" };
        let mut bytes = vec![0; SLOT_HEAD_BYTES];
        self.own.read(at, &mut bytes)?;
        let needed = SlotHead::slot_bytes(&bytes).filter(|needed| *needed <= self.slot_bytes);
        let Some(needed) = needed else { return Err(nonsense) };
        bytes.resize(needed as usize, 0);
        self.own.read(at, &mut bytes)?;
        match SlotHead::decode(&bytes) {
            Some(head) if head.number == number => Ok(Some((head, bytes))),
            _ => Err(nonsense),
        }
    }

    /// Waits for the answers of a member.
    pub(crate) fn wait_answers(&mut self, from: u32, number: u64) -> Result<(), BspError> {
        self.wait(self.slot(from, Which::Answers), number, from)
    }

    /// Reads from the shared memory of a member.
    pub(crate) fn fetch(
        &mut self,
        from: u32,
        which: Which,
        segment: u64,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), BspError> {
        let key = (from, which, segment);
        if !self.segments.contains_key(&key) {
            let import = self.open(from, &which.name(segment), Rights::READ)?;
            self.segments.insert(key, import);
        }
        self.segments[&key].fetch(offset, into).or_else(|error| self.blame(from, error.into()))
    }

    fn board(&mut self, pid: u32) -> Result<&Import, BspError> {
        if self.boards[pid as usize].is_none() {
            let import = self.open(pid, "vmmc.bsp.board", Rights::READ | Rights::WRITE)?;
            self.boards[pid as usize] = Some(import);
        }
        Ok(self.boards[pid as usize].as_ref().expect("it was opened above"))
    }

    /// Imports what a member exports as soon as it does.
    fn open(&mut self, pid: u32, what: &str, rights: Rights) -> Result<Import, BspError> {
        let end = self.session.deadline(self.timeout);
        loop {
            let import = {
                let members = self.members.lock().expect("no panic while the lock is held");
                members.import(&self.session, pid, what)?
            };
            match import.rights(rights).wait(IMPORT_TRY).open() {
                Ok(import) => return Ok(import),
                // It is not there yet, or a node has more to do than to answer so soon.
                Err(error) if error.kind() == ErrorKind::TimedOut => self.look(end, pid)?,
                Err(error) => return self.blame(pid, Box::new(error).into()),
            }
        }
    }

    /// Waits until a word of the own board has this number, which a member or those that it waits
    /// for write.
    fn wait(&mut self, offset: u64, number: u64, from: u32) -> Result<(), BspError> {
        let mut end = None;
        loop {
            let until = *end.get_or_insert_with(|| self.session.deadline(self.timeout));
            let slice = self.session.deadline(MEMBERS_LOOK).min(until);
            match self.own.wait_word_by(offset, |word| word >= number, slice) {
                Ok(_) => return Ok(()),
                Err(WaitError::TimedOut { .. }) if !is_interrupted() => self.look(until, from)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether there is still something to wait for.
    fn look(&mut self, end: Deadline, from: u32) -> Result<(), BspError> {
        self.look_for_abort()?;
        let now = self.now();
        if self.gone.is_none() {
            self.gone = self.look_at_members()?.map(|(pid, how)| (now, pid, how));
        }
        match self.gone {
            Some((since, pid, how)) if now.since(since) >= self.patience(how) => Err(BspError::Gone { pid, how }),
            _ if now >= end.0 => Err(BspError::timed_out(from, self.timeout)),
            _ => Ok(()),
        }
    }

    /// How long to wait for what a member that has gone, or others, wrote before.
    fn patience(&self, how: Gone) -> Duration {
        if self.ending && how != Gone::Failed { END_TIME } else { LAST_WORDS }
    }

    fn look_at_members(&mut self) -> Result<Option<(u32, Gone)>, BspError> {
        let mut members = self.members.lock().expect("no panic while the lock is held");
        let gone = members.gone(self.nprocs)?;
        if let Some(one) = gone.into_iter().find(|(pid, _)| *pid != self.pid) {
            return Ok(Some(one));
        }
        if matches!(*members, Members::Job { .. }) {
            return Ok(None);
        }
        let broken = |board: &Option<Import>| board.as_ref().is_some_and(|board| board.broken().is_some());
        // Who is ended by its library takes its board away, so in the end that is no failure.
        let how = if self.ending { Gone::Ended } else { Gone::Failed };
        Ok(self.boards.iter().position(broken).map(|pid| (pid as u32, how)))
    }

    fn look_for_abort(&self) -> Result<(), BspError> {
        let word = self.own.word(ABORTED)?.load(Ordering::Acquire);
        if word == 0 || word > u64::from(self.nprocs) {
            return Ok(());
        }
        let pid = (word - 1) as u32;
        let mut notice = [0; NOTICE_BYTES as usize];
        self.own.read(self.sender(pid) + 3 * self.slot_bytes, &mut notice)?;
        let len = u64::from_le_bytes(notice[..8].try_into().expect("eight bytes"));
        let len = len.min(ABORT_TEXT_BYTES_MAX as u64) as usize;
        let text = String::from_utf8_lossy(&notice[8..8 + len]).into_owned();
        Err(BspError::Aborted { pid, text })
    }

    /// An error with a member, told as its end, or that of all, if that is the cause.
    fn blame<T>(&mut self, pid: u32, error: BspError) -> Result<T, BspError> {
        let end = self.session.deadline(2 * LAST_WORDS);
        while self.now() < end.0 {
            self.look(end, pid).or_else(|found| match found {
                BspError::TimedOut { .. } => Ok(()),
                found => Err(found),
            })?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(error)
    }

    /// Tells all others that this member has ended all, and why; without a wait for those that
    /// cannot be reached.
    pub(crate) fn abort(&mut self, text: &str) {
        if self.session.must_be_here().is_err() {
            return;
        }
        let mut len = text.len().min(ABORT_TEXT_BYTES_MAX);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let notice = [&(len as u64).to_le_bytes()[..], &text.as_bytes()[..len]].concat();
        let (at, word) = (self.sender(self.pid) + 3 * self.slot_bytes, u64::from(self.pid) + 1);
        let end = self.session.deadline(ABORT_TIME);
        // Those that are known first.
        let mut others: Vec<u32> = (0..self.nprocs).filter(|pid| *pid != self.pid).collect();
        others.sort_by_key(|pid| self.boards[*pid as usize].is_none());
        for pid in others {
            if self.now() >= end.0 {
                return;
            }
            if self.boards[pid as usize].is_none() {
                let members = self.members.lock().expect("no panic while the lock is held");
                let import = members.import(&self.session, pid, "vmmc.bsp.board");
                let open = import.map(|import| import.rights(Rights::READ | Rights::WRITE).wait(Duration::ZERO).open());
                self.boards[pid as usize] = open.ok().and_then(Result::ok);
            }
            let Some(board) = &self.boards[pid as usize] else { continue };
            let _ = board.send(at, &notice).and_then(|()| board.send(ABORTED, &word.to_le_bytes()));
            if board.as_ptr().is_none() {
                let _ = board.flush_by(end);
            }
        }
    }

    fn now(&self) -> Nanos {
        self.session.deadline(Duration::ZERO).0
    }
}

fn sender_bytes(slot_bytes: u64) -> u64 {
    3 * slot_bytes + NOTICE_BYTES
}
