//! Connections that do everything at once, with every byte checked at both ends: short and long, half-closed, reset, forked, passed on, cut off.
//!
//! `stress serve PORT` serves until it is killed; `stress drive PORT SEED COUNT` makes connections and ends with a line of counts, or with exit code 1 and
//! the seed that shows the failure; with the word `alone` behind it, connections stay within their two processes; with the name of a kind all are of that one. Both are ordinary programs: run them with and without `vmmc exec`. Every byte is a function of the connection's seed and
//! its place in the stream, so a byte that is lost, doubled, late or foreign is found.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, String>;

/// Longest silence of a peer that is alive: far above anything but a hang.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest stream.
const BYTES_MAX: u64 = 1 << 21;
/// Clients at a time.
const THREADS: u64 = 4;

/// What a connection does; the last two need more than two processes.
const KINDS: [&str; 7] = ["short", "ping-pong", "stream", "half-close", "reset", "fork", "pass"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    match (words.first().map(String::as_str), number(1), number(2), number(3)) {
        (Some("serve"), Some(port), _, _) => serve(port as u16),
        (Some("drive"), Some(port), Some(seed), Some(count)) => {
            let only = words.get(4).map_or(Only::Any, |word| match word.as_str() {
                "alone" => Only::Alone,
                kind => Only::Kind(KINDS.iter().position(|k| *k == kind).expect("a kind, or `alone`")),
            });
            std::process::exit(drive(port as u16, seed, count, only))
        }
        _ => {
            eprintln!("usage: stress serve PORT | stress drive PORT SEED COUNT [alone | KIND]");
            std::process::exit(2);
        }
    }
}

/// Pseudo-random numbers: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Small sizes as often as large ones.
    fn size(&mut self, max: u64) -> u64 {
        let bits = 64 - max.leading_zeros() as u64;
        let top = 1u64 << self.below(bits + 1);
        (1 + self.below(top)).min(max)
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One direction of a connection: the bytes that belong at each place.
struct Bytes {
    seed: u64,
    at: u64,
}

impl Bytes {
    fn byte(&self, at: u64) -> u8 {
        (mix(self.seed.wrapping_add(at / 8)) >> (at % 8 * 8)) as u8
    }

    /// Sends the next `n`, in pieces of random sizes, with different calls.
    fn send(&mut self, to: &mut TcpStream, n: u64, random: &mut Random) -> std::io::Result<()> {
        let end = self.at + n;
        while self.at < end {
            let size = random.size((end - self.at).min(100_000));
            let piece: Vec<u8> = (self.at..self.at + size).map(|at| self.byte(at)).collect();
            if size > 8 && random.below(3) == 0 {
                let (a, b) = piece.split_at(size as usize / 3);
                let done = to.write_vectored(&[IoSlice::new(a), IoSlice::new(b)])?;
                to.write_all(&piece[done..])?;
            } else {
                to.write_all(&piece)?;
            }
            self.at += size;
        }
        Ok(())
    }

    /// Receives and checks the next `n`, or fewer at the end of the stream; says how many.
    fn receive(&mut self, from: &mut TcpStream, n: u64, random: &mut Random) -> Result<u64> {
        let end = self.at + n;
        let begin = self.at;
        let mut buffer = vec![0u8; 70_000];
        while self.at < end {
            let room = random.size((end - self.at).min(buffer.len() as u64)) as usize;
            if random.below(8) == 0 {
                let seen = from.peek(&mut buffer[..room]).map_err(|e| format!("peek: {e}"))?;
                self.check(&buffer[..seen])?;
            }
            let got = match from.read(&mut buffer[..room]) {
                Ok(0) => break,
                Ok(got) => got,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Err("reset".into()),
                Err(e) => return Err(format!("receive at {}: {e}", self.at)),
            };
            self.check(&buffer[..got])?;
            self.at += got as u64;
        }
        Ok(self.at - begin)
    }

    fn check(&self, bytes: &[u8]) -> Result<()> {
        match (self.at..).zip(bytes).find(|(at, byte)| self.byte(*at) != **byte) {
            None => Ok(()),
            Some((at, byte)) => Err(format!("WRONG BYTE {byte:#x} at {at}, expected {:#x}", self.byte(at))),
        }
    }
}

/// What a connection is about, as both ends know it after the first bytes.
struct Plan {
    kind: usize,
    seed: u64,
    bytes: u64,
    rounds: u64,
}

impl Plan {
    fn of(seed: u64) -> Plan {
        let mut random = Random(seed);
        // The highest bit of the seed tells both ends which kinds there are.
        let kinds = KINDS.len() as u64 - if seed >> 63 == 1 { 2 } else { 0 };
        let kind = random.below(kinds) as usize;
        let bytes = if KINDS[kind] == "short" { random.size(200) } else { random.size(BYTES_MAX) };
        Plan { kind, seed, bytes, rounds: 20 + random.below(200) }
    }

    fn streams(&self) -> (Bytes, Bytes) {
        (Bytes { seed: mix(self.seed ^ 1), at: 0 }, Bytes { seed: mix(self.seed ^ 2), at: 0 })
    }
}

fn text<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |e| format!("{what}: {e}")
}

