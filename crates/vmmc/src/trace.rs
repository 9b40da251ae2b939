//! Traces of transfers, in the format that `vmmc utlb` replays. [UTLB §6]
//!
//! ```text
//!  thread ──record──▶ its ring ──┐ when one is full, or a session ends: all of them,
//!  thread ──record──▶ its ring ──┴──▶ in the order of time, to the file
//! ```
//!
//! Invariant: a trace file is complete whenever no session of the process is alive, and after
//! `exit` and the return from `main`, whatever is still alive then. A process that is killed, or
//! ends by `_exit`, leaves a file that counts as cut and lacks at most [`TRACE_RING_RECORDS`]
//! records of each thread; `vmmc trace record` adds those from the rings, which it keeps in a file
//! ([`rings`]), so it loses nothing. Records of a thread are in the order in which they were made,
//! those of several threads in the order of their times, which come from the clock that all
//! processes of the machine share. A record costs a read of the processor's counter and four
//! stores: no lock, no system call, and what it becomes in the file is made of many at once.

mod rings;

pub use rings::{LeftBehind, left_behind};

#[cfg(any(test, doc))]
use crate::limits::TRACE_RING_RECORDS;
use crate::limits::{TRACE_BUFFER_BYTES, TRACE_PROGRAMS_MAX};
use rings::{Pace, Raw, Ring, Rings};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use vmmc_host::{Nanos, Ticks};
use vmmc_utlb::{Op, OwnWriter, Pages, Record};

/// Name of the environment variable that names the file; `%p` in it becomes the process id.
const FILE_VARIABLE: &str = "VMMC_TRACE";
/// Name of the environment variable that, set to `pinned`, leaves all others than lookups of pinned
/// memory out.
const ONLY_VARIABLE: &str = "VMMC_TRACE_ONLY";

/// Set: the rings are kept in a file beside the trace, with this ending, for the program that
/// finishes the trace of a process that was killed.
const RINGS_VARIABLE: &str = "VMMC_TRACE_RINGS";

/// A trace that is being written.
pub(crate) struct Tracer {
    /// No other tracer of this process has it.
    number: u64,
    /// The process that made it; in a child of a fork nothing is recorded, for the file is the
    /// parent's.
    pid: u32,
    clock: Ticks,
    writer: Mutex<Writer>,
    /// Only what the tables of pinned memory saw.
    pub(crate) only_pinned: bool,
}

struct Writer {
    stream: OwnWriter<BufWriter<File>>,
    memory: Rings,
    /// Of all threads that record, or did.
    rings: Vec<Arc<Ring>>,
    /// What is taken out of the rings at a time.
    raw: Vec<Raw>,
    /// A moment on both clocks.
    then: (u64, u64),
    /// Bytes of the end mark, if it stands there now.
    ended: Option<usize>,
    /// Something could not be written: the disk is full, perhaps. The program goes on without a
    /// trace.
    failed: bool,
}

thread_local! {
    /// Rings of this thread by tracer, the one used last at the end.
    static RINGS: RefCell<Vec<(u64, Arc<Ring>)>> = const { RefCell::new(Vec::new()) };
}

