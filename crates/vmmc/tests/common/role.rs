//! A test program that starts itself once for each role, as processes that can be killed.
//!
//! Invariant: a role ends with its value, also when the test fails.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A child process in some role; killed when dropped.
pub(crate) struct Role(pub(crate) Child);

impl Role {
    /// Starts the ignored test `child_process` of this program, and waits until it says that it is
    /// ready.
    pub(crate) fn start(role: &str, node: &str) -> Role {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env("VMMC_TEST_ROLE", role)
            .env("VMMC_TEST_NODE", node)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")), "the {role} did not become ready");
        // What else it says must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Role(child)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
