//! Transfers under way.
use crate::*;

/// A transfer under way. Dropping it abandons the answer, not the transfer; its source stays alive until it is done.
#[must_use = "a transfer that nobody waits for is abandoned"]
pub struct Transfer {}

#[allow(unused_variables)]
impl Transfer {
    /// Its result if it is done: bytes moved.
    pub fn poll(&mut self) -> Option<Result<u64, TransferError>> {
        unimplemented!("skeleton")
    }
    /// Waits the session's timeout for the result.
    pub fn wait(self) -> Result<u64, TransferError> {
        unimplemented!("skeleton")
    }
    /// Waits until a deadline; may be called again after [`TransferError::TimedOut`].
    pub fn wait_by(&mut self, deadline: Deadline) -> Result<u64, TransferError> {
        unimplemented!("skeleton")
    }
}
