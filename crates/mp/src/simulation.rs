//! Jobs on a virtual clock, from a seed: members that send and receive in every way, as several
//! threads each, and in every other run make collective calls of several groups besides; channels
//! that take their time, each in order, with few places; members that are slow, that are killed in
//! the middle of a call, that leave, and that end all.
//!
//! ```text
//!  member ── calls of the library ──▶ State ──▶ network ──▶ State of another one
//!     └────────── what it is told ──────▶ model ◀── what goes and comes
//! ```
//!
//! Checked after each step: a message goes once, whole, and in its turn. It is received once, by
//! the receive that two lists would choose, whole; nothing else ends a receive or a send but what
//! has happened to its members or was asked for. Credit, questions, buffers and frames are all
//! accounted for, within their bounds. Nothing is written to memory whose receive is over, or
//! beside it. At the end everything between members that are there is received, who waits for one
//! that has gone has learned of it, and nothing is left in any table.
//!
//! A collective call gives what all members together have put in, computed from that alone; it
//! takes no message of another call or of a program, and leaves none behind; it fails for a cause
//! alone, and within a second of the death of a member of its group. Some members make a call that
//! the others do not: that ends by its deadline.
//!
//! Invariant: one thread, no clock, no system call: the same seed is the same run. Here `State`,
//! the collective calls and the parts of `Engine` that do not wait are real; the sends and receives
//! that wait are made of these once more.

mod call;
mod lanes;
mod member;
mod model;
mod network;
mod plan;
mod port;
#[cfg(test)]
mod tests;

use crate::error::Gone;
use crate::limits::UNEXPECTED_BYTES_MAX;
use crate::matching::Pattern;
use member::Member;
use network::{MS, Net, US};
use plan::Plan;

/// Members of a job, at least.
const MEMBERS_MIN: u64 = 2;
/// And at most this many more.
const MEMBERS_MORE: u64 = 5;
/// With collective calls: some algorithms are for eight and more.
const MEMBERS_COLLECTIVE: u64 = 8;
/// Steps of a run before it is wound up.
const STEPS: u64 = 1_500;
/// The same, of one with collective calls, which do more in each.
const STEPS_COLLECTIVE: u64 = 900;
/// How long a round at the end takes.
const ROUND: u64 = 5 * MS;
/// Rounds in which nothing is under way, after which nothing more is waited for: a second, within
/// which news of a death have come.
const CALM: u64 = 200;
/// Rounds after which what has not ended never will.
const ROUNDS: u64 = 4_000;

/// Steps between two looks at memory that nothing may be written to.
const PLACES_EACH: u64 = 50;

/// What a simulation does wrong on purpose, so that it is seen that its checkers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A message overtakes another one of its channel.
    Overtaking,
    /// A message is lost.
    Loss,
    /// A message comes twice.
    Twice,
    /// A byte of a payload is another one.
    Damage,
    /// Memory is let into after its buffer is gone.
    LetIn,
    /// Nobody hears of a member's death.
    Silence,
    /// A collective call does not send what it has to send.
    Unsent,
    /// It sends to another member.
    Misled,
    /// It sends as if it were a program's message.
    Mixed,
    /// It takes a message of whomever, be it of another call.
    Taken,
    /// It does not wait for what it is to receive.
    Early,
    /// It sends a message too many.
    Extra,
}

impl Planted {
    /// Whether it is of collective calls alone.
    fn is_collective(self) -> bool {
        use Planted::{Early, Extra, Misled, Mixed, Taken, Unsent};
        matches!(self, Unsent | Misled | Mixed | Taken | Early | Extra)
    }
}

