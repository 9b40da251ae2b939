//! Demand pinning, the user's side: which pages of the caller's memory the node can reach, and what
//! to do when it cannot yet. [UTLB §3, Figure 2]
//!
//! ```text
//!  transfer ──lookup──▶ pinned ──▶ command with addresses               no call, no message
//!               └─ miss: take the pages, evict by policy, Call::Pin ──▶ command
//!               └─ cannot be pinned: the caller copies
//! ```
//!
//! Invariants: a page counts as pinned only while the node has its translation, or had it when it
//! last said so; pages of a transfer under way are no victims; a translation is used only after it
//! was seen that the caller's bytes still lie in its frame: by a mark in them, because the kernel
//! says that no mapping changes and every change so far has been received, or because they were
//! lent since a moment of which that is known. So memory that was unmapped or moved is never sent
//! or written by its old translation.

use crate::core::{Core, count};
use crate::error::{BufferError, CallError, PlaceError};
use crate::limits::{PIN_TRIES, PINNED_COPIED_PAGES, PINNED_PAGES_DEFAULT, UNFIT_KEPT_MAX};
use crate::pinned_table::Indices;
use crate::trace::Tracer;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use vmmc_host::Deadline;
use vmmc_host::control::{Answer, Call, PageRun, PinRun};
use vmmc_host::memory::locked_bytes_max;
use vmmc_host::pin::{Arena, Frame, Listener, PinSpace};
use vmmc_host::region::PAGE_BYTES;
use vmmc_utlb::{
    AnyPolicy, MissError, Op, Page, PageSet, Pages, PinCounters, PinRequest, Pinning, Policy, PolicyKind, Prepin, Unpin,
};

/// How a session pins memory.
#[derive(Debug)]
pub struct PinOptions {
    policy: AnyPolicy,
    prepin: Prepin,
    pages_max: usize,
    copied_pages: usize,
    trusting: bool,
}

impl Default for PinOptions {
    /// LRU, only what is needed, 64 MiB or three quarters of `RLIMIT_MEMLOCK`; plain slices of up
    /// to 8 pages are copied.
    fn default() -> Self {
        let locked = locked_bytes_max().map_or(usize::MAX, |bytes| bytes as usize / PAGE_BYTES / 4 * 3);
        PinOptions {
            policy: PolicyKind::Lru.build(),
            prepin: Prepin::Fixed(1),
            pages_max: PINNED_PAGES_DEFAULT.min(locked.max(1)),
            copied_pages: PINNED_COPIED_PAGES,
            trusting: false,
        }
    }
}

impl PinOptions {
    /// Which pages to give up at the limit.
    #[must_use]
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy.build();
        self
    }

    /// The application's own choice of what to give up.
    #[must_use]
    pub fn own_policy(mut self, policy: Box<dyn Policy>) -> Self {
        self.policy = AnyPolicy::Custom(policy);
        self
    }

    /// How many pages to pin at a miss. Pages ahead of need are pinned only where they were before:
    /// memory that no transfer has named may be written meanwhile.
    #[must_use]
    pub fn ahead(mut self, prepin: Prepin) -> Self {
        self.prepin = prepin;
        self
    }

    /// Saves a send from pinned memory its one system call, and a fetch the marks that it leaves in
    /// each page. The program promises that no thread gets hold of addresses that another thread is
    /// just unmapping, or calls [`Session::forget`](crate::Session::forget) before it unmaps pinned
    /// memory. Changes that have ended are noticed all the same.
    #[must_use]
    pub fn trusting(mut self) -> Self {
        self.trusting = true;
        self
    }

    /// Sends from plain slices of up to so many pages are copied and not pinned, which is faster
    /// for a few pages; 0 pins whatever can be pinned. Lent memory, and any memory of a
    /// [trusting](Self::trusting) session, is pinned however short it is.
    #[must_use]
    pub fn copied_up_to(mut self, pages: usize) -> Self {
        self.copied_pages = pages;
        self
    }

    /// Most pages pinned at a time.
    #[must_use]
    pub fn pages_max(mut self, pages: usize) -> Self {
        self.pages_max = pages.max(1);
        self
    }
}

