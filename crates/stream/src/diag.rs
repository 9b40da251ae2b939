//! Asks the kernel about a TCP socket of another process, by its addresses and its cookie, without
//! holding it.
//!
//! A descriptor of the socket would do as well, but while a copy of one is anywhere, also in a
//! message that nobody has read, the kernel does not end the connection when the program closes it:
//! no FIN, no reset, and events of it go on. So what travels is the name of the socket, and the
//! kernel's own list ([`sock_diag(7)`]) says whether there is such a one, in which state, and to
//! whom it belongs.
//!
//! Invariant: an answer is taken only from the kernel, for the question just asked, and is checked
//! before it is used. Nothing here waits: the kernel answers within the call that asks.
//!
//! [`sock_diag(7)`]: https://man7.org/linux/man-pages/man7/sock_diag.7.html

use super::messages::SocketClaim;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use vmmc_host::netlink::{ERROR, HEAD_BYTES, half, is_kernel, refusal, word};

/// Number of TCP among the protocols of IP.
const IPPROTO_TCP: u8 = 6;
/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// Bytes of a question and an answer, with their heads.
const QUESTION_BYTES: usize = HEAD_BYTES + 56;
const ANSWER_BYTES: usize = HEAD_BYTES + 72;
/// Bytes of a message that is looked at: more than an answer without extras has.
const MESSAGE_BYTES: usize = 512;
/// Messages that are passed over in search of the answer: none is expected but those of questions
/// before whose answer did not come.
const MESSAGES: usize = 16;
/// State of a connected socket.
const ESTABLISHED: u8 = 1;

/// What the kernel says about a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSocket {
    /// Connected, and neither side has ended its direction.
    pub established: bool,
    /// The user to whom it belongs: who made it, unless it was given to somebody.
    pub uid: u32,
    /// Its number as it stands in `/proc/PID/fd`.
    pub inode: u32,
    /// No other socket of this machine ever has this one.
    pub cookie: u64,
}

/// A way to ask; of one network namespace, that of the thread that opened it.
#[derive(Debug)]
pub struct SocketDiag {
    socket: OwnedFd,
    /// Number of the last question.
    asked: u32,
}

impl SocketDiag {
    /// Opens it.
    ///
    /// # Errors
    /// When the kernel has none, or does not let us.
    pub fn open() -> Result<SocketDiag, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        Ok(SocketDiag { socket, asked: 0 })
    }

    /// Whether the kernel reports TCP sockets: asks for one of our own that listens for a moment.
    /// It says "not found" for all of them where it cannot report them.
    ///
    /// # Errors
    /// What keeps it.
    pub fn test(&mut self) -> Result<(), Errno> {
        let none = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
        let own = TcpListener::bind("127.0.0.1:0").map_err(none)?;
        let local = own.local_addr().map_err(none)?;
        let remote = SocketAddr::from(([127, 0, 0, 1], 0));
        let cookie = vmmc_host::os::tcp::cookie(own.as_fd())?;
        let claim = SocketClaim { local, remote, interface: 0, cookie, descriptor: 0 };
        self.find(&claim)?.map(drop).ok_or(Errno::PROTONOSUPPORT)
    }

    /// The socket that a claim is about; none: there is no such one.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn find(&mut self, claim: &SocketClaim) -> Result<Option<KernelSocket>, Errno> {
        self.asked = self.asked.wrapping_add(1);
        rustix::net::send(&self.socket, &question(claim, self.asked), SendFlags::DONTWAIT)?;
        let mut message = [0u8; MESSAGE_BYTES];
        for _ in 0..MESSAGES {
            let (bytes, _, from) = rustix::net::recvfrom(&self.socket, &mut message, RecvFlags::DONTWAIT)?;
            if from.is_some_and(|from| !is_kernel(&from)) {
                continue;
            }
            match answer(&message[..bytes.min(MESSAGE_BYTES)], self.asked) {
                None => continue,
                Some(Ok(found)) => return Ok((found.cookie == claim.cookie).then_some(found)),
                Some(Err(Errno::NOENT)) => return Ok(None),
                Some(Err(errno)) => return Err(errno),
            }
        }
        Err(Errno::BADMSG)
    }
}

