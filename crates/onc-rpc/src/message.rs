//! Headers of calls and replies.
//!
//! Invariant: a header that decodes encodes to the same bytes. Source: RFC 5531 §9.

use crate::auth::OpaqueAuth;
use crate::xdr::{Decoder, Encoder, Malformed};

/// Version of RPC, of which there is one.
pub const RPC_VERSION: u32 = 2;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;

/// A message, without arguments and results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number of the call among those of its caller.
    pub xid: u32,
    /// What it is.
    pub body: Body,
}

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Arguments follow.
    Call(CallHeader),
    /// After [`Accepted::Success`] results follow.
    Reply(ReplyHeader),
}

/// The header of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    /// Program.
    pub prog: u32,
    /// Version of the program.
    pub vers: u32,
    /// Procedure.
    pub proc: u32,
    /// Who the caller says it is.
    pub cred: OpaqueAuth,
    /// Proof of it.
    pub verf: OpaqueAuth,
}

/// The header of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// The server has looked at the call.
    Accepted {
        /// Proof that it is the server.
        verf: OpaqueAuth,
        /// What became of the call.
        status: Accepted,
    },
    /// The server has not looked at it.
    Denied(Denied),
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It was carried out; results follow.
    Success,
    /// There is no such program.
    ProgUnavail,
    /// The program is of other versions.
    ProgMismatch {
        /// Lowest version there.
        low: u32,
        /// Highest version there.
        high: u32,
    },
    /// There is no such procedure.
    ProcUnavail,
    /// The arguments could not be read.
    GarbageArgs,
    /// The server lacks something, memory perhaps.
    SystemErr,
}

/// Why a call was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The server speaks other versions of RPC.
    RpcMismatch {
        /// Lowest version there.
        low: u32,
        /// Highest version there.
        high: u32,
    },
    /// The caller is not believed.
    AuthError(AuthStat),
}

/// Why a caller is not believed. Its number goes over the wire; those of GSS are among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AuthStat {
    /// The credential makes no sense, or is not the caller's.
    BadCred = 1,
    /// The caller must begin anew.
    RejectedCred = 2,
    /// The verifier makes no sense.
    BadVerf = 3,
    /// The verifier is old, or was used before.
    RejectedVerf = 4,
    /// The flavor is too weak for this.
    TooWeak = 5,
    /// The verifier of the reply makes no sense.
    InvalidResp = 6,
    /// Something else.
    Failed = 7,
    /// Kerberos: something.
    KerbGeneric = 8,
    /// Kerberos: the credential is old.
    TimeExpire = 9,
    /// Kerberos: the file of tickets.
    TktFile = 10,
    /// Kerberos: it could not be read.
    Decode = 11,
    /// Kerberos: the address is another one.
    NetAddr = 12,
    /// GSS: no credential for the user.
    GssCredProblem = 13,
    /// GSS: the context is unknown.
    GssCtxProblem = 14,
}

impl AuthStat {
    const ALL: [AuthStat; 14] = [
        AuthStat::BadCred,
        AuthStat::RejectedCred,
        AuthStat::BadVerf,
        AuthStat::RejectedVerf,
        AuthStat::TooWeak,
        AuthStat::InvalidResp,
        AuthStat::Failed,
        AuthStat::KerbGeneric,
        AuthStat::TimeExpire,
        AuthStat::TktFile,
        AuthStat::Decode,
        AuthStat::NetAddr,
        AuthStat::GssCredProblem,
        AuthStat::GssCtxProblem,
    ];

    fn of_code(code: u32) -> Option<AuthStat> {
        Self::ALL.get((code as usize).checked_sub(1)?).copied()
    }
}

