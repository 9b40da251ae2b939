//! Two nodes in two namespaces, a program that exports on one and programs that send and fetch on
//! the other.
//!
//! Invariant: the exports stay until the measuring side has dropped the nodes.

use super::super::TaskError;
use super::super::nodes::{order, random_key};
use super::super::pair::TemporaryNode;
use super::{ENDS, Ends, Home, Moved, Pending, Ping, Pings};
use crate::limits::{NODE_WAIT, PARTNER_WAIT, STREAM_BYTES, STREAM_EXPORT_BYTES, STREAM_TRANSFERS};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vmmc::{Import, Rights, SendOptions, Session, Transfer};
use vmmc_node::CongestionControl;

const BULK: &str = "bulk";
const SMALL: &str = "small";
const SMALL_BYTES: u64 = 4096;

pub(super) struct Nodes<'a> {
    homes: &'a [Home; 2],
    near: TemporaryNode,
    far: TemporaryNode,
    /// Dropped, it ends the program that exports.
    _exporter: mpsc::Sender<()>,
}

impl Nodes<'_> {
    pub(super) fn start(
        homes: &[Home; 2],
        sealed: bool,
        congestion: Option<CongestionControl>,
    ) -> Result<Nodes<'_>, TaskError> {
        let key = if sealed { Some(random_key()?) } else { None };
        let start = |home: &Home, name: &str, address, peer: &[String]| {
            let order = order(name, key, peer).listening(SocketAddr::from((address, 0))).controlled_by(congestion);
            home.start(move || TemporaryNode::start(order, None)).wait(NODE_WAIT)?
        };
        let far = start(&homes[1], "far", ENDS[1], &[])?;
        let near = start(&homes[0], "near", ENDS[0], &far.addresses)?;
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

    fn there(&self) -> Result<(String, String), TaskError> {
        let address = self.far.addresses.first();
        let address = address.ok_or_else(|| TaskError::Protocol("a node has no address".into()))?;
        Ok((self.near.name.clone(), address.clone()))
    }
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
        let (node, far) = self.there()?;
        Ok(self.homes[0].start(move || {
            let session = attach(&node)?;
            let import = import(&session, BULK, &far)?;
            let len = STREAM_BYTES as u64;
            let source = session.buffer(len).map_err(TaskError::vmmc)?;
            source.write(0, &vec![1; STREAM_BYTES]).map_err(TaskError::vmmc)?;
            let mut under_way: VecDeque<Transfer> = VecDeque::with_capacity(STREAM_TRANSFERS);
            let (begun, mut sent) = (Instant::now(), 0);
            while begun.elapsed() < time {
                if under_way.len() == STREAM_TRANSFERS {
                    let oldest = under_way.pop_front().map(|mut oldest| oldest.wait());
                    oldest.transpose().map_err(TaskError::vmmc)?;
                }
                let at = sent * len % STREAM_EXPORT_BYTES;
                let transfer = import.post_send(at, source.range(0..len), SendOptions::default());
                under_way.push_back(transfer.map_err(TaskError::vmmc)?);
                sent += 1;
            }
            under_way.iter_mut().try_for_each(|t| t.wait().map(drop)).map_err(TaskError::vmmc)?;
            Ok((sent * len, begun.elapsed()))
        }))
    }

    fn pings(&self, how: Pings) -> Result<Pending<Result<Vec<Ping>, TaskError>>, TaskError> {
        let (node, far) = self.there()?;
        Ok(self.homes[0].start(move || {
            let session = attach(&node)?;
            let import = import(&session, SMALL, &far)?;
            how.make(|| import.fetch(0, &mut [0; 8]).map(drop).map_err(TaskError::vmmc))
        }))
    }
}