/// A question for just one socket.
fn question(claim: &SocketClaim, number: u32) -> [u8; QUESTION_BYTES] {
    let mut bytes = [0u8; QUESTION_BYTES];
    let mut at = 0;
    let mut put = |piece: &[u8]| {
        bytes[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    };
    put(&(QUESTION_BYTES as u32).to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&REQUEST.to_ne_bytes());
    put(&number.to_ne_bytes());
    put(&0u32.to_ne_bytes());
    // IPv4 in IPv6 clothes is found as what it is.
    let (local, remote) = (claim.local.ip().to_canonical(), claim.remote.ip().to_canonical());
    let family = if local.is_ipv4() && remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    put(&[family.as_raw() as u8, IPPROTO_TCP, 0, 0]);
    // Every state.
    put(&u32::MAX.to_ne_bytes());
    put(&claim.local.port().to_be_bytes());
    put(&claim.remote.port().to_be_bytes());
    for ip in [local, remote] {
        let mut field = [0u8; 16];
        match ip {
            IpAddr::V4(ip) if family == AddressFamily::INET => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V4(ip) => field = ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => field = ip.octets(),
        }
        put(&field);
    }
    put(&claim.interface.to_ne_bytes());
    put(&(claim.cookie as u32).to_ne_bytes());
    put(&((claim.cookie >> 32) as u32).to_ne_bytes());
    bytes
}

/// What a message says; none if it is no answer to this question.
fn answer(message: &[u8], number: u32) -> Option<Result<KernelSocket, Errno>> {
    let word = |at| word(message, at);
    let kind = half(message, 4)?;
    let bytes = usize::try_from(word(0)?).ok()?;
    if bytes > message.len() || word(8)? != number {
        return None;
    }
    match kind {
        ERROR => Some(Err(refusal(message))),
        BY_FAMILY if bytes >= ANSWER_BYTES => Some(Ok(KernelSocket {
            established: *message.get(HEAD_BYTES + 1)? == ESTABLISHED,
            cookie: u64::from(word(HEAD_BYTES + 44)?) | u64::from(word(HEAD_BYTES + 48)?) << 32,
            uid: word(HEAD_BYTES + 64)?,
            inode: word(HEAD_BYTES + 68)?,
        })),
        _ => None,
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::claim;
    use std::net::TcpStream;

    fn diag() -> Option<SocketDiag> {
        let tested = SocketDiag::open().and_then(|mut diag| diag.test().map(|()| diag));
        tested.map_err(|errno| println!("SKIP the kernel does not tell of TCP sockets: {errno}")).ok()
    }

    #[test]
    fn both_ends_of_a_connection_are_found_with_their_user_and_number() {
        let Some(mut diag) = diag() else { return };
        for (at, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let Ok(listener) = TcpListener::bind(at) else {
                println!("SKIP {at} cannot be bound: this machine has no such addresses");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let one = TcpStream::connect((to, port)).unwrap();
            let two = listener.accept().unwrap().0;
            for socket in [&one, &two] {
                let claim = claim(socket.as_fd()).unwrap();
                let found = diag.find(&claim).unwrap().expect("it is there");
                let stat = rustix::fs::fstat(socket).unwrap();
                assert_eq!((found.uid, u64::from(found.inode)), (stat.st_uid, stat.st_ino), "{claim:?}");
                assert!(found.established && found.cookie == claim.cookie);
                let strangers = [
                    SocketClaim { cookie: claim.cookie + 1_000_000, ..claim.clone() },
                    SocketClaim { cookie: u64::MAX, ..claim.clone() },
                    SocketClaim { remote: SocketAddr::new(claim.remote.ip(), 1), ..claim.clone() },
                ];
                for stranger in strangers {
                    let found = diag.find(&stranger).unwrap();
                    assert!(found.is_none_or(|found| !found.established), "{stranger:?}: {found:?}");
                }
            }
            drop(two);
            let ended = diag.find(&claim_of_ended(&one)).unwrap();
            assert!(ended.is_some_and(|found| !found.established));
        }
    }

    fn claim_of_ended(socket: &TcpStream) -> SocketClaim {
        SocketClaim {
            local: socket.local_addr().unwrap(),
            remote: socket.peer_addr().unwrap(),
            interface: 0,
            cookie: crate::cookie(socket.as_fd()).unwrap(),
            descriptor: 0,
        }
    }

    #[test]
    fn a_claim_about_a_connected_socket_leaves_nothing_that_keeps_it_open() {
        let Some(mut diag) = diag() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let two = listener.accept().unwrap().0;
        diag.find(&claim(one.as_fd()).unwrap()).unwrap().expect("it is there");
        drop(one);
        two.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        assert_eq!(std::io::Read::read(&mut &two, &mut [0]).unwrap(), 0, "the end came at once");
    }

    #[test]
    fn arbitrary_bytes_are_no_answer_or_an_honest_one() {
        let mut good = [0u8; ANSWER_BYTES];
        good[..4].copy_from_slice(&(ANSWER_BYTES as u32).to_ne_bytes());
        good[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        good[8..12].copy_from_slice(&7u32.to_ne_bytes());
        good[HEAD_BYTES + 1] = ESTABLISHED;
        good[HEAD_BYTES + 44..HEAD_BYTES + 52].copy_from_slice(&0x1_0000_0002u64.to_ne_bytes());
        good[HEAD_BYTES + 64..HEAD_BYTES + 68].copy_from_slice(&1000u32.to_ne_bytes());
        good[HEAD_BYTES + 68..].copy_from_slice(&99u32.to_ne_bytes());
        let honest = KernelSocket { established: true, uid: 1000, inode: 99, cookie: 0x1_0000_0002 };
        assert_eq!(answer(&good, 7), Some(Ok(honest)));
        assert_eq!(answer(&good, 8), None, "the answer to another question");
        for cut in 0..good.len() {
            assert_eq!(answer(&good[..cut], 7), None, "cut at {cut}");
        }
        let mut error = good;
        error[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        for (code, errno) in [(-2i32, Errno::NOENT), (0, Errno::BADMSG), (5, Errno::BADMSG), (i32::MIN, Errno::BADMSG)]
        {
            error[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&code.to_ne_bytes());
            assert_eq!(answer(&error, 7), Some(Err(errno)));
        }
        let mut rng = vmmc_utlb::Rng::new(1);
        let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut answers = [0; 3];
        for _ in 0..200_000 {
            let mut bytes = good;
            for _ in 0..rng.below(12) {
                let at = rng.index(bytes.len());
                bytes[at] = rng.next_u64() as u8;
            }
            let len = rng.index(bytes.len() + 1);
            for (bytes, number) in [(&bytes[..len], 7), (&bytes[..], word(&bytes, 8))] {
                match answer(bytes, number) {
                    Some(Ok(socket)) => {
                        let cookie =
                            u64::from(word(bytes, HEAD_BYTES + 44)) | u64::from(word(bytes, HEAD_BYTES + 48)) << 32;
                        assert_eq!((word(bytes, 8), socket.cookie), (number, cookie));
                        assert_eq!(socket.uid, word(bytes, HEAD_BYTES + 64));
                        answers[0] += 1;
                    }
                    Some(Err(errno)) => {
                        assert!(word(bytes, 8) == number && errno.raw_os_error() > 0, "{errno:?}");
                        answers[1] += 1;
                    }
                    None => answers[2] += 1,
                }
            }
        }
        assert!(answers[0] > 10_000 && answers[2] > 10_000, "{answers:?}");
    }
}
