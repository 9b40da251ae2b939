//! What marks do in each state, as losses and as parts of what was sent.

use super::super::{Bounds, Controller, Loss, Rates};
use super::*;
use crate::time::Time;
use std::time::Duration;

const PACKET: usize = 1_000;
/// What the path holds: 10 MB/s for 10 ms.
const PIPE: usize = 100_000;
const WINDOW: usize = 200_000;
/// Parts of 1,024: all packets, and one in eight.
const ALL: u64 = 1_024;
const EIGHTH: u64 = ALL / 8;

const STATES: [State; 7] =
    [State::Startup, State::Drain, State::Down, State::Cruise, State::Refill, State::Up, State::ProbeRtt];

fn model(state: State) -> Bbr {
    let mut bbr = Bbr::new(PACKET, 7);
    (bbr.state, bbr.window, bbr.full_reached) = (state, WINDOW, state != State::Startup);
    (bbr.rates, bbr.min_rtt) = (Rates::of(10_000_000, 0), Some(Duration::from_millis(10)));
    assert_eq!(bbr.pipe(100), PIPE);
    bbr
}

/// The end of a round trip of which that part was marked. Without a mean marks are as losses.
fn round(mean: Option<u64>, part: u64) -> Marked {
    Marked { round: Some(part), ..first(mean, 0) }
}

/// The first mark in a round trip, with so much under way.
fn first(mean: Option<u64>, in_flight: usize) -> Marked {
    let (now, app_limited, delivered) = (Time::ZERO, false, 1_000_000);
    Marked { first: in_flight > 0, now, in_flight, app_limited, delivered, mean, round: None }
}

#[test]
fn a_round_trip_with_marks_makes_room_once_the_path_is_known_and_nobody_probes_for_more() {
    for state in STATES {
        for (mean, left) in [(None, 140_000), (Some(ALL), 133_399), (Some(EIGHTH), 191_675)] {
            let mut bbr = model(state);
            bbr.take_marks(&round(mean, EIGHTH));
            let makes_room = matches!(state, State::Down | State::Cruise | State::ProbeRtt);
            let expected = Bounds { inflight_lo: makes_room.then_some(left), ..Bounds::default() };
            assert_eq!(bbr.bounds, expected, "{state:?} {mean:?}");
            // As losses they end the startup, whatever their part.
            let ends = state == State::Startup && mean.is_none();
            assert_eq!(bbr.state, if ends { State::Drain } else { state }, "{mean:?}");
            assert_eq!(bbr.max_bw(), 10_000_000, "they say nothing of the rate");
        }
    }
}

#[test]
fn marks_of_what_the_startup_has_queued_make_no_room() {
    for state in [State::Down, State::Cruise, State::ProbeRtt] {
        for mean in [None, Some(ALL), Some(EIGHTH)] {
            let mut bbr = model(state);
            (bbr.acks, bbr.rates) = (Acks::ProbeStopping, Rates::of(0, 10_000_000));
            bbr.take_marks(&round(mean, ALL));
            assert_eq!(bbr.bounds, Bounds::default(), "{state:?} {mean:?}");
            // A probe for more is another matter: it ends with the first one.
            bbr.rates = Rates::of(10_000_000, 10_000_000);
            bbr.take_marks(&round(mean, ALL));
            assert!(bbr.bounds.inflight_lo.is_some(), "{state:?} {mean:?}");
        }
    }
}

#[test]
fn the_first_mark_of_a_round_trip_ends_a_probe_for_more_and_nothing_else() {
    for state in STATES {
        for mean in [None, Some(ALL), Some(EIGHTH)] {
            let mut bbr = model(state);
            bbr.probing_samples = true;
            bbr.take_marks(&first(mean, 150_000));
            let probed = state == State::Up;
            let expected = Bounds { inflight_hi: probed.then_some(150_000), ..Bounds::default() };
            assert_eq!((bbr.bounds, bbr.probing_samples), (expected, !probed), "{state:?} {mean:?}");
            assert_eq!(bbr.state, if probed { State::Down } else { state }, "{mean:?}");
        }
    }
}

