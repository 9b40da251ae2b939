//! Tests of reservations: what is refused, what the two views see, and what the kernel maps.

use super::*;

fn place(pages: u64) -> Reservation {
    Reservation::new(pages * PAGE).unwrap()
}

fn memory(pages: u64) -> Region {
    Region::create(pages * PAGE).unwrap()
}

/// Bytes of a range of addresses that lie in memory, as the kernel counts its pages.
fn resident_bytes(place: &Reservation, offset: u64, len: u64) -> u64 {
    let mut there = vec![0u8; (len / PAGE) as usize];
    // SAFETY: the range is mapped, and one byte is written for each of its pages.
    let done = unsafe { libc::mincore(place.as_ptr().add(offset as usize).cast(), len as usize, there.as_mut_ptr()) };
    assert_eq!(done, 0);
    there.iter().filter(|page| **page & 1 != 0).count() as u64 * PAGE
}

/// Mappings of the kernel's that lie in the reservation.
pub(crate) fn mappings(place: &Reservation) -> usize {
    let span = place.address()..place.address() + place.len_bytes() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let starts = maps.lines().filter_map(|line| usize::from_str_radix(line.split_once('-')?.0, 16).ok());
    starts.filter(|start| span.contains(start)).count()
}

#[test]
fn two_views_show_the_same_bytes() {
    let (place, memory) = (place(8), memory(4));
    place.fill(2 * PAGE, &memory, PAGE, 3 * PAGE, Access::ReadWrite).unwrap();
    memory.write(PAGE + 5, b"from the model").unwrap();
    let mut seen = [0; 14];
    place.read(2 * PAGE + 5, &mut seen).unwrap();
    assert_eq!(&seen, b"from the model");
    place.store(4 * PAGE + 8, 77).unwrap();
    assert_eq!(memory.word(3 * PAGE + 8).unwrap().load(Ordering::Acquire), 77);
    place.write(4 * PAGE - 2, b"over pages").unwrap();
    assert!(memory.equals(3 * PAGE - 2, b"over pages"));
    // The model writes what the program may not even read, and finds its view from an address.
    place.protect(2 * PAGE, PAGE, Access::None).unwrap();
    let view = place.behind(2 * PAGE + 100).unwrap();
    assert_eq!((view.offset, view.len), (PAGE + 100, PAGE - 100));
    view.region.write(view.offset, b"hidden").unwrap();
    place.protect(2 * PAGE, PAGE, Access::Read).unwrap();
    place.read(2 * PAGE + 100, &mut seen[..6]).unwrap();
    assert_eq!(&seen[..6], b"hidden");
}

#[test]
fn a_chosen_place_is_given_or_refused_and_nothing_there_is_replaced() {
    let first = place(16);
    let (address, region) = (first.address(), memory(1));
    first.fill(8 * PAGE, &region, 0, PAGE, Access::ReadWrite).unwrap();
    first.store(8 * PAGE, 5).unwrap();
    for (from, pages) in [(0, 16), (8, 1), (15, 9)] {
        let (at, len) = (address + from * PAGE_BYTES, pages * PAGE);
        let refused = Reservation::at(at, len).unwrap_err();
        assert_eq!(refused, ReservationError::Taken { address: at as u64, len });
    }
    assert_eq!(first.load(8 * PAGE).unwrap(), 5);
    drop(first);
    // Another test's thread may be given the place in between.
    match Reservation::at(address, 16 * PAGE) {
        Ok(second) => assert_eq!((second.address(), second.len_bytes()), (address, 16 * PAGE)),
        Err(error) => assert!(matches!(error, ReservationError::Taken { .. }), "{error}"),
    }
}