/// What happened in a run, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Steps.
    pub steps: u64,
    /// Messages begun.
    pub messages: u64,
    /// Messages that a receive has got.
    pub matched: u64,
    /// Messages sent at once.
    pub eager: u64,
    /// Messages that asked for their place.
    pub asked: u64,
    /// Of those, short ones, for want of credit.
    pub asked_short: u64,
    /// Messages that came before a receive for them.
    pub unexpected: u64,
    /// Members killed.
    pub kills: u64,
    /// Members that left.
    pub leaves: u64,
    /// Members that ended all.
    pub aborts: u64,
    /// Collective calls of members that went well.
    pub collectives: u64,
    /// And those that failed.
    pub failed: u64,
    /// Collective calls that a member made wrongly.
    pub odd: u64,
    /// Groups that collective calls made.
    pub groups: u64,
}

impl Totals {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Totals) {
        let mine: [&mut u64; 15] = [
            &mut self.runs,
            &mut self.steps,
            &mut self.messages,
            &mut self.matched,
            &mut self.eager,
            &mut self.asked,
            &mut self.asked_short,
            &mut self.unexpected,
            &mut self.kills,
            &mut self.leaves,
            &mut self.aborts,
            &mut self.collectives,
            &mut self.failed,
            &mut self.odd,
            &mut self.groups,
        ];
        mine.into_iter().zip(other.counts()).for_each(|(mine, (_, other))| *mine += other);
    }

    /// Each with its name.
    pub fn counts(&self) -> [(&'static str, u64); 15] {
        [
            ("runs", self.runs),
            ("steps", self.steps),
            ("messages begun", self.messages),
            ("messages received", self.matched),
            ("messages sent at once", self.eager),
            ("messages that asked", self.asked),
            ("short messages that asked", self.asked_short),
            ("messages before a receive", self.unexpected),
            ("members killed", self.kills),
            ("members that left", self.leaves),
            ("members that ended all", self.aborts),
            ("collective calls", self.collectives),
            ("collective calls that failed", self.failed),
            ("collective calls made wrongly", self.odd),
            ("groups made", self.groups),
        ]
    }
}

/// Draws.
pub(crate) struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % bound.max(1)
    }
}

/// What kind of a run it is.
struct Profile {
    size: u32,
    bytes_max: u64,
    /// Of a hundred things that a program does, sends that it begins.
    sends: u64,
    /// And receives: few of them where credit is to be used up.
    receives: u64,
    /// Of a thousand steps, those in which a member goes.
    goes: u64,
}

/// One run; why a property did not hold, if one did not.
///
/// # Errors
/// What did not hold, and when.
pub fn run(seed: u64) -> Result<Totals, String> {
    run_with(seed, None)
}

/// The same, with something that is wrong on purpose.
///
/// # Errors
/// What did not hold, and when.
pub fn run_with(seed: u64, planted: Option<Planted>) -> Result<Totals, String> {
    let collective = seed % 2 == 1;
    run_of(seed, planted, collective, if collective { STEPS_COLLECTIVE } else { STEPS })
}

/// The same, with collective calls or without, and of so many steps.
fn run_of(seed: u64, planted: Option<Planted>, collective: bool, steps: u64) -> Result<Totals, String> {
    let mut run = Run::new(seed, planted, collective);
    for step in 0..steps {
        run.step().map_err(|why| format!("step {step}: {why}"))?;
        run.totals.steps += 1;
    }
    run.wind_up().map_err(|why| format!("at the end: {why}"))?;
    Ok(run.totals())
}

struct Run {
    net: Net,
    profile: Profile,
    /// None: it has gone.
    members: Vec<Option<Member>>,
    /// Members that do nothing until then.
    slow: Vec<u64>,
    totals: Totals,
}

