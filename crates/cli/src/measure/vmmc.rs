//! VMMC itself, measured: each worker attaches to its node, exports, and imports what the other
//! exports.
//!
//! Invariant: exports of a measurement end with it; their names contain its number, so that
//! measurements do not meet.

mod flow;
mod many;
mod moves;
mod mp;
mod notify;
mod once;
mod redirect;
mod rpc;
mod silent;

use super::TaskError;
use super::ping::{Ping, follow_pings, lead_pings, spin_until, spin_yielding};
use super::side::Side;
use super::stats::Sample;
use super::task::{Move, Moved, NodeOrder, Role, Setting, Task, Vmmc};
use crate::limits::PARTNER_WAIT;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use vmmc::{Export, Import, Rights, Session};
use vmmc_node::{Embedded, KeySource, NodeConfig};

impl TaskError {
    /// What the library says.
    pub(super) fn vmmc(error: impl std::fmt::Display) -> TaskError {
        TaskError::Protocol(error.to_string())
    }
}

/// A worker's attachment.
pub(crate) struct Attached {
    session: Session,
    /// Address of the other worker's node; none: the same node.
    other: Option<String>,
    /// The node, if it lives in this process.
    embedded: Option<Embedded>,
}

/// Configuration of a node that lives as long as a measurement.
pub(crate) fn temporary_node(order: &NodeOrder) -> Result<NodeConfig, TaskError> {
    let at = order.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
    let key = order.key.map_or(KeySource::Plain, KeySource::Given);
    let mut config = NodeConfig::new(&order.name).listen(at).key(key).plain_trust_users();
    if let Some(congestion) = &order.congestion {
        config.congestion = congestion.parse().map_err(TaskError::vmmc)?;
    }
    if order.peer.is_empty() {
        return Ok(config);
    }
    let peer: Result<Vec<SocketAddr>, _> = order.peer.iter().map(|a| a.parse()).collect();
    Ok(config.peer(&peer.map_err(TaskError::vmmc)?))
}

impl Attached {
    /// Attaches as the setting says; none if it says not to.
    pub(crate) fn new(setting: &Setting, side: &Side) -> Result<Option<Attached>, TaskError> {
        match setting {
            Setting::Bare => Ok(None),
            Setting::Daemon { node, other } => {
                let builder = Session::builder().node(node).start_node(false).timeout(PARTNER_WAIT);
                let session = builder.attach().map_err(TaskError::vmmc)?;
                Ok(Some(Attached { session, other: other.clone(), embedded: None }))
            }
            Setting::Embedded(order) => {
                let node = Embedded::start(temporary_node(order)?).map_err(TaskError::vmmc)?;
                let address = node.addresses().first().map(SocketAddr::to_string);
                side.send(&address)?;
                let other = side.receive()?;
                let attachment = node.attach().map_err(TaskError::vmmc)?;
                let builder = Session::builder().timeout(PARTNER_WAIT);
                let session = builder.over(attachment).map_err(TaskError::vmmc)?;
                Ok(Some(Attached { session, other, embedded: Some(node) }))
            }
        }
    }

    /// A session of its own, for what else would be a process of its own: threads of one session
    /// wait together.
    fn another(&self) -> Result<Session, TaskError> {
        let builder = Session::builder().timeout(PARTNER_WAIT);
        let attached = match &self.embedded {
            Some(node) => builder.over(node.attach().map_err(TaskError::vmmc)?),
            None => builder.node(&self.session.node().name).start_node(false).attach(),
        };
        attached.map_err(TaskError::vmmc)
    }

