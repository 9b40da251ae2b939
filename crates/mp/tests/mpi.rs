//! The same programs on `vmmc-mp` and on MPI: where the standard says what is received, both
//! receive the same, byte for byte, with the same source, tag and length.
//!
//! Invariant: a program is made of its seed alone. Source: the rules of matching and of collective
//! calls in the standard of MPI.

mod common;
#[path = "mpi/program.rs"]
mod program;

use common::{pattern, run};
use program::{ANY, MEMBERS, Message, Receive, Step, program, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use vmmc_mp::{Group, Messages, MpError, Number, Op, Request, Select, Status};

/// Programs, and steps of each.
const SEEDS: std::ops::Range<u64> = 0..6;
const STEPS: usize = 40;
/// Room for the longest message.
const ROOM: usize = 300_000;

/// A folder of its own, which goes with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The compiled program on MPI; none, with a reason, where there is no MPI.
fn compiled(folder: &Path) -> Option<PathBuf> {
    let (source, binary) = (folder.join("peer.c"), folder.join("peer"));
    std::fs::write(&source, include_str!("mpi/peer.c")).expect("a file");
    let mut header = Command::new("mpicc");
    header.args(["-E", "-x", "c", "-include", "mpi.h", "/dev/null"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut version = Command::new("mpirun");
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    let works = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    if !works(&mut version) || !works(&mut header) {
        println!("SKIP no MPI is installed; `apt-get install openmpi-bin libopenmpi-dev` brings it");
        return None;
    }
    let output = Command::new("mpicc").arg("-O2").arg("-o").arg(&binary).arg(&source).output().expect("mpicc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(binary)
}

/// What each rank receives on MPI.
fn on_mpi(binary: &Path, folder: &Path, steps: &[Step]) -> Vec<Vec<u8>> {
    let (file, out) = (folder.join("program"), folder.join("out"));
    std::fs::write(&file, text(steps)).expect("a file");
    let mut command = Command::new("mpirun");
    // Open MPI of either kind: as root, and with more ranks than cores. Others ignore these.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    let program = command.args(["-n", &MEMBERS.to_string()]).arg(binary).arg(&file).arg(&out);
    let output = program.stdin(Stdio::null()).output().expect("mpirun runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (0..MEMBERS).map(|rank| std::fs::read(out.with_extension(rank.to_string())).expect("each writes it")).collect()
}

/// What each rank receives here, on so many nodes.
fn on_ours(nodes: usize, steps: &[Step]) -> Vec<Vec<u8>> {
    let out: Vec<Mutex<Vec<u8>>> = (0..MEMBERS).map(|_| Mutex::default()).collect();
    run(nodes, MEMBERS, |messages| {
        let mut member = Member { messages, out: Vec::new() };
        let mut group = messages.world().clone();
        for step in steps {
            match step {
                Step::Phase { messages, receives, late } => member.phase(messages, receives, late),
                Step::Ring { len, seed } => member.ring(&group, *len, *seed),
                Step::Call { kind, root, count, seed, op } => member.call(&group, *kind, *root, *count, *seed, *op),
                Step::Split { by } => {
                    let rank = messages.rank();
                    let split = messages.world().split(Some((rank % by).into()), -i64::from(rank));
                    group = split.expect("all are here").expect("it has a colour");
                }
                Step::World => group = messages.world().clone(),
            }
        }
        *out[messages.rank() as usize].lock().expect("no panic") = member.out;
    });
    out.into_iter().map(|out| out.into_inner().expect("no panic")).collect()
}

struct Member<'m> {
    messages: &'m Messages,
    out: Vec<u8>,
}

impl Member<'_> {
    fn me(&self) -> u64 {
        self.messages.rank().into()
    }

    fn put_status(&mut self, status: Status) {
        [status.source.into(), status.tag, status.len]
            .iter()
            .for_each(|word: &u64| self.out.extend(word.to_le_bytes()));
    }

    fn put(&mut self, status: Status, bytes: &[u8]) {
        self.put_status(status);
        self.out.extend_from_slice(&bytes[..status.len as usize]);
    }

    fn phase(&mut self, messages: &[Message], receives: &[Receive], late: &[u32]) {
        let world = self.messages.world();
        let me = self.messages.rank();
        let is_late = late.contains(&me);
        let ours = || receives.iter().filter(|receive| receive.by == me);
        let begun: Vec<Request<Vec<u8>>> = ours()
            .filter(|_| !is_late)
            .map(|receive| world.start_receive(select(receive), vec![0; ROOM]).expect("it begins"))
            .collect();
        let mut sends = Vec::new();
        for Message { to, tag, len, seed, .. } in messages.iter().filter(|message| message.from == me) {
            let (tag, bytes) = (*tag as u64, pattern(*len as usize, *seed));
            if late.is_empty() {
                world.send(*to, tag, &bytes).expect("it is sent");
            } else {
                sends.push(world.start_send(*to, tag, bytes).expect("it begins"));
            }
        }
        for receive in ours().filter(|_| is_late) {
            let mut bytes = vec![0; ROOM];
            if receive.probe {
                let status = world.probe(select(receive)).expect("it comes");
                self.put_status(status);
            }
            let status = world.receive(select(receive), &mut bytes).expect("it comes");
            self.put(status, &bytes);
        }
        for request in begun {
            let (status, bytes) = request.wait().expect("it comes");
            self.put(status, &bytes);
        }
        sends.into_iter().for_each(|send| drop(send.wait().expect("it goes")));
    }

    fn ring(&mut self, group: &Group, len: u64, seed: u64) {
        let (own, size) = (group.rank(), group.size());
        let mut from = vec![0; ROOM];
        let to = pattern(len as usize, seed + self.me());
        let select = Select::from((own + size - 1) % size).tag(5);
        let status = group.exchange((own + 1) % size, 5, &to, select, &mut from).expect("both are here");
        self.put(status, &from);
    }

    fn call(&mut self, group: &Group, kind: u64, root: u32, count: u64, seed: u64, op: u64) {
        let (size, root) = (group.size() as usize, root % group.size());
        let (len, is_root) = (8 * count as usize, group.rank() == root);
        let own = pattern(len, seed + self.me());
        let mut to = match kind {
            1 => own.clone(),
            3 => vec![0; len],
            2 if !is_root => Vec::new(),
            2 | 4 | 5 => vec![0; len * size],
            _ => Vec::new(),
        };
        let all = pattern(len * size, seed + 100 + self.me());
        let done = match kind {
            0 => group.barrier(),
            1 => group.broadcast(root, &mut to),
            2 => group.gather(root, &own, &mut to),
            3 => group.scatter(root, if is_root { &all } else { &[] }, &mut to),
            4 => group.allgather(&own, &mut to),
            5 => group.all_to_all(&all, &mut to),
            _ => self.compute(group, kind, root, (count, seed, op)),
        };
        done.expect("all are here");
        self.out.extend(to);
    }

    fn compute(
        &mut self,
        group: &Group,
        kind: u64,
        root: u32,
        (count, seed, op): (u64, u64, u64),
    ) -> Result<(), MpError> {
        let me = self.me();
        let value = |at: u64| at.wrapping_mul(3) + seed + me * me + 1;
        let op_of =
            |kinds: u64| [Op::Sum, Op::Product, Op::Min, Op::Max, Op::And, Op::Or, Op::Xor][(op % kinds) as usize];
        match seed % 3 {
            0 => self.combine(group, (kind, root), op_of(7), count, |at| value(at).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            1 => self.combine(group, (kind, root), op_of(7), count, |at| value(at).wrapping_mul(0x9e37_79b9) as u32),
            _ => self.combine(group, (kind, root), op_of(4), count, |at| (value(at) % 50) as f64),
        }
    }

    fn combine<T: Number>(
        &mut self,
        group: &Group,
        (kind, root): (u64, u32),
        op: Op,
        count: u64,
        value: impl Fn(u64) -> T,
    ) -> Result<(), MpError> {
        let mut values: Vec<T> = (0..count).map(value).collect();
        match kind {
            6 => group.reduce(root, &mut values, op),
            7 => group.allreduce(&mut values, op),
            8 => group.scan(&mut values, op),
            other => panic!("no call {other}"),
        }?;
        if kind == 6 && group.rank() != root {
            return Ok(());
        }
        let mut bytes = vec![0; values.len() * T::BYTES];
        bytes.chunks_exact_mut(T::BYTES).zip(&values).for_each(|(bytes, value)| value.to_bytes(bytes));
        self.out.extend(bytes);
        Ok(())
    }
}

fn select(receive: &Receive) -> Select {
    let select = if receive.source == ANY { Select::any() } else { Select::from(receive.source as u32) };
    if receive.tag == ANY { select } else { select.tag(receive.tag as u64) }
}

#[test]
fn random_programs_receive_the_same_as_on_mpi() {
    let folder = Folder(std::env::temp_dir().join(common::unique("vmmc-mpi")));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    let Some(binary) = compiled(&folder.0) else { return };
    for seed in SEEDS {
        let steps = program(seed, STEPS);
        let theirs = on_mpi(&binary, &folder.0, &steps);
        assert!(theirs.iter().all(|bytes| !bytes.is_empty()), "seed {seed}: nothing was received");
        for nodes in [1, 2] {
            let ours = on_ours(nodes, &steps);
            for (rank, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                let differs = ours.iter().zip(theirs).position(|(a, b)| a != b);
                let differs = differs.or_else(|| (ours.len() != theirs.len()).then(|| ours.len().min(theirs.len())));
                assert_eq!(differs, None, "seed {seed}, {nodes} nodes, rank {rank}: first byte that differs");
            }
        }
    }
}