fn serve(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    println!("ready");
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        std::thread::spawn(move || {
            if let Err(why) = answer(stream) {
                println!("server: {why}");
            }
        });
    }
}

fn answer(mut stream: TcpStream) -> Result<()> {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    // Messages go in pieces: without this the kernel waits for acknowledgements between them.
    let _ = stream.set_nodelay(true);
    let mut seed = [0u8; 8];
    stream.read_exact(&mut seed).map_err(text("seed"))?;
    let plan = Plan::of(u64::from_le_bytes(seed));
    let (mut from, mut to) = plan.streams();
    let mut random = Random(plan.seed ^ 3);
    match KINDS[plan.kind] {
        "fork" => {
            warm_up(&mut stream, &mut from, &mut to, &mut random, false)?;
            in_child(stream, |stream| finish(&plan, stream, from, to, random))
        }
        "pass" => {
            warm_up(&mut stream, &mut from, &mut to, &mut random, false)?;
            finish(&plan, &mut through_socket(stream)?, from, to, random)
        }
        "ping-pong" => {
            for _ in 0..plan.rounds {
                turn(&mut stream, &mut from, &mut to, &mut random, false)?;
            }
            Ok(())
        }
        _ => match finish(&plan, &mut stream, from, to, random) {
            Err(why) if KINDS[plan.kind] == "reset" && !why.contains("WRONG") => Ok(()),
            other => other,
        },
    }
}

/// Enough exchanges for an upgrade.
fn warm_up(stream: &mut TcpStream, from: &mut Bytes, to: &mut Bytes, random: &mut Random, first: bool) -> Result<()> {
    (0..40).try_for_each(|_| turn(stream, from, to, random, first))
}

/// One message each way, of a length that both ends know.
fn turn(stream: &mut TcpStream, from: &mut Bytes, to: &mut Bytes, random: &mut Random, first: bool) -> Result<()> {
    let n = 1 + mix(from.seed.wrapping_add(to.seed) ^ (from.at + to.at)) % 300;
    if first {
        to.send(stream, n, random).map_err(text("ping"))?;
    }
    match from.receive(stream, n, random)? {
        got if got == n => {}
        got => return Err(format!("{got} of {n} bytes of a turn")),
    }
    if first { Ok(()) } else { to.send(stream, n, random).map_err(text("pong")) }
}

/// Receives the stream, up to its end if it is half-closed, and sends as much back.
fn finish(plan: &Plan, stream: &mut TcpStream, mut from: Bytes, mut to: Bytes, mut random: Random) -> Result<()> {
    let extra = u64::from(KINDS[plan.kind] == "half-close");
    let got = from.receive(stream, plan.bytes + extra, &mut random)?;
    if got != plan.bytes {
        return Err(format!("{}: {got} of {} bytes came", KINDS[plan.kind], plan.bytes));
    }
    to.send(stream, plan.bytes, &mut random).map_err(text("answer"))
}

/// The child of a fork goes on with the connection while this process has it too.
fn in_child(mut stream: TcpStream, go_on: impl FnOnce(&mut TcpStream) -> Result<()>) -> Result<()> {
    // SAFETY: the child only uses its own stack, the connection and memory of its own, and leaves without running destructors of other threads.
    match unsafe { libc::fork() } {
        0 => {
            let code = go_on(&mut stream).is_err();
            drop(stream);
            // SAFETY: ends the child here.
            unsafe { libc::_exit(i32::from(code)) }
        }
        -1 => Err(text("fork")(std::io::Error::last_os_error())),
        child => {
            drop(stream);
            let mut status = 0;
            // SAFETY: our own child, a status of ours.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            if status == 0 { Ok(()) } else { Err(format!("the child of the fork ended with status {status:#x}")) }
        }
    }
}

