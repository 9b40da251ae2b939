//! One TCP connection of this process: an open file description, whatever number of descriptors it
//! has.
//!
//! Invariant: a connection with a reason to stay with the kernel never gets rid of it. What the
//! program set on the socket is asked of the kernel when it is first needed after it may have
//! changed, since another process that shares the socket may set it too.

use crate::arena::{Index, Pin, Resource};
use crate::config::config;
use crate::limits::SETS_OF_A_CONNECTION;
use crate::members::Leaves;
use crate::own::{self, Inside};
use crate::real;
use crate::reason::{self, Reason};
use crate::seen::Seen;
use crate::set;
use crate::table::{self, CONNECTIONS, Entry, SETS};
use libc::{c_int, socklen_t};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI8, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;
use vmmc_host::Deadline;
use vmmc_sockets::{Bypass, Close, Connection};

/// Which wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// For bytes.
    Receive,
    /// For room.
    Send,
}

/// A value that must be asked of the kernel again.
const UNKNOWN: u64 = u64::MAX;

/// A connection.
pub(crate) struct Tcp {
    /// The protocol core's side of it; an [`Arc`], null while this object is not in use.
    connection: AtomicPtr<Connection>,
    /// A [`Reason`] to stay with the kernel for good, 0 for none.
    left: AtomicU8,
    /// O_NONBLOCK: 0 no, 1 yes, -1 unknown.
    nonblocking: AtomicI8,
    /// SO_RCVLOWAT as the program set it; 1 unless it did.
    pub(crate) low_water: AtomicU32,
    /// Other processes have the socket too and may change what we remember of it.
    shared: AtomicBool,
    /// SO_RCVTIMEO and SO_SNDTIMEO in microseconds, 0 for none, or [`UNKNOWN`].
    timeouts_us: [AtomicU64; 2],
    /// What the kernel said about its socket.
    seen: Seen,
    /// Epoll sets it is in: index plus 1 in the upper half, its token there in the lower one.
    sets: [AtomicU64; SETS_OF_A_CONNECTION],
    /// It is, or was, in more sets than fit there, which know of it themselves.
    in_more_sets: AtomicBool,
}

impl Resource for Tcp {
    fn fresh() -> Tcp {
        Tcp {
            connection: AtomicPtr::new(null_mut()),
            left: AtomicU8::new(0),
            nonblocking: AtomicI8::new(-1),
            low_water: AtomicU32::new(1),
            shared: AtomicBool::new(false),
            timeouts_us: [const { AtomicU64::new(UNKNOWN) }; 2],
            seen: Seen::new(),
            sets: [const { AtomicU64::new(0) }; SETS_OF_A_CONNECTION],
            in_more_sets: AtomicBool::new(false),
        }
    }

    fn end(&self) {
        let connection = self.connection.swap(null_mut(), AcqRel);
        if !connection.is_null() {
            let _inside = Inside::enter();
            // SAFETY: `adopt` put the reference here; nobody refers to this object any more, so
            // nobody reads it concurrently.
            let connection = unsafe { Arc::from_raw(connection) };
            if let Some(context) = own::context_if_made() {
                connection.release(context);
            }
        }
        self.left.store(0, Relaxed);
        self.nonblocking.store(-1, Relaxed);
        self.low_water.store(1, Relaxed);
        self.shared.store(false, Relaxed);
        self.forget_timeouts();
        self.seen.reset();
        self.sets.iter().for_each(|set| set.store(0, Relaxed));
        self.in_more_sets.store(false, Relaxed);
    }
}

