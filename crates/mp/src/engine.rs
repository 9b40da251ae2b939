//! Calls that wait: they take what comes, send on what waits, and sleep while there is nothing.
//!
//! Invariant: progress is made in calls alone. One thread at a time has the state; one that waits
//! lets others in. Every wait has a deadline, and ends when what it waits for cannot come any more.

use crate::error::MpError;
use crate::limits::{
    FORGIVING_YIELDS, LOOKS, MEMBERS_LOOK, MEMBERS_NO_YIELD_MAX, OTHERS_TURNS, QUICK_LOOKS, RESTING_WAITS,
    ROOM_SLEEP_MAX, ROOM_SLEEP_MIN, ROOM_YIELDS, SENDS_A_LOOK, SHARED_SLEEP_MAX, STREAK, STREAK_PAUSES, TAKEN_AT_ONCE,
    TURNS_A_LOOK, VAIN_LOOKS, VAIN_WEIGHT, YIELDS,
};
use crate::matching::{Envelope, Pattern};
use crate::memory::{HeldPayload, Payload, Place, Room};
use crate::state::{Direct, Early, Held, Received, State};
use crate::transport::Transport;
use crate::transport::endpoints::Endpoints;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;
use vmmc::{Deadline, Session, WaitError};
use vmmc_host::Nanos;
use vmmc_host::limits::{LONG_YIELD_SCORE, NO_YIELD_WAITS, YIELD_LONG_NS, YIELD_SCORE_MAX};
use vmmc_host::wait::{is_interrupted, patience};
use vmmc_job::Job;

/// What all groups of a member stand on.
pub(crate) struct Shared {
    engine: Mutex<Engine<Endpoints>>,
    /// Threads that wait for it.
    waiters: AtomicU32,
    /// Some thread has waited for another one.
    several: AtomicBool,
    pub(crate) session: Session,
    pub(crate) timeout: Duration,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) job: Option<Arc<Job>>,
}

pub(crate) struct Engine<T: Transport> {
    message: T::Message,
    pub(crate) state: State<T>,
    /// Sends since it was last looked what has come.
    sends: u32,
    patience: Patience,
}

/// What waits have learned of each other: whether what they wait for comes from another core, so
/// that a moment of looking finds it, or from a member that needs this one.
#[derive(Default)]
struct Patience {
    /// Grows with waits that looked in vain, shrinks with those that found something.
    vain: u32,
    /// Waits that yield at once.
    rest: u32,
    /// Grows with long yields, shrinks with short ones.
    long_yields: u32,
    /// Waits that do not yield, for somebody who is busy kept the core; and how many the next time.
    no_yield: u32,
    no_yield_next: u32,
}

impl Patience {
    /// Looks of a wait before it yields.
    #[inline]
    fn looks(&self) -> u32 {
        if self.rest > 0 { 1 } else { LOOKS }
    }

    /// The message came while the wait looked. One that was there at the first look says nothing
    /// of how long it pays to look.
    #[inline]
    fn found_after(&mut self, looks: u32) {
        if looks > 0 {
            self.vain = self.vain.saturating_sub(1);
        }
    }

    /// Whether a wait that has looked in vain yields.
    fn may_yield(&mut self) -> bool {
        let may = self.no_yield == 0;
        self.no_yield = self.no_yield.saturating_sub(1);
        may
    }

    /// A yield has taken so long. A long one has given the core to somebody who keeps it for a time
    /// slice. Some do no harm where members share cores; where no others do, it is better to sleep,
    /// for who is woken gets the core at once. False: the wait yields no more.
    fn yielded(&mut self, ns: u64) -> bool {
        if ns <= YIELD_LONG_NS {
            self.long_yields = self.long_yields.saturating_sub(1);
            self.no_yield_next -= self.no_yield_next.div_ceil(FORGIVING_YIELDS);
        } else if self.long_yields < YIELD_SCORE_MAX {
            self.long_yields += LONG_YIELD_SCORE;
        } else {
            self.no_yield = self.no_yield_next.clamp(NO_YIELD_WAITS, MEMBERS_NO_YIELD_MAX);
            self.no_yield_next = 4 * self.no_yield;
        }
        self.no_yield == 0
    }

