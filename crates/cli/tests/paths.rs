//! Two wires between two hosts: nodes that listen on both go on over the one that is left.
//!
//! Invariant: whichever wire is cut, and right after the other one came back, the nodes find the
//! one that works long before they call each other dead.
//!
//! Needs root and `ip` (iproute2); without them the test prints `SKIP` and why.

mod common;

use common::{Folder, ip, text};
use std::process::{Command, Output, Stdio};

/// Two namespaces with two veth pairs between them, and a node in each.
struct Wires {
    folder: Folder,
}

impl Wires {
    fn namespace(host: usize) -> String {
        format!("vw{}-{host}", std::process::id())
    }

    fn make() -> Result<Wires, String> {
        let wires = Wires { folder: Folder::new() };
        let hosts = [1, 2].map(Wires::namespace);
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
        Ok(wires)
    }

    fn set(&self, wire: usize, state: &str) {
        ip(&["-n", &Wires::namespace(1), "link", "set", &format!("wire{wire}"), state]).expect("the wire exists");
    }

    fn on(host: usize, args: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &Wires::namespace(host), env!("CARGO_BIN_EXE_vmmc")]).args(args);
        command.env_remove("VMMC_NODE").stdin(Stdio::null()).output().expect("ip can be started")
    }

    fn start(&self, host: usize, peer: Option<&str>) {
        let key = self.folder.file("key");
        let listen = [0, 1].map(|wire| format!("10.98.{wire}.{host}:4791"));
        let name = Wires::namespace(host);
        let mut args = vec!["node", "start", "--name", &name, "--key-file", &key];
        listen.iter().for_each(|address| args.extend(["--listen", address]));
        peer.iter().for_each(|peer| args.extend(["--peer", peer]));
        let output = Wires::on(host, &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// A round trip from host 2 to host 1; the peer counts as dead after five seconds of silence.
    fn ping(&self, when: &str) {
        let (from, to) = (Wires::namespace(2), Wires::namespace(1));
        let output = Wires::on(2, &["ping", "--name", &from, &to, "--count", "1"]);
        assert!(output.status.success(), "{when}: {}", text(&output.stderr));
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        for host in [1, 2] {
            let name = Wires::namespace(host);
            let _ = Wires::on(host, &["node", "stop", "--name", &name]);
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

#[test]
fn whichever_wire_is_cut_the_other_one_serves() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP two wires between network namespaces: needs root");
    }
    let wires = match Wires::make() {
        Ok(wires) => wires,
        Err(why) => return println!("SKIP two wires between network namespaces: {why}"),
    };
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
