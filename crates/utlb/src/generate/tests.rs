//! Generated traces against Table 3 and the rows that they are tuned on. What is prediction is not
//! tested here: it is reported.

use super::*;
use crate::paper;
use crate::sim::{Config, Mechanism, run};
use crate::trace::Info;

/// Mean over the nodes.
fn mean(app: App, of: impl Fn(&[Record]) -> f64) -> f64 {
    (0..NODES).map(|number| of(&node(app, number, 1))).sum::<f64>() / f64::from(NODES)
}

#[test]
fn footprints_and_lookups_are_those_of_table_3() {
    for app in App::ALL {
        let info = |trace: &[Record]| {
            let mut info = Info::default();
            trace.iter().for_each(|record| info.add(record));
            info
        };
        let row = paper::row(app);
        let footprint = mean(app, |trace| info(trace).sum(|p| p.footprint) as f64);
        let lookups = mean(app, |trace| info(trace).sum(|p| p.lookups) as f64);
        assert!(
            (footprint / row.footprint as f64 - 1.0).abs() < 0.01,
            "{app:?}: footprint {footprint} of {}",
            row.footprint
        );
        assert!((lookups / row.lookups as f64 - 1.0).abs() < 0.01, "{app:?}: lookups {lookups} of {}", row.lookups);
    }
}

#[test]
fn the_rows_that_generators_are_tuned_on_are_met() {
    for app in App::ALL {
        let row = paper::row(app);
        let config = Config::default().with_entries(1024).expect("a power of two");
        let check = mean(app, |t| run(config, t).expect("good").rates().check_miss);
        let ni = mean(app, |t| run(config, t).expect("good").rates().ni_miss);
        let interrupt = Config { mechanism: Mechanism::Interrupt, ..config };
        let unpin = mean(app, |t| run(interrupt, t).expect("good").rates().unpin);
        for (what, ours, paper) in
            [("check", check, row.t4_check), ("ni", ni, row.t4_ni[0]), ("unpin", unpin, row.t4_intr_unpin[0])]
        {
            assert!((ours - paper).abs() < 0.015, "{app:?}: {what} {ours:.3}, paper {paper:.2}");
        }
    }
}

#[test]
fn a_seed_gives_one_trace() {
    assert_eq!(node(App::Water, 2, 7), node(App::Water, 2, 7));
    assert_ne!(node(App::Water, 2, 7), node(App::Water, 2, 8));
    assert_ne!(node(App::Water, 2, 7), node(App::Water, 3, 7));
}

#[test]
fn five_processes_run_side_by_side() {
    for app in App::ALL {
        let trace = node(app, 0, 1);
        assert!(trace.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns), "{app:?}");
        let mut processes: Vec<u16> = trace.iter().map(|record| record.process.0).collect();
        processes.sort_unstable();
        processes.dedup();
        assert_eq!(processes, [1, 2, 3, 4, 5], "{app:?}");
    }
}
