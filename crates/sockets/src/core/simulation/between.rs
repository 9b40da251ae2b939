//! The same between two nodes: two replicas, messages that come when the script says so, a session
//! that is lost.
//!
//! Checked: what comes out is a prefix of what went in. An end of the stream is received only when
//! all is there, a reset only when the session was lost or somebody was reset for it. When the
//! script is over everything arrives, or a reset does; nobody sleeps on the ring for what has come,
//! nobody is in the kernel for what went by the ring, and no node waits for a bell that was not
//! rung. An end that asks for what is in the ring by the kernel goes on as somebody who reads
//! nothing else, or stays what it is; either gets every byte, unless the process that had some of
//! them is killed over it.
//!
//! Invariant: as for the module above.

use super::{ME, Rng, WIRE_BYTES_MORE, Wire, bytes};
use crate::core::{Early, End, EndWords, Kernel, Receiving, Sending, Upgraded, Wakeup, WayBack};
use crate::types::Close;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmmc_stream::{Encoded, Replica, Shape, SideWords, Slab, Wakes};

/// Rounds after which what has not arrived never will.
const SETTLE_ROUNDS: usize = 3_000;
/// Most bytes of a message.
const MESSAGE_BYTES: u64 = 1_400;

/// What happened in a run, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Bytes that went by the ring.
    pub ring_bytes: u64,
    /// Changes of medium.
    pub changes: u64,
    /// Receives that were in the kernel for longer than a poll.
    pub blocked: u64,
    /// Calls in the kernel that nobody had to think about.
    pub rests: u64,
    /// Ends closed.
    pub closes: u64,
    /// Ends whose process died.
    pub deaths: u64,
    /// Sessions lost.
    pub losses: u64,
    /// Connections that were reset for it.
    pub resets: u64,
    /// Ends that asked back what was in the ring, and went on with the kernel.
    pub hand_overs: u64,
    /// Bytes that the ring had then.
    pub owed_bytes: u64,
    /// Those of them whose other end had left the ring by itself with bytes unread there.
    pub left_behind: u64,
    /// Ends that asked, and whose connection was reset instead although the other end lived, and
    /// the session.
    pub refusals: u64,
}

impl Totals {
    /// All of them, by name.
    pub fn counts(&self) -> [(&'static str, u64); 13] {
        [
            ("runs between nodes", self.runs),
            ("ring bytes between nodes", self.ring_bytes),
            ("changes of medium between nodes", self.changes),
            ("receives in the kernel between nodes", self.blocked),
            ("calls at rest between nodes", self.rests),
            ("closes between nodes", self.closes),
            ("deaths between nodes", self.deaths),
            ("sessions lost", self.losses),
            ("resets for lost sessions", self.resets),
            ("hand-overs between nodes", self.hand_overs),
            ("bytes asked back between nodes", self.owed_bytes),
            ("hand-overs of unread bytes left in the ring between nodes", self.left_behind),
            ("hand-overs refused", self.refusals),
        ]
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Totals) {
        self.runs += other.runs;
        self.ring_bytes += other.ring_bytes;
        self.changes += other.changes;
        self.blocked += other.blocked;
        self.rests += other.rests;
        self.closes += other.closes;
        self.deaths += other.deaths;
        self.losses += other.losses;
        self.resets += other.resets;
        self.hand_overs += other.hand_overs;
        self.owed_bytes += other.owed_bytes;
        self.left_behind += other.left_behind;
        self.refusals += other.refusals;
    }
}

/// One run. The same seed gives the same run.
///
/// # Errors
/// The property that did not hold, and where.
pub fn run(seed: u64) -> Result<Totals, String> {
    let mut world = World::new(seed).ok_or("no memory for a slot")?;
    let steps = world.rng.below(1_200) + 100;
    for step in 0..steps {
        world.step().map_err(|why| format!("step {step}: {why}"))?;
    }
    world.run_until_quiet()?;
    world.totals.runs = 1;
    Ok(world.totals)
}

/// What one node sends the other.
enum Message {
    Update(Vec<u8>),
    Question,
    Complete,
}

struct Side {
    core: Upgraded,
    replica: Replica,
    /// Messages from this end's node.
    flying: VecDeque<Message>,
    /// Its node has been rung.
    rung: bool,
    attached: bool,
    /// In the kernel, until bytes come.
    blocked: bool,
    /// On the ring, until woken.
    asleep: bool,
    /// For room, until woken.
    waits_for_room: bool,
    /// The process has closed it, or died.
    over: bool,
    /// It died with bytes in its ring.
    robbed: bool,
    /// About to become another program: it does nothing but see to that. How much was in the ring
    /// when it began.
    asks: Option<u64>,
    /// The other end had left the ring by itself with bytes unread there.
    left_behind: bool,
    /// The kernel took nothing of what it wanted to send there last.
    refused: bool,
    /// Another program by now, which knows only the kernel.
    foreign: bool,
    sent: u64,
    got: u64,
    heard_end: bool,
    heard_reset: bool,
}

struct World {
    sides: [Side; 2],
    wires: [Wire; 2],
    reset: Cell<bool>,
    rng: Rng,
    now_ns: Cell<u64>,
    lost: bool,
    totals: Totals,
}

/// The kernel's socket of one end.
struct Socket<'a> {
    wires: super::Socket<'a>,
    reset: &'a Cell<bool>,
    now_ns: &'a Cell<u64>,
}

