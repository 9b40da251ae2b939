//! How much may be under way to a peer, and how fast it goes out.
//!
//! One [`Controller`] decides, of two kinds; it is told what is sent, what arrives and what is
//! lost, and knows no clock of its own. What both need is here: which losses belong together,
//! and what is undone when they turn out to be none [RFC 4015].
//!
//! Invariants: the window is at least [`WINDOW_MIN_PACKETS`] packets and at most
//! [`WINDOW_MAX_BYTES`]; one reduction per round trip.

mod bbr;
mod choice;
mod cubic;
mod delivery;
mod marks;
mod pacer;
mod round_trip;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::ecn::Ecn;
use crate::limits::{WINDOW_INITIAL_BYTES, WINDOW_INITIAL_PACKETS, WINDOW_MAX_BYTES, WINDOW_MIN_PACKETS};
use crate::time::Time;

use bbr::Bbr;
pub use choice::{BadCongestionControl, CongestionControl};
use cubic::Cubic;
pub(crate) use delivery::Snapshot;
use delivery::{Delivery, Sample};
use marks::Rounds;
pub(crate) use pacer::Pacer;
pub(crate) use round_trip::RoundTrip;

/// An acknowledgement that says that something has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acked {
    pub(crate) now: Time,
    /// Bytes that have arrived, and all that ever have.
    pub(crate) bytes: usize,
    pub(crate) delivered: u64,
    /// Bytes under way now.
    pub(crate) in_flight: usize,
    /// The window has held the sender back in the last round trip.
    pub(crate) limited: bool,
    /// Number of the newest packet that has arrived, and of the next one to be sent.
    pub(crate) largest: u64,
    pub(crate) next: u64,
    /// Smoothed, if measured.
    pub(crate) smoothed: Option<Duration>,
    /// If that packet is newer than all that had arrived before.
    pub(crate) sample: Option<Sample>,
}

/// A packet that was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    /// The first of those that belong together.
    pub(crate) first: bool,
    pub(crate) now: Time,
    /// Number of the packet, and of the next one to be sent.
    pub(crate) number: u64,
    pub(crate) next: u64,
    pub(crate) bytes: usize,
    /// Bytes lost since it was sent, and bytes that were under way then.
    pub(crate) lost: u64,
    pub(crate) in_flight: usize,
    /// See [`Snapshot`].
    pub(crate) app_limited: bool,
    /// Bytes that have ever arrived.
    pub(crate) delivered: u64,
}

/// Packets that a queue has marked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked {
    /// The first of those that belong together: nothing was reduced in this round trip yet.
    pub(crate) first: bool,
    pub(crate) now: Time,
    /// Bytes under way now.
    pub(crate) in_flight: usize,
    /// See [`Snapshot`]: of what is sent now.
    pub(crate) app_limited: bool,
    /// Bytes that have ever arrived.
    pub(crate) delivered: u64,
    /// Part of packets that is marked in the mean, of 1,024; none: a mark is as a loss.
    pub(crate) mean: Option<u64>,
    /// A round trip has ended with this, of whose packets so many in 1,024 were marked.
    pub(crate) round: Option<u64>,
}

/// What a controller believes, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Estimates {
    /// What it does, in a word.
    pub(crate) state: &'static str,
    /// Bytes per second that the path takes; none: it does not ask.
    pub(crate) bandwidth: Option<u64>,
    /// Shortest round trip that it reckons with; none: it does not ask.
    pub(crate) shortest: Option<Duration>,
}

/// An algorithm. The caller sees to it that calls come in the order of what happens.
pub(crate) trait Controller {
    /// A packet with so many bytes goes out while `before` are under way; `app_limited`: there may
    /// be no more.
    fn on_sent(&mut self, now: Time, before: usize, app_limited: bool);
    /// Something has arrived.
    fn on_ack(&mut self, ack: &Acked);
    /// A packet was lost.
    fn on_loss(&mut self, loss: &Loss);
    /// Queues have marked packets, or a round trip in which they have is over.
    fn on_marks(&mut self, marked: &Marked);
    /// Everything has arrived that was lost since the last [first](Loss::first) loss.
    fn on_undo(&mut self);
    /// Nothing came back for a long time: all that was under way counts as lost.
    fn on_timeout(&mut self);
    /// A round trip is known before anything has arrived.
    fn on_round_trip(&mut self, smoothed: Duration);
    /// Bytes of the packets from now on.
    fn set_packet(&mut self, bytes: usize);
    /// Bytes that may be under way.
    fn window(&self) -> usize;
    /// Bytes per second at which packets go out; none: as fast as they can.
    fn pacing_rate(&self) -> Option<u64>;
    /// What it believes.
    fn estimates(&self) -> Estimates;
}

