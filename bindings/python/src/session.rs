//! Sessions.
//!
//! Invariant: every call that asks the node waits without the interpreter's lock.

use crate::arguments::{natural, natural_or_none, rights_or_none};
use crate::buffer::Buffer;
use crate::bytes::{Source, Target};
use crate::continuations::Continuations;
use crate::endpoint::{Connection, Endpoint, EndpointOptions};
use crate::errors::{duration, invalid, raise, wait};
use crate::export::{self, Export, ExportOptions};
use crate::import::{Import, ImportOptions};
use crate::notification::{Handler, Notification, handler};
use crate::pinned::{Lent, PinnedTable};
use crate::ring::Ring;
use crate::wait_any;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::os::fd::AsRawFd;
use vmmc::{ExportId, ImportId, ProcessId, Sender};

/// A process's attachment to its node.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Session {
    pub(crate) inner: vmmc::Session,
}

/// Attaches to the user's node.
#[pyfunction]
#[pyo3(signature = (node=None, *, start=true, timeout=None))]
pub(crate) fn attach(py: Python<'_>, node: Option<&str>, start: bool, timeout: Option<f64>) -> PyResult<Session> {
    let mut builder = vmmc::Session::builder().start_node(start);
    if let Some(node) = node {
        builder = builder.node(node);
    }
    if let Some(timeout) = duration(timeout)? {
        builder = builder.timeout(timeout);
    }
    Ok(Session { inner: wait(py, None, || builder.attach())? })
}

/// JSON as Python has it.
pub(crate) fn from_json<'py>(py: Python<'py>, json: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (json,))
}

pub(crate) fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("descriptions have no maps with odd keys")
}

