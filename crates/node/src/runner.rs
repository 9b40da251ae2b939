//! A station on real sockets: what the daemon's loop and the callers of an embedded node both step.
//!
//! Invariant: a step does not wait, and takes the time once, and once more after it has served
//! control sockets. Only the process that started it steps it: a child would seal packets under
//! numbers that its parent uses.

use crate::config::NodeConfig;
use crate::daemon::RunError;
use crate::key::{cluster_key, random_bytes};
use crate::limits::{GOODBYE_TIME, OUTBOX_RETRY, PEER_TIMEOUT_MIN, SLEEP_MAX, STIR_EVERY};
use crate::network::Network;
use crate::polling::Steps;
use crate::services;
use crate::station::{ConnectionId, Station, StationConfig};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use vmmc_host::Nanos;
use vmmc_host::control::NodeInfo;
use vmmc_host::fork::Owner;
use vmmc_host::wait::Direct;
use vmmc_nic::{Ciphers, Ecn, NodeName, Time};

/// A station and its sockets.
pub(crate) struct Runner {
    /// The process that has the keys; a child of it has copies that it must not use.
    owner: Owner,
    pub(crate) station: Station,
    network: Network,
    /// Readable when something has come: control sockets, doorbells, datagrams.
    input: Arc<OwnedFd>,
    stirred_at: Time,
    /// How often it polls what.
    steps: Steps,
}

/// The time of the monotonic clock, as the engine counts it.
#[inline]
pub(crate) fn now() -> Time {
    Time::from_nanos(Nanos::monotonic().0)
}

