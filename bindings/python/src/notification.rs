//! Notifications and their handlers.
//!
//! Invariant: a handler runs on a thread of its own with the interpreter's lock; what it raises is
//! reported as unraisable and does not end it.

use crate::errors::drop_detached;
use pyo3::prelude::*;
use std::sync::Mutex;
use vmmc::HandlerGuard;

/// A sender says: data has come.
#[pyclass(module = "vmmc", frozen, get_all, eq)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notification {
    /// The export that received data.
    export_id: u64,
    /// First byte of the transfer.
    offset: u64,
    /// Its bytes.
    len: u64,
    /// Its last (up to) eight bytes, little endian.
    last_word: u64,
    /// The word that its sender put in; else 0.
    word: u64,
    /// Who sent it: the session with its node (0: this node), the process there, its import. Equal
    /// for all that came through one import; `Session.node_of` names the node.
    sender: (u32, u32, u64),
}

impl From<vmmc::Notification> for Notification {
    fn from(n: vmmc::Notification) -> Notification {
        Notification {
            export_id: n.export.to_u64(),
            offset: n.offset,
            len: n.len,
            last_word: n.last_word,
            word: n.word,
            sender: (n.from.session, n.from.process.0, n.from.import.to_u64()),
        }
    }
}

#[pymethods]
impl Notification {
    fn __repr__(&self) -> String {
        let Notification { export_id, offset, len, last_word, word, .. } = self;
        let export = vmmc::ExportId::from_u64(*export_id);
        let word = if *word == 0 { String::new() } else { format!(", word={word:#x}") };
        format!("Notification(export {export}, offset={offset}, len={len}, last_word={last_word:#x}{word})")
    }
}

/// A notification handler, until it is closed.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Handler(Mutex<Option<HandlerGuard>>);

impl Handler {
    pub(crate) fn new(guard: HandlerGuard) -> Handler {
        Handler(Mutex::new(Some(guard)))
    }

    fn end(&self) {
        let guard = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(guard) = guard {
            // The handler may be waiting for the interpreter's lock.
            drop_detached(guard);
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.end();
    }
}

#[pymethods]
impl Handler {
    /// Ends it, after the call it is in.
    fn close(&self) {
        self.end();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_reasons))]
    fn __exit__(&self, _reasons: &Bound<'_, pyo3::types::PyTuple>) {
        self.end();
    }
}

/// A Python function as the library calls it.
pub(crate) fn handler(function: Py<PyAny>) -> impl FnMut(vmmc::Notification) + Send + 'static {
    move |notification| {
        // An interpreter that is being taken down runs no more handlers.
        let _ = Python::try_attach(|py| {
            if let Err(error) = function.call1(py, (Notification::from(notification),)) {
                error.write_unraisable(py, Some(function.bind(py)));
            }
        });
    }
}
