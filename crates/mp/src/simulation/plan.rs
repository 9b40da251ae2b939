//! The collective calls of a simulated job: which there are, in what order, and what each is to
//! give, computed from what all members put in.
//!
//! A member makes the calls of its groups in the order of this list, those of one group on one of
//! its threads. Each group that a call makes is known beforehand, by its members.
//!
//! Invariant: no call is on the list behind one that a member of its group makes wrongly, and none
//! of a group in which a call has failed.

use super::Rng;
use super::model::content;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Groups that a run has at most.
const GROUPS_MAX: usize = 10;
/// Bytes of a call's memory at most, of all members.
const CALL_BYTES_MAX: usize = 160 << 10;
/// Bytes that the operation whose order matters works on.
const UNIT: usize = 16;

/// A collective call of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Barrier,
    Broadcast,
    Gather,
    GatherVaried,
    Allgather,
    AllgatherVaried,
    Scatter,
    AllToAll,
    AllToAllVaried,
    Reduce,
    ReduceBy,
    Allreduce,
    AllreduceBy,
    Scan,
    ScanBy,
    Duplicate,
    Split,
}

const ALL: [What; 17] = [
    What::Barrier,
    What::Broadcast,
    What::Gather,
    What::GatherVaried,
    What::Allgather,
    What::AllgatherVaried,
    What::Scatter,
    What::AllToAll,
    What::AllToAllVaried,
    What::Reduce,
    What::ReduceBy,
    What::Allreduce,
    What::AllreduceBy,
    What::Scan,
    What::ScanBy,
    What::Duplicate,
    What::Split,
];

/// A call as one member makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) what: What,
    pub(super) root: u32,
    /// Bytes of a member, or what such are multiples of.
    pub(super) len: usize,
}

/// A call of the list.
pub(super) struct Planned {
    pub(super) group: usize,
    pub(super) made: Made,
    /// Who makes another call instead, or none.
    pub(super) odd: Option<(u32, Option<Made>)>,
    /// Members, among all, that have begun it.
    pub(super) entered: BTreeSet<u32>,
}

/// A group of the list.
pub(super) struct Circle {
    pub(super) members: Arc<[u32]>,
    /// Its number, once a member has learned it.
    pub(super) number: Option<u32>,
    /// Of whose members it was made.
    pub(super) parent: Option<usize>,
    /// The call that makes it.
    pub(super) by: Option<usize>,
    /// Some member makes another call than the others.
    pub(super) odd: bool,
    /// A call has failed.
    pub(super) failed: bool,
}

/// See the module page.
pub(super) struct Plan {
    rng: Rng,
    pub(super) calls: Vec<Planned>,
    pub(super) groups: Vec<Circle>,
    /// Some members make wrong calls.
    odd: bool,
    /// No call is added.
    pub(super) closed: bool,
    /// Since then.
    pub(super) closed_at: u64,
    /// Calls that members have made, and those that failed.
    pub(super) made: u64,
    pub(super) failed: u64,
}

impl Plan {
    /// None of them, of so many members.
    pub(super) fn none() -> Plan {
        let (calls, groups) = (Vec::new(), Vec::new());
        Plan { rng: Rng::new(0), calls, groups, odd: false, closed: true, closed_at: 0, made: 0, failed: 0 }
    }

    /// Groups at the beginning, by number: one of all members, and some of a few, in any order; as
    /// if rank 0 had given their numbers.
    pub(super) fn new(mut rng: Rng, size: u32) -> Plan {
        let mut groups: Vec<Circle> = Vec::new();
        for number in 1..3 + rng.below(2) as u32 {
            let mut members: Vec<u32> = (0..size).collect();
            if number > 1 {
                members.retain(|_| rng.below(3) > 0);
                (1..members.len()).for_each(|at| members.swap(at, rng.below(at as u64 + 1) as usize));
            }
            if !members.is_empty() {
                groups.push(Circle::new(members.into(), Some(number), None, None));
            }
        }
        let odd = rng.below(4) == 0;
        Plan { rng, groups, odd, closed: false, ..Plan::none() }
    }