impl Runner {
    pub(crate) fn start(config: &NodeConfig, embedded: bool) -> Result<Runner, RunError> {
        // Processes find an embedded node without a name; the one that it has is for other nodes.
        let name =
            if embedded { config.known_as.clone().unwrap_or(config.name.clone()) } else { config.cluster_name() };
        let name = NodeName::parse(&name)?;
        let key = cluster_key(&config.key)?;
        if let Ciphers::Only(cipher) = config.ciphers {
            if !cipher.is_built() {
                return Err(RunError::NoCipher { cipher });
            }
        }
        let input = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| RunError::system("epoll_create1", e))?;
        let input = Arc::new(input);
        let network = Network::bind(&config.listen, input.clone())
            .map_err(|(address, e)| RunError::Bind { address, why: e.to_string() })?;
        // An owner that lets processes be started here by anybody's word has decided to believe it.
        let trust_users = key.is_some() || config.plain_trust_users || config.plain_run;
        let station = StationConfig {
            name,
            local_name: config.name.clone(),
            key,
            serve: config.serve.clone(),
            trust_users,
            ciphers: config.ciphers,
            congestion: config.congestion,
            // Loopback has no queue that marks, and its sockets have quicker calls without.
            ecn: if network.has_codepoints() { config.ecn } else { Ecn::Off },
            listen: network.addresses(),
            recv_buffer_bytes: network.receive_budget_bytes(),
            peer_timeout: config.peer_timeout.max(PEER_TIMEOUT_MIN),
            embedded,
            pinned_pages_max: config.pinned_pages(),
            utlb: config.utlb,
            messages: config.sockets_between && !embedded,
        };
        let start = now();
        let services = services::all(&station);
        let mut station = Station::new(station, random_bytes()?, start)?;
        services.into_iter().for_each(|service| station.add_service(service));
        for peer in &config.peers {
            station.add_peer(start, peer)?;
        }
        let flags = epoll::EventFlags::IN;
        epoll::add(&*input, &station, epoll::EventData::new_u64(0), flags)
            .map_err(|e| RunError::system("epoll_ctl", e))?;
        Ok(Runner {
            owner: Owner::here().map_err(|e| RunError::system("mmap", e))?,
            station,
            network,
            input,
            stirred_at: start,
            steps: Steps::new(start),
        })
    }

    /// Readable when there may be work.
    pub(crate) fn input(&self) -> Arc<OwnedFd> {
        self.input.clone()
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.network.addresses()
    }

    /// Does what can be done now; says whether there was anything.
    #[inline]
    pub(crate) fn step(&mut self, mut now: Time) -> bool {
        if !self.owner.is_here() {
            return false;
        }
        // What the process has posted goes out before anything is asked of the kernel: that is the
        // way of a waiting caller's message.
        let mut worked = self.steps.begin();
        worked |= self.station.step(now);
        worked |= self.network.transmit(&mut self.station, now);
        // Control comes while the answer to what was sent is under way, not between its arrival and
        // the thread that waits for it.
        if self.steps.control_is_due(worked, now) {
            self.steps.polls_control(now);
            self.stir(now);
            if self.poll_control(now) {
                worked = true;
                self.steps.control_brought_work();
                self.station.step(now);
                self.network.transmit(&mut self.station, now);
                // That may have taken long, and the answer to what it sent may be here: a ping does
                // not take no time.
                now = self::now();
            }
        }
        self.steps.set_time(now);
        worked |= self.receive(1);
        if worked {
            self.has_worked();
        } else {
            self.steps.was_empty(now);
        }
        worked
    }

    /// The part of a [`step`](Self::step) that brings what somebody waits for: polls the network up
    /// to so many times, and takes what has come from other nodes. The time of the last step counts
    /// as that of its arrival. Says whether there was anything.
    #[inline]
    pub(crate) fn poll_network(&mut self, polls: u32) -> bool {
        if !self.owner.is_here() {
            return false;
        }
        let came = self.receive(polls);
        if came {
            self.has_worked();
        }
        came
    }

    #[inline]
    fn receive(&mut self, polls: u32) -> bool {
        let now = self.steps.time();
        if !self.network.receive(&mut self.station, now, polls) {
            return false;
        }
        // Mere data calls for nothing: the process that waits for it goes first. So do peers that
        // wait for an answer, and processes that are notified.
        if self.station.has_pending_work() {
            self.network.transmit(&mut self.station, now);
            self.station.serve_events(now);
            if self.station.has_pending_work() {
                self.station.step(now);
                self.network.transmit(&mut self.station, now);
            }
        }
        true
    }

    /// Serves what processes ask on their control sockets. A description has the counters of now.
    fn poll_control(&mut self, now: Time) -> bool {
        self.station.set_transport_counters(&self.network.counters());
        self.station.poll_control(now)
    }

    /// Description of the node as its owner may see it, with the counters of now.
    pub(crate) fn describe(&mut self, now: Time, details: bool) -> NodeInfo {
        self.station.set_transport_counters(&self.network.counters());
        self.station.describe(now, true, details)
    }

    /// Fresh randomness for the keys of later sessions: this node may be the copy of another, with
    /// all that it remembers.
    fn stir(&mut self, now: Time) {
        if now.since(self.stirred_at) < STIR_EVERY {
            return;
        }
        self.stirred_at = now;
        // Without it the keys are as random as the seed was.
        if let Ok(fresh) = random_bytes() {
            self.station.stir(fresh);
        }
    }

    #[inline]
    fn has_worked(&mut self) {
        self.station.wake_for_words();
        self.steps.worked();
    }

    /// Does this for an attached process at once, if nothing stands before it; false: nothing
    /// happened. Never twice without a [`step`](Self::step) between, so that a caller that only
    /// sends serves its node too.
    #[inline]
    pub(crate) fn try_send_inline(&mut self, from: ConnectionId, what: &Direct<'_>) -> bool {
        if !self.steps.may_send_inline() || !self.owner.is_here() {
            return false;
        }
        let now = now();
        self.steps.set_time(now);
        let sent = self.network.try_send_inline(&mut self.station, now, from, what);
        if sent {
            self.steps.sent_inline();
        }
        sent
    }

    /// Called after a step with work, when nobody sleeps on [`input`](Self::input): after some of
    /// them datagrams no longer show there, until the next [`prepare_sleep`](Self::prepare_sleep).
    #[inline]
    pub(crate) fn stays_awake(&mut self) {
        if self.steps.leaves_epoll() {
            self.network.arm(false);
        }
    }

    /// The next step polls the control sockets: there may be something.
    pub(crate) fn poll_control_soon(&mut self) {
        self.steps.poll_control_soon();
    }

    /// How long nothing has been there to do.
    pub(crate) fn idle_for(&self, now: Time) -> Duration {
        self.steps.idle_for(now)
    }

    /// Announces a sleep. None: there is work, do not sleep; else the time at which the sleep must
    /// end.
    pub(crate) fn prepare_sleep(&mut self, now: Time) -> Option<Time> {
        self.steps.sleeps();
        let armed = self.network.arm(true);
        if self.station.prepare_sleep() {
            return None;
        }
        let until = self.station.next_timeout(now).unwrap_or(Time::MAX).min(now + SLEEP_MAX);
        // What cannot wake us is looked for.
        let until = if self.network.is_congested() || !armed { until.min(now + OUTBOX_RETRY) } else { until };
        (until > now).then_some(until)
    }

    /// Ends the node: says goodbye to peers and processes.
    pub(crate) fn shut_down(&mut self) {
        if !self.owner.is_here() {
            return;
        }
        let start = now();
        self.station.shut_down(start);
        loop {
            let now = now();
            let worked =
                self.station.step(now) | self.network.transmit(&mut self.station, now) | self.poll_control(now);
            if !worked || now.since(start) >= GOODBYE_TIME {
                return;
            }
        }
    }
}

/// Sleeps until one of the descriptors is readable, at most until `until`. Which one does not
/// matter: the caller polls all.
pub(crate) fn sleep(fds: &[&OwnedFd], now: Time, until: Time) {
    let left = until.since(now).min(SLEEP_MAX);
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
    // An interrupted or failed sleep is a short one.
    let _ = poll(&mut polled, Some(&timeout));
}
