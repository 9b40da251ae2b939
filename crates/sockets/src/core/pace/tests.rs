//! Connections whose turns take what the test says.

use super::*;
use rustix::io::Errno;
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use vmmc_stream::End;

#[derive(Default)]
pub(in super::super) struct Clock {
    pub(in super::super) now_ns: Cell<u64>,
    pub(in super::super) cpu_ns: Cell<u64>,
    /// Segments sent again.
    pub(in super::super) again: Cell<u32>,
}

/// What a loss costs in the kernel.
const TIMEOUT_NS: u64 = 204_000_000;

impl Kernel for Clock {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }
    fn cpu_ns(&self) -> u64 {
        self.cpu_ns.get()
    }
    fn retransmissions(&self) -> Option<(u32, u64)> {
        Some((self.again.get(), TIMEOUT_NS))
    }
    fn send_now(&self, _: &[IoSlice<'_>]) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }
    fn receive_now(&self, _: &mut [IoSliceMut<'_>], _: bool) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }
    fn sent(&self) -> Option<u64> {
        None
    }
    fn received(&self) -> Option<(u64, u64)> {
        None
    }
    fn peek(&self) -> End {
        End::Open
    }
    fn peer_ended(&self) -> bool {
        false
    }
    fn no_delay(&self) {}
}

/// Both ends, and what a turn takes them.
struct Pair {
    clock: Clock,
    judge: Pace,
    follower: Pace,
    judge_in_ring: bool,
    follower_in_ring: bool,
    turns_in_ring: u32,
    /// Sends to come at rest, of either end; and turns in which not both did.
    rests: [u32; 2],
    turns_awake: u32,
    /// Of a request and its answer, in the kernel and in the ring.
    way_ns: [u64; 2],
    /// Of either end in the kernel.
    cpu_ns: u64,
    judge_pause_ns: u64,
    follower_pause_ns: u64,
    /// Every so many turns a request of the judge is lost, and in the turn after it an answer; 0:
    /// none is.
    loses_every: u32,
    made: u32,
}

impl Pair {
    fn new(way_ns: [u64; 2]) -> Pair {
        Pair {
            clock: Clock { now_ns: Cell::new(1), cpu_ns: Cell::new(1), again: Cell::new(0) },
            judge: Pace::default(),
            follower: Pace::default(),
            judge_in_ring: false,
            follower_in_ring: false,
            turns_in_ring: 0,
            rests: [0; 2],
            turns_awake: 0,
            way_ns,
            cpu_ns: way_ns[0] / 2,
            judge_pause_ns: 0,
            follower_pause_ns: 0,
            loses_every: 0,
            made: 0,
        }
    }

    /// A loss, if one is due: the engine makes it good in two round trips.
    fn lose(&mut self) {
        self.made += 1;
        let which = self.made.checked_rem(self.loses_every).unwrap_or(2);
        if which > 1 {
            return;
        }
        if self.judge_in_ring {
            self.after(2 * self.way_ns[1]);
        } else {
            self.clock.again.set(self.clock.again.get() + u32::from(which == 0));
            self.after(TIMEOUT_NS);
        }
    }

    fn after(&self, ns: u64) {
        self.clock.now_ns.set(self.clock.now_ns.get() + ns);
    }

    fn turn(&mut self, bytes: u64) {
        self.after(self.judge_pause_ns);
        let judge_rests = self.rests[0] > 0 && !self.judge.has_news();
        if judge_rests {
            self.rests[0] -= 1;
        } else {
            self.judge.saw_send(&self.clock, bytes, self.judge_in_ring, None);
            let answered = !self.follower.is_slow_responder();
            self.judge_in_ring = !self.judge.prefers_kernel() && (self.judge_in_ring || answered);
            self.rests[0] = if self.judge_in_ring { 0 } else { self.judge.rest(true) };
        }
        self.lose();
        let half = self.way_ns[usize::from(self.judge_in_ring)] / 2;
        self.after(half);
        // A request for the ring ends the other end's rest.
        self.rests[1] = if self.judge.prefers_kernel() { self.rests[1] } else { 0 };
        let follower_rests = self.rests[1] > 0;
        if !follower_rests {
            self.follower.note_receive(|| self.clock.now_ns());
        }
        self.after(self.follower_pause_ns);
        if follower_rests {
            self.rests[1] -= 1;
        } else {
            self.follower.saw_send(&self.clock, bytes, self.follower_in_ring, Some(self.judge_in_ring));
            self.follower_in_ring = !self.follower.prefers_kernel();
            self.rests[1] = if self.follower_in_ring { 0 } else { self.follower.rest(false) };
        }
        self.after(half);
        if self.rests[0] == 0 {
            self.judge.note_receive(|| self.clock.now_ns());
        }
        self.clock.cpu_ns.set(self.clock.cpu_ns.get() + self.cpu_ns);
        self.turns_in_ring += u32::from(self.judge_in_ring || self.follower_in_ring);
        self.turns_awake += u32::from(!(judge_rests && follower_rests));
    }

    /// How many of so many turns were in the ring.
    fn turns(&mut self, count: u32) -> u32 {
        let before = self.turns_in_ring;
        (0..count).for_each(|_| self.turn(8));
        self.turns_in_ring - before
    }
}

#[test]
fn a_connection_that_is_faster_in_the_ring_goes_there_and_stays() {
    let mut pair = Pair::new([60_000, 20_000]);
    assert!(pair.turns(200) > 100);
    let in_ring = pair.turns(100_000);
    assert!(in_ring > 99_700, "{in_ring}: trials of the kernel are rare and short");
}

#[test]
fn a_connection_that_is_slower_in_the_ring_is_tried_less_and_less() {
    let mut pair = Pair::new([60_000, 80_000]);
    let first = pair.turns(500);
    assert!((1..50).contains(&first), "{first}");
    let later = pair.turns(100_000);
    assert!(
        (1..200).contains(&later),
        "{later}: a trial ends after some turns, and the next comes after eight times as many"
    );
}

#[test]
fn what_saves_less_than_a_tenth_is_not_worth_it() {
    let mut pair = Pair::new([60_000, 57_000]);
    assert!(pair.turns(100_000) < 400);
}

/// `set` sets how long one of the ends pauses before it answers.
fn stays_in_the_kernel_while_one_responds_slowly(set: fn(&mut Pair, u64)) {
    let mut pair = Pair::new([60_000, 20_000]);
    set(&mut pair, 100_000);
    assert_eq!(pair.turns(10_000), 0, "untried");
    assert!(pair.turns_awake < 3_500, "{}: and most of the time at rest", pair.turns_awake);
    set(&mut pair, 0);
    let in_ring = pair.turns(5_000);
    assert!(in_ring > 3_500, "{in_ring}: until it is slow no more");
    set(&mut pair, 100_000);
    let in_ring = pair.turns(1_000);
    assert!(in_ring < 100, "{in_ring}: or begins to");
}

#[test]
fn a_slow_responder_that_judges_keeps_to_the_kernel() {
    stays_in_the_kernel_while_one_responds_slowly(|pair, ns| pair.judge_pause_ns = ns);
}

#[test]
fn a_slow_responder_does_not_answer_the_request_of_the_one_that_judges() {
    stays_in_the_kernel_while_one_responds_slowly(|pair, ns| pair.follower_pause_ns = ns);
}

#[test]
fn a_direction_of_long_sends_rests() {
    let mut pair = Pair::new([60_000, 20_000]);
    (0..1_000).for_each(|_| pair.turn(1 << 20));
    assert!(pair.turns_awake < 60, "{}", pair.turns_awake);
    assert!(pair.turns(1_000) > 700, "and when they are short, again, it is seen");
}

#[test]
fn a_connection_measured_while_the_machine_was_busy_is_measured_again() {
    let mut pair = Pair::new([200_000, 100_000]);
    assert!(pair.turns(200) > 100);
    pair.way_ns = [60_000, 100_000];
    pair.turns(400);
    assert!(pair.turns(1_000) < 60);
}

#[test]
fn an_end_that_works_is_no_slow_responder() {
    let mut pair = Pair::new([60_000, 20_000]);
    pair.judge_pause_ns = 100_000;
    pair.cpu_ns = 130_000;
    assert!(pair.turns(1_000) > 800);
}

#[test]
fn long_sends_go_by_the_kernel_and_short_ones_after_them() {
    let mut pair = Pair::new([60_000, 20_000]);
    pair.turns(200);
    pair.turn(1 << 20);
    assert!(!pair.judge_in_ring && !pair.follower_in_ring);
    assert_eq!(pair.turns(20), 0);
}

#[test]
fn what_a_process_does_besides_does_not_hide_that_it_responds_slowly() {
    let mut pair = Pair::new([60_000, 20_000]);
    pair.judge_pause_ns = 100_000;
    pair.turns(40);
    for _ in 0..100 {
        pair.turns(70);
        pair.clock.cpu_ns.set(pair.clock.cpu_ns.get() + 10_000_000);
    }
    assert_eq!(pair.turns_in_ring, 0);
}

#[test]
fn a_stall_now_and_then_does_not_keep_a_connection_from_the_ring() {
    let mut pair = Pair::new([60_000, 20_000]);
    for _ in 0..100 {
        pair.turns(20);
        pair.after(4_000_000);
    }
    assert!(pair.turns_in_ring > 1_500, "{}", pair.turns_in_ring);
}

#[test]
fn a_trial_on_a_machine_without_time_for_it_ends_at_once() {
    let mut pair = Pair::new([60_000, 5_000_000]);
    let in_ring = pair.turns(200);
    assert!((1..=6).contains(&in_ring), "{in_ring}");
}

#[test]
fn losses_that_the_kernel_waits_out_bring_a_connection_into_the_ring() {
    let mut pair = Pair::new([420_000, 450_000]);
    pair.turns(2_000);
    assert!(pair.turns_in_ring < 200, "without losses it is not worth it");
    pair.loses_every = 200;
    pair.turns(20_000);
    let in_ring = pair.turns(100_000);
    assert!(in_ring > 99_000, "{in_ring}");
}

#[test]
fn once_losses_have_ended_the_kernel_is_taken_again() {
    let mut pair = Pair::new([420_000, 450_000]);
    pair.loses_every = 200;
    pair.turns(20_000);
    pair.loses_every = 0;
    pair.turns(400_000);
    assert!(pair.turns(50_000) < 2_000);
}

#[test]
fn a_long_way_is_no_rest() {
    let mut pair = Pair::new([10_400_000, 10_450_000]);
    assert!(pair.turns(2_000) < 100, "the ring is not better");
    pair.loses_every = 200;
    pair.turns(20_000);
    assert!(pair.turns(10_000) > 9_500);
}

#[test]
fn slow_responders_go_into_the_ring_where_losses_cost_more() {
    for set in [|pair: &mut Pair| pair.judge_pause_ns = 300_000, |pair: &mut Pair| pair.follower_pause_ns = 300_000] {
        let mut pair = Pair::new([420_000, 450_000]);
        set(&mut pair);
        assert!(pair.turns(5_000) < 100);
        pair.loses_every = 200;
        pair.turns(20_000);
        let in_ring = pair.turns(20_000);
        assert!(in_ring > 18_000, "{in_ring}");
    }
}
