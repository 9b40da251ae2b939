//! The node daemon `vmmcd`: one node that serves the processes of a machine.
//!
//! Invariant: it has no name but that of its control socket, which dies with it, so a killed daemon
//! leaves nothing behind and the next takes its place at once. While there is nothing to do it
//! sleeps; first it polls for work as [`NODE_WAITS`] says, with the core given away between polls,
//! which is what keeps four parties on two cores fast.

mod counters;
mod launcher;
mod metrics;
mod rights;
mod start;

use crate::config::NodeConfig;
use crate::key::KeyError;
use crate::limits::{ACCEPT_BATCH, ACCEPT_PAUSE, SPARES};
use crate::log::{Log, LogLevel};
use crate::runner::{Runner, now, sleep};
use crate::station::StationError;
use counters::WatchedCounters;
use launcher::Launcher;
use metrics::Metrics;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vmmc_host::channel::{ChannelError, Listener, holder_of_node, node_socket_name};
use vmmc_host::limits::NODE_WAITS;
use vmmc_host::process::OpenFiles;
use vmmc_host::wait::{Backoff, Manner, Step, WakeReceiver, WakeSender, wake_pair};
use vmmc_host::{Deadline, Nanos};
use vmmc_nic::{BadNodeName, PeerTableFull, Time};

pub use launcher::{CANNOT_RUN_AS, EXPORT_VARIABLE, RUN_AS};
pub use start::{StartError, start_detached};

/// What a running daemon says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Name of the node.
    pub name: String,
    /// UDP addresses that it listens on.
    pub addresses: Vec<SocketAddr>,
    /// TCP address of its metrics.
    pub metrics: Option<SocketAddr>,
}

/// Why a node cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A name that is none.
    #[error(transparent)]
    Name(#[from] BadNodeName),
    /// A cipher that this build does not have.
    #[error(
        "this build has no {cipher}; build with the feature aes-256-gcm (`cargo build --release --features aes-256-gcm`), or use --cipher any"
    )]
    NoCipher {
        /// Which.
        cipher: vmmc_nic::Cipher,
    },
    /// The user has a node of this name already.
    #[error(
        "node {name:?} of user {uid} runs already; use it, stop it with `vmmc node stop --name {name}`, or choose another name"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The user.
        uid: u32,
    },
    /// Somebody else listens under the name of the user's node.
    #[error(
        "the name of node {name:?} of user {uid} is held by process {pid} of user {holder}, which is no node of user {uid}; choose another name (`--name`), or have that process ended"
    )]
    NameHeld {
        /// The name.
        name: String,
        /// The user whose node was to start.
        uid: u32,
        /// The user who has the name.
        holder: u32,
        /// Its process.
        pid: u32,
    },
    /// No key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {why}; choose another address or port (0: any)")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// What the system says.
        why: String,
    },
    /// Too many peers.
    #[error(transparent)]
    Peers(#[from] PeerTableFull),
    /// The station cannot be made.
    #[error(transparent)]
    Station(#[from] StationError),
    /// The control socket cannot be made.
    #[error(transparent)]
    Channel(ChannelError),
    /// The kernel refused.
    #[error("{call} failed: {why}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        why: String,
    },
}

impl RunError {
    pub(crate) fn system(call: &'static str, errno: rustix::io::Errno) -> RunError {
        RunError::System { call, why: errno.to_string() }
    }
}

/// A daemon that is ready to run: its name is taken, its sockets are bound, processes can connect.
pub struct Daemon {
    config: NodeConfig,
    runner: Runner,
    launcher: Launcher,
    metrics: Option<Metrics>,
    listener: Listener,
    log: Log,
    counters: WatchedCounters,
    stop: Arc<AtomicBool>,
    /// Rings when `stop` may have been set.
    bell: WakeReceiver,
    ringer: Arc<WakeSender>,
    /// Given up for a moment when there is no other descriptor, so that connections can be taken
    /// and closed.
    spares: Vec<OwnedFd>,
    /// No connection is taken before this, for want of descriptors.
    paused: Option<Time>,
}

