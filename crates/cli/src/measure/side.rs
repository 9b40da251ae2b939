//! The channel between the two workers of a pair, beside what is measured.
//!
//! Invariant: nothing goes over it while the clock runs; no wait on it is endless.

use super::TaskError;
use crate::limits::PARTNER_WAIT;
use serde::{Deserialize, Serialize};
use std::os::fd::{BorrowedFd, OwnedFd};
use vmmc_host::channel::Channel;
use vmmc_host::{Deadline, control};

/// One end of it.
pub(crate) struct Side(Channel);

impl Side {
    /// Over this channel.
    pub(crate) fn over(channel: Channel) -> Side {
        Side(channel)
    }

    /// Sends the other worker a value.
    pub(crate) fn send<T: Serialize>(&self, what: &T) -> Result<(), TaskError> {
        self.send_with(what, &[])
    }

    /// Sends the other worker a value and passes descriptors.
    pub(crate) fn send_with<T: Serialize>(&self, what: &T, fds: &[BorrowedFd<'_>]) -> Result<(), TaskError> {
        Ok(self.0.send(&control::encode(what), fds, Deadline::after(PARTNER_WAIT))?)
    }

    /// The next value of the other worker.
    pub(crate) fn receive<T: for<'a> Deserialize<'a>>(&self) -> Result<T, TaskError> {
        Ok(self.receive_with()?.0)
    }

    /// The next value of the other worker, with descriptors.
    pub(crate) fn receive_with<T: for<'a> Deserialize<'a>>(&self) -> Result<(T, Vec<OwnedFd>), TaskError> {
        let (bytes, fds) = self.0.receive(Deadline::after(PARTNER_WAIT))?;
        let what = control::decode(&bytes).map_err(|e| TaskError::Protocol(e.to_string()))?;
        Ok((what, fds))
    }
}
