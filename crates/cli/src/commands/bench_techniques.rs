//! `vmmc bench techniques`: Figures 2 and 3 of the semantics paper on this machine, its conclusions
//! held against them, and the kernel's own zero copy.
//!
//! Invariant: all that is compared comes from one run, in turns. Source: [SEMANTICS §4]; [GMS
//! §2.2].

mod conclusions;
mod report;

use crate::args::{Bench, Path};
use crate::failure::Failure;
use crate::machine::{Machine, Quiet, core_pair};
use crate::measure::nodes::{order, random_key, two_nodes};
use crate::measure::pair::TemporaryNode;
use crate::measure::plan::progress;
use crate::measure::techniques::kernel::{ADDRESSES, Namespaces, Tcp};
use crate::measure::techniques::{Channel, Counted, Job, Moves, Side};
use conclusions::Conclusion;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc_techniques::Technique;

/// Sizes unless others are asked for.
const SIZES: [u64; 9] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Largest packets of the virtual Ethernet for the kernel's rows: Ethernet's, a page of payload,
/// and what the device takes.
const MTUS: [u32; 3] = [1_500, 4_148, 65_535];
/// Bytes of a send there.
const KERNEL_SEND_BYTES: u64 = 1 << 20;
/// The promise: the technique that is chosen for each message, held against the better of the two
/// that it chooses from.
const AUTO_LEAST: f64 = 0.7;

/// What is measured of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Figure {
    /// Figure 2: the sender, while the receiver passes protocol words only.
    Sender,
    /// Figure 3: the receiver, while the sender does.
    Receiver,
    /// Both, and the receiver reads what came.
    Both,
}

const FIGURES: [Figure; 3] = [Figure::Sender, Figure::Receiver, Figure::Both];

/// A figure of a technique for a size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    figure: Figure,
    path: &'static str,
    technique: &'static str,
    size_bytes: u64,
    /// Bytes a second: median, least, most.
    rate: f64,
    least: f64,
    most: f64,
}

/// A way of the kernel's.
#[derive(Clone, Debug, Serialize)]
struct KernelRow {
    mtu: u32,
    by_reference: bool,
    mapped: bool,
    /// Bytes a second.
    rate: f64,
    /// Of the sends by reference, what the kernel copied after all.
    copied_share: Option<f64>,
    /// Of the received bytes, what was mapped.
    mapped_share: Option<f64>,
}

/// What was found.
struct Found {
    rows: Vec<Row>,
    conclusions: Vec<Conclusion>,
    kernel: Result<Vec<KernelRow>, String>,
    warnings: Vec<String>,
    runs: u32,
}

/// Runs the bench.
pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    let quiet = Quiet::start();
    let paths = match &bench.path[..] {
        [] => vec![Path::SameNode],
        paths if paths.contains(&Path::Embedded) => {
            let said = "techniques are measured with --path same-node and two-nodes";
            return Err(Failure::Usage(said.into()));
        }
        paths => paths.to_vec(),
    };
    let sizes = if bench.sizes.is_empty() { SIZES.to_vec() } else { bench.sizes.clone() };
    let steps = paths.len() * sizes.len() * FIGURES.len() * Technique::ALL.len() * bench.runs() as usize;
    let bar = progress(steps as u64);
    let mut rows = Vec::new();
    for path in paths {
        let world = World::start(path, bench)?;
        for &size in &sizes {
            for figure in FIGURES {
                rows.extend(world.figure(figure, size, bench, || bar.inc(1))?);
            }
        }
    }
    bar.finish_and_clear();
    let kernel = kernel(bench);
    let conclusions = conclusions::of(&rows);
    let found = Found { rows, conclusions, kernel, warnings: quiet.warnings(), runs: bench.runs() };
    show(bench, &found)?;
    let missed = conclusions::auto(&found.rows, AUTO_LEAST).into_iter().filter(|verdict| !verdict.met).count();
    if bench.check && missed > 0 {
        return Err(Failure::Check(format!("the choice by size is below {AUTO_LEAST} x the better at {missed} sizes")));
    }
    Ok(())
}

fn show(bench: &Bench, found: &Found) -> Result<(), Failure> {
    let save = |file: &std::path::Path, text: &str| {
        std::fs::write(file, text).map_err(|e| Failure::new(format!("{} cannot be written: {e}", file.display())))
    };
    let machine = Machine::here();
    if let Some(file) = &bench.output.html {
        save(file, &report::html(&machine.to_string(), found))?;
    }
    if let Some(folder) = &bench.svg {
        for (name, chart) in report::charts(found) {
            save(&folder.join(format!("techniques-{name}.svg")), &chart.svg())?;
        }
    }
    if bench.output.json {
        let kernel = match &found.kernel {
            Ok(rows) => serde_json::json!(rows),
            Err(why) => serde_json::json!({"missing": why}),
        };
        return crate::output_json(&serde_json::json!({
            "bench": "techniques", "machine": machine.to_string(), "rows": found.rows, "paper": report::PAPER,
            "conclusions": found.conclusions, "promises": conclusions::auto(&found.rows, AUTO_LEAST),
            "kernel": kernel, "warnings": found.warnings,
        }));
    }
    crate::output(&report::text(&machine.to_string(), found))
}

/// The nodes of a path.
struct World {
    path: Path,
    receiver: TemporaryNode,
    /// Of the sender, if it is another one.
    sender: Option<TemporaryNode>,
}

