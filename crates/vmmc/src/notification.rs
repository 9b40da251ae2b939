//! Notifications.
use crate::*;

/// A sender says: data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The export that received data.
    pub export: ExportId,
    /// First byte of the transfer.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
    /// Its last (up to) eight bytes, little endian.
    pub last_word: u64,
}

/// Ends a notification handler when dropped.
#[must_use = "dropping the guard ends the handler"]
pub struct HandlerGuard {}
