//! What the two ends of a channel say to each other, and what each knows of the other: pure.
//!
//! ```text
//!  memory of the receiver, which the sender imports
//!  ┌────────┬─────────┬────────┬───────────────┬────────┬────────┬──────────────────┐
//!  │ header │ notices │ posted │ table of      │ window │ agreed │ frames of the    │
//!  │        │         │        │ frames        │        │ memory │ pool, and pages  │
//!  └────────┴─────────┴────────┴───────────────┴────────┴────────┴──────────────────┘
//!   receiver  sender    receiver  receiver       sender    sender   sender
//!   writes    writes
//! ```
//!
//! A message is one fragment or more, each with a notice. A notice's last word is its number, so by
//! M1 of docs/memory-model.md it comes last, and by M2 after the bytes that it tells of. Numbers,
//! frames and posted buffers are counted from the beginning and never wrap.
//!
//! Invariant: what the other side wrote is copied once and then checked against what this side
//! knows, before anything is done with it; what does not fit is a [`Garbled`]. Source:
//! [SEMANTICS §2].

use crate::Technique;
use crate::limits::{CHANNEL_BYTES_MAX, MESSAGE_BYTES_MAX, NOTICES, POSTED_MAX};
use std::collections::VecDeque;
use vmmc_host::region::PAGE_BYTES;

pub(crate) const PAGE: u64 = PAGE_BYTES as u64;
/// First word of a channel: what it is, and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"vmmctec2");
/// Words of the header that say how a channel is laid out.
pub(crate) const HEADER_WORDS: usize = 7;
/// Length from which on pages are exchanged of a channel that exchanges none: more than a message
/// has.
pub(crate) const NEVER: u64 = u64::MAX;
/// Where a sender claims the channel.
pub(crate) const CLAIM_AT: u64 = 64;
/// Where the receiver's words begin: fragments taken, frames given back, buffers posted. A line of
/// their own.
pub(crate) const HEARD_AT: u64 = 128;
pub(crate) const HEARD_WORDS: usize = 3;
/// Where the receiver counts changes of its table of frames. A line of its own.
pub(crate) const VERSION_AT: u64 = 192;
pub(crate) const NOTICES_AT: u64 = PAGE;
pub(crate) const NOTICE_BYTES: u64 = 64;
const POSTED_AT: u64 = 2 * PAGE;
pub(crate) const POSTED_BYTES: u64 = 32;
const TABLE_AT: u64 = 3 * PAGE;

const _: () = assert!(HEADER_WORDS as u64 * 8 <= CLAIM_AT);
const _: () = assert!(NOTICES * NOTICE_BYTES <= PAGE && POSTED_MAX as u64 * POSTED_BYTES <= PAGE);

/// What the other side wrote that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// A notice of no kind, or of one that the channel has no use for.
    #[error("a notice of kind {0}")]
    Kind(u64),
    /// A length that cannot be.
    #[error("a message of {0} bytes")]
    Length(u64),
    /// A fragment that is not the next one of its message.
    #[error("a fragment at byte {at} of a message where byte {expected} was next")]
    Order {
        /// Where it says it is.
        at: u64,
        /// Where the message is.
        expected: u64,
    },
    /// A fragment longer than its message, or than its place.
    #[error("a fragment of {len} bytes where there is room for {room}")]
    Fragment {
        /// Its bytes.
        len: u64,
        /// Bytes that are left.
        room: u64,
    },
    /// Frames, or a posted buffer, that are not the next ones.
    #[error("place {place} where {expected} was next")]
    Place {
        /// What it says.
        place: u64,
        /// What is next.
        expected: u64,
    },
    /// A count that went back, or ahead of what there is.
    #[error("{count} taken or given back, which should lie between {from} and {to}")]
    Count {
        /// What the other side says.
        count: u64,
        /// Least that it can be.
        from: u64,
        /// Most that it can be.
        to: u64,
    },
    /// A frame on a page that the channel does not have.
    #[error("a frame on page {page} of memory whose frames are on pages {from} to {to}")]
    Page {
        /// Its page.
        page: u32,
        /// First page of frames.
        from: u64,
        /// The page after the last one.
        to: u64,
    },
}

/// Sizes of the parts of a channel, bytes but for frames and pages, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) technique: Technique,
    pub(crate) window: u64,
    pub(crate) agreed: u64,
    /// Frames of the pool.
    pub(crate) pool: u64,
    /// Pages that the receiver has for its own use.
    pub(crate) own: u64,
    /// Bytes of a message from which on the receiver exchanges whole pages of it.
    pub(crate) exchange_from: u64,
}

