//! The driver's side of activation: which on-demand export is wanted, and which one is refused.
//!
//! Invariant: a request is reported to the driver at most once, and a refusal answers everybody who
//! waits for the name.

use super::Engine;
use crate::activation::{ActivationRefusal, ActivationWanted};
use crate::error::ImportError;
use crate::time::Time;
use crate::waiters::Waiter;
use crate::wire::chunk::Chunk;

impl Engine {
    /// The next on-demand export that somebody waits for and the driver has not been told of.
    pub fn poll_activation(&mut self) -> Option<ActivationWanted> {
        let (name, uid, peer) = self.tables.activations.pop_front()?;
        // The name of a peer that has gone meanwhile is not known any more; its request is gone
        // too.
        let from = match peer {
            None => None,
            Some(index) => Some(self.peer(index)?.name.clone()?),
        };
        Some(ActivationWanted { name, uid, from })
    }

    /// Answers everybody who waits for this on-demand export.
    pub fn refuse_activation(&mut self, now: Time, name: &str, why: ActivationRefusal) {
        self.now = now;
        let why = ImportError::NotStarted(why);
        for waiter in self.tables.waiters.take_all(name) {
            match waiter {
                Waiter::Local(wait) => self.tables.end_import_wait(wait, why),
                Waiter::Remote { via, handle, uid, .. } => {
                    if let Some((session, _)) = self.session_and_tables(via) {
                        session.remote_waits.give(uid);
                        session.answer(&Chunk::ImportFail { handle, why });
                    }
                    self.wake(via.peer);
                }
            }
        }
    }
}
