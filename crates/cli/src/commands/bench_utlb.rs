//! `vmmc bench utlb`: the papers' Tables 1 and 2, measured on the running system.
//!
//! Invariant: the figures of the papers are those of `vmmc-utlb`'s profiles; the printed profile is
//! what `here` is made of.

use crate::args::Output;
use crate::failure::Failure;
use crate::machine::{Machine, Quiet};
use crate::measure::plan::progress;
use crate::measure::utlb::{COUNTS, Costs, Row, measure};
use crate::report::table::align;
use vmmc_utlb::cost::PAPER;

/// Most that a later use of a page may cost more than library memory, ns: of a plain slice, and of
/// lent memory.
const LATER_NS_MAX: f64 = 100.0;

/// Most that a page that somebody receives may cost while it is recorded, of what it costs else.
const RECORDING_MAX: f64 = 1.05;

/// Runs the bench.
pub(crate) fn run(output: &Output, check: bool) -> Result<(), Failure> {
    if output.html.is_some() {
        return Err(Failure::Usage("bench utlb makes no page; it prints tables, or --json".into()));
    }
    let quiet = Quiet::start();
    let bar = progress(COUNTS.len() as u64);
    let costs = measure(|| bar.inc(1))?;
    bar.finish_and_clear();
    let warnings = quiet.warnings();
    if output.json {
        let value = serde_json::json!({"machine": Machine::here(), "rows": costs.rows, "daemon": costs.daemon, "call_ns": costs.call_ns,
            "wake_ns": costs.wake_ns, "tracing": costs.tracing, "warnings": warnings});
        crate::output_json(&value)?;
    } else {
        crate::output(&text(&costs, &warnings))?;
    }
    let far = costs.rows.iter().filter(|row| more_per_page(row) > LATER_NS_MAX).count();
    if check && far > 0 {
        return Err(Failure::Check(format!(
            "{far} of {} later uses cost more than {LATER_NS_MAX} ns a page",
            COUNTS.len()
        )));
    }
    let dear = costs.tracing.iter().filter(|t| t.arrives && t.traced_ns > t.plain_ns * RECORDING_MAX).count();
    if check && dear > 0 {
        return Err(Failure::Check(format!(
            "{dear} kinds of transfer cost more than 5 % more while they are recorded"
        )));
    }
    Ok(())
}

fn more_per_page(row: &Row) -> f64 {
    (row.lent_ns.max(row.later_ns) - row.library_ns) / row.pages as f64
}

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1000.0)
}

fn table(title: &str, header: &[&str], rows: &[Row], cells: impl Fn(&Row) -> Vec<String>) -> String {
    let lines: Vec<Vec<String>> = rows.iter().map(|row| [vec![row.pages.to_string()], cells(row)].concat()).collect();
    format!("{title}\n\n{}\n", align(header, &lines, 0))
}

fn uses(title: &str, rows: &[Row]) -> String {
    let header = [
        "pages",
        "first use",
        "later use",
        "always pinned",
        "lent",
        "by index",
        "trusting",
        "library memory",
        "later - library, ns",
        "pinned - library",
        "lent - library",
        "index - library",
        "trusting - library",
        "copied",
        "forget",
    ];
    table(title, &header, rows, |r| {
        let more = |ns: f64| format!("{:.0}", ns - r.library_ns);
        let uses =
            [r.first_ns, r.later_ns, r.asking_ns, r.lent_ns, r.index_ns, r.trusting_ns, r.library_ns].map(us).to_vec();
        let differences = [r.later_ns, r.asking_ns, r.lent_ns, r.index_ns, r.trusting_ns].map(more).to_vec();
        [uses, differences, vec![us(r.copied_ns), us(r.forget_ns)]].concat()
    })
}

fn text(costs: &Costs, warnings: &[String]) -> String {
    let mut text =
        format!("vmmc bench utlb on {}\nmedians, us; node in this process, same-node engine path\n\n", Machine::here());
    text += &uses("Use of memory: a send of so many pages and its completion", &costs.rows);
    text += &uses("The same, attached to a daemon", &costs.daemon);
    text += &table(
        "UTLB Table 1, host: the look at the user's table, pinning and unpinning (paper / here)",
        &["pages", "lookup", "pin", "unpin"],
        &costs.rows,
        |r| {
            let pages = r.pages as f64;
            let pin = format!("{:.0} / {}", PAPER.pin.at_us(pages), us(r.first_ns - r.asking_ns));
            let unpin = format!("{:.0} / {}", PAPER.unpin.at_us(pages), us(r.forget_ns));
            vec![format!("{:.1} / {}", PAPER.user_check_us, us(r.lookup_ns)), pin, unpin]
        },
    );
    text += &table(
        "UTLB Table 2, engine: the look at its cache for so many pages, and a miss that reads so many entries (paper / here)",
        &["pages", "hit", "miss"],
        &costs.rows,
        |r| {
            let hit = format!("{:.1} / {}", PAPER.ni_check_us, us(r.cache_ns));
            vec![hit, format!("{:.1} / {}", PAPER.ni_miss.at_us(r.pages as f64), us(r.fetch_ns))]
        },
    );
    text += &table(
        "Ways to reach so many pages: once for each memory, and each time",
        &[
            "pages",
            "in place (used), once",
            "library memory, once",
            "io_uring buffers, once",
            "mlock, once",
            "copy, each time",
            "process_vm_readv, each time",
        ],
        &costs.rows,
        |r| {
            let uring = r.uring_ns.map_or("forbidden".into(), us);
            let copy = us((r.copied_ns - r.library_ns).max(0.0));
            vec![us(r.take_ns), us(r.buffer_ns), uring, us(r.mlock_ns), copy, us(r.read_ns)]
        },
    );
    text += &tracing(costs);
    text += &profile(costs);
    warnings.iter().for_each(|warning| text += &format!("warning: {warning}\n"));
    text
}

/// What recording costs.
fn tracing(costs: &Costs) -> String {
    let line = |t: &crate::measure::utlb::tracing::Traced| {
        let more = format!("{:.1} %", (t.traced_ns / t.plain_ns - 1.0) * 100.0);
        vec![t.what.to_string(), us(t.plain_ns), us(t.traced_ns), more]
    };
    let lines: Vec<Vec<String>> = costs.tracing.iter().map(line).collect();
    format!("Recording of a trace (VMMC_TRACE)\n\n{}\n", align(&["what", "without", "with", "more"], &lines, 1))
}

/// The profile of this machine, as `vmmc utlb --profile` uses one.
fn profile(costs: &Costs) -> String {
    let points = |ns: fn(&Row) -> f64| {
        let points: Vec<String> = costs.rows.iter().map(|r| format!("({}, {:.2})", r.pages, ns(r) / 1000.0)).collect();
        format!("[{}]", points.join(", "))
    };
    let one = &costs.rows[0];
    let kernel = |ns: f64| (ns - costs.call_ns).max(0.0) / 1000.0;
    format!(
        "profile: user_check_us {:.3}, ni_check_us {:.3}, interrupt_us {:.1} (waking a sleeping thread), kernel_pin_us {:.2}, kernel_unpin_us {:.2} (mlock and munlock less a system call of {:.2})\n         pin {}\n         unpin {}\n         ni_miss {}\n",
        one.lookup_ns / 1000.0,
        one.cache_ns / 1000.0,
        costs.wake_ns / 1000.0,
        kernel(one.mlock_ns),
        kernel(one.munlock_ns),
        costs.call_ns / 1000.0,
        points(|r| r.first_ns - r.asking_ns),
        points(|r| r.forget_ns),
        points(|r| r.fetch_ns),
    )
}
