//! Threads of a simulated member that make the collective calls of the job's list.
//!
//! Invariant: a call that ends well has given what all members together have put in, and each that
//! it needs has begun it. One that fails has a cause: a member of its group has gone, or makes
//! another call than the others.

use super::Planted;
use super::call::{Call, bytes_of};
use super::member::{Checked, Member};
use super::model::{Stage, Turn};
use super::network::{MS, Own};
use super::plan::{Made, Planned, What};
use super::port::{Given, Granted, Running, Step, Wish};
use crate::collective::To;
use crate::error::{Gone, MpError};
use crate::matching::Envelope;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How long a send or a receive of a call waits, where what it waits for may never come, and nobody
/// has failed.
const PATIENCE: u64 = 3_000 * MS;
/// How long a call may wait after a member of its group has been killed.
const NEWS: u64 = 1_000 * MS;

/// What a member knows of collective calls.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// Groups of the list that this member is in by now.
    entered: BTreeSet<usize>,
    /// Groups in which a call has failed: it makes no more calls of them.
    broken: BTreeSet<usize>,
}

/// A thread, which makes the calls of some groups.
#[derive(Default)]
struct Lane {
    /// The call of the list that is under way, or the next one.
    at: usize,
    running: Option<Running>,
    /// What kind of a call that is.
    kind: u64,
    /// Since when it wants what it wants now.
    since: u64,
}

impl Lanes {
    pub(super) fn new(threads: usize) -> Lanes {
        Lanes { lanes: (0..threads).map(|_| Lane::default()).collect(), ..Lanes::default() }
    }

    pub(super) fn are_none(&self) -> bool {
        self.lanes.is_empty()
    }
}

impl Member {
    /// Has the groups that are there from the beginning.
    pub(super) fn has_groups(&mut self) {
        let first: Vec<(usize, u32, Arc<[u32]>)> = {
            let world = self.net.world();
            let groups = world.plan.groups.iter().enumerate();
            groups.filter_map(|(at, group)| Some((at, group.number?, group.members.clone()))).collect()
        };
        // Rank 0 has given them, before this began.
        let last = first.iter().map(|(_, number, _)| *number).max().unwrap_or_default();
        for _ in 0..last {
            self.engine.state.new_number();
        }
        for (at, number, members) in first {
            if members.contains(&self.rank) {
                self.enters(at, number, members);
            }
        }
    }

    fn enters(&mut self, group: usize, number: u32, members: Arc<[u32]>) {
        self.engine.state.enter(number, &members);
        self.groups.push(members);
        self.lanes.entered.insert(group);
    }

    /// A group that this member is in: its number and members.
    pub(super) fn some_group(&self) -> Option<(u32, Arc<[u32]>)> {
        let at = self.below(self.lanes.entered.len() as u64) as usize;
        let group = self.lanes.entered.iter().nth(at)?;
        let world = self.net.world();
        let group = &world.plan.groups[*group];
        Some((group.number?, group.members.clone()))
    }

    /// Whether all calls of the list have been made, as far as this member makes them.
    pub(super) fn is_through(&self) -> bool {
        let calls = self.net.world().plan.calls.len();
        self.lanes.lanes.iter().all(|lane| lane.running.is_none() && lane.at >= calls)
    }

    /// Where its threads are.
    pub(super) fn shows_lanes(&self) -> String {
        let world = self.net.world();
        let lane = |lane: &Lane| {
            let call = world.plan.calls.get(lane.at);
            let group = call.map(|call| (call.group, world.plan.groups[call.group].by));
            format!(
                "call {} {:?} {group:?}{}",
                lane.at,
                call.map(|call| call.made),
                if lane.running.is_some() { " under way" } else { "" }
            )
        };
        let lanes: Vec<String> = self.lanes.lanes.iter().map(lane).collect();
        format!("{} broken {:?} entered {:?}", lanes.join(", "), self.lanes.broken, self.lanes.entered)
    }

