//! The kernel's own zero copy for TCP: sends by reference to pages, and received pages mapped.
//!
//! Invariant: memory that the kernel may still read is a region's and stays mapped; what is mapped
//! of a socket is read by copies only, and given back before more is mapped. Source: the kernel's
//! Documentation/networking/msg_zerocopy.rst, tcp(7); [GMS §2.2] payload remapping.

use crate::Region;
use crate::copy;
use crate::region::OutOfBounds;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SO_EE_ORIGIN_ZEROCOPY`: the end of sends by reference.
const ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED`: the kernel has copied after all.
const CODE_COPIED: u8 = 1;
/// `TCP_ZEROCOPY_RECEIVE`, which the C library does not have yet.
const TCP_ZEROCOPY_RECEIVE: libc::c_int = 35;

/// Sends whose memory is free again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// How many.
    pub sends: u64,
    /// How many of them the kernel copied after all.
    pub copied: u64,
}

/// Lets a socket send by reference.
///
/// # Errors
/// The kernel's: it does not know `SO_ZEROCOPY` for this kind of socket.
pub fn allow_sends(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let one: libc::c_int = 1;
    // SAFETY: the kernel reads one integer of that size; the descriptor is open.
    let set = unsafe {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const one).cast(), len)
    };
    if set == 0 { Ok(()) } else { Err(last_error()) }
}

/// Sends from a region, by reference if that is said; bytes that the socket took. By reference the
/// kernel may read the range until [`ended`] counts the send.
///
/// # Errors
/// The kernel's; `NOBUFS`: too many sends by reference are under way.
///
/// # Panics
/// If the range is not in the region.
pub fn send(fd: BorrowedFd<'_>, from: &Region, offset: u64, len: usize, by_reference: bool) -> Result<usize, Errno> {
    from.check(offset, len as u64).expect("the caller sends what is in the region");
    let flags = libc::MSG_NOSIGNAL | if by_reference { libc::MSG_ZEROCOPY } else { 0 };
    let memory = from.as_ptr().wrapping_add(offset as usize);
    // SAFETY: the range was checked and stays mapped for the call. What the kernel refers to after
    // it are the pages, which it holds itself; it writes nothing there.
    let sent = unsafe { libc::send(fd.as_raw_fd(), memory.cast(), len, flags) };
    usize::try_from(sent).map_err(|_| last_error())
}

/// Takes word of sends by reference that have ended. Does not wait.
///
/// # Errors
/// The kernel's.
pub fn ended(fd: BorrowedFd<'_>) -> Result<Ended, Errno> {
    let mut ended = Ended::default();
    loop {
        // Room for a header and an extended error with an address; aligned as headers are.
        let mut control = [0u64; 16];
        // SAFETY: all zeros is a message without parts.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the message names memory of this function alone, with its size.
        let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
        if got < 0 {
            return match last_error() {
                Errno::AGAIN => Ok(ended),
                errno => Err(errno),
            };
        }
        // SAFETY: the kernel filled the control part of the message, which is alive and aligned.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        if header.is_null() {
            return Ok(ended);
        }
        // SAFETY: it points into `control`, which has room for header and error: 16 words are more
        // than both.
        let error = unsafe { libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned() };
        if error.ee_origin == ORIGIN_ZEROCOPY {
            let sends = u64::from(error.ee_data.wrapping_sub(error.ee_info)) + 1;
            ended.sends += sends;
            ended.copied += if error.ee_code & CODE_COPIED != 0 { sends } else { 0 };
        }
    }
}

/// Addresses where the kernel maps received pages.
#[derive(Debug)]
pub struct ReceiveWindow {
    base: *mut libc::c_void,
    len: usize,
    /// Bytes that are mapped now.
    mapped: usize,
}

/// What a socket has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Bytes that are mapped in the window.
    pub bytes: usize,
    /// Bytes behind them that can only be copied, by an ordinary receive.
    pub to_copy: usize,
}

impl ReceiveWindow {
    /// A window of so many bytes, whole pages, on a connected TCP socket.
    ///
    /// # Errors
    /// The kernel's: it has no such thing for this socket.
    pub fn new(fd: BorrowedFd<'_>, len: usize) -> Result<ReceiveWindow, Errno> {
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED { Err(last_error()) } else { Ok(ReceiveWindow { base, len, mapped: 0 }) }
    }

