//! rpcbind: which programs are where on a machine. Program 100000, versions 3 and 4.
//!
//! Invariant: as for all messages. Source: RFC 1833.

use crate::auth::OpaqueAuth;
use crate::limits::RPCBIND_STRING_BYTES_MAX;
use crate::message::{Body, CallHeader, Message};
use crate::xdr::{Decoder, Encoder, Malformed};
use std::net::{IpAddr, SocketAddr};

/// Number of the program.
pub const PROGRAM: u32 = 100_000;
/// Its version here.
pub const VERSION: u32 = 3;
/// Its port, for TCP and UDP.
pub const PORT: u16 = 111;
/// Its socket for processes of the machine, whose user it then knows.
pub const SOCKET: &str = "/run/rpcbind.sock";

const SET: u32 = 1;
const UNSET: u32 = 2;
const GETADDR: u32 = 3;

/// Where a program is.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Mapping {
    /// Program.
    pub prog: u32,
    /// Version; 0 means any one in [`unset`].
    pub vers: u32,
    /// Network identifier: `tcp`, `udp`, `local`, ...; empty means any one in [`unset`].
    pub netid: String,
    /// Universal address: for `tcp` the bytes of address and port with dots between them.
    pub address: String,
    /// User who has set it. rpcbind writes its own word over it.
    pub owner: String,
}

impl Mapping {
    /// As XDR.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u32(self.prog).u32(self.vers);
        out.counted(self.netid.as_bytes()).counted(self.address.as_bytes()).counted(self.owner.as_bytes());
        out.into_bytes()
    }

    /// Of XDR.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Mapping, Malformed> {
        let mut from = Decoder::new(bytes);
        let (prog, vers) = (from.u32("program")?, from.u32("version")?);
        let mut text = |what| from.string(what, RPCBIND_STRING_BYTES_MAX).map(str::to_string);
        let (netid, address, owner) = (text("network identifier")?, text("address")?, text("owner")?);
        from.end("mapping")?;
        Ok(Mapping { prog, vers, netid, address, owner })
    }
}

fn call(xid: u32, proc: u32, mapping: &Mapping) -> Vec<u8> {
    let (cred, verf) = (OpaqueAuth::none(), OpaqueAuth::none());
    let head = CallHeader { prog: PROGRAM, vers: VERSION, proc, cred, verf };
    let mut record = Message { xid, body: Body::Call(head) }.encode();
    record.extend(mapping.encode());
    record
}

/// The record of a call that enters a mapping; its result is [`truth`]: false if there is one
/// already.
pub fn set(xid: u32, mapping: &Mapping) -> Vec<u8> {
    call(xid, SET, mapping)
}

/// The record of a call that removes mappings; its result is [`truth`].
pub fn unset(xid: u32, mapping: &Mapping) -> Vec<u8> {
    call(xid, UNSET, mapping)
}

/// The record of a call that asks where a program is for a network; its result is [`address`].
pub fn getaddr(xid: u32, mapping: &Mapping) -> Vec<u8> {
    call(xid, GETADDR, mapping)
}

/// The result of [`set`] and [`unset`].
///
/// # Errors
/// [`Malformed`].
pub fn truth(result: &[u8]) -> Result<bool, Malformed> {
    let mut from = Decoder::new(result);
    let truth = from.bool("result")?;
    from.end("result").map(|()| truth)
}

/// The result of [`getaddr`], a universal address; empty: it is nowhere.
///
/// # Errors
/// [`Malformed`].
pub fn address(result: &[u8]) -> Result<&str, Malformed> {
    let mut from = Decoder::new(result);
    let address = from.string("address", RPCBIND_STRING_BYTES_MAX)?;
    from.end("result").map(|()| address)
}

/// A universal address of `tcp`, `udp`, `tcp6` or `udp6` as a socket's. None: it is no such
/// address.
///
/// ```
/// # use onc_rpc::rpcbind::{socket_address, universal_address};
/// let address = socket_address("127.0.0.1.4.210").unwrap();
/// assert_eq!(address.to_string(), "127.0.0.1:1234");
/// assert_eq!(universal_address(address), "127.0.0.1.4.210");
/// ```
pub fn socket_address(universal: &str) -> Option<SocketAddr> {
    let (rest, low) = universal.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let (high, low) = (high.parse::<u8>().ok()?, low.parse::<u8>().ok()?);
    Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, u16::from_be_bytes([high, low])))
}

/// The other way round.
pub fn universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}
