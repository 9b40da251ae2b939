//! How the bounded tables of a node are divided among its users.
//!
//! A user other than the node's own and root may take another entry only while it would then hold
//! no more than is still free. So a user alone fills half of a table, `k` users that take all they
//! get have one part in `k + 1` each, and as much is free for the next. Nothing is set aside for
//! users who do not come.
//!
//! Invariant: what a table has given out is the sum of what its users hold, and what a user holds
//! is the sum of what its connections hold; a connection that ends gives all back, whatever it was.
//! Source: Choudhury and Hahne, *Dynamic Queue Length Thresholds for Shared-Memory Packet
//! Switches*, 1998 (alpha = 1).

use super::Station;
use super::refusal::refusal;
use crate::limits::{
    CALLS_MAX, CONNECTIONS_MAX, DESCRIPTORS_KEPT, DESCRIPTORS_PER_PROCESS, DESCRIPTORS_PER_REGION, IMPORTS_MAX,
    MAPPINGS_KEPT, OUTLIVED_PAGES_MAX, PEERS_CALLED_MAX, REDIRECTIONS_MAX, REFUSED_CONNECTIONS_MAX, UNDER_WAY_PART,
};
use std::collections::HashMap;
use vmmc_host::control::{Refusal, RefusalCode};
use vmmc_nic::RedirectError;
use vmmc_nic::limits::{EXPORTS_MAX, PROCESSES_MAX};

/// What is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Connections,
    /// Connections that only wait to be told why they are not served.
    Refused,
    Processes,
    Exports,
    Imports,
    /// Calls whose answer comes later.
    Calls,
    /// Addresses that a user has asked for an import or a ping from, while it waits.
    Peers,
    /// Regions, each of which is a mapping of the node.
    Regions,
    Descriptors,
    Redirections,
    /// Descriptors in messages that no client has taken.
    UnderWay,
    /// Pages that the node made for processes that have ended, and clients keep.
    Outlived,
}

const TABLES: usize = 12;
const _: () = assert!(Table::Outlived as usize == TABLES - 1);

impl Table {
    fn words(self) -> &'static str {
        match self {
            Table::Connections | Table::Refused => "connections",
            Table::Processes => "processes",
            Table::Exports => "exports",
            Table::Imports => "imports",
            Table::Calls => "waiting calls",
            Table::Peers => "nodes asked by address",
            Table::Regions => "regions",
            Table::Descriptors => "descriptors",
            Table::Redirections => "redirections",
            Table::UnderWay => "descriptors in messages that are not read",
            Table::Outlived => "kept pages of processes that have ended",
        }
    }
}

/// What a connection holds of each table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Holdings([u32; TABLES]);

impl Holdings {
    fn is_empty(&self) -> bool {
        self.0.iter().all(|n| *n == 0)
    }

    /// So much of one table.
    pub(super) fn of(table: Table, count: u32) -> Holdings {
        let mut held = Holdings::default();
        held.0[table as usize] = count;
        held
    }

    /// What a region has.
    pub(super) fn of_region() -> Holdings {
        let mut region = Holdings::default();
        region.0[Table::Regions as usize] = 1;
        region.0[Table::Descriptors as usize] = DESCRIPTORS_PER_REGION;
        region
    }

    /// What an attached process has beside.
    pub(super) fn of_process() -> Holdings {
        let mut process = Holdings::default();
        process.0[Table::Descriptors as usize] = DESCRIPTORS_PER_PROCESS;
        process
    }

    /// Takes out so many times what `each` has, or what is there of it.
    pub(super) fn split(&mut self, each: &Holdings, times: u32) -> Holdings {
        let mut out = Holdings::default();
        for ((out, own), each) in out.0.iter_mut().zip(&mut self.0).zip(each.0) {
            *out = (each * times).min(*own);
            *own -= *out;
        }
        out
    }

    pub(super) fn add(&mut self, more: &Holdings) {
        self.0.iter_mut().zip(more.0).for_each(|(own, more)| *own += more);
    }

    /// Takes out what the socket of a connection has.
    pub(super) fn split_socket(&mut self) -> Holdings {
        let mut socket = Holdings::default();
        for table in [Table::Connections, Table::Refused, Table::Descriptors] {
            socket.0[table as usize] = 1;
        }
        self.split(&socket, 1)
    }
}

/// A user holds its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user {uid} holds {own} of the {max} {} of this node, which is its share while {free} are free for others; let some go", .table.words())]
pub(super) struct ShareTaken {
    table: Table,
    uid: u32,
    own: u64,
    max: u64,
    free: u64,
}

