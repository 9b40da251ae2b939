//! Doors for fuzz targets and for tests: what the two ends of an endpoint read of each other,
//! without a node, and a channel that anything can be written to.
//!
//! Invariant: what is taken lies within the channel, and what decodes encodes to what it came from.

use super::Message;
use super::channel::ChannelMemory;
use super::connection::check;
use super::frame::Frame;
use super::layout::{Call, Head, Image, Payload, Shape, VERSION, Welcome, slot_end};
use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, ENDPOINT_FRAMES_MAX, FRAME_BYTES_MAX};
use crate::tokens::{PayloadToken, TokenRefused};
use std::cell::RefCell;
use vmmc_host::credit::Run;
use vmmc_host::{Region, RegionError};

/// A channel as its owner has it.
pub struct Inbox {
    region: Region,
    memory: ChannelMemory,
    shape: Shape,
}

/// What was there.
#[derive(Debug)]
pub enum Taken {
    /// No message.
    Nothing,
    /// One.
    Message(Box<Message>),
    /// What no sender of ours writes.
    Nonsense,
}

thread_local! {
    /// Memory of inboxes that were dropped: making it takes longer than all else.
    static SPARE: RefCell<Vec<Region>> = const { RefCell::new(Vec::new()) };
}

impl Inbox {
    /// An empty one. Frames of those before it are not to be read any more.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn new(frames: u64, frame_bytes: u64) -> Result<Inbox, RegionError> {
        let shape = Shape { frames, frame_bytes };
        let len = shape.channel_bytes();
        let spare = SPARE.with_borrow_mut(Vec::pop).filter(|spare| spare.len_bytes() == len);
        let region = match spare {
            Some(spare) => {
                spare.write(0, &vec![0; len as usize]).expect("it is that long");
                spare
            }
            None => Region::create(len)?,
        };
        Ok(Inbox { memory: ChannelMemory::new(region.clone(), shape), region, shape })
    }

    /// Writes bytes as a hostile sender does; those that reach past the channel are left out.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let room = self.region.len_bytes().saturating_sub(at);
        let some = &bytes[..bytes.len().min(room as usize)];
        self.region.write(at, some).expect("what reaches past the channel was left out");
    }

    /// Sends as a connection does, into the first frames, which nobody else has.
    ///
    /// # Panics
    /// If control message or payload are too long.
    pub fn send(&self, control: &[u8], payload: Option<&[u8]>) {
        let bytes = payload.map_or(0, <[u8]>::len) as u64;
        let run = Run { first: 0, count: self.shape.frames_of(bytes) };
        let place = payload.map_or(Payload::None, |_| Payload::Frames(run, bytes));
        self.region.write(self.shape.frame(0), payload.unwrap_or_default()).expect("a payload fits its frames");
        let head = Head { control: control.len(), payload: place };
        let mut image = Image::new();
        image.fill(control, head, None, self.memory.taken() + 1);
        self.write(slot_end(self.memory.taken()) - head.slot_bytes(), image.bytes());
    }

    /// Takes the next message as an endpoint does. Nonsense stays where it is.
    pub fn take(&mut self) -> Taken {
        if !self.memory.has_message() {
            return Taken::Nothing;
        }
        let mut message = Box::new(Message::default());
        self.memory.take(None, &mut message).map_or(Taken::Nonsense, |()| Taken::Message(message))
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push(self.region.clone()));
    }
}

/// Throws bytes at everything that one end reads of the other; how many messages were among them.
pub fn everything(data: &[u8]) -> usize {
    const SHAPE: Shape = Shape { frames: 3, frame_bytes: 64 };
    data.chunks_exact(8).for_each(|word| head(u64::from_le_bytes(word.try_into().expect("eight bytes")), SHAPE));
    if let Some(call) = Call::from_bytes(data) {
        assert_eq!(Call::from_bytes(&call.to_bytes()), Some(call));
    }
    if let Some(bytes) = data.first_chunk() {
        welcome(&Welcome::from_bytes(bytes));
    }
    if let Some(bytes) = data.first_chunk() {
        assert_eq!(PayloadToken::from_bytes(bytes).to_bytes(), *bytes);
    }
    channel(data, SHAPE)
}

fn head(word: u64, shape: Shape) {
    let Some(head) = Head::decode(word, shape) else { return };
    assert!(head.control <= CONTROL_MESSAGE_BYTES_MAX && head.slot_bytes() <= super::layout::SLOT_BYTES);
    if let Payload::Frames(run, bytes) = head.payload {
        assert!(run.first + run.count <= shape.frames && bytes <= run.count * shape.frame_bytes);
    }
    assert_eq!(head.encode(), word);
}

