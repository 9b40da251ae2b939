//! Whether addresses are ordinary private memory: asked of the kernel mapping by mapping, or read
//! from its text where it is too old for questions.
//!
//! Invariant: what may be a running thread's stack is never called suitable: its frames cannot move
//! under it. Both ways give the same answer; a test compares them.

use super::PinError;
use crate::adopt::parse_line;
use crate::limits::GUARD_BYTES_MAX;
use crate::region::is_region;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// _IOWR('f', 17, struct procmap_query), since Linux 6.11.
const PROCMAP_QUERY: u64 = 0xc068_6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
/// The mapping at the address, or the next one above it.
const OR_NEXT: u64 = 0x10;
/// Longest name that is looked at: programs may name anonymous memory with up to 80 bytes, and what
/// is longer is the path of a file.
const NAME_BYTES: usize = 96;

/// Longest line of the memory map that is looked at where nothing may be allocated. Those of this
/// library's memory have less than 100 bytes.
const LINE_BYTES: usize = 1024;

/// struct procmap_query of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    low: u64,
    high: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// What decides about a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    low: usize,
    high: usize,
    flags: u64,
    /// Of a file, or the main thread's stack.
    named: bool,
}

impl Mapping {
    fn is_guard(&self) -> bool {
        self.flags & (READABLE | WRITABLE | EXECUTABLE) == 0 && self.high - self.low <= GUARD_BYTES_MAX
    }

    /// Why it is not to be pinned.
    fn fault(&self, here: usize, guarded: bool) -> Option<&'static str> {
        match self {
            _ if self.flags & (READABLE | WRITABLE | EXECUTABLE) != READABLE | WRITABLE => {
                Some("not writable, or executable")
            }
            _ if self.flags & SHARED != 0 => Some("shared"),
            Mapping { named: true, .. } => Some("of a file, or the stack"),
            _ if (self.low..self.high).contains(&here) || guarded => Some("a thread's stack, perhaps"),
            _ => None,
        }
    }
}

/// The memory map of this process.
pub(super) struct Mappings {
    /// Of /proc/self/maps, for questions; the kernel answers for the process that opened it.
    file: Option<File>,
    /// The kernel knows no questions.
    text_only: AtomicBool,
}

impl Mappings {
    pub(super) fn new() -> Mappings {
        Mappings { file: File::open("/proc/self/maps").ok(), text_only: AtomicBool::new(false) }
    }

    /// Refuses what is not ordinary private memory in `[start, end)`.
    pub(super) fn suitable(&self, start: usize, end: usize) -> Result<(), PinError> {
        if let Some(file) = self.file.as_ref().filter(|_| !self.text_only.load(Ordering::Relaxed)) {
            match asked(file, start, end) {
                Some(answer) => return answer,
                None => self.text_only.store(true, Ordering::Relaxed),
            }
        }
        read(start, end)
    }
}

/// By questions; none if the kernel takes none.
fn asked(file: &File, start: usize, end: usize) -> Option<Result<(), PinError>> {
    let here = &start as *const usize as usize;
    let mut covered = start;
    let mut guarded = None;
    while covered < end {
        let mapping = match query(file, covered, OR_NEXT) {
            Ok(mapping) if mapping.low <= covered => mapping,
            Ok(_) | Err(libc::ENOENT) => return Some(refuse(covered, "not mapped")),
            Err(_) => return None,
        };
        let below = guarded
            .unwrap_or_else(|| mapping.low > 0 && query(file, mapping.low - 1, 0).is_ok_and(|below| below.is_guard()));
        if let Some(what) = mapping.fault(here, below) {
            return Some(refuse(covered, what));
        }
        guarded = Some(mapping.is_guard());
        covered = mapping.high;
    }
    Some(Ok(()))
}

