//! The log of a daemon: what somebody who was not there wants to read afterwards.
//!
//! ```text
//!   2026-11-24T04:10:11.123Z info  peer: node "beta" is up at 10.0.0.2:4791
//! ```
//!
//! It goes to the journal where standard error is the journal's, to standard error in the
//! foreground, and to a file for a daemon in the background: the next one begins at
//! [`LOG_FILE_BYTES_MAX`], and [`LOG_FILES_KEPT`] old ones are kept.
//!
//! Invariant: nobody can fill the disk or hide other lines through it: lines have a bound for each
//! source and for all, files one of size and number. A line is one line, with nothing that a
//! terminal obeys. Writing never waits for the reader. Nothing on the way of data writes any.

use crate::config::NodeConfig;
use crate::limits::{
    LOG_ALL_BURST, LOG_ALL_EVERY, LOG_BURST, LOG_EVERY, LOG_FILE_BYTES_MAX, LOG_FILES_KEPT, LOG_LINE_BYTES_MAX,
    LOG_NODES_KEPT, LOG_SOURCES_MAX,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use vmmc_host::channel::listening_nodes;
use vmmc_host::text::{printable, utc};

/// How much is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What keeps the node from doing its work.
    Error,
    /// What somebody should look at: refusals, lost peers, attacks.
    Warn,
    /// What happens seldom: start and end, peers that come.
    Info,
    /// Every process that comes, goes or is refused something.
    Debug,
}

impl LogLevel {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Off => "off",
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }

    /// As syslog(3) counts, for the journal.
    fn priority(self) -> u8 {
        match self {
            LogLevel::Off | LogLevel::Error => 3,
            LogLevel::Warn => 4,
            LogLevel::Info => 6,
            LogLevel::Debug => 7,
        }
    }
}

impl std::str::FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<LogLevel, String> {
        let all = [LogLevel::Off, LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug];
        let found = all.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("{text:?} is no level; write off, error, warn, info or debug"))
    }
}

/// The file that a daemon in the background writes: for root `/var/log/vmmc/NAME.log`, for others
/// `$XDG_STATE_HOME/vmmc/NAME.log`, which is `~/.local/state/vmmc/NAME.log` where that is not set.
/// None without a home.
pub fn default_log_file(node: &str) -> Option<PathBuf> {
    let file = format!("{node}.log");
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/var/log/vmmc").join(file));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("vmmc").join(file))
}

/// Place of a log in a description of a node: the journal.
pub const LOG_IN_JOURNAL: &str = "journal";
/// The same: standard error of a daemon in the foreground.
pub const LOG_ON_STDERR: &str = "stderr";

/// The log of this process.
pub(crate) struct Log {
    level: LogLevel,
    sink: Sink,
    sources: Sources,
}

enum Sink {
    Nowhere,
    Journal,
    Stderr,
    File(LogFile),
}

impl Log {
    /// The log that the configuration asks for; besides why there is none, if it cannot be written.
    pub(crate) fn open(config: &NodeConfig) -> (Log, Option<String>) {
        let level = config.log_level.unwrap_or(LogLevel::Info);
        let (sink, failure) = match sink(config, level) {
            Ok(sink) => (sink, None),
            Err(why) => (Sink::Nowhere, Some(format!("there is no log: {why}; name a file (--log-file)"))),
        };
        let level = if matches!(sink, Sink::Nowhere) { LogLevel::Off } else { level };
        (Log { level, sink, sources: Sources::default() }, failure)
    }

    /// Down to which level it is kept.
    pub(crate) fn level(&self) -> LogLevel {
        self.level
    }

    /// Where, as a description of the node says it; empty: nowhere.
    pub(crate) fn place(&self) -> String {
        match &self.sink {
            Sink::Nowhere => String::new(),
            Sink::Journal => LOG_IN_JOURNAL.into(),
            Sink::Stderr => LOG_ON_STDERR.into(),
            Sink::File(file) => file.path.display().to_string(),
        }
    }

    /// Writes what the node itself does, which nobody else causes.
    pub(crate) fn own(&mut self, level: LogLevel, text: &str) {
        if level <= self.level {
            self.put(level, "node", text);
        }
    }

    /// Writes a line about something that `who`, of the kind `topic`, causes; unless its share is
    /// used up.
    pub(crate) fn line(&mut self, level: LogLevel, topic: &'static str, who: u64, text: &str) {
        if level > self.level {
            return;
        }
        match self.sources.admit((topic, who), Instant::now()) {
            None => {}
            Some(0) => self.put(level, topic, text),
            Some(left_out) => self.put(level, topic, &format!("{text} ({left_out} lines before this were left out)")),
        }
    }

