//! Services: exports that a node brings up when somebody asks for them.
//!
//! An import that waits for a name with [`SERVICE_PREFIX`] is told to the driver, which may start
//! the process that exports it, or refuse. So processes are created on other nodes without a
//! message of their own: the request, its deadline, its user and its cancellation are those of the
//! import. Source: [NT §3.2], where the daemons create processes; that the request is an import is
//! our departure.
//!
//! Invariant: at most [`SERVICES_WANTED_MAX`](crate::limits::SERVICES_WANTED_MAX) requests wait for
//! the driver, and a refused request is answered once.

use crate::ids::NodeName;
use crate::tables::Tables;

/// How the names of services begin.
pub const SERVICE_PREFIX: &str = "vmmc.launch/";

/// Somebody waits for a service that nobody exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceWanted {
    /// Name of the export that is waited for.
    pub name: String,
    /// User who waits, as that user's node says.
    pub uid: u32,
    /// The node that asks; none: a process of this node.
    pub from: Option<NodeName>,
}

/// Why a node does not bring up a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServiceRefusal {
    /// It starts no processes at all.
    #[error(
        "it starts no processes (it is embedded in a program, or was told not to); use a node that `vmmc node start` started"
    )]
    NoService,
    /// Anybody on the wire could have asked.
    #[error(
        "it is in plain mode, where anybody on the wire could ask; give the nodes a cluster key, or start it with --plain-run"
    )]
    Plain,
    /// It belongs to another user.
    #[error(
        "it belongs to another user and may not start processes for this one; ask that user, or use a node that root runs"
    )]
    OtherUser,
    /// Too many run.
    #[error("as many jobs as it allows run there already; let some end")]
    TooMany,
    /// The service's program cannot be executed.
    #[error("its program `vmmc` cannot be executed; the notes of that node (`vmmc node status` there) say why")]
    Failed,
    /// The service's program ended before it served.
    #[error(
        "the supervisor that it had started ended before it served; the notes of that node (`vmmc node status` there) say how; run the job again"
    )]
    Ended,
}

impl ServiceRefusal {
    /// Stable number.
    pub fn code(self) -> u16 {
        match self {
            ServiceRefusal::NoService => 1,
            ServiceRefusal::Plain => 2,
            ServiceRefusal::OtherUser => 3,
            ServiceRefusal::TooMany => 4,
            ServiceRefusal::Failed => 5,
            ServiceRefusal::Ended => 6,
        }
    }

    /// The inverse.
    pub fn from_code(code: u16) -> Option<ServiceRefusal> {
        Some(match code {
            1 => ServiceRefusal::NoService,
            2 => ServiceRefusal::Plain,
            3 => ServiceRefusal::OtherUser,
            4 => ServiceRefusal::TooMany,
            5 => ServiceRefusal::Failed,
            6 => ServiceRefusal::Ended,
            _ => return None,
        })
    }
}

impl Tables {
    /// Somebody waits for `name`; if it is a service, the driver will hear of it.
    pub(crate) fn want_service(&mut self, name: &str, uid: u32, peer: Option<u16>) {
        if name.starts_with(SERVICE_PREFIX) && self.services.len() < crate::limits::SERVICES_WANTED_MAX {
            self.services.push_back((name.to_string(), uid, peer));
        }
    }
}
