//! `vmmc trace record`: runs a program and records its transfers, those of all its processes, in
//! one trace for `vmmc utlb`.
//!
//! Invariant: the program runs as it would without us; its exit code is ours. Nothing that was
//! recorded is lost, however a process ends: what it had not written yet lies in rings that it
//! shares with a file of ours.

use super::utlb::trace::{open, store};
use crate::args::TraceRecord;
use crate::failure::Failure;
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use vmmc_host::{Nanos, Ticks};
use vmmc_utlb::trace::{Format, Merge, Reason, Record, Records, TraceError, read};

/// What sessions of the library read; kept beside `crates/vmmc/src/trace.rs`.
const FILE_VARIABLE: &str = "VMMC_TRACE";
const ONLY_VARIABLE: &str = "VMMC_TRACE_ONLY";
const RINGS_VARIABLE: &str = "VMMC_TRACE_RINGS";
/// Endings of the two files of a process.
const TRACE: &str = "vmmc";
const RINGS: &str = "rings";

/// Runs the command.
pub(crate) fn record(record: &TraceRecord) -> Result<(), Failure> {
    let name = record.command.first().ok_or_else(|| Failure::Usage("name a program to run".into()))?;
    let parts = Parts::new()?;
    let mut command = Command::new(name);
    command.args(&record.command[1..]);
    command.env(FILE_VARIABLE, parts.0.join(format!("%p.{TRACE}"))).env(RINGS_VARIABLE, RINGS);
    if record.only_pinned {
        command.env(ONLY_VARIABLE, "pinned");
    }
    // An interrupt from the terminal is for the program; its end is ours.
    let _ignored = Ignored::interrupts()?;
    let status = command.status().map_err(|e| Failure::not_started(Path::new(name), &e))?;
    let files = parts.files()?;
    if files.is_empty() {
        return ended(status, name)
            .and(Err(Failure::new("the program attached to no node, so there is nothing to record")));
    }
    let inputs = files.iter().map(|file| whole(file));
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

/// The trace of a process that has ended, with what it had not written yet.
fn whole(file: &Path) -> Result<Records<'static>, Failure> {
    let name = file.to_string_lossy().into_owned();
    let failure = |e: std::io::Error| Failure::new(format!("{name}: {e}"));
    let now = (Ticks::of_machine().now(), Nanos::monotonic().0);
    let rings = std::fs::read(file.with_extension(RINGS)).unwrap_or_default();
    let Some(behind) = vmmc::left_behind(&rings, now) else {
        // Another release, or killed before it began.
        return open(&name, None).map(|records| as_far_as_it_goes(records, true));
    };
    if behind.file_bytes == 0 {
        return Ok(Box::new(behind.records.into_iter().map(Ok)));
    }
    let written = std::fs::File::open(file).map_err(failure)?.take(behind.file_bytes);
    let written = read(&name, written, Format::Own).map_err(Failure::new)?;
    Ok(Box::new(as_far_as_it_goes(written, false).chain(behind.records.into_iter().map(Ok))))
}

/// A trace without an end mark ends where it ends.
fn as_far_as_it_goes(records: Records<'static>, says_so: bool) -> Records<'static> {
    let cut = move |record: &Result<Record, TraceError>| match record {
        Err(error) if error.reason == Reason::Truncated => {
            if says_so {
                eprintln!("vmmc: {error}; what came before is kept");
            }
            true
        }
        _ => false,
    };
    Box::new(records.take_while(move |record| !cut(record)))
}

/// Signals that do nothing to us meanwhile; the program that we start gets its own treatment of
/// them.
struct Ignored(Vec<signal_hook::SigId>);

impl Ignored {
    fn interrupts() -> Result<Ignored, Failure> {
        use signal_hook::consts::{SIGINT, SIGQUIT};
        let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ids = [SIGINT, SIGQUIT].map(|signal| signal_hook::flag::register(signal, flag.clone()));
        Ok(Ignored(ids.into_iter().collect::<Result<_, _>>()?))
    }
}

impl Drop for Ignored {
    fn drop(&mut self) {
        self.0.iter().for_each(|id| {
            signal_hook::low_level::unregister(*id);
        });
    }
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
        files.retain(|file| file.extension().is_some_and(|ending| ending == TRACE));
        files.sort();
        Ok(files)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
