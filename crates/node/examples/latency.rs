//! What a node costs: 8-byte ping-pong and bulk between two nodes on loopback, with raw rings
//! instead of a library.
//!
//! `cargo run --release -p vmmc-node --example latency -- daemons` (or `embedded`, `local`;
//! `--sealed`; `--seconds N`; `bulk`)
#![allow(dead_code, unused_imports)]

#[path = "../src/testing/raw.rs"]
mod raw;

use raw::Raw;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vmmc_host::Channel;
use vmmc_host::abi::{Op, RawCommand, flags};
use vmmc_host::channel::node_socket_name;
use vmmc_nic::Rights;
use vmmc_node::{Embedded, KeySource, NodeConfig};

const BOTH: Rights = Rights::READ.union(Rights::WRITE);

fn config(name: &str, sealed: bool) -> NodeConfig {
    let key = if sealed { KeySource::Given([5; 32]) } else { KeySource::Plain };
    NodeConfig::new(name).listen(SocketAddr::from(([127, 0, 0, 1], 0))).key(key).plain_trust_users()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let sealed = has("--sealed");
    // Cores for the first daemon, the first side, the second daemon, the second side, such as
    // CORES=0,0,1,1.
    if let Some(core) = std::env::var("CORES").ok().and_then(|cores| {
        let side = args.iter().any(|a| a == "side");
        let second = if side { !has("first") } else { args.get(1).is_some_and(|n| n.contains("-b-")) };
        cores.split(',').nth(usize::from(side) + 2 * usize::from(second))?.parse().ok()
    }) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
    }
    match args[0].as_str() {
        "daemon" => {
            let said = |r: vmmc_node::Running| println!("{}", r.addresses[0]);
            vmmc_node::run_with(config(&args[1], sealed), said).unwrap();
        }
        "side" => side(&args[1], has("embedded"), has("first"), sealed, has("bulk")),
        "echo" => echo(&args[1], &args[2]),
        "tcp" | "tcp-spin" | "udp-spin" | "udp-yield" => kernel(&args[0], has("bulk")),
        mode => parent(mode, sealed, has("bulk")),
    }
}

fn again(kind: &str, mut io: impl FnMut() -> std::io::Result<usize>) {
    loop {
        match io() {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            // The other side has gone: the measurement is over.
            Ok(0) | Err(_) => std::process::exit(0),
            Ok(_) => return,
        }
        if kind == "udp-yield" {
            std::thread::yield_now();
        }
    }
}

/// Peers of the kernel for comparison.
fn kernel(kind: &str, bulk: bool) {
    use std::io::Read;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = if kind.starts_with("udp") { udp.local_addr() } else { listener.local_addr() }.unwrap();
    let args = ["echo", if bulk { "sink" } else { kind }, &at.to_string()];
    let mut child = Command::new(std::env::current_exe().unwrap()).args(args).spawn().unwrap();
    let mut byte = [0u8; 8];
    let mut samples = Vec::new();
    if kind.starts_with("udp") {
        let (_, from) = udp.recv_from(&mut byte).unwrap();
        udp.connect(from).unwrap();
        udp.set_nonblocking(true).unwrap();
        for _ in 0..3000 {
            let start = Instant::now();
            for _ in 0..16 {
                udp.send(&byte).unwrap();
                again(kind, || udp.recv(&mut byte));
            }
            samples.push(start.elapsed().as_nanos() as u64 / 32);
        }
    } else {
        let mut tcp = listener.accept().unwrap().0;
        tcp.set_nodelay(true).unwrap();
        if bulk {
            let data = vec![7u8; 1 << 20];
            let mut rates: Vec<f64> = (0..20)
                .map(|_| {
                    let start = Instant::now();
                    (0..64).for_each(|_| tcp.write_all(&data).unwrap());
                    tcp.read_exact(&mut byte[..1]).unwrap();
                    64.0 * 1.048576 / start.elapsed().as_secs_f64() / 1000.0
                })
                .collect();
            rates.sort_by(f64::total_cmp);
            println!("tcp bulk: min {:.2} median {:.2} max {:.2} GB/s", rates[0], rates[10], rates[19]);
            let _ = child.kill();
            return drop(child.wait());
        }
        tcp.set_nonblocking(kind == "tcp-spin").unwrap();
        for _ in 0..3000 {
            let start = Instant::now();
            for _ in 0..16 {
                tcp.write_all(&byte).unwrap();
                again(kind, || tcp.read(&mut byte));
            }
            samples.push(start.elapsed().as_nanos() as u64 / 32);
        }
    }
    samples.sort_unstable();
    println!("{kind} one way p10 {} p50 {} p99 {}", samples[300], samples[1500], samples[2970]);
    let _ = child.kill();
    let _ = child.wait();
}