    /// Threads without a call begin the next one.
    pub(super) fn begins_collective(&mut self) -> Checked {
        for lane in 0..self.lanes.lanes.len() {
            if self.lanes.lanes[lane].running.is_some() || self.engine.check().is_err() || self.is_over() {
                continue;
            }
            let Some((group, made)) = self.next_call(lane) else { continue };
            let call = self.lanes.lanes[lane].at;
            let (number, members) = {
                let mut world = self.net.world();
                world.plan.calls[call].entered.insert(self.rank);
                let group = &world.plan.groups[group];
                (group.number.expect("this member is in it"), group.members.clone())
            };
            let makes = matches!(made.what, What::Duplicate | What::Split) && members[0] == self.rank;
            let new = if makes { self.engine.state.new_number() } else { None };
            let running = Running::new(number, members, self.rank, call, made, new);
            (self.lanes.lanes[lane].running, self.lanes.lanes[lane].kind) = (Some(running), made.what.kind() as u64);
            self.goes_on(lane, None)?;
        }
        self.learn()
    }

    /// The next call of a thread: its group, and what this member makes of it.
    fn next_call(&mut self, lane: usize) -> Option<(usize, Made)> {
        if self.lanes.lanes[lane].at >= self.net.world().plan.calls.len() {
            self.net.world().plan.extend();
        }
        loop {
            let at = self.lanes.lanes[lane].at;
            let world = self.net.world();
            let Planned { group, made, odd, .. } = world.plan.calls.get(at)?;
            let (group, made, odd) = (*group, *made, *odd);
            let is_member = world.plan.groups[group].members.contains(&self.rank);
            drop(world);
            let is_own = is_member && group % self.lanes.lanes.len() == lane && !self.is_broken(group);
            let made = match odd {
                Some((member, other)) if member == self.rank => other,
                _ => Some(made),
            };
            if let Some(made) = made.filter(|_| is_own) {
                // Its group may be made by another thread first.
                return self.lanes.entered.contains(&group).then_some((group, made));
            }
            self.lanes.lanes[lane].at += 1;
        }
    }

    /// Whether this member makes no more calls of a group, or never gets into it.
    fn is_broken(&self, group: usize) -> bool {
        let parent = self.net.world().plan.groups[group].parent;
        let never = || !self.lanes.entered.contains(&group) && parent.is_some_and(|parent| self.is_broken(parent));
        self.lanes.broken.contains(&group) || never()
    }

