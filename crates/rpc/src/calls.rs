//! What a caller knows of its calls: a bounded table of records, from the call to its one outcome.
//!
//! Pure: time is an argument, and messages go out elsewhere. `begin` makes a record; `answered`,
//! `lost`, `withdraw` and `expire` end it, and each gives back what stood in it.
//!
//! Invariant: a record ends once. Who ends it must know its key, so an answer to a call that has
//! ended finds nothing, also when its place is in use again. Source: [GMS §3] call records.

use crate::limits::CALLS_MAX;
use crate::wire::CallId;
use vmmc_host::Nanos;

/// The records of a caller. `T` is what waits for the outcome.
pub(crate) struct Calls<T> {
    records: Vec<Option<Record<T>>>,
    free: Vec<u32>,
    /// No call's time is over before this.
    next_deadline: Nanos,
}

struct Record<T> {
    key: u64,
    deadline: Nanos,
    waits: T,
}

impl<T> Default for Calls<T> {
    fn default() -> Self {
        Calls { records: Vec::new(), free: Vec::new(), next_deadline: Nanos::MAX }
    }
}

impl<T> Calls<T> {
    /// Calls without an outcome.
    pub(crate) fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// Makes a record; `key` is one that nobody guesses. None: there are too many.
    pub(crate) fn begin(&mut self, key: u64, deadline: Nanos, waits: T) -> Option<CallId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.records.len() < CALLS_MAX => {
                self.records.push(None);
                self.records.len() as u32 - 1
            }
            None => return None,
        };
        self.records[index as usize] = Some(Record { key, deadline, waits });
        self.next_deadline = self.next_deadline.min(deadline);
        Some(CallId { index, key })
    }

    /// What waits for a call.
    pub(crate) fn get_mut(&mut self, id: CallId) -> Option<&mut T> {
        let record = self.records.get_mut(id.index as usize)?.as_mut()?;
        (record.key == id.key).then_some(&mut record.waits)
    }

    /// Whether a call has no outcome.
    #[cfg(test)]
    pub(crate) fn has(&self, id: CallId) -> bool {
        let record = self.records.get(id.index as usize).and_then(Option::as_ref);
        record.is_some_and(|record| record.key == id.key)
    }

    /// Ends a call: by its answer, or because its caller does not want it any more.
    pub(crate) fn end(&mut self, id: CallId) -> Option<T> {
        self.get_mut(id)?;
        let record = self.records[id.index as usize].take()?;
        self.free.push(id.index);
        Some(record.waits)
    }

    /// Ends the calls whose time is over.
    pub(crate) fn expire(&mut self, now: Nanos) -> Vec<(CallId, T)> {
        if now < self.next_deadline {
            return Vec::new();
        }
        let over = self.end_if(|record| record.deadline <= now);
        let left = self.records.iter().flatten().map(|record| record.deadline);
        self.next_deadline = left.min().unwrap_or(Nanos::MAX);
        over
    }

    /// Ends all calls: nobody will answer them.
    pub(crate) fn lose(&mut self) -> Vec<(CallId, T)> {
        self.end_if(|_| true)
    }

    fn end_if(&mut self, ends: impl Fn(&Record<T>) -> bool) -> Vec<(CallId, T)> {
        let mut ended = Vec::new();
        for (place, index) in self.records.iter_mut().zip(0..) {
            if let Some(record) = place.take_if(|record| ends(record)) {
                self.free.push(index);
                ended.push((CallId { index, key: record.key }, record.waits));
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_call_has_one_outcome_whatever_happens_in_which_order() {
        let mut rng = vmmc_utlb::Rng::new(11);
        let mut calls = Calls::default();
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
                        None => assert_eq!(open.len(), CALLS_MAX),
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
                    assert_eq!(calls.end(id), expected);
                    ended.push(id);
                }
                90..99 => {
                    let mut over = calls.expire(Nanos(now));
                    over.sort_unstable();
                    let late: Vec<CallId> = open.iter().filter(|(_, (at, _))| *at <= now).map(|(id, _)| *id).collect();
                    assert_eq!(over.iter().map(|(id, _)| *id).collect::<Vec<_>>(), late);
                    late.iter().for_each(|id| _ = open.remove(id));
                }
                _ if rng.below(20) == 0 => {
                    assert_eq!(calls.lose().len(), open.len());
                    open.clear();
                }
                _ => {}
            }
            assert_eq!(calls.len(), open.len());
        }
        assert!(ended.len() > 10_000);
    }
}
