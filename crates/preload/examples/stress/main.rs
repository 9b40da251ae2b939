//! Connections that do everything at once, with every byte checked at both ends: short and long,
//! half-closed, reset, forked, passed on, killed, cut off.
//!
//! `stress serve PORT` serves until it is killed; `stress drive PORT SEED COUNT [OPTION ...]` makes
//! connections and ends with a line of counts, or with exit code 1 and the seed that shows the
//! failure. Options: `alone` for connections that stay within their two processes, `held` for those
//! that are not passed on while bytes are under way, or the name of a kind; and `torn` for a
//! connection that may be dropped at any time: its bytes are right up to there, and what drops it
//! is not an end of the stream. Both are ordinary programs: run them with and without `vmmc exec`.
//! Every byte is a function of the connection's seed and its place in the stream, so a byte that is
//! lost, doubled, late or foreign is found.

mod others;
mod stream;

use std::collections::HashMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use stream::{Bytes, Stream, Way};
use vmmc_utlb::Rng;

type Result<T> = std::result::Result<T, String>;

/// Longest silence of a peer that is alive: far above anything but a hang.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time that a connection takes.
const LIFETIME: Duration = Duration::from_secs(90);
/// Largest stream.
const BYTES_MAX: u64 = 1 << 21;
/// Clients at a time.
const THREADS: u64 = 4;

/// What a connection does; the last four need more than two processes. `pass` is passed on with
/// what fits a ring between nodes on the way, `pass-long` under any send.
const KINDS: [&str; 11] =
    ["short", "ping-pong", "stream", "half-close", "reset", "mixed", "both-ways", "fork", "kill", "pass", "pass-long"];
/// Those that need two.
const ALONE: u64 = 7;
/// Those in which nothing is passed on.
const HELD: u64 = 9;
/// Bytes of `pass` on the way while it is passed on, and the longest send among them: between nodes
/// they do not fill a ring, and each goes by it.
const AHEAD_BYTES: u64 = 24 << 10;
const AHEAD_SEND_BYTES: u64 = 8 << 10;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    match (words.first().map(String::as_str), number(1), number(2), number(3)) {
        (Some("serve"), Some(port), _, _) => serve(port as u16),
        (Some("drive"), Some(port), Some(seed), Some(count)) => {
            let (torn, kinds): (Vec<_>, Vec<_>) = words[4..].iter().partition(|word| *word == "torn");
            let only = kinds.first().map_or(Only::Below(KINDS.len() as u64), |word| match word.as_str() {
                "alone" => Only::Below(ALONE),
                "held" => Only::Below(HELD),
                kind => Only::Kind(KINDS.iter().position(|k| *k == kind).expect("a kind, `alone`, or `held`")),
            });
            std::process::exit(drive(port as u16, seed, count, only, !torn.is_empty()))
        }
        _ => {
            eprintln!("usage: stress serve PORT | stress drive PORT SEED COUNT [alone | held | KIND] [torn]");
            std::process::exit(2);
        }
    }
}

/// Random choices and sizes from a seed.
struct Random(Rng);

impl Random {
    fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
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

/// Spreads what a number says over all its bits.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What a connection is about, as both ends know it after the first bytes.
struct Plan {
    kind: usize,
    seed: u64,
    bytes: u64,
    rounds: u64,
    /// Which end is killed.
    client_dies: bool,
}

impl Plan {
    /// The kind is in the seed, so that both ends know it.
    fn of(seed: u64) -> Option<Plan> {
        let kind = (seed >> 56) as usize;
        let name = KINDS.get(kind)?;
        let mut random = Random::new(seed);
        let bytes = if *name == "short" { random.size(200) } else { random.size(BYTES_MAX) };
        Some(Plan { kind, seed, bytes, rounds: 20 + random.below(200), client_dies: random.below(2) == 0 })
    }

    fn name(&self) -> &'static str {
        KINDS[self.kind]
    }

    fn streams(&self) -> (Bytes, Bytes) {
        (Bytes { seed: mix(self.seed ^ 1), at: 0 }, Bytes { seed: mix(self.seed ^ 2), at: 0 })
    }
}

fn text<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |e| format!("{what}: {e}")
}

/// Connections under way: one that takes for ever is a failure, also where no call has a timeout.
#[derive(Default)]
struct Watch(Mutex<HashMap<u64, (Instant, String)>>);

impl Watch {
    fn begin(&self, id: u64, what: String) {
        self.0.lock().expect("nobody panics while holding it").insert(id, (Instant::now(), what));
    }

    fn end(&self, id: u64) {
        self.0.lock().expect("nobody panics while holding it").remove(&id);
    }

