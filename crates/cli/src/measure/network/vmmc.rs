//! Nodes in two namespaces: in one a node with a program that exports, in the other one node or
//! several, with programs that send and fetch.
//!
//! Invariant: the exports stay until the measuring side has dropped the nodes.

use super::super::TaskError;
use super::super::nodes::{order, random_key};
use super::super::pair::TemporaryNode;
use super::{ENDS, Ends, Home, Moved, Pending, Ping, Pings};
use crate::limits::{MEASUREMENT_WAIT, NODE_WAIT, PARTNER_WAIT, STREAM_BYTES, STREAM_EXPORT_BYTES, STREAM_TRANSFERS};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};
use vmmc::{Import, Rights, SendOptions, Session, Transfer};
use vmmc_node::CongestionControl;

const BULK: &str = "bulk";
const SMALL: &str = "small";
const SMALL_BYTES: u64 = 4096;

pub(super) struct Nodes<'a> {
    homes: &'a [Home; 2],
    near: Vec<TemporaryNode>,
    far: TemporaryNode,
    /// Dropped, it ends the program that exports.
    _exporter: mpsc::Sender<()>,
}

impl Nodes<'_> {
    /// So many near ones, and a far one.
    pub(super) fn start(
        homes: &[Home; 2],
        sealed: bool,
        congestion: Option<CongestionControl>,
        near: usize,
    ) -> Result<Nodes<'_>, TaskError> {
        let key = if sealed { Some(random_key()?) } else { None };
        let start = |home: &Home, name: &str, address, peer: &[String]| {
            let order = order(name, key, peer).listening(SocketAddr::from((address, 0))).controlled_by(congestion);
            home.start(move || TemporaryNode::start(order, None)).wait(NODE_WAIT)?
        };
        let far = start(&homes[1], "far", ENDS[1], &[])?;
        let near = (0..near).map(|_| start(&homes[0], "near", ENDS[0], &far.addresses));
        let near = near.collect::<Result<Vec<_>, _>>()?;
        let (node, (exporter, over)) = (far.name.clone(), mpsc::channel::<()>());
        let (ready, exported) = mpsc::channel();
        homes[1].start(move || {
            let exports = attach(&node).and_then(|session| {
                let export = |name, bytes| session.export(bytes).name(name).create().map_err(TaskError::vmmc);
                let exports = [export(BULK, STREAM_EXPORT_BYTES)?, export(SMALL, SMALL_BYTES)?];
                Ok((exports, session))
            });
            match exports {
                Ok(_held) => {
                    let _ = ready.send(Ok(()));
                    // It ends when nobody holds the other end.
                    let _ = over.recv();
                }
                Err(e) => drop(ready.send(Err(e))),
            }
        });
        Pending(exported).wait(NODE_WAIT)??;
        Ok(Nodes { homes, near, far, _exporter: exporter })
    }

    /// Names of a near node, and where the far one is.
    fn there(&self, near: usize) -> Result<(String, String), TaskError> {
        let address = self.far.addresses.first();
        let address = address.ok_or_else(|| TaskError::Protocol("a node has no address".into()))?;
        Ok((self.near[near].name.clone(), address.clone()))
    }

    /// Starts a stream, and says what of it arrives a second within `time`, from `after` on.
    pub(super) fn share(&self, after: Duration, time: Duration) -> Result<Pending<Result<f64, TaskError>>, TaskError> {
        let there = self.there(0)?;
        Ok(self.homes[0].start(move || {
            let mut bytes = 0;
            stream(&there, after + time, false, |at| {
                let counts = at >= after && at < after + time;
                bytes += if counts { STREAM_BYTES as u64 } else { 0 };
            })?;
            Ok(bytes as f64 / time.as_secs_f64())
        }))
    }

    /// Every near node sends so many bytes, all at the same time: how long each took.
    pub(super) fn converge(&self, bytes: u64) -> Result<Vec<Duration>, TaskError> {
        let together = Arc::new(Barrier::new(self.near.len()));
        let start = |near| {
            let ((node, far), together) = (self.there(near)?, Arc::clone(&together));
            Ok(self.homes[0].start(move || {
                let ready = attach(&node).and_then(|session| {
                    let import = import(&session, BULK, &far)?;
                    let source = session.buffer(bytes).map_err(TaskError::vmmc)?;
                    Ok((import, source, session))
                });
                // Who is not ready keeps nobody waiting.
                together.wait();
                let (import, source, _session) = ready?;
                let (begun, at) = (Instant::now(), near as u64 * bytes % STREAM_EXPORT_BYTES);
                let sent = import.post_send(at, source.range(0..bytes), SendOptions::default());
                sent.and_then(|mut transfer| transfer.wait()).map_err(TaskError::vmmc)?;
                Ok(begun.elapsed())
            }))
        };
        let started = (0..self.near.len()).map(start).collect::<Result<Vec<_>, TaskError>>()?;
        started.into_iter().map(|sender: Pending<Result<Duration, TaskError>>| sender.wait(MEASUREMENT_WAIT)?).collect()
    }
}

/// Sends one message behind the other for a time, and tells of each when the other node has it.
/// At the end it waits for those that are under way, or leaves them.
fn stream(
    (node, far): &(String, String),
    time: Duration,
    waits: bool,
    mut arrived: impl FnMut(Duration),
) -> Result<Moved, TaskError> {
    let session = attach(node)?;
    let import = import(&session, BULK, far)?;
    let len = STREAM_BYTES as u64;
    let source = session.buffer(len).map_err(TaskError::vmmc)?;
    source.write(0, &vec![1; STREAM_BYTES]).map_err(TaskError::vmmc)?;
    let mut under_way: VecDeque<Transfer> = VecDeque::with_capacity(STREAM_TRANSFERS);
    let (begun, mut sent) = (Instant::now(), 0);
    while begun.elapsed() < time {
        if under_way.len() == STREAM_TRANSFERS {
            let oldest = under_way.pop_front().map(|mut oldest| oldest.wait());
            oldest.transpose().map_err(TaskError::vmmc)?;
            arrived(begun.elapsed());
        }
        let at = sent * len % STREAM_EXPORT_BYTES;
        let transfer = import.post_send(at, source.range(0..len), SendOptions::default());
        under_way.push_back(transfer.map_err(TaskError::vmmc)?);
        sent += 1;
    }
    if waits {
        under_way.iter_mut().try_for_each(|t| t.wait().map(drop)).map_err(TaskError::vmmc)?;
    }
    Ok((sent * len, begun.elapsed()))
}

fn attach(node: &str) -> Result<Session, TaskError> {
    let builder = Session::builder().node(node).start_node(false).timeout(PARTNER_WAIT);
    builder.attach().map_err(TaskError::vmmc)
}

fn import(session: &Session, name: &str, node: &str) -> Result<Import, TaskError> {
    session.import(name).rights(Rights::ALL).wait(PARTNER_WAIT).node(node).open().map_err(TaskError::vmmc)
}

impl Ends for Nodes<'_> {
    fn bulk(&self, time: Duration) -> Result<Pending<Result<Moved, TaskError>>, TaskError> {
        let there = self.there(0)?;
        Ok(self.homes[0].start(move || stream(&there, time, true, |_| {})))
    }

    fn pings(&self, how: Pings) -> Result<Pending<Result<Vec<Ping>, TaskError>>, TaskError> {
        let (node, far) = self.there(0)?;
        Ok(self.homes[0].start(move || {
            let session = attach(&node)?;
            let import = import(&session, SMALL, &far)?;
            how.make(|| import.fetch(0, &mut [0; 8]).map(drop).map_err(TaskError::vmmc))
        }))
    }
}
