//! A wait for the first of several things.
//!
//! Invariant: nothing is taken, and all that is waited for is in use by the call until it returns,
//! without the interpreter's lock. Source: `Session::wait_any` of `crates/vmmc`.

use crate::arguments::natural;
use crate::continuations::{Continuations, Waiting};
use crate::endpoint::{self, Endpoint};
use crate::errors::{invalid, raise, wait};
use crate::export::{self, Condition, Export};
use crate::redirection::{self, Redirection};
use crate::ring::{self, Ring};
use crate::session::Session;
use crate::transfer::{self, Moving, Transfer};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{MutexGuard, RwLockReadGuard};
use vmmc::{WaitError, WaitFor};

/// A word of an export, as something to wait for.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Word {
    export: Py<Export>,
    offset: u64,
    condition: Condition,
}

#[pymethods]
impl Word {
    #[new]
    #[pyo3(signature = (export, offset, **condition))]
    fn new(
        export: Py<Export>,
        #[pyo3(from_py_with = natural)] offset: u64,
        condition: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Word> {
        Ok(Word { export, offset, condition: Condition::from_keywords(condition)? })
    }
}

/// A descriptor to write to, as something to wait for.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Writable(Py<PyAny>);

#[pymethods]
impl Writable {
    #[new]
    fn new(descriptor: Py<PyAny>) -> Writable {
        Writable(descriptor)
    }
}

/// What the caller names.
enum Named<'py> {
    Notification,
    NotificationOf(Bound<'py, Export>),
    Word(Bound<'py, Word>),
    Record(Bound<'py, Ring>),
    Message(Bound<'py, Endpoint>),
    Transfer(Bound<'py, Transfer>),
    Continuations(Bound<'py, Continuations>),
    Redirection(Bound<'py, Redirection>),
    Readable(RawFd),
    Writable(RawFd),
}

/// What is in use as long as the call.
enum Open<'a> {
    Notification,
    NotificationOf(RwLockReadGuard<'a, Option<vmmc::Export>>),
    Word(RwLockReadGuard<'a, Option<vmmc::Export>>, &'a Word),
    Record(MutexGuard<'a, Option<vmmc::Ring>>),
    Message(MutexGuard<'a, Option<vmmc::Endpoint>>),
    Transfer(transfer::InUse<'a>),
    Continuations(MutexGuard<'a, Waiting>),
    Redirection(RwLockReadGuard<'a, Option<vmmc::Redirection>>),
    Readable(BorrowedFd<'a>),
    Writable(BorrowedFd<'a>),
}

/// The same, for a thread without the interpreter's lock.
enum Thing<'a> {
    Notification,
    NotificationOf(&'a vmmc::Export),
    Word(&'a vmmc::Export, u64, Box<dyn Fn(u64) -> bool + Send>),
    Record(&'a vmmc::Ring),
    Message(&'a vmmc::Endpoint),
    Transfer(&'a mut Moving),
    Continuations(&'a mut Waiting),
    Redirection(&'a vmmc::Redirection),
    Readable(BorrowedFd<'a>),
    Writable(BorrowedFd<'a>),
}

/// The number behind a descriptor: itself, or what `fileno` gives.
fn number(of: &Bound<'_, PyAny>) -> PyResult<RawFd> {
    if of.is_instance_of::<PyInt>() {
        let number: Option<RawFd> = of.extract().ok().filter(|number| *number >= 0);
        return number.ok_or_else(|| invalid(format!("{of} is no descriptor; give one that is open")));
    }
    let Ok(fileno) = of.getattr("fileno") else {
        let what = of.get_type().name()?;
        return Err(invalid(format!(
            "a thing of type {what} cannot be waited for; give a session, Export, Ring, Endpoint, Transfer, \
             Continuations, Redirection, Word, Writable, or what has a fileno()"
        )));
    };
    number(&fileno.call0()?)
}

/// # Safety
/// As for [`BorrowedFd::borrow_raw`], but for descriptors that the program closes: poll says of
/// those that they are closed, and nothing else is done with the number.
unsafe fn descriptor<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: it is not negative, and the rest is the caller's word.
    unsafe { BorrowedFd::borrow_raw(number) }
}

impl<'py> Named<'py> {
    fn of(session: &vmmc::Session, place: usize, one: &Bound<'py, PyAny>) -> PyResult<Named<'py>> {
        if let Ok(other) = one.cast::<Session>() {
            // A job gives a new object for the same session each time.
            let same = std::ptr::eq(other.get().inner.node(), session.node());
            return if same { Ok(Named::Notification) } else { Err(raise(WaitError::OtherSession { place })) };
        }
        if let Ok(export) = one.cast::<Export>() {
            return Ok(Named::NotificationOf(export.clone()));
        }
        if let Ok(word) = one.cast::<Word>() {
            return Ok(Named::Word(word.clone()));
        }
        if let Ok(ring) = one.cast::<Ring>() {
            return Ok(Named::Record(ring.clone()));
        }
        if let Ok(endpoint) = one.cast::<Endpoint>() {
            return Ok(Named::Message(endpoint.clone()));
        }
        if let Ok(transfer) = one.cast::<Transfer>() {
            return Ok(Named::Transfer(transfer.clone()));
        }
        if let Ok(continuations) = one.cast::<Continuations>() {
            return Ok(Named::Continuations(continuations.clone()));
        }
        if let Ok(redirection) = one.cast::<Redirection>() {
            return Ok(Named::Redirection(redirection.clone()));
        }
        if let Ok(writable) = one.cast::<Writable>() {
            return Ok(Named::Writable(number(writable.get().0.bind(one.py()))?));
        }
        Ok(Named::Readable(number(one)?))
    }

    fn open(&self) -> PyResult<Open<'_>> {
        Ok(match self {
            Named::Notification => Open::Notification,
            Named::NotificationOf(export) => Open::NotificationOf(export.get().lock()),
            Named::Word(word) => Open::Word(word.get().export.get().lock(), word.get()),
            Named::Record(ring) => Open::Record(ring.get().lock()?),
            Named::Message(endpoint) => Open::Message(endpoint.get().lock()?),
            Named::Transfer(transfer) => Open::Transfer(transfer.get().lock()?),
            Named::Continuations(continuations) => Open::Continuations(continuations.get().lock()?),
            Named::Redirection(redirection) => Open::Redirection(redirection.get().lock()),
            // SAFETY: the list holds the objects until the call returns; closing them meanwhile is
            // what `descriptor` allows.
            Named::Readable(fd) => Open::Readable(unsafe { descriptor(*fd) }),
            // SAFETY: as above.
            Named::Writable(fd) => Open::Writable(unsafe { descriptor(*fd) }),
        })
    }
}

/// Whether it stood in the list before.
fn is_repeated(before: &[Bound<'_, PyAny>], one: &Bound<'_, PyAny>) -> bool {
    before.iter().any(|other| other.is(one))
}

impl Open<'_> {
    fn thing(&mut self) -> PyResult<Thing<'_>> {
        Ok(match self {
            Open::Notification => Thing::Notification,
            Open::NotificationOf(export) => Thing::NotificationOf(export.as_ref().ok_or_else(export::ended)?),
            Open::Word(export, word) => {
                let condition = word.condition;
                let ready = Box::new(move |word| condition.holds(word));
                Thing::Word(export.as_ref().ok_or_else(export::ended)?, word.offset, ready)
            }
            Open::Record(ring) => Thing::Record(ring.as_ref().ok_or_else(ring::ended)?),
            Open::Message(endpoint) => Thing::Message(endpoint.as_ref().ok_or_else(endpoint::ended)?),
            Open::Transfer(transfer) => Thing::Transfer(&mut transfer.moving),
            Open::Continuations(waiting) => Thing::Continuations(waiting),
            Open::Redirection(guard) => Thing::Redirection(guard.as_ref().ok_or_else(redirection::cancelled)?),
            Open::Readable(fd) => Thing::Readable(*fd),
            Open::Writable(fd) => Thing::Writable(*fd),
        })
    }
}

impl Thing<'_> {
    fn wait_for(&mut self) -> WaitFor<'_> {
        match self {
            Thing::Notification => WaitFor::Notification,
            Thing::NotificationOf(export) => WaitFor::NotificationOf(export),
            Thing::Word(export, offset, ready) => WaitFor::Word { export, offset: *offset, ready: &**ready },
            Thing::Record(ring) => WaitFor::Record(ring),
            Thing::Message(endpoint) => WaitFor::Message(endpoint),
            Thing::Transfer(Moving::Send(send)) => WaitFor::Transfer(send),
            Thing::Transfer(Moving::Fetch(fetch)) => WaitFor::Transfer(fetch),
            Thing::Transfer(Moving::Over(_)) => unreachable!("nobody waits for what is over"),
            Thing::Continuations(waiting) => waiting.wait_for(),
            Thing::Redirection(redirection) => WaitFor::Redirection(redirection),
            Thing::Readable(fd) => WaitFor::Readable(*fd),
            Thing::Writable(fd) => WaitFor::Writable(*fd),
        }
    }
}

/// The place of the first of them that is there.
pub(crate) fn wait_any(session: &vmmc::Session, what: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<usize> {
    let py = what.py();
    let what = what.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    let named = (0..).zip(&what).map(|(place, one)| Named::of(session, place, one)).collect::<PyResult<Vec<_>>>()?;
    let mut open = Vec::with_capacity(named.len());
    for (place, one) in named.iter().enumerate() {
        let busy = |error| {
            // What stands in the list twice is in use by this call itself.
            if !is_repeated(&what[..place], &what[place]) {
                return error;
            }
            invalid(format!("the thing at place {place} stands in the list twice; name it once"))
        };
        open.push(one.open().map_err(busy)?);
    }
    // What has been found before ends the wait, unless something that stands before it is there.
    let found = named.iter().zip(&open).position(|(named, open)| is_found(named, open));
    let (before, timeout) = found.map_or((open.len(), timeout), |place| (place, Some(0.0)));
    let mut things = open[..before].iter_mut().map(Open::thing).collect::<PyResult<Vec<_>>>()?;
    wait(py, timeout, || {
        let waited = session.wait_any(&mut things.iter_mut().map(Thing::wait_for).collect::<Vec<_>>());
        match (waited, found) {
            (Err(WaitError::TimedOut { .. }), Some(place)) => Ok(place),
            (waited, _) => waited,
        }
    })
}

/// Whether it was found to be over by a call before this one.
fn is_found(named: &Named<'_>, open: &Open<'_>) -> bool {
    match (named, open) {
        (Named::Continuations(continuations), _) => continuations.get().has_over(),
        (_, Open::Transfer(transfer)) => matches!(transfer.moving, Moving::Over(_)),
        _ => false,
    }
}
