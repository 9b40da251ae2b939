//! A model of the path in place of a reaction to loss: how fast it moves data, how long a round
//! trip takes without a queue, and how much may be under way before it loses. After BBR
//! [draft-ietf-ccwg-bbr], whose names of states and rules are kept, with these differences: what
//! the receiver may collect before it acknowledges has room in the window; a few packets, and the
//! part of what is under way that a probe may lose, may also be lost between probes, without any
//! bound becoming lower; of the bound that losses set the cruise leaves to others what is part of
//! a queue only; a probe for more ends, as in BBR's second version, when after a round trip of it
//! more than it asked for is under way, and what it loses beyond the loss that ends it says
//! nothing about others; a startup ends when all packets of a round trip have met a long queue, or
//! at once with too many losses, which say nothing about others; no more than an eighth beyond
//! what the path holds is under way while the queue is the sender's own, and from the first
//! packets on that a startup sees meet one; a round of the cruise whose packets have all met such
//! a queue, and what the cruise has queued before a probe, is followed by another Down; and the
//! rate, at which packets go out without a margin, is that of whole rounds where one has met no
//! queue, for the highest of many samples is one whose acknowledgements came late and then
//! together.
//!
//! ```text
//!   Startup ──▶ Drain ──▶ Down ◀─▶ Cruise ──▶ Refill ──▶ Up ──┐
//!                          ▲                                  │     ProbeRtt: from any of them,
//!                          └──────────────────────────────────┘     every 5 s, if no shorter
//!                                                                   round trip was seen
//! ```
//!
//! Invariants: the bounds that losses set (`inflight_hi`, `inflight_lo`, `bw_lo`) only lower
//! what the model says; the window is at least [`BBR_WINDOW_MIN_PACKETS`] packets but for the time
//! after a timeout.

mod marks;
mod queueing;
mod rates;
mod startup;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::delivery::{Sample, bytes_in, rate, time_for};
use super::{Acked, Controller, Estimates, Loss, Marked, bounded, initial_window, pacer};
use crate::limits::{
    ACK_EVERY_BYTES, ACK_EVERY_PACKETS, BBR_AGGREGATES, BBR_COEXISTENCE_ROUNDS, BBR_LATE_MAX, BBR_LOSS_PACKETS,
    BBR_LOSS_PERCENT, BBR_OTHERS_ROUNDS, BBR_PROBE_ROUND_TRIP_EVERY, BBR_PROBE_ROUND_TRIP_FOR, BBR_PROBE_WAIT,
    BBR_PROBE_WAIT_MORE, BBR_WINDOW_MIN_PACKETS, ROUND_TRIP_MEMORY, WINDOW_MAX_BYTES,
};
use crate::time::Time;

use queueing::Queueing;
use rates::Rates;

/// What is left of a bound after a round with losses, in percent.
const BETA: u64 = 70;
/// What is left for others of the bound that losses set, in percent.
const WITH_HEADROOM: u64 = 85;
/// What may be under way where the queue is the sender's own, in percent of what the pipe holds.
const TIGHT: u64 = 112;
/// Rounds for which what came in bursts counts, twice.
const EXTRA_ROUNDS: u64 = 5;
/// Doublings of the slope with which the bound on what is under way grows.
const SLOPE_MAX: u32 = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl State {
    /// Percent of the bandwidth at which packets go out.
    fn pacing_gain(self) -> u64 {
        match self {
            State::Startup => 277,
            State::Drain => 50,
            State::Down => 90,
            State::Up => 125,
            State::Cruise | State::Refill | State::ProbeRtt => 100,
        }
    }

    /// Percent of what the pipe holds that may be under way, beside the queues of others and
    /// without.
    fn window_gain(self, others: bool) -> u64 {
        match self {
            State::ProbeRtt => 50,
            State::Up if others => 225,
            State::Up => 150,
            State::Down | State::Cruise | State::Refill if !others => TIGHT,
            _ => 200,
        }
    }

    fn is_cycle(self) -> bool {
        matches!(self, State::Down | State::Cruise | State::Refill | State::Up)
    }

    /// More goes out than the path is known to take, so losses are no news about others.
    fn probes(self) -> bool {
        matches!(self, State::Startup | State::Refill | State::Up)
    }
}

