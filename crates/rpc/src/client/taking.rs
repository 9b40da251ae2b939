//! What threads of a client do for each other: messages go out, answers come in, continuations run.
//!
//! Invariant: of those that wait, one takes answers; whoever takes one tells those whose it is with
//! no lock held. Source: [GMS §3].

use super::{Answer, Answers, Begun, Continued, Inner, Known, Landing, Outcome, Ready, Sink, Then, Waits};
use crate::client::Bulk;
use crate::error::RpcError;
use crate::limits::{
    BACKGROUND_LOOK_EVERY, BODY_BYTES_MAX, CALLS_MAX, LIVENESS_EVERY, MESSAGES_PER_LOOK, NOT_NOW_PAUSE,
};
use crate::pieces::{Rest, Said, add_to_result};
use crate::wire::{self, CallId, Encoded, Message, Origin, Status};
use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;
use vmmc::{ByToken, Connection, Gather, MessageError, TokenBuffer, TokenError, WaitError};
use vmmc_host::{Deadline, Nanos};

impl Inner {
    /// Not in the child of a fork: another thread may have held any of the locks.
    pub(crate) fn must_be_here(&self) -> Result<(), RpcError> {
        let access = |error| RpcError::Access { service: self.service.clone(), error };
        self.clock.must_be_here().map_err(access)
    }

    pub(super) fn arm(&self, landing: Landing<'_>) -> Result<Option<TokenBuffer>, RpcError> {
        let armed = match landing {
            Landing::None => return Ok(None),
            Landing::Buffer => self.buffers.arm(),
            Landing::Region(region, bytes) => self.buffers.arm_region(region, bytes),
        };
        armed.map(Some).map_err(|error| self.token_error(error))
    }

    pub(super) fn token_error(&self, error: TokenError) -> RpcError {
        RpcError::Token { service: self.service.clone(), error: Box::new(error) }
    }

    pub(crate) fn send_request(
        &self,
        head: wire::Request,
        arguments: &[u8],
        bulk: &[u8],
        timeout: Duration,
    ) -> Result<(), RpcError> {
        if arguments.len() + bulk.len() <= head.inline_bytes_max() {
            let mut control = Encoded::default();
            Message::Request { head, body: arguments }.encode_into(&mut control);
            control.put(bulk);
            let sent = self.to().send_within(control.bytes(), b"", timeout);
            return sent.map_err(|error| self.not_sent(error, timeout));
        }
        self.send_body(head.id, &Message::Request { head, body: b"" }, &[arguments, bulk], timeout)
    }

    /// Sends a message with a body as its payload, in pieces if that is too long for one.
    fn send_body(&self, id: CallId, message: &Message<'_>, body: &[&[u8]], timeout: Duration) -> Result<(), RpcError> {
        let len = body.iter().map(|part| part.len() as u64).sum();
        if len > BODY_BYTES_MAX {
            let service = self.service.clone();
            return Err(RpcError::ArgumentsTooLong { service, len, max: BODY_BYTES_MAX });
        }
        let deadline = self.clock.deadline(timeout);
        // Until all is sent nobody else sends here, so that pieces follow each other.
        let mut to = self.to();
        let most = to.frame_bytes() as usize;
        let mut rest = Rest(body.iter().copied().filter(|part| !part.is_empty()).collect());
        let mut send = |control: &[u8], pieces: &[&[u8]]| {
            let left = deadline.left(self.now()).unwrap_or_default();
            to.send_within(control, Gather(pieces), left).map_err(|error| self.not_sent(error, timeout))
        };
        let part = Message::Part { id }.encode();
        while most > 0 && rest.len() > most {
            send(part.bytes(), &rest.take(most))?;
        }
        send(message.encode().bytes(), &rest.0)
    }

    /// Passes a call on to the server.
    pub(crate) fn send_forward(
        &self,
        head: wire::Request,
        origin: &Origin,
        arguments: &[u8],
        bulk: &[u8],
    ) -> Result<(), RpcError> {
        let origin = origin.encode();
        self.send_body(head.id, &Message::Forward { head }, &[&origin[..], arguments, bulk], head.left)
    }

    fn not_sent(&self, error: MessageError, timeout: Duration) -> RpcError {
        let service = self.service.clone();
        match error {
            MessageError::PayloadTooLong { len, max, .. } => RpcError::ArgumentsTooLong { service, len, max },
            MessageError::Full { .. } => {
                RpcError::TimedOut { service, after_ms: timeout.as_millis() as u64, may_have_happened: false }
            }
            error => RpcError::Message { service, error: Box::new(error) },
        }
    }