/// Ends a running daemon from another thread.
#[derive(Clone)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    ringer: Arc<WakeSender>,
}

impl Stopper {
    /// Ends the daemon cleanly; returns at once.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.ringer.wake();
    }
}

impl Daemon {
    /// Adds a service to those that every node has, before [`run`](Self::run). The other nodes of a
    /// cluster have it too, or their messages to it are dropped there.
    ///
    /// # Panics
    /// If a service of that number or name is there already.
    pub fn add_service(&mut self, service: Box<dyn vmmc_service::Service>) {
        self.runner.station.add_service(service);
    }

    /// Takes the name, binds the sockets, then lets processes connect.
    pub fn start(config: NodeConfig) -> Result<Daemon, RunError> {
        if config.detach {
            // Done already by the process that started us, as a rule; fails only for the leader of
            // a process group, which has no terminal to leave.
            let _ = rustix::process::setsid();
        }
        let found = raise_open_files();
        vmmc_nic::NodeName::parse(&config.name)?;
        let uid = rustix::process::geteuid().as_raw();
        let listener = Listener::reserve(&node_socket_name(uid, &config.name)).map_err(|e| match e {
            ChannelError::NameTaken { .. } => {
                let name = config.name.clone();
                match holder_of_node(uid, &name).filter(|who| who.uid != uid) {
                    Some(who) => RunError::NameHeld { name, uid, holder: who.uid, pid: who.pid },
                    None => RunError::NameTaken { name, uid },
                }
            }
            other => RunError::Channel(other),
        })?;
        let mut runner = Runner::start(&config, false)?;
        // The key has been read and ports are bound; no thread has been started.
        rights::keep_few(&config);
        let (bell, ringer) = wake_pair().map_err(RunError::Channel)?;
        let stop = Arc::new(AtomicBool::new(false));
        if config.handle_signals {
            let caught = catch_signals(&stop, &ringer);
            caught.map_err(|e| RunError::System { call: "sigaction", why: e.to_string() })?;
        }
        runner.station.watch_outside(&bell)?;
        if config.handle_signals {
            runner.station.stand_by_to_close();
        }
        let ringer = Arc::new(ringer);
        let launcher = Launcher::new(&config, runner.station.is_plain(), found, Some(ringer.clone()));
        let metrics = config.metrics.map(|address| {
            Metrics::start(address, ringer.clone()).map_err(|e| RunError::Bind { address, why: e.to_string() })
        });
        let metrics = metrics.transpose()?;
        // Last: a process that can connect is served, and not let go because something else fails.
        listener.listen().map_err(RunError::Channel)?;
        runner.station.watch_outside(&listener)?;
        let (log, failure) = Log::open(&config);
        runner.station.set_log(log.level(), log.place());
        failure.into_iter().for_each(|why| runner.station.note(now(), why));
        let counters = WatchedCounters::default();
        let spares = spare_descriptors();
        Ok(Daemon {
            config,
            runner,
            launcher,
            metrics,
            listener,
            log,
            counters,
            stop,
            bell,
            ringer,
            spares,
            paused: None,
        })
    }

    /// Name and addresses.
    pub fn running(&self) -> Running {
        let metrics = self.metrics.as_ref().map(|metrics| metrics.address);
        Running { name: self.config.name.clone(), addresses: self.runner.addresses(), metrics }
    }

