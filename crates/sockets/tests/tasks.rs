//! Streams of tokio's tasks: what TCP promises holds, whatever carries the bytes.
//!
//! Invariant: as for `streams.rs`; nothing here waits for longer than [`LONG`].

mod common;

use common::{Role, TestNode, run_node, settings};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::future::Future;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use vmmc_sockets::{AsyncListener, AsyncStream, Bypass, Context, Medium, OwnedReadHalf, OwnedWriteHalf};

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

#[test]
fn a_peer_of_tasks_that_does_not_use_it_is_served_by_the_kernel() {
    let node = TestNode::start();
    in_runtimes(|| async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut buffer = vec![0; 70_000];
            while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                stream.write_all(&buffer[..bytes]).unwrap();
            }
        });
        let mut one = AsyncStream::connect(&node.context(), address).await.unwrap();
        exchange(&mut one, 300, 60_000, 2).await;
        assert!(!one.describe().upgraded);
        one.shutdown().await.unwrap();
        assert_eq!(one.read(&mut [0]).await.unwrap(), 0);
        peer.join().unwrap();
    });
}

#[test]
fn an_end_that_sends_no_more_still_receives() {
    let node = TestNode::start();
    in_runtimes(|| async {
        for drops in [false, true] {
            let (one, mut two) = upgraded_pair(&node.context(), &node.context()).await;
            let (mut reader, mut writer) = one.into_split();
            writer.write_all(b"a question").await.unwrap();
            let kept = if drops {
                drop(writer);
                None
            } else {
                writer.shutdown().await.unwrap();
                assert_eq!(writer.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
                Some(writer)
            };
            let mut question = String::new();
            two.read_to_string(&mut question).await.unwrap();
            assert_eq!(question, "a question");
            two.write_all(b"an answer").await.unwrap();
            drop(two);
            let mut answer = String::new();
            reader.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "an answer");
            drop(kept);
        }
    });
}

#[test]
fn halves_are_one_stream_again() {
    let node = TestNode::start();
    in_runtimes(|| async {
        let (one, mut two) = upgraded_pair(&node.context(), &node.context()).await;
        let (other, _peer) = upgraded_pair(&node.context(), &node.context()).await;
        let (reader, writer) = one.into_split();
        let (other_reader, other_writer) = other.into_split();
        let wrong = reader.reunite(other_writer).unwrap_err();
        assert!(wrong.to_string().contains("into_split"));
        let mut one = wrong.0.reunite(writer).unwrap();
        let _other = other_reader.reunite(wrong.1).unwrap();
        one.write_all(b"whole").await.unwrap();
        two.read_exact(&mut [0; 5]).await.unwrap();
        assert!(timeout(Duration::from_millis(1), two.read(&mut [0])).await.is_err(), "no end was sent");
    });
}

/// Each end writes more than a ring before it reads. TCP has buffers for that.
#[test]
fn ends_that_write_before_they_read_find_room_in_the_kernel() {
    let node = TestNode::start();
    in_runtimes(|| async {
        let (one, two) = upgraded_pair(&node.context(), &node.context()).await;
        let talk = |mut stream: AsyncStream| async move {
            let sent: Vec<u8> = (0..1_200_000).map(byte_at).collect();
            stream.write_all(&sent).await.unwrap();
            let mut got = vec![0; sent.len()];
            stream.read_exact(&mut got).await.unwrap();
            assert!(got == sent);
        };
        let (first, second) = (tokio::spawn(talk(one)), tokio::spawn(talk(two)));
        first.await.unwrap();
        second.await.unwrap();
    });
}

