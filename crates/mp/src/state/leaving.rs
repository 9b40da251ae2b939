//! Members that go.
//!
//! Invariant: what a member has sent before its end is received, as far as it has arrived. Who
//! waits for it learns of it; who does not goes on. A collective call needs all members of its
//! group.

use super::State;
use crate::error::{Gone, MpError};
use crate::limits::{ABORT_TEXT_BYTES_MAX, LAST_MESSAGES, MEMBERS_LOOK};
use crate::matching::Pattern;
use crate::transport::Transport;
use crate::wire::Said;
use vmmc::Nanos;

/// Whether a context is that of a group's collective calls.
pub(crate) fn is_collective(context: u32) -> bool {
    context % 2 == 1
}

/// The context of a group's messages; that of its collective calls is the next one.
#[inline]
pub(crate) fn context_of(group: u32) -> u32 {
    2 * group
}

impl<T: Transport> State<T> {
    /// Looks now and then who is there. Gives those whose last messages have had their time: when
    /// what is here was taken, they are [gone](Self::member_gone).
    pub(crate) fn look_at_members(&mut self) -> Result<Vec<(u32, Gone)>, MpError> {
        let now = self.transport.now();
        if now.since(self.looked_at) < MEMBERS_LOOK {
            return Ok(Vec::new());
        }
        self.looked_at = now;
        for (rank, how) in self.transport.gone()? {
            self.going(rank, now, how);
        }
        for rank in 0..self.peers.len() {
            let broken = self.peers[rank].connection.as_ref().and_then(T::broken);
            if let Some(why) = broken {
                self.going(rank as u32, now, Gone::Unreachable { why });
            }
        }
        let due = |(rank, peer): (usize, &super::Peer<T>)| match &peer.going {
            Some((since, how)) if now.since(*since) >= LAST_MESSAGES => Some((rank as u32, how.clone())),
            _ => None,
        };
        Ok(self.peers.iter().enumerate().filter_map(due).collect())
    }

    /// A member is said to have gone. What the job says of it tells more than a connection that
    /// has broken.
    fn going(&mut self, rank: u32, now: Nanos, how: Gone) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        if peer.gone.is_some() || rank == self.rank {
            return;
        }
        match &mut peer.going {
            None => peer.going = Some((now, how)),
            Some((_, known)) if matches!(known, Gone::Unreachable { .. }) => *known = how,
            Some(_) => {}
        }
    }

    /// Nothing can be sent to a member: it is going.
    pub(super) fn unreachable(&mut self, rank: u32, why: String) -> MpError {
        let now = self.transport.now();
        let how = Gone::Unreachable { why };
        self.going(rank, now, how.clone());
        let peer = &mut self.peers[rank as usize];
        peer.says.clear();
        let error = MpError::Gone { rank, how };
        self.fail_sends(rank, &error, |_| false);
        self.peers[rank as usize].out.clear();
        error
    }

    /// A member has gone.
    pub(crate) fn member_gone(&mut self, rank: u32, how: Gone) {
        let peer = &mut self.peers[rank as usize];
        if peer.gone.is_some() {
            return;
        }
        // Its own kind of end is worth more than its goodbye.
        peer.gone = Some(how.clone());
        peer.going = None;
        peer.connection = None;
        peer.says.clear();
        peer.out.clear();
        self.some_gone = true;
        let error = MpError::Gone { rank, how: how.clone() };
        let groups = self.groups.clone();
        let needs = |context: u32| {
            let members = groups.get(&(context / 2)).and_then(std::sync::Weak::upgrade);
            is_collective(context) && is_failure(&how) && members.is_some_and(|members| members.contains(&rank))
        };
        self.fail_sends(rank, &error, needs);
        self.fail_receives(rank, &error);
    }

    /// Why no message can come for a receive, if so.
    pub(crate) fn nobody_for(&self, pattern: &Pattern) -> Option<MpError> {
        let how = |rank: u32| self.peers.get(rank as usize).and_then(|peer| peer.gone.clone());
        let gone = |rank: u32| how(rank).map(|how| MpError::Gone { rank, how });
        if let Some(error) = pattern.source.and_then(gone) {
            return Some(error);
        }
        if is_collective(pattern.context) {
            return self.failed_in(pattern.context);
        }
        let members = self.members_of(pattern.context)?;
        let others = || members.iter().copied().filter(|rank| *rank != self.rank);
        let all = pattern.source.is_none() && others().count() > 0 && others().all(|rank| how(rank).is_some());
        all.then_some(MpError::AllGone)
    }

    /// Why a collective call of this context cannot go on, if so: some member of its group has
    /// failed.
    pub(super) fn failed_in(&self, context: u32) -> Option<MpError> {
        let members = self.members_of(context)?;
        let failed = |rank: &u32| match &self.peers.get(*rank as usize)?.gone {
            Some(how) if is_failure(how) => Some(MpError::Gone { rank: *rank, how: how.clone() }),
            _ => None,
        };
        members.iter().find_map(failed)
    }

    /// Says goodbye to those that there is a connection to; nobody waits for room. After an abort
    /// it passes that on instead, so that nobody learns of its consequences first.
    pub(crate) fn say_goodbye(&mut self) {
        self.transport.connect_no_more();
        let aborted = self.aborted.clone();
        let said = match &aborted {
            Some(MpError::Aborted { rank, code, text }) => {
                let mut end = text.len().min(ABORT_TEXT_BYTES_MAX);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                Said::Abort { of: *rank as u16, code: *code, text: &text.as_bytes()[..end] }
            }
            _ => Said::Bye,
        };
        for rank in 0..self.peers.len() as u32 {
            if rank != self.rank && self.is_connected(rank) {
                self.say(rank, &said);
            }
        }
        self.pump();
    }
}

/// Whether a collective call cannot go on without it: one that has ended well may have ended after
/// its part.
fn is_failure(how: &Gone) -> bool {
    !matches!(how, Gone::Left | Gone::Ended)
}
