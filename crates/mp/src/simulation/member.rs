//! A member of a simulated job: a program that begins and ends sends and receives in every way, as
//! several threads do, and the calls that the library would make for it.
//!
//! Invariant: what is told to the program is held against the model at once.

use super::Profile;
use super::call::{Call, bytes_of, direct, memory_of, place_of};
use super::lanes::Lanes;
use super::model::{MessageId, ReceiveId, Stage, content};
use super::network::{End, MS, Net, Own, Place};
use crate::engine::Engine;
use crate::error::{Gone, MpError};
use crate::matching::{Envelope, Pattern};
use crate::state::{Direct, Held, Received, State};
use crate::transport::Bytes;
use crate::wire::Said;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Calls that wait at a time: of as many threads.
const CALLS_MAX: usize = 2;
/// Requests under way of one member.
const REQUESTS_MAX: usize = 120;
/// Bytes in front of a place, and behind it, that nothing writes.
const GUARD: usize = 32;
/// Places that are looked at after their receives.
const WATCHED_MAX: usize = 6;

pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) net: Net,
    pub(super) engine: Engine<End>,
    pub(super) calls: Vec<Call>,
    /// The receive of the call that looks now.
    looks: Option<(ReceiveId, u32)>,
    /// And its send.
    sends: Option<(MessageId, u32)>,
    requests: Vec<Request>,
    gone: BTreeSet<u32>,
    watched: Vec<(Place, Vec<u8>)>,
    /// Those that this member is in, which the library knows as long as they are here.
    pub(super) groups: Vec<Arc<[u32]>>,
    /// Its threads that make collective calls.
    pub(super) lanes: Lanes,
}

enum Request {
    Send { message: MessageId, id: u32, taken_back: bool },
    Receive { receive: ReceiveId, id: u32, taken_back: bool, place: Option<Place> },
}

/// A property that did not hold.
pub(super) type Checked = Result<(), String>;

impl Member {
    pub(super) fn new(net: &Net, rank: u32, size: u32, threads: usize) -> Member {
        let mut state = State::new(net.end(rank), rank, size);
        let all: Arc<[u32]> = (0..size).collect();
        state.enter(0, &all);
        state.enter(1, &all);
        let (net, engine) = (net.clone(), Engine::new(state));
        let (calls, requests, watched) = (Vec::new(), Vec::new(), Vec::new());
        let mut member = Member {
            rank,
            net,
            engine,
            calls,
            looks: None,
            sends: None,
            requests,
            gone: BTreeSet::new(),
            watched,
            groups: vec![all],
            lanes: Lanes::new(threads),
        };
        member.has_groups();
        member
    }

    fn state(&mut self) -> &mut State<End> {
        &mut self.engine.state
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.net.world().rng.below(bound)
    }

    pub(super) fn is_over(&self) -> bool {
        self.net.world().nodes[self.rank as usize].over.is_some()
    }

    /// Whether it knows, or thinks, that another member has gone.
    pub(super) fn has_lost(&self, rank: u32) -> bool {
        self.gone.contains(&rank)
    }

    fn gone_of(&self) -> impl Fn(u32) -> Option<Gone> + use<> {
        let overs: Vec<Option<Gone>> =
            self.net.world().nodes.iter().map(|node| node.over.as_ref().map(|(_, how)| how.clone())).collect();
        move |rank| overs.get(rank as usize).cloned().flatten()
    }

    /// The program does one thing.
    pub(super) fn acts(&mut self, profile: &Profile) -> Checked {
        self.turn(Direct::default())?;
        if self.is_over() {
            return Ok(());
        }
        match self.below(100) {
            at if at < profile.sends => self.start_send(profile),
            at if at < profile.sends + profile.receives => self.start_receive(profile),
            40..50 if profile.receives > 1 => self.block(profile),
            50..53 => self.take_back(),
            53..56 => self.forget(),
            56..60 => self.probe(profile),
            60..85 => self.test_some(),
            _ => self.begins_collective(),
        }
    }

