//! What a signal handler reads and writes: the ranges that have owners, and requests to them.
//!
//! ```text
//!  request:  FREE ─▶ CLAIMED ─▶ POSTED ─▶ TAKEN ─▶ SERVED or REFUSED ─▶ FREE
//!                                  │         └──▶ GIVEN_UP ──(answer)──▶ FREE
//!                                  └──(the waiting thread leaves)──────▶ FREE
//! ```
//!
//! Invariants: nothing here locks or allocates. An id of a range is never used twice, so a reader
//! that finds one id before and after has read what belongs to it. A remover of a range does so
//! before the thread polls for requests the last time, and a poster of a request checks its range
//! afterwards: one of the two sees the other.

use super::Answer;
use crate::limits::{FAULT_RANGES_MAX, FAULTS_WAITING_MAX};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// A range of addresses, and how long its owner may take for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) deadline_ns: u64,
    /// Its faults come by a userfaultfd.
    pub(super) is_window: bool,
}

struct Slot {
    /// 0: free.
    id: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    deadline_ns: AtomicU64,
    is_window: AtomicBool,
}

pub(super) struct Ranges {
    slots: [Slot; FAULT_RANGES_MAX],
    /// Slots that were ever used.
    used: AtomicUsize,
}

pub(super) static RANGES: Ranges = Ranges::new();

impl Ranges {
    pub(super) const fn new() -> Ranges {
        Ranges {
            slots: [const {
                Slot {
                    id: AtomicU64::new(0),
                    start: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                    deadline_ns: AtomicU64::new(0),
                    is_window: AtomicBool::new(false),
                }
            }; FAULT_RANGES_MAX],
            used: AtomicUsize::new(0),
        }
    }

    fn used(&self) -> &[Slot] {
        &self.slots[..self.used.load(SeqCst)]
    }

    /// Enters a range under a new id; false if the table is full. One caller at a time.
    pub(super) fn add(&self, id: u64, owned: &Owned) -> bool {
        let Some(at) = self.slots.iter().position(|slot| slot.id.load(SeqCst) == 0) else { return false };
        let slot = &self.slots[at];
        slot.start.store(owned.start, SeqCst);
        slot.end.store(owned.end, SeqCst);
        slot.deadline_ns.store(owned.deadline_ns, SeqCst);
        slot.is_window.store(owned.is_window, SeqCst);
        slot.id.store(id, SeqCst);
        self.used.fetch_max(at + 1, SeqCst);
        true
    }

    pub(super) fn remove(&self, id: u64) {
        self.used().iter().filter(|slot| slot.id.load(SeqCst) == id).for_each(|slot| slot.id.store(0, SeqCst));
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.used().iter().any(|slot| slot.id.load(SeqCst) == id)
    }

    /// Id of the range that an address lies in, and the time for an answer.
    pub(super) fn find(&self, address: usize) -> Option<(u64, u64)> {
        self.used().iter().find_map(|slot| {
            let (id, owned) = slot.read()?;
            (owned.start..owned.end).contains(&address).then_some((id, owned.deadline_ns))
        })
    }

    pub(super) fn is_window(&self, id: u64) -> bool {
        self.used().iter().filter_map(Slot::read).any(|(of, owned)| of == id && owned.is_window)
    }

    pub(super) fn overlaps(&self, new: &Owned) -> bool {
        self.used().iter().filter_map(Slot::read).any(|(_, old)| old.start < new.end && new.start < old.end)
    }
}

impl Slot {
    /// What it holds; none if it is free, or changes right now, which a fault of the range that is
    /// being entered or removed cannot tell from before or after.
    fn read(&self) -> Option<(u64, Owned)> {
        let id = self.id.load(SeqCst);
        let owned = Owned {
            start: self.start.load(SeqCst),
            end: self.end.load(SeqCst),
            deadline_ns: self.deadline_ns.load(SeqCst),
            is_window: self.is_window.load(SeqCst),
        };
        (id != 0 && self.id.load(SeqCst) == id).then_some((id, owned))
    }
}

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const POSTED: u32 = 2;
const TAKEN: u32 = 3;
const SERVED: u32 = 4;
const REFUSED: u32 = 5;
const GIVEN_UP: u32 = 6;

