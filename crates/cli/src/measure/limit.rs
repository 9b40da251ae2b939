//! What the machine allows: a cache line, a copy, a wake-up, a descriptor. Everything else is held
//! against these.
//!
//! Invariant: a limit is measured by the same loops as what it is compared with.

use super::TaskError;
use super::ping::{Ping, spin_until, time_calls};
use super::stats::Sample;
use super::task::{Role, Waker};
use crate::limits::{MESSAGES_MIN, PARTNER_WAIT, SAMPLES_MAX, SAMPLES_MIN};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType,
};
use rustix::thread::futex;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vmmc_host::region::PAGE_BYTES;
use vmmc_host::{Nanos, Protection, Region};

/// Bytes of the region that two workers share for the limits.
pub(crate) const SHARED_BYTES: u64 = 4096;
/// Offsets of words in it, each on lines of its own: line of the leader, line of the follower.
const LINES: [u64; 2] = [0, 256];
/// Word on which the follower sleeps.
const BELL: u64 = 512;
/// Number of the sleep that the follower is about to begin.
const ASLEEP: u64 = 768;
/// Number of the sleep that has ended.
const AWAKE: u64 = 1024;
/// Time at which the follower awoke.
const AWOKE_AT: u64 = 1280;

/// Maps the shared region that came as descriptor.
pub(crate) fn shared(fd: OwnedFd) -> Result<Region, TaskError> {
    Region::map(fd, SHARED_BYTES, Protection::ReadWrite).map_err(|e| TaskError::Protocol(e.to_string()))
}

fn word(region: &Region, offset: u64) -> &AtomicU64 {
    region.word(offset).expect("the layout lies in SHARED_BYTES")
}

/// One line per direction: each side stores to its own and polls the other's.
pub(crate) struct CacheLine<'a> {
    mine: &'a AtomicU64,
    theirs: &'a AtomicU64,
}

impl CacheLine<'_> {
    /// The lines of a role.
    pub(crate) fn of(region: &Region, role: Role) -> CacheLine<'_> {
        let [a, b] = LINES.map(|l| word(region, l));
        match role {
            Role::Lead => CacheLine { mine: a, theirs: b },
            Role::Follow => CacheLine { mine: b, theirs: a },
        }
    }
}

impl Ping for CacheLine<'_> {
    #[inline]
    fn send(&mut self, number: u64) -> Result<(), TaskError> {
        self.mine.store(number, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, number: u64) -> Result<(), TaskError> {
        spin_until(|| self.theirs.load(Ordering::Acquire) == number)
    }
}

/// Time of one ordinary copy.
pub(crate) fn copy_latency(size: u64, budget: Duration) -> Result<Sample, TaskError> {
    let mut copy = Copy::of(size);
    time_calls(budget, || {
        copy.once();
        Ok(())
    })
}

/// Bytes a second of ordinary copies, the same bytes again and again: what is measured of
/// transports does that too.
pub(crate) fn copy_bandwidth(size: u64, budget: Duration) -> Result<Sample, TaskError> {
    let mut copy = Copy::of(size);
    let mut times = |count: u64| {
        let start = Instant::now();
        (0..count).for_each(|_| copy.once());
        start.elapsed().as_secs_f64().max(1e-9)
    };
    times(1);
    let each = times(MESSAGES_MIN) / MESSAGES_MIN as f64;
    let count = ((budget.as_secs_f64() / each) as u64).max(MESSAGES_MIN);
    Ok(Sample::Bandwidth { bytes_per_s: (count * size) as f64 / times(count) })
}

/// Two buffers that begin on pages: some processors copy many times slower when the destination
/// begins a few bytes further into its page than the source does, and the limit is what the machine
/// can do.
struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
    from_at: usize,
    to_at: usize,
    size: usize,
}

impl Copy {
    fn of(size: u64) -> Copy {
        let size = size as usize;
        let (from, to) = (vec![7; size + PAGE_BYTES], vec![1; size + PAGE_BYTES]);
        let to_page = |v: &Vec<u8>| v.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        let (from_at, to_at) = (to_page(&from), to_page(&to));
        Copy { from, to, from_at, to_at, size }
    }

    #[inline]
    fn once(&mut self) {
        let from = std::hint::black_box(&self.from[self.from_at..self.from_at + self.size]);
        self.to[self.to_at..self.to_at + self.size].copy_from_slice(from);
        std::hint::black_box(&mut self.to);
    }
}

