//! Servers: an endpoint whose messages are calls, and handlers that answer them.
//!
//! ```text
//!   endpoint ── hello ──▶ connecting threads ──▶ a link to the caller
//!            ── call ───▶ admission ──▶ handler, here or on a thread of the pool ──▶ its link
//! ```
//!
//! Invariants: no caller holds up another one: connecting waits on threads of its own, and answers
//! that find no room wait in their link. Whatever a caller sends costs it its own calls at most.
//! Source: [GMS §3] server threads.

mod looks;

use crate::PING_METHOD;
use crate::admission::{Admission, Admitted, Name, Turn, Withdrawal};
use crate::call::{Call, Came};
use crate::client::{ANSWERS_PREFIX, Client, Inner, SERVICE_PREFIX, check_name};
use crate::connecting::Connecting;
use crate::error::{RpcError, ServeError};
use crate::figures::{Count, Counted, ServerFigures, Timed};
use crate::limits::{CONNECTING_THREADS, FRAMES_DEFAULT, LINKS_MAX, LIVENESS_EVERY, QUEUE_DEFAULT, THREADS_MAX};
use crate::limits::{MESSAGES_PER_LOOK, PUSH_AFTER_MAX, PUSH_AFTER_MIN, share_allows};
use crate::link::{Asker, Link, Signals, now_takes_calls};
use crate::pieces::{Body, Bounds, Channel, Collected, Whole};
use crate::wire::{CallId, Message, Origin, Request, Status, VERSION};
use foldhash::{HashMap, HashMapExt};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use vmmc::{Access, Endpoint, Sender, Session, WaitError};
use vmmc_host::{Deadline, Nanos};

/// The same while handlers on other threads may give answers that find no room.
const BUSY_LOOK_EVERY: Duration = Duration::from_millis(5);
/// The same while no call is here and none was passed on: a server that nobody calls costs little.
const IDLE_LOOK_EVERY: Duration = Duration::from_millis(500);
/// Callers that are looked at, whether they live: all that there can be in some seconds.
const CALLERS_LOOKED_AT_A_SECOND: u128 = 320;

/// A server of a service. Dropping it ends it: calls that no handler has are not answered.
#[must_use = "dropping it ends the service"]
pub struct Server {
    shared: Arc<Shared>,
    loop_thread: Option<JoinHandle<Option<WaitError>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Choices for a server; made by [`Server::new`].
#[must_use = "there is no server before `serve`"]
pub struct ServerBuilder {
    session: Session,
    service: String,
    access: Access,
    frames: (u64, u64),
    threads: usize,
    queue: usize,
    methods: Vec<(u16, String)>,
}

/// What became of calls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Calls that a handler has begun.
    pub handled: u64,
    /// Answered with a result.
    pub done: u64,
    /// Answered with a failure, or not at all, or with arguments that made no sense.
    pub failed: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Turned away because the queue was full.
    pub busy: u64,
    /// Whose time was over before a handler began.
    pub late: u64,
    /// Withdrawn before a handler began.
    pub cancelled: u64,
    /// Passed on to another server.
    pub passed_on: u64,
    /// Messages that made no sense.
    pub misbehaved: u64,
}

/// What threads of a server share.
pub(crate) struct Shared {
    session: Session,
    admission: Mutex<Admission<u64, u64>>,
    /// Servers that calls were passed on to, while they live.
    delegates: Mutex<HashMap<u64, Weak<Inner>>>,
    queue: Mutex<VecDeque<Call>>,
    queued: Condvar,
    /// No call is begun any more.
    stop: AtomicBool,
    /// Nothing is taken any more: no handler runs either, or the node has gone.
    pub(crate) over: AtomicBool,
    pub(crate) signals: Signals,
    pub(crate) figures: ServerFigures,
}

type Run = Arc<dyn Fn(Call) + Send + Sync>;

/// What answers the calls of a server: a function of a [`Call`], or what the attribute
/// [`service`](crate::service) makes of a trait.
pub struct Handler {
    run: Run,
    methods: &'static [(u16, &'static str)],
}

impl<F: Fn(Call) + Send + Sync + 'static> From<F> for Handler {
    fn from(run: F) -> Handler {
        Handler { run: Arc::new(run), methods: &[] }
    }
}

