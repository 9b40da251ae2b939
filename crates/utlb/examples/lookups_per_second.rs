//! How fast the simulator is, and whether a public LRU map counts the same misses.
//!
//! `cargo run --release -p vmmc-utlb --example lookups_per_second [MILLIONS [simulator]]` streams
//! that many records (default 20) through a direct-mapped shared cache with LRU pinning, then runs
//! one LRU problem through this crate and through crate `lru`. Memory does not grow with the number
//! of records.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};
use vmmc_utlb::generate::{App, node};
use vmmc_utlb::sim::{Config, Memory, Simulator};
use vmmc_utlb::trace::{Op, Record};
use vmmc_utlb::{Pages, PinRequest, Pinning, PolicyKind, Prepin, Process, Rng};

/// Time on the processor, where the system reports it: other programs do not count then.
struct Watch(Instant, Option<Duration>);

fn on_processor() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

impl Watch {
    fn start() -> Watch {
        Watch(Instant::now(), on_processor())
    }

    fn seconds(&self) -> f64 {
        let busy = self.1.zip(on_processor()).map(|(start, now)| now.saturating_sub(start));
        busy.unwrap_or_else(|| self.0.elapsed()).as_secs_f64()
    }
}

/// A skewed choice among 64 Ki pages: seven of eight uses go to the first 1024, the others to all.
/// About a tenth of the lookups miss, as in Barnes and Water.
fn page(rng: &mut Rng) -> u64 {
    let random = rng.next_u64();
    if random % 8 == 0 { random >> 48 } else { random >> 54 }
}

/// The paper's programs, one after the other, as often as needed.
fn replay(millions: u64) {
    for app in App::ALL {
        let trace = node(app, 0, 1);
        let mut simulator = Simulator::new(Config::default()).expect("a good configuration");
        let start = Watch::start();
        let rounds = millions * 1_000_000 / trace.len() as u64 / 4 + 1;
        for _ in 0..rounds {
            trace.iter().for_each(|record| simulator.step(record));
        }
        let seconds = start.seconds();
        let outcome = simulator.finish();
        let lookups = outcome.total.cache.lookups as f64;
        let misses = outcome.rates().ni_miss;
        println!(
            "replay {:9} {:5.1} M lookups/s   engine misses {misses:.3} per lookup",
            app.name(),
            lookups / seconds / 1e6
        );
    }
}

fn simulate(millions: u64) {
    let config = Config { memory: Memory::PerProcess(4096), ..Config::default() };
    let mut simulator = Simulator::new(config).expect("a good configuration");
    let mut rng = Rng::new(1);
    let start = Watch::start();
    for time_ns in 0..millions * 1_000_000 {
        let process = Process((time_ns % 4) as u16);
        simulator.step(&Record { time_ns, process, op: Op::Send, address: page(&mut rng) << 12, len_bytes: 4096 });
    }
    let seconds = start.seconds();
    let rates = simulator.finish().rates();
    println!(
        "simulator      {:6.1} M lookups/s   check misses {:.3}, engine misses {:.3}, unpins {:.3} per lookup",
        millions as f64 / seconds,
        rates.check_miss,
        rates.ni_miss,
        rates.unpin
    );
}

/// One LRU problem: 4096 pages may be pinned.
fn ours(requests: u64) -> u64 {
    let mut pinning = Pinning::new(PolicyKind::Lru.build(), Prepin::Fixed(1), Some(4096));
    let mut rng = Rng::new(2);
    let mut request = PinRequest::default();
    for _ in 0..requests {
        let pages = Pages::of_bytes(page(&mut rng) << 12, 1).expect("small");
        if !pinning.lookup(pages) {
            pinning.miss(pages, &mut request).expect("one page fits");
            request.pin.iter().for_each(|page| _ = pinning.pinned(*page));
        }
    }
    pinning.counters().check_misses
}

fn public(requests: u64) -> u64 {
    let mut cache = lru::LruCache::new(NonZeroUsize::new(4096).expect("not 0"));
    let mut rng = Rng::new(2);
    (0..requests).filter(|_| cache.put(page(&mut rng), ()).is_none()).count() as u64
}

fn main() {
    let millions = std::env::args().nth(1).map_or(20, |n| n.parse().expect("a number of millions"));
    if std::env::args().nth(2).as_deref() == Some("simulator") {
        return simulate(millions);
    }
    replay(millions);
    simulate(millions);
    let requests = millions * 500_000;
    let timed = |of: fn(u64) -> u64| {
        let start = Watch::start();
        let misses = of(requests);
        (misses, requests as f64 / start.seconds() / 1e6)
    };
    let ((mine, my_rate), (theirs, their_rate)) = (timed(ours), timed(public));
    println!("LRU, this crate {my_rate:5.1} M lookups/s   {mine} misses of {requests}");
    println!(
        "LRU, crate lru  {their_rate:5.1} M lookups/s   {theirs} misses; ours is {:.1} times as fast",
        my_rate / their_rate
    );
    assert_eq!(mine, theirs, "two LRU caches of one size must miss equally");
}