    /// Looks for ever.
    fn watch(&self) {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let mut all = self.0.lock().expect("nobody panics while holding it");
            all.retain(|_, (began, what)| {
                let late = began.elapsed() > LIFETIME;
                if late {
                    println!("server: HUNG {what}");
                    std::process::exit(3);
                }
                !late
            });
        }
    }
}

fn serve(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    println!("ready");
    static WATCH: std::sync::LazyLock<Watch> = std::sync::LazyLock::new(Watch::default);
    std::thread::spawn(|| WATCH.watch());
    for (id, stream) in (0..).zip(listener.incoming()) {
        let Ok(tcp) = stream else { continue };
        std::thread::spawn(move || {
            let from = tcp.peer_addr().map_or(0, |at| at.port());
            WATCH.begin(id, format!("the connection from {from}"));
            if let Err(why) = answer(tcp) {
                println!("server: {from}: {why}");
            }
            WATCH.end(id);
        });
    }
}

fn answer(tcp: TcpStream) -> Result<()> {
    let mut stream = Stream::new(tcp, Way::Timed).map_err(text("seed"))?;
    let mut seed = [0u8; 8];
    std::io::Read::read_exact(&mut stream.tcp, &mut seed).map_err(text("seed"))?;
    let plan = Plan::of(u64::from_le_bytes(seed)).ok_or("seed: of no kind")?;
    let (mut from, mut to) = plan.streams();
    let mut random = Random::new(plan.seed ^ 3);
    let way = Way::any(&mut random);
    let mut stream = Stream::new(stream.tcp, way).map_err(text("seed"))?;
    let done = match plan.name() {
        "fork" => {
            warm_up(&mut stream, &mut from, &mut to, &mut random, false)?;
            others::in_child(stream, |stream| finish(&plan, stream, from, to, random))
        }
        "kill" => one_dies(&plan, Talk { stream, from, to, random, first: false }).map(|_| ()),
        "pass" | "pass-long" => {
            warm_up(&mut stream, &mut from, &mut to, &mut random, false)?;
            if random.below(2) == 0 {
                std::thread::sleep(Duration::from_micros(random.size(2_000)));
            }
            let mut stream = Stream::new(others::through_socket(stream.tcp)?, way).map_err(text("passed"))?;
            if plan.name() == "pass" {
                to.send(&mut stream, 1, &mut random).map_err(text("word that it is passed on"))?;
            }
            finish(&plan, &mut stream, from, to, random)
        }
        "ping-pong" => (0..plan.rounds).try_for_each(|_| turn(&mut stream, &mut from, &mut to, &mut random, false)),
        "mixed" => (0..plan.rounds).try_for_each(|_| mixed_turn(&mut stream, &mut from, &mut to, &mut random, false)),
        "both-ways" => both_ways(&plan, Talk { stream, from, to, random, first: false }).map(|_| ()),
        _ => finish(&plan, &mut stream, from, to, random),
    };
    match done {
        Err(why) if plan.name() == "reset" && !is_fault(&why) => Ok(()),
        other => other.map_err(|why| format!("{} ({way:?}): {why}", plan.name())),
    }
}

/// Whether an error is none that a dropped connection would give.
fn is_fault(why: &str) -> bool {
    why.contains("WRONG") || why.contains("HUNG")
}

/// Enough exchanges for an upgrade.
fn warm_up(stream: &mut Stream, from: &mut Bytes, to: &mut Bytes, random: &mut Random, first: bool) -> Result<()> {
    (0..40).try_for_each(|_| turn(stream, from, to, random, first))
}

/// One message each way, of a length that both ends know.
fn turn(stream: &mut Stream, from: &mut Bytes, to: &mut Bytes, random: &mut Random, first: bool) -> Result<()> {
    let n = 1 + mix(from.seed.wrapping_add(to.seed) ^ (from.at + to.at)) % 300;
    exchange(stream, from, to, random, first, n)
}

/// The same, now and then of a length that does not belong into a ring or fills one, and with a
/// pause.
fn mixed_turn(stream: &mut Stream, from: &mut Bytes, to: &mut Bytes, random: &mut Random, first: bool) -> Result<()> {
    let mut both = Random::new(from.seed.wrapping_add(to.seed) ^ (from.at + to.at));
    let most = [300, 300, 300, 300, 8_000, 17_000, 40_000, 120_000][both.below(8) as usize];
    let n = 1 + both.below(most);
    if random.below(24) == 0 {
        std::thread::sleep(Duration::from_micros(random.size(4_000)));
    }
    exchange(stream, from, to, random, first, n)
}

