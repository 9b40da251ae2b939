//! Set-up messages between a process and its node [NT §3.1, first and third set of primitives].
//!
//! Requests travel on a seqpacket socket, one message each way; descriptors travel beside them.
//! Events come unasked on a second socket.
//!
//! Invariant: a message is at most [`CONTROL_BYTES_MAX`](crate::limits::CONTROL_BYTES_MAX) bytes,
//! and decoding foreign bytes gives a value or an error, never a panic.

use crate::published::Figure;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Version of the interface between library and node. Both sides must have the same.
pub const CONTROL_VERSION: u32 = 18;

/// How the names of exports begin that a node brings up when somebody waits for them: those of the
/// supervisors of jobs. `UID/TOKEN` follows: the user who asks, and a secret of the launcher.
pub const LAUNCH_PREFIX: &str = "vmmc.launch/";

/// What a process asks of its node. `serial` numbers are echoed so that a reply that comes after
/// its deadline is recognised and dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the process, echoed in the reply.
    pub serial: u64,
    /// The call.
    pub call: Call,
}

/// The node's answer to the request with the same `serial`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Serial of the request.
    pub serial: u64,
    /// Result of the call.
    pub result: Result<Answer, Refusal>,
}

/// Which users may import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Access {
    /// Processes of the exporter's user.
    #[default]
    SameUser,
    /// Every user of every node of the cluster.
    Anyone,
    /// These user ids.
    Users(Vec<u32>),
}

/// A set-up call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// First call on a connection. Answer: [`Answer::Attached`] with the descriptors named there.
    Attach {
        /// [`CONTROL_VERSION`] of the library.
        version: u32,
    },
    /// Makes a region of the process known to the node; its memfd travels along. Answer:
    /// [`Answer::Region`].
    RegisterRegion {
        /// Bytes of the region.
        len: u64,
    },
    /// The node forgets a region. Refused while an export uses it.
    ReleaseRegion {
        /// Id from [`Answer::Region`].
        region: u32,
    },
    /// Gives up translations of the process's own addresses, then installs others [UTLB §3.1].
    /// Commands may then name these addresses, with [`ADDRESSES`](crate::abi::ADDRESSES) as their
    /// region. Answer: [`Answer::Done`], [`Answer::EvictFirst`]; it may come late, when other
    /// processes have given memory back.
    Pin {
        /// Pages to give up first.
        unpin: Vec<PageRun>,
        /// Pages to pin.
        pin: Vec<PinRun>,
    },
    /// Makes part of a region importable. Answer: [`Answer::Exported`].
    Export {
        /// Name for importers, unique among those of its user on the node; none: by id only.
        name: Option<String>,
        /// The region.
        region: u32,
        /// First byte in the region.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What importers may be given: bits of the engine's `Rights`, which it checks.
        rights: u8,
        /// Who may import.
        access: Access,
        /// Whether importers may ask for notifications.
        notify: bool,
        /// Whether incoming data may be redirected. Such an export is never mapped by importers.
        redirectable: bool,
        /// What importers may do with it. A ring and a token table have the right to write alone,
        /// and their memory is laid out as `docs/protocol.md` says.
        kind: ExportKind,
        /// Whether importers on this node may map the region. Only granted when the export covers
        /// the whole region.
        mappable: bool,
    },
    /// Ends an export. Answer: [`Answer::Unexported`].
    Unexport {
        /// Id from [`Answer::Exported`].
        export: u64,
        /// True: do not rely on importers, the process will move its pages in any case.
        moving: bool,
    },
    /// Obtains access to an export. Answer: [`Answer::Imported`], with descriptors if
    /// [`Grant::mapped`].
    Import {
        /// Node name or `address:port`; none: this node.
        node: Option<String>,
        /// Name, or id.
        what: What,
        /// Whose.
        owner: Owner,
        /// The same bits: what is wanted, all of which must be allowed.
        rights: u8,
        /// Wait for an export that does not exist yet.
        wait: bool,
        /// How long the node may take, milliseconds.
        timeout_ms: u64,
        /// What goes through it need not follow what goes through other imports.
        own_order: bool,
    },
    /// Tells the node that an importer uses plain stores through its mapping (automatic update), so
    /// a revocation must move the pages.
    Bind {
        /// Id from [`Grant::import`].
        import: u64,
    },
    /// Gives an import back.
    Unimport {
        /// Id from [`Grant::import`].
        import: u64,
    },
    /// What has happened so far to a redirection that was posted through the command ring. Answer:
    /// [`Answer::Redirection`].
    RedirectReport {
        /// The export.
        export: u64,
        /// First byte of the range in the export.
        offset: u64,
        /// Cookie of the command.
        cookie: u64,
    },
    /// Ends a redirection early. Answer: [`Answer::Redirection`].
    CancelRedirect {
        /// The export.
        export: u64,
        /// First byte of the range in the export.
        offset: u64,
        /// Cookie of the command.
        cookie: u64,
    },
    /// The receiver has used the data in this range of a redirectable export; the next arrival
    /// counts as new.
    Consume {
        /// The export.
        export: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// How many imports of an export of the process there are now. Answer: [`Answer::Importers`].
    Importers {
        /// The export.
        export: u64,
    },
    /// Round trip between the nodes. Answer: [`Answer::Pong`].
    Ping {
        /// Node name or `address:port`.
        node: String,
        /// How long the node may take, milliseconds.
        timeout_ms: u64,
    },
    /// Name of the node at the other end of a session that a notification's sender names. Answer:
    /// [`Answer::SessionNode`].
    SessionNode {
        /// The session, in the node's count.
        session: u32,
    },
    /// Adds a peer node by its addresses (several: several paths).
    AddPeer {
        /// `address:port` each.
        addresses: Vec<String>,
    },
    /// Description and statistics of the node. Answer: [`Answer::Info`].
    Info {
        /// Also list exports, imports and processes.
        details: bool,
    },
    /// Ends the node. Only its own user (or root) may.
    Stop,
    /// A message for a service of the node, on a connection of its own, which never attaches
    /// otherwise: the first one joins. Answers come as [`Answer::Service`] with serial 0.
    Service {
        /// Number of the service.
        service: u16,
        /// Version of its messages.
        version: u16,
        /// What is said, as the service defines it.
        message: Vec<u8>,
    },
    /// A question to a service, which the node's own user or root may ask on any connection.
    /// Answer: [`Answer::Service`].
    Ask {
        /// Number of the service.
        service: u16,
        /// Version of its messages.
        version: u16,
        /// What is asked, as the service defines it.
        message: Vec<u8>,
    },
}

