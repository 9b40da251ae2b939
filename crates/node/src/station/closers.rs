//! Descriptors of clients are closed where nobody waits for it.
//!
//! Closing can wait for a client: a TCP socket that lingers waits for its peer, a file of a user's own file system (FUSE) for whoever serves it, a terminal for its drain. So
//! what a client gives is sorted as it comes, by calls that only ask the kernel. Memory (what has seals), event counters and pipes are closed by anybody. A socket is lent:
//! the node works with a copy, and the last one is closed by a thread of that user. Anything else is closed there unseen.
//!
//! Invariant: the thread that serves everybody never closes the last copy of a descriptor whose closing may wait.

use crate::limits::{CLOSER_IDLE, UNCLOSED_MAX};
use rustix::fs::{OFlags, fcntl_get_seals, readlink};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// A thread for each user that has brought such descriptors lately: one that waits holds up no other user's.
#[derive(Default)]
pub(super) struct Closers {
    users: HashMap<u32, Closer>,
}

struct Closer {
    queue: Sender<Unclosed>,
    count: Arc<AtomicUsize>,
}

/// A descriptor under way to be closed.
struct Unclosed {
    fd: Option<OwnedFd>,
    count: Arc<AtomicUsize>,
}

impl Drop for Unclosed {
    fn drop(&mut self) {
        drop(self.fd.take());
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Descriptors of one message.
#[derive(Default)]
pub(super) struct Given {
    /// What the node may work with, and drop.
    pub(super) fds: Vec<OwnedFd>,
    /// To be closed elsewhere, after the call.
    pub(super) lent: Vec<OwnedFd>,
    /// One of them was of no kind that a call takes.
    pub(super) strange: bool,
}

/// Sorts what came with a message.
pub(super) fn sort(fds: Vec<OwnedFd>) -> Given {
    let mut given = Given::default();
    for fd in fds {
        match kind(&fd) {
            Kind::Harmless => given.fds.push(fd),
            Kind::Socket => match fd.try_clone() {
                Ok(copy) => {
                    given.fds.push(copy);
                    given.lent.push(fd);
                }
                Err(_) => {
                    given.strange = true;
                    given.lent.push(fd);
                }
            },
            Kind::Strange => {
                given.strange = true;
                given.lent.push(fd);
            }
        }
    }
    given
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Harmless,
    Socket,
    Strange,
}

fn kind(fd: &OwnedFd) -> Kind {
    if fcntl_get_seals(fd).is_ok() {
        return Kind::Harmless;
    }
    // The kernel's name for it. A path says nothing of what is behind it, so that is strange.
    let name = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    let name = name.map(|name| name.into_bytes()).unwrap_or_default();
    let path_only = rustix::fs::fcntl_getfl(fd).map_or(true, |flags| flags.contains(OFlags::PATH));
    if path_only {
        Kind::Strange
    } else if name.starts_with(b"socket:") {
        Kind::Socket
    } else if name.starts_with(b"pipe:") || name == b"anon_inode:[eventfd]" {
        Kind::Harmless
    } else {
        Kind::Strange
    }
}

impl Closers {
    /// Closes what a user gave, later.
    pub(super) fn close(&mut self, uid: u32, fds: Vec<OwnedFd>) {
        for fd in fds {
            let closer = self.users.entry(uid).or_insert_with(Closer::new);
            closer.count.fetch_add(1, Ordering::Relaxed);
            let unclosed = Unclosed { fd: Some(fd), count: closer.count.clone() };
            if let Err(back) = closer.queue.send(unclosed) {
                // The thread has ended for want of work.
                let again = Closer { count: closer.count.clone(), ..Closer::new() };
                // Should no thread be had, the descriptor is closed here, with the queue.
                let _ = again.queue.send(back.0);
                *closer = again;
            }
        }
        self.users.retain(|_, closer| closer.count.load(Ordering::Relaxed) > 0);
    }

    /// Whether so much of what a user gave cannot be closed that nothing more is taken from it.
    pub(super) fn is_stuck(&self, uid: u32) -> bool {
        self.users.get(&uid).is_some_and(|closer| closer.count.load(Ordering::Relaxed) >= UNCLOSED_MAX)
    }
}

impl Closer {
    fn new() -> Closer {
        let (queue, work) = channel();
        let _ = std::thread::Builder::new().name("vmmc-closer".into()).spawn(move || run(&work));
        Closer { queue, count: Arc::default() }
    }
}

fn run(work: &Receiver<Unclosed>) {
    loop {
        match work.recv_timeout(CLOSER_IDLE) {
            Ok(unclosed) => drop(unclosed),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    #[test]
    fn descriptors_are_sorted_by_what_closing_them_may_wait_for() {
        let of = |fd: OwnedFd| kind(&fd);
        assert_eq!(of(vmmc_host::Region::create(4096).unwrap().share().unwrap()), Kind::Harmless);
        assert_eq!(of(rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap()), Kind::Harmless);
        assert_eq!(of(rustix::pipe::pipe().unwrap().1), Kind::Harmless);
        assert_eq!(of(vmmc_host::Channel::pair().unwrap().0.into_fd()), Kind::Socket);
        assert_eq!(of(std::fs::File::open("/dev/null").unwrap().into()), Kind::Strange);
        let path = rustix::fs::open("/", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(of(path), Kind::Strange);
    }

    /// A connected socket whose closing waits: it lingers, and its peer reads nothing.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        ours.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &ours, &[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(ours.as_fd(), Some(Duration::from_secs(60))).unwrap();
        (ours.into(), theirs)
    }

    #[test]
    fn a_socket_that_lingers_holds_up_nobody_but_its_own_user() {
        let (fd, peer) = lingering();
        let mut closers = Closers::default();
        let start = Instant::now();
        let given = sort(vec![fd]);
        assert_eq!((given.fds.len(), given.lent.len(), given.strange), (1, 1, false));
        drop(given.fds);
        closers.close(1, given.lent);
        let (other, _ours) = vmmc_host::Channel::pair().unwrap();
        closers.close(2, vec![other.into_fd()]);
        assert!(start.elapsed() < Duration::from_secs(5), "closing waited {:?}", start.elapsed());
        let one = closers.users[&1].count.clone();
        while closers.users.get(&2).is_some_and(|c| c.count.load(Ordering::Relaxed) > 0) {
            assert!(start.elapsed() < Duration::from_secs(20), "the other user's descriptor is still open");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(one.load(Ordering::Relaxed), 1, "it lingers");
        drop(peer);
        while one.load(Ordering::Relaxed) > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "it is still open");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
