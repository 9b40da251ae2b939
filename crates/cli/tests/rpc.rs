//! `vmmc rpc`: services are listed with their clients, and answer.

mod common;

use common::{Node, json, ok, vmmc};
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
