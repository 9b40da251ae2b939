//! Ping-pong and stream: the two measurements that are the same for every transport.
//!
//! The leader first measures a few messages to know how long one takes, then tells the follower how
//! many will come, so that nothing but the messages themselves travels while the clock runs.
//! Several short round trips are timed as one sample, because reading the clock costs about as much
//! as one.
//!
//! Invariant: leader and follower exchange exactly the announced number of messages.

use super::TaskError;
use super::side::Side;
use super::stats::Sample;
use crate::limits::{
    BATCH_BELOW, BATCH_TRIPS, CALIBRATION_TRIPS, MESSAGES_MAX, MESSAGES_MIN, PARTNER_WAIT, SAMPLES_MAX, SAMPLES_MIN,
    SPINS_A_POLL, SPINS_A_YIELD, WARM_UP_PERCENT,
};
use std::time::{Duration, Instant};

/// One side of a transport that passes messages of one size both ways.
pub(crate) trait Ping {
    /// Sends message number `number`; both directions count from 1.
    fn send(&mut self, number: u64) -> Result<(), TaskError>;
    /// Waits until message number `number` has come.
    fn receive(&mut self, number: u64) -> Result<(), TaskError>;
}

/// One side of a transport that passes messages of one size in one direction.
pub(crate) trait Flow {
    /// Sends `count` messages and waits until the receiver has said that all have come.
    fn push(&mut self, count: u64) -> Result<(), TaskError>;
    /// Takes `count` messages, then says so.
    fn pull(&mut self, count: u64) -> Result<(), TaskError>;
}

/// The leader's side of a ping-pong: half the round trip.
pub(crate) fn lead_pings<P: Ping>(pings: &mut P, side: &Side, budget: Duration) -> Result<Sample, TaskError> {
    let mut number = 0;
    side.send(&CALIBRATION_TRIPS)?;
    let mut trips = Vec::new();
    for _ in 0..CALIBRATION_TRIPS {
        trips.push(timed(|| round_trips(pings, &mut number, 1))?);
    }
    trips.sort();
    let trip = trips[trips.len() / 2].max(Duration::from_nanos(1));
    let batch = if trip < BATCH_BELOW { BATCH_TRIPS } else { 1 };
    let samples = fit(budget, trip * batch as u32, SAMPLES_MIN, SAMPLES_MAX);
    let warm_up = samples * batch * WARM_UP_PERCENT / 100;
    side.send(&(warm_up + samples * batch))?;
    round_trips(pings, &mut number, warm_up)?;
    let mut times = Vec::with_capacity(samples as usize);
    for _ in 0..samples {
        times.push(timed(|| round_trips(pings, &mut number, batch))?.as_nanos() as f64);
    }
    side.send(&0u64)?;
    Ok(Sample::latency(&mut times, batch as f64 * 2.0).expect("at least SAMPLES_MIN samples were taken"))
}

/// The follower's side of a ping-pong.
pub(crate) fn follow_pings<P: Ping>(pings: &mut P, side: &Side) -> Result<(), TaskError> {
    let mut number = 0;
    loop {
        let count: u64 = side.receive()?;
        if count == 0 {
            return Ok(());
        }
        for _ in 0..count {
            number += 1;
            pings.receive(number)?;
            pings.send(number)?;
        }
    }
}

#[inline]
fn round_trips<P: Ping>(pings: &mut P, number: &mut u64, count: u64) -> Result<(), TaskError> {
    for _ in 0..count {
        *number += 1;
        pings.send(*number)?;
        pings.receive(*number)?;
    }
    Ok(())
}

/// The leader's side of a stream: bytes a second until the follower has all.
pub(crate) fn lead_flow<F: Flow>(flow: &mut F, side: &Side, size: u64, budget: Duration) -> Result<Sample, TaskError> {
    let mut push = |count: u64| {
        side.send(&count)?;
        timed(|| flow.push(count))
    };
    // The first message touches all pages. Then more and more, until it takes long enough to tell
    // how many fit.
    push(1)?;
    let (mut count, mut taken) = (1, push(1)?);
    while taken < budget / 8 && count < MESSAGES_MAX {
        count = (count * 8).min(MESSAGES_MAX);
        taken = push(count)?;
    }
    let each = |taken: Duration, count: u64| Duration::from_secs_f64((taken.as_secs_f64() / count as f64).max(1e-9));
    count = fit(budget, each(taken, count), MESSAGES_MIN, MESSAGES_MAX);
    taken = push(count)?;
    if taken < budget / 4 {
        // Something had held us up before, so this was too short.
        count = fit(budget, each(taken, count), MESSAGES_MIN, MESSAGES_MAX);
        taken = push(count)?;
    }
    side.send(&0u64)?;
    Ok(Sample::Bandwidth { bytes_per_s: (count * size) as f64 / taken.as_secs_f64().max(1e-9) })
}

