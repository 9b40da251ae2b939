//! One owner of page faults for a process: ranges of reservations have handlers, and a thread that
//! touches a page there that it may not touch waits until its handler has made that possible.
//!
//! ```text
//!  program's thread                                      thread vmmc-faults
//!  ────────────────                                      ──────────────────
//!  load or store ─▶ SIGSEGV ─▶ whose range? ── request ─▶ handler(Fault) ─ fill, protect ─▶ Answer
//!  the same again ◀─ return ◀─────────────────── answer ──────────────────────────────────────┘
//!                       └── nobody's: the handler that was installed before, exactly as before
//!
//!  in a window:                                          thread vmmc-windows
//!  load or store ─▶ kernel ──────────── userfaultfd ─────▶ handler(Fault) ─ fill, protect ─▶ Answer
//!  goes on ◀──────────────────────────────────────────────────────┴──── or refused: SIGSEGV
//! ```
//!
//! Two ways lead to a handler, and one handler serves either: it fills, protects and releases pages
//! of its reservation. [`Registration::way`] says which one a range goes.
//!
//! | | [`Faults::register`]: by signal | [`Faults::register_window`]: by userfaultfd |
//! | --- | --- | --- |
//! | needs | nothing | Linux 6.4, and a right to userfaultfd |
//! | memory | pages of any regions, in any order | pages of one region, in its order |
//! | mappings of the kernel's | one for each run of pages with equal access | one |
//! | a system call on an absent page | fails with EFAULT | waits, if the kernel allows; else EFAULT |
//! | handlers of SIGSEGV | ours is installed before the program's | are left alone |
//! | a refused page | is asked about again when touched again | is closed until it is changed |
//! | at the end | pages keep memory and access | the range is reserved addresses again |
//! | in a forked child | pages keep memory and access | the range is not mapped |
//!
//! Neither falls back to the other: a model that takes both asks [`Faults::best_way`], and
//! registers by that. The example `page_faults` prints what a fault costs by each.
//!
//! Invariants: a range has one owner. In the signal handler nothing locks or allocates: it finds
//! the range in a table of atomics (`fault/table.rs`), and waits on a futex with a deadline. A
//! fault that is not ours, or that nobody answers, ends as it would have without us. A forked child
//! has no owner, and what it touches too early is a SIGSEGV; the signal handler says why. A thread
//! lives as long as there are registrations of its way.
//!
//! By signal, protection is that of the mappings: for those the kernel raises SIGSEGV whatever is
//! registered with a userfaultfd, which reports pages that are missing where access is allowed. So
//! a window is one mapping that allows everything, and shows no page until its owner does
//! (`reservation/window.rs`, `fault/userfault.rs`). SIGBUS is left alone, for it reports memory
//! that is gone, which no handler brings back.
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
mod userfault;

use crate::limits::{FAULT_ANSWER_TIME, FAULT_RANGES_MAX};
use crate::region::{PAGE_BYTES, Region};
use crate::reservation::{Access, Reservation, ReservationError};
pub use descriptor::Offers;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use table::{Asked, Owned, RANGES, REQUESTS};
use userfault::Userfaults;

/// How the faults of a range come to its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// By SIGSEGV in the thread that touched the page, which waits in the signal handler.
    Signal,
    /// By a userfaultfd: the thread that touched the page sleeps in the kernel.
    Userfault {
        /// Whether a system call that is given an absent page waits too. If not, it fails with
        /// EFAULT, and programs touch pages before they hand them to the kernel.
        system_calls_wait: bool,
    },
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
    /// x86-64 do not report that by a signal: such a store comes first as a load, then as one.
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
    /// The access is an error of the program, which gets its SIGSEGV. This closes the page of a
    /// window: such an access is a SIGSEGV from here on, without a question, until the page is
    /// filled, protected or released anew.
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
    #[error(
        "this process may not use userfaultfd ({why}); allow it (a container's seccomp profile, perhaps), or register the range without a window: its page faults are served by signals"
    )]
    NoUserfaultfd {
        /// What the kernel said.
        why: String,
    },
    /// A userfaultfd that cannot do what windows need.
    #[error(
        "no window can be opened, for the userfaultfd of this kernel lacks {what}; use Linux 6.4 or newer, or register the range without a window"
    )]
    NoWindows {
        /// What is not there.
        what: &'static str,
    },
    /// Memory that no window can be opened on.
    #[error(
        "no window can be opened on this region, for {why}; use shared memory that this process made and writes, or register the range without a window"
    )]
    Unfit {
        /// What is in the way.
        why: &'static str,
    },
    /// The range is not made of pages of the reservation, or the kernel refused to change it.
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
///
/// Pages that are filled keep their memory and access. A window is closed instead: its range is
/// reserved addresses again, without memory and access. To keep its pages they would have to become
/// mappings, of which they may need more than a process has.
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
    is_window: bool,
}

