//! `vmmc node log`: what a node has written down, also when it does not run any more.
//!
//! Invariant: lines come once and in order, also over the change to the next file.

use super::try_attach;
use crate::args::NodeLog;
use crate::failure::Failure;
use crate::limits::LOG_LOOK;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use vmmc::AttachError;
use vmmc_node::{LOG_IN_JOURNAL, LOG_ON_STDERR, default_log_file};

/// Name of the node that the units run.
const UNITS_NODE: &str = "default";
/// What the units are called, see packaging/systemd: those of the machine, and that of a user.
const UNITS: &[&str] = &["--unit=vmmc-node", "--unit=vmmc-memory", "--user-unit=vmmc-node"];

/// Runs the command.
pub(crate) fn run(log: &NodeLog) -> Result<(), Failure> {
    let name = &log.which.name;
    let path = match try_attach(name) {
        Ok(session) => {
            let info = session.node_info(false)?;
            match &*info.log {
                LOG_IN_JOURNAL => return Err(journal(&entries_of(info.pid), log)),
                LOG_ON_STDERR => {
                    return Err(Failure::new(format!(
                        "node {name:?} writes its log to standard error, where it was started; start it with --log-file FILE to keep it"
                    )));
                }
                "" => {
                    return Err(Failure::new(format!(
                        "node {name:?} keeps no log; start it without `--log-level off` and VMMC_LOG=off, and see `vmmc node status`"
                    )));
                }
                path => PathBuf::from(path),
            }
        }
        Err(error @ AttachError::NoNode { .. }) => {
            let file = default_log_file(name).filter(|path| path.exists());
            let written = file.as_ref().and_then(|path| path.metadata().ok()?.modified().ok());
            let noted = (name == UNITS_NODE).then(last_noted).flatten();
            match (file, noted) {
                // Whichever the last node of this name wrote to.
                (file, Some(noted)) if file.is_none() || written < Some(noted) => {
                    return Err(journal(&UNITS.iter().map(|word| (*word).to_string()).collect::<Vec<_>>(), log));
                }
                (Some(file), _) => file,
                (None, _) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    };
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::PermissionDenied => Failure::new(format!(
            "{}: {e}: the log is for the user of the node alone, which is root where you have no node of that name; ask root",
            path.display()
        )),
        _ => Failure::new(format!("{}: {e}", path.display())),
    };
    let mut file = File::open(&path).map_err(failed)?;
    crate::output(&last_lines(&path, &mut file, log.lines as usize).map_err(failed)?)?;
    if !log.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(LOG_LOOK);
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed)?;
        if let Some(next) = next(&path, &file) {
            // The rest of the old file came above, for it is not written any more.
            file = next;
            file.read_to_end(&mut text).map_err(failed)?;
        }
        crate::output(&String::from_utf8_lossy(&text))?;
    }
}

/// The file that has taken this one's name.
fn next(path: &Path, file: &File) -> Option<File> {
    let next = File::open(path).ok()?;
    let id = |file: &File| file.metadata().ok().map(|about| (about.dev(), about.ino()));
    (id(&next) != id(file)).then_some(next)
}

/// The end of the log: of its file, and of the one before if that one has fewer lines. The file is
/// then read to its end.
fn last_lines(path: &Path, file: &mut File, lines: usize) -> std::io::Result<String> {
    let mut text = Vec::new();
    let mut before = path.as_os_str().to_owned();
    before.push(".1");
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut text)?;
    let count = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
    if count(&text) < lines {
        if let Ok(mut older) = std::fs::read(before) {
            older.append(&mut text);
            text = older;
        }
    }
    let skipped = count(&text).saturating_sub(lines);
    let kept = text.split_inclusive(|byte| *byte == b'\n').skip(skipped).collect::<Vec<_>>().concat();
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// Words for the journal's reader that choose what a running node writes: all of its unit, former
/// runs and what systemd says of them included; without a unit, what this process writes.
fn entries_of(pid: u32) -> Vec<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    vec![unit_of(&groups).unwrap_or_else(|| format!("_PID={pid}"))]
}

/// The unit that a list of control groups names, as a word for the journal's reader.
fn unit_of(groups: &str) -> Option<String> {
    let path = groups.lines().find_map(|line| line.split(':').nth(2).filter(|path| path.contains(".service")))?;
    let unit = path.rsplit('/').find(|name| name.ends_with(".service"))?;
    let of_a_user = path.contains("/user@") && !unit.starts_with("user@");
    Some(format!("--{}={unit}", if of_a_user { "user-unit" } else { "unit" }))
}

/// When one of our units wrote to the journal last, or systemd about one.
fn last_noted() -> Option<SystemTime> {
    let mut reader = Command::new("journalctl");
    let output = reader.args(UNITS).args(["--lines=1", "--output=short-unix", "--quiet"]).output().ok()?;
    let seconds: f64 = String::from_utf8(output.stdout).ok()?.split(' ').next()?.parse().ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(seconds).ok()?)
}

/// The journal has a reader of its own. Returns only when that cannot be started.
fn journal(entries: &[String], log: &NodeLog) -> Failure {
    let mut reader = Command::new("journalctl");
    reader.args(entries).args(["--no-hostname".into(), format!("--lines={}", log.lines)]);
    reader.args(log.follow.then_some("--follow"));
    let why = reader.exec();
    let words = entries.join(" ");
    Failure::new(format!("the node writes to the journal; `journalctl {words}` shows it, but cannot be started: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_of_a_process_is_the_innermost_service() {
        for (groups, unit) in [
            ("0::/system.slice/vmmc-memory.service\n", Some("--unit=vmmc-memory.service")),
            ("0::/user.slice/user-7.slice/user@7.service/app.slice/mine.service\n", Some("--user-unit=mine.service")),
            ("1:name=systemd:/system.slice/a.service/job\n0::/\n", Some("--unit=a.service")),
            ("0::/user.slice/user-7.slice/user@7.service/init.scope\n", Some("--unit=user@7.service")),
            ("0::/user.slice/user-7.slice/session-2.scope\n", None),
            ("", None),
        ] {
            assert_eq!(unit_of(groups).as_deref(), unit, "{groups}");
        }
    }
}