    /// A handle that ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone(), ringer: self.ringer.clone() }
    }

    /// Serves until stopped: by a [`Stopper`], a process that asks for it, a signal, or because
    /// nobody has been attached for as long as configured.
    pub fn run(mut self) -> Result<(), RunError> {
        let input = self.runner.input();
        let mut alone_since = now();
        self.log_start();
        self.runner.station.watch_waits();
        let backoff = Backoff::new(&NODE_WAITS);
        let mut wait = backoff.begin(Manner::Yield, Deadline(Nanos::MAX));
        loop {
            // Also the time at which the last yield ended.
            let now = now();
            let mut worked = self.runner.step(now);
            if self.paused.is_some_and(|until| now >= until) {
                self.resume();
                worked |= self.take_connections(now);
            }
            if self.runner.station.take_outside() {
                self.bell.drain();
                worked |= self.take_connections(now);
                if let Some(metrics) = &self.metrics {
                    let runner = &mut self.runner;
                    worked |= metrics.answer(|| runner.describe(now, true));
                }
                if self.launcher.is_concerned() {
                    self.launcher.reap(&mut self.runner.station, now);
                }
            }
            worked |= self.launcher.serve(&mut self.runner.station, now);
            self.write_log(now);
            if !self.is_alone() {
                alone_since = now;
            }
            if self.ends(now, alone_since) {
                break;
            }
            let resumed = || Nanos(now.as_nanos());
            let step = if worked {
                self.runner.stays_awake();
                wait.again(resumed)
            } else {
                wait.next(resumed)
            };
            match step {
                Step::Poll => {}
                Step::Yield => {
                    wait.yields_at(Nanos::monotonic());
                    std::thread::yield_now();
                }
                Step::Sleep(_) | Step::TimedOut => self.sleep(&input, now, alone_since),
            }
        }
        let why = if self.stop.load(Ordering::Relaxed) {
            "it was told to by a signal, or by the program that it is part of"
        } else if self.runner.station.stop_requested() {
            "its user told it to (`vmmc node stop`)"
        } else {
            "nobody has been attached for as long as configured (--linger-s)"
        };
        self.log.own(LogLevel::Info, &format!("ends: {why}"));
        self.runner.station.close_door(self.listener);
        self.runner.shut_down();
        Ok(())
    }

    /// What it is, and how it was started.
    fn log_start(&mut self) {
        if self.config.handle_signals {
            self.log.catch_panics();
        }
        let about = &self.runner.station;
        let seal = if about.is_plain() { "plain" } else { "encrypted" };
        let runs = if self.config.launcher.is_some() { "starts processes for jobs" } else { "starts no processes" };
        let listen: Vec<String> = self.runner.addresses().iter().map(ToString::to_string).collect();
        let listen = if listen.is_empty() { "no address".into() } else { listen.join(", ") };
        let text = format!(
            "starts: node {:?} of user {}, to other nodes {:?}, process {}, release {}, serves {}, listens on {listen}, {seal}, {runs}",
            self.config.name,
            rustix::process::geteuid().as_raw(),
            about.name().as_str(),
            std::process::id(),
            env!("CARGO_PKG_VERSION"),
            self.config.serve,
        );
        self.log.own(LogLevel::Info, &text);
    }

    /// Writes what has come up, and now and then which counters have grown.
    #[inline]
    fn write_log(&mut self, now: Time) {
        while let Some(line) = self.runner.station.take_log_line() {
            self.log.line(line.level, line.topic, line.who, &line.text);
        }
        if self.counters.are_due(now) {
            for (level, text) in self.counters.sample(now, || self.runner.describe(now, false).counters) {
                self.log.line(level, "counters", 0, &text);
            }
        }
    }

    fn sleep(&mut self, input: &OwnedFd, now: Time, alone_since: Time) {
        if let Some(mut until) = self.runner.prepare_sleep(now) {
            if let Some(linger) = self.config.linger.filter(|_| self.is_alone()) {
                until = until.min(alone_since + linger);
            }
            if let Some(paused) = self.paused {
                until = until.min(paused);
            }
            if let Some(due) = self.launcher.next_timeout() {
                until = until.min(due);
            }
            sleep(&[input], now, until);
        }
        self.runner.station.wake_up();
        self.runner.poll_control_soon();
    }

    fn is_alone(&self) -> bool {
        self.runner.station.connections() == 0 && !self.launcher.is_concerned()
    }

    fn take_connections(&mut self, now: Time) -> bool {
        if self.paused.is_some() {
            return false;
        }
        let mut any = false;
        for _ in 0..ACCEPT_BATCH {
            if self.runner.station.is_full_of_unclosed() {
                let text = "connections wait: too many that ended cannot be closed, for what their users left in them";
                self.log.line(LogLevel::Error, "process", u64::MAX, text);
                self.pause(now);
                break;
            }
            match self.listener.accept() {
                Ok(channel) => {
                    any = true;
                    // A client that is turned away sees its connection close; the node serves those
                    // it has.
                    let uid = channel.peer().map_or(u32::MAX, |who| who.uid);
                    if let Err(why) = self.runner.station.accept(now, channel) {
                        let text = format!("a connection of user {uid} was turned away: {why}");
                        self.log.line(LogLevel::Warn, "process", u64::from(uid), &text);
                    }
                }
                Err(ChannelError::System {
                    errno: Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS, ..
                }) => {
                    let text = "there is no descriptor or memory for more connections; raise the limit (LimitNOFILE, ulimit -n)";
                    self.log.line(LogLevel::Error, "process", u64::MAX, text);
                    self.turn_away();
                    self.pause(now);
                    break;
                }
                Err(_) => break,
            }
        }
        if any {
            self.runner.poll_control_soon();
        }
        any
    }

    /// There is no descriptor for another connection: those that wait see theirs close, instead of
    /// waiting for nobody knows how long.
    fn turn_away(&mut self) {
        while self.spares.pop().is_some() && !self.runner.station.is_full_of_unclosed() {
            match self.listener.accept() {
                Ok(channel) => self.runner.station.turn_away(channel),
                Err(_) => break,
            }
        }
        self.spares = spare_descriptors();
    }

    /// Stops polling the listener for a while: it stays readable, and polling it again at once
    /// would only cost the core.
    fn pause(&mut self, now: Time) {
        self.runner.station.unwatch_outside(&self.listener);
        self.paused = Some(now + ACCEPT_PAUSE);
    }

    fn resume(&mut self) {
        self.paused = None;
        if self.runner.station.watch_outside(&self.listener).is_err() {
            // Out of kernel memory for now: the next try comes by the clock.
            self.paused = Some(now() + ACCEPT_PAUSE);
        }
    }

    fn ends(&self, now: Time, alone_since: Time) -> bool {
        let lonely = |linger| now.since(alone_since) >= linger;
        self.stop.load(Ordering::Relaxed)
            || self.runner.station.stop_requested()
            || self.config.linger.is_some_and(lonely)
    }
}

