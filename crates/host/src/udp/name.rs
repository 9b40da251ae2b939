//! Socket addresses as the kernel writes and reads them.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A socket address as the kernel writes and reads it.
#[derive(Clone, Copy)]
pub(super) struct SocketName {
    pub(super) storage: libc::sockaddr_storage,
    pub(super) len: libc::socklen_t,
}

impl SocketName {
    pub(super) fn none() -> SocketName {
        // SAFETY: all-zero is a valid sockaddr_storage (family AF_UNSPEC).
        SocketName { storage: unsafe { mem::zeroed() }, len: 0 }
    }

    pub(super) fn new(address: SocketAddr) -> SocketName {
        let mut name = SocketName::none();
        let at = &raw mut name.storage;
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: all-zero is a valid sockaddr_in.
                let mut sin: libc::sockaddr_in = unsafe { mem::zeroed() };
                sin.sin_family = libc::AF_INET as libc::sa_family_t;
                sin.sin_port = v4.port().to_be();
                sin.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                // SAFETY: sockaddr_storage is made to hold every address type: large enough and
                // aligned.
                unsafe { at.cast::<libc::sockaddr_in>().write(sin) };
                name.len = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                // SAFETY: all-zero is a valid sockaddr_in6.
                let mut sin6: libc::sockaddr_in6 = unsafe { mem::zeroed() };
                sin6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                sin6.sin6_port = v6.port().to_be();
                sin6.sin6_addr.s6_addr = v6.ip().octets();
                sin6.sin6_flowinfo = v6.flowinfo();
                sin6.sin6_scope_id = v6.scope_id();
                // SAFETY: as above.
                unsafe { at.cast::<libc::sockaddr_in6>().write(sin6) };
                name.len = mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        name
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        let at = &raw const self.storage;
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the storage is large enough and aligned for it, any bytes are a valid
                // sockaddr_in.
                let sin = unsafe { at.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(sin.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: as above for sockaddr_in6.
                let sin6 = unsafe { at.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
                let (port, flow, scope) = (u16::from_be(sin6.sin6_port), sin6.sin6_flowinfo, sin6.sin6_scope_id);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, flow, scope)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_survive() {
        for text in ["1.2.3.4:5", "[2001:db8::1%7]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketName::new(address).address(), Some(address));
        }
        assert_eq!(SocketName::none().address(), None);
    }
}
