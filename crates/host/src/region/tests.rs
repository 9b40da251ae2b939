//! Tests of regions: what is refused, and what a mapping gives.
//!
//! Invariant: a check that needs what this machine lacks says so, and is counted as skipped.

use super::*;
use std::sync::atomic::Ordering;

#[test]
fn what_is_written_is_read_through_another_mapping() {
    let a = Region::create(10_000).unwrap();
    let b = Region::map(a.share().unwrap(), 10_000, Protection::ReadOnly).unwrap();
    a.write(4090, b"across a page").unwrap();
    let mut got = [0u8; 13];
    b.read(4090, &mut got).unwrap();
    assert_eq!(&got, b"across a page");
    a.word(8).unwrap().store(7, Ordering::Release);
    assert_eq!(b.word(8).unwrap().load(Ordering::Acquire), 7);
}

#[test]
fn what_is_cut_off_is_zeros_of_this_process_alone() {
    let ours = Region::create(8192).unwrap();
    let theirs = Region::map(ours.share().unwrap(), 8192, Protection::ReadWrite).unwrap();
    theirs.write(4096, b"before").unwrap();
    ours.cut_off().unwrap();
    assert!(ours.equals(4096, &[0; 6]));
    ours.write(4096, b"after").unwrap();
    assert!(theirs.equals(4096, b"before") && ours.equals(4096, b"after"));
    // It can be emptied still.
    ours.empty();
    assert!(theirs.equals(4096, &[0; 6]) && theirs.occupied_bytes() == 4096, "one page was read again");
}

#[test]
fn memory_that_is_not_mapped_is_emptied_for_all() {
    let made = Unmapped::create(8192).unwrap();
    let theirs = Region::map(made.share().unwrap(), 8192, Protection::ReadWrite).unwrap();
    theirs.write(0, b"kept").unwrap();
    assert_eq!(theirs.occupied_bytes(), 8192);
    made.empty();
    assert_eq!(theirs.occupied_bytes(), 0);
}

#[test]
fn ranges_outside_are_refused() {
    let a = Region::create(100).unwrap();
    assert_eq!(a.write(99, b"ab"), Err(OutOfBounds { offset: 99, len: 2, size: 100 }));
    assert!(a.read(u64::MAX, &mut [0]).is_err());
    assert!(a.word(96).is_err());
}

#[test]
fn an_unsealed_descriptor_is_refused() {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    assert!(matches!(Region::map(fd, 8192, Protection::ReadWrite), Err(RegionError::Unsealed { .. })));
}

/// A sealed memfd, made as somebody else might.
fn foreign(flags: MemfdFlags, mode: u32, len: u64, there: std::ops::Range<u64>) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    if !there.is_empty() {
        let reserve = FallocateFlags::empty();
        rustix::fs::fallocate(&fd, reserve, there.start, there.end - there.start).unwrap();
    }
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).unwrap();
    fd
}

fn why_refused(fd: OwnedFd, len: u64) -> &'static str {
    match Region::map(fd, len, Protection::ReadWrite) {
        Err(RegionError::Unsealed { why, .. }) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn memory_that_other_users_can_open_for_writing_is_refused() {
    let pages = 2 * PAGE_BYTES as u64;
    for mode in [0o777, 0o666, 0o646, 0o664] {
        assert!(why_refused(foreign(MemfdFlags::empty(), mode, pages, 0..pages), pages).contains("mode"));
    }
    for mode in [0o444, 0o600, 0o644] {
        Region::map(foreign(MemfdFlags::empty(), mode, pages, 0..pages), pages, Protection::ReadWrite).unwrap();
    }
}

#[test]
fn no_descriptor_of_ours_gives_more_than_it_was_opened_for() {
    let region = Region::create(4096).unwrap();
    let moved = Region::create(4096).unwrap();
    for fd in [region.share_read_only().unwrap(), region.share().unwrap(), moved.move_pages().unwrap()] {
        assert_eq!(Mode::from_raw_mode(rustix::fs::fstat(&fd).unwrap().st_mode), MODE);
    }
}

#[test]
fn memory_for_readers_is_written_by_its_maker_alone() {
    let region = Region::create_for_readers(4096).unwrap();
    let (fd, read_only) = (region.share().unwrap(), region.share_read_only().unwrap());
    rustix::fs::fchmod(&read_only, Mode::from_raw_mode(0o666)).unwrap();
    let path = format!("/proc/self/fd/{}", read_only.as_raw_fd());
    let again = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    rustix::fs::fchmod(&read_only, MODE).unwrap();
    for fd in [fd, again] {
        assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));
        let mapped = Region::map(fd, 4096, Protection::ReadWrite);
        assert!(matches!(mapped, Err(RegionError::System { call: "mmap", errno: Errno::PERM })), "{mapped:?}");
    }
    region.write(7, b"seen").unwrap();
    let mut got = [0; 4];
    Region::map(read_only, 4096, Protection::ReadOnly).unwrap().read(7, &mut got).unwrap();
    assert_eq!(&got, b"seen");
}

#[test]
fn memory_of_the_pool_of_huge_pages_is_refused() {
    let len = 2 << 20;
    // It needs no page of the pool to exist, only to be touched.
    assert!(why_refused(foreign(MemfdFlags::HUGETLB, 0o444, len, 0..0), len).contains("huge pages"));
}

