//! The connections of one epoll set.
//!
//! Invariant: a member in use is registered in the kernel's set under its token and generation.
//! `queued` says that it is in the queue, once. A member that the program took out while its bytes
//! went by the ring stays registered, asleep, until the connection closes or goes back to the
//! kernel: event loops that take out and put in at every request would pay two system calls for it.
//!
//! The kernel's registration belongs to a descriptor number and an open file, and outlives the
//! number if the file stays open, in a fork, in a message, below a call of another thread. So a
//! token ends with its registration: when its descriptor goes, that is taken out of the kernel's
//! set, or, if the file may stay open elsewhere, made the program's own, with the program's data,
//! as TCP has it. What the kernel had said before of an earlier generation is nobody's event.

use crate::arena::Index;
use crate::limits::DEAF_SLICE_NS;
use crate::readiness::{self, ALWAYS, INPUT, OUTPUT};
use crate::real;
use crate::reason::Reason;
use crate::table::CONNECTIONS;
use crate::tcp::{Held, borrowed};
use libc::{c_int, epoll_event};
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::OnceLock;
use vmmc_sockets::limits::{FULL_TIME_NS, TOKENS_MAX};
use vmmc_sockets::{Direction, Medium, ReadySet, State};

const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Bits that say how, not what.
const MANNER: u32 = EDGE | ONE_SHOT | EXCLUSIVE | libc::EPOLLWAKEUP as u32;
/// Bits of our data that hold the token, and its generation above them; the others are the mark.
const KEY_BITS: u32 = 24;
const TOKEN_BITS: u32 = 16;
/// The bell's place: of the last token, which no connection gets.
const BELL: u64 = (1 << KEY_BITS) - 1;
const _: () = assert!(TOKENS_MAX as u64 == 1 << TOKEN_BITS);

/// What marks data as ours among the program's: random, so that a program's own value is mistaken
/// for it once in 2^40.
fn mark() -> u64 {
    static MARK: OnceLock<u64> = OnceLock::new();
    *MARK.get_or_init(|| {
        let mut bytes = [0u8; 8];
        // SAFETY: eight bytes of ours. Without randomness the mark is 0xa5.., still unlike a
        // pointer or a small number.
        if unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } != 8 {
            bytes = [0xa5; 8];
        }
        u64::from_ne_bytes(bytes) >> KEY_BITS << KEY_BITS
    })
}

/// Chooses the mark, before a signal handler could interrupt that.
pub(crate) fn load() {
    mark();
}

/// How a descriptor ceases to be that of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// It is closed.
    Closes,
    /// It stays open, as something that is nothing to us.
    Stays,
}

/// A descriptor that is about to cease to be that of a connection.
pub(crate) struct Going<'a> {
    pub(crate) fd: c_int,
    /// A descriptor of the set.
    pub(crate) epfd: Option<c_int>,
    pub(crate) set: Index,
    pub(crate) tcp: &'a Held,
    pub(crate) leaves: Leaves,
    /// Another descriptor of the connection in this process.
    pub(crate) heir: Option<c_int>,
    /// The kernel's set is a parent's, too: what is registered there is not ours to change.
    pub(crate) inherited: bool,
}

struct Member {
    used: bool,
    /// Changes with each connection that gets the token.
    generation: u8,
    /// Registered under another descriptor than the program's, which it has closed.
    moved: bool,
    /// Registered in the kernel, but not in the set as the program sees it.
    asleep: bool,
    /// May be reported: false after a one-shot event until the program renews it.
    armed: bool,
    queued: bool,
    /// It is in the queue for what the kernel's set said only, which is this.
    only_kernel: bool,
    kernel_said: u32,
    /// What held when it was judged last, since the program asked for it.
    held: u32,
    /// It is in the list of those whose rings are full.
    full: bool,
    /// The connection is upgraded: readiness is judged here, and the registration is ours.
    in_ring: bool,
    /// The wait in whose answer it was reported last: once in each.
    reported: u64,
    fd: c_int,
    connection: Index,
    events: u32,
    data: u64,
    /// What the kernel was last asked to watch.
    registered: u32,
}

