//! What comes from the node and from notifying processes: completions, notifications, events.
//!
//! Invariant: one thread at a time. The events socket is read before the notification rings, so a
//! ring that was announced is looked at; a ring is never read by two.

use crate::core::{Core, count};
use crate::hub::Notifier;
use crate::imports::Broken;
use crate::limits::{COMPLETIONS_BEFORE_BELL, NOTIFICATIONS_A_TURN};
use crate::redirects::COOKIE_POSTING;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use vmmc_host::abi::{COOKIE_REDIRECT, COOKIE_SEND_FAILED, Completion, RawNotification};
use vmmc_host::area::PairRing;
use vmmc_host::channel::ChannelError;
use vmmc_host::control::{NodeEvent, decode};
use vmmc_host::ring::{Consumer, RegionWords};
use vmmc_host::{AttachArea, Channel};
use vmmc_nic::OpError;

/// The receiving ends of a session.
pub(crate) struct Collector {
    completions: Consumer<RegionWords>,
    /// Completions since the node was last woken for the room that they left.
    taken: usize,
    notifications: Consumer<RegionWords>,
    pairs: Vec<Pair>,
    events: Channel,
    /// The node's count of events at our last poll.
    events_seen: u64,
    /// The node's count of lost notifications at our last poll.
    lost_seen: u64,
}

/// The notification ring from one process of this node.
struct Pair {
    process: u32,
    from: Notifier,
    ring: PairRing,
    consumer: Consumer<RegionWords>,
    /// Its count of lost notifications at our last poll.
    lost_seen: u64,
    gone: bool,
}

impl Collector {
    pub(crate) fn new(area: &AttachArea, events: Channel) -> Collector {
        Collector {
            completions: area.completion_consumer(),
            taken: 0,
            notifications: area.notification_consumer(),
            pairs: Vec::new(),
            events,
            events_seen: 0,
            lost_seen: 0,
        }
    }

    /// Takes what is there, a turn's worth of each ring; says whether there was anything.
    pub(crate) fn pass(&mut self, core: &Core) -> bool {
        let mut any = false;
        if core.hot.area.events_sent().load(Ordering::Acquire) != self.events_seen {
            any |= self.read_events(core);
        }
        while let Some(completion) = Completion::pop(&mut self.completions) {
            any = true;
            complete(core, &completion);
            self.taken += 1;
        }
        if self.taken >= COMPLETIONS_BEFORE_BELL {
            self.taken = 0;
            core.ring_doorbell();
        }
        for _ in 0..NOTIFICATIONS_A_TURN {
            let Some(notification) = RawNotification::pop(&mut self.notifications) else { break };
            any = true;
            core.hub.deliver(Notifier::Node, notification);
        }
        for pair in &mut self.pairs {
            any |= pair.take_turn(core);
        }
        if any {
            self.after_arrivals(core);
        }
        any
    }

    /// What need not be checked while nothing comes.
    fn after_arrivals(&mut self, core: &Core) {
        let lost = core.hot.area.notifications_lost().load(Ordering::Relaxed);
        count(&core.counters.lost_in_rings, lost.wrapping_sub(self.lost_seen));
        self.lost_seen = lost;
        self.pairs.retain(|pair| !pair.gone || pair.consumer.is_ready());
    }

    /// Reads the events socket until nothing is there.
    pub(crate) fn read_events(&mut self, core: &Core) -> bool {
        self.events_seen = core.hot.area.events_sent().load(Ordering::Acquire);
        let mut any = false;
        loop {
            match self.events.try_receive() {
                Ok((bytes, fds)) => {
                    any = true;
                    if let Ok(event) = decode::<NodeEvent>(&bytes) {
                        self.handle(core, event, fds);
                    }
                }
                Err(ChannelError::WouldBlock) => return any,
                Err(ChannelError::TooLarge { .. }) => {}
                Err(_) => {
                    core.node_gone();
                    return any;
                }
            }
        }
    }

    fn handle(&mut self, core: &Core, event: NodeEvent, mut fds: Vec<OwnedFd>) {
        match event {
            NodeEvent::Pair { process, uid, same_user } => {
                if let Some(Ok(ring)) = fds.pop().map(PairRing::open) {
                    let from = Notifier::Process { uid, same_user };
                    self.pairs.push(Pair::new(process, from, ring));
                }
            }
            NodeEvent::PairGone { process } => {
                self.pairs.iter_mut().filter(|p| p.process == process).for_each(|p| p.gone = true);
            }
            NodeEvent::ImportBroken { import, status, args } => {
                core.imports.deliver(import, Broken::Ended(op_error(status, args)));
            }
            NodeEvent::Reclaim { pages, .. } => core.pins.reclaim(core, pages),
            NodeEvent::Stopping => core.node_gone(),
        }
    }
}

impl Pair {
    fn new(process: u32, from: Notifier, ring: PairRing) -> Pair {
        Pair { process, from, consumer: ring.consumer(), ring, lost_seen: 0, gone: false }
    }

    /// The oldest one. Whose ring it is, the node has said.
    fn pop(&mut self) -> Option<RawNotification> {
        let claim = RawNotification::pop(&mut self.consumer)?;
        Some(RawNotification { session: 0, process: self.process, ..claim })
    }

    fn take_turn(&mut self, core: &Core) -> bool {
        let mut any = false;
        for _ in 0..NOTIFICATIONS_A_TURN {
            let Some(notification) = self.pop() else { break };
            any = true;
            core.hub.deliver(self.from, notification);
        }
        if any {
            // Less than before: the ring of a notifier that has gone was emptied.
            let lost = self.ring.lost().load(Ordering::Relaxed).max(self.lost_seen);
            count(&core.counters.lost_in_rings, lost.wrapping_sub(self.lost_seen));
            self.lost_seen = lost;
        }
        any
    }
}

fn complete(core: &Core, completion: &Completion) {
    if completion.cookie & COOKIE_REDIRECT != 0 {
        return core.redirects.told(completion);
    }
    let failure = (completion.status != 0).then(|| op_error(completion.status, completion.args));
    if completion.cookie & COOKIE_SEND_FAILED != 0 {
        if let Some(error) = failure {
            core.imports.deliver(completion.value, Broken::Send(error));
        }
        return;
    }
    if completion.cookie & COOKIE_POSTING != 0 {
        return core.redirects.answered(completion);
    }
    let finished = core.slots.complete(completion, failure.map_or(Ok(completion.value), Err));
    // A payload that its token does not let in is no failure of its import.
    let failed = finished.failed.filter(|(_, error)| !matches!(error, OpError::TokenRefused { .. }));
    if let Some((import, error)) = failed {
        core.imports.deliver(import, Broken::Send(error));
    }
    core.release(finished.hold);
}

/// The engine's error behind a status; one that this release does not know counts as a broken
/// protocol.
fn op_error(status: u16, args: [u64; 3]) -> OpError {
    OpError::from_code(status, args).unwrap_or(OpError::Protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_cannot_notify_in_the_name_of_another() {
        let ring = PairRing::open(PairRing::create().unwrap().share().unwrap()).unwrap();
        let mut sender = ring.producer();
        let mut pair = Pair::new(5, Notifier::Process { uid: 7, same_user: true }, ring);
        let claim = RawNotification { export: 1, word: 2, import: 3, ..RawNotification::default() };
        assert!(RawNotification { session: 8, process: 9, ..claim }.push(&mut sender));
        assert_eq!(pair.pop(), Some(RawNotification { session: 0, process: 5, ..claim }));
    }
}
