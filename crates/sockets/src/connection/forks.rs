//! Forks: who holds what afterwards.
//!
//! Invariant: counts grow before the fork, so no child runs uncounted; a connection that was on its way into shared memory when the fork happened stays with the
//! kernel in the child, and in the parent until the child has let it go.

use super::{Connection, Stage};
use crate::context::Context;
use crate::ledger::Ledger;
use crate::types::Bypass;
use std::sync::atomic::Ordering;
use vmmc_host::stream::messages::Place;

impl Connection {
    pub(crate) fn before_fork(&self, ledger: &Ledger) {
        let open = self.stage() != Stage::Closed;
        self.forked.store(open, Ordering::SeqCst);
        if !open {
            return;
        }
        if let Some(joined) = self.upgraded.get() {
            joined.core.own().holders.fetch_add(1, Ordering::SeqCst);
            return;
        }
        match self.entry.get() {
            Some(entry) => entry.add(),
            None => match ledger.entry() {
                Some(entry) => {
                    entry.add();
                    let _ = self.entry.set(entry);
                }
                None => self.settle_for(Bypass::Shared),
            },
        }
    }

    pub(crate) fn undo_fork(&self) {
        if !self.forked.swap(false, Ordering::SeqCst) {
            return;
        }
        match (self.upgraded.get(), self.entry.get()) {
            (Some(joined), _) => {
                joined.core.own().holders.fetch_sub(1, Ordering::SeqCst);
            }
            (None, Some(entry)) => entry.remove(),
            (None, None) => {}
        }
    }

    /// The fork is over, in the parent.
    pub(crate) fn after_fork_parent(&self) {
        self.forked.store(false, Ordering::SeqCst);
    }

    pub(crate) fn after_fork_child(&self, context: &Context) {
        let counted = self.forked.swap(false, Ordering::SeqCst);
        if counted {
            self.generation.store(context.generation(), Ordering::Relaxed);
        }
        match self.stage() {
            // The parent's offer is its own affair; ours begins anew, when the parent has let go.
            Stage::Offered => self.stage.store(Stage::Young as u8, Ordering::Release),
            Stage::Matched => self.settle_for(Bypass::Shared),
            // It came between the count and the fork: it is the parent's alone.
            Stage::Joined if !counted => self.stage.store(Stage::Closed as u8, Ordering::Release),
            // Another thread closed it while the fork was under way: we were counted, and have nothing.
            Stage::Closed if counted => self.count_out(context),
            _ => {}
        }
        // Threads that were in the kernel are not in this process.
        if self.upgraded.get().is_none() {
            self.early.sends.store(0, Ordering::SeqCst);
            self.early.receives.store(0, Ordering::SeqCst);
        }
    }

    fn count_out(&self, context: &Context) {
        match (self.upgraded.get(), self.entry.get()) {
            (Some(joined), _) => {
                let (_, tell) = joined.core.let_go(false);
                self.tell(context, joined, tell);
            }
            (None, Some(entry)) => entry.remove(),
            (None, None) => {}
        }
    }

    /// Where it is, and the proof that we have it mapped, if it is upgraded and open.
    pub(crate) fn place(&self) -> Option<(Place, u64)> {
        let secret = |joined: &super::Joined| joined.core.slot.words().secret.load(Ordering::Relaxed);
        self.upgraded.get().filter(|_| self.stage() == Stage::Joined).map(|joined| (joined.place, secret(joined)))
    }
}