#[test]
fn sizes_and_places_that_make_no_sense_are_refused() {
    for len in [0, 1, PAGE - 1, PAGE + 1, RESERVATION_BYTES_MAX + PAGE, u64::MAX] {
        assert_eq!(Reservation::new(len).unwrap_err(), ReservationError::Size { len });
        assert_eq!(Reservation::at(1 << 40, len).unwrap_err(), ReservationError::Size { len });
    }
    for address in [0, 1, (1 << 40) + 8, ADDRESSES_END, ADDRESSES_END - PAGE, u64::MAX - PAGE + 1] {
        let refused = Reservation::at(address as usize, 2 * PAGE).unwrap_err();
        assert_eq!(refused, ReservationError::Address { address, len: 2 * PAGE });
        assert!(refused.to_string().contains(&format!("{address:#x}")), "{refused}");
    }
}

#[test]
fn ranges_that_are_no_pages_inside_are_refused_and_change_nothing() {
    let (place, memory, size) = (place(4), memory(2), 4 * PAGE);
    place.fill(0, &memory, 0, PAGE, Access::Read).unwrap();
    let wrong = [(0, 0), (1, PAGE), (0, PAGE + 1), (4 * PAGE, PAGE), (3 * PAGE, 2 * PAGE), (u64::MAX - PAGE + 1, PAGE)];
    for (offset, len) in wrong {
        let expected = Err(ReservationError::Pages { offset, len, size });
        assert_eq!(place.fill(offset, &memory, 0, len, Access::Read), expected);
        assert_eq!(place.protect(offset, len, Access::Read), expected);
        assert_eq!(place.release(offset, len), expected);
    }
    for (offset, len) in [(8, PAGE), (PAGE, 2 * PAGE), (u64::MAX - PAGE + 1, PAGE)] {
        let expected = Err(ReservationError::RegionPages { offset, len, size: 2 * PAGE });
        assert_eq!(place.fill(0, &memory, offset, len, Access::Read), expected);
    }
    assert_eq!(place.protect(0, 2 * PAGE, Access::ReadWrite), Err(ReservationError::NoMemory { offset: PAGE }));
    assert_eq!((place.access(0), place.access(PAGE)), (Some(Access::Read), None));
    assert_eq!(place.load(4), Err(ReservationError::Misaligned { offset: 4 }));
    for offset in [size, size - 4, u64::MAX - 7] {
        assert!(matches!(place.read(offset, &mut [0; 8]), Err(ReservationError::Outside { .. })));
        assert!(matches!(place.write(offset, &[0; 8]), Err(ReservationError::Outside { .. })));
    }
}

#[test]
fn memory_that_is_for_readers_is_not_opened_for_writing() {
    let place = place(4);
    let sealed = Region::create_for_readers(PAGE).unwrap();
    let readers = Region::map(sealed.share_read_only().unwrap(), PAGE, Protection::ReadOnly).unwrap();
    for region in [sealed, readers] {
        let refused = Err(ReservationError::ReadOnly { offset: PAGE });
        assert_eq!(place.fill(PAGE, &region, 0, PAGE, Access::ReadWrite), refused);
        place.fill(PAGE, &region, 0, PAGE, Access::Read).unwrap();
        assert_eq!(place.protect(PAGE, PAGE, Access::ReadWrite), refused);
        assert_eq!(place.access(PAGE), Some(Access::Read));
        assert_eq!(place.load(PAGE), Ok(0));
    }
}

#[test]
fn a_released_range_has_no_memory_and_lets_its_region_go() {
    let (place, memory) = (place(8), memory(8));
    place.fill(0, &memory, 0, 8 * PAGE, Access::ReadWrite).unwrap();
    place.write(0, &[1; 8 * PAGE_BYTES]).unwrap();
    assert_eq!((resident_bytes(&place, 0, 8 * PAGE), memory.users()), (8 * PAGE, 2));
    place.release(2 * PAGE, 4 * PAGE).unwrap();
    assert_eq!(resident_bytes(&place, 2 * PAGE, 4 * PAGE), 0);
    assert_eq!((place.access(2 * PAGE), place.ranges(), memory.users()), (None, 2, 3));
    // The bytes are the region's until it is told.
    assert!(memory.equals(2 * PAGE, &[1; PAGE_BYTES]));
    memory.release(2 * PAGE, 4 * PAGE);
    assert_eq!(memory.occupied_bytes(), 4 * PAGE);
    place.release(0, 8 * PAGE).unwrap();
    // One mapping at most: the kernel joins it with a neighbour of the same kind.
    assert_eq!((place.ranges(), memory.users(), mappings(&place) <= 1), (0, 1, true));
}

