//! A job that runs, as its launcher sees it: what its ranks print, how they end, and what to do
//! then.
//!
//! Invariant: the launcher alone decides who is a member; it numbers the views, and every
//! supervisor gets them in order. Memory is bounded: while nobody takes events, nothing more is
//! taken from the supervisors, whose ranks then wait in their writes.

use crate::error::LaunchError;
use crate::launch::Place;
use crate::limits::{JOB_EVENT_BYTES_MAX, JOB_INPUT_BYTES_MAX, JOB_RANKS_MAX, LAUNCH_POLL};
use crate::link::Link;
use crate::protocol::{Exit, MemberState, Order, Program, Report, Stream};
use crate::table::View;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use vmmc::Session;

/// What happens in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// A rank runs.
    Started {
        /// Which.
        rank: u32,
        /// Its process id on its node.
        pid: u32,
    },
    /// A rank could not be started.
    NotStarted {
        /// Which.
        rank: u32,
        /// Why, with the next step.
        why: String,
        /// Whether the program is there, and cannot be executed.
        found: bool,
    },
    /// A rank printed something: whole lines, unless a line is longer than 64 KiB.
    Output {
        /// Which.
        rank: u32,
        /// Where.
        stream: Stream,
        /// Bytes.
        bytes: Vec<u8>,
    },
    /// A rank has ended.
    Exited {
        /// Which.
        rank: u32,
        /// How.
        exit: Exit,
    },
    /// A rank has left the job; its process may go on for a while.
    Left {
        /// Which.
        rank: u32,
    },
    /// Ranks have joined.
    Joined {
        /// Which.
        ranks: Vec<u32>,
    },
    /// A node of the job, or its supervisor, is gone, and all ranks there.
    NodeLost {
        /// Its name.
        node: String,
        /// Ranks that ran there.
        ranks: Vec<u32>,
        /// Why.
        why: String,
    },
    /// Nothing of the job runs any more; the last event.
    Ended,
}

/// A supervisor.
pub(crate) struct Remote {
    link: Link,
    pub(crate) node: String,
    /// Process id of the supervisor.
    pid: u32,
    pub(crate) place: Place,
    /// It has said that nothing runs, or is lost.
    done: bool,
}

impl Remote {
    pub(crate) fn new(link: Link, node: String, pid: u32, place: Place) -> Remote {
        Remote { link, node, pid, place, done: false }
    }
}

/// A job that runs. Dropping it ends the job.
pub struct Launched {
    session: Session,
    job: String,
    remotes: Vec<Remote>,
    view: View,
    /// Ranks whose process may run.
    alive: BTreeSet<u32>,
    /// Changes that the supervisors have not been told of.
    joined: Vec<u32>,
    changed: Vec<(u32, MemberState)>,
    events: VecDeque<JobEvent>,
    event_bytes: usize,
    /// Bytes of standard input under way to each rank.
    input: BTreeMap<u32, u64>,
    keep_going: bool,
    grace: Duration,
    ending: bool,
    ended: bool,
}

impl Launched {
    pub(crate) fn new(
        session: Session,
        job: String,
        remotes: Vec<Remote>,
        view: View,
        keep_going: bool,
        grace: Duration,
    ) -> Launched {
        Launched {
            session,
            job,
            remotes,
            alive: (0..view.ranks.len() as u32).collect(),
            view,
            joined: Vec::new(),
            changed: Vec::new(),
            events: VecDeque::new(),
            event_bytes: 0,
            input: BTreeMap::new(),
            keep_going,
            grace,
            ending: false,
            ended: false,
        }
    }

    pub(crate) fn begin(&mut self, program: Program, input: Option<u32>) {
        let places: Vec<u32> = self.view.ranks.iter().map(|(_, node)| *node).collect();
        for (own, remote) in self.remotes.iter_mut().enumerate() {
            remote.link.send(&Order::Begin {
                job: self.job.clone(),
                program: program.clone(),
                nodes: self.view.nodes.clone(),
                own: own as u32,
                places: places.clone(),
                input,
            });
            let here = |(_, node): &(usize, &u32)| **node == own as u32;
            let ranks = places.iter().enumerate().filter(here).map(|(rank, _)| rank as u32).collect();
            remote.link.send(&Order::Start { ranks });
        }
        self.turn();
    }

