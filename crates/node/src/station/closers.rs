//! Descriptors of clients are closed where nobody waits for it.
//!
//! Closing can wait for a client: a TCP socket that lingers waits for its peer, a file of a user's
//! own file system (FUSE) for the process that serves it, a terminal for its drain, and a control
//! socket for all descriptors in messages that nobody has read. What a client gives is sorted as it
//! comes, by calls that only ask the kernel: memory (what has seals), event counters and pipes are
//! closed by anybody. All else, and each control socket, is [`Foreign`] from the moment that the
//! node has it, and wherever that is dropped, a thread made for it does the closing.
//!
//! ```text
//!  dropped ──▶ queue of its user ──▶ one of CLOSERS_MAX threads: close ──▶ its share is given back
//!       (of files, sockets, memory)               └── longer than CLOSE_TIME_LIMIT: the watchdog interrupts it
//! ```
//!
//! Memory waits for nobody, but takes time: the kernel gets the pages of a file back with its last
//! copy, some 25 ms for a GiB. So much memory, and all that a process leaves behind, is given up by
//! such a thread too, a piece at a time ([`Leftover`]).
//!
//! Invariant: the thread that serves everybody never closes the last copy of a descriptor whose
//! closing may wait, also not when no thread can be made: then it waits, and counts as its user's
//! until it is closed.

use super::shares::Holdings;
use crate::limits::{
    CLOSE_BEGUN, CLOSE_TIME_LIMIT, CLOSED_AT_ONCE_BYTES, CLOSER_IDLE, CLOSERS_KEPT, CLOSERS_MAX, SOCKET_CLOSERS_MAX,
    UNCLOSED_ALL_MAX, UNCLOSED_MAX,
};
use rustix::fs::{OFlags, fcntl_get_seals, fstat, readlink};
use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use vmmc_host::process::interrupt_thread;

/// The threads that close; they end with it, when nothing is left to be closed.
pub(super) struct Closers(Arc<Shared>);

/// Something whose closing may wait for a user.
pub(crate) struct Foreign<T: Into<OwnedFd>> {
    what: Option<T>,
    key: QueueKey,
    /// It came with a message.
    gift: bool,
    /// What is given back when it is closed.
    pub(super) held: Holdings,
    closers: Arc<Shared>,
}

impl<T: Into<OwnedFd>> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.what.as_ref().expect("there until it is dropped")
    }
}

impl<T: Into<OwnedFd>> Drop for Foreign<T> {
    fn drop(&mut self) {
        if let Some(what) = self.what.take() {
            let held = std::mem::take(&mut self.held);
            let unclosed = Unclosed { what: What::Fd(what.into()), held, gift: self.gift };
            self.closers.put(self.key, unclosed);
        }
    }
}

impl Foreign<OwnedFd> {
    /// Closes it here and now: the node has another copy. Gives what is given back with it.
    pub(super) fn close_here(mut self) -> Holdings {
        drop(self.what.take());
        if self.gift {
            self.closers.ungift(&mut self.closers.lock(), self.key.uid);
        }
        std::mem::take(&mut self.held)
    }
}

/// Memory that is not needed any more, in pieces that are given up one by one.
pub(super) trait Leftover: Send {
    /// Gives the next piece up; what its user gets back with it. None: nothing is left.
    fn give_up(&mut self) -> Option<Holdings>;
}

/// A piece by itself.
struct Piece<T>(Option<(T, Holdings)>);

impl<T: Send> Leftover for Piece<T> {
    fn give_up(&mut self) -> Option<Holdings> {
        self.0.take().map(|(_, held)| held)
    }
}

/// Names a queue of closings that wait for each other: files of a file system that never answers
/// must not keep sockets open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct QueueKey {
    uid: u32,
    of: Of,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    Files,
    Sockets,
    Memory,
}

impl QueueKey {
    fn threads_max(self) -> usize {
        if self.of == Of::Sockets { SOCKET_CLOSERS_MAX } else { 1 }
    }
}

struct Unclosed {
    what: What,
    held: Holdings,
    gift: bool,
}

enum What {
    Fd(OwnedFd),
    Memory(Box<dyn Leftover>),
    Nothing,
}

impl Unclosed {
    /// Closes it, or gives a piece of it up; whether that was all.
    fn close(&mut self) -> bool {
        match std::mem::replace(&mut self.what, What::Nothing) {
            What::Nothing => true,
            What::Fd(fd) => {
                drop(fd);
                true
            }
            What::Memory(mut memory) => match memory.give_up() {
                Some(held) => {
                    (self.what, self.held) = (What::Memory(memory), held);
                    false
                }
                None => true,
            },
        }
    }
}

