//! Whose memory keeps the node waiting.
//!
//! The kernel makes a thread that touches a page wait while somebody else punches a hole there, for
//! as long as it takes to go over all mappings of that memory: some 0.2 us for each, of which a
//! client can make millions. The seals that forbid holes forbid shared writing, too. So the node
//! marks whose memory it is about to touch, one word without a system call, and a thread checks now
//! and then whether it is stuck there. A user whose memory has kept the node longer than
//! [`HELD_UP_MAX`] is not served for a while: what the node is stuck in is cut off, nothing of it
//! is touched any more, its connections end, and new ones are refused. Memory that is resident and
//! not punched makes nobody wait so.
//!
//! Invariant: time counts against a user only while the thread that serves everybody is in one and
//! the same access to memory of that user, in uninterruptible sleep, and reads nothing back from a
//! disk; and while no other user's memory is given up, for which the kernel locks all of them.
//! Where processes of two users can write a region, the region is barred and neither of them.

use super::closers::Closers;
use super::connection::Connection;
use super::refusal::held_up;
use super::{Nanos, Station};
use crate::limits::{
    BARRED_TIME, HELD_UP_CHECK, HELD_UP_CHECK_IDLE, HELD_UP_CHECK_SOON, HELD_UP_MAX, HELD_UP_SOON, HELD_UP_WINDOW,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use vmmc_host::Region;
use vmmc_host::control::Refusal;
use vmmc_nic::{ProcessId, RegionId, RegionRef, Time};

/// Marks whose memory is touched.
#[derive(Clone, Default)]
pub(super) struct Mark(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The user whose memory is touched now, and one more; 0: nobody's; [`REGION`]: that of
    /// several, of whom it is unknown who punched. In the high half a number of the access.
    whose: AtomicU64,
    /// Process and region, or [`AREA`].
    region: AtomicU64,
    /// What may be touched.
    known: Mutex<HashMap<u64, Region>>,
    any_found: AtomicBool,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    found: Vec<Who>,
    over: bool,
}

/// Who is held responsible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    User(u32),
    /// A region alone, which is not touched any more.
    Region(ProcessId, RegionId),
}

/// The mark before; see [`Mark::set`].
#[derive(Clone, Copy)]
pub(super) struct Before(u64, u64);

/// The area of a process, as a region.
pub(super) const AREA: RegionId = RegionId(u32::MAX);

fn key(at: RegionRef) -> u64 {
    u64::from(at.process.0) << 32 | u64::from(at.region.0)
}

const USER: u64 = u32::MAX as u64;
const REGION: u64 = u32::MAX as u64;

impl Mark {
    /// This region is touched from here on, which is this user's; returns the mark
    /// before.
    #[inline]
    pub(super) fn set(&self, uid: u32, at: RegionRef) -> Before {
        self.store(u64::from(uid.wrapping_add(1)), key(at))
    }

    /// The same of one that several users may write.
    #[inline]
    pub(super) fn set_shared(&self, at: RegionRef) -> Before {
        self.store(REGION, key(at))
    }

    /// Touched is what was touched before [`set`](Self::set).
    #[inline]
    pub(super) fn back(&self, Before(whose, region): Before) {
        self.store(whose & USER, region);
    }

    /// Nobody's memory is touched.
    #[inline]
    pub(super) fn clear(&self) {
        self.store(0, 0);
    }

    /// Only one thread stores.
    #[inline]
    fn store(&self, user: u64, region: u64) -> Before {
        let before = Before(self.0.whose.load(Ordering::Relaxed), self.0.region.load(Ordering::Relaxed));
        self.0.region.store(region, Ordering::Release);
        self.0.whose.store(((before.0 >> 32).wrapping_add(1) << 32) | user, Ordering::Release);
        before
    }

    /// The node has mapped this.
    pub(super) fn know(&self, at: RegionRef, region: &Region) {
        self.0.known().insert(key(at), region.clone());
    }

    /// It is not touched any more.
    pub(super) fn forget(&self, at: RegionRef) {
        let known = self.0.known().remove(&key(at));
        drop(known);
    }

    /// Whether a user was found that holds the node up: what it has begun goes no further.
    #[inline]
    pub(super) fn any_found(&self) -> bool {
        self.0.any_found.load(Ordering::Relaxed)
    }
}

/// The thread that checks; it ends with this.
#[derive(Default)]
pub(super) struct Waits {
    mark: Mark,
    /// Users that are not served, and until when.
    barred: HashMap<u32, Nanos>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.mark.0.lock().over = true;
        self.mark.0.work.notify_all();
    }
}

impl Waits {
    pub(super) fn mark(&self) -> Mark {
        self.mark.clone()
    }

