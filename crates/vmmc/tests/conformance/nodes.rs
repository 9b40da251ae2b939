//! Kinds of nodes, and what tests need of them.

#[path = "../../../node/src/testing/named.rs"]
mod named;

use named::{config, unique};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use vmmc::{Export, ExportBuilder, Import, Rights, Session};
use vmmc_node::{Daemon, KeySource, NodeConfig, Stopper};
use vmmc_sim::{Hosted, HostedOptions};

/// Two nodes that know each other.
pub(crate) trait Nodes {
    /// A session on node 0 or 1.
    fn attach(&self, node: usize) -> Session;
    /// Name of a node.
    fn name(&self, node: usize) -> String;
    /// Ends a node in the regular way. Returns when it is ended, or, for nodes that live as long as
    /// their sessions, at once with false.
    fn stop(&self, node: usize) -> bool;
    /// Whether the nodes encrypt what they send each other.
    fn sealed(&self) -> bool {
        true
    }
    /// Whether senders of the same node map the endpoints of tests.
    fn map_endpoints(&self) -> bool {
        true
    }
}

/// Nodes whose endpoints nobody maps.
pub(crate) struct Unmapped<N>(pub(crate) N);

impl<N: Nodes> Nodes for Unmapped<N> {
    fn attach(&self, node: usize) -> Session {
        self.0.attach(node)
    }
    fn name(&self, node: usize) -> String {
        self.0.name(node)
    }
    fn stop(&self, node: usize) -> bool {
        self.0.stop(node)
    }
    fn sealed(&self) -> bool {
        self.0.sealed()
    }
    fn map_endpoints(&self) -> bool {
        false
    }
}

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// Time for what must not happen to happen.
pub(crate) const SHORT: Duration = Duration::from_millis(60);

fn builder() -> vmmc::SessionBuilder {
    Session::builder().timeout(LONG)
}

/// Nodes in this process.
pub(crate) struct Embedded {
    nodes: [vmmc_node::Embedded; 2],
    sealed: bool,
}

impl Embedded {
    pub(crate) fn start() -> Embedded {
        Embedded::start_with(true)
    }

    pub(crate) fn start_plain() -> Embedded {
        Embedded::start_with(false)
    }

    fn start_with(sealed: bool) -> Embedded {
        let keyed = |config: NodeConfig| if sealed { config } else { config.key(KeySource::Plain).plain_trust_users() };
        let start = |config| vmmc_node::Embedded::start(keyed(config));
        let a = start(config(&unique("a"))).expect("node a starts");
        let b = start(config(&unique("b")).peer(&a.addresses())).expect("node b starts");
        let nodes = Embedded { nodes: [a, b], sealed };
        introduce(&nodes);
        nodes
    }
}

impl Nodes for Embedded {
    fn attach(&self, node: usize) -> Session {
        builder().over(self.nodes[node].attach().expect("the node takes us")).expect("attach")
    }
    fn name(&self, node: usize) -> String {
        self.nodes[node].name()
    }
    fn stop(&self, _node: usize) -> bool {
        false
    }
    fn sealed(&self) -> bool {
        self.sealed
    }
}

/// Daemons, on threads of this process.
pub(crate) struct Daemons {
    names: [String; 2],
    running: Mutex<[Running; 2]>,
}

/// A daemon that runs, if it still does.
type Running = Option<(Stopper, JoinHandle<()>)>;

impl Daemons {
    pub(crate) fn start() -> Daemons {
        let names = [unique("a"), unique("b")];
        let a = Daemon::start(config(&names[0])).expect("node a starts");
        let addresses = a.running().addresses;
        let b = Daemon::start(config(&names[1]).peer(&addresses)).expect("node b starts");
        let running = [a, b].map(|daemon| {
            let stopper = daemon.stopper();
            let thread = std::thread::spawn(move || daemon.run().expect("the daemon ends well"));
            Some((stopper, thread))
        });
        let nodes = Daemons { names, running: Mutex::new(running) };
        introduce(&nodes);
        nodes
    }
}

