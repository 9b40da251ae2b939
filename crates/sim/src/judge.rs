//! Shows every observation to every checker, then to the model, and keeps the first verdict.
//!
//! Invariant: after the first failure nothing more is judged, so the failure told is the cause and
//! not a consequence.

use std::fmt;

use crate::checkers::{self, Checker};
use crate::model::{Model, Seen, WriteRole};
use crate::trace::Trace;

/// A checker's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) checker: &'static str,
    pub(crate) message: String,
}

/// The checkers, the trace, and the first failure.
pub(crate) struct Judge {
    checkers: Vec<Box<dyn Checker>>,
    pub(crate) trace: Trace,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) deposited_bytes: u64,
}

impl Judge {
    pub(crate) fn new(trace_lines: usize) -> Judge {
        Judge { checkers: checkers::all(), trace: Trace::new(trace_lines), verdict: None, deposited_bytes: 0 }
    }

    /// Judges an observation and lets the model learn from it.
    pub(crate) fn see(&mut self, model: &mut Model, seen: &Seen) {
        self.record(model, seen);
        if self.verdict.is_none() {
            for checker in &mut self.checkers {
                if let Err(message) = checker.observe(model, seen) {
                    self.verdict = Some(Verdict { checker: checker.name(), message });
                    break;
                }
            }
        }
        model.take(seen);
    }

    /// Remembers something that is no observation of an engine.
    pub(crate) fn note(&mut self, model: &Model, text: fmt::Arguments<'_>) {
        self.trace.line(model.now_ns, text);
    }

    fn record(&mut self, model: &Model, seen: &Seen) {
        let now_ns = model.now_ns;
        match seen {
            Seen::Write { node, len, role } => {
                if !matches!(role, WriteRole::Stray(_)) {
                    self.deposited_bytes += len;
                }
                self.trace.digest(&[1, now_ns, *node as u64, *len]);
            }
            Seen::Read { node, len, .. } => self.trace.digest(&[2, now_ns, *node as u64, *len]),
            Seen::Atomic { node, old, .. } => self.trace.digest(&[3, now_ns, *node as u64, *old]),
            Seen::Completed { op, result } => {
                let value = result.map_or_else(|why| u64::from(why.code()) | 1 << 63, |value| value);
                self.trace.digest(&[4, now_ns, u64::from(op.0), value]);
            }
            Seen::Quiescent | Seen::Level { .. } | Seen::Step => return,
            _ => self.trace.digest(&[5, now_ns]),
        }
        self.trace.line(now_ns, format_args!("{seen:?}"));
    }
}