    /// Watches the calling thread. `own`: the users whose memory counts for nothing.
    pub(super) fn watch(&self, own: [u32; 2], closers: &Closers) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let shared = self.mark.0.clone();
        let others = closers.memory_of_others();
        // Without it a node serves as well, but for this.
        let run = move || shared.run(&format!("/proc/self/task/{thread}/stat"), own, others);
        let _ = std::thread::Builder::new().name("vmmc-waits".into()).spawn(run);
    }

    /// Why this user is not served now.
    pub(super) fn why_not(&self, uid: u32) -> Option<Refusal> {
        if self.barred.is_empty() {
            return None;
        }
        let left = self.barred.get(&uid)?.since(Nanos::monotonic());
        (left > Duration::ZERO).then(|| held_up(uid, left))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u64, Region>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits; false: it is over.
    fn pause(&self, time: Duration) -> bool {
        let state = self.lock();
        !state.over && !self.work.wait_timeout(state, time).unwrap_or_else(|e| e.into_inner()).0.over
    }

    fn run(&self, path: &str, own: [u32; 2], others: impl Fn(u32) -> bool) {
        let mut charged: HashMap<Who, (Instant, Duration)> = HashMap::new();
        let (mut soon, mut pause, mut last) = (0, HELD_UP_CHECK, 0);
        while self.pause(if soon > 0 { HELD_UP_CHECK_SOON } else { pause }) {
            soon = u32::saturating_sub(soon, 1);
            let whose = self.whose.load(Ordering::Acquire);
            let idle = whose == std::mem::replace(&mut last, whose) && whose & USER == 0;
            pause = if idle { (pause * 2).min(HELD_UP_CHECK_IDLE) } else { HELD_UP_CHECK };
            let region = self.region.load(Ordering::Acquire);
            let who = match whose & USER {
                0 => continue,
                REGION => Who::Region(ProcessId((region >> 32) as u32), RegionId(region as u32)),
                user => Who::User(user as u32 - 1),
            };
            let uid = if let Who::User(uid) = who { uid } else { u32::MAX };
            if own.contains(&uid) {
                continue;
            }
            let Some(reads) = stuck(path) else { continue };
            let start = Instant::now();
            soon = HELD_UP_SOON;
            charged.retain(|_, (since, _)| since.elapsed() < HELD_UP_WINDOW);
            let before = charged.get(&who).map_or(Duration::ZERO, |(_, time)| *time);
            loop {
                if !self.pause(HELD_UP_CHECK_SOON) {
                    return;
                }
                if self.whose.load(Ordering::Acquire) != whose || stuck(path) != Some(reads) || others(uid) {
                    break;
                }
                let time = before + start.elapsed();
                charged.entry(who).or_insert((start, time)).1 = time;
                if time >= HELD_UP_MAX {
                    charged.remove(&who);
                    let mut state = self.lock();
                    if !state.found.contains(&who) {
                        state.found.push(who);
                    }
                    drop(state);
                    self.any_found.store(true, Ordering::Relaxed);
                    // It waits on as long as new holes are punched, however often: unless there is
                    // no page to wait for.
                    let stuck_in = self.known().get(&region).cloned();
                    if let Some(stuck_in) = stuck_in.filter(|_| self.whose.load(Ordering::Acquire) == whose) {
                        let _ = stuck_in.cut_off();
                    }
                    break;
                }
            }
        }
    }
}

/// If the thread is in uninterruptible sleep: how many pages it has had to read back so far.
fn stuck(path: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    // Behind the name, which may contain anything: the state is the third field, the count the
    // twelfth.
    let mut fields = text.rsplit(") ").next()?.split(' ');
    (fields.next()? == "D").then_some(())?;
    fields.nth(8)?.parse().ok()
}

impl Station {
    /// Watches the thread that calls this, which is the one that serves from here on.
    pub(crate) fn watch_waits(&self) {
        self.waits.watch([self.uid, 0], &self.closers);
    }

    /// Users that were found to hold the node up are not served any more.
    #[inline]
    pub(super) fn bar_found(&mut self, now: Time) {
        if self.waits.mark.0.any_found.swap(false, Ordering::Relaxed) {
            let found = std::mem::take(&mut self.waits.mark.0.lock().found);
            for who in found {
                match who {
                    Who::User(uid) => self.bar(uid, now),
                    Who::Region(process, region) => self.bar_region(RegionRef { process, region }, now),
                }
            }
        }
    }

    #[cold]
    fn bar_region(&mut self, at: RegionRef, now: Time) {
        self.memory.bar_region(at);
        let (process, max) = (at.process.0, HELD_UP_MAX.as_millis());
        let text = format!(
            "a region of process {process}, which other users may write, kept the node waiting for more than {max} ms, as punched holes do; the node does not touch it any more"
        );
        self.note(now, text);
    }

    #[cold]
    fn bar(&mut self, uid: u32, now: Time) {
        let clock = Nanos::monotonic();
        self.waits.barred.retain(|_, until| *until > clock);
        self.waits.barred.insert(uid, clock + BARRED_TIME);
        self.note_of(now, uid, held_up(uid, BARRED_TIME).message);
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections[index].as_deref_mut() else { continue };
            if connection.who.uid == uid {
                bar_connection(connection);
                if let Some(process) = &connection.process {
                    self.memory.bar(process.id);
                }
                self.close_later(index);
            }
        }
    }
}

/// Nothing of it is touched from here on.
fn bar_connection(connection: &mut Connection) {
    if let Some(process) = &mut connection.process {
        process.is_barred = true;
    }
}
