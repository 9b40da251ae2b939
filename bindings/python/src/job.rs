//! Membership in a job.
//!
//! Invariant: collective calls wait without the interpreter's lock, and a key press ends them.

use crate::arguments::{natural, rights_or_none};
use crate::errors::{Detached, duration, wait};
use crate::export::{Export, ExportOptions};
use crate::import::{Import, ImportOptions};
use crate::session::Session;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vmmc_job::{Change, MemberState};

/// This process's membership in a job.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Job(Detached<Arc<vmmc_job::Job>>);

impl Job {
    pub(crate) fn shared(&self) -> Arc<vmmc_job::Job> {
        Arc::clone(&self.0)
    }
}

pub(crate) fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::Running => "running",
        MemberState::Left => "left",
        MemberState::Ended => "ended",
        MemberState::Failed => "failed",
    }
}

fn changes(list: Vec<Change>) -> Vec<(&'static str, u32)> {
    let change = |change| match change {
        Change::Joined(rank) => ("joined", rank),
        Change::Left(rank) => ("left", rank),
        Change::Ended(rank) => ("ended", rank),
        Change::Failed(rank) => ("failed", rank),
    };
    list.into_iter().map(change).collect()
}

#[pymethods]
impl Job {
    /// Joins the job that this process was started for.
    #[staticmethod]
    fn attach(py: Python<'_>) -> PyResult<Job> {
        Ok(Job(Detached::new(Arc::new(wait(py, None, vmmc_job::Job::attach)?))))
    }

    /// Number of this process in the job.
    #[getter]
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    /// Ranks of the job as of the last `changes`, those that have gone included.
    #[getter]
    fn size(&self) -> u32 {
        self.0.size()
    }

    /// Id of the job.
    #[getter]
    fn id(&self) -> &str {
        self.0.id()
    }

    /// Ranks that run, as of the last `changes`.
    #[getter]
    fn members(&self) -> Vec<u32> {
        self.0.members()
    }

    /// The session that the job uses.
    #[getter]
    fn session(&self) -> Session {
        Session { inner: self.0.session().clone() }
    }

    /// Name of the node of a rank.
    fn node_of(&self, #[pyo3(from_py_with = natural)] rank: u32) -> PyResult<String> {
        self.0.node_of(rank).map_err(crate::errors::raise)
    }

    /// State of a rank, as of the last `changes`.
    fn state_of(&self, #[pyo3(from_py_with = natural)] rank: u32) -> PyResult<&'static str> {
        self.0.state_of(rank).map(state_name).map_err(crate::errors::raise)
    }

    /// The full name of an export of a rank.
    fn name_of(&self, #[pyo3(from_py_with = natural)] rank: u32, name: &str) -> String {
        self.0.name_of(rank, name)
    }

    /// Exports under a name of this rank.
    #[pyo3(signature = (name, what, *, rights=None, access=None, notify=false, redirectable=false, mappable=true, copy=false, share_edges=false))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn export(
        &self,
        name: &str,
        what: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = rights_or_none)] rights: Option<u8>,
        access: Option<&Bound<'_, PyAny>>,
        notify: bool,
        redirectable: bool,
        mappable: bool,
        copy: bool,
        share_edges: bool,
    ) -> PyResult<Export> {
        let name = Some(self.0.name_of(self.0.rank(), name));
        let options = ExportOptions { name, rights, access, notify, redirectable, mappable, copy, share_edges };
        Export::make(self.0.session(), what, options)
    }

    /// Imports what a rank has exported under a name, waiting for it.
    #[pyo3(signature = (rank, name, *, rights=None, wait=None, own_order=false))]
    fn import_(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] rank: u32,
        name: &str,
        #[pyo3(from_py_with = rights_or_none)] rights: Option<u8>,
        wait: Option<f64>,
        own_order: bool,
    ) -> PyResult<Import> {
        let builder = self.0.import(rank, name).map_err(crate::errors::raise)?;
        Import::make(py, builder, ImportOptions { node: None, owner: None, rights, wait, own_order })
    }

    /// Waits until all members are here.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let job = &*self.0;
        let deadline = job.session().deadline(duration(timeout)?.unwrap_or(job.session().timeout()));
        wait(py, timeout, || job.barrier_by(deadline))
    }

    /// Gives every member the values of all.
    #[pyo3(signature = (value, timeout=None))]
    fn allgather<'py>(
        &self,
        py: Python<'py>,
        value: Vec<u8>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let job = &*self.0;
        let deadline = job.session().deadline(duration(timeout)?.unwrap_or(job.session().timeout()));
        let values = wait(py, timeout, || job.allgather_by(&value, deadline))?;
        Ok(values.iter().map(|value| PyBytes::new(py, value)).collect())
    }

    /// What has changed among the members since the last call.
    fn changes(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, u32)>> {
        let job = &*self.0;
        wait(py, None, || job.changes()).map(changes)
    }

    /// Waits until the set of members changes, or the time has passed.
    fn wait_changes(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<(&'static str, u32)>> {
        let job = &*self.0;
        let time = duration(Some(timeout))?.unwrap_or_default();
        wait(py, None, || job.wait_changes(time)).map(changes)
    }

    /// A descriptor for event loops, readable when `changes` may have something.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let job = &*self.0;
        wait(py, None, || job.changes_fd().map(|fd| fd.as_raw_fd()))
    }

    /// Says goodbye: however this process ends from now on is no failure of the job.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let job = &*self.0;
        wait(py, None, || job.leave())
    }

    /// Asks for more ranks.
    fn grow(&self, py: Python<'_>, #[pyo3(from_py_with = natural)] ranks: u32) -> PyResult<()> {
        let job = &*self.0;
        wait(py, None, || job.grow(ranks))
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.Job {}, rank {} of {}>", self.0.id(), self.0.rank(), self.0.size())
    }
}
