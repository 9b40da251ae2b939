//! What the owners of a stream and its driver share: the socket, the connection, and who waits.
//!
//! Invariant: as in [`super`]. While the connection is plain the reactor alone tells of bytes and
//! room, as for any socket of tokio's, and no call is made before it did. Once it is upgraded the
//! ring is looked at first. Whoever holds the last reference closes the connection, so no call uses
//! a slot that was given back. Source: [NT §4].

use super::driver::Driver;
use super::signal::Slot;
use crate::connection::{Connection, KernelCall};
use crate::context::Context;
use crate::limits::TASK_RETRIES;
use crate::types::{After, Bypass, Close, Interest, Medium, Received, Sent, Shutdown, Take};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Poll, ready};
use tokio::io::Interest as Readiness;
use tokio::net::TcpStream;
use tokio::task::coop::poll_proceed;

const FORKED: &str = "this stream's runtime belongs to the process that forked, which is told of what comes; \
    wait there, or use a blocking stream in the child";

/// One stream.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) socket: TcpStream,
    pub(super) context: Arc<Context>,
    pub(super) connection: Arc<Connection>,
    /// What wakes its tasks, and its token there; none: it stays with the kernel.
    place: Option<(Arc<Driver>, u32)>,
    reader: Slot,
    writer: Slot,
    /// Polls in a row that waited where nobody may wake them.
    rechecks: AtomicU32,
    /// When the driver wakes them, ns; 0: never.
    recheck_ns: AtomicU64,
}

/// What one call gave.
enum Attempt {
    Over(io::Result<usize>),
    /// Wait.
    Nothing,
    /// Another thread is at it: let others have their turn, then ask again.
    Busy,
}

