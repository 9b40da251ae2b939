//! Clients of remote calls, as `vmmc/rpc.py` uses them: methods by number, and bytes.
//!
//! Invariant: the interpreter's lock is released wherever a call may wait or take a lock of the
//! library. A call gives its outcome once. Source: `Client` of `crates/rpc`.

use crate::arguments::{natural, natural_or_none};
use crate::buffer::Buffer;
use crate::bytes::Source;
use crate::errors::{call_error, duration, exception, invalid};
use crate::export;
use crate::owned::Owned;
use crate::session::Session;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use vmmc::{ErrorKind, TokenRegion};
use vmmc_rpc::{Answer, Bulk, Client, Pending, RpcError, limits};

/// Time between two looks whether a key was pressed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

type Outcome = Result<Answer, RpcError>;
/// Result, and bulk if there is some: bytes, or a view of the region where it landed.
type Given<'py> = (Bound<'py, PyBytes>, Option<Bound<'py, PyAny>>);
/// Region, first byte and bytes, as Python gives them.
type RegionPart<'py> = (Bound<'py, RpcRegion>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// A way to a service.
#[pyclass(module = "vmmc._vmmc", frozen)]
pub(crate) struct RpcClient {
    /// None once it was closed.
    inner: Owned<Mutex<Option<Client>>>,
    service: String,
}

/// Memory for bulk results, which stay where they have landed.
#[pyclass(module = "vmmc._vmmc", frozen)]
pub(crate) struct RpcRegion {
    inner: Owned<TokenRegion>,
    /// All of its memory.
    memory: Py<Buffer>,
}

/// A call under way.
#[pyclass(module = "vmmc._vmmc", frozen)]
pub(crate) struct RpcPending {
    state: Owned<Mutex<State>>,
    landing: Option<Landing>,
}

/// What a call may say beside what it asks.
struct Choices<'a> {
    wants_bulk: Option<bool>,
    landing: Option<&'a Landing>,
    timeout: Option<f64>,
}

/// Where in a region the bulk of a call lands.
struct Landing {
    region: Py<RpcRegion>,
    bytes: Range<u64>,
}

enum State {
    Pending(Pending),
    /// The answer came when nobody asked for it.
    Done(Outcome),
    Given,
}

/// What is called when the answer is there.
struct Told(Py<PyAny>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        // An interpreter that is being taken down runs no more functions.
        let _ = Python::try_attach(|py| {
            if let Err(error) = self.0.call0(py) {
                error.write_unraisable(py, Some(self.0.bind(py)));
            }
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Landing {
    fn of((region, start, length): RegionPart<'_>) -> PyResult<Landing> {
        let (start, length): (u64, u64) = (natural(&start)?, natural(&length)?);
        let end = start.checked_add(length).ok_or_else(|| invalid("start and length exceed 64 bits"))?;
        Ok(Landing { region: region.unbind(), bytes: start..end })
    }

    /// So many bytes that have landed.
    fn view<'py>(&self, py: Python<'py>, len: u64) -> PyResult<Bound<'py, PyAny>> {
        let all = PyMemoryView::from(self.region.get().memory.bind(py))?;
        let start = self.bytes.start as isize;
        all.get_item(PySlice::new(py, start, start + len as isize, 1))
    }
}

/// The outcome as Python has it.
fn give<'py>(py: Python<'py>, outcome: Outcome, landing: Option<&Landing>) -> PyResult<Given<'py>> {
    let answer = outcome.map_err(call_error)?;
    let bulk = |bulk: Bulk| match landing {
        Some(landing) => landing.view(py, bulk.len()),
        None => {
            let read = |into: &mut [u8]| bulk.read(0, into).map_err(crate::errors::raise);
            PyBytes::new_with(py, bulk.len() as usize, read).map(Bound::into_any)
        }
    };
    Ok((PyBytes::new(py, &answer.result), answer.bulk.map(bulk).transpose()?))
}

impl RpcClient {
    /// The client, while it is open.
    pub(crate) fn client(&self) -> PyResult<Client> {
        let closed = || exception(ErrorKind::Stale, "the client was closed; connect again".into());
        lock(self.inner.get()?).clone().ok_or_else(closed)
    }