fn exchange(
    stream: &mut Stream,
    from: &mut Bytes,
    to: &mut Bytes,
    random: &mut Random,
    first: bool,
    n: u64,
) -> Result<()> {
    if first {
        to.send(stream, n, random).map_err(text("ping"))?;
    }
    match from.receive(stream, n, random)? {
        got if got == n => {}
        got => return Err(format!("END after {got} of {n} bytes of a turn, at {}", from.at)),
    }
    if first { Ok(()) } else { to.send(stream, n, random).map_err(text("pong")) }
}

/// Receives the stream, up to its end if it is half-closed, and sends as much back.
fn finish(plan: &Plan, stream: &mut Stream, mut from: Bytes, mut to: Bytes, mut random: Random) -> Result<()> {
    let extra = u64::from(plan.name() == "half-close");
    let got = from.receive(stream, plan.bytes + extra, &mut random)?;
    if got != plan.bytes {
        return Err(format!("END: {got} of {} bytes came", plan.bytes));
    }
    to.send(stream, plan.bytes, &mut random).map_err(text("answer"))
}

/// One end of a connection, with all that a conversation of its own needs.
struct Talk {
    stream: Stream,
    from: Bytes,
    to: Bytes,
    random: Random,
    first: bool,
}

impl Talk {
    fn warmed_up(mut self) -> Result<Talk> {
        warm_up(&mut self.stream, &mut self.from, &mut self.to, &mut self.random, self.first)?;
        Ok(self)
    }
}

/// Both ends send at the same time, each with a thread of its own, and one of them reads slowly.
fn both_ways(plan: &Plan, talk: Talk) -> Result<u64> {
    let Talk { mut stream, mut from, mut to, mut random, first } = talk.warmed_up()?;
    let way = Way::any(&mut random);
    let mut sending = Stream::sharing(&stream, way).map_err(text("second descriptor"))?;
    let (bytes, slow, mut other) = (plan.bytes / 4 + 1, plan.client_dies == first, Random::new(random.next()));
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut left = bytes;
            while left > 0 {
                // Many short ones, and some that are not.
                let most = if other.below(8) == 0 { 60_000 } else { 2_000 };
                let n = other.size(most).min(left);
                to.send(&mut sending, n, &mut other).map_err(text("own stream"))?;
                left -= n;
            }
            sending.tcp.shutdown(Shutdown::Write).map_err(text("end of the own stream"))
        });
        let mut got = 0;
        while got <= bytes {
            if slow && random.below(16) == 0 {
                std::thread::sleep(Duration::from_micros(random.size(2_000)));
            }
            match from.receive(&mut stream, random.size(20_000).min(bytes + 1 - got), &mut random) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(why) => {
                    // The other thread should hear of it too.
                    let _ = stream.tcp.shutdown(Shutdown::Both);
                    let _ = sender.join();
                    return Err(why);
                }
            }
        }
        sender.join().expect("it does not panic")?;
        if got == bytes { Ok(bytes * 2) } else { Err(format!("END: {got} of {bytes} bytes came")) }
    })
}

/// One end goes on in a child that is killed; the other end hears of that, and of nothing wrong
/// before.
fn one_dies(plan: &Plan, talk: Talk) -> Result<u64> {
    let Talk { mut stream, mut from, mut to, mut random, first } = talk.warmed_up()?;
    if plan.client_dies == first {
        let after = Duration::from_micros(random.size(30_000));
        others::in_killed_child(stream, after, |stream| {
            while mixed_turn(stream, &mut from, &mut to, &mut random, first).is_ok() {}
        })?;
        return Ok(0);
    }
    loop {
        match mixed_turn(&mut stream, &mut from, &mut to, &mut random, first) {
            Ok(()) => {}
            Err(why) if is_fault(&why) => return Err(why),
            Err(_) => return Ok(from.at + to.at),
        }
    }
}

/// Which connections to make.
#[derive(Clone, Copy)]
enum Only {
    /// Of so many kinds.
    Below(u64),
    /// Of one kind.
    Kind(usize),
}

impl Only {
    fn plan(self, seed: u64, at: u64) -> Plan {
        let seed = mix(mix(seed).wrapping_add(at));
        let kind = match self {
            Only::Below(kinds) => mix(seed) % kinds,
            Only::Kind(kind) => kind as u64,
        };
        Plan::of(seed >> 8 | kind << 56).expect("a kind")
    }
}

