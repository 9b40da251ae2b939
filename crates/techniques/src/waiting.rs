//! Waits for words that the other side of a channel changes.
//!
//! Invariant: every wait ends by its deadline, and looks in between whether the other side is
//! there. Source: ARCHITECTURE.md, "Where threads sleep".

use crate::Error;
use crate::limits::{POLLS, SLEEP_MAX, SLEEP_MIN, YIELDS};
use std::time::Duration;
use vmmc::{Deadline, Nanos, Session};

/// A time until which a wait may last, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    begun: Nanos,
    pub(crate) end: Deadline,
}

impl Limit {
    pub(crate) fn within(session: &Session, time: Duration) -> Limit {
        Limit { begun: now(session), end: session.deadline(time) }
    }

    pub(crate) fn is_over(&self, session: &Session) -> bool {
        self.end.left(now(session)).is_none()
    }

    /// Time that is left, at most so much of it.
    pub(crate) fn slice(&self, session: &Session, most: Duration) -> Deadline {
        self.end.min(session.deadline(most))
    }

    pub(crate) fn error(&self, session: &Session, name: &str, what: &'static str) -> Error {
        let after_ms = now(session).since(self.begun).as_millis().try_into().unwrap_or(u64::MAX);
        Error::TimedOut { name: name.to_string(), what, after_ms }
    }
}

fn now(session: &Session) -> Nanos {
    session.deadline(Duration::ZERO).0
}

/// Polls, yields, then sleeps until there is something; nothing by the deadline.
pub(crate) fn poll<T>(
    session: &Session,
    limit: &Limit,
    mut look: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let (mut looks, mut sleep) = (0u32, SLEEP_MIN);
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        looks = looks.saturating_add(1);
        if looks < POLLS {
            std::hint::spin_loop();
            continue;
        }
        session.step();
        if limit.is_over(session) {
            return Ok(None);
        }
        if looks < POLLS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(sleep);
            sleep = (sleep * 2).min(SLEEP_MAX);
        }
    }
}