/// Which packets the present acknowledgements are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Acks {
    Any,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// Bounds that losses set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bounds {
    /// Bandwidth and bytes under way with which nothing was lost in the last rounds.
    bw_lo: Option<u64>,
    inflight_lo: Option<usize>,
    /// Bytes under way beyond which too much was lost when it was tried.
    inflight_hi: Option<usize>,
}

/// See the module page.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    packet: usize,
    window: usize,
    pace: Option<u64>,
    /// The pace is not less: the least window each round trip, as the window is not less.
    pace_min: u64,
    state: State,
    /// State of the generator for waits between probes.
    random: u64,

    /// A round ends when a packet sent after so much had arrived is acknowledged.
    round_end: u64,
    round_start: bool,
    rounds: u64,

    rates: Rates,
    /// Rate that the next rounds have to outgrow, and rounds that have not.
    full_bw: u64,
    full_rounds: u32,
    full_now: bool,
    full_reached: bool,

    min_rtt: Option<Duration>,
    min_rtt_at: Time,
    probed_rtt: Option<Duration>,
    probed_rtt_at: Time,
    /// The short window of a probe of the round trip ends then, if a round has passed.
    probe_rtt_done: Option<Time>,
    probe_rtt_round: bool,
    window_before: usize,
    after_idle: bool,

    bounds: Bounds,
    undo: Option<(Bounds, usize)>,
    bw_latest: u64,
    inflight_latest: u64,
    loss_round_end: u64,
    loss_round_start: bool,
    loss_in_round: bool,
    lost_in_round: u64,
    /// Runs of lost packets in this round, and the last number lost.
    loss_events: u32,
    last_lost: u64,
    /// Packets before this one were sent in a startup or a probe that losses have ended.
    own_until: u64,

    acks: Acks,
    /// What is learned about losses now is about the probe.
    probing_samples: bool,
    cycle_at: Time,
    probe_wait: Duration,
    rounds_since_probe: u32,
    up_at: Time,
    up_rounds: u32,
    up_acked: usize,

    /// Since when what has arrived is compared with the bandwidth, how much that was, and the most
    /// that was beyond it in the last rounds.
    extra_since: Time,
    extra_delivered: u64,
    extra: [usize; 2],
    extra_rounds: u64,

    queueing: Queueing,
    /// Others fill the queue: with less under way than they have, this sender would be left with
    /// little.
    others: bool,
}

impl Bbr {
    /// `seed`: of the waits between probes.
    pub(crate) fn new(packet: usize, seed: u64) -> Bbr {
        Bbr {
            packet,
            window: initial_window(packet),
            pace: None,
            pace_min: 1,
            state: State::Startup,
            random: seed | 1,
            round_end: 0,
            round_start: false,
            rounds: 0,
            rates: Rates::default(),
            full_bw: 0,
            full_rounds: 0,
            full_now: false,
            full_reached: false,
            min_rtt: None,
            min_rtt_at: Time::ZERO,
            probed_rtt: None,
            probed_rtt_at: Time::ZERO,
            probe_rtt_done: None,
            probe_rtt_round: false,
            window_before: 0,
            after_idle: false,
            bounds: Bounds::default(),
            undo: None,
            bw_latest: 0,
            inflight_latest: 0,
            loss_round_end: 0,
            loss_round_start: false,
            loss_in_round: false,
            lost_in_round: 0,
            loss_events: 0,
            last_lost: 0,
            own_until: 0,
            acks: Acks::Any,
            probing_samples: false,
            cycle_at: Time::ZERO,
            probe_wait: BBR_PROBE_WAIT,
            rounds_since_probe: 0,
            up_at: Time::ZERO,
            up_rounds: 0,
            up_acked: 0,
            extra_since: Time::ZERO,
            extra_delivered: 0,
            extra: [0; 2],
            extra_rounds: 0,
            queueing: Queueing::default(),
            others: false,
        }
    }

    fn max_bw(&self) -> u64 {
        self.rates.best()
    }

    fn bw(&self) -> u64 {
        self.bounds.bw_lo.map_or(self.max_bw(), |lo| lo.min(self.max_bw()))
    }

    fn window_min(&self) -> usize {
        self.packet * BBR_WINDOW_MIN_PACKETS
    }

