//! Remote calls: from the call until its result is there.
//!
//! Invariant: whatever the way, the caller has the bytes of the result in memory of its own.
//! Source: [GMS §3], Table 1.

use super::{Attached, TaskError, flush_last, name};
use crate::limits::{CALL_ASLEEP_US, NULL_CALLS, PARTNER_WAIT, SAMPLES_MAX, SAMPLES_MIN};
use crate::measure::ping::time_calls;
use crate::measure::stats::Sample;
use crate::measure::task::{CallBy, CallWay, Measure, ResultBy, Role, Task};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_host::limits::POLL_MAX_NS;
use vmmc_rpc::{Answer, Call, Client, Request, RpcError, Server, Then};

/// Word that the leader sets when it is done.
const DONE: u64 = 0;
/// Answers nothing.
pub(super) const NULL: u16 = 1;
/// Keeps its caller waiting until that sleeps, and answers how long it did, ns.
const LATE: u16 = 3;
/// Answers so many bytes as the arguments say: as bulk, if the caller has a buffer.
const READ: u16 = 2;
/// Frames of a client, and buffers for bulk: two calls under way, and no more.
const COUNT: u64 = 4;

pub(super) fn handler(session: &Session, size: u64) -> Result<impl Fn(Call) + Send + Sync + use<>, TaskError> {
    let page = vec![7; size as usize];
    // Registered, as what plain sends are of, and never changed.
    let bulk = session.buffer(size.max(8)).map_err(TaskError::vmmc)?;
    bulk.write(0, &page).map_err(TaskError::vmmc)?;
    Ok(move |call: Call| match (call.method(), call.wants_bulk()) {
        (NULL, _) => call.answer(b""),
        (LATE, _) => call.answer(&until_others_sleep().to_le_bytes()),
        (READ, true) => call.answer_in_place(b"", bulk.range(0..size)),
        (READ, false) => call.answer(&page),
        _ => call.no_method(),
    })
}

/// Calls of a service of the follower.
pub(super) fn measure(attached: &Attached, task: &Task, way: CallWay) -> Result<Option<Sample>, TaskError> {
    let service = format!("{}-rpc", name(task.number, Role::Follow));
    if task.role == Role::Follow {
        serve(attached, task, way, &service)?;
        return Ok(None);
    }
    let mut builder = Client::new(&attached.session, &service).timeout(PARTNER_WAIT);
    builder = builder.frames(COUNT, task.size.next_multiple_of(8).max(64)).bulk(COUNT, task.size.max(8));
    builder = attached.other.iter().fold(builder, |builder, node| builder.node(node));
    let client = builder.connect().map_err(TaskError::vmmc)?;
    // Daemons need the processor too.
    let shares = attached.other.is_some() && attached.embedded.is_none();
    let sample = match way.measure {
        Measure::Latency if way.by == CallBy::Asleep => asleep(&client, task.budget),
        Measure::Latency => time_calls(task.budget, || call(&client, way, shares)),
        Measure::Bandwidth => stream(&client, way, task, shares),
    };
    let over = attached.import(task.number, Role::Follow)?;
    over.send(DONE, &1u64.to_le_bytes()).map_err(TaskError::vmmc)?;
    flush_last(&over);
    sample.map(Some)
}

fn serve(attached: &Attached, task: &Task, way: CallWay, service: &str) -> Result<(), TaskError> {
    let over = attached.export(task.number, Role::Follow, 64)?;
    let server = |session: &Session, name: &str| Server::new(session, name).threads(usize::from(way.thread));
    let behind = format!("{service}-behind");
    let (session, mut servers) = (attached.another()?, Vec::new());
    if way.three {
        let other = attached.another()?;
        let delegate = server(&other, &behind).serve(handler(&other, task.size)?);
        servers.push(delegate.map_err(TaskError::vmmc)?);
        let to = Client::new(&session, &behind).connect().map_err(TaskError::vmmc)?;
        let pass = move |call: Call| {
            let (method, arguments) = (call.method(), call.arguments().to_vec());
            if let Err((call, error)) = call.pass_on(&to, method, &arguments) {
                call.fail(&error.to_string());
            }
        };
        servers.push(server(&session, service).serve(pass).map_err(TaskError::vmmc)?);
    } else {
        let handler = handler(&session, task.size)?;
        servers.push(server(&session, service).serve(handler).map_err(TaskError::vmmc)?);
    }
    let deadline = attached.session.deadline(task.budget * 4 + PARTNER_WAIT);
    over.wait_word_by(DONE, |word| word != 0, deadline).map(drop).map_err(TaskError::vmmc)
}

