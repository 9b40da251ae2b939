//! Golden counts on small traces in the tree. A change here is a change of meaning and must be
//! explained.
//!
//! `small.csv` was made by hand; `water-node0.vmmc.zst` is `generate Water`, node 0, seed 1.

use vmmc_utlb::sim::{Config, Mechanism, Memory, stream};
use vmmc_utlb::trace::{Format, Record, read};
use vmmc_utlb::{CacheShape, PolicyKind, Prepin};

const SMALL: &[u8] = include_bytes!("traces/small.csv");
const WATER: &[u8] = include_bytes!("traces/water-node0.vmmc.zst");

/// [lookups, check misses, pin calls, pins, unpins, engine misses, compulsory, capacity, conflict,
/// entries fetched].
fn counts(config: Config, bytes: &[u8], format: Format) -> [u64; 10] {
    let trace = read("golden", bytes, format).expect("a trace of the tree");
    let total = stream(Config { classify: true, ..config }, trace).expect("a trace of the tree").total;
    let (user, cache) = (total.user, total.cache);
    let pins = [cache.lookups, user.check_misses, user.miss_transfers, user.pins, user.unpins];
    let misses = [cache.misses, cache.compulsory, cache.capacity, cache.conflict, cache.fetched];
    [pins, misses].concat().try_into().expect("ten")
}

fn configs() -> Vec<(&'static str, Config)> {
    let base = Config { cache: CacheShape::new(64, 1, true).expect("powers of two"), ..Config::default() };
    let cache = |ways, offset| CacheShape::new(64, ways, offset).expect("powers of two");
    let memory = Memory::PerProcess(16);
    let mut all = vec![
        ("base", base),
        ("2-way", Config { cache: cache(2, true), ..base }),
        ("4-way", Config { cache: cache(4, true), ..base }),
        ("no offset", Config { cache: cache(1, false), ..base }),
        ("limit", Config { memory, ..base }),
        ("dynamic", Config { memory: Memory::Dynamic(80), ..base }),
        ("prepin", Config { memory, prepin: Prepin::Fixed(4), prefetch: 4, ..base }),
        ("adaptive", Config { memory, prepin: Prepin::Adaptive(16), ..base }),
        ("shared", Config { memory, mechanism: Mechanism::Shared, ..base }),
        ("per-process", Config { mechanism: Mechanism::PerProcess(5), ..base }),
        ("interrupt", Config { memory, mechanism: Mechanism::Interrupt, ..base }),
        ("regions", Config { memory, mechanism: Mechanism::Regions, ..base }),
    ];
    all.extend(PolicyKind::ALL.map(|policy| (policy.name(), Config { memory, policy, ..base })));
    all
}

fn check(bytes: &[u8], format: Format, golden: &[(&str, [u64; 10])]) {
    let found: Vec<(&str, [u64; 10])> =
        configs().into_iter().map(|(name, config)| (name, counts(config, bytes, format))).collect();
    let shown: Vec<String> = found.iter().map(|(name, counts)| format!("({name:?}, {counts:?}),")).collect();
    assert_eq!(found, golden, "found:\n{}", shown.join("\n"));
}

#[test]
fn counts_of_the_small_trace_are_golden() {
    check(SMALL, Format::Csv, SMALL_GOLDEN);
}

#[test]
fn counts_of_a_node_of_water_are_golden() {
    check(WATER, Format::Own, WATER_GOLDEN);
}

#[test]
fn the_trace_in_the_tree_is_what_the_generator_makes() {
    let trace: Result<Vec<Record>, _> = read("water", WATER, Format::Own).expect("a trace of the tree").collect();
    assert_eq!(trace.expect("undamaged"), vmmc_utlb::generate::node(vmmc_utlb::generate::App::Water, 0, 1));
}

