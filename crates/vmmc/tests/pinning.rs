//! Address spaces that change under pinned memory, and nodes that run short of it.
//!
//! Source: [UTLB §3.4] and the promise that a stale translation is never used. The checker is
//! plain: every page of memory gets content of its own when it is made, and after each transfer
//! both sides must agree.

use std::time::{Duration, Instant};
use vmmc::{Export, Import, PinOptions, Pinned, SendOptions, Session};
use vmmc_host::pin::PinSpace;
use vmmc_node::{Embedded, KeySource, NodeConfig};
use vmmc_utlb::Rng;

const PAGE: usize = 4096;
const LONG: Duration = Duration::from_secs(30);

/// A private mapping that the test changes as it likes.
struct Mapping {
    at: *mut u8,
    pages: usize,
}

// SAFETY: the holder of the value has the mapping.
unsafe impl Send for Mapping {}

impl Mapping {
    fn map(at: *mut u8, pages: usize, flags: i32) -> Option<Mapping> {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: fresh pages where nothing is, or where the caller's own mapping is.
        let base = unsafe { libc::mmap(at.cast(), pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        (base != libc::MAP_FAILED).then_some(Mapping { at: base.cast(), pages })
    }

    fn new(pages: usize) -> Mapping {
        Mapping::map(std::ptr::null_mut(), pages, 0).expect("a few pages")
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours and lives as long as the value.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.pages * PAGE) }
    }

    fn fill(&mut self, seed: u64) {
        for (i, word) in self.bytes().chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(seed << 32 | (i as u64 + 1)).to_le_bytes());
        }
    }

    /// Elsewhere, with the same content.
    fn moved(self) -> Mapping {
        let elsewhere = std::mem::ManuallyDrop::new(Mapping::new(self.pages));
        let this = std::mem::ManuallyDrop::new(self);
        let len = this.pages * PAGE;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // Pinned pages lie in mappings of their own, so they are moved one by one.
        for at in (0..len).step_by(PAGE) {
            // SAFETY: both mappings are ours; the target is replaced.
            let to = unsafe { libc::mremap(this.at.add(at).cast(), PAGE, PAGE, flags, elsewhere.at.add(at)) };
            assert_ne!(to, libc::MAP_FAILED);
        }
        Mapping { at: elsewhere.at, pages: elsewhere.pages }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.at.cast(), self.pages * PAGE) };
    }
}

fn node(name: &str, pinned_pages: Option<u64>) -> Embedded {
    let mut config = NodeConfig::new(&format!("{name}-{}", std::process::id())).key(KeySource::Plain);
    config.pinned_pages_max = pinned_pages;
    Embedded::start(config).expect("the node starts")
}

/// A session that pins whatever can be pinned.
fn attach(node: &Embedded) -> Session {
    let session = Session::builder().timeout(LONG).over(node.attach().expect("the node takes us")).expect("attach");
    assert!(session.set_pinning(PinOptions::default().copied_up_to(0)));
    session
}

/// An export of the node's, and an import of it through the engine.
fn join(owner: &Session, user: &Session, name: &str, pages: usize) -> (Export, Import) {
    let export = owner.export((pages * PAGE) as u64).name(name).mappable(false).create().expect("export");
    (export, user.import(name).open().expect("import"))
}

fn can_pin() -> bool {
    let space = PinSpace::of_process();
    if let Err(why) = &space {
        println!("SKIP demand pinning: {why}");
    }
    space.is_ok()
}

fn check_send(import: &Import, export: &Export, data: &[u8], what: &str) {
    import.send(0, Pinned(data)).unwrap();
    check_arrived(import, export, data, what);
}

fn check_arrived(import: &Import, export: &Export, data: &[u8], what: &str) {
    import.flush().unwrap();
    let mut got = vec![0; data.len()];
    export.read(0, &mut got).unwrap();
    assert!(got == data, "{what}: the receiver has other bytes than the sender");
}

