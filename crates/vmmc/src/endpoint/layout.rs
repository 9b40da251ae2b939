//! What lies where in the memory of an endpoint, and what a message says of itself.
//!
//! ```text
//!   channel, one for each sender      head: 0 taken, 8 frames given back │ 64 quiet │ 128 what it is
//!                                     slots: the last lines of a slot hold data, head, number
//!                                     frames: payloads, each in one or in several side by side
//!   board, one for each endpoint      a byte for each channel, which its sender changes
//! ```
//!
//! Invariant: what is read of a message is a claim of its sender until [`Head::decode`] has held it
//! against the shape. The number of a message is the last word of its slot, and so of the send that
//! brings it (`docs/memory-model.md`, M1). Source: [GMS §2] send ring, receive ring.

use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, ENDPOINT_SLOTS};
use crate::tokens::PayloadToken;
use std::sync::atomic::Ordering;
use vmmc_host::Region;
use vmmc_host::credit::{ChannelWords, Run};
use vmmc_host::region::OutOfBounds;
use vmmc_host::stores::Store;
use vmmc_nic::ExportId;

/// The words by which both ends agree.
pub(super) const AGREED: u64 = 0;
/// The words of [`Welcome`].
pub(super) const WELCOME: u64 = 128;
/// First slot.
pub(super) const SLOTS: u64 = 256;
/// Three cache lines: the longest message with its token, head and number.
pub(super) const SLOT_BYTES: u64 = 192;
/// Head and number.
const TRAILER_BYTES: usize = 16;
/// A token and a tag, before head and number.
const TOKEN_BYTES: usize = 32;
/// In place of a frame: the payload went by token.
const BY_TOKEN: u64 = 0xff;
/// A page: frames begin at one.
const PAGE_BYTES: u64 = 4096;
/// Version of all this. Both ends are of one.
pub(super) const VERSION: u64 = 3;

const _: () = assert!(CONTROL_MESSAGE_BYTES_MAX + TOKEN_BYTES + TRAILER_BYTES <= SLOT_BYTES as usize);
const _: () = assert!(crate::limits::ENDPOINT_FRAMES_MAX < BY_TOKEN);
const _: () = assert!(AGREED + size_of::<ChannelWords>() as u64 <= WELCOME);

/// Sizes of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) frames: u64,
    pub(super) frame_bytes: u64,
}

impl Shape {
    fn first_frame(self) -> u64 {
        (SLOTS + ENDPOINT_SLOTS * SLOT_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Where a frame begins.
    pub(super) fn frame(self, index: u64) -> u64 {
        self.first_frame() + index * self.frame_bytes
    }

    /// Bytes of all frames: of the longest payload.
    pub(super) fn payload_bytes_max(self) -> u64 {
        self.frames * self.frame_bytes
    }

    /// Frames that a payload of so many bytes takes, one at least.
    #[inline]
    pub(super) fn frames_of(self, bytes: u64) -> u64 {
        if bytes <= self.frame_bytes { 1 } else { bytes.div_ceil(self.frame_bytes) }
    }

    /// Those of a payload of so many bytes, from `first` on. None: there are not so many.
    #[inline]
    fn run(self, first: u64, bytes: u64) -> Option<Run> {
        // Of no frames there is no first one, and so no division.
        let count = if first < self.frames { self.frames_of(bytes) } else { return None };
        (count <= self.frames - first).then_some(Run { first, count })
    }

    /// Bytes of a channel.
    pub(super) fn channel_bytes(self) -> u64 {
        self.frame(self.frames)
    }
}

/// Where the slot of a message ends, by its number, from 0.
#[inline]
pub(super) fn slot_end(message: u64) -> u64 {
    SLOTS + (message % ENDPOINT_SLOTS + 1) * SLOT_BYTES
}

/// What the owner tells a new sender, written before the sender can import the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) version: u64,
    /// 0: there is no room for more senders, and this channel takes nothing.
    pub(super) accepted: u64,
    pub(super) shape: Shape,
    /// Export id of the board.
    pub(super) board: u64,
    /// Which byte of the board.
    pub(super) index: u64,
    /// Whoever marks the board notifies.
    pub(super) notify: bool,
}

impl Welcome {
    pub(super) const BYTES: usize = 56;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let Welcome { version, accepted, shape: Shape { frames, frame_bytes }, board, index, notify } = self;
        let mut bytes = [0; Self::BYTES];
        let words = [version, accepted, frames, frame_bytes, board, index, notify.into()];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Welcome {
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        let shape = Shape { frames: word(2), frame_bytes: word(3) };
        Welcome { version: word(0), accepted: word(1), shape, board: word(4), index: word(5), notify: word(6) != 0 }
    }
}

/// What a new sender says, as a record of the endpoint's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Make a channel, under the name that ends in this number.
    Connect { version: u64, number: u64 },
    /// The channel of this number is not needed any more.
    Leave { number: u64 },
}