impl Handler {
    /// With names for its methods, by which they are counted.
    pub fn methods(self, methods: &'static [(u16, &'static str)]) -> Handler {
        Handler { methods, ..self }
    }
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler").field("methods", &self.methods).finish_non_exhaustive()
    }
}

impl ServerBuilder {
    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    /// Who may call; default processes of the same user.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Frames for long arguments: so many, of so many bytes, for each client; default 4 of 16 KiB.
    /// Arguments that are longer than one come in pieces.
    pub fn frames(mut self, count: u64, bytes: u64) -> Self {
        self.frames = (count, bytes);
        self
    }

    /// Threads that handlers run on, up to 1,024; default none: they run on the thread that takes
    /// the calls, which is fastest where none of them waits.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Calls that wait for a thread; further ones are told that the server is busy. Default 256.
    pub fn queue(mut self, calls: usize) -> Self {
        self.queue = calls;
        self
    }

    /// Names a method, which then is counted by itself in `vmmc stats`, up to 60 of them. What the
    /// attribute [`service`](crate::service) makes has the names of the trait.
    pub fn method(mut self, number: u16, name: &str) -> Self {
        self.methods.push((number, name.to_string()));
        self
    }

    /// Serves on threads of its own, until the server is dropped.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn serve(mut self, handler: impl Into<Handler>) -> Result<Server, ServeError> {
        let threads = self.threads;
        let service = self.service.clone();
        let no_thread = |e: std::io::Error| ServeError::Thread { service: service.clone(), why: e.to_string() };
        let Handler { run: handler, methods } = handler.into();
        self.methods.extend(methods.iter().map(|(number, name)| (*number, name.to_string())));
        let mut serving = self.serving(false)?;
        let shared = serving.shared.clone();
        let mut server = Server { shared: shared.clone(), loop_thread: None, threads: Vec::new() };
        for _ in 0..threads {
            let (shared, handler) = (shared.clone(), handler.clone());
            let run = move || shared.work(&handler);
            server.threads.push(named("vmmc-rpc-calls").spawn(run).map_err(no_thread)?);
        }
        serving.inline = (threads == 0).then_some(handler);
        server.loop_thread = Some(named("vmmc-rpc").spawn(move || serving.run()).map_err(no_thread)?);
        Ok(server)
    }

    /// What takes calls, and the threads that connect it to callers. With `notify` its endpoint has
    /// a descriptor.
    pub(crate) fn serving(self, notify: bool) -> Result<Serving, ServeError> {
        let ServerBuilder { session, service, access, frames, threads, queue, methods } = self;
        check_name(&service).map_err(|()| ServeError::BadName { service: service.clone() })?;
        if threads > THREADS_MAX || queue == 0 {
            return Err(ServeError::BadShape { service, threads, queue });
        }
        let name = format!("{SERVICE_PREFIX}{service}");
        let endpoint = session.endpoint(&name).access(access).frames(frames.0, frames.1).notify(notify).create();
        let endpoint =
            endpoint.map_err(|error| ServeError::Endpoint { service: service.clone(), error: Box::new(error) })?;
        let no_thread = |e: std::io::Error| ServeError::Thread { service: service.clone(), why: e.to_string() };
        let figures = ServerFigures::publish(&session, &service, methods);
        let figures =
            figures.map_err(|error| ServeError::Endpoint { service: service.clone(), error: Box::new(error) })?;
        let shared = Arc::new(Shared {
            session,
            admission: Mutex::new(Admission::new(queue)),
            delegates: Mutex::default(),
            queue: Mutex::default(),
            queued: Condvar::new(),
            stop: AtomicBool::new(false),
            over: AtomicBool::new(false),
            signals: Signals::default(),
            figures,
        });
        let connecting = Arc::new(Connecting::default());
        let looked_at = shared.now();
        let serving = Serving {
            shared,
            endpoint,
            inline: None,
            connecting,
            by_sender: HashMap::new(),
            by_origin: HashMap::new(),
            by_number: BTreeMap::new(),
            collected: Collected::new(Bounds::default()),
            push_after: PUSH_AFTER_MIN,
            next_link: 0,
            timed: Timed::default(),
            looked_at,
            look_next: 0,
            gone: None,
        };
        for _ in 0..CONNECTING_THREADS {
            let (session, connecting) = (serving.shared.session.clone(), serving.connecting.clone());
            let run = move || connecting.run(&session);
            // Nobody waits for these: they end with the loop, or when a caller has not answered.
            named("vmmc-rpc-links").spawn(run).map_err(no_thread)?;
        }
        Ok(serving)
    }
}

