//! Runs over links hold, are the same every time, and every checker is shown to fail.

use vmmc_nic::{Codepoint, CongestionControl, Event, OpError};

use super::link::Marking;
use super::tamper::LinkTamper;
use super::*;

const SEEDS: u64 = 4 * Shape::ALL.len() as u64;

fn options(seed: u64) -> LinkOptions {
    LinkOptions { seed, congestion: None }
}

#[track_caller]
fn hold(options: LinkOptions) -> LinkReport {
    run_links(options).unwrap_or_else(|failure| panic!("{failure}"))
}

fn without_wall_time(report: LinkReport) -> LinkReport {
    LinkReport { wall_time: Duration::ZERO, ..report }
}

/// The run of a seed that has this shape and control.
fn seed_of(shape: Shape, control: CongestionControl) -> u64 {
    let is = |seed: &u64| {
        let drawn = Scenario::draw(*seed, None);
        (drawn.shape, drawn.control) == (shape, control)
    };
    (0..SEEDS).find(is).expect("two rounds of shapes have all of them")
}

#[test]
fn a_small_sweep_holds_and_does_what_it_says() {
    let sweep = run_links_many(0..SEEDS, 2, None, |_, _| true);
    assert!(sweep.failures.is_empty(), "{}", sweep.failures[0]);
    assert_eq!(sweep.runs, SEEDS);
    assert!(sweep.packets > 100_000 && sweep.dropped > 0 && sweep.lost > 0 && sweep.late > 0, "{sweep:?}");
    assert!(sweep.too_large > 0 && sweep.marked > 0, "{sweep:?}");
    for shape in Shape::ALL {
        let goals = sweep.goals.iter().filter(|goal| goal.shape == shape);
        let whole = if shape == Shape::Sizes { "size found, ms" } else { "utilisation" };
        let runs: u64 = goals.filter(|goal| goal.name == whole).map(|goal| goal.runs).sum();
        assert_eq!(runs, 4, "{shape:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..Shape::ALL.len() as u64 {
        let first = without_wall_time(hold(options(seed)));
        assert_eq!(first, without_wall_time(hold(options(seed))));
        assert_ne!(first.digest, hold(options(seed + 5)).digest);
    }
}

#[test]
fn threads_do_not_change_the_result() {
    let sweep = |threads| LinkSweep {
        wall_time: Duration::ZERO,
        ..run_links_many(0..Shape::ALL.len() as u64, threads, None, |_, _| true)
    };
    assert_eq!(sweep(1), sweep(3));
}

#[test]
fn the_congestion_control_can_be_chosen() {
    let [bbr, cubic] = CongestionControl::ALL.map(|control| hold(LinkOptions { congestion: Some(control), seed: 1 }));
    assert_eq!((bbr.control, cubic.control), (CongestionControl::Bbr, CongestionControl::Cubic));
    assert_ne!(bbr.digest, cubic.digest);
}

#[test]
fn a_failure_names_the_command_that_replays_it() {
    let options = LinkOptions { seed: 7, congestion: Some(CongestionControl::Cubic) };
    let failure = run_tampered(options, &mut Bug { deposit: |_| 2, ..HONEST }).expect_err("a bug was planted");
    assert_eq!(failure.replay_command(), "vmmc sim --network --seed 7 --congestion cubic");
    assert!(failure.to_string().contains("exactly-once"));
}

/// A bug made of functions; their argument counts calls.
struct Bug {
    deposit: fn(u64) -> usize,
    event: fn(u64, Event) -> Vec<Event>,
    level: fn(&'static str, u64) -> u64,
    late_ns: fn(u64, usize) -> u64,
    /// Of the count, the time and the node.
    swallows: fn(u64, u64, usize) -> bool,
    control: Option<CongestionControl>,
    codepoint: fn(Codepoint) -> Codepoint,
    fetch_part: fn(u64) -> u64,
    calls: u64,
}

const HONEST: Bug = Bug {
    deposit: |_| 1,
    event: |_, event| vec![event],
    level: |_, value| value,
    late_ns: |_, _| 0,
    swallows: |_, _, _| false,
    control: None,
    codepoint: |codepoint| codepoint,
    fetch_part: |bytes| bytes,
    calls: 0,
};

impl LinkTamper for Bug {
    fn deposit(&mut self, _bytes: usize) -> usize {
        self.calls += 1;
        (self.deposit)(self.calls)
    }
    fn event(&mut self, event: Event) -> Vec<Event> {
        self.calls += 1;
        (self.event)(self.calls, event)
    }
    fn level(&mut self, what: &'static str, value: u64) -> u64 {
        (self.level)(what, value)
    }
    fn late_ns(&mut self, now_ns: u64, node: usize) -> u64 {
        (self.late_ns)(now_ns, node)
    }
    fn swallows(&mut self, now_ns: u64, node: usize) -> bool {
        self.calls += 1;
        (self.swallows)(self.calls, now_ns, node)
    }
    fn codepoint(&mut self, codepoint: Codepoint) -> Codepoint {
        (self.codepoint)(codepoint)
    }
    fn control(&mut self) -> Option<CongestionControl> {
        self.control
    }
    fn fetch_part(&mut self, bytes: u64) -> u64 {
        (self.fetch_part)(bytes)
    }
}

/// Runs with the bug until the checker has named it.
#[track_caller]
fn is_found_by(checker: &str, shape: Shape, control: CongestionControl, bug: impl Fn() -> Bug) {
    let mut found = Vec::new();
    let first = seed_of(shape, control);
    // A queue that marks stays short, whoever fills it.
    let marks = |seed: &u64| Scenario::draw(*seed, None).routes[0].there.marking != Marking::Passes;
    for seed in (first..).step_by(2 * Shape::ALL.len()).filter(|seed| marks(seed) == (checker == "marks")).take(10) {
        match run_tampered(options(seed), &mut bug()) {
            Err(failure) if failure.checker == checker => return,
            Err(failure) => found.push(failure.to_string()),
            Ok(report) => found.push(format!("seed {seed} held: {:?}", report.goals)),
        }
    }
    panic!("{checker} never found the bug: {found:#?}");
}

const BBR: CongestionControl = CongestionControl::Bbr;
const CUBIC: CongestionControl = CongestionControl::Cubic;

#[test]
fn a_deposit_done_twice_is_found() {
    let twice = || Bug { deposit: |n| if n % 1_000 == 0 { 2 } else { 1 }, ..HONEST };
    is_found_by("exactly-once", Shape::Alone, BBR, twice);
}

#[test]
fn a_lost_deposit_is_found() {
    let lost = || Bug { deposit: |n| usize::from(n % 1_000 != 0), ..HONEST };
    is_found_by("exactly-once", Shape::Rough, CUBIC, lost);
}

#[test]
fn a_notification_left_out_is_found() {
    let left_out = |n, event| match event {
        Event::Notification { .. } if n % 10 == 0 => vec![],
        event => vec![event],
    };
    is_found_by("order", Shape::Alone, BBR, || Bug { event: left_out, ..HONEST });
}

#[test]
fn a_completion_told_twice_is_found() {
    let twice = |_, event| match event {
        Event::Completion { .. } => vec![event.clone(), event],
        event => vec![event],
    };
    is_found_by("order", Shape::Incast, CUBIC, || Bug { event: twice, ..HONEST });
}

#[test]
fn a_send_that_fails_for_no_reason_is_found() {
    let fails = |_, event| match event {
        Event::Completion { process, cookie, .. } => {
            let result = Err(OpError::OwnerDied);
            vec![Event::Completion { process, cookie, result }]
        }
        event => vec![event],
    };
    is_found_by("honest-errors", Shape::BesideTcp, BBR, || Bug { event: fails, ..HONEST });
}

#[test]
fn every_level_beyond_its_bound_is_found() {
    let beyond = |what: &'static str, value: u64| if what.contains("held") { u64::MAX } else { value };
    is_found_by("bounded-memory", Shape::Rough, BBR, || Bug { level: beyond, ..HONEST });
    let beyond = |what: &'static str, value: u64| if what.contains("window") { u64::MAX } else { value };
    is_found_by("bounded-memory", Shape::Alone, CUBIC, || Bug { level: beyond, ..HONEST });
    let beyond = |what: &'static str, value: u64| if what.contains("of all peers") { 1 << 30 } else { value };
    is_found_by("bounded-memory", Shape::Incast, BBR, || Bug { level: beyond, ..HONEST });
}

#[test]
fn a_pace_that_is_not_kept_is_found() {
    let late = |now_ns, node| if now_ns > 1_000_000_000 && node == 0 { 50_000_000 } else { 0 };
    is_found_by("pacing", Shape::Alone, BBR, || Bug { late_ns: late, ..HONEST });
}

#[test]
fn a_stream_that_stands_is_found() {
    let gone = |_, now_ns, node| now_ns > 1_000_000_000 && node == 0;
    is_found_by("starvation", Shape::Pairs, CUBIC, || Bug { swallows: gone, ..HONEST });
    // So is one that never begins.
    is_found_by("starvation", Shape::Pairs, BBR, || Bug { swallows: |_, _, node| node == 1, ..HONEST });
}

#[test]
fn a_link_that_is_not_used_is_found() {
    is_found_by("utilisation", Shape::Pairs, CUBIC, || Bug { swallows: |n, _, _| n % 20 == 0, ..HONEST });
}

#[test]
fn a_queue_that_is_kept_full_is_found() {
    is_found_by("queueing delay, ms", Shape::Alone, BBR, || Bug { control: Some(CUBIC), ..HONEST });
}

#[test]
fn a_stream_that_gets_too_little_is_found() {
    is_found_by("share", Shape::BesideTcp, CUBIC, || Bug { swallows: |n, _, _| n % 20 == 0, ..HONEST });
    // What is no checker is measured all the same.
    let seed = seed_of(Shape::Pairs, CUBIC);
    let mut bug = Bug { swallows: |n, _, node| node == 0 && n % 10 == 0, ..HONEST };
    let fair = |report: LinkReport| report.goals.iter().find(|goal| goal.name == "Jain's index").map(|goal| goal.value);
    let honest = fair(hold(options(seed)));
    assert!(fair(run_tampered(options(seed), &mut bug).expect("it is slow, no more")) < honest);
}

#[test]
fn a_sender_that_is_much_slower_than_others_is_found() {
    let slow = |_, now_ns, node| node == 3 && (20_000_000..300_000_000).contains(&now_ns);
    is_found_by("slowest, of mean", Shape::Incast, BBR, || Bug { swallows: slow, ..HONEST });
}

#[test]
fn one_that_fetches_all_at_once_is_found_and_so_is_a_fetch_that_others_starve() {
    let slow = |_, now_ns, node| node == 1 && (5_000_000..300_000_000).contains(&now_ns);
    is_found_by("slowest, of mean", Shape::Fetches, CUBIC, || Bug { swallows: slow, ..HONEST });
    // What finds the queue full, and pings, are measured: short fetches are asked for without a
    // bound.
    let many = |seed: &u64| {
        let drawn = Scenario::draw(*seed, None);
        let has_room = drawn.routes[0].there.queue_bytes >= 500_000;
        drawn.shape == Shape::Fetches && drawn.starts_ns.len() == 64 && has_room
    };
    let seed = (0..1_000).find(many).expect("some of 142 runs are so");
    let met = |goals: &[Goal], name| {
        let goal = goals.iter().find(|goal| goal.name == name);
        goal.expect("it is measured").is_met()
    };
    let honest = hold(options(seed)).goals;
    let (bug, scenario) = (&mut Bug { fetch_part: |_| 4_096, ..HONEST }, Scenario::draw(seed, None));
    let mut world = World::new(scenario, seed, bug);
    play(&mut world);
    assert!(world.verdict.is_none(), "it is slow, no more");
    let goals = goals::of(&world);
    for name in ["lost, of 1,000", "ping p99, ms"] {
        assert!(met(&honest, name) && !met(&goals, name), "{name}: {honest:?}, {goals:?}");
    }
}

#[test]
fn what_is_fetched_wrongly_is_found() {
    let twice = || Bug { deposit: |n| if n % 1_000 == 0 { 2 } else { 1 }, ..HONEST };
    is_found_by("exactly-once", Shape::Fetches, BBR, twice);
    let again = |_, event| match event {
        Event::Completion { .. } => vec![event.clone(), event],
        event => vec![event],
    };
    is_found_by("exactly-once", Shape::Fetches, CUBIC, || Bug { event: again, ..HONEST });
}

#[test]
fn marks_that_are_not_those_of_the_links_are_found() {
    // What a path is said to remove arrives.
    is_found_by("marks", Shape::Alone, BBR, || Bug { codepoint: |_| Codepoint::Ect0, ..HONEST });
    // A queue that is not there marks.
    is_found_by("marks", Shape::Alone, CUBIC, || Bug { codepoint: |_| Codepoint::Ect1, ..HONEST });
}

/// The first seed of a run with such a path.
fn sizes_seed(is: impl Fn(&Scenario) -> bool) -> u64 {
    let of = |seed: &u64| {
        let drawn = Scenario::draw(*seed, None);
        drawn.shape == Shape::Sizes && is(&drawn)
    };
    (0..1_000).find(of).expect("some of 166 runs are so")
}

/// Runs a seed with a bug that the checker of sizes, or another one, finds.
#[track_caller]
fn fails(seed: u64, checker: &str, mut bug: Bug) {
    let failure = run_tampered(options(seed), &mut bug).expect_err("a bug was planted");
    assert_eq!(failure.checker, checker, "{failure}");
}

#[test]
fn a_size_that_is_not_that_of_the_path_is_found() {
    // One that no path takes, and one that is smaller than any need be.
    let shrinks = |drawn: &Scenario| {
        drawn.pause_ns.is_none() && !drawn.routes.iter().any(|route| route.is_down() || route.ends_sessions())
    };
    let seed = sizes_seed(shrinks);
    let sizes: [fn(&'static str, u64) -> u64; 2] = [
        |what, value| if what == "bytes of a packet" { 9_100 } else { value },
        |what, value| if what == "bytes of a packet" { 1_100 } else { value },
    ];
    for level in sizes {
        fails(seed, "size", Bug { level, ..HONEST });
    }
}

#[test]
fn a_larger_path_that_is_never_found_is_found() {
    let grows = |drawn: &Scenario| drawn.pause_ns.is_some() && drawn.host_bytes == 9_000;
    let before: fn(&'static str, u64) -> u64 =
        |what, value| if what == "bytes of a packet" { value.min(1_472) } else { value };
    fails(sizes_seed(grows), "size", Bug { level: before, ..HONEST });
}

#[test]
fn a_session_that_ends_for_size_alone_is_found_and_one_that_outlasts_its_path() {
    let lost = |_, event| match event {
        Event::Completion { process, cookie, .. } => {
            let result = Err(OpError::NodeUnreachable { after_ms: 5_000 });
            vec![Event::Completion { process, cookie, result }]
        }
        event => vec![event],
    };
    let lives = sizes_seed(|drawn| !drawn.routes.iter().any(|route| route.ends_sessions()));
    fails(lives, "honest-errors", Bug { event: lost, ..HONEST });
    let ends = sizes_seed(|drawn| drawn.routes.iter().any(|route| route.ends_sessions()));
    let silent = |_, event| if matches!(event, Event::PeerDown { .. }) { vec![] } else { vec![event] };
    fails(ends, "size", Bug { event: silent, ..HONEST });
    let other = |_, event| match event {
        Event::Completion { process, cookie, result: Err(_) } => {
            vec![Event::Completion { process, cookie, result: Err(OpError::OwnerDied) }]
        }
        event => vec![event],
    };
    fails(ends, "size", Bug { event: other, ..HONEST });
}

#[test]
fn a_panic_is_found() {
    is_found_by("panic", Shape::Alone, BBR, || Bug { deposit: |n| panic!("at the {n}th"), ..HONEST });
}
