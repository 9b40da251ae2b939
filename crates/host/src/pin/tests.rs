//! Pinning, unpinning and what goes on beside them, in one process and in forked children.

use super::*;
use crate::Protection;
use rustix::mm::{MapFlags, ProtFlags};

/// Private pages of their own, so that no other test's memory lies on them.
fn pages(count: usize) -> &'static mut [u8] {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping that nobody else knows and that is never unmapped.
    unsafe {
        let base = rustix::mm::mmap_anonymous(std::ptr::null_mut(), count * PAGE_BYTES, prot, MapFlags::PRIVATE);
        std::slice::from_raw_parts_mut(base.expect("a few pages").cast(), count * PAGE_BYTES)
    }
}

fn number(slice: &[u8]) -> u64 {
    (slice.as_ptr() as usize / PAGE_BYTES) as u64
}

fn space() -> Option<&'static PinSpace> {
    match PinSpace::of_process() {
        Ok(space) => Some(space),
        Err(why) => {
            println!("SKIP demand pinning: {why}");
            None
        }
    }
}

fn unmap(slice: &mut [u8]) {
    // SAFETY: the tests do not touch the slice afterwards.
    unsafe { rustix::mm::munmap(slice.as_mut_ptr().cast(), slice.len()).expect("it is mapped") };
}

#[test]
fn taken_pages_keep_address_and_content_and_are_seen_through_the_arena() {
    let Some(space) = space() else { return };
    let memory = pages(5);
    memory.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
    space.take(&memory[PAGE_BYTES..4 * PAGE_BYTES]).expect("private pages");
    assert!(memory.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
    let frame = space.frame(number(memory) + 1).expect("taken");
    assert!(space.frame(number(memory)).is_none() && space.frame(number(memory) + 4).is_none());
    let arena = space.arena(frame.arena).expect("of the frame");
    assert!(arena.holds(frame.page, &memory[PAGE_BYTES..2 * PAGE_BYTES]));
    let node =
        Region::map(arena.share().expect("a descriptor"), arena.len_bytes(), Protection::ReadWrite).expect("ours");
    node.write(u64::from(frame.page) * PAGE_BYTES as u64 + 9, b"written by the node").expect("in it");
    assert_eq!(&memory[PAGE_BYTES + 9..][..19], b"written by the node");
    assert!(arena.carries(frame.page, &mut memory[PAGE_BYTES..2 * PAGE_BYTES], 77));
    space.give_private(&mut memory[PAGE_BYTES..4 * PAGE_BYTES]).expect("private again");
    node.write(u64::from(frame.page) * PAGE_BYTES as u64 + 9, b"lost").expect("in it");
    assert_eq!(&memory[PAGE_BYTES + 9..][..7], b"written");
    assert!(!arena.carries(frame.page, &mut memory[PAGE_BYTES..2 * PAGE_BYTES], 78));
}

#[test]
fn unmapped_pages_are_told_and_their_frames_wait_for_the_confirmation() {
    let Some(space) = space() else { return };
    let mut listener = space.listen();
    let memory = pages(3);
    space.take(memory).expect("private pages");
    let first = number(memory);
    let frame = space.frame(first + 1).expect("taken");
    unmap(&mut memory[PAGE_BYTES..2 * PAGE_BYTES]);
    let mine =
        |gone: Vec<(u64, Frame)>| gone.into_iter().filter(|(p, _)| (first..first + 3).contains(p)).collect::<Vec<_>>();
    assert_eq!(mine(listener.gone()), [(first + 1, frame)]);
    assert!(space.lock().limbo.contains_key(&frame), "not used again before the node has forgotten it");
    listener.confirm(&[frame]);
    assert!(!space.lock().limbo.get(&frame).is_some_and(|l| l.contains(&listener.id)));
    assert!(space.frame(first).is_some() && space.frame(first + 1).is_none());
}

#[test]
fn moved_pages_are_gone_from_where_they_were_and_keep_their_frames() {
    let Some(space) = space() else { return };
    let mut listener = space.listen();
    let memory = pages(2);
    memory.fill(9);
    space.take(memory).expect("private pages");
    let (first, frame) = (number(memory), space.frame(number(memory)).expect("taken"));
    let target = pages(2);
    let to = target.as_mut_ptr();
    // SAFETY: both are mappings of this test alone.
    unsafe {
        let flags = MremapFlags::MAYMOVE;
        rustix::mm::mremap_fixed(memory.as_mut_ptr().cast(), memory.len(), target.len(), flags, to.cast())
            .expect("moved");
    }
    assert!(listener.gone().iter().any(|(page, f)| (*page, *f) == (first, frame)));
    assert_eq!((space.frame(first), space.frame(number(target))), (None, Some(frame)));
    assert!(target.iter().all(|b| *b == 9));
}

/// A space with arenas of its own: one with a hole no longer counts as reserved.
fn own_space() -> Option<PinSpace> {
    space()?;
    Some(PinSpace::start().expect("as the first one"))
}

/// A hole in the arena under a page, which the kernel makes of unlocked pages only.
fn punch_hole(page: &mut [u8]) {
    let at = page.as_mut_ptr().cast();
    // SAFETY: the page is ours and becomes zeros.
    unsafe {
        rustix::mm::munlock(at, page.len()).expect("it is mapped");
        rustix::mm::madvise(at, page.len(), Advice::LinuxRemove).expect("a shared page");
    }
}

#[test]
fn a_page_whose_content_is_dropped_stays_where_it_is() {
    let Some(space) = own_space() else { return };
    let memory = pages(2);
    memory.fill(7);
    space.take(memory).expect("private pages");
    let frame = space.frame(number(memory)).expect("taken");
    punch_hole(&mut memory[..PAGE_BYTES]);
    space.synchronize();
    assert_eq!(space.frame(number(memory)), Some(frame), "its frame must not be given to others");
    assert!(memory[..PAGE_BYTES].iter().all(|byte| *byte == 0) && memory[PAGE_BYTES] == 7);
    memory[1] = 9;
    assert!(space.arena(frame.arena).expect("of the frame").holds(frame.page, &memory[..PAGE_BYTES]));
}

#[test]
fn a_thread_that_touches_a_hole_goes_on_whatever_others_unmap_meanwhile() {
    let Some(space) = own_space() else { return };
    let memory = pages(2);
    memory.fill(7);
    space.take(memory).expect("private pages");
    let touched = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let toucher = scope.spawn(|| {
            for _ in 0..2_000 {
                punch_hole(&mut memory[..PAGE_BYTES]);
                assert_eq!(memory[8], 0);
                memory[8] = 1;
            }
            touched.store(true, Ordering::Relaxed);
        });
        while !toucher.is_finished() {
            let short = pages(1);
            space.take(short).expect("private pages");
            unmap(short);
        }
    });
    assert!(touched.load(Ordering::Relaxed));
}

