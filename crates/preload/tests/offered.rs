//! Signal handlers and forks beside connections that are busy, and connections that carry a page
//! and close, with connections offered at once and at random moments too.
//!
//! Invariant: a program that hangs is killed at its limit, and the test fails.

mod common;

use common::{AT_ONCE, By, PAIRS, RANDOM, World, finish_within, have, port, text};
use std::time::Duration;

#[test]
fn a_signal_handler_closes_accepts_sends_receives_and_shuts_down_whatever_it_interrupts() {
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let binary = &compiled(&world, "signals");
    for by in [By::Exec, AT_ONCE, RANDOM] {
        let output = finish_within(Duration::from_secs(60), world.command(by, &[binary, "200"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text(&output) == "fine\n", "{by:?}: {}{said}", text(&output));
    }
}

#[test]
fn the_child_of_a_fork_has_files_of_its_own_while_other_threads_open_connections() {
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let binary = &compiled(&world, "forks");
    for by in [By::Exec, AT_ONCE] {
        let output = finish_within(Duration::from_secs(60), world.command(by, &[binary, "500"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text(&output) == "fine\n", "{by:?}: {}{said}", text(&output));
    }
}

#[test]
fn a_loop_is_woken_while_the_child_of_a_fork_waits_in_the_set_that_had_its_bell() {
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let (binary, node) = (&compiled(&world, "inherited"), world.node_pid().to_string());
    for by in [By::Exec, AT_ONCE] {
        let output = finish_within(Duration::from_secs(60), world.command(by, &[binary, &node]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text(&output) == "fine\n", "{by:?}: {}{said}", text(&output));
    }
}

/// What `threads.c` tries, how often.
const THREADS: &[(&str, &str)] = &[
    ("closes", "200"),
    ("polls", "5"),
    ("crossing", "3"),
    ("crossing-sets", "3"),
    ("exchanges", "2000"),
    ("jumps", "2000"),
    ("sets", "3"),
    ("forks", "75"),
];

#[test]
fn threads_and_handlers_that_get_in_each_others_way_see_what_tcp_would_show_them() {
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let binary = &compiled(&world, "threads");
    for (what, much) in THREADS {
        for by in [By::Exec, AT_ONCE] {
            let output = finish_within(Duration::from_secs(60), world.command(by, &[binary, what, much]));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text(&output) == "fine\n", "{what}, {by:?}: {}{said}", text(&output));
        }
    }
}

/// A C program of this folder, in the folder of the world.
fn compiled(world: &World, name: &str) -> String {
    let source = format!("{}/tests/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let binary = world.folder.join(name).to_str().expect("ASCII").to_string();
    world.run(By::Itself, &["cc", "-std=gnu11", "-O2", "-w", "-pthread", "-o", &binary, &source]);
    binary
}

#[test]
fn haproxy_hands_on_pages_of_connections_that_close() {
    if !have("haproxy", "haproxy") || !have("nginx", "nginx") || !have("wrk", "wrk") {
        return;
    }
    let world = World::new();
    let folder = world.folder.display();
    let (front, back) = (port(), port());
    let write = |name: &str, content: &str| {
        let path = world.folder.join(name);
        std::fs::write(&path, content).expect("writable");
        path.to_str().expect("ASCII").to_string()
    };
    let page: String = (0..80_000u32).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    write("page", &page);
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let nginx = write(
        "nginx.conf",
        &format!(
            "{user} worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
            events {{ worker_connections 512; }}
            http {{ access_log off; sendfile on; server {{ listen 127.0.0.1:{back} backlog=512; root {folder}; }} }}"
        ),
    );
    let haproxy = write(
        "haproxy.cfg",
        &format!(
            "global\n nbthread 2\n maxconn 1000\ndefaults\n mode http\n timeout connect 20s\n timeout client 40s\n timeout server 40s\n option httpclose\n\
             frontend f\n bind 127.0.0.1:{front}\n default_backend b\nbackend b\n server s 127.0.0.1:{back}\n"
        ),
    );
    for (proxy_by, others_by) in PAIRS {
        let _nginx = world.server(others_by, &["nginx", "-c", &nginx], back);
        let _haproxy = world.server(proxy_by, &["haproxy", "-f", &haproxy], front);
        let url = format!("http://127.0.0.1:{front}/page");
        let asks = ["wrk", "-c", "20", "-t", "2", "-d", "3", "-H", "Connection: close", &url];
        let printed = world.run(others_by, &asks);
        let complaint = printed.contains("Socket errors") || printed.contains("Non-2xx");
        assert!(!complaint && printed.contains("requests in"), "{proxy_by:?} {others_by:?}: {printed}");
    }
}
