//! Messages by rank and tag among the members of a job, as `vmmc/mp.py` shows them.
//!
//! Invariant: no call takes a lock of the library while it holds the interpreter's, since the
//! library lets go of buffers, which takes that one, while it holds its own. Source: `Messages` of
//! `crates/mp`.

use crate::arguments::{natural, natural_or_none};
use crate::buffer::Buffer;
use crate::errors::{drop_detached, duration, exception, invalid, raise, wait};
use crate::group::Group;
use crate::job::Job;
use crate::owned::Owned;
use crate::session::Session;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vmmc::ErrorKind;

/// What all handles of the same messages share.
pub(crate) struct Shared {
    /// None once this member has left.
    messages: Mutex<Option<Arc<vmmc_mp::Messages>>>,
    /// Held while a receive looks for its message, or is posted: so nobody else takes it between
    /// the two.
    receiving: Mutex<()>,
}

impl Shared {
    /// The messages, while this member is one; they stay as long as the call lasts.
    pub(crate) fn messages(&self) -> PyResult<Kept> {
        let left = || exception(ErrorKind::Stale, "this member has left; attach again in a new process".into());
        lock(&self.messages).clone().map(|messages| Kept(Some(messages))).ok_or_else(left)
    }

    pub(crate) fn receiving(&self) -> MutexGuard<'_, ()> {
        lock(&self.receiving)
    }
}

/// The messages as a call keeps them. Whoever is the last to have them says goodbye, without the
/// interpreter's lock.
pub(crate) struct Kept(Option<Arc<vmmc_mp::Messages>>);

impl Deref for Kept {
    type Target = vmmc_mp::Messages;
    fn deref(&self) -> &vmmc_mp::Messages {
        self.0.as_ref().expect("only `drop` takes it")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(messages) = self.0.take().and_then(Arc::into_inner) {
            drop_detached(messages);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process as one that sends and receives messages.
#[pyclass(module = "vmmc.mp", frozen)]
pub(crate) struct Messages {
    shared: Owned<Arc<Shared>>,
    rank: u32,
    size: u32,
}

impl Messages {
    fn make(py: Python<'_>, builder: vmmc_mp::MessagesBuilder, timeout: Option<f64>) -> PyResult<Messages> {
        let builder = match duration(timeout)? {
            Some(timeout) => builder.timeout(timeout),
            None => builder,
        };
        let messages = wait(py, None, || builder.create())?;
        let (rank, size) = (messages.rank(), messages.size());
        let shared = Shared { messages: Mutex::new(Some(Arc::new(messages))), receiving: Mutex::new(()) };
        Ok(Messages { shared: Owned::new(Arc::new(shared)), rank, size })
    }

    fn run<R: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&vmmc_mp::Messages) -> Result<R, vmmc_mp::MpError> + Send,
    ) -> PyResult<R> {
        let messages = self.shared.get()?.messages()?;
        wait(py, None, || run(&messages))
    }
}

#[pymethods]
impl Messages {
    /// The members of the job that this process was started for.
    #[staticmethod]
    #[pyo3(signature = (*, timeout=None))]
    fn attach(py: Python<'_>, timeout: Option<f64>) -> PyResult<Messages> {
        let job = Arc::new(wait(py, None, vmmc_job::Job::attach)?);
        Messages::make(py, vmmc_mp::Messages::over(job), timeout)
    }

    /// The members of a job, as it is now.
    #[staticmethod]
    #[pyo3(signature = (job, *, timeout=None))]
    fn over(py: Python<'_>, job: &Bound<'_, Job>, timeout: Option<f64>) -> PyResult<Messages> {
        Messages::make(py, vmmc_mp::Messages::over(job.get().shared()), timeout)
    }

    /// Processes or threads that know each other by a name, each with its own session.
    #[staticmethod]
    #[pyo3(signature = (session, name, rank, nodes, *, timeout=None))]
    fn among(
        py: Python<'_>,
        session: &Bound<'_, Session>,
        name: &str,
        #[pyo3(from_py_with = natural)] rank: u32,
        nodes: Vec<Option<String>>,
        timeout: Option<f64>,
    ) -> PyResult<Messages> {
        let session = session.get().inner.clone();
        Messages::make(py, vmmc_mp::Messages::among_nodes(session, name, rank, &nodes), timeout)
    }

