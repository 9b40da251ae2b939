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
use vmmc::AttachError;
use vmmc_node::{LOG_IN_JOURNAL, LOG_ON_STDERR, default_log_file};

/// Runs the command.
pub(crate) fn run(log: &NodeLog) -> Result<(), Failure> {
    let name = &log.which.name;
    let path = match try_attach(name) {
        Ok(session) => {
            let info = session.node_info(false)?;
            match &*info.log {
                LOG_IN_JOURNAL => return Err(journal(info.pid, log)),
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
            default_log_file(name).filter(|path| path.exists()).ok_or_else(|| Failure::from(error))?
        }
        Err(error) => return Err(error.into()),
    };
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
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

/// The end of the log: of its file, and of the one before if that one has fewer lines. The file is then read to its end.
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

/// The journal has a reader of its own. Returns only when that cannot be started.
fn journal(pid: u32, log: &NodeLog) -> Failure {
    let mut reader = Command::new("journalctl");
    reader.args([format!("_PID={pid}"), "--no-hostname".into(), format!("--lines={}", log.lines)]);
    reader.args(log.follow.then_some("--follow"));
    let why = reader.exec();
    Failure::new(format!(
        "the node writes to the journal; `journalctl _PID={pid}` shows it, but cannot be started: {why}"
    ))
}
