//! Explicit congestion notification: queues mark packets instead of dropping them.
//!
//! Invariant: a choice survives its name; a codepoint its two bits. Source: RFC 3168; RFC 9331 for
//! the second of the two ways to ask for marks.

use std::fmt;
use std::str::FromStr;

/// The two lowest bits of the traffic class of a datagram: what its sender has asked for, and
/// whether a queue has met congestion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Codepoint {
    /// Queues drop it, they do not mark it; or nobody has looked.
    #[default]
    NotEct,
    /// Queues may mark it, as much as they like: for senders that reduce with the part of packets
    /// that is marked.
    Ect1,
    /// Queues may mark it where they would have dropped it.
    Ect0,
    /// A queue has marked it: congestion experienced.
    Ce,
}

impl Codepoint {
    /// Of a traffic class, whose other bits count for nothing.
    ///
    /// ```
    /// use vmmc_nic::Codepoint;
    /// assert_eq!(Codepoint::of_class(0b1011_1010), Codepoint::Ect0);
    /// ```
    #[inline]
    pub const fn of_class(class: u8) -> Codepoint {
        match class & 3 {
            0 => Codepoint::NotEct,
            1 => Codepoint::Ect1,
            2 => Codepoint::Ect0,
            _ => Codepoint::Ce,
        }
    }

    /// As the two lowest bits of a traffic class.
    ///
    /// ```
    /// use vmmc_nic::Codepoint;
    /// assert_eq!((Codepoint::Ect0.bits(), Codepoint::Ce.bits()), (0b10, 0b11));
    /// ```
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Codepoint::NotEct => 0,
            Codepoint::Ect1 => 1,
            Codepoint::Ect0 => 2,
            Codepoint::Ce => 3,
        }
    }
}

/// Whether a node asks queues to mark its packets, and what it does about marks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ecn {
    /// It does not ask. What others ask for it tells them all the same.
    Off,
    /// ECT(0): a mark is to it what a loss is (RFC 3168).
    #[default]
    Classic,
    /// ECT(1): it reduces with the part of packets that is marked (RFC 9331, RFC 8257). For
    /// networks whose queues mark early, and keep such traffic apart from other.
    L4s,
}

/// No choice.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given:?} is no way to use marks; there are off, classic and l4s")]
pub struct BadEcn {
    /// What was given.
    pub given: String,
}

impl Ecn {
    /// All of them.
    pub const ALL: [Ecn; 3] = [Ecn::Off, Ecn::Classic, Ecn::L4s];

    /// What packets go out with while it is in use.
    pub const fn codepoint(self) -> Codepoint {
        match self {
            Ecn::Off => Codepoint::NotEct,
            Ecn::Classic => Codepoint::Ect0,
            Ecn::L4s => Codepoint::Ect1,
        }
    }
}

impl fmt::Display for Ecn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ecn::Off => "off",
            Ecn::Classic => "classic",
            Ecn::L4s => "l4s",
        })
    }
}

impl FromStr for Ecn {
    type Err = BadEcn;

    fn from_str(text: &str) -> Result<Ecn, BadEcn> {
        let found = Ecn::ALL.into_iter().find(|ecn| ecn.to_string() == text);
        found.ok_or_else(|| BadEcn { given: text.into() })
    }
}

/// What a session does about marks, on the present path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EcnState {
    /// Its packets ask for marks; the peer has not said yet that they come so.
    Trying,
    /// The peer says how many came with which codepoint, and that adds up.
    InUse,
    /// Its packets do not ask.
    Off(EcnOff),
}

/// Why a session does not ask for marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EcnOff {
    /// It was chosen so.
    Chosen,
    /// Codepoints do not arrive: the path removes them, or the peer's kernel does not tell them.
    Stripped,
    /// Codepoints arrive that were not sent.
    Altered,
    /// Nothing got through while it was tried.
    Unanswered,
}

impl fmt::Display for EcnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EcnState::Trying => "trying",
            EcnState::InUse => "in use",
            EcnState::Off(EcnOff::Chosen) => "off: chosen so",
            EcnState::Off(EcnOff::Stripped) => "off: the path removes it",
            EcnState::Off(EcnOff::Altered) => "off: the path alters it",
            EcnState::Off(EcnOff::Unanswered) => "off: no answer with it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_their_names_and_codepoints_their_bits() {
        for choice in Ecn::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("on".parse::<Ecn>().unwrap_err().to_string().contains("classic and l4s"));
        for class in 0..=255 {
            assert_eq!(Codepoint::of_class(class).bits(), class & 3);
        }
    }
}
