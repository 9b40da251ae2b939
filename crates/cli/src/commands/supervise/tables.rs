//! What the ranks of this node know of their job: its table, and the way to ask for something.
//!
//! Invariant: only the launcher's word changes the table, so all nodes show the same views.

use std::collections::BTreeMap;
use vmmc::{Export, Import, Rights, SendOptions, Session};
use vmmc_job::limits::{JOB_CHANGE_TIME, JOB_RANKS_MAX};
use vmmc_job::protocol::{
    CHANGES_NAME, JOB_VARIABLE, JobNode, MemberState, NODE_VARIABLE, RANK_VARIABLE, Report, SIZE_VARIABLE, asks_name,
    member_name, table_name,
};
use vmmc_job::table::{TABLE_BYTES, View};
use vmmc_job::{ASK_CHANGES, ASK_GROW, ASK_LEAVE, LinkError};

/// The exports of one job.
pub(super) struct Tables {
    job: String,
    view: View,
    table: Export,
    asks: Export,
    /// Ranks that want to be told of changes.
    listeners: BTreeMap<u32, Import>,
}

impl Tables {
    pub(super) fn begin(
        session: &Session,
        job: &str,
        nodes: Vec<JobNode>,
        own: u32,
        places: &[u32],
    ) -> Result<Tables, LinkError> {
        let ranks = places.iter().map(|node| (MemberState::Running, *node)).collect();
        let view = View { number: 1, nodes, own, ranks };
        let asks = session.export(8 * JOB_RANKS_MAX as u64).name(&asks_name(job)).notify(true).create()?;
        // Nobody reads before it is written: ranks are started later.
        let table = session.export(TABLE_BYTES).name(&table_name(job)).rights(Rights::READ).create()?;
        view.write(&table);
        Ok(Tables { job: job.to_string(), view, table, asks, listeners: BTreeMap::new() })
    }

    pub(super) fn change(&mut self, number: u64, joined: &[u32], changed: &[(u32, MemberState)]) {
        self.view.number = number;
        self.view.ranks.extend(joined.iter().map(|node| (MemberState::Running, *node)));
        for (rank, state) in changed {
            if let Some(entry) = self.view.ranks.get_mut(*rank as usize) {
                entry.0 = *state;
            }
        }
        self.view.write(&self.table);
        self.listeners.retain(|_, listener| notify(listener, number));
    }

    /// What the ranks have asked for, as far as it concerns the launcher.
    pub(super) fn asks(&mut self, session: &Session) -> Vec<Report> {
        let mut reports = Vec::new();
        while let Some(ask) = self.asks.take_notification() {
            let rank = (ask.offset / 8) as u32;
            match ask.last_word & 0xffff_ffff {
                ASK_LEAVE => reports.push(Report::Left { rank }),
                ASK_GROW => reports.push(Report::Grow { ranks: (ask.last_word >> 32) as u32 }),
                ASK_CHANGES => self.listen(session, rank),
                // A rank of another release, or one that plays: it harms only itself.
                _ => {}
            }
        }
        reports
    }

    /// A rank wants to be told of changes; what has changed since it last read is reported at once.
    fn listen(&mut self, session: &Session, rank: u32) {
        let opened = session.import(&member_name(&self.job, rank, CHANGES_NAME)).open();
        // One that has ended meanwhile wants to know nothing.
        if let Some(listener) = opened.ok().filter(|listener| notify(listener, self.view.number)) {
            self.listeners.insert(rank, listener);
        }
    }

    /// The variables of a rank.
    pub(super) fn variables(&self, rank: u32, node: &str) -> [(&'static str, String); 4] {
        [
            (RANK_VARIABLE, rank.to_string()),
            (SIZE_VARIABLE, self.view.ranks.len().to_string()),
            (JOB_VARIABLE, self.job.clone()),
            (NODE_VARIABLE, node.to_string()),
        ]
    }
}

/// Notifies a rank of a new view; returns whether the rank is there to receive it.
fn notify(listener: &Import, view: u64) -> bool {
    let options = SendOptions { notify: Some(0), timeout: Some(JOB_CHANGE_TIME), ..SendOptions::default() };
    listener.send_with(0, &view.to_le_bytes(), options).is_ok()
}
