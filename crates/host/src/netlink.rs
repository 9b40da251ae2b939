//! What all conversations with the kernel by netlink have in common: heads, words, refusals.
//!
//! Invariant: nothing outside of a message is read, whatever lengths it claims. Source: netlink(7).

use rustix::io::Errno;
use rustix::net::{SocketAddrAny, netlink};

/// `NLMSG_ERROR`.
pub const ERROR: u16 = 2;
/// Bytes of `struct nlmsghdr`.
pub const HEAD_BYTES: usize = 16;

/// Whether a message is from the kernel and not from a process: port 0.
#[must_use]
pub fn is_kernel(from: &SocketAddrAny) -> bool {
    netlink::SocketAddrNetlink::try_from(from.clone()).is_ok_and(|from| from.pid() == 0)
}

/// Two bytes of a message, as this machine has them. None: they are not in it.
#[must_use]
pub fn half(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(message.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Four bytes, likewise.
#[must_use]
pub fn word(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(message.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Why the kernel refuses, by a message of kind [`ERROR`], which begins with its head.
#[must_use]
pub fn refusal(message: &[u8]) -> Errno {
    let errno = word(message, HEAD_BYTES).and_then(|errno| (errno as i32).checked_neg());
    errno.filter(|errno| (1..4096).contains(errno)).map_or(Errno::BADMSG, Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_what_the_kernel_says_and_nonsense_is_that() {
        let of = |errno: i32| refusal(&[&[0; HEAD_BYTES][..], &errno.to_ne_bytes()].concat());
        assert_eq!((of(-95), of(-2)), (Errno::OPNOTSUPP, Errno::NOENT));
        for nonsense in [0, 1, -4096, i32::MIN, i32::MAX] {
            assert_eq!(of(nonsense), Errno::BADMSG);
        }
        assert_eq!(refusal(&[0; HEAD_BYTES + 3]), Errno::BADMSG);
        assert_eq!((word(&[1; 4], 1), word(&[1; 4], usize::MAX), half(&[1; 4], 3)), (None, None, None));
    }
}
