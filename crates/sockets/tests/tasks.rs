//! Streams of tokio's tasks: what TCP promises holds, whatever carries the bytes.
//!
//! Invariant: as for `streams.rs`; nothing here waits for longer than [`LONG`].

mod common;

use common::TestNode;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use vmmc_sockets::{AsyncListener, AsyncStream, Context, Medium};

/// Far more than any of these takes.
const LONG: Duration = Duration::from_secs(30);

/// Runs a test in a runtime of each kind.
fn in_runtimes<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for runtime in [Builder::new_current_thread().enable_all().build(), workers(2)] {
        runtime.unwrap().block_on(async { timeout(LONG, test()).await.expect("it ends") });
    }
}

fn workers(count: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(count).enable_all().build()
}

/// Two ends of a connection.
async fn pair(a: &Arc<Context>, b: &Arc<Context>) -> (AsyncStream, AsyncStream) {
    let listener = AsyncListener::bind(a, "127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, connected) = tokio::join!(listener.accept(), AsyncStream::connect(b, address));
    (accepted.unwrap().0, connected.unwrap())
}

/// The same, in the ring in both directions.
async fn upgraded_pair(a: &Arc<Context>, b: &Arc<Context>) -> (AsyncStream, AsyncStream) {
    let (mut one, mut two) = pair(a, b).await;
    upgrade(&mut one, &mut two).await;
    (one, two)
}

async fn upgrade(one: &mut AsyncStream, two: &mut AsyncStream) {
    while ![&*one, &*two].iter().all(|stream| is_in_ring(stream)) {
        let mut byte = [0];
        one.write_all(b"x").await.unwrap();
        two.read_exact(&mut byte).await.unwrap();
        two.write_all(b"y").await.unwrap();
        one.read_exact(&mut byte).await.unwrap();
    }
}

fn is_in_ring(stream: &AsyncStream) -> bool {
    let description = stream.describe();
    description.tx == Medium::Ring && description.rx == Medium::Ring
}

/// Sends back all that comes, then ends.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut buffer = vec![0; 70_000];
    loop {
        let bytes = stream.read(&mut buffer).await.unwrap();
        if bytes == 0 {
            return stream.shutdown().await.unwrap();
        }
        stream.write_all(&buffer[..bytes]).await.unwrap();
    }
}

/// The byte at a place of a stream.
fn byte_at(place: u64) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Sends messages of random sizes and reads their echoes.
async fn exchange(stream: &mut AsyncStream, rounds: usize, most: u32, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut place = 0;
    let mut got = vec![0; most as usize];
    for round in 0..rounds {
        let bytes = 1 + (random.next_u32() % most) as usize;
        let want: Vec<u8> = (place..).take(bytes).map(byte_at).collect();
        place += bytes as u64;
        stream.write_all(&want).await.unwrap();
        stream.read_exact(&mut got[..bytes]).await.unwrap();
        assert!(got[..bytes] == want, "round {round} of {bytes} bytes differs");
    }
}

#[test]
fn a_stream_of_tasks_moves_into_the_ring_and_nothing_is_lost() {
    let node = TestNode::start();
    in_runtimes(|| async {
        let (mut one, two) = pair(&node.context(), &node.context()).await;
        let echoing = tokio::spawn(echo(two));
        exchange(&mut one, 500, 60_000, 1).await;
        assert!(is_in_ring(&one), "{:?}", one.describe());
        one.shutdown().await.unwrap();
        assert_eq!(one.read(&mut [0]).await.unwrap(), 0);
        echoing.await.unwrap();
    });
}
