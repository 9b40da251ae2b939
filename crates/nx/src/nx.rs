//! A process of an application of NX: what waits, what looks, and who it is.
//!
//! Invariant: every number that a program gives is checked before anything happens. No lock is held
//! while a call waits.

use crate::application;
use crate::copies::Copies;
use crate::error::NxError;
use crate::handlers::Handlers;
use crate::limits::{FLUSHED_MAX, LEAVE_TIME, PAUSE_MAX, PAUSE_MIN};
use crate::pending::Ids;
use crate::select::{ANY, Info, Nodes, ptype_of, tag};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use vmmc_job::JobError;
use vmmc_mp::limits::EAGER_BYTES_MAX;
use vmmc_mp::{Group, Messages, MpError, Select, Status};

/// A process of an application of NX. Any thread makes calls. Dropping it waits until what it has
/// sent has gone, up to a minute, and then leaves the others.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-nx").key(KeySource::Plain))?;
/// use vmmc_nx::{ANY, Nx};
/// # let member = |rank| -> Result<(), Box<dyn std::error::Error>> {
/// # let session = vmmc::Session::over(node.attach()?)?;
/// // Two threads of a program here; processes of a job call `Nx::attach()`.
/// let nx = Nx::over(vmmc_mp::Messages::among(session, "doc", rank, 2).create()?);
/// if nx.mynode() == 0 {
///     nx.csend(7, b"hello", 1, nx.myptype())?;
/// } else {
///     let mut bytes = [0; 16];
///     let info = nx.crecv(ANY, &mut bytes)?;
///     assert_eq!((info.ty, info.node, &bytes[..info.count as usize]), (7, 0, &b"hello"[..]));
/// }
/// # Ok(()) };
/// # std::thread::scope(|scope| {
/// #     let one = scope.spawn(|| member(1).expect("node 1"));
/// #     member(0).expect("node 0");
/// #     one.join().expect("node 1 ends well");
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Nx {
    pub(crate) inner: Arc<Inner>,
    /// It is no handler's.
    owner: bool,
}

pub(crate) struct Inner {
    pub(crate) messages: Messages,
    pub(crate) nodes: Nodes,
    ptype: AtomicU16,
    pub(crate) ids: Mutex<Ids>,
    copies: Mutex<Copies>,
    last: Mutex<Info>,
    pub(crate) handlers: Arc<Handlers>,
    /// What was sent has gone, for the process ends.
    left: AtomicBool,
}

impl Nx {
    /// The process that `vmmc run` or [`Application`](crate::Application) has started.
    ///
    /// # Errors
    /// [`NxError::NoApplication`]: nobody has started it so.
    pub fn attach() -> Result<Nx, NxError> {
        let messages = Messages::attach().map_err(|error| match error {
            MpError::Job(JobError::NoJob { .. }) => NxError::NoApplication,
            error => error.into(),
        })?;
        let (nodes, ptype) = application::place(messages.size())?;
        Ok(Nx::new(messages, nodes, ptype))
    }

    /// A process of those that exchange these messages: its node is its rank, its process type 0.
    pub fn over(messages: Messages) -> Nx {
        let nodes = Nodes::all(messages.size());
        Nx::new(messages, nodes, 0)
    }

    fn new(messages: Messages, nodes: Nodes, ptype: u16) -> Nx {
        let (ids, copies, last, handlers, left) = Default::default();
        let inner = Inner { messages, nodes, ptype: AtomicU16::new(ptype), ids, copies, last, handlers, left };
        Nx { inner: Arc::new(inner), owner: true }
    }

    /// Waits until what this process has sent has gone, up to a minute, as the end of its `Nx`
    /// does; handlers that have not run will not. For a process that ends while another thread is
    /// in a call: then its `Nx` has no end of its own. What is called later still works, without
    /// that.
    ///
    /// ```no_run
    /// let nx = std::sync::Arc::new(vmmc_nx::Nx::attach()?);
    /// let other = nx.clone();
    /// std::thread::spawn(move || other.cprobe(vmmc_nx::ANY));
    /// nx.csend(1, b"the last one", 0, 0)?;
    /// nx.leave();
    /// std::process::exit(0)
    /// # ; Ok::<(), vmmc_nx::NxError>(())
    /// ```
    pub fn leave(&self) {
        if !self.inner.left.swap(true, Ordering::SeqCst) {
            self.inner.end_handlers();
            self.inner.flush();
        }
    }

