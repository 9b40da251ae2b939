//! Two processes, one TCP connection, which moves into shared memory by itself; the same over plain
//! TCP for comparison.
//!
//! Terminal: `cargo run --release -p vmmc-sockets --example 01_ping_pong`. It starts a node and the
//! second process itself. No root needed.
//!
//! Expected output, with other figures:
//!
//! ```text
//! 8 bytes there and back: TCP 17.01 us, VMMC 1.10 us
//! 1 MiB at a time, one way: TCP 2.9 GB/s, VMMC 6.9 GB/s
//! ```

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc_node::{Daemon, KeySource, NodeConfig};
use vmmc_sockets::{Context, Settings, Stream};

type Failure = Box<dyn std::error::Error>;

const CHUNK: usize = 1 << 20;
const TIME: Duration = Duration::from_millis(1500);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, node] = &arguments[..] {
        assert_eq!(word, "serve");
        return serve(node);
    }
    let name = format!("pingpong{}", std::process::id());
    let daemon = Daemon::start(NodeConfig::new(&name).listen("127.0.0.1:0".parse()?).key(KeySource::Plain))?;
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.run());
    let mut server = Command::new(std::env::current_exe()?).args(["serve", &name]).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().ok_or("no output")?), &mut line)?;
    let address = line.trim().to_string();
    let context = context(&name);
    let tcp = TcpStream::connect(&address)?;
    tcp.set_nodelay(true)?;
    let vmmc = Stream::new(&context, TcpStream::connect(&address)?);
    println!("8 bytes there and back: TCP {:.2} us, VMMC {:.2} us", ping(&tcp)?, ping(&vmmc)?);
    println!("1 MiB at a time, one way: TCP {:.1} GB/s, VMMC {:.1} GB/s", push(&tcp)?, push(&vmmc)?);
    println!("{:?}", vmmc.describe());
    drop((tcp, vmmc));
    server.kill()?;
    server.wait()?;
    stopper.stop();
    thread.join().map_err(|_| "the node failed")??;
    Ok(())
}

fn context(node: &str) -> Arc<Context> {
    Arc::new(Context::new(Settings { node_name: node.to_string(), ..Settings::from_env() }))
}

/// Microseconds there and back.
fn ping<S>(stream: &S) -> Result<f64, Failure>
where
    for<'a> &'a S: Read + Write,
{
    let mut both = stream;
    let mut word = [0u8; 8];
    let mut round = || -> Result<(), Failure> {
        both.write_all(b"pppppppp")?;
        Ok(both.read_exact(&mut word)?)
    };
    for _ in 0..1000 {
        round()?;
    }
    let (start, mut rounds) = (Instant::now(), 0u32);
    while start.elapsed() < TIME {
        for _ in 0..100 {
            round()?;
        }
        rounds += 100;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds))
}

/// Gigabytes a second to the other side, acknowledged at the end.
fn push<S>(stream: &S) -> Result<f64, Failure>
where
    for<'a> &'a S: Read + Write,
{
    let mut both = stream;
    let data = vec![b's'; CHUNK];
    let (start, mut sent) = (Instant::now(), 0usize);
    while start.elapsed() < TIME {
        both.write_all(&data)?;
        sent += CHUNK;
    }
    both.write_all(b"e")?;
    both.read_exact(&mut [0u8; 8])?;
    Ok(sent as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// The other process: the first connection is left with the kernel.
fn serve(node: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let context = context(node);
    let plain = listener.accept()?.0;
    plain.set_nodelay(true)?;
    let thread = std::thread::spawn(move || answer(&plain).map_err(|e| e.to_string()));
    answer(&Stream::new(&context, listener.accept()?.0))?;
    Ok(thread.join().map_err(|_| "the thread failed")??)
}

fn answer<S>(stream: &S) -> Result<(), Failure>
where
    for<'a> &'a S: Read + Write,
{
    let mut both = stream;
    let mut buffer = vec![0u8; CHUNK];
    loop {
        let got = both.read(&mut buffer)?;
        match buffer[..got].last() {
            None => return Ok(()),
            Some(b'p') | Some(b'e') => both.write_all(&buffer[..got.min(8)].to_vec().repeat(8)[..8])?,
            _ => {}
        }
    }
}