impl ShareTaken {
    pub(super) fn refusal(&self) -> Refusal {
        refusal(RefusalCode::TableFull, self.to_string())
    }

    /// The same of the table of redirections, as it is reported in rings.
    pub(super) fn redirections(&self) -> RedirectError {
        RedirectError::Share { own: self.own, max: self.max, free: self.free }
    }
}

/// The tables of a node.
pub(super) struct Shares {
    /// Its own user, who like root is bounded by the tables alone.
    owner: u32,
    max: [u64; TABLES],
    total: [u64; TABLES],
    /// What is taken of each and counted by somebody else, who divides it among users.
    elsewhere: [u64; TABLES],
    users: HashMap<u32, Holdings>,
}

impl Shares {
    pub(super) fn new(owner: u32) -> Shares {
        let mut max = [0; TABLES];
        for (table, bound) in [
            (Table::Connections, CONNECTIONS_MAX as u64),
            (Table::Refused, REFUSED_CONNECTIONS_MAX as u64),
            (Table::Processes, PROCESSES_MAX as u64),
            (Table::Exports, EXPORTS_MAX as u64),
            (Table::Imports, IMPORTS_MAX as u64),
            (Table::Calls, CALLS_MAX as u64),
            (Table::Peers, PEERS_CALLED_MAX as u64),
            (Table::Regions, mappings().saturating_sub(MAPPINGS_KEPT)),
            (Table::Descriptors, descriptors().saturating_sub(DESCRIPTORS_KEPT)),
            (Table::Redirections, REDIRECTIONS_MAX as u64),
            (Table::UnderWay, descriptors() / UNDER_WAY_PART),
            (Table::Outlived, OUTLIVED_PAGES_MAX),
        ] {
            max[table as usize] = bound;
        }
        Shares { owner, max, total: [0; TABLES], elsewhere: [0; TABLES], users: HashMap::new() }
    }

    /// Whether a user could have so many more.
    pub(super) fn check(&self, uid: u32, table: Table, count: u64) -> Result<(), ShareTaken> {
        let at = table as usize;
        let own = self.users.get(&uid).map_or(0, |held| u64::from(held.0[at]));
        self.decide(uid, table, own, self.total[at] + self.elsewhere[at], count)
    }

    /// Whether a user could have one more of a table whose entries are counted elsewhere.
    pub(super) fn check_count(&self, uid: u32, table: Table, own: u64, total: u64) -> Result<(), ShareTaken> {
        self.decide(uid, table, own, total, 1)
    }

    /// Whether a user that has `own` entries of a table of `max`, of which `all` are taken, may
    /// take another one: the rule of all tables.
    pub(super) fn may_have(&self, uid: u32, own: u64, all: u64, max: u64) -> bool {
        self.is_own(uid) || own + 2 <= max.saturating_sub(all)
    }

    fn decide(&self, uid: u32, table: Table, own: u64, total: u64, count: u64) -> Result<(), ShareTaken> {
        let max = self.max[table as usize];
        let free = max.saturating_sub(total);
        let own_user = self.is_own(uid);
        // What is under way is bounded by the kernel for the node's own user, too.
        let within = if own_user {
            table != Table::UnderWay || count <= free
        } else {
            own + count <= free.saturating_sub(count)
        };
        if within {
            return Ok(());
        }
        Err(ShareTaken { table, uid, own, max, free })
    }

    /// Whether it is the node's own user, or root.
    pub(super) fn is_own(&self, uid: u32) -> bool {
        uid == self.owner || uid == 0
    }

    /// Says how much of a table is counted elsewhere.
    pub(super) fn set_elsewhere(&mut self, table: Table, count: u64) {
        self.elsewhere[table as usize] = count;
    }

    /// How much of a table is free.
    pub(super) fn free(&self, table: Table) -> u64 {
        let at = table as usize;
        self.max[at].saturating_sub(self.total[at] + self.elsewhere[at])
    }

    /// How much of a table is given out.
    pub(super) fn total(&self, table: Table) -> u64 {
        self.total[table as usize]
    }

    /// Takes entries for a connection of a user.
    pub(super) fn take(&mut self, uid: u32, held: &mut Holdings, table: Table, count: u32) -> Result<(), ShareTaken> {
        self.check(uid, table, u64::from(count))?;
        self.count(uid, held, table, count);
        Ok(())
    }

    /// Counts what a user has already, whatever its share is.
    pub(super) fn count(&mut self, uid: u32, held: &mut Holdings, table: Table, count: u32) {
        let at = table as usize;
        held.0[at] += count;
        self.total[at] += u64::from(count);
        self.users.entry(uid).or_default().0[at] += count;
    }

