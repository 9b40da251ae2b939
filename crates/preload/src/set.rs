//! Epoll sets: which connections are in them, and how the program waits.
//!
//! Invariant: a connection that is not upgraded is registered as the program asked, with its data
//! replaced by a token of ours; one that is upgraded is registered edge-triggered for what the
//! kernel alone knows (end of stream, and directions that are still there), and level, edge,
//! one-shot and output are judged here. Everything else in the set is the kernel's alone. So a
//! program that stops listening costs no system call, and a FIN rings once.
//!
//! Waiting: connections that may be ready are in a queue, fed by the bits that peers set; nobody
//! scans. Before sleeping the set is armed, and its bell is in the kernel's set. Descriptors that
//! are not ours are polled at least every [`KERNEL_POLL_INTERVAL_NS`].

use crate::arena::{Index, Resource};
use crate::clock::{Limit, now_ns};
use crate::errno::{self, Kept};
use crate::limits::{DEAF_SLICE_NS, KERNEL_POLL_INTERVAL_NS};
use crate::members::{Going, Leaves, Members};
use crate::own::{self, Inside};
use crate::probe;
use crate::real;
use crate::reason::Reason;
use crate::table::{self, CONNECTIONS, Entry, SETS};
use crate::tcp::Held;
use libc::{c_int, epoll_event, sigset_t};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use vmmc_sockets::{Connection, ReadySet};
use vmmc_stream::SectionLock;

/// An epoll set.
pub(crate) struct Set {
    /// The members that are connections.
    pub(crate) members: SectionLock<Members>,
    /// What signal handlers left to the section that they interrupted: a list of boxes, the last
    /// one first.
    left: AtomicPtr<Left>,
    /// Its own index.
    own: AtomicU32,
    /// A descriptor of the set: the last one that was used.
    epfd: AtomicI32,
    /// The bell and the bits; null until the first connection comes. A box.
    ready: AtomicPtr<ReadySet>,
    /// Threads that sleep in it.
    sleepers: AtomicU32,
    /// Connections with a direction in the ring, as counted last.
    rings: AtomicU32,
    /// Whether the kernel's events come first the next time that both are asked: neither is always
    /// first, for some programs take the order for that of arrival.
    kernel_first: AtomicBool,
    /// When the kernel was last asked.
    polled_ns: AtomicU64,
    /// Its connections stay with the kernel.
    nested: AtomicBool,
    /// It is in another set, or something waits for it as for a descriptor, and must learn of what
    /// the program asked for and nothing else. Then it is nested, too.
    within: AtomicBool,
    /// This process got it by fork; the bits are its parent's.
    inherited: AtomicBool,
}

impl Resource for Set {
    fn fresh() -> Set {
        Set {
            members: SectionLock::new(Members::new()),
            left: AtomicPtr::new(null_mut()),
            own: AtomicU32::new(0),
            epfd: AtomicI32::new(-1),
            ready: AtomicPtr::new(null_mut()),
            sleepers: AtomicU32::new(0),
            rings: AtomicU32::new(0),
            kernel_first: AtomicBool::new(false),
            polled_ns: AtomicU64::new(0),
            nested: AtomicBool::new(false),
            within: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
        }
    }

