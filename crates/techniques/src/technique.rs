//! Which technique a channel has, and what that means for its users.
//!
//! Invariant: what the functions here say of a technique is what docs/techniques.md says, whose
//! every cell names a test. Source: [SEMANTICS §2].

use crate::protocol::NEVER;

/// How the messages of a channel move. [SEMANTICS §2]
///
/// ```
/// use vmmc_techniques::Technique;
/// assert!(Technique::CopyDma.frees_on_return() && Technique::CopyDma.buffers_arrivals());
/// assert!(!Technique::DirectDma.frees_on_return());
/// assert_eq!("copydma".parse(), Ok(Technique::CopyDma));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Technique {
    /// Programmed I/O: the sender stores into a window of the receiver's, which loads from it. One
    /// message, or one window of a longer one, at a time.
    Pio,
    /// The sender copies into frames of a pool that the receiver has, and the receiver copies out
    /// of them, fragment by fragment, so that both copies go on at once.
    CopyDma,
    /// Straight from memory of the sender to memory of the receiver that both agreed on when the
    /// channel was opened.
    DirectDma,
    /// Straight from any memory of the sender, pinned where it is, to memory that the receiver has
    /// posted before. The sender waits for a posted buffer.
    V2pDma,
    /// As CopyDMA, but neither side copies whole pages: the sender lends those of a
    /// [`PageBuffer`](crate::PageBuffer), which copies a page when it is written meanwhile, and the
    /// receiver exchanges frames for pages of one.
    PexDma,
    /// For each message by its length and alignment: the sender lends the pages of a
    /// [`PageBuffer`](crate::PageBuffer) and copies what is in none, and the receiver copies out of
    /// the frames, or exchanges whole, aligned pages from the length on that it
    /// [says](crate::ReceiverBuilder::exchange_from). PIO is not among them: it is ahead at no
    /// size, for it waits for the receiver after each message.
    Auto,
}

impl Technique {
    /// All of them.
    pub const ALL: [Technique; 6] = [
        Technique::Pio,
        Technique::CopyDma,
        Technique::DirectDma,
        Technique::V2pDma,
        Technique::PexDma,
        Technique::Auto,
    ];

    /// Whether the memory of a message can be used again when a send has returned. Else
    /// [`is_ready`](crate::InFlight::is_ready) tells when (the paper's `DMA-Ready()`).
    pub fn frees_on_return(self) -> bool {
        !matches!(self, Technique::DirectDma | Technique::V2pDma)
    }

    /// Whether messages arrive, and sends return, before the receiver asks for them, as far as the
    /// pool reaches.
    pub fn buffers_arrivals(self) -> bool {
        matches!(self, Technique::CopyDma | Technique::PexDma | Technique::Auto)
    }

    /// From how many bytes of a message on its pages are exchanged, if the receiver chose so many
    /// where it may choose.
    pub(crate) fn exchange_from(self, chosen: u64) -> u64 {
        match self {
            Technique::PexDma => 0,
            Technique::Auto => chosen,
            _ => NEVER,
        }
    }

    /// Its name in documents and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Technique::Pio => "pio",
            Technique::CopyDma => "copydma",
            Technique::DirectDma => "directdma",
            Technique::V2pDma => "v2pdma",
            Technique::PexDma => "pexdma",
            Technique::Auto => "auto",
        }
    }

    /// As the header of a channel has it.
    pub(crate) fn code(self) -> u64 {
        1 + Technique::ALL.iter().position(|one| *one == self).expect("it is one of all") as u64
    }

    pub(crate) fn of_code(code: u64) -> Option<Technique> {
        Technique::ALL.into_iter().find(|one| one.code() == code)
    }
}

impl std::fmt::Display for Technique {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no technique.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no technique; there are {known}", known = Technique::ALL.map(Technique::name).join(", "))]
pub struct UnknownTechnique(pub String);

impl std::str::FromStr for Technique {
    type Err = UnknownTechnique;

    fn from_str(name: &str) -> Result<Technique, UnknownTechnique> {
        let found = Technique::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| UnknownTechnique(name.to_string()))
    }
}
