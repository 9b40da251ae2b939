//! Set-up calls to the node: one socket, any number of threads, answers told apart by serial
//! numbers.
//!
//! Invariant: at most one thread reads the socket; a reply goes to the thread that asked, or, if
//! that gave up, what it grants is given back to the node.

use crate::error::{CallError, millis};
use crate::limits::{POSTED_CALLS_KEPT_MAX, UNREAD_REPLIES_MAX};
use crate::waiting::wait_sliced;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use vmmc_host::channel::ChannelError;
use vmmc_host::control::{Answer, Call, Refusal, Reply, Request, decode, encode};
use vmmc_host::wait::Waiter;
use vmmc_host::{Channel, Deadline, Nanos};

/// An answer and the descriptors beside it.
pub(crate) type Answered = (Answer, Vec<OwnedFd>);

/// The calling side of a control socket.
pub(crate) struct Control {
    channel: Channel,
    waiter: Waiter,
    node: String,
    serial: AtomicU64,
    replies: Mutex<Replies>,
    arrived: Condvar,
    closed: AtomicBool,
    /// Calls whose replies nobody waits for and nobody has read yet.
    told: AtomicUsize,
    /// Such calls that did not fit the socket.
    kept: Mutex<VecDeque<Call>>,
    /// Calls made.
    pub(crate) calls: AtomicU64,
}

/// What the node said, and the descriptors beside it.
type Said = (Result<Answer, Refusal>, Vec<OwnedFd>);

#[derive(Default)]
struct Replies {
    /// By serial: asked and not come, or come and not taken.
    waiting: HashMap<u64, Option<Said>>,
    /// Some thread reads the socket.
    reading: bool,
}

impl Control {
    pub(crate) fn new(channel: Channel, waiter: Waiter, node: String) -> Control {
        Control {
            channel,
            waiter,
            node,
            serial: AtomicU64::new(1),
            replies: Mutex::default(),
            arrived: Condvar::new(),
            closed: AtomicBool::new(false),
            told: AtomicUsize::new(0),
            kept: Mutex::default(),
            calls: AtomicU64::new(0),
        }
    }

    /// Whether the node has closed its end.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the connection, so that the node takes us for gone.
    pub(crate) fn shut_down(&self) {
        self.channel.shut_down();
    }

