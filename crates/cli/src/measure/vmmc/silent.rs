//! Clients that are connected and call nothing: what they cost a server, and a client that calls.
//!
//! Invariant: all of them are connected before the clock runs, and stay so until it has stopped.
//! They are the leader's, so the processor time of the follower is the server's alone.

use super::rpc::{NULL, handler};
use super::{Attached, TaskError, name};
use crate::limits::{IDLE_SETTLE, PARTNER_WAIT, SILENT_WATCH};
use crate::measure::ping::time_calls;
use crate::measure::side::Side;
use crate::measure::stats::Sample;
use crate::measure::task::{Role, Task, Watched};
use std::time::Duration;
use vmmc_host::Nanos;
use vmmc_rpc::{Client, Server};

/// A server with so many silent clients.
pub(super) fn measure(
    attached: &Attached,
    task: &Task,
    side: &Side,
    (clients, watched): (u64, Watched),
) -> Result<Option<Sample>, TaskError> {
    let service = format!("{}-rpc", name(task.number, Role::Follow));
    match task.role {
        Role::Lead => call(attached, &service, task.budget, side, (clients, watched)).map(Some),
        Role::Follow => serve(attached, &service, side, watched).map(|()| None),
    }
}

fn serve(attached: &Attached, service: &str, side: &Side, watched: Watched) -> Result<(), TaskError> {
    let handler = handler(&attached.session, 0)?;
    let _server = Server::new(&attached.session, service).serve(handler).map_err(TaskError::vmmc)?;
    side.receive::<bool>()?;
    if watched == Watched::Server {
        std::thread::sleep(IDLE_SETTLE);
        let before = Nanos::of_processors();
        std::thread::sleep(SILENT_WATCH);
        side.send(&Nanos::of_processors().since(before))?;
    }
    side.receive::<bool>().map(drop)
}

fn call(
    attached: &Attached,
    service: &str,
    budget: Duration,
    side: &Side,
    (clients, watched): (u64, Watched),
) -> Result<Sample, TaskError> {
    let client = || {
        let builder = Client::new(&attached.session, service).timeout(PARTNER_WAIT).frames(1, 64).bulk(1, 64);
        let builder = attached.other.iter().fold(builder, |builder, node| builder.node(node));
        builder.connect().map_err(TaskError::vmmc)
    };
    let busy = client()?;
    let silent = (0..clients).map(|_| client()).collect::<Result<Vec<Client>, TaskError>>()?;
    let sample = match watched {
        Watched::Caller => {
            side.send(&true)?;
            time_calls(budget, || busy.call(NULL, b"").map(drop).map_err(TaskError::vmmc))?
        }
        Watched::Server => {
            side.send(&true)?;
            let spent: Duration = side.receive()?;
            let ns_in_a_second = spent.div_duration_f64(SILENT_WATCH) * 1e9;
            Sample::Latency { p50_ns: ns_in_a_second, p99_ns: ns_in_a_second }
        }
    };
    drop(silent);
    side.send(&true)?;
    Ok(sample)
}
