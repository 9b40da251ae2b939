//! Traces of transfers, in the format that `vmmc utlb` replays. [UTLB §6]
//!
//! Invariant: a trace file is complete whenever no session of the process is alive; a process that is killed leaves one that counts as cut. Records of one process are in the
//! order in which they were written; their times come from the clock that all processes of the machine share.

use crate::limits::TRACE_BUFFER_BYTES;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use vmmc_host::Nanos;
use vmmc_utlb::{Op, OwnWriter, Pages, Process, Record};

/// Name of the environment variable that names the file; `%p` in it becomes the process id.
const FILE_VARIABLE: &str = "VMMC_TRACE";
/// Name of the environment variable that, set to `pinned`, leaves all others than lookups of pinned memory out.
const ONLY_VARIABLE: &str = "VMMC_TRACE_ONLY";

/// A trace that is being written.
pub(crate) struct Tracer {
    writer: Mutex<Writer>,
    /// Only what the tables of pinned memory saw.
    pub(crate) only_pinned: bool,
}

struct Writer {
    stream: OwnWriter<BufWriter<File>>,
    /// Bytes of the end mark, if it stands there now.
    ended: Option<usize>,
    /// Something could not be written: the disk is full, perhaps. The program goes on without a trace.
    failed: bool,
}

/// Traces of this process by file: several sessions write to one.
static TRACERS: Mutex<Option<HashMap<PathBuf, Arc<Tracer>>>> = Mutex::new(None);

impl Tracer {
    /// The one into this file, or the one that the environment asks for.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(crate) fn wanted(file: Option<&Path>) -> Result<Option<Arc<Tracer>>, (PathBuf, std::io::Error)> {
        if let Some(path) = file {
            return Tracer::open(path, false).map(Some).map_err(|error| (path.to_path_buf(), error));
        }
        let Ok(name) = std::env::var(FILE_VARIABLE) else { return Ok(None) };
        if name.is_empty() {
            return Ok(None);
        }
        let path = PathBuf::from(name.replace("%p", &std::process::id().to_string()));
        let only_pinned = std::env::var(ONLY_VARIABLE).is_ok_and(|only| only == "pinned");
        Tracer::open(&path, only_pinned).map(Some).map_err(|error| (path, error))
    }

    fn open(path: &Path, only_pinned: bool) -> std::io::Result<Arc<Tracer>> {
        let mut all = TRACERS.lock().expect("no panic while the lock is held");
        let all = all.get_or_insert_with(HashMap::new);
        if let Some(known) = all.get(path) {
            return Ok(known.clone());
        }
        let file = BufWriter::with_capacity(TRACE_BUFFER_BYTES, File::create(path)?);
        let stream = OwnWriter::new(file)?;
        let writer = Mutex::new(Writer { stream, ended: None, failed: false });
        let tracer = Arc::new(Tracer { writer, only_pinned });
        all.insert(path.to_path_buf(), tracer.clone());
        Ok(tracer)
    }

    /// A transfer or an end of pinning.
    #[cold]
    pub(crate) fn record(&self, process: u32, op: Op, address: u64, len: u64) {
        let (time_ns, process) = (Nanos::monotonic().0, Process(process as u16));
        let mut writer = self.writer.lock().expect("no panic while the lock is held");
        // A record tells lengths of 32 bits.
        let (mut at, mut left) = (address, len);
        loop {
            let len_bytes = left.min(u64::from(u32::MAX >> 12 << 12)) as u32;
            writer.push(&Record { time_ns, process, op, address: at, len_bytes });
            at += u64::from(len_bytes);
            left -= u64::from(len_bytes);
            if left == 0 {
                return;
            }
        }
    }

    /// Pages whose pinning has ended.
    pub(crate) fn unmapped(&self, process: u32, pages: Pages) {
        self.record(process, Op::Unmap, pages.first().number() << 12, pages.count() << 12);
    }

    /// A session has ended: the file is complete, until another one goes on.
    pub(crate) fn pause(&self) {
        let mut writer = self.writer.lock().expect("no panic while the lock is held");
        if writer.ended.is_none() && !writer.failed {
            match writer.stream.end() {
                Ok(bytes) => writer.ended = Some(bytes),
                Err(_) => writer.failed = true,
            }
        }
    }
}

impl Writer {
    fn push(&mut self, record: &Record) {
        if self.failed {
            return;
        }
        let back =
            self.ended.take().map_or(Ok(0), |bytes| self.stream.stream().seek(SeekFrom::Current(-(bytes as i64))));
        self.failed = back.is_err() || self.stream.push(record).is_err();
    }
}