struct State {
    served: BTreeMap<u64, Served>,
    made: u64,
    /// The thread of the signals.
    is_running: bool,
    /// There while there are windows.
    userfaults: Option<Arc<Userfaults>>,
}

static STATE: Mutex<State> =
    Mutex::new(State { served: BTreeMap::new(), made: 0, is_running: false, userfaults: None });
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

    /// The way that costs a model's users least, of those there are here: a window where
    /// userfaultfd can do what it needs.
    ///
    /// ```
    /// use vmmc_host::fault::{Answer, Fault, Faults, Way};
    /// use vmmc_host::{Access, Region, Reservation};
    /// let (place, memory) = (Reservation::new(8192)?, Region::create(8192)?);
    /// memory.write(4096, b"fetched")?;
    /// let (mine, behind) = (place.clone(), memory.clone());
    /// let handler = move |fault: &Fault| {
    ///     let page = fault.page();
    ///     match mine.fill(page, &behind, page, 4096, Access::ReadWrite) {
    ///         Ok(()) => Answer::Served,
    ///         Err(_) => Answer::Refused,
    ///     }
    /// };
    /// let faults = Faults::get()?;
    /// let registration = match faults.best_way() {
    ///     Way::Userfault { .. } => faults.register_window(&place, 0..8192, &memory, 0, handler)?,
    ///     _ => faults.register(&place, 0..8192, handler)?,
    /// };
    /// let mut seen = [0; 7];
    /// place.read(4096, &mut seen)?;
    /// assert_eq!(&seen, b"fetched");
    /// assert_eq!(registration.way(), faults.best_way());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn best_way(&self) -> Way {
        match self.offers() {
            Ok(offers) if offers.lacks().is_none() => Way::Userfault { system_calls_wait: offers.kernel_faults },
            _ => Way::Signal,
        }
    }

    /// Has `handler` serve the faults of a range of bytes of a reservation, which is made of pages.
    /// Each has to be answered within [`FAULT_ANSWER_TIME`].
    ///
    /// The handler runs on a thread that all ranges share, one fault after the other, and fills or
    /// opens the page, or refuses. Of several threads that wait for one page the first is its
    /// reason. The waiting thread can hold any lock of the program: a handler waits for none of
    /// those, and touches no page that only it could serve. Ranges of the two ways have a thread
    /// each.
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
        let (range, owned) = claim(place, range, deadline, false)?;
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
        let Some(id) = state.enter(place, &owned, Box::new(handler)) else {
            // Perhaps the thread was started for nothing.
            drop(state);
            REQUESTS.ring();
            return Err(FaultError::Full);
        };
        Ok(Registration { id, range, way: Way::Signal })
    }

    /// The same as [`register`](Self::register) by way of a window: the range shows pages of the
    /// region from `region_offset` on, a multiple of [`PAGE_BYTES`], and none of them until it is
    /// filled. [`Reservation::fill`] on the range takes this region at these places only, and so
    /// does every call that changes pages take pages of one window only. The region has the bytes
    /// all the time, and is written there.
    ///
    /// A page that the region has no memory for gets zeros when it is filled. The window keeps the
    /// region. Pages that [`Region::move_pages`] moves, or [`Region::cut_off`] replaces, stay here
    /// as they were.
    ///
    /// A window is not inherited by a forked child: who touches it there gets SIGSEGV. Memory that
    /// is shown is shared memory, which [`PinSpace`](crate::pin::PinSpace) does not pin: register
    /// the region, and send from that.
    ///
    /// # Errors
    /// [`FaultError::NoUserfaultfd`], [`FaultError::NoWindows`]: the model may register without a
    /// window. [`ReservationError::Filled`] if there is memory in the range;
    /// [`FaultError::Unfit`] for a region that is not written here, or no memfd; else as for
    /// [`register`](Self::register).
    ///
    /// ```no_run
    /// use vmmc_host::fault::{Answer, Faults, Way};
    /// use vmmc_host::{Access, Region, Reservation};
    /// let (place, memory) = (Reservation::new(1 << 30)?, Region::create(1 << 20)?);
    /// let (mine, behind) = (place.clone(), memory.clone());
    /// // The second page of the reservation shows the first one of the region.
    /// let range = 4096..4096 + (1 << 20);
    /// let window = Faults::get()?.register_window(&place, range, &memory, 0, move |fault| {
    ///     let page = fault.page();
    ///     match mine.fill(page, &behind, page - 4096, 4096, Access::ReadWrite) {
    ///         Ok(()) => Answer::Served,
    ///         Err(_) => Answer::Refused,
    ///     }
    /// })?;
    /// if window.way() == (Way::Userfault { system_calls_wait: false }) {
    ///     println!("pages are touched before they are handed to the kernel");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register_window(
        &self,
        place: &Reservation,
        range: Range<u64>,
        region: &Region,
        region_offset: u64,
        handler: impl FnMut(&Fault) -> Answer + Send + 'static,
    ) -> Result<Registration, FaultError> {
        self.register_window_within(place, range, region, region_offset, FAULT_ANSWER_TIME, handler)
    }

    /// The same with another deadline for each answer, which begins when the fault is read: at
    /// once, or, while a handler runs, within [`FAULT_TICK`](crate::limits::FAULT_TICK).
    ///
    /// # Errors
    /// As for [`register_window`](Self::register_window).
    pub fn register_window_within(
        &self,
        place: &Reservation,
        range: Range<u64>,
        region: &Region,
        region_offset: u64,
        deadline: Duration,
        handler: impl FnMut(&Fault) -> Answer + Send + 'static,
    ) -> Result<Registration, FaultError> {
        let (range, owned) = claim(place, range, deadline, true)?;
        if !region.is_memfd().map_err(ReservationError::from)? {
            return Err(FaultError::Unfit { why: "it is of a file, and not of shared memory" });
        }
        if !region.takes_writers().map_err(ReservationError::from)? {
            return Err(FaultError::Unfit { why: "it is mapped for reading, or sealed against writing" });
        }
        let mut state = state();
        if RANGES.overlaps(&owned) {
            return Err(FaultError::Owned { start: range.start, end: range.end });
        }
        let userfaults = match &state.userfaults {
            Some(userfaults) => userfaults.clone(),
            None => state.userfaults.insert(Userfaults::start()?).clone(),
        };
        // Entered first: the window may be touched as soon as it is open.
        let entered = state.enter(place, &owned, Box::new(handler)).ok_or(FaultError::Full);
        let opened = entered.and_then(|id| {
            match place.open_window(range.clone(), region, region_offset, userfaults.descriptor()) {
                Ok(()) => Ok(id),
                Err(error) => Err((id, error)),
            }
            .map_err(|(id, error)| {
                RANGES.remove(id);
                state.served.remove(&id);
                error.into()
            })
        });
        match opened {
            Ok(id) => {
                let way = Way::Userfault { system_calls_wait: userfaults.kernel_faults };
                Ok(Registration { id, range, way })
            }
            Err(error) => {
                state.end_unused();
                Err(error)
            }
        }
    }
}

