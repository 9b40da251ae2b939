//! A sign that a process lives, on which others sleep: when it dies, in whatever way, the kernel ends the sleep.
//!
//! The sign is the lock word of a robust mutex that one thread of the process holds as long as it lives. The kernel itself goes through the robust mutexes of a thread that
//! ends, marks their words and wakes a sleeper of each; that one wakes the others. So a death costs nothing until it happens, and nobody has to look now and then.
//!
//! Invariant: the word is written by the kernel and the holder alone, others have it mapped for reading; a sign that is gone never comes back. Without the kernel's or the C
//! library's help there is no sign, and sleepers look by themselves. Source: get_robust_list(2), pthread_mutexattr_setrobust(3).

use super::kernel::thread_id;
use crate::region::{PAGE_BYTES, Protection, Region, RegionError};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bits of a lock word: its holder's thread, whether the holder has died, whether somebody sleeps.
const HOLDER: u32 = 0x3fff_ffff;
const DIED: u32 = 0x4000_0000;
const SLEEPERS: u32 = 0x8000_0000;

/// The sign that this thread lives: it is there until the value is dropped, or the thread or its process ends.
#[derive(Debug)]
pub struct Vigil {
    region: Region,
    thread: u32,
}

impl Vigil {
    /// Begins. None where it cannot be done.
    pub fn begin() -> Option<Vigil> {
        let region = Region::create(PAGE_BYTES as u64).ok()?;
        let mutex = region.as_ptr().cast::<libc::pthread_mutex_t>();
        // SAFETY: the region starts on a page, is larger than a mutex, readable and writable, and zero. Nobody else has it yet. The mutex stays where it is for as long as
        // this thread holds it: the value unlocks it before it unmaps it, or leaves it mapped for good.
        let locked = unsafe {
            let mut how: libc::pthread_mutexattr_t = std::mem::zeroed();
            libc::pthread_mutexattr_init(&mut how) == 0
                && libc::pthread_mutexattr_setpshared(&mut how, libc::PTHREAD_PROCESS_SHARED) == 0
                && libc::pthread_mutexattr_setrobust(&mut how, libc::PTHREAD_MUTEX_ROBUST) == 0
                && libc::pthread_mutex_init(mutex, &how) == 0
                && libc::pthread_mutex_lock(mutex) == 0
        };
        let vigil = locked.then(|| Vigil { region, thread: thread_id() })?;
        // Another C library may have the word elsewhere; then what is here is no sign.
        let holds = vigil.word().load(Ordering::SeqCst) & HOLDER == vigil.thread;
        // So that the kernel looks for sleepers, who cannot say that they are there.
        vigil.word().fetch_or(if holds { SLEEPERS } else { 0 }, Ordering::SeqCst);
        holds.then_some(vigil)
    }

    fn word(&self) -> &AtomicU32 {
        self.region.word32(0).expect("a page has a first word")
    }

    /// A descriptor for another process, for reading.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn share(&self) -> Result<OwnedFd, RegionError> {
        self.region.share_read_only()
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        let mutex = self.region.as_ptr().cast::<libc::pthread_mutex_t>();
        // SAFETY: a mutex that `begin` made and locked; this thread is its holder, as the first condition says.
        let ended = thread_id() == self.thread && unsafe { libc::pthread_mutex_unlock(mutex) } == 0;
        if ended {
            wake_all(self.word());
        } else {
            // It stands in the list of a thread that goes on, or could not be taken out of ours: whoever follows that list must find it.
            std::mem::forget(self.region.clone());
        }
    }
}

/// The sign of another process.
#[derive(Clone, Debug)]
pub struct Sign(Region);

impl Sign {
    /// Maps a sign; the descriptor is closed.
    ///
    /// # Errors
    /// When it is none.
    pub fn map(fd: OwnedFd) -> Result<Sign, RegionError> {
        let region = Region::map(fd, PAGE_BYTES as u64, Protection::ReadOnly)?;
        region.let_descriptor_go();
        Ok(Sign(region))
    }

    pub(super) fn word(&self) -> &AtomicU32 {
        self.0.word32(0).expect("a page has a first word")
    }

    /// The word as it is while the process lives; another value if it does not, so that nobody sleeps on it.
    pub(super) fn seen(&self) -> u32 {
        let word = self.word().load(Ordering::SeqCst);
        if lives(word) { word } else { !word }
    }

    /// Whether the process lives.
    #[inline]
    pub fn is_there(&self) -> bool {
        lives(self.word().load(Ordering::Acquire))
    }

    pub(super) fn wake_all(&self) {
        wake_all(self.word());
    }
}

fn lives(word: u32) -> bool {
    word & DIED == 0 && word & HOLDER != 0
}

fn wake_all(word: &AtomicU32) {
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::stream::SleepWord;
    use rustix::io::Errno;
    use std::time::Duration;

    /// Far longer than a test may take: a sleep that nobody ends is a hang.
    const LONG: Duration = Duration::from_secs(3600);

    /// Whether this kernel can sleep on two words.
    fn can_wait() -> bool {
        let word = SleepWord::default();
        word.announce();
        let sign = Vigil::begin().and_then(|vigil| Some((Sign::map(vigil.share().ok()?).ok()?, vigil)));
        let Some((sign, _vigil)) = sign else {
            println!("SKIP this C library has no robust mutexes whose word comes first");
            return false;
        };
        let can = word.sleep_restartable(Duration::from_millis(1), Some(&sign)) == Err(Errno::TIMEDOUT);
        if !can {
            println!("SKIP futex_waitv needs Linux 5.16");
        }
        can
    }

    fn sleepers(sign: &Sign, n: usize) -> Vec<std::thread::JoinHandle<()>> {
        let asleep = |sign: Sign| {
            let word = SleepWord::default();
            word.announce();
            let _ = word.sleep(LONG, true, Some(&sign));
            assert!(!sign.is_there(), "the sleep ended early");
        };
        (0..n)
            .map(|_| {
                std::thread::spawn({
                    let sign = sign.clone();
                    move || asleep(sign)
                })
            })
            .collect()
    }

    #[test]
    fn everybody_asleep_is_woken_when_the_thread_ends_or_says_so() {
        if !can_wait() {
            return;
        }
        for says in [true, false] {
            let (end, wait) = std::sync::mpsc::channel::<()>();
            let (give, get) = std::sync::mpsc::channel();
            let holder = std::thread::spawn(move || {
                let vigil = Vigil::begin().unwrap();
                give.send(Sign::map(vigil.share().unwrap()).unwrap()).unwrap();
                let _ = wait.recv();
                if !says {
                    std::mem::forget(vigil);
                }
            });
            let sign = get.recv().unwrap();
            assert!(sign.is_there());
            let all = sleepers(&sign, 5);
            std::thread::sleep(Duration::from_millis(30));
            drop(end);
            all.into_iter().for_each(|one| one.join().unwrap());
            holder.join().unwrap();
            sleepers(&sign, 1).pop().unwrap().join().unwrap();
        }
    }

    #[test]
    fn a_sign_cannot_be_written() {
        if let Some(vigil) = Vigil::begin() {
            assert!(Region::map(vigil.share().unwrap(), PAGE_BYTES as u64, Protection::ReadWrite).is_err());
        }
    }
}