impl Message {
    /// As bytes, behind which arguments or results go.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u32(self.xid);
        match &self.body {
            Body::Call(head) => {
                out.u32(CALL).u32(RPC_VERSION).u32(head.prog).u32(head.vers).u32(head.proc);
                head.cred.encode(&mut out);
                head.verf.encode(&mut out);
            }
            Body::Reply(ReplyHeader::Accepted { verf, status }) => {
                out.u32(REPLY).u32(ACCEPTED);
                verf.encode(&mut out);
                status.encode(&mut out);
            }
            Body::Reply(ReplyHeader::Denied(denied)) => {
                out.u32(REPLY).u32(DENIED);
                match *denied {
                    Denied::RpcMismatch { low, high } => _ = out.u32(RPC_MISMATCH).u32(low).u32(high),
                    Denied::AuthError(why) => _ = out.u32(AUTH_ERROR).u32(why as u32),
                }
            }
        }
        out.into_bytes()
    }

    /// Of a record, and the arguments or results that are behind it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(record: &[u8]) -> Result<(Message, &[u8]), Malformed> {
        let mut from = Decoder::new(record);
        let xid = from.u32("number of the call")?;
        let body = match from.u32("kind of message")? {
            CALL => Body::Call(CallHeader::decode(&mut from, xid)?),
            REPLY => Body::Reply(ReplyHeader::decode(&mut from)?),
            value => return Err(Malformed::Value { what: "a kind", value }),
        };
        Ok((Message { xid, body }, from.rest()))
    }
}

impl CallHeader {
    fn decode(from: &mut Decoder<'_>, xid: u32) -> Result<CallHeader, Malformed> {
        let version = from.u32("version of RPC")?;
        if version != RPC_VERSION {
            return Err(Malformed::RpcVersion { xid, version });
        }
        let (prog, vers, proc) = (from.u32("program")?, from.u32("version")?, from.u32("procedure")?);
        let cred = OpaqueAuth::decode(from, "credential")?;
        let verf = OpaqueAuth::decode(from, "verifier")?;
        Ok(CallHeader { prog, vers, proc, cred, verf })
    }
}

impl ReplyHeader {
    fn decode(from: &mut Decoder<'_>) -> Result<ReplyHeader, Malformed> {
        match from.u32("kind of reply")? {
            ACCEPTED => {
                let verf = OpaqueAuth::decode(from, "verifier")?;
                Ok(ReplyHeader::Accepted { verf, status: Accepted::decode(from)? })
            }
            DENIED => Ok(ReplyHeader::Denied(Denied::decode(from)?)),
            value => Err(Malformed::Value { what: "a kind of reply", value }),
        }
    }
}

impl Accepted {
    fn encode(self, out: &mut Encoder) {
        match self {
            Accepted::Success => _ = out.u32(0),
            Accepted::ProgUnavail => _ = out.u32(1),
            Accepted::ProgMismatch { low, high } => _ = out.u32(2).u32(low).u32(high),
            Accepted::ProcUnavail => _ = out.u32(3),
            Accepted::GarbageArgs => _ = out.u32(4),
            Accepted::SystemErr => _ = out.u32(5),
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Accepted, Malformed> {
        Ok(match from.u32("status")? {
            0 => Accepted::Success,
            1 => Accepted::ProgUnavail,
            2 => Accepted::ProgMismatch { low: from.u32("lowest version")?, high: from.u32("highest version")? },
            3 => Accepted::ProcUnavail,
            4 => Accepted::GarbageArgs,
            5 => Accepted::SystemErr,
            value => return Err(Malformed::Value { what: "a status", value }),
        })
    }
}

impl Denied {
    fn decode(from: &mut Decoder<'_>) -> Result<Denied, Malformed> {
        match from.u32("reason")? {
            RPC_MISMATCH => {
                Ok(Denied::RpcMismatch { low: from.u32("lowest version")?, high: from.u32("highest version")? })
            }
            AUTH_ERROR => {
                let code = from.u32("reason")?;
                let why = AuthStat::of_code(code).ok_or(Malformed::Value { what: "a reason", value: code })?;
                Ok(Denied::AuthError(why))
            }
            value => Err(Malformed::Value { what: "a reason", value }),
        }
    }
}
