//! Bulk results from whatever memory the server has them in, to wherever the caller wants them: on
//! both kinds of nodes, within a node and between two.

mod common;

use common::{Nodes, everywhere, pattern};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use vmmc::{AnySource, Export, Gather, Kind, Session, TokenError, TokenRefused, UnexportError};
use vmmc_rpc::{Call, Client, Reply, RpcError, Server, TokenRegion, service};

/// Ways to have the bytes that are wanted: methods of their own.
const EXPORT: u16 = 1;
const BUFFER: u16 = 2;
const GATHERED: u16 = 3;
const OF_ANOTHER_SESSION: u16 = 4;
/// More than there is.
const PAST_THE_END: u16 = 5;
/// Out of memory that stays as it is.
const IN_PLACE: u16 = 6;
const FOREIGN_IN_PLACE: u16 = 7;
const BYTES: u64 = 300_000;

/// Pages that a server has in an export, which others may write too.
struct Pages {
    export: Export,
    foreign: Export,
}

impl Pages {
    fn new(nodes: &Nodes, session: &Session) -> Pages {
        let foreign = nodes.attach(0).export(BYTES).create().unwrap();
        let pages = Pages { export: session.export(BYTES).create().unwrap(), foreign };
        for export in [&pages.export, &pages.foreign] {
            export.write(0, &pattern(BYTES as usize, 7)).unwrap();
        }
        pages
    }

    fn answer(&self, call: Call) {
        let word = |at: usize| u64::from_le_bytes(call.arguments()[at..at + 8].try_into().expect("eight bytes"));
        let (from, to) = (word(0), word(8));
        let said = (to - from).to_le_bytes();
        match call.method() {
            EXPORT => call.answer_with_bulk(&said, self.export.range(from..to)),
            BUFFER => call.answer_with_bulk(&said, self.export.buffer().range(from..to)),
            GATHERED => {
                // Thirds: registered, bytes, registered, and nothing.
                let third = (to - from) / 3;
                let mut middle = vec![0; third as usize];
                self.export.read(from + third, &mut middle).unwrap();
                let registered = |from, to| AnySource::Buffer(self.export.buffer(), from..to);
                let parts = [
                    registered(from, from),
                    registered(from, from + third),
                    AnySource::Bytes(&middle),
                    registered(from + 2 * third, to),
                    AnySource::Bytes(b""),
                ];
                call.answer_with_bulk(&said, Gather(&parts[..]));
            }
            OF_ANOTHER_SESSION => call.answer_with_bulk(&said, self.foreign.range(from..to)),
            PAST_THE_END => call.answer_with_bulk(&said, self.export.range(from..BYTES + 1)),
            IN_PLACE => call.answer_in_place(&said, self.export.range(from..to)),
            FOREIGN_IN_PLACE => call.answer_in_place(&said, self.foreign.range(from..to)),
            _ => call.no_method(),
        }
    }
}

fn range(from: u64, to: u64) -> Vec<u8> {
    [from.to_le_bytes(), to.to_le_bytes()].concat()
}

fn connect(nodes: &Nodes, caller: usize, service: &str) -> Client {
    Client::new(&nodes.attach(caller), service).node(&nodes.name(0)).bulk(2, BYTES).connect().unwrap()
}

fn region_bytes(region: &TokenRegion, from: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    region.memory().read(from, &mut bytes).unwrap();
    bytes
}