/// Traces of this process by file: several sessions write to one.
static TRACERS: Mutex<Option<HashMap<PathBuf, Arc<Tracer>>>> = Mutex::new(None);
static TRACERS_MADE: AtomicU64 = AtomicU64::new(0);

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
        static AT_EXIT: Once = Once::new();
        let mut all = TRACERS.lock().expect("no panic while the lock is held");
        let all = all.get_or_insert_with(HashMap::new);
        let pid = std::process::id();
        if let Some(known) = all.get(path).filter(|known| known.pid == pid) {
            return Ok(known.clone());
        }
        let (path, name) = (unused(path), path);
        let file = BufWriter::with_capacity(TRACE_BUFFER_BYTES, File::create(&path)?);
        let stream = OwnWriter::new(file)?;
        let clock = Ticks::of_machine();
        let then = (clock.now(), Nanos::monotonic().0);
        let kept = std::env::var(RINGS_VARIABLE).ok().map(|ending| path.with_extension(ending));
        let memory = Rings::new(kept.as_deref(), then).map_err(std::io::Error::other)?;
        let (rings, raw) = (Vec::new(), Vec::new());
        let mut writer = Writer { stream, memory, rings, raw, then, ended: None, failed: false };
        // At least the head is there from the beginning.
        writer.drain(clock);
        let number = TRACERS_MADE.fetch_add(1, Ordering::Relaxed);
        let tracer = Arc::new(Tracer { number, pid, clock, writer: Mutex::new(writer), only_pinned });
        all.insert(name.to_path_buf(), tracer.clone());
        AT_EXIT.call_once(|| {
            vmmc_host::process::at_exit(complete_all);
        });
        Ok(tracer)
    }

    /// A transfer or an end of pinning.
    #[inline(never)]
    pub(crate) fn record(&self, process: u32, op: Op, address: u64, len: u64) {
        let Ok(short) = u32::try_from(len) else { return self.record_long(process, op, address, len) };
        let raw = rings::raw(self.clock.now(), process, op, address, short);
        let done = RINGS.try_with(|rings| {
            if let Some((_, ring)) = rings.borrow().last().filter(|(number, _)| *number == self.number) {
                if ring.push(raw) {
                    return;
                }
            }
            self.record_slowly(rings, raw);
        });
        if done.is_err() {
            // The thread ends, and its ring has gone already.
            self.record_at_once(raw);
        }
    }

    /// A record holds lengths of 32 bits.
    #[cold]
    fn record_long(&self, process: u32, op: Op, address: u64, len: u64) {
        let most = u64::from(u32::MAX >> 12 << 12);
        for done in (0..len).step_by(most as usize) {
            self.record(process, op, address + done, most.min(len - done));
        }
    }

    /// The first record of a thread, one after those of another tracer, or one that finds its ring
    /// full.
    #[cold]
    fn record_slowly(&self, rings: &RefCell<Vec<(u64, Arc<Ring>)>>, raw: Raw) {
        let mut rings = rings.borrow_mut();
        match rings.iter().position(|(number, _)| *number == self.number) {
            Some(at) => {
                let last = rings.len() - 1;
                rings.swap(at, last);
            }
            None => {
                if self.is_parents() {
                    return;
                }
                let mut writer = self.lock();
                let Some(ring) = writer.memory.claim().map(Arc::new) else {
                    drop(writer);
                    return self.record_at_once(raw);
                };
                writer.rings.push(ring.clone());
                drop(writer);
                rings.push((self.number, ring));
            }
        }
        let (_, ring) = rings.last().expect("just put there");
        if !ring.push(raw) {
            if self.is_parents() {
                return;
            }
            self.lock().drain(self.clock);
            assert!(ring.push(raw), "a ring that was emptied has room, and nobody else puts anything in");
        }
    }

    /// More threads record than there are rings, or this one is at its end.
    #[cold]
    fn record_at_once(&self, raw: Raw) {
        if !self.is_parents() {
            let mut writer = self.lock();
            writer.raw.push(raw);
            writer.drain(self.clock);
        }
    }

    fn is_parents(&self) -> bool {
        self.pid != std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("no panic while the lock is held")
    }

    /// Pages whose pinning has ended.
    pub(crate) fn unmapped(&self, process: u32, pages: Pages) {
        self.record(process, Op::Unmap, pages.first().number() << 12, pages.count() << 12);
    }

    /// A session has ended: the file is complete, until another one goes on.
    pub(crate) fn pause(&self) {
        if !self.is_parents() {
            self.lock().complete(self.clock);
        }
    }
}

/// The process ends, perhaps in the middle of a record, or of a drain: what cannot be had is left
/// to the rings.
extern "C" fn complete_all() {
    let Ok(all) = TRACERS.try_lock() else { return };
    for tracer in all.iter().flatten().map(|(_, tracer)| tracer).filter(|tracer| !tracer.is_parents()) {
        if let Ok(mut writer) = tracer.writer.try_lock() {
            writer.complete(tracer.clock);
        }
    }
}

/// A process that starts another program in its own place keeps its number: what the first one
/// recorded stays.
fn unused(path: &Path) -> PathBuf {
    if std::env::var_os(RINGS_VARIABLE).is_none() || !path.exists() {
        return path.to_path_buf();
    }
    let (stem, ending) = (path.file_stem().unwrap_or_default(), path.extension().unwrap_or_default());
    let name = |n: u32| format!("{}-{n}.{}", stem.to_string_lossy(), ending.to_string_lossy());
    let unused = (1..=TRACE_PROGRAMS_MAX).map(|n| path.with_file_name(name(n))).find(|path| !path.exists());
    unused.unwrap_or_else(|| path.to_path_buf())
}

