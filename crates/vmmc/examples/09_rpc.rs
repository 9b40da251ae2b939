//! Remote calls: a service is a trait, and its client has the same methods.
//!
//! `cargo run --release --example 09_rpc`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tutorial::{Failure, check};
use vmmc::Session;
use vmmc_rpc::{Client, Server, service};

const CALLS: u32 = 10_000;

#[service]
trait Greeter {
    /// A greeting, or why there is none.
    fn greet(&self, name: &str) -> Result<String, String>;
    /// Stays silent for so long.
    fn think(&self, ms: u64);
    /// The client is done.
    fn goodbye(&self);
}

struct Polite {
    done: mpsc::SyncSender<()>,
}

impl Greeter for Polite {
    fn greet(&self, name: &str) -> Result<String, String> {
        if name.is_empty() { Err("nobody is there".into()) } else { Ok(format!("hello, {name}")) }
    }

    fn think(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    fn goodbye(&self) {
        // The role waits for it.
        let _ = self.done.send(());
    }
}

fn main() -> ExitCode {
    tutorial::run(&[("server", server), ("client", client)])
}

fn server(session: &Session) -> Result<(), Failure> {
    let (done, over) = mpsc::sync_channel(1);
    let server = Server::new(session, "greeter").threads(2).serve(Polite { done }.into_handler())?;
    println!("server: I serve \"greeter\" on two threads");
    over.recv()?;
    // The answer to the last call goes out before the server ends.
    std::thread::sleep(Duration::from_millis(100));
    println!("server: {} calls were answered", server.counts().done);
    Ok(())
}

fn client(session: &Session) -> Result<(), Failure> {
    // The service need not exist yet.
    let client = Client::new(session, "greeter").timeout(Duration::from_secs(10)).connect()?;
    let greeter = GreeterClient::from(client);
    println!("client: {:?}", greeter.greet("world")??);
    println!("client: {:?}", greeter.greet("")?);

    let start = Instant::now();
    for _ in 0..CALLS {
        check(greeter.greet("again")?? == "hello, again", "another answer")?;
    }
    println!("client: {CALLS} calls, {} ns each", start.elapsed().as_nanos() as u64 / u64::from(CALLS));

    // A call that is not waited for.
    let slow = greeter.think_start(50)?;
    println!("client: a slow call is under way, and meanwhile {:?}", greeter.greet("somebody else")??);
    slow.wait()?;
    greeter.goodbye()?;
    Ok(())
}