/// Consecutive pages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// Number of the first page: its address divided by 4096.
    pub page: u64,
    /// Pages.
    pub count: u32,
}

/// Consecutive pages of a process, and the region that they lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinRun {
    /// The pages.
    pub pages: PageRun,
    /// Id from [`Answer::Region`].
    pub region: u32,
    /// First page in the region.
    pub at: u32,
}

/// Whose export an import takes: names belong to users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// For a name: one of the importer's own user, else one of root. An id may be anybody's.
    #[default]
    OwnOrRoot,
    /// One of this user.
    User(u32),
    /// One of the importer's own user, else of root, else of any user that lets it import.
    Any,
}

/// What an import names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// The name given at export.
    Name(String),
    /// The id given at export.
    Id(u64),
}

/// Successful results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing to say.
    Done,
    /// Descriptors, in order: attach area, bell, wake receiver, node doorbell (eventfd), events
    /// socket.
    Attached {
        /// [`CONTROL_VERSION`] of the node.
        version: u32,
        /// Id of this process on its node.
        process: u32,
        /// Name that other nodes know the node by.
        node: String,
        /// UDP addresses that the node listens on.
        listen: Vec<String>,
    },
    /// The region's id.
    Region {
        /// Id.
        region: u32,
    },
    /// The process holds its share of the node's pinned memory: it must unpin so many pages of its
    /// own first. Nothing was pinned; what was to be given up is.
    EvictFirst {
        /// Pages.
        pages: u64,
    },
    /// The export exists.
    Exported {
        /// Id, with a generation inside.
        export: u64,
    },
    /// The export is gone.
    Unexported {
        /// True: an importer could still store into the pages (bound, stopped in mid-transfer, or
        /// by request); the process must move its memory onto other pages before it reports to its
        /// caller that the export has ended.
        must_move: bool,
    },
    /// The import exists. With [`Grant::mapped`], descriptors in order: region, gate table of the
    /// exporter, bell of the exporter, wake sender of the exporter, and, with [`Grant::pair`], the
    /// notification ring.
    Imported(Grant),
    /// State of a redirection.
    Redirection(Redirection),
    /// Imports of an export.
    Importers {
        /// How many, of processes of this node and of others.
        count: u64,
    },
    /// Round trip time.
    Pong {
        /// Nanoseconds from engine to engine and back.
        rtt_ns: u64,
        /// Name of the node that answered.
        node: String,
    },
    /// The node of a session.
    SessionNode {
        /// Its name; none: the session has ended.
        node: Option<String>,
    },
    /// Description of the node.
    Info(Box<NodeInfo>),
    /// What a service says, as it defines it.
    Service {
        /// The message.
        message: Vec<u8>,
    },
}

