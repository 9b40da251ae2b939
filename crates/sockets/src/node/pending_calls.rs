//! Calls to the node that are sent whichever thread has the lock of its connection.
//!
//! A release that gets lost keeps a slot for as long as this process lives, and a ring that gets
//! lost lets a peer sleep. The thread that makes such a call may find the lock taken by a thread
//! that has no processor, or be a signal handler above that very thread. So it leaves the call
//! here, and the thread that has the lock sends it before it releases the lock.
//!
//! Invariant: a call that is here is sent by the thread that has the lock, or by the one that left
//! it; or it stays until the lock is taken next, when the node's socket is full. Calls are sent in
//! the order in which they came.

use super::{Link, Node, Session};
use crate::limits::{LOCK_TRIES, PENDING_CALLS_MAX};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use vmmc_stream::messages::SocketCall;
use vmmc_stream::{Section, SectionLock};

/// The messages.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    /// The second one is for a signal handler that interrupted a section of the first.
    queues: [SectionLock<VecDeque<Message>>; 2],
    count: AtomicUsize,
}

#[derive(Debug)]
struct Message {
    /// The node that it is for; none: whichever is there.
    session: Option<Arc<Session>>,
    call: SocketCall,
}

/// The lock of the connection to the node.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    node: &'a Node,
    /// None only while it is dropped.
    link: Option<Section<'a, Link>>,
}

impl PendingCalls {
    /// Without effect when too many are here.
    fn push(&self, message: Message) {
        let Some(mut queue) = self.free_queue() else { return };
        if queue.len() < PENDING_CALLS_MAX {
            queue.push_back(message);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn pop(&self) -> Option<Message> {
        let message = self.queues.iter().find_map(|queue| queue.lock()?.pop_front())?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(message)
    }

    fn push_back_in_front(&self, message: Message) {
        let Some(mut queue) = self.free_queue() else { return };
        queue.push_front(message);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// One that this very thread is not in, below a signal handler.
    fn free_queue(&self) -> Option<Section<'_, VecDeque<Message>>> {
        self.queues.iter().find_map(SectionLock::lock)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }
}

impl Node {
    /// The lock, unless somebody has it.
    pub(super) fn lock(&self) -> Option<Held<'_>> {
        Some(self.held(self.link.try_lock()?))
    }

    /// Like [`lock`](Self::lock), for calls that need the answer: waits for other threads, for at
    /// most [`LOCK_TRIES`] yields, and not for this very thread below a signal handler.
    pub(super) fn lock_bounded(&self) -> Option<Held<'_>> {
        for _ in 0..LOCK_TRIES {
            if let Some(link) = self.lock() {
                return Some(link);
            }
            if self.link.is_mine() {
                return None;
            }
            std::thread::yield_now();
        }
        None
    }

    /// Takes the lock, waiting for as long as another thread has it; none: this very thread has it,
    /// below a signal handler.
    pub(super) fn lock_blocking(&self) -> Option<Held<'_>> {
        Some(self.held(self.link.lock()?))
    }

    /// Keeps others out for the length of a fork: the child would know of descriptors that another
    /// thread took meanwhile, and not have them. None: this very thread has the lock, below a
    /// signal handler.
    pub(crate) fn hold_still(&self) -> Option<Held<'_>> {
        self.lock_blocking()
    }

    fn held<'a>(&'a self, link: Section<'a, Link>) -> Held<'a> {
        Held { node: self, link: Some(link) }
    }

    /// Sends a call to the node of that session, or to whichever is there: now if nobody has the
    /// lock, else the thread that has it will.
    pub(super) fn send_or_queue(&self, session: Option<Arc<Session>>, call: SocketCall) {
        self.pending_calls.push(Message { session, call });
        // Either the thread that has the lock sees the call after it released the lock, or the lock
        // is seen to be free here.
        fence(Ordering::SeqCst);
        drop(self.lock());
    }

    /// False: the node's socket is full.
    fn send_pending(&self, link: &mut Link) -> bool {
        while let Some(message) = self.pending_calls.pop() {
            if message.session.as_ref().is_some_and(|session| !Arc::ptr_eq(session, &link.session)) {
                continue;
            }
            if let SocketCall::Withdraw { connection, .. } = message.call {
                link.waiting.remove(&connection);
            }
            if !self.send(link, message.call.clone(), &[]) && link.channel.is_some() {
                self.pending_calls.push_back_in_front(message);
                return false;
            }
        }
        true
    }
}

impl Held<'_> {
    /// In the child of a fork: what waits is the parent's to send.
    pub(crate) fn release_unsent(mut self) {
        self.link = None;
    }
}

