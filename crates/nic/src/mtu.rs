//! How large the packets of one path may be: the search of a packetization layer [RFC 8899].
//!
//! A path starts with the size that its interface has, which is taken for good until something
//! speaks against it: so a wire that keeps its word costs no probe and no round trip, where RFC
//! 8899 would begin with its base. When large packets are lost again and again the size in use is
//! *doubted*: it is asked for by a padded ping, and beside it goes a small one. Only when the small
//! one is answered does the silence of the large one say something about sizes; losses of probes
//! say nothing about congestion.
//!
//! ```text
//!            told by the driver                     doubted, and three probes lost
//!   ────────────────────────────▶  complete  ─────────────────────────────────────┐
//!                                   │    ▲                                        ▼
//!               after 10 minutes, │    │ nothing left to try          ┌───────  base  ◀──┐
//!          below the interface's    ▼    │                              │          │       │
//!                                  searching  ◀── the base got through ─┘  three   │       │ after
//!                                   │    ▲                                 lost    ▼       │ 5 s
//!              three probes lost of │    │ a larger one got through              error ────┘
//!              one: smaller ones    └────┘
//! ```
//!
//! Invariants: `PACKET_BYTES_MIN <= size <= PACKET_BYTES_MAX`, and `size <= limit`; nobody's word
//! makes it smaller than that, nor larger once the driver's word has been wrong: only an answer
//! does.

use std::time::Duration;

use crate::limits::{
    MTU_ERROR_RETRY, MTU_PROBE_WAIT_MAX, MTU_PROBE_WAIT_MIN, MTU_PROBES_MAX, MTU_RAISE_AFTER, MTU_STEP_BYTES,
    PACKET_BYTES_MAX, PACKET_BYTES_MIN,
};
use crate::time::Time;

/// What a path does about the size of its packets; the states of RFC 8899, section 5.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MtuState {
    /// Larger packets were lost: whether those of 1,200 bytes get through is being asked.
    Base,
    /// Larger packets than those in use are being tried.
    Searching,
    /// Nothing is left to try.
    Complete,
    /// Not even 1,200 bytes get through: packets may be cut up on the way.
    Error,
}

impl MtuState {
    /// In a word.
    ///
    /// ```
    /// assert_eq!(vmmc_nic::MtuState::Searching.as_str(), "searching");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            MtuState::Base => "base",
            MtuState::Searching => "searching",
            MtuState::Complete => "complete",
            MtuState::Error => "error",
        }
    }
}

/// Two pings to send: one padded to `size` bytes, one as small as it can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) size: usize,
    pub(crate) token: u64,
    pub(crate) small: u64,
}

/// A size that has been asked for and not been answered.
#[derive(Clone, Copy, Debug)]
struct Asking {
    ask: Ask,
    small_answered: bool,
    /// Times that only the small ping was answered.
    failures: u32,
    /// Times in a row that neither was.
    silences: u32,
    due: Time,
}

/// See the module page.
#[derive(Debug)]
pub(crate) struct Search {
    state: MtuState,
    /// What may be sent.
    size: usize,
    /// What the interface takes: the largest that the driver has ever said.
    limit: usize,
    /// What the driver said last.
    word: Option<usize>,
    /// What it said has been wrong, or has become smaller.
    disproved: bool,
    /// Smallest size that did not get through; above the limit: none is known.
    bad: usize,
    /// A size above the one in use that the driver believes in.
    hint: Option<usize>,
    asking: Option<Asking>,
    /// When to begin again, if complete or in error.
    again: Time,
    black_holes: u64,
}