impl Run {
    fn new(seed: u64, planted: Option<Planted>, collective: bool) -> Run {
        let mut rng = Rng::new(seed);
        let more = if collective { MEMBERS_COLLECTIVE } else { MEMBERS_MORE };
        let size = (MEMBERS_MIN + rng.below(more)) as u32;
        let bytes_max = [64, 4 << 10, 20 << 10, 300 << 10][rng.below(4) as usize];
        let (sends, receives) = [(5, 20), (12, 20), (19, 20), (38, 1)][rng.below(4) as usize];
        // Every other run has no deaths: there everything is received.
        let goes = [0, 2, 0, 5][rng.below(4) as usize];
        // With collective calls fewer, so that there are some that go well.
        let (goes, threads) = if collective { (goes / 2, 1 + rng.below(2)) } else { (goes, 0) };
        let plan = if collective { Plan::new(Rng::new(!seed), size) } else { Plan::none() };
        let net = Net::new(size, rng, plan, planted);
        let members = (0..size).map(|rank| Some(Member::new(&net, rank, size, threads as usize))).collect();
        let profile = Profile { size, bytes_max, sends, receives, goes };
        Run { net, profile, members, slow: vec![0; size as usize], totals: Totals { runs: 1, ..Totals::default() } }
    }

    fn below(&self, bound: u64) -> u64 {
        self.net.world().rng.below(bound)
    }

    fn step(&mut self) -> Result<(), String> {
        let ns = match self.below(100) {
            0 => self.below(60 * MS),
            1..10 => self.below(2 * MS),
            _ => self.below(40 * US),
        };
        self.net.world().pass(ns);
        let rank = self.below(self.profile.size.into()) as usize;
        if self.below(300) == 0 {
            self.slow[rank] = self.below(200 * MS) + self.net.world().now;
        }
        if self.slow[rank] > self.net.world().now {
            return self.check();
        }
        if self.below(1_000) < self.profile.goes {
            self.goes(rank);
        }
        if let Some(member) = &mut self.members[rank] {
            member.acts(&self.profile)?;
            member.waits()?;
        }
        self.bury();
        self.check()
    }

    /// A member goes: now, or in the middle of what it does next.
    fn goes(&mut self, rank: usize) {
        let Some(member) = &mut self.members[rank] else { return };
        let draw = self.net.world().rng.below(10);
        match draw {
            0 => {
                self.totals.aborts += 1;
                member.aborts();
            }
            1..3 => {
                self.totals.leaves += 1;
                member.leaves(Gone::Left);
            }
            _ => {
                self.totals.kills += 1;
                let mut world = self.net.world();
                let fuse = 1 + world.rng.below(40);
                world.nodes[rank].fuse = Some(fuse);
            }
        }
    }

    /// Members that have gone, and those that were told to end.
    fn bury(&mut self) {
        for place in &mut self.members {
            let Some(member) = place else { continue };
            if !member.is_over() && member.engine.check().is_err() {
                member.leaves(Gone::Ended);
            }
            if member.is_over() {
                let counts = member.engine.state.counts;
                self.totals.eager += counts.eager;
                self.totals.asked += counts.asked;
                self.totals.asked_short += counts.asked_short;
                self.totals.unexpected += counts.unexpected;
                *place = None;
            }
        }
    }

    /// What is true after every step.
    fn check(&mut self) -> Result<(), String> {
        let size = self.members.len();
        for rank in 0..size {
            let Some(member) = &mut self.members[rank] else { continue };
            let (used, buffers) = (self.net.world().in_use(rank as u32).0, member.engine.state.buffers());
            if used != buffers {
                return Err(format!("{rank}: {used} buffers are let into, and its receives have {buffers}"));
            }
            if member.engine.state.counts.misbehaved > 0 {
                return Err(format!("{rank} has cut off a member that does nothing wrong"));
            }
            if self.totals.steps % PLACES_EACH == 0 {
                member.check_places()?;
            }
            (0..size).try_for_each(|other| self.check_pair(rank, other))?;
        }
        Ok(())
    }

