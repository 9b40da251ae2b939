//! A process as one that sends and receives messages.
//!
//! Invariant: its members and its place among them are fixed when it is made.

use crate::engine::{Engine, Shared};
use crate::error::MpError;
use crate::group::Group;
use crate::limits::{
    ABORT_TEXT_BYTES_MAX, ABORT_TIME, FRAMES, MEMBERS_MAX, PART_BUFFERS, PART_BYTES_MAX, RANGES_AT_ONCE, WAIT_DEFAULT,
};
use crate::members::Members;
use crate::memory::Memory;
use crate::state::{Counts, Direct, State};
use crate::transport::endpoints::Endpoints;
use crate::wire::Said;
use std::sync::Arc;
use std::time::Duration;
use vmmc::{Access, Session};
use vmmc_job::Job;

/// A process as one that sends and receives messages: its members, and its [groups](Group) of them.
/// Any thread makes calls; one that waits lets others in. Dropping it says goodbye to the others.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-messages").key(KeySource::Plain))?;
/// use vmmc_mp::{Messages, Select};
/// # let member = |rank| -> Result<(), Box<dyn std::error::Error>> {
/// # let session = vmmc::Session::over(node.attach()?)?;
/// // Two threads of a program here; members of a job call `Messages::attach()`.
/// let messages = Messages::among(session, "doc", rank, 2).create()?;
/// let world = messages.world();
/// if world.rank() == 0 {
///     world.send(1, 7, b"hello")?;
/// } else {
///     let mut bytes = [0; 16];
///     let status = world.receive(Select::from(0).tag(7), &mut bytes)?;
///     assert_eq!(&bytes[..status.len as usize], b"hello");
/// }
/// # Ok(()) };
/// # std::thread::scope(|scope| {
/// #     let one = scope.spawn(|| member(1).expect("rank 1"));
/// #     member(0).expect("rank 0");
/// #     one.join().expect("rank 1 ends well");
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Messages {
    shared: Arc<Shared>,
    world: Group,
}

/// Choices for messages; made by [`Messages::over`] and [`Messages::among`].
#[must_use = "there are no messages before `create`"]
pub struct MessagesBuilder {
    session: Session,
    rank: u32,
    size: u32,
    members: Members,
    job: Option<Arc<Job>>,
    timeout: Duration,
    access: Access,
}

impl MessagesBuilder {
    /// How long a call waits; default [`WAIT_DEFAULT`]. What waits for a member that has died ends
    /// within a second all the same.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Who may be a member; default processes of the same user.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Has the member, which others can send to from now on.
    ///
    /// # Errors
    /// [`MpError::NoSet`], [`MpError::Endpoint`]: for instance when another process has this rank.
    pub fn create(self) -> Result<Messages, MpError> {
        let MessagesBuilder { session, rank, size, members, job, timeout, access } = self;
        if rank >= size || size as usize > MEMBERS_MAX {
            return Err(MpError::NoSet { rank, size });
        }
        let endpoint = session.endpoint(&members.endpoint(rank)).frames(FRAMES.0, FRAMES.1).access(access);
        let endpoint = endpoint.tokens(PART_BUFFERS, PART_BYTES_MAX).create().map_err(Box::new)?;
        let mut state = State::new(Endpoints::new(session, endpoint, members), rank, size);
        let all: Arc<[u32]> = (0..size).collect();
        state.enter(0, &all);
        let shared = Arc::new(Shared::new(Engine::new(state), timeout, size, job));
        Ok(Messages { world: Group::new(shared.clone(), 0, all), shared })
    }
}

impl Messages {
    /// The members of the job that this process was started for; see [`Job::attach`].
    ///
    /// # Errors
    /// [`MpError`].
    pub fn attach() -> Result<Messages, MpError> {
        Messages::over(Arc::new(Job::attach()?)).create()
    }

