//! The way of windows: faults that a userfaultfd reports to a thread of ours, while the thread that
//! faulted sleeps in the kernel.
//!
//! ```text
//!  program's thread               thread vmmc-windows                  thread vmmc-deadlines
//!  ────────────────               ───────────────────                  ─────────────────────
//!  load or store ─▶ kernel ─────▶ read ─▶ queue ─▶ handler(Fault)      every 10 ms while there are faults:
//!  goes on ◀── fill, protect ◀────────────────────── │                 reads what the other thread has not
//!  goes on, or SIGSEGV ◀── wake, or close the page ◀─┘ Answer          come to; closes pages that are late
//! ```
//!
//! Faults of both ways could share a thread: that would wait for a descriptor, and the signal
//! handler would write to another one instead of its futex. Each fault by signal would pay two more
//! system calls, and a handler of one way could hold up the other. So windows have a thread of
//! their own. It reads and asks handlers itself, for a thread between the two would put a wake-up
//! into each fault.
//!
//! Invariants: a fault that was read is in the queue or is [`Waiting::running`] until one of the
//! threads takes it out, and that one ends it: it wakes the thread that faulted, or closes the page
//! first. No lock is held while a handler runs. So a handler that hangs holds up no deadline. The
//! queue never grows. A fault that is not read waits in the kernel: until the thread reads it, or,
//! while a handler runs, for a tick. Source: userfaultfd(2).

use super::descriptor::{Descriptor, MESSAGE_BYTES, Reported, feature};
use super::table::{Asked, RANGES};
use super::{Answer, FaultError, Outcome, place_of, serve, signal};
use crate::limits::{FAULT_BATCH, FAULT_QUIET_TICKS, FAULT_TICK, FAULTS_WAITING_MAX};
use crate::region::PAGE_BYTES;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The descriptor of this process's windows, with its two threads.
pub(super) struct Userfaults {
    descriptor: Arc<Descriptor>,
    /// Faults of system calls are reported too.
    pub(super) kernel_faults: bool,
    /// Readable when it is over.
    bell: OwnedFd,
    is_over: AtomicBool,
    /// The kernel's id of the thread that asks handlers.
    asking: AtomicI32,
    waiting: Mutex<Waiting>,
    /// For the thread of the deadlines.
    work: Condvar,
}

/// Faults that were read and have not ended.
struct Waiting {
    queue: VecDeque<Entry>,
    /// The one that a handler is asked about.
    running: Option<Entry>,
    /// Nobody checks deadlines.
    is_resting: bool,
    /// Checks in a row that found no new fault.
    quiet_ticks: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    asked: Asked,
    until: Instant,
}

