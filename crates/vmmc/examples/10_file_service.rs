//! A file service: what is read goes from the server's memory straight into a buffer of the client,
//! by a token that travels with the call.
//!
//! `cargo run --release --example 10_file_service`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tutorial::{Failure, check};
use vmmc::Session;
use vmmc_rpc::{Client, Reply, Server, service};

const FILE_BYTES: usize = 8 << 20;
const PIECE_BYTES: u64 = 64 << 10;

#[service]
trait Files {
    /// Bytes of a file.
    fn size(&self, name: &str) -> Result<u64, String>;
    /// Reads from a file; says how many bytes there were. `deferred`: the handler gets the answer
    /// to give, and so can give bytes from wherever they are.
    #[deferred]
    fn read(&self, name: &str, from: u64, into: &mut [u8]) -> Result<u64, String>;
    /// The client is done.
    fn close(&self);
}

struct OneFile {
    content: Vec<u8>,
    done: mpsc::SyncSender<()>,
}

impl OneFile {
    fn find(&self, name: &str) -> Result<&[u8], String> {
        if name == "numbers" { Ok(&self.content) } else { Err(format!("there is no {name:?}")) }
    }
}

impl Files for OneFile {
    fn size(&self, name: &str) -> Result<u64, String> {
        self.find(name).map(|content| content.len() as u64)
    }

    fn read(&self, name: &str, from: u64, reply: Reply<Result<u64, String>>) {
        match self.find(name) {
            Ok(content) => {
                let rest = content.get(from as usize..).unwrap_or_default();
                let piece = &rest[..rest.len().min(reply.bulk_wanted() as usize)];
                reply.answer_with_bulk(&Ok(piece.len() as u64), piece);
            }
            Err(why) => reply.answer_with_bulk(&Err(why), b""),
        }
    }

    fn close(&self) {
        // The role waits for it.
        let _ = self.done.send(());
    }
}

fn main() -> ExitCode {
    tutorial::run(&[("server", server), ("reader", reader)])
}

/// Byte `at` of the file.
fn byte(at: usize) -> u8 {
    (at / 7) as u8 ^ (at >> 12) as u8
}

fn server(session: &Session) -> Result<(), Failure> {
    let content: Vec<u8> = (0..FILE_BYTES).map(byte).collect();
    let (done, over) = mpsc::sync_channel(1);
    let server = Server::new(session, "files").serve(OneFile { content, done }.into_handler())?;
    println!("server: I have a file of {} MiB", FILE_BYTES >> 20);
    over.recv()?;
    // The answer to the last call goes out before the server ends.
    std::thread::sleep(Duration::from_millis(100));
    println!("server: {} calls were answered", server.counts().done);
    Ok(())
}

fn reader(session: &Session) -> Result<(), Failure> {
    let client = Client::new(session, "files").timeout(Duration::from_secs(10)).bulk(4, PIECE_BYTES).connect()?;
    let files = FilesClient::from(client);
    let size = files.size("numbers")??;
    println!("reader: the file has {size} bytes; of another one: {}", files.size("letters")?.unwrap_err());

    let (mut from, mut wrong) = (0, 0);
    let start = Instant::now();
    while from < size {
        // The bytes stay where they have landed until `bulk` is dropped.
        let (len, bulk) = files.read_bulk("numbers", from, PIECE_BYTES)?;
        let mut first = [0];
        bulk.read(0, &mut first)?;
        wrong += usize::from(first[0] != byte(from as usize));
        from += len?;
    }
    let rate = size as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("reader: read in pieces of {} KiB, {rate:.1} GB/s", PIECE_BYTES >> 10);
    check(wrong == 0, "a piece is not what it should be")?;

    // Or into memory of the program's own.
    let mut end = [0; 100];
    let len = files.read("numbers", size - 40, &mut end)??;
    check(len == 40 && end[39] == byte(FILE_BYTES - 1) && end[40..] == [0; 60], "the end is another one")?;
    println!("reader: the last {len} bytes are right, and nothing is behind them");
    files.close()?;
    Ok(())
}
