//! What a datagram or a send leaves to be done when nobody waits any more.
//!
//! ```text
//!   datagram ──▶ data is in place ──▶ whoever waits answers at once ──▶ finish_deferred:
//!                                                                       acknowledgement, timers
//! ```
//!
//! Invariant: at most one packet and one peer are deferred; the next packet finishes the one
//! before. What is deferred is done before anything that depends on it: an acknowledgement is
//! counted before a packet is written that could carry it. Departure from the papers: on their
//! hardware the interface does this beside the host; here it would be time of the thread that
//! waits.

use super::Engine;
use crate::error::PeerDownReason;
use crate::tables::SessionId;
use crate::time::Time;
use crate::wire::frame::Ack;

/// What is deferred.
#[derive(Default)]
pub(super) struct Deferred {
    packet: Option<DeferredPacket>,
    /// Peer whose next deadline may be missing in the heap.
    unarmed: Option<u16>,
}

/// What a packet leaves.
pub(super) struct DeferredPacket {
    via: SessionId,
    came: Time,
    /// What it says about those that went the other way.
    ack: Option<Ack<'static>>,
    /// Number and bytes of a single-chunk packet, which calls for an acknowledgement.
    to_acknowledge: Option<(u64, usize)>,
}

impl DeferredPacket {
    /// A packet of one send and nothing else, with this number and so many bytes.
    #[inline]
    pub(super) fn single_chunk(via: SessionId, came: Time, ack: Option<Ack<'static>>, packet: (u64, usize)) -> Self {
        DeferredPacket { via, came, ack, to_acknowledge: Some(packet) }
    }

    /// Any other packet. None if it has to be taken up at once: an acknowledgement of more than
    /// the packets before some number is long, and rare.
    #[inline]
    pub(super) fn new(via: SessionId, came: Time, ack: Option<Ack<'_>>) -> Option<Self> {
        let ack = match ack {
            Some(ack) => Some(ack.without_ranges()?),
            None => None,
        };
        Some(DeferredPacket { via, came, ack, to_acknowledge: None })
    }
}

impl Deferred {
    /// Whether a packet is: a call of [`Engine::finish_deferred`] is wanted soon. A peer that is to
    /// be armed has time until its deadline.
    #[inline]
    pub(super) fn has_packet(&self) -> bool {
        self.packet.is_some()
    }

    /// A packet leaves this. The one before has been finished.
    #[inline]
    pub(super) fn packet(&mut self, packet: DeferredPacket) {
        debug_assert!(self.packet.is_none(), "two packets are deferred");
        self.packet = Some(packet);
    }

    #[inline]
    fn take_packet(&mut self) -> Option<DeferredPacket> {
        self.packet.take()
    }

    /// The packet that is yet to be acknowledged: its session, when it came, number and bytes. It
    /// is given once, and the rest of what it left stays deferred.
    #[inline]
    fn take_to_acknowledge(&mut self) -> Option<(SessionId, Time, u64, usize)> {
        let packet = self.packet.as_mut()?;
        let (number, bytes) = packet.to_acknowledge.take()?;
        Some((packet.via, packet.came, number, bytes))
    }

    /// This peer is to be armed; gives another one that was, and must be now.
    #[inline]
    fn unarmed(&mut self, index: u16) -> Option<u16> {
        self.unarmed.replace(index).filter(|other| *other != index)
    }

    #[inline]
    fn take_unarmed(&mut self) -> Option<u16> {
        self.unarmed.take()
    }

    /// The peer that is yet to be armed.
    #[inline]
    pub(super) fn peer(&self) -> Option<u16> {
        self.unarmed
    }
}

impl Engine {
    /// Does what [`deposit_datagram`](Self::deposit_datagram) and sends have left; says whether a
    /// packet had left anything. Until then what the peer has acknowledged counts as under way, and
    /// [`poll_timeout`](Self::poll_timeout) asks for an early call of
    /// [`handle_timeout`](Self::handle_timeout), which does this too.
    #[inline]
    pub fn finish_deferred(&mut self) -> bool {
        if let Some(index) = self.deferred.take_unarmed() {
            self.arm(index);
        }
        self.count_deferred();
        let Some(DeferredPacket { via, came, ack, .. }) = self.deferred.take_packet() else { return false };
        let now = self.now;
        let Some((session, tables)) = self.session_and_tables(via) else { return true };
        let nonsense = ack.is_some_and(|ack| session.acknowledged(now, came, &ack, tables).is_err());
        let hostile = session.tx.is_overdrawn();
        let has_to_send = session.has_to_send();
        if nonsense || hostile {
            self.lose_peer(now, via.peer, PeerDownReason::Protocol);
        }
        self.trim_deadlines();
        if has_to_send {
            self.wake(via.peer);
        }
        self.arm(via.peer);
        true
    }

