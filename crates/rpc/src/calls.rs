//! What a caller knows of its calls: a bounded table of records, from the call to its one outcome.
//!
//! Pure: time is an argument, and messages go out elsewhere. `begin` makes a record; `end`,
//! `settle`, `expire` and `lose` end the call, and each gives back what stood in it. An outcome
//! that somebody is to fetch stays until `collect`.
//!
//! Invariant: a call ends once. Who ends it must know its key, so an answer to a call that has
//! ended finds nothing, also when its place is in use again. Source: [GMS §3] call records.

use crate::limits::CALLS_MAX;
use crate::wire::CallId;
use vmmc_host::Nanos;

/// The records of a caller. `T` is what waits for the outcome, `O` an outcome.
pub(crate) struct Calls<T, O> {
    records: Vec<Option<Record<T, O>>>,
    free: Vec<u32>,
    /// Calls without an outcome.
    open: usize,
    /// No call's time is over before this.
    next_deadline: Nanos,
}

struct Record<T, O> {
    key: u64,
    state: State<T, O>,
}

enum State<T, O> {
    Open { deadline: Nanos, waits: T },
    Done(O),
}

impl<T, O> Default for Calls<T, O> {
    fn default() -> Self {
        Calls { records: Vec::new(), free: Vec::new(), open: 0, next_deadline: Nanos::MAX }
    }
}

