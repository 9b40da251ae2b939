//! What `vmmc exec` tells the library, in environment variables that programs inherit.
//!
//! Invariant: read once, when the library is loaded; a variable that makes no sense is as if it
//! were not there.

use std::path::Path;
use std::sync::OnceLock;

/// `VMMC_EXEC`: set by `vmmc exec`; without it the library does nothing. `verbose` asks for a
/// report at the end of each program.
pub(crate) const EXEC_VARIABLE: &str = "VMMC_EXEC";
/// `VMMC_EXCLUDE`: words `program:NAME` and `port:NUMBER` or `port:FIRST-LAST`, separated by
/// commas.
pub(crate) const EXCLUDE_VARIABLE: &str = "VMMC_EXCLUDE";

/// What was asked for.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// Whether connections may be upgraded.
    pub(crate) active: bool,
    /// Whether to report at the end.
    pub(crate) verbose: bool,
    /// Ports whose connections stay with the kernel.
    excluded: Vec<(u16, u16)>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// The configuration; inactive until [`load`].
pub(crate) fn config() -> &'static Config {
    static NONE: Config = Config { active: false, verbose: false, excluded: Vec::new() };
    CONFIG.get().unwrap_or(&NONE)
}

/// Reads the environment.
pub(crate) fn load() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let program = std::env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_string()));
    let config = parse(&variable(EXEC_VARIABLE), &variable(EXCLUDE_VARIABLE), &program.unwrap_or_default());
    let _ = CONFIG.set(config);
}

/// Whether the library would do anything in a program with these variables.
pub(crate) fn would_be_active(exec: &str, exclude: &str, program: &Path) -> bool {
    parse(exec, exclude, &program.file_name().unwrap_or_default().to_string_lossy()).active
}

impl Config {
    /// Whether connections of this port, at either end, stay with the kernel.
    pub(crate) fn excludes_port(&self, port: u16) -> bool {
        self.excluded.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Whether ports must be looked at.
    pub(crate) fn excludes_ports(&self) -> bool {
        !self.excluded.is_empty()
    }
}

fn parse(exec: &str, exclude: &str, program: &str) -> Config {
    let words = || exclude.split(',').map(str::trim);
    let excluded = words().filter_map(|word| {
        let ports = word.strip_prefix("port:")?;
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        Some((first.parse().ok()?, last.parse().ok()?))
    });
    let spared = words().any(|word| word.strip_prefix("program:").is_some_and(|name| name == program));
    Config { active: !exec.is_empty() && !spared, verbose: exec == "verbose", excluded: excluded.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_ports_are_excluded() {
        let config = parse("1", "program:sshd,port:22,port:8000-8100,port:x", "redis-server");
        assert!(config.active && !config.verbose);
        assert!(config.excludes_port(22) && config.excludes_port(8050) && !config.excludes_port(8101));
        assert!(!parse("verbose", "program:sshd", "sshd").active);
        assert!(!parse("", "", "redis-server").active);
    }
}
