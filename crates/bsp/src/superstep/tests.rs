//! The state machine against a naive model: random programs of several processes.
//!
//! Invariant: the model reads all gets of a superstep from a copy of all memory as it was, then
//! writes what gets brought, then puts by number of their process.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const AREA: usize = 24;

/// Streams in memory: one for each pair and kind.
#[derive(Default)]
struct Streams {
    all: HashMap<(u32, usize), Vec<u8>>,
}

impl Outgoing for Streams {
    fn append(&mut self, to: u32, stream: Stream, parts: &[&[u8]]) -> Result<(), BspError> {
        self.all.entry((to, stream as usize)).or_default().extend(parts.concat());
        Ok(())
    }
}

struct Bytes(VecDeque<u8>);

impl Incoming for Bytes {
    fn left(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), BspError> {
        into.iter_mut().for_each(|byte| *byte = self.0.pop_front().expect("it is there"));
        Ok(())
    }
}

/// Areas by name.
#[derive(Default)]
struct Areas(Vec<Vec<u8>>);

impl Places for Areas {
    fn bytes(&mut self, place: Place, offset: u64, len: u64) -> Option<&mut [u8]> {
        self.0.get_mut(place.name() as usize)?.get_mut(offset as usize..(offset + len) as usize)
    }
}

/// Several processes, in lockstep.
struct Machine {
    members: Vec<(Superstep, Areas)>,
    out: Vec<Streams>,
}

impl Machine {
    fn new(nprocs: u32, areas: usize) -> Machine {
        let member = |pid| (Superstep::new(pid, nprocs), Areas(vec![vec![0; AREA]; areas]));
        Machine { members: (0..nprocs).map(member).collect(), out: (0..nprocs).map(|_| Streams::default()).collect() }
    }

    fn stream(out: &Streams, to: u32, stream: Stream) -> Bytes {
        Bytes(out.all.get(&(to, stream as usize)).cloned().unwrap_or_default().into())
    }

