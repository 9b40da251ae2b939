//! Which message is for which receive.
//!
//! Receives that wait for a message, and messages that wait for a receive, each in the order in
//! which they came. A receive takes the oldest message that it is for, and a message the oldest
//! receive that is for it: one number counts both, and so decides between a receive that names its
//! sender and one that does not. What is named exactly is found by a hash; receives with wildcards
//! are one list.
//!
//! Invariant: no message that waits is for a receive that waits. Source: SHRIMP's and the Paragon's
//! NX, whose rules MPI has made exact.

#[cfg(test)]
mod tests;

use foldhash::fast::RandomState;
use std::collections::{HashMap, VecDeque};

/// What a message is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Which group of members, and which use of it.
    pub context: u32,
    /// Its sender.
    pub source: u32,
    /// What the sender calls it.
    pub tag: u64,
}

/// What a receive is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Of messages of this context alone.
    pub context: u32,
    /// Of this sender, or of any.
    pub source: Option<u32>,
    /// Bits of the tag that matter, as they are to be.
    pub tag: u64,
    /// Which bits of the tag matter: all for one tag, 0 for any.
    pub mask: u64,
}

impl Pattern {
    /// Whether it is for this message.
    #[inline]
    pub fn is_for(&self, envelope: &Envelope) -> bool {
        self.context == envelope.context
            && self.source.is_none_or(|source| source == envelope.source)
            && self.tag & self.mask == envelope.tag & self.mask
    }

    /// The one envelope that it is for, if there is just one.
    fn exact(&self) -> Option<Envelope> {
        let source = self.source.filter(|_| self.mask == u64::MAX)?;
        Some(Envelope { context: self.context, source, tag: self.tag })
    }
}

/// No entry.
const NONE: u32 = u32::MAX;

/// Ends of a chain of entries.
#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// A receive that waits, in the chain of its envelope.
#[derive(Clone, Copy)]
struct Posted {
    id: u64,
    number: u64,
    next: u32,
}

/// A message that waits: in the chain of its envelope, and in the list of all.
struct Waiting<M> {
    envelope: Envelope,
    message: M,
    next: u32,
    older: u32,
    newer: u32,
}

/// See the module page. Receives are known by a number that the caller chooses; `M` is a message.
pub struct Matcher<M> {
    /// Counts receives.
    number: u64,
    posted: Vec<Posted>,
    posted_free: Vec<u32>,
    exact: HashMap<Envelope, Ends, RandomState>,
    /// Those with wildcards, in order: pattern, id, number.
    wild: VecDeque<(Pattern, u64, u64)>,
    waiting: Vec<Option<Waiting<M>>>,
    waiting_free: Vec<u32>,
    by_envelope: HashMap<Envelope, Ends, RandomState>,
    all: Ends,
    count: usize,
}

impl<M> Default for Matcher<M> {
    fn default() -> Self {
        Matcher {
            number: 0,
            posted: Vec::new(),
            posted_free: Vec::new(),
            exact: HashMap::default(),
            wild: VecDeque::new(),
            waiting: Vec::new(),
            waiting_free: Vec::new(),
            by_envelope: HashMap::default(),
            all: Ends { first: NONE, last: NONE },
            count: 0,
        }
    }
}

impl<M> Matcher<M> {
    /// Messages that wait for a receive.
    pub fn waiting(&self) -> usize {
        self.count
    }

    /// Whether some receive waits for a message.
    #[inline]
    pub fn has_receives(&self) -> bool {
        !self.exact.is_empty() || !self.wild.is_empty()
    }

    /// A message comes: the receive that takes it. None: [`keep`](Self::keep) it.
    #[inline]
    pub fn arrive(&mut self, envelope: &Envelope) -> Option<u64> {
        let ends = if self.exact.is_empty() { None } else { self.exact.get_mut(envelope) };
        let number = ends.as_ref().map_or(u64::MAX, |ends| self.posted[ends.first as usize].number);
        if !self.wild.is_empty() {
            let older = self.wild.iter().take_while(|(.., wild)| *wild < number);
            if let Some(at) = { older }.position(|(pattern, ..)| pattern.is_for(envelope)) {
                return self.wild.remove(at).map(|(_, id, _)| id);
            }
        }
        let ends = ends?;
        let at = ends.first;
        let Posted { id, next, .. } = self.posted[at as usize];
        ends.first = next;
        if next == NONE {
            self.exact.remove(envelope);
        }
        self.posted_free.push(at);
        Some(id)
    }

    /// Keeps a message that no receive has taken.
    pub fn keep(&mut self, envelope: Envelope, message: M) {
        let waiting = Waiting { envelope, message, next: NONE, older: self.all.last, newer: NONE };
        let at = match self.waiting_free.pop() {
            Some(at) => {
                self.waiting[at as usize] = Some(waiting);
                at
            }
            None => {
                self.waiting.push(Some(waiting));
                self.waiting.len() as u32 - 1
            }
        };
        match self.all.last {
            NONE => self.all.first = at,
            last => self.entry(last).newer = at,
        }
        self.all.last = at;
        self.count += 1;
        let ends = self.by_envelope.entry(envelope).or_insert(Ends { first: at, last: NONE });
        let last = std::mem::replace(&mut ends.last, at);
        if last != NONE {
            self.entry(last).next = at;
        }
    }

