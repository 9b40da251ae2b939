//! Handles to transfers under way.
//!
//! Invariant: registered memory stays registered until the engine is done with it, whatever becomes
//! of the handle. A send borrows memory of the caller's that the engine may still read; a fetch
//! owns memory of the caller's that the engine may still write.

use crate::core::Limit;
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::fetching::Fetching;
use crate::import::Shared;
use crate::sending::Sending;
use crate::target::Memory;
use crate::wait_any::sealed::Pending;
use std::sync::Arc;
use vmmc_host::Deadline;

/// A transfer under way; made by [`Import::post_send`](crate::Import::post_send) and
/// [`Import::post_fetch`](crate::Import::post_fetch).
///
/// `'a` is how long it borrows the [`Source`](crate::Source) of a send, `'static` if it does not;
/// `M` is what [`into_inner`](Self::into_inner) gives back, the memory of a fetch or `()`.
///
/// Dropping it abandons the answer, not the transfer: registered memory that it uses stays alive
/// until it is done. What it borrows it waits for, the session's timeout; what it owns is cut off
/// from the node and freed.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-transfer").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::{SendOptions, Transfer};
/// let export = session.export(4096).name("mail").create()?;
/// let import = session.import("mail").open()?;
/// let mut sends: Vec<Transfer> = Vec::new();
/// for at in 0..4 {
///     sends.push(import.post_send(8 * at, &at.to_le_bytes(), SendOptions::default())?);
/// }
/// sends.iter_mut().try_for_each(|send| send.wait().map(drop))?;
/// assert_eq!(export.word(24)?.load(std::sync::atomic::Ordering::Acquire), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a transfer that nobody waits for is abandoned"]
pub struct Transfer<'a, M: Memory = ()> {
    shared: Arc<Shared>,
    moving: Moving<'a>,
    /// None when it was given back.
    memory: Option<M>,
}

/// What moves.
pub(crate) enum Moving<'a> {
    Done(Result<u64, TransferError>),
    One(Ticket),
    Send(Box<Sending<'a>>),
    Fetch(Box<Fetching>),
}

impl<'a, M: Memory> Transfer<'a, M> {
    pub(crate) fn new(shared: Arc<Shared>, moving: Moving<'a>, memory: M) -> Transfer<'a, M> {
        Transfer { shared, moving, memory: Some(memory) }
    }

    /// Its result if it is done: bytes moved. Steps an embedded node. A finished transfer keeps its
    /// result.
    pub fn poll(&mut self) -> Option<Result<u64, TransferError>> {
        if let Moving::Done(result) = &self.moving {
            return Some(result.clone());
        }
        let shared = &*self.shared.clone();
        shared.core.step();
        shared.core.collect_if_free();
        let limit = &Limit::within(&shared.core, shared.core.timeout());
        let memory = self.memory.as_mut().expect("given back at the end only");
        let polled = match &mut self.moving {
            Moving::Done(result) => Some(result.clone()),
            Moving::One(ticket) => ticket.poll().map(|(result, hold)| {
                shared.core.release(hold);
                result.map_err(|error| shared.op_error(error))
            }),
            Moving::Send(sending) => sending.poll(shared, limit),
            Moving::Fetch(fetching) => fetching.poll(shared, memory, limit),
        };
        match polled {
            Some(result) => self.moving = Moving::Done(result),
            None => self.fail(shared.core.usable().err().map(|end| shared.end(end, Default::default()))?),
        }
        self.poll()
    }

    /// Waits the session's timeout for the result: bytes moved. May be called again after
    /// [`TransferError::TimedOut`].
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn wait(&mut self) -> Result<u64, TransferError> {
        let deadline = self.shared.core.default_deadline();
        self.wait_by(deadline)
    }

    /// As [`wait`](Self::wait), until a deadline.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn wait_by(&mut self, deadline: Deadline) -> Result<u64, TransferError> {
        let shared = &*self.shared;
        let limit = &Limit::until(&shared.core, deadline);
        let memory = self.memory.as_mut().expect("given back at the end only");
        let result = match &mut self.moving {
            Moving::Done(result) => return result.clone(),
            Moving::One(ticket) => shared.finish(ticket, limit),
            Moving::Send(sending) => sending.wait(shared, limit),
            Moving::Fetch(fetching) => fetching.wait(shared, memory, limit),
        };
        if !matches!(result, Err(TransferError::TimedOut { .. })) {
            self.moving = Moving::Done(result.clone());
        }
        result
    }

    /// Gives back the memory of a fetch. One that is not done is given up: its memory may have been
    /// written in part, and is not written any more.
    pub fn into_inner(mut self) -> M {
        self.end();
        self.memory.take().expect("given back at the end only")
    }

    fn fail(&mut self, error: TransferError) {
        let memory = self.memory.as_mut().expect("given back at the end only");
        if let Moving::Fetch(fetching) = &mut self.moving {
            fetching.give_up(&self.shared, memory);
        }
        self.moving = Moving::Done(Err(error));
    }

    /// Leaves no thread that reads what is borrowed, or writes what is owned.
    fn end(&mut self) {
        match &mut self.moving {
            Moving::Send(sending) if sending.borrows() => {
                // A caller that drops it does not want to know.
                let _ = self.wait();
            }
            Moving::Fetch(fetching) => {
                if let Some(memory) = &mut self.memory {
                    fetching.give_up(&self.shared, memory);
                }
            }
            _ => {}
        }
    }
}

impl<M: Memory> Pending for Transfer<'_, M> {
    fn is_of(&self, core: *const ()) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.shared.core).cast(), core)
    }

    fn is_over(&mut self) -> bool {
        self.poll().is_some()
    }

    fn may_advance(&self) -> bool {
        match &self.moving {
            Moving::Done(_) => true,
            Moving::One(ticket) => ticket.is_done(),
            Moving::Send(sending) => sending.may_advance(),
            Moving::Fetch(fetching) => fetching.may_advance(),
        }
    }

    fn is_starved(&self) -> bool {
        matches!(&self.moving, Moving::Fetch(fetching) if fetching.is_starved())
    }
}

impl<M: Memory> std::fmt::Debug for Transfer<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer").finish_non_exhaustive()
    }
}

impl<M: Memory> Drop for Transfer<'_, M> {
    fn drop(&mut self) {
        if self.memory.is_some() {
            self.end();
        }
    }
}
