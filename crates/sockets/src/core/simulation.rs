//! The protocol core among faults, from a seed: several processes at each end that fork, close, are
//! killed at the worst places, and go back and forth between the media, over a kernel stream that
//! delivers when the script says so, with and without a node that gives hints.
//!
//! Checked: what comes out is a prefix of what went in, after every step. Nobody learns of an end
//! while the other end is held. A close is taken for the last one only by the last holder. A holder
//! that learns of the death of an end with bytes unread in a ring gets a reset. When the faults are
//! over, everything that was sent arrives, and then the end if there is one; and nobody is still
//! asleep, or in the kernel, for something that has come. Sleepers ask the kernel by themselves
//! only in runs in which somebody was killed: in all others each is woken.
//!
//! Invariant: one thread, no clock, no system call but for memory: the same seed is the same run.
//! Not here: interleavings within a step, which loom explores.

pub mod between;
mod totals;
mod wire;

use super::{DirectionWords, EndWords, Flags, Kernel, Receiving, Sending, Upgraded, Wakeup, WayBack};
use crate::types::Close;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub use totals::Totals;
use vmmc_stream::{Shape, Slab, Slot};
pub(super) use wire::{Socket, WIRE_BYTES_MORE, Wire};

/// Processes at an end.
const PROCESSES_MAX: usize = 4;
/// Rounds after which what has not arrived never will.
const SETTLE_ROUNDS: usize = 4_000;
/// The id of every thread that lives, and of one that does not: above all that a kernel gives.
pub(super) const ME: u32 = u32::MAX >> 2;
const DEAD: u32 = ME - 1;

/// One run. The same seed gives the same run.
///
/// # Errors
/// The property that did not hold, and where.
pub fn run(seed: u64) -> Result<Totals, String> {
    let mut world = World::new(seed).ok_or("no memory for a slot")?;
    for _ in 0..world.rng.below(800) + 50 {
        world.totals.steps += 1;
        world.step().map_err(|why| format!("step {}: {why}", world.totals.steps))?;
    }
    world.run_until_quiet()?;
    world.totals.runs = 1;
    Ok(world.totals)
}

/// A seeded generator that needs no crate.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// A process that holds an end.
struct Process {
    core: Upgraded,
    open: bool,
    /// Bytes of a kernel send that it is in.
    call: Option<u64>,
    reader_sleeps: bool,
    writer_sleeps: bool,
    /// Another program by now, which knows nothing of all this.
    foreign: bool,
    /// A call has failed.
    heard_reset: bool,
}

impl Process {
    fn new(core: Upgraded) -> Process {
        Process {
            core,
            open: true,
            call: None,
            reader_sleeps: false,
            writer_sleeps: false,
            foreign: false,
            heard_reset: false,
        }
    }
}

/// One end.
#[derive(Default)]
struct Side {
    processes: Vec<Process>,
    /// Bytes given so far: byte `i` of a direction is `byte(i)`.
    sent: u64,
    got: u64,
    attached: bool,
    /// It has ended its direction.
    shut: bool,
    /// It has learned that the other end sends no more.
    heard_end: bool,
    /// Its last holder died, or closed while the kernel took no more, with bytes that the other end
    /// had asked back.
    lost: bool,
    /// Its last holder was killed with bytes unread in the ring, and without having ended its
    /// direction.
    died_unread: bool,
    /// Times that the node still tells the other end to ask its kernel.
    hints: u32,
}

struct World {
    rng: Rng,
    slot: Slot,
    wires: [Wire; 2],
    sides: [Side; 2],
    node: bool,
    /// Whether processes are killed, and the node may die.
    deadly: bool,
    totals: Totals,
}

pub(super) fn byte(direction: usize, at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 7) as u8 ^ (direction as u8 * 85)
}

/// What a process of an end sends next.
fn bytes(direction: usize, at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|i| byte(direction, i)).collect()
}

impl Upgraded {
    /// Whether the other end has left the ring, or begun to, and this one reads it.
    pub(super) fn was_left(&self) -> bool {
        self.incoming().reads_ring() && !self.incoming().announced().in_ring()
    }

    /// Whether this end could leave the ring now.
    pub(super) fn could_leave(&self) -> bool {
        let (out, announced) = (self.outgoing(), self.outgoing().announced());
        let ended = out.sender_flags.load(Ordering::Relaxed) & Flags::END != 0;
        announced.in_ring() && !announced.pending && !out.goes_back() && !ended && out.reached() == announced.number
    }

