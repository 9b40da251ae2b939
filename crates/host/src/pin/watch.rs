//! Learning that pinned addresses changed hands: the events of a userfaultfd on munmap and mremap.
//!
//! Invariant: the kernel lets an munmap or mremap of a watched range return only after its event
//! was read. From before the change until the event is in [`Watch::log`], either
//! [`Watch::is_changing`] or the log's count says so. The reading thread takes no lock and no
//! memory: it may be its own process's munmap that it must let go on.
//!
//! The descriptor is made for user mode only, which needs no privilege. A page fault is only asked
//! for where a program unlocked watched pages and punched a hole into them.

use crate::fault::descriptor::{Descriptor, MESSAGE_BYTES, Mode, feature};
use crate::region::RegionError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limits::{WATCH_DRAIN_TIME, WATCH_EVENTS_MAX};

/// What happened to a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It was unmapped.
    Gone { start: u64, end: u64 },
    /// It lies elsewhere now.
    Moved { from: u64, to: u64, len: u64 },
    /// More happened than was remembered.
    Lost,
}

/// The descriptor, and what its thread has read.
pub(super) struct Watch {
    fd: Descriptor,
    /// The thread is between a read and its entry in the log.
    reading: AtomicBool,
    /// Entries ever made.
    made: AtomicU64,
    /// Entries ever taken.
    taken: AtomicU64,
    /// Kind and first, second, third argument.
    log: Box<[[AtomicU64; 4]]>,
    lost: AtomicBool,
}

impl Watch {
    /// Makes the descriptor; [`run`](Watch::run) must follow on a thread of its own.
    pub(super) fn new() -> Result<Watch, RegionError> {
        // Not of content that is dropped: the range keeps its mapping, so its frames too.
        let events = feature::EVENT_REMAP | feature::EVENT_UNMAP;
        let fd = Descriptor::open(events).map_err(failed)?;
        Ok(Watch {
            fd,
            reading: AtomicBool::new(false),
            made: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            log: (0..WATCH_EVENTS_MAX).map(|_| Default::default()).collect(),
            lost: AtomicBool::new(false),
        })
    }

    /// Watches a range of shared pages.
    pub(super) fn add(&self, start: usize, len: usize) -> Result<(), RegionError> {
        self.fd.register(start, len, &[Mode::Missing]).map_err(failed)
    }

    /// No longer watches a range: changes of it are ours.
    pub(super) fn remove(&self, start: usize, len: usize) {
        self.fd.unregister(start, len);
    }

    /// Whether a change of a watched range is under way in the kernel. One system call that does
    /// nothing else: the kernel says "again" before it checks the empty range.
    pub(super) fn is_changing(&self) -> bool {
        self.fd.zero(0, 0) == Err(Errno::AGAIN)
    }

    /// Whether something was read, or is being read, that nobody has taken.
    #[inline]
    pub(super) fn has_changes(&self) -> bool {
        self.reading.load(Ordering::SeqCst)
            || self.made.load(Ordering::SeqCst) != self.taken.load(Ordering::SeqCst)
            || self.lost.load(Ordering::Relaxed)
    }

    /// Waits until every change that began before this call is in the log; false if that takes too
    /// long.
    pub(super) fn drain(&self) -> bool {
        let until = Instant::now() + WATCH_DRAIN_TIME;
        while self.is_changing() || self.reading.load(Ordering::SeqCst) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(10));
        }
        true
    }

    /// The oldest entry, which counts as new until [`done`](Watch::done). One caller at a time.
    pub(super) fn next(&self) -> Option<Change> {
        if self.lost.load(Ordering::SeqCst) {
            return Some(Change::Lost);
        }
        let taken = self.taken.load(Ordering::Relaxed);
        if taken == self.made.load(Ordering::Acquire) {
            return None;
        }
        let entry = &self.log[taken as usize % WATCH_EVENTS_MAX];
        let [kind, a, b, c] = [0, 1, 2, 3].map(|i: usize| entry[i].load(Ordering::Relaxed));
        Some(if kind == 0 { Change::Gone { start: a, end: b } } else { Change::Moved { from: a, to: b, len: c } })
    }

    /// Everybody has been told of an entry.
    pub(super) fn done(&self, change: Change) {
        if change == Change::Lost {
            self.taken.store(self.made.load(Ordering::SeqCst), Ordering::SeqCst);
            self.lost.store(false, Ordering::SeqCst);
        } else {
            self.taken.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Reads events for good.
    pub(super) fn run(&self) {
        let mut messages = [0u8; 16 * MESSAGE_BYTES];
        loop {
            // An interrupted poll only means one more read.
            let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None);
            self.reading.store(true, Ordering::SeqCst);
            while let Ok(bytes @ 1..) = rustix::io::read(&self.fd, &mut messages) {
                messages[..bytes].chunks_exact(MESSAGE_BYTES).for_each(|message| self.note(message));
            }
            self.reading.store(false, Ordering::SeqCst);
        }
    }

    fn note(&self, message: &[u8]) {
        let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("eight bytes"));
        match message[0] {
            0x12 => self.fill(word(16)),
            0x14 => self.push([1, word(8), word(16), word(24)]),
            0x16 => self.push([0, word(8), word(16), 0]),
            _ => {}
        }
    }

    /// A page fault in a hole that somebody punched into our pages: zeros, as after any such hole.
    fn fill(&self, address: u64) {
        let page = crate::region::PAGE_BYTES as u64;
        let at = address / page * page;
        if self.fd.zero(at, page).is_err() {
            // It is there by now, or gone, or another range is changing, whose event comes next.
            // The thread tries again.
            self.fd.wake(at as usize, page as usize);
        }
    }

    fn push(&self, words: [u64; 4]) {
        let made = self.made.load(Ordering::Relaxed);
        if made - self.taken.load(Ordering::Acquire) >= WATCH_EVENTS_MAX as u64 {
            self.lost.store(true, Ordering::SeqCst);
            return;
        }
        let entry = &self.log[made as usize % WATCH_EVENTS_MAX];
        entry.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.made.store(made + 1, Ordering::SeqCst);
    }
}

fn failed((call, errno): (&'static str, Errno)) -> RegionError {
    RegionError::System { call, errno }
}
