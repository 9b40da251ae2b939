//! Exports.
//!
//! Invariant: the memory stays where it is as long as the object lives, also after the end of the
//! export: views of it never dangle.

use crate::arguments::{natural, natural_or_none, word, word_or_none};
use crate::buffer::Buffer;
use crate::bytes::{Source, Target};
use crate::errors::{drop_detached, exception, invalid, raise, wait, wait_holding};
use crate::memory::{Lent, Loan, give_view};
use crate::notification::{Handler, Notification, handler};
use crate::redirection::Redirection;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyString};
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{RwLock, RwLockReadGuard};
use vmmc::{Access, ErrorKind, ExportBuilder, Region, Revocation, Rights, Session};

/// Memory that others may import.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Export {
    /// None once it has ended.
    inner: RwLock<Option<vmmc::Export>>,
    id: u64,
    name: Option<String>,
    base: usize,
    len: u64,
    /// Keeps the memory for views. Before `lent`, which wants to be its last user.
    region: Option<Region>,
    lent: Option<Lent>,
}

/// What Python's keywords say.
pub(crate) struct ExportOptions<'a, 'py> {
    pub(crate) name: Option<String>,
    pub(crate) rights: Option<u8>,
    pub(crate) access: Option<&'a Bound<'py, PyAny>>,
    pub(crate) notify: bool,
    pub(crate) redirectable: bool,
    pub(crate) mappable: bool,
    pub(crate) copy: bool,
    pub(crate) share_edges: bool,
}

/// What a word must be; all that are given.
#[derive(Clone, Copy, Default)]
pub(crate) struct Condition {
    equal: Option<u64>,
    not_equal: Option<u64>,
    at_least: Option<u64>,
    at_most: Option<u64>,
    any_bit: Option<u64>,
}

impl Condition {
    /// The conditions that a caller gives by name.
    pub(crate) fn from_keywords(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Condition> {
        let mut condition = Condition::default();
        for (name, value) in keywords.into_iter().flatten() {
            let name = name.cast::<PyString>()?.to_cow()?.into_owned();
            let place = match name.as_str() {
                "equal" => &mut condition.equal,
                "not_equal" => &mut condition.not_equal,
                "at_least" => &mut condition.at_least,
                "at_most" => &mut condition.at_most,
                "any_bit" => &mut condition.any_bit,
                _ => {
                    return Err(PyTypeError::new_err(format!(
                        "{name:?} is no condition of a word; there are equal, not_equal, at_least, at_most, any_bit"
                    )));
                }
            };
            *place = word_or_none(&value)?;
        }
        Ok(condition)
    }

    pub(crate) fn holds(&self, word: u64) -> bool {
        self.equal.is_none_or(|v| word == v)
            && self.not_equal.is_none_or(|v| word != v)
            && self.at_least.is_none_or(|v| word >= v)
            && self.at_most.is_none_or(|v| word <= v)
            && self.any_bit.is_none_or(|v| word & v != 0)
    }
}

pub(crate) fn ended() -> PyErr {
    exception(ErrorKind::Stale, "the export has ended; export the memory anew".into())
}

pub(crate) fn rights(bits: u8) -> PyResult<Rights> {
    Rights::from_bits(bits)
        .ok_or_else(|| invalid(format!("the rights {bits:#x} have bits that mean nothing; use vmmc.Rights")))
}

fn range(offset: u64, len: u64) -> PyResult<Range<u64>> {
    let end = offset.checked_add(len).ok_or_else(|| invalid("offset and length exceed 64 bits"))?;
    Ok(offset..end)
}

pub(crate) fn access(value: &Bound<'_, PyAny>) -> PyResult<Access> {
    if let Ok(word) = value.cast::<PyString>() {
        return match &*word.to_cow()? {
            "same user" => Ok(Access::SameUser),
            "anyone" => Ok(Access::Anyone),
            other => Err(invalid(format!("access {other:?}: give \"same user\", \"anyone\" or a list of user ids"))),
        };
    }
    value.extract().map(Access::Users)
}

impl ExportOptions<'_, '_> {
    fn apply(self, builder: ExportBuilder) -> PyResult<ExportBuilder> {
        let mut builder = builder.notify(self.notify).redirectable(self.redirectable).mappable(self.mappable);
        if let Some(name) = &self.name {
            builder = builder.name(name);
        }
        if let Some(bits) = self.rights {
            builder = builder.rights(rights(bits)?);
        }
        if let Some(who) = self.access {
            builder = builder.access(access(who)?);
        }
        Ok(builder)
    }
}

impl Export {
    /// Exports a number of bytes, or an object's memory.
    pub(crate) fn make(session: &Session, what: &Bound<'_, PyAny>, options: ExportOptions<'_, '_>) -> PyResult<Export> {
        let py = what.py();
        if what.is_instance_of::<PyInt>() {
            let builder = options.apply(session.export(natural(what)?))?;
            return Ok(Export::new(wait(py, None, || builder.create())?, None));
        }
        if let Ok(buffer) = what.cast::<Buffer>() {
            let builder = options.apply(session.export_buffer(buffer.get().exportable()?))?;
            return Ok(Export::new(wait(py, None, || builder.create())?, None));
        }
        if options.copy {
            let bytes = Source::of(what)?.bytes().to_vec();
            let builder = options.apply(session.export_memory(bytes))?;
            return Ok(Export::new(wait(py, None, || builder.create())?, None));
        }
        let loan = Loan::of(what, options.share_edges)?;
        let builder = options.apply(session.export_memory(loan.memory()))?;
        let export = wait_holding(|| builder.create())?;
        let lent = loan.lent(export.region());
        Ok(Export::new(export, Some(lent)))
    }

