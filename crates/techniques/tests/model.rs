//! Channels and buffers of pages against a naive model: two arrays of bytes and a queue of copies.
//!
//! Invariant: whatever is written, sent, received and read, in whatever order, both sides see what
//! the model sees; no page is lost or shared by two buffers.

mod common;

use common::{Ends, LONG, Nodes, PATHS, SHORT, assert_same, open_with};
use proptest::prelude::*;
use std::collections::VecDeque;
use vmmc_techniques::{Error, PageBuffer, Technique};

/// Bytes of each buffer, of the window and of the pool: small, so that all of them run full.
const BUFFER: u64 = 10 * 4096;
const WINDOW: u64 = 2 * 4096;
const POOL: u64 = 12 * 4096;

/// Pages that the last message of every run has.
const LAST_PAGES: u64 = 2;

#[derive(Clone, Debug)]
enum Step {
    /// Writes so many bytes of a value.
    Write(u64, u64, u8),
    /// Sends a range of the buffer of pages.
    SendPages(u64, u64),
    /// Sends a slice.
    Send(u64, u8),
    /// Receives into pages, from a byte on.
    ReceivePages(u64),
    Receive,
    Discard,
    /// Makes the receiver's buffer anew.
    Renew,
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    // Half of them are whole pages.
    let pages = (0..10u64, 0..4u64).prop_map(|(page, count)| (page * 4096, count * 4096));
    prop_oneof![pages, (0..BUFFER, 0..3 * 4096u64)].prop_map(|(at, len)| (at, len.min(BUFFER - at)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (range(), 1u8..).prop_map(|((at, len), value)| Step::Write(at, len, value)),
        4 => range().prop_map(|(at, len)| Step::SendPages(at, len)),
        1 => (0..3 * 4096u64, 1u8..).prop_map(|(len, value)| Step::Send(len, value)),
        4 => prop_oneof![Just(0u64), (0..6u64).prop_map(|page| page * 4096), 0..BUFFER].prop_map(Step::ReceivePages),
        1 => Just(Step::Receive),
        1 => Just(Step::Discard),
        1 => Just(Step::Renew),
    ]
}

/// Steps, and behind them what exchanges [`LAST_PAGES`] pages on a channel that exchanges any: all
/// that is under way is received, then whole pages are sent and received at the beginning of one.
fn with_pages_at_the_end(mut steps: Vec<Step>) -> Vec<Step> {
    steps.extend(vec![Step::Receive; steps.len()]);
    steps.extend([Step::SendPages(0, LAST_PAGES * 4096), Step::ReceivePages(0)]);
    steps
}

/// Runs steps on a channel and on the model.
fn run(ends: Ends, steps: &[Step]) -> usize {
    let Ends { mut receiver, mut sender, user, .. } = ends;
    receiver.set_timeout(LONG);
    // What does not fit at once is given up, and the model knows nothing of it.
    sender.set_timeout(SHORT / 10);
    let mut from = PageBuffer::new(&user, BUFFER).unwrap();
    let mut into = receiver.page_buffer(BUFFER).unwrap();
    let (mut here, mut there) = (vec![0u8; BUFFER as usize], vec![0u8; BUFFER as usize]);
    let mut under_way: VecDeque<Vec<u8>> = VecDeque::new();
    let mut exchanged = 0;
    let sent = |result: Result<(), Error>, message: &[u8], under_way: &mut VecDeque<Vec<u8>>| match result {
        Ok(()) => under_way.push_back(message.to_vec()),
        Err(Error::TimedOut { .. }) => {}
        Err(error) => panic!("{error}"),
    };
    for step in steps {
        match *step {
            Step::Write(at, len, value) => {
                let bytes = vec![value; len as usize];
                from.write(at, &bytes).unwrap();
                here[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            }
            Step::SendPages(at, len) => {
                let result = sender.send_pages(&mut from, at..at + len);
                sent(result, &here[at as usize..(at + len) as usize], &mut under_way);
            }
            Step::Send(len, value) => {
                let message = vec![value; len as usize];
                sent(sender.send(&message), &message, &mut under_way);
            }
            Step::ReceivePages(at) => {
                let Some(message) = under_way.front() else { continue };
                let (len, room) = (message.len() as u64, BUFFER - at);
                if len > room {
                    assert_eq!(receiver.receive_pages(&mut into, at), Err(Error::TooLong { len, room }));
                    continue;
                }
                let received = receiver.receive_pages(&mut into, at).unwrap();
                assert_eq!(received.len, len);
                exchanged += received.pages_exchanged as usize;
                there[at as usize..(at + len) as usize].copy_from_slice(message);
                under_way.pop_front();
            }
            Step::Receive => {
                let Some(message) = under_way.pop_front() else { continue };
                let mut buffer = vec![0xEE; message.len() + 9];
                assert_eq!(receiver.receive(&mut buffer).unwrap(), message.len());
                assert_same(&buffer[..message.len()], &message, "a slice");
            }
            Step::Discard => {
                let Some(message) = under_way.pop_front() else { continue };
                assert_eq!(receiver.discard().unwrap(), message.len() as u64);
            }
            Step::Renew => {
                drop(into);
                into = receiver.page_buffer(BUFFER).unwrap();
                into.write(0, &there).unwrap();
            }
        }
        let mut seen = vec![0; BUFFER as usize];
        from.read(0, &mut seen).unwrap();
        assert_same(&seen, &here, &format!("the sender's buffer after {step:?}"));
        into.read(0, &mut seen).unwrap();
        assert_same(&seen, &there, &format!("the receiver's buffer after {step:?}"));
    }
    exchanged
}

#[test]
fn channels_and_buffers_of_pages_agree_with_arrays_and_a_queue_on_every_path() {
    const CASES: u32 = 12;
    let nodes = Nodes::start();
    for path in PATHS {
        for technique in [Technique::Pio, Technique::CopyDma, Technique::PexDma, Technique::Auto] {
            let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
                failure_persistence: None,
                ..ProptestConfig::with_cases(CASES)
            });
            let steps = proptest::collection::vec(step(), 1..60).prop_map(with_pages_at_the_end);
            let total = std::cell::Cell::new(0);
            let result = runner.run(&steps, |steps| {
                let ends =
                    open_with(&nodes, path, technique, |builder| builder.window(WINDOW).pool(POOL).pages(BUFFER));
                total.set(total.get() + run(ends, &steps));
                Ok(())
            });
            result.unwrap_or_else(|error| panic!("{technique} on {path:?}: {error}"));
            let exchanged = total.get() as u64;
            match technique {
                Technique::PexDma => {
                    assert!(exchanged >= LAST_PAGES * u64::from(CASES), "{exchanged} pages on {path:?}");
                }
                Technique::Pio | Technique::CopyDma => assert_eq!(exchanged, 0, "{technique} on {path:?}"),
                _ => {}
            }
        }
    }
}
