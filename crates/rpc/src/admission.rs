//! What a server knows of the calls that it has not answered: those that wait for a thread, those
//! that a handler has, and those that were passed on.
//!
//! Pure: time is an argument, and messages go out elsewhere. A call comes in by `admit`, its
//! handler begins by `begin`, and it leaves by `finish` or `pass_on`.
//!
//! Invariants: of a call a handler begins once at most, and not after its time, nor after it was
//! withdrawn; a call leaves once. Source: [GMS §3] delegated calls.

use crate::limits::FORWARDS_MAX;
use crate::wire::CallId;
use foldhash::{HashMap, HashMapExt};
use std::collections::hash_map::Entry;
use std::hash::Hash;
use vmmc_host::Nanos;

/// A call, by whose it is and its id there.
pub(crate) type Name<C> = (C, CallId);

/// The calls of a server. `C` names callers, `D` servers that calls are passed on to.
pub(crate) struct Admission<C, D> {
    queue_max: usize,
    waiting: usize,
    forwards: usize,
    calls: HashMap<Name<C>, (Nanos, Stage<D>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage<D> {
    Waiting,
    /// It was withdrawn while it waited.
    Withdrawn,
    /// Whether it was withdrawn since.
    Running(bool),
    Forwarded(D),
}

/// What becomes of a call that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It waits for its handler.
    Waits,
    /// There is no room.
    Busy,
    /// It is here already.
    Again,
}

/// What becomes of a call whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its handler begins.
    Begins,
    /// Its time is over.
    Late,
    /// Its caller has withdrawn it.
    Withdrawn,
}

/// What is to be done for a call that its caller withdraws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withdrawal<D> {
    /// Nothing: it is not there, or its turn tells.
    Noted,
    /// It was passed on to that server, which is to be told.
    Passed(D),
}

impl<C: Clone + Eq + Hash, D: Copy + Eq> Admission<C, D> {
    pub(crate) fn new(queue_max: usize) -> Self {
        Admission { queue_max, waiting: 0, forwards: 0, calls: HashMap::new() }
    }

    /// Calls that wait for a handler.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether there is no call that is not answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// A call has come.
    pub(crate) fn admit(&mut self, call: Name<C>, deadline: Nanos) -> Admitted {
        self.place(call, deadline, Stage::Waiting)
    }

    /// A call has come, and it is its turn: no other waits. Unless its handler begins, it has left.
    ///
    /// # Errors
    /// It was not admitted: [`Admitted::Again`].
    pub(crate) fn admit_and_begin(&mut self, call: Name<C>, deadline: Nanos, now: Nanos) -> Result<Turn, Admitted> {
        let late = (deadline <= now).then(|| call.clone());
        match self.place(call, deadline, Stage::Running(false)) {
            Admitted::Waits => {}
            not => return Err(not),
        }
        Ok(match late {
            Some(call) => {
                self.calls.remove(&call);
                Turn::Late
            }
            None => Turn::Begins,
        })
    }

    fn place(&mut self, call: Name<C>, deadline: Nanos, stage: Stage<D>) -> Admitted {
        let waits = stage == Stage::Waiting;
        let full = waits && self.waiting >= self.queue_max;
        match self.calls.entry(call) {
            // It comes back from the server that it was passed on to, for another handler here.
            Entry::Occupied(mut place) if matches!(place.get().1, Stage::Forwarded(_)) && !full => {
                place.insert((deadline, stage));
                self.forwards -= 1;
                self.waiting += usize::from(waits);
                Admitted::Waits
            }
            Entry::Occupied(place) if matches!(place.get().1, Stage::Forwarded(_)) => Admitted::Busy,
            Entry::Occupied(_) => Admitted::Again,
            Entry::Vacant(_) if full => Admitted::Busy,
            Entry::Vacant(place) => {
                place.insert((deadline, stage));
                self.waiting += usize::from(waits);
                Admitted::Waits
            }
        }
    }

    /// It is the turn of a call that was admitted. Unless its handler begins, it has left.
    pub(crate) fn begin(&mut self, call: &Name<C>, now: Nanos) -> Turn {
        let (deadline, stage) = self.calls.get_mut(call).expect("what waits was admitted");
        let turn = match stage {
            Stage::Waiting if *deadline <= now => Turn::Late,
            Stage::Waiting => Turn::Begins,
            Stage::Withdrawn => Turn::Withdrawn,
            Stage::Running(_) | Stage::Forwarded(_) => unreachable!("a call has one turn"),
        };
        self.waiting -= 1;
        match turn {
            Turn::Begins => *stage = Stage::Running(false),
            Turn::Late | Turn::Withdrawn => _ = self.calls.remove(call),
        }
        turn
    }

