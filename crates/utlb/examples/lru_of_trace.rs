//! One LRU problem on one trace: `cargo run --release -p vmmc-utlb --example lru_of_trace -- FILE
//! PAGES` prints requests, misses and seconds on the processor, reading included.
//!
//! `against_libcachesim.py` beside it runs the same file through libCacheSim.

use vmmc_utlb::trace::{Format, read};
use vmmc_utlb::{Pages, PinRequest, Pinning, PolicyKind, Prepin};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, pages] = &words[..] else { panic!("give a trace and a number of pages") };
    let trace = read(file, std::fs::File::open(file).expect("a file"), Format::of_file(file)).expect("a trace");
    let limit = pages.parse().expect("a number of pages");
    let mut pinning = Pinning::new(PolicyKind::Lru.build(), Prepin::Fixed(1), Some(limit));
    let mut request = PinRequest::default();
    for record in trace {
        let pages = Pages::of_bytes(record.expect("a whole trace").address, 1).expect("an address");
        if !pinning.lookup(pages) {
            pinning.miss(pages, &mut request).expect("one page fits");
            request.pin.iter().for_each(|page| _ = pinning.pinned(*page));
        }
    }
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let ns: f64 = stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN);
    println!("{} {} {}", pinning.counters().lookups, pinning.counters().check_misses, ns / 1e9);
}
