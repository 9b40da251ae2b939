//! Event loops of this process that follow a connection.
//!
//! Invariant: the list is the truth of this process; the shared words follow it once the connection
//! is upgraded. A word that is another's is never touched.

use super::{Connection, Joined};
use crate::limits::WATCHERS_MAX;
use crate::node::Node;
use crate::ready::TooMany;
use crate::types::Interest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use vmmc_stream::Watch;

/// One event loop that follows a connection.
#[derive(Debug)]
pub(crate) struct Registration {
    node: Arc<Node>,
    bell: u32,
    token: u32,
    interest: Interest,
    /// As it stands in the shared words.
    word: u64,
}

impl Connection {
    pub(crate) fn watch(&self, node: &Arc<Node>, bell: u32, token: u32, interest: Interest) -> Result<(), TooMany> {
        // Below a signal handler that interrupted one of these: nobody can follow it now.
        let mut watches = self.watches.lock().ok_or(TooMany)?;
        if watches.len() >= WATCHERS_MAX {
            return Err(TooMany);
        }
        let mut registration = Registration { node: node.clone(), bell, token, interest, word: 0 };
        if let Some(joined) = self.upgraded.get() {
            self.enter_watch(node, joined, &mut registration);
            if registration.word == 0 {
                return Err(TooMany);
            }
        }
        watches.push(registration);
        Ok(())
    }

    pub(crate) fn change_watch(&self, node: &Arc<Node>, bell: u32, interest: Interest) {
        let Some(mut watches) = self.watches.lock() else { return };
        let of_set = |w: &&mut Registration| Arc::ptr_eq(&w.node, node) && w.bell == bell;
        let Some(registration) = watches.iter_mut().find(of_set) else { return };
        let before = std::mem::replace(&mut registration.interest, interest);
        let Some(joined) = self.upgraded.get() else { return };
        if registration.word == 0 {
            return self.enter_watch(node, joined, registration);
        }
        // Event loops change what they want with every request: only what differs is touched, and a
        // watch that wants less has nothing to check.
        leave_words(joined, registration.word, Interest(before.0 & !interest.0));
        let more = Interest(interest.0 & !before.0);
        if more.0 != 0 {
            self.enter_words(node, joined, registration, more);
        }
    }

    pub(crate) fn unwatch(&self, node: &Arc<Node>, bell: u32) {
        let Some(mut watches) = self.watches.lock() else { return };
        let Some(at) = watches.iter().position(|w| Arc::ptr_eq(&w.node, node) && w.bell == bell) else { return };
        let mut registration = watches.swap_remove(at);
        if let Some(joined) = self.upgraded.get() {
            leave_words(joined, std::mem::take(&mut registration.word), Interest::BOTH);
        }
    }

    /// Makes the event loops of this process poll the connection that are interested in one of
    /// these directions; another would wake for nothing, and a set that is waited for in another
    /// set must not appear ready then. The caller has passed a full fence.
    pub(super) fn mark_own_watches(&self, node: &Node, what: Interest) {
        // Below a signal handler that interrupted one that changes: its loop polls anyway.
        let Some(watches) = self.watches.lock() else { return };
        let concerned = |w: &&Registration| std::ptr::eq(&*w.node, node) && w.interest.0 & what.0 != 0;
        for watch in watches.iter().filter(concerned).filter_map(|w| Watch::from_word(w.word)) {
            node.mark_own(watch);
        }
    }

    /// Writes a registration into the shared words, and marks its token: what happened before
    /// nobody told.
    pub(super) fn enter_watch(&self, node: &Node, joined: &Joined, registration: &mut Registration) {
        let Some(session) = node.session(&joined.seat).filter(|s| s.process() != 0) else { return };
        if !node.may_watch(registration.bell, &session) {
            return;
        }
        let process = session.process();
        registration.word = Watch { process, bell: registration.bell, token: registration.token }.to_word();
        self.enter_words(node, joined, registration, registration.interest);
    }

    /// The same for what is new of its interest.
    fn enter_words(&self, node: &Node, joined: &Joined, registration: &mut Registration, what: Interest) {
        let word = registration.word;
        let reads = !what.reads() || enter(&joined.core.incoming().receiver_watch, word);
        let writes = !what.writes() || enter(&joined.core.outgoing().sender_watch, word);
        if !(reads && writes) {
            leave_words(joined, word, Interest::BOTH);
            registration.word = 0;
            return;
        }
        fence(Ordering::SeqCst);
        if let Some(watch) = Watch::from_word(word) {
            node.mark_own(watch);
        }
    }
}

fn enter(words: &[AtomicU64], word: u64) -> bool {
    words.iter().any(|w| {
        let now = w.load(Ordering::Relaxed);
        now == word || now == 0 && w.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })
}

fn leave_words(joined: &Joined, word: u64, what: Interest) {
    let none: &[AtomicU64] = &[];
    let reads = if what.reads() { &joined.core.incoming().receiver_watch[..] } else { none };
    let writes = if what.writes() { &joined.core.outgoing().sender_watch[..] } else { none };
    for w in reads.iter().chain(writes).filter(|w| word != 0 && w.load(Ordering::Relaxed) == word) {
        let _ = w.compare_exchange(word, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}