/// The connections of a set.
pub(crate) struct Members {
    /// Which set it is, once it had a member.
    set: Option<Index>,
    all: Vec<Member>,
    /// The one that was free for longest comes first.
    free: VecDeque<u32>,
    queue: VecDeque<u32>,
    rings: usize,
    /// Members that no bell rings for, until they are with the kernel, and what had happened when
    /// they were polled.
    unnotified: Vec<(u32, u64)>,
    /// Members whose rings are full, to which the kernel may be open before there is room.
    full: Vec<u32>,
    /// The set is in another one: the kernel's set must say what the program asked for, and nothing
    /// else.
    nested: bool,
    /// Number of the wait whose answer is being made.
    wait: u64,
}

impl Members {
    /// None.
    pub(crate) const fn new() -> Members {
        Members {
            set: None,
            all: Vec::new(),
            free: VecDeque::new(),
            queue: VecDeque::new(),
            rings: 0,
            unnotified: Vec::new(),
            full: Vec::new(),
            nested: false,
            wait: 0,
        }
    }

    /// How long to sleep at most for members that nobody notifies of, nanoseconds.
    pub(crate) fn unnotified_poll_ns(&self) -> Option<u64> {
        match (self.unnotified.is_empty(), self.full.is_empty()) {
            (false, _) => Some(DEAF_SLICE_NS),
            (true, false) => Some(FULL_TIME_NS),
            (true, true) => None,
        }
    }

    /// Polls members that no bell rings for: they may be ready.
    #[inline]
    pub(crate) fn poll_unnotified(&mut self) {
        if !self.unnotified.is_empty() {
            self.poll_some_unnotified();
        }
    }

    /// Whether something may still come by a ring that no bell rings for.
    pub(crate) fn may_come_unnotified(&self) -> bool {
        self.unnotified.iter().any(|(token, _)| {
            let tcp = CONNECTIONS.pin(self.all[*token as usize].connection);
            tcp.is_some_and(|tcp| tcp.connection().is_some_and(|connection| !connection.is_reported_by_kernel()))
        })
    }

    #[cold]
    fn poll_some_unnotified(&mut self) {
        for (token, seen) in std::mem::take(&mut self.unnotified) {
            let Some(tcp) = CONNECTIONS.pin(self.all[token as usize].connection) else { continue };
            let Some(connection) = tcp.connection() else { continue };
            // First: what came before is found by the poll that follows.
            let over = connection.is_with_kernel();
            let now = connection.ring_changes();
            if now != seen {
                self.enqueue(token);
            }
            if !over {
                self.unnotified.push((token, now));
            }
        }
    }

    /// A sleep has lasted so long that full rings may be left.
    pub(crate) fn recheck_full(&mut self) {
        while let Some(token) = self.full.pop() {
            self.all[token as usize].full = false;
            self.enqueue(token);
        }
    }

    /// The data under which the bell is registered.
    pub(crate) fn bell_data() -> u64 {
        mark() | BELL
    }

    /// How many have a direction in the ring.
    pub(crate) fn rings(&self) -> usize {
        self.rings
    }

