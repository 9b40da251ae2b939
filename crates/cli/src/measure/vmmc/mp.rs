//! Messages by rank and tag: half a round trip, a stream, exchanges beside which members compute,
//! and collective calls of some members; supersteps beside them.
//!
//! Invariant: each half of a pair has half of the members, each with a session and a thread of its
//! own. Between measurements the first member tells the others how often the next call is made.

use super::{Attached, TaskError, name};
use crate::limits::{CALIBRATION_TRIPS, COMPUTED_BETWEEN_POLLS, MESSAGES_MAX, PARTNER_WAIT, SAMPLES_MAX, SAMPLES_MIN};
use crate::measure::ping::{Flow, Ping, follow_flow, follow_pings, lead_flow, lead_pings};
use crate::measure::side::Side;
use crate::measure::stats::Sample;
use crate::measure::task::{Beside, Collective, Measure, MpWay, Role, Task};
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_bsp::{Area, Bsp};
use vmmc_mp::{Memory, Messages, MpError, Op, Select};

/// Plays one half.
pub(super) fn measure(attached: &Attached, task: &Task, side: &Side, way: MpWay) -> Result<Option<Sample>, TaskError> {
    match way {
        MpWay::Pair { measure, into_memory } => pair(attached, task, side, (measure, into_memory)),
        MpWay::Exchange { beside } => exchange(attached, task, beside),
        MpWay::Collective { call, members } => collective(attached, task, call, members),
    }
}

/// Where the members are, as one of them sees it.
fn places(attached: &Attached, rank: u32, size: u32) -> Vec<Option<String>> {
    let half = size / 2;
    let is_ours = |other: u32| (other < half) == (rank < half);
    let place = |other: u32| if is_ours(other) { None } else { attached.other.clone() };
    (0..size).map(place).collect()
}

fn member(attached: &Attached, task: &Task, session: Session, rank: u32, size: u32) -> Result<Messages, TaskError> {
    let nodes = places(attached, rank, size);
    let builder = Messages::among_nodes(session, &name(task.number, Role::Lead), rank, &nodes);
    builder.timeout(PARTNER_WAIT).create().map_err(TaskError::vmmc)
}

/// Two members, and what they send.
struct Pair {
    messages: Messages,
    other: u32,
    message: Vec<u8>,
    /// Where long messages land, if not in memory of any kind.
    memory: Option<Memory>,
}

fn pair(
    attached: &Attached,
    task: &Task,
    side: &Side,
    (measure, into_memory): (Measure, bool),
) -> Result<Option<Sample>, TaskError> {
    let rank = u32::from(task.role == Role::Follow);
    let messages = member(attached, task, attached.session.clone(), rank, 2)?;
    let memory = into_memory.then(|| messages.memory(task.size)).transpose().map_err(TaskError::vmmc)?;
    let mut pair = Pair { messages, other: 1 - rank, message: vec![1; task.size as usize], memory };
    match (task.role, measure) {
        (Role::Lead, Measure::Latency) => lead_pings(&mut pair, side, task.budget).map(Some),
        (Role::Follow, Measure::Latency) => follow_pings(&mut pair, side).map(|()| None),
        (Role::Lead, Measure::Bandwidth) => lead_flow(&mut pair, side, task.size, task.budget).map(Some),
        (Role::Follow, Measure::Bandwidth) => follow_flow(&mut pair, side).map(|()| None),
    }
}

impl Pair {
    fn send_one(&self) -> Result<(), MpError> {
        let world = self.messages.world();
        match &self.memory {
            Some(memory) => world.send(self.other, 1, &memory.range(0..memory.len())?),
            None => world.send(self.other, 1, &self.message),
        }
    }

    fn receive_one(&mut self) -> Result<(), MpError> {
        let (world, select) = (self.messages.world(), Select::from(self.other).tag(1));
        match &self.memory {
            Some(memory) => world.receive(select, &memory.range(0..memory.len())?)?,
            None => world.receive(select, &mut self.message)?,
        };
        Ok(())
    }
}

impl Ping for Pair {
    #[inline]
    fn send(&mut self, _number: u64) -> Result<(), TaskError> {
        self.send_one().map_err(TaskError::vmmc)
    }

    #[inline]
    fn receive(&mut self, _number: u64) -> Result<(), TaskError> {
        self.receive_one().map_err(TaskError::vmmc)
    }
}

