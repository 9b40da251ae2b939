//! Counters and plain descriptions of what exists, for clients that ask the driver.

use std::net::SocketAddr;
use std::time::Duration;

use crate::congestion::CongestionControl;
use crate::ecn::EcnState;
use crate::ids::{ExportId, ImportId, NodeName, ProcessId, RegionId};
use crate::mtu::MtuState;
use crate::rights::ExportKind;
use crate::rights::Rights;

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// Every counter with its name, in a stable order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Counters of the whole engine since it was made.
    Stats {
        /// Datagrams given out.
        packets_out,
        /// Bytes in them.
        bytes_out,
        /// Datagrams handed in.
        packets_in,
        /// Bytes in them.
        bytes_in,
        /// Chunks sent again.
        retransmits,
        /// Retransmission timeouts.
        timeouts,
        /// Chunks that came twice.
        duplicates,
        /// Packets whose number was seen before.
        replays,
        /// Packets or hellos whose seal did not open.
        bad_seals,
        /// Datagrams that make no sense.
        malformed,
        /// Packets for a session nobody has.
        unknown_session,
        /// Packets too old or too far ahead, chunks beyond the window.
        out_of_window,
        /// Transfers refused at this node: no such grant, out of bounds, or without the right.
        refused,
        /// Payloads, or parts of them, that came by a token that let nothing in.
        tokens_refused,
        /// Hellos sent.
        hellos_out,
        /// Hellos received.
        hellos_in,
        /// Hellos answered with a cookie, as they had none that is good.
        cookies_out,
        /// Hellos not answered because too many came.
        hellos_limited,
        /// Handshakes refused, here or there.
        rejects,
        /// Sessions that began.
        sessions,
        /// Sessions that ended.
        sessions_lost,
        /// Changes to another path of a peer.
        path_switches,
        /// Sends completed.
        sends,
        /// Fetches completed.
        fetches,
        /// Atomics completed.
        atomics,
        /// Transfers within this node that went through the engine.
        local_ops,
        /// Bytes of sends and fetches that arrived in memory of this node.
        bytes_deposited,
        /// Notifications given.
        notifications,
        /// Bytes that went straight to a redirected place.
        bytes_redirected,
        /// Commands answered with `Busy`.
        busy,
        /// Datagrams outside sessions not sent because their queue was full.
        loose_dropped,
    }
}

/// A path to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathInfo {
    /// Where it leads.
    pub addr: SocketAddr,
    /// UDP payload bytes per packet.
    pub mtu_bytes: usize,
    /// As many as the interface takes.
    pub mtu_limit_bytes: usize,
    /// What is done about the difference.
    pub mtu_state: MtuState,
    /// How often packets of the size in use turned out not to get through.
    pub black_holes: u64,
    /// In use now.
    pub active: bool,
    /// Given up for the time being.
    pub failed: bool,
    /// How often it was given up.
    pub failures: u64,
}

/// State of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// Known, no session.
    Idle,
    /// Handshake under way.
    Connecting,
    /// Session open.
    Up,
}

/// What the congestion control of a session believes, and lets go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionInfo {
    /// Which one it is.
    pub control: CongestionControl,
    /// What it does now, in a word or two.
    pub state: &'static str,
    /// Bytes that may be under way.
    pub window_bytes: usize,
    /// Bytes per second at which packets go out; none: not known yet.
    pub pace: Option<u64>,
    /// Bytes per second that the path takes; none: not known, or the control does not ask.
    pub bandwidth: Option<u64>,
    /// Round trip without a queue; none as with the bandwidth.
    pub shortest: Option<Duration>,
}

/// A peer.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerInfo {
    /// Known after the first handshake.
    pub name: Option<NodeName>,
    /// See there.
    pub state: PeerState,
    /// All ways to it.
    pub paths: Vec<PathInfo>,
    /// Smoothed round trip time, once measured.
    pub rtt: Option<Duration>,
    /// Congestion window, bytes.
    pub window_bytes: usize,
    /// More of it; none: no session.
    pub congestion: Option<CongestionInfo>,
    /// What is done about marks of queues; none: no session.
    pub ecn: Option<EcnState>,
    /// Bytes sent and not yet acknowledged.
    pub in_flight_bytes: usize,
    /// Operations queued and not yet sent.
    pub queued_ops: usize,
    /// Chunks held until a gap closes.
    pub held_chunks: usize,
    /// Bytes in them.
    pub held_bytes: usize,
    /// Encrypted.
    pub sealed: bool,
    /// What packets of the present session are sealed with.
    pub cipher: Option<crate::cipher::Cipher>,
    /// What somebody at one of its addresses says about why there is no session. Nobody vouches for
    /// it.
    pub hint: Option<crate::error::RejectReason>,
    /// Incarnation number of the other engine.
    pub incarnation: u64,
    /// Counters of the present session.
    pub stats: PeerStats,
}

counters! {
    /// Counters of one session.
    PeerStats {
        /// Packets sent.
        packets_out,
        /// Bytes in them.
        bytes_out,
        /// Packets received that opened.
        packets_in,
        /// Bytes in them.
        bytes_in,
        /// Chunks sent again.
        retransmits,
        /// Chunks declared lost.
        lost,
        /// Chunks sent again that had arrived, as far as acknowledgements show.
        spurious,
        /// Probes for lack of news.
        probes,
        /// Retransmission timeouts.
        timeouts,
        /// Chunks that came twice.
        duplicates,
        /// Changes of path.
        path_switches,
        /// Packets received that a queue on the way had marked.
        marked_in,
        /// Packets sent that a queue had marked, as the peer says.
        marked_out,
    }
}

/// An export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Id.
    pub export: ExportId,
    /// Owner.
    pub process: ProcessId,
    /// Its user.
    pub uid: u32,
    /// Name, if it has one.
    pub name: Option<String>,
    /// Region of the owner.
    pub region: RegionId,
    /// Start in it, bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What may be granted.
    pub rights: Rights,
    /// Senders may notify.
    pub notify: bool,
    /// Incoming data may be redirected.
    pub redirectable: bool,
    /// What senders may do with it.
    pub kind: ExportKind,
    /// Imports on this node.
    pub local_importers: usize,
    /// Imports on other nodes.
    pub remote_importers: usize,
}

/// An import.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportInfo {
    /// Owner.
    pub process: ProcessId,
    /// Id.
    pub import: ImportId,
    /// What it leads to.
    pub export: ExportId,
    /// Other node; `None`: this one.
    pub node: Option<NodeName>,
    /// Bytes.
    pub len: u64,
    /// Granted rights.
    pub rights: Rights,
    /// Why it ended, if it did.
    pub broken: Option<crate::error::OpError>,
}

/// An attached process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessInfo {
    /// Id.
    pub process: ProcessId,
    /// User.
    pub uid: u32,
    /// Exports it has.
    pub exports: usize,
    /// Imports it has.
    pub imports: usize,
    /// Operations not complete.
    pub outstanding_ops: usize,
}
