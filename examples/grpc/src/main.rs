//! A gRPC service over TCP and over VMMC: unary calls between two processes of one machine, in
//! turns, with the ratio of their times. README.md says how to run it.
//!
//! Invariant: whatever carries the calls, server and client are the same code, and the service's
//! own code is what tonic generates from `proto/greeter.proto`. Source: `docs/sockets.md`.

#![forbid(unsafe_code)]

mod transport;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use transport::Transport;
use vmmc_node::{Daemon, KeySource, NodeConfig};
use vmmc_sockets::{Context, Settings};

tonic::include_proto!("greeter");

use greeter_client::GreeterClient;
use greeter_server::{Greeter, GreeterServer};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Calls before the first that is timed: more than it takes to move into shared memory.
const WARM_UP: usize = 2_000;
/// Turns of each transport.
const TURNS: usize = 21;
/// Calls of a turn.
const CALLS: usize = 500;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", kind, node] => run(serve(transport(kind, node)?)),
        ["call", kind, node, address] => run(call(transport(kind, node)?, address.parse()?)),
        [] => compare(),
        _ => Err("give nothing, or `serve tcp|vmmc NODE`, or `call tcp|vmmc NODE ADDRESS`".into()),
    }
}

/// Runs a task in a runtime: of a thread for each processor, or of `VMMC_WORKERS`.
fn run(what: impl Future<Output = Result<(), Failure>> + Send + 'static) -> Result<(), Failure> {
    let workers = std::env::var("VMMC_WORKERS").ok().and_then(|text| text.parse().ok());
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if workers == Some(1) {
        builder = tokio::runtime::Builder::new_current_thread();
    }
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    // As a task, as calls mostly are made: the thread of `block_on` is none of the runtime's own.
    builder.enable_all().build()?.block_on(async { tokio::spawn(what).await? })
}

fn transport(kind: &str, node: &str) -> Result<Transport, Failure> {
    match kind {
        "tcp" => Ok(Transport::Tcp),
        "vmmc" => {
            let settings = Settings { node_name: node.to_string(), ..Settings::from_env() };
            Ok(Transport::Vmmc(Arc::new(Context::new(settings))))
        }
        _ => Err(format!("no transport {kind}; give tcp or vmmc").into()),
    }
}

/// The service.
struct Hello;

#[tonic::async_trait]
impl Greeter for Hello {
    async fn greet(&self, request: Request<GreetRequest>) -> Result<Response<GreetReply>, Status> {
        Ok(Response::new(GreetReply { text: format!("hello, {}", request.into_inner().name) }))
    }

    type GreetOftenStream = Pin<Box<dyn Stream<Item = Result<GreetReply, Status>> + Send>>;

    async fn greet_often(
        &self,
        request: Request<GreetOftenRequest>,
    ) -> Result<Response<Self::GreetOftenStream>, Status> {
        let GreetOftenRequest { name, times } = request.into_inner();
        let replies = (0..times).map(move |n| Ok(GreetReply { text: format!("hello for the {n}th time, {name}") }));
        Ok(Response::new(Box::pin(tokio_stream::iter(replies))))
    }
}

async fn serve(transport: Transport) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let server = Server::builder().add_service(GreeterServer::new(Hello));
    Ok(server.serve_with_incoming(transport.incoming(listener)).await?)
}

async fn client(transport: Transport, address: SocketAddr) -> Result<GreeterClient<Channel>, Failure> {
    let connector = tower::service_fn(move |_| {
        let transport = transport.clone();
        async move { transport.connect(address).await.map(hyper_util::rt::TokioIo::new) }
    });
    // The address in the URI is for virtual hosts only: the connector knows where to go.
    let channel = Endpoint::from_static("http://greeter.example").connect_with_connector(connector).await?;
    Ok(GreeterClient::new(channel))
}

async fn call(transport: Transport, address: SocketAddr) -> Result<(), Failure> {
    let request = GreetRequest { name: "caller 0".into() };
    println!("{}", client(transport, address).await?.greet(request).await?.into_inner().text);
    Ok(())
}

/// A server in a process of its own, which ends with this value.
struct Serving(Child, SocketAddr);

impl Serving {
    fn start(kind: &str, node: &str) -> Result<Serving, Failure> {
        let mut child =
            Command::new(std::env::current_exe()?).args(["serve", kind, node]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Serving(child, line.trim().parse()?))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compare() -> Result<(), Failure> {
    let node = format!("grpc{}", std::process::id());
    let daemon = Daemon::start(NodeConfig::new(&node).listen("127.0.0.1:0".parse()?).key(KeySource::Plain))?;
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.run());
    let servers = [Serving::start("tcp", &node)?, Serving::start("vmmc", &node)?];
    run(turns(node, servers.each_ref().map(|server| server.1)))?;
    drop(servers);
    stopper.stop();
    thread.join().map_err(|_| "the node failed")??;
    Ok(())
}

async fn turns(node: String, addresses: [SocketAddr; 2]) -> Result<(), Failure> {
    let mut tcp = client(transport("tcp", &node)?, addresses[0]).await?;
    let mut vmmc = client(transport("vmmc", &node)?, addresses[1]).await?;
    for client in [&mut tcp, &mut vmmc] {
        unary(client, WARM_UP).await?;
        streaming(client).await?;
    }
    let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..TURNS {
        let pair = [unary(&mut tcp, CALLS).await?, unary(&mut vmmc, CALLS).await?];
        ratios.push(pair[1] / pair[0]);
        times.iter_mut().zip(pair).for_each(|(all, one)| all.push(one));
    }
    println!("unary calls, median of each of {TURNS} turns of {CALLS}, one after the other");
    for (name, mut times) in ["TCP ", "VMMC"].into_iter().zip(times) {
        let [least, middle, most] = spread(&mut times);
        println!("{name}  {middle:6.1} us   ({least:.1} to {most:.1})");
    }
    let [least, middle, most] = spread(&mut ratios);
    println!("VMMC takes {middle:.2} of TCP's time   ({least:.2} to {most:.2})");
    Ok(())
}

/// The median time of a call, microseconds.
async fn unary(client: &mut GreeterClient<Channel>, calls: usize) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(calls);
    for call in 0..calls {
        let name = format!("caller {call}");
        let start = Instant::now();
        let reply = client.greet(GreetRequest { name }).await?.into_inner();
        times.push(start.elapsed().as_secs_f64() * 1e6);
        if reply.text != format!("hello, caller {call}") {
            return Err(format!("call {call} was answered with {:?}", reply.text).into());
        }
    }
    Ok(spread(&mut times)[1])
}

/// Replies that come as they are made.
async fn streaming(client: &mut GreeterClient<Channel>) -> Result<(), Failure> {
    let request = GreetOftenRequest { name: "reader".into(), times: 10_000 };
    let replies = client.greet_often(request).await?.into_inner();
    let count = replies.filter(Result::is_ok).fold(0, |count, _| count + 1).await;
    (count == 10_000).then_some(()).ok_or_else(|| format!("{count} replies of 10,000 came").into())
}

/// Smallest, middle and largest value.
fn spread(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}
