//! Set-up calls whose answer comes later: imports and pings.
//!
//! Invariant: a cookie is never used twice, so an answer that comes after its process has gone finds nothing.

use super::Station;
use crate::limits::CALLS_WAITING_MAX;
use vmmc_host::control::{Refusal, RefusalCode};
use vmmc_nic::Cookie;

/// Who waits for what.
pub(super) struct WaitingCall {
    /// Index of the connection.
    pub(super) index: usize,
    /// Its number: the index may belong to another one by now.
    pub(super) number: u64,
    pub(super) serial: u64,
    pub(super) kind: CallKind,
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

    /// Drops the calls of a connection.
    pub(super) fn forget(&mut self, number: u64) {
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            if entry.take_if(|(_, call)| call.number == number).is_some() {
                self.free.push(slot);
            }
        }
    }
}

impl Station {
    /// Remembers a call of a connection until its answer comes.
    pub(super) fn wait_call(&mut self, index: usize, serial: u64, kind: CallKind) -> Result<Cookie, Refusal> {
        let connection = self.connections[index].as_mut().expect("the caller serves this connection");
        if let Some(process) = &mut connection.process {
            if process.calls_waiting >= CALLS_WAITING_MAX {
                let message = format!("{CALLS_WAITING_MAX} calls of this process wait already; let some finish");
                return Err(Refusal { code: RefusalCode::TableFull, message });
            }
            process.calls_waiting += 1;
        }
        Ok(self.calls.insert(WaitingCall { index, number: connection.number, serial, kind }))
    }

    /// The call that a cookie stands for, if who made it is still there.
    pub(super) fn take_call(&mut self, cookie: Cookie) -> Option<WaitingCall> {
        let call = self.calls.remove(cookie)?;
        let connection = self.connections[call.index].as_mut().filter(|c| c.number == call.number)?;
        if let Some(process) = &mut connection.process {
            process.calls_waiting -= 1;
        }
        Some(call)
    }
}
