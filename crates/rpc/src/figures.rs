//! What a server counts: what became of calls, and how many there were of each method and how long
//! they took. Whoever looks after the node sees it too.
//!
//! Invariant: what is counted of a method costs an addition; while calls come one after the other,
//! the clock is read for one in [`CALLS_A_TIMED`]. Source: [GMS §4] counts of each kind of request.

use crate::limits::{CALLS_A_TIMED, METHODS_COUNTED_MAX, TIMED_AFTER};
use crate::server::ServerCounts;
use crate::wire::Status;
use std::time::Duration;
use vmmc::{ExportError, FigureKind, FigureOf, Published, Session};
use vmmc_host::Nanos;

/// What became of calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Handled,
    Done,
    Failed,
    Panicked,
    Busy,
    Late,
    Cancelled,
    PassedOn,
    Misbehaved,
}

const COUNTS: [&str; 9] =
    ["handled", "done", "failed", "panicked", "busy", "late", "cancelled", "passed_on", "misbehaved"];
/// Figures of a method.
const OF_METHOD: [(FigureKind, &str); 3] =
    [(FigureKind::Counter, "rpc_calls"), (FigureKind::Counter, "rpc_errors"), (FigureKind::Times, "rpc_answer")];
/// Methods that have no name of their own here.
const OTHERS: &str = "(others)";

const _: () = assert!(
    COUNTS.len() + OF_METHOD.len() * (METHODS_COUNTED_MAX + 1) <= vmmc_host::published::FIGURES_MAX,
    "all are published"
);

/// A method, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted(usize);

/// See the module page.
pub(crate) struct ServerFigures {
    published: Published,
    /// By number.
    methods: Vec<u16>,
}

impl ServerFigures {
    /// `methods`: their names. Those over the bound are counted as others.
    pub(crate) fn publish(
        session: &Session,
        service: &str,
        mut methods: Vec<(u16, String)>,
    ) -> Result<ServerFigures, ExportError> {
        methods.truncate(METHODS_COUNTED_MAX);
        methods.sort_by_key(|(number, _)| *number);
        methods.dedup_by_key(|(number, _)| *number);
        let counts = COUNTS.map(|item| FigureOf { kind: FigureKind::Counter, family: "rpc_outcomes", item });
        let names = methods.iter().map(|(_, name)| name.as_str()).chain([OTHERS]);
        let of_methods = names.flat_map(|item| OF_METHOD.map(|(kind, family)| FigureOf { kind, family, item }));
        let all: Vec<FigureOf<'_>> = counts.into_iter().chain(of_methods).collect();
        let published = session.publish(&format!("rpc.{service}"), &all)?;
        Ok(ServerFigures { published, methods: methods.iter().map(|(number, _)| *number).collect() })
    }

    pub(crate) fn add(&self, which: Count) {
        self.published.add(which as usize, 1);
    }

    /// It did not come to that.
    pub(crate) fn take_back(&self, which: Count) {
        self.published.add(which as usize, -1i64 as u64);
    }

    pub(crate) fn counts(&self) -> ServerCounts {
        let of = |which: Count| self.published.value(which as usize);
        ServerCounts {
            handled: of(Count::Handled),
            done: of(Count::Done),
            failed: of(Count::Failed),
            panicked: of(Count::Panicked),
            busy: of(Count::Busy),
            late: of(Count::Late),
            cancelled: of(Count::Cancelled),
            passed_on: of(Count::PassedOn),
            misbehaved: of(Count::Misbehaved),
        }
    }

    /// A method by its number.
    #[inline]
    pub(crate) fn of(&self, number: u16) -> Counted {
        let place = self.methods.binary_search(&number).unwrap_or(self.methods.len());
        Counted(COUNTS.len() + place * OF_METHOD.len())
    }

    /// A handler has begun. For one thread at a time.
    #[inline]
    pub(crate) fn begun(&self, Counted(at): Counted) {
        self.published.add_alone(Count::Handled as usize, 1);
        self.published.add_alone(at, 1);
    }

    /// A handler has answered; `took` since the call came, if that is known. For one thread at a
    /// time.
    #[inline]
    pub(crate) fn answered(&self, Counted(at): Counted, status: Status, took: Option<Duration>) {
        let which = match status {
            Status::Done => Count::Done,
            Status::Panicked => Count::Panicked,
            _ => Count::Failed,
        };
        self.published.add_alone(which as usize, 1);
        if !matches!(which, Count::Done) {
            self.published.add_alone(at + 1, 1);
        }
        if let Some(took) = took {
            self.published.time(at + 2, took);
        }
    }
}

/// Which calls are timed: those that come a moment after the one before, and some of the others.
#[derive(Default)]
pub(crate) struct Timed {
    last: Nanos,
    untimed: u32,
}

impl Timed {
    /// Whether the call that comes at about this time is.
    #[inline]
    pub(crate) fn is_due(&mut self, now: Nanos) -> bool {
        self.untimed += 1;
        let due = self.untimed >= CALLS_A_TIMED || now.since(self.last) >= TIMED_AFTER;
        self.last = now;
        if due {
            self.untimed = 0;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_timed_after_a_pause_and_one_of_many_without() {
        let (mut timed, mut now) = (Timed::default(), Nanos(1) + TIMED_AFTER);
        assert!(timed.is_due(now));
        for _ in 0..3 {
            assert!((1..CALLS_A_TIMED).all(|_| !timed.is_due(now)) && timed.is_due(now));
        }
        now = now + TIMED_AFTER;
        assert!(timed.is_due(now) && !timed.is_due(now));
    }
}