    /// The first half of leaving the ring, with at most so many copies.
    pub(super) fn begin_to_leave(&self, kernel: &impl Kernel, most: u64) {
        let out = self.outgoing();
        let (head, tail) = (out.head.load(Ordering::SeqCst), out.tail.load(Ordering::SeqCst));
        out.leaves_from.store(head, Ordering::SeqCst);
        out.begin_change();
        self.copy_to_kernel(kernel, head, most.min(tail - head), 0, true);
    }

    /// As the child of a fork has it.
    fn inherited(&self) -> Upgraded {
        let copy = |word: &AtomicU32| AtomicU32::new(word.load(Ordering::SeqCst));
        Upgraded {
            between: None,
            slot: self.slot.clone(),
            end: self.end,
            early: Arc::default(),
            pinned: copy(&self.pinned),
            hints_seen: copy(&self.hints_seen),
            ask_kernel: copy(&self.ask_kernel),
            ask_at: AtomicU64::default(),
            ask_pause: AtomicU64::default(),
            kernel_end: copy(&self.kernel_end),
            gone: copy(&self.gone),
            unread_at_death: copy(&self.unread_at_death),
            holder_unknown: copy(&self.holder_unknown),
            reset_reported: copy(&self.reset_reported),
            grow_at: AtomicU64::default(),
            wants_to_grow: AtomicU32::default(),
            full: Default::default(),
            room: Default::default(),
            view: Default::default(),
            stores: Default::default(),
            resting: copy(&self.resting),
        }
    }
}

impl World {
    fn new(seed: u64) -> Option<World> {
        let slot = Slab::create(Shape { slots: 1, small_bytes: 4096, large_bytes: 8192 }).ok()?.slot(0)?;
        let side = |end| {
            let core = Upgraded::new(slot.clone(), end, Arc::default());
            Side { processes: vec![Process::new(core)], ..Side::default() }
        };
        // Neighbouring seeds give unlike runs.
        let mut rng = Rng((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..4).for_each(|_| _ = rng.below(2));
        let (sides, wires) = ([side(0), side(1)], <[Wire; 2]>::default());
        wires.iter().for_each(|wire| wire.more.set(WIRE_BYTES_MORE * rng.below(2) as usize));
        let deadly = rng.below(2) == 0;
        Some(World { rng, slot, wires, sides, node: true, deadly, totals: Totals::default() })
    }

    fn step(&mut self) -> Result<(), String> {
        let e = self.rng.below(2) as usize;
        let Some(p) = self.pick(e) else { return Ok(()) };
        match self.rng.below(230) {
            0..60 => self.send(e, p),
            60..125 => self.receive(e, p),
            125..145 => {
                self.finish_call(e, p);
                Ok(())
            }
            145..165 => {
                let most = self.rng.below(400) as usize;
                self.wires[e].deliver(most);
                Ok(())
            }
            165..172 => {
                self.attach(e);
                Ok(())
            }
            172..178 => {
                let process = &self.sides[e].processes[p];
                if !process.foreign {
                    process.core.follow(ME, &self.socket(e));
                }
                Ok(())
            }
            178..183 => {
                let pin = self.rng.below(2) == 0;
                self.turn(e, p, pin);
                Ok(())
            }
            183..188 => {
                self.fork(e, p);
                Ok(())
            }
            188..191 => self.close(e, p),
            191 if self.deadly => {
                self.kill(e, p);
                Ok(())
            }
            192 => {
                self.end_sending(e, p);
                Ok(())
            }
            193 if self.deadly && self.rng.below(4) == 0 => {
                self.totals.node_deaths += u64::from(self.node);
                self.node = false;
                Ok(())
            }
            194..197 => {
                self.hint(e);
                Ok(())
            }
            // The node gives the direction a larger ring, or wants its memory back.
            197 if self.rng.below(2) == 0 => self.slot.grant_large(e).map_err(|e| e.to_string()),
            197 => {
                let _ = self.slot.take_large_back(e);
                Ok(())
            }
            198..200 if self.somebody_was_killed() => {
                self.ask_kernel(e, p);
                Ok(())
            }
            200..203 => self.hand_back(e, p),
            203..206 => {
                // What a poll of the state does.
                let process = &self.sides[e].processes[p];
                if !process.foreign && process.core.must_flush_to_kernel() {
                    process.core.flush_to_kernel(ME, &self.socket(e));
                }
                Ok(())
            }
            226..230 => {
                self.poll_room(e, p);
                Ok(())
            }
            206..226 if self.sides[e].processes[p].core.was_left() => self.hand_back(e, p),
            _ => Ok(()),
        }
    }

    fn pick(&mut self, e: usize) -> Option<usize> {
        let open = self.sides[e].processes.iter().filter(|p| p.open).count();
        let nth = self.rng.below(open.max(1) as u64) as usize;
        let mut all = self.sides[e].processes.iter().enumerate().filter(|(_, p)| p.open);
        all.nth(nth).map(|(at, _)| at)
    }

    fn socket(&self, e: usize) -> Socket<'_> {
        Socket { out: &self.wires[e], into: &self.wires[1 - e] }
    }

