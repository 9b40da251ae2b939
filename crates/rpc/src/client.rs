//! Clients: calls of a service, waited for, polled, or continued.
//!
//! Any thread calls. Of those that wait, one takes answers from the endpoint, for all; when it has
//! its own, another one does.
//!
//! Invariant: an answer is believed if it names a call by its key; whoever has the call has it.
//! Continuations run in calls of the client, with none of its locks held. Source: [GMS §3]
//! nonblocking calls, continuations, deferred continuations.

use crate::calls::Calls;
use crate::error::RpcError;
use crate::limits::{
    BACKGROUND_LOOK_EVERY, BODY_BYTES_MAX, BULK_DEFAULT, CALLS_MAX, FRAMES_DEFAULT, LIVENESS_EVERY, MESSAGES_PER_LOOK,
    NOT_NOW_PAUSE, SERVICE_NAME_BYTES_MAX,
};
use crate::wire::{self, CallId, Message, Origin, Status, VERSION};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;
use vmmc::{
    Access, AccessError, ByToken, Connection, Endpoint, Frame, Gather, MessageError, Session, TokenBuffer, TokenPool,
    WaitError,
};
use vmmc_host::os::RandomWords;
use vmmc_host::{Deadline, Nanos};

/// How the names of endpoints for calls begin.
#[doc(hidden)]
pub const SERVICE_PREFIX: &str = "rpc.";
/// How the names of endpoints for answers begin.
pub(crate) const ANSWERS_PREFIX: &str = "rpc-answers.";

/// A way to a service, for any number of threads; clones share it.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// Choices for a client; made by [`Client::new`].
#[must_use = "there is no client before `connect`"]
pub struct ClientBuilder {
    session: Session,
    service: String,
    node: Option<String>,
    owner: Option<u32>,
    timeout: Option<Duration>,
    access: Access,
    frames: (u64, u64),
    bulk: (u64, u64),
}

pub(crate) struct Inner {
    service: String,
    /// By which servers of this process know it when they pass calls on.
    pub(crate) number: u64,
    timeout: Duration,
    /// The session, for its clock.
    clock: Session,
    to: Mutex<Connection>,
    answers: Mutex<Endpoint>,
    buffers: TokenPool,
    calls: Mutex<Known>,
    /// Continuations whose answer is there, and those that said "not now".
    ready: Mutex<VecDeque<Continued>>,
    /// Threads that wait while another one takes answers.
    followers: AtomicUsize,
    turn: Mutex<()>,
    turned: Condvar,
    /// Calls that were passed on to the server, which cannot reach their callers, and why.
    undelivered: Mutex<Vec<(CallId, Vec<u8>)>>,
    /// Answers since the clock was last looked at.
    unlooked: AtomicU32,
    /// The thread that takes answers for futures, if there is one.
    pub(crate) background: Mutex<Option<Thread>>,
}

struct Known {
    calls: Calls<Waits, Outcome>,
    keys: RandomWords,
    /// When the server was last looked at.
    looked_at: Nanos,
}

/// What waits for an outcome.
struct Waits {
    method: u16,
    timeout: Duration,
    buffer: Option<TokenBuffer>,
    /// A long result stays in its frame.
    in_frame: bool,
    /// The beginning of a result that comes in pieces.
    begun: Vec<u8>,
    sink: Sink,
}

enum Sink {
    /// Whoever made the call fetches the outcome; a future is woken.
    Fetched(Option<Waker>),
    Then(Continuation),
}

type Outcome = Result<Answer, RpcError>;
type Continuation = Box<dyn FnMut(&mut Outcome) -> Then + Send>;
type Continued = (Continuation, Outcome);

/// What a continuation says of itself [GMS §3].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It has run.
    Done,
    /// It could not run now, and has changed nothing: again later.
    NotNow,
}

/// What a call gave.
#[derive(Debug)]
pub struct Answer {
    /// The result; empty if it was left in its frame.
    pub result: Vec<u8>,
    /// The result in its frame, if it was to be left there and was too long to come without one.
    pub frame: Option<Frame>,
    /// The bulk result, if one was asked for and given.
    pub bulk: Option<Bulk>,
}

