//! An emulated link between two TUN devices: rate, delay, a bounded queue, random loss and
//! reordering, the same in both directions.
//!
//! Invariant: a packet that is let in leaves once, unchanged, no earlier than its bytes take at
//! the rate and the delay after that; with the same seed the same packets are lost. Its thread has
//! a processor of its own where there are two: beside one who polls it would be a link that stops.
//! Where the machine stops it all the same, it says when, and what came meanwhile finds the queue
//! as it would have been.

use super::super::TaskError;
use crate::limits::{WIRE_BURST, WIRE_LOOK, WIRE_PACKET_BYTES_MAX, WIRE_STOP, WIRE_STOPS_MAX};
use crate::machine;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmmc_host::tun::Tun;

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conditions {
    /// Millions of bits a second.
    pub(crate) rate_mbit: u32,
    /// From one end to the other, microseconds.
    pub(crate) one_way_us: u32,
    /// Packets of full size that wait at most.
    pub(crate) queue_packets: u32,
    /// Packets lost, of 100,000.
    pub(crate) lost: u32,
    /// Packets that come later, by up to half of the delay, of 100,000.
    pub(crate) late: u32,
}

/// Bytes of a packet of full size.
const PACKET_BYTES: u64 = 1_500;

/// Where the random numbers of the two directions begin.
const SEEDS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x3c6e_f372_fe94_f82a];

/// One direction: decides about packets, and holds them until they arrive.
struct Direction {
    conditions: Conditions,
    /// When the link has sent what it has, nanoseconds.
    free_ns: u64,
    /// By arrival, then in the order of sending.
    under_way: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    sent: u64,
    random: u64,
    spare: Vec<Vec<u8>>,
    /// The next packet that is read may have come then: some were left when the last had been.
    left_ns: Option<u64>,
}

impl Direction {
    fn new(conditions: Conditions, seed: u64) -> Direction {
        let under_way = BinaryHeap::new();
        Direction { conditions, free_ns: 0, under_way, sent: 0, random: seed, spare: Vec::new(), left_ns: None }
    }

    /// xorshift64.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn happens(&mut self, of_100_000: u32) -> bool {
        self.below(100_000) < of_100_000.into()
    }

    fn nanos_of(&self, bytes: u64) -> u64 {
        bytes * 8_000 / u64::from(self.conditions.rate_mbit)
    }

    /// Takes a packet in that came at that time, or loses it.
    fn admit(&mut self, came_ns: u64, now_ns: u64, packet: &[u8]) {
        if self.happens(self.conditions.lost) {
            return;
        }
        let start_ns = self.free_ns.max(came_ns);
        let room_ns = self.nanos_of(PACKET_BYTES * u64::from(self.conditions.queue_packets));
        if start_ns - came_ns >= room_ns {
            return;
        }
        self.free_ns = start_ns + self.nanos_of(packet.len() as u64);
        let delay_ns = u64::from(self.conditions.one_way_us) * 1_000;
        let mut at_ns = self.free_ns.max(now_ns) + delay_ns;
        if self.happens(self.conditions.late) {
            at_ns += self.below(delay_ns / 2 + 1);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(packet);
        self.under_way.push(Reverse((at_ns, self.sent, copy)));
        self.sent += 1;
    }

    /// Takes in some of the packets that wait. They came since `since_ns`, when it was to look for
    /// them, and not faster than the link is.
    fn take(
        &mut self,
        since_ns: u64,
        now_ns: impl Fn() -> u64,
        packet: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> Option<usize>,
    ) {
        let mut came_ns = self.left_ns.take().unwrap_or(since_ns);
        for _ in 0..WIRE_BURST {
            let Some(len) = read(packet) else { return };
            let now_ns = now_ns();
            came_ns = came_ns.min(now_ns);
            self.admit(came_ns, now_ns, &packet[..len]);
            came_ns += self.nanos_of(len as u64);
        }
        self.left_ns = Some(came_ns);
    }

    /// When the next packet arrives.
    fn next_ns(&self) -> Option<u64> {
        self.under_way.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    /// Gives the packets that have arrived.
    fn arrived(&mut self, now_ns: u64, mut deliver: impl FnMut(&[u8])) {
        while self.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            let Some(Reverse((.., packet))) = self.under_way.pop() else { break };
            deliver(&packet);
            self.spare.push(packet);
        }
    }
}