/// The descriptor for the length of a call.
pub(crate) fn borrowed(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: used for one call, in which the program promises that the descriptor is open; a wrong
    // number fails in the kernel. Only -1 would be invalid, and that is in no table.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Tcp {
    /// The protocol core's side of it.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        // SAFETY: set before the object was first found in the table and dropped after the last
        // call; we are such a call.
        unsafe { self.connection.load(Acquire).as_ref() }
    }

    /// Whether no byte of it ever went by a ring.
    pub(crate) fn is_plain(&self) -> bool {
        self.connection().is_none_or(Connection::is_plain)
    }

    /// Whether nothing sends it back to the kernel.
    pub(crate) fn has_no_reason_to_leave(&self) -> bool {
        self.left.load(Relaxed) == 0
    }

    /// The connection goes back to the kernel and stays there.
    pub(crate) fn leave(&self, fd: c_int, reason: Reason) {
        let first = self.left.swap(reason as u8, Relaxed) == 0;
        if first {
            reason::count(reason);
        }
        // A holder that does not know of the ring needs more than the others: that what is in it
        // goes back, too.
        if first || reason.bypass() == Bypass::Leaked {
            if let Some(connection) = self.connection() {
                let _inside = Inside::enter();
                connection.pin_to_kernel(own::context(), borrowed(fd), reason.bypass());
            }
        }
    }

    /// Whether a call that cannot go on must fail instead of waiting.
    pub(crate) fn is_nonblocking(&self, fd: c_int) -> bool {
        match self.nonblocking.load(Relaxed) {
            0 => false,
            1 => true,
            _ => {
                // SAFETY: numbers only.
                let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
                let yes = flags >= 0 && flags & libc::O_NONBLOCK != 0;
                if !self.shared.load(Relaxed) {
                    self.nonblocking.store(i8::from(yes), Relaxed);
                }
                yes
            }
        }
    }

    /// The program set it.
    pub(crate) fn set_nonblocking(&self, yes: bool) {
        self.nonblocking.store(if self.shared.load(Relaxed) { -1 } else { i8::from(yes) }, Relaxed);
    }

    /// Another process has the socket too from now on.
    pub(crate) fn share(&self) {
        self.shared.store(true, Relaxed);
        self.nonblocking.store(-1, Relaxed);
    }

    /// Whether another process may have the socket too.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    /// What the kernel said about its socket, if that is upgraded and nobody else reads or writes
    /// it.
    pub(crate) fn seen(&self) -> Option<&Seen> {
        let own = !self.is_plain() && !self.is_shared() && self.has_no_reason_to_leave();
        own.then_some(&self.seen)
    }

    /// The program set a timeout.
    pub(crate) fn forget_timeouts(&self) {
        self.timeouts_us.iter().for_each(|timeout| timeout.store(UNKNOWN, Relaxed));
    }

    /// When a wait that begins now must end.
    pub(crate) fn deadline(&self, fd: c_int, side: Side) -> Option<Deadline> {
        let place = &self.timeouts_us[side as usize];
        let mut us = place.load(Relaxed);
        if us == UNKNOWN {
            let name = if side == Side::Receive { libc::SO_RCVTIMEO } else { libc::SO_SNDTIMEO };
            let time: libc::timeval = option(fd, libc::SOL_SOCKET, name)?;
            us = time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
            if !self.is_shared() {
                place.store(us, Relaxed);
            }
        }
        (us > 0).then(|| Deadline::after(Duration::from_micros(us)))
    }

    /// Epoll sets it is in, and others that may have it.
    pub(crate) fn sets(&self) -> impl Iterator<Item = Index> {
        let known =
            self.sets.iter().filter_map(|place| Some(Index(((place.load(Acquire) >> 32) as u32).checked_sub(1)?)));
        let all = self.is_in_more_sets().then(|| SETS.each().map(|set| set.index()));
        known.chain(all.into_iter().flatten().filter(|set| self.place(*set).is_none()))
    }

    /// Whether sets may have it of which [`token`](Self::token) says nothing.
    pub(crate) fn is_in_more_sets(&self) -> bool {
        self.in_more_sets.load(Acquire)
    }

    fn place(&self, set: Index) -> Option<&AtomicU64> {
        self.sets.iter().find(|place| place.load(Acquire) >> 32 == u64::from(set.0) + 1)
    }

    /// Its token in a set; none if it is not in it.
    pub(crate) fn token(&self, set: Index) -> Option<u32> {
        Some(self.place(set)?.load(Acquire) as u32)
    }

    /// It is in one more set; `false`: in too many.
    pub(crate) fn add_set(&self, set: Index, token: u32) -> bool {
        let word = (u64::from(set.0) + 1) << 32 | u64::from(token);
        let fits = self.sets.iter().any(|place| place.compare_exchange(0, word, AcqRel, Relaxed).is_ok());
        if !fits {
            self.in_more_sets.store(true, Release);
        }
        fits
    }

    /// It is not in that set any more.
    pub(crate) fn remove_set(&self, set: Index) {
        if let Some(place) = self.place(set) {
            place.store(0, Release);
        }
    }

    /// The last descriptor of this process is about to go.
    fn close(&self, fd: c_int, dissolves: bool) {
        let Some(connection) = self.connection() else { return };
        let reset = dissolves || !connection.is_plain() && lingers_zero(fd);
        let how = if reset { Close::Reset } else { Close::Orderly };
        let _inside = Inside::enter();
        if config().verbose {
            reason::ended(&connection.describe());
        }
        connection.close(own::context(), borrowed(fd), how);
        connection.wake_closed();
    }
}

/// The process ends, and the kernel is about to close everything.
pub(crate) fn close_all() {
    for (fd, entry) in table::known(0, c_int::MAX) {
        // One of its descriptors stands for all; closing again does nothing.
        if let Some(tcp) = matches!(entry, Entry::Connection(_)).then(|| table::connection(fd)).flatten() {
            if let Some(connection) = tcp.connection().filter(|connection| !connection.is_plain()) {
                let how = if lingers_zero(fd) { Close::Reset } else { Close::Orderly };
                let _inside = Inside::enter();
                connection.close(own::context(), borrowed(fd), how);
                // A call of another thread may go on until the process is gone: the node notices
                // that.
                if CONNECTIONS.is_alone(&tcp) {
                    connection.release(own::context());
                }
            }
        }
    }
}

/// For the report at the end of the program: connections that it leaves open.
pub(crate) fn report_open() {
    for tcp in CONNECTIONS.each() {
        tcp.connection().inspect(|connection| reason::ended(&connection.describe()));
    }
}