#[test]
fn streams_that_rest_take_no_processor_time() {
    // In a process of its own, where no other test takes any.
    if std::env::var("VMMC_TEST_ROLE").is_err() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "streams_that_rest_take_no_processor_time", "--nocapture"]);
        return assert!(alone.env("VMMC_TEST_ROLE", "alone").status().unwrap().success());
    }
    let node = TestNode::start();
    in_runtimes(|| async {
        let (a, b) = (node.context(), node.context());
        let mut busy = upgraded_pair(&a, &b).await;
        let mut readers = Vec::new();
        let mut others = Vec::new();
        for _ in 0..500 {
            let (mut one, two) = upgraded_pair(&a, &b).await;
            readers.push(tokio::spawn(async move { one.read(&mut [0]).await.unwrap() }));
            others.push(two);
        }
        let before = processor_time();
        for _ in 0..50 {
            busy.0.write_all(b"x").await.unwrap();
            busy.1.read_exact(&mut [0]).await.unwrap();
            sleep(Duration::from_millis(10)).await;
        }
        let took = processor_time() - before;
        assert!(took < Duration::from_millis(250), "{took:?} of half a second");
        drop(others);
        for reader in readers {
            assert_eq!(reader.await.unwrap(), 0, "each is told of the end");
        }
    });
}

/// Of this process, with the node in it.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_stream_waits_in_another_runtime_as_long_as_its_own_lives() {
    let node = TestNode::start();
    let (first, second) = (workers(1).unwrap(), workers(1).unwrap());
    let (mut one, two) = first.block_on(upgraded_pair(&node.context(), &node.context()));
    let mut two = second.block_on(async {
        let writer = tokio::spawn(async move {
            let mut two = two;
            sleep(Duration::from_millis(5)).await;
            two.write_all(b"moved").await.unwrap();
            two
        });
        one.read_exact(&mut [0; 5]).await.unwrap();
        writer.await.unwrap()
    });
    drop(first);
    second.block_on(async {
        let waits = timeout(LONG, one.read(&mut [0])).await.expect("it does not hang");
        assert!(waits.unwrap_err().to_string().contains("shutdown"), "as a socket of tokio's");
        // What needs no wait needs no runtime.
        two.write_all(b"y").await.unwrap();
        assert_eq!(one.read(&mut [0; 5]).await.unwrap(), 1);
    });
}

#[test]
fn runtimes_come_and_go_with_their_bells() {
    let node = TestNode::start();
    let context = node.context();
    for _ in 0..3 * vmmc_stream::BELLS {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (one, _two) = pair(&context, &context).await;
            assert_eq!(one.describe().reason, Some(Bypass::Young));
        });
    }
}

#[test]
fn a_runtime_without_a_bell_has_streams_that_stay_with_the_kernel() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let bells: Vec<_> = (0..vmmc_stream::BELLS).map(|_| a.ready_set().unwrap()).collect();
    in_runtimes(|| async {
        let (mut one, two) = pair(&a, &b).await;
        let echoing = tokio::spawn(echo(two));
        exchange(&mut one, 100, 10_000, 3).await;
        assert_eq!(one.describe().reason, Some(Bypass::Watchers));
        one.shutdown().await.unwrap();
        echoing.await.unwrap();
    });
    drop(bells);
}

#[test]
fn the_child_of_a_fork_does_not_wait_by_its_parents_bell() {
    let node = TestNode::start();
    let runtime = workers(1).unwrap();
    runtime.block_on(async {
        let context = node.context();
        let (mut one, mut two) = upgraded_pair(&context, &node.context()).await;
        // This thread goes on as the child would.
        let forking = context.before_fork(std::iter::once(one.connection()));
        context.after_fork_child(forking);
        let waits = timeout(LONG, one.read(&mut [0])).await.expect("it does not hang");
        let error = waits.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("forked"), "{error}");
        two.write_all(b"x").await.unwrap();
        assert_eq!(one.read(&mut [0]).await.unwrap(), 1, "what is there it gets");
    });
}

/// One end of a stream whose tasks do everything at random, and check all that comes.
struct Actor {
    random: ChaCha8Rng,
    /// Bytes that this end sends, and as many come.
    most: u64,
}

