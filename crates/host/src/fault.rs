//! One owner of page faults for a process: ranges of reservations have handlers, and whoever
//! touches a page there that it may not touch waits until its handler has made that possible.
//!
//! ```text
//!  program's thread                                      thread vmmc-faults
//!  ────────────────                                      ──────────────────
//!  load or store ─▶ SIGSEGV ─▶ whose range? ── request ─▶ handler(Fault) ─ fill, protect ─▶ Answer
//!  the same again ◀─ return ◀─────────────────── answer ──────────────────────────────────────┘
//!                       └── nobody's: the handler that was installed before, exactly as before
//! ```
//!
//! Invariants: a range has one owner. In the signal handler nothing locks or allocates: it finds
//! the range in a table of atomics (`fault/table.rs`), and waits on a futex with a deadline. A
//! fault that is not ours, or that nobody answers, ends as it would have without us. A forked child
//! has no owner, and is told. The thread lives as long as there are registrations.
//!
//! All ranges go by way of the signal now, which [`Registration::way`] says. The pages of a
//! reservation are protected by their mappings, and for those the kernel raises SIGSEGV whatever is
//! registered with a userfaultfd: that hears of pages which are missing where access is allowed.
//! SIGBUS is left alone, for it tells of memory that is gone, which no handler brings back.
//!
//! A system call that is given such a page fails with EFAULT instead of faulting; programs touch
//! pages before they hand them to the kernel.
//!
//! Source: sigaction(2), signal-safety(7), futex(2), userfaultfd(2).
//!
//! ```
//! use vmmc_host::fault::{Answer, Faults};
//! use vmmc_host::{Access, Region, Reservation};
//! let (place, memory) = (Reservation::new(1 << 20)?, Region::create(1 << 20)?);
//! memory.write(8192, b"fetched")?;
//! let mine = place.clone();
//! let registration = Faults::get()?.register(&place, 0..1 << 20, move |fault| {
//!     let page = fault.page();
//!     match mine.fill(page, &memory, page, 4096, Access::ReadWrite) {
//!         Ok(()) => Answer::Served,
//!         Err(_) => Answer::Refused,
//!     }
//! })?;
//! let mut seen = [0; 7];
//! place.read(8192, &mut seen)?;
//! assert_eq!(&seen, b"fetched");
//! drop(registration);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod descriptor;
mod signal;
mod table;

use crate::limits::{FAULT_ANSWER_TIME, FAULT_RANGES_MAX};
use crate::region::PAGE_BYTES;
use crate::reservation::{Access, Reservation, ReservationError};
pub use descriptor::Offers;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use table::{Owned, RANGES, REQUESTS, Request};

/// How the faults of a range come to its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// By SIGSEGV in the thread that touched the page, which waits in the signal handler.
    Signal,
}

/// What is in the way of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The page has no memory.
    Missing,
    /// A load from a page with memory and without access.
    Read,
    /// A store to a page with memory that may not be written.
    Write,
}

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The byte that was touched, from the start of the reservation.
    pub offset_bytes: u64,
    /// What is in the way.
    pub kind: Kind,
    /// Whether it was a store. Of a missing page, or one without access, processors other than
    /// x86-64 do not tell us: such a store is a load first, and comes again as a store.
    pub is_store: bool,
    /// The kernel's id of the thread that touched it.
    pub thread: i32,
}

impl Fault {
    /// First byte of the page that was touched, from the start of the reservation.
    pub fn page(&self) -> u64 {
        self.offset_bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64
    }
}

/// What a handler has done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The page can be touched; the thread tries again. If it cannot, the thread faults again and
    /// the handler is asked again, without an end.
    Served,
    /// The access is an error of the program, which gets its SIGSEGV.
    Refused,
}

/// Why page faults cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// A child of a fork.
    #[error(
        "this process is a fork of one that serves page faults, which stay with the parent; start the program anew, or fork before the first range is registered"
    )]
    Forked,
    /// Two owners of one page.
    #[error(
        "faults of bytes {start}..{end} of the reservation, or of some of them, have an owner already; drop the other registration first"
    )]
    Owned {
        /// First byte.
        start: u64,
        /// End.
        end: u64,
    },
    /// The bound on ranges.
    #[error(
        "this process has {FAULT_RANGES_MAX} ranges with owners of their page faults, as many as it may; register larger ranges, or drop some"
    )]
    Full,
    /// Somebody else's handler has taken the place of ours.
    #[error(
        "another part of the program has replaced the handler of SIGSEGV by which page faults are served; install that one before the first range is registered"
    )]
    Replaced,
    /// No userfaultfd.
    #[error("this process may not use userfaultfd ({why}), which page faults do without: they are served by signals")]
    NoUserfaultfd {
        /// What the kernel said.
        why: String,
    },
    /// The range is not made of pages of the reservation.
    #[error(transparent)]
    Range(#[from] ReservationError),
    /// The kernel refused.
    #[error("page faults cannot be served, for {call} failed: {why}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        why: String,
    },
}

/// The owner of this process's page faults.
#[derive(Clone, Copy, Debug)]
pub struct Faults(());

/// A range whose faults somebody serves; dropping it ends that.
///
/// It keeps the reservation. A fault that is under way when it is dropped ends as if the range had
/// never been registered; a call of the handler that runs already comes to its own end.
#[derive(Debug)]
pub struct Registration {
    id: u64,
    range: Range<u64>,
    way: Way,
}

type Handler = Box<dyn FnMut(&Fault) -> Answer + Send>;

#[derive(Clone)]
struct Served {
    place: Reservation,
    handler: Arc<Mutex<Handler>>,
}

