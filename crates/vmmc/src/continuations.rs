//! Continuations: what is to be done when a transfer is over, run by the thread that polls.
//!
//! Invariant: each continuation runs once, after its transfer is over, in a call of
//! [`Continuations::run`] or [`Continuations::wait`] and never in one of its own; it is out of the
//! list by then, so that it may add others. Those that are dropped unrun drop their transfers.
//! Source: [GMS §3.4.1] continuations of nonblocking calls.

use crate::core::Core;
use crate::error::{TransferError, WaitError};
use crate::session::Session;
use crate::target::Memory;
use crate::transfer::Transfer;
use crate::wait_any::sealed::Pending;
use crate::wait_any::{AnyTransfer, WaitFor};
use std::sync::Arc;
use vmmc_host::Deadline;

/// Transfers under way, each with a function for its end.
///
/// Nothing runs by itself, and there is no thread: the functions run in [`run`](Self::run) and
/// [`wait`](Self::wait), in the thread that calls it. To wait for other things too, give it to
/// [`Session::wait_any`] as [`WaitFor::Transfer`](crate::WaitFor::Transfer), and then call
/// [`run`](Self::run). A poll when nothing has come costs some loads, however many transfers there
/// are.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-continue").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::{Continuations, SendOptions};
/// let export = session.export(4096).name("table").create()?;
/// let import = session.import("table").open()?;
/// export.write(0, &7u64.to_le_bytes())?;
///
/// let found = std::cell::Cell::new(0);
/// let mut all = Continuations::new(&session);
/// // Follows the place that the first word names.
/// all.add(import.post_fetch(0, vec![0; 8])?, |all, result, place| {
///     result.expect("the table is there");
///     let place = u64::from_le_bytes(place.try_into().expect("eight bytes"));
///     let next = import.post_fetch(place * 8, vec![0; 8]).expect("there is room");
///     let got = |_: &mut _, result: Result<u64, _>, _| found.set(result.expect("it is there"));
///     all.add(next, got).expect("of this session");
/// })?;
/// while !all.is_empty() {
///     all.wait()?;
/// }
/// assert_eq!(found.get(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Continuations<'a> {
    core: Arc<Core>,
    /// In the order in which they were added.
    all: Vec<Box<dyn Continued<'a> + 'a>>,
    /// Deliveries of the session when all were looked at last.
    seen: u64,
    /// One was added since, or found to be over.
    has_new: bool,
    /// One waits for room that no delivery announces.
    starved: bool,
}

/// A transfer and what follows.
trait Continued<'a>: Pending {
    /// Whether it is over; what has got nothing is not asked, unless nothing more will come.
    fn is_over_now(&mut self, gone: bool) -> bool {
        (gone || self.may_advance() || self.is_starved()) && self.is_over()
    }

    /// It is over.
    fn go_on(self: Box<Self>, all: &mut Continuations<'a>);
}

struct Continuation<'a, M: Memory, F> {
    // Goes before what its memory may belong to.
    transfer: Transfer<'a, M>,
    then: F,
}

