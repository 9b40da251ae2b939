//! The serving side: records come in, whose callers are known; replies go out.
//!
//! Invariants: a record is given out only if its caller has proved whose endpoint answers go to,
//! and if the user in its AUTH_SYS credential is that one. Source: RFC 5531, [SHRIMP §3].

use crate::error::OncError;
use crate::limits::{CALLERS_MAX, FRAMES, RECORD_BYTES_MAX};
use crate::wire::{CONFIRM, HELLO, Key, RECORD, VERSION, Welcome, number, service_name};
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
    /// What made no sense: records that are no calls, callers that have not proved who they are.
    pub misbehaved: u64,
    /// Callers for which there was no room.
    pub no_room: u64,
}

/// A program that is served over VMMC, for an event loop.
#[derive(Debug)]
pub struct OncServer {
    server: PolledServer,
    callers: HashMap<u64, Caller>,
    counts: OncCounts,
}

#[derive(Debug)]
struct Caller {
    key: Key,
    /// It has shown that it has the key.
    proved: bool,
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

impl OncServer {
    /// Serves a program.
    ///
    /// # Errors
    /// [`OncError::Serve`].
    pub fn create(session: &Session, prog: u32, vers: u32, access: Access) -> Result<OncServer, OncError> {
        let server = Server::new(session, &service_name(prog, vers)).access(access).frames(FRAMES.0, FRAMES.1);
        let server = server.queue(CALLERS_MAX).polled()?;
        Ok(OncServer { server, callers: HashMap::new(), counts: OncCounts::default() })
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
            self.callers.remove(&gone);
        }
        Ok(None)
    }

    /// Has the descriptor be readable: calls may be left.
    pub fn again(&mut self) {
        self.server.again();
    }

    /// Replies to a call, by a record.
    pub fn reply(&mut self, call: OncCall, reply: &[u8]) {
        call.call.answer(reply);
    }

    /// A record, if the call has one.
    fn take(&mut self, call: Call) -> Option<OncCall> {
        match call.method() {
            HELLO => self.greet(call),
            CONFIRM => self.confirm(call),
            RECORD if self.callers.get(&call.caller()).is_some_and(|caller| caller.proved) => {
                let record = call.arguments().to_vec();
                return self.admit(call, record);
            }
            _ => self.misbehaved(call),
        }
        None
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
            self.callers.insert(number, Caller { key, proved: false });
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
                call.answer(&denied);
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
