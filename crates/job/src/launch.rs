//! Starting a job: what to run, where, and how many.
//!
//! Each node is asked for a supervisor by importing `vmmc.launch/UID/TOKEN`, an on-demand export of
//! it: the node starts the supervisor, which exports that name. The token is random, so the link
//! that it opens is known to both ends alone.
//!
//! Invariant: a job starts on all its nodes or on none; what had come up is ended by the drop of
//! its link. Source: [NT §3.2].

use crate::error::{LaunchError, LinkError};
use crate::launched::{Launched, Remote};
use crate::limits::{JOB_NODES_MAX, JOB_RANKS_MAX, LAUNCH_TIMEOUT, LINK_MESSAGE_BYTES_MAX};
use crate::link::Link;
use crate::protocol::{JOB_PREFIX, JobNode, MemberState, Order, Program, Report};
use crate::table::View;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmmc::{Rights, Session};
use vmmc_host::control::LAUNCH_PREFIX;

/// A part of a job: a node, and how many ranks it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name or `address:port` of the node; none: the launcher's own.
    pub node: Option<String>,
    /// Ranks there.
    pub ranks: u32,
}

/// Choices for a job; [`start`](Launch::start) starts it.
#[derive(Clone, Debug)]
#[must_use = "nothing is started before `start`"]
pub struct Launch {
    pub(crate) node: Option<String>,
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<PathBuf>,
    places: Vec<Place>,
    input: Option<u32>,
    keep_going: bool,
    grace: Duration,
    timeout: Duration,
}

