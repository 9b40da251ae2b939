//! Imports and bindings.
//!
//! Invariant: a transfer that cannot wait runs under the interpreter's lock when it is short; all
//! others run without it.

use crate::arguments::{natural, natural_or_none, pairs, word};
use crate::bytes::{Source, Target};
use crate::errors::{Detached, duration, exception, invalid, raise, wait};
use crate::export::{array, rights};
use crate::memory::give_view;
use crate::session::{from_json, to_json};
use crate::source::{Held, Sources, Targets, is_plain};
use crate::transfer::{Moving, Transfer};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;
use vmmc::{
    AppendOptions, BindOptions, ErrorKind, Gather, ImportBuilder, NotMapped, Path, Rights, Scatter, SendOptions,
};

/// Bytes up to which a copy is over before another thread would have got the interpreter's lock.
const SHORT_BYTES: usize = 32 << 10;

/// Access to another process's export.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Import {
    inner: Detached<Arc<vmmc::Import>>,
    mapped: bool,
}

/// What Python's keywords say.
pub(crate) struct ImportOptions<'a> {
    pub(crate) node: Option<&'a str>,
    /// A user id, or "any".
    pub(crate) owner: Option<&'a Bound<'a, PyAny>>,
    pub(crate) rights: Option<u8>,
    pub(crate) wait: Option<f64>,
    pub(crate) own_order: bool,
}

fn send_options(notify: bool, word: Option<u64>, counter: Option<u64>) -> SendOptions {
    SendOptions { notify: word.or(notify.then_some(0)), counter, timeout: None }
}

/// Offsets, and views of the objects beside them.
fn views(pieces: &[(Bound<'_, PyAny>, Bound<'_, PyAny>)]) -> PyResult<Vec<(u64, Source)>> {
    pieces.iter().map(|(offset, data)| Ok((natural(offset)?, Source::of(data)?))).collect()
}

fn ranges(list: Vec<(u64, u64)>) -> Vec<Range<u64>> {
    list.into_iter().map(|(offset, len)| offset..offset.saturating_add(len)).collect()
}

impl Import {
    pub(crate) fn make(py: Python<'_>, builder: ImportBuilder, options: ImportOptions<'_>) -> PyResult<Import> {
        let mut builder = builder;
        if let Some(node) = options.node {
            builder = builder.node(node);
        }
        if let Some(owner) = options.owner {
            builder = match owner.extract::<u32>() {
                Ok(uid) => builder.owner(uid),
                Err(_) if owner.extract::<&str>().is_ok_and(|text| text == "any") => builder.any_owner(),
                Err(_) => return Err(invalid(format!("the owner {owner} is neither a user id nor \"any\""))),
            };
        }
        if let Some(bits) = options.rights {
            builder = builder.rights(rights(bits)?);
        }
        if let Some(time) = duration(options.wait)? {
            builder = builder.wait(time);
        }
        if options.own_order {
            builder = builder.own_order();
        }
        let import = wait(py, None, || builder.open())?;
        let mapped = import.explain().path == Path::Mapped;
        Ok(Import { inner: Detached::new(Arc::new(import)), mapped })
    }

    fn import(&self) -> &vmmc::Import {
        &self.inner
    }

    fn send_bytes(
        &self,
        py: Python<'_>,
        offset: u64,
        data: &[u8],
        options: SendOptions,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let import = self.import();
        if self.mapped && data.len() <= SHORT_BYTES {
            return import.send_with(offset, data, options).map_err(raise);
        }
        wait(py, timeout, || import.send_with(offset, data, options))
    }

    fn atomic(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        run: impl FnOnce(&vmmc::Import) -> Result<u64, vmmc::TransferError> + Send,
    ) -> PyResult<u64> {
        let import = self.import();
        if self.mapped { run(import).map_err(raise) } else { wait(py, timeout, || run(import)) }
    }
}

