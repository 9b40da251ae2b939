//! The service as the station drives it: messages in and out on control sockets.
//!
//! Invariant: a connection is a sockets client or a process of the engine, never both; a client
//! that breaks the rules loses its connection, and nobody else notices.

use super::Misbehaved;
use crate::limits::{DESCRIPTORS_PER_SOCKETS_CLIENT, SOCKET_LAST_WORDS_MAX};
use crate::station::refusal::{invalid, refusal};
use crate::station::shares::Table;
use crate::station::{Readable, Station};
use std::os::fd::OwnedFd;
use vmmc_host::Channel;
use vmmc_host::channel::{Fate, Received};
use vmmc_host::control::{Answer, CONTROL_VERSION, Call, Refusal, RefusalCode, Request, decode};
use vmmc_host::stream::messages::SocketCall;
use vmmc_nic::{PeerRef, Time};

impl Station {
    /// A call about sockets; answers come as news.
    pub(in crate::station) fn serve_sockets(
        &mut self,
        now: Time,
        index: usize,
        call: SocketCall,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        self.look_for_room();
        let done = match call {
            SocketCall::Attach { version } => self.attach_sockets(now, index, version, fds)?,
            _ if !self.is_sockets_client(index) => return Err(invalid("the first call about sockets is Attach")),
            SocketCall::Offer { connection, .. } if !self.may_offer(index) => {
                self.sockets.refuse_offer(index, connection);
                Ok(())
            }
            call => self.sockets.handle(now, index, call, fds),
        };
        for (uid, copy) in self.sockets.take_copies() {
            drop(self.sort(uid, vec![copy]));
        }
        if done == Err(Misbehaved) {
            self.let_die(index);
        }
        self.send_socket_news();
        Ok(())
    }

    fn attach_sockets(
        &mut self,
        now: Time,
        index: usize,
        version: u32,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Result<(), Misbehaved>, Refusal> {
        if version != CONTROL_VERSION {
            if let Some(connection) = &self.connections[index] {
                self.sockets.remember_stranger(connection.who.pid, version);
            }
            let message = format!(
                "the library speaks version {version} and the node {CONTROL_VERSION}; use the same release of both"
            );
            return Err(refusal(RefusalCode::Version, message));
        }
        let connection = self.connections[index].as_ref().expect("the caller serves this connection");
        if connection.process.is_some() || connection.sockets || fds.len() != 1 {
            return Ok(Err(Misbehaved));
        }
        let who = connection.who;
        if let Err(why) = self.sockets.prepare() {
            let message = why.to_string();
            self.note_of(now, who.uid, message.clone());
            return Err(refusal(RefusalCode::NotStarted, message));
        }
        self.take_share(index, Table::Descriptors, DESCRIPTORS_PER_SOCKETS_CLIENT)?;
        let bells = fds.pop().expect("one, as seen above");
        let attached = self.sockets.attach(index, who.pid, who.uid, bells);
        if attached.is_ok() {
            self.connections[index].as_mut().expect("as above").sockets = true;
            self.unattached -= 1;
        }
        Ok(attached)
    }

    /// What a client said before it went, and nobody has read: that it let an end go must be known
    /// before it is taken for a holder that died, and whoever it rang is to wake. What it wanted
    /// for itself it does not want any more.
    pub(in crate::station) fn hear_out(&mut self, now: Time, index: usize, uid: u32, channel: &Channel) {
        for _ in 0..SOCKET_LAST_WORDS_MAX {
            if self.closers.is_stuck(uid) {
                return;
            }
            let Ok(Received { bytes, fds, fate }) = channel.try_receive_all() else { return };
            let given = self.sort(uid, fds);
            let request = decode::<Request>(&bytes);
            let heard = match request {
                Ok(Request {
                    call:
                        Call::Sockets(
                            SocketCall::Hold { .. }
                            | SocketCall::Offer { .. }
                            | SocketCall::Adopt { .. }
                            | SocketCall::Bell { .. },
                        ),
                    ..
                }) => true,
                Ok(Request { call: Call::Sockets(call), .. }) => {
                    self.sockets.handle(now, index, call, given.fds).is_ok()
                }
                _ => false,
            };
            if !heard || fate == Fate::Left {
                return;
            }
        }
    }

    /// Whether the user of a client has its share of the open offers.
    fn may_offer(&self, index: usize) -> bool {
        let Some(uid) = self.connections[index].as_ref().map(|c| c.who.uid) else { return false };
        let (own, total) = self.sockets.open_offers(uid);
        self.shares.check_count(uid, Table::Sockets, own, total).is_ok()
    }

    fn is_sockets_client(&self, index: usize) -> bool {
        self.connections.get(index).and_then(Option::as_ref).is_some_and(|c| c.sockets)
    }

    /// A message of another node's driver. All that nodes tell each other so is about sockets.
    pub(in crate::station) fn hear_message(&mut self, now: Time, from: PeerRef, message: &[u8]) {
        self.look_for_room();
        if !self.sockets.hear(now, &mut self.engine, from, message) {
            let name = self.engine.peer_name(from).map(|name| name.to_string()).unwrap_or_default();
            self.note(
                now,
                format!("node {name} sent a message that this version does not know; use the same release on both"),
            );
        }
        self.send_socket_news();
    }

    /// Tells the service how many slabs there is room for.
    fn look_for_room(&mut self) {
        let room = self.shares.free(Table::Descriptors).min(self.shares.free(Table::Regions));
        self.sockets.set_room(room);
    }

    /// Sends what the service has to say.
    pub(in crate::station) fn send_socket_news(&mut self) {
        self.count_slabs();
        for table in [Table::Descriptors, Table::Regions] {
            self.shares.set_elsewhere(table, self.sockets.slabs());
        }
        for index in self.sockets.take_new_bells() {
            if let Some(bell) = self.sockets.node_bell(index) {
                // Without it the node hears of what the client sends when it looks for another
                // reason.
                let _ = self.watch(bell, index, Readable::Bell);
            }
        }
        for (index, news, fds) in self.sockets.take_outbox() {
            self.reply(index, 0, Ok(Answer::Sockets(news)), fds);
            self.sockets.count_news(index);
        }
    }

    /// Orphaned ends whose time has come.
    pub(in crate::station) fn look_after_sockets(&mut self, now: Time) {
        if self.sockets.next_orphan().is_some_and(|due| due <= now) {
            self.sockets.serve_orphans(now);
            self.send_socket_news();
        }
    }

    /// The list for `vmmc sockets`.
    pub(in crate::station) fn list_sockets(&self) -> Answer {
        let (sockets, total) = self.sockets.list(Some(&self.engine));
        Answer::SocketList { sockets, total }
    }
}