    /// Adds a call, if one can be.
    pub(super) fn extend(&mut self) {
        if self.closed {
            return;
        }
        let group = self.rng.below(self.groups.len() as u64) as usize;
        if self.groups[group].odd || self.is_troubled(group) {
            return;
        }
        let size = self.groups[group].members.len();
        let made = self.draw(size);
        let mut odd = None;
        if self.odd && self.rng.below(12) == 0 && size > 1 {
            let rank = self.rng.below(size as u64) as usize;
            let other = match self.rng.below(4) {
                0 => None,
                1 => Some(Made { root: (made.root + 1) % size as u32, ..made }),
                2 => Some(Made { len: made.len + 1 + self.rng.below(50) as usize, ..made }),
                _ => Some(self.draw(size)),
            };
            // Groups that are made so are not what anybody expects.
            let makes = |made: &Made| matches!(made.what, What::Duplicate | What::Split);
            if !makes(&made) && !other.as_ref().is_some_and(makes) && other != Some(made) {
                self.groups[group].odd = true;
                odd = Some((self.groups[group].members[rank], other));
            }
        }
        let call = self.calls.len();
        self.calls.push(Planned { group, made, odd, entered: BTreeSet::new() });
        self.adds_groups(call);
    }

    fn draw(&mut self, size: usize) -> Made {
        let what = match ALL[self.rng.below(ALL.len() as u64) as usize] {
            What::Duplicate | What::Split if self.groups.len() >= GROUPS_MAX => What::Barrier,
            what => what,
        };
        let len = [1, 8, 100, 1000, 5000, 20_000, 70_000][self.rng.below(7) as usize];
        let len = self.rng.below(len + 1) as usize;
        let len = match what {
            What::Gather | What::GatherVaried | What::Scatter => len.min(CALL_BYTES_MAX / size),
            What::Allgather | What::AllgatherVaried => len.min(CALL_BYTES_MAX / size),
            What::AllToAll | What::AllToAllVaried => len.min(CALL_BYTES_MAX / (size * size)),
            _ => len,
        };
        Made { what, root: self.rng.below(size as u64) as u32, len }
    }

    /// Those that a call makes.
    fn adds_groups(&mut self, call: usize) {
        let Planned { group, made, .. } = &self.calls[call];
        let (group, members) = (*group, self.groups[*group].members.clone());
        let lists: Vec<Arc<[u32]>> = match made.what {
            What::Duplicate => vec![members],
            What::Split => (0..COLOURS).map(|colour| chosen(call, &members, colour)).collect(),
            _ => return,
        };
        for members in lists.into_iter().filter(|members| !members.is_empty()) {
            self.groups.push(Circle::new(members, None, Some(group), Some(call)));
        }
    }

    /// Whether a call of a group may fail that all members make rightly, whoever has gone.
    pub(super) fn is_troubled(&self, group: usize) -> bool {
        let Circle { odd, failed, parent, .. } = &self.groups[group];
        *failed || *odd || parent.is_some_and(|parent| self.is_troubled(parent))
    }

    /// Whether some call was made wrongly.
    pub(super) fn has_odd(&self) -> bool {
        self.groups.iter().any(|group| group.odd)
    }

    /// Whether a call that makes a group has failed, perhaps for some members alone.
    pub(super) fn has_half_made(&self) -> bool {
        self.groups.iter().any(|group| group.parent.is_some_and(|parent| self.groups[parent].failed))
    }

    /// The group that a call has made for a member: its place on the list.
    pub(super) fn made_by(&self, call: usize, member: u32) -> Option<usize> {
        self.groups.iter().position(|group| group.by == Some(call) && group.members.contains(&member))
    }

    /// What a member is to have in the end; none: nothing that matters.
    pub(super) fn due(&self, call: usize, rank: usize) -> Option<Vec<u8>> {
        let Planned { group, made: Made { what, root, len }, .. } = self.calls[call];
        let (size, root) = (self.groups[group].members.len(), root as usize);
        let part = |of: usize| input(call, of, len);
        let varied = |of: usize| input(call, of, varied(len, of));
        let is_root = rank == root;
        match what {
            What::Barrier | What::Duplicate | What::Split => None,
            What::Broadcast => Some(part(root)),
            What::Gather => is_root.then(|| (0..size).flat_map(part).collect()),
            What::GatherVaried => is_root.then(|| (0..size).flat_map(varied).collect()),
            What::Allgather => Some((0..size).flat_map(part).collect()),
            What::AllgatherVaried => Some((0..size).flat_map(varied).collect()),
            What::Scatter => Some(part(rank)),
            What::AllToAll => Some((0..size).flat_map(|from| part(from * size + rank)).collect()),
            What::AllToAllVaried => {
                Some((0..size).flat_map(|from| input(call, from * size + rank, crossed(len, from, rank))).collect())
            }
            What::Reduce => is_root.then(|| summed(call, len, size)),
            What::Allreduce => Some(summed(call, len, size)),
            What::Scan => Some(summed(call, len, rank + 1)),
            What::ReduceBy => is_root.then(|| composed(call, len, size)),
            What::AllreduceBy => Some(composed(call, len, size)),
            What::ScanBy => Some(composed(call, len, rank + 1)),
        }
    }