    /// Number of this member.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// Members.
    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    /// All members.
    #[getter]
    fn world(&self) -> PyResult<Group> {
        let shared = self.shared.get()?;
        Ok(Group::new(shared.clone(), shared.messages()?.world().clone()))
    }

    /// The session that they use.
    #[getter]
    fn session(&self) -> PyResult<Session> {
        Ok(Session { inner: self.shared.get()?.messages()?.session().clone() })
    }

    /// New memory, in which long messages land without a copy on the way.
    fn memory(&self, py: Python<'_>, #[pyo3(from_py_with = natural)] length: u64) -> PyResult<Memory> {
        let inner = self.run(py, move |messages| messages.memory(length))?;
        let buffer = Py::new(py, Buffer::of_library(inner.buffer().clone()))?;
        Ok(Memory { inner: Owned::new(inner), buffer })
    }

    /// Takes what has come and sends on what waits, without a wait.
    fn poll(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, vmmc_mp::Messages::poll)
    }

    /// What became of messages so far.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.run(py, vmmc_mp::Messages::counts)?;
        let dict = PyDict::new(py);
        let all = [
            ("eager", counts.eager),
            ("asked", counts.asked),
            ("asked_short", counts.asked_short),
            ("unexpected", counts.unexpected),
            ("misbehaved", counts.misbehaved),
        ];
        for (name, count) in all {
            dict.set_item(name, count)?;
        }
        Ok(dict)
    }

    /// Says goodbye to the others.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared.get()?;
        drop(Kept(py.detach(|| lock(&shared.messages).take())));
        Ok(())
    }

    /// Ends all members: this process with the code, the others with an exception that has the
    /// text.
    fn abort(&self, py: Python<'_>, code: i32, text: &str) -> PyResult<()> {
        let messages = self.shared.get()?.messages()?;
        py.detach(|| messages.abort(code, text))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.leave(py)
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.mp.Messages, rank {} of {}>", self.rank, self.size)
    }
}

/// Memory in which long messages land.
#[pyclass(module = "vmmc.mp", frozen)]
pub(crate) struct Memory {
    inner: Owned<vmmc_mp::Memory>,
    /// All of it.
    buffer: Py<Buffer>,
}

#[pymethods]
impl Memory {
    /// All of it, with the buffer protocol.
    #[getter]
    fn memory(&self, py: Python<'_>) -> Py<Buffer> {
        self.buffer.clone_ref(py)
    }

    /// `length` bytes from `start` on, to send or to receive into; without length, to the end.
    #[pyo3(signature = (start=0, length=None))]
    fn range(
        &self,
        #[pyo3(from_py_with = natural)] start: u64,
        #[pyo3(from_py_with = natural_or_none)] length: Option<u64>,
    ) -> PyResult<MemoryRange> {
        let memory = self.inner.get()?;
        let end = match length {
            None => memory.len().max(start),
            Some(length) => start.checked_add(length).ok_or_else(|| invalid("start and length exceed 64 bits"))?,
        };
        Ok(MemoryRange { place: Owned::new(memory.range(Range { start, end }).map_err(raise)?) })
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.len() as usize)
    }

    fn __bool__(&self) -> bool {
        true
    }
}

/// A part of such memory.
#[pyclass(module = "vmmc.mp", frozen)]
pub(crate) struct MemoryRange {
    place: Owned<vmmc_mp::Place>,
}

impl MemoryRange {
    pub(crate) fn place(&self) -> PyResult<vmmc_mp::Place> {
        self.place.get().cloned()
    }
}

/// The place of a memory or a range of it; None: it is something else.
pub(crate) fn place_of(object: &Bound<'_, PyAny>) -> PyResult<Option<vmmc_mp::Place>> {
    if let Ok(range) = object.cast::<MemoryRange>() {
        return range.get().place().map(Some);
    }
    let Ok(memory) = object.cast::<Memory>() else { return Ok(None) };
    let memory = memory.get().inner.get()?;
    memory.range(0..memory.len()).map(Some).map_err(raise)
}

#[pymethods]
impl MemoryRange {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.place.get()?.len() as usize)
    }

    fn __bool__(&self) -> bool {
        true
    }
}
