//! The rings that threads record in, in shared memory, so that what a killed process recorded can
//! still be read.
//!
//! ```text
//!  page 0      magic, turn, by turn: bytes of the file, ticks, nanoseconds
//!  ring        made, taken by turn, 1024 records of 3 words
//! ```
//!
//! Invariant: at every moment the file's first `bytes` bytes and the records `taken..made` of all
//! rings, both of the turn that counts, are everything that was recorded, each record once. The
//! turn changes with one store, after the file was written.

use crate::limits::{TRACE_RING_RECORDS, TRACE_RINGS_MAX};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc_host::Region;
use vmmc_host::region::RegionError;
use vmmc_utlb::{Op, Process, Record};

/// Ticks, address, and `op << 48 | process << 32 | length`.
pub(super) type Raw = [u64; 3];

/// By number.
const OPS: [Op; 4] = [Op::Send, Op::Fetch, Op::Export, Op::Unmap];

const MAGIC: u64 = u64::from_le_bytes(*b"VMMCRNG1");
const MAGIC_AT: u64 = 0;
const TURN_AT: u64 = 8;
/// Of each turn: bytes, ticks, nanoseconds.
const TURNS_AT: u64 = 64;
const TURN_BYTES: u64 = 64;
const RINGS_AT: u64 = 4096;
const MADE_AT: u64 = 0;
const TAKEN_AT: u64 = 8;
const SLOTS_AT: u64 = 64;
const RING_BYTES: u64 = (SLOTS_AT + TRACE_RING_RECORDS as u64 * 24).next_multiple_of(4096);
const ALL_BYTES: u64 = RINGS_AT + TRACE_RINGS_MAX as u64 * RING_BYTES;

/// What a record of a ring becomes.
pub(super) struct Pace {
    then: (u64, u64),
    /// Nanoseconds of 2^32 ticks.
    pace: u128,
}

impl Pace {
    /// Between two moments of (ticks, nanoseconds).
    pub(super) fn between(then: (u64, u64), now: (u64, u64)) -> Pace {
        let ticks = now.0.saturating_sub(then.0).max(1);
        Pace { then, pace: (u128::from(now.1.saturating_sub(then.1)) << 32) / u128::from(ticks) }
    }

    /// None if the words are no record.
    pub(super) fn record(&self, [ticks, address, rest]: Raw) -> Option<Record> {
        let since = (u128::from(ticks.saturating_sub(self.then.0)) * self.pace) >> 32;
        Some(Record {
            time_ns: self.then.1.saturating_add(u64::try_from(since).unwrap_or(u64::MAX)),
            process: Process((rest >> 32) as u16),
            op: *OPS.get((rest >> 48) as usize)?,
            address,
            len_bytes: rest as u32,
        })
    }
}

/// Packs a record.
pub(super) fn raw(ticks: u64, process: u32, op: Op, address: u64, len: u32) -> Raw {
    [ticks, address, (op as u64) << 48 | u64::from(process as u16) << 32 | u64::from(len)]
}

/// Memory of all rings of a tracer.
pub(super) struct Rings {
    region: Region,
    /// Never used before.
    fresh: u64,
    /// Of threads that have ended.
    free: Vec<u64>,
    turn: u64,
}

/// Records of one thread. Only that thread stores to slots and `made`; only the holder of the
/// writer's lock takes.
pub(super) struct Ring {
    region: Region,
    at: u64,
    /// As the shared word of the turn that counts.
    taken: AtomicU64,
}

impl Rings {
    /// In memory that ends with the process, or in a file that does not.
    pub(super) fn new(file: Option<&Path>, now: (u64, u64)) -> Result<Rings, RegionError> {
        let region = match file {
            Some(path) => Region::create_in_file(path, ALL_BYTES)?,
            None => Region::create_in_part(ALL_BYTES, RINGS_AT)?,
        };
        region.reserve(0, RINGS_AT)?;
        let rings = Rings { region, fresh: 0, free: Vec::new(), turn: 0 };
        rings.note(0, 0, now);
        rings.word(MAGIC_AT).store(MAGIC, Ordering::Release);
        Ok(rings)
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        self.region.word(at).expect("the layout lies in the region")
    }

    fn note(&self, turn: u64, bytes: u64, now: (u64, u64)) {
        let at = TURNS_AT + turn * TURN_BYTES;
        [bytes, now.0, now.1].into_iter().zip(0..).for_each(|(value, n)| {
            self.word(at + n * 8).store(value, Ordering::Relaxed);
        });
    }