    /// A call goes on as far as it can without a wait.
    pub(super) fn goes_on(&mut self, lane: usize, mut granted: Option<Granted>) -> Checked {
        while !self.is_over() {
            let Some(running) = &mut self.lanes.lanes[lane].running else { return Ok(()) };
            match running.goes_on(granted) {
                Step::Over(given) => {
                    let call = self.lanes.lanes[lane].at;
                    self.lanes.lanes[lane].running = None;
                    self.lanes.lanes[lane].at += 1;
                    return self.ends(call, given);
                }
                Step::Wants(wish) => granted = self.begins_wish(lane, wish)?,
            }
            if granted.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Begins what a call wants. None: that waits.
    fn begins_wish(&mut self, lane: usize, mut wish: Wish) -> Result<Option<Granted>, String> {
        let turn = Some((self.lanes.lanes[lane].at, self.lanes.lanes[lane].kind));
        if let Some(granted) = self.tampers(&mut wish, turn) {
            return Ok(Some(granted));
        }
        let mut call = Call { lane: Some(lane), turn, until: u64::MAX, ..Call::default() };
        self.lanes.lanes[lane].since = self.net.world().now;
        call.memory = Own::Bytes(vec![0; wish.receive.map_or(0, |(_, room)| room)]);
        match (wish.send, wish.receive) {
            (Some(send), None) => {
                let message = self.begins(&send, &mut call);
                self.block_send(message, &mut call)?;
            }
            (send, Some((pattern, room))) => {
                // As the library does it, one that can go at once goes before the receive is noted.
                let mut sent = send.is_none();
                if let Some(send) = send.as_ref().filter(|_| self.engine.state.is_plain()) {
                    let message = self.begins(send, &mut call);
                    sent = self.goes_at_once(message, &call)?;
                }
                let waits = self.receive_into(pattern, room as u64, &mut call, sent)?;
                if let Some(send) = send.as_ref().filter(|_| waits && !sent) {
                    let message = self.begins(send, &mut call);
                    self.block_send(message, &mut call)?;
                }
            }
            (None, None) => {}
        }
        if call.error.is_some() {
            self.gives_up(&call)?;
        }
        if call.is_settled() {
            return Ok(Some(call.granted()));
        }
        self.calls.push(call);
        Ok(None)
    }

    fn begins(&mut self, ((to, context, tag), bytes): &(To, Vec<u8>), call: &mut Call) -> usize {
        let envelope = Envelope { context: *context, source: self.rank, tag: *tag };
        call.bytes = Own::Bytes(bytes.clone());
        self.net.world().model.begins_of(envelope, *to, bytes.clone(), call.turn)
    }

    /// Does to a call what the library does not.
    fn tampers(&mut self, wish: &mut Wish, turn: Option<Turn>) -> Option<Granted> {
        let mut world = self.net.world();
        let planted = world.planted?;
        let each = if planted == Planted::Extra { 60 } else { 10 };
        if !planted.is_collective() || world.rng.below(each) > 0 {
            return None;
        }
        let size = world.nodes.len() as u32;
        match (planted, &mut wish.send, &mut wish.receive) {
            (Planted::Unsent, send @ Some(_), None) => {
                *send = None;
                return Some(Ok(None));
            }
            (Planted::Unsent, send @ Some(_), Some(_)) => *send = None,
            (Planted::Misled, Some(((to, ..), _)), _) => *to = (*to + 1) % size,
            (Planted::Mixed, Some(((_, context, _), _)), _) => *context -= 1,
            (Planted::Taken, _, Some((pattern, _))) => pattern.source = None,
            (Planted::Early, send, Some((pattern, room))) if send.is_none() || *room == 0 => {
                let envelope = Envelope { context: pattern.context, source: pattern.source?, tag: pattern.tag };
                return Some(Ok(Some((envelope, *room as u64, vec![0; *room]))));
            }
            (Planted::Extra, Some(send), _) => {
                let ((to, context, tag), bytes) = send.clone();
                let envelope = Envelope { context, source: self.rank, tag };
                let message = world.model.begins_of(envelope, to, bytes.clone(), turn);
                drop(world);
                let call = Call { bytes: Own::Bytes(bytes), ..Call::default() };
                let _ = self.goes_at_once(message, &call);
            }
            _ => {}
        }
        None
    }

    /// Whether a message goes at once; else nothing of it stays.
    pub(super) fn goes_at_once(&mut self, message: usize, call: &Call) -> Result<bool, String> {
        let sent = self.try_send(message, bytes_of(&call.bytes)) == Ok(true);
        if sent {
            self.has_gone(message)?;
        } else {
            self.net.world().model.never_goes(message, Stage::Withdrawn);
        }
        Ok(sent)
    }

    /// Whether a thread's call has waited too long.
    pub(super) fn is_late(&self, call: &Call) -> bool {
        let world = self.net.world();
        match call.lane {
            None => world.now >= call.until,
            Some(lane) => world.may_wait_in_vain() && world.now >= self.lanes.lanes[lane].since + PATIENCE,
        }
    }

    /// A call of the list is over.
    fn ends(&mut self, call: usize, given: Result<Given, MpError>) -> Checked {
        if self.is_over() {
            return Ok(());
        }
        let rank = self.rank;
        let world = self.net.world();
        let Planned { group, made, odd, entered } = &world.plan.calls[call];
        let (group, made, is_odd) = (*group, *made, odd.is_some());
        let members = &world.plan.groups[group].members;
        let own = members.iter().position(|member| *member == rank).expect("it has made the call");
        let wrong = |what: &str| Err(format!("{rank}: call {call}, {made:?} of {members:?}: {what}"));
        let given = match given {
            Ok(given) => given,
            Err(error) => {
                drop(world);
                return self.fails(call, error);
            }
        };
        if !is_odd {
            if world.plan.due(call, own).is_some_and(|due| due != given.bytes) {
                return wrong("other bytes than all have put in");
            }
            if let Some(other) = world.plan.needs(call, own).iter().find(|other| !entered.contains(*other)) {
                return wrong(&format!("it is over, and {other} has not begun it"));
            }
        }
        let due = world.plan.made_by(call, rank);
        if let (What::Duplicate | What::Split, false) = (made.what, is_odd) {
            let groups = &world.plan.groups;
            if due.map(|due| &*groups[due].members) != given.group.as_ref().map(|(_, members)| &**members) {
                return wrong("a group of other members than those that were to be in it");
            }
            if let (Some(due), Some((number, _))) = (due, &given.group) {
                let is_used = |known: &usize| groups[*known].number == Some(*number);
                if groups[due].number.is_some_and(|known| known != *number) {
                    return wrong("members have different numbers for a group");
                }
                if *number == 0 || self.lanes.entered.iter().any(is_used) {
                    return wrong(&format!("the number of a group is that of another one: {number}"));
                }
            }
        }
        drop(world);
        self.net.world().plan.made += 1;
        if let (Some(due), Some((number, members))) = (due, given.group) {
            self.net.world().plan.groups[due].number = Some(number);
            self.enters(due, number, members);
        }
        Ok(())
    }

    /// A call has failed.
    fn fails(&mut self, call: usize, error: MpError) -> Checked {
        let is_abort = self.is_abort(Some(&error))?;
        let mut world = self.net.world();
        let (group, is_odd) = (world.plan.calls[call].group, world.plan.calls[call].odd.is_some());
        let members = world.plan.groups[group].members.clone();
        let is_over = |member: &u32| world.nodes[*member as usize].over.is_some();
        let troubled = is_odd || world.plan.is_troubled(group) || members.iter().any(is_over);
        let is_due = match &error {
            MpError::Aborted { .. } => is_abort,
            MpError::Gone { rank, .. } => members.contains(rank) && is_over(rank),
            MpError::TimedOut { .. } => world.may_wait_in_vain(),
            MpError::GivenUp { .. } => troubled,
            MpError::Length { .. } | MpError::Truncated { .. } => is_odd,
            _ => false,
        };
        if !is_due {
            let made = world.plan.calls[call].made;
            return Err(format!("{}: call {call}, {made:?} of {members:?}, fails without a cause: {error}", self.rank));
        }
        world.plan.failed += 1;
        world.plan.groups[group].failed = true;
        drop(world);
        self.lanes.broken.insert(group);
        Ok(())
    }

    /// Whether no call waits any longer for a member that was killed; at the end, when all look.
    pub(super) fn check_news(&self) -> Checked {
        let waits = {
            let world = self.net.world();
            let waits_for = |lane: &Lane, member: &u32| match &world.nodes[*member as usize].over {
                Some((since, Gone::Failed)) => world.now > (*since).max(lane.since).max(world.plan.closed_at) + NEWS,
                _ => false,
            };
            let members = |lane: &Lane| &world.plan.groups[world.plan.calls[lane.at].group].members;
            let lanes = self.lanes.lanes.iter().filter(|lane| lane.running.is_some());
            let mut waits =
                lanes.filter_map(|lane| members(lane).iter().find(|member| waits_for(lane, member)).copied());
            waits.next()
        };
        let why = |member| format!("a call waits, and {member} was killed long ago: {}", self.left());
        waits.map_or(Ok(()), |member| Err(why(member)))
    }

    /// Whether no message of a call that went well is here, now that all have made their calls; and
    /// contexts whose messages somebody may still receive.
    pub(super) fn left_over(&self, all_through: bool) -> Result<Vec<u32>, String> {
        let world = self.net.world();
        let mut contexts = vec![0, 1, 2];
        for (at, group) in world.plan.groups.iter().enumerate() {
            let Some(number) = group.number.filter(|_| group.members.contains(&self.rank)) else { continue };
            contexts.push(2 * number);
            let (mine, members) = (2 * number + 1, &group.members);
            let is_over = |member: &u32| world.nodes[*member as usize].over.is_some();
            if !all_through {
                continue;
            }
            if world.plan.is_troubled(at) || members.iter().any(is_over) {
                contexts.push(mine);
                continue;
            }
            for id in world.model.waits(self.rank) {
                let sent = world.model.message(*id);
                if sent.envelope.context == mine {
                    return Err(format!("{}: left behind by a collective call: {sent:?}", self.rank));
                }
            }
        }
        Ok(contexts)
    }
}
