//! Memory that the node made and has no more use for, while clients keep it.
//!
//! A client can keep a descriptor or mapping of what it was handed for as long as it likes. What
//! cannot be emptied then (the gate table is sealed, a slab may be in use by processes that the
//! node does not know) counts in its user's share until the kernel says that it is gone: it
//! notifies the watcher of a file (inotify) that the file is no more. For one without a name that
//! is when nobody has a descriptor or mapping of it any more.
//!
//! Invariant: what counts here is given back once, when its memory is gone, or at once where the
//! kernel gives the node no watch.

use super::shares::{Holdings, Table};
use super::{Readable, Station};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use vmmc_host::GateTable;

/// See the module page.
#[derive(Default)]
pub(super) struct Outlived {
    /// Made for the first of them.
    watcher: Option<OwnedFd>,
    /// By watch.
    kept: HashMap<i32, Kept>,
}

/// What is given back when its memory is gone.
pub(super) enum Kept {
    /// By user.
    Shares(Vec<(u32, Holdings)>),
    /// A service is notified of it: which one, and by which number.
    OfService(usize, u64),
}

impl Outlived {
    fn watch(&mut self, memory: impl AsFd, kept: Kept) -> Result<(), Kept> {
        let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
        // Of nothing that happens to a file; that it is gone is reported unasked.
        let flags = inotify::WatchFlags::DELETE;
        let watch = self.watcher.as_ref().map(|watcher| inotify::add_watch(watcher, path, flags));
        match watch {
            Some(Ok(watch)) => {
                self.kept.insert(watch, kept);
                Ok(())
            }
            _ => Err(kept),
        }
    }

    /// What is gone by now.
    fn take_gone(&mut self) -> Vec<Kept> {
        let Some(watcher) = &self.watcher else { return Vec::new() };
        let mut gone = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watcher, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                    // Nobody knows which ones.
                    gone.extend(self.kept.drain().map(|(_, kept)| kept));
                }
                Ok(event) => gone.extend(self.kept.remove(&event.wd())),
                Err(Errno::INTR) => {}
                Err(_) => return gone,
            }
        }
    }
}

impl Station {
    /// Whether there is a watcher, made now if need be. A node in the process that it serves needs
    /// none.
    fn can_watch(&mut self) -> bool {
        if self.outlived.watcher.is_none() && !self.config.embedded {
            let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
            let made = inotify::init(flags).ok();
            self.outlived.watcher = made.filter(|made| self.watch(made, 0, Readable::Outlived).is_ok());
        }
        self.outlived.watcher.is_some()
    }

    /// A process has gone whose gate table processes of these users were handed: it counts in the
    /// share of each until nobody has it.
    pub(super) fn count_gates(&mut self, table: impl AsFd, users: &[u32]) {
        let users: Vec<u32> = users.iter().copied().filter(|uid| !self.shares.is_own(*uid)).collect();
        if users.is_empty() || !self.can_watch() {
            return;
        }
        let each = users.into_iter().map(|uid| {
            let mut held = Holdings::default();
            self.shares.count(uid, &mut held, Table::Outlived, GateTable::PAGES);
            (uid, held)
        });
        let kept = Kept::Shares(each.collect());
        if let Err(kept) = self.outlived.watch(table, kept) {
            self.give_kept(kept);
        }
    }

    /// Remembers this until nobody has that memory any more; false: the kernel does not report it.
    pub(super) fn keep_until_gone(&mut self, memory: impl AsFd, kept: Kept) -> bool {
        self.can_watch() && self.outlived.watch(memory, kept).is_ok()
    }

    /// Gives back what is gone by now.
    pub(super) fn serve_outlived(&mut self) {
        for kept in self.outlived.take_gone() {
            self.give_kept(kept);
        }
    }

    fn give_kept(&mut self, kept: Kept) {
        match kept {
            Kept::Shares(all) => {
                for (uid, mut held) in all {
                    self.shares.give_all(uid, &mut held);
                }
            }
            Kept::OfService(at, token) => self.service_memory_is_gone(at, token),
        }
    }
}
