//! Control sockets: Unix seqpacket, whole messages, descriptors beside them, the kernel vouching
//! for who is on the other side.
//!
//! Invariant: a message arrives whole or not at all; no call waits longer than its deadline. Names
//! are abstract, so a killed process leaves no file, and are scoped by network namespace, which is
//! the scope of a TCP port.

use crate::clock::Nanos;
use crate::limits::{CONNECT_NAP, CONNECT_TIME, CONTROL_BACKLOG, CONTROL_BYTES_MAX, CONTROL_FDS_MAX};
use crate::wait::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A connected control socket.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

/// A control socket that takes connections.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

/// Who is on the other side, said by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id, 0 if it cannot be seen from here (another pid namespace).
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A message, and all that came with it.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub bytes: Vec<u8>,
    /// Descriptors.
    pub fds: Vec<OwnedFd>,
    /// Whether these are all that were sent.
    pub fate: Fate,
}

/// What became of the descriptors of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They are all there.
    Whole,
    /// They are all there, and more than a message may bring.
    TooMany,
    /// This process can have no more: some are missing. [`Channel::try_receive_all`] has left the
    /// message where it was, and next time finds it again.
    Left,
}

/// Descriptors that the kernel lets pass with one message.
const KERNEL_FDS_MAX: usize = 253;

