//! Clients: calls of a service, waited for, polled, or continued.
//!
//! Here is what a client is; `request.rs` has its calls, `taking.rs` their answers. Any thread
//! calls. Of those that wait, one takes answers from the endpoint, for all; when it has its own,
//! another one does.
//!
//! Invariant: an answer is believed if it names a call by its key; whoever has the call has it.
//! Continuations run in calls of the client, with none of its locks held. Source: [GMS §3]
//! nonblocking calls, continuations, deferred continuations.

mod request;
mod taking;

use crate::calls::Calls;
use crate::error::RpcError;
use crate::limits::{BULK_DEFAULT, FRAMES_DEFAULT, SERVICE_NAME_BYTES_MAX};
use crate::wire::{CallId, Message, VERSION};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;
use vmmc::{Access, Connection, Endpoint, Frame, Session, TokenBuffer, TokenPool, TokenRegion, WaitError};
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
    answers: Mutex<Answers>,
    buffers: TokenPool,
    calls: Mutex<Known>,
    ready: Ready,
    /// Threads that wait while another one takes answers.
    followers: AtomicUsize,
    turn: Mutex<()>,
    turned: Condvar,
    /// Calls that were passed on to the server, which cannot reach their callers, and why.
    undelivered: Mutex<Vec<(CallId, Vec<u8>)>>,
    /// Answers since the clock was last looked at.
    unlooked: AtomicU32,
    /// The thread that takes answers for futures, if there is one.
    pub(crate) background: OnceLock<Thread>,
    /// Held by who starts it.
    pub(crate) starting: Mutex<()>,
}

/// Where answers come in, and the one that is taken.
struct Answers {
    endpoint: Endpoint,
    message: vmmc::Message,
}

/// Continuations whose answer is there, and those that said "not now".
#[derive(Default)]
struct Ready {
    queue: Mutex<VecDeque<Continued>>,
    /// How many there are, for those who would find none.
    count: AtomicUsize,
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

/// A call that is made; from [`Client::request`].
#[must_use = "nothing is called before `call`, `start` or `then`"]
pub struct Request<'a> {
    client: &'a Client,
    method: u16,
    arguments: &'a [u8],
    bulk: &'a [u8],
    landing: Landing<'a>,
    in_frame: bool,
    timeout: Duration,
}

/// Where a bulk result is to land.
#[derive(Clone)]
enum Landing<'a> {
    /// Nowhere: none is wanted.
    None,
    /// In a buffer of the client.
    Buffer,
    Region(&'a TokenRegion, Range<u64>),
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
            answers: Mutex::new(Answers { endpoint: answers, message: vmmc::Message::default() }),
            buffers,
            calls: Mutex::new(Known { calls: Calls::default(), keys, looked_at }),
            ready: Ready::default(),
            followers: AtomicUsize::new(0),
            turn: Mutex::new(()),
            turned: Condvar::new(),
            undelivered: Mutex::default(),
            unlooked: AtomicU32::new(0),
            background: OnceLock::new(),
            starting: Mutex::default(),
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
        Request { client: self, method, arguments: &[], bulk: &[], landing: Landing::None, in_frame: false, timeout }
    }

    /// A region of so many bytes for bulk results, [`Request::into_region`], of up to so many calls
    /// at a time: memory of this process, where they stay. A client has up to
    /// [`TOKEN_REGIONS_MAX`](vmmc::limits::TOKEN_REGIONS_MAX). Whoever may answer
    /// ([`ClientBuilder::answered_by`]) and is of this node can write all of it.
    ///
    /// # Errors
    /// [`RpcError::Token`]; [`RpcError::Access`]: the process was forked.
    pub fn region(&self, calls: u64, bytes: u64) -> Result<TokenRegion, RpcError> {
        self.inner.must_be_here()?;
        self.inner.buffers.region(calls, bytes).map_err(|error| self.inner.token_error(error))
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
        self.inner.must_be_here().map_or(0, |()| self.inner.ready.len())
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