/// Window at the start.
fn initial_window(packet: usize) -> usize {
    (packet * WINDOW_INITIAL_PACKETS).max(WINDOW_INITIAL_BYTES)
}

/// A window within its bounds.
fn bounded(window: usize, packet: usize) -> usize {
    window.clamp(packet * WINDOW_MIN_PACKETS, WINDOW_MAX_BYTES)
}

/// One of them, without a table of functions on the way of each packet.
#[derive(Clone, Debug)]
enum Either {
    Bbr(Box<Bbr>),
    Cubic(Box<Cubic>),
}

/// Calls it, whichever it is.
macro_rules! controller {
    ($either:expr, $call:ident($($with:expr),*)) => {
        match &mut $either {
            Either::Bbr(it) => it.$call($($with),*),
            Either::Cubic(it) => it.$call($($with),*),
        }
    };
    ($either:expr, read $call:ident()) => {
        match &$either {
            Either::Bbr(it) => it.$call(),
            Either::Cubic(it) => it.$call(),
        }
    };
}

/// The controller of a session, and its accounts.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    controller: Either,
    delivery: Delivery,
    /// Losses of packets up to this number belong to a reduction already made.
    recovery_until: Option<u64>,
    /// Reductions so far.
    reductions: u32,
    /// Chunks whose loss belongs to the last one and that may have been lost; none: it stays.
    undo: Option<u64>,
    /// Packets from this number on were sent when the window had held nothing back; 0: all.
    limited_until: u64,
    /// Marks are told as parts of what was sent, not as losses.
    in_parts: bool,
    marks: Rounds,
}

/// A packet that counts as lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostPacket {
    pub(crate) number: u64,
    pub(crate) sent: Snapshot,
    /// Those of it that have not arrived.
    pub(crate) chunks: u64,
    pub(crate) bytes: usize,
}

impl Congestion {
    /// `seed`: of what is left to chance.
    pub(crate) fn new(control: CongestionControl, ecn: Ecn, packet_bytes: usize, seed: u64) -> Congestion {
        Congestion {
            controller: match control {
                CongestionControl::Bbr => Either::Bbr(Box::new(Bbr::new(packet_bytes, seed))),
                CongestionControl::Cubic => Either::Cubic(Box::new(Cubic::new(packet_bytes))),
            },
            delivery: Delivery::default(),
            recovery_until: None,
            reductions: 0,
            undo: None,
            limited_until: 0,
            in_parts: ecn == Ecn::L4s,
            marks: Rounds::default(),
        }
    }

    #[inline]
    pub(crate) fn window(&self) -> usize {
        controller!(self.controller, read window())
    }

