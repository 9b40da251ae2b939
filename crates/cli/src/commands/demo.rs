//! `vmmc demo`: two nodes, a file that moves, a table.
//!
//! Invariant: every byte that moved was checked by the side that received it; nodes, workers and
//! key end with the command.

use crate::args::{Demo, measure_time};
use crate::commands::bench::{kernel_peer, noise, show, verdict};
use crate::failure::Failure;
use crate::limits::DEMO_SERIES_TIME;
use crate::machine::{Machine, Quiet};
use crate::measure::nodes::{Route, random_key, setting};
use crate::measure::pair::{Pair, TemporaryNode};
use crate::measure::plan::{Plan, Source};
use crate::measure::task::{Measure, MoveBy, Setting, Vmmc, Work};
use crate::report::{Key, Report, demo as pages, promise, units};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::SystemTime;
use vmmc_host::text::utc;

const LATENCY_SIZES: [u64; 3] = [8, 1 << 10, 64 << 10];
const BANDWIDTH_SIZES: [u64; 3] = [64 << 10, 1 << 20, 64 << 20];

/// Runs the command.
pub(crate) fn run(demo: &Demo) -> Result<(), Failure> {
    let quiet = Quiet::start();
    let say = |text: &str| if demo.output.json { Ok(()) } else { crate::output(text) };
    let machine = Machine::here();
    say(&format!("VMMC demo on {machine}\n\n"))?;
    let (mut within, mut between, _nodes) = set_up(&say)?;
    let mut about =
        vec![format!("Made by `vmmc demo`, release {}, at {}.", env!("CARGO_PKG_VERSION"), utc(SystemTime::now()))];
    about.extend(move_file(demo, &mut within.0, &mut between.0, &say)?);
    // What encryption costs, on two more nodes that do without.
    let (plain, _plain_nodes) = between_nodes(["c", "d"], None)?;
    say("\nMeasuring, in turns ...\n\n")?;
    let rows = measure(within.0, between.0, plain.0, demo.runs)?;
    let (missing, promises, warnings) = (vec![], vec![], quiet.warnings());
    let mut report = Report { bench: "demo".into(), machine, about, rows, missing, promises, warnings };
    report.promises = promise::verdicts(&report);
    report.warnings.extend(noise(&report));
    show(&report, &demo.output, pages::table)?;
    verdict(&report, false)
}

/// A pair of processes; a name makes clear at the call which one.
struct Processes(Pair);

/// Two nodes; a pair of processes on one, and a pair with one process on each.
fn set_up(say: &dyn Fn(&str) -> Result<(), Failure>) -> Result<(Processes, Processes, Vec<TemporaryNode>), Failure> {
    let key = random_key().map_err(Failure::new)?;
    let (between, nodes) = between_nodes(["a", "b"], Some(key))?;
    for (letter, node) in ["A", "B"].iter().zip(&nodes) {
        say(&format!("node {letter}  process {}, UDP {}, encrypted\n", node.pid(), node.addresses.join(", ")))?;
    }
    let within = Pair::start(setting(&nodes[0], &nodes[0]), setting(&nodes[0], &nodes[0])).map_err(Failure::new)?;
    Ok((Processes(within), between, nodes))
}

/// Two nodes that know each other, and a pair with one process on each.
fn between_nodes(names: [&str; 2], key: Option<[u8; 32]>) -> Result<(Processes, Vec<TemporaryNode>), Failure> {
    let Route { pair, nodes } = Route::between_two(names, key).map_err(Failure::new)?;
    Ok((Processes(pair), nodes))
}