/// A bulk result, where it has landed.
#[derive(Debug)]
pub struct Bulk {
    buffer: TokenBuffer,
    len: u64,
}

impl Bulk {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]: the range reaches past the result. [`AccessError::Forked`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let len = into.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(AccessError::OutOfBounds { offset, len, size: self.len });
        }
        self.buffer.read(offset, into)
    }

    /// A copy of all of it.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut copy = vec![0; self.len as usize];
        self.read(0, &mut copy)?;
        Ok(copy)
    }

    /// First byte, for callers that take the responsibility of shared memory themselves: valid
    /// until this is dropped. A server of the same node could write there at any time.
    pub fn as_ptr(&self) -> *const u8 {
        self.buffer.as_ptr()
    }
}

/// A call that is made; from [`Client::request`].
#[must_use = "nothing is called before `call`, `start` or `then`"]
pub struct Request<'a> {
    client: &'a Client,
    method: u16,
    arguments: &'a [u8],
    bulk: &'a [u8],
    wants_bulk: bool,
    in_frame: bool,
    timeout: Duration,
}

/// A call under way, to be polled, waited for, or awaited in whatever executor. Dropping it
/// withdraws it.
#[must_use = "dropping it withdraws the call"]
pub struct Pending {
    pub(crate) client: Client,
    call: Begun,
    /// Whether the outcome has been fetched.
    fetched: bool,
}

/// A call that is under way.
#[derive(Clone, Copy)]
struct Begun {
    id: CallId,
    at: Nanos,
    deadline: Deadline,
}

impl ClientBuilder {
    /// Name or `address:port` of the node of the service; default this node.
    pub fn node(mut self, node: &str) -> Self {
        self.node = Some(node.to_string());
        self
    }

    /// The service of this user only; by default of this process's own user, or else of root.
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = Some(uid);
        self
    }

    /// How long a call waits for its answer, unless it says otherwise, and `connect` for the
    /// service, which need not exist yet; default the session's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Who may answer: the server, and those that it passes calls on to; default processes of the
    /// same user.
    pub fn answered_by(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Frames for long results: so many, of so many bytes, for each process that answers; default 4
    /// of 16 KiB. A result that is longer than one comes in pieces.
    pub fn frames(mut self, count: u64, bytes: u64) -> Self {
        self.frames = (count, bytes);
        self
    }

    /// Buffers for bulk results, each of which is in use from the call until its [`Bulk`] is
    /// dropped; default 8 of 64 KiB.
    pub fn bulk(mut self, count: u64, bytes: u64) -> Self {
        self.bulk = (count, bytes);
        self
    }

    /// Connects: the server has to run meanwhile.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn connect(self) -> Result<Client, RpcError> {
        let ClientBuilder { session, service, node, owner, timeout, access, frames, bulk } = self;
        check_name(&service).map_err(|()| RpcError::BadName { service: service.clone() })?;
        let system = |e: std::io::Error| RpcError::System { service: service.clone(), why: e.to_string() };
        let timeout = timeout.unwrap_or_else(|| session.timeout());
        let mut keys = RandomWords::default();
        let number = keys.next().map_err(system)?;
        let name = format!("{ANSWERS_PREFIX}{number:016x}");
        let answers = session.endpoint(&name).access(access).frames(frames.0, frames.1).tokens(bulk.0, bulk.1).create();
        let mut answers =
            answers.map_err(|error| RpcError::Endpoint { service: service.clone(), error: Box::new(error) })?;
        let deadline = session.deadline(timeout);
        let mut builder = session.connect(&format!("{SERVICE_PREFIX}{service}")).wait(timeout);
        builder = node.iter().fold(builder, |builder, node| builder.node(node));
        builder = owner.into_iter().fold(builder, |builder, uid| builder.owner(uid));
        let mut to =
            builder.open().map_err(|error| RpcError::Connect { service: service.clone(), error: Box::new(error) })?;

        let hello = Message::Hello { version: VERSION, uid: rustix::process::getuid().as_raw(), endpoint: &name };
        to.send(hello.encode().bytes(), b"")
            .map_err(|error| RpcError::Message { service: service.clone(), error: Box::new(error) })?;
        let theirs = loop {
            let message = answers.wait_by(deadline).map_err(|error| match error {
                WaitError::TimedOut { .. } => {
                    RpcError::Unanswered { service: service.clone(), after_ms: timeout.as_millis() as u64 }
                }
                error => RpcError::Wait { service: service.clone(), error },
            })?;
            if let Some(Message::Welcome { version }) = Message::decode(message.control()) {
                break version;
            }
        };
        if theirs != VERSION {
            return Err(RpcError::Version { service, theirs, ours: VERSION });
        }
        let buffers = answers.token_pool().expect("it was made with one").clone();
        let looked_at = session.deadline(Duration::ZERO).0;
        let inner = Inner {
            service,
            number,
            timeout,
            clock: session,
            to: Mutex::new(to),
            answers: Mutex::new(answers),
            buffers,
            calls: Mutex::new(Known { calls: Calls::default(), keys, looked_at }),
            ready: Mutex::default(),
            followers: AtomicUsize::new(0),
            turn: Mutex::new(()),
            turned: Condvar::new(),
            undelivered: Mutex::default(),
            unlooked: AtomicU32::new(0),
            background: Mutex::default(),
        };
        Ok(Client { inner: Arc::new(inner) })
    }
}

