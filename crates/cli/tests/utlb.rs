//! `vmmc utlb` as a user sees it: tables, traces there and back, refusals.
//!
//! Invariant: nothing here needs a node.

use std::path::Path;
use std::process::{Command, Output};

fn vmmc(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmmc")).arg("utlb").args(words).output().expect("the command starts")
}

fn text(words: &[&str]) -> String {
    let output = vmmc(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn file(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().expect("a path of ours").to_owned()
}

#[test]
fn a_trace_keeps_its_counts_through_every_format() {
    let directory = std::env::temp_dir().join(format!("vmmc-utlb-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for this test");
    let own = file(&directory, "water.vmmc.zst");
    text(&["trace", "generate", "water", &own]);
    let counts = |trace: &str| {
        let rows: serde_json::Value =
            serde_json::from_str(&text(&["simulate", trace, "--json", "--entries", "1K,16K"])).expect("JSON");
        rows.as_array()
            .expect("rows")
            .iter()
            .map(|row| (row["lookups"].clone(), row["check_misses"].clone()))
            .collect::<Vec<_>>()
    };
    let first = counts(&own);
    assert_eq!(first.len(), 2);
    assert_eq!(first, counts("app:water:0"));
    // An object has no process: pages of processes stay apart by their numbers.
    for name in ["water.csv", "water.csv.zst", "water.oracleGeneral.zst"] {
        let other = file(&directory, name);
        text(&["trace", "convert", &own, &other]);
        assert_eq!(counts(&other), first, "{name}");
    }
    let svg = file(&directory, "chart.svg");
    text(&["simulate", &own, "--entries", "1K,2K", "--policy", "lru,mru", "--memory", "256K", "--svg", &svg]);
    assert!(std::fs::read_to_string(&svg).expect("a chart").contains("</svg>"));
    assert!(text(&["trace", "info", &own]).contains("footprint"));
    assert!(text(&["trace", "head", "-n", "2", &own]).lines().count() == 3);
    let bad = file(&directory, "bad.csv");
    std::fs::write(&bad, "time_ns,process,op,address,length\n1,2,push,0,1\n").expect("a file");
    let output = vmmc(&["simulate", &bad]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("bad.csv: byte 34: line 2: \"push\" is no op"), "{message}");
    std::fs::remove_dir_all(&directory).expect("made above");
}

#[test]
fn the_papers_tables_are_printed_beside_ours() {
    let table = text(&["table", "6"]);
    assert!(table.contains("Barnes 1K") && table.contains("UTLB formula"), "{table}");
    assert!(text(&["nt-table", "4", "--csv"]).starts_with("row,column,paper,ours,tuned\n"));
    assert_eq!(vmmc(&["table", "9"]).status.code(), Some(2));
    assert_eq!(vmmc(&["simulate", "app:water:0", "--entries", "1000"]).status.code(), Some(2));
}