#[test]
fn a_forked_child_has_its_own_copy() {
    let Some(space) = space() else { return };
    let memory = pages(4);
    memory.fill(1);
    space.take(memory).expect("private pages");
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    // SAFETY: the child only writes to its memory and to a pipe, and ends without running anything
    // of the parent's.
    match unsafe { libc::fork() } {
        0 => {
            let was = memory[0];
            memory.fill(2);
            let _ = rustix::io::write(&write, &[was, memory[PAGE_BYTES]]);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) };
        }
        child => {
            // Written at once: the child must not see it.
            memory.fill(3);
            let mut said = [0u8; 2];
            assert_eq!(rustix::io::read(&read, &mut said).expect("the child writes"), 2);
            assert_eq!(said, [1, 2], "the child sees what was there at the fork, and its own stores");
            assert!(memory.iter().all(|b| *b == 3), "the parent's memory is not touched by the child");
            // SAFETY: waits for the child that was just made.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
    let frame = space.frame(number(memory)).expect("still taken in the parent");
    assert!(space.arena(frame.arena).expect("its arena").holds(frame.page, &memory[..PAGE_BYTES]));
}

#[test]
fn stacks_files_and_shared_memory_are_refused() {
    let Some(space) = space() else { return };
    let local = [0u8; 4 * PAGE_BYTES];
    let skip = local.as_ptr().align_offset(PAGE_BYTES);
    assert!(matches!(space.take(&local[skip..skip + PAGE_BYTES]), Err(PinError::Unsuitable { .. })));
    let region = Region::create(4096).expect("a page");
    // SAFETY: the region lives until the end of the test, and nobody writes to it.
    let shared = unsafe { std::slice::from_raw_parts(region.as_ptr(), 4096) };
    assert!(matches!(space.take(shared), Err(PinError::Unsuitable { .. })));
}
