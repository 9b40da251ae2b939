//! Whole runs hold, are the same every time, and do what they say they do.

use crate::{Faults, Mode, Options, Report, run, run_many};

/// The report without what depends on the machine.
fn without_wall_time(mut report: Report) -> Report {
    report.wall_time = std::time::Duration::ZERO;
    report
}

#[track_caller]
fn hold(options: Options) -> Report {
    run(options).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn a_small_sweep_holds() {
    let sweep = run_many(1000..1016, 2, Options::for_sweep, |_, _| true);
    for failure in &sweep.failures {
        eprintln!("{failure}");
    }
    assert!(sweep.failures.is_empty());
    let report = sweep.report;
    let faults = report.faults;
    assert_eq!(report.runs, 16);
    let happened = [
        report.operations_done,
        report.operations_failed,
        report.notifications,
        report.redirects,
        report.gather_sends,
        report.records,
        report.full_rings,
        report.engines.retransmits,
        report.engines.path_switches,
        report.engines.duplicates,
        report.engines.replays,
        report.engines.bad_seals,
        report.engines.rejects,
        report.engines.sessions_lost,
        faults.lost,
        faults.duplicated,
        faults.reordered,
        faults.corrupted,
        faults.blocked,
        faults.too_large,
        faults.partitions,
        faults.path_failures,
        faults.node_crashes,
        faults.process_crashes,
    ];
    assert!(happened.iter().all(|&count| count > 0), "something never happened: {report:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for mode in [Mode::Plain, Mode::Sealed] {
        let options = Options { mode, steps: 120, ..Options::new(4, 42) };
        let first = without_wall_time(hold(options.clone()));
        assert_eq!(first, without_wall_time(hold(options.clone())));
        assert_ne!(first.digest, hold(Options { seed: 43, ..options }).digest);
    }
}

#[test]
fn threads_do_not_change_the_result() {
    let options = |seed| Options { steps: 40, ..Options::for_sweep(seed) };
    let one = run_many(0..6, 1, options, |_, _| true);
    let three = run_many(0..6, 3, options, |_, _| true);
    assert_eq!(without_wall_time(one.report), without_wall_time(three.report));
}

#[test]
fn without_faults_no_valid_operation_fails_for_the_network() {
    let report = hold(Options { faults: Faults::NONE, ..Options::new(3, 5) });
    assert_eq!(report.faults.total(), 0);
    assert!(report.operations_done > 100, "{report:?}");
}

#[test]
fn a_thousand_nodes_hold() {
    let report = hold(Options { steps: 12, ..Options::new(1_000, 3) });
    assert!(report.operations_done > 1_000 && report.engines.sessions > 1_000, "{report:?}");
}

#[test]
fn a_sweep_can_be_stopped() {
    let sweep = run_many(0..1000, 1, |seed| Options { steps: 1, ..Options::new(2, seed) }, |done, _| done < 3);
    assert_eq!(sweep.report.runs, 3);
}

#[test]
fn where_nothing_is_lost_next_to_nothing_is_sent_twice() {
    let sweep = run_many(0..30, 2, |seed| Options { faults: Faults::NONE, ..Options::for_sweep(seed) }, |_, _| true);
    assert!(sweep.failures.is_empty());
    let (again, packets) = (sweep.report.engines.retransmits, sweep.report.packets);
    // The simulated links have queues that overflow.
    assert!(packets > 50_000 && again * 300 < packets, "{again} chunks sent again, {packets} packets");
}
