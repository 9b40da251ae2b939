//! Whether memory that the program names can be read: what is not there is the kernel's to refuse,
//! with `EFAULT`.
//!
//! What is read here instead of in the kernel is probed: descriptor lists, message headers,
//! lists of pieces, times, signal masks, addresses, option values, and names and words of programs
//! to start. The bytes of a send or receive on a connection in a ring are not.
//!
//! Invariant: a probe changes nothing. It is a call that copies a word from the program and then
//! refuses what it was asked, so a page that is not there is an error, and not a signal. Pages that
//! were found readable lately are not probed again, so that a program which waits and sends from
//! the same stack and with the same lists pays once.

use crate::real;
use libc::c_char;
use std::cell::Cell;

/// Asks for a change of the signal mask that does not exist: the kernel reads the mask first.
const NO_SUCH_CHANGE: usize = 99;
const PAGE: usize = 4096;
/// Pages that are remembered, a power of two: those of the stack and of what an event loop waits,
/// receives and sends with.
const PAGES: usize = 16;
/// User memory ends below this.
const END: usize = 1 << 47;
/// Longest text that the kernel takes for a name or a word of a program (`MAX_ARG_STRLEN`).
const TEXT_BYTES_MAX: usize = 128 << 10;
/// More words than the kernel takes for a program, for it takes 6 MiB of them with their addresses.
const WORDS_MAX: usize = 1 << 20;

thread_local! {
    /// Numbers of pages that can be read, each at the place of its last digits.
    static FOUND: [Cell<usize>; PAGES] = const { [const { Cell::new(0) }; PAGES] };
}

/// Whether a value can be read there.
pub(crate) fn readable<T>(at: *const T) -> bool {
    readable_bytes(at.cast(), size_of::<T>())
}

/// Whether a value can be read there, or none is given.
pub(crate) fn readable_or_null<T>(at: *const T) -> bool {
    at.is_null() || readable(at)
}

/// Whether so many bytes can be read there.
pub(crate) fn readable_bytes(at: *const u8, bytes: usize) -> bool {
    let first = at as usize;
    if bytes == 0 {
        return true;
    }
    if !is_plausible(at, bytes) {
        return false;
    }
    let mut pages = first / PAGE..=(first + bytes - 1) / PAGE;
    FOUND.with(|found| pages.all(|page| found[page % PAGES].get() == page || probe_page(page, &found[page % PAGES])))
}

/// Whether a page can be read, which is remembered.
#[cold]
fn probe_page(page: usize, place: &Cell<usize>) -> bool {
    let readable = can_read_word(page * PAGE);
    if readable {
        place.set(page);
    }
    readable
}

/// Whether so many bytes may be there at all, without asking: neither the null page nor beyond the
/// end.
#[inline]
pub(crate) fn is_plausible(at: *const u8, bytes: usize) -> bool {
    let first = at as usize;
    bytes == 0 || first >= PAGE && first.checked_add(bytes).is_some_and(|end| end <= END)
}

/// Probes names and words of programs, and no page twice in succession.
pub(crate) struct Texts {
    /// A page that can be read.
    page: Option<usize>,
}

impl Texts {
    /// Nothing seen.
    pub(crate) fn new() -> Texts {
        Texts { page: None }
    }

    /// Whether a text can be read, with the zero at its end; a longer one than the kernel takes
    /// cannot.
    pub(crate) fn text(&mut self, at: *const c_char) -> bool {
        let (mut at, end) = (at as usize, (at as usize).saturating_add(TEXT_BYTES_MAX));
        while at < end && self.can_read(at) {
            let here = ((at & !(PAGE - 1)) + PAGE).min(end) - at;
            // SAFETY: the rest of a page, whose bytes can all be read if one can.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, here) };
            if bytes.contains(&0) {
                return true;
            }
            at += here;
        }
        false
    }

    /// Whether a list of texts can be read, with the null at its end; more than the kernel takes
    /// cannot. No list is one without any.
    pub(crate) fn list(&mut self, list: *const *const c_char) -> bool {
        if list.is_null() {
            return true;
        }
        for nth in 0..WORDS_MAX {
            let place = list.wrapping_add(nth);
            let first = place as usize;
            if !self.can_read(first) || !self.can_read(first.saturating_add(size_of::<usize>() - 1)) {
                return false;
            }
            // SAFETY: its first and its last byte can be read, and so can those between them.
            let text = unsafe { place.read_unaligned() };
            if text.is_null() {
                return true;
            }
            if !self.text(text) {
                return false;
            }
        }
        false
    }

    fn can_read(&mut self, at: usize) -> bool {
        let page = Some(at / PAGE);
        if page != self.page {
            if !is_plausible(at as *const u8, 1) || !can_read_word(at & !7) {
                return false;
            }
            self.page = page;
        }
        true
    }
}

fn can_read_word(at: usize) -> bool {
    let kept = crate::errno::Kept::now();
    // SAFETY: the kernel reads eight bytes there, or fails; nothing is written and the mask stays.
    let result = unsafe { real::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_CHANGE, at, 0, 8, 0, 0) };
    let fault = result < 0 && crate::errno::current() == libc::EFAULT;
    drop(kept);
    !fault
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_found_out_without_a_signal() {
        let here = [7u64; 2000];
        assert!(readable(&raw const here) && readable(&raw const here));
        assert!(
            !readable::<u64>(std::ptr::null()) && !readable(usize::MAX as *const u64) && !readable(72 as *const u64)
        );
        // SAFETY: new memory, of which the second page is then taken away.
        unsafe {
            let both = libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(both, libc::MAP_FAILED);
            libc::mprotect(both.byte_add(PAGE), PAGE, libc::PROT_NONE);
            let end = both.byte_add(PAGE - 8).cast::<u8>();
            assert!(readable_bytes(end, 8) && !readable_bytes(end, 9));
            libc::munmap(both, 2 * PAGE);
        }
    }

    #[test]
    fn texts_and_lists_are_read_to_their_ends_or_not_at_all() {
        let (one, long) = (c"one".as_ptr(), [b'x' as c_char; TEXT_BYTES_MAX]);
        let list = |words: &[*const c_char]| Texts::new().list(words.as_ptr());
        assert!(Texts::new().text(one) && list(&[one, one, std::ptr::null()]));
        assert!(Texts::new().list(std::ptr::null()), "no list is one without any");
        assert!(!Texts::new().text(std::ptr::null()) && !Texts::new().list(72 as *const *const c_char));
        assert!(!list(&[one, 72 as *const c_char, std::ptr::null()]) && !Texts::new().text(long.as_ptr()));
        // SAFETY: new memory, of which the second page is then taken away.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let both = libc::mmap(std::ptr::null_mut(), 2 * PAGE, access, kind, -1, 0);
            assert_ne!(both, libc::MAP_FAILED);
            libc::mprotect(both.byte_add(PAGE), PAGE, libc::PROT_NONE);
            let end = both.byte_add(PAGE - 8).cast::<u8>();
            end.copy_from(c"seven..".as_ptr().cast(), 8);
            assert!(Texts::new().text(end.cast()));
            end.add(7).write(b'.');
            assert!(!Texts::new().text(end.cast()), "its zero is not there");
            end.cast::<*const c_char>().write(one);
            assert!(!Texts::new().list(end.cast()), "its null is not there");
            assert!(!Texts::new().list(end.add(4).cast()), "nor is a half of its first word");
            libc::munmap(both, 2 * PAGE);
        }
    }
}
