//! What machine the figures are from, and whether it was quiet.
//!
//! Invariant: nothing here fails; what cannot be read is left out.

use crate::limits::{CORES_FOR_TWO_NODES, NOISY_STEAL};
use std::fs::read_to_string;

/// The machine, as it is printed beside figures.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Machine {
    /// Processors that this process may use.
    pub(crate) cores: usize,
    /// Name of the processor.
    pub(crate) cpu: String,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Hypervisor, if the processor says that there is one.
    pub(crate) virtualised: bool,
    /// All memory, bytes.
    pub(crate) memory_bytes: Option<u64>,
}

impl Machine {
    /// This machine.
    pub(crate) fn here() -> Machine {
        let info = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |key: &str| {
            info.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix(':').map(|v| v.trim().to_string()))
        };
        let family =
            field("cpu family").map(|f| format!(" (family {f}, model {})", field("model").unwrap_or_default()));
        Machine {
            cores: cores().len(),
            cpu: field("model name").unwrap_or_else(|| std::env::consts::ARCH.into()) + &family.unwrap_or_default(),
            kernel: read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
            virtualised: info
                .lines()
                .any(|l| l.starts_with("flags") && l.split_ascii_whitespace().any(|f| f == "hypervisor")),
            memory_bytes: vmmc_host::memory::total_bytes(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.cores == 1 { "core" } else { "cores" };
        let virtualised = if self.virtualised { ", virtual machine" } else { "" };
        write!(f, "{} {plural} of {}, Linux {}{virtualised}", self.cores, self.cpu, self.kernel)
    }
}

/// Processors that this process may run on.
pub(crate) fn cores() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect(),
        Err(_) => vec![0],
    }
}

/// The two processors that a pair of processes runs on; the same one if there is only one.
pub(crate) fn core_pair() -> (usize, usize) {
    let cores = cores();
    let first = cores.first().copied().unwrap_or(0);
    (first, cores.get(1).copied().unwrap_or(first))
}

/// Processors for the daemons of two nodes that stand for two machines: where there are too few for
/// everybody who polls, each has that of its worker. Left to float there, two daemons are now on
/// one processor and now on two, and the figures with them.
pub(crate) fn node_cores() -> [Option<usize>; 2] {
    let (first, second) = core_pair();
    if cores().len() < CORES_FOR_TWO_NODES { [Some(first), Some(second)] } else { [None, None] }
}

/// Puts the calling thread, and what it starts from now on, on one processor. A refusal leaves it
/// where it is: the figures are then noisier, not wrong.
pub(crate) fn pin(core: usize) {
    keep_to(&[core]);
}

/// Puts the calling thread on the last processor, which others [leave](leave_last) to it.
pub(crate) fn take_last(all: &[usize]) {
    if let [_, .., last] = all {
        pin(*last);
    }
}

/// Keeps the calling thread, and what it starts from now on, off the last processor; where there is
/// only one it stays there.
pub(crate) fn leave_last(all: &[usize]) {
    match all.split_last() {
        Some((_, first)) if !first.is_empty() => keep_to(first),
        _ => {}
    }
}

fn keep_to(cores: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// What the machine did besides our measurement, between two samples.
pub(crate) struct Quiet {
    steal: u64,
    total: u64,
    load: f64,
}

impl Quiet {
    /// First sample.
    pub(crate) fn start() -> Quiet {
        let (steal, total) = steal_and_total();
        Quiet { steal, total, load: load() }
    }

    /// What speaks against trusting the figures.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let (steal, total) = steal_and_total();
        let mut warnings = Vec::new();
        let share = (steal.saturating_sub(self.steal)) as f64 / (total.saturating_sub(self.total)).max(1) as f64;
        if share > NOISY_STEAL {
            warnings.push(format!(
                "the hypervisor took {:.1} % of the processors' time during the measurement",
                share * 100.0
            ));
        }
        let cores = cores().len() as f64;
        if self.load > cores * 0.5 {
            warnings.push(format!(
                "other work ran when the measurement began (load {:.2} on {cores} processors); repeat on a quiet machine",
                self.load
            ));
        }
        if cores < 2.0 {
            warnings.push("only one processor: both sides take turns on it".into());
        }
        warnings
    }
}

/// Load average of the last minute.
fn load() -> f64 {
    read_to_string("/proc/loadavg").ok().and_then(|t| t.split(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// Stolen and all time of the processors since the start of the machine, in clock ticks.
fn steal_and_total() -> (u64, u64) {
    let text = read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> =
        text.lines().next().unwrap_or("").split_ascii_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
    (ticks.get(7).copied().unwrap_or(0), ticks.iter().take(8).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_and_cores() {
        let machine = Machine::here();
        assert!(machine.cores >= 1 && !machine.kernel.is_empty());
        assert!(machine.to_string().contains("Linux"));
        assert!(cores().contains(&core_pair().0));
    }

    #[test]
    fn a_thread_that_takes_the_last_processor_has_it_to_itself() {
        let all = cores();
        let on = |place: fn(&[usize])| {
            let all = all.clone();
            std::thread::spawn(move || {
                place(&all);
                cores()
            })
            .join()
            .unwrap()
        };
        let (taken, left) = (on(take_last), on(leave_last));
        match all.split_last() {
            Some((last, rest)) if !rest.is_empty() => assert_eq!((taken, left), (vec![*last], rest.to_vec())),
            _ => assert_eq!((&taken, &left), (&all, &all)),
        }
    }
}
