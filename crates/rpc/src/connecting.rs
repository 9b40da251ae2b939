//! Connects links to callers, on threads that nothing else waits for.
//!
//! A caller that does not answer holds up its thread for [`CONNECT_TIMEOUT`].
//!
//! Invariant: what one process asks for is connected one by one, so a process that names callers
//! which do not answer takes one thread, and others are connected meanwhile.

use crate::limits::share_allows;
use crate::limits::{CONNECT_TIMEOUT, CONNECTING_MAX};
use crate::link::{Asker, Link};
use crate::wire::Origin;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use vmmc::Session;

/// Links that wait for their turn.
#[derive(Default)]
pub(crate) struct Connecting {
    turns: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Default)]
struct Turns {
    waiting: VecDeque<Arc<Link>>,
    /// Processes for which a thread is connecting.
    active: Vec<Asker>,
    ended: bool,
}

impl Connecting {
    /// Has a link connected. False: too many wait.
    pub(crate) fn ask(&self, link: &Arc<Link>) -> bool {
        let mut turns = self.turns();
        let own = turns.waiting.iter().filter(|waiting| waiting.asker == link.asker).count();
        if !share_allows(own, turns.waiting.len(), CONNECTING_MAX) {
            return false;
        }
        turns.waiting.push_back(link.clone());
        self.changed.notify_one();
        true
    }

    /// Ends the threads, when they are through with what they are at.
    pub(crate) fn end(&self) {
        self.turns().ended = true;
        self.changed.notify_all();
    }

    /// A thread: connects links, until the end.
    pub(crate) fn run(&self, session: &Session) {
        let mut turns = self.turns();
        while !turns.ended {
            let free = |link: &Arc<Link>| !turns.active.contains(&link.asker);
            let Some(at) = turns.waiting.iter().position(free) else {
                turns = self.changed.wait(turns).expect("no panic while the lock is held");
                continue;
            };
            let link = turns.waiting.remove(at).expect("it was just found");
            turns.active.push(link.asker);
            drop(turns);
            connect(session, &link);
            turns = self.turns();
            turns.active.retain(|asker| *asker != link.asker);
            self.changed.notify_one();
        }
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, Turns> {
        self.turns.lock().expect("no panic while the lock is held")
    }
}

fn connect(session: &Session, link: &Link) {
    let Origin { node, endpoint, uid } = &link.origin;
    let builder = session.connect(endpoint).owner(*uid).wait(CONNECT_TIMEOUT);
    let builder = if *node == session.node().name { builder } else { builder.node(node) };
    match builder.open() {
        Ok(connection) => link.connected(connection),
        Err(_) => link.fail(),
    }
}
