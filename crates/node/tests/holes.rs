//! A user that maps memory which the node touches very many times, in many processes, and punches
//! holes into it without end, beside an honest pair.
//!
//! The kernel takes a punched page out of all mappings, one by one, and makes a thread that touches
//! it wait meanwhile. `VMMC_HOLES_PROCESSES=n` has more processes map it, 60,000 times each. Needs
//! root; without it the tests print `SKIP` and why.

mod common;

use common::raw::{self, Raw};
use common::wild::{HOSTILE, become_user, can_be_others, hostile_time};
use common::{Node, ask, attach_call, beside, connect, nap};
use rustix::fs::FallocateFlags;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use vmmc_host::abi::{Op, RawCommand, flags};
use vmmc_host::control::{Access, Answer, Call, Owner, RefusalCode, Reply, Request, decode, encode};
use vmmc_host::wait::Deadline;
use vmmc_host::{Protection, Region};
use vmmc_nic::Rights;

/// Mappings of each process: the kernel allows some more.
const MAPPINGS: usize = 60_000;
const ROLE: &str = "VMMC_HOLES_ROLE";

/// Processes that map it.
fn processes() -> usize {
    std::env::var("VMMC_HOLES_PROCESSES").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

/// One of the processes: maps what it has as its input, and punches holes if told to. No test of
/// its own.
#[test]
fn a_process_with_very_many_mappings() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let memory = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let len = rustix::fs::fstat(&memory).unwrap().st_size as u64;
    if role == "map" {
        // A process that maps for seconds is not to have the core of the honest pair.
        let _ = rustix::process::nice(19);
    }
    let mut kept = Vec::new();
    for _ in 0..MAPPINGS {
        let copy = memory.try_clone().unwrap();
        let Ok(region) = Region::map(copy, len, Protection::ReadOnly) else { break };
        region.let_descriptor_go();
        kept.push(region);
    }
    println!("mapped {}", kept.len());
    std::io::stdout().flush().unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if role == "punch" {
        while rustix::fs::fallocate(&memory, flags, 0, len).is_ok() {}
    }
    std::thread::sleep(common::raw::LONG * 30);
}

struct Mapped(Vec<Child>);

impl Mapped {
    /// Processes of the hostile user that map `memory`; one of them punches holes.
    fn start(memory: &OwnedFd) -> Mapped {
        let start = Instant::now();
        let mut all = Mapped(Vec::new());
        let mut lines = Vec::new();
        // The one that punches comes last: memory with holes is not mapped.
        for at in (0..processes()).rev() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "a_process_with_very_many_mappings", "--nocapture"]);
            command.env(ROLE, if at == 0 { "punch" } else { "map" });
            command.stdin(Stdio::from(memory.try_clone().unwrap())).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            lines.push(BufReader::new(child.stdout.take().unwrap()));
            all.0.push(child);
            if at <= 1 {
                for mut lines in lines.drain(..) {
                    let mut line = String::new();
                    while !line.contains("mapped") {
                        line.clear();
                        assert!(lines.read_line(&mut line).unwrap() > 0, "a process has ended");
                    }
                }
            }
        }
        println!("{} processes map it {MAPPINGS} times each, after {:?}", processes(), start.elapsed());
        all
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|child| _ = child.kill());
        self.0.iter_mut().for_each(|child| _ = child.wait());
    }
}

#[test]
fn holes_in_an_area_of_very_many_mappings_hold_nobody_up() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("area-holes", None);
    let name = node.name.clone();
    beside(&mut node, || {
        let channel = raw::wait(&nap, || connect(0, &name).ok());
        let call = encode(&Request { serial: 1, call: attach_call() });
        channel.send(&call, &[], Deadline::after(raw::LONG)).unwrap();
        let (answer, mut fds) = channel.receive(Deadline::after(raw::LONG)).unwrap();
        assert!(matches!(decode::<Reply>(&answer).unwrap().result, Ok(Answer::Attached { .. })));
        let _mapped = Mapped::start(&fds.remove(0));
        std::thread::sleep(hostile_time());
        is_refused(&name);
    });
}

