//! Which statuses a call of the C interface can end with, for its man page.
//!
//! Invariant: a call's list is the sum of what its declaration says (handles, pointers) and of the
//! rows below whose pattern fits its name; every status stands on some page. Source: `kind.rs` of
//! `crates/vmmc` and `crates/job`, which give the errors of each operation their kinds, and
//! `bindings/c/src`; `man_kinds.rs` holds the rows against them.

/// What every call to the node may end with.
const NODE: &[&str] = &["NODE_GONE", "TIMED_OUT", "FORKED", "VERSION"];
/// Transfers, with whatever they carry.
const TRANSFER: &[&str] = &[
    "OUT_OF_BOUNDS",
    "NO_RIGHT",
    "REVOKED",
    "OWNER_DIED",
    "NODE_GONE",
    "NODE_UNREACHABLE",
    "NODE_RESTARTED",
    "TIMED_OUT",
    "FULL",
    "MEMORY_SHORT",
    "FORKED",
    "VERSION",
];
const NEW_EXPORT: &[&str] = &["NAME_TAKEN", "FULL", "MEMORY_SHORT", "SYSTEM"];
const NEW_IMPORT: &[&str] = &[
    "UNKNOWN_NAME",
    "UNKNOWN_NODE",
    "NOT_PERMITTED",
    "NO_RIGHT",
    "STALE",
    "NODE_UNREACHABLE",
    "NODE_RESTARTED",
    "FULL",
    "MEMORY_SHORT",
    "SYSTEM",
];
const ATTACH: &[&str] = &["NO_NODE", "NOT_PERMITTED", "FULL", "SYSTEM"];
const WAIT: &[&str] = &["TIMED_OUT", "NODE_GONE", "FORKED", "SYSTEM"];
const RANK: &[&str] = &["OUT_OF_BOUNDS"];
/// Remote calls that cannot be made.
const CALL: &[&str] = &[
    "ARGUMENTS_TOO_LONG",
    "TIMED_OUT",
    "FULL",
    "MEMORY_SHORT",
    "SYSTEM",
    "OWNER_DIED",
    "NODE_GONE",
    "NODE_UNREACHABLE",
    "NODE_RESTARTED",
    "FORKED",
    "VERSION",
];
/// Bytes of a region that a bulk result cannot land in.
const REGION: &[&str] = &["OUT_OF_BOUNDS", "BUSY"];
/// What their servers, and the ways to those, make of them.
const ANSWER: &[&str] = &[
    "NO_METHOD",
    "BAD_ARGUMENTS",
    "SERVER_BUSY",
    "TIMED_OUT",
    "CANCELLED",
    "FAILED",
    "PANICKED",
    "NO_ANSWER",
    "BAD_RESULT",
    "RESULT_TOO_LONG",
    "BULK_DROPPED",
    "LOST",
    "NODE_GONE",
    "FORKED",
    "VERSION",
];

