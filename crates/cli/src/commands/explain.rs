//! `vmmc explain`: which path an import uses, and why not a better one.
//!
//! Invariant: the import that is made to be explained is given back at once.

use super::{attach, name_or_id};
use crate::args::Explain;
use crate::failure::Failure;
use crate::report::{table, units};
use vmmc::{ImportBuilder, Path, RefusalCode, Rights, Session};
use vmmc_host::control::PeerInfo;

/// Runs the command.
pub(crate) fn run(explain: &Explain) -> Result<(), Failure> {
    let session = attach(&explain.which.name)?;
    match (&explain.node, &explain.export) {
        (Some(node), Some(export)) => {
            // The node that we are attached to is reached without its name; it has two.
            let is_own = *node == session.node().name || *node == explain.which.name;
            one(&session, (!is_own).then_some(node), export, explain.json)
        }
        (Some(node), None) => paths(&session, Some(node), explain.json),
        _ => paths(&session, None, explain.json),
    }
}

fn one(session: &Session, node: Option<&String>, export: &str, json: bool) -> Result<(), Failure> {
    let open = |by: &dyn Fn() -> ImportBuilder, rights: Rights| {
        let builder = by().any_owner().rights(rights);
        node.into_iter().fold(builder, |builder, node| builder.node(node)).open()
    };
    let widest = |by: &dyn Fn() -> ImportBuilder| match open(by, Rights::READ | Rights::WRITE) {
        Err(e) if e.refusal() == Some(RefusalCode::NoRight) => open(by, Rights::READ),
        other => other,
    };
    // What is nobody's name may be an id, as lists and errors write it.
    let import = match (widest(&|| session.import(export)), export.parse()) {
        (Err(e), Ok(id)) if e.refusal() == Some(RefusalCode::UnknownName) => widest(&|| session.import_id(id))?,
        (other, _) => other?,
    };
    let explanation = import.explain();
    let peer = match explanation.path {
        Path::Network => session.node_info(true)?.peers.into_iter().find(|peer| peer.name == explanation.node),
        _ => None,
    };
    if json {
        let mut all = serde_json::to_value(&explanation).map_err(Failure::new)?;
        if let Some(peer) = peer {
            all["peer"] = serde_json::to_value(peer).map_err(Failure::new)?;
        }
        return crate::output_json(&all);
    }
    crate::output(&format!("{explanation}\n"))?;
    let Some(peer) = peer.filter(|peer| !peer.congestion.is_empty()) else { return Ok(()) };
    crate::output(&table::align(&["congestion", "", "path", ""], &congestion(&peer), 4))
}

/// How fast data goes to a peer, and why.
fn congestion(peer: &PeerInfo) -> Vec<Vec<String>> {
    let known = |figure: u64, show: &dyn Fn(f64) -> String| match figure {
        0 => "-".to_string(),
        figure => show(figure as f64),
    };
    let (window, under_way) = (units::size(peer.window_bytes), units::size(peer.in_flight_bytes));
    let (pace, bandwidth) =
        (known(peer.pace_bytes_per_s, &units::rate), known(peer.bandwidth_bytes_per_s, &units::rate));
    let (rtt, shortest) = (known(peer.rtt_ns, &units::time), known(peer.shortest_ns, &units::time));
    let marks = match peer.counters.iter().find(|(name, _)| name == "marked_out") {
        Some((_, count)) if *count > 0 => format!("{}, {count} came", peer.marks),
        _ => peer.marks.clone(),
    };
    let lines = [
        ["control", &peer.congestion, "bandwidth", &bandwidth],
        ["window", &window, "round trip", &rtt],
        ["under way", &under_way, "shortest", &shortest],
        ["pace", &pace, "marks", &marks],
        ["packets", &peer.packets, "address", &peer.address],
    ];
    lines.map(|line| line.map(String::from).to_vec()).to_vec()
}

/// All imports of the node, or those from one other node.
fn paths(session: &Session, from: Option<&str>, json: bool) -> Result<(), Failure> {
    let info = session.node_info(true)?;
    let imports: Vec<_> = info.imports.iter().filter(|i| from.is_none_or(|n| i.node == n)).collect();
    if json {
        return crate::output_json(&super::with_ids(&serde_json::json!({ "node": info.name, "imports": imports }))?);
    }
    if imports.is_empty() {
        return crate::output(&format!(
            "no process of node {:?} has an import{}; `vmmc explain NODE NAME` imports one and explains it\n",
            info.name,
            from.map(|n| format!(" from {n}")).unwrap_or_default()
        ));
    }
    let why = |path: &str| match path {
        "mapped" => "copies into mapped memory, no system call, no node",
        "engine" => {
            "through the node: the export cannot be mapped with these rights; the importing program can ask its import for the reason"
        }
        _ => "the export is on another node: descriptors to the node, packets between the nodes",
    };
    let lines: Vec<Vec<String>> = imports
        .iter()
        .map(|i| vec![name_or_id(i.name.as_deref(), i.export), i.node.clone(), i.path.clone(), why(&i.path).into()])
        .collect();
    crate::output(&table::align(&["import of", "node", "path", "because"], &lines, 4))
}