/// An import as the node granted it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// Id, with a generation inside.
    pub import: u64,
    /// Id of the export.
    pub export: u64,
    /// User id of the exporting process, as its node says.
    pub owner: u32,
    /// Bytes.
    pub len: u64,
    /// Granted rights, the same bits.
    pub rights: u8,
    /// Whether notifications are allowed.
    pub notify: bool,
    /// Whether the exporter may redirect.
    pub redirectable: bool,
    /// What its importers may do with the export.
    pub kind: ExportKind,
    /// Name of the exporting node.
    pub node: String,
    /// Whether the importer maps the region, else why not.
    pub mapped: Result<(), NotMapped>,
    /// Whether a notification ring comes along. There is one ring for a pair of processes: it comes
    /// along with each import from the same exporter that needs it, and the importer uses the one
    /// that came first, for as long as it is attached.
    pub pair: bool,
    /// The exporting process on its node, as [`Answer::Attached`] told it there; 0 for an export on
    /// another node.
    pub exporter: u32,
    /// Its process id in the system; 0 for an export on another node.
    pub exporter_pid: u32,
    /// With [`Grant::mapped`]: index of the export's gate in the gate table of the exporter. Gate
    /// slots are the node's choice and are used again.
    pub gate: u32,
    /// With [`Grant::mapped`]: generation of that gate. The gate is open while its word equals
    /// `gate_word(gate_generation, Open)`. It counts uses of the gate slot, and is not the
    /// generation inside [`Grant::export`].
    pub gate_generation: u32,
    /// With [`Grant::mapped`]: id of the region that it is of, as the node told the exporter
    /// ([`Answer::Region`]). Whoever stores there looks by its bit
    /// ([`region_bit`](crate::area::region_bit)) whether a thread of the exporter waits for a word
    /// of it.
    pub region: u32,
    /// Whether traffic between the nodes is sealed (encrypted and authenticated); true for an
    /// import on this node.
    pub sealed: bool,
}

/// What importers may do with an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExportKind {
    /// Memory: transfers go where their sender says.
    #[default]
    Memory,
    /// An append ring.
    Ring,
    /// A token table.
    Tokens {
        /// Its entries.
        entries: u32,
    },
}

/// Why an import goes through the engine and not through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotMapped {
    /// Another node.
    #[error("the export is on another node")]
    OtherNode,
    /// Redirectable.
    #[error("the export is redirectable, so the node must see every byte")]
    Redirectable,
    /// An append ring.
    #[error("the export is an append ring, which only the node writes")]
    Ring,
    /// The export shares pages with other memory of the exporter.
    #[error("the export does not cover whole pages of its own, and a mapping would show its neighbours")]
    SharesPages,
    /// A mapping cannot be write-only.
    #[error("the import lacks the read right, and a mapping cannot be write-only")]
    NoReadRight,
    /// The importer's rights differ from what page protection can say.
    #[error("atomic without write right cannot be expressed by page protection")]
    RightsNotExpressible,
    /// The exporter asked for it.
    #[error("the exporter does not allow mapping")]
    NotAllowed,
}

/// Exactly what happened to the bytes of a redirected range; offsets are relative to the export,
/// ranges are (offset, length).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Redirection {
    /// Had arrived in the default buffer before the redirection was posted, and were copied.
    pub copied: Vec<(u64, u64)>,
    /// Went straight to the new destination.
    pub redirected: Vec<(u64, u64)>,
    /// Have not come yet.
    pub pending: Vec<(u64, u64)>,
}