impl<'a> Continuations<'a> {
    /// None yet; for transfers of this session.
    pub fn new(session: &Session) -> Continuations<'a> {
        Continuations { core: session.core().clone(), all: Vec::new(), seen: 0, has_new: false, starved: false }
    }

    /// `then` runs when the transfer is over: with this list, to which it may add; with the result,
    /// bytes moved; and with the memory of a fetch, `()` for a send. It should not wait. Where it
    /// does not run, it is dropped after the transfer, so it may hold what the transfer uses.
    ///
    /// # Errors
    /// [`WaitError::OtherSession`], and the transfer is dropped: this session would learn nothing
    /// of it.
    pub fn add<M, F>(&mut self, transfer: Transfer<'a, M>, then: F) -> Result<(), WaitError>
    where
        M: Memory + 'a,
        F: FnOnce(&mut Continuations<'a>, Result<u64, TransferError>, M) + 'a,
    {
        if !self.takes(&transfer) {
            return Err(WaitError::OtherSession { place: self.all.len() });
        }
        self.all.push(Box::new(Continuation { transfer, then }));
        self.has_new = true;
        Ok(())
    }

    /// Whether [`add`](Self::add) takes this transfer: it is of the session of the list.
    pub fn takes<M: Memory>(&self, transfer: &Transfer<'_, M>) -> bool {
        transfer.is_of(self.session())
    }

    /// How many transfers are not over, or have not been found so.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Runs the continuations of all that is over, and not of what they add; says how many ran.
    /// Steps an embedded node; never waits.
    pub fn run(&mut self) -> usize {
        self.core.step();
        self.core.collect_if_free();
        if !self.may_advance() && !self.starved {
            return 0;
        }
        let gone = self.begin_pass();
        let (mut at, mut end, mut ran) = (0, self.all.len(), 0);
        // A continuation that calls this itself leaves fewer.
        while at < end.min(self.all.len()) {
            if self.all[at].is_over_now(gone) {
                self.all.remove(at).go_on(self);
                (end, ran) = (end - 1, ran + 1);
            } else {
                at += 1;
            }
        }
        self.note_starved();
        ran
    }

    /// A pass over all of them begins; says whether nothing more will come.
    fn begin_pass(&mut self) -> bool {
        (self.has_new, self.seen) = (false, self.core.waiting.deliveries());
        self.core.usable().is_err()
    }

    fn note_starved(&mut self) {
        self.starved = self.all.iter().any(|one| one.is_starved());
    }

    /// Waits the session's timeout until something is over, and runs as [`run`](Self::run) does;
    /// says how many ran, 0 only if there are no transfers.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]. The death of the node is no error here: all transfers are over
    /// then, with one each.
    pub fn wait(&mut self) -> Result<usize, WaitError> {
        self.wait_by(self.core.default_deadline())
    }

    /// As [`wait`](Self::wait), until a deadline.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_by(&mut self, deadline: Deadline) -> Result<usize, WaitError> {
        let core = self.core.clone();
        let start = core.waiting.waiter.now();
        loop {
            let ran = self.run();
            if ran > 0 || self.is_empty() {
                return Ok(ran);
            }
            let what = format!("wait for any of {} transfers", self.len());
            core.wait_any(&mut [WaitFor::Transfer(self)], deadline)
                .map_err(|end| core.wait_error(end, &what, core.waiting.waiter.now().since(start)))?;
        }
    }

    fn session(&self) -> *const () {
        Arc::as_ptr(&self.core).cast()
    }
}

impl<'a, M, F> Continued<'a> for Continuation<'a, M, F>
where
    M: Memory + 'a,
    F: FnOnce(&mut Continuations<'a>, Result<u64, TransferError>, M) + 'a,
{
    fn go_on(self: Box<Self>, all: &mut Continuations<'a>) {
        let Continuation { mut transfer, then } = *self;
        let result = transfer.poll().expect("it is over");
        then(all, result, transfer.into_inner());
    }
}

impl<M: Memory, F> Pending for Continuation<'_, M, F> {
    fn is_of(&self, core: *const ()) -> bool {
        self.transfer.is_of(core)
    }

    fn is_over(&mut self) -> bool {
        self.transfer.is_over()
    }

    fn may_advance(&self) -> bool {
        self.transfer.may_advance()
    }

    fn is_starved(&self) -> bool {
        self.transfer.is_starved()
    }
}

/// One of them is over.
impl AnyTransfer for Continuations<'_> {}

impl Pending for Continuations<'_> {
    fn is_of(&self, core: *const ()) -> bool {
        std::ptr::eq(self.session(), core)
    }

    fn is_over(&mut self) -> bool {
        let gone = self.begin_pass();
        self.has_new = self.all.iter_mut().any(|one| one.is_over_now(gone));
        self.note_starved();
        self.has_new
    }

    fn may_advance(&self) -> bool {
        self.has_new || self.seen != self.core.waiting.deliveries()
    }

    fn is_starved(&self) -> bool {
        self.starved
    }
}

impl std::fmt::Debug for Continuations<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Continuations").field("len", &self.len()).finish()
    }
}
