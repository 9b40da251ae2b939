//! CUBIC [RFC 9438], whose slow start ends when round trips become longer [HyStart++, RFC 9406];
//! packets of a window are spread over the round trip.
//!
//! Invariant: `minimum <= window <= WINDOW_MAX_BYTES`. The window grows only with what arrives
//! while it holds the sender back; the time in between does not count.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::delivery::rate;
use super::{Acked, Controller, Estimates, Loss, Marked, bounded, initial_window};
use crate::limits::{
    CSS_ROUNDS, CUBIC_BETA_TENTHS, CUBIC_C, HYSTART_DIVISOR, HYSTART_RTT_MAX, HYSTART_RTT_MIN, HYSTART_SAMPLES,
    WINDOW_MAX_BYTES,
};
use crate::time::Time;

/// Growth of the window that a sender with additive increase and the same decrease would have,
/// packets per round trip [RFC 9438, section 4.3].
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
const BETA: f64 = CUBIC_BETA_TENTHS as f64 / 10.0;
/// Part of slow start's growth in conservative slow start.
const CSS_GROWTH: usize = 4;

/// The time since the last reduction. Windows in packets.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Time,
    /// Seconds until the window is what it was before the reduction, and that window.
    until: f64,
    top: f64,
    /// Window of a sender with additive increase.
    additive: f64,
}

/// Where slow start is.
#[derive(Clone, Copy, Debug)]
struct HyStart {
    /// The round ends when this packet has arrived.
    end: u64,
    shortest: Option<Duration>,
    before: Option<Duration>,
    samples: u32,
    /// Conservative slow start: the round trip with which it began, and the rounds of it.
    conservative: Option<(Duration, u32)>,
}

/// What a reduction changes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    window: usize,
    threshold: usize,
    /// Window before the reduction, in packets, and the one to which growth is quick.
    prior: f64,
    top: f64,
    epoch: Option<Epoch>,
}

/// See the module page.
#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    packet: usize,
    shape: Shape,
    /// Part of a byte that the window is to grow by.
    rest: f64,
    start: HyStart,
    undo: Option<Shape>,
    last_ack: Time,
    /// Bytes per second.
    pace: Option<u64>,
}

impl Cubic {
    pub(crate) fn new(packet: usize) -> Cubic {
        let window = initial_window(packet);
        Cubic {
            packet,
            shape: Shape { window, threshold: usize::MAX, prior: 0.0, top: 0.0, epoch: None },
            rest: 0.0,
            start: HyStart { end: 0, shortest: None, before: None, samples: 0, conservative: None },
            undo: None,
            last_ack: Time::ZERO,
            pace: None,
        }
    }

    fn packets(&self, bytes: usize) -> f64 {
        bytes as f64 / self.packet as f64
    }

    fn in_slow_start(&self) -> bool {
        self.shape.window < self.shape.threshold
    }

    fn set_window(&mut self, window: usize) {
        self.shape.window = bounded(window, self.packet);
    }

    /// Faster than the window, so that it and not the pace holds the sender back; twice as fast
    /// where the window doubles.
    fn rate(&self, smoothed: Duration) -> u64 {
        let window = self.shape.window as u64;
        let faster = if self.shape.window < self.shape.threshold / 2 { window } else { window / 5 };
        rate(window + faster, smoothed)
    }

    /// Makes room, once in a round trip.
    fn reduce(&mut self, to: usize) {
        let window = self.packets(self.shape.window);
        // Who loses before it is where it was makes room for others.
        self.shape.top = if window < self.shape.top { window * (1.0 + BETA) / 2.0 } else { window };
        self.shape.prior = window;
        self.set_window(to);
        self.shape.threshold = self.shape.window;
        self.shape.epoch = None;
        self.rest = 0.0;
    }

    fn slow_start(&mut self, ack: &Acked) {
        let part = if self.start.conservative.is_some() { CSS_GROWTH } else { 1 };
        self.set_window(self.shape.window.saturating_add(ack.bytes / part).min(self.shape.threshold));
    }

    /// Looks whether round trips become longer [RFC 9406, section 4.2].
    fn watch_round_trips(&mut self, ack: &Acked) {
        let Some(sample) = &ack.sample else { return };
        let start = &mut self.start;
        if ack.largest >= start.end {
            (start.before, start.shortest) = (start.shortest, None);
            (start.samples, start.end) = (0, ack.next);
            if let Some((_, rounds)) = &mut start.conservative {
                *rounds += 1;
                if *rounds >= CSS_ROUNDS {
                    self.shape.threshold = self.shape.window;
                    return;
                }
            }
        }
        start.samples += 1;
        let shortest = start.shortest.map_or(sample.round_trip, |shortest| shortest.min(sample.round_trip));
        start.shortest = Some(shortest);
        if start.samples < HYSTART_SAMPLES {
            return;
        }
        match start.conservative {
            None => {
                let Some(before) = start.before else { return };
                let longer = (before / HYSTART_DIVISOR).clamp(HYSTART_RTT_MIN, HYSTART_RTT_MAX);
                if shortest >= before + longer {
                    start.conservative = Some((shortest, 0));
                }
            }
            // It was something else.
            Some((baseline, _)) if shortest < baseline => start.conservative = None,
            Some(_) => {}
        }
    }