    /// Id of the job.
    pub fn id(&self) -> &str {
        &self.job
    }

    /// Ranks, those that have ended included.
    pub fn size(&self) -> u32 {
        self.view.ranks.len() as u32
    }

    /// Name of the node of a rank.
    pub fn node_of(&self, rank: u32) -> Option<&str> {
        let (_, node) = self.view.ranks.get(rank as usize)?;
        self.view.nodes.get(*node as usize).map(|node| node.name.as_str())
    }

    /// State of a rank.
    pub fn state_of(&self, rank: u32) -> Option<MemberState> {
        self.view.ranks.get(rank as usize).map(|(state, _)| *state)
    }

    /// Names of the job's nodes and the process ids of its supervisors there.
    pub fn supervisors(&self) -> Vec<(String, u32)> {
        self.remotes.iter().map(|remote| (remote.node.clone(), remote.pid)).collect()
    }

    /// A descriptor for event loops: readable when [`poll_event`](Self::poll_event) may have
    /// something. Poll every [`LAUNCH_POLL`] in any case: the end of another node makes nothing
    /// readable.
    ///
    /// # Errors
    /// [`LaunchError::Wait`].
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, LaunchError> {
        Ok(self.session.event_fd()?)
    }

    /// The next event if there is one.
    pub fn poll_event(&mut self) -> Option<JobEvent> {
        if self.events.is_empty() && !self.ended {
            self.turn();
        }
        let event = self.events.pop_front()?;
        if let JobEvent::Output { bytes, .. } = &event {
            self.event_bytes -= bytes.len();
        }
        Some(event)
    }

    /// Whether [`JobEvent::Ended`] has been given: there are no further events.
    pub fn has_ended(&self) -> bool {
        self.ended && self.events.is_empty()
    }