#[rustfmt::skip]
const SMALL_GOLDEN: &[(&str, [u64; 10])] = &[
    ("base", [528, 200, 110, 200, 11, 298, 193, 70, 35, 298]),
    ("2-way", [528, 200, 110, 200, 11, 294, 193, 68, 33, 294]),
    ("4-way", [528, 200, 110, 200, 11, 289, 193, 83, 13, 289]),
    ("no offset", [528, 200, 110, 200, 11, 406, 193, 77, 136, 406]),
    ("limit", [528, 339, 169, 339, 291, 363, 193, 146, 24, 363]),
    ("dynamic", [528, 268, 142, 268, 188, 321, 193, 94, 34, 321]),
    ("prepin", [528, 352, 172, 629, 581, 209, 101, 96, 12, 757]),
    ("adaptive", [528, 343, 172, 359, 311, 366, 193, 153, 20, 366]),
    ("shared", [528, 339, 169, 339, 291, 347, 48, 291, 8, 347]),
    ("per-process", [528, 372, 184, 372, 336, 0, 0, 0, 0, 0]),
    ("interrupt", [528, 350, 350, 350, 312, 350, 193, 121, 36, 350]),
    ("regions", [528, 422, 179, 469, 425, 0, 0, 0, 0, 0]),
    ("lru", [528, 339, 169, 339, 291, 363, 193, 146, 24, 363]),
    ("mru", [528, 400, 195, 400, 352, 426, 193, 207, 26, 426]),
    ("lfu", [528, 295, 152, 295, 247, 337, 193, 102, 42, 337]),
    ("mfu", [528, 371, 192, 371, 323, 391, 193, 178, 20, 391]),
    ("random", [528, 343, 178, 343, 295, 372, 193, 150, 29, 372]),
    ("fifo", [528, 354, 178, 354, 306, 372, 193, 161, 18, 372]),
    ("clock", [528, 334, 170, 334, 286, 361, 193, 141, 27, 361]),
    ("sieve", [528, 299, 154, 299, 251, 340, 193, 106, 41, 340]),
    ("s3fifo", [528, 307, 160, 307, 259, 347, 193, 114, 40, 347]),
];

#[rustfmt::skip]
const WATER_GOLDEN: &[(&str, [u64; 10])] = &[
    ("base", [8478, 848, 848, 848, 0, 7247, 848, 5242, 1157, 7247]),
    ("2-way", [8478, 848, 848, 848, 0, 6674, 848, 5206, 620, 6674]),
    ("4-way", [8478, 848, 848, 848, 0, 6288, 848, 5099, 341, 6288]),
    ("no offset", [8478, 848, 848, 848, 0, 8233, 848, 5362, 2023, 8233]),
    ("limit", [8478, 6055, 6055, 6055, 5983, 7266, 848, 5237, 1181, 7266]),
    ("dynamic", [8478, 5895, 5895, 5895, 5815, 7256, 848, 5246, 1162, 7256]),
    ("prepin", [8478, 6489, 6489, 24234, 24160, 7346, 757, 5828, 761, 28030]),
    ("adaptive", [8478, 6005, 6005, 7769, 7696, 7291, 848, 5543, 900, 7291]),
    ("shared", [8478, 6055, 6055, 6055, 5983, 6327, 72, 6004, 251, 6327]),
    ("per-process", [8478, 6461, 6461, 6461, 6405, 0, 0, 0, 0, 0]),
    ("interrupt", [8478, 7247, 7247, 7247, 7215, 7247, 848, 5242, 1157, 7247]),
    ("regions", [8478, 6055, 6055, 6055, 5983, 0, 0, 0, 0, 0]),
    ("lru", [8478, 6055, 6055, 6055, 5983, 7266, 848, 5237, 1181, 7266]),
    ("mru", [8478, 6279, 6279, 6279, 6207, 7628, 848, 5555, 1225, 7628]),
    ("lfu", [8478, 6404, 6404, 6404, 6332, 7663, 848, 5684, 1131, 7663]),
    ("mfu", [8478, 6134, 6134, 6134, 6062, 7352, 848, 5329, 1175, 7352]),
    ("random", [8478, 6131, 6131, 6131, 6059, 7371, 848, 5361, 1162, 7371]),
    ("fifo", [8478, 6107, 6107, 6107, 6035, 7288, 848, 5301, 1139, 7288]),
    ("clock", [8478, 6025, 6025, 6025, 5953, 7266, 848, 5222, 1196, 7266]),
    ("sieve", [8478, 6209, 6209, 6209, 6137, 7439, 848, 5473, 1118, 7439]),
    ("s3fifo", [8478, 6166, 6166, 6166, 6094, 7469, 848, 5401, 1220, 7469]),
];
