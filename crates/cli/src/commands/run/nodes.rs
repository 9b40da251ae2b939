//! Nodes for one job, on this machine: `vmmc run --nodes K`.
//!
//! Invariant: they end with the job; if this process is killed they end by themselves shortly after
//! their last process.

use super::hosts::Host;
use crate::commands::attach;
use crate::failure::Failure;
use crate::limits::LOCAL_NODE_LINGER;
use std::path::PathBuf;
use vmmc_node::NodeConfig;

/// Temporary nodes.
pub(super) struct LocalNodes {
    /// Name and address.
    nodes: Vec<(String, String)>,
}

impl LocalNodes {
    /// Starts so many, all at once.
    pub(super) fn start(count: u32) -> Result<LocalNodes, Failure> {
        let start = |index: u32| -> Result<(String, String), Failure> {
            let name = format!("run-{}-{index}", std::process::id());
            let own = PathBuf::from("/proc/self/exe");
            let mut config = NodeConfig::new(&name).listen(([127, 0, 0, 1], 0).into());
            config.linger = Some(LOCAL_NODE_LINGER);
            config.launcher = Some(own.clone());
            // It ends with the job, which reports what happened.
            config.log_level = Some(vmmc_node::LogLevel::Off);
            vmmc_node::start_detached(&own, &config).map_err(Failure::new)?;
            let session = attach(&name)?;
            let address = session.node().listen.first().cloned().unwrap_or_default();
            Ok((name, address))
        };
        let results: Vec<Result<(String, String), Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || start(index))).collect();
            threads.into_iter().map(|thread| thread.join().expect("starting a node does not panic")).collect()
        });
        let mut local = LocalNodes { nodes: Vec::new() };
        let mut failure = None;
        for result in results {
            match result {
                Ok(node) => local.nodes.push(node),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(local), Err)
    }

    /// The launcher's own.
    pub(super) fn first(&self) -> &str {
        &self.nodes[0].0
    }

    /// How we call the node with this address: its user has seen its name, not its address.
    pub(super) fn name_of(&self, address: String) -> String {
        self.nodes.iter().find(|node| node.1 == address).map_or(address, |node| node.0.clone())
    }

    /// As hosts.
    pub(super) fn hosts(&self) -> Vec<Host> {
        let host = |(index, (_, address)): (usize, &(String, String))| Host {
            node: (index > 0).then(|| address.clone()),
            slots: None,
        };
        self.nodes.iter().enumerate().map(host).collect()
    }
}

impl Drop for LocalNodes {
    fn drop(&mut self) {
        for (name, _) in &self.nodes {
            // One that is gone, or does not listen, ends by itself.
            let _ = attach(name).map(|session| session.stop_node());
        }
    }
}
