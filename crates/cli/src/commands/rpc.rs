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
use vmmc_host::control::{NodeInfo, PublishedInfo};
use vmmc_host::published::{Figure, FigureKind};
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
    /// Calls that came to a handler, and those that ended badly.
    calls: u64,
    errors: u64,
    /// Times from a call to its answer: the mean, and what 99 of 100 are below, nanoseconds.
    answer_ns: Option<(u64, u64)>,
}

fn services(list: &RpcList) -> Result<(), Failure> {
    let session = attach(list.node.as_ref().unwrap_or(&list.which.name))?;
    let services = of(&session.node_info(true)?);
    if list.json {
        let rows = services.iter().map(|service| {
            let Service { name, uid, pid, program, clients, calls, errors, answer_ns } = service;
            serde_json::json!({
                "service": name, "uid": uid, "pid": pid, "program": program, "clients": clients,
                "calls": calls, "errors": errors,
                "answer_mean_ns": answer_ns.map(|(mean, _)| mean), "answer_p99_ns": answer_ns.map(|(_, p99)| p99),
            })
        });
        return crate::output_json(&serde_json::json!({ "services": rows.collect::<Vec<_>>() }));
    }
    let line = |service: &Service| {
        let Service { name, uid, pid, program, clients, calls, errors, answer_ns } = service;
        let [mean, most] = [answer_ns.map(|(mean, _)| mean), answer_ns.map(|(_, most)| most)]
            .map(|ns| ns.map_or_else(String::new, |ns| units::time(ns as f64)));
        let process = format!("{pid} {program}");
        let counts = [*clients as u64, *calls, *errors].map(|count| count.to_string());
        [name.clone(), uid.to_string(), process].into_iter().chain(counts).chain([mean, most]).collect()
    };
    let lines: Vec<Vec<String>> = services.iter().map(line).collect();
    let head = ["service", "user", "process", "clients", "calls", "errors", "mean answer", "99 % below"];
    crate::output(&table::align(&head, &lines, 3))
}

/// What the server of a service has counted over all its methods.
fn counted(info: &NodeInfo, process: u32, service: &str) -> (u64, u64, Option<(u64, u64)>) {
    let of = |source: &&PublishedInfo| {
        source.process == process && source.source.strip_prefix("rpc.").is_some_and(|name| name == service)
    };
    let figures = info.published.iter().find(of).map_or(&[][..], |source| &source.figures);
    let sum = |family: &str| figures.iter().filter(|f| f.family == family).map(|f| f.value).sum();
    let mut all = Figure::default();
    for figure in figures.iter().filter(|figure| figure.kind == FigureKind::Times) {
        all.merge(figure);
    }
    let answers = all.value.checked_div(all.times()).zip(all.quantile_ns(0.99));
    (sum("rpc_calls"), sum("rpc_errors"), answers)
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
        let (calls, errors, answer_ns) = counted(info, *process, name);
        services.push(Service {
            name: name.clone(),
            uid: *uid,
            pid: owner.map_or(0, |owner| owner.pid),
            program: owner.map_or_else(String::new, |owner| owner.program.clone()),
            calls,
            errors,
            answer_ns,
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
