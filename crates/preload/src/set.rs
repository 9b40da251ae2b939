//! Epoll sets: which connections are in them, and how the program waits.
//!
//! Invariant: a connection that is not upgraded is registered as the program asked, with its data replaced by a token of ours; one that is upgraded is registered
//! edge-triggered for what the kernel alone knows (end of stream, and directions that are still there), and level, edge, one-shot and output are judged here. Everything else in the set is the kernel's alone. So a program that stops listening costs no system call, and a FIN rings once.
//!
//! Waiting: connections that may be ready are in a queue, fed by the bits that peers set; nobody scans. Before sleeping the set is armed, and its bell is in the kernel's
//! set. Descriptors that are not ours are looked at at least every [`KERNEL_LOOK_NS`].

use crate::arena::{Index, Resource};
use crate::clock::{Limit, now_ns};
use crate::errno::{self, Kept};
use crate::limits::{DEAF_SLICE_NS, KERNEL_LOOK_NS, SPIN_MAX};
use crate::lock::Lock;
use crate::members::Members;
use crate::own::{self, Inside};
use crate::real;
use crate::reason::Reason;
use crate::table::{self, CONNECTIONS, Entry, SETS};
use crate::tcp::{Held, Tcp};
use libc::{c_int, epoll_event, sigset_t};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use vmmc_sockets::ReadySet;

/// An epoll set.
pub(crate) struct Set {
    /// The members that are connections.
    pub(crate) members: Lock<Members>,
    /// The bell and the bits; null until the first connection comes. A box.
    ready: AtomicPtr<ReadySet>,
    /// Threads that sleep in it.
    sleepers: AtomicU32,
    /// When the kernel was last asked.
    looked_ns: AtomicU64,
    /// It is in another set, or something waits for it as for a descriptor: its connections stay with the kernel.
    nested: AtomicBool,
    /// This process got it by fork; the bits are its parent's.
    inherited: AtomicBool,
}

impl Resource for Set {
    fn fresh() -> Set {
        Set {
            members: Lock::new(Members::new()),
            ready: AtomicPtr::new(null_mut()),
            sleepers: AtomicU32::new(0),
            looked_ns: AtomicU64::new(0),
            nested: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
        }
    }

    fn end(&self) {
        let _inside = Inside::enter();
        let ready = self.ready.swap(null_mut(), AcqRel);
        if !ready.is_null() {
            // SAFETY: `ready` made the box; nobody refers to this object any more.
            let ready = unsafe { Box::from_raw(ready) };
            if self.inherited.load(Relaxed) {
                self.members.lock().remove_all(None);
                // The parent's: taking connections out of it would take them out of the parent's.
                std::mem::forget(ready);
            } else {
                self.members.lock().remove_all(Some(&ready));
            }
        }
        *self.members.lock() = Members::new();
        self.sleepers.store(0, Relaxed);
        self.looked_ns.store(0, Relaxed);
        self.nested.store(false, Relaxed);
        self.inherited.store(false, Relaxed);
    }

    fn end_in_child(&self) -> bool {
        // A fork takes the locks of open sets only.
        let whole = !self.members.is_taken();
        if whole {
            self.end();
        }
        whole
    }
}

impl Set {
    /// The bell and the bits, made and hung into the kernel's set at first use.
    fn ready(&self, epfd: c_int) -> Option<&ReadySet> {
        let ready = self.ready.load(Acquire);
        if ready.is_null() {
            return self.make_ready(epfd);
        }
        // SAFETY: made by `make_ready`, and dropped only when nobody holds this object.
        Some(unsafe { &*ready })
    }

    #[cold]
    fn make_ready(&self, epfd: c_int) -> Option<&ReadySet> {
        // One thread makes it; and whoever the bell wakes in the kernel at once needs this lock to look.
        let _members = self.members.lock();
        if self.has_bell() {
            return self.ready(epfd);
        }
        self.ready.store(Box::into_raw(hang_bell(epfd)?), Release);
        self.ready(epfd)
    }

