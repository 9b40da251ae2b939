//! Two wires between two hosts: nodes that listen on both go on over the one that is left, and with
//! packets that it takes.
//!
//! Invariant: whichever wire is cut, and right after the other one came back, the nodes find the
//! one that works long before they call each other dead; and no wire that swallows large packets
//! without a word stops them.
//!
//! Needs root and `ip` (iproute2); without them the test prints `SKIP` and why.

mod common;

use common::{Folder, Running, ip, text, wait_until};
use std::process::{Command, Output, Stdio};

/// Two namespaces with two veth pairs between them, and a node in each.
struct Wires {
    folder: Folder,
    /// Of the test: the namespaces are the machine's.
    tag: &'static str,
}

impl Wires {
    fn namespace(&self, host: usize) -> String {
        format!("vw{}{}-{host}", self.tag, std::process::id())
    }

    /// None, with the reason printed, where they cannot be.
    fn new(tag: &'static str) -> Option<Wires> {
        let skip = |why: &str| println!("SKIP two wires between network namespaces: {why}");
        if !rustix::process::geteuid().is_root() {
            skip("needs root");
            return None;
        }
        let wires = Wires { folder: Folder::new(), tag };
        wires.make().map_err(|why| skip(&why)).ok().map(|()| wires)
    }

    fn make(&self) -> Result<(), String> {
        let hosts = [1, 2].map(|host| self.namespace(host));
        for host in &hosts {
            ip(&["netns", "add", host])?;
        }
        for wire in ["wire0", "wire1"] {
            ip(&["-n", &hosts[0], "link", "add", wire, "type", "veth", "peer", "name", wire, "netns", &hosts[1]])?;
        }
        for (number, host) in (1..).zip(&hosts) {
            for wire in 0..2 {
                let name = format!("wire{wire}");
                ip(&["-n", host, "addr", "add", &format!("10.98.{wire}.{number}/24"), "dev", &name])?;
                ip(&["-n", host, "link", "set", &name, "up"])?;
            }
        }
        Ok(())
    }

    fn set(&self, wire: usize, state: &str) {
        self.change(1, wire, &[state]);
    }

    /// Changes the end of a wire at a host.
    fn change(&self, host: usize, wire: usize, what: &[&str]) {
        let (space, wire) = (self.namespace(host), format!("wire{wire}"));
        ip(&[&["-n", &space, "link", "set", &wire], what].concat()).expect("the wire exists");
    }

    fn command(&self, host: usize, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host), env!("CARGO_BIN_EXE_vmmc")]).args(args);
        command.env_remove("VMMC_NODE").stdin(Stdio::null());
        command
    }

    fn on(&self, host: usize, args: &[&str]) -> Output {
        self.command(host, args).output().expect("ip can be started")
    }

    /// What one prints.
    fn ok(&self, host: usize, args: &[&str]) -> String {
        let output = self.on(host, args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn start(&self, host: usize, peer: Option<&str>) {
        let key = self.folder.file("key");
        let listen = [0, 1].map(|wire| format!("10.98.{wire}.{host}:4791"));
        let name = self.namespace(host);
        let mut args = vec!["node", "start", "--name", &name, "--key-file", &key];
        listen.iter().for_each(|address| args.extend(["--listen", address]));
        peer.iter().for_each(|peer| args.extend(["--peer", peer]));
        self.ok(host, &args);
    }

    /// A round trip from host 2 to host 1; the peer counts as dead after five seconds of silence.
    fn ping(&self, when: &str) {
        let (from, to) = (self.namespace(2), self.namespace(1));
        let output = self.on(2, &["ping", "--name", &from, &to, "--count", "1"]);
        assert!(output.status.success(), "{when}: {}", text(&output.stderr));
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        for host in [1, 2] {
            let name = self.namespace(host);
            let _ = self.on(host, &["node", "stop", "--name", &name]);
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

#[test]
fn whichever_wire_is_cut_the_other_one_serves() {
    let Some(wires) = Wires::new("cut") else { return };
    wires.start(1, None);
    // The first address of the list cannot be reached yet.
    wires.set(0, "down");
    wires.start(2, Some("10.98.0.1:4791,10.98.1.1:4791"));
    wires.ping("with the first wire cut from the start");
    for round in 0..2 {
        for (left, cut) in [(0, 1), (1, 0)] {
            wires.set(left, "up");
            wires.set(cut, "down");
            wires.ping(&format!("round {round}: wire {cut} was cut as wire {left} came back"));
        }
    }
}

#[test]
fn a_wire_that_swallows_large_packets_without_a_word_is_found_out() {
    let Some(wires) = Wires::new("hole") else { return };
    wires.set(1, "down");
    // What is longer than the other end of a veth takes it drops, and tells nobody; several packets
    // at once it would pass.
    wires.change(2, 0, &["gso_max_segs", "1"]);
    wires.change(1, 0, &["mtu", "1400"]);
    wires.start(1, None);
    wires.start(2, Some("10.98.0.1:4791"));
    let [near, far] = [2, 1].map(|host| wires.namespace(host));
    let listener = wires.command(1, &["ping", "--listen", "--name", &far]).stdout(Stdio::null()).spawn();
    let _listener = Running(listener.expect("ip can be started"));
    wait_until("it listens", || wires.ok(1, &["node", "status", "--name", &far]).contains("vmmc-ping"));
    let said = wires.ok(2, &["ping", "--name", &near, &far, "--load", "-c", "20"]);
    assert!(said.contains(": 20 of 20") && said.lines().any(|l| l.starts_with("beside ")), "{said}");
    let status: serde_json::Value =
        serde_json::from_str(&wires.ok(2, &["node", "status", "--name", &near, "--json"])).expect("JSON");
    let peer = &status["peers"][0];
    let count = |name: &str| {
        let counters = peer["counters"].as_array().expect("there are some");
        counters.iter().find(|counter| counter[0] == name).and_then(|counter| counter[1].as_u64())
    };
    // Of what is left, 28 bytes are headers.
    assert!(count("mtu_bytes").is_some_and(|bytes| (1_200..=1_372).contains(&bytes)), "{peer}");
    assert_eq!((count("mtu_limit_bytes"), count("black_holes")), (Some(1_472), Some(1)), "{peer}");
    assert!(peer["packets"].as_str().is_some_and(|words| words.contains("1 black hole")), "{peer}");
}
