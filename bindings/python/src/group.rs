//! A group of members: sends, receives, probes and collective calls.
//!
//! Invariant: as in `messages.rs`. A receive is posted, and its message looked for, under one lock
//! of all receives of these messages, so that `receive`, which asks for the length first, gets the
//! message that it has asked about.

use crate::arguments::{natural, natural_or_none, word, word_or_none};
use crate::bytes::{Source, Target};
use crate::errors::{invalid, wait};
use crate::messages::{Shared, place_of};
use crate::owned::Owned;
use crate::reducing::{self, Reduction};
use crate::request::{Request, State};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use vmmc_mp::{MpError, Payload, Place, ReceiveBuffer, Room, Select, SendBuffer, Status, wait_any};

/// Some of the members, or all.
#[pyclass(module = "vmmc.mp", frozen)]
pub(crate) struct Group {
    shared: Owned<Arc<Shared>>,
    inner: Owned<vmmc_mp::Group>,
    rank: u32,
    size: u32,
}

/// What is sent.
pub(crate) enum Outgoing {
    Bytes(Source),
    Place(Place),
}

/// Where a message goes.
pub(crate) enum Incoming {
    Bytes(Target),
    Place(Place),
    /// Of `receive`, which gives it.
    Own(Vec<u8>),
}

impl Outgoing {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Outgoing> {
        match place_of(object)? {
            Some(place) => Ok(Outgoing::Place(place)),
            None => Source::of(object).map(Outgoing::Bytes),
        }
    }
}

impl Incoming {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Incoming> {
        match place_of(object)? {
            Some(place) => Ok(Incoming::Place(place)),
            None => Target::of(object).map(Incoming::Bytes),
        }
    }
}

impl SendBuffer for Outgoing {
    fn payload(&self) -> Payload<'_> {
        match self {
            Outgoing::Bytes(source) => Payload::Slice(source.bytes()),
            Outgoing::Place(place) => Payload::Place(place),
        }
    }
}

impl ReceiveBuffer for Incoming {
    fn room(&mut self) -> Room<'_> {
        match self {
            Incoming::Bytes(target) => Room::Slice(target.bytes()),
            Incoming::Place(place) => Room::Place(place),
            Incoming::Own(bytes) => Room::Slice(bytes),
        }
    }
}

/// What is known of a message.
#[pyclass(module = "vmmc.mp", name = "Status", frozen, get_all)]
pub(crate) struct MessageStatus {
    /// Its sender.
    source: u32,
    /// Its tag.
    tag: u64,
    /// Its bytes.
    length: u64,
}

impl From<Status> for MessageStatus {
    fn from(status: Status) -> MessageStatus {
        MessageStatus { source: status.source, tag: status.tag, length: status.len }
    }
}

#[pymethods]
impl MessageStatus {
    fn __repr__(&self) -> String {
        format!("Status(source={}, tag={}, length={})", self.source, self.tag, self.length)
    }
}

fn select(source: Option<u32>, tag: Option<u64>, mask: Option<u64>) -> PyResult<Select> {
    let select = source.map_or(Select::any(), Select::from);
    match (tag, mask) {
        (Some(tag), None) => Ok(select.tag(tag)),
        (Some(tag), Some(mask)) => Ok(select.tag_bits(tag, mask)),
        (None, None) => Ok(select),
        (None, Some(_)) => Err(invalid("a mask says which bits of a tag matter; give `tag` too")),
    }
}

/// Begins a receive.
fn post(
    shared: &Shared,
    group: &vmmc_mp::Group,
    select: Select,
    into: Incoming,
) -> Result<vmmc_mp::Request<Incoming>, MpError> {
    let _receiving = shared.receiving();
    group.start_receive(select, into)
}

/// Receives the oldest message, whatever its length.
fn receive_any(shared: &Shared, group: &vmmc_mp::Group, select: Select) -> Result<(Status, Incoming), MpError> {
    loop {
        group.probe(select)?;
        let receiving = shared.receiving();
        // Another thread may have received it meanwhile.
        let Some(found) = group.try_probe(select)? else { continue };
        let just_it = Select::from(found.source).tag(found.tag);
        let request = group.start_receive(just_it, Incoming::Own(vec![0; found.len as usize]))?;
        drop(receiving);
        return request.wait();
    }
}

impl Group {
    pub(crate) fn new(shared: Arc<Shared>, inner: vmmc_mp::Group) -> Group {
        let (rank, size) = (inner.rank(), inner.size());
        Group { shared: Owned::new(shared), inner: Owned::new(inner), rank, size }
    }

