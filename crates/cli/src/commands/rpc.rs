//! `vmmc rpc`: services of remote calls on a node, and how long a call to one takes.
//!
//! Invariant: nothing runs in the service but its loop: the call is of a method that no service
//! has.

use super::attach;
use crate::args::{Rpc, RpcList, RpcPing};
use crate::failure::Failure;
use crate::measure::stats::Spread;
use crate::report::{table, units};
use std::time::{Duration, Instant};
use vmmc_host::control::NodeInfo;
use vmmc_rpc::{Client, PING_METHOD, RpcError, SERVICE_PREFIX};

/// Runs the command.
pub(crate) fn run(rpc: &Rpc) -> Result<(), Failure> {
    match rpc {
        Rpc::List(list) => services(list),
        Rpc::Ping(ping) => calls(ping),
    }
}

/// A service of a node.
struct Service {
    name: String,
    uid: u32,
    pid: u32,
    program: String,
    clients: usize,
}

fn services(list: &RpcList) -> Result<(), Failure> {
    let session = attach(list.node.as_ref().unwrap_or(&list.which.name))?;
    let services = of(&session.node_info(true)?);
    if list.json {
        let rows = services.iter().map(|service| {
            let Service { name, uid, pid, program, clients } = service;
            serde_json::json!({ "service": name, "uid": uid, "pid": pid, "program": program, "clients": clients })
        });
        return crate::output_json(&serde_json::json!({ "services": rows.collect::<Vec<_>>() }));
    }
    let line = |service: &Service| {
        let Service { name, uid, pid, program, clients } = service;
        vec![name.clone(), uid.to_string(), format!("{pid} {program}"), clients.to_string()]
    };
    let lines: Vec<Vec<String>> = services.iter().map(line).collect();
    crate::output(&table::align(&["service", "user", "process", "clients"], &lines, 3))
}

/// Services are endpoints of certain names; each of their clients has a channel, whose name is that
/// of the endpoint and a number.
fn of(info: &NodeInfo) -> Vec<Service> {
    let named = |export: &vmmc_host::control::ExportInfo| {
        let name = export.name.as_ref()?.strip_prefix(SERVICE_PREFIX)?.to_string();
        Some((name, export.process, export.uid))
    };
    let all: Vec<(String, u32, u32)> = info.exports.iter().filter_map(named).collect();
    let channel_of = |name: &str, service: &str| {
        let number = name.strip_prefix(service).and_then(|rest| rest.strip_prefix('.'));
        number.is_some_and(|number| number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let is_channel =
        |name: &str, process: u32| all.iter().any(|(service, of, _)| *of == process && channel_of(name, service));
    let mut services: Vec<Service> = Vec::new();
    for (name, process, uid) in all.iter().filter(|(name, process, _)| !is_channel(name, *process)) {
        let owner = info.processes.iter().find(|of| of.process == *process);
        services.push(Service {
            name: name.clone(),
            uid: *uid,
            pid: owner.map_or(0, |owner| owner.pid),
            program: owner.map_or_else(String::new, |owner| owner.program.clone()),
            clients: all.iter().filter(|(of, at, _)| at == process && channel_of(of, name)).count(),
        });
    }
    services.sort_by(|a, b| (&a.name, a.uid).cmp(&(&b.name, b.uid)));
    services
}

fn calls(ping: &RpcPing) -> Result<(), Failure> {
    let session = attach(&ping.which.name)?;
    let (node, service) = match ping.service.rsplit_once('/') {
        Some((node, service)) => (Some(node), service),
        None => (None, ping.service.as_str()),
    };
    let timeout = Duration::from_millis(ping.timeout_ms);
    let builder = node.into_iter().fold(Client::new(&session, service), |builder, node| builder.node(node));
    let client = builder.timeout(timeout).connect().map_err(failure)?;
    let mut times = Vec::new();
    for n in 1..=ping.count {
        let start = Instant::now();
        match client.call(PING_METHOD, b"") {
            Err(RpcError::NoMethod { .. }) => {}
            Err(error) => return Err(failure(error)),
            Ok(_) => return Err(Failure::Failed(format!("{} answers a method that none has", ping.service))),
        }
        let ns = start.elapsed().as_nanos() as f64;
        times.push(ns);
        if !ping.json {
            let line = format!("{} answered: {n} of {}, {}\n", ping.service, ping.count, units::time(ns));
            crate::output(&line)?;
        }
    }
    let Some(spread) = Spread::of(times.clone()) else { return Ok(()) };
    if ping.json {
        return crate::output_json(&serde_json::json!({
            "service": ping.service, "call_ns": times,
            "min_ns": spread.min, "median_ns": spread.median, "max_ns": spread.max,
        }));
    }
    let [min, median, max] = [spread.min, spread.median, spread.max].map(units::time);
    crate::output(&format!("call: median {median}, smallest {min}, largest {max}\n"))
}

fn failure(error: RpcError) -> Failure {
    let text = error.to_string();
    match error {
        RpcError::Unanswered { .. } | RpcError::TimedOut { .. } | RpcError::Lost { .. } => Failure::Unreachable(text),
        RpcError::Connect { error, .. } if matches!(*error, vmmc::ConnectError::TimedOut { .. }) => {
            Failure::Unreachable(text)
        }
        _ => Failure::Failed(text),
    }
}