    /// What one member counts of what it sends to another, and that of what comes.
    fn check_pair(&mut self, from: usize, to: usize) -> Result<(), String> {
        let (Some(sender), Some(receiver)) = (&self.members[from], &self.members[to]) else { return Ok(()) };
        let (from, to) = (from as u32, to as u32);
        if sender.has_lost(to) || receiver.has_lost(from) {
            return Ok(());
        }
        let (spends, takes) = (sender.engine.state.ledger(to), receiver.engine.state.ledger(from));
        let world = self.net.world();
        let (held, asked) = world.model.held(to, from);
        let wrong = |what: &str, counted: u64, is: u64| {
            if counted == is { Ok(()) } else { Err(format!("{from} to {to}: {what}: {counted} are counted, of {is}")) }
        };
        wrong("bytes that wait", takes.held, held)?;
        wrong("questions that wait", takes.asked as u64, asked as u64)?;
        let under_way = world.on_its_way(from, to);
        wrong("bytes that went at once", spends.spent, takes.received + takes.held + under_way)?;
        let bounds = spends.taken <= takes.told && takes.told <= takes.received;
        if !bounds || spends.spent - spends.taken > UNEXPECTED_BYTES_MAX {
            return Err(format!("{from} to {to}: more is sent at once than there is credit for"));
        }
        drop(world);
        let sender = self.members[from as usize].as_mut().expect("it was just seen");
        wrong("questions without an answer", spends.asks as u64, sender.engine.state.unanswered(to) as u64)
    }

    /// Nothing new begins; what is under way comes to its end.
    fn wind_up(&mut self) -> Result<(), String> {
        let (mut calm, all) = (0, Pattern { context: 0, source: None, tag: 0, mask: 0 });
        (0..self.members.len()).for_each(|rank| self.net.world().nodes[rank].fuse = None);
        let now = self.net.world().now;
        (self.net.world().plan.closed, self.net.world().plan.closed_at) = (true, now);
        for round in 0.. {
            self.net.world().pass(ROUND);
            let mut over = true;
            let through = self.members.iter().flatten().all(Member::is_through);
            for member in self.members.iter_mut().flatten() {
                over &= member.winds_up(&all, self.profile.bytes_max.max(120), through)?;
            }
            self.bury();
            self.check()?;
            self.totals.steps += 1;
            // Long enough for what is said of those that have gone.
            calm = if self.net.world().is_quiet() { calm + 1 } else { 0 };
            if calm > 0 && calm % CALM == 0 {
                self.members.iter_mut().flatten().try_for_each(Member::takes_all_back)?;
            }
            if over && calm > 0 {
                break;
            }
            if round >= ROUNDS {
                let left: Vec<String> = self.members.iter().flatten().map(Member::left).collect();
                return Err(format!("something does not end, calm for {calm} rounds: {}", left.join(" | ")));
            }
        }
        self.is_empty()
    }

    /// Nothing is left in any table.
    fn is_empty(&mut self) -> Result<(), String> {
        for rank in 0..self.members.len() {
            let Some(member) = &mut self.members[rank] else { continue };
            member.check_places()?;
            let state = &mut member.engine.state;
            let (sends, receives) = (state.sends.numbers().len(), state.receives.numbers().len());
            let (used, frames) = self.net.world().in_use(rank as u32);
            let says: usize = (0..self.profile.size).map(|other| state.ledger(other).says).sum();
            let left = [sends, receives, state.matcher.waiting(), used, frames as usize, says];
            if left != [0; 6] {
                return Err(format!(
                    "{rank}: sends, receives, messages, buffers, frames and answers are left: {left:?}"
                ));
            }
        }
        Ok(())
    }

    fn totals(mut self) -> Totals {
        for member in self.members.iter_mut().flatten() {
            member.leaves(Gone::Left);
        }
        self.bury();
        let world = self.net.world();
        let plan = &world.plan;
        Totals {
            messages: world.model.messages(),
            matched: world.model.matched,
            collectives: plan.made,
            failed: plan.failed,
            odd: plan.calls.iter().filter(|call| call.odd.is_some()).count() as u64,
            groups: plan.groups.iter().filter(|group| group.by.is_some() && group.number.is_some()).count() as u64,
            ..self.totals
        }
    }
}