    /// Descriptors and connections.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (c_int, Index)> {
        self.all.iter().filter(|member| member.used).map(|member| (member.fd, member.connection))
    }

    /// Has the peers of all of them ring this bell too. False: they cannot be asked now.
    pub(crate) fn watch_all(&self, ready: &ReadySet) -> bool {
        let watched = |token: u32, member: &Member| {
            let tcp = CONNECTIONS.pin(member.connection);
            let add = |connection| ready.add(connection, token, readiness::interest(member.events)).is_ok();
            tcp.as_ref().and_then(|tcp| tcp.connection()).is_none_or(add)
        };
        let all = (0..).zip(&self.all).filter(|(_, member)| member.used).all(|(token, member)| watched(token, member));
        if !all {
            self.connections().filter_map(|(_, index)| CONNECTIONS.pin(index)).for_each(|tcp| {
                tcp.connection().inspect(|connection| ready.remove(connection));
            });
        }
        all
    }

    /// Whether bytes for one of them may still come by the ring.
    pub(crate) fn reads_ring(&self) -> bool {
        self.connections()
            .filter_map(|(_, index)| CONNECTIONS.pin(index))
            .any(|tcp| tcp.connection().is_some_and(|connection| connection.medium(Direction::Receive) == Medium::Ring))
    }

    /// It may be ready.
    pub(crate) fn enqueue(&mut self, token: u32) {
        if let Some(member) = self.all.get_mut(token as usize) {
            member.only_kernel = false;
            if member.used && !member.queued {
                member.queued = true;
                self.queue.push_back(token);
            }
        }
    }

    /// It may be ready, for the kernel's set said so.
    fn enqueue_for_kernel(&mut self, token: u32, bits: u32) {
        let member = &mut self.all[token as usize];
        let only_kernel = member.only_kernel || !member.queued;
        self.enqueue(token);
        let member = &mut self.all[token as usize];
        member.only_kernel = only_kernel;
        member.kernel_said |= bits;
    }

    /// Any of them may be ready.
    pub(crate) fn enqueue_all(&mut self) {
        (0..self.all.len() as u32).for_each(|token| self.enqueue(token));
    }

    /// The set is in another one from now on.
    pub(crate) fn nest(&mut self) {
        self.nested = true;
        self.enqueue_all();
    }

    /// Whether one of those that may be ready has something that the kernel's set does not know:
    /// those stay in the queue.
    pub(crate) fn has_more_than_kernel(&mut self, epfd: c_int) -> bool {
        for _ in 0..self.queue.len() {
            let Some(token) = self.queue.pop_front() else { break };
            let bits = self.judge(epfd, token);
            let member = &mut self.all[token as usize];
            member.held = 0;
            if bits != 0 && !member.is_level_of_kernel() {
                self.enqueue(token);
            }
        }
        self.is_queued()
    }

    /// Whether any of them may be ready.
    pub(crate) fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// EPOLL_CTL_ADD.
    pub(crate) fn add(
        &mut self,
        epfd: c_int,
        set: Index,
        fd: c_int,
        tcp: &Held,
        event: epoll_event,
        ready: &ReadySet,
    ) -> c_int {
        self.set = Some(set);
        let mut event = event;
        if let Some(token) = self.token_of(set, tcp) {
            let member = &mut self.all[token as usize];
            if (member.asleep || member.moved) && member.fd == fd {
                (member.asleep, member.moved) = (false, false);
                return self.modify(epfd, set, fd, tcp, event, Some(ready));
            }
            if self.all[token as usize].fd != fd {
                // One connection under two descriptors in one set.
                tcp.leave(fd, Reason::ManySets);
            }
            // SAFETY: the event is ours.
            return unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        }
        let (Some(connection), Some(token)) = (tcp.connection(), self.token()) else {
            tcp.leave(fd, Reason::ManySets);
            // SAFETY: as above.
            return unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        };
        let generation = self.all[token as usize].generation.wrapping_add(1);
        let member = Member {
            used: true,
            generation,
            moved: false,
            asleep: false,
            armed: true,
            queued: self.all[token as usize].queued,
            only_kernel: false,
            kernel_said: 0,
            held: 0,
            full: self.all[token as usize].full,
            in_ring: false,
            reported: 0,
            fd,
            connection: tcp.index(),
            events: event.events,
            data: event.u64,
            registered: event.events,
        };
        if event.events & EXCLUSIVE != 0 {
            // Such a registration cannot be changed later.
            tcp.leave(fd, Reason::ManySets);
        }
        event.u64 = member.key(token);
        // SAFETY: as above.
        let result = unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if result < 0 {
            self.free.push_back(token);
            return result;
        }
        self.all[token as usize] = member;
        let watched =
            tcp.add_set(set, token) && ready.add(connection, token, readiness::interest(event.events)).is_ok();
        if !watched {
            tcp.leave(fd, Reason::ManySets);
            if !connection.is_plain() {
                self.unnotified.push((token, connection.ring_changes()));
            }
        }
        if !connection.is_plain() {
            self.enqueue(token);
        }
        result
    }

    /// EPOLL_CTL_MOD.
    pub(crate) fn modify(
        &mut self,
        epfd: c_int,
        set: Index,
        fd: c_int,
        tcp: &Held,
        event: epoll_event,
        ready: Option<&ReadySet>,
    ) -> c_int {
        let known = self.token_of(set, tcp).filter(|token| self.all[*token as usize].fd == fd);
        let Some(token) = known else {
            let mut event = event;
            // SAFETY: the event is ours.
            return unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &raw mut event) };
        };
        let member = &mut self.all[token as usize];
        if member.asleep {
            return crate::errno::fail(libc::ENOENT) as c_int;
        }
        if (member.events | event.events) & EXCLUSIVE != 0 {
            return crate::errno::fail(libc::EINVAL) as c_int;
        }
        if !member.in_ring {
            let mut event = epoll_event { events: event.events, u64: member.key(token) };
            // SAFETY: as above.
            let result = unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &raw mut event) };
            if result < 0 {
                return result;
            }
            member.registered = event.events;
        }
        let before = readiness::interest(member.events);
        member.held = 0;
        (member.events, member.data, member.armed) = (event.events, event.u64, true);
        let after = readiness::interest(event.events);
        if let (Some(connection), Some(ready)) = (tcp.connection().filter(|_| before != after), ready) {
            ready.change(connection, after);
        }
        self.enqueue(token);
        0
    }

    /// EPOLL_CTL_DEL.
    pub(crate) fn remove(&mut self, epfd: c_int, set: Index, fd: c_int, tcp: &Held, ready: Option<&ReadySet>) -> c_int {
        // SAFETY: the kernel ignores the event.
        let kernel = || unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, null_mut()) };
        let known = self.token_of(set, tcp).filter(|token| self.all[*token as usize].fd == fd);
        let Some(token) = known else { return kernel() };
        let member = &mut self.all[token as usize];
        if member.asleep {
            return crate::errno::fail(libc::ENOENT) as c_int;
        }
        if member.in_ring {
            member.asleep = true;
            return 0;
        }
        let result = kernel();
        self.forget(token, set, tcp, ready);
        result
    }

    /// Whether a connection is in it under this descriptor.
    pub(crate) fn is_under(&self, set: Index, fd: c_int, tcp: &Held) -> bool {
        self.token_of(set, tcp).is_some_and(|token| self.all[token as usize].fd == fd)
    }

    /// The token of a connection in this set.
    pub(crate) fn token_of(&self, set: Index, tcp: &Held) -> Option<u32> {
        let of_it = |member: &Member| member.used && member.connection == tcp.index();
        let look = || (0..).zip(&self.all).find(|(_, member)| of_it(member)).map(|(token, _)| token);
        tcp.token(set).or_else(|| tcp.is_in_more_sets().then(look).flatten())
    }

    /// A descriptor of a connection goes; it is still open.
    pub(crate) fn going(&mut self, going: &Going<'_>, ready: Option<&ReadySet>) {
        let Some(token) = self.token_of(going.set, going.tcp) else { return };
        let member = &mut self.all[token as usize];
        if member.fd != going.fd && going.heir.is_some() {
            return;
        }
        if going.inherited {
            // The parent's kernel set goes on reporting it: the token is never another's here.
            (member.used, member.events) = (false, 0);
            self.rings -= usize::from(std::mem::take(&mut member.in_ring));
            return going.tcp.remove_set(going.set);
        }
        match going.heir.filter(|_| member.in_ring && !member.asleep) {
            Some(heir) => return member.move_to(going, heir, token),
            None => member.hand_over(going),
        }
        self.forget(token, going.set, going.tcp, ready);
    }

    fn forget(&mut self, token: u32, set: Index, tcp: &Held, ready: Option<&ReadySet>) {
        tcp.remove_set(set);
        if let (Some(connection), Some(ready)) = (tcp.connection(), ready) {
            ready.remove(connection);
        }
        self.unnotified.retain(|(other, _)| *other != token);
        let member = &mut self.all[token as usize];
        self.rings -= usize::from(member.in_ring);
        (member.used, member.in_ring) = (false, false);
        self.free.push_back(token);
    }

    /// The set goes: its members are in it no more, nor in the next one that gets its place.
    pub(crate) fn remove_all(&mut self, ready: &ReadySet) {
        for (_, connection) in self.connections() {
            let Some(tcp) = CONNECTIONS.pin(connection) else { continue };
            tcp.connection().inspect(|connection| ready.remove(connection));
            self.set.inspect(|set| tcp.remove_set(*set));
        }
    }

    fn token(&mut self) -> Option<u32> {
        if let Some(token) = self.free.pop_front() {
            return Some(token);
        }
        let token = self.all.len() as u32;
        if token >= TOKENS_MAX - 1 {
            return None;
        }
        let none = Index(0);
        let (used, asleep, armed, queued, in_ring) = (false, false, false, false, false);
        self.all.push(Member {
            used,
            generation: 0,
            moved: false,
            asleep,
            armed,
            queued,
            only_kernel: false,
            kernel_said: 0,
            held: 0,
            full: false,
            in_ring,
            reported: 0,
            fd: -1,
            connection: none,
            events: 0,
            data: 0,
            registered: 0,
        });
        // Queueing never allocates: waiting does not. Nor does giving a token back.
        self.queue.reserve(self.all.len() - self.queue.len());
        self.free.reserve(self.all.len() - self.free.len());
        Some(token)
    }

    /// The answer of another wait is made.
    pub(crate) fn begin(&mut self) {
        self.wait += 1;
    }

    /// Polls what is in the queue once and writes events behind the first `found`; says how many
    /// there are then.
    ///
    /// # Safety
    /// `events` has room for `max`.
    pub(crate) unsafe fn collect(&mut self, epfd: c_int, events: *mut epoll_event, found: usize, max: usize) -> usize {
        let mut found = found;
        if found == 0 {
            self.wait += 1;
        }
        for _ in 0..self.queue.len() {
            if found == max {
                break;
            }
            let Some(token) = self.queue.pop_front() else { break };
            if self.all[token as usize].reported == self.wait {
                // Already in this answer; some programs take a second event for the same descriptor
                // at its word.
                self.queue.push_back(token);
                continue;
            }
            let bits = self.judge(epfd, token);
            let wait = self.wait;
            let member = &mut self.all[token as usize];
            if bits == 0 {
                continue;
            }
            member.reported = wait;
            // SAFETY: `found < max`.
            unsafe { events.add(found).write(epoll_event { events: bits, u64: member.data }) };
            found += 1;
            if member.events & ONE_SHOT != 0 {
                member.armed = false;
            } else if member.events & EDGE == 0 && !member.is_level_of_kernel() {
                self.enqueue(token);
            }
        }
        found
    }

    /// The bits to report for a member that was in the queue; 0 for none.
    fn judge(&mut self, epfd: c_int, token: u32) -> u32 {
        let member = &mut self.all[token as usize];
        member.queued = false;
        let only_kernel = std::mem::take(&mut member.only_kernel);
        let kernel_said = std::mem::take(&mut member.kernel_said);
        if !member.used {
            return 0;
        }
        let Some(tcp) = CONNECTIONS.pin(member.connection) else { return 0 };
        let Some(connection) = tcp.connection() else { return 0 };
        if connection.is_plain() {
            // With the kernel: it reports by itself.
            return 0;
        }
        let state = connection.state(crate::own::context(), borrowed(member.fd));
        self.rings += usize::from(!member.in_ring);
        let kernels = self.nested
            && (member.events & OUTPUT == 0 || state.tx == Medium::Kernel)
            && (member.events & INPUT == 0 || connection.is_read_from_kernel());
        member.register(epfd, token, &state, self.nested, kernels);
        if member.asleep || !member.armed {
            return 0;
        }
        let full = state.tx == Medium::Ring && !state.writable && member.events & OUTPUT != 0;
        if full && !std::mem::replace(&mut member.full, true) {
            self.full.push(token);
        }
        let asked = member.events & !MANNER;
        if member.events & EDGE == 0 {
            return readiness::bits_of(&state, member.fd, asked, tcp.seen());
        }
        // The end counts, whether it was asked for or not.
        let holds = readiness::bits_of(&state, member.fd, asked | libc::EPOLLRDHUP as u32, tcp.seen());
        let new = holds & !std::mem::replace(&mut member.held, holds) != 0;
        // For bytes and room in a ring its bell rings. The kernel says of it only that it has
        // ended, also when the bell rang for that; and once nothing can come any more every bell
        // rings for the same.
        let in_rings = state.rx == Medium::Ring && state.tx == Medium::Ring;
        let urgent = kernel_said & asked & libc::EPOLLPRI as u32 != 0;
        let again = in_rings && (only_kernel && !urgent || holds & ALWAYS != 0);
        if new || !again { holds & (asked | ALWAYS) } else { 0 }
    }

    /// Turns the kernel's events behind the first `found` into the program's; says how many there
    /// are then.
    ///
    /// # Safety
    /// So many events are there.
    pub(crate) unsafe fn translate(&mut self, events: *mut epoll_event, found: usize, n: usize) -> usize {
        let mut kept = found;
        for at in found..found + n {
            // SAFETY: the caller's promise.
            let event = unsafe { events.add(at).read() };
            let data = event.u64;
            let event = if data >> KEY_BITS << KEY_BITS != mark() {
                Some(event)
            } else {
                self.of_kernel((data as u32) & (TOKENS_MAX - 1), (data >> TOKEN_BITS) as u8, event.events)
            };
            if let Some(event) = event {
                // SAFETY: `kept <= at`.
                unsafe { events.add(kept).write(event) };
                kept += 1;
            }
        }
        kept
    }

    /// The kernel said something about a member: an event for the program, or none.
    fn of_kernel(&mut self, token: u32, generation: u8, bits: u32) -> Option<epoll_event> {
        let of_it = |member: &&mut Member| member.used && member.generation == generation;
        let member = self.all.get_mut(token as usize).filter(of_it)?;
        let tcp = CONNECTIONS.pin(member.connection)?;
        let connection = tcp.connection()?;
        if !connection.is_plain() {
            let certain = connection.is_read_from_kernel();
            let only_bytes = tcp.seen().is_some_and(|seen| seen.edge(bits, certain));
            // Bytes in the kernel while the ring is read are a sign of the other end, as much as
            // its end is.
            if !only_bytes || !certain {
                connection.kernel_event(borrowed(member.fd));
            }
            self.enqueue_for_kernel(token, bits);
            return None;
        }
        if member.asleep || !member.armed {
            return None;
        }
        if member.events & ONE_SHOT != 0 {
            member.armed = false;
        }
        Some(epoll_event { events: bits, u64: member.data })
    }
}