    fn end(&self) {
        let _inside = Inside::enter();
        let ready = self.ready.swap(null_mut(), AcqRel);
        if !ready.is_null() {
            // SAFETY: `ready` made the box; nobody refers to this object any more.
            let ready = unsafe { Box::from_raw(ready) };
            self.with(|members| members.remove_all(&ready));
        }
        // A thread in a section of it holds it, so it has not ended.
        self.with(|members| *members = Members::new());
        self.epfd.store(-1, Relaxed);
        self.sleepers.store(0, Relaxed);
        self.rings.store(0, Relaxed);
        self.polled_ns.store(0, Relaxed);
        self.nested.store(false, Relaxed);
        self.within.store(false, Relaxed);
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

/// What a signal handler could not do, for a thread was in a section of the set.
enum Left {
    /// epoll_ctl.
    Control { op: c_int, epfd: c_int, fd: c_int, event: epoll_event, tcp: Held, next: *mut Left },
    /// A descriptor of this connection goes, and the kernel knows.
    Gone { fd: c_int, tcp: Held, next: *mut Left },
    /// The set is nested from now on.
    Nested { next: *mut Left },
}

impl Left {
    fn next(&mut self) -> &mut *mut Left {
        match self {
            Left::Control { next, .. } | Left::Gone { next, .. } | Left::Nested { next } => next,
        }
    }
}

impl Set {
    /// Runs a section on the members, and then what signal handlers left meanwhile. None: this very
    /// thread is in such a section, below a signal handler, or in one of another set, and waits in
    /// vain: it has to leave what it wants to the thread that is in the section.
    pub(crate) fn with<R>(&self, section: impl FnOnce(&mut Members) -> R) -> Option<R> {
        let result = section(&mut *self.members.lock()?);
        if !self.left.load(Relaxed).is_null() {
            self.do_what_is_left();
        }
        Some(result)
    }

    /// Leaves something to the section that this signal handler interrupted, or to the one of
    /// another thread, whose own handler may be waiting for this thread.
    #[cold]
    fn leave_to_section(&self, left: Left) {
        let left = Box::into_raw(Box::new(left));
        let mut first = self.left.load(Relaxed);
        loop {
            // SAFETY: ours until the exchange.
            *unsafe { &mut *left }.next() = first;
            match self.left.compare_exchange_weak(first, left, SeqCst, Relaxed) {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
        // Another thread's section may have ended just before.
        if self.members.try_lock().is_some() {
            self.do_what_is_left();
        }
    }

    #[cold]
    fn do_what_is_left(&self) {
        let kept = Kept::now();
        let (mut last_first, mut in_order) = (self.left.swap(null_mut(), Acquire), null_mut::<Left>());
        while !last_first.is_null() {
            // SAFETY: a box of `leave_to_section`, which the exchange made ours.
            let next = unsafe { &mut *last_first }.next();
            let rest = std::mem::replace(next, in_order);
            in_order = std::mem::replace(&mut last_first, rest);
        }
        while !in_order.is_null() {
            // SAFETY: as above.
            let mut left = unsafe { Box::from_raw(in_order) };
            in_order = *left.next();
            match *left {
                Left::Control { op, epfd, fd, event, ref tcp, .. } => {
                    self.control(op, epfd, fd, event, tcp);
                }
                Left::Gone { fd, ref tcp, .. } => self.going(fd, tcp, None, Leaves::Closes, None),
                Left::Nested { .. } => self.send_back(true),
            }
        }
        drop(kept);
    }

    /// Which set it is.
    fn index(&self) -> Index {
        Index(self.own.load(Relaxed))
    }

    /// A descriptor of it.
    fn descriptor(&self) -> Option<c_int> {
        let own = Entry::Set(self.index());
        let last = self.epfd.load(Relaxed);
        if table::entry(last) == own {
            return Some(last);
        }
        table::known(0, c_int::MAX).find(|(_, entry)| *entry == own).map(|(fd, _)| fd)
    }
}

impl Set {
    /// The bell and the bits, made and attached to the kernel's set at first use.
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
        // One thread makes it; and a thread that the bell wakes in the kernel at once needs this
        // lock to poll.
        let made = self.with(|_| {
            if self.has_bell() {
                return true;
            }
            let bell = attach_bell(epfd).map(Box::into_raw);
            bell.inspect(|bell| self.ready.store(*bell, Release));
            bell.is_some()
        });
        if made == Some(true) { self.ready(epfd) } else { None }
    }

    /// A wait in the child of a fork: its peers ring the parent, whose bell it is. The connections
    /// go back to the kernel, which wakes both; for what comes by the ring until then the child has
    /// a bell of its own.
    #[cold]
    fn take_over(&self, epfd: c_int) {
        // Learns the id of this process on its node, without which nobody can ring it.
        own::context().poll();
        self.with(|members| {
            if self.inherited.load(Relaxed) {
                if let Some(ready) = attach_bell(epfd).filter(|ready| !ready.is_silent() && members.watch_all(ready)) {
                    // The old one is the parent's, and another thread may read it: it stays.
                    self.ready.store(Box::into_raw(ready), Release);
                    self.inherited.store(false, Relaxed);
                }
                // What came before nobody rang for.
                members.enqueue_all();
            }
        });
        if !self.nested.swap(true, Relaxed) {
            self.send_back(false);
        }
    }

    /// How long to sleep at most.
    fn sleep_limit(&self, limit: Limit, ready: &ReadySet) -> Limit {
        let deaf = self.inherited.load(Relaxed)
            && (own::context().has_between() || self.with(|members| members.reads_ring()) == Some(true));
        if deaf {
            return limit.at_most(DEAF_SLICE_NS);
        }
        match self.with(|members| members.unnotified_poll_ns()).flatten() {
            Some(ns) => limit.for_sleep_with(ready).at_most(ns),
            None => limit.for_sleep_with(ready),
        }
    }

    /// It cannot be waited for here only: its connections go back to the kernel, now and later.
    pub(crate) fn nest(&self) {
        if !self.within.swap(true, Relaxed) {
            self.nested.store(true, Relaxed);
            self.send_back(true);
        }
    }

    /// Its connections go back to the kernel, and so do those that come.
    fn send_back(&self, within: bool) {
        // Those that come from here on find that the set is nested.
        let connections: Option<Vec<_>> = self.with(|members| members.connections().collect());
        for (fd, connection) in connections.iter().flatten().copied() {
            if let Some(tcp) = CONNECTIONS.pin(connection) {
                tcp.leave(fd, Reason::Nested);
            }
        }
        let done = connections.and_then(|_| {
            self.with(|members| {
                if within {
                    members.nest();
                } else {
                    members.enqueue_all();
                }
            })
        });
        if done.is_none() {
            return self.leave_to_section(Left::Nested { next: null_mut() });
        }
        if within {
            self.notify_outer();
        } else {
            self.wake();
        }
    }

    /// Notifies what waits for the set as for a descriptor, and learns of rings by its bell only:
    /// it rings now if there is something in one, and otherwise the peer that puts something there
    /// rings it. Where no peer would, it rings until nothing more comes by a ring.
    fn notify_outer(&self) {
        let _kept = Kept::now();
        let ready = self.ready.load(Acquire);
        // SAFETY: see `ready`.
        let Some(ready) = (unsafe { ready.as_ref() }) else { return };
        let Some(epfd) = self.descriptor() else { return };
        let more = self.with(|members| {
            ready.take(&mut |token| members.enqueue(token));
            members.poll_unnotified();
            let more = members.has_more_than_kernel(epfd);
            more || members.may_come_unnotified()
        });
        if more != Some(false) || self.sleepers.load(SeqCst) > 0 || ready.arm() {
            self.wake();
        }
    }

    /// Whether the kernel's set has events that the program must not see: once a connection was in
    /// it, for the bell stays and may ring late.
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
fn attach_bell(epfd: c_int) -> Option<Box<ReadySet>> {
    let context = own::context();
    let ready = Box::new(context.ready_set().or_else(|_| context.silent_set()).ok()?);
    // What it rang for was another loop's: a set within another must not appear ready for it.
    let mut count = 0u64;
    let kept = Kept::now();
    // SAFETY: eight bytes of ours; the bell never blocks.
    unsafe { real::read(ready.bell().as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    drop(kept);
    let mut event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: Members::bell_data() };
    // SAFETY: the event is ours; the bell lives as long as the box.
    let hung = unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, ready.bell().as_raw_fd(), &raw mut event) };
    // It may be there from a try before.
    (hung == 0 || errno::current() == libc::EEXIST).then_some(ready)
}

/// Held while a set is made known, and for the length of a fork: the child would find the lock of a
/// set taken that the fork had not listed.
pub(crate) static MAKING: SectionLock<()> = SectionLock::new(());

/// epoll_create gave a set.
pub(crate) fn created(fd: c_int) -> c_int {
    if fd >= 0 && own::active() {
        let _kept = Kept::now();
        let _making = MAKING.lock();
        if let Some(index) = SETS.insert() {
            if let Some(set) = SETS.pin(index) {
                set.own.store(index.0, Relaxed);
                set.epfd.store(fd, Relaxed);
            }
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
        if let Some(tcp) = table::connection(fd).filter(|_| op != libc::EPOLL_CTL_DEL) {
            // A set that we did not see being made: it reports only what the kernel has.
            let kept = Kept::now();
            tcp.leave(fd, Reason::OtherSet);
            drop(kept);
        }
        return kernel();
    };
    if let Some(inner) = table::set(fd) {
        inner.nest();
    }
    let Some(tcp) = table::connection(fd) else { return kernel() };
    let _inside = Inside::enter();
    // SAFETY: the caller's promise: a valid event, or null.
    let event = if probe::readable(event) { unsafe { event.as_ref() }.copied() } else { None };
    let none = epoll_event { events: 0, u64: 0 };
    let result = match (op, event) {
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) => set.control(op, epfd, fd, event, &tcp),
        (libc::EPOLL_CTL_DEL, _) => set.control(op, epfd, fd, none, &tcp),
        _ => kernel(),
    };
    if op != libc::EPOLL_CTL_DEL && set.sleepers.load(Relaxed) > 0 {
        set.wake();
    }
    result
}

impl Set {
    /// Another thread sleeps in the set while something changed: it polls again.
    fn wake(&self) {
        let ready = self.ready.load(Acquire);
        if !ready.is_null() {
            let one = 1u64;
            // SAFETY: see `ready`; eight bytes of ours.
            unsafe { real::write((*ready).bell().as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
        }
    }
}

impl Set {
    /// epoll_ctl for a connection.
    fn control(&self, op: c_int, epfd: c_int, fd: c_int, event: epoll_event, tcp: &Held) -> c_int {
        if op == libc::EPOLL_CTL_ADD && self.nested.load(Relaxed) {
            tcp.leave(fd, Reason::Nested);
        }
        self.epfd.store(epfd, Relaxed);
        let (own, ready) = (self.index(), self.ready(epfd));
        if ready.is_none() && !self.members.is_mine() && op == libc::EPOLL_CTL_ADD {
            tcp.leave(fd, Reason::OtherSet);
            let mut event = event;
            // SAFETY: the event is ours.
            return unsafe { real::epoll_ctl(epfd, op, fd, &raw mut event) };
        }
        if self.within.load(Relaxed) {
            // What is polled below rings for nobody outside; `notify_outer` does, if there is
            // something.
            ready.inspect(|ready| ready.disarm());
        }
        let done = self.with(|members| match (op, ready) {
            (libc::EPOLL_CTL_ADD, Some(ready)) => members.add(epfd, own, fd, tcp, event, ready),
            (libc::EPOLL_CTL_MOD, _) => members.modify(epfd, own, fd, tcp, event, ready),
            _ => members.remove(epfd, own, fd, tcp, ready),
        });
        let result = done.unwrap_or_else(|| {
            // Whether it fails nobody can tell yet; in order it comes after what was interrupted.
            if let Some(tcp) = CONNECTIONS.pin(tcp.index()) {
                self.leave_to_section(Left::Control { op, epfd, fd, event, tcp, next: null_mut() });
            }
            0
        });
        if self.within.load(Relaxed) {
            self.notify_outer();
        }
        result
    }

    /// A descriptor of a connection that is in the set is about to go. `epfd`: a descriptor of the
    /// set; none where the kernel knows already.
    fn going(&self, fd: c_int, tcp: &Held, epfd: Option<c_int>, leaves: Leaves, heir: Option<c_int>) {
        let ready = self.ready.load(Acquire);
        let inherited = self.inherited.load(Relaxed);
        // SAFETY: see `Set::ready`.
        let ready = unsafe { ready.as_ref() }.filter(|_| !inherited);
        let going = Going { fd, epfd, set: self.index(), tcp, leaves, heir, inherited };
        let done = self.with(|members| members.going(&going, ready));
        if done.is_some() || going.heir.is_some() {
            return;
        }
        // While the number is still this connection's.
        if let Some(epfd) = epfd.filter(|_| !inherited && !tcp.is_shared() && leaves == Leaves::Closes) {
            // SAFETY: the kernel ignores the event.
            unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, null_mut()) };
        }
        if let Some(tcp) = CONNECTIONS.keep(tcp) {
            self.leave_to_section(Left::Gone { fd, tcp, next: null_mut() });
        }
    }
}

/// Whether a set has the connection under this descriptor.
pub(crate) fn holds(fd: c_int, tcp: &Held) -> bool {
    tcp.sets().any(|index| {
        let set = SETS.pin(index);
        set.is_some_and(|set| set.with(|members| members.is_under(index, fd, tcp)) == Some(true))
    })
}

/// A descriptor of a connection is about to go.
pub(crate) fn going(fd: c_int, tcp: &Held, leaves: Leaves, heir: Option<c_int>) {
    let _inside = Inside::enter();
    for index in tcp.sets() {
        if let Some(set) = SETS.pin(index) {
            set.going(fd, tcp, set.descriptor(), leaves, heir);
        }
    }
}

/// The connection may be ready for a reason that its bell did not ring for.
pub(crate) fn recheck(tcp: &Held) {
    for index in tcp.sets() {
        let Some(set) = SETS.pin(index) else { continue };
        let kernels = || tcp.connection().is_some_and(Connection::is_read_from_kernel);
        if set.within.load(Relaxed) && kernels() {
            // The kernel reports all there is, and a waiter for the set would be woken for nothing.
            continue;
        }
        let ready = set.ready.load(Acquire);
        // SAFETY: see `Set::ready`.
        match (unsafe { ready.as_ref() }.filter(|_| !set.inherited.load(Relaxed)), tcp.token(index)) {
            (Some(ready), Some(token)) => ready.mark(token),
            _ => {
                set.with(|members| members.token_of(index, tcp).inspect(|&token| members.enqueue(token)));
            }
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
pub(crate) fn wait(request: &Request<'_>, limit: impl FnOnce() -> Result<Limit, c_int>) -> Option<c_int> {
    let set = table::set(request.epfd).filter(|set| set.has_bell())?;
    let mask = request.mask.map_or(null(), std::ptr::from_ref);
    // What the kernel refuses.
    if request.max <= 0 || request.events.is_null() || !probe::readable_or_null(mask) {
        return None;
    }
    if set.members.is_mine() {
        // Below a signal handler: the wait that it interrupted must end first.
        return Some(errno::fail(libc::EINTR) as c_int);
    }
    let _inside = Inside::enter();
    let limit = match limit() {
        Ok(limit) => limit,
        Err(code) => return Some(errno::fail(code) as c_int),
    };
    // The first place stands for all.
    if !probe::readable(request.events) {
        let mut own = epoll_event { events: 0, u64: 0 };
        let found = wait_in(&set, &Request { events: &raw mut own, max: 1, ..*request }, limit);
        // As the kernel does when it has something to write.
        return Some(if found > 0 { errno::fail(libc::EFAULT) as c_int } else { found });
    }
    Some(wait_in(&set, request, limit))
}

/// The kernel's own wait, begun on a set without a bell, gave `n`. If a connection came into the
/// set meanwhile, what it says is not for the program as it stands.
///
/// # Safety
/// So many events are there.
pub(crate) unsafe fn woken(request: &Request<'_>, n: c_int, limit: impl FnOnce() -> Result<Limit, c_int>) -> c_int {
    let Some(set) = table::set(request.epfd).filter(|_| n > 0) else { return n };
    let _inside = Inside::enter();
    // SAFETY: the caller's promise.
    let Some(kept) = set.with(|members| unsafe { members.translate(request.events, 0, n as usize) }) else { return n };
    // Nothing for the program: it waits on, and its limit begins once more.
    if kept > 0 {
        return kept as c_int;
    }
    limit().map_or_else(|code| errno::fail(code) as c_int, |limit| wait_in(&set, request, limit))
}

fn wait_in(set: &Set, request: &Request<'_>, limit: Limit) -> c_int {
    let Some(mut ready) = set.ready(request.epfd) else { return request.kernel(0, limit) };
    loop {
        if set.inherited.load(Relaxed) {
            set.take_over(request.epfd);
            ready = set.ready(request.epfd).unwrap_or(ready);
        }
        // What waits for the set as for a descriptor learns of what the kernel has in it: a wait
        // takes that with it, whatever else it finds.
        let within = set.within.load(Relaxed);
        let mut due = within || set.kernel_poll_is_due();
        let mut first = 0;
        if due && set.rings.load(Relaxed) > 0 && (within || set.kernel_first.fetch_xor(true, Relaxed)) {
            if set.with(Members::begin).is_none() {
                return errno::fail(libc::EINTR) as c_int;
            }
            first = match set.poll_once(request, 0, Limit::Now, ready) {
                Ok(first) => first,
                Err(code) => return errno::fail(code) as c_int,
            };
            due = false;
        }
        let Some((mut found, rings)) = set.collect(request, first, ready) else {
            // Below a signal handler, and another thread below one waits for this one.
            return if first > 0 { first as c_int } else { errno::fail(libc::EINTR) as c_int };
        };
        // A wait that will sleep asks the kernel then.
        let poll = (found == 0 && limit == Limit::Now) || due;
        if rings > 0 && poll && found < request.max as usize {
            found = match set.poll_once(request, found, Limit::Now, ready) {
                Ok(found) => found,
                Err(code) => return if found > 0 { found as c_int } else { errno::fail(code) as c_int },
            };
        }
        if found > 0 {
            return set.leave(found, ready);
        }
        if rings > 0 && limit != Limit::Now && ready.poll(own::context(), limit.deadline()) {
            continue;
        }
        if rings > 0 && limit.is_over() {
            // On a busy machine it may be over before the kernel was asked, and asked it is.
            let found = if limit == Limit::Now { Ok(0) } else { set.poll_once(request, 0, Limit::Now, ready) };
            let left = set.leave(found.unwrap_or(0), ready);
            return found.map_or_else(|code| errno::fail(code) as c_int, |_| left);
        }
        let polled = if rings > 0 && limit != Limit::Now { set.poll_before_sleep(request, ready) } else { Ok(0) };
        match polled {
            Ok(0) => {}
            Ok(found) => return set.leave(found, ready),
            Err(code) => {
                set.leave(0, ready);
                return errno::fail(code) as c_int;
            }
        }
        set.sleepers.fetch_add(1, SeqCst);
        // Another thread may have found something before it could know that somebody sleeps.
        let slept = if ready.arm() || set.with(|members| members.is_queued()) != Some(false) {
            Ok(0)
        } else {
            set.poll_once(request, 0, set.sleep_limit(limit, ready), ready)
        };
        ready.disarm();
        set.sleepers.fetch_sub(1, SeqCst);
        if slept == Ok(0) && own::context().has_between() {
            own::context().check_node();
        }
        if slept == Ok(0) {
            set.with(Members::recheck_full);
        }
        match slept {
            Ok(0) if !limit.is_over() => {}
            Ok(0) => {
                let (found, _) = set.collect(request, 0, ready).unwrap_or_default();
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
    /// Events of connections that may be ready, behind those found already. Says how many there are
    /// then, and how many connections use rings.
    fn collect(&self, request: &Request<'_>, found: usize, ready: &ReadySet) -> Option<(usize, usize)> {
        let collected = self.with(|members| {
            members.poll_unnotified();
            ready.take(&mut |token| members.enqueue(token));
            if found == request.max as usize {
                return (found, members.rings());
            }
            // SAFETY: the program promised room for `max` events.
            let found = unsafe { members.collect(request.epfd, request.events, found, request.max as usize) };
            (found, members.rings())
        });
        collected.inspect(|(_, rings)| self.rings.store(*rings as u32, Relaxed))
    }

    /// Polls the kernel's set once, and then the connections that it reported.
    fn poll_once(&self, request: &Request<'_>, found: usize, limit: Limit, ready: &ReadySet) -> Result<usize, c_int> {
        let n = request.kernel(found, limit);
        if n < 0 {
            return Err(errno::current());
        }
        self.polled_ns.store(now_ns(), Relaxed);
        let collected = self.with(|members| {
            // SAFETY: the kernel wrote `n` events behind those found before, within the room.
            let mut found = unsafe { members.translate(request.events, found, n as usize) };
            ready.take(&mut |token| members.enqueue(token));
            if found < request.max as usize {
                // SAFETY: as in `collect`.
                found = unsafe { members.collect(request.epfd, request.events, found, request.max as usize) };
            }
            found
        });
        Ok(collected.unwrap_or(found))
    }

    /// Polls the kernel for a while, if connections go to other nodes: what comes from there would
    /// have to wake this thread.
    fn poll_before_sleep(&self, request: &Request<'_>, ready: &ReadySet) -> Result<usize, c_int> {
        let mut answer = Ok(0);
        if own::context().has_between() {
            ready.poll_kernel(|| {
                answer = self.poll_once(request, 0, Limit::Now, ready);
                answer != Ok(0)
            });
        }
        answer
    }

    fn kernel_poll_is_due(&self) -> bool {
        now_ns().saturating_sub(self.polled_ns.load(Relaxed)) > KERNEL_POLL_INTERVAL_NS
    }

    /// The calling thread goes back to the program; others that sleep here must be woken by the
    /// next bell.
    fn leave(&self, found: usize, ready: &ReadySet) -> c_int {
        if found > 0 && own::context().has_between() {
            ready.returned();
        }
        if self.within.load(Relaxed) {
            self.notify_outer();
        }
        if self.sleepers.load(SeqCst) > 0 && ready.arm() {
            self.wake();
        }
        found as c_int
    }
}