    /// What a call that waits does in a turn, of this thread.
    /// False: nothing has come.
    fn turn(&mut self, mut direct: Direct<'_>) -> Result<bool, String> {
        let came = self.engine.progress(&mut direct);
        self.learn()?;
        if came == Ok(true) || self.is_over() {
            return Ok(!self.is_over());
        }
        let goes = self.state().look_at_members().unwrap_or_default();
        for (rank, how) in goes {
            while self.engine.progress(&mut direct) == Ok(true) {
                self.learn()?;
            }
            if self.gone_of()(rank).is_none() {
                return Err(format!("{}: {rank} is there, and is said to have gone: {how}", self.rank));
            }
            self.state().member_gone(rank, how);
            self.learn()?;
        }
        Ok(false)
    }

    /// Has the model know what this member has just learned.
    pub(super) fn learn(&mut self) -> Checked {
        if self.is_over() {
            return Ok(());
        }
        for rank in 0..self.engine.state.peers.len() as u32 {
            if self.engine.state.peers[rank as usize].gone.is_some() && self.gone.insert(rank) {
                self.net.world().model.member_gone(self.rank, rank);
            }
        }
        let mut ids: Vec<(ReceiveId, u32)> =
            self.calls.iter().filter_map(|call| call.receive).chain(self.looks).collect();
        ids.extend(self.requests.iter().filter_map(|request| match request {
            Request::Receive { receive, id, .. } => Some((*receive, *id)),
            Request::Send { .. } => None,
        }));
        for (receive, id) in ids {
            let failed = self.state().receives.get(id).is_some_and(|it| matches!(it.done, Some(Err(_))));
            if failed && self.net.world().model.receive(receive).got.is_none() {
                self.net.world().model.unposts(receive);
            }
        }
        let mut ids: Vec<(MessageId, u32)> = self.calls.iter().filter_map(|call| call.send).chain(self.sends).collect();
        ids.extend(self.requests.iter().filter_map(|request| match request {
            Request::Send { message, id, .. } => Some((*message, *id)),
            Request::Receive { .. } => None,
        }));
        for (message, id) in ids {
            if self.state().sends.get(id).is_some_and(|it| matches!(it.done, Some(Err(_)))) {
                self.net.world().model.never_goes(message, Stage::Withdrawn);
            }
        }
        for rank in 0..self.engine.state.peers.len() as u32 {
            let queued = self.net.world().model.queued(self.rank, rank);
            if queued > 0 && self.engine.state.ledger(rank).out == 0 {
                if self.gone_of()(rank).is_none() {
                    return Err(format!("{}: {queued} sends to {rank} are forgotten", self.rank));
                }
                self.net.world().model.queue_is_lost(self.rank, rank);
            }
        }
        let wrong = self.net.world().model.wrong.take();
        wrong.map_or(Ok(()), Err)
    }

    /// Also of a group, with tags that its collective calls have too.
    fn of_group(&self) -> Option<(u32, Arc<[u32]>)> {
        if self.lanes.are_none() || self.below(3) > 0 { None } else { self.some_group() }
    }

    fn envelope(&self, profile: &Profile) -> (Envelope, u32) {
        if let Some((number, members)) = self.of_group() {
            let to = members[self.below(members.len() as u64) as usize];
            return (Envelope { context: 2 * number, source: self.rank, tag: self.below(10) }, to);
        }
        let context = [0, 0, 0, 2, 1][self.below(5) as usize];
        let to = self.below(profile.size.into()) as u32;
        (Envelope { context, source: self.rank, tag: self.below(4) }, to)
    }

    fn pattern(&self, profile: &Profile) -> Pattern {
        if let Some((number, members)) = self.of_group() {
            let source = (self.below(3) > 0).then(|| members[self.below(members.len() as u64) as usize]);
            let mask = [u64::MAX, 0][self.below(2) as usize];
            return Pattern { context: 2 * number, source, tag: self.below(10) & mask, mask };
        }
        let context = [0, 0, 0, 2, 1][self.below(5) as usize];
        let source = (self.below(3) > 0).then(|| self.below(profile.size.into()) as u32);
        let (tag, mask) = (self.below(4), [u64::MAX, u64::MAX, 0, 1][self.below(4) as usize]);
        Pattern { context, source, tag: tag & mask, mask }
    }

    fn len(&self, profile: &Profile) -> u64 {
        match self.below(4) {
            0 => self.below(120),
            _ => self.below(profile.bytes_max + 1),
        }
    }

