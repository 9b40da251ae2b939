//! A message whose descriptors do not fit: a process of its own, for its limit is all threads'.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsFd, AsRawFd};
use vmmc_host::Channel;
use vmmc_host::channel::{ChannelError, Fate};

#[test]
fn what_does_not_fit_stays_in_the_queue_and_is_not_closed() {
    let (a, b) = Channel::pair().unwrap();
    let (probe, kept) = Channel::pair().unwrap();
    a.try_send(b"z", &[kept.as_fd(), kept.as_fd()]).unwrap();
    drop(kept);
    let old = getrlimit(Resource::Nofile);
    // None fits, or one of the two.
    let next = probe.as_fd().try_clone_to_owned().unwrap().as_raw_fd() as u64;
    for (limit, come) in [(next, 0), (next + 1, 1)] {
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: old.maximum }).unwrap();
        let received = b.try_receive_all();
        setrlimit(Resource::Nofile, old).unwrap();
        let received = received.unwrap();
        assert_eq!((&received.bytes[..], received.fds.len(), received.fate), (&b"z"[..], come, Fate::Left));
        drop(received);
        assert_eq!(probe.try_receive().unwrap_err(), ChannelError::WouldBlock, "it was closed");
    }
    let received = b.try_receive_all().unwrap();
    assert_eq!((received.fds.len(), received.fate), (2, Fate::Whole));
    drop(received);
    assert_eq!(probe.try_receive().unwrap_err(), ChannelError::Closed);
}
