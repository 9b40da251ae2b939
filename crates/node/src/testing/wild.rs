//! What hostile tests share: a seed, descriptors of every kind, other users, and checks of a daemon
//! from outside.
//!
//! A run is identified by its seed (`SEED=n`), and takes as long as `VMMC_HOSTILE_SECONDS` says, or
//! some seconds. Included by path where it is needed; it depends on `vmmc-host`, `vmmc-utlb` and
//! `rustix` alone.
//!
//! Invariant: what a test does as another user it does in a thread of its own, which ends with it,
//! so the rest of the process stays what it was.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::collections::VecDeque;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use vmmc_utlb::Rng;

/// Two users that have nothing: no files, no processes, most likely no names.
pub(crate) const HONEST: u32 = 4_242_001;
pub(crate) const HOSTILE: u32 = 4_242_002;

/// Wild choices and numbers from a seed.
pub(crate) struct Noise(Rng);

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise(Rng::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Small, close to a power of two, or anything.
    pub(crate) fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.next() % 10,
            1 => (1u64 << (self.next() % 64)).wrapping_add(self.next() % 3).wrapping_sub(1),
            2 => (self.next() % 64) * 4096,
            _ => self.next(),
        }
    }
}

/// The seed of this run, printed so that it can be replayed.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or(1);
    println!("replay with SEED={seed}");
    seed
}

/// How long a generator runs.
pub(crate) fn hostile_time() -> Duration {
    let given = std::env::var("VMMC_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(4))
}

/// Whether the test can be another user; says so if not.
pub(crate) fn can_be_others() -> bool {
    let can = rustix::process::geteuid().is_root();
    if !can {
        println!("SKIP: acting as other users needs root");
    }
    can
}

/// Runs this in a thread that is another user.
pub(crate) fn as_user<T: Send>(uid: u32, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_user(uid);
            run()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes the calling thread another user, for good.
pub(crate) fn become_user(uid: u32) {
    let (user, group) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(uid));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(group, group, group).unwrap();
    set_thread_res_uid(user, user, user).unwrap();
}

/// What it is, and how it is made.
type Kind = (&'static str, fn(&mut Noise) -> Option<OwnedFd>);

/// A descriptor of some kind, and which. What cannot be made here is something else instead.
pub(crate) fn descriptor(noise: &mut Noise) -> (&'static str, OwnedFd) {
    let kinds: [Kind; 24] = [
        ("sealed memory", |n| memory(n, true, MemfdFlags::ALLOW_SEALING)),
        ("sealed memory, private", |n| {
            let fd = memory(n, true, MemfdFlags::ALLOW_SEALING)?;
            rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).ok().map(|()| fd)
        }),
        ("a region", |n| vmmc_host::Region::create(4096 * (1 + n.next() % 4)).ok()?.share().ok()),
        ("a region for readers", |_| vmmc_host::Region::create(4096).ok()?.share_read_only().ok()),
        ("unsealed memory", |n| memory(n, false, MemfdFlags::ALLOW_SEALING)),
        ("memory that takes no seals", |n| memory(n, false, MemfdFlags::empty())),
        ("huge pages", |n| memory(n, true, MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB)),
        ("a hole of a tebibyte", |_| sealed(memfd(MemfdFlags::ALLOW_SEALING)?, 1 << 40)),
        ("memory with holes", |_| {
            let fd = memfd(MemfdFlags::ALLOW_SEALING)?;
            rustix::io::pwrite(&fd, b"x", 5 * 4096).ok()?;
            sealed(fd, 16 * 4096)
        }),
        ("an event counter", |_| eventfd(0, EventfdFlags::empty()).ok()),
        ("a full event counter that blocks", |_| full_counter(EventfdFlags::empty())),
        ("a full event counter", |_| full_counter(EventfdFlags::NONBLOCK)),
        ("a semaphore", |_| eventfd(3, EventfdFlags::SEMAPHORE).ok()),
        ("an empty pipe", |_| rustix::pipe::pipe().ok().map(|(read, _)| read)),
        ("a full pipe that blocks", |_| full_pipe()),
        ("a local socket", |_| vmmc_host::Channel::pair().ok().map(|(one, _)| one.into_fd())),
        ("a connection", |_| connection(None)),
        // Rarely: the process that closes the last copy of it waits, and that may be this one.
        ("a connection that lingers", |n| if n.one_in(20) { connection(Some(Duration::from_secs(1))) } else { None }),
        ("a datagram socket", |_| UdpSocket::bind("127.0.0.1:0").ok().map(OwnedFd::from)),
        ("nothing", |_| open("/dev/null", OFlags::RDWR)),
        ("a file of proc", |n| open(n.pick(&["/proc/self/mem", "/proc/self/maps", "/proc/version"]), OFlags::RDONLY)),
        ("a place", |_| open("/", OFlags::PATH)),
        ("a folder", |_| open("/", OFlags::RDONLY | OFlags::DIRECTORY)),
        ("an event set", |_| rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).ok()),
    ];
    loop {
        let (name, make) = kinds[noise.below(kinds.len())];
        if let Some(fd) = make(noise) {
            return (name, fd);
        }
    }
}

