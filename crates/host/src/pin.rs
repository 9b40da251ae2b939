//! Demand pinning: pages of the caller's own memory move onto reserved, locked, shared pages in
//! place, so that a node can reach them.
//!
//! ```text
//!  private page ──take──▶ page of an arena, same address, same content ──unmap, remap──▶ gone, every listener is told
//!                              └── give_private ──▶ private page again
//! ```
//!
//! Invariants: the address and the content of every byte stay as they were. Only whole pages inside
//! a borrowed slice are taken, so nobody writes to them meanwhile. A frame is used again only after
//! its page is gone and every listener has confirmed that its node forgot it. Pages are locked in
//! memory, as pinned pages are: that also makes `madvise(MADV_DONTNEED)`, which would mean
//! something else on shared pages, fail instead. Source: [UTLB §3.1]; why this way and no other:
//! docs/utlb.md.
//!
//! What the caller's memory loses: it is no longer private to the kernel's eyes. Forked children
//! get copies (see `pin/fork.rs`); `mremap` over a mix of taken and other pages is refused by the
//! kernel (allocators then copy); a huge page that is taken in part is split.

pub mod costs;
mod fork;
mod frames;
mod mappings;
mod watch;

use crate::limits::{ARENA_PAGES_FIRST, ARENA_PAGES_MAX};
use crate::region::{PAGE_BYTES, Region, RegionError, swap_pages};
use frames::FreeFrames;
use mappings::Mappings;
use rustix::io::Errno;
use rustix::mm::{Advice, MremapFlags};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use watch::{Change, Watch};

/// Why memory cannot be pinned; the transfer then goes by way of a copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The kernel does not report when mappings change, so a translation could go stale.
    #[error(
        "this process may not use userfaultfd ({why}), without which nobody tells when pinned memory is unmapped; allow it (a container's seccomp profile, perhaps)"
    )]
    NoWatch {
        /// What the kernel said.
        why: String,
    },
    /// A child of a fork.
    #[error("this process is a fork of one that pinned memory; start the program anew instead")]
    Forked,
    /// The range is not ordinary private memory.
    #[error(
        "{address:#x} is in a mapping that is {what}; only private, writable, anonymous memory is pinned: send this by a copy, or register the region that it is of, if any"
    )]
    Unsuitable {
        /// Where.
        address: usize,
        /// What it is.
        what: String,
    },
    /// `RLIMIT_MEMLOCK`.
    #[error("{pages} more pages may not be locked in memory; raise RLIMIT_MEMLOCK (ulimit -l)")]
    LockLimit {
        /// As asked.
        pages: usize,
    },
    /// No memory, or another refusal of the kernel.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// A page of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// Number of the arena.
    pub arena: u32,
    /// Page in it.
    pub page: u32,
}

/// Shared memory that pinned pages lie in. Its bytes are the caller's: nothing here writes to them.
#[derive(Clone, Debug)]
pub struct Arena(Region);

impl Arena {
    /// A descriptor for a node.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn share(&self) -> Result<OwnedFd, RegionError> {
        self.0.share()
    }

    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    /// Whether the pages from `page` on hold the bytes of `body`.
    pub fn holds(&self, page: u32, body: &[u8]) -> bool {
        self.0.equals(u64::from(page) * PAGE_BYTES as u64, body)
    }

    /// Whether the page-aligned `body` lies in the pages from `page` on: marks each of its pages
    /// and checks for the mark. Overwrites the first word of each page.
    #[inline]
    pub fn carries(&self, page: u32, body: &mut [u8], mark: u64) -> bool {
        body.chunks_exact_mut(PAGE_BYTES).zip(u64::from(page)..).all(|(bytes, page)| {
            // SAFETY: the slice is ours alone and its pages are aligned, so its first word is too.
            unsafe { bytes.as_mut_ptr().cast::<u64>().write_volatile(mark) };
            std::sync::atomic::fence(Ordering::SeqCst);
            self.0.word(page * PAGE_BYTES as u64).is_ok_and(|word| word.load(Ordering::SeqCst) == mark)
        })
    }
}

/// All pages of this process that were taken.
pub struct PinSpace {
    pid: u32,
    watch: Arc<Watch>,
    mappings: Mappings,
    state: Mutex<State>,
    ended: AtomicBool,
}

#[derive(Default)]
struct State {
    arenas: Vec<Arena>,
    /// Pages never used, of the last arena.
    fresh: Range<u32>,
    free: FreeFrames,
    /// By page number.
    taken: BTreeMap<u64, Frame>,
    /// Frames whose page is gone, and the listeners that have not confirmed yet.
    limbo: HashMap<Frame, Vec<u64>>,
    listeners: Vec<(u64, Arc<Queue>)>,
    listeners_made: u64,
}