    fn place(&self, bytes: &[u8]) -> Place {
        let mut memory = vec![0; bytes.len() + 2 * GUARD];
        memory[GUARD..GUARD + bytes.len()].copy_from_slice(bytes);
        Place { memory: Rc::new(RefCell::new(memory)), range: GUARD..GUARD + bytes.len() }
    }

    fn own(&self, bytes: Vec<u8>) -> Own {
        if self.below(3) == 0 { Own::Place(self.place(&bytes)) } else { Own::Bytes(bytes) }
    }

    fn start_send(&mut self, profile: &Profile) -> Checked {
        if self.requests.len() >= REQUESTS_MAX {
            return self.test_some();
        }
        let ((envelope, to), len) = (self.envelope(profile), self.len(profile));
        let message = self.net.world().model.begins(envelope, to, len);
        let own = self.own(content(message, len));
        match self.try_send(message, bytes_of(&own)) {
            Ok(true) => self.has_gone(message),
            Ok(false) => {
                let (to, Envelope { context, tag, .. }) = self.of(message);
                match self.state().send_in_turn(to, context, tag, len, Held::Own(own)) {
                    Ok(id) => self.requests.push(Request::Send { message, id, taken_back: false }),
                    Err(error) => return self.refused(message, error),
                }
                self.learn()
            }
            Err(error) => self.refused(message, error),
        }
    }

    fn of(&self, message: MessageId) -> (u32, Envelope) {
        let world = self.net.world();
        let sent = world.model.message(message);
        (sent.to, sent.envelope)
    }

    pub(super) fn try_send(&mut self, message: MessageId, bytes: Bytes<'_, Place>) -> Result<bool, MpError> {
        self.engine.check()?;
        let (to, Envelope { context, tag, .. }) = self.of(message);
        match bytes {
            Bytes::Slice(slice) if self.state().send_at_once(to, context, tag, slice) => Ok(true),
            bytes => self.state().send_now(to, context, tag, bytes),
        }
    }

    pub(super) fn has_gone(&mut self, message: MessageId) -> Checked {
        let stays = self.net.world().model.message(message).stage == Stage::Queued;
        if stays && !self.is_over() {
            return Err(format!("{}: message {message} is said to have gone, and has not", self.rank));
        }
        self.learn()
    }

    /// A send could not be begun.
    fn refused(&mut self, message: MessageId, error: MpError) -> Checked {
        let is_there = !self.net.world().model.never_goes(message, Stage::Withdrawn);
        if is_there && !self.is_over() {
            return Err(format!("{}: message {message} has gone, and is refused: {error}", self.rank));
        }
        let outcome = Err(error);
        self.told_send(message, &outcome, false)
    }

    /// The program is told how a send ended.
    fn told_send(&mut self, message: MessageId, outcome: &Result<(), MpError>, taken_back: bool) -> Checked {
        if self.is_over() || self.is_abort(outcome.as_ref().err())? {
            return Ok(());
        }
        if outcome.is_err() {
            self.net.world().model.never_goes(message, Stage::Withdrawn);
        }
        let gone = self.gone_of();
        let checked = self.net.world().model.send_outcome(message, outcome, taken_back, &gone);
        checked.map_err(|why| format!("{}: {why}", self.rank))
    }

    /// Whether it says that all is ended, which somebody must have done.
    pub(super) fn is_abort(&mut self, error: Option<&MpError>) -> Result<bool, String> {
        let Some(MpError::Aborted { rank, .. }) = error else { return Ok(false) };
        match self.gone_of()(*rank) {
            Some(_) => Ok(true),
            None => Err(format!("{}: {rank} has not ended all", self.rank)),
        }
    }

    fn start_receive(&mut self, profile: &Profile) -> Checked {
        if self.requests.len() >= REQUESTS_MAX || self.engine.check().is_err() {
            return self.test_some();
        }
        let (pattern, room) = (self.pattern(profile), profile.room(self.below(8)));
        let receive = self.net.world().model.posts(self.rank, pattern, room);
        let own = self.own(vec![0; room as usize]);
        let place = place_of(&own);
        let begun = self.state().receive(pattern, room, place.clone(), Some(own), &mut Direct::default());
        match begun {
            Ok(id) => self.requests.push(Request::Receive { receive, id, taken_back: false, place }),
            Err(error) => {
                self.net.world().model.unposts(receive);
                self.told(receive, &Err(error), &[], false)?;
            }
        }
        self.engine.state.pump();
        self.learn()
    }

