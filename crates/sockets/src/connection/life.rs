//! From a young connection to a closed one: offer, match, join, end.
//!
//! Invariant: both ends join only while their sockets are established, and the node saw each
//! established before: so at one instant both were, and the mirror image of a live connection is
//! its other end.

use super::{Connection, Joined, Registration, SHUT_READ, SHUT_WRITE, Socket, Stage};
use crate::context::Context;
use crate::core::{Upgraded, Wakeup, WayBack};
use crate::limits::{BACK_AT_CLOSE, BACK_PAUSE, BACK_TIMEOUT};
use crate::node::{Meeting, Verdict, refuse};
use crate::offers::Offers;
use crate::types::{Bypass, Close, Interest, Shutdown};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};
use vmmc_host::{Deadline, Nanos};
use vmmc_stream::Section;
use vmmc_stream::messages::OfferRefusal;
use vmmc_stream::{
    Denied, EndWords, Flags, Phase, claim, cookie, endpoints, has_no_delay, mark_upgraded, needs_kernel,
    not_sent_limit, reset, shut_down, tcp_progress, thread_id, unmark_upgraded, wait_socket,
};

impl Connection {
    /// Does what can be done now to bring the connection into shared memory.
    #[inline]
    pub(super) fn step_towards_upgrade(&self, context: &Context, fd: BorrowedFd<'_>) {
        match self.stage() {
            Stage::Young if self.is_due(context, fd) => self.offer(context, fd),
            Stage::Offered if context.has_messages() => {
                context.poll();
                context.unless_forking(|| self.join_if_matched(context, fd));
            }
            Stage::Matched
                if matches!(context.settings().offers, Offers::Random(_)) && !context.random_offers.hits() => {}
            Stage::Matched => context.unless_forking(|| self.join_if_matched(context, fd)),
            _ => {}
        }
    }

    /// Whether it is time for an offer.
    #[inline]
    fn is_due(&self, context: &Context, fd: BorrowedFd<'_>) -> bool {
        let settings = context.settings();
        match settings.offers {
            Offers::Usual => {
                let factor = context.offers.factor();
                self.exchanges.load(Ordering::Relaxed) >= settings.offer_after_exchanges.saturating_mul(factor)
                    || self.bytes.load(Ordering::Relaxed) >= settings.offer_after_bytes.saturating_mul(factor.into())
            }
            // One that is still being made would be refused for good.
            Offers::AtOnce => tcp_progress(fd).is_ok_and(|p| p.established),
            Offers::Random(_) => context.random_offers.hits() && tcp_progress(fd).is_ok_and(|p| p.established),
        }
    }

    /// It has just been connected or accepted: offers it now if that is asked for.
    pub fn begin(&self, context: &Context, fd: BorrowedFd<'_>) {
        if context.settings().offers != Offers::Usual {
            self.step_towards_upgrade(context, fd);
        }
    }

    /// `TCP_NODELAY` of an upgraded connection, as a holder of this end set it: underneath it is
    /// on.
    pub fn no_delay(&self) -> Option<bool> {
        self.upgraded.get().map(|joined| joined.core.own().no_delay.load(Ordering::Relaxed) != 0)
    }

    /// Somebody who holds this end set it.
    pub fn set_no_delay(&self, on: bool) {
        if let Some(joined) = self.upgraded.get() {
            joined.core.own().no_delay.store(u32::from(on), Ordering::Relaxed);
        }
    }

    /// `TCP_NOTSENT_LOWAT` of an upgraded connection, as a holder of this end set it: underneath
    /// its mark is there.
    pub fn not_sent_limit(&self) -> Option<u32> {
        self.upgraded.get().map(|joined| joined.core.own().not_sent.load(Ordering::Relaxed))
    }

    /// Somebody who holds this end set it; false: it is not upgraded.
    pub fn set_not_sent_limit(&self, limit: u32) -> bool {
        let upgraded = self.upgraded.get();
        upgraded.inspect(|joined| joined.core.own().not_sent.store(limit, Ordering::Relaxed)).is_some()
    }

