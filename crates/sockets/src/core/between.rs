//! Connections whose other end is on another node: the slot is a replica, which the nodes keep like
//! the other one.
//!
//! Updates of the other end come by the engine, bytes of the kernel by TCP, and either may be
//! first. So the end of the kernel's stream counts only when the other node has answered that all
//! that went by the ring is here, and when the other replica is out of reach the connection ends as
//! a reset one does.
//!
//! A receiving end that sleeps in the kernel cannot be woken by updates. So a direction moves into
//! the ring only after its sending end has requested that (`soon`) and the receiving one has
//! answered (`ready`): from then on that one polls the kernel, and sleeps shortly.
//!
//! Rings between nodes are for short messages that answer each other, which is what they are faster
//! for than TCP. Whether they are is measured (`pace.rs`), for what a node's work costs depends on
//! how many cores there are, and on who else wants them.
//!
//! Invariant: nothing here is asked of connections within a node. Source: docs/sockets.md; the
//! measurements are in docs/measured.md.

use super::back::WayBack;
use super::choice::Choice;
use super::pace::Pace;
use super::{Kernel, Receiving, Sending, Upgraded};
use crate::limits::BETWEEN_ASK_AGAIN_NS;
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use vmmc_stream::{End, Phase};

/// The end that measures which medium is faster; the other one follows it. Each by itself would
/// measure what the other one does.
const JUDGE: usize = 0;

/// What this process remembers of such a connection.
#[derive(Debug, Default)]
pub(super) struct Between {
    /// Which medium suits the direction to the peer.
    pace: Pace,
    /// The other node should be sent a change that was followed.
    update_due: AtomicU32,
    /// The other node should be asked whether all is here.
    question: AtomicU32,
    /// When it was asked last; 0: never.
    asked_ns: AtomicU64,
    /// Our own node is gone.
    lost: AtomicU32,
}

impl Upgraded {
    /// Whether the other end is on another node.
    #[inline]
    pub(crate) fn is_between(&self) -> bool {
        self.between.is_some()
    }

