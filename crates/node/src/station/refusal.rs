//! What a process is told when its call fails: a code for programs, a sentence for people.
//!
//! The engine gives codes and what it knows of a failure. Whatever a sentence says about the
//! command `vmmc` and its options is added here.
//!
//! Invariant: every message names the thing and the numbers, and says what to do next.

use super::memory::MemoryError;
use crate::limits::HELD_UP_MAX;
use std::time::Duration;
use vmmc_host::control::{Refusal, RefusalCode};
use vmmc_host::region::RegionError;
use vmmc_nic::{
    ActivationRefusal, AttachError, ExportError, ImportError, RedirectError, RejectReason, UnexportError, UnimportError,
};

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
    let why = why_not_imported(error);
    let message = if node.is_empty() { format!("{what}: {why}") } else { format!("{what} on node {node}: {why}") };
    refusal(code, message)
}

/// The whole sentence about an import that was not granted.
fn why_not_imported(error: &ImportError) -> String {
    match *error {
        ImportError::NobodyVouches => {
            "its node is in plain mode, where nobody vouches for who asks: export it to anyone, give both nodes the cluster key, or start its node with --plain-trust-users".into()
        }
        ImportError::NoSession { hint: hint @ RejectReason::OtherKey, .. } => {
            format!("{error}; the node answers, but {}", rejection(hint))
        }
        ImportError::NoSession { hint, .. } => {
            format!("{error}; the node answers and says, without proof, that {}", rejection(hint))
        }
        ImportError::Rejected(why) => format!("{error}: {}", rejection(why)),
        ImportError::NotStarted(why) => format!("{error}: {}", not_started(why)),
        _ => error.to_string(),
    }
}

/// Why a node refused a handshake.
pub(super) fn rejection(why: RejectReason) -> &'static str {
    match why {
        RejectReason::Version => "it speaks another protocol version; run the same release on both",
        RejectReason::NeedsKey => {
            "it wants encrypted traffic and this node is in plain mode; give this node the cluster key"
        }
        RejectReason::PlainOnly => "it is in plain mode and this node encrypts; use the same mode on both",
        RejectReason::DuplicateName => {
            "another live node of the cluster has the same name; give each its own (`vmmc node start --as NAME`)"
        }
        RejectReason::PeerTableFull => "its peer table is full; remove peers there",
        RejectReason::OtherKey => {
            "its packets do not open with this node's cluster key and this node's not with its key; give both nodes the same key file (`--key-file`)"
        }
        RejectReason::NoCommonCipher => {
            "it takes no cipher that this node takes; start both with --cipher and one of them, or any"
        }
    }
}

/// Why a node does not bring up an on-demand export, which is a supervisor's.
fn not_started(why: ActivationRefusal) -> &'static str {
    match why {
        ActivationRefusal::Never => {
            "it starts no processes (it is embedded in a program, or was told not to); use a node that `vmmc node start` started"
        }
        ActivationRefusal::Plain => {
            "it is in plain mode, where anybody on the wire could ask; give the nodes a cluster key, or start it with --plain-run"
        }
        ActivationRefusal::OtherUser => {
            "it belongs to another user and may not start processes for this one; ask that user, or use a node that root runs"
        }
        ActivationRefusal::TooMany => "as many jobs as it allows run there already; let some end",
        ActivationRefusal::Failed => {
            "its program `vmmc` cannot be executed; the notes of that node (`vmmc node status` there) say why"
        }
        ActivationRefusal::Ended => {
            "the supervisor that it had started ended before it served; the notes of that node (`vmmc node status` there) say how; run the job again"
        }
    }
}

pub(super) fn attach(error: &AttachError) -> Refusal {
    let AttachError::TableFull { max } = error;
    let message = format!(
        "{max} processes are attached to this node already; end some, or use more nodes (`vmmc run --nodes 2`, `vmmc run --hosts FILE`)"
    );
    refusal(RefusalCode::TableFull, message)
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
        RedirectError::OutOfBounds { .. } | RedirectError::NoSuchPlace { .. } => RefusalCode::OutOfBounds,
        RedirectError::Overlap { .. } => RefusalCode::Busy,
        RedirectError::TableFull { .. }
        | RedirectError::ProcessFull { .. }
        | RedirectError::TooFragmented { .. }
        | RedirectError::Share { .. } => RefusalCode::TableFull,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_says_in_codes_users_read_in_sentences() {
        let read = |error: ImportError| import(&error, "import \"x\"", "far").message;
        let hinted = |hint| read(ImportError::NoSession { after_ms: 7, hint });
        let sealed = "it is in plain mode and this node encrypts; use the same mode on both";
        let other_key = "its packets do not open with this node's cluster key and this node's not with its key; \
            give both nodes the same key file (`--key-file`)";
        let sentences = [
            (
                hinted(RejectReason::PlainOnly),
                format!("no session within 7 ms; the node answers and says, without proof, that {sealed}"),
            ),
            (hinted(RejectReason::OtherKey), format!("no session within 7 ms; the node answers, but {other_key}")),
            (
                read(ImportError::Rejected(RejectReason::PlainOnly)),
                format!("the node refused the connection: {sealed}"),
            ),
            (
                read(ImportError::NotStarted(ActivationRefusal::TooMany)),
                "the node started no process: as many jobs as it allows run there already; let some end".into(),
            ),
            (
                read(ImportError::NobodyVouches),
                "its node is in plain mode, where nobody vouches for who asks: export it to anyone, give both nodes \
                 the cluster key, or start its node with --plain-trust-users"
                    .into(),
            ),
        ];
        for (said, sentence) in sentences {
            assert_eq!(said, format!("import \"x\" on node far: {sentence}"));
        }
        assert_eq!(
            attach(&AttachError::TableFull { max: 9 }).message,
            "9 processes are attached to this node already; end some, or use more nodes (`vmmc run --nodes 2`, \
             `vmmc run --hosts FILE`)"
        );
    }
}
