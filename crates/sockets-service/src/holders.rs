//! Which processes are known to hold an end, and how often each.
//!
//! Invariant: a process is in the list once, with its count; the list is bounded. A holder that is
//! not in it is one that the node does not know of, which is allowed: the kernel's socket is the
//! truth about life and death.

use crate::limits::SOCKET_HOLDERS_MAX;

/// The list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holders(Vec<(u32, u32)>);

impl Holders {
    /// One process, once.
    pub(crate) fn of(process: u32) -> Holders {
        Holders(vec![(process, 1)])
    }

    /// Counts a process once more. True: it is new here. None: there is no room for it.
    pub(crate) fn add(&mut self, process: u32) -> Option<bool> {
        if let Some((_, count)) = self.0.iter_mut().find(|(p, _)| *p == process) {
            *count = count.saturating_add(1);
            return Some(false);
        }
        (self.0.len() < SOCKET_HOLDERS_MAX).then(|| {
            self.0.push((process, 1));
            true
        })
    }

    /// Counts a process once less. True: it was here, and is no more.
    pub(crate) fn remove_one(&mut self, process: u32) -> bool {
        let Some(at) = self.0.iter().position(|(p, _)| *p == process) else { return false };
        self.0[at].1 -= 1;
        let gone = self.0[at].1 == 0;
        if gone {
            self.0.swap_remove(at);
        }
        gone
    }

    /// A process has ended.
    pub(crate) fn remove(&mut self, process: u32) {
        self.0.retain(|(p, _)| *p != process);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn contains(&self, process: u32) -> bool {
        self.0.iter().any(|(p, _)| *p == process)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(p, _)| *p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_listed_once_however_often_it_holds_and_the_list_is_bounded() {
        let mut holders = Holders::of(1);
        assert!((0..100_000).all(|_| holders.add(1) == Some(false)));
        assert_eq!(holders.processes().count(), 1);
        let new = (2..10_000).filter(|process| holders.add(*process) == Some(true)).count();
        assert_eq!(new + 1, SOCKET_HOLDERS_MAX);
        assert!(!holders.remove_one(2_000_000) && holders.remove_one(2) && !holders.contains(2));
        assert!((0..100_000).all(|_| !holders.remove_one(1)) && holders.remove_one(1));
    }
}
