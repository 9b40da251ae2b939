//! `vmmc bench network` over real TUN devices and namespaces, or what it says where it may not.
//!
//! Invariant: what the bench starts ends with it.

mod common;

use common::{Folder, as_nobody, fails, no_other_user, text, vmmc};

/// The report of one run with these options; none, and a word about it, where it needs more rights.
fn measured(options: &[&str]) -> Option<serde_json::Value> {
    let output = vmmc(&[&["bench", "network", "--json", "--runs", "1"], options].concat());
    let said = text(&output.stderr);
    if said.contains("this needs root") {
        eprintln!("skipped: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).expect("it prints JSON"))
}

#[test]
fn a_network_bench_measures_every_carrier_or_says_what_it_needs() {
    let page = Folder::new();
    let html = page.file("network.html");
    let Some(report) = measured(&["--time-ms", "200", "--link", "lan,shared", "--html", &html]) else { return };
    let rows = report["rows"].as_array().expect("rows are a list");
    let carriers = ["cubic", "bbr", "vmmc"];
    let missing = report["missing"].to_string();
    for series in carriers.into_iter().filter(|series| !missing.contains(series)) {
        for (op, figure) in [("stream", "bytes_per_s"), ("ping", "p99_ns"), ("ping beside stream", "p99_ns")] {
            let wanted = |r: &&serde_json::Value| r["series"] == series && r["path"] == "lan" && r["op"] == op;
            let row = rows.iter().find(wanted).unwrap_or_else(|| panic!("no row {series} {op}: {report}"));
            assert!(row[figure].as_f64() > Some(0.0), "{row}");
        }
        // Nobody is faster than the link, and no answer comes before its packets can.
        let of = |op: &str| rows.iter().find(|r| r["series"] == series && r["op"] == op).expect("seen above");
        assert!(of("stream")["bytes_per_s"].as_f64() < Some(125e6), "{report}");
        assert!(of("ping")["p50_ns"].as_f64() > Some(200e3), "{report}");
    }
    assert!(rows.iter().any(|r| r["path"] == "shared" && r["bytes_per_s"].as_f64() > Some(0.0)), "{report}");
    let page = std::fs::read_to_string(html).expect("the page was written");
    assert!(page.contains("<svg") && page.contains("lan: ping beside stream"));
}

#[test]
fn streams_among_their_like_and_nodes_that_send_to_one_are_measured_at_the_same_time() {
    let options = ["--time-ms", "500", "--link", "pairs,incast", "--peers", ""];
    let Some(report) = measured(&options) else { return };
    let rows = report["rows"].as_array().expect("rows are a list");
    let all = |path: &str, of: &str, figure: &str| -> Vec<f64> {
        let ours = rows.iter().filter(|r| r["path"] == path && r["op"].as_str().is_some_and(|op| op.ends_with(of)));
        ours.map(|row| row[figure].as_f64().unwrap_or_else(|| panic!("{row}"))).collect()
    };
    for count in [2, 4, 16] {
        let rates = all("pairs", &format!(" of {count}"), "bytes_per_s");
        let sum: f64 = rates.iter().sum();
        // Together they are not faster than the link, give or take the message that each has begun.
        let most = 25e6 + count as f64 * 2.0 * 262_144.0;
        assert!(rates.len() == count && sum > 0.0 && sum < most, "{rates:?}");
    }
    let times = all("incast", " of 16", "p50_ns");
    // The last one has waited for all: 16 MiB of 200 Mb/s.
    assert!(times.len() == 16 && times.iter().copied().fold(0.0, f64::max) > 671e6, "{times:?}");
}

#[test]
fn who_may_not_make_namespaces_is_told_what_it_takes() {
    if let Some(why) = no_other_user() {
        return eprintln!("skipped: {why}");
    }
    let output = as_nobody(&["bench", "network", "--link", "lan"]).output().expect("it can be started");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("root") && said.contains("unshare"), "{said}");
}

#[test]
fn a_link_belongs_to_the_network_bench() {
    let said = fails(2, &["bench", "latency", "--link", "lan"]);
    assert!(said.contains("--link") && said.contains("bench network"), "{said}");
    assert!(fails(2, &["bench", "network", "--check"]).contains("no promises"));
    assert!(fails(2, &["bench", "network", "--peers", "tcp"]).contains("--peers ''"));
}