thread_local! {
    /// Room for a message that is received.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Why a control socket call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The other side closed, or died.
    #[error("the other side of the control socket is gone")]
    Closed,
    /// The deadline passed.
    #[error("nothing came before the deadline")]
    TimedOut,
    /// Nothing is there now (calls that do not wait).
    #[error("nothing is there now")]
    WouldBlock,
    /// Too large for one message.
    #[error("a control message of {bytes} bytes exceeds the {CONTROL_BYTES_MAX} that fit")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Descriptors that came with a message are lost: there were more than fit, or this process can
    /// have no more.
    #[error(
        "descriptors that came with a control message are lost: more than {CONTROL_FDS_MAX} came, or this process has as many open as it may; raise its limit (`ulimit -n`)"
    )]
    DescriptorsLost,
    /// Somebody listens, and takes no connection now.
    #[error("whoever listens under the name {name:?} takes no connection: too many wait already; try again")]
    Busy {
        /// The abstract name.
        name: String,
    },
    /// Nobody listens under this name.
    #[error("nobody listens under the name {name:?}")]
    NoListener {
        /// The abstract name.
        name: String,
    },
    /// Somebody listens there already.
    #[error("the name {name:?} is taken by a running node")]
    NameTaken {
        /// The abstract name.
        name: String,
    },
    /// The kernel refused.
    #[error("{call} failed: {errno}")]
    System {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

fn system(call: &'static str) -> impl Fn(Errno) -> ChannelError {
    move |errno| match errno {
        Errno::AGAIN => ChannelError::WouldBlock,
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => ChannelError::Closed,
        errno => ChannelError::System { call, errno },
    }
}

impl Channel {
    /// Two connected ends in one process.
    pub fn pair() -> Result<(Channel, Channel), ChannelError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(system("socketpair"))?;
        Ok((Channel { fd: a }, Channel { fd: b }))
    }

    /// Connects to an abstract name. While as many wait there already as the kernel lets wait,
    /// tries again for some seconds.
    pub fn connect(name: &str) -> Result<Channel, ChannelError> {
        Channel::connect_until(name, Deadline::after(CONNECT_TIME))
    }

    /// The same, with a deadline of the caller's.
    pub fn connect_until(name: &str, deadline: Deadline) -> Result<Channel, ChannelError> {
        loop {
            match Channel::try_connect(name) {
                Err(ChannelError::Busy { .. }) if deadline.left(Nanos::monotonic()).is_some() => {
                    std::thread::sleep(CONNECT_NAP);
                }
                other => return other,
            }
        }
    }

    /// Connects to an abstract name; does not wait ([`ChannelError::Busy`] when too many wait
    /// already).
    pub fn try_connect(name: &str) -> Result<Channel, ChannelError> {
        let fd = socket()?;
        let address = abstract_address(name)?;
        match rustix::net::connect(&fd, &address) {
            Ok(()) => Ok(Channel { fd }),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Err(ChannelError::NoListener { name: name.into() }),
            // Not "nobody is there": the queue of those who wait to be taken is full.
            Err(Errno::AGAIN) => Err(ChannelError::Busy { name: name.into() }),
            Err(errno) => Err(system("connect")(errno)),
        }
    }

    /// Wraps a descriptor that came over another channel.
    pub fn from_fd(fd: OwnedFd) -> Channel {
        Channel { fd }
    }

    /// Gives the descriptor away.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Sends one message; does not wait ([`ChannelError::WouldBlock`] when the socket is full).
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        if bytes.len() > CONTROL_BYTES_MAX {
            return Err(ChannelError::TooLarge { bytes: bytes.len() });
        }
        assert!(fds.len() <= CONTROL_FDS_MAX, "more descriptors than a message may carry");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CONTROL_FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "the space was sized for them");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut ancillary, flags).map_err(system("sendmsg"))?;
        Ok(())
    }

    /// Sends one message, waiting for room until the deadline.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], deadline: Deadline) -> Result<(), ChannelError> {
        loop {
            match self.try_send(bytes, fds) {
                Err(ChannelError::WouldBlock) => self.wait(PollFlags::OUT, deadline)?,
                other => return other,
            }
        }
    }

    /// Receives one message and its descriptors; does not wait. A message whose descriptors did not
    /// all come is [`ChannelError::DescriptorsLost`], and those that came are closed.
    pub fn try_receive(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), ChannelError> {
        match self.receive_by(RecvFlags::empty())? {
            Received { bytes, fds, fate: Fate::Whole } => Ok((bytes, fds)),
            Received { .. } => Err(ChannelError::DescriptorsLost),
        }
    }

    /// As [`try_receive`](Self::try_receive), from somebody who is not trusted: the kernel never
    /// has the last copy of a descriptor to close, which could wait for as long as the sender
    /// likes. A message is looked at first, which makes copies of its descriptors, and taken from
    /// the queue only when all of them are there; else it is [left](Fate::Left) in the queue.
    pub fn try_receive_all(&self) -> Result<Received, ChannelError> {
        let mut received = self.receive_by(RecvFlags::PEEK)?;
        let mut byte = [0u8];
        // Without room for descriptors: the kernel drops its references, and ours remain.
        if received.fate != Fate::Left && rustix::net::recv(&self.fd, &mut byte[..], RecvFlags::DONTWAIT).is_err() {
            received.fate = Fate::Left;
        }
        Ok(received)
    }

    fn receive_by(&self, how: RecvFlags) -> Result<Received, ChannelError> {
        // A buffer that another message had before need not be zeroed again, which takes longer
        // than the system call. A signal handler that receives meanwhile, or a thread whose locals
        // are gone, makes a new one.
        let mut bytes = ROOM.try_with(Cell::take).unwrap_or_default();
        bytes.resize(CONTROL_BYTES_MAX, 0);
        let received = self.receive_into(&mut bytes, how);
        let _ = ROOM.try_with(|room| room.set(bytes));
        received
    }

    fn receive_into(&self, room: &mut [u8], how: RecvFlags) -> Result<Received, ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = how | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(room)], &mut ancillary, flags)
            .map_err(system("recvmsg"))?;
        let mut fds = Vec::new();
        for item in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = item {
                fds.extend(rights);
            }
        }
        let lost = message.flags.contains(ReturnFlags::CTRUNC);
        if message.bytes == 0 && fds.is_empty() && !lost {
            return Err(ChannelError::Closed);
        }
        if message.flags.contains(ReturnFlags::TRUNC) && fds.is_empty() && !lost {
            return Err(ChannelError::TooLarge { bytes: CONTROL_BYTES_MAX + 1 });
        }
        // What was cut short, or says nothing, is no message, whatever it brought: nobody can
        // decode it.
        let len = if message.flags.contains(ReturnFlags::TRUNC) { 0 } else { message.bytes };
        let fate = match (lost, fds.len()) {
            (true, _) => Fate::Left,
            (false, ..=CONTROL_FDS_MAX) => Fate::Whole,
            (false, _) => Fate::TooMany,
        };
        Ok(Received { bytes: room[..len].to_vec(), fds, fate })
    }

    /// Takes nothing more from the other side; what it sends fails there.
    pub fn stop_receiving(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read);
    }

    /// Receives one message and its descriptors, waiting until the deadline.
    pub fn receive(&self, deadline: Deadline) -> Result<(Vec<u8>, Vec<OwnedFd>), ChannelError> {
        loop {
            match self.try_receive() {
                Err(ChannelError::WouldBlock) => self.wait(PollFlags::IN, deadline)?,
                other => return other,
            }
        }
    }

    /// Who made the connection.
    pub fn peer(&self) -> Result<PeerCredentials, ChannelError> {
        // Not rustix's call: its process ids cannot be 0, which is what the kernel says of a
        // process in a pid namespace that this one does not see.
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: the descriptor is open as long as `self` is borrowed; `found` and `len` are ours
        // alone, and the kernel writes at most `len` bytes to `found`, which is so large and of
        // which every bit pattern is a value.
        let done =
            unsafe { libc::getsockopt(self.fd.as_raw_fd(), level, option, (&raw mut found).cast(), &raw mut len) };
        if done != 0 {
            let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
            return Err(system("SO_PEERCRED")(errno));
        }
        Ok(PeerCredentials { pid: found.pid.max(0) as u32, uid: found.uid, gid: found.gid })
    }

    /// Ends both directions, so that a thread that waits on either side sees the end.
    pub fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Whether the other side has taken all that was sent to it, descriptors included; so it has
    /// when nobody holds that side any more.
    pub fn is_all_taken(&self) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open as long as `self` is borrowed; the kernel writes one
        // `int`, to a variable that is ours alone.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        // The call knows every local socket, so it does not fail.
        bytes == 0
    }

    fn wait(&self, what: PollFlags, deadline: Deadline) -> Result<(), ChannelError> {
        wait_fd(self.fd.as_fd(), what, deadline).map(drop)
    }
}