    /// Percent of what the pipe holds, bytes.
    fn pipe(&self, percent: u64) -> usize {
        match self.min_rtt {
            Some(min_rtt) if self.max_bw() > 0 => {
                let bytes = bytes_in(self.bw(), min_rtt).min(WINDOW_MAX_BYTES as u64);
                (bytes * percent / 100) as usize
            }
            _ => initial_window(self.packet),
        }
    }

    /// With room for what goes out and is acknowledged at once.
    fn with_batches(&self, bytes: usize) -> usize {
        let quantum = self.pace.map_or(0, pacer::quantum) as usize;
        let collected = (self.packet * ACK_EVERY_PACKETS as usize).min(ACK_EVERY_BYTES);
        let more = if self.state == State::Up { 2 * self.packet } else { 0 };
        bytes.max(BBR_AGGREGATES * quantum.max(collected)).max(self.window_min()) + more
    }

    fn inflight(&self, percent: u64) -> usize {
        self.with_batches(self.pipe(percent))
    }

    fn inflight_with_headroom(&self) -> usize {
        let Some(hi) = self.bounds.inflight_hi else { return usize::MAX };
        let headroom = (hi - hi / 100 * WITH_HEADROOM as usize).max(self.packet);
        // Of a queue it leaves a part, and not of the pipe.
        let pipe = self.pipe(100).min(hi.saturating_sub(self.packet));
        hi.saturating_sub(headroom).max(pipe).max(self.window_min())
    }

    fn start_round(&mut self, delivered: u64) {
        self.round_end = delivered;
    }

    fn update_round(&mut self, ack: &Acked, sample: &Sample) {
        self.round_start = sample.delivered_before >= self.round_end;
        if self.round_start {
            self.start_round(ack.delivered);
            self.rounds += 1;
            self.rounds_since_probe = self.rounds_since_probe.saturating_add(1);
        }
    }

    /// Compares the round trips of a round that is over with those that the window explains.
    fn update_queueing(&mut self, now: Time, sample: &Sample) {
        self.queueing.sample(sample.round_trip, self.round_start);
        if sample.app_limited || self.max_bw() == 0 {
            return self.queueing.interrupt();
        }
        let shortest = self.min_rtt.unwrap_or(sample.round_trip);
        match self.state {
            State::Startup => self.ask_in_startup(now, sample, shortest),
            State::Down | State::Cruise if self.round_start && !self.others => {
                self.rates.round(self.queueing.is_clear(shortest));
                let explained = time_for(self.window as u64, self.bw());
                self.others = self.queueing.round(explained) >= BBR_OTHERS_ROUNDS;
            }
            _ => {}
        }
    }

    /// What is under way is kept to what the pipe holds: the queue is this sender's own. Rates
    /// that are not paced go in bursts that need the room.
    fn is_tight(&self) -> bool {
        !self.others && self.pace.is_some_and(pacer::is_paced)
    }

    fn update_bandwidth(&mut self, sample: &Sample) {
        let Some(rate) = sample.rate else { return };
        let max_bw = self.max_bw();
        if rate < max_bw && sample.app_limited {
            return;
        }
        // Between probes no more goes out than the pace: what is faster has caught up.
        let probes = !self.full_reached || self.state == State::Up || self.acks == Acks::ProbeStopping;
        let most = if probes || !self.is_tight() { rate } else { max_bw };
        self.rates.sample(rate, self.round_start.then_some(rate.min(most)));
    }

    /// This one, too, stands for a whole round.
    fn take_rate(&mut self, sample: &Sample) {
        if let Some(rate) = sample.rate {
            self.rates.sample(rate, Some(rate));
        }
    }

    fn begin_delivery_signals(&mut self, ack: &Acked, sample: &Sample) {
        self.bw_latest = self.bw_latest.max(sample.rate.unwrap_or(0));
        self.inflight_latest = self.inflight_latest.max(sample.delivered);
        self.loss_round_start = sample.delivered_before >= self.loss_round_end;
        if self.loss_round_start {
            self.loss_round_end = ack.delivered;
        }
    }