    /// Runs a call that may wait.
    pub(crate) fn run<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        run: impl FnOnce(&Shared, &vmmc_mp::Group) -> Result<R, MpError> + Send,
    ) -> PyResult<R> {
        let (shared, group) = (self.shared.get()?, self.inner.get()?);
        let _messages = shared.messages()?;
        wait(py, timeout, || run(shared, group))
    }

    fn another(&self, inner: vmmc_mp::Group) -> PyResult<Group> {
        Ok(Group::new(self.shared.get()?.clone(), inner))
    }
}

#[pymethods]
impl Group {
    /// Number of this member in the group.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// Members.
    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    /// Number among all members of a member of the group.
    fn member(&self, #[pyo3(from_py_with = natural)] rank: u32) -> PyResult<u32> {
        self.inner.get()?.member(rank).map_err(crate::errors::raise)
    }

    /// The same members as a group of their own.
    #[pyo3(signature = (*, timeout=None))]
    fn duplicate(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Group> {
        let group = self.run(py, timeout, |_, group| group.duplicate())?;
        self.another(group)
    }

    /// Groups of those that say the same.
    #[pyo3(signature = (colour, key=0, *, timeout=None))]
    fn split(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = word_or_none)] colour: Option<u64>,
        key: i64,
        timeout: Option<f64>,
    ) -> PyResult<Option<Group>> {
        let group = self.run(py, timeout, |_, group| group.split(colour, key))?;
        group.map(|group| self.another(group)).transpose()
    }

    /// Sends a message.
    #[pyo3(signature = (to, data, tag=0, *, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] to: u32,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = word)] tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let data = Outgoing::of(data)?;
        self.run(py, timeout, |_, group| group.send(to, tag, data.payload()))
    }

    /// Receives a message, as bytes.
    #[pyo3(signature = (source=None, tag=None, *, mask=None, timeout=None))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = natural_or_none)] source: Option<u32>,
        #[pyo3(from_py_with = word_or_none)] tag: Option<u64>,
        #[pyo3(from_py_with = word_or_none)] mask: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<(Bound<'py, PyBytes>, MessageStatus)> {
        let select = select(source, tag, mask)?;
        let (status, data) = self.run(py, timeout, |shared, group| receive_any(shared, group, select))?;
        let Incoming::Own(bytes) = data else { unreachable!("it was given such memory") };
        Ok((PyBytes::new(py, &bytes[..status.len as usize]), status.into()))
    }

    /// Receives a message into writable memory.
    #[pyo3(signature = (into, source=None, tag=None, *, mask=None, timeout=None))]
    fn receive_into(
        &self,
        py: Python<'_>,
        into: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = natural_or_none)] source: Option<u32>,
        #[pyo3(from_py_with = word_or_none)] tag: Option<u64>,
        #[pyo3(from_py_with = word_or_none)] mask: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<MessageStatus> {
        let (select, into) = (select(source, tag, mask)?, Incoming::of(into)?);
        let receive = |shared: &Shared, group: &vmmc_mp::Group| post(shared, group, select, into)?.wait();
        Ok(self.run(py, timeout, receive)?.0.into())
    }

    /// Sends one message and receives another one, without waiting for each other in vain.
    #[pyo3(signature = (to, data, into, source=None, tag=None, *, send_tag=0, mask=None, timeout=None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn exchange(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] to: u32,
        data: &Bound<'_, PyAny>,
        into: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = natural_or_none)] source: Option<u32>,
        #[pyo3(from_py_with = word_or_none)] tag: Option<u64>,
        #[pyo3(from_py_with = word)] send_tag: u64,
        #[pyo3(from_py_with = word_or_none)] mask: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<MessageStatus> {
        let (select, data, mut into) = (select(source, tag, mask)?, Outgoing::of(data)?, Incoming::of(into)?);
        if let (Outgoing::Bytes(data), Incoming::Bytes(into)) = (&data, &mut into) {
            let (from, to) = (data.bytes().as_ptr_range(), into.bytes().as_ptr_range());
            if from.start < to.end && to.start < from.end {
                return Err(invalid(
                    "`data` and `into` overlap, and one is sent while the other comes; use two objects",
                ));
            }
        }
        let exchange = |shared: &Shared, group: &vmmc_mp::Group| {
            let receive = post(shared, group, select, into)?;
            // Each waits for both: where the receive fails, the send goes on by itself.
            let send = group.start_send(to, send_tag, data)?;
            let (status, _) = receive.wait()?;
            send.wait().map(|_| status)
        };
        Ok(self.run(py, timeout, exchange)?.into())
    }

    /// Begins to send a message; its memory stays as it is until the request is over.
    #[pyo3(signature = (to, data, tag=0))]
    fn start_send(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] to: u32,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = word)] tag: u64,
    ) -> PyResult<Request> {
        let data = Outgoing::of(data)?;
        let request = self.run(py, None, |_, group| group.start_send(to, tag, data))?;
        Ok(Request::send(self.shared.get()?.clone(), request))
    }

    /// Begins to receive a message into writable memory.
    #[pyo3(signature = (into, source=None, tag=None, *, mask=None))]
    fn start_receive(
        &self,
        py: Python<'_>,
        into: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = natural_or_none)] source: Option<u32>,
        #[pyo3(from_py_with = word_or_none)] tag: Option<u64>,
        #[pyo3(from_py_with = word_or_none)] mask: Option<u64>,
    ) -> PyResult<Request> {
        let (select, into) = (select(source, tag, mask)?, Incoming::of(into)?);
        let request = self.run(py, None, |shared, group| post(shared, group, select, into))?;
        Ok(Request::receive(self.shared.get()?.clone(), request))
    }

    /// Waits for a message, which stays.
    #[pyo3(signature = (source=None, tag=None, *, mask=None, timeout=None))]
    fn probe(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural_or_none)] source: Option<u32>,
        #[pyo3(from_py_with = word_or_none)] tag: Option<u64>,
        #[pyo3(from_py_with = word_or_none)] mask: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<MessageStatus> {
        let select = select(source, tag, mask)?;
        self.run(py, timeout, |_, group| group.probe(select)).map(MessageStatus::from)
    }

    /// What the next receive would get, if it is here.
    #[pyo3(signature = (source=None, tag=None, *, mask=None))]
    fn try_probe(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural_or_none)] source: Option<u32>,
        #[pyo3(from_py_with = word_or_none)] tag: Option<u64>,
        #[pyo3(from_py_with = word_or_none)] mask: Option<u64>,
    ) -> PyResult<Option<MessageStatus>> {
        let select = select(source, tag, mask)?;
        Ok(self.run(py, None, |_, group| group.try_probe(select))?.map(MessageStatus::from))
    }

    /// Waits until all members are in it.
    #[pyo3(signature = (*, timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.run(py, timeout, |_, group| group.barrier())
    }

    /// Gives all members the bytes of one.
    #[pyo3(signature = (buffer, root=0, *, timeout=None))]
    fn broadcast(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = natural)] root: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let is_root = root == self.rank;
        let (mut bytes, target) = if is_root {
            (copied(buffer)?, None)
        } else {
            let mut target = Target::of(buffer)?;
            (vec![0; target.bytes().len()], Some(target))
        };
        self.run(py, timeout, |_, group| group.broadcast(root, &mut bytes))?;
        if let Some(mut target) = target {
            target.bytes().copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Gives one member the bytes of all, in order of rank.
    #[pyo3(signature = (own, root=0, *, into=None, timeout=None))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        own: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = natural)] root: u32,
        into: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let own = copied(own)?;
        let len = if root == self.rank { self.of_all(own.len()) } else { 0 };
        let all = All::of(into.filter(|_| root == self.rank), len)?;
        let given = self.fill(py, timeout, all, |group, all| group.gather(root, &own, all))?;
        Ok(given.filter(|_| root == self.rank))
    }

    /// The same of as many bytes as each has, which the root knows.
    #[pyo3(signature = (own, lengths, root=0, *, into=None, timeout=None))]
    fn gather_varied<'py>(
        &self,
        py: Python<'py>,
        own: &Bound<'py, PyAny>,
        lengths: Option<Vec<usize>>,
        #[pyo3(from_py_with = natural)] root: u32,
        into: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (own, lengths) = (copied(own)?, lengths.unwrap_or_default());
        let len = if root == self.rank { sum(&lengths)? } else { 0 };
        let all = All::of(into.filter(|_| root == self.rank), len)?;
        let given = self.fill(py, timeout, all, |group, all| group.gather_varied(root, &own, &lengths, all))?;
        Ok(given.filter(|_| root == self.rank))
    }

    /// Gives each member its part of what one has, in order of rank.
    #[pyo3(signature = (all, into, root=0, *, timeout=None))]
    fn scatter(
        &self,
        py: Python<'_>,
        all: Option<&Bound<'_, PyAny>>,
        into: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = natural)] root: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let all = all.filter(|_| root == self.rank).map(copied).transpose()?.unwrap_or_default();
        let len = Target::of(into)?.bytes().len();
        let own = All::of(Some(into), len)?;
        self.fill(py, timeout, own, |group, own| group.scatter(root, &all, own)).map(drop)
    }

    /// Gives all members the bytes of all, in order of rank.
    #[pyo3(signature = (own, *, into=None, timeout=None))]
    fn allgather<'py>(
        &self,
        py: Python<'py>,
        own: &Bound<'py, PyAny>,
        into: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let own = copied(own)?;
        let all = All::of(into, self.of_all(own.len()))?;
        self.fill(py, timeout, all, |group, all| group.allgather(&own, all))
    }

    /// The same of as many bytes as each has, which all know.
    #[pyo3(signature = (own, lengths, *, into=None, timeout=None))]
    fn allgather_varied<'py>(
        &self,
        py: Python<'py>,
        own: &Bound<'py, PyAny>,
        lengths: Vec<usize>,
        into: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let own = copied(own)?;
        let all = All::of(into, sum(&lengths)?)?;
        self.fill(py, timeout, all, |group, all| group.allgather_varied(&own, &lengths, all))
    }

    /// Gives each member its part of what each other one has for it.
    #[pyo3(signature = (data, *, into=None, timeout=None))]
    fn all_to_all<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        into: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let data = copied(data)?;
        let all = All::of(into, data.len())?;
        self.fill(py, timeout, all, |group, all| group.all_to_all(&data, all))
    }

    /// The same of as many bytes as each has for each, which both know.
    #[pyo3(signature = (data, lengths, into_lengths, *, into=None, timeout=None))]
    fn all_to_all_varied<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        lengths: Vec<usize>,
        into_lengths: Vec<usize>,
        into: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let data = copied(data)?;
        let all = All::of(into, sum(&into_lengths)?)?;
        let call =
            |group: &vmmc_mp::Group, all: &mut [u8]| group.all_to_all_varied(&data, &lengths, all, &into_lengths);
        self.fill(py, timeout, all, call)
    }

    /// Combines the numbers of all members, one by one, at one of them.
    #[pyo3(signature = (values, op="sum", root=0, *, timeout=None))]
    fn reduce(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        op: &str,
        #[pyo3(from_py_with = natural)] root: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        reducing::run(self, py, values, op, (Reduction::To(root), timeout))
    }

    /// Combines the numbers of all members, one by one, at all of them.
    #[pyo3(signature = (values, op="sum", *, timeout=None))]
    fn allreduce(&self, py: Python<'_>, values: &Bound<'_, PyAny>, op: &str, timeout: Option<f64>) -> PyResult<()> {
        reducing::run(self, py, values, op, (Reduction::All, timeout))
    }

    /// Combines the numbers of all members up to this one, one by one.
    #[pyo3(signature = (values, op="sum", *, timeout=None))]
    fn scan(&self, py: Python<'_>, values: &Bound<'_, PyAny>, op: &str, timeout: Option<f64>) -> PyResult<()> {
        reducing::run(self, py, values, op, (Reduction::Scan, timeout))
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.mp.Group, rank {} of {}>", self.rank, self.size)
    }
}