    /// A wait in the child of a fork: its peers ring the parent, whose bell it is. The connections go back to the kernel, which both hear; what comes by the ring until then the
    /// child hears by a bell of its own.
    #[cold]
    fn take_over(&self, epfd: c_int) {
        // Says how the node calls this process, without which nobody can ring it.
        own::context().poll();
        let mut members = self.members.lock();
        if self.inherited.load(Relaxed) {
            if let Some(ready) = hang_bell(epfd).filter(|ready| members.watch_all(ready)) {
                // The old one is the parent's, and another thread may look at it: it stays.
                self.ready.store(Box::into_raw(ready), Release);
                self.inherited.store(false, Relaxed);
            }
            // What came before nobody told.
            members.enqueue_all();
        }
        drop(members);
        self.nest();
    }

    /// How long to sleep at most.
    fn nap(&self, limit: Limit) -> Limit {
        let deaf = self.inherited.load(Relaxed) && (own::context().has_between() || self.members.lock().reads_ring());
        if deaf { limit.at_most(DEAF_SLICE_NS) } else { limit.nap() }
    }

    /// It cannot be waited for here only: its connections go back to the kernel, now and later.
    pub(crate) fn nest(&self) {
        if self.nested.swap(true, Relaxed) {
            return;
        }
        let mut members = self.members.lock();
        for (fd, connection) in members.connections() {
            if let Some(tcp) = CONNECTIONS.pin(connection) {
                tcp.leave(fd, Reason::Nested);
            }
        }
        members.enqueue_all();
        drop(members);
        // What is in rings now the kernel does not know: whoever waits for the set looks into it once.
        self.wake();
    }

    /// Whether the kernel's set has events that the program must not see: once a connection was in it, for the bell stays and may ring late.
    fn has_bell(&self) -> bool {
        !self.ready.load(Acquire).is_null()
    }

    /// This is the child of a fork.
    pub(crate) fn inherit(&self) {
        self.inherited.store(true, Relaxed);
        self.sleepers.store(0, Relaxed);
    }
}

/// A bell, in the kernel's set.
fn hang_bell(epfd: c_int) -> Option<Box<ReadySet>> {
    let ready = Box::new(own::context().ready_set().ok()?);
    let mut event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: Members::bell_data() };
    // SAFETY: the event is ours; the bell lives as long as the box.
    let hung = unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, ready.bell().as_raw_fd(), &raw mut event) };
    // It may be there from a try before.
    (hung == 0 || errno::current() == libc::EEXIST).then_some(ready)
}

/// Held while a set is made known, and for the length of a fork: the child would find the lock of a set taken that the fork had not listed.
pub(crate) static MAKING: Lock<()> = Lock::new(());

/// epoll_create gave a set.
pub(crate) fn created(fd: c_int) -> c_int {
    if fd >= 0 && own::active() {
        let _kept = Kept::now();
        let _making = MAKING.lock();
        if let Some(index) = SETS.insert() {
            table::put(fd, Entry::Set(index));
        }
    }
    fd
}

/// epoll_ctl.
///
/// # Safety
/// As epoll_ctl.
pub(crate) unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's promise.
    let kernel = || unsafe { real::epoll_ctl(epfd, op, fd, event) };
    let Some(set) = table::set(epfd) else {
        if let Some(tcp) = table::connection(fd) {
            // A set that we did not see being made.
            tcp.leave(fd, Reason::ManySets);
        }
        return kernel();
    };
    if let Some(inner) = table::set(fd) {
        inner.nest();
    }
    let Some(tcp) = table::connection(fd) else { return kernel() };
    let _inside = Inside::enter();
    // SAFETY: the caller's promise: a valid event, or null.
    let event = unsafe { event.as_ref() }.copied();
    let result = match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => add(&set, epfd, fd, &tcp, event),
        (libc::EPOLL_CTL_MOD, Some(event)) => {
            let ready = set.ready(epfd);
            set.members.lock().modify(epfd, set.index(), fd, &tcp, event, ready)
        }
        (libc::EPOLL_CTL_DEL, _) => remove(&set, epfd, fd, &tcp),
        _ => kernel(),
    };
    if op != libc::EPOLL_CTL_DEL && set.sleepers.load(Relaxed) > 0 {
        set.wake();
    }
    result
}