    fn is_held(&self, e: usize) -> bool {
        self.sides[e].processes.iter().any(|p| p.open)
    }

    fn somebody_was_killed(&self) -> bool {
        self.totals.kills > 0
    }

    fn attach(&mut self, e: usize) {
        // Before that there is one process, and it joins only a connection that is whole.
        if !self.sides[e].attached && self.socket(e).established() && self.is_held(e) {
            self.sides[e].attached = true;
            let words = &self.slot.words().ends[e];
            words.holders.store(1, Ordering::SeqCst);
            words.attached.store(EndWords::YES, Ordering::SeqCst);
        }
    }

    /// Wakes whom a step of end `e` concerns at the other end.
    fn wake_other_end(&mut self, e: usize, wakeup: Wakeup) {
        let words = self.slot.words();
        if wakeup.receiver && words.directions[e].receiver_sleep.take() {
            self.sides[1 - e].processes.iter_mut().for_each(|p| p.reader_sleeps = false);
        }
        if wakeup.sender && words.directions[1 - e].sender_sleep.take() {
            self.sides[1 - e].processes.iter_mut().for_each(|p| p.writer_sleeps = false);
        }
    }

    fn send(&mut self, e: usize, p: usize) -> Result<(), String> {
        let len = 1 + self.rng.below(if self.rng.0 % 5 == 0 { 6000 } else { 200 });
        let (side, process) = (&self.sides[e], &self.sides[e].processes[p]);
        if side.shut || process.call.is_some() || process.writer_sleeps {
            return Ok(());
        }
        let data = bytes(e, side.sent, len);
        if process.foreign {
            let sent = self.socket(e).send_now(&[IoSlice::new(&data)]).unwrap_or(0);
            self.sides[e].sent += sent as u64;
            return Ok(());
        }
        let cut = data.len() / 3;
        let in_ring = process.core.outgoing().announced().in_ring();
        let (sending, wakeup) = if side.attached {
            process.core.send(ME, &self.socket(e), &[IoSlice::new(&data[..cut]), IoSlice::new(&data[cut..])])
        } else {
            process.core.outgoing().kernel_sends.fetch_add(1, Ordering::SeqCst);
            (Sending::Kernel, Wakeup::default())
        };
        match sending {
            Sending::Locked(_) => return Err(format!("end {e} finds its lock taken")),
            Sending::Done(n) => {
                self.sides[e].sent += n as u64;
                self.totals.ring_bytes += if in_ring { n as u64 } else { 0 };
            }
            Sending::Full if in_ring => {
                let process = &mut self.sides[e].processes[p];
                process.core.outgoing().sender_sleep.announce();
                process.writer_sleeps = !process.core.may_be_writable();
                self.totals.sleeps += u64::from(process.writer_sleeps);
            }
            Sending::Full => {}
            Sending::Kernel => self.sides[e].processes[p].call = Some(len),
            Sending::Failed(errno) if self.is_held(1 - e) => return Err(format!("end {e} sends and gets {errno}")),
            Sending::Failed(_) => self.sides[e].processes[p].heard_reset = true,
        }
        self.wake_other_end(e, wakeup);
        Ok(())
    }

