//! Delegation: a server leaves a call to another one, which answers the caller itself. The caller
//! does not see it, and the answer takes no detour.
//!
//! `cargo run --release --example 11_delegation`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;
use tutorial::{Failure, check};
use vmmc::Session;
use vmmc_rpc::{Client, Reply, Server, service};

#[service]
trait Library {
    /// The text of a book, of which `into` gets as much as fits; its length.
    #[deferred]
    fn book(&self, number: u32, into: &mut [u8]) -> Result<u64, String>;
    /// Nobody reads any more.
    fn close(&self);
}

/// Knows which shelf has which book, and has none.
struct Desk {
    shelves: Vec<Client>,
    done: mpsc::SyncSender<()>,
}

/// Has every second book.
struct Shelf {
    parity: u32,
    done: mpsc::SyncSender<()>,
}

impl Library for Desk {
    fn book(&self, number: u32, reply: Reply<Result<u64, String>>) {
        let shelf = &self.shelves[number as usize % self.shelves.len()];
        if let Err((reply, error)) = reply.pass_on(shelf) {
            reply.answer(&Err(error.to_string()));
        }
    }

    fn close(&self) {
        self.shelves.iter().for_each(|shelf| _ = LibraryClient::from(shelf.clone()).close());
        let _ = self.done.send(());
    }
}

impl Library for Shelf {
    fn book(&self, number: u32, reply: Reply<Result<u64, String>>) {
        if number % 2 != self.parity || number > 99 {
            return reply.answer_with_bulk(&Err(format!("book {number} is not here")), b"");
        }
        let text = text(number);
        let len = text.len().min(reply.bulk_wanted() as usize);
        reply.answer_with_bulk(&Ok(text.len() as u64), &text.as_bytes()[..len]);
    }

    fn close(&self) {
        let _ = self.done.send(());
    }
}

fn text(number: u32) -> String {
    format!("book {number}, page by page. ").repeat(100)
}

fn main() -> ExitCode {
    tutorial::run(&[("shelf-0", shelf_0), ("shelf-1", shelf_1), ("desk", desk), ("reader", reader)])
}

fn shelf_0(session: &Session) -> Result<(), Failure> {
    shelf(session, 0)
}

fn shelf_1(session: &Session) -> Result<(), Failure> {
    shelf(session, 1)
}

fn shelf(session: &Session, parity: u32) -> Result<(), Failure> {
    let (done, over) = mpsc::sync_channel(1);
    let server = Server::new(session, &shelf_name(parity)).serve(Shelf { parity, done }.into_handler())?;
    over.recv()?;
    // The answer to the last call goes out before the server ends.
    std::thread::sleep(Duration::from_millis(100));
    println!("shelf {parity}: {} calls were answered", server.counts().done);
    Ok(())
}

fn shelf_name(parity: u32) -> String {
    format!("shelf-{parity}")
}

fn desk(session: &Session) -> Result<(), Failure> {
    let connect = |parity| Client::new(session, &shelf_name(parity)).timeout(Duration::from_secs(10)).connect();
    let shelves = vec![connect(0)?, connect(1)?];
    let (done, over) = mpsc::sync_channel(1);
    // The last call of this server waits for the shelves, so it has a thread of its own.
    let server = Server::new(session, "library").threads(1).serve(Desk { shelves, done }.into_handler())?;
    over.recv()?;
    std::thread::sleep(Duration::from_millis(100));
    println!("desk:    {} calls were passed on", server.counts().passed_on);
    Ok(())
}

fn reader(session: &Session) -> Result<(), Failure> {
    let client = Client::new(session, "library").timeout(Duration::from_secs(10)).connect()?;
    let library = LibraryClient::from(client);
    for number in 0..20 {
        let mut page = vec![0; 4096];
        let len = library.book(number, &mut page)??;
        check(page[..len as usize] == *text(number).as_bytes(), "another book")?;
    }
    println!("reader:  20 books came straight from their shelves");
    println!("reader:  {}", library.book(101, &mut [0; 10])?.unwrap_err());
    library.close()?;
    Ok(())
}