impl Layout {
    /// Whether its parts are within their bounds, and whole pages; all bytes if so.
    pub(crate) fn checked_bytes(&self) -> Option<u64> {
        let parts = [self.window, self.agreed, self.pool.checked_mul(PAGE)?, self.own.checked_mul(PAGE)?];
        let fits = parts.iter().all(|part| *part <= CHANNEL_BYTES_MAX && part % PAGE == 0);
        let fits = fits && self.window > 0 && self.pool > 0;
        fits.then(|| self.bytes()).filter(|bytes| *bytes <= CHANNEL_BYTES_MAX)
    }

    fn bytes(&self) -> u64 {
        self.pages_at() + (self.pool + self.own) * PAGE
    }

    pub(crate) fn table_at(&self) -> u64 {
        TABLE_AT
    }

    pub(crate) fn window_at(&self) -> u64 {
        self.table_at() + (self.pool * 4).next_multiple_of(PAGE)
    }

    pub(crate) fn agreed_at(&self) -> u64 {
        self.window_at() + self.window
    }

    fn pages_at(&self) -> u64 {
        self.agreed_at() + self.agreed
    }

    /// The page that the first frame is on at the beginning, counted from the start of the channel.
    pub(crate) fn first_page(&self) -> u64 {
        self.pages_at() / PAGE
    }

    pub(crate) fn end_page(&self) -> u64 {
        self.first_page() + self.pool + self.own
    }

    /// The pages that the receiver has for its own use at the beginning.
    pub(crate) fn own_pages(&self) -> Vec<u32> {
        (self.first_page() + self.pool..self.end_page()).map(|page| page as u32).collect()
    }

    /// The pages that the frames are on at the beginning.
    pub(crate) fn first_table(&self) -> Vec<u32> {
        (self.first_page()..self.first_page() + self.pool).map(|page| page as u32).collect()
    }

    pub(crate) fn encode(&self) -> [u64; HEADER_WORDS] {
        [MAGIC, self.technique.code(), self.window, self.agreed, self.pool, self.own, self.exchange_from]
    }

    /// What a header says, if it can be that of a channel of so many bytes.
    pub(crate) fn decode(words: [u64; HEADER_WORDS], len: u64) -> Result<Layout, &'static str> {
        let [magic, code, window, agreed, pool, own, exchange_from] = words;
        if magic != MAGIC {
            return Err("it does not begin like one");
        }
        let technique = Technique::of_code(code).ok_or("its technique is not known")?;
        if exchange_from != technique.exchange_from(exchange_from) {
            return Err("its technique exchanges other pages");
        }
        let layout = Layout { technique, window, agreed, pool, own, exchange_from };
        match layout.checked_bytes() {
            Some(bytes) if bytes == len => Ok(layout),
            _ => Err("its parts do not fit its length"),
        }
    }

    /// Checks pages of frames that came from the receiver.
    pub(crate) fn check_pages<'p>(&self, pages: impl IntoIterator<Item = &'p u32>) -> Result<(), Garbled> {
        let (from, to) = (self.first_page(), self.end_page());
        match pages.into_iter().find(|page| !(from..to).contains(&u64::from(**page))) {
            Some(page) => Err(Garbled::Page { page: *page, from, to }),
            None => Ok(()),
        }
    }

    /// Whether the receiver may exchange frames.
    pub(crate) fn may_exchange(&self) -> bool {
        self.exchange_from != NEVER
    }

    /// Whether it does so with those of a message of so many bytes.
    #[inline]
    pub(crate) fn exchanges(&self, total: u64) -> bool {
        total >= self.exchange_from
    }

    /// Whether the technique of the channel moves fragments of this kind.
    fn allows(&self, kind: FragmentKind) -> bool {
        match kind {
            FragmentKind::Abandon => true,
            FragmentKind::Window => self.technique == Technique::Pio,
            FragmentKind::Frames => matches!(self.technique, Technique::CopyDma | Technique::PexDma | Technique::Auto),
            FragmentKind::Agreed => self.technique == Technique::DirectDma,
            FragmentKind::Posted => self.technique == Technique::V2pDma,
        }
    }
}

/// Where the bytes of a fragment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FragmentKind {
    /// In the window.
    Window,
    /// In frames, from `place` on.
    Frames,
    /// In agreed memory, from byte `place` on.
    Agreed,
    /// In the posted buffer with number `place`.
    Posted,
    /// Nowhere: the sender gives up the message that it is at.
    Abandon,
}

