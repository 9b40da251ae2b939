//! Services as traits: every kind of parameter and result, deferred and passed on.

mod common;

use common::{Nodes, everywhere, pattern};
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::time::Duration;
use vmmc_rpc::{Client, Reply, RpcError, Server, service};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Dot,
    Box { width: u32, name: String },
}

#[service]
trait Everything {
    fn nothing(&self);
    fn sum(&self, a: u64, b: i32, text: &str) -> String;
    fn shape(&self, shapes: Vec<Shape>) -> Result<Vec<Shape>, String>;
    fn count(&self, data: &[u8], of: u8) -> usize;
    fn fill(&self, seed: u8, into: &mut [u8]) -> u64;
    fn exchange(&self, data: &[u8], into: &mut [u8]);
    #[deferred]
    fn later(&self, value: u32) -> u32;
    #[deferred]
    fn read(&self, from: u64, into: &mut [u8]) -> Result<u64, String>;
}

#[derive(Default)]
struct Here {
    waiting: Mutex<Vec<(u32, Reply<u32>)>>,
    /// Where reads go, if not here.
    reader: Option<Client>,
}

impl Everything for Here {
    fn nothing(&self) {}

    fn sum(&self, a: u64, b: i32, text: &str) -> String {
        format!("{text} {}", a as i64 + i64::from(b))
    }

    fn shape(&self, shapes: Vec<Shape>) -> Result<Vec<Shape>, String> {
        if shapes.is_empty() { Err("no shapes".into()) } else { Ok(shapes.into_iter().rev().collect()) }
    }

    fn count(&self, data: &[u8], of: u8) -> usize {
        data.iter().filter(|byte| **byte == of).count()
    }

    fn fill(&self, seed: u8, into: &mut [u8]) -> u64 {
        into.copy_from_slice(&pattern(into.len(), seed));
        into.len() as u64
    }

    fn exchange(&self, data: &[u8], into: &mut [u8]) {
        into.iter_mut().zip(data.iter().rev()).for_each(|(to, from)| *to = *from);
    }

    fn later(&self, value: u32, reply: Reply<u32>) {
        let mut waiting = self.waiting.lock().unwrap();
        waiting.push((value, reply));
        if waiting.len() == 3 {
            // The last one first.
            waiting.drain(..).rev().for_each(|(value, reply)| reply.answer(&(value + 1)));
        }
    }

    fn read(&self, from: u64, reply: Reply<Result<u64, String>>) {
        if let Some(reader) = &self.reader {
            if let Err((reply, error)) = reply.pass_on(reader) {
                reply.answer(&Err(error.to_string()));
            }
            return;
        }
        let page = pattern(100_000, 9);
        match page.get(from as usize..) {
            Some(rest) => {
                let len = rest.len().min(reply.bulk_wanted() as usize);
                reply.answer_with_bulk(&Ok(len as u64), &rest[..len]);
            }
            None => reply.answer_with_bulk(&Err(format!("{from} is past the end")), b""),
        }
    }
}

fn connect(nodes: &Nodes, caller: usize, service: &str) -> EverythingClient {
    Client::new(&nodes.attach(caller), service).node(&nodes.name(0)).connect().unwrap().into()
}

fn check(client: &EverythingClient) {
    client.nothing().unwrap();
    assert_eq!(client.sum(40, -50, "it is").unwrap(), "it is -10");
    let shapes = vec![Shape::Dot, Shape::Box { width: 3, name: "big".repeat(300) }];
    assert_eq!(client.shape(shapes.clone()).unwrap().unwrap(), [shapes[1].clone(), Shape::Dot]);
    assert_eq!(client.shape(vec![]).unwrap(), Err("no shapes".to_string()));
    let data = pattern(10_000, 3);
    let fours = data.iter().filter(|byte| **byte == 4).count();
    assert_eq!(client.count(&data, 4).unwrap(), fours);
    assert_eq!(client.count(&[], 4).unwrap(), 0);
    for len in [0, 1, 100, 60_000] {
        let mut into = vec![7; len];
        assert_eq!(client.fill(5, &mut into).unwrap(), len as u64);
        assert!(into == pattern(len, 5));
        let (said, bulk) = client.fill_bulk(6, len as u64).unwrap();
        assert!(said == len as u64 && bulk.to_vec().unwrap() == pattern(len, 6));
    }
    let mut turned = [9; 4];
    client.exchange(&[1, 2, 3], &mut turned).unwrap();
    assert_eq!(turned, [3, 2, 1, 0]);
    let all = [10, 20, 30].map(|value| client.later_start(value).unwrap());
    assert_eq!(all.map(|typed| typed.wait().unwrap()), [11, 21, 31]);
    let page = pattern(100_000, 9);
    let mut into = vec![0; 50_000];
    assert_eq!(client.read(60_000, &mut into).unwrap(), Ok(40_000));
    assert!(into[..40_000] == page[60_000..] && into[40_000..].iter().all(|byte| *byte == 0));
    assert_eq!(client.read(100_001, &mut into).unwrap(), Err("100001 is past the end".to_string()));
}

#[test]
fn parameters_and_results_of_every_kind_arrive() {
    everywhere(|nodes, caller| {
        let reader = Server::new(&nodes.attach(0), "reader").serve(Here::default().into_handler()).unwrap();
        let client = connect(nodes, caller, "reader");
        check(&client);
        // The same, with reads that another server answers.
        let to = Client::new(&nodes.attach(0), "reader").connect().unwrap();
        let front = Here { reader: Some(to), ..Here::default() };
        let front = Server::new(&nodes.attach(0), "front").threads(2).serve(front.into_handler()).unwrap();
        check(&connect(nodes, caller, "front"));
        assert_eq!(front.counts().passed_on, 2);
        assert_eq!((reader.counts().failed, front.counts().failed), (0, 0));
    });
}

#[service]
trait Other {
    /// Another result than that of the same name above.
    fn nothing(&self) -> u8;
}

#[test]
fn a_client_of_another_version_finds_no_such_method_and_nonsense_is_refused() {
    let nodes = Nodes::embedded();
    let _server = Server::new(&nodes.attach(0), "versions").serve(Here::default().into_handler()).unwrap();
    let client = Client::new(&nodes.attach(0), "versions").timeout(Duration::from_millis(200)).connect().unwrap();
    let other = OtherClient::from(client.clone());
    assert!(matches!(other.nothing(), Err(RpcError::NoMethod { .. })));
    let mut rng = vmmc_utlb::Rng::new(4);
    // Wild arguments for every number: of those that are methods, some make sense.
    let mut said = [0; 3];
    for method in 0..=u16::MAX {
        let arguments: Vec<u8> = (0..rng.below(12)).map(|_| rng.below(256) as u8).collect();
        match client.call(method, &arguments) {
            Err(RpcError::NoMethod { .. }) => said[0] += 1,
            Err(RpcError::BadArguments { .. }) => said[1] += 1,
            // Arguments of a method that waits for others.
            Ok(_) | Err(RpcError::TimedOut { .. }) => said[2] += 1,
            Err(error) => panic!("{method}: {error}"),
        }
    }
    assert!(said[0] == u32::from(u16::MAX) - 7 && said[1] > 0, "{said:?}");
    assert_eq!(client.outstanding(), 0);
}
