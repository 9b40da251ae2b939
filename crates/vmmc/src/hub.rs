//! Where notifications queue in the process until somebody takes them.
//!
//! Invariant: a notification is in at most one queue, taken at most once, and every one that came
//! is counted as taken, queued, lost or stale; those of one sender stay in order. A process that
//! writes into its ring what its import would not let it say is not believed. Source: [NT §3.1]
//! notifications can be blocked and unblocked, for all buffers and for one.

use crate::limits::{NOTIFICATIONS_EARLY_MAX, NOTIFICATIONS_MAX, NOTIFICATIONS_PER_EXPORT_MAX};
use crate::notification::Notification;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use vmmc_host::abi::RawNotification;
use vmmc_host::control::Access;
use vmmc_nic::{ExportId, ImportId, ProcessId, Sender};

/// Who takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    /// Anybody: the oldest one of any export that has no handler of its own.
    Any,
    /// The oldest one of this export.
    Export(u64),
}

/// Who says that data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notifier {
    /// The node, which has checked it.
    Node,
    /// A process of this node, by its own word. The node vouches for its user.
    Process { uid: u32, same_user: bool },
}

/// What an export allows, to know a notification that nobody could have caused by sending to it.
#[derive(Clone, Debug)]
pub(crate) struct Allows {
    pub(crate) len: u64,
    /// Whether importers may notify at all: by a mapping for writing.
    pub(crate) notify: bool,
    pub(crate) access: Access,
}

impl Allows {
    fn admits(&self, from: Notifier, notification: &RawNotification) -> bool {
        let Notifier::Process { uid, same_user } = from else { return true };
        let user = match &self.access {
            Access::SameUser => same_user,
            Access::Anyone => true,
            Access::Users(users) => users.contains(&uid),
        };
        let in_bounds = notification.offset.checked_add(notification.len).is_some_and(|end| end <= self.len);
        user && self.notify && in_bounds
    }
}

/// The queues.
#[derive(Default)]
pub(crate) struct Hub(Mutex<State>);

#[derive(Default)]
struct State {
    exports: HashMap<u64, Queue>,
    /// Order of arrival of all queued ones, over exports.
    order: BTreeMap<u64, u64>,
    arrivals: u64,
    blocked: bool,
    /// For exports that we do not know yet.
    early: VecDeque<(Notifier, RawNotification)>,
    /// Readable while something may be queued that [`Taker::Any`] may have, once an event loop has
    /// asked for it.
    event: Option<OwnedFd>,
    /// Whether it is readable.
    signalled: bool,
    counts: Counts,
}

struct Queue {
    allows: Allows,
    waiting: VecDeque<(u64, RawNotification)>,
    blocked: bool,
    /// Handlers that take this export's notifications and no others.
    handlers: usize,
    /// Of the one who watches it: readable from an arrival on, until he reads it.
    event: Option<Arc<OwnedFd>>,
}

/// What became of notifications.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) received: u64,
    pub(crate) taken: u64,
    pub(crate) lost: u64,
    pub(crate) stale: u64,
}

impl Hub {
    /// An export begins; takes what came for it before we knew it.
    pub(crate) fn open(&self, export: u64, allows: Allows) {
        let mut state = self.lock();
        let queue = Queue { allows, waiting: VecDeque::new(), blocked: false, handlers: 0, event: None };
        state.exports.insert(export, queue);
        let (mine, others) = std::mem::take(&mut state.early).into_iter().partition(|(_, n)| n.export == export);
        state.early = others;
        let mine: VecDeque<(Notifier, RawNotification)> = mine;
        mine.into_iter().for_each(|(from, n)| state.enqueue(from, n));
    }

    /// An export has ended; what is queued for it is gone.
    pub(crate) fn close(&self, export: u64) {
        let mut state = self.lock();
        let Some(queue) = state.exports.remove(&export) else { return };
        state.counts.stale += queue.waiting.len() as u64;
        queue.waiting.iter().for_each(|(arrival, _)| {
            state.order.remove(arrival);
        });
        if state.order.is_empty() {
            state.clear_event();
        }
    }

