//! Transfers within a node: copies by the caller into and out of the exporter's mapped memory. No
//! system call, no lock, no allocation, and no read of a clock but for one long send in some
//! hundred ([`Stores`]).
//!
//! Invariant: bytes move only between [`enter_lane`] with an open gate and [`leave_lane`], so a
//! revocation that has seen gate closed and lane empty is final. Source: [SHRIMP §2] for
//! the mapping that does the work; ARCHITECTURE.md, "Revocation".

use crate::lanes;
use crate::limits::SHARED_LANE;
use crate::peers::Peer;
use crate::source::Piece;
use crate::tokens::EntryWords;
use crate::trace::Tracer;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vmmc_host::abi::{GateState, RawNotification, gate_state, gate_word};
use vmmc_host::area::{enter_lane, leave_lane, region_bit};
use vmmc_host::control::{Grant, Moved};
use vmmc_host::credit::load_after_store;
use vmmc_host::fork::ForkWord;
use vmmc_host::limits::{LANES, METERS, STORE_TRIAL_BYTES_MIN};
use vmmc_host::meters::{FIRST_OF_IMPORTS, Meter, of_lane};
use vmmc_host::region::{OutOfBounds, Prefetch};
use vmmc_host::stores::{Store, Stores};
use vmmc_host::{AttachArea, Nanos, Region};
use vmmc_nic::{OpError, TokenPart, TokenWords};
use vmmc_utlb::Op;

/// The session is usable. The word of [`Hot::state`] is 0 in a forked child.
pub(crate) const ALIVE: u64 = 1;
/// The node has died or ended.
pub(crate) const GONE: u64 = 2;

/// What every mapped transfer of a session reads.
pub(crate) struct Hot {
    state: ForkWord,
    pub(crate) area: AttachArea,
    /// Meters that no import has.
    meters: Mutex<Meters>,
    /// What records transfers, if they are to be recorded.
    tracer: Option<(u32, Arc<Tracer>)>,
    /// Guards [`SHARED_LANE`].
    shared: Mutex<()>,
}

/// An import that this process maps.
pub(crate) struct Mapped {
    hot: Arc<Hot>,
    region: Region,
    pub(crate) peer: Arc<Peer>,
    /// Of the exporter's region, for those who wait for words of it.
    pub(crate) region_bit: u64,
    gate: u32,
    generation: u32,
    open: u64,
    import: u64,
    /// By lane: its meter of this import, 0 before the first transfer. Only the lane's thread
    /// touches a place.
    meters: Box<[AtomicU16; LANES]>,
    /// How long copies are stored best. Apart from what all sends read.
    stores: Box<Stores>,
}

/// Meters of imports to give out.
struct Meters {
    free: Vec<u16>,
    /// How many were ever given out.
    used: u16,
}

/// Why a mapped transfer did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Gate(GateState),
    Bounds(OutOfBounds),
    Gone,
    Forked,
}

impl Hot {
    pub(crate) fn new(area: AttachArea, state: ForkWord, process: u32, tracer: Option<Arc<Tracer>>) -> Hot {
        state.word().store(ALIVE, Ordering::Release);
        let tracer = tracer.map(|tracer| (process, tracer));
        let meters = Mutex::new(Meters { free: Vec::new(), used: 0 });
        Hot { state, area, meters, tracer, shared: Mutex::new(()) }
    }

    /// [`ALIVE`], [`GONE`], or 0 in a forked child.
    #[inline]
    pub(crate) fn state(&self) -> u64 {
        self.state.word().load(Ordering::Relaxed)
    }

    /// Records a transfer, if transfers are recorded.
    #[inline]
    pub(crate) fn trace(&self, op: Op, address: usize, len: u64) {
        if let Some((process, tracer)) = &self.tracer {
            if !tracer.only_pinned {
                tracer.record(*process, op, address as u64, len);
            }
        }
    }

    /// The trace that pinned memory is recorded in.
    #[inline]
    pub(crate) fn tracer(&self) -> Option<&(u32, Arc<Tracer>)> {
        self.tracer.as_ref()
    }

    pub(crate) fn set_gone(&self) {
        self.state.word().store(GONE, Ordering::Release);
    }

    /// A meter for what a lane moves through an import: one of their own, or that of the lane if
    /// all are taken.
    #[cold]
    fn assign_meter(&self, lane: u32, import: u64) -> u16 {
        let mut meters = self.meters.lock().expect("no panic while the lock is held");
        let fresh = (usize::from(meters.used) < METERS - LANES).then_some(FIRST_OF_IMPORTS + meters.used);
        let Some(meter) = meters.free.pop().or(fresh) else { return of_lane(lane) };
        self.area.meter(meter).assign(import);
        meters.used = meters.used.max(meter - FIRST_OF_IMPORTS + 1);
        self.area.use_meters(meters.used);
        meter
    }

