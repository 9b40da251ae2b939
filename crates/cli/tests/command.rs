//! The command line: help, exit codes, shapes of JSON.
//!
//! Invariant: scripts rely on what is tested here.

mod common;

use common::{Folder, Node, fails, json, ok, unique, vmmc};

#[test]
fn help_names_every_command_and_exit_code() {
    let help = ok(&["--help"]);
    for command in
        ["demo", "node", "exec", "ping", "bench", "sockets", "stats", "explain", "doctor", "sim", "completion", "man"]
    {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in the help:\n{help}");
    }
    assert!(help.contains("Exit codes:") && !help.contains("worker"));
    for words in [&["node", "start"][..], &["node", "log"], &["trace", "record"], &["utlb", "simulate"], &["run"]] {
        let help = ok(&[words, &["--help"]].concat());
        assert!(help.contains("Exit codes:") && help.contains("\n  127  "), "{words:?}: {help}");
    }
    // What it tells a newcomer to type is there.
    let lines = help.lines().skip_while(|line| *line != "Start here:").skip(1);
    let typed: Vec<&str> =
        lines.take_while(|line| !line.is_empty()).filter_map(|l| l.trim().strip_prefix("vmmc ")).collect();
    assert_eq!(typed.len(), 5, "{help}");
    for line in typed {
        let command = line.split(' ').next().expect("a word");
        assert!(ok(&[command, "--help"]).contains("Usage:"), "{line}");
    }
    assert!(ok(&["node", "--help"]).contains("\n  run "), "a node in the foreground is not hidden");
    assert!(ok(&["bench", "--help"]).contains("same-node"));
}

#[test]
fn completion_and_manual_come_from_the_same_declaration() {
    assert!(ok(&["completion", "bash"]).contains("two-nodes"));
    assert!(ok(&["completion", "zsh"]).contains("doctor"));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ok(&["completion", shell]);
        let hidden = ["worker", "supervise", "sockets-peer"].into_iter().find(|word| script.contains(word));
        assert_eq!(hidden, None, "{shell} completes commands that help hides");
    }
    assert!(ok(&["man"]).contains(".SH"));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    fails(2, &["no-such-command"]);
    fails(2, &["bench", "latency", "--sizes", "0"]);
    fails(2, &["bench", "latency", "--path", "nowhere"]);
    fails(2, &["sim", "--seeds", "9..3"]);
    fails(2, &["node", "start", "--peer", "not-an-address"]);
    fails(2, &["worker"]);
    assert_eq!(vmmc(&[]).status.code(), Some(2));
}

#[test]
fn a_program_that_is_missing_is_127_and_one_that_cannot_be_executed_126() {
    let node = Node::start("programs", &["--plain"]);
    let folder = Folder::new();
    let plain = folder.file("plain");
    std::fs::write(&plain, "no program").expect("the folder can be written");
    let missing = folder.file("missing");
    for start in [
        &["run", "--name", &node.name, "--"][..],
        &["run", "--node", &node.name, "--"],
        &["exec", "--name", &node.name, "--"],
        &["trace", "record", "--out", &folder.file("trace"), "--"],
    ] {
        for (code, program) in [(127, &*missing), (127, "no-such-program-anywhere"), (126, &plain), (126, "/")] {
            let said = fails(code, &[start, &[program]].concat());
            assert!(said.contains(program), "{start:?}: {said}");
        }
    }
}

#[test]
fn an_export_name_that_would_move_a_terminal_is_refused() {
    let node = Node::start("names", &["--plain"]);
    let session = vmmc::Session::builder().node(&node.name).start_node(false).attach().expect("the node runs");
    for name in ["a\x1b]0;owned\x07", "two\nlines", "\u{9b}2J"] {
        let refused = session.export(4096).name(name).create().expect_err("it has a control character").to_string();
        assert!(refused.contains("control character") && !refused.contains(char::is_control), "{refused:?}");
    }
    assert!(session.export(4096).name("stra\u{df}e 7").create().is_ok());
}

#[test]
fn a_node_that_does_not_run_is_exit_code_3_and_is_not_started() {
    let name = unique("nobody");
    for args in [
        vec!["node", "status", "--name", &name],
        vec!["node", "stop", "--name", &name],
        vec!["stats", "--name", &name],
        vec!["ping", "b", "--name", &name],
        vec!["explain", "--name", &name],
    ] {
        let said = fails(3, &args);
        assert!(said.contains(&name) && said.contains("vmmc node start"), "{said}");
    }
    assert!(!ok(&["node", "list"]).contains(&name));
}

