//! Barrier and allgather among the members of a job, through their memory: no node and no
//! supervisor takes part.
//!
//! Bruck's algorithm: in step k a member passes the first 2^k values that it has to the member 2^k
//! before it, and waits for those of the member 2^k after it; after log2(n) steps everybody has
//! everything. A barrier is the same without values.
//!
//! Each member exports an area of two halves, which calls use in turn. A member that has ended call
//! c knows that everybody has begun it, so has ended c - 1, so its half may be written again. A
//! flag names the view and the call; it is sent after the data, on the same import, so it is seen
//! after them.
//!
//! Invariant: nothing that a member reads belongs to another call, unless members went on with
//! another view meanwhile, which the flag shows before and after.

use crate::error::JobError;
use crate::limits::{ALLGATHER_BYTES_MAX, JOB_CHANGE_TIME, JOB_POLL, JOB_RANKS_MAX};
use crate::member::Job;
use crate::protocol::MemberState;
use std::collections::HashMap;
use std::time::Duration;
use vmmc::{Deadline, Export, Import, SendOptions, WaitError};
use vmmc_host::limits::TIMED_SLEEP_MAX;
use vmmc_host::wait::is_interrupted;

/// Steps of the largest job.
const STEPS: u64 = JOB_RANKS_MAX.ilog2() as u64 + 1;
/// Bytes of one value in an area: its length, and room.
const BLOCK: u64 = 8 + ALLGATHER_BYTES_MAX as u64;
/// Name of the area among a rank's exports.
const AREA_NAME: &str = "vmmc.area";

/// What a member keeps for collective calls.
pub(crate) struct Area {
    export: Export,
    /// Values that fit a half.
    room: u64,
    /// The areas of others.
    peers: HashMap<u32, Import>,
    /// View that the calls are counted in.
    view: u64,
    calls: u64,
}

/// One collective call under way.
struct Call<'a> {
    job: &'a Job,
    what: &'static str,
    members: Vec<u32>,
    /// Our place among the members.
    own: usize,
    flag: u64,
    half: u64,
    deadline: Deadline,
}

impl Job {
    /// Waits until all members are here; the session's timeout.
    ///
    /// # Errors
    /// [`JobError`]: when a member has gone, or does not come in time.
    pub fn barrier(&self) -> Result<(), JobError> {
        self.barrier_by(self.session().deadline(self.session().timeout()))
    }

    /// Waits until all members are here.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn barrier_by(&self, deadline: Deadline) -> Result<(), JobError> {
        self.collect("barrier", None, deadline).map(drop)
    }

    /// Gives every member the values of all, in order of [`members`](Self::members); the session's
    /// timeout. A value has at most [`ALLGATHER_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`JobError`]: when a member has gone, or does not come in time, or the value is too long.
    pub fn allgather(&self, value: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        self.allgather_by(value, self.session().deadline(self.session().timeout()))
    }

    /// As [`allgather`](Self::allgather), until a deadline.
    ///
    /// # Errors
    /// As [`allgather`](Self::allgather).
    pub fn allgather_by(&self, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, JobError> {
        let (len, max) = (value.len(), ALLGATHER_BYTES_MAX);
        if len > max {
            return Err(JobError::ValueTooLong { len, max });
        }
        self.collect("allgather", Some(value), deadline)
    }

    fn collect(&self, what: &'static str, value: Option<&[u8]>, deadline: Deadline) -> Result<Vec<Vec<u8>>, JobError> {
        let (members, view) = {
            let view = self.lock();
            (view.members(), view.number)
        };
        let rank = self.rank();
        let own = members.iter().position(|m| *m == rank).ok_or(JobError::HasLeft { what, rank })?;
        let mut slot = self.area.lock().expect("no panic while the lock is held");
        let area = match &mut *slot {
            Some(area) => area,
            None => slot.insert(Area::new(self)?),
        };
        if area.view != view {
            (area.view, area.calls) = (view, 0);
        }
        area.calls += 1;
        let flag = view << 32 | area.calls & 0xffff_ffff;
        let call = Call { job: self, what, own, flag, half: (view + area.calls) % 2, members, deadline };
        call.run(area, value)
    }
}

