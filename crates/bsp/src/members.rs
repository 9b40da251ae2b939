//! Who the members are, where, and how each has gone.
//!
//! Invariant: the set is fixed; a member that has gone does not come back.

use crate::error::{BspError, Gone};
use std::sync::Arc;
use vmmc::{ExportBuilder, ImportBuilder, Session};
use vmmc_job::{Job, MemberState};

/// The members, by number.
pub(crate) enum Members {
    /// The first ranks of a job.
    Job {
        job: Arc<Job>,
        /// The number of the view that was looked at last.
        view: u64,
    },
    /// Those that know each other by a name.
    Set {
        name: String,
        /// How the node of each is named; none: this one.
        nodes: Vec<Option<String>>,
    },
}

impl Members {
    pub(crate) fn export(&self, session: &Session, pid: u32, what: &str, len: u64) -> ExportBuilder {
        session.export(len).name(&self.name(pid, what))
    }

    pub(crate) fn import(&self, session: &Session, pid: u32, what: &str) -> Result<ImportBuilder, BspError> {
        let import = session.import(&self.name(pid, what));
        let node = match self {
            Members::Job { job, .. } => job.place_of(pid)?,
            Members::Set { nodes, .. } => nodes.get(pid as usize).cloned().flatten(),
        };
        Ok(node.iter().fold(import, |import, node| import.node(node)))
    }

    fn name(&self, pid: u32, what: &str) -> String {
        match self {
            Members::Job { job, .. } => job.name_of(pid, what),
            Members::Set { name, .. } => format!("bsp.{name}.{pid}/{what}"),
        }
    }

    /// Who has gone, if anything has changed since the last look.
    pub(crate) fn gone(&mut self, nprocs: u32) -> Result<Vec<(u32, Gone)>, BspError> {
        let Members::Job { job, view } = self else { return Ok(Vec::new()) };
        let Some((number, states)) = job.states_since(*view)? else { return Ok(Vec::new()) };
        *view = number;
        let how = |(pid, state): (usize, &MemberState)| match state {
            MemberState::Running => None,
            MemberState::Left => Some((pid as u32, Gone::Left)),
            MemberState::Ended => Some((pid as u32, Gone::Ended)),
            MemberState::Failed => Some((pid as u32, Gone::Failed)),
        };
        Ok(states.iter().take(nprocs as usize).enumerate().filter_map(how).collect())
    }
}