impl Nodes for Daemons {
    fn attach(&self, node: usize) -> Session {
        builder().node(&self.names[node]).start_node(false).attach().expect("attach")
    }
    fn name(&self, node: usize) -> String {
        self.names[node].clone()
    }
    fn stop(&self, node: usize) -> bool {
        if let Some((stopper, thread)) = self.running.lock().unwrap()[node].take() {
            stopper.stop();
            thread.join().expect("the daemon ends well");
        }
        true
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        self.stop(0);
        self.stop(1);
    }
}

/// Simulated nodes: real stations and engines, a simulated wire that loses packets, a virtual
/// clock.
pub(crate) struct Simulated {
    cluster: Hosted,
    names: [String; 2],
    /// Lets the clock go on while a test does something else than wait for the nodes.
    ticker: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Simulated {
    pub(crate) fn start() -> Simulated {
        let names = [unique("a"), unique("b")];
        let options = HostedOptions { nodes: names.to_vec(), seed: 1, loss_permille: 20, sealed: true };
        let cluster = Hosted::start(&options).expect("the cluster starts");
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, ended) = (cluster.clone(), stop.clone());
        let ticker = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                theirs.run(Duration::from_micros(100));
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let nodes = Simulated { cluster, names, ticker: Some(ticker), stop };
        introduce(&nodes);
        nodes
    }
}

impl Nodes for Simulated {
    fn attach(&self, node: usize) -> Session {
        builder().over(self.cluster.attach(&self.names[node]).expect("the node takes us")).expect("attach")
    }
    fn name(&self, node: usize) -> String {
        self.names[node].clone()
    }
    fn stop(&self, _node: usize) -> bool {
        false
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(ticker) = self.ticker.take() {
            ticker.join().expect("the cluster does not panic");
        }
    }
}

/// Node 1 knows the address of node 0; this makes them know each other's names.
fn introduce(nodes: &impl Nodes) {
    let b = nodes.attach(1);
    let address = nodes.attach(0).node().listen[0].clone();
    b.ping(&address, LONG).expect("node b reaches node a");
}

/// Where exporter and importer are, and by which path data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Mapped,
    Engine,
    Network,
}

impl Place {
    pub(crate) const ALL: [Place; 3] = [Place::Mapped, Place::Engine, Place::Network];
    /// Where the node sees every byte.
    pub(crate) const THROUGH_ENGINES: [Place; 2] = [Place::Engine, Place::Network];
}

/// An export and an import of it, with their sessions.
pub(crate) struct Joined {
    pub(crate) owner: Session,
    pub(crate) user: Session,
    pub(crate) export: Export,
    pub(crate) import: Import,
}

/// Exports `len` bytes on node 0 and imports them with all rights, so that data moves by the given
/// path.
pub(crate) fn join(nodes: &dyn Nodes, place: Place, len: u64) -> Joined {
    join_with(nodes, place, len, |e| e)
}

/// As [`join`], with choices for the export.
pub(crate) fn join_with(
    nodes: &dyn Nodes,
    place: Place,
    len: u64,
    choose: impl Fn(ExportBuilder) -> ExportBuilder,
) -> Joined {
    let owner = nodes.attach(0);
    let name = unique("export");
    let builder = choose(owner.export(len)).name(&name).mappable(place == Place::Mapped);
    let export = builder.create().expect("export");
    let user = nodes.attach(if place == Place::Network { 1 } else { 0 });
    let import = user.import(&name).rights(Rights::ALL);
    let import = if place == Place::Network { import.node(&nodes.name(0)) } else { import };
    let import = import.open().unwrap_or_else(|e| panic!("{place:?}: {e}"));
    assert_eq!(import.explain().path.to_string(), format!("{place:?}").to_lowercase());
    Joined { owner, user, export, import }
}

/// Bytes that show where they belong.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed) | 1).collect()
}

/// All bytes of an export.
pub(crate) fn content(export: &Export) -> Vec<u8> {
    let mut bytes = vec![0; export.len() as usize];
    export.read(0, &mut bytes).expect("the whole export");
    bytes
}

/// Whether a descriptor becomes readable within this time.
pub(crate) fn readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LONG;
    while !holds() {
        assert!(std::time::Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(200));
    }
}