    /// Whether the caller of a call that runs has withdrawn it.
    pub(crate) fn is_withdrawn(&self, call: &Name<C>) -> bool {
        matches!(self.calls.get(call), Some((_, Stage::Running(true))))
    }

    /// Its handler has answered it.
    pub(crate) fn finish(&mut self, call: &Name<C>) {
        let left = self.calls.remove(call);
        assert!(matches!(left, Some((_, Stage::Running(_)))), "a call that runs is answered once");
    }

    /// Its handler passes it on. False: too many were; it runs on.
    pub(crate) fn pass_on(&mut self, call: &Name<C>, to: D) -> bool {
        if self.forwards >= FORWARDS_MAX {
            return false;
        }
        let (_, stage) = self.calls.get_mut(call).expect("a call that runs is there");
        *stage = Stage::Forwarded(to);
        self.forwards += 1;
        true
    }

    /// It could not be passed on after all: it runs on.
    pub(crate) fn take_back(&mut self, call: &Name<C>) {
        if let Some((_, stage @ Stage::Forwarded(_))) = self.calls.get_mut(call) {
            *stage = Stage::Running(false);
            self.forwards -= 1;
        }
    }

    /// The caller does not want the answer any more.
    pub(crate) fn withdraw(&mut self, call: &Name<C>) -> Withdrawal<D> {
        let Some((_, stage)) = self.calls.get_mut(call) else { return Withdrawal::Noted };
        match stage {
            Stage::Waiting => *stage = Stage::Withdrawn,
            Stage::Withdrawn => {}
            Stage::Running(withdrawn) => *withdrawn = true,
            Stage::Forwarded(to) => return Withdrawal::Passed(*to),
        }
        Withdrawal::Noted
    }

    /// A server that calls were passed on to has died: their callers are to be told.
    pub(crate) fn delegate_lost(&mut self, lost: D) -> Vec<Name<C>> {
        self.take_passed(|_, to| to == lost)
    }

    /// A server that calls were passed on to cannot reach the caller of this one, who is to be
    /// told. Calls of several callers have the same id seldom, and not by chance.
    pub(crate) fn undelivered(&mut self, by: D, id: CallId) -> Vec<Name<C>> {
        self.take_passed(|call, to| to == by && call.1 == id)
    }

    fn take_passed(&mut self, wanted: impl Fn(&Name<C>, D) -> bool) -> Vec<Name<C>> {
        let passed = self.calls.iter().filter_map(|(call, (_, stage))| match stage {
            Stage::Forwarded(to) if wanted(call, *to) => Some(call.clone()),
            _ => None,
        });
        let passed: Vec<Name<C>> = passed.collect();
        passed.iter().for_each(|call| _ = self.calls.remove(call));
        self.forwards -= passed.len();
        passed
    }

    /// Forgets calls that were passed on and whose time is over: their callers have ended them.
    pub(crate) fn forget_late(&mut self, now: Nanos) {
        let before = self.calls.len();
        self.calls.retain(|_, (deadline, stage)| !(matches!(stage, Stage::Forwarded(_)) && *deadline <= now));
        self.forwards -= before - self.calls.len();
    }

