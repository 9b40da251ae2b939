//! Bells of this process's event loops: made, watched with, rung, and given back.
//!
//! Invariant: the node is sent a bell once, by a thread that has the lock; a loop whose bell the
//! node has not confirmed polls by itself.

use super::{AWAITED, Link, Node, Peer, Seat, Session, UNCONFIRMED, ring_fd};
use crate::context::Settings;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmmc_stream::messages::SocketCall;
use vmmc_stream::{BELLS, Bells, Watch};

impl Node {
    /// The bells of this process, once an event loop or the node needed them.
    pub(crate) fn bells(&self) -> Option<&Bells> {
        self.bells.get()
    }

    pub(super) fn make_bells(&self, settings: &Settings) -> Option<&Bells> {
        if let Some(bells) = self.bells.get() {
            return Some(bells);
        }
        let bells = Bells::create().ok()?;
        // Where the program cannot close it: each node needs it anew.
        let fd = bells.share().ok()?;
        bells.let_descriptor_go();
        let _ = self.keep_fd.set(settings.keep_fd);
        // Made before, and not in the cell's turn: a signal handler may come to the same place, and
        // would wait for its own thread.
        if self.bells.set(bells).is_ok() {
            let _ = self.bells_fd.set((settings.keep_fd)(fd));
        }
        self.bells.get()
    }

    /// A bell for an event loop: its number. `EMFILE` when each has a loop, `EAGAIN` when it
    /// cannot be sent to the node now.
    pub(crate) fn take_bell(&self, settings: &Settings) -> Result<u32, Errno> {
        self.make_bells(settings).ok_or(Errno::NOMEM)?;
        let free = |i: &u32| !self.bells_taken[*i as usize].swap(true, Ordering::AcqRel);
        let bell = (0..BELLS).find(free).ok_or(Errno::MFILE)?;
        self.make_bell(settings, bell).inspect_err(|_| self.return_bell(bell))?;
        Ok(bell)
    }

    fn make_bell(&self, settings: &Settings, bell: u32) -> Result<(), Errno> {
        if self.bell_fds[bell as usize].get().is_none() {
            let fd = (settings.keep_fd)(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            // Nobody else makes it, for the caller has taken it.
            let _ = self.bell_fds[bell as usize].set(fd);
        }
        if self.bells_confirmed[bell as usize].load(Ordering::Acquire) != UNCONFIRMED {
            return Ok(());
        }
        // A bell that the node does not know is not rung, so its loop would sleep for ever.
        let mut link = self.lock_bounded().ok_or(Errno::AGAIN)?;
        // A thread that connected meanwhile has sent it.
        let is_known = link.channel.is_none()
            || self.bells_confirmed[bell as usize].load(Ordering::Acquire) != UNCONFIRMED
            || self.send_bell(&mut link, bell) && self.ask_for_bell(&mut link, bell);
        is_known.then_some(()).ok_or(Errno::AGAIN)
    }

    /// Peers may have met this process already. What the node answers to a question that follows
    /// the bell comes after it has told them: here, whether it knows a socket that cannot be.
    fn ask_for_bell(&self, link: &mut Link, bell: u32) -> bool {
        link.last_number += 1;
        let number = link.last_number;
        if !self.send(link, SocketCall::Adopt { connection: number, cookie: 0 }, &[]) {
            return false;
        }
        link.bells_asked.insert(number, bell);
        self.bells_confirmed[bell as usize].store(AWAITED, Ordering::Release);
        true
    }

    /// Whether peers may not ring the bell yet, so that its loop has to poll by itself.
    #[inline]
    pub(crate) fn is_deaf(&self, bell: u32) -> bool {
        self.bells_watch[bell as usize].load(Ordering::Relaxed)
            < self.bells_confirmed[bell as usize].load(Ordering::Acquire)
    }

    /// A bell is about to watch a connection of that session. False: its peers will never have it.
    pub(crate) fn may_watch(&self, bell: u32, session: &Session) -> bool {
        let confirmed = self.bells_confirmed[bell as usize].load(Ordering::Acquire);
        let may = confirmed == AWAITED || confirmed <= session.number;
        if may {
            self.bells_watch[bell as usize].fetch_min(session.number, Ordering::SeqCst);
        }
        may
    }

    /// Gives a bell back.
    pub(crate) fn return_bell(&self, bell: u32) {
        if let Some(bells) = self.bells.get() {
            bells.disarm(bell);
        }
        self.bells_watch[bell as usize].store(UNCONFIRMED, Ordering::Relaxed);
        self.bells_taken[bell as usize].store(false, Ordering::Release);
    }

    /// Whether bells are running short, so that none should be kept for later.
    pub(crate) fn bells_are_scarce(&self) -> bool {
        let taken = self.bells_taken.iter().filter(|taken| taken.load(Ordering::Relaxed)).count();
        taken > BELLS as usize / 2
    }

    /// The eventfd of a bell that was taken.
    pub(crate) fn bell_fd(&self, bell: u32) -> BorrowedFd<'_> {
        self.bell_fds[bell as usize].get().expect("made when the bell was taken").as_fd()
    }

    /// Has an event loop of this process poll a token, and wakes it if it sleeps. The caller has
    /// passed a full fence.
    pub(crate) fn mark_own(&self, watch: Watch) {
        if let (Some(bells), Some(fd)) = (self.bells.get(), self.bell_fds[watch.bell as usize].get()) {
            if bells.mark_always(watch.bell, watch.token) {
                ring_fd(fd);
            }
        }
    }

    /// Wakes an event loop of this process, whether it sleeps or not.
    pub(crate) fn ring_own(&self, watch: Watch) {
        if let (Some(bells), Some(fd)) = (self.bells.get(), self.bell_fds[watch.bell as usize].get()) {
            bells.mark_always(watch.bell, watch.token);
            ring_fd(fd);
        }
    }

    /// Wakes an event loop of whatever process watches the other end.
    #[cold]
    pub(crate) fn ring_other(&self, watch: Watch, peer: Option<&Arc<Peer>>, seat: &Seat) {
        let Some(session) = self.session(seat) else { return };
        if watch.process == session.process() {
            return self.ring_own(watch);
        }
        self.poll_messages();
        let met = peer.filter(|peer| peer.process == watch.process).cloned();
        let rings = |peer: Arc<Peer>| {
            peer.bells.mark_always(watch.bell, watch.token);
            peer.ring_bell(watch)
        };
        if !met.is_some_and(rings) && !session.peer(watch.process).is_some_and(rings) {
            self.send_for(seat, |end| SocketCall::Ring { end });
        }
    }

    /// Sends the node a bell, if it has been made. False: it could not be sent.
    pub(super) fn send_bell(&self, link: &mut Link, bell: u32) -> bool {
        let Some(fd) = self.bell_fds[bell as usize].get() else { return true };
        self.send(link, SocketCall::Bell { bell }, &[fd.as_fd()])
    }
}