    #[inline]
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        controller!(self.controller, read pacing_rate())
    }

    /// What the controller believes.
    pub(crate) fn estimates(&self) -> Estimates {
        controller!(self.controller, read estimates())
    }

    /// Which controller it is.
    pub(crate) fn control(&self) -> CongestionControl {
        match self.controller {
            Either::Bbr(_) => CongestionControl::Bbr,
            Either::Cubic(_) => CongestionControl::Cubic,
        }
    }

    /// Reductions so far.
    pub(crate) fn reductions(&self) -> u32 {
        self.reductions
    }

    pub(crate) fn set_packet(&mut self, bytes: usize) {
        controller!(self.controller, set_packet(bytes));
    }

    /// A round trip is known before anything has arrived: the handshake's.
    pub(crate) fn measured(&mut self, rtt: &RoundTrip) {
        if let Some(smoothed) = rtt.smoothed() {
            controller!(self.controller, on_round_trip(smoothed));
        }
    }

    /// A packet goes out, while so many bytes are under way without and with it.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, before: usize, in_flight: usize) -> Snapshot {
        let app_limited = self.delivery.is_app_limited();
        controller!(self.controller, on_sent(now, before, app_limited));
        self.delivery.sent(now, before, in_flight)
    }

    /// There is no more to send, and the window has room.
    #[inline]
    pub(crate) fn has_no_more(&mut self, in_flight: usize) {
        self.delivery.has_no_more(in_flight);
    }

    /// The window holds the sender back; `next` is the next packet to be sent.
    #[inline]
    pub(crate) fn is_full(&mut self, next: u64) {
        self.limited_until = next;
    }

    /// `bytes` have arrived, `in_flight` are under way still. `newest`: the packet of that number,
    /// if it is newer than all that had arrived, and the round trip that it took.
    pub(crate) fn acknowledged(
        &mut self,
        now: Time,
        (bytes, in_flight): (usize, usize),
        (largest, next): (u64, u64),
        newest: Option<(Snapshot, Duration)>,
        rtt: &RoundTrip,
    ) {
        self.delivery.arrived(now, bytes);
        let sample = newest.map(|(packet, took)| self.delivery.sample(&packet, took, rtt.shortest()));
        let ack = Acked {
            now,
            bytes,
            delivered: self.delivery.delivered(),
            in_flight,
            limited: largest < self.limited_until,
            largest,
            next,
            smoothed: rtt.smoothed(),
            sample,
        };
        controller!(self.controller, on_ack(&ack));
    }

    /// A packet was lost, while `next` is the next one to be sent. Which reduction that belongs to.
    pub(crate) fn lost(&mut self, now: Time, packet: LostPacket, next: u64) -> u32 {
        let first = self.recovery_until.is_none_or(|until| packet.number > until);
        if first {
            self.recovery_until = Some(next.saturating_sub(1));
            self.reductions += 1;
            self.undo = Some(0);
        }
        self.delivery.lose(packet.bytes);
        if let Some(undo) = &mut self.undo {
            *undo += packet.chunks;
        }
        let loss = Loss {
            first,
            now,
            number: packet.number,
            next,
            bytes: packet.bytes,
            lost: self.delivery.lost().saturating_sub(packet.sent.lost),
            in_flight: packet.sent.in_flight,
            app_limited: packet.sent.app_limited,
            delivered: self.delivery.delivered(),
        };
        controller!(self.controller, on_loss(&loss));
        self.reductions
    }

    /// So many of `all` packets that have arrived were marked; `largest` is the newest that has,
    /// and `next` the next one to be sent. A reduction for marks is never undone.
    pub(crate) fn marked(
        &mut self,
        now: Time,
        (marked, all): (u64, u64),
        (largest, next): (u64, u64),
        in_flight: usize,
    ) {
        let round = self.marks.count((marked, all), (largest, next));
        let first = marked > 0 && self.recovery_until.is_none_or(|until| largest > until);
        if first {
            self.recovery_until = Some(next.saturating_sub(1));
            self.reductions += 1;
            self.undo = None;
        }
        if !first && round.is_none() {
            return;
        }
        let marked = Marked {
            first,
            now,
            in_flight,
            app_limited: self.delivery.is_app_limited(),
            delivered: self.delivery.delivered(),
            mean: self.in_parts.then_some(self.marks.mean()),
            round,
        };
        controller!(self.controller, on_marks(&marked));
    }

    /// A chunk had arrived whose loss belonged to that reduction. When all have, it is undone.
    pub(crate) fn not_lost(&mut self, reduction: u32) {
        let Some(undo) = self.undo.as_mut().filter(|_| reduction == self.reductions) else { return };
        *undo -= 1;
        if *undo == 0 {
            (self.undo, self.recovery_until) = (None, None);
            controller!(self.controller, on_undo());
        }
    }

    /// Nothing came back for a long time: start over.
    pub(crate) fn timed_out(&mut self, next: u64) {
        self.recovery_until = Some(next.saturating_sub(1));
        self.undo = None;
        controller!(self.controller, on_timeout());
    }
}
