//! Counters of a session.
use serde::Serialize;

/// What a session has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionStats {
    /// Sends by copying into mapped memory.
    pub sends_mapped: u64,
    /// Their bytes.
    pub send_bytes_mapped: u64,
    /// Sends through the engine with the data in the descriptor.
    pub sends_inline: u64,
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
    /// Atomic operations on mapped memory.
    pub atomics_mapped: u64,
    /// Atomic operations through the engine.
    pub atomics_engine: u64,
    /// Notifications asked for on mapped imports.
    pub notifications_sent: u64,
    /// Of those, the ones that found the ring to the receiver full.
    pub notifications_lost_sending: u64,
    /// Notifications that came.
    pub notifications_received: u64,
    /// Notifications handed to waiters and handlers.
    pub notifications_taken: u64,
    /// Notifications lost on the way to this process because a ring was full.
    pub notifications_lost_in_rings: u64,
    /// Notifications lost in this process because an export's queue was full.
    pub notifications_lost_in_queue: u64,
    /// Notifications for exports that were gone.
    pub notifications_stale: u64,
    /// Waits that blocked in the kernel.
    pub sleeps: u64,
    /// Calls to the node.
    pub calls: u64,
}
