//! A process as member of a job: who it is, who the others are, their memory by rank and name.
//!
//! Invariant: the members that collective calls run over are those of the view that this process
//! has last taken up (at attach, then by [`Job::changes`]); a change that matters to a call under
//! way is an error of that call, never a hang.

use crate::changes::ChangeNotifier;
use crate::collective::Area;
use crate::error::JobError;
use crate::limits::{JOB_INTERRUPT_POLL, JOB_TABLE_TIMEOUT};
use crate::protocol::{JOB_VARIABLE, MemberState, NODE_VARIABLE, RANK_VARIABLE, asks_name, member_name, table_name};
use crate::table::View;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use vmmc::{ExportBuilder, Import, ImportBuilder, Rights, SendOptions, Session};
use vmmc_host::wait::is_interrupted;

/// Bits of what a rank asks its supervisor: it leaves.
pub const ASK_LEAVE: u64 = 1;
/// It wants more ranks: their number is in the upper half.
pub const ASK_GROW: u64 = 2;

/// It wants to be notified of changes, through its export
/// [`CHANGES_NAME`](super::protocol::CHANGES_NAME).
pub const ASK_CHANGES: u64 = 3;

/// This process's membership in a job.
pub struct Job {
    session: Session,
    id: String,
    rank: u32,
    source: Source,
    view: Mutex<View>,
    pub(crate) area: Mutex<Option<Area>>,
    /// Made when first asked for.
    notifier: OnceLock<ChangeNotifier>,
}

/// Where the job's state comes from.
enum Source {
    /// From the table that the supervisor of this node exports.
    Supervised { table: Import, asks: Import },
    /// From a launcher of another kind, once and for all.
    Fixed,
}

/// A change of the set of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This rank is new.
    Joined(u32),
    /// This rank has said goodbye.
    Left(u32),
    /// This rank's process has ended well.
    Ended(u32),
    /// This rank's process has failed, or its node is lost.
    Failed(u32),
}

impl Job {
    /// Joins the job that this process was started for: by `vmmc run` or [`Launch`](super::Launch),
    /// or by a launcher that speaks PMIx (`mpirun`, `prterun`, `srun`), when its client library is
    /// installed. All processes of such a job must call this, and once; its members never change.
    ///
    /// # Errors
    /// [`JobError`]; [`JobError::NoJob`] when the process was not started as part of a job.
    pub fn attach() -> Result<Job, JobError> {
        if std::env::var_os(JOB_VARIABLE).is_none() && vmmc_host::pmix::is_offered() {
            return super::pmix::attach();
        }
        // Asked first: a node may be named without any job.
        variable(JOB_VARIABLE)?;
        let node = variable(NODE_VARIABLE)?;
        let session = Session::builder().node(&node).start_node(false).attach()?;
        Job::over(session)
    }

