//! The serving side: records come in, whose callers are known; replies go out.
//!
//! Invariants: a record is given out only if its caller has proved whose endpoint answers go to,
//! and if the user in its AUTH_SYS credential is that one. What callers send in pieces, and what
//! they have not taken of long replies, is bounded, for each and for all. Source: RFC 5531,
//! [SHRIMP §3].

use crate::error::OncError;
use crate::limits::{CALLERS_MAX, FRAMES, KEPT_BYTES_MAX, PIECE_BYTES, RECORD_BYTES_MAX};
use crate::wire::{CONFIRM, Came, HELLO, Key, LAST, MORE, PART, RECORD, VERSION, Welcome, number, piece, service_name};
use onc_rpc::{AuthStat, AuthSys, Body, Denied, Malformed, Message, RPC_VERSION, ReplyHeader, flavor};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use vmmc::{Access, Session};
use vmmc_rpc::{Call, PolledServer, Server};

/// What became of callers and their records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OncCounts {
    /// Records that were given out.
    pub calls: u64,
    /// Calls whose AUTH_SYS credential names another user than its caller's, or makes no sense.
    pub bad_credentials: u64,
    /// What made no sense: pieces, records that are no calls, callers that have not proved who they
    /// are.
    pub misbehaved: u64,
    /// Pieces and replies for which there was no room.
    pub no_room: u64,
}

/// A program that is served over VMMC, for an event loop.
#[derive(Debug)]
pub struct OncServer {
    server: PolledServer,
    callers: HashMap<u64, Caller>,
    /// Bytes of all their pieces and replies.
    kept: usize,
    counts: OncCounts,
}

#[derive(Debug)]
struct Caller {
    key: Key,
    /// It has shown that it has the key.
    proved: bool,
    /// The record whose pieces come.
    coming: Vec<u8>,
    /// The reply whose pieces go.
    going: Vec<u8>,
}

/// A call, to be replied to. Dropping it tells the caller that there is no reply.
#[derive(Debug)]
pub struct OncCall {
    call: Call,
    /// The record, header and arguments.
    pub record: Vec<u8>,
    /// User of the caller, for whom the nodes vouch.
    pub uid: u32,
}

/// Whether records come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Yes,
    No,
}

impl OncServer {
    /// Serves a program.
    ///
    /// # Errors
    /// [`OncError::Serve`].
    pub fn create(session: &Session, prog: u32, vers: u32, access: Access) -> Result<OncServer, OncError> {
        let server = Server::new(session, &service_name(prog, vers)).access(access).frames(FRAMES.0, FRAMES.1);
        let server = server.queue(CALLERS_MAX).polled()?;
        Ok(OncServer { server, callers: HashMap::new(), kept: 0, counts: OncCounts::default() })
    }