    /// The members of a job, as it is now. Ranks that join it later are not among them.
    pub fn over(job: Arc<Job>) -> MessagesBuilder {
        let (session, rank, size) = (job.session().clone(), job.rank(), job.size());
        let members = Members::Job { job: job.clone(), view: 0 };
        Messages::builder(session, rank, size, members, Some(job))
    }

    /// Processes or threads of this node that know each other by a name. Each has its own session
    /// and rank. Nobody tells them of a member that was killed but the connection to it, so who
    /// has never sent to it waits for its time.
    pub fn among(session: Session, name: &str, rank: u32, size: u32) -> MessagesBuilder {
        let nodes = vec![None; (size as usize).min(MEMBERS_MAX)];
        let members = Members::Set { name: name.to_string(), nodes };
        Messages::builder(session, rank, size, members, None)
    }

    /// The same on several nodes: for each rank its node's name or `address:port`; none: the node
    /// of this process.
    pub fn among_nodes(session: Session, name: &str, rank: u32, nodes: &[Option<String>]) -> MessagesBuilder {
        let members = Members::Set { name: name.to_string(), nodes: nodes.to_vec() };
        Messages::builder(session, rank, nodes.len() as u32, members, None)
    }

    fn builder(session: Session, rank: u32, size: u32, members: Members, job: Option<Arc<Job>>) -> MessagesBuilder {
        let (timeout, access) = (WAIT_DEFAULT, Access::default());
        MessagesBuilder { session, rank, size, members, job, timeout, access }
    }

    /// All members.
    pub fn world(&self) -> &Group {
        &self.world
    }

    /// Number of this member.
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Members.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// The job, if they are of one.
    pub fn job(&self) -> Option<&Arc<Job>> {
        self.shared.job.as_ref()
    }

    /// The session that they use.
    pub fn session(&self) -> &Session {
        &self.shared.session
    }

    /// New memory of so many bytes, zeroed, for long messages: they land in it without a copy. Up
    /// to [`TOKEN_REGIONS_MAX`](vmmc::limits::TOKEN_REGIONS_MAX) at a time.
    ///
    /// # Errors
    /// [`MpError::Token`].
    pub fn memory(&self, len: u64) -> Result<Memory, MpError> {
        let pool = self.shared.lock()?.state.transport.pool().clone();
        let region = pool.region(RANGES_AT_ONCE, len).map_err(Box::new)?;
        Ok(Memory { region })
    }

    /// Takes what has come and sends on what waits, without a wait: for programs that compute for
    /// long while others want something of them.
    ///
    /// # Errors
    /// [`MpError`], as of any call.
    pub fn poll(&self) -> Result<(), MpError> {
        self.shared.lock()?.take_all(&mut Direct::default())
    }

    /// What became of messages so far.
    ///
    /// # Errors
    /// [`MpError::Access`]: the process was forked.
    pub fn counts(&self) -> Result<Counts, MpError> {
        Ok(self.shared.lock()?.state.counts)
    }

    /// Ends all: this process ends with the code, after the text on its standard error; the calls
    /// of the others end with [`MpError::Aborted`], which has both. In a job the launcher then ends
    /// those that make no calls, if the code is not 0.
    pub fn abort(&self, code: i32, text: &str) -> ! {
        eprintln!("rank {} ends all: {text}", self.rank());
        if let Ok(mut engine) = self.shared.lock() {
            let mut end = text.len().min(ABORT_TEXT_BYTES_MAX);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            let said = Said::Abort { of: self.rank() as u16, code, text: &text.as_bytes()[..end] };
            let others = (0..self.size()).filter(|rank| *rank != self.rank());
            others.for_each(|rank| engine.state.say(rank, &said));
            engine.state.pump();
            let until = self.session().deadline(ABORT_TIME);
            while engine.state.has_something_to_do() && self.session().deadline(Duration::ZERO) < until {
                let _ = engine.take_all(&mut Direct::default());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::process::exit(code)
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if let Ok(mut engine) = self.shared.lock() {
            engine.state.say_goodbye();
        }
    }
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Messages(rank {} of {})", self.rank(), self.size())
    }
}