    /// The program is told how a receive ended.
    fn told(&mut self, receive: ReceiveId, outcome: &Received, memory: &[u8], taken_back: bool) -> Checked {
        if self.is_over() || self.is_abort(outcome.as_ref().err())? {
            return Ok(());
        }
        let gone = self.gone_of();
        self.net.world().model.outcome(receive, outcome, memory, taken_back, &gone)
    }

    /// Looks at a request of those under way.
    fn test_some(&mut self) -> Checked {
        if self.requests.is_empty() {
            return Ok(());
        }
        let at = self.below(self.requests.len() as u64) as usize;
        self.test(at).map(drop)
    }

    /// Whether a request is over.
    fn test(&mut self, at: usize) -> Result<bool, String> {
        match &self.requests[at] {
            Request::Send { message, id, taken_back } => {
                let (message, id, taken_back) = (*message, *id, *taken_back);
                let Some((outcome, _)) = self.state().take_send(id) else { return Ok(false) };
                self.requests.swap_remove(at);
                self.told_send(message, &outcome, taken_back)?;
            }
            Request::Receive { receive, id, taken_back, place } => {
                let (receive, id, taken_back, place) = (*receive, *id, *taken_back, place.clone());
                let Some((outcome, own)) = self.state().take_receive(id) else { return Ok(false) };
                self.requests.swap_remove(at);
                let memory = own.as_ref().map(memory_of).unwrap_or_default();
                self.told(receive, &outcome, &memory, taken_back)?;
                place.into_iter().try_for_each(|place| self.watch(place))?;
            }
        }
        Ok(true)
    }

    /// From now on nothing is written there.
    fn watch(&mut self, place: Place) -> Checked {
        if self.watched.len() >= WATCHED_MAX {
            let (place, bytes) = self.watched.remove(0);
            self.is_as_it_was(&place, &bytes)?;
        }
        let bytes = place.memory.borrow().clone();
        let (front, back) = (&bytes[..GUARD], &bytes[bytes.len() - GUARD..]);
        if front.iter().chain(back).any(|byte| *byte != 0) {
            return Err(format!("{}: bytes outside of a receive's memory were written", self.rank));
        }
        self.watched.push((place, bytes));
        Ok(())
    }

    fn is_as_it_was(&self, place: &Place, bytes: &[u8]) -> Checked {
        if *place.memory.borrow() == bytes || self.is_over() {
            return Ok(());
        }
        Err(format!("{}: memory was written after its receive was over", self.rank))
    }

    /// Whether nothing has been written where nothing may.
    pub(super) fn check_places(&self) -> Checked {
        self.watched.iter().try_for_each(|(place, bytes)| self.is_as_it_was(place, bytes))
    }

    fn take_back(&mut self) -> Checked {
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.below(count as u64) as usize;
        self.take_back_one(at)
    }

    fn take_back_one(&mut self, at: usize) -> Checked {
        match &mut self.requests[at] {
            Request::Send { message, id, taken_back } => {
                *taken_back = true;
                let (message, id) = (*message, *id);
                let ended = self.state().sends.get(id).is_none_or(|send| send.done.is_some());
                self.state().withdraw(id);
                if !ended {
                    self.net.world().model.never_goes(message, Stage::Withdrawn);
                }
            }
            Request::Receive { receive, id, taken_back, .. } => {
                let (receive, id) = (*receive, *id);
                *taken_back = true;
                let waited = self.state().cancel_receive(id);
                // One that has failed waits no longer either.
                let failed = self.state().receives.get(id).is_some_and(|it| matches!(it.done, Some(Err(_))));
                let waits = self.net.world().model.unposts(receive);
                if waits != waited && !failed {
                    return Err(format!("{}: receive {receive} waits: {waits}; taken back: {waited}", self.rank));
                }
            }
        }
        self.engine.state.pump();
        self.learn()
    }