    /// Readable when [`poll`](Self::poll) may have something.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.server.event_fd()
    }

    /// What became of callers and their records.
    pub fn counts(&self) -> OncCounts {
        self.counts
    }

    /// The next call, if one is there.
    ///
    /// # Errors
    /// [`OncError::Serve`]: the node has gone.
    pub fn poll(&mut self) -> Result<Option<OncCall>, OncError> {
        while let Some(call) = self.server.poll()? {
            if let Some(call) = self.take(call) {
                return Ok(Some(call));
            }
        }
        for gone in self.server.gone_callers() {
            if let Some(caller) = self.callers.remove(&gone) {
                self.kept -= caller.coming.len() + caller.going.len();
            }
        }
        Ok(None)
    }

    /// Has the descriptor be readable: calls may be left.
    pub fn again(&mut self) {
        self.server.again();
    }

    /// Replies to a call, by a whole record.
    pub fn reply(&mut self, call: OncCall, reply: &[u8]) {
        let OncCall { call, .. } = call;
        if reply.len() <= PIECE_BYTES {
            return call.answer(&Came::Whole(reply).encode());
        }
        if !self.has_room(reply.len()) {
            return call.fail("the server keeps too many long replies that were not taken; call again later");
        }
        let Some(caller) = self.callers.get_mut(&call.caller()) else { return };
        self.kept = self.kept - caller.going.len() + reply.len();
        caller.going = reply.to_vec();
        call.answer(&Came::Begins(reply.len(), &reply[..PIECE_BYTES]).encode());
    }

    /// A record that is whole, if this makes one.
    fn take(&mut self, call: Call) -> Option<OncCall> {
        match (call.method(), self.known(&call)) {
            (HELLO, _) => self.greet(call),
            (CONFIRM, _) => self.confirm(call),
            (RECORD, Known::Yes) => {
                self.forget(&call);
                let record = call.arguments().to_vec();
                return self.admit(call, record);
            }
            (PART, Known::Yes) => self.part(call),
            (LAST, Known::Yes) => return self.last(call),
            (MORE, Known::Yes) => self.more(call),
            _ => self.misbehaved(call),
        }
        None
    }

    fn known(&self, call: &Call) -> Known {
        let proved = self.callers.get(&call.caller()).is_some_and(|caller| caller.proved);
        if proved { Known::Yes } else { Known::No }
    }

    fn misbehaved(&mut self, call: Call) {
        self.counts.misbehaved += 1;
        call.bad_arguments();
    }

    /// The key goes where answers go, and who else knows of that place does not see it.
    fn greet(&mut self, call: Call) {
        if number(call.arguments()).is_none() {
            return self.misbehaved(call);
        }
        let number = call.caller();
        if !self.callers.contains_key(&number) {
            let key = random_key();
            let Some(key) = key.filter(|_| self.callers.len() < CALLERS_MAX) else {
                self.counts.no_room += 1;
                return call.fail("the server has no room for more callers");
            };
            self.callers.insert(number, Caller { key, proved: false, coming: Vec::new(), going: Vec::new() });
        }
        let key = self.callers[&number].key;
        call.answer(&Welcome { version: VERSION, record_max: RECORD_BYTES_MAX as u32, key }.encode());
    }

    fn confirm(&mut self, call: Call) {
        match self.callers.get_mut(&call.caller()) {
            Some(caller) if call.arguments() == caller.key => {
                caller.proved = true;
                call.answer(b"");
            }
            _ => self.misbehaved(call),
        }
    }

    /// Takes the next piece of the record that comes.
    fn piece(&mut self, call: &Call) -> Result<(), bool> {
        let (offset, bytes) = number(call.arguments()).ok_or(false)?;
        if offset == 0 {
            self.forget(call);
        }
        let has_room = self.has_room(bytes.len());
        let caller = self.callers.get_mut(&call.caller()).ok_or(false)?;
        let len = caller.coming.len() + bytes.len();
        if offset as usize != caller.coming.len() || bytes.is_empty() || len > RECORD_BYTES_MAX {
            return Err(false);
        }
        if !has_room {
            return Err(true);
        }
        self.kept += bytes.len();
        caller.coming.extend(bytes);
        Ok(())
    }

    fn part(&mut self, call: Call) {
        match self.piece(&call) {
            Ok(()) => call.answer(b""),
            Err(no_room) => self.no_piece(call, no_room),
        }
    }

    fn no_piece(&mut self, call: Call, no_room: bool) {
        self.forget(&call);
        if no_room {
            self.counts.no_room += 1;
            call.fail("the server has too many long calls that are not whole; call again later");
        } else {
            self.misbehaved(call);
        }
    }

    fn last(&mut self, call: Call) -> Option<OncCall> {
        if let Err(no_room) = self.piece(&call) {
            self.no_piece(call, no_room);
            return None;
        }
        let record = self.callers.get_mut(&call.caller()).map(|caller| std::mem::take(&mut caller.coming))?;
        self.kept -= record.len();
        self.forget(&call);
        self.admit(call, record)
    }

    fn more(&mut self, call: Call) {
        let Some((offset, b"")) = number(call.arguments()) else { return self.misbehaved(call) };
        let offset = offset as usize;
        let going = self.callers.get(&call.caller()).map(|caller| &caller.going[..]).unwrap_or_default();
        if offset >= going.len() {
            return self.misbehaved(call);
        }
        let end = going.len().min(offset + PIECE_BYTES);
        let (bytes, is_last) = (piece(offset, &going[offset..end]), end == going.len());
        if is_last {
            self.forget(&call);
        }
        call.answer(&bytes);
    }

    /// What was kept for a caller: it begins something new.
    fn forget(&mut self, call: &Call) {
        if let Some(caller) = self.callers.get_mut(&call.caller()) {
            self.kept -= caller.coming.len() + caller.going.len();
            caller.coming = Vec::new();
            caller.going = Vec::new();
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.kept + bytes <= KEPT_BYTES_MAX
    }

    /// A record, if it is a call whose credential is its caller's.
    fn admit(&mut self, call: Call, record: Vec<u8>) -> Option<OncCall> {
        let uid = call.answered_to();
        match check(&record, uid) {
            Verdict::Call => {
                self.counts.calls += 1;
                Some(OncCall { call, record, uid })
            }
            Verdict::Denied(xid, denied) => {
                match denied {
                    Denied::AuthError(_) => self.counts.bad_credentials += 1,
                    Denied::RpcMismatch { .. } => self.counts.misbehaved += 1,
                }
                let denied = Message { xid, body: Body::Reply(ReplyHeader::Denied(denied)) }.encode();
                call.answer(&Came::Whole(&denied).encode());
                None
            }
            Verdict::None => {
                self.misbehaved(call);
                None
            }
        }
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Call,
    Denied(u32, Denied),
    None,
}

/// Holds a record against what is known of its caller.
fn check(record: &[u8], uid: u32) -> Verdict {
    let (xid, head) = match Message::decode(record) {
        Ok((Message { xid, body: Body::Call(head) }, _)) => (xid, head),
        Err(Malformed::RpcVersion { xid, .. }) => {
            return Verdict::Denied(xid, Denied::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION });
        }
        Ok(_) | Err(_) => return Verdict::None,
    };
    let believed = match head.cred.flavor {
        flavor::AUTH_SYS => AuthSys::from_auth(&head.cred).is_ok_and(|who| who.uid == uid),
        // It stands for an AUTH_SYS credential, which no server of ours has given one for.
        flavor::AUTH_SHORT => false,
        _ => true,
    };
    if believed { Verdict::Call } else { Verdict::Denied(xid, Denied::AuthError(AuthStat::BadCred)) }
}

