//! Exports.
use crate::*;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Memory that others may import.
pub struct Export {}

/// Choices for an export.
pub struct ExportBuilder {}

/// How an ended export was made unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// No importer had a way left: the engine refuses, and mapped transfers have stopped at the gate.
    Gate,
    /// The content was moved onto other pages; whoever still maps the old ones reaches nothing.
    Moved,
}

#[allow(unused_variables)]
impl ExportBuilder {
    /// Name for importers, unique on the node; without one it is imported by id.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        unimplemented!("skeleton")
    }
    /// What importers may be granted; default read, write and atomic.
    #[must_use]
    pub fn rights(self, rights: Rights) -> Self {
        unimplemented!("skeleton")
    }
    /// Who may import; default processes of the same user.
    #[must_use]
    pub fn access(self, access: Access) -> Self {
        unimplemented!("skeleton")
    }
    /// Whether senders may notify; default false.
    #[must_use]
    pub fn notify(self, allowed: bool) -> Self {
        unimplemented!("skeleton")
    }
    /// Whether incoming data may be redirected; default false. Such an export is served by the engine also on its own node.
    #[must_use]
    pub fn redirectable(self, redirectable: bool) -> Self {
        unimplemented!("skeleton")
    }
    /// Whether importers on this node may map the memory; default true.
    #[must_use]
    pub fn mappable(self, mappable: bool) -> Self {
        unimplemented!("skeleton")
    }
    /// Makes the export.
    pub fn create(self) -> Result<Export, ExportError> {
        unimplemented!("skeleton")
    }
}

#[allow(unused_variables, clippy::len_without_is_empty)]
impl Export {
    /// Id for importers.
    pub fn id(&self) -> ExportId {
        unimplemented!("skeleton")
    }
    /// Bytes.
    pub fn len(&self) -> u64 {
        unimplemented!("skeleton")
    }
    /// Copies bytes out.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        unimplemented!("skeleton")
    }
    /// Copies bytes in; the last one becomes visible last.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        unimplemented!("skeleton")
    }
    /// An aligned word.
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        unimplemented!("skeleton")
    }
    /// Waits (polling) until a word satisfies a condition; gives its value.
    pub fn wait_word(&self, offset: u64, ready: impl Fn(u64) -> bool) -> Result<u64, WaitError> {
        unimplemented!("skeleton")
    }
    /// As [`wait_word`](Self::wait_word), until a deadline.
    pub fn wait_word_by(
        &self,
        offset: u64,
        ready: impl Fn(u64) -> bool,
        deadline: Deadline,
    ) -> Result<u64, WaitError> {
        unimplemented!("skeleton")
    }
    /// Ends the export; when it returns no further byte arrives.
    pub fn unexport(self) -> Result<Revocation, UnexportError> {
        unimplemented!("skeleton")
    }
    /// Ends the export and moves its content onto other pages without relying on importers.
    pub fn unexport_moving(self) -> Result<Revocation, UnexportError> {
        unimplemented!("skeleton")
    }
    /// The next notification of this export; waits the session's timeout.
    pub fn wait_notification(&self) -> Result<Notification, WaitError> {
        unimplemented!("skeleton")
    }
    /// The next notification of this export.
    pub fn wait_notification_by(&self, deadline: Deadline) -> Result<Notification, WaitError> {
        unimplemented!("skeleton")
    }
    /// A notification of this export if one is there.
    pub fn take_notification(&self) -> Option<Notification> {
        unimplemented!("skeleton")
    }
    /// Runs a handler on a thread of its own for every notification of this export.
    pub fn on_notification(
        &self,
        handler: impl FnMut(Notification) + Send + 'static,
    ) -> Result<HandlerGuard, WaitError> {
        unimplemented!("skeleton")
    }
    /// Notifications of this export queue up and are not delivered.
    pub fn block_notifications(&self) {
        unimplemented!("skeleton")
    }
    /// Ends [`block_notifications`](Self::block_notifications).
    pub fn unblock_notifications(&self) {
        unimplemented!("skeleton")
    }
    /// Posts another destination for data that comes to a range of a redirectable export.
    pub fn redirect(&self, range: Range<u64>, to: &Buffer, to_offset: u64) -> Result<Redirection, RedirectError> {
        unimplemented!("skeleton")
    }
    /// The data in this range of a redirectable export has been used; the next arrival counts as new.
    pub fn consume(&self, range: Range<u64>) -> Result<(), RedirectError> {
        unimplemented!("skeleton")
    }
}
