//! Regions that the node knows.
//!
//! Invariant: a region of this process has at most one id at the node at a time, however many
//! exports and buffers use it, and the node forgets it after the last of them.

use crate::core::Core;
use crate::error::{BufferError, CallError};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};
use vmmc_host::control::{Answer, Call};
use vmmc_host::{Deadline, Region};

/// A region that the node knows.
pub(crate) struct Registered {
    core: Weak<Core>,
    pub(crate) region: Region,
    /// The node's id.
    pub(crate) id: u32,
}

/// Registered regions by address.
#[derive(Default)]
pub(crate) struct Regions(Mutex<HashMap<usize, Weak<Registered>>>);

impl Registered {
    /// Makes the node know a region, if it does not yet.
    pub(crate) fn new(core: &Arc<Core>, region: Region, deadline: Deadline) -> Result<Arc<Registered>, BufferError> {
        let key = region.address();
        let find = || {
            let known = core.regions.lock().get(&key).and_then(Weak::upgrade)?;
            (known.region.len_bytes() == region.len_bytes()).then_some(known)
        };
        if let Some(known) = find() {
            return Ok(known);
        }
        let len = region.len_bytes();
        let fd = region.share()?;
        let answer = core.call(Call::RegisterRegion { len }, &[fd.as_fd()], deadline);
        let id = match answer {
            Ok((Answer::Region { region }, _)) => region,
            Ok(_) => return Err(BufferError::Call { len, error: core.wrong_answer("to a registration") }),
            Err(error) => return Err(BufferError::Call { len, error }),
        };
        let registered = Arc::new(Registered { core: Arc::downgrade(core), region, id });
        core.regions.lock().insert(key, Arc::downgrade(&registered));
        Ok(registered)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let mut regions = core.regions.lock();
        if regions.get(&self.region.address()).is_some_and(|known| known.strong_count() == 0) {
            regions.remove(&self.region.address());
        }
        drop(regions);
        core.post_call(Call::ReleaseRegion { region: self.id });
    }
}

impl Regions {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Weak<Registered>>> {
        self.0.lock().expect("no panic while the lock is held")
    }
}

impl Core {
    /// An answer that does not fit the call.
    pub(crate) fn wrong_answer(&self, what: &str) -> CallError {
        CallError::Protocol { node: self.identity.name.clone(), what: format!("an answer of another kind {what}") }
    }
}
