//! Where a program is otherwise, says rpcbind: for a hint in an error, and no more.
//!
//! Programs are found by the name of their service in the node: that name goes with its process,
//! and what rpcbind knows of other transports it does not give to who asks for them.
//!
//! Invariant: a wait for rpcbind has an end, and what it says is text in a message. Source:
//! RFC 1833.

use crate::limits::RPCBIND_TIMEOUT;
use onc_rpc::rpcbind::{self, Mapping};
use onc_rpc::{Accepted, Body, Message, Records, ReplyHeader, write_record};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Instant;

/// Bytes of a reply that is taken.
const REPLY_BYTES_MAX: usize = 4096;
/// Number of the one call of a connection.
const XID: u32 = 1;

/// What to do about a program that is not served over VMMC.
pub(crate) fn hint(host: Option<&str>, prog: u32, vers: u32) -> String {
    match tcp_address(host, prog, vers) {
        Some(address) => format!("it is on TCP, at {address}; call clnt_create(), or allow it by CLNT_VMMC_OR_TCP"),
        None => "start its server, which calls svc_vmmc_create(), on that node and as this user or root".into(),
    }
}

/// Where a program is on TCP, as rpcbind says: it tells of the network that it is asked by.
fn tcp_address(host: Option<&str>, prog: u32, vers: u32) -> Option<SocketAddr> {
    let host = host.map_or("127.0.0.1", |host| host.rsplit_once(':').map_or(host, |(host, _)| host));
    let address = (host, rpcbind::PORT).to_socket_addrs().ok()?.next()?;
    let stream = TcpStream::connect_timeout(&address, RPCBIND_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(RPCBIND_TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(RPCBIND_TIMEOUT)).ok()?;
    let mapping = Mapping { prog, vers, netid: "tcp".into(), ..Mapping::default() };
    let reply = ask(stream, &rpcbind::getaddr(XID, &mapping))?;
    rpcbind::socket_address(rpcbind::address(&reply).ok()?)
}

/// The results of a call.
fn ask(mut stream: impl Read + Write, record: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    write_record(record, record.len(), &mut out);
    stream.write_all(&out).ok()?;
    let (mut records, mut reply) = (Records::new(REPLY_BYTES_MAX), None);
    let ends = Instant::now() + RPCBIND_TIMEOUT;
    while reply.is_none() && Instant::now() < ends {
        let mut bytes = [0; 512];
        let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
        records.push(&bytes[..count], |record| reply = Some(record)).ok()?;
    }
    let reply = reply?;
    match Message::decode(&reply).ok()? {
        (Message { xid: XID, body: Body::Reply(ReplyHeader::Accepted { status: Accepted::Success, .. }) }, results) => {
            Some(results.to_vec())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpcbind_says_where_it_is_itself() {
        let Some(address) = tcp_address(None, rpcbind::PROGRAM, rpcbind::VERSION) else {
            println!("SKIP rpcbind: none runs on this machine, so nobody can be asked where a program is");
            return;
        };
        assert_eq!(address.port(), rpcbind::PORT);
        assert_eq!(tcp_address(None, 0x2fff_ff17, 1), None);
        assert!(hint(None, rpcbind::PROGRAM, rpcbind::VERSION).contains("it is on TCP"));
    }

    #[test]
    fn a_reply_of_another_call_or_none_is_no_answer() {
        struct Answers(Vec<u8>);
        impl Read for Answers {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                let count = self.0.len().min(into.len());
                into[..count].copy_from_slice(&self.0[..count]);
                self.0.drain(..count);
                Ok(count)
            }
        }
        impl Write for Answers {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let verf = onc_rpc::OpaqueAuth::none();
        let answer = |xid, status| {
            let verf = verf.clone();
            let reply = Message { xid, body: Body::Reply(ReplyHeader::Accepted { verf, status }) }.encode();
            let mut stream = Vec::new();
            write_record(&reply, 7, &mut stream);
            ask(Answers(stream), b"call")
        };
        assert_eq!(answer(XID, Accepted::Success), Some(Vec::new()));
        assert_eq!(answer(XID + 1, Accepted::Success), None);
        assert_eq!(answer(XID, Accepted::ProgUnavail), None);
        assert_eq!(ask(Answers(vec![0xff; 100]), b"call"), None);
        assert_eq!(ask(Answers(Vec::new()), b"call"), None);
    }
}