#[test]
fn bulk_comes_from_every_kind_of_memory_to_a_buffer_or_a_region_of_the_caller() {
    everywhere(|nodes, caller| {
        let session = nodes.attach(0);
        let pages = Pages::new(nodes, &session);
        let server = Server::new(&session, "pages").serve(move |call| pages.answer(call)).unwrap();
        let client = connect(nodes, caller, "pages");
        let region = client.region(2, BYTES + 100).unwrap();
        let all = pattern(BYTES as usize, 7);
        for method in [EXPORT, BUFFER, GATHERED, OF_ANOTHER_SESSION, FOREIGN_IN_PLACE] {
            for (from, len) in [(0, 0), (1, 1), (64, 176), (5, 177), (4_000, 4_096), (9, 70_001), (0, BYTES)] {
                let (arguments, expected) = (range(from, from + len), &all[from as usize..][..len as usize]);
                let answer = client.request(method).arguments(&arguments).wants_bulk().call().unwrap();
                let bulk = answer.bulk.expect("it was asked for");
                assert_eq!((answer.result, bulk.len()), (len.to_le_bytes().to_vec(), len));
                assert!(bulk.to_vec().unwrap() == expected, "{caller} {method} {from} {len}");
                // The same at an odd place of a region, whose other bytes stay.
                region.memory().write(0, &vec![0xaa; region.len() as usize]).unwrap();
                let place = 33..33 + len;
                let answer = client.request(method).arguments(&arguments).into_region(&region, place).call().unwrap();
                assert_eq!(answer.bulk.map(|bulk| bulk.len()), Some(len));
                assert!(region_bytes(&region, 33, len) == expected, "{caller} {method} {from} {len}");
                let around = [region_bytes(&region, 0, 33), region_bytes(&region, 33 + len, BYTES + 67 - len)].concat();
                assert!(around.iter().all(|byte| *byte == 0xaa), "{caller} {method} {from} {len}");
            }
        }
        // Whoever does not want it gets the result alone.
        let answer = client.request(EXPORT).arguments(&range(0, 10)).call().unwrap();
        assert_eq!((answer.result, answer.bulk.is_none()), (10u64.to_le_bytes().to_vec(), true));
        assert_eq!((server.counts().failed, client.outstanding()), (0, 0));
        // The thread that takes calls waits for no caller's node.
        assert_eq!(session.stats().sends_registered, 0, "{caller}");
        // It need not where the memory stays as it is.
        for (from, len) in [(0, 0), (1, 1), (5, 177), (9, 70_001), (0, BYTES)] {
            let arguments = range(from, from + len);
            let answers = [(); 2].map(|()| client.request(IN_PLACE).arguments(&arguments).wants_bulk().call().unwrap());
            for answer in answers {
                let bulk = answer.bulk.expect("it was asked for").to_vec().unwrap();
                assert!(bulk == all[from as usize..][..len as usize], "{caller} {from} {len}");
            }
        }
        assert_eq!(session.stats().sends_registered > 0, caller == 1, "without a copy, and without a wait");
        let pages = Pages::new(nodes, &session);
        let handler = move |call| pages.answer(call);
        let _server = Server::new(&session, "pages-on-threads").threads(1).serve(handler).unwrap();
        let client = connect(nodes, caller, "pages-on-threads");
        let answer = client.request(EXPORT).arguments(&range(0, BYTES)).wants_bulk().call().unwrap();
        assert!(answer.bulk.expect("it was asked for").to_vec().unwrap() == all);
        assert_eq!(session.stats().sends_registered > 0, caller == 1, "without a copy, from a thread of its own");
    });
}

