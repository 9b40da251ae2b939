//! Rings eventfds that other processes hold too, and never waits.
//!
//! A plain write to an eventfd waits when its counter is full and `O_NONBLOCK` is not set. Every
//! holder can fill the counter and clear the flag, for both belong to the open file and not to the
//! descriptor, and no check before the write helps: the other one may do so in between. The
//! kernel's own way to signal an eventfd only adds and wakes. It is what reports the end of an
//! asynchronous read ([`io_submit(2)`], `IOCB_FLAG_RESFD`), so a ring is the end of a read of one
//! byte of our own memory. It refuses every descriptor that is no eventfd, so nothing is ever
//! written to a file, a pipe or a terminal that somebody handed in.
//!
//! Invariant: a read of a memfd ends within the call that begins it, so no request is ever under
//! way; results are taken before there is no room for more.
//!
//! [`io_submit(2)`]: https://man7.org/linux/man-pages/man2/io_submit.2.html

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Results that are taken at a time: a call for each ring would double what it costs.
const RESULTS: usize = 64;
/// Requests that the kernel is asked to have room for: twice as many, since it divides them among
/// the cores.
const REQUESTS: u32 = 2 * RESULTS as u32;

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// What rings; see the page of the module.
#[derive(Debug)]
pub struct Ringer {
    context: libc::c_ulong,
    memory: OwnedFd,
    /// Results that nobody has taken.
    waiting: AtomicU32,
}

impl Ringer {
    /// Sets up, and rings an eventfd of its own to see that it works.
    ///
    /// # Errors
    /// When the kernel has no asynchronous reads (`ENOSYS`), or does not let us.
    pub fn new() -> Result<Ringer, Errno> {
        let memory = rustix::fs::memfd_create("vmmc-ringer", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, 1)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the id of the context to `context`, which lives for the call.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS as libc::c_uint, &raw mut context) };
        if made != 0 {
            return Err(last_error());
        }
        let ringer = Ringer { context, memory, waiting: AtomicU32::new(0) };
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let own = rustix::event::eventfd(0, flags)?;
        ringer.ring(std::os::fd::AsFd::as_fd(&own))?;
        match rustix::io::read(&own, &mut [0; 8]) {
            Ok(8) => Ok(ringer),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Rings an eventfd. A full counter is a bell that rings already.
    ///
    /// # Errors
    /// `EINVAL` when the descriptor is no eventfd.
    pub fn ring(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.waiting.load(Ordering::Relaxed) as usize >= RESULTS {
            self.take_results();
        }
        match self.submit(eventfd) {
            // No room although the results were counted: others of this process have the context's
            // share of a core.
            Err(Errno::AGAIN) => {
                self.take_results();
                self.submit(eventfd)
            }
            other => other,
        }
    }

    fn submit(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut byte = 0u8;
        // SAFETY: a structure of numbers, for which zero is a value.
        let mut request: libc::iocb = unsafe { std::mem::zeroed() };
        request.aio_lio_opcode = IOCB_CMD_PREAD;
        request.aio_fildes = self.memory.as_raw_fd() as u32;
        request.aio_buf = (&raw mut byte).expose_provenance() as u64;
        request.aio_nbytes = 1;
        request.aio_flags = IOCB_FLAG_RESFD;
        request.aio_resfd = eventfd.as_raw_fd() as u32;
        let mut requests = [&raw mut request];
        // SAFETY: one pointer to one request, both alive for the call, and the context is ours. The
        // read of a byte of a memfd is over when the call returns, so the kernel writes to `byte`
        // at no later time.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, requests.as_mut_ptr()) };
        if submitted != 1 {
            return Err(last_error());
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn take_results(&self) {
        let mut results = [IoEvent::default(); RESULTS];
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let most = RESULTS as libc::c_long;
        loop {
            // SAFETY: the kernel writes at most `most` results to `results`, which has as many, and
            // reads the time; both live for the call. It does not wait for any.
            let taken = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.context,
                    0 as libc::c_long,
                    most,
                    results.as_mut_ptr(),
                    &raw const none,
                )
            };
            if taken < most {
                break;
            }
        }
        self.waiting.store(0, Ordering::Relaxed);
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and nothing is under way in it. In the child of a fork it is
        // not there, which the kernel says.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;
    use std::time::Duration;

    /// Runs `what` and fails if it is not over soon: a call that waits for a hostile holder never
    /// is.
    fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(what()));
        wait.recv_timeout(Duration::from_secs(20)).expect("it waits for whoever holds the descriptor")
    }

    #[test]
    fn a_bell_rings_as_often_as_it_is_rung() {
        let ringer = Ringer::new().unwrap();
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let times = 10 * RESULTS as u64;
        (0..times).for_each(|_| ringer.ring(bell.as_fd()).unwrap());
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(&bell, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), times);
    }

    #[test]
    fn whoever_fills_a_bell_and_makes_it_wait_holds_nobody_up() {
        in_time(|| {
            let ringer = Ringer::new().unwrap();
            let bell = eventfd(0, EventfdFlags::empty()).unwrap();
            rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            (0..1000).for_each(|_| ringer.ring(bell.as_fd()).unwrap());
            // It is as full as the kernel makes it, and its reader has all of that.
            let mut count = [0; 8];
            assert_eq!(rustix::io::read(&bell, &mut count), Ok(8));
            assert_eq!(u64::from_ne_bytes(count), u64::MAX);
            ringer.ring(bell.as_fd()).unwrap();
            assert_eq!(rustix::io::read(&bell, &mut count), Ok(8));
            assert_eq!(u64::from_ne_bytes(count), 1);
        });
    }

    #[test]
    fn an_event_loop_hears_each_ring_of_a_bell_that_nobody_reads() {
        use rustix::event::epoll;
        let ringer = Ringer::new().unwrap();
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&set, &bell, epoll::EventData::new_u64(1), epoll::EventFlags::IN | epoll::EventFlags::ET).unwrap();
        for _ in 0..3 {
            let mut events = Vec::with_capacity(4);
            let now = rustix::event::Timespec::default();
            assert_eq!(epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&now)), Ok(0));
            ringer.ring(bell.as_fd()).unwrap();
            assert_eq!(epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&now)), Ok(1));
        }
    }

    #[test]
    fn nothing_is_written_to_what_is_no_eventfd() {
        in_time(|| {
            let ringer = Ringer::new().unwrap();
            let (read, write) = rustix::pipe::pipe().unwrap();
            let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
            other.set_nonblocking(true).unwrap();
            let file = rustix::fs::memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
            for fd in [write.as_fd(), read.as_fd(), socket.as_fd(), file.as_fd()] {
                assert_eq!(ringer.ring(fd), Err(Errno::INVAL));
            }
            assert_eq!(rustix::io::ioctl_fionread(&read), Ok(0));
            assert!(std::io::Read::read(&mut &other, &mut [0]).is_err());
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 0);
        });
    }
}