    /// Lowers the bounds after a round with losses, which others may have caused.
    fn adapt_lower_bounds(&mut self, sample: &Sample) {
        if self.state.probes() || !self.loses_too_much(self.lost_in_round, sample.in_flight) {
            return;
        }
        let bw_lo = self.bounds.bw_lo.unwrap_or(self.max_bw());
        let inflight_lo = self.bounds.inflight_lo.unwrap_or(self.window);
        self.bounds.bw_lo = Some(self.bw_latest.max(bw_lo / 100 * BETA).max(1));
        let less = inflight_lo / 100 * BETA as usize;
        self.bounds.inflight_lo = Some(less.max(self.inflight_latest.min(WINDOW_MAX_BYTES as u64) as usize));
    }

    fn end_delivery_signals(&mut self, sample: &Sample) {
        if self.loss_round_start {
            self.bw_latest = sample.rate.unwrap_or(0);
            self.inflight_latest = sample.delivered;
            (self.loss_in_round, self.lost_in_round, self.loss_events) = (false, 0, 0);
        }
    }

    /// What arrives beyond the bandwidth, since acknowledgements come together.
    fn update_aggregation(&mut self, ack: &Acked) {
        if self.round_start && self.rounds >= self.extra_rounds + EXTRA_ROUNDS {
            self.extra_rounds = self.rounds;
            self.extra = [0, self.extra[0]];
        }
        let expected = bytes_in(self.bw(), ack.now.since(self.extra_since));
        let expected = if self.extra_delivered <= expected {
            (self.extra_delivered, self.extra_since) = (0, ack.now);
            0
        } else {
            expected
        };
        self.extra_delivered += ack.bytes as u64;
        let extra = self.extra_delivered.saturating_sub(expected).min(self.window as u64) as usize;
        self.extra[0] = self.extra[0].max(extra);
    }

    fn reset_full_bw(&mut self, rate: u64) {
        (self.full_bw, self.full_rounds, self.full_now) = (rate, 0, false);
    }

    /// Whether so much was lost of what was under way that others, or the queue, are the cause.
    fn loses_too_much(&self, lost: u64, in_flight: usize) -> bool {
        lost > in_flight as u64 * BBR_LOSS_PERCENT / 100 + (BBR_LOSS_PACKETS * self.packet) as u64
    }

    fn forget_short_term(&mut self) {
        (self.bounds.bw_lo, self.bounds.inflight_lo) = (None, None);
    }

    fn start_down(&mut self, ack_now: Time, delivered: u64) {
        (self.loss_in_round, self.lost_in_round) = (false, 0);
        (self.bw_latest, self.inflight_latest) = (0, 0);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let part = (self.random >> 11) as u32 % 1_000;
        self.probe_wait = BBR_PROBE_WAIT + BBR_PROBE_WAIT_MORE * part / 1_000;
        self.rounds_since_probe = (self.random >> 40) as u32 & 1;
        self.cycle_at = ack_now;
        self.queueing.forget();
        self.others = false;
        self.acks = Acks::ProbeStopping;
        self.start_round(delivered);
        self.state = State::Down;
    }

    fn start_refill(&mut self, delivered: u64) {
        self.forget_short_term();
        (self.up_rounds, self.up_acked) = (0, 0);
        self.acks = Acks::Refilling;
        self.start_round(delivered);
        self.state = State::Refill;
    }

    fn start_up(&mut self, ack: &Acked, sample: &Sample) {
        self.acks = Acks::ProbeStarting;
        self.start_round(ack.delivered);
        self.reset_full_bw(sample.rate.unwrap_or(0));
        self.state = State::Up;
        self.up_at = ack.now;
        self.up_rounds = (self.up_rounds + 1).min(SLOPE_MAX);
    }

    /// More is under way than the probe is to find room for, after a round trip of it.
    fn queues(&self, ack: &Acked) -> bool {
        let begun = self.min_rtt.is_none_or(|min_rtt| ack.now.since(self.up_at) > min_rtt);
        begun && ack.in_flight > self.inflight(State::Up.pacing_gain())
    }

    /// The queue is not this sender's own, or gone.
    fn is_drained(&self, ack: &Acked) -> bool {
        self.others || ack.in_flight <= self.inflight(100)
    }

    /// A round is over whose packets have all met a queue of this sender's own.
    fn meets_own_queue(&self, sample: &Sample) -> bool {
        let shortest = self.min_rtt.unwrap_or(sample.round_trip);
        self.round_start && !sample.app_limited && self.queueing.stands(shortest)
    }