    /// The wait has looked in vain.
    fn vain(&mut self) {
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        self.vain += VAIN_WEIGHT;
        if self.vain >= VAIN_LOOKS * VAIN_WEIGHT {
            (self.vain, self.rest) = (0, RESTING_WAITS);
        }
    }
}

impl<T: Transport> Engine<T> {
    pub(crate) fn new(state: State<T>) -> Engine<T> {
        Engine { message: T::Message::default(), state, sends: 0, patience: Patience::default() }
    }

    /// Takes one message, if one is here, and sends on what waits. True: a message was here, or
    /// nothing waits any more, so what a caller wants may be done.
    #[inline]
    pub(crate) fn progress(&mut self, direct: &mut Direct<'_>) -> Result<bool, MpError> {
        let mut moved = false;
        if self.state.has_something_to_do() || self.state.has_news() {
            self.state.pump();
            moved = !self.state.has_something_to_do();
        }
        let came = self.state.transport.poll(&mut self.message)?;
        if came {
            self.state.handle(&mut self.message, direct);
        }
        Ok(came || moved)
    }

    /// A receive whose message comes in a moment, while nothing else is under way: it is copied to
    /// its caller's memory, and nothing is noted of the receive. None: it is to be noted, and to be
    /// waited for.
    #[inline]
    pub(crate) fn receive_early(
        &mut self,
        pattern: &Pattern,
        memory: &mut [u8],
        looks: u32,
    ) -> Option<(Envelope, u64)> {
        for look in 0..looks {
            if !self.state.is_plain() {
                return None;
            }
            match self.state.poll_for(&mut self.message, pattern, memory) {
                Ok(Early::Received(envelope, len)) => {
                    self.patience.found_after(look);
                    return Some((envelope, len));
                }
                Ok(Early::Message) => {}
                Ok(Early::Nothing) if looks == 1 => return None,
                Ok(Early::Nothing) => {
                    self.pause();
                    continue;
                }
                // Whoever waits for it finds the same.
                Err(_) => return None,
            }
            if let Some(received) = self.state.receive_now(&mut self.message, pattern, memory) {
                self.patience.found_after(look);
                return Some(received);
            }
            self.state.handle(&mut self.message, &mut Direct::default());
            if self.state.matcher.probe(pattern).is_some() {
                return None;
            }
        }
        None
    }