    /// Counts a single-chunk packet for its acknowledgement, if that is deferred: a packet that is
    /// built now may take it along.
    #[inline]
    pub(super) fn count_deferred(&mut self) {
        let Some((via, came, number, bytes)) = self.deferred.take_to_acknowledge() else { return };
        if let Some(session) = self.session_mut(via) {
            session.count_for_ack(came, number, bytes);
        }
    }

    /// As [`arm`](Self::arm), but when there is time for it: no deadline is as near as the next
    /// call of [`finish_deferred`](Engine::finish_deferred).
    #[inline]
    pub(super) fn arm_later(&mut self, index: u16) {
        if let Some(other) = self.deferred.unarmed(index) {
            self.arm(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::{self, Frame};
    use crate::wire::{Reader, Writer};

    const VIA: SessionId = SessionId { peer: 3, serial: 7 };
    const CAME: Time = Time::from_nanos(5);

    /// An acknowledgement of all below `cumulative`, and of some beyond a gap.
    fn with_ack<R>(ranges: &[(u64, u64)], with: impl FnOnce(Ack<'_>) -> R) -> R {
        let mut buf = [0; 256];
        let mut out = Writer::new(&mut buf);
        frame::write_ack(20, 4, 30, 0, ranges.iter().copied(), &mut out);
        let len = out.len();
        match frame::read(&mut Reader::new(&buf[..len])) {
            Some(Frame::Ack(ack)) => with(ack),
            _ => panic!("it was written as an acknowledgement"),
        }
    }

    #[test]
    fn nothing_is_deferred_at_first() {
        let mut deferred = Deferred::default();
        assert!(!deferred.has_packet() && deferred.take_packet().is_none());
        assert!(deferred.take_to_acknowledge().is_none());
        assert_eq!((deferred.peer(), deferred.take_unarmed()), (None, None));
    }

    #[test]
    fn a_packet_is_counted_once_and_its_acknowledgement_stays_for_later() {
        let mut deferred = Deferred::default();
        let ack = with_ack(&[], |ack| ack.without_ranges());
        assert!(ack.is_some());
        deferred.packet(DeferredPacket::single_chunk(VIA, CAME, ack, (9, 64)));
        assert_eq!(deferred.take_to_acknowledge(), Some((VIA, CAME, 9, 64)));
        assert_eq!(deferred.take_to_acknowledge(), None);
        assert!(deferred.has_packet());
        let left = deferred.take_packet().unwrap();
        assert_eq!((left.via, left.came, left.ack.unwrap().cumulative), (VIA, CAME, 20));
        assert!(!deferred.has_packet() && deferred.take_packet().is_none());
    }

    #[test]
    fn only_single_chunk_packets_are_yet_to_be_counted() {
        let mut deferred = Deferred::default();
        deferred.packet(DeferredPacket::new(VIA, CAME, None).unwrap());
        assert!(deferred.has_packet());
        assert_eq!(deferred.take_to_acknowledge(), None);
    }

    #[test]
    fn an_acknowledgement_with_gaps_is_not_deferred() {
        assert!(with_ack(&[], |ack| DeferredPacket::new(VIA, CAME, Some(ack)).is_some()));
        assert!(with_ack(&[(22, 24)], |ack| DeferredPacket::new(VIA, CAME, Some(ack)).is_none()));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "two packets are deferred")]
    fn a_second_packet_finishes_the_first_before_it_is_deferred() {
        let mut deferred = Deferred::default();
        (0..2).for_each(|_| deferred.packet(DeferredPacket::new(VIA, CAME, None).unwrap()));
    }

    #[test]
    fn a_second_peer_that_is_to_be_armed_has_the_first_one_armed_at_once() {
        let mut deferred = Deferred::default();
        assert_eq!(deferred.unarmed(1), None);
        assert_eq!(deferred.unarmed(1), None, "the same peer needs it once");
        assert_eq!(deferred.unarmed(2), Some(1));
        assert!(!deferred.has_packet(), "nobody is called early for that");
        assert_eq!((deferred.peer(), deferred.take_unarmed(), deferred.peer()), (Some(2), Some(2), None));
    }
}
