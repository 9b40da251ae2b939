//! What each counter of a node means: the words of `vmmc stats`, of the metrics' HELP lines and of
//! docs/counters.md.
//!
//! Invariant: every counter that a node gives has a line here, and every line here one in
//! docs/counters.md; tests compare the names.

/// A counter in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// As `vmmc stats` shows it.
    pub name: &'static str,
    /// It can go down.
    pub gauge: bool,
    /// What it counts, and its unit.
    pub help: &'static str,
}

const fn counter(name: &'static str, help: &'static str) -> Counter {
    Counter { name, gauge: false, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Counter {
    Counter { name, gauge: true, help }
}

/// Of a node.
pub const NODE: &[Counter] = &[
    counter("process_cpu_us", "Processor time of the process that runs the node, microseconds."),
    counter("commands", "Commands that the engine took from rings of processes."),
    counter("control_calls", "Calls of processes on their control sockets."),
    counter("refusals", "Control calls that were refused."),
    counter("connections", "Connections of processes to the node."),
    counter("processes_ended", "Attached processes that ended or left."),
    counter("revocations", "Exports that were taken back."),
    counter("revocations_moved", "Exports whose pages had to be moved away from an importer that did not let go."),
    counter("sleeps", "Times that the node slept because there was nothing to do."),
    counter("peers_up", "Times that a session with a peer began."),
    counter("peers_down", "Times that a session with a peer ended."),
    counter("pins", "Pages of processes pinned."),
    counter("unpins", "Pages of processes unpinned."),
    gauge("pinned_pages", "Pages of processes that are pinned now."),
    gauge("pinned_pages_free", "Pages that may still be pinned."),
    counter("pins_asked_back", "Pages that processes were asked to unpin for others."),
    counter("pins_taken_back", "Pages that were unpinned by force."),
    counter("translation_lookups", "Pages looked up in the translation cache."),
    counter("translation_misses", "Pages that were not in the translation cache."),
    counter("translation_misses_compulsory", "Misses of pages never looked up before."),
    counter("translation_misses_capacity", "Misses that a larger cache would not have had."),
    counter(
        "translation_misses_conflict",
        "Misses that a fully associative cache of the same size would not have had.",
    ),
    counter("translation_garbage", "Lookups of pages that were pinned by nobody; zeros were sent in their place."),
    counter("translation_tables_out", "Second-level translation tables swapped out."),
    counter("translation_tables_in", "Second-level translation tables swapped in."),
    gauge("exports", "Exports of all processes."),
    counter("mapped_sends", "Sends by copies of processes of this node, as they say."),
    counter("mapped_send_bytes", "Bytes of sends by copies of processes of this node, as they say."),
    counter("mapped_fetches", "Fetches by copies of processes of this node, as they say."),
    counter("mapped_fetch_bytes", "Bytes of fetches by copies of processes of this node, as they say."),
    counter("mapped_atomics", "Atomic operations of processes of this node on mapped memory, as they say."),
    counter("engine_packets_out", "Datagrams that the engine gave out."),
    counter("engine_bytes_out", "Bytes in datagrams that the engine gave out."),
    counter("engine_packets_in", "Datagrams that the engine was given."),
    counter("engine_bytes_in", "Bytes in datagrams that the engine was given."),
    counter("engine_retransmits", "Chunks sent again."),
    counter("engine_timeouts", "Retransmission timeouts."),
    counter("engine_duplicates", "Chunks that came twice."),
    counter("engine_replays", "Packets whose number had been seen before; they were dropped."),
    counter("engine_bad_seals", "Packets or hellos whose seal did not open: another cluster key, or damage."),
    counter("engine_malformed", "Datagrams that make no sense."),
    counter("engine_unknown_session", "Packets for a session that nobody has."),
    counter("engine_out_of_window", "Packets too old or too far ahead, and chunks beyond the window."),
    counter("engine_refused", "Transfers refused at this node: no such grant, out of bounds, or without the right."),
    counter("engine_tokens_refused", "Payloads, or parts of them, that came by a token that let nothing in."),
    counter("engine_hellos_out", "Hellos sent."),
    counter("engine_hellos_in", "Hellos received."),
    counter("engine_cookies_out", "Hellos without a cookie that were answered with one."),
    counter("engine_hellos_limited", "Hellos not answered because too many came."),
    counter("engine_rejects", "Handshakes refused, here or there."),
    counter("engine_sessions", "Sessions that began."),
    counter("engine_sessions_lost", "Sessions that ended."),
    counter("engine_path_switches", "Changes to another path of a peer."),
    counter("engine_sends", "Sends that the engine completed."),
    counter("engine_fetches", "Fetches that the engine completed."),
    counter("engine_atomics", "Atomic operations that the engine completed."),
    counter("engine_local_ops", "Transfers within this node that went through the engine."),
    counter("engine_bytes_deposited", "Bytes of sends and fetches that the engine put into memory of this node."),
    counter("engine_notifications", "Notifications that the engine gave."),
    counter("engine_bytes_redirected", "Bytes that went straight to a redirected place."),
    counter("engine_busy", "Commands that had to wait because the engine had no room."),
    counter("engine_loose_dropped", "Datagrams outside sessions that were not sent because their queue was full."),
    counter("udp_receives", "System calls that received datagrams."),
    counter("udp_datagrams_in", "Datagrams received."),
    counter("udp_bytes_in", "Bytes of datagrams received."),
    counter("udp_datagrams_placed", "Datagrams of which the kernel put a piece straight to where it belongs."),
    counter("udp_sends", "System calls that sent datagrams."),
    counter("udp_datagrams_out", "Datagrams sent."),
    counter("udp_datagrams_spliced", "Datagrams of which the kernel was given pages by reference."),
    counter("udp_bytes_out", "Bytes of datagrams sent."),
    counter("udp_send_errors", "Sends that the kernel refused."),
    counter("udp_unanswered", "Answers to strangers that were not sent because too much waited in a socket."),
    counter("udp_held", "Times that datagrams waited because a socket had no room."),
    counter("udp_probes", "Probes of what a path can carry."),
];

/// Of a peer.
pub const PEER: &[Counter] = &[
    counter("packets_out", "Packets sent to the peer in the present session."),
    counter("bytes_out", "Bytes in packets sent to the peer."),
    counter("packets_in", "Packets of the peer that opened."),
    counter("bytes_in", "Bytes in packets of the peer that opened."),
    counter("retransmits", "Chunks sent again to the peer."),
    counter("lost", "Chunks to the peer declared lost."),
    counter("spurious", "Chunks sent again that had arrived, as far as acknowledgements show."),
    counter("probes", "Packets sent again because no news came for a while."),
    counter("timeouts", "Retransmission timeouts of the peer's session."),
    counter("duplicates", "Chunks of the peer that came twice."),
    counter("path_switches", "Changes to another path of the peer."),
    counter("marked_in", "Packets received that a queue on the way had marked."),
    counter("marked_out", "Packets sent that a queue had marked, as the peer says."),
    gauge("held_bytes", "Bytes of the peer's that wait until a gap closes."),
    gauge("queued_ops", "Operations queued for the peer and not yet sent."),
    counter("path_failures", "Times that a path to the peer was given up."),
    gauge("mtu_bytes", "Bytes of payload in a datagram to the peer."),
    gauge("mtu_limit_bytes", "As many as the interface takes: the path takes fewer, or is being asked."),
    counter("black_holes", "How often datagrams of the size in use turned out not to get through."),
];

/// Of a process, what it copied within the node, and of an import, what went through it.
pub const MOVED: &[Counter] = &[
    counter("sends", "Sends."),
    counter("send_bytes", "Bytes of sends."),
    counter("fetches", "Fetches."),
    counter("fetch_bytes", "Bytes of fetches."),
    counter("atomics", "Atomic operations, counters of sends included."),
];

/// Of a process, what becomes of memory that it pins.
pub const PINNING: &[Counter] = &[
    counter("pin_transfers", "Transfers from and to pinned memory, as the process says."),
    counter("pin_lookups", "Pages of these transfers, as the process says."),
    counter("pin_check_misses", "Of these pages, the ones that were not pinned yet, as the process says."),
    counter("pin_pins", "Pages pinned, as the process says."),
    counter("pin_unpins", "Pages unpinned, as the process says."),
    counter("pin_evictions", "Pages unpinned because of a limit, as the process says."),
    counter("pin_copied", "Transfers of whole pages that were copied because their memory cannot be pinned."),
    gauge("pinned_pages", "Pages of the process that are pinned now."),
    counter("translation_lookups", "Pages of the process looked up in the translation cache."),
    counter("translation_misses", "Pages of the process that were not in the translation cache."),
    counter("translation_misses_compulsory", "Misses of pages never looked up before."),
    counter("translation_misses_capacity", "Misses that a larger cache would not have had."),
    counter(
        "translation_misses_conflict",
        "Misses that a fully associative cache of the same size would not have had.",
    ),
];

/// The counter of this name.
pub fn find(counters: &'static [Counter], name: &str) -> Option<&'static Counter> {
    counters.iter().find(|counter| counter.name == name)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_explained_in_the_same_words() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/counters.md")).unwrap();
        for Counter { name, gauge, help } in [NODE, PEER, MOVED, PINNING].concat() {
            let kind = if gauge { "gauge" } else { "counter" };
            let row = format!("| `{name}` | {kind} | {help} |\n");
            assert!(page.contains(&row), "docs/counters.md lacks\n{row}");
        }
    }
}
