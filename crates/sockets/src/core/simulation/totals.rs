//! What simulated runs came to.
//!
//! Invariant: a count is of what happened, so that a run in which a kind of event never came shows.

/// What happened in a run, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Steps.
    pub steps: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Those that went through the ring.
    pub ring_bytes: u64,
    /// Sleeps on the ring.
    pub sleeps: u64,
    /// Forks.
    pub forks: u64,
    /// Closes.
    pub closes: u64,
    /// Processes killed.
    pub kills: u64,
    /// Of those, in the middle of a change of medium or with a lock.
    pub worst_kills: u64,
    /// Nodes that died.
    pub node_deaths: u64,
    /// Ends of which a holder went on that reads and writes the kernel only.
    pub hand_backs: u64,
    /// Of those, after the other end had left the ring by itself with bytes unread there.
    pub left_behind: u64,
    /// Of those, while the other end did not run, and had not followed into the ring.
    pub unfollowed: u64,
}

impl Totals {
    /// All of them, by name.
    pub fn counts(&self) -> [(&'static str, u64); 13] {
        [
            ("runs", self.runs),
            ("steps", self.steps),
            ("sent bytes", self.sent_bytes),
            ("ring bytes", self.ring_bytes),
            ("sleeps", self.sleeps),
            ("forks", self.forks),
            ("closes", self.closes),
            ("kills", self.kills),
            ("worst kills", self.worst_kills),
            ("node deaths", self.node_deaths),
            ("hand-backs", self.hand_backs),
            ("hand-backs of unread bytes left in the ring", self.left_behind),
            ("hand-backs past an end that does not follow", self.unfollowed),
        ]
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Totals) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.sent_bytes += other.sent_bytes;
        self.ring_bytes += other.ring_bytes;
        self.sleeps += other.sleeps;
        self.forks += other.forks;
        self.closes += other.closes;
        self.kills += other.kills;
        self.worst_kills += other.worst_kills;
        self.node_deaths += other.node_deaths;
        self.hand_backs += other.hand_backs;
        self.left_behind += other.left_behind;
        self.unfollowed += other.unfollowed;
    }
}