    /// A notification came.
    pub(crate) fn deliver(&self, from: Notifier, notification: RawNotification) {
        let mut state = self.lock();
        state.counts.received += 1;
        if state.exports.contains_key(&notification.export) {
            return state.enqueue(from, notification);
        }
        if state.early.len() == NOTIFICATIONS_EARLY_MAX {
            state.early.pop_front();
            state.counts.stale += 1;
        }
        state.early.push_back((from, notification));
    }

    /// The oldest notification that this taker may have.
    pub(crate) fn take(&self, taker: Taker) -> Option<Notification> {
        let mut state = self.lock();
        let taken = state.take(taker);
        // What is left for handlers, or blocked, wakes no loop again and again.
        if state.order.is_empty() || (taken.is_none() && taker == Taker::Any) {
            state.clear_event();
        }
        taken
    }

    /// Whether there is one that this taker may have.
    pub(crate) fn has(&self, taker: Taker) -> bool {
        self.lock().first_for(taker).is_some()
    }

    /// Blocks or unblocks all, or one export.
    pub(crate) fn block(&self, taker: Taker, blocked: bool) {
        let mut state = self.lock();
        match taker {
            Taker::Any => state.blocked = blocked,
            Taker::Export(export) => {
                if let Some(queue) = state.exports.get_mut(&export) {
                    queue.blocked = blocked;
                }
            }
        }
        state.signal_if_queued();
    }

    /// A handler of one export begins or ends.
    pub(crate) fn handler(&self, taker: Taker, begins: bool) {
        let Taker::Export(export) = taker else { return };
        let mut state = self.lock();
        if let Some(queue) = state.exports.get_mut(&export) {
            queue.handlers = if begins { queue.handlers + 1 } else { queue.handlers.saturating_sub(1) };
        }
        state.signal_if_queued();
    }

    /// From now on, `event` is readable while something may be queued that [`Taker::Any`] may have.
    pub(crate) fn set_event(&self, event: OwnedFd) {
        let mut state = self.lock();
        (state.event, state.signalled) = (Some(event), false);
        state.signal_if_queued();
    }

    /// From now on `event` is readable when something has come for this export, whose notifications
    /// are for the one who reads it alone.
    pub(crate) fn watch(&self, export: u64, event: Arc<OwnedFd>) {
        let mut state = self.lock();
        let Some(queue) = state.exports.get_mut(&export) else { return };
        queue.handlers += 1;
        queue.event = Some(event);
        queue.signal();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while the lock is held")
    }
}