#[test]
fn dropping_unmaps_and_lets_regions_go() {
    let memory = memory(4);
    let place = Reservation::new(1 << 34).unwrap();
    for at in [0, 1 << 20, (1 << 34) - PAGE] {
        place.fill(at, &memory, PAGE, PAGE, Access::ReadWrite).unwrap();
    }
    let clone = place.clone();
    drop(place);
    clone.store(1 << 20, 9).unwrap();
    assert_eq!((clone.load(0), memory.users()), (Ok(9), 4));
    let address = clone.address();
    drop(clone);
    assert_eq!(memory.users(), 1);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ends = maps.lines().filter_map(|line| line.split(' ').next()?.split_once('-'));
    let is_left = ends.into_iter().any(|(start, end)| {
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
        // Other tests may be given some of the place, and never so much.
        start < address + (1 << 34) && address < end && end - start > 1 << 32
    });
    assert!(!is_left, "{maps}");
}

#[test]
fn neighbours_of_one_kind_are_one_range_and_one_mapping() {
    let (place, memory) = (place(64), memory(64));
    for page in (0..64).step_by(2).chain((1..64).step_by(2)) {
        place.fill(page * PAGE, &memory, page * PAGE, PAGE, Access::Read).unwrap();
    }
    assert_eq!((place.ranges(), mappings(&place)), (1, 1));
    for page in (0..64).step_by(2) {
        place.protect(page * PAGE, PAGE, Access::ReadWrite).unwrap();
    }
    assert_eq!((place.ranges(), mappings(&place)), (64, 64));
    place.protect(0, 64 * PAGE, Access::None).unwrap();
    assert_eq!((place.ranges(), mappings(&place)), (1, 1));
    // The same bytes at another place are no neighbours.
    place.fill(PAGE, &memory, 0, PAGE, Access::None).unwrap();
    assert_eq!((place.ranges(), place.behind(PAGE).unwrap().offset), (3, 0));
}

#[test]
fn too_many_ranges_are_an_error_and_change_nothing() {
    let pages = RESERVATION_RANGES_MAX as u64;
    let (place, memory) = (place(2 * pages + 2), memory(1));
    for page in 0..pages {
        place.fill(2 * page * PAGE, &memory, 0, PAGE, Access::Read).unwrap();
    }
    let one_more = 2 * pages * PAGE;
    assert_eq!(place.fill(one_more, &memory, 0, PAGE, Access::Read), Err(ReservationError::Ranges));
    assert_eq!((place.access(one_more), place.ranges()), (None, RESERVATION_RANGES_MAX));
    place.release(0, PAGE).unwrap();
    place.fill(one_more, &memory, 0, PAGE, Access::Read).unwrap();
}

#[test]
fn pieces_are_cut_and_joined_as_pages_would_be() {
    // A model of single pages, changed at random alike.
    let (place, memory, pages) = (place(32), memory(64), 32);
    let mut model: Vec<Option<(u64, Access)>> = vec![None; pages];
    let mut rng = vmmc_utlb::Rng::new(1);
    let mut random = |below: u64| rng.below(below);
    for _ in 0..2_000 {
        let start = random(pages as u64);
        let count = 1 + random(pages as u64 - start);
        let (offset, len) = (start * PAGE, count * PAGE);
        let access = [Access::None, Access::Read, Access::ReadWrite][random(3) as usize];
        let range = start as usize..(start + count) as usize;
        match random(3) {
            0 => {
                let from = start * random(2) + random(2);
                place.fill(offset, &memory, from * PAGE, len, access).unwrap();
                (from..).zip(&mut model[range]).for_each(|(page, place)| *place = Some((page, access)));
            }
            1 => {
                place.release(offset, len).unwrap();
                model[range].fill(None);
            }
            _ => {
                let done = place.protect(offset, len, access);
                assert_eq!(done.is_ok(), model[range.clone()].iter().all(Option::is_some), "{done:?}");
                if done.is_ok() {
                    model[range].iter_mut().flatten().for_each(|(_, a)| *a = access);
                }
            }
        }
        let seen = |page: u64| Some((place.behind(page * PAGE)?.offset / PAGE, place.access(page * PAGE)?));
        assert!((0..).zip(&model).all(|(page, expected)| seen(page) == *expected));
        let joined = |a: &Option<(u64, Access)>, b: &Option<(u64, Access)>| match (a, b) {
            (Some((p, x)), Some((q, y))) => p + 1 == *q && x == y,
            (None, None) => true,
            _ => false,
        };
        assert_eq!(place.ranges(), model.chunk_by(joined).filter(|run| run[0].is_some()).count());
    }
}

