//! What a daemon of root keeps of root's rights.
//!
//! Invariant: after the start the daemon itself can change to users, signal what it started, and
//! have large socket buffers; it passes no permission check as root. What it starts for root is not
//! bound by that: exec gives root's programs what the bounding set allows, which the process that
//! starts the daemon chooses (the unit does).

use crate::config::NodeConfig;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// First port that needs no right.
const FREE_PORT: u16 = 1024;

/// Gives up all rights of this thread, and of those that it starts, but the needed ones.
pub(super) fn keep_few(config: &NodeConfig) {
    if !config.handle_signals || !rustix::process::geteuid().is_root() {
        return;
    }
    let Ok(now) = capabilities(None) else { return };
    let keep = needed(config);
    let sets = CapabilitySets {
        effective: now.effective & keep,
        permitted: now.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    // Giving up is always allowed; on a kernel that does not know the call the daemon has what it
    // had.
    let _ = set_capabilities(None, sets);
}

fn needed(config: &NodeConfig) -> CapabilitySet {
    // Socket buffers beyond net.core.rmem_max, also of sockets that are opened later.
    let mut keep = CapabilitySet::NET_ADMIN;
    if config.launcher.is_some() {
        keep |= CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    }
    let ports = config.listen.iter().chain(&config.metrics).map(|address| address.port());
    if ports.into_iter().any(|port| (1..FREE_PORT).contains(&port)) {
        keep |= CapabilitySet::NET_BIND_SERVICE;
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_kept_only_for_what_the_configuration_does() {
        let config = NodeConfig::new("rights");
        assert_eq!(needed(&config), CapabilitySet::NET_ADMIN);
        let listens = NodeConfig { metrics: Some(([127, 0, 0, 1], 80).into()), ..config.clone() };
        assert!(needed(&listens).contains(CapabilitySet::NET_BIND_SERVICE));
        let starts = NodeConfig { launcher: Some("/bin/vmmc".into()), ..config };
        assert!(needed(&starts).contains(CapabilitySet::SETUID | CapabilitySet::KILL));
        assert!(!needed(&starts).intersects(CapabilitySet::DAC_OVERRIDE | CapabilitySet::SYS_ADMIN));
    }
}