    /// Ends all calls: the node is gone.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.lock());
        self.arrived.notify_all();
    }

    /// Makes a call and waits for its answer.
    pub(crate) fn call(&self, call: Call, fds: &[BorrowedFd<'_>], deadline: Deadline) -> Result<Answered, CallError> {
        self.send_kept();
        let start = self.waiter.now();
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.lock().waiting.insert(serial, None);
        let result = self.send(&Request { serial, call }, fds, deadline).and_then(|()| self.wait(serial, deadline));
        self.lock().waiting.remove(&serial);
        match result {
            Ok((Ok(answer), fds)) => Ok((answer, fds)),
            Ok((Err(refusal), _)) => Err(CallError::Refused(refusal)),
            Err(error) => Err(self.explain(error, start)),
        }
    }

    /// Makes a call whose answer nobody needs; never waits.
    pub(crate) fn post(&self, call: Call) {
        if self.told.fetch_add(1, Ordering::Relaxed) >= UNREAD_REPLIES_MAX {
            self.read_available();
        }
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let request = Request { serial, call };
        if let Err(ChannelError::WouldBlock) = self.channel.try_send(&encode(&request), &[]) {
            let mut kept = self.kept.lock().expect("no panic while the lock is held");
            if kept.len() < POSTED_CALLS_KEPT_MAX {
                kept.push_back(request.call);
            }
        }
    }

    fn send_kept(&self) {
        let kept = std::mem::take(&mut *self.kept.lock().expect("no panic while the lock is held"));
        kept.into_iter().for_each(|call| self.post(call));
    }

    fn send(&self, request: &Request, fds: &[BorrowedFd<'_>], deadline: Deadline) -> Result<(), ChannelError> {
        let bytes = encode(request);
        match self.channel.try_send(&bytes, fds) {
            Err(ChannelError::WouldBlock) => {}
            other => return other,
        }
        let mut try_again = || match self.channel.try_send(&bytes, fds) {
            Err(ChannelError::WouldBlock) => None,
            other => Some(other),
        };
        let block = |until: Deadline| wait_for(self.channel.as_fd(), PollFlags::OUT, until, self.waiter.now());
        wait_sliced(&self.waiter, deadline, None, &mut try_again, block).unwrap_or(Err(ChannelError::TimedOut))
    }

    fn wait(&self, serial: u64, deadline: Deadline) -> Result<Said, ChannelError> {
        let ready = || {
            if let Some(reply) = self.take(serial) {
                return Some(Ok(reply));
            }
            self.read_available();
            if let Some(reply) = self.take(serial) {
                return Some(Ok(reply));
            }
            if self.is_closed() {
                return Some(Err(ChannelError::Closed));
            }
            if !self.waiter.steps() {
                std::thread::yield_now();
            }
            None
        };
        let block = |until| self.block(serial, until);
        wait_sliced(&self.waiter, deadline, None, ready, block).unwrap_or(Err(ChannelError::TimedOut))
    }

    fn take(&self, serial: u64) -> Option<Said> {
        self.lock().waiting.get_mut(&serial)?.take()
    }

    /// Reads what is there, unless another thread does.
    fn read_available(&self) {
        {
            let mut replies = self.lock();
            if replies.reading {
                return;
            }
            replies.reading = true;
        }
        self.read_all();
        self.lock().reading = false;
        self.arrived.notify_all();
    }

    /// Sleeps until something has come for somebody, or the deadline.
    fn block(&self, serial: u64, deadline: Deadline) {
        let mut replies = self.lock();
        if self.is_closed() || replies.waiting.get(&serial).is_none_or(Option::is_some) {
            return;
        }
        if replies.reading {
            if let Some(left) = deadline.left(self.waiter.now()) {
                let _ = self.arrived.wait_timeout(replies, left);
            }
            return;
        }
        replies.reading = true;
        drop(replies);
        wait_for(self.channel.as_fd(), PollFlags::IN, deadline, self.waiter.now());
        self.read_all();
        self.lock().reading = false;
        self.arrived.notify_all();
    }

    /// Reads until nothing is there. The caller has the role of the reader.
    fn read_all(&self) {
        while is_ready(self.channel.as_fd()) {
            match self.channel.try_receive() {
                Ok((bytes, fds)) => self.file(&bytes, fds),
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::TooLarge { .. }) => {}
                Err(_) => return self.closed.store(true, Ordering::Release),
            }
        }
    }

    /// Gives a reply to the thread that asked. What came too late is given back.
    fn file(&self, bytes: &[u8], fds: Vec<OwnedFd>) {
        let Ok(reply) = decode::<Reply>(bytes) else { return };
        let mut replies = self.lock();
        if let Some(place) = replies.waiting.get_mut(&reply.serial) {
            *place = Some((reply.result, fds));
            return;
        }
        drop(replies);
        let _ = self.told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match reply.result {
            Ok(Answer::Imported(grant)) => self.keep(Call::Unimport { import: grant.import }),
            Ok(Answer::Exported { export }) => self.keep(Call::Unexport { export, moving: false }),
            _ => {}
        }
    }

    /// Leaves a call to the next thread that comes by, since this one may be inside
    /// [`tell`](Self::tell).
    fn keep(&self, call: Call) {
        self.kept.lock().expect("no panic while the lock is held").push_back(call);
    }

    fn explain(&self, error: ChannelError, start: Nanos) -> CallError {
        match error {
            ChannelError::Closed => {
                self.close();
                CallError::NodeGone { node: self.node.clone() }
            }
            ChannelError::TimedOut => {
                CallError::TimedOut { node: self.node.clone(), after_ms: millis(self.waiter.now().since(start)) }
            }
            other => CallError::Protocol { node: self.node.clone(), what: other.to_string() },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Replies> {
        self.replies.lock().expect("no panic while the lock is held")
    }
}

/// Whether a read would give something.
fn is_ready(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
}

/// Waits until a descriptor is ready; an early return does no harm, callers poll again.
fn wait_for(fd: BorrowedFd<'_>, what: PollFlags, deadline: Deadline, now: Nanos) {
    let Some(left) = deadline.left(now) else { return };
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(left.subsec_nanos()) };
    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, what)], Some(&timeout));
}