fn named(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.to_string())
}

impl Server {
    /// A server of a service of this name.
    #[allow(clippy::new_ret_no_self)] // the choices come first
    pub fn new(session: &Session, service: &str) -> ServerBuilder {
        let (session, service) = (session.clone(), service.to_string());
        let (access, frames) = (Access::default(), FRAMES_DEFAULT);
        ServerBuilder { session, service, access, frames, threads: 0, queue: QUEUE_DEFAULT, methods: Vec::new() }
    }

    /// What became of calls so far.
    pub fn counts(&self) -> ServerCounts {
        self.shared.figures.counts()
    }

    /// Whether it serves: not when its node has gone.
    pub fn is_serving(&self) -> bool {
        self.shared.is_here() && self.loop_thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends it, after the handlers that run. What its node says, if it had ended before.
    pub fn stop(mut self) -> Option<WaitError> {
        self.end()
    }

    fn end(&mut self) -> Option<WaitError> {
        if !self.shared.is_here() {
            // The threads exist in the parent only; there is nothing to wait for.
            std::mem::forget(self.loop_thread.take());
            self.threads.drain(..).for_each(std::mem::forget);
            return None;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.queue().drain(..).for_each(Call::forget);
        self.shared.queued.notify_all();
        for thread in self.threads.drain(..) {
            // Meanwhile the loop goes on: a handler may wait for its caller to withdraw, or to go.
            // One that panicked has said so on stderr already.
            let _ = thread.join();
        }
        self.shared.over.store(true, Ordering::Release);
        self.shared.session.wake_waits();
        self.loop_thread.take().and_then(|thread| thread.join().ok()).flatten()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Not in the child of a fork: another thread may have held any of the locks.
    pub(crate) fn is_here(&self) -> bool {
        self.session.must_be_here().is_ok()
    }

    /// As the session counts time.
    pub(crate) fn now(&self) -> Nanos {
        self.session.deadline(Duration::ZERO).0
    }

    pub(crate) fn admission(&self) -> MutexGuard<'_, Admission<u64, u64>> {
        self.admission.lock().expect("no panic while the lock is held")
    }

    fn delegates(&self) -> MutexGuard<'_, HashMap<u64, Weak<Inner>>> {
        self.delegates.lock().expect("no panic while the lock is held")
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Call>> {
        self.queue.lock().expect("no panic while the lock is held")
    }

    /// Its handler has answered a call.
    pub(crate) fn finished(&self, call: &Call, status: Status) {
        let took = call.timed_from().map(|from| self.now().since(from));
        let mut admission = self.admission();
        admission.finish(&call.name());
        self.figures.answered(call.counted(), status, took);
    }

    /// Passes a call on by `send`.
    pub(crate) fn pass_on(
        &self,
        call: &Name<u64>,
        to: &Client,
        send: impl FnOnce() -> Result<(), RpcError>,
    ) -> Result<(), RpcError> {
        let number = to.inner.number;
        self.delegates().insert(number, Arc::downgrade(&to.inner));
        if !self.admission().pass_on(call, number) {
            return Err(RpcError::TooManyPassedOn);
        }
        // First, so that whoever has the answer finds it counted.
        self.figures.add(Count::PassedOn);
        send().inspect_err(|_| {
            self.figures.take_back(Count::PassedOn);
            self.admission().take_back(call);
        })
    }

    /// A thread of the pool.
    fn work(&self, handler: &Run) {
        loop {
            let call = {
                let mut queue = self.queue();
                loop {
                    if self.stop.load(Ordering::Acquire) {
                        return;
                    }
                    if let Some(call) = queue.pop_front() {
                        break call;
                    }
                    queue = self.queued.wait(queue).expect("no panic while the lock is held");
                }
            };
            let turn = self.begin(&call);
            self.handle(|| call, handler, turn);
        }
    }

    /// The turn of a call, which is made where its handler takes it.
    #[inline]
    fn handle(&self, call: impl FnOnce() -> Call, handler: &Run, turn: Result<(), Status>) {
        match turn {
            // The call goes with it: dropped by a panic, it tells its caller so.
            Ok(()) => _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler(call()))),
            Err(status) => call().refuse(status),
        }
    }

