//! Two machines set up as docs/running.md says, word for word: what its section "Several machines"
//! tells the user to type is read from the document and typed, each block on the host that its
//! heading line names.
//!
//! Invariant: the document is what is tested; this file knows only how to be two machines and to
//! copy a file between them.
//!
//! Needs root, `ip` (iproute2) and `unshare` (util-linux); without them the test prints `SKIP` and
//! why.

mod common;

use common::{Folder, ip, text, unique};
use std::process::{Command, Output, Stdio};

/// Names and addresses of the machines in the document.
const HOSTS: [(&str, &str); 2] = [("alpha", "10.0.0.1"), ("beta", "10.0.0.2")];

/// Two network namespaces with a wire between them, each with a host name and a home of its own.
struct Machines {
    folder: Folder,
    tag: String,
}

impl Machines {
    /// None, with the reason printed, where they cannot be.
    fn new() -> Option<Machines> {
        let skip = |why: &str| println!("SKIP two machines as documented: {why}");
        let needs = |program: &str| Command::new(program).arg("--version").output().is_err();
        if !rustix::process::geteuid().is_root() || needs("unshare") {
            skip("needs root and unshare");
            return None;
        }
        let machines = Machines { folder: Folder::new(), tag: format!("two{}", std::process::id()) };
        machines.make().map_err(|why| skip(&why)).ok().map(|()| machines)
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.tag)
    }

    fn make(&self) -> Result<(), String> {
        let [near, far] = HOSTS.map(|(host, _)| self.namespace(host));
        for (host, _) in HOSTS {
            ip(&["netns", "add", &self.namespace(host)])?;
            std::fs::create_dir_all(self.folder.0.join(host)).map_err(|e| e.to_string())?;
        }
        ip(&["-n", &near, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &far])?;
        for (host, address) in HOSTS {
            let space = self.namespace(host);
            ip(&["-n", &space, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// Types a line on a host, in its user's home.
    fn types(&self, host: &str, line: &str) -> Output {
        let bin = std::path::Path::new(env!("CARGO_BIN_EXE_vmmc")).parent().expect("it is in a folder");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host), "unshare", "--uts", "sh", "-c"]);
        command.args(["hostname \"$0\" && eval \"$1\"", host, line]);
        let home = self.folder.0.join(host);
        command.env_clear().env("HOME", &home).env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
        command.env("VMMC_LOG", "off").current_dir(&home).stdin(Stdio::null()).output().expect("ip can be started")
    }

    /// What `ssh` and `scp` of the document do: the homes are folders here.
    fn copies(&self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["ssh", host, ..] => {
                let rest = line.splitn(3, ' ').nth(2)?;
                self.types(host, rest).status.success().then_some(())
            }
            ["scp", "-p", from, to] => {
                let (host, to) = to.split_once(':')?;
                let from = self.folder.0.join(HOSTS[0].0).join(from.strip_prefix("~/")?);
                let to = self.folder.0.join(host).join(to).join(from.file_name()?);
                std::fs::copy(&from, &to).ok().map(drop)
            }
            _ => None,
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for (host, _) in HOSTS {
            let _ = self.types(host, "vmmc node stop");
            let _ = ip(&["netns", "del", &self.namespace(host)]);
        }
    }
}

/// A fenced block of the document, and the line of text before it.
struct Block {
    before: String,
    kind: String,
    text: String,
}

/// The blocks of one section.
fn blocks(document: &str, section: &str) -> Vec<Block> {
    let (mut inside, mut before, mut found) = (false, String::new(), Vec::new());
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            inside = title == section;
        } else if let Some(kind) = line.strip_prefix("```").filter(|_| inside) {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            found.push(Block { before: before.clone(), kind: kind.into(), text: text.join("\n") + "\n" });
        } else if !line.is_empty() && !line.starts_with("<!--") {
            before = line.into();
        }
    }
    found
}

#[test]
fn what_the_document_says_about_several_machines_works_as_it_is_written() {
    let Some(machines) = Machines::new() else { return };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/running.md");
    let document = std::fs::read_to_string(path).expect("the document is there");
    let blocks = blocks(&document, "Several machines");
    let (mut typed, mut printed) = (0, String::new());
    for block in &blocks {
        let host = HOSTS.iter().find(|(host, _)| block.before.contains(&format!("`{host}`")));
        let (host, _) = host.unwrap_or_else(|| panic!("the line before a block names its host: {:?}", block.before));
        match &*block.kind {
            "console" => {
                for line in block.text.lines().filter_map(|line| line.strip_prefix("$ ")) {
                    typed += 1;
                    if line.starts_with("ssh ") || line.starts_with("scp ") {
                        machines.copies(line).unwrap_or_else(|| panic!("{line}: not what this test can copy"));
                        continue;
                    }
                    let output = machines.types(host, line);
                    let said = text(&output.stderr);
                    assert!(output.status.success(), "{host}$ {line}\n{said}{}", text(&output.stdout));
                    printed += &text(&output.stdout);
                }
            }
            "text" => {
                let name = block.text.lines().next().and_then(|line| line.strip_prefix("# "));
                let name = name.expect("the first line of a file is its name");
                std::fs::write(machines.folder.0.join(host).join(name), &block.text).expect("the home is ours");
            }
            other => panic!("a block of kind {other:?}"),
        }
    }
    assert!(typed >= 6, "the section has lines to type: {typed}");
    for wanted in
        ["node \"default\" (to other nodes: \"alpha\")", "\"beta\"", "[0] alpha\n", "[1] beta\n", "[2] beta\n"]
    {
        assert!(printed.contains(wanted), "{wanted:?} is not in what was printed:\n{printed}");
    }
    // Nodes of one name still refuse each other, and say what to do.
    let other = unique("same");
    let output = machines.types("beta", &format!("vmmc node start --name {other} --as alpha --listen 0.0.0.0:4799"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let refused = machines.types("beta", &format!("vmmc ping 10.0.0.1:4791 --name {other}"));
    assert!(text(&refused.stderr).contains("--as NAME"), "{}", text(&refused.stderr));
    assert!(machines.types("beta", &format!("vmmc node stop --name {other}")).status.success());
}