#[test]
fn memory_that_is_unmapped_moved_or_forked_is_never_used_by_its_old_translation() {
    const PAGES: usize = 8;
    if !can_pin() {
        return;
    }
    let node = node("changes", None);
    let (owner, user) = (attach(&node), attach(&node));
    user.set_pinning(PinOptions::default().pages_max(24).copied_up_to(0));
    let (export, import) = join(&owner, &user, "changes", PAGES);
    let mut rng = Rng::new(20_260_101);
    let mut pool: Vec<Mapping> = (0..6).map(|_| Mapping::new(PAGES)).collect();
    pool.iter_mut().enumerate().for_each(|(i, m)| m.fill(i as u64 + 1));
    for step in 10..900u64 {
        let at = rng.index(pool.len());
        let (first, count) = (rng.index(PAGES), 1 + rng.index(PAGES));
        let range = first * PAGE..(first + count).min(PAGES) * PAGE;
        match rng.index(15) {
            // At the same address, with new content.
            0 => {
                let (old, pages) = (pool[at].at, PAGES);
                std::mem::forget(std::mem::replace(&mut pool[at], Mapping::new(1)));
                // SAFETY: the mapping was just taken out of the pool.
                unsafe { libc::munmap(old.cast(), pages * PAGE) };
                pool[at] = Mapping::map(old, pages, libc::MAP_FIXED_NOREPLACE).unwrap_or_else(|| Mapping::new(pages));
                pool[at].fill(step);
            }
            // A part of it, mapped over without an munmap.
            1 => {
                let start = pool[at].at.wrapping_add(range.start);
                let part = Mapping::map(start, range.len() / PAGE, libc::MAP_FIXED).expect("over our own");
                std::mem::forget(part);
                pool[at].bytes()[range].fill(step as u8 | 1);
            }
            2 => {
                let mapping = std::mem::replace(&mut pool[at], Mapping::new(1));
                pool[at] = mapping.moved();
            }
            3 => {
                // SAFETY: the child only stores to memory that it has a copy of, and ends.
                match unsafe { libc::fork() } {
                    0 => {
                        pool.iter_mut().for_each(|m| m.bytes().fill(0xAA));
                        // SAFETY: ends this process at once.
                        unsafe { libc::_exit(0) };
                    }
                    child => {
                        // SAFETY: waits for the child that was just made.
                        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                    }
                }
            }
            4 => user.forget(&mut pool[at].bytes()[range]).unwrap(),
            5 => {
                let data = vec![step as u8 | 1; range.len()];
                export.write(0, &data).unwrap();
                import.fetch(0, Pinned(&mut pool[at].bytes()[range.clone()])).unwrap();
                assert!(pool[at].bytes()[range] == data[..], "step {step}: fetched bytes are elsewhere");
            }
            6 => pool[at].fill(step),
            // Lent just now, and under way while other memory is sent.
            7 => {
                let data = user.lend(&pool[at].bytes()[range.clone()]);
                import.send(0, data.range(0..range.len())).unwrap();
                check_arrived(&import, &export, data.bytes(), &format!("step {step}, lent"));
            }
            8 => {
                let (this, next) = (at.min((at + 1) % 6), at.max((at + 1) % 6));
                let (front, back) = pool.split_at_mut(next);
                let (one, two) = (&front[this].bytes()[range.clone()], &back[0].bytes()[range]);
                let sends = [one, two].map(|data| import.post_send(0, Pinned(data), SendOptions::default()).unwrap());
                sends.into_iter().for_each(|mut send| _ = send.wait().unwrap());
                check_arrived(&import, &export, two, &format!("step {step}, under way"));
            }
            9 => {
                let data = vec![step as u8 | 1; range.len()];
                export.write(0, &data).unwrap();
                let mut fetch = import.post_fetch(0, Pinned(vec![0; range.len()])).unwrap();
                fetch.wait().unwrap();
                assert!(fetch.into_inner() == data, "step {step}: bytes fetched under way are elsewhere");
            }
            _ => check_send(&import, &export, &pool[at].bytes()[range], &format!("step {step}")),
        }
    }
    let stats = user.stats();
    assert!(stats.pin_pins > 100 && stats.pin_evictions > 0 && stats.pin_unpins > stats.pin_evictions, "{stats:?}");
}

#[test]
fn another_threads_munmap_that_has_not_returned_leaves_no_stale_translation() {
    if !can_pin() {
        return;
    }
    let node = node("races", None);
    let (owner, user) = (attach(&node), attach(&node));
    for pages in [1, 6] {
        let name = format!("races-{pages}");
        let (export, import) = join(&owner, &user, &name, pages);
        let mut mapping = Mapping::new(pages);
        let mut lost = 0;
        for round in 1..120u64 {
            let address = mapping.at as usize;
            mapping.fill(round);
            check_send(&import, &export, mapping.bytes(), "before");
            // One thread unmaps; the other takes the address as soon as it is free, which is before
            // munmap has returned.
            let unmapper = std::thread::spawn(move || drop(mapping));
            let until = Instant::now() + LONG;
            mapping = loop {
                let unmapped = unmapper.is_finished();
                if let Some(taken) = Mapping::map(address as *mut u8, pages, libc::MAP_FIXED_NOREPLACE) {
                    break taken;
                }
                assert!(Instant::now() < until, "round {round}: munmap neither frees its range nor returns");
                if unmapped {
                    // Something else in this process lies there by now.
                    lost += 1;
                    break Mapping::new(pages);
                }
            };
            mapping.fill(round | 1 << 20);
            check_send(&import, &export, mapping.bytes(), &format!("round {round}"));
            mapping.fill(round | 1 << 21);
            export.write(0, &vec![round as u8; pages * PAGE]).unwrap();
            import.fetch(0, Pinned(mapping.bytes())).unwrap();
            assert!(mapping.bytes().iter().all(|b| *b == round as u8), "round {round}: fetched bytes are elsewhere");
            unmapper.join().unwrap();
        }
        assert!(lost < 20, "{lost} of 119 ranges were taken by others");
    }
}

#[test]
fn a_process_gives_back_what_others_need() {
    if !can_pin() {
        return;
    }
    let node = node("shares", Some(16));
    let (owner, first, second) = (attach(&node), attach(&node), attach(&node));
    let (export, one) = join(&owner, &first, "shares", 4);
    let two = second.import("shares").open().unwrap();
    let (mut mine, mut theirs) = (Mapping::new(16), Mapping::new(4));
    mine.fill(1);
    theirs.fill(2);
    for at in (0..16 * PAGE).step_by(4 * PAGE) {
        check_send(&one, &export, &mine.bytes()[at..at + 4 * PAGE], "alone");
    }
    assert_eq!(first.stats().pinned_pages, 16, "a process alone may have all");
    check_send(&two, &export, theirs.bytes(), "the second");
    assert_eq!((second.stats().pinned_pages, second.stats().pin_copied), (4, 0));
    // What the first one lost it pins again, giving up pages of its own.
    for at in (0..16 * PAGE).step_by(4 * PAGE) {
        check_send(&one, &export, &mine.bytes()[at..at + 4 * PAGE], "again");
    }
    check_send(&two, &export, theirs.bytes(), "the second again");
    let counters = first.node_info(true).unwrap().counters;
    let counter = |name: &str| counters.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
    assert!(counter("pinned_pages").is_some_and(|pages| pages <= 16), "{counters:?}");
    assert!(counter("pins_asked_back").is_some_and(|pages| pages >= 4), "{counters:?}");
    assert_eq!(counter("translation_garbage"), Some(0));
}
