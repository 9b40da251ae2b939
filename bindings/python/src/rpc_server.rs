//! Servers of remote calls, as `vmmc/rpc.py` uses them: a function that gets each call.
//!
//! Invariant: a call is answered once; one whose object ends without an answer has none, and its
//! caller hears so. A server is not ended by a thread that runs its function. Source: `Server` and
//! `Call` of `crates/rpc`.

use crate::arguments::natural_or_none;
use crate::bytes::Source;
use crate::errors::{call_error, exception, invalid, raise};
use crate::export;
use crate::owned::Owned;
use crate::rpc_client::RpcClient;
use crate::session::Session;
use crate::source::Sources;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmmc::{ErrorKind, Gather};
use vmmc_rpc::{Call, RpcError, Server, limits};

thread_local! {
    /// Servers whose function runs in this thread.
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// A server of a service.
#[pyclass(module = "vmmc._vmmc", frozen)]
pub(crate) struct RpcServer {
    inner: Owned<Mutex<Option<Serving>>>,
    service: String,
    number: u64,
}

/// Ends the server.
struct Serving {
    server: Option<Server>,
    number: u64,
}

/// A call, until it is answered.
#[pyclass(module = "vmmc._vmmc", frozen)]
pub(crate) struct RpcCall {
    /// None once it was answered.
    inner: Owned<Mutex<Option<Call>>>,
    method: u16,
    arguments: Py<PyBytes>,
    wants_bulk: bool,
    sender: (u32, u32, u64),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_inside(number: u64) -> bool {
    INSIDE.with_borrow(|numbers| numbers.contains(&number))
}

impl Drop for Serving {
    fn drop(&mut self) {
        let server = self.server.take();
        if is_inside(self.number) {
            // It would wait for its own thread. Without a thread for it the server stays until the
            // process ends.
            let _ = std::thread::Builder::new().spawn(move || drop(server));
        }
    }
}

/// The function as the library calls it.
fn handler(function: Py<PyAny>, number: u64) -> impl Fn(Call) + Send + Sync + 'static {
    move |call| {
        INSIDE.with_borrow_mut(|numbers| numbers.push(number));
        // An interpreter that is being taken down answers no more calls.
        let _ = Python::try_attach(|py| {
            // What a call was not made an object for has no answer.
            let Ok(call) = RpcCall::new(py, call).and_then(|call| Py::new(py, call)) else { return };
            if let Err(error) = function.call1(py, (call.clone_ref(py),)) {
                let why = error.to_string();
                error.write_unraisable(py, Some(function.bind(py)));
                // Its traceback may hold the call.
                if let Ok(call) = call.get().take() {
                    py.detach(|| call.fail(&why));
                }
            }
        });
        INSIDE.with_borrow_mut(|numbers| numbers.pop());
    }
}

#[pymethods]
impl RpcServer {
    #[new]
    #[pyo3(signature = (session, service, function, *, threads=None, queue=None, access=None, frames=None, frame_bytes=None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn new(
        py: Python<'_>,
        session: &Bound<'_, Session>,
        service: &str,
        function: Bound<'_, PyAny>,
        #[pyo3(from_py_with = natural_or_none)] threads: Option<usize>,
        #[pyo3(from_py_with = natural_or_none)] queue: Option<usize>,
        access: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = natural_or_none)] frames: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] frame_bytes: Option<u64>,
    ) -> PyResult<RpcServer> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if !function.is_callable() {
            return Err(invalid("the handler cannot be called; pass a function that takes a call"));
        }
        let default = limits::FRAMES_DEFAULT;
        let mut builder = Server::new(&session.get().inner, service)
            .threads(threads.unwrap_or(0))
            .queue(queue.unwrap_or(limits::QUEUE_DEFAULT))
            .frames(frames.unwrap_or(default.0), frame_bytes.unwrap_or(default.1));
        if let Some(who) = access {
            builder = builder.access(export::access(who)?);
        }
        let (function, number) = (function.unbind(), NEXT.fetch_add(1, Ordering::Relaxed));
        let server = crate::errors::wait(py, None, || builder.serve(handler(function, number)))?;
        let serving = Serving { server: Some(server), number };
        Ok(RpcServer { inner: Owned::new(Mutex::new(Some(serving))), service: service.to_string(), number })
    }

    /// Name of the service.
    #[getter]
    fn service(&self) -> &str {
        &self.service
    }

    /// Whether it serves: not when it was closed, or its node has gone.
    #[getter]
    fn serving(&self) -> PyResult<bool> {
        let guard = lock(self.inner.get()?);
        Ok(guard.as_ref().and_then(|serving| serving.server.as_ref()).is_some_and(Server::is_serving))
    }

    /// What became of calls so far.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ended = || exception(ErrorKind::Stale, "the server has ended; make a new one".into());
        let counts = {
            let guard = lock(self.inner.get()?);
            guard.as_ref().and_then(|serving| serving.server.as_ref()).ok_or_else(ended)?.counts()
        };
        let all = PyDict::new(py);
        let values = [
            ("handled", counts.handled),
            ("done", counts.done),
            ("failed", counts.failed),
            ("busy", counts.busy),
            ("late", counts.late),
            ("cancelled", counts.cancelled),
            ("passed_on", counts.passed_on),
            ("misbehaved", counts.misbehaved),
        ];
        values.iter().try_for_each(|(name, value)| all.set_item(name, value))?;
        Ok(all)
    }

    /// Ends it, after the functions that run.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if is_inside(self.number) {
            let why = "a handler of this server runs in this thread; close the server in another thread";
            return Err(exception(ErrorKind::Busy, why.into()));
        }
        let serving = lock(self.inner.get()?).take();
        py.detach(|| drop(serving));
        Ok(())
    }
}

