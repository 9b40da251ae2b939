//! Servers whose calls an event loop takes, beside other descriptors of a program.
//!
//! Invariant: while the descriptor is not readable nothing is to be done: no call waits, and no
//! answer could go out that found no room before. Source: [GMS §3] server threads, of which there
//! need be none.

use crate::call::Call;
use crate::error::ServeError;
use crate::limits::{MESSAGES_PER_LOOK, POLLED_WAITS};
use crate::server::{ServerBuilder, ServerCounts, Serving};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use vmmc::WaitError;
use vmmc_host::wait::{Backoff, Manner, poll};
use vmmc_host::{Deadline, Nanos};

/// A server without a thread that takes calls: an event loop waits for its descriptor, and polls.
/// Dropping it ends the service. Made by [`ServerBuilder::polled`].
///
/// ```
/// # use vmmc_node::{Daemon, KeySource, NodeConfig};
/// # let name = format!("doc-polled-{}", std::process::id());
/// # let daemon = Daemon::start(NodeConfig::new(&name).key(KeySource::Plain))?;
/// # let stopper = daemon.stopper();
/// # let node = std::thread::spawn(move || daemon.run());
/// # let session = vmmc::Session::builder().node(&name).start_node(false).attach()?;
/// use rustix::event::{PollFd, PollFlags, poll};
/// use vmmc_rpc::{Client, Server};
/// let mut server = Server::new(&session, "polled").polled()?;
/// # let theirs = session.clone();
/// let call = move || Client::new(&theirs, "polled").connect()?.call(1, b"x");
/// let caller = std::thread::spawn(call); // usually in another process
/// while server.counts().done == 0 {
///     poll(&mut [PollFd::new(&server.event_fd(), PollFlags::IN)], None)?;
///     while let Some(call) = server.poll()? {
///         call.answer(b"it was polled");
///     }
/// }
/// assert_eq!(caller.join().expect("it does not panic")?, b"it was polled");
/// # drop(server);
/// # stopper.stop();
/// # node.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PolledServer {
    serving: Serving,
    service: String,
    /// Readable when one of the endpoint's descriptor and the timer is.
    all: OwnedFd,
    timer: OwnedFd,
    /// The timer runs, or has run out.
    timed: bool,
    /// What looking for the next call before the loop sleeps gained.
    backoff: Backoff,
    /// A call was given since the last poll in vain.
    worked: bool,
}

impl ServerBuilder {
    /// Serves in the caller's event loop. Handlers run where the calls are polled, whatever
    /// [`threads`](Self::threads) says.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn polled(self) -> Result<PolledServer, ServeError> {
        let service = self.service().to_string();
        let mut serving = self.serving(true)?;
        serving.remember_gone();
        let wait = |error| ServeError::Wait { service: service.clone(), error };
        let endpoint = serving.endpoint().event_fd().map_err(wait)?;
        let (all, timer) = descriptors(endpoint)
            .map_err(|e| wait(WaitError::System { what: "descriptor of a server".into(), why: e.to_string() }))?;
        Ok(PolledServer {
            serving,
            service,
            all,
            timer,
            timed: false,
            backoff: Backoff::new(&POLLED_WAITS),
            worked: false,
        })
    }
}

fn descriptors(endpoint: BorrowedFd<'_>) -> Result<(OwnedFd, OwnedFd), Errno> {
    let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
    for (fd, number) in [(endpoint, 0), (timer.as_fd(), 1)] {
        epoll::add(&all, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
    }
    Ok((all, timer))
}

impl PolledServer {
    /// A descriptor for event loops (poll, epoll): readable when [`poll`](Self::poll) may have a
    /// call, or has something to do. When it is, poll until there is nothing more. Only wait for it
    /// to be readable; do not read it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// The next call, if one is there. Answers that found no room go out, and callers that have
    /// asked are let in.
    ///
    /// # Errors
    /// [`ServeError::Wait`]: the node has gone, or this process was forked.
    pub fn poll(&mut self) -> Result<Option<Call>, ServeError> {
        self.serving.must_be_here().map_err(|error| ServeError::Wait { service: self.service.clone(), error })?;
        self.set_timer(None);
        for _ in 0..MESSAGES_PER_LOOK {
            if let Some(call) = self.serving.next_call() {
                self.worked = true;
                return Ok(Some(call));
            }
            self.linger();
            match self.serving.poll() {
                Ok(true) => {}
                Ok(false) => {
                    self.set_timer(self.serving.push_after());
                    return Ok(None);
                }
                Err(error) => return Err(ServeError::Wait { service: self.service.clone(), error }),
            }
        }
        // Callers keep it busy with other things: the loop has its turn, and comes again.
        self.again();
        Ok(None)
    }

    /// After a call, looks for the next one for a moment before the loop sleeps.
    fn linger(&mut self) {
        if !std::mem::take(&mut self.worked) {
            return;
        }
        let mut wait = self.backoff.begin(Manner::Yield, Deadline(Nanos::MAX));
        if wait.polls() {
            let (serving, now) = (&self.serving, || self.serving.now());
            let _ = poll(&mut wait, now, || serving.endpoint().has_message().then_some(()));
        }
    }

    /// Makes the descriptor readable: for a loop that leaves calls where they are, to look at its
    /// other descriptors first.
    pub fn again(&mut self) {
        self.set_timer(Some(Duration::from_nanos(1)));
    }

    /// What became of calls so far.
    pub fn counts(&self) -> ServerCounts {
        self.serving.counts()
    }

    /// Callers ([`Call::caller`]) that have gone since this was last asked.
    pub fn gone_callers(&mut self) -> Vec<u64> {
        self.serving.gone_callers()
    }

    /// Has the descriptor be readable after this time, or not for that reason any more.
    fn set_timer(&mut self, after: Option<Duration>) {
        if !self.timed && after.is_none() {
            return;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let after_ns = after.map_or(0, |after| after.subsec_nanos());
        let value = Timespec { tv_sec: 0, tv_nsec: after_ns.into() };
        let times = Itimerspec { it_interval: zero, it_value: value };
        self.timed =
            rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times).is_ok() && after.is_some();
    }
}

impl std::fmt::Debug for PolledServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolledServer").field("service", &self.service).finish_non_exhaustive()
    }
}
