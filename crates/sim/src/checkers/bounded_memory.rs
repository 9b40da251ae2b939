//! Bounded memory: every queue and table of an engine stays within its named limit, whatever peers
//! and processes do.

use super::{Checker, require};
use crate::model::{Model, Seen};

pub(crate) struct BoundedMemory;

impl Checker for BoundedMemory {
    fn name(&self) -> &'static str {
        "bounded-memory"
    }

    fn observe(&mut self, _model: &Model, seen: &Seen) -> Result<(), String> {
        let Seen::Level { node, what, value, bound } = seen else { return Ok(()) };
        require(value <= bound, || format!("node {node} holds {value} {what}, the limit is {bound}"))
    }
}