    /// It is the turn of a call that was admitted.
    ///
    /// # Errors
    /// As of [`count_turn`](Self::count_turn).
    fn begin(&self, call: &Call) -> Result<(), Status> {
        let (now, mut admission) = (self.now(), self.admission());
        let turn = admission.begin(&call.name(), now);
        self.count_turn(call.counted(), turn)
    }

    /// Counts a call whose turn it is, while the lock of the calls is held.
    ///
    /// # Errors
    /// How it ends, for its handler does not begin.
    #[inline]
    fn count_turn(&self, counted: Counted, turn: Turn) -> Result<(), Status> {
        match turn {
            Turn::Begins => {
                self.figures.begun(counted);
                Ok(())
            }
            Turn::Late => {
                self.figures.add(Count::Late);
                Err(Status::Late)
            }
            Turn::Withdrawn => {
                self.figures.add(Count::Cancelled);
                Err(Status::Cancelled)
            }
        }
    }

    /// The next call that waits and whose handler begins.
    fn next_call(&self) -> Option<Call> {
        loop {
            let call = self.queue().pop_front()?;
            match self.begin(&call) {
                Ok(()) => return Some(call),
                Err(status) => call.refuse(status),
            }
        }
    }
}

/// What takes calls: a thread, or an event loop.
pub(crate) struct Serving {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    /// The handler, if there is no pool.
    inline: Option<Run>,
    connecting: Arc<Connecting>,
    by_sender: HashMap<Channel, Arc<Link>>,
    by_origin: HashMap<Origin, Arc<Link>>,
    /// The same by their numbers, with those that have died since the last look.
    by_number: BTreeMap<u64, Arc<Link>>,
    collected: Collected,
    /// Time before the next attempt to send answers that wait for room.
    push_after: Duration,
    next_link: u64,
    timed: Timed,
    looked_at: Nanos,
    look_next: u64,
    /// Callers that have gone, if somebody asks for them: as many as there can be at once.
    gone: Option<Vec<u64>>,
}

impl Serving {
    fn run(mut self) -> Option<WaitError> {
        let ended = self.serve();
        self.shared.over.store(true, Ordering::Release);
        ended
    }

    fn serve(&mut self) -> Option<WaitError> {
        now_takes_calls();
        let mut message = vmmc::Message::default();
        while !self.shared.over.load(Ordering::Acquire) {
            let pushing = self.shared.signals.push.load(Ordering::Relaxed);
            let now = self.shared.now();
            self.look_now_and_then(now);
            let wait = match () {
                () if pushing => self.push_after,
                () if !self.shared.admission().has_none_here() => BUSY_LOOK_EVERY,
                () if self.shared.delegates().is_empty() => IDLE_LOOK_EVERY,
                () => LIVENESS_EVERY,
            };
            let until = Deadline(now + wait);
            // While messages come, the clock is looked at now and then.
            for _ in 0..MESSAGES_PER_LOOK {
                let over = || self.shared.over.load(Ordering::Acquire);
                match self.endpoint.wait_into_unless(&mut message, until, over) {
                    Ok(true) => self.take(&mut message),
                    Ok(false) => return None,
                    Err(WaitError::TimedOut { .. }) => break,
                    Err(error) => return Some(error),
                }
                if self.shared.signals.push.load(Ordering::Relaxed) != pushing {
                    break;
                }
            }
            if pushing {
                self.push();
            }
        }
        None
    }