/// Why the node refused a call. The text names the thing, the numbers and the next step; the code
/// is for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of refusal.
    pub code: RefusalCode,
    /// One sentence for people.
    pub message: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalCode {
    /// Library and node speak different versions.
    Version,
    /// No export of that name or id.
    UnknownName,
    /// No node of that name, or no way to it.
    UnknownNode,
    /// The name is taken.
    NameTaken,
    /// The user is not on the access list.
    NotPermitted,
    /// The export does not give the rights wanted.
    NoRight,
    /// The id is of an earlier generation.
    Stale,
    /// Range outside of the region or export.
    OutOfBounds,
    /// A table of the node or engine is full.
    TableFull,
    /// Not enough memory.
    MemoryShort,
    /// The node did not answer in time.
    TimedOut,
    /// The node died or cannot be reached.
    Unreachable,
    /// The other node was restarted.
    Restarted,
    /// Something that the call needs is in use.
    Busy,
    /// The node starts no process for this.
    NotStarted,
    /// A malformed or misplaced call.
    Invalid,
    /// The descriptor is not a sealed memfd of the stated length.
    BadRegion,
}

/// What the node says unasked, on the events socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeEvent {
    /// A process of this node may notify: its ring travels along as descriptor.
    Pair {
        /// The notifying process.
        process: u32,
        /// Its user.
        uid: u32,
        /// Whether that is the user of the process that is told.
        same_user: bool,
    },
    /// The notifying process has gone; what is in its ring is still valid.
    PairGone {
        /// The notifying process.
        process: u32,
    },
    /// An import can no longer be used.
    ImportBroken {
        /// The import.
        import: u64,
        /// Why: a status of the completion ring.
        status: u16,
        /// Arguments of the status.
        args: [u64; 3],
    },
    /// Others need pinned memory: give back so many pages in time, chosen as the process likes;
    /// else the node chooses.
    Reclaim {
        /// Pages.
        pages: u64,
        /// In how many milliseconds.
        within_ms: u64,
    },
    /// The node ends on request.
    Stopping,
}

/// Description of a node, for `vmmc stats`, `node status` and `explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
pub struct NodeInfo {
    /// Name that other nodes know it by.
    pub name: String,
    /// Name that processes of its machine find it by.
    pub local_name: String,
    /// Process id of the daemon, or of the process that embeds it.
    pub pid: u32,
    /// User id that it runs as.
    pub uid: u32,
    /// Release of the node.
    pub version: String,
    /// Time since start, milliseconds.
    pub uptime_ms: u64,
    /// UDP addresses.
    pub listen: Vec<String>,
    /// Whether traffic between nodes is sealed.
    pub sealed: bool,
    /// Whether it is embedded in a process.
    pub embedded: bool,
    /// Counters by name.
    pub counters: Vec<(String, u64)>,
    /// Figures of its services.
    pub figures: Vec<FigureInfo>,
    /// Where it writes its log: a file, `journal`, `stderr`, or empty for none.
    pub log: String,
    /// The last things it had to say, refusals above all; for its owner only.
    pub notes: Vec<String>,
    /// Peers.
    pub peers: Vec<PeerInfo>,
    /// Attached processes.
    pub processes: Vec<ProcessInfo>,
    /// Exports; filled when details were asked for.
    pub exports: Vec<ExportInfo>,
    /// Imports; filled when details were asked for.
    pub imports: Vec<ImportInfo>,
    /// What processes have published; filled when details were asked for.
    pub published: Vec<PublishedInfo>,
}