impl Writer {
    /// Writes what is in the rings. Times between two drains lie between their times as their ticks
    /// lie between their ticks.
    fn drain(&mut self, clock: Ticks) {
        let now = (clock.now(), Nanos::monotonic().0);
        let pace = Pace::between(self.then, now);
        self.then = now;
        let mut raw = std::mem::take(&mut self.raw);
        // Asked first: a thread that has ended puts nothing in any more.
        let goes_on: Vec<bool> = self.rings.iter().map(|ring| Arc::strong_count(ring) > 1).collect();
        let taken: Vec<u64> = self.rings.iter().map(|ring| ring.read_all(&mut raw)).collect();
        raw.sort_by_key(|raw| raw[0]);
        for record in raw.drain(..).filter_map(|raw| pace.record(raw)) {
            self.push(&record);
        }
        self.raw = raw;
        let stream = self.stream.stream();
        let bytes = stream.flush().and_then(|()| stream.stream_position());
        self.failed |= bytes.is_err();
        let bytes = bytes.unwrap_or(0).saturating_sub(self.ended.unwrap_or(0) as u64);
        if !self.failed {
            self.memory.commit(self.rings.iter().map(|ring| &**ring).zip(taken.iter().copied()), bytes, now);
        } else {
            // Room for what comes; the file counts as far as it was committed.
            self.rings.iter().zip(&taken).for_each(|(ring, made)| ring.forget(*made));
        }
        let mut goes_on = goes_on.into_iter();
        let memory = &mut self.memory;
        self.rings.retain(|ring| {
            let stays = goes_on.next().unwrap_or(true);
            if !stays {
                memory.give_back(ring);
            }
            stays
        });
    }

    /// Writes what is in the rings, and the end.
    fn complete(&mut self, clock: Ticks) {
        self.drain(clock);
        if self.ended.is_none() && !self.failed {
            match self.stream.end() {
                Ok(bytes) => self.ended = Some(bytes),
                Err(_) => self.failed = true,
            }
        }
    }

    fn push(&mut self, record: &Record) {
        if self.failed {
            return;
        }
        let back = self.ended.take().map_or(Ok(()), |bytes| {
            let stream = self.stream.stream();
            let at = stream.seek(SeekFrom::Current(-(bytes as i64)))?;
            stream.get_ref().set_len(at)
        });
        self.failed = back.is_err() || self.stream.push(record).is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use vmmc_utlb::trace::{Format, read};

    #[test]
    fn records_of_several_threads_are_all_there_in_the_order_of_their_times() {
        const EACH: u64 = 3 * TRACE_RING_RECORDS as u64 + 17;
        let path = std::env::temp_dir().join(format!("vmmc-trace-{}.vmmc", std::process::id()));
        let tracer = Tracer::open(&path, false).expect("a file");
        let before = Nanos::monotonic().0;
        std::thread::scope(|scope| {
            let tracer = &tracer;
            let record = |thread| move || (0..EACH).for_each(|at| tracer.record(thread, Op::Fetch, at << 12, at + 1));
            let threads = [0u32, 1, 2, 3].map(|thread| scope.spawn(record(thread)));
            // Rings go with a thread's local values: only a join waits for those.
            threads.into_iter().for_each(|thread| thread.join().expect("it records"));
        });
        // One that has not ended, after another session has.
        tracer.pause();
        tracer.record(9, Op::Send, 0x7000, 5 << 32);
        tracer.pause();
        let after = Nanos::monotonic().0;
        assert!(tracer.lock().rings.len() == 1, "threads that have ended keep no rings");
        let file = File::open(&path).expect("just written");
        let records: Vec<Record> =
            read("trace", file, Format::Own).expect("a trace").map(|r| r.expect("a complete trace")).collect();
        assert_eq!(records.len() as u64, 4 * EACH + 6, "five times 4 GiB is six records of less");
        assert!(records.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns));
        assert!(records.iter().all(|r| (before..=after).contains(&r.time_ns)), "times are those of the clock");
        let mut next: HashMap<u16, u64> = HashMap::new();
        for record in records.iter().filter(|r| r.op == Op::Fetch) {
            let at = next.entry(record.process.0).or_default();
            assert_eq!((record.address, u64::from(record.len_bytes)), (*at << 12, *at + 1));
            *at += 1;
        }
        assert!((0..4).all(|thread| next[&thread] == EACH));
        let long = records.iter().filter(|r| r.op == Op::Send).map(|r| u64::from(r.len_bytes)).sum::<u64>();
        assert_eq!(long, 5 << 32);
        std::fs::remove_file(path).expect("ours");
    }
}
