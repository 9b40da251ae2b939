//! The simulator against counts worked out by hand, against naive models, and against invariants of
//! the paper.

use super::*;
use crate::cache::CacheShape;
use crate::cost::{PAPER, Rates};
use crate::ids::Process;
use crate::pinning::Prepin;
use crate::policy::PolicyKind;
use crate::trace::Op;
use proptest::prelude::*;

fn send(process: u16, page: u64) -> Record {
    Record { time_ns: 0, process: Process(process), op: Op::Send, address: page << 12, len_bytes: 4096 }
}

fn entries(entries: usize, config: Config) -> Config {
    Config { cache: CacheShape::new(entries, 1, false).expect("a power of two"), ..config }
}

/// (lookups, check misses, engine misses, pins, unpins).
fn counts(config: Config, trace: &[Record]) -> (u64, u64, u64, u64, u64) {
    let total = run(config, trace).expect("a good configuration").total;
    (total.cache.lookups, total.user.check_misses, total.cache.misses, total.user.pins, total.user.unpins)
}

fn pages(process: u16, numbers: &[u64]) -> Vec<Record> {
    numbers.iter().map(|n| send(process, *n)).collect()
}

#[test]
fn first_uses_miss_twice_and_later_ones_not_at_all() {
    assert_eq!(counts(Config::default(), &pages(1, &[1, 2, 3, 1, 2, 3])), (6, 3, 3, 3, 0));
}

#[test]
fn two_pages_of_one_set_conflict_in_the_engine_only() {
    let trace = pages(1, &[0, 4, 0, 4, 0, 4]);
    let config = Config { classify: true, ..entries(4, Config::default()) };
    assert_eq!(counts(config, &trace), (6, 2, 6, 2, 0));
    let total = run(config, &trace).expect("good").total.cache;
    assert_eq!((total.compulsory, total.capacity, total.conflict), (2, 0, 4));
    let two_way = Config { cache: CacheShape::new(4, 2, false).expect("good"), ..config };
    assert_eq!(counts(two_way, &trace), (6, 2, 2, 2, 0));
}

#[test]
fn the_interrupt_based_approach_unpins_what_leaves_the_cache() {
    let config = Config { mechanism: Mechanism::Interrupt, ..entries(4, Config::default()) };
    assert_eq!(counts(config, &pages(1, &[0, 4, 0, 4, 0, 4])), (6, 6, 6, 6, 5));
}

#[test]
fn a_limit_of_two_pages_evicts_the_least_recently_used() {
    let config = Config { memory: Memory::PerProcess(2), ..Config::default() };
    assert_eq!(counts(config, &pages(1, &[1, 2, 1, 3, 1, 2])), (6, 4, 4, 4, 2));
    // Cyclic use of one page more than fits: LRU misses always, MRU seldom.
    let cycle: Vec<u64> = (0..60).map(|i| i % 3).collect();
    assert_eq!(counts(config, &pages(1, &cycle)).1, 60);
    let mru = Config { policy: PolicyKind::Mru, ..config };
    assert_eq!(counts(mru, &pages(1, &cycle)).1, 31);
}

#[test]
fn prefetch_helps_when_the_next_pages_are_pinned() {
    let run_of = |prefetch, prepin| {
        let config = Config { prefetch, prepin: Prepin::Fixed(prepin), ..Config::default() };
        counts(config, &pages(1, &(0..32).collect::<Vec<_>>()))
    };
    assert_eq!(run_of(1, 1), (32, 32, 32, 32, 0));
    assert_eq!(run_of(8, 1), (32, 32, 32, 32, 0));
    assert_eq!(run_of(1, 8), (32, 4, 32, 32, 0));
    assert_eq!(run_of(8, 8), (32, 4, 4, 32, 0));
}

#[test]
fn a_per_process_table_has_no_engine_misses_but_few_entries() {
    let config = Config { mechanism: Mechanism::PerProcess(2), ..entries(8, Config::default()) };
    assert_eq!(counts(config, &pages(1, &[0, 1, 2, 3, 0, 1, 2, 3])), (8, 4, 0, 4, 0));
    assert_eq!(counts(config, &pages(1, &[0, 1, 2, 3, 4, 0])), (6, 6, 0, 6, 2));
}

#[test]
fn a_long_transfer_is_looked_up_page_by_page_and_pinned_in_one_call() {
    let trace = [Record { len_bytes: 10 * 4096, ..send(1, 7) }];
    let total = run(Config::default(), &trace).expect("good").total;
    assert_eq!(
        (total.user.transfers, total.user.lookups, total.user.miss_transfers, total.user.pin_calls[10]),
        (1, 10, 1, 1)
    );
    let little = Config { memory: Memory::PerProcess(4), ..Config::default() };
    assert_eq!(counts(little, &trace), (10, 10, 10, 10, 6));
}