    /// Drops a request, or one of the calls that wait ends before its time.
    fn forget(&mut self) -> Checked {
        if self.below(2) == 0 {
            self.calls.iter_mut().filter(|call| call.lane.is_none()).for_each(|call| call.until = 0);
            return Ok(());
        }
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.below(count as u64) as usize;
        match self.requests.swap_remove(at) {
            Request::Send { id, .. } => self.state().drop_send(id),
            Request::Receive { receive, id, place, .. } => {
                self.net.world().model.unposts(receive);
                self.state().drop_receive(id);
                if self.net.world().model.receive(receive).got.is_none() {
                    place.into_iter().try_for_each(|place| self.watch(place))?;
                }
            }
        }
        self.learn()
    }

    fn probe(&mut self, profile: &Profile) -> Checked {
        let pattern = self.pattern(profile);
        let found = self.engine.state.matcher.probe(&pattern).map(|(envelope, waiting)| (*envelope, waiting.len()));
        let world = self.net.world();
        let due = world.model.finds(self.rank, &pattern).map(|id| world.model.message(id));
        let due = due.map(|sent| (sent.envelope, sent.len));
        if found != due && world.nodes[self.rank as usize].over.is_none() {
            return Err(format!("{}: a probe of {pattern:?} found {found:?}; due was {due:?}", self.rank));
        }
        Ok(())
    }

    /// Makes a call that waits: a send, a receive, or both.
    fn block(&mut self, profile: &Profile) -> Checked {
        if self.calls.iter().filter(|call| call.lane.is_none()).count() >= CALLS_MAX || self.engine.check().is_err() {
            return Ok(());
        }
        let kind = self.below(5);
        let until = self.below(400) * MS + self.net.world().now;
        let mut call = Call { until, ..Call::default() };
        match kind {
            0 | 1 => {
                let message = self.begin_send(profile, &mut call);
                self.block_send(message, &mut call)?;
            }
            2 => self.exchange(profile, &mut call)?,
            _ => drop(self.block_receive(profile, &mut call, true)?),
        }
        if call.error.is_some() {
            self.gives_up(&call)?;
        } else if !call.is_settled() {
            self.calls.push(call);
        }
        self.learn()
    }

    /// Both: as the library does it, a send that can go at once goes before the receive is noted.
    fn exchange(&mut self, profile: &Profile, call: &mut Call) -> Checked {
        let mut sent = false;
        if self.engine.state.is_plain() {
            let message = self.begin_send(profile, call);
            sent = self.goes_at_once(message, call)?;
        }
        if self.block_receive(profile, call, sent)? && !sent {
            let message = self.begin_send(profile, call);
            self.block_send(message, call)?;
        }
        Ok(())
    }

    /// False: the receive is over. `quick`: it may look for its message before it is noted.
    fn block_receive(&mut self, profile: &Profile, call: &mut Call, quick: bool) -> Result<bool, String> {
        let (pattern, room) = (self.pattern(profile), profile.room(self.below(8)));
        call.memory = self.own(vec![0; room as usize]);
        self.receive_into(pattern, room, call, quick)
    }

    /// The same, into memory that the call has.
    pub(super) fn receive_into(
        &mut self,
        pattern: Pattern,
        room: u64,
        call: &mut Call,
        quick: bool,
    ) -> Result<bool, String> {
        let quick = quick && self.engine.state.matcher.probe(&pattern).is_none();
        let receive = self.net.world().model.posts_of(self.rank, pattern, room, call.turn);
        if let (Own::Bytes(memory), true) = (&mut call.memory, quick) {
            if let Some(received) = self.engine.receive_early(&pattern, memory, 1 + room as u32 % 3) {
                let memory = memory.clone();
                self.told(receive, &Ok(received), &memory, false)?;
                self.learn()?;
                call.got = Some(Ok(received));
                return Ok(false);
            }
            self.learn()?;
        }
        let place = place_of(&call.memory);
        let mut direct = direct(&mut call.memory, None);
        let begun = self.engine.check();
        match begun.and_then(|()| self.engine.state.receive(pattern, room, place, None, &mut direct)) {
            Ok(id) => {
                call.receive = Some((receive, id));
                Ok(true)
            }
            Err(error) => {
                self.net.world().model.unposts(receive);
                self.told(receive, &Err(error.clone()), &[], false)?;
                call.error = Some(error);
                self.learn()?;
                Ok(false)
            }
        }
    }

