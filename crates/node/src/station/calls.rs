//! Set-up calls whose answer comes later: imports and pings.
//!
//! Invariant: a cookie is never used twice, so an answer that comes after its process has gone
//! finds nothing.

use super::Station;
use super::shares::Table;
use crate::limits::CALLS_WAITING_MAX;
use std::net::SocketAddr;
use vmmc_host::control::{Refusal, RefusalCode};
use vmmc_nic::{Cookie, NodeSpec};

/// Who waits for what.
pub(super) struct WaitingCall {
    /// Index of the connection.
    pub(super) index: usize,
    /// Its number: the index may belong to another one by now.
    pub(super) number: u64,
    pub(super) serial: u64,
    pub(super) kind: CallKind,
    /// The address that it names, if it does.
    pub(super) address: Option<SocketAddr>,
}

/// What was asked, in words for the answer.
pub(super) enum CallKind {
    Import { what: String, node: String },
    Ping { node: String },
}

/// All waiting calls, by the low half of their cookie; the high half counts.
#[derive(Default)]
pub(super) struct Calls {
    slots: Vec<Option<(u64, WaitingCall)>>,
    free: Vec<usize>,
    count: u64,
}

impl Calls {
    fn insert(&mut self, call: WaitingCall) -> Cookie {
        self.count += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let cookie = self.count << 32 | slot as u64;
        self.slots[slot] = Some((cookie, call));
        Cookie(cookie)
    }

    fn remove(&mut self, cookie: Cookie) -> Option<WaitingCall> {
        let slot = cookie.0 as u32 as usize;
        let (_, call) = self.slots.get_mut(slot)?.take_if(|(c, _)| *c == cookie.0)?;
        self.free.push(slot);
        Some(call)
    }

    /// Drops the calls of a connection; gives the addresses that they named.
    pub(super) fn forget(&mut self, number: u64) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            if let Some((_, call)) = entry.take_if(|(_, call)| call.number == number) {
                self.free.push(slot);
                addresses.extend(call.address);
            }
        }
        addresses
    }
}

impl Station {
    /// Remembers a call of a connection until its answer comes.
    pub(super) fn wait_call(
        &mut self,
        index: usize,
        serial: u64,
        kind: CallKind,
        node: &Option<NodeSpec>,
    ) -> Result<Cookie, Refusal> {
        let connection = self.connections[index].as_ref().expect("the caller serves this connection");
        if connection.calls_waiting >= CALLS_WAITING_MAX {
            let message = format!("{CALLS_WAITING_MAX} calls of this process wait already; let some finish");
            return Err(Refusal { code: RefusalCode::TableFull, message });
        }
        let (number, uid) = (connection.number, connection.who.uid);
        let address = if let Some(NodeSpec::Addr(address)) = node { Some(*address) } else { None };
        self.take_share(index, Table::Calls, 1)?;
        if let Some(address) = address {
            if let Err(full) = self.call_address(uid, address) {
                self.give_share(index, Table::Calls, 1);
                return Err(full);
            }
        }
        let connection = self.connections[index].as_mut().expect("seen above");
        // Of the connection, for it may ask before it attaches.
        connection.calls_waiting += 1;
        Ok(self.calls.insert(WaitingCall { index, number, serial, kind, address }))
    }

    /// The call that a cookie stands for, if who made it is still there.
    pub(super) fn take_call(&mut self, cookie: Cookie) -> Option<WaitingCall> {
        let call = self.calls.remove(cookie)?;
        let connection = self.connections[call.index].as_mut().filter(|c| c.number == call.number)?;
        connection.calls_waiting -= 1;
        let uid = connection.who.uid;
        self.give_share(call.index, Table::Calls, 1);
        call.address.into_iter().for_each(|address| self.uncall(uid, address));
        Some(call)
    }

    /// Counts a node that a user asks by address: each may become a peer, of which there are few.
    fn call_address(&mut self, uid: u32, address: SocketAddr) -> Result<(), Refusal> {
        if !self.called.contains_key(&(uid, address)) {
            let asked = self.called.keys().filter(|(by, _)| *by == uid).count() as u64;
            self.shares
                .check_count(uid, Table::Peers, asked, self.called.len() as u64)
                .map_err(|full| full.refusal())?;
        }
        *self.called.entry((uid, address)).or_default() += 1;
        Ok(())
    }

    /// Nodes that are asked by address.
    #[cfg(test)]
    pub(crate) fn called_by_address(&self) -> usize {
        self.called.len()
    }

    /// A call to an address has ended.
    pub(super) fn uncall(&mut self, uid: u32, address: SocketAddr) {
        if let Some(calls) = self.called.get_mut(&(uid, address)) {
            *calls -= 1;
            if *calls == 0 {
                self.called.remove(&(uid, address));
            }
        }
    }
}
