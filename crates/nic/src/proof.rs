//! What is proven before there is a session: that a datagram comes from a holder of the cluster key
//! (`Proof`), and that a hello was made after this node asked for it (`Cookies`).
//!
//! Invariant: both are checked before anything is done for a datagram, and cost a hash each;
//! neither remembers anything of a sender. The hash is keyed BLAKE2s, by `blake2`. Source: the
//! first MAC and the cookie of WireGuard, RFC 6347 (DTLS) 4.2.1.

use blake2::Blake2sMac;
use blake2::digest::Mac;
use blake2::digest::consts::{U16, U32};

use crate::config::ClusterKey;
use crate::crypto::checksum;
use crate::limits::COOKIE_SPAN;
use crate::time::Time;
use crate::wire::packet::SessionRef;

/// Bytes of a cookie.
pub(crate) const COOKIE_BYTES: usize = 16;

/// A cookie; zeros stand for none.
pub(crate) type Cookie = [u8; COOKIE_BYTES];

/// At the end of each datagram outside sessions, but for a rejection, whose reader may have another
/// key.
pub(crate) enum Proof {
    /// Plain mode: against damage only.
    Checksum,
    /// Under a key that follows from the cluster's and is used for nothing else.
    Key([u8; 32]),
}

impl Proof {
    pub(crate) fn new(key: Option<&ClusterKey>) -> Proof {
        let Some(key) = key else { return Proof::Checksum };
        let mut mac = <Blake2sMac<U32> as Mac>::new_from_slice(&key.0).expect("the hash takes keys of 32 bytes");
        mac.update(b"vmmc: proof of datagrams outside sessions");
        Proof::Key(mac.finalize().into_bytes().into())
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Proof::Checksum => 8,
            Proof::Key(_) => 16,
        }
    }

    /// Appends the proof of `datagram` and of `context`, which both sides know.
    pub(crate) fn append(&self, datagram: &mut Vec<u8>, context: &[u8]) {
        match self {
            Proof::Checksum => {
                let sum = checksum(datagram);
                datagram.extend_from_slice(&sum.to_le_bytes());
            }
            Proof::Key(key) => {
                let tag = hash(key, &[datagram, context]).finalize().into_bytes();
                datagram.extend_from_slice(&tag);
            }
        }
    }

    /// What stands before the proof, if it is good.
    pub(crate) fn check<'a>(&self, datagram: &'a [u8], context: &[u8]) -> Option<&'a [u8]> {
        let (covered, proof) = datagram.split_at_checked(datagram.len().checked_sub(self.bytes())?)?;
        let good = match self {
            Proof::Checksum => *proof == checksum(covered).to_le_bytes(),
            Proof::Key(key) => hash(key, &[covered, context]).verify_slice(proof).is_ok(),
        };
        good.then_some(covered)
    }
}

/// Makes cookies that this node knows again without keeping any.
pub(crate) struct Cookies {
    secret: [u8; 32],
}

impl Cookies {
    pub(crate) fn new(secret: [u8; 32]) -> Cookies {
        Cookies { secret }
    }

    /// The cookie for the attempt that its sender calls so.
    pub(crate) fn give(&self, now: Time, attempt: SessionRef) -> Cookie {
        self.of_span(span(now), attempt)
    }

    /// Whether it was given for that attempt in this span of time or the one before.
    pub(crate) fn knows(&self, now: Time, attempt: SessionRef, cookie: &[u8]) -> bool {
        let now = span(now);
        [Some(now), now.checked_sub(1)].into_iter().flatten().any(|span| self.of_span(span, attempt) == *cookie)
    }

    fn of_span(&self, span: u64, attempt: SessionRef) -> Cookie {
        let (span, slot, id) = (span.to_le_bytes(), attempt.slot.to_le_bytes(), attempt.id.to_le_bytes());
        hash(&self.secret, &[&span, &slot, &id]).finalize().into_bytes().into()
    }
}

fn span(now: Time) -> u64 {
    now.as_nanos() / COOKIE_SPAN.as_nanos() as u64
}

fn hash(key: &[u8; 32], parts: &[&[u8]]) -> Blake2sMac<U16> {
    let mut mac = <Blake2sMac<U16> as Mac>::new_from_slice(key).expect("the hash takes keys of 32 bytes");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_key_proves_and_every_bit_is_covered() {
        for proof in [Proof::new(None), Proof::new(Some(&ClusterKey([4; 32])))] {
            let mut datagram = vec![7; 60];
            proof.append(&mut datagram, b"name");
            assert_eq!(proof.check(&datagram, b"name").map(<[u8]>::len), Some(60));
            for at in 0..datagram.len() {
                let mut damaged = datagram.clone();
                damaged[at] ^= 1;
                assert_eq!(proof.check(&damaged, b"name"), None, "byte {at}");
            }
            for cut in 0..datagram.len() {
                assert_eq!(proof.check(&datagram[..cut], b"name"), None, "{cut} bytes");
            }
        }
        let (ours, theirs) = (Proof::new(Some(&ClusterKey([4; 32]))), Proof::new(Some(&ClusterKey([5; 32]))));
        let mut datagram = vec![7; 60];
        ours.append(&mut datagram, b"name");
        assert_eq!(theirs.check(&datagram, b"name"), None, "another key");
        assert_eq!(ours.check(&datagram, b"mane"), None, "another context");
    }

    #[test]
    fn a_cookie_is_for_one_attempt_and_some_seconds() {
        let (cookies, others) = (Cookies::new([1; 32]), Cookies::new([2; 32]));
        let start = Time::from_nanos(7 * COOKIE_SPAN.as_nanos() as u64);
        let attempt = SessionRef { slot: 1, id: 2 };
        let cookie = cookies.give(start, attempt);
        assert!(cookies.knows(start, attempt, &cookie) && cookies.knows(start + COOKIE_SPAN, attempt, &cookie));
        assert!(!cookies.knows(start + 2 * COOKIE_SPAN, attempt, &cookie), "it is too old");
        assert!(!cookies.knows(start, SessionRef { slot: 1, id: 3 }, &cookie));
        assert!(!others.knows(start, attempt, &cookie));
        assert!(!cookies.knows(Time::ZERO, attempt, &[0; COOKIE_BYTES]));
    }
}