    /// Plays one half of a measurement.
    pub(crate) fn measure(
        &self,
        what: &Vmmc,
        task: &Task,
        side: &Side,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Sample>, TaskError> {
        match what {
            Vmmc::Latency => {
                let mut link = Link::new(self, task)?;
                match task.role {
                    Role::Lead => lead_pings(&mut link, side, task.budget).map(Some),
                    Role::Follow => follow_pings(&mut link, side).map(|()| None),
                }
            }
            Vmmc::Bandwidth => flow::measure(self, task, side),
            Vmmc::Fetch => once::fetch(self, task),
            Vmmc::Fetches { by } => once::fetches(self, task, *by),
            Vmmc::Atomic { op } => once::atomic(self, task, *op),
            Vmmc::Import => once::import(self, task),
            Vmmc::Append { by } => many::append(self, task, *by),
            Vmmc::Gather { by } => many::gather(self, task, *by),
            Vmmc::Rpc { way } => rpc::measure(self, task, *way),
            Vmmc::Silent { clients, watched } => silent::measure(self, task, side, (*clients, *watched)),
            Vmmc::Mp { way } => mp::measure(self, task, side, *way),
            Vmmc::Notify { by, asleep_us } => notify::measure(self, task, (*by, *asleep_us), fds),
            Vmmc::Redirect { when } => redirect::measure(self, task, *when),
            Vmmc::PostRedirects { withdraw } => redirect::post(self, task, *withdraw),
        }
    }

    /// Moves a file, or receives it.
    pub(crate) fn move_file(&self, order: &Move, progress: impl FnMut(u64)) -> Result<Moved, TaskError> {
        moves::play(self, order, progress)
    }

    /// Exports memory under the name that the other worker expects of this role.
    fn export(&self, number: u64, role: Role, len: u64) -> Result<Export, TaskError> {
        self.session.export(len).name(&name(number, role)).notify(true).create().map_err(TaskError::vmmc)
    }

    /// Imports what the other role exports, once it does.
    fn import(&self, number: u64, other: Role) -> Result<Import, TaskError> {
        let builder = self.session.import(&name(number, other)).rights(Rights::ALL).wait(PARTNER_WAIT);
        let builder = match &self.other {
            Some(node) => builder.node(node),
            None => builder,
        };
        builder.open().map_err(TaskError::vmmc)
    }

    /// Exports for this role and imports from the other one.
    fn exchange(&self, number: u64, role: Role, len: u64) -> Result<(Export, Import), TaskError> {
        let other = if role == Role::Lead { Role::Follow } else { Role::Lead };
        let export = self.export(number, role, len)?;
        Ok((export, self.import(number, other)?))
    }

    /// Spins until a word of an export has a value, as a program does that wants the shortest time.
    /// On one node it is a plain loop; between nodes the loop yields, because the node needs the
    /// processor too; a node in this process is stepped by the library's wait.
    fn await_word(&self, export: &Export, offset: u64, value: u64) -> Result<(), TaskError> {
        let word = export.word(offset).map_err(TaskError::vmmc)?;
        let ready = || word.load(Ordering::Acquire) == value;
        if self.other.is_none() {
            return spin_until(ready);
        }
        if self.embedded.is_none() {
            return spin_yielding(ready);
        }
        export.wait_word(offset, |w| w == value).map(drop).map_err(TaskError::vmmc)
    }
}

/// Waits until the last message has arrived, so that giving the import back does not overtake it.
/// The other side may have ended its export as soon as it saw the message: then the flush is
/// refused, and the message has arrived all the same.
fn flush_last(import: &Import) {
    let _ = import.flush();
}

fn name(number: u64, role: Role) -> String {
    format!("measure-{number}-{}", if role == Role::Lead { "lead" } else { "follow" })
}

/// Ping-pong by deliberate update: the last eight bytes of a message are its number, and they
/// become visible last.
struct Link<'a> {
    attached: &'a Attached,
    export: Export,
    import: Import,
    message: Vec<u8>,
    /// Where a message begins, so that it ends on a word boundary.
    offset: u64,
    /// Where its last word is.
    last: u64,
}

impl<'a> Link<'a> {
    fn new(attached: &'a Attached, task: &Task) -> Result<Link<'a>, TaskError> {
        let len = task.size.max(8);
        let end = len.next_multiple_of(64);
        let (export, import) = attached.exchange(task.number, task.role, end)?;
        Ok(Link { attached, export, import, message: vec![1; len as usize], offset: end - len, last: end - 8 })
    }
}

impl Ping for Link<'_> {
    #[inline]
    fn send(&mut self, number: u64) -> Result<(), TaskError> {
        let last = self.message.len() - 8;
        self.message[last..].copy_from_slice(&number.to_le_bytes());
        self.import.send(self.offset, &self.message).map_err(TaskError::vmmc)
    }

    #[inline]
    fn receive(&mut self, number: u64) -> Result<(), TaskError> {
        self.attached.await_word(&self.export, self.last, number)
    }
}