#[test]
fn regions_are_registered_whole() {
    let config = Config { mechanism: Mechanism::Regions, memory: Memory::PerProcess(12), ..Config::default() };
    let long = |page| Record { len_bytes: 8 * 4096, ..send(1, page) };
    let trace = [long(0), send(1, 3), long(100), send(1, 3)];
    let total = run(config, &trace).expect("good").total.user;
    assert_eq!((total.miss_transfers, total.pins, total.unpins, total.unpin_calls), (3, 17, 8, 1));
}

#[test]
fn unmapped_memory_is_pinned_anew() {
    let mut trace = pages(1, &[1, 1]);
    trace.push(Record { op: Op::Unmap, ..send(1, 1) });
    trace.extend(pages(1, &[1]));
    assert_eq!(counts(Config::default(), &trace), (3, 2, 2, 2, 1));
}

#[test]
fn a_dynamic_limit_gives_one_process_what_the_other_does_not_use() {
    // Process 1 cycles over 6 pages; process 2 uses one. 8 pages in all: 4 each, or as they need.
    let mut trace = Vec::new();
    for i in 0..60 {
        trace.push(send(1, i % 6));
        trace.push(send(2, 0));
    }
    let fixed = Config { memory: Memory::PerProcess(4), ..Config::default() };
    let dynamic = Config { memory: Memory::Dynamic(8), ..Config::default() };
    assert_eq!((counts(fixed, &trace).1, counts(dynamic, &trace).1), (61, 7));
    // And takes it back when the other needs its share.
    trace.extend((0..4).cycle().take(40).map(|i| send(2, i)));
    let outcome = run(dynamic, &trace).expect("good");
    assert_eq!(outcome.processes[1].1.user.check_misses, 4);
    assert_eq!(outcome.processes[0].1.user.unpins, 2);
}

#[test]
fn bad_configurations_are_refused() {
    let bad = |config: Config| config.check().expect_err("bad").to_string();
    assert_eq!(bad(Config { prefetch: 0, ..Config::default() }), "prefetch of 0 entries: give 1 to 512");
    assert_eq!(bad(Config { prepin: Prepin::Fixed(65), ..Config::default() }), "pre-pinning of 65 pages: give 1 to 64");
    assert_eq!(
        bad(Config { memory: Memory::PerProcess(0), ..Config::default() }),
        "no page may be pinned; give at least one"
    );
}

/// The textbook: one process, LRU over pages, a direct-mapped cache as an array.
fn naive(trace: &[u64], limit: usize, sets: u64) -> (u64, u64, u64) {
    let (mut pinned, mut cache, mut counts) = (Vec::new(), vec![None; sets as usize], (0, 0, 0));
    for page in trace {
        match pinned.iter().position(|p| p == page) {
            Some(at) => _ = pinned.remove(at),
            None => {
                counts.0 += 1;
                if pinned.len() == limit {
                    let out: u64 = pinned.remove(0);
                    counts.2 += 1;
                    let set = (out % sets) as usize;
                    if cache[set] == Some(out) {
                        cache[set] = None;
                    }
                }
            }
        }
        pinned.push(*page);
        let set = (page % sets) as usize;
        if cache[set] != Some(*page) {
            counts.1 += 1;
            cache[set] = Some(*page);
        }
    }
    counts
}

fn any_config() -> impl Strategy<Value = Config> {
    let mechanism = proptest::sample::select(vec![
        Mechanism::Hierarchical,
        Mechanism::Shared,
        Mechanism::PerProcess(4),
        Mechanism::Interrupt,
        Mechanism::Regions,
    ]);
    let memory = proptest::sample::select(vec![Memory::Unlimited, Memory::PerProcess(9), Memory::Dynamic(20)]);
    let policy = proptest::sample::select(PolicyKind::ALL.to_vec());
    let prepin = proptest::sample::select(vec![Prepin::Fixed(1), Prepin::Fixed(6), Prepin::Adaptive(8)]);
    let cache = (2..6u32, 0..3u32, any::<bool>());
    let rest = (1..9u32, prepin, policy, memory, any::<bool>());
    (mechanism, cache, rest).prop_filter_map("possible", |(mechanism, (log, ways, offset), rest)| {
        let (prefetch, prepin, policy, memory, classify) = rest;
        let cache = CacheShape::new(1 << log, 1 << ways, offset).ok()?;
        let config = Config { mechanism, cache, prefetch, prepin, policy, memory, classify };
        config.check().is_ok().then_some(config)
    })
}