#[test]
fn a_bench_in_json_has_the_promised_rows() {
    let page = Folder::new();
    let html = page.file("bench.html");
    let args =
        ["bench", "latency", "--json", "--runs", "2", "--time-ms", "3", "--sizes", "8,1K", "--peers", "pipe,ucx"];
    let report = json(&[&args[..], &["--path", "same-node", "--html", &html]].concat());
    assert_eq!(report["bench"], "latency");
    assert!(report["machine"]["cores"].as_u64() >= Some(1) && report["machine"]["kernel"].is_string());
    let rows = report["rows"].as_array().expect("rows are a list");
    for series in ["cache-line", "memcpy", "vmmc", "pipe"] {
        let row = rows.iter().find(|r| r["series"] == series).unwrap_or_else(|| panic!("no row {series}: {report}"));
        assert_eq!((&row["size_bytes"], &row["runs"]), (&8.into(), &2.into()));
        assert!(row["p50_ns"].as_f64() > Some(0.0) && row["p99_ns"].as_f64() >= row["p50_ns"].as_f64(), "{row}");
        assert!(row["path"].is_string());
    }
    let page = std::fs::read_to_string(html).expect("the page was written");
    assert!(page.contains("<svg") && page.contains("same-node") && !page.contains("http"));
}

#[test]
fn a_bandwidth_bench_in_json_has_rates() {
    let args = ["bench", "bandwidth", "--json", "--runs", "1", "--time-ms", "3", "--sizes", "64K", "--peers", "unix"];
    let report = json(&[&args[..], &["--path", "same-node,embedded", "--sealed"]].concat());
    let rows = report["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), 4, "{report}");
    assert!(rows.iter().all(|r| r["bytes_per_s"].as_f64() > Some(0.0)), "{report}");
    assert!(report["promises"].as_array().is_some_and(|p| !p.is_empty()));
}

#[test]
fn every_bench_measures_every_path() {
    for (what, beside) in [
        ("fetch", &["", "-send", "-16", "-16-continued"][..]),
        ("atomic", &[""]),
        ("notify", &["", "-word", "-any"]),
        ("import", &[""]),
        ("redirect", &[""]),
    ] {
        let args = ["bench", what, "--json", "--runs", "1", "--time-ms", "3", "--asleep-us", "100"];
        let sizes: &[&str] = if what == "redirect" || what == "fetch" { &["--sizes", "4K"] } else { &[] };
        let report = json(&[&args[..], sizes].concat());
        for (series, path) in [
            ("vmmc", "same-node"),
            ("vmmc", "two-nodes"),
            ("vmmc-plain", "two-nodes"),
            ("vmmc", "embedded"),
            ("vmmc-plain", "embedded"),
        ] {
            let rows = report["rows"].as_array().expect("rows are a list");
            for series in beside.iter().map(|end| format!("{series}{end}")) {
                let found = rows.iter().find(|r| r["series"] == series && r["path"] == path);
                assert!(found.is_some_and(|r| r["p50_ns"].as_f64() > Some(0.0)), "{what} {series} {path}: {report}");
            }
        }
    }
}

#[test]
fn calls_without_a_result_have_size_0() {
    let args = ["bench", "rpc", "--json", "--path", "embedded", "--sizes", "0", "--runs", "1", "--time-ms", "3"];
    let report = json(&[&args[..], &["--peers", ""]].concat());
    let rows = report["rows"].as_array().expect("rows are a list");
    let called = |op: &str| rows.iter().any(|r| r["op"] == op && r["p50_ns"].as_f64() > Some(0.0));
    assert!(called("2-way wait") && called("3-way wait") && rows.iter().all(|r| r["size_bytes"] == 0), "{report}");
}

#[test]
fn the_demo_moves_a_file_and_measures() {
    let folder = Folder::new();
    let file = folder.file("data");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&file, bytes).expect("the folder can be written");
    let report = json(&["demo", "--json", "--runs", "1", "--file", &file, "--html", &folder.file("demo.html")]);
    let rows = report["rows"].as_array().expect("rows are a list");
    for (series, path) in
        [("vmmc", "same-node"), ("vmmc", "two-nodes"), ("pipe", "kernel"), ("unix", "kernel"), ("tcp", "kernel")]
    {
        let of = rows.iter().filter(|r| r["series"] == series && r["path"] == path).count();
        assert_eq!(of, 6, "{series} {path}: {report}");
    }
    assert!(rows.iter().all(|r| r["error"].is_null()), "{report}");
}

#[test]
fn a_missing_file_is_named() {
    let folder = Folder::new();
    let said = fails(1, &["demo", "--json", "--file", &folder.file("nothing")]);
    assert!(said.contains("nothing"), "{said}");
}

#[test]
fn the_doctor_says_what_is_missing() {
    let report = json(&["doctor", "--json"]);
    assert_eq!(report["usable"], true);
    let findings = report["findings"].as_array().expect("findings are a list");
    for about in [
        "kernel",
        "sealed shared memory",
        "UDP socket buffers",
        "marks of queues (ECN)",
        "open files",
        "cluster key",
        "ucx",
    ] {
        assert!(findings.iter().any(|f| f["about"] == about), "{about} is not in {report}");
    }
    assert!(findings.iter().all(|f| f["state"] == "good" || !f["advice"].as_str().unwrap_or("").is_empty()));
}