#[test]
fn ranges_that_cannot_be_are_told_to_whom_they_are_and_nothing_is_written() {
    everywhere(|nodes, caller| {
        let session = nodes.attach(0);
        let pages = Pages::new(nodes, &session);
        let _server = Server::new(&session, "wrong-pages").serve(move |call| pages.answer(call)).unwrap();
        let client = connect(nodes, caller, "wrong-pages");
        let region = client.region(2, 10_000).unwrap();
        let arguments = range(0, 5_000);
        let request = || client.request(EXPORT).arguments(&arguments);

        // The server's mistake is told to its caller, and others are served.
        let past = client.request(PAST_THE_END).arguments(&range(10, 20)).wants_bulk().call().unwrap_err();
        let said = "its bulk result: 299991 bytes at offset 10 reach past the end of 300000 bytes; use a smaller range";
        assert_eq!(past, RpcError::Failed { service: "wrong-pages".into(), message: said.into() });

        let token = |outcome: Result<_, RpcError>| match outcome {
            Err(RpcError::Token { error, .. }) => *error,
            other => panic!("{:?}", other.map(|_: vmmc_rpc::Answer| ())),
        };
        #[allow(clippy::reversed_empty_ranges)] // also that
        for (start, end) in [(9_000, 10_001), (10_001, 10_001), (u64::MAX - 1, u64::MAX), (20, 10)] {
            let outside = token(request().into_region(&region, start..end).call());
            assert_eq!(outside, TokenError::OutOfBounds { start, end, size: 10_000 });
        }
        let others = connect(nodes, caller, "wrong-pages").region(1, 10_000).unwrap();
        assert!(matches!(token(request().into_region(&others, 0..5_000).call()), TokenError::Foreign { .. }));

        // Of two tokens for the same bytes the second one is refused, until the first is over.
        let first = request().into_region(&region, 100..5_100).call().unwrap();
        for taken in [100..5_100, 0..101, 5_099..5_100, 2_000..2_001] {
            let Err(error) = request().into_region(&region, taken.clone()).start() else {
                panic!("{taken:?} is taken")
            };
            assert_eq!(error.kind(), vmmc::ErrorKind::Busy, "{error}");
        }
        let beside = request().into_region(&region, 5_000..10_000);
        assert!(beside.start().is_err());
        let second = client.request(EXPORT).arguments(&range(0, 100)).into_region(&region, 0..100).call().unwrap();
        let ranges = token(request().into_region(&region, 9_000..9_001).call());
        assert_eq!(ranges, TokenError::Ranges { most: 2 });
        drop((first, second));
        request().into_region(&region, 5_000..10_000).call().unwrap();

        // What is longer than its range is dropped, and the next one comes.
        region.memory().write(0, &[0xbb; 10_000]).unwrap();
        let long = request().into_region(&region, 50..5_049).call().unwrap_err();
        let why = TokenRefused::TooLong { len: 5_000, max: 4_999 };
        assert_eq!(long, RpcError::BulkDropped { service: "wrong-pages".into(), why });
        assert!(region_bytes(&region, 0, 10_000).iter().all(|byte| *byte == 0xbb));
        request().into_region(&region, 50..5_050).call().unwrap();

        // As many regions as an endpoint can have.
        let mut more: Vec<TokenRegion> = Vec::new();
        let full = loop {
            match client.region(1, 1) {
                Ok(region) => more.push(region),
                Err(error) => break error,
            }
        };
        assert_eq!((more.len() + 1, full.kind()), (vmmc::limits::TOKEN_REGIONS_MAX, vmmc::ErrorKind::Full), "{full}");
        // Each can be used, and those that are gone make room.
        for region in &more {
            let one = range(8, 9);
            client.request(EXPORT).arguments(&one).into_region(region, 0..1).call().unwrap();
            assert_eq!(region_bytes(region, 0, 1), pattern(9, 7)[8..]);
        }
        drop(more);
        client.region(1, 1).unwrap();
    });
}

/// Memory whose bytes others change, and whose export ends, while it is answered from: answers have
/// each byte as it was at one time or another, and nobody is hurt.
#[test]
fn memory_that_changes_or_ceases_to_be_exported_is_answered_from_all_the_same() {
    everywhere(|nodes, caller| {
        let session = nodes.attach(0);
        let export = session.export(50_000).name("shared-pages").create().unwrap();
        let shared = export.buffer();
        let server = Server::new(&session, "shared-pages").threads(2);
        let server = server.serve(move |call: Call| call.answer_with_bulk(b"", shared.range(1_000..50_000))).unwrap();
        let client = connect(nodes, caller, "shared-pages");
        let region = client.region(1, 49_000).unwrap();
        let (over, importer) = (AtomicBool::new(false), nodes.attach(0).import("shared-pages").open().unwrap());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut value = 0u8;
                while !over.load(Ordering::Relaxed) {
                    value ^= 1;
                    if importer.send(0, &[value; 50_000]).is_err() {
                        return true;
                    }
                }
                false
            });
            for round in 0..20 {
                let answer = client.request(1).into_region(&region, 0..49_000).call().unwrap();
                assert_eq!(answer.bulk.map(|bulk| bulk.len()), Some(49_000));
                assert!(region_bytes(&region, 0, 49_000).iter().all(|byte| *byte <= 1), "{round}");
            }
            // It cannot be moved away while it may be answered from.
            let ended = export.unexport_moving();
            assert!(matches!(ended, Err(UnexportError::Shared { .. })), "{ended:?}");
            over.store(true, Ordering::Relaxed);
            writer.join().unwrap();
        });
        client.request(1).wants_bulk().call().unwrap();
        assert_eq!((server.counts().failed, server.counts().panicked), (0, 0));
    });
}