    fn begin_send(&mut self, profile: &Profile, call: &mut Call) -> MessageId {
        let ((envelope, to), len) = (self.envelope(profile), self.len(profile));
        let message = self.net.world().model.begins(envelope, to, len);
        call.bytes = self.own(content(message, len));
        message
    }

    pub(super) fn block_send(&mut self, message: MessageId, call: &mut Call) -> Checked {
        let len = self.net.world().model.message(message).len;
        let (to, envelope) = self.of(message);
        match self.try_send(message, bytes_of(&call.bytes)) {
            Ok(true) => self.has_gone(message),
            Ok(false) => {
                let short = self.net.world().model.is_short(message);
                let bytes = self.net.world().model.content(message);
                let held = if short { Held::Copy(bytes) } else { Held::Caller };
                let (context, tag) = (envelope.context, envelope.tag);
                match self.state().send_in_turn(to, context, tag, len, held) {
                    Ok(id) => (call.send, call.begun) = (Some((message, id)), Some((message, id))),
                    Err(error) => {
                        call.error = Some(error.clone());
                        self.refused(message, error)?;
                    }
                }
                Ok(())
            }
            Err(error) => {
                call.error = Some(error.clone());
                self.refused(message, error)
            }
        }
    }

    /// The calls that wait look, each by its own thread.
    pub(super) fn waits(&mut self) -> Checked {
        for at in (0..self.calls.len()).rev() {
            let mut call = self.calls.swap_remove(at);
            (self.looks, self.sends) = (call.receive, call.send);
            let over = self.look(&mut call)?;
            (self.looks, self.sends) = (None, None);
            match call.lane {
                _ if !over => self.calls.push(call),
                Some(lane) => self.goes_on(lane, Some(call.granted()))?,
                None => {}
            }
            self.learn()?;
        }
        Ok(())
    }

    /// Whether a call is over.
    fn look(&mut self, call: &mut Call) -> Result<bool, String> {
        let id = call.receive.map(|(_, id)| id);
        // Another thread may have the state, and takes what is for this one.
        if self.below(2) == 0 {
            let mut memory = std::mem::replace(&mut call.memory, Own::Bytes(Vec::new()));
            let turned = self.turn(direct(&mut memory, id));
            call.memory = memory;
            turned?;
        }
        if self.is_over() {
            return Ok(true);
        }
        if let Some((message, send)) = call.send {
            self.engine.state.serve(send, Some(bytes_of(&call.bytes)));
            if let Some((outcome, _)) = self.state().take_send(send) {
                call.send = None;
                self.told_send(message, &outcome, false)?;
                if outcome.is_err() {
                    call.error = outcome.err();
                    return self.gives_up(call).map(|()| true);
                }
                call.begun = None;
            }
        }
        if let (Some((receive, id)), None) = (call.receive, &call.got) {
            let mut direct = direct(&mut call.memory, Some(id));
            call.got = self.engine.state.take_receive_of(id, &mut direct);
            if let Some(outcome) = &call.got {
                let memory = memory_of(&call.memory);
                self.told(receive, outcome, &memory, false)?;
                if outcome.is_err() {
                    self.net.world().model.unposts(receive);
                    return self.gives_up(call).map(|()| true);
                }
                place_of(&call.memory).into_iter().try_for_each(|place| self.watch(place))?;
            }
        }
        if call.is_settled() {
            return Ok(true);
        }
        let ended = self.engine.check().err();
        if ended.is_none() && !self.is_late(call) {
            return Ok(false);
        }
        call.error = ended.or_else(|| Some(MpError::timed_out("a call", Duration::from_nanos(call.until))));
        self.gives_up(call).map(|()| true)
    }

    /// A call ends without what it waited for.
    pub(super) fn gives_up(&mut self, call: &Call) -> Checked {
        if let Some((receive, id)) = call.receive {
            self.net.world().model.unposts(receive);
            self.state().drop_receive(id);
            place_of(&call.memory).into_iter().try_for_each(|place| self.watch(place))?;
        }
        if let Some((message, id)) = call.begun {
            if !self.net.world().model.is_short(message) {
                self.net.world().model.never_goes(message, Stage::Withdrawn);
            }
            self.state().drop_send(id);
        }
        self.engine.state.pump();
        self.learn()
    }

