//! Messages that are begun, and waited for later by their id.
//!
//! Invariant: an id is used up by the call that ends it; the buffer of a receive comes back with
//! it.

use crate::error::NxError;
use crate::nx::{Inner, Nx, locked};
use crate::pending::{Buffer, Done, Part, Payload, Pending, Room, Sent};
use crate::select::{ANY, tag};
use std::sync::Arc;
use vmmc_mp::limits::EAGER_BYTES_MAX;

impl Nx {
    /// Begins to send a message, as [`csend`](Self::csend); gives its id.
    ///
    /// # Errors
    /// [`NxError`]; [`NxError::IdsUsedUp`].
    pub fn isend(&self, ty: i64, payload: impl Payload, node: i64, ptype: i64) -> Result<i64, NxError> {
        self.inner.insert(|inner| inner.begin_send(ty, payload, node, ptype))
    }

    /// Begins to receive a message, as [`crecv`](Self::crecv); gives its id.
    ///
    /// # Errors
    /// As for [`isend`](Self::isend).
    pub fn irecv(&self, typesel: i64, buffer: impl Buffer) -> Result<i64, NxError> {
        self.irecvx(typesel, buffer, ANY, ANY)
    }

    /// The same, of a node and a process type.
    ///
    /// # Errors
    /// As for [`isend`](Self::isend).
    pub fn irecvx(&self, typesel: i64, buffer: impl Buffer, nodesel: i64, ptypesel: i64) -> Result<i64, NxError> {
        self.inner.insert(|inner| inner.begin_receive(typesel, buffer, nodesel, ptypesel))
    }

    /// Begins both; the id stands for both.
    ///
    /// # Errors
    /// As for [`isend`](Self::isend).
    pub fn isendrecv(
        &self,
        ty: i64,
        payload: impl Payload,
        node: i64,
        ptype: i64,
        typesel: i64,
        buffer: impl Buffer,
    ) -> Result<i64, NxError> {
        self.inner.insert(|inner| {
            let receive = inner.begin_receive(typesel, buffer, ANY, ANY)?;
            Ok(inner.begin_send(ty, payload, node, ptype)?.and(receive))
        })
    }

    /// Waits until what an id stands for is over; the id is used up.
    ///
    /// # Errors
    /// [`NxError`], of the message; [`NxError::Id`].
    pub fn msgwait(&self, id: i64) -> Result<Done, NxError> {
        let pending = locked(&self.inner.ids).take(id)?;
        self.inner.wait(pending)
    }

    /// If what an id stands for is over, as [`msgwait`](Self::msgwait); else none, and the id
    /// stays.
    ///
    /// # Errors
    /// As for [`msgwait`](Self::msgwait); the id is used up.
    pub fn msgdone(&self, id: i64) -> Result<Option<Done>, NxError> {
        let inner = &*self.inner;
        let mut ids = locked(&inner.ids);
        let over = match ids.at(id)?.look(&|result| inner.told(result)) {
            Ok(false) => return Ok(None),
            Ok(true) => Ok(ids.take(id)?),
            Err(error) => Err((error, ids.take(id)?)),
        };
        drop(ids);
        let over = over.map_err(|(error, _)| error)?;
        Ok(Some(inner.noted(over.done())))
    }

    /// Lets an id go. Its message goes on, and its buffer is dropped when that is over.
    ///
    /// # Errors
    /// [`NxError::Id`].
    pub fn msgignore(&self, id: i64) -> Result<(), NxError> {
        locked(&self.inner.ids).ignore(id)
    }

    /// Takes a message back if nothing has happened yet, else waits until it is over; the id is
    /// used up.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn msgcancel(&self, id: i64) -> Result<(), NxError> {
        let pending = locked(&self.inner.ids).take(id)?;
        Ok(pending.cancel()?)
    }

    /// One id for what two stand for, which are used up. If one of them is -1, it is the other.
    ///
    /// # Errors
    /// [`NxError::Id`]: the other id stays.
    pub fn msgmerge(&self, one: i64, other: i64) -> Result<i64, NxError> {
        if one == ANY || other == ANY {
            let id = if one == ANY { other } else { one };
            return locked(&self.inner.ids).at(id).map(|_| id);
        }
        let mut ids = locked(&self.inner.ids);
        if one == other {
            return Err(NxError::Id { id: one });
        }
        ids.at(one)?;
        ids.at(other)?;
        let both = ids.take(one)?.and(ids.take(other)?);
        Ok(ids.insert(both))
    }
}

impl Inner {
    /// Has an id for what is begun, if there is one left.
    fn insert(&self, begin: impl FnOnce(&Inner) -> Result<Pending, NxError>) -> Result<i64, NxError> {
        locked(&self.ids).has_room(0, &|result| self.told(result))?;
        let pending = begin(self)?;
        Ok(locked(&self.ids).insert(pending))
    }

    pub(crate) fn begin_send(&self, ty: i64, payload: impl Payload, node: i64, ptype: i64) -> Result<Pending, NxError> {
        let (tag, sent) = (tag(ty, self.ptype(), ptype)?, Sent(Arc::new(payload)));
        let waits = sent.as_ref().len() as u64 > EAGER_BYTES_MAX;
        let parts = self.targets(node)?.map(|rank| self.world().start_send(rank, tag, sent.clone()).map(Part::Send));
        let pending = Pending::new(parts.collect::<Result<_, _>>()?);
        Ok(Pending { waits, ..pending })
    }

    pub(crate) fn begin_receive(
        &self,
        typesel: i64,
        buffer: impl Buffer,
        nodesel: i64,
        ptypesel: i64,
    ) -> Result<Pending, NxError> {
        let select = self.select(typesel, nodesel, ptypesel)?;
        let request = self.world().start_receive(select, Room(Box::new(buffer)))?;
        Ok(Pending::new(vec![Part::Receive(request)]))
    }

    pub(crate) fn wait(&self, pending: Pending) -> Result<Done, NxError> {
        Ok(self.noted(pending.wait(&|result| self.told(result))?))
    }

    /// Keeps what `info` then gives.
    pub(crate) fn noted(&self, done: Done) -> Done {
        if let Some(info) = done.info() {
            self.note(info);
        }
        done
    }
}