#[pymethods]
impl Import {
    fn __len__(&self) -> usize {
        self.import().len() as usize
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Rights granted, as vmmc.Rights.
    #[getter]
    fn rights(&self) -> u8 {
        self.import().rights().bits()
    }

    /// What this process moved through it by copies of its own, as a dict; all 0 if it is not
    /// mapped.
    #[getter]
    fn moved<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, &to_json(&self.import().moved()))
    }

    /// Its id in this process: the last part of what a receiver finds as sender of a notification.
    #[getter]
    fn id(&self) -> u64 {
        self.import().id().to_u64()
    }

    /// Id of the export behind it.
    #[getter]
    fn export_id(&self) -> u64 {
        self.import().export_id().to_u64()
    }

    /// User id of the exporting process, as its node says.
    #[getter]
    fn owner(&self) -> u32 {
        self.import().owner()
    }

    /// Name of the exporting node.
    #[getter]
    fn node(&self) -> &str {
        self.import().node()
    }

    /// How its transfers go.
    #[getter]
    fn path(&self) -> String {
        self.import().explain().path.to_string()
    }

    /// Which path its transfers take, and why not a better one.
    fn explain(&self) -> String {
        self.import().explain().to_string()
    }

    /// The same for programs.
    fn explanation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, &to_json(&self.import().explain()))
    }

    /// Raises what every transfer would raise, if the import can no longer be used.
    fn check(&self) -> PyResult<()> {
        self.import().broken().map_or(Ok(()), |error| Err(raise(error)))
    }

    /// Deliberate update: sends the source to the export. notify tells the receiver, and so does
    /// word, a number that the notification carries; counter is the offset of a word that grows by
    /// one after the data.
    #[pyo3(signature = (offset, source, *, notify=false, word=None, counter=None, timeout=None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn send(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        source: &Bound<'_, PyAny>,
        notify: bool,
        #[pyo3(from_py_with = natural_or_none)] word: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] counter: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let options = send_options(notify, word, counter);
        if is_plain(source) {
            return self.send_bytes(py, offset, Source::of(source)?.bytes(), options, timeout);
        }
        let (sources, import) = (Sources::of(source)?, self.import());
        let list = &sources.list[..];
        wait(py, timeout, || match list {
            [] => import.send_with(offset, &[], options),
            [one] => import.send_with(offset, one.clone(), options),
            several => import.send_with(offset, Gather(several), options),
        })
    }

    /// Posts a send: does not wait. What is no copy is held until the transfer has gone.
    #[pyo3(signature = (offset, source, *, notify=false, word=None, counter=None, timeout=None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn post_send(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        source: &Bound<'_, PyAny>,
        notify: bool,
        #[pyo3(from_py_with = natural_or_none)] word: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] counter: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let options = send_options(notify, word, counter);
        let (sources, import) = (Sources::of(source)?, self.import());
        let list = &sources.list[..];
        let send = wait(py, timeout, || match list {
            [] => import.post_send(offset, &[], options),
            [one] => import.post_send(offset, one.clone(), options),
            several => import.post_send(offset, Gather(several), options),
        })?;
        Ok(Transfer::new(Moving::Send(send), sources.held))
    }

    /// Sends pieces, pairs of offset and bytes, each to its own place in the export, in one
    /// operation with one notification.
    #[pyo3(signature = (pieces, *, notify=false, word=None, counter=None, timeout=None))]
    fn gather_send(
        &self,
        py: Python<'_>,
        pieces: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        notify: bool,
        #[pyo3(from_py_with = natural_or_none)] word: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] counter: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (views, import) = (views(&pieces)?, self.import());
        let pieces: Vec<(u64, &[u8])> = views.iter().map(|(offset, view)| (*offset, view.bytes())).collect();
        wait(py, timeout, || import.gather_send(&pieces, send_options(notify, word, counter)))
    }

    /// Posts a gather-send: does not wait; the data is copied.
    #[pyo3(signature = (pieces, *, notify=false, word=None, counter=None, timeout=None))]
    fn post_gather_send(
        &self,
        py: Python<'_>,
        pieces: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        notify: bool,
        #[pyo3(from_py_with = natural_or_none)] word: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] counter: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let (views, import) = (views(&pieces)?, self.import());
        let pieces: Vec<(u64, &[u8])> = views.iter().map(|(offset, view)| (*offset, view.bytes())).collect();
        let send = wait(py, timeout, || import.post_gather_send(&pieces, send_options(notify, word, counter)))?;
        Ok(Transfer::new(Moving::Send(send), Held::default()))
    }

    /// Appends a record of up to 512 bytes to a ring; while the ring has no room it tries again,
    /// unless at_once. word stands in the record.
    #[pyo3(signature = (data=None, *, word=0, notify=false, at_once=false, timeout=None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn append(
        &self,
        py: Python<'_>,
        data: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = natural)] word: u64,
        notify: bool,
        at_once: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (source, import) = (data.map(Source::of).transpose()?, self.import());
        let bytes = source.as_ref().map_or(&[][..], Source::bytes);
        let options = AppendOptions { word, notify, timeout: None };
        let append = || if at_once { import.try_append(bytes, options) } else { import.append(bytes, options) };
        wait(py, timeout, append)
    }

    /// Posts an append: does not wait, and tries once. When one finds no room, those posted behind
    /// it find none either, until wait or poll has said so or the transfer has gone.
    #[pyo3(signature = (data=None, *, word=0, notify=false, timeout=None))]
    fn post_append(
        &self,
        py: Python<'_>,
        data: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = natural)] word: u64,
        notify: bool,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let (source, import) = (data.map(Source::of).transpose()?, self.import());
        let bytes = source.as_ref().map_or(&[][..], Source::bytes);
        let options = AppendOptions { word, notify, timeout: None };
        let append = wait(py, timeout, || import.post_append(bytes, options))?;
        Ok(Transfer::new(Moving::Send(append), Held::default()))
    }

    /// Fetches bytes.
    #[pyo3(signature = (offset, len, *, timeout=None))]
    fn fetch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = natural)] len: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let import = self.import();
        if offset.checked_add(len as u64).is_none_or(|end| end > import.len()) {
            let why = format!("{len} bytes at offset {offset} reach past the {} bytes of the import", import.len());
            return Err(exception(ErrorKind::OutOfBounds, why));
        }
        PyBytes::new_with(py, len, |into| {
            if self.mapped && into.len() <= SHORT_BYTES {
                return import.fetch(offset, into).map_err(raise);
            }
            wait(py, timeout, || import.fetch(offset, into))
        })
    }

    /// Fetches into a target.
    #[pyo3(signature = (offset, target, *, timeout=None))]
    fn fetch_into(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        target: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let import = self.import();
        if is_plain(target) {
            let mut target = Target::of(target)?;
            let bytes = target.bytes();
            if self.mapped && bytes.len() <= SHORT_BYTES {
                return import.fetch(offset, bytes).map_err(raise);
            }
            return wait(py, timeout, || import.fetch(offset, bytes));
        }
        let mut targets = Targets::of(target)?;
        let list = &mut targets.list;
        wait(py, timeout, || import.fetch(offset, Scatter(list)))
    }

    /// Posts a fetch into a target: does not wait. The target is held until the transfer has gone.
    #[pyo3(signature = (offset, target, *, timeout=None))]
    fn post_fetch(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        target: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Transfer> {
        let (Targets { list, held }, import) = (Targets::of(target)?, self.import());
        let fetch = wait(py, timeout, || import.post_fetch(offset, list))?;
        Ok(Transfer::new(Moving::Fetch(fetch), held))
    }

    /// Adds to an aligned 64-bit word; gives the old value.
    #[pyo3(signature = (offset, value, *, timeout=None))]
    fn fetch_add(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = word)] value: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.atomic(py, timeout, |import| import.fetch_add(offset, value))
    }

    /// Stores a value in an aligned 64-bit word if it is the expected one; gives the old value.
    #[pyo3(signature = (offset, expected, desired, *, timeout=None))]
    fn compare_swap(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = word)] expected: u64,
        #[pyo3(from_py_with = word)] desired: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.atomic(py, timeout, |import| import.compare_swap(offset, expected, desired))
    }

    /// Stores a value in an aligned 64-bit word; gives the old value.
    #[pyo3(signature = (offset, value, *, timeout=None))]
    fn swap(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] offset: u64,
        #[pyo3(from_py_with = word)] value: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.atomic(py, timeout, |import| import.swap(offset, value))
    }

    /// Fetches several ranges into consecutive bytes.
    #[pyo3(signature = (ranges, *, timeout=None))]
    fn fetch_gather<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = pairs)] ranges: Vec<(u64, u64)>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let import = self.import();
        if let Some((offset, len)) = ranges.iter().find(|(o, l)| o.checked_add(*l).is_none_or(|end| end > import.len()))
        {
            let why = format!("{len} bytes at offset {offset} reach past the {} bytes of the import", import.len());
            return Err(exception(ErrorKind::OutOfBounds, why));
        }
        let total = ranges.iter().map(|(_, len)| *len as usize).sum();
        let ranges = self::ranges(ranges);
        PyBytes::new_with(py, total, |into| wait(py, timeout, || import.fetch_gather(&ranges, into)))
    }

    /// Returns when all that this process sent before is in memory there; raises the error of an
    /// earlier send that failed after it had returned.
    #[pyo3(signature = (*, timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let import = self.import();
        wait(py, timeout, || import.flush())
    }

    /// Binds it for automatic update.
    #[pyo3(signature = (*, combining=false))]
    fn bind(&self, py: Python<'_>, combining: bool) -> PyResult<Binding> {
        let import: Arc<vmmc::Import> = self.inner.clone();
        let base = {
            let import = &*import;
            wait(py, None, || import.bind(BindOptions { combining }).map(|binding| binding.as_ptr() as usize))?
        };
        Ok(Binding { import: Detached::new(import), base })
    }

    /// The mapped memory as a read-only NumPy array without a copy.
    #[pyo3(signature = (dtype=None, shape=None, offset=0))]
    fn array<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
        #[pyo3(from_py_with = natural)] offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().view()?;
        array(slf.as_any(), dtype, shape, offset)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get().view()?;
        // SAFETY: the view is the interpreter's; the object holds the import, which holds the
        // mapping.
        unsafe { give_view(slf.into_any(), view, flags, memory, true) }
    }

    fn __repr__(&self) -> String {
        let explanation = self.import().explain();
        let state = if explanation.broken.is_some() { ", broken" } else { "" };
        format!("<vmmc.Import {}, {} bytes, {}{state}>", explanation.import, explanation.len, explanation.path)
    }
}