/// Patterns of names (`*` stands for anything) and what they add.
const ROWS: &[(&str, &[&str])] = &[
    ("vmmc_session_attach", ATTACH),
    ("vmmc_session_attach", NODE),
    ("vmmc_node_attach", NODE),
    ("vmmc_node_attach", &["MEMORY_SHORT", "SYSTEM"]),
    ("vmmc_node_start", &["NO_NODE"]),
    ("vmmc_node_start_daemon", &["NO_NODE", "SYSTEM"]),
    ("vmmc_node_run", &["NO_NODE"]),
    ("vmmc_session_set_pinned_max", &["BUSY"]),
    ("vmmc_session_node_info", NODE),
    ("vmmc_session_node_of", NODE),
    ("vmmc_session_ping", NODE),
    ("vmmc_session_ping", &["UNKNOWN_NODE", "NODE_UNREACHABLE", "NODE_RESTARTED"]),
    ("vmmc_session_add_peer", NODE),
    ("vmmc_session_add_peer", &["FULL", "NOT_PERMITTED"]),
    ("vmmc_session_stop_node", NODE),
    ("vmmc_session_stop_node", &["NOT_PERMITTED"]),
    ("vmmc_session_event_fd", &["FORKED", "SYSTEM"]),
    ("vmmc_session_forget", NODE),
    ("vmmc_table_create", NODE),
    ("vmmc_table_create", &["INVALID", "MEMORY_SHORT"]),
    ("vmmc_table_place", NODE),
    ("vmmc_table_place", &["INVALID", "UNSUITABLE", "FULL", "MEMORY_SHORT"]),
    ("vmmc_table_remove", NODE),
    ("vmmc_table_remove", &["INVALID"]),
    ("vmmc_export_create", NODE),
    ("vmmc_export_create", NEW_EXPORT),
    ("vmmc_export_memory", NODE),
    ("vmmc_export_memory", NEW_EXPORT),
    ("vmmc_export_memory", &["UNSUITABLE"]),
    ("vmmc_export_buffer", NODE),
    ("vmmc_export_buffer", NEW_EXPORT),
    ("vmmc_export_buffer", &["UNSUITABLE"]),
    ("vmmc_job_export", NODE),
    ("vmmc_job_export", NEW_EXPORT),
    ("vmmc_export_unexport", NODE),
    ("vmmc_export_unexport", &["BUSY", "UNSUITABLE", "MEMORY_SHORT"]),
    ("vmmc_export_read", &["OUT_OF_BOUNDS", "FORKED"]),
    ("vmmc_export_write", &["OUT_OF_BOUNDS", "FORKED"]),
    ("vmmc_export_load", &["OUT_OF_BOUNDS", "MISALIGNED", "FORKED"]),
    ("vmmc_export_store", &["OUT_OF_BOUNDS", "MISALIGNED", "FORKED"]),
    ("vmmc_export_wait_word", &["OUT_OF_BOUNDS", "MISALIGNED"]),
    ("vmmc_export_wait_word", WAIT),
    ("vmmc_*_wait_notification", WAIT),
    ("vmmc_export_wait_notification", &["NOT_ALLOWED"]),
    ("vmmc_*_take_notification", &["AGAIN"]),
    ("vmmc_*_on_notification", &["FORKED", "SYSTEM"]),
    ("vmmc_export_on_notification", &["NOT_ALLOWED"]),
    ("vmmc_export_redirect", NODE),
    ("vmmc_export_redirect", &["OUT_OF_BOUNDS", "FOREIGN", "FULL", "BUSY"]),
    ("vmmc_export_post_redirect", NODE),
    ("vmmc_export_post_redirect", &["OUT_OF_BOUNDS", "FOREIGN", "FULL"]),
    ("vmmc_ring_create", NODE),
    ("vmmc_ring_create", NEW_EXPORT),
    ("vmmc_ring_take", &["AGAIN", "BUSY", "FORKED"]),
    ("vmmc_ring_wait", WAIT),
    ("vmmc_ring_wait", &["BUSY"]),
    ("vmmc_endpoint_create*", NODE),
    ("vmmc_endpoint_create*", NEW_EXPORT),
    ("vmmc_endpoint_token_buffer", &["FULL", "FORKED", "VERSION"]),
    ("vmmc_token_buffer_read", &["OUT_OF_BOUNDS", "FORKED"]),
    ("vmmc_token_buffer_poll", &["AGAIN", "FORKED"]),
    ("vmmc_token_buffer_wait", WAIT),
    ("vmmc_token_buffer_cancel", &["FORKED"]),
    ("vmmc_endpoint_poll", &["AGAIN", "BUSY", "FULL", "FORKED"]),
    ("vmmc_endpoint_wait", WAIT),
    ("vmmc_endpoint_wait", &["BUSY", "FULL"]),
    ("vmmc_endpoint_event_fd", &["BUSY", "NOT_ALLOWED"]),
    ("vmmc_endpoint_get_counts", &["BUSY"]),
    ("vmmc_frame_read", &["OUT_OF_BOUNDS"]),
    ("vmmc_connection_open", NODE),
    ("vmmc_connection_open", NEW_IMPORT),
    ("vmmc_connection_open", TRANSFER),
    ("vmmc_connection_open", &["FULL", "VERSION", "NOT_ALLOWED"]),
    ("vmmc_connection_send*", TRANSFER),
    ("vmmc_connection_send*", &["BUSY", "FULL"]),
    ("vmmc_connection_send_from", &["OUT_OF_BOUNDS"]),
    ("vmmc_connection_send_by_token_from", &["OUT_OF_BOUNDS"]),
    ("vmmc_connection_check", &["BUSY"]),
    ("vmmc_connection_check", &["REVOKED", "OWNER_DIED", "NODE_GONE", "NODE_UNREACHABLE", "NODE_RESTARTED"]),
    ("vmmc_connection_check", &["FORKED", "VERSION"]),
    ("vmmc_connection_payload_max", &["BUSY"]),
    ("vmmc_connection_outstanding", TRANSFER),
    ("vmmc_connection_outstanding", &["BUSY"]),
    ("vmmc_connection_flush", TRANSFER),
    ("vmmc_connection_flush", &["BUSY"]),
    ("vmmc_rpc_client_connect", NODE),
    ("vmmc_rpc_client_connect", NEW_EXPORT),
    ("vmmc_rpc_client_connect", NEW_IMPORT),
    ("vmmc_rpc_client_connect", TRANSFER),
    ("vmmc_rpc_client_call", CALL),
    ("vmmc_rpc_client_call", ANSWER),
    ("vmmc_rpc_client_call", REGION),
    ("vmmc_rpc_client_start", CALL),
    ("vmmc_rpc_client_start", REGION),
    ("vmmc_rpc_client_then", CALL),
    ("vmmc_rpc_client_then", REGION),
    ("vmmc_rpc_client_then", &["INVALID"]),
    ("vmmc_rpc_client_region", NODE),
    ("vmmc_rpc_client_region", &["FULL", "MEMORY_SHORT", "SYSTEM"]),
    ("vmmc_rpc_client_poll", &["FORKED"]),
    ("vmmc_rpc_client_background", &["SYSTEM", "FORKED", "VERSION"]),
    ("vmmc_rpc_client_outstanding", &["FORKED"]),
    ("vmmc_rpc_client_free", &["BUSY"]),
    ("vmmc_rpc_pending_poll", ANSWER),
    ("vmmc_rpc_pending_poll", &["AGAIN", "BUSY", "STALE"]),
    ("vmmc_rpc_pending_wait", ANSWER),
    ("vmmc_rpc_pending_wait", &["AGAIN", "BUSY", "STALE"]),
    ("vmmc_rpc_answer_read_bulk", &["OUT_OF_BOUNDS", "FORKED"]),
    ("vmmc_rpc_server_create", NODE),
    ("vmmc_rpc_server_create", NEW_EXPORT),
    ("vmmc_rpc_server_get_counts", &["FORKED"]),
    ("vmmc_rpc_server_is_serving", &["FORKED"]),
    ("vmmc_rpc_server_free", &["BUSY"]),
    ("vmmc_rpc_call_read_bulk", &["OUT_OF_BOUNDS", "STALE", "FORKED"]),
    ("vmmc_rpc_call_left", &["STALE", "FORKED"]),
    ("vmmc_rpc_call_cancelled", &["STALE", "FORKED"]),
    ("vmmc_rpc_call_defer", &["STALE", "FORKED"]),
    ("vmmc_rpc_call_answer*", &["STALE", "FORKED"]),
    ("vmmc_rpc_call_answer_from", &["OUT_OF_BOUNDS"]),
    ("vmmc_rpc_call_fail", &["STALE", "FORKED"]),
    ("vmmc_rpc_call_refuse", &["INVALID", "STALE", "FORKED"]),
    ("vmmc_rpc_call_pass_on", CALL),
    ("vmmc_rpc_call_pass_on", &["STALE"]),
    ("vmmc_rpc_call_free", &["STALE", "FORKED"]),
    ("vmmc_wait_any", WAIT),
    ("vmmc_wait_any", &["OUT_OF_BOUNDS", "MISALIGNED", "NOT_ALLOWED", "FOREIGN", "BUSY"]),
    ("vmmc_export_consume", NODE),
    ("vmmc_export_consume", &["INVALID", "OUT_OF_BOUNDS"]),
    ("vmmc_redirection_report", NODE),
    ("vmmc_redirection_report", &["STALE", "FULL", "BUSY"]),
    ("vmmc_redirection_wait", NODE),
    ("vmmc_redirection_wait", &["STALE", "FULL", "BUSY"]),
    ("vmmc_redirection_cancel", NODE),
    ("vmmc_redirection_cancel", &["STALE", "FULL", "BUSY"]),
    ("vmmc_buffer_create", NODE),
    ("vmmc_buffer_create", &["FULL", "MEMORY_SHORT", "SYSTEM"]),
    ("vmmc_buffer_memory", NODE),
    ("vmmc_buffer_memory", &["FULL", "MEMORY_SHORT", "UNSUITABLE", "SYSTEM"]),
    ("vmmc_buffer_export", NODE),
    ("vmmc_buffer_export", &["FULL"]),
    ("vmmc_buffer_read", &["OUT_OF_BOUNDS", "FORKED"]),
    ("vmmc_buffer_write", &["OUT_OF_BOUNDS", "FORKED"]),
    ("vmmc_import_open*", NODE),
    ("vmmc_import_open*", NEW_IMPORT),
    ("vmmc_job_import", NODE),
    ("vmmc_job_import", NEW_IMPORT),
    ("vmmc_job_import", RANK),
    ("vmmc_import_check", &["REVOKED", "OWNER_DIED", "NODE_GONE", "NODE_UNREACHABLE", "NODE_RESTARTED"]),
    ("vmmc_import_check", &["FORKED", "VERSION"]),
    ("vmmc_import_pointer", &["NOT_MAPPED"]),
    ("vmmc_import_send*", TRANSFER),
    ("vmmc_import_send_with", &["MISALIGNED", "FOREIGN"]),
    ("vmmc_import_post_send", TRANSFER),
    ("vmmc_import_post_send", &["MISALIGNED", "FOREIGN"]),
    ("vmmc_import_gather_send", TRANSFER),
    ("vmmc_import_gather_send", &["MISALIGNED"]),
    ("vmmc_import_post_gather_send", TRANSFER),
    ("vmmc_import_post_gather_send", &["MISALIGNED"]),
    ("vmmc_import_append", TRANSFER),
    ("vmmc_import_append", &["FULL", "NOT_ALLOWED"]),
    ("vmmc_import_post_append", TRANSFER),
    ("vmmc_import_post_append", &["NOT_ALLOWED"]),
    ("vmmc_import_fetch*", TRANSFER),
    ("vmmc_import_post_fetch", TRANSFER),
    ("vmmc_import_post_fetch", &["FOREIGN"]),
    ("vmmc_import_fetch_add", &["MISALIGNED"]),
    ("vmmc_import_fetch_into", &["FOREIGN"]),
    ("vmmc_import_compare_swap", TRANSFER),
    ("vmmc_import_compare_swap", &["MISALIGNED"]),
    ("vmmc_import_swap", TRANSFER),
    ("vmmc_import_swap", &["MISALIGNED"]),
    ("vmmc_import_flush", TRANSFER),
    ("vmmc_binding_create", NODE),
    ("vmmc_binding_create", &["NOT_MAPPED", "NO_RIGHT", "REVOKED", "OWNER_DIED"]),
    ("vmmc_binding_flush", &["REVOKED", "OWNER_DIED", "NODE_GONE", "FORKED"]),
    ("vmmc_transfer_poll", TRANSFER),
    ("vmmc_transfer_poll", &["AGAIN", "BUSY"]),
    ("vmmc_transfer_wait", TRANSFER),
    ("vmmc_transfer_wait", &["BUSY"]),
    ("vmmc_continuations_*", &["BUSY"]),
    ("vmmc_continuations_add", &["INVALID", "FOREIGN"]),
    ("vmmc_continuations_wait", &["TIMED_OUT", "FORKED", "SYSTEM"]),
    ("vmmc_job_attach", &["NO_JOB"]),
    ("vmmc_job_attach", ATTACH),
    ("vmmc_job_attach", NODE),
    ("vmmc_job_attach", NEW_IMPORT),
    ("vmmc_job_node_of", RANK),
    ("vmmc_job_state_of", RANK),
    ("vmmc_job_barrier", NODE),
    ("vmmc_job_barrier", &["MEMBERS_CHANGED", "OWNER_DIED"]),
    ("vmmc_job_allgather", NODE),
    ("vmmc_job_allgather", &["MEMBERS_CHANGED", "OWNER_DIED", "OUT_OF_BOUNDS"]),
    ("vmmc_job_changes*", NODE),
    ("vmmc_job_changes*", &["OWNER_DIED", "SYSTEM"]),
    ("vmmc_job_grow", NODE),
    ("vmmc_job_grow", &["NO_JOB", "OWNER_DIED"]),
    ("vmmc_job_leave", NODE),
    ("vmmc_job_leave", &["NO_JOB", "OWNER_DIED"]),
    ("vmmc_job_launch", ATTACH),
    ("vmmc_job_launch", NODE),
    ("vmmc_job_launch", &["UNKNOWN_NODE", "NODE_UNREACHABLE"]),
    ("vmmc_launched_next_event", &["AGAIN", "FORKED", "SYSTEM", "BUSY"]),
    ("vmmc_launched_write_input", &["BUSY"]),
    ("vmmc_launched_close_input", &["BUSY"]),
    ("vmmc_launched_signal", &["BUSY"]),
    ("vmmc_launched_end", &["BUSY"]),
    ("vmmc_launched_grow", &["BUSY"]),
];