/// The pins of a session.
pub(crate) struct Pins {
    state: Mutex<Stage>,
    /// See [`PinOptions::copied_up_to`].
    copied_bytes: AtomicUsize,
    /// Transfers that could not be pinned.
    copied: AtomicU64,
    /// Nothing can be pinned here at all.
    off: AtomicBool,
    /// Of tables that the program fills itself.
    indices: Mutex<Indices>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Unused,
    Chosen(PinOptions),
    Used(Box<State>),
}

struct State {
    pinning: Pinning,
    /// By slot.
    frames: Vec<Frame>,
    arenas: Vec<Arena>,
    /// The node's ids, by arena.
    regions: Vec<Option<u32>>,
    listener: Listener,
    /// Unpinned here, and the node has not been told.
    unreported: Vec<Page>,
    /// Frames to confirm when it has.
    unconfirmed: Vec<Frame>,
    /// Gone while a transfer that nobody waits for used them.
    doomed: PageSet,
    /// First pages of memory that cannot be pinned.
    unfit: HashSet<u64>,
    marks: u64,
    request: PinRequest,
    /// See [`PinOptions::trusting`].
    trusting: bool,
    tracer: Option<(u32, Arc<Tracer>)>,
}

/// What [`Pins::counters`] returns.
pub(crate) struct Counted {
    pub(crate) counters: PinCounters,
    pub(crate) pages: u64,
    pub(crate) copied: u64,
}