    /// As [`attach`](Self::attach), with a session to the node that the job has put this process
    /// on.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn over(session: Session) -> Result<Job, JobError> {
        let id = variable(JOB_VARIABLE)?;
        let rank = number(RANK_VARIABLE)?;
        let table = session.import(&table_name(&id)).rights(Rights::READ).wait(JOB_TABLE_TIMEOUT).open()?;
        let asks =
            session.import(&asks_name(&id)).rights(Rights::READ | Rights::WRITE).wait(JOB_TABLE_TIMEOUT).open()?;
        let view = View::read(&table)?;
        let size = view.ranks.len() as u32;
        if rank >= size {
            return Err(JobError::NoRank { rank, size });
        }
        let source = Source::Supervised { table, asks };
        Ok(Job::new(session, id, rank, source, view))
    }

    /// A job whose members another launcher has made known: all there from the start, and for good.
    pub(crate) fn fixed(session: Session, id: String, rank: u32, view: View) -> Job {
        Job::new(session, id, rank, Source::Fixed, view)
    }

    fn new(session: Session, id: String, rank: u32, source: Source, view: View) -> Job {
        let (view, area, notifier) = (Mutex::new(view), Mutex::new(None), OnceLock::new());
        Job { session, id, rank, source, view, area, notifier }
    }

    /// Number of this process in the job.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks of the job as of the last [`changes`](Self::changes), those that have gone included:
    /// ranks are never used twice.
    pub fn size(&self) -> u32 {
        self.lock().ranks.len() as u32
    }

    /// Id of the job.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The session that the job uses.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Ranks that run, as of the last [`changes`](Self::changes).
    pub fn members(&self) -> Vec<u32> {
        self.lock().members()
    }

    /// Name of the node of a rank.
    ///
    /// # Errors
    /// [`JobError::NoRank`].
    pub fn node_of(&self, rank: u32) -> Result<String, JobError> {
        let view = self.lock();
        let (_, node) = entry(&view, rank)?;
        Ok(view.nodes.get(node as usize).map(|node| node.name.clone()).unwrap_or_default())
    }

    /// How calls of this process name the node of a rank, as
    /// [`ConnectionBuilder::node`](vmmc::ConnectionBuilder::node) wants it; none: it is the node of
    /// this process.
    ///
    /// # Errors
    /// [`JobError::NoRank`].
    pub fn place_of(&self, rank: u32) -> Result<Option<String>, JobError> {
        let view = self.lock();
        let (_, node) = entry(&view, rank)?;
        Ok(view.nodes.get(node as usize).filter(|_| node != view.own).map(|place| place.locator.clone()))
    }

    /// The state of each rank as it is now, and the number of that view; none: it is still the view
    /// of this number. It is looked at in memory, takes up nothing, and so changes no collective
    /// call; it is for models that watch members by themselves. Numbers begin with 1.
    ///
    /// # Errors
    /// [`JobError::Transfer`] when the supervisor has gone, which ends the job.
    pub fn states_since(&self, view: u64) -> Result<Option<(u64, Vec<MemberState>)>, JobError> {
        let now = match &self.source {
            Source::Supervised { table, .. } if View::number(table)? == view => return Ok(None),
            Source::Supervised { table, .. } => View::read(table)?,
            Source::Fixed => self.lock().clone(),
        };
        let states = now.ranks.iter().map(|(state, _)| *state).collect();
        Ok((now.number != view).then_some((now.number, states)))
    }

    /// State of a rank, as of the last [`changes`](Self::changes).
    ///
    /// # Errors
    /// [`JobError::NoRank`].
    pub fn state_of(&self, rank: u32) -> Result<MemberState, JobError> {
        Ok(entry(&self.lock(), rank)?.0)
    }

    /// Exports new memory under a name of this rank; others reach it with [`import`](Self::import).
    pub fn export(&self, name: &str, len: u64) -> ExportBuilder {
        self.session.export(len).name(&self.name_of(self.rank, name))
    }

    /// The full name of an export of a rank, for exports that are made in other ways.
    pub fn name_of(&self, rank: u32, name: &str) -> String {
        member_name(&self.id, rank, name)
    }

    /// Imports what a rank has exported under a name. It waits for the export to appear, by default
    /// as long as the session's timeout.
    ///
    /// # Errors
    /// [`JobError::NoRank`].
    pub fn import(&self, rank: u32, name: &str) -> Result<ImportBuilder, JobError> {
        let view = self.lock();
        let (_, node) = entry(&view, rank)?;
        let import = self.session.import(&self.name_of(rank, name)).wait(self.session.timeout());
        match view.nodes.get(node as usize) {
            Some(place) if node != view.own => Ok(import.node(&place.locator)),
            _ => Ok(import),
        }
    }

    /// What has changed among the members since the last call, in order of rank. From now on
    /// collective calls run over the members as they are now.
    ///
    /// # Errors
    /// [`JobError::Transfer`] when the supervisor has gone, which ends the job.
    pub fn changes(&self) -> Result<Vec<Change>, JobError> {
        self.notifier.get().into_iter().for_each(ChangeNotifier::clear);
        let Source::Supervised { table, .. } = &self.source else { return Ok(Vec::new()) };
        let mut view = self.lock();
        if View::number(table)? == view.number {
            return Ok(Vec::new());
        }
        let new = View::read(table)?;
        let old = std::mem::replace(&mut *view, new);
        let was = |rank: usize| old.ranks.get(rank).map(|(state, _)| *state);
        let change = |(rank, (state, _)): (usize, &(MemberState, u32))| {
            let number = rank as u32;
            match (was(rank), *state) {
                (before, now) if before == Some(now) => None,
                (_, MemberState::Running) => Some(Change::Joined(number)),
                (_, MemberState::Left) => Some(Change::Left(number)),
                (_, MemberState::Ended) => Some(Change::Ended(number)),
                (_, MemberState::Failed) => Some(Change::Failed(number)),
            }
        };
        Ok(view.ranks.iter().enumerate().filter_map(change).collect())
    }

    /// Waits until the set of members changes, or the time has passed; gives the changes.
    ///
    /// # Errors
    /// [`JobError::Transfer`] when the supervisor has gone, or what
    /// [`changes_fd`](Self::changes_fd) says.
    pub fn wait_changes(&self, timeout: Duration) -> Result<Vec<Change>, JobError> {
        let deadline = self.session.deadline(timeout);
        let notifier = self.notifier()?;
        loop {
            let changes = self.changes()?;
            let left = deadline.left(self.session.deadline(Duration::ZERO).0);
            match left {
                Some(left) if changes.is_empty() && !is_interrupted() => notifier.sleep(left.min(JOB_INTERRUPT_POLL)),
                _ => return Ok(changes),
            }
        }
    }

    /// A descriptor for event loops (poll, epoll): readable when [`changes`](Self::changes) may
    /// have something, until that is called. Only wait for it to be readable; do not read it. Who
    /// asks for it gets a thread that is asleep between changes.
    ///
    /// # Errors
    /// [`JobError::ChangeNotifier`], [`JobError::Export`] or [`JobError::Transfer`] when there is
    /// no way to be notified.
    pub fn changes_fd(&self) -> Result<BorrowedFd<'_>, JobError> {
        Ok(self.notifier()?.as_fd())
    }

    fn notifier(&self) -> Result<&ChangeNotifier, JobError> {
        let _one_at_a_time = self.lock();
        match self.notifier.get() {
            Some(notifier) => Ok(notifier),
            None => ChangeNotifier::new(self).map(|notifier| self.notifier.get_or_init(|| notifier)),
        }
    }

    /// Says goodbye: the others are told, and however this process ends from now on is no failure
    /// of the job. Collective calls are over for it.
    ///
    /// # Errors
    /// [`JobError::Transfer`].
    pub fn leave(&self) -> Result<(), JobError> {
        self.ask(ASK_LEAVE)?;
        self.lock().ranks[self.rank as usize].0 = MemberState::Left;
        Ok(())
    }

    /// Asks for more ranks of the same program; they join as soon as the launcher has started them,
    /// which [`changes`](Self::changes) reports.
    ///
    /// # Errors
    /// [`JobError::Transfer`].
    pub fn grow(&self, ranks: u32) -> Result<(), JobError> {
        self.ask(u64::from(ranks) << 32 | ASK_GROW)
    }

    /// Whether the members changed since the view that collective calls run over.
    pub(crate) fn has_changed(&self) -> Result<bool, JobError> {
        match &self.source {
            Source::Supervised { table, .. } => Ok(View::number(table)? != self.lock().number),
            Source::Fixed => Ok(false),
        }
    }

    /// The state as it is now, which collective calls do not yet run over.
    pub(crate) fn current_view(&self) -> Result<View, JobError> {
        match &self.source {
            Source::Supervised { table, .. } => Ok(View::read(table)?),
            Source::Fixed => Ok(self.lock().clone()),
        }
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, View> {
        self.view.lock().expect("no panic while the lock is held")
    }

    /// Whether nothing ever changes.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self.source, Source::Fixed)
    }

    pub(crate) fn ask(&self, what: u64) -> Result<(), JobError> {
        let Source::Supervised { asks, .. } = &self.source else {
            return Err(JobError::NoJob { variable: JOB_VARIABLE });
        };
        asks.send_with(8 * u64::from(self.rank), &what.to_le_bytes(), SendOptions::notify())?;
        Ok(())
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({}, rank {} of {})", self.id, self.rank, self.size())
    }
}

fn entry(view: &View, rank: u32) -> Result<(MemberState, u32), JobError> {
    let size = view.ranks.len() as u32;
    view.ranks.get(rank as usize).copied().ok_or(JobError::NoRank { rank, size })
}

fn variable(variable: &'static str) -> Result<String, JobError> {
    std::env::var(variable).ok().filter(|value| !value.is_empty()).ok_or(JobError::NoJob { variable })
}

fn number(name: &'static str) -> Result<u32, JobError> {
    let value = variable(name)?;
    let wanted = || "a number is wanted, which `vmmc run` sets; do not change it".to_string();
    value.parse().map_err(|_| JobError::Environment { variable: name, value: value.clone(), wanted: wanted() })
}