impl Set {
    /// Another thread sleeps in the set while something changed: it looks again.
    fn wake(&self) {
        let ready = self.ready.load(Acquire);
        if !ready.is_null() {
            let one = 1u64;
            // SAFETY: see `ready`; eight bytes of ours.
            unsafe { real::write((*ready).bell().as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
        }
    }
}

fn add(set: &crate::arena::Pin<Set>, epfd: c_int, fd: c_int, tcp: &Held, event: epoll_event) -> c_int {
    if set.nested.load(Relaxed) {
        tcp.leave(fd, Reason::Nested);
    }
    let Some(ready) = set.ready(epfd) else {
        tcp.leave(fd, Reason::ManySets);
        let mut event = event;
        // SAFETY: the event is ours.
        return unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    };
    set.members.lock().add(epfd, set.index(), fd, tcp, event, ready)
}

fn remove(set: &crate::arena::Pin<Set>, epfd: c_int, fd: c_int, tcp: &Held) -> c_int {
    let ready = set.ready(epfd);
    set.members.lock().remove(epfd, set.index(), fd, tcp, ready)
}

/// The last descriptor of a connection that is in a set is about to go.
pub(crate) fn closing(set_index: Index, tcp: &Tcp) {
    let Some(set) = SETS.pin(set_index) else { return };
    let ready = set.ready.load(Acquire);
    // SAFETY: see `Set::ready`.
    let ready = unsafe { ready.as_ref() };
    let _inside = Inside::enter();
    let ready = if set.inherited.load(Relaxed) { None } else { ready };
    set.members.lock().close(set_index, tcp, ready);
}

/// The connection may be ready for a reason that its bell did not ring for.
pub(crate) fn look_again(tcp: &Tcp) {
    for index in tcp.sets() {
        let (Some(set), Some(token)) = (SETS.pin(index), tcp.token(index)) else { continue };
        set.members.lock().enqueue(token);
        if set.sleepers.load(Relaxed) > 0 {
            set.wake();
        }
    }
}

/// What a wait was asked for.
pub(crate) struct Request<'a> {
    /// The set.
    pub(crate) epfd: c_int,
    /// Where events go.
    pub(crate) events: *mut epoll_event,
    /// How many fit.
    pub(crate) max: c_int,
    /// Signals to block meanwhile.
    pub(crate) mask: Option<&'a sigset_t>,
    /// Whether the limit is finer than milliseconds.
    pub(crate) precise: bool,
}

impl Request<'_> {
    /// The kernel's wait for what is left of the room.
    fn kernel(&self, filled: usize, limit: Limit) -> c_int {
        let mask = self.mask.map_or(null(), std::ptr::from_ref);
        // SAFETY: the program promised room for `max` events, of which `filled` are taken.
        unsafe {
            let events = self.events.add(filled);
            let room = self.max - filled as c_int;
            match limit.left() {
                Some(left) if self.precise => real::epoll_pwait2(self.epfd, events, room, &raw const left, mask),
                _ => real::epoll_pwait(self.epfd, events, room, limit.left_ms(), mask),
            }
        }
    }
}

/// epoll_wait, epoll_pwait and epoll_pwait2.
pub(crate) fn wait(request: &Request<'_>, limit: impl FnOnce() -> Limit) -> Option<c_int> {
    let set = table::set(request.epfd).filter(|set| set.has_bell())?;
    if request.max <= 0 || request.events.is_null() {
        return None;
    }
    let _inside = Inside::enter();
    Some(wait_in(&set, request, limit()))
}

/// The kernel's own wait, begun on a set without a bell, gave `n`. If a connection came into the set meanwhile, what it says is not for the program as it stands.
///
/// # Safety
/// So many events are there.
pub(crate) unsafe fn woken(request: &Request<'_>, n: c_int, limit: impl FnOnce() -> Limit) -> c_int {
    let Some(set) = table::set(request.epfd).filter(|_| n > 0) else { return n };
    let _inside = Inside::enter();
    // SAFETY: the caller's promise.
    let kept = unsafe { set.members.lock().translate(request.events, 0, n as usize) };
    // Nothing for the program: it waits on, and its limit begins once more.
    if kept > 0 { kept as c_int } else { wait_in(&set, request, limit()) }
}

