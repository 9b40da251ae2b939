//! The inside of a session: what exports, imports, buffers and transfers share.
//!
//! Invariant: commands are posted under one lock, in the order in which their callers got it;
//! everything that comes from the node is collected under another one, by whichever thread polls
//! first. Once the node is gone no call waits.

use crate::bell::{Bell, Words};
use crate::collector::Collector;
use crate::control::{Answered, Control};
use crate::error::{AccessError, CallError};
use crate::hub::Hub;
use crate::imports::Imports;
use crate::limits::ANNOUNCED_SLEEPS;
use crate::mapped::{ALIVE, GONE, Hot};
use crate::peers::Peers;
use crate::pins::Pins;
use crate::redirects::Redirects;
use crate::regions::Regions;
use crate::session::NodeIdentity;
use crate::slots::{Appending, Hold, Slots};
use crate::staging::Staging;
use crate::waiting::{Descriptors, Waiting, wait_sliced};
use std::cell::{Cell, RefCell};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vmmc_host::abi::RawCommand;
use vmmc_host::control::Call;
use vmmc_host::handshake::must_wake;
use vmmc_host::limits::{TIMED_SLEEP_MAX, TIMED_SLEEPS};
use vmmc_host::ring::{Producer, RegionWords};
use vmmc_host::wait::{TimedOut, patience};
use vmmc_host::{Deadline, Nanos};

/// The shared inside of a session.
pub(crate) struct Core {
    pub(crate) identity: NodeIdentity,
    /// Id of this process on its node.
    pub(crate) process: u32,
    /// Process that attached.
    pub(crate) pid: u32,
    /// Default of all waits.
    pub(crate) timeout: Duration,
    pub(crate) hot: Arc<Hot>,
    pub(crate) bell: Bell,
    pub(crate) control: Control,
    pub(crate) doorbell: OwnedFd,
    pub(crate) commands: Mutex<Producer<RegionWords>>,
    pub(crate) collector: Mutex<Collector>,
    pub(crate) waiting: Waiting,
    pub(crate) slots: Slots,
    pub(crate) staging: Staging,
    pub(crate) pins: Pins,
    pub(crate) hub: Hub,
    pub(crate) imports: Imports,
    pub(crate) redirects: Redirects,
    pub(crate) peers: Peers,
    pub(crate) regions: Regions,
    pub(crate) counters: Counters,
    pub(crate) event_loop: crate::notification::EventLoop,
    /// Another handle on the events socket, to end the monitor.
    pub(crate) events_end: OwnedFd,
}

thread_local! {
    /// This thread is in [`Core::corked`].
    static CORKED: Cell<bool> = const { Cell::new(false) };
}

/// Counters that do not belong to a lane.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) sends_inline: AtomicU64,
    pub(crate) sends_direct: AtomicU64,
    pub(crate) requests_direct: AtomicU64,
    pub(crate) sends_staged: AtomicU64,
    pub(crate) sends_registered: AtomicU64,
    pub(crate) send_bytes: AtomicU64,
    pub(crate) fetches: AtomicU64,
    pub(crate) fetch_bytes: AtomicU64,
    pub(crate) atomics: AtomicU64,
    pub(crate) notified: AtomicU64,
    pub(crate) notify_lost: AtomicU64,
    pub(crate) lost_in_rings: AtomicU64,
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    TimedOut,
    Gone,
    Forked,
}

/// When a call gives up. It reads the clock only when the call has to wait: most posts do not.
pub(crate) struct Limit<'a> {
    core: &'a Core,
    timeout: Duration,
    /// Start and deadline, once asked for.
    by: Cell<Option<(Nanos, Deadline)>>,
}

