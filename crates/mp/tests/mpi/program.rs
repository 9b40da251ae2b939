//! Programs of sends, receives and collective calls that all members run, each its part.
//!
//! Invariant: what the standard of MPI leaves open does not show in what is received: a receive
//! from any member has a tag that one member alone uses.

/// Members of a program.
pub(crate) const MEMBERS: u32 = 4;
/// Any source, any tag.
pub(crate) const ANY: i64 = -1;

const LENS: [u64; 12] = [0, 1, 8, 111, 112, 113, 4096, 16_384, 16_385, 65_536, 70_001, 300_000];
/// Tags of messages of one phase; those of receives from any member are apart.
const TAGS: u64 = 3;
const TAG_OF_ANY: i64 = 1000;

/// One step, by all members.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Messages of one phase, and the receives for them, each in the order of its member. Those
    /// that are late receive one by one, after their sends; the others have begun all receives
    /// before.
    Phase {
        messages: Vec<Message>,
        receives: Vec<Receive>,
        late: Vec<u32>,
    },
    /// Each of the current group sends to the next one, and receives from the one before.
    Ring {
        len: u64,
        seed: u64,
    },
    Call {
        kind: u64,
        root: u32,
        count: u64,
        seed: u64,
        op: u64,
    },
    /// The current group is split by remainders of ranks, in reverse order.
    Split {
        by: u32,
    },
    /// All members are the current group again.
    World,
}

/// A message of a phase.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) tag: i64,
    pub(crate) len: u64,
    pub(crate) seed: u64,
}

/// A receive of a phase.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) by: u32,
    pub(crate) source: i64,
    pub(crate) tag: i64,
    /// A late one looks first.
    pub(crate) probe: bool,
}

/// Collective calls, by their number in a program.
pub(crate) const CALLS: u64 = 9;
/// Operations of those that compute.
pub(crate) const OPS: u64 = 7;

/// Random numbers; splitmix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % bound
    }

    fn len(&mut self) -> u64 {
        LENS[self.below(LENS.len() as u64) as usize]
    }
}

pub(crate) fn program(seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng(seed);
    let mut steps: Vec<Step> = (0..steps).map(|_| step(&mut rng)).collect();
    steps.push(Step::World);
    steps
}

fn step(rng: &mut Rng) -> Step {
    match rng.below(10) {
        0..=4 => phase(rng),
        5 => Step::Ring { len: rng.len(), seed: rng.below(1 << 30) },
        6 => Step::Split { by: 1 + rng.below(3) as u32 },
        7 => Step::World,
        _ => {
            let (kind, root) = (rng.below(CALLS), rng.below(u64::from(MEMBERS)) as u32);
            // Numbers, or bytes of which there are eight times as many.
            let count = [0, 1, 7, 100, 1000, 9000, 30_000][rng.below(7) as usize];
            Step::Call { kind, root, count, seed: rng.below(1 << 30), op: rng.below(OPS) }
        }
    }
}

fn phase(rng: &mut Rng) -> Step {
    let (mut messages, mut receives) = (Vec::new(), Vec::new());
    for from in 0..MEMBERS {
        for to in 0..MEMBERS {
            let tags: Vec<i64> = (0..rng.below(6)).map(|_| rng.below(TAGS) as i64).collect();
            for tag in &tags {
                messages.push(Message { from, to, tag: *tag, len: rng.len(), seed: rng.below(1 << 30) });
            }
            // A receive of any tag would compete with one of any source.
            let of_any = rng.below(2);
            let wanted = patterns(rng, &tags, of_any == 0);
            receives.extend(wanted.into_iter().map(|tag| receive(rng, to, from.into(), tag)));
            for _ in 0..of_any {
                let tag = TAG_OF_ANY + i64::from(from);
                messages.push(Message { from, to, tag, len: rng.len(), seed: rng.below(1 << 30) });
                receives.push(receive(rng, to, ANY, tag));
            }
        }
    }
    // In any order of members; what one sends to another stays in its own, and so do receives of
    // one source.
    messages = merged(rng, messages, |message| (message.from, message.to));
    receives = merged(rng, receives, |receive| (receive.by, receive.source));
    let late = (0..MEMBERS).filter(|_| rng.below(2) == 0).collect();
    Step::Phase { messages, receives, late }
}

fn receive(rng: &mut Rng, by: u32, source: i64, tag: i64) -> Receive {
    Receive { by, source, tag, probe: rng.below(4) == 0 }
}

/// Tags of receives, in an order of their own, each for one of the messages of these tags: any
/// where that leaves a message for each.
fn patterns(rng: &mut Rng, tags: &[i64], may_be_any: bool) -> Vec<i64> {
    let mut exact = tags.to_vec();
    shuffle(rng, &mut exact);
    let mut wanted: Vec<i64> = exact.iter().map(|tag| if rng.below(3) == 0 { ANY } else { *tag }).collect();
    if !may_be_any || !all_match(tags, &wanted) {
        wanted = exact;
    }
    wanted
}

/// Whether each message is for a receive, if each takes the first that it is for.
fn all_match(tags: &[i64], wanted: &[i64]) -> bool {
    let mut free: Vec<i64> = wanted.to_vec();
    tags.iter().all(|tag| {
        let at = free.iter().position(|wanted| [ANY, *tag].contains(wanted));
        at.map(|at| free.remove(at)).is_some()
    })
}

fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for at in (1..items.len()).rev() {
        items.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

fn merged<T, K: PartialEq>(rng: &mut Rng, items: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut chains: Vec<(K, std::collections::VecDeque<T>)> = Vec::new();
    for item in items {
        match chains.iter_mut().find(|(of, _)| *of == key(&item)) {
            Some((_, chain)) => chain.push_back(item),
            None => chains.push((key(&item), [item].into())),
        }
    }
    let mut merged = Vec::new();
    while !chains.is_empty() {
        let at = rng.below(chains.len() as u64) as usize;
        merged.extend(chains[at].1.pop_front());
        if chains[at].1.is_empty() {
            chains.swap_remove(at);
        }
    }
    merged
}

/// The program as numbers, for a program in another language.
pub(crate) fn text(steps: &[Step]) -> String {
    let mut text = String::new();
    let mut line = |numbers: &[i64]| {
        let words: Vec<String> = numbers.iter().map(i64::to_string).collect();
        text += &words.join(" ");
        text.push('\n');
    };
    for step in steps {
        match step {
            Step::Phase { messages, receives, late } => {
                line(&[1, messages.len() as i64, receives.len() as i64, late.len() as i64]);
                for Message { from, to, tag, len, seed } in messages {
                    line(&[i64::from(*from), i64::from(*to), *tag, *len as i64, *seed as i64]);
                }
                for Receive { by, source, tag, probe } in receives {
                    line(&[i64::from(*by), *source, *tag, i64::from(*probe)]);
                }
                late.iter().for_each(|rank| line(&[i64::from(*rank)]));
            }
            Step::Ring { len, seed } => line(&[2, *len as i64, *seed as i64]),
            Step::Call { kind, root, count, seed, op } => {
                line(&[3, *kind as i64, i64::from(*root), *count as i64, *seed as i64, *op as i64]);
            }
            Step::Split { by } => line(&[4, i64::from(*by)]),
            Step::World => line(&[5]),
        }
    }
    text
}