fn wait_in(set: &Set, request: &Request<'_>, limit: Limit) -> c_int {
    let Some(mut ready) = set.ready(request.epfd) else { return request.kernel(0, limit) };
    loop {
        if set.inherited.load(Relaxed) {
            set.take_over(request.epfd);
            ready = set.ready(request.epfd).unwrap_or(ready);
        }
        let (mut found, rings) = set.collect(request, 0, ready);
        // A wait that will sleep asks the kernel then.
        let look = (found == 0 && limit == Limit::Now) || set.must_look();
        if rings > 0 && look && found < request.max as usize {
            found = match set.look(request, found, Limit::Now, ready) {
                Ok(found) => found,
                Err(code) => return if found > 0 { found as c_int } else { errno::fail(code) as c_int },
            };
        }
        if found > 0 {
            return set.leave(found, ready);
        }
        if rings > 0 && limit != Limit::Now && ready.spin(own::context(), SPIN_MAX) {
            continue;
        }
        if rings > 0 && limit.is_over() {
            return set.leave(0, ready);
        }
        let looked = if rings > 0 && limit != Limit::Now { set.look_before_sleep(request, ready) } else { Ok(0) };
        match looked {
            Ok(0) => {}
            Ok(found) => return set.leave(found, ready),
            Err(code) => {
                set.leave(0, ready);
                return errno::fail(code) as c_int;
            }
        }
        set.sleepers.fetch_add(1, SeqCst);
        let slept = if ready.arm() { Ok(0) } else { set.look(request, 0, set.nap(limit), ready) };
        ready.disarm();
        set.sleepers.fetch_sub(1, SeqCst);
        if slept == Ok(0) && own::context().has_between() {
            own::context().look_after_node();
        }
        match slept {
            Ok(0) if !limit.is_over() => {}
            Ok(0) => {
                let (found, _) = set.collect(request, 0, ready);
                return set.leave(found, ready);
            }
            Ok(found) => return set.leave(found, ready),
            Err(code) => {
                set.leave(0, ready);
                return errno::fail(code) as c_int;
            }
        }
    }
}

impl Set {
    /// Events of connections that may be ready, behind those found already. Says how many there are then, and how many connections use rings.
    fn collect(&self, request: &Request<'_>, found: usize, ready: &ReadySet) -> (usize, usize) {
        let mut members = self.members.lock();
        ready.take(&mut |token| members.enqueue(token));
        // SAFETY: the program promised room for `max` events.
        let found = unsafe { members.collect(request.epfd, request.events, found, request.max as usize) };
        (found, members.rings())
    }

    /// Asks the kernel, and then the connections about which it said something.
    fn look(&self, request: &Request<'_>, found: usize, limit: Limit, ready: &ReadySet) -> Result<usize, c_int> {
        let n = request.kernel(found, limit);
        if n < 0 {
            return Err(errno::current());
        }
        self.looked_ns.store(now_ns(), Relaxed);
        let mut members = self.members.lock();
        // SAFETY: the kernel wrote `n` events behind those found before, within the room.
        let mut found = unsafe { members.translate(request.events, found, n as usize) };
        ready.take(&mut |token| members.enqueue(token));
        if found < request.max as usize {
            // SAFETY: as in `collect`.
            found = unsafe { members.collect(request.epfd, request.events, found, request.max as usize) };
        }
        Ok(found)
    }

    /// Asks the kernel for a while, if connections go to other nodes: what comes from there would have to wake this thread.
    fn look_before_sleep(&self, request: &Request<'_>, ready: &ReadySet) -> Result<usize, c_int> {
        let mut answer = Ok(0);
        if own::context().has_between() {
            ready.look_in_kernel(|| {
                answer = self.look(request, 0, Limit::Now, ready);
                answer != Ok(0)
            });
        }
        answer
    }

    fn must_look(&self) -> bool {
        now_ns().saturating_sub(self.looked_ns.load(Relaxed)) > KERNEL_LOOK_NS
    }

    /// The calling thread goes back to the program; others that sleep here must hear the next bell.
    fn leave(&self, found: usize, ready: &ReadySet) -> c_int {
        if found > 0 && own::context().has_between() {
            ready.returned();
        }
        // Whoever waits for the set as for a descriptor hears of rings only by its bell.
        if self.nested.load(Relaxed) && (self.members.lock().is_queued() || ready.arm()) {
            self.wake();
        }
        if self.sleepers.load(SeqCst) > 0 && ready.arm() {
            self.wake();
        }
        found as c_int
    }
}
