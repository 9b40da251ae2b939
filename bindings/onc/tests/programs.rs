//! Programs made by rpcgen, with clients and servers over VMMC and over TCP.
//!
//! Invariant: the stubs are what rpcgen made. Source: RFC 5531, [SHRIMP §3].

mod common;

use common::{Nodes, Program, Rpcbind, client, client_does, programs, skip};
use std::time::Duration;

/// A user that no test runs as.
const NOBODY: u32 = 65_534;

#[test]
fn every_procedure_works_within_a_node_and_between_two() {
    let (Some(_), nodes) = (programs(), Nodes::start(2)) else { return };
    let (_server, _) = Program::server(&["vmmc"], &nodes.names[0]);
    client_does(&["vmmc", "all"], &nodes.names[0]);
    client_does(&["vmmc", "all", "localhost"], &nodes.names[0]);
    client_does(&["vmmc", "all", &nodes.names[0]], &nodes.names[1]);
}

#[test]
fn one_server_serves_clients_over_vmmc_and_over_tcp_at_once() {
    let (Some(_), nodes) = (programs(), Nodes::start(1)) else { return };
    let node = &nodes.names[0];
    let (_server, port) = Program::server(&["vmmc", "tcp-here"], node);
    let by_port = format!("port:{port}");
    let both: Vec<_> =
        ["vmmc", &by_port, "vmmc", &by_port].iter().map(|how| Program::start("client", &[how, "all"], node)).collect();
    for client in both {
        let said = client.ended();
        assert!(said.ends_with("ok\n"), "{said}");
    }
    // And where the transports were made in the other order.
    let (_other, port) = Program::server(&["tcp-here", "vmmc"], &Nodes::start(1).names[0]);
    client_does(&[&format!("port:{port}"), "all"], node);
}

#[test]
fn a_client_of_a_program_that_is_on_tcp_only_is_told_so_and_goes_there_when_asked() {
    let (Some(_), nodes, Some(_rpcbind)) = (programs(), Nodes::start(1), Rpcbind::have()) else { return };
    let node = &nodes.names[0];
    let (_server, port) = Program::server(&["tcp"], node);
    let said = client(&["vmmc", "all"], node);
    let there = format!("it is on TCP, at 127.0.0.1:{port}");
    assert!(said.contains("RPC: Program not registered") && said.contains(&there), "{said}");
    client_does(&["vmmc-or-tcp", "all"], node);
    client_does(&["tcp", "all"], node);
    // Without a node too.
    let said = client(&["vmmc", "all"], "no-such-node");
    assert!(said.contains("no client: 12:") && said.contains("no-such-node"), "{said}");
    client_does(&["vmmc-or-tcp", "all"], "no-such-node");
}

#[test]
fn deadlines_controls_lengths_batches_and_threads_are_as_with_other_transports() {
    let (Some(_), nodes) = (programs(), Nodes::start(1)) else { return };
    let (_server, _) = Program::server(&["vmmc"], &nodes.names[0]);
    client_does(&["vmmc", "errors"], &nodes.names[0]);
}

#[test]
fn a_server_that_is_killed_in_mid_call_is_an_error_soon() {
    let (Some(_), nodes) = (programs(), Nodes::start(2)) else { return };
    for caller in 0..2 {
        let (mut server, _) = Program::server(&["vmmc"], &nodes.names[0]);
        let mut client = Program::start("client", &["vmmc", "killed", &nodes.names[0]], &nodes.names[caller]);
        assert_eq!(client.line(), "calling");
        std::thread::sleep(Duration::from_millis(100));
        server.kill();
        let said = client.ended();
        assert!(said.ends_with("ok\n"), "{said}");
        let said = common::client(&["vmmc", "world"], &nodes.names[0]);
        assert!(said.contains("RPC: Program not registered"), "{said}");
    }
}

#[test]
fn a_server_whose_node_ends_serves_its_other_transports() {
    let (Some(_), mut nodes) = (programs(), Nodes::start(1)) else { return };
    let (_server, port) = Program::server(&["vmmc", "tcp-here"], &nodes.names[0]);
    client_does(&["vmmc", "world"], &nodes.names[0]);
    nodes.stop(0);
    client_does(&[&format!("port:{port}"), "all"], &nodes.names[0]);
}

#[test]
fn a_credential_of_another_user_is_denied_and_counted() {
    let (Some(folder), nodes) = (programs(), Nodes::start(1)) else { return };
    let node = &nodes.names[0];
    let (_server, _) = Program::server(&["vmmc-anyone"], node);
    let said = client_does(&["vmmc", "users"], node);
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(folder).unwrap());
    let own = format!("said: known 0 uid {uid} claims {uid}\nsaid: known 0 uid {uid} claims -1\n");
    assert_eq!(said, own + "said: bad credentials 1, misbehaved 0\nok\n");
    if uid != 0 {
        return skip("another user's claims need root to start a program of another user");
    }
    let said = Program::start_as(NOBODY, "client", &["vmmc", "users"], node).ended();
    let other = format!("said: known 0 uid {NOBODY} claims {NOBODY}\nsaid: known 0 uid {NOBODY} claims -1\n");
    assert_eq!(said, other + "said: bad credentials 2, misbehaved 0\nok\n");
    let said = client(&[&format!("owner:{NOBODY}"), "world"], node);
    assert!(said.contains("RPC: Program not registered"), "{said}");
}

#[test]
fn a_user_who_may_not_call_gets_no_client() {
    let (Some(folder), nodes) = (programs(), Nodes::start(1)) else { return };
    if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(folder).unwrap()) != 0 {
        return skip("a caller of another user needs root to be started");
    }
    let (_server, _) = Program::server(&["vmmc"], &nodes.names[0]);
    let said = Program::start_as(NOBODY, "client", &["vmmc", "world"], &nodes.names[0]).ended();
    assert!(said.starts_with("no client: 12: create: RPC: Remote system error - Permission denied"), "{said}");
}