    /// Tells the server that nobody wants the answer any more, if there is room for that.
    pub(super) fn withdraw(&self, id: CallId) {
        let _ = self.to().send_within(Message::Cancel { id }.encode().bytes(), b"", Duration::ZERO);
    }

    /// The same of a call that was passed on.
    pub(crate) fn withdraw_for(&self, origin: &Origin, id: CallId) {
        let control = Message::Cancel { id }.encode();
        let _ = self.to().send_within(control.bytes(), &origin.encode(), Duration::ZERO);
    }

    /// Calls that were passed on to the server, which cannot reach their callers, and why.
    pub(crate) fn undelivered(&self) -> Vec<(CallId, Vec<u8>)> {
        self.poll();
        std::mem::take(&mut self.undelivered.lock().expect("no panic while the lock is held"))
    }

    pub(super) fn poll(&self) {
        if let Ok(mut answers) = self.answers.try_lock() {
            let Answers { endpoint, message } = &mut *answers;
            let (mut known, mut settled) = (None, Settled::default());
            for _ in 0..MESSAGES_PER_LOOK {
                let Ok(true) = endpoint.poll_into(message) else { break };
                let known = known.get_or_insert_with(|| self.known());
                self.take(known, message, (NO_CALL, &mut None), &mut settled);
            }
            drop(known);
            self.tell(&mut settled);
            drop(answers);
            self.pass_turn();
        }
        self.tend();
        self.run_ready();
    }

    /// Takes the outcome of a call, if it is there.
    pub(super) fn collect(&self, id: CallId) -> Option<Outcome> {
        self.known().calls.collect(id)
    }

    /// Waits until a call has its outcome: takes answers, or lets another thread.
    pub(super) fn wait(&self, Begun { id, at, deadline }: Begun) -> Outcome {
        let mut until = Deadline(at + LIVENESS_EVERY).min(deadline);
        loop {
            let mut outcome = None;
            match self.answers.try_lock() {
                Ok(mut answers) => {
                    let received = self.receive(&mut answers, id, until, &mut outcome);
                    drop(answers);
                    self.pass_turn();
                    if let Err(error) = received {
                        self.lose(|service| RpcError::Wait { service, error: error.clone() });
                        outcome = self.collect(id);
                    }
                }
                Err(_) => {
                    self.follow(id, until);
                    outcome = self.collect(id);
                }
            }
            // While answers come, the clock is looked at now and then.
            if outcome.is_none() || self.unlooked.fetch_add(1, Ordering::Relaxed) >= MESSAGES_PER_LOOK {
                self.unlooked.store(0, Ordering::Relaxed);
                self.tend();
            }
            self.run_ready();
            if let Some(outcome) = outcome {
                return outcome;
            }
            until = self.clock.deadline(LIVENESS_EVERY).min(deadline);
        }
    }

    /// Whether no call is under way and no continuation is to run.
    pub(crate) fn is_idle(&self) -> bool {
        self.known().calls.len() == 0 && self.ready.len() == 0
    }

    /// Takes answers for a while, for whoever waits; not beyond this time.
    pub(crate) fn drive(&self, until: Deadline) {
        // A continuation that said "not now" is to run again soon.
        let soon = self.ready.len() > 0;
        let until = self.clock.deadline(if soon { NOT_NOW_PAUSE } else { BACKGROUND_LOOK_EVERY }).min(until);
        match self.answers.try_lock() {
            Ok(mut answers) => {
                // Until there is an answer, or something to run: others may wait for their turn.
                let Answers { endpoint, message } = &mut *answers;
                let failed = match endpoint.wait_into(message, until) {
                    Ok(()) => {
                        self.take_one(message, NO_CALL, &mut None);
                        None
                    }
                    Err(WaitError::TimedOut { .. }) => None,
                    Err(error) => Some(error),
                };
                drop(answers);
                self.pass_turn();
                if let Some(error) = failed {
                    self.lose(|service| RpcError::Wait { service, error: error.clone() });
                }
            }
            // Another thread takes them.
            Err(_) => self.follow(NO_CALL, until),
        }
        self.tend();
        self.run_ready();
    }