    /// Ranks that have begun a call when this one has ended it.
    pub(super) fn needs(&self, call: usize, rank: usize) -> Vec<u32> {
        let Planned { group, made: Made { what, root, .. }, .. } = self.calls[call];
        let members = &self.groups[group].members;
        match what {
            What::Broadcast | What::Scatter => vec![members[root as usize]],
            What::Duplicate => vec![members[0]],
            What::Gather | What::GatherVaried | What::Reduce | What::ReduceBy if rank != root as usize => Vec::new(),
            What::Scan | What::ScanBy => members[..rank].to_vec(),
            _ => members.to_vec(),
        }
    }
}

impl Circle {
    fn new(members: Arc<[u32]>, number: Option<u32>, parent: Option<usize>, by: Option<usize>) -> Circle {
        Circle { members, number, parent, by, odd: false, failed: false }
    }
}

/// What a member, or a pair of them, puts into a call.
pub(super) fn input(call: usize, of: usize, len: usize) -> Vec<u8> {
    content((call << 8) + of + 7, len as u64)
}

/// Bytes of a member where each has another number of them.
pub(super) fn varied(len: usize, rank: usize) -> usize {
    len * (rank % 3) / 2
}

/// And of a pair.
pub(super) fn crossed(len: usize, from: usize, to: usize) -> usize {
    len * ((from + 2 * to) % 3) / 2
}

/// Whole numbers of eight bytes.
pub(super) fn whole(len: usize) -> usize {
    len / 8 * 8
}

/// What all but one member, and none, may say in a split.
const COLOURS: u64 = 2;

/// What a member says in a split: colour and key.
pub(super) fn says(call: usize, member: u32) -> (Option<u64>, i64) {
    let draw = Rng::new((call as u64) << 10 | u64::from(member)).below(1 << 20);
    let colour = draw % (COLOURS + 1);
    ((colour < COLOURS).then_some(colour), (draw >> 8) as i64 % 3 - 1)
}

fn chosen(call: usize, members: &[u32], colour: u64) -> Arc<[u32]> {
    let mut chosen: Vec<u32> = Vec::new();
    for key in -1..2 {
        chosen.extend(members.iter().filter(|member| says(call, **member) == (Some(colour), key)));
    }
    chosen.into()
}

/// Sums, number by number, of the first members.
fn summed(call: usize, len: usize, upto: usize) -> Vec<u8> {
    let mut sums = vec![0u64; len / 8];
    for rank in 0..upto {
        for (sum, bytes) in sums.iter_mut().zip(input(call, rank, whole(len)).chunks_exact(8)) {
            *sum = sum.wrapping_add(word(bytes));
        }
    }
    sums.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Bytes of an operation whose order matters.
pub(super) fn ordered(call: usize, rank: usize, len: usize) -> Vec<u8> {
    input(call, rank, len / UNIT * UNIT)
}

/// The first members' linear functions, one after another, pair by pair of numbers.
fn composed(call: usize, len: usize, upto: usize) -> Vec<u8> {
    let mut all = ordered(call, 0, len);
    for rank in 1..upto {
        let next = ordered(call, rank, len);
        for (all, next) in all.chunks_exact_mut(UNIT).zip(next.chunks_exact(UNIT)) {
            let (a, b, c, d) = (word(all), word(&all[8..]), word(next), word(&next[8..]));
            let (first, second) = (a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d));
            all.copy_from_slice(&[first.to_le_bytes(), second.to_le_bytes()].concat());
        }
    }
    all
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
}

/// The same operation for the library: makes the first one what both together are.
pub(super) fn after(first: &mut [u8], second: &[u8]) {
    for (f, s) in first.chunks_exact_mut(UNIT).zip(second.chunks_exact(UNIT)) {
        let factor = word(s);
        let shifted = word(&f[8..]).wrapping_mul(factor).wrapping_add(word(&s[8..]));
        let scaled = word(f).wrapping_mul(factor);
        f[..8].copy_from_slice(&scaled.to_le_bytes());
        f[8..].copy_from_slice(&shifted.to_le_bytes());
    }
}
