//! How members of a group agree on a new one.
//!
//! Invariant: all members of a new group have the same number and the same list for it.

use super::{Call, Calls, Op, Turn};
use crate::error::MpError;
use crate::limits::GROUPS_MAX;
use std::sync::Arc;

impl<C: Calls> Turn<'_, C> {
    /// A number that no member has used for a group; `next` is the least that this one has not.
    pub(crate) async fn agree(self, next: u32) -> Result<u32, MpError> {
        let mut number = next.to_le_bytes();
        let turn = Turn { call: Call::Allreduce, ..self };
        turn.allreduce(&mut number, 4, &mut super::reducing::combine::<u32>(Op::Max)).await?;
        let number = u32::from_le_bytes(number);
        if number >= GROUPS_MAX { Err(MpError::TooManyGroups) } else { Ok(number) }
    }

    /// The new group that this member is in, if it is in one: its number, and its members in order
    /// of key.
    pub(crate) async fn split(
        self,
        next: u32,
        colour: Option<u64>,
        key: i64,
    ) -> Result<Option<(u32, Arc<[u32]>)>, MpError> {
        let number = self.agree(next).await?;
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
