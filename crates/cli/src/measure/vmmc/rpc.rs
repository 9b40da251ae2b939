//! Remote calls: from the call until its result is there.
//!
//! Invariant: whatever the way, the caller has the bytes of the result in memory of its own.
//! Source: [GMS §3], Table 1.

use super::{Attached, TaskError, flush_last, name};
use crate::limits::PARTNER_WAIT;
use crate::measure::ping::time_calls;
use crate::measure::stats::Sample;
use crate::measure::task::{CallBy, Role, Task};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use vmmc_rpc::{Call, Client, Request, Server, Then};

/// Word that the leader sets when it is done.
const DONE: u64 = 0;
/// Answers nothing.
const NULL: u16 = 1;
/// Answers so many bytes as the arguments say: as bulk, if the caller has a buffer.
const READ: u16 = 2;
/// Frames of a client, and buffers for bulk: two calls under way, and no more.
const COUNT: u64 = 4;

fn handler(size: u64) -> impl Fn(Call) + Send + Sync {
    let page = vec![7; size as usize];
    move |call: Call| match (call.method(), call.wants_bulk()) {
        (NULL, _) => call.answer(b""),
        (READ, true) => call.answer_with_bulk(b"", &page),
        (READ, false) => call.answer(&page),
        _ => call.no_method(),
    }
}

/// Calls of a service of the follower.
pub(super) fn measure(attached: &Attached, task: &Task, by: CallBy) -> Result<Option<Sample>, TaskError> {
    let service = format!("{}-rpc", name(task.number, Role::Follow));
    if task.role == Role::Follow {
        serve(attached, task, by, &service)?;
        return Ok(None);
    }
    let mut builder = Client::new(&attached.session, &service).timeout(PARTNER_WAIT);
    builder = builder.frames(COUNT, task.size.next_multiple_of(8).max(64)).bulk(COUNT, task.size.max(8));
    builder = attached.other.iter().fold(builder, |builder, node| builder.node(node));
    let client = builder.connect().map_err(TaskError::vmmc)?;
    let sample = time_calls(task.budget, || call(&client, by));
    let over = attached.import(task.number, Role::Follow)?;
    over.send(DONE, &1u64.to_le_bytes()).map_err(TaskError::vmmc)?;
    flush_last(&over);
    sample.map(Some)
}

fn serve(attached: &Attached, task: &Task, by: CallBy, service: &str) -> Result<(), TaskError> {
    let over = attached.export(task.number, Role::Follow, 64)?;
    let threads = usize::from(by == CallBy::Thread);
    let server = |name: &str| Server::new(&attached.session, name).threads(threads);
    let behind = format!("{service}-behind");
    let mut servers = Vec::new();
    if by == CallBy::PassedOn {
        servers.push(server(&behind).serve(handler(task.size)).map_err(TaskError::vmmc)?);
        let to = Client::new(&attached.session, &behind).connect().map_err(TaskError::vmmc)?;
        let pass = move |call: Call| {
            let (method, arguments) = (call.method(), call.arguments().to_vec());
            if let Err((call, error)) = call.pass_on(&to, method, &arguments) {
                call.fail(&error.to_string());
            }
        };
        servers.push(server(service).serve(pass).map_err(TaskError::vmmc)?);
    } else {
        servers.push(server(service).serve(handler(task.size)).map_err(TaskError::vmmc)?);
    }
    let deadline = attached.session.deadline(task.budget * 4 + PARTNER_WAIT);
    over.wait_word_by(DONE, |word| word != 0, deadline).map(drop).map_err(TaskError::vmmc)
}

fn call(client: &Client, by: CallBy) -> Result<(), TaskError> {
    match by {
        CallBy::Wait | CallBy::Thread => client.request(NULL).call().map(drop).map_err(TaskError::vmmc),
        CallBy::PassedOn | CallBy::Token => client.request(READ).wants_bulk().call().map(drop).map_err(TaskError::vmmc),
        CallBy::Frame => client.request(READ).call().map(drop).map_err(TaskError::vmmc),
        CallBy::Continued => continued(client, false),
        CallBy::Deferred => continued(client, true),
    }
}

/// Polls until a continuation has run, which says "not now" at first if that is wanted.
fn continued(client: &Client, deferred: bool) -> Result<(), TaskError> {
    let (done, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
    let (told, error, mut refuses) = (done.clone(), failed.clone(), deferred);
    let request: Request<'_> = client.request(READ).wants_bulk();
    let run = move |outcome: &mut Result<vmmc_rpc::Answer, vmmc_rpc::RpcError>| {
        if std::mem::take(&mut refuses) {
            return Then::NotNow;
        }
        if let Err(why) = outcome {
            *error.lock().expect("no panic while the lock is held") = Some(why.clone());
        }
        told.store(true, Ordering::Release);
        Then::Done
    };
    request.then(run).map_err(TaskError::vmmc)?;
    while !done.load(Ordering::Acquire) {
        client.poll();
        std::hint::spin_loop();
    }
    let failed = failed.lock().expect("no panic while the lock is held").take();
    failed.map_or(Ok(()), |error| Err(TaskError::vmmc(error)))
}