/// Waits until a descriptor is ready or the deadline has passed.
pub(crate) fn wait_fd(fd: BorrowedFd<'_>, what: PollFlags, deadline: Deadline) -> Result<PollFlags, ChannelError> {
    loop {
        let now = Nanos::monotonic();
        let left = deadline.left(now).ok_or(ChannelError::TimedOut)?;
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = [PollFd::from_borrowed_fd(fd, what)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => return Ok(fds[0].revents()),
            Err(errno) => return Err(system("poll")(errno)),
        }
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.fd
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> OwnedFd {
        listener.fd
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Listener {
    /// Takes an abstract name and listens.
    pub fn bind(name: &str) -> Result<Listener, ChannelError> {
        let listener = Listener::reserve(name)?;
        listener.listen()?;
        Ok(listener)
    }

    /// Takes an abstract name. Nobody can connect before [`Listener::listen`], so a client that can
    /// connect has found a server that is ready.
    pub fn reserve(name: &str) -> Result<Listener, ChannelError> {
        let fd = socket()?;
        match rustix::net::bind(&fd, &abstract_address(name)?) {
            Ok(()) => Ok(Listener { fd }),
            Err(Errno::ADDRINUSE) => Err(ChannelError::NameTaken { name: name.into() }),
            Err(errno) => Err(system("bind")(errno)),
        }
    }

    /// From now on connections wait for [`Listener::accept`].
    pub fn listen(&self) -> Result<(), ChannelError> {
        rustix::net::listen(&self.fd, CONTROL_BACKLOG).map_err(system("listen"))
    }

    /// Takes a connection if one waits.
    pub fn accept(&self) -> Result<Channel, ChannelError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::accept_with(&self.fd, flags).map(|fd| Channel { fd }).map_err(system("accept"))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn socket() -> Result<OwnedFd, ChannelError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(system("socket"))
}

fn abstract_address(name: &str) -> Result<SocketAddrUnix, ChannelError> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(system("abstract name"))
}

/// Abstract name of the control socket of a user's node.
pub fn node_socket_name(uid: u32, node: &str) -> String {
    format!("vmmc/{uid}/{node}")
}

/// The process that listens under the name of a user's node; none: nobody does, or it takes no
/// connection now. Anybody can take an abstract name, so without this check a stranger is trusted.
pub fn holder_of_node(uid: u32, node: &str) -> Option<PeerCredentials> {
    Channel::try_connect(&node_socket_name(uid, node)).ok()?.peer().ok()
}

/// Nodes that listen in this network namespace, or are about to: (user id, name), from the kernel's
/// list of Unix sockets.
pub fn listening_nodes() -> Vec<(u32, String)> {
    let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut nodes: Vec<(u32, String)> = text
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix("@vmmc/"))
        .filter_map(|rest| rest.split_once('/').and_then(|(uid, name)| Some((uid.parse().ok()?, name.to_string()))))
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(10))
    }

    #[test]
    fn messages_and_descriptors_pass_whole() {
        let (a, b) = Channel::pair().unwrap();
        let region = crate::Region::create(4096).unwrap();
        region.write(0, b"shared").unwrap();
        let fd = region.share().unwrap();
        a.send(b"first", &[fd.as_fd()], soon()).unwrap();
        a.send(b"second", &[], soon()).unwrap();
        let (bytes, mut fds) = b.receive(soon()).unwrap();
        assert_eq!((&bytes[..], fds.len()), (&b"first"[..], 1));
        let mapped = crate::Region::map(fds.remove(0), 4096, crate::Protection::ReadOnly).unwrap();
        let mut got = [0; 6];
        mapped.read(0, &mut got).unwrap();
        assert_eq!(&got, b"shared");
        assert_eq!(b.receive(soon()).unwrap().0, b"second");
    }

    #[test]
    fn a_passed_deadline_and_a_closed_end_are_told_apart() {
        let (a, b) = Channel::pair().unwrap();
        assert_eq!(b.receive(Deadline::after(Duration::from_millis(1))).unwrap_err(), ChannelError::TimedOut);
        drop(a);
        assert_eq!(b.receive(soon()).unwrap_err(), ChannelError::Closed);
    }

    #[test]
    fn a_name_has_one_listener_and_connections_know_who_they_are() {
        let name = format!("vmmc-test/{}", std::process::id());
        assert!(matches!(Channel::connect(&name), Err(ChannelError::NoListener { .. })));
        let listener = Listener::reserve(&name).unwrap();
        assert!(matches!(Listener::bind(&name), Err(ChannelError::NameTaken { .. })));
        assert!(matches!(Channel::connect(&name), Err(ChannelError::NoListener { .. })), "it is not ready");
        listener.listen().unwrap();
        let client = Channel::connect(&name).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(server.peer().unwrap().pid, std::process::id());
        assert!(client.try_send(&vec![0; CONTROL_BYTES_MAX + 1], &[]).is_err());
    }

    #[test]
    fn a_message_that_lost_descriptors_is_an_error_and_leaves_none_open() {
        let (a, b) = Channel::pair().unwrap();
        let (probe, kept) = Channel::pair().unwrap();
        let many = [kept.as_fd(); 3 * CONTROL_FDS_MAX];
        for count in [CONTROL_FDS_MAX + 1, many.len()] {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3 * CONTROL_FDS_MAX))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many[..count])));
            rustix::net::sendmsg(&a, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
            assert_eq!(b.try_receive().unwrap_err(), ChannelError::DescriptorsLost, "{count}");
        }
        drop(kept);
        assert_eq!(probe.receive(soon()).unwrap_err(), ChannelError::Closed, "a copy is still open");
        a.send(b"y", &[], soon()).unwrap();
        let received = b.try_receive_all().unwrap();
        assert_eq!((&received.bytes[..], received.fds.len(), received.fate), (&b"y"[..], 0, Fate::Whole));
    }

    #[test]
    fn whatever_a_message_brings_is_taken_with_it() {
        let (a, b) = Channel::pair().unwrap();
        let (probe, kept) = Channel::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CONTROL_FDS_MAX + 1))];
        let many = [kept.as_fd(); CONTROL_FDS_MAX + 1];
        for (bytes, count, fate) in [(&b"x"[..], 1, Fate::Whole), (b"", 2, Fate::Whole), (b"", 9, Fate::TooMany)] {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many[..count])));
            rustix::net::sendmsg(&a, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).unwrap();
            let received = b.try_receive_all().unwrap();
            assert_eq!((&received.bytes[..], received.fds.len(), received.fate), (bytes, count, fate));
            assert_eq!(b.try_receive_all().unwrap_err(), ChannelError::WouldBlock, "it is still in the queue");
        }
        drop(kept);
        assert_eq!(probe.try_receive().unwrap_err(), ChannelError::Closed);
    }

    #[test]
    fn who_finds_the_queue_full_is_told_so_or_waits() {
        let name = format!("vmmc-test-full/{}", std::process::id());
        let listener = Listener::reserve(&name).unwrap();
        rustix::net::listen(&listener.fd, 1).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match Channel::try_connect(&name) {
                Ok(channel) => waiting.push(channel),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, ChannelError::Busy { .. }), "{full}");
        let late = Channel::connect_until(&name, Deadline::after(Duration::from_millis(20)));
        assert!(matches!(late, Err(ChannelError::Busy { .. })));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| Channel::connect_until(&name, soon()).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished());
            listener.accept().unwrap();
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_process_that_cannot_be_seen_from_here_has_process_id_0() {
        const TEST: &str = "channel::tests::a_process_that_cannot_be_seen_from_here_has_process_id_0";
        if let Ok(name) = std::env::var("VMMC_TEST_OUTSIDE") {
            // We are in a pid namespace of our own, and the peer is outside.
            let peer = Channel::connect(&name).unwrap().peer().unwrap();
            assert_eq!(peer.pid, 0);
            assert!(crate::process::ProcessWatch::open(peer.pid).is_none());
            return;
        }
        let name = format!("vmmc-test-outside/{}", std::process::id());
        let _listener = Listener::bind(&name).unwrap();
        let mut inside = std::process::Command::new("unshare");
        inside.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap()).args(["--exact", TEST]);
        match inside.env("VMMC_TEST_OUTSIDE", &name).output() {
            Ok(done) if done.status.success() => {}
            Ok(done) if String::from_utf8_lossy(&done.stderr).contains("unshare failed") => {
                println!("SKIP: a pid namespace needs root");
            }
            Ok(done) => panic!("{}", String::from_utf8_lossy(&done.stdout)),
            Err(e) => println!("SKIP: unshare cannot be run: {e}"),
        }
    }

    #[test]
    fn a_listening_node_is_listed() {
        let name = format!("listed-{}", std::process::id());
        let _listener = Listener::reserve(&node_socket_name(4_000_000, &name)).unwrap();
        assert!(listening_nodes().contains(&(4_000_000, name)));
    }
}
