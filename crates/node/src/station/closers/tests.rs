//! Closing that waits, seen from the thread that drops.

use super::*;
use crate::testing::{as_user, can_be_others, connection};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Far beyond any test.
const LINGER: Duration = Duration::from_secs(600);

fn soon(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "it has not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn waiting(closers: &Closers) -> usize {
    closers.0.unclosed.load(Ordering::Relaxed)
}

#[test]
fn descriptors_are_sorted_by_what_closing_them_may_wait_for() {
    let of = |fd: OwnedFd| kind(&fd);
    assert_eq!(of(vmmc_host::Region::create(4096).unwrap().share().unwrap()), Kind::Memory);
    assert_eq!(of(rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap()), Kind::Harmless);
    assert_eq!(of(rustix::pipe::pipe().unwrap().1), Kind::Harmless);
    assert_eq!(of(vmmc_host::Channel::pair().unwrap().0.into_fd()), Kind::Socket);
    assert_eq!(of(std::fs::File::open("/dev/null").unwrap().into()), Kind::Strange);
    let path = rustix::fs::open("/", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    assert_eq!(of(path), Kind::Strange);
}

#[test]
fn a_socket_that_lingers_holds_up_nobody_but_its_own_user() {
    let closers = Closers::new(false);
    let start = Instant::now();
    let given = closers.sort(1, vec![connection(Some(LINGER)).unwrap()]);
    assert_eq!((given.fds.len(), given.strange.len()), (0, 1));
    drop(given);
    drop(closers.socket(2, vmmc_host::Channel::pair().unwrap().0));
    assert!(start.elapsed() < Duration::from_secs(5), "closing waited {:?}", start.elapsed());
    soon(|| waiting(&closers) == 1);
    assert!(closers.take_closed().iter().all(|(uid, _)| *uid == 2));
}

#[test]
fn a_close_that_waits_is_interrupted() {
    signal_hook::flag::register(vmmc_host::process::INTERRUPT, Arc::default()).unwrap();
    let closers = Closers::new(false);
    closers.stand_by();
    for _ in 0..40 {
        // One by itself, and one in what nobody reads.
        drop(closers.sort(1, vec![connection(Some(LINGER)).unwrap()]));
        let (theirs, ours) = vmmc_host::Channel::pair().unwrap();
        let lingers = connection(Some(LINGER)).unwrap();
        theirs.try_send(b"", &[std::os::fd::AsFd::as_fd(&lingers)]).unwrap();
        // Its last copy is in the message, so it is not this thread that lingers.
        drop(lingers);
        drop(closers.socket(1, ours));
    }
    soon(|| waiting(&closers) == 0);
    assert!(!closers.is_stuck(1) && closers.0.gifts.load(Ordering::Relaxed) == 0);
}

#[test]
fn what_no_thread_can_be_had_for_waits_and_is_counted() {
    if !can_be_others() {
        return;
    }
    let closers = Closers::new(false);
    as_user(crate::testing::HOSTILE, || {
        let old = getrlimit(Resource::Nproc);
        setrlimit(Resource::Nproc, Rlimit { current: Some(1), maximum: old.maximum }).unwrap();
        if std::thread::Builder::new().spawn(|| ()).is_ok() {
            println!("SKIP: the kernel bounds no threads here");
        } else {
            (0..UNCLOSED_MAX).for_each(|_| drop(closers.sort(1, vec![connection(None).unwrap()])));
            assert!(waiting(&closers) == UNCLOSED_MAX && closers.is_stuck(1) && !closers.is_stuck(2));
            assert!(closers.take_closed().is_empty());
        }
        setrlimit(Resource::Nproc, old).unwrap();
    });
    drop(closers.socket(2, vmmc_host::Channel::pair().unwrap().0));
    soon(|| waiting(&closers) == 0);
    assert!(!closers.is_stuck(1));
}

#[test]
fn nothing_is_closed_while_a_process_is_made() {
    let closers = Closers::new(false);
    let paused = closers.pause();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(closers.socket(7, OwnedFd::from(ours)));
    std::thread::sleep(Duration::from_millis(50));
    theirs.set_nonblocking(true).unwrap();
    let read = |mut from: &std::os::unix::net::UnixStream| std::io::Read::read(&mut from, &mut [0; 1]);
    assert_eq!(read(&theirs).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it is open");
    drop(paused);
    theirs.set_nonblocking(false).unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(read(&theirs).unwrap(), 0, "it was closed");
}

fn regions(count: usize) -> Holdings {
    let mut all = Holdings::default();
    (0..count).for_each(|_| all.add(&Holdings::of_region()));
    all
}

/// So many pieces, each of which has one region's share; says how many are left.
struct Pieces(Arc<AtomicUsize>);

impl Leftover for Pieces {
    fn give_up(&mut self) -> Option<Holdings> {
        let left = self.0.load(Ordering::Relaxed);
        if left == 0 {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
        self.0.store(left - 1, Ordering::Relaxed);
        Some(Holdings::of_region())
    }
}

#[test]
fn memory_is_given_up_in_pieces_users_in_turn_and_nothing_while_a_process_is_made() {
    let closers = Closers::new(false);
    let (much, little) = (Arc::new(AtomicUsize::new(400)), Arc::new(AtomicUsize::new(3)));
    closers.give_up(1, Pieces(much.clone()));
    closers.give_up(2, Pieces(little.clone()));
    soon(|| little.load(Ordering::Relaxed) == 0);
    assert!(much.load(Ordering::Relaxed) > 100, "one user's memory waited for that of another");
    let paused = closers.pause();
    std::thread::sleep(Duration::from_millis(20));
    let left = much.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(much.load(Ordering::Relaxed), left, "a piece was given up meanwhile");
    drop(paused);
    soon(|| much.load(Ordering::Relaxed) == 0);
    let mut back = HashMap::new();
    soon(|| {
        for (uid, held) in closers.take_closed() {
            back.entry(uid).or_insert_with(Holdings::default).add(&held);
        }
        back.get(&1) == Some(&regions(400)) && back.get(&2) == Some(&regions(3))
    });
    assert!(!closers.are_full() && waiting(&closers) == 0);
}
