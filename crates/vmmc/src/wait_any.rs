//! Waiting for the first of several things of a session: notifications, transfers, words, records,
//! redirections, descriptors.
//!
//! Invariant: nothing is taken; what made the wait end is still there for the caller, unless
//! another thread takes it first. The thread sleeps in one place for all of them, as every wait of
//! the session does (`waiting.rs`).

use crate::bell::Words;
use crate::core::{Core, End};
use crate::endpoint::Endpoint;
use crate::error::WaitError;
use crate::export::Export;
use crate::hub::Taker;
use crate::redirection::Redirection;
use crate::ring::Ring;
use crate::session::Session;
use crate::target::Memory;
use crate::transfer::Transfer;
use crate::waiting::Descriptors;
use rustix::event::{PollFd, PollFlags};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmmc_host::Deadline;
use vmmc_host::limits::TIMED_SLEEPS;

/// One of the things that [`Session::wait_any`] waits for.
pub enum WaitFor<'a> {
    /// A notification of any export that has no handler of its own: then
    /// [`Session::take_notification`] has one.
    Notification,
    /// A notification of this export: then [`Export::take_notification`] has one.
    NotificationOf(&'a Export),
    /// A transfer is over, in whatever way: then [`Transfer::poll`] says how.
    Transfer(&'a mut dyn AnyTransfer),
    /// A redirection is over, in whatever way: then [`Redirection::wait`] says how at once.
    Redirection(&'a Redirection),
    /// An aligned word of an export satisfies a condition.
    Word {
        /// The export.
        export: &'a Export,
        /// Place of the word, bytes.
        offset: u64,
        /// The condition.
        ready: &'a dyn Fn(u64) -> bool,
    },
    /// A ring has a record: then [`Ring::take`] has it.
    Record(&'a Ring),
    /// An endpoint has a message, or a sender that asks to be let in: then [`Endpoint::poll`] takes
    /// it, or lets it in.
    Message(&'a Endpoint),
    /// A descriptor is readable, has hung up, or is in error, as poll has it.
    Readable(BorrowedFd<'a>),
    /// A descriptor is writable, has hung up, or is in error.
    Writable(BorrowedFd<'a>),
}

/// A [`Transfer`] of any kind, or [`Continuations`](crate::Continuations), of which one is to be
/// over.
pub trait AnyTransfer: sealed::Pending {}

impl<M: Memory> AnyTransfer for Transfer<'_, M> {}

pub(crate) mod sealed {
    /// What a wait for several things needs of a transfer.
    pub trait Pending {
        /// Whether it belongs to the session whose inside is at this address.
        fn is_of(&self, core: *const ()) -> bool;
        /// Whether it is over; does what can be done for that.
        fn is_over(&mut self) -> bool;
        /// Whether something has come for it.
        fn may_advance(&self) -> bool;
        /// Whether nothing will come for it until it finds room.
        fn is_starved(&self) -> bool;
    }
}

impl Session {
    /// Waits the session's timeout until one of several things is there; gives its place in `what`,
    /// the first if there are several. Takes nothing: if other threads take from the same places
    /// too, there may be nothing left.
    ///
    /// While it sleeps it is woken by all that wakes the single waits; see
    /// [`Export::wait_word`] for words. With an embedded node descriptors are looked at once a
    /// millisecond. The death of the node ends it with an error, unless transfers or descriptors
    /// are ready.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-any").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use std::os::fd::AsFd;
    /// use vmmc::{SendOptions, WaitFor};
    /// let export = session.export(4096).name("inbox").notify(true).create()?;
    /// let (line, other_end) = std::os::unix::net::UnixStream::pair()?;
    /// let mut what = [WaitFor::NotificationOf(&export), WaitFor::Readable(line.as_fd())];
    ///
    /// std::io::Write::write_all(&mut &other_end, b"hello")?;
    /// assert_eq!(session.wait_any(&mut what)?, 1);
    /// session.import("inbox").open()?.send_with(0, b"hello", SendOptions::notify())?;
    /// assert_eq!(session.wait_any(&mut what)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitError`]. [`WaitError::OtherSession`] for what belongs to another session, which would
    /// not be noticed here.
    pub fn wait_any(&self, what: &mut [WaitFor<'_>]) -> Result<usize, WaitError> {
        self.wait_any_by(what, self.core().default_deadline())
    }

    /// As [`wait_any`](Self::wait_any), until a deadline; one that has passed makes it a poll.
    ///
    /// # Errors
    /// As for [`wait_any`](Self::wait_any).
    pub fn wait_any_by(&self, what: &mut [WaitFor<'_>], deadline: Deadline) -> Result<usize, WaitError> {
        let core = &**self.core();
        check(core, what)?;
        let start = core.waiting.waiter.now();
        core.wait_any(what, deadline).map_err(|end| {
            let waited = core.waiting.waiter.now().since(start);
            core.wait_error(end, &format!("wait for any of {} things", what.len()), waited)
        })
    }
}

/// What can never come is an error, and not a wait in vain.
fn check(core: &Core, what: &[WaitFor<'_>]) -> Result<(), WaitError> {
    let same = |other: &Arc<Core>| std::ptr::eq(&**other, core);
    for (place, one) in what.iter().enumerate() {
        let own = match one {
            WaitFor::NotificationOf(export) => {
                export.must_allow_notifications()?;
                same(export.core())
            }
            WaitFor::Word { export, offset, .. } => {
                export.word(*offset)?;
                same(export.core())
            }
            WaitFor::Record(ring) => same(ring.export().core()),
            WaitFor::Redirection(redirection) => same(redirection.core()),
            WaitFor::Message(endpoint) => same(endpoint.core()),
            WaitFor::Transfer(transfer) => transfer.is_of(std::ptr::from_ref(core).cast()),
            WaitFor::Notification | WaitFor::Readable(_) | WaitFor::Writable(_) => true,
        };
        if !own {
            return Err(WaitError::OtherSession { place });
        }
    }
    Ok(())
}

impl Core {
    pub(crate) fn wait_any(&self, what: &mut [WaitFor<'_>], deadline: Deadline) -> Result<usize, End> {
        let (places, fds): (Vec<usize>, Vec<PollFd<'_>>) =
            (0..).zip(&*what).filter_map(|(place, one)| Some((place, one.descriptor()?))).unzip();
        let fds = (!fds.is_empty()).then(|| Descriptors::new(fds, &self.waiting.waiter));
        let regions = what.iter().fold(0, |all, one| all | one.regions());
        let words = (regions != 0).then_some(Words { sleeps: TIMED_SLEEPS, regions });
        loop {
            // What a transfer still has to post may wait for room: not while others rely on this
            // thread to sleep.
            if let Some(place) = what.iter_mut().position(WaitFor::is_transfer_over) {
                let before = what[..place].iter().position(|one| !one.is_transfer() && one.is_ready(self));
                return Ok(before.unwrap_or(place));
            }
            let starved = what.iter().any(WaitFor::is_starved);
            let first = || {
                // A wait for words does not.
                self.collect_if_free();
                let ready = what.iter().position(|one| one.is_ready(self));
                let fd = fds.as_ref().and_then(|fds| fds.first_ready()).map(|place| places[place]);
                ready.into_iter().chain(fd).min()
            };
            let found = self.wait_for(self.slice(deadline, starved), words, fds.as_ref(), |_| first());
            match found {
                Ok(place) if !what[place].is_transfer() => return Ok(place),
                Err(End::TimedOut) if starved && deadline.left(self.waiting.waiter.now()).is_some() => {}
                // A transfer fails with the node.
                Err(end) => return what.iter_mut().position(WaitFor::is_transfer_over).ok_or(end),
                Ok(_) => {}
            }
        }
    }

    /// For what finds room when some other thread gives it back, which need not announce it.
    fn slice(&self, deadline: Deadline, starved: bool) -> Deadline {
        if starved { deadline.min(self.deadline(vmmc_host::limits::TIMED_SLEEP_MAX)) } else { deadline }
    }
}

impl<'a> WaitFor<'a> {
    /// Regions of whose words it waits for some, as bits.
    fn regions(&self) -> u64 {
        match self {
            WaitFor::Word { export, .. } => export.region_bit(),
            WaitFor::Record(ring) => ring.export().region_bit(),
            WaitFor::Message(endpoint) => endpoint.regions(),
            _ => 0,
        }
    }

    fn descriptor(&self) -> Option<PollFd<'a>> {
        match self {
            WaitFor::Readable(fd) => Some(PollFd::from_borrowed_fd(*fd, PollFlags::IN)),
            WaitFor::Writable(fd) => Some(PollFd::from_borrowed_fd(*fd, PollFlags::OUT)),
            _ => None,
        }
    }

    /// Whether it is there, as far as memory shows.
    fn is_ready(&self, core: &Core) -> bool {
        match self {
            WaitFor::Notification => core.hub.has(Taker::Any),
            WaitFor::NotificationOf(export) => core.hub.has(export.taker()),
            WaitFor::Transfer(transfer) => transfer.may_advance(),
            WaitFor::Redirection(redirection) => redirection.has_outcome(),
            WaitFor::Word { export, offset, ready } => {
                export.word(*offset).is_ok_and(|word| ready(word.load(Ordering::Acquire)))
            }
            WaitFor::Record(ring) => ring.has_record(),
            WaitFor::Message(endpoint) => endpoint.has_something(),
            WaitFor::Readable(_) | WaitFor::Writable(_) => false,
        }
    }

    fn is_transfer(&self) -> bool {
        matches!(self, WaitFor::Transfer(_))
    }

    fn is_transfer_over(&mut self) -> bool {
        match self {
            WaitFor::Transfer(transfer) => transfer.is_over(),
            _ => false,
        }
    }

    fn is_starved(&self) -> bool {
        matches!(self, WaitFor::Transfer(transfer) if transfer.is_starved())
    }
}

impl std::fmt::Debug for WaitFor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WaitFor::Notification => f.write_str("Notification"),
            WaitFor::NotificationOf(export) => f.debug_tuple("NotificationOf").field(export).finish(),
            WaitFor::Transfer(_) => f.write_str("Transfer"),
            WaitFor::Redirection(_) => f.write_str("Redirection"),
            WaitFor::Word { export, offset, .. } => f.debug_tuple("Word").field(export).field(offset).finish(),
            WaitFor::Record(ring) => f.debug_tuple("Record").field(ring).finish(),
            WaitFor::Message(endpoint) => f.debug_tuple("Message").field(endpoint).finish(),
            WaitFor::Readable(fd) => f.debug_tuple("Readable").field(fd).finish(),
            WaitFor::Writable(fd) => f.debug_tuple("Writable").field(fd).finish(),
        }
    }
}
