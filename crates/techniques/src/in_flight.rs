//! Messages whose memory is not free yet.
//!
//! Invariant: memory that a transfer borrows stays borrowed until it is done. Source:
//! [SEMANTICS §2.1], `DMA-Ready()`.

use crate::Error;
use vmmc::Transfer;

/// A message under way from memory that belongs to it until it is ready: the paper's `DMA-Ready()`.
/// Dropping it leaves the message to go on.
#[must_use = "the memory is not free before it is ready"]
pub struct InFlight<'a> {
    transfer: Transfer<'a>,
}

impl<'a> InFlight<'a> {
    pub(crate) fn new(transfer: Transfer<'a>) -> InFlight<'a> {
        InFlight { transfer }
    }

    /// Whether the memory of the message can be used again.
    ///
    /// # Errors
    /// [`Error::Transfer`]: the message did not arrive.
    pub fn is_ready(&mut self) -> Result<bool, Error> {
        match self.transfer.poll() {
            Some(Ok(_)) => Ok(true),
            Some(Err(error)) => Err(error.into()),
            None => Ok(false),
        }
    }

    /// Waits the session's timeout until it can.
    ///
    /// # Errors
    /// [`Error::Transfer`].
    pub fn wait(mut self) -> Result<(), Error> {
        self.transfer.wait()?;
        Ok(())
    }
}

impl std::fmt::Debug for InFlight<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InFlight")
    }
}