/// Whether pages come one by one, so that a part of a memfd can have memory alone.
fn pages_come_alone() -> bool {
    let fd = foreign(MemfdFlags::empty(), 0o444, 1 << 20, 0..PAGE_BYTES as u64);
    let alone = rustix::fs::fstat(&fd).unwrap().st_blocks == PAGE_BYTES as i64 / 512;
    if !alone {
        println!("SKIP holes: /sys/kernel/mm/transparent_hugepage/shmem_enabled gives more than was asked for");
    }
    alone
}

#[test]
fn holes_are_found_wherever_the_pages_are() {
    if !pages_come_alone() {
        return;
    }
    let (len, page) = (1 << 20, PAGE_BYTES as u64);
    for (size, there) in [(2 * len, len..2 * len), (len, page..len), (len, 0..len - page), (len + page, 0..len)] {
        let why = why_refused(foreign(MemfdFlags::empty(), 0o444, size, there.clone()), len);
        assert!(why == "it is longer" || why == "its memory is not reserved", "{there:?} of {size}: {why}");
    }
}

#[test]
fn memory_beyond_the_end_hides_no_holes() {
    if !pages_come_alone() {
        return;
    }
    let (len, keep) = (1 << 20, FallocateFlags::KEEP_SIZE);
    let make = |seals: [SealFlags; 2], at: u64| {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::fchmod(&fd, MODE).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals[0]).unwrap();
        rustix::fs::fallocate(&fd, keep, at, len).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals[1]).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512, len, "the count of blocks looks right");
        fd
    };
    let none = SealFlags::empty();
    assert!(why_refused(make([SealFlags::SHRINK, none], len), len).contains("growing"));
    let fd = foreign(MemfdFlags::empty(), 0o444, len, 0..len);
    if memory_beyond(&fd, len).is_none() {
        return println!("SKIP memory beyond the end: this kernel has no cachestat");
    }
    for at in [len, 1 << 40] {
        assert_eq!(why_refused(make([none, SIZE_SEALS], at), len), "its memory is not reserved", "at {at}");
    }
    // All of it is there, and some beyond; that hurts nobody.
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fchmod(&fd, MODE).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fallocate(&fd, keep, 0, 2 * len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).unwrap();
    Region::map(fd, len, Protection::ReadWrite).unwrap();
}

#[test]
fn a_part_gets_its_memory_when_it_is_reserved_and_gives_it_back() {
    if !pages_come_alone() {
        return;
    }
    let blocks = |r: &Region| rustix::fs::fstat(r.share().unwrap()).unwrap().st_blocks as u64 * 512;
    let a = Region::create_in_part(1 << 20, 4096).unwrap();
    assert_eq!(blocks(&a), 4096);
    assert!(Region::map(a.share().unwrap(), 1 << 20, Protection::ReadWrite).is_err(), "not all of it is reserved");
    let b = Region::map_in_part(a.share().unwrap(), 1 << 20, 4096, Protection::ReadWrite).unwrap();
    a.reserve(65_536, 65_536).unwrap();
    assert_eq!(blocks(&a), 4096 + 65_536);
    a.write(70_000, b"there").unwrap();
    let mut got = [0u8; 5];
    b.read(70_000, &mut got).unwrap();
    assert_eq!(&got, b"there");
    a.release(65_536, 65_536);
    assert_eq!(blocks(&a), 4096);
    assert!(a.reserve(1 << 20, 1).is_err());
}

#[test]
fn a_short_descriptor_is_refused() {
    let a = Region::create(4096).unwrap();
    assert!(matches!(Region::map(a.share().unwrap(), 8192, Protection::ReadWrite), Err(RegionError::Unsealed { .. })));
}

#[test]
fn a_read_only_descriptor_cannot_be_mapped_for_writing() {
    let a = Region::create(4096).unwrap();
    let fd = a.share_read_only().unwrap();
    assert!(matches!(Region::map(fd, 4096, Protection::ReadWrite), Err(RegionError::System { call: "mmap", .. })));
}

#[test]
fn more_memory_than_there_is_is_an_error_not_a_signal() {
    assert!(matches!(Region::create(1 << 45), Err(RegionError::MemoryShort { .. })));
    assert!(matches!(Region::create(0), Err(RegionError::Size { len: 0 })));
}

#[test]
fn moved_pages_keep_their_content_and_leave_old_mappings_behind() {
    let a = Region::create(8192).unwrap();
    let old = Region::map(a.share().unwrap(), 8192, Protection::ReadWrite).unwrap();
    a.write(5000, b"kept").unwrap();
    a.move_pages().unwrap();
    old.write(5000, b"lost").unwrap();
    let mut got = [0u8; 4];
    a.read(5000, &mut got).unwrap();
    assert_eq!(&got, b"kept");
}

#[test]
fn copies_between_regions_may_overlap() {
    let a = Region::create(4096).unwrap();
    a.write(0, b"abcdef").unwrap();
    a.copy_to(0, &a, 2, 6).unwrap();
    let mut got = [0u8; 8];
    a.read(0, &mut got).unwrap();
    assert_eq!(&got, b"ababcdef");
}