#[test]
fn a_user_is_not_held_responsible_for_a_region_that_another_user_may_write() {
    if !can_be_others() {
        return;
    }
    const OTHER: u32 = HOSTILE + 1;
    let mut node = Node::start("foreign-holes", None);
    let name = node.name.clone();
    let (exported, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            become_user(OTHER);
            let attached = || Raw::over(connect(0, &name).unwrap(), Rc::new(std::thread::yield_now));
            let (mut owner, mut sender) = (attached(), attached());
            let memory = owner.register(64 << 10);
            let mut call = Raw::export_call(&memory, "shared");
            if let Call::Export { access, .. } = &mut call {
                *access = Access::Anyone;
            }
            owner.call(call).unwrap();
            let (grant, _) = sender.import(None, "shared", Rights::WRITE);
            exported.store(true, Ordering::SeqCst);
            let mut count = 0u64;
            while !over.load(Ordering::SeqCst) {
                count += 1;
                sender.send(grant.import, 0, &count.to_le_bytes(), count);
                assert_eq!((sender.completion().cookie, owner.no_completion()), (count, true));
            }
            // Both go on, and the node touches the region no more.
            memory.region.word(0).unwrap().store(0, Ordering::SeqCst);
            sender.send(grant.import, 0, &1u64.to_le_bytes(), 0);
            assert_eq!((sender.completion().status, memory.region.word(0).unwrap().load(Ordering::SeqCst)), (0, 0));
            owner.call(Call::Info { details: false }).unwrap();
            attached().export("another");
        });
        beside(&mut node, || {
            let mut importer = Raw::over(connect(0, &name).unwrap(), Rc::new(std::thread::yield_now));
            raw::wait(&nap, || exported.load(Ordering::SeqCst).then_some(()));
            let mut call = Raw::import_call(None, "shared", Rights::READ | Rights::WRITE);
            if let Call::Import { owner, .. } = &mut call {
                *owner = Owner::Any;
            }
            let (answer, fds) = importer.call_with(call, &[]);
            assert!(matches!(answer, Ok(Answer::Imported(_))), "{answer:?}");
            let mapped = Mapped::start(&fds[0]);
            std::thread::sleep(hostile_time());
            drop(mapped);
            over.store(true, Ordering::SeqCst);
        });
        owner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// The user is told why it is not served.
fn is_refused(name: &str) {
    let refusal = ask(&connect(0, name).unwrap(), attach_call(), &[]).unwrap().unwrap_err();
    assert_eq!(refusal.code, RefusalCode::NotPermitted);
    assert!(refusal.message.contains("kept the node waiting"), "{refusal}");
}

#[test]
fn holes_in_a_region_of_very_many_mappings_hold_nobody_up() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("region-holes", None);
    let name = node.name.clone();
    beside(&mut node, || {
        let attached = || Raw::over(connect(0, &name).unwrap(), Rc::new(std::thread::yield_now));
        let (mut owner, mut sender) = (attached(), attached());
        let (_, memory) = owner.export("holes");
        let (grant, _) = sender.import(None, "holes", Rights::WRITE);
        let _mapped = Mapped::start(&memory.region.share().unwrap());
        let end = Instant::now() + hostile_time();
        let mut cookie = 0;
        while Instant::now() < end {
            cookie += 1;
            let mut command = RawCommand::new(Op::Send, grant.import);
            command.flags = flags::INLINE | flags::COMPLETE;
            command.offset = (cookie * 8) % 4096;
            if let Some(slot) = sender.commands.claim() {
                command.publish(slot, &cookie.to_le_bytes());
            }
            sender.ring();
            while sender.try_completion().is_some() {}
            nap();
        }
        is_refused(&name);
    });
}
