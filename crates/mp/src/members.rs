//! Who the members are, where, and how each has gone.
//!
//! Invariant: the set is fixed; a member that has gone does not come back.

use crate::error::{Gone, MpError};
use std::sync::Arc;
use vmmc_job::{Job, MemberState};

/// The members, by rank.
pub(crate) enum Members {
    /// Those of a job, as it was when this was made.
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
    /// Name of the endpoint of a member.
    pub(crate) fn endpoint(&self, rank: u32) -> String {
        match self {
            Members::Job { job, .. } => job.name_of(rank, "vmmc.mp"),
            Members::Set { name, .. } => format!("mp.{name}.{rank}"),
        }
    }

    /// Its node; none: this one.
    pub(crate) fn node(&self, rank: u32) -> Result<Option<String>, MpError> {
        match self {
            Members::Job { job, .. } => Ok(job.place_of(rank)?),
            Members::Set { nodes, .. } => Ok(nodes.get(rank as usize).cloned().flatten()),
        }
    }

    /// Who has gone, and how, if anything has changed since the last look.
    pub(crate) fn gone(&mut self) -> Result<Vec<(u32, Gone)>, MpError> {
        let Members::Job { job, view } = self else { return Ok(Vec::new()) };
        let Some((number, states)) = job.states_since(*view)? else { return Ok(Vec::new()) };
        *view = number;
        let how = |(rank, state): (usize, &MemberState)| match state {
            MemberState::Running => None,
            MemberState::Left => Some((rank as u32, Gone::Left)),
            MemberState::Ended => Some((rank as u32, Gone::Ended)),
            MemberState::Failed => Some((rank as u32, Gone::Failed)),
        };
        Ok(states.iter().enumerate().filter_map(how).collect())
    }
}
