//! Endpoints: messages of many senders, with payloads in frames.
//!
//! Invariant: one thread uses an endpoint or a connection at a time, and waits without the
//! interpreter's lock. A payload's memory is its sender's again when its `Frame` has ended.

use crate::arguments::natural_or_none;
use crate::bytes::Source;
use crate::errors::{Detached, duration, exception, raise, wait};
use crate::export;
use crate::source::Sources;
use crate::token::{self, ByToken, TokenBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;
use vmmc::{ErrorKind, Gather};

/// Where messages of many senders come in.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Endpoint {
    /// None once it has ended.
    inner: Detached<Mutex<Option<vmmc::Endpoint>>>,
    name: String,
    /// Not under the lock: a thread may wait for messages meanwhile.
    tokens: Option<vmmc::TokenPool>,
}

/// A way to an endpoint.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Connection {
    /// None once it has ended.
    inner: Detached<Mutex<Option<vmmc::Connection>>>,
    endpoint: String,
    payload_max: u64,
}

/// A message that has come.
#[pyclass(module = "vmmc", frozen, get_all)]
pub(crate) struct Message {
    /// The control message.
    control: Py<PyBytes>,
    /// The payload; None: it has none.
    payload: Option<Py<Frame>>,
    /// What became of a payload that was sent by token; None: there was none.
    by_token: Option<Py<ByToken>>,
    /// Who sent it: the session with its node (0: this node), the process there, its import.
    sender: (u32, u32, u64),
}

/// A payload that has come.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Frame {
    /// None once it has ended.
    inner: Mutex<Option<vmmc::Frame>>,
    len: u64,
}

/// Choices for an endpoint.
pub(crate) struct EndpointOptions<'a> {
    pub(crate) frames: u64,
    pub(crate) frame_bytes: u64,
    pub(crate) tokens: Option<(u64, u64)>,
    pub(crate) access: Option<&'a Bound<'a, PyAny>>,
    pub(crate) notify: bool,
    pub(crate) mappable: bool,
}

fn lock<'a, T>(object: &'a Mutex<Option<T>>, what: &str) -> PyResult<MutexGuard<'a, Option<T>>> {
    match object.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(exception(ErrorKind::Busy, format!("another thread uses this {what}"))),
    }
}

pub(crate) fn ended() -> PyErr {
    exception(ErrorKind::Stale, "the endpoint has ended; make a new one".into())
}

fn closed() -> PyErr {
    exception(ErrorKind::Stale, "the connection was closed; connect again".into())
}

impl Message {
    fn new(py: Python<'_>, mut message: vmmc::Message) -> PyResult<Message> {
        let from = message.from();
        let control = PyBytes::new(py, message.control()).unbind();
        let payload = message.take_payload().map(|frame| {
            let len = frame.len();
            Py::new(py, Frame { inner: Mutex::new(Some(frame)), len })
        });
        let by_token = message.by_token().map(|by_token| Py::new(py, ByToken::new(py, by_token))).transpose()?;
        let sender = (from.session, from.process.0, from.import.to_u64());
        Ok(Message { control, payload: payload.transpose()?, by_token, sender })
    }
}

impl Endpoint {
    pub(crate) fn make(
        py: Python<'_>,
        session: &vmmc::Session,
        name: &str,
        options: EndpointOptions<'_>,
    ) -> PyResult<Endpoint> {
        let mut builder = session.endpoint(name).notify(options.notify).mappable(options.mappable);
        builder = builder.frames(options.frames, options.frame_bytes);
        if let Some(who) = options.access {
            builder = builder.access(export::access(who)?);
        }
        if let Some((count, bytes)) = options.tokens {
            builder = builder.tokens(count, bytes);
        }
        let endpoint = wait(py, None, || builder.create())?;
        let tokens = endpoint.token_pool().cloned();
        Ok(Endpoint { inner: Detached::new(Mutex::new(Some(endpoint))), name: name.to_string(), tokens })
    }

    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, Option<vmmc::Endpoint>>> {
        lock(&self.inner, "endpoint")
    }
}

#[pymethods]
impl Endpoint {
    /// Its name for senders.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Senders that are connected now.
    #[getter]
    fn senders(&self) -> PyResult<usize> {
        Ok(self.lock()?.as_ref().ok_or_else(ended)?.senders())
    }

    /// What became of messages and senders so far.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.lock()?.as_ref().ok_or_else(ended)?.counts();
        let all = PyDict::new(py);
        let values = [
            ("messages", counts.messages),
            ("accepted", counts.accepted),
            ("refused", counts.refused),
            ("misbehaved", counts.misbehaved),
        ];
        values.iter().try_for_each(|(name, value)| all.set_item(name, value))?;
        Ok(all)
    }

    /// The next message; None if there is none. Lets in senders that have asked.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let mut guard = self.lock()?;
        let message = guard.as_mut().ok_or_else(ended)?.poll().map_err(raise)?;
        message.map(|message| Message::new(py, message)).transpose()
    }

    /// The next message; waits for one, and lets in senders meanwhile.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        let mut guard = self.lock()?;
        let endpoint = guard.as_mut().ok_or_else(ended)?;
        Message::new(py, wait(py, timeout, || endpoint.wait())?)
    }

    /// A free buffer for a payload by token, of an endpoint made with tokens.
    fn token_buffer(&self) -> PyResult<TokenBuffer> {
        let none = || vmmc::TokenError::None { endpoint: self.name.clone() };
        let pool = self.tokens.as_ref().ok_or_else(none).map_err(raise)?;
        TokenBuffer::arm(pool)
    }

    /// A descriptor for event loops, of an endpoint made with notify: readable when poll may have
    /// something, and for ever when the node has gone.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.lock()?.as_ref().ok_or_else(ended)?.event_fd().map_err(raise)?.as_raw_fd())
    }

    /// The messages that are there.
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        self.poll(py)
    }

    /// Ends it and its connections; what was not taken is gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let endpoint = self.lock()?.take();
        py.detach(|| drop(endpoint));
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
        format!("<vmmc.Endpoint {:?}>", self.name)
    }
}