fn welcome(welcome: &Welcome) {
    const BYTES: u64 = 1 << 20;
    assert_eq!(Welcome::from_bytes(&welcome.to_bytes()), *welcome);
    if check("fuzzed", welcome, BYTES).is_ok() {
        let Shape { frames, frame_bytes } = welcome.shape;
        assert!(welcome.version == VERSION && welcome.accepted != 0);
        assert!(frames <= ENDPOINT_FRAMES_MAX && frame_bytes <= FRAME_BYTES_MAX);
        assert!((0..=frames).all(|frame| welcome.shape.frame(frame) <= BYTES));
    }
}

/// The bytes say what a sender writes: each piece begins with what it is.
fn channel(mut data: &[u8], shape: Shape) -> usize {
    let mut inbox = Inbox::new(shape.frames, shape.frame_bytes).expect("memory for a small channel");
    let (mut held, mut messages) = (Vec::<Frame>::new(), 0);
    while let Some(([kind, place], rest)) = data.split_first_chunk() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(kind >> 2)));
        data = rest;
        let end = slot_end(inbox.memory.taken());
        match kind & 3 {
            // Anywhere near where the next message is looked for.
            0 => inbox.write((end + 128).saturating_sub(u64::from(*place) * 2), piece),
            // At the head of the channel.
            1 => inbox.write(u64::from(*place), piece),
            // A message that is there, whatever its head says.
            2 => {
                let cut = piece.len().min(end as usize - 8);
                inbox.write(end - 8 - cut as u64, &piece[..cut]);
                inbox.write(end - 8, &(inbox.memory.taken() + 1).to_le_bytes());
            }
            _ => drop((!held.is_empty()).then(|| held.swap_remove(usize::from(*place) % held.len()))),
        }
        if place % 4 == 3 && inbox.memory.has_message() {
            let mut memory = [0; CONTROL_MESSAGE_BYTES_MAX];
            let taken = inbox.memory.take_split(|_: &[u8; 16], len| {
                assert!(len <= CONTROL_MESSAGE_BYTES_MAX - 16);
                memory.get_mut(..usize::from(*place) / 2)
            });
            messages += usize::from(taken);
        }
        if let Taken::Message(mut message) = inbox.take() {
            messages += 1;
            assert!(message.control().len() <= CONTROL_MESSAGE_BYTES_MAX);
            assert!(message.by_token().is_none_or(|by| by.len == Err(TokenRefused::Wrong)));
            if let Some(frame) = message.take_payload() {
                assert!(frame.len() <= shape.payload_bytes_max() && frame.to_vec().len() as u64 == frame.len());
                assert!(frame.read(frame.len(), &mut [0]).is_err());
                held.push(frame);
            }
            let frames: u64 = held.iter().map(|frame| shape.frames_of(frame.len())).sum();
            assert!(frames <= shape.frames, "a frame is held twice");
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wild_channels_give_nothing_or_messages_within_their_bounds() {
        let (mut rng, mut messages) = (vmmc_utlb::Rng::new(21), 0);
        for _ in 0..2_000 {
            let data: Vec<u8> = std::iter::repeat_with(|| {
                // Mostly messages that are there, with heads that make sense.
                let head = [rng.below(140), rng.below(5), rng.below(200), 0, 0, 0, 0, 0];
                let wild = rng.below(4) == 0;
                let head = head.map(|byte| if wild { rng.below(256) } else { byte } as u8);
                // Payloads of several frames find room when others are given back.
                let kind = [2, 2, 2, 3, 3, rng.below(4) as u8][rng.below(6) as usize];
                [&[kind | 8 << 2, rng.below(256) as u8][..], &head].concat()
            })
            .take(20)
            .flatten()
            .collect();
            messages += everything(&data);
        }
        assert!(messages > 5_000, "{messages}");
    }

    #[test]
    fn wild_bytes_are_refused_or_encode_to_themselves() {
        let mut rng = vmmc_utlb::Rng::new(22);
        for round in 0..5_000 {
            // Words of a welcome, most of them in bounds, or bytes.
            let most = [3, 70, 70_000, u64::MAX][round % 4];
            let data: Vec<u8> = (0..round % 9).flat_map(|_| rng.below(most).to_le_bytes()).collect();
            everything(&data);
        }
    }
}
