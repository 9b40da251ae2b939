//! `vmmc trace record`: runs a program and records its transfers, those of all its processes, in one trace for `vmmc utlb`.
//!
//! Invariant: the program runs as it would without us; its exit code is ours. A process that was killed leaves the part of its trace that reached the disk.

use super::utlb::trace::{open, store};
use crate::args::TraceRecord;
use crate::failure::Failure;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use vmmc_utlb::trace::{Merge, Reason, Record, Records, TraceError};

/// What sessions of the library read; kept beside `crates/vmmc/src/trace.rs`.
const FILE_VARIABLE: &str = "VMMC_TRACE";
const ONLY_VARIABLE: &str = "VMMC_TRACE_ONLY";

/// Runs the command.
pub(crate) fn record(record: &TraceRecord) -> Result<(), Failure> {
    let name = record.command.first().ok_or_else(|| Failure::Usage("name a program to run".into()))?;
    let parts = Parts::new()?;
    let mut command = Command::new(name);
    command.args(&record.command[1..]).env(FILE_VARIABLE, parts.0.join("%p.vmmc"));
    if record.only_pinned {
        command.env(ONLY_VARIABLE, "pinned");
    }
    let status = command.status().map_err(|e| Failure::not_started(Path::new(name), &e))?;
    let files = parts.files()?;
    if files.is_empty() {
        return ended(status, name)
            .and(Err(Failure::new("the program attached to no node, so there is nothing to record")));
    }
    let inputs = files.iter().map(|file| open(&file.to_string_lossy(), None).map(as_far_as_it_goes));
    // Processes of different nodes may have equal numbers.
    let merged = Merge::new(inputs.collect::<Result<_, _>>()?, true);
    store(&record.out, Box::new(merged))?;
    ended(status, name)
}

/// The program's end as ours.
fn ended(status: ExitStatus, name: &OsStr) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    let text = format!("{} ended with {status}", name.to_string_lossy());
    Err(Failure::Rank { code: u8::try_from(code).unwrap_or(1), text })
}

/// A trace whose writer was killed ends where it ends.
fn as_far_as_it_goes(records: Records<'static>) -> Records<'static> {
    let cut = |record: &Result<Record, TraceError>| match record {
        Err(error) if error.reason == Reason::Truncated => {
            eprintln!("vmmc: {error}; what came before is kept");
            true
        }
        _ => false,
    };
    Box::new(records.take_while(move |record| !cut(record)))
}

/// The folder of the processes' traces; removed at the end.
struct Parts(PathBuf);

impl Parts {
    fn new() -> Result<Parts, Failure> {
        let folder = std::env::temp_dir().join(format!("vmmc-trace-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|e| Failure::new(format!("{}: {e}", folder.display())))?;
        Ok(Parts(folder))
    }

    fn files(&self) -> Result<Vec<PathBuf>, Failure> {
        let list = |folder: &Path| -> std::io::Result<Vec<PathBuf>> {
            std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect()
        };
        let mut files = list(&self.0).map_err(|e| Failure::new(format!("{}: {e}", self.0.display())))?;
        files.sort();
        Ok(files)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
