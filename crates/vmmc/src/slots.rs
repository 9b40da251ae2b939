//! Commands that will be answered: who waits for which completion, and what must stay alive until
//! it comes.
//!
//! Invariant: a cookie names one use of a slot; at most [`TRANSFERS_MAX`] are in use, so they do
//! not make the completion ring overflow; what a command reads or writes is held by its slot until
//! the completion, whether or not anybody still waits. Staging memory of a command that has ended
//! is there for others, whether or not anybody has looked at the answer.

use crate::limits::TRANSFERS_MAX;
use crate::redirects::COOKIE_POSTING;
use crate::regions::Registered;
use crate::staging::Chunk;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use vmmc_host::abi::{COOKIE_REDIRECT, COOKIE_SEND_FAILED, Completion};
use vmmc_nic::OpError;
use vmmc_utlb::Pages;

/// What a command uses.
pub(crate) enum Hold {
    Nothing,
    /// Registered memory.
    Memory(#[allow(dead_code, reason = "held only to stay alive")] Arc<Registered>),
    /// A piece of staging memory that is read; given back when the completion comes.
    Chunk(Chunk),
    /// A piece of staging memory that so many bytes are written to.
    Fetched(Chunk, usize),
    /// What was written to one that somebody else needed.
    Moved(Vec<u8>),
    /// Pinned pages of the caller's own memory.
    Pages(Pages),
    /// Of an append.
    Append(Appending),
}

/// What an append uses, and what its import learns when it is refused.
pub(crate) struct Appending {
    /// Its data, if that is not in the command.
    pub(crate) chunk: Option<Chunk>,
    /// Refusals that its import's appends carry from then on: one more than this one did. Only
    /// when the caller learns of it: an append that the caller makes before must not overtake this
    /// one.
    pub(crate) refusals: Arc<AtomicU32>,
    /// What this one carried.
    pub(crate) known: u32,
}

impl Hold {
    /// The staging memory that nobody needs any more, now that the command has ended.
    fn take_unneeded(&mut self, failed: bool) -> Hold {
        match self {
            Hold::Append(append) => append.chunk.take().map_or(Hold::Nothing, Hold::Chunk),
            Hold::Chunk(_) => std::mem::replace(self, Hold::Nothing),
            Hold::Fetched(..) if failed => std::mem::replace(self, Hold::Nothing),
            _ => Hold::Nothing,
        }
    }