    /// Says goodbye, and goes.
    pub(super) fn leaves(&mut self, how: Gone) {
        self.state().say_goodbye();
        self.net.world().end(self.rank, how);
    }

    /// Ends all.
    pub(super) fn aborts(&mut self) {
        let said = Said::Abort { of: self.rank as u16, code: 3, text: b"enough" };
        for rank in (0..self.engine.state.peers.len() as u32).filter(|rank| *rank != self.rank) {
            self.engine.state.say(rank, &said);
        }
        self.engine.state.pump();
        self.net.world().end(self.rank, Gone::Failed);
    }

    /// Takes all that waits, ends what is under way: nothing new is begun. False: something is not
    /// over.
    pub(super) fn winds_up(&mut self, all: &Pattern, room: u64, all_through: bool) -> Result<bool, String> {
        while self.turn(Direct::default())? {}
        self.engine.state.pump();
        self.learn()?;
        self.waits()?;
        self.begins_collective()?;
        self.check_news()?;
        let mut at = 0;
        while at < self.requests.len() {
            at += usize::from(!self.test(at)?);
        }
        let waits = self.net.world().model.waits(self.rank).len();
        for context in self.left_over(all_through)? {
            let pattern = Pattern { context, ..*all };
            if waits == 0 || self.engine.state.matcher.probe(&pattern).is_none() {
                continue;
            }
            let receive = self.net.world().model.posts(self.rank, pattern, room);
            let own = Own::Bytes(vec![0; room as usize]);
            match self.state().receive(pattern, room, None, Some(own), &mut Direct::default()) {
                Ok(id) => self.requests.push(Request::Receive { receive, id, taken_back: false, place: None }),
                Err(error) => {
                    self.net.world().model.unposts(receive);
                    self.told(receive, &Err(error), &[], false)?;
                }
            }
        }
        let forgotten = self.engine.state.sends.numbers().len() + self.engine.state.receives.numbers().len();
        let through = self.is_over() || self.is_through();
        Ok(through && self.calls.is_empty() && self.requests.is_empty() && forgotten == 0 && waits == 0)
    }

    /// Receives without a message are taken back: none is on its way.
    pub(super) fn takes_all_back(&mut self) -> Checked {
        for at in 0..self.requests.len() {
            if let Request::Receive { receive, taken_back: false, .. } = &self.requests[at] {
                let (receive, gone) = (*receive, self.gone_of());
                let Pattern { source, .. } = self.net.world().model.receive(receive).pattern;
                let unmatched = self.net.world().model.receive(receive).got.is_none();
                if unmatched && source.and_then(gone).is_some() && self.test(at)? {
                    return self.takes_all_back();
                }
                if unmatched && source.is_some_and(|source| self.gone_of()(source).is_some()) {
                    return Err(format!("{}: receive {receive} waits for {source:?}, which has gone", self.rank));
                }
                self.take_back_one(at)?;
            }
        }
        Ok(())
    }

    /// What is under way, in words.
    pub(super) fn left(&self) -> String {
        let world = self.net.world();
        let receives = self.requests.iter().map(|request| match request {
            Request::Receive { receive, .. } => format!("{:?}", world.model.receive(*receive)),
            Request::Send { message, .. } => format!("{:?}", world.model.message(*message)),
        });
        let calls = self.calls.iter().flat_map(|call| {
            let send = call.send.map(|(message, _)| format!("{:?}", world.model.message(message)));
            let receive = call.receive.map(|(receive, _)| format!("{:?}", world.model.receive(receive)));
            send.into_iter().chain(receive)
        });
        let all: Vec<String> = calls.chain(receives).take(4).collect();
        let waiting = world.model.waits(self.rank).len();
        drop(world);
        let in_tables = [self.engine.state.sends.numbers().len(), self.engine.state.receives.numbers().len()];
        format!("{}: {waiting} wait, in tables {in_tables:?}; {}; {}", self.rank, all.join("; "), self.shows_lanes())
    }
}

impl Profile {
    /// Bytes of a receive's memory: mostly enough.
    fn room(&self, draw: u64) -> u64 {
        if draw == 0 { self.bytes_max / 3 } else { self.bytes_max.max(120) }
    }
}