fn move_file(
    demo: &Demo,
    within: &mut Pair,
    between: &mut Pair,
    say: &dyn Fn(&str) -> Result<(), Failure>,
) -> Result<Vec<String>, Failure> {
    let file = match &demo.file {
        Some(file) => file.clone(),
        None => std::env::current_exe()?,
    };
    let file = file.canonicalize().map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
    let file = if file.exists() { file } else { "/proc/self/exe".into() };
    let path = file.to_str().ok_or_else(|| Failure::new("the path of the file is not UTF-8; rename it"))?;
    let bytes = std::fs::metadata(path)?.len();
    read_once(path, bytes)?;
    let size = units::size(bytes);
    say(&format!("\nMoving {path}, {size}, from one process to another, with a checksum on either side\n"))?;
    let mut about = vec![format!(
        "The file {path}, {size}, was moved from one process to another, and its checksum taken on either side."
    )];
    let moves = [
        ("on node A", "export, import, send", MoveBy::Send, true),
        ("on node A", "export, import, fetch", MoveBy::Fetch, true),
        ("from A to B", "export, import, send", MoveBy::Send, false),
        ("from A to B", "export, import, fetch", MoveBy::Fetch, false),
    ];
    for (place, how, by, same_node) in moves {
        let pair = if same_node { &mut *within } else { &mut *between };
        let bar = bar(bytes, &format!("{place}, {how}"));
        let result = pair.move_file(path, by, |done| bar.set_position(done));
        bar.finish_and_clear();
        let (sent, received) = result.map_err(|e| Failure::new(format!("{place}, {how}: {e}")))?;
        if (sent.bytes, sent.crc32) != (received.bytes, received.crc32) {
            return Err(Failure::Check(format!(
                "{place}, {how}: {} bytes with checksum {:08x} were sent, {} bytes with {:08x} came",
                sent.bytes, sent.crc32, received.bytes, received.crc32
            )));
        }
        let rate = units::rate(sent.bytes as f64 / sent.taken.as_secs_f64().max(1e-9));
        let taken = units::time(sent.taken.as_nanos() as f64);
        say(&format!("  {place:<11}  {how:<21}  {taken:>8}  {rate:>9}  checksum {:08x} on both sides\n", sent.crc32))?;
        about.push(format!("{place}, {how}: {taken}, {rate}, checksum (CRC-32) {:08x} on both sides.", sent.crc32));
    }
    Ok(about)
}

/// Brings a file that fits well into memory there, so that the first move does not wait for the
/// disk while the others do not.
fn read_once(path: &str, bytes: u64) -> Result<(), Failure> {
    if bytes > vmmc_host::memory::available_bytes() / 4 {
        return Ok(());
    }
    let bar = bar(bytes, "reading");
    std::io::copy(&mut bar.wrap_read(std::fs::File::open(path)?), &mut std::io::sink())?;
    bar.finish_and_clear();
    Ok(())
}

/// A bar that counts bytes, on a terminal only.
fn bar(bytes: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "  {msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}",
    )
    .expect("the template is a constant of this program");
    ProgressBar::new(bytes).with_style(style).with_message(what.to_string())
}

fn measure(within: Pair, between: Pair, plain: Pair, runs: u32) -> Result<Vec<crate::report::Row>, Failure> {
    let mut plan = Plan::default();
    let bare = plan.pair(Pair::start(Setting::Bare, Setting::Bare).map_err(Failure::new)?);
    let (within, between, plain) = (plan.pair(within), plan.pair(between), plan.pair(plain));
    let mut add = |series: &str, path: &str, size_bytes: u64, pair: usize, work: Work| {
        let key = Key { series: series.into(), path: path.into(), op: None, size_bytes, asleep_us: None };
        plan.add(key, Source::Pair(pair, work));
    };
    for measure in [Measure::Latency, Measure::Bandwidth] {
        let (sizes, what) = match measure {
            Measure::Latency => (LATENCY_SIZES, Vmmc::Latency),
            Measure::Bandwidth => (BANDWIDTH_SIZES, Vmmc::Bandwidth),
        };
        for size in sizes {
            if size == 8 {
                add("cache-line", "limit", size, bare, Work::CacheLine);
            } else {
                add("memcpy", "limit", size, bare, Work::Memcpy { measure });
            }
            add("vmmc", "same-node", size, within, Work::Vmmc(what.clone()));
            add("vmmc", "two-nodes", size, between, Work::Vmmc(what.clone()));
            add("vmmc-plain", "two-nodes", size, plain, Work::Vmmc(what.clone()));
            for peer in [crate::args::Peer::Pipe, crate::args::Peer::Unix, crate::args::Peer::Tcp] {
                if let Some((series, transport)) = kernel_peer(peer) {
                    add(series, "kernel", size, bare, Work::Kernel { transport, measure });
                }
            }
        }
    }
    Ok(plan.carry_out(runs, measure_time(DEMO_SERIES_TIME, runs)))
}