    /// Whether what goes to the other end does not arrive any more, or the other way round. As long
    /// as both directions are the kernel's it does not matter.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.is_cut_off() && !self.is_with_kernel() || self.is_torn()
    }

    /// Whether bytes that were asked back cannot be had.
    fn is_torn(&self) -> bool {
        self.between.is_some() && self.incoming().goes_back() && self.way_back() == WayBack::Lost
    }

    /// Whether nothing comes from the other replica any more.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.between.as_ref().is_some_and(|between| {
            between.lost.load(Ordering::Relaxed) != 0 || self.slot.words().broken.load(Ordering::Acquire) != 0
        })
    }

    /// Whether both directions are in the kernel, and neither end can have left it without our
    /// knowledge. A direction that goes back is there: what is in its ring its sending end has, and
    /// can put into the kernel without the nodes.
    pub(crate) fn is_with_kernel(&self) -> bool {
        let (out, into) = (self.outgoing(), self.incoming());
        let (announced, incoming) = (out.announced(), into.announced());
        let sends = !announced.in_ring() && !announced.pending && out.reached() == announced.number;
        // What the next receive finds out counts, too.
        let drained = into.available(self.slot.most_bytes()) == 0;
        let follows = matches!(into.phase(), Phase::EndsAt(_)) && into.reads_ring() && drained;
        let stays = !into.reads_ring() && !incoming.pending && into.reached() == incoming.number;
        let over = self.other().soon.load(Ordering::Acquire) == 0 && drained;
        let unwanted = over || self.own().ready.load(Ordering::Acquire) == 0;
        let receives = if into.goes_back() { !self.awaits_way_back() } else { (stays || follows) && unwanted };
        (sends || out.goes_back()) && receives
    }

    /// Whether both directions are in the kernel and nobody here wants them elsewhere: then it does
    /// not matter how the nodes are. A few loads.
    #[inline]
    pub(crate) fn rests_in_kernel(&self) -> bool {
        let ring = self.outgoing().announced().in_ring() || self.incoming().reads_ring();
        !ring && self.prefers_kernel() && self.own().ready.load(Ordering::Relaxed) == 0
    }

    /// Whether the receiving end waits for this direction in the ring too.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        self.between.is_none() || {
            let soon = self.own().soon.load(Ordering::Relaxed);
            soon != 0 && self.other().ready.load(Ordering::Acquire) == soon && !self.is_cut_off()
        }
    }

    /// Withdraws the request for the ring: before this direction goes back to the kernel, or when
    /// it does not leave it after all. The caller has the lock.
    pub(super) fn withdraw_ring_request(&self) {
        if self.between.is_some() && self.own().soon.load(Ordering::Relaxed) != 0 {
            self.own().soon.store(0, Ordering::SeqCst);
            self.followed();
        }
    }

    /// A receive in the kernel, by a call that only bytes end. False: the ring may be next, so
    /// nobody may be in the kernel for longer than a poll. The caller has the lock.
    pub(super) fn begin_kernel_receive(&self) -> bool {
        let Some(between) = &self.between else { return false };
        let (into, own) = (self.incoming(), self.own());
        // An end that has asked for the kernel does not wait for the ring.
        let soon = if into.goes_back() { 0 } else { self.other().soon.load(Ordering::Acquire) };
        if into.phase() != Phase::Steady || self.is_broken() || self.has_unreported_reset() || self.expects_copies() {
            return false;
        }
        if soon == 0 || self.is_cut_off() {
            own.ready.store(0, Ordering::SeqCst);
        } else if own.ready.load(Ordering::Relaxed) == soon {
            return false;
        } else if !between.pace.is_slow_responder() && into.kernel_receives.load(Ordering::SeqCst) == 0 {
            own.ready.store(soon, Ordering::SeqCst);
            self.followed();
            return false;
        }
        into.kernel_receives.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.goes_by_ring_soon() {
            // What goes by the ring may be asked back, and nobody is woken in the kernel for that.
            into.kernel_receives.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Whether what this end sends goes by the ring, or is to: a receive in the kernel that only
    /// bytes end would keep it from there.
    pub(crate) fn goes_by_ring_soon(&self) -> bool {
        self.outgoing().announced().in_ring() || self.own().soon.load(Ordering::SeqCst) != 0 && !self.is_cut_off()
    }

    /// Whether a call of this end is in the kernel where nobody wakes it, so that what goes by the
    /// ring could not be asked back. Certain once the ring is announced.
    pub(super) fn is_deaf(&self) -> bool {
        self.between.is_some() && self.incoming().kernel_receives.load(Ordering::SeqCst) > 0
    }

    /// The other end has withdrawn its request for the ring, and the kernel is read: nobody has to
    /// poll for the ring. Clears the answer.
    pub(crate) fn clear_ring_answer(&self) {
        let into = self.incoming();
        let over = self.other().soon.load(Ordering::Acquire) == 0;
        // Not as it seems to an end that has asked for the kernel.
        let announced = into.announced();
        let steady = !announced.in_ring() && !announced.pending && into.reached() == announced.number;
        if over && steady {
            self.own().ready.store(0, Ordering::SeqCst);
        }
    }

    /// Ends what [`begin_kernel_receive`](Self::begin_kernel_receive) began.
    pub(crate) fn end_kernel_receive(&self, now_ns: impl FnOnce() -> u64) {
        self.end_resting_receive();
        self.note_receive(now_ns);
    }

    /// Whether a receive in the kernel must poll for announcements all the time.
    pub(crate) fn is_ready_for_ring(&self) -> bool {
        self.between.is_some() && self.own().ready.load(Ordering::Relaxed) != 0
    }

    /// Sending end: makes the caller's kernel call one that nobody has to think about, if both
    /// directions rest in the kernel; it is counted then. A connection that stays with the kernel
    /// should pay for nothing else: beside TCP's own call these few words are all that is touched.
    ///
    /// Without the lock: a change into the ring needs a request, which is made under the lock and
    /// before anybody reads the count. So either the request is seen here, or the count there. No
    /// receive of ours is in the ring, for that needs an answer to the other end's request.
    #[inline]
    pub(crate) fn rest_sending(&self) -> bool {
        let left = self.resting.load(Ordering::Relaxed);
        if left == 0 {
            return false;
        }
        if self.end == JUDGE && self.between.as_ref().is_some_and(|between| between.pace.has_news()) {
            self.resting.store(0, Ordering::Relaxed);
            return false;
        }
        let (out, own) = (self.outgoing(), self.own());
        out.kernel_sends.fetch_add(1, Ordering::SeqCst);
        let announced = out.announced();
        let requested = own.soon.load(Ordering::SeqCst) != 0 || own.ready.load(Ordering::SeqCst) != 0;
        if requested || announced.in_ring() || announced.pending {
            self.end_kernel_send();
            self.resting.store(0, Ordering::Relaxed);
            return false;
        }
        self.resting.store(left - 1, Ordering::Relaxed);
        true
    }

    /// Receiving end: the same. The answer to a request is given under the lock, only when no
    /// receive is counted, and names the request: an answer to one that has been withdrawn in the
    /// meantime moves nobody.
    #[inline]
    pub(crate) fn rest_receiving(&self) -> bool {
        if self.resting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let into = self.incoming();
        into.kernel_receives.fetch_add(1, Ordering::SeqCst);
        // Our own request, too: what goes by the ring may be asked back, and nobody is woken in the
        // kernel for that.
        let requests = [&self.other().soon, &self.own().ready, &self.own().soon];
        let requested = requests.into_iter().any(|request| request.load(Ordering::SeqCst) != 0);
        if requested || into.phase() != Phase::Steady || self.has_unreported_reset() || self.expects_copies() {
            self.end_resting_receive();
            self.resting.store(0, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Ends what [`rest_receiving`](Self::rest_receiving) began.
    #[inline]
    pub(crate) fn end_resting_receive(&self) {
        self.incoming().kernel_receives.fetch_sub(1, Ordering::SeqCst);
    }

    /// For the simulation: so many sends rest, if nobody requests the ring.
    pub(super) fn rest(&self, sends: u32) {
        self.resting.store(sends, Ordering::Relaxed);
    }

    /// Before anything is sent: which medium is better is found out together with others.
    pub(crate) fn share_choice(&mut self, choice: Arc<Choice>) {
        if let Some(between) = &mut self.between {
            between.pace = Pace::new(choice);
        }
    }

    /// Short sends go by the ring whether it pays or not.
    pub(crate) fn always_by_ring(&self) {
        if let Some(between) = &self.between {
            between.pace.always_by_ring();
        }
    }

    /// For the simulation: what measurements would lead to.
    pub(super) fn prefer_kernel(&self, kernel: bool) {
        if let Some(between) = &self.between {
            between.pace.decide(kernel);
        }
    }

    /// Our own node is gone.
    pub(crate) fn lose_node(&self) {
        if let Some(between) = &self.between {
            between.lost.store(1, Ordering::Relaxed);
        }
    }

    /// Notes that bytes came.
    #[inline]
    pub(super) fn note_receive(&self, now_ns: impl FnOnce() -> u64) {
        if let Some(between) = &self.between {
            between.pace.note_receive(now_ns);
        }
    }

    /// The receiving side has reached the next epoch, which the sending side waits to learn.
    #[inline]
    pub(super) fn followed(&self) {
        if let Some(between) = &self.between {
            between.update_due.store(1, Ordering::Relaxed);
        }
    }

    /// Whether the other node is to be sent an update that no byte or wake-up brings about; true
    /// once.
    #[inline]
    pub(crate) fn takes_update(&self) -> bool {
        self.between
            .as_ref()
            .is_some_and(|b| b.update_due.load(Ordering::Relaxed) != 0 && b.update_due.swap(0, Ordering::Relaxed) != 0)
    }

    /// Whether the other node is to be asked if all is here; true once.
    #[inline]
    pub(crate) fn takes_question(&self) -> bool {
        self.between
            .as_ref()
            .is_some_and(|b| b.question.load(Ordering::Relaxed) != 0 && b.question.swap(0, Ordering::Relaxed) != 0)
    }

    /// Whether an end that only the kernel reports waits for the other node's answer.
    pub(crate) fn waits_for_the_rest(&self) -> bool {
        self.between.as_ref().is_some_and(|b| b.asked_ns.load(Ordering::Relaxed) != 0) && !self.is_complete()
    }

    /// Whether nothing that the other end sent by the ring is under way: the other node has
    /// answered so, or is out of reach and neither direction had left the kernel.
    fn is_complete(&self) -> bool {
        self.slot.words().complete.load(Ordering::Acquire) != 0 || self.is_cut_off() && self.is_with_kernel()
    }

    /// The kernel reports that the other end has ended: whether all that it sent by the ring is
    /// here. If that is unknown, the other node will be asked.
    pub(super) fn is_all_here(&self, kernel: &impl Kernel) -> bool {
        let Some(between) = &self.between else { return true };
        let all = self.is_complete();
        if !all {
            let (now, asked) = (kernel.now_ns(), between.asked_ns.load(Ordering::Relaxed));
            if asked == 0 || now.saturating_sub(asked) >= BETWEEN_ASK_AGAIN_NS {
                between.asked_ns.store(now.max(1), Ordering::Relaxed);
                between.question.store(1, Ordering::Relaxed);
            }
        }
        all
    }

    /// The result of a receive when nothing is there: none, unless nothing can come.
    #[inline]
    pub(super) fn nothing_came(&self) -> Option<Receiving> {
        if !self.is_broken() {
            return None;
        }
        let first = self.reset_reported.swap(1, Ordering::Relaxed) == 0;
        Some(if first { Receiving::Failed(Errno::CONNRESET) } else { Receiving::Done(0) })
    }

    /// The same while it is unknown where the bytes are that were asked back: unless nobody will
    /// ever know.
    #[cold]
    pub(super) fn no_way_back_yet(&self, kernel: &impl Kernel) -> Receiving {
        if let Some(broken) = self.nothing_came() {
            return broken;
        }
        let over = match kernel.peek() {
            End::Reset(_) => true,
            End::Ended => self.is_all_here(kernel) && self.awaits_way_back(),
            End::Open | End::Bytes => false,
        };
        match over {
            true if self.reset_reported.swap(1, Ordering::Relaxed) == 0 => Receiving::Failed(Errno::CONNRESET),
            true => Receiving::Done(0),
            false => Receiving::Empty,
        }
    }

    /// Before a send: decides which medium this direction belongs into; returns why it cannot send
    /// at all.
    #[cold]
    pub(super) fn pace(&self, kernel: &impl Kernel, from: &[IoSlice<'_>]) -> Option<Sending> {
        if self.is_broken() {
            let first = self.reset_reported.swap(1, Ordering::Relaxed) == 0;
            return Some(Sending::Failed(if first { Errno::CONNRESET } else { Errno::PIPE }));
        }
        let bytes = from.iter().map(|s| s.len() as u64).sum();
        let between = self.between.as_ref()?;
        let in_ring = self.outgoing().announced().in_ring();
        let followed = (self.end != JUDGE).then(|| self.incoming().announced().in_ring());
        between.pace.saw_send(kernel, bytes, in_ring, followed);
        if !in_ring {
            let requested = self.own().soon.load(Ordering::Relaxed) != 0;
            match between.pace.prefers_kernel() || self.is_cut_off() {
                true if requested => self.withdraw_ring_request(),
                false if !requested => {
                    let request = self.own().ring_requests.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
                    self.own().soon.store(request, Ordering::SeqCst);
                    self.followed();
                }
                _ => {}
            }
            if self.own().soon.load(Ordering::Relaxed) == 0 && self.own().ready.load(Ordering::Relaxed) == 0 {
                self.resting.store(between.pace.rest(self.end == JUDGE), Ordering::Relaxed);
            }
        }
        None
    }

    /// Whether the direction to the peer belongs into the kernel for what it carries.
    #[inline]
    pub(super) fn prefers_kernel(&self) -> bool {
        self.between.as_ref().is_some_and(|b| b.pace.prefers_kernel())
    }

    /// The ring to the peer is full: if that is on another node, the direction belongs into the
    /// kernel.
    pub(super) fn is_crowded(&self) -> bool {
        self.between.as_ref().inspect(|b| b.pace.crowd()).is_some()
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