    fn new(export: vmmc::Export, lent: Option<Lent>) -> Export {
        Export {
            id: export.id().to_u64(),
            name: export.name().map(str::to_string),
            base: export.as_ptr() as usize,
            len: export.len(),
            region: lent.is_none().then(|| export.region()),
            inner: RwLock::new(Some(export)),
            lent,
        }
    }

    pub(crate) fn lock(&self) -> RwLockReadGuard<'_, Option<vmmc::Export>> {
        self.inner.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn with<R>(&self, run: impl FnOnce(&vmmc::Export) -> PyResult<R>) -> PyResult<R> {
        run(self.lock().as_ref().ok_or_else(ended)?)
    }

    fn end(&self, py: Python<'_>, moving: bool) -> PyResult<&'static str> {
        let taken = match self.inner.try_write() {
            Ok(mut guard) => guard.take(),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(std::sync::TryLockError::WouldBlock) => {
                let why = "another thread waits on the export; let that end first";
                return Err(exception(ErrorKind::Busy, why.into()));
            }
        };
        let Some(export) = taken else {
            return Err(exception(ErrorKind::Stale, "the export has ended already".into()));
        };
        let run = || if moving { export.unexport_moving() } else { export.unexport() };
        // Pages that Python lent must not be written while they move.
        let ended = if self.lent.is_some() { wait_holding(run)? } else { wait(py, None, run)? };
        Ok(match ended {
            Revocation::Gate => "gate",
            Revocation::Moved => "moved",
        })
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        drop(self.region.take());
        if let Some(export) = inner {
            if self.lent.is_some() { drop(export) } else { drop_detached(export) }
        }
    }
}

#[pymethods]
impl Export {
    /// Id for importers.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// Name for importers.
    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether it is the memory of the object that was given, and not a copy.
    #[getter]
    fn in_place(&self) -> bool {
        self.lent.is_some()
    }

    /// Whether it has ended.
    #[getter]
    fn ended(&self) -> bool {
        self.lock().is_none()
    }

    fn __len__(&self) -> usize {
        self.len as usize
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Copies bytes out.
    #[pyo3(signature = (offset=0, len=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = natural_or_none)] len: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let len = len.unwrap_or(self.len.saturating_sub(offset));
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let why = format!("{len} bytes at offset {offset} reach past the end of {} bytes", self.len);
            return Err(exception(ErrorKind::OutOfBounds, why));
        }
        self.with(|export| PyBytes::new_with(py, len as usize, |into| export.read(offset, into).map_err(raise)))
    }

    /// Copies bytes out into a writable object.
    fn read_into(&self, #[pyo3(from_py_with = natural)] offset: u64, into: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut target = Target::of(into)?;
        self.with(|export| export.read(offset, target.bytes()).map_err(raise))
    }

    /// Copies bytes in; the last one becomes visible last.
    fn write(&self, #[pyo3(from_py_with = natural)] offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = Source::of(data)?;
        self.with(|export| export.write(offset, source.bytes()).map_err(raise))
    }

    /// An aligned 64-bit word; what was sent before it by the same process is then visible.
    fn load(&self, #[pyo3(from_py_with = natural)] offset: u64) -> PyResult<u64> {
        self.with(|export| Ok(export.word(offset).map_err(raise)?.load(Ordering::Acquire)))
    }