    #[cold]
    fn fault(&self) -> Fault {
        if self.state() == GONE { Fault::Gone } else { Fault::Forked }
    }
}

impl Mapped {
    pub(crate) fn new(hot: Arc<Hot>, region: Region, peer: Arc<Peer>, grant: &Grant) -> Option<Mapped> {
        peer.gates.gate(grant.gate)?;
        Some(Mapped {
            hot,
            region,
            peer,
            region_bit: region_bit(grant.region),
            gate: grant.gate,
            generation: grant.gate_generation,
            open: gate_word(grant.gate_generation, GateState::Open),
            import: grant.import,
            meters: Box::new([const { AtomicU16::new(0) }; LANES]),
            stores: Box::default(),
        })
    }

    /// Runs a transfer with the lane announced and the gate seen open.
    #[inline(always)]
    fn through<R>(&self, transfer: impl FnOnce(Meter<'_>) -> Result<R, OutOfBounds>) -> Result<R, Fault> {
        let lane = lanes::current();
        if lane == SHARED_LANE {
            return self.through_shared(transfer);
        }
        self.inside(lane, transfer)
    }

    #[inline(always)]
    fn inside<R>(&self, lane: u32, transfer: impl FnOnce(Meter<'_>) -> Result<R, OutOfBounds>) -> Result<R, Fault> {
        let hot = &*self.hot;
        if hot.state() != ALIVE {
            return Err(hot.fault());
        }
        // The lane's announcement waits for all stores before it, so what a transfer does after it
        // delays the next one: the meter is found before.
        let meter = self.meter(lane);
        let word = hot.area.lane(lane as usize);
        let gate = self.gate();
        let seen = enter_lane(word, self.import, gate);
        if seen != self.open {
            leave_lane(word);
            return Err(Fault::Gate(gate_state(seen, self.generation)));
        }
        let result = transfer(meter);
        leave_lane(word);
        result.map_err(Fault::Bounds)
    }

    /// As [`through`](Self::through), for what changes the exporter's memory, of whose threads one
    /// may sleep until a word there changes.
    #[inline(always)]
    fn store_through<R>(&self, transfer: impl FnOnce(Meter<'_>) -> Result<R, OutOfBounds>) -> Result<R, Fault> {
        let done = self.through(transfer)?;
        self.peer.stored(self.region_bit);
        Ok(done)
    }

    #[cold]
    fn through_shared<R>(&self, transfer: impl FnOnce(Meter<'_>) -> Result<R, OutOfBounds>) -> Result<R, Fault> {
        let _turn = self.hot.shared.lock().expect("transfers do not panic");
        self.inside(SHARED_LANE, transfer)
    }

    #[inline(always)]
    fn meter(&self, lane: u32) -> Meter<'_> {
        let place = &self.meters[lane as usize];
        let mut index = place.load(Ordering::Relaxed);
        if index == 0 {
            index = self.hot.assign_meter(lane, self.import);
            place.store(index, Ordering::Relaxed);
        }
        self.hot.area.meter(index)
    }

    /// What went through it, but for what threads moved that found no meter free.
    pub(crate) fn moved(&self) -> Moved {
        let mut all = Moved::default();
        self.own_meters().for_each(|index| all.add(self.hot.area.meter(index).moved()));
        all
    }

    fn own_meters(&self) -> impl Iterator<Item = u16> + Clone {
        self.meters.iter().map(|place| place.load(Ordering::Relaxed)).filter(|index| *index >= FIRST_OF_IMPORTS)
    }

    #[inline(always)]
    fn gate(&self) -> &AtomicU64 {
        self.peer.gates.gate(self.gate).expect("checked when the import was made")
    }

    /// The state of the export, without a transfer.
    pub(crate) fn probe(&self) -> Result<(), Fault> {
        self.through(|_| Ok(()))
    }

    /// Deliberate update.
    #[inline]
    pub(crate) fn send(&self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        self.store_through(|count: Meter<'_>| {
            self.store(data.len() as u64, |how| self.region.write_by(how, offset, data))?;
            self.hot.trace(Op::Send, data.as_ptr() as usize, data.len() as u64);
            count.sent(data.len() as u64);
            Ok(())
        })
    }

    /// Deliberate update of `len` bytes by `store`, and then what a word of the exporter is, which
    /// may have changed before the exporter could see the update. `from`: what of it the caller
    /// has.
    #[inline(always)]
    pub(crate) fn send_then_load(
        &self,
        from: &[u8],
        len: u64,
        store: impl FnOnce(&Region) -> Result<(), OutOfBounds>,
        word: u64,
    ) -> Result<u64, Fault> {
        self.store_through(|count: Meter<'_>| {
            store(&self.region)?;
            self.hot.trace(Op::Send, from.as_ptr() as usize, len);
            count.sent(len);
            Ok(load_after_store(self.region.word(word)?))
        })
    }

    /// Has a line that is stored to soon come to this core; see [`Region::prefetch`].
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        self.region.prefetch(offset, Prefetch::Store);
    }

