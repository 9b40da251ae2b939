//! Exporting processes of this node as an importer sees them: their gates, their wake-up, the
//! notification ring to them.
//!
//! Invariant: there is one [`Peer`] for each exporting process, and one producer for each
//! notification ring, however many imports share them. A process is told by the inode of its gate
//! table, which is not used again while we map it.

use crate::limits::PEERS_BEFORE_SWEEP;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vmmc_host::abi::RawNotification;
use vmmc_host::area::PairRing;
use vmmc_host::ring::{Producer, RegionWords};
use vmmc_host::{GateTable, NotifyBell, RegionError, WakeSender};

/// No number of a wait.
const NO_WAIT: u64 = u64::MAX;

/// An exporting process of this node.
pub(crate) struct Peer {
    pub(crate) gates: GateTable,
    bell: NotifyBell,
    wake: WakeSender,
    /// The wait for a word that was woken last; see [`NotifyBell::words_awaited`].
    woken: AtomicU64,
    pair: Mutex<Option<Pair>>,
    /// Its death has been told; it can be swept out when no import uses it.
    dead: AtomicBool,
}

struct Pair {
    ring: PairRing,
    producer: Producer<RegionWords>,
}

/// All exporting processes whose memory this process maps.
#[derive(Default)]
pub(crate) struct Peers(Mutex<HashMap<(u64, u64), Arc<Peer>>>);

impl Peers {
    /// The exporter behind the descriptors of a grant.
    pub(crate) fn find_or_open(
        &self,
        gates: OwnedFd,
        bell: OwnedFd,
        wake: OwnedFd,
        pair: Option<OwnedFd>,
    ) -> Result<Arc<Peer>, RegionError> {
        let identity = rustix::fs::fstat(&gates).map_err(|errno| RegionError::System { call: "fstat", errno })?;
        let key = (identity.st_dev, identity.st_ino);
        let mut peers = self.0.lock().expect("no panic while the lock is held");
        if let Some(peer) = peers.get(&key) {
            peer.add_pair(pair)?;
            return Ok(peer.clone());
        }
        let gates = GateTable::open(gates)?;
        let bell = NotifyBell::open_read_only(bell)?;
        let peer = Peer {
            gates,
            bell,
            wake: WakeSender::from_fd(wake),
            woken: AtomicU64::new(NO_WAIT),
            pair: Mutex::new(None),
            dead: AtomicBool::new(false),
        };
        peer.add_pair(pair)?;
        if peers.len() >= PEERS_BEFORE_SWEEP {
            peers.retain(|_, peer| !peer.dead.load(Ordering::Relaxed) || Arc::strong_count(peer) > 1);
        }
        let peer = Arc::new(peer);
        peers.insert(key, peer.clone());
        Ok(peer)
    }
}

impl Peer {
    /// The ring comes with every import; the first one is used.
    fn add_pair(&self, fd: Option<OwnedFd>) -> Result<(), RegionError> {
        let mut pair = self.pair.lock().expect("no panic while the lock is held");
        if let (None, Some(fd)) = (&*pair, fd) {
            let ring = PairRing::open(fd)?;
            *pair = Some(Pair { producer: ring.producer(), ring });
        }
        Ok(())
    }

    pub(crate) fn mark_dead(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Something was stored in one of these regions of the process, as bits of `area::region_bit`:
    /// wakes it if a thread sleeps until a word there changes.
    #[inline(always)]
    pub(crate) fn stored(&self, regions: u64) {
        if let Some(wait) = self.bell.words_awaited(regions) {
            self.wake_for_words(wait);
        }
    }

    /// Once for each wait, however many stores come before the sleeper is up.
    #[cold]
    fn wake_for_words(&self, wait: u32) {
        let wait = u64::from(wait);
        if self.woken.swap(wait, Ordering::Relaxed) != wait {
            self.wake.wake();
        }
    }

    /// Puts a notification in the ring and wakes the receiver if it sleeps; false if the ring is
    /// full, which the receiver finds counted.
    pub(crate) fn notify(&self, notification: RawNotification) -> bool {
        let mut guard = self.pair.lock().expect("no panic while the lock is held");
        let Some(pair) = guard.as_mut() else { return false };
        let pushed = notification.push(&mut pair.producer);
        if !pushed {
            pair.ring.lost().fetch_add(1, Ordering::Relaxed);
        }
        drop(guard);
        self.wake.wake_if(self.bell.word());
        pushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;
    use vmmc_host::area::region_bit;
    use vmmc_host::wait::wake_pair;

    /// Of a region of which words are waited for.
    const OURS: u64 = region_bit(70);

    #[test]
    fn a_store_wakes_each_wait_for_a_word_once_and_nobody_else() {
        let (own, _, for_readers) = NotifyBell::create().unwrap();
        let (sleeper, wake) = wake_pair().unwrap();
        let (_, gates) = GateTable::create().unwrap();
        let peers = Peers::default();
        let peer = peers.find_or_open(gates, for_readers, wake.share().unwrap(), None).unwrap();
        let woken = || {
            let mut fds = [PollFd::from_borrowed_fd(sleeper.as_fd(), PollFlags::IN)];
            let woken = poll(&mut fds, Some(&Timespec::default())).unwrap() > 0;
            sleeper.drain();
            woken
        };
        peer.stored(OURS);
        assert!(!woken(), "nobody waits");
        own.await_words(OURS);
        peer.stored(region_bit(7));
        assert!(!woken(), "whoever waits waits for another region");
        peer.stored(OURS);
        assert!(woken());
        peer.stored(OURS);
        assert!(!woken(), "it is up already, and polls before it sleeps again");
        own.words_found(0);
        own.await_words(OURS);
        peer.stored(OURS);
        assert!(woken(), "the next wait");
        own.await_words(OURS);
        own.words_found(OURS);
        peer.stored(OURS);
        assert!(woken(), "of two waits one has ended, and the other one polls first");
        own.words_found(0);
        peer.stored(OURS);
        assert!(!woken());
    }
}