impl<'a> Limit<'a> {
    /// A call that may take this long.
    pub(crate) fn within(core: &'a Core, timeout: Duration) -> Limit<'a> {
        Limit { core, timeout, by: Cell::new(None) }
    }

    /// A call that begins now and may take until the deadline.
    pub(crate) fn until(core: &'a Core, deadline: Deadline) -> Limit<'a> {
        let start = core.waiting.waiter.now();
        Limit { core, timeout: Duration::ZERO, by: Cell::new(Some((start, deadline))) }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        let start_now = || {
            let start = self.core.waiting.waiter.now();
            (start, Deadline(start + self.timeout))
        };
        let by = self.by.get().unwrap_or_else(start_now);
        self.by.set(Some(by));
        by.1
    }

    /// How long the call has taken.
    pub(crate) fn waited(&self) -> Duration {
        self.by.get().map_or(Duration::ZERO, |(start, _)| self.core.waiting.waiter.now().since(start))
    }
}

/// Counts in a shared counter.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Core {
    /// A deadline on this session's clock.
    pub(crate) fn deadline(&self, after: Duration) -> Deadline {
        self.waiting.waiter.deadline(after)
    }

    /// Time for waits that have no deadline of their own: what the calling thread has set, else the
    /// session's.
    pub(crate) fn timeout(&self) -> Duration {
        patience().timeout.unwrap_or(self.timeout)
    }

    /// The default timeout from now on.
    pub(crate) fn default_deadline(&self) -> Deadline {
        self.deadline(self.timeout())
    }

    /// Whether the session can be used at all.
    pub(crate) fn usable(&self) -> Result<(), End> {
        match self.hot.state() {
            ALIVE => Ok(()),
            GONE => Err(End::Gone),
            _ => Err(End::Forked),
        }
    }

    /// Makes a set-up call.
    pub(crate) fn call(&self, call: Call, fds: &[BorrowedFd<'_>], deadline: Deadline) -> Result<Answered, CallError> {
        self.usable().map_err(|end| self.call_error(end, Duration::ZERO))?;
        let result = self.control.call(call, fds, deadline);
        if self.control.is_closed() {
            self.node_gone();
        }
        result
    }

    /// Makes a set-up call whose answer nobody needs; never waits.
    pub(crate) fn post_call(&self, call: Call) {
        if self.usable().is_ok() {
            self.control.post(call);
        }
    }

    /// Runs a node of this process once.
    pub(crate) fn step(&self) {
        if !self.is_forked() {
            self.waiting.waiter.step();
        }
    }

    /// Makes every waiting thread poll again.
    pub(crate) fn kick(&self) {
        if !self.is_forked() {
            self.waiting.kick();
            if self.waiting.waiter.steps() {
                // Threads parked in the node poll again.
                self.ring_doorbell();
            }
        }
    }

    /// Whether this is a child of the process that attached: it must touch nothing that the parent
    /// shares with the node.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !matches!(self.hot.state(), ALIVE | GONE)
    }

    /// Refuses to reach memory that the parent shares with others.
    #[inline]
    pub(crate) fn must_be_here(&self) -> Result<(), AccessError> {
        if self.is_forked() { Err(AccessError::Forked { parent: self.pid }) } else { Ok(()) }
    }

    pub(crate) fn call_error(&self, end: End, waited: Duration) -> CallError {
        let node = self.identity.name.clone();
        match end {
            End::TimedOut => CallError::TimedOut { node, after_ms: crate::error::millis(waited) },
            End::Gone => CallError::NodeGone { node },
            End::Forked => CallError::Forked { parent: self.pid },
        }
    }

    /// The node has died or ended: every wait ends, every later call fails.
    pub(crate) fn node_gone(&self) {
        if self.hot.state() == ALIVE {
            self.hot.set_gone();
            self.control.close();
            // Event loops are told, also by a session that leaves a node which does not answer.
            let _ = rustix::net::shutdown(&self.events_end, rustix::net::Shutdown::Both);
            self.kick();
        }
    }

    /// Waits until `ready` gives something, collecting what comes from the node meanwhile.
    #[inline]
    pub(crate) fn wait<T>(&self, deadline: Deadline, mut ready: impl FnMut() -> Option<T>) -> Result<T, End> {
        self.wait_for(deadline, None, None, |_| ready())
    }

    /// As [`wait`](Self::wait), for a word of exported memory, in the regions of these bits. The
    /// node wakes it after it has put short data there, and processes of this node after they have
    /// stored through the library. Its sleeps are timed, for other stores wake nobody, and theirs
    /// may miss it.
    #[inline]
    pub(crate) fn wait_word<T>(
        &self,
        regions: u64,
        deadline: Deadline,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, End> {
        self.wait_for(deadline, Some(Words { sleeps: TIMED_SLEEPS, regions }), None, |_| ready())
    }

    /// As [`wait_word`](Self::wait_word), for words that change by nothing but what wakes sleepers:
    /// a sender stores, fences, then looks who waits. So sleeps are long, and before each `ready`
    /// is told so, after the wait was announced: it then looks at everything.
    pub(crate) fn wait_announced_words<T>(
        &self,
        regions: u64,
        deadline: Deadline,
        ready: impl FnMut(bool) -> Option<T>,
    ) -> Result<T, End> {
        self.wait_for(deadline, Some(Words { sleeps: ANNOUNCED_SLEEPS, regions }), None, ready)
    }

    /// `words`: words of memory are waited for. `fds`: a change of these ends a sleep, too; `ready`
    /// asks about them. It is told whether a sleep follows that has been announced.
    pub(crate) fn wait_for<T>(
        &self,
        deadline: Deadline,
        words: Option<Words>,
        fds: Option<&Descriptors<'_>>,
        ready: impl FnMut(bool) -> Option<T>,
    ) -> Result<T, End> {
        let ready = RefCell::new(ready);
        let found: Cell<Option<T>> = Cell::new(None);
        let look = |announced| {
            self.collect();
            let now = (ready.borrow_mut())(announced);
            let some = now.is_some();
            found.set(now);
            some || self.hot.state() != ALIVE
        };
        let poll = || {
            if let Some(value) = found.take() {
                return Some(Ok(value));
            }
            if words.is_none() {
                self.collect_if_free();
            }
            if let Some(value) = (ready.borrow_mut())(false) {
                return Some(Ok(value));
            }
            self.usable().err().map(Err)
        };
        let waiter = &self.waiting.waiter;
        if let Some(found) = waiter.poll_quickly(deadline, poll) {
            return found;
        }
        let area = &self.hot.area;
        let flags = [area.process_sleeping(), self.bell.word(), area.words_awaited()];
        let flags = if words.is_some() { &flags[..] } else { &flags[..2] };
        let block = |until: Deadline| {
            let mut look = look;
            let _awaited = words.map(|words| self.bell.await_words(words.regions));
            // A sleeper that waits for no words does not show the node that any are waited for.
            let follow_max = words.map_or(Duration::MAX, |_| TIMED_SLEEP_MAX);
            self.waiting.block(flags, (until, follow_max), &mut look, fds);
        };
        // A thread that steps its node sleeps in there, where nobody polls once more.
        let _awaited = words.filter(|_| waiter.steps()).map(|words| self.bell.await_words(words.regions));
        // A node in this process sleeps on descriptors of its own.
        let timed =
            words.map(|words| words.sleeps).or_else(|| (fds.is_some() && waiter.steps()).then_some(TIMED_SLEEPS));
        wait_sliced(waiter, deadline, timed, poll, block).unwrap_or(Err(End::TimedOut))
    }

    /// As [`wait`](Self::wait), for what other threads of this process give back.
    pub(crate) fn wait_resource<T>(&self, limit: &Limit<'_>, mut ready: impl FnMut() -> Option<T>) -> Result<T, End> {
        if let Some(now) = ready() {
            return Ok(now);
        }
        self.waiting.starving(|| self.wait(limit.deadline(), ready))
    }

    /// As [`wait`](Self::wait), for what nobody announces: polls, yields, then sleeps for some
    /// time.
    pub(crate) fn wait_unannounced<T>(
        &self,
        deadline: Deadline,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, End> {
        let poll = || match ready() {
            Some(value) => Some(Ok(value)),
            None => self.usable().err().map(Err),
        };
        let waiter = &self.waiting.waiter;
        let block = |until: Deadline| {
            if let Some(left) = until.left(waiter.now()) {
                std::thread::sleep(left);
            }
        };
        wait_sliced(waiter, deadline, Some(TIMED_SLEEPS), poll, block).unwrap_or(Err(End::TimedOut))
    }

    /// Posts a command; waits for room in the ring.
    pub(crate) fn post(&self, command: &RawCommand, inline: &[u8], limit: &Limit<'_>) -> Result<(), End> {
        self.usable()?;
        if !self.try_post(command, inline) {
            self.ring_doorbell();
            // While completions wait for room the node takes no command.
            let look = || {
                self.collect_if_free();
                self.try_post(command, inline).then_some(())
            };
            self.wait_unannounced(limit.deadline(), look)?;
        }
        if self.is_corked() {
            return Ok(());
        }
        // A step of ours has looked at the ring itself.
        if !self.waiting.waiter.step() {
            self.ring_doorbell();
        }
        Ok(())
    }

    /// Posts commands that another one of this thread follows at once, whose post takes them all
    /// into the node: so they share a packet. Only for a node that our own threads step, as their
    /// waits do meanwhile; posts of other threads are as ever.
    #[inline]
    pub(crate) fn corked<T, E>(&self, post: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if !self.waiting.waiter.steps() {
            return post();
        }
        let before = CORKED.replace(true);
        let posted = post();
        CORKED.set(before);
        if posted.is_err() {
            // Nothing follows.
            self.step();
        }
        posted
    }

    /// Whether this thread posts commands that another one is to follow.
    #[inline]
    pub(crate) fn is_corked(&self) -> bool {
        CORKED.get()
    }

    fn try_post(&self, command: &RawCommand, inline: &[u8]) -> bool {
        let mut ring = self.commands.lock().expect("no panic while the lock is held");
        let Some(slot) = ring.claim() else { return false };
        command.publish(slot, inline);
        true
    }

    /// Wakes the node if it sleeps.
    #[inline]
    pub(crate) fn ring_doorbell(&self) {
        if must_wake(self.hot.area.node_sleeping()) {
            // A full counter has rung already; a node that is gone shows elsewhere.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// A slot for a command that will be answered.
    pub(crate) fn reserve(&self, limit: &Limit<'_>) -> Result<u64, End> {
        self.wait_resource(limit, || self.slots.reserve())
    }

    /// Gives back what a finished command used.
    pub(crate) fn release(&self, hold: Hold) {
        match hold {
            Hold::Chunk(chunk) | Hold::Fetched(chunk, _) | Hold::Append(Appending { chunk: Some(chunk), .. }) => {
                self.staging.give_back(chunk)
            }
            Hold::Pages(pages) => self.pins.release(pages),
            Hold::Nothing | Hold::Memory(_) | Hold::Moved(_) | Hold::Append(_) => {}
        }
        if self.waiting.is_starving() {
            self.kick();
        }
    }

    /// Collects all that has come from the node.
    pub(crate) fn collect(&self) {
        if self.is_forked() {
            return;
        }
        let mut collector = self.collector.lock().expect("no panic while the lock is held");
        let mut delivered = false;
        while collector.pass(self) {
            delivered = true;
        }
        drop(collector);
        self.announce(delivered);
    }

    /// Collects some of what has come, unless another thread does.
    pub(crate) fn collect_if_free(&self) {
        if self.is_forked() {
            return;
        }
        let Ok(mut collector) = self.collector.try_lock() else { return };
        let delivered = collector.pass(self);
        drop(collector);
        self.announce(delivered);
    }

    fn announce(&self, delivered: bool) {
        if delivered {
            self.waiting.delivered();
            if self.waiting.waiter.steps() {
                // Threads parked in the node poll again.
                self.ring_doorbell();
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.is_forked() {
            if let Some((_, tracer)) = self.hot.tracer() {
                tracer.pause();
            }
            let _ = rustix::net::shutdown(&self.events_end, rustix::net::Shutdown::Both);
        }
    }
}

/// Ends a wait of a type that has only one way to end.
impl From<TimedOut> for End {
    fn from(_: TimedOut) -> End {
        End::TimedOut
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use crate::{Export, Import, Rights, Session};
    use std::time::{Duration, Instant};
    use vmmc_node::{Daemon, KeySource, NodeConfig};

    const LONG: Duration = Duration::from_secs(30);

    /// A thread waits for the word of an export; these stores are what may wake it, others not.
    fn wakes(owner: &Session, export: &Export, wake: &[&Import], others: &[&Import]) {
        let found = |import: &Import| owner.core().bell.awaits(import.region_bit().expect("it is mapped"));
        assert!(!wake.iter().chain(others).any(|import| found(import)), "nobody waits");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| export.wait_word(0, |word| word == 7));
            let end = Instant::now() + LONG;
            while !wake.iter().all(|import| found(import)) {
                assert!(Instant::now() < end, "a thread that sleeps says so");
                std::thread::yield_now();
            }
            assert!(!others.iter().any(|import| found(import)), "it waits for nothing there");
            wake.last().expect("there is one").send(0, &7u64.to_le_bytes()).unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), 7);
        });
        assert!(!wake.iter().chain(others).any(|import| found(import)), "nobody waits any more");
    }

    #[test]
    fn whoever_stores_sees_that_a_thread_waits_for_a_word_there_and_no_longer_than_it_does() {
        let name = format!("core-words-{}", std::process::id());
        let config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap()).key(KeySource::Given([7; 32]));
        let daemon = Daemon::start(config).unwrap();
        let stopper = daemon.stopper();
        let node = std::thread::spawn(move || daemon.run());
        let attach = || Session::builder().node(&name).start_node(false).timeout(LONG).attach().unwrap();
        let (first, owner, user) = (attach(), attach(), attach());
        // So that nothing of the owner has the same number at the node and among its own.
        let earlier: Vec<Export> = (0..3).map(|_| first.export(4096).create().unwrap()).collect();
        let other = owner.export(4096).create().unwrap();
        let export = owner.export(4096).create().unwrap();
        let again = owner.export_buffer(&export.buffer()).create().unwrap();
        let import = |export: &Export| user.import_id(export.id()).rights(Rights::WRITE | Rights::READ).open().unwrap();
        let imports = [&export, &again, &other].map(import);
        let [one, same, third] = &imports;
        wakes(&owner, &export, &[one, same], &[third]);
        export.write(0, &[0; 8]).unwrap();
        wakes(&owner, &again, &[same, one], &[third]);
        wakes(&owner, &other, &[third], &[one, same]);
        drop((imports, again, export, other, earlier));
        drop((first, owner, user));
        stopper.stop();
        node.join().unwrap().unwrap();
    }
}
