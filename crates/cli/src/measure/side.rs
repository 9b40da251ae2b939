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

    /// Tells the other worker something.
    pub(crate) fn tell<T: Serialize>(&self, what: &T) -> Result<(), TaskError> {
        self.tell_with(what, &[])
    }

    /// Tells the other worker something and passes descriptors.
    pub(crate) fn tell_with<T: Serialize>(&self, what: &T, fds: &[BorrowedFd<'_>]) -> Result<(), TaskError> {
        Ok(self.0.send(&control::encode(what), fds, Deadline::after(PARTNER_WAIT))?)
    }

    /// What the other worker says next.
    pub(crate) fn hear<T: for<'a> Deserialize<'a>>(&self) -> Result<T, TaskError> {
        Ok(self.hear_with()?.0)
    }

    /// What the other worker says next, with descriptors.
    pub(crate) fn hear_with<T: for<'a> Deserialize<'a>>(&self) -> Result<(T, Vec<OwnedFd>), TaskError> {
        let (bytes, fds) = self.0.receive(Deadline::after(PARTNER_WAIT))?;
        let what = control::decode(&bytes).map_err(|e| TaskError::Protocol(e.to_string()))?;
        Ok((what, fds))
    }
}