    /// A ring for a thread; none if there are too many, or no memory for another.
    pub(super) fn claim(&mut self) -> Option<Ring> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let at = RINGS_AT + self.fresh * RING_BYTES;
                if self.fresh >= TRACE_RINGS_MAX as u64 || self.region.reserve(at, RING_BYTES).is_err() {
                    return None;
                }
                self.fresh += 1;
                self.fresh - 1
            }
        };
        let ring = Ring { region: self.region.clone(), at: RINGS_AT + index * RING_BYTES, taken: AtomicU64::new(0) };
        ring.taken.store(ring.made(), Ordering::Relaxed);
        Some(ring)
    }

    /// Its thread has ended, and it is empty.
    pub(super) fn give_back(&mut self, ring: &Ring) {
        self.free.push((ring.at - RINGS_AT) / RING_BYTES);
    }

    /// What was in the rings up to `made` each is in the file, which has so many bytes now.
    pub(super) fn commit<'a>(
        &mut self,
        taken: impl Iterator<Item = (&'a Ring, u64)> + Clone,
        bytes: u64,
        now: (u64, u64),
    ) {
        let turn = 1 - self.turn;
        self.note(turn, bytes, now);
        taken.clone().for_each(|(ring, made)| ring.word(TAKEN_AT + turn * 8).store(made, Ordering::Relaxed));
        self.word(TURN_AT).store(turn, Ordering::Release);
        // A ring that was given back before the next turn counts as empty in both.
        taken.clone().for_each(|(ring, made)| ring.word(TAKEN_AT + self.turn * 8).store(made, Ordering::Release));
        taken.for_each(|(ring, made)| ring.taken.store(made, Ordering::Release));
        self.turn = turn;
    }
}

impl Ring {
    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        self.region.word(self.at + at).expect("the layout lies in the region")
    }

    fn made(&self) -> u64 {
        self.word(MADE_AT).load(Ordering::Acquire)
    }

    /// Whether there was room.
    #[inline]
    pub(super) fn push(&self, raw: Raw) -> bool {
        let made = self.word(MADE_AT).load(Ordering::Relaxed);
        if made - self.taken.load(Ordering::Acquire) >= TRACE_RING_RECORDS as u64 {
            return false;
        }
        let slot = SLOTS_AT + made % TRACE_RING_RECORDS as u64 * 24;
        raw.into_iter().zip(0..).for_each(|(word, n)| self.word(slot + n * 8).store(word, Ordering::Relaxed));
        self.word(MADE_AT).store(made + 1, Ordering::Release);
        true
    }

    /// The trace cannot be written any more: what was recorded up to here makes room.
    pub(super) fn forget(&self, made: u64) {
        self.taken.store(made, Ordering::Release);
    }

    /// Appends what is there, and says up to where that is.
    pub(super) fn read_all(&self, raw: &mut Vec<Raw>) -> u64 {
        let made = self.made();
        for n in self.taken.load(Ordering::Relaxed)..made {
            let slot = SLOTS_AT + n % TRACE_RING_RECORDS as u64 * 24;
            raw.push([0, 8, 16].map(|word| self.word(slot + word).load(Ordering::Relaxed)));
        }
        made
    }
}

/// What a process that has ended had recorded and not written to its file.
pub struct LeftBehind {
    /// Bytes of the file that count; what follows is the half of something.
    pub file_bytes: u64,
    /// What belongs behind them, in the order of time.
    pub records: Vec<Record>,
}

/// Reads the rings of a process that has ended; `now` is the moment on the clocks
/// [`vmmc_host::Ticks`] and [`vmmc_host::Nanos::monotonic`]. None if these are no rings.
pub fn left_behind(rings: &[u8], now: (u64, u64)) -> Option<LeftBehind> {
    let word = |at: u64| {
        let at = usize::try_from(at).ok()?;
        Some(u64::from_le_bytes(rings.get(at..at + 8)?.try_into().ok()?))
    };
    let turn = word(TURN_AT)?;
    if word(MAGIC_AT)? != MAGIC || turn > 1 {
        return None;
    }
    let of_turn = |n: u64| word(TURNS_AT + turn * TURN_BYTES + n * 8);
    let (file_bytes, then) = (of_turn(0)?, (of_turn(1)?, of_turn(2)?));
    let mut raw: Vec<Raw> = Vec::new();
    for ring in (RINGS_AT..rings.len() as u64).step_by(RING_BYTES as usize) {
        let (made, taken) = (word(ring + MADE_AT)?, word(ring + TAKEN_AT + turn * 8)?);
        if made.checked_sub(taken)? > TRACE_RING_RECORDS as u64 {
            return None;
        }
        for n in taken..made {
            let slot = ring + SLOTS_AT + n % TRACE_RING_RECORDS as u64 * 24;
            raw.push([word(slot)?, word(slot + 8)?, word(slot + 16)?]);
        }
    }
    raw.sort_by_key(|raw| raw[0]);
    let pace = Pace::between(then, now);
    let records = raw.into_iter().map(|raw| pace.record(raw)).collect::<Option<_>>()?;
    Some(LeftBehind { file_bytes, records })
}