    fn receive(&mut self, e: usize, p: usize) -> Result<(), String> {
        let most = 1 + self.rng.below(500) as usize;
        let take = self.rng.below(6) > 0;
        let mut buffer = vec![0; most];
        let process = &self.sides[e].processes[p];
        if process.call.is_some() || process.reader_sleeps {
            return Ok(());
        }
        let (receiving, wakeup) = if self.sides[e].attached && !process.foreign {
            process.core.receive(ME, &self.socket(e), &mut [IoSliceMut::new(&mut buffer)], take)
        } else {
            let got = self.socket(e).receive_now(&mut [IoSliceMut::new(&mut buffer)], take);
            (
                got.map_or(Receiving::Empty, |n| if n > 0 { Receiving::OfKernel(n) } else { Receiving::Done(0) }),
                Wakeup::default(),
            )
        };
        self.wake_other_end(e, wakeup);
        match receiving {
            Receiving::Locked(_) => Err(format!("end {e} finds its lock taken")),
            Receiving::Done(0) => self.receive_end(e, p, false),
            Receiving::Failed(_) => self.receive_end(e, p, true),
            Receiving::Done(n) | Receiving::OfKernel(n) => self.take(e, &buffer[..n], take),
            Receiving::Kernel => Err(format!("end {e} is sent to the kernel")),
            Receiving::Empty => {
                let process = &mut self.sides[e].processes[p];
                if process.core.incoming().reads_ring() && !process.core.must_flush_to_kernel() {
                    process.core.incoming().receiver_sleep.announce();
                    process.reader_sleeps = !process.core.may_be_readable();
                    self.totals.sleeps += u64::from(process.reader_sleeps);
                }
                Ok(())
            }
        }
    }

    fn take(&mut self, e: usize, got: &[u8], take: bool) -> Result<(), String> {
        let side = &mut self.sides[e];
        for (at, b) in (side.got..).zip(got) {
            if *b != byte(1 - e, at) {
                return Err(format!("end {e} gets a wrong byte at {at}"));
            }
        }
        side.got += if take { got.len() as u64 } else { 0 };
        if side.got > self.sides[1 - e].sent {
            return Err(format!("end {e} gets more than was sent"));
        }
        Ok(())
    }

    /// A receive said that no more comes.
    fn receive_end(&mut self, e: usize, p: usize, reset: bool) -> Result<(), String> {
        let process = &mut self.sides[e].processes[p];
        process.heard_reset |= reset;
        if self.sides[1 - e].died_unread && !process.heard_reset && !process.foreign {
            return Err(format!("end {e} learns of an end, and the other one died with bytes unread"));
        }
        if self.is_held(1 - e) && !self.sides[1 - e].shut {
            return Err(format!("end {e} learns of an end, and the other end is held"));
        }
        self.sides[e].heard_end = true;
        Ok(())
    }

    /// The kernel send that a process is in ends, if it can.
    fn finish_call(&mut self, e: usize, p: usize) {
        let Some(len) = self.sides[e].processes[p].call else { return };
        let data = bytes(e, self.sides[e].sent, len);
        match self.socket(e).send_now(&[IoSlice::new(&data)]) {
            // It waits for room.
            Err(Errno::AGAIN) if self.rng.below(2) == 0 => return,
            result => self.sides[e].sent += result.map_or(0, |n| n as u64),
        }
        let process = &mut self.sides[e].processes[p];
        process.call = None;
        process.core.end_kernel_send();
    }

    /// Back to the kernel, or free to leave it.
    fn turn(&mut self, e: usize, p: usize, pin: bool) {
        if !self.sides[e].attached || self.sides[e].processes[p].foreign {
            return;
        }
        let core = &self.sides[e].processes[p].core;
        core.pinned.store(u32::from(pin), Ordering::SeqCst);
        if pin {
            core.incoming().receiver_flags.fetch_or(Flags::WANTS_KERNEL, Ordering::SeqCst);
            // Or with the next send.
            if self.rng.below(2) == 0 {
                let (_, wakeup) = self.sides[e].processes[p].core.return_to_kernel(ME, &self.socket(e));
                self.wake_other_end(e, wakeup);
            }
        } else if !core.incoming().goes_back() {
            core.incoming().receiver_flags.fetch_and(!Flags::WANTS_KERNEL, Ordering::SeqCst);
        }
    }