/// Checks a range that is to be served.
fn claim(
    place: &Reservation,
    range: Range<u64>,
    deadline: Duration,
    is_window: bool,
) -> Result<(Range<u64>, Owned), FaultError> {
    if !is_here() {
        return Err(FaultError::Forked);
    }
    let range = place.pages(range.start, range.end.saturating_sub(range.start))?;
    let base = place.address();
    let owned = Owned {
        start: base + range.start as usize,
        end: base + range.end as usize,
        deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
        is_window,
    };
    Ok((range, owned))
}

impl State {
    /// Enters a range and its handler under a new id; none: there is no room.
    fn enter(&mut self, place: &Reservation, owned: &Owned, handler: Handler) -> Option<u64> {
        self.made += 1;
        let id = self.made;
        let handler = Arc::new(Mutex::new(handler));
        self.served.insert(id, Served { place: place.clone(), handler, is_window: owned.is_window });
        if RANGES.add(id, owned) {
            return Some(id);
        }
        self.served.remove(&id);
        None
    }

    /// Ends the userfaultfd and its threads, if there is no window any more.
    fn end_unused(&mut self) {
        if !self.served.values().any(|served| served.is_window) {
            if let Some(userfaults) = self.userfaults.take() {
                userfaults.stop();
            }
        }
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
            let mut state = state();
            let served = state.served.remove(&self.id);
            if let Some(Served { place, is_window: true, .. }) = &served {
                // Before the range is another's to register.
                place.close_window(self.range.start);
            }
            RANGES.remove(self.id);
            state.end_unused();
            drop(state);
            REQUESTS.ring();
            // Without the lock: what the handler holds may be another registration.
            drop(served);
        }
    }
}

