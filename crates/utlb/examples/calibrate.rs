//! Prints generated traces beside the rows of the paper that they are tuned on: Table 3 and the 1 K
//! rows of Table 4.

use vmmc_utlb::generate::{APPLICATION_PROCESSES, App, NODES, node};
use vmmc_utlb::paper;
use vmmc_utlb::sim::{Config, Mechanism, run};
use vmmc_utlb::trace::Info;

fn main() {
    assert_eq!(APPLICATION_PROCESSES, 4);
    println!("{:9} {:>17} {:>17} {:>13} {:>13} {:>13}", "", "footprint", "lookups", "check", "NI 1K", "unpin 1K");
    for app in App::ALL {
        let (mut footprint, mut lookups, mut check, mut ni, mut unpin) = (0, 0, 0.0, 0.0, 0.0);
        for number in 0..NODES {
            let trace = node(app, number, 1);
            let mut info = Info::default();
            trace.iter().for_each(|record| info.add(record));
            footprint += info.sum(|p| p.footprint) / 4;
            lookups += info.sum(|p| p.lookups) / 4;
            let config = Config::default().with_entries(1024).expect("a power of two");
            let utlb = run(config, &trace).expect("good").rates();
            let interrupt = run(Config { mechanism: Mechanism::Interrupt, ..config }, &trace).expect("good").rates();
            check += utlb.check_miss / 4.0;
            ni += utlb.ni_miss / 4.0;
            unpin += interrupt.unpin / 4.0;
        }
        let row = paper::row(app);
        println!(
            "{:9} {footprint:8}/{:8} {lookups:8}/{:8} {check:8.3}/{:4.2} {ni:8.3}/{:4.2} {unpin:8.3}/{:4.2}",
            app.name(),
            row.footprint,
            row.lookups,
            row.t4_check,
            row.t4_ni[0],
            row.t4_intr_unpin[0]
        );
    }
}
