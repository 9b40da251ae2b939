//! The name of this machine, as nodes may be called.
//!
//! Invariant: what comes out is a node name, the same at every call on one machine. Machines that
//! were given no name of their own (`localhost`) get one from their machine id, so that two of them
//! differ.

use std::hash::{Hash, Hasher};
use vmmc_nic::NodeName;
use vmmc_nic::limits::NODE_NAME_BYTES_MAX;

/// This machine's name.
pub(crate) fn host_name() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    as_node_name(read("/proc/sys/kernel/hostname").trim(), read("/etc/machine-id").trim())
}

fn as_node_name(host: &str, machine: &str) -> String {
    let allowed = |c: char| if NodeName::parse(c.encode_utf8(&mut [0; 4])).is_ok() { c } else { '-' };
    let short = host.split('.').next().unwrap_or_default();
    if !["", "localhost", "(none)"].contains(&short) {
        return host.chars().map(allowed).take(NODE_NAME_BYTES_MAX).collect();
    }
    // The id itself is not for the wire (machine-id(5)): a part of a hash is.
    let mut hash = std::hash::DefaultHasher::new();
    ("vmmc", machine).hash(&mut hash);
    format!("localhost-{:08x}", hash.finish() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_becomes_a_node_name() {
        assert_eq!(as_node_name("alpha.example.org", ""), "alpha.example.org");
        assert_eq!(as_node_name("mach\u{fc}ne one", ""), "mach-ne-one");
        assert!(NodeName::parse(&as_node_name(&"x".repeat(200), "")).is_ok());
        assert!(NodeName::parse(&host_name()).is_ok());
    }

    #[test]
    fn machines_without_a_name_of_their_own_differ() {
        for host in ["", "localhost", "localhost.localdomain", "(none)"] {
            let (one, other) = (as_node_name(host, "1111"), as_node_name(host, "2222"));
            assert!(one.starts_with("localhost-") && one != other, "{one} {other}");
            assert!(NodeName::parse(&one).is_ok());
        }
    }
}
