//! What the upgrade asks of the kernel's socket: who it connects, how many bytes it has carried,
//! whether its other end lives.
//!
//! Invariant: positions in a stream come from the kernel itself (`TCP_INFO`), so a byte that some
//! other way sent or received is counted too. Nothing here waits, except [`wait_socket`].

use crate::wait::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddr, SocketAddrAny, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Which connection a socket is one end of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoints {
    /// Network namespace.
    pub network: u64,
    /// Own address.
    pub local: std::net::SocketAddr,
    /// The peer's.
    pub remote: std::net::SocketAddr,
}

impl Endpoints {
    /// The same connection seen from the other end.
    pub fn mirrored(&self) -> Endpoints {
        Endpoints { network: self.network, local: self.remote, remote: self.local }
    }
}

/// How far a TCP socket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpProgress {
    /// Connected, and neither side has ended its direction.
    pub established: bool,
    /// The peer has ended its direction, or the connection is over.
    pub peer_ended: bool,
    /// Bytes that were given to the socket to send.
    pub sent: u64,
    /// Bytes that have come, read or not; one more once the peer has ended its direction.
    pub received: u64,
    /// Segments sent again so far.
    pub retransmissions: u32,
    /// After how long a segment is sent again where nothing tells of its loss.
    pub retransmit_after: Duration,
}

/// What the kernel says about the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Connected; nothing to read.
    Open,
    /// Bytes are there.
    Bytes,
    /// The peer has ended its direction, or is gone.
    Ended,
    /// Reset.
    Reset(Errno),
}

