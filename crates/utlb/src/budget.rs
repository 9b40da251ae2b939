//! A dynamic limit: one amount of pinned memory for the whole node, moved between processes while
//! they run. The paper's open problem. [UTLB §3.4]
//!
//! ```text
//!  request ──free──▶ Granted
//!     │ └── requester above its share ──▶ EvictOwn (its own policy chooses)
//!     └── somebody above its share ──▶ Wait;  poll: Ask{process, pages, deadline}
//!            released ──▶ poll: Grant          deadline passed ──▶ poll: Revoke (the driver unpins; engine entries become garbage)
//! ```
//!
//! Invariants: granted pages never exceed the total; a process is asked by one ask at a time and
//! never below its share; what was granted is counted until it is given back or revoked. The total
//! is divided among the users that have processes attached, and each one's part among its
//! processes. A waiting process would hold no more than its share, so all that wait can be served
//! from what others hold beyond theirs; should shares shrink meanwhile, a process that no longer
//! fits is told to evict. No clock: time is an argument.

use crate::ids::Process;
use std::collections::{BTreeMap, VecDeque};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Pin.
    Granted,
    /// The process holds its share or more: it must evict as many of its own pages.
    EvictOwn,
    /// Another process was asked; a [`BudgetAction::Grant`] follows.
    Wait,
}

/// What the driver must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetAction {
    /// Ask a process to give pages back before the deadline.
    Ask {
        /// Whom.
        process: Process,
        /// How many.
        pages: usize,
        /// By when.
        deadline_us: u64,
    },
    /// Tell a waiting process that others have come and it holds its share now: it must evict as
    /// many of its own pages.
    EvictOwn {
        /// Whom.
        process: Process,
        /// How many.
        pages: usize,
    },
    /// Tell a waiting process that it may pin.
    Grant {
        /// Whom.
        process: Process,
        /// How many.
        pages: usize,
    },
    /// The process did not give back in time: unpin so many of its pages, whichever, and make their
    /// translations garbage.
    Revoke {
        /// Whose.
        process: Process,
        /// How many.
        pages: usize,
    },
}

impl BudgetAction {
    /// Whom it is about.
    fn process(&self) -> Process {
        match *self {
            BudgetAction::Ask { process, .. }
            | BudgetAction::EvictOwn { process, .. }
            | BudgetAction::Grant { process, .. }
            | BudgetAction::Revoke { process, .. } => process,
        }
    }
}

/// Why a request cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Unknown process.
    #[error("process {0} is not attached to this budget")]
    NotAttached(u16),
    /// Too much at once.
    #[error("a request for {pages} pages exceeds the process's share of {share}; split the transfer")]
    TooMuch {
        /// As asked.
        pages: usize,
        /// Of one process.
        share: usize,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    user: u32,
    granted: usize,
    // Of its requests that wait.
    waiting: usize,
    // Pages asked for and not yet given back, and until when.
    asked: usize,
    deadline_us: u64,
}

/// The pinned memory of a node.
#[derive(Clone, Debug)]
pub struct Budget {
    total: usize,
    free: usize,
    // How long a process has to give memory back.
    reclaim_us: u64,
    holdings: BTreeMap<Process, Holding>,
    // Processes of each user.
    users: BTreeMap<u32, usize>,
    waiting: VecDeque<(Process, usize)>,
    actions: VecDeque<BudgetAction>,
}