impl Shared {
    pub(super) fn new(context: &Arc<Context>, socket: TcpStream) -> Arc<Shared> {
        let connection = context.track(socket.as_fd());
        connection.begin(context, socket.as_fd());
        let driver = Driver::of_this_runtime(context);
        let shared = Arc::new_cyclic(|own| Shared {
            place: driver.and_then(|driver| {
                let token = driver.insert(own.clone(), &connection)?;
                Some((driver, token))
            }),
            socket,
            context: context.clone(),
            connection,
            reader: Slot::default(),
            writer: Slot::default(),
            rechecks: AtomicU32::new(0),
            recheck_ns: AtomicU64::new(0),
        });
        if shared.place.is_none() {
            shared.connection.pin_to_kernel(context, shared.fd(), Bypass::Watchers);
        }
        shared
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Receives into several buffers.
    pub(super) fn poll_receive(
        &self,
        cx: &mut std::task::Context<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let coop = ready!(poll_proceed(cx));
        if self.connection.is_plain() {
            if let Some(result) = ready!(self.poll_receive_plain(cx, into)) {
                coop.made_progress();
                return Poll::Ready(result);
            }
        }
        let polled = self.poll_upgraded(cx, Interest::READ, || self.try_receive(into));
        if polled.is_ready() {
            coop.made_progress();
        }
        polled
    }

    /// Sends from several buffers.
    pub(super) fn poll_send(&self, cx: &mut std::task::Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let coop = ready!(poll_proceed(cx));
        if self.connection.is_plain() {
            if let Some(result) = ready!(self.poll_send_plain(cx, from)) {
                coop.made_progress();
                return Poll::Ready(result);
            }
        }
        let polled = self.poll_upgraded(cx, Interest::WRITE, || self.try_send(from));
        if polled.is_ready() {
            coop.made_progress();
        }
        polled
    }

    /// Ends a direction, or both.
    pub(super) fn shutdown(&self, how: std::net::Shutdown) -> io::Result<()> {
        let ours = match how {
            std::net::Shutdown::Read => Shutdown::Read,
            std::net::Shutdown::Write => Shutdown::Write,
            std::net::Shutdown::Both => Shutdown::Both,
        };
        self.connection.shutdown(&self.context, self.fd(), ours);
        Ok(rustix::net::shutdown(self.fd(), kernel_shutdown(how))?)
    }

    /// The driver took this stream's token: wakes the tasks that have something to do.
    pub(super) fn look(&self) {
        if self.connection.is_plain() {
            return;
        }
        let state = self.connection.state(&self.context, self.fd());
        let ended = state.hangup || state.error.is_some();
        // A direction that is in the kernel may have left the ring just now.
        if ended || state.readable || state.read_hangup || state.rx == Medium::Kernel {
            self.reader.wake();
        }
        if ended || state.writable || state.tx == Medium::Kernel {
            self.writer.wake();
        }
    }

    /// Has both tasks ask again: the time has come.
    pub(super) fn recheck(&self) {
        self.recheck_ns.store(0, Ordering::Relaxed);
        self.reader.wake();
        self.writer.wake();
    }

    /// A call that the reactor must have been asked for before. None: the connection is upgraded
    /// now.
    fn poll_receive_plain(
        &self,
        cx: &mut std::task::Context<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Poll<Option<io::Result<usize>>> {
        let asked: usize = into.iter().map(|one| one.len()).sum();
        self.poll_plain(cx, Interest::READ, asked, || self.try_receive(into))
    }

    /// The same for a send.
    fn poll_send_plain(
        &self,
        cx: &mut std::task::Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<Option<io::Result<usize>>> {
        let asked: usize = from.iter().map(|one| one.len()).sum();
        self.poll_plain(cx, Interest::WRITE, asked, || self.try_send(from))
    }

    fn poll_plain(
        &self,
        cx: &mut std::task::Context<'_>,
        what: Interest,
        asked: usize,
        mut attempt: impl FnMut() -> Attempt,
    ) -> Poll<Option<io::Result<usize>>> {
        while self.connection.is_plain() {
            ready!(self.poll_kernel_ready(cx, what))?;
            let mut got = Attempt::Nothing;
            let _ = self.socket.try_io(readiness(what), || {
                got = attempt();
                match got {
                    // The kernel had no more, or took no more, so there will be an edge.
                    Attempt::Over(Ok(bytes)) if bytes > 0 && bytes < asked => Err(ErrorKind::WouldBlock.into()),
                    Attempt::Nothing => Err(ErrorKind::WouldBlock.into()),
                    _ => Ok(()),
                }
            });
            match got {
                Attempt::Over(result) => return Poll::Ready(Some(result)),
                Attempt::Busy => return busy(cx).map(Some),
                Attempt::Nothing => {}
            }
        }
        Poll::Ready(None)
    }

    /// A call on an upgraded connection.
    fn poll_upgraded(
        &self,
        cx: &mut std::task::Context<'_>,
        what: Interest,
        mut attempt: impl FnMut() -> Attempt,
    ) -> Poll<io::Result<usize>> {
        match attempt() {
            Attempt::Over(result) => return self.over(result),
            Attempt::Busy => return busy(cx),
            Attempt::Nothing => {}
        }
        if self.place.as_ref().is_some_and(|(driver, _)| !driver.is_of(&self.context)) {
            return Poll::Ready(Err(io::Error::new(ErrorKind::Unsupported, FORKED)));
        }
        let slot = if what.reads() { &self.reader } else { &self.writer };
        slot.register(cx.waker());
        let ended_in_kernel = self.hear_kernel(cx, what)?;
        // Does what the peer asked for, and asks it to tell of room.
        self.connection.state(&self.context, self.fd());
        match attempt() {
            Attempt::Over(result) => return self.over(result),
            Attempt::Busy => return busy(cx),
            Attempt::Nothing => {}
        }
        if let Some((driver, token)) = &self.place {
            if what.reads() {
                driver.expect();
            }
            // Nobody rings when a reader takes nothing for so long that the kernel is the way, nor
            // once more for an end in the kernel.
            if ended_in_kernel || what.writes() && self.connection.has_full_ring() {
                driver.recheck(*token, self.rechecks.fetch_add(1, Ordering::Relaxed), &self.recheck_ns);
            }
        }
        Poll::Pending
    }

    fn over(&self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        if self.rechecks.load(Ordering::Relaxed) != 0 {
            self.rechecks.store(0, Ordering::Relaxed);
        }
        Poll::Ready(result)
    }

    /// Takes what the reactor has heard of the kernel's socket, and leaves the waker there. True:
    /// it has ended, of which the reactor tells no more.
    fn hear_kernel(&self, cx: &mut std::task::Context<'_>, what: Interest) -> io::Result<bool> {
        for _ in 0..2 {
            let Poll::Ready(heard) = self.poll_kernel_ready(cx, what) else { return Ok(false) };
            heard?;
            let _ = self.socket.try_io(readiness(what), || Err::<(), _>(ErrorKind::WouldBlock.into()));
            self.connection.kernel_event(self.fd());
        }
        Ok(true)
    }

    fn poll_kernel_ready(&self, cx: &mut std::task::Context<'_>, what: Interest) -> Poll<io::Result<()>> {
        if what.reads() { self.socket.poll_read_ready(cx) } else { self.socket.poll_write_ready(cx) }
    }

    fn try_receive(&self, into: &mut [IoSliceMut<'_>]) -> Attempt {
        for _ in 0..TASK_RETRIES {
            match self.connection.recv(&self.context, self.fd(), into, Take::Take) {
                Received::Done(bytes) | Received::OfKernel(bytes) => return Attempt::Over(Ok(bytes)),
                Received::Failed(errno) => return Attempt::Over(Err(errno.into())),
                Received::Empty => return Attempt::Nothing,
                Received::Busy => return Attempt::Busy,
                Received::Kernel(call) => {
                    let result = receive_now(self.fd(), into);
                    if let Some(attempt) = finish(call, result) {
                        return attempt;
                    }
                }
            }
        }
        Attempt::Busy
    }

    fn try_send(&self, from: &[IoSlice<'_>]) -> Attempt {
        match self.connection.send(&self.context, self.fd(), from) {
            Sent::Done(bytes) => Attempt::Over(Ok(bytes)),
            Sent::Full => Attempt::Nothing,
            Sent::Busy => Attempt::Busy,
            Sent::Failed(errno) => Attempt::Over(Err(errno.into())),
            Sent::Kernel(call) => {
                let result = send_now(self.fd(), from);
                call.finish(result);
                attempt_of(result)
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.connection.close(&self.context, self.socket.as_fd(), Close::Orderly);
        if let Some((driver, token)) = &self.place {
            driver.remove(*token, &self.connection);
        }
        self.connection.release(&self.context);
    }
}

/// Asks again after the other tasks had their turn.
fn busy(cx: &mut std::task::Context<'_>) -> Poll<io::Result<usize>> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

fn readiness(what: Interest) -> Readiness {
    if what.reads() { Readiness::READABLE } else { Readiness::WRITABLE }
}

/// None: ask again.
fn finish(call: KernelCall<'_>, result: Result<usize, Errno>) -> Option<Attempt> {
    (call.finish(result) == After::Return).then(|| attempt_of(result))
}

fn attempt_of(result: Result<usize, Errno>) -> Attempt {
    match result {
        Err(Errno::AGAIN) => Attempt::Nothing,
        Err(Errno::INTR) => Attempt::Busy,
        result => Attempt::Over(result.map_err(io::Error::from)),
    }
}

fn receive_now(fd: BorrowedFd<'_>, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    match into {
        [one] => rustix::net::recv(fd, &mut **one, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes),
        _ => rustix::net::recvmsg(fd, into, &mut Default::default(), RecvFlags::DONTWAIT).map(|message| message.bytes),
    }
}

fn send_now(fd: BorrowedFd<'_>, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match from {
        [one] => rustix::net::send(fd, one, flags),
        _ => rustix::net::sendmsg(fd, from, &mut Default::default(), flags),
    }
}

fn kernel_shutdown(how: std::net::Shutdown) -> rustix::net::Shutdown {
    match how {
        std::net::Shutdown::Read => rustix::net::Shutdown::Read,
        std::net::Shutdown::Write => rustix::net::Shutdown::Write,
        std::net::Shutdown::Both => rustix::net::Shutdown::Both,
    }
}
