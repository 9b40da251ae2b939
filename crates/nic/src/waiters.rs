//! Who waits for a name to be exported here.
//!
//! Invariant: each waiter of a name stands in `all` and, under whose exports it takes, in
//! `by_owner`. So an export finds those who take it without checking the others, of which one user
//! may have thousands under a name that somebody else exports.

use std::collections::{BTreeMap, BTreeSet};

use crate::rights::{Owner, ROOT, Rights};
use crate::slab::Key;
use crate::tables::{SessionId, Wait};
use crate::wire::chunk::Handle;

/// One that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    Local(Key<Wait>),
    Remote { via: SessionId, handle: Handle, uid: u32, rights: Rights },
}

/// Which waiter: a wait of this node, or an import of another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum WaiterKey {
    Local(Key<Wait>),
    Remote { peer: u16, serial: u64, process: u32, import: u64 },
}

impl WaiterKey {
    const FIRST: WaiterKey = WaiterKey::Local(Key::NONE);
    const LAST: WaiterKey = WaiterKey::Remote { peer: u16::MAX, serial: u64::MAX, process: u32::MAX, import: u64::MAX };

    pub(crate) fn remote(via: SessionId, handle: Handle) -> WaiterKey {
        WaiterKey::Remote { peer: via.peer, serial: via.serial, process: handle.process, import: handle.import }
    }
}

impl Waiter {
    fn key(&self) -> WaiterKey {
        match *self {
            Waiter::Local(wait) => WaiterKey::Local(wait),
            Waiter::Remote { via, handle, .. } => WaiterKey::remote(via, handle),
        }
    }
}

/// Whose export a waiter takes; as [`Owner`], with the user who waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Takes {
    Anybodys,
    OwnOrRoots(u32),
    Users(u32),
}

impl Takes {
    /// What an import by `uid` with this choice takes.
    pub(crate) fn of(owner: Owner, uid: u32) -> Takes {
        match owner {
            Owner::Any => Takes::Anybodys,
            Owner::OwnOrRoot => Takes::OwnOrRoots(uid),
            Owner::User(user) => Takes::Users(user),
        }
    }
}

/// Those of one name.
#[derive(Default)]
struct OfName {
    all: BTreeMap<WaiterKey, (Takes, Waiter)>,
    by_owner: BTreeSet<(Takes, WaiterKey)>,
}

/// All of them, by name.
#[derive(Default)]
pub(crate) struct Waiters {
    names: BTreeMap<String, OfName>,
    /// Waiters that an export has checked.
    #[cfg(test)]
    looks: usize,
}

impl Waiters {
    /// Names that somebody waits for.
    pub(crate) fn names(&self) -> usize {
        self.names.len()
    }

    /// Has somebody wait for a name. Returns the waiter that was in its place, which only a node
    /// that asks twice can have.
    pub(crate) fn add(&mut self, name: String, takes: Takes, waiter: Waiter) -> Option<Waiter> {
        let of_name = self.names.entry(name).or_default();
        let key = waiter.key();
        let before = of_name.all.insert(key, (takes, waiter));
        if let Some((takes, _)) = before {
            of_name.by_owner.remove(&(takes, key));
        }
        of_name.by_owner.insert((takes, key));
        before.map(|(_, waiter)| waiter)
    }

    /// A waiter for a name waits no more.
    pub(crate) fn remove(&mut self, name: &str, key: WaiterKey) -> Option<Waiter> {
        let of_name = self.names.get_mut(name)?;
        let (takes, waiter) = of_name.all.remove(&key)?;
        of_name.by_owner.remove(&(takes, key));
        if of_name.all.is_empty() {
            self.names.remove(name);
        }
        Some(waiter)
    }

    /// Takes those who wait for a name and take what this user exports under it.
    pub(crate) fn take(&mut self, name: &str, owner_uid: u32) -> Vec<Waiter> {
        let Some(of_name) = self.names.get_mut(name) else { return Vec::new() };
        let (from, to) = if owner_uid == ROOT { (0, u32::MAX) } else { (owner_uid, owner_uid) };
        let ranges = [
            (Takes::Anybodys, Takes::Anybodys),
            (Takes::OwnOrRoots(from), Takes::OwnOrRoots(to)),
            (Takes::Users(owner_uid), Takes::Users(owner_uid)),
        ];
        let mut taken = Vec::new();
        for (from, to) in ranges {
            let found = of_name.by_owner.range((from, WaiterKey::FIRST)..=(to, WaiterKey::LAST));
            let found: Vec<(Takes, WaiterKey)> = found.copied().collect();
            #[cfg(test)]
            {
                self.looks += found.len();
            }
            for entry in found {
                of_name.by_owner.remove(&entry);
                taken.extend(of_name.all.remove(&entry.1).map(|(_, waiter)| waiter));
            }
        }
        if of_name.all.is_empty() {
            self.names.remove(name);
        }
        taken
    }