fn echo(kind: &str, to: &str) {
    use std::io::Read;
    let mut byte = [0u8; 8];
    if kind.starts_with("udp") {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.connect(to).unwrap();
        udp.send(&byte).unwrap();
        udp.set_nonblocking(true).unwrap();
        loop {
            again(kind, || udp.recv(&mut byte));
            let _ = udp.send(&byte);
        }
    }
    let mut tcp = std::net::TcpStream::connect(to).unwrap();
    tcp.set_nodelay(true).unwrap();
    if kind == "sink" {
        let mut data = vec![0u8; 1 << 20];
        loop {
            for _ in 0..64 {
                if tcp.read_exact(&mut data).is_err() {
                    return;
                }
            }
            let _ = tcp.write_all(&[1]);
        }
    }
    tcp.set_nonblocking(kind == "tcp-spin").unwrap();
    loop {
        again(kind, || tcp.read(&mut byte));
        let _ = tcp.write_all(&byte);
    }
}

/// Starts daemons and sides, and passes addresses between them.
fn parent(mode: &str, sealed: bool, bulk: bool) {
    let embedded = mode == "embedded";
    let (a, b) = (format!("lat-a-{}", std::process::id()), format!("lat-b-{}", std::process::id()));
    let names = if mode == "local" { [a.clone(), a] } else { [a, b] };
    let spawn = |args: &[&str]| {
        let mut all: Vec<&str> = args.to_vec();
        all.extend(sealed.then_some("--sealed"));
        all.extend(bulk.then_some("bulk"));
        Command::new(std::env::current_exe().unwrap())
            .args(all)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let line = |child: &mut Child| {
        let mut text = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut text).unwrap();
        text.trim().to_string()
    };
    let mut daemons = Vec::new();
    let mut addresses = Vec::new();
    if !embedded {
        for name in names.iter().take(if mode == "local" { 1 } else { 2 }) {
            daemons.push(spawn(&["daemon", name]));
            addresses.push(line(daemons.last_mut().unwrap()));
        }
    }
    let kind = if embedded { "embedded" } else { "daemon" };
    let mut first = spawn(&["side", &names[0], kind, "first"]);
    let mut second = spawn(&["side", &names[1], kind]);
    if embedded {
        addresses = vec![line(&mut first), line(&mut second)];
    }
    let tell = |child: &mut Child, text: &str| writeln!(child.stdin.as_mut().unwrap(), "{text}").unwrap();
    let local = mode == "local";
    tell(&mut first, if local { "-" } else { &addresses[1] });
    tell(&mut second, if local { "-" } else { &addresses[0] });
    let mut out = String::new();
    std::io::Read::read_to_string(first.stdout.as_mut().unwrap(), &mut out).unwrap();
    print!("{mode}{} {out}", if sealed { " sealed" } else { " plain" });
    let _ = second.kill();
    for mut child in daemons.into_iter().chain([first, second]) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn side(name: &str, embedded: bool, first: bool, sealed: bool, bulk: bool) {
    let node = embedded.then(|| Embedded::start(config(if first { "a" } else { "b" }, sealed)).unwrap());
    let mut raw = match &node {
        Some(node) => {
            println!("{}", node.addresses()[0]);
            Raw::stepped(node.attach().unwrap())
        }
        None => {
            let name = node_socket_name(rustix::process::geteuid().as_raw(), name);
            Raw::over(Channel::connect(&name).unwrap(), Rc::new(std::thread::yield_now))
        }
    };
    let mut peer = String::new();
    std::io::stdin().read_line(&mut peer).unwrap();
    let peer = peer.trim();
    let node = (peer != "-").then_some(peer);
    let (mine, theirs) = if first { ("first", "second") } else { ("second", "first") };
    let memory = raw.register(8 << 20);
    raw.call(Raw::export_call(&memory, mine)).unwrap();
    let call = vmmc_host::control::Call::Import {
        node: node.map(Into::into),
        what: vmmc_host::control::What::Name(theirs.into()),
        owner: Default::default(),
        rights: if node.is_none() { Rights::WRITE } else { BOTH }.bits(),
        wait: true,
        timeout_ms: 10_000,
        own_order: false,
    };
    let Ok(vmmc_host::control::Answer::Imported(grant)) = raw.call(call) else { panic!("no import") };
    if bulk {
        return bulk_side(raw, first, embedded, grant.import);
    }
    let word = memory.region.word(0).unwrap();
    let ping = |raw: &mut Raw, i: u64| {
        let mut command = RawCommand::new(Op::Send, grant.import);
        command.flags = flags::INLINE;
        raw.post(&command, &i.to_le_bytes());
        raw.ring();
    };
    let polls = std::env::var("POLLS").map_or(64, |n| n.parse().unwrap());
    let come = |raw: &mut Raw, i: u64| {
        loop {
            for _ in 0..if embedded { 1 } else { polls } {
                if word.load(Ordering::Acquire) == i {
                    return;
                }
                std::hint::spin_loop();
            }
            raw.pump();
        }
    };
    let mut samples = Vec::new();
    let end = Instant::now() + Duration::from_secs(2);
    let mut i = 0;
    while !first || Instant::now() < end {
        let start = Instant::now();
        for _ in 0..16 {
            i += 1;
            if first {
                ping(&mut raw, i);
            }
            come(&mut raw, i);
            if !first {
                ping(&mut raw, i);
            }
        }
        samples.push(start.elapsed().as_nanos() as u64 / 32);
    }
    samples.sort_unstable();
    let at = |q: usize| samples[samples.len() * q / 100];
    println!("one way p10 {} p50 {} p90 {} p99 {} ns ({} samples)", at(10), at(50), at(90), at(99), samples.len());
}

/// As a library waits: polls for a while, then sleeps.
fn sleeping_completion(raw: &mut Raw) -> vmmc_host::abi::Completion {
    let start = Instant::now();
    loop {
        if let Some(completion) = raw.try_completion() {
            return completion;
        }
        if start.elapsed() < Duration::from_micros(50) {
            raw.pump();
            continue;
        }
        let flag = raw.area.process_sleeping();
        let mut found = None;
        let deadline = vmmc_host::wait::Deadline::after(Duration::from_secs(5));
        raw.wake.sleep(&[flag], deadline, || {
            found = vmmc_host::abi::Completion::pop(&mut raw.completions);
            found.is_some()
        });
        if let Some(completion) = found {
            return completion;
        }
    }
}

/// 1 MiB sends, four under way.
fn bulk_side(mut raw: Raw, first: bool, embedded: bool, import: u64) {
    let source = raw.register(8 << 20);
    source.region.write(0, &vec![7; 8 << 20]).unwrap();
    if !first {
        loop {
            match embedded {
                true => raw.pump(),
                false => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
    let mut rates = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        let (total, mut done, mut posted) = (64u64, 0, 0);
        while done < total {
            while posted < total && posted < done + 4 {
                let mut command = RawCommand::new(Op::Send, import);
                command.flags = flags::COMPLETE;
                (command.offset, command.region, command.region_offset, command.len) =
                    ((posted % 8) << 20, source.id.into(), (posted % 8) << 20, 1 << 20);
                raw.post(&command, &[]);
                raw.ring();
                posted += 1;
            }
            let status = if embedded { raw.completion().status } else { sleeping_completion(&mut raw).status };
            assert_eq!(status, 0);
            done += 1;
        }
        rates.push(total as f64 * 1.048576 / start.elapsed().as_secs_f64() / 1000.0);
    }
    rates.sort_by(f64::total_cmp);
    if let Ok(vmmc_host::control::Answer::Info(info)) = raw.call(vmmc_host::control::Call::Info { details: false }) {
        let interesting = ["retransmits", "timeouts", "duplicates", "sleeps", "udp_", "packets", "control_calls"];
        let shown: Vec<_> =
            info.counters.iter().filter(|(n, c)| *c > 0 && interesting.iter().any(|i| n.contains(i))).collect();
        eprintln!("{shown:?} {:?}", info.peers.first().map(|p| (p.rtt_ns, p.window_bytes, p.in_flight_bytes)));
    }
    println!(
        "1 MiB sends: min {:.2} median {:.2} max {:.2} GB/s",
        rates[0],
        rates[rates.len() / 2],
        rates[rates.len() - 1]
    );
}