    fn put(&mut self, level: LogLevel, topic: &str, text: &str) {
        let mut text = printable(text).into_owned();
        while text.len() > LOG_LINE_BYTES_MAX {
            text.pop();
        }
        let timed = || format!("{} {:<5} {topic}: {text}\n", utc(SystemTime::now()), level.name());
        match &mut self.sink {
            Sink::Nowhere => {}
            Sink::Journal => to_stderr(&format!("<{}>{topic}: {text}\n", level.priority())),
            Sink::Stderr => to_stderr(&timed()),
            Sink::File(file) => file.append(&timed()),
        }
    }

    /// Has a panic of this process leave its words in the log, when standard error leads nowhere.
    pub(crate) fn catch_panics(&self) {
        let Sink::File(file) = &self.sink else { return };
        let path = file.path.clone();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |about| {
            let text = format!("{} error node: {}\n", utc(SystemTime::now()), printable(&about.to_string()));
            // A reader may have removed it; the process ends anyway.
            let _ = open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
            before(about);
        }));
    }
}

fn sink(config: &NodeConfig, level: LogLevel) -> Result<Sink, String> {
    let file =
        |path: PathBuf| LogFile::open(path.clone()).map(Sink::File).map_err(|e| format!("{}: {e}", path.display()));
    match &config.log_file {
        _ if level == LogLevel::Off => Ok(Sink::Nowhere),
        Some(path) => file(path.clone()),
        // A thread of some program: its standard error is not ours.
        None if !config.handle_signals => Ok(Sink::Nowhere),
        None if config.detach => {
            let path = default_log_file(&config.name).ok_or("neither XDG_STATE_HOME nor HOME is set")?;
            remove_oldest(&path);
            file(path)
        }
        None if stderr_is_the_journal() => Ok(Sink::Journal),
        None => Ok(Sink::Stderr),
    }
}

/// systemd says which stream is its own (systemd.exec(5)); it may have been replaced since.
fn stderr_is_the_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(std::io::stderr()).is_ok_and(|about| stream == format!("{}:{}", about.st_dev, about.st_ino))
}

/// A line of at most a pipe's page; dropped when the reader does not read.
fn to_stderr(line: &str) {
    let stderr = std::io::stderr();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    if matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0) {
        // The process that started us may have closed it.
        let _ = (&stderr).write_all(line.as_bytes());
    }
}

struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

