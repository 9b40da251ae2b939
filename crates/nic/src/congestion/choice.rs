//! Which congestion control a node's sessions have: each side of a session chooses for what it
//! sends.
//!
//! Invariant: a choice survives its name.

use std::fmt;
use std::str::FromStr;

/// How a node decides what may be under way to a peer, and how fast it goes out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CongestionControl {
    /// A model of the path, after BBR: rate and round trip are measured, losses bound it.
    #[default]
    Bbr,
    /// CUBIC with HyStart++: grows until something is lost, as most of TCP does.
    Cubic,
}

/// No congestion control.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given:?} is no congestion control; there are bbr and cubic")]
pub struct BadCongestionControl {
    /// What was given.
    pub given: String,
}

impl CongestionControl {
    /// All of them.
    pub const ALL: [CongestionControl; 2] = [CongestionControl::Bbr, CongestionControl::Cubic];
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CongestionControl::Bbr => "bbr",
            CongestionControl::Cubic => "cubic",
        })
    }
}

impl FromStr for CongestionControl {
    type Err = BadCongestionControl;

    fn from_str(text: &str) -> Result<CongestionControl, BadCongestionControl> {
        let found = CongestionControl::ALL.into_iter().find(|control| control.to_string() == text);
        found.ok_or_else(|| BadCongestionControl { given: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_their_names() {
        for choice in CongestionControl::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("reno".parse::<CongestionControl>().unwrap_err().to_string().contains("bbr and cubic"));
    }
}