fn random_key() -> Option<Key> {
    vmmc_host::os::random_bytes().ok()?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use onc_rpc::{CallHeader, OpaqueAuth};

    fn call(cred: OpaqueAuth) -> Vec<u8> {
        let head = CallHeader { prog: 1, vers: 2, proc: 3, cred, verf: OpaqueAuth::none() };
        Message { xid: 7, body: Body::Call(head) }.encode()
    }

    fn user(uid: u32) -> OpaqueAuth {
        AuthSys { stamp: 0, machine: "m".into(), uid, gid: 1, gids: vec![] }.to_auth()
    }

    #[test]
    fn a_credential_of_another_user_is_denied_and_one_of_the_callers_is_not() {
        let bad = Verdict::Denied(7, Denied::AuthError(AuthStat::BadCred));
        assert_eq!(check(&call(OpaqueAuth::none()), 5), Verdict::Call);
        assert_eq!(check(&call(user(5)), 5), Verdict::Call);
        assert_eq!(check(&call(user(0)), 5), bad);
        assert_eq!(check(&call(user(5)), 0), bad, "root too speaks for itself");
        assert_eq!(check(&call(OpaqueAuth { flavor: flavor::AUTH_SYS, body: vec![1, 2] }), 5), bad);
        assert_eq!(check(&call(OpaqueAuth { flavor: flavor::AUTH_SHORT, body: vec![] }), 5), bad);
    }

    #[test]
    fn what_is_no_call_is_none() {
        let reply = Message { xid: 1, body: Body::Reply(ReplyHeader::Denied(Denied::AuthError(AuthStat::TooWeak))) };
        assert_eq!(check(&reply.encode(), 5), Verdict::None);
        assert_eq!(check(b"", 5), Verdict::None);
        let old = [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(check(&old, 5), Verdict::Denied(9, Denied::RpcMismatch { low: 2, high: 2 }));
    }
}
