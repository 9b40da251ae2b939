//! A network on a kernel that refuses, and on the real one.
//!
//! Invariant: nothing that the engine has handed over is lost for want of room, sent twice or sent
//! out of order; what the kernel refuses for good is counted.

use super::*;

#[test]
fn what_was_left_in_a_socket_does_not_end_a_sleep() {
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut network = Network::bind(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 0))], epoll.clone()).unwrap();
    let readable = || {
        let mut polled = [rustix::event::PollFd::new(&*epoll, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() > 0
    };
    let receive = |network: &mut Network| network.ports[0].receive(&mut network.batch, 1, 1, |_, _| {}).unwrap();
    assert_eq!(receive(&mut network), 0);
    let other = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    other.send_to(b"awaited", network.addresses()[0]).unwrap();
    assert_eq!(receive(&mut network), 1);
    assert!(readable(), "it is left there while nobody sleeps");
    assert!(network.arm(true));
    assert!(!readable());
}

#[test]
fn sockets_that_bring_nothing_are_looked_at_now_and_then_for_ever() {
    for start in [0, 1_000, u32::MAX - 100] {
        let (mut quiet, mut looks, mut tries) = (start, 0, 0);
        while looks < 1_000 {
            let mut since = 0;
            loop {
                let some = if tries % 2 == 0 { 1 } else { 7 };
                (since, tries) = (since + some, tries + 1);
                if others_are_due(&mut quiet, some) {
                    break;
                }
                assert!(since < OTHERS_LOOK_EVERY + 7, "{since} looks in vain, at {quiet}");
            }
            looks += since;
        }
        assert!(tries > 200, "they are not looked at each time: {tries}");
    }
}