    fn time_to_probe(&self, now: Time) -> bool {
        let packets = (self.pipe(100).min(self.window) / self.packet) as u32;
        now.since(self.cycle_at) > self.probe_wait
            || self.rounds_since_probe >= packets.clamp(1, BBR_COEXISTENCE_ROUNDS)
    }

    /// What acknowledgements of a probe say about the upper bound.
    fn adapt_upper_bound(&mut self, ack: &Acked, sample: &Sample) {
        if self.round_start {
            match self.acks {
                Acks::ProbeStarting => self.acks = Acks::ProbeFeedback,
                Acks::ProbeStopping => {
                    (self.probing_samples, self.acks) = (false, Acks::Any);
                    if self.state.is_cycle() && !sample.app_limited {
                        self.rates.end_cycle();
                    }
                }
                _ => {}
            }
        }
        if self.loses_too_much(sample.lost, sample.in_flight) {
            return;
        }
        let Some(hi) = self.bounds.inflight_hi else { return };
        self.bounds.inflight_hi = Some(hi.max(sample.in_flight.min(WINDOW_MAX_BYTES)));
        if self.state == State::Up && ack.limited && self.window >= hi {
            self.raise_upper_bound(ack);
        }
    }

    fn raise_upper_bound(&mut self, ack: &Acked) {
        self.up_acked += ack.bytes;
        let per_packet = (self.window >> self.up_rounds).max(self.packet);
        let packets = self.up_acked / per_packet;
        self.up_acked %= per_packet;
        let hi = self.bounds.inflight_hi.unwrap_or(self.window);
        self.bounds.inflight_hi = Some(hi.saturating_add(packets * self.packet).min(WINDOW_MAX_BYTES));
        if self.round_start {
            self.up_rounds = (self.up_rounds + 1).min(SLOPE_MAX);
        }
    }

    fn update_cycle(&mut self, ack: &Acked, sample: &Sample) {
        if !self.full_reached {
            return;
        }
        self.adapt_upper_bound(ack, sample);
        match self.state {
            State::Down | State::Cruise if self.time_to_probe(ack.now) && self.is_drained(ack) => {
                self.start_refill(ack.delivered);
            }
            State::Down if self.time_to_probe(ack.now) && self.round_start => self.start_refill(ack.delivered),
            // What is to be left for others, the bound of the cruise leaves.
            State::Down if self.is_drained(ack) => self.state = State::Cruise,
            State::Cruise if self.time_to_probe(ack.now) => {
                // What it has queued would be beneath the queue of the probe: a round at most is
                // for that to drain.
                self.start_round(ack.delivered);
                self.state = State::Down;
            }
            // The rate is too high.
            State::Cruise if self.meets_own_queue(sample) => self.state = State::Down,
            State::Refill if self.round_start => {
                self.probing_samples = true;
                self.start_up(ack, sample);
            }
            State::Up => {
                let bounded = ack.limited && self.bounds.inflight_hi.is_some_and(|hi| self.window >= hi);
                if bounded {
                    self.reset_full_bw(sample.rate.unwrap_or(0));
                } else if self.full_now || self.queues(ack) {
                    self.start_down(ack.now, ack.delivered);
                }
            }
            _ => {}
        }
    }

    fn update_min_rtt(&mut self, ack: &Acked, sample: &Sample) {
        let due = ack.now.since(self.probed_rtt_at) > BBR_PROBE_ROUND_TRIP_EVERY;
        if due || self.probed_rtt.is_none_or(|least| sample.round_trip <= least) {
            (self.probed_rtt, self.probed_rtt_at) = (Some(sample.round_trip), ack.now);
        }
        let old = ack.now.since(self.min_rtt_at) > ROUND_TRIP_MEMORY;
        let probed = self.probed_rtt.unwrap_or(sample.round_trip);
        if old || self.min_rtt.is_none_or(|least| probed <= least) {
            // A path of no length has no time to divide by.
            (self.min_rtt, self.min_rtt_at) = (Some(probed.max(Duration::from_micros(1))), self.probed_rtt_at);
        }
        if due && self.state != State::ProbeRtt && !self.after_idle && self.full_reached {
            self.window_before = self.window;
            (self.probe_rtt_done, self.probe_rtt_round) = (None, false);
            self.acks = Acks::ProbeStopping;
            self.start_round(ack.delivered);
            self.state = State::ProbeRtt;
        }
        if self.state == State::ProbeRtt {
            self.probe_round_trip(ack);
        }
        self.after_idle = false;
    }

