//! The trace of a run, replayed in the simulator, counts what the running system counted: one code,
//! two drivers.
//!
//! Source: the promise of crate `vmmc-utlb`. The program whose run is recorded is this test itself,
//! started again with `VMMC_TRACE` set.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use vmmc::{PinOptions, Pinned, PolicyKind, Session};
use vmmc_host::pin::PinSpace;
use vmmc_node::{Embedded, KeySource, NodeConfig, UtlbConfig};
use vmmc_utlb::sim::{Config, Memory, ProcessOutcome, stream};
use vmmc_utlb::trace::{Format, Op, read};
use vmmc_utlb::{CacheShape, Rng};

const PAGE: usize = 4096;
const PAGES: usize = 48;
const LIMIT: usize = 20;

/// What both count: six numbers of the user's side, two of the engine's.
type Counts = [u64; 8];

/// A cache in which pages meet, and a prefetch.
fn cache() -> UtlbConfig {
    UtlbConfig { cache: CacheShape::new(16, 2, false).unwrap(), prefetch: 4, tables_max: Some(1) }
}

/// The program that is recorded: sends and fetches of random whole pages, some of which it forgets
/// or unmaps.
#[test]
#[ignore = "a role that the other test starts"]
fn recorded_program() {
    let policy = PolicyKind::from_name(&std::env::var("VMMC_TEST_POLICY").unwrap()).unwrap();
    let name = format!("trace-{}-{}", std::process::id(), policy.name());
    let mut config = NodeConfig::new(&name).key(KeySource::Plain);
    config.utlb = cache();
    let node = Embedded::start(config).unwrap();
    let attach = || Session::builder().timeout(Duration::from_secs(30)).over(node.attach().unwrap()).unwrap();
    let (owner, user) = (attach(), attach());
    assert!(user.set_pinning(PinOptions::default().policy(policy).pages_max(LIMIT).copied_up_to(0)));
    let export = owner.export((8 * PAGE) as u64).name("x").mappable(false).create().unwrap();
    let import = user.import("x").open().unwrap();
    let mut memory = vec![1u8; (PAGES + 1) * PAGE];
    let skip = memory.as_ptr().align_offset(PAGE);
    let mut rng = Rng::new(77);
    let mut below = |n: usize| rng.index(n);
    for step in 0..1500 {
        let count = 1 + below(8).min(below(8));
        let from = skip + below(PAGES - count) * PAGE;
        let range = from..from + count * PAGE;
        match below(20) {
            0 => user.forget(&mut memory[range]).unwrap(),
            1..=5 => import.fetch(0, Pinned(&mut memory[range])).unwrap(),
            // Other transfers are no lookups.
            6 => import.send(0, &memory[range]).unwrap(),
            _ => import.send(0, Pinned(&memory[range])).unwrap(),
        }
        if step % 500 == 250 {
            // Memory that goes without a word.
            let mut other = vec![2u8; 64 * PAGE];
            let at = other.as_ptr().align_offset(PAGE);
            import.send(0, Pinned(&other[at..at + 3 * PAGE])).unwrap();
            other[at] = 3;
            drop(other);
            import.send(0, Pinned(&memory[skip..skip + PAGE])).unwrap();
        }
    }
    let s = user.stats();
    assert_eq!(s.pin_copied, 0, "all of this memory can be pinned");
    let info = user.node_info(false).unwrap();
    let engine = ["translation_lookups", "translation_misses"];
    let engine = engine.map(|name| info.counters.iter().find(|(n, _)| n == name).expect("a counter").1);
    println!(
        "COUNTS {} {} {} {} {} {} {} {}",
        s.pin_transfers,
        s.pin_lookups,
        s.pin_check_misses,
        s.pin_pins,
        s.pin_unpins,
        s.pin_evictions,
        engine[0],
        engine[1]
    );
    drop(export);
}

fn run(policy: PolicyKind) -> (Counts, PathBuf) {
    let file = std::env::temp_dir().join(format!("vmmc-test-{}-{}.vmmc", std::process::id(), policy.name()));
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recorded_program", "--ignored", "--nocapture", "--test-threads=1"])
        .env("VMMC_TRACE", &file)
        .env("VMMC_TRACE_ONLY", "pinned")
        .env("VMMC_TEST_POLICY", policy.name())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let counts = text.split("COUNTS ").nth(1).expect("it tells its counts").lines().next().unwrap();
    let counts: Vec<u64> = counts.split_whitespace().map(|n| n.parse().unwrap()).collect();
    (counts.try_into().unwrap(), file)
}

#[test]
fn the_simulator_counts_what_the_recorded_run_counted() {
    if let Err(why) = PinSpace::of_process() {
        return println!("SKIP demand pinning: {why}");
    }
    for policy in [PolicyKind::Lru, PolicyKind::Clock, PolicyKind::Mfu, PolicyKind::S3Fifo] {
        let (running, file) = run(policy);
        let open = || read("trace", std::fs::File::open(&file).unwrap(), Format::Own).unwrap();
        let UtlbConfig { cache, prefetch, .. } = cache();
        let config = Config { policy, memory: Memory::PerProcess(LIMIT), cache, prefetch, ..Config::default() };
        let ProcessOutcome { user, cache } = stream(config, open()).expect("a complete trace").total;
        let theirs = [user.transfers, user.lookups, user.check_misses, user.pins, user.unpins, user.evictions];
        let engine = [cache.lookups, cache.misses];
        let what = "transfers, lookups, check misses, pins, unpins, evictions; the engine's lookups, misses";
        assert_eq!(running[..8], *[&theirs[..], &engine].concat(), "{policy:?}: {what}");
        assert!(running[7] > 500 && running[7] < running[6], "{policy:?}: a small cache that is of use: {running:?}");
        assert!(running[5] > 100 && running[4] > running[5], "{policy:?}: {running:?}");
        let unmaps = open().filter(|record| record.as_ref().is_ok_and(|r| r.op == Op::Unmap)).count();
        assert!(unmaps > 10, "forgotten and unmapped memory is in the trace");
        std::fs::remove_file(file).unwrap();
    }
}
