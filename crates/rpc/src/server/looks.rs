//! What a server does now and then: it looks which of its callers and delegates are still there.
//!
//! Invariant: calls of a caller that has gone are forgotten, and the caller of a call that a
//! delegate has lost is told. Source: [GMS §3] delegation.

use super::{CALLERS_LOOKED_AT_A_SECOND, Serving};
use crate::client::Inner;
use crate::limits::{LINKS_MAX, LIVENESS_EVERY};
use crate::link::Link;
use crate::wire::{CallId, Status};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vmmc_host::Nanos;

impl Serving {
    pub(super) fn look_now_and_then(&mut self, now: Nanos) {
        let since = now.since(self.looked_at);
        if since >= LIVENESS_EVERY {
            self.looked_at = now;
            self.look(now, since);
        }
    }

    /// Looks who is still there.
    fn look(&mut self, now: Nanos, since: Duration) {
        self.shared.admission().forget_late(now);
        self.look_at_callers((since.as_millis() * CALLERS_LOOKED_AT_A_SECOND / 1000) as usize);
        if self.shared.signals.lost.swap(false, Ordering::Acquire) {
            self.forget_lost();
        }
        self.look_at_delegates();
    }

    /// The next so many, and after the last one the first.
    fn look_at_callers(&mut self, count: usize) {
        let (before, from) = (self.by_number.range(..self.look_next), self.by_number.range(self.look_next..));
        let mut last = None;
        for (number, link) in from.chain(before).take(count) {
            link.look();
            last = Some(*number);
        }
        self.look_next = last.map_or(0, |number| number + 1);
    }

    /// Callers that cannot be reached any more have no calls here.
    fn forget_lost(&mut self) {
        let dead: Vec<Arc<Link>> = self.by_number.values().filter(|link| link.is_dead()).cloned().collect();
        for link in &dead {
            self.by_number.remove(&link.number);
            // Its caller may have come again since.
            if self.by_origin.get(&link.origin).is_some_and(|of| of.number == link.number) {
                self.by_origin.remove(&link.origin);
            }
            self.shared.admission().caller_lost(&link.number);
            self.gone.iter_mut().filter(|gone| gone.len() < LINKS_MAX).for_each(|gone| gone.push(link.number));
        }
        self.by_sender.retain(|_, link| !link.is_dead());
        self.collected.keep(|sender| self.by_sender.contains_key(sender));
    }

    /// Tells callers whose calls were passed on to a server that has died.
    fn look_at_delegates(&self) {
        let all: Vec<(u64, Weak<Inner>)> =
            self.shared.delegates().iter().map(|(number, inner)| (*number, inner.clone())).collect();
        for (number, inner) in all {
            let why = match inner.upgrade() {
                Some(inner) => match inner.broken() {
                    Some(why) => why,
                    None => {
                        self.tell_undelivered(number, &inner);
                        continue;
                    }
                },
                None => "its client was dropped".to_string(),
            };
            self.shared.delegates().remove(&number);
            let lost = self.shared.admission().delegate_lost(number);
            for (link, id) in lost {
                self.tell_lost(link, id, why.as_bytes());
            }
        }
    }

    /// Tells a caller that a call which was passed on has no answer.
    fn tell_lost(&self, link: u64, id: CallId, why: &[u8]) {
        if let Some(link) = self.by_number.get(&link) {
            link.answer(id, Status::DelegateLost, why);
        }
    }

    /// Tells callers whom a server that has their call cannot reach.
    fn tell_undelivered(&self, number: u64, delegate: &Inner) {
        for (id, why) in delegate.undelivered() {
            let calls = self.shared.admission().undelivered(number, id);
            for (link, id) in calls {
                self.tell_lost(link, id, &why);
            }
        }
    }
}
