//! Which cipher seals the packets of a session: a choice that both ends agree on in the handshake,
//! inside what it seals.
//!
//! Invariant: a node offers and takes only what it was told to and what this build has.

use std::fmt;
use std::str::FromStr;

/// A cipher for the packets of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cipher {
    /// AEGIS-128L: about twice as fast, and no standard.
    Aegis128L,
    /// AES-256-GCM: what FIPS 140 approves. Only in builds with the feature `aes-256-gcm`.
    Aes256Gcm,
}

/// What a node agrees to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ciphers {
    /// What the peer wants; AEGIS-128L if it takes any too.
    #[default]
    Any,
    /// This one or none.
    Only(Cipher),
}

/// No choice of ciphers.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given:?} is no choice of ciphers; there are aegis-128l, aes-256-gcm and any")]
pub struct BadCipher {
    /// What was given.
    pub given: String,
}

impl Cipher {
    /// All, best first.
    pub const ALL: [Cipher; 2] = [Cipher::Aegis128L, Cipher::Aes256Gcm];

    /// Whether this build has it.
    pub fn is_built(self) -> bool {
        match self {
            Cipher::Aegis128L => true,
            Cipher::Aes256Gcm => cfg!(feature = "aes-256-gcm"),
        }
    }

    /// Its number on the wire.
    pub(crate) fn code(self) -> u8 {
        match self {
            Cipher::Aegis128L => 1,
            Cipher::Aes256Gcm => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Cipher> {
        Cipher::ALL.into_iter().find(|cipher| cipher.code() == code)
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cipher::Aegis128L => "aegis-128l",
            Cipher::Aes256Gcm => "aes-256-gcm",
        })
    }
}

impl fmt::Display for Ciphers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ciphers::Any => f.write_str("any"),
            Ciphers::Only(cipher) => cipher.fmt(f),
        }
    }
}

impl FromStr for Ciphers {
    type Err = BadCipher;

    fn from_str(text: &str) -> Result<Ciphers, BadCipher> {
        let all = std::iter::once(Ciphers::Any).chain(Cipher::ALL.map(Ciphers::Only));
        all.into_iter().find(|choice| choice.to_string() == text).ok_or_else(|| BadCipher { given: text.into() })
    }
}

/// Some ciphers, as an introduction names them: a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Offer(pub(crate) u8);

impl Offer {
    pub(crate) fn of(ciphers: Ciphers) -> Offer {
        let wanted = |cipher: &Cipher| ciphers == Ciphers::Any || ciphers == Ciphers::Only(*cipher);
        let bits = Cipher::ALL.into_iter().filter(wanted).filter(|cipher| cipher.is_built());
        Offer(bits.map(|cipher| cipher.code()).sum())
    }

    pub(crate) fn has(self, cipher: Cipher) -> bool {
        self.0 & cipher.code() != 0
    }

    /// The best that both have.
    pub(crate) fn common(self, other: Offer) -> Option<Cipher> {
        Cipher::ALL.into_iter().find(|cipher| self.has(*cipher) && other.has(*cipher))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_their_names() {
        for choice in [Ciphers::Any, Ciphers::Only(Cipher::Aegis128L), Ciphers::Only(Cipher::Aes256Gcm)] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("AES".parse::<Ciphers>().unwrap_err().to_string().contains("aes-256-gcm"));
    }
}