/// Addresses of a connected TCP socket and its cookie, which no other socket of this machine ever
/// has.
///
/// # Errors
/// `EPROTOTYPE` for anything that is not a connected TCP socket; what the kernel says otherwise.
pub fn endpoints(fd: BorrowedFd<'_>) -> Result<(Endpoints, u64), Errno> {
    let family = sockopt::socket_domain(fd)?;
    if sockopt::socket_type(fd)? != SocketType::STREAM
        || !(family == AddressFamily::INET || family == AddressFamily::INET6)
        || !tcp_progress(fd)?.established
    {
        return Err(Errno::PROTOTYPE);
    }
    let local = address(rustix::net::getsockname(fd)?)?;
    let remote = address(rustix::net::getpeername(fd)?.ok_or(Errno::NOTCONN)?)?;
    let network = number(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or(0);
    Ok((Endpoints { network, local, remote }, sockopt::socket_cookie(fd)?))
}

/// The network interface that a socket is bound to; 0: none. Before Linux 5.0 a socket cannot be
/// asked.
pub fn interface(fd: BorrowedFd<'_>) -> u32 {
    number(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX).unwrap_or(0) as u32
}

/// The network namespace of the caller, as [`Endpoints::network`] has it.
///
/// # Errors
/// When no socket can be made.
pub fn network_here() -> Result<u64, Errno> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(number(socket.as_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or(0))
}

/// The cookie of a socket.
pub fn cookie(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    sockopt::socket_cookie(fd)
}

/// Linux 5.14; not in every C library's headers.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// An address, with IPv4 in IPv6 clothes undressed, so that both ends of a connection call it the
/// same.
fn address(any: SocketAddrAny) -> Result<std::net::SocketAddr, Errno> {
    let address = SocketAddr::try_from(any)?;
    Ok(std::net::SocketAddr::new(address.ip().to_canonical(), address.port()))
}

fn number(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> Result<u64, Errno> {
    let mut value = 0u64;
    let mut len = 8 as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` = 8 bytes to `value`, which lives for the call.
    let got = unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &mut len) };
    if got == 0 { Ok(value) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Bytes of `struct tcp_info` up to and with `tcpi_bytes_retrans` (Linux 4.19).
const TCP_INFO_BYTES: usize = 216;

/// How far a TCP socket has come, as one snapshot.
///
/// # Errors
/// What the kernel says; `EOPNOTSUPP` if it is too old to count bytes.
pub fn tcp_progress(fd: BorrowedFd<'_>) -> Result<TcpProgress, Errno> {
    let mut info = [0u8; TCP_INFO_BYTES];
    let mut len = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has as many and lives for the
    // call.
    let got = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len)
    };
    if got != 0 {
        return Err(last_error());
    }
    if (len as usize) < TCP_INFO_BYTES {
        return Err(Errno::OPNOTSUPP);
    }
    let long = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().expect("eight bytes"));
    let short = |at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().expect("four bytes"));
    let (received, unsent, on_the_wire, again) = (long(128), short(144), long(200), long(208));
    const ESTABLISHED: u8 = 1;
    // TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING; not those in which only this side has ended
    // its own.
    const PEER_ENDED: [u8; 5] = [6, 7, 8, 9, 11];
    Ok(TcpProgress {
        established: info[0] == ESTABLISHED,
        peer_ended: PEER_ENDED.contains(&info[0]),
        sent: on_the_wire.wrapping_sub(again).wrapping_add(u64::from(unsent)),
        received,
        retransmissions: short(100),
        retransmit_after: Duration::from_micros(short(8).into()),
    })
}

/// Bytes that wait in the socket to be read.
pub fn unread_bytes(fd: BorrowedFd<'_>) -> u64 {
    rustix::io::ioctl_fionread(fd).unwrap_or(0)
}

/// A limit of unsent bytes that no program asks for, and that limits nothing.
const MARK: u32 = 0x7f56_4d4d;

/// Marks a socket as upgraded, where every later holder sees it: in the kernel.
///
/// # Errors
/// What the kernel says.
pub fn mark_upgraded(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    limit_unsent(fd, MARK)
}

/// Takes the mark off again: a process that gets the socket from here on needs only the kernel.
/// `limit` is what the program set there.
pub fn unmark_upgraded(fd: BorrowedFd<'_>, limit: u32) {
    if is_marked_upgraded(fd) {
        // One that has ended needs no mark.
        let _ = limit_unsent(fd, limit);
    }
}

fn limit_unsent(fd: BorrowedFd<'_>, value: u32) -> Result<(), Errno> {
    // SAFETY: the kernel reads four bytes of `value`, which lives for the call.
    let got = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, (&raw const value).cast(), 4)
    };
    if got == 0 { Ok(()) } else { Err(last_error()) }
}

/// The limit of unsent bytes that the program asked for, 0 for none; or the mark.
pub fn not_sent_limit(fd: BorrowedFd<'_>) -> u32 {
    number(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT).unwrap_or(0) as u32
}

/// Whether some holder of the socket has marked it as upgraded.
pub fn is_marked_upgraded(fd: BorrowedFd<'_>) -> bool {
    not_sent_limit(fd) == MARK
}

/// Ends both directions of a socket.
pub fn shut_down(fd: BorrowedFd<'_>) {
    // One that is not connected has ended already.
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
}

/// Takes the error that the kernel has for a socket, which it would report once more.
pub fn forget_error(fd: BorrowedFd<'_>) {
    let _ = sockopt::socket_error(fd);
}

/// Makes the last close of a socket a reset.
pub fn reset_at_close(fd: BorrowedFd<'_>) {
    // One that is not connected has nobody to reset.
    let _ = sockopt::set_socket_linger(fd, Some(std::time::Duration::ZERO));
}

/// Ends a connection at once: both ends, and the other holders of this one, see a reset.
pub fn reset(fd: BorrowedFd<'_>) {
    // One that has ended already needs no reset.
    let _ = rustix::net::connect_unspec(fd);
}

/// Sends what fits now, without a signal.
pub fn send_now(fd: BorrowedFd<'_>, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
    send_with(fd, from, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// The same when another send follows at once: the kernel waits for it, for a while.
pub fn send_more(fd: BorrowedFd<'_>, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
    send_with(fd, from, SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::MORE)
}

fn send_with(fd: BorrowedFd<'_>, from: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
    loop {
        match rustix::net::sendmsg(fd, from, &mut Default::default(), flags) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Receives what is there now, or peeks at it.
pub fn receive_now(fd: BorrowedFd<'_>, into: &mut [IoSliceMut<'_>], take: bool) -> Result<usize, Errno> {
    let flags = if take { RecvFlags::DONTWAIT } else { RecvFlags::DONTWAIT | RecvFlags::PEEK };
    loop {
        match rustix::net::recvmsg(fd, into, &mut Default::default(), flags) {
            Err(Errno::INTR) => {}
            other => return other.map(|message| message.bytes),
        }
    }
}

/// Pushes out what waits for more bytes, now and from now on.
pub fn set_no_delay(fd: BorrowedFd<'_>) {
    // A socket that refuses is being closed.
    let _ = sockopt::set_tcp_nodelay(fd, true);
}

/// Whether small sends go out at once.
pub fn has_no_delay(fd: BorrowedFd<'_>) -> bool {
    sockopt::tcp_nodelay(fd).unwrap_or(false)
}

/// Whether the program has asked for something on the socket that only the kernel does for bytes
/// that it carries: a low-water mark above one byte, a signal for each arrival, time stamps.
pub fn needs_kernel(fd: BorrowedFd<'_>) -> bool {
    let option = |name| number(fd, libc::SOL_SOCKET, name).unwrap_or(0);
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    option(libc::SO_RCVLOWAT) > 1 || option(libc::SO_TIMESTAMPING) != 0 || (flags >= 0 && flags & libc::O_ASYNC != 0)
}

/// What the kernel says about the other end, without taking a byte.
pub fn end_of_kernel(fd: BorrowedFd<'_>) -> End {
    let mut byte = [0u8; 1];
    loop {
        match rustix::net::recv(fd, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => return End::Ended,
            Ok(_) => return End::Bytes,
            Err(Errno::AGAIN) => return End::Open,
            Err(Errno::INTR) => {}
            Err(errno) => return End::Reset(errno),
        }
    }
}

/// Waits until a socket is ready for `what`, at most until the deadline; says whether it was.
/// Errors: `EINTR`.
pub fn wait_socket(fd: BorrowedFd<'_>, what: PollFlags, deadline: Deadline) -> Result<bool, Errno> {
    let left = deadline.left(crate::Nanos::monotonic()).unwrap_or_default();
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut fds = [PollFd::from_borrowed_fd(fd, what)];
    poll(&mut fds, Some(&timeout)).map(|n| n > 0)
}

/// Whether a receive would end at once; does not wait. Also if something is wrong: the receive says
/// what.
pub fn would_receive(fd: BorrowedFd<'_>) -> bool {
    !matches!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())), Ok(0))
}

/// Whether a send would be taken now, some of it at least; does not wait.
pub fn takes_more(fd: BorrowedFd<'_>) -> bool {
    matches!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(&Timespec::default())), Ok(1))
}

/// The same file under a number that programs rarely use, if there is one: above three quarters of
/// what is allowed.
pub fn move_high(fd: OwnedFd) -> OwnedFd {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024);
    let from = i32::try_from(limit / 4 * 3).unwrap_or(i32::MAX / 2);
    rustix::io::fcntl_dupfd_cloexec(&fd, from).unwrap_or(fd)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn both_ends_of_a_connection_mirror_each_other() {
        let (a, b) = pair();
        let (of_a, cookie_a) = endpoints(a.as_fd()).unwrap();
        let (of_b, cookie_b) = endpoints(b.as_fd()).unwrap();
        assert_eq!(of_a.mirrored(), of_b);
        assert_ne!(cookie_a, cookie_b);
        assert_eq!(endpoints(a.try_clone().unwrap().as_fd()).unwrap().1, cookie_a);
        assert!(!is_marked_upgraded(a.as_fd()));
        mark_upgraded(a.as_fd()).unwrap();
        assert!(is_marked_upgraded(a.try_clone().unwrap().as_fd()) && !is_marked_upgraded(b.as_fd()));
        unmark_upgraded(a.as_fd(), 0);
        assert!(!is_marked_upgraded(a.as_fd()));
    }

    #[test]
    fn what_is_not_a_connected_tcp_socket_is_refused() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(endpoints(a.as_fd()), Err(Errno::PROTOTYPE));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(endpoints(listener.as_fd()).is_err());
    }

    #[test]
    fn the_kernel_counts_what_was_sent_and_what_came() {
        let (mut a, mut b) = pair();
        a.write_all(b"hello").unwrap();
        let mut got = [0; 3];
        b.read_exact(&mut got).unwrap();
        assert_eq!(tcp_progress(a.as_fd()).unwrap().sent, 5);
        assert_eq!(tcp_progress(b.as_fd()).unwrap().received, 5);
        assert_eq!(unread_bytes(b.as_fd()), 2);
        // More than the wire takes at once: what waits in the socket counts as sent.
        let much = vec![7u8; 1 << 20];
        let mut sent = 5;
        while let Ok(n) = send_now(a.as_fd(), &[IoSlice::new(&much)]) {
            sent += n as u64;
        }
        assert_eq!(tcp_progress(a.as_fd()).unwrap().sent, sent);
    }

    #[test]
    fn the_end_of_a_connection_is_seen() {
        let (a, b) = pair();
        assert_eq!(end_of_kernel(a.as_fd()), End::Open);
        rustix::net::shutdown(a.as_fd(), rustix::net::Shutdown::Write).unwrap();
        let progress = tcp_progress(a.as_fd()).unwrap();
        assert!(!progress.established && !progress.peer_ended, "it is this side that has ended");
        drop(b);
        assert_eq!(end_of_kernel(a.as_fd()), End::Ended);
        let progress = tcp_progress(a.as_fd()).unwrap();
        assert!(!progress.established && progress.peer_ended);
    }

    #[test]
    fn a_reset_is_seen_at_both_ends_also_after_the_stream_has_ended() {
        for ended in [false, true] {
            let (a, mut b) = pair();
            let mut other = a.try_clone().unwrap();
            if ended {
                b.shutdown(std::net::Shutdown::Write).unwrap();
            }
            reset(a.as_fd());
            let seen = [other.read(&mut [0]), b.read(&mut [0])].map(|r| r.map_err(|e| e.kind()));
            assert_eq!(seen, [Err(std::io::ErrorKind::ConnectionReset); 2], "ended: {ended}");
        }
    }
}
