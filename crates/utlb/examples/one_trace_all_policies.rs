//! Misses of every policy on one trace, to be compared with another simulator: `... --example
//! one_trace_all_policies -- FILE PAGES`.
//!
//! For libCacheSim give it the same oracleGeneral file and a cache of as many objects; in Python,
//! with the package `libcachesim`: `LRU(cache_size=PAGES).process_trace(TraceReader(FILE,
//! TraceType.ORACLE_GENERAL_TRACE, ReaderInitParam(ignore_obj_size=True)))`.

use std::time::Instant;
use vmmc_utlb::PolicyKind;
use vmmc_utlb::sim::{Config, Memory, stream};
use vmmc_utlb::trace::{Format, read};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, pages] = &words[..] else { panic!("give a trace and a number of pages") };
    let memory = Memory::PerProcess(pages.parse().expect("a number of pages"));
    for policy in PolicyKind::ALL {
        let trace = read(file, std::fs::File::open(file).expect("a file"), Format::of_file(file)).expect("a trace");
        let start = Instant::now();
        let user = stream(Config { policy, memory, ..Config::default() }, trace).expect("a trace").total.user;
        let rate = user.lookups as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{:7} {:10} misses of {} lookups, {rate:.1} M/s", policy.name(), user.check_misses, user.lookups);
    }
}