impl Flow for Pair {
    fn push(&mut self, count: u64) -> Result<(), TaskError> {
        (0..count).try_for_each(|_| self.send_one()).map_err(TaskError::vmmc)?;
        let done = self.messages.world().receive(Select::from(self.other).tag(2), &mut [0; 0]);
        done.map(drop).map_err(TaskError::vmmc)
    }

    fn pull(&mut self, count: u64) -> Result<(), TaskError> {
        (0..count).try_for_each(|_| self.receive_one()).map_err(TaskError::vmmc)?;
        self.messages.world().send(self.other, 2, b"").map_err(TaskError::vmmc)
    }
}

/// Two members send to each other at once, and meanwhile compute for as long as that takes by
/// itself: what each exchange takes longer than the computing.
fn exchange(attached: &Attached, task: &Task, beside: Beside) -> Result<Option<Sample>, TaskError> {
    let rank = u32::from(task.role == Role::Follow);
    let messages = member(attached, task, attached.session.clone(), rank, 2)?;
    let [out, into] = [1, 0].map(|byte| vec![byte; task.size as usize]);
    let mut exchange = Exchange { messages: &messages, other: 1 - rank, beside, out, into };
    let mut alone = Duration::ZERO;
    for _ in 0..2 {
        let begun = Instant::now();
        (0..CALIBRATION_TRIPS).try_for_each(|_| exchange.once(Duration::ZERO).map(drop))?;
        alone = begun.elapsed() / CALIBRATION_TRIPS as u32;
    }
    let mut told = (alone.as_nanos() as u64).to_le_bytes();
    messages.world().broadcast(0, &mut told).map_err(TaskError::vmmc)?;
    let alone = Duration::from_nanos(u64::from_le_bytes(told));
    let work = if beside == Beside::Nothing { Duration::ZERO } else { alone };
    let played = play(&messages, task, &mut || exchange.once(work))?;
    Ok(played.and_then(|mut played| Sample::latency(&mut played.times, 1.0)))
}

/// One of two members that send to each other at once.
struct Exchange<'m> {
    messages: &'m Messages,
    other: u32,
    beside: Beside,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Exchange<'_> {
    /// The time of one beyond that for which the member computes.
    #[inline(never)]
    fn once(&mut self, work: Duration) -> Result<Duration, TaskError> {
        self.try_once(work).map_err(TaskError::vmmc)
    }

    fn try_once(&mut self, work: Duration) -> Result<Duration, MpError> {
        let (world, begun) = (self.messages.world(), Instant::now());
        let receive = world.start_receive(Select::from(self.other).tag(1), std::mem::take(&mut self.into))?;
        let send = world.start_send(self.other, 1, std::mem::take(&mut self.out))?;
        let (mut now, mut polled) = (Instant::now(), Instant::now());
        let until = now + work;
        while now < until {
            if self.beside == Beside::Polled && now - polled >= COMPUTED_BETWEEN_POLLS {
                self.messages.poll()?;
                polled = now;
            }
            now = Instant::now();
        }
        self.into = receive.wait()?.1;
        self.out = send.wait()?.1;
        Ok(begun.elapsed().saturating_sub(work))
    }
}

fn collective(attached: &Attached, task: &Task, call: Collective, size: u32) -> Result<Option<Sample>, TaskError> {
    let half = size / 2;
    let ranks = if task.role == Role::Lead { 0..half } else { half..size };
    let member = |session: Session, rank| {
        let messages = member(attached, task, session.clone(), rank, size)?;
        let mut calls = Calls::new(attached, task, (session, call), (rank, size))?;
        let played = play(&messages, task, &mut || {
            let begun = Instant::now();
            calls.once(&messages).map(|()| begun.elapsed())
        })?;
        calls.end()?;
        Ok(played.and_then(|mut played| match call {
            Collective::Relation => {
                let bytes = played.times.len() as f64 * task.size as f64;
                Some(Sample::Bandwidth { bytes_per_s: bytes / played.taken.as_secs_f64().max(1e-9) })
            }
            _ => Sample::latency(&mut played.times, 1.0),
        }))
    };
    std::thread::scope(|scope| {
        let (first, member) = (ranks.start, &member);
        let others: Vec<_> = ranks.skip(1).map(|rank| scope.spawn(move || member(attached.another()?, rank))).collect();
        let sample = member(attached.session.clone(), first);
        for other in others {
            other.join().map_err(|_| TaskError::Protocol("a member panicked".into()))??;
        }
        sample
    })
}