impl Kernel for Socket<'_> {
    fn send_now(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if self.reset.get() { Err(Errno::PIPE) } else { self.wires.send_now(from) }
    }
    fn receive_now(&self, into: &mut [IoSliceMut<'_>], take: bool) -> Result<usize, Errno> {
        if self.reset.get() { Err(Errno::CONNRESET) } else { self.wires.receive_now(into, take) }
    }
    fn sent(&self) -> Option<u64> {
        self.wires.sent()
    }
    fn received(&self) -> Option<(u64, u64)> {
        self.wires.received()
    }
    fn peek(&self) -> End {
        if self.reset.get() { End::Reset(Errno::CONNRESET) } else { self.wires.peek() }
    }
    fn peer_ended(&self) -> bool {
        self.reset.get() || self.wires.peer_ended()
    }
    fn no_delay(&self) {}
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }
    fn cpu_ns(&self) -> u64 {
        self.now_ns.get() / 2
    }
}

impl World {
    fn new(seed: u64) -> Option<World> {
        let shape = Shape { slots: 1, small_bytes: 4096, large_bytes: 4096 };
        let side = |end: usize| {
            let slot = Slab::create(shape).ok()?.slot(0)?;
            slot.words().between.store(1, Ordering::Relaxed);
            Some(Side {
                core: Upgraded::new(slot.clone(), end, Arc::<Early>::default()),
                replica: Replica::new(slot, end),
                flying: VecDeque::new(),
                rung: false,
                attached: false,
                blocked: false,
                asleep: false,
                waits_for_room: false,
                over: false,
                robbed: false,
                asks: None,
                left_behind: false,
                refused: false,
                foreign: false,
                sent: 0,
                got: 0,
                heard_end: false,
                heard_reset: false,
            })
        };
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..4).for_each(|_| _ = rng.below(2));
        let wires = <[Wire; 2]>::default();
        wires.iter().for_each(|wire| wire.more.set(WIRE_BYTES_MORE * rng.below(4).min(1) as usize));
        Some(World {
            sides: [side(0)?, side(1)?],
            wires,
            reset: Cell::new(false),
            rng,
            now_ns: Cell::new(1),
            lost: false,
            totals: Totals::default(),
        })
    }

    fn socket(&self, e: usize) -> Socket<'_> {
        let wires = super::Socket { out: &self.wires[e], into: &self.wires[1 - e] };
        Socket { wires, reset: &self.reset, now_ns: &self.now_ns }
    }

    fn step(&mut self) -> Result<(), String> {
        let e = self.rng.below(2) as usize;
        self.now_ns.set(self.now_ns.get() + self.rng.below(100_000));
        match self.rng.below(480) {
            0..90 => self.send(e),
            90..200 => self.receive(e)?,
            200..240 => self.wires[e].deliver(self.rng.below(400) as usize),
            240..310 => self.carry(e)?,
            310..380 => self.receive_message(e)?,
            380..385 => self.attach(e),
            // What the measurements of a real program would lead to.
            385..393 => self.sides[e].core.prefer_kernel(self.rng.below(3) == 0),
            393..396 => self.sides[e].core.rest(self.rng.below(20) as u32),
            396 => self.close(e)?,
            397 => self.die(e),
            398 if self.rng.below(4) == 0 => self.lose(),
            399..409 => self.ask_back(e),
            409..435 => self.hand_over(e)?,
            435..440 if self.lost => self.notice(e),
            440..480 if self.sides[e].core.was_left() => self.ask_back(e),
            _ => {}
        }
        Ok(())
    }

    fn attach(&mut self, e: usize) {
        let side = &mut self.sides[e];
        if !side.over && !std::mem::replace(&mut side.attached, true) {
            side.core.own().holders.store(1, Ordering::SeqCst);
            side.core.own().attached.store(EndWords::YES, Ordering::SeqCst);
            side.rung = true;
        }
    }

    /// After a call: what a process does with its results.
    fn after(&mut self, e: usize, wakeup: Wakeup) {
        let side = &mut self.sides[e];
        side.rung |= wakeup.receiver || wakeup.sender || side.core.takes_update();
        if side.core.takes_question() && !self.lost {
            side.flying.push_back(Message::Question);
        }
    }

    fn send(&mut self, e: usize) {
        let side = &self.sides[e];
        if side.over || side.heard_reset || side.waits_for_room || side.asks.is_some() {
            return;
        }
        let len = 1 + self.rng.below(if self.rng.0 % 40 == 0 { 3_000 } else { 150 });
        let data = bytes(e, self.sides[e].sent, len);
        let from = [IoSlice::new(&data)];
        let (side, socket, mut refused) = (&self.sides[e], self.socket(e), side.refused);
        let (mut sent, mut wakeup, mut full, mut rests, mut reset) = (0, Wakeup::default(), false, false, false);
        if side.attached && !side.foreign {
            let before = side.core.outgoing().announced();
            rests = side.core.rest_sending();
            let (sending, told) =
                if rests { (Sending::Kernel, Wakeup::default()) } else { side.core.send(ME, &socket, &from) };
            wakeup = told;
            match sending {
                Sending::Locked(_) => unreachable!("one thread has the lock for a call"),
                Sending::Done(n) => {
                    sent = n as u64;
                    self.totals.ring_bytes += if before.in_ring() { sent } else { 0 };
                }
                Sending::Kernel => {
                    sent = socket.send_now(&from).map_or(0, |n| n as u64);
                    side.core.end_kernel_send();
                    refused = sent == 0;
                }
                Sending::Full if side.core.outgoing().announced().in_ring() && !side.core.must_flush_to_kernel() => {
                    let out = side.core.outgoing();
                    out.sender_sleep.announce();
                    out.want_room();
                    full = !side.core.may_be_writable();
                }
                Sending::Failed(errno) => reset = errno == Errno::CONNRESET,
                Sending::Full => {}
            }
            self.totals.changes += u64::from(side.core.outgoing().announced() != before);
        } else {
            sent = socket.send_now(&from).map_or(0, |n| n as u64);
        }
        self.totals.rests += u64::from(rests);
        self.sides[e].sent += sent;
        self.sides[e].waits_for_room = full;
        self.sides[e].refused = refused;
        if reset {
            self.receive_reset(e);
        }
        self.after(e, wakeup);
    }

    fn receive(&mut self, e: usize) -> Result<(), String> {
        // While it asks another of its threads may receive.
        if self.sides[e].over || self.sides[e].asleep || self.sides[e].asks.is_some() && self.rng.below(2) == 0 {
            return Ok(());
        }
        let mut buffer = vec![0; 1 + self.rng.below(500) as usize];
        let (side, socket) = (&self.sides[e], self.socket(e));
        let mut into = [IoSliceMut::new(&mut buffer)];
        let mut rests = false;
        let (receiving, wakeup, plain) = if side.blocked {
            (Receiving::Kernel, Wakeup::default(), true)
        } else if side.attached && !side.foreign {
            rests = side.core.rest_receiving();
            let (receiving, wakeup) = if rests {
                (Receiving::Kernel, Wakeup::default())
            } else {
                side.core.receive(ME, &socket, &mut into, true)
            };
            (receiving, wakeup, receiving == Receiving::Kernel)
        } else {
            (Receiving::Kernel, Wakeup::default(), false)
        };
        let mut blocks = false;
        let receiving = match receiving {
            Receiving::Kernel => {
                let result = socket.receive_now(&mut into, true);
                blocks = plain && result == Err(Errno::AGAIN) && (side.blocked || self.rng.0 % 2 == 0);
                if plain && !blocks {
                    side.core.end_kernel_receive(|| self.now_ns.get());
                }
                match result {
                    Ok(n @ 1..) => Receiving::OfKernel(n),
                    Ok(_) => Receiving::Done(0),
                    Err(Errno::AGAIN) => Receiving::Empty,
                    Err(errno) => Receiving::Failed(errno),
                }
            }
            other => other,
        };
        self.totals.rests += u64::from(rests);
        self.totals.blocked += u64::from(blocks && !self.sides[e].blocked);
        self.sides[e].blocked = blocks;
        match receiving {
            Receiving::Locked(_) => return Err(format!("end {e} finds its lock taken")),
            Receiving::Done(0) => self.receive_end(e)?,
            Receiving::Done(n) | Receiving::OfKernel(n) => self.take(e, &buffer[..n])?,
            Receiving::Empty if !blocks => self.sleep(e),
            Receiving::Empty | Receiving::Kernel => {}
            Receiving::Failed(errno) => {
                // Who closes with unread bytes resets, behind all that it sent.
                let there = &self.sides[1 - e];
                let unread = there.over && self.sides[e].got == there.sent;
                let core = &self.sides[e].core;
                let refused = core.incoming().goes_back() && core.way_back() != WayBack::Found;
                if errno != Errno::CONNRESET || !(self.lost || self.reset.get() || unread || refused) {
                    return Err(format!("end {e} got {errno} without a reason"));
                }
                self.receive_reset(e);
            }
        }
        self.after(e, wakeup);
        Ok(())
    }

    fn receive_reset(&mut self, e: usize) {
        self.totals.resets += u64::from(!self.sides[e].heard_reset);
        self.sides[e].heard_reset = true;
        self.reset.set(true);
    }

    fn take(&mut self, e: usize, got: &[u8]) -> Result<(), String> {
        let side = &mut self.sides[e];
        if got != bytes(1 - e, side.got, got.len() as u64) {
            return Err(format!("end {e} got wrong bytes at {} of {}", side.got, got.len()));
        }
        side.got += got.len() as u64;
        Ok(())
    }

    fn receive_end(&mut self, e: usize) -> Result<(), String> {
        let (here, there) = (&self.sides[e], &self.sides[1 - e]);
        let robbed = there.robbed && here.core.incoming().goes_back();
        let whole = there.over && (here.got == there.sent || robbed);
        if !whole && !here.heard_reset {
            return Err(format!("end {e} got the end at {} of {}, over: {}", here.got, there.sent, there.over));
        }
        self.sides[e].heard_end = true;
        Ok(())
    }

    /// As a blocking call does: announce, poll again, sleep.
    fn sleep(&mut self, e: usize) {
        let side = &mut self.sides[e];
        let on_ring = side.core.incoming().reads_ring() || side.core.waits_for_the_rest();
        if side.attached && on_ring && !side.foreign {
            side.core.incoming().receiver_sleep.announce();
            side.asleep = !side.core.ends_sleep();
        }
    }

    /// The node of an end says what there is to say, if it was rung.
    fn carry(&mut self, e: usize) -> Result<(), String> {
        if !self.sides[e].rung || self.lost {
            return Ok(());
        }
        let most = SideWords::BYTES as u64 + self.rng.below(MESSAGE_BYTES);
        let side = &mut self.sides[e];
        let mut message = Vec::new();
        let encoded = side.replica.encode_update(most as usize, &mut message).map_err(|e| e.to_string())?;
        side.rung = matches!(encoded, Encoded::Part | Encoded::NoRoom);
        if !message.is_empty() {
            side.flying.push_back(Message::Update(message));
        }
        Ok(())
    }

    /// The node of an end takes a message.
    fn receive_message(&mut self, e: usize) -> Result<(), String> {
        let Some(message) = self.sides[1 - e].flying.pop_front() else { return Ok(()) };
        let wakes = match message {
            Message::Update(update) => self.sides[e].replica.apply_update(&update).map_err(|e| e.to_string())?,
            Message::Question => {
                self.sides[e].rung = true;
                while self.sides[e].rung {
                    self.carry(e)?;
                }
                self.sides[e].flying.push_back(Message::Complete);
                Wakes::default()
            }
            Message::Complete => {
                self.sides[e].core.slot.words().complete.store(1, Ordering::SeqCst);
                self.sides[e].core.own().hint.fetch_add(1, Ordering::SeqCst);
                Wakes { receiver: true, ..Wakes::default() }
            }
        };
        self.sides[e].rung |= wakes.answer;
        if wakes.sender && self.sides[e].core.outgoing().sender_sleep.take() {
            self.sides[e].waits_for_room = false;
        }
        if wakes.receiver && self.sides[e].core.incoming().receiver_sleep.take() {
            self.sides[e].asleep = false;
        }
        Ok(())
    }

    fn close(&mut self, e: usize) -> Result<(), String> {
        let side = &self.sides[e];
        if side.over || side.blocked || side.asks.is_some() || self.reset.get() {
            return Ok(());
        }
        let there = &self.sides[1 - e];
        // Nobody learns of a reset where the other end has gone: one that died over leaving the
        // ring left copies behind.
        if !there.over && side.got == there.sent && !there.refused && self.wires[1 - e].holds_bytes() {
            return Err(format!("end {e} has got all {} bytes, and its close would be a reset", side.got));
        }
        self.totals.closes += 1;
        if side.attached && !side.foreign {
            side.core.let_go(Close::Orderly);
            let must_flush_to_kernel =
                side.core.must_flush_to_kernel() && !side.core.flush_to_kernel(ME, &self.socket(e));
            self.sides[e].rung = true;
            // A real one waits for a while.
            self.reset.set(must_flush_to_kernel);
        }
        self.end(e);
        Ok(())
    }

    fn die(&mut self, e: usize) {
        let (side, there) = (&self.sides[e], &self.sides[1 - e]);
        if !side.over && !side.blocked && !self.reset.get() {
            let out = side.core.outgoing();
            let (tail, head) = (&out.tail, &there.core.incoming().head);
            let unread = tail.load(Ordering::Relaxed) != head.load(Ordering::Relaxed);
            let leaves = side.attached && !side.foreign && side.core.could_leave();
            self.sides[e].robbed = unread && out.announced().in_ring();
            if leaves && self.rng.below(2) == 0 {
                // In the middle of that.
                let most = self.rng.below(3_000);
                self.sides[e].core.begin_to_leave(&self.socket(e), most);
                self.sides[e].rung = true;
            }
            self.totals.deaths += 1;
            self.end(e);
        }
    }

    /// A process wants to become another program, or gives the connection to one: as
    /// `hand_over_between` begins.
    fn ask_back(&mut self, e: usize) {
        let side = &self.sides[e];
        let busy = side.over || side.blocked || side.asleep || side.waits_for_room || side.asks.is_some();
        let seldom = match side.core.incoming().reads_ring() {
            true if side.core.was_left() => 1,
            true => 2,
            false => 40,
        };
        if busy || !side.attached || side.foreign || side.heard_reset || self.reset.get() || self.rng.below(seldom) > 0
        {
            return;
        }
        let (side, socket) = (&self.sides[e], self.socket(e));
        side.core.pinned.store(1, Ordering::SeqCst);
        side.core.follow(ME, &socket);
        side.core.ask_back(ME).expect("one thread");
        // What is under way, too.
        let unread = self.sides[1 - e].core.outgoing().tail.load(Ordering::Relaxed)
            - side.core.incoming().head.load(Ordering::Relaxed);
        self.sides[e].asks = Some(unread);
        self.sides[e].rung = true;
    }

    /// As it goes on.
    fn hand_over(&mut self, e: usize) -> Result<(), String> {
        let side = &self.sides[e];
        let Some(unread) = side.asks.filter(|_| !side.over) else { return Ok(()) };
        let into = side.core.incoming();
        let was_left = into.reached() % 2 == 1 && !into.announced().in_ring() && !into.announced().pending;
        let behind = was_left && into.available(side.core.slot.most_bytes()) > 0;
        let gap = behind && !side.core.has_copies_of_the_rest();
        let (way, _) = side.core.hand_over(ME, &self.socket(e));
        let cut_off = side.core.is_cut_off();
        let (peer_over, given_up) = (self.sides[1 - e].over || self.reset.get(), self.lost);
        if way == WayBack::Lost && !gap && !peer_over && !given_up {
            return Err(format!("end {e} cannot have {unread} bytes back"));
        }
        self.sides[e].left_behind |= behind && !gap;
        self.sides[e].rung = true;
        let patient = self.rng.below(4) > 0;
        match way {
            WayBack::Promised if patient => return Ok(()),
            WayBack::Open if !cut_off && (patient || self.rng.below(30) > 0) => return Ok(()),
            WayBack::Found | WayBack::Promised => {
                self.totals.hand_overs += 1;
                self.totals.owed_bytes += unread;
                self.totals.left_behind += u64::from(self.sides[e].left_behind);
                self.sides[e].foreign = self.rng.below(3) > 0;
            }
            WayBack::Lost | WayBack::Open => {
                self.totals.refusals += u64::from(!self.lost && !self.sides[1 - e].over);
                self.sides[e].core.give_up();
                self.reset.set(true);
            }
        }
        self.sides[e].asks = None;
        Ok(())
    }

    fn end(&mut self, e: usize) {
        self.sides[e].over = true;
        self.wires[e].ended.set(true);
        self.wires[1 - e].unread.set(true);
    }

    /// The session is lost: each node says so to its own end when it notices.
    fn lose(&mut self) {
        if !std::mem::replace(&mut self.lost, true) {
            self.totals.losses += 1;
            self.sides.iter_mut().for_each(|side| side.flying.clear());
        }
    }

    fn notice(&mut self, e: usize) {
        self.sides[e].core.slot.words().broken.store(1, Ordering::SeqCst);
        self.wake(e);
    }

    /// A sleeper wakes, and sleeps again if nothing has changed.
    fn wake(&mut self, e: usize) {
        let side = &mut self.sides[e];
        side.asleep &= !side.core.ends_sleep();
        side.waits_for_room &= !side.core.may_be_writable();
    }

    fn run_until_quiet(&mut self) -> Result<(), String> {
        for e in [0, 1] {
            if !self.lost {
                self.attach(e);
            } else {
                self.notice(e);
            }
        }
        for round in 0..SETTLE_ROUNDS {
            for e in [0, 1] {
                self.wires[e].deliver(usize::MAX);
                self.carry(e)?;
                while !self.sides[1 - e].flying.is_empty() {
                    self.receive_message(e)?;
                }
                // A sleeper asks its kernel after a while.
                if round % 16 == 15 && self.sides[1 - e].over {
                    self.now_ns.set(self.now_ns.get() + 30_000_000);
                    self.sides[e].core.ask_kernel.store(1, Ordering::Relaxed);
                    if self.sides[e].asleep {
                        self.sides[e].core.follow_hints(&self.socket(e));
                        self.after(e, Wakeup::default());
                        self.wake(e);
                    }
                }
                self.hand_over(e)?;
                self.receive(e)?;
            }
            if self.is_quiet(0) && self.is_quiet(1) {
                return Ok(());
            }
        }
        let state = |s: &Side| {
            format!(
                "sent {} got {} blocked {} asleep {} waits for room {} over {} asks {:?} foreign {} end {} reset {} epochs {:?} {}",
                s.sent,
                s.got,
                s.blocked,
                s.asleep,
                s.waits_for_room,
                s.over,
                s.asks,
                s.foreign,
                s.heard_end,
                s.heard_reset,
                s.core.outgoing().announced(),
                s.core.incoming().reached()
            )
        };
        Err(format!("hung: {}; {}; lost {}", state(&self.sides[0]), state(&self.sides[1]), self.lost))
    }

    fn is_quiet(&self, e: usize) -> bool {
        let (here, there) = (&self.sides[e], &self.sides[1 - e]);
        let waits = here.waits_for_room && !there.over && !self.lost;
        // A death over bytes that were asked back ends the stream there.
        let whole = here.got == there.sent || there.robbed && here.heard_end;
        let all = whole && (!there.over || here.heard_end) && !waits && here.asks.is_none();
        here.over || here.heard_reset || all
    }
}