/// Statuses that a call can end with beside VMMC_OK, by its name and declaration, without their
/// prefix.
pub(crate) fn of(name: &str, declaration: &str) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut add = |statuses: &[&'static str]| {
        for status in statuses {
            if !found.contains(status) {
                found.push(*status);
            }
        }
    };
    let arguments: Vec<&str> = declaration.split_once('(').map_or("", |(_, rest)| rest).split(',').collect();
    let handle = |argument: &&&str| {
        let pointer = argument.contains("struct vmmc_") && argument.matches('*').count() == 1;
        // Handles come first; structs that the caller fills have `options` or plural names.
        pointer && HANDLES.iter().any(|kind| argument.contains(&format!("struct vmmc_{kind} ")))
    };
    let handles = arguments.iter().filter(handle).count();
    if handles > 0 {
        add(&["BAD_HANDLE"]);
    }
    if arguments.iter().filter(|argument| argument.contains('*')).count() > handles {
        add(&["INVALID"]);
    }
    if arguments.iter().any(|argument| argument.matches('*').count() == 2 && argument.contains("struct vmmc_")) {
        add(&["FULL"]);
    }
    ROWS.iter().filter(|(pattern, _)| fits(pattern, name)).for_each(|(_, statuses)| add(statuses));
    add(&["INTERNAL"]);
    found
}