    /// Takes all who wait for a name.
    pub(crate) fn take_all(&mut self, name: &str) -> Vec<Waiter> {
        let of_name = self.names.remove(name).unwrap_or_default();
        of_name.all.into_values().map(|(_, waiter)| waiter).collect()
    }

    /// Drops those of a session that is over.
    pub(crate) fn drop_session(&mut self, gone: SessionId) {
        self.names.retain(|_, of_name| {
            of_name.all.retain(|key, (takes, waiter)| {
                let stays = !matches!(waiter, Waiter::Remote { via, .. } if *via == gone);
                if !stays {
                    of_name.by_owner.remove(&(*takes, *key));
                }
                stays
            });
            !of_name.all.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIA: SessionId = SessionId { peer: 3, serial: 9 };

    fn local(wait: u64) -> Waiter {
        Waiter::Local(Key::from_u64(wait))
    }

    fn remote(import: u64, uid: u32) -> Waiter {
        Waiter::Remote { via: VIA, handle: Handle { process: 1, import }, uid, rights: Rights::READ }
    }

    #[test]
    fn an_export_finds_exactly_those_who_take_it() {
        let choices = [Owner::Any, Owner::OwnOrRoot, Owner::User(ROOT), Owner::User(1), Owner::User(2)];
        let users = [ROOT, 1, 2];
        for exporter in users {
            let (mut waiters, mut wanted, mut all) = (Waiters::default(), Vec::new(), 0);
            for (owner, uid) in choices.into_iter().flat_map(|owner| users.map(|uid| (owner, uid))) {
                for waiter in [local(all), remote(all, uid)] {
                    assert_eq!(waiters.add("x".into(), Takes::of(owner, uid), waiter), None);
                    if owner.takes(uid, exporter) {
                        wanted.push(waiter.key());
                    }
                }
                all += 1;
            }
            let mut taken: Vec<WaiterKey> = waiters.take("x", exporter).iter().map(Waiter::key).collect();
            taken.sort();
            wanted.sort();
            assert_eq!(taken, wanted, "exports of {exporter}");
            assert_eq!(waiters.take_all("x").len(), 2 * all as usize - wanted.len());
            assert_eq!(waiters.names(), 0);
        }
    }

    #[test]
    fn an_export_looks_at_none_that_wait_for_others() {
        let mut waiters = Waiters::default();
        for at in 0..8_000 {
            waiters.add("x".into(), Takes::of(Owner::User(7), 7), local(at));
            waiters.add("x".into(), Takes::of(Owner::OwnOrRoot, 7), remote(at, 7));
        }
        waiters.add("x".into(), Takes::of(Owner::OwnOrRoot, 1), remote(9_000, 1));
        for _ in 0..100 {
            assert!(waiters.take("x", 2).is_empty());
        }
        assert_eq!(waiters.take("x", 1), [remote(9_000, 1)]);
        assert_eq!(waiters.looks, 1);
    }

    #[test]
    fn a_waiter_that_goes_leaves_nothing_behind() {
        let mut waiters = Waiters::default();
        waiters.add("x".into(), Takes::Anybodys, local(1));
        waiters.add("x".into(), Takes::Users(5), remote(2, 5));
        // It asks once more, for another user's.
        assert_eq!(waiters.add("x".into(), Takes::Users(6), remote(2, 5)), Some(remote(2, 5)));
        waiters.add("x".into(), Takes::Users(5), remote(3, 5));
        assert_eq!(waiters.remove("x", local(1).key()), Some(local(1)));
        assert_eq!(waiters.remove("x", local(1).key()), None);
        assert_eq!(waiters.take("x", 5), [remote(3, 5)]);
        waiters.drop_session(VIA);
        assert_eq!((waiters.names(), waiters.take("x", 6)), (0, Vec::new()));
    }
}
