//! What a call costs: two threads with sessions of their own, over an embedded node.
//!
//! `cargo run --release -p vmmc-rpc --example call_cost`

use std::collections::VecDeque;
use std::time::Instant;
use vmmc::Session;
use vmmc_node::{Embedded, KeySource, NodeConfig};
use vmmc_rpc::{Call, Client, Server};

const NULL: u16 = 1;
const READ: u16 = 2;
const CALLS: u32 = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Embedded::start(NodeConfig::new("call-cost").key(KeySource::Plain))?;
    let attach = || Session::over(node.attach()?).map_err(Box::<dyn std::error::Error>::from);
    let page = vec![7; 64 << 10];
    let handler = move |call: Call| match call.method() {
        NULL => call.answer(b""),
        READ => {
            let len = u32::from_le_bytes(call.arguments().try_into().unwrap_or_default());
            call.answer_with_bulk(b"", &page[..len as usize]);
        }
        _ => call.no_method(),
    };
    for threads in [0, 1] {
        let server = Server::new(&attach()?, "cost").threads(threads).serve(handler.clone())?;
        let client = Client::new(&attach()?, "cost").connect()?;
        for (what, method, len) in [("null", NULL, 0u32), ("4 KiB", READ, 4 << 10), ("64 KiB", READ, 64 << 10)] {
            let calls = if len > 4096 { CALLS / 10 } else { CALLS };
            let mut best = f64::MAX;
            for _ in 0..3 {
                let start = Instant::now();
                for _ in 0..calls {
                    let arguments = len.to_le_bytes();
                    let request = client.request(method).arguments(&arguments);
                    if len > 0 {
                        request.wants_bulk().call()?
                    } else {
                        request.call()?
                    };
                }
                best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
            }
            println!("{threads} threads, {what:7} {best:8.0} ns");
        }
        let start = Instant::now();
        let mut under_way = VecDeque::new();
        for _ in 0..CALLS {
            under_way.push_back(client.request(NULL).start()?);
            if under_way.len() == 32 {
                under_way.pop_front().expect("it is full").wait()?;
            }
        }
        for pending in under_way {
            pending.wait()?;
        }
        let each = start.elapsed().as_nanos() as f64 / f64::from(CALLS);
        println!("{threads} threads, 32 under way: {each:.0} ns each, {:.2} million/s", 1e3 / each);
        drop(server);
    }
    Ok(())
}