impl Call {
    pub(super) fn to_bytes(self) -> [u8; 24] {
        let words = match self {
            Call::Connect { version, number } => [1, version, number],
            Call::Leave { number } => [2, VERSION, number],
        };
        let mut bytes = [0; 24];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// None: it makes no sense.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Call> {
        let bytes: &[u8; 24] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        match word(0) {
            1 => Some(Call::Connect { version: word(1), number: word(2) }),
            2 => Some(Call::Leave { number: word(2) }),
            _ => None,
        }
    }
}

/// What a message says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the control message.
    pub(super) control: usize,
    pub(super) payload: Payload,
}

/// Where the payload of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    None,
    /// In frames: which, as many as its bytes need, and these.
    Frames(Run, u64),
    /// Of so many bytes, in the buffer of a token, if that has let it in.
    ByToken(u64),
}

impl Head {
    #[inline]
    pub(super) fn encode(self) -> u64 {
        let (frame, bytes) = match self.payload {
            Payload::None => (0, 0),
            Payload::Frames(run, bytes) => (run.first + 1, bytes),
            Payload::ByToken(bytes) => (BY_TOKEN, bytes),
        };
        self.control as u64 | frame << 8 | bytes << 16
    }

    /// None: no sender of ours wrote this.
    #[inline]
    pub(super) fn decode(word: u64, shape: Shape) -> Option<Head> {
        let (control, frame, bytes) = ((word & 0xff) as usize, word >> 8 & 0xff, word >> 16);
        let payload = match frame {
            0 if bytes == 0 => Payload::None,
            BY_TOKEN => Payload::ByToken(bytes),
            0 => return None,
            _ => Payload::Frames(shape.run(frame - 1, bytes)?, bytes),
        };
        (control <= CONTROL_MESSAGE_BYTES_MAX).then_some(Head { control, payload })
    }

    /// Bytes of the slot that it takes, at its end.
    #[inline]
    pub(super) fn slot_bytes(self) -> u64 {
        let token = if matches!(self.payload, Payload::ByToken(_)) { TOKEN_BYTES } else { 0 };
        (self.control.next_multiple_of(8) + token + TRAILER_BYTES) as u64
    }

    /// Where token and tag begin, in bytes before the end of the slot.
    pub(super) const TOKEN_BEFORE_END: u64 = (TOKEN_BYTES + TRAILER_BYTES) as u64;

    /// What stands there.
    pub(super) fn token_from(bytes: &[u8; 32]) -> (PayloadToken, u64) {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
        (PayloadToken { table: ExportId::from_u64(word(0)), index: word(3) as u32, key: word(1) }, word(2))
    }

    fn token_to(token: PayloadToken, tag: u64) -> [u8; TOKEN_BYTES] {
        let mut bytes = [0; TOKEN_BYTES];
        let words = [token.table.to_u64(), token.key, tag, token.index.into()];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        bytes
    }
}

/// Stores a message in the slot that ends there: its control message in two parts, of which the
/// first is often none; see [`Image::fill`]. Its number is stored last. What is between them and
/// the words at the end, less than a word, stays as it was.
#[inline(always)]
pub(super) fn store<const N: usize>(
    region: &Region,
    end: u64,
    (first, rest): (&[u8; N], &[u8]),
    head: Head,
    token: Option<(PayloadToken, u64)>,
    number: u64,
) -> Result<(), OutOfBounds> {
    let start = end - head.slot_bytes();
    if N > 0 {
        region.write_unordered(Store::Cached, start, first)?;
    }
    region.write_unordered(Store::Cached, start + N as u64, rest)?;
    if let Some((token, tag)) = token {
        region.write_unordered(Store::Cached, end - Head::TOKEN_BEFORE_END, &Head::token_to(token, tag))?;
    }
    region.word(end - 16)?.store(head.encode(), Ordering::Relaxed);
    region.word(end - 8)?.store(number, Ordering::Release);
    Ok(())
}

/// A message as it lies in its slot, for those who do not map the channel.
pub(super) struct Image {
    bytes: [u8; SLOT_BYTES as usize],
    len: usize,
}

impl Image {
    /// An empty one, to be [filled](Self::fill) where it is.
    #[inline(always)]
    pub(super) fn new() -> Image {
        Image { bytes: [0; SLOT_BYTES as usize], len: 0 }
    }