/// Runs a node daemon until it is stopped.
pub fn run(config: NodeConfig) -> Result<(), RunError> {
    Daemon::start(config)?.run()
}

/// Like [`run`]; `ready` is called once processes can attach.
pub fn run_with(config: NodeConfig, ready: impl FnOnce(Running)) -> Result<(), RunError> {
    let daemon = Daemon::start(config)?;
    ready(daemon.running());
    daemon.run()
}

/// Has the signals that end a daemon set `stop`, and ring; the end of a supervisor rings too.
fn catch_signals(stop: &Arc<AtomicBool>, ringer: &WakeSender) -> std::io::Result<()> {
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())?;
        signal_hook::low_level::pipe::register(signal, ringer.share()?)?;
    }
    // Its coming is all that it is for.
    signal_hook::flag::register(vmmc_host::process::INTERRUPT, Arc::default())?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, ringer.share()?).map(drop)
}

/// Descriptors that are good for nothing but to be given up.
fn spare_descriptors() -> Vec<OwnedFd> {
    (0..SPARES).map_while(|_| std::fs::File::open("/dev/null").ok().map(OwnedFd::from)).collect()
}

/// Each region of each process costs a descriptor: takes all that the system allows, and returns
/// what there was.
fn raise_open_files() -> Option<OpenFiles> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, the node serves as many as it may.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    Some(OpenFiles { soft: limit.current?, hard: limit.maximum? })
}

#[cfg(test)]
mod tests;