impl Actor {
    fn below(&mut self, end: u32) -> u32 {
        self.random.next_u32() % end
    }

    async fn rest(&mut self) {
        match self.below(200) {
            0 => sleep(Duration::from_micros(u64::from(self.below(1_500)))).await,
            1..=20 => yield_now().await,
            _ => {}
        }
    }

    /// Ends after some turns: what is selected against it is cancelled then. 0: never.
    async fn patience(turns: u32) {
        if turns == 0 {
            std::future::pending::<()>().await;
        }
        for _ in 0..turns {
            yield_now().await;
        }
    }

    async fn write(mut self, mut writer: OwnedWriteHalf) {
        let mut place = 0;
        while place < self.most {
            let long = self.below(10) == 0;
            let bytes = 1 + u64::from(self.below(if long { 80_000 } else { 300 })).min(self.most - place - 1);
            let data: Vec<u8> = (place..place + bytes).map(byte_at).collect();
            let (head, tail) = data.split_at(self.below(bytes as u32 + 1) as usize);
            let pieces = [IoSlice::new(head), IoSlice::new(tail)];
            let turns = self.below(4);
            tokio::select! {
                biased;
                sent = writer.write_vectored(&pieces) => place += sent.unwrap() as u64,
                () = Actor::patience(turns) => {}
            }
            self.rest().await;
        }
        writer.shutdown().await.unwrap();
        writer.forget();
    }

    /// Says how many bytes came by the ring.
    async fn read(mut self, mut reader: OwnedReadHalf, pins_at: u64) -> u64 {
        let mut place = 0;
        loop {
            let most = if self.below(10) == 0 { 100_000 } else { 500 };
            let mut buffer = vec![0; 1 + self.below(most) as usize];
            let turns = self.below(4);
            tokio::select! {
                biased;
                got = reader.read(&mut buffer) => {
                    let got = got.unwrap();
                    if got == 0 {
                        break;
                    }
                    let whole = (place..).zip(&buffer[..got]).all(|(at, byte)| byte_at(at) == *byte);
                    assert!(whole, "bytes after {place} are not those that were sent");
                    place += got as u64;
                }
                () = Actor::patience(turns) => {}
            }
            if place >= pins_at {
                reader.stream().pin_to_kernel();
            }
            self.rest().await;
        }
        assert_eq!(place, self.most, "the end comes behind the last byte");
        reader.stream().describe().ring_received_bytes
    }
}

/// Reads and writes of random sizes, which are cancelled at random, while the stream moves into the
/// ring and, in two thirds of the runs, back. `SEED=n` replays one.
#[test]
fn whatever_tasks_do_each_byte_arrives_once_and_in_order() {
    let node = TestNode::start();
    let given = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seeds = given.map_or(0..60, |seed: u64| seed..seed + 1);
    let (mut sent, mut by_ring) = (0, 0);
    for seed in seeds {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let runtime = match random.next_u32() % 3 {
            0 => Builder::new_current_thread().enable_all().build(),
            count => workers(count as usize),
        };
        let run = async {
            let (mut one, mut two) = pair(&node.context(), &node.context()).await;
            if seed % 2 == 0 {
                upgrade(&mut one, &mut two).await;
            }
            let most = 1_000 + u64::from(random.next_u32() % 400_000);
            let (mut readers, mut writers) = (Vec::new(), Vec::new());
            for (end, stream) in [one, two].into_iter().enumerate() {
                let mut actor = || Actor { random: ChaCha8Rng::seed_from_u64(random.next_u64()), most };
                let (reads, writes) = (actor(), actor());
                let pins_at = if seed % 3 == end as u64 { u64::from(random.next_u32()) % most } else { u64::MAX };
                let (reader, writer) = stream.into_split();
                readers.push(tokio::spawn(reads.read(reader, pins_at)));
                writers.push(tokio::spawn(writes.write(writer)));
            }
            for (reader, writer) in readers.into_iter().zip(writers) {
                by_ring += reader.await.unwrap_or_else(|error| panic!("SEED={seed}: {error}"));
                writer.await.unwrap_or_else(|error| panic!("SEED={seed}: {error}"));
                sent += most;
            }
        };
        let runtime = runtime.unwrap();
        runtime.block_on(async { timeout(LONG, run).await.unwrap_or_else(|_| panic!("SEED={seed}: it hangs")) });
    }
    assert!(given.is_some() || by_ring > sent / 8 && by_ring < sent, "{by_ring} of {sent} bytes went by rings");
}

