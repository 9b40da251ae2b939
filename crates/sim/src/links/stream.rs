//! A stream of messages from one node to another, through real engines, and the memory of both
//! ends.
//!
//! Invariant: message `n` lies in slot `n % SLOTS` at both ends, and begins and ends with `n`; a
//! slot is used again when its message is complete. So whoever looks at a slot when its message is
//! announced knows whether all of it arrived, once, and in order.

use vmmc_nic::{AtomicOp, Dma, ImportId, ProcessId, RegionId, RegionRef};

/// Bytes of a message.
pub(crate) const MESSAGE_BYTES: u64 = 32 << 10;
/// Messages under way: more than the longest of the simulated paths holds, queue included.
pub(crate) const SLOTS: u64 = 64;
/// Region at the sender, and at the receiver.
pub(crate) const SOURCE: RegionId = RegionId(0);
pub(crate) const TARGET: RegionId = RegionId(1);

/// What is known of a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) sender: ProcessId,
    pub(crate) receiver: ProcessId,
    /// Once it is granted.
    pub(crate) import: Option<ImportId>,
    /// Messages after which it ends.
    pub(crate) wanted: Option<u64>,
    /// `complete <= announced <= posted`, but for what is under way to the sender.
    pub(crate) posted: u64,
    pub(crate) complete: u64,
    pub(crate) announced: u64,
    /// Bytes that arrived.
    pub(crate) arrived_bytes: u64,
    /// When the first was posted, when the last byte arrived, and all of it.
    pub(crate) began_ns: Option<u64>,
    pub(crate) moved_ns: u64,
    pub(crate) ended_ns: Option<u64>,
    /// When its session ended, as it had to.
    pub(crate) lost_ns: Option<u64>,
    /// Operations that failed with it.
    pub(crate) failed: u64,
    /// Longest time without any byte.
    pub(crate) still_ns: u64,
}

impl Stream {
    /// Whether there is something to send.
    pub(crate) fn has_more(&self) -> bool {
        self.lost_ns.is_none()
            && self.posted - self.complete < SLOTS
            && self.wanted.is_none_or(|wanted| self.posted < wanted)
    }

    /// Whether all of it has arrived, or has failed.
    pub(crate) fn is_over(&self) -> bool {
        let is_lost = self.lost_ns.is_some() && self.complete + self.failed >= self.posted;
        is_lost || self.wanted.is_some_and(|wanted| self.complete >= wanted)
    }
}

/// Memory of a node with one end, or the receiving ends, of streams.
#[derive(Debug, Default)]
pub(crate) struct Ram {
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    at: RegionRef,
    bytes: Vec<u8>,
    /// Bytes deposited into each slot since it was announced.
    filled: Vec<u64>,
    /// Deposited since [`Ram::take_deposited`].
    deposited: u64,
}

/// Byte at which a slot begins.
pub(crate) fn slot_of(message: u64) -> u64 {
    message % SLOTS * MESSAGE_BYTES
}

impl Ram {
    /// Gives a process a region of so many bytes, all of them slots.
    pub(crate) fn add(&mut self, at: RegionRef, bytes: u64) {
        let slots = (bytes / MESSAGE_BYTES) as usize;
        self.regions.push(Region { at, bytes: vec![0; bytes as usize], filled: vec![0; slots], deposited: 0 });
    }

    /// Writes message `n` where it is sent from.
    pub(crate) fn compose(&mut self, at: RegionRef, message: u64) {
        let start = slot_of(message) as usize;
        let region = self.region(at).expect("senders have a source");
        let end = start + MESSAGE_BYTES as usize;
        region.bytes[start..start + 8].copy_from_slice(&message.to_le_bytes());
        region.bytes[end - 8..end].copy_from_slice(&message.to_le_bytes());
    }

    /// What is wrong with message `n`, which is said to have arrived.
    pub(crate) fn examine(&mut self, at: RegionRef, message: u64) -> Result<(), String> {
        let start = slot_of(message) as usize;
        let region = self.region(at).expect("receivers have a target");
        let filled = std::mem::take(&mut region.filled[(message % SLOTS) as usize]);
        if filled != MESSAGE_BYTES {
            return Err(format!("message {message} of {MESSAGE_BYTES} bytes is announced when {filled} have come"));
        }
        let end = start + MESSAGE_BYTES as usize;
        for at in [start, end - 8] {
            let word = u64::from_le_bytes(region.bytes[at..at + 8].try_into().expect("eight bytes"));
            if word != message {
                return Err(format!("message {message} says that it is {word}"));
            }
        }
        Ok(())
    }

    /// Bytes deposited in a region since the last call.
    pub(crate) fn take_deposited(&mut self, at: RegionRef) -> u64 {
        self.region(at).map_or(0, |region| std::mem::take(&mut region.deposited))
    }

    fn region(&mut self, at: RegionRef) -> Option<&mut Region> {
        self.regions.iter_mut().find(|region| region.at == at)
    }
}

/// A node's way to its memory. A bug planted stands between.
pub(crate) struct Port<'a> {
    pub(crate) ram: &'a mut Ram,
    pub(crate) tamper: &'a mut dyn super::tamper::LinkTamper,
}

impl Dma for Port<'_> {
    fn deposit(&mut self, to: RegionRef, offset: u64, data: &[u8]) {
        let times = self.tamper.deposit(data.len());
        for _ in 0..times {
            let Some(region) = self.ram.region(to) else { return };
            region.bytes[offset as usize..offset as usize + data.len()].copy_from_slice(data);
            let end = offset + data.len() as u64;
            for slot in offset / MESSAGE_BYTES..end.div_ceil(MESSAGE_BYTES) {
                let (from, to) = (slot * MESSAGE_BYTES, (slot + 1) * MESSAGE_BYTES);
                region.filled[slot as usize] += end.min(to) - offset.max(from);
            }
            region.deposited += data.len() as u64;
        }
    }

    fn gather(&mut self, from: RegionRef, offset: u64, out: &mut [u8]) {
        match self.ram.region(from) {
            Some(region) => out.copy_from_slice(&region.bytes[offset as usize..offset as usize + out.len()]),
            None => out.fill(0),
        }
    }

    fn copy(&mut self, _: RegionRef, _: u64, _: RegionRef, _: u64, _: u64) {
        unreachable!("no stream stays on its node");
    }

    fn atomic(&mut self, _: RegionRef, _: u64, _: AtomicOp) -> u64 {
        unreachable!("streams have no atomics");
    }
}
