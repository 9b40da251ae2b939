//! Types, nodes and process types of messages, and what selects them.
//!
//! Invariant: a tag of [`vmmc_mp`] has the type in its lower 32 bits, the sender's process type in
//! the next 16 and the receiver's in the last 16; so a message is only ever for its process type.

use crate::error::NxError;
use crate::limits::{PTYPE_MAX, TYPE_MAX};
use vmmc_mp::{Select, Status};

/// As a type, a node or a process type that is selected: any. As the node of a send: all others.
pub const ANY: i64 = -1;

/// What is known of a message: `info` of `crecvx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Its type.
    pub ty: i64,
    /// Its bytes.
    pub count: i64,
    /// Its sender's node.
    pub node: i64,
    /// Its sender's process type.
    pub ptype: i64,
}

impl Info {
    /// As the array of NX has it: type, count, node, process type, then zeros.
    pub fn to_array(self) -> [i64; 8] {
        [self.ty, self.count, self.node, self.ptype, 0, 0, 0, 0]
    }
}

/// Which rank runs on which node. Ranks are counted through by the job, nodes by the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// The node of each rank.
    by_rank: Vec<u32>,
    /// Nodes of the application.
    count: u32,
}

impl Nodes {
    /// A process on each node.
    pub(crate) fn all(count: u32) -> Nodes {
        Nodes { by_rank: (0..count).collect(), count }
    }

    /// Processes on some of the nodes only, in their order.
    pub(crate) fn some(by_rank: Vec<u32>, count: u32) -> Nodes {
        Nodes { by_rank, count }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn of_rank(&self, rank: u32) -> u32 {
        self.by_rank.get(rank as usize).copied().unwrap_or(rank)
    }

    /// Ranks.
    pub(crate) fn ranks(&self) -> std::ops::Range<u32> {
        0..self.by_rank.len() as u32
    }

    /// The rank on a node.
    pub(crate) fn rank_of(&self, node: i64) -> Result<u32, NxError> {
        let number = u32::try_from(node).ok().filter(|number| *number < self.count);
        let number = number.ok_or(NxError::Node { node, count: self.count })?;
        let rank = self.by_rank.iter().position(|own| *own == number);
        rank.map(|rank| rank as u32).ok_or(NxError::NoProcess { node })
    }

    /// The messages that a receive is for.
    pub(crate) fn select(&self, typesel: i64, nodesel: i64, ptypesel: i64, own: u16) -> Result<Select, NxError> {
        let select = match nodesel {
            ANY => Select::any(),
            _ => Select::from(self.rank_of(nodesel)?),
        };
        let (bits, mask) = bits(typesel, ptypesel, own)?;
        Ok(select.tag_bits(bits, mask))
    }

    pub(crate) fn info(&self, status: Status) -> Info {
        let (ty, ptype) = ((status.tag & 0xffff_ffff) as i64, (status.tag >> 32 & 0xffff) as i64);
        Info { ty, count: status.len as i64, node: self.of_rank(status.source).into(), ptype }
    }
}

/// The bits of a tag that a receive is for, and which of them matter.
fn bits(typesel: i64, ptypesel: i64, own: u16) -> Result<(u64, u64), NxError> {
    let (mut bits, mut mask) = (u64::from(own) << 48, 0xffff << 48);
    if typesel != ANY {
        bits |= type_of(typesel).map_err(|_| NxError::Selector { what: "type", value: typesel })?;
        mask |= 0xffff_ffff;
    }
    if ptypesel != ANY {
        let ptype = ptype_of(ptypesel).map_err(|_| NxError::Selector { what: "process type", value: ptypesel })?;
        bits |= u64::from(ptype) << 32;
        mask |= 0xffff << 32;
    }
    Ok((bits, mask))
}

/// The tag of a message.
pub(crate) fn tag(ty: i64, from: u16, to: i64) -> Result<u64, NxError> {
    Ok(type_of(ty)? | u64::from(from) << 32 | u64::from(ptype_of(to)?) << 48)
}

fn type_of(ty: i64) -> Result<u64, NxError> {
    if (0..=TYPE_MAX).contains(&ty) { Ok(ty as u64) } else { Err(NxError::Type { ty }) }
}

pub(crate) fn ptype_of(ptype: i64) -> Result<u16, NxError> {
    u16::try_from(ptype).map_err(|_| NxError::Ptype { ptype })
}

const _: () = assert!(PTYPE_MAX == u16::MAX as i64 && TYPE_MAX <= u32::MAX as i64);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A message is selected just when each of its three properties is, and is for us.
        #[test]
        fn a_selector_selects_what_it_says(
            (ty, from, to) in (0i64..3, 0u16..3, 0u16..3),
            (typesel, ptypesel, own) in (-1i64..3, -1i64..3, 0u16..3),
        ) {
            let tag = tag(ty, from, to.into()).expect("it is a message");
            let (bits, mask) = bits(typesel, ptypesel, own).expect("it selects something");
            let wanted = (typesel == ANY || typesel == ty) && (ptypesel == ANY || ptypesel == i64::from(from)) && own == to;
            prop_assert_eq!(tag & mask == bits, wanted);
            let info = Nodes::all(3).info(Status { source: 2, tag, len: 7 });
            prop_assert_eq!(info, Info { ty, count: 7, node: 2, ptype: from.into() });
        }
    }

    #[test]
    fn wrong_numbers_are_refused_with_what_would_be_right() {
        let nodes = Nodes::all(4);
        assert_eq!(nodes.rank_of(4), Err(NxError::Node { node: 4, count: 4 }));
        assert_eq!(nodes.rank_of(-2), Err(NxError::Node { node: -2, count: 4 }));
        assert_eq!(tag(-1, 0, 0), Err(NxError::Type { ty: -1 }));
        assert_eq!(tag(TYPE_MAX + 1, 0, 0), Err(NxError::Type { ty: 2_000_000_000 }));
        assert_eq!(tag(0, 0, 65_536), Err(NxError::Ptype { ptype: 65_536 }));
        assert_eq!(nodes.select(-2, -1, -1, 0), Err(NxError::Selector { what: "type", value: -2 }));
        assert_eq!(nodes.select(-1, -1, -7, 0), Err(NxError::Selector { what: "process type", value: -7 }));
    }
}
