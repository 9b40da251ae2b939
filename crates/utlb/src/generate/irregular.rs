//! Barnes, Raytrace, Volrend and Water: programs whose pages depend on their data. [UTLB §6.1,
//! Table 3]
//!
//! The model: a process uses runs of neighbouring pages (cells of a tree, tiles of a scene, boxes
//! of molecules) that lie scattered over shared memory. It goes from run to run; on the way it
//! returns to pages used a moment ago, and to pages of its past. Invariant: lookups and footprint
//! are as stated, exactly up to rounding; the parameters are tuned on Table 3 and the 1 K rows of
//! Table 4.

use super::schedule::{Event, Phase, trace};
use super::{APPLICATION_PROCESSES, SHARED};
use crate::Rng;
use crate::trace::{Op, Record};

/// One program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Irregular {
    /// Lookups of a node, protocol process excluded.
    lookups: u64,
    /// Distinct pages that a process looks up.
    pages: u64,
    /// Pages of a run.
    run: u64,
    /// Runs begin at multiples of this.
    align: u64,
    /// Shared memory, in pages.
    span: u64,
    /// Share of the lookups of known pages that go to any page of the past; the others go to the
    /// last few.
    far: f64,
    /// Exported pages of a process that it does not look up: the part of the footprint that the
    /// check misses do not explain.
    exported: u64,
    /// The protocol process sends one message in so many, from so many pages.
    protocol: (u64, u64),
}

pub(super) const BARNES: Irregular = Irregular {
    lookups: 35_200,
    pages: 355,
    run: 4,
    align: 64,
    span: 8192,
    far: 0.08,
    exported: 200,
    protocol: (50, 8),
};

pub(super) const RAYTRACE: Irregular = Irregular {
    lookups: 14_300,
    pages: 1578,
    run: 8,
    align: 8,
    span: 16_384,
    far: 0.11,
    exported: 0,
    protocol: (50, 8),
};

pub(super) const VOLREND: Irregular =
    Irregular { lookups: 9_250, pages: 591, run: 6, align: 8, span: 8192, far: 0.18, exported: 0, protocol: (50, 8) };

pub(super) const WATER: Irregular =
    Irregular { lookups: 8_320, pages: 210, run: 6, align: 64, span: 4096, far: 0.9, exported: 260, protocol: (50, 8) };

/// How far back "a moment ago" goes, in pages.
const NEAR: u64 = 6;

impl Irregular {
    pub(super) fn node(&self, node: u16, rng: &mut Rng) -> Vec<Record> {
        let exports: Phase = (0..u64::from(APPLICATION_PROCESSES)).map(|p| self.exports(u64::from(node), p)).collect();
        let work: Phase = (0..APPLICATION_PROCESSES).map(|_| self.work(rng)).collect();
        trace(vec![exports, work], self.protocol, rng)
    }

    fn exports(&self, node: u64, process: u64) -> Vec<Event> {
        let first = SHARED + self.span + (node * u64::from(APPLICATION_PROCESSES) + process) * self.exported;
        (first..first + self.exported).map(|page| Event { op: Op::Export, ..Event::fetch(page) }).collect()
    }

    /// The runs of one process, in the order in which it comes to them.
    fn runs(&self, rng: &mut Rng) -> Vec<u64> {
        let mut starts: Vec<u64> = (0..self.span / self.align).map(|i| SHARED + i * self.align).collect();
        let wanted = self.pages.div_ceil(self.run) as usize;
        for i in 0..wanted.min(starts.len()) {
            let other = i + rng.below((starts.len() - i) as u64) as usize;
            starts.swap(i, other);
        }
        let pages = starts.iter().take(wanted).flat_map(|start| *start..*start + self.run);
        pages.take(self.pages as usize).collect()
    }

    fn work(&self, rng: &mut Rng) -> Vec<Event> {
        let pages = self.runs(rng);
        let lookups = self.lookups / u64::from(APPLICATION_PROCESSES);
        let mut events = Vec::with_capacity(lookups as usize);
        let mut known = 0u64;
        for done in 0..lookups {
            // New pages come evenly over the run.
            let fresh = known * lookups <= done * self.pages && known < pages.len() as u64;
            if fresh {
                known += 1;
            }
            let back = match fresh {
                true => 0,
                false if rng.chance(self.far) => rng.below(known),
                false => rng.below(NEAR.min(known)),
            };
            let page = pages[(known - 1 - back) as usize];
            events.push(if fresh { Event::fetch(page) } else { Event::diff(page, 0, 256) });
        }
        events
    }
}