    /// A process becomes another program, which only knows the kernel; the connection would be
    /// reset if that were too early, and the process stays what it is here. The other end may not
    /// run for longer than the process waits, and that alone is no reason for a reset.
    fn hand_back(&mut self, e: usize, p: usize) -> Result<(), String> {
        let waits = self.rng.below(2) == 0;
        let process = &self.sides[e].processes[p];
        let busy = process.call.is_some() || process.reader_sleeps || process.writer_sleeps || process.foreign;
        let peer = self.is_held(1 - e) && !self.sides[1 - e].shut;
        let seldom = if process.core.was_left() { 1 } else { 8 };
        if busy || !self.sides[e].attached || !peer || self.rng.below(seldom) > 0 {
            return Ok(());
        }
        let core = &self.sides[e].processes[p].core;
        let (announced, unread) = (core.incoming().announced(), core.incoming().available(core.slot.most_bytes()));
        let was_left = core.incoming().reached() != announced.number && !announced.in_ring();
        let is_leaving = was_left && announced.pending && !core.is_left_empty();
        if is_leaving || was_left && !announced.pending && !core.has_copies_of_the_rest() {
            return Ok(());
        }
        let unfollowed = core.may_spill();
        let asked = core.ask_back(ME).unwrap_or_default();
        let (mut way, mut wakeup) = core.hand_back(ME, &self.socket(e));
        if waits {
            // The kernel delivers by itself.
            self.wires.iter().for_each(|wire| wire.deliver(usize::MAX));
            if way == WayBack::Open {
                (way, wakeup) = core.hand_back(ME, &self.socket(e));
            }
            if way == WayBack::Open && self.socket(e).takes_more() {
                return Err(format!("end {e} would be reset, for the other one does not run"));
            }
        }
        let own = &self.slot.words().directions[1 - e];
        if own.receiver_sleep.take() {
            self.sides[e].processes.iter_mut().for_each(|p| p.reader_sleeps = false);
        }
        self.wake_other_end(e, asked);
        self.wake_other_end(e, wakeup);
        if was_left && unread > 0 {
            self.totals.left_behind += 1;
        }
        match way {
            WayBack::Lost => return Err(format!("end {e} cannot have {unread} bytes back, left: {was_left}")),
            WayBack::Open => {}
            WayBack::Found | WayBack::Promised => {
                self.sides[e].processes[p].foreign = true;
                self.totals.hand_backs += 1;
                self.totals.unfollowed += u64::from(waits && unfollowed);
            }
        }
        Ok(())
    }

    fn fork(&mut self, e: usize, p: usize) {
        let side = &mut self.sides[e];
        let full = side.processes.iter().filter(|p| p.open).count() >= PROCESSES_MAX;
        if !side.attached || full || side.processes[p].foreign {
            return;
        }
        let core = side.processes[p].core.inherited();
        core.own().holders.fetch_add(1, Ordering::SeqCst);
        // Sleepers and calls are other threads of the parent.
        let heard_reset = side.processes[p].heard_reset;
        side.processes.push(Process { heard_reset, ..Process::new(core) });
        self.totals.forks += 1;
    }

    fn close(&mut self, e: usize, p: usize) -> Result<(), String> {
        let side = &mut self.sides[e];
        if side.processes[p].call.is_some() {
            return Ok(());
        }
        if side.processes[p].foreign {
            // Nobody counts it out: to the others it is as if it had been killed.
            self.totals.kills += 1;
            self.sides[e].processes[p].open = false;
            self.drop_socket(e);
            return Ok(());
        }
        side.processes[p].open = false;
        self.totals.closes += 1;
        if self.sides[e].attached {
            let (last, wakeup) = self.sides[e].processes[p].core.let_go(Close::Orderly);
            let last = last.is_some();
            if last && self.is_held(e) {
                return Err(format!("a close of end {e} is taken for the last one, and the end is held"));
            }
            self.wake_other_end(e, wakeup);
            if last {
                let core = &self.sides[e].processes[p].core;
                core.flush_to_kernel(ME, &self.socket(e));
            }
        }
        self.drop_socket(e);
        Ok(())
    }