    fn probe_round_trip(&mut self, ack: &Acked) {
        match self.probe_rtt_done {
            None if ack.in_flight <= self.probe_rtt_window() => {
                self.probe_rtt_done = Some(ack.now + BBR_PROBE_ROUND_TRIP_FOR);
                self.start_round(ack.delivered);
            }
            None => {}
            Some(done) => {
                self.probe_rtt_round |= self.round_start;
                if self.probe_rtt_round && ack.now > done {
                    self.end_probe_rtt(ack.now, ack.delivered);
                }
            }
        }
    }

    fn end_probe_rtt(&mut self, now: Time, delivered: u64) {
        self.probed_rtt_at = now;
        self.window = self.window.max(self.window_before);
        self.forget_short_term();
        self.start_down(now, delivered);
        // There was no probe for more, so the best rates are still those of this cycle.
        self.acks = Acks::Any;
        self.state = State::Cruise;
    }

    fn probe_rtt_window(&self) -> usize {
        self.pipe(State::ProbeRtt.window_gain(false)).max(self.window_min())
    }

    fn set_pace(&mut self, smoothed: Option<Duration>) {
        if let Some(smoothed) = smoothed {
            self.pace_min = rate(self.window_min() as u64, smoothed).max(1);
        }
        let bw = self.bw();
        let first = smoothed.map(|smoothed| rate(initial_window(self.packet) as u64, smoothed));
        let Some(bw) = Some(bw).filter(|bw| *bw > 0).or(first) else { return };
        let pace = (bw.saturating_mul(self.state.pacing_gain()) / 100).max(self.pace_min);
        if self.full_reached || self.pace.is_none_or(|before| before < pace) {
            self.pace = Some(pace);
        }
    }

    fn set_window(&mut self, ack: &Acked) {
        let mut extra = self.extra[0].max(self.extra[1]);
        if self.full_reached && self.is_tight() {
            extra = extra.min(bytes_in(self.bw(), BBR_LATE_MAX) as usize);
        }
        let asks = self.asks_in_startup();
        let gain = if asks { TIGHT } else { self.state.window_gain(!self.is_tight()) };
        let most = self.with_batches(self.pipe(gain) + extra);
        if self.full_reached || asks {
            self.window = (self.window + ack.bytes).min(most);
        } else if self.window < most || ack.delivered < initial_window(self.packet) as u64 {
            self.window += ack.bytes;
        }
        let bound = match self.state {
            State::Startup | State::Drain => usize::MAX,
            State::Down | State::Refill | State::Up => self.bounds.inflight_hi.unwrap_or(usize::MAX),
            State::Cruise => self.inflight_with_headroom(),
            State::ProbeRtt => self.inflight_with_headroom().min(self.probe_rtt_window()),
        };
        let bound = bound.min(self.bounds.inflight_lo.unwrap_or(usize::MAX)).max(self.window_min());
        self.window = bounded(self.window.max(self.window_min()).min(bound), self.packet);
    }

    /// Bytes that were under way when the loss became too much.
    fn inflight_at_loss(&self, loss: &Loss) -> usize {
        let before = loss.in_flight.saturating_sub(loss.bytes) as u64;
        let lost_before = loss.lost.saturating_sub(loss.bytes as u64);
        let allowed = before * BBR_LOSS_PERCENT / 100 + (BBR_LOSS_PACKETS * self.packet) as u64;
        let more = allowed.saturating_sub(lost_before) * 100 / (100 - BBR_LOSS_PERCENT);
        (before + more) as usize
    }
}

impl Controller for Bbr {
    #[inline]
    fn on_sent(&mut self, now: Time, before: usize, app_limited: bool) {
        if before > 0 || !app_limited {
            return;
        }
        self.after_idle = true;
        self.extra_since = now;
        self.extra_delivered = 0;
        if self.state == State::ProbeRtt && self.probe_rtt_done.is_some_and(|done| now > done) {
            self.end_probe_rtt(now, self.round_end);
        }
        if self.state.is_cycle() {
            // As if it cruised: the path has had time to drain.
            self.pace = Some(self.bw().max(self.pace_min));
        }
    }