proptest! {
    #[test]
    fn counts_are_the_textbooks(trace in proptest::collection::vec(0..40u64, 0..300), limit in 1..30usize, log in 0..5u32) {
        let config = entries(1 << log, Config { memory: Memory::PerProcess(limit), ..Config::default() });
        let (_, check, ni, _, unpin) = counts(config, &pages(1, &trace));
        prop_assert_eq!((check, ni, unpin), naive(&trace, limit, 1 << log));
    }

    #[test]
    fn books_balance_in_every_configuration(
        config in any_config(), trace in proptest::collection::vec((0..4u16, 0..60u64, 1..5u32, 0..20u8), 0..200),
    ) {
        let trace: Vec<Record> = trace.iter().map(|(process, page, count, op)| {
            let op = match op { 0 => Op::Unmap, 1 => Op::Export, 2..6 => Op::Fetch, _ => Op::Send };
            Record { op, len_bytes: count * 4096, ..send(*process, *page) }
        }).collect();
        let outcome = run(config, &trace).expect("checked");
        let (user, cache) = (&outcome.total.user, outcome.total.cache);
        let expected: u64 = trace.iter().filter(|r| matches!(r.op, Op::Send | Op::Fetch)).map(|r| u64::from(r.len_bytes / 4096)).sum();
        prop_assert_eq!((user.lookups, cache.lookups), (expected, expected));
        prop_assert!(user.unpins <= user.pins && cache.misses <= cache.lookups && user.evictions <= user.unpins);
        prop_assert!(cache.displaced <= cache.fetched && cache.misses <= cache.fetched);
        if config.classify && config.mechanism != Mechanism::Regions {
            prop_assert_eq!(cache.compulsory + cache.capacity + cache.conflict, cache.misses);
        }
        if let (Memory::Dynamic(most), _) = (config.memory, ()) {
            prop_assert!((user.pins - user.unpins) as usize <= most);
        }
        prop_assert_eq!(run(config, &trace).expect("checked"), outcome, "the same again");
    }

    #[test]
    fn without_limit_the_engine_misses_as_often_in_both_approaches(trace in proptest::collection::vec((0..3u16, 0..60u64), 0..300)) {
        let trace: Vec<Record> = trace.iter().map(|(process, page)| send(*process, *page)).collect();
        let utlb = entries(16, Config::default());
        let interrupt = Config { mechanism: Mechanism::Interrupt, ..utlb };
        prop_assert_eq!(counts(utlb, &trace).2, counts(interrupt, &trace).2);
        prop_assert_eq!(counts(utlb, &trace).4, 0);
    }

    #[test]
    fn for_one_process_slots_and_pages_lead_to_the_same_pins(trace in proptest::collection::vec(0..60u64, 0..300), limit in 1..40usize) {
        let memory = Memory::PerProcess(limit);
        let (hierarchical, shared) = (Config { memory, ..Config::default() }, Config { memory, mechanism: Mechanism::Shared, ..Config::default() });
        let (a, b) = (counts(hierarchical, &pages(1, &trace)), counts(shared, &pages(1, &trace)));
        prop_assert_eq!((a.1, a.3, a.4), (b.1, b.3, b.4));
    }
}

#[test]
fn sweeps_return_results_in_order() {
    let results = sweep::run(50, 3, |job| job * job, |_| ());
    assert_eq!(results, (0..50).map(|job| job * job).collect::<Vec<_>>());
}

#[test]
fn table_6_comes_out_exactly() {
    // Barnes and FFT at 1 K, 4 K, 16 K: rates of Table 4, costs of Table 6.
    let rates = |check_miss, ni_miss, unpin| Rates { check_miss, ni_miss, unpin };
    let rows = [
        (rates(0.04, 0.10, 0.09), "2.6", "4.9"),
        (rates(0.04, 0.05, 0.02), "2.5", "2.5"),
        (rates(0.04, 0.04, 0.00), "2.5", "1.9"),
        (rates(0.25, 0.50, 0.49), "9.0", "21.7"),
        (rates(0.25, 0.49, 0.46), "8.9", "20.9"),
        (rates(0.25, 0.38, 0.25), "8.7", "14.8"),
    ];
    for (rates, utlb, interrupt) in rows {
        let of_utlb = Rates { unpin: 0.0, ..rates };
        // Half a unit of the last place more, as the paper rounds 4.85 and 21.65 up.
        assert_eq!(format!("{:.1}", PAPER.utlb_us(of_utlb) + 1e-9), utlb, "{rates:?}");
        assert_eq!(format!("{:.1}", PAPER.interrupt_us(rates) + 1e-9), interrupt, "{rates:?}");
    }
}