/// An atomic addition to a word in this processor's cache.
pub(crate) fn local_atomic(budget: Duration) -> Result<Sample, TaskError> {
    let counter = AtomicU64::new(0);
    time_calls(budget, || {
        std::hint::black_box(&counter).fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
}

/// How a sleeper is put to sleep and awakened, for [`lead_wakes`] and [`follow_wakes`].
pub(crate) struct Sleep<'a> {
    region: &'a Region,
    by: Waker,
    /// Pipe: the follower's end to read from, or the leader's end to write to.
    pipe: OwnedFd,
}

impl<'a> Sleep<'a> {
    /// Over the shared region, and a pipe's end.
    pub(crate) fn new(region: &'a Region, by: Waker, pipe: OwnedFd) -> Sleep<'a> {
        Sleep { region, by, pipe }
    }

    fn wake(&self, number: u64) -> Result<(), TaskError> {
        match self.by {
            Waker::Futex => {
                let bell = self.bell();
                bell.store(number as u32, Ordering::SeqCst);
                futex::wake(bell, futex::Flags::empty(), 1)?;
            }
            Waker::Pipe => {
                rustix::io::write(&self.pipe, &[1])?;
            }
        }
        Ok(())
    }

    fn sleep(&self, number: u64) -> Result<(), TaskError> {
        match self.by {
            Waker::Futex => {
                let bell = self.bell();
                let timeout = rustix::time::Timespec { tv_sec: PARTNER_WAIT.as_secs() as i64, tv_nsec: 0 };
                while bell.load(Ordering::SeqCst) != number as u32 {
                    match futex::wait(bell, futex::Flags::empty(), number as u32 - 1, Some(&timeout)) {
                        Err(rustix::io::Errno::TIMEDOUT) => return Err(TaskError::PartnerSilent),
                        // Already awakened, or a signal: the loop checks again.
                        _ => continue,
                    }
                }
            }
            Waker::Pipe => {
                let mut byte = [0];
                let timeout = rustix::time::Timespec { tv_sec: PARTNER_WAIT.as_secs() as i64, tv_nsec: 0 };
                let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
                if poll(&mut fds, Some(&timeout))? == 0 {
                    return Err(TaskError::PartnerSilent);
                }
                rustix::io::read(&self.pipe, &mut byte)?;
            }
        }
        Ok(())
    }

    fn bell(&self) -> &std::sync::atomic::AtomicU32 {
        self.region.word32(BELL).expect("the layout lies in SHARED_BYTES")
    }
}

/// Wakes the follower again and again, each time after it has slept for `asleep`. The sample is
/// from before the wake call to the sleeper running.
pub(crate) fn lead_wakes(sleep: &Sleep<'_>, asleep: Duration, budget: Duration) -> Result<Sample, TaskError> {
    lead_sleeps(sleep.region, asleep, budget, |number| sleep.wake(number))
}

/// Sleeps as often as the leader wakes.
pub(crate) fn follow_wakes(sleep: &Sleep<'_>) -> Result<(), TaskError> {
    follow_sleeps(sleep.region, |number| sleep.sleep(number))
}

/// The leader's side of any wake-up: `wake` gets the number of the sleep, from 1.
pub(crate) fn lead_sleeps(
    region: &Region,
    asleep: Duration,
    budget: Duration,
    mut wake: impl FnMut(u64) -> Result<(), TaskError>,
) -> Result<Sample, TaskError> {
    let end = Instant::now() + budget;
    let mut times = Vec::new();
    let mut number = 0;
    while (Instant::now() < end || (times.len() as u64) < SAMPLES_MIN) && (times.len() as u64) < SAMPLES_MAX {
        number += 1;
        spin_until(|| word(region, ASLEEP).load(Ordering::Acquire) == number)?;
        let start = Instant::now();
        spin_until(|| start.elapsed() >= asleep)?;
        let before = Nanos::monotonic();
        wake(number)?;
        spin_until(|| word(region, AWAKE).load(Ordering::Acquire) == number)?;
        times.push(word(region, AWOKE_AT).load(Ordering::Relaxed).saturating_sub(before.0) as f64);
    }
    spin_until(|| word(region, ASLEEP).load(Ordering::Acquire) == number + 1)?;
    word(region, LAST).store(1, Ordering::Release);
    wake(number + 1)?;
    Ok(Sample::latency(&mut times, 1.0).expect("at least SAMPLES_MIN samples were taken"))
}

/// Not 0: the sleep that ends now was the last.
const LAST: u64 = 1536;

/// The follower's side of any wake-up: `sleep` gets the number of the sleep and returns when it has
/// been awakened.
pub(crate) fn follow_sleeps(
    region: &Region,
    mut sleep: impl FnMut(u64) -> Result<(), TaskError>,
) -> Result<(), TaskError> {
    for number in 1.. {
        word(region, ASLEEP).store(number, Ordering::Release);
        sleep(number)?;
        let now = Nanos::monotonic();
        word(region, AWOKE_AT).store(now.0, Ordering::Relaxed);
        word(region, AWAKE).store(number, Ordering::Release);
        if word(region, LAST).load(Ordering::Acquire) != 0 {
            break;
        }
    }
    Ok(())
}

/// Two ends of a blocking seqpacket socket.
pub(crate) fn packet_pair() -> Result<(OwnedFd, OwnedFd), TaskError> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Asks for a descriptor and gets one: round trip.
pub(crate) fn lead_descriptors(socket: &OwnedFd, budget: Duration) -> Result<Sample, TaskError> {
    let sample = time_calls(budget, || {
        rustix::net::send(socket, &[1], SendFlags::NOSIGNAL)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        match ancillary.drain().next() {
            Some(_closed_when_dropped) => Ok(()),
            None => Err(TaskError::PartnerGone),
        }
    });
    rustix::net::send(socket, &[0], SendFlags::NOSIGNAL)?;
    sample
}

/// Answers every request with a descriptor.
pub(crate) fn follow_descriptors(socket: &OwnedFd, region: &Region) -> Result<(), TaskError> {
    let memory = region.share().map_err(|e| TaskError::Protocol(e.to_string()))?;
    let mut byte = [0u8; 1];
    loop {
        let (got, _) = rustix::net::recv(socket, &mut byte[..], RecvFlags::empty())?;
        if got == 0 || byte[0] == 0 {
            return Ok(());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [memory.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "the space was sized for one");
        rustix::net::sendmsg(socket, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
}
