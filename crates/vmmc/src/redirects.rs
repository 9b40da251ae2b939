//! What is known of the redirections of a session, by cookie.
//!
//! Invariant: a cookie names one use of an entry; what the node says of an earlier use changes
//! nothing.

use crate::limits::REDIRECTIONS_MAX;
use std::sync::{Mutex, MutexGuard};
use vmmc_host::abi::{COOKIE_REDIRECT, Completion, RedirectDone};
use vmmc_nic::RedirectError;

/// Cookies of commands that post redirections have this bit, and no others of ours.
pub(crate) const COOKIE_POSTING: u64 = 1 << 61;

/// Generations leave the marks of cookies alone.
const GENERATION_MASK: u32 = (COOKIE_POSTING >> 32) as u32 - 1;

/// The redirections of a session that were posted and not given up.
#[derive(Default)]
pub(crate) struct Redirects(Mutex<Table>);

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

struct Entry {
    generation: u32,
    export: u64,
    /// None: it is free.
    state: Option<State>,
    /// Parts that were copied, told before the end.
    copied: Vec<(u64, u64)>,
}

/// How far a redirection has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The node has not answered.
    Asked,
    /// The node has it.
    Posted,
    Over(Outcome),
}

/// How a redirection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All bytes have come, these before it was posted.
    Whole { copied: Vec<(u64, u64)> },
    /// The node did not take it.
    Refused(RedirectError),
    /// The process has ended the export.
    ExportEnded,
    /// The node gave an answer that this release does not know.
    Unknown,
}

impl Redirects {
    /// The cookie of a redirection about to be posted; none if there are too many.
    pub(crate) fn add(&self, export: u64) -> Option<u64> {
        let mut table = self.lock();
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.entries.len() < REDIRECTIONS_MAX => {
                table.entries.push(Entry { generation: 0, export, state: None, copied: Vec::new() });
                table.entries.len() as u32 - 1
            }
            None => return None,
        };
        let entry = &mut table.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1) & GENERATION_MASK;
        (entry.export, entry.state) = (export, Some(State::Asked));
        Some(COOKIE_POSTING | u64::from(entry.generation) << 32 | u64::from(index))
    }

    /// The node says whether it is posted.
    pub(crate) fn answered(&self, completion: &Completion) {
        let state = match (completion.status, RedirectError::from_code(completion.status, completion.args)) {
            (0, _) => State::Posted,
            (_, Some(why)) => State::Over(Outcome::Refused(why)),
            (_, None) => State::Over(Outcome::Unknown),
        };
        self.change(completion.cookie, |entry| {
            if entry.state == Some(State::Asked) {
                entry.state = Some(state);
            }
        });
    }

    /// The node says how all bytes have come.
    pub(crate) fn told(&self, completion: &Completion) {
        self.change(completion.cookie & !COOKIE_REDIRECT, |entry| match RedirectDone::of(completion) {
            RedirectDone::Copied { offset, len } => entry.copied.push((offset, len)),
            RedirectDone::Whole { .. } => {
                let copied = std::mem::take(&mut entry.copied);
                entry.state = Some(State::Over(Outcome::Whole { copied }));
            }
        });
    }

    /// An export of this process has ended, and its redirections with it. Says whether there were
    /// any.
    pub(crate) fn end_of(&self, export: u64) -> bool {
        let mut table = self.lock();
        let of =
            |entry: &&mut Entry| entry.export == export && matches!(entry.state, Some(State::Asked | State::Posted));
        let ended = table.entries.iter_mut().filter(of).map(|e| e.state = Some(State::Over(Outcome::ExportEnded)));
        ended.count() > 0
    }

    /// How far it has come, for the thread that posted it.
    pub(crate) fn state(&self, cookie: u64) -> State {
        let mut state = None;
        self.change(cookie, |entry| state = entry.state.clone());
        state.expect("it is given up last")
    }

    /// Nobody asks for it any more.
    pub(crate) fn remove(&self, cookie: u64) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(cookie as u32 as usize) else { return };
        (entry.state, entry.copied) = (None, Vec::new());
        table.free.push(cookie as u32);
    }

    /// Changes the entry, if the cookie is of its use now.
    fn change(&self, cookie: u64, change: impl FnOnce(&mut Entry)) {
        let mut table = self.lock();
        let generation = (cookie & !COOKIE_POSTING) >> 32;
        let Some(entry) = table.entries.get_mut(cookie as u32 as usize) else { return };
        if entry.state.is_some() && u64::from(entry.generation) == generation {
            change(entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no panic while the lock is held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(cookie: u64) -> Completion {
        Completion { cookie, ..Completion::default() }
    }

    #[test]
    fn a_redirection_is_posted_then_told_in_parts() {
        let redirects = Redirects::default();
        let cookie = redirects.add(7).unwrap();
        assert_eq!(redirects.state(cookie), State::Asked);
        redirects.answered(&completion(cookie));
        assert_eq!(redirects.state(cookie), State::Posted);
        redirects.told(&RedirectDone::Copied { offset: 3, len: 5 }.completion(cookie));
        assert_eq!(redirects.state(cookie), State::Posted);
        redirects.told(&RedirectDone::Whole { len: 9 }.completion(cookie));
        assert_eq!(redirects.state(cookie), State::Over(Outcome::Whole { copied: vec![(3, 5)] }));
        assert!(!redirects.end_of(7), "it is over");
    }

    #[test]
    fn what_is_said_of_an_earlier_use_changes_nothing() {
        let redirects = Redirects::default();
        let first = redirects.add(7).unwrap();
        redirects.remove(first);
        redirects.told(&RedirectDone::Whole { len: 9 }.completion(first));
        let second = redirects.add(8).unwrap();
        assert_eq!(second as u32, first as u32, "the same entry again");
        redirects.told(&RedirectDone::Whole { len: 9 }.completion(first));
        let why = RedirectError::TableFull { max: 1 };
        redirects.answered(&Completion { cookie: first, status: why.code(), args: why.args(), value: 0 });
        redirects.told(&completion(u64::MAX));
        assert_eq!(redirects.state(second), State::Asked);
        redirects.answered(&Completion { cookie: second, status: why.code(), args: why.args(), value: 0 });
        assert_eq!(redirects.state(second), State::Over(Outcome::Refused(why)));
    }

    #[test]
    fn they_end_with_their_export_and_are_bounded() {
        let redirects = Redirects::default();
        let all: Vec<u64> = std::iter::from_fn(|| redirects.add(3)).collect();
        assert_eq!(all.len(), REDIRECTIONS_MAX);
        redirects.remove(all[1]);
        let other = redirects.add(4).unwrap();
        assert!(redirects.end_of(3));
        assert_eq!(redirects.state(all[0]), State::Over(Outcome::ExportEnded));
        redirects.answered(&completion(all[0]));
        assert_eq!(redirects.state(all[0]), State::Over(Outcome::ExportEnded));
        assert_eq!(redirects.state(other), State::Asked);
    }
}