impl<T, O> Calls<T, O> {
    /// Calls without an outcome.
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// Makes a record; `key` is one that nobody guesses. None: there are too many.
    #[inline(always)] // a record is made where it stays
    pub(crate) fn begin(&mut self, key: u64, deadline: Nanos, waits: T) -> Option<CallId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.records.len() < CALLS_MAX => {
                self.records.push(None);
                self.records.len() as u32 - 1
            }
            None => return None,
        };
        self.records[index as usize] = Some(Record { key, state: State::Open { deadline, waits } });
        self.open += 1;
        self.next_deadline = self.next_deadline.min(deadline);
        Some(CallId { index, key })
    }

    fn record(&mut self, id: CallId) -> Option<&mut State<T, O>> {
        let record = self.records.get_mut(id.index as usize)?.as_mut()?;
        (record.key == id.key).then_some(&mut record.state)
    }

    fn take_if(&mut self, id: CallId, wanted: impl FnOnce(&State<T, O>) -> bool) -> Option<State<T, O>> {
        let place = self.records.get_mut(id.index as usize)?;
        let taken = place.take_if(|record| record.key == id.key && wanted(&record.state))?;
        self.free.push(id.index);
        Some(taken.state)
    }

    /// What waits for a call.
    pub(crate) fn get_mut(&mut self, id: CallId) -> Option<&mut T> {
        match self.record(id)? {
            State::Open { waits, .. } => Some(waits),
            State::Done(_) => None,
        }
    }

    /// Whether a call has no outcome.
    #[cfg(test)]
    pub(crate) fn has(&mut self, id: CallId) -> bool {
        self.get_mut(id).is_some()
    }

    /// Whether the outcome of a call is there.
    pub(crate) fn is_done(&mut self, id: CallId) -> bool {
        matches!(self.record(id), Some(State::Done(_)))
    }

    /// Ends a call: its caller does not want it any more.
    pub(crate) fn end(&mut self, id: CallId) -> Option<T> {
        match self.take_if(id, |state| matches!(state, State::Open { .. }))? {
            State::Open { waits, .. } => {
                self.open -= 1;
                Some(waits)
            }
            State::Done(_) => unreachable!("it was open"),
        }
    }

    /// Ends a call by an outcome, which stays if `outcome` gives one for what waits. False: there
    /// is no such call.
    #[inline]
    pub(crate) fn settle(&mut self, id: CallId, outcome: impl FnOnce(&mut T) -> Option<O>) -> bool {
        let Some(state) = self.record(id) else { return false };
        let State::Open { waits, .. } = state else { return false };
        match outcome(waits) {
            Some(outcome) => *state = State::Done(outcome),
            None => {
                self.records[id.index as usize] = None;
                self.free.push(id.index);
            }
        }
        self.open -= 1;
        true
    }

    /// Takes the outcome of a call.
    pub(crate) fn collect(&mut self, id: CallId) -> Option<O> {
        match self.take_if(id, |state| matches!(state, State::Done(_)))? {
            State::Done(outcome) => Some(outcome),
            State::Open { .. } => unreachable!("it was done"),
        }
    }

    /// Ends the calls whose time is over, as by [`settle`](Self::settle).
    pub(crate) fn expire(&mut self, now: Nanos, outcome: impl FnMut(CallId, &mut T) -> Option<O>) {
        if now < self.next_deadline {
            return;
        }
        self.settle_if(|deadline| deadline <= now, outcome);
        let left = self.records.iter().flatten().filter_map(|record| match record.state {
            State::Open { deadline, .. } => Some(deadline),
            State::Done(_) => None,
        });
        self.next_deadline = left.min().unwrap_or(Nanos::MAX);
    }

    /// Ends all calls: nobody will answer them.
    pub(crate) fn lose(&mut self, outcome: impl FnMut(CallId, &mut T) -> Option<O>) {
        self.settle_if(|_| true, outcome);
    }

    fn settle_if(&mut self, ends: impl Fn(Nanos) -> bool, mut outcome: impl FnMut(CallId, &mut T) -> Option<O>) {
        for index in 0..self.records.len() {
            let Some(Record { key, state: State::Open { deadline, .. } }) = &self.records[index] else { continue };
            if ends(*deadline) {
                let id = CallId { index: index as u32, key: *key };
                self.settle(id, |waits| outcome(id, waits));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_call_has_one_outcome_whatever_happens_in_which_order() {
        let mut rng = vmmc_utlb::Rng::new(11);
        let mut calls: Calls<u64, u64> = Calls::default();
        let mut kept: BTreeMap<CallId, u64> = BTreeMap::new();
        let mut open: BTreeMap<CallId, (u64, u64)> = BTreeMap::new();
        let mut ended: Vec<CallId> = Vec::new();
        let (mut now, mut begun) = (0, 0);
        for _ in 0..100_000 {
            now += rng.below(50);
            match rng.below(100) {
                0..60 => {
                    let deadline = now + rng.below(40_000);
                    match calls.begin(rng.below(u64::MAX), Nanos(deadline), begun) {
                        Some(id) => assert_eq!(open.insert(id, (deadline, begun)), None),
                        None => assert_eq!(open.len() + kept.len(), CALLS_MAX),
                    }
                    begun += 1;
                }
                60..90 => {
                    // Sometimes of a call that is over, sometimes with a key that is guessed.
                    let old = rng.below(10) == 0;
                    let all: Vec<CallId> = if old { ended.clone() } else { open.keys().copied().collect() };
                    let Some(&id) = all.get(rng.below(all.len().max(1) as u64) as usize) else { continue };
                    let wrong = CallId { key: id.key ^ 1, ..id };
                    assert_eq!(calls.end(wrong), None);
                    let expected = open.remove(&id).map(|(_, waits)| waits);
                    match rng.below(3) {
                        0 => assert_eq!(calls.end(id), expected),
                        // The outcome stays, and is collected once.
                        1 => {
                            assert_eq!(calls.settle(id, |waits| Some(*waits + 1)), expected.is_some());
                            expected.iter().for_each(|waits| _ = kept.insert(id, waits + 1));
                            assert_eq!(calls.is_done(id), kept.contains_key(&id));
                        }
                        _ => assert_eq!(calls.settle(id, |_| None), expected.is_some()),
                    }
                    ended.push(id);
                }
                90..97 => {
                    let Some((&id, _)) = kept.iter().nth(rng.below(kept.len().max(1) as u64) as usize) else {
                        continue;
                    };
                    assert_eq!(calls.collect(CallId { key: id.key ^ 1, ..id }), None);
                    assert_eq!(calls.collect(id), kept.remove(&id));
                    assert_eq!(calls.collect(id), None);
                }
                97..99 => {
                    let mut over = Vec::new();
                    calls.expire(Nanos(now), |id, waits| {
                        over.push((id, *waits));
                        None
                    });
                    over.sort_unstable();
                    let late: Vec<CallId> = open.iter().filter(|(_, (at, _))| *at <= now).map(|(id, _)| *id).collect();
                    assert_eq!(over.iter().map(|(id, _)| *id).collect::<Vec<_>>(), late);
                    late.iter().for_each(|id| _ = open.remove(id));
                }
                _ if rng.below(20) == 0 => {
                    calls.lose(|id, waits| {
                        kept.insert(id, *waits);
                        Some(*waits)
                    });
                    open.clear();
                }
                _ => {}
            }
            assert_eq!(calls.len(), open.len());
        }
        assert!(ended.len() > 10_000);
    }
}