    /// `number`: from 1; `token`, with its tag, if the payload went by one.
    #[inline(always)]
    pub(super) fn fill(&mut self, control: &[u8], head: Head, token: Option<(PayloadToken, u64)>, number: u64) {
        let (bytes, len) = (&mut self.bytes, head.slot_bytes() as usize);
        self.len = len;
        bytes[..control.len()].copy_from_slice(control);
        if let Some((token, tag)) = token {
            bytes[len - TOKEN_BYTES - 16..len - 16].copy_from_slice(&Head::token_to(token, tag));
        }
        bytes[len - 16..len - 8].copy_from_slice(&head.encode().to_le_bytes());
        bytes[len - 8..len].copy_from_slice(&number.to_le_bytes());
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { frames: 3, frame_bytes: 4096 };

    #[test]
    fn a_message_comes_out_as_it_went_in_and_ends_with_its_number() {
        for control in [0, 1, 8, 47, 48, CONTROL_MESSAGE_BYTES_MAX] {
            let frames = |first, bytes| Payload::Frames(SHAPE.run(first, bytes).unwrap(), bytes);
            for payload in [
                Payload::None,
                frames(0, 0),
                frames(2, 4096),
                frames(1, 4097),
                frames(0, 3 * 4096),
                Payload::ByToken(1 << 30),
            ] {
                let head = Head { control, payload };
                let token = PayloadToken { table: ExportId { slot: 3, generation: 4 }, index: 5, key: 6 << 60 };
                let token = matches!(payload, Payload::ByToken(_)).then_some((token, 8 << 50));
                let mut image = Image::new();
                image.fill(&vec![7; control], head, token, 9);
                let bytes = image.bytes();
                assert_eq!(bytes.len() as u64, head.slot_bytes());
                assert!(head.slot_bytes() <= SLOT_BYTES && head.slot_bytes() % 8 == 0);
                // Stored in a mapped channel it is the same.
                let region = Region::create(4096).unwrap();
                let mut stored = vec![0; bytes.len()];
                let all = vec![7; control];
                match all.split_first_chunk::<16>() {
                    Some(parts) => store(&region, 192, parts, head, token, 9).unwrap(),
                    None => store(&region, 192, (&[], &all), head, token, 9).unwrap(),
                }
                region.read(192 - bytes.len() as u64, &mut stored).unwrap();
                assert_eq!(stored, bytes);
                assert_eq!(bytes[bytes.len() - 8..], 9u64.to_le_bytes());
                let word = u64::from_le_bytes(bytes[bytes.len() - 16..bytes.len() - 8].try_into().unwrap());
                assert_eq!(Head::decode(word, SHAPE), Some(head));
                assert!(bytes[..control].iter().all(|byte| *byte == 7));
                if let Some(token) = token {
                    let at = bytes.len() - Head::TOKEN_BEFORE_END as usize;
                    assert_eq!(Head::token_from(&bytes[at..at + 32].try_into().unwrap()), token);
                }
            }
        }
    }

    #[test]
    fn wild_heads_are_refused_or_within_the_shape() {
        let mut rng = vmmc_utlb::Rng::new(5);
        for round in 0..200_000 {
            // Most bits of a wild word are out of every bound.
            let word = if round % 2 == 0 { rng.below(1 << 30) } else { rng.below(u64::MAX) };
            let Some(head) = Head::decode(word, SHAPE) else { continue };
            assert!(head.control <= CONTROL_MESSAGE_BYTES_MAX && head.slot_bytes() <= SLOT_BYTES);
            if let Payload::Frames(run, bytes) = head.payload {
                assert!(run.count > 0 && run.first + run.count <= 3);
                assert!(bytes <= run.count * 4096 && (run.count == 1 || bytes > (run.count - 1) * 4096));
            }
            assert_eq!(head.encode(), word);
        }
    }

    #[test]
    fn payloads_take_as_many_frames_as_they_need() {
        let run = |first, bytes| SHAPE.run(first, bytes).map(|run| run.count);
        assert_eq!([run(0, 0), run(2, 1), run(2, 4096), run(1, 4097)], [Some(1), Some(1), Some(1), Some(2)]);
        assert_eq!([run(0, 3 * 4096), run(1, 2 * 4096)], [Some(3), Some(2)]);
        assert_eq!([run(2, 4097), run(0, 3 * 4096 + 1), run(3, 0), run(0, u64::MAX)], [None; 4]);
        let none = Shape { frames: 0, frame_bytes: 0 };
        assert_eq!((none.run(0, 0), none.run(0, 9), none.payload_bytes_max()), (None, None, 0));
    }

    #[test]
    fn slots_and_frames_lie_beside_each_other() {
        assert_eq!(slot_end(0), SLOTS + SLOT_BYTES);
        assert_eq!(slot_end(ENDPOINT_SLOTS), slot_end(0));
        assert!(slot_end(ENDPOINT_SLOTS - 1) <= SHAPE.frame(0));
        assert_eq!(SHAPE.frame(1) - SHAPE.frame(0), 4096);
        assert_eq!(SHAPE.channel_bytes(), SHAPE.frame(3));
    }

    #[test]
    fn what_ends_say_to_each_other_comes_out_as_it_went_in() {
        let welcome = Welcome { version: 1, accepted: 1, shape: SHAPE, board: 7 << 32, index: 12, notify: true };
        assert_eq!(Welcome::from_bytes(&welcome.to_bytes()), welcome);
        for call in [Call::Connect { version: 3, number: 4 }, Call::Leave { number: u64::MAX }] {
            assert_eq!(Call::from_bytes(&call.to_bytes()), Some(call));
        }
        assert_eq!(Call::from_bytes(&[0; 24]), None);
        assert_eq!(Call::from_bytes(b"hello"), None);
    }
}