    /// Gives entries back, at most what the connection holds.
    pub(super) fn give(&mut self, uid: u32, held: &mut Holdings, table: Table, count: u32) {
        let at = table as usize;
        let count = count.min(held.0[at]);
        held.0[at] -= count;
        self.total[at] -= u64::from(count);
        if let Some(user) = self.users.get_mut(&uid) {
            user.0[at] -= count;
            if user.is_empty() {
                self.users.remove(&uid);
            }
        }
    }

    /// Gives back all that a connection holds.
    pub(super) fn give_all(&mut self, uid: u32, held: &mut Holdings) {
        for (at, count) in std::mem::take(&mut held.0).into_iter().enumerate() {
            self.total[at] -= u64::from(count);
            if let Some(user) = self.users.get_mut(&uid) {
                user.0[at] -= count;
            }
        }
        if self.users.get(&uid).is_some_and(Holdings::is_empty) {
            self.users.remove(&uid);
        }
    }

    /// Whether nothing is given out.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.total.iter().all(|n| *n == 0)
    }
}

impl Station {
    /// Takes entries of a table for a connection.
    pub(super) fn take_share(&mut self, index: usize, table: Table, count: u32) -> Result<(), Refusal> {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { return Ok(()) };
        let taken = self.shares.take(connection.who.uid, &mut connection.held, table, count);
        taken.map_err(|full| full.refusal())
    }

    /// Gives back what a connection has of a table beyond so many entries.
    pub(super) fn keep_share(&mut self, index: usize, table: Table, keep: u32) {
        if let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) {
            let more = connection.held.0[table as usize].saturating_sub(keep);
            self.shares.give(connection.who.uid, &mut connection.held, table, more);
        }
    }

    /// Gives entries of a table back.
    pub(super) fn give_share(&mut self, index: usize, table: Table, count: u32) {
        if let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) {
            self.shares.give(connection.who.uid, &mut connection.held, table, count);
        }
    }
}

/// Descriptors that this process may have.
fn descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX).min(u64::from(u32::MAX))
}

/// Mappings that this process may have.
fn mappings() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    // What every Linux has unless it was changed.
    text.trim().parse().unwrap_or(65_530)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;

    fn fill(shares: &mut Shares, uid: u32, held: &mut Holdings) -> usize {
        (0..).take_while(|_| shares.take(uid, held, Table::Processes, 1).is_ok()).count()
    }

    #[test]
    fn a_user_that_takes_all_it_gets_leaves_as_much_for_the_next() {
        let mut shares = Shares::new(OWNER);
        let mut held = [Holdings::default(); 3];
        assert_eq!(fill(&mut shares, 1, &mut held[0]), PROCESSES_MAX / 2);
        assert_eq!(fill(&mut shares, 2, &mut held[1]), PROCESSES_MAX / 4);
        assert_eq!(fill(&mut shares, 3, &mut held[2]), PROCESSES_MAX / 8);
        assert!(shares.take(OWNER, &mut Holdings::default(), Table::Processes, 1).is_ok());
        assert!(shares.take(0, &mut Holdings::default(), Table::Processes, 1).is_ok());
        let full = shares.check(1, Table::Processes, 1).unwrap_err();
        assert!(full.to_string().contains("user 1 holds 128 of the 256 processes"), "{full}");
    }

    #[test]
    fn what_is_counted_elsewhere_is_not_free() {
        let mut shares = Shares::new(OWNER);
        shares.set_elsewhere(Table::Processes, PROCESSES_MAX as u64 / 2);
        assert_eq!(shares.free(Table::Processes), PROCESSES_MAX as u64 / 2);
        assert_eq!(fill(&mut shares, 1, &mut Holdings::default()), PROCESSES_MAX / 4);
        assert_eq!(shares.free(Table::Processes), PROCESSES_MAX as u64 / 4);
    }

    #[test]
    fn what_a_connection_holds_comes_back_when_it_ends() {
        let mut shares = Shares::new(OWNER);
        let (mut one, mut two) = (Holdings::default(), Holdings::default());
        shares.take(1, &mut one, Table::Exports, 5).unwrap();
        shares.take(1, &mut two, Table::Exports, 7).unwrap();
        shares.take(1, &mut two, Table::Regions, 1).unwrap();
        shares.give(1, &mut one, Table::Exports, 2);
        // More than it holds is never given back.
        shares.give(1, &mut one, Table::Regions, 9);
        shares.give_all(1, &mut two);
        assert_eq!(shares.users[&1], one);
        shares.give_all(1, &mut one);
        assert!(shares.is_empty());
    }
}
