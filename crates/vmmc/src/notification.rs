//! Notifications: taking them by waiting, by handlers, by event loops [NT §3.1].
//!
//! Invariant: a notification is seen only after the data it speaks of; it goes to exactly one
//! taker.

use crate::core::{Core, End};
use crate::error::{WaitError, millis};
use crate::hub::Taker;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use vmmc_host::handshake::{announce_sleep, retract_sleep};
use vmmc_host::{Deadline, Nanos};
use vmmc_nic::{ExportId, Sender};

/// A sender says: data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The export that received data.
    pub export: ExportId,
    /// First byte of the transfer, in the export.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
    /// Its last (up to) eight bytes, little endian, padded with zeros; of a gather-send, those of
    /// its last range.
    pub last_word: u64,
    /// The word that its sender put in with [`SendOptions::notify_with`](crate::SendOptions); else
    /// 0.
    pub word: u64,
    /// Who sent it. The node vouches for the process; which of its imports it was, a process of the
    /// same node says itself.
    pub from: Sender,
}

/// Ends a notification handler when dropped, after the call it is in.
#[must_use = "dropping the guard ends the handler"]
pub struct HandlerGuard {
    core: Arc<Core>,
    taker: Taker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The descriptor for event loops, made when first asked for.
#[derive(Default)]
pub(crate) struct EventLoop {
    epoll: OnceLock<OwnedFd>,
    /// Wakers are told that somebody sleeps.
    armed: Mutex<bool>,
}

/// The descriptors of one who watches some exports.
#[derive(Debug)]
pub(crate) struct Watched {
    all: OwnedFd,
    queue: Arc<OwnedFd>,
}

impl Core {
    /// The next notification for a taker.
    pub(crate) fn wait_notification(&self, taker: Taker, deadline: Deadline) -> Result<Notification, WaitError> {
        let start = self.waiting.waiter.now();
        self.wait(deadline, || self.hub.take(taker)).map_err(|end| {
            let waited = self.waiting.waiter.now().since(start);
            self.wait_error(end, &taker.to_string(), waited)
        })
    }

    pub(crate) fn wait_error(&self, end: End, what: &str, waited: std::time::Duration) -> WaitError {
        let what = what.to_string();
        match end {
            End::TimedOut => WaitError::TimedOut { what, after_ms: millis(waited) },
            End::Gone => WaitError::NodeGone { what, node: self.identity.name.clone() },
            End::Forked => WaitError::Forked { parent: self.pid },
        }
    }

    /// A notification if one is there; for event loops this also says that the loop is about to
    /// sleep when there is none.
    pub(crate) fn take_notification(&self, taker: Taker) -> Option<Notification> {
        if self.is_forked() {
            return None;
        }
        self.disarm();
        self.step();
        self.collect();
        self.hub.take(taker).or_else(|| {
            self.arm()?;
            self.collect();
            self.hub.take(taker)
        })
    }

    fn arm(&self) -> Option<()> {
        self.event_loop.epoll.get()?;
        let mut armed = self.event_loop.lock();
        if !*armed {
            self.waiting.drain_for_loop();
            announce_sleep(self.hot.area.process_sleeping());
            announce_sleep(self.bell.word());
            *armed = true;
        }
        Some(())
    }

    fn disarm(&self) {
        let mut armed = self.event_loop.lock();
        if *armed {
            retract_sleep(self.hot.area.process_sleeping());
            retract_sleep(self.bell.word());
            *armed = false;
        }
    }

    /// A descriptor that is readable when a notification may be taken, or the node has gone: it
    /// watches the process's wake-up, the queue, and the socket of events, which then hangs up.
    pub(crate) fn event_fd(&self) -> Result<BorrowedFd<'_>, WaitError> {
        if self.is_forked() {
            return Err(WaitError::Forked { parent: self.pid });
        }
        if let Some(fd) = self.event_loop.epoll.get() {
            return Ok(fd.as_fd());
        }
        let fd = self.make_event_fd().map_err(no_descriptor)?;
        let fd = self.event_loop.epoll.get_or_init(|| fd);
        self.arm();
        self.collect();
        Ok(fd.as_fd())
    }