    #[cold]
    fn offer(&self, context: &Context, fd: BorrowedFd<'_>) {
        // However it ends, the next try comes after as many bytes and calls again.
        self.exchanges.store(0, Ordering::Relaxed);
        let carried = self.bytes.swap(0, Ordering::Relaxed);
        if self.entry.get().is_some_and(|e| !e.alone()) {
            self.reason.store(Bypass::Shared.to_byte(), Ordering::Relaxed);
            return;
        }
        if needs_kernel(fd) {
            return self.pin_to_kernel(context, fd, Bypass::KernelOnly);
        }
        let Ok(claim) = claim(fd) else {
            // Most often because it ends: as much in vain as an offer that is met too late.
            context.offers.ended(carried, 0);
            return self.settle_with(Bypass::NotTcp);
        };
        let Some(own) = self.own.upgrade() else { return };
        self.cookie.store(claim.cookie, Ordering::Relaxed);
        match context.node().offer(context.settings(), &own, claim) {
            Some(number) => {
                self.offer.store(number, Ordering::Relaxed);
                self.offered_after.store(carried.max(1), Ordering::Relaxed);
                self.reason.store(Bypass::PeerPlain.to_byte(), Ordering::Relaxed);
                // The verdict may have come already, read by another thread.
                let (young, offered) = (Stage::Young as u8, Stage::Offered as u8);
                let _ = self.stage.compare_exchange(young, offered, Ordering::AcqRel, Ordering::Acquire);
            }
            None => self.reason.store(context.node().why_none().to_byte(), Ordering::Relaxed),
        }
    }

