//! What the node keeps for a pair of processes of which one imports from the other: the way to
//! wake, and the notification ring.
//!
//! Invariant: one ring for each (importer, exporter), so that each end has one user; the wake
//! descriptor of one importer is no other importer's, because any holder of a descriptor can make
//! it blocking for everybody who shares it.

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use vmmc_host::region::Unmapped;
use vmmc_host::wait::WakeSender;
use vmmc_nic::ProcessId;

/// Kept by the exporter, one for each importer.
pub(super) struct Link {
    pub(super) importer: ProcessId,
    /// Wakes the exporter.
    pub(super) wake: OwnedFd,
    /// Made when the first import that may notify needs it.
    pub(super) ring: Option<Unmapped>,
}

/// A descriptor of the same pipe that shares no flags with ours.
pub(super) fn wake_for_importer(ours: &WakeSender) -> io::Result<OwnedFd> {
    let duplicate = ours.share()?;
    let path = format!("/proc/self/fd/{}", duplicate.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn an_importer_cannot_make_our_wake_ups_wait() {
        let (_receiver, ours) = vmmc_host::wait::wake_pair().unwrap();
        let theirs = wake_for_importer(&ours).unwrap();
        rustix::fs::fcntl_setfl(theirs.as_fd(), OFlags::empty()).unwrap();
        let flags = rustix::fs::fcntl_getfl(ours.share().unwrap()).unwrap();
        assert!(flags.contains(OFlags::NONBLOCK));
    }
}
