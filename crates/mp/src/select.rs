//! Which messages a receive is for, and what is known of one.
//!
//! Invariant: ranks are those of the group that the call is of.

/// Which messages a receive or a probe is for: of whom, and with which tag.
///
/// ```
/// use vmmc_mp::Select;
/// let any = Select::any();
/// let from_two = Select::from(2);
/// let answers_of_two = Select::from(2).tag(7);
/// // Tags whose upper half is 3, whatever the lower half.
/// let of_kind_three = Select::any().tag_bits(3 << 32, !0 << 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select {
    pub(crate) source: Option<u32>,
    pub(crate) tag: u64,
    pub(crate) mask: u64,
}

impl Select {
    /// Messages of all members, with any tag.
    pub const fn any() -> Select {
        Select { source: None, tag: 0, mask: 0 }
    }

    /// Messages of this member, with any tag.
    pub const fn from(source: u32) -> Select {
        Select { source: Some(source), tag: 0, mask: 0 }
    }

    /// Of these, those with this tag.
    pub const fn tag(self, tag: u64) -> Select {
        Select { tag, mask: u64::MAX, ..self }
    }

    /// Of these, those whose tag has these bits where the mask has ones.
    pub const fn tag_bits(self, bits: u64, mask: u64) -> Select {
        Select { tag: bits & mask, mask, ..self }
    }
}

/// What is known of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its sender.
    pub source: u32,
    /// Its tag.
    pub tag: u64,
    /// Its bytes.
    pub len: u64,
}