impl Drop for Unclosed {
    fn drop(&mut self) {
        // Nobody is left to close it: the process ends soon, or this is a test.
        if let What::Fd(fd) = std::mem::replace(&mut self.what, What::Nothing) {
            let _ = fd.into_raw_fd();
        }
    }
}

#[derive(Default)]
struct Shared {
    /// Nobody but the process itself is served, so the thread that drops one closes it.
    inline: bool,
    state: Mutex<State>,
    work: Condvar,
    alarm: Condvar,
    /// Descriptors that are not closed yet, and those of them that came with messages.
    unclosed: AtomicUsize,
    gifts: AtomicUsize,
    /// Something is to be given back.
    any_closed: AtomicBool,
}

#[derive(Default)]
struct State {
    queues: HashMap<QueueKey, Waiting>,
    /// Queues in which something waits, each once.
    turn: VecDeque<QueueKey>,
    threads: usize,
    idle: usize,
    /// Threads that do not end for want of work.
    kept: usize,
    busy: Vec<Busy>,
    /// What came with messages of each user and is not closed.
    gifts: HashMap<u32, usize>,
    /// What can be given back, by user.
    closed: HashMap<u32, Holdings>,
    watchdog_sleeps: bool,
    /// A process is being made: nothing is closed meanwhile.
    paused: bool,
    over: bool,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Unclosed>,
    threads: usize,
}

/// A thread in the middle of a close.
struct Busy {
    thread: i32,
    since: Instant,
    interrupts: u32,
    /// Of memory of this user, which waits for nobody.
    memory: Option<u32>,
}

/// Descriptors of one message.
#[derive(Default)]
pub(super) struct Given {
    /// What the node may work with, and drop.
    pub(super) fds: Vec<OwnedFd>,
    /// Of no kind that a call takes.
    pub(super) strange: Vec<Foreign<OwnedFd>>,
    /// So much memory that the last copy of it is to be closed elsewhere.
    pub(super) much: Vec<Foreign<OwnedFd>>,
}

/// Whether the pages of a file are so many that giving them back takes time.
fn is_much(fd: impl AsFd) -> bool {
    fstat(fd).map_or(true, |stat| stat.st_blocks as u64 * 512 > CLOSED_AT_ONCE_BYTES)
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Harmless,
    Memory,
    Socket,
    Strange,
}

fn kind(fd: &OwnedFd) -> Kind {
    if fcntl_get_seals(fd).is_ok() {
        return Kind::Memory;
    }
    // The kernel's name for it. A path says nothing of what is behind it, so that is strange.
    let name = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    let name = name.map(|name| name.into_bytes()).unwrap_or_default();
    let path_only = rustix::fs::fcntl_getfl(fd).map_or(true, |flags| flags.contains(OFlags::PATH));
    if path_only {
        Kind::Strange
    } else if name.starts_with(b"socket:") {
        Kind::Socket
    } else if name.starts_with(b"pipe:") || name == b"anon_inode:[eventfd]" {
        Kind::Harmless
    } else {
        Kind::Strange
    }
}

impl Closers {
    /// `inline`: there is nobody who could make a close wait for another.
    pub(super) fn new(inline: bool) -> Closers {
        Closers(Arc::new(Shared { inline, ..Shared::default() }))
    }

    /// Makes threads that stay, before anybody can keep the node from making some, and one that
    /// interrupts what takes too long: the program has a handler for
    /// [`vmmc_host::process::INTERRUPT`].
    pub(super) fn stand_by(&self) {
        self.0.lock().kept = CLOSERS_KEPT;
        (0..CLOSERS_KEPT).for_each(|_| self.0.spawn(&mut self.0.lock()));
        let shared = self.0.clone();
        let _ = std::thread::Builder::new().name("vmmc-watchdog".into()).spawn(move || shared.watch());
    }

    /// Has a socket to a client closed by a thread, whenever it is dropped.
    pub(super) fn socket<T: Into<OwnedFd>>(&self, uid: u32, socket: T) -> Foreign<T> {
        self.foreign(QueueKey { uid, of: Of::Sockets }, socket, false)
    }

    fn foreign<T: Into<OwnedFd>>(&self, key: QueueKey, what: T, gift: bool) -> Foreign<T> {
        Foreign { what: Some(what), key, gift, held: Holdings::default(), closers: self.0.clone() }
    }

    /// Has a thread give up what a process of this user leaves behind, and give back its shares as
    /// it goes.
    pub(super) fn give_up(&self, uid: u32, memory: impl Leftover + 'static) {
        let what = What::Memory(Box::new(memory));
        let unclosed = Unclosed { what, held: Holdings::default(), gift: false };
        self.0.put(QueueKey { uid, of: Of::Memory }, unclosed);
    }