    /// A caller has gone: what it has waiting is withdrawn, what was passed on is forgotten.
    pub(crate) fn caller_lost(&mut self, lost: &C) {
        let before = self.calls.len();
        self.calls.retain(|(caller, _), (_, stage)| {
            let theirs = caller == lost;
            if theirs && *stage == Stage::Waiting {
                *stage = Stage::Withdrawn;
            }
            !(theirs && matches!(stage, Stage::Forwarded(_)))
        });
        self.forwards -= before - self.calls.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> CallId {
        CallId { index, key: u64::from(index) * 3 }
    }

    #[test]
    fn a_full_queue_is_busy_and_a_call_that_comes_again_is_known() {
        let mut calls: Admission<u8, u8> = Admission::new(2);
        assert_eq!(calls.admit((1, id(1)), Nanos(10)), Admitted::Waits);
        assert_eq!(calls.admit((1, id(1)), Nanos(10)), Admitted::Again);
        assert_eq!(calls.admit((2, id(1)), Nanos(10)), Admitted::Waits);
        assert_eq!(calls.admit((3, id(1)), Nanos(10)), Admitted::Busy);
        assert_eq!(calls.begin(&(1, id(1)), Nanos(5)), Turn::Begins);
        assert_eq!(calls.admit((1, id(1)), Nanos(10)), Admitted::Again, "it runs");
        assert_eq!(calls.admit((3, id(1)), Nanos(10)), Admitted::Waits);
        calls.finish(&(1, id(1)));
        assert_eq!(calls.waiting(), 2);
    }

    #[test]
    fn no_handler_begins_late_or_after_a_withdrawal() {
        let mut calls: Admission<u8, u8> = Admission::new(8);
        for index in 0..4 {
            calls.admit((1, id(index)), Nanos(10 + u64::from(index)));
        }
        assert_eq!(calls.withdraw(&(1, id(1))), Withdrawal::Noted);
        assert_eq!(calls.begin(&(1, id(0)), Nanos(10)), Turn::Late);
        assert_eq!(calls.begin(&(1, id(1)), Nanos(10)), Turn::Withdrawn);
        assert_eq!(calls.begin(&(1, id(2)), Nanos(10)), Turn::Begins);
        assert!(!calls.is_withdrawn(&(1, id(2))));
        calls.withdraw(&(1, id(2)));
        assert!(calls.is_withdrawn(&(1, id(2))), "its handler can look");
        calls.finish(&(1, id(2)));
        calls.caller_lost(&1);
        assert_eq!(calls.begin(&(1, id(3)), Nanos(0)), Turn::Withdrawn);
        assert_eq!((calls.waiting(), calls.calls.len()), (0, 0));
    }

    #[test]
    fn calls_that_were_passed_on_are_known_until_their_time_is_over_or_the_delegate_is_lost() {
        let mut calls: Admission<u8, u8> = Admission::new(8);
        for index in 0..4 {
            calls.admit((1, id(index)), Nanos(100 + u64::from(index)));
            calls.begin(&(1, id(index)), Nanos(0));
            assert!(calls.pass_on(&(1, id(index)), (index % 2) as u8));
        }
        assert_eq!(calls.withdraw(&(1, id(3))), Withdrawal::Passed(1));
        calls.take_back(&(1, id(3)));
        calls.finish(&(1, id(3)));
        calls.forget_late(Nanos(100));
        assert_eq!((calls.undelivered(0, id(1)), calls.undelivered(1, id(2))), (vec![], vec![]));
        assert_eq!(calls.undelivered(1, id(1)), [(1, id(1))]);
        assert_eq!(calls.delegate_lost(0), [(1, id(2))]);
        assert_eq!(calls.delegate_lost(0), []);
        calls.admit((1, id(9)), Nanos(200));
        calls.begin(&(1, id(9)), Nanos(0));
        assert!(calls.pass_on(&(1, id(9)), 5));
        calls.caller_lost(&1);
        assert_eq!((calls.forwards, calls.calls.len()), (0, 0));
    }

    #[test]
    fn a_call_that_comes_back_from_where_it_was_passed_on_has_another_turn() {
        let mut calls: Admission<u8, u8> = Admission::new(1);
        let call = (1, id(1));
        assert_eq!(calls.admit(call, Nanos(100)), Admitted::Waits);
        calls.begin(&call, Nanos(0));
        assert!(calls.pass_on(&call, 7));
        calls.admit((2, id(2)), Nanos(100));
        assert_eq!(calls.admit(call, Nanos(100)), Admitted::Busy, "as any other");
        calls.begin(&(2, id(2)), Nanos(0));
        assert_eq!(calls.admit(call, Nanos(100)), Admitted::Waits);
        assert_eq!(calls.delegate_lost(7), [], "it is here");
        assert_eq!(calls.begin(&call, Nanos(0)), Turn::Begins);
        calls.finish(&call);
        calls.finish(&(2, id(2)));
        assert!(calls.is_idle() && calls.forwards == 0);
    }

    #[test]
    fn so_many_are_passed_on_and_no_more() {
        let mut calls: Admission<u8, u8> = Admission::new(8);
        for index in 0..=FORWARDS_MAX as u32 {
            calls.admit((1, id(index)), Nanos(100));
            calls.begin(&(1, id(index)), Nanos(0));
            assert_eq!(calls.pass_on(&(1, id(index)), 0), index < FORWARDS_MAX as u32);
        }
        calls.finish(&(1, id(FORWARDS_MAX as u32)));
    }
}