#[pymethods]
impl Session {
    /// Exports new memory (a number of bytes) or a writable object's.
    #[pyo3(signature = (what, *, name=None, rights=None, access=None, notify=false, redirectable=false, mappable=true, copy=false, share_edges=false))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn export(
        &self,
        what: &Bound<'_, PyAny>,
        name: Option<String>,
        #[pyo3(from_py_with = rights_or_none)] rights: Option<u8>,
        access: Option<&Bound<'_, PyAny>>,
        notify: bool,
        redirectable: bool,
        mappable: bool,
        copy: bool,
        share_edges: bool,
    ) -> PyResult<Export> {
        let options = ExportOptions { name, rights, access, notify, redirectable, mappable, copy, share_edges };
        Export::make(&self.inner, what, options)
    }

    /// A ring for so many bytes of records, 32 beside the data of each.
    #[pyo3(signature = (bytes, *, name=None, access=None, notify=false))]
    fn ring(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] bytes: u64,
        name: Option<&str>,
        access: Option<&Bound<'_, PyAny>>,
        notify: bool,
    ) -> PyResult<Ring> {
        let mut builder = self.inner.ring(bytes).notify(notify);
        if let Some(name) = name {
            builder = builder.name(name);
        }
        if let Some(who) = access {
            builder = builder.access(export::access(who)?);
        }
        Ok(Ring::new(wait(py, None, || builder.create())?))
    }

    /// An endpoint, to which others connect and send messages.
    #[pyo3(signature = (name, *, frames=None, frame_bytes=None, tokens=None, token_bytes=None, access=None, notify=false, mappable=true))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn endpoint(
        &self,
        py: Python<'_>,
        name: &str,
        #[pyo3(from_py_with = natural_or_none)] frames: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] frame_bytes: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] tokens: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] token_bytes: Option<u64>,
        access: Option<&Bound<'_, PyAny>>,
        notify: bool,
        mappable: bool,
    ) -> PyResult<Endpoint> {
        let (frames, frame_bytes) = (frames.unwrap_or(0), frame_bytes.unwrap_or(4096));
        let tokens = tokens.map(|count| (count, token_bytes.unwrap_or(64 << 10)));
        let options = EndpointOptions { frames, frame_bytes, tokens, access, notify, mappable };
        Endpoint::make(py, &self.inner, name, options)
    }

    /// Connects to an endpoint, whose owner has to poll or wait meanwhile.
    #[pyo3(signature = (endpoint, *, node=None, owner=None, wait=None))]
    fn connect(
        &self,
        py: Python<'_>,
        endpoint: &str,
        node: Option<&str>,
        #[pyo3(from_py_with = natural_or_none)] owner: Option<u32>,
        wait: Option<f64>,
    ) -> PyResult<Connection> {
        Connection::make(py, &self.inner, endpoint, node, owner, wait)
    }

    /// Imports by name (a string) or id (a number).
    #[pyo3(signature = (what, *, node=None, owner=None, rights=None, wait=None, own_order=false))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn import_(
        &self,
        py: Python<'_>,
        what: &Bound<'_, PyAny>,
        node: Option<&str>,
        owner: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = rights_or_none)] rights: Option<u8>,
        wait: Option<f64>,
        own_order: bool,
    ) -> PyResult<Import> {
        let builder = if let Ok(name) = what.cast::<PyString>() {
            self.inner.import(&name.to_cow()?)
        } else {
            self.inner.import_id(ExportId::from_u64(natural(what)?))
        };
        Import::make(py, builder, ImportOptions { node, owner, rights, wait, own_order })
    }

    /// Registers new memory (a number of bytes), a writable object's, or that of an export.
    #[pyo3(signature = (what, *, share_edges=false))]
    fn buffer(&self, what: &Bound<'_, PyAny>, share_edges: bool) -> PyResult<Buffer> {
        Buffer::make(&self.inner, what, share_edges)
    }

    /// Name of the node.
    #[getter]
    fn node(&self) -> &str {
        &self.inner.node().name
    }

    /// UDP addresses that the node listens on.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.inner.node().listen.clone()
    }

    /// Id of this process on its node.
    #[getter]
    fn process_id(&self) -> u32 {
        self.inner.process_id()
    }

    /// Whether the node is still there, as far as is known without asking it.
    #[getter]
    fn alive(&self) -> bool {
        self.inner.is_alive()
    }

    /// Default of all waits, seconds.
    #[getter]
    fn timeout(&self) -> f64 {
        self.inner.timeout().as_secs_f64()
    }

    /// Bounds of the session, for programs that plan.
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let limits = self.inner.limits();
        let dict = PyDict::new(py);
        dict.set_item("inline_bytes", limits.inline_bytes)?;
        dict.set_item("transfers", limits.transfers)?;
        dict.set_item("exports", limits.exports)?;
        dict.set_item("redirections", limits.redirections)?;
        dict.set_item("lanes", limits.lanes)?;
        dict.set_item("notifications_queued", limits.notifications_queued)?;
        dict.set_item("export_bytes", limits.export_bytes)?;
        Ok(dict)
    }

    /// What the session has done so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, &to_json(&self.inner.stats()))
    }

    /// Description of the node; with details its exports, imports and processes too.
    #[pyo3(signature = (details=false, *, timeout=None))]
    fn node_info<'py>(&self, py: Python<'py>, details: bool, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let info = wait(py, timeout, || self.inner.node_info(details))?;
        from_json(py, &to_json(&info))
    }

    /// Round trip to another node, by name or address:port, seconds.
    #[pyo3(signature = (node, *, timeout=None))]
    fn ping(&self, py: Python<'_>, node: &str, timeout: Option<f64>) -> PyResult<f64> {
        let time = duration(timeout)?.unwrap_or(self.inner.timeout());
        Ok(wait(py, timeout, || self.inner.ping(node, time))?.as_secs_f64())
    }

    /// Name of the node of a notification's sender; None if the session with it has ended.
    fn node_of(&self, py: Python<'_>, sender: (u32, u32, u64)) -> PyResult<Option<String>> {
        let (session, process, import) = sender;
        let from = Sender { session, process: ProcessId(process), import: ImportId::from_u64(import) };
        wait(py, None, || self.inner.node_of(from))
    }

    /// Makes the node know a peer; several addresses are several paths to it.
    fn add_peer(&self, py: Python<'_>, addresses: Vec<String>) -> PyResult<()> {
        wait(py, None, || self.inner.add_peer(&addresses))
    }

    /// Ends the node, for all its processes.
    fn stop_node(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, None, || self.inner.stop_node())
    }

    /// Leaves the node at once: exports end, later calls fail. Views of memory stay.
    fn leave(&self, py: Python<'_>) {
        py.detach(|| self.inner.leave());
    }

    /// Runs an embedded node once.
    fn step(&self, py: Python<'_>) {
        py.detach(|| self.inner.step());
    }

    /// The next notification of any export without a handler of its own.
    #[pyo3(signature = (timeout=None))]
    fn wait_notification(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Notification> {
        Ok(wait(py, timeout, || self.inner.wait_notification())?.into())
    }

    /// Waits for the first of several things; gives its place among them.
    #[pyo3(signature = (what, timeout=None))]
    fn wait_any(&self, what: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<usize> {
        wait_any::wait_any(&self.inner, what, timeout)
    }

    /// Functions for the ends of transfers of this session.
    fn continuations(&self) -> Continuations {
        Continuations::new(&self.inner)
    }

    /// A notification if one is there.
    fn take_notification(&self) -> Option<Notification> {
        self.inner.take_notification().map(Into::into)
    }

    /// Calls a function on a thread of its own for every notification of exports without a handler
    /// of their own.
    fn on_notification(&self, function: Bound<'_, PyAny>) -> PyResult<Handler> {
        if !function.is_callable() {
            return Err(invalid("the handler cannot be called; pass a function that takes a notification"));
        }
        Ok(Handler::new(self.inner.on_notification(handler(function.unbind())).map_err(raise)?))
    }

    /// Notifications queue up and are not delivered, until they are unblocked.
    fn block_notifications(&self) {
        self.inner.block_notifications();
    }

    /// What has queued is delivered.
    fn unblock_notifications(&self) {
        self.inner.unblock_notifications();
    }

    /// An object's memory that stays where it is as long as the result lives: sends of it ask
    /// nobody whether it does.
    fn lend(&self, memory: &Bound<'_, PyAny>) -> PyResult<Lent> {
        Ok(Lent::new(&self.inner, Source::of(memory)?))
    }

    /// A table of translations that the program places itself.
    fn pinned_table(&self, #[pyo3(from_py_with = natural)] entries: u32) -> PyResult<PinnedTable> {
        self.inner.pinned_table(entries).map(PinnedTable::new).map_err(raise)
    }

    /// Ends the pinning of an object's memory.
    fn forget(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut target = Target::of(memory)?;
        let bytes = target.bytes();
        wait(py, None, || self.inner.forget(bytes))
    }

    /// A descriptor for event loops: readable when take_notification may have something, and for
    /// ever when the node has gone (alive says so). See vmmc.aio.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.inner.event_fd().map_err(raise)?.as_raw_fd())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_reasons))]
    fn __exit__(&self, py: Python<'_>, _reasons: &Bound<'_, pyo3::types::PyTuple>) {
        py.detach(|| self.inner.leave());
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.Session process {} on node {:?}>", self.inner.process_id(), self.inner.node().name)
    }
}