    /// Makes a call.
    fn begin(
        &self,
        py: Python<'_>,
        method: u16,
        arguments: &Bound<'_, PyAny>,
        bulk: Option<&Bound<'_, PyAny>>,
        Choices { wants_bulk, landing, timeout }: Choices<'_>,
    ) -> PyResult<Pending> {
        let client = self.client()?;
        let region = landing.map(|landing| Ok::<_, PyErr>((landing.region.get().inner.get()?, landing.bytes.clone())));
        let region = region.transpose()?;
        if region.is_some() && wants_bulk == Some(false) {
            return Err(invalid("`into` is for bulk, and wants_bulk=False wants none; leave one of them out"));
        }
        let (arguments, bulk) = (Source::of(arguments)?, bulk.map(Source::of).transpose()?);
        let (arguments, bulk) = (arguments.bytes(), bulk.as_ref().map_or(&[][..], Source::bytes));
        let timeout = duration(timeout)?;
        let start = |wants_bulk: bool| {
            let mut request = client.request(method).arguments(arguments).bulk(bulk);
            request = match &region {
                Some((region, bytes)) => request.into_region(region, bytes.clone()),
                None if wants_bulk => request.wants_bulk(),
                None => request,
            };
            timeout.into_iter().fold(request, |request, timeout| request.timeout(timeout)).start()
        };
        let begun = py.detach(|| match (start(wants_bulk.unwrap_or(true)), wants_bulk) {
            // All buffers are in use: the result can still come in a frame.
            (Err(RpcError::Token { .. }), None) if region.is_none() => start(false),
            (begun, _) => begun,
        });
        begun.map_err(call_error)
    }
}

#[pymethods]
impl RpcClient {
    #[new]
    #[pyo3(signature = (session, service, *, node=None, owner=None, timeout=None, answered_by=None, frames=None, frame_bytes=None, bulk_buffers=None, bulk_bytes=None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn new(
        py: Python<'_>,
        session: &Bound<'_, Session>,
        service: &str,
        node: Option<&str>,
        #[pyo3(from_py_with = natural_or_none)] owner: Option<u32>,
        timeout: Option<f64>,
        answered_by: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = natural_or_none)] frames: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] frame_bytes: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] bulk_buffers: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] bulk_bytes: Option<u64>,
    ) -> PyResult<RpcClient> {
        let (frames_default, bulk_default) = (limits::FRAMES_DEFAULT, limits::BULK_DEFAULT);
        let mut builder = Client::new(&session.get().inner, service)
            .frames(frames.unwrap_or(frames_default.0), frame_bytes.unwrap_or(frames_default.1))
            .bulk(bulk_buffers.unwrap_or(bulk_default.0), bulk_bytes.unwrap_or(bulk_default.1));
        builder = node.into_iter().fold(builder, |builder, node| builder.node(node));
        builder = owner.into_iter().fold(builder, |builder, uid| builder.owner(uid));
        if let Some(timeout) = duration(timeout)? {
            builder = builder.timeout(timeout);
        }
        if let Some(who) = answered_by {
            builder = builder.answered_by(export::access(who)?);
        }
        let client = crate::errors::waited(py, || builder.connect())?.map_err(call_error)?;
        Ok(RpcClient { inner: Owned::new(Mutex::new(Some(client))), service: service.to_string() })
    }

    /// Name of the service.
    #[getter]
    fn service(&self) -> &str {
        &self.service
    }

    /// A region of so many bytes for bulk results of up to so many calls at a time.
    fn region(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] calls: u64,
        #[pyo3(from_py_with = natural)] length: u64,
    ) -> PyResult<RpcRegion> {
        let client = self.client()?;
        let region = py.detach(|| client.region(calls, length)).map_err(call_error)?;
        let memory = Py::new(py, Buffer::of_library(region.memory().clone()))?;
        Ok(RpcRegion { inner: Owned::new(region), memory })
    }

    /// Calls that have no outcome yet.
    #[getter]
    fn outstanding(&self, py: Python<'_>) -> PyResult<usize> {
        let client = self.client()?;
        Ok(py.detach(|| client.outstanding()))
    }

    /// Calls a method, and does not wait. Without a word about bulk, one is taken if a buffer is
    /// free; with `into` it lands in a part of a region.
    #[pyo3(signature = (method, arguments, *, bulk=None, wants_bulk=None, into=None, timeout=None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn start(
        &self,
        py: Python<'_>,
        method: u16,
        arguments: &Bound<'_, PyAny>,
        bulk: Option<&Bound<'_, PyAny>>,
        wants_bulk: Option<bool>,
        into: Option<RegionPart<'_>>,
        timeout: Option<f64>,
    ) -> PyResult<RpcPending> {
        let landing = into.map(Landing::of).transpose()?;
        let pending =
            self.begin(py, method, arguments, bulk, Choices { wants_bulk, landing: landing.as_ref(), timeout })?;
        Ok(RpcPending { state: Owned::new(Mutex::new(State::Pending(pending))), landing })
    }

    /// Calls a method, and waits for its result and bulk.
    #[pyo3(signature = (method, arguments, *, bulk=None, wants_bulk=None, into=None, timeout=None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn call<'py>(
        &self,
        py: Python<'py>,
        method: u16,
        arguments: &Bound<'_, PyAny>,
        bulk: Option<&Bound<'_, PyAny>>,
        wants_bulk: Option<bool>,
        into: Option<RegionPart<'_>>,
        timeout: Option<f64>,
    ) -> PyResult<Given<'py>> {
        let landing = into.map(Landing::of).transpose()?;
        let mut pending =
            self.begin(py, method, arguments, bulk, Choices { wants_bulk, landing: landing.as_ref(), timeout })?;
        loop {
            if let Some(outcome) = py.detach(|| pending.wait_within(LOOK_EVERY)) {
                return give(py, outcome, landing.as_ref());
            }
            if let Err(error) = py.check_signals() {
                py.detach(|| drop(pending));
                return Err(error);
            }
        }
    }

    /// Takes answers that have come.
    fn poll(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.client()?;
        py.detach(|| client.poll());
        Ok(())
    }

    /// Closes it; calls under way go on.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let client = lock(self.inner.get()?).take();
        py.detach(|| drop(client));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_reasons))]
    fn __exit__(&self, py: Python<'_>, _reasons: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.rpc client of service {:?}>", self.service)
    }
}