impl Area {
    fn new(job: &Job) -> Result<Area, JobError> {
        // Twice the present size leaves room for those who join; more of them than that cannot take
        // part in an allgather with us.
        let room = (2 * u64::from(job.size())).clamp(16, JOB_RANKS_MAX as u64);
        let export = job.export(AREA_NAME, 2 * half_bytes(room)).create()?;
        Ok(Area { export, room, peers: HashMap::new(), view: 0, calls: 0 })
    }
}

fn half_bytes(room: u64) -> u64 {
    8 * STEPS + BLOCK * room
}

impl Call<'_> {
    fn run(&self, area: &mut Area, value: Option<&[u8]>) -> Result<Vec<Vec<u8>>, JobError> {
        let count = self.members.len();
        let mut values: Vec<Vec<u8>> = value.iter().map(|v| v.to_vec()).collect();
        let mut step = 0;
        while 1 << step < count {
            let far = 1usize << step;
            let to = self.members[(self.own + count - far) % count];
            let from = self.members[(self.own + far) % count];
            let part = far.min(count - far);
            self.send_values(area, to, step, &values[..part.min(values.len())])?;
            self.wait(area, from, step)?;
            if value.is_some() {
                values.extend(self.read(area, from, step, part)?);
            }
            step += 1;
        }
        let turn = if values.is_empty() { 0 } else { self.own };
        values.rotate_right(turn);
        Ok(values)
    }

    /// Sends values and flag into the area of another member.
    fn send_values(&self, area: &mut Area, to: u32, step: u64, values: &[Vec<u8>]) -> Result<(), JobError> {
        let import = match area.peers.entry(to) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let left = self.deadline.left(now(self.job)).unwrap_or(Duration::from_millis(1));
                entry.insert(self.job.import(to, AREA_NAME)?.wait(left).open().map_err(|e| self.blame(to, e.into()))?)
            }
        };
        let half_bytes = import.len() / 2;
        let start = self.half * half_bytes;
        let send = |offset: u64, data: &[u8]| import.send_with(offset, data, SendOptions::default());
        let flag_at = start + 8 * step;
        let result = || {
            if self.flag as u32 <= 2 {
                // Members of an earlier view may still read this half: show them that it is theirs
                // no longer.
                send(flag_at, &(self.flag >> 32 << 32).to_le_bytes())?;
            }
            if !values.is_empty() {
                let mut data = vec![0; BLOCK as usize * values.len()];
                for (block, value) in data.chunks_exact_mut(BLOCK as usize).zip(values) {
                    block[..8].copy_from_slice(&(value.len() as u64).to_le_bytes());
                    block[8..8 + value.len()].copy_from_slice(value);
                }
                send(start + 8 * STEPS + BLOCK * (1 << step), &data)?;
            }
            send(flag_at, &self.flag.to_le_bytes())
        };
        result().map_err(|e| self.blame(to, e.into()))
    }

    /// Waits for a member's flag.
    fn wait(&self, area: &Area, from: u32, step: u64) -> Result<(), JobError> {
        let offset = self.half * half_bytes(area.room) + 8 * step;
        let mut gone = None;
        loop {
            let slice = self.job.session().deadline(JOB_POLL).min(self.deadline);
            // A flag of a later view means that we were overtaken: ours will not come any more.
            match area.export.wait_word_by(offset, |word| self.is_here(word) || self.is_past(word), slice) {
                Ok(word) if self.is_here(word) => return Ok(()),
                Ok(_) => return Err(self.overtaken(from)?),
                Err(WaitError::TimedOut { .. }) if slice < self.deadline && !is_interrupted() => {
                    match (gone, self.check(from)) {
                        // What it sent before its end may be on its way: one more poll.
                        (None, found) => gone = found.err(),
                        (Some(error), _) => return Err(error),
                    }
                }
                Err(error) => {
                    self.check(from)?;
                    return Err(JobError::Wait { what: format!("{} (step {step})", self.what), rank: from, error });
                }
            }
        }
    }

    fn is_here(&self, word: u64) -> bool {
        word == self.flag
    }

    fn is_past(&self, word: u64) -> bool {
        word > self.flag
    }

    /// Reads what a member has sent in a step.
    fn read(&self, area: &Area, from: u32, step: u64, part: usize) -> Result<Vec<Vec<u8>>, JobError> {
        let start = self.half * half_bytes(area.room);
        let mut data = vec![0; BLOCK as usize * part];
        let inside = JobError::NoRank { rank: from, size: area.room as u32 };
        area.export.read(start + 8 * STEPS + BLOCK * (1 << step), &mut data).map_err(|_| inside)?;
        let flag = area.export.word(start + 8 * step).expect("steps have aligned words");
        if !self.is_here(flag.load(std::sync::atomic::Ordering::Acquire)) {
            return Err(self.overtaken(from)?);
        }
        let value = |block: &[u8]| {
            let len = u64::from_le_bytes(block[..8].try_into().expect("eight bytes")) as usize;
            block[8..8 + len.min(ALLGATHER_BYTES_MAX)].to_vec()
        };
        Ok(data.chunks_exact(BLOCK as usize).map(value).collect())
    }

    /// Whether this member is still there, and nobody has failed. Others that have ended well may
    /// have ended after this call.
    fn check(&self, partner: u32) -> Result<(), JobError> {
        if !self.job.has_changed()? {
            return Ok(());
        }
        let view = self.job.current_view()?;
        let state = |rank: u32| view.ranks.get(rank as usize).map_or(MemberState::Failed, |(state, _)| *state);
        let gone = |rank: &u32| match state(*rank) {
            MemberState::Running => false,
            MemberState::Failed => true,
            MemberState::Left | MemberState::Ended => *rank == partner,
        };
        match self.members.iter().copied().find(gone) {
            None => Ok(()),
            Some(rank) => Err(JobError::MemberGone { what: self.what, rank, state: state_text(state(rank)) }),
        }
    }

    /// A member goes on with other members: told as the end of the one that is missing there, which
    /// our node learns of at about the same time.
    fn overtaken(&self, rank: u32) -> Result<JobError, JobError> {
        let end = self.job.session().deadline(JOB_CHANGE_TIME).min(self.deadline);
        while !self.job.has_changed()? && now(self.job) < end.0 {
            std::thread::sleep(TIMED_SLEEP_MAX);
        }
        let view = self.job.current_view()?;
        let state = |rank: u32| view.ranks.get(rank as usize).map_or(MemberState::Failed, |(state, _)| *state);
        let gone = self.members.iter().copied().find(|rank| state(*rank) != MemberState::Running);
        let gone = gone.map(|rank| JobError::MemberGone { what: self.what, rank, state: state_text(state(rank)) });
        Ok(gone.unwrap_or(JobError::Overtaken { what: self.what, rank }))
    }

    /// An error with a member, told as its end if it has ended.
    fn blame(&self, rank: u32, error: JobError) -> JobError {
        // Its end is known to the launcher a moment before it is to us.
        let end = self.job.session().deadline(JOB_CHANGE_TIME);
        loop {
            match self.check(rank) {
                Err(gone @ JobError::MemberGone { .. }) => return gone,
                _ if now(self.job) >= end.0 => return error,
                _ => std::thread::sleep(TIMED_SLEEP_MAX),
            }
        }
    }
}

fn state_text(state: MemberState) -> String {
    match state {
        MemberState::Running => "it runs".into(),
        MemberState::Left => "it has left".into(),
        MemberState::Ended => "its process has ended".into(),
        MemberState::Failed => "its process has failed, or its node is lost".into(),
    }
}

fn now(job: &Job) -> vmmc_host::Nanos {
    job.session().deadline(Duration::ZERO).0
}