/// Whether a service can have this name.
pub(crate) fn check_name(name: &str) -> Result<(), ()> {
    if name.is_empty() || name.len() > SERVICE_NAME_BYTES_MAX { Err(()) } else { Ok(()) }
}

impl Client {
    /// A client of the service of this name.
    #[allow(clippy::new_ret_no_self)] // the choices come first
    pub fn new(session: &Session, service: &str) -> ClientBuilder {
        ClientBuilder {
            session: session.clone(),
            service: service.to_string(),
            node: None,
            owner: None,
            timeout: None,
            access: Access::default(),
            frames: FRAMES_DEFAULT,
            bulk: BULK_DEFAULT,
        }
    }

    /// Name of the service.
    pub fn service(&self) -> &str {
        &self.inner.service
    }

    /// Calls a method, and waits for its result.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn call(&self, method: u16, arguments: &[u8]) -> Result<Vec<u8>, RpcError> {
        self.request(method).arguments(arguments).call().map(|answer| answer.result)
    }

    /// A call of a method, to be made with more than arguments, or not to be waited for.
    pub fn request(&self, method: u16) -> Request<'_> {
        let timeout = self.inner.timeout;
        Request { client: self, method, arguments: &[], bulk: &[], wants_bulk: false, in_frame: false, timeout }
    }

    /// Takes answers that have come, and runs their continuations; does not wait. Those that said
    /// "not now" run again.
    pub fn poll(&self) {
        if self.inner.must_be_here().is_ok() {
            self.inner.poll();
        }
    }

    /// Calls without an outcome.
    pub fn outstanding(&self) -> usize {
        self.inner.must_be_here().map_or(0, |()| self.inner.known().calls.len())
    }

    /// Continuations that are to run: at the next [`poll`](Self::poll), or while a call is waited
    /// for.
    pub fn deferred(&self) -> usize {
        self.inner.must_be_here().map_or(0, |()| self.inner.ready().len())
    }
}

impl<'a> Request<'a> {
    /// The arguments.
    pub fn arguments(mut self, arguments: &'a [u8]) -> Self {
        self.arguments = arguments;
        self
    }

    /// Bulk that goes with them; together they have up to 32 MiB. What is longer than a frame of
    /// the server goes in pieces, and the server copies it together.
    pub fn bulk(mut self, bulk: &'a [u8]) -> Self {
        self.bulk = bulk;
        self
    }

    /// Wants a bulk result, which lands in a buffer of the client.
    pub fn wants_bulk(mut self) -> Self {
        self.wants_bulk = true;
        self
    }

    /// Leaves a result that is too long to come with the answer, more than some 100 bytes, in the
    /// frame that it comes in, [`Answer::frame`]: nothing is copied. The server has that frame
    /// again when it is dropped.
    pub fn in_frame(mut self) -> Self {
        self.in_frame = true;
        self
    }

