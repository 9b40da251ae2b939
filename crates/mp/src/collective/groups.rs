//! How members of a group agree on a new one.
//!
//! The first member of the group that a new one is made of gives its number, which has that
//! member's rank in it: so several threads may make groups at a time, of whatever members. A number
//! that members agreed on as the least that none of them has used would be that of two groups then.
//!
//! Invariant: all members of a new group have the same number and the same list for it, and a
//! member is in no other group of that number.

use super::{Call, Calls, Turn};
use crate::error::MpError;
use std::sync::Arc;

/// What the first member says that has no number left.
const NO_NUMBER: u32 = u32::MAX;

impl<C: Calls> Turn<'_, C> {
    /// The number of a new group, which the first member gives; none: it has given all that it has.
    pub(crate) async fn agree(self, number: Option<u32>) -> Result<u32, MpError> {
        let mut bytes = number.unwrap_or(NO_NUMBER).to_le_bytes();
        Turn { call: Call::Broadcast, ..self }.broadcast(0, &mut bytes).await?;
        match u32::from_le_bytes(bytes) {
            NO_NUMBER => Err(MpError::TooManyGroups),
            number => Ok(number),
        }
    }

    /// The new group that this member is in, if it is in one: its number, and its members in order
    /// of key.
    pub(crate) async fn split(
        self,
        number: Option<u32>,
        colour: Option<u64>,
        key: i64,
    ) -> Result<Option<(u32, Arc<[u32]>)>, MpError> {
        let number = self.agree(number).await?;
        let mut own = [0; 17];
        own[0] = colour.is_some().into();
        own[1..9].copy_from_slice(&colour.unwrap_or_default().to_le_bytes());
        own[9..].copy_from_slice(&key.to_le_bytes());
        let mut all = vec![0; own.len() * self.count];
        Turn { call: Call::Allgather, ..self }.allgather(&own, &mut all).await?;
        let Some(_) = colour else { return Ok(None) };
        let mut chosen: Vec<(i64, u32)> = Vec::new();
        for (said, member) in all.chunks_exact(own.len()).zip(self.members) {
            if said[..9] == own[..9] {
                chosen.push((i64::from_le_bytes(std::array::from_fn(|at| said[9 + at])), *member));
            }
        }
        // It keeps the order of ranks.
        chosen.sort_by_key(|(key, _)| *key);
        Ok(Some((number, chosen.into_iter().map(|(_, member)| member).collect())))
    }
}
