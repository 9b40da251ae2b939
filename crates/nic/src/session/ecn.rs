//! Marks of queues in one session: what is asked for, what the peer says has come of it, what has
//! come here.
//!
//! ```text
//!            a count of what was sent           counts do not add up, or none come:
//!   Trying ─────────────────────────▶ InUse ──────────▶ Off: stripped, altered
//!     │                                                  │
//!     └──▶ Off: unanswered (time-outs, repetitions)      └──▶ Trying, when the path changes
//! ```
//!
//! Invariants: the peer counts a packet once, so its counts never exceed the packets of the session
//! and never shrink; one that says otherwise breaks the protocol. Counts that a path could have
//! made turn the marks off and harm nothing else. Sources: RFC 9000, section 13.4 and appendix A.4.
//! There, an acknowledgement without counts ends it; here counts come with some only, so it takes
//! [`ECN_UNSEEN_MAX`] packets that have arrived without any.

use super::Session;
use super::ack::Nonsense;
use crate::ecn::{Codepoint, Ecn, EcnOff, EcnState};
use crate::limits::{
    ECN_ECHO_EVERY, ECN_MISSING_MIN, ECN_MISSING_PART, ECN_REPEATED_MAX, ECN_TIMEOUTS_MAX, ECN_UNSEEN_MAX,
    ECN_UNTOLD_MAX,
};
use crate::time::Time;
use crate::wire::frame::Marks;

impl Marks {
    fn all(&self) -> u64 {
        self.ect0.saturating_add(self.ect1).saturating_add(self.ce)
    }

    fn of(&self, codepoint: Codepoint) -> u64 {
        match codepoint {
            Codepoint::NotEct => 0,
            Codepoint::Ect0 => self.ect0,
            Codepoint::Ect1 => self.ect1,
            Codepoint::Ce => self.ce,
        }
    }

    fn is_less_than(&self, other: &Marks) -> bool {
        self.ect0 < other.ect0 || self.ect1 < other.ect1 || self.ce < other.ce
    }
}

/// See the module page.
#[derive(Debug)]
pub(crate) struct Notification {
    choice: Ecn,
    state: EcnState,
    /// Packets from this number on were sent since the last try began.
    since: u64,
    /// Packets that have asked for marks.
    asked: u64,
    /// Of those since the try began, how many have arrived, and how many had when counts came last.
    arrived: u64,
    arrived_then: u64,
    /// The first packet that is counted so.
    certain_from: u64,
    /// Acknowledgements since then.
    untold: u32,
    /// The peer's newest counts, those when the try began, and the packet after the one that
    /// brought the newest.
    told: Marks,
    told_then: Marks,
    told_in: u64,
    /// Timeouts since something has arrived.
    timeouts: u32,
    /// Packets in a row that the peer had sent before.
    repeated: u32,
    /// What has come here, and what of that the peer knows.
    seen: Marks,
    echoed: Marks,
    /// The last packet with chunks had a mark.
    marked: bool,
}

/// What new counts say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct News {
    /// Packets that have arrived, and those of them that a queue has marked.
    pub(crate) all: u64,
    pub(crate) marked: u64,
}

impl Notification {
    pub(crate) fn new(choice: Ecn) -> Notification {
        let mut new = Notification {
            choice,
            state: EcnState::Trying,
            since: 0,
            asked: 0,
            arrived: 0,
            arrived_then: 0,
            certain_from: 0,
            untold: 0,
            told: Marks::default(),
            told_then: Marks::default(),
            told_in: 0,
            timeouts: 0,
            repeated: 0,
            seen: Marks::default(),
            echoed: Marks::default(),
            marked: false,
        };
        new.try_again(0);
        new
    }

    pub(crate) fn state(&self) -> EcnState {
        self.state
    }

    /// What a packet goes out with.
    #[inline]
    pub(crate) fn codepoint(&self) -> Codepoint {
        match self.state {
            EcnState::Off(_) => Codepoint::NotEct,
            EcnState::Trying | EcnState::InUse => self.choice.codepoint(),
        }
    }

    /// A packet goes out with that.
    #[inline]
    pub(crate) fn sent(&mut self) {
        self.asked += u64::from(!matches!(self.state, EcnState::Off(_)));
    }

    /// The path has changed; `next` is the next packet to be sent.
    pub(crate) fn try_again(&mut self, next: u64) {
        self.state = if self.choice == Ecn::Off { EcnState::Off(EcnOff::Chosen) } else { EcnState::Trying };
        (self.since, self.arrived, self.arrived_then, self.untold) = (next, 0, 0, 0);
        (self.timeouts, self.repeated) = (0, 0);
        self.told_then = self.told;
    }

    /// A packet with chunks has arrived at the peer.
    #[inline]
    pub(crate) fn has_arrived(&mut self, number: u64) {
        if number >= self.since {
            self.arrived += u64::from(number >= self.certain_from);
            self.timeouts = 0;
        }
    }

    /// What was under way goes again, though nothing tells of its loss: of the packets before
    /// `next` nobody knows which arrive.
    pub(crate) fn goes_again(&mut self, next: u64) {
        self.certain_from = next;
    }

