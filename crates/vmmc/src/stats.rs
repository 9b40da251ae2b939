//! Counters of a session.
//!
//! Invariant: nothing that is lost goes uncounted. Counters of mapped transfers are meters
//! ([`vmmc_host::meters`]), so counting costs the sender no shared cache line, and the node sees
//! them.

use crate::core::Core;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a session has done so far. The page of all [`counters`](crate::counters) says what is
/// claimed and what is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionStats {
    /// Sends by copying into mapped memory.
    pub sends_mapped: u64,
    /// Their bytes.
    pub send_bytes_mapped: u64,
    /// Sends through the engine with the data in the descriptor.
    pub sends_inline: u64,
    /// Of those, the ones that a node in this process sent at once, past its command ring.
    pub sends_direct: u64,
    /// Fetches and atomic operations that such a node asked for at once.
    pub requests_direct: u64,
    /// Sends through the engine by way of staging memory.
    pub sends_staged: u64,
    /// Sends through the engine from registered memory.
    pub sends_registered: u64,
    /// Bytes of all sends through the engine.
    pub send_bytes_engine: u64,
    /// Fetches by copying from mapped memory.
    pub fetches_mapped: u64,
    /// Their bytes.
    pub fetch_bytes_mapped: u64,
    /// Fetches through the engine.
    pub fetches_engine: u64,
    /// Their bytes.
    pub fetch_bytes_engine: u64,
    /// Atomic operations on mapped memory, counters of sends included.
    pub atomics_mapped: u64,
    /// Atomic operations through the engine.
    pub atomics_engine: u64,
    /// Notifications asked for on mapped imports.
    pub notifications_sent: u64,
    /// Of those, the ones that found the ring to the receiver full; the receiver counts them too.
    pub notifications_lost_sending: u64,
    /// Notifications that came.
    pub notifications_received: u64,
    /// Notifications handed to waiters and handlers.
    pub notifications_taken: u64,
    /// Notifications lost on the way to this process because a ring was full.
    pub notifications_lost_in_rings: u64,
    /// Notifications lost in this process because an export's queue was full.
    pub notifications_lost_in_queue: u64,
    /// Notifications for exports that had ended, and those that their sender could not have caused.
    pub notifications_stale: u64,
    /// Transfers from and to pinned memory of the caller's.
    pub pin_transfers: u64,
    /// Their pages.
    pub pin_lookups: u64,
    /// Of those, the ones that were not pinned yet.
    pub pin_check_misses: u64,
    /// Pages pinned.
    pub pin_pins: u64,
    /// Pages unpinned.
    pub pin_unpins: u64,
    /// Of those, the ones that a limit forced out.
    pub pin_evictions: u64,
    /// Transfers of whole pages that were copied, because their memory cannot be pinned.
    pub pin_copied: u64,
    /// Pages pinned now.
    pub pinned_pages: u64,
    /// Waits that blocked in the kernel.
    pub sleeps: u64,
    /// Calls to the node.
    pub calls: u64,
}

impl Core {
    pub(crate) fn stats(&self) -> SessionStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mapped = self.hot.area.moved(|_, _| ());
        let (own, hub) = (&self.counters, self.hub.counts());
        let pins = self.pins.counters();
        SessionStats {
            sends_mapped: mapped.sends,
            send_bytes_mapped: mapped.send_bytes,
            sends_inline: read(&own.sends_inline),
            sends_direct: read(&own.sends_direct),
            requests_direct: read(&own.requests_direct),
            sends_staged: read(&own.sends_staged),
            sends_registered: read(&own.sends_registered),
            send_bytes_engine: read(&own.send_bytes),
            fetches_mapped: mapped.fetches,
            fetch_bytes_mapped: mapped.fetch_bytes,
            fetches_engine: read(&own.fetches),
            fetch_bytes_engine: read(&own.fetch_bytes),
            atomics_mapped: mapped.atomics,
            atomics_engine: read(&own.atomics),
            notifications_sent: read(&own.notified),
            notifications_lost_sending: read(&own.notify_lost),
            notifications_received: hub.received,
            notifications_taken: hub.taken,
            notifications_lost_in_rings: read(&own.lost_in_rings),
            notifications_lost_in_queue: hub.lost,
            notifications_stale: hub.stale,
            pin_transfers: pins.counters.transfers,
            pin_lookups: pins.counters.lookups,
            pin_check_misses: pins.counters.check_misses,
            pin_pins: pins.counters.pins,
            pin_unpins: pins.counters.unpins,
            pin_evictions: pins.counters.evictions,
            pin_copied: pins.copied,
            pinned_pages: pins.pages,
            sleeps: read(&self.waiting.sleeps),
            calls: read(&self.control.calls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SessionStats;

    #[test]
    fn every_counter_of_a_session_is_explained() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/counters.md")).unwrap();
        let stats = serde_json::to_value(SessionStats::default()).unwrap();
        for name in stats.as_object().unwrap().keys() {
            assert!(page.contains(&format!("| `{name}` | ")), "docs/counters.md does not explain {name}");
        }
    }
}