    fn on_ack(&mut self, ack: &Acked) {
        if let Some(sample) = &ack.sample {
            self.begin_delivery_signals(ack, sample);
            self.update_round(ack, sample);
            self.update_bandwidth(sample);
            self.update_queueing(ack.now, sample);
            if self.loss_round_start {
                self.adapt_lower_bounds(sample);
            }
            self.update_aggregation(ack);
            self.check_full_bw(sample);
            self.check_startup();
            if self.state == State::Drain && ack.in_flight <= self.inflight(100) {
                // It was sent when the startup had filled the path.
                self.take_rate(sample);
                // When the bound was set, the rate was that of a round trip before. What the pipe
                // holds without a queue, the cruise may have under way.
                let pipe = (self.pipe(100) as u64 * 100).div_ceil(WITH_HEADROOM) as usize;
                self.bounds.inflight_hi = self.bounds.inflight_hi.map(|hi| hi.max(pipe));
                self.start_down(ack.now, ack.delivered);
            }
            self.update_cycle(ack, sample);
            self.update_min_rtt(ack, sample);
            self.end_delivery_signals(sample);
            self.set_pace(ack.smoothed);
        }
        self.set_window(ack);
    }

    fn on_loss(&mut self, loss: &Loss) {
        if loss.first {
            self.undo = Some((self.bounds, self.window));
        }
        if loss.number < self.own_until {
            // The startup or the probe is over; what it sent too much says nothing about others.
            return;
        }
        if !self.loss_in_round {
            self.loss_in_round = true;
            self.loss_round_end = loss.delivered;
        }
        self.lost_in_round += loss.bytes as u64;
        if loss.number != self.last_lost + 1 || self.loss_events == 0 {
            self.loss_events += 1;
        }
        self.last_lost = loss.number;
        self.lose_in_startup(loss);
        if !self.probing_samples || !self.loses_too_much(loss.lost, loss.in_flight) {
            return;
        }
        self.probing_samples = false;
        self.own_until = loss.next;
        if !loss.app_limited {
            let least = self.pipe(100).min(self.window) / 100 * BETA as usize;
            self.bounds.inflight_hi = Some(self.inflight_at_loss(loss).max(least).min(WINDOW_MAX_BYTES));
        }
        if self.state == State::Up {
            self.start_down(loss.now, loss.delivered);
        }
    }

    fn on_marks(&mut self, marked: &Marked) {
        self.take_marks(marked);
    }

    fn on_undo(&mut self) {
        let Some((before, window)) = self.undo.take() else { return };
        (self.loss_in_round, self.lost_in_round) = (false, 0);
        let higher = |now: Option<u64>, before: Option<u64>| Some(now?.max(before?));
        let more = |now: Option<usize>, before: Option<usize>| Some(now?.max(before?));
        self.bounds = Bounds {
            bw_lo: higher(self.bounds.bw_lo, before.bw_lo),
            inflight_lo: more(self.bounds.inflight_lo, before.inflight_lo),
            inflight_hi: more(self.bounds.inflight_hi, before.inflight_hi),
        };
        self.reset_full_bw(0);
        self.window = bounded(self.window.max(window), self.packet);
    }

    fn on_timeout(&mut self) {
        // What arrives opens it again, as far as the model goes.
        (self.window, self.undo) = (bounded(0, self.packet), None);
    }

    fn on_round_trip(&mut self, smoothed: Duration) {
        self.set_pace(Some(smoothed));
    }

    fn set_packet(&mut self, bytes: usize) {
        self.packet = bytes;
        self.window = bounded(self.window, bytes);
    }

    #[inline]
    fn window(&self) -> usize {
        self.window
    }

    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        self.pace
    }

    fn estimates(&self) -> Estimates {
        let state = match self.state {
            State::Startup => "startup",
            State::Drain => "drain",
            State::Down => "probing, down",
            State::Cruise => "cruise",
            State::Refill => "probing, refill",
            State::Up => "probing, up",
            State::ProbeRtt => "shortest round",
        };
        let bandwidth = Some(self.bw()).filter(|bw| *bw > 0);
        Estimates { state, bandwidth, shortest: self.min_rtt }
    }
}
