//! One checker per property, run on every observation.
//!
//! Invariant: a checker sees an observation before the model takes it in, never changes the model,
//! and judges one property only, so that a failure names what was broken. Each has a planted bug in
//! the crate's tests that it finds.

mod bounded_memory;
mod channel_order;
mod confinement;
mod exactly_once;
mod honest_errors;
mod notification;
mod progress;
mod redirection;
mod revocation;
mod rings;
mod tokens;

use crate::model::{Model, Seen};
pub(crate) use progress::{bound_ns, is_decided};

/// A property of the cluster.
pub(crate) trait Checker {
    /// How failures name it.
    fn name(&self) -> &'static str;

    /// Judges one observation; `Err` says what was expected and what was seen.
    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String>;
}

/// All checkers, in the order in which they get to judge.
pub(crate) fn all() -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(confinement::Confinement),
        Box::new(revocation::Revocation),
        Box::new(exactly_once::ExactlyOnce),
        Box::new(channel_order::ChannelOrder),
        Box::new(notification::Notification::default()),
        Box::new(rings::Rings),
        Box::new(tokens::Tokens),
        Box::new(redirection::Redirection),
        Box::new(honest_errors::HonestErrors),
        Box::new(progress::Progress),
        Box::new(bounded_memory::BoundedMemory),
    ]
}

/// `Err(message)` unless `holds`.
fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}