    /// To be called with each acknowledgement, before the counts in it are taken: looks whether
    /// counts are missing.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.untold += 1;
        // Where there were reports, one acknowledgement that closes a gap may tell of hundreds.
        let untold = self.state == EcnState::Trying || self.untold > ECN_UNTOLD_MAX;
        if untold && self.arrived - self.arrived_then > ECN_UNSEEN_MAX {
            self.turn_off(EcnOff::Stripped);
        }
    }

    fn turn_off(&mut self, why: EcnOff) {
        if !matches!(self.state, EcnState::Off(_)) {
            self.state = EcnState::Off(why);
        }
    }

    /// Counts have come in packet `number` of the peer, behind what is acknowledged with them;
    /// `sent` packets have gone out. Only if the packet is the `newest` of the peer are the counts
    /// those of what is known to have arrived.
    pub(crate) fn told(
        &mut self,
        (number, newest): (u64, bool),
        told: Marks,
        sent: u64,
    ) -> Result<Option<News>, Nonsense> {
        if number < self.told_in {
            return Ok(None);
        }
        let before = self.told;
        if told.is_less_than(&before) || told.all() > sent {
            return Err(Nonsense);
        }
        (self.told, self.told_in) = (told, number + 1);
        if matches!(self.state, EcnState::Off(_)) {
            return Ok(None);
        }
        (self.arrived_then, self.untold) = (self.arrived, 0);
        let other = if self.choice == Ecn::L4s { Codepoint::Ect0 } else { Codepoint::Ect1 };
        let came = told.all() - self.told_then.all();
        let missing = if newest { self.arrived.saturating_sub(came) } else { 0 };
        if told.of(other) > self.told_then.of(other) || told.all() > self.asked {
            self.turn_off(EcnOff::Altered);
        } else if missing > ECN_MISSING_MIN && missing > self.arrived / ECN_MISSING_PART {
            self.turn_off(EcnOff::Stripped);
        } else if came > 0 {
            self.state = EcnState::InUse;
            return Ok(Some(News { all: told.all() - before.all(), marked: told.ce - before.ce }));
        }
        Ok(None)
    }

    /// Nothing came back in time.
    pub(crate) fn timed_out(&mut self) {
        self.timeouts += 1;
        if self.state == EcnState::Trying && self.timeouts >= ECN_TIMEOUTS_MAX {
            self.turn_off(EcnOff::Unanswered);
        }
    }

    /// A packet has come, with chunks that had come before or not: whether the peer gets what this
    /// side only acknowledges.
    #[inline]
    pub(crate) fn came(&mut self, duplicate: bool) {
        if !duplicate {
            self.repeated = 0;
            return;
        }
        self.repeated = self.repeated.saturating_add(1);
        if self.state == EcnState::Trying && self.repeated >= ECN_REPEATED_MAX {
            self.turn_off(EcnOff::Unanswered);
        }
    }

    /// A packet has come with that; says whether it is marked.
    #[inline]
    pub(crate) fn count(&mut self, codepoint: Codepoint) -> bool {
        match codepoint {
            Codepoint::NotEct => return false,
            Codepoint::Ect0 => self.seen.ect0 += 1,
            Codepoint::Ect1 => self.seen.ect1 += 1,
            Codepoint::Ce => self.seen.ce += 1,
        }
        codepoint == Codepoint::Ce
    }

    /// Whether marks begin with this packet, which has chunks: the peer hears at once.
    #[inline]
    fn begins(&mut self, marked: bool) -> bool {
        let before = std::mem::replace(&mut self.marked, marked);
        marked && !before
    }

    /// The counts, if the peer is to hear of them with the next acknowledgement.
    #[inline]
    pub(crate) fn due(&self) -> Option<&Marks> {
        let (seen, echoed) = (&self.seen, &self.echoed);
        let news = seen.all() - echoed.all();
        let due = seen.ce > echoed.ce || news >= ECN_ECHO_EVERY || news > 0 && echoed.all() == 0;
        due.then_some(seen)
    }

    /// They have gone out.
    pub(crate) fn echo(&mut self) -> Marks {
        self.echoed = self.seen;
        self.seen
    }
}

impl Session {
    /// Packets go another way from now on: what marks are worth there is to be found out.
    pub(crate) fn path_changed(&mut self) {
        self.stats.path_switches += 1;
        self.notification.try_again(self.tx.next_packet);
    }

    /// Counts a packet of the peer by how it came.
    #[inline]
    pub(crate) fn came_with(&mut self, codepoint: Codepoint) -> bool {
        let marked = self.notification.count(codepoint);
        self.stats.marked_in += u64::from(marked);
        marked
    }

    /// A packet of the peer was `marked`, and has been taken: if marks begin with it, and it calls
    /// for an acknowledgement, that goes out at once [RFC 9000, section 13.2.1].
    #[inline]
    pub(crate) fn was_marked(&mut self, marked: bool) {
        if self.rx.pending_packets > 0 && self.notification.begins(marked) {
            self.rx.ack_now = true;
        }
    }

    /// Takes the peer's counts, after the acknowledgement that they came with.
    pub(crate) fn marks_told(&mut self, now: Time, number: u64, told: Marks) -> Result<(), Nonsense> {
        let news = self.notification.told((number, number >= self.newest_packet), told, self.tx.next_packet)?;
        if let (Some(news), Some(largest)) = (news, self.tx.largest_acked) {
            self.stats.marked_out += news.marked;
            self.congestion.marked(now, (news.marked, news.all), (largest, self.tx.next_packet), self.tx.in_flight);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
