//! What a process and its node send each other about stream sockets.
//!
//! They travel on the control socket as [`Call::Service`] and
//! [`Answer::Service`]. Nothing is waited for: an event has serial 0
//! and may come at any time; a counter in the area of its bells notifies a process of it.
//!
//! Invariant: a message names connections by numbers that its receiver knows; whatever it does not
//! know it ignores.

use super::slab::Shape;
use serde::{Deserialize, Serialize};
use vmmc_host::control::{Answer, Call, decode, encode};

/// Number of the service.
pub const SERVICE: u16 = 1;
/// Version of its messages with processes, and of those between its nodes.
pub const VERSION: u16 = 1;

/// A slot of a slab, and the end of the connection in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Id of the slab on its node; never used twice.
    pub slab: u64,
    /// Slot of the slab.
    pub slot: u32,
    /// End 0 or 1.
    pub end: u8,
}

/// An end of one connection. Several processes may hold it, and the node reads their messages in
/// any order; so a message of one of them may come when the slot serves another connection already,
/// which has another secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRef {
    /// Where it is.
    pub place: Place,
    /// That of the connection, which also stands in its words: only those know it who have them
    /// mapped.
    pub secret: u64,
}

/// A connected TCP socket that a process claims to have: the kernel knows whether there is such a
/// one, and whose it is ([`SocketDiag`](crate::SocketDiag)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketClaim {
    /// Own address.
    pub local: std::net::SocketAddr,
    /// The peer's.
    pub remote: std::net::SocketAddr,
    /// Network interface that it is bound to; 0: none.
    pub interface: u32,
    /// `SO_COOKIE`.
    pub cookie: u64,
    /// Its number in the process, for the case that it belongs to another user.
    pub descriptor: i32,
}

/// From a process to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketCall {
    /// First of all. Its bells travel along. Answer: [`SocketEvent::Attached`].
    Attach,
    /// The eventfd of a bell travels along.
    Bell {
        /// Which.
        bell: u32,
    },
    /// A connected socket. It does not travel along: while a descriptor of it is under way, no
    /// close of the program ends the connection. Answer, when the peer has offered its end:
    /// [`SocketEvent::Matched`].
    Offer {
        /// The process's own number for it.
        connection: u64,
        /// Which.
        socket: SocketClaim,
    },
    /// The offer stands no more. If the node has matched it meanwhile, the end is released: the
    /// process has not joined, and does not when it learns of the match.
    Withdraw {
        /// Number of the offer.
        connection: u64,
        /// `SO_COOKIE` of its socket.
        cookie: u64,
    },
    /// A socket that came from elsewhere: is it upgraded? Answer: [`SocketEvent::Adopted`].
    Adopt {
        /// The process's own number for it.
        connection: u64,
        /// `SO_COOKIE` of the socket.
        cookie: u64,
    },
    /// This process holds ends that it inherited by fork.
    Hold {
        /// Which.
        ends: Vec<EndRef>,
    },
    /// This process holds an end no more; others do.
    LetGo {
        /// Which.
        end: EndRef,
    },
    /// The last holder of an end has closed it, or an end will not be attached.
    Release {
        /// Which.
        end: EndRef,
    },
    /// The ring of the direction from this end was full: a large one, please. The answer stands in
    /// the words of the connection.
    Grow {
        /// Own end.
        end: EndRef,
    },
    /// Ring the watchers of the other end: the caller has no bell of it.
    Ring {
        /// Own end.
        end: EndRef,
    },
    /// The kernel says that the other end, on another node, has ended: has all come that it sent by
    /// the ring? The answer stands in the words of the connection.
    Ended {
        /// Own end.
        end: EndRef,
    },
}

impl SocketCall {
    /// As it travels.
    pub fn to_call(&self) -> Call {
        Call::Service { service: SERVICE, version: VERSION, message: encode(self) }
    }

