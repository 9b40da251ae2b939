//! Direct placement: the data of a long write, or of the answer to a fetch, goes from the kernel's
//! queue to where it belongs, without a copy in between.
//!
//! ```text
//!   the receiver                                   the engine
//!   looks at the first bytes of a datagram ──────▶ placement: where the data belongs
//!   takes it: head and tail into its buffer,
//!   the data to that place ──────────────────────▶ handle_placed_datagram: all of its checks
//! ```
//!
//! Invariants: nothing is placed but what the whole datagram, should it be as its head says, lets
//! the engine deposit at that very place; so the most that a false one does is what its sender may
//! do anyway. A datagram that turns out to be another is made whole again, and has all the checks
//! of any other. Only packets in plain mode are placed: a sealed one is opened first. Source:
//! direct data placement [RFC 5041 §5].

use std::net::SocketAddr;

use super::Engine;
use super::handshake::Use;
use crate::command::Dma;
use crate::ecn::Codepoint;
use crate::ids::RegionRef;
use crate::limits::PLACED_BYTES_MIN;
use crate::local::{has_right, in_bounds};
use crate::replay::Freshness;
use crate::rights::Rights;
use crate::session::Session;
use crate::tables::{Arrivals, SessionId, Tables};
use crate::time::Time;
use crate::wire::chunk::{Brings, WriteHead};
use crate::wire::frame::first_chunk;
use crate::wire::packet::{Header, Kind};

/// Where a piece of a datagram belongs.
///
/// ```
/// use vmmc_nic::{Placement, ProcessId, RegionId, RegionRef};
///
/// let memory = RegionRef { process: ProcessId(1), region: RegionId(2) };
/// let placement = Placement { at: 80, len: 61_440, memory, offset: 4096 };
/// assert_eq!(placement.at + placement.len, 61_520); // the rest of the datagram begins there
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Bytes of the datagram that stand before it.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// The memory.
    pub memory: RegionRef,
    /// First byte in it.
    pub offset: u64,
}

impl Engine {
    /// Whether any datagram may have a [placement](Self::placement): of a node without a key.
    #[inline]
    pub fn may_place(&self) -> bool {
        self.config.key.is_none()
    }

    /// Where a piece of a datagram belongs that is still with the kernel: it comes from `from`,
    /// begins with `head` and has `len` bytes in all. `None`: that is not certain yet, or not
    /// worth it, or there is no such piece; it is for [`handle_datagram`](Self::handle_datagram)
    /// then. Nothing changes.
    pub fn placement(&self, from: SocketAddr, head: &[u8], len: usize, dma: &mut dyn Dma) -> Option<Placement> {
        let header = Header::parse(head).ok().filter(|header| header.kind == Kind::Data)?;
        let slot = self.slots.get(usize::from(header.session.slot)).filter(|slot| slot.id == header.session.id)?;
        let Use::Live(index) = slot.used else { return None };
        let peer = self.peers[usize::from(index)].as_ref()?;
        let session = peer.session.as_deref()?;
        let body_at = session.seals.receive.body_at();
        let chunk = first_chunk(head.get(body_at..)?)?;
        let at = body_at + chunk.at;
        let whole = at.checked_add(chunk.len)? <= len;
        let known = session.seals.receive.may_lend()
            && peer.paths[peer.current].addr == from
            && session.replay.check(header.number) == Freshness::New
            && session.is_next(chunk.seq);
        if chunk.len < PLACED_BYTES_MIN || !whole || !known {
            return None;
        }
        let (memory, offset) = match &chunk.what {
            Brings::Write(head) => self.tables.place_of(session.via, head, chunk.len as u64, dma)?,
            &Brings::Fetch { ticket, offset } => session.place_of_answer(ticket, offset, chunk.len as u64)?,
        };
        Some(Placement { at, len: chunk.len, memory, offset })
    }

    /// As [`handle_datagram_with`](Self::handle_datagram_with), of a datagram of which a piece
    /// stands in its [placement](Self::placement) already. In `datagram` is room for that piece,
    /// whose bytes mean nothing; it is taken back into it if it does not belong there after all, or
    /// must be read to know whether it is damaged.
    ///
    /// # Panics
    /// If the placement is not in the datagram.
    pub fn handle_placed_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        codepoint: Codepoint,
        datagram: &mut [u8],
        placement: &Placement,
        dma: &mut dyn Dma,
    ) {
        let &Placement { at, len, memory, offset } = placement;
        // The owner of the memory can have changed its mind since.
        let same = self.placement(from, &datagram[..at], datagram.len(), dma).as_ref() == Some(placement);
        match self.session_of(datagram).filter(|s| same && s.seals.receive.leaves_out(datagram, (at, len))) {
            Some(session) => session.place(Some(*placement)),
            None => dma.gather(memory, offset, &mut datagram[at..at + len]),
        }
        self.handle_datagram_with(now, from, codepoint, datagram, dma);
        // It stands for no other packet, should this one not have opened.
        if let Some(session) = self.session_of(datagram) {
            session.place(None);
        }
    }

    /// The live session that a datagram names.
    fn session_of(&mut self, datagram: &[u8]) -> Option<&mut Session> {
        let named = Header::parse(datagram).ok()?.session;
        let slot = self.slots.get(usize::from(named.slot)).filter(|slot| slot.id == named.id)?;
        let Use::Live(index) = slot.used else { return None };
        self.peers[usize::from(index)].as_mut()?.session.as_deref_mut()
    }
}

impl Tables {
    /// Where the data of a write goes that comes through this session, with certainty: it would be
    /// deposited there, all of it, and counted. The first part of a payload by token has its key to
    /// take yet.
    fn place_of(&self, via: SessionId, head: &WriteHead, len: u64, dma: &mut dyn Dma) -> Option<(RegionRef, u64)> {
        let grant = self.grant(via, head.grant).filter(|grant| !grant.skip || head.first)?;
        has_right(grant.rights, Rights::WRITE).ok()?;
        let target = &grant.target;
        let at = match (&target.arrivals, &head.token) {
            (Arrivals::Placed, None) if head.counter.is_none() => {
                in_bounds(head.offset, len, target.len).ok()?;
                head.offset
            }
            (Arrivals::ByToken { .. }, Some(token)) => self.place_of_part(target, token, (head.offset, len), dma)?,
            _ => return None,
        };
        Some((target.memory, target.base + at))
    }
}
