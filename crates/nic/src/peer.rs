//! Another node: its addresses (paths), its session, the handshake under way.
//!
//! Invariant: `current < paths.len()`; a session outlives changes of path, since packets find it by
//! its id and not by their address.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::crypto::Handshake;
use crate::engine::Fit;
use crate::error::RejectReason;
use crate::ids::NodeName;
use crate::limits::{HELLO_RETRY_FIRST, PATH_PROBES_GOOD, PATHS_MAX};
use crate::mtu::{MtuState, Search};
use crate::session::Session;
use crate::slab::Key;
use crate::tables::Wait;
use crate::time::Time;
use crate::wire::packet::SessionRef;

/// One way to the node.
pub(crate) struct Path {
    pub(crate) addr: SocketAddr,
    pub(crate) search: Search,
    pub(crate) failed: bool,
    pub(crate) failures: u64,
    /// Answered probes in a row.
    probes_good: u32,
    /// Token of the last probe, not answered yet.
    pub(crate) probe: Option<u64>,
}

/// A hello that waits for its welcome.
pub(crate) struct Attempt {
    pub(crate) local: SessionRef,
    /// `None` in plain mode.
    pub(crate) handshake: Option<Handshake>,
    /// With its cookie and its proof at the end.
    pub(crate) hello: Box<[u8]>,
    pub(crate) started: Time,
    /// When the cookie came that the hello has.
    pub(crate) cookie_at: Option<Time>,
    pub(crate) next: Time,
    pub(crate) retry: Duration,
    pub(crate) path: usize,
    /// Hellos sent with the present cookie.
    pub(crate) sent: u32,
}

/// Somebody else claims the name of this peer; whether it still lives is being found out.
pub(crate) struct Contest {
    pub(crate) since: Time,
    pub(crate) token: u64,
    pub(crate) alive: bool,
}

/// An address under question.
pub(crate) struct Newcomer {
    pub(crate) addr: SocketAddr,
    pub(crate) token: u64,
    pub(crate) asked: Time,
}

pub(crate) struct Peer {
    pub(crate) name: Option<NodeName>,
    /// Named by the driver: stays when nothing uses it.
    pub(crate) configured: bool,
    pub(crate) paths: Vec<Path>,
    pub(crate) current: usize,
    pub(crate) session: Option<Box<Session>>,
    pub(crate) attempt: Option<Attempt>,
    /// Imports and pings that wait for a session.
    pub(crate) waiting: BTreeSet<Key<Wait>>,
    pub(crate) in_ready: bool,
    /// When its timer in the heap fires.
    pub(crate) armed: Time,
    pub(crate) probe_next: Time,
    /// No handshake on a mere hint before this.
    pub(crate) hint_not_before: Time,
    pub(crate) contest: Option<Contest>,
    /// What somebody at one of its addresses has said about why there is no session, or what junk
    /// from there looks like. Nobody vouches for it: it goes into texts only.
    pub(crate) hint: Option<RejectReason>,
    /// An address that proven packets come from and that is none of its paths: it becomes one when
    /// it answers this question.
    pub(crate) newcomer: Option<Newcomer>,
    /// Keepalives without an answer.
    pub(crate) ping_tries: u32,
}

impl Peer {
    pub(crate) fn new(name: Option<NodeName>, configured: bool) -> Peer {
        Peer {
            name,
            configured,
            paths: Vec::new(),
            current: 0,
            session: None,
            attempt: None,
            waiting: BTreeSet::new(),
            in_ready: false,
            armed: Time::MAX,
            probe_next: Time::ZERO,
            hint_not_before: Time::ZERO,
            contest: None,
            hint: None,
            newcomer: None,
            ping_tries: 0,
        }
    }

    pub(crate) fn path_of(&self, addr: SocketAddr) -> Option<usize> {
        self.paths.iter().position(|path| path.addr == addr)
    }

    /// Adds an address; false when it is known or there is no room.
    pub(crate) fn add_path(&mut self, addr: SocketAddr, search: Search) -> bool {
        if self.path_of(addr).is_some() || self.paths.len() >= PATHS_MAX {
            return false;
        }
        self.paths.push(Path { addr, search, failed: false, failures: 0, probes_good: 0, probe: None });
        self.fit_packets();
        true
    }

