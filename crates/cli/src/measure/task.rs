//! What a coordinator tells its workers, and what they answer.
//!
//! Invariant: a task goes to both workers of a pair; they only differ in their [`Role`].
//! Descriptors travel beside the message.

use super::stats::Sample;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;
use vmmc_node::CongestionControl;

/// Which half of a pair a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Sends first, holds the clock.
    Lead,
    /// Answers.
    Follow,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Messages through the kernel.
    Kernel {
        /// Through what.
        transport: Kernel,
        /// Ping-pong or stream.
        measure: Measure,
    },
    /// Limit: one cache line each way.
    CacheLine,
    /// Limit: an ordinary copy within one process.
    Memcpy {
        /// Time of one copy, or bytes a second.
        measure: Measure,
    },
    /// Limit: an atomic operation on a word that only this process uses.
    LocalAtomic,
    /// Limit: waking a thread of the other process that has been asleep for a while.
    Wake {
        /// By what.
        by: Waker,
        /// Time asleep, microseconds.
        asleep_us: u64,
    },
    /// Limit: asking another process for a descriptor and getting it.
    PassDescriptor,
    /// VMMC itself.
    Vmmc(Vmmc),
}

/// Transports of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kernel {
    /// Two pipes.
    Pipe,
    /// A pair of Unix stream sockets.
    Unix,
    /// TCP over loopback.
    Tcp {
        /// Whether receivers spin on non-blocking calls.
        spin: bool,
    },
    /// UDP over loopback.
    Udp {
        /// Whether receivers spin on non-blocking calls.
        spin: bool,
    },
}

/// Two ways to measure a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measure {
    /// Half a round trip.
    Latency,
    /// Bytes a second in one direction.
    Bandwidth,
}

/// What wakes a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Waker {
    /// A futex in shared memory.
    Futex,
    /// A byte in a pipe on which the sleeper polls.
    Pipe,
}

/// What wakes a thread that waits for memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WokenBy {
    /// A notification.
    Notification,
    /// A word that changes.
    Word,
    /// The first of a notification, a word and a descriptor: here the notification.
    Any,
}

/// What is measured of VMMC. The pair of workers stands for the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Vmmc {
    /// Deliberate update, one way to a spinning receiver.
    Latency,
    /// Deliberate updates in one direction.
    Bandwidth,
    /// Remote fetch: call to data.
    Fetch,
    /// Several remote fetches at once: first call to the data of all.
    Fetches {
        /// How their ends are found.
        by: EndsBy,
    },
    /// Remote atomic operation: call to old value.
    Atomic {
        /// Which.
        op: AtomicOp,
    },
    /// Deliberate update that wakes a blocked thread.
    Notify {
        /// What the thread waits for.
        by: WokenBy,
        /// Time asleep, microseconds.
        asleep_us: u64,
    },
    /// A record for a ring that many append to: call to presence.
    Append {
        /// Which way.
        by: AppendBy,
    },
    /// Pieces for many places of one export: call to presence of all.
    Gather {
        /// Which way.
        by: GatherBy,
    },
    /// A remote call: call to result.
    Rpc {
        /// Which way.
        way: CallWay,
    },
    /// A server with clients that are connected and call nothing.
    Silent {
        /// So many.
        clients: u64,
        /// What is measured beside them.
        watched: Watched,
    },
    /// Messages by rank and tag.
    Mp {
        /// Which way.
        way: MpWay,
    },
    /// Import of an export that exists.
    Import,
    /// Data that comes to a redirected range.
    Redirect {
        /// When the redirection is posted.
        when: RedirectWhen,
    },
    /// Posting a row of redirections through the command ring, or withdrawing them: each.
    PostRedirects {
        /// They are withdrawn.
        withdraw: bool,
    },
}

/// How the ends of several transfers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EndsBy {
    /// By a wait for the handle of each.
    Handles,
    /// By continuations.
    Continuations,
}

/// 64-bit operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AtomicOp {
    /// Add, return the old value.
    FetchAdd,
    /// Store if equal, return the old value.
    CompareSwap,
    /// Store, return the old value.
    Swap,
}

/// How a record gets its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AppendBy {
    /// The node of an append ring finds it.
    Ring,
    /// The sender asks for it by an atomic operation, then sends.
    Place,
}

/// How pieces go to many places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GatherBy {
    /// By one gather-send.
    One,
    /// By as many sends.
    Sends,
}

/// A remote call, as in [GMS] Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallWay {
    /// Whether the server leaves it to another one, which answers.
    pub(crate) three: bool,
    /// Whether handlers have a thread of their own.
    pub(crate) thread: bool,
    /// How the caller gets the answer.
    pub(crate) by: CallBy,
    /// How the result goes.
    pub(crate) result: ResultBy,
    /// Time of a call, or bytes a second of several under way.
    pub(crate) measure: Measure,
}

