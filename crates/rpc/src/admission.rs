//! What a server knows of the calls that it has not answered: those that wait for a thread, those
//! that a handler has, and those that were passed on.
//!
//! Pure: time is an argument, and messages go out elsewhere. A call comes in by `admit`, its
//! handler begins by `begin`, and it leaves by `finish` or `pass_on`.
//!
//! Nobody tells a server that a call it has passed on was answered. It learns so when the caller
//! uses the record again, when the time is over, or when the caller goes.
//!
//! Invariants: of a call a handler begins once at most, and not after its time, nor after it was
//! withdrawn; a call leaves once. Source: [GMS §3] delegated calls.

use crate::limits::{PASSED_MAX, share_allows};
use crate::recent::Recent;
use crate::wire::CallId;
use foldhash::{HashMap, HashMapExt};
use std::hash::Hash;
use vmmc_host::Nanos;

/// A call, by whose it is and its id there.
pub(crate) type Name<C> = (C, CallId);

/// The calls of a server. `C` names callers, `D` servers that calls are passed on to.
pub(crate) struct Admission<C, D> {
    queue_max: usize,
    waiting: usize,
    /// Those that are here.
    calls: Recent<Name<C>, (Nanos, Stage)>,
    /// Those that were passed on, by caller and place of its record.
    passed: HashMap<(C, u32), Passed<D>>,
    /// How many of these each caller has.
    passed_of: HashMap<C, usize>,
}