    /// Takes answers until a call has its outcome, or a continuation is to run, or this time.
    ///
    /// # Errors
    /// Nothing more can come.
    #[inline]
    fn receive(
        &self,
        answers: &mut Answers,
        id: CallId,
        until: Deadline,
        outcome: &mut Option<Outcome>,
    ) -> Result<(), WaitError> {
        // Another thread may have taken it just before it passed the turn.
        *outcome = self.collect(id);
        let Answers { endpoint, message } = answers;
        while outcome.is_none() {
            match endpoint.wait_into(message, until) {
                Ok(()) if self.take_one(message, id, outcome) => return Ok(()),
                Ok(()) => {}
                Err(WaitError::TimedOut { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits while another thread takes answers.
    fn follow(&self, id: CallId, until: Deadline) {
        self.followers.fetch_add(1, Ordering::SeqCst);
        let turn = self.turn.lock().expect("no panic while the lock is held");
        if !self.known().calls.is_done(id) && self.answers.try_lock().is_err() {
            let left = until.left(self.now()).unwrap_or_default();
            let _ = self.turned.wait_timeout(turn, left);
        }
        self.followers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes those that wait for an outcome, or for their turn to take answers.
    fn pass_turn(&self) {
        if self.followers.load(Ordering::SeqCst) > 0 {
            drop(self.turn.lock().expect("no panic while the lock is held"));
            self.turned.notify_all();
        }
    }

    /// An answer, or something that is none. That of the call `own` goes to who takes it. True: a
    /// continuation is to run.
    #[inline]
    fn take_one(&self, message: &mut vmmc::Message, own: CallId, outcome: &mut Option<Outcome>) -> bool {
        let mut settled = Settled::default();
        self.take(&mut self.known(), message, (own, outcome), &mut settled);
        let continued = !settled.continued.is_empty();
        self.tell(&mut settled);
        continued
    }

    /// One of several; whoever is to be told is so later.
    #[inline]
    fn take(
        &self,
        known: &mut Known,
        message: &mut vmmc::Message,
        (own, own_outcome): (CallId, &mut Option<Outcome>),
        settled: &mut Settled,
    ) {
        let frame = message.take_payload();
        let (id, status, body) = match Message::decode(message.control()) {
            Some(Message::Answer { id, status, body }) => (id, status, body),
            Some(Message::Part { id }) => {
                let waits = known.calls.get_mut(id);
                return frame.iter().zip(waits).for_each(|(frame, waits)| add_to_result(&mut waits.begun, frame));
            }
            _ => return,
        };
        let by_token = message.by_token();
        let mut said = Said { begun: Vec::new(), body, frame };
        let found = known.calls.settle(id, |waits| {
            said.begun = std::mem::take(&mut waits.begun);
            let outcome = self.outcome((status, by_token), &mut said, waits);
            if id == own {
                *own_outcome = Some(outcome);
                return None;
            }
            settled.sort(&mut waits.sink, outcome)
        });
        if !found && status == Status::DelegateLost {
            let mut undelivered = self.undelivered.lock().expect("no panic while the lock is held");
            if undelivered.len() < CALLS_MAX {
                undelivered.push((id, said.take()));
            }
        }
    }

    /// What an answer says of a call that waits for it.
    #[inline]
    fn outcome(
        &self,
        (status, by_token): (Status, Option<ByToken>),
        said: &mut Said<'_>,
        waits: &mut Waits,
    ) -> Outcome {
        let Waits { method, in_frame, .. } = *waits;
        if status != Status::Done {
            return Err(self.error_of(status, method, &said.take()));
        }
        let service = || self.service.clone();
        let bulk = match (by_token, waits.buffer.take()) {
            (None, _) => None,
            (Some(by_token), Some(buffer)) if by_token.token == buffer.token() => {
                let len = by_token.len.map_err(|why| RpcError::BulkDropped { service: service(), why })?;
                Some(Bulk { buffer, len })
            }
            (Some(_), _) => return Err(RpcError::BadResult { service: service(), method }),
        };
        let frame = said.frame.take_if(|_| in_frame && said.begun.is_empty());
        let result = if frame.is_some() { Vec::new() } else { said.take() };
        Ok(Answer { result, frame, bulk })
    }

    fn error_of(&self, status: Status, method: u16, said: &[u8]) -> RpcError {
        let service = self.service.clone();
        let message = || String::from_utf8_lossy(said).into_owned();
        match status {
            Status::Done => unreachable!("that is no error"),
            Status::Failed => RpcError::Failed { service, message: message() },
            Status::NoMethod => RpcError::NoMethod { service, method },
            Status::Busy => RpcError::Busy { service },
            Status::Late => RpcError::TimedOut { service, after_ms: 0, may_have_happened: false },
            Status::Cancelled => RpcError::Cancelled { service },
            Status::BadArguments => RpcError::BadArguments { service, method },
            Status::Panicked => RpcError::Panicked { service, method },
            Status::DelegateLost => RpcError::Lost { service, why: message() },
            Status::Unanswered => RpcError::NoAnswer { service, method },
            Status::ResultTooLong => RpcError::ResultTooLong { service, method },
        }
    }

    /// Tells those who wait, with no lock held.
    #[inline]
    fn tell(&self, settled: &mut Settled) {
        if !settled.is_empty() {
            self.tell_all(settled);
        }
    }

    fn tell_all(&self, settled: &mut Settled) {
        let Settled { continued, woken, fetched } = std::mem::take(settled);
        if !continued.is_empty() {
            self.ready.push(continued);
        }
        woken.into_iter().for_each(Waker::wake);
        if fetched {
            self.pass_turn();
        }
    }

    /// Ends calls whose time is over, and all if the server is lost.
    fn tend(&self) {
        let now = self.now();
        let (mut over, mut settled) = (Vec::new(), Settled::default());
        let look = {
            let mut known = self.known();
            let look = now.since(known.looked_at) >= LIVENESS_EVERY;
            if look {
                known.looked_at = now;
            }
            known.calls.expire(now, |id, waits| {
                over.push(id);
                let after_ms = waits.timeout.as_millis() as u64;
                let service = self.service.clone();
                settled.sort(&mut waits.sink, Err(RpcError::TimedOut { service, after_ms, may_have_happened: true }))
            });
            look
        };
        self.tell(&mut settled);
        over.into_iter().for_each(|id| self.withdraw(id));
        if look {
            if let Some(error) = self.broken() {
                self.lose(|service| RpcError::Lost { service, why: error.clone() });
            }
        }
    }

    /// Why the server cannot be reached any more, if so.
    pub(crate) fn broken(&self) -> Option<String> {
        // Who sends now learns it by itself.
        self.to.try_lock().ok()?.broken().map(|error| error.to_string())
    }

    /// Ends all calls: nobody will answer them.
    fn lose(&self, error: impl Fn(String) -> RpcError) {
        let mut settled = Settled::default();
        self.known().calls.lose(|_, waits| settled.sort(&mut waits.sink, Err(error(self.service.clone()))));
        self.tell(&mut settled);
    }

    /// Runs continuations, each once.
    fn run_ready(&self) {
        if self.ready.len() == 0 {
            return;
        }
        let mut run = self.ready.take();
        while let Some((mut continuation, mut outcome)) = run.left.pop_front() {
            if continuation(&mut outcome) == Then::NotNow {
                run.again.push((continuation, outcome));
            }
        }
    }

    /// As the session counts time.
    pub(super) fn now(&self) -> Nanos {
        self.clock.deadline(Duration::ZERO).0
    }

    fn to(&self) -> MutexGuard<'_, Connection> {
        self.to.lock().expect("no panic while the lock is held")
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.calls.lock().expect("no panic while the lock is held")
    }
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn push(&self, continued: Vec<Continued>) {
        let mut queue = self.queue();
        queue.extend(continued);
        self.count.store(queue.len(), Ordering::Release);
    }

    /// All that there are now. They count until they have run.
    fn take(&self) -> Run<'_> {
        let left = std::mem::take(&mut *self.queue());
        Run { ready: self, left, again: Vec::new() }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Continued>> {
        self.queue.lock().expect("no panic while the lock is held")
    }
}

/// Continuations that one thread runs.
struct Run<'a> {
    ready: &'a Ready,
    left: VecDeque<Continued>,
    /// Those that said "not now".
    again: Vec<Continued>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut queue = self.ready.queue();
        // Those that a panic of another one left come first again.
        self.left.drain(..).rev().for_each(|continued| queue.push_front(continued));
        queue.extend(self.again.drain(..));
        self.ready.count.store(queue.len(), Ordering::Release);
    }
}

/// Those who are to be told of outcomes.
#[derive(Default)]
struct Settled {
    continued: Vec<Continued>,
    woken: Vec<Waker>,
    /// Whether there are outcomes to be fetched.
    fetched: bool,
}

impl Settled {
    fn is_empty(&self) -> bool {
        self.continued.is_empty() && self.woken.is_empty() && !self.fetched
    }

    /// Sorts an outcome by who gets it: gives it back if it is to be fetched.
    fn sort(&mut self, sink: &mut Sink, outcome: Outcome) -> Option<Outcome> {
        match std::mem::replace(sink, Sink::Fetched(None)) {
            Sink::Fetched(waker) => {
                self.woken.extend(waker);
                self.fetched = true;
                Some(outcome)
            }
            Sink::Then(continuation) => {
                self.continued.push((continuation, outcome));
                None
            }
        }
    }
}

/// No call has it.
const NO_CALL: CallId = CallId { index: u32::MAX, key: 0 };