    /// For a handler.
    pub(crate) fn lent(inner: Arc<Inner>) -> Nx {
        Nx { inner, owner: false }
    }

    /// Node of this process.
    pub fn mynode(&self) -> i64 {
        self.inner.nodes.of_rank(self.inner.messages.rank()).into()
    }

    /// Nodes of the application.
    pub fn numnodes(&self) -> i64 {
        self.inner.nodes.count().into()
    }

    /// Process type of this process.
    pub fn myptype(&self) -> i64 {
        self.inner.ptype().into()
    }

    /// Gives this process another process type. Messages for the one before are no longer for it.
    ///
    /// # Errors
    /// [`NxError::Ptype`].
    pub fn setptype(&self, ptype: i64) -> Result<(), NxError> {
        self.inner.ptype.store(ptype_of(ptype)?, Ordering::Relaxed);
        Ok(())
    }

    /// Sends a message to the process of this type on a node, or with node -1 to those of all other
    /// nodes. On return the memory may be used again; that says nothing of whether it was received.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn csend(&self, ty: i64, bytes: &[u8], node: i64, ptype: i64) -> Result<(), NxError> {
        let tag = tag(ty, self.inner.ptype(), ptype)?;
        self.inner.targets(node)?.try_for_each(|rank| self.inner.send(rank, tag, bytes))
    }

    /// Receives a message of a type, [`ANY`] for whichever; waits for one.
    ///
    /// # Errors
    /// [`NxError`]; [`NxError::TooLong`]: it is longer than the memory, and is lost.
    pub fn crecv(&self, typesel: i64, room: &mut [u8]) -> Result<Info, NxError> {
        self.crecvx(typesel, room, ANY, ANY)
    }

    /// The same, of a node and a process type.
    ///
    /// # Errors
    /// As for [`crecv`](Self::crecv).
    pub fn crecvx(&self, typesel: i64, room: &mut [u8], nodesel: i64, ptypesel: i64) -> Result<Info, NxError> {
        let select = self.inner.select(typesel, nodesel, ptypesel)?;
        let received = self.inner.world().receive(select, room);
        self.inner.received(received)
    }

    /// Sends a message and receives another one, in whatever order the others do it.
    ///
    /// # Errors
    /// As for [`csend`](Self::csend) and [`crecv`](Self::crecv).
    pub fn csendrecv(
        &self,
        ty: i64,
        bytes: &[u8],
        node: i64,
        ptype: i64,
        typesel: i64,
        room: &mut [u8],
    ) -> Result<Info, NxError> {
        let (tag, select) = (tag(ty, self.inner.ptype(), ptype)?, self.inner.select(typesel, ANY, ANY)?);
        if node == ANY {
            self.inner.targets(node)?.try_for_each(|rank| self.inner.send(rank, tag, bytes))?;
            return self.inner.received(self.inner.world().receive(select, room));
        }
        let to = self.inner.nodes.rank_of(node)?;
        self.inner.received(self.inner.world().exchange(to, tag, bytes, select, room))
    }

    /// Waits for a message, which stays.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn cprobe(&self, typesel: i64) -> Result<Info, NxError> {
        self.cprobex(typesel, ANY, ANY)
    }

    /// The same, of a node and a process type.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn cprobex(&self, typesel: i64, nodesel: i64, ptypesel: i64) -> Result<Info, NxError> {
        let select = self.inner.select(typesel, nodesel, ptypesel)?;
        self.inner.received(self.inner.world().probe(select))
    }

    /// The message that the next receive would get, if it is here. It stays.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn iprobe(&self, typesel: i64) -> Result<Option<Info>, NxError> {
        self.iprobex(typesel, ANY, ANY)
    }

    /// The same, of a node and a process type.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn iprobex(&self, typesel: i64, nodesel: i64, ptypesel: i64) -> Result<Option<Info>, NxError> {
        let select = self.inner.select(typesel, nodesel, ptypesel)?;
        let found = self.inner.world().try_probe(select);
        found.transpose().map(|found| self.inner.received(found)).transpose()
    }

    /// Drops the messages that are here and were not received.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn flushmsg(&self, typesel: i64, nodesel: i64, ptypesel: i64) -> Result<(), NxError> {
        let select = self.inner.select(typesel, nodesel, ptypesel)?;
        for _ in 0..FLUSHED_MAX {
            let Some(found) = self.inner.world().try_probe(select)? else { break };
            let this = Select::from(found.source).tag(found.tag);
            match self.inner.world().receive(this, &mut [0; 0]) {
                Ok(_) | Err(MpError::Truncated { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What is known of the last message that was received or found, whichever thread did it.
    pub fn info(&self) -> Info {
        *locked(&self.inner.last)
    }

    /// Bytes of that message.
    pub fn infocount(&self) -> i64 {
        self.info().count
    }

    /// Node of its sender.
    pub fn infonode(&self) -> i64 {
        self.info().node
    }

    /// Its type.
    pub fn infotype(&self) -> i64 {
        self.info().ty
    }

    /// Process type of its sender.
    pub fn infoptype(&self) -> i64 {
        self.info().ptype
    }

    /// The messages below, for what NX does not have.
    pub fn messages(&self) -> &Messages {
        &self.inner.messages
    }
}

/// Nothing is done under these locks that can panic.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while the lock is held")
}

impl Inner {
    pub(crate) fn world(&self) -> &Group {
        self.messages.world()
    }

    pub(crate) fn ptype(&self) -> u16 {
        self.ptype.load(Ordering::Relaxed)
    }

    /// The ranks that a send is to.
    pub(crate) fn targets(&self, node: i64) -> Result<impl Iterator<Item = u32> + use<>, NxError> {
        let own = self.messages.rank();
        let (ranks, but) = match node {
            ANY => (self.nodes.ranks(), Some(own)),
            _ => {
                let rank = self.nodes.rank_of(node)?;
                (rank..rank + 1, None)
            }
        };
        Ok(ranks.filter(move |rank| Some(*rank) != but))
    }

    pub(crate) fn select(&self, typesel: i64, nodesel: i64, ptypesel: i64) -> Result<Select, NxError> {
        self.nodes.select(typesel, nodesel, ptypesel, self.ptype())
    }

    pub(crate) fn send(&self, rank: u32, tag: u64, bytes: &[u8]) -> Result<(), NxError> {
        // A message waits for those before it that wait for their receives.
        let waits = bytes.len() as u64 > EAGER_BYTES_MAX || locked(&self.ids).has_sends() || {
            let mut copies = locked(&self.copies);
            copies.sweep();
            !copies.is_empty()
        };
        if waits {
            let mut copies = locked(&self.copies);
            if copies.has_room(bytes.len()) {
                let request = self.world().start_send(rank, tag, bytes.to_vec())?;
                copies.keep(request, bytes.len());
                return Ok(());
            }
        }
        Ok(self.world().send(rank, tag, bytes)?)
    }

    /// A result in words of NX; keeps what `info` then gives.
    pub(crate) fn received(&self, result: Result<Status, MpError>) -> Result<Info, NxError> {
        let info = self.told(result)?;
        self.note(info);
        Ok(info)
    }

    pub(crate) fn note(&self, info: Info) {
        *locked(&self.last) = info;
    }

    /// A result in words of NX.
    pub(crate) fn told(&self, result: Result<Status, MpError>) -> Result<Info, NxError> {
        match result {
            Ok(status) => Ok(self.nodes.info(status)),
            Err(MpError::Truncated { source_rank, tag, len, room }) => {
                let info = self.nodes.info(Status { source: source_rank, tag, len });
                Err(NxError::TooLong { ty: info.ty, node: info.node, len, room })
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Nx {
    fn drop(&mut self) {
        if self.owner {
            self.leave();
        }
    }
}

impl Inner {
    /// What was sent goes. Locks are held one at a time: other threads may still make calls.
    fn flush(&self) {
        let session = self.messages.session();
        let until = session.deadline(LEAVE_TIME);
        let mut pause = PAUSE_MIN;
        while session.deadline(std::time::Duration::ZERO) < until {
            let copied = {
                let mut copies = locked(&self.copies);
                copies.sweep();
                !copies.is_empty()
            };
            let left = copied || locked(&self.ids).sends_left(&|result| self.told(result));
            if !left || self.messages.poll().is_err() {
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl std::fmt::Debug for Nx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nx(node {} of {}, ptype {})", self.mynode(), self.numnodes(), self.myptype())
    }
}