    /// The node's word. False: it is of no use any more.
    pub(crate) fn settle(&self, verdict: Verdict) -> bool {
        if !matches!(self.stage(), Stage::Young | Stage::Offered) {
            return false;
        }
        match verdict {
            Verdict::Matched(meeting) => {
                let Some(mut matched) = self.matched.lock() else { return false };
                *matched = Some(meeting);
                let to = Stage::Matched as u8;
                let turn = |from: Stage| {
                    self.stage.compare_exchange(from as u8, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
                };
                let taken = turn(Stage::Offered) || turn(Stage::Young);
                if !taken {
                    *matched = None;
                }
                return taken;
            }
            Verdict::Refused(why) => self.settle_with(match why {
                OfferRefusal::Shared => Bypass::Shared,
                OfferRefusal::NotConnected => Bypass::NotTcp,
                _ => Bypass::Refused,
            }),
            Verdict::NoNode(why) => {
                self.reason.store(why.to_byte(), Ordering::Relaxed);
                self.stage.store(Stage::Young as u8, Ordering::Release);
            }
        }
        true
    }

    #[cold]
    fn join_if_matched(&self, context: &Context, fd: BorrowedFd<'_>) {
        if self.stage() != Stage::Matched {
            return;
        }
        // Two receives in the kernel: only one would be woken by the last bytes there. Later, then.
        if self.early.receives.load(Ordering::SeqCst) > 1 {
            return;
        }
        // The holder of either lock, maybe this very thread below a signal handler, joins or lets
        // it be; else a later call does.
        let (Some(mut matched), Some(watches)) = (self.matched.try_lock(), self.watches.try_lock()) else { return };
        let between = |meeting: &Meeting| meeting.slot.words().between.load(Ordering::Relaxed) != 0;
        if matched.as_ref().is_some_and(between) && self.early.receives.load(Ordering::SeqCst) > 0 {
            // What is announced comes after the bytes that would wake it.
            return;
        }
        let Some(meeting) = matched.take() else { return };
        drop(matched);
        // As the program set them, before this connection or its listener was anything to us.
        let (no_delay, not_sent) = (has_no_delay(fd), not_sent_limit(fd));
        let same = cookie(fd).is_ok_and(|c| c == self.cookie.load(Ordering::Relaxed));
        let fine = same
            && tcp_progress(fd).is_ok_and(|p| p.established)
            && self.entry.get().is_none_or(|e| e.alone())
            && context.node().is_of_now(&meeting.seat)
            && mark_upgraded(fd).is_ok();
        if !fine {
            refuse(&meeting);
            context.node().release(&meeting.seat);
            return self.settle_with(Bypass::Shared);
        }
        let own = &meeting.slot.words().ends[meeting.seat.end.place.end as usize];
        own.no_delay.store(u32::from(no_delay), Ordering::Relaxed);
        own.not_sent.store(not_sent, Ordering::Relaxed);
        own.holders.store(1, Ordering::SeqCst);
        self.join_watched(context, fd, meeting, watches);
    }

    /// Upgraded elsewhere, and nobody can say where its bytes are: it ends here, as a dropped
    /// connection does.
    pub(crate) fn give_up(&self, fd: BorrowedFd<'_>) {
        self.cannot_follow();
        shut_down(fd);
    }

    /// As [`give_up`](Self::give_up), in this process only.
    pub(crate) fn cannot_follow(&self) {
        self.broken.store(true, Ordering::Relaxed);
        self.settle_with(Bypass::NoNode);
    }

    /// From here on the shared words rule.
    pub(crate) fn join(&self, context: &Context, fd: BorrowedFd<'_>, meeting: Meeting) {
        if let Some(watches) = self.watches.lock() {
            self.join_watched(context, fd, meeting, watches);
        }
    }

    fn join_watched(
        &self,
        context: &Context,
        fd: BorrowedFd<'_>,
        meeting: Meeting,
        mut watches: Section<'_, Vec<Registration>>,
    ) {
        let Meeting { seat, slot, peer } = meeting;
        let mut core = Upgraded::new(slot, seat.end.place.end as usize, self.early.clone());
        if let Some(peer) = core.is_between().then(|| endpoints(fd).ok()).flatten() {
            core.share_choice(context.choices.of(peer.0.remote.ip().to_canonical()));
        }
        if context.settings().between_always {
            core.always_by_ring();
        }
        let joined = Joined {
            core,
            seat,
            peer,
            reads: Default::default(),
            writes: Default::default(),
            kernel_polls: Default::default(),
            at: Nanos::monotonic(),
        };
        if self.upgraded.set(joined).is_err() {
            return;
        }
        // See `plain_call`: calls that it counted are seen from here on.
        fence(Ordering::SeqCst);
        let before = Stage::of(self.stage.swap(Stage::Joined as u8, Ordering::AcqRel));
        let joined = self.upgraded.get().expect("set above");
        if before == Stage::Closed {
            // By a signal handler just now, or another thread.
            self.stage.store(Stage::Closed as u8, Ordering::Release);
            joined.core.own().attached.store(EndWords::NO, Ordering::Release);
            joined.core.own().holders.store(0, Ordering::SeqCst);
            return self.unreleased.store(true, Ordering::Release);
        }
        joined.publish_core();
        // See `shutdown`: what it ended before the words were there.
        let shut = self.shut.load(Ordering::SeqCst);
        if shut & SHUT_WRITE != 0 {
            joined.core.has_ended_before();
        }
        if shut & SHUT_READ != 0 {
            joined.core.incoming().receiver_flags.fetch_or(Flags::SHUT, Ordering::SeqCst);
        }
        joined.core.own().attached.store(EndWords::YES, Ordering::SeqCst);
        if joined.core.is_between() {
            // The nodes carry the word to the other end.
            self.wake_other_end(context, joined, Wakeup { receiver: true, sender: false });
        }
        watches.iter_mut().for_each(|w| self.enter_watch(context.node(), joined, w));
    }

    /// Ends directions; to be followed by the kernel's `shutdown`.
    pub fn shutdown(&self, context: &Context, fd: BorrowedFd<'_>, how: Shutdown) {
        let ends = match how {
            Shutdown::Read => SHUT_READ,
            Shutdown::Write => SHUT_WRITE,
            Shutdown::Both => SHUT_READ | SHUT_WRITE,
        };
        self.shut.fetch_or(ends, Ordering::SeqCst);
        // Either an upgrade under way sees that, or it is seen here.
        fence(Ordering::SeqCst);
        let Some(joined) = self.upgraded.get() else { return };
        if how != Shutdown::Read {
            let wakeup = joined.core.end_sending(thread_id(), &Socket(fd));
            self.wake_other_end(context, joined, wakeup);
            // Another thread may wait for room, or a loop, and learns at once that there is none
            // any more.
            fence(Ordering::SeqCst);
            joined.core.outgoing().sender_sleep.wake_all();
            self.mark_own_watches(context.node(), Interest::WRITE);
            joined.flush_to_kernel_at_close(fd);
            self.pass_on(context, joined);
        }
        if how != Shutdown::Write {
            joined.core.incoming().receiver_flags.fetch_or(Flags::SHUT, Ordering::SeqCst);
            joined.core.incoming().receiver_sleep.wake_all();
            self.mark_own_watches(context.node(), Interest::READ);
        }
    }

    /// The last descriptor of this process goes; to be followed by the kernel's `close`, and by
    /// [`release`](Self::release) once no call of another thread, or below a signal handler, uses
    /// it any more.
    pub fn close(&self, context: &Context, fd: BorrowedFd<'_>, how: Close) {
        let stage = Stage::of(self.stage.swap(Stage::Closed as u8, Ordering::AcqRel));
        if self.generation.load(Ordering::Relaxed) != context.generation() {
            // It came into our parent between its count and the fork: the parent counts, we do not.
            return;
        }
        if let Some(entry) = self.entry.get().filter(|_| stage != Stage::Closed) {
            entry.remove();
        }
        self.learn_from_offer(context, stage);
        match stage {
            Stage::Offered => self.withdraw(context),
            // The node remembers it for any process that asks.
            Stage::Settled if self.reason.load(Ordering::Relaxed) == Bypass::Refused.to_byte() => {
                self.withdraw(context);
            }
            Stage::Matched => {
                if let Some(meeting) = self.matched.lock().and_then(|mut m| m.take()) {
                    refuse(&meeting);
                    context.node().release(&meeting.seat);
                }
            }
            Stage::Joined => {
                let Some(joined) = self.upgraded.get() else { return };
                let unread = joined.core.leaves_unread_in_kernel(&Socket(fd));
                let (how, wakeup) = joined.core.let_go(if unread { Close::Reset } else { how });
                self.wake_other_end(context, joined, wakeup);
                if how == Some(Close::Reset) {
                    // The kernel knows nothing of bytes unread in the ring.
                    vmmc_stream::reset_at_close(fd);
                }
                if how.is_some() {
                    joined.flush_to_kernel_at_close(fd);
                    self.unreleased.store(true, Ordering::Release);
                } else {
                    // The slot may serve another connection by now, which has another secret.
                    context.node().let_go(&joined.seat);
                }
            }
            _ => {}
        }
    }

    /// Wakes calls of other threads that sleep in a connection which was closed.
    pub fn wake_closed(&self) {
        if let Some(joined) = self.upgraded.get() {
            joined.core.incoming().receiver_sleep.wake_all();
            joined.core.outgoing().sender_sleep.wake_all();
        }
    }

    /// No call uses it any more: its slot may serve another connection.
    pub fn release(&self, context: &Context) {
        // In the child of a fork it is the parent's.
        let own = self.generation.load(Ordering::Relaxed) == context.generation();
        if self.unreleased.swap(false, Ordering::AcqRel) && own {
            if let Some(joined) = self.upgraded.get() {
                context.node().release(&joined.seat);
            }
        }
    }

    /// Whether the last descriptor of this process has gone, while a call goes on.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.stage() == Stage::Closed
    }