/// Memory that a transfer names; whole pages.
pub(crate) enum Body<'a> {
    Send(&'a [u8]),
    /// As a send, from memory that cannot have been unmapped since all changes were received.
    Lent(&'a [u8]),
    Fetch(&'a mut [u8]),
}

impl Body<'_> {
    fn op(&self) -> Op {
        match self {
            Body::Send(_) | Body::Lent(_) => Op::Send,
            Body::Fetch(_) => Op::Fetch,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Body::Send(bytes) | Body::Lent(bytes) => bytes,
            Body::Fetch(bytes) => bytes,
        }
    }
}

impl Default for Pins {
    fn default() -> Pins {
        Pins {
            state: Mutex::default(),
            copied_bytes: AtomicUsize::new(PINNED_COPIED_PAGES * PAGE_BYTES),
            copied: AtomicU64::new(0),
            off: AtomicBool::new(false),
            indices: Mutex::default(),
        }
    }
}

/// How a lookup in the tables ended.
enum Lookup {
    Pinned,
    Stale,
    AllHeld,
    Never,
}

impl Pins {
    pub(crate) fn set_options(&self, options: PinOptions) -> bool {
        let mut stage = self.lock();
        let early = !matches!(*stage, Stage::Used(_));
        if early {
            let pages = if options.trusting { 0 } else { options.copied_pages };
            self.copied_bytes.store(pages.saturating_mul(PAGE_BYTES), Ordering::Relaxed);
            *stage = Stage::Chosen(options);
        }
        early
    }

    /// Whether a send of a plain slice is so short that it is copied.
    #[inline]
    pub(crate) fn copies(&self, len: usize) -> bool {
        len <= self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Makes sure that the node can reach these pages, and holds them for a transfer; none: the
    /// caller must copy.
    pub(crate) fn hold(&self, core: &Core, mut body: Body<'_>, deadline: impl Fn() -> Deadline) -> Option<Pages> {
        let found = self.try_hold(core, &mut body, deadline);
        if found.is_none() {
            count(&self.copied, 1);
            core.hot.area.pin_counter(6).store(self.copied.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        found
    }

    fn try_hold(&self, core: &Core, body: &mut Body<'_>, deadline: impl Fn() -> Deadline) -> Option<Pages> {
        if self.off.load(Ordering::Relaxed) {
            return None;
        }
        let pages = Pages::of_bytes(body.bytes().as_ptr() as u64, body.bytes().len() as u64)?;
        for _ in 0..PIN_TRIES {
            let mut stage = self.lock();
            let state = self.state(core, &mut stage)?;
            // Whether mappings change is asked before changes are taken: one that has ended by
            // then is among them.
            let asks = !state.trusting && matches!(body, Body::Send(_));
            if asks && state.listener.space().is_changing() || state.listener.has_changes() {
                state.apply_changes();
                if state.listener.has_changes() {
                    continue;
                }
            }
            match state.look_up(core, pages, body, &deadline) {
                Lookup::Pinned => return Some(pages),
                Lookup::Never => return None,
                Lookup::Stale => state.apply_changes(),
                Lookup::AllHeld => {
                    drop(stage);
                    core.collect();
                    std::thread::yield_now();
                }
            }
        }
        None
    }

    fn state<'a>(&self, core: &Core, stage: &'a mut Stage) -> Option<&'a mut State> {
        if !matches!(stage, Stage::Used(_)) {
            let Ok(space) = PinSpace::of_process() else {
                self.off.store(true, Ordering::Relaxed);
                return None;
            };
            let options = match std::mem::take(stage) {
                Stage::Chosen(options) => options,
                _ => PinOptions::default(),
            };
            *stage = Stage::Used(Box::new(State::new(options, space, core.hot.tracer().cloned())));
        }
        let Stage::Used(state) = stage else { unreachable!("made above") };
        Some(state)
    }

    /// A transfer has ended.
    pub(crate) fn release(&self, pages: Pages) {
        if let Stage::Used(state) = &mut *self.lock() {
            state.release(pages);
        }
    }

    /// Pins memory under these indices.
    pub(crate) fn place(&self, core: &Core, indices: Pages, memory: &[u8]) -> Result<(), PlaceError> {
        let unpinnable = |why: &dyn std::fmt::Display| PlaceError::Unpinnable { why: why.to_string() };
        let mut stage = self.lock();
        let Some(state) = self.state(core, &mut stage) else {
            return Err(PinSpace::of_process()
                .err()
                .map_or(unpinnable(&"this process cannot pin"), |e| unpinnable(&e)));
        };
        let space = state.listener.space();
        space.take(memory).map_err(|error| unpinnable(&error))?;
        state.apply_changes();
        let pages = (memory.as_ptr() as usize / PAGE_BYTES) as u64..;
        let framed = |(index, page): (Page, u64)| space.frame(page).map(|frame| (index, frame));
        let pin: Option<Vec<(Page, Frame)>> = indices.iter().zip(pages).map(framed).collect();
        let pin = pin.ok_or_else(|| unpinnable(&"it was unmapped meanwhile"))?;
        let granted = state.ask(core, &pin, core.default_deadline());
        state.publish(core);
        granted
            .map_err(|error| error.map_or_else(|| unpinnable(&"the node has no pinned memory left"), PlaceError::from))
    }

    /// Ends the pinning under these indices.
    pub(crate) fn unplace(&self, core: &Core, indices: Pages) {
        let run = PageRun { page: indices.first().number(), count: indices.count() as u32 };
        core.post_call(Call::Pin { unpin: vec![run], pin: Vec::new() });
    }

    pub(crate) fn take_indices(&self, count: u32) -> Result<u32, u32> {
        self.indices.lock().expect("no panic while the lock is held").take(count)
    }

    pub(crate) fn give_indices(&self, first: u32, count: u32) {
        self.indices.lock().expect("no panic while the lock is held").give(first, count);
    }

    /// The node has no translation of some of these pages any more.
    pub(crate) fn distrust(&self, pages: Pages) {
        if let Stage::Used(state) = &mut *self.lock() {
            state.drop_pages(pages);
        }
    }

    /// Others need memory: gives pages back, those that the policy chooses.
    pub(crate) fn reclaim(&self, core: &Core, pages: u64) {
        let Stage::Used(state) = &mut *self.lock() else { return };
        let mut given = Vec::new();
        state.pinning.evict(usize::try_from(pages).unwrap_or(usize::MAX), &mut given);
        state.publish(core);
        let given: Vec<Page> = given.into_iter().map(|unpin| unpin.page).collect();
        for part in page_runs(given).chunks(RUNS_PER_CALL) {
            core.post_call(Call::Pin { unpin: part.to_vec(), pin: Vec::new() });
        }
    }

    /// Ends the pinning of memory, and makes it private again.
    pub(crate) fn forget(&self, core: &Core, memory: &mut [u8]) -> Result<(), BufferError> {
        let (head, len) = whole_pages(memory);
        let body = &mut memory[head..head + len];
        let Some(pages) = Pages::of_bytes(body.as_ptr() as u64, len as u64).filter(|_| len > 0) else { return Ok(()) };
        let Stage::Used(state) = &mut *self.lock() else { return Ok(()) };
        state.drop_pages(pages);
        state.report_unpinned(core, core.default_deadline())?;
        state.listener.space().give_private(body)?;
        state.apply_changes();
        // Their frames are not known to the node any more.
        state.listener.confirm(&std::mem::take(&mut state.unconfirmed));
        state.publish(core);
        Ok(())
    }

    /// A transfer into this memory was given up: from now on it reaches pages that are nobody's.
    /// Should even that fail, the program must not go on.
    pub(crate) fn withdraw(&self, body: &mut [u8]) {
        let Stage::Used(state) = &mut *self.lock() else { return };
        let done = state.listener.space().give_private(body);
        done.expect("memory for private copies of pages that a lost transfer may still write to");
        state.apply_changes();
    }

    pub(crate) fn counters(&self) -> Counted {
        let copied = self.copied.load(Ordering::Relaxed);
        match &*self.lock() {
            Stage::Used(state) => {
                Counted { counters: state.pinning.counters().clone(), pages: state.pinning.len() as u64, copied }
            }
            _ => Counted { counters: PinCounters::default(), pages: 0, copied },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.state.lock().expect("no panic while the lock is held")
    }
}

/// Runs of one call, which fit a control message many times.
const RUNS_PER_CALL: usize = 1024;

impl State {
    fn new(options: PinOptions, space: &'static PinSpace, tracer: Option<(u32, Arc<Tracer>)>) -> State {
        State {
            pinning: Pinning::new(options.policy, options.prepin, Some(options.pages_max)),
            frames: Vec::new(),
            arenas: Vec::new(),
            regions: Vec::new(),
            listener: space.listen(),
            unreported: Vec::new(),
            unconfirmed: Vec::new(),
            doomed: PageSet::new(),
            unfit: HashSet::new(),
            marks: 0,
            request: PinRequest::default(),
            trusting: options.trusting,
            tracer,
        }
    }

    /// The user-level lookup, and what follows a miss.
    fn look_up(&mut self, core: &Core, pages: Pages, body: &mut Body<'_>, deadline: &impl Fn() -> Deadline) -> Lookup {
        if !self.doomed.is_empty() && pages.iter().any(|page| self.doomed.contains(page)) {
            return Lookup::Never;
        }
        if let Body::Fetch(bytes) = body {
            // It can check by itself, since it overwrites the memory: no system call.
            if !self.trusting && pages.iter().all(|page| self.pinning.is_pinned(page)) && !self.carries(pages, bytes) {
                return Lookup::Stale;
            }
        }
        if self.pinning.acquire(pages) {
            self.trace(core, pages, body.op());
            self.publish_lookups(core);
            return Lookup::Pinned;
        }
        let look = self.pin(core, pages, body, deadline);
        self.publish(core);
        look
    }

    fn pin(&mut self, core: &Core, pages: Pages, body: &Body<'_>, deadline: &impl Fn() -> Deadline) -> Lookup {
        if self.pinning.limit().is_some_and(|limit| pages.count() > limit as u64) {
            return Lookup::Never;
        }
        if self.unfit.contains(&pages.first().number()) {
            return Lookup::Never;
        }
        if self.listener.space().take(body.bytes()).is_err() {
            if self.unfit.len() >= UNFIT_KEPT_MAX {
                self.unfit.clear();
            }
            self.unfit.insert(pages.first().number());
            return Lookup::Never;
        }
        self.apply_changes();
        match self.pinning.room(pages) {
            Err(MissError::AllHeld { .. }) => return Lookup::AllHeld,
            Err(MissError::TooLong { .. }) => return Lookup::Never,
            Ok(()) => {}
        }
        self.pinning.lookup(pages);
        self.trace(core, pages, body.op());
        let mut request = std::mem::take(&mut self.request);
        let look = match self.pinning.miss(pages, &mut request) {
            Ok(()) if self.install(core, &request, deadline()) => {
                self.pinning.hold(pages);
                Lookup::Pinned
            }
            _ => Lookup::Never,
        };
        self.request = request;
        look
    }

    /// What the table was asked goes into the trace.
    #[inline]
    fn trace(&self, core: &Core, pages: Pages, op: Op) {
        if let Some((process, tracer)) = core.hot.tracer() {
            tracer.record(*process, op, pages.first().number() << 12, pages.count() << 12);
        }
    }

    /// Has the node do what was asked for; whether all that the transfer needs is pinned.
    fn install(&mut self, core: &Core, request: &PinRequest, deadline: Deadline) -> bool {
        self.unreported.extend(request.unpin.iter().map(|unpin| unpin.page));
        let space = self.listener.space();
        let framed = |page: &Page| space.frame(page.number()).map(|frame| (*page, frame));
        let pin: Vec<(Page, Frame)> = request.pin.iter().filter_map(framed).collect();
        let needed = &request.pin[..request.needed];
        if needed.iter().any(|page| space.frame(page.number()).is_none()) {
            return false;
        }
        if self.ask(core, &pin, deadline).is_err() {
            return false;
        }
        for (page, frame) in pin {
            let slot = self.pinning.pinned(page).0 as usize;
            if self.frames.len() <= slot {
                self.frames.resize(slot + 1, frame);
            }
            self.frames[slot] = frame;
        }
        true
    }

    /// Asks the node for translations; what it wants back first is given by the policy. No error
    /// inside: there is nothing left to give.
    fn ask(&mut self, core: &Core, pin: &[(Page, Frame)], deadline: Deadline) -> Result<(), Option<CallError>> {
        loop {
            let runs = self.pin_runs(core, pin, deadline).ok_or(None)?;
            match self.call_pin(core, runs, deadline) {
                Ok(0) => return Ok(()),
                Ok(evict) => {
                    let mut given: Vec<Unpin> = Vec::new();
                    self.pinning.evict(evict as usize, &mut given);
                    if given.is_empty() {
                        return Err(None);
                    }
                    self.unreported.extend(given.iter().map(|unpin| unpin.page));
                }
                Err(BufferError::Call { error, .. }) => return Err(Some(error)),
                Err(_) => return Err(None),
            }
        }
    }

    /// Reports to the node what was unpinned, and asks for what is to be pinned; how many pages
    /// must go first.
    fn call_pin(&mut self, core: &Core, pin: Vec<PinRun>, deadline: Deadline) -> Result<u64, BufferError> {
        let unreported = std::mem::take(&mut self.unreported);
        let mut unpin = page_runs(unreported.clone());
        // What does not fit one call goes in calls of its own.
        while unpin.len() > RUNS_PER_CALL {
            let part = unpin.split_off(unpin.len() - RUNS_PER_CALL);
            core.call(Call::Pin { unpin: part, pin: Vec::new() }, &[], deadline)
                .map_err(|error| call_failed(0, error))?;
        }
        let len = pin.iter().map(|run| u64::from(run.pages.count)).sum();
        match core.call(Call::Pin { unpin, pin }, &[], deadline) {
            Ok((answer, _)) => {
                self.listener.confirm(&std::mem::take(&mut self.unconfirmed));
                match answer {
                    Answer::EvictFirst { pages } => Ok(pages.max(1)),
                    _ => Ok(0),
                }
            }
            Err(error) => {
                self.unreported.extend(unreported);
                Err(call_failed(len, error))
            }
        }
    }

    fn report_unpinned(&mut self, core: &Core, deadline: Deadline) -> Result<(), BufferError> {
        if self.unreported.is_empty() { Ok(()) } else { self.call_pin(core, Vec::new(), deadline).map(drop) }
    }

    /// The pages as runs in regions that the node knows.
    fn pin_runs(&mut self, core: &Core, pin: &[(Page, Frame)], deadline: Deadline) -> Option<Vec<PinRun>> {
        let mut runs: Vec<PinRun> = Vec::new();
        for (page, frame) in pin {
            let region = self.region(core, frame.arena, deadline)?;
            let page = page.number();
            match runs.last_mut() {
                Some(run)
                    if run.region == region
                        && run.pages.page + u64::from(run.pages.count) == page
                        && run.at + run.pages.count == frame.page =>
                {
                    run.pages.count += 1;
                }
                _ => runs.push(PinRun { pages: PageRun { page, count: 1 }, region, at: frame.page }),
            }
        }
        (runs.len() <= RUNS_PER_CALL).then_some(runs)
    }

    /// The node's id of an arena, which it is told of at first use.
    fn region(&mut self, core: &Core, arena: u32, deadline: Deadline) -> Option<u32> {
        let at = arena as usize;
        while self.arenas.len() <= at {
            self.arenas.push(self.listener.space().arena(self.arenas.len() as u32)?);
            self.regions.push(None);
        }
        if self.regions[at].is_none() {
            let fd = self.arenas[at].share().ok()?;
            let call = Call::RegisterRegion { len: self.arenas[at].len_bytes() };
            let Ok((Answer::Region { region }, _)) = core.call(call, &[fd.as_fd()], deadline) else { return None };
            self.regions[at] = Some(region);
        }
        self.regions[at]
    }

    /// Whether the caller's bytes lie in the frames that the node knows: marks them there and
    /// checks here.
    #[inline]
    fn carries(&mut self, pages: Pages, bytes: &mut [u8]) -> bool {
        self.marks = self.marks.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mark = self.marks;
        pages.iter().zip(bytes.chunks_exact_mut(PAGE_BYTES)).all(|(page, bytes)| {
            self.place(page).is_some_and(|(arena, frame)| self.arenas[arena].carries(frame, bytes, mark))
        })
    }

    /// Arena and page of a pinned page.
    #[inline]
    fn place(&mut self, page: Page) -> Option<(usize, u32)> {
        let frame = self.frames[self.pinning.slot(page)?.0 as usize];
        Some((frame.arena as usize, frame.page))
    }

    /// Takes notice of memory that was unmapped or moved.
    fn apply_changes(&mut self) {
        for (page, frame) in self.listener.gone() {
            self.unfit.clear();
            self.unconfirmed.push(frame);
            if let Some(page) = Page::new(page) {
                // The node is told even of pages that were evicted: it costs nothing.
                self.drop_pages(Pages::one(page));
            }
        }
    }

    fn drop_pages(&mut self, pages: Pages) {
        let mut gone = Vec::new();
        self.pinning.forget(pages, &mut gone);
        if let Some((process, tracer)) = self.tracer.as_ref().filter(|_| !gone.is_empty()) {
            gone.iter().for_each(|unpin| tracer.unmapped(*process, Pages::one(unpin.page)));
        }
        self.unreported.extend(gone.iter().map(|unpin| unpin.page));
        for page in pages.iter().filter(|page| self.pinning.is_pinned(*page)) {
            self.doomed.insert(page);
        }
    }

    fn release(&mut self, pages: Pages) {
        self.pinning.release(pages);
        if self.doomed.is_empty() {
            return;
        }
        let doomed: Vec<Page> = pages.iter().filter(|page| self.doomed.remove(*page)).collect();
        doomed.into_iter().for_each(|page| self.drop_pages(Pages::one(page)));
    }

    #[inline]
    fn publish_lookups(&self, core: &Core) {
        let counters = self.pinning.counters();
        core.hot.area.pin_counter(0).store(counters.transfers, Ordering::Relaxed);
        core.hot.area.pin_counter(1).store(counters.lookups, Ordering::Relaxed);
    }

    /// Shows the counters to the node.
    fn publish(&self, core: &Core) {
        self.publish_lookups(core);
        let counters = self.pinning.counters();
        let rest = [counters.check_misses, counters.pins, counters.unpins, counters.evictions];
        for (value, at) in rest.into_iter().zip(2..) {
            core.hot.area.pin_counter(at).store(value, Ordering::Relaxed);
        }
    }
}

fn call_failed(pages: u64, error: crate::error::CallError) -> BufferError {
    BufferError::Call { len: pages * PAGE_BYTES as u64, error }
}

/// Pages as runs.
fn page_runs(mut pages: Vec<Page>) -> Vec<PageRun> {
    pages.sort_unstable();
    pages.dedup();
    let runs = pages.chunk_by(|a, b| a.number() + 1 == b.number());
    runs.map(|run| PageRun { page: run[0].number(), count: run.len() as u32 }).collect()
}

/// Where the whole pages of a slice begin, and their bytes.
pub(crate) fn whole_pages(bytes: &[u8]) -> (usize, usize) {
    let head = (bytes.as_ptr() as usize).wrapping_neg() % PAGE_BYTES;
    let len = bytes.len().saturating_sub(head) / PAGE_BYTES * PAGE_BYTES;
    (head.min(bytes.len()), len)
}

#[cfg(test)]
mod tests;