impl Launch {
    /// One process of this program, on the user's default node, with this process's environment and
    /// working directory.
    pub fn new(program: impl AsRef<OsStr>) -> Launch {
        Launch {
            node: None,
            program: program.as_ref().to_os_string(),
            args: Vec::new(),
            env: std::env::vars_os().collect(),
            cwd: None,
            places: vec![Place { node: None, ranks: 1 }],
            input: None,
            keep_going: false,
            grace: Duration::from_millis(1000),
            timeout: LAUNCH_TIMEOUT,
        }
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Launch {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_os_string()));
        self
    }

    /// Sets a variable of the processes' environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Launch {
        self.env.retain(|(n, _)| n != name.as_ref());
        self.env.push((name.as_ref().to_os_string(), value.as_ref().to_os_string()));
        self
    }

    /// Working directory of the processes; default this process's.
    pub fn current_dir(mut self, folder: impl AsRef<Path>) -> Launch {
        self.cwd = Some(folder.as_ref().to_path_buf());
        self
    }

    /// So many processes, on the launcher's own node.
    pub fn ranks(mut self, ranks: u32) -> Launch {
        self.places = vec![Place { node: None, ranks }];
        self
    }

    /// These nodes; ranks are counted through in this order.
    pub fn places(mut self, places: Vec<Place>) -> Launch {
        self.places = places;
        self
    }

    /// Name of the launcher's own node; default `$VMMC_NODE`, else `default`. It is started when it
    /// does not run.
    pub fn node(mut self, name: &str) -> Launch {
        self.node = Some(name.to_string());
        self
    }

    /// The rank that gets standard input, from [`Launched::write_input`]; default none.
    pub fn input(mut self, rank: Option<u32>) -> Launch {
        self.input = rank;
        self
    }

    /// Whether the job goes on when a rank fails; default false: the first failure ends it.
    pub fn keep_going(mut self, keep_going: bool) -> Launch {
        self.keep_going = keep_going;
        self
    }

    /// Time between SIGTERM and SIGKILL when the job is ended; default 1 s.
    pub fn grace(mut self, grace: Duration) -> Launch {
        self.grace = grace;
        self
    }

    /// How long nodes may take to come up with a supervisor; default 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Launch {
        self.timeout = timeout;
        self
    }

    /// Starts the job.
    ///
    /// # Errors
    /// [`LaunchError`]. Whether the program was found is told later, by
    /// [`JobEvent::NotStarted`](crate::JobEvent::NotStarted).
    pub fn start(self) -> Result<Launched, LaunchError> {
        let program = self.program()?;
        self.check()?;
        let builder = Session::builder().timeout(self.timeout);
        let session = self.node.iter().fold(builder, |builder, node| builder.node(node)).attach()?;
        let job = hex(&random::<8>()?);
        let remotes = self.reach_all(&session, &job)?;
        all_differ(&remotes)?;
        let view = self.first_view(&remotes, &session);
        let mut launched = Launched::new(session, job, remotes, view, self.keep_going, self.grace);
        launched.begin(program, self.input);
        Ok(launched)
    }

    fn check(&self) -> Result<(), LaunchError> {
        let invalid = |what: String| Err(LaunchError::Invalid { what });
        let ranks: u64 = self.places.iter().map(|place| u64::from(place.ranks)).sum();
        if ranks == 0 || ranks > JOB_RANKS_MAX as u64 {
            return invalid(format!("a job has 1 to {JOB_RANKS_MAX} ranks, not {ranks}"));
        }
        if self.places.len() > JOB_NODES_MAX {
            return invalid(format!("a job has 1 to {JOB_NODES_MAX} nodes, not {}", self.places.len()));
        }
        if let Some(rank) = self.input.filter(|rank| u64::from(*rank) >= ranks) {
            return invalid(format!("rank {rank} cannot have the standard input; there are ranks 0 to {}", ranks - 1));
        }
        Ok(())
    }

    fn program(&self) -> Result<Program, LaunchError> {
        let cwd = match &self.cwd {
            Some(cwd) => std::path::absolute(cwd),
            None => std::env::current_dir(),
        };
        let cwd = cwd.map_err(|e| LaunchError::System { what: "working directory".into(), why: e.to_string() })?;
        let bytes = |text: &OsStr| text.as_bytes().to_vec();
        let program = Program {
            program: bytes(&self.program),
            args: self.args.iter().map(|arg| bytes(arg)).collect(),
            env: self.env.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
            cwd: bytes(cwd.as_os_str()),
        };
        let size = vmmc_host::control::encode(&program).len();
        if size > LINK_MESSAGE_BYTES_MAX / 2 {
            let what = format!(
                "arguments and environment have {size} bytes together, at most {} can be sent",
                LINK_MESSAGE_BYTES_MAX / 2
            );
            return Err(LaunchError::Invalid { what });
        }
        Ok(program)
    }

    /// A supervisor on each node, all asked at once.
    fn reach_all(&self, session: &Session, job: &str) -> Result<Vec<Remote>, LaunchError> {
        let reach = |place: &Place| {
            let named = || place.node.clone().unwrap_or_else(|| session.node().name.clone());
            self.reach(session, job, place).map_err(|error| LaunchError::Node { node: named(), error })
        };
        if let [place] = &self.places[..] {
            return Ok(vec![reach(place)?]);
        }
        let results: Vec<Result<Remote, LaunchError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self.places.iter().map(|place| scope.spawn(|| reach(place))).collect();
            threads.into_iter().map(|thread| thread.join().expect("reaching a node does not panic")).collect()
        });
        results.into_iter().collect()
    }

    fn reach(&self, session: &Session, job: &str, place: &Place) -> Result<Remote, LinkError> {
        let token = random::<16>().map(|bytes| hex(&bytes));
        let token = token.map_err(|e| LinkError::Protocol { what: e.to_string() })?;
        let inbox = format!("{JOB_PREFIX}{job}/link/{token}");
        let mut link = Link::listen(session, &inbox)?;
        let uid = rustix::process::geteuid().as_raw();
        let supervisor = session.import(&format!("{LAUNCH_PREFIX}{uid}/{token}"));
        let supervisor = place.node.iter().fold(supervisor, |import, node| import.node(node));
        link.connect(supervisor.rights(Rights::READ | Rights::WRITE).wait(self.timeout).open()?);
        link.send(&Order::Hello { node: session.node().name.clone(), inbox });
        let deadline = session.deadline(self.timeout);
        loop {
            link.pump()?;
            match link.receive()? {
                Some(Report::Ready { node, pid }) => return Ok(Remote::new(link, node, pid, place.clone())),
                Some(other) => return Err(LinkError::Protocol { what: format!("{other:?} before it was ready") }),
                None if link.broken().is_some() => return Err(link.broken().expect("just seen").into()),
                None if session.deadline(Duration::ZERO) >= deadline => {
                    return Err(LinkError::Protocol { what: "nothing".into() });
                }
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    fn first_view(&self, remotes: &[Remote], session: &Session) -> View {
        let locator = |remote: &Remote| remote.place.node.clone().unwrap_or_else(|| session.node().name.clone());
        let nodes = remotes.iter().map(|r| JobNode { name: r.node.clone(), locator: locator(r) }).collect();
        let of =
            |(index, remote): (usize, &Remote)| vec![(MemberState::Running, index as u32); remote.place.ranks as usize];
        let ranks = remotes.iter().enumerate().flat_map(of).collect();
        View { number: 1, nodes, own: 0, ranks }
    }
}

/// A node that is given twice would have two supervisors for one job.
fn all_differ(remotes: &[Remote]) -> Result<(), LaunchError> {
    let called = |remote: &Remote| remote.place.node.clone().unwrap_or_else(|| "local".into());
    for (index, remote) in remotes.iter().enumerate() {
        if let Some(other) = remotes[..index].iter().find(|other| other.node == remote.node) {
            let what = format!(
                "node {} is given twice, as {} and as {}; give it once, with all its ranks",
                remote.node,
                called(other),
                called(remote)
            );
            return Err(LaunchError::Invalid { what });
        }
    }
    Ok(())
}

/// Random bytes of the kernel.
fn random<const N: usize>() -> Result<[u8; N], LaunchError> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| LaunchError::System { what: "random numbers".into(), why: e.to_string() })?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