    fn take(&mut self, message: &mut vmmc::Message) {
        let frame = message.take_payload();
        let from = message.from();
        let sender = (from.session, from.process.0, from.import.to_u64());
        match Message::decode(message.control()) {
            // A caller of another version learns ours by the welcome.
            Some(Message::Hello { uid, endpoint, .. }) => self.greet(from, sender, uid, endpoint),
            Some(Message::Part { id }) => match frame {
                Some(frame) if self.by_sender.contains_key(&sender) => self.collected.add(sender, id, &frame),
                _ => self.misbehaved(),
            },
            Some(Message::Request { head, body }) => {
                let Some(link) = self.by_sender.get(&sender).cloned() else { return self.misbehaved() };
                match self.collected.request(sender, &head, body, frame) {
                    Whole::Came(body) => self.admit(link, head, from, body),
                    Whole::TooMany => {
                        self.shared.figures.add(Count::Busy);
                        link.answer(head.id, Status::Busy, b"");
                    }
                    Whole::Nonsense => self.misbehaved(),
                }
            }
            Some(Message::Forward { head }) => {
                let Some(frame) = frame else { return self.misbehaved() };
                let via = self.by_sender.get(&sender).cloned();
                let tell = |why: &[u8]| via.iter().for_each(|via| _ = via.answer(head.id, Status::DelegateLost, why));
                let (origin, body) = match self.collected.forward(sender, &head, frame) {
                    Whole::Came((origin, body)) if is_answers(&origin.endpoint) => (origin, body),
                    Whole::Came(_) | Whole::Nonsense => return self.misbehaved(),
                    Whole::TooMany => {
                        self.shared.figures.add(Count::Busy);
                        return tell(b"it has no room for so long a call");
                    }
                };
                match self.link_to(origin, (sender.0, sender.1), via.clone()) {
                    Some(link) => self.admit(link, head, from, body),
                    None => {
                        self.shared.figures.add(Count::Busy);
                        // Who passed it on tells the caller.
                        tell(b"it has no room for more callers");
                    }
                }
            }
            Some(Message::Cancel { id }) => {
                let link = match frame.map(|frame| frame.to_vec()) {
                    Some(bytes) => Origin::decode(&bytes).and_then(|(origin, _)| self.by_origin.get(&origin)),
                    None => self.by_sender.get(&sender),
                };
                if let Some(link) = link.cloned() {
                    self.withdraw(&link, id);
                }
            }
            Some(Message::Welcome { .. } | Message::Answer { .. }) | None => self.misbehaved(),
        }
    }

    fn misbehaved(&self) {
        self.shared.figures.add(Count::Misbehaved);
    }

    /// A caller introduces itself.
    fn greet(&mut self, from: Sender, sender: (u32, u32, u64), uid: u32, endpoint: &str) {
        if !is_answers(endpoint) {
            return self.misbehaved();
        }
        let Ok(Some(node)) = self.shared.session.node_of(from) else { return };
        let origin = Origin { node, endpoint: endpoint.to_string(), uid };
        if let Some(link) = self.link_to(origin, (sender.0, sender.1), None) {
            link.welcome(VERSION);
            // A caller that comes again has left its former channel.
            self.by_sender.retain(|_, of| of.number != link.number);
            self.by_sender.insert(sender, link);
        }
    }

    /// The link to a caller, which is connected if it is new. None: there are too many.
    fn link_to(&mut self, origin: Origin, asker: Asker, via: Option<Arc<Link>>) -> Option<Arc<Link>> {
        if let Some(link) = self.by_origin.get(&origin).filter(|link| !link.is_dead()) {
            return Some(link.clone());
        }
        let own = self.by_number.values().filter(|link| link.asker == asker).count();
        if !share_allows(own, self.by_number.len(), LINKS_MAX) {
            return None;
        }
        self.next_link += 1;
        let link = Arc::new(Link::new(self.next_link, origin.clone(), asker, via, self.shared.clone()));
        if !self.connecting.ask(&link) {
            return None;
        }
        self.by_origin.insert(origin, link.clone());
        self.by_number.insert(link.number, link.clone());
        Some(link)
    }