impl RpcCall {
    fn new(py: Python<'_>, call: Call) -> PyResult<RpcCall> {
        let from = call.from();
        Ok(RpcCall {
            method: call.method(),
            arguments: PyBytes::new(py, call.arguments()).unbind(),
            wants_bulk: call.wants_bulk(),
            sender: (from.session, from.process.0, from.import.to_u64()),
            inner: Owned::new(Mutex::new(Some(call))),
        })
    }

    fn take(&self) -> PyResult<Call> {
        lock(self.inner.get()?).take().ok_or_else(answered)
    }

    /// Runs something with the call, which stays unanswered; without the interpreter's lock.
    fn with<R: Send>(&self, py: Python<'_>, run: impl FnOnce(&Call) -> R + Send) -> PyResult<R> {
        let inner = self.inner.get()?;
        py.detach(|| lock(inner).as_ref().map(run)).ok_or_else(answered)
    }
}

fn answered() -> PyErr {
    exception(ErrorKind::Stale, "the call was answered, or passed on; a call is answered once".into())
}

#[pymethods]
impl RpcCall {
    /// Number of the method.
    #[getter]
    fn method(&self) -> u16 {
        self.method
    }

    /// The arguments.
    #[getter]
    fn arguments(&self, py: Python<'_>) -> Py<PyBytes> {
        self.arguments.clone_ref(py)
    }

    /// Whether the caller has a buffer for a bulk result.
    #[getter]
    fn wants_bulk(&self) -> bool {
        self.wants_bulk
    }

    /// Who sent it here, the caller or who has passed it on: session, process, import.
    #[getter]
    fn sender(&self) -> (u32, u32, u64) {
        self.sender
    }

    /// Seconds until the caller stops waiting.
    #[getter]
    fn left(&self, py: Python<'_>) -> PyResult<f64> {
        self.with(py, |call| call.left().as_secs_f64())
    }

    /// Whether the caller has withdrawn it.
    #[getter]
    fn cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, Call::is_cancelled)
    }

    /// A copy of the bulk that came with it.
    fn bulk<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let guard = lock(self.inner.get()?);
        let call = guard.as_ref().ok_or_else(answered)?;
        PyBytes::new_with(py, call.bulk_len() as usize, |into| call.read_bulk(0, into).map_err(raise))
    }

    /// Answers, with bulk, of whatever kind of source, if the caller wants some. After an exception
    /// it is still to be answered.
    #[pyo3(signature = (result, bulk=None))]
    fn answer(&self, py: Python<'_>, result: &Bound<'_, PyAny>, bulk: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let (result, sources) = (Source::of(result)?, bulk.map(Sources::of).transpose()?);
        let (result, bulk) = (result.bytes(), sources.as_ref().map(|sources| Gather(&sources.list)));
        bulk.iter().try_for_each(vmmc::Source::check).map_err(raise)?;
        let call = self.take()?;
        py.detach(|| match bulk {
            Some(bulk) => call.answer_with_bulk(result, bulk),
            None => call.answer(result),
        });
        Ok(())
    }

    /// Says that it failed, and how.
    fn fail(&self, py: Python<'_>, message: &str) -> PyResult<()> {
        let call = self.take()?;
        py.detach(|| call.fail(message));
        Ok(())
    }

    /// Says that there is no such method.
    fn no_method(&self, py: Python<'_>) -> PyResult<()> {
        let call = self.take()?;
        py.detach(|| call.no_method());
        Ok(())
    }

    /// Says that the arguments are none of this method.
    fn bad_arguments(&self, py: Python<'_>) -> PyResult<()> {
        let call = self.take()?;
        py.detach(|| call.bad_arguments());
        Ok(())
    }

    /// Leaves it to another server, which answers the caller itself. After an exception it is still
    /// to be answered.
    fn pass_on(
        &self,
        py: Python<'_>,
        client: &Bound<'_, RpcClient>,
        method: u16,
        arguments: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (to, arguments) = (client.get().client()?, Source::of(arguments)?);
        let arguments = arguments.bytes();
        let (inner, call) = (self.inner.get()?, self.take()?);
        let passed: Result<(), RpcError> = py.detach(|| {
            call.pass_on(&to, method, arguments).map_err(|(call, error)| {
                *lock(inner) = Some(call);
                error
            })
        });
        passed.map_err(call_error)
    }
}