    /// The next event; none when the time has passed, or after [`JobEvent::Ended`].
    ///
    /// # Errors
    /// [`LaunchError::Wait`] when there is no way to wait.
    pub fn next_event(&mut self, timeout: Duration) -> Result<Option<JobEvent>, LaunchError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(event) = self.poll_event() {
                return Ok(Some(event));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ended {
                return Ok(None);
            }
            let time = left.min(LAUNCH_POLL);
            let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
            let fd = self.session.event_fd()?;
            // An interrupted poll is a short one.
            let _ = poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&time));
        }
    }

    /// Gives a rank bytes on its standard input; says how many were taken. The others have to wait
    /// until the rank reads.
    pub fn write_input(&mut self, rank: u32, bytes: &[u8]) -> usize {
        let Some(node) = self.view.ranks.get(rank as usize).map(|(_, node)| *node as usize) else { return 0 };
        let under_way = self.input.entry(rank).or_default();
        let room = JOB_INPUT_BYTES_MAX.saturating_sub(*under_way) as usize;
        let taken = bytes.len().min(room);
        if taken > 0 {
            *under_way += taken as u64;
            self.remotes[node].link.send(&Order::Input { rank, bytes: bytes[..taken].to_vec() });
            self.turn();
        }
        taken
    }

    /// How many bytes [`write_input`](Self::write_input) would take.
    pub fn input_room(&self, rank: u32) -> usize {
        JOB_INPUT_BYTES_MAX.saturating_sub(self.input.get(&rank).copied().unwrap_or(0)) as usize
    }

    /// Ends the standard input of a rank.
    pub fn close_input(&mut self, rank: u32) {
        if let Some((_, node)) = self.view.ranks.get(rank as usize) {
            self.remotes[*node as usize].link.send(&Order::CloseInput { rank });
            self.turn();
        }
    }

    /// Sends a signal to all ranks.
    pub fn signal(&mut self, signal: i32) {
        self.send_all(&Order::Signal { signal });
    }

    /// Ends the job: SIGTERM, and SIGKILL after the grace. [`JobEvent::Ended`] reports the end.
    pub fn end(&mut self) {
        self.ending = true;
        let grace_ms = self.grace.as_millis() as u64;
        self.send_all(&Order::End { grace_ms });
    }

    /// Ends the job at once, by force.
    pub fn kill(&mut self) {
        self.ending = true;
        self.send_all(&Order::End { grace_ms: 0 });
    }

    /// Adds ranks on the nodes that have the fewest; says which ones.
    pub fn grow(&mut self, ranks: u32) -> Vec<u32> {
        let mut started: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for _ in 0..ranks {
            if self.view.ranks.len() >= JOB_RANKS_MAX || self.ending {
                break;
            }
            let load =
                |node: &usize| self.alive.iter().filter(|r| self.view.ranks[**r as usize].1 == *node as u32).count();
            let Some(node) = (0..self.remotes.len()).filter(|n| !self.remotes[*n].done).min_by_key(load) else { break };
            let rank = self.view.ranks.len() as u32;
            self.view.ranks.push((MemberState::Running, node as u32));
            self.joined.push(node as u32);
            self.alive.insert(rank);
            started.entry(node).or_default().push(rank);
        }
        self.send_changes();
        for (node, ranks) in &started {
            self.remotes[*node].link.send(&Order::Start { ranks: ranks.clone() });
        }
        let all: Vec<u32> = started.into_values().flatten().collect();
        if !all.is_empty() {
            self.events.push_back(JobEvent::Joined { ranks: all.clone() });
        }
        all
    }

    /// Waits until the job has ended; gives the ranks that failed, and how.
    ///
    /// # Errors
    /// [`LaunchError::Wait`].
    pub fn wait(&mut self, mut each: impl FnMut(&JobEvent)) -> Result<Vec<(u32, String)>, LaunchError> {
        let mut failed = Vec::new();
        while !(self.ended && self.events.is_empty()) {
            let Some(event) = self.next_event(Duration::from_secs(1))? else { continue };
            each(&event);
            match event {
                JobEvent::Exited { rank, exit } if !exit.is_success() => failed.push((rank, exit.to_string())),
                JobEvent::NotStarted { rank, why, .. } => failed.push((rank, why)),
                JobEvent::NodeLost { ranks, why, .. } => failed.extend(ranks.into_iter().map(|r| (r, why.clone()))),
                _ => {}
            }
        }
        Ok(failed)
    }

    fn send_all(&mut self, order: &Order) {
        self.remotes.iter_mut().filter(|r| !r.done).for_each(|remote| remote.link.send(order));
        self.turn();
    }

    /// Moves messages both ways and acts on them.
    fn turn(&mut self) {
        for index in 0..self.remotes.len() {
            self.listen(index);
        }
        self.send_changes();
        for index in 0..self.remotes.len() {
            self.flush_link(index);
        }
        if self.alive.is_empty() && !self.ending {
            self.ending = true;
            let order = Order::End { grace_ms: self.grace.as_millis() as u64 };
            self.remotes.iter_mut().filter(|r| !r.done).for_each(|remote| remote.link.send(&order));
            (0..self.remotes.len()).for_each(|index| self.flush_link(index));
        }
        if !self.ended && self.remotes.iter().all(|remote| remote.done) {
            self.ended = true;
            self.events.push_back(JobEvent::Ended);
        }
    }

    fn listen(&mut self, index: usize) {
        while !self.remotes[index].done && self.event_bytes < JOB_EVENT_BYTES_MAX {
            let link = &mut self.remotes[index].link;
            match link.receive().transpose() {
                Some(Ok(report)) => self.act(index, report),
                Some(Err(error)) => return self.lost(index, &error.to_string()),
                None => match link.take_in() {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => return self.lost(index, &error.to_string()),
                },
            }
        }
    }

    fn flush_link(&mut self, index: usize) {
        if self.remotes[index].done {
            return;
        }
        let link = &mut self.remotes[index].link;
        let error = match link.put_out() {
            Err(error) => Some(error.to_string()),
            Ok(()) => link.broken().map(|error| error.to_string()),
        };
        let Some(error) = error else { return };
        // What it sent before its end is in our memory, its goodbye above all.
        self.listen(index);
        if !self.remotes[index].done && self.event_bytes < JOB_EVENT_BYTES_MAX {
            self.lost(index, &error);
        }
    }

    fn act(&mut self, index: usize, report: Report) {
        let known = |rank: &u32| self.view.ranks.get(*rank as usize).is_some_and(|(_, node)| *node == index as u32);
        match report {
            Report::Started { ranks } => {
                let started = ranks.into_iter().filter(|(rank, _)| known(rank));
                let started: Vec<_> = started.map(|(rank, pid)| JobEvent::Started { rank, pid }).collect();
                self.events.extend(started);
            }
            Report::NotStarted { rank, why, found } if known(&rank) => {
                self.gone(rank, MemberState::Failed);
                self.events.push_back(JobEvent::NotStarted { rank, why, found });
                self.failed();
            }
            Report::Output { rank, stream, bytes } if known(&rank) => {
                self.event_bytes += bytes.len();
                self.events.push_back(JobEvent::Output { rank, stream, bytes });
            }
            Report::InputTaken { rank, bytes } => {
                let under_way = self.input.entry(rank).or_default();
                *under_way = under_way.saturating_sub(bytes);
            }
            Report::Exited { rank, exit } if known(&rank) => self.exited(rank, exit),
            Report::Left { rank } if known(&rank) && self.state_of(rank) == Some(MemberState::Running) => {
                self.change(rank, MemberState::Left);
                self.events.push_back(JobEvent::Left { rank });
            }
            Report::Grow { ranks } => {
                self.grow(ranks);
            }
            Report::Done => self.remotes[index].done = true,
            _ => {}
        }
    }

    fn exited(&mut self, rank: u32, exit: Exit) {
        let left = self.state_of(rank) == Some(MemberState::Left);
        self.gone(rank, if exit.is_success() { MemberState::Ended } else { MemberState::Failed });
        self.events.push_back(JobEvent::Exited { rank, exit });
        if !exit.is_success() && !left {
            self.failed();
        }
    }

    fn failed(&mut self) {
        if !self.keep_going && !self.ending {
            self.ending = true;
            let order = Order::End { grace_ms: self.grace.as_millis() as u64 };
            self.remotes.iter_mut().filter(|r| !r.done).for_each(|remote| remote.link.send(&order));
        }
    }

    fn gone(&mut self, rank: u32, state: MemberState) {
        self.alive.remove(&rank);
        if self.state_of(rank) == Some(MemberState::Running) {
            self.change(rank, state);
        }
    }

    fn change(&mut self, rank: u32, state: MemberState) {
        self.view.ranks[rank as usize].0 = state;
        self.changed.push((rank, state));
    }

    fn lost(&mut self, index: usize, why: &str) {
        self.remotes[index].done = true;
        let here = |rank: &u32| self.view.ranks[*rank as usize].1 == index as u32;
        let ranks: Vec<u32> = self.alive.iter().copied().filter(here).collect();
        ranks.iter().for_each(|rank| self.gone(*rank, MemberState::Failed));
        let node = self.remotes[index].node.clone();
        self.events.push_back(JobEvent::NodeLost { node, ranks, why: why.to_string() });
        self.failed();
    }

    fn send_changes(&mut self) {
        if self.joined.is_empty() && self.changed.is_empty() {
            return;
        }
        self.view.number += 1;
        let (joined, changed) = (std::mem::take(&mut self.joined), std::mem::take(&mut self.changed));
        let order = Order::Members { view: self.view.number, joined, changed };
        self.remotes.iter_mut().filter(|r| !r.done).for_each(|remote| remote.link.send(&order));
    }
}

impl std::fmt::Debug for Launched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Launched(job {}, {} ranks on {} nodes)", self.job, self.size(), self.remotes.len())
    }
}