    fn kill(&mut self, e: usize, p: usize) {
        self.totals.kills += 1;
        if self.sides[e].attached && !self.sides[e].processes[p].foreign {
            self.die_in_the_middle(e, p);
        }
        self.sides[e].processes[p].open = false;
        let (words, side) = (&self.slot.words().directions[1 - e], &self.sides[e]);
        // Who asked for the kernel leaves nothing unread in the ring but for a while.
        let unread = !words.goes_back() && words.tail.load(Ordering::SeqCst) != words.head.load(Ordering::SeqCst);
        self.sides[e].died_unread = !self.is_held(e) && unread && side.attached && !side.shut;
        self.drop_socket(e);
    }

    fn die_in_the_middle(&mut self, e: usize, p: usize) {
        let most = self.rng.below(2_000);
        let core = &self.sides[e].processes[p].core;
        let (out, into) = (core.outgoing(), core.incoming());
        match self.rng.below(7) {
            0 if core.may_enter_ring() && !out.announced().in_ring() && !out.announced().pending => {
                out.begin_change();
                let data = bytes(e, self.sides[e].sent, 20);
                let sent = self.socket(e).send_now(&[IoSlice::new(&data)]).unwrap_or(0);
                out.sender_lock.store(DEAD, Ordering::SeqCst);
                self.sides[e].sent += sent as u64;
            }
            1 => out.sender_lock.store(DEAD, Ordering::SeqCst),
            2 => into.receiver_lock.store(DEAD, Ordering::SeqCst),
            3 if core.must_flush_to_kernel() => {
                core.flush_to_kernel(ME, &self.socket(e));
                out.sender_lock.store(DEAD, Ordering::SeqCst);
            }
            4 if core.could_leave() => {
                core.begin_to_leave(&self.socket(e), most);
                out.sender_lock.store(DEAD, Ordering::SeqCst);
            }
            6 if core.may_spill() && out.begin_spill() => {
                let head = out.head.load(Ordering::SeqCst);
                let unread = out.tail.load(Ordering::SeqCst) - head;
                let (moved, _) = core.copy_to_kernel(&self.socket(e), head, most.min(unread), 0, false);
                // Or over the last word: of a spill, or of a ring that is withdrawn.
                let last = self.rng.below(3);
                if last == 1 {
                    out.end_spill(moved);
                    if out.begin_spill() {
                        out.change(out.ring_began.load(Ordering::SeqCst));
                    }
                } else if last == 2 && moved == unread {
                    core.own().pinned.store(1, Ordering::SeqCst);
                    out.head.store(head + moved, Ordering::SeqCst);
                    out.cancel_change();
                }
                out.sender_lock.store(DEAD, Ordering::SeqCst);
            }
            5 if into.copies.load(Ordering::SeqCst) != 0 || into.reads_ring() && core.leave_drained_ring() => {
                let copies = into.copies.load(Ordering::SeqCst) & !DirectionWords::READS_COPIES;
                into.copies.store(copies | DirectionWords::READS_COPIES, Ordering::SeqCst);
                let mut buffer = vec![0; (1 + self.rng.below(600)).min(copies) as usize];
                let _ = self.socket(e).receive_now(&mut [IoSliceMut::new(&mut buffer)], true);
                into.receiver_lock.store(DEAD, Ordering::SeqCst);
            }
            _ => return,
        }
        self.totals.worst_kills += 1;
    }

    /// A process has closed its descriptor; the last one ends the kernel's connection.
    fn drop_socket(&mut self, e: usize) {
        if !self.is_held(e) {
            let direction = &self.slot.words().directions[e];
            let unread = direction.tail.load(Ordering::SeqCst) != direction.head.load(Ordering::SeqCst);
            self.sides[e].lost = direction.goes_back() && direction.announced().in_ring() && unread;
            self.wires[e].ended.set(true);
            self.wires[1 - e].unread.set(true);
            self.sides[e].hints = 4;
        }
    }

    fn end_sending(&mut self, e: usize, p: usize) {
        // Only when no kernel send is under way: the program would not know what it sent.
        let busy = self.sides[e].processes.iter().any(|p| p.call.is_some());
        let must_flush_to_kernel =
            self.slot.words().directions[e].goes_back() && self.sides[e].processes[p].core.must_flush_to_kernel();
        if busy
            || self.sides[e].shut
            || must_flush_to_kernel && !self.sides[e].processes[p].core.flush_to_kernel(ME, &self.socket(e))
        {
            return;
        }
        self.sides[e].shut = true;
        if self.sides[e].attached && !self.sides[e].processes[p].foreign {
            let wakeup = self.sides[e].processes[p].core.end_sending(ME, &self.socket(e));
            self.wake_other_end(e, wakeup);
        }
        self.wires[e].ended.set(true);
    }