impl Budget {
    /// `total` pages; a process that is asked has `reclaim_us` to give them back.
    pub fn new(total: usize, reclaim_us: u64) -> Budget {
        Budget {
            total,
            free: total,
            reclaim_us,
            holdings: BTreeMap::new(),
            users: BTreeMap::new(),
            waiting: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// A process of a user, which may pin.
    pub fn attach(&mut self, process: Process, user: u32) {
        self.holdings.entry(process).or_insert_with(|| {
            *self.users.entry(user).or_default() += 1;
            Holding { user, ..Holding::default() }
        });
        self.turn_down();
    }

    /// The process is gone, and with it all that it had pinned.
    pub fn detach(&mut self, process: Process) {
        if let Some(holding) = self.holdings.remove(&process) {
            self.free += holding.granted;
            let count = self.users.get_mut(&holding.user).expect("counted when it was attached");
            *count -= 1;
            if *count == 0 {
                self.users.remove(&holding.user);
            }
        }
        self.waiting.retain(|(p, _)| *p != process);
        // Its number may belong to another process when they are looked at.
        self.actions.retain(|action| action.process() != process);
        self.serve();
    }

    /// Pages that a process can count on; of one that is not attached, the mean of those that are.
    pub fn share(&self, process: Process) -> usize {
        let mean = || self.total / self.holdings.len().max(1);
        self.holdings.get(&process).map_or_else(mean, |holding| self.share_of(holding.user))
    }

    /// Pages that each process of a user can count on.
    fn share_of(&self, user: u32) -> usize {
        self.total / self.users.len().max(1) / self.users.get(&user).copied().unwrap_or(1).max(1)
    }

    /// Pages that nobody has.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Pages that a process has.
    pub fn granted(&self, process: Process) -> usize {
        self.holdings.get(&process).map_or(0, |h| h.granted)
    }

    /// A process wants to pin more.
    ///
    /// # Errors
    ///
    /// [`BudgetError`].
    pub fn request(&mut self, process: Process, pages: usize, now_us: u64) -> Result<Decision, BudgetError> {
        let share = self.share(process);
        let holding = self.holdings.get_mut(&process).ok_or(BudgetError::NotAttached(process.0))?;
        if pages == 0 {
            return Ok(Decision::Granted);
        }
        if pages > share {
            return Err(BudgetError::TooMuch { pages, share });
        }
        if self.waiting.is_empty() && self.free >= pages {
            self.free -= pages;
            holding.granted += pages;
            return Ok(Decision::Granted);
        }
        if holding.granted + holding.waiting + pages > share {
            return Ok(Decision::EvictOwn);
        }
        holding.waiting += pages;
        self.waiting.push_back((process, pages));
        self.ask(now_us);
        Ok(Decision::Wait)
    }

    /// Asks the processes furthest above their share for what the waiting ones lack.
    fn ask(&mut self, now_us: u64) {
        let wanted: usize = self.waiting.iter().map(|(_, pages)| pages).sum();
        let coming: usize = self.holdings.values().map(|h| h.asked).sum();
        let mut lack = wanted.saturating_sub(self.free + coming);
        while lack > 0 {
            let above = |h: &Holding| h.granted.saturating_sub(self.share_of(h.user));
            let all = self.holdings.iter().filter(|(_, h)| h.asked == 0).map(|(process, h)| (*process, above(h)));
            let Some((process, above)) = all.max_by_key(|(_, above)| *above).filter(|(_, above)| *above > 0) else {
                break;
            };
            let pages = lack.min(above);
            let deadline_us = now_us.saturating_add(self.reclaim_us);
            let holding = self.holdings.get_mut(&process).expect("just seen");
            (holding.asked, holding.deadline_us) = (pages, deadline_us);
            lack -= pages;
            self.actions.push_back(BudgetAction::Ask { process, pages, deadline_us });
        }
    }

    /// A process unpinned pages, asked or not.
    pub fn released(&mut self, process: Process, pages: usize, now_us: u64) {
        let Some(holding) = self.holdings.get_mut(&process) else { return };
        assert!(pages <= holding.granted, "process {process:?} gave back {pages} of {} pages", holding.granted);
        holding.granted -= pages;
        holding.asked = holding.asked.saturating_sub(pages);
        self.free += pages;
        self.serve();
        self.ask(now_us);
    }

    /// First come, first served.
    fn serve(&mut self) {
        while let Some((process, pages)) = self.waiting.front().copied().filter(|(_, pages)| *pages <= self.free) {
            self.waiting.pop_front();
            self.free -= pages;
            let holding = self.holdings.get_mut(&process).expect("whoever goes waits no longer");
            holding.waiting -= pages;
            holding.granted += pages;
            self.actions.push_back(BudgetAction::Grant { process, pages });
        }
    }

    /// Shares have shrunk: nobody waits for what would put it above its own, for nobody may be
    /// there to be asked.
    fn turn_down(&mut self) {
        for (process, pages) in std::mem::take(&mut self.waiting) {
            let share = self.share(process);
            let holding = self.holdings.get_mut(&process).expect("whoever goes waits no longer");
            if holding.granted + holding.waiting <= share {
                self.waiting.push_back((process, pages));
                continue;
            }
            holding.waiting -= pages;
            self.actions.push_back(BudgetAction::EvictOwn { process, pages });
        }
        self.serve();
    }

    /// What to do next; call until `None`, and again at [`Budget::deadline_us`].
    pub fn poll(&mut self, now_us: u64) -> Option<BudgetAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        let late = self.holdings.iter_mut().find(|(_, h)| h.asked > 0 && h.deadline_us <= now_us);
        let (process, pages) = late.map(|(process, h)| (*process, std::mem::take(&mut h.asked)))?;
        // The driver unpins at once and is not asked to confirm.
        self.released(process, pages, now_us);
        Some(BudgetAction::Revoke { process, pages })
    }

    /// When the next ask runs out.
    pub fn deadline_us(&self) -> Option<u64> {
        self.holdings.values().filter(|h| h.asked > 0).map(|h| h.deadline_us).min()
    }
}

#[cfg(test)]
mod tests;
