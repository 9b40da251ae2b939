//! Control messages: from bytes of a process to calls, and answers back.
//!
//! Invariant: one reply to each request that can be decoded; a process that sends what cannot be
//! decoded is let go.

use super::Station;
use super::closers::Given;
use super::connection::{DescriptorAccount, Process, Stopped};
use super::refusal as refusals;
use super::refusal::{invalid, refusal};
use super::services::ServiceMessage;
use super::shares::{Holdings, Table};
use crate::limits::{
    CONTROL_BATCH, CONTROL_USER_TURN, CONTROL_WORK_ATTACH, CONTROL_WORK_BYTES, CONTROL_WORK_INFO, CONTROL_WORK_MAP,
    CONTROL_WORK_PAGES, DESCRIPTORS_PER_REGION, OUTBOX_USER_BYTES_MAX, PINS_PER_CALL_MAX,
};
use crate::log::LogLevel;
use rustix::event::epoll;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use vmmc_host::channel::{ChannelError, Fate, PeerCredentials, Received};
use vmmc_host::control::{Answer, Call, Refusal, RefusalCode, Reply, Request, decode, encode};
use vmmc_host::limits::CONTROL_BYTES_MAX;
use vmmc_nic::{Cookie, ExportId, ProcessId, RedirectAt, RegionId, Time};

impl Station {
    /// Takes what has come on a connection.
    pub(super) fn serve_connection(&mut self, index: usize, now: Time) {
        for _ in 0..CONTROL_BATCH {
            if self.is_stuck(index) {
                return self.close_later(index);
            }
            // What is to be closed says nothing more. A user that has had its turn is served in the
            // next one, after all others: its sockets stay readable.
            if !self.may_read(index) {
                return;
            }
            let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { return };
            match connection.control.channel.try_receive_all() {
                Ok(Received { bytes, fds, fate }) => {
                    connection.last_received = now;
                    let who = connection.who;
                    let uid = who.uid;
                    self.counters.control_calls += 1;
                    let Ok(request) = decode::<Request>(&bytes) else {
                        self.log_user(LogLevel::Warn, uid, || {
                            format!("{} sent a message that is none; it is let go", process(&who))
                        });
                        drop(self.sort(uid, fds));
                        return self.close_later(index);
                    };
                    *self.turn.entry(uid).or_default() += work(&request.call) + bytes.len() / CONTROL_WORK_BYTES;
                    let given = self.sort(uid, fds);
                    let registers = matches!(request.call, Call::RegisterRegion { .. });
                    if fate != Fate::Whole {
                        self.reply(index, request.serial, Err(refusals::descriptors_lost()), Vec::new());
                        if fate == Fate::Left {
                            // It is still in the socket, and is closed with it.
                            return self.close_later(index);
                        }
                    } else if !given.strange.is_empty() || !given.much.is_empty() && !registers {
                        self.log_user(LogLevel::Warn, uid, || {
                            format!("{} passed a descriptor that no call takes", process(&who))
                        });
                        self.reply(index, request.serial, Err(refusals::strange_descriptor()), Vec::new());
                    } else if !given.much.is_empty() {
                        self.serve_registration(index, now, request, given);
                    } else {
                        self.serve_request(index, now, request, given.fds);
                    }
                }
                Err(ChannelError::WouldBlock) => return,
                Err(_) => return self.end(index),
            }
        }
    }

    /// Whether too much of what the user of a connection has sent cannot be closed.
    fn is_stuck(&self, index: usize) -> bool {
        let uid = self.connections.get(index).and_then(|c| c.as_ref()).map(|c| c.who.uid);
        uid.is_some_and(|uid| self.closers.is_stuck(uid))
    }

    /// Whether the next request of a connection may be read: its user has a turn left, and no reply
    /// of it waits to be collected.
    fn may_read(&mut self, index: usize) -> bool {
        let connection = self.connections.get_mut(index).and_then(Option::as_mut);
        let Some(connection) = connection.filter(|connection| !connection.is_closing) else { return false };
        if self.turn.get(&connection.who.uid).is_some_and(|used| *used >= CONTROL_USER_TURN) {
            return false;
        }
        if !connection.held_back {
            return true;
        }
        let connection = &mut **connection;
        let mut account =
            DescriptorAccount { shares: &mut self.shares, uid: connection.who.uid, held: &mut connection.held };
        match connection.control.retry(&mut account) {
            Err(_) => self.close_later(index),
            Ok(sent) => {
                if sent > 0 {
                    self.services.sent(connection.service, index);
                }
                self.watch_held_back(index);
                return self.let_read(index);
            }
        }
        false
    }

