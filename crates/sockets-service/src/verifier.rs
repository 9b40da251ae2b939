//! Verifies by the kernel's tables that a client has the socket that it claims.
//!
//! A client claims which connected socket it has. It is believed if the kernel knows the socket
//! under the same cookie, connected, and
//!
//! * it belongs to the client's user, or
//! * the client is root, or
//! * it belongs to somebody else, and the kernel shows it among the client's descriptors: a server
//!   that accepted as root and then became a user has such sockets.
//!
//! Invariant: nobody claims a connection of another user. What two processes of one user claim of
//! each other's they could have had anyway. A check of a descriptor of another user never leaves
//! the node with the last copy of it to close: any check holds the file for a moment, and its owner
//! may close it meanwhile, so the node takes a copy of its own, which is closed where nobody waits
//! ([`Copies`]). Source: docs/sockets.md.

use super::Client;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use vmmc_stream::messages::{OfferRefusal, SocketClaim};
use vmmc_stream::{Endpoints, KernelSocket, SocketDiag};

/// Copies of descriptors of clients that were checked, with the users whose closings they are.
pub(crate) type Copies = Vec<(u32, OwnedFd)>;

/// Asks the kernel.
#[derive(Debug)]
pub(crate) struct SocketVerifier {
    diag: SocketDiag,
    /// The network namespace whose sockets it knows.
    network: u64,
}

/// Why nobody's connections are upgraded: claims cannot be verified.
#[derive(Debug)]
pub(crate) struct NoSocketVerifier(rustix::io::Errno);

impl fmt::Display for NoSocketVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = self.0;
        write!(
            f,
            "the kernel does not tell of TCP sockets ({errno}); it needs CONFIG_INET_DIAG and CONFIG_INET_TCP_DIAG, or `modprobe tcp_diag`"
        )
    }
}

impl SocketVerifier {
    /// One that was tested.
    pub(crate) fn new() -> Result<SocketVerifier, NoSocketVerifier> {
        let mut diag = SocketDiag::open().map_err(NoSocketVerifier)?;
        diag.test().map_err(NoSocketVerifier)?;
        Ok(SocketVerifier { diag, network: vmmc_stream::network_here().map_err(NoSocketVerifier)? })
    }

    /// The connection that a client claims to have one end of.
    pub(crate) fn connection(
        &mut self,
        client: &Client,
        claim: &SocketClaim,
        copies: &mut Copies,
    ) -> Result<Endpoints, OfferRefusal> {
        let found = self.diag.find(claim).map_err(|_| OfferRefusal::MemoryShort)?;
        let found = found.filter(|found| found.established).ok_or(OfferRefusal::NotConnected)?;
        let own = found.uid == client.uid || client.uid == 0;
        if !own && !is_held(client, claim.descriptor, &found, copies) {
            return Err(OfferRefusal::NotYours);
        }
        let [local, remote] = [claim.local, claim.remote]
            .map(|address| std::net::SocketAddr::new(address.ip().to_canonical(), address.port()));
        Ok(Endpoints { network: self.network, local, remote })
    }
}

/// Whether the client has the socket under that number. Its process must live on behind the check:
/// another one may have its id by then.
pub(crate) fn is_held(client: &Client, descriptor: i32, socket: &KernelSocket, copies: &mut Copies) -> bool {
    let Some(watch) = client.watch.as_ref().filter(|_| descriptor >= 0) else { return false };
    let there = if client.uid == rustix::process::geteuid().as_raw() {
        // Nobody whom the node serves needs to be kept from holding up its own user. This check
        // is allowed where a copy is not (ptrace_scope of Yama).
        let link = std::fs::read_link(format!("/proc/{}/fd/{descriptor}", client.pid));
        link.is_ok_and(|link| link.as_os_str() == format!("socket:[{}]", socket.inode).as_str())
    } else {
        let copy = pidfd_getfd(watch.as_fd(), descriptor, PidfdGetfdFlags::empty()).ok();
        let cookie = copy.as_ref().and_then(|copy| rustix::net::sockopt::socket_cookie(copy).ok());
        copies.extend(copy.map(|copy| (client.uid, copy)));
        cookie == Some(socket.cookie)
    };
    there && !watch.has_ended()
}