impl Userfaults {
    /// Opens a descriptor, and starts its threads.
    pub(super) fn start() -> Result<Arc<Userfaults>, FaultError> {
        let refused = |(call, errno): (&str, Errno)| FaultError::NoUserfaultfd { why: format!("{call}: {errno}") };
        if let Some(what) = Descriptor::offers().map_err(refused)?.lacks() {
            return Err(FaultError::NoWindows { what });
        }
        let (descriptor, kernel_faults) = Descriptor::open_widest(feature::WINDOWS).map_err(refused)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| FaultError::System { call: "eventfd", why: errno.to_string() })?;
        let userfaults = Arc::new(Userfaults {
            descriptor: Arc::new(descriptor),
            kernel_faults,
            bell,
            is_over: AtomicBool::new(false),
            asking: AtomicI32::new(0),
            waiting: Mutex::new(Waiting {
                queue: VecDeque::with_capacity(FAULTS_WAITING_MAX),
                running: None,
                is_resting: true,
                quiet_ticks: 0,
            }),
            work: Condvar::new(),
        });
        let started = userfaults.spawn("vmmc-windows", Userfaults::ask);
        let started = started.and_then(|()| userfaults.spawn("vmmc-deadlines", Userfaults::keep_deadlines));
        if started.is_err() {
            userfaults.stop();
        }
        started.map(|()| userfaults)
    }

    fn spawn(self: &Arc<Self>, name: &str, run: fn(&Userfaults)) -> Result<(), FaultError> {
        let theirs = self.clone();
        let started = std::thread::Builder::new().name(name.into()).spawn(move || run(&theirs));
        started.map(drop).map_err(|e| FaultError::System { call: "pthread_create", why: e.to_string() })
    }

    pub(super) fn descriptor(&self) -> &Arc<Descriptor> {
        &self.descriptor
    }

    /// Has the threads end, when a handler that runs has come to its own end.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        // It cannot be full.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        // With the lock, so that the other thread has not just looked and goes to sleep.
        let _waiting = self.waiting();
        self.work.notify_one();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no panic while the lock is held")
    }

    /// The thread that asks handlers.
    fn ask(&self) {
        self.asking.store(signal::thread_id(), Ordering::SeqCst);
        while !self.is_over() {
            let Some(asked) = self.next() else {
                // An interrupted poll only means one more read.
                let mut both = [PollFd::new(&*self.descriptor, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
                let _ = poll(&mut both, None);
                continue;
            };
            let outcome = serve(&asked, true);
            // None: its time was up meanwhile.
            if self.waiting().running.take().is_some() {
                self.end(&asked, outcome);
            }
        }
    }

    /// The next fault to ask about, which is running from here on.
    fn next(&self) -> Option<Asked> {
        let mut waiting = self.waiting();
        if waiting.queue.is_empty() {
            self.read(&mut waiting);
        }
        waiting.running = waiting.queue.pop_front();
        let asked = waiting.running?.asked;
        waiting.quiet_ticks = 0;
        if std::mem::take(&mut waiting.is_resting) {
            self.work.notify_one();
        }
        Some(asked)
    }

    /// Reads what the kernel reports, as far as there is room.
    fn read(&self, waiting: &mut Waiting) {
        let mut messages = [0u8; FAULT_BATCH * MESSAGE_BYTES];
        loop {
            let room = FAULT_BATCH.min(FAULTS_WAITING_MAX - waiting.queue.len()) * MESSAGE_BYTES;
            let Ok(bytes @ 1..) = rustix::io::read(&*self.descriptor, &mut messages[..room]) else { return };
            let now = Instant::now();
            for message in messages[..bytes].chunks_exact(MESSAGE_BYTES) {
                let message = message.try_into().expect("that many bytes");
                let Some(Reported { address, is_store, thread }) = Reported::from_message(message) else { continue };
                match RANGES.find(address) {
                    Some((range, deadline_ns)) => {
                        let until = now.checked_add(Duration::from_nanos(deadline_ns)).unwrap_or(now + LONGEST);
                        waiting.queue.push_back(Entry { asked: Asked { range, address, is_store, thread }, until });
                    }
                    // Its window was closed meanwhile: the next try finds none.
                    None => self.wake(address),
                }
            }
        }
    }

    fn end(&self, asked: &Asked, outcome: Outcome) {
        match outcome {
            Outcome::Answered(Answer::Refused) => self.refuse(asked),
            // The filler of a page has woken the threads that wait for it. A handler may also have
            // found nothing to do.
            Outcome::Answered(Answer::Served) | Outcome::Gone => self.wake(asked.address),
            // Another thread was here before, or the kernel has taken the page out of the page
            // table to reclaim its memory.
            Outcome::Allowed => match place_of(asked).map(|(place, offset)| place.show_again(offset)) {
                Some(Err(_)) => {
                    signal::explain(asked.address, "the kernel has no memory for the page");
                    self.refuse(asked);
                }
                _ => self.wake(asked.address),
            },
        }
    }

    fn wake(&self, address: usize) {
        self.descriptor.wake(address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES);
    }

    /// The thread that faulted gets SIGSEGV.
    fn refuse(&self, asked: &Asked) {
        if let Some((place, offset)) = place_of(asked) {
            if place.refuse(offset, asked.is_store).is_err() {
                // Nothing else would end its wait.
                signal::explain(asked.address, "the kernel has no room for another mapping to refuse it");
                signal::end_process();
            }
        }
        self.wake(asked.address);
    }

    /// The thread of the deadlines.
    fn keep_deadlines(&self) {
        let mut waiting = self.waiting();
        loop {
            waiting.is_resting = waiting.quiet_ticks >= FAULT_QUIET_TICKS;
            while waiting.is_resting && !self.is_over() {
                waiting = self.work.wait(waiting).expect("no panic while the lock is held");
            }
            waiting = self.work.wait_timeout(waiting, FAULT_TICK).expect("no panic while the lock is held").0;
            if self.is_over() {
                return;
            }
            if waiting.running.is_some() {
                self.read(&mut waiting);
            }
            let is_quiet = waiting.running.is_none() && waiting.queue.is_empty();
            waiting.quiet_ticks = if is_quiet { waiting.quiet_ticks + 1 } else { 0 };
            while let Some((asked, why)) = self.hopeless(&mut waiting) {
                drop(waiting);
                // Another thread may have opened the page, which is as well.
                if !super::is_allowed(&asked) {
                    signal::explain(asked.address, why);
                }
                self.refuse(&asked);
                waiting = self.waiting();
            }
        }
    }

    /// Takes out a fault that gets no answer, and why.
    fn hopeless(&self, waiting: &mut Waiting) -> Option<(Asked, &'static str)> {
        let now = Instant::now();
        let asking = self.asking.load(Ordering::SeqCst);
        let why = |entry: &Entry| match entry {
            _ if entry.asked.thread == asking => {
                Some("the thread that answers page faults met it, and cannot wait for itself")
            }
            _ if entry.until <= now => Some("its owner has not answered in time"),
            _ => None,
        };
        if let Some(why) = waiting.running.as_ref().and_then(why) {
            return Some((waiting.running.take()?.asked, why));
        }
        let (at, why) = waiting.queue.iter().enumerate().find_map(|(at, entry)| Some((at, why(entry)?)))?;
        Some((waiting.queue.remove(at)?.asked, why))
    }
}

/// A deadline that the clock cannot hold.
const LONGEST: Duration = Duration::from_secs(1 << 31);