impl Connection {
    pub(crate) fn make(
        py: Python<'_>,
        session: &vmmc::Session,
        endpoint: &str,
        node: Option<&str>,
        owner: Option<u32>,
        time: Option<f64>,
    ) -> PyResult<Connection> {
        let mut builder = session.connect(endpoint);
        if let Some(node) = node {
            builder = builder.node(node);
        }
        if let Some(uid) = owner {
            builder = builder.owner(uid);
        }
        if let Some(time) = duration(time)? {
            builder = builder.wait(time);
        }
        let connection = wait(py, None, || builder.open())?;
        let payload_max = connection.payload_bytes_max();
        let inner = Detached::new(Mutex::new(Some(connection)));
        Ok(Connection { inner, endpoint: endpoint.to_string(), payload_max })
    }
}

#[pymethods]
impl Connection {
    /// Name of the endpoint.
    #[getter]
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Bytes of payload that one message can have: of all frames together.
    #[getter]
    fn payload_max(&self) -> u64 {
        self.payload_max
    }

    /// Sends a control message of up to 128 bytes, and a payload from memory of any kind; waits for
    /// room, unless `at_once`.
    #[pyo3(signature = (control, payload=None, *, at_once=false, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        control: &Bound<'_, PyAny>,
        payload: Option<&Bound<'_, PyAny>>,
        at_once: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (control, payload) = (Source::of(control)?, payload.map(Sources::of).transpose()?);
        let mut guard = lock(&self.inner, "connection")?;
        let connection = guard.as_mut().ok_or_else(closed)?;
        let parts = payload.as_ref().map_or(&[][..], |payload| &payload.list);
        let (control, payload) = (control.bytes(), Gather(parts));
        wait(py, timeout, || match at_once {
            true => connection.send_within(control, payload, Duration::ZERO),
            false => connection.send(control, payload),
        })
    }

    /// Sends a control message, and a payload from memory of any kind to the buffer of a token.
    #[pyo3(signature = (control, token, payload, *, at_once=false, timeout=None))]
    fn send_by_token(
        &self,
        py: Python<'_>,
        control: &Bound<'_, PyAny>,
        token: &Bound<'_, PyAny>,
        payload: &Bound<'_, PyAny>,
        at_once: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (control, token, payload) = (Source::of(control)?, token::parse(token)?, Sources::of(payload)?);
        let (control, payload) = (control.bytes(), Gather(&payload.list));
        let mut guard = lock(&self.inner, "connection")?;
        let connection = guard.as_mut().ok_or_else(closed)?;
        wait(py, timeout, || match at_once {
            true => connection.send_by_token_within(control, token, payload, Duration::ZERO),
            false => connection.send_by_token(control, token, payload),
        })
    }

    /// Raises what every send would raise, if the connection is broken.
    fn check(&self) -> PyResult<()> {
        let guard = lock(&self.inner, "connection")?;
        guard.as_ref().ok_or_else(closed)?.broken().map_or(Ok(()), |error| Err(raise(error)))
    }

    /// Messages sent that the owner has not taken yet, by what it says now; between nodes it is
    /// asked, which takes a round trip.
    #[pyo3(signature = (timeout=None))]
    fn outstanding(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let mut guard = lock(&self.inner, "connection")?;
        let connection = guard.as_mut().ok_or_else(closed)?;
        wait(py, timeout, || connection.outstanding())
    }

    /// Waits until all that was sent is visible to the owner, who may not have taken it yet.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let guard = lock(&self.inner, "connection")?;
        let connection = guard.as_ref().ok_or_else(closed)?;
        wait(py, timeout, || connection.flush())
    }

    /// Ends it. What it has sent is taken.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let connection = lock(&self.inner, "connection")?.take();
        py.detach(|| drop(connection));
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
        format!("<vmmc.Connection to {:?}>", self.endpoint)
    }
}

#[pymethods]
impl Message {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let payload = self.payload.as_ref().map_or(0, |frame| frame.get().len);
        Ok(format!("Message({}, payload={payload})", self.control.bind(py).repr()?))
    }
}

#[pymethods]
impl Frame {
    /// Bytes of the payload.
    fn __len__(&self) -> usize {
        self.len as usize
    }

    /// A copy of bytes of the payload; of all of it without arguments.
    #[pyo3(signature = (offset=None, length=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = natural_or_none)] offset: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let guard = lock(&self.inner, "frame")?;
        let gone = || exception(ErrorKind::Stale, "the payload was given back to its sender".into());
        let frame = guard.as_ref().ok_or_else(gone)?;
        let offset = offset.unwrap_or(0);
        let length = length.unwrap_or(self.len.saturating_sub(offset));
        let bytes = usize::try_from(length.min(self.len + 1)).expect("a frame is shorter");
        PyBytes::new_with(py, bytes, |into| frame.read(offset, into).map_err(raise))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, None, None)
    }

    /// Gives its memory back to the sender, as its end does.
    fn close(&self) -> PyResult<()> {
        lock(&self.inner, "frame")?.take();
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_reasons))]
    fn __exit__(&self, _reasons: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close()
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.Frame, {} bytes>", self.len)
    }
}
