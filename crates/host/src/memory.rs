//! What the machine says about memory and limits.
//!
//! Invariant: nothing here fails; what cannot be read counts as absent, and the caller's own
//! allocation decides.

use rustix::process::{Resource, getrlimit};

/// Bytes that can be allocated now without pushing others out: the kernel's estimate, and the limit
/// of our control group if that is lower.
pub fn available_bytes() -> u64 {
    let machine = meminfo("MemAvailable:").unwrap_or(u64::MAX);
    machine.min(control_group_available().unwrap_or(u64::MAX))
}

/// All memory of the machine, bytes.
pub fn total_bytes() -> Option<u64> {
    meminfo("MemTotal:")
}

/// `RLIMIT_MEMLOCK`, bytes; none means no limit.
pub fn locked_bytes_max() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// `RLIMIT_NOFILE`; none means no limit.
pub fn open_files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Room below `memory.max` of a version 2 control group.
fn control_group_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|l| l.strip_prefix("0::"))?;
    let dir = format!("/sys/fs/cgroup{path}");
    let number = |file: &str| std::fs::read_to_string(format!("{dir}/{file}")).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    #[test]
    fn this_machine_has_memory() {
        let available = super::available_bytes();
        assert!(available > 1 << 20);
        assert!(super::total_bytes().is_none_or(|total| total >= available));
    }
}