fn memfd(flags: MemfdFlags) -> Option<OwnedFd> {
    memfd_create("wild", flags | MemfdFlags::CLOEXEC).ok()
}

fn sealed(fd: OwnedFd, len: u64) -> Option<OwnedFd> {
    rustix::fs::ftruncate(&fd, len).ok()?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).ok()?;
    Some(fd)
}

fn memory(noise: &mut Noise, seal: bool, flags: MemfdFlags) -> Option<OwnedFd> {
    let huge = flags.contains(MemfdFlags::HUGETLB);
    let len = if huge { 2 << 20 } else { 4096 * (1 + noise.next() % 8) };
    let fd = memfd(flags)?;
    rustix::fs::ftruncate(&fd, len).ok()?;
    if !huge && noise.one_in(2) {
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len).ok()?;
    }
    if seal { sealed(fd, len) } else { Some(fd) }
}

fn full_counter(flags: EventfdFlags) -> Option<OwnedFd> {
    let fd = eventfd(0, flags).ok()?;
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).ok()?;
    Some(fd)
}

/// The write end; the read end is leaked into it, so that it neither breaks nor empties.
fn full_pipe() -> Option<OwnedFd> {
    let (read, write) = rustix::pipe::pipe().ok()?;
    rustix::pipe::fcntl_setpipe_size(&write, 4096).ok()?;
    rustix::fs::fcntl_setfl(&write, OFlags::NONBLOCK).ok()?;
    while rustix::io::write(&write, &[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&write, OFlags::empty()).ok()?;
    drop(read);
    Some(write)
}

/// A connected socket; one that lingers has more to say than its peer, which is gone from our table
/// but reads nothing, takes.
pub(crate) fn connection(lingers: Option<Duration>) -> Option<OwnedFd> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    if lingers.is_some() {
        // Buffers that are soon full; the one that connects to it inherits its own.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).ok()?;
    }
    let ours = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    if lingers.is_some() {
        // The peer stays in the queue of a listener that nobody closes while the socket lingers.
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).ok()?;
        ours.set_nonblocking(true).ok()?;
        while (&ours).write(&[0; 1 << 16]).is_ok() {}
        ours.set_nonblocking(false).ok()?;
        rustix::net::sockopt::set_socket_linger(ours.as_fd(), lingers).ok()?;
        keep(listener);
    }
    Some(ours.into())
}

/// Keeps the last listeners open; what is in the queue of an earlier one has lingered.
fn keep(listener: TcpListener) {
    static KEPT: Mutex<VecDeque<TcpListener>> = Mutex::new(VecDeque::new());
    let mut kept = KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    kept.push_back(listener);
    if kept.len() > LISTENERS_MAX {
        kept.pop_front();
    }
}

/// Lets a socket linger no longer: it was not given away, and closing it is ours.
pub(crate) fn calm(socket: impl AsFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, None);
}

/// Most listeners with a connection that lingers.
const LISTENERS_MAX: usize = 10_000;
/// Most descriptors that the kernel lets pass with one message.
pub(crate) const FDS_MAX: usize = 253;

/// Sends a message as the kernel allows it, not as the protocol does: of no bytes, with up to
/// [`FDS_MAX`] descriptors.
pub(crate) fn send_wild(to: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    }
    sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

fn open(path: &str, flags: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// How many descriptors a process has. The kernel (6.2) says it as the size of their folder.
/// Reading that folder holds each file for a moment: the reader may find itself with the last copy
/// of one that lingers, and wait for that.
pub(crate) fn descriptors_of(pid: u32) -> usize {
    let folder = format!("/proc/{pid}/fd");
    match std::fs::metadata(&folder).map_or(0, |folder| folder.len()) {
        0 => std::fs::read_dir(folder).map_or(0, Iterator::count),
        count => count as usize,
    }
}

/// A daemon as a child process, seen from outside.
pub(crate) struct Watched(pub(crate) Child);

impl Watched {
    /// Starts `binary` with these options; `limit` is a bound on its descriptors.
    pub(crate) fn start(binary: &str, args: Vec<String>, limit: Option<u32>) -> Watched {
        let mut command = match limit {
            None => Command::new(binary),
            Some(limit) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\""), binary]);
                shell
            }
        };
        Watched(command.args(args).stdout(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Memory that is in use, KiB, and that of other processes that it maps left out.
    pub(crate) fn memory_kib(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn descriptors(&self) -> usize {
        descriptors_of(self.0.id())
    }

    /// Processor time so far, in ticks of 10 ms.
    pub(crate) fn ticks(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = text.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It may have ended; then that is what the test found.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
