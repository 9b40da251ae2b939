//! Progress: a deadline is kept at any time, and once the faults have ended everything outstanding
//! is decided within a bound: operations complete or fail, importers of dead exports are told.

use super::{Checker, require};
use crate::limits::{DEAD_PEER_SLACK_NS, DEADLINE_SLACK_NS, PROGRESS_GRACE};
use crate::model::{ExportEnd, ImportState, Model, Seen};

pub(crate) struct Progress;

impl Checker for Progress {
    fn name(&self) -> &'static str {
        "progress"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Step => deadlines_are_kept(model),
            Seen::End => everything_is_decided(model),
            _ => Ok(()),
        }
    }
}

/// The simulated time by which everything must be decided.
pub(crate) fn bound_ns(model: &Model) -> u64 {
    let healed_ns = model.healed_at_ns.unwrap_or(u64::MAX / 2);
    healed_ns + 2 * model.peer_timeout_ns + PROGRESS_GRACE.as_nanos() as u64
}

/// Whether nothing is outstanding any more.
pub(crate) fn is_decided(model: &Model) -> bool {
    // The cheap question first: this is asked after every event.
    model.open_ops.is_empty()
        && model.asked_imports.iter().all(|&i| model.imports[i].state != ImportState::Asked)
        && everything_is_decided(model).is_ok()
}

fn deadlines_are_kept(model: &Model) -> Result<(), String> {
    let now_ns = model.now_ns.saturating_sub(DEADLINE_SLACK_NS);
    let wait_limit_ns = model.peer_timeout_ns + DEAD_PEER_SLACK_NS;
    for &(_, key) in &model.open_ops {
        let op = &model.ops[key];
        let died_ns =
            op.export.and_then(|e| model.exports[e].ended).filter(|e| e.1 == ExportEnd::NodeCrashed).map(|e| e.0);
        let waited_ns = died_ns.map_or(0, |at| model.now_ns - at.max(op.posted_at_ns));
        require(waited_ns <= wait_limit_ns, || {
            format!("{key} is outstanding {} ms after the node of its export died", waited_ns / 1_000_000)
        })?;
    }
    for &key in &model.asked_imports {
        let import = &model.imports[key];
        require(import.deadline_ns >= now_ns || import.state != ImportState::Asked, || {
            format!("{key} has not been answered {} us after its deadline", (model.now_ns - import.deadline_ns) / 1000)
        })?;
    }
    for &key in &model.open_pings {
        let ping = &model.pings[key];
        require(ping.deadline_ns >= now_ns || ping.answered, || {
            format!(
                "ping {key} has not been answered {} us after its deadline",
                (model.now_ns - ping.deadline_ns) / 1000
            )
        })?;
    }
    Ok(())
}

fn everything_is_decided(model: &Model) -> Result<(), String> {
    let healed_ns = model.healed_at_ns.unwrap_or(model.now_ns);
    let since = || format!("{} ms after the faults ended", (model.now_ns - healed_ns) / 1_000_000);
    if let Some(&(_, key)) = model.open_ops.first() {
        let op = &model.ops[key];
        return Err(format!(
            "{key} ({:?} of {} bytes by {}, posted at {} us) is still outstanding {}",
            op.kind,
            op.len,
            op.sender,
            op.posted_at_ns / 1000,
            since()
        ));
    }
    for &key in &model.asked_imports {
        let open = model.imports[key].state == ImportState::Asked;
        require(!open, || format!("{key} is still not answered {}", since()))?;
    }
    if let Some(&key) = model.open_pings.iter().find(|&&p| !model.pings[p].answered) {
        return Err(format!("ping {key} is still not answered {}", since()));
    }
    for (key, import) in model.imports.iter() {
        let dead = import.export.filter(|&e| !model.exports[e].is_live());
        require(dead.is_none() || import.state != ImportState::Granted, || {
            format!("{key} has not been told that {} is gone, {}", dead.expect("just tested"), since())
        })?;
    }
    Ok(())
}