    /// Reads requests of a connection again, if all its replies are out; says whether they are.
    pub(super) fn let_read(&mut self, index: usize) -> bool {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { return false };
        if connection.control.is_waiting() {
            return false;
        }
        if std::mem::take(&mut connection.held_back) {
            let connection = self.connections[index].as_ref().expect("just seen");
            if self.watch_for(&connection.control.channel, index, epoll::EventFlags::IN).is_err() {
                self.close_later(index);
            }
        }
        true
    }

    /// A reply waits: what else the connection asks can wait in its socket, where the kernel bounds
    /// it.
    fn hold_back(&mut self, index: usize) {
        self.congested = true;
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { return };
        if !std::mem::replace(&mut connection.held_back, true) {
            self.watch_held_back(index);
        }
        if !self.user_may_wait(index) {
            self.close_later(index);
        }
    }

    /// Watches for room in the socket of a connection whose replies wait. For what waits for other
    /// reasons there is room: that is checked by the clock.
    fn watch_held_back(&mut self, index: usize) {
        let Some(connection) = self.connections[index].as_ref().filter(|c| c.control.is_waiting()) else { return };
        let stopped = connection.control.stopped.is_some();
        let flags = if stopped { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
        if self.watch_for(&connection.control.channel, index, flags).is_err() {
            self.close_later(index);
        }
    }

    /// Whether what waits for all connections of this one's user is within its bound.
    pub(super) fn user_may_wait(&self, index: usize) -> bool {
        let Some(uid) = self.connections.get(index).and_then(|c| c.as_ref()).map(|c| c.who.uid) else { return true };
        let (mut bytes, mut fds) = (0, 0);
        for connection in self.connections.iter().flatten().filter(|c| c.who.uid == uid) {
            for outbox in [Some(&connection.control), connection.process.as_ref().and_then(|p| p.events.as_ref())]
                .into_iter()
                .flatten()
            {
                bytes += outbox.waiting_bytes();
                fds += outbox.waiting_fds() as u64;
            }
        }
        // Descriptors that wait are within what its share leaves it.
        bytes <= OUTBOX_USER_BYTES_MAX && (fds == 0 || self.shares.check(uid, Table::Descriptors, fds).is_ok())
    }

    /// Of much memory. What is registered is a further copy: if it is refused, the one that came
    /// may be the last there is.
    fn serve_registration(&mut self, index: usize, now: Time, request: Request, mut given: Given) {
        let memory = given.much.pop().filter(|_| given.much.is_empty() && given.fds.is_empty());
        let Some(memory) = memory else {
            self.serve_request(index, now, request, Vec::new());
            return;
        };
        let Ok(copy) = memory.try_clone() else {
            return self.reply(index, request.serial, Err(refusals::descriptors_lost()), Vec::new());
        };
        let uid = self.connections[index].as_ref().map_or(u32::MAX, |connection| connection.who.uid);
        if self.serve_request(index, now, request, vec![copy]) {
            let mut held = memory.close_here();
            self.shares.give_all(uid, &mut held);
        }
    }

    /// Says whether it was not refused.
    fn serve_request(&mut self, index: usize, now: Time, request: Request, fds: Vec<OwnedFd>) -> bool {
        let serial = request.serial;
        // Whom the node does not serve gets no call of any kind through.
        if let Some(refusal) = self.connections[index].as_mut().and_then(|c| c.refused.clone()) {
            self.reply(index, serial, Err(refusal), Vec::new());
            self.close_later(index);
            return false;
        }
        let result = self.serve_call(index, now, serial, request.call, fds);
        let is_refused = result.is_err();
        match result {
            Ok(Some((answer, given))) => self.reply(index, serial, Ok(answer), given),
            Ok(None) => {}
            Err(refusal) => self.reply(index, serial, Err(refusal), Vec::new()),
        }
        !is_refused
    }

    /// One call; none: its answer comes later, as a reply of its own.
    fn serve_call(
        &mut self,
        index: usize,
        now: Time,
        serial: u64,
        call: Call,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Option<(Answer, Vec<OwnedFd>)>, Refusal> {
        let answer = match call {
            Call::Attach { version } => return self.attach(index, version).map(Some),
            Call::RegisterRegion { len } => {
                let fd = (fds.len() == 1).then(|| fds.remove(0));
                self.register_region(index, len, fd)
            }
            Call::ReleaseRegion { region } => self.release_region(index, region),
            Call::Pin { unpin, pin } => match self.pin(now, index, serial, &unpin, pin)? {
                Some(answer) => Ok(answer),
                None => return Ok(None),
            },
            Call::Export { .. } => self.export(now, index, call),
            Call::Unexport { export, moving } => match self.unexport(now, index, serial, export, moving)? {
                Some(answer) => Ok(answer),
                None => return Ok(None),
            },
            Call::Import { .. } => return self.import(now, index, serial, call).map(|()| None),
            Call::Bind { import } => self.bind(index, import),
            Call::Unimport { import } => self.unimport(now, index, import),
            Call::RedirectReport { export, offset, cookie } => {
                self.redirect_report(index, redirect_at(export, offset, cookie))
            }
            Call::CancelRedirect { export, offset, cookie } => {
                self.cancel_redirect(now, index, redirect_at(export, offset, cookie))
            }
            Call::Consume { export, offset, len } => self.consume(index, export, offset, len),
            Call::Importers { export } => self.importers(index, export),
            Call::Ping { .. } => match self.ping(now, index, serial, call)? {
                Some(answer) => Ok(answer),
                None => return Ok(None),
            },
            Call::SessionNode { session } => {
                Ok(Answer::SessionNode { node: self.engine.session_name(session).map(ToString::to_string) })
            }
            Call::AddPeer { addresses } => self.call_add_peer(now, index, &addresses),
            Call::Info { details } => Ok(self.info(now, index, details)),
            Call::Stop => self.call_stop(index),
            Call::Service { service, version, message } => {
                return self
                    .serve_service(now, index, ServiceMessage { service, version, message }, fds)
                    .map(|()| None);
            }
            Call::Ask { service, version, message } => {
                self.ask_service(now, index, &ServiceMessage { service, version, message })
            }
        };
        answer.map(|answer| Some((answer, Vec::new())))
    }

    /// Counts work for the user of a connection beyond what its message announced.
    pub(super) fn charge(&mut self, index: usize, work: usize) {
        if let Some(connection) = &self.connections[index] {
            *self.turn.entry(connection.who.uid).or_default() += work;
        }
    }

    fn register_region(&mut self, index: usize, len: u64, fd: Option<OwnedFd>) -> Result<Answer, Refusal> {
        let id = self.attached_process(index)?.id;
        let fd = fd.ok_or_else(|| refusal(RefusalCode::BadRegion, "a region comes with exactly one descriptor"))?;
        self.take_share(index, Table::Regions, 1)?;
        let taken = self.take_share(index, Table::Descriptors, DESCRIPTORS_PER_REGION);
        if let Err(full) = taken {
            self.give_share(index, Table::Regions, 1);
            return Err(full);
        }
        let region = self.memory.register(id, fd, len).map_err(|e| refusals::memory(&e));
        if region.is_err() {
            self.give_region_share(index);
        }
        region.map(|region| Answer::Region { region: region.0 })
    }

    fn release_region(&mut self, index: usize, region: u32) -> Result<Answer, Refusal> {
        let id = self.attached_process(index)?.id;
        let released = self.memory.release(id, RegionId(region)).map_err(|e| refusals::memory(&e))?;
        if !released.is_much() {
            drop(released);
            self.give_region_share(index);
        } else if let Some(connection) = self.connections[index].as_mut() {
            // It counts until the kernel has its pages back.
            let held = connection.held.split(&Holdings::of_region(), 1);
            self.closers.give_up_whole(connection.who.uid, released, held);
        }
        Ok(Answer::Done)
    }

    fn give_region_share(&mut self, index: usize) {
        self.give_share(index, Table::Regions, 1);
        self.give_share(index, Table::Descriptors, DESCRIPTORS_PER_REGION);
    }

    fn call_add_peer(&mut self, now: Time, index: usize, addresses: &[String]) -> Result<Answer, Refusal> {
        self.only_owner(index, "add peers to")?;
        let parse = |text: &String| {
            let bad = || invalid(format!("{text:?} is not an address and a port, such as 192.168.0.7:4000"));
            text.parse::<SocketAddr>().map_err(|_| bad())
        };
        let addresses: Vec<_> = addresses.iter().map(parse).collect::<Result<_, _>>()?;
        let most = vmmc_nic::limits::PATHS_MAX;
        if addresses.is_empty() || addresses.len() > most {
            return Err(invalid(format!("a peer has 1 to {most} addresses, not {}", addresses.len())));
        }
        let added = self.engine.add_peer(now, &addresses);
        added.map(|()| Answer::Done).map_err(|e| refusal(RefusalCode::TableFull, e.to_string()))
    }

    fn call_stop(&mut self, index: usize) -> Result<Answer, Refusal> {
        self.only_owner(index, "stop")?;
        self.stop = true;
        Ok(Answer::Done)
    }

    pub(super) fn only_owner(&self, index: usize, done: &str) -> Result<(), Refusal> {
        let uid = self.connections[index].as_ref().map_or(u32::MAX, |c| c.who.uid);
        if uid == self.uid || uid == 0 {
            return Ok(());
        }
        let message = format!("user {uid} may not {done} a node of user {}; ask its user", self.uid);
        Err(refusal(RefusalCode::NotPermitted, message))
    }

    /// Whether the client on this connection may see details of other users' exports.
    pub(super) fn is_owner(&self, index: usize) -> bool {
        self.only_owner(index, "").is_ok()
    }

    /// Id of the process behind a connection, if it is attached.
    pub(super) fn process_id_at(&self, index: usize) -> Option<ProcessId> {
        self.connections.get(index)?.as_ref()?.process.as_ref().map(|process| process.id)
    }

    /// The process behind a connection.
    pub(super) fn attached_process(&mut self, index: usize) -> Result<&mut Process, Refusal> {
        let process = self.connections.get_mut(index).and_then(|c| c.as_mut()?.process.as_mut());
        process.ok_or_else(|| invalid("this connection is not attached; the first call must be Attach"))
    }

    /// What a new process is to be given cannot be sent: it is notified, instead of waiting for
    /// nobody knows how long.
    fn refuse_attached(&mut self, index: usize, serial: u64, why: Stopped) {
        if let Some(connection) = self.connections[index].as_mut() {
            connection.control.forget_waiting();
        }
        self.reply(index, serial, Err(refusal(RefusalCode::TableFull, why.to_string())), Vec::new());
        self.close_later(index);
    }

    /// Answers a request; lets the process go if it collects nothing.
    pub(super) fn reply(&mut self, index: usize, serial: u64, result: Result<Answer, Refusal>, fds: Vec<OwnedFd>) {
        self.counters.refusals += u64::from(result.is_err());
        if let (Err(refusal), Some(who)) = (&result, self.connections[index].as_ref().map(|c| c.who)) {
            // A client that is not permitted, or is of another release, deserves attention; all
            // else is between a program and its author.
            let serious = matches!(refusal.code, RefusalCode::NotPermitted | RefusalCode::Version);
            let level = if serious { LogLevel::Warn } else { LogLevel::Debug };
            self.log_user(level, who.uid, || format!("{} was refused: {}", process(&who), refusal.message));
        }
        self.poll_unread_if_short(index, &fds);
        let Some(connection) = self.connections[index].as_deref_mut() else { return };
        let attaches = matches!(result, Ok(Answer::Attached { .. }));
        let mut bytes = encode(&Reply { serial, result });
        if bytes.len() > CONTROL_BYTES_MAX {
            let message = format!("an answer of {} bytes does not fit; ask without details", bytes.len());
            bytes = encode(&Reply { serial, result: Err(refusal(RefusalCode::TableFull, message)) });
        }
        let mut account =
            DescriptorAccount { shares: &mut self.shares, uid: connection.who.uid, held: &mut connection.held };
        match connection.control.send(bytes, fds, &mut account) {
            Ok(_) if connection.control.is_waiting() => {
                let stopped = connection.control.stopped;
                self.log_stopped(index, stopped);
                match stopped.filter(|_| attaches) {
                    Some(why) => self.refuse_attached(index, serial, why),
                    None => self.hold_back(index),
                }
            }
            Ok(_) => {}
            Err(_) => self.close_later(index),
        }
    }
}

/// What a call costs the node at most, in cheap ones.
fn work(call: &Call) -> usize {
    match call {
        Call::Info { .. } | Call::Ask { .. } => CONTROL_WORK_INFO,
        Call::Attach { .. } => CONTROL_WORK_ATTACH,
        Call::RegisterRegion { .. } | Call::ReleaseRegion { .. } => CONTROL_WORK_MAP,
        Call::Pin { unpin, pin } => {
            let pages = unpin.iter().chain(pin.iter().map(|run| &run.pages)).map(|run| u64::from(run.count));
            1 + (pages.sum::<u64>().min(PINS_PER_CALL_MAX) / CONTROL_WORK_PAGES) as usize
        }
        _ => 1,
    }
}

fn redirect_at(export: u64, offset: u64, cookie: u64) -> RedirectAt {
    RedirectAt { export: ExportId::from_u64(export), offset, cookie: Cookie(cookie) }
}

/// A process as the log calls it; one of another pid namespace has no number here.
fn process(who: &PeerCredentials) -> String {
    match who.pid {
        0 => format!("a process of user {}", who.uid),
        pid => format!("process {pid} of user {}", who.uid),
    }
}