    /// Growth of the window after slow start [RFC 9438, sections 4.2 to 4.5].
    fn avoid(&mut self, ack: &Acked) {
        let window = self.packets(self.shape.window) + self.rest / self.packet as f64;
        let top = self.shape.top;
        let epoch = self.shape.epoch.get_or_insert_with(|| {
            let until = if window < top { ((top - window) / CUBIC_C).cbrt() } else { 0.0 };
            Epoch { start: ack.now, until, top: top.max(window), additive: window }
        });
        let acked = ack.bytes as f64 / self.packet as f64;
        let alpha = if epoch.additive >= self.shape.prior { 1.0 } else { ALPHA };
        epoch.additive += alpha * acked / window;
        let cubic = |at: f64| CUBIC_C * (at - epoch.until).powi(3) + epoch.top;
        let at = ack.now.since(epoch.start).as_secs_f64();
        let grown = if cubic(at) < epoch.additive {
            epoch.additive.max(window)
        } else {
            let round_trip = ack.smoothed.unwrap_or_default().as_secs_f64();
            let target = cubic(at + round_trip).clamp(window, 1.5 * window);
            window + (target - window) * (acked / window).min(1.0)
        };
        let bytes = (grown * self.packet as f64).min(WINDOW_MAX_BYTES as f64);
        self.rest = bytes.fract();
        self.set_window(bytes as usize);
    }
}

impl Controller for Cubic {
    #[inline]
    fn on_sent(&mut self, _now: Time, _before: usize, _app_limited: bool) {}

    fn on_ack(&mut self, ack: &Acked) {
        let since = ack.now.since(self.last_ack);
        self.last_ack = ack.now;
        if self.in_slow_start() {
            self.watch_round_trips(ack);
        }
        if !ack.limited {
            // Time in which the window was not needed proves nothing about it.
            if let Some(epoch) = &mut self.shape.epoch {
                epoch.start = epoch.start + since;
            }
        } else if self.in_slow_start() {
            self.slow_start(ack);
        } else {
            self.avoid(ack);
        }
        self.pace = ack.smoothed.map(|smoothed| self.rate(smoothed));
    }

    fn on_loss(&mut self, loss: &Loss) {
        if loss.first {
            self.undo = Some(self.shape);
            self.reduce(self.shape.window / 10 * CUBIC_BETA_TENTHS);
        }
    }

    /// A mark is as a loss [RFC 9438, section 4.6], or takes half of the part that is marked [RFC
    /// 8257, section 3.3].
    fn on_marks(&mut self, marked: &Marked) {
        if marked.first {
            self.undo = None;
            let window = self.shape.window;
            self.reduce(match marked.mean {
                None => window / 10 * CUBIC_BETA_TENTHS,
                Some(mean) => window - (window as u64 * mean / 2_048) as usize,
            });
        }
    }

    fn on_undo(&mut self) {
        if let Some(before) = self.undo.take() {
            let window = self.shape.window.max(before.window);
            self.shape = Shape { window, threshold: self.shape.threshold.max(before.threshold), ..before };
            self.set_window(window);
        }
    }

    fn on_timeout(&mut self) {
        let window = self.packets(self.shape.window);
        let threshold = bounded(self.shape.window / 10 * CUBIC_BETA_TENTHS, self.packet);
        self.shape = Shape { window: 0, threshold, prior: window, top: 0.0, epoch: None };
        self.set_window(0);
        (self.undo, self.rest) = (None, 0.0);
    }

    fn on_round_trip(&mut self, smoothed: Duration) {
        self.pace = Some(self.rate(smoothed));
    }

    fn set_packet(&mut self, bytes: usize) {
        let factor = self.packet as f64 / bytes as f64;
        let shapes = std::iter::once(&mut self.shape).chain(&mut self.undo);
        for shape in shapes {
            (shape.top, shape.prior) = (shape.top * factor, shape.prior * factor);
            shape.epoch = None;
        }
        self.packet = bytes;
        self.set_window(self.shape.window);
    }

    #[inline]
    fn window(&self) -> usize {
        self.shape.window
    }

    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        self.pace
    }

    fn estimates(&self) -> Estimates {
        let state = match (self.in_slow_start(), self.start.conservative) {
            (true, None) => "slow start",
            (true, Some(_)) => "slower start",
            (false, _) => "avoidance",
        };
        Estimates { state, bandwidth: None, shortest: None }
    }
}