    /// Deliberate update of several places, in turn, behind one check of the gate.
    pub(crate) fn send_pieces(&self, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        self.store_through(|count: Meter<'_>| {
            let mut bytes = 0;
            for (offset, data) in pieces {
                self.store(data.len() as u64, |how| self.region.write_by(how, *offset, data))?;
                self.hot.trace(Op::Send, data.as_ptr() as usize, data.len() as u64);
                bytes += data.len() as u64;
            }
            count.sent(bytes);
            Ok(())
        })
    }

    /// Deliberate update from a region.
    pub(crate) fn send_region(&self, offset: u64, from: &Region, from_offset: u64, len: u64) -> Result<(), Fault> {
        self.store_through(|count: Meter<'_>| {
            self.store(len, |how| from.copy_to_by(how, from_offset, &self.region, offset, len))?;
            self.hot.trace(Op::Send, from.address() + from_offset as usize, len);
            count.sent(len);
            Ok(())
        })
    }

    /// A payload by token, to the buffer that the entry of the token names; one that its token does
    /// not let in is dropped. `each` gives its pieces.
    pub(crate) fn send_token(
        &self,
        token: &TokenPart,
        entries: u32,
        each: impl FnOnce(&mut dyn FnMut(Piece<'_>)),
    ) -> Result<(), Fault> {
        self.store_through(|count: Meter<'_>| {
            let Ok(entry) = token.entry_at(entries) else { return Ok(()) };
            let mut entry = self.region.words(entry, EntryWords::COUNT).map(EntryWords)?;
            let mut at = match entry.take(token, 0, token.total, self.region.len_bytes()) {
                Ok(at) => at,
                Err(OpError::OutOfBounds { offset, len, size }) => return Err(OutOfBounds { offset, len, size }),
                Err(_) => return Ok(()),
            };
            let mut result = Ok(());
            each(&mut |piece| {
                if result.is_ok() {
                    result = self.store(piece.len(), |how| match piece {
                        Piece::Bytes(bytes) => self.region.write_by(how, at, bytes),
                        Piece::Shared(from, start, len) => from.copy_to_by(how, start, &self.region, at, len),
                    });
                    at += piece.len();
                }
            });
            result?;
            entry.finish(token.key);
            count.sent(token.total);
            Ok(())
        })
    }

    /// Copies into the exporter's memory, by the stores that pay for so many bytes.
    #[inline]
    fn store(&self, len: u64, copy: impl FnOnce(Store) -> Result<(), OutOfBounds>) -> Result<(), OutOfBounds> {
        if len < STORE_TRIAL_BYTES_MIN {
            return copy(Store::Cached);
        }
        let mut result = Ok(());
        self.stores.copy(
            len,
            || Nanos::monotonic().0,
            |how| {
                result = copy(how);
                if result.is_ok() { len } else { 0 }
            },
        );
        result
    }

    /// Remote fetch.
    #[inline]
    pub(crate) fn fetch(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.through(|count: Meter<'_>| {
            self.region.read(offset, into)?;
            self.hot.trace(Op::Fetch, into.as_ptr() as usize, into.len() as u64);
            count.fetched(into.len() as u64);
            Ok(())
        })
    }

    /// Remote fetch into a region.
    pub(crate) fn fetch_region(&self, offset: u64, to: &Region, to_offset: u64, len: u64) -> Result<(), Fault> {
        self.through(|count: Meter<'_>| {
            self.region.copy_to(offset, to, to_offset, len)?;
            self.hot.trace(Op::Fetch, to.address() + to_offset as usize, len);
            count.fetched(len);
            Ok(())
        })
    }

    /// An operation on an aligned word.
    #[inline]
    pub(crate) fn atomic(&self, offset: u64, operation: impl FnOnce(&AtomicU64) -> u64) -> Result<u64, Fault> {
        self.store_through(|count: Meter<'_>| {
            let old = operation(self.region.word(offset)?);
            count.atomic();
            Ok(old)
        })
    }

    /// Notifies the receiver, after the data; false when the ring is full, which is counted there.
    pub(crate) fn notify(&self, notification: RawNotification) -> bool {
        self.peer.notify(notification)
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

/// What it counted stays counted for the process.
impl Drop for Mapped {
    fn drop(&mut self) {
        let hot = &*self.hot;
        if hot.state() == 0 || self.own_meters().next().is_none() {
            return;
        }
        let lane = lanes::current();
        let _turn = (lane == SHARED_LANE).then(|| hot.shared.lock().expect("transfers do not panic"));
        let mut meters = hot.meters.lock().expect("no panic while the lock is held");
        hot.area.fold_meters(self.own_meters(), lane);
        meters.free.extend(self.own_meters());
    }
}
