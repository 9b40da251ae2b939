//! To whom the sockets of this machine belong, by the kernel's tables.
//!
//! Invariant: read for a list that people read, never to decide anything; a table that cannot be
//! read is an empty one.

use crate::limits::SOCKET_TABLE_LINES_MAX;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use vmmc_stream::Endpoints;

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Users of connected TCP sockets in this network namespace.
#[derive(Default)]
pub(crate) struct Users(HashMap<(SocketAddr, SocketAddr), u32>);

impl Users {
    /// As it is now.
    pub(crate) fn read() -> Users {
        let tables = TABLES.into_iter().filter_map(|path| File::open(path).ok());
        let lines =
            |table: File| BufReader::new(table).lines().map_while(Result::ok).skip(1).take(SOCKET_TABLE_LINES_MAX);
        Users(tables.flat_map(lines).filter_map(|line| entry(&line)).collect())
    }

    /// The user of an end, if it is there.
    pub(crate) fn of(&self, end: &Endpoints) -> Option<u32> {
        self.0.get(&(end.local, end.remote)).copied()
    }
}

/// Own address, the peer's, user.
fn entry(line: &str) -> Option<((SocketAddr, SocketAddr), u32)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
    Some(((local, remote), words.nth(4)?.parse().ok()?))
}

/// `0100007F:1F90`: words of four bytes in this machine's order, then the port. IPv4 in IPv6
/// clothes is undressed, as in [`Endpoints`].
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |i: usize| Some(u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn both_ends_of_a_connection_are_found_with_their_user() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                println!("SKIP {at} cannot be bound: this machine has no such addresses");
                continue;
            };
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let two = listener.accept().unwrap().0;
            let users = Users::read();
            let lines = |table: &str| std::fs::read_to_string(table).unwrap_or_default().lines().count();
            if TABLES.into_iter().any(|table| lines(table) > SOCKET_TABLE_LINES_MAX) {
                println!("SKIP this machine has more sockets than are scanned_at at, {SOCKET_TABLE_LINES_MAX}");
                return;
            }
            let me = rustix::process::geteuid().as_raw();
            for socket in [&one, &two] {
                let end = vmmc_stream::endpoints(socket.as_fd()).unwrap().0;
                assert_eq!(users.of(&end), Some(me), "{end:?}");
            }
        }
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for line in ["", "1:", "0: 0100007F:1F90", "0: 0100007F 0100007F:1F90 01 a b c 0", "0: zz:1 zz:1 01 a b c 0"] {
            assert!(entry(line).is_none(), "{line}");
        }
    }
}