    /// A moment between two looks, which ends when something is there.
    #[inline]
    fn pause(&self) {
        if self.state.received_in_a_row >= STREAK {
            return (0..STREAK_PAUSES).for_each(|_| std::hint::spin_loop());
        }
        for _ in 0..QUICK_LOOKS {
            if self.state.transport.has_message() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Takes what is here, up to a bound.
    pub(crate) fn take_all(&mut self, direct: &mut Direct<'_>) -> Result<(), MpError> {
        for _ in 0..TAKEN_AT_ONCE {
            if !self.progress(direct)? {
                break;
            }
        }
        self.check()
    }

    pub(crate) fn check(&self) -> Result<(), MpError> {
        self.state.aborted.clone().map_or(Ok(()), Err)
    }

    /// Learns of members that have gone: first their last messages are taken.
    fn look_at_members(&mut self, direct: &mut Direct<'_>) -> Result<(), MpError> {
        for (rank, how) in self.state.look_at_members()? {
            while self.progress(direct)? {}
            self.state.member_gone(rank, how);
        }
        Ok(())
    }
}

impl Engine<Endpoints> {
    /// Sleeps until a message comes, which is taken, or for a while.
    fn sleep(&mut self, direct: &mut Direct<'_>, until: Deadline) -> Result<bool, MpError> {
        match self.state.transport.endpoint.wait_into(&mut self.message, until) {
            Ok(()) => {
                self.state.handle(&mut self.message, direct);
                Ok(true)
            }
            Err(WaitError::TimedOut { .. }) if !is_interrupted() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Shared {
    pub(crate) fn new(engine: Engine<Endpoints>, timeout: Duration, size: u32, job: Option<Arc<Job>>) -> Shared {
        let (session, rank) = (engine.state.transport.session.clone(), engine.state.rank);
        let (waiters, several) = (AtomicU32::new(0), AtomicBool::new(false));
        Shared { engine: Mutex::new(engine), waiters, several, session, timeout, rank, size, job }
    }

    /// The state, not in the child of a fork: a thread of the parent's may have had it then.
    #[inline]
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Engine<Endpoints>>, MpError> {
        self.session.must_be_here()?;
        match self.engine.try_lock() {
            Ok(engine) => Ok(engine),
            Err(TryLockError::WouldBlock) => Ok(self.lock_in_turn()),
            Err(TryLockError::Poisoned(_)) => panic!("no panic while the lock is held"),
        }
    }

    #[cold]
    fn lock_in_turn(&self) -> MutexGuard<'_, Engine<Endpoints>> {
        self.several.store(true, Ordering::Relaxed);
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let engine = self.engine.lock().expect("no panic while the lock is held");
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    /// Waits until `ready` gives something; says so beside the state, which others have had
    /// meanwhile.
    #[inline]
    pub(crate) fn wait<'e, 'd, T>(
        &'e self,
        mut engine: MutexGuard<'e, Engine<Endpoints>>,
        what: &'static str,
        direct: &mut Direct<'d>,
        mut ready: impl FnMut(&mut State<Endpoints>, &mut Direct<'d>) -> Option<T>,
    ) -> (MutexGuard<'e, Engine<Endpoints>>, Result<T, MpError>) {
        let mut wait =
            Wait { turns: 0, idle: 0, looks: 0, may_yield: false, end: None, yields: 0, pause: ROOM_SLEEP_MIN };
        loop {
            if let Some(result) = ready(&mut engine.state, direct) {
                return (engine, Ok(result));
            }
            match self.turn(&mut engine, direct, &mut wait) {
                Ok(true) => {}
                Ok(false) => {
                    let late = wait.end.is_some_and(|end| self.session.deadline(Duration::ZERO) >= end);
                    if late {
                        let result = ready(&mut engine.state, direct);
                        let result = result.ok_or_else(|| MpError::timed_out(what, self.call_time()));
                        return (engine, result);
                    }
                }
                Err(error) => return (engine, Err(error)),
            }
            if self.several.load(Ordering::Relaxed) && self.waiters.load(Ordering::Relaxed) > 0 {
                engine = self.let_others_in(engine);
            }
        }
    }

    /// How long a call waits: the thread may say so.
    fn call_time(&self) -> Duration {
        patience().timeout.unwrap_or(self.timeout)
    }

    /// One look for something; sleeps if there is nothing. False: nothing came.
    #[inline]
    fn turn(&self, engine: &mut Engine<Endpoints>, direct: &mut Direct<'_>, wait: &mut Wait) -> Result<bool, MpError> {
        engine.check()?;
        wait.turns = wait.turns.wrapping_add(1);
        if wait.turns % TURNS_A_LOOK == 0 {
            // Its time counts also where messages for others come one upon the other.
            wait.end.get_or_insert_with(|| self.session.deadline(self.call_time()));
            engine.look_at_members(direct)?;
        }
        if engine.progress(direct)? {
            if wait.idle < wait.looks {
                engine.patience.found_after(wait.idle);
            }
            wait.idle = 0;
            return Ok(true);
        }
        if !engine.state.has_something_to_do() && self.keeps_looking(engine, wait) {
            return Ok(false);
        }
        let end = *wait.end.get_or_insert_with(|| self.session.deadline(self.call_time()));
        let mut slice = MEMBERS_LOOK;
        if engine.state.has_something_to_do() {
            // Nobody says when there is room, or a connection.
            wait.yields += 1;
            if wait.yields < ROOM_YIELDS {
                std::thread::yield_now();
                return Ok(false);
            }
            slice = wait.pause;
            wait.pause = (wait.pause * 2).min(ROOM_SLEEP_MAX);
        } else {
            (wait.pause, wait.yields) = (ROOM_SLEEP_MIN, 0);
        }
        if self.several.load(Ordering::Relaxed) {
            slice = slice.min(SHARED_SLEEP_MAX);
        }
        let came = engine.sleep(direct, self.session.deadline(slice).min(end))?;
        if !came {
            engine.look_at_members(direct)?;
        }
        Ok(came)
    }

    /// Pauses or yields before the next look; false: it has looked long enough, and sleeps. A
    /// thread that steps a node in this process does so in its sleep.
    #[inline]
    fn keeps_looking(&self, engine: &mut Engine<Endpoints>, wait: &mut Wait) -> bool {
        if self.session.steps_node() {
            return false;
        }
        wait.idle += 1;
        if wait.idle == 1 {
            wait.looks = engine.patience.looks();
        }
        let looks = wait.looks;
        if wait.idle < looks {
            engine.pause();
            return true;
        }
        if wait.idle == looks {
            wait.may_yield = engine.patience.may_yield();
            engine.patience.vain();
        }
        if !wait.may_yield || wait.idle >= looks + YIELDS {
            return false;
        }
        let before = Nanos::monotonic();
        std::thread::yield_now();
        wait.may_yield = engine.patience.yielded(Nanos::monotonic().since(before).as_nanos() as u64);
        true
    }

    /// Gives the state to threads that wait for it, and takes it again.
    #[cold]
    fn let_others_in<'e>(&'e self, engine: MutexGuard<'e, Engine<Endpoints>>) -> MutexGuard<'e, Engine<Endpoints>> {
        drop(engine);
        for _ in 0..OTHERS_TURNS {
            std::thread::yield_now();
            if self.waiters.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
        self.lock_in_turn()
    }

    /// Sends a message; on return its memory is free.
    #[inline]
    pub(crate) fn send(&self, rank: u32, context: u32, tag: u64, payload: Payload<'_>) -> Result<(), MpError> {
        if let Payload::Slice(bytes) = payload {
            if self.send_early(rank, context, tag, bytes) {
                return Ok(());
            }
        }
        self.try_send(rank, context, tag, payload).map_err(|error| self.cause(error))
    }

    /// Sends a short message, if nothing is in its way; see [`State::send_at_once`]. What it
    /// returns is small, as of [`receive_early`](Self::receive_early).
    #[inline]
    fn send_early(&self, rank: u32, context: u32, tag: u64, bytes: &[u8]) -> bool {
        if self.session.must_be_here().is_err() {
            return false;
        }
        let Ok(mut engine) = self.engine.try_lock() else { return false };
        let is_time_to_look = engine.sends + 1 >= SENDS_A_LOOK;
        if is_time_to_look || engine.state.aborted.is_some() {
            return false;
        }
        let sent = engine.state.send_at_once(rank, context, tag, bytes);
        engine.sends += u32::from(sent);
        sent
    }

    /// A member that has gone because another one has ended all is told as that.
    #[cold]
    fn cause(&self, error: MpError) -> MpError {
        if !matches!(error, MpError::Gone { .. } | MpError::AllGone) {
            return error;
        }
        let looked = self.lock().and_then(|mut engine| engine.take_all(&mut Direct::default()));
        match looked {
            Err(aborted @ MpError::Aborted { .. }) => aborted,
            _ => error,
        }
    }

    #[inline(never)]
    fn try_send(&self, rank: u32, context: u32, tag: u64, payload: Payload<'_>) -> Result<(), MpError> {
        let mut engine = self.lock()?;
        engine.check()?;
        engine.sends += 1;
        if engine.sends >= SENDS_A_LOOK {
            engine.sends = 0;
            engine.take_all(&mut Direct::default())?;
        }
        if engine.state.send_now(rank, context, tag, payload.into())? {
            return Ok(());
        }
        self.send_slowly(engine, rank, context, tag, payload)
    }

    #[inline(never)]
    fn send_slowly<'e>(
        &'e self,
        mut engine: MutexGuard<'e, Engine<Endpoints>>,
        rank: u32,
        context: u32,
        tag: u64,
        payload: Payload<'_>,
    ) -> Result<(), MpError> {
        // That there is room may be among what has come.
        engine.take_all(&mut Direct::default())?;
        if engine.state.send_now(rank, context, tag, payload.into())? {
            return Ok(());
        }
        let id = engine.state.send_in_turn(rank, context, tag, payload.len(), held(payload)?)?;
        let ready = |state: &mut State<Endpoints>, _: &mut Direct<'_>| {
            state.serve(id, Some(payload.into()));
            state.take_send(id).map(|(done, _)| done)
        };
        let (mut engine, result) = self.wait(engine, "send", &mut Direct::default(), ready);
        if result.is_err() {
            engine.state.drop_send(id);
            engine.state.pump();
        }
        result?
    }

    /// Receives a message into the caller's memory.
    #[inline]
    pub(crate) fn receive(&self, pattern: Pattern, mut room: Room<'_>) -> Received {
        if let Room::Slice(memory) = &mut room {
            if let Some(received) = self.receive_early(&pattern, memory) {
                return Ok(received);
            }
        }
        self.try_receive(pattern, room).map_err(|error| self.cause(error))
    }

    /// See [`Engine::receive_early`]. What it returns is small: results of calls that may fail in
    /// many ways are many words, which would be moved for each message.
    #[inline]
    fn receive_early(&self, pattern: &Pattern, memory: &mut [u8]) -> Option<(Envelope, u64)> {
        if self.session.must_be_here().is_err() {
            return None;
        }
        let mut engine = self.engine.try_lock().ok()?;
        if engine.state.matcher.probe(pattern).is_some() {
            return None;
        }
        let looks = if self.session.steps_node() { 1 } else { engine.patience.looks() };
        engine.receive_early(pattern, memory, looks)
    }

    #[inline(never)]
    fn try_receive(&self, pattern: Pattern, room: Room<'_>) -> Received {
        let mut engine = self.lock()?;
        engine.check()?;
        let len = room.len();
        let (place, memory) = parts_of(room);
        let mut direct = Direct { receive: None, memory };
        let id = engine.state.receive(pattern, len, place, None, &mut direct)?;
        let ready = |state: &mut State<Endpoints>, direct: &mut Direct<'_>| state.take_receive_of(id, direct);
        let (mut engine, result) = self.wait(engine, "receive", &mut direct, ready);
        if result.is_err() {
            engine.state.drop_receive(id);
            engine.state.pump();
        }
        result?
    }

    /// Sends one message and receives another, in whatever order the other member does it.
    pub(crate) fn exchange(
        &self,
        to: (u32, u32, u64),
        payload: Payload<'_>,
        pattern: Pattern,
        mut room: Room<'_>,
    ) -> Received {
        let mut sent = false;
        if let Room::Slice(memory) = &mut room {
            if let Some(received) = self.exchange_early(to, payload, &pattern, memory, &mut sent) {
                return Ok(received);
            }
        }
        self.try_exchange(to, payload, pattern, room, sent).map_err(|error| self.cause(error))
    }

    /// As [`receive_early`](Self::receive_early), after a send that goes at once. `sent`: that has
    /// gone.
    #[inline]
    fn exchange_early(
        &self,
        (rank, context, tag): (u32, u32, u64),
        payload: Payload<'_>,
        pattern: &Pattern,
        memory: &mut [u8],
        sent: &mut bool,
    ) -> Option<(Envelope, u64)> {
        if self.session.must_be_here().is_err() {
            return None;
        }
        let mut engine = self.engine.try_lock().ok()?;
        if !engine.state.is_plain() {
            return None;
        }
        // A send that fails is made again, and says so.
        *sent = match payload {
            Payload::Slice(bytes) if engine.state.send_at_once(rank, context, tag, bytes) => true,
            payload => engine.state.send_now(rank, context, tag, payload.into()) == Ok(true),
        };
        if !*sent || engine.state.matcher.probe(pattern).is_some() {
            return None;
        }
        let looks = if self.session.steps_node() { 1 } else { engine.patience.looks() };
        engine.receive_early(pattern, memory, looks)
    }

    fn try_exchange(
        &self,
        (rank, context, tag): (u32, u32, u64),
        payload: Payload<'_>,
        pattern: Pattern,
        room: Room<'_>,
        sent: bool,
    ) -> Received {
        let mut engine = self.lock()?;
        engine.check()?;
        let len = room.len();
        let (place, memory) = parts_of(room);
        let mut direct = Direct { receive: None, memory };
        let receive = engine.state.receive(pattern, len, place, None, &mut direct)?;
        let mut begin = || match sent || engine.state.send_now(rank, context, tag, payload.into())? {
            true => Ok(None),
            false => engine.state.send_in_turn(rank, context, tag, payload.len(), held(payload)?).map(Some),
        };
        let mut send = match begin() {
            Ok(send) => send,
            Err(error) => {
                engine.state.drop_receive(receive);
                return Err(error);
            }
        };
        let begun = send;
        let mut received = None;
        let ready = |state: &mut State<Endpoints>, direct: &mut Direct<'_>| {
            if let Some(id) = send {
                state.serve(id, Some(payload.into()));
                match state.take_send(id) {
                    Some((Err(error), _)) => return Some(Err(error)),
                    Some((Ok(()), _)) => send = None,
                    None => {}
                }
            }
            received = received.take().or_else(|| state.take_receive_of(receive, direct));
            match (&received, send) {
                (Some(Err(_)), _) | (Some(_), None) => received.take(),
                _ => None,
            }
        };
        let (mut engine, result) = self.wait(engine, "exchange", &mut direct, ready);
        let result = result.and_then(|result| result);
        if result.is_err() {
            engine.state.drop_receive(receive);
            begun.into_iter().for_each(|id| engine.state.drop_send(id));
            engine.state.pump();
        }
        result
    }
}

/// How far a wait is.
struct Wait {
    turns: u32,
    /// Looks that found nothing, since something came.
    idle: u32,
    /// Looks before it yields.
    looks: u32,
    /// It yields after its looks, and no yield was long.
    may_yield: bool,
    end: Option<Deadline>,
    /// Looks in vain for room.
    yields: u32,
    pause: Duration,
}

/// Memory for a receive: a place of its own, or the caller's.
fn parts_of(room: Room<'_>) -> (Option<Place>, Option<&mut [u8]>) {
    match room {
        Room::Slice(slice) => (None, Some(slice)),
        Room::Place(place) => (Some(place.clone()), None),
    }
}

/// What a send of the caller's memory holds: a short one a copy, so that it can go without him.
fn held(payload: Payload<'_>) -> Result<Held<Box<dyn HeldPayload>>, MpError> {
    let short = payload.len() <= crate::limits::EAGER_BYTES_MAX;
    if short { Ok(Held::Copy(payload.to_vec()?)) } else { Ok(Held::Caller) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_yield_at_once_where_too_many_look_in_vain() {
        // Of waits in looking mode one in so many looks in vain; says whether they come to rest.
        let rests = |one_in: u32| {
            let mut patience = Patience::default();
            for wait in 0..1_000 {
                if patience.looks() == 1 {
                    return true;
                }
                if wait % one_in == 0 { patience.vain() } else { patience.found_after(1) }
            }
            false
        };
        let found = [1, 2, 3, 4, 5, 6, 10].map(rests);
        assert_eq!(found, [true, true, true, true, false, false, false]);
        let mut patience = Patience::default();
        (0..VAIN_LOOKS).for_each(|_| patience.vain());
        for _ in 0..RESTING_WAITS {
            assert_eq!(patience.looks(), 1);
            patience.found_after(0);
            patience.vain();
        }
        assert_eq!(patience.looks(), LOOKS, "one looks again");
    }
}