/// The thread that asks the handlers of faults by signal.
fn run() {
    signal::this_thread_answers(true);
    loop {
        let bell = REQUESTS.bell();
        while let Some(request) = REQUESTS.take() {
            let answer = match serve(&request.asked(), signal::TELLS_STORES) {
                Outcome::Answered(answer) => answer,
                Outcome::Allowed | Outcome::Gone => Answer::Served,
            };
            REQUESTS.answer(request, answer);
        }
        let mut state = state();
        if state.served.values().all(|served| served.is_window) {
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

/// What became of a fault.
enum Outcome {
    /// Its handler was asked.
    Answered(Answer),
    /// The table of the reservation allows it.
    Allowed,
    /// The registration has ended: the next try finds nobody.
    Gone,
}

/// What is in the way of an access; none: nothing.
fn kind(access: Option<Access>, is_store: bool) -> Option<Kind> {
    match access {
        None => Some(Kind::Missing),
        Some(Access::ReadWrite) => None,
        Some(Access::Read) if !is_store => None,
        Some(_) if is_store => Some(Kind::Write),
        Some(_) => Some(Kind::Read),
    }
}

/// Asks the handler of a range about a fault.
fn serve(asked: &Asked, tells_stores: bool) -> Outcome {
    let served = state().served.get(&asked.range).cloned();
    let Some(Served { place, handler, .. }) = served else { return Outcome::Gone };
    let offset_bytes = (asked.address - place.address()) as u64;
    let access = place.access(offset_bytes);
    let is_store = asked.is_store || access == Some(Access::Read) && !tells_stores;
    // None: another thread was here before.
    let Some(kind) = kind(access, is_store) else { return Outcome::Allowed };
    let fault = Fault { offset_bytes, kind, is_store, thread: asked.thread };
    let mut handler = handler.lock().unwrap_or_else(|e| e.into_inner());
    // What a panic leaves behind is the handler's own, and its range goes on being asked.
    let answer = std::panic::catch_unwind(AssertUnwindSafe(|| handler(&fault))).unwrap_or(Answer::Refused);
    Outcome::Answered(answer)
}

/// The reservation that was touched, and the byte of it; none: the registration has ended.
fn place_of(asked: &Asked) -> Option<(Reservation, u64)> {
    let place = state().served.get(&asked.range)?.place.clone();
    let offset_bytes = (asked.address - place.address()) as u64;
    Some((place, offset_bytes))
}

/// Whether a page can be touched by now, or nobody serves it any more.
fn is_allowed(asked: &Asked) -> bool {
    place_of(asked).is_none_or(|(place, offset)| kind(place.access(offset), asked.is_store).is_none())
}

#[cfg(all(test, not(miri)))]
mod tests;
