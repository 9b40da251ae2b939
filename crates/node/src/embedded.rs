//! A node inside a process, stepped by the threads that wait for it.
//!
//! ```text
//!   threads of the program ── Stepper::step ──▶ one at a time: rings, sockets, engine
//!                          ── Stepper::park ──▶ sleep until something comes, or another thread's step has done work
//!   background poller      ── steps when nobody has for a millisecond, so that peers are served while the program computes
//! ```
//!
//! Invariant: a step that has done work wakes every thread that sleeps in `park`. A sleeper
//! registers, then takes the lock under which steps run, and reads the count of such steps; a step
//! counts itself, then checks for sleepers, under that lock. Source: ARCHITECTURE.md, "Embedded
//! nodes".
//!
//! Invariant: a child of the process that started the node never steps it. It has the keys and
//! packet numbers of its parent, and a number is used once; and it may have been forked while
//! another thread held a lock here. So every way in asks for the owner before it takes a lock, and
//! what a child drops it leaves as it is.

use crate::config::NodeConfig;
use crate::daemon::RunError;
use crate::limits::{AWAKE_TIME, POLLER_SLEEP, POLLER_SLEEP_MAX, SLEEP_MAX};
use crate::runner::{Runner, now, sleep};
use crate::station::{ConnectionId, StationError};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;
use vmmc_host::fork::Owner;
use vmmc_host::wait::{Direct, Stepper};
use vmmc_host::{Attachment, Channel, Nanos};
use vmmc_nic::Time;

/// A node that lives in this process. Clones are handles to the same node, which ends with the last
/// of them and of its attachments.
#[derive(Clone)]
pub struct Embedded(Arc<Core>);

/// Why a process could not be attached to its embedded node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The node takes no connection.
    #[error(transparent)]
    Station(#[from] StationError),
    /// The kernel refused.
    #[error(transparent)]
    Channel(#[from] vmmc_host::channel::ChannelError),
    /// The caller is a child of the process that started the node.
    #[error(
        "this node lives in process {parent}, and the calling process was forked from it; start a node of its own here, or attach to a daemon (`vmmc node start`)"
    )]
    Forked {
        /// The process that started it.
        parent: u32,
    },
}

/// Owns the node and its background poller.
struct Core {
    shared: Arc<Shared>,
    poller: Option<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    name: String,
}

struct Shared {
    /// The process that may step.
    owner: Owner,
    runner: Mutex<Runner>,
    /// Readable when something has come.
    input: Arc<OwnedFd>,
    /// Steps that have done work.
    work_steps: AtomicU64,
    /// Time of the last step by a caller, ns.
    stepped: AtomicU64,
    /// Callers that poll while they wait.
    polling_threads: AtomicU32,
    /// Threads in `park`.
    parked: AtomicUsize,
    sleepers: Mutex<Sleepers>,
    has_poller: bool,
    stop: AtomicBool,
    /// Whether the poller sleeps until a timer that a step of a caller may have made too late.
    poller_asleep: AtomicBool,
    /// Wakes the poller.
    poller_wake_fd: OwnedFd,
}

/// Wake-up descriptors of threads in `park`, and spare ones.
#[derive(Default)]
struct Sleepers {
    asleep: Vec<Arc<OwnedFd>>,
    spare: Vec<Arc<OwnedFd>>,
}

