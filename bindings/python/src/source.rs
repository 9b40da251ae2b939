//! What Python sends from and fetches into, of every kind.
//!
//! Invariant: what names memory goes before what holds it: the view of an object, a lent object, a
//! table that counts its users and cannot be changed meanwhile.

use crate::buffer::Buffer;
use crate::bytes::{Source, Target};
use crate::errors::invalid;
use crate::pinned::{Lent, PinnedTable, TableUser};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::ops::Range;
use vmmc::{AnySource, AnyTarget};

/// Any object's memory, named by its address: its whole pages are pinned at first use.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Pinned(Py<PyAny>);

#[pymethods]
impl Pinned {
    #[new]
    fn new(memory: Py<PyAny>) -> Pinned {
        Pinned(memory)
    }
}

/// A part of registered memory.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct BufferRange {
    pub(crate) buffer: vmmc::Buffer,
    pub(crate) range: Range<u64>,
}

/// A part of a lent object.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct LentRange {
    pub(crate) lent: Py<Lent>,
    pub(crate) range: Range<usize>,
}

/// Bytes that stand in a table.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct TableRange {
    pub(crate) table: Py<PinnedTable>,
    pub(crate) index: u32,
    pub(crate) range: Range<usize>,
}

/// What keeps memory where it is.
#[derive(Default)]
pub(crate) struct Held {
    _views: Vec<View>,
    users: Vec<TableUser>,
    _lent: Vec<Py<Lent>>,
}

#[allow(dead_code, reason = "held only to keep the memory")]
enum View {
    Source(Source),
    Target(Target),
}

impl Held {
    /// Nothing reads from a table any more.
    pub(crate) fn let_tables_go(&mut self) {
        self.users.clear();
    }
}

/// Sources, one after the other.
pub(crate) struct Sources {
    // Goes before what it names.
    pub(crate) list: Vec<AnySource<'static>>,
    pub(crate) held: Held,
}

/// Targets, one after the other.
pub(crate) struct Targets {
    // Goes before what it names.
    pub(crate) list: Vec<AnyTarget<'static>>,
    pub(crate) held: Held,
}

/// An object as its parts: a list or a tuple has several.
fn parts<'py>(object: &Bound<'py, PyAny>) -> Vec<Bound<'py, PyAny>> {
    if let Ok(list) = object.cast::<PyList>() {
        return list.iter().collect();
    }
    object.cast::<PyTuple>().map_or_else(|_| vec![object.clone()], |tuple| tuple.iter().collect())
}

/// Whether it is an object with the buffer protocol and nothing of ours.
pub(crate) fn is_plain(object: &Bound<'_, PyAny>) -> bool {
    let ours = object.is_instance_of::<Buffer>()
        || object.is_instance_of::<Pinned>()
        || object.is_instance_of::<BufferRange>()
        || object.is_instance_of::<Lent>()
        || object.is_instance_of::<LentRange>()
        || object.is_instance_of::<TableRange>();
    !ours && !object.is_instance_of::<PyList>() && !object.is_instance_of::<PyTuple>()
}

impl Sources {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Sources> {
        let mut sources = Sources { list: Vec::new(), held: Held::default() };
        parts(object).iter().try_for_each(|part| sources.push(part))?;
        Ok(sources)
    }

    fn push(&mut self, part: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = part.py();
        let source = if let Ok(buffer) = part.cast::<Buffer>() {
            let buffer = &buffer.get().inner;
            AnySource::Buffer(buffer.clone(), 0..buffer.len())
        } else if let Ok(range) = part.cast::<BufferRange>() {
            AnySource::Buffer(range.get().buffer.clone(), range.get().range.clone())
        } else if let Ok(pinned) = part.cast::<Pinned>() {
            AnySource::Pinned(self.view(pinned.get().0.bind(py))?)
        } else if let Ok(lent) = part.cast::<Lent>() {
            self.held._lent.push(lent.clone().unbind());
            let lent = lent.get().inner();
            AnySource::Lent(lent.range(0..lent.bytes().len()))
        } else if let Ok(range) = part.cast::<LentRange>() {
            let LentRange { lent, range } = range.get();
            self.held._lent.push(lent.clone_ref(py));
            AnySource::Lent(lent.get().inner().range(range.clone()))
        } else if let Ok(entries) = part.cast::<TableRange>() {
            let TableRange { table, index, range } = entries.get();
            let user = table.get().user();
            // SAFETY: the user stays beside the source, and goes after it.
            let table = unsafe { user.table() };
            self.held.users.push(user);
            AnySource::Indexed(table.range(*index, range.clone()))
        } else {
            AnySource::Bytes(self.view(part)?)
        };
        self.list.push(source);
        Ok(())
    }

    fn view(&mut self, object: &Bound<'_, PyAny>) -> PyResult<&'static [u8]> {
        let source = Source::of(object)?;
        // SAFETY: the view stays beside what names its bytes, and goes after it.
        let bytes = unsafe { source.bytes_kept() };
        self.held._views.push(View::Source(source));
        Ok(bytes)
    }
}

impl Targets {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Targets> {
        let mut targets = Targets { list: Vec::new(), held: Held::default() };
        let mut taken = Vec::new();
        parts(object).iter().try_for_each(|part| targets.push(part, &mut taken))?;
        Ok(targets)
    }

    fn push(&mut self, part: &Bound<'_, PyAny>, taken: &mut Vec<Range<usize>>) -> PyResult<()> {
        let target = if let Ok(buffer) = part.cast::<Buffer>() {
            let buffer = &buffer.get().inner;
            AnyTarget::Buffer(buffer.clone(), 0..buffer.len())
        } else if let Ok(range) = part.cast::<BufferRange>() {
            AnyTarget::Buffer(range.get().buffer.clone(), range.get().range.clone())
        } else if let Ok(pinned) = part.cast::<Pinned>() {
            AnyTarget::Pinned(self.view(pinned.get().0.bind(part.py()), taken)?)
        } else {
            AnyTarget::Bytes(self.view(part, taken)?)
        };
        self.list.push(target);
        Ok(())
    }

    /// Nothing that is taken already.
    fn view(&mut self, object: &Bound<'_, PyAny>, taken: &mut Vec<Range<usize>>) -> PyResult<&'static mut [u8]> {
        let mut target = Target::of(object)?;
        let start = target.bytes().as_ptr() as usize;
        let range = start..start + target.bytes().len();
        if taken.iter().any(|other| range.start < other.end && other.start < range.end) {
            return Err(invalid("two of the targets overlap"));
        }
        taken.push(range);
        // SAFETY: the view stays beside what names its bytes, and goes after it; no other target of
        // this fetch has them.
        let bytes = unsafe { target.bytes_kept() };
        self.held._views.push(View::Target(target));
        Ok(bytes)
    }
}