    #[inline]
    fn admit(&mut self, link: Arc<Link>, head: Request, from: Sender, body: Body) {
        if self.shared.stop.load(Ordering::Acquire) {
            return;
        }
        if head.method == PING_METHOD {
            link.answer(head.id, Status::NoMethod, b"");
            return;
        }
        let now = self.shared.session.about_now(head.left);
        let deadline = Deadline(now + head.left);
        let timed_from = self.timed.is_due(now).then(|| self.shared.now());
        let came = Came { deadline, timed_from, from };
        let (name, shared) = ((link.number, head.id), &self.shared);
        let counted = shared.figures.of(head.method);
        let call = || Call::new(link, head, (came, counted), body);
        let admitted = match &self.inline {
            Some(handler) => {
                let mut admission = shared.admission();
                let turn = admission.admit_and_begin(name, deadline.0, now);
                let turn = turn.map(|turn| shared.count_turn(counted, turn));
                drop(admission);
                match turn {
                    Ok(turn) => return shared.handle(call, handler, turn),
                    Err(admitted) => admitted,
                }
            }
            None => shared.admission().admit(name, deadline.0),
        };
        let call = call();
        match admitted {
            Admitted::Waits => {
                self.shared.queue().push_back(call);
                self.shared.queued.notify_one();
            }
            Admitted::Busy => {
                self.shared.figures.add(Count::Busy);
                call.refuse(Status::Busy);
            }
            Admitted::Again => {
                self.misbehaved();
                call.forget();
            }
        }
    }

    fn withdraw(&self, link: &Link, id: CallId) {
        let withdrawal = self.shared.admission().withdraw(&(link.number, id));
        if let Withdrawal::Passed(to) = withdrawal {
            if let Some(to) = self.delegate(to) {
                to.withdraw_for(&link.origin, id);
            }
        }
    }

    fn delegate(&self, number: u64) -> Option<Arc<Inner>> {
        self.shared.delegates().get(&number)?.upgrade()
    }

    /// Sends answers that wait for room.
    fn push(&mut self) {
        self.shared.signals.push.store(false, Ordering::Relaxed);
        let mut moved = false;
        for link in self.by_origin.values().filter(|link| link.has_waiting()) {
            moved |= link.push();
            if link.has_waiting() && !link.is_dead() {
                self.shared.signals.push.store(true, Ordering::Relaxed);
            }
        }
        // Callers that take nothing are asked more and more seldom.
        self.push_after = if moved { PUSH_AFTER_MIN } else { (2 * self.push_after).min(PUSH_AFTER_MAX) };
    }
}

/// For an event loop.
impl Serving {
    pub(crate) fn must_be_here(&self) -> Result<(), WaitError> {
        self.shared.session.must_be_here().map_err(WaitError::from)
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn next_call(&self) -> Option<Call> {
        self.shared.next_call()
    }

    pub(crate) fn now(&self) -> Nanos {
        self.shared.now()
    }

    /// Takes a message, if there is one, and does what is due.
    pub(crate) fn poll(&mut self) -> Result<bool, WaitError> {
        now_takes_calls();
        self.look_now_and_then(self.shared.now());
        if self.is_pushing() {
            self.push();
        }
        let mut message = vmmc::Message::default();
        if self.endpoint.poll_into(&mut message)? {
            self.take(&mut message);
            return Ok(true);
        }
        if self.shared.session.is_alive() {
            return Ok(false);
        }
        let node = self.shared.session.node().name.clone();
        Err(WaitError::NodeGone { what: "poll for calls".into(), node })
    }

    /// Time before the next attempt to send answers that wait for room, if some do.
    pub(crate) fn push_after(&self) -> Option<Duration> {
        self.is_pushing().then_some(self.push_after)
    }

    fn is_pushing(&self) -> bool {
        self.shared.signals.push.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> ServerCounts {
        self.shared.figures.counts()
    }

    /// Callers that go are to be asked for.
    pub(crate) fn remember_gone(&mut self) {
        self.gone = Some(Vec::new());
    }

    pub(crate) fn gone_callers(&mut self) -> Vec<u64> {
        self.gone.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.shared.is_here() {
            return;
        }
        self.connecting.end();
        self.shared.queue().drain(..).for_each(Call::forget);
    }
}

/// Whether an endpoint is for answers: nothing else is sent to by a server.
fn is_answers(endpoint: &str) -> bool {
    endpoint.starts_with(ANSWERS_PREFIX)
}