impl Deref for Held<'_> {
    type Target = Link;
    fn deref(&self) -> &Link {
        self.link.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        self.link.as_mut().expect("held until it is dropped")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Each turn after the first one sends what came just while the lock was released.
        for _ in 0..LOCK_TRIES {
            let Some(mut link) = self.link.take() else { return };
            if !self.node.pending_calls.is_empty() && !self.node.send_pending(&mut link) {
                return;
            }
            drop(link);
            fence(Ordering::SeqCst);
            if self.node.pending_calls.is_empty() {
                return;
            }
            self.link = self.node.link.try_lock();
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::context::{Context, Settings};
    use vmmc_host::Channel;
    use vmmc_host::control::{Request, decode};
    use vmmc_stream::messages::{EndRef, Place};

    fn node() -> (Node, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        let node = Node::default();
        node.link.lock().unwrap().channel = Some(ours);
        (node, theirs)
    }

    fn release(slot: u32) -> SocketCall {
        SocketCall::Release { end: EndRef { place: Place { slab: 1, slot, end: 0 }, secret: 1 } }
    }

    /// The slots whose release has come.
    fn released(theirs: &Channel) -> Vec<u32> {
        let messages = std::iter::from_fn(|| theirs.try_receive().ok());
        let slot = |(bytes, _): (Vec<u8>, _)| match SocketCall::of(&decode::<Request>(&bytes).unwrap().call) {
            Some(SocketCall::Release { end }) => end.place.slot,
            other => panic!("{other:?}"),
        };
        messages.map(slot).collect()
    }

    #[test]
    fn a_call_made_while_another_thread_has_the_lock_is_sent_when_it_lets_go() {
        let (node, theirs) = node();
        let session = node.link.lock().unwrap().session.clone();
        std::thread::scope(|scope| {
            let held = node.lock().unwrap();
            let call = || (0..100).for_each(|slot| node.send_or_queue(Some(session.clone()), release(slot)));
            scope.spawn(call).join().unwrap();
            assert!(released(&theirs).is_empty());
            // As a signal handler of the thread that has the lock would.
            node.send_or_queue(None, release(100));
            drop(held);
            assert_eq!(released(&theirs), (0..=100).collect::<Vec<_>>());
        });
    }

    #[test]
    fn a_call_of_a_signal_handler_while_its_thread_makes_one_is_sent() {
        let (node, theirs) = node();
        let held = node.lock().unwrap();
        let interrupted = node.pending_calls.queues[0].lock().unwrap();
        node.send_or_queue(None, release(1));
        drop(interrupted);
        node.send_or_queue(None, release(2));
        drop(held);
        let mut sent = released(&theirs);
        sent.sort_unstable();
        assert_eq!(sent, [1, 2]);
    }

    #[test]
    fn calls_that_threads_make_at_once_are_all_sent() {
        const EACH: u32 = 2_000;
        let (node, theirs) = node();
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            let callers = [0, 1, 2].map(|from| {
                let node = &node;
                scope.spawn(move || (0..EACH).for_each(|i| node.send_or_queue(None, release(from * EACH + i))))
            });
            while !callers.iter().all(|caller| caller.is_finished()) {
                all.extend(released(&theirs));
            }
        });
        all.extend(released(&theirs));
        // What a full socket refused comes with whatever takes the lock next.
        while !node.pending_calls.is_empty() {
            drop(node.lock());
            all.extend(released(&theirs));
        }
        all.sort_unstable();
        assert_eq!(all, (0..3 * EACH).collect::<Vec<_>>());
    }

    #[test]
    fn a_node_that_reads_nothing_gets_calls_later_and_another_one_never() {
        let (node, theirs) = node();
        let session = node.link.lock().unwrap().session.clone();
        let mut made = 0;
        while node.pending_calls.is_empty() {
            node.send_or_queue(Some(session.clone()), release(made));
            made += 1;
        }
        (0..PENDING_CALLS_MAX as u32 + 9).for_each(|_| node.send_or_queue(Some(session.clone()), release(7)));
        assert_eq!(node.pending_calls.count.load(Ordering::Relaxed), PENDING_CALLS_MAX);
        let mut sent = released(&theirs);
        node.send_or_queue(None, release(8));
        sent.extend(released(&theirs));
        assert_eq!(sent[..made as usize], (0..made).collect::<Vec<_>>());
        node.link.lock().unwrap().session = Arc::default();
        drop(node.lock());
        assert!(node.pending_calls.is_empty() && released(&theirs).is_empty());
    }

    #[test]
    fn a_call_made_beside_a_fork_is_sent_by_the_parent_when_it_is_over() {
        let context = Context::new(Settings::from_env());
        let (ours, theirs) = Channel::pair().unwrap();
        context.node().link.lock().unwrap().channel = Some(ours);
        let call = |slot| {
            std::thread::scope(|scope| {
                scope.spawn(|| context.node().send_or_queue(None, release(slot))).join().unwrap();
            })
        };
        let forking = context.before_fork(std::iter::empty());
        call(1);
        assert!(released(&theirs).is_empty());
        context.after_fork_parent(forking);
        assert_eq!(released(&theirs), [1]);

        let forking = context.before_fork(std::iter::empty());
        call(2);
        let of_parent = context.node().clone();
        context.after_fork_child(forking);
        assert!(released(&theirs).is_empty());
        assert!(!of_parent.link.is_taken());
    }
}
