//! Activation: exports that a node brings up on demand, when somebody asks for their name.
//!
//! An import that waits for a name with the prefix in [`Config::on_demand`](crate::Config) is
//! reported to the driver, which may start the process that exports it, or refuse. So processes are
//! created on other nodes without a message of their own: the request, its deadline, its user and
//! its cancellation are those of the import. Source: [NT §3.2], where the daemons create processes;
//! that the request is an import is our departure.
//!
//! Invariant: at most [`ACTIVATIONS_WANTED_MAX`](crate::limits::ACTIVATIONS_WANTED_MAX) requests
//! wait for the driver, and a refused request is answered once. What the names mean and what a user
//! is told of a refusal the driver knows: here are codes only.

use crate::ids::NodeName;
use crate::tables::Tables;

/// Somebody waits for an on-demand export that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivationWanted {
    /// Name of the export that is waited for.
    pub name: String,
    /// User who waits, as that user's node says.
    pub uid: u32,
    /// The node that asks; none: a process of this node.
    pub from: Option<NodeName>,
}

/// Why a node does not bring up an on-demand export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActivationRefusal {
    /// It starts no processes at all.
    Never,
    /// Anybody on the wire could have asked.
    Plain,
    /// It belongs to another user.
    OtherUser,
    /// Too many run.
    TooMany,
    /// The program that would export it cannot be executed.
    Failed,
    /// The program ended before it had exported it.
    Ended,
}

impl ActivationRefusal {
    /// All of them.
    pub const ALL: [ActivationRefusal; 6] = [
        ActivationRefusal::Never,
        ActivationRefusal::Plain,
        ActivationRefusal::OtherUser,
        ActivationRefusal::TooMany,
        ActivationRefusal::Failed,
        ActivationRefusal::Ended,
    ];

    /// Stable number.
    pub fn code(self) -> u16 {
        match self {
            ActivationRefusal::Never => 1,
            ActivationRefusal::Plain => 2,
            ActivationRefusal::OtherUser => 3,
            ActivationRefusal::TooMany => 4,
            ActivationRefusal::Failed => 5,
            ActivationRefusal::Ended => 6,
        }
    }

    /// The inverse.
    pub fn from_code(code: u16) -> Option<ActivationRefusal> {
        ActivationRefusal::ALL.into_iter().find(|why| why.code() == code)
    }
}

impl Tables {
    /// Somebody waits for `name`; if it is that of an on-demand export, the driver learns of it.
    pub(crate) fn want_activation(&mut self, name: &str, uid: u32, peer: Option<u16>) {
        let is_on_demand = self.on_demand.as_deref().is_some_and(|prefix| name.starts_with(prefix));
        if is_on_demand && self.activations.len() < crate::limits::ACTIVATIONS_WANTED_MAX {
            self.activations.push_back((name.to_string(), uid, peer));
        }
    }
}