/// The follower's side of a stream.
pub(crate) fn follow_flow<F: Flow>(flow: &mut F, side: &Side) -> Result<(), TaskError> {
    loop {
        match side.receive::<u64>()? {
            0 => return Ok(()),
            count => flow.pull(count)?,
        }
    }
}

/// Times single calls that need no partner: full time of a call, batched if it is short.
pub(crate) fn time_calls(
    budget: Duration,
    mut call: impl FnMut() -> Result<(), TaskError>,
) -> Result<Sample, TaskError> {
    let mut calls = Vec::new();
    for _ in 0..CALIBRATION_TRIPS {
        calls.push(timed(&mut call)?);
        if calls.iter().sum::<Duration>() > budget {
            break;
        }
    }
    calls.sort();
    let one = calls[calls.len() / 2].max(Duration::from_nanos(1));
    let batch = if one < BATCH_BELOW { BATCH_TRIPS } else { 1 };
    let samples = fit(budget, one * batch as u32, SAMPLES_MIN, SAMPLES_MAX);
    let mut times = Vec::with_capacity(samples as usize);
    for _ in 0..samples {
        let batched = timed(|| (0..batch).try_for_each(|_| call()))?;
        times.push(batched.as_nanos() as f64);
    }
    Ok(Sample::latency(&mut times, batch as f64).expect("at least SAMPLES_MIN samples were taken"))
}

/// Time that a call takes.
pub(crate) fn timed(call: impl FnOnce() -> Result<(), TaskError>) -> Result<Duration, TaskError> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed())
}

/// How often `each` fits in `budget`, within bounds.
fn fit(budget: Duration, each: Duration, min: u64, max: u64) -> u64 {
    ((budget.as_secs_f64() / each.as_secs_f64().max(1e-9)) as u64).clamp(min, max)
}

/// Spins until `ready`, reading the clock now and then: a dead partner must not hang us.
#[inline]
pub(crate) fn spin_until(mut ready: impl FnMut() -> bool) -> Result<(), TaskError> {
    let mut start = None;
    loop {
        for _ in 0..SPINS_A_POLL {
            if ready() {
                return Ok(());
            }
            // Polls in a row ask for the line again while the other core tries to get it: with a
            // pause between them it comes sooner.
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > PARTNER_WAIT {
            return Err(TaskError::PartnerSilent);
        }
        // Only after a long spin, so it disturbs no measurement; with one processor it is what lets
        // the partner run.
        std::thread::yield_now();
    }
}

/// As [`spin_until`], giving the processor to other threads every few polls.
#[inline]
pub(crate) fn spin_yielding(mut ready: impl FnMut() -> bool) -> Result<(), TaskError> {
    let start = Instant::now();
    for yields in 1u32.. {
        for _ in 0..SPINS_A_YIELD {
            if ready() {
                return Ok(());
            }
        }
        std::thread::yield_now();
        if yields % 1024 == 0 && start.elapsed() > PARTNER_WAIT {
            break;
        }
    }
    Err(TaskError::PartnerSilent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use vmmc_host::channel::Channel;

    struct Words<'a>(&'a AtomicU64, &'a AtomicU64);

    impl Ping for Words<'_> {
        fn send(&mut self, number: u64) -> Result<(), TaskError> {
            self.0.store(number, Ordering::Release);
            Ok(())
        }
        fn receive(&mut self, number: u64) -> Result<(), TaskError> {
            spin_until(|| self.1.load(Ordering::Acquire) == number)
        }
    }

    #[test]
    fn leader_and_follower_exchange_the_announced_messages() {
        let (there, back) = (AtomicU64::new(0), AtomicU64::new(0));
        let (a, b) = Channel::pair().unwrap();
        let sample = std::thread::scope(|scope| {
            scope.spawn(|| follow_pings(&mut Words(&back, &there), &Side::over(b)).unwrap());
            lead_pings(&mut Words(&there, &back), &Side::over(a), Duration::from_millis(5)).unwrap()
        });
        assert!(matches!(sample, Sample::Latency { p50_ns, p99_ns } if p50_ns > 0.0 && p99_ns >= p50_ns));
        assert_eq!(there.load(Ordering::Relaxed), back.load(Ordering::Relaxed));
    }

    #[test]
    fn short_calls_are_timed_in_batches() {
        let mut calls = 0u64;
        let sample = time_calls(Duration::from_millis(2), || {
            calls += 1;
            std::hint::black_box(calls);
            Ok(())
        })
        .unwrap();
        assert!(matches!(sample, Sample::Latency { .. }));
        assert!(calls >= CALIBRATION_TRIPS + SAMPLES_MIN * BATCH_TRIPS);
    }
}