impl Member {
    /// The data under which it is registered.
    fn key(&self, token: u32) -> u64 {
        mark() | u64::from(self.generation) << TOKEN_BITS | u64::from(token)
    }

    /// The descriptor under which it is registered goes, and another one of the connection stays:
    /// the ring is told of under that one. TCP has it under the number that is gone, until both
    /// are.
    fn move_to(&mut self, going: &Going<'_>, heir: c_int, token: u32) {
        let Some(epfd) = going.epfd else { return };
        let mut event = epoll_event { events: self.registered, u64: self.key(token) };
        // SAFETY: the event is ours.
        unsafe {
            real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, self.fd, null_mut());
            real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, heir, &raw mut event);
        }
        (self.fd, self.moved) = (heir, true);
    }

    /// The registration ends, or becomes the program's own if the file may stay open without this
    /// descriptor. If nobody else can have the file the kernel ends it with the descriptor.
    fn hand_over(&self, going: &Going<'_>) {
        let Some(epfd) = going.epfd else { return };
        let stays = going.heir.is_some() || going.leaves == Leaves::Stays || going.tcp.is_shared();
        if !stays && going.tcp.connection().is_some_and(|connection| !connection.was_offered()) {
            return;
        }
        let manner_only = if self.armed { self.events } else { self.events & MANNER };
        let mut event = epoll_event { events: manner_only, u64: self.data };
        let (renewed, kept) = (self.events & EXCLUSIVE != 0, stays && !self.asleep);
        let control = |op, event| {
            // SAFETY: the event is ours. What the kernel refuses is not there.
            unsafe { real::epoll_ctl(epfd, op, self.fd, event) };
        };
        // The kernel changes no exclusive registration: it gets another one.
        if renewed || !kept {
            control(libc::EPOLL_CTL_DEL, null_mut());
        }
        if kept {
            control(if renewed { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD }, &raw mut event);
        }
    }

    /// Whether the kernel's set says by itself that there is something, as long as there is. An
    /// exclusive registration stays as the program made it, and knows nothing of the ring.
    fn is_level_of_kernel(&self) -> bool {
        self.in_ring && self.registered & (EDGE | EXCLUSIVE) == 0
    }

    /// Brings the kernel's registration in line with where the directions are. Once upgraded it
    /// stays ours, also when the bytes go back to the kernel. In a set within another it is what
    /// the program asked for, once it is the kernel's business alone: what waits for the set
    /// learns of nothing else.
    fn register(&mut self, epfd: c_int, token: u32, state: &State, nested: bool, kernels: bool) {
        let output = if readiness::kernel_part(state) & OUTPUT != 0 { OUTPUT & libc::EPOLLOUT as u32 } else { 0 };
        let output = if nested { output & self.events } else { output };
        let wanted = match (kernels, self.asleep) {
            (true, false) if self.events & ONE_SHOT != 0 => self.events & !MANNER | EDGE,
            (true, false) if self.events & EDGE == 0 => self.events & !MANNER,
            (true, true) => EDGE,
            _ => (INPUT & !(libc::EPOLLRDNORM as u32)) | output | EDGE,
        };
        if wanted != self.registered {
            let mut event = epoll_event { events: wanted, u64: self.key(token) };
            // SAFETY: the event is ours.
            if unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, self.fd, &raw mut event) } == 0 {
                self.registered = wanted;
            }
        }
        self.in_ring = true;
    }
}
