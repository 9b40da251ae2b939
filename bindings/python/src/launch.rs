//! Starting and watching jobs.
//!
//! Invariant: a job ends with its object.

use crate::arguments::natural;
use crate::errors::{Detached, duration, exception, wait};
use crate::job::state_name;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};
use vmmc::ErrorKind;
use vmmc_job::{Exit, JobEvent, Launch, Place, Stream};

/// Longest sleep between two looks at signals.
const LOOK: Duration = Duration::from_millis(50);

/// Something that happened in a job.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Event {
    /// "started", "not started", "output", "error output", "exited", "left", "joined", "node lost",
    /// "ended".
    #[pyo3(get)]
    kind: &'static str,
    /// Whom it is about.
    #[pyo3(get)]
    ranks: Vec<u32>,
    /// What a rank printed.
    data: Vec<u8>,
    /// Process id of a rank that was started, code of one that exited (negative: the signal that
    /// ended it).
    #[pyo3(get)]
    number: i64,
    /// Why, where there is a reason.
    #[pyo3(get)]
    text: String,
}

#[pymethods]
impl Event {
    /// What a rank printed.
    #[getter]
    fn data(&self) -> &[u8] {
        &self.data
    }

    fn __repr__(&self) -> String {
        format!("Event({:?}, ranks={:?}, number={}, text={:?})", self.kind, self.ranks, self.number, self.text)
    }
}

fn event(event: JobEvent) -> Event {
    let blank = |kind, ranks| Event { kind, ranks, data: Vec::new(), number: 0, text: String::new() };
    match event {
        JobEvent::Started { rank, pid } => Event { number: i64::from(pid), ..blank("started", vec![rank]) },
        JobEvent::NotStarted { rank, why, .. } => Event { text: why, ..blank("not started", vec![rank]) },
        JobEvent::Output { rank, stream, bytes } => {
            let kind = if stream == Stream::Out { "output" } else { "error output" };
            Event { data: bytes, ..blank(kind, vec![rank]) }
        }
        JobEvent::Exited { rank, exit } => {
            let number = match exit {
                Exit::Code(code) => i64::from(code),
                Exit::Signal(signal) => -i64::from(signal),
            };
            Event { number, text: exit.to_string(), ..blank("exited", vec![rank]) }
        }
        JobEvent::Left { rank } => blank("left", vec![rank]),
        JobEvent::Joined { ranks } => blank("joined", ranks),
        JobEvent::NodeLost { node, ranks, why } => {
            Event { text: format!("{node}: {why}"), ..blank("node lost", ranks) }
        }
        JobEvent::Ended => blank("ended", Vec::new()),
    }
}

/// A job that runs.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Launched(Mutex<Detached<vmmc_job::Launched>>);

/// Starts a job.
#[pyfunction]
#[pyo3(signature = (program, *args, ranks=1, places=None, node=None, env=None, cwd=None, keep_going=false, input=None, timeout=None))]
#[allow(clippy::too_many_arguments)] // keywords in Python
pub(crate) fn launch(
    py: Python<'_>,
    program: PathBuf,
    args: Vec<PathBuf>,
    ranks: u32,
    places: Option<Vec<(Option<String>, u32)>>,
    node: Option<&str>,
    env: Option<HashMap<String, String>>,
    cwd: Option<PathBuf>,
    keep_going: bool,
    input: Option<u32>,
    timeout: Option<f64>,
) -> PyResult<Launched> {
    let mut launch = Launch::new(program.as_os_str()).args(args).keep_going(keep_going).input(input).ranks(ranks);
    if let Some(places) = places {
        launch = launch.places(places.into_iter().map(|(node, ranks)| Place { node, ranks }).collect());
    }
    if let Some(node) = node {
        launch = launch.node(node);
    }
    if let Some(cwd) = cwd {
        launch = launch.current_dir(cwd);
    }
    for (name, value) in env.unwrap_or_default() {
        launch = launch.env(name, value);
    }
    if let Some(time) = duration(timeout)? {
        launch = launch.timeout(time);
    }
    Ok(Launched(Mutex::new(Detached::new(wait(py, None, || launch.start())?))))
}

impl Launched {
    fn lock(&self) -> PyResult<MutexGuard<'_, Detached<vmmc_job::Launched>>> {
        match self.0.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(exception(ErrorKind::Busy, "another thread waits for an event of this job".into()))
            }
        }
    }

    fn with<R: Send>(&self, py: Python<'_>, run: impl FnOnce(&mut vmmc_job::Launched) -> R + Send) -> PyResult<R> {
        let mut guard = self.lock()?;
        let job = &mut **guard;
        Ok(py.detach(|| run(job)))
    }
}

#[pymethods]
impl Launched {
    /// Id of the job.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |job| job.id().to_string())
    }

    /// Ranks, those that have ended included.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |job| job.size())
    }

    /// Name of the node of a rank.
    fn node_of(&self, py: Python<'_>, #[pyo3(from_py_with = natural)] rank: u32) -> PyResult<Option<String>> {
        self.with(py, |job| job.node_of(rank).map(str::to_string))
    }

    /// State of a rank.
    fn state_of(&self, py: Python<'_>, #[pyo3(from_py_with = natural)] rank: u32) -> PyResult<Option<&'static str>> {
        self.with(py, |job| job.state_of(rank).map(state_name))
    }

    /// The next event, or None when the time has passed or after "ended".
    #[pyo3(signature = (timeout=None))]
    fn next_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Event>> {
        let end = duration(timeout)?.map(|time| Instant::now() + time);
        loop {
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()).min(LOOK));
            let mut guard = self.lock()?;
            let job = &mut **guard;
            let (next, ended) = wait(py, None, || job.next_event(left).map(|event| (event, job.has_ended())))?;
            if next.is_some() || ended || end.is_some_and(|end| Instant::now() >= end) {
                return Ok(next.map(event));
            }
            py.check_signals()?;
        }
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Event>> {
        self.next_event(py, None)
    }

    /// Gives a rank bytes on its standard input; says how many were taken.
    fn write_input(&self, py: Python<'_>, #[pyo3(from_py_with = natural)] rank: u32, data: Vec<u8>) -> PyResult<usize> {
        self.with(py, |job| job.write_input(rank, &data))
    }

    /// Ends the standard input of a rank.
    fn close_input(&self, py: Python<'_>, #[pyo3(from_py_with = natural)] rank: u32) -> PyResult<()> {
        self.with(py, |job| job.close_input(rank))
    }

    /// Sends a signal to all ranks.
    fn signal(&self, py: Python<'_>, signal: i32) -> PyResult<()> {
        self.with(py, |job| job.signal(signal))
    }

    /// Ends the job: SIGTERM, and SIGKILL a second later.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |job| job.end())
    }

    /// Ends the job at once, by force.
    fn kill(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |job| job.kill())
    }

    /// Adds ranks; says which ones.
    fn grow(&self, py: Python<'_>, #[pyo3(from_py_with = natural)] ranks: u32) -> PyResult<Vec<u32>> {
        self.with(py, |job| job.grow(ranks))
    }
}
