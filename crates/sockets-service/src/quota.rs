//! How what the service gives out is divided among users.
//!
//! Invariant: a user may take more only while it would then hold no more than is still free, as
//! with the tables of the node (`shares.rs`): so one user alone gets half, and the next user always
//! finds something.

use std::collections::HashMap;

/// So much of something, and who has it.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    total: u64,
    users: HashMap<u32, u64>,
}

impl Quota {
    /// Takes so much for a user, if all together stay within `max`. False: that is more than its
    /// share.
    pub(crate) fn take(&mut self, uid: u32, much: u64, max: u64) -> bool {
        let own = self.users.get(&uid).copied().unwrap_or(0) + much;
        let fits = own <= max.saturating_sub(self.total);
        if fits {
            self.total += much;
            self.users.insert(uid, own);
        }
        fits
    }

    /// How much is taken.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Gives so much of it back.
    pub(crate) fn give(&mut self, uid: u32, much: u64) {
        let Some(own) = self.users.get_mut(&uid) else { return };
        let much = much.min(*own);
        *own -= much;
        self.total -= much;
        if *own == 0 {
            self.users.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_alone_gets_half_and_the_next_one_finds_something() {
        let mut quota = Quota::default();
        let mut taken = |uid| (0..100).take_while(|_| quota.take(uid, 1, 64)).count();
        assert_eq!([taken(1), taken(2), taken(3), taken(1)], [32, 16, 8, 0]);
        quota.give(1, 32);
        quota.give(1, 32);
        assert!(quota.take(2, 1, 64) && quota.take(1, 17, 64));
        assert_eq!(quota.total, 16 + 8 + 1 + 17);
    }
}