    fn make_event_fd(&self) -> Result<OwnedFd, Errno> {
        let queue = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let all = self.event_set(&queue)?;
        self.hub.set_event(queue);
        Ok(all)
    }

    /// Readable when one of these is: an event of a queue, the process's wake-up, and the socket of
    /// events, when it has hung up.
    fn event_set(&self, queue: &OwnedFd) -> Result<OwnedFd, Errno> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (readable, hung_up) = (epoll::EventFlags::IN, epoll::EventFlags::RDHUP);
        epoll::add(&all, queue, epoll::EventData::new_u64(0), readable)?;
        epoll::add(&all, self.waiting.wake.as_fd(), epoll::EventData::new_u64(1), readable)?;
        epoll::add(&all, &self.events_end, epoll::EventData::new_u64(2), hung_up)?;
        Ok(all)
    }

    /// The descriptors of one who watches these exports, whose notifications are for it alone.
    pub(crate) fn watch(&self, exports: &[ExportId]) -> Result<Watched, WaitError> {
        // Whoever takes nothing arms the loop, once there is this one.
        self.event_fd()?;
        let make = || {
            let queue = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            Ok(Watched { all: self.event_set(&queue)?, queue })
        };
        let watched: Watched = make().map_err(no_descriptor)?;
        exports.iter().for_each(|export| self.hub.watch(export.to_u64(), watched.queue.clone()));
        Ok(watched)
    }

    /// Starts a thread that runs a handler for every notification of a taker.
    pub(crate) fn handle_notifications(
        self: &Arc<Core>,
        taker: Taker,
        mut handler: impl FnMut(Notification) + Send + 'static,
    ) -> Result<HandlerGuard, WaitError> {
        if self.is_forked() {
            return Err(WaitError::Forked { parent: self.pid });
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (core, stopped) = (self.clone(), stop.clone());
        self.hub.handler(taker, true);
        let run = move || {
            let next = || {
                if stopped.load(Ordering::Acquire) { Some(None) } else { core.hub.take(taker).map(Some) }
            };
            while let Ok(Some(notification)) = core.wait(Deadline(Nanos::MAX), next) {
                handler(notification);
            }
        };
        let thread = std::thread::Builder::new().name("vmmc-notify".into()).spawn(run);
        let thread = thread.map_err(|e| {
            self.hub.handler(taker, false);
            WaitError::System { what: "thread for a notification handler".into(), why: e.to_string() }
        })?;
        Ok(HandlerGuard { core: self.clone(), taker, stop, thread: Some(thread) })
    }
}

fn no_descriptor(errno: Errno) -> WaitError {
    WaitError::System { what: "descriptor for event loops".into(), why: errno.to_string() }
}

impl Watched {
    /// What has come from now on makes it readable again.
    pub(crate) fn clear(&self) {
        // It fails when nothing has come.
        let _ = rustix::io::read(&self.queue, &mut [0u8; 8]);
    }

    /// Readable when something may have come.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

impl EventLoop {
    fn lock(&self) -> std::sync::MutexGuard<'_, bool> {
        self.armed.lock().expect("no panic while the lock is held")
    }
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        if self.core.is_forked() {
            // The thread exists in the parent only; there is nothing to wait for.
            return std::mem::forget(self.thread.take());
        }
        self.core.hub.handler(self.taker, false);
        self.stop.store(true, Ordering::Release);
        self.core.kick();
        let Some(thread) = self.thread.take() else { return };
        if thread.thread().id() != std::thread::current().id() {
            // A handler that panicked has said so on stderr already.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Display for Taker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Taker::Any => f.write_str("wait for a notification"),
            Taker::Export(id) => write!(f, "wait for a notification of export {}", ExportId::from_u64(*id)),
        }
    }
}