/// What is measured of messages by rank and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MpWay {
    /// Two members send to each other, or one to the other.
    Pair {
        /// Half a round trip, or bytes a second in one direction.
        measure: Measure,
        /// Whether they lie in memory that long messages land in.
        into_memory: bool,
    },
    /// Two members send to each other at once: what that takes beside what they do meanwhile.
    Exchange {
        /// What that is.
        beside: Beside,
    },
    /// Some members make a call together.
    Collective {
        /// Which.
        call: Collective,
        /// So many, half of them in each worker.
        members: u32,
    },
}

/// What members do while their messages are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Beside {
    /// They wait.
    Nothing,
    /// They compute for as long as the exchange takes by itself, and make no call.
    Computing,
    /// The same, and they poll now and then.
    Polled,
}

/// Calls that all members make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Collective {
    /// Nobody leaves it before all are in it.
    Barrier,
    /// The greatest of 64-bit values.
    Allreduce,
    /// Bytes of one.
    Broadcast,
    /// The end of a superstep in which nothing went.
    Superstep,
    /// A superstep in which each member puts so many bytes in all, in equal parts for the others:
    /// bytes a second of each.
    Relation,
}

/// What is measured beside silent clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Watched {
    /// A null call of another client.
    Caller,
    /// Processor time of the server in a second in which nobody calls.
    Server,
}

/// How a caller gets an answer [GMS §3].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CallBy {
    /// It waits.
    Wait,
    /// It waits, asleep, for a server that was asleep.
    Asleep,
    /// A continuation takes it.
    Continued,
    /// The same, and the continuation says "not now" once.
    Deferred,
}

/// How a result goes [GMS §2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ResultBy {
    /// There is none.
    Nothing,
    /// By token, into a buffer of the caller: solicited.
    Token,
    /// In a frame, where the caller reads it: unsolicited.
    Frame,
    /// In a frame, and copied out of it.
    Copied,
}

/// Timing of a redirection [NT §3.2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RedirectWhen {
    /// Never: the receiver copies the data itself.
    Never,
    /// Before the data comes: no copy.
    Before,
    /// The same, cut into a row of pieces, each with a redirection of its own.
    Row,
    /// After the data has come: the library copies.
    After,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Which half this worker plays.
    pub(crate) role: Role,
    /// What is measured.
    pub(crate) work: Work,
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Time to aim at.
    pub(crate) budget: Duration,
    /// Different for every measurement of a coordinator; names exports.
    pub(crate) number: u64,
}

/// A file to be moved from the leader to the follower.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Move {
    /// The leader reads the file, the follower checks what came.
    pub(crate) role: Role,
    /// The file; only the leader opens it.
    pub(crate) file: String,
    /// By whom the bytes are moved.
    pub(crate) by: MoveBy,
    /// Different for every move of a coordinator; names exports.
    pub(crate) number: u64,
}

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MoveBy {
    /// The leader, by deliberate update.
    Send,
    /// The follower, by remote fetch.
    Fetch,
}

/// A node to be run by a helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeOrder {
    /// Its name.
    pub(crate) name: String,
    /// Cluster key; none: plain mode. It travels over the channel, so it is in no file and on no
    /// command line.
    pub(crate) key: Option<[u8; 32]>,
    /// Addresses of a node that it is to know.
    pub(crate) peer: Vec<String>,
    /// Where it listens; none: on loopback.
    pub(crate) listen: Option<SocketAddr>,
    /// Its congestion control, by name; none: the default.
    pub(crate) congestion: Option<String>,
}

impl NodeOrder {
    /// The same with another congestion control.
    pub(crate) fn controlled_by(self, congestion: Option<CongestionControl>) -> NodeOrder {
        NodeOrder { congestion: congestion.map(|congestion| congestion.to_string()), ..self }
    }

    /// The same on another address.
    pub(crate) fn listening(self, at: SocketAddr) -> NodeOrder {
        NodeOrder { listen: Some(at), ..self }
    }
}

/// What a helper is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// First message to a worker: the channel to the other worker travels along.
    Meet(Setting),
    /// Measure.
    Run(Task),
    /// Move a file.
    Move(Move),
    /// First message to a node.
    Node(NodeOrder),
}

/// What a worker needs to know before its first measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Setting {
    /// It uses no VMMC.
    Bare,
    /// It attaches to a daemon.
    Daemon {
        /// Its node.
        node: String,
        /// Address of the other worker's node; none: the same node.
        other: Option<String>,
    },
    /// It embeds a node.
    Embedded(NodeOrder),
}

/// What a helper answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The node runs and listens on these addresses.
    Node(Vec<String>),
    /// So many bytes of the file have been moved.
    Progress(u64),
    /// The file has been moved and checked.
    Moved(Moved),
    /// It has met the other worker.
    Met,
    /// The follower has nothing to say; the leader gives the sample.
    Done(Option<Sample>),
    /// It did not work.
    Failed(String),
}

/// A file that has been moved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Moved {
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Time from first to last byte, with reading, checksums and all.
    pub(crate) taken: Duration,
    /// Checksum on this side.
    pub(crate) crc32: u32,
}