    /// The caller learns how the command ended, or no longer wants to know.
    fn note(&self, result: &Result<u64, OpError>) {
        if let (Hold::Append(append), Err(OpError::RingFull { .. })) = (self, result) {
            let (known, next) = (append.known, append.known.wrapping_add(1));
            // Those that were under way with it carried the same number.
            let _ = append.refusals.compare_exchange(known, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// The slots of a session.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    /// Slots that are done and hold [`Hold::Fetched`].
    unread: AtomicUsize,
    free: Mutex<Vec<u32>>,
}

struct Slot {
    /// Read without the lock: the phase is [`Phase::Done`].
    done: AtomicBool,
    use_: Mutex<Use>,
}

struct Use {
    generation: u32,
    phase: Phase,
    hold: Hold,
}

enum Phase {
    Free,
    Pending,
    /// Nobody waits; an error goes to the import, if there is one.
    Unattended(Option<u64>),
    Done(Result<u64, OpError>),
}

/// What is left to do after a completion.
pub(crate) struct Finished {
    /// An error that nobody waits for, and the import it concerns.
    pub(crate) failed: Option<(u64, OpError)>,
    /// To be given back, outside of locks.
    pub(crate) hold: Hold,
}

/// Generations are cut so that cookies never have the bits of redirections and failed sends.
const GENERATION_MASK: u32 = (((COOKIE_REDIRECT | COOKIE_SEND_FAILED | COOKIE_POSTING) >> 32) as u32) ^ u32::MAX;

impl Slots {
    pub(crate) fn new() -> Slots {
        let slot = |_| Slot {
            done: AtomicBool::new(false),
            use_: Mutex::new(Use { generation: 0, phase: Phase::Free, hold: Hold::Nothing }),
        };
        Slots {
            slots: (0..TRANSFERS_MAX).map(slot).collect(),
            unread: AtomicUsize::new(0),
            free: Mutex::new((0..TRANSFERS_MAX as u32).rev().collect()),
        }
    }

    /// Takes a slot for a command about to be posted; none when all are in use. Its holder waits
    /// for it, abandons it, or leaves it unattended.
    pub(crate) fn reserve(&self) -> Option<u64> {
        let index = self.free.lock().expect("no panic while the lock is held").pop()?;
        let slot = &self.slots[index as usize];
        let mut used = slot.lock();
        used.generation = used.generation.wrapping_add(1) & GENERATION_MASK;
        used.phase = Phase::Pending;
        slot.done.store(false, Ordering::Relaxed);
        Some(u64::from(used.generation) << 32 | u64::from(index))
    }

    /// Gives the slot what its command uses. Before the command is posted.
    pub(crate) fn hold(&self, cookie: u64, hold: Hold) {
        self.at(cookie).lock().hold = hold;
    }

    /// Nobody will wait: errors go to the import.
    pub(crate) fn leave(&self, cookie: u64, import: u64) {
        self.at(cookie).lock().phase = Phase::Unattended(Some(import));
    }

    /// Takes a slot back whose command was not posted.
    pub(crate) fn cancel(&self, cookie: u64) -> Hold {
        let mut used = self.at(cookie).lock();
        self.free(cookie, &mut used)
    }

    /// Whether the result has come.
    pub(crate) fn is_done(&self, cookie: u64) -> bool {
        self.at(cookie).done.load(Ordering::Acquire)
    }

    /// The result, when it has come; this frees the slot.
    pub(crate) fn take(&self, cookie: u64) -> Option<(Result<u64, OpError>, Hold)> {
        let slot = self.at(cookie);
        if !slot.done.load(Ordering::Acquire) {
            return None;
        }
        let mut used = slot.lock();
        let Phase::Done(result) = used.phase else { unreachable!("done was set with the phase") };
        let hold = self.free(cookie, &mut used);
        hold.note(&result);
        Some((result, hold))
    }

    /// Nobody waits any longer. What a finished command held comes back.
    pub(crate) fn abandon(&self, cookie: u64) -> Hold {
        let mut used = self.at(cookie).lock();
        match used.phase {
            Phase::Done(result) => {
                let hold = self.free(cookie, &mut used);
                hold.note(&result);
                hold
            }
            _ => {
                used.phase = Phase::Unattended(None);
                Hold::Nothing
            }
        }
    }

    /// A completion came. One that fits no slot is dropped: the node erred, and no memory of ours
    /// depends on it.
    pub(crate) fn complete(&self, completion: &Completion, result: Result<u64, OpError>) -> Finished {
        let nothing = Finished { failed: None, hold: Hold::Nothing };
        let Some(slot) = self.slots.get(completion.cookie as u32 as usize) else { return nothing };
        let mut used = slot.lock();
        if used.generation != (completion.cookie >> 32) as u32 {
            return nothing;
        }
        match used.phase {
            Phase::Pending => {
                used.phase = Phase::Done(result);
                let hold = used.hold.take_unneeded(result.is_err());
                if let Hold::Fetched(..) = used.hold {
                    self.unread.fetch_add(1, Ordering::Relaxed);
                }
                slot.done.store(true, Ordering::Release);
                Finished { failed: None, hold }
            }
            Phase::Unattended(import) => {
                let hold = self.free(completion.cookie, &mut used);
                hold.note(&result);
                let failed = import.and_then(|import| Some((import, result.err()?)));
                Finished { failed, hold }
            }
            Phase::Free | Phase::Done(_) => nothing,
        }
    }

    /// Takes a chunk that is `wanted` from a finished fetch whose data nobody has read yet, which
    /// is left what `copy` gives for so many bytes of it.
    pub(crate) fn move_out(
        &self,
        wanted: impl Fn(&Chunk) -> bool,
        copy: impl Fn(&Chunk, usize) -> Vec<u8>,
    ) -> Option<Chunk> {
        if self.unread.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.slots.iter().filter(|slot| slot.done.load(Ordering::Acquire)).find_map(|slot| {
            let mut used = slot.lock();
            let moved = match (&used.phase, &used.hold) {
                (Phase::Done(_), Hold::Fetched(chunk, len)) if wanted(chunk) => Hold::Moved(copy(chunk, *len)),
                _ => return None,
            };
            let Hold::Fetched(chunk, _) = std::mem::replace(&mut used.hold, moved) else { unreachable!("just seen") };
            self.unread.fetch_sub(1, Ordering::Relaxed);
            Some(chunk)
        })
    }

    fn at(&self, cookie: u64) -> &Slot {
        &self.slots[cookie as u32 as usize]
    }

    fn free(&self, cookie: u64, used: &mut Use) -> Hold {
        if let (Phase::Done(_), Hold::Fetched(..)) = (&used.phase, &used.hold) {
            self.unread.fetch_sub(1, Ordering::Relaxed);
        }
        used.phase = Phase::Free;
        self.at(cookie).done.store(false, Ordering::Relaxed);
        self.free.lock().expect("no panic while the lock is held").push(cookie as u32);
        std::mem::replace(&mut used.hold, Hold::Nothing)
    }
}

impl Slot {
    fn lock(&self) -> std::sync::MutexGuard<'_, Use> {
        self.use_.lock().expect("no panic while the lock is held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::Staging;

    fn completion(cookie: u64) -> Completion {
        Completion { cookie, ..Completion::default() }
    }

    #[test]
    fn a_completion_of_an_earlier_use_changes_nothing() {
        let slots = Slots::new();
        let first = slots.reserve().unwrap();
        slots.complete(&completion(first), Ok(1));
        assert_eq!(slots.take(first).unwrap().0, Ok(1));
        let second = slots.reserve().unwrap();
        assert_eq!(second as u32, first as u32, "the same slot again");
        slots.complete(&completion(first), Ok(7));
        assert!(slots.take(second).is_none());
        slots.complete(&completion(u64::MAX), Ok(7));
        slots.complete(&completion(second), Ok(2));
        assert_eq!(slots.take(second).unwrap().0, Ok(2));
    }

    #[test]
    fn abandoned_and_unattended_slots_come_back_with_their_completion() {
        let slots = Slots::new();
        let all: Vec<u64> = std::iter::from_fn(|| slots.reserve()).collect();
        assert_eq!(all.len(), TRANSFERS_MAX);
        slots.abandon(all[0]);
        slots.leave(all[1], 77);
        assert!(slots.reserve().is_none());
        assert!(slots.complete(&completion(all[0]), Err(OpError::Revoked)).failed.is_none());
        let failed = slots.complete(&completion(all[1]), Err(OpError::Revoked)).failed;
        assert_eq!(failed, Some((77, OpError::Revoked)));
        assert!(slots.reserve().is_some() && slots.reserve().is_some() && slots.reserve().is_none());
    }

    #[test]
    fn a_finished_command_holds_no_staging_memory_that_others_need() {
        let (slots, staging) = (Slots::new(), Staging::new());
        let chunk = || staging.take(100, &Default::default()).unwrap();
        let copy = |_: &Chunk, len: usize| vec![7; len];
        let [sent, fetched, refused] = [(); 3].map(|()| slots.reserve().unwrap());
        slots.hold(sent, Hold::Chunk(chunk()));
        slots.hold(fetched, Hold::Fetched(chunk(), 100));
        slots.hold(refused, Hold::Fetched(chunk(), 100));
        assert!(slots.move_out(|_| true, copy).is_none(), "the engine may still write to them");
        let hold = |cookie, result| slots.complete(&completion(cookie), result).hold;
        assert!(matches!(hold(sent, Ok(100)), Hold::Chunk(_)));
        assert!(matches!(hold(fetched, Ok(100)), Hold::Nothing));
        assert!(matches!(hold(refused, Err(OpError::Revoked)), Hold::Fetched(..)));
        assert!(slots.move_out(|_| false, copy).is_none());
        assert!(slots.move_out(|_| true, copy).is_some());
        assert!(slots.move_out(|_| true, copy).is_none());
        assert!(matches!(slots.take(fetched), Some((Ok(100), Hold::Moved(bytes))) if bytes == [7; 100]));
        assert!(matches!(slots.take(sent), Some((Ok(100), Hold::Nothing))));
        assert!(matches!(slots.take(refused), Some((Err(OpError::Revoked), Hold::Nothing))));
        // One that is read in time stays where it is.
        let fetched = slots.reserve().unwrap();
        slots.hold(fetched, Hold::Fetched(chunk(), 100));
        slots.complete(&completion(fetched), Ok(100));
        assert!(matches!(slots.take(fetched), Some((Ok(100), Hold::Fetched(..)))));
        assert_eq!(slots.unread.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn cookies_stay_clear_of_the_marked_ones() {
        let slots = Slots::new();
        for _ in 0..3 {
            let cookie = slots.reserve().unwrap();
            assert_eq!(cookie & (COOKIE_REDIRECT | COOKIE_SEND_FAILED | COOKIE_POSTING), 0);
            slots.cancel(cookie);
        }
        assert_eq!(GENERATION_MASK, 0x1FFF_FFFF);
    }
}