thread_local! {
    /// Node (by address) and its `work_steps` at this thread's last step.
    static SEEN: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

impl Embedded {
    /// Starts a node in this process.
    pub fn start(config: NodeConfig) -> Result<Embedded, RunError> {
        let runner = Runner::start(&config, true)?;
        let addresses = runner.addresses();
        let name = runner.station.name().as_str().to_string();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = Arc::new(Shared {
            owner: Owner::here().map_err(|e| RunError::system("mmap", e))?,
            input: runner.input(),
            runner: Mutex::new(runner),
            work_steps: AtomicU64::new(0),
            stepped: AtomicU64::new(0),
            polling_threads: AtomicU32::new(0),
            parked: AtomicUsize::new(0),
            sleepers: Mutex::default(),
            has_poller: config.poller,
            stop: AtomicBool::new(false),
            poller_asleep: AtomicBool::new(false),
            poller_wake_fd: bell.map_err(|e| RunError::system("eventfd", e))?,
        });
        let theirs = shared.clone();
        let thread =
            || std::thread::Builder::new().name("vmmc-poller".into()).spawn(move || theirs.poll_in_background());
        let poller = config.poller.then(thread).transpose();
        let poller = poller.map_err(|e| RunError::System { call: "spawn", why: e.to_string() })?;
        Ok(Embedded(Arc::new(Core { shared, poller, addresses, name })))
    }

    /// Attaches this process once more; give the attachment to the library.
    pub fn attach(&self) -> Result<Attachment, AttachError> {
        let owner = &self.0.shared.owner;
        if !owner.is_here() {
            return Err(AttachError::Forked { parent: owner.pid() });
        }
        let (ours, theirs) = Channel::pair()?;
        let connection = self.0.shared.lock().station.accept(now(), ours)?;
        Ok(Attachment::stepped(theirs, Arc::new(CoreStepper { core: self.0.clone(), connection })))
    }

    /// UDP addresses that the node listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses.clone()
    }

    /// Name of the node.
    pub fn name(&self) -> String {
        self.0.name.clone()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.shared.owner.is_here() {
            // The poller is no thread of this process, and the node says goodbye, unpins and closes
            // in the parent's name. It stays as it is.
            std::mem::forget(self.poller.take());
            std::mem::forget(self.shared.clone());
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_poller();
        if let Some(poller) = self.poller.take() {
            let _ = poller.join();
        }
        self.shared.lock().shut_down();
    }
}

/// Steps the node for the waiting threads of one attachment.
struct CoreStepper {
    core: Arc<Core>,
    connection: ConnectionId,
}

impl Stepper for CoreStepper {
    fn now(&self) -> Nanos {
        Nanos::monotonic()
    }

    fn step(&self) -> bool {
        self.with_runner(|shared, runner| {
            let now = now();
            shared.stepped.store(now.as_nanos(), Ordering::Relaxed);
            shared.step(runner, now)
        })
    }

    fn step_again(&self, times: u32) -> bool {
        self.with_runner(|shared, runner| {
            let came = runner.poll_network(times);
            shared.publish(runner, came);
            came
        })
    }

    fn polling_threads(&self) -> Option<&AtomicU32> {
        Some(&self.core.shared.polling_threads)
    }

    fn park(&self, until: Nanos) {
        self.core.shared.park(Time::from_nanos(until.0));
    }

    fn try_send_inline(&self, what: &Direct<'_>) -> bool {
        let shared = &*self.core.shared;
        if !shared.owner.is_here() {
            return false;
        }
        let Ok(mut runner) = shared.runner.try_lock() else { return false };
        // Sleeping threads may have to be woken for what this leads to: that is for a step.
        let asleep = shared.parked.load(Ordering::Relaxed) > 0 || shared.poller_asleep.load(Ordering::Relaxed);
        !asleep && runner.try_send_inline(self.connection, what)
    }
}

impl CoreStepper {
    /// Runs the node, unless another thread does.
    #[inline]
    fn with_runner(&self, run: impl FnOnce(&Shared, &mut Runner) -> bool) -> bool {
        let shared = &*self.core.shared;
        if !shared.owner.is_here() {
            return false;
        }
        let worked = match shared.runner.try_lock() {
            Ok(mut runner) => run(shared, &mut runner),
            Err(TryLockError::WouldBlock) => {
                std::thread::yield_now();
                false
            }
            Err(TryLockError::Poisoned(_)) => panic!("a step of the embedded node panicked"),
        };
        SEEN.set((shared.address(), shared.work_steps.load(Ordering::Acquire)));
        worked
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Runner> {
        self.runner.lock().expect("a step of the embedded node panicked")
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// One step; wakes the threads in `park` if it has done work.
    #[inline]
    fn step(&self, runner: &mut Runner, now: Time) -> bool {
        // Doorbells are needed while nobody polls the rings. The background poller does so after
        // each timed sleep; without it, a thread in `park` relies on them.
        if self.has_poller || self.parked.load(Ordering::Relaxed) == 0 {
            runner.station.wake_up();
        }
        let worked = runner.step(now);
        while let Some(wanted) = runner.station.poll_activation() {
            runner.station.refuse_activation(now, &wanted.name, vmmc_nic::ActivationRefusal::Never);
        }
        self.publish(runner, worked);
        worked
    }

    /// After a step that has done work: wakes the threads in `park`, and the background poller if
    /// it sleeps. The caller holds the lock, under which all that is read here changes. Locked
    /// instructions here would be a good part of the latency of a short message.
    #[inline]
    fn publish(&self, runner: &mut Runner, worked: bool) {
        if !worked {
            return;
        }
        self.work_steps.store(self.work_steps.load(Ordering::Relaxed) + 1, Ordering::Release);
        let (parked, poller_asleep) =
            (self.parked.load(Ordering::Relaxed) > 0, self.poller_asleep.load(Ordering::Relaxed));
        if parked {
            self.wake_all();
        } else {
            runner.station.raise_bells(false);
            if !poller_asleep {
                runner.stays_awake();
            }
        }
        if poller_asleep && self.poller_asleep.swap(false, Ordering::SeqCst) {
            self.wake_poller();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let sleepers = self.sleepers.lock().expect("no panic while the lock is held");
        for bell in &sleepers.asleep {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    fn wake_poller(&self) {
        // Should the count be full, the poller is awake already.
        let _ = rustix::io::write(&self.poller_wake_fd, &1u64.to_ne_bytes());
    }

    fn park(&self, until: Time) {
        if !self.owner.is_here() {
            // A thread that waits in a child waits for its own deadline.
            return std::thread::sleep(until.since(now()).min(SLEEP_MAX));
        }
        let Some(bell) = self.enter() else { return std::thread::yield_now() };
        if let Some(until) = self.may_sleep(until) {
            sleep(&[&self.input, &bell], now(), until);
        }
        self.leave(&bell);
    }

    /// Whether this thread may sleep, and how long. Called after it is among the sleepers: the next
    /// step sees it there.
    fn may_sleep(&self, until: Time) -> Option<Time> {
        let mut runner = self.lock();
        if SEEN.get() != (self.address(), self.work_steps.load(Ordering::Acquire)) {
            return None;
        }
        // A notifier that came before the bells were raised did not ring: the caller polls once
        // more before it sleeps.
        if runner.station.raise_bells(true) {
            return None;
        }
        Some(runner.prepare_sleep(now())?.min(until))
    }

    fn enter(&self) -> Option<Arc<OwnedFd>> {
        let mut sleepers = self.sleepers.lock().expect("no panic while the lock is held");
        let bell = match sleepers.spare.pop() {
            Some(bell) => bell,
            None => Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?),
        };
        sleepers.asleep.push(bell.clone());
        self.parked.fetch_add(1, Ordering::SeqCst);
        Some(bell)
    }

    fn leave(&self, bell: &Arc<OwnedFd>) {
        let mut sleepers = self.sleepers.lock().expect("no panic while the lock is held");
        self.parked.fetch_sub(1, Ordering::SeqCst);
        sleepers.asleep.retain(|b| !Arc::ptr_eq(b, bell));
        let mut count = [0; 8];
        let _ = rustix::io::read(bell, &mut count);
        sleepers.spare.push(bell.clone());
    }

    /// The loop of the background poller.
    fn poll_in_background(&self) {
        let mut pause = POLLER_SLEEP;
        while !self.stop.load(Ordering::SeqCst) {
            let start = now();
            if start.since(Time::from_nanos(self.stepped.load(Ordering::Relaxed))) < POLLER_SLEEP {
                self.timed_sleep(start, pause);
                // Each poll takes a core from another thread, most likely from the caller that
                // steps.
                pause = (pause * 2).min(POLLER_SLEEP_MAX);
                continue;
            }
            pause = POLLER_SLEEP;
            if let Some(until) = self.poll_until_idle() {
                sleep(&[&self.input, &self.poller_wake_fd], now(), until);
                self.poller_asleep.store(false, Ordering::SeqCst);
                self.clear_wake_fd();
            }
        }
    }

    /// Leaves the node to callers for this long, or until a wake-up.
    fn timed_sleep(&self, now: Time, time: Duration) {
        sleep(&[&self.poller_wake_fd], now, now + time);
        self.clear_wake_fd();
    }

    fn clear_wake_fd(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.poller_wake_fd, &mut count);
    }

    /// Steps until there has been nothing to do for a while, or a caller steps. Returns until when
    /// to sleep.
    fn poll_until_idle(&self) -> Option<Time> {
        let stepped = self.stepped.load(Ordering::Relaxed);
        loop {
            let now = now();
            {
                let mut runner = match self.runner.try_lock() {
                    Ok(runner) => runner,
                    // The thread that steps does all the work, and may have lost its processor to
                    // us.
                    Err(TryLockError::WouldBlock) => {
                        self.timed_sleep(now, POLLER_SLEEP);
                        return None;
                    }
                    Err(TryLockError::Poisoned(_)) => panic!("a step of the embedded node panicked"),
                };
                self.step(&mut runner, now);
                if runner.idle_for(now) >= AWAKE_TIME {
                    // Set under the lock: the next step sees it.
                    self.poller_asleep.store(true, Ordering::SeqCst);
                    return runner.prepare_sleep(now).or(Some(now)).map(|until| until.min(now + SLEEP_MAX));
                }
            }
            if self.stop.load(Ordering::Relaxed) || self.stepped.load(Ordering::Relaxed) != stepped {
                return None;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests;