/// What a member calls, and with what.
struct Calls {
    call: Collective,
    values: Vec<u64>,
    bytes: Vec<u8>,
    /// The member of a program in supersteps, and where the others put.
    bsp: Option<(Bsp, Area<u8>)>,
}

impl Calls {
    fn new(
        attached: &Attached,
        task: &Task,
        (session, call): (Session, Collective),
        (rank, size): (u32, u32),
    ) -> Result<Calls, TaskError> {
        let (values, mut bytes) = (vec![1u64; (task.size as usize / 8).max(1)], vec![1u8; task.size as usize]);
        let bsp = matches!(call, Collective::Superstep | Collective::Relation).then(|| {
            let nodes = places(attached, rank, size);
            let mut bsp =
                Bsp::among(session, &name(task.number, Role::Lead), rank, &nodes).timeout(PARTNER_WAIT).create()?;
            bytes.truncate(bytes.len() / (size as usize - 1));
            let area = bsp.area(vec![0u8; bytes.len() * size as usize]);
            bsp.push_reg(area)?;
            bsp.sync()?;
            Ok::<_, vmmc_bsp::BspError>((bsp, area))
        });
        Ok(Calls { call, values, bytes, bsp: bsp.transpose().map_err(TaskError::vmmc)? })
    }

    #[inline]
    fn once(&mut self, messages: &Messages) -> Result<(), TaskError> {
        let world = messages.world();
        let called = match self.call {
            Collective::Barrier => world.barrier(),
            Collective::Allreduce => world.allreduce(&mut self.values, Op::Max),
            Collective::Broadcast => world.broadcast(0, &mut self.bytes),
            Collective::Superstep | Collective::Relation => return self.superstep(),
        };
        called.map_err(TaskError::vmmc)
    }

    fn superstep(&mut self) -> Result<(), TaskError> {
        let (bsp, area) = self.bsp.as_mut().expect("it was made for these calls");
        let (pid, part) = (bsp.pid(), &self.bytes);
        if self.call == Collective::Relation {
            let at = pid as usize * part.len();
            let mut others = (0..bsp.nprocs()).filter(|to| *to != pid);
            others.try_for_each(|to| bsp.put(to, part, *area, at)).map_err(TaskError::vmmc)?;
        }
        bsp.sync().map_err(TaskError::vmmc)
    }

    fn end(self) -> Result<(), TaskError> {
        self.bsp.map_or(Ok(()), |(bsp, _)| bsp.end()).map_err(TaskError::vmmc)
    }
}

/// What the first member has measured.
struct Played {
    /// Of each call, ns.
    times: Vec<f64>,
    /// Of all of them together.
    taken: Duration,
}

/// One member: makes calls as often as the first one says, until it says no more. A call gives the
/// time that counts of it.
fn play(
    messages: &Messages,
    task: &Task,
    once: &mut dyn FnMut() -> Result<Duration, TaskError>,
) -> Result<Option<Played>, TaskError> {
    let world = messages.world();
    let tell = |count: u64| {
        let mut told = count.to_le_bytes();
        world.broadcast(0, &mut told).map(|()| u64::from_le_bytes(told)).map_err(TaskError::vmmc)
    };
    if messages.rank() > 0 {
        loop {
            match tell(0)? {
                0 => return Ok(None),
                count => (0..count).try_for_each(|_| once().map(drop))?,
            }
        }
    }
    let mut times = Vec::new();
    let mut run = |count: u64| -> Result<Duration, TaskError> {
        tell(count)?;
        times.clear();
        let start = Instant::now();
        for _ in 0..count {
            times.push(once()?.as_nanos() as f64);
        }
        Ok(start.elapsed())
    };
    run(CALIBRATION_TRIPS)?;
    let each = run(CALIBRATION_TRIPS)? / CALIBRATION_TRIPS as u32;
    let fit = (task.budget.as_nanos() / each.as_nanos().max(1)) as u64;
    let count = fit.clamp(SAMPLES_MIN, SAMPLES_MAX.min(MESSAGES_MAX));
    let taken = run(count)?;
    tell(0)?;
    Ok(Some(Played { times, taken }))
}