/// What a thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Id of the range.
    pub(super) range: u64,
    pub(super) address: usize,
    pub(super) is_store: bool,
    pub(super) thread: i32,
}

pub(super) struct Request {
    state: AtomicU32,
    range: AtomicU64,
    address: AtomicUsize,
    is_store: AtomicBool,
    thread: AtomicI32,
}

pub(super) struct Requests {
    all: [Request; FAULTS_WAITING_MAX],
    /// Changes when there is something to poll for.
    bell: AtomicU32,
}

pub(super) static REQUESTS: Requests = Requests::new();

impl Request {
    pub(super) fn asked(&self) -> Asked {
        Asked {
            range: self.range.load(SeqCst),
            address: self.address.load(SeqCst),
            is_store: self.is_store.load(SeqCst),
            thread: self.thread.load(SeqCst),
        }
    }

    /// Sleeps until there is an answer, and takes it; none: not within that time. The thread may
    /// leave then, by [`give_up`](Self::give_up).
    pub(super) fn await_answer(&self, time_ns: u64) -> Option<Answer> {
        let answer = match self.state.load(SeqCst) {
            SERVED => Answer::Served,
            REFUSED => Answer::Refused,
            waiting => {
                futex_wait(&self.state, waiting, Some(time_ns));
                return None;
            }
        };
        self.state.store(FREE, SeqCst);
        Some(answer)
    }

    /// The thread leaves; an answer that came just now counts.
    pub(super) fn give_up(&self) -> Option<Answer> {
        let left = [(POSTED, FREE), (TAKEN, GIVEN_UP)];
        let change = |(from, to)| self.state.compare_exchange(from, to, SeqCst, SeqCst).is_ok();
        // In this order: the thread may take it between the two.
        if left.into_iter().any(change) { None } else { self.await_answer(0) }
    }
}

impl Requests {
    pub(super) const fn new() -> Requests {
        Requests {
            all: [const {
                Request {
                    state: AtomicU32::new(FREE),
                    range: AtomicU64::new(0),
                    address: AtomicUsize::new(0),
                    is_store: AtomicBool::new(false),
                    thread: AtomicI32::new(0),
                }
            }; FAULTS_WAITING_MAX],
            bell: AtomicU32::new(0),
        }
    }

    /// Posts a request; none if all are in use.
    pub(super) fn post(&self, asked: Asked) -> Option<&Request> {
        let request = self.all.iter().find(|r| r.state.compare_exchange(FREE, CLAIMED, SeqCst, SeqCst).is_ok())?;
        request.range.store(asked.range, SeqCst);
        request.address.store(asked.address, SeqCst);
        request.is_store.store(asked.is_store, SeqCst);
        request.thread.store(asked.thread, SeqCst);
        request.state.store(POSTED, SeqCst);
        self.ring();
        Some(request)
    }

    /// Wakes the thread that answers.
    pub(super) fn ring(&self) {
        self.bell.fetch_add(1, SeqCst);
        futex_wake(&self.bell);
    }

    pub(super) fn bell(&self) -> u32 {
        self.bell.load(SeqCst)
    }

    /// Sleeps until the bell is another.
    pub(super) fn wait(&self, bell: u32) {
        futex_wait(&self.bell, bell, None);
    }

    /// A request that nobody has taken.
    pub(super) fn take(&self) -> Option<&Request> {
        self.all.iter().find(|r| r.state.compare_exchange(POSTED, TAKEN, SeqCst, SeqCst).is_ok())
    }

    pub(super) fn answer(&self, request: &Request, answer: Answer) {
        let state = if answer == Answer::Served { SERVED } else { REFUSED };
        match request.state.compare_exchange(TAKEN, state, SeqCst, SeqCst) {
            Ok(_) => futex_wake(&request.state),
            // The thread has left.
            Err(_) => request.state.store(FREE, SeqCst),
        }
    }
}

fn futex_wait(word: &AtomicU32, value: u32, time_ns: Option<u64>) {
    let time = time_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000).min(i32::MAX as u64) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time, if any, live as long as the call. A wake-up, a signal, another
    // value and the end of the time are the same to the caller, which polls again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, time) };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives as long as the program; nobody's memory changes.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}
