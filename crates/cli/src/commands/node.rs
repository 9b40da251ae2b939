//! `vmmc node`: nodes as processes of their own.
//!
//! Invariant: `stop` returns when the name is free again, `start` when processes can attach.

use super::{attach, name_or_id, try_attach};
use crate::args::{Node, NodeOptions, Which};
use crate::failure::Failure;
use crate::limits::NODE_WAIT;
use crate::report::{table, units};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use vmmc::{AttachError, NodeInfo};
use vmmc_host::channel::{holder_of_node, listening_nodes};
use vmmc_host::control::ProcessInfo;
use vmmc_node::{KeySource, NodeConfig, UtlbConfig};
use vmmc_utlb::CacheShape;

/// Runs the command.
pub(crate) fn run(node: &Node) -> Result<(), Failure> {
    match node {
        Node::Start(options) => start(options),
        Node::Run { options, detach } => run_here(options, *detach),
        Node::Stop(which) => stop(which),
        Node::Status { which, json } => status(which, *json),
        Node::Log(log) => super::node_log::run(log),
        Node::List { json } => list(*json),
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn runs(name: &str) -> bool {
    // A stranger may have the name: that is no node of ours, and the start says so.
    let is_ours = || holder_of_node(own_uid(), name).is_none_or(|who| who.uid == own_uid());
    listening_nodes().contains(&(own_uid(), name.to_string())) && is_ours()
}

fn config(options: &NodeOptions) -> Result<NodeConfig, Failure> {
    let mut config = NodeConfig::new(&options.which.name);
    config.known_as.clone_from(&options.known_as);
    config.log_level = options.log_level;
    // A daemon in the background works in the root folder.
    config.log_file = options.log_file.as_ref().map(std::path::absolute).transpose()?;
    config.listen.clone_from(&options.listen);
    for peer in &options.peer {
        let addresses: Result<Vec<SocketAddr>, _> = peer.split(',').map(|a| a.trim().parse()).collect();
        config.peers.push(addresses.map_err(|e| {
            Failure::Usage(format!("--peer {peer}: {e}; write address:port, for example 10.0.0.2:4791"))
        })?);
    }
    config.key = match &options.key_file {
        _ if options.plain => KeySource::Plain,
        Some(file) => KeySource::File(file.clone()),
        None => KeySource::Default,
    };
    config.ciphers = options.cipher;
    config.congestion = options.congestion;
    config.ecn = options.ecn;
    config.serve = options.serve.clone();
    // By the kernel's name for it: it is found also when the file has been replaced since.
    let own = || PathBuf::from("/proc/self/exe");
    config.launcher = (!options.no_run).then(|| options.launcher.clone().unwrap_or_else(own));
    config.plain_run = options.plain_run;
    config.plain_trust_users = options.plain_trust_users;
    config.sockets_between = !options.no_sockets_between;
    config.metrics = options.metrics;
    config.linger = options.linger_s.map(Duration::from_secs);
    config.pinned_pages_max = options.pinned_pages;
    let entries = usize::try_from(options.utlb_entries).unwrap_or(usize::MAX);
    let cache = CacheShape::new(entries, options.utlb_ways, !options.utlb_no_offset);
    let cache = cache.map_err(|e| Failure::Usage(format!("--utlb-entries, --utlb-ways: {e}")))?;
    let tables_max = options.utlb_tables.and_then(|tables| usize::try_from(tables).ok());
    config.utlb = UtlbConfig { cache, prefetch: options.utlb_prefetch, tables_max };
    if let Some(ms) = options.peer_timeout_ms {
        config.peer_timeout = Duration::from_millis(ms);
    }
    Ok(config)
}

fn start(options: &NodeOptions) -> Result<(), Failure> {
    let name = &options.which.name;
    let config = config(options)?;
    if runs(name) {
        let text =
            format!("node {name:?} runs already; stop it (`vmmc node stop --name {name}`) or choose another name");
        return Err(Failure::NodeExists(text));
    }
    let program = std::env::current_exe()?;
    vmmc_node::start_detached(&program, &config).map_err(|e| {
        // Two starts at the same moment: one of them wins.
        if runs(name) { Failure::NodeExists(e.to_string()) } else { Failure::new(e) }
    })?;
    let info = attach(name)?.node_info(false)?;
    crate::output(&format!("{}\n{}", line(&info), plain_warning(&config)))
}

/// What a node in plain mode is open to.
fn plain_warning(config: &NodeConfig) -> &'static str {
    match (&config.key, config.plain_run, config.plain_trust_users) {
        (KeySource::Plain, true, _) => {
            "plain mode: whoever can send packets to it, also from this machine, can run programs as its user\n"
        }
        (KeySource::Plain, false, true) => {
            "plain mode: whoever can send packets to it, also from this machine, can import what any user has exported\n"
        }
        (KeySource::Plain, false, false) => {
            "plain mode: whoever can send packets to it, also from this machine, can import what is exported to anyone, and nothing else; see --plain-trust-users\n"
        }
        _ => "",
    }
}

fn run_here(options: &NodeOptions, detach: bool) -> Result<(), Failure> {
    let config = NodeConfig { handle_signals: true, detach, ..config(options)? };
    let warning = plain_warning(&config);
    let ready = |running: vmmc_node::Running| {
        if !detach {
            let addresses: Vec<String> = running.addresses.iter().map(ToString::to_string).collect();
            let text = format!("node {:?} serves processes, and peers on {}\n", running.name, addresses.join(", "));
            // The process that started us may not listen; the node serves all the same.
            let _ = crate::output(&format!("{text}{warning}"));
        }
    };
    vmmc_node::run_with(config, ready)
        .map_err(|e| if runs(&options.which.name) { Failure::NodeExists(e.to_string()) } else { Failure::new(e) })
}

fn stop(which: &Which) -> Result<(), Failure> {
    let name = &which.name;
    match try_attach(name) {
        Ok(session) => session.stop_node()?,
        // It does not understand us, but a signal.
        Err(AttachError::Version { pid, .. }) if vmmc_host::process::terminate(pid) => {}
        Err(error) => return Err(error.into()),
    }
    let end = Instant::now() + NODE_WAIT;
    while runs(name) {
        if Instant::now() > end {
            let text = format!("node {name:?} was told to stop {} s ago and still runs", NODE_WAIT.as_secs());
            return Err(Failure::Unreachable(text));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    crate::output(&format!("node {name:?} has ended\n"))
}

/// A node in a line.
fn line(info: &NodeInfo) -> String {
    let sealed = if info.sealed { "encrypted" } else { "plain" };
    let listen = if info.listen.is_empty() { "no address".into() } else { info.listen.join(", ") };
    let known =
        if info.name == info.local_name { String::new() } else { format!(" (to other nodes: {:?})", info.name) };
    format!("node {:?}{known} runs as process {}, listens on {listen}, {sealed}", info.local_name, info.pid)
}

fn status(which: &Which, json: bool) -> Result<(), Failure> {
    let mut info = attach(&which.name)?.node_info(true)?;
    info.processes.retain(is_not_us);
    if json { crate::output_json(&super::with_ids(&info)?) } else { crate::output(&describe(&info)) }
}

/// We are attached too while we ask.
fn is_not_us(process: &ProcessInfo) -> bool {
    process.pid != std::process::id()
}

/// Who sends packets that do not open, and what to do.
const STRANGERS: &str = "of strangers, or of a node with another key, which needs the same key file (--key-file)";

/// Everything about a node as text.
fn describe(info: &NodeInfo) -> String {
    let up = units::time(info.uptime_ms as f64 * 1e6);
    let mut out = format!("{}, release {}, up for {up}\n", line(info), info.version);
    let peers = info.peers.iter().map(|p| {
        let name = if p.name.is_empty() { "?".to_string() } else { p.name.clone() };
        let rtt = if p.rtt_ns == 0 { String::new() } else { units::time(p.rtt_ns as f64) };
        let cipher = if p.cipher.is_empty() { "-".to_string() } else { p.cipher.clone() };
        vec![
            name,
            p.address.clone(),
            p.state.clone(),
            cipher,
            rtt,
            if p.congestion.is_empty() { "-".to_string() } else { p.congestion.clone() },
            if p.marks.is_empty() { "-".to_string() } else { p.marks.clone() },
            units::size(p.window_bytes),
            if p.pace_bytes_per_s == 0 { String::new() } else { units::rate(p.pace_bytes_per_s as f64) },
            units::size(p.in_flight_bytes),
        ]
    });
    section(
        &mut out,
        &["peer", "address", "state", "cipher", "rtt", "congestion", "marks", "window", "pace", "in flight"],
        peers,
        4,
    );
    for peer in info.peers.iter().filter(|p| !p.hint.is_empty()) {
        let name = if peer.name.is_empty() { "?" } else { &peer.name };
        out.push_str(&format!("no session with {name} at {}, probably because {}\n", peer.address, peer.hint));
    }
    let unopened = info.counters.iter().find(|(name, _)| name == "engine_bad_seals").map_or(0, |(_, count)| *count);
    if unopened > 0 {
        out.push_str(&format!("{unopened} packets did not open with this node's cluster key: {}\n", STRANGERS));
    }
    let processes = info.processes.iter().map(|p| {
        let numbers = [u64::from(p.exports), u64::from(p.imports), p.commands].map(|n| n.to_string());
        let who = vec![p.pid.to_string(), p.program.clone(), p.uid.to_string()];
        [who, numbers.to_vec(), vec![units::size(p.mapped.bytes()), units::size(p.region_bytes)]].concat()
    });
    section(
        &mut out,
        &["process", "program", "user", "exports", "imports", "commands", "mapped", "memory"],
        processes,
        2,
    );
    let exports = info.exports.iter().map(|e| {
        let name = name_or_id(e.name.as_deref(), e.export);
        vec![name, rights(e.rights), units::size(e.len), e.importers.to_string()]
    });
    section(&mut out, &["export", "rights", "bytes", "importers"], exports, 2);
    let imports = info.imports.iter().map(|i| {
        vec![
            name_or_id(i.name.as_deref(), i.export),
            i.node.clone(),
            i.path.clone(),
            rights(i.rights),
            info.processes.iter().find(|p| p.process == i.process).map_or("?".into(), |p| p.pid.to_string()),
            i.moved.operations().to_string(),
            units::size(i.moved.bytes()),
            units::size(i.len),
        ]
    });
    section(&mut out, &["import of", "node", "path", "rights", "process", "operations", "moved", "bytes"], imports, 4);
    if !info.notes.is_empty() {
        out.push_str(&format!("\n{}\n", info.notes.join("\n")));
    }
    out
}

fn section(out: &mut String, header: &[&str], lines: impl Iterator<Item = Vec<String>>, left: usize) {
    let lines: Vec<Vec<String>> = lines.collect();
    if !lines.is_empty() {
        out.push('\n');
        out.push_str(&table::align(header, &lines, left));
    }
}

/// Rights in words.
fn rights(bits: u8) -> String {
    let names = [(1, "read"), (2, "write"), (4, "atomic")];
    names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, n)| *n).collect::<Vec<_>>().join("+")
}

/// A node as `list` shows it.
#[derive(serde::Serialize)]
struct Listed {
    name: String,
    /// Name that other nodes know it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_as: Option<String>,
    uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    listen: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<bool>,
    processes: usize,
    /// `another` for one that does not understand us.
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<String>,
}

fn list(json: bool) -> Result<(), Failure> {
    let nodes: Vec<Listed> = listening_nodes().into_iter().map(|(uid, name)| query(uid, name)).collect();
    if json {
        return crate::output_json(&serde_json::json!({ "nodes": nodes }));
    }
    if nodes.is_empty() {
        return crate::output("no node runs; start one with `vmmc node start`\n");
    }
    let lines: Vec<Vec<String>> = nodes
        .iter()
        .map(|n| {
            let traffic = n.sealed.map_or("?", |s| if s { "encrypted" } else { "plain" });
            let pid = n.pid.map_or("?".into(), |p| p.to_string());
            let release = n.release.clone().unwrap_or("?".into());
            let numbers = [n.uid.to_string(), pid, n.processes.to_string()];
            let known = n.known_as.clone().unwrap_or("?".into());
            [n.name.clone(), known, n.listen.join(", "), traffic.into(), release].into_iter().chain(numbers).collect()
        })
        .collect();
    let header = ["node", "known as", "listens on", "traffic", "release", "user", "pid", "processes"];
    crate::output(&table::align(&header, &lines, 5))
}

/// Asks a node of our own about itself; those of others are only named.
fn query(uid: u32, name: String) -> Listed {
    let (pid, sealed, release) = (None, None, None);
    let mut listed = Listed { name, known_as: None, uid, pid, listen: vec![], sealed, processes: 0, release };
    if uid != own_uid() {
        return listed;
    }
    let session = try_attach(&listed.name);
    if let Err(AttachError::Version { pid, .. }) = session {
        listed.pid = Some(pid);
        listed.release = Some("another".into());
    }
    let Some(info) = session.ok().and_then(|session| session.node_info(false).ok()) else { return listed };
    let processes = info.processes.iter().filter(|p| is_not_us(p)).count();
    Listed {
        known_as: Some(info.name),
        pid: Some(info.pid),
        listen: info.listen,
        sealed: Some(info.sealed),
        processes,
        release: Some(info.version),
        ..listed
    }
}