    fn sync(&mut self) -> Result<(), BspError> {
        let nprocs = self.members.len() as u32;
        for ((member, _), out) in self.members.iter_mut().zip(&mut self.out) {
            member.close(out)?;
        }
        let out = std::mem::take(&mut self.out);
        self.out = (0..nprocs).map(|_| Streams::default()).collect();
        let mut answers: Vec<Streams> = (0..nprocs).map(|_| Streams::default()).collect();
        // One after the other is the order in which a mistake would show best: the first has
        // written when the last reads.
        for (pid, (member, areas)) in self.members.iter_mut().enumerate() {
            for from in 0..nprocs {
                let mut requests = Machine::stream(&out[from as usize], pid as u32, Stream::Requests);
                member.requests(from, &mut requests, areas, &mut answers[pid])?;
            }
        }
        for (pid, (member, areas)) in self.members.iter_mut().enumerate() {
            for from in member.asked() {
                let mut incoming = Machine::stream(&answers[from as usize], pid as u32, Stream::Requests);
                member.answers(from, &mut incoming, areas)?;
            }
            member.begin_data();
            for from in 0..nprocs {
                member.data(from, &mut Machine::stream(&out[from as usize], pid as u32, Stream::Data), areas)?;
            }
            member.turn()?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put { from: u32, to: u32, area: usize, offset: usize, bytes: Vec<u8> },
    Get { by: u32, from: u32, area: usize, offset: usize, len: usize, into: usize, at: usize },
    Send { from: u32, to: u32, bytes: Vec<u8> },
    Sync,
}

fn step(nprocs: u32, areas: usize) -> impl Strategy<Value = Step> {
    let pid = 0..nprocs;
    let range = (0..AREA).prop_flat_map(|offset| (Just(offset), 0..=AREA - offset));
    let put = (pid.clone(), pid.clone(), 0..areas, range.clone(), any::<u8>());
    let get = (pid.clone(), pid.clone(), 0..areas, range, 0..areas, 0..AREA);
    let send = (pid.clone(), pid, proptest::collection::vec(any::<u8>(), 0..12));
    prop_oneof![
        4 => put.prop_map(|(from, to, area, (offset, len), seed)| {
            Step::Put { from, to, area, offset, bytes: (0..len).map(|at| seed.wrapping_add(at as u8)).collect() }
        }),
        4 => get.prop_map(|(by, from, area, (offset, len), into, at)| {
            Step::Get { by, from, area, offset, len, into, at: at.min(AREA - len) }
        }),
        2 => send.prop_map(|(from, to, bytes)| Step::Send { from, to, bytes }),
        2 => Just(Step::Sync),
    ]
}

/// Memory of all, and messages of each.
struct Model {
    memory: Vec<Vec<Vec<u8>>>,
    queues: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Model {
    fn superstep(&mut self, steps: &[Step], tag: usize) {
        let before = self.memory.clone();
        self.queues.iter_mut().for_each(Vec::clear);
        for step in steps {
            if let Step::Get { by, from, area, offset, len, into, at } = step {
                let bytes = &before[*from as usize][*area][*offset..offset + len];
                self.memory[*by as usize][*into][*at..at + len].copy_from_slice(bytes);
            }
        }
        for pid in 0..self.memory.len() as u32 {
            for step in steps {
                match step {
                    Step::Put { from, to, area, offset, bytes } if *from == pid => {
                        self.memory[*to as usize][*area][*offset..offset + bytes.len()].copy_from_slice(bytes);
                    }
                    Step::Send { from, to, bytes } if *from == pid => {
                        self.queues[*to as usize].push((vec![pid as u8; tag], bytes.clone()));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Gets of one process are made by number of the member they are of; where two overlap in memory,
/// the order is not promised, so they are left out.
fn overlaps(steps: &[Step], new: &Step) -> bool {
    let Step::Get { by, into, at, len, .. } = new else { return false };
    steps.iter().any(|step| match step {
        Step::Get { by: b, into: i, at: a, len: l, .. } => (by, into) == (b, i) && *at < a + l && *a < at + len,
        _ => false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_superstep_does_what_the_model_does(
        steps in proptest::collection::vec(step(3, 2), 1..60),
        tags in proptest::collection::vec(0usize..5, 60),
    ) {
        let mut machine = Machine::new(3, 2);
        for (member, _) in &mut machine.members {
            for name in 0..2 {
                member.push_reg(Some(Place::new(name, AREA as u64))).expect("there is room");
            }
        }
        machine.sync().expect("all register");
        let mut model = Model { memory: vec![vec![vec![0; AREA]; 2]; 3], queues: vec![Vec::new(); 3] };
        let mut steps = steps;
        steps.push(Step::Sync);
        let (mut now, mut tag, mut tags) = (Vec::new(), 0, tags.into_iter());
        for step in steps {
            if overlaps(&now, &step) {
                continue;
            }
            match &step {
                Step::Put { from, to, area, offset, bytes } => {
                    let (member, out) = (&mut machine.members[*from as usize].0, &mut machine.out[*from as usize]);
                    member.put(out, *to, *area as u64, *offset as u64, bytes).expect("it is inside");
                }
                Step::Get { by, from, area, offset, len, into, at } => {
                    let (member, out) = (&mut machine.members[*by as usize].0, &mut machine.out[*by as usize]);
                    let place = Place::new(*into as u64, AREA as u64);
                    let source = (*area as u64, *offset as u64);
                    member.get(out, *from, source, (place, *at as u64), *len as u64).expect("it is inside");
                }
                Step::Send { from, to, bytes } => {
                    let (member, out) = (&mut machine.members[*from as usize].0, &mut machine.out[*from as usize]);
                    member.send(out, *to, &vec![*from as u8; tag], bytes).expect("the tag has its size");
                }
                Step::Sync => {
                    let next = tags.next().unwrap_or(0);
                    for (member, _) in &mut machine.members {
                        prop_assert_eq!(member.set_tag_size(next as u64), Ok(tag as u64));
                    }
                    machine.sync().expect("all goes well");
                    model.superstep(&now, tag);
                    tag = next;
                    now.clear();
                    for (pid, (member, areas)) in machine.members.iter_mut().enumerate() {
                        prop_assert_eq!(&areas.0, &model.memory[pid]);
                        let (count, bytes) = member.queue.left();
                        let sum: usize = model.queues[pid].iter().map(|(_, bytes)| bytes.len()).sum();
                        prop_assert_eq!((count as usize, bytes as usize), (model.queues[pid].len(), sum));
                        for (tag, bytes) in &model.queues[pid] {
                            prop_assert_eq!(member.queue.first(), Some((&tag[..], &bytes[..])));
                            prop_assert_eq!(member.queue.take(), Some((&tag[..], &bytes[..])));
                        }
                        prop_assert_eq!(member.queue.take(), None);
                    }
                    continue;
                }
            }
            now.push(step);
        }
    }

    #[test]
    fn what_is_foreign_is_an_error_and_no_panic(
        requests in proptest::collection::vec(any::<u8>(), 0..200),
        kinds in proptest::collection::vec(0u8..8, 0..8),
    ) {
        let mut bytes = requests;
        // So that most records have a kind that there is.
        for (at, kind) in kinds.into_iter().enumerate() {
            if let Some(head) = bytes.get_mut(24 * at..24 * at + 4) {
                head.copy_from_slice(&[kind, 0, 0, 0]);
            }
        }
        let mut machine = Machine::new(2, 1);
        machine.members.iter_mut().for_each(|(m, _)| m.push_reg(Some(Place::new(0, AREA as u64))).expect("room"));
        machine.sync().expect("all register");
        let (member, areas) = &mut machine.members[0];
        let _ = member.requests(1, &mut Bytes(bytes.clone().into()), areas, &mut Streams::default());
        let _ = member.data(1, &mut Bytes(bytes.into()), areas);
        let _ = member.turn();
    }
}

/// Registers, on each member, what it gives for its number; then syncs.
fn register(machine: &mut Machine, place: impl Fn(u32) -> Option<Place>) {
    for (pid, (member, _)) in machine.members.iter_mut().enumerate() {
        member.push_reg(place(pid as u32)).expect("there is room");
    }
    machine.sync().expect("all register");
}

fn put(machine: &mut Machine, from: usize, to: u32, name: u64, offset: u64, bytes: &[u8]) -> Result<(), BspError> {
    machine.members[from].0.put(&mut machine.out[from], to, name, offset, bytes)
}

#[test]
fn a_registration_counts_from_the_next_sync_and_until_the_one_after_its_end() {
    let mut machine = Machine::new(2, 1);
    machine.members.iter_mut().for_each(|(m, _)| m.push_reg(Some(Place::new(0, 8))).expect("room"));
    assert_eq!(put(&mut machine, 0, 1, 0, 0, &[1]), Err(BspError::NotRegistered));
    machine.sync().expect("all register");
    put(&mut machine, 0, 1, 0, 0, &[1]).expect("it counts now");
    machine.members.iter_mut().for_each(|(m, _)| m.pop_reg(Some(0)).expect("it is there"));
    put(&mut machine, 0, 1, 0, 1, &[2]).expect("it counts until the sync");
    machine.sync().expect("all end it");
    assert_eq!(machine.members[1].1.0[0][..2], [1, 2]);
    assert_eq!(put(&mut machine, 0, 1, 0, 0, &[1]), Err(BspError::NotRegistered));
    assert_eq!(machine.members[0].0.pop_reg(Some(0)), Err(BspError::NothingToPop));
}

#[test]
fn registrations_of_one_address_are_a_stack() {
    let mut machine = Machine::new(2, 1);
    for size in [4, 8] {
        register(&mut machine, |_| Some(Place::new(0, size)));
    }
    put(&mut machine, 0, 1, 0, 7, &[1]).expect("the last one counts");
    machine.members.iter_mut().for_each(|(m, _)| m.pop_reg(Some(0)).expect("it is there"));
    machine.sync().expect("all end it");
    let outside = BspError::OutsideOfArea { pid: 1, offset: 7, end: 8, size: 4 };
    assert_eq!(put(&mut machine, 0, 1, 0, 7, &[1]), Err(outside));
    put(&mut machine, 0, 1, 0, 3, &[1]).expect("the first one counts again");
}

#[test]
fn what_is_registered_and_ended_in_one_superstep_never_counts() {
    let mut machine = Machine::new(2, 2);
    register(&mut machine, |_| Some(Place::new(0, 4)));
    for (member, _) in &mut machine.members {
        member.push_reg(Some(Place::new(0, 8))).expect("there is room");
        member.push_reg(Some(Place::new(1, 8))).expect("there is room");
        member.pop_reg(Some(0)).expect("it is there");
    }
    machine.sync().expect("all do the same");
    assert!(put(&mut machine, 0, 1, 0, 4, &[1]).is_err());
    put(&mut machine, 0, 1, 1, 7, &[1]).expect("that one counts");
}

#[test]
fn nothing_here_is_known_to_all_and_its_end_is_found_by_what_others_say() {
    let mut machine = Machine::new(3, 2);
    register(&mut machine, |pid| (pid != 1).then_some(Place::new(0, 8)));
    register(&mut machine, |pid| (pid != 0).then_some(Place::new(1, 8)));
    assert_eq!(put(&mut machine, 0, 1, 0, 0, &[1]), Err(BspError::NothingThere { pid: 1 }));
    put(&mut machine, 0, 2, 0, 0, &[1]).expect("it has one");
    // The first one ends, though process 1 has nothing there and so cannot name it.
    for (pid, (member, _)) in machine.members.iter_mut().enumerate() {
        member.pop_reg((pid != 1).then_some(0)).expect("it is there");
    }
    machine.sync().expect("all end the same");
    put(&mut machine, 1, 2, 1, 0, &[5]).expect("the second one counts still");
    machine.sync().expect("all is well");
    assert_eq!((machine.members[2].1.0[0][0], machine.members[2].1.0[1][0]), (1, 5));
    assert_eq!(put(&mut machine, 0, 2, 0, 0, &[1]), Err(BspError::NotRegistered));
}

#[test]
fn members_that_do_not_register_the_same_are_told() {
    let mut machine = Machine::new(2, 1);
    machine.members[1].0.push_reg(Some(Place::new(0, 8))).expect("there is room");
    assert_eq!(machine.sync(), Err(BspError::Uneven { pid: 0, ours: 0, other: 1, theirs: 1 }));
    let mut machine = Machine::new(2, 1);
    machine.members[0].0.push_reg(None).expect("there is room");
    machine.members[1].0.set_tag_size(3).expect("it is short");
    let what = "push_reg, pop_reg and set_tagsize";
    assert_eq!(machine.sync(), Err(BspError::Different { pid: 0, other: 1, what, number: 1 }));
    let mut machine = Machine::new(2, 1);
    for (pid, (member, _)) in machine.members.iter_mut().enumerate() {
        member.set_tag_size(pid as u64).expect("it is short");
    }
    let what = "the size of set_tagsize";
    assert_eq!(machine.sync(), Err(BspError::Different { pid: 0, other: 1, what, number: 1 }));
}

#[test]
fn messages_that_were_not_taken_are_gone_with_the_next_sync() {
    let mut machine = Machine::new(2, 1);
    machine.members[0].0.send(&mut machine.out[0], 1, &[], &[7]).expect("it goes");
    machine.sync().expect("it comes");
    assert_eq!(machine.members[1].0.queue.left(), (1, 1));
    machine.sync().expect("it goes");
    assert_eq!(machine.members[1].0.queue.left(), (0, 0));
}