#[pymethods]
impl RpcRegion {
    /// Its memory, to read, to send from, to answer from, or to export.
    #[getter]
    fn memory(&self, py: Python<'_>) -> Py<Buffer> {
        self.memory.clone_ref(py)
    }

    fn __len__(&self) -> usize {
        self.memory.get().inner.len() as usize
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.rpc.Region, {} bytes>", self.__len__())
    }
}

impl State {
    /// Moves the outcome out, if it is there after so much time.
    fn take(&mut self, time: Duration) -> Option<Outcome> {
        if let State::Pending(pending) = self {
            *self = State::Done(pending.wait_within(time)?);
        }
        match std::mem::replace(self, State::Given) {
            State::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    fn is_given(&self) -> bool {
        matches!(self, State::Given)
    }
}

impl RpcPending {
    /// The outcome, after so much time at the most.
    fn take(&self, py: Python<'_>, time: Duration) -> PyResult<Option<Outcome>> {
        let state = self.state.get()?;
        let outcome = py.detach(|| {
            let mut state = lock(state);
            if state.is_given() { Err(()) } else { Ok(state.take(time)) }
        });
        outcome
            .map_err(|()| exception(ErrorKind::Stale, "the outcome of this call was given, or it was withdrawn".into()))
    }
}

#[pymethods]
impl RpcPending {
    /// Result and bulk, once they are there; else None.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Option<Given<'py>>> {
        self.take(py, Duration::ZERO)?.map(|outcome| give(py, outcome, self.landing.as_ref())).transpose()
    }

    /// Waits until the call's time is over, or no longer than that; then it is None if they are not
    /// there.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Given<'py>>> {
        let until = duration(timeout)?.and_then(|time| Instant::now().checked_add(time));
        loop {
            let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
            if let Some(outcome) = self.take(py, left.min(LOOK_EVERY))? {
                return give(py, outcome, self.landing.as_ref()).map(Some);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Calls a function, from whatever thread, when poll has something; at once if it has. One
    /// function at a time: a later one takes the place of the former.
    fn when_done(&self, py: Python<'_>, function: Py<PyAny>) -> PyResult<()> {
        let state = self.state.get()?;
        let waker = Waker::from(Arc::new(Told(function)));
        let is_done = py.detach(|| {
            let mut state = lock(state);
            if let State::Pending(pending) = &mut *state {
                match Pin::new(pending).poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(outcome) => *state = State::Done(outcome),
                    Poll::Pending => return false,
                }
            }
            true
        });
        if is_done {
            waker.wake();
        }
        Ok(())
    }

    /// Withdraws the call.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state.get()?;
        py.detach(|| *lock(state) = State::Given);
        Ok(())
    }
}