impl Search {
    /// A path of `bytes`, by the driver's word, or (`told` is false) until it says something.
    pub(crate) fn new(bytes: usize, told: bool) -> Search {
        let size = bytes.clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX);
        Search {
            state: MtuState::Complete,
            size,
            limit: size,
            word: told.then_some(size),
            disproved: false,
            bad: usize::MAX,
            hint: None,
            asking: None,
            again: Time::MAX,
            black_holes: 0,
        }
    }

    /// Bytes that packets may have.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Bytes that the interface takes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn state(&self) -> MtuState {
        self.state
    }

    /// How often packets of the size in use turned out not to get through.
    pub(crate) fn black_holes(&self) -> u64 {
        self.black_holes
    }

    /// The driver says what packets may have. It may have that from somebody who claims to be a
    /// router: a smaller size is taken at once, down to the base, and whether larger ones get
    /// through is asked [RFC 8899, section 4.6]. It says so with each question, and what it has
    /// said before is no news: answers may have shown that it is wrong.
    pub(crate) fn told(&mut self, bytes: usize) {
        let bytes = bytes.clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX);
        let before = self.word.replace(bytes);
        if before.is_none() {
            *self = Search::new(bytes, true);
        } else if bytes < self.size {
            if before == Some(bytes) {
                return;
            }
            self.disproved = true;
            self.size = bytes;
            self.search();
        } else if self.disproved {
            self.hint = Some(bytes);
            if bytes > self.limit {
                self.limit = bytes;
                self.search();
            }
        } else {
            self.size = bytes;
            self.limit = bytes;
        }
    }

    /// Begins to look for more than is in use.
    fn search(&mut self) {
        self.state = MtuState::Searching;
        self.bad = usize::MAX;
        self.asking = None;
    }

    /// Packets of about the size in use have been lost again and again. `cap`: what the peer takes.
    pub(crate) fn doubt(&mut self, cap: usize) {
        let doubted = self.asking.is_some_and(|asking| asking.ask.size <= self.size);
        let size = self.size.min(cap);
        if self.state != MtuState::Error && !doubted {
            self.asking = Some(Asking::new(size, Time::ZERO));
        }
    }

    /// Packets of the size in use get through: no probe need say so. A queue that is full has room
    /// for small pings longer than for large ones, and is no black hole.
    pub(crate) fn proven(&mut self) {
        if self.asking.is_some_and(|asking| asking.ask.size <= self.size) && self.state == MtuState::Complete {
            self.asking = None;
        }
    }

    /// A new session begins, whose peer knows no question of the former one.
    pub(crate) fn session_begins(&mut self, now: Time) {
        self.asking = None;
        self.again = self.again.min(now + MTU_RAISE_AFTER);
    }

    /// When to [`poll`](Self::poll); none: not before something happens.
    #[inline]
    pub(crate) fn due(&self) -> Option<Time> {
        match (self.asking, self.state) {
            (Some(asking), _) => Some(asking.due),
            (None, MtuState::Base | MtuState::Searching) => Some(Time::ZERO),
            (None, MtuState::Error | MtuState::Complete) => Some(self.again),
        }
        .filter(|at| *at < Time::MAX)
    }

    /// Does what is due: takes a size without an answer for lost, and gives what to ask next.
    /// `cap`: what the peer takes.
    /// `wait`: how long answers take at most, as a rule. `token` makes numbers that nobody guesses.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        cap: usize,
        wait: Duration,
        mut token: impl FnMut() -> u64,
    ) -> Option<Ask> {
        let wait = wait.max(MTU_PROBE_WAIT_MIN);
        if let Some(asking) = self.asking.as_mut() {
            if now < asking.due {
                return None;
            }
            if asking.has_begun() {
                asking.unanswered();
            }
            if asking.failures < MTU_PROBES_MAX {
                return Some(asking.go(now, wait, token));
            }
            let size = asking.ask.size;
            self.asking = None;
            self.lost(now, size);
        }
        let size = self.next_size(now, self.limit.min(cap))?;
        let asking = self.asking.insert(Asking::new(size, now));
        Some(asking.go(now, wait, &mut token))
    }

    /// Packets of a size do not get through.
    fn lost(&mut self, now: Time, size: usize) {
        if size > self.size {
            self.bad = size;
        } else if size > PACKET_BYTES_MIN {
            self.black_holes += 1;
            self.disproved = true;
            self.size = PACKET_BYTES_MIN;
            self.bad = size;
            self.state = MtuState::Base;
        } else {
            self.state = MtuState::Error;
            self.again = now + MTU_ERROR_RETRY;
        }
    }

    fn next_size(&mut self, now: Time, limit: usize) -> Option<usize> {
        match self.state {
            MtuState::Base => return Some(PACKET_BYTES_MIN),
            MtuState::Error => return (now >= self.again).then_some(PACKET_BYTES_MIN),
            MtuState::Complete if now < self.again => return None,
            // Nothing larger is known of. It is asked for all the same: the driver may hear of a
            // better path, and a worse one is noticed before something long goes there.
            MtuState::Complete if self.size >= limit => {
                self.again = now + MTU_RAISE_AFTER;
                return Some(limit).filter(|limit| *limit > PACKET_BYTES_MIN);
            }
            MtuState::Complete => self.search(),
            MtuState::Searching => {}
        }
        let between = |bytes: &usize| (self.size + 1..self.bad.min(limit + 1)).contains(bytes);
        if let Some(hint) = self.hint.take().filter(between) {
            return Some(hint);
        }
        if self.bad > limit && limit > self.size {
            return Some(limit);
        }
        let open = self.bad.min(limit + 1).saturating_sub(self.size);
        if open > MTU_STEP_BYTES {
            return Some(self.size + open / 2);
        }
        self.state = MtuState::Complete;
        self.again = now + MTU_RAISE_AFTER;
        None
    }

    /// Whether a ping with that token has been asked for.
    pub(crate) fn has_asked(&self, token: u64) -> bool {
        let asks = |asking: Asking| asking.has_begun() && [asking.ask.token, asking.ask.small].contains(&token);
        self.asking.is_some_and(asks)
    }

    /// A ping was answered; true when that made the size larger.
    pub(crate) fn answered(&mut self, token: u64) -> bool {
        let Some(asking) = self.asking.as_mut().filter(|asking| asking.has_begun()) else { return false };
        if token == asking.ask.small {
            asking.small_answered = true;
        }
        if token != asking.ask.token {
            return false;
        }
        let size = asking.ask.size;
        self.asking = None;
        match self.state {
            MtuState::Base => self.state = MtuState::Searching,
            // What the path did not take before it took nothing says nothing of what it takes now.
            MtuState::Error => self.search(),
            MtuState::Searching | MtuState::Complete => {}
        }
        let grows = size > self.size;
        self.size = self.size.max(size);
        grows
    }
}

impl Asking {
    /// To be asked as soon as possible.
    fn new(size: usize, due: Time) -> Asking {
        let ask = Ask { size, token: 0, small: 0 };
        Asking { ask, small_answered: false, failures: 0, silences: 0, due }
    }

    fn has_begun(&self) -> bool {
        self.ask.token != 0
    }

    /// The wait is over. What is late may still come: the tokens stay.
    fn unanswered(&mut self) {
        if std::mem::take(&mut self.small_answered) {
            self.failures += 1;
            self.silences = 0;
        } else {
            self.silences += 1;
        }
    }

    fn go(&mut self, now: Time, wait: Duration, mut token: impl FnMut() -> u64) -> Ask {
        if !self.has_begun() {
            (self.ask.token, self.ask.small) = (token().max(1), token().max(1));
        }
        let wait = wait.saturating_mul(1 << self.silences.min(10));
        self.due = now + wait.min(MTU_PROBE_WAIT_MAX);
        self.ask
    }
}

#[cfg(test)]
mod tests;
