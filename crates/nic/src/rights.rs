//! Rights on an export, who may import it, and the set-up requests that carry them.

use std::fmt;
use std::net::SocketAddr;
use std::ops::BitOr;

use crate::ids::{ExportId, ImportId, NodeName, ProcessId, RegionId};
use crate::time::Time;

/// A set of rights on an export.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rights {
    bits: u8,
}

impl Rights {
    /// No right.
    pub const NONE: Rights = Rights { bits: 0 };
    /// Fetch from it.
    pub const READ: Rights = Rights { bits: 1 };
    /// Send to it.
    pub const WRITE: Rights = Rights { bits: 2 };
    /// Remote atomics on it.
    pub const ATOMIC: Rights = Rights { bits: 4 };
    /// Everything.
    pub const ALL: Rights = Rights { bits: 7 };

    /// The set as a number below 8.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// The inverse of [`bits`](Self::bits); `None` for bits that mean nothing.
    pub const fn from_bits(bits: u8) -> Option<Rights> {
        if bits <= 7 { Some(Rights { bits }) } else { None }
    }

    /// Whether every right in `other` is here.
    pub const fn contains(self, other: Rights) -> bool {
        self.bits & other.bits == other.bits
    }

    /// The rights in either.
    #[must_use]
    pub const fn union(self, other: Rights) -> Rights {
        Rights { bits: self.bits | other.bits }
    }

    /// The set in a sentence: `read, write and atomic`.
    pub fn words(self) -> String {
        let names = self.to_string();
        match names.rsplit_once('+') {
            Some((first, last)) => format!("{} and {last}", first.replace('+', ", ")),
            None => names,
        }
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.bits == 0
    }
}

impl BitOr for Rights {
    type Output = Rights;
    fn bitor(self, other: Rights) -> Rights {
        self.union(other)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = [(Rights::READ, "read"), (Rights::WRITE, "write"), (Rights::ATOMIC, "atomic")]
            .into_iter()
            .filter(|(right, _)| self.contains(*right))
            .map(|(_, name)| name);
        let Some(first) = names.next() else { return f.write_str("none") };
        f.write_str(first)?;
        names.try_for_each(|name| write!(f, "+{name}"))
    }
}

/// Who may import.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Processes with the user id of the exporter.
    #[default]
    SameUser,
    /// Everybody in the cluster.
    Anyone,
    /// These user ids, at most [`ACCESS_USERS_MAX`](crate::limits::ACCESS_USERS_MAX).
    Users(Vec<u32>),
}

impl Access {
    /// Whether a process of `uid` may import what a process of `owner_uid` exported.
    pub fn admits(&self, uid: u32, owner_uid: u32) -> bool {
        match self {
            Access::SameUser => uid == owner_uid,
            Access::Anyone => true,
            Access::Users(users) => users.contains(&uid),
        }
    }
}

/// What to export and to whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportSpec {
    /// 1 to 255 bytes, unique among those of its user on the node; `None`: reachable by id only.
    pub name: Option<String>,
    /// Region of the exporting process.
    pub region: RegionId,
    /// First byte in the region.
    pub offset: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// What importers may be granted.
    pub rights: Rights,
    /// Who may import.
    pub access: Access,
    /// Whether senders may cause notifications.
    pub notify: bool,
    /// Whether incoming data can be redirected; costs a range table per export.
    pub redirectable: bool,
    /// What senders may do with it.
    pub kind: ExportKind,
}

/// What senders may do with an export. The memory of the last two is laid out as `docs/protocol.md`
/// says; it has the right to write alone, and is not redirectable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExportKind {
    /// Memory: data goes where its sender says.
    #[default]
    Memory,
    /// A ring to which importers append records.
    Ring,
    /// A table of buffers, each of which takes one payload of whoever has its token.
    Tokens {
        /// Entries at its start. What lies behind is written by senders, and is never an entry.
        entries: u32,
    },
}

/// Which node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeSpec {
    /// By its name, which a handshake with one of its addresses has revealed.
    Name(NodeName),
    /// By one of its addresses.
    Addr(SocketAddr),
}

impl fmt::Display for NodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeSpec::Name(name) => name.fmt(f),
            NodeSpec::Addr(addr) => addr.fmt(f),
        }
    }
}

/// Which export of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImportTarget {
    /// By name.
    Name(String),
    /// By id.
    Id(ExportId),
}

impl fmt::Display for ImportTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportTarget::Name(name) => write!(f, "{name:?}"),
            ImportTarget::Id(id) => id.fmt(f),
        }
    }
}

/// Whose export an import takes. Every user has names of his own, so that nobody takes another's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Owner {
    /// For a name: the importer's own user, else root. An id may be anybody's.
    #[default]
    OwnOrRoot,
    /// This user.
    User(u32),
    /// The importer's own user, else root, else a user that admits the importer, else anybody.
    Any,
}

impl Owner {
    /// Whether an import by `uid` that waits for a name takes what `owner_uid` exports under it.
    pub fn takes(self, uid: u32, owner_uid: u32) -> bool {
        match self {
            Owner::OwnOrRoot => owner_uid == uid || owner_uid == ROOT,
            Owner::User(wanted) => owner_uid == wanted,
            Owner::Any => true,
        }
    }
}

/// User id of root, whom every user trusts.
pub(crate) const ROOT: u32 = 0;

/// What to import.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportSpec {
    /// `None`: this node.
    pub node: Option<NodeSpec>,
    /// Which export.
    pub what: ImportTarget,
    /// Whose.
    pub owner: Owner,
    /// Rights wanted; all of them or nothing.
    pub rights: Rights,
    /// Wait for an export that does not exist yet.
    pub wait: bool,
    /// Give up then.
    pub deadline: Time,
    /// What goes through it has an order of its own: it follows what went through it before, and
    /// need not follow what the process has sent through other imports. What does not go through
    /// it follows all that was sent before, through this one too.
    pub own_order: bool,
}

/// Where an import leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exporter {
    /// To memory of this node, which the driver may map.
    Local {
        /// Exporting process.
        process: ProcessId,
        /// Its region.
        region: RegionId,
        /// Where the export starts in the region, bytes.
        offset: u64,
    },
    /// To another node.
    Remote {
        /// Which.
        node: NodeName,
    },
}

/// A granted import.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportGrant {
    /// For commands.
    pub import: ImportId,
    /// What was imported.
    pub export: ExportId,
    /// The user of the exporting process.
    pub owner: u32,
    /// Bytes.
    pub len: u64,
    /// Rights granted.
    pub rights: Rights,
    /// Whether the export allows notifications.
    pub notify: bool,
    /// Whether its incoming data can be redirected.
    pub redirectable: bool,
    /// What senders may do with it.
    pub kind: ExportKind,
    /// Where it leads.
    pub exporter: Exporter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_print_as_a_user_writes_them() {
        assert_eq!((Rights::READ | Rights::WRITE).to_string(), "read+write");
        assert_eq!(Rights::NONE.to_string(), "none");
        assert_eq!(Rights::from_bits(8), None);
    }

    #[test]
    fn an_access_list_names_its_users() {
        assert!(Access::SameUser.admits(1, 1) && !Access::SameUser.admits(1, 2));
        assert!(Access::Users(vec![3]).admits(3, 1) && !Access::Users(vec![3]).admits(1, 1));
    }
}