/// Figures that a process has published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
pub struct PublishedInfo {
    /// Id of the process on its node.
    pub process: u32,
    /// Whose they are, for example a service of the process.
    pub source: String,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// One figure of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
pub struct FigureInfo {
    /// `SERVICE_what`; that of a counter, which only grows, ends in `_total`.
    pub name: String,
    /// What it counts, in a sentence.
    pub help: String,
    /// Its value.
    pub value: u64,
}

/// One peer node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
pub struct PeerInfo {
    /// Name, empty until known.
    pub name: String,
    /// Address in use.
    pub address: String,
    /// All addresses known.
    pub paths: Vec<String>,
    /// State in a word: `up`, `connecting`, `down`.
    pub state: String,
    /// What its packets are sealed with; empty: there is no session, or it is plain.
    pub cipher: String,
    /// Why there is probably no session, in words; empty: nothing is known. Nobody vouches for it.
    pub hint: String,
    /// Smoothed round trip time, ns.
    pub rtt_ns: u64,
    /// What decides what may be under way, and what it does now, in words; empty: no session.
    pub congestion: String,
    /// Whether packets ask queues for marks, and if not, why, in words; empty: no session.
    pub marks: String,
    /// Bytes of packets on the path in use, of those that the interface takes, and what is done
    /// about the difference, in words; empty: no path.
    pub packets: String,
    /// Congestion window, bytes.
    pub window_bytes: u64,
    /// Bytes per second at which packets go out; 0: not known yet.
    pub pace_bytes_per_s: u64,
    /// Bytes per second that the path takes; 0: not known, or the congestion control does not ask.
    pub bandwidth_bytes_per_s: u64,
    /// Round trip without a queue, ns; 0 as with the bandwidth.
    pub shortest_ns: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u64,
    /// Counters by name.
    pub counters: Vec<(String, u64)>,
}

/// What was moved, in operations and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Moved {
    /// Sends.
    pub sends: u64,
    /// Their bytes.
    pub send_bytes: u64,
    /// Fetches.
    pub fetches: u64,
    /// Their bytes.
    pub fetch_bytes: u64,
    /// Atomic operations, counters of sends included.
    pub atomics: u64,
}

impl Moved {
    /// Adds; a sum that has no room stays at the largest number, for the parts are claims.
    pub fn add(&mut self, other: Moved) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        sum(&mut self.sends, other.sends);
        sum(&mut self.send_bytes, other.send_bytes);
        sum(&mut self.fetches, other.fetches);
        sum(&mut self.fetch_bytes, other.fetch_bytes);
        sum(&mut self.atomics, other.atomics);
    }

    /// Bytes of sends and fetches.
    pub fn bytes(&self) -> u64 {
        self.send_bytes.saturating_add(self.fetch_bytes)
    }

    /// Operations of all kinds.
    pub fn operations(&self) -> u64 {
        self.sends.saturating_add(self.fetches).saturating_add(self.atomics)
    }
}

/// One attached process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
pub struct ProcessInfo {
    /// Id on the node.
    pub process: u32,
    /// Process id.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Exports it has.
    pub exports: u32,
    /// Imports it has.
    pub imports: u32,
    /// Bytes of its regions.
    pub region_bytes: u64,
    /// Commands that the engine took from it.
    pub commands: u64,
    /// Pages of its own memory that are pinned.
    pub pinned: u64,
    /// What it moved by copies within the node; its own claim.
    pub mapped: Moved,
    /// Name of its program, as the kernel knows it.
    pub program: String,
    /// Counters by name of its address translation; what it counts itself is its own claim.
    pub counters: Vec<(String, u64)>,
}

/// One export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
pub struct ExportInfo {
    /// Id.
    pub export: u64,
    /// Name.
    pub name: Option<String>,
    /// Owner.
    pub process: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub rights: u8,
    /// Imports of it, on all nodes.
    pub importers: u32,
}

/// One import.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
pub struct ImportInfo {
    /// Id.
    pub import: u64,
    /// Importing process.
    pub process: u32,
    /// The export.
    pub export: u64,
    /// Node of the export.
    pub node: String,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub rights: u8,
    /// Path in a word: `mapped`, `engine`, `network`.
    pub path: String,
    /// Name of the export, as far as this node knows it.
    pub name: Option<String>,
    /// What went through it. Of a mapped one this is the claim of its process, of others what the
    /// node took.
    pub moved: Moved,
}

/// Encodes a message.
///
/// # Panics
/// Never for the types of this module: they contain nothing that the encoding lacks.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("the types of this module have an encoding")
}

/// Decodes a message that came from the other side.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    postcard::from_bytes(bytes).map_err(|e| Malformed { bytes: bytes.len(), why: e.to_string() })
}

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a control message of {bytes} bytes cannot be decoded ({why}); are library and node of the same release?")]
pub struct Malformed {
    /// Length of what came.
    pub bytes: usize,
    /// What the decoder says.
    pub why: String,
}

/// Milliseconds for the wire, rounded up so that a short wait stays a wait.
pub fn timeout_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