/// The program closes or replaces a descriptor of a connection, which is still open. To be followed
/// by the release of `entry`.
pub(crate) fn closing(fd: c_int, entry: Entry) {
    ends(fd, entry, Leaves::Closes, false);
}

/// The program dissolves a connection (connect to AF_UNSPEC), which is a reset for its peer, or
/// hands it to somebody whose calls we do not see; the descriptor stays. To be followed by the
/// release of `entry`.
pub(crate) fn stays(fd: c_int, entry: Entry, dissolves: bool) {
    ends(fd, entry, Leaves::Stays, dissolves);
}

fn ends(fd: c_int, entry: Entry, leaves: Leaves, dissolves: bool) {
    let Entry::Connection(index) = entry else { return };
    let Some(pin) = CONNECTIONS.pin(index) else { return };
    let last = CONNECTIONS.descriptors(index) == 1;
    if pin.sets().next().is_some() {
        let heir = if last { None } else { another(index, fd) };
        if heir.is_some() && set::holds(fd, &pin) {
            // The kernel's set goes on with a number that the program has given up; only the kernel
            // can follow that.
            pin.leave(fd, Reason::ManySets);
        }
        set::going(fd, &pin, leaves, heir);
    }
    if last && (leaves == Leaves::Closes || dissolves) {
        pin.close(fd, dissolves);
    }
}

/// Another descriptor of a connection.
fn another(index: Index, fd: c_int) -> Option<c_int> {
    let own = Entry::Connection(index);
    table::known(0, c_int::MAX).find(|(other, entry)| *other != fd && *entry == own).map(|(other, _)| other)
}

/// An option of a socket.
fn option<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    // SAFETY: used with plain C structures and integers only, for which all zero is a value.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: value and length are ours and fit together.
    let result = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (result == 0 && len as usize == size_of::<T>()).then_some(value)
}

fn lingers_zero(fd: c_int) -> bool {
    option::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER).is_some_and(|l| l.l_onoff != 0 && l.l_linger == 0)
}

/// Makes a descriptor known that just became a connection, if it is one of TCP and none of the
/// exclusions. `nonblocking` is `O_NONBLOCK` of a socket that is new, where it is known.
pub(crate) fn adopt(fd: c_int, nonblocking: Option<bool>) {
    if !config().active || fd <= libc::STDERR_FILENO || Inside::here() || reason::stopped().is_some() {
        return;
    }
    if option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) != Some(libc::IPPROTO_TCP) {
        return;
    }
    if config().excludes_ports() && excluded(fd) {
        return reason::count(Reason::Excluded);
    }
    insert(fd, || own::context().track(borrowed(fd)));
    if let Some(tcp) = table::connection(fd) {
        let _inside = Inside::enter();
        nonblocking.inspect(|yes| tcp.set_nonblocking(*yes));
        tcp.connection().inspect(|connection| connection.begin(own::context(), borrowed(fd)));
    }
}

/// Makes a descriptor known that came from another process. If that one had upgraded it, this one
/// goes on with it; otherwise it stays with the kernel.
pub(crate) fn join(fd: c_int) {
    if !config().active || fd <= libc::STDERR_FILENO || reason::stopped().is_some() {
        return;
    }
    // A listener has no peer, and is nothing to us.
    if option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP) && has_peer(fd) {
        insert(fd, || own::context().adopt(borrowed(fd)));
    }
}

/// What identifies the socket behind a descriptor, if it is an upgraded connection.
pub(crate) fn upgraded_cookie(fd: c_int) -> Option<u64> {
    vmmc_stream::is_marked_upgraded(borrowed(fd)).then(|| vmmc_stream::cookie(borrowed(fd)).ok()).flatten()
}

/// Makes a descriptor known that this program inherited, upgraded.
pub(crate) fn inherit(fd: c_int, deadline: Deadline) {
    insert(fd, || own::context().inherit(borrowed(fd), deadline));
}

fn insert(fd: c_int, core: impl FnOnce() -> Arc<Connection>) {
    let Some(index) = CONNECTIONS.insert() else { return reason::count(Reason::Full) };
    let Some(pin) = CONNECTIONS.pin(index) else { return };
    let _inside = Inside::enter();
    pin.connection.store(Arc::into_raw(core()).cast_mut(), Release);
    table::put(fd, Entry::Connection(index));
}

fn has_peer(fd: c_int) -> bool {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut addr: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    // SAFETY: address and length are ours and fit together.
    unsafe { libc::getpeername(fd, (&raw mut addr).cast(), &raw mut len) == 0 }
}

/// Whether either end's port is excluded.
fn excluded(fd: c_int) -> bool {
    type Names = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int;
    let names: [Names; 2] = [libc::getsockname, libc::getpeername];
    names.iter().any(|name| {
        // SAFETY: all zero is a valid value of this plain structure.
        let mut addr: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_in6>() as socklen_t;
        // SAFETY: address and length are ours and fit together.
        let result = unsafe { name(fd, (&raw mut addr).cast(), &raw mut len) };
        // The port lies at the same place for both families.
        result == 0 && config().excludes_port(u16::from_be(addr.sin6_port))
    })
}

/// A connection held for a call.
pub(crate) type Held = Pin<Tcp>;
