//! A node inside a process, stepped by whoever waits for it.
//!
//! ```text
//!   threads of the program ── Stepper::step ──▶ one at a time: rings, sockets, engine
//!                          ── Stepper::park ──▶ sleep until something comes, or another thread's step has brought news
//!   keeper thread          ── steps when nobody has for a millisecond, so that peers are served while the program computes
//! ```
//!
//! Invariant: news that a step brought wakes every thread that sleeps in `park`: a sleeper
//! registers, then takes the lock under which steps run, and looks at the count of news; a step
//! counts its news, then looks for sleepers, under that lock. Source: DESIGN §3 ("the engine
//! stepped inline by the waiting thread, 1.8 us").
//!
//! Invariant: a child of the process that started the node never steps it. It has the keys and
//! packet numbers of its parent, and a number is used once; and it may have been forked while
//! another thread held a lock here. So every way in asks for the owner before it takes a lock, and
//! what a child drops it leaves as it is.

use crate::config::NodeConfig;
use crate::daemon::RunError;
use crate::limits::{AWAKE_TIME, KEEPER_NAP, KEEPER_NAP_MAX, SLEEP_MAX};
use crate::polling::Contention;
use crate::runner::{Runner, now, sleep};
use crate::station::{ConnectionId, StationError};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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

/// Owns the node and its keeper.
struct Core {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    name: String,
}

struct Shared {
    /// The process that may step.
    owner: Owner,
    runner: Mutex<Runner>,
    /// Readable when something has come.
    input: Arc<OwnedFd>,
    /// Steps that brought something.
    news: AtomicU64,
    /// Time of the last step by a caller, ns.
    stepped: AtomicU64,
    /// Threads in `park`.
    parked: AtomicUsize,
    sleepers: Mutex<Sleepers>,
    has_keeper: bool,
    /// Whether other threads want the node that one of them has.
    contention: Contention,
    stop: AtomicBool,
    /// Whether the keeper sleeps until a timer that a step of a caller may have made too late.
    keeper_asleep: AtomicBool,
    /// Wakes the keeper.
    keeper_bell: OwnedFd,
}

/// Wake-up descriptors of threads in `park`, and spare ones.
#[derive(Default)]
struct Sleepers {
    asleep: Vec<Arc<OwnedFd>>,
    spare: Vec<Arc<OwnedFd>>,
}

