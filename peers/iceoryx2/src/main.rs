//! iceoryx2 as a peer of `vmmc bench`: two processes of one machine that poll, one of which asks,
//! or publishes, and has it back from the other one.
//!
//! ```text
//!   vmmc-peer-iceoryx2 call|publish NAME serve BYTES COUNT    one process, for COUNT answers
//!   vmmc-peer-iceoryx2 call|publish NAME ask BYTES COUNT      the other one
//! ```
//!
//! An answer has so many bytes, and what is asked none. The second prints median and 99th
//! percentile of a time in ns: of a call there and back, or of a publication one way.
//!
//! Invariant: each wait has an end, [`WAIT`]. Source: examples of iceoryx2, `request_response` and
//! `publish_subscribe_dynamic_data`, for the order of its calls.

#![forbid(unsafe_code)]

use iceoryx2::prelude::*;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// Longest wait for the other process.
const WAIT: Duration = Duration::from_secs(10);
/// Polls between two looks at the clock.
const POLLS: u32 = 1 << 16;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [kind @ ("call" | "publish"), name, side @ ("serve" | "ask"), bytes, count] = words[..] else {
        return Err("give `call|publish NAME serve|ask BYTES COUNT`".into());
    };
    let (bytes, count) = (bytes.parse()?, count.parse()?);
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    match (kind, side) {
        ("call", "serve") => answer(&node, name, bytes, count),
        ("call", _) => ask(&node, name, bytes, count),
        (_, side) => publish(&node, name, side == "ask", bytes, count),
    }
}

/// Polls until there is something.
fn until<T>(mut poll: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    let end = Instant::now() + WAIT;
    loop {
        for _ in 0..POLLS {
            if let Some(found) = poll()? {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        if Instant::now() > end {
            return Err(format!("nothing came within {} s; is the other process there?", WAIT.as_secs()).into());
        }
    }
}

fn answer(node: &Node<ipc::Service>, name: &str, bytes: usize, count: u64) -> Result<(), Failure> {
    let service = node.service_builder(&name.try_into()?).request_response::<[u8], [u8]>().open_or_create()?;
    let server = service.server_builder().initial_max_slice_len(bytes.max(1)).create()?;
    let payload = vec![7; bytes];
    for _ in 0..count {
        let request = until(|| Ok(server.receive()?))?;
        request.loan_slice_uninit(bytes)?.write_from_slice(&payload).send()?;
    }
    Ok(())
}

fn ask(node: &Node<ipc::Service>, name: &str, bytes: usize, count: u64) -> Result<(), Failure> {
    let service = node.service_builder(&name.try_into()?).request_response::<[u8], [u8]>().open_or_create()?;
    let client = service.client_builder().create()?;
    until(|| Ok((service.dynamic_config().number_of_servers() > 0).then_some(())))?;
    let mut one = || {
        let pending = client.loan_slice_uninit(0)?.write_from_slice(&[]).send()?;
        long_enough(until(|| Ok(pending.receive()?))?.payload(), bytes)
    };
    report(count, 1, &mut one)
}

/// Publishes and waits for what the other side publishes then: the first one, if it `asks`.
fn publish(node: &Node<ipc::Service>, name: &str, asks: bool, bytes: usize, count: u64) -> Result<(), Failure> {
    let service = |way: &str| -> Result<_, Failure> {
        let name = format!("{name}/{way}");
        Ok(node.service_builder(&name.as_str().try_into()?).publish_subscribe::<[u8]>().open_or_create()?)
    };
    let (there, back) = (service("there")?, service("back")?);
    let (out, into) = if asks { (&there, &back) } else { (&back, &there) };
    let subscriber = into.subscriber_builder().create()?;
    let publisher = out.publisher_builder().initial_max_slice_len(bytes.max(1)).create()?;
    until(|| Ok((out.dynamic_config().number_of_subscribers() > 0).then_some(())))?;
    let payload = vec![7; bytes];
    let send = || -> Result<(), Failure> {
        publisher.loan_slice_uninit(bytes)?.write_from_slice(&payload).send()?;
        Ok(())
    };
    let receive = || until(|| Ok(subscriber.receive()?));
    if asks {
        return report(count, 2, &mut || {
            send()?;
            long_enough(receive()?.payload(), bytes)
        });
    }
    for _ in 0..count {
        drop(receive()?);
        send()?;
    }
    Ok(())
}

/// Checks what came; its bytes are not looked at.
fn long_enough(came: &[u8], bytes: usize) -> Result<(), Failure> {
    if came.len() == bytes { Ok(()) } else { Err(format!("{} bytes came, not {bytes}", came.len()).into()) }
}

/// Times so many exchanges, of so many ways each.
fn report(count: u64, ways: u32, one: &mut dyn FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    let mut times = Vec::with_capacity(usize::try_from(count)?);
    for _ in 0..count {
        let start = Instant::now();
        one()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let at =
        |hundredth: usize| times.get(times.len() * hundredth / 100).map_or(0, Duration::as_nanos) / u128::from(ways);
    println!("{} {}", at(50), at(99));
    Ok(())
}