    /// How long to wait for the answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Calls, and waits for the answer.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn call(self) -> Result<Answer, RpcError> {
        let client = self.client;
        client.inner.wait(self.begin(Sink::Fetched(None))?)
    }

    /// Calls, and does not wait.
    ///
    /// # Errors
    /// [`RpcError`]: the call was not made.
    pub fn start(self) -> Result<Pending, RpcError> {
        let client = self.client.clone();
        let call = self.begin(Sink::Fetched(None))?;
        Ok(Pending { client, call, fetched: false })
    }

    /// Calls, and has this run when the answer, or an error, is there: in a call of the client from
    /// whatever thread, at the latest by [`Client::poll`] after the deadline. It may call in turn,
    /// and should not wait. If it says [`Then::NotNow`] it runs again later.
    ///
    /// # Errors
    /// [`RpcError`]: the call was not made, and this will not run.
    pub fn then(
        self,
        continuation: impl FnMut(&mut Result<Answer, RpcError>) -> Then + Send + 'static,
    ) -> Result<(), RpcError> {
        self.begin(Sink::Then(Box::new(continuation))).map(drop)
    }

    fn begin(self, sink: Sink) -> Result<Begun, RpcError> {
        let Request { client, method, arguments, bulk, wants_bulk, in_frame, timeout } = self;
        let inner = &*client.inner;
        let service = || inner.service.clone();
        inner.must_be_here()?;
        let at = inner.now();
        let deadline = Deadline(at + timeout);
        let buffer = if wants_bulk { Some(inner.arm()?) } else { None };
        let token = buffer.as_ref().map(TokenBuffer::token);
        let id = {
            let mut known = inner.known();
            let key = known.keys.next().map_err(|e| RpcError::System { service: service(), why: e.to_string() })?;
            let waits = Waits { method, timeout, buffer, in_frame, begun: Vec::new(), sink };
            let begun = known.calls.begin(key, deadline.0, waits);
            begun.ok_or_else(|| RpcError::TooManyCalls { service: service() })?
        };
        let head = wire::Request { id, method, left: timeout, token, arguments: arguments.len() as u32 };
        inner.send_request(head, arguments, bulk, timeout).inspect_err(|_| drop(inner.known().calls.end(id)))?;
        if let Some(thread) = &*inner.background.lock().expect("no panic while the lock is held") {
            thread.unpark();
        }
        Ok(Begun { id, at, deadline })
    }
}

impl Pending {
    /// The outcome, if it is there. Takes answers that have come.
    pub fn poll(&mut self) -> Option<Result<Answer, RpcError>> {
        let inner = &*self.client.inner;
        if let Err(error) = inner.must_be_here() {
            return Some(Err(error));
        }
        let outcome = inner.collect(self.call.id).or_else(|| {
            inner.poll();
            inner.collect(self.call.id)
        });
        self.fetched = outcome.is_some();
        outcome
    }

    /// Waits for the outcome until the deadline of the call.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn wait(mut self) -> Result<Answer, RpcError> {
        self.client.inner.must_be_here()?;
        self.fetched = true;
        self.client.inner.wait(self.call)
    }

    /// Takes the outcome, or has this woken when it is there.
    pub(crate) fn collect_or_wake(&mut self, waker: &Waker) -> Option<Outcome> {
        let mut known = self.client.inner.known();
        let outcome = known.calls.collect(self.call.id);
        if let Some(Waits { sink: Sink::Fetched(place), .. }) = known.calls.get_mut(self.call.id) {
            *place = Some(waker.clone());
        }
        self.fetched = outcome.is_some();
        outcome
    }

    /// The outcome, if it is there within this time. If not, the call goes on, until its deadline.
    pub fn wait_within(&mut self, time: Duration) -> Option<Result<Answer, RpcError>> {
        let until = self.client.inner.clock.deadline(time);
        loop {
            if let Some(outcome) = self.poll() {
                return Some(outcome);
            }
            let inner = &*self.client.inner;
            if until.left(inner.now()).is_none_or(|left| left.is_zero()) {
                return None;
            }
            inner.drive(until.min(self.call.deadline));
        }
    }

    /// Withdraws the call: no handler begins that has not begun, and its bulk result reaches
    /// nobody.
    pub fn cancel(self) {}
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.fetched || self.client.inner.must_be_here().is_err() {
            return;
        }
        let (inner, id) = (&*self.client.inner, self.call.id);
        let (withdrawn, outcome) = {
            let mut known = inner.known();
            (known.calls.end(id), known.calls.collect(id))
        };
        drop(outcome);
        if withdrawn.is_some() {
            inner.withdraw(id);
        }
    }
}