fn open(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

/// The same log's file before this one.
fn older(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

impl LogFile {
    fn open(path: PathBuf) -> std::io::Result<LogFile> {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let file = open(&path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(std::io::Error::other("it is not a file"));
        }
        Ok(LogFile { path, file, bytes: about.size() })
    }

    fn append(&mut self, line: &str) {
        if self.bytes + line.len() as u64 > LOG_FILE_BYTES_MAX {
            self.rotate();
        }
        // On a full disk the line is lost; the node serves all the same.
        if self.file.write_all(line.as_bytes()).is_ok() {
            self.bytes += line.len() as u64;
        }
    }

    fn rotate(&mut self) {
        for number in (1..LOG_FILES_KEPT).rev() {
            let _ = std::fs::rename(older(&self.path, number), older(&self.path, number + 1));
        }
        let _ = std::fs::rename(&self.path, older(&self.path, 1));
        match open(&self.path) {
            Ok(file) => (self.file, self.bytes) = (file, 0),
            // The folder has gone or is full: what is there is begun anew, so that it stays
            // bounded.
            Err(_) if self.file.set_len(0).is_ok() => self.bytes = 0,
            Err(_) => {}
        }
    }
}

/// Nodes with names of their own leave logs behind: of those that do not run the oldest are
/// removed.
fn remove_oldest(path: &Path) {
    let uid = rustix::process::geteuid().as_raw();
    let running = listening_nodes();
    let entries = path.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
    let mut logs: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|log| log.extension().is_some_and(|end| end == "log") && log != path)
        .filter(|log| {
            let name = log.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            !running.contains(&(uid, name))
        })
        .filter_map(|log| Some((log.symlink_metadata().ok()?.modified().ok()?, log)))
        .collect();
    logs.sort();
    let surplus = (logs.len() + 1).saturating_sub(LOG_NODES_KEPT);
    for (_, log) in logs.into_iter().take(surplus) {
        let all = std::iter::once(log.clone()).chain((1..=LOG_FILES_KEPT).map(|number| older(&log, number)));
        // Another node that starts at this moment may do the same.
        all.for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// What each source may still write.
#[derive(Default)]
struct Sources {
    each: HashMap<(&'static str, u64), Share>,
    all: Option<Share>,
}

struct Share {
    lines: u32,
    filled: Instant,
    left_out: u64,
}

impl Share {
    fn new(lines: u32, now: Instant) -> Share {
        Share { lines, filled: now, left_out: 0 }
    }

    /// Takes a line if there is one; a new one comes after every `every`, up to `most`.
    fn take(&mut self, now: Instant, every: Duration, most: u32) -> bool {
        let come = (now.duration_since(self.filled).as_nanos() / every.as_nanos()).min(u128::from(most)) as u32;
        if come > 0 {
            (self.lines, self.filled) = ((self.lines + come).min(most), now);
        }
        let any = self.lines > 0;
        self.lines -= u32::from(any);
        any
    }
}

impl Sources {
    /// Whether this source may write a line now: if so, how many it could not write before.
    fn admit(&mut self, source: (&'static str, u64), now: Instant) -> Option<u64> {
        if self.each.len() >= LOG_SOURCES_MAX && !self.each.contains_key(&source) {
            // Those whose share is whole again are as good as new ones; others make room by age,
            // and come with a new share.
            self.each.retain(|_, share| now.duration_since(share.filled) < LOG_EVERY * LOG_BURST || share.left_out > 0);
            if self.each.len() >= LOG_SOURCES_MAX {
                let oldest = self.each.iter().min_by_key(|(_, share)| share.filled).map(|(source, _)| *source);
                oldest.map(|source| self.each.remove(&source));
            }
        }
        let share = self.each.entry(source).or_insert_with(|| Share::new(LOG_BURST, now));
        let all = self.all.get_or_insert_with(|| Share::new(LOG_ALL_BURST, now));
        if share.take(now, LOG_EVERY, LOG_BURST) && all.take(now, LOG_ALL_EVERY, LOG_ALL_BURST) {
            return Some(std::mem::take(&mut share.left_out));
        }
        share.left_out += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(what: &str) -> PathBuf {
        std::env::temp_dir().join(format!("vmmc-log-{}-{what}", std::process::id()))
    }

    fn log(path: &Path, level: LogLevel) -> Log {
        let config = NodeConfig { log_file: Some(path.into()), log_level: Some(level), ..NodeConfig::new("log") };
        let (log, failure) = Log::open(&config);
        assert_eq!(failure, None);
        log
    }

    #[test]
    fn lines_have_a_time_and_a_level_and_stay_lines() {
        let folder = folder("lines");
        let path = folder.join("a/b.log");
        let mut log = log(&path, LogLevel::Info);
        log.line(LogLevel::Warn, "peer", 1, "evil\nnode\x1b[2J");
        log.line(LogLevel::Debug, "peer", 1, "too fine");
        let text = std::fs::read_to_string(&path).expect("it was written");
        let mode = path.metadata().expect("it is there").mode();
        std::fs::remove_dir_all(&folder).expect("it is ours");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.ends_with("Z warn  peer: evil\\nnode\\u{1b}[2J\n"), "{text}");
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let folder = folder("files");
        let path = folder.join("a.log");
        let mut log = log(&path, LogLevel::Info);
        let line = "x".repeat(LOG_LINE_BYTES_MAX);
        let lines = (LOG_FILES_KEPT as u64 + 3) * LOG_FILE_BYTES_MAX / line.len() as u64;
        (0..lines).for_each(|_| log.own(LogLevel::Info, &line));
        let sizes: Vec<u64> = std::fs::read_dir(&folder)
            .expect("it is there")
            .map(|entry| entry.expect("it stays").metadata().expect("it stays").size())
            .collect();
        std::fs::remove_dir_all(&folder).expect("it is ours");
        assert_eq!(sizes.len(), LOG_FILES_KEPT + 1);
        assert!(sizes.iter().all(|size| *size <= LOG_FILE_BYTES_MAX), "{sizes:?}");
    }

    #[test]
    fn a_source_that_floods_is_cut_and_others_are_not() {
        let mut sources = Sources::default();
        let start = Instant::now();
        let written = (0..10_000).filter(|_| sources.admit(("process", 7), start).is_some()).count();
        assert_eq!(written, LOG_BURST as usize);
        assert_eq!(sources.admit(("process", 8), start), Some(0));
        assert_eq!(sources.admit(("process", 7), start + LOG_EVERY), Some(10_000 - u64::from(LOG_BURST)));
    }

    #[test]
    fn many_sources_are_bounded_together() {
        let mut sources = Sources::default();
        let start = Instant::now();
        let written = (0..100_000).filter(|who| sources.admit(("process", *who), start).is_some()).count();
        assert_eq!(written, LOG_ALL_BURST as usize);
        assert!(sources.each.len() <= LOG_SOURCES_MAX);
    }

    #[test]
    fn levels_are_read_and_ordered() {
        assert_eq!("warn".parse(), Ok(LogLevel::Warn));
        assert!("loud".parse::<LogLevel>().is_err_and(|why| why.contains("off, error, warn, info or debug")));
        assert!(LogLevel::Error < LogLevel::Debug && LogLevel::Off < LogLevel::Error);
    }
}