/// Types that are handles.
const HANDLES: &[&str] = &[
    "binding",
    "buffer",
    "connection",
    "continuations",
    "endpoint",
    "export",
    "frame",
    "handler",
    "import",
    "job",
    "launched",
    "lent",
    "node",
    "redirection",
    "ring",
    "rpc_answer",
    "rpc_call",
    "rpc_client",
    "rpc_pending",
    "rpc_region",
    "rpc_server",
    "session",
    "table",
    "token_buffer",
    "transfer",
];

/// Whether a name fits a pattern with at most one `*`.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => {
            name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::man;

    fn header() -> String {
        let path = crate::root().join("bindings/c/include/vmmc.h");
        std::fs::read_to_string(path).expect("the header is in the tree")
    }

    #[test]
    fn every_row_fits_a_call_and_names_statuses_that_exist() {
        let header = header();
        let calls = man::functions(&header);
        for (pattern, statuses) in ROWS {
            assert!(calls.iter().any(|call| fits(pattern, &call.name)), "{pattern} fits no call");
            for status in *statuses {
                assert!(header.contains(&format!("    VMMC_{status} = ")), "{status} of {pattern}");
            }
        }
    }

    #[test]
    fn every_status_stands_on_some_page() {
        let header = header();
        let calls = man::functions(&header);
        let listed: Vec<&str> = calls.iter().flat_map(|call| of(&call.name, call.declaration())).collect();
        let known = header.lines().filter_map(|line| line.strip_prefix("    VMMC_")?.split_once(" = "));
        let statuses = header.split("} vmmc_status;").next().unwrap_or_default();
        let missing: Vec<&str> = known
            .map(|(name, _)| name)
            .filter(|name| statuses.contains(&format!("    VMMC_{name} = ")) && *name != "OK")
            .filter(|name| !listed.contains(name))
            .collect();
        assert_eq!(missing, Vec::<&str>::new());
    }

    #[test]
    fn declarations_tell_handles_from_other_pointers() {
        let len = of("vmmc_x", "enum vmmc_status vmmc_x(const struct vmmc_export *export_, uint64_t *len);");
        assert_eq!(len, ["BAD_HANDLE", "INVALID", "INTERNAL"]);
        let free = of("vmmc_x", "enum vmmc_status vmmc_x(struct vmmc_job *job);");
        assert_eq!(free, ["BAD_HANDLE", "INTERNAL"]);
        let options = of("vmmc_x", "enum vmmc_status vmmc_x(const struct vmmc_session_options *options);");
        assert_eq!(options, ["INVALID", "INTERNAL"]);
    }
}