    /// Whether the node may inspect its socket by a copy, which keeps that open for a moment beyond
    /// the program's own descriptors.
    pub fn was_offered(&self) -> bool {
        self.offered_after.load(Ordering::Relaxed) != 0
    }

    fn withdraw(&self, context: &Context) {
        context.node().withdraw(self.offer.load(Ordering::Relaxed), self.cookie.load(Ordering::Relaxed));
    }

    /// Reports to the policy how much a connection that ends carried after its offer, by whatever
    /// medium.
    fn learn_from_offer(&self, context: &Context, stage: Stage) {
        let before = self.offered_after.load(Ordering::Relaxed);
        if before == 0 || !matches!(stage, Stage::Offered | Stage::Matched | Stage::Joined) {
            return;
        }
        let by_ring = self.upgraded.get().map_or(0, |joined| {
            let (out, into) = (joined.core.outgoing(), joined.core.incoming());
            out.tail.load(Ordering::Relaxed).wrapping_add(into.head.load(Ordering::Relaxed))
        });
        context.offers.ended(before, self.bytes.load(Ordering::Relaxed).wrapping_add(by_ring));
    }

    /// Keeps the connection in the kernel, or brings it back there: our direction at once if the
    /// peer has followed so far, else with the next send; the peer's when it comes by.
    pub fn pin_to_kernel(&self, context: &Context, fd: BorrowedFd<'_>, why: Bypass) {
        self.reason.store(why.to_byte(), Ordering::Relaxed);
        match self.stage() {
            Stage::Young => self.settle_with(why),
            Stage::Offered => {
                self.settle_with(why);
                self.withdraw(context);
            }
            Stage::Matched => {
                self.settle_with(why);
                if let Some(meeting) = self.matched.lock().and_then(|mut m| m.take()) {
                    refuse(&meeting);
                    context.node().release(&meeting.seat);
                }
            }
            Stage::Joined if why == Bypass::Leaked => self.hand_back(context, fd),
            Stage::Joined => self.leave(context, fd),
            Stage::Settled | Stage::Closed => {}
        }
    }