/// A call that was passed on.
struct Passed<D> {
    key: u64,
    deadline: Nanos,
    to: D,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// It was withdrawn while it waited.
    Withdrawn,
    /// Whether it was withdrawn since.
    Running(bool),
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
        Admission { queue_max, waiting: 0, calls: Recent::default(), passed: HashMap::new(), passed_of: HashMap::new() }
    }

    /// Calls that wait for a handler.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether there is no call that is not answered, as far as is known.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.passed.is_empty()
    }

    /// Whether no call is here, for a handler or with one.
    pub(crate) fn has_none_here(&self) -> bool {
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

    fn place(&mut self, call: Name<C>, deadline: Nanos, stage: Stage) -> Admitted {
        let waits = stage == Stage::Waiting;
        let full = waits && self.waiting >= self.queue_max;
        // It may have been passed on, and come back for another handler here. If another one of the
        // same record was, its caller has ended that.
        if !full && !self.passed.is_empty() {
            self.forget(&call.0, call.1.index);
        }
        match () {
            () if self.calls.contains(&call) => Admitted::Again,
            () if full => Admitted::Busy,
            () => {
                self.calls.insert(call, (deadline, stage));
                self.waiting += usize::from(waits);
                Admitted::Waits
            }
        }
    }

    /// Forgets a call that was passed on.
    fn forget(&mut self, caller: &C, index: u32) -> Option<Passed<D>> {
        let passed = self.passed.remove(&(caller.clone(), index))?;
        let of = self.passed_of.get_mut(caller).expect("it has had one");
        *of -= 1;
        if *of == 0 {
            self.passed_of.remove(caller);
        }
        Some(passed)
    }

    /// It is the turn of a call that was admitted. Unless its handler begins, it has left.
    pub(crate) fn begin(&mut self, call: &Name<C>, now: Nanos) -> Turn {
        let (deadline, stage) = self.calls.get_mut(call).expect("what waits was admitted");
        let turn = match stage {
            Stage::Waiting if *deadline <= now => Turn::Late,
            Stage::Waiting => Turn::Begins,
            Stage::Withdrawn => Turn::Withdrawn,
            Stage::Running(_) => unreachable!("a call has one turn"),
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

    /// Its handler passes it on. False: too many of its caller's were; it runs on.
    pub(crate) fn pass_on(&mut self, call: &Name<C>, to: D) -> bool {
        let (caller, CallId { index, key }) = call;
        let own = self.passed_of.get(caller).copied().unwrap_or(0);
        let known = self.passed.get(&(caller.clone(), *index));
        if known.is_none() && !share_allows(own, self.passed.len(), PASSED_MAX) {
            return false;
        }
        let (deadline, stage) = self.calls.remove(call).expect("a call that runs is there");
        assert!(matches!(stage, Stage::Running(_)), "a call that runs is passed on");
        // Of one record two can come, over other servers, in whatever order: one of them is over.
        if known.is_none_or(|known| known.deadline <= deadline) {
            let new = self.passed.insert((caller.clone(), *index), Passed { key: *key, deadline, to }).is_none();
            *self.passed_of.entry(caller.clone()).or_default() += usize::from(new);
        }
        true
    }

    /// It could not be passed on after all: it runs on.
    pub(crate) fn take_back(&mut self, call: &Name<C>) {
        if self.is_passed(call).is_some() {
            let deadline = self.forget(&call.0, call.1.index).map_or(Nanos::MAX, |passed| passed.deadline);
            self.calls.insert(call.clone(), (deadline, Stage::Running(false)));
        }
    }

    /// The server that a call was passed on to.
    fn is_passed(&self, (caller, id): &Name<C>) -> Option<D> {
        self.passed.get(&(caller.clone(), id.index)).filter(|passed| passed.key == id.key).map(|passed| passed.to)
    }

    /// The caller does not want the answer any more.
    pub(crate) fn withdraw(&mut self, call: &Name<C>) -> Withdrawal<D> {
        match self.calls.get_mut(call) {
            Some((_, stage @ Stage::Waiting)) => *stage = Stage::Withdrawn,
            Some((_, Stage::Running(withdrawn))) => *withdrawn = true,
            Some((_, Stage::Withdrawn)) => {}
            None => return self.is_passed(call).map_or(Withdrawal::Noted, Withdrawal::Passed),
        }
        Withdrawal::Noted
    }

    /// A server that calls were passed on to has died: their callers are to be told.
    pub(crate) fn delegate_lost(&mut self, lost: D) -> Vec<Name<C>> {
        self.take_passed(|_, passed| passed.to == lost)
    }

    /// A server that calls were passed on to cannot reach the caller of this one, who is to be
    /// told. Calls of several callers have the same key seldom, and not by chance.
    pub(crate) fn undelivered(&mut self, by: D, id: CallId) -> Vec<Name<C>> {
        self.take_passed(|_, passed| passed.to == by && passed.key == id.key)
    }

    fn take_passed(&mut self, wanted: impl Fn(&C, &Passed<D>) -> bool) -> Vec<Name<C>> {
        let passed = self.passed.iter().filter(|((caller, _), passed)| wanted(caller, passed));
        let passed =
            passed.map(|((caller, index), passed)| (caller.clone(), CallId { index: *index, key: passed.key }));
        let passed: Vec<Name<C>> = passed.collect();
        passed.iter().for_each(|(caller, id)| _ = self.forget(caller, id.index));
        passed
    }

    /// Forgets calls that were passed on and whose time is over: their callers have ended them.
    pub(crate) fn forget_late(&mut self, now: Nanos) {
        self.take_passed(|_, passed| passed.deadline <= now);
    }

    /// A caller has gone: what it has waiting is withdrawn, what was passed on is forgotten.
    pub(crate) fn caller_lost(&mut self, lost: &C) {
        let waiting =
            self.calls.iter_mut().filter(|((caller, _), (_, stage))| caller == lost && *stage == Stage::Waiting);
        waiting.for_each(|(_, (_, stage))| *stage = Stage::Withdrawn);
        self.take_passed(|caller, _| caller == lost);
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
        assert!(calls.is_idle() && calls.passed_of.is_empty());
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
        assert!(calls.is_idle() && calls.passed_of.is_empty());
    }

    #[test]
    fn a_caller_has_no_more_passed_on_than_are_then_free_and_others_have_theirs() {
        let mut calls: Admission<u8, u8> = Admission::new(8);
        let mut pass = |caller: u8, index: u32| {
            let call = (caller, id(index));
            assert_eq!(calls.admit_and_begin(call, Nanos(100), Nanos(0)), Ok(Turn::Begins));
            let passed = calls.pass_on(&call, 0);
            if !passed {
                calls.finish(&call);
            }
            passed
        };
        let taken = (0..).take_while(|index| pass(1, *index)).count();
        assert!((PASSED_MAX / 2 - 1..=PASSED_MAX / 2).contains(&taken), "{taken}");
        assert!(pass(2, 0) && !pass(1, u32::MAX));
    }

    #[test]
    fn a_caller_that_uses_its_record_again_has_ended_what_was_passed_on() {
        let mut calls: Admission<u8, u8> = Admission::new(8);
        // Many more than can be known at once.
        for key in 0..3 * PASSED_MAX as u64 {
            let call = (1, CallId { index: 5, key });
            assert_eq!(calls.admit_and_begin(call, Nanos(1_000 + key), Nanos(0)), Ok(Turn::Begins));
            assert!(calls.pass_on(&call, 7));
            assert_eq!(calls.passed.len(), 1);
        }
        let last = (1, CallId { index: 5, key: 3 * PASSED_MAX as u64 - 1 });
        assert_eq!(calls.withdraw(&(1, CallId { index: 5, key: 0 })), Withdrawal::Noted);
        assert_eq!(calls.withdraw(&last), Withdrawal::Passed(7));
        assert_eq!(calls.delegate_lost(7), [last]);
        assert!(calls.is_idle());
    }
}
