//! Why bytes of a connection go through the kernel, counted.
//!
//! Invariant: every call that a hook leaves to the kernel on a connection that could have been
//! upgraded has a reason here.

use std::fmt::Write;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use vmmc_sockets::{Bypass, Description};
use vmmc_stream::SectionLock;

macro_rules! reasons {
    ($($name:ident $text:literal,)*) => {
        /// Why a connection, or a call on it, stays with the kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Reason {
            $(#[doc = $text] $name,)*
        }

        const TEXTS: &[(Reason, &str)] = &[$((Reason::$name, $text),)*];
    };
}

reasons! {
    Unused "none",
    NotYet "not upgraded (yet, or the peer is not ours)",
    StandardStream "it is, or became, a standard stream or a FILE of the C library",
    OutOfBand "urgent data",
    ZeroCopy "zero-copy sends, kernel TLS, or another protocol on top of TCP in the kernel",
    Control "control messages, error queue, or flags that only the kernel knows",
    Signal "asynchronous notification by signal",
    LowWater "a low-water mark",
    Splice "splice, or sendfile from something that cannot be read at an offset",
    IoUring "the program uses io_uring",
    KernelAio "the program uses the kernel's asynchronous input and output (io_submit)",
    Nested "an epoll set within another",
    ManySets "in several epoll sets",
    Passed "passed to another process",
    Exec "inherited by another program",
    Excluded "the port is excluded",
    Threads "read or written by threads of the C library (aio)",
    Full "a table is full",
    OtherSet "in an epoll set that another process made, or for which descriptors are short",
}

static COUNTS: [AtomicU64; TEXTS.len()] = [const { AtomicU64::new(0) }; TEXTS.len()];
/// Why no further connection is upgraded: a [`Reason`] as a number, 0 for none.
static STOPPED: AtomicU8 = AtomicU8::new(0);

/// Counts a call, or a connection that goes back.
pub(crate) fn count(reason: Reason) {
    COUNTS[reason as usize].fetch_add(1, Relaxed);
}

/// From now on no connection of this process is upgraded.
pub(crate) fn stop_upgrading(reason: Reason) {
    if STOPPED.swap(reason as u8, Relaxed) == 0 {
        count(reason);
    }
}

/// Whether new connections may be upgraded.
pub(crate) fn stopped() -> Option<Reason> {
    TEXTS.get(STOPPED.load(Relaxed) as usize).filter(|(reason, _)| *reason != Reason::Unused).map(|(reason, _)| *reason)
}

impl Reason {
    /// As the protocol core calls it.
    pub(crate) fn bypass(self) -> Bypass {
        match self {
            Reason::OutOfBand => Bypass::Urgent,
            Reason::IoUring => Bypass::IoUring,
            Reason::ManySets => Bypass::Watchers,
            Reason::Passed | Reason::Exec | Reason::OtherSet | Reason::StandardStream | Reason::Threads => {
                Bypass::Leaked
            }
            Reason::Excluded => Bypass::Excluded,
            _ => Bypass::KernelOnly,
        }
    }
}

/// How connections ended, by what became of them; only kept when somebody wants to read it.
static ENDED: SectionLock<Vec<(String, u64)>> = SectionLock::new(Vec::new());

/// A connection ended.
pub(crate) fn ended(description: &Description) {
    let text = match (description.upgraded, description.reason) {
        (true, _) => "upgraded".to_string(),
        (false, Some(reason)) => format!("on kernel TCP: {reason}"),
        (false, None) => "on kernel TCP".to_string(),
    };
    let Some(mut ended) = ENDED.lock() else { return };
    match ended.iter_mut().find(|(known, _)| *known == text) {
        Some((_, count)) => *count += 1,
        None => ended.push((text, 1)),
    }
}

/// What was counted, a line for each reason.
pub(crate) fn report() -> String {
    let mut out = String::new();
    for (text, count) in ENDED.lock().iter().flat_map(|ended| ended.iter()) {
        let _ = writeln!(out, "vmmc: {count:>10} connections {text}");
    }
    for (reason, text) in TEXTS {
        let count = COUNTS[*reason as usize].load(Relaxed);
        if count > 0 {
            let _ = writeln!(out, "vmmc: {count:>10} calls left to the kernel: {text}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_what_was_counted() {
        count(Reason::Splice);
        assert!(report().contains("splice"));
        assert!(!report().contains("low-water"));
    }

    #[test]
    fn every_reason_is_its_place_in_the_table() {
        for (at, (reason, _)) in TEXTS.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
    }
}