/// From when until when a link has stood still.
pub(super) type Stop = (Instant, Instant);

/// What the thread of a link shares with those who use it.
#[derive(Default)]
struct Shared {
    wanted: Mutex<Option<Conditions>>,
    stops: Mutex<Vec<Stop>>,
    ends: AtomicBool,
}

/// A link that works, on a thread of its own, until it is dropped.
pub(super) struct Wire {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

impl Wire {
    /// Between these two, with these conditions at first.
    pub(super) fn start(ends: [Tun; 2], conditions: Conditions) -> Result<Wire, TaskError> {
        let shared = Arc::new(Shared { wanted: Mutex::new(Some(conditions)), ..Shared::default() });
        let theirs = Arc::clone(&shared);
        let all = machine::cores();
        let thread = std::thread::Builder::new().name("wire".into()).spawn(move || {
            machine::take_last(&all);
            // A wake-up a few microseconds late is a delay that nobody asked for.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            carry(&ends, &theirs);
        })?;
        Ok(Wire { shared, thread: Some(thread) })
    }

    /// Changes the conditions; what is under way is lost, and the random numbers begin anew.
    pub(super) fn change(&self, conditions: Conditions) {
        *locked(&self.shared.wanted) = Some(conditions);
        std::thread::sleep(2 * WIRE_LOOK);
        locked(&self.shared.stops).clear();
    }

