//! The dynamic limit in a simulation: processes that are asked give back at once, victims chosen by
//! their own policy. [UTLB §3.4]
//!
//! Invariant: after [`make_room`] the process may pin the pages that it misses, if need be by
//! evicting its own.

use super::node::{Engine, Member};
use crate::budget::{Budget, BudgetAction, Decision};
use crate::ids::{Pages, Process};

/// Gets as much of the node's memory for the missing pages as the budget allows; the rest the
/// process evicts itself.
pub(super) fn make_room(
    budget: &mut Budget,
    members: &mut [Option<Box<Member>>],
    engine: &mut Engine,
    process: Process,
    pages: Pages,
    time_ns: u64,
) {
    let now_us = time_ns / 1000;
    let me = members[usize::from(process.0)].as_ref().expect("it looks pages up");
    let missing = pages.iter().filter(|page| !me.user.is_pinned(*page)).count();
    // Pages of an earlier limit that are not used now count first.
    let spare = budget.granted(process).saturating_sub(me.user.len());
    for _ in spare..missing {
        match budget.request(process, 1, now_us) {
            Ok(Decision::Granted) => (),
            Ok(Decision::Wait) => serve(budget, members, engine, now_us),
            // Above its share, or more processes than pages.
            Ok(Decision::EvictOwn) | Err(_) => break,
        }
    }
    let me = members[usize::from(process.0)].as_mut().expect("it looks pages up");
    me.user.set_limit(Some(budget.granted(process).max(1)));
}

fn serve(budget: &mut Budget, members: &mut [Option<Box<Member>>], engine: &mut Engine, now_us: u64) {
    while let Some(action) = budget.poll(now_us) {
        let BudgetAction::Ask { process, pages, .. } = action else { continue };
        let member = members[usize::from(process.0)].as_mut().expect("it has pages");
        // What was granted and is not pinned costs nothing to give back.
        let idle = budget.granted(process).saturating_sub(member.user.len()).min(pages);
        let mut unpinned = Vec::new();
        member.user.evict(pages - idle, &mut unpinned);
        unpinned.iter().for_each(|unpin| engine.unpinned(process, *unpin, &mut member.table));
        let returned = idle + unpinned.len();
        member.user.set_limit(Some(budget.granted(process) - returned));
        budget.released(process, returned, now_us);
    }
}