struct State {
    served: BTreeMap<u64, Served>,
    made: u64,
    is_running: bool,
}

static STATE: Mutex<State> = Mutex::new(State { served: BTreeMap::new(), made: 0, is_running: false });
/// The process that has the owner; 0: nobody asked yet.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().expect("no panic while the lock is held")
}

/// Whether this process has the owner, and is no child of it.
fn is_here() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

impl Faults {
    /// The owner of this process.
    ///
    /// # Errors
    /// [`FaultError::Forked`] in a child of a process that had one at the fork.
    pub fn get() -> Result<Faults, FaultError> {
        let pid = std::process::id();
        match OWNER.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed) {
            Err(owner) if owner != pid => Err(FaultError::Forked),
            _ => Ok(Faults(())),
        }
    }

    /// What userfaultfd offers this process, for models that choose their way by it.
    ///
    /// # Errors
    /// [`FaultError::NoUserfaultfd`] where it is not permitted, or not there.
    pub fn offers(&self) -> Result<Offers, FaultError> {
        let refused = |(call, errno): (&str, _)| FaultError::NoUserfaultfd { why: format!("{call}: {errno}") };
        descriptor::Descriptor::offers().map_err(refused)
    }

    /// Has `handler` serve the faults of a range of bytes of a reservation, which is made of pages.
    /// Each has to be answered within [`FAULT_ANSWER_TIME`].
    ///
    /// The handler runs on a thread that all ranges share, one fault after the other, and fills or
    /// opens the page, or refuses. Of several threads that wait for one page the first is its
    /// reason. The waiting thread can hold any lock of the program: a handler waits for none of
    /// those, and touches no page that only it could serve.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn register(
        &self,
        place: &Reservation,
        range: Range<u64>,
        handler: impl FnMut(&Fault) -> Answer + Send + 'static,
    ) -> Result<Registration, FaultError> {
        self.register_within(place, range, FAULT_ANSWER_TIME, handler)
    }

    /// The same with another deadline for each answer. A thread that gets none in time gets its
    /// SIGSEGV, after a line on standard error.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn register_within(
        &self,
        place: &Reservation,
        range: Range<u64>,
        deadline: Duration,
        handler: impl FnMut(&Fault) -> Answer + Send + 'static,
    ) -> Result<Registration, FaultError> {
        if !is_here() {
            return Err(FaultError::Forked);
        }
        let range = place.pages(range.start, range.end.saturating_sub(range.start))?;
        let base = place.address();
        let owned = Owned {
            start: base + range.start as usize,
            end: base + range.end as usize,
            deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
        };
        let mut state = state();
        if RANGES.overlaps(&owned) {
            return Err(FaultError::Owned { start: range.start, end: range.end });
        }
        signal::install()?;
        if !state.is_running {
            std::thread::Builder::new()
                .name("vmmc-faults".into())
                .spawn(run)
                .map_err(|e| FaultError::System { call: "pthread_create", why: e.to_string() })?;
            state.is_running = true;
        }
        state.made += 1;
        let id = state.made;
        let handler: Handler = Box::new(handler);
        state.served.insert(id, Served { place: place.clone(), handler: Arc::new(Mutex::new(handler)) });
        if !RANGES.add(id, &owned) {
            state.served.remove(&id);
            // Perhaps the thread was started for nothing.
            drop(state);
            REQUESTS.ring();
            return Err(FaultError::Full);
        }
        Ok(Registration { id, range, way: Way::Signal })
    }
}

impl Registration {
    /// How faults of the range are served.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Bytes of the reservation.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A forked child has no thread, and perhaps a lock that nobody will unlock.
        if is_here() {
            RANGES.remove(self.id);
            let served = state().served.remove(&self.id);
            REQUESTS.ring();
            // Without the lock: what the handler holds may be another registration.
            drop(served);
        }
    }
}

/// The thread that asks the handlers.
fn run() {
    signal::this_thread_answers(true);
    loop {
        let bell = REQUESTS.bell();
        while let Some(request) = REQUESTS.take() {
            let answer = serve(request);
            REQUESTS.answer(request, answer);
        }
        let mut state = state();
        if state.served.is_empty() {
            // Ranges are taken from the table first: who finds one there from now on has been
            // registered after this thread has ended, or finds that it is gone.
            while let Some(request) = REQUESTS.take() {
                REQUESTS.answer(request, Answer::Served);
            }
            signal::this_thread_answers(false);
            state.is_running = false;
            return;
        }
        drop(state);
        REQUESTS.wait(bell);
    }
}

fn serve(request: &Request) -> Answer {
    let asked = request.asked();
    let served = state().served.get(&asked.range).cloned();
    // It ended meanwhile: the next try finds nobody.
    let Some(Served { place, handler }) = served else { return Answer::Served };
    let offset_bytes = (asked.address - place.address()) as u64;
    let access = place.access(offset_bytes);
    let is_store = asked.is_store || access == Some(Access::Read) && !signal::TELLS_STORES;
    let kind = match access {
        None => Kind::Missing,
        // Another thread was here before.
        Some(Access::ReadWrite) => return Answer::Served,
        Some(Access::Read) if !is_store => return Answer::Served,
        Some(_) if is_store => Kind::Write,
        Some(_) => Kind::Read,
    };
    let fault = Fault { offset_bytes, kind, is_store, thread: asked.thread };
    let mut handler = handler.lock().unwrap_or_else(|e| e.into_inner());
    // What a panic leaves behind is the handler's own, and its range goes on being asked.
    std::panic::catch_unwind(AssertUnwindSafe(|| handler(&fault))).unwrap_or(Answer::Refused)
}

#[cfg(all(test, not(miri)))]
mod tests;
