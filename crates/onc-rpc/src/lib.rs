//! Messages of ONC RPC (RFC 5531, "Sun RPC") in XDR (RFC 4506), without I/O.
//!
//! ```text
//!   stream ── record marking ──▶ record = header of a call or reply, then arguments or results
//!                                          └── credential, verifier: AUTH_NONE, AUTH_SYS, opaque
//! ```
//!
//! ```
//! use onc_rpc::{Accepted, AuthSys, Body, CallHeader, Message, OpaqueAuth, ReplyHeader};
//!
//! let who = AuthSys { stamp: 0, machine: "here".into(), uid: 1000, gid: 1000, gids: vec![4, 24] };
//! let (cred, verf) = (who.to_auth(), OpaqueAuth::none());
//! let head = CallHeader { prog: 0x2000_0099, vers: 1, proc: 0, cred, verf };
//! let call = Message { xid: 7, body: Body::Call(head) }.encode();
//! let (message, arguments) = Message::decode(&call)?;
//! assert!(arguments.is_empty());
//! let Body::Call(head) = message.body else { panic!("it is a call") };
//! assert_eq!(AuthSys::from_auth(&head.cred)?.uid, 1000);
//!
//! let verf = OpaqueAuth::none();
//! let reply = ReplyHeader::Accepted { verf, status: Accepted::Success };
//! let reply = Message { xid: message.xid, body: Body::Reply(reply) }.encode();
//! assert_eq!(reply.len(), 24);
//! # Ok::<(), onc_rpc::Malformed>(())
//! ```
//!
//! **Promises.** Decoding takes any bytes, never panics, and asks for no more memory than the bytes
//! that are there, or a bound of [`limits`]. What it gives encodes to the same bytes.
//!
//! **Does not.** No sockets, no clock, no stubs: `rpcgen` makes those. The verifiers of AUTH_DH and
//! RPCSEC_GSS are opaque.

#![forbid(unsafe_code)]

mod auth;
#[doc(hidden)]
pub mod fuzzing;
pub mod limits;
mod message;
mod record;
pub mod rpcbind;
mod xdr;

pub use auth::{AuthSys, OpaqueAuth, flavor};
pub use message::{Accepted, AuthStat, Body, CallHeader, Denied, Message, RPC_VERSION, ReplyHeader};
pub use record::{Records, write_record};
pub use xdr::{Decoder, Encoder, Malformed};