/// What a collective call fills: memory of the library's, which is copied to where it is wanted
/// when the call has ended well.
struct All {
    bytes: Vec<u8>,
    into: Option<Target>,
}

impl All {
    fn of(into: Option<&Bound<'_, PyAny>>, len: usize) -> PyResult<All> {
        let mut into = into.map(Target::of).transpose()?;
        if let Some(there) = into.as_mut().map(|into| into.bytes().len()).filter(|there| *there != len) {
            return Err(invalid(format!("`into` has {there} bytes, and {len} come; give as many")));
        }
        Ok(All { bytes: vec![0; len], into })
    }
}

/// The object's bytes. A call that many members are in reads a copy, for it may write to others of
/// this program's objects meanwhile, and they may be the same.
fn copied(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    Source::of(object).map(|source| source.bytes().to_vec())
}

fn sum(lengths: &[usize]) -> PyResult<usize> {
    let sum =
        lengths.iter().try_fold(0usize, |sum, len| sum.checked_add(*len).filter(|sum| *sum <= isize::MAX as usize));
    sum.ok_or_else(|| invalid("the lengths are more than memory has"))
}

impl Group {
    /// Bytes of all, if each has so many.
    fn of_all(&self, len: usize) -> usize {
        len.saturating_mul(self.size as usize)
    }

    fn fill<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        All { mut bytes, into }: All,
        call: impl FnOnce(&vmmc_mp::Group, &mut [u8]) -> Result<(), MpError> + Send,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.run(py, timeout, |_, group| call(group, &mut bytes))?;
        match into {
            None => Ok(Some(PyBytes::new(py, &bytes))),
            Some(mut into) => {
                into.bytes().copy_from_slice(&bytes);
                Ok(None)
            }
        }
    }
}

/// Waits until one of some requests is over.
#[pyfunction]
#[pyo3(signature = (requests, timeout=None))]
pub(crate) fn mp_wait_any(py: Python<'_>, requests: Vec<Py<Request>>, timeout: Option<f64>) -> PyResult<Option<usize>> {
    let mut guards = requests.iter().map(|request| request.get().lock()).collect::<PyResult<Vec<_>>>()?;
    if let Some(at) = guards.iter().position(|guard| guard.is_over()) {
        return Ok(Some(at));
    }
    let states: Vec<&mut State> = guards.iter_mut().map(|guard| &mut **guard).collect();
    wait(py, timeout, || wait_any(&states.iter().filter_map(|state| state.under_way()).collect::<Vec<_>>()))
}