    fn leave(&self, context: &Context, fd: BorrowedFd<'_>) {
        let Some(joined) = self.upgraded.get() else { return };
        joined.core.ask_kernel.store(1, Ordering::Relaxed);
        joined.core.follow_hints(&Socket(fd));
        if joined.core.takes_no_more() || joined.core.reset().is_some() {
            // Nobody is there to follow.
            return;
        }
        joined.core.pinned.store(1, Ordering::SeqCst);
        joined.core.incoming().receiver_flags.fetch_or(Flags::WANTS_KERNEL, Ordering::SeqCst);
        joined.core.follow(thread_id(), &Socket(fd));
        let (_, wakeup) = joined.core.return_to_kernel(thread_id(), &Socket(fd));
        self.wake_other_end(context, joined, wakeup);
    }

    /// Whether nothing comes by the ring any more that the kernel does not report, after
    /// [`pin_to_kernel`](Self::pin_to_kernel): the ring is empty, and no send is under way that
    /// began before the peer could know.
    pub fn is_with_kernel(&self) -> bool {
        let Some(joined) = self.upgraded.get() else { return true };
        let into = joined.core.incoming();
        self.is_reported_by_kernel() && (!into.reads_ring() || into.available(joined.core.slot.most_bytes()) == 0)
    }

    /// Whether nothing more comes by the ring, after [`pin_to_kernel`](Self::pin_to_kernel): what
    /// the peer sends from now on the kernel reports. Bytes may lie in the ring still.
    pub fn is_reported_by_kernel(&self) -> bool {
        let Some(joined) = self.upgraded.get() else { return true };
        let into = joined.core.incoming();
        if into.receiver_flags.load(Ordering::SeqCst) & Flags::WANTS_KERNEL == 0 {
            return false;
        }
        fence(Ordering::SeqCst);
        let sends = into.sender_lock.load(Ordering::SeqCst) != 0;
        // A peer that could not be followed so far does not leave the ring either.
        !sends && into.phase() == Phase::Steady && into.reached() == into.announced().number
    }

