//! Names of things: processes, regions, exports, imports, nodes.
//!
//! Invariant: whatever can be reused carries a generation, so that a stale id fails and never means
//! its successor [NT §3.1].

use std::fmt;

use crate::limits::NODE_NAME_BYTES_MAX;

/// A process attached to the node, given by [`Engine::attach`](crate::Engine::attach).
///
/// The low bits are the slot in the node's process table, the rest a generation: an id is not
/// given out again until the generation of its slot has wrapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub u32);

impl ProcessId {
    const SLOT_BITS: u32 = 12;

    pub(crate) fn new(slot: u32, generation: u32) -> ProcessId {
        ProcessId(slot | (generation << Self::SLOT_BITS))
    }

    /// Slot in the process table, below [`PROCESSES_MAX`](crate::limits::PROCESSES_MAX).
    pub fn slot(self) -> usize {
        (self.0 & ((1 << Self::SLOT_BITS) - 1)) as usize
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}.{}", self.slot(), self.0 >> Self::SLOT_BITS)
    }
}

/// A memory region of one process, numbered by the driver; it means "memory the driver can reach".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId(pub u32);

/// A region of a certain process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionRef {
    /// Owner of the region.
    pub process: ProcessId,
    /// Which of its regions.
    pub region: RegionId,
}

macro_rules! slot_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name {
            /// Index in the table.
            pub slot: u32,
            /// Which user of that slot; a stale generation is refused.
            pub generation: u32,
        }

        impl $name {
            /// Both parts in one number, the generation in the high half.
            pub const fn to_u64(self) -> u64 {
                (self.generation as u64) << 32 | self.slot as u64
            }

            /// The inverse of [`to_u64`](Self::to_u64).
            pub const fn from_u64(both: u64) -> Self {
                Self { slot: both as u32, generation: (both >> 32) as u32 }
            }
        }

        /// `12.3`: slot and generation, the only way in which an id is written.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{}", self.slot, self.generation)
            }
        }
    };
}

/// The inverse of its `Display`.
impl std::str::FromStr for ExportId {
    type Err = BadExportId;
    fn from_str(text: &str) -> Result<ExportId, BadExportId> {
        let parts = text.split_once('.').and_then(|(slot, generation)| {
            let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok()).flatten();
            Some(ExportId { slot: digits(slot)?, generation: digits(generation)? })
        });
        parts.ok_or_else(|| BadExportId { text: text.chars().take(32).collect() })
    }
}

/// Text that is no export id.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not an export id; write it as it is shown, for example 12.3")]
pub struct BadExportId {
    /// What was offered, cut when longer than an id can be.
    pub text: String,
}

slot_id! {
    /// An exported receive buffer of one node.
    ExportId
}
slot_id! {
    /// A proxy receive buffer: an import of one process.
    ImportId
}

/// A number chosen by the caller and returned with the answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cookie(pub u64);

/// Name of a node: 1 to 63 bytes of `A-Z a-z 0-9 . _ -`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

impl NodeName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`BadNodeName`] when it is empty, too long, or has other characters.
    pub fn parse(text: &str) -> Result<NodeName, BadNodeName> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if text.is_empty() || text.len() > NODE_NAME_BYTES_MAX || !text.bytes().all(allowed) {
            return Err(BadNodeName { name: text.chars().take(NODE_NAME_BYTES_MAX + 1).collect() });
        }
        Ok(NodeName(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::str::FromStr for NodeName {
    type Err = BadNodeName;
    fn from_str(text: &str) -> Result<NodeName, BadNodeName> {
        NodeName::parse(text)
    }
}

/// A node name that is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name:?} is not a node name; use 1 to 63 letters, digits, '.', '_' or '-'")]
pub struct BadNodeName {
    /// What was offered, cut when longer than a name can be.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_id_is_read_as_it_is_written() {
        let id = ExportId { slot: 12, generation: 3 };
        assert_eq!((id.to_string().as_str(), "12.3".parse()), ("12.3", Ok(id)));
        for text in ["", "12", "#12.3", "12.", ".3", "+1.2", "1.2.3", "4294967296.0", "0x1.2"] {
            assert!(text.parse::<ExportId>().is_err(), "{text}");
        }
    }

    #[test]
    fn ids_survive_the_trip_through_a_number() {
        let id = ExportId { slot: 7, generation: 0xffff_fffe };
        assert_eq!(ExportId::from_u64(id.to_u64()), id);
    }

    #[test]
    fn node_names_are_checked() {
        assert!(NodeName::parse("node-1.rack_2").is_ok());
        assert!(NodeName::parse("").is_err());
        assert!(NodeName::parse("a b").is_err());
        assert!(NodeName::parse(&"x".repeat(64)).is_err());
        assert!(NodeName::parse(&"x".repeat(63)).is_ok());
    }
}
