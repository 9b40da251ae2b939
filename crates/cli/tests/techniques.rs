//! `vmmc bench techniques` with real processes, and in network namespaces where it may have them.
//!
//! Invariant: what the bench starts ends with it.

mod common;

use common::{Folder, as_nobody, fails, no_other_user, text, vmmc};

const TECHNIQUES: [&str; 6] = ["pio", "copydma", "directdma", "v2pdma", "pexdma", "auto"];

#[test]
fn a_bench_of_techniques_measures_all_of_them_and_says_what_the_paper_concluded() {
    let folder = Folder::new();
    let html = folder.file("techniques.html");
    let args = ["bench", "techniques", "--json", "--runs", "1", "--time-ms", "20", "--sizes", "512,4K,200000"];
    let places = ["--html", &html, "--svg", &folder.0.display().to_string()];
    let output = vmmc(&[&args[..], &places, &["--path", "same-node,two-nodes"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let rows = report["rows"].as_array().expect("rows are a list");
    for figure in ["sender", "receiver", "both"] {
        for (technique, path) in TECHNIQUES.iter().flat_map(|one| [(one, "same-node"), (one, "two-nodes")]) {
            for size in [512, 4096, 200_000] {
                let wanted = |r: &&serde_json::Value| {
                    r["figure"] == figure
                        && r["technique"] == *technique
                        && r["path"] == path
                        && r["size_bytes"] == size
                };
                let row = rows.iter().find(wanted).unwrap_or_else(|| panic!("no {figure} {technique} {path} {size}"));
                assert!(row["rate"].as_f64() > Some(0.0), "{row}");
            }
        }
    }
    let conclusions = report["conclusions"].as_array().expect("conclusions are a list");
    assert!(conclusions.len() == 7 && conclusions.iter().all(|one| one["holds"].is_boolean()), "{conclusions:?}");
    // One for each size, on either path.
    assert_eq!(report["promises"].as_array().map(Vec::len), Some(6));
    match report["kernel"].as_array() {
        Some(rows) => {
            assert_eq!(rows.len(), 12);
            assert!(rows.iter().all(|row| row["rate"].as_f64() > Some(0.0)), "{rows:?}");
        }
        None => println!("SKIP the kernel's rows: {}", report["kernel"]["missing"]),
    }
    let page = std::fs::read_to_string(html).expect("the page was written");
    assert!(page.contains("<svg") && page.contains("Figure 3"));
    for name in ["sender-same-node", "receiver-two-nodes", "both-same-node"] {
        let plot = std::fs::read_to_string(folder.file(&format!("techniques-{name}.svg"))).expect("it was written");
        assert!(plot.starts_with("<svg") && plot.contains("pexdma"));
        // A receiver that moves no byte has no rate to be seen beside those that do.
        assert_eq!(plot.contains("directdma"), !name.starts_with("receiver"), "{name}");
    }
}

#[test]
fn who_may_not_make_namespaces_gets_all_but_the_kernels_rows() {
    if let Some(why) = no_other_user() {
        return eprintln!("skipped: {why}");
    }
    let args = ["bench", "techniques", "--runs", "1", "--time-ms", "5", "--sizes", "4K"];
    let output = as_nobody(&args).output().expect("it can be started");
    let (said, out) = (text(&output.stderr), text(&output.stdout));
    assert!(output.status.success(), "{said}");
    assert!(out.contains("needs root, for network namespaces") && out.contains("Figure 2"), "{out}");
}

#[test]
fn plots_and_paths_are_those_that_there_are() {
    let said = fails(2, &["bench", "latency", "--svg", "/tmp"]);
    assert!(said.contains("bench techniques"), "{said}");
    assert!(fails(2, &["bench", "techniques", "--path", "embedded"]).contains("two-nodes"));
    assert!(fails(2, &["techniques-peer", "{}"]).contains("bench techniques"));
}
