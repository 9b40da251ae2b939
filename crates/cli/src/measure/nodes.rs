//! Pairs of workers for each path, with the temporary nodes they need.
//!
//! Invariant: names contain our process id and a number, so they meet no other node of the user;
//! nodes and key end with us.

use super::TaskError;
use super::pair::{Pair, TemporaryNode};
use super::task::{NodeOrder, Setting};
use crate::args::Path;
use crate::limits::NODE_WAIT;
use std::io::Read;
use std::sync::atomic::{AtomicU32, Ordering};
use vmmc::Session;

/// A path that can be measured: its workers, and the daemons that serve them.
pub(crate) struct Route {
    /// Leader and follower.
    pub(crate) pair: Pair,
    /// Their nodes; none if embedded.
    pub(crate) nodes: Vec<TemporaryNode>,
}

/// Numbers of names.
static NAMES: AtomicU32 = AtomicU32::new(1);

impl Route {
    /// Sets a path up; `sealed` matters between nodes.
    pub(crate) fn open(path: Path, sealed: bool) -> Result<Route, TaskError> {
        let key = if sealed { Some(random_key()?) } else { None };
        match path {
            Path::SameNode => {
                let node = TemporaryNode::start(order("one", key, &[]), None)?;
                Route::between(vec![node])
            }
            Path::TwoNodes => Route::between_two(["a", "b"], key),
            Path::Embedded => {
                let embed = |name| Setting::Embedded(order(name, key, &[]));
                Ok(Route { pair: Pair::start(embed("c"), embed("d"))?, nodes: vec![] })
            }
        }
    }

    /// Two nodes that know each other, and a worker on each.
    pub(crate) fn between_two(names: [&str; 2], key: Option<[u8; 32]>) -> Result<Route, TaskError> {
        Route::between(two_nodes(names, key)?.into())
    }

    /// Workers on the first and the last of these nodes.
    pub(crate) fn between(nodes: Vec<TemporaryNode>) -> Result<Route, TaskError> {
        let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else {
            return Err(TaskError::Protocol("a path needs a node".into()));
        };
        let pair = Pair::start(setting(first, last), setting(last, first))?;
        Ok(Route { pair, nodes })
    }
}

/// Two nodes, each of which can be asked for by its name on the other.
pub(crate) fn two_nodes(names: [&str; 2], key: Option<[u8; 32]>) -> Result<[TemporaryNode; 2], TaskError> {
    let [core, other] = crate::machine::node_cores();
    let first = TemporaryNode::start(order(names[0], key, &[]), core)?;
    let second = TemporaryNode::start(order(names[1], key, &first.addresses), other)?;
    // The first learns of the second by its greeting.
    let address = first.addresses.first().ok_or_else(|| TaskError::Protocol("a node listens nowhere".into()))?;
    let session = Session::builder().node(&second.name).start_node(false).attach().map_err(TaskError::vmmc)?;
    session.ping(address, NODE_WAIT).map_err(TaskError::vmmc)?;
    Ok([first, second])
}

/// How a worker on `mine` reaches one on `theirs`.
pub(crate) fn setting(mine: &TemporaryNode, theirs: &TemporaryNode) -> Setting {
    let other = if mine.name == theirs.name { None } else { theirs.addresses.first().cloned() };
    Setting::Daemon { node: mine.name.clone(), other }
}

/// A node with a name of its own.
pub(crate) fn order(name: &str, key: Option<[u8; 32]>, peer: &[String]) -> NodeOrder {
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    let name = format!("bench-{}-{number}-{name}", std::process::id());
    NodeOrder { name, key, peer: peer.to_vec(), listen: None, congestion: None }
}

/// A cluster key for one measurement.
pub(crate) fn random_key() -> Result<[u8; 32], TaskError> {
    let mut key = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(key)
}
