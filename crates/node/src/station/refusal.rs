//! What a process is told when its call fails: a code for programs, a sentence for people.
//!
//! Invariant: every message names the thing and the numbers, and says what to do next.

use super::memory::MemoryError;
use crate::limits::HELD_UP_MAX;
use std::time::Duration;
use vmmc_host::control::{Refusal, RefusalCode};
use vmmc_host::region::RegionError;
use vmmc_nic::{ExportError, ImportError, RedirectError, RejectReason, UnexportError, UnimportError};

pub(super) fn refusal(code: RefusalCode, message: impl Into<String>) -> Refusal {
    Refusal { code, message: message.into() }
}

pub(super) fn invalid(message: impl Into<String>) -> Refusal {
    refusal(RefusalCode::Invalid, message)
}

/// A call came without the descriptors that its sender gave it.
pub(super) fn descriptors_lost() -> Refusal {
    refusal(
        RefusalCode::MemoryShort,
        "descriptors of this call are lost: too many came with it, or the node can have no more; release regions, or raise the node's limit (`ulimit -n`)",
    )
}

/// A descriptor of no kind that a call takes.
pub(super) fn strange_descriptor() -> Refusal {
    refusal(
        RefusalCode::BadRegion,
        "a descriptor that came with this call is no memory of this interface; pass a sealed memfd",
    )
}

/// Replies with descriptors that nobody collects.
pub(super) fn uncollected() -> Refusal {
    refusal(
        RefusalCode::TableFull,
        "too many answers to this process wait to be collected; collect them, then import again",
    )
}

/// The node is not for this user.
pub(super) fn not_served(node: &str, owner: u32, uid: u32) -> Refusal {
    let message = format!(
        "node {node:?} of user {owner} does not serve user {uid}; use a node of your own (`vmmc node start`), or ask user {owner} to start it with `--serve {uid}`"
    );
    refusal(RefusalCode::NotPermitted, message)
}

/// Memory of this user kept the node waiting.
pub(super) fn held_up(uid: u32, left: Duration) -> Refusal {
    let message = format!(
        "memory of user {uid} kept the node waiting for more than {} ms, as holes do that are punched into what the node has mapped; the user is served again in {} s",
        HELD_UP_MAX.as_millis(),
        left.as_secs().max(1)
    );
    refusal(RefusalCode::NotPermitted, message)
}

pub(super) fn import(error: &ImportError, what: &str, node: &str) -> Refusal {
    let code = match error {
        ImportError::NoSuchExport | ImportError::OtherOwner { .. } => RefusalCode::UnknownName,
        ImportError::StaleExport { .. } => RefusalCode::Stale,
        ImportError::NotPermitted { .. } | ImportError::NobodyVouches => RefusalCode::NotPermitted,
        ImportError::NoRight { .. } => RefusalCode::NoRight,
        ImportError::TimedOut { .. } => RefusalCode::TimedOut,
        ImportError::UnknownNode => RefusalCode::UnknownNode,
        ImportError::NodeUnreachable { .. } => RefusalCode::Unreachable,
        ImportError::Rejected(RejectReason::Version) | ImportError::NoSession { hint: RejectReason::Version, .. } => {
            RefusalCode::Version
        }
        ImportError::NoSession { .. } => RefusalCode::Unreachable,
        ImportError::Rejected(RejectReason::PeerTableFull) | ImportError::TableFull { .. } => RefusalCode::TableFull,
        ImportError::Rejected(_) => RefusalCode::Unreachable,
        ImportError::NotStarted(_) => RefusalCode::NotStarted,
        ImportError::NotAttached | ImportError::Cancelled | ImportError::BadRequest => RefusalCode::Invalid,
    };
    let message = if node.is_empty() { format!("{what}: {error}") } else { format!("{what} on node {node}: {error}") };
    refusal(code, message)
}

pub(super) fn ping(error: &ImportError, node: &str) -> Refusal {
    let found = import(error, "ping", node);
    match error {
        ImportError::TimedOut { waited_ms } => refusal(
            RefusalCode::TimedOut,
            format!("node {node} has not answered within {waited_ms} ms; check that it runs, and the address"),
        ),
        _ => found,
    }
}

pub(super) fn export(error: &ExportError) -> Refusal {
    let code = match error {
        ExportError::NameTaken { .. } => RefusalCode::NameTaken,
        ExportError::BadLength { .. } => RefusalCode::OutOfBounds,
        ExportError::TableFull { .. } | ExportError::TooManyUsers { .. } => RefusalCode::TableFull,
        _ => RefusalCode::Invalid,
    };
    refusal(code, error.to_string())
}

pub(super) fn unexport(error: &UnexportError) -> Refusal {
    refusal(RefusalCode::Stale, error.to_string())
}

pub(super) fn unimport(error: &UnimportError) -> Refusal {
    refusal(RefusalCode::Stale, error.to_string())
}

pub(super) fn redirect(error: &RedirectError) -> Refusal {
    let code = match error {
        RedirectError::NoSuchExport { .. } | RedirectError::NoSuchRedirect { .. } => RefusalCode::Stale,
        RedirectError::NotRedirectable { .. } => RefusalCode::Invalid,
        RedirectError::OutOfBounds { .. } => RefusalCode::OutOfBounds,
        RedirectError::Overlap { .. } => RefusalCode::Busy,
        RedirectError::TableFull { .. } => RefusalCode::TableFull,
    };
    refusal(code, error.to_string())
}

pub(super) fn memory(error: &MemoryError) -> Refusal {
    let code = match error {
        MemoryError::TableFull => RefusalCode::TableFull,
        MemoryError::NoSuchRegion { .. } => RefusalCode::Stale,
        MemoryError::InUse { .. } => RefusalCode::Busy,
        MemoryError::NoSuchPages { .. } => RefusalCode::OutOfBounds,
        MemoryError::BadRun { .. } => RefusalCode::Invalid,
        MemoryError::Spread { .. } => RefusalCode::TableFull,
        MemoryError::Region(RegionError::MemoryShort { .. }) => RefusalCode::MemoryShort,
        MemoryError::Region(_) => RefusalCode::BadRegion,
    };
    refusal(code, error.to_string())
}

/// The node itself lacks something: memory, descriptors.
pub(super) fn shortage(what: &str, error: impl std::fmt::Display) -> Refusal {
    refusal(
        RefusalCode::MemoryShort,
        format!("the node could not make {what}: {error}; `vmmc doctor` shows its limits"),
    )
}