fn drive(port: u16, seed: u64, count: u64, only: Only, torn: bool) -> i32 {
    let (failures, dropped, moved) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let slowest = Mutex::new((Duration::ZERO, String::new()));
    static WATCH: std::sync::LazyLock<Watch> = std::sync::LazyLock::new(Watch::default);
    std::thread::spawn(|| WATCH.watch());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (failures, dropped, moved, slowest) = (&failures, &dropped, &moved, &slowest);
            scope.spawn(move || {
                for at in (thread..count).step_by(THREADS as usize) {
                    let plan = only.plan(seed, at);
                    let name = plan.name();
                    WATCH.begin(at, format!("connection {at} of seed {seed} ({name})"));
                    let began = Instant::now();
                    let result = ask(port, &plan);
                    WATCH.end(at);
                    let mut slowest = slowest.lock().expect("nobody panics while holding it");
                    if began.elapsed() > slowest.0 {
                        *slowest = (began.elapsed(), format!("number {at}, {name}"));
                    }
                    drop(slowest);
                    match result {
                        Ok(bytes) => _ = moved.fetch_add(bytes, Relaxed),
                        Err(why) if torn && !is_fault(&why) && !why.contains("END") => {
                            dropped.fetch_add(1, Relaxed);
                        }
                        Err(why) => {
                            failures.fetch_add(1, Relaxed);
                            println!("connection {at} of seed {seed} ({name}): {why}");
                        }
                    }
                }
            });
        }
    });
    let failed = failures.load(Relaxed);
    let (time, which) = slowest.into_inner().expect("nobody panics while holding it");
    println!(
        "{count} connections, {} bytes, {failed} failed, {} dropped; the slowest, {which}, took {time:.3?}",
        moved.load(Relaxed),
        dropped.load(Relaxed)
    );
    i32::from(failed > 0)
}

fn ask(port: u16, plan: &Plan) -> Result<u64> {
    let tcp = TcpStream::connect(("127.0.0.1", port)).map_err(text("connect"))?;
    let (mut to, mut from) = plan.streams();
    let mut random = Random::new(plan.seed ^ 4);
    let way = Way::any(&mut random);
    let local = tcp.local_addr().map_or(0, |at| at.port());
    let mut stream = Stream::new(tcp, way).map_err(text("options"))?;
    stream.write_all(&plan.seed.to_le_bytes()).map_err(text("seed"))?;
    let done = match plan.name() {
        "ping-pong" => (0..plan.rounds)
            .try_for_each(|_| turn(&mut stream, &mut from, &mut to, &mut random, true))
            .map(|()| to.at + from.at),
        "mixed" => (0..plan.rounds)
            .try_for_each(|_| mixed_turn(&mut stream, &mut from, &mut to, &mut random, true))
            .map(|()| to.at + from.at),
        "both-ways" => both_ways(plan, Talk { stream, from, to, random, first: true }),
        "kill" => one_dies(plan, Talk { stream, from, to, random, first: true }),
        "reset" => {
            let part = random.below(plan.bytes + 1);
            to.send(&mut stream, part, &mut random).map_err(text("part"))?;
            reset(stream);
            Ok(part)
        }
        _ => whole(plan, &mut stream, from, to, random),
    };
    done.map_err(|why| format!("from {local}, {way:?}: {why}"))
}

/// Sends the stream, and receives it back.
fn whole(plan: &Plan, stream: &mut Stream, mut from: Bytes, mut to: Bytes, mut random: Random) -> Result<u64> {
    if matches!(plan.name(), "fork" | "pass" | "pass-long") {
        warm_up(stream, &mut from, &mut to, &mut random, true)?;
    }
    let end = to.at + plan.bytes;
    if plan.name() == "pass" {
        let ahead = to.at + plan.bytes.min(AHEAD_BYTES);
        while to.at < ahead {
            let n = random.size(AHEAD_SEND_BYTES).min(ahead - to.at);
            to.send(stream, n, &mut random).map_err(text("ahead"))?;
        }
        if from.receive(stream, 1, &mut random)? == 0 {
            return Err("END while it was passed on".into());
        }
    }
    to.send(stream, end - to.at, &mut random).map_err(text("stream"))?;
    if plan.name() == "half-close" {
        stream.tcp.shutdown(Shutdown::Write).map_err(text("half-close"))?;
    }
    let got = from.receive(stream, plan.bytes + 1, &mut random)?;
    if got == plan.bytes { Ok(plan.bytes * 2) } else { Err(format!("END: {got} of {} bytes came back", plan.bytes)) }
}

fn reset(stream: Stream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let fd = stream.tcp.into_raw_fd();
    // SAFETY: the option's value is ours; the descriptor is ours alone and closed once.
    unsafe {
        let size = size_of_val(&linger) as libc::socklen_t;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size);
        libc::close(fd);
    }
}