    /// A receive comes: the message that it takes. None: it waits, by this number.
    #[inline]
    pub fn post(&mut self, pattern: &Pattern, id: u64) -> Option<(Envelope, M)> {
        let taken = self.take(pattern);
        if taken.is_none() {
            self.wait(pattern, id);
        }
        taken
    }

    fn wait(&mut self, pattern: &Pattern, id: u64) {
        self.number += 1;
        let number = self.number;
        let Some(envelope) = pattern.exact() else {
            self.wild.push_back((*pattern, id, number));
            return;
        };
        let posted = Posted { id, number, next: NONE };
        let at = match self.posted_free.pop() {
            Some(at) => {
                self.posted[at as usize] = posted;
                at
            }
            None => {
                self.posted.push(posted);
                self.posted.len() as u32 - 1
            }
        };
        let ends = self.exact.entry(envelope).or_insert(Ends { first: at, last: NONE });
        let last = std::mem::replace(&mut ends.last, at);
        if last != NONE {
            self.posted[last as usize].next = at;
        }
    }

    /// Takes the oldest message that a receive of this pattern would take.
    #[inline]
    pub fn take(&mut self, pattern: &Pattern) -> Option<(Envelope, M)> {
        let at = self.find(pattern)?;
        Some(self.unlink(at))
    }

    /// Takes the oldest message of which this is true.
    pub fn remove_where(&mut self, is_it: impl Fn(&Envelope, &M) -> bool) -> Option<(Envelope, M)> {
        let mut at = self.all.first;
        while let Some(entry) = self.waiting.get(at as usize).and_then(Option::as_ref) {
            if is_it(&entry.envelope, &entry.message) {
                return Some(self.unlink(at));
            }
            at = entry.newer;
        }
        None
    }

    fn unlink(&mut self, at: u32) -> (Envelope, M) {
        let Waiting { envelope, message, next, older, newer } =
            self.waiting[at as usize].take().expect("what is found is there");
        self.waiting_free.push(at);
        self.count -= 1;
        match older {
            NONE => self.all.first = newer,
            older => self.entry(older).newer = newer,
        }
        match newer {
            NONE => self.all.last = older,
            newer => self.entry(newer).older = older,
        }
        let ends = self.by_envelope.get_mut(&envelope).expect("it has a chain");
        // The oldest of all that a receive takes is the first of its chain.
        let mut before = NONE;
        let mut first = ends.first;
        while first != at {
            let entry = self.waiting[first as usize].as_ref().expect("links lead to entries that are there");
            (before, first) = (first, entry.next);
        }
        match (before, next) {
            (NONE, NONE) => drop(self.by_envelope.remove(&envelope)),
            (NONE, next) => ends.first = next,
            (before, next) => {
                if next == NONE {
                    ends.last = before;
                }
                self.entry(before).next = next;
            }
        }
        (envelope, message)
    }

    /// The oldest message that a receive of this pattern would take.
    #[inline]
    pub fn probe(&self, pattern: &Pattern) -> Option<(&Envelope, &M)> {
        let entry = self.waiting[self.find(pattern)? as usize].as_ref();
        entry.map(|entry| (&entry.envelope, &entry.message))
    }

    #[inline]
    fn find(&self, pattern: &Pattern) -> Option<u32> {
        if self.count == 0 { None } else { self.find_waiting(*pattern) }
    }

    /// Takes a copy, so that a caller can have the pattern in registers where none waits.
    fn find_waiting(&self, pattern: Pattern) -> Option<u32> {
        if let Some(envelope) = pattern.exact() {
            return self.by_envelope.get(&envelope).map(|ends| ends.first);
        }
        let mut at = self.all.first;
        while let Some(entry) = self.waiting.get(at as usize).and_then(Option::as_ref) {
            if pattern.is_for(&entry.envelope) {
                return Some(at);
            }
            at = entry.newer;
        }
        None
    }

    /// A receive of this pattern and number waits no longer. False: it did not.
    pub fn cancel(&mut self, pattern: &Pattern, id: u64) -> bool {
        let Some(envelope) = pattern.exact() else {
            let at = self.wild.iter().position(|(_, wild, _)| *wild == id);
            return at.and_then(|at| self.wild.remove(at)).is_some();
        };
        let Some(ends) = self.exact.get_mut(&envelope) else { return false };
        let (mut before, mut at) = (NONE, ends.first);
        while at != NONE && self.posted[at as usize].id != id {
            (before, at) = (at, self.posted[at as usize].next);
        }
        if at == NONE {
            return false;
        }
        let next = self.posted[at as usize].next;
        match before {
            NONE => ends.first = next,
            before => self.posted[before as usize].next = next,
        }
        if next == NONE {
            ends.last = before;
        }
        if ends.first == NONE {
            self.exact.remove(&envelope);
        }
        self.posted_free.push(at);
        true
    }

    fn entry(&mut self, at: u32) -> &mut Waiting<M> {
        self.waiting[at as usize].as_mut().expect("links lead to entries that are there")
    }
}