async fn connect(role: &Role, context: &Arc<Context>) -> AsyncStream {
    let mut stream = AsyncStream::connect(context, &role.address).await.unwrap();
    while !is_in_ring(&stream) {
        stream.write_all(b"p").await.unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
    }
    stream
}

#[test]
#[ignore = "a role of the other tests"]
fn child_process() {
    let Ok(role) = std::env::var("VMMC_TEST_ROLE") else { return };
    let node = std::env::var("VMMC_TEST_NODE").unwrap();
    if role == "node" {
        return run_node(&node, || println!("listens on no socket of its own"));
    }
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = Arc::new(Context::new(settings(&node)));
        let listener = AsyncListener::bind(&context, "127.0.0.1:0").await.unwrap();
        println!("listens on {}", listener.local_addr().unwrap());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                // Answers until something else comes, and then takes nothing more.
                let mut word = [0];
                while stream.read_exact(&mut word).await.is_ok() && word == *b"p" {
                    stream.write_all(&word).await.unwrap();
                }
                std::future::pending::<()>().await;
            });
        }
    });
}

#[test]
fn tasks_that_wait_are_told_of_the_death_of_their_peer_also_without_a_node() {
    in_runtimes(|| async {
        let name = format!("tasks{}x{}", std::process::id(), tokio::runtime::Handle::current().id());
        let mut node = Role::start("node", &name);
        let context = Arc::new(Context::new(settings(&name)));
        for dead_node in [false, true] {
            let mut peer = Role::start("silent", &name);
            let (mut reads, mut writes) = (connect(&peer, &context).await, connect(&peer, &context).await);
            reads.write_all(b"x").await.unwrap();
            writes.write_all(b"x").await.unwrap();
            let reader = tokio::spawn(async move { reads.read(&mut [0]).await });
            let writer = tokio::spawn(async move {
                loop {
                    if let Err(error) = writes.write_all(&[7; 10_000]).await {
                        return error.kind();
                    }
                }
            });
            sleep(Duration::from_millis(50)).await;
            if dead_node {
                node.kill();
            }
            peer.kill();
            let got = reader.await.unwrap();
            assert!(matches!(got, Ok(0)) || got.is_err(), "{got:?}");
            let kind = writer.await.unwrap();
            assert!(matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{kind}");
        }
    });
}

/// Each turn needs the wake-up of the other end, at random distances from its look at the ring.
#[test]
fn no_wake_up_is_lost_in_many_short_turns() {
    let node = TestNode::start();
    in_runtimes(|| async {
        let (one, two) = upgraded_pair(&node.context(), &node.context()).await;
        let turns = |mut stream: AsyncStream, first: bool| async move {
            let mut random = ChaCha8Rng::seed_from_u64(u64::from(first));
            for turn in 0..10_000u32 {
                if turn > 0 || !first {
                    stream.read_exact(&mut [0]).await.unwrap();
                }
                (0..random.next_u32() % 300).for_each(|_| std::hint::spin_loop());
                stream.write_all(&[turn as u8]).await.unwrap();
            }
            // Nobody goes with bytes unread.
            stream.shutdown().await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        };
        let (one, two) = (tokio::spawn(turns(one, true)), tokio::spawn(turns(two, false)));
        one.await.unwrap();
        two.await.unwrap();
    });
}