impl Import {
    /// The mapped memory.
    fn view(&self) -> PyResult<(*mut u8, usize)> {
        let import = self.import();
        match import.as_ptr().filter(|_| import.rights().contains(Rights::READ)) {
            Some(base) => Ok((base.cast_mut(), import.len() as usize)),
            None => {
                let why = import.explain().not_mapped.unwrap_or(NotMapped::NotAllowed);
                let why =
                    format!("import {} has no memory to look at, because {why}; use fetch", import.explain().import);
                Err(exception(ErrorKind::NotMapped, why))
            }
        }
    }
}

/// An import bound for automatic update: stores to views of it appear in the export.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Binding {
    import: Detached<Arc<vmmc::Import>>,
    base: usize,
}

impl Binding {
    fn import(&self) -> &vmmc::Import {
        &self.import
    }
}

#[pymethods]
impl Binding {
    fn __len__(&self) -> usize {
        self.import().len() as usize
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Whether the export still exists.
    #[getter]
    fn is_open(&self) -> bool {
        self.import().broken().is_none()
    }

    /// Returns when all stores so far are in the export's memory; raises if the export has ended.
    #[pyo3(signature = (*, timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let import = self.import();
        wait(py, timeout, || import.flush())
    }

    /// The export's memory as a writable NumPy array without a copy.
    #[pyo3(signature = (dtype=None, shape=None, offset=0))]
    fn array<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
        #[pyo3(from_py_with = natural)] offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, shape, offset)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = (slf.get().base as *mut u8, slf.get().import().len() as usize);
        // SAFETY: the view is the interpreter's; the object holds the import, which holds the
        // mapping.
        unsafe { give_view(slf.into_any(), view, flags, memory, false) }
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.Binding of {}>", self.import().explain().import)
    }
}