impl Queue {
    /// Tells the one who watches it, if something waits.
    fn signal(&self) {
        if let (false, Some(event)) = (self.waiting.is_empty(), &self.event) {
            // It fails for a counter that is full, which is readable.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}

impl State {
    fn take(&mut self, taker: Taker) -> Option<Notification> {
        let export = self.first_for(taker)?;
        let (arrival, raw) = self.exports.get_mut(&export)?.waiting.pop_front()?;
        self.order.remove(&arrival);
        self.counts.taken += 1;
        let (session, process) = (raw.session, ProcessId(raw.process));
        Some(Notification {
            export: ExportId::from_u64(raw.export),
            offset: raw.offset,
            len: raw.len,
            last_word: raw.last_word,
            word: raw.word,
            from: Sender { session, process, import: ImportId::from_u64(raw.import) },
        })
    }

    /// The export with the oldest notification that this taker may have.
    fn first_for(&self, taker: Taker) -> Option<u64> {
        let open = |export: &u64| self.exports.get(export).filter(|queue| !queue.blocked);
        let export = match taker {
            _ if self.blocked => return None,
            Taker::Export(export) => Some(export),
            Taker::Any => {
                self.order.values().find(|export| open(export).is_some_and(|queue| queue.handlers == 0)).copied()
            }
        };
        export.filter(|export| open(export).is_some_and(|queue| !queue.waiting.is_empty()))
    }

    fn enqueue(&mut self, from: Notifier, notification: RawNotification) {
        let full = self.order.len() >= NOTIFICATIONS_MAX;
        let Some(queue) = self.exports.get_mut(&notification.export) else { return };
        if !queue.allows.admits(from, &notification) {
            self.counts.stale += 1;
            return;
        }
        if full || queue.waiting.len() >= NOTIFICATIONS_PER_EXPORT_MAX {
            self.counts.lost += 1;
            return;
        }
        self.arrivals += 1;
        queue.waiting.push_back((self.arrivals, notification));
        queue.signal();
        let watched = queue.event.is_some();
        self.order.insert(self.arrivals, notification.export);
        if !watched {
            self.signal();
        }
    }

    fn signal(&mut self) {
        if let (false, Some(event)) = (self.signalled, &self.event) {
            self.signalled = rustix::io::write(event, &1u64.to_ne_bytes()).is_ok();
        }
    }

    fn signal_if_queued(&mut self) {
        if !self.order.is_empty() {
            self.signal();
        }
    }

    fn clear_event(&mut self) {
        if let (true, Some(event)) = (self.signalled, &self.event) {
            self.signalled = rustix::io::read(event, &mut [0u8; 8]).is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(export: u64, offset: u64) -> RawNotification {
        RawNotification { export, offset, len: 8, ..RawNotification::default() }
    }

    fn anybody() -> Allows {
        Allows { len: 1 << 20, notify: true, access: Access::Anyone }
    }

    #[test]
    fn what_a_process_could_not_have_caused_is_not_believed() {
        let hub = Hub::default();
        let (kin, stranger) =
            (Notifier::Process { uid: 7, same_user: true }, Notifier::Process { uid: 8, same_user: false });
        let allows = |access, notify| Allows { len: 100, notify, access };
        hub.open(1, allows(Access::SameUser, true));
        hub.open(2, allows(Access::Users(vec![8]), true));
        hub.open(3, allows(Access::Anyone, false));
        let cases = [
            (kin, note(1, 92), true),
            (stranger, note(1, 0), false),
            (stranger, note(2, 0), true),
            (kin, note(2, 0), false),
            (kin, note(3, 0), false),
            (kin, note(1, 93), false),
            (kin, note(1, u64::MAX), false),
            (Notifier::Node, note(1, 0), true),
        ];
        let mut refused = 0;
        for (from, notification, believed) in cases {
            hub.deliver(from, notification);
            assert_eq!(hub.take(Taker::Any).is_some(), believed, "{from:?}: {notification:?}");
            refused += u64::from(!believed);
        }
        // Nor is one that came before its export was known.
        hub.deliver(stranger, note(4, 0));
        hub.open(4, allows(Access::SameUser, true));
        assert!(hub.take(Taker::Any).is_none());
        assert_eq!(hub.counts().stale, refused + 1);
    }

    #[test]
    fn notifications_of_any_export_come_in_order_of_arrival() {
        let hub = Hub::default();
        hub.open(1, anybody());
        hub.open(2, anybody());
        [(1, 10), (2, 20), (1, 11)].into_iter().for_each(|(e, o)| hub.deliver(Notifier::Node, note(e, o)));
        assert_eq!(hub.take(Taker::Export(2)).unwrap().offset, 20);
        assert_eq!(hub.take(Taker::Any).unwrap().offset, 10);
        assert_eq!(hub.take(Taker::Any).unwrap().offset, 11);
        assert!(hub.take(Taker::Any).is_none());
        assert_eq!((hub.counts().received, hub.counts().taken), (3, 3));
    }

    #[test]
    fn blocked_ones_queue_and_come_after_unblocking() {
        let hub = Hub::default();
        hub.open(1, anybody());
        hub.open(2, anybody());
        hub.block(Taker::Export(1), true);
        [(1, 10), (2, 20)].into_iter().for_each(|(e, o)| hub.deliver(Notifier::Node, note(e, o)));
        assert_eq!(hub.take(Taker::Any).unwrap().offset, 20);
        assert!(hub.take(Taker::Any).is_none() && hub.take(Taker::Export(1)).is_none());
        hub.block(Taker::Export(1), false);
        hub.block(Taker::Any, true);
        assert!(hub.take(Taker::Export(1)).is_none());
        hub.block(Taker::Any, false);
        assert_eq!(hub.take(Taker::Any).unwrap().offset, 10);
    }

    #[test]
    fn a_loop_is_woken_for_what_it_may_have_and_for_nothing_else() {
        use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
        let hub = Hub::default();
        hub.open(1, anybody());
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        hub.set_event(event.try_clone().unwrap());
        let readable = || {
            let timeout = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&timeout)).unwrap() > 0
        };
        let come = || hub.deliver(Notifier::Node, note(1, 10));
        come();
        assert!(readable() && hub.take(Taker::Any).is_some() && !readable());
        for taker in [Taker::Export(1), Taker::Any] {
            hub.block(taker, true);
            come();
            assert!(hub.take(Taker::Any).is_none() && !readable(), "{taker}: it would spin until all is unblocked");
            hub.block(taker, false);
            assert!(readable() && hub.take(Taker::Any).is_some() && !readable(), "{taker}");
        }
        hub.handler(Taker::Export(1), true);
        come();
        assert!(hub.take(Taker::Any).is_none() && !readable(), "it would spin until the handler is done");
        // What the handler has left.
        hub.handler(Taker::Export(1), false);
        assert!(readable() && hub.take(Taker::Any).is_some() && !readable());
        come();
        hub.close(1);
        assert!(!readable());
    }

    #[test]
    fn whoever_watches_an_export_is_woken_for_it_alone() {
        use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
        let hub = Hub::default();
        let make = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let (all, watched) = (make(), make());
        let readable = |event: &OwnedFd| {
            let timeout = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&timeout)).unwrap() > 0
        };
        hub.open(1, anybody());
        hub.open(2, anybody());
        hub.deliver(Notifier::Node, note(1, 10));
        hub.watch(1, watched.clone());
        assert!(readable(&watched), "one has come before");
        rustix::io::read(&watched, &mut [0; 8]).unwrap();
        assert!(hub.take(Taker::Any).is_none() && hub.take(Taker::Export(1)).is_some());
        hub.set_event(all.try_clone().unwrap());
        hub.deliver(Notifier::Node, note(2, 20));
        assert!(readable(&all) && !readable(&watched));
        assert!(hub.take(Taker::Any).is_some() && !readable(&all));
        hub.deliver(Notifier::Node, note(1, 30));
        assert!(readable(&watched) && !readable(&all));
        assert!(hub.take(Taker::Any).is_none() && readable(&watched), "another loop takes nothing of it");
        assert_eq!(hub.take(Taker::Export(1)).unwrap().offset, 30);
    }

    #[test]
    fn an_export_with_a_handler_is_left_to_it() {
        let hub = Hub::default();
        hub.open(1, anybody());
        hub.handler(Taker::Export(1), true);
        hub.deliver(Notifier::Node, note(1, 10));
        assert!(hub.take(Taker::Any).is_none());
        assert!(hub.take(Taker::Export(1)).is_some());
    }

    #[test]
    fn overflow_is_counted_and_harms_one_export_only() {
        let hub = Hub::default();
        hub.open(1, anybody());
        hub.open(2, anybody());
        (0..NOTIFICATIONS_PER_EXPORT_MAX as u64 + 5).for_each(|i| hub.deliver(Notifier::Node, note(1, i)));
        hub.deliver(Notifier::Node, note(2, 0));
        assert_eq!(hub.counts().lost, 5);
        assert!(hub.take(Taker::Export(2)).is_some());
        assert_eq!(hub.take(Taker::Any).unwrap().offset, 0, "the oldest are kept");
    }

    #[test]
    fn one_that_comes_before_its_export_is_known_waits_for_it() {
        let hub = Hub::default();
        hub.deliver(Notifier::Node, note(9, 1));
        hub.deliver(Notifier::Node, note(8, 2));
        hub.open(9, anybody());
        assert_eq!(hub.take(Taker::Any).unwrap().offset, 1);
        assert!(hub.take(Taker::Any).is_none());
        (0..NOTIFICATIONS_EARLY_MAX as u64).for_each(|i| hub.deliver(Notifier::Node, note(7, i)));
        assert_eq!(hub.counts().stale, 1, "the one for 8");
    }
}