    /// Stores an aligned 64-bit word, after all that was stored before.
    fn store(
        &self,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = word)] value: u64,
    ) -> PyResult<()> {
        self.with(|export| {
            export.word(offset).map_err(raise)?.store(value, Ordering::Release);
            Ok(())
        })
    }

    /// Waits until an aligned word satisfies all conditions given.
    #[pyo3(signature = (offset, *, timeout=None, **condition))]
    fn wait_word(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        timeout: Option<f64>,
        condition: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let condition = Condition::from_keywords(condition)?;
        self.with(|export| wait(py, timeout, || export.wait_word(offset, |word| condition.holds(word))))
    }

    /// The next notification of this export, which must be made with notify=True.
    #[pyo3(signature = (timeout=None))]
    fn wait_notification(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Notification> {
        self.with(|export| Ok(wait(py, timeout, || export.wait_notification())?.into()))
    }

    /// A notification of this export if one is there.
    fn take_notification(&self) -> PyResult<Option<Notification>> {
        self.with(|export| Ok(export.take_notification().map(Into::into)))
    }

    /// Calls a function on a thread of its own for every notification of this export.
    fn on_notification(&self, function: Bound<'_, PyAny>) -> PyResult<Handler> {
        if !function.is_callable() {
            return Err(invalid("the handler cannot be called; pass a function that takes a notification"));
        }
        let handler = handler(function.unbind());
        self.with(|export| Ok(Handler::new(export.on_notification(handler).map_err(raise)?)))
    }

    /// Notifications of this export queue up and are not delivered, until they are unblocked.
    fn block_notifications(&self) -> PyResult<()> {
        self.with(|export| {
            export.block_notifications();
            Ok(())
        })
    }

    /// What has queued is delivered.
    fn unblock_notifications(&self) -> PyResult<()> {
        self.with(|export| {
            export.unblock_notifications();
            Ok(())
        })
    }

    /// Lets data that comes to a range go to a buffer instead.
    #[pyo3(signature = (offset, len, to, to_offset=0))]
    fn redirect(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = natural)] len: u64,
        to: &Bound<'_, Buffer>,
        #[pyo3(from_py_with = natural)] to_offset: u64,
    ) -> PyResult<Redirection> {
        let (range, buffer) = (range(offset, len)?, &to.get().inner);
        let post = |export: &vmmc::Export| wait(py, None, || export.redirect(range, buffer, to_offset));
        Ok(Redirection::new(self.with(post)?, to.clone().unbind()))
    }

    /// As redirect, but does not wait for the node.
    #[pyo3(signature = (offset, len, to, to_offset=0))]
    fn post_redirect(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = natural)] len: u64,
        to: &Bound<'_, Buffer>,
        #[pyo3(from_py_with = natural)] to_offset: u64,
    ) -> PyResult<Redirection> {
        let (range, buffer) = (range(offset, len)?, &to.get().inner);
        let post = |export: &vmmc::Export| wait(py, None, || export.post_redirect(range, buffer, to_offset));
        Ok(Redirection::new(self.with(post)?, to.clone().unbind()))
    }

    /// The data in this range has been used; the next arrival counts as new.
    fn consume(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = natural)] len: u64,
    ) -> PyResult<()> {
        let range = range(offset, len)?;
        self.with(|export| wait(py, None, || export.consume(range)))
    }

    /// Ends the export; says how importers were kept out: "gate" or "moved".
    #[pyo3(signature = (*, moving=false))]
    fn unexport(&self, py: Python<'_>, moving: bool) -> PyResult<&'static str> {
        self.end(py, moving)
    }

    /// The memory as a NumPy array without a copy.
    #[pyo3(signature = (dtype=None, shape=None, offset=0))]
    fn array<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
        #[pyo3(from_py_with = natural)] offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, shape, offset)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_reasons))]
    fn __exit__(&self, py: Python<'_>, _reasons: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        if self.lock().is_some() { self.end(py, false).map(drop) } else { Ok(()) }
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = (slf.get().base as *mut u8, slf.get().len as usize);
        // SAFETY: the view is the interpreter's; the object holds the region.
        unsafe { give_view(slf.into_any(), view, flags, memory, false) }
    }

    fn __repr__(&self) -> String {
        let name = self.name.as_ref().map_or_else(|| format!("id {:#x}", self.id), |name| format!("{name:?}"));
        let state = if self.lock().is_none() { ", ended" } else { "" };
        format!("<vmmc.Export {name}, {} bytes{state}>", self.len)
    }
}

/// A view of an object as a NumPy array.
pub(crate) fn array<'py>(
    object: &Bound<'py, PyAny>,
    dtype: Option<Bound<'py, PyAny>>,
    shape: Option<Bound<'py, PyAny>>,
    offset: u64,
) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("vmmc._arrays")?.call_method1("array", (object, dtype, shape, offset))
}