/// What a call brings can be exported where it has landed.
#[test]
fn a_region_is_exported_to_others_and_sent_from() {
    everywhere(|nodes, caller| {
        let session = nodes.attach(0);
        let pages = Pages::new(nodes, &session);
        let _server = Server::new(&session, "origin").serve(move |call| pages.answer(call)).unwrap();
        let cache = nodes.attach(caller);
        let client = Client::new(&cache, "origin").node(&nodes.name(0)).connect().unwrap();
        let region = client.region(1, 65_536).unwrap();
        let export = cache.export_buffer(region.memory()).name("cached").create().unwrap();
        client.request(EXPORT).arguments(&range(0, 4_096)).into_region(&region, 8_192..12_288).call().unwrap();
        let import = nodes.attach(1).import("cached").node(&nodes.name(caller)).open().unwrap();
        let mut page = vec![0; 4_096];
        import.fetch(8_192, &mut page[..]).unwrap();
        assert!(page == pattern(4_096, 7));
        import.send(0, export.range(8_192..8_292)).unwrap_err(); // the import's session is another one
        let own = cache.import("cached").open().unwrap();
        own.send(20_000, export.range(8_192..12_288)).unwrap();
        own.flush().unwrap();
        assert!(region_bytes(&region, 20_000, 4_096) == page);
        // The end of the one leaves the other.
        export.unexport().unwrap();
        client.request(EXPORT).arguments(&range(1, 10)).into_region(&region, 0..9).call().unwrap();
        assert_eq!(region_bytes(&region, 0, 9), pattern(10, 7)[1..]);
    });
}

#[service]
trait Blocks {
    #[deferred]
    fn block(&self, number: u64, into: &mut [u8]) -> Option<u64>;
}

struct Memory(Mutex<Export>);

impl Blocks for Memory {
    fn block(&self, number: u64, reply: Reply<Option<u64>>) {
        let (start, len) = (number * 4_096, reply.bulk_wanted().min(4_096));
        let export = self.0.lock().unwrap();
        match start < export.len() {
            true => reply.answer_with_bulk(&Some(len), export.range(start..start + len)),
            false => reply.answer_with_bulk(&None, b""),
        }
    }
}

#[test]
fn typed_services_answer_from_exports_into_regions() {
    everywhere(|nodes, caller| {
        let session = nodes.attach(0);
        let export = session.export(16_384).create().unwrap();
        export.write(0, &pattern(16_384, 5)).unwrap();
        let server = Server::new(&session, "blocks").serve(Memory(Mutex::new(export)).into_handler()).unwrap();
        let client = Client::new(&nodes.attach(caller), "blocks").node(&nodes.name(0)).connect().unwrap();
        let blocks = BlocksClient::from(client);
        let mut block = [0; 4_096];
        assert_eq!(blocks.block(2, &mut block).unwrap(), Some(4_096));
        assert!(block[..] == pattern(16_384, 5)[8_192..12_288]);
        let region = blocks.client().region(1, 10_000).unwrap();
        let (said, bulk) = blocks.block_into(3, &region, 100..4_196).unwrap();
        assert_eq!((said, bulk.len()), (Some(4_096), 4_096));
        assert!(region_bytes(&region, 100, 4_096) == pattern(16_384, 5)[12_288..]);
        drop(bulk);
        let (said, bulk) = blocks.block_into(4, &region, 0..4_096).unwrap();
        assert_eq!((said, bulk.len(), server.counts().failed), (None, 0, 0));
    });
}