impl World {
    fn start(path: Path, bench: &Bench) -> Result<World, Failure> {
        if path == Path::SameNode {
            let receiver = TemporaryNode::start(order("techniques", None, &[]), None).map_err(Failure::new)?;
            return Ok(World { path, receiver, sender: None });
        }
        let key = (!bench.plain).then(random_key).transpose().map_err(Failure::new)?;
        let [sender, receiver] = two_nodes(["techniques-a", "techniques-b"], key).map_err(Failure::new)?;
        Ok(World { path, receiver, sender: Some(sender) })
    }

    /// All techniques for a size, in turns.
    fn figure(&self, figure: Figure, size: u64, bench: &Bench, done: impl Fn()) -> Result<Vec<Row>, Failure> {
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); Technique::ALL.len()];
        for _ in 0..bench.runs() {
            for (technique, rates) in Technique::ALL.into_iter().zip(&mut rates) {
                rates.push(self.measure(figure, technique, size, bench)?.rate());
                done();
            }
        }
        let row = |(technique, mut rates): (Technique, Vec<f64>)| {
            rates.sort_by(f64::total_cmp);
            Row {
                figure,
                path: self.path.name(),
                technique: technique.name(),
                size_bytes: size,
                rate: rates[rates.len() / 2],
                least: rates[0],
                most: rates[rates.len() - 1],
            }
        };
        Ok(Technique::ALL.into_iter().zip(rates).map(row).collect())
    }

    fn measure(&self, figure: Figure, technique: Technique, size: u64, bench: &Bench) -> Result<Counted, Failure> {
        static CHANNELS: AtomicU64 = AtomicU64::new(0);
        let name = format!("bench-techniques-{}", CHANNELS.fetch_add(1, Ordering::Relaxed));
        let (first, second) = core_pair();
        let node = |is_sender: bool| match &self.sender {
            Some(sender) if is_sender => sender.name.clone(),
            _ => self.receiver.name.clone(),
        };
        // The sender that does nothing with bytes needs a receiver that does, and the other way
        // round.
        let (sender_moves, receiver_moves) = match figure {
            Figure::Sender => (Moves::Bytes, Moves::Words),
            Figure::Receiver => (Moves::Words, Moves::Bytes),
            Figure::Both => (Moves::Bytes, Moves::BytesRead),
        };
        let time_ms = bench.time().as_millis() as u64;
        let side = |is_sender: bool| {
            let is_measured = is_sender == (figure == Figure::Sender);
            let channel = Channel {
                node: node(is_sender),
                receiver: node(false),
                name: name.clone(),
                technique: technique.name().into(),
                is_sender,
                size,
                moves: if is_sender { sender_moves } else { receiver_moves },
                time_ms: is_measured.then_some(time_ms),
                core: if is_sender { first } else { second },
            };
            Side::start(&Job::Channel(channel), is_measured, None)
        };
        let (receiver, sender) = (side(false)?, side(true)?);
        let (measured, other) = if figure == Figure::Sender { (sender, receiver) } else { (receiver, sender) };
        let counted = measured.counted().map_err(|e| Failure::new(format!("{technique}, {size} bytes: {e}")))?;
        drop(other);
        Ok(counted)
    }
}

/// The kernel's own zero copy, or why it was not measured.
fn kernel(bench: &Bench) -> Result<Vec<KernelRow>, String> {
    if bench.peers.as_ref().is_some_and(|peers| peers.iter().all(|peer| peer.0.is_none())) {
        return Err("not asked for (--peers '')".into());
    }
    let namespaces = Namespaces::make()?;
    let mut rows = Vec::new();
    for mtu in MTUS {
        namespaces.set_mtu(mtu)?;
        for (by_reference, mapped) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut all = Vec::new();
            for _ in 0..bench.runs() {
                all.push(over_tcp(&namespaces, by_reference, mapped, bench).map_err(|e| e.to_string())?);
            }
            all.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            rows.push(KernelRow { mtu, ..all.swap_remove(all.len() / 2) });
        }
    }
    Ok(rows)
}

fn over_tcp(namespaces: &Namespaces, by_reference: bool, mapped: bool, bench: &Bench) -> Result<KernelRow, Failure> {
    static PORTS: AtomicU64 = AtomicU64::new(0);
    let address = format!("{}:{}", ADDRESSES[1], 20_000 + PORTS.fetch_add(1, Ordering::Relaxed) % 20_000);
    let (first, second) = core_pair();
    let side = |is_sender: bool| {
        let tcp = Tcp {
            address: address.clone(),
            is_sender,
            zero_copy: if is_sender { by_reference } else { mapped },
            size: KERNEL_SEND_BYTES,
            time_ms: is_sender.then_some(bench.time().as_millis() as u64),
            core: if is_sender { first } else { second },
        };
        Side::start(&Job::Tcp(tcp), true, Some(&namespaces.names[usize::from(!is_sender)]))
    };
    let (receiver, sender) = (side(false)?, side(true)?);
    let (sent, received) = (sender.counted()?, receiver.counted()?);
    let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    Ok(KernelRow {
        mtu: 0,
        by_reference,
        mapped,
        rate: received.rate(),
        copied_share: by_reference.then(|| share(sent.copied, sent.sends)),
        mapped_share: mapped.then(|| share(received.mapped, received.bytes)),
    })
}
