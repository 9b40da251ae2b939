//! Bounds of the service.
//!
//! Invariant: what a client or another node can make grow has its bound here.

use std::time::Duration;

/// Descriptors of the node for a client of the sockets service: bells, an event counter for each of
/// them, watch, and bells and event counter of the node that clients with connections to other
/// nodes have. Those of slabs are counted by the service.
pub const DESCRIPTORS_PER_SOCKETS_CLIENT: u32 = 4 + vmmc_stream::BELLS;

/// Offered stream sockets of a node, for users other than its own.
pub const SOCKET_OFFERS_ALL_MAX: usize = 4 * SOCKET_OFFERS_MAX;

/// Offers of stream sockets of one process whose peer has not come: as many as a process has
/// descriptors on most systems. Further ones stay on kernel TCP.
pub const SOCKET_OFFERS_MAX: usize = 16_384;

/// Bytes of each of the two rings of an upgraded connection: 10,000 idle connections take less than
/// 700 MiB.
pub const SOCKET_RING_BYTES: u64 = 32 << 10;

/// Bytes of a ring that was full once.
pub const SOCKET_LARGE_RING_BYTES: u64 = 512 << 10;

/// Bytes of all large rings of a node, half of them for one user alone; an end that asks for more
/// keeps the small one, or gets what others have not used for [`SOCKET_LARGE_IDLE`].
pub const SOCKET_LARGE_BYTES_MAX: u64 = 512 << 20;

/// Time between two scans for idle large rings: each goes over all connections.
pub const SOCKET_LARGE_SCAN: Duration = Duration::from_millis(100);

/// Large rings that such a scan takes back: the kernel gets half a MiB of each.
pub const SOCKET_LARGE_TAKEN_PER_SCAN: usize = 64;

/// Slots of all slabs of a node, half of them for one user alone: each has 68 KiB of memory, 2.2
/// GiB together. Further connections stay with the kernel.
pub const SOCKET_SLOTS_MAX: u64 = 32_768;

/// Processes known to hold one end of a connection. Further ones are holders that the node does not
/// know of.
pub const SOCKET_HOLDERS_MAX: usize = 64;

/// Places named in one message after a fork: what the library sends at a time.
pub const SOCKET_PLACES_MAX: usize = 512;

/// Time without a byte after which a large ring may be taken back for others.
pub const SOCKET_LARGE_IDLE: Duration = Duration::from_secs(1);

/// Slots of the first slab of a pair of processes; each further one has twice as many, up to
/// [`SOCKET_SLAB_SLOTS_MAX`].
pub const SOCKET_SLAB_SLOTS_MIN: u32 = 4;

/// Slots of a large slab: 2.2 MiB.
pub const SOCKET_SLAB_SLOTS_MAX: u32 = 32;

/// Ends that are taken from processes which have ended, before rings and network have their turn:
/// half a millisecond.
pub const SOCKET_ENDS_PER_TURN: usize = 512;

/// Ends of one such process before the next has its turn: one that held a few is not behind one
/// that held all.
pub const SOCKET_ENDS_PIECE: usize = 64;

/// Ends without a holder that are checked in a turn: each may wake its peer, which takes some
/// microseconds.
pub const SOCKET_ORPHANS_PER_TURN: usize = 64;

/// Slabs that are let go in a turn: the kernel takes up to 2.2 MiB of each back.
pub const SOCKET_SLABS_PER_TURN: usize = 4;

/// Processes remembered whose library is of another version than the node.
pub const SOCKET_STRANGERS_MAX: usize = 32;

/// Time that a program that was started by exec may take to ask for the connections that it
/// inherited.
pub const SOCKET_ORPHAN_TIME: Duration = Duration::from_secs(10);

/// Connections to other nodes that are upgraded, or about to be, half of them for one user alone:
/// each has two rings here, 70 KiB together with its words.
pub const BETWEEN_LINKS_MAX: usize = 16_384;

/// Offers that other nodes are still to be asked about: all that stand, which are divided among
/// users.
pub const BETWEEN_ASKS_MAX: usize = SOCKET_OFFERS_ALL_MAX;

/// Connections to other nodes that are served before rings and network have their turn.
pub const BETWEEN_TURN: usize = 64;

/// Lines of each of the kernel's tables of sockets that are read for a list: some milliseconds. Of
/// sockets beyond them it does not say to whom they belong.
pub const SOCKET_TABLE_LINES_MAX: usize = 8_192;

/// Refused offers that are remembered for lists, half of them for one user alone: some 150 bytes
/// each, and no list has as many entries.
pub const SOCKET_REFUSED_MAX: usize = 4_096;

/// Entries of a list of sockets in one message.
pub const SOCKET_LIST_MAX: usize = 400;

/// Times after the last known holder of an end has gone at which the other end is told to ask its
/// kernel: the holder's sockets may be closed a little after it has gone, and an exec closes them
/// one by one.
pub const SOCKET_HINTS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(20), Duration::from_millis(200), Duration::from_secs(2)];