    /// A number that changes when the other end does something by the ring, for a caller that no
    /// bell rings for.
    pub fn ring_changes(&self) -> u64 {
        let Some(joined) = self.upgraded.get() else { return 0 };
        let (into, out) = (joined.core.incoming(), joined.core.outgoing());
        let words = [&into.tail, &out.head].map(|word| word.load(Ordering::Acquire));
        let announced = into.announced();
        let epoch = [announced.number, u64::from(announced.pending)];
        let flags = [&into.sender_flags, &out.receiver_flags, &joined.core.own().hint];
        let flags = flags.map(|word| u64::from(word.load(Ordering::Acquire)));
        let mix = |sum: u64, word| sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(word).rotate_left(23);
        words.into_iter().chain(epoch).chain(flags).fold(1, mix)
    }

    /// A program that does not know of the ring will read and write the kernel's socket: what is in
    /// it goes back into the kernel, by the peer, and nobody uses it again. A peer that does not
    /// answer in time does so at its next call, or did when it left the ring by itself; one that
    /// has not followed into the ring gets its bytes by the kernel. A connection is reset if its
    /// peer has ended, stops in the middle of a change, or reads so little that the kernel takes no
    /// more.
    fn hand_back(&self, context: &Context, fd: BorrowedFd<'_>) {
        let Some(joined) = self.upgraded.get() else { return };
        let (core, me, kernel) = (&joined.core, thread_id(), Socket(fd));
        if core.is_between() {
            return self.hand_over_between(context, joined, fd);
        }
        if core.incoming().goes_back() {
            return;
        }
        core.pinned.store(1, Ordering::SeqCst);
        core.follow(me, &kernel);
        let Some(wakeup) = core.ask_back(me) else { return };
        self.wake_other_end(context, joined, wakeup);
        // Other threads at this end that sleep for the ring.
        core.incoming().receiver_sleep.wake_all();
        let deadline = Deadline::after(BACK_TIMEOUT);
        loop {
            let (way, wakeup) = core.hand_back(me, &kernel);
            self.wake_other_end(context, joined, wakeup);
            let over = deadline.left(Nanos::monotonic()).is_none();
            match way {
                WayBack::Found => return self.unmark(context, fd),
                WayBack::Promised if over => return self.unmark(context, fd),
                WayBack::Lost => return reset(fd),
                WayBack::Open if over => return reset(fd),
                WayBack::Promised | WayBack::Open => std::thread::sleep(BACK_PAUSE),
            }
        }
    }

    /// It was handed back. Without a node that can tell the next holder of the socket where it goes
    /// on, and count it among the holders of the end, that holder takes it for one of the kernel's.
    pub(super) fn unmark(&self, context: &Context, fd: BorrowedFd<'_>) {
        let Some(joined) = self.upgraded.get() else { return };
        if !(self.can_be_followed(context) && context.node_answers()) {
            unmark_upgraded(fd, joined.core.own().not_sent.load(Ordering::Relaxed));
        }
    }

    /// Whether another program can be told where it goes on, by the node that is there.
    pub fn can_be_followed(&self, context: &Context) -> bool {
        self.upgraded.get().is_some_and(|joined| context.node().knows(&joined.seat))
    }

