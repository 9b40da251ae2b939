//! Jobs that `mpirun`, `prterun` or `srun` started: ranks and their nodes from PMIx.
//!
//! Each process attaches to a node of its user as any program does, and publishes that node; after
//! a fence everybody knows where everybody is. The members are all there from the start, and for
//! good: how a rank ended is the launcher's business.
//!
//! Invariant: as in a job of `vmmc run`, ranks on the own node are reached without an address.

use crate::error::JobError;
use crate::limits::JOB_RANKS_MAX;
use crate::member::Job;
use crate::protocol::{JobNode, MemberState};
use crate::table::View;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use vmmc::{NodeIdentity, Session};
use vmmc_host::pmix::Pmix;

/// Key under which a rank publishes its node: name and locator, separated by a space.
const NODE_KEY: &str = "vmmc.node";

/// Joins the job that a launcher of PMIx has put this process into.
pub(crate) fn attach() -> Result<Job, JobError> {
    let launcher = Pmix::connect()?;
    let (rank, size) = (launcher.rank(), launcher.size()?);
    if size as usize > JOB_RANKS_MAX || rank >= size {
        return Err(JobError::NoRank { rank, size });
    }
    let session = Session::attach()?;
    let own = session.node().clone();
    launcher.publish(NODE_KEY, &format!("{} {}", own.name, locator(&own)))?;
    launcher.fence()?;
    let mut nodes: Vec<JobNode> = Vec::new();
    let mut ranks = Vec::new();
    for rank in 0..size {
        let text = launcher.look_up(rank, NODE_KEY)?;
        let (name, locator) = text.split_once(' ').unwrap_or((&text, &text));
        let index = nodes.iter().position(|node| node.name == name).unwrap_or_else(|| {
            nodes.push(JobNode { name: name.to_string(), locator: locator.to_string() });
            nodes.len() - 1
        });
        ranks.push((MemberState::Running, index as u32));
    }
    let own = ranks[rank as usize].1;
    Ok(Job::fixed(session, launcher.namespace(), rank, View { number: 1, nodes, own, ranks }))
}

/// An address under which others reach a node: the first that it listens on, with the machine's own
/// address where it listens on all of them.
fn locator(node: &NodeIdentity) -> String {
    let listen = node.listen.iter().filter_map(|text| text.parse::<SocketAddr>().ok());
    let address = listen.map(|address| match address.ip().is_unspecified() {
        true => SocketAddr::new(outward_address().unwrap_or(address.ip()), address.port()),
        false => address,
    });
    address.map(|address| address.to_string()).next().unwrap_or_else(|| node.name.clone())
}

/// The address that packets to the outside leave from. Nothing is sent: connecting a UDP socket
/// only asks the kernel for the route.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    // A documentation address, which is outside of every network.
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