#[test]
fn what_a_probe_finds_is_what_was_under_way_or_most_of_the_pipe() {
    for mean in [None, Some(ALL)] {
        let mut bbr = model(State::Up);
        bbr.take_marks(&first(mean, 10_000));
        assert_eq!(bbr.bounds.inflight_hi, Some(PIPE / 100 * 70), "{mean:?}");
        let mut bbr = model(State::Up);
        bbr.take_marks(&Marked { app_limited: true, ..first(mean, 150_000) });
        assert_eq!((bbr.state, bbr.bounds), (State::Down, Bounds::default()), "its sender had no more");
        let mut bbr = model(State::Up);
        bbr.take_marks(&round(mean, ALL));
        assert_eq!(bbr.state, State::Up, "no mark of this round trip is the first");
    }
}

#[test]
fn half_of_a_round_trip_marked_ends_the_startup_where_parts_count() {
    for (part, ends) in [(BBR_MARKS_FULL - 1, false), (BBR_MARKS_FULL, true), (ALL, true)] {
        let mut bbr = model(State::Startup);
        bbr.take_marks(&round(Some(ALL), part));
        assert_eq!((bbr.state == State::Drain, bbr.full_reached), (ends, ends), "{part}");
    }
    for mean in [None, Some(ALL)] {
        let mut bbr = model(State::Startup);
        bbr.rates = Rates::default();
        bbr.take_marks(&round(mean, ALL));
        assert_eq!(bbr.state, State::Startup, "no rate is known yet");
    }
}

#[test]
fn room_is_made_down_to_what_arrives_or_what_the_path_holds() {
    for mean in [None, Some(ALL)] {
        // What arrived in the last round, and where marks leave the bound.
        for (arrived, least) in [(90_000, 90_000), (500_000, PIPE), (0, 4 * PACKET)] {
            let mut bbr = model(State::Cruise);
            bbr.inflight_latest = arrived;
            let mut before = WINDOW;
            for _ in 0..40 {
                bbr.take_marks(&round(mean, ALL));
                let now = bbr.bounds.inflight_lo.expect("there were marks");
                assert!(now <= before && now >= least, "{mean:?} {arrived}: {now} after {before}");
                before = now;
            }
            assert_eq!(before, least, "{mean:?} {arrived}");
            // The next probe begins without it.
            bbr.start_refill(0);
            assert_eq!(bbr.bounds, Bounds::default());
        }
    }
}

#[test]
fn a_first_mark_that_ends_its_round_trip_too_leaves_what_arrived_in_it() {
    for mean in [None, Some(ALL)] {
        let mut bbr = model(State::Up);
        (bbr.window, bbr.inflight_latest) = (PIPE, 90_000);
        bbr.take_marks(&Marked { round: Some(ALL), ..first(mean, PIPE) });
        assert_eq!((bbr.state, bbr.bounds.inflight_lo), (State::Down, Some(90_000)), "{mean:?}");
    }
}

#[test]
fn a_mark_leaves_nothing_of_a_loss_to_be_undone() {
    for mean in [None, Some(ALL)] {
        let mut bbr = model(State::Cruise);
        let (number, next, bytes, lost) = (9, 20, PACKET, PACKET as u64);
        let (in_flight, app_limited, delivered) = (WINDOW, false, 1_000_000);
        bbr.on_loss(&Loss {
            first: true,
            now: Time::ZERO,
            number,
            next,
            bytes,
            lost,
            in_flight,
            app_limited,
            delivered,
        });
        bbr.bounds.inflight_lo = Some(PIPE);
        bbr.on_marks(&first(mean, WINDOW));
        bbr.on_undo();
        assert_eq!(bbr.bounds.inflight_lo, Some(PIPE), "{mean:?}");
    }
}
