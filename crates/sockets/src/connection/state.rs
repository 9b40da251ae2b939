//! What can be said about a connection without changing it.

use super::{Connection, Joined, Socket};
use crate::context::Context;
use crate::types::{Bypass, Description, Medium, State};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use vmmc_host::Nanos;
use vmmc_stream::{Flags, Phase, thread_id};

impl Connection {
    /// What could be done now. No system call unless the kernel's part is about to end, or somebody
    /// hinted that the other end is gone.
    pub fn state(&self, context: &Context, fd: BorrowedFd<'_>) -> State {
        let Some(joined) = self.upgraded.get() else { return PLAIN };
        let core = &joined.core;
        joined.maintain(context, self, fd);
        core.follow(thread_id(), &Socket(fd));
        if core.hinted() || core.is_time_to_ask(&Socket(fd)) {
            core.follow_hints(&Socket(fd));
        }
        if core.is_waited_for() {
            core.flush_to_kernel(thread_id(), &Socket(fd));
        }
        self.pass_on(context, joined);
        if core.is_broken() {
            return self.broken_state(joined, fd);
        }
        // What is to be flushed waits for the kernel.
        let tx = medium(core.outgoing().announced().in_ring() && !core.must_flush_to_kernel());
        let rx = medium(core.incoming().reads_ring());
        let peer = core.incoming().sender_flags.load(Ordering::Acquire);
        let own = core.outgoing().sender_flags.load(Ordering::Relaxed);
        let shut = core.incoming().receiver_flags.load(Ordering::Relaxed) & Flags::SHUT != 0;
        let reset = core.reset();
        let ended = own & Flags::END != 0 || shut;
        // Of a reset the kernel may know nothing.
        let read_hangup =
            reset.is_some() || rx == Medium::Ring && (peer & Flags::END != 0 || core.kernel_ended() || shut);
        State {
            readable: rx == Medium::Ring && core.may_be_readable(),
            writable: tx == Medium::Ring && self.may_be_writable(joined, fd),
            read_hangup,
            hangup: read_hangup && (own & Flags::END != 0 || reset.is_some()),
            error: reset.filter(|_| !core.reset_was_reported()),
            asks_kernel: core.has_closed_in_order()
                || rx != tx && (ended || read_hangup)
                || reset.is_some() && (rx == Medium::Kernel || tx == Medium::Kernel),
            rx,
            tx,
        }
    }

    /// Whether what comes by the kernel is for the program, and only for it: the ring is neither
    /// read nor about to be, and no copies of what was in it are to be read away.
    pub fn is_read_from_kernel(&self) -> bool {
        self.upgraded.get().is_none_or(|joined| joined.core.is_read_from_kernel())
    }

    /// Whether bytes from the peer are read in the ring, and the next ones may come by the kernel.
    pub fn leaves_ring(&self) -> bool {
        self.upgraded.get().is_some_and(|joined| {
            let into = joined.core.incoming();
            !into.reads_ring() || into.phase() != Phase::Steady
        })
    }

    /// Asks to be notified of room when there is none.
    fn may_be_writable(&self, joined: &Joined, fd: BorrowedFd<'_>) -> bool {
        joined.core.may_be_writable() || {
            joined.core.outgoing().want_room();
            joined.core.notice_full(Nanos::monotonic().0, &Socket(fd));
            joined.core.may_be_writable()
        }
    }

    /// Whether what it sends goes by a ring that is full.
    pub fn has_full_ring(&self) -> bool {
        let in_ring =
            |joined: &&Joined| joined.core.outgoing().announced().in_ring() && !joined.core.must_flush_to_kernel();
        self.upgraded.get().filter(in_ring).is_some_and(|joined| !joined.core.may_be_writable())
    }

    /// What `SO_ERROR` is: a reset that no call has reported, which this one does, or 0 after that.
    /// None: what the kernel says.
    pub fn take_error(&self, context: &Context, fd: BorrowedFd<'_>) -> Option<i32> {
        let joined = self.upgraded.get()?;
        self.state(context, fd);
        joined.core.reset()?;
        Some(joined.core.takes_reset().map_or(0, Errno::raw_os_error))
    }

    /// Bytes in the ring that wait to be received.
    pub fn available_bytes(&self) -> usize {
        let Some(joined) = self.upgraded.get().filter(|joined| !joined.core.incoming().goes_back()) else { return 0 };
        joined.core.incoming().available(joined.core.slot.most_bytes()) as usize
    }

    /// Bytes in the ring that the peer has not received.
    pub fn unsent_bytes(&self) -> usize {
        let given_back = |joined: &&Joined| {
            let out = joined.core.outgoing();
            out.goes_back() && !out.announced().in_ring()
        };
        let Some(joined) = self.upgraded.get().filter(|joined| !given_back(joined)) else { return 0 };
        joined.core.outgoing().available(joined.core.slot.most_bytes()) as usize
    }

    /// The kernel said that its socket is readable, hung up or in error: the next poll of the state
    /// asks it.
    pub fn kernel_event(&self, _fd: BorrowedFd<'_>) {
        if let Some(joined) = self.upgraded.get() {
            joined.core.ask_kernel.store(1, Ordering::Relaxed);
        }
    }

    /// For people.
    pub fn describe(&self) -> Description {
        let reason = Bypass::from_byte(self.reason.load(Ordering::Relaxed));
        let Some(joined) = self.upgraded.get() else {
            return Description {
                upgraded: false,
                tx: Medium::Kernel,
                rx: Medium::Kernel,
                reason: Some(reason),
                ring_bytes: [0; 2],
                ring_sent_bytes: 0,
                ring_received_bytes: 0,
            };
        };
        let core = &joined.core;
        let pinned = core.pinned.load(Ordering::Relaxed) != 0;
        Description {
            upgraded: true,
            tx: medium(core.outgoing().announced().in_ring()),
            rx: medium(core.incoming().reads_ring()),
            reason: pinned.then_some(reason),
            ring_bytes: [core.outgoing(), core.incoming()].map(|d| core.slot.ring_bytes(d.layout().large)),
            ring_sent_bytes: core.outgoing().tail.load(Ordering::Relaxed),
            ring_received_bytes: core.incoming().head.load(Ordering::Relaxed),
        }
    }
}

fn medium(in_ring: bool) -> Medium {
    if in_ring { Medium::Ring } else { Medium::Kernel }
}

const PLAIN: State = State {
    readable: false,
    writable: false,
    read_hangup: false,
    hangup: false,
    error: None,
    asks_kernel: false,
    rx: Medium::Kernel,
    tx: Medium::Kernel,
};