    /// The same for something that is given up at once.
    pub(super) fn give_up_whole<T: Send + 'static>(&self, uid: u32, what: T, held: Holdings) {
        self.give_up(uid, Piece(Some((what, held))));
    }

    /// Sorts what came with a message.
    pub(super) fn sort(&self, uid: u32, fds: Vec<OwnedFd>) -> Given {
        let mut given = Given::default();
        for fd in fds {
            let of = match kind(&fd) {
                Kind::Harmless => {
                    given.fds.push(fd);
                    continue;
                }
                Kind::Memory if !is_much(&fd) => {
                    given.fds.push(fd);
                    continue;
                }
                Kind::Memory => Of::Memory,
                Kind::Socket => Of::Sockets,
                Kind::Strange => Of::Files,
            };
            self.0.gifts.fetch_add(1, Ordering::Relaxed);
            *self.0.lock().gifts.entry(uid).or_default() += 1;
            let list = if of == Of::Memory { &mut given.much } else { &mut given.strange };
            list.push(self.foreign(QueueKey { uid, of }, fd, true));
        }
        given
    }

    /// Whether so much of what a user gave cannot be closed that nothing more is taken from it.
    pub(super) fn is_stuck(&self, uid: u32) -> bool {
        self.0.gifts.load(Ordering::Relaxed) >= UNCLOSED_MAX
            && self.0.lock().gifts.get(&uid).is_some_and(|count| *count >= UNCLOSED_MAX)
    }

    /// Whether so much waits to be closed that no connection is taken.
    pub(super) fn are_full(&self) -> bool {
        self.0.unclosed.load(Ordering::Relaxed) >= UNCLOSED_ALL_MAX
    }

    /// What can be given back, because it is closed; and whose it was.
    pub(super) fn take_closed(&self) -> HashMap<u32, Holdings> {
        match self.0.any_closed.swap(false, Ordering::Relaxed) {
            true => std::mem::take(&mut self.0.lock().closed),
            false => HashMap::new(),
        }
    }

    /// Closes nothing until the guard is dropped: a process that is being made has copies of all
    /// descriptors until its program runs, and the last copy must not be one of those.
    pub(crate) fn pause(&self) -> Paused {
        let begun = {
            let mut state = self.0.lock();
            state.paused = true;
            state.busy.iter().any(|busy| busy.since.elapsed() < CLOSE_BEGUN)
        };
        if begun {
            // A thread that took one just now is in its system call by then, and the descriptor out
            // of the table.
            std::thread::sleep(CLOSE_BEGUN);
        }
        Paused(self.0.clone())
    }

    /// Whether memory of others than a user is being given up, for which the kernel may let all
    /// threads of the node wait.
    pub(super) fn memory_of_others(&self) -> impl Fn(u32) -> bool + Send + use<> {
        let shared = Arc::downgrade(&self.0);
        move |uid| {
            let shared = shared.upgrade();
            shared.is_some_and(|shared| shared.lock().busy.iter().any(|b| b.memory.is_some_and(|of| of != uid)))
        }
    }

    /// Waits until all is closed, or no longer than this.
    pub(super) fn finish(&self, within: Duration) {
        let end = Instant::now() + within;
        while self.0.unclosed.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for Closers {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.work.notify_all();
        self.0.alarm.notify_all();
    }
}

/// See [`Closers::pause`].
pub(crate) struct Paused(Arc<Shared>);

impl Drop for Paused {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.paused = false;
        self.0.call_hands(&mut state);
        self.0.work.notify_all();
    }
}

