//! The kernel's own zero copy, measured: sends by reference (MSG_ZEROCOPY) and mapped receives
//! (TCP_ZEROCOPY_RECEIVE), between two network namespaces. [GMS §2.2]
//!
//! Invariant: a send counts when its memory is free again, a receive when its bytes can be read.

use super::Counted;
use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};
use vmmc::Region;
use vmmc_host::os::zero_copy::{Ended, ReceiveWindow, allow_sends, ended, send};

/// An end of a TCP connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tcp {
    /// Where it listens, or connects to.
    pub(crate) address: String,
    pub(crate) is_sender: bool,
    /// By reference, or mapped.
    pub(crate) zero_copy: bool,
    /// Bytes of a send.
    pub(crate) size: u64,
    /// For how long, if this is the side that is measured.
    pub(crate) time_ms: Option<u64>,
    pub(crate) core: usize,
}

/// Bytes that are mapped at most at a time.
const WINDOW: usize = 1 << 20;
/// Sends by reference under way, at most.
const UNDER_WAY: u64 = 32;
const MEETING: Duration = Duration::from_secs(10);
/// Time that one wait for the socket lasts at most.
const LOOK: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

impl Tcp {
    pub(super) fn run(&self) -> Result<Counted, Failure> {
        crate::machine::pin(self.core);
        if self.is_sender { self.send() } else { self.receive() }
    }

    fn time(&self) -> Duration {
        self.time_ms.map_or(Duration::MAX, Duration::from_millis)
    }

    fn send(&self) -> Result<Counted, Failure> {
        let stream = connect(&self.address)?;
        let fd = stream.as_fd();
        let region = Region::create(self.size.max(1)).map_err(Failure::new)?;
        let refused = |what: &str, errno: Errno| Failure::new(format!("{what}: {errno}"));
        if self.zero_copy {
            allow_sends(fd).map_err(|e| refused("SO_ZEROCOPY", e))?;
        }
        let (mut counted, mut over, mut sends) = (Counted::default(), Ended::default(), 0);
        let begun = Instant::now();
        let mut look = |least: u64| -> Result<(), Failure> {
            loop {
                let more = ended(fd).map_err(|e| refused("the queue of ends", e))?;
                over = Ended { sends: over.sends + more.sends, copied: over.copied + more.copied };
                if over.sends >= least {
                    return Ok(());
                }
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::empty())], Some(&LOOK));
            }
        };
        while begun.elapsed() < self.time() {
            let mut at = 0;
            while at < self.size {
                match send(fd, &region, at, (self.size - at) as usize, self.zero_copy) {
                    Ok(sent) => {
                        at += sent as u64;
                        sends += 1;
                    }
                    Err(Errno::NOBUFS) if self.zero_copy => look(sends)?,
                    Err(errno) => return Err(refused("send", errno)),
                }
            }
            counted.bytes += self.size;
            if self.zero_copy {
                look(sends.saturating_sub(UNDER_WAY))?;
            }
        }
        if self.zero_copy {
            look(sends)?;
        }
        counted.seconds = begun.elapsed().as_secs_f64();
        (counted.sends, counted.copied) = (sends, over.copied);
        Ok(counted)
    }

    fn receive(&self) -> Result<Counted, Failure> {
        let listener = TcpListener::bind(&self.address)?;
        let (mut stream, _) = listener.accept()?;
        let mut window = match self.zero_copy {
            true => Some(
                ReceiveWindow::new(stream.as_fd(), WINDOW)
                    .map_err(|e| Failure::new(format!("mmap of a TCP socket: {e}")))?,
            ),
            false => None,
        };
        let mut buffer = vec![0u8; WINDOW];
        let mut counted = Counted::default();
        let begun = Instant::now();
        while begun.elapsed() < self.time() {
            let got = match &mut window {
                None => stream.read(&mut buffer)?,
                Some(window) => {
                    let there = match window.receive(stream.as_fd()) {
                        Ok(there) => there,
                        Err(Errno::IO) => break,
                        Err(errno) => return Err(Failure::new(format!("TCP_ZEROCOPY_RECEIVE: {errno}"))),
                    };
                    counted.mapped += there.bytes as u64;
                    let to_copy = there.to_copy.min(buffer.len());
                    if to_copy > 0 {
                        stream.read_exact(&mut buffer[..to_copy])?;
                    }
                    if there.bytes + to_copy == 0 {
                        let _ = poll(&mut [PollFd::new(&stream.as_fd(), PollFlags::IN)], Some(&LOOK));
                        // The end of the stream is nothing to map; an ordinary look tells.
                        if stream.peek(&mut [0])? == 0 {
                            break;
                        }
                    }
                    there.bytes + to_copy
                }
            };
            if got == 0 && window.is_none() {
                break;
            }
            counted.bytes += got as u64;
        }
        counted.seconds = begun.elapsed().as_secs_f64();
        Ok(counted)
    }
}

fn connect(address: &str) -> Result<TcpStream, Failure> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && begun.elapsed() < MEETING => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return Ok(other?),
        }
    }
}

/// Two network namespaces with a pair of virtual Ethernet devices between them; taken away when
/// dropped.
pub(crate) struct Namespaces {
    pub(crate) names: [String; 2],
}

/// Addresses of the two ends.
pub(crate) const ADDRESSES: [&str; 2] = ["10.77.7.1", "10.77.7.2"];

impl Namespaces {
    /// Makes them; why not, if that cannot be.
    pub(crate) fn make() -> Result<Namespaces, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root, for network namespaces".into());
        }
        let names = ["a", "b"].map(|end| format!("vmmc-bench-{}-{end}", std::process::id()));
        let made = Namespaces { names };
        let [near, far] = &made.names;
        ip(&["netns", "add", near])?;
        ip(&["netns", "add", far])?;
        // Pages of payload fit segments: 4 KiB and the headers of IP and TCP with time stamps.
        ip(&[
            "-n", near, "link", "add", "eth0", "mtu", "65535", "type", "veth", "peer", "name", "eth0", "mtu", "65535",
            "netns", far,
        ])?;
        for (name, address) in made.names.iter().zip(ADDRESSES) {
            ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", name, "link", "set", "eth0", "up"])?;
        }
        Ok(made)
    }

    /// Sets the largest packet of both devices.
    pub(crate) fn set_mtu(&self, bytes: u32) -> Result<(), String> {
        self.names.iter().try_for_each(|name| ip(&["-n", name, "link", "set", "eth0", "mtu", &bytes.to_string()]))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let done = Command::new("ip").args(words).output().map_err(|e| format!("needs `ip` (iproute2): {e}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(()) } else { Err(format!("ip {}: {}", words.join(" "), said.trim())) }
}