    /// What travelled, if it is for this service.
    pub fn of(call: &Call) -> Option<SocketCall> {
        match call {
            Call::Service { service: SERVICE, version: VERSION, message } => decode(message).ok(),
            _ => None,
        }
    }
}

/// What the node's own user asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketQuestion {
    /// Connections that are upgraded or offered. Answer: [`SocketList`].
    List,
}

impl SocketQuestion {
    /// As it travels, in a [`Call::Ask`].
    pub fn to_bytes(self) -> Vec<u8> {
        encode(&self)
    }
}

/// Connections, as many as fit a message, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketList {
    /// The first of them.
    pub sockets: Vec<SocketInfo>,
    /// All.
    pub total: u64,
}

/// From a node to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketEvent {
    /// The process is known under this id.
    Attached {
        /// Never used twice.
        process: u32,
    },
    /// A process that shares connections with the receiver; its bells travel along.
    Peer {
        /// Its id.
        process: u32,
    },
    /// The eventfd of a peer's bell travels along.
    PeerBell {
        /// The peer.
        process: u32,
        /// Which.
        bell: u32,
    },
    /// A slab travels along.
    Slab {
        /// Its id.
        slab: u64,
        /// Its slots and rings.
        shape: Shape,
    },
    /// The other end of an offered connection was offered too. Slab and peer have been told before.
    Matched {
        /// Number of the offer.
        connection: u64,
        /// Where it goes on.
        end: EndRef,
        /// Who has the other end.
        peer: u32,
    },
    /// An offer was not taken.
    Refused {
        /// Number of the offer.
        connection: u64,
        /// Why.
        why: OfferRefusal,
    },
    /// The answer to [`SocketCall::Adopt`]. Slab and peer have been told before.
    Adopted {
        /// Number of the question.
        connection: u64,
        /// Where the socket's bytes go; none: it is not upgraded, or not for this process.
        end: Option<EndRef>,
        /// The connection is another user's: the process that passed it on has brought it back to
        /// the kernel.
        other_user: bool,
        /// Who has the other end.
        peer: u32,
    },
    /// A peer has ended: it is not rung any more.
    PeerGone {
        /// The peer.
        process: u32,
    },
    /// A slab is not used any more.
    SlabGone {
        /// Its id.
        slab: u64,
    },
}

impl SocketEvent {
    /// What an answer says, on a connection that has joined the service.
    pub fn of(answer: &Answer) -> Option<SocketEvent> {
        match answer {
            Answer::Service { message } => decode(message).ok(),
            _ => None,
        }
    }
}

/// Why the node does not take an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OfferRefusal {
    /// Not a connected TCP socket.
    #[error("not a connected TCP socket")]
    NotConnected,
    /// Another process has offered or upgraded the same socket.
    #[error("held by several processes")]
    Shared,
    /// The process has as many offers open as it may.
    #[error("too many offers")]
    TooMany,
    /// The peer belongs to another user.
    #[error("the peer belongs to another user")]
    OtherUser,
    /// The socket itself belongs to another user, and the process could not be seen to hold it.
    #[error("the socket belongs to another user than the process")]
    NotYours,
    /// Memory or descriptors are short.
    #[error("memory is short")]
    MemoryShort,
}

/// One connection or offer as the node sees it, for `vmmc sockets`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct SocketInfo {
    /// Process id of the end that is described.
    pub pid: u32,
    /// Its address.
    pub local: String,
    /// The peer's address.
    pub remote: String,
    /// Process id of the other end, if it is known.
    pub peer_pid: Option<u32>,
    /// Name of the node of the other end, if that is another one.
    pub peer_node: Option<String>,
    /// What carries the bytes: `ring`, `kernel` or both with an arrow.
    pub path: String,
    /// Why it is not upgraded, if not.
    pub reason: String,
    /// Bytes of the rings in which it sends and receives now; 0: it is not upgraded.
    pub ring_bytes: [u64; 2],
    /// Bytes that it sent through the ring.
    pub ring_sent_bytes: u64,
    /// Bytes that it received through the ring.
    pub ring_received_bytes: u64,
}