impl Shared {
    /// A thread that panicked has left nothing half done: each change is one statement.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn put(self: &Arc<Self>, key: QueueKey, mut unclosed: Unclosed) {
        // Memory is bounded by the share of its user, and waits for nobody.
        if key.of != Of::Memory {
            self.unclosed.fetch_add(1, Ordering::Relaxed);
        }
        if self.inline {
            while !unclosed.close() {
                self.return_holdings(&mut self.lock(), key.uid, &mut unclosed.held);
            }
            return self.closed(&mut self.lock(), key, unclosed);
        }
        let mut state = self.lock();
        let queue = &mut state.queues.entry(key).or_default().queue;
        queue.push_back(unclosed);
        if queue.len() == 1 {
            state.turn.push_back(key);
        }
        self.call_hands(&mut state);
    }

    /// Has a thread take what waits, if one may.
    fn call_hands(self: &Arc<Self>, state: &mut State) {
        if state.paused || state.next_queue().is_none() {
            return;
        }
        if state.idle > 0 {
            self.work.notify_one();
        } else {
            self.spawn(state);
        }
    }

    fn spawn(self: &Arc<Self>, state: &mut State) {
        if state.threads >= CLOSERS_MAX {
            return;
        }
        let shared = self.clone();
        // Should none be had, what waits goes on waiting: for one that is there, or for the next
        // try.
        let made = std::thread::Builder::new().name("vmmc-closer".into()).spawn(move || shared.run());
        state.threads += usize::from(made.is_ok());
    }

    /// One of the threads that close.
    fn run(self: Arc<Self>) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let mut state = self.lock();
        loop {
            let next = if state.paused { None } else { state.take() };
            if let Some((key, mut unclosed)) = next {
                let memory = (key.of == Of::Memory).then_some(key.uid);
                state.busy.push(Busy { thread, since: Instant::now(), interrupts: 0, memory });
                self.call_hands(&mut state);
                if std::mem::take(&mut state.watchdog_sleeps) {
                    self.alarm.notify_one();
                }
                drop(state);
                let is_closed = unclosed.close();
                state = self.lock();
                state.busy.retain(|busy| busy.thread != thread);
                if is_closed {
                    self.closed(&mut state, key, unclosed);
                } else {
                    self.return_holdings(&mut state, key.uid, &mut unclosed.held);
                    state.put_back(key, unclosed);
                }
                continue;
            }
            if state.over {
                break;
            }
            state.idle += 1;
            let (found, waited) = self.work.wait_timeout(state, CLOSER_IDLE).unwrap_or_else(|e| e.into_inner());
            state = found;
            state.idle -= 1;
            if waited.timed_out() && state.threads > state.kept && state.next_queue().is_none() {
                break;
            }
        }
        state.threads -= 1;
    }

    fn return_holdings(&self, state: &mut State, uid: u32, held: &mut Holdings) {
        state.closed.entry(uid).or_default().add(&std::mem::take(held));
        self.any_closed.store(true, Ordering::Relaxed);
    }

    /// Something that came with a message of a user is closed.
    fn ungift(&self, state: &mut State, uid: u32) {
        self.gifts.fetch_sub(1, Ordering::Relaxed);
        let count = state.gifts.entry(uid).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            state.gifts.remove(&uid);
        }
    }

    fn closed(&self, state: &mut State, key: QueueKey, mut unclosed: Unclosed) {
        if let Some(waiting) = state.queues.get_mut(&key) {
            waiting.threads -= 1;
            if waiting.threads == 0 && waiting.queue.is_empty() {
                state.queues.remove(&key);
            }
        }
        if unclosed.gift {
            self.ungift(state, key.uid);
        }
        self.return_holdings(state, key.uid, &mut unclosed.held);
        if key.of != Of::Memory {
            self.unclosed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The thread that interrupts the others. What waits in the kernel for a socket's peer ends so;
    /// what cannot be interrupted keeps its thread, and its user's other files, until it is done.
    fn watch(self: Arc<Self>) {
        let mut state = self.lock();
        while !state.over || !state.busy.is_empty() {
            let now = Instant::now();
            for busy in state.busy.iter_mut().filter(|busy| busy.memory.is_none()) {
                let limit = CLOSE_TIME_LIMIT * (1 << busy.interrupts.min(9));
                if now.duration_since(busy.since) >= limit {
                    busy.interrupts += 1;
                    interrupt_thread(busy.thread);
                }
            }
            if state.busy.is_empty() {
                state.watchdog_sleeps = true;
                state = self.alarm.wait(state).unwrap_or_else(|e| e.into_inner());
            } else {
                self.call_hands(&mut state);
                state = self.alarm.wait_timeout(state, CLOSE_TIME_LIMIT).unwrap_or_else(|e| e.into_inner()).0;
            }
        }
    }
}

impl State {
    /// Where the next queue is whose turn it is, and that may have another thread.
    fn next_queue(&self) -> Option<usize> {
        self.turn.iter().position(|key| self.queues.get(key).is_some_and(|w| w.threads < key.threads_max()))
    }

    fn take(&mut self) -> Option<(QueueKey, Unclosed)> {
        let key = self.turn.remove(self.next_queue()?)?;
        let waiting = self.queues.get_mut(&key)?;
        let unclosed = waiting.queue.pop_front()?;
        waiting.threads += 1;
        if !waiting.queue.is_empty() {
            self.turn.push_back(key);
        }
        Some((key, unclosed))
    }

    /// More of it is left, before what came after it.
    fn put_back(&mut self, key: QueueKey, unclosed: Unclosed) {
        let waiting = self.queues.entry(key).or_default();
        waiting.threads -= 1;
        waiting.queue.push_front(unclosed);
        if waiting.queue.len() == 1 {
            self.turn.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests;