/// Lets a thread that waits meanwhile fall asleep, and sleep for a while; how long that took, ns.
fn until_others_sleep() -> u64 {
    let (start, long) = (Instant::now(), Duration::from_micros(CALL_ASLEEP_US) + Duration::from_nanos(POLL_MAX_NS));
    while start.elapsed() < long {
        std::hint::spin_loop();
    }
    start.elapsed().as_nanos() as u64
}

/// Calls that wake the server, and whose answers wake the caller.
fn asleep(client: &Client, budget: Duration) -> Result<Sample, TaskError> {
    let (end, mut times) = (Instant::now() + budget, Vec::new());
    while (Instant::now() < end || (times.len() as u64) < SAMPLES_MIN) && (times.len() as u64) < SAMPLES_MAX {
        until_others_sleep();
        let start = Instant::now();
        let answer = client.request(LATE).call().map_err(TaskError::vmmc)?;
        let took = start.elapsed().as_nanos() as u64;
        let late = answer.result.as_slice().try_into().map(u64::from_le_bytes);
        let late = late.map_err(|_| TaskError::Protocol("a late answer says how late it is".into()))?;
        times.push(took.saturating_sub(late) as f64);
    }
    Ok(Sample::latency(&mut times, 1.0).expect("at least SAMPLES_MIN samples were taken"))
}

fn request(client: &Client, result: ResultBy) -> Request<'_> {
    match result {
        ResultBy::Nothing => client.request(NULL),
        ResultBy::Token => client.request(READ).wants_bulk(),
        ResultBy::Frame => client.request(READ).in_frame(),
        ResultBy::Copied => client.request(READ),
    }
}

/// One call, and then its answer.
fn call(client: &Client, way: CallWay, shares: bool) -> Result<(), TaskError> {
    if way.by == CallBy::Wait {
        return request(client, way.result).call().map(drop).map_err(TaskError::vmmc);
    }
    let progress = Progress::default();
    start(client, way, &progress)?;
    while progress.done() == 0 {
        progress.look(client, shares);
    }
    progress.failed()
}

/// Calls whose answers continuations take.
#[derive(Clone, Default)]
struct Progress(Arc<(AtomicU64, Mutex<Option<RpcError>>)>);

impl Progress {
    fn done(&self) -> u64 {
        self.0.0.load(Ordering::Acquire)
    }

    /// Takes what has come. If nothing has, others have the processor where they share it.
    fn look(&self, client: &Client, shares: bool) {
        let before = self.done();
        client.poll();
        match self.done() == before {
            true if shares => std::thread::yield_now(),
            true => std::hint::spin_loop(),
            false => {}
        }
    }

    fn failed(&self) -> Result<(), TaskError> {
        let failed = self.0.1.lock().expect("no panic while the lock is held").take();
        failed.map_or(Ok(()), |error| Err(TaskError::vmmc(error)))
    }
}

/// A call with a continuation, which says "not now" at first if that is wanted.
fn start(client: &Client, way: CallWay, progress: &Progress) -> Result<(), TaskError> {
    let (told, mut refuses) = (progress.clone(), way.by == CallBy::Deferred);
    let run = move |outcome: &mut Result<Answer, RpcError>| {
        if std::mem::take(&mut refuses) {
            return Then::NotNow;
        }
        if let Err(why) = outcome {
            *told.0.1.lock().expect("no panic while the lock is held") = Some(why.clone());
        }
        told.0.0.fetch_add(1, Ordering::Release);
        Then::Done
    };
    request(client, way.result).then(run).map_err(TaskError::vmmc)
}

/// Bytes of results a second, or the time for each of null calls: one call after the other by those
/// that wait, else as many under way as there are places for results.
fn stream(client: &Client, way: CallWay, task: &Task, shares: bool) -> Result<Sample, TaskError> {
    let null = way.result == ResultBy::Nothing;
    let under_way = if null { NULL_CALLS } else { COUNT };
    let (progress, begun) = (Progress::default(), Instant::now());
    let mut started = 0;
    while begun.elapsed() < task.budget {
        if way.by == CallBy::Wait {
            call(client, way, shares)?;
            started += 1;
            continue;
        }
        while started - progress.done() < under_way {
            start(client, way, &progress)?;
            started += 1;
        }
        progress.look(client, shares);
        progress.failed()?;
    }
    while way.by != CallBy::Wait && progress.done() < started {
        progress.look(client, shares);
        progress.failed()?;
    }
    if null {
        let each_ns = begun.elapsed().as_nanos() as f64 / started as f64;
        return Ok(Sample::Latency { p50_ns: each_ns, p99_ns: f64::NAN });
    }
    Ok(Sample::Bandwidth { bytes_per_s: (started * task.size) as f64 / begun.elapsed().as_secs_f64() })
}
