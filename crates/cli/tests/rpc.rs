//! `vmmc rpc`: services are listed with their clients, and answer.

mod common;

use common::{Node, json, ok, vmmc};
use std::time::{Duration, Instant};
use vmmc_rpc::{Call, Client, Server};

#[test]
fn services_are_listed_with_their_clients_and_answer_from_other_nodes_too() {
    let node = Node::start("services", &[]);
    let list = || json(&["rpc", "list", &node.name, "--json"])["services"].as_array().expect("a list").clone();
    assert!(list().is_empty());
    let session = vmmc::Session::builder().node(&node.name).start_node(false).attach().expect("the node runs");
    let serve = |name: &str| Server::new(&session, name).serve(|call: Call| call.answer(b"")).expect("served");
    // One name begins like another.
    let servers = [serve("lookup"), serve("lookup.fast")];
    let clients: Vec<Client> = (0..3).map(|_| Client::new(&session, "lookup").connect().expect("it serves")).collect();
    let rows: Vec<(String, u64)> = list()
        .iter()
        .map(|row| (row["service"].as_str().expect("a name").to_string(), row["clients"].as_u64().expect("a count")))
        .collect();
    assert_eq!(rows, [("lookup".to_string(), 3), ("lookup.fast".to_string(), 0)]);
    assert!(ok(&["rpc", "list", "--name", &node.name]).contains("lookup.fast"));

    let said = ok(&["rpc", "ping", "lookup", "--name", &node.name, "--count", "3"]);
    assert!(said.contains("3 of 3") && said.contains("median"), "{said}");
    let missing = vmmc(&["rpc", "ping", "nobody", "--name", &node.name, "--timeout-ms", "200"]);
    assert!(!missing.status.success());
    assert_eq!(servers.map(|server| server.counts().handled), [0, 0], "no handler has run");
    drop(clients);
}

#[test]
fn methods_are_counted_where_the_node_is_looked_after() {
    let node = Node::start("counted", &[]);
    let session = vmmc::Session::builder().node(&node.name).start_node(false).attach().expect("the node runs");
    let handler = |call: Call| match call.method() {
        1 => call.answer(b""),
        2 => call.fail("no"),
        _ => call.no_method(),
    };
    let server = Server::new(&session, "pages").method(1, "read").method(2, "write").threads(1).serve(handler);
    let server = server.expect("served");
    let client = Client::new(&session, "pages").connect().expect("it serves");
    (0..5).for_each(|_| drop(client.call(1, b"").expect("answered")));
    (0..2).for_each(|_| drop(client.call(2, b"").expect_err("it fails")));
    client.call(77, b"").expect_err("there is none");
    assert_eq!((server.counts().done, server.counts().failed), (5, 3));

    let value = |figure: &str| {
        let stats = json(&["stats", "--name", &node.name, "--json"]);
        let published = stats["published"].as_array().expect("a list").clone();
        let of = published.iter().find(|of| of["source"] == "rpc.pages").expect("it is published");
        of["figures"][figure].as_u64().unwrap_or_else(|| panic!("{figure} in {of}"))
    };
    assert_eq!((value("rpc_calls read"), value("rpc_errors read")), (5, 0));
    assert_eq!((value("rpc_calls write"), value("rpc_errors write")), (2, 2));
    assert_eq!((value("rpc_calls (others)"), value("rpc_outcomes failed")), (1, 3));
    assert!(value("rpc_answer read count") > 0 && value("rpc_answer read p99_ns") > 0);
    let text = ok(&["stats", "--name", &node.name]);
    let shown = |line: &str| line.contains("rpc.pages of process") && line.contains("rpc_calls read");
    assert!(text.lines().any(shown), "{text}");

    let rows = json(&["rpc", "list", &node.name, "--json"]);
    let row = &rows["services"][0];
    assert_eq!((row["calls"].as_u64(), row["errors"].as_u64()), (Some(8), Some(3)), "{row}");
    assert!(row["answer_mean_ns"].as_u64() > Some(0), "{row}");
    assert!(ok(&["top", "--once", "--name", &node.name]).contains("rpc_calls read"));

    // They go with the server, though the process lives on.
    drop(server);
    let until = Instant::now() + Duration::from_secs(10);
    while ok(&["stats", "--name", &node.name]).contains("rpc.pages") {
        assert!(Instant::now() < until, "they are still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}
