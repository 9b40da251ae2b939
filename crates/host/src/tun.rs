//! A wire end in a network of its own: a network namespace whose only way out is a TUN device.
//!
//! Invariant: the namespace belongs to the calling thread and to what it starts from then on; it
//! has no name, and ends with the last of them and the device. Source: network_namespaces(7),
//! netdevice(7), Documentation/networking/tuntap.rst.

use rustix::fs::{Mode, OFlags};
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Name of the device in its namespace.
const NAME: &[u8] = b"wire";

/// The outer side of such a device: what programs of the namespace send is read here, packet by
/// packet, and what is written here they receive.
///
/// # Example
///
/// ```
/// # use vmmc_host::tun::Tun;
/// let there = std::thread::spawn(|| Tun::in_new_network([10, 99, 0, 1].into(), 24, 1_500, 1_000));
/// match there.join().expect("it does not panic") {
///     Ok(_tun) => {} // read and write it as any descriptor
///     Err(e) => assert!(e.to_string().contains("root"), "{e}"),
/// }
/// ```
#[derive(Debug)]
pub struct Tun(OwnedFd);

/// A step to such a device was refused.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {error}; this needs root, or `unshare --map-root-user` before the command, and /dev/net/tun")]
pub struct TunError {
    /// What was tried.
    step: &'static str,
    /// What the kernel said.
    error: io::Error,
}

impl Tun {
    /// Moves the calling thread into a new network namespace, in which `address` with a prefix of
    /// `prefix_bits` is reached through a device of `mtu_bytes` and, where the kernel lets it,
    /// `queue_packets`; it does not come back. Reads do not wait.
    ///
    /// # Errors
    ///
    /// When the thread may not make namespaces, or there are no TUN devices.
    pub fn in_new_network(
        address: Ipv4Addr,
        prefix_bits: u8,
        mtu_bytes: u16,
        queue_packets: u16,
    ) -> Result<Tun, TunError> {
        // SAFETY: this takes numbers only, and changes the network namespace of this thread alone;
        // descriptors, memory and file systems stay as they are.
        check("a network namespace", unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty());
        let device = device.map_err(|e| TunError { step: "opening /dev/net/tun", error: e.into() })?;
        let mut request = Request::new();
        request.0.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        request.call("a TUN device", &device, libc::TUNSETIFF)?;
        let socket = std::net::UdpSocket::bind("0.0.0.0:0");
        let socket = socket.map_err(|error| TunError { step: "a socket to set the device up", error })?;
        let set = |step, code, fill: &dyn Fn(&mut libc::ifreq)| {
            let mut request = Request::new();
            fill(&mut request.0);
            request.call(step, &socket, code)
        };
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix_bits.min(32))).unwrap_or(0);
        set("its address", libc::SIOCSIFADDR, &|r| r.ifr_ifru.ifru_addr = address_of(address))?;
        set("its network", libc::SIOCSIFNETMASK, &|r| r.ifr_ifru.ifru_netmask = address_of(mask.into()))?;
        set("its packet size", libc::SIOCSIFMTU, &|r| r.ifr_ifru.ifru_mtu = mtu_bytes.into())?;
        // One who is root in a user namespace only may not, and keeps the kernel's 500.
        let _ = set("its queue", libc::SIOCSIFTXQLEN, &|r| r.ifr_ifru.ifru_metric = queue_packets.into());
        set("its start", libc::SIOCSIFFLAGS, &|r| r.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short)?;
        Ok(Tun(device))
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A request about the device.
struct Request(libc::ifreq);

impl Request {
    fn new() -> Request {
        // SAFETY: a name of bytes and a union of numbers and addresses, for all of which zeros are
        // a value.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        // The name is shorter than the field, so it ends with a zero.
        for (to, from) in request.ifr_name.iter_mut().zip(NAME) {
            *to = *from as libc::c_char;
        }
        Request(request)
    }

    fn call(&mut self, step: &'static str, on: &impl AsRawFd, code: libc::c_ulong) -> Result<(), TunError> {
        // SAFETY: the descriptor is open for the call, and each of the codes that `in_new_network`
        // uses reads or writes one `ifreq`, which is borrowed for the call.
        check(step, unsafe { libc::ioctl(on.as_raw_fd(), code as _, &raw mut self.0) })
    }
}

/// An IPv4 address where the kernel expects any.
fn address_of(ip: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = ip.octets().map(|byte| byte as libc::c_char);
    // Port, address, padding: `sockaddr_in` as bytes.
    let sa_data = [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data }
}

fn check(step: &'static str, result: libc::c_int) -> Result<(), TunError> {
    if result < 0 { Err(TunError { step, error: io::Error::last_os_error() }) } else { Ok(()) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn what_is_sent_in_the_namespace_comes_out_and_what_is_put_in_is_received() {
        let inside = std::thread::spawn(|| {
            let tun = Tun::in_new_network([10, 98, 7, 1].into(), 24, 1_400, 100);
            let Ok(tun) = tun.inspect_err(|e| eprintln!("skipped: {e}")) else { return };
            let socket = UdpSocket::bind("10.98.7.1:700").expect("an address of this namespace");
            socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a time is a valid value");
            socket.send_to(b"hello", "10.98.7.2:701").expect("the device is up");
            let mut packet = [0u8; 2_000];
            let len = loop {
                // The kernel may send packets of its own, of IPv6.
                match rustix::io::read(&tun, &mut packet) {
                    Ok(len) if packet[0] >> 4 == 4 => break len,
                    Ok(_) => {}
                    Err(e) => panic!("{e}"),
                }
            };
            assert_eq!((&packet[12..20], &packet[28..len]), (&[10, 98, 7, 1, 10, 98, 7, 2][..], &b"hello"[..]));
            // The way back: addresses and ports exchanged, which changes no checksum.
            for i in 0..4 {
                packet.swap(12 + i, 16 + i);
            }
            (packet[20], packet[21], packet[22], packet[23]) = (packet[22], packet[23], packet[20], packet[21]);
            rustix::io::write(&tun, &packet[..len]).expect("a packet for this namespace");
            let mut back = [0; 10];
            let (got, from) = socket.recv_from(&mut back).expect("it was just put in");
            assert_eq!((&back[..got], from.to_string().as_str()), (&b"hello"[..], "10.98.7.2:701"));
        });
        inside.join().expect("the thread's checks hold");
    }

    #[test]
    fn refusals_say_what_is_needed() {
        let error = TunError { step: "a network namespace", error: io::Error::from_raw_os_error(libc::EPERM) };
        let text = error.to_string();
        assert!(text.contains("a network namespace") && text.contains("root"), "{text}");
    }
}