const KINDS: [FragmentKind; 5] =
    [FragmentKind::Window, FragmentKind::Frames, FragmentKind::Agreed, FragmentKind::Posted, FragmentKind::Abandon];

/// A part of a message, as its notice says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) kind: FragmentKind,
    /// Bytes of the message.
    pub(crate) total: u64,
    /// First byte in the message.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
    pub(crate) place: u64,
}

impl Fragment {
    pub(crate) fn abandon() -> Fragment {
        Fragment { kind: FragmentKind::Abandon, total: 0, at: 0, len: 0, place: 0 }
    }

    /// Where the notice with this number lies.
    pub(crate) fn notice_at(number: u64) -> u64 {
        NOTICES_AT + number % NOTICES * NOTICE_BYTES
    }

    /// The notice of fragment `number`, from 0. Its last word is never 0, which memory holds at
    /// first.
    pub(crate) fn encode(&self, number: u64) -> [u8; NOTICE_BYTES as usize] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).expect("it is one of them") as u64 + 1;
        let words = [kind, self.total, self.at, self.len, self.place, 0, 0, number + 1];
        let mut bytes = [0; NOTICE_BYTES as usize];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; NOTICE_BYTES as usize]) -> Result<Fragment, Garbled> {
        let [kind, total, at, len, place, ..] = words::<8>(bytes);
        let known = kind.checked_sub(1).and_then(|index| KINDS.get(index as usize));
        Ok(Fragment { kind: *known.ok_or(Garbled::Kind(kind))?, total, at, len, place })
    }

    /// Frames that the bytes take.
    pub(crate) fn frames(&self) -> u64 {
        if self.kind == FragmentKind::Frames { self.len.div_ceil(PAGE) } else { 0 }
    }
}

/// A receive buffer that is posted: where a message may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posting {
    /// Which of the receiver's memories, by the order in which they were made.
    pub(crate) memory: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Posting {
    /// Where posting `number` lies.
    pub(crate) fn at(number: u64) -> u64 {
        POSTED_AT + number % POSTED_MAX as u64 * POSTED_BYTES
    }

    pub(crate) fn encode(&self, number: u64) -> [u8; POSTED_BYTES as usize] {
        let mut bytes = [0; POSTED_BYTES as usize];
        let words = [self.memory, self.offset, self.len, number];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; POSTED_BYTES as usize], number: u64) -> Result<Posting, Garbled> {
        let [memory, offset, len, said] = words(bytes);
        if said != number {
            return Err(Garbled::Place { place: said, expected: number });
        }
        Ok(Posting { memory, offset, len })
    }
}

/// Words from bytes.
///
/// # Panics
/// If the bytes are not just those words.
pub(crate) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    assert_eq!(bytes.len(), N * 8, "bytes of {N} words");
    let mut words = [0; N];
    let each = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    words.iter_mut().zip(each).for_each(|(to, word)| *to = word);
    words
}

/// What a sender knows of its channel.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pool: u64,
    /// Fragments sent; `taken <= sent <= taken + NOTICES`.
    sent: u64,
    taken: u64,
    /// Frames filled; `given_back <= filled <= given_back + pool`.
    filled: u64,
    given_back: u64,
    /// Buffers that were posted, and filled; `filled_posts <= posted <= filled_posts + POSTED_MAX`.
    posted: u64,
    filled_posts: u64,
}

impl Outgoing {
    pub(crate) fn new(layout: &Layout) -> Outgoing {
        Outgoing { pool: layout.pool, sent: 0, taken: 0, filled: 0, given_back: 0, posted: 0, filled_posts: 0 }
    }

    /// Number of the next fragment, if there is room for its notice.
    pub(crate) fn number(&self) -> Option<u64> {
        (self.sent - self.taken < NOTICES).then_some(self.sent)
    }

    /// Whether the receiver has taken all that was sent.
    pub(crate) fn all_taken(&self) -> bool {
        self.sent == self.taken
    }

    /// Frames that can be filled, and which one is the next.
    pub(crate) fn frames(&self) -> (u64, u64) {
        (self.pool - (self.filled - self.given_back), self.filled)
    }

    /// Number of the next posted buffer, if there is one.
    pub(crate) fn posting(&self) -> Option<u64> {
        (self.filled_posts < self.posted).then_some(self.filled_posts)
    }

    pub(crate) fn send(&mut self, fragment: &Fragment) {
        self.sent += 1;
        self.filled += fragment.frames();
        self.filled_posts += u64::from(fragment.kind == FragmentKind::Posted);
    }