    /// Descriptors of this socket went to another process: it may hold the connection from now on.
    pub fn passed(&self) {
        if let Some(joined) = self.upgraded.get() {
            joined.core.own().holders.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// This process is about to become another program (`exec`), which will not have this socket.
    /// If that fails, and this said true, say [`back_from_exec`](Self::back_from_exec).
    pub fn leave_at_exec(&self, context: &Context) -> bool {
        if self.generation.load(Ordering::Relaxed) != context.generation() || self.stage() == Stage::Closed {
            return false;
        }
        match (self.upgraded.get(), self.entry.get()) {
            (Some(joined), _) if joined.core.leave_to_others() => {
                context.node().let_go(&joined.seat);
                true
            }
            (None, Some(entry)) => {
                entry.remove();
                true
            }
            _ => false,
        }
    }

    /// The other program could not be started: this process goes on.
    pub fn back_from_exec(&self) {
        match (self.upgraded.get(), self.entry.get()) {
            (Some(_), _) => self.passed(),
            (None, Some(entry)) => entry.add(),
            _ => {}
        }
    }
}

impl Joined {
    /// What is returned to a call that does not get the lock of its end; None: it does now, for the
    /// call that had it has been abandoned.
    #[cold]
    pub(super) fn is_locked(&self, context: &Context, denied: Denied) -> Option<Errno> {
        match denied {
            Denied::Busy => Some(Errno::AGAIN),
            // Below a signal handler that interrupted a call here, which must end first.
            Denied::Mine if (context.settings().is_nested)() => Some(Errno::INTR),
            Denied::Mine => {
                self.core.free_abandoned(thread_id());
                None
            }
        }
    }

    /// Before the kernel's socket sends no more: bytes that the other end asked back. If the kernel
    /// does not take them, the other end gets a reset and not an end too early.
    fn flush_to_kernel_at_close(&self, fd: BorrowedFd<'_>) {
        let deadline = Deadline::after(BACK_AT_CLOSE);
        // Between nodes: the end was announced, and a request from here on comes with that known.
        fence(Ordering::SeqCst);
        while self.core.must_flush_to_kernel() && !self.core.flush_to_kernel(thread_id(), &Socket(fd)) {
            if deadline.left(Nanos::monotonic()).is_none() {
                return reset(fd);
            }
            let _ = wait_socket(fd, PollFlags::OUT, deadline);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::context::Settings;
    use crate::node::Seat;
    use std::io::Write;
    use std::os::fd::AsFd;
    use vmmc_stream::messages::{EndRef, Place};
    use vmmc_stream::{Shape, Slab, Slot};

    /// It gets this slot's first end.
    fn join(context: &Context, connection: &Connection, fd: &impl AsFd, slot: &Slot) {
        let end = EndRef { place: Place { slab: 1, slot: 0, end: 0 }, secret: 0 };
        let seat = Seat { end, session: Default::default() };
        connection.join(context, fd.as_fd(), Meeting { seat, slot: slot.clone(), peer: None });
    }

    fn lonely_context() -> Context {
        Context::new(Settings { node_name: "none-of-this-name".into(), ..Settings::from_env() })
    }

    fn slot() -> Slot {
        Slab::create(Shape { slots: 1, small_bytes: 4096, large_bytes: 4096 }).unwrap().slot(0).unwrap()
    }

    #[test]
    fn the_error_of_a_reset_is_left_to_a_socket_that_dissolves_its_connection() {
        let (context, slot, connection) = (lonely_context(), slot(), Connection::new(0));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let own = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        join(&context, &connection, &own, &slot);
        // This end sends by the ring, and the other one has not followed: it dies with bytes unread
        // in the kernel.
        slot.words().directions[0].enter_ring(1);
        (&own).write_all(b"unread").unwrap();
        drop(peer);
        connection.close(&context, own.as_fd(), Close::Reset);
        assert_eq!(own.take_error().unwrap().map(|e| e.kind()), Some(std::io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn what_was_ended_before_the_upgrade_is_ended_in_the_words() {
        let context = lonely_context();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for (how, flags) in [(Shutdown::Read, Flags::SHUT), (Shutdown::Write, Flags::ENDED)] {
            let (slot, connection) = (slot(), Connection::new(0));
            connection.shutdown(&context, socket.as_fd(), how);
            join(&context, &connection, &socket, &slot);
            assert_eq!(slot.words().directions[1].receiver_flags.load(Ordering::SeqCst), flags);
        }
    }
}
