//! A process comes and goes.
//!
//! Invariant: once a process has gone, no byte arrives in its memory, its names are free, its
//! importers know, and the node holds nothing of it. Source: [NT §3.1], for processes that end
//! themselves and for those that are killed in the middle of anything.

use super::closers::{Foreign, Given, Leftover};
use super::connection::{Parts, Path, Process};
use super::gates::Gates;
use super::memory::Left;
use super::refusal::{refusal, shortage};
use super::shares::{Holdings, Table};
use super::{Readable, Station};
use crate::limits::{DESCRIPTORS_PER_PROCESS, FORMER_RINGS_MAX};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use vmmc_host::abi::GateState;
use vmmc_host::control::{Answer, CONTROL_VERSION, NodeEvent, Refusal, RefusalCode};
use vmmc_host::process::ProcessWatch;
use vmmc_host::region::Unmapped;
use vmmc_host::wait::{WakeReceiver, wake_pair};
use vmmc_host::{AttachArea, Channel, NotifyBell};
use vmmc_nic::{ImportId, ProcessId, Time};
use vmmc_service::Client;

/// What a process that has gone leaves behind. Nothing in the node reaches it any more.
struct Remains {
    memory: Option<Left>,
    process: Option<Process>,
}

impl Leftover for Remains {
    fn give_up(&mut self) -> Option<Holdings> {
        if let Some(piece) = self.memory.as_mut().and_then(Leftover::give_up) {
            return Some(piece);
        }
        // Their notifiers write for nobody now.
        let next = |process: &mut Process| {
            let of_link = process.links.pop().map(|link| link.ring);
            of_link.or_else(|| process.former_rings.pop_front().map(Some))
        };
        if let Some(ring) = self.process.as_mut().and_then(next) {
            ring.iter().for_each(Unmapped::empty);
            return Some(Holdings::default());
        }
        // Its client may keep them for as long as it likes; what it had is given back, so they are
        // to hold nothing.
        self.process.take().map(|process| {
            process.empty();
            Holdings::of_process()
        })
    }
}

/// Rings that nobody reads any more.
struct Emptied(VecDeque<Unmapped>);

impl Leftover for Emptied {
    fn give_up(&mut self) -> Option<Holdings> {
        self.0.pop_front().map(|ring| {
            ring.empty();
            Holdings::default()
        })
    }
}