#[test]
fn the_kernels_bound_on_mappings_is_an_error_that_says_so_and_changes_nothing() {
    // In a process of its own: others could map nothing meanwhile.
    let case = "VMMC_TEST_MAPPINGS_CASE";
    if std::env::var_os(case).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "reservation::tests::the_kernels_bound_on_mappings_is_an_error_that_says_so_and_changes_nothing";
        let output = command.args(["--exact", "--nocapture", test]).env(case, "1").output().unwrap();
        print!("{}", String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let bound = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse::<u64>().unwrap();
    if bound > 1 << 18 {
        println!("SKIP the bound on mappings: vm.max_map_count is {bound}, which takes long to reach");
        return;
    }
    let pages = RESERVATION_RANGES_MAX as u64 - 2;
    let memory = memory(3);
    let mut places: Vec<Reservation> = Vec::new();
    let refused = loop {
        let place = place(2 * pages + 4);
        places.push(place.clone());
        place.fill(2 * pages * PAGE, &memory, 0, 3 * PAGE, Access::Read).unwrap();
        let fill = |page| place.fill(2 * page * PAGE, &memory, 0, PAGE, Access::Read).err().map(|e| (page, e));
        if let Some(refused) = (0..pages).find_map(fill) {
            break refused;
        }
    };
    let (place, (page, error)) = (places.last().unwrap(), refused);
    assert!(matches!(error, ReservationError::Mappings { call: "mmap", errno: Errno::NOMEM }), "{error:?}");
    assert!(error.to_string().contains("vm.max_map_count"), "{error}");
    let before = (place.ranges(), place.access(2 * page * PAGE));
    assert_eq!(before, (page as usize + 1, None));
    // A page amid others needs two more mappings.
    let middle = (2 * pages + 1) * PAGE;
    let error = place.protect(middle, PAGE, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, ReservationError::Mappings { call: "mprotect", .. }), "{error:?}");
    let error = place.release(middle, PAGE).unwrap_err();
    assert!(matches!(error, ReservationError::Mappings { call: "mmap", .. }), "{error:?}");
    assert_eq!((place.ranges(), place.access(middle)), (page as usize + 1, Some(Access::Read)));
    assert_eq!(place.load(middle), Ok(0));
    // What needs no more mappings goes on, and room is room again.
    place.protect(2 * pages * PAGE, 3 * PAGE, Access::ReadWrite).unwrap();
    place.store(middle, 1).unwrap();
    drop(places.remove(0));
    places.last().unwrap().protect(middle, PAGE, Access::Read).unwrap();
}

#[test]
fn a_child_of_a_fork_does_not_wait_for_a_lock_that_a_thread_of_the_parent_held() {
    let place = Reservation::new(4 * PAGE).unwrap();
    let held = place.table().unwrap();
    // SAFETY: the child asks for the lock, which is waited for without memory, and ends without
    // running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = place.release(0, PAGE) == Err(ReservationError::Forked) && place.access(0).is_none();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    drop(held);
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert_eq!(place.release(0, PAGE), Ok(()), "the parent goes on");
}