/// The descriptor goes through a Unix socket and comes back as another one; the first is closed.
fn through_socket(stream: TcpStream) -> Result<TcpStream> {
    let mut pair = [0 as RawFd; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) };
    if made < 0 {
        return Err(text("socketpair")(std::io::Error::last_os_error()));
    }
    // SAFETY: just made, ours alone.
    let [a, b] = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let mut control = [0u64; 4];
    let mut byte = [0u8; 1];
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all zero is an empty message; the pieces and the room for control data are ours and outlive the calls.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(stream.as_raw_fd());
        if libc::sendmsg(a.as_raw_fd(), &raw const message, 0) != 1 {
            return Err(text("sendmsg")(std::io::Error::last_os_error()));
        }
        drop(stream);
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        if libc::recvmsg(b.as_raw_fd(), &raw mut message, 0) != 1 {
            return Err(text("recvmsg")(std::io::Error::last_os_error()));
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        Ok(TcpStream::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    }
}

/// Which connections to make.
#[derive(Clone, Copy)]
enum Only {
    Any,
    /// Those that stay within their two processes.
    Alone,
    /// Of one kind.
    Kind(usize),
}

impl Only {
    fn plan(self, seed: u64, at: u64) -> Plan {
        let seed = mix(mix(seed).wrapping_add(at)) >> 1;
        match self {
            Only::Any => Plan::of(seed),
            Only::Alone => Plan::of(seed | 1 << 63),
            Only::Kind(kind) => {
                let plans = (0..).map(|more| Plan::of(mix(seed.wrapping_add(more)) >> 1));
                plans.into_iter().find(|plan| plan.kind == kind).expect("one of seven is of the kind")
            }
        }
    }
}

fn drive(port: u16, seed: u64, count: u64, only: Only) -> i32 {
    let failures = AtomicU64::new(0);
    let moved = AtomicU64::new(0);
    let slowest = Mutex::new((Duration::ZERO, String::new()));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (failures, moved, slowest) = (&failures, &moved, &slowest);
            scope.spawn(move || {
                for at in (thread..count).step_by(THREADS as usize) {
                    let plan = only.plan(seed, at);
                    let began = Instant::now();
                    let result = ask(port, &plan);
                    let mut slowest = slowest.lock().expect("nobody panics while holding it");
                    if began.elapsed() > slowest.0 {
                        *slowest = (began.elapsed(), format!("number {at}, {}", KINDS[plan.kind]));
                    }
                    drop(slowest);
                    match result {
                        Ok(bytes) => _ = moved.fetch_add(bytes, Relaxed),
                        Err(why) => {
                            failures.fetch_add(1, Relaxed);
                            println!("connection {at} of seed {seed} ({}): {why}", KINDS[plan.kind]);
                        }
                    }
                }
            });
        }
    });
    let failed = failures.load(Relaxed);
    let (time, which) = slowest.into_inner().expect("nobody panics while holding it");
    println!(
        "{count} connections, {} bytes, {failed} failed; the slowest, {which}, took {time:.3?}",
        moved.load(Relaxed)
    );
    i32::from(failed > 0)
}

fn ask(port: u16, plan: &Plan) -> Result<u64> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(text("connect"))?;
    let _ = stream.set_read_timeout(Some(PATIENCE));
    // Messages go in pieces: without this the kernel waits for acknowledgements between them.
    let _ = stream.set_nodelay(true);
    stream.write_all(&plan.seed.to_le_bytes()).map_err(text("seed"))?;
    let (mut to, mut from) = plan.streams();
    let mut random = Random(plan.seed ^ 4);
    match KINDS[plan.kind] {
        "ping-pong" => {
            for _ in 0..plan.rounds {
                turn(&mut stream, &mut from, &mut to, &mut random, true)?;
            }
            return Ok(to.at + from.at);
        }
        "fork" | "pass" => warm_up(&mut stream, &mut from, &mut to, &mut random, true)?,
        _ => {}
    }
    if KINDS[plan.kind] == "reset" {
        let part = random.below(plan.bytes + 1);
        to.send(&mut stream, part, &mut random).map_err(text("part"))?;
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let fd = stream.into_raw_fd();
        // SAFETY: the option's value is ours; the descriptor is ours alone and closed once.
        unsafe {
            let size = size_of_val(&linger) as libc::socklen_t;
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size);
            libc::close(fd);
        }
        return Ok(part);
    }
    to.send(&mut stream, plan.bytes, &mut random).map_err(text("stream"))?;
    if KINDS[plan.kind] == "half-close" {
        stream.shutdown(Shutdown::Write).map_err(text("half-close"))?;
    }
    let got = from.receive(&mut stream, plan.bytes + 1, &mut random)?;
    if got == plan.bytes { Ok(plan.bytes * 2) } else { Err(format!("{got} of {} bytes came back", plan.bytes)) }
}
