//! Traces of transfers, in the format that `vmmc utlb` replays. [UTLB §6]
//!
//! ```text
//!  thread ──record──▶ its ring ──┐ when one is full, or a session ends: all of them,
//!  thread ──record──▶ its ring ──┴──▶ in the order of time, to the file
//! ```
//!
//! Invariant: a trace file is complete whenever no session of the process is alive; a process that is killed leaves one that counts as cut. Records of a thread are in the
//! order in which they were made, those of several threads in the order of their times, which come from the clock that all processes of the machine share. A record costs a look at
//! the processor's counter and three stores: no lock, no system call, and what it becomes in the file is made of many at once.

use crate::limits::{TRACE_BUFFER_BYTES, TRACE_RING_RECORDS};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use vmmc_host::{Nanos, Ticks};
use vmmc_utlb::{Op, OwnWriter, Pages, Process, Record};

/// Name of the environment variable that names the file; `%p` in it becomes the process id.
const FILE_VARIABLE: &str = "VMMC_TRACE";
/// Name of the environment variable that, set to `pinned`, leaves all others than lookups of pinned memory out.
const ONLY_VARIABLE: &str = "VMMC_TRACE_ONLY";

/// By number.
const OPS: [Op; 4] = [Op::Send, Op::Fetch, Op::Export, Op::Unmap];

/// A trace that is being written.
pub(crate) struct Tracer {
    /// No other tracer of this process has it.
    number: u64,
    clock: Ticks,
    writer: Mutex<Writer>,
    /// Only what the tables of pinned memory saw.
    pub(crate) only_pinned: bool,
}

struct Writer {
    stream: OwnWriter<BufWriter<File>>,
    /// Of all threads that record, or did.
    rings: Vec<Arc<Ring>>,
    /// What is taken out of the rings at a time.
    raw: Vec<Raw>,
    /// A moment on both clocks.
    then: (u64, u64),
    /// Bytes of the end mark, if it stands there now.
    ended: Option<usize>,
    /// Something could not be written: the disk is full, perhaps. The program goes on without a trace.
    failed: bool,
}

/// Ticks, address, and `op << 48 | process << 32 | length`.
type Raw = [u64; 3];

/// Records of one thread. Only that thread stores to slots and `made`; only who has the writer's lock takes.
struct Ring {
    slots: Box<[[AtomicU64; 3]]>,
    made: AtomicU64,
    taken: AtomicU64,
}

impl Ring {
    fn new() -> Ring {
        let slots = (0..TRACE_RING_RECORDS).map(|_| Default::default()).collect();
        Ring { slots, made: AtomicU64::new(0), taken: AtomicU64::new(0) }
    }

    /// Whether there was room.
    #[inline]
    fn push(&self, raw: Raw) -> bool {
        let made = self.made.load(Ordering::Relaxed);
        if made - self.taken.load(Ordering::Acquire) >= TRACE_RING_RECORDS as u64 {
            return false;
        }
        let slot = &self.slots[made as usize % TRACE_RING_RECORDS];
        slot.iter().zip(raw).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.made.store(made + 1, Ordering::Release);
        true
    }

    fn take_all(&self, raw: &mut Vec<Raw>) {
        let made = self.made.load(Ordering::Acquire);
        for at in self.taken.load(Ordering::Relaxed)..made {
            let slot = &self.slots[at as usize % TRACE_RING_RECORDS];
            raw.push([0, 1, 2].map(|word: usize| slot[word].load(Ordering::Relaxed)));
        }
        self.taken.store(made, Ordering::Release);
    }
}

thread_local! {
    /// Rings of this thread by tracer, the one used last at the end.
    static RINGS: RefCell<Vec<(u64, Arc<Ring>)>> = const { RefCell::new(Vec::new()) };
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
        let clock = Ticks::of_machine();
        let then = (clock.now(), Nanos::monotonic().0);
        let writer = Writer { stream, rings: Vec::new(), raw: Vec::new(), then, ended: None, failed: false };
        let tracer = Arc::new(Tracer { number: all.len() as u64, clock, writer: Mutex::new(writer), only_pinned });
        all.insert(path.to_path_buf(), tracer.clone());
        Ok(tracer)
    }

    /// A transfer or an end of pinning.
    #[inline(never)]
    pub(crate) fn record(&self, process: u32, op: Op, address: u64, len: u64) {
        if len > u64::from(u32::MAX) {
            return self.record_long(process, op, address, len);
        }
        let raw = [self.clock.now(), address, (op as u64) << 48 | u64::from(process as u16) << 32 | len];
        // While a thread ends, its last transfers may find its ring gone: they are left out.
        let _ = RINGS.try_with(|rings| {
            if let Some((_, ring)) = rings.borrow().last().filter(|(number, _)| *number == self.number) {
                if ring.push(raw) {
                    return;
                }
            }
            self.record_slowly(rings, raw);
        });
    }

    /// A record tells lengths of 32 bits.
    #[cold]
    fn record_long(&self, process: u32, op: Op, address: u64, len: u64) {
        let most = u64::from(u32::MAX >> 12 << 12);
        for done in (0..len).step_by(most as usize) {
            self.record(process, op, address + done, most.min(len - done));
        }
    }

    /// The first record of a thread, one after those of another tracer, or one that finds its ring full.
    #[cold]
    fn record_slowly(&self, rings: &RefCell<Vec<(u64, Arc<Ring>)>>, raw: Raw) {
        let mut rings = rings.borrow_mut();
        match rings.iter().position(|(number, _)| *number == self.number) {
            Some(at) => {
                let last = rings.len() - 1;
                rings.swap(at, last);
            }
            None => {
                let ring = Arc::new(Ring::new());
                self.lock().rings.push(ring.clone());
                rings.push((self.number, ring));
            }
        }
        let (_, ring) = rings.last().expect("just put there");
        if !ring.push(raw) {
            self.lock().drain(self.clock);
            assert!(ring.push(raw), "a ring that was emptied has room, and nobody else puts anything in");
        }
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
        let mut writer = self.lock();
        writer.drain(self.clock);
        if writer.ended.is_none() && !writer.failed {
            match writer.stream.end() {
                Ok(bytes) => writer.ended = Some(bytes),
                Err(_) => writer.failed = true,
            }
        }
    }
}

impl Writer {
    /// Writes what is in the rings. Times between two drains lie between their times as their ticks lie between their ticks.
    fn drain(&mut self, clock: Ticks) {
        let (then, now) = (self.then, (clock.now(), Nanos::monotonic().0));
        let pace = (u128::from(now.1 - then.1) << 32) / u128::from(now.0.saturating_sub(then.0).max(1));
        self.then = now;
        let mut raw = std::mem::take(&mut self.raw);
        self.rings.retain(|ring| {
            // Asked first: a thread that has ended puts nothing in any more.
            let goes_on = Arc::strong_count(ring) > 1;
            ring.take_all(&mut raw);
            goes_on
        });
        raw.sort_by_key(|raw| raw[0]);
        for [ticks, address, rest] in raw.drain(..) {
            let since = (u128::from(ticks.saturating_sub(then.0)) * pace) >> 32;
            self.push(&Record {
                time_ns: then.1 + since as u64,
                process: Process((rest >> 32) as u16),
                op: OPS[(rest >> 48) as usize],
                address,
                len_bytes: rest as u32,
            });
        }
        self.raw = raw;
    }

    fn push(&mut self, record: &Record) {
        if self.failed {
            return;
        }
        let back =
            self.ended.take().map_or(Ok(0), |bytes| self.stream.stream().seek(SeekFrom::Current(-(bytes as i64))));
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