    /// Maps what the socket has received, in the place of what was mapped before.
    ///
    /// # Errors
    /// The kernel's; `IO`: the stream has ended, and all of it was taken.
    pub fn receive(&mut self, fd: BorrowedFd<'_>) -> Result<Mapped, Errno> {
        self.give_back()?;
        /// The first part of the kernel's structure: what versions before ours know, too.
        #[repr(C)]
        struct Request {
            address: u64,
            length: u32,
            recv_skip_hint: u32,
        }
        let mut request = Request { address: self.base as u64, length: self.len as u32, recv_skip_hint: 0 };
        let mut size = size_of::<Request>() as libc::socklen_t;
        // SAFETY: the kernel reads and writes the request, whose size it is told, and maps pages of
        // the socket in the window, which is a mapping of this socket that nothing refers to.
        let done = unsafe {
            let request = (&raw mut request).cast();
            libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, request, &raw mut size)
        };
        if done != 0 {
            return Err(last_error());
        }
        self.mapped = (request.length as usize).min(self.len);
        Ok(Mapped { bytes: self.mapped, to_copy: request.recv_skip_hint as usize })
    }

    /// Copies out of what is mapped.
    ///
    /// # Errors
    /// [`OutOfBounds`]: more than is mapped.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let (offset, len, size) = (offset as u64, into.len() as u64, self.mapped as u64);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(OutOfBounds { offset, len, size });
        }
        // SAFETY: the range was checked against what is mapped for reading; `into` is private
        // memory. The pages hold bytes that have arrived, and never a slice refers to them.
        unsafe { copy::bulk(self.base.cast::<u8>().add(offset as usize), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn give_back(&mut self) -> Result<(), Errno> {
        let mapped = std::mem::take(&mut self.mapped);
        // SAFETY: a range of the window, which this value owns; nothing refers to its bytes.
        if mapped > 0 && unsafe { libc::madvise(self.base, mapped, libc::MADV_DONTNEED) } != 0 {
            return Err(last_error());
        }
        Ok(())
    }
}

impl Drop for ReceiveWindow {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to it any more.
        let _ = unsafe { libc::munmap(self.base, self.len) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (sender, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_that_go_by_reference_arrive_and_each_send_ends_once() {
        let (sender, mut receiver) = pair();
        let region = Region::create(1 << 20).unwrap();
        region.write(0, &vec![7; 1 << 20]).unwrap();
        if let Err(errno) = allow_sends(sender.as_fd()) {
            println!("SKIP: this kernel sends nothing by reference: {errno}");
            return;
        }
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            receiver.read_to_end(&mut all).unwrap();
            all
        });
        let (mut offset, mut sends, mut over) = (0, 0, Ended::default());
        let end = Instant::now() + Duration::from_secs(20);
        while offset < 1 << 20 || over.sends < sends {
            assert!(Instant::now() < end, "{over:?} of {sends}");
            if offset < 1 << 20 {
                let len = (100_000).min((1 << 20) - offset as usize);
                offset += send(sender.as_fd(), &region, offset, len, true).unwrap() as u64;
                sends += 1;
            }
            let more = ended(sender.as_fd()).unwrap();
            over = Ended { sends: over.sends + more.sends, copied: over.copied + more.copied };
        }
        assert!(over.sends == sends && over.copied <= sends);
        drop(sender);
        let all = reader.join().unwrap();
        assert!(all.len() == 1 << 20 && all.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn what_is_mapped_and_what_is_copied_together_is_what_was_sent() {
        let (mut sender, mut receiver) = pair();
        let mut window = match ReceiveWindow::new(receiver.as_fd(), 64 << 10) {
            Ok(window) => window,
            Err(errno) => {
                println!("SKIP: this kernel maps no received pages: {errno}");
                return;
            }
        };
        let sent: Vec<u8> = (0..500_000u32).map(|i| (i >> 8) as u8).collect();
        let copy = sent.clone();
        let writer = std::thread::spawn(move || sender.write_all(&copy).unwrap());
        let mut got = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while got.len() < sent.len() {
            assert!(Instant::now() < end, "{} bytes came", got.len());
            let there = window.receive(receiver.as_fd()).unwrap();
            let start = got.len();
            got.resize(start + there.bytes, 0);
            window.read(0, &mut got[start..]).unwrap();
            assert!(window.read(there.bytes, &mut [0]).is_err());
            let start = got.len();
            got.resize(start + there.to_copy, 0);
            receiver.read_exact(&mut got[start..]).unwrap();
        }
        writer.join().unwrap();
        assert!(got == sent);
    }
}
