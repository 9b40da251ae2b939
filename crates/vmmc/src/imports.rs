//! Imports of the session, by the number in an event of the node.
//!
//! Invariant: an error of a posted send is reported once, by the next call on its import; the end
//! of an import is reported by every call.

use crate::limits::BROKEN_EARLY_MAX;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use vmmc_nic::OpError;

/// What the node says about an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// It can no longer be used.
    Ended(OpError),
    /// A send that nobody waited for failed.
    Send(OpError),
}

/// Troubles of one import.
#[derive(Default)]
pub(crate) struct DeferredErrors {
    /// Read without the lock.
    any: AtomicBool,
    state: Mutex<(Option<OpError>, Option<OpError>)>,
}

/// Troubles by import id.
#[derive(Default)]
pub(crate) struct Imports(Mutex<Known>);

#[derive(Default)]
struct Known {
    imports: HashMap<u64, Weak<DeferredErrors>>,
    /// Ended before the reply that granted them reached its thread.
    early: VecDeque<(u64, OpError)>,
}

impl DeferredErrors {
    /// An error to be reported now, if there is one. That of a posted send is reported once.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), OpError> {
        if self.any.load(Ordering::Acquire) { self.take() } else { Ok(()) }
    }

    /// Why the import has ended, if it has.
    pub(crate) fn ended(&self) -> Option<OpError> {
        self.lock().0
    }

    #[cold]
    fn take(&self) -> Result<(), OpError> {
        let mut state = self.lock();
        let posted = state.1.take();
        if state.0.is_none() {
            self.any.store(false, Ordering::Release);
        }
        posted.or(state.0).map_or(Ok(()), Err)
    }

    pub(crate) fn note(&self, broken: Broken) {
        let mut state = self.lock();
        match broken {
            Broken::Ended(why) => state.0 = Some(why),
            Broken::Send(why) => state.1 = state.1.or(Some(why)),
        }
        self.any.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, (Option<OpError>, Option<OpError>)> {
        self.state.lock().expect("no panic while the lock is held")
    }
}

impl Imports {
    /// A new import.
    pub(crate) fn add(&self, import: u64, deferred: &Arc<DeferredErrors>) {
        let mut known = self.lock();
        if let Some((_, why)) = known.early.iter().find(|(early, _)| *early == import) {
            deferred.note(Broken::Ended(*why));
        }
        known.imports.insert(import, Arc::downgrade(deferred));
    }

    /// The import is given back.
    pub(crate) fn remove(&self, import: u64) {
        self.lock().imports.remove(&import);
    }

    /// An import has ended, or a send through it has failed.
    pub(crate) fn deliver(&self, import: u64, broken: Broken) {
        let mut known = self.lock();
        if let Some(deferred) = known.imports.get(&import).and_then(Weak::upgrade) {
            return deferred.note(broken);
        }
        if let Broken::Ended(why) = broken {
            if known.early.len() == BROKEN_EARLY_MAX {
                known.early.pop_front();
            }
            known.early.push_back((import, why));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no panic while the lock is held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_send_is_told_once_and_the_end_always() {
        let imports = Imports::default();
        let deferred = Arc::new(DeferredErrors::default());
        imports.add(5, &deferred);
        assert_eq!(deferred.check(), Ok(()));
        imports.deliver(5, Broken::Send(OpError::TooFragmented { max: 3 }));
        assert_eq!(deferred.check(), Err(OpError::TooFragmented { max: 3 }));
        assert_eq!(deferred.check(), Ok(()));
        imports.deliver(5, Broken::Ended(OpError::Revoked));
        assert_eq!((deferred.check(), deferred.check()), (Err(OpError::Revoked), Err(OpError::Revoked)));
    }

    #[test]
    fn an_end_that_comes_before_its_import_is_not_lost() {
        let imports = Imports::default();
        imports.deliver(7, Broken::Ended(OpError::OwnerDied));
        let deferred = Arc::new(DeferredErrors::default());
        imports.add(7, &deferred);
        assert_eq!(deferred.ended(), Some(OpError::OwnerDied));
    }
}