impl Inner {
    /// Not in the child of a fork: another thread may have held any of the locks.
    pub(crate) fn must_be_here(&self) -> Result<(), RpcError> {
        let access = |error| RpcError::Access { service: self.service.clone(), error };
        self.clock.must_be_here().map_err(access)
    }

    fn arm(&self) -> Result<TokenBuffer, RpcError> {
        self.buffers.arm().map_err(|error| RpcError::Token { service: self.service.clone(), error: Box::new(error) })
    }

    pub(crate) fn send_request(
        &self,
        head: wire::Request,
        arguments: &[u8],
        bulk: &[u8],
        timeout: Duration,
    ) -> Result<(), RpcError> {
        if arguments.len() + bulk.len() <= head.inline_bytes_max() {
            let control = Message::Request { head, body: arguments }.encode_with(bulk);
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
        let most = to.payload_bytes_max() as usize;
        let mut rest = Rest(body.to_vec());
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
    fn withdraw(&self, id: CallId) {
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

    fn poll(&self) {
        if let Ok(mut answers) = self.answers.try_lock() {
            while let Ok(Some(message)) = answers.poll() {
                self.take(message);
            }
            drop(answers);
            self.pass_turn();
        }
        self.tend();
        self.run_ready();
    }

    /// Takes the outcome of a call, if it is there.
    fn collect(&self, id: CallId) -> Option<Outcome> {
        self.known().calls.collect(id)
    }

    /// Waits until a call has its outcome: takes answers, or lets another thread.
    fn wait(&self, Begun { id, at, deadline }: Begun) -> Outcome {
        let mut until = Deadline(at + LIVENESS_EVERY).min(deadline);
        loop {
            match self.answers.try_lock() {
                Ok(mut answers) => {
                    let failed = self.receive(&mut answers, id, until);
                    drop(answers);
                    self.pass_turn();
                    if let Some(error) = failed {
                        self.lose(|service| RpcError::Wait { service, error: error.clone() });
                    }
                }
                Err(_) => self.follow(id, until),
            }
            let outcome = self.collect(id);
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
        self.known().calls.len() == 0 && self.ready().is_empty()
    }

    /// Takes answers for a while, for whoever waits; not beyond this time.
    pub(crate) fn drive(&self, until: Deadline) {
        // A continuation that said "not now" is to run again soon.
        let soon = !self.ready().is_empty();
        let until = self.clock.deadline(if soon { NOT_NOW_PAUSE } else { BACKGROUND_LOOK_EVERY }).min(until);
        match self.answers.try_lock() {
            Ok(mut answers) => {
                // Until there is an answer, or something to run: others may wait for their turn.
                let failed = match answers.wait_by(until) {
                    Ok(message) => {
                        self.take(message);
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
    fn receive(&self, answers: &mut Endpoint, id: CallId, until: Deadline) -> Option<WaitError> {
        // Another thread may have taken it just before it passed the turn.
        if self.known().calls.is_done(id) {
            return None;
        }
        loop {
            let taken = match answers.wait_by(until) {
                Ok(message) => self.take(message),
                Err(WaitError::TimedOut { .. }) => return None,
                Err(error) => return Some(error),
            };
            match taken {
                Taken::Outcome(of) if of != id => {}
                Taken::Nothing => {}
                Taken::Outcome(_) | Taken::Continuation => return None,
            }
        }
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

    /// An answer, or something that is none.
    fn take(&self, mut message: vmmc::Message) -> Taken {
        let frame = message.take_payload();
        let (id, status, body) = match Message::decode(message.control()) {
            Some(Message::Answer { id, status, body }) => (id, status, body),
            Some(Message::Part { id }) => {
                self.take_part(id, frame);
                return Taken::Nothing;
            }
            _ => return Taken::Nothing,
        };
        let mut settled = Settled::default();
        let by_token = message.by_token();
        let mut said = Said { begun: Vec::new(), body, frame };
        let found = self.known().calls.settle(id, |waits| {
            let Waits { method, buffer, in_frame, begun, sink, .. } = waits;
            said.begun = begun;
            settled.sort(sink, self.outcome((status, by_token), &mut said, method, buffer, in_frame))
        });
        if found {
            let continued = !settled.continued.is_empty();
            self.tell(settled);
            return if continued { Taken::Continuation } else { Taken::Outcome(id) };
        }
        if status == Status::DelegateLost {
            let mut undelivered = self.undelivered.lock().expect("no panic while the lock is held");
            if undelivered.len() < CALLS_MAX {
                undelivered.push((id, said.take()));
            }
        }
        Taken::Nothing
    }

    /// A piece of a result. One of a server that sends more than can be is dropped, as is what
    /// follows it: the result makes no sense then.
    fn take_part(&self, id: CallId, frame: Option<Frame>) {
        let Some(frame) = frame else { return };
        let mut known = self.known();
        if let Some(waits) = known.calls.get_mut(id) {
            if waits.begun.len() as u64 + frame.len() <= BODY_BYTES_MAX {
                waits.begun.extend(frame.to_vec());
            }
        }
    }

    /// What an answer says of a call that waits for it.
    fn outcome(
        &self,
        (status, by_token): (Status, Option<ByToken>),
        said: &mut Said<'_>,
        method: u16,
        buffer: Option<TokenBuffer>,
        in_frame: bool,
    ) -> Outcome {
        if status != Status::Done {
            return Err(self.error_of(status, method, &said.take()));
        }
        let service = || self.service.clone();
        let bulk = match (by_token, buffer) {
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
    fn tell(&self, settled: Settled) {
        let Settled { continued, woken, fetched } = settled;
        if !continued.is_empty() {
            self.ready().extend(continued);
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
                settled.sort(waits.sink, Err(RpcError::TimedOut { service, after_ms, may_have_happened: true }))
            });
            look
        };
        self.tell(settled);
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
        self.known().calls.lose(|_, waits| settled.sort(waits.sink, Err(error(self.service.clone()))));
        self.tell(settled);
    }

    /// Runs continuations, each once.
    fn run_ready(&self) {
        let count = self.ready().len();
        for _ in 0..count {
            let Some((mut continuation, mut outcome)) = self.ready().pop_front() else { return };
            if continuation(&mut outcome) == Then::NotNow {
                self.ready().push_back((continuation, outcome));
            }
        }
    }

    /// As the session counts time.
    fn now(&self) -> Nanos {
        self.clock.deadline(Duration::ZERO).0
    }

    fn to(&self) -> MutexGuard<'_, Connection> {
        self.to.lock().expect("no panic while the lock is held")
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.calls.lock().expect("no panic while the lock is held")
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<Continued>> {
        self.ready.lock().expect("no panic while the lock is held")
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
    /// Sorts an outcome by who gets it: gives it back if it is to be fetched.
    fn sort(&mut self, sink: Sink, outcome: Outcome) -> Option<Outcome> {
        match sink {
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

/// What a message was.
enum Taken {
    /// The outcome of this call.
    Outcome(CallId),
    /// That of one with a continuation.
    Continuation,
    /// No answer to a call.
    Nothing,
}

/// No call has it.
const NO_CALL: CallId = CallId { index: u32::MAX, key: 0 };

/// What is left to send of a body.
struct Rest<'a>(Vec<&'a [u8]>);

impl<'a> Rest<'a> {
    fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    /// Takes so many bytes off its beginning, of which there are more.
    fn take(&mut self, bytes: usize) -> Vec<&'a [u8]> {
        let (mut left, mut taken) = (bytes, Vec::new());
        for part in &mut self.0 {
            let (first, rest) = part.split_at(left.min(part.len()));
            left -= first.len();
            taken.push(first);
            *part = rest;
        }
        taken
    }
}

/// The result, or the message, of an answer: in a frame if there is one.
struct Said<'a> {
    /// What has come in pieces.
    begun: Vec<u8>,
    body: &'a [u8],
    frame: Option<Frame>,
}

impl Said<'_> {
    fn take(&mut self) -> Vec<u8> {
        let last = self.frame.as_ref().map_or_else(|| self.body.to_vec(), Frame::to_vec);
        if self.begun.is_empty() {
            return last;
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend(last);
        all
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("service", &self.inner.service).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