    /// When it has stood still since the conditions were changed.
    pub(super) fn stops(&self) -> Vec<Stop> {
        locked(&self.shared.stops).clone()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn carry(ends: &[Tun; 2], shared: &Shared) {
    let begun = Instant::now();
    let now_ns = || begun.elapsed().as_nanos() as u64;
    let mut directions: Option<[Direction; 2]> = None;
    let mut packet = vec![0u8; WIRE_PACKET_BYTES_MAX];
    let mut due = now_ns();
    while !shared.ends.load(Ordering::Relaxed) {
        if let Some(conditions) = locked(&shared.wanted).take() {
            directions = Some(SEEDS.map(|seed| Direction::new(conditions, seed)));
        }
        let Some(directions) = directions.as_mut() else { break };
        let now = now_ns();
        if now > due + WIRE_STOP.as_nanos() as u64 {
            let at = |ns| begun + Duration::from_nanos(ns);
            let mut stops = locked(&shared.stops);
            if stops.len() < WIRE_STOPS_MAX {
                stops.push((at(due), at(now)));
            }
        }
        let next = directions.iter().filter_map(Direction::next_ns).min();
        // What may be left is looked for at once: what comes later is not taken for it.
        let next = if directions.iter().any(|direction| direction.left_ns.is_some()) { Some(now) } else { next };
        let wait = next.map_or(WIRE_LOOK, |at| Duration::from_nanos(at.saturating_sub(now)).min(WIRE_LOOK));
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
        let mut fds = ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
        let _ = poll(&mut fds, Some(&timeout));
        due = now + wait.as_nanos() as u64;
        let readable = fds.map(|end| end.revents().contains(PollFlags::IN));
        for ((from, direction), readable) in ends.iter().zip(directions.iter_mut()).zip(readable) {
            if readable {
                direction.take(due, now_ns, &mut packet, |packet| rustix::io::read(from, packet).ok());
            } else {
                direction.left_ns = None;
            }
        }
        for (to, direction) in ends.iter().rev().zip(directions.iter_mut()) {
            // What the other end has no room for is lost, as on any link.
            direction.arrived(now_ns(), |packet| {
                let _ = rustix::io::write(to, packet);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Conditions = Conditions { rate_mbit: 1_000, one_way_us: 100, queue_packets: 10, lost: 0, late: 0 };

    fn all(direction: &mut Direction) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        direction.arrived(u64::MAX, |packet| got.push(packet.to_vec()));
        got
    }

    #[test]
    fn a_packet_arrives_after_its_bytes_and_the_delay() {
        let mut direction = Direction::new(CALM, 1);
        direction.admit(1_000, 1_000, &[7; 1_500]);
        direction.admit(1_000, 1_000, &[8; 750]);
        // 1,500 bytes take 12 us at 1 Gb/s.
        assert_eq!(direction.next_ns(), Some(1_000 + 12_000 + 100_000));
        let mut got = 0;
        direction.arrived(113_000, |packet| got += packet.len());
        assert_eq!((got, direction.next_ns()), (1_500, Some(1_000 + 18_000 + 100_000)));
    }

    #[test]
    fn a_full_queue_loses_and_empties_with_time() {
        let mut direction = Direction::new(CALM, 1);
        (0..30).for_each(|_| direction.admit(0, 0, &[0; 1_500]));
        assert_eq!(direction.under_way.len(), 10);
        direction.admit(12_000, 12_000, &[0; 1_500]);
        assert_eq!(direction.under_way.len(), 11);
    }

    #[test]
    fn what_came_while_the_link_stood_still_is_not_lost_for_that() {
        // A queue of ten; at one time came 30 packets, or one each 12 us.
        for (since_us, got) in [(1_000, 10), (1_000 - 12 * 8, 18), (0, 30)] {
            let mut direction = Direction::new(CALM, 1);
            let mut left = 30;
            let read = |packet: &mut [u8]| {
                left -= 1;
                (left >= 0).then_some(packet.len())
            };
            direction.take(since_us * 1_000, || 1_000_000, &mut [0; 1_500], read);
            assert_eq!(direction.under_way.len(), got, "since {since_us} us");
            // None arrives before it can have been read.
            assert!(direction.next_ns() >= Some(1_000_000 + 100_000));
        }
    }

    #[test]
    fn what_is_left_came_after_what_was_taken() {
        let mut direction = Direction::new(Conditions { queue_packets: 1, ..CALM }, 1);
        let take = |direction: &mut Direction, mut left: usize| {
            direction.take(
                0,
                || 10_000_000,
                &mut [0; 1_500],
                |packet| {
                    left = left.checked_sub(1)?;
                    Some(packet.len())
                },
            );
        };
        take(&mut direction, usize::MAX);
        take(&mut direction, 3);
        assert_eq!(direction.under_way.len(), WIRE_BURST + 3);
    }

    #[test]
    fn losses_have_their_rate_and_are_the_same_each_time() {
        let lossy = Conditions { lost: 1_000, ..CALM };
        let run = || {
            let mut direction = Direction::new(lossy, 5);
            (0..100_000u64).for_each(|i| direction.admit(i * 20_000, i * 20_000, &i.to_le_bytes()));
            all(&mut direction)
        };
        let got = run();
        assert!((98_700..99_300).contains(&got.len()), "{}", got.len());
        assert_eq!(got, run());
    }

    #[test]
    fn late_packets_come_later_by_half_of_the_delay_at_most_and_none_is_lost() {
        let late = Conditions { late: 3_000, ..CALM };
        let mut direction = Direction::new(late, 5);
        let mut overtaken = 0;
        let mut largest = 0;
        for i in 0..10_000u64 {
            direction.admit(i * 12_000, i * 12_000, &i.to_le_bytes());
        }
        let got = all(&mut direction);
        assert_eq!(got.len(), 10_000);
        for packet in got {
            let number = u64::from_le_bytes(packet.try_into().unwrap());
            overtaken += u64::from(number < largest);
            // 50 us are four packets.
            assert!(number + 5 >= largest);
            largest = largest.max(number);
        }
        assert!((100..400).contains(&overtaken), "{overtaken}");
    }
}