    /// What the receiver says it has taken, given back and posted; whether frames came back.
    pub(crate) fn hear(&mut self, [taken, given_back, posted]: [u64; HEARD_WORDS]) -> Result<bool, Garbled> {
        let check = |count: u64, from: u64, to: u64| {
            if (from..=to).contains(&count) { Ok(()) } else { Err(Garbled::Count { count, from, to }) }
        };
        check(taken, self.taken, self.sent)?;
        check(given_back, self.given_back, self.filled)?;
        check(posted, self.posted, self.filled_posts + POSTED_MAX as u64)?;
        let came_back = given_back > self.given_back;
        (self.taken, self.given_back, self.posted) = (taken, given_back, posted);
        Ok(came_back)
    }
}

/// What a receiver knows of its channel.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    layout: Layout,
    taken: u64,
    /// Frames given back, which is the first frame of the next fragment.
    given_back: u64,
    /// Where the message is whose fragments are coming: next byte, and all its bytes.
    message: Option<(u64, u64)>,
    /// Lengths of buffers that are posted; the first one has number `arrived`.
    posted: VecDeque<u64>,
    arrived: u64,
}

impl Incoming {
    pub(crate) fn new(layout: Layout) -> Incoming {
        Incoming { layout, taken: 0, given_back: 0, message: None, posted: VecDeque::new(), arrived: 0 }
    }

    /// Number of the next fragment.
    pub(crate) fn number(&self) -> u64 {
        self.taken
    }

    pub(crate) fn given_back(&self) -> u64 {
        self.given_back
    }

    /// Number of the next buffer to be posted, if there is room for it.
    pub(crate) fn posting(&self) -> Option<u64> {
        (self.posted.len() < POSTED_MAX).then_some(self.posted())
    }

    /// A buffer of so many bytes was posted.
    pub(crate) fn post(&mut self, len: u64) {
        self.posted.push_back(len);
    }

    /// Buffers posted from the beginning on.
    pub(crate) fn posted(&self) -> u64 {
        self.arrived + self.posted.len() as u64
    }

    /// Whether a message has come in part.
    pub(crate) fn is_amid(&self) -> bool {
        self.message.is_some()
    }

    /// Whether this can be the next fragment.
    pub(crate) fn check(&self, fragment: &Fragment) -> Result<(), Garbled> {
        let Fragment { kind, total, at, len, place } = *fragment;
        if !self.layout.allows(kind) {
            return Err(Garbled::Kind(kind as u64 + 1));
        }
        if kind == FragmentKind::Abandon {
            return Ok(());
        }
        let (expected, length) = self.message.unwrap_or((0, total));
        if total > MESSAGE_BYTES_MAX || total != length {
            return Err(Garbled::Length(total));
        }
        if at != expected {
            return Err(Garbled::Order { at, expected });
        }
        let must_be = match kind {
            FragmentKind::Frames => self.given_back,
            FragmentKind::Agreed => place,
            FragmentKind::Posted => self.arrived,
            FragmentKind::Window | FragmentKind::Abandon => 0,
        };
        if place != must_be {
            return Err(Garbled::Place { place, expected: must_be });
        }
        let there = match kind {
            FragmentKind::Window => self.layout.window,
            FragmentKind::Frames => self.layout.pool * PAGE,
            // Past the end there is no room either, not even for nothing.
            FragmentKind::Agreed => self.layout.agreed.checked_sub(place).ok_or(Garbled::Fragment { len, room: 0 })?,
            // None is posted: there is no room, not even for nothing.
            FragmentKind::Posted => *self.posted.front().ok_or(Garbled::Kind(kind as u64 + 1))?,
            FragmentKind::Abandon => 0,
        };
        let room = there.min(total - at);
        let is_empty = len == 0 && total > 0;
        let in_parts = matches!(kind, FragmentKind::Agreed | FragmentKind::Posted) && len != total;
        if len > room || is_empty || in_parts {
            return Err(Garbled::Fragment { len, room });
        }
        Ok(())
    }

    /// Takes a fragment that was checked; all bytes of its message if that is the last one.
    pub(crate) fn take(&mut self, fragment: &Fragment) -> Option<u64> {
        self.taken += 1;
        self.given_back += fragment.frames();
        if fragment.kind == FragmentKind::Abandon {
            self.message = None;
            return None;
        }
        if fragment.kind == FragmentKind::Posted {
            self.posted.pop_front();
            self.arrived += 1;
        }
        let (end, total) = (fragment.at + fragment.len, fragment.total);
        self.message = (end < total).then_some((end, total));
        self.message.is_none().then_some(total)
    }
}

#[cfg(test)]
mod tests;