    /// The node has seen the holders of an end go.
    fn hint(&mut self, e: usize) {
        if !self.node || self.sides[e].hints == 0 || !self.sides[1 - e].attached {
            return;
        }
        self.sides[e].hints -= 1;
        let words = self.slot.words();
        words.ends[e].dead.store(1, Ordering::SeqCst);
        words.ends[1 - e].hint.fetch_add(1, Ordering::SeqCst);
        words.directions[e].receiver_sleep.take();
        words.directions[1 - e].sender_sleep.take();
        for process in &mut self.sides[1 - e].processes {
            (process.reader_sleeps, process.writer_sleeps) = (false, false);
        }
    }

    /// A ring that is full stays so for long.
    fn let_full_time_pass(&self, e: usize, p: usize) {
        let socket = self.socket(e);
        [0, u64::MAX].into_iter().for_each(|now_ns| self.sides[e].processes[p].core.notice_full(now_ns, &socket));
    }

    /// A sleep for room ends for a poll, as it does now and then.
    fn poll_room(&mut self, e: usize, p: usize) {
        let process = &self.sides[e].processes[p];
        if process.writer_sleeps && !process.foreign {
            self.let_full_time_pass(e, p);
            let process = &mut self.sides[e].processes[p];
            process.writer_sleeps = !process.core.may_be_writable();
        }
    }

    /// A sleep has lasted long enough for a check of the kernel.
    fn ask_kernel(&mut self, e: usize, p: usize) {
        let process = &self.sides[e].processes[p];
        if !process.reader_sleeps && !process.writer_sleeps {
            return;
        }
        process.core.ask_kernel.store(1, Ordering::Relaxed);
        process.core.follow_hints(&self.socket(e));
        if process.writer_sleeps {
            self.let_full_time_pass(e, p);
        }
        let (readable, writable) = (process.core.may_be_readable(), process.core.may_be_writable());
        let process = &mut self.sides[e].processes[p];
        process.reader_sleeps &= !readable;
        process.writer_sleeps &= !writable;
    }

    /// Whether end `e` has all that it will ever get.
    fn is_done(&self, e: usize) -> bool {
        let over = self.sides[1 - e].shut || !self.is_held(1 - e);
        // Somebody was killed while reading copies away, and then the other end ended: a reset, for
        // nobody can count what is left of them.
        let copies = self.slot.words().directions[1 - e].copies.load(Ordering::SeqCst);
        let uncounted = copies & DirectionWords::READS_COPIES != 0 && self.wires[1 - e].ended.get();
        let whole = self.sides[e].got == self.sides[1 - e].sent || self.sides[1 - e].lost || uncounted;
        !self.is_held(e) || whole && self.sides[e].heard_end == over
    }

    /// Everything that was sent arrives if both go on.
    fn run_until_quiet(&mut self) -> Result<(), String> {
        self.totals.sent_bytes = self.sides.iter().map(|s| s.sent).sum();
        for _ in 0..SETTLE_ROUNDS {
            for e in 0..2 {
                self.attach(e);
                self.wires[1 - e].deliver(1000);
                self.hint(1 - e);
                let open: Vec<usize> = (0..self.sides[e].processes.len()).collect();
                for p in open.into_iter().filter(|p| self.sides[e].processes[*p].open).collect::<Vec<_>>() {
                    self.finish_call(e, p);
                    self.receive(e, p)?;
                    if self.somebody_was_killed() {
                        self.ask_kernel(e, p);
                    }
                }
            }
            if self.is_done(0) && self.is_done(1) {
                return Ok(());
            }
        }
        let end = |e: usize| {
            let side = &self.sides[e];
            let open = side.processes.iter().filter(|p| p.open);
            let states: Vec<_> = open.map(|p| (p.call, p.reader_sleeps, p.writer_sleeps)).collect();
            format!(
                "end {e} has sent {} and got {}, learned of the end: {}, {states:?}",
                side.sent, side.got, side.heard_end
            )
        };
        Err(format!("stuck: {}; {}; node {}", end(0), end(1), self.node))
    }
}