thread_local! {
    /// Node (by address) and count of news at this thread's last step.
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
            news: AtomicU64::new(0),
            stepped: AtomicU64::new(0),
            parked: AtomicUsize::new(0),
            sleepers: Mutex::default(),
            has_keeper: config.keeper,
            contention: Contention::default(),
            stop: AtomicBool::new(false),
            keeper_asleep: AtomicBool::new(false),
            keeper_bell: bell.map_err(|e| RunError::system("eventfd", e))?,
        });
        let theirs = shared.clone();
        let thread = || std::thread::Builder::new().name("vmmc-keeper".into()).spawn(move || theirs.keep());
        let keeper = config.keeper.then(thread).transpose();
        let keeper = keeper.map_err(|e| RunError::System { call: "spawn", why: e.to_string() })?;
        Ok(Embedded(Arc::new(Core { shared, keeper, addresses, name })))
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
            // The keeper is no thread of this process, and the node says goodbye, unpins and closes
            // in the parent's name. It stays as it is.
            std::mem::forget(self.keeper.take());
            std::mem::forget(self.shared.clone());
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.ring_keeper();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
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
            let came = runner.poll_network(shared.contention.polls(times));
            shared.tell(runner, came);
            came
        })
    }

    fn park(&self, until: Nanos) {
        self.core.shared.park(Time::from_nanos(until.0));
    }

    fn try_send_inline(&self, what: &Direct<'_>) -> bool {
        let shared = &*self.core.shared;
        if !shared.owner.is_here() {
            return false;
        }
        let Ok(mut runner) = shared.runner.try_lock() else {
            shared.contention.turned_away();
            return false;
        };
        // Who sleeps may have to be woken for what this leads to: that is for a step.
        let asleep = shared.parked.load(Ordering::Relaxed) > 0 || shared.keeper_asleep.load(Ordering::Relaxed);
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
                shared.contention.turned_away();
                std::thread::yield_now();
                false
            }
            Err(TryLockError::Poisoned(_)) => panic!("a step of the embedded node panicked"),
        };
        SEEN.set((shared.address(), shared.news.load(Ordering::Acquire)));
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

    /// One step; news wakes the threads in `park`.
    #[inline]
    fn step(&self, runner: &mut Runner, now: Time) -> bool {
        // Doorbells are needed while nobody looks at the rings. The keeper looks within its nap;
        // without it, a thread in `park` relies on them.
        if self.has_keeper || self.parked.load(Ordering::Relaxed) == 0 {
            runner.station.wake_up();
        }
        let worked = runner.step(now);
        while let Some(wanted) = runner.station.poll_activation() {
            runner.station.refuse_activation(now, &wanted.name, vmmc_nic::ActivationRefusal::Never);
        }
        self.tell(runner, worked);
        worked
    }

    /// News wakes the threads in `park`, and the keeper if it sleeps. Under the lock, as all that
    /// it looks at is changed or looked at by those; locked instructions here would be a good part
    /// of the way of a short message.
    #[inline]
    fn tell(&self, runner: &mut Runner, worked: bool) {
        if !worked {
            return;
        }
        self.news.store(self.news.load(Ordering::Relaxed) + 1, Ordering::Release);
        let (parked, keeper_asleep) =
            (self.parked.load(Ordering::Relaxed) > 0, self.keeper_asleep.load(Ordering::Relaxed));
        if parked {
            self.wake_all();
        } else {
            runner.station.raise_bells(false);
            if !keeper_asleep {
                runner.stays_awake();
            }
        }
        if keeper_asleep && self.keeper_asleep.swap(false, Ordering::SeqCst) {
            self.ring_keeper();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let sleepers = self.sleepers.lock().expect("no panic while the lock is held");
        for bell in &sleepers.asleep {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    fn ring_keeper(&self) {
        // Should the count be full, it has rung already.
        let _ = rustix::io::write(&self.keeper_bell, &1u64.to_ne_bytes());
    }

    fn park(&self, until: Time) {
        if !self.owner.is_here() {
            // Whoever waits in a child waits for its own deadline.
            return std::thread::sleep(until.since(now()).min(SLEEP_MAX));
        }
        let Some(bell) = self.enter() else { return std::thread::yield_now() };
        if let Some(until) = self.may_sleep(until) {
            sleep(&[&self.input, &bell], now(), until);
        }
        self.leave(&bell);
    }

    /// Whether this thread may sleep, and how long. Called after it is among the sleepers: whoever
    /// steps next sees it there.
    fn may_sleep(&self, until: Time) -> Option<Time> {
        let mut runner = self.lock();
        if SEEN.get() != (self.address(), self.news.load(Ordering::Acquire)) {
            return None;
        }
        // A notifier that came before the bells were raised did not ring: the caller looks once
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

    /// The keeper's life.
    fn keep(&self) {
        let mut nap = KEEPER_NAP;
        while !self.stop.load(Ordering::SeqCst) {
            let start = now();
            if start.since(Time::from_nanos(self.stepped.load(Ordering::Relaxed))) < KEEPER_NAP {
                self.nap(start, nap);
                // Each look takes a core from somebody, most likely from the caller that steps.
                nap = (nap * 2).min(KEEPER_NAP_MAX);
                continue;
            }
            nap = KEEPER_NAP;
            if let Some(until) = self.keep_awake() {
                sleep(&[&self.input, &self.keeper_bell], now(), until);
                self.keeper_asleep.store(false, Ordering::SeqCst);
                self.hear_bell();
            }
        }
    }

    /// Leaves the node to callers for this long, or until somebody rings.
    fn nap(&self, now: Time, time: Duration) {
        sleep(&[&self.keeper_bell], now, now + time);
        self.hear_bell();
    }

    fn hear_bell(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.keeper_bell, &mut count);
    }

    /// Steps until there has been nothing to do for a while, or a caller steps. Returns until when
    /// to sleep.
    fn keep_awake(&self) -> Option<Time> {
        let stepped = self.stepped.load(Ordering::Relaxed);
        loop {
            let now = now();
            {
                let mut runner = match self.runner.try_lock() {
                    Ok(runner) => runner,
                    // Whoever steps does what is to be done, and may have lost his processor to us.
                    Err(TryLockError::WouldBlock) => {
                        self.nap(now, KEEPER_NAP);
                        return None;
                    }
                    Err(TryLockError::Poisoned(_)) => panic!("a step of the embedded node panicked"),
                };
                self.step(&mut runner, now);
                if runner.idle_for(now) >= AWAKE_TIME {
                    // Set under the lock: whoever steps next sees it.
                    self.keeper_asleep.store(true, Ordering::SeqCst);
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