fn query(file: &File, address: usize, flags: u64) -> Result<Mapping, i32> {
    let mut name = [0u8; NAME_BYTES];
    let size = size_of::<Query>() as u64;
    let mut query = Query { size, flags, address: address as u64, ..Query::default() };
    (query.name_size, query.name) = (NAME_BYTES as u32, name.as_mut_ptr() as u64);
    // SAFETY: the kernel reads and writes one struct procmap_query, which `query` is, and at most
    // NAME_BYTES of `name`, which lives until the call returns.
    let mut result = unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    let mut named = false;
    if result != 0 && errno() == libc::ENAMETOOLONG {
        named = true;
        query = Query { size, flags, address: address as u64, ..Query::default() };
        // SAFETY: as above, and no name is asked for.
        result = unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    }
    if result != 0 {
        return Err(errno());
    }
    let len = (query.name_size as usize).min(NAME_BYTES);
    let name = name[..len].split(|byte| *byte == 0).next().unwrap_or(&[]);
    named |= query.inode != 0 || !ordinary(&String::from_utf8_lossy(name));
    Ok(Mapping { low: query.low as usize, high: query.high as usize, flags: query.vma_flags & 0xf, named })
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

/// Names of memory that belongs to the program's allocators.
fn ordinary(name: &str) -> bool {
    name.is_empty() || name == "[heap]" || name.starts_with("[anon")
}

/// By the kernel's text.
fn read(start: usize, end: usize) -> Result<(), PinError> {
    let here = &start as *const usize as usize;
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut covered = start;
    let mut guard = 0;
    for line in text.lines() {
        let Some((low, high, rights, name)) = parse_line(line) else { continue };
        let bits = [(b'r', READABLE), (b'w', WRITABLE), (b'x', EXECUTABLE), (b's', SHARED)];
        let flags = bits.iter().filter(|(letter, _)| rights.as_bytes().contains(letter)).map(|(_, bit)| bit).sum();
        let mapping = Mapping { low, high, flags, named: !ordinary(name) };
        let below = std::mem::replace(&mut guard, if mapping.is_guard() { high } else { 0 });
        if high <= covered || low >= end {
            continue;
        }
        if low > covered {
            return refuse(covered, "not mapped");
        }
        if let Some(what) = mapping.fault(here, below == low && low > 0) {
            return refuse(covered, what);
        }
        covered = high;
    }
    if covered < end { refuse(covered, "not mapped") } else { Ok(()) }
}

/// Calls `found` with each piece of shared memory of this library that lies in the address space
/// and can be read, in order. An error if the kernel does not say; some may have been found before
/// it.
///
/// Allocates nothing: it runs where the allocator's own memory must not change yet.
pub(super) fn own_shared_mappings(mut found: impl FnMut(Range<usize>)) -> std::io::Result<()> {
    lines_of(File::open("/proc/self/maps")?, |line| {
        let own = |rights: &str, name: &str| rights.starts_with('r') && rights.ends_with('s') && is_region(name);
        match parse_line(line) {
            Some((low, high, rights, name)) if own(rights, name) => found(low..high),
            _ => {}
        }
    })
}

/// Calls `found` with each line, but for those that are longer than [`LINE_BYTES`] or no text: the
/// paths of others' files. Allocates nothing.
fn lines_of(mut text: impl Read, mut found: impl FnMut(&str)) -> std::io::Result<()> {
    let mut buffer = [0u8; LINE_BYTES];
    let (mut filled, mut too_long) = (0, false);
    loop {
        match text.read(&mut buffer[filled..])? {
            0 => return Ok(()),
            more => filled += more,
        }
        let mut start = 0;
        while let Some(len) = buffer[start..filled].iter().position(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(&buffer[start..start + len]);
            if !std::mem::take(&mut too_long) {
                line.into_iter().for_each(&mut found);
            }
            start += len + 1;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
        if filled == buffer.len() {
            (filled, too_long) = (0, true);
        }
    }
}

fn refuse(address: usize, what: &str) -> Result<(), PinError> {
    Err(PinError::Unsuitable { address, what: what.to_string() })
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn lines_that_come_in_pieces_are_whole_and_those_that_are_too_long_are_left_out() {
        /// At most seven bytes a read.
        struct Trickle<'a>(&'a [u8]);
        impl Read for Trickle<'_> {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                let len = into.len().min(7);
                self.0.read(&mut into[..len])
            }
        }
        let fits = "b".repeat(LINE_BYTES - 1);
        let too_long = "c".repeat(2 * LINE_BYTES + 3);
        let text = format!("one\n\n{fits}\n{too_long}\nlast\nno end");
        let mut lines = Vec::new();
        lines_of(Trickle(text.as_bytes()), |line| lines.push(line.to_string())).expect("no error is made");
        assert_eq!(lines, ["one", "", fits.as_str(), "last"]);
    }

    #[test]
    fn own_shared_memory_is_found_while_it_is_there() {
        let region = crate::region::Region::create(4096).expect("a page");
        let at = region.address()..region.address() + 4096;
        let found = || {
            let mut found = false;
            own_shared_mappings(|own| found |= own.start <= at.start && at.end <= own.end).expect("a proc file system");
            found
        };
        assert!(found());
        drop(region);
        assert!(!found());
    }

    #[test]
    fn questions_and_the_text_give_the_same_answer_for_every_mapping() {
        let file = File::open("/proc/self/maps").expect("a proc file system");
        let text = std::fs::read_to_string("/proc/self/maps").expect("as above");
        let heap = vec![1u8; 1 << 20];
        let local = 0u8;
        // The vsyscall page is in the text, and is no mapping.
        let ranges =
            text.lines().filter_map(parse_line).map(|(low, high, ..)| (low, high)).filter(|(low, _)| *low < 1 << 47);
        let own = [heap.as_ptr() as usize, &raw const local as usize].map(|at| (at, at + 1));
        let mut compared = 0;
        for (low, high) in ranges.chain(own).chain([(0, 4096), (4096, 1 << 46)]) {
            for (start, end) in [(low, high), (high - 1, high), (low, high + 4096)] {
                let Some(answer) = asked(&file, start, end) else {
                    println!("SKIP questions about mappings: the kernel is older than 6.11");
                    return;
                };
                // Other tests map and unmap meanwhile: a difference that stays is one.
                let same = (0..100).any(|_| asked(&file, start, end) == Some(read(start, end)));
                assert!(same, "{start:#x} to {end:#x}: {answer:?}, {:?}", read(start, end));
                compared += 1;
            }
        }
        assert!(compared > 30 && asked(&file, own[0].0, own[0].1) == Some(Ok(())));
        assert!(asked(&file, own[1].0, own[1].1).is_some_and(|answer| answer.is_err()), "a stack");
    }
}