#[test]
fn simulated_seeds_hold_and_replay() {
    let run = || json(&["sim", "--nodes", "3", "--seed", "2", "--json"]);
    let first = run();
    assert_eq!((&first["counts"]["runs"], &first["failures"]), (&1.into(), &serde_json::json!([])));
    assert_eq!(first["digest"], run()["digest"]);
    assert_eq!(json(&["sim", "--seeds", "0..4", "--steps", "30", "--json"])["counts"]["runs"], 4);
    let sockets = json(&["sim", "--sockets", "--seeds", "0..40", "--json"]);
    assert!(sockets["counts"]["runs"] == 40 && sockets["failures"].as_array().is_some_and(Vec::is_empty), "{sockets}");
    fails(2, &["sim", "--sockets", "--nodes", "3"]);
}

/// `VMMC_UPDATE=1` draws them anew.
#[test]
fn the_plots_of_the_page_about_networks_are_what_the_simulator_draws() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = std::fs::read_to_string(folder.join("network.md")).expect("the page");
    let commands = page.lines().filter(|line| line.starts_with("$ vmmc sim") && line.contains(" --plot network-"));
    let mut drawn = 0;
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().skip(2).collect();
        let (name, before) = words.split_last().expect("a name");
        let file = std::env::temp_dir().join(format!("vmmc-{}-{name}", std::process::id()));
        let path = file.to_str().expect("a path of letters");
        ok(&[before, &[path]].concat());
        let is = std::fs::read_to_string(&file).expect("it was written");
        std::fs::remove_file(&file).expect("it is there");
        if std::env::var_os("VMMC_UPDATE").is_some() {
            std::fs::write(folder.join(name), &is).expect("it is there");
        }
        assert!(page.contains(&format!("]({name})")), "{name} is not shown");
        let was = std::fs::read_to_string(folder.join(name)).expect(name);
        assert!(is == was, "docs/{name} is older than what it shows; run this test with VMMC_UPDATE=1");
        drawn += 1;
    }
    assert_eq!(drawn, 3);
}

#[test]
fn simulated_links_hold_replay_and_can_be_drawn() {
    let plot = std::env::temp_dir().join(format!("vmmc-links-{}.svg", std::process::id()));
    let path = plot.to_str().expect("a path of letters");
    let run = || json(&["sim", "--network", "--seed", "8", "--congestion", "bbr", "--plot", path, "--json"]);
    let first = run();
    assert_eq!((&first["control"], &first["failures"]), (&"bbr".into(), &serde_json::json!([])));
    assert_eq!(first["digest"], run()["digest"]);
    let drawn = std::fs::read_to_string(&plot).expect("it was written");
    assert!(drawn.contains(">rough, bbr: ") && drawn.contains(" of queue"), "{drawn}");
    std::fs::remove_file(&plot).expect("it is there");
    assert!(drawn.contains("stream 0") && drawn.contains("queue, KB") && drawn.ends_with("</svg>\n"));
    let sweep = json(&["sim", "--network", "--seeds", "0..10", "--json"]);
    assert_eq!((&sweep["runs"], &sweep["failures"]), (&10.into(), &serde_json::json!([])));
    assert!(sweep["goals"].as_array().is_some_and(|goals| goals.iter().any(|goal| goal["name"] == "Jain's index")));
    fails(2, &["sim", "--network", "--nodes", "3"]);
    fails(2, &["sim", "--congestion", "bbr"]);
    fails(2, &["sim", "--network", "--seeds", "0..2", "--plot", path]);
}

#[test]
fn stats_and_explain_speak_of_a_running_node() {
    let node = Node::start("stats", &["--plain"]);
    let stats = json(&["stats", "--name", &node.name, "--json"]);
    assert_eq!(stats["node"], node.name.as_str());
    assert!(stats["counters"].as_object().is_some_and(|c| !c.is_empty()));
    let session = vmmc::Session::builder().node(&node.name).start_node(false).attach().expect("the node runs");
    let _export = session.export(8192).name("frames").create().expect("there is memory");
    let text = ok(&["explain", &node.name, "frames", "--name", &node.name]);
    assert!(text.contains("frames"), "{text}");
    let explained = json(&["explain", &node.name, "frames", "--name", &node.name, "--json"]);
    assert_eq!(explained["path"], "mapped");
    let said = fails(1, &["explain", &node.name, "no-such-export", "--name", &node.name]);
    assert!(said.contains("no-such-export"), "{said}");
}

#[test]
fn a_demo_writes_a_page_that_stands_alone() {
    let folder = Folder::new();
    let (moved, page) = (folder.file("moved"), folder.file("demo.html"));
    std::fs::write(&moved, [7; 943]).expect("the folder can be written");
    ok(&["demo", "--runs", "1", "--file", &moved, "--html", &page]);
    let page = std::fs::read_to_string(page).expect("it is written");
    for wanted in [
        "<h1>VMMC demo<",
        "release ",
        "moved, 943 B, was moved",
        "from A to B, export, import, fetch",
        "checksum (CRC-32)",
        "Each figure is the median",
        "8 B through VMMC, between nodes",
        "<svg",
        ">Bandwidth, 64 MiB<",
        ">Promises<",
        ">All figures<",
    ] {
        assert!(page.contains(wanted), "{wanted:?} is missing");
    }
    for outside in ["src=", "href=", "http:", "https:", "@import"] {
        assert!(!page.contains(outside), "{outside:?} leads out of the page");
    }
}