    /// Packets must fit every path, so that a change of path needs no new chunks.
    pub(crate) fn fit_packets(&mut self) {
        let smallest = self.mtu_bytes();
        if let Some(session) = self.session.as_deref_mut() {
            session.packet_bytes = smallest.min(session.packet_bytes_max);
            session.congestion.set_packet(session.packet_bytes);
        }
    }

    /// When a path is to be asked for its size, or has been for too long.
    #[inline]
    pub(crate) fn sizes_due(&self) -> Option<Time> {
        self.paths.iter().filter(|path| !path.failed).filter_map(|path| path.search.due()).min()
    }

    /// A ping was answered; true when it was one that asked for the size of a path.
    pub(crate) fn size_answered(&mut self, token: u64) -> bool {
        let Some(path) = self.paths.iter_mut().find(|path| path.search.has_asked(token)) else { return false };
        if path.search.answered(token) {
            self.fit_packets();
        }
        true
    }

    pub(crate) fn mtu_bytes(&self) -> usize {
        self.paths.iter().map(|path| path.search.size()).min().unwrap_or(crate::limits::PACKET_BYTES_MIN)
    }

    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        self.paths.get(self.current).map(|path| path.addr)
    }

    /// The handshake was answered from `addr`: what comes before it in the list did not work.
    pub(crate) fn answered_from(&mut self, addr: SocketAddr, search: Search) {
        if self.path_of(addr).is_none() && self.paths.len() >= PATHS_MAX {
            self.paths.pop();
        }
        self.add_path(addr, search);
        let Some(index) = self.path_of(addr) else { return };
        self.current = index;
        for path in &mut self.paths[..index] {
            path.failed = true;
            path.probes_good = 0;
        }
        self.paths[index].failed = false;
    }

    /// Another path than the current one, if the last packet came on it: it works, at least from
    /// there to here.
    pub(crate) fn received_elsewhere(&self) -> Option<usize> {
        let from = self.session.as_deref()?.last_from?;
        self.path_of(from).filter(|&index| index != self.current)
    }

    /// Gives the current path up for the one of the last packet, or else for the next one; false
    /// when there is no other.
    pub(crate) fn switch_path(&mut self) -> bool {
        if self.paths.len() < 2 {
            return false;
        }
        let last = self.received_elsewhere();
        let path = &mut self.paths[self.current];
        path.failed = true;
        path.failures += 1;
        path.probes_good = 0;
        let count = self.paths.len();
        let candidates = (1..count).map(|step| (self.current + step) % count);
        let working = candidates.clone().find(|&index| !self.paths[index].failed);
        self.current = last.or(working).or_else(|| candidates.clone().next()).expect("there are two paths or more");
        true
    }

    /// A probe was answered; true when that changed the path in use.
    pub(crate) fn probe_answered(&mut self, token: u64) -> bool {
        let Some(index) = self.paths.iter().position(|path| path.probe == Some(token)) else { return false };
        let path = &mut self.paths[index];
        path.probe = None;
        path.probes_good += 1;
        if path.probes_good < PATH_PROBES_GOOD {
            return false;
        }
        path.failed = false;
        if index < self.current || self.paths[self.current].failed {
            self.current = index;
            return true;
        }
        false
    }
}

/// Whether packets to one of the paths fit it.
#[inline]
pub(crate) fn fit_of(paths: &[Path], addr: SocketAddr) -> Fit {
    let fails = |path: &Path| path.addr == addr && path.search.state() == MtuState::Error;
    if paths.iter().any(fails) { Fit::CutUp } else { Fit::Path }
}

impl Path {
    /// A new probe goes out; one without an answer starts the count anew.
    pub(crate) fn probe_again(&mut self, token: u64) {
        if self.probe.replace(token).is_some() {
            self.probes_good = 0;
        }
    }
}

impl Attempt {
    pub(crate) fn new(
        local: SessionRef,
        handshake: Option<Handshake>,
        hello: Box<[u8]>,
        path: usize,
        now: Time,
    ) -> Attempt {
        Attempt {
            local,
            handshake,
            hello,
            started: now,
            cookie_at: None,
            next: now,
            retry: HELLO_RETRY_FIRST,
            path,
            sent: 0,
        }
    }
}