#[derive(Default)]
struct Queue {
    gone: Mutex<Vec<(u64, Frame)>>,
    count: AtomicU64,
}

/// A party that hands frames to a node, and is notified which pages are no longer there.
pub struct Listener {
    space: &'static PinSpace,
    id: u64,
    queue: Arc<Queue>,
    seen: u64,
}

static SPACE: OnceLock<Result<PinSpace, PinError>> = OnceLock::new();

/// The space of this process, if there is one.
fn spaces() -> Option<&'static PinSpace> {
    SPACE.get()?.as_ref().ok().filter(|space| !space.ended.load(Ordering::Relaxed))
}

impl PinSpace {
    /// The one of this process; made at first use, with a thread that sleeps until pinned memory is
    /// unmapped.
    ///
    /// # Errors
    /// [`PinError::NoWatch`], [`PinError::Forked`].
    pub fn of_process() -> Result<&'static PinSpace, PinError> {
        let space = SPACE.get_or_init(|| {
            let space = PinSpace::start()?;
            let no_handler = || PinError::NoWatch { why: "no fork handler can be installed".into() };
            fork::register().then_some(space).ok_or_else(no_handler)
        });
        let space = space.as_ref().map_err(Clone::clone)?;
        if space.pid != std::process::id() || space.ended.load(Ordering::Relaxed) {
            return Err(PinError::Forked);
        }
        Ok(space)
    }

    fn start() -> Result<PinSpace, PinError> {
        let no_watch = |e: &dyn std::fmt::Display| PinError::NoWatch { why: e.to_string() };
        let watch = Arc::new(Watch::new().map_err(|e| no_watch(&e))?);
        let theirs = watch.clone();
        let reader = std::thread::Builder::new().name("vmmc-pins".into());
        reader.spawn(move || theirs.run()).map_err(|e| no_watch(&e))?;
        let pid = std::process::id();
        let mappings = Mappings::new();
        Ok(PinSpace { pid, watch, mappings, state: Mutex::default(), ended: AtomicBool::new(false) })
    }

    /// Registers a listener, which is notified from now on which pages are gone.
    pub fn listen(&'static self) -> Listener {
        let mut state = self.lock();
        state.listeners_made += 1;
        let (id, queue) = (state.listeners_made, Arc::new(Queue::default()));
        state.listeners.push((id, queue.clone()));
        Listener { space: self, id, queue, seen: 0 }
    }

    /// Takes all pages of `body` that are not taken yet; page-aligned, whole pages.
    ///
    /// # Errors
    /// [`PinError`]; some of the pages may have been taken.
    ///
    /// # Panics
    /// If `body` is not made of whole pages: the caller cuts it.
    pub fn take(&self, body: &[u8]) -> Result<(), PinError> {
        let start = body.as_ptr() as usize;
        assert!(start % PAGE_BYTES == 0 && body.len() % PAGE_BYTES == 0, "whole pages are taken");
        let mut state = self.lock();
        self.apply_changes(&mut state);
        let first = (start / PAGE_BYTES) as u64;
        let missing: Vec<u64> =
            (first..first + (body.len() / PAGE_BYTES) as u64).filter(|p| !state.taken.contains_key(p)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        for run in missing.chunk_by(|a, b| a + 1 == *b) {
            let at = run[0] as usize * PAGE_BYTES;
            self.mappings.suitable(at, at + run.len() * PAGE_BYTES)?;
            for piece in run.chunks(ARENA_PAGES_MAX as usize) {
                let from = (piece[0] - first) as usize * PAGE_BYTES;
                self.take_run(&mut state, &body[from..from + piece.len() * PAGE_BYTES])?;
            }
        }
        Ok(())
    }

    fn take_run(&self, state: &mut State, body: &[u8]) -> Result<(), PinError> {
        let pages = (body.len() / PAGE_BYTES) as u32;
        let first = (body.as_ptr() as usize / PAGE_BYTES) as u64;
        let mut done = 0;
        while done < pages {
            let (frame, count) = state.some_frames(pages - done)?;
            let part = &body[done as usize * PAGE_BYTES..(done + count) as usize * PAGE_BYTES];
            self.place(state, part, frame).inspect_err(|_| state.free.add(frame, count))?;
            let frames = (0..count).map(|at| frame.after(at));
            state.taken.extend((first + u64::from(done)..).zip(frames));
            done += count;
        }
        Ok(())
    }

    /// Puts pages of an arena with the same content under a run of pages.
    fn place(&self, state: &State, body: &[u8], frame: Frame) -> Result<(), PinError> {
        let offset = u64::from(frame.page) * PAGE_BYTES as u64;
        let (len, base) = (body.len(), body.as_ptr() as usize);
        let system = |call| move |errno| PinError::Region(RegionError::System { call, errno });
        let staged = state.arenas[frame.arena as usize].0.map_locked(offset, len).map_err(|errno| match errno {
            Errno::AGAIN | Errno::PERM => PinError::LockLimit { pages: len / PAGE_BYTES },
            errno => system("mmap")(errno),
        })?;
        // SAFETY: until the mremap all calls concern the fresh mapping only. `body` is borrowed, so
        // nobody writes to its pages meanwhile, and `suitable` has seen that they are private
        // memory; mremap replaces them in one step by pages with the same bytes, of the same
        // protection.
        unsafe {
            std::ptr::copy_nonoverlapping(body.as_ptr(), staged.cast::<u8>(), len);
            let _ = rustix::mm::madvise(staged, len, Advice::LinuxDontFork);
            if let Err(errno) = rustix::mm::mremap_fixed(staged, len, len, MremapFlags::MAYMOVE, base as *mut _) {
                let _ = rustix::mm::munmap(staged, len);
                return Err(system("mremap")(errno));
            }
        }
        self.watch.add(base, len).map_err(|error| {
            // SAFETY: the run was made shared above and is still borrowed; unwatched it must not
            // stay so.
            let _ = unsafe { swap_pages(base as *mut u8, len, None) };
            PinError::Region(error)
        })
    }

    /// Makes pages private again; whatever a node still does to their frames no longer reaches
    /// them.
    ///
    /// # Errors
    /// [`RegionError`]; then they are as they were.
    ///
    /// # Panics
    /// As [`take`](Self::take).
    pub fn give_private(&self, body: &mut [u8]) -> Result<(), RegionError> {
        let start = body.as_mut_ptr() as usize;
        assert!(start % PAGE_BYTES == 0 && body.len() % PAGE_BYTES == 0, "whole pages are given back");
        let mut state = self.lock();
        self.apply_changes(&mut state);
        let first = (start / PAGE_BYTES) as u64;
        let range = first..first + (body.len() / PAGE_BYTES) as u64;
        let pages: Vec<u64> = state.taken.range(range).map(|(page, _)| *page).collect();
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let (at, len) = (run[0] as usize * PAGE_BYTES, run.len() * PAGE_BYTES);
            self.watch.remove(at, len);
            // SAFETY: the pages are ours (they are in the table), mapped (the body is borrowed) and
            // have no other writer (it is borrowed mutably).
            unsafe { swap_pages(at as *mut u8, len, None)? };
            run.iter().for_each(|page| state.gone(*page));
        }
        Ok(())
    }

    /// Where a page lies, if it was taken.
    pub fn frame(&self, page: u64) -> Option<Frame> {
        self.lock().taken.get(&page).copied()
    }

    /// An arena.
    pub fn arena(&self, number: u32) -> Option<Arena> {
        self.lock().arenas.get(number as usize).cloned()
    }

    /// Pages taken now.
    pub fn pages(&self) -> usize {
        self.lock().taken.len()
    }

    /// Waits until every change of a mapping that began before this call is known.
    pub fn synchronize(&self) {
        let mut state = self.lock();
        self.apply_changes(&mut state);
    }

    /// Whether a mapping of a taken page is being changed by another thread right now; one system
    /// call.
    #[inline]
    pub fn is_changing(&self) -> bool {
        self.watch.is_changing()
    }

    /// Whether some page went that listeners have not been notified of yet: [`Listener::gone`]
    /// reports it.
    #[inline]
    pub fn has_changes(&self) -> bool {
        self.watch.has_changes()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the lock is held")
    }

    /// Brings the table up to date with the address space.
    fn apply_changes(&self, state: &mut State) {
        if !self.watch.drain() {
            // A thread of this process has been stuck in munmap: nothing is known any more.
            state.forget_all();
        }
        while let Some(change) = self.watch.next() {
            match change {
                Change::Gone { start, end } => state.unmapped(start, end),
                Change::Moved { from, to, len } => state.moved(from, to, len),
                Change::Lost => state.forget_all(),
            }
            // Only now: a listener that sees no change must find it in its queue.
            self.watch.done(change);
        }
    }

    /// A forked child: nothing of this is valid there.
    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl State {
    /// Up to so many frames that follow each other: those that were used before, if they suffice,
    /// else fresh ones.
    fn some_frames(&mut self, pages: u32) -> Result<(Frame, u32), PinError> {
        if let Some(first) = self.free.take_run(pages) {
            return Ok((first, pages));
        }
        if self.fresh.len() < pages as usize && self.free.len() >= pages as usize {
            return Ok(self.free.take_longest(pages).expect("as many are free"));
        }
        if self.fresh.len() < pages as usize {
            let arena = self.arenas.len() as u32;
            let size = (ARENA_PAGES_FIRST << arena.min(16)).clamp(pages, ARENA_PAGES_MAX);
            let made = Arena(Region::create(u64::from(size) * PAGE_BYTES as u64)?);
            let rest = Frame { arena: arena.saturating_sub(1), page: self.fresh.start };
            self.free.add(rest, self.fresh.len() as u32);
            self.arenas.push(made);
            self.fresh = 0..size;
        }
        let first = Frame { arena: self.arenas.len() as u32 - 1, page: self.fresh.start };
        self.fresh.start += pages;
        Ok((first, pages))
    }

    /// A page is not where it was: every listener is told.
    fn notify_listeners(&self, page: u64, frame: Frame) {
        for (_, queue) in &self.listeners {
            queue.gone.lock().expect("no panic while the lock is held").push((page, frame));
            queue.count.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn gone(&mut self, page: u64) {
        let Some(frame) = self.taken.remove(&page) else { return };
        self.notify_listeners(page, frame);
        if self.listeners.is_empty() {
            self.free.add(frame, 1);
        } else {
            self.limbo.insert(frame, self.listeners.iter().map(|(id, _)| *id).collect());
        }
    }

    fn unmapped(&mut self, start: u64, end: u64) {
        let pages: Vec<u64> = self.taken.range(start >> 12..end.div_ceil(1 << 12)).map(|(page, _)| *page).collect();
        pages.into_iter().for_each(|page| self.gone(page));
    }

    /// The pages lie elsewhere, still on their frames: for listeners they are gone, but the frames
    /// are not free.
    fn moved(&mut self, from: u64, to: u64, len: u64) {
        let pages: Vec<u64> = self.taken.range(from >> 12..(from + len) >> 12).map(|(page, _)| *page).collect();
        let frames: Vec<(u64, Frame)> =
            pages.iter().filter_map(|page| Some((*page, self.taken.remove(page)?))).collect();
        for (page, frame) in frames {
            self.notify_listeners(page, frame);
            self.taken.insert(page - (from >> 12) + (to >> 12), frame);
        }
    }

    /// Nothing is known any more: the frames stay used for good.
    fn forget_all(&mut self) {
        for (page, frame) in std::mem::take(&mut self.taken) {
            self.notify_listeners(page, frame);
        }
        self.limbo.clear();
    }

    fn confirm(&mut self, frame: Frame, id: u64) {
        if let Some(waiting) = self.limbo.get_mut(&frame) {
            waiting.retain(|listener| *listener != id);
            if waiting.is_empty() {
                self.limbo.remove(&frame);
                self.free.add(frame, 1);
            }
        }
    }

    /// Ranges of addresses that are taken.
    fn runs(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in self.taken.keys() {
            let at = *page as usize * PAGE_BYTES;
            match runs.last_mut() {
                Some(run) if run.end == at => run.end += PAGE_BYTES,
                _ => runs.push(at..at + PAGE_BYTES),
            }
        }
        runs
    }
}

impl Listener {
    /// The space.
    pub fn space(&self) -> &'static PinSpace {
        self.space
    }

    /// Pages that are gone since the last call, with their frames, all changes that began before
    /// this call included. Every frame must be [confirmed](Self::confirm) once the node has
    /// forgotten it.
    pub fn gone(&mut self) -> Vec<(u64, Frame)> {
        let mut state = self.space.lock();
        self.space.apply_changes(&mut state);
        drop(state);
        let count = self.queue.count.load(Ordering::SeqCst);
        if count == self.seen {
            return Vec::new();
        }
        self.seen = count;
        std::mem::take(&mut *self.queue.gone.lock().expect("no panic while the lock is held"))
    }

    /// Whether [`gone`](Self::gone) has something.
    #[inline]
    pub fn has_changes(&self) -> bool {
        self.space.has_changes() || self.queue.count.load(Ordering::Relaxed) != self.seen
    }

    /// The node has forgotten these frames.
    pub fn confirm(&self, frames: &[Frame]) {
        let mut state = self.space.lock();
        frames.iter().for_each(|frame| state.confirm(*frame, self.id));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.space.lock();
        state.listeners.retain(|(id, _)| *id != self.id);
        let frames: Vec<Frame> = state.limbo.keys().copied().collect();
        frames.into_iter().for_each(|frame| state.confirm(frame, self.id));
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