impl Station {
    /// First call on a connection.
    pub(super) fn attach(&mut self, index: usize, version: u32) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        if version != CONTROL_VERSION {
            let message = format!(
                "the library speaks version {version} and the node {CONTROL_VERSION}; use the same release of both"
            );
            return Err(refusal(RefusalCode::Version, message));
        }
        let connection = self.connections[index].as_ref().expect("the caller serves this connection");
        if !connection.is_silent() {
            return Err(refusal(RefusalCode::Invalid, "this connection is attached already; open another one"));
        }
        let (uid, pid) = (connection.who.uid, connection.who.pid);
        self.shares.check(uid, Table::Processes, 1).map_err(|full| full.refusal())?;
        self.shares
            .check(uid, Table::Descriptors, u64::from(DESCRIPTORS_PER_PROCESS))
            .map_err(|full| full.refusal())?;
        let (parts, given) = self.parts(uid, pid).map_err(|why| shortage("the areas of a new process", why))?;
        let id = self.engine.attach(uid).map_err(|e| super::refusal::attach(&e))?;
        let process = Process::new(id, parts);
        if let Err(why) = self.watch_process(&process, index) {
            self.unwatch_process(&process);
            process.forget_area();
            self.engine.detach(self.started, id);
            return Err(shortage("its watch on the new process", why));
        }
        if self.bells_raised && process.bell.is_some() {
            process.notify_bell.word().fetch_add(1, Ordering::SeqCst);
        }
        self.take_share(index, Table::Processes, 1).expect("checked above");
        self.take_share(index, Table::Descriptors, DESCRIPTORS_PER_PROCESS).expect("checked above");
        self.memory.add_process(id, uid);
        self.pins.attach(id, uid);
        if self.by_slot.len() <= id.slot() {
            self.by_slot.resize(id.slot() + 1, None);
        }
        self.by_slot[id.slot()] = Some(index);
        self.connections[index].as_mut().expect("seen above").process = Some(process);
        self.attached.push(index);
        self.unattached -= 1;
        let listen = self.config.listen.iter().map(ToString::to_string).collect();
        let node = self.config.name.as_str().to_string();
        Ok((Answer::Attached { version: CONTROL_VERSION, process: id.0, node, listen }, given))
    }

    /// What a new process needs, ours and its own.
    fn parts(&self, uid: u32, pid: u32) -> Result<(Parts, Vec<OwnedFd>), Box<dyn std::error::Error>> {
        let area = AttachArea::create()?;
        let gates = Gates::new()?;
        let (notify_bell, own_bell, bell_readers) = NotifyBell::create()?;
        let (receiver, wake) = wake_pair()?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (events, theirs) = Channel::pair()?;
        // Nobody reads what a client would say there.
        events.stop_receiving();
        let events = self.closers.socket(uid, events);
        let own = pid == std::process::id();
        let watch = if own { None } else { ProcessWatch::open(pid) };
        let bell = (own && self.config.embedded).then(|| receiver.as_fd().try_clone_to_owned()).transpose()?;
        let given = vec![area.share()?, own_bell, receiver_fd(&receiver)?, doorbell.try_clone()?, theirs.into_fd()];
        let program = program_of(pid);
        let mark = self.waits.mark();
        Ok((
            Parts { uid, mark, program, area, gates, wake, doorbell, events, watch, notify_bell, bell_readers, bell },
            given,
        ))
    }

    fn watch_process(&self, process: &Process, index: usize) -> rustix::io::Result<()> {
        self.watch(&process.doorbell, index, Readable::Doorbell)?;
        if let Some(watch) = &process.watch {
            self.watch(watch, index, Readable::Ended)?;
        }
        if let Some(bell) = &process.bell {
            self.watch(bell, index, Readable::Bell)?;
        }
        Ok(())
    }

    fn unwatch_process(&self, process: &Process) {
        self.unwatch(&process.doorbell);
        process.watch.iter().for_each(|w| self.unwatch(w));
        process.bell.iter().for_each(|b| self.unwatch(b));
    }

    /// Ends a connection and everything that the process behind it had.
    pub(super) fn close(&mut self, index: usize, now: Time) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else { return };
        let uid = connection.who.uid;
        let socket = connection.held.split_socket();
        // Its memory counts until the kernel has it back: each piece gives back its own.
        let regions = connection.process.as_ref().map_or(0, |process| self.memory.regions(process.id));
        connection.held.split(&Holdings::of_region(), regions);
        if connection.process.is_some() {
            connection.held.split(&Holdings::of_process(), 1);
        }
        self.unwatch(&*connection.control.channel);
        let client = connection.service.map(|at| (at, Client { index, pid: connection.who.pid, uid }));
        if let Some((at, client)) = client {
            self.drain_last_messages(now, at, client, &connection.control.channel);
        }
        self.lay_aside(now, uid, connection.control, Some(socket), &mut connection.held);
        if let Some(events) = connection.process.as_mut().and_then(|process| process.events.take()) {
            self.lay_aside(now, uid, events, None, &mut connection.held);
        }
        self.shares.give_all(uid, &mut connection.held);
        if connection.calls_waiting > 0 {
            for call in self.calls.forget(connection.number) {
                self.uncall(uid, call);
            }
        }
        if let Some((at, client)) = client {
            return self.client_is_gone(now, at, client);
        }
        let Some(mut process) = connection.process else {
            self.unattached -= 1;
            return;
        };
        self.attached.retain(|&i| i != index);
        self.by_slot[process.id.slot()] = None;
        self.unwatch_process(&process);
        self.counters.mapped_ended.add(process.touch(|area| area.moved(|_, _| ())).unwrap_or_default());
        self.engine.detach(now, process.id);
        self.revocations.forget(connection.number);
        for link in &process.links {
            self.give_link_share(link.importer);
        }
        self.drop_exports(&mut process);
        self.drop_imports(&process);
        let (gates, users) = process.gates.shared();
        self.count_gates(gates, users);
        process.forget_area();
        let id = process.id;
        let memory = self.memory.drop_process(id);
        self.closers.give_up(uid, Remains { memory, process: Some(process) });
        self.pins.detach(id);
        self.announce_gone(id, uid);
    }

    /// Ends a connection for its client; the socket is closed elsewhere, with all that it holds
    /// unread.
    pub(super) fn hang_up(&mut self, channel: Foreign<Channel>) {
        // From here on nothing more comes; what was sent to the client stays readable there.
        channel.shut_down();
    }

    /// Sorts what came with a message of a user.
    pub(super) fn sort(&mut self, uid: u32, fds: Vec<OwnedFd>) -> Given {
        let mut given = self.closers.sort(uid, fds);
        // They are there already, within the share or not, until they are closed.
        let unclosed = given.strange.iter_mut().chain(&mut given.much);
        unclosed.for_each(|fd| self.shares.count(uid, &mut fd.held, Table::Descriptors, 1));
        given
    }

    /// Gives back the shares of what has been closed.
    pub(super) fn count_closed(&mut self) {
        for (uid, mut held) in self.closers.take_closed() {
            self.shares.give_all(uid, &mut held);
        }
    }

    /// Its exports end; importers on this node see it at the gate.
    fn drop_exports(&mut self, process: &mut Process) {
        for export in std::mem::take(&mut process.exports) {
            if let Some(record) = self.exports[export.slot as usize].take_if(|r| r.id == export) {
                process.gates.set(record.gate, GateState::OwnerDied);
            }
        }
    }

    /// Its imports end. A thread of it that is still inside a mapped transfer can go on only if the
    /// process lives; then the exporter must move its pages one day.
    fn drop_imports(&mut self, process: &Process) {
        let ended = process.watch.as_ref().is_some_and(ProcessWatch::has_ended);
        for import in process.imports.iter().flatten().filter(|import| import.path == Path::Mapped) {
            if let Some(record) = self.export_record(import.export) {
                record.importers.remove(&process.id);
                record.stuck |= (import.bound || process.is_barred) && !ended;
            }
        }
        let mut inside = Vec::new();
        process.touch(|area| {
            area.any_lane(|lane| {
                inside.push(ImportId::from_u64(lane));
                false
            })
        });
        for id in inside.into_iter().filter(|_| !ended) {
            let import = process.imports.get(id.slot as usize).copied().flatten().filter(|import| import.id == id);
            if let Some(record) = import.and_then(|import| self.export_record(import.export)) {
                record.stuck = true;
            }
        }
    }

    /// A process that could be notified by it learns that no more comes. It may still read what
    /// came: the last rings keep their memory until it ends, which counts as a descriptor of its
    /// own each, if it is of another user than the node's own.
    fn announce_gone(&mut self, gone: ProcessId, uid: u32) {
        let mut unread = VecDeque::new();
        for index in self.attached.clone() {
            let Some(connection) = self.connections[index].as_deref_mut() else { continue };
            let Some(process) = connection.process.as_mut() else { continue };
            let Some(at) = process.links.iter().position(|l| l.importer == gone) else { continue };
            let Some(ring) = process.links.swap_remove(at).ring else { continue };
            if process.withdraw_pair(gone) {
                unread.push_back(ring);
                continue;
            }
            if !self.shares.is_own(connection.who.uid) {
                process.former_rings.push_back(ring);
                if process.former_rings.len() > FORMER_RINGS_MAX {
                    unread.extend(process.former_rings.pop_front());
                } else {
                    self.shares.count(connection.who.uid, &mut connection.held, Table::Descriptors, 1);
                }
            }
            self.send_event(index, &NodeEvent::PairGone { process: gone.0 }, Vec::new());
        }
        // The more mappings a client has made of one, the longer that takes.
        if !unread.is_empty() {
            self.closers.give_up(uid, Emptied(unread));
        }
    }

    /// The node ends: every gate says so.
    pub(super) fn close_gates(&mut self) {
        for record in self.exports.iter().flatten() {
            let owner = self.connections[record.owner].as_ref().and_then(|c| c.process.as_ref());
            if let Some(process) = owner {
                process.gates.set(record.gate, GateState::NodeStopped);
            }
        }
    }
}

/// Name of a program, as the kernel knows it; empty if it cannot be seen.
fn program_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A program calls itself what it likes, and terminals obey control characters.
    name.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn receiver_fd(receiver: &WakeReceiver) -> std::io::Result<OwnedFd> {
    receiver.as_fd().try_clone_to_owned()
}
